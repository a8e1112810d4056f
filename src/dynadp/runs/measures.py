"""How good a model's scores are: measures of two classes, each with an interval that includes
sampling error.

Of scores on public rows they are exact, and intervals are 95% for the sampling error of the rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp._intervals import Z, wilson
from dynadp.errors import DataError

BINS = 10  # of a calibration curve, equally wide in probability
_LEAST = float(np.finfo(float).eps)  # probability whose logarithm is taken


@dataclass(frozen=True)
class MeasureKind:
    """What a measure is, wherever it is shown, compared or optimised.

    Attributes
    ----------
    words
        Its name in words.
    more_is_better
        Whether the best model has the largest one.
    of_probabilities
        Whether it is of probabilities; others are of scores, or of answers.
    blind
        Its value for answers that look at no row, from the share of positive rows; None where that
        depends on which answer is always given.
    """

    words: str
    more_is_better: bool = True
    of_probabilities: bool = False
    blind: Callable[[float], float | None] = lambda share: None

    def loss(self, value: float) -> float:
        """1 - value where more is better, otherwise the value: smaller is better."""
        return 1 - value if self.more_is_better else value


KINDS: Mapping[str, MeasureKind] = {
    "accuracy": MeasureKind("accuracy", blind=lambda p: max(p, 1 - p)),
    "balanced_accuracy": MeasureKind("balanced accuracy", blind=lambda p: 0.5),
    "recall": MeasureKind("recall (of the positive label)"),
    "specificity": MeasureKind("recall of the negative label"),
    "precision": MeasureKind("precision", blind=lambda p: p),
    "auc": MeasureKind("area under the ROC curve", blind=lambda p: 0.5),
    "average_precision": MeasureKind("average precision", blind=lambda p: p),
    "log_loss": MeasureKind("log-loss", False, True, lambda p: -p * log(p) - (1 - p) * log(1 - p)),
    "brier": MeasureKind("Brier score", False, True, lambda p: p * (1 - p)),
}
NAMES: Mapping[str, str] = {name: kind.words for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Measure:
    """A number, and between which ends it lies in 95 of 100 such samples of rows."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return the three numbers."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class CalibrationBin:
    """Rows whose probability lies between two ends: how many there are, their mean probability, and
    the share of positive ones among them.
    """

    low: float
    high: float
    rows: int
    probability: float
    share: Measure

    def to_json(self) -> dict[str, Any]:
        """Return the numbers."""
        return {**vars(self), "share": self.share.to_json()}


@dataclass(frozen=True)
class Measures:
    """All measures of one model on some rows.

    Attributes
    ----------
    rows, positive
        How many rows there are, and how many of them have the positive label.
    confusion
        Rows by label and answer: ``true_positive``, ``false_positive``, ``true_negative``,
        ``false_negative``.
    found
        By name; a measure is missing where it is not defined, such as the precision of a model
        that never says yes.
    calibration
        The calibration curve; empty where scores are no probabilities.
    """

    rows: int
    positive: int
    confusion: Mapping[str, int]
    found: Mapping[str, Measure] = field(repr=False)
    calibration: tuple[CalibrationBin, ...] = field(default=(), repr=False)

    @property
    def majority(self) -> float:
        """The share that always answering the most common label would get."""
        return max(self.positive, self.rows - self.positive) / max(self.rows, 1)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; the accuracy first, by itself, unless noise drowns it."""
        accuracy = self.found.get("accuracy")
        first = (
            {}
            if accuracy is None
            else {"accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high}
        )
        return {
            "rows": self.rows,
            **first,
            "majority": self.majority,
            "positive": self.positive,
            "confusion": dict(self.confusion),
            "measures": {name: found.to_json() for name, found in self.found.items()},
            "calibration": [one.to_json() for one in self.calibration],
        }


def measures(
    scores: Array,
    positive: NDArray[np.bool_],
    threshold: float = 0.0,
    probabilities: Array | None = None,
) -> Measures:
    """Return all measures of scores whose larger values speak for the positive label.

    Parameters
    ----------
    scores, positive
        Of each row: its score, and whether it has the positive label.
    threshold
        Scores above it are answered with yes.
    probabilities
        Of the positive label, where the model gives any.
    """
    rows = len(scores)
    if not rows:
        raise DataError("there are no rows to measure on")
    made = {
        name: one
        for name in KINDS
        if (one := measure_of(name, scores, positive, threshold, probabilities)) is not None
    }
    curve = () if probabilities is None else calibration_curve(probabilities, positive)
    return Measures(rows, int(positive.sum()), _table(scores, positive, threshold), made, curve)


def measure_of(
    name: str,
    scores: Array,
    positive: NDArray[np.bool_],
    threshold: float = 0.0,
    probabilities: Array | None = None,
) -> Measure | None:
    """Return one measure, with parameters as of ``measures``; None where it is not defined."""
    if name == "auc":
        return auc(scores, positive)
    if name == "average_precision":
        return average_precision(scores, positive)
    if not KINDS[name].of_probabilities:
        return _of_answers(_table(scores, positive, threshold))[name]
    if probabilities is None:
        return None
    if name == "brier":
        return mean((probabilities - positive) ** 2)
    p = np.clip(probabilities, _LEAST, 1 - _LEAST)
    return mean(-np.where(positive, np.log(p), np.log1p(-p)))


def _table(scores: Array, positive: NDArray[np.bool_], threshold: float) -> dict[str, int]:
    yes = scores > threshold
    return {
        "true_positive": int(np.sum(yes & positive)),
        "false_positive": int(np.sum(yes & ~positive)),
        "true_negative": int(np.sum(~yes & ~positive)),
        "false_negative": int(np.sum(~yes & positive)),
    }


def _of_answers(table: Mapping[str, int]) -> dict[str, Measure | None]:
    """Measures of yes and no: shares of rows, with Wilson's intervals."""
    right_yes, right_no = table["true_positive"], table["true_negative"]
    wrong_yes, wrong_no = table["false_positive"], table["false_negative"]
    recall, specificity = (
        share(right_yes, right_yes + wrong_no),
        share(right_no, right_no + wrong_yes),
    )
    balanced = None
    if recall and specificity:
        balanced = middle(recall, specificity)
    return {
        "accuracy": share(right_yes + right_no, sum(table.values())),
        "balanced_accuracy": balanced,
        "recall": recall,
        "specificity": specificity,
        "precision": share(right_yes, right_yes + wrong_yes),
    }


