"""How good a model of several classes is, on public rows: each measure with a 95% interval for the
sampling error of the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.data import Value
from dynadp.errors import DataError
from dynadp.runs.measures import (
    CalibrationBin,
    Measure,
    auc,
    average_precision,
    calibration_curve,
    mean,
    share,
)

_MEANS = {  # of what each class has
    "balanced_accuracy": "recall",
    "precision": "precision",
    "auc": "auc",
    "average_precision": "average_precision",
}


@dataclass(frozen=True)
class ClassMeasures:
    """All measures of one model of several classes on some rows.

    Attributes
    ----------
    classes
        The label's values, in order.
    confusion
        Numbers of rows by label (rows) and answer (columns).
    found
        By name: the accuracy; its mean over classes of equal weight; the means over classes of the
        precision, and of the area under the ROC curve and the average precision of one against the
        rest; where there are probabilities, log-loss and Brier score, the mean of the squared
        distance from probabilities to the class. A measure is missing where it is not defined.
    by_class
        Recall, precision, area and average precision of each class, where they are defined.
    calibration
        How often answers of about equal probability are right; empty without probabilities.
    """

    classes: tuple[Value, ...]
    confusion: tuple[tuple[int, ...], ...]
    found: Mapping[str, Measure] = field(repr=False)
    by_class: Mapping[Value, Mapping[str, Measure]] = field(default_factory=dict, repr=False)
    calibration: tuple[CalibrationBin, ...] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(map(sum, self.confusion))

    @property
    def majority(self) -> float:
        """The share that always answering the commonest label would get."""
        return max(map(sum, self.confusion)) / self.rows

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; the accuracy first, by itself."""
        accuracy = self.found["accuracy"]
        return {
            "rows": self.rows,
            "accuracy": accuracy.value,
            "low": accuracy.low,
            "high": accuracy.high,
            "majority": self.majority,
            "classes": list(self.classes),
            "confusion": [list(row) for row in self.confusion],
            "measures": {name: found.to_json() for name, found in self.found.items()},
            "by_class": [
                {"class": one, **{name: found.to_json() for name, found in own.items()}}
                for one, own in self.by_class.items()
            ],
            "calibration": [one.to_json() for one in self.calibration],
        }


def measures_of_classes(
    classes: Sequence[Value], scores: Array, y: NDArray[np.int64], probabilities: Array | None
) -> ClassMeasures:
    """Return all measures of scores, of which the largest is the answer.

    Parameters
    ----------
    classes
        The label's values.
    scores
        n x classes.
    y
        The number of each row's class.
    probabilities
        n x classes, where the model gives any.
    """
    if not len(y):
        raise DataError("there are no rows to measure on")
    J = len(classes)
    answers = scores.argmax(axis=1)
    table = confusion_table(answers, y, J)
    accuracy = share(int(np.trace(table)), len(y))
    assert accuracy is not None
    each = [_of_one(scores, y, table, j) for j in range(J)]
    found: dict[str, Measure | None] = {"accuracy": accuracy}
    for name, part in _MEANS.items():
        found[name] = _middle([own[part] for own in each])
    curve: tuple[CalibrationBin, ...] = ()
    if probabilities is not None:
        own = probabilities[np.arange(len(y)), y]
        found["log_loss"] = mean(-np.log(np.clip(own, 1e-15, 1.0)))
        found["brier"] = mean(np.sum(probabilities**2, axis=1) - 2 * own + 1)
        curve = calibration_curve(probabilities.max(axis=1), answers == y)
    by_class = {
        classes[j]: {name: one for name, one in own.items() if one is not None}
        for j, own in enumerate(each)
    }
    made = {name: one for name, one in found.items() if one is not None}
    return ClassMeasures(tuple(classes), tuple(map(tuple, table.tolist())), made, by_class, curve)


def _of_one(
    scores: Array, y: NDArray[np.int64], table: NDArray[np.int64], j: int
) -> dict[str, Measure | None]:
    """Measures of one class against the rest."""
    right, speaks = int(table[j, j]), _against(scores, j)
    return {
        "recall": share(right, int(table[j].sum())),
        "precision": share(right, int(table[:, j].sum())),
        "auc": auc(speaks, y == j),
        "average_precision": average_precision(speaks, y == j),
    }


def confusion_table(
    answers: NDArray[np.int64], y: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """Numbers of rows by label and answer."""
    places = y.astype(np.int64) * classes + answers
    return np.bincount(places, minlength=classes**2).reshape(classes, classes)


def _against(scores: Array, j: int) -> Array:
    """What speaks for class j against the rest: the log-odds of its softmax."""
    rest = np.delete(scores, j, axis=1)
    most = rest.max(axis=1)
    return np.asarray(scores[:, j] - most - np.log(np.exp(rest - most[:, None]).sum(axis=1)))


def _middle(parts: Sequence[Measure | None]) -> Measure | None:
    """The mean of independent numbers, with the interval that theirs give (Zou and Donner,
    Statistics in Medicine 27, 2008); None where one is missing.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    n = len(known)
    value = sum(part.value for part in known) / n
    low = sqrt(sum((part.value - part.low) ** 2 for part in known)) / n
    high = sqrt(sum((part.high - part.value) ** 2 for part in known)) / n
    return Measure(value, max(value - low, 0.0), min(value + high, 1.0))
