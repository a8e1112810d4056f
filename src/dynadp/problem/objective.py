"""The one local problem that every variant minimises (maths.md 2), for all nodes and replicas at
once.

    min_f  (C/B_p) sum_i L(a_i . f) + rho R(f) + (q/2) ||f||^2 + b.f,        a_i = y_i x_i

Algorithm 1, dual and primal perturbation differ only in q and b. Arrays have the axes node,
replica, coordinate: ``F`` is P x K x d, ``q`` P x 1 or P x K, ``b`` P x K x d; margins are N x K
with the rows of all nodes one below the other.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from dynadp._arrays import (
    Array,
    Rows,
    column_spans,
    dot,
    dot_roundings,
    faster_storage,
    namespace,
    on,
)
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Loss
from dynadp.problem.regularizers import Regularizer

Storage = Literal["auto", "dense", "csr"]
T = TypeVar("T")
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# products or function values; below it, handing work to threads costs more than it saves
WORTH_SHARING = 1_000_000
_WORTH_A_PASS = 200_000  # the same for a whole pass over the rows, which is handed over once


class StackedRows(Protocol):
    """The signed rows of all nodes: N x d, with node p's between offsets p and p + 1."""

    offsets: NDArray[np.int64]

    def margins(self, F: Array) -> Array:
        """A F: N x K."""

    def adjoint(self, S: Array) -> Array:
        """A_p^T S_p for every node: P x K x d."""

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p for every node: P x d."""

    def gram(self, p: int, weights: Array, step: int) -> Array:
        """A_p^T diag(w) A_p over every ``step``-th row of node p; ``weights`` belong to those rows."""


class DenseRows:
    """All rows in one dense array; one matrix product a node, or one batched product where all B_p
    are equal.
    """

    def __init__(self, blocks: Sequence[Rows]) -> None:
        self.offsets = np.cumsum([0, *(block.shape[0] for block in blocks)])
        dense = [b.toarray() if isinstance(b, csr_array) else b for b in blocks]
        self.matrix = (
            namespace(dense[0]).concat(dense) if len(dense) > 1 else dense[0]
        )  # one node's rows are not copied
        counts = np.diff(self.offsets)
        self.batch = (
            self.matrix.reshape(len(blocks), counts[0], -1) if (counts == counts[0]).all() else None
        )

    def margins(self, F: Array) -> Array:
        """A F."""
        xp = namespace(F)
        first, *more = column_spans(F.shape[2])
        if self.batch is not None:
            Z = xp.matmul(self.batch[..., first], F[..., first].transpose(0, 2, 1))
            for span in more:
                Z += xp.matmul(self.batch[..., span], F[..., span].transpose(0, 2, 1))
            return Z.reshape(-1, F.shape[1])
        out: Array = xp.empty((len(self.matrix), F.shape[1]))
        for p, f in enumerate(F):
            low, high = self.offsets[p : p + 2]
            xp.matmul(self.matrix[low:high, first], f[:, first].T, out=out[low:high])
            for span in more:
                out[low:high] += xp.matmul(self.matrix[low:high, span], f[:, span].T)
        return out

    def adjoint(self, S: Array) -> Array:
        """A_p^T S_p."""
        return self._adjoint(self.matrix, self.batch, S)

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p."""
        squared = self.matrix * self.matrix
        batch = None if self.batch is None else squared.reshape(self.batch.shape)
        return self._adjoint(squared, batch, s[:, None])[:, 0]

    def _adjoint(self, matrix: Array, batch: Array | None, S: Array) -> Array:
        xp = namespace(S)
        if batch is not None:
            return xp.matmul(S.reshape(*batch.shape[:2], -1).transpose(0, 2, 1), batch)
        out: Array = xp.empty((len(self.offsets) - 1, S.shape[1], matrix.shape[1]))
        for p in range(len(out)):
            low, high = self.offsets[p : p + 2]
            xp.matmul(S[low:high].T, matrix[low:high], out=out[p])
        return out

    def gram(self, p: int, weights: Array, step: int) -> Array:
        """A_p^T diag(w) A_p."""
        return _gram(self.matrix[self.offsets[p] : self.offsets[p + 1] : step], weights)


