"""Shards larger than memory (maths.md 6): every pass of the solver streams the node's Parquet file,
and no margin is kept.

A step of the solver is one pass at the point it moves to; the sum over rows at the last point is
remembered, so that the next round, which begins there, needs none of its own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dynadp._arrays import Array, Margins, Numbers, PerNode, Vectors
from dynadp.data import Block, Shard, StoredBlock, StreamedShard, require_signs
from dynadp.problem.answers import answers_of
from dynadp.problem.labels import EVEN, ClassWeights, row_weights
from dynadp.problem.losses import Loss
from dynadp.problem.objective import Problem, StackedProblem
from dynadp.problem.regularizers import Regularizer
from dynadp.problem.storage import Storage
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
    class_weights: ClassWeights = EVEN,
) -> "StackedProblem | StreamedProblem":
    """The problems of these nodes: stacked if all rows are in memory, else node after node."""
    if loss.kind == "classes":
        require_signs(shards, "algorithm 'admm'")
    targets = answers_of(shards, loss)
    held = [s for s in shards if isinstance(s, Shard)]
    if len(held) < len(shards):
        return StreamedProblem(shards, loss, regularizer, C, rho, class_weights)
    return StackedProblem(
        [s.signed for s in held],
        loss,
        regularizer,
        C,
        rho,
        replicas=replicas,
        storage=storage,
        labels=[s.y for s in held] if targets is None else None,
        class_weights=class_weights,
        targets=targets,
    )


def one_thread_each() -> AbstractContextManager[Any]:
    """Let products run in one thread while others decode the file: threads of both kinds that wait
    for each other cost far more.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # it comes with the extra ``stream``, and saves time alone
        return nullcontext()
    return threadpool_limits(limits=1, user_api="blas")


def blocks(shard: Shard | StreamedShard) -> Iterator[Block]:
    """A node's rows in blocks; rows in memory are one."""
    if isinstance(shard, Shard):
        signs = shard.y if shard.answers is None else None
        yield StoredBlock(shard.signed, shard.answers, signs)
    else:
        with one_thread_each():
            yield from shard


def chunks(shard: Shard | StreamedShard, size: int | None = None, step: int = 1) -> Iterator[Block]:
    """Every ``step``-th row of a node, so many at a time that they can be written down."""
    size = size or (8192 if isinstance(shard, Shard) else shard.blocks.chunk)
    seen = 0
    for block in blocks(shard):
        for low in range(-seen % step, block.rows, step * size):
            yield block.some(slice(low, low + step * size, step))
        seen += block.rows


def _margins(rows: Block, f: Array) -> Array:
    """z_i = a_i.f, or a_i.f - t_i, of a block: K x n."""
    Z = rows.margins(f)
    if rows.answers is not None:
        Z -= rows.answers
    return Z


class StreamedProblem(Problem):
    """The local problems of nodes whose rows are streamed; rows in memory are one block each.

    It stores no margins (0 x K); every sum over rows is one pass over the files. The solver's
    certificate holds for it unchanged (:mod:`dynadp.data.row_blocks`).

    Parameters
    ----------
    shards
        The nodes' rows.
    loss, regularizer, C, rho
        As for :class:`~dynadp.problem.terms.Terms`.
    class_weights
        As of :class:`~dynadp.problem.objective.StackedProblem`.
    """

    def __init__(
        self,
        shards: Sequence[Shard | StreamedShard],
        loss: Loss,
        regularizer: Regularizer,
        C: float | PerNode,
        rho: float,
        class_weights: ClassWeights = EVEN,
    ) -> None:
        counts = np.array([float(shard.rows) for shard in shards])
        super().__init__(counts, shards[0].dimension, loss, regularizer, C, rho)
        self.shards, self.class_weights = shards, class_weights
        if class_weights != EVEN:
            self.roundings = self.roundings_for(1)
        self._chunk = min(s.blocks.chunk for s in shards if isinstance(s, StreamedShard))
        # of each node: the last point, and the sum over rows there
        self._last = [(np.empty(0), np.empty(0))] * len(shards)

    def _sums(self, F: Vectors, work: Callable[[Block, Array], Array]) -> Array:
        """Sums of work(block, f_p) over each node's blocks: one pass."""
        return np.stack(
            [sum(work(rows, f) for rows in blocks(self.shards[p])) for p, f in enumerate(F)]
        )

    def _weighed(self, values: Array, rows: Block) -> Array:
        """Values of rows, which are the last axis, times w_y."""
        if self.class_weights == EVEN:
            return values
        return values * row_weights(rows.signs, self.class_weights)

    def margins(self, F: Vectors) -> Margins:
        """None are stored: 0 x K."""
        return np.empty((0, F.shape[1]))

    def products(self, F: Vectors) -> Margins:
        """None are stored: 0 x K."""
        return self.margins(F)

    def data_gradient(self, F: Vectors) -> tuple[Margins, Vectors]:
        """As of :class:`Problem`: one pass, or none at a node whose last one was at the point."""
        for p, f in enumerate(F):
            if not np.array_equal(self._last[p][0], f):
                total = np.zeros(f.shape)
                for rows in blocks(self.shards[p]):
                    total += rows.adjoint(self._weighed(self.loss.slope(_margins(rows, f)), rows))
                self._last[p] = f.copy(), total
        sums = np.stack([total for _, total in self._last])
        return self.margins(F), sums * (self.C / self.counts)[:, None, None]

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p): one pass."""

        def value(rows: Block, f: Array) -> Array:
            return np.asarray(self._weighed(self.loss.value(_margins(rows, f)), rows).sum(axis=1))

        losses = self._sums(F, value)
        return losses * (self.C / self.counts)[:, None] + self.rho * self.regularizer.value(F)

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """P x d: the diagonals of :meth:`hessians` over all rows; one pass."""

        def squares(rows: Block, f: Array) -> Array:
            curvatures = self.curvatures(_margins(rows, f).T, majorant)[0]
            return rows.squared_adjoint(self._weighed(curvatures, rows))

        weight = (self.C / self.counts)[:, None]
        return self._sums(F, squares) * weight + self.ridge(F, majorant)[0]

    def hessians(
        self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False, chunks: int = 1
    ) -> Array:
        """As of :class:`Problem`, for all replicas together: one pass."""
        H = np.stack([self._hessian(p, f, step, majorant) for p, f in enumerate(F)])[None]
        diagonal = np.arange(self.dimension)
        H[..., diagonal, diagonal] += self.ridge(F, majorant)
        return H

    def _hessian(self, p: int, f: Array, step: int, majorant: bool) -> Array:
        """(C/B_p) sum_i L''(z_i) a_i a_i^T, in chunks of dense rows."""

        def gram(rows: Block) -> Array:
            A = rows.dense()
            Z = A.T @ f.T
            if rows.answers is not None:
                Z -= rows.answers[:, None]
            A *= np.sqrt(self._weighed(self.curvatures(Z, majorant), rows))
            return A @ A.T

        total, used, busy = np.zeros((self.dimension, self.dimension)), 0, deque[Future[Array]]()
        with ThreadPoolExecutor(_GRAMS, thread_name_prefix="dynadp") as workers:
            for rows in chunks(self.shards[p], self._chunk, step):
                used += rows.rows
                busy.append(workers.submit(gram, rows))
                if len(busy) > _GRAMS:
                    total += busy.popleft().result()
            for last in busy:
                total += last.result()
        return total * (self.C[p] / used)
