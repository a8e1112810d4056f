"""Gaussian releases: totals in closed form, never below what discrete noise really loses, in every
account that a release enters.
"""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from math import exp, inf, log, sqrt

import mpmath
import numpy as np
import pytest
from click.testing import CliRunner
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.cli import main
from dynadp.errors import BudgetRefused, DeclarationError, SeededRefused
from dynadp.mechanisms.discrete_gaussian import discrete_gaussian
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.distributions import distribution_of
from dynadp.privacy.events import DualPerturbation, Gaussian, L2Laplace, from_json, to_json
from dynadp.privacy.gaussian import (
    GaussianLoss,
    distance_to_rounded_normal,
    gaussian_delta,
    gaussian_epsilon,
    joint_mu,
)
from dynadp.privacy.inverse import (
    affordable_rounds,
    calibrate,
    dual,
    equal_rounds,
    gaussian,
    primal,
)
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary

DELTA = 1e-5
STAMP = {"who": "tests", "at": "2026-03-01T12:00:00+00:00"}


def true_delta(mu, epsilon):
    return GaussianPrivacyLoss(standard_deviation=1 / mu).get_delta_for_epsilon(epsilon)


# --------------------------------------------------------------------------------------------------
# totals in closed form


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0, 12.0, 30.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_epsilon_is_that_of_the_accounting_library_from_above(mu, delta):
    found = gaussian_epsilon(mu, delta)
    assert true_delta(mu, found) <= delta
    assert true_delta(mu, 0.999 * found - 1e-6) > delta or found == 0


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 20.0, 100.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-30])
def test_floating_point_errs_by_less_than_is_charged(mu, delta):
    """In 60 digits the claimed epsilon leaves delta, and hardly less."""
    found = gaussian_epsilon(mu, delta)
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(found)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    assert exact <= delta
    assert exact >= delta * (1 - 2e-5) or found == 0


@settings(max_examples=60)
@given(st.floats(1e-6, 99), st.floats(1.0001, 3), st.floats(1e-12, 0.5))
def test_more_mu_and_less_delta_cost_more(mu, factor, delta):
    assert gaussian_epsilon(mu, delta) <= gaussian_epsilon(mu * factor, delta)
    assert gaussian_epsilon(mu, delta) <= gaussian_epsilon(mu, delta / factor)
    assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta


def test_rounds_compose_to_one_release():
    """sqrt(100) times 0.1; and unequal ones by the sum of their squares."""
    found = total(gaussian(0.1, 100), DELTA)
    assert 4.37 < found.epsilon == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-12)
    assert (found.method, found.releases, found.protected) == ("loss distribution", 100, True)
    uneven = [Gaussian("p", n, "gradient", mu, 7) for n, mu in enumerate([0.3, 0.4, 1.2])]
    assert total(uneven, DELTA).epsilon == pytest.approx(gaussian_epsilon(1.3, DELTA), rel=1e-9)
    assert total(uneven, DELTA, rows=3).epsilon == pytest.approx(
        gaussian_epsilon(3.9, DELTA), rel=1e-9
    )
    assert joint_mu([*uneven, *primal(0.5, 3, 2)], rows=3) == pytest.approx(3.9)


def test_without_delta_or_with_a_huge_mu():
    assert total(gaussian(0.1, 3), 0.0).epsilon == inf
    huge = total(gaussian(50.0, 100), DELTA)  # past the closed form
    assert huge.method == "renyi"
    assert 125_000 < huge.epsilon < 130_000
    assert total(gaussian(1e-200, 5), DELTA).epsilon == 0
    assert total(gaussian(0.01, 5), DELTA, rows=10**9).epsilon == inf


@pytest.mark.parametrize("given", [{"alpha"}, {"epsilon_sum"}, {"epsilon_pure"}])
def test_what_is_infinite_is_null_in_json(given):
    told = json.loads(json.dumps(total(gaussian(0.1, 3), DELTA).to_json(), allow_nan=False))
    assert {name for name in told if told[name] is None} >= given
    assert told["epsilon"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"mu": -0.1},
        {"mu": 0.0},
        {"mu": float("nan")},
        {"mu": inf},
        {"mu": "1"},
        {"mu": 1e7},
        {"dimension": 0},
        {"dimension": 2.5},
        {"dimension": True},
        {"distance": -1e-9},
        {"distance": float("nan")},
        {"distance": None},
    ],
)
def test_numbers_that_make_no_sense_cost_everything(change):
    fields = {"node": "p", "round": 1, "purpose": "gradient", "mu": 0.1, "dimension": 3}
    assert distribution_of(Gaussian(**fields)) == GaussianLoss(0.1)
    event = Gaussian(**{**fields, **change})
    assert distribution_of(event) is None
    assert total([event], DELTA).epsilon == inf
    assert Cap.of(1.0, DELTA).admits([], [event]) is None