class SparseRows:
    """All rows in block-diagonal CSR matrices, one for each worker thread: one sparse product each
    a pass.

    A node's rows lie in one matrix, so that results do not depend on the number of workers. Where a
    pass over the rows for the expected ``replicas`` is too short to be shared, there is one matrix.
    """

    def __init__(self, blocks: Sequence[Rows], replicas: int = 1) -> None:
        parts = [block if isinstance(block, csr_array) else csr_array(block) for block in blocks]
        self.dimension = parts[0].shape[1]
        self.offsets = np.cumsum([0, *(part.shape[0] for part in parts)])
        self.filled = sum(part.nnz for part in parts)
        workers = WORKERS if self.filled * replicas > _WORTH_A_PASS else 1
        ends = np.searchsorted(self.offsets, self.offsets[-1] * np.arange(1, workers) / workers)
        cuts = np.unique([0, *ends, len(parts)])
        self.groups = [
            _Group(parts, slice(low, high), self.offsets) for low, high in pairwise(cuts)
        ]

    def margins(self, F: Array) -> Array:
        """A F."""
        out = np.empty((self.offsets[-1], F.shape[1]))

        def product(group: _Group) -> None:
            out[group.rows] = group.margins(F)

        share_out(product, self.groups, self.filled * F.shape[1] > WORTH_SHARING)
        return out

    def adjoint(self, S: Array) -> Array:
        """A_p^T S_p."""
        out = np.empty((len(self.offsets) - 1, S.shape[1], self.dimension))

        def product(group: _Group) -> None:
            out[group.nodes] = group.adjoint(S[group.rows], self.dimension)

        share_out(product, self.groups, self.filled * S.shape[1] > WORTH_SHARING)
        return out

    def there_and_back(
        self, F: Array, slopes: Callable[[Array, slice], Array]
    ) -> tuple[Array, Array]:
        """A F and A_p^T S_p, S = ``slopes`` of some rows' part of A F and where they are: one piece
        of work for each worker.
        """
        Z = np.empty((self.offsets[-1], F.shape[1]))
        out = np.empty((len(self.offsets) - 1, F.shape[1], self.dimension))

        def both(group: _Group) -> None:
            Z[group.rows] = group.margins(F)
            out[group.nodes] = group.adjoint(slopes(Z[group.rows], group.rows), self.dimension)

        share_out(both, self.groups, self.filled * F.shape[1] > _WORTH_A_PASS)
        return Z, out

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p."""
        out = np.empty((len(self.offsets) - 1, self.dimension))
        for group in self.groups:
            A = group.matrix
            squared = csr_array((np.square(A.data), A.indices, A.indptr), shape=A.shape)
            out[group.nodes] = (squared.T @ s[group.rows]).reshape(-1, self.dimension)
        return out

    def gram(self, p: int, weights: Array, step: int) -> Array:
        """A_p^T diag(w) A_p, through dense rows: the result is dense and BLAS is faster than a
        sparse product.
        """
        group = next(group for group in self.groups if group.nodes.start <= p < group.nodes.stop)
        low, high = self.offsets[p : p + 2] - group.rows.start
        rows = group.matrix[low:high:step]
        first = (p - group.nodes.start) * self.dimension
        shifted = csr_array(
            (rows.data, rows.indices - first, rows.indptr), (len(weights), self.dimension)
        )
        return _gram(shifted.toarray(), weights)


class _Group:
    """Some consecutive nodes' rows as one block-diagonal CSR matrix."""

    def __init__(
        self, parts: Sequence[csr_array], nodes: slice, offsets: NDArray[np.int64]
    ) -> None:
        self.nodes, self.rows = nodes, slice(int(offsets[nodes.start]), int(offsets[nodes.stop]))
        parts = parts[nodes]
        dimension = parts[0].shape[1]
        if len(parts) == 1:  # one node's rows are not copied
            self._hold(parts[0], dimension)
            return
        starts = np.cumsum([0, *(part.nnz for part in parts)])
        wide = (
            np.int64
            if max(starts[-1], len(parts) * dimension) > np.iinfo(np.int32).max
            else np.int32
        )
        indices = np.empty(starts[-1], dtype=wide)
        for i, (part, start) in enumerate(zip(parts, starts, strict=False)):
            np.add(
                part.indices,
                wide(i * dimension),
                out=indices[start : start + part.nnz],
                casting="unsafe",
            )
        ends = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=False)]
        entries = (
            np.concatenate([part.data for part in parts]),
            indices,
            np.concatenate([[0], *ends]).astype(wide),
        )
        self._hold(
            csr_array(entries, shape=(self.rows.stop - self.rows.start, len(parts) * dimension)),
            dimension,
        )

    def _hold(self, matrix: csr_array, dimension: int) -> None:
        self.matrix, self.transposed = matrix, matrix.T
        longest = int(np.diff(matrix.indptr).max(initial=0))
        self.pieces = (
            [matrix] if longest <= dot_roundings(dimension) else _pieces(matrix, dimension)
        )

    def margins(self, F: Array) -> Array:
        """A F of the group's rows."""
        f = F[self.nodes].transpose(0, 2, 1).reshape(-1, F.shape[1])
        Z = self.pieces[0] @ f
        for piece in self.pieces[1:]:
            Z += piece @ f
        return Z

    def adjoint(self, S: Array, dimension: int) -> Array:
        """A_p^T S_p of the group's nodes, from its rows' part of S."""
        return (self.transposed @ S).reshape(-1, dimension, S.shape[1]).transpose(0, 2, 1)


