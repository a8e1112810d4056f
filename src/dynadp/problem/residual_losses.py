"""Losses of residuals L(r), r = f.x - t, for targets t in [-1, 1] (maths.md 8).

All are even, grow with the size of the residual like its square up to a width w and then like the
residual itself: ``|L'| <= 1`` and ``0 <= L'' <= c1 = 1/w``, as privacy needs it.
"""

from dataclasses import dataclass
from typing import ClassVar

from dynadp import _require
from dynadp._arrays import Array, namespace
from dynadp.data import Kind
from dynadp.problem.losses import Loss

WIDTH = 0.15  # of residuals, where targets fill [-1, 1] (docs/results.md)


@dataclass(frozen=True)
class ResidualLoss(Loss):
    """L(r) with a width w > 0 that separates small residuals from large ones; c1 = 1/w."""

    width: float = WIDTH
    kind: ClassVar[Kind] = "numbers"

    def __post_init__(self) -> None:
        _require.positive(f"{self.name}: width", self.width)

    @property
    def c1(self) -> float:
        """1/w."""
        return 1.0 / self.width


@dataclass(frozen=True)
class PseudoHuber(ResidualLoss):
    """L(r) = w (sqrt(1 + (r/w)^2) - 1).

    With u = r/w: L' = u/sqrt(1 + u^2) and L'' = (1 + u^2)^(-3/2)/w, largest at r = 0.
    """

    name: ClassVar[str] = "pseudo_huber"

    def value(self, z: Array) -> Array:
        """w u^2/(1 + sqrt(1 + u^2)), which does not cancel."""
        u = z / self.width
        return self.width * u * (u / (1.0 + namespace(z).hypot(1.0, u)))

    def slope(self, z: Array) -> Array:
        """u/sqrt(1 + u^2)."""
        u = z / self.width
        return u / namespace(z).hypot(1.0, u)

    def curvature(self, z: Array) -> Array:
        """(1 + u^2)^(-3/2)/w."""
        return namespace(z).hypot(1.0, z / self.width) ** -3.0 / self.width


@dataclass(frozen=True)
class LogisticCosh(ResidualLoss):
    """L(r) = w ln cosh(r/w).

    L' = tanh(r/w) and L'' = (1 - tanh(r/w)^2)/w, largest at r = 0.
    """

    name: ClassVar[str] = "logistic_cosh"

    def value(self, z: Array) -> Array:
        """w ln(1 + 2 sinh^2(a/2)) + w (abs(u) - a) with a = min(abs(u), 20). Past it L' is 1 within
        1e-17.
        """
        xp = namespace(z)
        size = xp.abs(z / self.width)
        near = xp.minimum(size, 20.0)
        return self.width * (xp.log1p(2.0 * xp.sinh(near / 2) ** 2) + (size - near))

    def slope(self, z: Array) -> Array:
        """tanh(r/w)."""
        return namespace(z).tanh(z / self.width)

    def curvature(self, z: Array) -> Array:
        """(1 - tanh(r/w)^2)/w."""
        slope = self.slope(z)
        return (1.0 - slope) * (1.0 + slope) / self.width


@dataclass(frozen=True)
class Huber(ResidualLoss):
    """L(r) = r^2/(2w) for ``|r| <= w``, ``|r| - w/2`` beyond: the squared loss with clipped
    residuals.

    L' = clip(r/w, -1, 1); L'' is 1/w inside and 0 outside.
    """

    name: ClassVar[str] = "huber"

    def value(self, z: Array) -> Array:
        """``w s (|r|/w - s/2)`` with ``s = min(|r|/w, 1)``."""
        xp = namespace(z)
        size = xp.abs(z / self.width)
        s = xp.minimum(size, 1.0)
        return self.width * s * (size - s / 2)

    def slope(self, z: Array) -> Array:
        """clip(r/w, -1, 1)."""
        return namespace(z).clip(z / self.width, -1.0, 1.0)

    def curvature(self, z: Array) -> Array:
        """1/w where ``|r| <= w``, else 0."""
        return (namespace(z).abs(z) <= self.width) * self.c1
