"""Certificates and residuals against their formulas, term by term."""

import numpy as np
import pytest

from dynadp.consensus.admm import State
from dynadp.consensus.residuals import Residuals, certificate_from, certify
from dynadp.problem.losses import Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(n, 4)) / 4 for n in (30, 50, 10)]
    return StackedProblem(blocks, Logistic(), SmoothElasticNet(), 2.0, 0.1)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_certificate_is_its_formula(problem, spread):
    rng = np.random.default_rng(1)
    V = rng.normal(size=(1, 2, 4)) + spread * rng.normal(size=(3, 2, 4))
    found = certify(problem, V)
    mean = V.mean(axis=0)
    everywhere = np.broadcast_to(mean, V.shape)
    g = np.linalg.norm(problem.local_gradient(everywhere).sum(axis=0), axis=-1)
    F = problem.local_value(everywhere).sum(axis=0)
    u = np.linalg.norm(V - mean, axis=-1).max(axis=0)
    strong, lipschitz = 3 * 0.1, 3 * (2.0 * 0.25 + 0.1 * (1 + 1 / 0.1))
    first = g**2 / (2 * strong)
    least = F - first
    expected = np.where(
        least > 0, (first + g * u + lipschitz * u**2 / 2) / np.where(least > 0, least, 1), np.inf
    )
    np.testing.assert_allclose(found.gap, expected)
    np.testing.assert_allclose(found.distance, (u + g / strong) / np.linalg.norm(mean, axis=-1))
    np.testing.assert_allclose(found.value, F)


def test_a_mean_of_zero_has_no_relative_distance(problem):
    V = np.zeros((3, 1, 4))
    V[0], V[1] = 1.0, -1.0
    assert np.isinf(certify(problem, V).distance).all()
    assert not certificate_from(problem, V, np.ones(1), np.ones(1)).within(np.inf, 1e-3)


def test_a_glance_is_a_certificate_for_the_numbers_that_it_is_given(problem):
    V = np.random.default_rng(1).normal(size=(3, 2, 4))
    true, mean = certify(problem, V), np.broadcast_to(V.mean(axis=0), V.shape)
    steepness = np.linalg.norm(problem.local_gradient(mean).sum(axis=0), axis=-1)
    seen = certificate_from(problem, V, steepness, true.value)
    np.testing.assert_allclose(seen.gap, true.gap)
    np.testing.assert_allclose(seen.distance, true.distance)
    assert (certificate_from(problem, V, 2 * steepness, true.value).gap > true.gap).all()
    assert true.within(true.gap.max(), true.distance.max())
    assert not true.within(true.gap.min(), true.distance.max())
    assert not true.within(true.gap.max(), true.distance.min())


def test_residuals_are_sums_over_edges():
    rng = np.random.default_rng(2)
    edges = [(0, 1), (1, 2)]  # a path
    V, W0, W1, lam = rng.normal(size=(4, 3, 2, 4))
    degrees, eta = np.array([1.0, 2.0, 1.0]), np.array([0.5, 2.0])
    neighbours = np.stack([V[1], V[0] + V[2], V[1]])
    r = Residuals.of(V, neighbours, State(W0, lam), State(W1, lam), degrees, eta)
    for k in range(2):
        ends = [(p, j) for a, b in edges for p, j in ((a, b), (b, a))]
        assert r.primal[k] ** 2 == pytest.approx(
            sum(np.sum((V[p, k] - (V[p, k] + V[j, k]) / 2) ** 2) for p, j in ends)
        )
        assert r.primal_size[k] ** 2 == pytest.approx(sum(np.sum(V[p, k] ** 2) for p, _ in ends))
        assert r.dual[k] == pytest.approx(np.linalg.norm(2 * eta[k] * (W1 - W0)[:, k]))
        assert r.dual_size[k] == pytest.approx(np.linalg.norm(2 * lam[:, k]))


@pytest.mark.parametrize(
    ("primal", "dual", "below"),
    [([1e-4, 1e-4], [1e-4, 1e-4], True), ([1e-4, 1], [1e-4, 1e-4], False), ([0, 0], [1, 0], False)],
)
def test_both_residuals_of_every_replica_must_be_small(primal, dual, below):
    r = Residuals(np.array(primal), np.ones(2), np.array(dual), np.ones(2))
    assert r.below(1e-3) is below


def test_balance_answers_to_relative_residuals():
    r = Residuals(np.array([1.0, 0.1, 1.0]), np.ones(3), np.array([0.01, 2.0, 0.5]), np.ones(3))
    assert r.imbalance().tolist() == [2.0, 0.5, 1.0]
    scaled = Residuals(np.array([1.0]), np.array([100.0]), np.array([0.01]), np.ones(1))
    assert scaled.imbalance().tolist() == [1.0]
