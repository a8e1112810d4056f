"""Rows of a person that are weighed add no more to a sum than one row may: in whole numbers, and
whatever their slopes are.
"""

from math import isqrt
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp.data.shard import Shard
from dynadp.errors import DataError, DeclarationError
from dynadp.problem import weighing
from dynadp.problem.integer_rows import IntegerRows, Resolution, integer_rows_of
from dynadp.problem.losses import Logistic
from dynadp.problem.residual_losses import Huber
from dynadp.problem.weighing import largest_slopes, shortened

D, B = 3, 12
RESOLUTION = Resolution.of(1000, D)
K_X, K_S = RESOLUTION.longest, 2**RESOLUTION.bits
RNG = np.random.default_rng(0)


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


KINDS = {
    "alike": lambda n: np.tile(unit(RNG.normal(size=(1, D))), (n, 1)),
    "nearly alike": lambda n: unit(RNG.normal(size=(1, D)) + 0.01 * RNG.normal(size=(n, D))),
    "apart": lambda n: unit(RNG.normal(size=(n, D))),
    "opposite": lambda n: unit(RNG.normal(size=(1, D))) * (-1.0) ** np.arange(n)[:, None],
    "short": lambda n: 0.01 * unit(RNG.normal(size=(n, D))),
    "nothing": lambda n: np.zeros((n, D)),
}


def integers(rows):
    return np.asarray(RESOLUTION.whole(rows)).astype(int).tolist()


