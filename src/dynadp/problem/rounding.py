"""How far float64 rounding may put a computed gradient off (maths.md 6)."""

from functools import cache
from typing import NamedTuple

import numpy as np

from dynadp._arrays import Array, dot_roundings

_UNIT = 2.0**-53


def rounding(n: float | Array) -> Array:
    """k_n = n u / (1 - n u), u = 2^-53: the relative error of n roundings (Higham, Lemma 3.1)."""
    n = np.asarray(n, dtype=float)
    return np.asarray(n * _UNIT / (1 - n * _UNIT))


@cache
def rounding_of(n: int) -> float:
    """k_n of a small whole number."""
    return float(rounding(n))


def margin_rounding(dimension: int, residual: bool = False) -> float:
    """k_{m+2}, the relative error of a margin; k_{m+3} of a residual, relative to ||f|| + 1."""
    return rounding_of(dot_roundings(dimension) + 2 + residual)


class Roundings(NamedTuple):
    """Errors of P problems by where they arise, each P x 1.

    Attributes
    ----------
    margins
        C_p c1 k_{m+2}, for each unit of ||f||; k_{m+3} where they are residuals.
    sums
        C_p k_{B+8}; of residuals C_p c1 k_{m+3} more, for their targets.
    slopes
        C_p k_{m+2}: of a slope along a line, for each unit of ||f||.
    """

    margins: Array
    sums: Array
    slopes: Array

    @classmethod
    def of(
        cls, counts: Array, dimension: int, C: Array, c1: float, residual: bool = False
    ) -> "Roundings":
        """From the public numbers of the problems."""
        C, margin = C[:, None], margin_rounding(dimension, residual)
        margins, sums = C * c1 * margin, C * rounding(counts + 8)[:, None]
        return cls(margins, sums + margins if residual else sums, C * margin)
