"""Whose privacy: rows, persons with several rows, persons at several nodes."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.planning.plans import Consortium, Plan
from dynadp.privacy.accountant import by_node, for_person, total, worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import Gaussian, L2Laplace, SealedGaussian, from_json, to_json
from dynadp.privacy.gaussian import gaussian_epsilon, joint_mu
from dynadp.privacy.inverse import dual, equal_rounds, primal
from dynadp.privacy.schedules import per_node
from dynadp.privacy.units import Unit
from dynadp.runs.record import RecordedPlan

DELTA = 1e-5
RING = Topology.family("ring", 5)
MECHANISMS = [Sum(False), Sealed(False, honest=3), Primal(), Primal(noise="gaussian"), Dual()]


def planned(mechanism, unit=None, epsilon=2.0, **more):
    return plan(
        [2000] * 5,
        RING,
        11,
        epsilon=epsilon,
        delta=DELTA,
        mechanism=mechanism,
        unit=unit,
        **more,
    )


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_total_is_that_of_a_person(mechanism, m):
    """Exactly what m rows of one person lose, and no more than was asked for."""
    made = planned(mechanism, Unit(m))
    assert 0.99 * 2.0 <= made.total.epsilon <= 2.0
    assert (made.total.rows, made.total.silos) == (m, 1)
    one = by_node(made.events, DELTA, rows=1)[RING.nodes[0]]
    assert one.rows == 1
    assert one.epsilon <= made.total.epsilon / (m if m > 1 else 1) * 1.35
    if m > 1:
        # noise for one row, and the account of m: what one had to bisect for
        per_row = planned(mechanism)
        assert worst_node(per_row.events, DELTA, rows=m).epsilon > 1.5 * 2.0
        assert made.alpha == pytest.approx(per_row.alpha / m, rel=0.1)


def test_m_rows_are_one_row_of_m_times_the_loss():
    """By each kind of event: the law of m rows is the law of one with m alpha, m mu."""
    for one, many in (
        (primal(0.5, 105, 40), primal(0.1, 105, 40)),
        (dual(0.5, 105, 40, 0.01), dual(0.1, 105, 40, 0.01)),
        (equal_rounds("gaussian", mu=0.5, rounds=40), equal_rounds("gaussian", mu=0.1, rounds=40)),
    ):
        people = Unit(5).declared(many)
        assert total(people, DELTA).epsilon == pytest.approx(total(one, DELTA).epsilon, rel=1e-9)
        assert total(people, DELTA, rows=1).epsilon == total(many, DELTA).epsilon
        assert total(many, DELTA, rows=5).epsilon == total(people, DELTA).epsilon


@pytest.mark.parametrize(("sealed", "grows"), [(False, sqrt(3)), (True, 3)])
def test_a_person_at_several_nodes(sealed, grows):
    """In the open each node's noise hides her; one noise hides her in a sealed sum."""
    kind = {"honest": 4, "members": 6, "partners": 5} if sealed else {}
    made = SealedGaussian if sealed else Gaussian
    events = [made("a", n, "gradient", 0.1, 3, **kind) for n in range(4)]
    people = Unit(1, 3).declared(events)
    mu = 0.2 * grows
    assert total(people, DELTA).epsilon == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)
    copies = [replace(event, node=node) for node in "abc" for event in people]
    assert for_person(copies, list("abc"), DELTA).epsilon == pytest.approx(
        total(people, DELTA).epsilon, rel=1e-9
    )
    assert joint_mu(people, 1, 3) == pytest.approx(mu)
    assert Cap.of(1.0, DELTA).spent(people)[1] == pytest.approx(
        Cap.of(1.0, DELTA).order * mu**2 / 2
    )


def test_l2_laplace_releases_at_several_nodes_compose():
    events = [L2Laplace("a", n, "primal", 0.2, 5) for n in range(10)]
    people = Unit(2, 3).declared(events)
    copies = [replace(event, node=node) for node in "abc" for event in people]
    both = total(people, DELTA), for_person(copies, list("abc"), DELTA)
    assert both[0].epsilon == pytest.approx(both[1].epsilon, rel=1e-9)
    assert both[0].epsilon_sum == pytest.approx(both[1].epsilon_sum) == pytest.approx(2 * 3 * 2.0)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("unit", [Unit(1, 2), Unit(3, 5)], ids=str)
def test_plans_for_people_at_several_nodes(mechanism, unit):
    made = planned(mechanism, unit)
    assert 0.99 * 2.0 <= made.total.epsilon <= 2.0
    hers = for_person(made.events, RING.nodes[: unit.silos], DELTA)
    assert hers.epsilon == pytest.approx(made.total.epsilon, rel=1e-6)
    assert f"at each of up to {unit.silos} nodes" in made.total.guarantee
    assert any(unit.words in reason for reason in made.reasons)


def test_the_largest_unit_counts_in_a_mixed_account():
    """A person with three rows loses three times as much in a run that was planned for one."""
    first = [Gaussian("a", n, "gradient", 0.1, 3) for n in range(4)]
    later = Unit(3).declared([Gaussian("a", n, "gradient", 0.1, 3) for n in range(4, 8)])
    both = total([*first, *later], DELTA)
    assert both.rows == 3
    mu = sqrt(8) * 0.3
    assert both.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-9)
    plain = [L2Laplace("a", 0, "primal", 0.1, 2), L2Laplace("a", 1, "primal", 0.1, 2, rows=4)]
    assert Cap.of(1.0, DELTA).spent(plain)[0] == pytest.approx(0.8)


