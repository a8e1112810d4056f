"""From scores to probabilities: p = 1/(1 + e^-(a score + b)), with a and b found on public rows or
in a histogram that was released and paid for (Platt 1999).
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from dynadp._arrays import Array
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms import NoisyHistogram


@dataclass(frozen=True)
class Calibration:
    """How scores become probabilities.

    Attributes
    ----------
    slope, offset
        a and b.
    source
        On what they were found, in words.
    positives
        The share of rows of the second class there; None where an older file does not say.
    """

    slope: float
    offset: float
    source: str
    positives: float | None = None

    def log_odds(self, scores: Array) -> Array:
        """A score + b."""
        return self.slope * scores + self.offset

    def __post_init__(self) -> None:
        if not (isfinite(self.slope) and self.slope > 0 and isfinite(self.offset)):
            raise DeclarationError(
                f"slope is {self.slope!r} and offset {self.offset!r}; expected finite numbers, the "
                "slope above 0: larger scores speak for the second class"
            )


def calibrated(scores: Array, negative: Array, positive: Array, source: str) -> Calibration:
    """argmin over a > 0, b of the log-loss, with Platt's targets (n + 1)/(n + 2), which keep a
    finite where labels can be told apart by scores.

    Parameters
    ----------
    scores
        Of rows, or of bins.
    negative, positive
        How many rows of each label have this score. Released numbers are taken with their noise,
        also where they are below 0: cut off at 0 they would add rows where there are none.
    source
        Where they come from, in words.
    """
    no, yes = np.asarray(negative, dtype=float), np.asarray(positive, dtype=float)
    n, m = float(no.sum()), float(yes.sum())
    if n < 1 or m < 1:
        raise DataError(
            "probabilities need rows of both labels to be found on; give others, or more of them"
        )
    high, low = (m + 1) / (m + 2), 1 / (n + 2)
    for_yes, for_no = yes * high + no * low, yes * (1 - high) + no * (1 - low)
    square = float(np.average(scores**2, weights=np.maximum(no + yes, 0.0)))
    scale = float(np.sqrt(square)) or 1.0

    def loss(at: Array) -> tuple[float, Array]:
        z = np.exp(at[0]) * scores / scale + at[1]
        value = -float(for_yes @ log_expit(z) + for_no @ log_expit(-z))
        residual = (for_yes + for_no) * expit(z) - for_yes
        slopes = np.array([residual @ (np.exp(at[0]) * scores / scale), residual.sum()])
        return value / (n + m), slopes / (n + m)

    found = minimize(
        loss, np.array([0.0, np.log(m / n)]), jac=True, method="L-BFGS-B", bounds=[(-9, 9)] * 2
    )
    slope = float(np.exp(found.x[0]) / scale)
    return Calibration(slope, float(found.x[1]), source, m / (n + m))


def calibration_of(histogram: NoisyHistogram) -> Calibration | None:
    """Return what a released histogram of scores says; None where noise drowns a label's rows."""
    if histogram.faint:
        return None
    source = f"a histogram of private rows that was released for mu = {histogram.mu:g}"
    negative, positive = histogram.counts
    return calibrated(histogram.centres, negative, positive, source)
