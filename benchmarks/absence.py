"""Twenty silos of which three leave for good and two leave and return: what those who remain find.

Without noise, how far ADMM ends from the optimum of the rows of those who were there in the end.
With noise, the test error beside that of a run that never had the three. ``python -m
benchmarks.absence`` (some minutes); rows are census rows that are made here.
"""

import numpy as np

from benchmarks.measure import Report, main, table
from dynadp._intervals import quantile_band
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.privacy import worst_node

NODES, GONE, BACK, DRAWS, EPSILON, DELTA = 20, 3, 2, 20, 1.0, 1e-5
WAYS: dict[str, tuple[Mechanism, Mechanism]] = {  # with twenty nodes, and without the three
    "ADMM, primal": (Primal(), Primal()),
    "sum": (Sum(), Sum()),
    "sealed, 10 honest, 5 colluding": (
        Sealed(honest=10, colluding=5, away=5, spares=8),
        Sealed(honest=10, colluding=5, away=2, spares=8),
    ),
}


Away = dict[str, list[tuple[int, int | None]]]


def schedule(rng: np.random.Generator, nodes: tuple[str, ...], rounds: int) -> Away:
    """Draw who leaves, and when."""
    chosen = rng.choice(len(nodes), GONE + BACK, replace=False)
    away: Away = {}
    for k, p in enumerate(chosen):
        first = int(rng.integers(2, rounds // 2))
        last = None if k < GONE else first + int(rng.integers(0, max(rounds // 4, 1)))
        away[nodes[p]] = [(first, last)]
    return away


def stays(away: Away, node: str) -> bool:
    """Whether a node is there in the end."""
    return all(last is not None for _, last in away.get(node, ()))


def run() -> Report:
    """All three questions."""
    data = census(20_000, seed=5, nodes=NODES, test_rows=10_000)
    far = [exact(data, seed) for seed in range(5)]
    print("distance to the optimum of those who remain", far, flush=True)
    rows, details = [], {}
    for name, (mechanism, others) in WAYS.items():
        found = [noisy(data, mechanism, others, seed) for seed in range(DRAWS)]
        here, never = (np.array(part) for part in zip(*found, strict=True))
        count = len(data.test["income"])
        bands = [quantile_band(errors, count) for errors in (here, never)]
        shown = [f"{b['median']:.2%} ({b['low']:.1%} to {b['high']:.1%})" for b in bands]
        paired = float(np.mean(here - never)), float(np.std(here - never) / np.sqrt(DRAWS))
        rows.append((name, *shown, f"{100 * paired[0]:+.2f} ({100 * paired[1]:.2f})"))
        details[name] = {"with": here.tolist(), "never": never.tolist()}
        print(*rows[-1], flush=True)
    heads = ("", "three leave, two return", "never had the three", "difference, points")
    text = (
        f"{NODES} nodes, {GONE} leave for good at random rounds, {BACK} leave and return; census "
        f"rows. Without noise ADMM ends within {max(far):.1e} of the optimum of those who remain "
        f"(5 schedules). With epsilon = {EPSILON:g}, delta = {DELTA:g}, test error of {DRAWS} "
        "draws, each with a schedule of its own:\n\n" + table(heads, rows)
    )
    return Report("absence", [], text, details)


def exact(data: Dataset, seed: int) -> float:
    """How far all who are there in the end are from the optimum of their rows."""
    topology = Topology.family("small_world", NODES)
    tables = data.tables(topology.nodes)
    schema = data.schema.model_copy(update={"centre": (0.0,) * data.schema.feature_count})
    shards = [load_shard(schema, tables[p], p) for p in topology.nodes]
    away = schedule(np.random.default_rng(seed), topology.nodes, 40)
    made = Plan.of(rho=1e-2, eta=2e-3, rounds=10_000, C=1.0, weights="equal")
    V = simulate(shards, topology, made, away=away).V[:, 0]
    rest = [p for p, node in enumerate(topology.nodes) if stays(away, node)]
    pooled = simulate(
        [shards[p] for p in rest],
        Topology.family("complete", len(rest)).named([topology.nodes[p] for p in rest]),
        made,
    ).V[:, 0]
    return float(np.abs(V[rest] - pooled.mean(axis=0)).max())


def noisy(data: Dataset, mechanism: Mechanism, others: Mechanism, seed: int) -> tuple[float, float]:
    """Test error with absences, and of those who remain alone."""
    topology = Topology.family("complete", NODES)
    away: Away = {}
    found = list[float]()
    for who in (mechanism, others):
        nodes = [p for p in topology.nodes if stays(away, p)]
        network = Topology.family("complete", len(nodes)).named(nodes)
        tables = {p: t for p, t in data.tables(topology.nodes).items() if p in nodes}
        schema = data.schema.model_copy(update={"centre": (0.0,) * data.schema.feature_count})
        shards = [load_shard(schema, tables[p], p) for p in nodes]
        made = plan(
            [s.rows for s in shards],
            network,
            schema.dimension,
            epsilon=EPSILON,
            delta=DELTA,
            mechanism=who,
            centring=False,
        )
        if not away:
            away = schedule(np.random.default_rng(seed), network.nodes, made.rounds)
            done = simulate(shards, network, made, draws=SeededEntropy(seed), away=away)
            present = [k for k, p in enumerate(nodes) if stays(away, p)]
            assert worst_node(done.events(), DELTA).epsilon <= EPSILON * (1 + 1e-9)
        else:
            done, present = simulate(shards, network, made, draws=SeededEntropy(seed)), [0]
        f = done.models("tail")[present, 0].mean(axis=0)
        scores = schema.rows(data.test) @ f
        found.append(float(np.mean((scores > 0) != (schema.labels(data.test) > 0))))
    return found[0], found[1]


if __name__ == "__main__":
    main(run)
