"""Shards larger than memory (maths.md 6): every pass of the solver streams the node's Parquet file,
and no margin is kept.

A step of the solver is one pass at the point it moves to; the sum over rows at the last point is
remembered, so that the next round, which begins there, needs none of its own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from dynadp._arrays import Array, Margins, Numbers, PerNode, Vectors
from dynadp.data import Block, Shard, StreamedShard
from dynadp.problem.losses import Loss
from dynadp.problem.objective import Problem, StackedProblem
from dynadp.problem.regularizers import Regularizer
from dynadp.problem.storage import Storage
from dynadp.problem.terms import Terms
from dynadp.problem.threads import WORKERS

_GRAMS = min(WORKERS, 3)  # chunks of rows that are written down at a time


def local_problem(
    shards: Sequence[Shard | StreamedShard],
    loss: Loss,
    regularizer: Regularizer,
    C: float | PerNode,
    rho: float,
    *,
    replicas: int = 1,
    storage: Storage = "auto",
) -> "StackedProblem | StreamedProblem | MixedProblem":
    """The problems of these nodes: stacked if all rows are in memory, else node after node."""
    held = [s.signed for s in shards if isinstance(s, Shard)]
    if len(held) == len(shards):
        return StackedProblem(held, loss, regularizer, C, rho, replicas=replicas, storage=storage)
    weights = np.broadcast_to(np.asarray(C, dtype=float), len(shards))
    parts = [
        StreamedProblem(s, loss, regularizer, each, rho)
        if isinstance(s, StreamedShard)
        else StackedProblem(
            [s.signed], loss, regularizer, each, rho, replicas=replicas, storage=storage
        )
        for s, each in zip(shards, weights, strict=True)
    ]
    return parts[0] if len(parts) == 1 else MixedProblem(parts)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Products in one thread while others decode the file: threads of both kinds that wait for each
    other cost far more.
    """
    pools = _pools()
    with pools.limit(limits=1, user_api="blas") if pools else nullcontext():
        yield


@cache
def _pools() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # it comes with the extra ``stream``, and saves time alone
        return None
    return ThreadpoolController()


class StreamedProblem(Terms, Problem):
    """The local problem of one node whose rows are streamed.

    It stores no margins (0 x K); every sum over rows is one pass over the file. The solver's
    certificate holds for it unchanged (:mod:`dynadp.data.row_blocks`).

    Parameters
    ----------
    rows
        The node's rows.
    loss, regularizer, C, rho
        As for :class:`~dynadp.problem.objective.Problem`.
    """

    def __init__(
        self,
        rows: StreamedShard,
        loss: Loss,
        regularizer: Regularizer,
        C: float | PerNode,
        rho: float,
    ) -> None:
        counts = np.array([float(rows.rows)])
        super().__init__(counts, rows.dimension, loss, regularizer, C, rho)
        self.streamed = rows
        self._last: tuple[Array, Array] | None = None  # F and the sum over rows there

    def _blocks(self) -> Iterator[Block]:
        with one_thread_each():
            yield from self.streamed

    def margins(self, F: Vectors) -> Margins:
        """None are stored: 0 x K."""
        return np.empty((0, F.shape[1]))

    def data_gradient(self, F: Vectors, Z: Margins | None = None) -> Vectors:
        """(C/B) sum_i L'(a_i.f) a_i: one pass, or none if the last one was at F."""
        if self._last is None or not np.array_equal(self._last[0], F):
            total = np.zeros(F.shape[1:])
            for block in self._blocks():
                total += block.adjoint(self.loss.slope(block.margins(F[0])))
            self._last = F.copy(), total[None] * (self.C[0] / self.counts[0])
        return self._last[1]

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t) = D . grad(F + t D): a pass for each t; the gradient at the last t costs none."""

        def slope(t: Numbers) -> Numbers:
            there = self.gradient(F + t[..., None] * D, q, b)
            return np.einsum("...j,...j->...", there, D)

        return slope

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p): one pass."""
        total = np.zeros(F.shape[1])
        for block in self._blocks():
            total += self.loss.value(block.margins(F[0])).sum(axis=1)
        return total * (self.C[0] / self.counts[0]) + self.rho * self.regularizer.value(F)

    def hessians(self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False) -> Array:
        """As of :class:`~dynadp.problem.objective.Problem`: one pass, in chunks of dense rows."""
        chunk = step * self.streamed.blocks.chunk

        def gram(rows: Block) -> Array:
            A = rows.dense()
            A *= np.sqrt(self.curvatures(A.T @ F[0].T, majorant))
            return A @ A.T

        def chunks() -> Iterator[Block]:
            seen = 0
            for block in self._blocks():
                for low in range(-seen % step, block.rows, chunk):
                    yield block.some(slice(low, low + chunk, step))
                seen += block.rows

        total, used, busy = np.zeros((self.dimension, self.dimension)), 0, deque[Future[Array]]()
        with ThreadPoolExecutor(_GRAMS, thread_name_prefix="dynadp") as workers:
            for rows in chunks():
                used += rows.rows
                busy.append(workers.submit(gram, rows))
                if len(busy) > _GRAMS:
                    total += busy.popleft().result()
            for last in busy:
                total += last.result()
        total *= self.C[0] / used
        total[np.diag_indices(self.dimension)] += self.ridge(F, majorant)[0]
        return total[None]

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """1 x d: the diagonals of :meth:`hessians` over all rows; one pass."""
        total = np.zeros(self.dimension)
        for block in self._blocks():
            total += block.squared_adjoint(self.curvatures(block.margins(F[0]).T, majorant))
        return total[None] * (self.C[0] / self.counts[0]) + self.ridge(F, majorant)


