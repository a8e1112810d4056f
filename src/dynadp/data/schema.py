"""Rows and the public declarations that bound them (paper, section 2; maths.md 1 and 11).

:class:`Schema` turns raw rows into vectors of norm at most 1, each row by itself: nothing is read
off the rows, so that replacing one row leaves every other vector as it was, to the last bit.
:class:`Shard` is what one node holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, field_validator, model_validator
from scipy.sparse import csr_array, issparse

from dynadp._arrays import Array, Rows
from dynadp._files import digest
from dynadp.data.columns import Column, Declared, Value, ambiguous, match
from dynadp.errors import CellError, DataError, DeclarationError

Table = Mapping[str, ArrayLike]

ROOM = (
    1e-9  # a row this far above norm 1 is taken for rounding and scaled down; further is an error
)


class Label(Declared):
    """Which column holds the label and which two values it takes, compared as
    :func:`~dynadp.data.columns.places` has it.
    """

    name: str
    negative: Value
    positive: Value

    @model_validator(mode="before")
    @classmethod
    def _values_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (
            given.get("negative") is None or given.get("positive") is None
        ):
            raise ValueError(
                f"label column {given.get('name')!r}: declare both values (negative and positive); "
                "reading them off the rows would show whether both occur"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Label":
        if ambiguous((self.negative, self.positive)):
            raise ValueError(
                f"label column {self.name!r}: a cell could be both {self.negative!r} and "
                f"{self.positive!r}"
            )
        return self


class Schema(Declared):
    """x = s( (phi(raw) - centre, intercept) / norm ), with s such that ||x|| <= 1.

    Attributes
    ----------
    columns
        How each raw column becomes features; together they are phi.
    label
        The label column and its two values.
    norm
        Public row-norm bound: rows are divided by it before they are clipped.
    intercept
        The constant appended to every row *before* scaling, so that it counts in the norm and is
        regularised like the rest; 0 for none.
    scaling
        ``clip``: x / max(1, ||x||). ``unit``: x / ||x||, so that every row has norm 1. ``none``:
        leave as it is, for features whose norm the declared bound already covers; a :class:`Shard`
        refuses longer rows.
    centre
        A public vector subtracted from the features; rows are dense then.
    missing_values
        Texts that mean "missing" besides None and NaN.
    """

    columns: tuple[Column, ...]
    label: Label
    norm: Annotated[float, Field(gt=0)] = 1.0
    intercept: Annotated[float, Field(ge=0)] = 1.0
    scaling: Literal["clip", "unit", "none"] = "clip"
    centre: tuple[float, ...] | None = None
    missing_values: tuple[str, ...] = ("",)

    @field_validator("columns")
    @classmethod
    def _columns_differ(cls, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        names = [column.name for column in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names or twice:
            raise ValueError(
                f"columns {twice} are declared twice" if names else "declare at least one column"
            )
        return columns

    @model_validator(mode="after")
    def _consistent(self) -> "Schema":
        if self.label.name in {column.name for column in self.columns}:
            raise ValueError(
                f"the label {self.label.name!r} is declared as a column too; the model would read "
                f"its answer"
            )
        if self.centre is not None and len(self.centre) != len(self.features) - bool(
            self.intercept
        ):
            raise ValueError(
                f"centre has {len(self.centre)} numbers; expected one for each of the "
                f"{len(self.features) - bool(self.intercept)} features (the intercept is not "
                f"centred)"
            )
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the d columns of a bounded row; the intercept is last."""
        names = [feature for column in self.columns for feature in column.features]
        return (*names, *(["(intercept)"] if self.intercept else []))

    @property
    def dimension(self) -> int:
        """d, with the intercept."""
        return len(self.features)

    def digest(self) -> str:
        """SHA-256 of the canonical form, by which nodes agree on a schema."""
        return digest(self.model_dump(mode="json"))

    def rows(self, table: Table) -> Rows:
        """Bounded rows, CSR, or dense when there is a centre. Rows to drop must have been dropped
        (:meth:`kept`).
        """
        columns = self._read(table)
        blocks = []
        for column in self.columns:
            cells = columns[column.name]
            absent = self.absent(cells)
            if column.missing in ("refuse", "drop") and absent.any():
                what = (
                    "drop such rows first with kept()"
                    if column.missing == "drop"
                    else "declare what to do"
                )
                reason = (
                    f"the value is missing and the schema says missing = {column.missing!r}; {what}"
                )
                raise CellError(f"column {column.name!r}", int(np.argmax(absent)), reason)
            blocks.append(column.block(cells, absent))
        count = len(blocks[0][0])
        starts = np.cumsum([0, *(len(column.features) for column in self.columns)])
        index = np.hstack(
            [start + block for start, (block, _) in zip(starts[:-1], blocks, strict=True)]
        )
        values = np.hstack([block for _, block in blocks])
        if self.intercept:
            index = np.hstack([index, np.full((count, 1), starts[-1])])
            values = np.hstack([values, np.full((count, 1), self.intercept)])
        if self.centre is not None:
            dense = np.zeros((count, self.dimension))
            np.put_along_axis(dense, index, values, axis=1)
            dense[:, : len(self.centre)] -= np.array(self.centre)
            return np.asarray(dense * self._scale(dense))
        values = values * self._scale(values)
        sparse = csr_array(
            (values.ravel(), index.ravel(), np.arange(0, values.size + 1, values.shape[1])),
            shape=(count, self.dimension),
        )
        sparse.eliminate_zeros()
        return sparse

    def kept(self, table: Table) -> NDArray[np.bool_]:
        """Which rows stay: those without a missing cell in a column whose rule is ``drop``."""
        columns = self._read(table)
        keep = np.ones(len(columns[self.columns[0].name]), dtype=bool)
        for column in self.columns:
            if column.missing == "drop":
                keep &= ~self.absent(columns[column.name])
        return keep

    def labels(self, table: Table) -> Array:
        """y: -1 or +1 for each row."""
        return _signs(
            _cells(table, self.label.name),
            self.label.negative,
            self.label.positive,
            self.label.name,
        )

    def shard(self, table: Table, name: str = "node", rows: int | None = None) -> "Shard":
        """One node's rows, dropped, bounded and validated."""
        columns = {**self._read(table), self.label.name: _cells(table, self.label.name)}
        keep = self.kept(columns)
        labels = columns[self.label.name]
        if len(labels) != len(keep):
            raise DataError(
                f"node {name!r}: {len(keep)} rows but labels of shape {labels.shape}; expected "
                f"one label a row"
            )
        kept = columns if keep.all() else {column: cells[keep] for column, cells in columns.items()}
        try:
            return Shard.of(self.rows(kept), self.labels(kept), name=name, rows=rows)
        except (
            CellError
        ) as error:  # counted among the rows that stayed; say it as the caller counts
            raise CellError(
                error.column, int(np.flatnonzero(keep)[error.row]), error.reason
            ) from None

    def _read(self, table: Table) -> dict[str, NDArray[Any]]:
        """The schema's columns as arrays of equal length."""
        cells = {column.name: _cells(table, column.name) for column in self.columns}
        first = self.columns[0].name
        for name, column in cells.items():
            if len(column) != len(cells[first]):
                raise DataError(
                    f"column {name!r} has {len(column)} rows, {first!r} has {len(cells[first])}"
                )
        return cells

    def _scale(self, values: Array) -> Array:
        if self.scaling == "none":
            return np.full((1, 1), 1 / self.norm)
        size = np.sqrt(np.sum(np.square(values), axis=1, keepdims=True)) / self.norm
        with np.errstate(divide="ignore"):
            scale = 1 / size if self.scaling == "unit" else 1 / np.maximum(size, 1.0)
        return np.asarray(
            np.where(size > 0, scale, 0.0) / self.norm
        )  # an all-zero row cannot be scaled and stays

    def absent(self, cells: NDArray[Any]) -> NDArray[np.bool_]:
        """Which cells are missing: None, NaN, or a text that is declared to mean it."""
        if cells.dtype.kind == "f":
            return np.asarray(np.isnan(cells))
        if cells.dtype.kind == "U":
            return np.isin(np.char.strip(cells), self.missing_values)
        if cells.dtype.kind == "O":
            blank = set(self.missing_values)
            return np.array([_is_absent(v, blank) for v in cells], dtype=bool)
        return np.zeros(len(cells), dtype=bool)


