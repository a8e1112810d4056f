"""Run by benchmarks/memory.py: train on one Parquet file and print peak memory above that after
imports, as JSON.

python memory_worker.py FILE ROWS
"""

import json
import sys
import time
from pathlib import Path

import duckdb  # noqa: F401 (imported before the first reading, as all that follow)
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet  # noqa: F401
from dp_accounting import pld  # noqa: F401

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census_schema
from dynadp.data.readers import source
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.planning.planner import plan
from dynadp.runs.training import train


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process; a rusage would count the parent's peak."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def main(path: str, rows: int) -> None:
    alone, schema = Topology.family("ring", 1), census_schema()
    plan(
        [rows], alone, schema.dimension, epsilon=1.0, delta=1e-5, mechanism="primal"
    )  # fills the accounting's caches
    before, start = memory("VmRSS"), time.perf_counter()
    train(schema, {"0": source(path)}, alone, epsilon=1.0, delta=1e-5, draws=SeededEntropy(0))
    print(
        json.dumps(
            {
                "above": memory("VmHWM") - before,
                "seconds": time.perf_counter() - start,
                "columns": schema.dimension,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
