"""Totals: the stated figures, every method against an independent one, and never below what really
happens.
"""

import subprocess
import sys
from math import comb, exp, inf, isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.errors import DeclarationError
from dynadp.privacy import accountant
from dynadp.privacy.accountant import (
    SLACK,
    _composed,
    by_node,
    counted,
    for_person,
    total,
    worst_node,
)
from dynadp.privacy.distributions import Pure, ShiftLoss
from dynadp.privacy.events import DualPerturbation, L2Laplace
from dynadp.privacy.inverse import dual, primal
from dynadp.privacy.statements import guess_words

DELTA = 1e-5


@pytest.mark.parametrize(
    ("alpha", "low", "high", "pure"),
    [(0.1, 0.330, 0.333, 4.31), (0.5, 1.93, 1.95, 31.2), (1.0, 4.24, 4.27, 79.8)],
)
def test_primal_figures(alpha, low, high, pure):
    found = total(primal(alpha, 105, 100), DELTA)
    assert low <= found.epsilon <= high
    assert found.method == "loss distribution"
    assert found.epsilon_sum == pytest.approx(100 * alpha)
    assert found.epsilon_pure == pytest.approx(pure, rel=2e-3)
    assert found.alpha == alpha
    assert found.releases == 100


@pytest.mark.parametrize(("alpha", "epsilon"), [(0.1, 0.432), (0.5, 2.523), (1.0, 5.568)])
def test_dual_figures(alpha, epsilon):
    found = total(dual(alpha, 105, 100, 0.01), DELTA)
    assert found.epsilon == pytest.approx(epsilon, rel=2e-3)
    assert found.method == "renyi"


def test_one_dimension_is_composed_laplace():
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_laplace_mechanism(
        2.0, value_discretization_interval=1e-4
    ).self_compose(30)
    assert total(primal(0.5, 1, 30), DELTA).epsilon == pytest.approx(
        theirs.get_epsilon_for_delta(DELTA), rel=3e-3
    )


@pytest.mark.parametrize("d", [2, 10_000])
def test_few_and_many_dimensions(d):
    """Guided by Gaussian DP with mu = sqrt(T alpha^2/d) where d is large."""
    found = total(primal(0.5, d, 50), DELTA).epsilon
    if d == 2:
        assert (
            total(primal(0.5, 105, 50), DELTA).epsilon
            < found
            < total(primal(0.5, 1, 50), DELTA).epsilon
        )
    else:
        from dynadp.planning.sums import gaussian_mu

        assert gaussian_mu(found, DELTA) == pytest.approx(np.sqrt(50 * 0.25 / d), rel=2e-3)


@pytest.mark.parametrize(("alpha", "rounds"), [(0.1, 40), (0.5, 7), (1.0, 100), (3.0, 2)])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-9])
def test_optimal_pure_composition_is_the_closed_form(alpha, rounds, delta):
    """Randomised response: losses (2j - k) alpha with binomial chances (Kairouz, Oh, Viswanath
    2015).
    """
    p = exp(alpha) / (1 + exp(alpha))
    chance = [comb(rounds, j) * p**j * (1 - p) ** (rounds - j) for j in range(rounds + 1)]

    def exact(epsilon):
        return sum(
            c * max(-np.expm1(epsilon - (2 * j - rounds) * alpha), 0) for j, c in enumerate(chance)
        )

    found = _composed(frozenset([(Pure(alpha), rounds)]), delta)
    assert exact(found) <= delta  # valid
    assert exact(found) >= delta - 2 * SLACK or found == 0  # and no more than the slack is lost


