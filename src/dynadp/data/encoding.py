"""From the coded columns of a Parquet file to blocks of bounded rows, as a schema says, in every
pass anew.

What is refused is refused here as everywhere: rows that hold something out of the ordinary are
handed to the careful way, which either takes them or says what is wrong and where.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from dynadp._arrays import Array, Rows
from dynadp.data.columns import Categorical, Column, Numeric
from dynadp.data.readers import LEAST_MEMORY, Source
from dynadp.data.row_blocks import Block, CodedBlock, Features, Group, StoredBlock
from dynadp.data.schema import ROOM, Schema
from dynadp.data.streaming import CodedTable, DictionaryColumn, coded_batches, length, rows_at_once
from dynadp.errors import CellError

_WORKED = 32768  # rows in a block: what is computed for them stays in the processor's cache
_JOINT = 8192  # joint codes of columns that are looked up together
_LARGEST_BOOK = (
    1 << 22
)  # numbers in R_c where a centre makes it dense; past it rows are written down after all
_SMALL_BOOK = 1 << 16  # numbers in R_c below which dense is faster than sparse


class Blocks:
    """All of a node's kept rows, block after block, as often as they are wanted.

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
        How often all columns were read so far.

    Raises
    ------
    DataError
        As :func:`dynadp.data.loading.shard` would: every pass looks at every cell again.
    """

    def __init__(self, schema: Schema, given: Source, name: str) -> None:
        self.schema, self.given, self.name = schema, given, name
        memory, columns = given.memory or LEAST_MEMORY, len(schema.columns) + 1
        widths = [len(column.features) for column in schema.columns]
        numbers = sum(
            width
            for column, width in zip(schema.columns, widths, strict=True)
            if isinstance(column, Numeric)
        )
        self.size = rows_at_once(memory, columns)
        self.chunk = max(64, min(8192, memory // (64 * schema.dimension)))
        self._worked = max(64, min(_WORKED, memory // (32 * (3 * numbers + 2 * columns + 8))))
        starts = np.cumsum([0, *widths]).tolist()
        self._where = {
            column.name: slice(starts[i], starts[i + 1]) for i, column in enumerate(schema.columns)
        }
        self._centre = None if schema.centre is None else np.array(schema.centre)
        self.passes = 0
        self._books: dict[str, _CellTable] = {}  # the last of each column
        self._kept = _Kept(memory // 16)

    def __iter__(self) -> Iterator[Block]:
        self.passes += 1
        for start, part in self._parts(self.schema.columns, (self.schema.label.name,)):
            block = self._signed(part)
            if block is None:
                for low, table in self._tables(part):
                    if self.schema.kept(table).any():
                        with _counted_from(start + low):
                            stored = StoredBlock(self.schema.shard(table, self.name).signed)
                        yield stored
            elif block.rows:
                yield block

    def count(self) -> int:
        """B_p: how many rows stay; reads the columns that decide it alone."""
        deciding = [column for column in self.schema.columns if column.missing == "drop"]
        if not deciding:
            return length(self.given)
        return sum(_length(self._dropped(part)) for _, part in self._parts(deciding))

    def feature_sums(self) -> tuple[int, Array]:
        """(B_p, sum_i phi(raw_i)), for a schema that adds no intercept and no centre; labels are
        not read.
        """
        rows, total = 0, np.zeros(self.schema.dimension)
        for start, part in self._parts(self.schema.columns):
            made = self._encoded(self._dropped(part))
            if made is not None:
                total += made[0].adjoint(np.ones((1, made[0].rows)))[0]
                rows += made[0].rows
                continue
            for low, table in self._tables(part):
                keep = np.flatnonzero(self.schema.kept(table))
                with _counted_from(start + low, keep):
                    found = self.schema.rows({name: cells[keep] for name, cells in table.items()})
                total += np.asarray(found.sum(axis=0)).ravel()
                rows += len(keep)
        return rows, total

    def _parts(
        self, columns: Sequence[Column], also: Sequence[str] = ()
    ) -> Iterator[tuple[int, CodedTable]]:
        """The columns in parts of some thousand rows, each with the number of its first row."""
        numbers = [column.name for column in columns if isinstance(column, Numeric)]
        texts = [column.name for column in columns if isinstance(column, Categorical)]
        start = 0
        for batch in coded_batches(self.given, numbers, (*texts, *also), self.size):
            count = _length(batch)
            for low in range(0, count, self._worked):
                yield start + low, _some(batch, slice(low, low + self._worked))
            start += count

    def _tables(self, part: CodedTable) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """A part as cells, in chunks, for the careful way, which refuses what is to be refused and
        says where it is.
        """
        for low in range(0, _length(part), self.chunk):
            some = _some(part, slice(low, low + self.chunk))
            yield (
                low,
                {
                    n: c.cells[c.codes] if isinstance(c, DictionaryColumn) else c
                    for n, c in some.items()
                },
            )

    def _dropped(self, part: CodedTable) -> CodedTable:
        """The rows that stay."""
        keep: NDArray[np.bool_] | None = None
        for column in self.schema.columns:
            if column.missing == "drop":
                cells = part[column.name]
                gone = (
                    self._book(column.name, cells).gone(cells)
                    if isinstance(cells, DictionaryColumn)
                    else np.isnan(cells)
                )
                if gone is not None and gone.any():
                    keep = ~gone if keep is None else keep & ~gone
        return part if keep is None else _some(part, keep)

    def _signed(self, part: CodedTable) -> CodedBlock | None:
        """Signed, bounded rows; None where the careful way has to look at them."""
        part = self._dropped(part)
        label, made = part[self.schema.label.name], self._encoded(part)
        if made is None or not isinstance(label, DictionaryColumn):
            return None
        book = self._book(self.schema.label.name, label)
        scale = self._scale(np.sqrt(made[1]))
        if scale is None or book.refuses(label):
            return None
        scale *= book.signs[label.codes]
        return replace(made[0], scale=scale)

    def _encoded(self, part: CodedTable) -> tuple[CodedBlock, Array] | None:
        """Features of rows that stay, not scaled, and their squared norms; None where the careful
        way has to look at them.
        """
        count = _length(part)
        columns = [(column, part[column.name]) for column in self.schema.columns]
        places = [
            np.arange(*self._where[c.name].indices(self.schema.dimension))
            for c, v in columns
            if not isinstance(v, DictionaryColumn)
        ]
        at = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
        numbers, row = np.empty((len(at), count)), 0
        books: list[_CellTable] = []
        for column, cells in columns:
            if isinstance(cells, DictionaryColumn):
                books.append(self._book(column.name, cells))
                if books[-1].features is None or books[-1].refuses(cells):
                    return None
            else:
                width = len(column.features)
                if not self._fill(column, cells, numbers[row : row + width]):
                    return None
                row += width
        squares = np.einsum("ij,ij->j", numbers, numbers)
        squares += self.schema.intercept**2
        coded = []
        for group, names in self._groups(books):
            codes = group.joint(
                [cells.codes for name in names if isinstance(cells := part[name], DictionaryColumn)]
            )
            squares += group.squares[codes]
            coded.append((group, codes))
        block = CodedBlock(
            np.ones(count), numbers, at, coded, self.schema.intercept, self.schema.dimension
        )
        return block, squares

    def _scale(self, size: Array) -> Array | None:
        """s with ||s x|| <= 1, as :class:`Schema` and :class:`Shard` scale; None where a row is too
        long and may not be.
        """
        schema = self.schema
        size /= schema.norm
        if schema.scaling == "none" and (size > 1 + ROOM).any():
            return None
        most = (
            1 - 2 * (schema.dimension + 8) * 2.0**-52
        )  # a computed norm is off by (d + 2) units of rounding at most
        with np.errstate(divide="ignore"):
            scale = np.divide(most, size, out=size)
        if schema.scaling == "unit":
            scale[np.isinf(scale)] = 0.0
        else:
            np.minimum(scale, 1.0, out=scale)
        scale /= schema.norm
        return scale

    def _fill(self, column: Column, cells: Array, out: Array) -> bool:
        """Write the features of a column of numbers, less the centre; not where the careful way has
        to look at them.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            plain = np.isfinite(cells.sum())  # all of them are, then
        if plain and isinstance(column, Numeric) and "hats" not in column.encode:
            column.fill(cells, out)
        else:
            absent = np.isnan(cells)
            if column.missing == "refuse" and absent.any():
                return False
            try:
                index, values = column.block(cells, absent)
            except CellError:
                return False
            out[:] = 0
            np.put_along_axis(out, index.T, values.T, axis=0)
        if self._centre is not None:
            out -= self._centre[self._where[column.name], None]
        return True

    def _book(self, name: str, column: DictionaryColumn) -> "_CellTable":
        """What there is to say about the cells of a column."""
        book = self._books.get(name)
        if book is not None and book.cells is column.cells:
            return book
        key = (name, *column.cells.tolist())
        found = self._kept.found.get(key)
        if found is None:
            found = (
                self._signs(column.cells)
                if name == self.schema.label.name
                else self._features(name, column.cells)
            )
            self._kept.add(key, found, found.bytes)
        self._books[name] = replace(found, cells=column.cells)
        return self._books[name]

    def _signs(self, cells: NDArray[Any]) -> "_CellTable":
        name = self.schema.label.name
        bad = _refused(lambda some: self.schema.labels({name: some}), cells)
        signs = np.zeros(len(cells))
        signs[~bad] = self.schema.labels({name: cells[~bad]})
        return _CellTable(name, cells, bad, bad, signs=signs)

    def _features(self, name: str, cells: NDArray[Any]) -> "_CellTable":
        column, where = next(c for c in self.schema.columns if c.name == name), self._where[name]
        count, width = len(cells), where.stop - where.start
        absent = self.schema.absent(cells)
        bad = absent.copy() if column.missing in ("refuse", "drop") else np.zeros(count, dtype=bool)
        if self._centre is not None and width * count > _LARGEST_BOOK:
            return _CellTable(name, cells, absent, bad)
        bad[~bad] = _refused(lambda some: column.block(some, self.schema.absent(some)), cells[~bad])
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
        elif width * count <= _SMALL_BOOK:
            features = features.toarray()
        return _CellTable(name, cells, absent, bad, Features(features, where))

    def _groups(self, books: list["_CellTable"]) -> list[tuple[Group, list[str]]]:
        """Columns with few cells together; the same groups for the same features."""
        features = [book.features for book in books if book.features is not None]
        key = tuple(map(id, features))
        if key not in self._kept.found:
            packed: list[tuple[list[Features], list[str]]] = []
            for book, one in zip(books, features, strict=True):
                size = len(book.cells)
                room = next(
                    (
                        g
                        for g in packed
                        if size * np.prod([f.rows.shape[0] for f in g[0]], dtype=float) <= _JOINT
                    ),
                    None,
                )
                if room is None:
                    packed.append(([one], [book.name]))
                else:
                    room[0].append(one)
                    room[1].append(book.name)
            made = [(Group(some), names) for some, names in packed]
            self._kept.add(
                key, (made, features), sum(8 * group.size for group, _ in made)
            )  # who keeps ids keeps their owners
            return made
        found: list[tuple[Group, list[str]]] = self._kept.found[key][0]
        return found


