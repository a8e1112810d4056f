"""The audit of sealed sums: what a coalition sees is audited against what is claimed for its size,
and it runs the code that releases.
"""

import json
from dataclasses import replace
from math import sqrt

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from dynadp import Plan
from dynadp.cli import main
from dynadp.consensus.masks import MaskGraph, Masks
from dynadp.consensus.topology import Topology
from dynadp.data.columns import Numeric
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.mechanisms.base import Sealing
from dynadp.mechanisms.centring import centring_events, sealed_centring
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.accountant import total
from dynadp.privacy.collusion import if_colluding
from dynadp.privacy.gaussian import joint_mu
from dynadp.problem.losses import Logistic
from dynadp.research.audit import (
    AuditedSealed,
    Coalition,
    Keyring,
    Stream,
    audit_mechanism,
    audited_node,
    lower_mu,
    random_cases,
    worst_sum_cases,
)

THREE = Sealed(honest=3, spares=0)
MOMENT = Sealed(honest=3, spares=0, second_moment=True)
CURVED = replace(
    worst_sum_cases(2)[0],
    rows=np.array([[0.6, 0.8], [0.0, 1.0], [0.5, -0.5]]),
    other=np.array([[-1.0, 0.0], [0.0, 1.0], [0.5, -0.5]]),
    loss=Logistic(),
    heard=np.array([0.5, -0.2]),
    eta=0.05,
)
OPPOSITE = worst_sum_cases(1)[0]


# --------------------------------------------------------------------------------------------------
# the coalition


@pytest.mark.parametrize(
    ("P", "partners", "coalition", "left"),
    [
        (5, 4, (), (0, 1, 2, 3, 4)),
        (5, 4, (1,), (0, 2, 3, 4)),
        (5, 4, (2, 4), (0, 1, 3)),
        (5, 4, (1, 2, 3, 4), (0,)),
        (7, 2, (1,), (0, 2, 3, 4, 5, 6)),
        (7, 2, (1, 6), (0,)),
        (7, 2, (2, 6), (0, 1)),
        (9, 4, (1, 2, 7, 8), (0,)),
    ],
)
def test_a_coalition_is_left_with_the_sum_over_the_targets_component(P, partners, coalition, left):
    """Bit for bit, with its own keys alone; the target's own numbers only where nobody is left."""
    names = tuple(f"n{p}" for p in range(P))
    keys = Keyring.draw(names, Sealing(P, P - partners + 1, partners), SeededEntropy(1))
    k = np.random.default_rng(0).integers(-(2**50), 2**50, (P, 6))
    masks = keys.masks(SeededEntropy(1))
    who = keys.coalition(tuple(names[p] for p in coalition), "n0")
    for n in (1, 2):
        letters = masks.sealed(k.copy(), names, n, attempt=1).reshape(P, 3, 2)
        opened = who.open(letters, n, attempt=1)
        assert (opened.together.ravel() == k[list(left)].sum(axis=0)).all()
        assert (opened.alone.ravel() == k[0]).all() == (left == (0,))
        masks.follow(n, np.array([1.5]))
        who.follow(n, np.array([1.5]))
    assert who.left == tuple(names[p] for p in left)


def test_a_coalition_has_no_keys_but_its_own():
    keys = Keyring.draw(("a", "b", "c"), Sealing(3, 2, 2), SeededEntropy(1))
    who = keys.coalition(("b",), "a")
    assert all(set(masks._pairs.keys) == {"b"} for masks in who._masks)


# --------------------------------------------------------------------------------------------------
# the audited nodes


