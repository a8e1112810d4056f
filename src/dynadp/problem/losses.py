"""Losses L(z), with the constants that calibration relies on (maths.md 8): the margin losses here,
z = y f.x, and those of residuals, z = f.x - t (:mod:`dynadp.problem.residual_losses`).

Every loss here is convex with ``|L'| <= 1`` and ``0 <= L'' <= c1``; ``c1`` is the paper's c1
(Assumption 3) and Theorem 6's c4. To add a loss, subclass :class:`Loss`, set its ``name`` and let
:func:`check_loss` try to refute its constants.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, namespace, one_kernel
from dynadp.data import Kind
from dynadp.errors import DeclarationError, LossError
from dynadp.problem.declared_bounds import BoundCheck
from dynadp.problem.registry import Named

FLAT = 1e-12  # a slope at 0 that is no steeper counts as none
UNBOUNDED = ("squared", "squared_error", "squared_loss", "mse", "least_squares")


class Loss(Named):
    """L(z): convex, not negative, ``|L'| <= 1``, ``0 <= L'' <= c1``.

    Functions are pure: threads may call them at once. A subclass that sets ``name`` can be used by
    that name in run files and estimators.
    """

    registry: ClassVar[dict[str, type[Any]]] = {}
    kind: ClassVar[Kind] = "signs"  # of the answers that it is about

    @property
    def residual(self) -> bool:
        """Whether z is a residual f.x - t, with t in [-1, 1], and no margin."""
        return self.kind == "numbers"

    @property
    def at_zero(self) -> float:
        """The largest loss of any row where f = 0: L(0), or max L(+-1) of residuals."""
        return float(self.value(np.array([-1.0, 1.0]) if self.residual else np.zeros(1)).max())

    @property
    def slope_bound(self) -> float:
        """How long a row's slopes are, at most: ``|L'| <= 1``."""
        return 1.0

    @property
    @abstractmethod
    def c1(self) -> float:
        """Sup L'', or an upper bound; a smaller number breaks the privacy of dual perturbation."""

    @abstractmethod
    def value(self, z: Array) -> Array:
        """L(z), elementwise."""

    @abstractmethod
    def slope(self, z: Array) -> Array:
        """L'(z), elementwise, with an absolute error of a few units in the last place of 1."""

    @abstractmethod
    def curvature(self, z: Array) -> Array:
        """L''(z), elementwise; where L' has a kink, any one-sided value."""

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The registered class of that name; squares without a bound are refused."""
        if name in UNBOUNDED and name not in cls.registry:
            raise DeclarationError(
                f"loss is {name!r}, whose slope has no bound: one row could move a release by any "
                "length, and no noise would hide it; take 'huber', the squared loss with residuals "
                "clipped at its width, or 'pseudo_huber' or 'logistic_cosh'"
            )
        return super().named(name)

    def describe(self) -> dict[str, Any]:
        """Name, parameters and c1, for the run record."""
        return {**super().describe(), "c1": self.c1}


def _falling(xp: Any, z: Array, margin: float, width: float) -> Array:
    return -1.0 / (1.0 + xp.exp(xp.minimum((z - margin) / width, 709.0)))


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """L(z) = h ln(1 + e^{(m - z)/h}).

    L' = -s and L'' = s (1 - s)/h with s = sigmoid((m - z)/h), hence ``|L'| < 1`` and c1 = 1/(4h),
    attained at z = m.
    """

    width: float = 0.5
    margin: float = 1.0
    name: ClassVar[str] = "smoothed_hinge"

    def __post_init__(self) -> None:
        _require_parameters(self.name, self.width, self.margin)

    @property
    def c1(self) -> float:
        """1/(4h)."""
        return 0.25 / self.width

    def value(self, z: Array) -> Array:
        """h ln(1 + e^u) with u = (m - z)/h, written as ``h (max(u, 0) + ln(1 + e^-|u|))``."""
        xp, u = namespace(z), (self.margin - z) / self.width
        return self.width * (xp.maximum(u, 0.0) + xp.log1p(xp.exp(-xp.abs(u))))

    def slope(self, z: Array) -> Array:
        """-1/(1 + e^{(z - m)/h}): -sigmoid((m - z)/h) with the fewest passes over memory; most of a
        round is spent here.
        """
        if not isinstance(z, np.ndarray):
            return one_kernel(_falling)(z, self.margin, self.width)
        u = z - self.margin if self.margin else z
        if self.width != 1.0:
            u = u / self.width
        with np.errstate(over="ignore"):  # 1/(1 + infinity) is 0, as it should be
            s = np.exp(u)
        s += 1.0
        return np.divide(-1.0, s, out=s)

    def curvature(self, z: Array) -> Array:
        """s (1 - s)/h."""
        s = -self.slope(z)
        return s * (1.0 - s) / self.width


class Logistic(SmoothedHinge):
    """L(z) = ln(1 + e^{m - z}); c1 = 1/4.

    The smoothed hinge of width 1. With m = 0 it is the paper's loss (section 4); a margin m > 0
    raises the signal at f = 0 for the same sensitivity, but then f.x is no longer the log-odds.
    """

    name: ClassVar[str] = "logistic"
    ignored: ClassVar[tuple[str, ...]] = ("width",)

    def __init__(self, margin: float = 0.0) -> None:
        super().__init__(width=1.0, margin=margin)

    def __repr__(self) -> str:
        return f"Logistic(margin={self.margin!r})"


@dataclass(frozen=True)
class HuberHinge(Loss):
    """L(z) = 0 for u <= -h, (u + h)^2/(4h) for ``|u| <= h``, u for u >= h, where u = m - z.

    L' = -clip((u + h)/(2h), 0, 1) and L'' is 1/(2h) on ``|u| < h`` and 0 elsewhere, hence c1 =
    1/(2h). With m = 1 this is the Huberised hinge of Chapelle that the paper's Assumption 3 admits
    in the limit. m > -h, since L is 0 at z = 0 otherwise.
    """

    width: float = 0.5
    margin: float = 1.0
    name: ClassVar[str] = "huber_hinge"

    def __post_init__(self) -> None:
        _require_parameters(self.name, self.width, self.margin)
        if self.margin <= -self.width:
            raise DeclarationError(
                f"{self.name}: margin is {self.margin!r} and width {self.width!r}, so L(0) = 0 "
                "and the zero vector is optimal: nothing could be learnt; expected a margin above "
                "-width, such as 1"
            )

    @property
    def c1(self) -> float:
        """1/(2h)."""
        return 0.5 / self.width

    def value(self, z: Array) -> Array:
        """The three pieces, from the slope: with s = -L', L = h s^2 inside and u above."""
        xp, u = namespace(z), self.margin - z
        s = xp.clip((u + self.width) / (2.0 * self.width), 0.0, 1.0)
        return xp.where(u > self.width, u, self.width * s * s)

    def slope(self, z: Array) -> Array:
        """-clip((u + h)/(2h), 0, 1)."""
        return -namespace(z).clip((self.margin - z + self.width) / (2.0 * self.width), 0.0, 1.0)

    def curvature(self, z: Array) -> Array:
        """1/(2h) where ``|u| <= h``, else 0."""
        return (namespace(z).abs(self.margin - z) <= self.width) * self.c1


