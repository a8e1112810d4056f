"""What is shown beside a measured number: the spread over draws of the noise, and the sampling
error of the rows.

A share of right or wrong answers is measured on finitely many rows. Its interval therefore holds
both: the middle 8 of 10 draws of the noise, and at each end Wilson's 95% interval for a share of
that many rows.
"""

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

from dynadp.errors import DeclarationError

BAND = (0.1, 0.9)  # quantiles over draws
Z = 1.959964  # two-sided 95% of a normal law
ONE = "95% interval for the sampling error of the rows"
SEVERAL = (
    "the 10% to 90% quantiles of the draws of the noise, widened by the sampling error (95%) of "
    "the rows"
)


def wilson(share: float, rows: int, z: float = Z) -> tuple[float, float]:
    """(p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n): where the true share lies, for a
    share p of n rows.

    Parameters
    ----------
    share
        Measured, from 0 to 1.
    rows
        n.
    z
        Quantile of the normal law; 95% by default.

    >>> [round(end, 3) for end in wilson(0.9, 50)]
    [0.786, 0.957]
    """
    if not (rows >= 1 and 0 <= share <= 1):
        raise DeclarationError(
            f"share is {share!r} of {rows!r} rows; expected a number in [0, 1], of at least one row"
        )
    spread = z * sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    middle, scale = share + z * z / (2 * rows), 1 + z * z / rows
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)


def quantile_band(values: ArrayLike, rows: int | None = None) -> dict[str, float]:
    """Median over draws, and from where to where: the 10% and 90% quantiles, widened where the
    values are shares of rows.

    Parameters
    ----------
    values
        One for each draw; a single share has Wilson's interval alone.
    rows
        How many rows each value is a share of; None for values that are no shares, which have no
        such error.
    """
    v = np.asarray(values, dtype=float)
    low, high = (float(end) for end in np.quantile(v, BAND))
    if rows is not None:
        low, high = wilson(low, rows)[0], wilson(high, rows)[1]
    return {"median": float(np.median(v)), "low": low, "high": high}


def standard_error(values: ArrayLike, rows: int | None = None) -> float:
    """sqrt(pi s²/2K + h²) of the median of K draws; h, that of a share of rows, is Wilson's half
    width over 1.96.

    Parameters
    ----------
    values, rows
        As for :func:`quantile_band`. With one draw s is 0; without rows h is 0.
    """
    v = np.asarray(values, dtype=float)
    drawn = np.pi / 2 * float(np.var(v, ddof=1)) / len(v) if len(v) > 1 else 0.0
    low, high = (0.0, 0.0) if rows is None else wilson(float(np.median(v)), rows)
    return sqrt(drawn + ((high - low) / (2 * Z)) ** 2)
