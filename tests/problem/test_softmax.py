"""Slopes of several classes: bounded, of the loss that they are said to be of, exact in sums."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dynadp.data.shard import Shard
from dynadp.errors import DeclarationError
from dynadp.problem.integer_rows import (
    IntegerRows,
    Resolution,
    StreamedIntegerRows,
    integer_rows_of,
)
from dynadp.problem.losses import Logistic, check_loss
from dynadp.problem.softmax import Softmax, probabilities
from dynadp.problem.weighing import largest_slopes

ROOT = sqrt(2.0)


def loss_of(f, y, margin):
    raised = f + margin * (np.arange(len(f)) != y)
    return np.logaddexp.reduce(raised) - f[y]


@given(
    st.integers(2, 9), st.floats(0, 200), st.floats(-1, 6), st.floats(0.1, ROOT), st.integers(0, 99)
)
@settings(max_examples=200, deadline=None)
def test_no_slope_is_longer_than_declared(classes, far, margin, longest, seed):
    """Far out too, where a row is answered wrongly with certainty."""
    rng = np.random.default_rng(seed)
    F, y = far * rng.normal(size=(5, 3, classes)), rng.integers(classes, size=5)
    whole = Softmax(margin, ROOT).slopes(F, y)
    made = Softmax(margin, longest).slopes(F, y)
    lengths = np.linalg.norm(whole, axis=-1)
    assert (lengths <= ROOT * (1 + 1e-12)).all()
    np.testing.assert_allclose(
        np.linalg.norm(made, axis=-1), np.minimum(lengths, longest), rtol=1e-12
    )
    np.testing.assert_allclose(
        made * lengths[..., None], whole * np.linalg.norm(made, axis=-1)[..., None], atol=1e-12
    )
    np.testing.assert_allclose(made.sum(axis=-1), 0, atol=1e-12)


def test_slopes_are_those_of_the_loss():
    rng, h = np.random.default_rng(0), 1e-6
    for _ in range(20):
        f, y, margin = 2 * rng.normal(size=5), int(rng.integers(5)), rng.uniform(0, 3)
        slope = Softmax(margin, ROOT).slopes(f[None, None], np.array([y]))[0, 0]
        steps = h * np.eye(5)
        numeric = [(loss_of(f + s, y, margin) - loss_of(f - s, y, margin)) / (2 * h) for s in steps]
        np.testing.assert_allclose(slope, numeric, atol=1e-8)


def test_of_two_classes_it_is_the_logistic_loss():
    z = np.linspace(-9, 9, 50)
    F = np.stack([z / 2, -z / 2], axis=-1)[:, None]
    found = Softmax(1.5, ROOT).slopes(F, np.zeros(50, int))[:, 0, 0]
    np.testing.assert_allclose(found, Logistic(1.5).slope(z), rtol=1e-12)
    check_loss(Softmax())


@pytest.mark.parametrize("wrong", [{"longest": 0.0}, {"longest": 1.5}, {"margin": float("nan")}])
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(DeclarationError, match=r"softmax: (longest|margin) is"):
        Softmax(**wrong)


def shard(B=40, d=5, classes=4, seed=0, sparse=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(B, d)) * (rng.random((B, d)) < 0.6)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    X = csr_array(X) if sparse else X
    return Shard.of(X, rng.integers(classes, size=B), classes=range(classes))


@pytest.mark.parametrize("longest", [0.4, 1.0, ROOT])
def test_sums_are_those_of_whole_rows_and_slopes(longest):
    """Bit for bit dense, sparse, streamed and in another order, and each row within K_s K_x."""
    loss, resolution = Softmax(2.0, longest), Resolution.of(40, 5, 0.3, 4, longest)
    rng = np.random.default_rng(1)
    z = np.concatenate([rng.normal(size=(2, 20)), 200 * rng.normal(size=(2, 20))])
    held = shard()
    found = integer_rows_of([held, held], resolution, loss, replicas=4).gradient(z)
    assert found.shape == (2, 4, 20)
    k = resolution.whole(held.signed)
    step = resolution.step
    zg = np.rint(z / 2**-24) * 2**-24
    expected = np.zeros((4, 20))
    for row, y in zip(k, held.y, strict=True):
        margins = (zg.reshape(4, 4, 5) @ row)[None] * step
        sigma = np.rint(loss.slopes(margins, np.array([y]))[0] / step)
        assert (np.linalg.norm(sigma, axis=-1) <= resolution.steepest).all()
        each = (sigma[:, :, None] * row).reshape(4, 20)
        assert (np.linalg.norm(each, axis=-1) <= resolution.gradient).all()
        expected += each
    assert (found[0] == expected).all()
    assert (found[1] == expected).all()
    for other in (shard(sparse=True), held):
        for how in ("dense", "csr"):
            again = integer_rows_of([other], resolution, loss, storage=how)
            assert (again.gradient(z)[0] == expected).all()
    assert (StreamedIntegerRows([held], resolution, loss).gradient(z)[0] == expected).all()
    order = np.random.default_rng(2).permutation(40)
    moved = IntegerRows([held.signed[order]], resolution, loss, answers=[held.y[order]])
    assert (moved.gradient(z)[0] == expected).all()


def test_a_bound_is_enforced_on_slopes_whatever_the_loss_says():
    """A loss whose slopes are longer than it declares adds nothing, instead of too much."""

    class Lying(Softmax):
        name = "lying_softmax"

        def slopes(self, F, y):
            return super().slopes(F, y) * 1.5

    resolution = Resolution.of(40, 5, 0.3, 4, 1.0)
    z = 4096 * np.eye(20)[:1]
    held = shard()
    found = integer_rows_of([held], resolution, Lying(2.0, 1.0)).gradient(z)[0, 0]
    honest = integer_rows_of([held], resolution, Softmax(2.0, 1.0)).gradient(z)[0, 0]
    assert np.linalg.norm(found) < np.linalg.norm(honest)


@given(st.integers(2, 6), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_weighed_rows_of_a_person_add_no_more_than_one(m, seed):
    rng = np.random.default_rng(seed)
    resolution, loss = Resolution.of(8, 3, 1.0, 3, 1.0), Softmax(1.0)
    X = rng.normal(size=(m, 3)) * rng.choice([0.2, 1.0])
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1) * 1.001
    if seed % 2:
        X[1:] = rng.choice([-1, 1], (m - 1, 1)) * X[0]
    y = rng.integers(3, size=m).astype(float)
    z = 10 ** rng.uniform(-1, 3.5) * rng.normal(size=(4, 9))
    people = [np.zeros(m, np.int64)]
    held = IntegerRows([X], resolution, loss, people=people, answers=[y])
    sums = held.gradient(z)[0]
    assert (np.linalg.norm(sums, axis=-1) <= resolution.gradient).all()
    alone = IntegerRows([X], resolution, loss, people=[np.arange(m)], answers=[y])
    full = IntegerRows([X], resolution, loss, answers=[y])
    assert (alone.gradient(z) == full.gradient(z)).all()


def test_slopes_of_both_signs_need_more_than_those_of_one():
    """What holds for one sign would let two opposite rows add more than one may."""
    K = Resolution.of(8, 1, 1.0, 3, 1.0)
    rows, people = np.array([[1.0], [-1.0]]) * 2**16, np.zeros(2, np.int64)
    one, both = (
        largest_slopes(rows, people, K.longest, K.steepest, alike=alike) for alike in (True, False)
    )
    assert one.sum() * 2**16 > K.gradient * 1.4  # with slopes of opposite signs
    assert both.sum() * 2**16 <= K.gradient


def test_margins_fit_into_the_grid_and_sums_below_two_to_the_53():
    for rows, d, classes, longest in ((2**20, 50, 7, 1.0), (10**6, 300, 100, ROOT), (5, 3, 3, 0.3)):
        made = Resolution.of(rows, d, 0.1, classes, longest)
        assert rows * made.gradient < 2**53
        assert rows * made.gradient * made.finer < 2**54
        assert made.steepest >= longest * 2**made.bits
    with pytest.raises(DeclarationError, match="cannot be added exactly"):
        Resolution.of(2**50, 50, 1.0, 7, 1.0)


def test_probabilities_add_up_to_one():
    p = probabilities(np.array([[1000.0, 0, -1000], [0.0, 0, 0]]))
    np.testing.assert_allclose(p, [[1, 0, 0], [1 / 3] * 3])
