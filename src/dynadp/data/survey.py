"""The first pass over a node's rows: how many stay, whether all fit the schema, the sums for
centring, and the fingerprint for the seal.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array
from dynadp.data.coded import CodedRows, plain
from dynadp.data.contributions import row_bits, selected, staying_rows
from dynadp.data.encoding import Blocks
from dynadp.data.readers import source
from dynadp.data.row_blocks import whole_features
from dynadp.data.schema import Schema, counted_among
from dynadp.data.seals import Fingerprint
from dynadp.data.shard import require_declared
from dynadp.data.sources import RawTable
from dynadp.data.streaming import length
from dynadp.errors import CellError

BATCH = 8192  # rows read at once
SURVEYED = 32768  # of a file whose cells come as codes, which take little memory


class FeatureSums(NamedTuple):
    """B_p and sum_i phi(raw_i), over the rows that stay: private.

    Features are rounded to multiples of ``FEATURE_STEP`` first, so that their sum is exact, in
    whatever order they are added. Where the number of rows stays secret, the declared one stands
    for it, and features are counted from the schema's public ``offset``.
    """

    rows: int
    total: Array

    def counted(self, schema: Schema, declared: int) -> "FeatureSums":
        """Return sums that count from the schema's offset, over as many rows as were declared."""
        return FeatureSums(declared, self.total - self.rows * schema.offset)


@dataclass(frozen=True)
class Survey:
    """The result of one pass over a node's rows; only their number is public.

    Attributes
    ----------
    rows
        B_p: rows that stay once those are dropped that the schema drops, and those beyond a
        person's m.
    sums
        For centring; None where the schema has a centre.
    digest
        For the seal; None where nobody asked for it.
    mistakes
        The first bad cell of each column, the label's among them.
    """

    rows: int
    sums: FeatureSums | None = field(repr=False)
    digest: bytes | None = field(repr=False)
    mistakes: tuple[CellError, ...] = ()

    def require_sound(self) -> None:
        """Refuse rows with a bad cell, naming the first."""
        if self.mistakes:
            raise min(self.mistakes, key=lambda mistake: mistake.row)


def survey(
    schema: Schema,
    data: Any,
    name: str = "node",
    *,
    seal: bool = False,
    size: int = BATCH,
    most: int | None = None,
) -> Survey:
    """Read all rows once.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    data
        A :class:`~dynadp.data.sources.Source`, or the data of one.
    name
        The node's name, for messages.
    seal
        Whether to compute the fingerprint for the seal.
    size
        Rows read at once; the result does not depend on it.
    most
        Rows that stay, at most: the first ones.
    """
    given, tally = source(data), _Tally(schema, name)
    fingerprint = Fingerprint(schema) if seal else None
    if given.streamed:
        blocks = Blocks(schema, given, name, most)
        for part in blocks.parts():
            if fingerprint is not None:
                fingerprint.add(part.kept if schema.person else part.cells)
            if part.block is not None:
                tally.add_features(part.block.rows, part.block.feature_sums())
                continue
            for places, table in blocks.tables(part):
                tally.add(table, places)
    else:
        start, staying = 0, staying_rows(schema, given, most)
        for batch in given.coded_batches(schema.read_columns, size, schema.id_columns):
            keep = staying(batch, start)
            kept = selected(batch, keep)
            if fingerprint is not None:
                fingerprint.add(batch if schema.person is None else kept)
            tally.add(kept, start + np.flatnonzero(keep))
            start += len(keep)
    return tally.survey(None if fingerprint is None else fingerprint.digest())


def feature_sums(
    schema: Schema, data: Any, name: str = "node", *, declared: int | None = None
) -> FeatureSums:
    """Return B_p and sum_i phi(raw_i), for a schema without a centre.

    Where the number of rows stays secret, B_p is ``declared``.
    """
    most = require_declared(declared, name) if schema.hides_counts else None
    surveyed = survey(schema, data, name, most=most)
    surveyed.require_sound()
    assert surveyed.sums is not None
    return surveyed.sums.counted(schema, surveyed.rows if most is None else most)


def sum_features(features: csr_array) -> FeatureSums:
    """Sum rows phi(raw), each feature rounded."""
    entries = whole_features(features.data)
    total = np.bincount(features.indices, entries, features.shape[1])
    return FeatureSums(features.shape[0], total.astype(float))


def count(schema: Schema, data: Any, size: int = 65536) -> int:
    """Return B_p: how many rows stay once those are dropped that the schema drops, and those beyond
    a person's m.

    Only the columns that decide it are read, so that no cell is checked.
    """
    given = source(data)
    given.require(schema.raw_columns[:-1])
    if given.streamed and schema.person is not None:
        return row_bits(schema, given).count()
    if given.streamed and not schema.drops_rows:
        return length(given)
    deciding = tuple(c for c in schema.columns if c.drops) or schema.columns[:1]
    part = schema.model_copy(update={"columns": deciding})
    names = (*part.raw_columns[:-1], *schema.read_columns[len(schema.raw_columns) :])
    staying = staying_rows(part, given)
    return sum(int(np.sum(staying(batch, 0))) for batch in given.batches(names, size))


class _Tally:
    """Counts, sums and mistakes of the rows so far."""

    def __init__(self, schema: Schema, name: str) -> None:
        self.schema, self.name = schema.limited(), name
        self.rows, self.total = 0, np.zeros(schema.feature_count)
        self.mistakes: dict[str, CellError] = {}
        self._features = schema.only_features()

    def add(self, kept: CodedRows, places: NDArray[np.int64]) -> None:
        """Check and count the next rows that stay, row i of which is row ``places[i]`` of all."""
        if places.size:
            try:
                made = self._features.sums(kept)
                self.schema.labels(kept)
                if self.schema.scaling == "none":  # else no row can be too long
                    self.schema.shard(kept, self.name)
            except CellError as error:
                self._blame(plain(kept), places, error)
            else:
                self.total += made
            self.rows += places.size

    def add_features(self, rows: int, sums: Array) -> None:
        """Count rows that were checked already."""
        self.rows += rows
        self.total += sums[: len(self.total)]

    def survey(self, digest: bytes | None) -> Survey:
        """Return the result."""
        sums = FeatureSums(self.rows, self.total) if self.schema.centre is None else None
        return Survey(self.rows, sums, digest, tuple(self.mistakes.values()))

    def _blame(self, kept: RawTable, places: NDArray[np.int64], error: CellError) -> None:
        """Note the first bad cell of each column; ``error`` itself where no single cell is bad."""
        checks: dict[str, Callable[[RawTable], Any]] = {
            column.name: self._features.model_copy(update={"columns": (column,)}).rows
            for column in self.schema.columns
        }
        checks[self.schema.label.name] = self.schema.labels
        sound = True
        for check in checks.values():
            try:
                with counted_among(places):
                    check(kept)
            except CellError as bad:
                sound = False
                where = f"node {self.name!r}, {bad.column}"
                self.mistakes.setdefault(where, CellError(where, bad.row, bad.reason))
        if sound:
            row = int(places[error.row])
            self.mistakes.setdefault("", CellError(error.column, row, error.reason))
