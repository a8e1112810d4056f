"""The planner's constants, found again on census rows: test error of each candidate over networks
and totals.

The rows are made here and have nothing to do with anybody's; their test rows may therefore be
looked at freely.
"""

from dataclasses import replace
from functools import cache, lru_cache
from itertools import product

import numpy as np

from benchmarks.census_runs import errors
from benchmarks.measure import Figure, Report, main, table
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.planning.planner import Constants, plan

DELTA, CENTRINGS, DRAWS = 1e-5, 2, 6
TOTALS = (0.1, 0.5, 2.0, 8.0)
NETWORKS = (  # nodes, rows of all, graph, heterogeneity, whether sizes differ
    (5, 30_000, "ring", 0.5, False),
    (5, 5_000, "ring", 0.5, False),
    (20, 20_000, "random_regular", 0.5, False),
    (50, 25_000, "ring", 0.5, False),
    (10, 20_000, "complete", 1.0, False),
    (10, 20_000, "star", 0.5, True),
)
CANDIDATES = {
    "rounds": (10, 20, 40),
    "ridge": (0.0005, 0.002, 0.02, 0.1),
    "centring": (0.0, 0.05, 0.1, 0.2),
}
PULLS, MARGINS = (0.35, 0.5, 0.7, 1.0), (0.0, 2.0, 3.0, 4.0)


def run() -> Report:
    """Mean test error over networks and totals, of the planner's constants and of others."""
    chosen = Constants()
    joint = {(k, m): _errors(replace(chosen, pull=k, margin=m)) for k, m in product(PULLS, MARGINS)}
    alone = {
        (name, value): _errors(replace(chosen, **{name: value}))
        for name in CANDIDATES
        for value in CANDIDATES[name]
    }
    ours = joint[chosen.pull, chosen.margin]
    every = np.array([*joint.values(), *alone.values()])
    regret = 100 * (ours - every.min(axis=0))
    rows = [(f"pull {k:g}", *(100 * joint[k, m].mean() for m in MARGINS)) for k in PULLS]
    text = "Mean test error in percent.\n\n" + table(
        ("", *(f"margin {m:g}" for m in MARGINS)), _rounded(rows)
    )
    rows = [(name, f"{value:g}", 100 * error.mean()) for (name, value), error in alone.items()]
    text += "\n\n" + table(("constant", "value", "mean error"), _rounded(rows))
    cells = [
        (f"{n} {g}", rows, e, 100 * error, r)
        for (n, rows, g, *_), e, error, r in _cells(ours, regret)
    ]
    text += "\n\n" + table(
        ("network", "rows", "epsilon", "planner's error", "regret"), _rounded(cells)
    )
    best = min(joint, key=lambda key: joint[key].mean())
    figures = [
        Figure(
            "median regret against the best candidate of each cell",
            float(np.median(regret)),
            "points",
        ),
        Figure("largest regret", float(regret.max()), "points"),
        Figure(
            f"mean error: planner's (best pair is pull {best[0]:g}, margin {best[1]:g})",
            100 * float(ours.mean()),
            "%",
        ),
        Figure("mean error: best pair", 100 * float(joint[best].mean()), "%"),
    ]
    details = {
        "joint": [{"pull": k, "margin": m, "errors": e.tolist()} for (k, m), e in joint.items()],
        "alone": [{"constant": n, "value": v, "errors": e.tolist()} for (n, v), e in alone.items()],
    }
    return Report("plan_study", figures, text, details)


def _cells(*columns):
    return (
        (network, epsilon, *row)
        for (network, epsilon), *row in zip(product(NETWORKS, TOTALS), *columns, strict=True)
    )


def _rounded(rows):
    return [
        tuple(
            f"{cell:.2f}" if isinstance(cell, float) and i else cell for i, cell in enumerate(row)
        )
        for row in rows
    ]


@lru_cache
def _data(
    nodes: int, rows: int, heterogeneity: float, unequal: bool
) -> tuple[Dataset, tuple[np.ndarray, ...]]:
    data = census(rows, seed=7, nodes=nodes, heterogeneity=heterogeneity, test_rows=20_000)
    parts = [np.flatnonzero(data.node == p) for p in range(nodes)]
    if unequal:  # from all rows of the first to a tenth of those of the last
        parts = [
            part[: round(len(part) * share)]
            for part, share in zip(parts, np.geomspace(1, 0.1, nodes), strict=True)
        ]
    return data, tuple(parts)


def _errors(constants: Constants) -> np.ndarray:
    """Median error over draws, for each network and total."""
    return np.array(
        [_error(constants, network, epsilon) for network, epsilon in product(NETWORKS, TOTALS)]
    )


@cache
def _error(constants: Constants, network: tuple, epsilon: float) -> float:
    nodes, rows, family, heterogeneity, unequal = network
    data, parts = _data(nodes, rows, heterogeneity, unequal)
    topology, schema = Topology.family(family, nodes), data.schema
    counts = [len(part) for part in parts]
    chosen = plan(
        counts,
        topology,
        schema.dimension,
        epsilon=epsilon,
        delta=DELTA,
        mechanism="primal",
        centring=constants.centring > 0,
        constants=constants,
    )
    found = errors(data, parts, chosen, range(CENTRINGS), DRAWS, SeededEntropy)
    return float(np.median(found))


if __name__ == "__main__":
    main(run)
