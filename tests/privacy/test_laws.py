"""How one release's privacy loss is distributed: exact where it is claimed to be exact, never below
the truth.
"""

import itertools
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln, gammaln, ive, kve, logsumexp, roots_genlaguerre, roots_jacobi

from dynadp.privacy import distributions as laws
from dynadp.privacy.distributions import (
    ERROR,
    JacobianLoss,
    Pure,
    ShiftLoss,
    distribution_of,
    rounded_up,
)
from dynadp.privacy.events import DualPerturbation, L2Laplace
from support.contracts.law import ORDERS, LawContract


class TestPure(LawContract):
    def make(self, alpha):
        return Pure(alpha)


class TestLaplace(LawContract):
    def make(self, alpha):
        return ShiftLoss(alpha, 1)


class TestShiftInThePlane(LawContract):
    def make(self, alpha):
        return ShiftLoss(alpha, 2)


class TestShift(LawContract):
    def make(self, alpha):
        return ShiftLoss(alpha, 105)


class TestJacobian(LawContract):
    def make(self, alpha):
        return JacobianLoss(0.01 * alpha, alpha - 0.01 * alpha, 105)


class TestJacobianOfFewDimensions(LawContract):
    def make(self, alpha):
        return JacobianLoss(0.1 * alpha, alpha - 0.1 * alpha, 2)


def exact_losses(alpha, d, nodes=150):
    """Losses and weights by Gauss rules for both factors: another road than the one of the code."""
    r, wr = roots_genlaguerre(nodes, d - 1)
    w, ww = roots_jacobi(nodes, (d - 3) / 2, (d - 3) / 2)
    loss = np.sqrt(r[:, None] ** 2 - 2 * r[:, None] * alpha * w + alpha**2) - r[:, None]
    return loss.ravel(), np.outer(wr / wr.sum(), ww / ww.sum()).ravel()


@pytest.mark.parametrize("d", [3, 4, 7, 30, 105])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_the_renyi_curve_of_a_shift_is_the_exact_one_from_above(d, alpha):
    loss, weight = exact_losses(alpha, d)
    for order, bound in zip(ORDERS[:-1], ShiftLoss(alpha, d).renyi(ORDERS[:-1]), strict=True):
        exact = np.log(np.sum(weight * np.exp((order - 1) * loss))) / (order - 1)
        assert exact * (1 - 1e-6) <= bound <= exact * 1.004


def log_integral(log_of, d, most, nodes=200):
    """ln of the integral of e^log_of over radii and angles: Gauss rules where it is not negligible,
    all in logarithms.
    """
    x, w = np.polynomial.legendre.leggauss(nodes)
    box = [(max(d - 60 * np.sqrt(d), 1e-9), d + 60 * np.sqrt(d) + 800), (0.0, most)]
    for _ in range(40):  # there is one peak; boxes shrink until they hold it and little more
        r, angle = (low + (high - low) * (1 + x) / 2 for low, high in box)
        log = log_of(r[:, None], angle) - r[:, None] + (d - 1) * np.log(r[:, None])
        kept = log > log.max() - 60
        new = []
        for axis, at_nodes, (low, high) in ((1, r, box[0]), (0, angle, box[1])):
            at = np.flatnonzero(kept.any(axis=axis))
            new.append(
                (
                    at_nodes[at[0] - 1] if at[0] else low,
                    at_nodes[at[-1] + 1] if at[-1] + 1 < nodes else high,
                )
            )
        if all(b - a > 0.7 * (high - low) for (a, b), (low, high) in zip(new, box, strict=True)):
            break
        box = new
    area = np.log(box[0][1] - box[0][0]) + np.log(box[1][1] - box[1][0]) - np.log(4)
    return logsumexp(log, b=np.outer(w, w)) + area - gammaln(d)


def grown(r, a, cosine):
    """sqrt(r^2 + 2 r a cosine + a^2) - r, without the difference of two large numbers."""
    more = a * (a + 2 * r * cosine)
    return more / (np.sqrt(np.maximum(r**2 + more, 0)) + r)


