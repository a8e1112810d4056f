"""Columns in plain numbers: what another program needs to make the same features of a cell.

The one place where a kind of column says how it leaves dynadp. What coefficients mean in the users'
units, and every export, is made of this description.
"""

from dataclasses import dataclass, field
from datetime import date

import numpy as np

from dynadp._arrays import Array
from dynadp.data.columns import (
    Bins,
    Categorical,
    Column,
    Cross,
    Date,
    Fourier,
    Hashed,
    Numeric,
    Vector,
)
from dynadp.data.values import Value, normalise
from dynadp.errors import DataError


@dataclass(frozen=True)
class Curves:
    """Features y_k(t)^power, y_k linear between knots and constant beyond them.

    Attributes
    ----------
    knots
        Increasing values of t.
    gives
        y_k at the knots, for each feature.
    power
        1 or 2.
    """

    knots: tuple[float, ...]
    gives: tuple[tuple[float, ...], ...]
    power: int = 1


@dataclass(frozen=True)
class PlainNumber:
    """weight times curves of t(clip(v, low, high)): t as it is, ln(1 + v - low), or sign(v) ln(1 +
    abs(v)).

    Attributes
    ----------
    name, low, high, weight
        As declared.
    transform
        ``none``, ``log1p`` or ``signed_log``.
    missing
        What stands for a missing cell; None where such a row has no answer.
    curves
        The features, in their order.
    """

    name: str
    low: float
    high: float
    transform: str
    missing: float | None
    weight: float
    curves: tuple[Curves, ...]

    @property
    def width(self) -> int:
        """How many features there are."""
        return sum(len(one.gives) for one in self.curves)


@dataclass(frozen=True)
class PlainCategory:
    """weight at the place of the cell among its values, 0 elsewhere.

    Attributes
    ----------
    name, weight
        As declared.
    cells
        How each value may be spelled, as text without blanks around it.
    other, missing
        The place of an unlisted and of a missing cell; -1 for none, None where such a row has no
        answer.
    width
        How many features there are.
    values
        As declared.
    """

    name: str
    cells: tuple[tuple[str, ...], ...]
    other: int | None
    missing: int | None
    weight: float
    width: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class PlainBins:
    """weight at place k of a number, the number of edges that are at most it; 0 elsewhere.

    Attributes
    ----------
    name, edges, weight
        As declared.
    missing
        The place of a missing cell; -1 for none, None where such a row has no answer.
    """

    name: str
    edges: tuple[float, ...]
    missing: int | None
    weight: float

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.edges) + 1


@dataclass(frozen=True)
class PlainHashed:
    """weight at the bucket of the cell, 0 elsewhere.

    Attributes
    ----------
    name, salt, weight
        As declared.
    width
        The number of buckets.
    missing
        -1 for no bucket of a missing cell, None where such a row has no answer.
    """

    name: str
    salt: str
    width: int
    missing: int | None
    weight: float


@dataclass(frozen=True)
class PlainDate:
    """weight times the parts of a day, in their order.

    Attributes
    ----------
    name, format, pattern, weight
        As declared; the pattern is the format as a regular expression, with groups Y, m and d.
    first, last
        Numbers of days, where the first of January of the year 1 is day 1.
    missing
        The day of a missing cell; None where such a row has no answer.
    parts
        ``linear``: from ``starts`` at the first day to 1 at the last one, constant beyond them;
        ``weekday``: 1 at one of 7, Monday first; ``month``: 1 at one of 12.
    starts
        -1 or 0.
    """

    name: str
    format: str
    pattern: str
    first: int
    last: int
    missing: int | None
    parts: tuple[str, ...]
    starts: float
    weight: float

    @property
    def width(self) -> int:
        """How many features there are."""
        return sum({"linear": 1, "weekday": 7, "month": 12}[part] for part in self.parts)

    @property
    def line(self) -> Curves:
        """Of the number of a day."""
        return Curves((float(self.first), float(self.last)), ((self.starts, 1.0),))


PlainPlace = PlainCategory | PlainBins | PlainHashed


@dataclass(frozen=True)
class PlainCross:
    """weight at place i k_2 + j of a row with places i and j in both parts, 0 elsewhere.

    Attributes
    ----------
    name, weight
        As declared.
    parts
        Both; their weights do not count.
    """

    name: str
    parts: tuple[PlainPlace, PlainPlace]
    weight: float

    @property
    def width(self) -> int:
        """k_1 k_2."""
        return self.parts[0].width * self.parts[1].width


@dataclass(frozen=True)
class PlainVector:
    """weight x / max(norm, ||x||), x the numbers of several columns.

    Attributes
    ----------
    name, columns, norm, weight
        As declared.
    missing
        What stands for a missing cell; None where such a row has no answer.
    """

    name: str
    columns: tuple[str, ...]
    norm: float
    missing: float | None
    weight: float

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.columns)


