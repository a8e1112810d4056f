"""The audit: its bounds are as sure as they say, it comes near to true losses, and it passes what
is sound.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from dynadp import Plan
from dynadp.cli import main
from dynadp.consensus.topology import Topology
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Mechanism, NoProtection
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal, PrimalNoise
from dynadp.privacy.accountant import total
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.research.audit import (
    AuditedNode,
    Bound,
    Stream,
    audit,
    audit_mechanism,
    lower_bound,
    random_cases,
    worst_cases,
)

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
MECHANISMS = [
    Primal(),
    Primal(augment="iterate"),
    Primal(augment="iterate", final_release=0.5),
    Dual(),
    Dual(split="paper"),
]
SURE = 0.999
FALSE_ALARMS = int(
    stats.binom.ppf(0.999, 1000, 1 - SURE)
)  # 5 of 1,000, where 1 is expected at worst


# --------------------------------------------------------------------------------------------------
# the bound


def test_the_bound_is_as_sure_as_it_says_and_a_naive_one_is_not():
    """Laplace noise, epsilon = 1, attained by every threshold beyond both centres: 1,000 audits."""
    rng = np.random.default_rng(1)
    alarms = naive = 0
    for x, y in rng.laplace(size=(1000, 2, 1000)) + np.array([[0.5], [-0.5]]):
        alarms += lower_bound(x, y, confidence=SURE).epsilon > 1
        threshold = np.sort(np.concatenate([x, y]))
        above = [len(s) - np.searchsorted(np.sort(s), threshold) for s in (x, y)]
        naive += (
            np.log((above[0] + 1) / (above[1] + 1)).max() > 1
        )  # the best threshold on the very draws that are counted
    assert alarms <= FALSE_ALARMS
    assert naive > 500


def test_a_bound_of_half_the_confidence_fails_as_often_as_it_may():
    """The limits are not so loose that they could not fail: at 50% confidence, false alarms do
    happen.
    """
    rng = np.random.default_rng(1)
    draws = rng.laplace(size=(300, 2, 2000)) + np.array([[0.5], [-0.5]])
    alarms = sum(lower_bound(x, y, confidence=0.5).epsilon > 1 for x, y in draws)
    assert 15 < alarms < 150


def test_it_comes_near_the_truth_with_many_draws():
    rng = np.random.default_rng(2)
    x, y = rng.laplace(size=(2, 400_000)) + np.array([[0.5], [-0.5]])
    assert 0.95 < lower_bound(x, y).epsilon <= 1


def test_both_directions_and_both_tails_are_tried():
    """Of two binary outputs, one is rare under D' alone: ln(0.1/0.001) one way, ln(0.999/0.9) the
    other.
    """
    rng = np.random.default_rng(3)
    often, seldom = (rng.random(20_000) < p for p in (0.1, 0.001))
    for sign in (1.0, -1.0):
        there, back = (
            lower_bound(sign * often, sign * seldom),
            lower_bound(sign * seldom, sign * often),
        )
        assert 3 < there.epsilon <= np.log(100)
        assert 3 < back.epsilon <= np.log(100)
        assert (there.direction, back.direction) == ("D against D'", "D' against D")


def test_delta_is_taken_off():
    """A release that tells everything with probability 0.05 and nothing else: (0, 0.05)-private,
    and not (epsilon, 0).
    """
    rng = np.random.default_rng(4)
    x, y = np.zeros((2, 20_000))
    x[rng.random(20_000) < 0.05] = 1.0
    assert lower_bound(x, y).epsilon > 3
    assert lower_bound(x, y, delta=0.05).epsilon == 0
    assert lower_bound(x, y, delta=0.02).epsilon > 2


def test_equal_laws_give_nothing():
    x, y = np.random.default_rng(5).normal(size=(2, 5000, 3))
    assert lower_bound(x, y).epsilon < 0.05
    assert lower_bound(np.ones(200), np.ones(200)).epsilon == 0


def rotated(rng, n, width, shift):
    """Much noise along (1, 1), little along (1, -1), and a shift there."""
    along, across = width * rng.normal(size=n), rng.normal(size=n) + shift
    return np.column_stack([along + across, along - across])


def peaked(rng, n):
    direction = rng.normal(size=(n, 3))
    return (
        direction
        / np.linalg.norm(direction, axis=1, keepdims=True)
        * rng.standard_exponential((n, 1))
    )


@pytest.mark.parametrize(
    ("make", "statistics"),
    [
        (
            lambda rng: (rotated(rng, 9000, 30, 1), rotated(rng, 9000, 30, -1)),
            {"linear", "quadratic"},
        ),
        (lambda rng: (rotated(rng, 9000, 1, 0), rotated(rng, 9000, 3, 0) / 2), {"quadratic"}),
        (lambda rng: (peaked(rng, 9000), peaked(rng, 9000) + 0.5), {"near D", "near D'"}),
    ],
    ids=["shift", "scale", "peak"],
)
def test_statistics_are_learnt(make, statistics):
    bound = lower_bound(*make(np.random.default_rng(6)))
    assert bound.epsilon > 1
    assert bound.statistic.split(" at ")[0] in statistics


def test_a_bound_tells_what_it_counted():
    x, y = np.arange(400.0) % 2, np.zeros(400)
    bound = lower_bound(x, y, confidence=0.95)
    assert isinstance(bound, Bound)
    assert (bound.hits, bound.misses, bound.draws) == (100, 0, 400)
    low, high = (
        stats.beta.ppf(0.025, 100, 101),
        stats.beta.ppf(0.975, 1, 200),
    )  # Clopper and Pearson
    assert bound.epsilon == pytest.approx(np.log(low / high))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: lower_bound(np.ones(50), np.ones(500)), r"shape \(50,\); expected at least 100"),
        (lambda: lower_bound(np.ones((200, 2)), np.ones((200, 3))), "2 and 3 numbers"),
        (lambda: lower_bound(np.full(200, np.nan), np.ones(200)), "NaN or infinite"),
        (
            lambda: lower_bound(np.ones(200), np.ones(200), delta=1.0),
            r"delta is 1.0; expected a number in \[0, 1\)",
        ),
        (
            lambda: lower_bound(np.ones(200), np.ones(200), confidence=0.0),
            r"confidence is 0.0; expected a number in \(0, 1\)",
        ),
        (lambda: audit(lambda data, n: np.ones(n), (0, 1), -1.0), "the claimed loss is -1.0"),
        (lambda: audit(lambda data, n: np.ones(n), (0, 1), 1.0, draws=10), "draws is 10"),
        (lambda: audit(lambda data, n: np.ones(n), {}, 1.0), "no pair of data sets"),
        (lambda: audit_mechanism(Primal(), 1.0, cases=()), "no pair of data sets"),
        (lambda: audit_mechanism(Primal(), 1.0, 0), "dimension is 0"),
        (lambda: audit_mechanism(NoProtection(), 1.0), "'none' claims nothing"),
        (lambda: replace(CASE, heard=np.zeros(2)), "expected B x d, B x d and d"),
        (lambda: replace(CASE, other=-np.ones((4, 1))), "differ in 4 rows"),
        (lambda: replace(CASE, rows=2 * CASE.rows), "the longest row has norm 2"),
    ],
)
def test_mistakes_are_named(call, match):
    with pytest.raises(DeclarationError, match=match):
        call()


# --------------------------------------------------------------------------------------------------
# the exact ratio


@pytest.mark.parametrize("mechanism", [Primal(), Primal(augment="iterate"), Dual()], ids=str)
def test_the_audited_node_sends_what_the_shipped_one_sends(mechanism):
    """Two equal nodes hear each other in a simulation; one that is told the other's messages sends
    the same.
    """
    shards, sent = [Shard.of(CURVED.rows, np.ones(4))] * 2, []
    alone = AuditedNode(replace(CURVED, degree=1, heard=np.zeros(2)), mechanism, 1.0, 1)
    run = simulate(
        shards,
        Topology(nx.Graph([("node", "other")])),
        Plan.of(
            loss=CURVED.loss, C=2.0, rho=1.0, eta=1.0, rounds=1, mechanism=mechanism, schedule=1.0
        ),
        replicas=50,
        draws=SeededEntropy(5),
        gamma=float(alone.releases.public.gamma[0, 0]),
        on_round=lambda progress: sent.append(progress.messages[0]),
    )
    np.testing.assert_array_equal(alone.release(CURVED.rows, 50, SeededEntropy(5)), sent[0])
    assert [e.alpha for e in run.events() if e.node == "node"] == [e.alpha for e in alone.events]


CASE = worst_cases(1)[0]
CURVED = replace(worst_cases(2)[0], loss=HuberHinge(0.2, 0.1), heard=np.array([0.5, -0.2]), C=2.0)


@pytest.mark.diagonal
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_exact_ratio_is_a_ratio_of_densities(mechanism, rounds):
    """E p_D/p_D' = 1 under D', and E p_D'/p_D = 1 under D: a wrong noise, shift, Jacobian or state
    would break it.
    """
    node, source, n = AuditedNode(CURVED, mechanism, 1.0, rounds), Stream(8), 10_000
    for rows, sign in ((CURVED.rows, -1), (CURVED.other, 1)):
        ratio = np.exp(sign * node.log_ratio(*node.transcript(rows, n, source)))
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(n)
        assert ratio.std() > 0.2


def test_without_the_jacobian_it_would_not_be_one(monkeypatch):
    node, n = AuditedNode(CURVED, Dual(), 1.0), 20_000
    drawn = node.transcript(CURVED.other, n, Stream(8))
    monkeypatch.setattr(np.linalg, "slogdet", lambda H: (None, np.zeros(len(H))))
    ratio = np.exp(node.log_ratio(*drawn))
    assert abs(ratio.mean() - 1) > 8 * ratio.std() / np.sqrt(n)


@pytest.mark.diagonal
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_no_pair_that_is_searched_passes_the_bound(mechanism, dimension):
    rng = np.random.default_rng([9, dimension])
    for alpha, rounds in ((0.2, 1), (2.0, 2)):
        for case in (*worst_cases(dimension, alpha), *random_cases(rng, dimension, alpha, 4)):
            node = AuditedNode(case, mechanism, alpha, rounds)
            last = getattr(mechanism, "final_release", None) or 0
            assert node.log_ratio_bound <= (alpha * rounds + last) * (1 + 1e-9)
            for rows in (case.rows, case.other):
                ratios = node.log_ratio(*node.transcript(rows, 200, Stream(dimension)))
                assert np.abs(ratios).max() <= node.log_ratio_bound * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [Primal(), Primal(augment="iterate"), Dual()], ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_some_draw_comes_within_two_percent_of_the_bound(mechanism, dimension):
    for alpha in (0.05, 1.0):
        node = AuditedNode(worst_cases(dimension, alpha)[0], mechanism, alpha)
        ratios = node.log_ratio(*node.transcript(node.case.rows, 2000, Stream(3)))
        assert np.abs(ratios).max() > 0.98 * alpha


# --------------------------------------------------------------------------------------------------
# our mechanisms


@pytest.mark.diagonal
@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_one_round_reaches_most_of_the_claim_and_never_more(mechanism, dimension):
    found = audit_mechanism(mechanism, 1.0, dimension, draws=20_000, source=Stream(1))
    assert found.alpha_claimed == pytest.approx(1.0)
    assert 0.6 < found.epsilon_lower <= 1.0
    assert found.verdict == "consistent with the claim"
    assert found.largest_log_ratio <= found.log_ratio_bound * (1 + 1e-9)


def test_the_plain_logistic_loss_in_one_dimension_shows_half():
    """Opposite rows move the noise by s(z) + s(-z) = 1, not by 2: why the default pair is
    saturated.
    """
    found = audit_mechanism(
        Dual(), 1.0, cases=(replace(CASE, loss=Logistic()),), draws=40_000, source=Stream(1)
    )
    assert 0.4 < found.epsilon_lower < found.largest_log_ratio < 0.55


@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
def test_a_whole_run_stays_below_the_accountants_total(mechanism):
    found = audit_mechanism(
        mechanism, 0.5, 1, 4, delta=1e-3, draws=20_000, source=Stream(1), cases=(CASE,)
    )
    node = AuditedNode(CASE, mechanism, 0.5, 4)
    assert found.alpha_claimed == total(node.events, 1e-3).epsilon < 2.0
    assert 0.6 < found.epsilon_lower / found.alpha_claimed <= 1.0
    assert not found.refuted
    assert found.setting["rounds"] == 4


def test_it_sees_through_any_source_of_draws():
    for source in (SeededEntropy(4), SystemEntropy(), Stream()):
        found = audit_mechanism(Primal(), 1.0, cases=(CASE,), draws=2000, source=source)
        assert found.setting["seeded"] == source.seeded
        assert 0.3 < found.epsilon_lower <= 1.0


def test_the_printed_calibration_is_caught_with_a_few_thousand_draws(printed):
    for dimension in (1, 2):
        found = audit_mechanism(
            printed(),
            1.0,
            dimension,
            draws=2_000,
            source=Stream(1),
            cases=worst_cases(dimension)[:1],
        )
        assert found.epsilon_lower > 1.0
        assert found.refuted_exactly
        assert found.verdict == "claim refuted"


@pytest.fixture
def printed():
    class Printed(Dual):
        def noise_for(self, public, alpha):
            c = super().noise_for(public, alpha)
            return replace(c, inner=2 * c.inner)

    return Printed


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Primal(), Dual()], ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_a_thousand_audits_of_what_is_sound_raise_no_more_alarms_than_they_may(
    mechanism, dimension
):
    source, cases = Stream(10 + dimension), worst_cases(dimension)[:1]
    found = [
        audit_mechanism(
            mechanism, 1.0, dimension, draws=1000, confidence=SURE, source=source, cases=cases
        )
        for _ in range(1000)
    ]
    alarms = sum(one.refuted for one in found)
    print(
        f"{mechanism.name}, d = {dimension}: {alarms} alarms, largest "
        f"{max(one.epsilon_lower for one in found):.3f}"
    )
    assert alarms <= FALSE_ALARMS
    assert np.median([one.epsilon_lower for one in found]) > 0.3


# --------------------------------------------------------------------------------------------------
# any release


def test_a_simulated_network_is_a_release_like_any_other():
    """Two nodes, one of which holds D or D'; everything that both send in two rounds is seen."""
    pair = Topology.family("complete", 2)
    quiet = Shard.of(np.zeros((4, 1)), [1, 1, 1, 1])

    def release(x, count, alpha=1.0):
        sent = []
        simulate(
            [Shard.of([[x], [0.0], [0.0], [0.0]], [1, 1, 1, 1]), quiet],
            pair,
            Plan.of(
                loss=CASE.loss,
                C=0.4,
                rho=1.0,
                eta=1.0,
                rounds=2,
                mechanism=Primal(),
                schedule=alpha,
            ),
            replicas=count,
            draws=SeededEntropy(int(x) + 1),
            on_round=lambda progress: sent.append(
                progress.messages.transpose(1, 0, 2).reshape(count, -1)
            ),
        )
        return np.hstack(sent)

    found = audit(release, (1.0, -1.0), 2.0, draws=4000)
    assert 1.0 < found.epsilon_lower <= 2.0
    assert audit(lambda x, n: release(x, n, 2.0), (1.0, -1.0), 2.0, draws=4000).refuted