@pytest.mark.parametrize("mechanism", [THREE, MOMENT], ids=str)
def test_the_audited_nodes_send_what_the_shipped_ones_send(mechanism):
    """The same letters, to the last bit, and the same sums: nothing here is a model of the run."""
    node = AuditedSealed(replace(CURVED, heard=np.zeros(2)), mechanism, 1.0, 2)
    seen = node.transcript(CURVED.rows, 1, SeededEntropy(5))[1][0]
    letters, sums = [], []
    names, zero = node.names, Shard.of(np.zeros((3, 2)), np.ones(3))
    keys = Keyring.draw(names, node.sealing, SeededEntropy(5))
    run = simulate(
        [Shard.of(CURVED.rows, np.ones(3)), zero, zero, zero, zero],
        Topology(nx.path_graph(names)),
        Plan.of(
            loss=CURVED.loss,
            rounds=2,
            mechanism=mechanism,
            schedule=1.0,
            pull=node.steps.pull,
        ),
        draws=SeededEntropy(5),
        masks=keys.masks(SeededEntropy(5)),
        on_round=lambda p: letters.append(p.messages.copy()),
    )
    who = keys.coalition(node.coalition, names[0])
    for n, (words, noise) in enumerate(zip(letters, run.noises, strict=True), 1):
        width = words.shape[-1]
        step = float(noise.step[0, 0])
        sums.append(words.sum(axis=0, dtype=np.uint64).view(np.int64) * step)
        assert (seen[n - 1, :width] == who.open(words, n, n).together[0] * step).all()
        assert (seen[n - 1, node.part : node.part + width] == sums[-1][0]).all()
        who.follow(n, sums[-1])
    own = [e for e in run.events() if e.node == names[0]]
    assert list(own) == [replace(e, seeded=True) for e in node.events]


@pytest.mark.parametrize("colluding", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("mechanism", [Sealed(honest=3, spares=1), MOMENT], ids=str)
def test_the_exact_ratio_is_a_ratio_of_densities(mechanism, colluding):
    """E p_D/p_D' = 1 under D', and E p_D'/p_D = 1 under D, for coalitions of every size."""
    node, source, n = AuditedSealed(CURVED, mechanism, 0.2, 2, 5, colluding), Stream(8), 5000
    for rows, sign in ((CURVED.rows, -1), (CURVED.other, 1)):
        ratio = np.exp(sign * node.log_ratio(*node.transcript(rows, n, source)))
        assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(n)
        assert ratio.std() > 0.05


@pytest.mark.parametrize("mechanism", [THREE, MOMENT], ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 40])
def test_no_pair_that_is_searched_is_further_apart_than_is_claimed(mechanism, dimension):
    rng = np.random.default_rng([9, dimension])
    for mu, rounds, c in ((0.2, 1, 2), (2.0, 2, 4)):
        for case in (*worst_sum_cases(dimension), *random_cases(rng, dimension, mu, 2)):
            node = AuditedSealed(case, mechanism, mu, rounds, 5, c)
            claimed = joint_mu(node.events)
            found = node.compare(*node.transcript(case.rows, 5, Stream(dimension)))
            assert found.shift.max() <= claimed
            assert claimed == pytest.approx(mu * sqrt(rounds) * sqrt(3 / (5 - c)))


@pytest.mark.parametrize(("partners", "left"), [(4, 6), (None, 6)])
def test_the_claim_is_that_of_the_plan_unless_more_collude(partners, left):
    mechanism = Sealed(honest=6, spares=0, partners=partners)
    planned = AuditedSealed(OPPOSITE, mechanism, 1.0, 1, 9)
    assert (planned.colluding, planned.left) == (3, left)
    assert joint_mu(planned.events) == 1.0
    more = AuditedSealed(OPPOSITE, mechanism, 1.0, 1, 9, 4)
    # four of its partners know all masks of a node that has four
    assert more.left == (1 if partners else 5)
    assert joint_mu(more.events) == pytest.approx(sqrt(6 / more.left))
    assert more.events == tuple(if_colluding(planned.events, 4))


# --------------------------------------------------------------------------------------------------
# what is found


@pytest.mark.parametrize("colluding", [None, 1, 2, 3, 4])
def test_the_bound_follows_the_claim_for_every_coalition(colluding):
    """Near to it and not beyond: mu sqrt(h/(P - c'))."""
    found = audit_mechanism(
        THREE, 1.0, draws=20_000, source=Stream(1), cases=(OPPOSITE,), colluding=colluding
    )
    c = 2 if colluding is None else colluding
    assert found.mu_claimed == pytest.approx(sqrt(3 / (5 - c)))
    assert 0.88 * found.mu_claimed < found.mu_lower <= found.mu_claimed
    assert found.largest_shift == pytest.approx(found.mu_claimed, rel=1e-4)
    assert not found.refuted
    names = ("nodes", "honest", "colluding", "spares")
    assert [found.setting[name] for name in names] == [5, 3, c, 0]