# --------------------------------------------------------------------------------------------------
# calibration, and plans by name


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds"),
    [(1.0, 1e-5, 20), (0.03, 1e-6, 1), (8.0, 1e-9, 300), (30.0, 1e-3, 7), (1000.0, 1e-5, 4)],
)
def test_a_calibrated_mu_costs_what_was_asked_and_hardly_less(epsilon, delta, rounds):
    mu = calibrate(lambda scale: gaussian(scale, rounds), epsilon, delta)
    assert epsilon * 0.999 <= total(gaussian(mu, rounds), delta).epsilon <= epsilon
    m = calibrate(lambda scale: gaussian(scale, rounds), epsilon, delta, rows=3)
    assert m == pytest.approx(mu / 3, rel=1e-3)


def test_rounds_that_fit():
    fit = affordable_rounds(lambda n: gaussian(0.05, n), 1.0, DELTA)
    assert total(gaussian(0.05, fit), DELTA).epsilon <= 1.0
    assert total(gaussian(0.05, fit + 1), DELTA).epsilon > 1.0


def test_without_delta_no_mu_is_small_enough():
    with pytest.raises(DeclarationError, match="no scale of this plan"):
        calibrate(lambda scale: gaussian(scale, 2), 1.0, 0.0)


def test_plans_by_name():
    assert equal_rounds("gaussian", rounds=3, mu=0.1) == gaussian(0.1, 3)
    assert equal_rounds("gaussian", rounds=3, mu=0.1, dimension=9, node="n")[2] == Gaussian(
        "n", 3, "gradient", 0.1, 9
    )
    for given_numbers, wrong in (
        ({"mechanism": "gaussian"}, "declared by mu"),
        ({"mechanism": "gaussian", "mu": 0.1, "alpha": 0.1}, "no alpha"),
        ({"mechanism": "gaussian", "mu": 0.1, "jacobian_share": 0.1}, "gaussian has none"),
        ({"mechanism": "primal", "mu": 0.1, "alpha": 1.0, "dimension": 2}, "mu .* is for gaussian"),
        ({"mechanism": "primal", "alpha": 1.0}, "alpha and a dimension"),
    ):
        with pytest.raises(DeclarationError, match=wrong):
            equal_rounds(**given_numbers)


# --------------------------------------------------------------------------------------------------
# discrete noise, as it is drawn


def exact_curve(s, shift, epsilons):
    """delta(epsilon) of one coordinate with a discrete Gaussian, by its definition."""
    k = np.arange(-60 * int(s + 1), 60 * int(s + 1) + 1)
    p, q = (np.exp(-((k - at) ** 2) / (2 * s * s)) for at in (0, shift))
    p, q = p / p.sum(), q / q.sum()
    return np.array([np.maximum(p - exp(e) * q, 0).sum() for e in epsilons])


def event(s, shift, d=1, n=1, **more):
    distance = d * distance_to_rounded_normal(s)
    return Gaussian("p", n, "gradient", shift / s, d, distance, **more)


@pytest.mark.parametrize(("s", "shift"), [(1.0, 1), (2.0, 3), (5.0, 4), (40.0, 20)])
def test_a_discrete_gaussian_loses_no_more_than_its_total_and_a_normal_one_would_lose_less(
    s, shift
):
    """The exact loss of discrete noise with a small parameter passes the Gaussian's own curve; its
    claim counts the distance, and falls back on the Rényi curve.
    """
    deltas = np.geomspace(1e-8, 1e-2, 40)
    claimed = [total([event(s, shift)], delta) for delta in deltas]
    assert "renyi" in {one.method for one in claimed}  # at least where delta is small
    assert (exact_curve(s, shift, [one.epsilon for one in claimed]) <= deltas * (1 + 1e-9)).all()
    naive = [total([Gaussian("p", 1, "gradient", shift / s, 1)], delta).epsilon for delta in deltas]
    assert (exact_curve(s, shift, naive) > deltas).any()


