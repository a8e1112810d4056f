"""A model as a scikit-learn pipeline of scikit-learn's own parts: it unpickles without dynadp.

Parts are fitted on declarations, bounds and vocabularies, never on rows.
"""

from collections.abc import Sequence
from importlib import import_module
from math import inf, nextafter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.svm import LinearSVC

from dynadp._arrays import Array
from dynadp.exports.pipeline_columns import example, over, product, transformer
from dynadp.exports.plain_model import PlainModel

_FAR = 1e100


def to_pipeline(model: PlainModel) -> Pipeline:
    """Return a fitted pipeline with ``predict``, ``decision_function`` and, where the model has
    probabilities, ``predict_proba``.

    It takes a frame of pandas or Polars with the model's columns, whatever others there are; for a
    model of ready features a matrix. Rows without an answer are refused, in scikit-learn's words.
    """
    steps = list[tuple[str, Any]]()
    if model.ready and model.counts.all():
        x = np.zeros((2, len(model.columns)))
    else:
        parts = [
            (f"column {i}", transformer(one, model.missing_values), _read(model, one))
            for i, one in enumerate(model.columns)
        ]
        columns = ColumnTransformer(parts, sparse_threshold=0.0)
        x = columns.fit_transform(_declarations(model))
        steps.append(("columns", columns))
    if model.constant:
        steps.append(("constant", PolynomialFeatures(degree=1)))  # puts a 1 first
        x = steps[-1][1].fit_transform(x)
    units = StandardScaler()
    units.fit(_centred(model))
    scores = _scores(model)
    scores.fit(x)
    return Pipeline([*steps, ("units", units), ("scores", scores), ("answer", _answer(model))])


def _read(model: PlainModel, column: Any) -> list[Any]:
    """The columns that one reads: by name, or by place in a matrix."""
    names = list(example(column, model.missing_values))
    if not model.ready:
        return names
    return [[one.name for one in model.columns].index(name) for name in names]


def _declarations(model: PlainModel) -> Any:
    """A frame of two rows, with the bounds of numbers and a value of each category; or a matrix."""
    columns = dict[str, list[Any]]()
    for column in model.columns:
        columns |= example(column, model.missing_values)
    if model.ready:
        return np.array(list(columns.values()), dtype=float).T
    for library in ("pandas", "polars"):
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "a pipeline takes frames: pip install pandas (or polars)", name="pandas"
    )


def _centred(model: PlainModel) -> Array:
    """Two rows with the mean and the deviation that turn features into (x - centre) weight, and 1
    into the constant.
    """
    weights = [
        np.full(column.width, getattr(column, "weight", 1.0)) for column, _ in model.places()
    ]
    deviation = 1 / np.concatenate(weights)
    mean = model.centre * deviation
    if model.constant:
        mean, deviation = np.append(0.0, mean), np.append(1 / model.constant, deviation)
    return np.array([mean - deviation, mean + deviation])


def _scores(model: PlainModel) -> Any:
    """F x, divided as long rows are: times 1 over their length."""
    F = np.column_stack([model.intercept, model.coef]) if model.constant else model.coef
    if model.scaling == "none":
        return FunctionTransformer(np.dot, kw_args={"b": F.T / model.norm})
    dot = FunctionTransformer(np.dot, kw_args={"b": F.T})
    counts = np.append(True, model.counts) if model.constant else model.counts
    least = model.norm if model.scaling == "clip" else 1 / _FAR
    return product([dot, over(least, len(F), counts)], len(F))


def _answer(model: PlainModel) -> Any:
    """A linear classifier of the scores; of two classes by the threshold, which need not be where
    the probability is 1/2.
    """
    if model.target is not None:
        return _number_of(model.target)
    classes = np.array(model.classes)
    if (K := len(classes)) > 2:
        if model.probability is None:
            return _linear(LinearSVC(), classes, np.eye(K), np.zeros(K))
        return _linear(LogisticRegression(), classes, model.probability[0] * np.eye(K), np.zeros(K))
    if model.probability is None:
        return _linear(LinearSVC(), classes, np.ones((1, 1)), np.array([-model.threshold]))
    slope, offset = model.probability
    made = _linear(LogisticRegression(), classes, np.array([[slope]]), np.array([offset]))
    edge = slope * model.threshold + offset
    if edge == 0:
        return made
    chosen = FixedThresholdClassifier(
        FrozenEstimator(made),
        threshold=nextafter(edge, inf),  # at the edge itself the answer is the first class
        pos_label=model.classes[1],
        response_method="decision_function",
    )
    return chosen.fit(np.array([[-1.0], [1.0]]), classes)


def _number_of(target: tuple[float, float]) -> Any:
    """A regression whose answers are clipped to bounds: a line through both, of scores that were
    clipped to [-1, 1].
    """
    ends = np.array([[-1.0], [1.0]])
    clip = FunctionTransformer(np.clip, kw_args={"a_min": -1.0, "a_max": 1.0})
    return make_pipeline(clip, LinearRegression()).fit(ends, np.array(target))


def _linear(classifier: Any, classes: NDArray[Any], coef: Array, intercept: Array) -> Any:
    """A classifier with these numbers."""
    count = len(coef[0])
    X = np.vstack([np.eye(count), -np.eye(count)]) if len(classes) > 2 else [[-1.0], [1.0]]
    y: Sequence[int] | NDArray[Any] = np.resize(np.arange(len(classes)), len(X))
    classifier.fit(X, y)
    classifier.coef_, classifier.intercept_, classifier.classes_ = coef, intercept, classes
    return classifier
