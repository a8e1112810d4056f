"""Above which score a model answers with the positive label: by what wrong answers cost.

Where p is the probability of the positive label, answering with it costs c_fp (1 - p), and not
c_fn p. So it is right where p > c_fp/(c_fp + c_fn), and the threshold of the scores is where the
model's probability is that.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Literal

from dynadp import _require
from dynadp.errors import DeclarationError
from dynadp.runs.calibration import Calibration
from dynadp.runs.model import Model

BALANCED: Literal["balanced"] = "balanced"


@dataclass(frozen=True)
class Costs:
    """What wrong answers cost, in any unit.

    Attributes
    ----------
    false_positive
        Of the positive label where the negative one is right.
    false_negative
        Of the negative label where the positive one is right.
    """

    false_positive: float = 1.0
    false_negative: float = 1.0

    def __post_init__(self) -> None:
        _require.positive("false_positive", self.false_positive)
        _require.positive("false_negative", self.false_negative)

    @property
    def least(self) -> float:
        """c_fp/(c_fp + c_fn): from this probability on the positive label costs less."""
        return self.false_positive / (self.false_positive + self.false_negative)


Threshold = float | Literal["balanced"] | Costs


def with_threshold(model: Model, wanted: Threshold | None) -> Model:
    """Return the model with a threshold of its own, where one is wanted and the model gives
    probabilities or has no need of them; otherwise as it is.
    """
    if wanted is None or (not isinstance(wanted, int | float) and model.log_odds is None):
        return model
    return replace(model, threshold=threshold_for(model, wanted))


def without_probabilities(model: Model, wanted: Threshold | None = None) -> str | None:
    """Say that a histogram of scores was released and gives no probabilities, and what that does to
    the threshold that is wanted; None where that is not so.
    """
    if model.histogram is None or model.calibration is not None:
        return None
    words = (
        "noise drowns the rows of a label in the histogram of scores that the last round released, "
        "so the model gives no probabilities"
    )
    if wanted is None or isinstance(wanted, int | float):
        return words
    return f"{words}, and its threshold is {model.threshold:g}, not the one that was asked for"


def threshold_for(model: Model, wanted: Threshold | None) -> float:
    """Return the threshold of a model's scores; scores above it get the second class.

    Parameters
    ----------
    model
        Of two classes; no other has a threshold.
    wanted
        A score; what wrong answers cost, by the schema's labels; ``balanced`` for costs in inverse
        proportion to the share of each label, so that balanced accuracy is largest; None for the
        model's own.
    """
    if wanted is None:
        return model.threshold
    if wanted and len(model.classes) != 2:
        raise DeclarationError(
            f"threshold is {'by cost' if isinstance(wanted, Costs) else repr(wanted)}, and the "
            f"model {_other_answers(model)}; leave it out"
        )
    if isinstance(wanted, int | float):
        return float(wanted)
    if not isinstance(wanted, Costs) and wanted != BALANCED:
        raise DeclarationError(
            f"threshold is {wanted!r}; expected a score, 'balanced', or the costs of wrong answers"
        )
    if model.log_odds is None:
        raise DeclarationError(
            "a threshold by cost needs probabilities, and this model gives none: give it some "
            "(calibration = true in [privacy] of the run, or dynadp evaluate --calibrate), or give "
            "the threshold as a score"
        )
    known = model.calibration or Calibration(*model.log_odds, "a logistic loss without margin")
    if model.turned and isinstance(wanted, Costs):
        wanted = Costs(wanted.false_negative, wanted.false_positive)
    return threshold_at(known, wanted)


def _other_answers(model: Model) -> str:
    """What a model of a number or of several classes answers."""
    if model.target is not None:
        return "answers a number"
    return f"has {len(model.classes)} classes, of which the one with the largest score is answered"


def threshold_at(known: Calibration, wanted: Threshold) -> float:
    """Return the score whose probability is where the positive label begins to cost less."""
    if isinstance(wanted, int | float):
        return float(wanted)
    least = wanted.least if isinstance(wanted, Costs) else known.positives
    if least is None:
        raise DeclarationError(
            "threshold is 'balanced', and the model does not know the share of each label; "
            "calibrate it (dynadp evaluate --calibrate), or give costs: false_positive over "
            "false_negative as positive rows are to negative ones"
        )
    return (log(least / (1 - least)) - known.offset) / known.slope