def share(part: int, rows: int) -> Measure | None:
    """part/rows with Wilson's interval; None of no rows."""
    return Measure(part / rows, *wilson(part / rows, rows)) if rows else None


def middle(one: Measure, other: Measure) -> Measure:
    """(a + b)/2 of two independent numbers, with the interval that theirs give: squared distances
    of ends from their values add up (Zou and Donner, Statistics in Medicine 27, 2008).
    """
    value = (one.value + other.value) / 2
    low = sqrt((one.value - one.low) ** 2 + (other.value - other.low) ** 2) / 2
    high = sqrt((one.high - one.value) ** 2 + (other.high - other.value) ** 2) / 2
    return Measure(value, max(value - low, 0.0), min(value + high, 1.0))


def auc(scores: Array, positive: NDArray[np.bool_]) -> Measure | None:
    """P(score of a positive row > that of a negative one) + P(equal)/2; None where a label is
    missing.

    Its variance is DeLong's (Biometrics 44, 1988), its interval that of its log-odds. Where all
    pairs are in order, it is Wilson's, with as many rows as the rarer label has.
    """
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return None
    yes, no = scores[positive], scores[~positive]
    ranks = _ranks(np.concatenate([yes, no]))
    below = (ranks[:m] - _ranks(yes)) / n  # share of negative rows below each positive one
    above = 1 - (ranks[m:] - _ranks(no)) / m
    value = float(below.mean())
    if min(m, n) < 2 or not 0 < value < 1:
        return Measure(value, *wilson(value, min(m, n)))
    return _by_odds(value, float(below.var(ddof=1) / m + above.var(ddof=1) / n))


def _ranks(scores: Array) -> Array:
    """Return the place of each score from below, from 1 on; equal scores share the mean of theirs.

    As scipy.stats.rankdata, which takes half of a node's start to import.
    """
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    places: Array = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return places


def average_precision(scores: Array, positive: NDArray[np.bool_]) -> Measure | None:
    """sum over thresholds of (recall gained) x (precision there); rows of equal scores together.

    Its variance is the sum over rows of the squared effect of one more such row, its interval that
    of its log-odds; Wilson's where all positive rows come first. None where no row is positive.
    """
    m = int(positive.sum())
    if not m:
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    right, all_ = np.cumsum(positive[order])[ends], ends + 1.0
    yes = np.diff(right, prepend=0)  # positive rows of each score, the highest first
    no = np.diff(all_, prepend=0.0) - yes
    value = min(float(yes @ (right / all_)) / m, 1.0)
    if m < 2 or not 0 < value < 1:
        return Measure(value, *wilson(value, m))
    # one more row changes the precision at its own score and at all lower ones
    wrong = np.cumsum((yes * right / all_**2)[::-1])[::-1]
    helps = np.cumsum((yes * (all_ - right) / all_**2)[::-1])[::-1]
    effects = (right / all_ - value + helps) / m, wrong / m
    return _by_odds(value, float(yes @ effects[0] ** 2 + no @ effects[1] ** 2))


def _by_odds(value: float, variance: float) -> Measure:
    """A number between 0 and 1, with the normal interval of its log-odds."""
    reach = Z * sqrt(variance) / (value * (1 - value))
    odds = log(value / (1 - value))
    return Measure(value, *(1 / (1 + exp(-end)) for end in (odds - reach, odds + reach)))


def calibration_curve(
    probabilities: Array, positive: NDArray[np.bool_], bins: int = BINS
) -> tuple[CalibrationBin, ...]:
    """How often rows of about equal probability are positive; bins without rows are left out."""
    place = np.clip((probabilities * bins).astype(int), 0, bins - 1)
    made = []
    for k in np.unique(place).tolist():
        inside = place == k
        found = share(int(positive[inside].sum()), int(inside.sum()))
        assert found is not None
        mean = float(probabilities[inside].mean())
        made.append(CalibrationBin(k / bins, (k + 1) / bins, int(inside.sum()), mean, found))
    return tuple(made)


def mean(values: Array) -> Measure:
    """The mean, with a normal interval."""
    value = float(values.mean())
    spread = Z * float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else value
    return Measure(value, max(value - spread, 0.0), value + spread)
