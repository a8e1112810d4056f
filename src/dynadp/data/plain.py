"""Columns in plain numbers: what another program needs to make the same features of a cell.

The one place where a kind of column says how it leaves dynadp. What coefficients mean in the users'
units, and every export, is made of this description.
"""

from dataclasses import dataclass
from math import log1p

from dynadp.data.columns import Categorical, Column, Numeric
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
    """weight times curves of t(clip(v, low, high)), t as it is or ln(1 + v - low).

    Attributes
    ----------
    name, low, high, weight
        As declared.
    transform
        ``none`` or ``log1p``.
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


PlainColumn = PlainNumber | PlainCategory


def plain_column(column: Column) -> PlainColumn:
    """Describe a column.

    Raises
    ------
    DataError
        If nothing outside dynadp knows this kind of column.
    """
    if isinstance(column, Numeric):
        return _number(column)
    if isinstance(column, Categorical):
        return _category(column)
    raise DataError(
        f"column {getattr(column, 'name', '')!r} is of kind {getattr(column, 'kind', '')!r}, which "
        "has no meaning outside dynadp; expected numeric or categorical columns: predict with "
        "dynadp, or train without this column"
    )


def _number(column: Numeric) -> PlainNumber:
    if column.transform not in ("none", "log1p"):
        raise DataError(
            f"column {column.name!r} has the transform {column.transform!r}, which has no meaning "
            "outside dynadp; expected none or log1p: predict with dynadp, or train without it"
        )
    ends = column.low, column.high
    knots = column.knots
    if column.transform == "log1p":
        ends = 0.0, log1p(column.high - column.low)
        knots = tuple(log1p(knot - column.low) for knot in knots)
    line = (-1.0 if column.signed else 0.0, 1.0)
    places = range(len(knots))
    hats = tuple(tuple(float(i == k) for i in places) for k in places)
    made = {
        "linear": Curves(ends, (line,)),
        "square": Curves(ends, (line,), power=2),
        "hats": Curves(knots, hats),
    }
    return PlainNumber(
        name=column.name,
        low=column.low,
        high=column.high,
        transform=column.transform,
        missing=None if isinstance(column.missing, str) else float(column.missing),
        weight=column.weight,
        curves=tuple(made[code] for code in column.encode),
    )


def _category(column: Categorical) -> PlainCategory:
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