def test_the_slack_covers_floating_point():
    """FFT against plain convolution, which has no wrapped error: the gap is far below what is held
    back.
    """
    from dp_accounting.pld import pld_pmf

    from dynadp.privacy.distributions import dots

    for law, n in ((ShiftLoss(0.5, 105), 300), (ShiftLoss(2.0, 3), 60), (Pure(0.3), 200)):
        step = law.spread / 8
        count = int(np.ceil(law.alpha / step))
        part = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            step, -count, count, dots(law, step, count)[1]
        )
        part = part.to_dense_pmf()
        plain = np.ones(1)
        for _ in range(n):
            plain = np.convolve(plain, part._probs)
        s = step * (np.arange(len(plain)) + n * part._lower_loss)
        fast = part.self_compose(n, 1e-15)
        for epsilon in np.sqrt(n) * law.spread * np.arange(0, 7):
            direct = np.sum(plain[s > epsilon] * -np.expm1(epsilon - s[s > epsilon]))
            assert abs(fast.get_delta_for_epsilon(float(epsilon)) - direct) < SLACK / 10


def losses(alpha, d, size, rng):
    r, w = rng.gamma(d, size=size), 2 * rng.beta((d - 1) / 2, (d - 1) / 2, size) - 1
    return np.sqrt(r * r - 2 * r * alpha * w + alpha**2) - r


@pytest.mark.parametrize(("alpha", "d", "rounds"), [(0.5, 30, 20), (1.0, 105, 10), (0.3, 4, 8)])
def test_the_true_loss_never_contradicts_the_total_and_is_nearly_reached(alpha, d, rounds):
    """Sums of drawn losses: E(1 - e^(eps - loss))+ is at most delta, and more than delta a few
    percent below eps.
    """
    rng = np.random.default_rng(3)
    L = losses(alpha, d, (200_000, rounds), rng).sum(axis=1)
    for delta in (0.05, 1e-3):
        found = total(primal(alpha, d, rounds), delta)
        assert found.method == "loss distribution"
        excess = np.maximum(-np.expm1(found.epsilon - L), 0)
        assert excess.mean() <= delta + 4 * excess.std() / np.sqrt(len(L))
        less = np.maximum(-np.expm1(0.93 * found.epsilon - L), 0)
        assert less.mean() > delta + 4 * less.std() / np.sqrt(len(L))


def dual_losses(rounds, d, rng, size):
    """True losses of Algorithm 2 in a problem of one row of weight 1, R = ||f||^2/2, by its density
    ratio.

    e(f; D) = -(L'(a.f) a + Lam f), with L the logistic loss of margin 4, so that a row's noise
    moves by nearly 2 when the row a = axis 0 is replaced by -a."""
    Lam, zeta = 40.0, 0.25

    def slope(z):
        return -1 / (1 + np.exp(z - 4))

    abar = np.log1p(0.25 / Lam)
    direction = rng.standard_normal((size, rounds, d))
    e = (
        direction
        / np.linalg.norm(direction, axis=-1, keepdims=True)
        * rng.gamma(d, 1 / zeta, (size, rounds, 1))
    )
    f0 = np.zeros(e.shape[:-1])
    for _ in range(40):  # along the row: L'(f0) + Lam f0 + e0 = 0
        f0 -= (slope(f0) + Lam * f0 + e[..., 0]) / (Lam - slope(f0) * (1 + slope(f0)))
    assert np.abs(slope(f0) + Lam * f0 + e[..., 0]).max() < 1e-9
    moved = e.copy()
    moved[..., 0] += slope(f0) + slope(-f0)  # e'(f) = e(f) + L'(z) a - L'(z') a'
    curved = [np.log(Lam - s * (1 + s)) for s in (slope(f0), slope(-f0))]
    loss = (
        zeta * (np.linalg.norm(moved, axis=-1) - np.linalg.norm(e, axis=-1)) + curved[0] - curved[1]
    )
    return loss.sum(axis=1), [
        DualPerturbation("p", n, float(abar), 2 * zeta, d) for n in range(1, rounds + 1)
    ]


def test_the_true_loss_of_algorithm_2_never_contradicts_the_total():
    L, events = dual_losses(12, 20, np.random.default_rng(5), 100_000)
    for delta in (0.05, 1e-3):
        found = total(events, delta)
        assert found.method == "renyi"
        excess = np.maximum(-np.expm1(found.epsilon - L), 0)
        assert excess.mean() <= delta + 4 * excess.std() / np.sqrt(len(L))
        assert (
            np.mean(np.maximum(-np.expm1(0.25 * found.epsilon - L), 0)) > delta
        )  # it could be contradicted


