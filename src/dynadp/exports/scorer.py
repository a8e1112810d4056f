"""A model as plain JSON: a list of features, each of one cell, for a scorer of a few lines.

Feature x is ``texts[cell]`` where that is listed, otherwise ``else`` where ``knots`` is null, and
otherwise y(t)^power - less: y linear between ``knots``, where it has the values ``gives``, and
constant beyond them, or t where there are none; t = cell - about, or of that sign(t) ln(1 + abs(t))
with ``log``. Null has no answer. Scores are weights' x over the length of the x that count. Cells
that no row has are made of others before (``derived``).
"""

import json
from collections.abc import Iterator, Mapping
from math import inf, nextafter
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
    PlainPlace,
    PlainVector,
    transformed,
)
from dynadp.exports.plain_model import PlainModel, ReadyNumber

FORMAT, VERSION = "dynadp-scorer", 1
_FARTHEST = 1e300  # no row is longer
_NEAR_0 = 1e-150
Feature = dict[str, Any]
Texts = Mapping[str, float | None]


def to_json(model: PlainModel) -> dict[str, Any]:
    """Return all of a model for a program to read."""
    features, derived = list[Feature](), list[dict[str, Any]]()
    for column, places in model.places():
        parts = _features(column, model.missing_values, derived)
        for centre, feature in zip(model.centre[places].tolist(), parts, strict=True):
            features.append(_less(feature, centre))
    weights, counts = model.coef.T.tolist(), model.counts.astype(int).tolist()
    if model.constant:
        features.append(_feature(features[0]["column"], {}, model.constant))
        weights, counts = [*weights, model.intercept.tolist()], [*counts, 1]
    low, high = model.lengths
    return {
        "format": FORMAT,
        "version": VERSION,
        "classes": list(model.classes),
        "derived": derived,
        "features": features,
        "weights": weights,
        "counts": counts,
        "length": [max(low, 1 / _FARTHEST), min(high, _FARTHEST)],
        "threshold": model.threshold,
        "target": None if model.target is None else list(model.target),
        "probability": None if model.probability is None else list(model.probability),
    }


def text_of(model: PlainModel) -> str:
    """Return the JSON as text."""
    return json.dumps(to_json(model), indent=1, allow_nan=False) + "\n"


def _feature(
    column: str,
    texts: Texts,
    otherwise: float | None = None,
    *,
    about: float = 0.0,
    log: bool = False,
    knots: tuple[float, ...] | None = None,
    gives: tuple[float, ...] = (),
    power: int = 1,
) -> Feature:
    while knots and len(knots) > 2 and gives[0] == gives[1]:
        knots, gives = knots[1:], gives[1:]
    while knots and len(knots) > 2 and gives[-2] == gives[-1]:
        knots, gives = knots[:-1], gives[:-1]
    return {
        "column": column,
        "texts": dict(texts),
        "else": otherwise,
        "about": about,
        "log": log,
        "knots": None if knots is None else list(knots),
        "gives": list(gives),
        "power": power,
        "less": 0.0,
    }


def _less(feature: Feature, centre: float) -> Feature:
    """The feature without its centre."""
    texts = {text: _minus(value, centre) for text, value in feature["texts"].items()}
    return feature | {"texts": texts, "else": _minus(feature["else"], centre), "less": centre}


def _minus(value: float | None, centre: float) -> float | None:
    return None if value is None else value - centre


def _features(
    column: Any, missing_values: tuple[str, ...], derived: list[dict[str, Any]]
) -> Iterator[Feature]:
    """The features of a column; what they are derived from is appended."""
    gone = ("", *missing_values)
    if isinstance(column, ReadyNumber):
        yield _feature(column.name, {"": None}, knots=())
    elif isinstance(column, PlainNumber):
        yield from _numbers(column, gone)
    elif isinstance(column, PlainCategory):
        yield from _categories(column, missing_values)
    elif isinstance(column, PlainBins):
        yield from _bins(column, gone)
    else:
        yield from _derived(column, missing_values, derived)


def _numbers(column: PlainNumber, gone: tuple[str, ...]) -> Iterator[Feature]:
    log = column.transform != "none"
    about = column.low if column.transform == "log1p" else 0.0
    t = None
    if column.missing is not None:
        clipped = min(max(column.missing, column.low), column.high)
        t = transformed(column.transform, column.low, clipped)
    for curves in column.curves:
        for y in curves.gives:
            scaled = tuple(column.weight ** (1 / curves.power) * each for each in y)
            found = None
            if t is not None:
                found = float(np.interp(t, curves.knots, scaled)) ** curves.power
            yield _feature(
                column.name,
                dict.fromkeys(gone, found),
                about=about,
                log=log,
                knots=curves.knots,
                gives=scaled,
                power=curves.power,
            )


