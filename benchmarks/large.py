"""A hundred thousand nodes in one process: made rows, 20 private rounds, time and peak memory."""

import resource
import time

import networkx as nx
import numpy as np

from benchmarks.measure import Report, main
from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.entropy import BatchedDraws
from dynadp.mechanisms.primal import Primal

NODES, ROWS, COLUMNS, ROUNDS = 100_000, 20, 10, 20


def run() -> Report:
    """Primal perturbation on a random 4-regular graph; the model against the truth that rows were
    made from.
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=COLUMNS)
    shards = []
    for p in range(NODES):
        X = rng.normal(size=(ROWS, COLUMNS))
        X /= np.linalg.norm(X, axis=1, keepdims=True) * (1 + 1e-9)
        shards.append(
            Shard.of(X, np.where(X @ truth + 0.3 * rng.normal(size=ROWS) > 0, 1, -1), name=str(p))
        )
    graph = Topology(nx.random_regular_graph(4, NODES, seed=1), "random 4-regular")
    start = time.perf_counter()
    made = simulate(
        shards,
        graph,
        Plan.of(rho=0.01, eta=0.01, rounds=ROUNDS, mechanism=Primal(), schedule=0.5),
        draws=BatchedDraws(1),
        storage="dense",
    )
    seconds = time.perf_counter() - start
    f = made.models("network")[0, 0]
    found = {
        "seconds": seconds,
        "peak_GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "cosine_to_truth": float(f @ truth / np.linalg.norm(f) / np.linalg.norm(truth)),
    }
    text = (
        f"{NODES:,} nodes x {ROWS} rows x {COLUMNS} columns, {ROUNDS} rounds of primal "
        f"perturbation: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    )
    return Report("large", [], text, found)


if __name__ == "__main__":
    main(run)