@dataclass(frozen=True)
class PlainFourier:
    """weight (cos w_k.u, sin w_k.u)/sqrt(m) for k = 1..m.

    Attributes
    ----------
    name, weight
        As declared.
    parts
        Of u, each one feature.
    frequencies
        w: m x parts.
    """

    name: str
    parts: tuple[PlainNumber, ...]
    frequencies: Array = field(repr=False)
    weight: float

    @property
    def width(self) -> int:
        """2 m."""
        return 2 * len(self.frequencies)

    @property
    def waves(self) -> tuple[Array, Array]:
        """W and b with features weight scale sin(W u + b): cos z is sin(z + pi/2)."""
        turns = np.tile([np.pi / 2, 0.0], len(self.frequencies))
        return np.repeat(self.frequencies, 2, axis=0), turns

    @property
    def scale(self) -> float:
        """1/sqrt(m)."""
        return float(1 / np.sqrt(len(self.frequencies)))


PlainColumn = PlainNumber | PlainPlace | PlainDate | PlainCross | PlainVector | PlainFourier


def plain_column(column: Column) -> PlainColumn:
    """Describe a column.

    Raises
    ------
    DataError
        If nothing outside dynadp knows this kind of column.
    """
    if isinstance(column, Numeric):
        return _number(column)
    if isinstance(column, Categorical | Bins | Hashed):
        return _place(column)
    if isinstance(column, Date):
        missing = column.missing.toordinal() if isinstance(column.missing, date) else None
        return PlainDate(
            name=column.name,
            format=column.format,
            pattern=column.pattern,
            first=column.first.toordinal(),
            last=column.last.toordinal(),
            missing=missing,
            parts=column.encode,
            starts=-1.0 if column.signed else 0.0,
            weight=column.weight,
        )
    if isinstance(column, Cross):
        first, second = map(_place, column.parts)
        return PlainCross(column.name, (first, second), column.weight)
    if isinstance(column, Vector):
        missing_number = _or_none(column.missing)
        return PlainVector(column.name, column.columns, column.norm, missing_number, column.weight)
    if isinstance(column, Fourier):
        alone = {"encode": ("linear",), "knots": (), "weight": 1.0}
        parts = tuple(_number(part.model_copy(update=alone)) for part in column.parts)
        return PlainFourier(column.name, parts, column.frequencies, column.weight)
    raise DataError(
        f"column {getattr(column, 'name', '')!r} is of kind {getattr(column, 'kind', '')!r}, which "
        "has no meaning outside dynadp; expected one of the kinds that a schema declares: predict "
        "with dynadp, or train without this column"
    )


def _or_none(missing: str | float) -> float | None:
    return None if isinstance(missing, str) else float(missing)


def transformed(transform: str, low: float, v: float) -> float:
    """t(v)."""
    if transform == "none":
        return v
    if transform == "log1p":
        return float(np.log1p(v - low))
    return float(np.copysign(np.log1p(abs(v)), v))


def _number(column: Numeric) -> PlainNumber:
    low, high, *knots = (
        transformed(column.transform, column.low, v)
        for v in (column.low, column.high, *column.knots)
    )
    line = (-1.0 if column.signed else 0.0, 1.0)
    places = range(len(knots))
    hats = tuple(tuple(float(i == k) for i in places) for k in places)
    made = {
        "linear": Curves((low, high), (line,)),
        "square": Curves((low, high), (line,), power=2),
        "hats": Curves(tuple(knots), hats),
    }
    return PlainNumber(
        name=column.name,
        low=column.low,
        high=column.high,
        transform=column.transform,
        missing=_or_none(column.missing),
        weight=column.weight,
        curves=tuple(made[code] for code in column.encode),
    )


def _place(column: Categorical | Bins | Hashed) -> PlainPlace:
    if isinstance(column, Bins):
        at = None if column.missing in ("refuse", "drop") else -1
        if isinstance(column.missing, float):
            at = int(np.searchsorted(column.edges, column.missing, side="right"))
        return PlainBins(column.name, column.edges, at, column.weight)
    if isinstance(column, Hashed):
        at = -1 if column.missing == "other" else None
        return PlainHashed(column.name, column.salt, column.buckets, at, column.weight)
    count, width = len(column.values), len(column.features)
    other = {"zero": -1, "column": count, "refuse": None}[column.other]
    missing: int | None = None
    if isinstance(column.missing, dict):
        words = [normalise(value) for value in column.values]
        missing = words.index(normalise(column.missing["value"]))
    elif column.missing == "other":
        missing = other
    return PlainCategory(
        name=column.name,
        cells=tuple(_spellings(value) for value in column.values),
        other=other,
        missing=missing,
        weight=column.weight,
        width=width,
        values=column.values,
    )


def _spellings(value: Value) -> tuple[str, ...]:
    """Return a value as programs write it: whole numbers with and without ".0"."""
    word = normalise(value)
    digits = word[1:] if word[:1] in "+-" else word
    return (word, f"{word}.0") if digits.isascii() and digits.isdigit() else (word,)
