"""The signed rows of all nodes in one dense array or in sparse matrices, whichever is faster."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import (
    Array,
    Margins,
    Rows,
    Vectors,
    column_spans,
    dot_roundings,
    faster_storage,
    namespace,
)
from dynadp.errors import DeclarationError
from dynadp.problem.threads import WORKERS, WORTH_SHARING, share_out

Storage = Literal["auto", "dense", "csr"]
_WORTH_NO_COPY = 1 << 23  # bytes of a node's rows, past which a product a node is as fast
_WORTH_A_PASS = 200_000  # as WORTH_SHARING, for a pass over the rows, which is handed over once


class DenseRows:
    """All rows in one dense array: one product a node, or one for all if all B_p are equal."""

    def __init__(self, blocks: Sequence[Rows]) -> None:
        self.offsets = np.cumsum([0, *(block.shape[0] for block in blocks)])
        dense = [b.toarray() if isinstance(b, csr_array) else b for b in blocks]
        # one node's rows are not copied
        self.matrix = namespace(dense[0]).concat(dense) if len(dense) > 1 else dense[0]
        counts = np.diff(self.offsets)
        equal = (counts == counts[0]).all()
        self.batch = self.matrix.reshape(len(blocks), counts[0], -1) if equal else None

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.matrix.shape[1])

    def margins(self, F: Vectors) -> Margins:
        """A F: N x K."""
        xp = namespace(F)
        first, *more = column_spans(F.shape[2])
        if self.batch is not None:
            Z = xp.matmul(self.batch[..., first], F[..., first].transpose(0, 2, 1))
            for span in more:
                Z += xp.matmul(self.batch[..., span], F[..., span].transpose(0, 2, 1))
            return Z.reshape(-1, F.shape[1])
        out: Array = xp.empty((len(self.matrix), F.shape[1]))
        for f, (low, high) in zip(F, pairwise(self.offsets), strict=True):
            xp.matmul(self.matrix[low:high, first], f[:, first].T, out=out[low:high])
            for span in more:
                out[low:high] += xp.matmul(self.matrix[low:high, span], f[:, span].T)
        return out

    def adjoint(self, S: Margins) -> Vectors:
        """A_p^T S_p for every node: P x K x d."""
        return self._adjoint(self.matrix, self.batch, S)

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p for every node: P x d."""
        squared = self.matrix * self.matrix
        batch = None if self.batch is None else squared.reshape(self.batch.shape)
        return self._adjoint(squared, batch, s[:, None])[:, 0]

    def _adjoint(self, matrix: Array, batch: Array | None, S: Margins) -> Vectors:
        xp = namespace(S)
        if batch is not None:
            return xp.matmul(S.reshape(*batch.shape[:2], -1).transpose(0, 2, 1), batch)
        out: Array = xp.empty((len(self.offsets) - 1, S.shape[1], matrix.shape[1]))
        for p, (low, high) in enumerate(pairwise(self.offsets)):
            xp.matmul(S[low:high].T, matrix[low:high], out=out[p])
        return out

    def gram(self, p: int, weights: Array, step: int = 1) -> Array:
        """A_p^T diag(w) A_p over every ``step``-th row of node p, for each line of weights."""
        return _gram(self.matrix[self.offsets[p] : self.offsets[p + 1] : step], weights)