def test_events_of_one_row_are_written_as_before():
    event = L2Laplace("a", 1, "primal", 0.1, 3)
    assert set(to_json(event)) == {
        "kind",
        "node",
        "round",
        "purpose",
        "alpha",
        "dimension",
        "seeded",
    }
    for one in (replace(event, rows=3, silos=2), Gaussian("a", 1, "gradient", 0.1, 3, rows=2)):
        assert from_json(to_json(one)) == one
        assert to_json(one)["rows"] == one.rows


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_record_lists_the_events_with_their_unit(mechanism):
    made = planned(mechanism, Unit(3, 2), features=10)
    read = RecordedPlan.from_json(made.to_json(), RING.nodes)
    assert read.unit == Unit(3, 2)
    assert read.events(RING, dict.fromkeys(RING.nodes, 2000), 11, 10) == made.events


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_what_a_run_spends_is_what_was_planned(mechanism):
    """Unit and all, of every round, in one process and where ledgers are charged."""
    shards = census(200, seed=1, nodes=5, test_rows=0).shards(names=RING.nodes)
    made = plan(
        [shard.rows for shard in shards],
        RING,
        shards[0].dimension,
        epsilon=2.0,
        delta=DELTA,
        mechanism=mechanism,
        centring=False,
        unit=Unit(3, 2),
    )
    run = simulate(shards, RING, made, draws=SeededEntropy(0))
    planned = {replace(event, seeded=True) for event in made.events}
    assert set(run.events()) == planned
    assert {(event.rows, event.silos) for event in planned} == {(3, 2)}


def test_people_at_nodes_that_lose_differently_are_refused():
    """The worst of each alone is not the worst together, unless noise is Gaussian."""
    early = {node: [0.5] * 10 for node in RING.nodes} | {RING.nodes[0]: [4.0, *[0.1] * 9]}
    for mechanism, refused in ((Primal(), True), (Sum(), False)):
        made = Plan.of(
            mechanism=mechanism,
            schedule=per_node(early),
            rounds=10,
            delta=DELTA,
            unit=Unit(1, 2),
            **({"pull": 1.0} if mechanism == Sum() else {"rho": 0.1, "eta": 1.0}),
        ).on(Consortium(RING, (200,) * 5, 4))
        if refused:
            with pytest.raises(DeclarationError, match="nodes lose differently"):
                made.total  # noqa: B018
        else:
            worst = for_person(made.events, RING.nodes[:2], DELTA).epsilon
            assert worst <= made.total.epsilon
    with pytest.raises(DeclarationError, match="nodes lose differently"):
        plan(
            [20000, 300, 10],
            Topology.family("ring", 3),
            50,
            epsilon=0.3,
            delta=1e-2,
            mechanism=Dual(),
            unit=Unit(1, 2),
        )


def test_units_that_cannot_be():
    for wrong in (0, 2.5, "3", True):
        with pytest.raises(DeclarationError, match="rows_per_person is"):
            Unit(wrong)
        with pytest.raises(DeclarationError, match="silos_per_person is"):
            Unit(1, wrong)
    with pytest.raises(DeclarationError, match="silos_per_person is 6 and the network has 5 nodes"):
        planned(Sum(), Unit(1, 6))
    own = dict(zip(RING.nodes, [1.0, 2.0, 1.0, 1.0, 1.0], strict=True))
    with pytest.raises(DeclarationError, match="Give one epsilon for all, or silos_per_person = 1"):
        planned(Sum(), Unit(1, 2), epsilon=own)


def test_noise_grows_with_the_rows_of_a_person():
    """m times the row's, for sums, sealed sums and the centring round alike."""
    for mechanism in (Sum(False), Sealed(False, honest=3)):
        one, three = (
            planned(mechanism, Unit(m)).release_plan.noises[-1].changed(sealing=None)
            for m in (1, 3)
        )
        ratio = (three.parameter * three.step) / (one.parameter * one.step)
        np.testing.assert_allclose(ratio, 3.0, rtol=5e-3)


def test_statements_tell_a_limit_from_a_declaration():
    """By the sentence, by what it does not cover, in every event, and in a mixed account."""
    declared, limited = Unit(3), Unit(3, limited=True)
    assert declared == limited  # the same loss
    made = {}
    for unit in (declared, limited):
        events = planned("sum", unit).events
        assert {event.limited for event in events} == {unit.limited}
        assert [from_json(to_json(event)) for event in events] == list(events)
        assert Unit.of(events).limited == unit.limited
        made[unit.limited] = events
    assert "anybody with up to 3 rows at one node at most" in total(made[False], DELTA).guarantee
    assert "anybody with any number of rows at one node, of which up to 3 are used at most" in (
        total(made[True], DELTA).guarantee
    )
    assert "declared by people; no software saw to it" in declared.limits
    assert "leaves out further rows of a person, by her id" in limited.limits
    assert not Unit.of([*made[True], *made[False]]).limited
    # figures for another number of rows are about that, and nobody limited to it
    assert not total(made[True], DELTA, rows=2).limited
    assert total(made[True], DELTA, rows=3).limited
    one = Unit(1, limited=True)
    assert one.words == "any number of rows at one node, of which one is used"
    assert {event.limited for event in one.declared(made[False])} == {True}
