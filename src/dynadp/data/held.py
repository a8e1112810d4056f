"""A file's cells in memory, as codes and narrow numbers: so that the rows of a file are read once,
where they are looked at twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp.data.coded import Coded, CodedRows, DictionaryColumn, Notes
from dynadp.data.sources import Source

_ROOM = 1 << 20  # bytes that cells may take in any case
_CELL = 128  # bytes of a distinct cell


def held(given: Source, names: Sequence[str], width: int, size: int = 32768) -> Source:
    """Return the source with its cells in memory; the source itself where they would take more
    than an eighth of dense rows of ``width`` numbers, or where there is a limit on memory.

    Parameters
    ----------
    given, names
        A source, and the columns that are wanted of it.
    width
        d of the bounded rows.
    size
        Rows read at once.
    """
    if given.memory is not None or not given.compact:
        return given
    columns, rows = {name: _Column() for name in dict.fromkeys(names)}, 0
    for batch in given.coded_batches(names, size):
        if not all(columns[name].add(cells) for name, cells in batch.items()):
            return given
        rows += len(next(iter(batch.values())))
        if sum(column.bytes for column in columns.values()) > _ROOM + width * rows:
            return given
    found = {name: column.done() for name, column in columns.items()}

    def read(names: tuple[str, ...], size: int) -> Iterator[CodedRows]:
        for low in range(0, rows, size):
            yield {name: found[name](slice(low, low + size)) for name in names}

    return replace(given, _coded=read)


class _Column:
    """The cells of a column so far."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []
        self._cells: NDArray[Any] | None = None
        self._notes: Notes | None = None
        self._nulls, self.bytes = False, 0

    def add(self, cells: Coded) -> bool:
        """Add the next rows; return False where codes have another meaning than before."""
        if isinstance(cells, DictionaryColumn):
            if cells.notes is None or (self._parts and cells.notes is not self._notes):
                return False
            null = len(cells.cells) - 1
            before = 0 if self._cells is None else len(self._cells)
            self.bytes += _CELL * (len(cells.cells) - before)
            self._cells, self._notes = cells.cells, cells.notes
            self._nulls |= cells.nulls
            part = cells.codes.astype(np.min_scalar_type(-max(null, 1)))
            if cells.nulls:
                part[part == null] = -1
        elif cells.dtype.kind == "f" and self._notes is None:
            with np.errstate(over="ignore"):
                part = cells.astype(np.float32)
            if not np.array_equal(part, cells, equal_nan=True):
                part = cells
        else:
            return False
        self._parts.append(part)
        self.bytes += part.nbytes
        return True

    def done(self) -> Callable[[slice], Coded]:
        """Return the function that gives some of the rows."""
        whole: NDArray[Any] = np.concatenate(self._parts) if self._parts else np.empty(0)
        self._parts.clear()
        cells, nulls, notes = self._cells, self._nulls, self._notes
        if cells is None:
            return lambda rows: whole[rows].astype(float)

        def some(rows: slice) -> DictionaryColumn:
            codes: NDArray[Any] = whole[rows]
            if nulls:
                codes = np.where(codes < 0, len(cells) - 1, codes.astype(np.int32))
            return DictionaryColumn(codes, cells, nulls, notes)

        return some
