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
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from dynadp._arrays import Array
from dynadp.data import Curves, PlainCategory, PlainNumber
from dynadp.errors import DataError
from dynadp.exports.plain_model import PlainModel, ReadyNumber

_FAR = 1e100
_GONE = ("None", "nan", "NaN", "<NA>", "NaT")  # how a missing cell is spelled as text


def to_pipeline(model: PlainModel) -> Pipeline:
    """Return a fitted pipeline with ``predict``, ``decision_function`` and, where the model has
    probabilities, ``predict_proba``.

    It takes a frame of pandas or Polars with the model's columns, whatever others there are; for a
    model of ready features a matrix. Rows without an answer are refused, in scikit-learn's words.
    """
    steps = list[tuple[str, Any]]()
    if model.ready:
        x = np.zeros((2, len(model.columns)))
    else:
        parts = [
            (f"column {i}", _features(c, model), [c.name]) for i, c in enumerate(model.columns)
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


def _declarations(model: PlainModel) -> Any:
    """A frame of two rows, with the bounds of numbers and a value of each category."""
    columns: dict[str, list[Any]] = {
        c.name: [_words(c, model)[0][0]] * 2 if isinstance(c, PlainCategory) else _ends(c)
        for c in model.columns
    }
    for library in ("pandas", "polars"):
        try:
            return import_module(library).DataFrame(columns)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "a pipeline takes frames: pip install pandas (or polars)", name="pandas"
    )


def _ends(column: PlainNumber | ReadyNumber) -> list[float]:
    return [column.low, column.high] if isinstance(column, PlainNumber) else []


def _features(column: Any, model: PlainModel) -> Any:
    if isinstance(column, PlainCategory):
        return _category(column, model)
    assert isinstance(column, PlainNumber)
    parts: list[Any] = [FunctionTransformer(np.asarray, kw_args={"dtype": float})]
    if column.missing is not None:
        parts.append(SimpleImputer(strategy="constant", fill_value=column.missing))
    ends = (column.low, column.high)
    if column.transform == "log1p":
        ends = (0.0, column.high - column.low)
    parts.append(MinMaxScaler(feature_range=ends, clip=True))
    if column.transform == "log1p":
        parts.append(FunctionTransformer(np.log1p))
    curves = [(f"curves {i}", _curves(one)) for i, one in enumerate(column.curves)]
    return make_pipeline(*parts, FeatureUnion(curves))


def _curves(curves: Curves) -> Any:
    """Hats on the knots, times what curves give there."""
    knots = np.array(curves.knots)[:, None]
    hats = SplineTransformer(degree=1, knots=knots, extrapolation="constant")
    parts: list[Any] = [hats, FunctionTransformer(np.dot, kw_args={"b": np.array(curves.gives).T})]
    if curves.power == 2:
        parts.append(FunctionTransformer(np.square))
    return make_pipeline(*parts)


def _category(column: PlainCategory, model: PlainModel) -> Any:
    """The number of a cell's spelling, and what it gives; NaN, which the answer refuses, where a
    row has no answer.
    """
    spelled = _words(column, model)
    table = np.array(
        [_one_hot(column, place) for place in [*(p for _, p in spelled), column.other]]
    )
    return make_pipeline(
        FunctionTransformer(np.asarray, kw_args={"dtype": str}),
        FunctionTransformer(np.char.strip),
        OrdinalEncoder(
            categories=[np.array([word for word, _ in spelled])],
            handle_unknown="use_encoded_value",
            unknown_value=-1,  # the table's last line
            dtype=np.int64,
        ),
        FunctionTransformer(table.take, kw_args={"axis": 0}),
        FunctionTransformer(np.squeeze, kw_args={"axis": 1}),
    )


def _words(column: PlainCategory, model: PlainModel) -> list[tuple[str, int | None]]:
    """All spellings of values and of missing cells, with their places."""
    gone = [*_GONE, *(text for text in model.missing_values if text not in _GONE)]
    listed = [(text, k) for k, cells in enumerate(column.cells) for text in cells]
    if clash := sorted({text for text, _ in listed} & set(_GONE)):
        raise DataError(
            f"column {column.name!r} lists the value {clash[0]!r}, which scikit-learn's parts "
            "cannot tell from a missing cell; export to json, sql or onnx instead"
        )
    return [
        *((text, k) for text, k in listed if text not in gone),
        *((text, column.missing) for text in gone),
    ]


def _one_hot(column: PlainCategory, place: int | None) -> NDArray[np.float64]:
    if place is None:
        return np.full(column.width, np.nan)
    return np.asarray(np.arange(column.width) == place, dtype=float)


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
    """F x, divided as long rows are: products of F x with one more column, 1 over their length."""
    F = np.column_stack([model.intercept, model.coef]) if model.constant else model.coef
    if model.scaling == "none":
        return FunctionTransformer(np.dot, kw_args={"b": F.T / model.norm})
    dot = FunctionTransformer(np.dot, kw_args={"b": F.T})
    if model.scaling == "unit":
        return make_pipeline(Normalizer(), dot)
    over = make_pipeline(
        FunctionTransformer(np.linalg.norm, kw_args={"axis": 1, "keepdims": True}),
        FunctionTransformer(np.clip, kw_args={"a_min": model.norm, "a_max": _FAR}),
        FunctionTransformer(np.reciprocal),
    )
    products = PolynomialFeatures(degree=2, interaction_only=True, include_bias=False)
    K = len(F)
    products.fit(np.zeros((1, K + 1)))
    last = [np.flatnonzero((products.powers_[:, [k, K]] == 1).all(axis=1))[0] for k in range(K)]
    chosen = np.zeros((len(products.powers_), K))
    chosen[last, range(K)] = 1.0
    return make_pipeline(
        FeatureUnion([("raw", dot), ("over", over)]),
        products,
        FunctionTransformer(np.dot, kw_args={"b": chosen}),
    )


def _answer(model: PlainModel) -> Any:
    """A linear classifier of the scores; of two classes by the threshold, which need not be where
    the probability is 1/2.
    """
    if model.target is not None:
        return _number_of(model.target)
    classes = np.array(model.classes)
    if len(classes) > 2:
        return _linear(LinearSVC(), classes, np.eye(len(classes)), np.zeros(len(classes)))
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