class _Kept:
    """What was made for distinct cells, for the next pass, which meets them again: all of it, up to
    so many bytes.

    Parameters
    ----------
    most
        Bytes; when they are reached, all is forgotten.
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
class _CellTable:
    """What there is to say about the distinct cells of a column; the last of them is None.

    Attributes
    ----------
    name, cells
        The column, and its cells.
    absent, bad
        Which of them are missing; which of them, once rows are dropped, only the careful way may
        look at.
    features
        R_c; None where it would be too large, and for labels.
    signs
        Of labels: -1 or +1.
    """

    name: str
    cells: NDArray[Any]
    absent: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    features: Features | None = None
    signs: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def bytes(self) -> int:
        """About what it takes."""
        rows = (
            0
            if self.features is None
            else int(
                self.features.rows.nnz if issparse(self.features.rows) else self.features.rows.size
            )
        )
        return 8 * rows + 80 * len(self.cells)

    def gone(self, column: DictionaryColumn) -> NDArray[np.bool_] | None:
        """Which rows hold a missing cell; None where none does."""
        return self.absent[column.codes] if column.nulls or self.absent[:-1].any() else None

    def refuses(self, column: DictionaryColumn) -> bool:
        """Whether a bad cell is among the rows'."""
        return bool((column.nulls or self.bad[:-1].any()) and self.bad[column.codes].any())


def _refused(work: Callable[[NDArray[Any]], Any], cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Which cells a column refuses."""

    def refuses(some: NDArray[Any]) -> bool:
        try:
            work(some)
        except CellError:
            return True
        return False

    if not len(cells) or not refuses(cells):
        return np.zeros(len(cells), dtype=bool)
    return np.array([refuses(cells[i : i + 1]) for i in range(len(cells))])


@contextmanager
def _counted_from(start: int, among: NDArray[np.int64] | None = None) -> Iterator[None]:
    """Rows that an error counts from 0, perhaps ``among`` those that stayed, said as the caller
    counts.
    """
    try:
        yield
    except CellError as error:
        row = error.row if among is None else int(among[error.row])
        raise CellError(error.column, start + row, error.reason) from None


def _some(table: CodedTable, rows: slice | NDArray[np.bool_]) -> CodedTable:
    return {
        name: column.part(rows) if isinstance(column, DictionaryColumn) else column[rows]
        for name, column in table.items()
    }


def _length(table: CodedTable) -> int:
    column = next(iter(table.values()))
    return len(column.codes) if isinstance(column, DictionaryColumn) else len(column)
