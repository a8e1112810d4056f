"""Run by benchmarks/files.py: one contestant in a process of its own; prints JSON.

python files_worker.py polars|read|train csv|parquet FOLDER
"""

import json
import sys
import time
from pathlib import Path

import duckdb  # noqa: F401 (imported before the clock starts, as all that follow)
import polars as pl
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet  # noqa: F401
from dp_accounting import pld  # noqa: F401

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census_schema
from dynadp.data.node_rows import NodeRows
from dynadp.mechanisms.entropy import SystemEntropy
from dynadp.planning.planner import plan
from dynadp.runs.training import train

SCHEMA = census_schema()


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def encoded(path: Path) -> None:
    """Read a file by Polars and encode its columns: one-hot, and numbers as they are."""
    frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    listed = [column.name for column in SCHEMA.columns if hasattr(column, "values")]
    features = frame.drop(SCHEMA.label.name).to_dummies(listed)
    features.cast(pl.Float64).to_numpy()
    (frame[SCHEMA.label.name] == SCHEMA.label.classes[1]).to_numpy()


def main(who: str, form: str, folder: Path) -> None:
    files = {path.stem: path for path in sorted(folder.glob(f"*.{form}"))}
    ring, rows = Topology.family("ring", len(files)), 200_000
    plan([rows] * len(files), ring, SCHEMA.dimension, epsilon=1.0, delta=1e-6)  # fills caches
    centred = SCHEMA.model_copy(
        update={"centre": (0.01,) * SCHEMA.feature_count, "scaling": "unit"}
    )
    before, start = memory("VmRSS"), time.process_time()
    if who == "train":
        train(SCHEMA, files, ring, epsilon=1.0, delta=1e-6, draws=SystemEntropy())
    for path in files.values():
        if who == "polars":
            encoded(path)
        if who == "read":  # as train does, one node after the other
            own = NodeRows(SCHEMA, path, path.stem)
            own.check()
            own.shard(centred)
    seconds = time.process_time() - start
    matrix = 8 * SCHEMA.dimension * sum(rows for _ in files)
    above = memory("VmHWM") - before
    print(json.dumps({"seconds": seconds, "above": above, "matrix": matrix}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
