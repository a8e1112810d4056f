import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp.errors import NotCertified
from dynadp.problem import descent, objective
from dynadp.problem.certificate import certificate, rounding_error
from dynadp.problem.factor import Factor
from dynadp.problem.gamma import default_gamma, longest, reachable_gamma
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.problem.residual_losses import Huber, LogisticCosh, PseudoHuber
from dynadp.problem.rounding import rounding
from dynadp.problem.solver import solve
from support.reference import losses, regularizers


def rows(count, d, seed=0, labels=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, d))
    X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
    y = (
        np.where(X @ rng.normal(size=d) + rng.normal(size=count) > 0, 1.0, -1.0)
        if labels is None
        else labels
    )
    return X * y[:, None]


def stacked(blocks, loss, R, C, rho, seed=0, **how):
    """The problem; with targets in [-1, 1], the ends among them, for a loss of residuals."""
    rng = np.random.default_rng(seed)
    targets = [rng.uniform(-1, 1, len(b)).round(1) for b in blocks] if loss.residual else None
    return StackedProblem(blocks, loss, R, C, rho, targets=targets, **how)


def exact_gradient(problem, blocks, F, q, b):
    """The gradient in extended precision, from formulas written again, to compare with."""
    long = np.longdouble
    _, slope, _ = losses(
        **{
            k: long(v) if k != "name" else v
            for k, v in problem.loss.describe().items()
            if k != "c1"
        }
    )
    _, ridge, _ = regularizers(
        **{k: long(v) if k != "name" else v for k, v in problem.regularizer.describe().items()}
    )
    out, ends = np.empty(F.shape, dtype=long), problem.rows.offsets
    for p, A in enumerate(blocks):
        t = 0 if problem.targets is None else problem.targets[ends[p] : ends[p + 1], 0].astype(long)
        A = (A.toarray() if hasattr(A, "toarray") else A).astype(long)
        for k in range(F.shape[1]):
            f = F[p, k].astype(long)
            weight = long(problem.C[p]) / long(len(A))
            out[p, k] = (
                weight * (A.T @ slope(A @ f - t))
                + long(problem.rho) * ridge(f)
                + long(q[p, 0]) * f
                + b[p, k].astype(long)
            )
    return out


HARD = {  # name: (blocks, C, rho, q)
    "plain": ([rows(80, 6, s) for s in range(2)], 1.0, 1e-2, 0.1),
    "paper, no penalty": ([rows(300, 8)], 1750.0, 1e-10, 0.0),
    "paper, small penalty": ([rows(300, 8, s) for s in range(2)], 1750.0, 1e-10, 1e-6),
    "separable": ([rows(50, 4, 0, np.sign(rows(50, 4)[:, 0])) * 1.0], 100.0, 1e-10, 0.0),
    "one row a node": ([rows(1, 5, s) for s in range(3)], 1.0, 1e-4, 0.01),
    "duplicated columns": (
        [np.repeat(rows(60, 4), 3, axis=1) / 2 for _ in range(2)],
        10.0,
        1e-9,
        1e-8,
    ),
    "scales from 1 to 1e-8": ([rows(100, 9) * np.geomspace(1, 1e-8, 9)], 100.0, 1e-8, 0.0),
    "one label": ([np.abs(rows(40, 3))], 1.0, 1e-3, 0.1),
    "all rows zero": ([np.zeros((5, 3))], 1.0, 1e-3, 0.1),
    "more columns than rows": ([rows(10, 40)], 50.0, 1e-6, 1e-3),
}
MARGINS = [Logistic(), Logistic(3.0), HuberHinge(0.05), SmoothedHinge(0.05)]
LOSSES = [*MARGINS, PseudoHuber(), PseudoHuber(0.01), LogisticCosh(0.05), Huber(0.1)]


