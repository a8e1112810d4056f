"""Sums over rows in whole numbers: exact, and bounded whatever floating point does."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp.data import Shard
from dynadp.errors import DeclarationError
from dynadp.problem import integer_rows
from dynadp.problem import storage as storage_module
from dynadp.problem.integer_rows import IntegerRows, Resolution, integer_rows_of
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.problem.residual_losses import Huber, PseudoHuber

LOSSES = [Logistic(3.0), Logistic(), HuberHinge(0.5, 1.0), Huber(0.2), PseudoHuber(0.2)]


def rows_of(rng, n, d, sparse):
    rows = rng.normal(size=(n, d)) * (rng.random((n, d)) < (0.2 if sparse else 1.0))
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return csr_array(rows) if sparse else rows


def by_hand(rows, z, loss, resolution, targets=None):
    """The same in Python's whole numbers."""
    rows = rows.toarray() if isinstance(rows, csr_array) else rows
    h, total = resolution.step, [0] * rows.shape[1]
    for i, row in enumerate(rows):
        k = [round(float(v)) for v in np.rint(row / h)]
        if sum(v * v for v in k) > resolution.longest**2:
            continue
        margin = float(np.dot(np.array(k, float), z) * h)
        margin -= 0.0 if targets is None else float(targets[i])
        slope = round(float(np.rint(loss.slope(np.array([margin]))[0] / h)))
        slope = max(-(2**resolution.bits), min(slope, 2**resolution.bits))
        total = [a + slope * b for a, b in zip(total, k, strict=True)]
    return total


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_sums_are_those_of_whole_numbers(storage, sparse, loss):
    rng = np.random.default_rng(1)
    blocks = [rows_of(rng, n, 7, sparse) for n in (1, 40, 13)]
    resolution = Resolution.of(40, 7)
    z = rng.normal(size=(2, 7))
    targets = [rng.uniform(-1, 1, b.shape[0]) for b in blocks] if loss.residual else None
    held = IntegerRows(blocks, resolution, loss, replicas=2, storage=storage, answers=targets)
    found = held.gradient(z)
    for p, block in enumerate(blocks):
        for k in range(2):
            expected = by_hand(block, z[k], loss, resolution, targets and targets[p])
            # a margin may be added in another order, which moves a slope by one step at most
            assert np.abs(found[p, k] - expected).max() <= block.shape[0] * resolution.longest
            np.testing.assert_allclose(found[p, k], expected, atol=resolution.longest)
            assert (found[p, k] == np.rint(found[p, k])).all()


@given(st.integers(0, 2**32), st.sampled_from(LOSSES), st.floats(0, 1e8), st.booleans())
def test_no_row_adds_more_than_declared(seed, loss, far, sparse):
    """Also rows that are too long, and points that are far away."""
    rng = np.random.default_rng(seed)
    block = rows_of(rng, 5, 6, sparse) * rng.choice([1.0, 1.0, 1.00002, 3.0], (5, 1))
    resolution, z = Resolution.of(5, 6), far * rng.normal(size=(1, 6))
    for row in csr_array(block).toarray():
        targets = [rng.choice([-1.0, 0.3, 1.0], 1)] if loss.residual else None
        one = IntegerRows([row[None]], resolution, loss, answers=targets)
        assert np.linalg.norm(one.gradient(z)) <= resolution.gradient
        assert np.linalg.norm(one.moment()) <= resolution.moment


def test_a_row_of_the_declared_length_is_kept_and_a_longer_one_is_dropped():
    resolution = Resolution.of(1, 100)
    flat = np.full((1, 100), 0.1)
    assert resolution.whole(flat).any()
    assert not resolution.whole(flat * 1.0002).any()
    assert not resolution.whole(csr_array(flat * 1.0002)).toarray().any()


def test_rows_are_written_as_whole_numbers_without_further_copies():
    """Some at a time, with the same numbers as all at once."""
    rng = np.random.default_rng(4)
    rows, resolution = rows_of(rng, 60_000, 20, False), Resolution.of(60_000, 20)
    rows[7] *= 3  # too long
    tracemalloc.start()
    found = resolution.whole(rows)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1.7 * rows.nbytes  # all at once: 2 and more
    expected = np.rint(rows / resolution.step)
    expected[7] = 0
    np.testing.assert_array_equal(found, expected)


