"""Measures of a model from a noisy histogram of its scores by label: free post-processing.

Every measure is a smooth function of the cells. Its interval adds up, cell by cell, the variance of
the noise and that of a sample of rows, each times the squared slope of the measure.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt

import numpy as np
from scipy.special import expit

from dynadp._arrays import Array
from dynadp._intervals import Z
from dynadp.mechanisms import FAINT, NoisyHistogram
from dynadp.runs.calibration import Calibration
from dynadp.runs.measures import BINS, NAMES, CalibrationBin, Measure, Measures

_SAME = 1e-9  # of a bin: a threshold so near to an edge is at it


def histogram_measures(
    histogram: NoisyHistogram, threshold: float = 0.0, calibration: Calibration | None = None
) -> Measures:
    """Return all measures; those that noise drowns are left out.

    Scores of one bin count as equal, so an area under the curve is that of rounded scores.

    Parameters
    ----------
    histogram
        As released.
    threshold
        Scores above it are answered with yes; of the bin that it is in, as large a part as lies
        above it.
    calibration
        How scores become probabilities; without it there is no log-loss, Brier score and
        calibration curve.
    """
    if not len(histogram.edges):
        rows = max(int(np.rint(histogram.counts.sum())), 0)
        return Measures(rows=rows, positive=0, confusion={}, found=_of_classes(histogram))
    h, yes = histogram.counts, _above(histogram, threshold)
    p = None if calibration is None else expit(calibration.log_odds(histogram.centres))
    both = h.sum(axis=1).min()
    known = {
        "recall": h[1].sum(),
        "specificity": h[0].sum(),
        "accuracy": h.sum(),
        "precision": (h @ yes).sum(),
    }
    found = {
        name: _measured(histogram, of)
        for name, of in _functions(yes, p).items()
        if known.get(name, both) > histogram.least
    }
    right, wrong = np.rint(np.maximum(h @ yes, 0)), np.rint(np.maximum(h @ (1 - yes), 0))
    return Measures(
        rows=max(int(np.rint(h.sum())), 0),
        positive=max(int(np.rint(h[1].sum())), 0),
        confusion={
            "true_positive": int(right[1]),
            "false_positive": int(right[0]),
            "true_negative": int(wrong[0]),
            "false_negative": int(wrong[1]),
        },
        found={name: found[name] for name in NAMES if name in found},
        calibration=() if p is None else _curve(histogram, p),
    )


def _above(histogram: NoisyHistogram, threshold: float) -> Array:
    """The part of each bin that is above a threshold, as if its rows were spread evenly; those at
    the ends are as wide as the others.
    """
    width = histogram.edges[1] - histogram.edges[0]
    part = (histogram.edges - threshold) / width
    ends = np.clip([*part, part[-1] + 1], 0.0, 1.0)
    whole = np.abs(ends - np.rint(ends)) < _SAME
    return np.asarray(np.where(whole, np.rint(ends), ends))


def _functions(yes: Array, p: Array | None) -> dict[str, Callable[[Array], float]]:
    """Every measure as a function of the cells."""

    def recall(h: Array) -> float:
        return _share(h[1] @ yes, h[1].sum())

    def specificity(h: Array) -> float:
        return _share(h[0] @ (1 - yes), h[0].sum())

    found: dict[str, Callable[[Array], float]] = {
        "accuracy": lambda h: _share(h[1] @ yes + h[0] @ (1 - yes), h.sum()),
        "balanced_accuracy": lambda h: (recall(h) + specificity(h)) / 2,
        "recall": recall,
        "specificity": specificity,
        "precision": lambda h: _share(h[1] @ yes, (h @ yes).sum()),
        "auc": _auc,
        "average_precision": _average_precision,
    }
    if p is not None:
        surprise = np.stack([-np.log1p(-p), -np.log(p)])
        square = np.stack([p**2, (1 - p) ** 2])
        found["log_loss"] = lambda h: _share((h * surprise).sum(), h.sum())
        found["brier"] = lambda h: _share((h * square).sum(), h.sum())
    return found


def _curve(histogram: NoisyHistogram, p: Array) -> tuple[CalibrationBin, ...]:
    """How often rows of about equal probability are positive, where noise does not drown them."""
    place, made = np.minimum((p * BINS).astype(int), BINS - 1), []
    for k in np.unique(place).tolist():
        inside = (place == k).astype(float)
        rows = histogram.counts @ inside
        if rows.sum() <= FAINT * max(histogram.noise, 1.0) * sqrt(2 * inside.sum()):
            continue
        share = _measured(histogram, partial(_positive_part, inside))
        weights = np.maximum(histogram.counts.sum(axis=0) * inside, 0.0)
        mean = float(np.average(p, weights=weights))
        made.append(CalibrationBin(k / BINS, (k + 1) / BINS, int(np.rint(rows.sum())), mean, share))
    return tuple(made)


def _of_classes(histogram: NoisyHistogram) -> dict[str, Measure]:
    """Measures of noisy numbers by label and answer."""
    h, J = histogram.counts, len(histogram.counts)
    functions: Mapping[str, Callable[[Array], float]] = {
        "accuracy": lambda h: _share(np.trace(h), h.sum()),
        "balanced_accuracy": lambda h: float(
            np.mean([_share(h[j, j], h[j].sum()) for j in range(J)])
        ),
        "precision": lambda h: float(np.mean([_share(h[j, j], h[:, j].sum()) for j in range(J)])),
    }
    known = {
        "accuracy": h.sum() / J,
        "balanced_accuracy": h.sum(axis=1).min(),
        "precision": h.sum(axis=0).min(),
    }
    floor = FAINT * max(histogram.noise, 1.0) * sqrt(J)
    return {n: _measured(histogram, of) for n, of in functions.items() if known[n] > floor}


def _measured(histogram: NoisyHistogram, of: Callable[[Array], float]) -> Measure:
    """The measure at the released cells, with sum_k (s^2 + n_k) (slope of cell k)^2 as variance."""
    h, value = histogram.counts, of(histogram.counts)
    move, variance = max(histogram.noise, 1.0), 0.0
    for cell in np.ndindex(*h.shape):
        up, down = h.copy(), h.copy()
        up[cell] += move
        down[cell] -= move
        slope = (of(up) - of(down)) / (2 * move)
        variance += (histogram.noise**2 + max(float(h[cell]), 1.0)) * slope**2
    spread = Z * sqrt(variance)
    return Measure(
        min(max(value, 0.0), 1.0), max(value - spread, 0.0), min(max(value + spread, 0.0), 1.0)
    )


def _positive_part(inside: Array, h: Array) -> float:
    """The share of positive rows in some bins."""
    return _share(float(h[1] @ inside), float((h @ inside).sum()))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _auc(h: Array) -> float:
    """Pairs in order, and half of those in one bin, over all pairs."""
    below = np.cumsum(h[0]) - h[0] / 2
    return _share(float(h[1] @ below), float(h[0].sum() * h[1].sum()))


def _average_precision(h: Array) -> float:
    """sum of (recall gained) x precision, from the highest bin down, where half of the bin's own
    rows come first: rows of a bin are in random order.
    """
    yes, rows = h[1, ::-1], h.sum(axis=0)[::-1]
    right, all_ = np.cumsum(yes) - yes / 2, np.cumsum(rows) - rows / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(all_ > 0, np.clip(right / all_, 0.0, 1.0), 0.0)
    return _share(float(yes @ precision), float(h[1].sum()))