@pytest.mark.parametrize("case", HARD, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("R", [SquaredL2(), SmoothElasticNet()], ids=["quadratic", "not quadratic"])
def test_hard_problems_end_certified_and_the_certificate_is_true(case, loss, storage, R):
    blocks, C, rho, strength = HARD[case]
    problem = stacked(blocks, loss, R, C, rho, storage=storage)
    P, d = len(blocks), problem.dimension
    q = np.full((P, 1), strength)
    # Replica 0 has no linear term; replica 1 one that puts the minimiser at a chosen point.
    chosen = np.stack([np.zeros((P, d)), np.random.default_rng(5).normal(size=(P, d))], axis=1)
    b = -problem.gradient(chosen, q, np.zeros((P, 2, d))) * np.array([0.0, 1.0])[:, None]
    gamma = default_gamma(problem)
    solution = solve(problem, q, b, gamma, np.zeros((P, 2, d)))
    assert (solution.bound <= gamma).all()
    exact = exact_gradient(problem, blocks, solution.point, q, b)
    norms = np.sqrt((exact**2).sum(axis=-1))
    assert (norms <= solution.bound).all()


@pytest.mark.parametrize("case", HARD, ids=str)
@pytest.mark.parametrize("loss", [Logistic(), HuberHinge(0.05), PseudoHuber()], ids=repr)
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_margins_that_are_not_stored_change_no_certificate(case, loss, storage, monkeypatch):
    """As for many replicas, whose first gradients are made in float32."""
    monkeypatch.setattr(objective, "_FEW_MARGINS", 0)
    blocks, C, rho, strength = HARD[case]
    problem = stacked(blocks, loss, SmoothElasticNet(), C, rho, storage=storage, replicas=3)
    P, d = len(blocks), problem.dimension
    assert len(problem.at(np.zeros((P, 3, d)))[0]) == 0
    q = np.full((P, 1), strength)
    chosen = np.random.default_rng(5).normal(size=(P, 3, d))
    b = -problem.gradient(chosen, q, np.zeros((P, 3, d))) * np.array([0.0, 1.0, 0.5])[:, None]
    gamma = default_gamma(problem)
    solution = solve(problem, q, b, gamma, np.zeros((P, 3, d)))
    assert (solution.bound <= gamma).all()
    exact = exact_gradient(problem, blocks, solution.point, q, b)
    assert (np.sqrt((exact**2).sum(axis=-1)) <= solution.bound).all()


@pytest.mark.parametrize("wrong", [0.0, 1e-300, np.nan], ids=str)
def test_a_rough_gradient_certifies_nothing(wrong, monkeypatch):
    """However short it is: a point is let go by its gradient in float64 alone."""
    monkeypatch.setattr(objective, "_FEW_MARGINS", 0)
    blocks = [rows(80, 6, s) for s in range(2)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 1.0, 1e-2, replicas=3)
    q, b = np.full((2, 1), 0.1), np.random.default_rng(0).normal(size=(2, 3, 6))
    asked = []

    def rough(F):
        asked.append(F)
        return wrong - q[..., None] * F - b

    monkeypatch.setattr(problem, "rough", rough)
    gamma, start = default_gamma(problem), np.zeros((2, 3, 6))
    if np.isnan(wrong):
        with pytest.raises(NotCertified):
            solve(problem, q, b, gamma, start)
    else:
        solution = solve(problem, q, b, gamma, start)
        exact = exact_gradient(problem, blocks, solution.point, q, b)
        assert (np.sqrt((exact**2).sum(axis=-1)) <= solution.bound).all()
        assert (solution.bound <= gamma).all()
    assert asked


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("limit", [0, 10**9])
def test_a_solve_that_begins_where_one_ended_makes_no_pass_there(storage, limit, monkeypatch):
    """With the same result to the last bit; replicas end at different times."""
    monkeypatch.setattr(objective, "_FEW_MARGINS", limit)
    problem = StackedProblem(
        *([rows(70, 6, s) for s in range(2)], Logistic(), SquaredL2(), 100.0, 1e-3),
        storage=storage,
        replicas=9,
    )
    b = np.random.default_rng(3).normal(size=(2, 9, 6)) * np.geomspace(0.1, 1e4, 9)[:, None]
    q, gamma, passes, at = np.full((2, 1), 0.5), default_gamma(problem), [], problem.at
    monkeypatch.setattr(problem, "at", lambda F: passes.append(F) or at(F))
    first = solve(problem, q, b, gamma, np.zeros_like(b))
    for known in (None, first.known):
        passes.clear()
        kept = {"factor": first.factor, "known": known}
        passes.append(solve(problem, q, 1.5 * b, gamma, first.point, **kept))
        count, found = len(passes), passes.pop()
        if known is None:
            plain, most = found, count
    assert count == most - 1
    np.testing.assert_array_equal(found.point, plain.point)
    np.testing.assert_array_equal(found.bound, plain.bound)
    elsewhere = solve(problem, q, b, gamma, first.point + 1, known=first.known)
    away = solve(problem, q, b, gamma, first.point + 1)
    np.testing.assert_array_equal(elsewhere.point, away.point)


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.sampled_from(LOSSES),
    st.floats(0, 6),
)
def test_certificate_bounds_the_exact_gradient_anywhere(count, d, seed, loss, decade):
    """Not only at the end: rounding_error covers the difference between computed and exact gradient
    at any point.
    """
    rng = np.random.default_rng(seed)
    blocks = [rows(count, d, seed)]
    C, rho = float(rng.uniform(0.1, 2000)), float(10 ** rng.uniform(-10, 0))
    problem = stacked(blocks, loss, SmoothElasticNet(), C, rho, seed)
    F = rng.normal(size=(1, 1, d)) * 10**decade
    q, b = np.full((1, 1), float(10 ** rng.uniform(-6, 1))), rng.normal(size=(1, 1, d)) * 10**decade
    computed = problem.gradient(F, q, b)
    error = rounding_error(problem, F, q, np.linalg.norm(b, axis=-1))
    exact = exact_gradient(problem, blocks, F, q, b)
    assert np.sqrt(((computed - exact) ** 2).sum(axis=-1)) <= error + rounding(
        d + 2
    ) * np.linalg.norm(computed, axis=-1)
    assert np.sqrt((exact**2).sum(axis=-1)) <= certificate(problem, computed, error)


