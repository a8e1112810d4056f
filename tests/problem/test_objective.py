import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp._arrays import faster_storage
from dynadp.errors import DeclarationError
from dynadp.problem import objective, sparse_rows
from dynadp.problem import storage as storage_module
from dynadp.problem import threads as threads_module
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from dynadp.problem.residual_losses import LogisticCosh, PseudoHuber
from dynadp.problem.sparse_rows import SparseRows
from dynadp.problem.storage import DenseRows, SeparateRows, stack_rows, weighed_gram


def blocks(counts, d, seed=0, density=0.5):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, d)) * (rng.random((n, d)) < density)) / d for n in counts]


@pytest.mark.parametrize("counts", [(4, 4, 4), (1, 7, 3), (5,)], ids=str)
@pytest.mark.parametrize("make", [DenseRows, SeparateRows, SparseRows])
@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("length", [2, 2048])
def test_stacked_products_are_the_nodes_products(
    counts, make, as_sparse, replicas, length, monkeypatch
):
    """Also where sparse rows are cut into short parts, and replicas are taken two at a time."""
    for name in ("_LEAST", "_MARGINS", "_ABREAST"):
        monkeypatch.setattr(sparse_rows, name, length)
    rng = np.random.default_rng(1)
    parts = blocks(counts, 6)
    listed = [csr_array(part) for part in parts] if as_sparse else parts
    rows = make(parts if make is SeparateRows else listed)
    F, S = rng.normal(size=(len(counts), replicas, 6)), rng.normal(size=(sum(counts), replicas))
    np.testing.assert_allclose(
        rows.margins(F),
        np.concatenate([a @ f.T for a, f in zip(parts, F, strict=True)]),
        atol=1e-14,
    )
    pieces = np.split(S, np.cumsum(counts)[:-1])
    np.testing.assert_allclose(
        rows.adjoint(S), [s.T @ a for a, s in zip(parts, pieces, strict=True)], atol=1e-14
    )
    squared = [s[:, 0] @ a**2 for a, s in zip(parts, pieces, strict=True)]
    np.testing.assert_allclose(rows.squared_adjoint(S[:, 0]), squared, atol=1e-14)
    for p, a in enumerate(parts):
        weights = rng.random(len(a[::2]))
        np.testing.assert_allclose(
            weighed_gram(rows.some(p, 2), weights), (a[::2].T * weights) @ a[::2], atol=1e-14
        )


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize(
    ("loss", "R"),
    [
        (Logistic(3.0), SquaredL2()),
        (HuberHinge(1.0), SmoothElasticNet()),
        (PseudoHuber(0.3), SquaredL2()),
        (LogisticCosh(0.3), SmoothElasticNet()),
    ],
)
def test_derivatives_by_differences(storage, loss, R):
    rng = np.random.default_rng(2)
    targets = [rng.uniform(-1, 1, n) for n in (30, 50)] if loss.residual else None
    problem = StackedProblem(
        blocks((30, 50), 5), loss, R, C=3.0, rho=0.1, storage=storage, targets=targets
    )
    F = rng.normal(size=(2, 1, 5))
    q, b = np.array([[0.7], [0.2]]), rng.normal(size=(2, 1, 5))

    def value(F):
        inner = 0.5 * q * (F * F).sum(axis=-1) + (b * F).sum(axis=-1)
        return problem.local_value(F) + inner

    h = 1e-5
    for j in range(5):
        step = np.zeros((2, 1, 5))
        step[..., j] = h
        slope = (value(F + step) - value(F - step)) / (2 * h)
        np.testing.assert_allclose(problem.gradient(F, q, b)[..., j], slope, rtol=1e-7, atol=1e-8)
        if not isinstance(loss, HuberHinge):
            Z = problem.margins(F)
            column = (problem.local_gradient(F + step) - problem.local_gradient(F - step))[:, 0] / (
                2 * h
            )
            np.testing.assert_allclose(
                problem.hessians(F, Z)[0, :, :, j], column, rtol=1e-6, atol=1e-8
            )
            np.testing.assert_allclose(
                problem.hessian_diagonals(F, Z)[:, j], column[:, j], rtol=1e-6
            )


def test_value_weighs_rows_by_C_over_B():
    problem = StackedProblem(
        [np.zeros((2, 3)), np.zeros((8, 3))], Logistic(), SquaredL2(), C=5.0, rho=1.0
    )
    np.testing.assert_allclose(problem.local_value(np.zeros((2, 1, 3))), 5 * np.log(2))


@pytest.mark.parametrize(
    ("rows", "dimension", "filled", "replicas", "expected"),
    [
        (30_000, 106, 450_000, 1, "csr"),
        (20_000, 2_000, 400_000, 1, "csr"),
        (1_000, 50, 50_000, 1, "dense"),
    ],
)
def test_storage_is_chosen_by_density(rows, dimension, filled, replicas, expected):
    assert faster_storage(rows, dimension, filled, replicas) == expected