@dataclass(frozen=True, eq=False)
class Shard:
    """One node's B_p bounded rows: finite, ||x|| <= 1 with the intercept, y in {-1, +1}; made by
    :meth:`~dynadp.data.schema.Shard.of`.

    Attributes
    ----------
    signed
        The rows y_i x_i, dense or CSR. The local problem needs nothing else, and x_i = y_i (y_i
        x_i) exactly.
    y
        Labels.
    name
        The node's name, for messages.
    """

    signed: Rows = field(repr=False)
    y: Array = field(repr=False)
    name: str = "node"

    @property
    def rows(self) -> int:
        """B_p, public."""
        return int(self.signed.shape[0])

    @property
    def dimension(self) -> int:
        """d, public, with the intercept."""
        return int(self.signed.shape[1])

    @classmethod
    def of(
        cls,
        X: Any,
        y: ArrayLike,
        *,
        name: str = "node",
        classes: tuple[Value, Value] = (-1, 1),
        rows: int | None = None,
    ) -> "Shard":
        """Copy and validate rows that are already bounded.

        Parameters
        ----------
        X
            B_p x d, dense or SciPy sparse, each row of norm at most 1, the intercept column
            included. Rows within 1e-9 above 1 are taken for rounding and scaled down, each by
            itself.
        y
            Labels, one of ``classes`` each.
        name
            The node's name, for messages.
        classes
            The two declared label values, negative first. A node may hold only one of them: saying
            so would be a release.
        rows
            The public B_p, where it was declared; a different count is refused.

        Raises
        ------
        DataError
            Naming the node, the row and the column; never a value.
        """
        matrix: Rows
        if issparse(X):
            matrix = csr_array(X, dtype=float, copy=True)
            matrix.sum_duplicates()
            matrix.eliminate_zeros()
        else:
            numbers = _array(X, dtype=float)
            if numbers is None:
                raise DataError(
                    f"node {name!r}: its rows are not a matrix of numbers; expected B x d, dense "
                    f"or sparse"
                )
            matrix = np.array(numbers, order="C")
        if matrix.ndim != 2:
            raise DataError(
                f"node {name!r}: rows have {matrix.ndim} dimensions; expected a B x d matrix"
            )
        count, dimension = matrix.shape
        if count == 0 or dimension == 0:
            raise DataError(
                f"node {name!r} is empty ({count} rows, {dimension} columns); every node needs at "
                f"least one row"
            )
        if rows is not None and rows != count:
            raise DataError(
                f"node {name!r} holds {count} rows but declared B_p = {rows}; B_p is public and "
                f"calibrates the noise: "
                "declare the number of rows that take part"
            )
        _require_finite(matrix, name)
        labels = _array(y)
        if labels is None:
            raise DataError(
                f"node {name!r}: its labels are lists of different length; expected one label a row"
            )
        if labels.shape != (count,):
            raise DataError(
                f"node {name!r}: {count} rows but labels of shape {labels.shape}; expected one "
                f"label a row"
            )
        signs = _signs(labels, *classes, f"label of node {name}")
        norms = _norms(matrix)
        worst = int(np.argmax(norms))
        if norms[worst] > 1 + ROOM:
            reason = (
                "its norm with the intercept is above 1; scale rows by a public bound or let a "
                "Schema clip them "
                "(scaling by the largest row seen would leak it)"
            )
            raise CellError(f"node {name!r}", worst, reason)
        # A computed norm is off by at most (d + 2) units of rounding: leave that much room below 1.
        room = (dimension + 8) * 2.0**-52
        scale = np.where(norms > 1 - room, (1 - 2 * room) / np.maximum(norms, 0.5), 1.0) * signs
        if isinstance(matrix, csr_array):
            matrix.data *= np.repeat(scale, np.diff(matrix.indptr))
            arrays = [matrix.data, matrix.indices, matrix.indptr]
        else:
            matrix *= scale[:, None]
            arrays = [matrix]
        for array in (*arrays, signs):
            array.setflags(write=False)
        return cls(matrix, signs, name)