def test_a_certificate_without_rounding_would_be_false():
    """Points where the computed gradient is smaller than the exact one exist: E is needed."""
    blocks = [rows(200, 5)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 1.0, 1e-3)
    q, b = np.full((1, 1), 0.1), np.zeros((1, 1, 5))
    fooled = 0
    for seed in range(20):
        start = np.random.default_rng(seed).normal(size=(1, 1, 5))
        point = solve(problem, q, b, np.full((1, 1), 1e-12), start).point
        exact = exact_gradient(problem, blocks, point, q, b)
        fooled += np.linalg.norm(problem.gradient(point, q, b)) < np.sqrt((exact**2).sum())
    assert fooled > 0


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_distance_to_the_minimiser_is_at_most_gamma_over_Lam(storage):
    blocks = [rows(60, 5, s) for s in range(3)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 10.0, 1e-3, storage=storage)
    q, b = np.full((3, 1), 0.05), np.random.default_rng(0).normal(size=(3, 1, 5))
    tight = solve(problem, q, b, default_gamma(problem), np.zeros((3, 1, 5))).point
    for gamma in (1e-1, 1e-3, 1e-6):
        loose = solve(problem, q, b, np.full((3, 1), gamma), np.zeros((3, 1, 5))).point
        assert (np.linalg.norm(loose - tight, axis=-1) <= (gamma + 1e-8) / (1e-3 + 0.05)).all()


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("shared_q", [True, False])
def test_replicas_end_where_each_would_alone(storage, shared_q):
    blocks = [rows(70, 6, s) for s in range(2)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 100.0, 1e-3, storage=storage)
    K, gamma = 9, default_gamma(problem)
    rng = np.random.default_rng(3)
    b = rng.normal(size=(2, K, 6)) * np.geomspace(0.1, 1e4, K)[:, None]
    q = (
        np.full((2, 1), 0.5)
        if shared_q
        else np.repeat(np.geomspace(0.1, 10, 3), 3) * np.array([[1.0], [2.0]])
    )
    stacked = solve(problem, q, b, gamma, np.zeros((2, K, 6)))
    for k in range(K):
        own = q if shared_q else q[:, k : k + 1]
        alone = solve(problem, own, b[:, k : k + 1], gamma, np.zeros((2, 1, 6))).point[:, 0]
        apart = np.linalg.norm(stacked.point[:, k] - alone, axis=-1)
        assert (apart <= 2 * gamma[:, 0] / (1e-3 + own[:, 0])).all()


def test_a_kept_factor_saves_passes_and_changes_nothing():
    blocks = [rows(400, 10, s) for s in range(2)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 100.0, 1e-3)
    q, b = np.full((2, 1), 0.5), np.random.default_rng(0).normal(size=(2, 1, 10))
    gamma = default_gamma(problem)
    first = solve(problem, q, b, gamma, np.zeros((2, 1, 10)))
    again = solve(problem, q, b + 1e-3, gamma, first.point, factor=first.factor)
    fresh = solve(problem, q, b + 1e-3, gamma, np.zeros((2, 1, 10)))
    assert again.iterations < fresh.iterations
    assert (np.linalg.norm(again.point - fresh.point, axis=-1) <= 2 * gamma / 0.5).all()


