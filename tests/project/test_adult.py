"""The census extract of the paper's experiment (maths.md 11), where its files are at hand."""

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.uci import adult_schema
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.runs.training import train
from support.reference import centralised_optimum


@pytest.fixture(scope="module")
def ring(adult_data):
    rows = len(adult_data.train["age"])
    return adult_data.shards(partition(rows, 5)), Topology.family("ring", 5)


@pytest.fixture(scope="module")
def error_of(adult_data):
    X, y = adult_data.schema.rows(adult_data.test), adult_data.schema.labels(adult_data.test)
    return lambda f: float(np.mean(np.where(X @ f > 0, 1, -1) != y))


def test_a_ring_of_five_learns_what_one_place_would(ring, error_of):
    shards, topology = ring
    optimum = error_of(centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, 1e-4))
    run = simulate(
        shards, topology, Plan.of(C=1.0, rho=1e-4, rounds=400), acceleration=Acceleration(gap=1e-6)
    )
    assert run.stopped
    for f in run.V[:, 0]:
        assert abs(error_of(f) - optimum) <= 0.001  # a tenth of a point
    plain = simulate(shards, topology, Plan.of(C=1.0, rho=1e-4, rounds=100))
    for f in plain.V[:, 0]:
        assert abs(error_of(f) - optimum) <= 0.001


@pytest.mark.slow
def test_the_papers_constants(ring, error_of):
    """(rho, C) = (1e-10, 1750), eta = 1: 16.2% after 30 rounds; a better eta comes near the limit
    of 15.2%.
    """
    shards, topology = ring
    thirty = simulate(shards, topology, Plan.of(C=1750.0, rho=1e-10, eta=1.0, rounds=30))
    assert np.mean([error_of(f) for f in thirty.V[:, 0]]) == pytest.approx(0.162, abs=0.001)
    better = simulate(shards, topology, Plan.of(C=1750.0, rho=1e-10, rounds=100))
    assert np.mean([error_of(f) for f in better.V[:, 0]]) == pytest.approx(0.152, abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "nodes", "epsilon", "most"),
    [
        ("primal", 5, 1.0, 0.155),
        ("primal", 5, 0.1, 0.172),
        ("primal", 50, 1.0, 0.165),
        ("sum", 5, 1.0, 0.152),
        ("sum", 5, 0.1, 0.170),
        ("sum", 50, 1.0, 0.160),
    ],
)
def test_error_at_a_total_that_the_planner_spends(adult_data, mechanism, nodes, epsilon, most):
    """Only the mechanism and (epsilon, delta) are given; benchmarks/budget.py has more draws."""
    ring, schema, errors = Topology.family("ring", nodes), adult_schema("rich"), []
    for seed in range(7):
        parts = partition(len(adult_data.train["age"]), nodes, seed=seed)
        tables = {
            p: {k: v[part] for k, v in adult_data.train.items()}
            for p, part in zip(ring.nodes, parts, strict=True)
        }
        trained = train(
            schema,
            tables,
            ring,
            epsilon=epsilon,
            delta=1e-5,
            mechanism=mechanism,
            draws=SeededEntropy(seed),
        )
        assert trained.total.epsilon <= epsilon
        errors.append(
            np.mean(trained.model().predict(adult_data.test) != adult_data.test["income"])
        )
    assert np.median(errors) <= most
