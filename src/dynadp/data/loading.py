"""One's own data as bounded rows: one batch of raw cells at a time, nothing inferred from them.

Rows are counted from 0, a header not among them. An error tells the file, the column and the row,
never what a cell holds.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, hstack, issparse

from dynadp import _require
from dynadp._arrays import Array
from dynadp.data.columns import Value, normalise
from dynadp.data.encoding import Blocks
from dynadp.data.readers import RawTable, Source, existing, need, source
from dynadp.data.schema import Schema, Shard
from dynadp.data.streaming import streams
from dynadp.errors import CellError, DataError, DeclarationError

__all__ = [
    "RawTable",
    "Source",
    "count",
    "feature_sums",
    "kept_batches",
    "matrix_shard",
    "shard",
    "source",
    "split",
    "split_tables",
    "svmlight_shard",
    "table",
]

_BATCH = 8192  # rows bounded at once: some MB of cells and features beside the result


def shard(
    schema: Schema, data: Any, name: str = "node", *, rows: int | None = None, size: int = _BATCH
) -> Shard:
    """``schema.shard(whole table)`` to the last bit, but never holding more raw cells than a batch
    of ``size`` rows.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    data
        A :class:`Source`, or what :func:`source` takes.
    name, rows
        The node's name, and its public B_p where it was declared.
    size
        Rows bounded at once; the result does not depend on it.
    """
    whole = _Bounded(schema)
    for piece, _, _ in _pieces(schema, source(data), name, size):
        whole.add(piece.signed, piece.y)
    return whole.shard(name, rows)


def count(schema: Schema, data: Any, size: int = 65536) -> int:
    """B_p: how many rows stay once those are dropped that the schema drops; reads the columns that
    decide it alone.
    """
    deciding = (
        tuple(column for column in schema.columns if column.missing == "drop") or schema.columns[:1]
    )
    part, given = schema.model_copy(update={"columns": deciding}), source(data)
    given.require([column.name for column in schema.columns])
    if streams(given):
        return Blocks(part, given, given.name).count()
    return sum(
        int(np.sum(part.kept(batch)))
        for batch in given.batches([column.name for column in deciding], size)
    )


def validate(schema: Schema, data: Any, name: str, size: int = _BATCH) -> None:
    """Read everything once, and refuse what :func:`shard` would refuse; nothing is kept."""
    given = source(data)
    try:
        for _ in (
            Blocks(schema, given, name) if streams(given) else _pieces(schema, given, name, size)
        ):
            pass
    except CellError as error:
        raise CellError(f"node {name!r}, {error.column}", error.row, error.reason) from None


def mistakes(schema: Schema, data: Any, name: str, size: int = _BATCH) -> list[CellError]:
    """The first bad cell of each column, the label's among them, where :func:`validate` refuses;
    reads everything once more.
    """
    given, start, found = source(data), 0, dict[str, CellError]()
    plain = {"centre": None, "norm": 1.0, "scaling": "none", "intercept": 0.0}
    checks = {
        column.name: schema.model_copy(update={"columns": (column,), **plain}).rows
        for column in schema.columns
    }
    for batch in given.batches(_wanted(schema), size):
        keep = schema.kept(batch)
        kept, places = (
            {column: cells[keep] for column, cells in batch.items()},
            start + np.flatnonzero(keep),
        )
        for column, check in (
            {**checks, schema.label.name: schema.labels}.items() if keep.any() else ()
        ):
            try:
                if column not in found:
                    check(kept)
            except CellError as error:
                found[column] = CellError(
                    f"node {name!r}, {error.column}", int(places[error.row]), error.reason
                )
        start += len(keep)
    return list(found.values())


def kept_batches(schema: Schema, data: Any, size: int = 65536) -> Iterator[RawTable]:
    """The schema's raw columns in batches, without the rows that it drops and without the label."""
    for batch in source(data).batches([column.name for column in schema.columns], size):
        keep = schema.kept(batch)
        if keep.any():
            yield batch if keep.all() else {name: cells[keep] for name, cells in batch.items()}


def feature_sums(schema: Schema, data: Any) -> tuple[int, Array]:
    """(B_p, sum_i phi(raw_i)) over the rows that the schema does not drop: features without
    intercept, norm and centre.
    """
    features = schema.model_copy(
        update={"norm": 1.0, "scaling": "none", "intercept": 0.0, "centre": None}
    )
    given, rows, total = source(data), 0, np.zeros(features.dimension)
    if streams(given):
        return Blocks(features, given, given.name).feature_sums()
    for batch in kept_batches(features, given):
        made = features.rows(batch)
        rows += made.shape[0]
        total += np.asarray(made.sum(axis=0)).ravel()
    return rows, total


