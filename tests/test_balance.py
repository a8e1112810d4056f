"""What a ledger says, in one reading for the command line and for reports."""

import json

import pytest

from dynadp.balance import Balance
from dynadp.privacy.accountant import total
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.filter import Cap
from dynadp.privacy.ledger import Ledger
from dynadp.report.budget import purse

STAMP = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
CAP = Cap.of(2.0, 1e-5)


def plan(rounds, alpha=0.05):
    return [L2Laplace("north", n, "primal", alpha, 3) for n in range(1, rounds + 1)]


WHOLE = plan(next(n for n in range(2, 999) if CAP.admits([], plan(n)) == "plan"))


@pytest.fixture
def path(tmp_path):
    with Ledger.create(tmp_path / "north.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(CAP, **STAMP)
    return tmp_path / "north.sqlite"


def said(path):
    with Ledger.open(path, read_only=True) as ledger:
        return Balance.of(ledger)


def test_a_fixed_plan_takes_the_whole_cap_from_its_reservation_on(path):
    with Ledger.open(path) as ledger:
        assert ledger.reserve("a", WHOLE, dataset="rows", **STAMP) == "plan"
        before = purse(path, "a")
        ledger.spend("a", 1, WHOLE[:1], b"", **STAMP)
    assert (before.spent, before.taken, before.releases, before.planned) == (0.0, 1.0, 0, len(WHOLE))
    assert purse(path, "a").spent == 1.0
    assert said(path).to_json()["cap"]["taken_by"] == "a"


def test_a_fixed_plan_that_was_given_up_takes_nothing(path):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        ledger.close_run("a", "stopped", **STAMP)
    assert said(path).whole is None
    assert purse(path, "a").taken == 0.0


def test_a_larger_cap_is_not_taken_by_the_plan_that_took_the_smaller_one(path):
    larger = Cap.of(8.0, 1e-5)
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        for event in WHOLE:
            ledger.spend("a", event.round, [event], b"", **STAMP)
        ledger.close_run("a", "finished", **STAMP)
        ledger.set_cap(larger, **STAMP)
        ledger.reserve("b", plan(1), dataset="rows", **STAMP)  # the rules let another run in
    found = purse(path, "b")
    assert not found.whole
    assert 0 < found.spent < found.taken < 1
    assert said(path).to_json()["cap"]["taken_by"] is None


def test_a_run_may_be_called_evaluation(path):
    accuracy = L2Laplace("north", 0, "evaluation", 0.1, 1)
    with Ledger.open(path) as ledger:
        ledger.reserve("evaluation 1", plan(1), dataset="rows", **STAMP)
        ledger.spend("evaluation 1", 1, plan(1), b"\xff a vector", **STAMP)
        ledger.reserve("evaluation 2", [accuracy], dataset="rows", **STAMP)
        ledger.spend("evaluation 2", 0, [accuracy], json.dumps(0.75).encode(), **STAMP)
    assert said(path).evaluations == ({"at": STAMP["at"], "alpha": 0.1, "accuracy": 0.75},)


def release(ledger, run, events):
    """Reserve, spend and finish; returns the basis."""
    basis = ledger.reserve(run, events, dataset="rows", **STAMP)
    for event in events:
        ledger.spend(run, event.round, [event], b"", **STAMP)
    ledger.close_run(run, "finished", **STAMP)
    return basis


def released(path, *runs, then=None):
    with Ledger.open(path) as ledger:
        bases = [release(ledger, f"run {i}", events) for i, events in enumerate(runs)]
        if then is not None:
            ledger.set_cap(then, **STAMP)
    return bases


def test_a_lone_fixed_plan_loses_its_total(path):
    """The odometer alone would tell of more than the cap that nothing passed."""
    assert released(path, WHOLE) == ["plan"]
    assert CAP.odometer(WHOLE) > CAP.epsilon
    assert said(path).lost == total(WHOLE, CAP.delta).epsilon <= CAP.epsilon
    assert purse(path, "run 0").lost == said(path).lost == said(path).to_json()["cap"]["lost"]


def test_a_fixed_plan_that_has_begun_loses_what_the_odometer_says_so_far(path):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        ledger.spend("a", 1, WHOLE[:1], b"", **STAMP)
    assert said(path).lost == pytest.approx(0.05)


def test_runs_that_fit_the_filter_lose_at_most_the_cap(path):
    fits = max(n for n in range(2, 999) if CAP.admits([], plan(n)) == "renyi")
    first, second = plan(fits - 20), [L2Laplace("north", n, "primal", 0.05, 3) for n in range(1, 21)]
    assert released(path, first, second) == ["renyi", "renyi"]
    assert CAP.odometer([*first, *second]) > CAP.epsilon
    assert said(path).lost == CAP.epsilon


def test_under_a_lowered_cap_the_odometer_counts(path):
    lower = Cap.of(0.5, 1e-5)
    assert released(path, plan(45), plan(20), then=lower) == ["renyi", "renyi"]
    assert lower.odometer([*plan(45), *plan(20)]) > lower.epsilon
    assert said(path).lost == lower.odometer([*plan(45), *plan(20)])


def test_under_a_raised_cap_the_filter_counts_for_everything(path):
    larger = Cap.of(2.1, 1e-5)
    fits = max(n for n in range(2, 999) if CAP.admits([], plan(n)) == "renyi")
    assert released(path, plan(fits), then=larger) == ["renyi"]
    assert larger.odometer(plan(fits)) > larger.epsilon
    assert said(path).lost == larger.epsilon


def test_a_fixed_plan_of_another_cap_is_no_longer_all_that_may_be_released(path):
    """Neither its total nor a cap is promised: the new cap may be followed by more."""
    larger = Cap.of(2.001, 1e-5)
    plain, moment = larger.spent(WHOLE)
    assert plain > larger.epsilon
    assert moment > larger.budget
    assert released(path, WHOLE, then=larger) == ["plan"]
    assert said(path).lost == larger.odometer(WHOLE) > larger.epsilon


def test_a_fixed_plan_beside_a_run_that_may_still_release_loses_what_the_odometer_says(path):
    """A cap that was raised and taken back left another run open."""
    released(path, WHOLE, then=Cap.of(8.0, 1e-5))
    with Ledger.open(path) as ledger:
        ledger.reserve("b", plan(1), dataset="rows", **STAMP)
        ledger.set_cap(CAP, **STAMP)
    assert said(path).lost == CAP.odometer(WHOLE)
    with Ledger.open(path) as ledger:
        ledger.close_run("b", "stopped", **STAMP)
    assert said(path).lost == total(WHOLE, CAP.delta).epsilon


def test_nothing_is_lost_before_the_first_release(path):
    assert said(path).lost == 0.0
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
    assert said(path).lost == 0.0


def test_an_evaluation_whose_message_is_no_number_is_passed_over(path):
    event = L2Laplace("north", 0, "evaluation", 0.1, 1)
    with Ledger.open(path) as ledger:
        for i, message in enumerate((b"\x00\xff a vector", b"[1, 2]", b"0.75")):
            ledger.reserve(f"run {i}", [event], dataset="rows", **STAMP)
            ledger.spend(f"run {i}", 0, [event], message, **STAMP)
    assert [one["accuracy"] for one in said(path).evaluations] == [0.75]