def _categories(column: PlainCategory, missing_values: tuple[str, ...]) -> Iterator[Feature]:
    listed = {text: k for k, cells in enumerate(column.cells) for text in cells}
    places = {"": column.missing, **listed, **dict.fromkeys(missing_values, column.missing)}
    for k in range(column.width):

        def value(place: int | None, k: int = k) -> float | None:
            if place is None:  # one feature without an answer is enough
                return None if k == 0 else 0.0
            return column.weight * (place == k)

        otherwise = value(column.other)
        texts = {text: value(place) for text, place in places.items()}
        texts = {text: one for text, one in texts.items() if one != otherwise}
        yield _feature(column.name, texts, otherwise)


def _bins(column: PlainBins, gone: tuple[str, ...]) -> Iterator[Feature]:
    """Steps: nothing lies between an edge and the number before it."""
    steps = [(nextafter(edge, -inf) if edge else -_NEAR_0, edge) for edge in column.edges]
    for k in range(column.width):
        knots, gives = list[float](), list[float]()
        if k > 0:
            knots, gives = [*steps[k - 1]], [0.0, column.weight]
        if k < len(steps):
            knots, gives = [*knots, *steps[k]], [*gives, column.weight, 0.0]
        missing = None if column.missing is None else column.weight * (column.missing == k)
        yield _feature(
            column.name, dict.fromkeys(gone, missing), knots=tuple(knots), gives=tuple(gives)
        )


def _line(cell: str, curves: Curves, weight: float) -> Feature:
    """A number that was derived; none has no answer."""
    gives = tuple(weight * each for each in curves.gives[0])
    return _feature(cell, {"": None}, knots=curves.knots, gives=gives)


def _at(cell: str, width: int, weight: float) -> Iterator[Feature]:
    """A place that was derived: -1 is none of them, an empty text has no answer."""
    for k in range(width):
        refused: Texts = {"": None} if k == 0 else {}
        yield _feature(cell, {str(k): weight, **refused}, 0.0)


def _derived(
    column: Any, missing_values: tuple[str, ...], derived: list[dict[str, Any]]
) -> Iterator[Feature]:
    def make(kind: str, cells: list[str], **more: Any) -> None:
        derived.append({"kind": kind, "cells": cells, "missing_values": gone, **more})

    gone = sorted({"", *missing_values})
    if isinstance(column, PlainDate):
        day, weekday, month = (f"dynadp: {column.name} ({part})" for part in _DATE_CELLS)
        missing = column.missing
        make("date", [day, weekday, month], column=column.name, missing=missing)
        derived[-1]["pattern"] = column.pattern
        for part in column.parts:
            if part == "linear":
                yield _line(day, column.line, column.weight)
            else:
                cell, width = (weekday, 7) if part == "weekday" else (month, 12)
                yield from _at(cell, width, column.weight)
    elif isinstance(column, PlainHashed):
        yield from _at(_hashed(column, make), column.width, column.weight)
    elif isinstance(column, PlainCross):
        cell = f"dynadp: {column.name}"
        parts = [_part(part, missing_values, derived) for part in column.parts]
        make("cross", [cell], parts=parts)
        yield from _at(cell, column.width, column.weight)
    elif isinstance(column, PlainVector):
        cells = [f"dynadp: {column.name} {name}" for name in column.columns]
        given = {"columns": list(column.columns), "norm": column.norm, "missing": column.missing}
        make("vector", cells, **given)
        for cell in cells:
            yield _line(cell, Curves((-1.0, 1.0), ((-1.0, 1.0),)), column.weight)
    else:
        assert isinstance(column, PlainFourier)
        u = [next(_numbers(part, ("", *missing_values))) for part in column.parts]
        W, turns = column.waves
        cells = [f"dynadp: {column.name} {k}" for k in range(len(W))]
        make("fourier", cells, parts=u, frequencies=W.tolist(), turns=turns.tolist())
        for cell in cells:
            yield _line(cell, Curves((-1.0, 1.0), ((-1.0, 1.0),)), column.weight * column.scale)


_DATE_CELLS = ("day", "weekday", "month")


def _hashed(column: PlainHashed, make: Any) -> str:
    cell = f"dynadp: {column.name} (bucket of {column.width}, {column.salt!r})"
    given = {"column": column.name, "salt": column.salt, "buckets": column.width}
    make("hashed", [cell], missing=column.missing, **given)
    return cell


def _part(
    part: PlainPlace, missing_values: tuple[str, ...], derived: list[dict[str, Any]]
) -> list[Feature]:
    """Features of which the one that is not 0 is the place."""
    return list(_features(part, missing_values, derived))