def divergence(order, alpha, d):
    """(1/(A-1)) ln E e^((A-1) loss) of a shift."""
    norm = 0.5 * np.log(np.pi) + gammaln((d - 1) / 2) - gammaln(d / 2)
    found = log_integral(
        lambda r, angle: (
            (order - 1) * grown(r, alpha, -np.cos(angle)) + (d - 2) * np.log(np.sin(angle))
        ),
        d,
        np.pi,
    )
    return (found - norm) / (order - 1)


def jacobian_divergence(order, law):
    """(1/(A-1)) ln E of the formula for Algorithm 2, sqrt(b) = sin(angle)."""
    a, d = order - 1, law.dimension

    def log_of(r, angle):
        s = np.hypot(r, law.ah)
        M = law.abar + law.ah**2 / (s + r) + law.ah * np.sin(angle) * r / s
        large = np.maximum(a * M, 1)
        bracket = large + np.log(
            np.exp(a * M - large) - (1 - a * np.expm1(-M)) * np.exp(-large) + np.exp(-large)
        )
        return bracket + (d - 2) * np.log(np.cos(angle))

    return (log_integral(log_of, d, np.pi / 2) - betaln(0.5, (d - 1) / 2) + np.log(2)) / a


@pytest.mark.parametrize("d", [2, 3, 105, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("alpha", [1.0, 10.0, 47.0, 290.0])
def test_the_renyi_curve_of_a_shift_stays_exact_however_large_order_times_alpha(d, alpha):
    """It was lost once order x alpha passed about 130: what was charged for far radii grew like
    e^(order alpha).
    """
    orders = (1.5, 4.0, 12.0, 40.0, 150.0, 1000.0)
    for order, bound in zip(orders, ShiftLoss(alpha, d).renyi(orders), strict=True):
        exact = divergence(order, alpha, d)
        noise = (
            1e-15 * d * (1 + np.log(d)) / (order - 1)
        )  # what logarithms of factorials leave of digits
        kink = (
            1e-5 if d <= 3 else 0.0
        )  # of the loss at r = alpha, where Gauss rules converge slowly
        assert exact * (1 - kink) - noise <= bound <= exact * (1 + kink + 1e-6) + noise


@pytest.mark.parametrize("d", [105, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("alpha", [4.0, 47.0, 290.0])
def test_the_bound_on_a_jacobian_loss_does_not_collapse_at_large_orders(d, alpha):
    law = JacobianLoss(1e-4 * alpha, alpha - 1e-4 * alpha, d)
    orders = (2.0, 4.0, 12.0, 40.0, 150.0, 1000.0)
    for order, bound in zip(orders, law.renyi(orders), strict=True):
        exact = min(jacobian_divergence(order, law), law.alpha)
        noise = 1e-15 * d * (1 + np.log(d)) / (order - 1)
        assert exact * (1 - 1e-6) - noise <= bound <= exact * 1.15 + noise


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 1.0, 20.0, 290.0])
def test_the_renyi_curve_of_the_laplace_mechanism_is_known(alpha):
    """A/(2A-1) e^((A-1) alpha) + (A-1)/(2A-1) e^(-A alpha) (Mironov 2017), here in many digits."""
    orders = (1.001, 1.5, 8.0, 500.0, 1e6)
    for order, bound in zip(orders, ShiftLoss(alpha, 1).renyi(orders), strict=True):
        with localcontext(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN):
            A, a = Decimal(order), Decimal(alpha)
            moment = A / (2 * A - 1) * ((A - 1) * a).exp() + (A - 1) / (2 * A - 1) * (-A * a).exp()
            exact = float(moment.ln() / (A - 1))
        assert exact <= bound <= exact * (1 + 1e-6)


@pytest.mark.parametrize("d", [2, 3, 8, 105, 300, 301])
def test_ratios_of_bessel_functions_are_bounded_from_above_and_closely(d):
    nu, t = d / 2 - 1, np.geomspace(1e-3, 600, 60)
    t = t[(ive(nu + 1, t) > 1e-280) & np.isfinite(kve(nu + 1, t))]
    i, k = ive(nu + 1, t) / ive(nu, t), kve(nu + 1, t) / kve(nu, t)
    found = laws._i_ratio(nu, t), np.array([laws._k_ratio(d, float(at)) for at in t])
    assert len(t) > 15
    assert (i * (1 - 1e-12) <= found[0]).all()
    assert (found[0] <= i * (1 + 4e-7)).all()
    assert (k * (1 - 1e-12) <= found[1]).all()
    assert (found[1] <= k * (1 + 1e-9)).all()


@pytest.mark.parametrize("d", [2, 3, 10, 105, 10_000])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_the_curve_of_a_shift_is_that_of_real_noise(d, alpha):
    """Noise vectors as they are drawn, shifted along one axis: P(S) - e^s Q(S) = E(1 - e^(s -
    loss))+.
    """
    rng = np.random.default_rng(d)
    x = rng.standard_normal((20_000, d)) if d < 1000 else rng.standard_normal((2_000, d))
    x *= (rng.gamma(d, size=len(x)) / np.linalg.norm(x, axis=1))[:, None]
    shifted = x.copy()
    shifted[:, 0] -= alpha
    loss = np.linalg.norm(shifted, axis=1) - np.linalg.norm(x, axis=1)
    law = ShiftLoss(alpha, d)
    s = law.spread * np.linspace(0, 1.2, 5)
    values = np.maximum(-np.expm1(s[:, None] - loss), 0)
    error = values.std(axis=1) / np.sqrt(len(x))
    assert np.abs(values.mean(axis=1) - law.hockey_stick(s)).max() < 5 * error.max()
    assert (
        np.abs(values.mean(axis=1) - 1.1 * law.hockey_stick(s)).max() > 5 * error.max()
        or d == 10_000
    )  # it can tell


def test_one_dimension_is_the_laplace_mechanism():
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_laplace_mechanism(
        1 / 0.7, value_discretization_interval=1e-4
    )
    s = np.linspace(0, 0.69, 20)
    assert ShiftLoss(0.7, 1).hockey_stick(s) == pytest.approx(
        np.array(theirs.get_delta_for_epsilon(s)), abs=1e-5
    )


def test_quadrature_errs_by_less_than_is_charged(monkeypatch):
    rng = np.random.default_rng(0)
    cases = [(2, 1e-4), (2, 1e-2), (2, 1.0), (3, 0.1), (197, 44.0)]
    cases += [
        (int(d), float(a))
        for d, a in zip(np.exp(rng.uniform(1, 14, 25)), np.exp(rng.uniform(-9, 4, 25)), strict=True)
    ]
    for d, alpha in cases:
        law = ShiftLoss(alpha, d)
        s = np.linspace(0, min(alpha, 12 * law.spread), 20)[:-1]
        found = law._probability(s, 1), law._probability(-s, -1)
        with monkeypatch.context() as finer:
            finer.setattr(laws, "NODES", np.polynomial.legendre.leggauss(400))
            for coarse, fine in zip(
                found, (law._probability(s, 1), law._probability(-s, -1)), strict=True
            ):
                assert np.abs(coarse / fine - 1).max() < ERROR


def bracket(M, a):
    return np.maximum(np.expm1(a * M) + a * np.expm1(-M), np.expm1(-a * M) + a * np.expm1(M))


def excess(r, root_b, ah):
    """M - abar."""
    s = np.hypot(r, ah)
    return s - r + ah * root_b * r / s


def noise(d, size, rng):
    e = rng.standard_normal((size, d))
    return e * (rng.gamma(d, size=size) / np.linalg.norm(e, axis=1))[:, None]


@pytest.mark.parametrize("d", [1, 2, 3, 5, 105])
def test_the_bound_on_a_jacobian_loss_is_the_stated_one_from_above(d):
    """E of the formula over drawn r and b. Below it lie what the proof does not allow: M capped at
    alpha, and the root in place of its tangent, neither of which leaves g convex.
    """
    rng = np.random.default_rng(1)
    abar, ah, n = 0.02, 0.9, 400_000
    r = rng.gamma(d, size=n)
    root = np.sqrt(rng.beta(0.5, (d - 1) / 2, n)) if d > 1 else np.ones(n)
    M = abar + excess(r, root, ah)
    orders = (1.5, 3.0, 8.0)
    for order, bound in zip(orders, JacobianLoss(abar, ah, d).renyi(orders), strict=True):
        a = order - 1

        def drawn(M, a=a, order=order):
            """The divergence, and what chance may add to it."""
            values = bracket(M, a)
            low, high = values.mean() + np.array([-4, 4]) * values.std() / np.sqrt(n)
            least = bracket(abar + ah, a), np.expm1(a * Pure(abar + ah).renyi((order,))[0])
            return np.log1p([min(low, *least), min(high, *least)]) / a

        low, high = drawn(M)
        assert low <= bound <= high * 1.06
        if d in (2, 3):
            concave = abar + np.sqrt(r * r + 2 * r * root * ah + ah * ah) - r
            assert drawn(concave)[1] < low or order == 1.5
            assert drawn(np.minimum(M, abar + ah))[1] < low or order == 1.5


def test_a_cap_on_the_jacobian_loss_would_break_the_average():
    """Two orthogonal rows, d = 2, at one radius: g at the mean of both cosines is at most the mean
    of g at each, but not so for g of a capped M.
    """
    angle = (np.arange(20_000) + 0.5) * np.pi / 20_000
    each, mean = np.abs(np.cos(angle)), (np.abs(np.cos(angle)) + np.abs(np.sin(angle))) / 2
    r, ah = np.array(1.5), 1.5
    for a in (0.5, 1.0, 3.0):
        assert bracket(excess(r, mean, ah), a).mean() <= bracket(excess(r, each, ah), a).mean()
    ratios = [
        bracket(np.minimum(excess(r, mean, ah), ah), a).mean()
        / bracket(np.minimum(excess(r, each, ah), ah), a).mean()
        for r in np.geomspace(0.01, 3, 60)
        for a in (0.5, 1.0)
    ]
    assert max(ratios) > 1.001


def slopes_that_lose_most(e, rows, ah):
    """max over slopes in [-1, 1], picked after e was seen, of the change of the norm: its largest
    growth is at a corner, its largest fall on a grid is enough.
    """
    steps = np.linspace(-1, 1, 5) if len(rows) == 1 else (-1.0, 1.0)
    length, worst = np.linalg.norm(e, axis=1), np.zeros(len(e))
    for slopes in itertools.product(steps, repeat=2 * len(rows)):
        first, second = slopes[: len(rows)], slopes[len(rows) :]
        w = sum(s * a - t * b for s, t, (a, b) in zip(first, second, rows, strict=True))
        worst = np.maximum(worst, np.abs(np.linalg.norm(e + ah / 2 * w, axis=1) - length))
    return worst


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cosine", [-1.0, -0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("d", [1, 2, 3, 6, 105])
def test_no_slopes_lose_more_however_they_follow_the_noise(d, cosine, rows):
    """s = s1 a - s2 a' with the slopes that lose most, chosen after the noise was seen; rows at any
    angle, several of them along the same axes where there are few.
    """
    if d == 1 and abs(cosine) < 1:
        cosine = -1.0  # a line has two directions
    rng = np.random.default_rng(7)
    abar, ah, n = 0.01, 0.5, 10_000
    e = noise(d, n, rng)
    pairs = []
    for i in range(rows):
        a, b = np.zeros(d), np.zeros(d)
        a[(2 * i) % d] = 1.0
        b[(2 * i) % d] += cosine
        b[(2 * i + 1) % d] += np.sqrt(1 - cosine**2)
        pairs.append((a, b))
    worst = rows * abar + slopes_that_lose_most(e, pairs, ah)
    law = JacobianLoss(rows * abar, rows * ah, d)
    for order in (1.5, 3.0, 6.0):
        values = bracket(worst, order - 1)
        least = values.mean() - 4 * values.std() / np.sqrt(n)
        pure = np.expm1((order - 1) * Pure(law.alpha).renyi((order,))[0])
        assert min(least, pure) <= np.expm1((order - 1) * law.renyi((order,))[0]) * (1 + 1e-12)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("d", [6, 105])
def test_less_than_the_stated_bound_is_refused_by_such_slopes(d, rows):
    """A row against its opposite, or several along one axis. Too small would be: a row counted
    once, although its replacement moves the noise as well; m rows counted as independent, sqrt(m);
    noise in twice as many dimensions.
    """
    rng = np.random.default_rng(5)
    ah, n = 0.2, 200_000
    e = noise(d, n, rng)
    axis = np.eye(d)[0]
    worst = slopes_that_lose_most(e, [(axis, -axis)] * rows, ah)
    values = bracket(worst, 2.0)
    least = values.mean() - 4 * values.std() / np.sqrt(n)
    assert least <= np.expm1(2 * JacobianLoss(0.0, rows * ah, d).renyi((3.0,))[0])
    naive = [JacobianLoss(0.0, rows * ah / 2, d), JacobianLoss(0.0, rows * ah, 2 * d)]
    naive += [JacobianLoss(0.0, np.sqrt(rows) * ah, d)] if rows > 1 else []
    for law in naive:
        assert np.expm1(2 * law.renyi((3.0,))[0]) < least


def test_one_dimension_leaves_the_largest_loss():
    """d = 1: the shift lies along the noise, so only the pure bound is left."""
    law, a = JacobianLoss(0.1, 0.5, 1), 4.0
    assert law.renyi((5.0,))[0] == pytest.approx(np.log1p(bracket(0.6, a)) / a, rel=1e-6)


@pytest.mark.parametrize("d", [2, 3, 10, 105, 5_000, 10**6])
@pytest.mark.parametrize("ah", [1e-3, 0.5, 5.0, 60.0])
def test_quadrature_of_the_jacobian_loss_errs_by_less_than_is_charged(d, ah, monkeypatch):
    """P(M - abar > m) with 400 nodes, on the whole grid: at most what 80 and the charge give."""
    law = JacobianLoss(0.0, ah, d)
    coarse = laws._excess(law)
    with monkeypatch.context() as finer:
        finer.setattr(laws, "NODES", np.polynomial.legendre.leggauss(400))
        finer.setattr(laws, "ERROR", 0.0)
        fine = laws._excess(law)

    at = np.unique(coarse[0])[1:]

    def survival(found):
        """ln P(rounded M >= at)."""
        order = np.argsort(found[0])
        points, above = found[0][order], np.logaddexp.accumulate(found[1][order][::-1])[::-1]
        return above[np.searchsorted(points, at)]

    least, truth = survival(coarse), survival(fine)
    assert (least >= truth - 1e-12).all()
    # and the charge is no more than what it is said to be, where it is not a bound in logarithms
    close = truth > np.log(1e-40)
    assert (least[close] <= truth[close] + 4 * ERROR).all()


def test_errors_of_quadrature_are_charged(monkeypatch):
    for d, alpha in ((2, 0.01), (105, 1.0), (10_000, 5.0)):
        law = ShiftLoss(alpha, d)
        s = np.linspace(0, min(alpha, 6 * law.spread), 30)[:-1]
        charged = law.hockey_stick(s)
        with monkeypatch.context() as finer:
            finer.setattr(laws, "NODES", np.polynomial.legendre.leggauss(400))
            above, below = law._probability(s, 1), law._probability(-s, -1)
        assert (charged >= above - np.exp(s) * below + ERROR * above).all()


@given(st.floats(1e-100, 1e300))
def test_rounding_up_is_up_and_by_little(alpha):
    assert alpha <= rounded_up(alpha) <= alpha * (1 + 2**-9)
    assert rounded_up(rounded_up(alpha)) == rounded_up(alpha)


def test_a_person_with_several_rows():
    assert distribution_of(L2Laplace("p", 1, "primal", 0.5, 7), 3) == ShiftLoss(1.5, 7)
    assert distribution_of(L2Laplace("p", 0, "centring", 0.5, 7), 3) == ShiftLoss(1.5, 7)
    assert distribution_of(L2Laplace("p", 1, "slack", 0.5, 7), 3) == ShiftLoss(
        0.5, 7
    )  # covers the solver, not a row
    assert distribution_of(DualPerturbation("p", 1, 0.25, 0.5, 7), 3) == JacobianLoss(0.75, 1.5, 7)


@pytest.mark.parametrize(
    "event",
    [
        L2Laplace("p", 1, "primal", -0.1, 5),
        L2Laplace("p", 1, "primal", 0.0, 5),
        L2Laplace("p", 1, "primal", float("nan"), 5),
        L2Laplace("p", 1, "primal", 0.1, 0),
        DualPerturbation("p", 1, -0.2, 0.5, 5),
        DualPerturbation("p", 1, 0.2, float("inf"), 5),
        L2Laplace("p", 1, "primal", 1e101, 5),
        L2Laplace("p", 1, "primal", "1", 5),
        L2Laplace("p", 1, "primal", 0.1, 2.5),
        object(),
    ],
)
def test_what_makes_no_sense_has_no_law(event):
    assert distribution_of(event) is None
