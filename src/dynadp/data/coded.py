"""Columns in which cells repeat: each distinct cell is looked at once, whatever the number of rows.

Whatever is found for a distinct cell holds for all rows that have it, to the last bit, because
columns look at each row by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHARE = 2  # texts are coded where distinct ones are at most one in so many
_MOST = 1 << 16  # distinct cells that are known at a time


class Looked:
    """What was found for distinct cells that were looked at, by code; of None at the end.

    Parameters
    ----------
    of
        What they were looked at for, kept so that no other object gets its id.
    """

    def __init__(self, of: Any) -> None:
        self.of, self.done = of, np.zeros(1, dtype=bool)
        self.tables: list[NDArray[Any]] | None = None
        self._several = False

    def grow(self, count: int) -> None:
        """Make room for as many cells."""
        if count > len(self.done):
            self.done = _longer(self.done, count)
            self.tables = self.tables and [_longer(one, count) for one in self.tables]

    def put(self, codes: NDArray[np.intp], found: Any) -> None:
        """Remember what was found for the cells with these codes."""
        self._several = isinstance(found, tuple)
        each = found if self._several else (found,)
        if self.tables is None:
            self.tables = [np.zeros((len(self.done), *one.shape[1:]), one.dtype) for one in each]
        for table, one in zip(self.tables, each, strict=True):
            table[codes] = one
        self.done[codes] = True

    def at(self, codes: NDArray[np.integer[Any]]) -> Any:
        """Return what was found for each row."""
        assert self.tables is not None
        found = tuple(table.take(codes, axis=0) for table in self.tables)
        return found if self._several else found[0]


def _longer(array: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the array with room before its last entry, which is that of None."""
    made = np.zeros((count, *array.shape[1:]), array.dtype)
    made[: len(array) - 1], made[-1] = array[:-1], array[-1]
    return made


Notes = dict[tuple[str, int], Looked]


@dataclass(frozen=True, eq=False, slots=True)
class DictionaryColumn:
    """Cells by code: row i holds ``cells[codes[i]]``; the last of the cells is None, for nulls.

    The same ``cells`` object from one batch to the next means the same cells.
    """

    codes: NDArray[np.integer[Any]] = field(repr=False)
    cells: NDArray[Any] = field(repr=False)
    nulls: bool  # whether a row may hold the last of them
    # what was found for these cells, and for those of other batches with the same codes
    notes: Notes | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    def part(self, rows: slice | NDArray[np.bool_]) -> "DictionaryColumn":
        """Some of the rows."""
        return DictionaryColumn(self.codes[rows], self.cells, self.nulls, self.notes)

    __getitem__ = part

    @property
    def plain(self) -> NDArray[Any]:
        """The cell of each row."""
        return np.asarray(self.cells[self.codes])

    def distinct(self) -> "tuple[DictionaryColumn, NDArray[np.intp]]":
        """Return a column of the cells that rows have, each once, and each row's place in it."""
        among = np.bincount(self.codes, minlength=len(self.cells)) > 0
        used = np.flatnonzero(among)
        place = np.zeros(len(self.cells), dtype=np.intp)
        place[used] = np.arange(len(used))
        return DictionaryColumn(used, self.cells, self.nulls, self.notes), place[self.codes]

    def found(self, look: Callable[[NDArray[Any]], Any], what: str = "", of: Any = None) -> Any:
        """Return what ``look`` finds for each row; it is shown the distinct cells that rows have.

        Parameters
        ----------
        look
            Takes cells and returns an array, or a tuple of arrays, with a row for each cell.
        what, of
            A name for what it finds, and the only object that this depends on besides the cell:
            cells that were looked at for it in earlier batches are not looked at again.
        """
        among = np.bincount(self.codes, minlength=len(self.cells)) > 0
        if what and self.notes is not None and len(self.codes):
            known = self.notes.setdefault((what, id(of)), Looked(of))
            known.grow(len(self.cells))
            if (new := np.flatnonzero(among & ~known.done)).size:
                known.put(new, look(self.cells[new]))
            return known.at(self.codes)
        used = np.flatnonzero(among)
        place = np.zeros(len(self.cells), dtype=np.intp)
        place[used] = np.arange(len(used))
        codes, seen = place[self.codes], look(self.cells[used])
        return tuple(one[codes] for one in seen) if isinstance(seen, tuple) else seen[codes]


