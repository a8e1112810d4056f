"""The one local problem that every variant minimises (maths.md 2), for all nodes and replicas at
once.

    min_f  (C/B_p) sum_i L(a_i . f) + rho R(f) + (q/2) ||f||^2 + b.f,        a_i = y_i x_i

or, for targets, (C/B_p) sum_i L(a_i . f - t_i) with a_i = x_i: *margins* z_i are residuals then.
Algorithm 1, dual and primal perturbation differ only in q and b. Arrays have the axes node,
replica, coordinate: ``F`` is P x K x d, ``q`` P x 1 or P x K, ``b`` P x K x d; margins are N x K
with the rows of all nodes one below the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dynadp._arrays import Array, Margins, Numbers, PerNode, Rows, Vectors, dot, namespace, on
from dynadp.problem.labels import EVEN, ClassWeights, row_weights
from dynadp.problem.losses import Loss
from dynadp.problem.regularizers import Regularizer
from dynadp.problem.rounding import Roundings
from dynadp.problem.sparse_rows import SparseRows
from dynadp.problem.storage import DenseRows, Storage, stack_rows, weighed_gram
from dynadp.problem.terms import Terms
from dynadp.problem.threads import WORTH_SHARING, share_out, spans

_FEW_MARGINS = 1 << 18  # so many are stored at no cost


class Problem(Terms, ABC):
    """The local problems of P nodes, as the solver sees them: public terms, sums over rows.

    ``Z`` stands for :meth:`margins` at F, or for none of them (0 x K) where they are not stored.
    """

    @abstractmethod
    def margins(self, F: Vectors) -> Margins:
        """z_i = a_i.f, or a_i.f - t_i, of every row: N x K."""

    @abstractmethod
    def products(self, F: Vectors) -> Margins:
        """a_i.f of every row, whatever its target: N x K."""

    @abstractmethod
    def data_gradient(self, F: Vectors) -> tuple[Margins, Vectors]:
        """Margins at F, and (C/B_p) sum_i L'(z_i) a_i."""

    @abstractmethod
    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p), the local objective without q and b; without Z, margins are computed."""

    @abstractmethod
    def hessians(
        self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False, chunks: int = 1
    ) -> Array:
        """chunks x P x d x d: (C/B_p) sum_i L''(z_i) a_i a_i^T + rho diag R''(F), means over the
        replicas of each of so many equal chunks and over every ``step``-th row.

        With ``majorant``, c1 stands for every L'' and sup R'' for R'': a matrix that the Hessian
        does not exceed anywhere.
        """

    @abstractmethod
    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """P x d: the diagonals of :meth:`hessians`."""

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t), P x K, for the objective phi(t) at F + t D; dZ are the products of D."""
        return lambda t: dot(self.gradient(F + t[..., None] * D, q, b), D)

    def at(self, F: Vectors) -> tuple[Margins, Vectors]:
        """Margins at F, and grad Z_p(F_p) = (C/B_p) sum_i L'(z_i) a_i + rho grad R(F)."""
        Z, data = self.data_gradient(F)
        return Z, data + self.rho * self.regularizer.gradient(F)

    def rough(self, F: Vectors) -> Vectors | None:
        """Grad Z_p(F_p) to some seven digits, which certifies nothing; None where that saves
        nothing or margins are stored.
        """
        return None

    def local_gradient(self, F: Vectors) -> Vectors:
        """Grad Z_p(F_p)."""
        return self.at(F)[1]

    def gradient(self, F: Vectors, q: Numbers, b: Vectors) -> Vectors:
        """Grad Z_p(F_p) + q F + b."""
        return self.local_gradient(F) + q[..., None] * F + b