def test_the_most_telling_of_several_pairs_is_audited():
    rng = np.random.default_rng(7)
    pairs = {"same": (0.0, 0.0), "apart": (0.0, 1.0), "near": (0.0, 0.1)}
    found = audit(lambda x, n: x + rng.laplace(size=n), pairs, 1.0, draws=20_000)
    assert found.pair == "apart"
    assert 0.8 < found.epsilon_lower <= 1.0


def test_a_score_may_be_given():
    """The difference is in the parity of an output: no learnt statistic sees it."""
    rng = np.random.default_rng(7)

    def release(odd, n):
        return 2.0 * rng.integers(0, 1000, n) + (rng.random(n) < (0.9 if odd else 0.1))

    blind = audit(release, (True, False), 1.0, draws=4000)
    found = audit(release, (True, False), 1.0, draws=4000, score=lambda v: v[:, 0] % 2)
    assert not blind.refuted
    assert found.epsilon_lower > 1.5
    assert "given score" in found.statistic


def test_what_the_page_shows_runs(capsys):
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "audit.md", "exec"), {})
    assert "consistent with the claim" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------
# the command line


def run(*arguments):
    return CliRunner().invoke(main, ["audit", *arguments])


def test_command_line_json(quick):
    flags = ("--mechanism", "dual", "--alpha", "1", "--draws", "4000", "--seed", "3", "--json")
    result = run(*flags)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["version"] == 1
    assert found["alpha_claimed"] == pytest.approx(1.0)
    assert 0.4 < found["epsilon_lower"] <= 1
    assert found["confidence"] == 0.999
    assert found["verdict"] == "consistent with the claim"
    assert found["seeded"] is True
    assert (found["mechanism"], found["dimension"], found["rounds"], found["draws"]) == (
        "dual",
        1,
        1,
        4000,
    )
    assert run(*flags).output == result.output


