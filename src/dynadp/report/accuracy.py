"""How often the model is right, where that is public: on synthetic rows, on rows declared public,
or charged to a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynadp._intervals import NOISY, ONE, written
from dynadp.data import Value, census, source
from dynadp.errors import DynadpError
from dynadp.report.budgets import BudgetView
from dynadp.report.record_view import RunView
from dynadp.runs import (
    NAMES,
    TARGET_NAMES,
    ClassMeasures,
    Measure,
    Measures,
    Model,
    TargetMeasures,
    evaluate,
    evaluate_target,
    histogram_measures,
    load_model,
)

PRIVATE = (
    "on private rows it would itself be a release; declare public rows in [evaluation] of the run "
    "file to see one"
)
HISTOGRAM = (
    "private rows of the nodes that sent sums, weighted as in the model. All numbers are "
    "estimates, from the noisy histogram of scores that the last round released"
)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What is public about a model's accuracy.

    Attributes
    ----------
    note
        On which rows it was measured, or why it is not shown.
    accuracy, majority, rows
        Share of right answers, and of the most common label, on so many rows; None where accuracy
        is not shown.
    low, high
        95% interval of the accuracy, given so many rows.
    others
        Other measures: name in words, value, and interval; None where accuracy is not shown.
    confusion
        Rows by label and answer.
    interval
        What intervals are for, in words.
    classes, table
        The same of several classes: the label's values, and the numbers.
    each
        Of several classes: each value, and its measures with intervals by name.
    curve
        The calibration curve, where there are probabilities: ``probability``, ``share``, ``low``,
        ``high`` and ``rows`` of each bin.
    """

    note: str
    accuracy: float | None = None
    majority: float | None = None
    rows: int = 0
    low: float = 0.0
    high: float = 1.0
    others: tuple[tuple[str, float, float, float], ...] = ()
    confusion: Mapping[str, int] = field(default_factory=dict)
    interval: str = ONE
    classes: tuple[Value, ...] = ()
    table: tuple[tuple[int, ...], ...] = ()
    each: tuple[tuple[Value, Mapping[str, Measure]], ...] = ()
    curve: tuple[Mapping[str, float], ...] = ()
    mean_error: float | None = None

    @classmethod
    def of(cls, found: Measures | ClassMeasures, note: str, interval: str = ONE) -> "Accuracy":
        """What measures say, on such rows."""
        accuracy = found.found.get("accuracy")
        if accuracy is None:
            return cls(note=f"noise drowns all measures on {note}")
        return cls(
            note=note,
            accuracy=accuracy.value,
            majority=found.majority,
            rows=found.rows,
            low=accuracy.low,
            high=accuracy.high,
            others=tuple(
                (NAMES[name], one.value, one.low, one.high)
                for name, one in found.found.items()
                if name != "accuracy"
            ),
            confusion=found.confusion if isinstance(found, Measures) else {},
            classes=found.classes if isinstance(found, ClassMeasures) else (),
            table=found.confusion if isinstance(found, ClassMeasures) else (),
            each=tuple(found.by_class.items()) if isinstance(found, ClassMeasures) else (),
            curve=tuple(
                {
                    "probability": one.probability,
                    "share": one.share.value,
                    "low": one.share.low,
                    "high": one.share.high,
                    "rows": one.rows,
                }
                for one in found.calibration
            ),
            interval=interval,
        )

    @classmethod
    def of_numbers(cls, found: TargetMeasures, note: str) -> "Accuracy":
        """What measures of a model that answers a number say."""
        others = tuple(
            (TARGET_NAMES[name], one.value, one.low, one.high) for name, one in found.found.items()
        )
        return cls(note=note, rows=found.rows, others=others, mean_error=found.mean_error)

    @property
    def chance(self) -> str:
        """Whose probability the curve is about."""
        return "the answer that is given" if self.classes else "the positive label"

    @property
    def words(self) -> str:
        """The accuracy beside that of an answer that looks at no row, or why there is none."""
        where = f"on {self.rows:,} rows: {self.note}"
        if self.mean_error is not None:
            measures = "; ".join(
                f"{name} {written(value)} ({written(low)} to {written(high)})"
                for name, value, low, high in self.others
            )
            return (
                f"{measures}, {where}. In brackets: {self.interval}. Always answering their mean "
                f"would have an error of {written(self.mean_error)} there."
            )
        if self.accuracy is None or self.majority is None:
            return f"No accuracy is shown: {self.note}."
        return (
            f"{100 * self.accuracy:.1f} of 100 answers are right ({self.range}), {where}. Always "
            f"giving the most common answer would score {100 * self.majority:.1f}."
        )

    @property
    def range(self) -> str:
        """The interval, in words."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f}: a {self.interval}"


NOT_FINISHED = Accuracy(note="the run is not finished, so there is no model yet")


def charged_accuracies(budgets: Mapping[str, BudgetView | str]) -> list[str]:
    """The noisy accuracies that nodes paid for, in words."""
    return [
        f"{node}: about {found['accuracy']:.1%}, released {found['at']} for alpha = "
        f"{found['alpha']:g} (the ledger does not say of which model)"
        for node, budget in budgets.items()
        if isinstance(budget, BudgetView)
        for found in budget.evaluations
    ]


def released_accuracy(model: Model) -> Accuracy:
    """What the histogram of scores says that the last round of a run released."""
    if model.histogram is None:
        return Accuracy(note=PRIVATE)
    found = histogram_measures(model.histogram, model.threshold, model.calibration)
    return Accuracy.of(found, HISTOGRAM, NOISY)


def public_accuracy(view: RunView, given: Model | None = None) -> Accuracy:
    """Evaluate the run's model, or another one, on public rows, where they can be reached."""
    if given is None and not (view.home / "model.json").exists():
        return NOT_FINISHED
    model, made, file = given or load_model(view.home), view.record.made, view.record.file or {}
    if made is not None and made["name"] == "census":
        shape = {"nodes": len(view.topology), "heterogeneity": made["heterogeneity"]}
        again = census(made["rows"], seed=made["seed"], **shape)
        note = "held-out census rows made here (synthetic)"
        return Accuracy.of(evaluate(model, again.test), note)
    declared = file.get("evaluation")
    if not (declared and declared.get("public") is True):
        return released_accuracy(model)
    name = declared["file"]
    path = next((base / name for base in view.near if (base / name).is_file()), None)
    if path is None:
        return Accuracy(note=f"{name}, declared public, cannot be found from here")
    try:
        rows = source(path, separator=file["data"].get("separator"))
        note = f"{name}, which the run file declares public"
        if model.target is not None:
            return Accuracy.of_numbers(evaluate_target(model, rows), note)
        return Accuracy.of(evaluate(model, rows), note)
    except DynadpError as error:
        return Accuracy(note=f"{name} cannot be evaluated: {error}")
