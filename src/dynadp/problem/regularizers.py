"""Regularisers R(f): 1-strongly convex, R(0) = 0 is the minimum (paper, Assumption 2; maths.md 8).

Both are sums over coordinates, so gradient and Hessian diagonal are vectors. The privacy proofs use
only Hessian >= I, which holds for any R of the form ||f||^2/2 + something convex.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dynadp._arrays import Array, dot, namespace
from dynadp.errors import DeclarationError
from dynadp.problem.declared_bounds import BoundCheck
from dynadp.problem.registry import Named


class Regularizer(Named):
    """R(f) = sum_j r(f_j) with r'' >= 1, r(0) = r'(0) = 0.

    A subclass that sets ``name`` can be used by that name in run files.
    """

    registry: ClassVar[dict[str, type[Any]]] = {}

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Sup r''."""

    @abstractmethod
    def value(self, f: Array) -> Array:
        """R over the last axis."""

    @abstractmethod
    def gradient(self, f: Array) -> Array:
        """r'(f_j), elementwise."""

    @abstractmethod
    def curvature(self, f: Array) -> Array:
        """r''(f_j), elementwise: the diagonal of the Hessian."""


@dataclass(frozen=True)
class SquaredL2(Regularizer):
    """R(f) = ||f||^2 / 2; r'' = 1."""

    name: ClassVar[str] = "squared_l2"
    ignored: ClassVar[tuple[str, ...]] = ("l1", "scale")

    @property
    def smoothness(self) -> float:
        """1."""
        return 1.0

    def value(self, f: Array) -> Array:
        """||f||^2/2."""
        return 0.5 * dot(f, f)

    def gradient(self, f: Array) -> Array:
        """f."""
        return f

    def curvature(self, f: Array) -> Array:
        """1."""
        return namespace(f).ones_like(f)


@dataclass(frozen=True)
class SmoothElasticNet(Regularizer):
    """R(f) = ||f||^2/2 + k sum_j ( sqrt(f_j^2 + s^2) - s ).

    The l1 norm of the elastic net, smoothed at scale s, so that small coefficients are pulled
    harder to zero. r'' = 1 + k s^2 (f^2 + s^2)^(-3/2) lies in [1, 1 + k/s]: 1-strongly convex and
    not quadratic.
    """

    l1: float = 1.0
    scale: float = 0.1
    name: ClassVar[str] = "smooth_elastic_net"

    def __post_init__(self) -> None:
        for field, value, good in (
            ("l1", self.l1, self.l1 >= 0),
            ("scale", self.scale, self.scale > 0),
        ):
            if not (np.isfinite(value) and good):
                limit = "not below 0" if field == "l1" else "above 0"
                raise DeclarationError(
                    f"smooth_elastic_net: {field} is {value!r}; expected a finite number {limit}"
                )

    @property
    def smoothness(self) -> float:
        """1 + k/s."""
        return 1.0 + self.l1 / self.scale

    def value(self, f: Array) -> Array:
        """||f||^2/2 + k sum f^2/(sqrt(f^2 + s^2) + s), the same without cancellation."""
        root = namespace(f).hypot(f, self.scale)
        return (f * f * (0.5 + self.l1 / (root + self.scale))).sum(axis=-1)

    def gradient(self, f: Array) -> Array:
        """f (1 + k/sqrt(f^2 + s^2))."""
        return f * (1.0 + self.l1 / namespace(f).hypot(f, self.scale))

    def curvature(self, f: Array) -> Array:
        """1 + (k/s) (1 + (f/s)^2)^(-3/2)."""
        return 1.0 + self.l1 / self.scale * (1.0 + (f / self.scale) ** 2) ** -1.5


def check_regularizer(regularizer: Regularizer) -> None:
    """Try to refute r'' >= 1, r'' <= smoothness, r(0) = r'(0) = 0, r' = dr/df and "a sum over
    coordinates" on [-1e6, 1e6].

    A check on points can refute the declared constants, never prove them: they remain the author's
    responsibility.

    Raises
    ------
    DeclarationError
        Naming the bound that breaks and where.
    """
    where, most = regularizer.describe()["name"], float(regularizer.smoothness)
    if not (np.isfinite(most) and most >= 1):
        raise DeclarationError(
            f"regulariser {where!r} declares sup r'' = {most!r}; expected a finite number of at "
            f"least 1"
        )
    trial = BoundCheck(f"regulariser {where!r}", "f", DeclarationError)
    value, slope, curvature, alone = trial.values(
        {
            "r": lambda f: regularizer.value(f[:, None]),
            "r'": regularizer.gradient,
            "r''": regularizer.curvature,
            "r' of one number": lambda f: regularizer.gradient(f[:, None])[:, 0],
        }
    )
    f, step, refute, apart = trial.at, trial.step, trial.refute, alone - slope
    refute(
        "'a sum over coordinates' (r' alone minus r' among others)",
        np.abs(apart) > 1e-12 * (1 + np.abs(slope)),
        apart,
    )
    refute("r(0) = 0", (f == 0) & (np.abs(value) > 1e-12), value)
    refute("r'(0) = 0", (f == 0) & (np.abs(slope) > 1e-12), slope)
    refute("r'' >= 1", curvature < 1 - 1e-12, curvature)
    refute(f"r'' <= {most:g}", curvature > most * (1 + 1e-9), curvature)

    # What was declared about r'' is checked on r' too, since only r' enters the solution.
    size = np.maximum(np.abs(slope[1:]), np.abs(slope[:-1]))
    quotient, noise = np.diff(slope) / step, (1e-14 * size + 1e-15) / step
    refute("r'' >= 1 (slope of its slope)", quotient < 1 - 1e-12 - noise, quotient)
    refute(f"r'' <= {most:g} (slope of its slope)", quotient > most * (1 + 1e-9) + noise, quotient)
    gap = np.diff(value) - 0.5 * step * (slope[1:] + slope[:-1])
    allowed = 0.25 * most * step**2 + 1e-12 * np.maximum(np.abs(value[1:]), np.abs(value[:-1]))
    refute("r' = dr/df (change of r minus area under r')", np.abs(gap) > allowed, gap)