def _require_parameters(name: str, width: float, margin: float) -> None:
    _require.positive(f"{name}: width", width)
    if not np.isfinite(margin):
        raise DeclarationError(f"{name}: margin is {margin!r}; expected a finite number")


def check_loss(loss: Loss) -> None:
    """Try to refute ``|L'| <= 1``, ``0 <= L'' <= c1``, L >= 0, L' = dL/dz and L'(0) < 0 (of
    residuals, L'(-1) < 0 < L'(1)) on a grid over [-1e6, 1e6].

    A check on points can refute the declared constants, never prove them: they remain the author's
    responsibility.

    Raises
    ------
    LossError
        Naming the bound that breaks and where.
    """
    where = loss.describe()["name"]
    c1 = float(loss.c1)
    _require.positive(f"c1 of loss {where!r}", c1, error=LossError)
    trial = BoundCheck(f"loss {where!r}", "z", LossError)
    value, slope, curvature = trial.values(
        {"L": loss.value, "L'": loss.slope, "L''": loss.curvature}
    )
    step, refute = trial.step, trial.refute
    refute("L >= 0", value < 0, value)
    steep = "|L'| <= 1 (clip the slope, as 'huber' does, or divide the loss by its steepest slope)"
    refute(steep, np.abs(slope) > 1 + 1e-12, slope)
    refute("L'' >= 0", curvature < 0, curvature)
    refute(f"L'' <= c1 = {c1:g}", curvature > c1 * (1 + 1e-9), curvature)

    # Bounds on L'' are checked on L' too, since only L' enters the solution. A kink in L' between
    # two points still gives a quotient in [0, c1]. L' is rounded by a few 1e-16, L by 1e-16 |L|.
    quotient = np.diff(slope) / step
    noise = 1e-13 / step
    refute("'L is convex' (its slope falls)", quotient < -noise, quotient)
    refute(f"L'' <= c1 = {c1:g} (slope of its slope)", quotient > c1 * (1 + 1e-9) + noise, quotient)
    area = 0.5 * step * (slope[1:] + slope[:-1])
    gap = np.diff(value) - area
    refute(
        "L' = dL/dz (change of L minus area under L')",
        np.abs(gap) > 0.25 * c1 * step**2 + 1e-12 * value.max(),
        gap,
    )
    if loss.residual:
        _check_ends(loss, where)
        return
    at_zero = trial.at == 0
    refute(
        "L(0) > 0 (else the zero vector is optimal and nothing can be learnt)",
        at_zero & (value <= 0),
        value,
    )
    refute(
        "L'(0) < 0 (else the zero vector is optimal and nothing can be learnt)",
        at_zero & (slope > -FLAT),
        slope,
    )


def _check_ends(loss: Loss, where: str) -> None:
    """Refuse a loss of residuals that falls at 1 or grows at -1, or does neither."""
    low, high = loss.slope(np.array([-1.0, 1.0])).tolist()
    if not low < -FLAT < FLAT < high:
        raise LossError(
            f"loss {where!r} breaks L'(-1) < 0 < L'(1) (a residual is f.x - t, with t in [-1, 1], "
            f"and a model learns by making it small): they are {low:g} and {high:g}"
        )