class SeparateRows(DenseRows):
    """Each node's rows as they are, not copied into one array: a product a node."""

    def __init__(self, blocks: Sequence[Array]) -> None:
        self.offsets = np.cumsum([0, *(block.shape[0] for block in blocks)])
        self.blocks, self.matrix, self.batch = [DenseRows([b]) for b in blocks], blocks[0], None

    def margins(self, F: Vectors) -> Margins:
        """A F: N x K."""
        return np.concatenate([b.margins(f[None]) for b, f in zip(self.blocks, F, strict=True)])

    def adjoint(self, S: Margins) -> Vectors:
        """A_p^T S_p for every node: P x K x d."""
        return np.concatenate(
            [b.adjoint(S[low:high]) for b, (low, high) in self._each(self.offsets)]
        )

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p for every node: P x d."""
        return np.concatenate(
            [b.squared_adjoint(s[low:high]) for b, (low, high) in self._each(self.offsets)]
        )

    def gram(self, p: int, weights: Array, step: int = 1) -> Array:
        """A_p^T diag(w) A_p over every ``step``-th row of node p, for each line of weights."""
        return self.blocks[p].gram(0, weights, step)

    def _each(self, ends: NDArray[np.int64]) -> Iterator[tuple[DenseRows, tuple[int, int]]]:
        return zip(self.blocks, pairwise(ends.tolist()), strict=True)


class SparseRows:
    """All rows in block-diagonal CSR matrices, one for each worker thread: one product each a pass.

    A node's rows lie in one matrix, so that results do not depend on the number of workers. There
    is one matrix if a pass over the rows for the expected ``replicas`` is too short to be shared.
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

    def margins(self, F: Vectors) -> Margins:
        """A F: N x K."""
        out = np.empty((self.offsets[-1], F.shape[1]))

        def product(group: _Group) -> None:
            out[group.rows] = group.margins(F)

        share_out(product, self.groups, self.filled * F.shape[1] > WORTH_SHARING)
        return out

    def adjoint(self, S: Margins) -> Vectors:
        """A_p^T S_p for every node: P x K x d."""
        out = np.empty((len(self.offsets) - 1, S.shape[1], self.dimension))

        def product(group: _Group) -> None:
            out[group.nodes] = group.adjoint(S[group.rows])

        share_out(product, self.groups, self.filled * S.shape[1] > WORTH_SHARING)
        return out

    def there_and_back(
        self, F: Vectors, slopes: Callable[[Margins, slice], Margins]
    ) -> tuple[Margins, Vectors]:
        """Z = A F and A_p^T S_p in one piece of work for each worker.

        ``slopes(Z[rows], rows)`` gives S of some rows, and may change these margins in place.
        """
        Z = np.empty((self.offsets[-1], F.shape[1]))
        out = np.empty((len(self.offsets) - 1, F.shape[1], self.dimension))

        def both(group: _Group) -> None:
            Z[group.rows] = group.margins(F)
            out[group.nodes] = group.adjoint(slopes(Z[group.rows], group.rows))

        share_out(both, self.groups, self.filled * F.shape[1] > _WORTH_A_PASS)
        return Z, out

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p for every node: P x d."""
        out = np.empty((len(self.offsets) - 1, self.dimension))
        for group in self.groups:
            A = group.matrix
            squared = csr_array((np.square(A.data), A.indices, A.indptr), shape=A.shape)
            out[group.nodes] = (squared.T @ s[group.rows]).reshape(-1, self.dimension)
        return out

    def gram(self, p: int, weights: Array, step: int = 1) -> Array:
        """A_p^T diag(w) A_p by BLAS, faster than a sparse product: the result is dense."""
        group = next(group for group in self.groups if group.nodes.start <= p < group.nodes.stop)
        start, first = group.rows.start, (p - group.nodes.start) * self.dimension
        rows = group.matrix[self.offsets[p] - start : self.offsets[p + 1] - start : step]
        own = csr_array(
            (rows.data, rows.indices - first, rows.indptr), (rows.shape[0], self.dimension)
        )
        return _gram(own.toarray(), weights)


class _Group:
    """The rows of some consecutive nodes as one block-diagonal CSR matrix."""

    def __init__(
        self, parts: Sequence[csr_array], nodes: slice, offsets: NDArray[np.int64]
    ) -> None:
        self.nodes, self.rows = nodes, slice(int(offsets[nodes.start]), int(offsets[nodes.stop]))
        self.dimension = parts[0].shape[1]
        self.matrix = _block_diagonal(parts[nodes])
        self.transposed = self.matrix.T
        longest = int(np.diff(self.matrix.indptr).max(initial=0))
        short = longest <= dot_roundings(self.dimension)
        self.pieces = [self.matrix] if short else _pieces(self.matrix, self.dimension)

    def margins(self, F: Vectors) -> Margins:
        """A F of the group's rows."""
        f = F[self.nodes].transpose(0, 2, 1).reshape(-1, F.shape[1])
        Z = self.pieces[0] @ f
        for piece in self.pieces[1:]:
            Z += piece @ f
        return Z

    def adjoint(self, S: Margins) -> Vectors:
        """A_p^T S_p of the group's nodes, from its rows' part of S."""
        return (self.transposed @ S).reshape(-1, self.dimension, S.shape[1]).transpose(0, 2, 1)


