"""How often the model is right, where that is public: on synthetic rows, on rows declared public,
or charged to a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dynadp._intervals import ONE
from dynadp.data import census, source
from dynadp.errors import DynadpError
from dynadp.report.budgets import BudgetView
from dynadp.report.record_view import RunView
from dynadp.runs import Model, evaluate, load_model

PRIVATE = (
    "accuracy on private rows is private: declare public rows in [evaluation] of the run file to "
    "be told one"
)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """What is public about a model's accuracy.

    Attributes
    ----------
    note
        On which rows it was measured, or why it is not shown.
    accuracy, majority, rows
        Share of right answers, and of the commoner label, on so many rows; None where accuracy is
        not shown.
    interval
        95% interval of the accuracy, given so many rows.
    charged
        Noisy accuracies that nodes paid for, in words.
    """

    note: str
    accuracy: float | None = None
    majority: float | None = None
    rows: int = 0
    interval: tuple[float, float] | None = None
    charged: tuple[str, ...] = ()

    @classmethod
    def measured(cls, model: Model, rows: object, note: str) -> "Accuracy":
        """Evaluate on public rows."""
        found = evaluate(model, rows)
        low, high = found.pop("low"), found.pop("high")
        return cls(note=note, interval=(low, high), **found)

    @property
    def range(self) -> str:
        """The interval, in words."""
        if self.interval is None:
            return ""
        low, high = (100 * end for end in self.interval)
        return f"{low:.1f} to {high:.1f}: a {ONE}"


def public_accuracy(
    view: RunView, budgets: Mapping[str, BudgetView | str] | None = None
) -> Accuracy:
    """Evaluate on public rows, where they can be reached, and list what was charged to ledgers."""
    charged = tuple(
        f"{node}: about {found['accuracy']:.1%}, released {found['at']} for alpha = "
        f"{found['alpha']:g} (the ledger does not say of which model)"
        for node, budget in (budgets or {}).items()
        if isinstance(budget, BudgetView)
        for found in budget.evaluations
    )
    return replace(_accuracy(view), charged=charged)


def _accuracy(view: RunView) -> Accuracy:
    if not (view.home / "model.json").exists():
        return Accuracy(note="the run is not finished, so there is no model yet")
    model, made, file = load_model(view.home), view.record.made, view.record.file or {}
    if made is not None and made["name"] == "census":
        shape = {"nodes": len(view.topology), "heterogeneity": made["heterogeneity"]}
        again = census(made["rows"], seed=made["seed"], **shape)
        return Accuracy.measured(model, again.test, "held-out census rows made here (synthetic)")
    declared = file.get("evaluation")
    if not (declared and declared.get("public") is True):
        return Accuracy(note=PRIVATE)
    name = declared["file"]
    bases = [*view.home.resolve().parents[:3], Path.cwd()]
    path = next((base / name for base in bases if (base / name).is_file()), None)
    if path is None:
        return Accuracy(note=f"{name}, declared public, cannot be found from here")
    try:
        rows = source(path, separator=file["data"].get("separator"))
        return Accuracy.measured(model, rows, f"{name}, which the run file declares public")
    except DynadpError as error:
        return Accuracy(note=f"{name} cannot be evaluated: {error}")