class Held(Protocol):
    """Rows of one node, wherever they are: their public dimension, and the node's name."""

    @property
    def dimension(self) -> int:
        """d, with the intercept."""

    @property
    def name(self) -> str:
        """The node's."""


def check_shards(shards: Sequence[Held], nodes: tuple[str, ...]) -> int:
    """All shards of one dimension and as many as nodes; returns d."""
    if len(shards) != len(nodes):
        raise DeclarationError(
            f"the topology has {len(nodes)} nodes but {len(shards)} shards were given; expected "
            f"one each"
        )
    first = shards[0]
    for shard in shards:
        if shard.dimension != first.dimension:
            raise DataError(
                f"node {shard.name!r} has {shard.dimension} columns, node {first.name!r} has "
                f"{first.dimension}; "
                "all nodes must use one schema"
            )
    return first.dimension


def _cells(table: Table, name: str) -> NDArray[Any]:
    """A column as an array; lists keep each cell as it is, so that a missing value among texts
    stays missing.
    """
    try:
        column = table[name]
    except KeyError:
        raise DataError(f"column {name!r} of the schema is not in the rows") from None
    mixed = isinstance(column, list | tuple) and not all(
        type(cell) is type(column[0]) for cell in column
    )
    cells = _array(column, dtype=object if mixed else None)
    if cells is None:
        raise DataError(
            f"column {name!r} holds lists of different length; expected one value a row"
        )
    if cells.dtype.kind == "f" and isinstance(column, list | tuple) and isinstance(column[0], int):
        cells = np.asarray(
            column, dtype=object
        )  # whole numbers past 2^63 must not turn the others into floats
    if cells.ndim != 1:
        raise DataError(f"column {name!r} has {cells.ndim} dimensions; expected one value a row")
    return cells.astype(int) if cells.dtype.kind == "b" else cells