def test_distance_is_counted_in_full():
    plan = [event(2.0**24, 2.0**21, 100, n) for n in range(1, 21)]
    distance = sum(one.distance for one in plan)
    assert distance > 0
    for delta in (1e-3, 1e-5):
        found = total(plan, delta)
        assert found.method == "loss distribution"
        joint = joint_mu(plan)
        charged = gaussian_delta(joint, found.epsilon) + (1 + exp(found.epsilon)) * distance
        assert charged <= delta
        assert found.epsilon == pytest.approx(gaussian_epsilon(joint, delta), rel=1e-5)
    assert total(plan, 1e-13).method == "renyi"  # no longer small beside delta


def drawn_losses(s, shift, d, rounds, size, rng):
    """Losses of discrete noise against noise around another point, picked from the last message:
    the axis of its largest coordinate, either sign, by all of ``shift`` or, once ahead, a third.
    """
    L = np.zeros(size)
    axis, sign = np.zeros(size, int), np.ones(size)
    who = np.arange(size)
    for _ in range(rounds):
        x = discrete_gaussian(rng, s, size * d).reshape(size, d).astype(float)
        length = np.where(sqrt(rounds) * shift / s < L, shift // 3, shift) * sign
        L += (length**2 - 2 * length * x[who, axis]) / (2 * s * s)
        axis = np.abs(x).argmax(axis=1)
        sign = np.sign(x[who, axis]) + (x[who, axis] == 0)
    return L


@pytest.mark.parametrize(
    ("s", "shift", "method"), [(5.0, 3, "renyi"), (2.0**20, 600_000, "loss distribution")]
)
@pytest.mark.parametrize("delta", [0.05, 2e-3])
def test_drawn_noise_never_contradicts_the_total_however_shifts_follow_messages(
    s, shift, method, delta
):
    rng, d, rounds, size = np.random.default_rng(2), 3, 6, 60_000
    L = drawn_losses(s, shift, d, rounds, size, rng)
    found = total([event(s, shift, d, n) for n in range(1, rounds + 1)], delta)
    assert found.method == method
    excess = np.maximum(-np.expm1(found.epsilon - L), 0)
    assert excess.mean() <= delta + 4 * excess.std() / sqrt(size)
    halved = total([event(s, shift / 2, d, n) for n in range(1, rounds + 1)], delta).epsilon
    excess = np.maximum(-np.expm1(halved - L), 0)
    assert excess.mean() > delta + 4 * excess.std() / sqrt(size)


@pytest.mark.parametrize("delta", [0.05, 1e-3])
def test_the_total_is_nearly_reached(delta):
    """A plan of full shifts: a few percent below the claim, drawn losses contradict it."""
    rng, s, shift, rounds, size = np.random.default_rng(3), 2.0**20, 500_000, 10, 100_000
    x = discrete_gaussian(rng, s, size * rounds).reshape(size, rounds) / s
    mu = shift / s
    L = (mu**2 / 2 - mu * x).sum(axis=1)
    epsilon = total([event(s, shift, 1, n) for n in range(1, rounds + 1)], delta).epsilon
    for claimed, holds in ((epsilon, True), (0.93 * epsilon, False)):
        excess = np.maximum(-np.expm1(claimed - L), 0)
        assert (excess.mean() <= delta + 4 * excess.std() / sqrt(size)) == holds


# --------------------------------------------------------------------------------------------------
# beside other kinds


@pytest.mark.parametrize(("mu", "alpha", "rounds"), [(0.2, 0.1, 20), (1.0, 0.5, 5), (0.05, 1.0, 3)])
def test_with_laplace_noise_the_total_is_that_of_the_accounting_library(mu, alpha, rounds):
    theirs = (
        pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
        .self_compose(rounds)
        .compose(
            pld.from_laplace_mechanism(1 / alpha, value_discretization_interval=1e-4).self_compose(
                rounds
            )
        )
    )
    found = total(gaussian(mu, rounds) + primal(alpha, 1, rounds), DELTA)
    assert found.method == "loss distribution"
    assert found.epsilon == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=5e-3)


