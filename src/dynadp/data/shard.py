"""One node's bounded rows (paper, section 2; maths.md 1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from dynadp._arrays import Array, Rows, row_squares
from dynadp.data.labels import Kind
from dynadp.data.values import Value, places, signs, to_array
from dynadp.errors import CellError, DataError, DeclarationError

# A row this far above norm 1 is taken for rounding and scaled down; one further above is refused.
ROOM = 1e-9


@dataclass(frozen=True, eq=False)
class Shard:
    """One node's B_p bounded rows: finite, ||x|| <= 1 with the intercept; made by
    :meth:`~dynadp.data.shard.Shard.of`.

    Attributes
    ----------
    signed
        The rows y_i x_i, dense or CSR, where y is a sign: the local problem needs nothing else,
        and x_i = y_i (y_i x_i) exactly. Otherwise x_i itself.
    y
        -1 or +1, the number of the row's class from 0, or a number in [-1, 1].
    name
        The node's name, for messages.
    people
        Where it is known whose rows they are: a number for each, the same for all rows of a person;
        -1 for null rows.
    kind
        What y holds: ``signs``, ``classes`` or ``numbers``.
    classes
        How many there are, 2 of signs and 0 of numbers.
    """

    signed: Rows = field(repr=False)
    y: Array = field(repr=False)
    name: str = "node"
    people: NDArray[np.int64] | None = field(default=None, repr=False)
    kind: Kind = "signs"
    classes: int = 2

    @property
    def answers(self) -> Array | None:
        """y, where the rows are not multiplied by it; None where they are."""
        return None if self.kind == "signs" else self.y

    def taken(self) -> Rows:
        """Return the rows for somebody who may write over them, if they are dense, without a copy:
        what stays here has NaN everywhere, so that nobody takes it for rows.
        """
        rows = self.signed
        if isinstance(rows, csr_array):
            return rows
        if not rows.flags.owndata:
            return rows.copy()
        rows.setflags(write=True)
        object.__setattr__(self, "signed", np.broadcast_to(np.nan, rows.shape))
        return rows

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
        classes: Sequence[Value] | None = (-1, 1),
        rows: int | None = None,
        people: ArrayLike | None = None,
        copy: bool = True,
    ) -> "Shard":
        """Copy and validate rows that are already bounded.

        Parameters
        ----------
        X
            B_p x d, dense or SciPy sparse, each row of norm at most 1, the intercept column
            included. Rows within 1e-9 above 1 are taken for rounding and scaled down, each by
            itself.
        y
            Labels, one of ``classes`` each; or numbers in [-1, 1].
        name
            The node's name, for messages.
        classes
            The two declared label values, negative first, or three and more; None for numbers. A
            node may hold only one of them: an error about it would be a release.
        rows
            The public B_p, where it was declared; a different count is refused.
        people
            Whose row each is, as whole numbers, where that is known.
        copy
            Whether dense rows are copied; otherwise they are written over.

        Raises
        ------
        DataError
            Naming the node, the row and the column; never a value.
        """
        matrix: Rows = X if isinstance(X, np.ndarray) and not copy else _matrix(X, name)
        count, dimension = matrix.shape
        require_rows(count, rows, name)
        if dimension == 0:
            raise DataError(f"node {name!r} is empty ({count} rows, 0 columns)")
        _require_finite(matrix, name)
        labels = to_array(y)
        if labels is None:
            raise DataError(
                f"node {name!r}: its labels are lists of different length; expected one label a row"
            )
        if labels.shape != (count,):
            raise DataError(
                f"node {name!r}: {count} rows but labels of shape {labels.shape}; expected one "
                f"label a row"
            )
        kind, y = _answers(labels, classes, f"label of node {name}")
        scale = y.copy() if kind == "signs" else np.ones(count)
        sizes = norms(matrix)
        worst = int(np.argmax(sizes))
        if sizes[worst] > 1 + ROOM:
            raise CellError(
                f"node {name!r}",
                worst,
                "its norm with the intercept is above 1; scale rows by a public bound or let a "
                "Schema clip them (scaling by the largest row seen would leak it)",
            )
        # A computed norm is off by at most (d + 2) units of rounding: leave that much room below 1.
        room = (dimension + 8) * 2.0**-52
        scale *= np.where(sizes > 1 - room, (1 - 2 * room) / np.maximum(sizes, 0.5), 1.0)
        if isinstance(matrix, csr_array):
            matrix.data *= np.repeat(scale, np.diff(matrix.indptr))
        else:
            matrix *= scale[:, None]
        many = 0 if classes is None else len(classes)
        return cls.frozen(matrix, y, name, _numbers(people, count, name), kind, many)

    @classmethod
    def null(
        cls,
        rows: int,
        dimension: int,
        name: str = "node",
        kind: Kind = "signs",
        classes: int = 2,
    ) -> "Shard":
        """Return null rows alone: what a node without rows has where their number stays secret."""
        empty = csr_array((0, dimension), dtype=float)
        none = np.empty(0, np.int64)
        return cls(empty, np.empty(0), name, none, kind, classes).filled(rows)

    def filled(self, rows: int) -> "Shard":
        """Return the shard with null rows at its end, x = 0, so that it has as many as declared.

        A null row adds nothing to any sum, gradient or curvature. So a row that is added takes the
        place of a null row, and the number of rows that a node shows is the declared one (maths.md
        15).
        """
        more = rows - self.rows
        if more < 0:
            raise DataError(
                f"node {self.name!r} holds more rows than the {rows} that it declared; leave the "
                "others out first"
            )
        signed: Rows
        if isinstance(self.signed, csr_array):
            s = self.signed
            ends = np.concatenate([s.indptr, np.full(more, s.indptr[-1], s.indptr.dtype)])
            signed = csr_array((s.data, s.indices, ends), shape=(rows, self.dimension))
        else:
            signed = np.concatenate([self.signed, np.zeros((more, self.dimension))])
        people = self.people
        if people is not None:
            people = np.concatenate([people, np.full(more, -1)])
        y = np.concatenate([self.y, null_answers(self.kind, more)])
        return self.frozen(signed, y, self.name, people, self.kind, self.classes)

    @classmethod
    def frozen(
        cls,
        signed: Rows,
        y: Array,
        name: str,
        people: NDArray[np.int64] | None = None,
        kind: Kind = "signs",
        classes: int = 2,
    ) -> "Shard":
        """Return the shard of rows that were validated before; its arrays become read-only."""
        sparse = isinstance(signed, csr_array)
        arrays = [signed.data, signed.indices, signed.indptr] if sparse else [signed]
        for array in (*arrays, y):
            array.setflags(write=False)
        return cls(signed, y, name, people, kind, classes)


class Held(Protocol):
    """Rows of one node, in memory or streamed: their public dimension, the node's name, and what
    is answered.
    """

    @property
    def dimension(self) -> int:
        """d, with the intercept."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def kind(self) -> Kind:
        """What y holds."""

    @property
    def classes(self) -> int:
        """How many classes there are."""