def test_command_line_in_words(quick):
    result = run(
        "--mechanism",
        "primal",
        "--alpha",
        "0.5",
        "--rounds",
        "2",
        "--delta",
        "0.001",
        "--draws",
        "2000",
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 5
    assert (
        lines[0]
        == "Primal perturbation in dimension 1, 2 rounds together: consistent with the claim."
    )
    assert "at delta = 0.001" in lines[1]
    assert "99.9% confidence" in lines[2]
    assert "not prove" in lines[4]


def test_a_refuted_claim_exits_with_1(quick, monkeypatch, printed):
    monkeypatch.setitem(Mechanism.registry, "dual", printed)
    result = run("--mechanism", "dual", "--draws", "4000", "--seed", "3")
    assert result.exit_code == 1
    assert "claim refuted" in result.output


@pytest.mark.parametrize(
    "flags", [[], ["--mechanism", "none"], ["--mechanism", "dual", "--alpha", "-1"]]
)
def test_command_line_mistakes(flags):
    assert run(*flags).exit_code == 2


class Own(PrimalNoise):
    """A user's own, which is made otherwise."""

    def __init__(self, of):
        self.__dict__.update(vars(of))


class WithoutDensity(Own):
    """Says nothing of its density."""

    def log_density(self, x):
        return None


@dataclass(frozen=True)
class Changed(Primal):
    """Primal perturbation, with what it gives changed."""

    change: Callable = None

    def noise_for(self, public, alpha):
        return self.change(super().noise_for(public, alpha))


def test_a_calibration_of_ones_own_is_audited():
    assert not audit_mechanism(Changed(change=Own), 1.0, 2, draws=2000, source=Stream(1)).refuted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            WithoutDensity,
            "Changed, round 1: its RoundNoise has no log_density to compare.*audit.audit",
        ),
        (
            lambda c: SimpleNamespace(**vars(c)),
            "Changed, round 1: noise_for gave a SimpleNamespace; expected a RoundNoise",
        ),
    ],
)
def test_a_mechanism_without_densities_is_refused(change, message):
    with pytest.raises(DeclarationError, match=message):
        audit_mechanism(Changed(change=change), 1.0, 2, draws=2000, source=Stream(1))