@pytest.mark.parametrize("delta", [0.05, 1e-3])
def test_drawn_losses_of_a_mixture_never_contradict_its_total(delta):
    rng, size, d, alpha, mu, rounds = np.random.default_rng(9), 200_000, 30, 0.8, 0.15, 10
    L = rng.normal(mu**2 / 2 * rounds, mu * sqrt(rounds), size)
    for _ in range(rounds):
        r, w = rng.gamma(d, size=size), 2 * rng.beta((d - 1) / 2, (d - 1) / 2, size) - 1
        L += np.sqrt(r * r - 2 * r * alpha * w + alpha**2) - r
    epsilon = total(gaussian(mu, rounds) + primal(alpha, d, rounds), delta).epsilon
    for claimed, holds in ((epsilon, True), (0.93 * epsilon, False)):
        excess = np.maximum(-np.expm1(claimed - L), 0)
        assert (excess.mean() <= delta + 4 * excess.std() / sqrt(size)) == holds


@settings(max_examples=30)
@given(st.floats(0.01, 2), st.floats(0.01, 1), st.integers(1, 30), st.sampled_from([1e-9, 1e-4]))
def test_mixtures_lie_above_their_parts(mu, alpha, rounds, delta):
    parts = gaussian(mu, rounds), primal(alpha, 20, rounds), dual(alpha, 20, rounds, 0.02)
    whole = total([event for part in parts for event in part], delta)
    assert whole.epsilon_sum == whole.epsilon_pure == inf > whole.epsilon
    for part in parts:
        assert total(part, delta).epsilon <= whole.epsilon * (1 + 2e-3)


# --------------------------------------------------------------------------------------------------
# caps


def test_a_cap_counts_its_renyi_loss_whatever_the_distance():
    cap, plan = Cap.of(1.0, DELTA), gaussian(0.02, 20)
    plain, moment = cap.spent(plan)
    assert (plain, moment) == (inf, pytest.approx(cap.order * 20 * 0.02**2 / 2))
    assert cap.spent([event(5.0, 1, n=n) for n in range(3)])[1] == pytest.approx(
        cap.order * 3 * 0.2**2 / 2
    )
    assert cap.odometer(plan) == pytest.approx(moment + log(1 / DELTA) / (cap.order - 1))
    fits = cap.affordable(plan, gaussian(0.02, 1))
    assert cap.admits(plan, gaussian(0.02, fits)) == "renyi"
    assert cap.admits(plan, gaussian(0.02, fits + 1)) is None
    tight = gaussian(calibrate(lambda mu: gaussian(mu, 10), 1.0, DELTA), 10)
    assert cap.admits([], tight) == "plan"
    assert cap.admits(plan, tight) is None
    assert Cap.of(1.0, 0.0).admits([], gaussian(1e-6, 1)) is None
    assert Cap.of(1.0, 0.0).odometer(gaussian(1e-6, 1)) == inf


def test_mus_chosen_from_the_transcript_stay_within_the_cap():
    """A gambler doubles mu after a loss that went its way; the filter alone decides when it is
    over. With half of the sensitivity in its account it would pass the cap.
    """
    size, delta = 20_000, 0.02
    cap = Cap.of(2.0, delta)
    ladder = 0.1 * 2.0 ** np.arange(4)

    def played(share):
        rng, level = np.random.default_rng(4), np.zeros(size, int)
        L, spent, going = np.zeros(size), np.zeros(size), np.ones(size, bool)
        costs = np.array([cap.spent(gaussian(float(mu) * share, 1))[1] for mu in ladder])
        for _ in range(1000):
            going &= spent + costs[level] <= cap.budget
            if not going.any():
                break
            mu = ladder[level][going]
            step = rng.normal(mu**2 / 2, mu)
            L[going] += step
            spent[going] += costs[level[going]]
            level[going] = np.clip(level[going] + np.where(step > 0, 1, -1), 0, 3)
        excess = np.maximum(-np.expm1(cap.epsilon - L), 0)
        return excess.mean(), 4 * excess.std() / sqrt(size)

    found, error = played(1.0)
    assert found <= delta + error
    found, error = played(0.5)
    assert found > delta + error


# --------------------------------------------------------------------------------------------------
# ledgers and commands


def mixed(node="north"):
    return [
        L2Laplace(node, 0, "centring", 0.01, 4),
        Gaussian(node, 1, "gradient", 0.03, 5, 1e-17),
        Gaussian(node, 1, "moment", 0.04, 15, 1e-17),
        Gaussian(node, 2, "gradient", 0.05, 5),
        DualPerturbation(node, 3, 0.001, 0.01, 5),
    ]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "north.sqlite"
    with Ledger.create(path, "north", **STAMP) as ledger:
        ledger.set_cap(Cap.of(1.0, DELTA), **STAMP)
        plan = mixed()
        assert ledger.reserve("mixed", plan, dataset="rows", **STAMP) == "renyi"
        for n in (0, 1, 2):
            ledger.spend("mixed", n, [e for e in plan if e.round == n], b"whole", **STAMP)
        assert ledger.reserve("gauss", gaussian(0.01, 4, node="north"), dataset="rows", **STAMP)
        ledger.spend("gauss", 1, gaussian(0.01, 1, node="north"), b"whole", **STAMP)
    return path


