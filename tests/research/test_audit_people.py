"""A person with several rows, at several nodes: what is released of all her rows together never
loses more than is claimed for her, comes near to it, and mistakes in m are caught.
"""

import json
from dataclasses import dataclass, replace
from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

from dynadp import Plan
from dynadp.cli import main
from dynadp.consensus.sums import Steps
from dynadp.consensus.topology import Topology
from dynadp.data import people
from dynadp.data.columns import Numeric
from dynadp.data.loading import load_shard
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.data.survey import FeatureSums
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import centring
from dynadp.mechanisms.base import Sealing
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning import planner, sum_planner
from dynadp.planning.sums import gaussian_mu
from dynadp.privacy import accountant
from dynadp.privacy.accountant import for_person, total
from dynadp.privacy.gaussian import gaussian_epsilon, joint_mu
from dynadp.privacy.inverse import calibrate
from dynadp.privacy.units import Unit
from dynadp.problem.losses import HuberHinge, Logistic, Loss
from dynadp.research.audit import (
    AuditedNode,
    AuditedSealed,
    AuditedSums,
    Stream,
    audit,
    audit_mechanism,
    audited_node,
    lower_mu,
    random_cases,
    worst_cases,
    worst_sum_cases,
)
from support.audits import GAUSSIAN, LAPLACE, LOSSES, SEALED, M, constructed, searched

# --------------------------------------------------------------------------------------------------
# the pairs


def test_every_loss_of_the_package_is_looked_at():
    """Of two values; those of classes and of numbers have cases of their own."""
    named = Loss.registry.values()
    own = {kind for kind in named if kind.__module__.startswith("dynadp") and kind.kind == "signs"}
    assert own == {type(loss) for loss in LOSSES}


@pytest.mark.parametrize("m", M)
def test_pairs_differ_in_m_rows_of_one_person(m):
    rng = np.random.default_rng(0)
    for case in (
        *worst_cases(2, 1.0, m),
        *worst_sum_cases(2, m),
        *random_cases(rng, 2, 1.0, 6, m),
    ):
        assert case.rows_per_person == m
        assert np.count_nonzero((case.rows != case.other).any(axis=1)) == m


def test_more_rows_than_are_declared_are_refused():
    with pytest.raises(DeclarationError, match=r"differ in 3 rows; .* differ in 2 at most"):
        replace(worst_cases(1, 1.0, 3)[0], rows_per_person=2)
    for wrong in (0, 1.5):
        with pytest.raises(DeclarationError, match="rows_per_person is"):
            worst_sum_cases(1, wrong)
    with pytest.raises(DeclarationError, match="silos_per_person is 0"):
        audit_mechanism(Sum(), 1.0, silos_per_person=0)


# --------------------------------------------------------------------------------------------------
# exactly, without a chance


def anywhere(node, count, seed):
    """Points and messages that nobody drew: near and far, in any direction, in every round."""
    rng = np.random.default_rng(seed)
    shape = count, len(node.releases.noises), node.width
    scale = 10 ** rng.uniform(-3, 2, (count, 1, 1))
    return rng.normal(size=shape) * scale, rng.normal(size=shape) * scale


@pytest.mark.diagonal
@pytest.mark.parametrize("m", M)
@pytest.mark.parametrize("mechanism", LAPLACE, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_no_density_ratio_passes_m_times_that_of_a_row(mechanism, dimension, m):
    """One round and whole runs, at draws and at points anywhere."""
    for alpha, rounds in ((0.2, 1), (1.0, 3)):
        for case in searched(mechanism, dimension, alpha, m):
            node = AuditedNode(case, mechanism, alpha, rounds)
            most = alpha * rounds + (getattr(mechanism, "final_release", None) or 0)
            assert node.log_ratio_bound <= m * most * (1 + 1e-9)
            drawn = node.transcript(case.rows, 40, Stream(dimension))
            for points in (drawn, anywhere(node, 40, dimension)):
                ratio = np.abs(node.log_ratio(*points)).max()
                assert ratio <= node.log_ratio_bound * (1 + 1e-9)


@pytest.mark.diagonal
@pytest.mark.parametrize("m", M)
@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_no_shift_passes_m_times_that_of_a_row(mechanism, dimension, m):
    for mu, rounds in ((0.2, 1), (1.0, 3)):
        for case in searched(mechanism, dimension, mu, m):
            node = audited_node(case, mechanism, mu, rounds)
            claimed = joint_mu(node.events, m)
            spares = getattr(mechanism, "spares", 0)
            assert claimed == pytest.approx(m * mu * sqrt(rounds + spares))
            points = node.transcript(case.other, 10, Stream(dimension))
            assert node.compare(*points).shift.max() <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [*LAPLACE[:2], Dual(), *GAUSSIAN], ids=str)
