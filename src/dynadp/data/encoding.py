"""Blocks of bounded rows from the coded columns of a Parquet file, made anew in every pass.

Rows with unusual cells take the slow path (:meth:`~dynadp.data.schema.Schema.shard`), which accepts
them or raises the same error as an in-memory load.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.readers import LEAST_MEMORY
from dynadp.data.row_blocks import Block, CodedBlock, Features, Group, StoredBlock
from dynadp.data.schema import Schema, counted_among
from dynadp.data.shard import ROOM, shrink
from dynadp.data.sources import Source
from dynadp.data.streaming import CodedTable, DictionaryColumn, coded_batches, rows_at_once
from dynadp.errors import CellError

_WORKED = 16384  # rows in a block: what is computed for them stays in the processor's cache
_JOINT = 8192  # joint codes of columns that are looked up together
# numbers in R_c where a centre makes it dense; past it rows are written down after all
_LARGEST_TABLE = 1 << 22
_SMALL_TABLE = 1 << 16  # numbers in R_c below which dense is faster than sparse


_NO_FEATURES = Features(np.empty((0, 0)), slice(0))


class Kept:
    """Keeps what was made for distinct cells, for the next pass, which meets them again.

    Parameters
    ----------
    most
        Bytes; when they are reached, everything is forgotten.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.found: dict[Any, Any] = {}

    def add(self, key: Any, made: Any, size: int) -> None:
        """Keep it, unless it is too large by itself."""
        if self.held + size > self.most:
            self.found.clear()
            self.held = 0
        if size <= self.most:
            self.found[key] = made
            self.held += size


@dataclass(frozen=True, eq=False)
class CellTable:
    """Everything that rows need to know about the distinct cells of a column; the last is None.

    Attributes
    ----------
    cells
        The distinct cells.
    absent, bad
        Which of them are missing; which of them, once rows are dropped, need the slow path.
    features
        R_c; empty where it would be too large, and for labels.
    signs
        Of labels: -1 or +1.
    """

    cells: NDArray[Any]
    absent: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    features: Features = _NO_FEATURES
    signs: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return 8 * int(self.features.rows.size) + 80 * len(self.cells)  # of CSR: entries

    def holds(self, some: NDArray[np.bool_], column: DictionaryColumn) -> bool:
        """Return whether a row of the column holds one of some of the cells."""
        return bool((column.nulls or some[:-1].any()) and some[column.codes].any())