def dynadp(*words):
    found = CliRunner(env={"COLUMNS": "200"}).invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.stdout


def strict(text):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_a_ledger_enters_sums_shows_and_reads_back_gaussian_events(path):
    with Ledger.open(path) as ledger:
        assert ledger.verify() == []
        assert ledger.reserved("mixed") == mixed()
        assert ledger.spent() == mixed()[:4] + gaussian(0.01, 1, node="north")
        ledger.spend("mixed", 3, mixed()[4:], b"whole", **STAMP)
        ledger.close_run("gauss", "stopped", **STAMP)
        counted, summary = ledger.counted(), LedgerSummary.of(ledger)
    assert counted == mixed() + gaussian(0.01, 1, node="north")
    assert total(counted, DELTA, rows=3).epsilon > 2 * total(counted, DELTA).epsilon
    run = summary.runs["mixed"]
    assert (run.alpha_spent, run.mu_spent) == (inf, pytest.approx(sqrt(0.005)))
    assert run.spent_words == "alpha 0.021, mu 0.07072"
    assert summary.room.measure == "renyi"
    assert 0 < summary.cap.spent(counted)[1] == summary.room.counted
    assert total(counted, DELTA).epsilon <= summary.lost <= 1.0
    shown = strict(json.dumps(summary.to_json()))
    assert (shown["cap"]["sum"], shown["runs"][0]["alpha_spent"]) == (None, None)
    assert shown["runs"][1]["mu_spent"] == pytest.approx(0.01)


def test_a_ledger_refuses_what_does_not_fit_or_protects_nobody(path):
    with Ledger.open(path) as ledger:
        with pytest.raises(BudgetRefused, match="do not fit under the cap"):
            ledger.reserve("much", gaussian(0.5, 5, node="north"), dataset="rows", **STAMP)
        seeded = Gaussian("north", 1, "gradient", 0.01, 5, seeded=True)
        with pytest.raises(SeededRefused):
            ledger.reserve("seeded", [seeded], dataset="rows", **STAMP)
        with pytest.raises(BudgetRefused, match="its plan holds"):
            ledger.spend("mixed", 3, [Gaussian("north", 3, "gradient", 0.01, 5)], b"whole", **STAMP)
        ledger.set_cap(Cap.of(1.0, 0.0), **STAMP)  # a cap that no Gaussian release can keep
        with pytest.raises(BudgetRefused):
            ledger.reserve("more", gaussian(0.001, 1, node="north"), dataset="rows", **STAMP)
        summary = LedgerSummary.of(ledger)
    assert summary.lost == inf
    assert strict(json.dumps(summary.to_json()))["cap"]["lost"] is None
    assert "no bound" in dynadp("ledger", "show", path)


def test_a_ledger_is_shown_with_mu(path):
    words = dynadp("ledger", "show", path)
    assert "alpha 0.01, mu 0.07072" in words
    assert "mu 0.01\n" in words
    assert "Rényi loss of order" in words
    assert "sum of alpha" not in words  # it has no bound, so it admits nothing
    shown = strict(dynadp("ledger", "show", path, "--json"))
    assert [run["alpha_spent"] for run in shown["runs"]] == [None, None]
    assert [run["mu_spent"] for run in shown["runs"]] == pytest.approx([sqrt(0.005), 0.01])


def test_the_view_of_a_ledger_has_the_sum_of_mu_squared(path):
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT run, round, alpha, mu_squared, unknown FROM spends ORDER BY id"
        ).fetchall()
    why = "a Gaussian event has no alpha; see mu_squared"
    assert found == [
        ("mixed", 0, 0.01, None, None),
        ("mixed", 1, None, pytest.approx(0.0025), why),
        ("mixed", 2, None, pytest.approx(0.0025), why),
        ("gauss", 1, None, pytest.approx(1e-4), why),
    ]


