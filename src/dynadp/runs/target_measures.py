"""How good a model's numbers are: R2, mean absolute error and root of the mean squared error, each
with an interval that includes sampling error; on public rows, or from noisy sums over private ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import Z
from dynadp.data import Target
from dynadp.errors import DataError
from dynadp.mechanisms import NoisyErrors
from dynadp.runs.measures import Measure, MeasureKind

TARGET_NAMES: Mapping[str, str] = {
    "r2": "R2 (share of the variance that is explained)",
    "mae": "mean absolute error",
    "rmse": "root of the mean squared error",
}
TARGET_KINDS: Mapping[str, MeasureKind] = {  # errors as shares of the target's range
    "r2": MeasureKind("R2"),
    "mae": MeasureKind("mean absolute error (of 1 for the target's range)", False),
    "rmse": MeasureKind("root of the mean squared error (of 1 for the target's range)", False),
}
_FAINT = 4.0  # deviations of its noise that a sum must exceed to be of use


@dataclass(frozen=True)
class TargetMeasures:
    """All measures of a model that answers a number, on some rows.

    Attributes
    ----------
    rows
        How many there are.
    mean_error
        The root of the mean squared error of always answering the rows' mean.
    found
        By name; R2 is missing where all rows have one value.
    """

    rows: int
    mean_error: float
    found: Mapping[str, Measure] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers."""
        return {
            "rows": self.rows,
            "mean_error": self.mean_error,
            "measures": {name: found.to_json() for name, found in self.found.items()},
        }


def measures_of_target(predicted: Array, actual: Array) -> TargetMeasures:
    """Return all measures; intervals are normal, from the effect of each row on the measure.

    R2 = 1 - A/B, A = sum (p - y)^2 and B = sum (y - mean)^2: one more row moves it by
    ((A/B) (y - mean)^2 - (p - y)^2)/B, to first order.

    Parameters
    ----------
    predicted, actual
        p and y of each row, in the target's units.
    """
    n = len(actual)
    if not n:
        raise DataError("there are no rows to measure on")
    errors, about = np.abs(predicted - actual), (actual - actual.mean()) ** 2
    squares = errors**2
    mae, mse, variance = float(errors.mean()), float(squares.mean()), float(about.mean())
    rmse = sqrt(mse)
    found = {}
    if variance > 0:
        effects = (mse / variance * about - squares) / variance
        r2 = 1 - mse / variance
        reach = _reach(effects)
        found["r2"] = Measure(r2, r2 - reach, min(r2 + reach, 1.0))
    found["mae"] = _above_zero(mae, _reach(errors))
    found["rmse"] = _above_zero(rmse, _reach(squares) / (2 * rmse) if rmse else 0.0)
    return TargetMeasures(n, sqrt(variance), found)


def _reach(effects: Array) -> float:
    """Half of the interval of a mean."""
    n = len(effects)
    return Z * float(effects.std(ddof=1)) / sqrt(n) if n > 1 else float("inf")


def _above_zero(value: float, reach: float) -> Measure:
    return Measure(value, max(value - reach, 0.0), value + reach)


def noisy_target_measures(released: NoisyErrors, target: Target) -> dict[str, Measure]:
    """Return measures by name; those that noise drowns are left out.

    Intervals hold noise and a sample of rows, to first order. What the sums do not say, how far
    squared errors and squared targets spread, is bounded by their range, so that intervals are wide
    rather than narrow.

    Parameters
    ----------
    released
        Sums over rows.
    target
        Its public bounds.
    """
    n, u, u2, t, t2 = released.sums.tolist()
    s_n, s_u, s_u2, s_t, s_t2 = released.noise.tolist()
    if n < _FAINT * s_n:
        return {}
    whole, found = target.high - target.low, dict[str, Measure]()
    mean, mean2, middle = u / n, u2 / n, t / n
    variance = t2 / n - middle**2
    spread2 = max(mean2 * (1 - mean2), 0.0)  # of u^2, which lies in [0, 1]
    if variance * n > _FAINT * s_t2 and u2 > 0:
        ratio = 4 * mean2 / variance
        spread = max(variance * ((1 + abs(middle)) ** 2 - variance), 0.0)
        sampling = (4 * sqrt(spread2) + ratio * sqrt(spread)) ** 2 / n
        # of 1 - 4 u2/(t2 - t^2/n), by u2, t2, t and n
        slopes = np.array([4.0, -ratio, 2 * ratio * middle, -ratio * middle**2]) / n
        noise = float(np.sum((slopes * [s_u2, s_t2, s_t, s_n]) ** 2))
        reach = Z * sqrt(sampling + noise) / variance
        found["r2"] = Measure(1 - ratio, 1 - ratio - reach, min(1 - ratio + reach, 1.0))
    if u > _FAINT * s_u:
        sampling = max(mean2 - mean**2, 0.0) / n
        reach = Z * sqrt(sampling + (s_u / n) ** 2 + (mean * s_n / n) ** 2)
        found["mae"] = _within(whole * mean, whole * reach, whole)
    if u2 > _FAINT * s_u2:
        noise = (s_u2 / n) ** 2 + (mean2 * s_n / n) ** 2
        reach = Z * sqrt(spread2 / n + noise) / (2 * sqrt(mean2))
        found["rmse"] = _within(whole * sqrt(mean2), whole * reach, whole)
    return found


def _within(value: float, reach: float, most: float) -> Measure:
    value = min(value, most)
    return Measure(value, max(value - reach, 0.0), min(value + reach, most))
