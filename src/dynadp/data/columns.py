"""Raw columns and the public declarations that turn their cells into features, one row at a time
(maths.md 1 and 11).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynadp._arrays import Array
from dynadp.errors import CellError

Value = str | int | float
_DIGITS = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
Block = tuple[NDArray[np.int64], Array]  # (column within the block, value), each rows x entries


class Declared(BaseModel):
    """A public declaration: frozen, with no field that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Numeric(Declared):
    """u = (t(clip(v, low, high)) - t(low)) / (t(high) - t(low)), mapped to [-1, 1] or [0, 1], times
    the weight.

    Attributes
    ----------
    low, high
        Public bounds; values outside are clipped to them.
    transform
        t: ``none``, or ``log1p`` for ln(1 + v - low), for heavy tails.
    encode
        Which features to make: ``linear`` u, ``square`` u^2, ``hats`` piecewise linear bumps on
        ``knots``.
    knots
        Increasing raw values; hat k is 1 at knot k and 0 at its neighbours, linear in t between
        them, and they sum to 1.
    signed
        u in [-1, 1] (default) or [0, 1].
    missing
        ``refuse``, ``drop`` (the row, before anything is counted), or a value to put there. With
        ``drop`` neighbouring data differ in a row that *stays*: B_p counts what is left and is
        public, so declare it to :meth:`~dynadp.data.schema.Schema.shard`.
    """

    kind: Literal["numeric"] = "numeric"
    name: str
    low: float
    high: float
    transform: Literal["none", "log1p"] = "none"
    encode: tuple[Literal["linear", "square", "hats"], ...] = ("linear",)
    knots: tuple[float, ...] = ()
    signed: bool = True
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    missing: Literal["refuse", "drop"] | float = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _bounds_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (given.get("low") is None or given.get("high") is None):
            raise ValueError(
                f"numeric column {given.get('name')!r} has no public bounds: declare low and high "
                f"from what is known "
                "about the quantity; bounds read off the rows would leak them"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Numeric":
        if not self.low < self.high:
            raise ValueError(
                f"numeric column {self.name!r}: low is {self.low} and high is {self.high}; low "
                f"must be below"
            )
        if max(abs(self.low), abs(self.high)) > 1e150:
            raise ValueError(
                f"numeric column {self.name!r}: bounds beyond 1e150 overflow; use another unit"
            )
        if ("hats" in self.encode) != bool(self.knots) or len(self.knots) == 1:
            raise ValueError(
                f"numeric column {self.name!r}: 'hats' needs at least two public knots, and only "
                f"'hats' does"
            )
        if any(a >= b for a, b in pairwise(self.knots)) or any(
            not self.low <= k <= self.high for k in self.knots
        ):
            raise ValueError(
                f"numeric column {self.name!r}: knots must increase and lie in [{self.low}, "
                f"{self.high}]"
            )
        if not self.encode or len(set(self.encode)) != len(self.encode):
            raise ValueError(
                f"numeric column {self.name!r}: encode must name at least one feature, each once"
            )
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        names: list[str] = []
        for code in self.encode:
            if code == "hats":
                names += [f"{self.name}~{normalise(knot)}" for knot in self.knots]
            else:
                names.append(self.name if code == "linear" else f"{self.name}^2")
        return tuple(names)

    @property
    def diameter2(self) -> float:
        """Squared distance by which replacing a cell can move its features: 4 or 1 for u, 1 for
        u^2, 2 for the hats.
        """
        moves = {"linear": 4.0 if self.signed else 1.0, "square": 1.0, "hats": 2.0}
        return self.weight**2 * sum(moves[code] for code in self.encode)

    def project(self, f: Array) -> Array:
        """A vector of features brought back to where means of features lie: numbers in their
        bounds, hats on the simplex.
        """
        f = f / self.weight
        out, position = [], 0
        for code in self.encode:
            if code == "hats":
                out.append(onto_simplex(f[position : position + len(self.knots)], full=True))
                position += len(self.knots)
            else:
                low = -1.0 if self.signed and code == "linear" else 0.0
                out.append(np.clip(f[position : position + 1], low, 1.0))
                position += 1
        return np.asarray(self.weight * np.concatenate(out))

    def _t(self, v: ArrayLike) -> Array:
        v = np.asarray(v, dtype=float)
        return np.log1p(v - self.low) if self.transform == "log1p" else v

    def fill(self, v: Array, out: Array) -> None:
        """Write the values that :meth:`block` gives finite numbers into ``out``, features x rows;
        not for hats.
        """
        u = out[0]
        np.clip(v, self.low, self.high, out=u)
        if self.transform == "log1p":
            u -= self.low
            np.log1p(u, out=u)
        low, high = self._t([self.low, self.high])
        u -= low
        u /= high - low
        if self.signed:
            u *= 2
            u -= 1
        for i in reversed(range(len(out))):  # u lies in row 0, which therefore comes last
            if self.encode[i] == "square":
                np.multiply(u, u, out=out[i])
            elif i:
                out[i] = u
        if self.weight != 1:
            out *= self.weight

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Feature positions and values of these cells."""
        v = _floats(self.name, cells, absent)
        if absent.any():
            v[absent] = float(self.missing)
        t = self._t(np.clip(v, self.low, self.high))
        low, high = self._t([self.low, self.high])
        u = (t - low) / (high - low)
        if self.signed:
            u = 2 * u - 1
        indices: list[NDArray[np.int64]] = []
        values: list[Array] = []
        position = 0
        for code in self.encode:
            if code == "hats":
                knots = self._t(self.knots)
                left = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(knots) - 2)
                share = np.clip((t - knots[left]) / (knots[left + 1] - knots[left]), 0.0, 1.0)
                indices += [position + left, position + left + 1]
                values += [1 - share, share]
                position += len(knots)
            else:
                indices.append(np.full(len(v), position))
                values.append(u if code == "linear" else u * u)
                position += 1
        return np.stack(indices, axis=1), self.weight * np.stack(values, axis=1)


class Categorical(Declared):
    """One-hot over a public vocabulary; an unlisted value is the all-zero block, a column of its
    own, or refused.

    Attributes
    ----------
    values
        The public vocabulary, compared by :func:`places`: 1, 1.0, "1" and "1.0" are equal.
    other
        What an unlisted value becomes: ``zero`` (all-zero block), ``column`` (one more column) or
        ``refuse``.
    missing
        ``refuse``, ``drop`` (the row), ``other``, or a listed value, written as ``{"value": ...}``.
    """

    kind: Literal["categorical"] = "categorical"
    name: str
    values: tuple[Value, ...]
    other: Literal["zero", "column", "refuse"] = "zero"
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    missing: Literal["refuse", "drop", "other"] | dict[Literal["value"], Value] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _vocabulary_is_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("values"):
            raise ValueError(
                f"categorical column {given.get('name')!r} has no public vocabulary: declare "
                f"values; a list read off "
                "the rows would show which categories occur"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Categorical":
        if ambiguous(self.values):
            raise ValueError(f"categorical column {self.name!r} lists a value twice")
        if self.missing == "other" and self.other == "refuse":
            raise ValueError(
                f"categorical column {self.name!r}: missing is 'other', but other is 'refuse'"
            )
        if isinstance(self.missing, dict) and self._stand_in not in _spellings(self.values):
            raise ValueError(
                f"categorical column {self.name!r}: the value for missing cells is not in its "
                f"vocabulary"
            )
        return self

    @property
    def diameter2(self) -> float:
        """Squared distance by which replacing a cell can move its features: from one corner of the
        block to another, 2.
        """
        return 2.0 * self.weight**2

    def project(self, f: Array) -> Array:
        """A vector of features brought back to where means of features lie: shares that sum to 1,
        or to less with ``zero``.
        """
        return np.asarray(self.weight * onto_simplex(f / self.weight, full=self.other != "zero"))

    @property
    def _stand_in(self) -> str:
        """The spelling of the value that stands for a missing one."""
        return normalise(self.missing.get("value")) if isinstance(self.missing, dict) else ""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        return tuple(
            f"{self.name}={v}"
            for v in (*self.values, *(["(other)"] if self.other == "column" else []))
        )

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Feature positions and values of these cells."""
        index = match(cells, self.values)
        listed = (index >= 0) & ~absent
        index = np.where(listed, index, 0)
        if isinstance(self.missing, dict) and absent.any():
            index[absent] = _spellings(self.values).index(self._stand_in)
            listed = listed | absent
        if self.other == "refuse" and not listed.all():
            raise CellError(
                f"column {self.name!r}",
                int(np.argmin(listed)),
                "the value is not in the declared vocabulary; list it, or declare other = 'zero' "
                "or 'column'",
            )
        if self.other == "column":
            index = np.where(listed, index, len(self.values))
            listed = np.ones_like(listed)
        return index[:, None], self.weight * listed[:, None].astype(float)


Column = Annotated[Numeric | Categorical, Field(discriminator="kind")]


def onto_simplex(v: Array, full: bool) -> Array:
    """argmin ||x - v|| over x >= 0 with sum x = 1 (``full``) or sum x <= 1 (Held, Wolfe and Crowder
    1974).
    """
    if not full and np.maximum(v, 0.0).sum() <= 1:
        return np.asarray(np.maximum(v, 0.0))
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.asarray(np.maximum(v - excess[np.flatnonzero(u > excess)[-1]], 0.0))


def match(cells: NDArray[Any], values: Iterable[Value]) -> NDArray[np.int64]:
    """Where each cell stands among the declared values, each cell by itself; -1 where it does not.

    The one rule for labels and categories, in memory, streamed and in all formats. Cells are
    compared as text without surrounding blanks, where 1, 1.0 and "1" are alike. A text that is none
    of the values so may still be one as a number: "1.0" is the declared number 1 and the declared
    text "1", as programs write whole numbers of a column with gaps. "+1" and "01" are the declared
    number 1, but not the declared text "1", which may be a code.
    """
    words, order, numbers, wholes = _vocabulary(
        tuple((normalise(value), isinstance(value, str)) for value in values)
    )
    text = spelled(cells)
    near = np.minimum(np.searchsorted(words, text), len(words) - 1)
    found = np.where(words[near] == text, order[near], -1)
    left = found < 0
    if (numbers or wholes) and left.any():
        others, inverse = np.unique(text[left], return_inverse=True)
        found[left] = np.array(
            [numbers.get(_decimal(t), wholes.get(_whole(t), -1)) for t in others.tolist()]
        )[inverse]
    return found


@lru_cache(maxsize=1000)
def _vocabulary(
    declared: tuple[tuple[str, bool], ...],
) -> tuple[NDArray[np.str_], NDArray[np.int64], dict[Decimal | None, int], dict[str, int]]:
    """Declared spellings in sorted order, where each stands in the declaration; where numbers do,
    and texts of digits.
    """
    words = np.array([word for word, _ in declared])
    order = np.argsort(words)
    found = ((_decimal(word), i) for i, (word, is_text) in enumerate(declared) if not is_text)
    wholes = {
        word: i for i, (word, is_text) in enumerate(declared) if is_text and _DIGITS.fullmatch(word)
    }
    return words[order], order, {number: i for number, i in found if number is not None}, wholes


def _whole(text: str) -> str:
    """A whole number without its point and the zeros behind it; other texts as they are."""
    digits, _, zeros = text.partition(".")
    return digits if not zeros.strip("0") else text


def _decimal(text: str) -> Decimal | None:
    """The number that a text is, exactly: large codes must not meet in one float."""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else None
    except ArithmeticError:  # an exponent beyond all bounds
        return None


def ambiguous(values: Sequence[Any]) -> bool:
    """Whether a cell could be two of the declared values: spelled alike, or a number and a text
    that is that number.
    """
    words = [normalise(value) for value in values]
    texts = [isinstance(value, str | np.str_) for value in values]
    numbers = {
        _decimal(word) for word, is_text in zip(words, texts, strict=True) if not is_text
    } - {None}
    return len(set(words)) < len(words) or any(
        is_text and _decimal(word) in numbers for word, is_text in zip(words, texts, strict=True)
    )


def _spellings(values: tuple[Value, ...]) -> list[str]:
    return [normalise(value) for value in values]


def normalise(value: Any) -> str:
    """One text for a cell or a declared value: blanks cut, whole numbers without a point, so that
    1, 1.0 and "1" are alike.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating) and value == np.floor(value) and np.isfinite(value):
        return str(int(value))
    return str(value)


def spelled(cells: NDArray[Any]) -> NDArray[np.str_]:
    """:func:`spelling` of every cell."""
    if cells.dtype.kind == "U":
        return np.char.strip(cells)
    if cells.dtype.kind in "OS":
        return np.array([normalise(cell) for cell in cells], dtype=str)
    values, inverse = np.unique(cells, return_inverse=True)
    return np.asarray(np.array([normalise(value) for value in values], dtype=str)[inverse])


def _floats(name: str, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Array:
    """Cells as fresh float64, absent ones 0; refuses what is no finite number by position, never by
    value.
    """
    if cells.dtype.kind in "UO":
        numbers = [
            0.0 if gone else _number(cell)
            for cell, gone in zip(cells.tolist(), absent, strict=True)
        ]
        wrong = next((row for row, number in enumerate(numbers) if number is None), None)
        if wrong is not None:
            raise CellError(f"column {name!r}", wrong, "the value is not a number")
        v = np.array(numbers, dtype=float)
    elif cells.dtype.kind in "iufb":
        v = np.where(absent, 0, cells).astype(float)
    else:
        raise CellError(
            f"column {name!r}", 0, "the value is not a number (nor is any other in the column)"
        )
    finite = np.isfinite(v)
    if not finite.all():
        raise CellError(
            f"column {name!r}", int(np.argmin(finite)), "the value is infinite or not a number"
        )
    return v


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return np.inf
