"""Blocks of bounded rows from the coded columns of a Parquet file, made anew in every pass.

Rows with unusual cells take the slow path (:meth:`~dynadp.data.schema.Schema.shard`), which accepts
them or raises the same error as an in-memory load.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows
from dynadp.data.cell_tables import CellTable, Kept, refused
from dynadp.data.coded import DictionaryColumn
from dynadp.data.columns import Column, Cross, Numeric
from dynadp.data.contributions import RowsLeft, row_bits
from dynadp.data.cross_tables import CrossTables
from dynadp.data.declared import Cells, floats
from dynadp.data.readers import LEAST_MEMORY
from dynadp.data.row_blocks import Block, CodedBlock, Features, Group, StoredBlock
from dynadp.data.schema import Schema, counted_among
from dynadp.data.shard import ROOM
from dynadp.data.sources import Source
from dynadp.data.streaming import (
    CodedColumn,
    CodedTable,
    coded_batches,
    rows_at_once,
)
from dynadp.errors import CellError

_WORKED = 32768  # rows in a block: what is computed for them stays in the processor's cache
_JOINT = 8192  # joint codes of columns that are looked up together
# numbers in R_c where a centre makes it dense; past it rows are written down after all
_LARGEST_TABLE = 1 << 22
_SMALL_TABLE = 1 << 16  # numbers in R_c below which dense is faster than sparse


class Part(NamedTuple):
    """Some thousand rows of a file.

    Attributes
    ----------
    start
        The number of the first.
    cells
        All their cells.
    keep
        Which of them stay; None where all do.
    kept
        The cells of those that stay.
    block
        Those that stay, signed and bounded; None where the slow path has to look at the cells.
    """

    start: int
    cells: CodedTable
    keep: NDArray[np.bool_] | None
    kept: CodedTable
    block: CodedBlock | None


class Blocks:
    """All rows of a node that stay, block after block, as often as they are wanted.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    given
        A Parquet file with a limit on memory.
    name
        The node's, for messages.
    most
        Rows that stay, at most: the first ones.

    Attributes
    ----------
    size
        Rows read at once.
    chunk
        Rows that, written down four times, take half of the limit.
    passes
        How often the file was read so far.

    Raises
    ------
    DataError
        As :func:`dynadp.data.loading.load_shard` would: every pass looks at every cell again.
    """

    def __init__(self, schema: Schema, given: Source, name: str, most: int | None = None) -> None:
        self.schema, self.given, self.name, self.most = schema, given, name, most
        self._limited, self._signs = schema.limited(), schema.label.kind == "signs"
        memory, columns = given.memory or LEAST_MEMORY, len(schema.raw_columns)
        widths = [len(column.features) for column in schema.columns]
        numbers = sum(
            width
            for column, width in zip(schema.columns, widths, strict=True)
            if column.numbers and not isinstance(column, Cross)
        )
        self.size = rows_at_once(memory, columns)
        self.chunk = max(64, min(8192, memory // (64 * schema.dimension)))
        self._worked = max(64, min(_WORKED, memory // (32 * (3 * numbers + 2 * columns + 8))))
        starts = np.cumsum([0, *widths]).tolist()
        self._where = {
            column.name: slice(starts[i], starts[i + 1]) for i, column in enumerate(schema.columns)
        }
        self._centre = None if schema.centre is None else np.array(schema.centre)
        # |phi - centre|^2 <= 2 |phi|^2 + 2 |centre|^2, and no |phi| is longer than the diameter
        longest = 2 * sum(column.diameter2 for column in schema.columns) + 1e-300
        longest += 0.0 if self._centre is None else 2 * float(self._centre @ self._centre)
        self._grain = float(2.0 ** (np.ceil(np.log2(longest)) - 50))
        self.passes = 0
        self._last: dict[str, CellTable] = {}  # of each column
        self._by_name: dict[str, Column] = {column.name: column for column in schema.columns}
        self._kept = Kept(memory // 16)
        self._crosses = CrossTables(schema, self._where, self._centre)

    def __iter__(self) -> Iterator[Block]:
        for part in self.parts():
            if part.block is not None:
                if part.block.rows:
                    yield part.block
                continue
            for places, table in self.tables(part):
                with counted_among(places):
                    self._limited.shard(table, self.name)  # accepts these cells, or says why not
                coded = {c.name for c in self.schema.columns if _is_coded(c, part.kept)}
                yield self._written(table, coded)

    def parts(self) -> Iterator[Part]:
        """Yield parts of some thousand rows."""
        bits = None if self.schema.person is None else row_bits(self.schema, self.given)
        self.passes += 1
        names, known, start = self.schema.raw_columns[:-1], self.schema.number_columns, 0
        numbers = [name for name in names if name in known]
        texts = [name for name in names if name not in known]
        (numbers if self.schema.label.kind == "numbers" else texts).append(self.schema.label.name)
        left = None if self.most is None else RowsLeft(self.most)
        for batch in coded_batches(self.given, numbers, texts, self.size):
            count = _length(batch)
            for low in range(0, count, self._worked):
                cells, first = _some(batch, slice(low, low + self._worked)), start + low
                keep = self._staying(cells) if bits is None else bits.part(first, _length(cells))
                if left is not None:
                    keep = left(np.ones(_length(cells), dtype=bool) if keep is None else keep)
                kept = cells if keep is None or keep.all() else _some(cells, keep)
                yield Part(first, cells, keep, kept, self._signed(kept))
            start += count

    def tables(self, part: Part) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """Yield the rows of a part that stay, as plain cells, in chunks, for the slow path; with
        them their numbers in the file.
        """
        stays = np.arange(_length(part.kept)) if part.keep is None else np.flatnonzero(part.keep)
        for low in range(0, len(stays), self.chunk):
            rows = slice(low, low + self.chunk)
            table = {
                name: cells.cells[cells.codes] if isinstance(cells, DictionaryColumn) else cells
                for name, cells in _some(part.kept, rows).items()
            }
            yield part.start + stays[rows], table

    def _written(self, kept: dict[str, NDArray[Any]], coded: set[str]) -> StoredBlock:
        """Return signed, bounded rows, written down: to the last bit those of :meth:`_signed`, as
        it depends on other rows' cells which of the two makes them.
        """
        rows = np.zeros((len(next(iter(kept.values()))), self.schema.dimension))
        features = self.schema.only_features().rows(kept)
        rows[:, : features.shape[1]] = features.toarray()
        if self._centre is not None:
            rows[:, : len(self._centre)] -= self._centre
        squares = np.zeros(len(rows))
        for name in self._where.keys() & coded:
            own = rows[:, self._where[name]]
            found = np.asarray(csr_array(own * own).sum(axis=1)).ravel()
            squares += np.ceil(found / self._grain) * self._grain
        squares += self.schema.intercept**2
        for column in self.schema.columns:
            if column.name not in coded:
                for line in rows[:, self._where[column.name]].T:
                    squares += line * line
        if self.schema.intercept:
            rows[:, -1] = self.schema.intercept
        scale = self._scale(np.sqrt(squares))
        assert scale is not None  # the rows were accepted
        y = self.schema.labels(kept)
        if self._signs:
            return StoredBlock(np.asarray(rows * (scale * y)[:, None]), signs=y)
        return StoredBlock(np.asarray(rows * scale[:, None]), y)

    def _staying(self, part: CodedTable) -> NDArray[np.bool_] | None:
        """Return which rows stay; None where all do."""
        keep: NDArray[np.bool_] | None = None
        for name in self.schema.dropping_columns:
            cells = part[name]
            gone: NDArray[np.bool_] | None
            if not isinstance(cells, DictionaryColumn):
                gone = np.isnan(cells)
            elif name in self._by_name:
                gone = self._table(name, cells).gone(cells)
            else:
                gone = self.schema.absent(cells.cells)[cells.codes]
            if gone is not None and gone.any():
                keep = ~gone if keep is None else keep & ~gone
        return keep

    def _signed(self, part: CodedTable) -> CodedBlock | None:
        """Return signed, bounded rows; None where the slow path has to look at them."""
        y, made = self._answers(part[self.schema.label.name]), self._encoded(part)
        scale = None if made is None else self._scale(np.sqrt(made[1]))
        if made is None or y is None or scale is None:
            return None
        if not self._signs:
            return replace(made[0], scale=scale, answers=y)
        scale *= y
        return replace(made[0], scale=scale)

    def _answers(self, label: CodedColumn) -> Array | None:
        """Return y; None where the slow path has to look at the cells."""
        if isinstance(label, DictionaryColumn):
            known = self._table(self.schema.label.name, label)
            return None if known.refuses(label) else known.y[label.codes]
        try:
            return self.schema.label.read(label)
        except CellError:
            return None

    def _encoded(self, part: CodedTable) -> tuple[CodedBlock, Array] | None:
        """Return the features of rows that stay, not scaled, and their squared norms; None where
        the slow path has to look at them.
        """
        count = _length(part)
        coded_ones = [_is_coded(column, part) for column in self.schema.columns]
        places = [
            np.arange(*self._where[column.name].indices(self.schema.dimension))
            for column, coded in zip(self.schema.columns, coded_ones, strict=True)
            if not coded
        ]
        at = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
        numbers, row = np.empty((len(at), count)), 0
        tables: list[CellTable] = []
        codes_of: dict[str, NDArray[Any]] = {}
        for column, is_coded in zip(self.schema.columns, coded_ones, strict=True):
            if is_coded:
                looked_up = (
                    self._crossed(column, part)
                    if isinstance(column, Cross)
                    else self._looked_up(column.name, part)
                )
                if looked_up is None:
                    return None
                tables.append(looked_up[0])
                codes_of[column.name] = looked_up[1]
            else:
                width = len(column.features)
                if not self._fill(column, part, numbers[row : row + width]):
                    return None
                row += width
        squares, coded = np.zeros(count), []
        for group, names in self._groups(tables):
            codes = group.joint([codes_of[name] for name in names])
            squares += group.squares[codes]  # exact: the order of groups does not matter
            coded.append((group, codes))
        squares += self.schema.intercept**2
        for line in numbers:
            squares += line * line
        block = CodedBlock(
            np.ones(count), numbers, at, coded, self.schema.intercept, self.schema.dimension
        )
        return block, squares

    def _scale(self, size: Array) -> Array | None:
        """Return s with ||s x|| <= 1, as :class:`Schema` and :class:`Shard` scale; None where a row
        is too long and may not be scaled.
        """
        schema = self.schema
        size /= schema.norm
        if schema.scaling == "none" and (size > 1 + ROOM).any():
            return None
        # a computed norm is off by (d + 2) units of rounding at most
        most = 1 - 2 * (schema.dimension + 8) * 2.0**-52
        with np.errstate(divide="ignore"):
            scale = np.divide(most, size, out=size)
        if schema.scaling == "unit":
            scale[np.isinf(scale)] = 0.0
        else:
            np.minimum(scale, 1.0, out=scale)
        scale /= schema.norm
        return scale

    def _fill(self, column: Column, part: CodedTable, out: Array) -> bool:
        """Write the features of a column that is not looked up, less the centre; return False where
        the slow path has to look at its cells.
        """
        cells = part[column.name] if isinstance(column, Numeric) else None
        plain = False
        if isinstance(cells, np.ndarray):
            with np.errstate(over="ignore", invalid="ignore"):
                plain = bool(np.isfinite(cells.sum()))  # all of them are, then
        if plain and isinstance(column, Numeric) and "hats" not in column.encode:
            assert isinstance(cells, np.ndarray)
            column.fill(cells, out)
        else:
            read = self._read_by(column, part)
            if read is None:
                return False
            try:
                index, values = column.joined(read)
            except CellError:
                return False
            out[:] = 0
            np.put_along_axis(out, index.T, values.T, axis=0)
        if self._centre is not None:
            out -= self._centre[self._where[column.name], None]
        return True

    def _read_by(self, column: Column, part: CodedTable) -> dict[str, Cells] | None:
        """Return what a column reads, numbers as such; None where the slow path has to look."""
        read: dict[str, Cells] = {}
        for name, missing in column.reads.items():
            cells = part[name]
            if isinstance(cells, DictionaryColumn):
                absent = self.schema.absent(cells.cells)
                try:
                    v, gone = floats(name, cells.cells, absent)[cells.codes], absent[cells.codes]
                except CellError:  # perhaps of a cell that none of these rows has
                    return None
            else:
                v, gone = cells, np.isnan(cells)
            if missing in ("refuse", "drop") and gone.any():
                return None
            read[name] = v, gone
        return read

    def _looked_up(self, name: str, part: CodedTable) -> tuple[CellTable, NDArray[Any]] | None:
        """Return the table of a column's distinct cells and each row's code; None where the slow
        path has to look at them.
        """
        cells = part[name]
        assert isinstance(cells, DictionaryColumn)
        table = self._table(name, cells)
        return None if table.features is None or table.refuses(cells) else (table, cells.codes)

    def _crossed(self, column: Cross, part: CodedTable) -> tuple[CellTable, NDArray[Any]] | None:
        """Return the table of a cross's pairs and each row's pair; None where the slow path has to
        look at the cells.
        """
        if self._centre is not None and len(column.features) ** 2 > _LARGEST_TABLE:
            return None
        return self._crosses.looked_up(column, part)

    def _table(self, name: str, column: DictionaryColumn) -> CellTable:
        """Return the table of a column's distinct cells."""
        last = self._last.get(name)
        if last is not None and last.cells is column.cells:
            return last
        key = (name, *column.cells.tolist())
        found = self._kept.found.get(key)
        if found is None:
            make = self._labels if name == self.schema.label.name else self._features
            found = make(name, column.cells)
            self._kept.add(key, found, found.bytes)
        self._last[name] = replace(found, cells=column.cells)
        return self._last[name]

    def _labels(self, name: str, cells: NDArray[Any]) -> CellTable:
        bad = refused(lambda some: self.schema.labels({name: some}), cells)
        y = np.zeros(len(cells))
        y[~bad] = self.schema.labels({name: cells[~bad]})
        return CellTable(name, cells, bad, bad, y=y)

    def _features(self, name: str, cells: NDArray[Any]) -> CellTable:
        column, where = self._by_name[name], self._where[name]
        count, width = len(cells), where.stop - where.start
        absent = self.schema.absent(cells)
        needed = column.reads[name] in ("refuse", "drop")
        bad = absent.copy() if needed else np.zeros(count, dtype=bool)
        if self._centre is not None and width * count > _LARGEST_TABLE:
            return CellTable(name, cells, absent, bad)
        bad[~bad] = refused(lambda some: column.block(some, self.schema.absent(some)), cells[~bad])
        good = np.flatnonzero(~bad)
        index, values = (
            column.block(cells[good], absent[good])
            if good.size
            else (np.zeros((0, 1), int), np.zeros((0, 1)))
        )
        places = np.repeat(good, index.shape[1]), index.ravel()
        features: Rows = csr_array((values.ravel(), places), shape=(count, width))
        if self._centre is not None:
            features = features.toarray() - self._centre[where]
        elif width * count <= _SMALL_TABLE:
            features = features.toarray()
        return CellTable(name, cells, absent, bad, Features(features, where))

    def _groups(self, tables: list[CellTable]) -> list[tuple[Group, list[str]]]:
        """Group columns with few cells; the same features have the same groups."""
        features = [table.features for table in tables if table.features is not None]
        key = tuple(map(id, features))
        if key not in self._kept.found:
            packed: list[tuple[list[Features], list[str]]] = []
            for table, one in zip(tables, features, strict=True):
                for some, names in packed:
                    joint = np.prod([f.rows.shape[0] for f in some], dtype=float)
                    if len(table.cells) * joint <= _JOINT:
                        some.append(one)
                        names.append(table.name)
                        break
                else:
                    packed.append(([one], [table.name]))
            made = [(Group(some, self._grain), names) for some, names in packed]
            # the features are kept with their ids, so that no other object gets these
            self._kept.add(key, (made, features), sum(8 * group.size for group, _ in made))
            return made
        found: list[tuple[Group, list[str]]] = self._kept.found[key][0]
        return found


def _is_coded(column: Column, part: CodedTable) -> bool:
    """Return whether a column's features are looked up by code."""
    if isinstance(column, Cross):
        return True
    return column.name in column.reads and isinstance(part[column.name], DictionaryColumn)


def _some(table: CodedTable, rows: slice | NDArray[np.bool_]) -> CodedTable:
    return {
        name: column.part(rows) if isinstance(column, DictionaryColumn) else column[rows]
        for name, column in table.items()
    }


def _length(table: CodedTable) -> int:
    column = next(iter(table.values()))
    return len(column.codes) if isinstance(column, DictionaryColumn) else len(column)
