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
NOISY = "95% interval for the noise and the sampling error of the rows"
SEVERAL = (
    "the 10% to 90% quantiles of the draws of the noise, widened by the sampling error (95%) of "
    "the rows"
)


def significant(value: float, count: int) -> str:
    """Write so many digits, zeros at the end too, so that a rounded number does not look exact.

    >>> significant(2.0, 4), significant(0.03, 3), significant(1234.5, 4)
    ('2.000', '0.0300', '1234')
    """
    return f"{value:#.{count}g}".rstrip(".")


def written(value: float) -> str:
    """A measure as every command and page writes it: with four places, fewer of large numbers.

    >>> written(0.64259), written(12345.678), written(0.00001234)
    ('0.6426', '12,345.7', '1.234e-05')
    """
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.4g}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


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


def paired_band(only_first: ArrayLike, only_second: ArrayLike, rows: int) -> dict[str, float]:
    """(b - c)/(n + 2) ± z sqrt(b + c + 1 - (b - c)²/(n + 2))/(n + 2): the difference of two shares
    of the same n rows (Agresti and Min, Statistics in Medicine 24, 2005).

    b rows count for the first share alone, c for the second alone. Over several draws: the median
    of (b - c)/n, the 10% quantile of the lower ends and the 90% quantile of the upper ends.

    Parameters
    ----------
    only_first, only_second
        b and c of each draw.
    rows
        n.

    >>> [round(end, 3) for end in paired_band([30], [10], 100).values()]
    [0.2, 0.079, 0.313]
    """
    b, c = np.asarray(only_first, dtype=float), np.asarray(only_second, dtype=float)
    if rows < 1 or b.shape != c.shape or (np.minimum(b, c) < 0).any() or (b + c > rows).any():
        raise DeclarationError(
            f"{rows!r} rows, of which {only_first!r} and {only_second!r} differ; expected at least "
            "one row, and not more that differ than there are"
        )
    spread = Z * np.sqrt(b + c + 1 - (b - c) ** 2 / (rows + 2)) / (rows + 2)
    middle = (b - c) / (rows + 2)
    return {
        "median": float(np.median((b - c) / rows)),
        "low": float(np.quantile(middle - spread, BAND[0])),
        "high": float(np.quantile(middle + spread, BAND[1])),
    }


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