def test_a_good_start_needs_no_factor():
    problem = StackedProblem([rows(20, 3)], Logistic(), SquaredL2(), 1.0, 1e-2)
    q, b, gamma = np.full((1, 1), 0.1), np.zeros((1, 1, 3)), np.full((1, 1), 1e-3)
    point = solve(problem, q, b, gamma / 2, np.zeros((1, 1, 3))).point
    again = solve(problem, q, b, gamma, point)
    assert again.factor is None
    np.testing.assert_array_equal(again.point, point)


@pytest.mark.parametrize("limit", ["descent.LARGEST_INVERSE", "factor._LARGEST_FACTOR"])
def test_many_columns_use_a_diagonal_factor(monkeypatch, limit):
    monkeypatch.setattr(f"dynadp.problem.{limit}", 5)
    blocks = [
        csr_array(rows(60, 30, s) * (np.random.default_rng(s).random((60, 30)) < 0.3))
        for s in range(2)
    ]
    for storage in ("dense", "csr"):
        problem = StackedProblem(blocks, Logistic(), SquaredL2(), 10.0, 1e-2, storage=storage)
        q, b = np.full((2, 1), 0.1), np.random.default_rng(0).normal(size=(2, 2, 30))
        solution = solve(problem, q, b, default_gamma(problem), np.zeros((2, 2, 30)))
        assert solution.factor.inverses.shape == (1, 2, 30)
        assert (solution.bound <= default_gamma(problem)).all()


def test_grouped_factors_invert_each_replicas_own_matrix():
    blocks = [rows(50, 4, s) for s in range(2)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 1.0, 0.1)
    F = np.zeros((2, 3, 4))
    Z = problem.rows.margins(F)
    q = np.array([[0.1, 0.7, 0.1], [0.2, 0.9, 0.2]])
    factor = Factor.at(problem, F, Z, q)
    assert factor.inverses.shape == (2, 2, 4, 4)
    H = problem.hessians(F, Z)[0]
    G = np.random.default_rng(0).normal(size=(2, 3, 4))
    for k in range(3):
        for p in range(2):
            expected = np.linalg.solve(H[p] + q[p, k] * np.eye(4), G[p, k])
            np.testing.assert_allclose(factor.apply(G)[p, k], expected, rtol=1e-9)
            np.testing.assert_allclose(
                factor.of(np.array([k])).apply(G[:, [k]])[p, 0], expected, rtol=1e-9
            )


SECRET = 0.123456789


@pytest.mark.parametrize(
    "why", ["gamma below rounding", "too few iterations", "overflow", "not a number"]
)
def test_never_returns_an_uncertified_point(why):
    blocks = [rows(30, 3) * SECRET, rows(30, 3)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 1000.0, 1e-8)
    q, b, gamma, most = np.full((2, 1), 1e-6), np.ones((2, 1, 3)), default_gamma(problem), 500
    if why == "gamma below rounding":
        gamma, most = np.full((2, 1), 1e-16), 50
    elif why == "too few iterations":
        most = 2
    elif why == "overflow":
        b = b * 1e308
    else:
        b = b * np.nan
    with (
        np.errstate(all="ignore"),
        pytest.raises(NotCertified, match="nothing is released") as caught,
    ):
        solve(problem, q, b, gamma, np.zeros((2, 1, 3)), max_iterations=most)
    shown = (
        str(caught.value)
        .replace(f"within {most} iterations", "")
        .replace("[0, 1]", "")
        .replace("[0]", "")
        .replace("[1]", "")
    )
    assert not any(digit in shown for digit in "0123456789")


def test_an_aim_above_gamma_is_none():
    problem = StackedProblem([rows(30, 3)], Logistic(), SquaredL2(), 1.0, 0.1)
    gamma = np.full((1, 1), 1e-8)
    found = solve(
        problem,
        np.ones((1, 1)),
        np.ones((1, 1, 3)),
        gamma,
        np.zeros((1, 1, 3)),
        aim=np.full((1, 1), 0.5),
    )
    assert found.bound[0, 0] <= gamma[0, 0]


def test_rounding_units_are_those_of_higham():
    assert rounding(1) == pytest.approx(2.0**-53)
    assert rounding(1000) > 1000 * 2.0**-53


def test_default_gamma_grows_with_rows_and_C():
    small, large = (
        default_gamma(StackedProblem([np.zeros((n, 2))], Logistic(), SquaredL2(), 1.0, 1.0))
        for n in (10, 10**6)
    )
    assert 1e-10 < small < large < 1e-8