def _pieces(matrix: csr_array, dimension: int) -> list[csr_array]:
    """The matrix as a sum, by spans of each node's columns: where rows are long, fewer roundings
    meet on a path.
    """
    column, row = (
        matrix.indices % dimension,
        np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)),
    )
    found = []
    for span in column_spans(dimension):
        inside = (span.start <= column) & (column < span.stop)
        ends = np.concatenate([[0], np.cumsum(np.bincount(row[inside], minlength=matrix.shape[0]))])
        found.append(
            csr_array((matrix.data[inside], matrix.indices[inside], ends), shape=matrix.shape)
        )
    return found


def share_out(work: Callable[[T], None], items: Sequence[T], threads: bool) -> None:
    """Do the work on every item, in threads where there is enough of it: NumPy and SciPy release
    the interpreter's lock.
    """
    if len(items) == 1 or not threads:
        for item in items:
            work(item)
        return
    others = [_workers().submit(work, item) for item in items[1:]]
    try:
        work(items[0])
    finally:
        failures = [other.exception() for other in others]  # when all are done
    for failure in filter(None, failures):
        raise failure


def spans(count: int) -> list[slice]:
    """So many things as one span for each worker, none of them empty."""
    cuts = np.unique(np.linspace(0, count, WORKERS + 1).astype(int)).tolist()
    return [slice(low, high) for low, high in pairwise(cuts)]


@cache  # a forked child has none of its parent's threads and makes its own
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="dynadp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _gram(rows: Array, weights: Array) -> Array:
    scaled = rows * namespace(weights).sqrt(weights)[:, None]
    return scaled.T @ scaled  # NumPy calls syrk for A^T A


def stack_rows(blocks: Sequence[Rows], replicas: int = 1, storage: Storage = "auto") -> StackedRows:
    """All nodes' rows in the storage that is asked for, or in the one that should be faster
    (:func:`faster_storage`).
    """
    if storage == "auto":
        rows, dimension = sum(block.shape[0] for block in blocks), blocks[0].shape[1]
        filled = sum(
            block.nnz if isinstance(block, csr_array) else int(np.count_nonzero(block))
            for block in blocks
        )
        storage = faster_storage(rows, dimension, filled, replicas)
    if storage not in ("dense", "csr"):
        raise DeclarationError(f"storage is {storage!r}; expected 'auto', 'dense' or 'csr'")
    return DenseRows(blocks) if storage == "dense" else SparseRows(blocks, replicas)


Weights = Literal["rows", "equal"]


def shares(C: float, counts: ArrayLike, weights: Weights = "rows") -> Array:
    """C_p = C B_p/mean(B), so that every row of the network weighs C/mean(B); or C_p = C, so that
    every node weighs the same.

    ``rows`` is pooled risk minimisation, and a row moves every node by the same. ``equal`` is the
    paper's: a row of a small node weighs more, and so does the noise that hides it.
    """
    if weights not in ("rows", "equal"):
        raise DeclarationError(
            f"weights is {weights!r}; expected 'rows' (each row weighs the same) or 'equal' (each "
            f"node does)"
        )
    B = np.asarray(counts, dtype=float)
    return C * B / B.mean() if weights == "rows" else np.full(B.shape, float(C))


