"""The one local problem that every variant minimises (maths.md 2), for all nodes and replicas at
once.

    min_f  (C/B_p) sum_i L(a_i . f) + rho R(f) + (q/2) ||f||^2 + b.f,        a_i = y_i x_i

Algorithm 1, dual and primal perturbation differ only in q and b. Arrays have the axes node,
replica, coordinate: ``F`` is P x K x d, ``q`` P x 1 or P x K, ``b`` P x K x d; margins are N x K
with the rows of all nodes one below the other.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from dynadp._arrays import Array, Margins, Numbers, PerNode, Rows, Vectors, dot, namespace
from dynadp.problem.losses import Loss
from dynadp.problem.regularizers import Regularizer
from dynadp.problem.rounding import Roundings
from dynadp.problem.storage import SparseRows, Storage, stack_rows
from dynadp.problem.terms import Terms
from dynadp.problem.threads import WORTH_SHARING, share_out, spans


class Problem(Protocol):
    """The local problems of P nodes, as the solver sees them: public terms, sums over rows.

    Implementations inherit :class:`Terms` and this protocol. ``Z`` stands for :meth:`margins` at F,
    as far as an implementation stores margins; None: they are computed.
    """

    counts: PerNode
    dimension: int
    loss: Loss
    regularizer: Regularizer
    C: PerNode
    rho: float
    roundings: Roundings

    def __len__(self) -> int: ...

    def margins(self, F: Vectors) -> Margins:
        """z_i = a_i.f of every row: N x K."""

    def data_gradient(self, F: Vectors, Z: Margins | None = None) -> Vectors:
        """(C/B_p) sum_i L'(z_i) a_i."""

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p), the local objective without q and b."""

    def hessians(self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False) -> Array:
        """P x d x d: (C/B_p) sum_i L''(z_i) a_i a_i^T + rho diag R''(F), means over replicas and
        over every ``step``-th row.

        With ``majorant``, c1 stands for every L'' and sup R'' for R'': a matrix that the Hessian
        does not exceed anywhere.
        """

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """P x d: the diagonals of :meth:`hessians`."""

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t), P x K, for the objective phi(t) at F + t D; dZ are the margins of D."""

    def local_gradient(self, F: Vectors, Z: Margins | None = None) -> Vectors:
        """Grad Z_p(F_p) = (C/B_p) sum_i L'(z_i) a_i + rho grad R(F)."""
        return self.data_gradient(F, Z) + self.rho * self.regularizer.gradient(F)

    def at(self, F: Vectors) -> tuple[Margins, Vectors]:
        """Margins and :meth:`local_gradient` at F."""
        Z = self.margins(F)
        return Z, self.local_gradient(F, Z)

    def gradient(self, F: Vectors, q: Numbers, b: Vectors) -> Vectors:
        """Grad Z_p(F_p) + q F + b."""
        return self.local_gradient(F) + q[..., None] * F + b


class StackedProblem(Terms, Problem):
    """The local problems of P nodes whose rows are in memory or on a GPU, in one stack.

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
        C: float | PerNode,
        rho: float,
        *,
        replicas: int = 1,
        storage: Storage = "auto",
    ) -> None:
        counts = np.array([float(block.shape[0]) for block in blocks])
        super().__init__(counts, int(blocks[0].shape[1]), loss, regularizer, C, rho)
        self.rows = stack_rows(blocks, replicas, storage)
        weights = np.repeat(self.C / self.counts, np.diff(self.rows.offsets))[:, None]
        self.row_weight = self.rows.to_device(weights)  # C/B_p for every row
        self.roundings = Roundings(*map(self.rows.to_device, self.roundings))

    def margins(self, F: Vectors) -> Margins:
        """z_i = a_i.f of every row."""
        return self.rows.margins(F)

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t); margins on the line are Z + t dZ, so no pass over the rows is needed."""

        def slope(t: Numbers) -> Numbers:
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

    def _sums(self, values: Margins) -> Numbers:
        """Sums of N x K values over each node's rows."""
        if isinstance(values, np.ndarray):
            return np.asarray(np.add.reduceat(values, self.rows.offsets[:-1]))
        return namespace(values).stack(
            [values[low:high].sum(axis=0) for low, high in pairwise(self.rows.offsets)]
        )

    def data_gradient(self, F: Vectors, Z: Margins | None = None) -> Vectors:
        """(C/B_p) sum_i L'(z_i) a_i."""
        Z = self.margins(F) if Z is None else Z
        if not isinstance(Z, np.ndarray) or Z.size <= WORTH_SHARING:
            return self.rows.adjoint(self.loss.slope(Z) * self.row_weight)
        slopes = np.empty_like(Z)

        def fill(rows: slice) -> None:
            np.multiply(self.loss.slope(Z[rows]), self.row_weight[rows], out=slopes[rows])

        share_out(fill, spans(len(Z)), threads=True)
        return self.rows.adjoint(slopes)

    def at(self, F: Vectors) -> tuple[Margins, Vectors]:
        """Margins and gradient; a worker that has margins of sparse rows goes on with them."""
        if not (isinstance(self.rows, SparseRows) and len(self.rows.groups) > 1):
            return super().at(F)
        Z, data = self.rows.there_and_back(
            F, lambda z, rows: self.loss.slope(z) * self.row_weight[rows]
        )
        return Z, data + self.rho * self.regularizer.gradient(F)

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p)."""
        losses = self.loss.value(self.margins(F) if Z is None else Z) * self.row_weight
        return self._sums(losses) + self.rho * self.regularizer.value(F)

    def hessians(self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False) -> Array:
        """As of :class:`Problem`."""
        xp = namespace(F)
        out: Array = xp.empty((len(self), self.dimension, self.dimension))
        ridge = self.ridge(F, majorant)
        diagonal = xp.arange(self.dimension)

        def fill(nodes: slice) -> None:
            for p in range(nodes.start, nodes.stop):
                own = Z[self.rows.offsets[p] : self.rows.offsets[p + 1] : step]
                weights = self.curvatures(own, majorant) * (self.C[p] / len(own))
                out[p] = self.rows.gram(p, weights, step)
                out[p, diagonal, diagonal] += ridge[p]

        products = len(Z) // step * self.dimension**2
        share_out(fill, spans(len(self)), isinstance(F, np.ndarray) and products > WORTH_SHARING)
        return out

    def chunk_hessians(self, F: Vectors, Z: Margins, chunks: int) -> Array:
        """chunks x P x d x d: :meth:`hessians` of each of so many equal chunks of consecutive
        replicas.
        """
        xp, size = namespace(F), F.shape[1] // chunks
        out: Array = xp.empty((chunks, len(self), self.dimension, self.dimension))
        for p, (low, high) in enumerate(pairwise(self.rows.offsets)):
            curvature = self.loss.curvature(Z[low:high]).reshape(high - low, chunks, size)
            weights = curvature.mean(axis=2).T * (self.C[p] / self.counts[p])
            out[:, p] = self.rows.gram(p, weights)
        diagonal = xp.arange(self.dimension)
        ridge = self.regularizer.curvature(F).reshape(len(self), chunks, size, -1).mean(axis=2)
        out[..., diagonal, diagonal] += self.rho * ridge.transpose(1, 0, 2)
        return out

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """As of :class:`Problem`."""
        weights = self.curvatures(Z, majorant) * self.row_weight[:, 0]
        return self.rows.squared_adjoint(weights) + self.ridge(F, majorant)
