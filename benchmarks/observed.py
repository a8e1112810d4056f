"""Two nodes for ten thousand rounds, watched all the time: memory, files and disk over the rounds.

``make observed`` (some minutes). Real processes, links and ledgers, rows tiny; the metrics of both
nodes are scraped every second, their status is read as often, and the log of one is put aside.
"""

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from socket import create_server

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import Figure, Report, perform, table
from benchmarks.network import ONE_THREAD
from dynadp.engines.journal import now
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import node_states, prepare_trial

NODES, ROWS, ROUNDS, PAUSE = ("north", "south"), 40, 10_000, 1.0
RUN = """
[run]
name = "observed"
[data]
schema = "schema.toml"
[privacy]
mechanism = "sum"
mu = 0.001
delta = 1e-5
[training]
rounds = {rounds}
"""
SCHEMA = """
[label]
name = "y"
negative = "no"
positive = "yes"
[[columns]]
kind = "numeric"
name = "x"
low = -1
high = 1
"""


@dataclass(frozen=True)
class Sample:
    """What was seen of one node at one moment."""

    node: str
    round: int
    memory: float
    files: float
    sizes: dict[str, int]
    rest: int
    names: int


def observe(rounds: int, pause: float = PAUSE) -> tuple[list[Sample], float]:
    """Run two nodes and sample them; returns the samples and how long it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _prepare(folder, rounds)
        environment = {**os.environ, **ONE_THREAD, "XDG_STATE_HOME": str(folder / "state")}
        began, samples = time.monotonic(), list[Sample]()
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "dynadp", "node", str(file), "--quiet"], env=environment
            )
            for file in files
        ]
        try:
            aside = False
            while any(process.poll() is None for process in running):
                time.sleep(pause)
                for file in files:
                    samples += _sample(folder, file)
                log = files[0].with_suffix("") / "node.log"
                if not aside and samples and samples[-1].round > rounds / 2:
                    log.rename(log.with_suffix(".aside"))  # as logrotate does, with its signal
                    running[0].send_signal(signal.SIGHUP)
                    aside = True
        finally:
            for process in running:
                process.kill()
                process.wait()
        for state in node_states([folder / "net"]):
            if (state["state"], state["round"]) != ("parted when it ended", rounds) and (
                state["state"],
                state["round"],
            ) != ("parted", rounds):
                raise RuntimeError(f"{state['node']} ended {state['state']!r}, {state['round']}")
        return samples, time.monotonic() - began


def _prepare(folder: Path, rounds: int) -> list[Path]:
    rng = np.random.default_rng(0)
    (folder / "schema.toml").write_text(SCHEMA)
    text = RUN.format(rounds=rounds)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    for node in NODES:
        with open(folder / f"{node}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["x", "y"])
            for x in rng.uniform(-1, 1, ROWS):
                writer.writerow([f"{x:.3f}", "yes" if x > 0 else "no"])
        with Ledger.create(folder / f"{node}.sqlite", node, who="benchmark", at=now()) as ledger:
            ledger.set_cap(Cap.of(10.0, 1e-5), who="benchmark", at=now())
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nledger = "{node}.sqlite"\n'
    (folder / "run.toml").write_text(text)
    made = prepare_trial(str(folder / "run.toml"), folder / "net", 120.0)
    for file in made:
        with create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with open(file, "a") as more:
            more.write(f'health = "127.0.0.1:{port}"\nlog = "json"\n')
    return made


def _sample(folder: Path, file: Path) -> list[Sample]:
    """What a node says of itself, and what its files take; nothing while it begins or ends."""
    node = file.stem
    where = next(
        line.split('"')[1] for line in file.read_text().splitlines() if line.startswith("health")
    )
    try:
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return []
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    patterns = {
        "ledger": [folder / f"{node}.sqlite"],
        "anchor": (folder / "state").glob("dynadp/anchors/*"),
        "letters": (folder / "net" / node).glob("letters-*.sqlite"),
        "rounds.jsonl": [folder / "net" / node / "rounds.jsonl"],
    }
    sizes = {what: _bytes(paths) for what, paths in patterns.items()}
    everything = [path for path in (folder / "net" / node).rglob("*") if path.is_file()]
    known = sizes["letters"] + sizes["rounds.jsonl"]
    return [
        Sample(
            node,
            int(found["dynadp_round"]),
            found["process_resident_memory_bytes"],
            found["process_open_fds"],
            sizes,
            _bytes(everything) - known,
            len([*everything, *folder.glob(f"{node}*")]),
        )
    ]


def _bytes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except OSError:  # a file that is being replaced
            continue
    return total


def _at(samples: list[Sample], share: float, rounds: int) -> Sample:
    """The first sample at or past so much of the run."""
    return next(one for one in samples if one.round >= share * rounds)


def report(rounds: int = ROUNDS) -> Report:
    """Watch, and compare the second half of the run with its first tenth."""
    samples, seconds = observe(rounds)
    lines, figures = [], []
    for node in NODES:
        own = [one for one in samples if one.node == node and 0 < one.round <= rounds]
        early = [one for one in own if one.round >= 0.1 * rounds]
        first, last = early[0], own[-1]
        passed = max(1, last.round - first.round)
        grown = (last.memory - first.memory) / 2**20
        flat = {  # what must not grow with the rounds: its name, how much it grew, its bound
            "memory grown after a tenth of the rounds, MiB": (grown, 64),
            "file descriptors, most less least": (_spread(early, "files"), 8),
            "files, most less least": (_spread(early, "names"), 8),
            "other files grown, KiB": ((last.rest - first.rest) / 1024, 512),
        }
        for what, (found, bound) in flat.items():
            figures.append(Figure(f"{node}: {what}", found, "", below=bound))
        for share in (0.01, 0.1, 0.25, 0.5, 0.75, 0.999):
            one = _at(own, share, rounds) if own[-1].round >= share * rounds else own[-1]
            sizes = (f"{one.sizes[what] / 1024:.0f}" for what in one.sizes)
            lines.append(
                [
                    node,
                    f"{one.round:,}",
                    f"{one.memory / 2**20:.1f}",
                    f"{one.files:.0f}",
                    f"{one.names}",
                    *sizes,
                    f"{one.rest / 1024:.0f}",
                ]
            )
        lines.append(
            [
                node,
                "a round",
                "",
                "",
                "",
                *(f"{(last.sizes[w] - first.sizes[w]) / passed:.0f} B" for w in last.sizes),
                "",
            ]
        )
    head = ["node", "round", "MiB", "open", "files", *(f"{w} KiB" for w in samples[0].sizes)]
    text = table([*head, "rest KiB"], lines)
    text += f"\n{rounds:,} rounds in {seconds:.0f} seconds, {len(samples)} samples"
    details = {"rounds": rounds, "seconds": seconds, "samples": [vars(one) for one in samples]}
    return Report("observed", figures, text, details)


def _spread(samples: list[Sample], what: str) -> float:
    values = [getattr(one, what) for one in samples]
    return float(max(values) - min(values))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--date", default=date.today().isoformat())
    given = parser.parse_args()
    perform(lambda: report(given.rounds), given.date)