def test_rounding_error_term_by_term():
    """Each term of E alone, from the formula: with the others' constants zero or tiny."""
    blocks = [np.zeros((1000, 3)), np.zeros((10, 3))]
    F = np.full((2, 1, 3), 2.0)
    size, k = np.linalg.norm(F[0, 0]), rounding
    zero = np.zeros((2, 1))
    problem = StackedProblem(blocks, Logistic(), SmoothElasticNet(), C=7.0, rho=1e-300)
    rows = [7 * (0.25 * k(5) * size + k(B + 8)) for B in (1000, 10)]
    np.testing.assert_allclose(rounding_error(problem, F, zero, zero)[:, 0], rows, rtol=1e-12)
    for q, b in ((3.0, 0.0), (0.0, 5.0)):
        error = rounding_error(problem, F, zero + q, zero + b)[:, 0]
        np.testing.assert_allclose(error - rows, k(10) * (q * size + b), rtol=1e-9)
    heavy = StackedProblem(blocks, Logistic(), SmoothElasticNet(), C=1e-300, rho=2.0)
    slope = np.linalg.norm(heavy.regularizer.gradient(F[0, 0]))
    np.testing.assert_allclose(
        rounding_error(heavy, F, zero, zero)[:, 0], k(10) * 2 * slope, rtol=1e-12
    )
    gradient = np.ones((2, 1, 3))
    np.testing.assert_allclose(
        certificate(heavy, gradient, zero + 0.5), np.sqrt(3) * (1 + k(5)) + 0.5, rtol=1e-15
    )


def test_rounding_error_of_residuals_counts_their_targets():
    """c1 k_{m+3} (||F|| + 1): at F = 0 a residual is the rounded target."""
    problem = stacked([np.zeros((1000, 3))], PseudoHuber(0.1), SquaredL2(), 7.0, 1e-300)
    zero, k = np.zeros((1, 1)), rounding
    for length in (0.0, 2.0):
        F = np.full((1, 1, 3), length / np.sqrt(3))
        expected = 7 * (10 * k(6) * (length + 1) + k(1008))
        np.testing.assert_allclose(rounding_error(problem, F, zero, zero), expected, rtol=1e-12)


@pytest.mark.parametrize("loss", [PseudoHuber(0.1), LogisticCosh(0.1), Huber(0.1)], ids=repr)
def test_bounds_that_hold_for_any_targets(loss):
    """No minimiser is longer than the public bound, and gamma is reached there, also where all
    targets are at one end and rows are null.
    """
    rng = np.random.default_rng(0)
    for ends in (np.ones(40), -np.ones(40), rng.choice([-1.0, 1.0], 40)):
        blocks = [np.vstack([rows(30, 4), np.zeros((10, 4))])]
        problem = StackedProblem(blocks, loss, SquaredL2(), 5.0, 1e-3, targets=[ends])
        for strength in (1e-3, 1.0):
            q, b = np.full((1, 1), strength), np.zeros((1, 1, 4))
            Lam = problem.rho + q
            size = longest(problem, Lam, np.zeros((1, 1)))
            gamma = reachable_gamma(problem, q, size, np.zeros((1, 1)))
            solution = solve(problem, q, b, gamma, np.zeros((1, 1, 4)))
            assert np.linalg.norm(solution.point) <= size + gamma / Lam
            assert (gamma <= default_gamma(problem, q)).all()


def test_the_size_of_b_counts_in_the_certificate():
    problem = StackedProblem([rows(30, 3)], Logistic(), SquaredL2(), 1.0, 0.1)
    q, b, gamma = np.full((1, 1), 0.5), np.zeros((1, 1, 3)), np.full((1, 1), 1e-6)
    start = np.zeros((1, 1, 3))
    small, large = (
        solve(problem, q, b, gamma, start, b_size=np.full((1, 1), size)).bound
        for size in (0.0, 1e8)
    )
    assert large - small > 5e-8
    with pytest.raises(NotCertified):
        solve(problem, q, b, gamma, start, b_size=np.full((1, 1), 1e12), max_iterations=30)


def test_every_node_meets_its_own_gamma():
    problem = StackedProblem(
        [rows(50, 4, s) for s in range(2)], Logistic(), SquaredL2(), 10.0, 1e-3
    )
    gamma = np.array([[1e-2], [1e-8]])
    solution = solve(problem, np.full((2, 1), 0.1), np.zeros((2, 3, 4)), gamma, np.zeros((2, 3, 4)))
    assert (solution.bound <= gamma).all()


