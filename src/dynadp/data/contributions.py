"""At most m rows of each person at a node, in every pass over its rows.

Rows in memory, CSV files and files that fit are counted as they come: a number for each person is
held. Of a streamed file the ids are read once before everything else. Their hashes go into a
temporary file, in partitions, and each partition is decided by itself, so that memory does not grow
with the number of people. One bit for each row is left, which later passes look up.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from secrets import token_bytes
from tempfile import SpooledTemporaryFile, gettempdir
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynadp.data.coded import Coded, CodedRows, DictionaryColumn
from dynadp.data.people import MOST, Contributions, spelled_id
from dynadp.data.readers import LEAST_MEMORY
from dynadp.data.schema import Schema
from dynadp.data.shard import first_of
from dynadp.data.sources import Source
from dynadp.data.streaming import (
    CodedTable,
    coded_batches,
    length,
    rows_at_once,
)
from dynadp.errors import DataError

_WIDTH = 16  # bytes of a hash: two people never meet in one
_RECORD = 3 * 8  # bytes of a row: the two halves of the hash, and the row's number
_DECIDED = 128  # bytes that deciding takes for each row of a partition
_PARTITIONS = 256  # at most
_IDS = 8  # an id takes as much memory as so many other cells

_Cells = TypeVar("_Cells", bound=Coded)
Staying = Callable[[CodedRows, int], NDArray[np.bool_]]


def selected(table: Mapping[str, _Cells], keep: NDArray[np.bool_]) -> dict[str, _Cells]:
    """Return some of the rows; the table itself where all are meant."""
    every: dict[str, Any] = dict(table)
    return every if keep.all() else {name: cells[keep] for name, cells in every.items()}


def staying_rows(schema: Schema, given: Source, most: int | None = None) -> Staying:
    """Return the function (next batch, number of its first row) -> which of its rows stay, for one
    pass from the first row on; of all rows the first ``most`` that would stay.
    """
    staying = _staying_rows(schema, given)
    if most is None:
        return staying
    left = RowsLeft(most)
    return lambda batch, start: left(staying(batch, start))


class RowsLeft:
    """Lets rows stay until there are as many as declared, in one pass."""

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the next rows stay, of those that would."""
        keep = first_of(keep, self._left)
        self._left -= int(keep.sum())
        return keep


def _staying_rows(schema: Schema, given: Source) -> Staying:
    person = schema.person
    if person is None:
        return lambda batch, start: schema.kept(batch)
    if given.streamed:
        bits = row_bits(schema, given)
        return lambda batch, start: bits.part(start, len(batch[person]))
    people = Contributions(schema.rows_per_person, schema.missing_values)

    def staying(batch: CodedRows, start: int) -> NDArray[np.bool_]:
        keep = schema.kept(batch)
        ids = batch[person]
        assert isinstance(ids, np.ndarray)
        keep[keep] = people.first(ids[keep])
        return keep

    return staying


