"""Sums with one slope a class: the bound is reached, never passed, and what forgets part of it is
refuted.
"""

from math import sqrt

import numpy as np
import pytest

from dynadp.errors import DeclarationError
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.problem.integer_rows import Resolution
from dynadp.problem.softmax import Softmax
from dynadp.research.audit.entropy import Stream
from dynadp.research.audit.sums import worst_class_cases
from dynadp.research.audit.verdict import audit_mechanism
from support.typed import dynadp

DRAWS = 3000


def audited(mechanism=None, rounds=1, cases=None, **more):
    given = mechanism or Sum(second_moment=False)
    return audit_mechanism(
        given, 1.0, 2, rounds, draws=DRAWS, source=Stream(1), classes=3, cases=cases, **more
    )


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("mechanism", "more"),
    [
        (None, {}),
        (None, {"rounds": 2}),
        (None, {"adjacency": "add-remove"}),
        (None, {"rows_per_person": 3}),
        (Sum(second_moment=False, weighed=True), {"rows_per_person": 3}),
        (Sum(second_moment=True), {"rounds": 2}),
        (Sealed(honest=2, spares=0, second_moment=False), {"nodes": 3}),
        (Sealed(honest=2, spares=1, second_moment=False), {"nodes": 3}),
    ],
    ids=str,
)
def test_what_is_claimed_is_not_refuted_and_nearly_reached(mechanism, more):
    found = audited(mechanism, **more)
    assert not found.refuted, found
    assert found.largest_shift <= found.mu_claimed * (1 + 1e-9)
    if mechanism is None:
        assert found.largest_shift > 0.98 * found.mu_claimed


def test_the_bound_is_reached_by_slopes_as_long_as_they_are():
    cases = [c for c in worst_class_cases(2, 3) if c.loss == Softmax(0.0, sqrt(2.0))]
    mirrored = [case for case in cases if "mirrored" in case.name]
    assert audited(cases=tuple(mirrored)).largest_shift > 0.99


def without_the_root(resolution, *, moment, moves=2.0):
    """As if slopes were no longer than 1, one for each row."""
    return moves * 2**resolution.bits * resolution.longest


def of_one_class(resolution, *, moment, moves=2.0):
    """As if only the slope of the row's own class counted."""
    return moves * resolution.gradient / sqrt(2.0)


@pytest.mark.parametrize("naive", [without_the_root, of_one_class])
def test_a_forgotten_root_of_two_is_refuted(monkeypatch, naive):
    cases = [c for c in worst_class_cases(2, 3) if c.loss == Softmax(0.0, sqrt(2.0))]
    assert not audited(cases=tuple(cases)).refuted
    monkeypatch.setattr(Resolution, "sensitivity", naive)
    found = audited(cases=tuple(cases))
    assert found.refuted
    assert found.largest_shift > 1.35 * found.mu_claimed


def test_a_shortening_that_is_forgotten_is_refuted(monkeypatch):
    """Noise for slopes of length 1, slopes of sqrt(2), and no check in whole numbers."""
    cases = [c for c in worst_class_cases(2, 3) if c.loss == Softmax()]
    whole = Softmax(2.0, sqrt(2.0))
    monkeypatch.setattr(Softmax, "slopes", lambda self, F, y: _whole(whole, F, y))
    assert not audited(cases=tuple(cases)).refuted  # the check in whole numbers holds
    steepest = Resolution.steepest
    monkeypatch.setattr(Resolution, "steepest", property(lambda own: 2 * steepest.fget(own)))
    monkeypatch.setattr(Resolution, "sensitivity", without_the_root)
    assert audited(cases=tuple(cases)).refuted


_slopes = Softmax.slopes


def _whole(loss, F, y):
    return _slopes(loss, F, y)


def test_weights_for_one_sign_are_refuted(monkeypatch):
    """Rows of a person whose slopes differ in sign add up to more than one row may."""
    from dynadp.problem import integer_rows, weighing

    rows = np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
    at = np.zeros(6)
    at[2:4] = 1000 * np.array([0.0, 1.0])  # the first row is answered 1, the second 0
    at[0:2] = -at[2:4]
    from dynadp.research.audit.cases import Case

    case = Case(
        "opposite rows of one person, both answered wrongly",
        *(rows, np.zeros((3, 2)), Softmax(0.0), at),
        rows_per_person=2,
        answers=np.array([0.0, 1.0, 0.0]),
        others=np.zeros(3),
        classes=3,
        adjacency="add-remove",
    )
    weighed = Sum(second_moment=False, weighed=True)
    assert not audited(weighed, cases=(case,)).refuted

    def naive(*given, alike):
        return weighing.largest_slopes(*given, alike=True)

    monkeypatch.setattr(integer_rows, "largest_slopes", naive)
    assert audited(weighed, cases=(case,)).refuted


def test_the_command_audits_classes():
    found = dynadp("audit --mechanism sum --classes 4 --dimension 2 --draws 400 --seed 1")
    assert found.exit_code == 0, found.output
    assert "dimension 2 with 4 classes" in found.output
    refused = dynadp("audit --mechanism primal --classes 4 --draws 400")
    assert refused.exit_code == 2
    assert "separates two" in refused.output


def test_cases_are_refused_without_classes_or_for_two():
    with pytest.raises(DeclarationError, match="classes is 2"):
        worst_class_cases(2, 2)
    with pytest.raises(DeclarationError, match="separates two"):
        audit_mechanism(Primal(), 1.0, classes=3, draws=400)
