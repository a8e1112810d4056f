"""How the privacy loss of one release is distributed, at worst (maths.md 5).

A law bounds an event for every pair of neighbouring data sets and every past. It gives the three things that composition needs:
alpha (the loss never passes it), a hockey-stick curve (an upper bound on delta(s) = sup_S P(S) - e^s Q(S)) and a Rényi curve.
Losses are rounded up to 10 binary digits, so that equal and nearly equal releases share one computation.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, frexp, ldexp, sqrt

import numpy as np
from scipy.special import betainc, gammainc, gammainccinv, gammaincinv, gammaln

from dynadp.arrays import Array
from dynadp.privacy.events import DualPerturbation, Event, L2Laplace

NODES = np.polynomial.legendre.leggauss(80)
NEGLIGIBLE = 1e-60  # probability of a radius on either side of the range of integration; charged in full
ERROR = 1e-8  # relative error of a computed probability, at most; charged in full
LARGEST, MOST_COLUMNS = 300.0, 10**7  # beyond them a release is priced by its alpha alone, so that no number overflows


def law_of(event: Event, rows: int = 1) -> "Law | None":
    """The law of an event for a person with so many rows at its node; None for an event that is not known or makes no sense.

    The z of an inexact Algorithm 2 covers the solver, not a row, so it does not grow with rows.
    """
    if not isinstance(event, L2Laplace | DualPerturbation):
        return None
    d, group = event.dimension, 1 if getattr(event, "purpose", None) == "slack" else rows
    given = (event.alpha,) if isinstance(event, L2Laplace) else (event.abar, event.ah)
    if not isinstance(d, int | np.integer) or d < 1 or not all(isinstance(loss, int | float | np.number) for loss in given):
        return None
    losses = [float(loss) * group for loss in given]
    if not all(0 <= loss <= 1e100 for loss in losses) or losses[-1] == 0:
        return None
    if sum(losses) > LARGEST or d > MOST_COLUMNS:
        return Pure(rounded_up(sum(losses)))
    if isinstance(event, L2Laplace):
        return Shift(rounded_up(losses[0]), int(d))
    return Jacobian(rounded_up(losses[0]), rounded_up(losses[1]), int(d), rows)


def rounded_up(alpha: float) -> float:
    """The least number of 10 binary digits that is not below alpha, and not below 1e-100 unless it is 0.

    >>> rounded_up(0.5), rounded_up(0.1)
    (0.5, 0.10009765625)
    """
    mantissa, exponent = frexp(max(alpha, 1e-100) if alpha else 0.0)
    return ldexp(ceil(mantissa * 1024), exponent - 10)


class Law(ABC):
    """What composition needs of one release."""

    @property
    @abstractmethod
    def alpha(self) -> float:
        """The loss never passes it."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """About one standard deviation of the loss, for the choice of grids and orders."""

    @abstractmethod
    def hockey_stick(self, s: Array) -> Array:
        """At least sup_S P(S) - e^s Q(S), for s >= 0 and either order of the data sets."""

    @abstractmethod
    def renyi(self, orders: tuple[float, ...]) -> Array:
        """At least (1/(A - 1)) ln E_Q (P/Q)^A for increasing orders A, for either order of the data sets."""


@dataclass(frozen=True)
class Pure(Law):
    """Randomised response, the worst law of any alpha-DP release: delta(s) = (e^alpha - e^s)/(1 + e^alpha)."""

    loss: float

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
class Shift(Law):
    """l2-Laplace noise, shifted: loss = sqrt(r^2 - 2 r alpha w + alpha^2) - r, r ~ Gamma(d), (1+w)/2 ~ Beta((d-1)/2, (d-1)/2).

    A shift of norm exactly Delta dominates all shorter ones, and swapping the data sets swaps the sign of w: one curve for all.
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
        return np.where(s < self.loss, np.maximum(above - np.exp(s) * below, 0) + 2 * ERROR * above, 0)

    def _probability(self, s: Array, side: int) -> Array:
        """P(loss > s) for side +1, P(loss <= s) for side -1, to relative precision where they are small.

        Given r, loss <= s if and only if w >= (alpha^2 - s^2 - 2 r s)/(2 r alpha); never for r < (alpha - s)/2. There the
        integrand has the power (d-1)/2 of the distance, which r = (alpha - s)/2 + t^2 makes smooth.
        """
        edge = (self.loss - s) / 2
        r, weight = _radii(self.dimension, edge)
        s = s[:, None]
        w = (self.loss**2 - s**2 - 2 * r * s) / (2 * r * self.loss)
        a = (self.dimension - 1) / 2
        found = np.sum(weight * betainc(a, a, np.clip((1 + side * w) / 2, 0, 1)), axis=1)
        return np.asarray(found + gammainc(self.dimension, edge) + 2 * NEGLIGIBLE if side > 0 else found)

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """From the law on a grid that connects the dots of delta(s), which dominates: at most alpha."""
        return _shift_renyi(self, orders)


