"""Columns as nodes of an ONNX graph."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

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
    Value,
    normalise,
)
from dynadp.errors import DataError
from dynadp.exports.graph import Graph
from dynadp.exports.plain_model import ReadyNumber

_BLANK = r"[\s\v\x{1c}-\x{1f}\x{85}\p{Z}]*"  # what str.strip takes off
_FARTHEST = 1e100  # a number of a vector beyond it counts as this one
_DAYS = (-719162, 2932896)  # the first of January of the year 1, the last of December of 9999
_EPOCH = 719163  # 1970-01-01
Part = tuple[str, str]  # features, n x width, and which rows have no answer, n x 1


def features_of(graph: Graph, column: Any, missing_values: tuple[str, ...]) -> Part:
    """Return the nodes of a column's features, and of which rows have no answer."""
    if isinstance(column, ReadyNumber):
        return _read(graph, column.name, None)
    made, bad = _KINDS[type(column)](graph, column, missing_values)
    return graph("Mul", made, graph.floats(column.weight)), bad


def _read(graph: Graph, name: str, missing: float | None) -> Part:
    """A number, and whether there is none."""
    v = graph.number(name)
    if missing is not None:
        v = graph("Where", graph("IsNaN", v), graph.floats(missing), v)
    return v, graph("Or", graph("IsNaN", v), graph("IsInf", v))


def _number(graph: Graph, column: PlainNumber, _: tuple[str, ...]) -> Part:
    v, bad = _read(graph, column.name, column.missing)
    low, high = graph.floats(column.low), graph.floats(column.high)
    t = graph("Min", graph("Max", graph("Where", bad, low, v), low), high)
    if column.transform == "log1p":
        t = _log1p(graph, graph("Sub", t, low))
    elif column.transform == "signed_log":
        t = graph("Mul", graph("Sign", t), _log1p(graph, graph("Abs", t)))
    made = [_curves(graph, curves, t) for curves in column.curves]
    return graph("Concat", *made, axis=1), bad


def _log1p(graph: Graph, v: str) -> str:
    return graph("Log", graph("Add", v, graph.floats(1.0)))


def _curves(graph: Graph, curves: Curves, t: str) -> str:
    """y_0 and what each piece between two knots adds, as far as t is through it."""
    knots, gives = np.array(curves.knots), np.array(curves.gives)
    through = graph("Sub", t, graph.floats(knots[:-1]))
    through = graph("Div", through, graph.floats(np.diff(knots)))
    through = graph("Min", graph("Max", through, graph.floats(0.0)), graph.floats(1.0))
    made = graph("MatMul", through, graph.floats(np.diff(gives, axis=1).T))
    made = graph("Add", made, graph.floats(gives[:, 0]))
    return graph("Mul", made, made) if curves.power == 2 else made


def _bins(graph: Graph, column: PlainBins, _: tuple[str, ...]) -> Part:
    v = graph.number(column.name)
    gone, bad = graph("IsNaN", v), graph("IsInf", v)
    if column.missing is None:
        bad = graph("Or", gone, bad)
    above = graph.cast(graph("GreaterOrEqual", v, graph.floats([column.edges])))
    place = graph("ReduceSum", above, graph.whole([1]), keepdims=1)
    if column.missing is not None:
        place = graph("Where", gone, graph.floats(column.missing), place)
    return graph.one_hot(place, column.width), bad


def _hashed(graph: Graph, column: PlainHashed, _: tuple[str, ...]) -> Part:
    raise DataError(
        f"column {column.name!r} is hashed, and ONNX has no SHA-256; export to json or sklearn, or "
        "predict with dynadp"
    )


def _cross(graph: Graph, column: PlainCross, missing_values: tuple[str, ...]) -> Part:
    first, second = column.parts
    (one, bad), (other, worse) = (
        _KINDS[type(part)](graph, part, missing_values) for part in column.parts
    )
    pairs = graph(
        "Mul",
        graph("Unsqueeze", one, graph.whole([2])),
        graph("Unsqueeze", other, graph.whole([1])),
    )
    made = graph("Reshape", pairs, graph.whole([-1, first.width * second.width]))
    return made, graph("Or", bad, worse)


def _vector(graph: Graph, column: PlainVector, _: tuple[str, ...]) -> Part:
    read = [_read(graph, name, column.missing) for name in column.columns]
    bad = graph.any([one for _, one in read])
    x = graph("Concat", *(v for v, _ in read), axis=1)
    x = graph("Where", bad, graph.floats(0.0), x)
    x = graph("Min", graph("Max", x, graph.floats(-_FARTHEST)), graph.floats(_FARTHEST))
    squares = graph("ReduceSum", graph("Mul", x, x), graph.whole([1]), keepdims=1)
    over = graph("Max", graph("Sqrt", squares), graph.floats(column.norm))
    return graph("Div", x, over), bad


def _fourier(graph: Graph, column: PlainFourier, _: tuple[str, ...]) -> Part:
    parts = [_number(graph, part, ()) for part in column.parts]
    u = graph("Concat", *(one for one, _ in parts), axis=1)
    W, turns = column.waves
    angles = graph("Add", graph("MatMul", u, graph.floats(W.T)), graph.floats(turns))
    made = graph("Mul", graph("Sin", angles), graph.floats(column.scale))
    return made, graph.any([bad for _, bad in parts])