def _is_absent(value: Any, blank: set[str]) -> bool:
    if isinstance(value, str):
        return value.strip() in blank
    try:
        return value is None or bool(value != value)
    except (
        TypeError,
        ValueError,
        ArithmeticError,
    ):  # such as pandas' NA, which is neither equal nor unequal to itself
        return True


def _array(values: Any, dtype: Any = None) -> NDArray[Any] | None:
    """The values as an array, or None where they are none; the reason, which may show a value,
    stays here.
    """
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError):
        return None


def _signs(labels: NDArray[Any], negative: Value, positive: Value, name: str) -> Array:
    found = match(labels, (negative, positive))
    if (found < 0).any():
        reason = f"the label is neither {negative!r} nor {positive!r}, the two declared ones"
        raise CellError(name, int(np.argmin(found)), reason)
    return np.where(found == 1, 1.0, -1.0)


def _require_finite(matrix: Rows, name: str) -> None:
    values = matrix.data if isinstance(matrix, csr_array) else matrix
    finite = np.isfinite(values)
    if not finite.all():
        if isinstance(matrix, csr_array):
            place = int(np.argmin(finite))
            row, column = (
                int(np.searchsorted(matrix.indptr, place, side="right") - 1),
                int(matrix.indices[place]),
            )
        else:
            row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise DataError(f"node {name!r}, row {row}, column {column}: the value is NaN or infinite")


def _norms(matrix: Rows) -> Array:
    with np.errstate(over="ignore"):  # a norm that overflows is above any bound
        return _computed_norms(matrix)


def _computed_norms(matrix: Rows) -> Array:
    if isinstance(matrix, csr_array):
        square = csr_array(
            (np.square(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape
        )
        return np.asarray(np.sqrt(square @ np.ones(matrix.shape[1])))
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", matrix, matrix)))