def test_some_pair_comes_within_two_percent(mechanism):
    """The bound for m rows is not m times too large."""
    m, d, alpha, largest = 5, 2, 0.2, 0.0
    for case in constructed(mechanism, d, alpha, m):
        node = audited_node(case, mechanism, alpha)
        found = node.compare(*node.transcript(case.rows, 1000, Stream(3)))
        largest = max(largest, np.abs(found.ratio).max() / node.log_ratio_bound)
        if mechanism in GAUSSIAN:
            largest = max(largest, found.shift.max() / joint_mu(node.events, m))
    assert 0.98 < largest <= 1 + 1e-9


@pytest.mark.parametrize("mechanism", [*LAPLACE, *GAUSSIAN], ids=str)
def test_the_exact_ratio_of_m_rows_is_a_ratio_of_densities(mechanism):
    """E p_D/p_D' = 1 under D': with another shift, Jacobian or sum of parts it would not be."""
    rows = np.array([[0.6, 0.8], [0.0, 1.0], [-0.3, 0.2], [0.5, -0.5]])
    other = np.array([[-1.0, 0.0], [0.3, -0.9], [0.7, 0.1], [0.5, -0.5]])
    sums = mechanism.algorithm == "sum"
    case = replace(
        constructed(mechanism, 2, 1.0, 3)[0],
        rows=rows,
        other=other,
        loss=Logistic() if sums else HuberHinge(0.2, 0.1),
        heard=np.array([0.5, -0.2]),
        eta=0.05 if sums else 1.0,
    )
    node, n = audited_node(case, mechanism, 0.1, 2), 5000
    for mine, sign in ((rows, -1), (other, 1)):
        ratio = np.exp(sign * node.log_ratio(*node.transcript(mine, n, Stream(8))))
        assert abs(ratio.mean() - 1) < 5 * ratio.std() / sqrt(n)
        assert ratio.std() > 0.01


# --------------------------------------------------------------------------------------------------
# from draws


@pytest.mark.parametrize(
    ("mechanism", "d"),
    [(Primal(), 1), (Dual(), 1), (Primal(noise="gaussian"), 2), (Sum(), 2), (SEALED, 1)],
    ids=str,
)
@pytest.mark.parametrize("m", [2, 5])
def test_draws_show_most_of_what_is_claimed_for_a_person(mechanism, d, m):
    cases = constructed(mechanism, d, 1 / m, m)[:1]
    found = audit_mechanism(mechanism, 1 / m, d, draws=20_000, source=Stream(1), cases=cases)
    assert (found.setting["rows_per_person"], found.setting["silos_per_person"]) == (m, 1)
    assert not found.refuted
    if found.mu_claimed is None:
        assert found.alpha_claimed == pytest.approx(1.0, rel=0.01)
        assert 0.8 < found.epsilon_lower <= found.alpha_claimed
    else:
        assert found.mu_claimed == pytest.approx(1.0)
        assert 0.88 < found.mu_lower <= 1.0
        assert 0.98 < found.largest_shift <= 1.0


