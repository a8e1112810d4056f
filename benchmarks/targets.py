"""A number to predict: R2 of sums and ADMM on census rows, beside all rows in one place without
privacy.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from sklearn.metrics import r2_score

from benchmarks.measure import Figure, Report, main, table
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.labels import Target
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
    return Report("targets", figures, text, {"pooled": pooled, "found": found})


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
