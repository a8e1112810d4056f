"""Rows that are replaced, and rows that are added or removed: words, accounts, ledgers."""

import pytest

from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import total, worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import DualPerturbation, Gaussian, L2Laplace, from_json, to_json
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.statements import guarantee
from dynadp.privacy.units import Unit
from dynadp.runs.headroom import NextRun, find_headroom
from support.typed import answer, dynadp

RING = Topology.family("ring", 3).named(["a", "b", "c"])
ADDED = Unit(adjacency="add-remove")
DELTA, AT = 1e-5, "2026-03-01T12:00:00+00:00"


def planned(mechanism, unit=None, counts=(1000, 1000, 1000)):
    return plan(counts, RING, 8, epsilon=1.0, delta=DELTA, mechanism=mechanism, unit=unit)


def gaussian(mu, n=1, **more):
    return Gaussian("a", n, "gradient", mu, 8, **more)


# --------------------------------------------------------------------------------------------------
# words


def test_the_sentence_says_whether_rows_are_replaced():
    for unit, words in (
        (Unit(), "whether your row or another was in the data"),
        (ADDED, "whether your row was in the data or not"),
        (Unit(3), "whether your rows or others were in the data"),
        (Unit(3, 2, "add-remove"), "whether your rows were in the data or not"),
    ):
        assert words in guarantee(1.0, DELTA, unit=unit)
    assert "how many rows a node has is public" in Unit(2).limits
    assert "How many rows a node has stays secret" in ADDED.limits


def test_another_word_is_refused():
    with pytest.raises(DeclarationError, match="adjacency is 'swap'; expected 'replace' or"):
        Unit(adjacency="swap")


def test_events_keep_it_and_old_ones_stay_as_they_were():
    old = gaussian(0.5)
    assert "adjacency" not in to_json(old)
    (new,) = ADDED.declared([old])
    assert to_json(new)["adjacency"] == "add-remove"
    assert from_json(to_json(new)) == new
    assert Unit.of([new, new]) == ADDED
    assert Unit.of([]) == Unit()


# --------------------------------------------------------------------------------------------------
# plans


@pytest.mark.parametrize("mechanism", ["sum", Sealed(honest=2), "primal", "dual"], ids=str)
def test_the_same_total_needs_half_the_noise(mechanism):
    before, after = planned(mechanism), planned(mechanism, ADDED)
    assert after.total.epsilon <= 1.0
    assert after.total.unit == ADDED
    assert {event.adjacency for event in after.events} == {"add-remove"}
    assert worst_node(after.events, DELTA).epsilon == after.total.epsilon
    if mechanism == "dual":  # the determinant costs the same, so that less than half is saved
        scale = [made.release_plan.noises[0].inner[0, 0] for made in (before, after)]
        assert 1.5 < scale[1] / scale[0] < 2.0
        return
    assert after.alpha == pytest.approx(before.alpha, rel=1e-9)
    if mechanism == "primal":  # over the same penalty
        ratio = [
            made.release_plan.noises[0].delta[0, 0] * made.settings.eta for made in (before, after)
        ]
        assert ratio[0] == pytest.approx(2 * ratio[1], rel=1e-6)
    else:
        h = [made.release_plan.noises[-1] for made in (before, after)]
        noise = [float((one.parameter * one.step)[0, 0]) for one in h]
        assert noise[0] == pytest.approx(2 * noise[1], rel=1e-9)


def test_half_the_noise_is_worth_twice_the_rows():
    """The planner holds the point as it does for twice as many rows that are replaced."""
    twice = planned("sum", counts=(2000,) * 3)
    added = planned("sum", ADDED)
    assert added.steps.pull == pytest.approx(twice.steps.pull)
    assert added.mechanism == twice.mechanism
    assert added.on(added.bound).steps.pull == added.steps.pull


# --------------------------------------------------------------------------------------------------
# accounts of both kinds


