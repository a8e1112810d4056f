"""Adult over five nodes, and the pooled problem that the network solves: rows, weights and a
reference optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, vstack
from scipy.special import expit

from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.uci import adult
from dynadp.data.shard import Shard

Array = NDArray[np.float64]
NODES = 5


def adult_shards(nodes: int = NODES, *, equal: bool = False) -> list[Shard]:
    """Adult's training rows, shuffled and spread evenly; ``equal`` leaves out the rows that do not
    divide by the nodes.
    """
    data = adult()
    parts = partition(len(data.train["age"]), nodes)
    least = min(map(len, parts))
    return data.shards([part[:least] for part in parts] if equal else parts)


@dataclass(frozen=True, eq=False)
class Pooled:
    """F(f) = sum_p Z_p(f) = sum_i w_i L(y_i x_i.f) + (P rho/2) ||f||^2 with w_i = C/B_p (maths.md
    2), logistic loss.
    """

    X: csr_matrix
    y: Array
    weights: Array
    ridge: float

    @classmethod
    def of(cls, shards: Sequence[Shard], C: float, rho: float) -> "Pooled":
        """The rows of all shards, one below the other."""
        y = np.concatenate([shard.y for shard in shards])
        X = csr_matrix(vstack([csr_matrix(shard.signed) for shard in shards]).multiply(y[:, None]))
        weights = np.concatenate([np.full(shard.rows, C / shard.rows) for shard in shards])
        return cls(X, y, weights, len(shards) * rho)

    def value(self, f: Array) -> float:
        """F(f), summed in extended precision so that gaps of 1e-12 can be seen."""
        losses = np.logaddexp(0.0, -self.y * (self.X @ f)).astype(np.longdouble)
        return float(
            losses @ self.weights.astype(np.longdouble)
            + 0.5 * self.ridge * np.sum(np.square(f, dtype=np.longdouble))
        )

    def optimum(self) -> tuple[Array, float]:
        """argmin F by plain Newton steps on dense rows, and a bound on its relative gap: ||g||^2/(2
        P rho F).

        Shares no code with what is measured.
        """
        rows = self.X.toarray() * self.y[:, None]
        f = np.zeros(rows.shape[1])
        for _ in range(60):
            s = expit(-(rows @ f))
            gradient = self.ridge * f - rows.T @ (self.weights * s)
            gap = float(gradient @ gradient) / (2 * self.ridge * self.value(f))
            if gap < 1e-20:
                break
            hessian = (rows * (self.weights * s * (1 - s))[:, None]).T @ rows
            hessian[np.diag_indices_from(hessian)] += self.ridge
            step = cho_solve(cho_factor(hessian), gradient)
            t = 1.0
            while (
                self.value(f - t * step) > self.value(f) - 0.25 * t * float(gradient @ step)
                and t > 1e-3
                and gap > 1e-12
            ):
                t /= 2
            f = f - t * step
        return f, gap

    def sample_weight(self) -> Array:
        """For scikit-learn with C = 1, whose objective is then F/(P rho)."""
        return self.weights / self.ridge
