"""A hundred silos as processes of one machine: 20 rounds of ADMM on a ring, with TLS and durable
ledgers; seconds, processor seconds, and the most memory that all of them took.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Figure, Report, main
from benchmarks.network import ONE_THREAD, make

NODES, ROWS, ROUNDS, D = int(os.environ.get("DYNADP_BENCH_NODES", "100")), 60, 20, 9


def free() -> int:
    """Bytes that processes could still take on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def run() -> Report:
    """One run, from the run file to all models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = make(folder, D, nodes=NODES, rows=ROWS, rounds=ROUNDS)
        words = ["launch", file, "--out", folder / "net", "--patience", 600, "--json", "--quiet"]
        start, before = time.perf_counter(), free()
        process = subprocess.Popen(
            [sys.executable, "-m", "dynadp", *map(str, words)],
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.PIPE,
        )
        least = before
        while process.poll() is None:
            least = min(least, free())
            time.sleep(0.5)
        seconds = time.perf_counter() - start
        assert process.stdout is not None
        answer = process.stdout.read()
        if process.returncode:
            raise RuntimeError(f"launch ended with code {process.returncode}")
        found = json.loads(answer)
        processors = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = processors.ru_utime + processors.ru_stime
    assert len(found["nodes"]) == NODES
    figures = [
        Figure(f"{NODES} processes finish {ROUNDS} rounds", seconds, "s"),
        Figure("processor time of all", spent, "s"),
        Figure("memory of all at most", (before - least) / 2**30, "GiB"),
    ]
    text = (
        f"Ring of {NODES} processes, {ROWS} rows of {D} columns each, primal perturbation. Models "
        f"differ by {found['largest_difference']:.2g}. Memory is what others could take less."
    )
    return Report("many", figures, text, {"seconds": seconds, "processor seconds": spent})


if __name__ == "__main__":
    main(run)
