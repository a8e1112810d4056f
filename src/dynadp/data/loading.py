"""A node's data as bounded rows: one batch of raw cells at a time, nothing inferred from them.

Rows are counted from 0, without the header. An error names the file, the column and the row, never
the content of a cell.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Rows
from dynadp.data.coded import CodedRows, plain
from dynadp.data.contributions import selected, staying_rows
from dynadp.data.people import PersonNumbers, first_rows_at_nodes, person_codes
from dynadp.data.readers import source
from dynadp.data.schema import Schema, counted_among
from dynadp.data.shard import Shard, require_declared, require_rows
from dynadp.data.sources import RawTable
from dynadp.data.values import normalise
from dynadp.errors import CellError, DataError

_ROOM = 1 << 20  # rows for which room is made at once, at most: their number may be wrong
_BATCH = 8192  # rows bounded at once: some MB of cells and features beside the result


def load_shard(
    schema: Schema, data: Any, name: str = "node", *, rows: int | None = None, size: int = _BATCH
) -> Shard:
    """Return ``schema.shard(whole table)`` to the last bit, but never hold more raw cells than a
    batch of ``size`` rows.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    data
        A :class:`~dynadp.data.sources.Source`, or the data of one.
    name, rows
        The node's name, and its public B_p where it was declared. Where the schema keeps the number
        of rows secret, null rows fill up to it, and rows beyond are left out.
    size
        Rows bounded at once; the result does not depend on it.
    """
    sparse, start, given, limited = schema.centre is None, 0, source(data), schema.limited()
    most = require_declared(rows, name) if schema.hides_counts else None
    staying, numbered = staying_rows(schema, given, most), PersonNumbers(schema.missing_values)
    room = min(rows or 0, _ROOM)
    values = _Growing(float) if sparse else _Growing(float, schema.dimension, room=room)
    index, lengths, y = _Growing(np.int32), _Growing(np.int32), _Growing(float)
    people = _Growing(np.int64)
    for batch in given.coded_batches(schema.read_columns, size, schema.id_columns):
        keep = staying(batch, start)
        if keep.any():
            with counted_among(start + np.flatnonzero(keep)):
                piece = _bounded(limited, selected(batch, keep), name)
            y.add(piece.y)
            if schema.person is not None:
                ids = batch[schema.person]
                assert isinstance(ids, np.ndarray)
                people.add(numbered(ids[keep]))
            values.add(piece.signed.data if sparse else piece.signed)
            if sparse:
                index.add(piece.signed.indices)
                lengths.add(np.diff(piece.signed.indptr))
        start += len(keep)
    if most is None:
        require_rows(y.used, rows, name)
    matrix: Rows = values.done()
    if sparse:
        ends = np.concatenate([[0], np.cumsum(lengths.done(), dtype=np.int64)])
        matrix = csr_array((matrix, index.done(), ends), shape=(y.used, schema.dimension))
    whose = None if schema.person is None else people.done()
    held = Shard.frozen(matrix, y.done(), name, whose, schema.label.kind, schema.classes)
    return held if most is None else held.filled(most)


def _bounded(schema: Schema, kept: CodedRows, name: str) -> Shard:
    try:
        return schema.shard(kept, name)
    except CellError:  # which counts distinct cells
        return schema.shard(plain(kept), name)


def table(schema: Schema, data: Any, *, also: Sequence[str] = ()) -> RawTable:
    """Return the whole raw columns of the schema, the label, the person's, and ``also``."""
    batches = list(source(data).batches((*schema.read_columns, *also)))
    if not batches and schema.hides_counts:
        return {name: np.empty(0, dtype=object) for name in (*schema.read_columns, *also)}
    if not batches:
        raise DataError(f"{source(data).name} has no rows; every node needs at least one")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def split_tables(
    data: Any, schema: Schema, node_column: str, nodes: Sequence[str] | None = None
) -> dict[str, RawTable]:
    """Return each node's raw columns, from data in which a column names the node of each row.

    Where the schema names a person's column, only the rows that are used are in them, and the ids:
    of each person those at the first of her nodes, as many as the schema declares.

    Parameters
    ----------
    data, schema
        As for :func:`load_shard`.
    node_column
        Its cells are the nodes' names, which are public; compared as text without surrounding
        blanks.
    nodes
        The declared nodes: each must have rows, unless their number stays secret, and no other
        may occur. Without it: those that occur, sorted by name.
    """
    if nodes is None and schema.hides_counts:
        raise DataError(
            f"adjacency is 'add-remove', and which nodes occur in column {node_column!r} depends "
            "on rows: declare the nodes"
        )
    whole = table(schema, data, also=(node_column,))
    owners = np.array([_owner(cell) for cell in whole[node_column].tolist()], dtype=object)
    for row, owner in enumerate(owners):
        if not owner or owner in schema.missing_values:
            reason = "the row names no node; expected one in every row"
        elif nodes is not None and owner not in nodes:
            reason = f"the node is none of the declared ones, {', '.join(nodes)}"
        else:
            continue
        raise CellError(f"column {node_column!r}", row, reason)
    for node in nodes or ():
        if not (schema.hides_counts or (owners == node).any()):
            raise DataError(
                f"node {node!r} is empty: no row has it in column {node_column!r}; every node "
                f"needs at least one row"
            )
    columns, names = {name: whole[name] for name in schema.read_columns}, list(nodes or ())
    names = names or sorted(set(owners.tolist()))
    used = np.ones(len(owners), dtype=bool) if schema.person is None else schema.kept(columns)
    if schema.person is not None:
        people = person_codes(columns[schema.person][used], schema.missing_values)
        at = np.array([names.index(owner) for owner in owners[used]], dtype=np.intp)
        m, s = schema.rows_per_person, schema.silos_per_person
        used[used] = first_rows_at_nodes(people, at, m, s)
    return {node: selected(columns, used & (owners == node)) for node in names}


def _owner(cell: Any) -> str:
    named = isinstance(cell, str | int) or (isinstance(cell, float) and np.isfinite(cell))
    return normalise(cell) if named else ""


class _Growing:
    """An array that grows at its end in place (realloc): two copies of it are never held."""

    def __init__(self, dtype: Any, *width: int, room: int = 0) -> None:
        self._array, self.used = np.empty((room, *width), dtype=dtype), 0

    def add(self, part: NDArray[Any]) -> None:
        end = self.used + len(part)
        if end > len(self._array):
            room = max(end, len(self._array) * 9 // 8)
            self._array.resize((room, *self._array.shape[1:]), refcheck=False)
        self._array[self.used : end] = part
        self.used = end

    def done(self) -> NDArray[Any]:
        self._array.resize((self.used, *self._array.shape[1:]), refcheck=False)
        return self._array