def test_a_claim_for_fewer_rows_is_refuted():
    """The audit can fail: five rows of a person, and a claim for four."""
    five = worst_sum_cases(1, 5)[0]
    node = AuditedSums(five, Sum(), 0.4)
    sent = [node.release(rows, 20_000, Stream(2)) for rows in (five.rows, five.other)]
    assert lower_mu(*sent).mu > joint_mu(node.events, 4)
    assert node.compare(*node.transcript(five.rows, 10, Stream(2))).shift.max() > 4 * 0.4


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
def test_a_whole_run_stays_below_the_accountants_total(mechanism):
    case = worst_cases(1, 0.2, 3)[0]
    found = audit_mechanism(
        mechanism, 0.2, 1, 4, delta=1e-3, draws=8_000, source=Stream(1), cases=(case,)
    )
    events = AuditedNode(replace(case), mechanism, 0.2, 4).releases.events(seeded=False)
    assert found.alpha_claimed == total(events, 1e-3, rows=3).epsilon
    assert 0.6 < found.epsilon_lower / found.alpha_claimed <= 1.0
    assert not found.refuted


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Primal(), Dual(), Sum(), SEALED], ids=str)
def test_a_thousand_audits_of_what_is_sound_raise_no_more_alarms_than_they_may(mechanism):
    cases, source = constructed(mechanism, 1, 0.2, 5)[:1], Stream(11)
    found = [
        audit_mechanism(mechanism, 0.2, draws=1000, source=source, cases=cases) for _ in range(1000)
    ]
    assert sum(one.refuted for one in found) <= 7  # 1 is expected at worst; more: below 1e-6
    lower = [one.mu_lower or one.epsilon_lower for one in found]
    print(f"{mechanism.name}: largest bound {max(lower):.3f}")
    assert np.median(lower) > 0.3


# --------------------------------------------------------------------------------------------------
# several nodes


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("mechanism", "grows"), [(Sum(), sqrt(2)), (SEALED, 2.0)], ids=str)
def test_a_person_at_two_nodes(mechanism, grows, m):
    """In the open each node's noise hides her, mu sqrt(2); one noise in a sealed sum, 2 mu."""
    mu = 1 / (m * grows)
    found = audit_mechanism(
        mechanism,
        mu,
        draws=20_000,
        source=Stream(1),
        cases=worst_sum_cases(1, m)[:1],
        silos_per_person=2,
    )
    assert found.mu_claimed == pytest.approx(m * mu * grows)
    assert 0.88 * found.mu_claimed < found.mu_lower <= found.mu_claimed
    assert found.largest_shift == pytest.approx(found.mu_claimed, rel=1e-4)
    assert not found.refuted


@pytest.mark.parametrize("mechanism", [Sum(), SEALED, Primal(), Dual()], ids=str)
def test_the_claim_is_that_of_her_joint_account(mechanism):
    case = constructed(mechanism, 1, 0.3, 3)[0]
    node = audited_node(case, mechanism, 0.3, 2, silos=2)
    copies = [replace(event, node=name) for name in "ab" for event in node.events]
    both = total(node.events, 1e-3), for_person(copies, ["a", "b"], 1e-3, rows=3)
    assert both[0].epsilon == pytest.approx(both[1].epsilon, rel=1e-9)
    assert (both[0].rows, both[0].silos) == (3, 2)


@pytest.mark.parametrize(("mechanism", "less"), [(Sum(), 1.0), (SEALED, sqrt(2))], ids=str)
def test_an_account_that_forgets_her_second_node_is_refuted(mechanism, less):
    """As if one node's noise hid her, or as if sealed nodes had noise of their own."""
    case = worst_sum_cases(1, 2)[0]
    node = audited_node(case, mechanism, 0.5, silos=2)
    sent = [node.release(rows, 20_000, Stream(2)) for rows in (case.rows, case.other)]
    assert lower_mu(*sent).mu > less


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
def test_nodes_of_admm_compose(mechanism):
    found = audit_mechanism(
        mechanism,
        0.25,
        draws=20_000,
        source=Stream(1),
        cases=worst_cases(1, 0.25, 2)[:1],
        silos_per_person=2,
    )
    assert found.alpha_claimed == pytest.approx(1.0, rel=0.01)
    assert 0.6 < found.epsilon_lower <= 1.0
    assert found.largest_log_ratio <= found.log_ratio_bound * (1 + 1e-9)
    assert found.largest_log_ratio > 0.98 * found.log_ratio_bound