Coded = NDArray[Any] | DictionaryColumn
CodedRows = Mapping[str, Coded]


def coded(cells: NDArray[Any]) -> Coded:
    """Return texts as codes; other cells, and texts that hardly repeat, as they are."""
    if cells.dtype.kind != "O":
        return cells
    listed: list[Any] = cells.tolist()
    if not set(map(type, listed)) <= {str, type(None)}:
        return cells
    known = dict.fromkeys(listed)
    nulls = None in known
    known.pop(None, None)
    if _SHARE * len(known) > len(listed):
        return cells
    distinct = np.fromiter((*known, None), dtype=object, count=len(known) + 1)
    place = {text: i for i, text in enumerate(distinct.tolist())}
    codes = np.fromiter(map(place.__getitem__, listed), np.int32, len(listed))
    return DictionaryColumn(codes, distinct, nulls)


def plain(table: Mapping[str, Coded]) -> dict[str, NDArray[Any]]:
    """Return the table with the cell of each row."""
    return {
        name: cells.plain if isinstance(cells, DictionaryColumn) else cells
        for name, cells in table.items()
    }


def unboxed(column: Any) -> NDArray[Any]:
    """Return whole numbers or float64 of Arrow's, NaN for nulls, where they lie: its own
    ``to_numpy`` imports pandas.
    """
    if column.null_count:
        column = column.fill_null(float("nan"))
    kind, buffer = np.dtype(str(column.type)), column.buffers()[1]
    if not len(column):
        return np.empty(0, dtype=kind)
    return np.frombuffer(buffer, kind, len(column), column.offset * kind.itemsize)


class KnownCells:
    """Dictionary-encoded arrays of Arrow's as codes that mean the same cells from one batch to the
    next, as long as they are not too many and repeat.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._places: dict[Any, int] = {}
        self._cells = np.array([None], dtype=object)
        self._notes: Notes = {}

    def __call__(self, column: Any) -> DictionaryColumn:
        """Return the next rows; ``column`` is encoded first where it is not."""
        column = column if hasattr(column, "dictionary") else column.dictionary_encode()
        listed, codes = column.dictionary.to_pylist(), column.indices
        nulls = bool(codes.null_count)
        if nulls:
            codes = codes.cast("int64").fill_null(len(listed))
        found = list(map(self._places.get, listed))
        new = found.count(None)
        if _SHARE * new > len(column):
            cells = np.fromiter((*listed, None), dtype=object, count=len(listed) + 1)
            return DictionaryColumn(unboxed(codes), cells, nulls)
        if new and len(self._places) > _MOST:
            self._forget()
        places = self._places
        if new:
            found = [places.setdefault(cell, len(places)) for cell in listed]
            self._cells = np.fromiter((*places, None), dtype=object, count=len(places) + 1)
        kind = np.min_scalar_type(len(places))
        found.append(len(places))
        return DictionaryColumn(
            np.array(found, dtype=kind).take(unboxed(codes)), self._cells, nulls, self._notes
        )


class Distinct:
    """Dictionary-encoded arrays of Arrow's as codes and distinct cells; the cells stay the same
    object as long as they are the same.
    """

    def __init__(self) -> None:
        self._last: Any = None
        self._cells = np.empty(0, dtype=object)

    def __call__(self, column: Any) -> DictionaryColumn:
        """Return the next rows; ``column`` is encoded first where it is not."""
        column = column if hasattr(column, "dictionary") else column.dictionary_encode()
        values = column.dictionary
        if self._last is None or not values.equals(self._last):
            found = [*values.to_pylist(), None]
            self._last, self._cells = values, np.fromiter(found, dtype=object, count=len(found))
        codes, nulls = column.indices, bool(column.indices.null_count)
        if nulls:
            codes = codes.cast("int64").fill_null(len(values))
        return DictionaryColumn(unboxed(codes), self._cells, nulls)
