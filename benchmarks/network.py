"""Five silos as processes with real links and durable ledgers: time of a round beyond its solve,
memory, time to resume.
"""

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, Report, main, table
from dynadp.engines.journal import now
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import prepare_trial
from dynadp.runs.local import LocalRun

NODES, ROWS, ROUNDS, DIMENSIONS, RUNS = 5, 60, 60, (105, 1_000, 10_000), 5
WORKER = Path(__file__).with_name("network_worker.py")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def make(
    folder: Path,
    d: int,
    *,
    nodes: int = NODES,
    rows: int = ROWS,
    rounds: int = ROUNDS,
    family: str = "ring",
) -> Path:
    """A run file with rows of d - 1 numbers and a ledger for each node."""
    rng = np.random.default_rng(0)
    columns = [f"x{i}" for i in range(d - 1)]
    lines = [
        '[run]\nname = "bench"\n[data]\nschema = "schema.json"\ndescription = "made for measuring"',
        f'[privacy]\nmechanism = "primal"\nalpha = 0.1\ndelta = 1e-5\n[topology]\nfamily = '
        f'"{family}"',
        f"[training]\nrounds = {rounds}\nrho = 1e-3\neta = 0.05",
    ]
    schema = {
        "columns": [{"kind": "numeric", "name": name, "low": -1, "high": 1} for name in columns],
        "label": {"name": "y", "negative": "no", "positive": "yes"},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    for p in range(nodes):
        values = rng.uniform(-1, 1, (rows, d - 1))
        labels = np.where(values[:, 0] + rng.normal(size=rows) > 0, "yes", "no")
        with open(folder / f"n{p}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "y"])
            writer.writerows(
                [*(f"{x:.4f}" for x in row), label]
                for row, label in zip(values, labels, strict=True)
            )
        with Ledger.create(folder / f"n{p}.sqlite", f"n{p}", who="benchmark", at=now()) as ledger:
            ledger.set_cap(Cap.of(1000.0, 1e-5), who="benchmark", at=now())
        lines.append(f'[[nodes]]\nname = "n{p}"\nfile = "n{p}.csv"\nledger = "n{p}.sqlite"')
    (folder / "run.toml").write_text("\n".join(lines))
    return folder / "run.toml"


def start(node: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(WORKER), str(node), str(out)]
    return subprocess.Popen(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.DEVNULL)


def together(nodes: list[Path]) -> list[dict[str, Any]]:
    """All nodes at once; what each measured."""
    outs = [node.with_suffix(".json") for node in nodes]
    running = [start(node, out) for node, out in zip(nodes, outs, strict=True)]
    for process in running:
        if process.wait(timeout=600):
            raise RuntimeError(f"a node ended with code {process.returncode}")
    return [json.loads(out.read_text()) for out in outs]


def rounds_of(found: dict[str, Any]) -> list[dict[str, float]]:
    """Seconds of each round's parts at one node, the first five rounds left out."""
    out: list[dict[str, float]] = []
    before, spans = None, dict[str, float]()
    for point, at in found["points"]:
        if (
            point in ("computed", "spent", "kept", "published", "received", "noted")
            and before is not None
        ):
            spans[point] = spans.get(point, 0.0) + at - before
        if point == "noted":
            out.append(spans)
            spans = {}
        before = at
    return out[5:]


def resume_seconds(nodes: list[Path]) -> dict[str, float]:
    """A node is killed and started again at once: seconds to its next message, and to links that
    are up.
    """
    outs = [node.with_suffix(".json") for node in nodes]
    running = [start(node, out) for node, out in zip(nodes, outs, strict=True)]
    letters = nodes[0].with_suffix("") / "rounds.jsonl"
    while not letters.exists() or len(letters.read_bytes().splitlines()) < 10:
        time.sleep(0.01)
    running[0].send_signal(signal.SIGKILL)
    running[0].wait()
    began = time.perf_counter()
    running[0] = start(nodes[0], outs[0])
    for process in running:
        process.wait(timeout=600)
    found = json.loads(outs[0].read_text())
    first = dict(reversed(found["points"]))
    return {
        "agreed": first["agreed"] - began,
        "next message": first["published"] - began,
        "program": found["start"] - began,
    }


def run() -> Report:
    """Milliseconds a round over dimensions, beside one process; memory; resume."""
    lines, figures, details, others = [], [], {}, ""
    for d in DIMENSIONS:
        runs = [_measured(d) for _ in range(RUNS if d == DIMENSIONS[0] else 1)]
        one = min(runs, key=lambda run: run["beyond"])
        columns = ("round", "own solve", "spend", "beyond", "solves", "simulated", "peak_MiB")
        lines.append((d, *(one[name] for name in columns)))
        details[str(d)] = one | {"beyond_of_all_runs": [run["beyond"] for run in runs]}
        if d == DIMENSIONS[0]:
            figures.append(
                Figure(
                    "a round beyond its solve, d = 105, 5 nodes, durable",
                    one["beyond"],
                    "ms",
                    below=10,
                )
            )
            others = ", ".join(f"{run['beyond']:.1f}" for run in runs)
        if d == DIMENSIONS[0]:
            with tempfile.TemporaryDirectory() as name:
                file = make(Path(name), d, rounds=400)
                again = resume_seconds(prepare_trial(str(file), Path(name) / "net", 60.0))
                details["resume"] = again
    header = (
        "d",
        "round",
        "own solve",
        "spend",
        "beyond own solve",
        "all solves / 2 cores",
        "simulated round",
        "peak MiB",
    )
    text = (
        f"Ring of {NODES} processes on one machine, {ROWS} rows each, primal perturbation, "
        f"{ROUNDS} rounds, mutual TLS, signed "
        f"letters, every release in a ledger (SQLite, fsync) before it is sent. Medians over "
        f"rounds and nodes, milliseconds "
        f"(d = 105: the least of {RUNS} runs, {others} beyond); 'beyond own solve' includes "
        f"waiting for neighbours that share "
        f"the cores.\n\n{table(header, lines)}\n\n"
        f"Killed and started again: {again['agreed']:.2f} s until its neighbours have greeted it, "
        f"{again['next message']:.2f} s"
        f" until its next message, of which {again['program']:.2f} s pass before the program's "
        f"first line."
    )
    return Report("network", figures, text, details)


def _measured(d: int) -> dict[str, Any]:
    """One run: medians over rounds and nodes in milliseconds, and the peak of memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = make(folder, d)
        found = together(prepare_trial(str(file), folder / "net", 60.0))
        simulated = _simulated(file)
    parts = [spans for one in found for spans in rounds_of(one)]
    median = {
        key: 1e3 * statistics.median(spans.get(key, 0.0) for spans in parts) for key in parts[0]
    }
    return {
        "round": 1e3 * statistics.median(sum(spans.values()) for spans in parts),
        "own solve": median["computed"],
        "spend": median["spent"],
        "beyond": 1e3
        * statistics.median(sum(spans.values()) - spans["computed"] for spans in parts),
        "solves": sum(
            1e3 * statistics.median(spans["computed"] for spans in rounds_of(one)) for one in found
        )
        / 2,
        "simulated": simulated,
        "peak_MiB": max(one["peak"] for one in found) / 2**20,
        "median_ms": median,
    }


def _simulated(file: Path) -> float:
    """Milliseconds a round of the same run in one process, without ledgers."""
    from dynadp.runs.training import train

    job = LocalRun.load(file)
    planned = job.plan()
    marks: list[float] = []
    train(
        job.schema,
        job.rows,
        job.topology,
        planned,
        draws=SeededEntropy(0),
        on_round=lambda progress: marks.append(time.perf_counter()),
    )
    return 1e3 * statistics.median(np.diff(marks)[5:])


if __name__ == "__main__":
    main(run)
