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

from dynadp._arrays import Array
from dynadp.data import Block, Shard, StreamedShard
from dynadp.problem.losses import Loss
from dynadp.problem.objective import WORKERS, Problem, Storage, Terms
from dynadp.problem.regularizers import Regularizer

_GRAMS = min(WORKERS, 3)  # chunks of rows that are written down at a time


def local_problem(
    shards: Sequence[Shard | StreamedShard],
    loss: Loss,
    regularizer: Regularizer,
    C: float | Array,
    rho: float,
    *,
    replicas: int = 1,
    storage: Storage = "auto",
) -> Problem:
    """The problems of these nodes, stacked where all rows are in memory, and node after node where
    some are streamed.
    """
    held = [s.signed for s in shards if isinstance(s, Shard)]
    if len(held) == len(shards):
        return Problem(held, loss, regularizer, C, rho, replicas=replicas, storage=storage)
    parts = [
        StreamedProblem(s, loss, regularizer, each, rho)
        if isinstance(s, StreamedShard)
        else Problem([s.signed], loss, regularizer, each, rho, replicas=replicas, storage=storage)
        for s, each in zip(
            shards, np.broadcast_to(np.asarray(C, dtype=float), len(shards)), strict=True
        )
    ]
    return parts[0] if len(parts) == 1 else Apart(parts)


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


class _NotStacked(Problem):
    """A problem whose rows are not one stack in memory: only its public terms are set up."""

    def __init__(self, terms: Terms) -> None:
        Terms.__init__(
            self, terms.counts, terms.dimension, terms.loss, terms.regularizer, terms.C, terms.rho
        )

    def on_rows(self, make: Callable[[], Array]) -> Array:
        """Small public numbers: in memory, like every vector here."""
        return make()

    def at(self, F: Array) -> tuple[Array, Array]:
        """Those margins that are stored, and the gradient."""
        Z = self.margins(F)
        return Z, self.local_gradient(F, Z)


class StreamedProblem(_NotStacked):
    """The local problem of one node whose rows are streamed.

    Its margins are none: 0 x K. Whatever is a sum over rows is one pass over the file. With the
    exception of stored margins it is a :class:`~dynadp.problem.objective.Problem`, and the solver's
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
        C: float | Array,
        rho: float,
    ) -> None:
        super().__init__(
            Terms(np.array([float(rows.rows)]), rows.dimension, loss, regularizer, C, rho)
        )
        self.streamed = rows
        self._last: tuple[Array, Array] | None = None  # F and the sum over rows there

    def _blocks(self) -> Iterator[Block]:
        with one_thread_each():
            yield from self.streamed

    def margins(self, F: Array) -> Array:
        """None of them: 0 x K."""
        return np.empty((0, F.shape[1]))

    def local_gradient(self, F: Array, Z: Array | None = None) -> Array:
        """(C/B) sum_i L'(a_i.f) a_i + rho grad R(F): one pass, or none where the last one was at F."""
        if self._last is None or not np.array_equal(self._last[0], F):
            total = np.zeros(F.shape[1:])
            for block in self._blocks():
                total += block.adjoint(self.loss.slope(block.margins(F[0])))
            self._last = F.copy(), total[None] * (self.C[0] / self.counts[0])
        return self._last[1] + self.rho * self.regularizer.gradient(F)

    def along(
        self, F: Array, D: Array, Z: Array, dZ: Array, q: Array, b: Array
    ) -> Callable[[Array], Array]:
        """phi'(t) = D . grad(F + t D): a pass for each t; the gradient at the last t then costs
        none.
        """

        def slope(t: Array) -> Array:
            return np.asarray(
                np.einsum("...j,...j->...", self.gradient(F + t[..., None] * D, q, b), D)
            )

        return slope

    def local_value(self, F: Array, Z: Array | None = None) -> Array:
        """Z_p(F_p): one pass."""
        total = np.zeros(F.shape[1])
        for block in self._blocks():
            total += self.loss.value(block.margins(F[0])).sum(axis=1)
        return np.asarray(
            total * (self.C[0] / self.counts[0]) + self.rho * self.regularizer.value(F)
        )

    def hessians(self, F: Array, Z: Array, step: int = 1, majorant: bool = False) -> Array:
        """As of :class:`~dynadp.problem.objective.Problem`, over the same rows: one pass, in which
        these are written down in chunks.
        """
        chunk = step * self.streamed.blocks.chunk

        def gram(rows: Block) -> Array:
            A = rows.dense()
            A *= np.sqrt(self._curvatures(A.T @ F[0].T, majorant))
            return np.asarray(A @ A.T)

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
        total[np.diag_indices(self.dimension)] += self._ridge(F, majorant)[0]
        return total[None]

    def hessian_diagonals(self, F: Array, Z: Array, majorant: bool = False) -> Array:
        """1 x d: the diagonals of :meth:`hessians` over all rows; one pass."""
        total = np.zeros(self.dimension)
        for block in self._blocks():
            total += block.squared_adjoint(self._curvatures(block.margins(F[0]).T, majorant))
        return np.asarray(total[None] * (self.C[0] / self.counts[0]) + self._ridge(F, majorant))