def test_account_of_gaussian_rounds():
    words = ("account", "--mechanism", "gaussian", "--mu", "0.1", "--rounds", "100")
    found = strict(dynadp(*words, "--delta", "1e-5", "--json"))
    assert 4.37 <= found["epsilon"] == total(gaussian(0.1, 100), DELTA).epsilon <= 4.8
    assert (found["alpha"], found["epsilon_sum"], found["epsilon_pure"]) == (None, None, None)
    assert found["joint_mu"] == pytest.approx(1.0)
    told = dynadp(*words, "--delta", "1e-5")
    assert told.startswith("100 Gaussian rounds with mu = 0.1:")
    assert "mu = 1, that of all Gaussian releases together" in told
    assert "alpha" not in told
    three = strict(dynadp(*words, "--delta", "1e-5", "--rows-per-person", "3", "--json"))
    assert three["epsilon"] == pytest.approx(gaussian_epsilon(3.0, DELTA), rel=1e-9)


def test_calibrate_gives_mu_or_rounds():
    words = ("calibrate", "--mechanism", "gaussian", "--epsilon", "1", "--delta", "1e-5")
    found = strict(dynadp(*words, "--rounds", "20", "--json"))
    back = total(gaussian(found["mu"], 20), DELTA).epsilon
    assert 0.999 <= back == found["epsilon"] <= 1
    assert dynadp(*words, "--rounds", "20").startswith("20 Gaussian rounds: mu = 0.0599")
    found = strict(dynadp(*words, "--mu", "0.05", "--json"))
    assert found["rounds"] == affordable_rounds(lambda n: gaussian(0.05, n), 1.0, DELTA) > 0
    assert "Not even one round with mu = 9 fits" in dynadp(*words, "--mu", "9")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("account --mechanism gaussian --rounds 2 --delta 1e-5", "missing --mu"),
        ("account --mechanism gaussian --mu .1 --alpha 1 --rounds 2 --delta 1e-5", "--mu instead"),
        (
            "account --mechanism dual --dimension 3 --mu .1 --rounds 2 --delta 1e-5",
            "--mu goes with --mechanism gaussian",
        ),
        ("account --events x --mu .1 --delta 1e-5", "leave out"),
        ("calibrate --mechanism gaussian --epsilon 1 --delta 1e-5", "give --rounds to find mu"),
        (
            "calibrate --mechanism gaussian --mu .1 --rounds 3 --epsilon 1 --delta 1e-5",
            "one of them, not both",
        ),
        ("calibrate --mechanism gaussian --alpha 1 --epsilon 1 --delta 1e-5", "--mu instead"),
        (
            "calibrate --mechanism primal --dimension 3 --mu 1 --epsilon 1 --delta 1e-5",
            "--mu goes with --mechanism gaussian",
        ),
        ("account --mechanism gaussian --mu -1 --rounds 2 --delta 1e-5", "finite number above 0"),
    ],
)
def test_usage_mistakes_say_what_to_do(line, wrong):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, line.split())
    assert result.exit_code == 2
    assert wrong in result.output


def test_account_of_a_file_with_gaussian_events(tmp_path):
    events = mixed() + primal(0.3, 20, 5, "south") + [event(5.0, 1, n=9, seeded=True)]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(json.dumps(to_json(event)) for event in events))
    found = strict(dynadp("account", "--events", path, "--delta", "1e-5", "--json"))
    north = found["nodes"]["north"]
    assert (north["epsilon"], north["alpha"]) == (total(mixed(), DELTA).epsilon, None)
    assert north["joint_mu"] == pytest.approx(sqrt(0.005))
    assert (found["nodes"]["south"]["joint_mu"], found["nodes"]["p"]["protected"]) == (0, False)
    words = dynadp("account", "--events", path, "--delta", "1e-5")
    assert "mu 0.07072, 5 events" in words
    assert "SIMULATION" in words


def test_a_file_with_a_gaussian_event_that_makes_no_sense(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({**to_json(mixed()[1]), "mu": "much"}))
    assert "epsilon = no bound" in dynadp("account", "--events", path, "--delta", "1e-5")
    assert (
        strict(dynadp("account", "--events", path, "--delta", "1e-5", "--json"))["epsilon"] is None
    )


def test_events_are_read_and_priced_by_whoever_asks_first():
    """In a fresh process, by one name of the door: nothing else has registered the kind."""
    content = json.dumps(to_json(mixed()[1]))
    assert from_json(json.loads(content)) == mixed()[1]
    code = (
        "import json, sys; from dynadp.privacy import from_json, distribution_of; "
        "event = from_json(json.loads(sys.argv[1])); print(distribution_of(event).mu)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, content], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == 0.03