@given(st.integers(1, 10_000), st.integers(1, 500), st.floats(0, 1), st.integers(1, 256))
def test_denser_rows_never_turn_sparse(rows, dimension, density, replicas):
    picks = [
        faster_storage(rows, dimension, int(share * rows * dimension), replicas)
        for share in (density, 1.0)
    ]
    assert picks[1] == "dense" or picks[0] == "csr"


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_asked_storage_is_used(storage):
    assert (
        type(stack_rows(blocks((3, 3), 4), storage=storage))
        is {"dense": DenseRows, "csr": SparseRows}[storage]
    )


def test_rows_of_large_nodes_are_not_copied(monkeypatch):
    parts = blocks((40, 50), 200)
    monkeypatch.setattr(storage_module, "_WORTH_NO_COPY", parts[0].nbytes)
    large = stack_rows(parts, storage="dense")
    assert all(a.matrix is b for a, b in zip(large.blocks, parts, strict=True))
    monkeypatch.setattr(storage_module, "_WORTH_NO_COPY", parts[0].nbytes + 1)
    assert type(stack_rows(parts, storage="dense")) is DenseRows


def test_unknown_storage_is_refused():
    with pytest.raises(DeclarationError, match="storage is 'Dense'"):
        stack_rows(blocks((3, 3), 4), storage="Dense")


def test_a_majorant_exceeds_every_hessian():
    problem = StackedProblem(blocks((30, 50), 5), Logistic(), SmoothElasticNet(), C=3.0, rho=0.1)
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.1, 10.0):
        F = rng.normal(size=(2, 1, 5)) * scale
        Z = problem.rows.margins(F)
        gap = problem.hessians(F, Z, majorant=True) - problem.hessians(F, Z)
        assert np.linalg.eigvalsh(gap).min() >= -1e-12
        over = problem.hessian_diagonals(F, Z, majorant=True)
        np.testing.assert_allclose(
            over, np.diagonal(problem.hessians(F, Z, majorant=True)[0], axis1=1, axis2=2)
        )


def test_a_thinned_hessian_has_the_weight_of_a_whole_one():
    same = [np.repeat(part, 4, axis=0) for part in blocks((20, 30), 5)]
    problem = StackedProblem(same, Logistic(), SquaredL2(), C=3.0, rho=0.1)
    F = np.random.default_rng(0).normal(size=(2, 1, 5))
    Z = problem.rows.margins(F)
    np.testing.assert_allclose(problem.hessians(F, Z, step=4), problem.hessians(F, Z))


def test_auto_storage_counts_entries_of_both_kinds():
    sparse = [csr_array(part) for part in blocks((40, 40), 200, density=0.01)]
    assert isinstance(stack_rows(sparse), SparseRows)
    assert isinstance(stack_rows([part.toarray() for part in sparse]), SparseRows)
    assert isinstance(stack_rows(blocks((40, 40), 200, density=1.0)), DenseRows)


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_threads_change_no_bit(monkeypatch, storage):
    """A node's rows stay with one worker, so results are the same with one worker, with several,
    and in threads.
    """
    parts, F = blocks((30, 1, 50, 20, 7), 6), np.random.default_rng(0).normal(size=(5, 3, 6))
    found = []
    for workers, threshold, threads in (
        (1, 10**9, True),
        (3, 10**9, True),
        (3, 10**9, False),
        (3, 0, True),
    ):
        monkeypatch.setattr(threads_module, "WORKERS", workers)
        monkeypatch.setattr(sparse_rows, "WORKERS", workers)
        monkeypatch.setattr(objective, "WORTH_SHARING", threshold)
        monkeypatch.setattr(sparse_rows, "_WORTH_A_PASS", threshold if threads else 0)
        problem = StackedProblem(parts, Logistic(), SquaredL2(), 1.0, 0.1, storage=storage)
        Z = problem.rows.margins(F)
        found.append(
            [
                Z,
                problem.local_gradient(F),
                problem.hessians(F, Z),
                problem.hessian_diagonals(F, Z),
                *problem.at(F),
            ]
        )
        np.testing.assert_array_equal(found[-1][0], found[-1][4])
        np.testing.assert_array_equal(found[-1][1], found[-1][5])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("broken", [0, 2])
def test_an_error_in_a_thread_is_not_lost(broken):
    done = []

    def work(item):
        if item == broken:
            raise ValueError(item)
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(ValueError, match=str(broken)):
        threads_module.share_out(work, [0, 1, 2], threads=True)
    assert sorted(done) == [
        i for i in range(3) if i != broken
    ]  # nothing goes on behind the caller's back


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_hessians_of_chunks_are_those_of_their_replicas(storage):
    problem = StackedProblem(
        blocks((30, 50), 5), HuberHinge(), SmoothElasticNet(), C=3.0, rho=0.1, storage=storage
    )
    F = np.random.default_rng(0).normal(size=(2, 6, 5))
    Z = problem.margins(F)
    together = problem.hessians(F, Z, chunks=3)
    for i, some in enumerate((slice(0, 2), slice(2, 4), slice(4, 6))):
        (alone,) = problem.hessians(F[:, some], Z[:, some])
        np.testing.assert_allclose(together[i], alone, rtol=1e-12)
