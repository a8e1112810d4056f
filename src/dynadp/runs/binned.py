"""Measures of a model from a noisy histogram of its scores by label: free post-processing.

Every measure is a smooth function of the cells. Its interval adds up, cell by cell, the variance of
the noise and that of a sample of rows, each times the squared slope of the measure.
"""

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import Z
from dynadp.mechanisms import NoisyHistogram
from dynadp.runs.measures import Measure

_FAINT = 4.0  # deviations of its noise that the number of rows of a label must exceed


def histogram_measures(histogram: NoisyHistogram, threshold: float = 0.0) -> dict[str, Measure]:
    """Return measures by name; those that noise drowns are left out.

    Scores of one bin count as equal, so an area under the curve is that of rounded scores.

    Parameters
    ----------
    histogram
        As released.
    threshold
        Scores above it are answered with yes: an edge of the bins, or the next edge above.
    """
    if not len(histogram.edges):
        return _of_classes(histogram)
    yes = np.append(False, histogram.edges >= threshold)
    functions: Mapping[str, Callable[[Array], float]] = {
        "accuracy": lambda h: _share(h[1, yes].sum() + h[0, ~yes].sum(), h.sum()),
        "balanced_accuracy": lambda h: (
            (_share(h[1, yes].sum(), h[1].sum()) + _share(h[0, ~yes].sum(), h[0].sum())) / 2
        ),
        "recall": lambda h: _share(h[1, yes].sum(), h[1].sum()),
        "specificity": lambda h: _share(h[0, ~yes].sum(), h[0].sum()),
        "precision": lambda h: _share(h[1, yes].sum(), h[:, yes].sum()),
        "auc": _auc,
        "average_precision": _average_precision,
    }
    h, bins = histogram.counts, len(yes)
    known = {
        "recall": h[1].sum(),
        "specificity": h[0].sum(),
        "accuracy": h.sum(),
        "precision": h[:, yes].sum(),
    }
    both = min(known["recall"], known["specificity"])
    floor = _FAINT * max(histogram.noise, 1.0) * sqrt(2 * bins)
    return {
        name: _measured(histogram, of)
        for name, of in functions.items()
        if known.get(name, both) > floor
    }


def _of_classes(histogram: NoisyHistogram) -> dict[str, Measure]:
    """Measures of noisy numbers by label and answer."""
    h, J = histogram.counts, len(histogram.counts)
    functions: Mapping[str, Callable[[Array], float]] = {
        "accuracy": lambda h: _share(np.trace(h), h.sum()),
        "balanced_accuracy": lambda h: float(
            np.mean([_share(h[j, j], h[j].sum()) for j in range(J)])
        ),
    }
    known = {"accuracy": h.sum() / J, "balanced_accuracy": h.sum(axis=1).min()}
    floor = _FAINT * max(histogram.noise, 1.0) * sqrt(J)
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


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _auc(h: Array) -> float:
    """Pairs in order, and half of those in one bin, over all pairs."""
    below = np.cumsum(h[0]) - h[0] / 2
    return _share(float(h[1] @ below), float(h[0].sum() * h[1].sum()))


def _average_precision(h: Array) -> float:
    """sum of (recall gained) x precision, from the highest bin down."""
    right, all_ = np.cumsum(h[1, ::-1]), np.cumsum(h.sum(axis=0)[::-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(all_ > 0, np.clip(right / all_, 0.0, 1.0), 0.0)
    return _share(float(h[1, ::-1] @ precision), float(h[1].sum()))
