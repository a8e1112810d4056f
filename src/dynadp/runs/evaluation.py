"""Accuracy on a node's private rows: drawn, charged to its ledger, then shown."""

from secrets import token_hex
from typing import Any

from dynadp.engines import now
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, NoisyAccuracy, SystemEntropy, private_accuracy
from dynadp.planning import unit_of
from dynadp.privacy import Ledger
from dynadp.runs.model import Model
from dynadp.runs.scoring import tally


def evaluate_privately(
    model: Model,
    data: Any,
    ledger: Ledger,
    *,
    alpha: float,
    rows: int | None = None,
    dataset: str,
    who: str,
    draws: Draws | None = None,
) -> NoisyAccuracy:
    """Release the accuracy of a model on private rows once, and charge the node's ledger.

    Parameters
    ----------
    model, data
        What answers, and the rows, as :func:`~dynadp.data.readers.source` takes them.
    ledger
        Of the node whose rows they are; it refuses what does not fit under its cap.
    alpha
        The loss of this release.
    rows
        N, public. It is required where the schema drops rows, because how many stay depends on
        cells; the accuracy is then the share of N. Otherwise it is the number of rows, at most m
        of a person where the schema names people.
    dataset, who
        For the ledger: rows of what, and who asks.
    draws
        Where noise comes from; the operating system.
    """
    schema = model.columns
    drops = schema.drops_rows
    if rows is None and schema.drops_missing:
        raise DeclarationError(
            "the model's schema drops rows with missing cells, so how many stay depends on cells "
            "and is private: declare a public number with --rows N (rows=N), such as rows = N of "
            "the run file; accuracy is the share of N"
        )
    answers = tally(model, data, limited=True)
    if rows not in (None, answers.read) and not drops:
        raise DeclarationError(
            f"--rows is {rows}, but {dataset} has {answers.read} rows and none are dropped; leave "
            f"out --rows"
        )
    released = private_accuracy(
        answers.right,
        answers.stay if rows is None else rows,
        alpha,
        node=ledger.node,
        draws=draws or SystemEntropy(),
        unit=unit_of(schema),
    )
    run = f"{released.event.purpose} {now()} {token_hex(4)}"
    ledger.reserve(run, [released.event], dataset=dataset, who=who, at=now())
    ledger.spend(run, 0, [released.event], released.message, who=who, at=now())
    ledger.close_run(run, "finished", who=who, at=now())
    return released