class RowBits:
    """Which rows of a file stay: one bit for each."""

    def __init__(self, rows: int) -> None:
        self.rows, self._bits = rows, np.zeros((rows + 7) // 8, dtype=np.uint8)

    def add(self, places: NDArray[np.uint64]) -> None:
        """Let these rows stay."""
        at = places.astype(np.int64)
        np.bitwise_or.at(self._bits, at >> 3, (1 << (at & 7)).astype(np.uint8))

    def part(self, start: int, count: int) -> NDArray[np.bool_]:
        """Return which of some rows stay."""
        low, skipped = divmod(start, 8)
        some = np.unpackbits(self._bits[low : (start + count + 7) // 8], bitorder="little")
        return some[skipped : skipped + count].view(bool)

    def count(self) -> int:
        """How many stay."""
        return int(np.bitwise_count(self._bits).sum())


def row_bits(schema: Schema, given: Source) -> RowBits:
    """Return which rows of a streamed file stay; found in one pass, and kept with the source.

    That pass reads the ids and the columns that drop rows.
    """
    names = schema.dropping_columns
    key = ("stay", schema.person, schema.rows_per_person, schema.missing_values, names)
    if key not in given.notes:
        given.notes[key] = _decided(schema, given)
    found: RowBits = given.notes[key]
    return found


def _decided(schema: Schema, given: Source) -> RowBits:
    bits, memory = RowBits(length(given)), given.memory or LEAST_MEMORY
    count = max(1, min(_PARTITIONS, 4 * _DECIDED * bits.rows // memory))
    with _room_on_disk(), SpooledTemporaryFile(memory // 16) as file:
        partitions = _Partitions(file, count)
        for start, ids, keep in _ids(schema, given, memory):
            partitions.add(ids, start + np.flatnonzero(keep))
        for part in range(count):
            for places in _first(
                partitions.records(part), schema.rows_per_person, memory // (4 * _DECIDED)
            ):
                bits.add(places)
    return bits


@contextmanager
def _room_on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write temporary files in {gettempdir()}: {error.strerror}; limiting each "
            f"person's rows takes {_RECORD} bytes a row there: make room, or set TMPDIR"
        ) from None


def _ids(
    schema: Schema, given: Source, memory: int
) -> Iterator[tuple[int, NDArray[np.uint64], NDArray[np.bool_]]]:
    """Yield the number of a batch's first row, the hashes of the ids of rows with an id and without
    missing cells, and which rows these are.
    """
    assert schema.person is not None
    drops, known = schema.dropping_columns, schema.number_columns
    numbers = [name for name in drops if name in known]
    texts = [name for name in drops if name not in known]
    size = rows_at_once(memory, len(drops) + _IDS)
    hashed, start = _Hashes(schema.missing_values), 0
    for batch in coded_batches(
        given, numbers, (*texts, schema.person), size, many=(schema.person,)
    ):
        ids = batch[schema.person]
        assert isinstance(ids, DictionaryColumn)
        keep = _kept(schema, batch, (*numbers, *texts), len(ids.codes))
        keep &= ~schema.absent(ids.cells)[ids.codes]
        yield start, hashed(ids.cells)[ids.codes[keep]], keep
        start += len(keep)


def _kept(
    schema: Schema, batch: CodedTable, drops: tuple[str, ...], count: int
) -> NDArray[np.bool_]:
    keep = np.ones(count, dtype=bool)
    for name in drops:
        cells = batch[name]
        if isinstance(cells, DictionaryColumn):
            keep &= ~schema.absent(cells.cells)[cells.codes]
        else:
            keep &= ~np.isnan(cells)
    return keep


class _Hashes:
    """BLAKE2b of ids, 128 bits, under a key that is drawn for one pass and kept nowhere: what lies
    in a temporary file says nothing about ids, and nobody can choose ids that meet.
    """

    def __init__(self, missing_values: tuple[str, ...]) -> None:
        self._key, self._blank = token_bytes(32), frozenset(missing_values)

    def __call__(self, cells: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the two halves of each cell's hash; a missing id has zeros."""
        each = (self._hash(spelled_id(cell, self._blank)) for cell in cells.tolist())
        return np.frombuffer(b"".join(each), dtype="<u8").reshape(-1, 2)

    def _hash(self, text: str | None) -> bytes:
        if text is None:
            return bytes(_WIDTH)
        content = text.encode("utf-8", "surrogatepass")
        return blake2b(content, digest_size=_WIDTH, key=self._key).digest()


class _Partitions:
    """Records (hash, hash, row) in a file, batch after batch, those of a batch sorted by partition:
    a partition holds all rows of its people, in order.
    """

    def __init__(self, file: IO[bytes], count: int) -> None:
        self._file, self._count, self._written = file, count, 0
        self._ends: list[tuple[int, NDArray[np.uint32]]] = []  # of the partitions in each batch

    def add(self, ids: NDArray[np.uint64], places: NDArray[np.int64]) -> None:
        """Write the next rows."""
        parts = ids[:, 0] % np.uint64(self._count)
        order = np.argsort(parts, kind="stable")
        records = np.column_stack([ids, places.astype(np.uint64)])[order]
        ends = np.searchsorted(parts[order], np.arange(self._count + 1, dtype=np.uint64))
        self._ends.append((self._written, ends.astype(np.uint32)))
        self._written += self._file.write(records.tobytes())

    def records(self, part: int) -> Iterator[NDArray[np.uint64]]:
        """Yield the records of a partition, in order."""
        for start, ends in self._ends:
            low, high = int(ends[part]), int(ends[part + 1])
            if high > low:
                self._file.seek(start + low * _RECORD)
                content = self._file.read((high - low) * _RECORD)
                yield np.frombuffer(content, dtype=np.uint64).reshape(-1, 3)


def _first(
    records: Iterator[NDArray[np.uint64]], m: int, least: int
) -> Iterator[NDArray[np.uint64]]:
    """Yield the numbers of rows that are among the first m of their person.

    Some rows are decided at a time, as many as there are people so far: a person may have more rows
    than fit into memory.
    """
    seen, waiting, held = np.zeros((0, 3), dtype=np.uint64), list[NDArray[np.uint64]](), 0
    for some in records:
        waiting.append(some)
        held += len(some)
        if held >= max(least, len(seen)):
            places, seen = _joined(seen, np.concatenate(waiting), min(m, MOST))
            waiting, held = [], 0
            yield places
    if waiting:
        yield _joined(seen, np.concatenate(waiting), min(m, MOST))[0]


def _joined(
    seen: NDArray[np.uint64], rows: NDArray[np.uint64], m: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return which of the rows stay, after those of (hash, hash, rows of that person) that were
    seen; and what is seen by then.
    """
    known = len(seen)
    keys = np.concatenate([seen[:, :2], rows[:, :2]])
    weights = np.concatenate([seen[:, 2].astype(np.int64), np.ones(len(rows), dtype=np.int64)])
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: what was seen is first
    keys, weights = keys[order], weights[order]
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    first = np.flatnonzero(new)
    before = np.cumsum(weights) - weights
    before -= before[first][np.cumsum(new) - 1]
    stays = order[(before < m) & (order >= known)]
    sums = np.minimum(np.add.reduceat(weights, first), m).astype(np.uint64)
    return rows[stays - known, 2], np.column_stack([keys[first], sums])