class StackedProblem(Problem):
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
    labels, class_weights
        y of each row of each node, and ``(w_-, w_+)``: what rows of either label weigh, at most 1.
    targets
        t_i of each node's rows, for a loss of residuals.
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
        labels: Sequence[Array] | None = None,
        class_weights: ClassWeights = EVEN,
        targets: Sequence[Array] | None = None,
    ) -> None:
        counts = np.array([float(block.shape[0]) for block in blocks])
        super().__init__(counts, int(blocks[0].shape[1]), loss, regularizer, C, rho)
        self.rows = stack_rows(blocks, replicas, storage)
        weights = np.repeat(self.C / self.counts, np.diff(self.rows.offsets))[:, None]
        like = self.rows.matrix if isinstance(self.rows, DenseRows) else weights
        self.by_class: Array | None = None
        if class_weights != EVEN:
            assert labels is not None
            by_class = row_weights(np.concatenate(labels), class_weights)
            self.by_class, weights = on(by_class, like), weights * by_class[:, None]
            self.roundings = self.roundings_for(1)
        self.row_weight = on(weights, like)  # C/B_p, or w_y C/B_p, for every row
        self._node_weight = on((self.C / self.counts)[:, None, None], like)
        self.roundings = Roundings(*(on(bound, like) for bound in self.roundings))
        self.targets = None if targets is None else on(np.concatenate(targets)[:, None], like)
        # where they are many, margins are made again the few times that they are needed
        few = replicas == 1 or replicas * self.rows.offsets[-1] <= _FEW_MARGINS
        self.stores_margins = few or not isinstance(like, np.ndarray)

    def margins(self, F: Vectors) -> Margins:
        """z_i = a_i.f, or a_i.f - t_i, of every row."""
        return self._less_targets(self.rows.margins(F), slice(None))

    def products(self, F: Vectors) -> Margins:
        """a_i.f of every row."""
        return self.rows.margins(F)

    def _stored(self, F: Vectors, Z: Margins | None) -> Margins:
        """Margins at F: Z, if they were stored."""
        return self.margins(F) if Z is None or len(Z) < self.rows.offsets[-1] else Z

    def _less_targets(self, Z: Margins, rows: slice) -> Margins:
        """Subtract the targets of some rows, if there are any, in place."""
        if self.targets is not None:
            Z -= self.targets[rows]
        return Z

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t); margins on the line are Z + t dZ, so no pass over the rows is needed."""
        Z = self._stored(F, Z)

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

    def data_gradient(self, F: Vectors) -> tuple[Margins, Vectors]:
        """As of :class:`Problem`; margins of a part of sparse rows are used while caches hold
        them.
        """
        if isinstance(self.rows, SparseRows):
            Z, sums = self.rows.there_and_back(
                F,
                lambda Z, rows: self._slopes(self._less_targets(Z, rows), rows),
                self.stores_margins,
            )
            return Z, sums * self._node_weight
        Z = self.margins(F)
        if not isinstance(Z, np.ndarray) or Z.size <= WORTH_SHARING:
            slopes = self._slopes(Z, slice(None))
        else:
            slopes = np.empty_like(Z)

            def fill(rows: slice) -> None:
                slopes[rows] = self._slopes(Z[rows], rows)

            share_out(fill, spans(len(Z)), threads=True)
        sums = self.rows.adjoint(slopes) * self._node_weight
        return Z if self.stores_margins else Z[:0], sums

    def rough(self, F: Vectors) -> Vectors | None:
        """As of :class:`Problem`: in float32, for many replicas of sparse rows."""
        if self.stores_margins or not isinstance(self.rows, SparseRows):
            return None

        def slopes(Z: Margins, rows: slice) -> Margins:
            return self._slopes(self._less_targets(Z, rows), rows).astype(np.float32, copy=False)

        _, sums = self.rows.there_and_back(F.astype(np.float32), slopes, keep=False)
        return sums * self._node_weight + self.rho * self.regularizer.gradient(F)

    def _slopes(self, Z: Margins, rows: slice) -> Margins:
        """L'(z) of some rows, each with its class's weight."""
        slopes = self.loss.slope(Z)
        return slopes if self.by_class is None else slopes * self.by_class[rows, None]

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """Z_p(F_p)."""
        losses = self.loss.value(self._stored(F, Z)) * self.row_weight
        return self._sums(losses) + self.rho * self.regularizer.value(F)

    def hessians(
        self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False, chunks: int = 1
    ) -> Array:
        """As of :class:`Problem`."""
        xp, stored = namespace(F), len(Z) == self.rows.offsets[-1]
        out: Array = xp.empty((chunks, len(self), self.dimension, self.dimension))
        ridge = self.ridge(F, majorant, chunks)
        diagonal = xp.arange(self.dimension)

        def fill(nodes: slice) -> None:
            for p in range(nodes.start, nodes.stop):
                own = slice(self.rows.offsets[p], self.rows.offsets[p + 1], step)
                rows = self.rows.some(p, step)
                margins = Z[own] if stored else self._less_targets(rows @ F[p].T, own)
                weights = self.curvatures(margins, majorant, chunks) * (self.C[p] / len(rows))
                if self.by_class is not None:
                    weights = weights * self.by_class[own]
                out[:, p] = weighed_gram(rows, weights)
                out[:, p, diagonal, diagonal] += ridge[:, p]

        products = self.rows.offsets[-1] // step * self.dimension**2
        share_out(fill, spans(len(self)), isinstance(F, np.ndarray) and products > WORTH_SHARING)
        return out

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """As of :class:`Problem`."""
        weights = self.curvatures(self._stored(F, Z), majorant)[0] * self.row_weight[:, 0]
        return self.rows.squared_adjoint(weights) + self.ridge(F, majorant)[0]
