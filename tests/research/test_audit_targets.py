"""Rows with a number to predict, audited: targets at both ends, losses of residuals, forgotten
factors.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest

from dynadp.data.shard import Shard
from dynadp.errors import DeclarationError
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.noisy_errors import SENSITIVITY, WEIGHTS, error_sums, private_errors
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.units import Unit
from dynadp.problem import integer_rows
from dynadp.problem.residual_losses import Huber
from dynadp.research.audit import Case, Stream, audit_mechanism, target_cases

ALPHA, DRAWS = 0.5, 2_000
MECHANISMS = [Sum(), Sum(True), Sealed(honest=3, spares=0), Primal(), Dual(), Sum(weighed=True)]


def look(mechanism, cases, m=1, draws=DRAWS):
    how = {"draws": draws, "source": Stream(3), "cases": cases, "rows_per_person": m}
    return audit_mechanism(mechanism, ALPHA, 2, **how)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_no_mechanism_loses_more_than_it_claims(mechanism):
    sums, m = mechanism.algorithm == "sum", 3 if getattr(mechanism, "weighed", False) else 1
    rounds = 2 if getattr(mechanism, "second_moment", False) else 1
    for case in target_cases(2, ALPHA, m, sums=sums):
        found = audit_mechanism(
            mechanism, ALPHA, 2, rounds, draws=400, source=Stream(3), cases=(case,)
        )
        assert not found.refuted, case.name


@pytest.mark.parametrize("mechanism", [Sum(), Primal(), Dual()], ids=repr)
def test_the_audit_comes_near_to_the_claim(mechanism):
    """A row whose target is replaced, end by end, costs nearly all that is claimed."""
    cases = target_cases(1, ALPHA, sums=mechanism.algorithm == "sum")
    found = audit_mechanism(mechanism, ALPHA, 1, draws=DRAWS, source=Stream(1), cases=cases)
    reached = (
        found.largest_shift / found.mu_claimed
        if found.mu_claimed
        else (found.largest_log_ratio / found.log_ratio_bound)
    )
    assert 0.85 < reached <= 1 + 1e-9


@dataclass(frozen=True)
class Steep(Huber):
    """Declares a slope of 1, and has one of 2."""

    name: ClassVar[str] = "steep"

    def slope(self, z):
        return 2 * super().slope(z)


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=repr)
def test_a_loss_that_is_steeper_than_it_says_is_refuted(mechanism):
    case = target_cases(1, ALPHA, sums=False)[0]
    assert not look_at(mechanism, case).refuted
    assert look_at(mechanism, replace(case, loss=Steep(0.05))).refuted_exactly


def look_at(mechanism, case, **how):
    return audit_mechanism(mechanism, ALPHA, 1, draws=400, source=Stream(2), cases=(case,), **how)


def test_slopes_that_are_not_clipped_are_refuted():
    """Sums whose slopes are residuals themselves: the squared loss."""
    case = target_cases(1, ALPHA)[0]

    def squares(loss, margins, resolution, y=None, weights=None):
        return np.rint((margins * resolution.step - y[:, None]) / 0.3 / resolution.step)

    for wrong, refuted in (
        (patch.object(integer_rows, "whole_slopes", squares), True),
        (nullcontext(), False),
    ):
        with wrong:
            assert look_at(Sum(), case).refuted_exactly == refuted


def test_weighing_by_one_sign_is_refuted():
    """Two rows of a person that point apart, with targets at both ends, add up (maths.md 14)."""
    x = np.eye(2)[0]
    rows = np.array([x, -x, 0 * x])
    given = {"answers": np.array([1.0, -1.0, 0.0]), "others": np.zeros(3)}
    case = Case(
        "opposite rows of hers",
        rows,
        0 * rows,
        Huber(0.05),
        np.zeros(2),
        rows_per_person=2,
        **given,
    )
    shipped = integer_rows.largest_slopes

    def for_one_sign(*given, alike):
        return shipped(*given, alike=True)

    def refuted():
        return audit_mechanism(
            Sum(weighed=True), ALPHA, 2, draws=400, source=Stream(2), cases=(case,)
        ).largest_shift

    assert refuted() <= ALPHA
    with patch.object(integer_rows, "largest_slopes", for_one_sign):
        worse = refuted()
    assert worse > 0.65 * ALPHA  # sqrt(2) times as far
    assert worse > 1.3 * refuted()


def test_half_of_the_distance_is_refuted():
    """A forgotten factor 2: only one end of a residual's slope is counted."""
    case = target_cases(1, ALPHA)[0]
    with patch.object(
        integer_rows.Resolution, "sensitivity", lambda self, *, moment, moves=2.0: self.gradient
    ):
        found = look_at(Sum(), case)
    assert found.refuted_exactly
    assert found.refuted


@pytest.mark.parametrize("mechanism", [Sum(), Primal(), Dual()], ids=repr)
def test_rows_that_are_there_or_not(mechanism):
    for case in target_cases(2, ALPHA, sums=mechanism.algorithm == "sum"):
        added = case.added()
        found = audit_mechanism(mechanism, ALPHA, 2, draws=400, source=Stream(5), cases=(added,))
        assert not found.refuted, added.name


def test_cases_that_make_no_sense_are_refused():
    x = np.eye(2)
    with pytest.raises(DeclarationError, match="loss 'huber' needs a target for each row"):
        Case("none", x, x, Huber(), np.zeros(2))
    ends = {"answers": np.full(2, 2.0), "others": np.zeros(2)}
    with pytest.raises(DeclarationError, match=r"in \[-1, 1\]"):
        Case("far", x, x, Huber(), np.zeros(2), **ends)


def test_sums_of_errors_move_no_further_than_declared():
    """Any row, replaced by any other, dropped or added: the corners and a grid."""
    ends = np.linspace(-1, 1, 41)
    p, t = (g.ravel() for g in np.meshgrid(ends, ends))
    each = np.array([error_sums(p[[i]], t[[i]]) for i in range(len(p))]) * 2.0**-20
    each = np.vstack([each, np.zeros(5)])  # dropped, or not there
    worst = max(np.linalg.norm(each - one, axis=1).max() for one in each)
    assert 0.99 * SENSITIVITY < worst <= SENSITIVITY
    assert np.abs(each / WEIGHTS).max() <= 1 + 1e-5


def test_released_errors_have_the_declared_noise():
    unit, sums = Unit(), error_sums(np.zeros(50), np.full(50, 0.5))
    found = [
        private_errors(sums, 0.8, node="a", draws=SeededEntropy(seed), unit=unit).sums
        for seed in range(400)
    ]
    spread = np.std(found, axis=0) * WEIGHTS
    np.testing.assert_allclose(spread, SENSITIVITY / 0.8, rtol=0.15)
    made = private_errors(sums, 0.8, node="a", draws=SeededEntropy(0), unit=Unit(3))
    assert (made.event.mu, made.event.rows) == (0.8, 3)


def test_an_audit_by_name_tries_targets():
    found = audit_mechanism(Sum(), 1.0, targets=True, draws=400, source=Stream(0))
    assert found.setting["targets"]
    assert not found.refuted
    assert Shard.of([[1.0]], [0.5], classes=None).kind == "numbers"
