"""Where privacy costs nothing more, where it is worth its price, and where nothing is learnt: of
measured losses, which fall as the total grows (maths.md 10).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

Point = Mapping[str, Any]
APART = 2.0  # standard errors by which two measured objectives must differ to count as different
GAIN = 0.005  # a loss that is smaller by less than this is no further gain


def upper_loss(point: Point) -> float:
    """The upper end of the loss: of its interval, or APART standard errors above the median."""
    return float(point.get("high", point["median"] + APART * point.get("error", 0.0)))


def is_useful(point: Point, blind: float | None) -> bool:
    """Whether the loss lies below that of answers that look at no row by more than its own noise:
    the whole interval, with the sampling error of the rows. True where that loss is not known.
    """
    return blind is None or upper_loss(point) < blind


def evened(points: Sequence[Point]) -> list[dict[str, float]]:
    """argmin over x_1 >= x_2 >= ... of sum ((x_i - loss_i)/error_i)^2: losses that fall, by
    isotonic regression.

    More of the total never makes a model worse but by chance. Where measured losses fall already,
    nothing changes. The ends of intervals are evened with the same weights, so they keep their
    order.

    Parameters
    ----------
    points
        In the order of their totals: ``median``, and ``low``, ``high`` and ``error`` where they are
        known.
    """
    errors = np.array([float(point.get("error", 0.0)) for point in points])
    least = max(1e-9, 1e-3 * float(errors.max(initial=0.0)))
    weights = np.maximum(errors, least) ** -2.0
    out = [dict(point) for point in points]
    for name in ("median", "low", "high"):
        if out and all(name in point for point in points):
            values = np.array([float(point[name]) for point in points])
            falling = isotonic_regression(values, weights=weights / weights.max(), increasing=False)
            for one, value in zip(out, falling.x, strict=True):
                one[name] = float(value)
    return out


@dataclass(frozen=True)
class Zones:
    """What more of the total buys, from measured point to measured point.

    Attributes
    ----------
    useful
        The smallest total from which on a model is better than answers that look at no row, by
        evened losses; None where none that was measured is.
    enough
        The smallest total from which on losses fall by less than GAIN in all.
    """

    useful: float | None
    enough: float

    @classmethod
    def of(cls, points: Sequence[Point], blind: float | None, by: str = "epsilon") -> "Zones":
        """Of measured losses in the order of their totals, by the number of this name."""
        falling = evened(points)
        useful = next((float(one[by]) for one in falling if is_useful(one, blind)), None)
        end = falling[-1]["median"] + GAIN
        enough = next(float(one[by]) for one in falling if one["median"] <= end)
        return cls(useful, max(enough, useful or 0.0))