def table(schema: Schema, data: Any, *, also: Sequence[str] = (), size: int = 65536) -> RawTable:
    """The raw columns of the schema and the label (and ``also``), whole; for what needs raw rows,
    such as a centring round.
    """
    batches = list(source(data).batches((*_wanted(schema), *also), size))
    if not batches:
        raise DataError(f"{source(data).name} has no rows; every node needs at least one")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def split(
    data: Any,
    schema: Schema,
    node_column: str,
    nodes: Sequence[str] | None = None,
    *,
    size: int = _BATCH,
) -> dict[str, Shard]:
    """One shard a node, from data in which a column says which node holds the row.

    Parameters
    ----------
    data, schema, size
        As for :func:`shard`.
    node_column
        Its cells are the nodes' names, which are public; compared as text without surrounding
        blanks.
    nodes
        The declared nodes: each must have rows, and no other may occur. Without it: those that
        occur, sorted by name.
    """
    given = source(data)
    found = {node: _Bounded(schema) for node in nodes or ()}
    for piece, places, cells in _pieces(schema, given, given.name, size, node_column):
        owners = _owners(schema, node_column, cells, places, nodes)
        for node in dict.fromkeys(owners.tolist()):
            mine = np.flatnonzero(owners == node)
            found.setdefault(node, _Bounded(schema)).add(piece.signed[mine], piece.y[mine])
    return {node: found[node].shard(node) for node in nodes or sorted(found)}


def split_tables(
    data: Any, schema: Schema, node_column: str, nodes: Sequence[str] | None = None
) -> dict[str, RawTable]:
    """Like :func:`split`, but each node's raw columns."""
    whole = table(schema, data, also=(node_column,))
    cells = whole[node_column]
    owners = _owners(schema, node_column, cells, np.arange(len(cells)), nodes)
    for node in nodes or ():
        if not (owners == node).any():
            raise DataError(
                f"node {node!r} is empty: no row has it in column {node_column!r}; every node "
                f"needs at least one row"
            )
    names = _wanted(schema)
    return {
        node: {name: whole[name][owners == node] for name in names}
        for node in nodes or sorted(set(owners.tolist()))
    }


def matrix_shard(
    X: Any,
    y: ArrayLike,
    name: str = "node",
    *,
    data_norm: float | None = None,
    classes: tuple[Value, Value],
    intercept: float = 1.0,
    rows: int | None = None,
) -> Shard:
    """x = s(X / data_norm, intercept) with s = 1 / max(1, norm): rows of ready features, bounded.

    Parameters
    ----------
    X, y
        B x d features, a NumPy matrix or SciPy sparse; and one label a row.
    name, rows
        The node's name, and its public B_p where it was declared.
    data_norm
        A public bound on the norm of a row, known without the rows; longer rows are clipped.
    classes
        The two declared label values, negative first.
    intercept
        A constant last column, which counts in the norm; 0 for none.
    """
    _require.positive(
        "data_norm",
        data_norm,
        ": a bound on the norm of a row, declared from what is known about the features, such as "
        "sqrt(d) times the largest possible value; a bound read off the rows would leak them",
    )
    if not (np.isfinite(intercept) and intercept >= 0):
        raise DeclarationError(f"intercept is {intercept!r}; expected a number, 0 or above")
    matrix = _numbers(X)
    if matrix is None:
        return Shard.of(X, y, name=name, classes=classes)  # which refuses it and says why
    with np.errstate(over="ignore"):
        values = matrix.data if issparse(matrix) else matrix
        np.clip(values / data_norm, -1e100, 1e100, out=values)  # so that squares do not overflow
    if intercept:
        last = np.full((matrix.shape[0], 1), float(intercept))
        matrix = (
            hstack([matrix, csr_array(last)], format="csr")
            if issparse(matrix)
            else np.hstack([matrix, last])
        )
    scale = 1 / np.maximum(np.sqrt((matrix * matrix).sum(axis=1)), 1.0)
    if issparse(matrix):
        matrix.data *= np.repeat(scale, np.diff(matrix.indptr))
    else:
        matrix *= scale[:, None]
    return Shard.of(matrix, y, name=name, classes=classes, rows=rows)


def svmlight_shard(
    path: str | Path,
    name: str = "node",
    *,
    features: int | None = None,
    zero_based: bool = False,
    data_norm: float | None = None,
    classes: tuple[Value, Value],
    intercept: float = 1.0,
    rows: int | None = None,
) -> Shard:
    """:func:`matrix_shard` of an svmlight file with so many ``features``, counted from 1, or from 0
    if ``zero_based``.
    """
    if features is None or features < 1:
        raise DeclarationError(
            f"features is {features!r}: declare how many there are; the largest one that occurs "
            f"would be read off the rows"
        )
    given, problem = existing(Path(path)), False
    loader = need("sklearn.datasets", "svmlight files", "scikit-learn")
    try:
        X, y = loader.load_svmlight_file(str(given), n_features=features, zero_based=zero_based)
    except Exception:
        problem = True
    if problem:
        raise DataError(
            f"{path} cannot be read as an svmlight file of {features} features, counted from "
            f"{0 if zero_based else 1}: "
            "expected a label and feature:value pairs in increasing order in each line"
        )
    return matrix_shard(
        X, y, name, data_norm=data_norm, classes=classes, intercept=intercept, rows=rows
    )