def _block_diagonal(parts: Sequence[csr_array]) -> csr_array:
    """The parts along a diagonal, in the narrowest index type; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    dimension = parts[0].shape[1]
    starts = np.cumsum([0, *(part.nnz for part in parts)])
    largest = max(starts[-1], len(parts) * dimension)
    wide = np.int64 if largest > np.iinfo(np.int32).max else np.int32
    indices = np.empty(starts[-1], dtype=wide)
    for i, (part, (start, stop)) in enumerate(zip(parts, pairwise(starts), strict=True)):
        np.add(part.indices, wide(i * dimension), out=indices[start:stop], casting="unsafe")
    ends = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=False)]
    entries = np.concatenate([part.data for part in parts])
    indptr = np.concatenate([[0], *ends]).astype(wide)
    return csr_array((entries, indices, indptr), (len(indptr) - 1, len(parts) * dimension))


def _pieces(matrix: csr_array, dimension: int) -> list[csr_array]:
    """The matrix as a sum over spans of each node's columns: for long rows fewer roundings meet on
    a path from a product to the sum.
    """
    column = matrix.indices % dimension
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    pieces = []
    for span in column_spans(dimension):
        inside = (span.start <= column) & (column < span.stop)
        ends = np.concatenate([[0], np.cumsum(np.bincount(row[inside], minlength=matrix.shape[0]))])
        entries = matrix.data[inside], matrix.indices[inside], ends
        pieces.append(csr_array(entries, shape=matrix.shape))
    return pieces


def _gram(rows: Array, weights: Array) -> Array:
    """A^T diag(w) A for each line of weights."""
    scaled = rows * namespace(weights).sqrt(weights)[..., None]
    return scaled.swapaxes(-1, -2) @ scaled  # NumPy calls syrk for A^T A


StackedRows = DenseRows | SparseRows


def public_storage(storage: Storage, rows: float, dimension: int) -> Storage:
    """Choose storage by public numbers alone, where the number of rows stays secret: dense, so that
    null rows take as long as others, unless that takes more than 2 GiB.

    Parameters
    ----------
    storage
        As it was asked for; only ``auto`` is decided here.
    rows, dimension
        The declared number of rows of all nodes here, and d.
    """
    if storage != "auto":
        return storage
    return "dense" if 8 * rows * dimension <= 2**31 else "csr"


def stack_rows(blocks: Sequence[Rows], replicas: int = 1, storage: Storage = "auto") -> StackedRows:
    """All nodes' rows, dense or sparse; ``auto`` is :func:`faster_storage`."""
    if storage == "auto":
        rows, dimension = sum(block.shape[0] for block in blocks), blocks[0].shape[1]
        filled = sum(
            block.nnz if isinstance(block, csr_array) else int(np.count_nonzero(block))
            for block in blocks
        )
        storage = faster_storage(rows, dimension, filled, replicas)
    if storage not in ("dense", "csr"):
        raise DeclarationError(f"storage is {storage!r}; expected 'auto', 'dense' or 'csr'")
    if storage == "csr":
        return SparseRows(blocks, replicas)
    large = [b for b in blocks if isinstance(b, np.ndarray) and b.nbytes >= _WORTH_NO_COPY]
    return SeparateRows(large) if len(large) == len(blocks) > 1 else DenseRows(blocks)
