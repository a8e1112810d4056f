"""What a ledger says, in one reading for the command line and for reports."""

import json
from bisect import bisect_left

import pytest

from dynadp.mechanisms.accuracy import released_accuracies
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.statements import guess_words
from dynadp.report.budgets import read_budget

STAMP = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
CAP = Cap.of(2.0, 1e-5)


def plan(rounds, alpha=0.05):
    return [L2Laplace("north", n, "primal", alpha, 3) for n in range(1, rounds + 1)]


ROUNDS = range(2, 999)
# the fewest that fit as a plan alone
WHOLE = plan(ROUNDS[bisect_left(ROUNDS, True, key=lambda n: CAP.filter(plan(n)) is None)])


@pytest.fixture
def path(tmp_path):
    with Ledger.create(tmp_path / "north.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(CAP, **STAMP)
    return tmp_path / "north.sqlite"


def said(path):
    with Ledger.open(path, read_only=True) as ledger:
        return LedgerSummary.of(ledger)


def accuracies(path):
    with Ledger.open(path, read_only=True) as ledger:
        return released_accuracies(ledger)


def test_a_fixed_plan_takes_the_whole_cap_from_its_reservation_on(path):
    with Ledger.open(path) as ledger:
        assert ledger.reserve("a", WHOLE, dataset="rows", **STAMP) == "plan"
        before = read_budget(path, "a")
        ledger.spend("a", 1, WHOLE[:1], b"", **STAMP)
    room = before.room
    assert (room.share(room.spent), room.share(room.counted), before.releases, before.planned) == (
        0.0,
        1.0,
        0,
        len(WHOLE),
    )
    room = read_budget(path, "a").room
    assert (room.share(room.spent), room.left, room.left_words) == (
        1.0,
        0.0,
        "nothing left: one plan took the whole cap",
    )
    assert room.counted == total(WHOLE, CAP.delta).epsilon
    assert said(path).to_json()["cap"]["taken_by"] == "a"


def test_a_fixed_plan_that_was_given_up_takes_nothing(path):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        ledger.close_run("a", "stopped", **STAMP)
    assert said(path).taker is None
    assert read_budget(path, "a").room.left == 1.0


def test_a_larger_cap_is_not_taken_by_the_plan_that_took_the_smaller_one(path):
    larger = Cap.of(8.0, 1e-5)
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        for event in WHOLE:
            ledger.spend("a", event.round, [event], b"", **STAMP)
        ledger.close_run("a", "finished", **STAMP)
        ledger.set_cap(larger, **STAMP)
        ledger.reserve("b", plan(1), dataset="rows", **STAMP)  # the rules let another run in
    found = read_budget(path, "b")
    assert found.room.measure != "plan"
    assert 0 < found.room.spent < found.room.counted < found.room.limit
    assert said(path).to_json()["cap"]["taken_by"] is None


def test_a_run_may_be_called_evaluation(path):
    accuracy = L2Laplace("north", 0, "evaluation", 0.1, 1)
    with Ledger.open(path) as ledger:
        ledger.reserve("evaluation 1", plan(1), dataset="rows", **STAMP)
        ledger.spend("evaluation 1", 1, plan(1), b"\xff a vector", **STAMP)
        ledger.reserve("evaluation 2", [accuracy], dataset="rows", **STAMP)
        ledger.spend("evaluation 2", 0, [accuracy], json.dumps(0.75).encode(), **STAMP)
    assert accuracies(path) == ({"at": STAMP["at"], "alpha": 0.1, "accuracy": 0.75},)


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
    assert read_budget(path, "run 0").lost == said(path).lost == said(path).to_json()["cap"]["lost"]


def test_a_fixed_plan_that_has_begun_loses_what_the_odometer_says_so_far(path):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", WHOLE, dataset="rows", **STAMP)
        ledger.spend("a", 1, WHOLE[:1], b"", **STAMP)
    assert said(path).lost == pytest.approx(0.05)


def most_by_renyi():
    """Rounds of the longest plan that the Rényi filter admits."""
    fits = CAP.affordable([], plan(1))
    assert CAP.admits([], plan(fits)) == "renyi" != CAP.admits([], plan(fits + 1))
    return fits


def test_runs_that_fit_the_filter_lose_at_most_the_cap(path):
    fits = most_by_renyi()
    first, second = (
        plan(fits - 20),
        [L2Laplace("north", n, "primal", 0.05, 3) for n in range(1, 21)],
    )
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
    fits = most_by_renyi()
    assert released(path, plan(fits), then=larger) == ["renyi"]
    with Ledger.open(path) as ledger:
        release(ledger, "one more", plan(1))
    both = [*plan(fits), *plan(1)]
    assert larger.odometer(both) > larger.epsilon
    assert said(path).lost == larger.epsilon


def test_of_the_first_run_its_total_is_lost_under_whatever_cap(path):
    """Its plan was fixed before anything was released. A second release ends that."""
    larger = Cap.of(2.001, 1e-5)
    plain, moment = larger.spent(WHOLE)
    assert plain > larger.epsilon
    assert moment > larger.budget
    assert released(path, WHOLE, then=larger) == ["plan"]
    assert said(path).lost == total(WHOLE, CAP.delta).epsilon < larger.odometer(WHOLE)
    assert said(path).promised == larger.odometer(WHOLE)
    with Ledger.open(path) as ledger:
        ledger.set_cap(Cap.of(8.0, 1e-5), **STAMP)
        release(ledger, "b", plan(1))
        ledger.set_cap(larger, **STAMP)
    assert said(path).lost == larger.odometer([*WHOLE, *plan(1)])


def test_a_run_that_is_open_and_released_nothing_changes_nothing_of_what_is_lost(path):
    released(path, WHOLE, then=Cap.of(8.0, 1e-5))
    with Ledger.open(path) as ledger:
        ledger.reserve("b", plan(1), dataset="rows", **STAMP)
        ledger.set_cap(CAP, **STAMP)
        assert said(path).lost == total(WHOLE, CAP.delta).epsilon
        ledger.spend("b", 1, plan(1), b"", **STAMP)
    assert said(path).lost == CAP.odometer([*WHOLE, *plan(1)])


@pytest.mark.parametrize("rounds", [3, 30, 65])
def test_what_is_left_is_left_of_the_number_beside_it(path, rounds):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", plan(rounds), dataset="rows", **STAMP)
        ledger.spend("a", 1, plan(1), b"", **STAMP)
    room, (_, moment) = said(path).room, CAP.spent(plan(rounds))
    assert (room.measure, room.counted, room.limit) == ("renyi", moment, CAP.budget)
    assert room.left == pytest.approx(1 - moment / CAP.budget, abs=1e-3)
    assert room.left <= 1 - moment / CAP.budget
    assert read_budget(path, "a").room == room
    assert said(path).to_json()["cap"]["room"] == room.to_json()


def test_without_delta_the_sum_is_the_only_measure(tmp_path):
    with Ledger.create(tmp_path / "n.sqlite", "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(2.0, 0.0), **STAMP)
        ledger.reserve("a", plan(10), dataset="rows", **STAMP)
    room = said(tmp_path / "n.sqlite").room
    assert (room.measure, room.left, room.words) == ("sum", 0.75, "sum of alpha: 0.5 of 2")


def test_a_cap_promises_its_epsilon_while_all_that_counts_fits(path):
    assert said(path).promised == CAP.epsilon
    assert "at most 89 in 100" in said(path).promise
    released(path, plan(45), then=Cap.of(3.0, 1e-5))
    assert said(path).promised == 3.0
    assert "over all runs: at most 96 in 100" in said(path).promise


def test_a_cap_below_what_was_lost_promises_what_was_lost(path):
    lower = Cap.of(0.5, 1e-5)
    released(path, plan(45), plan(20), then=lower)
    most = lower.odometer([*plan(45), *plan(20)])
    assert said(path).promised == most > 0.5
    assert "More than that is lost already" in said(path).promise
    assert guess_words(0.5, 1e-5) not in said(path).promise
    assert guess_words(most, 1e-5) in said(path).promise


def test_a_cap_below_what_open_runs_reserved_names_them(path):
    with Ledger.open(path) as ledger:
        ledger.reserve("a", plan(45), dataset="rows", **STAMP)
        ledger.set_cap(Cap.of(0.5, 1e-5), **STAMP)
    assert "Open runs reserved more than that before (a)" in said(path).promise
    assert guess_words(0.5, 1e-5) not in said(path).promise
    with Ledger.open(path) as ledger:
        ledger.close_run("a", "stopped", **STAMP)
    assert guess_words(0.5, 1e-5) in said(path).promise


def test_a_plan_that_took_this_cap_keeps_its_promise(path):
    released(path, WHOLE)
    assert said(path).promised == CAP.epsilon
    released_again = Cap.of(2.001, 1e-5)
    with Ledger.open(path) as ledger:
        ledger.set_cap(released_again, **STAMP)
    assert said(path).promised == released_again.odometer(WHOLE) > 2.001


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
    assert [one["accuracy"] for one in accuracies(path)] == [0.75]
