"""The audit of sums over rows and of Gaussian noise: its bounds are as sure as they say, its exact
check is exact, and it comes near to the claim.
"""

import json
from dataclasses import replace

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
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.accountant import total
from dynadp.problem.losses import Logistic
from dynadp.research.audit import (
    AuditedSums,
    Stream,
    audit_mechanism,
    audited_node,
    lower_mu,
    random_cases,
    worst_cases,
    worst_sum_cases,
)

GAUSSIAN = [Sum(), Sum(second_moment=True), Primal(noise="gaussian")]
ITERATE = Primal(noise="gaussian", augment="iterate")
CURVED = replace(
    worst_sum_cases(2)[0],
    rows=np.array([[0.6, 0.8], [0.0, 1.0], [0.5, -0.5]]),
    other=np.array([[-1.0, 0.0], [0.0, 1.0], [0.5, -0.5]]),
    loss=Logistic(),
    heard=np.array([0.5, -0.2]),
    eta=0.05,
)


# --------------------------------------------------------------------------------------------------
# the bound on mu


def test_the_bound_is_as_sure_as_it_says_and_a_naive_one_is_not():
    """Two normal laws whose means differ by 1, where every threshold attains mu = 1."""
    rng = np.random.default_rng(1)
    alarms = naive = 0
    for x, y in rng.normal(size=(500, 2, 1000)) + np.array([[0.5], [-0.5]]):
        alarms += lower_mu(x, y, confidence=0.99).mu > 1
        line = np.quantile(x, 0.5)
        seen = [stats.norm.ppf(np.mean(s >= line)) for s in (x, y)]
        naive += seen[0] - seen[1] > 1
    assert alarms <= stats.binom.ppf(0.999, 500, 0.01)
    assert naive > 150


def test_it_comes_near_the_truth_with_many_draws():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 400_000)) + np.array([[0.5], [-0.5]])
    found = lower_mu(x, y)
    assert 0.97 < found.mu <= 1
    assert found.mu == pytest.approx(stats.norm.ppf(found.low) - stats.norm.ppf(found.high))


def test_what_is_never_seen_of_one_data_set_is_bounded_and_finite():
    assert np.isfinite(lower_mu(np.ones(200), np.zeros(200)).mu)
    assert lower_mu(np.ones(200), np.zeros(200)).mu > 2
    assert lower_mu(np.ones(200), np.ones(200)).mu == 0