def test_directions_and_shifts_chosen_from_the_transcript_gain_nothing():
    """An adversary sees all messages and picks every next shift: its direction always, its length
    when it pays.

    The plan's total covers any such choice up to the full length; a total for shifts half as long
    does not."""
    rng = np.random.default_rng(8)
    alpha, d, rounds, size, delta = 1.0, 6, 12, 60_000, 0.02
    L = np.zeros(size)
    last = np.tile(np.eye(d)[0], (size, 1))
    for n in range(rounds):
        x = rng.standard_normal((size, d))
        x *= (rng.gamma(d, size=size) / np.linalg.norm(x, axis=1))[:, None]
        direction = last / np.linalg.norm(last, axis=1, keepdims=True)  # towards the last message
        length = (
            np.where(0.8 * alpha * np.sqrt(n) < L, 0.3, 1.0) * alpha
        )  # ahead: keep what was won
        shift = direction * length[:, None]
        L += np.linalg.norm(x - shift, axis=1) - np.linalg.norm(x, axis=1)
        last = x + 1e-9
    epsilon = total(primal(alpha, d, rounds), delta).epsilon
    excess = np.maximum(-np.expm1(epsilon - L), 0)
    assert excess.mean() <= delta + 4 * excess.std() / np.sqrt(size)
    too_low = total(primal(alpha / 2, d, rounds), delta).epsilon
    assert np.maximum(-np.expm1(too_low - L), 0).mean() > 2 * delta


events_of = st.builds(
    lambda kind, alpha, d, n: primal(alpha, d, n) if kind else dual(alpha, d, n, 0.02),
    st.booleans(),
    st.floats(0.01, 3),
    st.sampled_from([1, 2, 3, 20, 105]),
    st.integers(1, 40),
)


@settings(max_examples=40)
@given(events_of, events_of, st.sampled_from([0.0, 1e-12, 1e-6, 1e-2]))
def test_mixtures_are_between_their_parts_and_the_sum(a, b, delta):
    both = total(a + b, delta)
    assert max(total(a, delta).epsilon, total(b, delta).epsilon) <= both.epsilon * (1 + 1e-3)
    assert both.epsilon <= both.epsilon_pure <= both.epsilon_sum
    assert both.epsilon_sum == pytest.approx(sum(event.alpha for event in a + b))
    if delta == 0:
        assert (both.epsilon, both.method) == (both.epsilon_sum, "sum")


@settings(max_examples=30)
@given(
    st.booleans(),
    st.floats(0.02, 2),
    st.sampled_from([1, 2, 50]),
    st.integers(1, 60),
    st.floats(1.002, 2),
)
def test_epsilon_grows_with_alpha_rounds_and_one_over_delta(kind, alpha, d, rounds, factor):
    def epsilon(alpha, rounds, delta):
        return total(
            primal(alpha, d, rounds) if kind else dual(alpha, d, rounds, 0.02), delta
        ).epsilon

    base = epsilon(alpha, rounds, DELTA)
    assert base <= epsilon(alpha * factor, rounds, DELTA) * (1 + 1e-9)
    assert base <= epsilon(alpha, rounds + 1, DELTA) * (1 + 1e-9)
    assert base <= epsilon(alpha, rounds, DELTA / factor) * (1 + 1e-9)


def test_unequal_losses_lie_between_equal_ones():
    uneven = [
        event for i, a in enumerate(np.linspace(0.2, 0.6, 50)) for event in primal(float(a), 30, 1)
    ]
    low, high = total(primal(0.2, 30, 50), DELTA).epsilon, total(primal(0.6, 30, 50), DELTA).epsilon
    level = total(
        primal(float(np.sqrt(np.mean(np.linspace(0.2, 0.6, 50) ** 2))), 30, 50), DELTA
    ).epsilon
    found = total(uneven, DELTA).epsilon
    assert low < found < high
    assert found == pytest.approx(level, rel=0.01)


