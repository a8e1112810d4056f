"""A number to predict: R2 of sums and ADMM on census rows, beside all rows in one place without
privacy; and of features that are given as numbers, by how they are bounded and centred.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from benchmarks.measure import Figure, Report, main, table
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.labels import Target
from dynadp.data.numbers import Numeric
from dynadp.data.schema import Schema
from dynadp.estimators import NetworkRegressor
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.research.experiments import train_seeded

NODES, ROWS, DELTA, SEEDS, DRAWS = 5, 20_000, 1e-5, (11,), 3
TOTALS = (0.3, 1.0, 3.0, 8.0)
MECHANISMS: dict[str, Mechanism] = {
    "sum": Sum(),
    "sealed, 3 of 5 honest": Sealed(honest=3),
    "primal": Primal(),
    "dual": Dual(),
}
NAMES, LOW, HIGH = ("age", "pay", "share"), np.array([0, 0, 0.0]), np.array([110, 2e5, 1])
ENDS = 0.0, 80.0
WAYS = (
    "data_norm, nothing centred",
    "data_norm",
    "bounds, nothing centred",
    "bounds",
    "schema, norm = 1.6",
)


def run() -> Report:
    """Median R2 over seeds of the rows and draws of the noise."""
    pooled = float(np.median([_pooled(_data(seed)) for seed in SEEDS]))
    found = {
        name: [float(np.median([_trial(how, eps, seed) for seed in SEEDS])) for eps in TOTALS]
        for name, how in MECHANISMS.items()
    }
    rows = [(name, *(f"{one:.3f}" for one in each)) for name, each in found.items()]
    text = f"Median R2; all rows in one place without privacy: {pooled:.3f}.\n\n"
    text += table(("", *(f"epsilon {eps:g}" for eps in TOTALS)), rows)
    figures = [Figure("R2 of pooled rows without privacy", pooled, "")]
    figures += [
        Figure(f"R2 of {name} at epsilon {eps:g}", one, "")
        for name, each in found.items()
        for eps, one in zip(TOTALS, each, strict=True)
    ]
    plain, ways = _of_numbers()
    text += (
        f"\n\nThree numbers, median of {DRAWS} draws; least squares without privacy: {plain:.3f}."
    )
    rows = [(name, *(f"{one:.3f}" for one in each)) for name, each in ways.items()]
    text += "\n\n" + table(("", *(f"epsilon {eps:g}" for eps in TOTALS)), rows)
    return Report("targets", figures, text, {"pooled": pooled, "found": found, "numbers": ways})


def _three(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three numbers of unlike scale, and one that lies far from the middle of its bounds."""
    rng = np.random.default_rng(seed)
    age = rng.normal(45, 12, ROWS).clip(18, 90)
    pay, share = rng.gamma(4, 8000, ROWS).clip(0, 2e5), rng.uniform(0, 1, ROWS)
    y = 10 + 0.3 * (age - 45) + pay / 5000 + 8 * share + rng.normal(0, 3, ROWS)
    return np.column_stack([age, pay, share]), y


def _of_numbers() -> tuple[float, dict[str, list[float]]]:
    """R2 of least squares, and of the regressor by what it is given."""
    (X, y), (test, truth) = _three(0), _three(1)
    plain = r2_score(truth, LinearRegression().fit(X, y).predict(test))
    columns = [Numeric(name=n, low=a, high=b) for n, a, b in zip(NAMES, LOW, HIGH, strict=True)]
    label = Target(name="y", low=ENDS[0], high=ENDS[1])
    schema = Schema(columns=columns, label=label, norm=1.6)
    unit, tables = ([part / HIGH for part in (X, test)], [_named(part) for part in (X, test)])
    root = len(NAMES) ** 0.5
    given: tuple[tuple[Any, Any], ...] = (
        ({"data_norm": root, "centre": None, "target": ENDS}, unit),
        ({"data_norm": root, "target": ENDS}, unit),
        ({"bounds": (LOW, HIGH), "centre": None, "target": ENDS}, (X, test)),
        ({"bounds": (LOW, HIGH), "target": ENDS}, (X, test)),
        ({"schema": schema}, tables),
    )
    found: dict[str, list[float]] = {}
    for name, (how, (part, other)) in zip(WAYS, given, strict=True):
        for eps in TOTALS:
            each = [
                NetworkRegressor(epsilon=eps, delta=DELTA, random_state=seed, **how)
                .fit(part, y)
                .score(other, truth)
                for seed in range(DRAWS)
            ]
            found.setdefault(name, []).append(float(np.median(each)))
    return float(plain), found


def _named(X: np.ndarray) -> dict[str, np.ndarray]:
    return {name: X[:, j] for j, name in enumerate(NAMES)}


@cache
def _data(seed: int) -> Dataset:
    return census(ROWS, seed=seed, nodes=NODES, test_rows=10_000, target=True)


def _pooled(data: Dataset) -> float:
    """Least squares on rows centred at their mean."""
    features = data.schema.only_features().rows(data.train).toarray()
    schema = data.schema.model_copy(update={"centre": tuple(features.mean(axis=0).tolist())})
    X, t = np.asarray(schema.rows(data.train)), schema.labels(data.train)
    f = np.linalg.solve(X.T @ X + 1e-6 * len(X) * np.eye(X.shape[1]), X.T @ t)
    return _r2(data, np.asarray(schema.rows(data.test)) @ f)


def _trial(mechanism: Mechanism, epsilon: float, seed: int) -> float:
    data, ring = _data(seed), Topology.family("ring", NODES)
    tables = data.tables(ring.nodes)
    made = plan(
        [len(each["age"]) for each in tables.values()],
        ring,
        data.schema.dimension,
        epsilon=epsilon,
        delta=DELTA,
        mechanism=mechanism,
        features=data.schema.feature_count,
        classes=0,
    )
    schema, models = train_seeded(data.schema, tables, ring, replace(made), DRAWS, seed)
    answers = np.asarray(schema.rows(data.test) @ models.T).T
    return float(np.median([_r2(data, each) for each in answers]))


def _r2(data: Dataset, t: np.ndarray) -> float:
    label = data.schema.label
    assert isinstance(label, Target)
    return float(r2_score(data.test[label.name], label.within(t)))


if __name__ == "__main__":
    main(run)
