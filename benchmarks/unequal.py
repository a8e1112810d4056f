"""What nodes of unequal sizes cost in accuracy: python -m benchmarks.unequal (on Adult where its
files are, else census rows).

Planned runs of algorithm "sum", in the open and sealed (two thirds of the nodes honest), and of
ADMM (primal), without a centring round, epsilon = 1 and 0.3 at delta = 1e-5, 40 draws of the noise;
mean test error in percent, and its standard error.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.datasets.uci import adult
from dynadp.engines.simulation import simulate
from dynadp.errors import DatasetError
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.entropy import BatchedDraws
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.problem.terms import Weights

DRAWS = 40


def error(
    data: Dataset,
    sizes: Sequence[int],
    epsilon: float,
    weights: Weights,
    mechanism: str | Mechanism,
) -> tuple[float, float]:
    """Mean test error in percent, and its standard error over draws of the noise."""
    ring = Topology.family("ring", len(sizes))
    parts = np.split(np.random.default_rng(0).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    shards = data.shards(parts, names=ring.nodes)
    p = plan(
        list(sizes),
        ring,
        data.schema.dimension,
        epsilon=epsilon,
        delta=1e-5,
        mechanism=mechanism,
        centring=False,
        weights=weights,
    )
    run = simulate(shards, ring, p, draws=BatchedDraws(1), replicas=DRAWS)
    X, y = data.schema.rows(data.test), data.schema.labels(data.test)
    errors = 100 * np.mean(np.where(X @ run.models()[0].T > 0, 1, -1) != y[:, None], axis=0)
    return float(errors.mean()), float(errors.std(ddof=1)) / sqrt(DRAWS)


def zipf(rows: int, nodes: int, least: int) -> list[int]:
    """One node of the least size, the others in proportion to 1, 1/2, 1/3, ..., in drawn order."""
    share = 1 / np.arange(1, nodes)
    sizes = (share / share.sum() * (rows - least)).astype(int)
    sizes[0] += rows - least - sizes.sum()
    return [*np.random.default_rng(0).permutation(sizes).tolist(), least]


def main() -> None:
    try:
        data = adult(download=False)
    except DatasetError:
        data = census(30_000, seed=5)
    n = len(next(iter(data.train.values())))
    even = {P: [n // P + (i < n % P) for i in range(P)] for P in (1, 2, 20)}
    uneven, tiny = zipf(n, 20, 20), [(n - 20) // 19 + (i < (n - 20) % 19) for i in range(19)] + [20]
    for epsilon in (1.0, 0.3):
        print(f"epsilon = {epsilon:g}")
        for name, sizes, weights in (
            ("one node", even[1], "rows"),
            ("two nodes", even[2], "rows"),
            ("20 equal nodes", even[20], "rows"),
            ("19 equal nodes and one of 20 rows", tiny, "rows"),
            ("the same, nodes weighed equally", tiny, "equal"),
            ("Zipf sizes and one of 20 rows", uneven, "rows"),
            ("the same, largest first", [*sorted(uneven, reverse=True)], "rows"),
            ("the same, nodes weighed equally", uneven, "equal"),
        ):
            print(f"  {name:40s}", end="", flush=True)
            sealed = Sealed(honest=max(2 * len(sizes) // 3, 1))
            for mechanism in ("sum", sealed, "primal"):
                mean, spread = error(data, sizes, epsilon, weights, mechanism)
                how = mechanism if isinstance(mechanism, str) else mechanism.name
                print(f" {how} {mean:.2f} ({spread:.2f})", end="", flush=True)
            print()


if __name__ == "__main__":
    main()
