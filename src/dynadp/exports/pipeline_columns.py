"""Columns as parts of a scikit-learn pipeline, which unpickle without dynadp."""

import re
from collections.abc import Sequence
from datetime import date
from functools import partial
from hashlib import sha256
from operator import add, eq, itemgetter, methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OrdinalEncoder,
    SplineTransformer,
)

from dynadp.data import (
    Curves,
    PlainBins,
    PlainCategory,
    PlainCross,
    PlainDate,
    PlainFourier,
    PlainHashed,
    PlainNumber,
    PlainVector,
)
from dynadp.errors import DataError
from dynadp.exports.plain_model import ReadyNumber

_FARTHEST = 1e100
_GONE = ("None", "nan", "NaN", "<NA>", "NaT")  # how a missing cell is spelled as text
_EPOCH = 719163  # 1970-01-01, where the first of January of the year 1 is day 1


def transformer(column: Any, missing_values: Sequence[str]) -> Any:
    """Return the part that turns the columns that one reads into its features, without their
    weight.
    """
    if isinstance(column, ReadyNumber):
        return _numbers(None)
    if isinstance(column, PlainNumber):
        return _number(column)
    if isinstance(column, PlainDate):
        return _date(column, missing_values)
    if isinstance(column, PlainVector):
        clip = FunctionTransformer(np.clip, kw_args={"a_min": -_FARTHEST, "a_max": _FARTHEST})
        same = FunctionTransformer(np.asarray)
        long = over(column.norm, column.width, np.ones(column.width, dtype=bool))
        clipped = make_pipeline(clip, product([same, long], column.width))
        return make_pipeline(_numbers(column.missing), product([clipped, _finite()], column.width))
    if isinstance(column, PlainFourier):
        return _fourier(column)
    if isinstance(column, PlainCross):
        return _cross(column, missing_values)
    return _place(column, missing_values)


def example(column: Any, missing_values: Sequence[str]) -> dict[str, list[Any]]:
    """Return two cells of each column that one reads, made of declarations."""
    if isinstance(column, PlainNumber):
        return {column.name: [column.low, column.high]}
    if isinstance(column, PlainCategory):
        return {column.name: [_words(column, missing_values)[0][0]] * 2}
    if isinstance(column, PlainDate):
        day = date.fromordinal(column.first)
        text = column.format.replace("%Y", f"{day.year:04}").replace("%m", f"{day.month:02}")
        return {column.name: [text.replace("%d", f"{day.day:02}")] * 2}
    if isinstance(column, PlainBins):
        return {column.name: [column.edges[0]] * 2}
    if isinstance(column, PlainHashed):
        return {column.name: ["a", "b"]}
    if isinstance(column, PlainVector):
        return {name: [0.0, 1.0] for name in column.columns}
    if isinstance(column, ReadyNumber):
        return {column.name: [0.0, 1.0]}
    found = dict[str, list[Any]]()
    for part in column.parts:
        found |= example(part, missing_values)
    return found


def product(parts: Sequence[Any], width: int) -> Any:
    """Return a part whose features are products of those of others, each of this width."""
    both = FeatureUnion([(f"factor {i}", part) for i, part in enumerate(parts)])
    return _multiplied(both, len(parts), width)


def _multiplied(parts: Any, count: int, width: int) -> Any:
    return make_pipeline(
        parts,
        FunctionTransformer(methodcaller("reshape", -1, count, width)),
        FunctionTransformer(np.prod, kw_args={"axis": 1}),
    )


def over(least: float, width: int, counts: NDArray[np.bool_]) -> Any:
    """Return a part of ``width`` features that are all 1/max(least, length of the row), of the
    features that count.
    """
    return make_pipeline(
        FunctionTransformer(partial(np.multiply, counts.astype(float))),
        FunctionTransformer(np.linalg.norm, kw_args={"axis": 1, "keepdims": True}),
        FunctionTransformer(np.clip, kw_args={"a_min": least, "a_max": _FARTHEST}),
        FunctionTransformer(np.reciprocal),
        FunctionTransformer(np.repeat, kw_args={"repeats": width, "axis": 1}),
    )