class Apart(_NotStacked):
    """Problems of one node each, one after the other: some streamed, some in memory.

    Parameters
    ----------
    parts
        One a node.
    """

    def __init__(self, parts: Sequence[Problem]) -> None:
        one = parts[0]
        counts, C = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "C")
        )
        super().__init__(Terms(counts, one.dimension, one.loss, one.regularizer, C, one.rho))
        self.parts = parts
        stored = [0 if isinstance(part, StreamedProblem) else int(part.counts[0]) for part in parts]
        self._cuts = np.cumsum(stored)[
            :-1
        ]  # where a node's margins end, in a stack of those that are stored

    def margins(self, F: Array) -> Array:
        """Margins of the nodes whose rows are in memory, one below the other."""
        return np.concatenate([part.margins(F[p : p + 1]) for p, part in enumerate(self.parts)])

    def local_gradient(self, F: Array, Z: Array | None = None) -> Array:
        """Grad Z_p(F_p)."""
        Z = self.margins(F) if Z is None else Z
        return self._stacked(Z, lambda part, p, z: part.local_gradient(F[p], z))

    def along(
        self, F: Array, D: Array, Z: Array, dZ: Array, q: Array, b: Array
    ) -> Callable[[Array], Array]:
        """phi'(t) of every node."""
        ways = np.split(dZ, self._cuts)
        slopes = [
            part.along(F[p : p + 1], D[p : p + 1], z, ways[p], q[p : p + 1], b[p : p + 1])
            for p, (part, z) in enumerate(zip(self.parts, np.split(Z, self._cuts), strict=True))
        ]
        return lambda t: np.concatenate([slope(t[p : p + 1]) for p, slope in enumerate(slopes)])

    def local_value(self, F: Array, Z: Array | None = None) -> Array:
        """Z_p(F_p)."""
        Z = self.margins(F) if Z is None else Z
        return self._stacked(Z, lambda part, p, z: part.local_value(F[p], z))

    def hessians(self, F: Array, Z: Array, step: int = 1, majorant: bool = False) -> Array:
        """P x d x d."""
        return self._stacked(Z, lambda part, p, z: part.hessians(F[p], z, step, majorant))

    def hessian_diagonals(self, F: Array, Z: Array, majorant: bool = False) -> Array:
        """P x d."""
        return self._stacked(Z, lambda part, p, z: part.hessian_diagonals(F[p], z, majorant))

    def _stacked(self, Z: Array, work: Callable[[Problem, slice, Array], Array]) -> Array:
        margins = np.split(Z, self._cuts)
        return np.concatenate(
            [work(part, slice(p, p + 1), margins[p]) for p, part in enumerate(self.parts)]
        )