def _date(graph: Graph, column: PlainDate, _: tuple[str, ...]) -> Part:
    """Of the number of days since 1970-01-01."""
    missing = None if column.missing is None else column.missing - _EPOCH
    v, bad = _read(graph, column.name, missing)
    first, last = map(graph.floats, _DAYS)
    bad = graph.any([bad, graph("Less", v, first), graph("Greater", v, last)])
    day = graph("Floor", graph("Where", bad, first, v))
    made = list[str]()
    for part in column.parts:
        if part == "linear":
            number = graph("Add", day, graph.floats(_EPOCH))
            made.append(_curves(graph, column.line, number))
        elif part == "weekday":
            place = graph.modulo(graph("Add", day, graph.floats(3.0)), 7)
            made.append(graph.one_hot(place, 7))
        else:
            made.append(graph.one_hot(_month(graph, day), 12))
    return graph("Concat", *made, axis=1), bad


def _month(graph: Graph, day: str) -> str:
    """0 to 11, of days since 1970-01-01 (Hinnant's civil_from_days: years begin in March, four
    centuries have 146,097 days).
    """

    def whole(v: str, by: int) -> str:
        return graph("Floor", graph("Div", v, graph.floats(by)))

    def plus(*terms: str) -> str:
        found = terms[0]
        for term in terms[1:]:
            found = graph("Add", found, term)
        return found

    def times(v: str, by: int) -> str:
        return graph("Mul", v, graph.floats(by))

    of_era = graph.modulo(graph("Add", day, graph.floats(719468)), 146097)
    leap = plus(times(whole(of_era, 1460), -1), whole(of_era, 36524))
    year = whole(plus(of_era, leap, times(whole(of_era, 146096), -1)), 365)
    passed = plus(times(year, 365), whole(year, 4), times(whole(year, 100), -1))
    of_year = plus(of_era, times(passed, -1))
    march = whole(plus(times(of_year, 5), graph.floats(2)), 153)
    return graph.modulo(plus(march, graph.floats(2)), 12)


def _category(graph: Graph, column: PlainCategory, missing_values: tuple[str, ...]) -> Part:
    """weight at the place of a cell, and whether it may not be there."""
    cell = graph.text(column.name)
    blank = {"", *missing_values} if "" not in column.values else set(missing_values)
    pattern = "|".join(sorted(map(re.escape, blank))) if blank else r"[^\s\S]"
    gone = _matches(graph, cell, pattern)
    there = graph.cast(graph("Not", gone))
    found = [graph.cast(_matches(graph, cell, _pattern(value))) for value in column.values]
    hits = graph("Mul", graph("Concat", *found, axis=1), there)
    missing = column.missing
    listed = graph("ReduceSum", hits, graph.whole([1]), keepdims=1)
    unlisted = graph("Sub", there, listed)
    bad = gone if missing is None else graph("And", gone, graph("Not", gone))
    if column.other is None:
        bad = graph("Or", bad, graph("Greater", unlisted, graph.floats(0.5)))
    width = np.arange(column.width)
    made = graph("MatMul", hits, graph.floats(np.eye(len(column.values), column.width)))
    for flag, place in [(unlisted, column.other), (graph.cast(gone), missing)]:
        if place is not None and place >= 0:
            made = graph("Add", made, graph("MatMul", flag, graph.floats([width == place])))
    return made, bad


def _matches(graph: Graph, cell: str, pattern: str) -> str:
    return graph("RegexFullMatch", cell, pattern=f"{_BLANK}(?:{pattern}){_BLANK}")


def _pattern(value: Value) -> str:
    """What :func:`~dynadp.data.values.match` takes for a declared value, but for exponents."""
    word = normalise(value)
    if isinstance(value, str):
        is_whole = re.fullmatch(r"[+-]?\d+", word, re.ASCII)
        return re.escape(word) + (r"(?:\.0*)?" if is_whole else "")
    sign, whole, fraction = _digits(word)
    plus = r"\+?" if sign == "" else "-"
    if not whole.strip("0") and not fraction:
        return r"[+-]?(?:0+(?:\.0*)?|\.0+)"
    number = rf"0*{whole.lstrip('0')}"
    end = rf"\.{fraction}0*" if fraction else r"(?:\.0*)?"
    return rf"{plus}{number}{end}|{re.escape(word)}"


def _digits(word: str) -> tuple[str, str, str]:
    """Sign, whole digits and digits after the point of a number, without zeros at its ends."""
    text = format(Decimal(word), "f")
    sign = "-" if text.startswith("-") else ""
    whole, _, fraction = text.lstrip("+-").partition(".")
    return sign, whole, fraction.rstrip("0")


_KINDS: Mapping[type[Any], Callable[[Graph, Any, tuple[str, ...]], Part]] = {
    PlainNumber: _number,
    PlainCategory: _category,
    PlainBins: _bins,
    PlainHashed: _hashed,
    PlainCross: _cross,
    PlainDate: _date,
    PlainVector: _vector,
    PlainFourier: _fourier,
}