def _each(*functions: Any, kind: Any = object) -> Any:
    """Functions of one cell, one after the other, for all cells n x 1."""
    return make_pipeline(
        FunctionTransformer(np.ravel),
        FunctionTransformer(methodcaller("tolist")),
        *(FunctionTransformer(partial(map, function)) for function in functions),
        FunctionTransformer(list),
        FunctionTransformer(partial(np.array, dtype=kind)),
        FunctionTransformer(methodcaller("reshape", -1, 1)),
    )


def _numbers(missing: float | None) -> Any:
    read = FunctionTransformer(np.asarray, kw_args={"dtype": float})
    if missing is None:
        return read
    return make_pipeline(read, SimpleImputer(strategy="constant", fill_value=missing))


def _finite() -> Any:
    """1, or NaN where a number is infinite or none."""
    return make_pipeline(
        FunctionTransformer(np.isfinite),
        FunctionTransformer(np.asarray, kw_args={"dtype": np.int64}),
        FunctionTransformer(np.array([np.nan, 1.0]).take),
    )


def _number(column: PlainNumber) -> Any:
    parts: list[Any] = [_numbers(column.missing)]
    ends = (column.low, column.high)
    if column.transform == "log1p":
        ends = (0.0, column.high - column.low)
    parts.append(MinMaxScaler(feature_range=ends, clip=True))
    log = FunctionTransformer(np.log1p)
    if column.transform == "log1p":
        parts.append(log)
    elif column.transform == "signed_log":
        parts.append(
            product(
                [FunctionTransformer(np.sign), make_pipeline(FunctionTransformer(np.abs), log)], 1
            )
        )
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


def _place(column: PlainCategory | PlainBins | PlainHashed, missing_values: Sequence[str]) -> Any:
    """One-hot at a place; NaN, which the answer refuses, where a row has no answer."""
    if isinstance(column, PlainCategory):
        return _category(column, missing_values)
    if isinstance(column, PlainBins):
        return _bins(column)
    return _hashed(column, missing_values)


def _table(table: NDArray[np.float64]) -> list[Any]:
    """From places n x 1 to lines of a table."""
    return [
        FunctionTransformer(table.take, kw_args={"axis": 0}),
        FunctionTransformer(np.squeeze, kw_args={"axis": 1}),
    ]


def _one_hot(width: int, place: int | None) -> NDArray[np.float64]:
    if place is None:
        return np.full(width, np.nan)
    return np.asarray(np.arange(width) == place, dtype=float)


def _texts(missing_values: Sequence[str]) -> list[Any]:
    """Cells as texts without blanks around them; the missing ones empty."""
    gone = "|".join(map(re.escape, sorted({"", *_GONE, *missing_values})))
    return [
        FunctionTransformer(np.asarray, kw_args={"dtype": str}),
        FunctionTransformer(np.char.strip),
        _each(partial(re.sub, rf"\A(?:{gone})\Z", "")),
    ]


def _category(column: PlainCategory, missing_values: Sequence[str]) -> Any:
    """The number of a cell's spelling, and what it gives."""
    spelled = _words(column, missing_values)
    places = [*(p for _, p in spelled), column.other]
    table = np.array([_one_hot(column.width, place) for place in places])
    return make_pipeline(
        FunctionTransformer(np.asarray, kw_args={"dtype": str}),
        FunctionTransformer(np.char.strip),
        OrdinalEncoder(
            categories=[np.array([word for word, _ in spelled])],
            handle_unknown="use_encoded_value",
            unknown_value=-1,  # the table's last line
            dtype=np.int64,
        ),
        *_table(table),
    )


def _words(column: PlainCategory, missing_values: Sequence[str]) -> list[tuple[str, int | None]]:
    """All spellings of values and of missing cells, with their places."""
    gone = [*_GONE, *(text for text in missing_values if text not in _GONE)]
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


