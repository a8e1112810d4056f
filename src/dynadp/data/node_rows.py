"""One node's rows before round 1: surveyed, then bounded, in memory or streamed.

Both read the rows; of a large file that comes as codes the first keeps them in memory for the
second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dynadp._arrays import faster_storage
from dynadp.data.encoding import Blocks
from dynadp.data.held import held
from dynadp.data.labels import Kind
from dynadp.data.loading import load_shard
from dynadp.data.readers import source
from dynadp.data.row_blocks import Block, StoredBlock
from dynadp.data.schema import Schema
from dynadp.data.seals import Seal
from dynadp.data.shard import Shard, null_answers, require_declared, require_rows
from dynadp.data.sources import Source
from dynadp.data.survey import BATCH, SURVEYED, FeatureSums, Survey, count, survey
from dynadp.errors import DataError, DeclarationError

# bytes a row that solving takes beside the row itself: label, weight, margins, slopes and their
# copies
_WORKING = 96


class NodeRows:
    """One node's raw rows, ready for a run: their source, their declared number, and the survey of
    the one pass over them that comes before the rows are bounded.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    data
        A :class:`~dynadp.data.sources.Source`, or the data of one.
    name
        The node's name.
    declared
        The public B_p, where it was declared.
    seal
        Whether the survey computes the fingerprint for the seal.
    own
        The schema as it is for this node's file, where its column of people has another name, or
        fewer rows of a person are used here.
    """

    def __init__(
        self,
        schema: Schema,
        data: Any,
        name: str,
        *,
        declared: int | None = None,
        seal: bool = True,
        own: Schema | None = None,
    ) -> None:
        self.schema, self.source, self.name = schema, source(data), name
        self.declared, self._seal = declared, seal
        self._near: Source | None = None  # the rows that were surveyed
        self._people: dict[str, Any] = {}
        if own is not None and own != schema:
            self._people = {"person": own.person, "rows_per_person": own.rows_per_person}

    @classmethod
    def of(
        cls,
        schema: Schema,
        data: Any,
        name: str,
        *,
        declared: int | None = None,
        seal: bool = True,
    ) -> "NodeRows":
        """Return the data itself where it is prepared already, for the same schema."""
        if not isinstance(data, cls):
            return cls(schema, data, name, declared=declared, seal=seal)
        if declared not in (None, data.declared):
            raise DeclarationError(
                f"node {name!r}: {declared} rows are declared, and its rows were prepared for "
                "another number; prepare them again"
            )
        if data.schema != schema:
            raise DeclarationError(
                f"node {name!r}: its rows were prepared for another schema; noise is made for this "
                "one: prepare them again"
            )
        return data

    @cached_property
    def survey(self) -> Survey:
        """The result of reading all rows once; read when it is first needed."""
        most = self.count if self.schema.hides_counts else None
        own = self._own(self.schema)
        if own.person is None:
            self._near = held(self.source, own.read_columns, own.dimension)
        given = self._near or self.source
        size = SURVEYED if given.compact else BATCH
        return survey(own, given, self.name, seal=self._seal, size=size, most=most)

    @property
    def count(self) -> int:
        """B_p, public: as it was declared, or as it was counted."""
        if self.schema.hides_counts:
            return require_declared(self.declared, self.name)
        return self.survey.rows if self.declared is None else self.declared

    @property
    def sums(self) -> FeatureSums:
        """B_p and the sums of features, for a centring round."""
        self.check()
        if not self.source.streamed:  # which would be found when the centre is released
            require_room(self._centred, self.source, self.name, self.count)
        if self.survey.sums is None:
            raise DataError(f"node {self.name!r}: its schema has a centre already")
        return self.survey.sums.counted(self.schema, self.count)

    @property
    def digest(self) -> bytes:
        """The fingerprint of the rows, for the seal."""
        if self.survey.digest is None:
            raise DataError(f"node {self.name!r}: its rows were surveyed without a fingerprint")
        return self.survey.digest

    def check(self) -> None:
        """Refuse rows that do not fit the schema, or are not as many as declared."""
        self.survey.require_sound()
        if not self.schema.hides_counts:
            require_rows(self.survey.rows, self.declared, self.name)
        if not self.source.streamed:
            require_room(self._own(self.schema), self.source, self.name, self.count)

    @property
    def _centred(self) -> Schema:
        """The schema as it may be in round 1: rows with a centre are dense."""
        own = self._own(self.schema)
        return own.model_copy(update={"centre": own.centre or (0.0,) * own.feature_count})

    def require_same(self, seal: Seal | None) -> None:
        """Seal the rows, or refuse rows that changed since the run began."""
        if seal is not None:
            seal.require(self.digest, self.name)

    def require_people(self) -> None:
        """Refuse rows of which nothing says whose they are, or that would be streamed: the rows of
        each person are to be weighed together.
        """
        if self._own(self.schema).person is None:
            raise DeclarationError(
                f"node {self.name!r}: the rows of each person are to be weighed together, and the "
                "schema names no column that says whose they are: name it (person), or leave "
                "weighed out"
            )
        most = self.source.memory
        if most is not None and bytes_in_memory(self._centred, self.count) > most:
            raise DeclarationError(
                f"node {self.name!r}: the rows of each person are to be weighed together, and its "
                f"rows do not fit into the {most >> 20} MiB that they may take: raise memory, or "
                "leave weighed out"
            )

    def shard(self, schema: Schema, rows: int | None = None) -> "Shard | StreamedShard":
        """Bound the rows by the schema, which may have got a centre by now.

        Noise is calibrated for B_p, so another number of rows than ``rows``, or :attr:`count`, is
        refused, and so is a file that changed since it was opened.
        """
        self.source.require_unchanged()
        rows, given = rows or self.count, self._near or self.source
        self._near = None  # rows are bounded once
        made = local_shard(self._own(schema), given, self.name, rows=rows)
        self.source.require_unchanged()
        return made

    def _own(self, schema: Schema) -> Schema:
        return schema.model_copy(update=self._people) if self._people else schema


@dataclass(frozen=True, eq=False)
class StreamedShard:
    """One node's B_p bounded rows, in a Parquet file that is read anew in every pass; made by
    ``of``.

    Attributes
    ----------
    blocks
        The signed rows y_i x_i, block after block.
    rows
        B_p, public.
    name
        The node's name, for messages.
    null
        How many of them are null rows, which follow the others: private.
    """

    blocks: Blocks = field(repr=False)
    rows: int
    name: str = "node"
    null: int = field(default=0, repr=False)

    @property
    def dimension(self) -> int:
        """d, public, with the intercept."""
        return self.blocks.schema.dimension

    @property
    def kind(self) -> Kind:
        """What y holds."""
        return self.blocks.schema.label.kind

    @property
    def classes(self) -> int:
        """How many there are, 0 of numbers."""
        return self.blocks.schema.classes

    @classmethod
    def of(
        cls, schema: Schema, data: Any, name: str = "node", *, rows: int | None = None
    ) -> "StreamedShard":
        """Read all rows once; refuse what :func:`~dynadp.data.loading.load_shard` refuses."""
        most = require_declared(rows, name) if schema.hides_counts else None
        blocks = Blocks(schema, source(data), name, most)
        found = sum(block.rows for block in blocks)
        if most is None:
            require_rows(found, rows, name)
        return cls(blocks, found if most is None else most, name, null=(most or found) - found)

    @property
    def passes(self) -> int:
        """How often the file was read so far."""
        return self.blocks.passes

    def __iter__(self) -> Iterator[Block]:
        found = 0
        for block in self.blocks:
            found += block.rows
            yield block
        for low in range(0, self.null, self.blocks.chunk):
            count = min(self.blocks.chunk, self.null - low)
            found += count
            y = None if self.kind == "signs" else null_answers(self.kind, count)
            empty = csr_array((count, self.dimension), dtype=float)
            yield StoredBlock(empty, y, np.zeros(count))
        if found != self.rows:
            raise DataError(
                f"node {self.name!r}: its file has not the rows any more that it had; begin anew"
            )


def local_shard(
    schema: Schema, data: Any, name: str = "node", *, rows: int | None = None
) -> Shard | StreamedShard:
    """Return one node's rows: in memory, or streamed where they would not fit under the limit of
    their source.

    Parameters
    ----------
    schema, data, name, rows
        As for :func:`~dynadp.data.loading.load_shard`. With a limit on memory and no ``rows``,
        the rows are counted first.
    """
    given = source(data)
    if schema.hides_counts:
        require_declared(rows, name)
    if given.memory is None:
        return load_shard(schema, given, name, rows=rows)
    held = count(schema, given) if rows is None else rows
    if given.streamed and bytes_in_memory(schema, held) > given.memory:
        return StreamedShard.of(schema, given, name, rows=rows)
    require_room(schema, given, name, held)
    return load_shard(schema, given, name, rows=rows)


def require_room(schema: Schema, given: Source, name: str, rows: int) -> None:
    """Refuse rows that cannot be streamed and do not fit into the memory that they may take."""
    needed = bytes_in_memory(schema, rows)
    if given.memory is not None and needed > given.memory:
        raise DataError(
            f"node {name!r}: its rows need about {needed / 2**20:.0f} MiB in memory and the limit "
            f"is {given.memory / 2**20:.0f} MiB: convert the file to Parquet, which is streamed, "
            "or raise the limit"
        )


def bytes_in_memory(schema: Schema, rows: int) -> int:
    """B (9/8 (12 m + 4) + 96) for sparse rows of m entries, B (9 d + 96) for centred ones: the
    memory of a shard and its solver.

    An array that grows holds up to an eighth too much. Sparse rows are turned into dense ones where
    those are faster.
    """
    entries = sum(column.most_entries for column in schema.columns) + bool(schema.intercept)
    d = schema.dimension
    each = 9.0 * d if schema.centre is not None else 9 / 8 * (12 * entries + 4)
    if schema.centre is None and faster_storage(rows, d, rows * entries, 1) == "dense":
        each += 8 * d
    return int(rows * (each + _WORKING))
