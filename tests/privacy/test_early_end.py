"""A fixed plan that ends early gives back what it did not release (maths.md 18)."""

import numpy as np
import pytest
from scipy.optimize import brentq

from dynadp.errors import BudgetRefused
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.distributions import distribution_of
from dynadp.privacy.events import Gaussian, L2Laplace
from dynadp.privacy.gaussian import gaussian_delta
from dynadp.privacy.inverse import calibrate
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.rules import LedgerState
from dynadp.privacy.ledger.summary import LedgerSummary
from support.typed import dynadp

STAMP = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
CAP = Cap.of(1.0, 1e-5)
ROUNDS = 20


def gaussians(mu, rounds=ROUNDS, **more):
    return [Gaussian("p", n, "gradient", mu, 5, **more) for n in range(1, rounds + 1)]


def laplace(alpha):
    return L2Laplace("p", 2, "primal", alpha, 1)


def planned(epsilon):
    """A plan that costs this epsilon as a whole, or a thousandth less."""
    return gaussians(calibrate(gaussians, epsilon, CAP.delta))


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "p.sqlite", "p", **STAMP) as ledger:
        ledger.set_cap(CAP, **STAMP)
        yield ledger


def begin(ledger, plan, rounds):
    """Reserve a plan, and release its first rounds, or some of them."""
    assert ledger.reserve("a", plan, dataset="rows", **STAMP) == "plan"
    for event in plan[:rounds] if isinstance(rounds, int) else [plan[k] for k in rounds]:
        ledger.spend("a", event.round, [event], b"", **STAMP)


def mixture(epsilon, first, second, switch):
    """The exact delta of one who sees the first release, and then takes the second of the plan or
    another, whichever tells more.
    """
    mu = first.mu
    loss = np.linspace(mu**2 / 2 - 9 * mu, mu**2 / 2 + 9 * mu, 4001)
    weight = np.exp(-((loss - mu**2 / 2) ** 2) / (2 * mu**2))
    ways = [distribution_of(event).hockey_stick(epsilon - loss) for event in (second, switch)]
    return float((weight / weight.sum()) @ np.maximum(*ways)), float(
        (weight / weight.sum()) @ ways[0]
    )


def test_the_filter_alone_after_a_part_of_a_fixed_plan_breaks_the_cap():
    """The naive rule: admitted by its exact total, ended early, then the filter with all of delta.
    The rule of the ledger, on the same pair, stays within the cap.
    """
    epsilon, delta = CAP.epsilon, CAP.delta
    mu = brentq(lambda m: gaussian_delta(m, epsilon) - delta * (1 - 1e-6), 0.01, 5)
    first, second = (Gaussian("p", n, "gradient", mu / 2**0.5, 1) for n in (1, 2))
    assert CAP.admits([], [first, second]) == "plan"

    def largest(cap):
        """The largest Laplace release that the filter admits after the first."""
        fits = [a for a in np.linspace(0.001, 0.5, 500) if cap.filter([first, laplace(a)])]
        return laplace(fits[-1]) if fits else laplace(1e-9)

    naive, whole = mixture(epsilon, first, second, largest(CAP))
    assert whole == pytest.approx(delta, rel=1e-4)
    assert naive > 1.05 * delta
    kept = CAP.kept_by([first, second])
    assert total([first, second], kept).epsilon <= epsilon
    split, _ = mixture(epsilon, first, second, largest(CAP.without(kept)))
    assert split <= delta


@pytest.mark.parametrize(("epsilon", "least"), [(0.95, 13), (0.97, 11), (1.0, 4)])
def test_what_a_lost_run_did_not_release_can_be_used(ledger, epsilon, least):
    plan = planned(epsilon)
    begin(ledger, plan, 3)
    with pytest.raises(BudgetRefused, match="took the whole cap"):
        ledger.reserve("b", gaussians(0.01), dataset="rows", **STAMP)
    ledger.close_run("a", "stopped", **STAMP)
    summary = LedgerSummary.of(ledger)
    run, limit = summary.runs["a"], summary.limit
    assert total(plan, run.kept).epsilon <= CAP.epsilon
    assert limit.delta <= CAP.delta - run.kept
    assert summary.counted == plan[:3] == summary.spent
    assert (summary.taker, summary.promised) == (None, CAP.epsilon)
    assert summary.room.limit == limit.budget < CAP.budget
    follows = gaussians(plan[0].mu, limit.affordable(plan[:3], plan[:1]))
    assert len(follows) >= least  # of 20 rounds, 3 of which were released
    with pytest.raises(BudgetRefused, match="do not fit"):
        ledger.reserve("c", gaussians(plan[0].mu, len(follows) + 1), dataset="rows", **STAMP)
    assert ledger.reserve("b", follows, dataset="rows", **STAMP) == "renyi"
    for event in follows:
        ledger.spend("b", event.round, [event], b"", **STAMP)
    ledger.close_run("b", "finished", **STAMP)
    assert LedgerSummary.of(ledger).lost <= CAP.epsilon
    assert ledger.verify() == []
    shown = dynadp("ledger", "show", ledger.path).output
    assert "ended without releasing all of it" in " ".join(shown.split())
    with Ledger.open(ledger.path) as again:  # replayed by the rules it was written by
        assert again.state().runs["a"].kept == run.kept
        assert again.counted() == ledger.counted()


