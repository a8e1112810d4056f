"""Gaussian releases: the distribution of their loss, and totals in closed form (maths.md 12).

A vector of whole numbers that one row moves by at most Delta, plus a discrete Gaussian with
parameter s, loses what a Gaussian mechanism with mu = Delta/s loses, up to a known distance.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, fsum, inf, isfinite, pi, sqrt

import numpy as np
from scipy.special import log_ndtr

from dynadp._arrays import Array
from dynadp._roots import root
from dynadp.privacy.distributions import LossDistribution
from dynadp.privacy.distributions import distribution_of as distribution_of  # with Gaussian ones
from dynadp.privacy.events import Event, Gaussian, SealedGaussian
from dynadp.privacy.units import row_changes

# beyond the first, numbers would overflow; beyond the second, the closed form loses its digits
MOST_MU, LARGEST_MU = 1e6, 100.0
ERROR = 1e-9  # relative error of a computed delta, at most; charged in full


@dataclass(frozen=True)
class GaussianLoss(LossDistribution):
    """N(mu^2/2, mu^2): the loss between two normal laws with deviation 1 whose means differ by mu.

    A shift of norm exactly Delta dominates all shorter ones, and one curve serves for both orders
    of the data sets.
    """

    mu: float

    @property
    def alpha(self) -> float:
        """Infinite."""
        return inf

    @property
    def spread(self) -> float:
        """mu, and more where mu is large: the mean of the loss is mu^2/2."""
        return self.mu * (1 + self.mu / 19)

    def hockey_stick(self, s: Array) -> Array:
        """Phi(mu/2 - s/mu) - e^s Phi(-mu/2 - s/mu)."""
        above = np.exp(log_ndtr(self.mu / 2 - s / self.mu))
        below = np.exp(np.minimum(s + log_ndtr(-self.mu / 2 - s / self.mu), 0.0))
        return np.asarray(np.maximum(above - below, 0.0) + ERROR * above)

    def renyi(self, orders: tuple[float, ...]) -> Array:
        """A mu^2/2, of the discrete Gaussian too (Canonne, Kamath, Steinke 2020).

        So filters and odometers need no ``distance`` between the noise and a normal one: that is
        for the exact total alone, which treats the noise as a rounded normal.
        """
        return np.array(orders) * self.mu**2 / 2


@distribution_of.register(Gaussian)
def _(event: Gaussian, rows: int = 1) -> LossDistribution | None:
    numbers = event.mu, event.distance
    if not all(isinstance(v, int | float) and isfinite(v) and v >= 0 for v in numbers):
        return None
    d = event.dimension
    if not isinstance(d, int | np.integer) or isinstance(d, bool) or d < 1:
        return None
    if not 0 < event.mu * rows <= MOST_MU:
        return None
    return GaussianLoss(max(float(event.mu * rows), 1e-100))


@distribution_of.register(SealedGaussian)
def _(event: SealedGaussian, rows: int = 1) -> LossDistribution | None:
    numbers = event.honest, event.members, event.partners
    if not all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in numbers):
        return None
    if not (1 <= event.honest <= max(event.members - 1, 1) and 0 <= event.partners < event.members):
        return None
    plain = distribution_of.dispatch(Gaussian)
    found: LossDistribution | None = plain(event, rows)
    return found


def counted(
    events: Iterable[Event], rows: int = 1, silos: int = 1, adjacency: str | None = None
) -> Counter[LossDistribution] | None:
    """Return how often each loss distribution occurs, for a person with rows at all these nodes, or
    at so many nodes that lose as much as this one; None if an event is unknown.

    Releases of different nodes have noise of their own, but for sealed sums: one noise hides what
    all nodes put into a sum. A person with rows at several nodes moves it by what she moves at each
    of them, so that her mu is at most the sum over nodes of sqrt(sum mu^2) (Minkowski). Of mixed
    adjacencies see :func:`~dynadp.privacy.units.row_changes`.
    """
    events = list(events)
    sealed: dict[str, list[LossDistribution | None]] = {}
    laws = Counter[LossDistribution | None]()
    for event, times in zip(events, row_changes(events, adjacency), strict=True):
        alone = getattr(event, "weighed", False)  # all rows of a person move it as one may
        each = times * (1 if alone else rows)
        if isinstance(event, SealedGaussian):
            law = distribution_of(event, each * silos)
            sealed.setdefault(event.node, []).append(law)
        else:
            laws[distribution_of(event, each)] += silos
    found = list(sealed.values())
    if len(found) < 2:
        laws.update(law for part in found for law in part)
    else:
        if any(law is None for part in found for law in part):
            return None
        mu = fsum(sqrt(fsum(law.mu**2 for law in part)) for part in found)  # type: ignore[union-attr]
        laws[GaussianLoss(mu * (1 + 1e-15))] += 1
    return None if None in laws else laws  # type: ignore[return-value]


def joint_mu(events: Iterable[Event], rows: int = 1, silos: int = 1) -> float:
    """sqrt(sum mu^2) over the Gaussian events, for a person with so many rows at a node, at so many
    nodes; 0 without any.
    """
    found = (e for e in events if isinstance(distribution_of(e, rows), GaussianLoss))
    laws = (counted(found, rows, silos) or Counter()).items()
    return sqrt(fsum(n * law.mu**2 for law, n in laws if isinstance(law, GaussianLoss)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return at least the delta of a Gaussian mechanism with this mu at epsilon."""
    return float(GaussianLoss(mu).hockey_stick(np.array([epsilon]))[0])


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a Gaussian mechanism with this mu at delta, rounded up; infinite for a
    mu above 100, where only the Rényi curve is used.
    """
    if mu > LARGEST_MU:
        return inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    most = mu * mu / 2 + mu * 40
    if delta <= 0 or gaussian_delta(mu, most) > delta:
        return inf
    found = root(lambda e: gaussian_delta(mu, e) - delta, 0.0, most, xtol=1e-12)
    while gaussian_delta(mu, found) > delta:
        found = found * (1 + 1e-12) + 1e-13
    return found


def one_gaussian(groups: Counter[LossDistribution]) -> Counter[LossDistribution]:
    """Replace all Gaussian losses by one with mu = sqrt(sum mu^2).

    Gaussian mechanisms compose adaptively to one (Dong, Roth, Su 2022).
    """
    square = fsum(n * law.mu**2 for law, n in groups.items() if isinstance(law, GaussianLoss))
    if not square:
        return groups
    others = {law: n for law, n in groups.items() if not isinstance(law, GaussianLoss)}
    return Counter({**others, GaussianLoss(sqrt(square) * (1 + 1e-15)): 1})


def distance_of_sum(h: int, s: float) -> float:
    """Bound the total variation between a sum of h discrete Gaussians with parameter s and one with
    sqrt(h) s: 3 (h - 1) e^{-pi^2 s^2}, for s >= 1 (maths.md 13).
    """
    if s < 1.0:
        return 1.0
    return 3.0 * (h - 1) * exp(-(pi**2) * min(s, 8.0) ** 2)


def distance_to_rounded_normal(s: float) -> float:
    """Bound the total variation between the discrete Gaussian and a rounded N(0, s^2).

    tau = 0.0202/s^2 (1 + 1.6/s) + 2 e^{-2 pi^2 s^2}, for s >= 1 (maths.md 12).
    """
    if s < 1.0:
        return 1.0
    return 0.0202 / s**2 * (1.0 + 1.6 / s) + 2.0 * exp(-2.0 * pi**2 * min(s, 8.0) ** 2)
