"""What sweeps optimise: a measure that the user names, as a loss, on held-out public rows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dynadp._arrays import Array
from dynadp._intervals import BAND, Z, paired_band, quantile_band, standard_error
from dynadp.errors import DeclarationError
from dynadp.research.public_rows import HeldOut
from dynadp.runs import (
    BALANCED,
    KINDS,
    MeasureKind,
    Threshold,
    calibrated,
    measure_of,
    threshold_at,
)

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
        if self.name not in KINDS:
            raise DeclarationError(
                f"measure is {self.name!r}; expected one of {', '.join(sorted(KINDS))}"
            )

    @property
    def kind(self) -> MeasureKind:
        """The measure's definition."""
        return KINDS[self.name]

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
        blind = self.kind.blind(float(np.mean(held_out.positive)))
        return None if blind is None else self.kind.loss(blind)

    def tried(self, held_out: HeldOut, models: Array) -> Numbers:
        """Median over draws, where it lies, and its standard error: of K x d models."""
        if self.plain:
            errors = held_out.error(models)
            rows = len(held_out)
            return {**quantile_band(errors, rows), "error": standard_error(errors, rows)}
        ends = np.array([self._of(*one) for one in self._scored(held_out, models)])
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
        for scores, positive in self._scored(held_out, models):
            own, y = scores[seen], positive[seen]
            group = np.arange(len(y)) % GROUPS
            losses.append(self._of(own, y)[0])
            parts.append([self._of(own[group != g], y[group != g])[0] for g in range(GROUPS)])
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

    def _scored(self, held_out: HeldOut, models: Array) -> "list[tuple[Array, NDArray[np.bool_]]]":
        return [(np.asarray(held_out.X @ v), held_out.positive) for v in models]

    def _of(self, scores: Array, positive: NDArray[np.bool_]) -> tuple[float, float, float]:
        """The loss, and between which ends it lies for such a sample of rows; all that can be where
        the measure is not defined.
        """
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
