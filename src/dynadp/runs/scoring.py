"""A model's answers to raw rows: labels, scores and how many are right."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp._intervals import wilson
from dynadp.data import source, staying_rows
from dynadp.errors import DataError
from dynadp.runs.model import Model


@dataclass(frozen=True)
class Tally:
    """Numbers of rows: read, kept by the schema, and of these answered right and of the second
    label.
    """

    read: int
    stay: int
    right: int
    positive: int


def tally(model: Model, data: Any, *, limited: bool = False) -> Tally:
    """Count a model's right answers; the numbers are private where the rows are.

    All but ``read`` depend on cells. A replaced row, also one that is dropped then or was before,
    moves ``right`` by at most 1; a person with at most m rows, by m.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    limited
        Whether at most as many rows of a person count as the schema declares; public rows need
        name nobody.
    """
    schema = model.columns if limited else model.columns.limited()
    label = schema.label
    if set(model.classes) != {label.negative, label.positive}:
        raise DataError(
            f"the model has {len(model.classes)} classes, its schema's label has two values, and "
            f"they are not the same; load it with NetworkClassifier.load and use score()"
        )
    second = model.classes.index(label.positive)
    read = stay = right = positive = 0
    given = source(data)
    staying = staying_rows(schema, given)
    for batch in given.batches(schema.read_columns):
        keep = staying(batch, read)
        kept = {name: cells[keep] for name, cells in batch.items()}
        y = schema.labels(kept) > 0
        answers = (model.decision(kept) > 0) == bool(second)
        right += int(np.sum(answers == y))
        read, stay, positive = read + len(keep), stay + len(y), positive + int(y.sum())
    if not read and not schema.hides_counts:
        raise DataError(f"{given.name} has no rows to evaluate on")
    return Tally(read, stay, right, positive)


def evaluate(model: Model, data: Any) -> dict[str, Any]:
    """Share of right answers on public rows with its 95% interval, and the share that always
    answering the commoner label would get.
    """
    found = tally(model, data)
    if not found.stay:
        raise DataError(
            f"{source(data).name} has no rows to evaluate on: the schema drops all of them"
        )
    rows, accuracy = found.stay, found.right / found.stay
    low, high = wilson(accuracy, rows)
    majority = max(found.positive, rows - found.positive) / rows
    return {"rows": rows, "accuracy": accuracy, "low": low, "high": high, "majority": majority}


def predictions(model: Model, data: Any) -> Iterator[tuple[NDArray[Any], Array]]:
    """Yield label values and scores of each batch of rows; None where the schema drops a row."""
    schema = model.columns
    for batch in source(data).batches(schema.raw_columns[:-1]):
        keep = schema.kept(batch)
        kept = {name: cells[keep] for name, cells in batch.items()}
        labels, scores = np.full(len(keep), None, dtype=object), np.full(len(keep), np.nan)
        if keep.any():
            found = model.decision(kept)
            scores[keep] = found if found.ndim == 1 else found.max(axis=1)
            labels[keep] = model.answers(found)
        yield labels, scores