def test_many_numbers_do_not_make_the_bound_blind():
    """A discriminant that is learnt from 100 numbers fits the draws it was learnt from."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 8000, 100))
    x[:, 0] += 2
    assert lower_mu(x, y).mu > 1.5


# --------------------------------------------------------------------------------------------------
# the audited node


@pytest.mark.parametrize("mechanism", [Sum(), Sum(second_moment=True)], ids=str)
def test_the_audited_node_sends_what_the_shipped_one_sends(mechanism):
    sent = []
    alone = AuditedSums(replace(CURVED, heard=np.zeros(2)), mechanism, 1.0, 2)
    run = simulate(
        [Shard.of(CURVED.rows, np.ones(3))] * 2,
        Topology(nx.Graph([("node", "other")])),
        Plan.of(loss=CURVED.loss, rounds=2, mechanism=mechanism, schedule=1.0),
        replicas=50,
        draws=SeededEntropy(5),
        on_round=lambda progress: sent.append(progress.messages[0]),
    )
    messages = alone.transcript(CURVED.rows, 50, SeededEntropy(5))[1]
    np.testing.assert_array_equal(messages[:, 0, : sent[0].shape[-1]], sent[0])
    own = [e for e in run.events() if e.node == "node"]
    assert [(e.mu, e.purpose, e.distance) for e in own] == [
        (e.mu, e.purpose, e.distance) for e in alone.events
    ]


@pytest.mark.parametrize("mechanism", [*GAUSSIAN, ITERATE], ids=str)
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_exact_ratio_is_a_ratio_of_densities(mechanism, rounds):
    """E p_D/p_D' = 1 under D', and E p_D'/p_D = 1 under D: a wrong noise, shift or point would
    break it. mu is 0.4: the ratio of a larger one has a heavy tail.
    """
    node, source, n = audited_node(CURVED, mechanism, 0.4, rounds), Stream(8), 10_000
    for rows, sign in ((CURVED.rows, -1), (CURVED.other, 1)):
        ratio = np.exp(sign * node.log_ratio(*node.transcript(rows, n, source)))
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(n)
        assert ratio.std() > 0.1


@pytest.mark.parametrize("mechanism", [*GAUSSIAN, ITERATE], ids=str)
@pytest.mark.parametrize("dimension", [1, 2, 105])
def test_no_pair_that_is_searched_is_further_apart_than_mu(mechanism, dimension):
    rng = np.random.default_rng([9, dimension])
    constructed = worst_sum_cases if mechanism.algorithm == "sum" else worst_cases
    for mu, rounds in ((0.2, 1), (2.0, 2)):
        for case in (*constructed(dimension), *random_cases(rng, dimension, mu, 4)):
            node = audited_node(case, mechanism, mu, rounds)
            claimed = np.sqrt(sum(event.mu**2 for event in node.events))
            found = node.compare(*node.transcript(case.rows, 20, Stream(dimension)))
            assert found.shift.max() <= claimed
            assert claimed == pytest.approx(mu * np.sqrt(rounds))


@pytest.mark.parametrize("dimension", [1, 2, 105])
def test_the_worst_pairs_use_up_the_whole_claim(dimension):
    """But for the rounding of rows: no smaller constant would do."""
    case = worst_sum_cases(dimension)[2 if dimension > 1 else 0]
    node = AuditedSums(case, Sum(), 1.0)
    room = np.sqrt(dimension) * 2.0**-16
    assert node.compare(*node.transcript(case.rows, 2, Stream(1))).shift.min() > 1 - room
    if dimension > 1:
        case = next(c for c in worst_sum_cases(dimension) if "right angles" in c.name)
        node = AuditedSums(case, Sum(second_moment=True), 1.0)
        assert node.compare(*node.transcript(case.rows, 2, Stream(1))).shift.min() > 1 - 2 * room


# --------------------------------------------------------------------------------------------------
# our mechanisms


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_one_round_reaches_most_of_the_claim_and_never_more(mechanism, dimension):
    found = audit_mechanism(mechanism, 1.0, dimension, draws=20_000, source=Stream(1))
    assert found.mu_claimed == 1.0
    # in one dimension rows at right angles do not exist, and a second moment moves by 1, not by
    # the root of 2
    most = 0.5**0.5 if dimension == 1 and mechanism == Sum(second_moment=True) else 1.0
    assert most - 0.15 < found.mu_lower <= found.largest_shift + 0.03 <= most + 0.03
    assert found.verdict == "consistent with the claim"


def test_a_whole_run_stays_below_the_accountants_total():
    case = worst_sum_cases(1)[0]
    found = audit_mechanism(
        Sum(), 0.5, 1, 4, delta=1e-3, draws=20_000, source=Stream(1), cases=(case,)
    )
    assert found.alpha_claimed == total(AuditedSums(case, Sum(), 0.5, 4).events, 1e-3).epsilon
    assert 0.5 < found.epsilon_lower / found.alpha_claimed <= 1.0
    assert 0.9 < found.mu_lower <= found.mu_claimed == 1.0
    assert not found.refuted


def test_a_run_that_ends_with_another_noise_has_no_mu():
    found = audit_mechanism(
        Primal(noise="gaussian", final_release=0.5),
        1.0,
        delta=1e-3,
        draws=4000,
        source=Stream(1),
        cases=worst_cases(1)[:1],
    )
    assert found.mu_claimed is found.mu_lower is found.largest_shift is None
    assert 0 < found.epsilon_lower <= found.alpha_claimed < np.inf


def test_it_sees_through_any_source_of_draws():
    for source in (SeededEntropy(4), SystemEntropy(), Stream()):
        case = worst_sum_cases(1)[0]
        found = audit_mechanism(Sum(), 1.0, cases=(case,), draws=2000, source=source)
        assert found.setting["seeded"] == source.seeded
        assert 0.3 < found.mu_lower < 1.3  # two of the sources are not seeded


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Sum(), Primal(noise="gaussian")], ids=str)
@pytest.mark.parametrize("dimension", [1, 2])
def test_a_thousand_audits_of_what_is_sound_raise_no_more_alarms_than_they_may(
    mechanism, dimension
):
    constructed = worst_sum_cases if mechanism.algorithm == "sum" else worst_cases
    how = {"draws": 1000, "source": Stream(10 + dimension), "cases": constructed(dimension)[:1]}
    found = [audit_mechanism(mechanism, 1.0, dimension, **how) for _ in range(1000)]
    alarms = sum(one.refuted for one in found)
    print(f"{alarms} alarms, largest {max(one.mu_lower for one in found):.3f}")
    assert alarms <= stats.binom.ppf(0.999, 1000, 0.001)
    assert np.median([one.mu_lower for one in found]) > 0.5


# --------------------------------------------------------------------------------------------------
# the command line


def run(*arguments):
    return CliRunner().invoke(main, ["audit", *arguments])


def test_command_line_json_has_no_infinite_number(quick):
    result = run("--mechanism", "sum", "--draws", "4000", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output

    def refuse(name):
        raise AssertionError(name)

    found = json.loads(result.output, parse_constant=refuse)
    assert found["alpha_claimed"] is found["log_ratio_bound"] is None
    assert 0.6 < found["mu_lower"] <= found["mu_claimed"] == 1.0
    assert found["largest_shift"] <= 1.0
    assert (found["mechanism"], found["noise"]) == ("sum", "gaussian")


@pytest.mark.parametrize(
    ("flags", "first", "proofs"),
    [
        (["sum", "--noise", "gaussian"], "Sums over rows in dimension 2, one round", "section 12"),
        (["sum", "--second-moment"], "Sums over rows in dimension 2, one round", "section 12"),
        (
            ["primal", "--noise", "gaussian"],
            "Primal perturbation with Gaussian noise in dimension 2, one round",
            "sections 4, 6 and 12",
        ),
    ],
)
def test_command_line_in_words(quick, flags, first, proofs):
    result = run("--mechanism", *flags, "--dimension", "2", "--draws", "2000", "--delta", "0.001")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 5
    assert lines[0] == f"{first}: consistent with the claim."
    assert lines[1].startswith("Claimed: mu = 1 at most, epsilon = ")
    assert "at least at delta = 0.001, with 99.9% confidence" in lines[2]
    assert "deviations at most, where 1 is allowed" in lines[3]
    assert lines[4].endswith(f"{proofs}.")


class Halved(Sum):
    """Half of the noise."""

    def plan(self, public, alpha):
        return tuple(
            replace(noise, parameter=noise.parameter / 2) for noise in super().plan(public, alpha)
        )


def test_a_refuted_claim_exits_with_1(quick, monkeypatch):
    monkeypatch.setitem(Mechanism.registry, "sum", Halved)
    result = run("--mechanism", "sum", "--draws", "4000", "--seed", "3")
    assert result.exit_code == 1
    assert "claim refuted" in result.output


@pytest.mark.parametrize(
    "flags",
    [
        ["dual", "--noise", "gaussian"],
        ["primal", "--second-moment"],
        ["sum", "--noise", "l2-laplace"],
    ],
)
def test_command_line_mistakes(flags):
    assert run("--mechanism", *flags).exit_code == 2


def test_a_dimension_that_is_none():
    with pytest.raises(DeclarationError, match="dimension is 0"):
        audit_mechanism(Sum(), 1.0, 0)


def test_releases_that_do_not_fit_into_memory_are_refused():
    with pytest.raises(DeclarationError, match="100,000 releases of 5,565 numbers do not fit"):
        audit_mechanism(Sum(second_moment=True), 1.0, 105)