@pytest.mark.parametrize("kind", [int, np.float32])
def test_a_start_of_another_type_is_certified_as_it_is_returned(kind):
    blocks = [rows(40, 6, s) for s in range(2)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 1.0, 1e-3)
    q, b = np.full((2, 1), 0.1), np.zeros((2, 1, 6))
    solution = solve(problem, q, b, default_gamma(problem), np.zeros((2, 1, 6), dtype=kind))
    exact = exact_gradient(problem, blocks, solution.point, q, b)
    assert (np.sqrt((exact**2).sum(axis=-1)) <= solution.bound).all()


def test_many_unlike_replicas_end_about_as_fast_as_alone():
    blocks = [rows(400, 20, s) for s in range(3)]
    problem = StackedProblem(blocks, Logistic(), SquaredL2(), 100.0, 1e-6)
    rng = np.random.default_rng(0)
    b = rng.normal(size=(3, 64, 20)) * np.geomspace(1e-6, 10, 64)[:, None]
    gamma = default_gamma(problem, 1e-3, 1e5)
    solution = solve(problem, np.full((3, 1), 1e-3), b, gamma, np.zeros((3, 64, 20)))
    assert (solution.bound <= gamma).all()
    assert solution.iterations < 300


@pytest.mark.parametrize("broadcast", ["b", "b_size", "q"])
def test_shapes_broadcast(broadcast):
    problem = StackedProblem([rows(20, 3), rows(20, 3, 1)], Logistic(), SquaredL2(), 1.0, 0.1)
    shapes = {"b": (2, 1, 3), "b_size": (2, 1), "q": (2, 1)}
    given = {"b": np.ones((2, 4, 3)), "b_size": np.full((2, 4), 3.0), "q": np.full((2, 4), 0.2)}
    small = {
        **given,
        broadcast: given[broadcast]
        .reshape(-1)[: np.prod(shapes[broadcast])]
        .reshape(shapes[broadcast]),
    }
    ends = [
        solve(
            problem, g["q"], g["b"], default_gamma(problem), np.zeros((2, 4, 3)), b_size=g["b_size"]
        ).point
        for g in (given, small)
    ]
    np.testing.assert_array_equal(*ends)


def test_what_is_private_is_not_shown():
    problem = StackedProblem([rows(20, 3)], Logistic(), SquaredL2(), 1.0, 0.1)
    solution = solve(
        problem, np.ones((1, 1)), np.zeros((1, 1, 3)), default_gamma(problem), np.zeros((1, 1, 3))
    )
    assert repr(solution) == f"Solution(iterations={solution.iterations})"


def test_default_gamma_leaves_room_for_penalty_start_and_noise():
    problem = StackedProblem([rows(50, 4)], Logistic(), SquaredL2(), 1e-4, 1e-3)
    q = np.full((1, 1), 1e4)
    start = np.ones((1, 1, 4))
    b = -q[..., None] * start
    solution = solve(problem, q, b, default_gamma(problem, q, 2.0), start)
    assert solution.bound <= default_gamma(problem, q, 2.0)
    with pytest.raises(NotCertified):
        solve(problem, q, b, default_gamma(problem) / 10, start, max_iterations=40)


def test_vectors_too_long_for_their_squares_are_refused_in_words():
    """Their norms overflow, which is no warning of NumPy's but a bound that is not met."""
    problem = StackedProblem([np.full((3, 2), 0.5)], Logistic(), SquaredL2(), 1.0, 0.1)
    b = np.full((1, 1, 2), 1e200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotCertified, match="no finite gradient"):
            solve(
                problem,
                np.ones((1, 1)),
                b,
                np.ones((1, 1)),
                np.zeros((1, 1, 2)),
                b_size=np.ones((1, 1)),
            )


def test_a_direction_that_is_no_number_is_left_for_a_plain_one(monkeypatch):
    rng = np.random.default_rng(0)
    problem = StackedProblem([rng.normal(size=(40, 3)) / 3], Logistic(), SquaredL2(), 1.0, 1e-3)
    real, calls = descent._QuasiNewton.apply, []

    def once_nan(self, M, G, plain):
        calls.append(len(calls))
        return real(self, M, G, plain) * (np.nan if len(calls) == 2 else 1.0)

    monkeypatch.setattr(descent._QuasiNewton, "apply", once_nan)
    b = rng.normal(size=(1, 1, 3))
    found = solve(problem, np.full((1, 1), 0.01), b, np.full((1, 1), 1e-9), np.zeros((1, 1, 3)))
    assert len(calls) > 2
    assert (found.bound <= 1e-9).all()
