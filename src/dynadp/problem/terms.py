"""The public constants of all nodes' local problems."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array, Margins, PerNode, Vectors, namespace
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Loss
from dynadp.problem.regularizers import Regularizer
from dynadp.problem.rounding import Roundings

Weights = Literal["rows", "equal"]


def shares(C: float, counts: ArrayLike, weights: Weights = "rows") -> PerNode:
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
    """Everything public about the local problems of P nodes: all but the rows.

    Parameters
    ----------
    counts
        B_p of each node.
    dimension
        d.
    loss, regularizer
        L and R.
    C
        The paper's C^R, the weight of all rows of a node together: one number, or one for each
        node (:func:`shares`). Kept as an array with one for each.
    rho
        The paper's rho.
    """

    def __init__(
        self,
        counts: PerNode,
        dimension: int,
        loss: Loss,
        regularizer: Regularizer,
        C: float | PerNode,
        rho: float,
    ) -> None:
        self.counts, self.dimension = counts, dimension
        self.loss, self.regularizer = loss, regularizer
        self.C: PerNode = np.broadcast_to(np.asarray(C, dtype=float), np.shape(counts))
        self.rho = float(rho)
        self.roundings = Roundings.of(counts, dimension, self.C, loss.c1, loss.residual)

    def roundings_for(self, more: int) -> Roundings:
        """Errors of sums whose terms meet so many roundings more."""
        constants = self.dimension, self.C, self.loss.c1, self.loss.residual
        return Roundings.of(self.counts + more, *constants)

    def __len__(self) -> int:
        return len(self.counts)

    def ridge(self, F: Vectors, majorant: bool, chunks: int = 1) -> Array:
        """rho R''(F), means over each chunk of replicas, or rho sup R'' for a majorant: chunks x P
        x d.
        """
        P, d = len(self), self.dimension
        if majorant:
            return namespace(F).full((chunks, P, d), self.rho * self.regularizer.smoothness)
        each = self.regularizer.curvature(F).reshape(P, chunks, -1, d)
        return self.rho * each.mean(axis=2).swapaxes(0, 1)

    def curvatures(self, Z: Margins, majorant: bool, chunks: int = 1) -> Array:
        """L''(z_i), means over each chunk of replicas, or c1 for a majorant: chunks x rows."""
        if majorant:
            return namespace(Z).full((chunks, len(Z)), self.loss.c1)
        return self.loss.curvature(Z).reshape(len(Z), chunks, -1).mean(axis=2).T
