"""A shard larger than memory: 20 million rows of 20 raw columns in Parquet, streamed through every
pass of a private run.

About ten minutes: the file is made anew, in a temporary folder, in a quarter GB. `--rows N` for
another size.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Report, perform, table
from dynadp.data.datasets.synthetic import census

ROWS, SMALL, PIECE = 20_000_000, 1_000_000, 250_000
LIMIT, CEILING = 512 << 20, 1 << 30  # what rows may take, and the whole process
ROUNDS, REPEATS = 3, 5
WORKER = Path(__file__).with_name("streamed_worker.py")


def write(path: Path, rows: int, piece: int = PIECE) -> None:
    """Census rows with every column twice, and one label: 20 raw columns, in row groups of
    ``piece`` rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for seed, start in enumerate(range(0, rows, piece)):
        count = min(piece, rows - start)
        first, second = (
            census(count, seed=2 * seed + i, nodes=1, test_rows=0).train for i in (0, 1)
        )
        more = {f"{name}_2": cells for name, cells in second.items() if name != "income"}
        part = pa.table({**first, **more})
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    if writer:
        writer.close()


def worker(*arguments: Any) -> dict[str, Any]:
    """What the worker found, in a process of its own."""
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return found


def run(sizes: tuple[int, ...] = (SMALL, ROWS)) -> Report:
    """Memory of a whole run, and speed of its passes against reading the file."""
    figures, memory_rows, speed_rows, details = [], [], [], {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path, start = Path(folder) / "rows.parquet", time.perf_counter()
            write(path, size)
            made, on_disk = time.perf_counter() - start, path.stat().st_size
            trained, passed = (
                worker("train", path, LIMIT, ROUNDS),
                worker("pass", path, LIMIT, REPEATS),
            )
        seconds = {name: statistics.median(took) for name, took in passed["seconds"].items()}
        ratio = statistics.median(
            read / gradient
            for read, gradient in zip(
                passed["seconds"]["read"], passed["seconds"]["gradient"], strict=True
            )
        )
        mebibytes = [trained[name] / 2**20 for name in ("matrix", "imported", "peak")]
        each = ", ".join(
            f"{took:.0f} s ({n} passes)"
            for took, n in zip(trained["rounds"], trained["passes"], strict=True)
        )
        memory_rows.append((f"{size:,}", on_disk / 2**20, *mebibytes, trained["before"], each))
        speed_rows += [
            (f"{size:,}", name, took, size / took / 1e6, took / seconds["read"])
            for name, took in seconds.items()
        ]
        figures += [
            Figure(
                f"peak memory of a whole run, {size:,} rows",
                trained["peak"] / 2**20,
                "MiB",
                below=CEILING / 2**20,
            ),
            Figure(
                f"speed of a gradient pass over that of reading the file, {size:,} rows",
                ratio,
                at_least=0.25,
            ),
        ]
        details[str(size)] = {"train": trained, "pass": passed, "bytes": on_disk, "made": made}
    text = (
        f"Census columns twice (20 raw columns, 101 features), one node, limit {LIMIT >> 20} MiB: "
        f"count, validate, private "
        f"centring and {ROUNDS} rounds of dual perturbation.\n\n"
        + table(
            (
                "rows",
                "file, MiB",
                "dense matrix, MiB",
                "imports, MiB",
                "peak, MiB",
                "before round 1, s",
                "rounds",
            ),
            memory_rows,
        )
        + "\n\nMedian seconds of a pass. Reading: the same columns decoded by Arrow, and nothing "
        "done with them.\n\n"
        + table(("rows", "pass", "seconds", "million rows a second", "over reading"), speed_rows)
    )
    return Report("streamed", figures, text, details)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="one size only")
    parser.add_argument(
        "--date", default=date.today().isoformat(), help="date to write into the results"
    )
    given = parser.parse_args()
    perform(lambda: run((given.rows,) if given.rows else (SMALL, ROWS)), given.date)


if __name__ == "__main__":
    main()