@pytest.mark.parametrize("colluding", [2, 4])
def test_a_claim_for_fewer_is_refuted(colluding):
    """The audit can fail: a coalition with one member more than is claimed for."""
    node = AuditedSealed(OPPOSITE, THREE, 1.0, 1, 5, colluding)
    sent = [node.release(rows, 20_000, Stream(2)) for rows in (OPPOSITE.rows, OPPOSITE.other)]
    fewer = joint_mu(if_colluding(AuditedSealed(OPPOSITE, THREE, 1.0).events, colluding - 1))
    assert lower_mu(*sent).mu > fewer


def test_spare_attempts_are_releases_and_are_claimed():
    mechanism = Sealed(honest=3, spares=2)
    found = audit_mechanism(mechanism, 0.6, draws=20_000, source=Stream(1), cases=(OPPOSITE,))
    assert found.mu_claimed == pytest.approx(0.6 * sqrt(3))
    assert 0.9 * found.mu_claimed < found.mu_lower <= found.mu_claimed


def test_the_second_moment():
    across = next(c for c in worst_sum_cases(2) if "right angles" in c.name)
    found = audit_mechanism(
        MOMENT, 1.0, 2, draws=20_000, source=Stream(1), cases=(across,), colluding=4
    )
    assert 0.88 * sqrt(3) < found.mu_lower <= found.mu_claimed == pytest.approx(sqrt(3))
    assert found.largest_shift == pytest.approx(sqrt(3), rel=1e-4)


def test_masks_that_were_not_taken_off_are_noticed(monkeypatch):
    """A coalition with other labels is left with nothing; an audit of that would find nothing."""
    honest = Coalition.open
    wrong = lambda self, letters, n, attempt: honest(self, letters, n + 1, attempt)  # noqa: E731
    monkeypatch.setattr(Coalition, "open", wrong)
    with pytest.raises(SumSpoiled, match="there is nothing to look at"):
        audit_mechanism(THREE, 1.0, draws=200, cases=(OPPOSITE,))


def test_a_whole_run_stays_below_the_accountants_total():
    how = {"draws": 20_000, "source": Stream(1), "cases": (OPPOSITE,), "colluding": 3}
    found = audit_mechanism(THREE, 0.4, 1, 4, delta=1e-3, **how)
    node = AuditedSealed(OPPOSITE, THREE, 0.4, 4, 5, 3)
    assert found.alpha_claimed == total(node.events, 1e-3).epsilon
    assert 0.5 < found.epsilon_lower / found.alpha_claimed <= 1.0
    assert 0.85 < found.mu_lower <= found.mu_claimed == pytest.approx(0.8 * sqrt(1.5))


SCHEMA = Schema(
    columns=(Numeric(name="v", low=0, high=1),), label=Label(name="y", negative=0, positive=1)
)


@pytest.mark.parametrize("colluding", [2, 4])
def test_the_centring_sum(colluding):
    """A row at either end of its range, in the sum of features of five nodes with ten rows each."""
    P, source, n = 5, Stream(3), 20_000
    names, sealing = tuple(f"n{p}" for p in range(P)), Sealing(P, 3, P - 1)
    mu = np.ones(P)
    noise = sealed_centring(SCHEMA, np.full(P, 10.0), mu, sealing)
    ends = SCHEMA.only_features().rows({"v": np.array([0.0, 1.0])}).toarray()

    def release(row):
        keys = Keyring.draw(names, sealing, source)
        g = np.broadcast_to(10 * ends[0], (P, n, len(row))).copy()
        g[0] += row - ends[0]
        wide = noise.each(lambda v: np.broadcast_to(v, (P, n)))
        k = wide.sealable(g, source, names, 0)
        letters = keys.masks(source).sealed(k.reshape(P, -1), names, 0).reshape(k.shape)
        return keys.coalition(names[P - colluding :], names[0]).open(letters, 0).together

    events = centring_events(names[:1], [1.0], 1, "gaussian", seeded=False, sealing=sealing)
    claimed = joint_mu(if_colluding(events, colluding))
    assert claimed == pytest.approx(sqrt(3 / (P - colluding)))
    # a feature has one number here, and its ends are as far apart as its diameter
    assert 0.88 * claimed < lower_mu(*map(release, ends)).mu <= claimed


@pytest.mark.slow
@pytest.mark.parametrize("colluding", [2, 4])
def test_a_thousand_audits_of_what_is_sound_raise_no_more_alarms_than_they_may(colluding):
    how = {"draws": 1000, "source": Stream(10 + colluding), "cases": (OPPOSITE,)}
    found = [audit_mechanism(THREE, 1.0, **how, colluding=colluding) for _ in range(1000)]
    alarms = sum(one.refuted for one in found)
    largest = max(one.mu_lower / one.mu_claimed for one in found)
    print(f"{alarms} alarms, largest {largest:.3f} of the claim")
    assert alarms <= stats.binom.ppf(0.999, 1000, 0.001)
    assert np.median([one.mu_lower for one in found]) > 0.5


