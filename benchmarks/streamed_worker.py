"""Run by benchmarks/streamed.py and tests/problem/test_streamed.py: work on one streamed Parquet
file and print what it took, as JSON.

python streamed_worker.py train FILE BYTES ROUNDS    a private run with a centring round; peak
memory of the whole process python streamed_worker.py pass FILE BYTES REPEATS    seconds to read the
file, of a gradient and of Hessians, in turn
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dynadp import Plan
from dynadp.consensus.progress import RoundProgress
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census_schema
from dynadp.data.node_rows import NodeRows, StreamedShard, bytes_in_memory
from dynadp.data.readers import source
from dynadp.data.schema import Schema
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.centring import private_centre
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.streamed import StreamedProblem


def wide_schema() -> Schema:
    """The census schema with every column twice: 20 raw columns, 100 features and the intercept."""
    once = census_schema()
    again = tuple(column.model_copy(update={"name": f"{column.name}_2"}) for column in once.columns)
    return once.model_copy(update={"columns": once.columns + again, "norm": 4.0})


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process; a rusage would count the parent's peak."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def train(path: str, limit: int, rounds: int) -> dict[str, Any]:
    """All that a private run does with rows: count, validate, centre, and rounds; a pass is a pass
    over the file.
    """
    alone, schema, given = Topology.family("ring", 1), wide_schema(), source(path, memory=limit)
    imported, start = memory("VmRSS"), time.perf_counter()
    prepared = NodeRows(schema, given, alone.nodes[0])
    rows, sums = prepared.count, [prepared.sums]
    centred = private_centre(schema, sums, alone.nodes, 0.1, SeededEntropy(0)).applied(schema)
    held = prepared.shard(centred)
    before = time.perf_counter() - start
    seen, laps = [getattr(held, "passes", 0)], [time.perf_counter()]

    def note(progress: RoundProgress) -> None:
        laps.append(time.perf_counter())
        seen.append(getattr(held, "passes", 0))

    simulate(
        [held],
        alone,
        Plan.of(rho=1e-3, eta=1e-2, rounds=rounds, mechanism=Dual(), schedule=0.1),
        draws=SeededEntropy(0),
        on_round=note,
    )
    return {
        "rows": rows,
        "streamed": isinstance(held, StreamedShard),
        "matrix": rows * schema.dimension * 8,
        "needed": bytes_in_memory(centred, rows),
        "imported": imported,
        "peak": memory("VmHWM"),
        "before": before,
        "rounds": np.diff(laps).tolist(),
        "passes": np.diff(seen).tolist(),
        "seconds": time.perf_counter() - start,
    }


def passes(path: str, limit: int, repeats: int) -> dict[str, Any]:
    """Seconds to read and decode the same columns, of a gradient, and of a Hessian from every
    fourth and from every row.
    """
    schema = wide_schema()
    centred = schema.model_copy(
        update={"centre": (0.1,) * (schema.dimension - 1), "scaling": "unit"}
    )
    there = StreamedShard.of(centred, source(path, memory=limit))
    problem = StreamedProblem([there], Logistic(), SquaredL2(), 1.0, 1e-3)
    names = list(schema.raw_columns)
    texts = [field.name for field in pq.read_schema(path) if pa.types.is_string(field.type)]
    F = np.zeros((1, 1, problem.dimension))

    def read() -> None:
        file = pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False, buffer_size=1 << 20)
        for _ in file.iter_batches(batch_size=there.blocks.size, columns=names, use_threads=True):
            pass

    def gradient() -> None:
        F[0, 0, 0] += 1e-3  # another point, or the last sum would do
        problem.local_gradient(F)

    work = {
        "read": read,
        "gradient": gradient,
        "Hessian, every 4th row": lambda: problem.hessians(F, problem.margins(F), 4),
        "Hessian, every row": lambda: problem.hessians(F, problem.margins(F), 1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, job in work.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {
        "rows": there.rows,
        "block": there.blocks.size,
        "seconds": seconds,
        "peak": memory("VmHWM"),
    }


if __name__ == "__main__":
    print(
        json.dumps(
            {"train": train, "pass": passes}[sys.argv[1]](
                sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
            )
        )
    )
