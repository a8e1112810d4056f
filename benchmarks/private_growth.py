"""How the cost of a private run grows with nodes, rows, columns, rounds and people, for ADMM and
for sums. Processor seconds, of which other work on the machine takes little.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.growth_worker import network, rows
from benchmarks.measure import Report, main, table
from dynadp import Plan, Schema, census
from dynadp.data import NodeRows
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.entropy import SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import Sum

BASE = {"nodes": 10, "rows": 1_000, "columns": 50, "rounds": 20}
ALONG = {
    "nodes": (10, 40, 160),
    "rows": (1_000, 4_000, 16_000),
    "columns": (50, 100, 200),
    "rounds": (20, 40, 80),
}
WAYS = {
    "ADMM (primal)": {"mechanism": Primal(), "schedule": 0.5},
    "sums": {"mechanism": Sum(), "schedule": 0.05},
}
REPEATS = 2


def processor(work: Callable[[], Any]) -> float:
    """The least processor seconds of some repeats."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def runs() -> dict[tuple[str, int, str], float]:
    """Processor seconds of a whole run in one process, one quantity at a time."""
    found = {}
    for what, sizes in ALONG.items():
        for size in sizes:
            shape = BASE | {what: size}
            shards = rows(shape["nodes"], shape["rows"], shape["columns"])
            ring = network(shape["nodes"])
            for way, how in WAYS.items():
                made = Plan.of(rounds=shape["rounds"], **how)
                found[what, size, way] = processor(
                    lambda s=shards, r=ring, m=made: simulate(s, r, m, draws=SystemEntropy())
                )
    return found


def people(count: int = 100_000) -> list[tuple[str, float]]:
    """Microseconds a row of counting and bounding rows in memory: nobody named, and people of one,
    ten and a hundred rows, of whom ten are used.
    """
    data, found = census(rows=count), []
    for each in (0, 1, 10, 100):
        cells, schema = dict(data.train), data.schema
        length = len(next(iter(cells.values())))
        if each:
            cells["who"] = np.random.default_rng(0).permutation(np.arange(length) // each)
            declared = {"person": "who", "rows_per_person": min(each, 10)}
            schema = Schema.model_validate(schema.model_dump() | declared)
        seconds = processor(lambda s=schema, c=cells: NodeRows(s, c, "a").shard(s))
        found.append((f"{each} rows a person" if each else "no people", 1e6 * seconds / length))
    return found


def run() -> Report:
    """Tables of growth."""
    times, loading = runs(), people()
    base = {way: times["nodes", BASE["nodes"], way] for way in WAYS}
    lines = [
        (what, f"{size:,}", *(times[what, size, way] / base[way] for way in WAYS))
        for what, sizes in ALONG.items()
        for size in sizes
    ]
    text = f"Processor time of a run over that at {BASE}: {base} seconds.\n\n"
    text += table(("", "", *WAYS), lines)
    text += "\n\nMicroseconds a row of counting and bounding rows in memory.\n\n"
    text += table(("", "us a row"), loading)
    details = {"seconds": {"/".join(map(str, k)): v for k, v in times.items()}, "people": loading}
    return Report("private_growth", [], text, details)


if __name__ == "__main__":
    main(run)
