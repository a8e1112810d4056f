"""The signed rows of all nodes in sparse matrices, some thousand at a time."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

from dynadp._arrays import Array, Margins, Rows, Vectors, column_spans, dot_roundings
from dynadp.problem.threads import WORKERS, WORTH_SHARING, share_out

_WORTH_A_PASS = 200_000  # as WORTH_SHARING, for a pass over the rows, which is handed over once
_MARGINS = 1 << 16  # about so many belong to a part of the rows, so that caches hold them,
_LEAST = 2048  # but it has at least so many rows,
_ABREAST = 64  # and so many replicas are worked on at a time


class SparseRows:
    """All rows in block-diagonal CSR matrices of some consecutive ones each.

    The rows of a large node are cut into parts of about the same length, whose sums are added up in
    the end. Only the numbers of rows and of expected ``replicas`` decide how, so that results do
    not depend on the number of workers. There are fewer matrices than workers if a pass over the
    rows is too short to be shared.
    """

    def __init__(self, blocks: Sequence[Rows], replicas: int = 1) -> None:
        nodes = [block if isinstance(block, csr_array) else csr_array(block) for block in blocks]
        self.dimension = nodes[0].shape[1]
        counts = [node.shape[0] for node in nodes]
        self.offsets = np.cumsum([0, *counts])
        self.filled = sum(node.nnz for node in nodes)
        length = max(_LEAST, _MARGINS // replicas)
        cuts = [np.linspace(0, n, max(1, -(-n // length)) + 1).astype(int).tolist() for n in counts]
        # the first part of each node, and the node of each part
        self._first = np.cumsum([0, *(len(cut) - 1 for cut in cuts)])
        self._node = np.repeat(np.arange(len(nodes)), np.diff(self._first))
        parts = [
            _part(a, *ends) for a, cut in zip(nodes, cuts, strict=True) for ends in pairwise(cut)
        ]
        ends = np.cumsum([0, *(part.shape[0] for part in parts)])
        workers = WORKERS if self.filled * replicas > _WORTH_A_PASS else 1
        bounds = _shares(ends, max(workers, round(ends[-1] / length)))
        self.groups = [
            _Group(parts[low:high], self._node[low:high], slice(low, high), ends)
            for low, high in pairwise(bounds)
        ]
        rows = np.array([0, *(group.rows.stop for group in self.groups)])
        self._shares = [slice(*ends) for ends in pairwise(_shares(rows, workers))]

    def margins(self, F: Vectors) -> Margins:
        """A F: N x K."""
        Z = np.empty((self.offsets[-1], F.shape[1]))

        def product(group: "_Group", some: slice) -> None:
            Z[group.rows, some] = group.margins(F[:, some])

        self._all(product, F.shape[1], WORTH_SHARING)
        return Z

    def adjoint(self, S: Margins) -> Vectors:
        """A_p^T S_p for every node: P x K x d."""
        sums = self._room(S.shape[1])

        def product(group: "_Group", some: slice) -> None:
            sums[group.parts, :, some] = group.adjoint(S[group.rows, some])

        self._all(product, S.shape[1], WORTH_SHARING)
        return self._whole(sums)

    def there_and_back(
        self, F: Vectors, slopes: Callable[[Margins, slice], Margins], keep: bool = True
    ) -> tuple[Margins, Vectors]:
        """Z = A F, or nothing (0 x K) unless it is to be kept, and A_p^T S_p, with one visit to
        each part of the rows.

        ``slopes(Z, rows)`` gives S of some rows, and may change these margins in place. Where F is
        of type float32, so is all of it.
        """
        K = F.shape[1]
        Z, sums = np.empty((self.offsets[-1] if keep else 0, K)), self._room(K, F.dtype)

        def both(group: "_Group", some: slice) -> None:
            margins = group.margins(F[:, some])
            if keep:
                Z[group.rows, some] = margins
                margins = Z[group.rows, some]
            sums[group.parts, :, some] = group.adjoint(slopes(margins, group.rows))

        self._all(both, K, _WORTH_A_PASS)
        return Z, self._whole(sums)

    def _all(self, work: "Callable[[_Group, slice], None]", replicas: int, worth: int) -> None:
        """Do the work on every group and some replicas at a time."""
        spans = [slice(low, low + _ABREAST) for low in range(0, replicas, _ABREAST)]

        @np.errstate(over="ignore", invalid="ignore")  # the caller's does not hold in a thread
        def share(groups: slice) -> None:
            for group in self.groups[groups]:
                for some in spans:
                    work(group, some)

        share_out(share, self._shares, self.filled * replicas > worth)

    def _room(self, replicas: int, dtype: Any = float) -> Array:
        """For sums over each part."""
        return np.empty((len(self._node), self.dimension, replicas), dtype)

    def _whole(self, sums: Array) -> Vectors:
        """Sums over nodes from those over parts: P x K x d."""
        if len(self._node) > len(self.offsets) - 1:
            sums = np.add.reduceat(sums, self._first[:-1], axis=0)
        return np.ascontiguousarray(sums.transpose(0, 2, 1))

    def squared_adjoint(self, s: Array) -> Array:
        """(A_p o A_p)^T s_p for every node: P x d."""
        sums = self._room(1)
        for group in self.groups:
            A = group.matrix
            squared = csr_array((np.square(A.data), A.indices, A.indptr), shape=A.shape)
            sums[group.parts] = (squared.T @ s[group.rows]).reshape(-1, self.dimension, 1)
        return self._whole(sums)[:, 0]

    def some(self, p: int, step: int = 1) -> Array:
        """Every ``step``-th row of node p, dense."""
        own = range(self._first[p], self._first[p + 1])
        held = [g for g in self.groups if g.parts.start < own.stop and own.start < g.parts.stop]
        start, rows = int(self.offsets[p]), []
        for group in held:
            for part in range(max(own.start, group.parts.start), min(own.stop, group.parts.stop)):
                rows.append(group.dense(part, start, step))
        return np.concatenate(rows)


class _Group:
    """The rows of some consecutive parts as one block-diagonal CSR matrix."""

    def __init__(
        self,
        matrices: Sequence[csr_array],
        nodes: NDArray[np.int64],
        parts: slice,
        ends: NDArray[np.int64],
    ) -> None:
        self.parts, self.nodes, self._ends = parts, nodes, ends[parts.start : parts.stop + 1]
        self.rows = slice(int(self._ends[0]), int(self._ends[-1]))
        self.dimension = matrices[0].shape[1]
        self.matrix = _block_diagonal(matrices)
        self.transposed = self.matrix.T
        longest = int(np.diff(self.matrix.indptr).max(initial=0))
        short = longest <= dot_roundings(self.dimension)
        self.pieces = [self.matrix] if short else _pieces(self.matrix, self.dimension)

    def margins(self, F: Vectors) -> Margins:
        """A F of the group's rows."""
        f = F[self.nodes].transpose(0, 2, 1).reshape(-1, F.shape[1])
        if F.dtype == np.float32:
            return self._rough[0] @ f
        Z = self.pieces[0] @ f
        for piece in self.pieces[1:]:
            Z += piece @ f
        return Z

    def adjoint(self, S: Margins) -> Array:
        """A^T S of each part, from its rows' share of S: parts x d x K."""
        transposed = self._rough[1] if S.dtype == np.float32 else self.transposed
        return (transposed @ S).reshape(-1, self.dimension, S.shape[1])

    @cached_property
    def _rough(self) -> tuple[csr_array, csc_array]:
        """The matrix in float32, and transposed."""
        A = self.matrix
        short = csr_array((A.data.astype(np.float32), A.indices, A.indptr), A.shape)
        return short, short.T

    def dense(self, part: int, start: int, step: int) -> Array:
        """A part's rows among every ``step``-th row from ``start`` on."""
        i = part - self.parts.start
        low, high = self._ends[i : i + 2].tolist()
        first, begin = i * self.dimension, self.rows.start
        rows = self.matrix[low + (start - low) % step - begin : high - begin : step]
        shape = rows.shape[0], self.dimension
        return csr_array((rows.data, rows.indices - first, rows.indptr), shape).toarray()


def _part(rows: csr_array, low: int, high: int) -> csr_array:
    """Some consecutive rows, whose entries are not copied."""
    if (low, high) == (0, rows.shape[0]):
        return rows
    ends = rows.indptr[low : high + 1]
    some = slice(int(ends[0]), int(ends[-1]))
    return csr_array(
        (rows.data[some], rows.indices[some], ends - ends[0]), (high - low, rows.shape[1])
    )


def _shares(ends: NDArray[np.int64], count: int) -> list[int]:
    """Where to cut a sequence of things into at most so many shares of about the same number of
    rows; ``ends`` are the rows before each thing, and all of them.
    """
    middles = (ends[1:] + ends[:-1]) / 2
    wanted = ends[-1] * np.arange(1, count) / count
    cuts = np.searchsorted(middles, wanted)
    return np.unique([0, *cuts, len(middles)]).tolist()


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