def _bins(column: PlainBins) -> Any:
    """Infinite numbers have a line of their own, which is refused, and so have missing ones."""
    far = np.finfo(float).max
    marks = {"nan": far / 2, "posinf": far, "neginf": far}
    places: list[int | None] = [*range(column.width), column.missing, None]
    return make_pipeline(
        _numbers(None),
        FunctionTransformer(np.nan_to_num, kw_args=marks),
        FunctionTransformer(np.digitize, kw_args={"bins": [*column.edges, far / 2, far]}),
        *_table(np.array([_one_hot(column.width, place) for place in places])),
    )


def _hashed(column: PlainHashed, missing_values: Sequence[str]) -> Any:
    """SHA-256 of salt, zero byte and text, times 1 where there is a text."""
    buckets = make_pipeline(
        *_texts(missing_values),
        _each(
            partial(re.sub, r"(?a)\A([+-]?\d+)\.0*\Z", r"\1"),
            partial(add, f"{column.salt}\0"),
            methodcaller("encode", "utf-8", "surrogatepass"),
            sha256,
            methodcaller("digest"),
            itemgetter(slice(8)),
            partial(int.from_bytes, byteorder="big"),
            methodcaller("__mod__", column.width),
            kind=np.int64,
        ),
        *_table(np.eye(column.width)),
    )
    gone = np.full(column.width, np.nan if column.missing is None else 0.0)
    there = make_pipeline(
        *_texts(missing_values),
        _each(partial(eq, ""), kind=np.int64),
        *_table(np.array([np.ones(column.width), gone])),
    )
    return product([buckets, there], column.width)


def _cross(column: PlainCross, missing_values: Sequence[str]) -> Any:
    """The one's places, each as often as the other has some, times those of the other, in turn."""
    first, second = column.parts
    repeated = FunctionTransformer(np.repeat, kw_args={"repeats": second.width, "axis": 1})
    tiled = FunctionTransformer(np.tile, kw_args={"reps": (1, first.width)})
    parts = [
        (part.name, make_pipeline(_place(part, missing_values), spread), [part.name])
        for part, spread in ((first, repeated), (second, tiled))
    ]
    return _multiplied(ColumnTransformer(parts, sparse_threshold=0.0), 2, column.width)


def _fourier(column: PlainFourier) -> Any:
    W, turns = column.waves
    parts = [(part.name, _number(part), [part.name]) for part in column.parts]
    return make_pipeline(
        ColumnTransformer(parts, sparse_threshold=0.0),
        FunctionTransformer(np.dot, kw_args={"b": W.T}),
        FunctionTransformer(partial(np.add, turns)),
        FunctionTransformer(np.sin),
        FunctionTransformer(partial(np.multiply, column.scale)),
    )


def _date(column: PlainDate, missing_values: Sequence[str]) -> Any:
    """Texts as ISO 8601 spells days, which NumPy reads; what is no day becomes a text that it
    refuses.
    """
    none = "no day"
    instead = none if column.missing is None else date.fromordinal(column.missing).isoformat()
    day = rf"(?a)\A(?:{column.pattern}(?:[T ].*)?|(?P<no>[\s\S]+))\Z"
    days = make_pipeline(
        *_texts(missing_values),
        _each(
            partial(re.sub, day, r"\g<Y>-\g<m>-\g<d>"),
            partial(re.sub, r"\A(?:--|0000-.*)\Z", none),
            partial(re.sub, r"-(\d)(?!\d)", r"-0\1"),
            partial(re.sub, r"\A\Z", instead),
        ),
        FunctionTransformer(np.asarray, kw_args={"dtype": "datetime64[D]"}),
    )
    whole = FunctionTransformer(np.asarray, kw_args={"dtype": np.int64})
    months = FunctionTransformer(np.asarray, kw_args={"dtype": "datetime64[M]"})

    def modulo(period: int) -> list[Any]:
        return [FunctionTransformer(methodcaller("__mod__", period)), *_table(np.eye(period))]

    made = {
        "linear": [whole, FunctionTransformer(partial(np.add, _EPOCH)), _curves(column.line)],
        "weekday": [whole, FunctionTransformer(partial(np.add, 3)), *modulo(7)],
        "month": [months, whole, *modulo(12)],
    }
    parts = [(part, make_pipeline(*made[part])) for part in column.parts]
    return make_pipeline(days, FeatureUnion(parts))
