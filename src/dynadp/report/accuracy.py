"""How often the model is right, only where that may be told: on made rows, on rows declared public,
or charged to a ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynadp._intervals import ONE
from dynadp.data import census, source
from dynadp.errors import DynadpError
from dynadp.report.budgets import BudgetView
from dynadp.report.record_view import RunView
from dynadp.runs import evaluate, load_model

PRIVATE = "accuracy on private rows is private: declare public rows in [evaluation] of the run file to be told one"


@dataclass(frozen=True)
class Accuracy:
    """What may be told.

    Attributes
    ----------
    accuracy, majority, rows
        Share of right answers, and of the commoner label, on so many rows; None where there is
        nothing to tell.
    interval
        From where to where the accuracy lies, given so many rows.
    note
        On which rows, or why nothing is told.
    charged
        Noisy accuracies that nodes paid for, in words.
    """

    accuracy: float | None
    majority: float | None
    rows: int
    note: str
    charged: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None

    @property
    def range(self) -> str:
        """The interval, in words."""
        if self.interval is None:
            return ""
        low, high = (100 * end for end in self.interval)
        return f"{low:.1f} to {high:.1f}: a {ONE}"


def public_accuracy(
    story: RunView, purses: Mapping[str, BudgetView | str] | None = None
) -> Accuracy:
    """Evaluate on public rows, where there are any that can be reached, and list what was charged
    for.
    """
    charged = tuple(
        f"{node}: about {found['accuracy']:.1%}, released {found['at']} for alpha = "
        f"{found['alpha']:g} "
        "(the ledger does not say of which model)"
        for node, purse in (purses or {}).items()
        if isinstance(purse, BudgetView)
        for found in purse.evaluations
    )
    if not (story.home / "model.json").exists():
        return Accuracy(None, None, 0, "the run is not finished, so there is no model yet", charged)
    model, config = load_model(story.home), story.record["config"]
    if story.kind == "demo":
        told = config["data"]
        made = census(
            told["rows"],
            seed=told["seed"],
            nodes=len(story.topology),
            heterogeneity=told["heterogeneity"],
        )
        found = evaluate(model, made.test)
        return _found(found, "held-out census rows made here (synthetic)", charged)
    declared = config["file"].get("evaluation") if story.kind == "one process" else None
    if not (declared and declared.get("public") is True):
        return Accuracy(None, None, 0, PRIVATE, charged)
    bases = [*story.home.resolve().parents[:3], Path.cwd()]
    file = next(
        (base / declared["file"] for base in bases if (base / declared["file"]).is_file()), None
    )
    if file is None:
        return Accuracy(
            None,
            None,
            0,
            f"{declared['file']}, declared public, cannot be found from here",
            charged,
        )
    try:
        found = evaluate(model, source(file, separator=config["file"]["data"].get("separator")))
    except DynadpError as error:
        return Accuracy(None, None, 0, f"{declared['file']} cannot be evaluated: {error}", charged)
    note = f"{declared['file']}, which the run file declares public"
    return _found(found, note, charged)


def _found(found: Mapping[str, Any], note: str, charged: tuple[str, ...]) -> Accuracy:
    return Accuracy(
        found["accuracy"],
        found["majority"],
        found["rows"],
        note,
        charged,
        (found["low"], found["high"]),
    )