class MixedProblem(Terms, Problem):
    """Problems of one node each, one after the other: some streamed, some in memory.

    Its margins are those of the nodes whose rows are in memory, one below the other.

    Parameters
    ----------
    parts
        One for each node.
    """

    def __init__(self, parts: Sequence[StackedProblem | StreamedProblem]) -> None:
        one = parts[0]
        counts = np.concatenate([part.counts for part in parts])
        C = np.concatenate([part.C for part in parts])
        super().__init__(counts, one.dimension, one.loss, one.regularizer, C, one.rho)
        self.parts = parts
        stored = [0 if isinstance(part, StreamedProblem) else int(part.counts[0]) for part in parts]
        self._cuts = np.cumsum(stored)[:-1]  # where a node's stored margins end

    def margins(self, F: Vectors) -> Margins:
        """Margins of the nodes whose rows are in memory."""
        return np.concatenate([part.margins(F[p]) for p, part in self._nodes()])

    def data_gradient(self, F: Vectors, Z: Margins | None = None) -> Vectors:
        """(C/B_p) sum_i L'(z_i) a_i."""
        return self._each(F, Z, lambda part, f, z: part.data_gradient(f, z))

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p)."""
        return self._each(F, Z, lambda part, f, z: part.local_value(f, z))

    def hessians(self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False) -> Array:
        """P x d x d."""
        return self._each(F, Z, lambda part, f, z: part.hessians(f, z, step, majorant))

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """P x d."""
        return self._each(F, Z, lambda part, f, z: part.hessian_diagonals(f, z, majorant))

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t) of every node."""
        stored, ways = np.split(Z, self._cuts), np.split(dZ, self._cuts)
        slopes = [
            part.along(F[p], D[p], stored[p.start], ways[p.start], q[p], b[p])
            for p, part in self._nodes()
        ]
        return lambda t: np.concatenate([slope(t[p : p + 1]) for p, slope in enumerate(slopes)])

    def _nodes(self) -> Iterator[tuple[slice, Problem]]:
        return ((slice(p, p + 1), part) for p, part in enumerate(self.parts))

    def _each(
        self, F: Vectors, Z: Margins | None, work: Callable[[Problem, Vectors, Margins], Array]
    ) -> Array:
        margins = np.split(self.margins(F) if Z is None else Z, self._cuts)
        return np.concatenate([work(part, F[p], margins[p.start]) for p, part in self._nodes()])
