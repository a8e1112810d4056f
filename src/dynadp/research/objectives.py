"""What sweeps optimise: a measure that the user names, as a loss, on held-out public rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dynadp._arrays import Array
from dynadp._intervals import BAND, Z, paired_band, quantile_band, standard_error
from dynadp.data import Classes, Label, Target
from dynadp.errors import DeclarationError
from dynadp.problem import probabilities
from dynadp.research.public_rows import HeldOut
from dynadp.runs import (
    BALANCED,
    KINDS,
    TARGET_KINDS,
    Measure,
    MeasureKind,
    Threshold,
    calibrated,
    class_calibrated,
    measure_of,
    measures_of_classes,
    measures_of_target,
    threshold_at,
)

_ALL: Mapping[str, MeasureKind] = {**KINDS, **TARGET_KINDS}
_OF_CLASSES = ("accuracy", "balanced_accuracy", "auc", "log_loss")
GROUPS = 20  # of rows, left out one after the other where two models are compared
Numbers = dict[str, float]


class Checked(NamedTuple):
    """What held-out rows say of K models.

    Attributes
    ----------
    losses
        Of each model.
    parts
        Which answers are wrong, K x n, where the loss is their share; otherwise the losses without
        each group of rows, K x GROUPS.
    """

    losses: Array
    parts: Array


@dataclass(frozen=True)
class Objective:
    """A measure, and above which score the positive label is answered.

    A loss is 1 minus the measure where more is better, and otherwise the measure itself. Costs,
    ``balanced`` and measures of probabilities rest on scores that are calibrated on the held-out
    rows, which public rows allow.

    Attributes
    ----------
    name
        Of the measure.
    threshold
        Of all models; None for 0, and for balanced accuracy for the one where it is largest.
    """

    name: str = "accuracy"
    threshold: Threshold | None = None

    def __post_init__(self) -> None:
        if self.name not in _ALL:
            raise DeclarationError(
                f"measure is {self.name!r}; expected one of {', '.join(sorted(_ALL))}"
            )

    @classmethod
    def of(
        cls, label: Label | Classes | Target, name: str | None, threshold: Threshold | None = None
    ) -> Self:
        """Return the measure of this name, by default the accuracy, or R2 of a target; refuse one
        that is not for such labels.
        """
        known, what = tuple(KINDS), "two values"
        if isinstance(label, Target):
            known, what = tuple(TARGET_KINDS), "numbers"
        elif isinstance(label, Classes):
            known, what = _OF_CLASSES, "several values"
        name = known[0] if name is None else name
        if name not in known:
            raise DeclarationError(
                f"measure is {name!r}, and the label {label.name!r} has {what}; expected one of "
                f"{', '.join(known)}"
            )
        return cls(name, threshold)

    @property
    def kind(self) -> MeasureKind:
        """The measure's definition."""
        return _ALL[self.name]

    @property
    def words(self) -> str:
        """What is as small as can be, in words."""
        if self.plain:
            return "the share of wrong answers"
        less = "1 minus the " if self.kind.more_is_better else "the "
        return less + self.kind.words

    @property
    def axis(self) -> str:
        """The loss as an axis has it."""
        if self.plain:
            return "wrong answers"
        return f"1 - {self.kind.words}" if self.kind.more_is_better else self.kind.words

    @property
    def better(self) -> str:
        """100 (1 - loss) as an axis has it."""
        if self.plain:
            return "right answers in 100"
        less = "" if self.kind.more_is_better else "100 less 100 times the "
        return f"{less}{self.kind.words}" + (" in 100" if self.kind.more_is_better else "")

    @property
    def plain(self) -> bool:
        """Whether the loss is the share of wrong answers at threshold 0."""
        return self.name == "accuracy" and not self.threshold

    def blind(self, held_out: HeldOut) -> float | None:
        """The loss of answers that look at no row; None where the measure does not say."""
        if self.name == "accuracy":
            return held_out.majority_error
        if isinstance(held_out.label, Target):
            return self._of_one_number(held_out.y, held_out.label)
        if isinstance(held_out.label, Classes):
            shares = np.bincount(held_out.y) / len(held_out)
            shares = shares[shares > 0]
            blind: float | None = {
                "log_loss": -float(shares @ np.log(shares)),
                "balanced_accuracy": 1 / len(held_out.label.values),
            }.get(self.name, 0.5)
        else:
            blind = self.kind.blind(float(np.mean(held_out.positive)))
        return None if blind is None else self.kind.loss(blind)

    def _of_one_number(self, y: Array, target: Target) -> float:
        """The loss of the best number that is answered whatever the row: its mean, or median."""
        if self.name == "r2":
            return 1.0
        if self.name == "mae":
            return float(np.abs(y - np.median(y)).mean()) / (2 * target.half)
        return float(y.std()) / (2 * target.half)

    def tried(self, held_out: HeldOut, models: Array) -> Numbers:
        """Median over draws, where it lies, and its standard error: of K x d models."""
        if self.plain:
            errors = held_out.error(models)
            rows = len(held_out)
            return {**quantile_band(errors, rows), "error": standard_error(errors, rows)}
        label = held_out.label
        ends = np.array([self._of(held_out.scores(v), held_out.y, label) for v in models])
        losses, low, high = ends.T
        half = float(np.median(high - low)) / (2 * Z)
        drawn = np.pi / 2 * float(np.var(losses, ddof=1)) / len(losses) if len(losses) > 1 else 0.0
        return {
            "median": float(np.median(losses)),
            "low": float(np.quantile(low, BAND[0])),
            "high": float(np.quantile(high, BAND[1])),
            "error": float(np.sqrt(drawn + half**2)),
        }

    def checked(
        self, held_out: HeldOut, models: Array, seen: slice | NDArray[np.bool_] = slice(None)
    ) -> Checked:
        """Check K x d models on some of the rows, so that they can be compared."""
        if self.plain:
            wrong = held_out.wrong(models)[:, seen].astype(float)
            return Checked(wrong.mean(axis=1), wrong)
        losses, parts = [], []
        y, label = held_out.y[seen], held_out.label
        group = np.arange(len(y)) % GROUPS
        for v in models:
            own = held_out.scores(v)[seen]
            losses.append(self._of(own, y, label)[0])
            left = [self._of(own[group != g], y[group != g], label)[0] for g in range(GROUPS)]
            parts.append(left)
        return Checked(np.array(losses), np.array(parts))

    def band(self, checked: "list[Checked]", rows: int) -> Numbers:
        """Median over draws and samples of losses on so many rows, and where it lies."""
        losses = np.concatenate([one.losses for one in checked])
        if self.plain:
            return quantile_band(losses, rows)
        return _band(losses, np.concatenate([_errors(one.parts) for one in checked]))

    def difference(self, pairs: "list[tuple[Checked, Checked]]", rows: int) -> Numbers:
        """Loss of the first models minus that of the second, of all pairs on the same rows."""
        if self.plain:
            found = [_differing(a.parts, b.parts) for a, b in pairs]
            first, second = (np.concatenate([one[i].ravel() for one in found]) for i in (0, 1))
            return paired_band(first, second, rows)
        both = [
            (
                (a.losses[:, None] - b.losses).ravel(),
                _errors((a.parts[:, None] - b.parts).reshape(-1, GROUPS)),
            )
            for a, b in pairs
        ]
        values, errors = (np.concatenate(each) for each in zip(*both, strict=True))
        return _band(values, errors)

    def _of(
        self, scores: Array, y: NDArray[Any], label: Classes | Target | None
    ) -> tuple[float, float, float]:
        """The loss, and between which ends it lies for such a sample of rows; all that can be where
        the measure is not defined.
        """
        if label is not None:
            found, unit = self._of_others(scores, y, label)
            if found is None:
                return 1.0, 0.0, 1.0
            ends = sorted(self.kind.loss(end / unit) for end in (found.low, found.high))
            return self.kind.loss(found.value / unit), ends[0], ends[1]
        positive = y
        least: Threshold = BALANCED if self.name == "balanced_accuracy" else 0.0
        wanted, p = least if self.threshold is None else self.threshold, None
        if not isinstance(wanted, int | float) or self.kind.of_probabilities:
            if positive.all() or not positive.any():
                return 1.0, 0.0, 1.0
            y = positive.astype(float)
            made = calibrated(scores, 1 - y, y, "held-out rows")
            p = np.asarray(expit(made.log_odds(scores)))
            wanted = threshold_at(made, wanted)
        found = measure_of(self.name, scores, positive, wanted, p)
        if found is None:
            return 1.0, 0.0, 1.0
        ends = sorted(self.kind.loss(end) for end in (found.low, found.high))
        return self.kind.loss(found.value), ends[0], ends[1]

    def _of_others(
        self, scores: Array, y: NDArray[Any], label: Classes | Target
    ) -> tuple[Measure | None, float]:
        """The measure of numbers, or of several classes, and what is 1 of it."""
        if isinstance(label, Target):
            found = measures_of_target(label.within(scores), y).found.get(self.name)
            return found, 1.0 if self.name == "r2" else 2 * label.half
        p = None
        if self.kind.of_probabilities:
            p = probabilities(class_calibrated(scores, y, "held-out rows").slope * scores)
        return measures_of_classes(label.values, scores, y, p).found.get(self.name), 1.0


def _errors(parts: Array) -> Array:
    """sqrt((g - 1)/g sum_j (x_j - mean)^2): the jackknife over groups of rows that are left out."""
    left = parts - parts.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt((GROUPS - 1) / GROUPS * np.sum(left**2, axis=-1)))


def _band(values: Array, errors: Array) -> Numbers:
    return {
        "median": float(np.median(values)),
        "low": float(np.quantile(values - Z * errors, BAND[0])),
        "high": float(np.quantile(values + Z * errors, BAND[1])),
    }


def _differing(common: Array, own: Array) -> tuple[Array, Array]:
    """On how many rows the common model alone is wrong, and the own model alone, for all pairs."""
    both = common @ own.T
    return common.sum(axis=1)[:, None] - both, own.sum(axis=1) - both
