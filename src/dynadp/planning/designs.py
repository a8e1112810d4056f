"""max over alpha of U_priv(alpha) - L_acc(alpha): the paper's privacy-accuracy design (its section
5; maths.md 10).

Losses that enter a fit must be public: of published or made rows, or charged for. What is chosen
from them is then public too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, isfinite, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp._roots import root
from dynadp.errors import DeclarationError
from dynadp.privacy import Schedule, as_schedule

RANGE = (0.01, 1.0)  # of alpha: U_priv has no bound below it


@dataclass(frozen=True)
class AccuracyLoss:
    """L_acc(alpha) = c4 exp(-c5 alpha) + c6, falling: c4 >= 0, c5 > 0.

    Attributes
    ----------
    c4, c5, c6
        The paper's constants.
    errors
        Their standard errors, where they were fitted; infinite where the points do not determine
        them.
    r2
        Share of the points' variance that the curve explains.
    """

    c4: float
    c5: float
    c6: float
    errors: tuple[float, float, float] | None = None
    r2: float | None = None

    def __call__(self, alpha: ArrayLike) -> Array:
        """L_acc(alpha)."""
        return self.c4 * np.exp(-self.c5 * np.asarray(alpha, dtype=float)) + self.c6

    def least_alpha(self, loss: float) -> float:
        """The smallest alpha above 0 with L_acc(alpha) <= loss; infinite where there is none."""
        above = loss - self.c6
        if self.c4 == 0 and above >= 0:
            return 0.0
        return max(log(self.c4 / above) / self.c5, 0.0) if self.c4 and above > 0 else inf

    def to_json(self) -> dict[str, Any]:
        """Its numbers; an infinite error is null."""
        errors = self.errors and [e if isfinite(e) else None for e in self.errors]
        return {**asdict(self), "errors": errors}


@dataclass(frozen=True)
class PrivacyUtility:
    """U_priv(alpha) = w1 ln(w2/(w3 alpha + w4 alpha^2)), falling in alpha (the paper's Assumption 6
    has it reversed).

    Attributes
    ----------
    w1, w2, w3, w4
        The paper's omegas, by default its own choice: w1, w2 > 0, w3, w4 >= 0 and not both 0.
    """

    w1: float = 0.02
    w2: float = 6.0
    w3: float = 9.0
    w4: float = 1.0

    def __post_init__(self) -> None:
        w = self.w1, self.w2, self.w3, self.w4
        if not (all(map(isfinite, w)) and min(w[:2]) > 0 and min(w[2:]) >= 0 and max(w[2:]) > 0):
            raise DeclarationError(
                f"the utility's w are {w}; expected w1, w2 > 0 and w3, w4 >= 0, not both 0"
            )

    def __call__(self, alpha: ArrayLike) -> Array:
        """U_priv(alpha)."""
        a = np.asarray(alpha, dtype=float)
        return np.asarray(self.w1 * np.log(self.w2 / (self.w3 * a + self.w4 * a * a)))


@dataclass(frozen=True)
class Design:
    """Which alpha, and why.

    Attributes
    ----------
    alpha
        The interior maximum of U_priv - L_acc, or the better end where there is none.
    interior
        Whether it is an interior maximum.
    value
        U_priv - L_acc there.
    low, high
        The range that the constraints leave.
    stationary
        All stationary points in (0, inf), smaller first: none, or a local minimum and a local
        maximum.
    end_wins
        In words, where an end of the range is better than the interior maximum, or there is none.
    best
        The best alpha of all: that end, or ``alpha``.
    reasons
        How it came about, in words.
    """

    alpha: float
    interior: bool
    value: float
    low: float
    high: float
    stationary: tuple[float, ...]
    end_wins: str | None
    best: float
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def stationary_points(c: AccuracyLoss, w: PrivacyUtility) -> tuple[float, ...]:
    """All alpha > 0 with c4 c5 exp(-c5 alpha) = w1 (w3 + 2 w4 alpha)/(w3 alpha + w4 alpha^2): none
    or two (maths.md 10).

    The difference h of the logarithms of both sides is strictly concave and its maximum lies in
    [0.82/c5, 1/c5], so each side of it holds one root or none. The smaller root is a local minimum
    of U_priv - L_acc, the larger one a local maximum.
    """
    if c.c4 <= 0:
        return ()

    def h(x: float) -> float:
        bend = log((w.w3 + w.w4 * x) / (w.w3 + 2 * w.w4 * x))
        return log(c.c4 * c.c5 / w.w1) - c.c5 * x + log(x) + bend

    def slope(x: float) -> float:
        return 1 / x - c.c5 - w.w4 * w.w3 / ((w.w3 + w.w4 * x) * (w.w3 + 2 * w.w4 * x))

    peak = root(slope, 0.82 / c.c5, (1 + 1e-9) / c.c5, xtol=1e-300)
    if h(peak) <= 0:
        return ()
    ends = []
    for factor in (0.5, 2.0):
        x = peak
        while h(x) > 0:
            x *= factor
        ends.append(root(h, min(x, peak), max(x, peak), xtol=1e-300))
    return tuple(ends)


def design(
    c: AccuracyLoss,
    w: PrivacyUtility | None = None,
    low: float = RANGE[0],
    high: float = RANGE[1],
    ceiling: float | None = None,
    floor: float | None = None,
) -> Design:
    """max over alpha in [low, high] of U_priv - L_acc, subject to L_acc <= ceiling and U_priv >=
    floor.

    Both constraints cut the range to an interval, since both functions fall; all stationary points
    and both ends are compared.

    Parameters
    ----------
    c, w
        The two functions; w is the paper's by default.
    low, high
        The range.
    ceiling, floor
        The most that may be lost in accuracy, the least utility of privacy; None for none.
    """
    w = w or PrivacyUtility()
    if not (all(map(isfinite, (c.c4, c.c5, c.c6))) and c.c4 >= 0 and c.c5 > 0):
        raise DeclarationError(
            f"L_acc has c4 = {c.c4:g}, c5 = {c.c5:g}; expected c4 >= 0 and c5 > 0: a loss that "
            f"falls with alpha"
        )
    if not (isfinite(high) and 0 < low < high):
        raise DeclarationError(f"the range is [{low:g}, {high:g}]; expected 0 < low < high")
    if not all(isfinite(bound) for bound in (ceiling, floor) if bound is not None):
        raise DeclarationError(
            f"ceiling is {ceiling} and floor is {floor}; expected finite numbers, or none"
        )
    first, last, reasons = low, high, [f"alpha is looked for in [{low:g}, {high:g}]"]
    if ceiling is not None:
        least = c.least_alpha(ceiling)
        first = max(first, least)
        needs = (
            f"needs alpha >= {least:.4g}"
            if least < inf
            else f"cannot be had: it stays above c6 = {c.c6:g}"
        )
        reasons.append(f"a loss of at most {ceiling:g} {needs}")
    if floor is not None:
        product = w.w2 * exp(min(-floor / w.w1, 300.0))  # w3 alpha + w4 alpha^2 at the floor
        most = 2 * product / (w.w3 + sqrt(w.w3**2 + 4 * w.w4 * product))
        last = min(last, most)
        reasons.append(f"a utility of at least {floor:g} needs alpha <= {most:.4g}")
    if first > last:
        raise DeclarationError(
            f"no alpha is left: {'; '.join(reasons)}; raise the ceiling, lower the floor or widen "
            f"the range"
        )

    def value(alpha: float) -> float:
        return float(w(alpha) - c(alpha))

    points = stationary_points(c, w)
    listed = ", ".join(f"{point:.4g}" for point in points) or "no point"
    reasons.append(
        f"the marginal gain in accuracy equals the marginal loss of privacy at alpha = {listed}"
    )
    end = max((first, last), key=value)
    which = f"the {'lower' if end == first else 'upper'} end, alpha = {end:.4g},"
    interior = bool(points) and first < points[1] < last
    alpha = points[1] if interior else end
    ahead = value(end) - value(alpha)
    end_wins = None
    if not interior:
        end_wins = f"{which} wins: U_priv - L_acc has no interior maximum there"
    elif ahead > 0:
        grows = ": U_priv grows without bound as alpha falls to 0" if end == first else ""
        end_wins = f"{which} has {ahead:.3g} more than the interior maximum {alpha:.4g}{grows}"
    reasons.append(
        end_wins
        or f"the interior maximum beats both ends, by at least {value(alpha) - value(end):.3g}"
    )
    return Design(
        alpha=alpha,
        interior=interior,
        value=value(alpha),
        low=first,
        high=last,
        stationary=points,
        end_wins=end_wins,
        best=end if end_wins else alpha,
        reasons=tuple(reasons),
    )


def design_table(c: ArrayLike, w: ArrayLike = (0.02, 6.0, 9.0, 1.0), **limits: Any) -> Array:
    """alpha of :func:`design` for each node and round: c is ... x 3, w is ... x 4, broadcast
    against each other.

    Parameters
    ----------
    c, w
        (c4, c5, c6) and (w1, w2, w3, w4), the last axis; P x T x 3 for a design for each node and
        round.
    limits
        As for :func:`design`, the same for all.
    """
    if np.shape(c)[-1:] != (3,) or np.shape(w)[-1:] != (4,):
        raise DeclarationError(
            f"c has shape {np.shape(c)} and w {np.shape(w)}; expected ... x 3 and ... x 4"
        )

    def alpha(c: Array, w: Array) -> float:
        return design(AccuracyLoss(*c.tolist()), PrivacyUtility(*w.tolist()), **limits).alpha

    return np.asarray(np.vectorize(alpha, signature="(c),(w)->()")(c, w))


def designed(
    loss: Any, utility: Sequence[float] = (0.02, 6.0, 9.0, 1.0), **limits: float
) -> Schedule:
    """alpha_p(n) by :func:`design`.

    Parameters
    ----------
    loss
        (c4, c5, c6) of L_acc, one such list for each round, or a table of either by node.
    utility
        (w1, w2, w3, w4) of U_priv.
    limits
        ``low``, ``high``, ``ceiling`` and ``floor`` of :func:`design`.
    """
    if isinstance(loss, Mapping):
        nodes = {node: design_table(own, utility, **limits).tolist() for node, own in loss.items()}
        return as_schedule(nodes)
    return as_schedule(design_table(loss, utility, **limits).tolist())


def schedule_from(given: Any) -> Schedule:
    """Make a schedule as :func:`~dynadp.privacy.schedules.as_schedule` does, or a ``designed``
    one.
    """
    return as_schedule(given, designed=designed)
