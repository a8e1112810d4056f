"""From scores to probabilities: p = 1/(1 + e^-(a score + b)), with a and b found on public rows or
in a histogram that was released and paid for (Platt 1999).
"""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from dynadp._arrays import Array
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms import NoisyHistogram
from dynadp.problem import probabilities

_STEPS, _NEAR = 50, 1e-6  # of finding weights and probabilities by turns


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

    def turned(self) -> "Calibration":
        """Of scores with the other sign, which speak for the other class."""
        share = None if self.positives is None else 1 - self.positives
        return replace(self, offset=-self.offset, positives=share)

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

    from scipy.optimize import minimize_scalar  # of runs with a calibration alone

    found = minimize_scalar(loss, bounds=(-9, 9), method="bounded")
    return Calibration(float(np.exp(found.x) / scale), 0.0, source)


def calibrated(
    scores: Array, negative: Array, positive: Array, source: str, noise: float = 0.0
) -> Calibration:
    """The a > 0 and b where sum_k w_k (m_k - p_k (n_k + m_k)) (1, s_k) = 0, p_k = sigmoid(a s_k +
    b): the smallest log-loss where there is no noise, as w_k is 1 then.

    With noise of deviation s in every number, w_k = v_k/(v_k + s^2 (p_k^2 + (1 - p_k)^2)), v_k =
    (n_k + m_k) p_k (1 - p_k): the share of a residual's variance that rows have in it. So empty
    bins, whose noise would be taken for rows far out, hardly count, and residuals stay 0 on
    average. Platt's targets (n + 1)/(n + 2) keep a finite where scores tell labels apart.

    Parameters
    ----------
    scores
        Of rows, or of bins: s_k.
    negative, positive
        How many rows of each label have this score, n_k and m_k; released ones with their noise.
    source
        Where they come from, in words.
    noise
        Its deviation in each of these numbers.
    """
    no, yes = np.asarray(negative, dtype=float), np.asarray(positive, dtype=float)
    n, m = float(no.sum()), float(yes.sum())
    if n < 1 or m < 1:
        raise DataError(
            "probabilities need rows of both labels to be found on; give others, or more of them"
        )
    high, low = (m + 1) / (m + 2), 1 / (n + 2)
    for_yes, for_no = yes * high + no * low, yes * (1 - high) + no * (1 - low)
    rows = np.maximum(no + yes, 0.0)
    scale = float(np.sqrt(np.average(scores**2, weights=rows))) or 1.0
    x, share = scores / scale, m / (n + m)
    start = np.array([0.0, np.log(m / n)])
    w = np.ones(len(x)) if not noise else _shares(np.full(len(x), share), rows, noise)

    def loss(at: Array) -> tuple[float, Array]:
        z = np.exp(at[0]) * x + at[1]
        value = -float(w @ (for_yes * log_expit(z) + for_no * log_expit(-z)))
        residual = w * ((for_yes + for_no) * expit(z) - for_yes)
        slopes = np.array([residual @ (np.exp(at[0]) * x), residual.sum()])
        return value / (n + m), slopes / (n + m)

    from scipy.optimize import minimize

    for _ in range(_STEPS if noise else 1):
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-9, 9)] * 2).x
        near = float(np.abs(found - start).max()) < _NEAR
        start = found
        if near:
            break
        w = _shares(expit(np.exp(found[0]) * x + found[1]), rows, noise) if noise else w
    return Calibration(float(np.exp(start[0]) / scale), float(start[1]), source, share)


def _shares(p: Array, rows: Array, noise: float) -> Array:
    """w_k: the share of rows in the variance of each residual."""
    v = rows * p * (1 - p)
    return np.asarray(v / (v + noise**2 * (p**2 + (1 - p) ** 2)))


def calibration_of(histogram: NoisyHistogram) -> Calibration | None:
    """Return what a released histogram of scores says; None where noise drowns a label's rows."""
    if histogram.faint:
        return None
    source = f"a histogram of private rows that was released for mu = {histogram.mu:g}"
    negative, positive = histogram.counts
    return calibrated(histogram.centres, negative, positive, source, histogram.noise)