def test_replacing_a_row_moves_the_sum_by_what_it_added():
    """Exactly, however many other rows there are: a float sum of gradients does not."""
    rng = np.random.default_rng(3)
    block, z = rows_of(rng, 20_000, 5, False), rng.normal(size=(1, 5))
    resolution = Resolution.of(20_000, 5)
    other = block.copy()
    other[77] = rows_of(rng, 1, 5, False)
    sums = [IntegerRows([b], resolution, LOSSES[0]).gradient(z)[0, 0] for b in (block, other)]
    ones = [
        IntegerRows([b[76:78]], resolution, LOSSES[0]).gradient(z)[0, 0] for b in (block, other)
    ]
    assert (sums[1] - sums[0] == ones[1] - ones[0]).all()
    plain = [b.T @ LOSSES[0].slope(b @ z[0]) for b in (block, other)]
    alone = [b[77] * LOSSES[0].slope(b[77:78] @ z[0]) for b in (block, other)]
    assert not ((plain[1] - plain[0]) == (alone[1] - alone[0])).all()


@pytest.mark.parametrize("rows", [1, 1000, 2**20, 2**21, 2**30, 10**12])
def test_sums_stay_below_2_to_the_53(rows):
    resolution = Resolution.of(rows, 500)
    assert rows * resolution.gradient < 2**53
    assert rows * resolution.moment < 2**53
    assert resolution.longest * resolution.step < 1 + 500**0.5 * resolution.step


def test_too_many_rows_are_refused():
    with pytest.raises(DeclarationError, match="cannot be added exactly"):
        Resolution.of(2**50, 10)


def test_the_second_moment():
    rng = np.random.default_rng(4)
    block = rows_of(rng, 50, 4, False)
    resolution = Resolution.of(50, 4)
    k = np.rint(block / resolution.step)
    for storage in ("dense", "csr"):
        held = IntegerRows([block, block[:3]], resolution, LOSSES[0], storage=storage)
        np.testing.assert_array_equal(held.moment(), [k.T @ k, k[:3].T @ k[:3]])


@pytest.mark.parametrize("loss", [Logistic(), PseudoHuber(0.2)], ids=repr)
@pytest.mark.parametrize("nodes", [1, 2])
def test_sums_by_piece_are_the_same_to_the_last_bit(nodes, loss, monkeypatch):
    rng = np.random.default_rng(3)
    blocks = [rows_of(rng, n, 7, sparse=False) for n in (203, 77)[:nodes]]
    signs = [rng.choice([-1.0, 1.0], len(b)) for b in blocks]
    given = {"answers": signs} if loss.residual else {"labels": signs, "class_weights": (0.5, 1.0)}
    resolution, z = Resolution.of(300, 7), rng.normal(size=(2, 7))

    def sums(**more):
        made = [b.copy() for b in blocks]
        held = IntegerRows(made, resolution, loss, storage="dense", **given, **more)
        return held.gradient(z), held.moment(), held._parts()

    *whole, parts = sums()
    assert parts is None
    monkeypatch.setattr(storage_module, "_WORTH_NO_COPY", 1)
    monkeypatch.setattr(integer_rows, "_SUMMED", 7 * 50)
    *found, parts = sums(overwrite=True)
    assert len(list(parts)) == [5, 7][nodes - 1]
    for some, all_at_once in zip(found, whole, strict=True):
        np.testing.assert_array_equal(some, all_at_once)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_may_be_written_over_where_nobody_wants_them_any_more(sparse):
    rng = np.random.default_rng(4)
    rows, y = rows_of(rng, 50, 6, sparse), rng.choice([-1, 1], 50)
    kept, spent = Shard.of(rows, y), Shard.of(rows, y)
    made = Resolution.of(50, 6), Logistic()
    taken, z = spent.signed, rng.normal(size=(1, 6))
    expected = integer_rows_of([kept], *made, storage="dense").gradient(z)
    found = integer_rows_of([spent], *made, storage="dense", overwrite=True).gradient(z)
    np.testing.assert_array_equal(found, expected)
    assert kept.signed is not spent.signed or sparse
    assert (spent.rows, spent.dimension) == (50, 6)
    if not sparse:  # what is left is no row, and adds nothing
        assert (taken == np.rint(taken)).all()
        assert np.isnan(spent.signed).all()
        assert not integer_rows_of([spent], *made).gradient(z).any()


def test_rows_that_belong_to_another_array_are_not_written_over():
    rows = np.full((4, 2), 0.5)
    shard = Shard.frozen(rows[:2], np.ones(2), "north")
    shard.taken()[:] = 7
    np.testing.assert_array_equal(rows, 0.5)
