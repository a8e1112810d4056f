"""Whose row is it, and which rows of a person stay: the first m of her own.

Which of a person's rows stay depends on her own rows and their order alone, never on the rows of
others. So two tables that differ in one person's rows differ, once limited, in at most m rows on
each side, and all other rows are the same. Rows without an id are left out: they may be of several
people, whose rows would take each other's places.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynadp.data.values import is_absent, normalise, to_array
from dynadp.errors import DataError, DeclarationError

MOST = 1 << 62  # rows of a person; a larger m limits nothing either, and would not fit
_EXACT = 2.0**53  # whole numbers above are not all floats
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)


def first_rows(ids: ArrayLike, m: int, missing_values: Sequence[str] = ("",)) -> NDArray[np.bool_]:
    """Return which rows are among the first m of their person.

    Parameters
    ----------
    ids
        Whose row each is. Ids are compared as texts without surrounding blanks; 1, 1.0, "1" and
        "1.0" are equal, "01" is another. No row without an id (None, NaN, a missing value) is among
        them.
    m
        Rows that a person may have, at least 1.
    missing_values
        Texts that mean "missing".

    >>> first_rows(["ann", "bob", " ann", "ann", None, "", "bob"], 2).tolist()
    [True, True, True, False, False, False, True]
    """
    if m < 1:
        raise DeclarationError(f"rows of a person: m is {m}; expected at least 1")
    return _first(person_codes(ids, missing_values), m)


def person_codes(ids: ArrayLike, missing_values: Sequence[str] = ("",)) -> NDArray[np.int64]:
    """Return a number for each row, the same for all rows of a person: people are numbered as they
    occur. -1 for a row without an id.

    Numbers depend on the places of others' rows, and not on their cells.

    >>> person_codes(["ann", "bob", 1.0, "", " ann", "1"]).tolist()
    [0, 1, 2, -1, 0, 2]
    """
    cells = _cells(ids)
    if cells.dtype.kind not in "iuf":
        people, codes = _distinct(cells, missing_values)
        return _named(codes, people.index(None) if None in people else None)
    values, codes = _numbered(cells)
    gone = np.flatnonzero(np.isnan(values))
    return _named(codes, int(gone[0]) if gone.size else None)


def first_rows_at_nodes(
    people: NDArray[np.int64], owner: NDArray[np.intp], m: int, s: int
) -> NDArray[np.bool_]:
    """Return which rows stay: of each person the first m at a node, at the first s of her nodes.

    Which of her rows stay depends on her own rows alone. Rows without an id do not stay.

    Parameters
    ----------
    people
        The number of each row's person (:func:`person_codes`), below 0 for none.
    owner
        The node of each row, as a number.
    m, s
        Rows that a person may have at a node, and nodes at which she may have some.

    >>> first_rows_at_nodes(np.array([0, 0, 0, 0, 1]), np.array([2, 1, 2, 0, 0]), 2, 2).tolist()
    [True, True, True, False, True]
    """
    pairs, keep = people * (int(owner.max(initial=0)) + 1) + owner, np.zeros(len(owner), bool)
    first = np.sort(np.unique(pairs, return_index=True)[1])  # each person's first row at each node
    there = np.isin(pairs, pairs[first[_first(people[first], s)]])
    keep[there] = first_rows(pairs[there], m)
    return keep


class Contributions:
    """Counts the rows of each person, batch after batch: holds a number for each person.

    Parameters
    ----------
    m
        Rows that a person may have.
    missing_values
        Texts that mean "missing".
    """

    def __init__(self, m: int, missing_values: Sequence[str]) -> None:
        self._m, self._missing = min(m, MOST), tuple(missing_values)
        self._seen: dict[str | None, int] = {}

    def first(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of the next rows are among the first m of their person."""
        people, codes = _distinct(_cells(ids), self._missing)
        before = np.fromiter((self._seen.get(one, 0) for one in people), np.int64, len(people))
        after = np.minimum(before + np.bincount(codes, minlength=len(people)), self._m)
        self._seen.update(zip(people, after.tolist(), strict=True))
        named = np.array([one is not None for one in people], bool)
        return np.asarray(named[codes] & (before[codes] + _ranks(codes) < self._m))


class PersonNumbers:
    """Numbers people as they occur, batch after batch, as :func:`person_codes` does for all.

    Parameters
    ----------
    missing_values
        Texts that mean "missing".
    """

    def __init__(self, missing_values: Sequence[str]) -> None:
        self._missing, self._known = tuple(missing_values), dict[str | None, int]()

    def __call__(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of each of the next rows."""
        people, codes = _distinct(_cells(ids), self._missing)
        known = self._known
        return np.array([known.setdefault(one, len(known)) for one in people], np.int64)[codes]


def spelled_id(cell: Any, blank: frozenset[str]) -> str | None:
    """Return the one spelling of an id; None where it is missing."""
    if is_absent(cell, blank):
        return None
    if isinstance(cell, float) and abs(cell) >= _EXACT:
        raise DataError(
            "ids of people: a number beyond 2^53 was stored as a decimal or floating-point number, "
            "which cannot tell such ids apart; store ids as texts or whole numbers"
        )
    text = normalise(cell)
    if "." in text and (whole := _WHOLE.fullmatch(text)):
        return whole[1]  # programs write whole numbers so in a column with gaps
    return text


def _cells(ids: ArrayLike) -> NDArray[Any]:
    """Return ids as an array; lists keep each id as it is."""
    cells = to_array(ids, dtype=object if isinstance(ids, list | tuple) else None)
    if cells is None or cells.ndim != 1 or cells.dtype.kind not in "OUSiufb":
        raise DataError("ids of people: expected one text or number a row")
    if cells.dtype.kind == "f" and (np.abs(cells) >= _EXACT).any():
        spelled_id(_EXACT, frozenset())  # refused there
    return cells.astype(int) if cells.dtype.kind == "b" else cells


def _numbered(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct numbers as they occur, NaN among them once, and the place of each row's
    among them.
    """
    values, first, places = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    codes = np.empty(len(values), dtype=np.int64)
    codes[order] = np.arange(len(values))
    return values[order], codes[places]


def _distinct(
    ids: NDArray[Any], missing_values: Sequence[str]
) -> tuple[list[str | None], NDArray[np.int64]]:
    """Return the people as they occur and, for each row, the place of its own among them."""
    blank = frozenset(missing_values)
    if ids.dtype.kind in "iuf":  # different numbers have different spellings
        values, codes = _numbered(ids)
        return [spelled_id(value, blank) for value in values.tolist()], codes
    found: dict[str | None, int] = {}
    each = (found.setdefault(spelled_id(cell, blank), len(found)) for cell in ids.tolist())
    codes = np.fromiter(each, np.int64, len(ids))
    return list(found), codes


def _named(codes: NDArray[np.int64], missing: int | None) -> NDArray[np.int64]:
    """Return people's numbers without that of the missing id, which gets -1."""
    if missing is None:
        return codes
    return np.where(codes == missing, -1, codes - (codes > missing))


def _first(codes: NDArray[np.int64], m: int) -> NDArray[np.bool_]:
    """Return which rows are among the first m of somebody."""
    return np.asarray((codes >= 0) & (_ranks(codes) < min(m, MOST)))


def _ranks(codes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return how many rows before each row have its code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    new = np.ones(len(codes), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(new)
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = np.arange(len(codes)) - first[np.cumsum(new) - 1]
    return ranks
