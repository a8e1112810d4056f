"""The loss of several classes (maths.md 20): one vector of scores a row, and slopes of bounded
length.
"""

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import ClassVar

import numpy as np

from dynadp._arrays import Array, namespace
from dynadp.data import Kind
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Logistic, Loss


@dataclass(frozen=True)
class Softmax(Loss):
    """L(f, y) = ln sum_j e^(f_j + m [j != y]) - f_y: cross-entropy with a margin m.

    The slope by f is sigma = p - e_y, p the softmax of f_j + m [j != y]; ||sigma||^2 <= (1 - p_y)^2
    + (sum of the other p_j)^2 = 2 (1 - p_y)^2 <= 2. A slope that is longer than ``longest`` is
    shortened to it: only rows that are answered wrongly with great certainty have such, and they
    would make noise sqrt(2) times as long for all. Of two classes it is the logistic loss of f_y
    less the other's score; :meth:`value`, :meth:`slope` and :meth:`curvature` are those.

    Attributes
    ----------
    margin
        m; scores are log-odds where it is 0 and ``longest`` is sqrt(2).
    longest
        The bound on ||sigma||, at most sqrt(2).
    """

    margin: float = 2.0
    longest: float = 1.0
    name: ClassVar[str] = "softmax"
    kind: ClassVar[Kind] = "classes"

    def __post_init__(self) -> None:
        if not isfinite(self.margin):
            raise DeclarationError(f"softmax: margin is {self.margin!r}; expected a finite number")
        if not 0 < self.longest <= sqrt(2.0):
            raise DeclarationError(
                f"softmax: longest is {self.longest!r}; expected a number above 0, at most sqrt(2) "
                "= 1.4142135623730951, which no slope passes"
            )

    @property
    def c1(self) -> float:
        """1/4: of the logistic loss between two classes."""
        return self._pair.c1

    @property
    def slope_bound(self) -> float:
        """``longest``."""
        return self.longest

    @property
    def _pair(self) -> Logistic:
        return Logistic(self.margin)

    def value(self, z: Array) -> Array:
        """ln(1 + e^(m - z))."""
        return self._pair.value(z)

    def slope(self, z: Array) -> Array:
        """Of :meth:`value`."""
        return self._pair.slope(z)

    def curvature(self, z: Array) -> Array:
        """Of :meth:`value`."""
        return self._pair.curvature(z)

    def slopes(self, F: Array, y: Array) -> Array:
        """p - e_y, shortened to ``longest``.

        Parameters
        ----------
        F
            Scores, n x K x classes.
        y
            The number of each row's class, n.
        """
        xp = namespace(F)
        own = (xp.arange(F.shape[-1]) == y[:, None])[:, None, :]
        raised = xp.where(own, F, F + self.margin)
        e = xp.exp(raised - raised.max(axis=-1, keepdims=True))
        sigma = e / e.sum(axis=-1, keepdims=True) - own
        size = xp.sqrt((sigma * sigma).sum(axis=-1, keepdims=True))
        return sigma * (self.longest / xp.maximum(size, self.longest))


def probabilities(scores: Array) -> Array:
    """e^s_j / sum_k e^s_k over the last axis."""
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))