class Terms:
    """All that is public about the local problems of P nodes: everything but rows.

    Parameters
    ----------
    counts
        B_p of each node.
    dimension
        d.
    loss, regularizer
        L and R.
    C
        The paper's C^R: what all rows of a node weigh together, one number or one for each node
        (:func:`shares`). Kept as an array with one for each.
    rho
        The paper's rho.
    """

    def __init__(
        self,
        counts: Array,
        dimension: int,
        loss: Loss,
        regularizer: Regularizer,
        C: float | Array,
        rho: float,
    ) -> None:
        self.counts, self.dimension, self.loss, self.regularizer = (
            counts,
            dimension,
            loss,
            regularizer,
        )
        self.C: Array = np.broadcast_to(np.asarray(C, dtype=float), np.shape(counts))
        self.rho = float(rho)

    def __len__(self) -> int:
        return len(self.counts)


class Problem(Terms):
    """The local problems of P nodes: public terms, private rows.

    Parameters
    ----------
    blocks
        The signed rows y_i x_i of each node, dense or CSR.
    loss, regularizer, C, rho
        As for :class:`Terms`.
    replicas
        How many replicas will be stacked; only the choice of storage depends on it.
    storage
        ``auto``, ``dense`` or ``csr``.
    """

    def __init__(
        self,
        blocks: Sequence[Rows],
        loss: Loss,
        regularizer: Regularizer,
        C: float | Array,
        rho: float,
        *,
        replicas: int = 1,
        storage: Storage = "auto",
    ) -> None:
        counts = np.array([float(block.shape[0]) for block in blocks])
        super().__init__(counts, int(blocks[0].shape[1]), loss, regularizer, C, rho)
        self.rows = stack_rows(blocks, replicas, storage)
        self._kept: dict[Any, Array] = {}
        weights = np.repeat(self.C / self.counts, np.diff(self.rows.offsets))[:, None]
        self.row_weight = on(weights, getattr(self.rows, "matrix", weights))  # C/B_p for every row

    def on_rows(self, make: Callable[[], Array]) -> Array:
        """Small public numbers where the rows are, put there once; ``make`` is a function written
        in one place.
        """
        key = make.__code__
        if key not in self._kept:
            self._kept[key] = on(make(), self.row_weight)
        return self._kept[key]

    def margins(self, F: Array) -> Array:
        """z_i = a_i.f of every row: N x K."""
        return self.rows.margins(F)

    def along(
        self, F: Array, D: Array, Z: Array, dZ: Array, q: Array, b: Array
    ) -> Callable[[Array], Array]:
        """phi'(t) for the objective phi(t) at F + t D, P x K; margins on the line are Z + t dZ, dZ
        those of D: no pass.
        """

        def slope(t: Array) -> Array:
            on_line = namespace(t).repeat(t, np.diff(self.rows.offsets).tolist(), axis=0)
            on_line *= dZ
            on_line += Z
            on_line = self.loss.slope(on_line)
            on_line *= dZ
            on_line *= self.row_weight
            here = F + t[..., None] * D
            rest = self.rho * self.regularizer.gradient(here) + q[..., None] * here + b
            return self._sums(on_line) + dot(rest, D)

        return slope

    def _sums(self, values: Array) -> Array:
        """Sums of N x K values over each node's rows: P x K."""
        if isinstance(values, np.ndarray):
            return np.asarray(np.add.reduceat(values, self.rows.offsets[:-1]))
        return namespace(values).stack(
            [values[low:high].sum(axis=0) for low, high in pairwise(self.rows.offsets)]
        )

    def data_gradient(self, Z: Array) -> Array:
        """(C/B_p) sum_i L'(z_i) a_i: P x K x d."""
        if not isinstance(Z, np.ndarray) or Z.size <= WORTH_SHARING:
            return self.rows.adjoint(self.loss.slope(Z) * self.row_weight)
        slopes = np.empty_like(Z)

        def fill(rows: slice) -> None:
            np.multiply(self.loss.slope(Z[rows]), self.row_weight[rows], out=slopes[rows])

        share_out(fill, spans(len(Z)), threads=True)
        return self.rows.adjoint(slopes)

    def local_gradient(self, F: Array, Z: Array | None = None) -> Array:
        """Grad Z_p(F_p) = (C/B_p) sum_i L'(z_i) a_i + rho grad R(F): the local objective without q
        and b.
        """
        return self.data_gradient(
            self.margins(F) if Z is None else Z
        ) + self.rho * self.regularizer.gradient(F)

    def at(self, F: Array) -> tuple[Array, Array]:
        """Margins and :meth:`local_gradient` at F, in one pass."""
        if not (isinstance(self.rows, SparseRows) and len(self.rows.groups) > 1):
            Z = self.margins(F)
            return Z, self.local_gradient(F, Z)
        Z, data = self.rows.there_and_back(
            F, lambda z, rows: self.loss.slope(z) * self.row_weight[rows]
        )
        return Z, data + self.rho * self.regularizer.gradient(F)

    def gradient(self, F: Array, q: Array, b: Array, Z: Array | None = None) -> Array:
        """Grad Z_p(F_p) + q F + b."""
        return self.local_gradient(F, Z) + q[..., None] * F + b

    def local_value(self, F: Array, Z: Array | None = None) -> Array:
        """Z_p(F_p): P x K."""
        losses = self.loss.value(self.margins(F) if Z is None else Z) * self.row_weight
        return self._sums(losses) + self.rho * self.regularizer.value(F)

    def hessians(self, F: Array, Z: Array, step: int = 1, majorant: bool = False) -> Array:
        """P x d x d: (C/B_p) sum_i L''(z_i) a_i a_i^T + rho diag R''(F), means over replicas and
        over every ``step``-th row.

        With ``majorant``, c1 stands for every L'' and sup R'' for R'': a matrix that the Hessian
        does not exceed anywhere.
        """
        xp = namespace(F)
        out: Array = xp.empty((len(self), self.dimension, self.dimension))
        ridge = self._ridge(F, majorant)
        diagonal = xp.arange(self.dimension)

        def fill(nodes: slice) -> None:
            for p in range(nodes.start, nodes.stop):
                weights = self._curvatures(
                    Z[self.rows.offsets[p] : self.rows.offsets[p + 1] : step], majorant
                )
                out[p] = self.rows.gram(p, weights * (self.C[p] / len(weights)), step)
                out[p, diagonal, diagonal] += ridge[p]

        products = len(Z) // step * self.dimension**2
        share_out(fill, spans(len(self)), isinstance(F, np.ndarray) and products > WORTH_SHARING)
        return out

    def chunk_hessians(self, F: Array, Z: Array, chunks: int) -> Array:
        """chunks x P x d x d: :meth:`hessians` of each of so many equal chunks of consecutive
        replicas; for dense rows.
        """
        xp, size = namespace(F), F.shape[1] // chunks
        out: Array = xp.empty((chunks, len(self), self.dimension, self.dimension))
        for p, (low, high) in enumerate(pairwise(self.rows.offsets)):
            curvature = (
                self.loss.curvature(Z[low:high]).reshape(high - low, chunks, size).mean(axis=2)
            )
            weights = xp.sqrt(curvature.T * (self.C[p] / self.counts[p]))[..., None]
            scaled = self.rows.matrix[low:high] * weights  # type: ignore[attr-defined]
            xp.matmul(scaled.transpose(0, 2, 1), scaled, out=out[:, p])
        diagonal = xp.arange(self.dimension)
        ridge = self.rho * self.regularizer.curvature(F).reshape(len(self), chunks, size, -1).mean(
            axis=2
        )
        out[..., diagonal, diagonal] += ridge.transpose(1, 0, 2)
        return out

    def hessian_diagonals(self, F: Array, Z: Array, majorant: bool = False) -> Array:
        """P x d: the diagonals of :meth:`hessians`."""
        weights = self._curvatures(Z, majorant) * self.row_weight[:, 0]
        return self.rows.squared_adjoint(weights) + self._ridge(F, majorant)

    def _ridge(self, F: Array, majorant: bool) -> Array:
        if majorant:
            return namespace(F).full(
                (len(self), self.dimension), self.rho * self.regularizer.smoothness
            )
        return self.rho * self.regularizer.curvature(F).mean(axis=1)

    def _curvatures(self, Z: Array, majorant: bool) -> Array:
        if majorant:
            return namespace(Z).full(len(Z), self.loss.c1)
        return self.loss.curvature(Z).mean(axis=1)
