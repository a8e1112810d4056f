"""A model's answers to raw rows: labels, scores and how many are right."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.data import Target, source, staying_rows
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms import NoisyHistogram
from dynadp.runs.binned import histogram_measures
from dynadp.runs.calibration import calibrated, calibration_of, class_calibrated
from dynadp.runs.class_measures import ClassMeasures, confusion_table, measures_of_classes
from dynadp.runs.measures import Measures, measures
from dynadp.runs.model import Model
from dynadp.runs.target_measures import TargetMeasures, measures_of_target
from dynadp.runs.thresholds import Threshold, threshold_for


@dataclass(frozen=True)
class Tally:
    """Numbers of rows: read, kept by the schema, and of these answered right and of the second
    label; of several classes by label and answer.
    """

    read: int
    stay: int
    right: int
    positive: int
    table: NDArray[np.int64] | None = None


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
    if model.columns.classes > 2:
        return _class_tally(model, data, limited=limited)
    read = stay = right = positive = 0
    least = _threshold(model, None)
    for count, scores, y in scored(model, data, limited=limited):
        right += int(np.sum((scores > least) == y))
        read, stay, positive = read + count, stay + len(y), positive + int(y.sum())
    if not read and not model.columns.hides_counts:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    return Tally(read, stay, right, positive)


def _class_tally(model: Model, data: Any, *, limited: bool) -> Tally:
    read, J = 0, len(model.classes)
    table = np.zeros((J, J), dtype=np.int64)
    for count, scores, y in class_scored(model, data, limited=limited):
        read, table = read + count, table + confusion_table(scores.argmax(axis=1), y, J)
    if not read and not model.columns.hides_counts:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    return Tally(read, int(table.sum()), int(np.trace(table)), int(table[1].sum()), table)


def class_scored(
    model: Model, data: Any, *, limited: bool = False
) -> Iterator[tuple[int, Array, NDArray[np.int64]]]:
    """Yield of each batch how many rows were read, and of those that stay the scores of all
    classes, in the model's order, and the number of their own.

    Parameters
    ----------
    model, data, limited
        As for :func:`tally`.
    """
    schema = model.columns if limited else model.columns.limited()
    if set(model.classes) != set(schema.label.classes):
        raise DataError(
            f"the model has {len(model.classes)} classes, its schema's label has "
            f"{schema.classes} values, and they are not the same; load it with "
            "NetworkClassifier.load and use score()"
        )
    order = np.array([model.classes.index(value) for value in schema.label.classes])
    given, read = source(data), 0
    staying = staying_rows(schema, given)
    for batch in given.batches(schema.read_columns):
        keep = staying(batch, read)
        kept = {name: cells[keep] for name, cells in batch.items()}
        yield len(keep), model.decision(kept), order[schema.labels(kept).astype(np.int64)]
        read += len(keep)


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
    sign = -1.0 if model.turned else 1.0
    given, read = source(data), 0
    staying = staying_rows(schema, given)
    for batch in given.batches(schema.read_columns):
        keep = staying(batch, read)
        kept = {name: cells[keep] for name, cells in batch.items()}
        yield len(keep), sign * model.decision(kept), schema.labels(kept) > 0
        read += len(keep)


def _threshold(model: Model, wanted: Threshold | None) -> float:
    """Above which score of :func:`scored` the positive label is the answer."""
    least = threshold_for(model, wanted)
    if not model.turned:
        return least
    return float(np.nextafter(-least, -np.inf))  # one at the threshold gets the first class


def evaluate(
    model: Model, data: Any, threshold: Threshold | None = None
) -> Measures | ClassMeasures:
    """Measure a model on public rows, which are held in memory as scores alone.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    threshold
        As for :func:`~dynadp.runs.thresholds.threshold_for`.
    """
    if model.columns.classes > 2:
        threshold_for(model, threshold)  # which is refused
        scores, places = _class_scores(model, data)
        return measures_of_classes(model.classes, scores, places, model.probabilities(scores))
    found = [(scores, y) for _, scores, y in scored(model, data)]
    if not found:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    scores, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(y):
        raise DataError(
            f"{source(data).name} has no rows to evaluate on: the schema drops all of them"
        )
    p = model.probabilities(-scores if model.turned else scores)
    if p is not None and model.turned:
        p = 1 - p
    return measures(scores, y, _threshold(model, threshold), p)


def predicted(model: Model, data: Any, *, limited: bool = False) -> Iterator[tuple[Array, Array]]:
    """Yield of each batch the numbers that a model answers, and those that are there, of the rows
    that stay: in the target's units, as they are in the file.

    Parameters
    ----------
    model, data, limited
        As for :func:`tally`.
    """
    schema = model.columns if limited else model.columns.limited()
    target = require_target(model)
    given, read = source(data), 0
    staying = staying_rows(schema, given)
    for batch in given.batches(schema.read_columns):
        keep = staying(batch, read)
        kept = {name: cells[keep] for name, cells in batch.items()}
        if keep.any():
            yield model.predict(kept), target.numbers(kept[target.name])
        read += len(keep)


def require_target(model: Model) -> Target:
    """Return the number that a model answers; refuse one that answers classes."""
    if model.target is None:
        raise DeclarationError(
            "the model answers classes, and R2, MAE and RMSE are of numbers; give a model whose "
            "schema has a target with low and high"
        )
    return model.target


def evaluate_target(model: Model, data: Any) -> TargetMeasures:
    """Measure a model that answers a number on public rows.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    """
    found = list(predicted(model, data))
    if not found:
        raise DataError(
            f"{source(data).name} has no rows to evaluate on, or the schema drops all of them"
        )
    answers, actual = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return measures_of_target(answers, actual)


def predictions(
    model: Model, data: Any, threshold: Threshold | None = None
) -> Iterator[tuple[NDArray[Any], Array, Array]]:
    """Yield label values, scores and probabilities of each batch of rows; None and NaN where the
    schema drops a row, and NaN where there are no probabilities. These are of the schema's positive
    label, of more classes of the one that is answered.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    threshold
        Of two classes, scores above it are answered with the second: as for
        :func:`~dynadp.runs.thresholds.threshold_for`.
    """
    schema = model.columns
    model = replace(model, threshold=threshold_for(model, threshold))
    for batch in source(data).batches(schema.raw_columns[:-1]):
        keep = schema.kept(batch)
        kept = {name: cells[keep] for name, cells in batch.items()}
        labels, scores = np.full(len(keep), None, dtype=object), np.full(len(keep), np.nan)
        chances = scores.copy()
        if keep.any():
            found = model.decision(kept)
            scores[keep] = found if found.ndim == 1 else found.max(axis=1)
            labels[keep] = model.answers(found)
            p = model.probabilities(found)
            if p is not None:
                p = 1 - p if model.turned else p
                chances[keep] = p if p.ndim == 1 else p.max(axis=1)
        yield labels, scores, chances


def _class_scores(model: Model, data: Any) -> tuple[Array, NDArray[np.int64]]:
    """Scores of all classes of all rows, and the numbers of their own."""
    found = [(scores, y) for _, scores, y in class_scored(model, data)]
    if not found:
        raise DataError(f"{source(data).name} has no rows to evaluate on")
    scores, places = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(places):
        raise DataError(
            f"{source(data).name} has no rows to evaluate on: the schema drops all of them"
        )
    return scores, places


def calibrated_on(model: Model, data: Any, name: str) -> Model:
    """Return the model with probabilities that were found on public rows.

    Parameters
    ----------
    model, data
        What answers, and the rows.
    name
        What they are called.
    """
    if model.columns.classes > 2:
        own, places = _class_scores(model, data)
        words = f"{len(places):,} public rows ({name})"
        return replace(model, calibration=class_calibrated(own, places, words))
    found = [(scores, y) for _, scores, y in scored(model, data)]
    scores, y = (np.concatenate(parts) for parts in zip(*found, strict=True))
    made = calibrated(scores, ~y * 1.0, y * 1.0, f"{len(y):,} public rows ({name})")
    return replace(model, calibration=made.turned() if model.turned else made)


def calibrated_by(model: Model, histogram: NoisyHistogram) -> Model:
    """Return the model with probabilities that follow from a released histogram of its scores."""
    if not len(histogram.edges):
        raise DeclarationError(
            "labels and answers were released, and no scores: of several classes probabilities are "
            "calibrated on public rows alone; leave --calibrate out"
        )
    made = calibration_of(histogram)
    if made is None:
        raise DataError(
            "noise drowns the rows of a label in this histogram, so that no probabilities follow "
            "from it: release it with a larger mu, or take more rows"
        )
    return replace(model, calibration=made.turned() if model.turned else made)


def private_measures(
    model: Model, histogram: NoisyHistogram, threshold: Threshold | None = None
) -> Measures:
    """Return all measures of a model that follow from a released histogram of its scores.

    Parameters
    ----------
    model, histogram
        What answers, and what :func:`~dynadp.runs.measure_privately` released of it.
    threshold
        As for :func:`~dynadp.runs.thresholds.threshold_for`.
    """
    known = model.calibration
    if known is not None and model.turned:
        known = known.turned()
    return histogram_measures(histogram, _threshold(model, threshold), known)


def released_measures(model: Model) -> tuple[dict[str, Any] | None, str]:
    """Return what the histogram that a run released says of its model, and on which rows; None and
    why, where noise drowns all measures.
    """
    assert model.histogram is not None
    found = histogram_measures(model.histogram, model.threshold, model.calibration)
    if "accuracy" not in found.found:
        return None, "noise drowns the histogram of scores that the last round released"
    return {**found.to_json(), "noise": model.histogram.noise}, (
        "those of the nodes that sent sums, weighted as in the model, by the noisy histogram that "
        "the last round released"
    )
