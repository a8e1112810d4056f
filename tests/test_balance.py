"""What a ledger says, in one reading for the command line and for reports."""

import json

import pytest

from dynadp.balance import Balance
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