# --------------------------------------------------------------------------------------------------
# the command line


def run(*arguments):
    return CliRunner().invoke(main, ["audit", "--mechanism", *arguments])


def test_command_line_in_words(quick):
    flags = ["--nodes", "4", "--honest", "2", "--draws", "2000", "--seed", "1"]
    result = run("sealed", *flags, "--colluding", "2", "--colluding", "3", "--spares", "1")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 11
    who = "Sealed sums of 4 nodes (2 declared honest, {} colluding, spare attempts: 1)"
    for at, c, mu in ((0, 2, "1.414"), (6, 3, "2")):
        where = "in dimension 1, one round: consistent with the claim."
        assert lines[at] == f"{who.format(c)} {where}"
        assert lines[at + 1] == f"Claimed: mu = {mu} at most."
        assert lines[at + 4].endswith("sections 12 and 13.")


def test_command_line_json(quick):
    flags = ["--honest", "3", "--draws", "2000", "--seed", "1", "--json"]
    one = json.loads(run("sealed", *flags, "--noise", "gaussian").output)
    assert (one["mu_claimed"], one["colluding"], one["spares"]) == (1.0, 2, 0)
    several = json.loads(run("sealed", *flags, "--colluding", "1", "--colluding", "4").output)
    assert [each["colluding"] for each in several["audits"]] == [1, 4]
    assert all(each["verdict"] == "consistent with the claim" for each in several["audits"])


class Halved(Sealed):
    """Half of the noise."""

    def plan(self, public, alpha):
        return tuple(
            noise.changed(parameter=noise.parameter / 2) for noise in super().plan(public, alpha)
        )


def test_a_refuted_claim_exits_with_1(quick, monkeypatch):
    from dynadp.mechanisms.base import Mechanism

    monkeypatch.setitem(Mechanism.registry, "sealed", Halved)
    flags = ["--honest", "2", "--draws", "2000", "--seed", "3"]
    result = run("sealed", *flags, "--colluding", "3", "--colluding", "4")
    assert result.exit_code == 1
    assert result.output.count("claim refuted") == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["sealed"], "declare how many of the 5"),
        (["sealed", "--honest", "5"], "honest is 5 of 5 nodes"),
        (["sealed", "--honest", "3", "--colluding", "5"], "colluding is 5 of 5 nodes"),
        (["sum", "--nodes", "3"], "leave out nodes and colluding"),
        (["primal", "--colluding", "1"], "leave out nodes and colluding"),
        (["sum", "--honest", "3"], "no parameter honest"),
        (["dual", "--spares", "1"], "no parameter spares"),
    ],
)
def test_command_line_mistakes(flags, words):
    result = run(*flags)
    assert result.exit_code == 2
    assert words in result.output


def test_nodes_are_those_of_the_mechanism_where_it_knows_them():
    assert len(AuditedSealed(OPPOSITE, THREE.among(7), 1.0).names) == 7
    assert len(AuditedSealed(OPPOSITE, THREE, 1.0).names) == 5
    with pytest.raises(DeclarationError, match="honest is 3 and colluding is 2 of 7 nodes"):
        AuditedSealed(OPPOSITE, THREE.among(5), 1.0, nodes=7)
    with pytest.raises(DeclarationError, match="nobody has to be honest"):
        audited_node(OPPOSITE, Sum(), 1.0, nodes=3)


def test_masks_of_one_part_of_a_graph_are_those_of_the_graph():
    """What the coalition takes off is what the nodes put on: the same labels."""
    names, sealing = ("a", "b", "c"), Sealing(3, 2, 2)
    keys = Keyring.draw(names, sealing, SeededEntropy(4))
    who, masks = keys.coalition(("b", "c"), "a"), keys.masks(SeededEntropy(4))
    assert who._masks[0].graph.hash == MaskGraph(names, sealing).hash
    assert isinstance(who._masks[0], Masks)
    letters = masks.sealed(np.arange(6).reshape(3, 2), names, 1)
    assert (who.open(letters[:, None], 1).alone == [[0, 1]]).all()
