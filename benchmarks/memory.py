"""Peak memory of training on one Parquet file of a million rows, above that after imports, beside
its bounded matrix.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Figure, Report, main, table
from dynadp.data.datasets.synthetic import census

SIZES = (100_000, 300_000, 1_000_000)


def run() -> Report:
    """Peak memory over the bounded matrix, centred and so dense."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, figures = [], []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.parquet"
            pq.write_table(pa.table(dict(census(size, nodes=1, test_rows=0).train)), path)
            command = [
                sys.executable,
                str(Path(__file__).with_name("memory_worker.py")),
                str(path),
                str(size),
            ]
            found = json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
        matrix = size * found["columns"] * 8
        rows.append(
            (
                size,
                matrix / 2**20,
                found["above"] / 2**20,
                found["above"] / matrix,
                found["seconds"],
            )
        )
        if size == SIZES[-1]:
            figures.append(
                Figure(
                    "peak memory over the bounded matrix, a million rows",
                    found["above"] / matrix,
                    below=1.3,
                )
            )
    text = (
        "Census rows from Parquet, one node, epsilon = 1, 20 rounds, the planner's plan.\n\n"
        + table(("rows", "matrix, MiB", "peak above imports, MiB", "ratio", "seconds"), rows)
    )
    return Report("memory", figures, text, {"sizes": rows})


if __name__ == "__main__":
    main(run)
