"""How the privacy loss of one release is distributed, at worst (maths.md 5).

A loss distribution bounds an event for every pair of neighbouring data sets and every past. It has
the three things that composition needs: alpha (the loss never exceeds it), a hockey-stick curve (an
upper bound on delta(s) = sup_S P(S) - e^s Q(S)) and a Rényi curve. Losses are rounded up to 10
binary digits, so that equal and nearly equal releases share one computation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from math import ceil, frexp, ldexp, log, sqrt
from typing import ClassVar

import numpy as np
from scipy.special import betainc, gammainc, gammainccinv, gammaincinv, gammaln, kve, logsumexp

from dynadp._arrays import Array
from dynadp.privacy.events import DualPerturbation, L2Laplace

NODES = np.polynomial.legendre.leggauss(80)
# probability of a radius on either side of the range of integration; charged in full
NEGLIGIBLE = 1e-60
# below this probability of a loss, bounds in logarithms are used: the charge for radii would show
FAR = 1e-40
STEPS = 128  # of the recurrences of Bessel functions; even
FURTHEST = 1.135  # max over t of sqrt(t^2 + 1) - t + t/sqrt(t^2 + 1), rounded up
ERROR = 1e-8  # relative error of a computed probability, at most; charged in full
# beyond these, only the alpha of a release is used, so that no number overflows
LARGEST, MOST_COLUMNS = 300.0, 10**7


@singledispatch
def distribution_of(event: object, rows: int = 1) -> "LossDistribution | None":
    """Return the loss distribution of an event, for a person with so many rows at its node.

    None for an event whose kind is unknown or whose numbers make no sense: it costs infinity. A
    mechanism registers its own kind of event with ``@distribution_of.register(Kind)``.
    """
    return None


@distribution_of.register(L2Laplace)
def _(event: L2Laplace, rows: int = 1) -> "LossDistribution | None":
    group = rows if event.per_row else 1
    return _distribution(ShiftLoss, event.dimension, (event.alpha,), group)


@distribution_of.register(DualPerturbation)
def _(event: DualPerturbation, rows: int = 1) -> "LossDistribution | None":
    return _distribution(JacobianLoss, event.dimension, (event.abar, event.ah), rows)


def _distribution(
    exact: "Callable[..., LossDistribution]", d: int, given: tuple[float, ...], group: int
) -> "LossDistribution | None":
    """exact(losses, d), the losses rounded up; Pure where they or d are very large; None where they
    make no sense.
    """
    if not isinstance(d, int | np.integer) or isinstance(d, bool) or d < 1:
        return None
    if not all(isinstance(loss, int | float | np.number) for loss in given):
        return None
    losses = [float(loss) * group for loss in given]
    if not all(0 <= loss <= 1e100 for loss in losses) or losses[-1] == 0:
        return None
    if sum(losses) > LARGEST or d > MOST_COLUMNS:
        return Pure(rounded_up(sum(losses)))
    return exact(*map(rounded_up, losses), int(d))


def rounded_up(alpha: float) -> float:
    """The least number of 10 binary digits that is not below alpha, and not below 1e-100 unless it
    is 0.

    >>> rounded_up(0.5), rounded_up(0.1)
    (0.5, 0.10009765625)
    """
    mantissa, exponent = frexp(max(alpha, 1e-100) if alpha else 0.0)
    return ldexp(ceil(mantissa * 1024), exponent - 10)


class LossDistribution(ABC):
    """What composition needs of one release; hashable, and equal to those of equal releases.

    Attributes
    ----------
    exact
        Whether ``hockey_stick`` uses more than alpha. Where not, totals also try the Rényi curve.
    """

    exact: ClassVar[bool] = True

    @property
    @abstractmethod
    def alpha(self) -> float:
        """The loss never exceeds it; may be infinite."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """About one standard deviation of the loss, for the choice of grids and orders; finite."""

    @abstractmethod
    def hockey_stick(self, s: Array) -> Array:
        """At least sup_S P(S) - e^s Q(S), for s >= 0 and either order of the data sets."""

    @abstractmethod
    def renyi(self, orders: tuple[float, ...]) -> Array:
        """At least (1/(A - 1)) ln E_Q (P/Q)^A for increasing orders A, for either order of the data
        sets.
        """


@dataclass(frozen=True)
class Pure(LossDistribution):
    """Randomised response, the worst case of any alpha-DP release: delta(s) = (e^alpha - e^s)/(1 +
    e^alpha).
    """

    loss: float
    exact: ClassVar[bool] = False

    @property
    def alpha(self) -> float:
        """As declared."""
        return self.loss

    @property
    def spread(self) -> float:
        """As large as it may be."""
        return self.loss

    def hockey_stick(self, s: Array) -> Array:
        """(e^alpha - e^s)/(1 + e^alpha), for s up to alpha (Kairouz, Oh, Viswanath 2015)."""
        return np.asarray(np.maximum(-np.expm1(s - self.loss), 0) / (1 + np.exp(-self.loss)))

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """min(alpha, A alpha^2/2) (Bun, Steinke 2016, Prop. 3.3)."""
        return np.minimum(self.loss, np.array(orders) * self.loss**2 / 2)


@dataclass(frozen=True)
class ShiftLoss(LossDistribution):
    """l2-Laplace noise, shifted: loss = sqrt(r^2 - 2 r alpha w + alpha^2) - r, r ~ Gamma(d),
    (1+w)/2 ~ Beta((d-1)/2, (d-1)/2).

    A shift of norm exactly Delta dominates all shorter ones, and swapping the data sets swaps the
    sign of w: one curve for all.
    """

    loss: float
    dimension: int

    @property
    def alpha(self) -> float:
        """zeta Delta."""
        return self.loss

    @property
    def spread(self) -> float:
        """alpha/sqrt(d)."""
        return self.loss / sqrt(self.dimension)

    def hockey_stick(self, s: Array) -> Array:
        """P(loss > s) - e^s P(loss < -s)."""
        s = np.minimum(s, self.loss)
        if self.dimension == 1:  # the Laplace mechanism
            return -np.expm1((s - self.loss) / 2)
        above = self._probability(s, +1)
        below = self._probability(-s, -1)
        return np.where(
            s < self.loss, np.maximum(above - np.exp(s) * below, 0) + 2 * ERROR * above, 0
        )

    def _probability(self, s: Array, side: int) -> Array:
        """P(loss > s) for side +1, P(loss <= s) for side -1, to relative precision where they are
        small.

        Given r, loss <= s if and only if w >= (alpha^2 - s^2 - 2 r s)/(2 r alpha); never for r <
        (alpha - s)/2. There the integrand has the power (d-1)/2 of the distance, which r = (alpha -
        s)/2 + t^2 makes smooth.
        """
        edge = (self.loss - s) / 2
        r, weight = _radii(self.dimension, edge)
        s = s[:, None]
        w = (self.loss**2 - s**2 - 2 * r * s) / (2 * r * self.loss)
        a = (self.dimension - 1) / 2
        found = np.sum(weight * betainc(a, a, np.clip((1 + side * w) / 2, 0, 1)), axis=1)
        return np.asarray(
            found + gammainc(self.dimension, edge) + 2 * NEGLIGIBLE if side > 0 else found
        )

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """In closed form, by Bessel functions: at most alpha."""
        return _shift_renyi(self, orders)


@lru_cache(maxsize=10_000)
def _shift_renyi(law: ShiftLoss, orders: tuple[float, ...]) -> Array:
    """E_Q (P/Q)^A = exp(integral of R over [z, k]) (S(z) + R(k) z/k)/(S(z) + R(z)), z = alpha/2, k
    = (2A - 1) z, nu = d/2 - 1.

    R and S are the ratios I_(nu+1)/I_nu and K_(nu+1)/K_nu. Nothing here grows like e^(A alpha), so
    nothing overflows, and what is charged for errors is in proportion to the figure itself,
    whatever the order.
    """
    z, nu, A = law.alpha / 2, law.dimension / 2 - 1, np.array(orders)
    k = (2 * A - 1) * z
    x, w = NODES
    first, last = np.arcsinh(z / (nu + 1)), np.arcsinh(k / (nu + 1))
    half = (last - first) / 2
    u = first + half[:, None] * (
        1 + x
    )  # t = (nu + 1) sinh u: R is smooth in u, over however many decades of t
    grown = half * (nu + 1) * ((_i_ratio(nu, (nu + 1) * np.sinh(u)) * np.cosh(u)) @ w)
    R, S = float(_i_ratio(nu, np.array(z))), _k_ratio(law.dimension, z)
    factor = np.log1p(-(R - _i_ratio(nu, k) / (2 * A - 1)) / (S + R))
    found = (grown * (1 + 1e-9) + factor + 1e-13 * R * (z + 1 / (S + R))) / (A - 1)
    return np.asarray(np.minimum(found, Pure(law.alpha).renyi(orders)))


def _i_ratio(nu: float, t: Array) -> Array:
    """At least I_(nu+1)(t)/I_nu(t), by at most 3e-7 of it: Amos's bound (1974), STEPS orders up,
    and the recurrence down.
    """
    top = nu + STEPS + 0.5
    ratio = t / (top + np.hypot(top, t))
    for j in range(STEPS, 0, -1):  # a step turns an upper bound into a lower one, so STEPS is even
        ratio = t / (2 * (nu + j) + t * ratio)
    return np.asarray(ratio)


def _k_ratio(d: int, z: float) -> float:
    """At least K_(nu+1)(z)/K_nu(z), nu = d/2 - 1: from where it is known, or from Segura's bound
    (2011) STEPS orders below.
    """
    nu = d / 2 - 1
    start = nu - STEPS if nu > STEPS + 1 else (-0.5 if d % 2 else 0.0)
    if nu > STEPS + 1:
        ratio = (start + 0.5 + sqrt((start + 0.5) ** 2 + z * z)) / z
    else:
        ratio = 1.0 if d % 2 else float(kve(1, z) / kve(0, z))
    for j in range(1, round(nu - start) + 1):
        ratio = 2 * (start + j) / z + 1 / ratio
    return ratio


def dots(law: LossDistribution, step: float, count: int) -> tuple[Array, Array]:
    """delta(s) at s = -count step .. count step; the pair is symmetric, so delta(-s) = 1 - e^-s +
    e^-s delta(s).
    """
    s = step * np.arange(count + 1.0)
    right = np.minimum.accumulate(np.minimum(law.hockey_stick(s), 1))
    left = -np.expm1(-s[1:]) + np.exp(-s[1:]) * right[1:]
    curve = np.minimum.accumulate(
        np.concatenate([left[::-1], right])
    )  # what is charged for errors must not make it rise
    return np.concatenate([-s[:0:-1], s]), curve


@dataclass(frozen=True)
class JacobianLoss(LossDistribution):
    """Algorithm 2: ``|loss| <= M`` = abar + s - r + ah sqrt(b) r/s, s = sqrt(r^2 + ah^2), r ~
    Gamma(d), b ~ Beta(1/2, (d - 1)/2), up to Jensen's inequality (maths.md 5).

    For m rows abar and ah are m times those of one.
    """

    abar: float
    ah: float
    dimension: int
    exact: ClassVar[bool] = False

    @property
    def alpha(self) -> float:
        """abar + ah."""
        return self.abar + self.ah

    @property
    def spread(self) -> float:
        """abar + about the root mean square of sqrt(b) ah."""
        return self.abar + self.ah / sqrt(self.dimension)

    def hockey_stick(self, s: Array) -> Array:
        """As of any alpha-DP release: M bounds the loss, not its distribution."""
        return Pure(self.alpha).hockey_stick(s)

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """(1/(A-1)) ln E[ max over signs of e^(+-(A-1)M) + (A-1)(e^(-+M) - 1) ]."""
        return _jacobian_renyi(self, orders)


@lru_cache(maxsize=10_000)
def _jacobian_renyi(law: JacobianLoss, orders: tuple[float, ...]) -> Array:
    """E[e^((A-1)L)] = E[e^((A-1)L) + (A-1)(e^-L - 1)], since E[e^-L] = 1; that function of L falls
    before 0 and grows after.
    """
    M, mass = _excess(law)
    M = M + law.abar
    a = np.array(orders)[:, None] - 1
    expected = logsumexp(_log_bracket(M, a) + mass, axis=1)
    slack = np.log(1e-15 * a[:, 0]) + logsumexp(np.log(M) + mass)
    expected = np.logaddexp(expected + 1e-9, slack)
    largest = _log_bracket(np.array([law.alpha]), a)[:, 0]  # the loss never passes alpha
    found = np.logaddexp(0, np.minimum(expected, largest)) / a[:, 0]
    found = np.minimum(found, Pure(law.alpha).renyi(orders))
    # a Rényi divergence never falls with its order
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])


def _log_bracket(M: Array, a: Array) -> Array:
    """ln max over signs of e^(+-aM) - 1 + a (e^(-+M) - 1), for each a and M."""
    with np.errstate(over="ignore", divide="ignore"):
        # e^(aM) - 1 + a (e^-M - 1) <= e^(aM), which serves where that is huge
        rising = np.where(
            a * M < 30, np.log(np.maximum(np.expm1(a * M) + a * np.expm1(-M), 0)), a * M
        )
        falling = np.log(np.maximum(np.expm1(-a * M) + a * np.expm1(M), 0))
    return np.asarray(np.maximum(rising, falling))


def _excess(law: JacobianLoss) -> tuple[Array, Array]:
    """The law of M - abar, rounded up to a grid, and the logarithms of its masses: fine where its
    mass is, coarse above.

    Given r, M - abar > m if and only if sqrt(b) > (m - s + r) s/(r ah); always for r < (ah^2 -
    m^2)/(2m). For m <= ah the right side is at most 1, so nothing has an edge there; what lies
    above ah is put at the largest M, 1.135 ah.
    """
    ah, d = law.ah, law.dimension
    if d == 1:
        return np.array([FURTHEST * ah]), np.zeros(1)
    top = ah * min(1.0, 10.6 / sqrt(d) + ah / d)
    m = np.concatenate(
        [np.linspace(0, top, 1001)[1:], np.geomspace(top, ah, 201)[1:] if top < ah else []]
    )
    m[-1] = ah
    edge = (ah**2 - m**2) / (2 * m)
    r, weight = _radii(d, edge)
    s = np.hypot(r, ah)
    root = (m[:, None] - ah**2 / (s + r)) * s / (r * ah)  # s - r = ah^2/(s + r)
    above = betainc((d - 1) / 2, 0.5, np.clip(1 - np.maximum(root, 0) ** 2, 0, 1))
    survival = np.log(
        (np.sum(weight * above, axis=1) + gammainc(d, edge)) * (1 + ERROR) + 2 * NEGLIGIBLE
    )
    deep = survival < log(FAR)
    survival[deep] = np.minimum(survival[deep], _far_excess(law, m[deep]))
    m, survival = np.append(m, FURTHEST * ah), np.append(survival, -np.inf)
    survival = np.minimum.accumulate(np.minimum(survival, 0))
    before = np.concatenate([[0.0], survival[:-1]])
    some = survival < before
    return m[some], before[some] + np.log1p(-np.exp(survival[some] - before[some]))


def _far_excess(law: JacobianLoss, m: Array) -> Array:
    """At least ln P(M - abar > m), however far: radii cut into cells at d e^-v, each counted by its
    ends that are worse: s - r falls with r, and so does s/r.

    ln P(r < d e^-v) <= d (1 - v - e^-v) (Chernoff), and P(b > y) <= (1 - y)^((d - 1)/2).
    """
    ah, d = law.ah, law.dimension
    v = np.geomspace(0.05 / sqrt(d), 1e10, 200)
    smaller = np.concatenate(
        [[0.0], d * (1 - v - np.exp(-v))]
    )  # ln P(r below the upper end of each cell)
    r = np.maximum(d * np.exp(-v), 1e-200)
    s = np.hypot(r, ah)
    upper = np.concatenate([[1.0], (s / r)[:-1]])  # s/r at the upper end of each cell
    y = np.clip((m[:, None] - ah**2 / (s + r)) * upper / ah, 0, 1) ** 2
    with np.errstate(divide="ignore"):
        above = (d - 1) / 2 * np.log1p(-y)
    return np.asarray(logsumexp(smaller + np.pad(above, ((0, 0), (0, 1))), axis=1))


def _radii(d: int, edge: Array) -> tuple[Array, Array]:
    """Nodes r > edge and weights times the Gamma(d) density, one row for each edge; r = edge + t^2
    with Gauss-Legendre in t.
    """
    low, high = float(gammaincinv(d, NEGLIGIBLE)), float(gammainccinv(d, NEGLIGIBLE))
    x, w = NODES
    first = np.sqrt(np.maximum(low - edge, 0))[:, None]
    last = np.sqrt(np.maximum(high - edge, 0))[:, None]
    half = np.maximum(last - first, 0) / 2
    t = first + half * (1 + x)
    r = edge[:, None] + t**2
    return r, 2 * t * half * w * _gamma_density(r, d)


def _gamma_density(r: Array, d: int) -> Array:
    """r^(d-1) e^-r/Gamma(d), by its ratio to the mode, so that large numbers do not cancel."""
    mode = d - 1.0  # never 0: in one dimension the law is known in closed form
    u = (r - mode) / mode
    stirling = 1 / (12 * mode) - 1 / (360 * mode**3) + 1 / (1260 * mode**5)
    peak = (
        1 / sqrt(2 * np.pi * mode) * np.exp(-stirling)
        if d > 40
        else np.exp(mode * np.log(mode) - mode - gammaln(d))
    )
    return np.asarray(peak * np.exp(mode * (np.log1p(u) - u)))