def test_a_very_small_delta_leaves_discretised_composition_out():
    found = total(primal(0.2, 105, 100), 1e-13)
    assert found.method == "renyi"
    assert total(primal(0.2, 105, 100), 1e-9).epsilon < found.epsilon < found.epsilon_sum


def test_an_unknown_event_costs_everything():
    found = total([*primal(0.1, 5, 3), object()], DELTA)
    assert found.epsilon == found.epsilon_sum == found.epsilon_pure == inf
    assert not found.protected
    assert found.to_json()["epsilon"] is None
    assert total([L2Laplace("p", 1, "primal", -1.0, 3)], DELTA).epsilon == inf


def test_nothing_costs_nothing():
    assert total((), DELTA).epsilon == worst_node((), DELTA).epsilon == 0.0


def test_seeded_noise_is_priced_and_protects_nobody():
    seeded = [L2Laplace("p", n, "primal", 0.5, 105, seeded=n == 7) for n in range(1, 101)]
    found = total(seeded, DELTA)
    assert not found.protected
    assert found.epsilon == total(primal(0.5, 105, 100), DELTA).epsilon
    assert total(primal(0.5, 105, 100), DELTA).protected


def test_nodes_network_and_a_person_at_several():
    events = primal(0.1, 20, 30, "small") + primal(0.4, 20, 30, "large")
    each = by_node(events, DELTA)
    assert worst_node(events, DELTA) == each["large"]
    assert each["small"].epsilon < each["large"].epsilon
    both = for_person(events, {"small", "large"}, DELTA)
    assert both == total(events, DELTA)
    assert both.epsilon > each["large"].epsilon
    assert for_person(events, {"small"}, DELTA) == each["small"]
    assert for_person(events, ["large"], DELTA, rows=3) == total(events[30:], DELTA, rows=3)
    for strangers in ({"nobody"}, {"small", "nobody"}, "small"):
        with pytest.raises(DeclarationError, match="expected a collection of names"):
            for_person(events, strangers, DELTA)
    assert for_person([*events, object()], {"small"}, DELTA).epsilon == inf


def test_the_total_of_two_nodes_is_not_the_sum_at_one_delta():
    """Adding epsilons at the same delta is no guarantee: two such mechanisms together break it."""
    one = _composed(frozenset([(Pure(2.0), 1)]), 0.2)
    together = _composed(frozenset([(Pure(2.0), 2)]), 0.2)
    assert together > 2 * one


def test_rows_of_one_person_at_a_node():
    assert (
        total(primal(0.1, 50, 20), DELTA, rows=3).epsilon
        == total(primal(0.1 * 3, 50, 20), DELTA).epsilon
    )
    one, three = (total(dual(0.1, 50, 20, 0.02), DELTA, rows=m).epsilon for m in (1, 3))
    assert three == pytest.approx(total(dual(0.3, 50, 20, 0.02), DELTA).epsilon, rel=1e-9)
    assert three > 3 * one
    slack = [L2Laplace("p", n, "slack", 0.01, 50) for n in range(1, 21)]
    assert total(slack, DELTA, rows=3).epsilon == total(slack, DELTA).epsilon
    for events, sum_of_three in (
        (primal(0.1, 50, 20), 6.0),
        (dual(0.1, 50, 20, 0.02), 6.0),
        (slack, 0.2),
    ):
        assert total(events, 0.0, rows=3).epsilon == pytest.approx(sum_of_three)


@pytest.mark.parametrize("d", [1, 2, 3, 105, 10**6, 10**8])
@pytest.mark.parametrize(
    "alpha", [1e-300, 1e-160, 1e-12, 1e-8, 1e-3, 48.1, 142.0, 301.0, 720.0, 1e99]
)
def test_no_number_is_too_small_or_too_large(d, alpha):
    for delta in (1e-320, 1e-12, 1e-5, 0.3, 0.9):
        for rounds in (1, 10):
            found = total(primal(alpha, d, rounds), delta)
            assert 0 <= found.epsilon <= found.epsilon_sum == pytest.approx(rounds * alpha)
    assert (
        total(primal(alpha, d, 3), DELTA, rows=1000).epsilon
        >= total(primal(alpha, d, 3), DELTA).epsilon
    )
    assert total(dual(alpha, d, 3, 0.1), DELTA).epsilon <= 3 * alpha * (1 + 1e-12)


