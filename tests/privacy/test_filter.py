"""Totals that stay valid when later losses depend on earlier messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynadp.errors import DeclarationError
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.inverse import calibrate, dual, primal


def loss_of(alpha, d, rng):
    r, w = rng.gamma(d, size=len(alpha)), 2 * rng.beta((d - 1) / 2, (d - 1) / 2, len(alpha)) - 1
    return np.sqrt(r * r - 2 * r * alpha * w + alpha**2) - r


def hockey_stick(epsilon, L):
    excess = np.maximum(-np.expm1(epsilon - L), 0)
    return excess.mean(), 4 * excess.std() / np.sqrt(len(L))


def test_the_order_leaves_most_room():
    cap = Cap.of(1.0, 1e-5)
    for order in (cap.order / 1.3, cap.order * 1.3):
        other = Cap(1.0, 1e-5, order)
        assert other.budget / other.order < cap.budget / cap.order


def test_its_budget_is_the_accountants_conversion():
    """At the filter's order the accountant's Rényi figure is at most epsilon if and only if the
    budget is kept.
    """
    cap = Cap.of(2.0, 1e-5)
    alpha = calibrate(lambda a: dual(a, 105, 100, 0.01), 2.0, 1e-5)
    assert cap.spent(dual(alpha, 105, 100, 0.01))[1] == pytest.approx(cap.budget, rel=0.05)


def test_what_is_admitted_and_why():
    cap = Cap.of(1.0, 1e-5)
    assert cap.admits([], primal(0.01, 105, 50)) == "sum"
    assert cap.admits([], primal(0.1, 105, 200)) == "renyi"
    tight = primal(calibrate(lambda a: primal(a, 105, 100), 1.0, 1e-5), 105, 100)
    assert cap.admits([], tight) == "plan"
    assert (
        cap.admits(primal(1e-3, 105, 1), tight) is None
    )  # something came before: its discretised total is no longer enough
    assert cap.admits([], primal(2.0, 105, 100)) is None
    assert cap.admits(primal(0.1, 105, 200), primal(0.1, 105, 10_000)) is None
    assert cap.admits([object()], primal(0.01, 105, 1)) is None


def test_without_delta_only_the_sum_counts():
    cap = Cap.of(1.0, 0.0)
    assert cap.admits([], primal(0.1, 105, 10)) in ("sum", None)
    assert cap.admits([], primal(0.099, 105, 10)) == "sum"
    assert cap.admits([], primal(0.11, 105, 10)) is None
    assert cap.odometer(primal(0.1, 105, 10)) == pytest.approx(1.0)


@settings(max_examples=30)
@given(
    st.floats(0.05, 10),
    st.sampled_from([1e-9, 1e-5, 1e-2]),
    st.floats(0.01, 2),
    st.integers(1, 300),
)
def test_never_more_generous_than_the_exact_total(epsilon, delta, alpha, rounds):
    """What is admitted costs at most epsilon by the accountant too, which knows the whole plan."""
    cap, plan = Cap.of(epsilon, delta), primal(alpha, 30, rounds)
    if cap.admits([], plan):
        assert total(plan, delta).epsilon <= epsilon * (1 + 1e-3)
    assert total(plan, delta).epsilon <= cap.odometer(plan) * (1 + 1e-3)


def test_alphas_chosen_from_the_transcript_stay_within_the_cap():
    """A gambler doubles alpha after a loss that went its way and stops late; the filter alone
    decides when it is over.
    """
    rng, d, size, delta = np.random.default_rng(4), 8, 20_000, 0.02
    cap = Cap.of(2.0, delta)
    ladder = 0.15 * 2.0 ** np.arange(4)
    costs = np.array([cap.spent([L2Laplace("p", 1, "primal", float(a), d)])[1] for a in ladder])
    L, spent, level, going = (
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, int),
        np.ones(size, bool),
    )
    for _ in range(400):
        going &= spent + costs[level] <= cap.budget
        if not going.any():
            break
        step = loss_of(ladder[level][going], d, rng)
        L[going] += step
        spent[going] += costs[level[going]]
        level[going] = np.clip(level[going] + np.where(step > 0, 1, -1), 0, 3)
    found, error = hockey_stick(cap.epsilon, L)
    assert found <= delta + error
    assert hockey_stick(0.5 * cap.epsilon, L)[0] > delta  # it has teeth


def test_the_odometer_holds_at_all_moments_where_fixed_time_totals_do_not():
    """An adversary stops at the first moment at which the loss is past what the odometer shows.

    Each fixed-time total is right for its own time; watched all the time they are passed far more
    often than delta allows."""
    rng, alpha, d, rounds, size, delta = np.random.default_rng(6), 0.4, 6, 150, 4_000, 0.05
    cap = Cap.of(4.0, delta)
    one = cap.spent(primal(alpha, d, 1))[1]
    valid = [cap.odometer(primal(alpha, d, n)) for n in range(1, rounds + 1)]
    assert valid[40] == pytest.approx(41 * one + np.log(1 / delta) / (cap.order - 1))
    naive = np.array([total(primal(alpha, d, n), delta).epsilon for n in range(1, rounds + 1)])
    L = np.cumsum([loss_of(np.full(size, alpha), d, rng) for _ in range(rounds)], axis=0)
    assert np.mean((np.array(valid)[:, None] < L).any(axis=0)) <= delta
    late = (L - naive[:, None]).argmax(axis=0)  # the best moment to stop
    at_stop = L[late, np.arange(size)] - naive[late]
    assert np.maximum(-np.expm1(-at_stop), 0).mean() > 2 * delta


@pytest.mark.parametrize("order", [1.0, 0.5, float("inf"), float("nan")])
def test_a_bad_order_is_refused(order):
    with pytest.raises(DeclarationError, match="order is"):
        Cap(1.0, 1e-5, order)


def test_bad_totals_are_refused():
    with pytest.raises(DeclarationError, match="epsilon is"):
        Cap.of(-1.0, 1e-5)
    with pytest.raises(DeclarationError, match="delta is"):
        Cap.of(1.0, 1.0)


def test_how_many_more_fit():
    cap = Cap.of(1.0, 1e-5)
    before, one = primal(0.1, 105, 50), primal(0.05, 105, 1)
    n = cap.affordable(before, one)
    assert cap.admits(before, one * n) == "renyi"
    assert cap.admits(before, one * (n + 1)) is None
    assert (
        cap.affordable([], primal(0.25, 1, 1))
        == 4
        == Cap.of(1.0, 0.0).affordable([], primal(0.25, 1, 1))
    )
    assert cap.affordable([], primal(3.0, 2, 1)) == 0
    assert cap.affordable([object()], one) == 0


@pytest.mark.parametrize("alpha", [301.0, 2000.0, 1e99])
def test_huge_losses_do_not_fit(alpha):
    cap = Cap.of(1.0, 1e-5)
    assert cap.admits([], primal(alpha, 105, 1)) is None
    assert cap.odometer(primal(alpha, 105, 1)) == pytest.approx(alpha)
    assert cap.affordable([], primal(alpha, 105, 1)) == 0


def test_large_vectors_do_not_break_the_filter():
    """alpha = 5 in 10^5 dimensions is as mild as 0.016 in one; order x alpha is 200 here."""
    cap = Cap.of(0.5, 1e-5)
    first = primal(5.0, 100_000, 5)
    assert 150 < 5 * cap.order < 400
    assert cap.spent(first)[1] == pytest.approx(5 * cap.order * 25 / 2e5, rel=1e-3)
    assert cap.admits(first, first) == "renyi"
    assert cap.spent(dual(5.0, 100_000, 5, 1e-6))[1] < 3 * cap.spent(first)[1]


def test_a_lost_run_is_made_good_by_lowering_epsilon_and_delta():
    """Two releases by Laplace noise; the first is missing in the ledger. Epsilons at one delta do
    not add, deltas add too.
    """
    lost, later, delta = primal(1.0, 1, 1), primal(1.0, 1, 1), 0.3

    def left(epsilon, d):
        return Cap.of(epsilon - total(lost, d).epsilon, delta - d if d < delta else delta)

    together = total(lost + later, delta).epsilon
    naive = 2 * total(lost, delta).epsilon + 1e-6
    assert left(naive, delta).admits([], later) == "plan"  # the same delta twice
    assert naive < 0.8 * together
    halved = 2 * total(lost, delta / 2).epsilon + 1e-6
    assert left(halved, delta / 2).admits([], later) == "plan"
    assert left(halved - 1e-3, delta / 2).admits([], later) is None
    assert halved >= together
