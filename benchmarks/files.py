"""`train` on a million census rows in five CSV or Parquet files, beside what Polars needs to read
the same files and encode the same columns; processor seconds without imports, and peak memory.

Both have one thread, and processor seconds count, so that other work on the machine adds little.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Report, main, table
from dynadp.data.datasets.synthetic import census

ROWS, NODES, REPEATS = 1_000_000, 5, 5
WORKER = Path(__file__).with_name("files_worker.py")
ALONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")


def write(folder: Path) -> None:
    """The files of all nodes, in both formats."""
    import polars as pl

    frame = pl.DataFrame(dict(census(ROWS, nodes=1, test_rows=0).train))
    for node in range(NODES):
        part = frame.slice(node * ROWS // NODES, ROWS // NODES)
        part.write_csv(folder / f"{node}.csv")
        part.write_parquet(folder / f"{node}.parquet")


def measured(who: str, form: str, folder: Path) -> dict[str, Any]:
    """The least processor seconds of some processes, and that process's memory."""
    found = []
    for _ in range(REPEATS):
        command = [sys.executable, str(WORKER), who, form, str(folder)]
        answer = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | ALONE
        )
        found.append(json.loads(answer.stdout.splitlines()[-1]))
    return min(found, key=lambda one: one["seconds"])


def run() -> Report:
    """Processor seconds of train and of Polars, their ratio, and memory over the matrix."""
    rows, figures, details = [], [], {}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        for form in ("csv", "parquet"):
            found = {who: measured(who, form, Path(name)) for who in ("polars", "read", "train")}
            seconds = {who: one["seconds"] for who, one in found.items()}
            memory = found["train"]["above"] / found["train"]["matrix"]
            ratio = seconds["train"] / seconds["polars"]
            rows.append((form, *seconds.values(), ratio, memory))
            details[form] = found
            figures.append(
                Figure(f"train over Polars, {form}", ratio, below=4)
                if form == "csv"
                else Figure("train from Parquet", seconds["train"], "s", below=3)
            )
            figures.append(Figure(f"peak memory over the matrix, {form}", memory, below=1.3))
    head = ("format", "Polars, s", "surveyed and bound, s", "train, s", "ratio", "memory")
    text = f"{ROWS:,} rows in {NODES} files, epsilon = 1, algorithm sum, one thread.\n\n"
    return Report("files", figures, text + table(head, rows), details)


if __name__ == "__main__":
    main(run)
