"""Algorithm "sum" beside ADMM (primal) on census rows, from one node to 200, equal or of Zipf
sizes; the same sums in the open and sealed; and two ways to weigh nodes. The planner's choice when
nothing is said rests on this.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from benchmarks.census_runs import errors
from benchmarks.measure import Figure, Report, main, table
from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.planning.sums import signal

DELTA, ROWS, SEEDS, REPLICAS = 1e-5, 20_000, range(3), 4
TOTALS = (0.1, 0.3, 1.0, 3.0, 8.0)
NODES = (1, 2, 5, 20, 50, 200)
HONEST = {5: 3, 20: 13, 50: 32, 200: 132}  # of so many nodes, where sums are sealed
SORTED = (None, "age", "trade")  # by which column rows go to nodes: then these are not alike


def run() -> Report:
    """Median test error in percent for each network and total."""
    data = census(ROWS, seed=11, nodes=1, test_rows=20_000)
    rows, found = [], []
    for nodes in NODES:
        for unequal in (False, True) if nodes > 2 else (False,):
            parts = split(data, nodes, unequal)
            for epsilon in TOTALS:
                both = [
                    100 * errors(data, parts, planned(data, parts, epsilon, name), SEEDS, REPLICAS)
                    for name in ("primal", "sum")
                ]
                gap, error = difference(*both)
                sizes = "Zipf" if unequal else "equal"
                shown = (f"{np.median(each):.2f}" for each in both)
                rows.append((f"{nodes} {sizes}", epsilon, *shown, f"{gap:+.2f} ({error:.2f})"))
                found.append({"nodes": nodes, "sizes": sizes, "epsilon": epsilon, "gap": gap})
                print(rows[-1], flush=True)
    text = "Median test error, %; ADMM's less that of sum, points (standard error).\n\n" + table(
        ("nodes", "epsilon", "ADMM", "sum", "ADMM - sum"), rows
    )
    hidden = sealed(data)
    text += (
        "\n\nMedian test error, %, in the open and sealed, with one spare attempt and without; one "
        "trusted place beside them.\n\n"
    )
    text += table(("nodes", "epsilon", "open", "sealed", "no spare", "open - sealed"), hidden)
    weighed = weights(data)
    text += (
        "\n\n20 nodes of Zipf sizes, rows given out by a column: error of every row weighing the "
        "same, with nodes that lower N left out, less that of the rule.\n\n"
    )
    text += table(("rows", "epsilon", "rule", "difference"), weighed)
    gaps = [each["gap"] for each in found]
    figures = [
        Figure("ADMM - sum: least", min(gaps), "points"),
        Figure("ADMM - sum: median", float(np.median(gaps)), "points"),
        Figure("ADMM - sum: largest", max(gaps), "points"),
    ]
    return Report(
        "algorithms", figures, text, {"networks": found, "weights": weighed, "sealed": hidden}
    )


def split(data: Dataset, nodes: int, unequal: bool, by: str | None = None) -> list[np.ndarray]:
    """Rows of each node; Zipf sizes have at least 20 rows, the largest node first unless rows go
    out by a column.
    """
    rng = np.random.default_rng(1)
    order = rng.permutation(ROWS)
    if by is not None:
        order = order[np.argsort(data.train[by][order], kind="stable")]
    if not unequal:
        return np.array_split(order, nodes)
    share = 1 / np.arange(1, nodes + 1)
    sizes = np.maximum(share / share.sum() * ROWS, 20).astype(int)
    sizes[0] += ROWS - sizes.sum()
    sizes = sizes if by is None else rng.permutation(sizes)
    return np.split(order, np.cumsum(sizes)[:-1])


def sealed(data: Dataset) -> list[tuple[str, float, str, str, str, str]]:
    """Compare sums in the open with sealed ones, and one trusted place with both."""
    rows = []
    networks = [(nodes, unequal) for nodes in HONEST for unequal in (False, True)]
    for nodes, unequal in [(1, False), *networks]:
        parts = split(data, nodes, unequal)
        for epsilon in TOTALS:
            name = f"{nodes} {'Zipf' if unequal else 'equal'}"
            chosen = planned(data, parts, epsilon, "sum")
            shown = 100 * errors(data, parts, chosen, SEEDS, REPLICAS)
            if nodes == 1:
                rows.append(("one trusted place", epsilon, f"{np.median(shown):.2f}", "", "", ""))
            else:
                both = [
                    100 * errors(data, parts, planned(data, parts, epsilon, made), SEEDS, REPLICAS)
                    for made in (Sealed(honest=HONEST[nodes], spares=spares) for spares in (1, 0))
                ]
                gap, error = difference(shown, both[0])
                medians = (f"{np.median(each):.2f}" for each in (shown, *both))
                rows.append((name, epsilon, *medians, f"{gap:+.2f} ({error:.2f})"))
            print(rows[-1], flush=True)
    return rows


def planned(
    data: Dataset, parts: Sequence[np.ndarray], epsilon: float, mechanism: str | Mechanism
) -> Plan:
    """The planner's choice for these nodes."""
    nodes = len(parts)
    topology = Topology.family("ring" if nodes < 200 else "random_regular", nodes)
    return plan(
        [len(part) for part in parts],
        topology,
        data.schema.dimension,
        epsilon=epsilon,
        delta=DELTA,
        mechanism=mechanism,
        features=data.schema.feature_count,
    )


def difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean of one less that of the other, and its standard error."""
    error = sqrt((one.var(ddof=1) + other.var(ddof=1)) / len(one))
    return float(one.mean() - other.mean()), error


def weights(data: Dataset) -> list[tuple[str, float, str, str]]:
    """Compare w = B mu^2 with w = 1 for the nodes that raise N."""
    rows = []
    for by in SORTED:
        parts = split(data, 20, unequal=True, by=by)
        for epsilon in TOTALS:
            chosen = planned(data, parts, epsilon, "sum")
            both = [
                100 * errors(data, parts, each, SEEDS, REPLICAS)
                for each in (weighed(chosen, rows_alike), chosen)
            ]
            gap, error = difference(*both)
            name = "alike" if by is None else f"by {by}"
            rows.append((name, epsilon, f"{np.median(both[1]):.2f}", f"{gap:+.2f} ({error:.2f})"))
            print(rows[-1], flush=True)
    return rows


def rows_alike(B: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """1 for the largest nodes, as many as raise N most, and 0 for the rest."""
    order = np.argsort(-B * mu**2, kind="stable")
    brought = np.cumsum(B[order]) / np.sqrt(np.cumsum(mu[order] ** -2.0))
    w = np.zeros(len(B))
    w[order[: int(np.argmax(brought)) + 1]] = 1.0
    return w


def weighed(plan: Plan, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Plan:
    """The plan with other weights, and the pull that N then asks for."""
    B, steps = np.array(plan.bound.counts, dtype=float), plan.steps
    assert steps is not None
    assert steps.pull is not None
    w = rule(B, plan.mus)
    before, after = signal(B, plan.mus, np.array(steps.node_weights)), signal(B, plan.mus, w)
    pull = steps.pull * before / after
    return replace(plan, steps=replace(steps, node_weights=tuple(w.tolist()), pull=pull))


if __name__ == "__main__":
    main(run)