def null_answers(kind: Kind, rows: int) -> Array:
    """Return y of null rows, which no sum depends on: 1, or 0 where y is no sign."""
    return np.full(rows, 1.0 if kind == "signs" else 0.0)


def require_signs(shards: Sequence[Held], what: str) -> None:
    """Refuse rows whose answer is not one of two values, for ``what`` separates two."""
    for shard in shards:
        if shard.kind != "signs":
            many = "several classes" if shard.kind == "classes" else "a number to predict"
            raise DeclarationError(
                f"node {shard.name!r}: its rows have {many}, and {what} separates two classes; "
                "declare a label with negative and positive, or choose algorithm 'sum' (mechanism "
                "sum or sealed)"
            )


def check_shards(shards: Sequence[Held], nodes: tuple[str, ...]) -> int:
    """Return the shards' common dimension d; refuse other than one shard for each node."""
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
                f"{first.dimension}; all nodes must use one schema"
            )
        if shard.classes != first.classes:
            raise DataError(
                f"node {shard.name!r} has {shard.classes} classes, node {first.name!r} has "
                f"{first.classes}; all nodes must use one schema"
            )
    return first.dimension


def require_rows(count: int, declared: int | None, name: str) -> None:
    """Refuse a node without rows, or with another number of rows than it declared."""
    if count == 0:
        raise DataError(f"node {name!r} is empty (0 rows); every node needs at least one row")
    if declared not in (None, count):
        raise DataError(
            f"node {name!r} holds {count} rows but declared B_p = {declared}; B_p is public and "
            "calibrates the noise: declare the number of rows that take part"
        )


def require_declared(declared: int | None, name: str) -> int:
    """Return the declared number of rows, which a node needs whose own number stays secret."""
    if declared is None:
        raise DataError(
            f"node {name!r}: adjacency is 'add-remove', so that its number of rows stays secret, "
            "and a public number has to stand for it: declare one, rows = N, at least as many as "
            "it may have"
        )
    return declared


def first_of(keep: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """Return the first so many of the rows that stay."""
    return keep & (np.cumsum(keep) <= most)


def norms(X: Rows) -> Array:
    """||x|| of every row."""
    with np.errstate(over="ignore"):  # a norm that overflows is above any bound
        return np.asarray(np.sqrt(row_squares(X)))


def _matrix(X: Any, name: str) -> Rows:
    """Return a copy of the rows: floats, dense or CSR without duplicates."""
    if issparse(X):
        sparse = csr_array(X, dtype=float, copy=True)
        sparse.sum_duplicates()
        sparse.eliminate_zeros()
        return sparse
    numbers = to_array(X, dtype=float)
    if numbers is None:
        raise DataError(
            f"node {name!r}: its rows are not a matrix of numbers; expected B x d, dense or sparse"
        )
    if numbers.ndim != 2:
        raise DataError(
            f"node {name!r}: rows have {numbers.ndim} dimensions; expected a B x d matrix"
        )
    return np.array(numbers, order="C")


def _numbers(people: ArrayLike | None, count: int, name: str) -> NDArray[np.int64] | None:
    if people is None:
        return None
    numbers = np.asarray(people)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise DataError(f"node {name!r}: people must be one whole number for each of its rows")
    return numbers.astype(np.int64)


def _answers(
    labels: NDArray[Any], classes: Sequence[Value] | None, name: str
) -> tuple[Kind, Array]:
    """Return what y holds, and y."""
    if classes is not None and len(classes) == 2:
        return "signs", signs(labels, classes[0], classes[1], name)
    if classes is not None:
        return "classes", places(labels, classes, name)
    numbers = to_array(labels, dtype=float)
    wrong = None if numbers is None else ~(np.abs(numbers) <= 1)
    if numbers is None or wrong is None or wrong.any():
        row = 0 if wrong is None else int(np.argmax(wrong))
        raise CellError(name, row, "the target is no number in [-1, 1]; scale it by public bounds")
    return "numbers", np.array(numbers)


def _require_finite(matrix: Rows, name: str) -> None:
    sparse = isinstance(matrix, csr_array)
    finite = np.isfinite(matrix.data if sparse else matrix)
    if finite.all():
        return
    place = int(np.argmin(finite))
    if sparse:
        row, column = np.searchsorted(matrix.indptr, place, side="right") - 1, matrix.indices[place]
    else:
        row, column = divmod(place, matrix.shape[1])
    raise DataError(f"node {name!r}, row {row}, column {column}: the value is NaN or infinite")