def test_in_one_account_added_rows_count_twice_beside_replaced_ones():
    (added,) = ADDED.declared([gaussian(0.3)])
    replaced = gaussian(0.4, 2)
    both = total([added, replaced], DELTA)
    assert both.unit == Unit()
    assert both.epsilon == total([gaussian(0.6), replaced], DELTA).epsilon
    assert both.epsilon > total([gaussian(0.3), replaced], DELTA).epsilon
    assert joint_mu([added, replaced]) == pytest.approx((0.6**2 + 0.4**2) ** 0.5)
    assert total([added, added], DELTA).unit == ADDED


@pytest.mark.parametrize(
    ("one", "twice"),
    [
        (L2Laplace("a", 1, "primal", 0.2, 5), L2Laplace("a", 1, "primal", 0.4, 5)),
        (L2Laplace("a", 1, "slack", 0.2, 5), L2Laplace("a", 1, "slack", 0.2, 5)),
        (DualPerturbation("a", 1, 0.1, 0.2, 5), DualPerturbation("a", 1, 0.2, 0.4, 5)),
    ],
)
def test_every_kind_counts_twice_but_for_the_solver(one, twice):
    (added,) = ADDED.declared([one])
    other = L2Laplace("a", 2, "primal", 0.1, 5)
    for delta in (0.0, DELTA):
        assert total([added, other], delta).epsilon == total([twice, other], delta).epsilon


def test_a_cap_counts_both_kinds_together():
    cap = Cap.of(1.0, DELTA)
    added = [ADDED.declared([gaussian(0.05, n)])[0] for n in range(1, 5)]
    replaced = [gaussian(0.05, n) for n in range(5, 9)]
    assert cap.spent(added)[1] == cap.spent([gaussian(0.05, n) for n in range(1, 5)])[1]
    mixed = cap.spent(added + replaced)[1]
    assert mixed == pytest.approx(cap.spent([gaussian(0.05)])[1] * (4 * 4 + 4))
    fits = cap.affordable(added, replaced[:1])
    assert cap.filter(added + replaced[:1] * fits)
    assert not cap.filter(added + replaced[:1] * (fits + 1))


def test_a_ledger_with_both_is_about_rows_that_are_replaced(tmp_path):
    path = tmp_path / "a.sqlite"
    with Ledger.create(path, "a", who="me", at=AT) as ledger:
        ledger.set_cap(Cap.of(2.0, DELTA), who="me", at=AT)
        for run, unit in (("first", ADDED), ("second", Unit())):
            (event,) = unit.declared([gaussian(0.1)])
            ledger.reserve(run, [event], dataset="d", who="me", at=AT)
            ledger.spend(run, 1, [event], b"v", who="me", at=AT)
            summary = LedgerSummary.of(ledger)
            assert summary.unit == unit
            assert unit.question in summary.promise
        assert summary.cap.spent(summary.counted)[1] == pytest.approx(
            5 * summary.cap.spent([gaussian(0.1)])[1]
        )
        left = {
            kind: find_headroom(summary, NextRun(unit=Unit(adjacency=kind))).epsilon
            for kind in ("replace", "add-remove")
        }
        assert left["add-remove"] < left["replace"]
    shown = dynadp("ledger", "show", path)
    assert shown.exit_code == 0, shown.output


def test_account_and_calibrate_say_what_a_loss_is_about():
    line = "account --mechanism gaussian --mu 0.1 --rounds 40 --delta 1e-5"
    plain, added = answer(f"{line} --json"), answer(f"{line} --adjacency add-remove --json")
    assert plain["epsilon"] == added["epsilon"]
    assert (plain["adjacency"], added["adjacency"]) == ("replace", "add-remove")
    assert "whether your row was in the data or not" in added["words"]
    found = dynadp(
        "calibrate --mechanism primal --dimension 5 --rounds 10 --epsilon 1 --delta 1e-5 "
        "--adjacency add-remove --rows-per-person 2"
    )
    assert "whether your rows were in the data or not" in found.output