def squared(rows, slopes):
    """||sum_i sigma_i k_i||^2, in integers without end."""
    total = [sum(s * k[j] for s, k in zip(slopes, rows, strict=True)) for j in range(D)]
    return sum(number**2 for number in total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_no_slopes_of_one_sign_lead_further_than_one_row_may(kind, n):
    rows = KINDS[kind](n)
    people = np.zeros(n, dtype=np.int64)
    most = largest_slopes(RESOLUTION.whole(rows), people, K_X, K_S)
    assert ((most >= K_S // n) & (most <= K_S) & (most == np.floor(most))).all()
    k, worst = integers(rows), 0
    for _ in range(50):
        share = np.where(RNG.random(n) < 0.5, RNG.integers(0, 2, n), RNG.random(n))
        worst = max(worst, squared(k, (-share * most).astype(int).tolist()))
    worst = max(worst, squared(k, (-most).astype(int).tolist()))
    assert worst <= (K_S * K_X) ** 2
    if kind in ("alike", "nearly alike"):
        assert isqrt(worst) > 0.97 * K_S * K_X


def test_what_would_be_too_much():
    """Weights by the root of the number of rows, and slopes of both signs: why neither will do."""
    k = integers(KINDS["alike"](4))
    assert squared(k, [-K_S // 2] * 4) > (K_S * K_X) ** 2
    rows = KINDS["opposite"](4)
    most = largest_slopes(RESOLUTION.whole(rows), np.zeros(4, np.int64), K_X, K_S)
    mixed = (most * (-1.0) ** np.arange(4)).astype(int).tolist()
    assert squared(integers(rows), mixed) > (K_S * K_X) ** 2
    # so slopes above 0 are taken for 0
    rising = SimpleNamespace(slope=np.sign, residual=False, kind="signs")
    held = IntegerRows([rows], RESOLUTION, rising, people=[np.zeros(4, np.int64)])
    z = np.round(rows[:1] * 2**10) / 2**10
    found = [int(number) for number in held.gradient(z)[0, 0]]
    assert 0 < sum(number**2 for number in found) <= (K_S * K_X) ** 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_no_slopes_of_both_signs_lead_further_than_one_row_may(kind, n):
    """As residuals have them: with the bounds for one sign, opposite rows would (above)."""
    rows = KINDS[kind](n)
    people = np.zeros(n, dtype=np.int64)
    most = largest_slopes(RESOLUTION.whole(rows), people, K_X, K_S, alike=False)
    assert ((most >= K_S // n) & (most <= K_S) & (most == np.floor(most))).all()
    assert (most <= largest_slopes(RESOLUTION.whole(rows), people, K_X, K_S)).all()
    k, worst = integers(rows), 0
    toward = np.sign(rows @ rows[0])  # all rows help each other
    for signs in (toward, -toward, *RNG.choice([-1.0, 0.5, 1.0], (50, n))):
        worst = max(worst, squared(k, (signs * most).astype(int).tolist()))
    assert worst <= (K_S * K_X) ** 2
    if kind in ("alike", "nearly alike", "opposite"):
        assert isqrt(worst) > 0.97 * K_S * K_X


def test_weighed_rows_of_residuals_keep_both_signs():
    rows, people = KINDS["opposite"](4), np.zeros(4, np.int64)
    targets = np.array([-1.0, 1.0, -1.0, 1.0])
    held = IntegerRows([rows], RESOLUTION, Huber(0.1), people=[people], answers=[targets])
    found = [int(number) for number in held.gradient(np.zeros((1, D)))[0, 0]]
    # slopes 1, -1, 1, -1 on rows that point apart in turn: the longest sum that there is
    assert 0.97 * K_S * K_X < isqrt(sum(number**2 for number in found)) <= K_S * K_X
    alone = IntegerRows([rows], RESOLUTION, Huber(0.1), people=[np.arange(4)], answers=[targets])
    full = IntegerRows([rows], RESOLUTION, Huber(0.1), answers=[targets])
    z = np.zeros((1, D))
    np.testing.assert_array_equal(alone.gradient(z), full.gradient(z))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 5, 40])
def test_second_moments_are_no_longer_than_that_of_one_row(kind, n):
    rows = RESOLUTION.whole(KINDS[kind](n))
    short = np.asarray(shortened(rows, np.zeros(n, np.int64), K_X)).astype(int).tolist()
    moment = [[sum(k[i] * k[j] for k in short) for j in range(D)] for i in range(D)]
    size = sum(entry**2 for line in moment for entry in line)
    assert size <= K_X**4
    if kind in ("alike", "nearly alike"):
        assert size > 0.97 * K_X**4


@pytest.mark.parametrize("work", [largest_slopes, shortened])
def test_her_weights_depend_on_her_own_rows_alone(work):
    how = (K_X, K_S) if work is largest_slopes else (K_X,)
    rows = RESOLUTION.whole(np.concatenate([KINDS["apart"](7), KINDS["nearly alike"](9)]))
    people = np.array([0, 1, 0, 2, 2, 2, -1, 0, 1, 3, 3, 3, 3, 4, -1, 4])
    found = work(rows, people, *how)
    hers = people == 0
    other = np.where(hers[:, None], rows, RESOLUTION.whole(KINDS["apart"](16)))
    again = work(other, np.where(hers, 0, RNG.integers(1, 4, 16)), *how)
    np.testing.assert_array_equal(found[hers], again[hers])
    np.testing.assert_array_equal(found[hers], work(rows[hers], people[hers], *how))
    sparse = work(csr_array(rows), people, *how)
    sparse = sparse.toarray() if isinstance(sparse, csr_array) else sparse
    np.testing.assert_array_equal(found, sparse)


def test_in_small_parts_and_for_people_with_very_many_rows(monkeypatch):
    rows, people = RESOLUTION.whole(KINDS["apart"](60)), RNG.integers(0, 12, 60)
    whole = largest_slopes(rows, people, K_X, K_S)
    monkeypatch.setattr(weighing, "_AT_ONCE", 1)
    np.testing.assert_array_equal(whole, largest_slopes(rows, people, K_X, K_S))
    monkeypatch.setattr(weighing, "_MANY", 3)
    _, counts = np.unique(people, return_counts=True)
    each = counts[people]
    found = largest_slopes(rows, people, K_X, K_S)
    np.testing.assert_array_equal(found[each > 3], K_S // each[each > 3])
    short = np.asarray(shortened(rows, people, K_X))
    for who in np.unique(people):
        moment = short[people == who].T @ short[people == who]
        assert np.linalg.norm(moment) <= K_X**2


@given(st.lists(st.integers(0, 5), min_size=B, max_size=B), st.sampled_from(["dense", "csr"]))
def test_sums_of_weighed_rows(numbers, storage):
    """Whole numbers; somebody's only row counts in full."""
    rows, people = KINDS["apart"](B), np.array(numbers)
    loss, z = Logistic(3.0), np.array([[0.5, -0.25, 1.0]])
    held = IntegerRows([rows], RESOLUTION, loss, storage=storage, people=[people])
    k = np.asarray(RESOLUTION.whole(rows))
    slopes = np.rint(loss.slope(k @ z[0] * RESOLUTION.step) / RESOLUTION.step)
    most = largest_slopes(k, people, K_X, K_S)
    expected = np.trunc(slopes * most / K_S) @ k
    np.testing.assert_array_equal(held.gradient(z)[0, 0], expected)
    full = IntegerRows([rows], RESOLUTION, loss, storage=storage)
    alone = IntegerRows([rows], RESOLUTION, loss, storage=storage, people=[np.arange(B)])
    np.testing.assert_array_equal(alone.gradient(z), full.gradient(z))
    np.testing.assert_array_equal(alone.moment(), full.moment())
    short = np.asarray(shortened(k, people, K_X))
    np.testing.assert_array_equal(held.moment()[0], short.T @ short)


def test_rows_that_do_not_say_whose_they_are():
    rows = KINDS["apart"](4)
    unknown = Shard.of(rows, np.ones(4), name="a")
    with pytest.raises(DeclarationError, match="node 'a' does not say whose its rows are"):
        integer_rows_of([unknown], RESOLUTION, Logistic(), weighed=True)
    known = Shard.of(rows, np.ones(4), people=[3, 3, 1, 1]).filled(6)
    assert known.people.tolist() == [3, 3, 1, 1, -1, -1]
    held = integer_rows_of([known], RESOLUTION, Logistic(), weighed=True)
    without = IntegerRows([rows], RESOLUTION, Logistic(), people=[np.array([3, 3, 1, 1])])
    z = np.zeros((1, D))
    np.testing.assert_array_equal(held.gradient(z), without.gradient(z))
    for wrong in ([1, 2], ["a"] * 4, [0.5] * 4):
        with pytest.raises(DataError, match="one whole number for each of its rows"):
            Shard.of(rows, np.ones(4), people=wrong)