@lru_cache(maxsize=10_000)
def _shift_renyi(law: Shift, orders: tuple[float, ...]) -> Array:
    """E_Q X^A = 1 + E_Q[X^A - 1 - A (X - 1)] for X = P/Q, whose bracket is never negative: errors only add."""
    step = law.alpha / min(max(16 * sqrt(law.dimension), 400), 2000)
    s, delta = dots(law, step, ceil(law.alpha / step))
    slope = np.diff(delta) / (np.exp(s[:-1]) * np.expm1(np.diff(s)))  # of delta in e^s: minus the mass of Q above
    mass = np.diff(np.concatenate([[-1.0], slope, [0.0]]))  # of Q at each s
    s, mass = s[mass > 0], mass[mass > 0]
    A = np.array(orders)[:, None]
    with np.errstate(over="ignore"):
        bracket = (np.expm1(A * s) - A * np.expm1(s)) @ mass
    slack = 1e-15 * A[:, 0] * (np.abs(s) @ mass)
    found = np.log1p(bracket * (1 + 1e-9) + slack) / (A[:, 0] - 1)
    return np.asarray(np.where(found > 0, np.minimum(found, Pure(law.alpha).renyi(orders)), law.alpha))


def dots(law: Law, step: float, count: int) -> tuple[Array, Array]:
    """delta(s) at s = -count step .. count step; the pair is symmetric, so delta(-s) = 1 - e^-s + e^-s delta(s)."""
    s = step * np.arange(count + 1.0)
    right = np.minimum.accumulate(np.minimum(law.hockey_stick(s), 1))
    left = -np.expm1(-s[1:]) + np.exp(-s[1:]) * right[1:]
    curve = np.minimum.accumulate(np.concatenate([left[::-1], right]))  # what is charged for errors must not make it rise
    return np.concatenate([-s[:0:-1], s]), curve


@dataclass(frozen=True)
class Jacobian(Law):
    """Algorithm 2: ``|loss| <= M`` = abar + sqrt(r^2 + 2 r sqrt(b) ah + ah^2) - r, r ~ Gamma(d), b ~ Beta(m, (d - 2m)/2).

    The noise moves within the span of a person's m rows and their replacements, 2m dimensions; b = 1 where d <= 2m.
    """

    abar: float
    ah: float
    dimension: int
    rows: int = 1

    @property
    def alpha(self) -> float:
        """abar + ah."""
        return self.abar + self.ah

    @property
    def spread(self) -> float:
        """abar + about the root mean square of sqrt(b) ah."""
        return self.abar + self.ah * min(1.0, sqrt(2 * self.rows / self.dimension))

    def hockey_stick(self, s: Array) -> Array:
        """As of any alpha-DP release: M bounds the loss, not its law."""
        return Pure(self.alpha).hockey_stick(s)

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """(1/(A-1)) ln E[ max over signs of e^(+-(A-1)M) + (A-1)(e^(-+M) - 1) ], orders increasing."""
        return _jacobian_renyi(self, orders)


@lru_cache(maxsize=10_000)
def _jacobian_renyi(law: Jacobian, orders: tuple[float, ...]) -> Array:
    """E[e^((A-1)L)] = E[e^((A-1)L) + (A-1)(e^-L - 1)], since E[e^-L] = 1; that function of L falls before 0 and grows after."""
    M, mass = _excess(law)
    M = M + law.abar
    a = np.array(orders)[:, None] - 1
    with np.errstate(over="ignore"):
        bracket = np.maximum(np.expm1(a * M) + a * np.expm1(-M), np.expm1(-a * M) + a * np.expm1(M)) @ mass
    slack = 1e-15 * a[:, 0] * (M @ mass)
    found = np.minimum(np.log1p(bracket * (1 + 1e-9) + slack) / a[:, 0], Pure(law.alpha).renyi(orders))
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])  # a Rényi divergence never falls with its order


def _excess(law: Jacobian) -> tuple[Array, Array]:
    """The law of M - abar, rounded up to a grid: fine where its mass is, coarse above.

    Given r, M - abar > m if and only if sqrt(b) > (m^2 + 2 r m - ah^2)/(2 r ah); always for r < (ah^2 - m^2)/(2m).
    """
    ah, d, rows = law.ah, law.dimension, law.rows
    if d <= 2 * rows:
        return np.array([ah]), np.ones(1)
    top = ah * min(1.0, (9.6 + sqrt(2 * rows)) / sqrt(d) + ah / d)
    m = np.concatenate([np.linspace(0, top, 1001)[1:], np.linspace(top, ah, 201)[1:] if top < ah else []])
    edge = (ah**2 - m**2) / (2 * m)
    r, weight = _radii(d, edge)
    root = (m[:, None] ** 2 + 2 * r * m[:, None] - ah**2) / (2 * r * ah)
    rest = np.clip(1 - root**2, 0, 1)
    above = rest ** ((d - 2) / 2) if rows == 1 else betainc((d - 2 * rows) / 2, rows, rest)
    survival = np.sum(weight * above, axis=1) + gammainc(d, edge) + 2 * NEGLIGIBLE
    survival[-1] = 0.0  # M never passes abar + ah
    survival = np.minimum.accumulate(np.minimum(survival * (1 + ERROR), 1))
    mass = -np.diff(np.concatenate([[1.0], survival]))
    return m[mass > 0], mass[mass > 0]


def _radii(d: int, edge: Array) -> tuple[Array, Array]:
    """Nodes r > edge and weights times the Gamma(d) density, one row for each edge; r = edge + t^2 with Gauss-Legendre in t."""
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
    peak = 1 / sqrt(2 * np.pi * mode) * np.exp(-stirling) if d > 40 else np.exp(mode * np.log(mode) - mode - gammaln(d))
    return np.asarray(peak * np.exp(mode * (np.log1p(u) - u)))
