"""Run by benchmarks/growth.py in a process of its own: one large network, its time and its peak
memory.

python -m benchmarks.growth_worker NODES ROWS COLUMNS ROUNDS    prints one line of JSON
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.schema import Shard
from dynadp.engines.simulation import Run, simulate


def rows(nodes: int, count: int, columns: int, seed: int = 0) -> list[Shard]:
    """Standard normal rows scaled to norm 1, labels from one random truth: P(y = 1 | x) = sigmoid(4
    truth.x sqrt(d)).
    """
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(columns)
    truth *= 4 * np.sqrt(columns) / np.linalg.norm(truth)
    shards = []
    for p in range(nodes):
        X = rng.standard_normal((count, columns))
        X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-12)
        y = np.where(rng.random(count) < 1 / (1 + np.exp(-(X @ truth))), 1, -1)
        shards.append(Shard.of(X, y, name=str(p)))
    return shards


def network(nodes: int) -> Topology:
    """A random 4-regular graph."""
    return Topology.family("random_regular", nodes, degree=4)


def peak() -> float:
    """Peak resident memory of this process so far, GiB.

    On Linux from VmHWM: ru_maxrss of a new process begins at the size of the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) / 2**20
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
            2**30 if sys.platform == "darwin" else 2**20
        )


def main(nodes: int, count: int, columns: int, rounds: int) -> None:
    shards, topology, ends = rows(nodes, count, columns), network(nodes), []
    before, start = peak(), time.perf_counter()
    run: Run = simulate(
        shards,
        topology,
        Plan.of(rounds=rounds),
        on_round=lambda progress: ends.append(time.perf_counter()),
    )
    facts = {
        "nodes": nodes,
        "rows": count,
        "columns": columns,
        "rounds": len(run.rounds),
        "seconds": ends[-1] - start,
        "first_round_seconds": ends[0] - start,
        "rest_seconds_a_round": (ends[-1] - ends[0]) / max(rounds - 1, 1),
        "peak_GiB": peak(),
        "peak_GiB_before": before,
        "consensus_gap": float(run.consensus_gap[0]),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