def refused(work: Callable[[NDArray[Any]], Any], cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which cells a column refuses: ``work`` raises an error for them."""

    def refuses(some: NDArray[Any]) -> bool:
        try:
            work(some)
        except CellError:
            return True
        return False

    if not refuses(cells):
        return np.zeros(len(cells), dtype=bool)
    return np.array([refuses(cells[i : i + 1]) for i in range(len(cells))])


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

    def __init__(self, schema: Schema, given: Source, name: str) -> None:
        self.schema, self.given, self.name = schema, given, name
        memory, columns = given.memory or LEAST_MEMORY, len(schema.columns) + 1
        widths = [len(column.features) for column in schema.columns]
        self._columns = {column.name: column for column in schema.columns}
        spans = pairwise(np.cumsum([0, *widths]).tolist())
        self._where = {name: slice(*span) for name, span in zip(self._columns, spans, strict=True)}
        numbers = sum(len(c.features) for c in schema.columns if isinstance(c, Numeric))
        self.size = rows_at_once(memory, columns)
        self.chunk = max(64, min(8192, memory // (64 * schema.dimension)))
        self._worked = max(64, min(_WORKED, memory // (32 * (3 * numbers + 2 * columns + 8))))
        self._centre = None if schema.centre is None else np.array(schema.centre)
        self.passes = 0
        self._last: dict[str, CellTable] = {}  # of each column
        self._kept = Kept(memory // 16)

    def __iter__(self) -> Iterator[Block]:
        for start, part, block in self.parts():
            if block is not None:
                if block.rows:
                    yield block
                continue
            for low, table in self.tables(part):
                if self.schema.kept(table).any():
                    with counted_among(np.arange(start + low, start + low + self.chunk)):
                        stored = StoredBlock(self.schema.shard(table, self.name).signed)
                    yield stored

    def parts(self) -> Iterator[tuple[int, CodedTable, CodedBlock | None]]:
        """Yield parts of some thousand rows: the number of the first row, the cells, and the
        signed, bounded rows that stay; None instead where the slow path has to look at the cells.
        """
        self.passes += 1
        columns, start = self.schema.columns, 0
        numbers = [column.name for column in columns if isinstance(column, Numeric)]
        texts = [column.name for column in columns if isinstance(column, Categorical)]
        texts.append(self.schema.label.name)
        for batch in coded_batches(self.given, numbers, texts, self.size):
            count = _length(batch)
            for low in range(0, count, self._worked):
                part = _some(batch, slice(low, low + self._worked))
                yield start + low, part, self._encoded(self._kept_rows(part))
            start += count

    def tables(self, part: CodedTable) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield a part as plain cells, in chunks, for the slow path."""
        for low in range(0, _length(part), self.chunk):
            some = _some(part, slice(low, low + self.chunk))
            table = {
                name: cells.cells[cells.codes] if isinstance(cells, DictionaryColumn) else cells
                for name, cells in some.items()
            }
            yield low, table

    def _kept_rows(self, part: CodedTable) -> CodedTable:
        """Return the rows that stay."""
        keep = np.ones(_length(part), dtype=bool)
        for column in self.schema.columns:
            if column.missing == "drop":
                cells = part[column.name]
                if not isinstance(cells, DictionaryColumn):
                    keep &= ~np.isnan(cells)
                elif (table := self._table(column.name, cells)).holds(table.absent, cells):
                    keep &= ~table.absent[cells.codes]
        return part if keep.all() else _some(part, keep)

    def _encoded(self, part: CodedTable) -> CodedBlock | None:
        """Return the signed, bounded rows; None where the slow path has to look at them."""
        schema, count = self.schema, _length(part)
        numbers, places = [np.empty(0)], list[int]()
        tables, codes = dict[str, CellTable](), dict[str, NDArray[Any]]()
        for name, cells in part.items():
            if isinstance(cells, DictionaryColumn):
                tables[name], codes[name] = self._table(name, cells), cells.codes
                if tables[name].holds(tables[name].bad, cells):
                    return None
            elif (features := self._numbers(name, cells)) is None:
                return None
            else:
                numbers += features
                places += range(self._where[name].start, self._where[name].stop)
        signs = tables.pop(schema.label.name).signs[codes[schema.label.name]]
        block = CodedBlock(
            signs,
            np.concatenate(numbers).reshape(len(places), count),
            np.array(places, dtype=np.int64),
            [
                (group, group.joint([codes[name] for name in names]))
                for group, names in self._groups(tables)
            ],
            schema.intercept,
            schema.dimension,
        )
        sizes = np.sqrt(block.squares())
        scale = schema.scale(sizes)
        sizes *= scale
        if (sizes > 1 + ROOM).any():
            return None
        scale *= shrink(sizes, schema.dimension)
        scale *= signs
        return replace(block, scale=scale)

    def _numbers(self, name: str, cells: Array) -> list[Array] | None:
        """Return each feature of a column of numbers, less the centre; None where the slow path has
        to look at them.
        """
        column, absent = self._columns[name], np.isnan(cells)
        if column.missing == "refuse" and absent.any():
            return None
        try:
            index, features = column.block(cells, absent)
        except CellError:
            return None
        if len(features) < len(column.features):
            dense = np.zeros((len(column.features), len(cells)))
            np.put_along_axis(dense, np.array(index), np.array(features), axis=0)
            features = list(dense)
        if self._centre is not None:
            centre = self._centre[self._where[name]]
            features = [each - middle for each, middle in zip(features, centre, strict=True)]
        return features

    def _table(self, name: str, column: DictionaryColumn) -> CellTable:
        """Return the table of a column's distinct cells."""
        last = self._last.get(name)
        if last is not None and last.cells is column.cells:
            return last
        key = (name, *column.cells.tolist())
        found = self._kept.found.get(key)
        if found is None:
            make = self._signs if name == self.schema.label.name else self._features
            found = make(name, column.cells)
            self._kept.add(key, found, found.bytes)
        self._last[name] = replace(found, cells=column.cells)
        return self._last[name]

    def _signs(self, name: str, cells: NDArray[Any]) -> CellTable:
        bad = refused(lambda some: self.schema.labels({name: some}), cells)
        signs = np.zeros(len(cells))
        signs[~bad] = self.schema.labels({name: cells[~bad]})
        return CellTable(cells, bad, bad, signs=signs)

    def _features(self, name: str, cells: NDArray[Any]) -> CellTable:
        column, where = self._columns[name], self._where[name]
        count, width = len(cells), len(column.features)
        absent = self.schema.absent(cells)
        if self._centre is not None and width * count > _LARGEST_TABLE:
            return CellTable(cells, absent, bad=np.ones(count, dtype=bool))
        bad = absent & (column.missing in ("refuse", "drop"))
        bad[~bad] = refused(lambda some: column.block(some, self.schema.absent(some)), cells[~bad])
        good = np.flatnonzero(~bad)
        index, values = column.block(cells[good], absent[good])
        places = np.tile(good, len(index)), np.concatenate(index)
        features: Rows = csr_array((np.concatenate(values), places), shape=(count, width))
        if self._centre is not None:
            features = features.toarray() - self._centre[where]
        elif width * count <= _SMALL_TABLE:
            features = features.toarray()
        return CellTable(cells, absent, bad, Features(features, where))

    def _groups(self, tables: dict[str, CellTable]) -> list[tuple[Group, list[str]]]:
        """Group columns with few cells; the same features have the same groups."""
        features = {name: table.features for name, table in tables.items()}
        key = tuple(map(id, features.values()))
        if key in self._kept.found:
            found: list[tuple[Group, list[str]]] = self._kept.found[key][0]
            return found
        packed: list[dict[str, Features]] = []
        for name, one in features.items():
            for some in packed:
                if prod(other.rows.shape[0] for other in (one, *some.values())) <= _JOINT:
                    some[name] = one
                    break
            else:
                packed.append({name: one})
        made = [(Group(list(some.values())), list(some)) for some in packed]
        # the features are kept with their ids, so that no other object gets these
        self._kept.add(key, (made, features), sum(8 * group.size for group, _ in made))
        return made


def _some(table: CodedTable, rows: slice | NDArray[np.bool_]) -> CodedTable:
    return {
        name: column.part(rows) if isinstance(column, DictionaryColumn) else column[rows]
        for name, column in table.items()
    }


def _length(table: CodedTable) -> int:
    column = next(iter(table.values()))
    return len(column.codes) if isinstance(column, DictionaryColumn) else len(column)
