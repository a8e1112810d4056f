"""From scores to probabilities: p = 1/(1 + e^-(a score + b)), with a and b found on public rows or
in a histogram that was released and paid for (Platt 1999).
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit

from dynadp._arrays import Array
from dynadp.errors import DataError, DeclarationError
from dynadp.problem import probabilities


@dataclass(frozen=True)
class Calibration:
    """How scores become probabilities.

    Attributes
    ----------
    slope, offset
        a and b.
    source
        On what they were found, in words.
    """

    slope: float
    offset: float
    source: str

    def __post_init__(self) -> None:
        if not (isfinite(self.slope) and self.slope > 0 and isfinite(self.offset)):
            raise DeclarationError(
                f"slope is {self.slope!r} and offset {self.offset!r}; expected finite numbers, the "
                "slope above 0: larger scores speak for the second class"
            )


def class_calibrated(scores: Array, y: NDArray[np.int64], source: str) -> Calibration:
    """argmin over a > 0 of the log-loss of softmax(a scores): one number for all classes (Guo,
    Pleiss, Sun, Weinberger 2017); e^-9 <= a times the scores' root mean square <= e^9.

    Parameters
    ----------
    scores
        n x classes.
    y
        The number of each row's class.
    source
        Where they come from, in words.
    """
    if not len(y):
        raise DataError("probabilities need rows to be found on; give others, or more of them")
    scale = float(np.sqrt(np.mean(scores**2))) or 1.0

    def loss(log_slope: float) -> float:
        p = probabilities(np.exp(log_slope) / scale * scores)[np.arange(len(y)), y]
        return -float(np.log(np.clip(p, 1e-300, 1.0)).mean())

    found = minimize_scalar(loss, bounds=(-9, 9), method="bounded")
    return Calibration(float(np.exp(found.x) / scale), 0.0, source)


def calibrated(scores: Array, negative: Array, positive: Array, source: str) -> Calibration:
    """argmin over a > 0, b of the log-loss, with Platt's targets (n + 1)/(n + 2), which keep a
    finite where labels can be told apart by scores.

    Parameters
    ----------
    scores
        Of rows, or of bins.
    negative, positive
        How many rows of each label have this score; numbers below 0 count as 0.
    source
        Where they come from, in words.
    """
    no, yes = np.maximum(negative, 0.0), np.maximum(positive, 0.0)
    n, m = float(no.sum()), float(yes.sum())
    if n < 1 or m < 1:
        raise DataError(
            "probabilities need rows of both labels to be found on; give others, or more of them"
        )
    high, low = (m + 1) / (m + 2), 1 / (n + 2)
    for_yes, for_no = yes * high + no * low, yes * (1 - high) + no * (1 - low)
    scale = float(np.sqrt(np.average(scores**2, weights=no + yes))) or 1.0

    def loss(at: Array) -> tuple[float, Array]:
        z = np.exp(at[0]) * scores / scale + at[1]
        value = -float(for_yes @ log_expit(z) + for_no @ log_expit(-z))
        residual = (for_yes + for_no) * expit(z) - for_yes
        slopes = np.array([residual @ (np.exp(at[0]) * scores / scale), residual.sum()])
        return value / (n + m), slopes / (n + m)

    found = minimize(
        loss, np.array([0.0, np.log(m / n)]), jac=True, method="L-BFGS-B", bounds=[(-9, 9)] * 2
    )
    return Calibration(float(np.exp(found.x[0]) / scale), float(found.x[1]), source)
