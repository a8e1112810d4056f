"""Anderson acceleration of a fixed-point map, for many replicas at once (Walker and Ni, 2011, type II)."""

import numpy as np

from dynadp.arrays import Array


class Anderson:
    """x_next = x + r - (dX + dR) gamma, where gamma minimises ||r - dR gamma|| and r = T(x) - x.

    dX and dR hold the last ``depth`` differences of x and r. Each replica has its own gamma. A replica whose residual grows
    by more than ``patience``, or whose mixed step is over 100 times as long as the plain one, forgets its history and takes a
    plain step.

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
        """Next point for replicas x (K x n) with residuals r, and whether some replica's residual grew too much."""
        size = np.sqrt(np.einsum("kn,kn->k", r, r))
        if self.depth == 0:
            worse = self._count > 0 and bool((size > self.patience * self._size).any())
            self._count, self._size = 1, size
            return x + r, worse
        if self._count == 0:
            shape = (x.shape[0], self.depth, x.shape[1])
            self._dx, self._dr = np.zeros(shape), np.zeros(shape)
            self._gram = np.zeros((x.shape[0], self.depth, self.depth))
            grew = np.zeros(len(x), dtype=bool)
        else:
            slot = (self._count - 1) % self.depth
            np.subtract(x, self._x, out=self._dx[:, slot])
            np.subtract(r, self._r, out=self._dr[:, slot])
            grew = size > self.patience * self._size
            self._dx[grew] = self._dr[grew] = 0.0
            self._gram[grew] = 0.0
            overlap = np.matmul(self._dr, self._dr[:, slot, :, None])[..., 0]
            self._gram[:, slot] = self._gram[:, :, slot] = overlap
        self._x, self._r, self._size = x, r, size
        self._count += 1
        # Normal equations with a ridge at rounding level: a forgotten or repeated difference has weight 0.
        diagonal = np.arange(self.depth)
        ridge = 1e-13 * self._gram[:, diagonal, diagonal].sum(axis=1)
        system = self._gram.copy()
        system[:, diagonal, diagonal] += np.maximum(ridge, 1e-300)[:, None]
        gamma = np.linalg.solve(system, np.matmul(self._dr, r[..., None]))[:, None, :, 0]
        change = r - np.matmul(gamma, self._dx)[:, 0] - np.matmul(gamma, self._dr)[:, 0]
        wild = np.einsum("kn,kn->k", change, change) > 1e4 * size**2
        self._dx[wild] = self._dr[wild] = 0.0
        self._gram[wild] = 0.0
        return x + np.where(wild[:, None], r, change), bool(grew.any())
