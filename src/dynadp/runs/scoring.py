"""A model's answers to raw rows: labels, scores and how many are right."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.data import source, staying_rows
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms import NoisyHistogram
from dynadp.runs.calibration import calibrated
from dynadp.runs.measures import Measures, measures
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
    read = stay = right = positive = 0
    for count, scores, y in scored(model, data, limited=limited):
        right += int(np.sum((scores > 0) == y))
        read, stay, positive = read + count, stay + len(y), positive + int(y.sum())
    if not read and not model.columns.hides_counts:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    return Tally(read, stay, right, positive)


def scored(
    model: Model, data: Any, *, limited: bool = False
) -> Iterator[tuple[int, Array, NDArray[np.bool_]]]:
    """Yield of each batch how many rows were read, and of those that stay their scores, larger for
    the positive label, and whether they have it.

    Parameters
    ----------
    model, data, limited
        As for :func:`tally`.
    """
    schema = model.columns if limited else model.columns.limited()
    label = schema.require_two_values("this measure")
    if set(model.classes) != {label.negative, label.positive}:
        raise DataError(
            f"the model has {len(model.classes)} classes, its schema's label has two values, and "
            f"they are not the same; load it with NetworkClassifier.load and use score()"
        )
    reversed_ = model.classes.index(label.positive) == 0
    given, read = source(data), 0
    staying = staying_rows(schema, given)
    for batch in given.batches(schema.read_columns):
        keep = staying(batch, read)
        kept = {name: cells[keep] for name, cells in batch.items()}
        found = model.decision(kept)
        if reversed_:  # a score of exactly 0 is answered with the first class
            found = np.where(found > 0, -found, np.maximum(-found, np.finfo(float).tiny))
        yield len(keep), found, schema.labels(kept) > 0
        read += len(keep)


def evaluate(model: Model, data: Any, threshold: float = 0.0) -> Measures:
    """Measure a model on public rows, which are held in memory as scores alone.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    threshold
        Scores above it are answered with the positive label.
    """
    found = [(scores, y) for _, scores, y in scored(model, data)]
    if not found:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    scores, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(y):
        raise DataError(
            f"{source(data).name} has no rows to evaluate on: the schema drops all of them"
        )
    return measures(scores, y, threshold, model.probabilities(scores))


def predictions(
    model: Model, data: Any, threshold: float = 0.0
) -> Iterator[tuple[NDArray[Any], Array, Array]]:
    """Yield label values, scores and probabilities of each batch of rows; None and NaN where the
    schema drops a row, and NaN where there are no probabilities.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    threshold
        Of two classes, scores above it are answered with the second.
    """
    schema = model.columns
    if threshold and len(model.classes) > 2:
        raise DeclarationError(
            f"threshold is {threshold:g}, and the model has {len(model.classes)} classes, of which "
            "the one with the largest score is answered; leave it out"
        )
    for batch in source(data).batches(schema.raw_columns[:-1]):
        keep = schema.kept(batch)
        kept = {name: cells[keep] for name, cells in batch.items()}
        labels, scores = np.full(len(keep), None, dtype=object), np.full(len(keep), np.nan)
        chances = scores.copy()
        if keep.any():
            found = model.decision(kept)
            scores[keep] = found if found.ndim == 1 else found.max(axis=1)
            labels[keep] = model.answers(found - threshold if threshold else found)
            p = model.probabilities(found)
            chances[keep] = np.nan if p is None else p
        yield labels, scores, chances


def calibrated_on(model: Model, data: Any, name: str) -> Model:
    """Return the model with probabilities that were found on public rows.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    name
        What they are called.
    """
    found = [(scores, y) for _, scores, y in scored(model, data)]
    scores, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
    made = calibrated(scores, ~y * 1.0, y * 1.0, f"{len(y):,} public rows ({name})")
    return replace(model, calibration=made)


def calibrated_by(model: Model, histogram: NoisyHistogram) -> Model:
    """Return the model with probabilities that follow from a released histogram of its scores."""
    inner = histogram.edges
    width = inner[1] - inner[0]
    centres = np.append(inner - width / 2, inner[-1] + width / 2)
    negative, positive = histogram.counts
    source_ = f"a histogram of private rows that was released for mu = {histogram.event.mu:g}"
    return replace(model, calibration=calibrated(centres, negative, positive, source_))
