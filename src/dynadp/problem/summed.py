"""The pooled problem F = sum_p Z_p as the solver sees it: one problem, made of sums over nodes."""

from collections.abc import Callable

import numpy as np

from dynadp._arrays import Array, Margins, Numbers, Vectors
from dynadp.problem.objective import Problem


class SummedProblem(Problem):
    """F(f) = sum_p Z_p(f), from what each node can send: its gradient, its Hessian or the diagonal
    of it, its value, and its slope along a line.

    Margins stay with the nodes. With C = sum C_p and rho = P rho_p it has the shape of a local
    problem, so the solver's bounds hold for it.

    Parameters
    ----------
    parts
        The nodes' problems.
    heard
        Called with every common point, 1 x K x d, and each node's gradient over its rows there,
        P x K x d.
    """

    def __init__(
        self,
        parts: Problem,
        heard: Callable[[Vectors, Vectors], None] = lambda F, gradients: None,
    ) -> None:
        P, terms = len(parts), (parts.dimension, parts.loss, parts.regularizer)
        super().__init__(parts.counts.sum(keepdims=True), *terms, parts.C.sum(), P * parts.rho)
        self.parts, self.heard = parts, heard
        # each term meets one addition more for each node, and the weight of its label
        self.roundings = self.roundings_for(P + 1)

    def margins(self, F: Vectors) -> Margins:
        """As of :class:`Problem`."""
        return self.parts.margins(self._everywhere(F))

    def products(self, F: Vectors) -> Margins:
        """As of :class:`Problem`."""
        return self.parts.products(self._everywhere(F))

    def data_gradient(self, F: Vectors) -> tuple[Margins, Vectors]:
        """As of :class:`Problem`: d numbers from each node."""
        Z, gradients = self.parts.data_gradient(self._everywhere(F))
        self.heard(F, gradients)
        return Z, gradients.sum(axis=0, keepdims=True)

    def local_value(self, F: Vectors, Z: Margins | None = None) -> Numbers:
        """F: one number from each node."""
        return np.asarray(self.parts.local_value(self._everywhere(F), Z).sum(axis=0, keepdims=True))

    def hessians(
        self, F: Vectors, Z: Margins, step: int = 1, majorant: bool = False, chunks: int = 1
    ) -> Array:
        """As of :class:`Problem`: d (d + 1)/2 numbers from each node."""
        each = self.parts.hessians(self._everywhere(F), Z, step, majorant, chunks)
        return np.asarray(each.sum(axis=1, keepdims=True))

    def hessian_diagonals(self, F: Vectors, Z: Margins, majorant: bool = False) -> Array:
        """The diagonals: d numbers from each node."""
        each = self.parts.hessian_diagonals(self._everywhere(F), Z, majorant)
        return np.asarray(each.sum(axis=0, keepdims=True))

    def along(
        self, F: Vectors, D: Vectors, Z: Margins, dZ: Margins, q: Numbers, b: Vectors
    ) -> Callable[[Numbers], Numbers]:
        """phi'(t): one number from each node."""
        shares = (
            np.broadcast_to(v / len(self.parts), (len(self.parts), *v.shape[1:])) for v in (q, b)
        )
        slopes = self.parts.along(self._everywhere(F), self._everywhere(D), Z, dZ, *shares)

        def slope(t: Numbers) -> Numbers:
            return np.asarray(slopes(self._everywhere(t)).sum(axis=0, keepdims=True))

        return slope

    def _everywhere(self, F: Vectors) -> Vectors:
        return np.broadcast_to(F, (len(self.parts), *F.shape[1:]))
