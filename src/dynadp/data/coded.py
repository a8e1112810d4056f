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


@dataclass(frozen=True, eq=False, slots=True)
class DictionaryColumn:
    """Cells by code: row i holds ``cells[codes[i]]``; the last of the cells is None, for nulls.

    The same ``cells`` object from one batch to the next means the same cells.
    """

    codes: NDArray[np.integer[Any]] = field(repr=False)
    cells: NDArray[Any] = field(repr=False)
    nulls: bool  # whether a row may hold the last of them

    def __len__(self) -> int:
        return len(self.codes)

    def part(self, rows: slice | NDArray[np.bool_]) -> "DictionaryColumn":
        """Some of the rows."""
        return DictionaryColumn(self.codes[rows], self.cells, self.nulls)

    __getitem__ = part

    @property
    def plain(self) -> NDArray[Any]:
        """The cell of each row."""
        return np.asarray(self.cells[self.codes])

    def found(self, look: Callable[[NDArray[Any]], Any]) -> Any:
        """Return what ``look`` finds for each row; it is shown the distinct cells that rows have.

        ``look`` takes cells and returns an array, or a tuple of arrays, with a row for each cell.
        """
        used = np.flatnonzero(np.bincount(self.codes, minlength=len(self.cells)))
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
