"""The pooled optimum by sums, beside an independent solver."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from dynadp import Plan
from dynadp.consensus import Acceleration, Newton, Topology
from dynadp.data import Shard
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.synthetic import census
from dynadp.engines import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Primal, SeededEntropy
from dynadp.problem import (
    HuberHinge,
    Logistic,
    PseudoHuber,
    SmoothedHinge,
    SmoothElasticNet,
    SquaredL2,
    StackedProblem,
    SummedProblem,
)
from support.reference import centralised_optimum

RING, RHO = Topology.family("ring", 5), 1e-2


@pytest.fixture(scope="module")
def unequal():
    data = census(1500, seed=2, nodes=5, heterogeneity=0.7)
    return data.shards(partition(1500, 5, "sized", sizes=np.arange(1, 6)))


def objective(shards, f, rho=RHO):
    losses = sum(np.mean(np.logaddexp(0, -(s.signed @ f))) for s in shards)
    return losses + len(shards) * rho / 2 * f @ f


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("weights", ["rows", "equal"])
@pytest.mark.parametrize("regularizer", [SquaredL2(), SmoothElasticNet()], ids=repr)
@pytest.mark.parametrize("loss", [Logistic(), Logistic(3.0), HuberHinge(), SmoothedHinge()])
def test_it_reaches_the_centralised_optimum(unequal, loss, regularizer, weights, storage):
    told = {"loss": loss, "regularizer": regularizer, "weights": weights, "rho": RHO}
    run = simulate(
        unequal, RING, Plan.of(**told), storage=storage, acceleration=Newton(distance=1e-6)
    )
    best = centralised_optimum(unequal, loss, regularizer, 1.0, RHO, weights)
    assert run.stopped
    assert (run.V[0] == run.V).all()
    apart = np.linalg.norm(run.V[0, 0] - best) / np.linalg.norm(best)
    assert apart <= run.certificate.distance[0] * 1.01 + 1e-8
    assert run.certificate.distance[0] <= 1e-6


@pytest.mark.parametrize("target", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("rho", [1e-2, 1e-5])
def test_the_certified_gap_is_above_the_true_one(census5, target, rho):
    shards = census5.shards()
    run = simulate(shards, RING, Plan.of(rho=rho), acceleration=Newton(gap=target))
    best = objective(shards, centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, rho), rho)
    gap = objective(shards, run.V[0, 0], rho) / best - 1
    assert run.stopped
    assert -1e-9 <= gap <= run.certificate.gap[0] + 1e-9
    assert run.certificate.gap[0] <= target


def test_it_needs_a_fraction_of_the_rounds_of_algorithm_1(census5):
    shards = census5.shards()
    ends = [
        simulate(shards, RING, Plan.of(rho=1e-3, rounds=400), acceleration=how)
        for how in (Newton(gap=1e-8), Acceleration(gap=1e-8))
    ]
    assert all(end.stopped for end in ends)
    assert 3 * len(ends[0].rounds) < len(ends[1].rounds)
    np.testing.assert_allclose(ends[0].V, ends[1].V, atol=1e-3)


def test_messages_are_gradients_at_the_common_point(census5):
    shards, heard = census5.shards(), []
    run = simulate(
        shards, RING, Plan.of(rho=RHO), acceleration=Newton(gap=1e-6), on_round=heard.append
    )
    assert [entry.number for entry in heard] == [entry.number for entry in run.rounds]
    np.testing.assert_array_equal(heard[-1].points, run.V)
    for entry in heard:
        for shard, z, G in zip(shards, entry.points[:, 0], entry.messages[:, 0], strict=True):
            slopes = -1 / (1 + np.exp(shard.signed @ z))
            np.testing.assert_allclose(G, shard.signed.T @ slopes / shard.rows, atol=1e-12)
    for output in ("last", "tail", "neighbours", "network"):
        np.testing.assert_array_equal(run.models(output), run.V)


def test_a_run_that_ends_by_rounds_is_certified_too(census5):
    run = simulate(
        census5.shards(), RING, Plan.of(rho=1e-6, rounds=3), acceleration=Newton(gap=1e-12)
    )
    assert not run.stopped
    assert len(run.rounds) <= 3
    assert run.certificate.gap[0] > 1e-12


def test_hard_problems_end_at_their_optimum():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    shards = [Shard.of(X[i::3], np.where(X[i::3, 0] > 0, 1, -1)) for i in range(3)]
    plan = Plan.of(loss=HuberHinge(width=1e-3, margin=1.0), C=50.0, rho=0.1, rounds=500)
    path = Topology.family("path", 3)
    run = simulate(shards, path, plan, acceleration=Newton(gap=1e-6))
    best = centralised_optimum(shards, plan.settings.loss, SquaredL2(), 50.0, 0.1)
    assert run.stopped
    assert np.linalg.norm(run.V[0, 0] - best) < 1e-3 * np.linalg.norm(best)


def test_past_512_columns_diagonals_are_enough():
    rng = np.random.default_rng(1)
    X = csr_array(np.where(rng.random((400, 600)) < 0.02, 0.2, 0.0))
    y = np.where(np.asarray(X @ rng.normal(size=600)) > 0, 1, -1)
    shards = [Shard.of(X[i::2], y[i::2]) for i in range(2)]
    pair = Topology.family("path", 2)
    run = simulate(shards, pair, Plan.of(rho=1e-3), acceleration=Newton(distance=1e-5))
    best = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, 1e-3)
    assert run.stopped
    assert np.linalg.norm(run.V[0, 0] - best) < 1e-5 * np.linalg.norm(best)


def test_residuals_and_weights_of_labels():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 4)) / 5
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    t = np.clip(X @ np.array([0.5, -1, 0.3, 0.1]) + 0.1 * rng.normal(size=200), -1, 1)
    for shards, told in (
        ([Shard.of(X[i::2], t[i::2], classes=None) for i in range(2)], {"loss": PseudoHuber()}),
        (
            [Shard.of(X[i::2], np.where(t[i::2] > 0, 1, -1)) for i in range(2)],
            {"class_weights": (1.0, 3.0)},
        ),
    ):
        plan, pair = Plan.of(rho=1e-2, rounds=2000, **told), Topology.family("path", 2)
        one, other = (
            simulate(shards, pair, plan, acceleration=how(distance=1e-6))
            for how in (Newton, Acceleration)
        )
        assert one.stopped
        np.testing.assert_allclose(one.V, other.V, atol=1e-5)


def test_the_summed_problem_is_the_sum_of_its_parts(unequal):
    parts = StackedProblem(
        [s.signed for s in unequal], Logistic(), SmoothElasticNet(), np.arange(1.0, 6.0), 0.1
    )
    summed, d = SummedProblem(parts), unequal[0].dimension
    F, D = np.random.default_rng(3).normal(size=(2, 1, 1, d))
    wide = np.broadcast_to(F, (5, 1, d))
    Z, dZ = summed.margins(F), summed.products(D)
    q, b = np.full((1, 1), 0.3), 0.1 * D
    np.testing.assert_allclose(summed.local_gradient(F), parts.local_gradient(wide).sum(0)[None])
    np.testing.assert_allclose(summed.local_value(F), parts.local_value(wide).sum(0)[None])
    H = summed.hessians(F, Z)
    np.testing.assert_allclose(H, parts.hessians(wide, Z).sum(1)[:, None])
    np.testing.assert_allclose(summed.hessian_diagonals(F, Z)[0], np.diagonal(H[0, 0]), rtol=1e-12)
    t = np.full((1, 1), 0.7)
    slope = summed.gradient(F + t[..., None] * D, q, b)[0, 0] @ D[0, 0]
    np.testing.assert_allclose(summed.along(F, D, Z, dZ, q, b)(t), slope)


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({}, "neither gap nor distance"),
        ({"gap": 0.0}, "gap"),
        ({"distance": 2.0}, "distance"),
    ],
)
def test_targets_are_checked(told, match):
    with pytest.raises(DeclarationError, match=match):
        Newton(**told)


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"replicas": 2}, "leave out replicas"),
        ({"draws": SeededEntropy(1)}, "leave out"),
        ({"linear": lambda n: 0.0}, "leave out"),
        ({"away": {"1": [(1, 2)]}}, "leave out"),
        ({"gamma": 1e-3}, "leave out"),
        ({"device": "cuda"}, "leave out acceleration"),
        ({"start": np.arange(5.0)[:, None, None]}, "begins at one point"),
        ({"plan": Plan.of(mechanism=Primal(), schedule=1.0)}, "for Algorithm 1 only"),
    ],
)
def test_what_does_not_go_together_is_refused(census5, told, match):
    given = {"plan": Plan(), **told}
    with pytest.raises(DeclarationError, match=match):
        simulate(census5.shards(), RING, acceleration=Newton(gap=1e-3), **given)


@pytest.mark.parametrize("loss", [Logistic(), PseudoHuber()], ids=repr)
def test_rounding_of_the_sum_is_counted(loss):
    rows, targets = np.full((4, 2), 0.5), None if not loss.residual else [np.zeros(2)] * 2
    parts = StackedProblem([rows[:2], rows[2:]], loss, SquaredL2(), 1.0, 0.1, targets=targets)
    summed = SummedProblem(parts)
    for whole, each in zip(summed.roundings, parts.roundings, strict=True):
        assert whole[0, 0] >= each.sum()
    assert summed.roundings.sums[0, 0] > parts.roundings.sums.sum()