def test_a_node_that_others_went_on_without_gets_back_what_it_did_not_release(ledger):
    """It was away in between, and its run is finished."""
    plan = planned(0.97)
    begin(ledger, plan, [0, 1, 17])
    ledger.close_run("a", "finished", **STAMP)
    run = ledger.state().runs["a"]
    assert total(plan, run.kept).epsilon <= CAP.epsilon
    assert ledger.counted() == [plan[0], plan[1], plan[17]]
    assert ledger.reserve("b", plan[:1], dataset="rows", **STAMP) == "renyi"
    with Ledger.open(ledger.path) as again:
        assert again.state().runs["a"].kept == run.kept


def test_a_run_that_released_its_plan_takes_the_whole_cap(ledger):
    begin(ledger, planned(0.97), ROUNDS)
    ledger.close_run("a", "finished", **STAMP)
    assert ledger.state().taker is ledger.state().runs["a"]


def test_spare_attempts_that_were_not_needed_are_given_back(ledger):
    plan = planned(0.97)
    spares = [Gaussian("p", event.round, "spare", event.mu, 5) for event in plan[10:]]
    begin(ledger, [*plan[:10], *spares], 10)
    ledger.close_run("a", "finished", **STAMP)
    assert ledger.state().runs["a"].kept is not None
    assert ledger.counted() == plan[:10]
    assert ledger.reserve("b", gaussians(plan[0].mu, 2), dataset="rows", **STAMP) == "renyi"


def test_a_part_that_does_not_fit_the_filter_takes_the_whole_cap(ledger):
    plan = planned(1.0)
    begin(ledger, plan, ROUNDS - 1)
    ledger.close_run("a", "stopped", **STAMP)
    state = ledger.state()
    assert state.runs["a"].kept is None
    assert state.taker is state.runs["a"]
    with pytest.raises(BudgetRefused, match="took the whole cap"):
        ledger.reserve("b", gaussians(0.01), dataset="rows", **STAMP)


def test_people_with_more_rows_are_in_no_run_that_follows(ledger):
    begin(ledger, planned(0.95), 2)
    ledger.close_run("a", "stopped", **STAMP)
    with pytest.raises(BudgetRefused, match="do not fit"):
        ledger.reserve("b", gaussians(1e-4, 1, rows=2), dataset="rows", **STAMP)
    ledger.reserve("b", gaussians(1e-4, 1), dataset="rows", **STAMP)


def test_under_a_smaller_cap_the_plan_counts_whole_and_under_a_larger_one_it_keeps_its_delta(
    ledger,
):
    plan = planned(0.97)
    begin(ledger, plan, 2)
    ledger.close_run("a", "stopped", **STAMP)
    kept = ledger.state().runs["a"].kept
    ledger.set_cap(Cap.of(0.9, 1e-5), **STAMP)
    assert ledger.counted() == plan
    ledger.set_cap(Cap.of(2.0, 1e-5), **STAMP)
    assert ledger.counted() == plan[:2]
    assert ledger.state().limit.delta == pytest.approx(1e-5 - kept, rel=1e-6)


def test_entries_of_earlier_versions_give_nothing_back(ledger):
    """They closed such a run without a word about delta: it took the whole cap, and still does."""
    plan = planned(0.95)
    begin(ledger, plan, 3)
    ledger.close_run("a", "stopped", **STAMP)
    state, previous = LedgerState(), "0" * 64
    for entry in ledger.entries():
        details = {name: value for name, value in entry.details.items() if name != "keeps"}
        entry = entry.sealed(entry.id, previous, details)
        assert state.take(entry) is None
        previous = entry.hash
    assert state.taker is state.runs["a"]
    assert state.counted == plan


def test_an_entry_that_keeps_nonsense_is_damage(ledger):
    begin(ledger, planned(0.95), 3)
    ledger.close_run("a", "stopped", **STAMP)
    *before, last = ledger.entries()
    for kept in (0.0, -1e-6, 1.0, "all", True):
        state = LedgerState()
        assert [state.take(entry) for entry in before] == [None] * len(before)
        wrong = last.sealed(last.id, last.previous, {**last.details, "keeps": kept})
        assert "cannot keep" in state.take(wrong)


def test_what_was_released_after_it_can_be_entered_late(ledger):
    """An old copy in which the first run is still open takes what followed it; nothing else."""
    begin(ledger, planned(0.97), 3)
    after = gaussians(0.01, 2)
    with pytest.raises(BudgetRefused, match="took the whole cap"):
        ledger.reserve("b", after, dataset="rows", **STAMP)
    ledger.reserve("b", after, dataset="rows", released=True, **STAMP)
    ledger.spend("b", 1, after[:1], b"v", **STAMP)
    with Ledger.open(ledger.path, read_only=True) as again:  # replayed, and not damaged
        assert [run.run for run in again.state().runs.values()] == ["a", "b"]
        assert len(again.counted()) == ROUNDS + 2
    with pytest.raises(BudgetRefused, match="took the whole cap"):
        ledger.reserve("c", after, dataset="rows", **STAMP)


def test_a_run_that_rows_ended_gives_nothing_back(ledger):
    """When a solver failed depends on rows, and the theorem needs a rule that looks at releases."""
    begin(ledger, planned(0.97), 3)
    ledger.close_run("a", "stopped", failed=True, **STAMP)
    with pytest.raises(BudgetRefused, match="took the whole cap"):
        ledger.reserve("b", gaussians(0.01, 2), dataset="rows", **STAMP)
