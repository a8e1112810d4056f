"""The page in Chromium: first paint, a chart that answers, a run of 1,000 rounds at 100 nodes."""

import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import REPEATS, Figure, Report, main, table
from dynadp.data.datasets.synthetic import census

DYNADP = str(Path(sys.executable).with_name("dynadp"))
ROUNDS, NODES, ROWS = 1000, 100, 4000
COLUMNS = ("age", "schooling", "hours", "sex")
SCHEMA = """
norm = 3.0
[[columns]]
kind = "numeric"
name = "age"
low = 17
high = 90
[[columns]]
kind = "numeric"
name = "schooling"
low = 0
high = 20
[[columns]]
kind = "numeric"
name = "hours"
low = 0
high = 99
[[columns]]
kind = "categorical"
name = "sex"
values = ["female", "male"]
[label]
name = "income"
negative = "low"
positive = "high"
"""


def large_run(folder: Path) -> Path:
    """A real, seeded run of 1,000 rounds at 100 nodes."""
    made = census(ROWS, seed=1, nodes=NODES)
    with open(folder / "all.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "income", "site"])
        for i in range(ROWS):
            writer.writerow(
                [
                    *(made.train[name][i] for name in (*COLUMNS, "income")),
                    f"node-{made.node[i]:03d}",
                ]
            )
    (folder / "schema.toml").write_text(SCHEMA)
    nodes = "".join(f'[[nodes]]\nname = "node-{p:03d}"\n' for p in range(NODES))
    (folder / "run.toml").write_text(
        f'[run]\nname = "large"\nseed = 1\n[data]\nschema = "schema.toml"\nfile = '
        f'"all.csv"\nnode_column = "site"\n{nodes}'
        f"[privacy]\nalpha = 0.05\ndelta = 1e-5\n[training]\nrounds = {ROUNDS}\nrho = 1e-3\neta = "
        f"0.05\n"
    )
    subprocess.run(
        [DYNADP, "train", folder / "run.toml", "--out", folder / "run"],
        check=True,
        capture_output=True,
    )
    return folder / "run"


@contextmanager
def served(*given: str, command: str = "explore") -> Iterator[str]:
    """The address of a page; its sweep has had no time to end."""
    line = [DYNADP, command, *given, "--port", "0", "--no-browser"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def opened(browser: Any, address: str, chart: str) -> dict[str, float]:
    """Milliseconds from the request to the first paint, to a drawn chart, and the longest time that
    the page did not answer.
    """
    page = browser.new_page()
    page.add_init_script(
        "window.longest = 0; new PerformanceObserver((list) => { for (const task of "
        "list.getEntries()) "
        "window.longest = Math.max(window.longest, task.duration); }).observe({ type: 'longtask', "
        "buffered: true });"
    )
    page.goto(address)
    page.locator(f"#chart-{chart} svg").wait_for(timeout=120_000)
    drawn = page.evaluate("performance.now()")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.wait_for_timeout(1000)
    longest = page.evaluate("window.longest")
    page.close()
    return {"first paint": paint, "chart": drawn, "longest task": longest}


def run() -> Report:
    """Medians over openings, the first one of a server apart: it still puts Vega together."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("DYNADP_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        return Report("page", [], "left out: there is no Chromium here (make browser)")
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        large = large_run(Path(name))
        for what, given, chart in (
            ("census rows", ("--made",), "totals"),
            ("1,000 rounds, 100 nodes", (str(large),), "disagreement"),
        ):
            with served(*given) as address:
                found[what] = [opened(browser, address, chart) for _ in range(REPEATS + 1)]
        browser.close()
    medians = {
        what: {name: statistics.median(one[name] for one in times[1:]) / 1000 for name in times[0]}
        for what, times in found.items()
    }
    rows = [
        (
            what,
            *(times[0][name] / 1000 for name in ("first paint", "chart")),
            *medians[what].values(),
        )
        for what, times in found.items()
    ]
    header = (
        "page",
        "first opening: paint",
        "chart (s)",
        "later: paint",
        "chart",
        "longest task (s)",
    )
    figures = [
        figure
        for what in found
        for figure in (
            Figure(f"{what}: first paint", medians[what]["first paint"], "s", below=1.0),
            Figure(f"{what}: interactive chart", medians[what]["chart"], "s", below=2.5),
            Figure(f"{what}: longest task", medians[what]["longest task"], "s", below=0.5),
        )
    ]
    return Report("page", figures, table(header, rows), {"milliseconds": found})


if __name__ == "__main__":
    main(run)