def test_two_nodes_of_one_run_in_the_open():
    """Everything that three nodes send in two rounds, of which she has three rows at two."""
    m, mu, row = 3, 0.2, np.ones((3, 1))
    quiet, made = Shard.of(np.zeros((3, 1)), np.ones(3)), []

    def release(sign, count):
        sent = []
        mine = Shard.of(row, sign * np.ones(m))
        run = simulate(
            [mine, mine, quiet],
            Topology.family("complete", 3),
            Plan.of(
                loss=HuberHinge(10.0, 30.0), rounds=2, mechanism=Sum(False), schedule=mu, pull=20.0
            ),
            replicas=count,
            draws=Stream(5),
            on_round=lambda p: sent.append(p.messages.transpose(1, 0, 2).reshape(count, -1)),
        )
        made.extend(run.events())
        return np.hstack(sent)

    lower = lower_mu(release(1, 20_000), release(-1, 20_000)).mu
    nodes = sorted({event.node for event in made})[:2]
    hers = [event for event in made[: len(made) // 2] if event.node in nodes]
    claimed = joint_mu(hers, m)
    assert claimed == pytest.approx(m * mu * sqrt(2) * sqrt(2))
    assert 0.88 * claimed < lower <= claimed
    account = for_person(made[: len(made) // 2], nodes, 1e-3, rows=m).epsilon
    assert account == pytest.approx(gaussian_epsilon(claimed, 1e-3), rel=1e-3)


def test_none_of_her_nodes_colludes():
    case = worst_sum_cases(1)[0]
    node = AuditedSealed(case, SEALED, 1.0, 1, 5, 3, silos=2)
    assert not {*node.hers} & {*node.coalition}
    assert joint_mu(node.events, 1, 2) == pytest.approx(2 * sqrt(3 / 2))
    with pytest.raises(DeclarationError, match="from 0 to 3, all but the 2 nodes of a person"):
        AuditedSealed(case, SEALED, 1.0, 1, 5, 4, silos=2)
    with pytest.raises(DeclarationError, match="silos_per_person is 6 and there are 5 nodes"):
        AuditedSealed(case, SEALED, 1.0, 1, 5, silos=6)


def test_a_coalition_between_her_nodes_sees_one_of_them_alone():
    """Each node shares masks with two others; both of hers that are next to the target collude."""
    case, mechanism = worst_sum_cases(1)[0], Sealed(honest=6, spares=0, partners=2)
    node = AuditedSealed(case, mechanism, 1.0, 1, 7, 2, silos=2)
    assert (node.left, node.parts, len(node.hers)) == (1, 1, 2)
    found = node.compare(*node.transcript(case.rows, 10, Stream(1)))
    assert found.shift.max() == pytest.approx(sqrt(6), rel=1e-4)
    assert found.shift.max() <= joint_mu(node.events, 1, 2)


# --------------------------------------------------------------------------------------------------
# mutants: noise that forgets m


DELTA, EPSILON, PEOPLE = 1e-3, 2.0, 3


class Planned(AuditedSums):
    """A node that sends what a plan says, with the plan's noise."""

    def __init__(self, case, made):
        self.made = made
        super().__init__(case, made.mechanism, 1.0, made.rounds)

    def _releases(self, mechanism, alpha, rounds):
        self.steps = Steps(pull=20.0)
        return replace(self.made.release_plan.some(slice(0, 1)), nodes=("node",))


def planned(moment):
    return planner.plan(
        [40] * 3,
        Topology.family("complete", 3),
        2,
        epsilon=EPSILON,
        delta=DELTA,
        mechanism=Sum(moment),
        centring=False,
        unit=Unit(PEOPLE),
    )


def beyond_its_promise(made, m=PEOPLE):
    """(exactly, by draws): whether m rows lose more than the plan promised to its people."""
    made_for = [
        c for c in worst_sum_cases(2, m) if "opposite rows, sat" in c.name or "right" in c.name
    ]
    exactly = drawn = False
    for case in made_for:
        node = Planned(replace(case, rows_per_person=m), made)
        points = node.transcript(case.rows, 20, Stream(4))
        exactly |= node.compare(*points).shift.max() > gaussian_mu(EPSILON, DELTA)
        found = audit(
            lambda rows, n, node=node: node.release(rows, n, Stream(4)),
            (case.rows, case.other),
            EPSILON,
            delta=DELTA,
            draws=4000,
        )
        drawn |= found.refuted
    return exactly, drawn


@pytest.mark.parametrize("moment", [False, True])
def test_a_plan_for_people_keeps_its_promise(moment):
    made = planned(moment)
    assert beyond_its_promise(made) == (False, False)
    # and would not for one row more
    assert beyond_its_promise(made, PEOPLE + 1)[0]


@pytest.mark.parametrize("moment", [False, True])
def test_noise_for_one_row_under_a_promise_to_people(moment):
    """The account forgets m, so noise is planned for a row: the audit refutes the promise."""
    honest = accountant.counted
    with patch.object(accountant, "counted", lambda e, rows=1, silos=1: honest(e, 1, silos)):
        made = planned(moment)
        assert made.total.epsilon <= EPSILON
        assert made.total.rows == PEOPLE
    assert beyond_its_promise(made) == (True, True)


def test_a_calibration_for_one_row_is_refused():
    """The planner forgets m and the account does not: the plan's own check refuses it."""

    def per_row(events, epsilon, delta):
        return calibrate(events, epsilon, delta, rows=1)

    with patch.object(sum_planner, "calibrate", per_row):
        with pytest.raises(DeclarationError, match=r"the plan costs node .* more than the total"):
            planned(False)
        with patch.object(planner, "require_promise", lambda made: None):
            assert beyond_its_promise(planned(False)) == (True, True)


SCHEMA = Schema(
    columns=(Numeric(name="v", low=0, high=1),), label=Label(name="y", negative=0, positive=1)
)


def centre_beyond_its_events(noise, m=PEOPLE):
    """Sums of a feature of ten rows, m of them at either end of its range, against its events."""
    source, B, alpha = Stream(7), 10, 1.0 / m
    ends = SCHEMA.only_features().rows({"v": np.array([0.0, 1.0])}).toarray()
    count, losses = np.array([float(B)]), np.array([alpha])
    events = centring.private_centre(
        SCHEMA, [FeatureSums(B, B * ends[0])], ["node"], alpha, source, noise, Unit(m)
    ).events
    sums = [(B - m) * ends[0] + m * end for end in ends]
    if noise == "gaussian":
        made = centring._gaussian(SCHEMA, count, losses)
        shift = sqrt(-2 * made.log_density((sums[1] - sums[0])[None, None])[0, 0])
        return shift > joint_mu(events, m) * (1 + 1e-9), shift / joint_mu(events, m)
    zeta = centring._laplace(SCHEMA, count, losses)[0]
    loss = float(zeta[0] * np.linalg.norm(sums[1] - sums[0]) / B)
    claimed = total(events, 0.0).epsilon
    return loss > claimed * (1 + 1e-9), loss / claimed


def less_noise(noise):
    """The centring round as planned for one row of m times the loss, and charged as for m rows."""
    if noise == "gaussian":
        honest = centring._gaussian
        return patch.object(centring, "_gaussian", lambda s, B, mu: honest(s, B, PEOPLE * mu))
    honest = centring._laplace
    return patch.object(centring, "_laplace", lambda s, B, alpha: honest(s, B, PEOPLE * alpha))


@pytest.mark.parametrize("noise", ["gaussian", "l2-laplace"])
def test_a_centring_round_that_forgets_m(noise):
    beyond, share = centre_beyond_its_events(noise)
    assert not beyond
    assert share > 0.99
    with less_noise(noise):
        assert centre_beyond_its_events(noise)[0]


def test_a_sealed_centring_round_that_forgets_m():
    """All honest nodes' noise together, and the sums of features that m rows move."""
    sealing, mu, m = Sealing(5, 3, 4), 0.2, PEOPLE
    counts, mus = np.full(5, 10.0), np.full(5, mu)
    ends = SCHEMA.only_features().rows({"v": np.array([0.0, 1.0])}).toarray()
    moved = m * (ends[1] - ends[0])[None, None]
    events = centring.centring_events(
        ["node"], [mu], 1, "gaussian", seeded=False, sealing=sealing, unit=Unit(m)
    )
    claimed = joint_mu(events, m)
    for each, beyond in ((mus, False), (m * mus, True)):
        made = centring.sealed_centring(SCHEMA, counts, each, sealing).some(slice(0, 1))
        shift = sqrt(-2 * made.log_density(moved)[0, 0])
        assert (shift > claimed * (1 + 1e-9)) == beyond
        assert shift > 0.98 * claimed


@dataclass(frozen=True)
class OneDeterminant(Dual):
    """ζ = (m α' − ᾱ)/(2m): the determinant is paid for once, not for each of m rows."""

    m: int = 5

    def noise_for(self, public, alpha):
        c = super().noise_for(public, alpha)
        rest = (1 - self.slack) * alpha
        return replace(c, inner=(self.m * rest - c.abar) / (2 * self.m))


def test_a_dual_calibration_that_forgets_m_in_the_determinant():
    """Pairs where the loss begins to curve; draws alone do not get so far."""
    for case in worst_cases(1, 0.2, 5)[1:]:
        how = {"draws": 2000, "source": Stream(7), "cases": (case,)}
        sound = audit_mechanism(Dual(), 0.2, **how)
        assert not sound.refuted
        assert sound.largest_log_ratio > 0.9 * sound.log_ratio_bound
        assert audit_mechanism(OneDeterminant(), 0.2, **how).refuted_exactly


def limited(m, sign):
    """Signed rows of a table in which ann has m + 3 rows, once she is limited to m."""
    who = Schema(**{**dict(SCHEMA), "person": "id", "rows_per_person": m})
    other = [f"other {i}" for i in range(4)]
    ids = ["ann", *other[:2], *["ann"] * (m + 2), *other[2:]]
    hers = np.array([name == "ann" for name in ids])
    y = np.where(hers, (sign + 1) // 2, np.arange(len(ids)) % 2)
    shard = load_shard(who, {"v": np.where(hers, 1.0, 0.2), "y": y, "id": np.array(ids)})
    return np.asarray(shard.signed.toarray() if hasattr(shard.signed, "toarray") else shard.signed)


@pytest.mark.parametrize("m", M)
def test_a_limiter_that_lets_one_row_more_stay(m):
    """Two tables that differ in all rows of ann, and what a node sends of them."""

    def case(most):
        rows = [limited(m, sign) for sign in (1, -1)]
        base = worst_sum_cases(rows[0].shape[1], m)[0]
        return replace(base, rows=rows[0], other=rows[1], rows_per_person=most)

    def shift(chosen):
        node = AuditedSums(chosen, Sum(False), 0.2)
        return float(node.compare(*node.transcript(chosen.rows, 5, Stream(1))).shift.max())

    assert 0.99 * m * 0.2 < shift(case(m)) <= m * 0.2
    honest = people._ranks
    with patch.object(people, "_ranks", lambda codes: np.maximum(honest(codes) - 1, 0)):
        with pytest.raises(DeclarationError, match=f"differ in {m + 1} rows"):
            case(m)
        assert shift(case(m + 1)) > m * 0.2


# --------------------------------------------------------------------------------------------------
# the command line


def run(*arguments):
    return CliRunner().invoke(main, ["audit", *arguments])


def test_command_line_in_words(quick):
    flags = ("--mechanism", "sum", "--alpha", "0.2", "--rows-per-person", "5", "--seed", "1")
    result = run(*flags, "--draws", "4000")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1] == "Claimed: mu = 1 at most."
    assert "two data sets that differ in 5 rows of one person (" in lines[3]
    assert lines[4].endswith("section 12; section 14 for several rows of a person.")
    more = run(*flags, "--silos-per-person", "2", "--draws", "4000").output.splitlines()
    assert more[1] == "Claimed: mu = 1.414 at most."
    assert "differ in 5 rows of one person at each of 2 nodes (" in more[3]


def test_command_line_json(quick):
    flags = "--mechanism dual --alpha 0.2 --rows-per-person 5 --draws 2000 --seed 1 --json"
    result = run(*flags.split())
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["rows_per_person"], found["silos_per_person"]) == (5, 1)
    assert found["alpha_claimed"] == pytest.approx(0.992)


def test_command_line_mistakes():
    assert run("--mechanism", "sum", "--rows-per-person", "0").exit_code == 2