# ----------------------------------------------------------------------------------------------------
# from cells to rows


class _Growing:
    """An array that grows at its end in place (realloc), so that two copies of it are never held."""

    def __init__(self, dtype: Any, *width: int) -> None:
        self._array, self.used = np.empty((0, *width), dtype=dtype), 0

    def add(self, part: NDArray[Any]) -> None:
        end = self.used + len(part)
        if end > len(self._array):
            self._array.resize(
                (max(end, len(self._array) * 9 // 8), *self._array.shape[1:]), refcheck=False
            )
        self._array[self.used : end] = part
        self.used = end

    def done(self) -> NDArray[Any]:
        self._array.resize((self.used, *self._array.shape[1:]), refcheck=False)
        return self._array


class _Bounded:
    """Signed rows and labels of one node, as they come: CSR, or dense when there is a centre, as a
    schema makes them.
    """

    def __init__(self, schema: Schema) -> None:
        self._dimension, self._sparse = schema.dimension, schema.centre is None
        self._values = _Growing(float) if self._sparse else _Growing(float, schema.dimension)
        self._index, self._lengths, self._y = (
            _Growing(np.int32),
            _Growing(np.int32),
            _Growing(float),
        )

    def add(self, signed: Any, y: NDArray[Any]) -> None:
        self._y.add(y)
        self._values.add(signed.data if self._sparse else signed)
        if self._sparse:
            self._index.add(signed.indices)
            self._lengths.add(np.diff(signed.indptr))

    def shard(self, name: str, rows: int | None = None) -> Shard:
        count, y = self._y.used, self._y.done()
        if not count or rows not in (None, count):
            return Shard.of(
                csr_array((count, self._dimension)), y, name=name, rows=rows
            )  # which refuses it and says why
        matrix = self._values.done()
        arrays = [matrix]
        if self._sparse:
            ends = np.concatenate([[0], np.cumsum(self._lengths.done(), dtype=np.int64)])
            matrix = csr_array((matrix, self._index.done(), ends), shape=(count, self._dimension))
            arrays = [matrix.data, matrix.indices, matrix.indptr]
        for array in (*arrays, y):
            array.setflags(write=False)
        return Shard(matrix, y, name)


def _pieces(
    schema: Schema, given: Source, name: str, size: int, also: str | None = None
) -> Iterator[tuple[Shard, NDArray[np.int64], NDArray[Any]]]:
    """For each batch: its bounded rows, where they stood in the data, and their cells in the column
    ``also``.
    """
    start = 0
    for batch in given.batches((*_wanted(schema), *([also] if also else [])), size):
        keep = schema.kept(batch)
        if keep.any():
            try:
                piece = schema.shard(batch, name)
            except CellError as error:  # counted within the batch; say it as the caller counts
                raise CellError(error.column, start + error.row, error.reason) from None
            yield piece, start + np.flatnonzero(keep), batch[also or schema.label.name][keep]
        start += len(keep)


def _wanted(schema: Schema) -> tuple[str, ...]:
    return (*(column.name for column in schema.columns), schema.label.name)


def _owners(
    schema: Schema,
    column: str,
    cells: NDArray[Any],
    places: NDArray[np.int64],
    nodes: Sequence[str] | None,
) -> NDArray[Any]:
    """The node of each row, as text."""
    named = [
        isinstance(cell, str | int) or (isinstance(cell, float) and np.isfinite(cell))
        for cell in cells.tolist()
    ]
    owners = [
        normalise(cell) if is_named else ""
        for cell, is_named in zip(cells.tolist(), named, strict=True)
    ]
    for place, owner in zip(places, owners, strict=True):
        if not owner or owner in schema.missing_values:
            raise CellError(
                f"column {column!r}", int(place), "the row names no node; expected one in every row"
            )
        if nodes is not None and owner not in nodes:
            raise CellError(
                f"column {column!r}",
                int(place),
                f"the node is none of the declared ones, {', '.join(nodes)}",
            )
    return np.array(owners, dtype=object)


def _numbers(X: Any) -> Any:
    """A fresh float matrix, or None where these are no finite numbers in two dimensions."""
    matrix: Any
    try:
        matrix = csr_array(X, dtype=float, copy=True) if issparse(X) else np.array(X, dtype=float)
    except (TypeError, ValueError):
        return None
    finite = bool(np.isfinite(matrix.data if issparse(matrix) else matrix).all())
    return matrix if finite and matrix.ndim == 2 and 0 not in matrix.shape else None
