"""The replay of 1,000 rounds at 50 nodes in Chromium: frame times as it plays and is scrubbed."""

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Report, main, table
from benchmarks.page import COLUMNS, DYNADP, SCHEMA, served
from dynadp.data.datasets.synthetic import census

ROUNDS, NODES, ROWS, SECONDS = 1000, 50, 4000, 10
FRAMES = """
async (seconds) => {
  const times = [];
  let last = performance.now();
  const end = last + 1000 * seconds;
  while (last < end) {
    const now = await new Promise((done) => requestAnimationFrame(done));
    times.push(now - last);
    last = now;
  }
  return times.slice(1);
}
"""


def long_run(folder: Path) -> Path:
    """A real, seeded run of 1,000 rounds at 50 nodes."""
    made = census(ROWS, seed=1, nodes=NODES)
    names = (*COLUMNS, "income")
    lines = [
        ",".join([*(str(made.train[name][i]) for name in names), f"node-{made.node[i]:03d}"])
        for i in range(ROWS)
    ]
    (folder / "all.csv").write_text("\n".join([",".join([*names, "site"]), *lines]) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    nodes = "".join(f'[[nodes]]\nname = "node-{p:03d}"\n' for p in range(NODES))
    (folder / "run.toml").write_text(
        f'[run]\nname = "long"\nseed = 1\n[data]\nschema = "schema.toml"\nfile = "all.csv"\n'
        f'node_column = "site"\n{nodes}[topology]\nfamily = "random_regular"\n'
        f"[privacy]\nalpha = 0.05\ndelta = 1e-5\n[training]\nrounds = {ROUNDS}\nrho = 1e-3\n"
        "eta = 0.05\n"
    )
    line = [DYNADP, "train", folder / "run.toml", "--out", folder / "run"]
    subprocess.run(line, check=True, capture_output=True)
    return folder / "run"


def quantiles(times: list[float]) -> tuple[float, float, float]:
    """Median, 95th of 100 and longest."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1]


def played(browser: Any, address: str) -> dict[str, tuple[float, float, float]]:
    """Frame times by what is done; and milliseconds until the page is drawn."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("body[data-ready=yes]", timeout=120_000)
    drawn = 1000 * (time.perf_counter() - began)
    page.select_option("#speed", "30")
    found = {"until drawn": (drawn,) * 3}
    idle = page.evaluate(FRAMES, 3)
    page.click("#play")
    playing = page.evaluate(FRAMES, SECONDS)
    page.click("#play")
    scrubbing = page.evaluate(
        """async () => {
          const bar = document.getElementById("scrub"), times = [];
          for (let i = 0; i <= Number(bar.max); i += 2) {
            const began = performance.now();
            bar.value = i;
            bar.dispatchEvent(new Event("input"));
            times.push(performance.now() - began);
            await new Promise((done) => requestAnimationFrame(done));
          }
          return times;
        }"""
    )
    page.close()
    named = {"idle": idle, "playing": playing, "drawing one frame": scrubbing}
    return found | {name: quantiles(times) for name, times in named.items()}


def run() -> Report:
    """Frame times of one opening; they include what else the machine does."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("DYNADP_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        return Report("replay", [], "left out: there is no Chromium here (make browser)")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = long_run(Path(place))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with served(str(folder), command="replay") as address:
            found = played(browser, address)
        browser.close()
    figures = [
        Figure("replay, playing: frame time, median", found["playing"][0], "ms", below=17.5),
        Figure("replay, playing: frame time, 95 in 100", found["playing"][1], "ms", below=34.0),
        Figure(
            "replay: drawing one frame, 95 in 100", found["drawing one frame"][1], "ms", below=16.0
        ),
    ]
    rows = [[name, *(f"{value:.1f}" for value in values)] for name, values in found.items()]
    header = ("ms", "median", "95 in 100", "longest")
    return Report("replay", figures, table(header, rows), {"milliseconds": found})


if __name__ == "__main__":
    main(run)
