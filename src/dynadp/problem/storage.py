"""The signed rows of all nodes in one dense array or in sparse matrices, whichever is faster."""

from collections.abc import Iterator, Sequence
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
    faster_storage,
    namespace,
)
from dynadp.errors import DeclarationError
from dynadp.problem.sparse_rows import SparseRows

Storage = Literal["auto", "dense", "csr"]
_WORTH_NO_COPY = 1 << 23  # bytes of a node's rows, past which a product a node is as fast


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

    def some(self, p: int, step: int = 1) -> Array:
        """Every ``step``-th row of node p."""
        return self.matrix[self.offsets[p] : self.offsets[p + 1] : step]


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

    def some(self, p: int, step: int = 1) -> Array:
        """Every ``step``-th row of node p."""
        return self.blocks[p].some(0, step)

    def _each(self, ends: NDArray[np.int64]) -> Iterator[tuple[DenseRows, tuple[int, int]]]:
        return zip(self.blocks, pairwise(ends.tolist()), strict=True)


def weighed_gram(rows: Array, weights: Array) -> Array:
    """A^T diag(w) A for each line of weights, by BLAS."""
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
