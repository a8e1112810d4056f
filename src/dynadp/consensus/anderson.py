"""Anderson acceleration of a fixed-point map, for many replicas at once (Walker and Ni, 2011, type
II).
"""

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, norm


class Anderson:
    """x_next = x + r - (dX + dR) gamma, where gamma minimises ||r - dR gamma|| and r = T(x) - x.

    dX and dR hold the last ``depth`` differences of x and r. Each replica has its own gamma. A
    replica whose residual grows by more than ``patience``, or whose mixed step is over 100 times as
    long as the plain one, forgets its history and takes a plain step.

    Parameters
    ----------
    depth
        How many differences to keep; 0 gives plain steps.
    patience
        Growth of the residual that is put up with.
    """

    def __init__(self, depth: int, patience: float = 2.0) -> None:
        self.depth, self.patience = depth, patience
        self.forget()

    def forget(self) -> None:
        """Drop all history: the map has changed."""
        self._count = 0
        self._x = self._r = self._size = np.empty(0)

    def step(self, x: Array, r: Array) -> tuple[Array, bool]:
        """Next point for replicas x (K x n) with residuals r, and whether some replica's residual
        grew too much.
        """
        size = norm(r)
        grew = size > self.patience * (self._size if self._count else np.inf)
        if self.depth == 0:
            self._count, self._size = 1, size
            return x + r, bool(grew.any())
        if self._count == 0:
            shape = (x.shape[0], self.depth, x.shape[1])
            self._dr, self._sum = np.zeros(shape), np.zeros(shape)  # dR and dX + dR
            self._gram = np.zeros((x.shape[0], self.depth, self.depth))
        else:
            slot = (self._count - 1) % self.depth
            np.subtract(r, self._r, out=self._dr[:, slot])
            np.subtract(x, self._x, out=self._sum[:, slot])
            self._sum[:, slot] += self._dr[:, slot]
            self._drop(grew)
            self._gram[:, slot] = self._gram[:, :, slot] = np.matmul(
                self._dr, self._dr[:, slot, :, None]
            )[..., 0]
        self._x, self._r, self._size = x, r, size
        self._count += 1
        # Normal equations with a ridge at rounding level: a forgotten or repeated difference has
        # weight 0.
        ridge = 1e-13 * np.trace(self._gram, axis1=1, axis2=2)
        system = self._gram + np.maximum(ridge, 1e-300)[:, None, None] * np.eye(self.depth)
        gamma = np.linalg.solve(system, np.matmul(self._dr, r[..., None]))
        change = r - np.matmul(gamma.transpose(0, 2, 1), self._sum)[:, 0]
        wild = norm(change) > 100 * size
        self._drop(wild)
        return x + (np.where(wild[:, None], r, change) if wild.any() else change), bool(grew.any())

    def _drop(self, replicas: NDArray[np.bool_]) -> None:
        """Forget the history of some replicas."""
        if replicas.any():
            self._dr[replicas] = self._sum[replicas] = 0.0
            self._gram[replicas] = 0.0
