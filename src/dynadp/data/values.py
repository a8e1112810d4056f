"""Comparing cells with declared values: one rule for labels and categories, in memory, streamed and
in all formats.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.errors import CellError

Value = str | int | float
_DIGITS = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def match(cells: NDArray[Any], values: Iterable[Value]) -> NDArray[np.int64]:
    """Return the position of each cell among the declared values, -1 where it is none of them.

    Each cell is compared by itself, as text without surrounding blanks, where 1, 1.0 and "1" are
    equal. A text that equals no value may still equal one as a number: "1.0" is the declared number
    1 and the declared text "1", because programs write whole numbers so in a column with gaps. "+1"
    and "01" are the declared number 1, but not the declared text "1", which may be a code.
    """
    known = _vocabulary(tuple((normalise(value), isinstance(value, str)) for value in values))
    text = spelled(cells)
    near = np.minimum(np.searchsorted(known.words, text), len(known.words) - 1)
    places = np.where(known.words[near] == text, known.order[near], -1)
    left = places < 0
    if (known.numbers or known.wholes) and left.any():
        others, inverse = np.unique(text[left], return_inverse=True)
        places[left] = np.array([known.as_number(other) for other in others.tolist()])[inverse]
    return places


class _Vocabulary(NamedTuple):
    """Declared values, sorted by spelling, and their positions in the declaration."""

    words: NDArray[np.str_]
    order: NDArray[np.int64]
    numbers: dict[Decimal | None, int]
    wholes: dict[str, int]  # texts of digits

    def as_number(self, text: str) -> int:
        return self.numbers.get(_decimal(text), self.wholes.get(whole_number(text), -1))


def whole_number(text: str) -> str:
    """Return digits without a point that only zeros follow: "1.0" spells "1"."""
    digits, _, zeros = text.partition(".")
    return digits if _DIGITS.fullmatch(digits) and not zeros.strip("0") else text


@lru_cache(maxsize=1000)
def _vocabulary(declared: tuple[tuple[str, bool], ...]) -> _Vocabulary:
    words = np.array([word for word, _ in declared])
    order = np.argsort(words)
    numbers, wholes = dict[Decimal | None, int](), dict[str, int]()
    for place, (word, is_text) in enumerate(declared):
        if not is_text and (number := _decimal(word)) is not None:
            numbers[number] = place
        elif is_text and _DIGITS.fullmatch(word):
            wholes[word] = place
    return _Vocabulary(words[order], order, numbers, wholes)


def _decimal(text: str) -> Decimal | None:
    """Return the exact number that a text spells: two large codes must not meet in one float."""
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else None
    except ArithmeticError:  # an exponent beyond all bounds
        return None


def ambiguous(values: Sequence[Any]) -> bool:
    """Return whether a cell could equal two of the declared values: they have one spelling, or are
    a number and a text that spells it.
    """
    words = [normalise(value) for value in values]
    texts = {_decimal(w) for w, v in zip(words, values, strict=True) if isinstance(v, str)}
    numbers = {_decimal(w) for w, v in zip(words, values, strict=True) if not isinstance(v, str)}
    return len(set(words)) < len(words) or bool(texts & numbers - {None})


def normalise(value: Any) -> str:
    """Return one spelling for a cell or a declared value: without surrounding blanks, and whole
    numbers without a point, so that 1, 1.0 and "1" are equal.
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
    """Return :func:`~dynadp.data.values.normalise` of every cell."""
    if cells.dtype.kind == "U":
        return np.char.strip(cells)
    if cells.dtype.kind in "OS":
        return np.array([normalise(cell) for cell in cells], dtype=str)
    values, inverse = np.unique(cells, return_inverse=True)
    return np.asarray(np.array([normalise(value) for value in values], dtype=str)[inverse])


def absent(cells: NDArray[Any], missing_values: Sequence[str]) -> NDArray[np.bool_]:
    """Return which cells are missing: None, NaN, or a text that is declared to mean it."""
    if cells.dtype.kind == "f":
        return np.asarray(np.isnan(cells))
    if cells.dtype.kind == "U":
        return np.isin(np.char.strip(cells), missing_values)
    if cells.dtype.kind == "O":
        blank = frozenset(missing_values)
        return np.array([is_absent(v, blank) for v in cells], dtype=bool)
    return np.zeros(len(cells), dtype=bool)


def is_absent(value: Any, blank: frozenset[str]) -> bool:
    """Return whether one cell is missing."""
    if isinstance(value, str):
        return value.strip() in blank
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError, ArithmeticError):
        return True  # such as pandas' NA, which is neither equal nor unequal to itself


def days_of(times: NDArray[Any]) -> NDArray[Any]:
    """Return the day of each time, as objects; None for none."""
    return np.array(times.astype("datetime64[D]").tolist(), dtype=object)


def signs(labels: NDArray[Any], negative: Value, positive: Value, name: str) -> Array:
    """Return -1 for each negative label and +1 for each positive one; refuse others."""
    places = match(labels, (negative, positive))
    if (places < 0).any():
        reason = f"the label is neither {negative!r} nor {positive!r}, the two declared ones"
        raise CellError(name, int(np.argmin(places)), reason)
    return np.where(places == 1, 1.0, -1.0)


def places(labels: NDArray[Any], classes: Sequence[Value], name: str) -> Array:
    """Return the number of each label among the declared classes, from 0; refuse others."""
    found = match(labels, classes)
    if (found < 0).any():
        reason = f"the label is none of the {len(classes)} declared classes"
        raise CellError(name, int(np.argmin(found)), reason)
    return found.astype(float)


def to_array(values: Any, dtype: Any = None) -> NDArray[Any] | None:
    """Return the values as an array, or None where they do not form one.

    NumPy's own error may quote a value, so it is dropped.
    """
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError):
        return None