@pytest.mark.parametrize(
    "event",
    [
        L2Laplace("p", 1, "primal", 1e200, 3),
        L2Laplace("p", 1, "primal", "1", 3),
        L2Laplace("p", 1, "primal", 0.1, 2.5),
        L2Laplace("p", 1, "primal", 0.1, float("nan")),
    ],
)
def test_numbers_that_make_no_sense_cost_everything(event):
    assert total([event], DELTA).epsilon == inf


def test_very_many_releases_hold_back_more():
    """Against the closed form; floating point errs by 1e-10 in delta here, more than what is held
    back from few releases.
    """
    from scipy.stats import binom

    n, alpha, delta = 1_000_000, 0.000579833984375, 1.2e-9
    found = _composed(frozenset([(Pure(alpha), n)]), delta)
    p = 1 / (1 + np.exp(-alpha))
    j = np.arange(n + 1)
    L = (2 * j - n) * alpha
    exact = np.sum(np.where(found < L, binom.pmf(j, n, p) * -np.expm1(np.minimum(found - L, 0)), 0))
    assert exact <= delta
    assert _composed(frozenset([(Pure(alpha), n)]), 9e-10) == inf


def test_far_ends_are_charged(monkeypatch):
    """Mass beyond the grid counts as a breach: a grid that is cut short costs more, never less."""
    whole = total(primal(0.5, 105, 50), 0.01).epsilon
    monkeypatch.setattr(accountant, "REACH", 2.5)
    accountant._composed.cache_clear()
    assert total(primal(0.5, 105, 50), 0.01).epsilon > whole
    accountant._composed.cache_clear()


@pytest.mark.parametrize("delta", [-1e-9, 1.0, float("nan"), "small", None])
def test_a_bad_delta_is_refused(delta):
    with pytest.raises(DeclarationError, match="delta is"):
        total(primal(0.1, 3, 2), delta)


@pytest.mark.parametrize("rows", [0, 1.5, float("nan"), "3"])
def test_bad_rows_are_refused(rows):
    with pytest.raises(DeclarationError, match="rows_per_person is"):
        total(primal(0.1, 3, 2), DELTA, rows=rows)


def test_nearly_equal_losses_share_one_law():
    assert (
        len(counted([L2Laplace("p", n, "primal", 0.1 * (1 - 1e-6 * n), 9) for n in range(100)]))
        == 1
    )


def test_odds_in_words():
    assert guess_words(0.0, 0.0).startswith("at most 50 in 100")
    assert guess_words(1.0, 1e-5).startswith("at most 74 in 100")
    assert guess_words(0.0, 0.5).startswith("at most 75 in 100")
    assert guess_words(800.0, 0.0).startswith("practically everybody")
    assert guess_words(inf, 0.0).startswith("practically everybody")
    assert "at most 53 in 100" in total(primal(0.1, 105, 10), DELTA).guarantee


def test_the_accounting_library_is_imported_only_when_it_is_needed():
    code = (
        "import sys, dynadp.cli, dynadp.runs.training, dynadp.privacy.cap\n"
        "assert not [m for m in sys.modules if m.startswith('dp_accounting')]\n"
        "from dynadp.privacy.inverse import primal\n"
        "from dynadp.privacy.accountant import total\n"
        "total(primal(.1, 3, 2), 1e-5)\n"
        "assert 'dp_accounting' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_different_releases():
    events = [
        e for n, a in enumerate(np.geomspace(0.05, 0.5, 200), 1) for e in primal(float(a), 50, 1)
    ]
    assert isfinite(total(events, DELTA).epsilon)
