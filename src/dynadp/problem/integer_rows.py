"""Rows and slopes in whole numbers, so that sums over rows are exact (maths.md 12).

A product of matrices of whole numbers is exact in float64, in whatever order it is added, as long
as no partial sum reaches 2^53. So the bound on what one row adds holds for the numbers that the
program computes, and floating point is no caveat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, sqrt

import numpy as np
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows, namespace
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Loss
from dynadp.problem.storage import Storage, stack_rows

BITS, MOST_BITS = 52, 16  # of a sum over rows; of a row's entries and of a slope


@dataclass(frozen=True)
class Resolution:
    """How finely rows and slopes are written down: a function of public numbers.

    Attributes
    ----------
    bits
        Entries and slopes are multiples of 2^-bits.
    dimension
        d.
    """

    bits: int
    dimension: int

    @classmethod
    def of(cls, most_rows: int, dimension: int) -> "Resolution":
        """For nodes of at most so many rows: sums stay below 2^53."""
        bits = min(MOST_BITS, floor((BITS - log2(max(most_rows, 1))) / 2))
        if 2.0**-bits * sqrt(dimension) > 1:
            raise DeclarationError(
                f"{most_rows:,} rows of {dimension:,} columns cannot be added exactly; take fewer "
                "columns, or split the node's rows"
            )
        return cls(bits, dimension)

    @property
    def step(self) -> float:
        """h_x = h_s: what 1 stands for in an entry or a slope."""
        return float(2.0**-self.bits)

    @property
    def longest(self) -> int:
        """K_x: no row is longer."""
        return ceil(2**self.bits + sqrt(self.dimension) / 2)

    @property
    def gradient(self) -> int:
        """K_s K_x: no row adds more to a sum of gradients, in steps of h_x h_s."""
        return 2**self.bits * self.longest

    @property
    def moment(self) -> int:
        """K_x^2: no row adds more to the second moment, in steps of h_x^2."""
        return self.longest**2

    def whole(self, signed: Rows) -> Rows:
        """Write rows as whole numbers; a row that is longer than K_x becomes 0."""
        if isinstance(signed, csr_array):
            out = csr_array(signed, copy=True)
            out.data = np.rint(out.data / self.step)
            lengths = np.asarray(out.multiply(out).sum(axis=1)).ravel()
            kept = (lengths <= float(self.longest) ** 2).astype(float)
            out.data *= np.repeat(kept, np.diff(out.indptr))
            return out
        xp = namespace(signed)
        rows = xp.rint(signed / self.step)
        lengths = (rows * rows).sum(axis=1)
        return rows * (lengths <= float(self.longest) ** 2)[:, None]


class IntegerRows:
    """The signed rows of some nodes in whole numbers.

    Parameters
    ----------
    blocks
        y x of each node, n x d.
    resolution
        How finely they are written down.
    loss
        L.
    replicas, storage
        As of :class:`~dynadp.problem.objective.StackedProblem`.
    """

    def __init__(
        self,
        blocks: Sequence[Rows],
        resolution: Resolution,
        loss: Loss,
        *,
        replicas: int = 1,
        storage: Storage = "auto",
    ) -> None:
        self.resolution, self.loss, self.nodes = resolution, loss, len(blocks)
        self._rows = stack_rows([resolution.whole(b) for b in blocks], replicas, storage)

    def gradient(self, z: Array) -> Array:
        """sum_i rint(L'(z.x_i)/h_s) k(x_i) of every node: whole numbers, P x K x d; z is K x d."""
        xp, h = namespace(z), self.resolution.step
        F = xp.broadcast_to(z, (self.nodes, *z.shape))
        slopes = xp.rint(self.loss.slope(self._rows.margins(F) * h) / h)
        return self._rows.adjoint(xp.clip(slopes, -1 / h, 1 / h))

    def moment(self) -> Array:
        """sum_i k(x_i) k(x_i)^T of every node: whole numbers, P x d x d."""
        counts = np.diff(self._rows.offsets)
        return np.stack([self._rows.gram(p, np.ones(n)) for p, n in enumerate(counts)])
