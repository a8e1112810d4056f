"""The paper's section 4 as functions: the expected losses C_hat and Z_hat, and the gaps Delta of a
round (maths.md 9).

The paper only says that a constant Delta(t) exists for which C_hat(f_p(t)) - C_hat(f*_p(t)) <=
Delta(t). These functions give the smallest one, which is the difference itself; it may be negative.
All of them look at rows and at noise: they belong to studies on public rows, not to private runs.
"""

from dataclasses import dataclass, field

import numpy as np

from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.problem import (
    Logistic,
    Loss,
    Regularizer,
    SquaredL2,
    StackedProblem,
    default_gamma,
    solve,
)


@dataclass(frozen=True, eq=False)
class NodeQuantities:
    """Node p: its rows, the distribution that they come from, and its public numbers.

    Vectors f are d numbers, or ... x d for many at once.

    Attributes
    ----------
    rows
        Signed rows y x of D_p, B_p x d.
    population
        Signed rows y x of P^xy, each as likely as the others, M x d: by Assumption 4 ``rows`` are
        drawn from them.
    loss, C, rho, regularizer
        L, C^R, rho and R.
    """

    rows: Array = field(repr=False)
    population: Array = field(repr=False)
    C: float
    rho: float
    loss: Loss = field(default_factory=Logistic)
    regularizer: Regularizer = field(default_factory=SquaredL2)

    def __post_init__(self) -> None:
        shapes = np.shape(self.rows), np.shape(self.population)
        if any(len(shape) != 2 or 0 in shape for shape in shapes) or shapes[0][1] != shapes[1][1]:
            raise DeclarationError(
                f"rows and population have shapes {shapes[0]} and {shapes[1]}; expected B x d and "
                f"M x d"
            )

    def C_hat(self, f: Array) -> Array:
        """C^R E L(y f.x), the expected loss (section 4.1)."""
        return self._mean_loss(self.population, f)

    def Z_hat(self, f: Array) -> Array:
        """C_hat(f) + rho R(f), the expected objective (section 4.1)."""
        return self._objective(self.population, f)

    def Z(self, f: Array) -> Array:
        """(C^R/B_p) sum_i L(y_i f.x_i) + rho R(f), the node's objective (3)."""
        return self._objective(self.rows, f)

    def Z_dual(self, f: Array, noise: Array, Phi: float = 0.0) -> Array:
        """Z(f) + (C^R/B_p) e_p(t).f + (Phi/2) ||f||^2: what Alg-2 minimises, with its noise frozen
        at round t (section 4.2; the paper assumes Phi = 0).
        """
        extra = f @ self._dual_push(noise) + Phi / 2 * np.sum(f * f, axis=-1)
        return np.asarray(self.Z(f) + extra)

    def Z_prim(self, f: Array, noise: Array, others: Array, eta: float, middle: Array) -> Array:
        """Z(f) + eta sum_j ((f - m_j).e_pj + ||e_pj||^2/4), e_pj = e_p(t) - e_j(t): what Alg-3
        minimises (section 4.2; its sign is corrected).

        Parameters
        ----------
        f
            Vectors.
        noise, others
            e_p(t), and e_j(t) of each neighbour, N_p x d.
        eta
            The penalty.
        middle
            m_j = (f_p(t) + f_j(t))/2 of each neighbour, N_p x d. It moves no minimiser.
        """
        apart = noise - others
        constant = eta * (np.sum(apart * apart) / 4 - np.sum(apart * middle))
        push = self._prim_push(noise, others, eta)
        return self.Z(f) + f @ push + constant

    def f_hat(self) -> Array:
        """Argmin of Z_hat."""
        return self._argmin(self.population)

    def f_star(self, push: Array | float = 0.0, Phi: float = 0.0) -> Array:
        """argmin Z(f) + push.f + (Phi/2) ||f||^2; f* of Algorithm 1 without a push."""
        return self._argmin(self.rows, push, Phi)

    def f_star_dual(self, noise: Array, Phi: float = 0.0) -> Array:
        """f*_p(t) of Algorithm 2: argmin of :meth:`Z_dual`."""
        return self.f_star(self._dual_push(noise), Phi)

    def f_star_prim(self, noise: Array, others: Array, eta: float) -> Array:
        """f*_p(t) of Algorithm 3: argmin of :meth:`Z_prim`."""
        return self.f_star(self._prim_push(noise, others, eta))

    def delta_non(self, f: Array) -> Array:
        """C_hat(f_p(t)) - C_hat(f*): Delta^non(t) of Theorem 3 and (24), for vectors f_p(t) of
        Algorithm 1.

        f* is the minimiser of the node's own objective. Nodes with unlike rows agree on another
        vector, so Delta^non(t) need not vanish.
        """
        return self.C_hat(f) - self.C_hat(self.f_star())

    def delta_dual(self, f: Array, noise: Array, Phi: float = 0.0) -> Array:
        """C_hat(f_p(t)) - C_hat(f*_p(t)): Delta^dual_p(t) of Corollary 4.1 and (25).

        Parameters
        ----------
        f
            f_p(t) of Algorithm 2.
        noise, Phi
            e_p(t) and Phi of that round.
        """
        return self.C_hat(f) - self.C_hat(self.f_star_dual(noise, Phi))

    def delta_prim(self, f: Array, noise: Array, others: Array, eta: float) -> Array:
        """C_hat(f_p(t)) - C_hat(f*_p(t)): Delta^prim_p(t) of section 4.2.

        Parameters
        ----------
        f
            f_p(t) of Algorithm 3, before its noise.
        noise, others, eta
            As for :meth:`Z_prim`.
        """
        return self.C_hat(f) - self.C_hat(self.f_star_prim(noise, others, eta))

    def delta_primV(self, V: Array, noise: Array, others: Array, eta: float, fresh: Array) -> Array:
        """C_hat(V_p(t)) - C_hat(V*_p(t)), V*_p(t) = f*_p(t) + fresh: Delta^primV_p(t) of Corollary
        6.1 and (27).

        Parameters
        ----------
        V
            V_p(t) of Algorithm 3: what is sent.
        noise, others, eta
            As for :meth:`Z_prim`, of the round before.
        fresh
            The noise of V_p(t) itself.
        """
        return self.C_hat(V) - self.C_hat(self.f_star_prim(noise, others, eta) + fresh)

    def _mean_loss(self, rows: Array, f: Array) -> Array:
        return np.asarray(self.C * np.mean(self.loss.value(f @ rows.T), axis=-1))

    def _objective(self, rows: Array, f: Array) -> Array:
        return self._mean_loss(rows, f) + self.rho * self.regularizer.value(f)

    def _dual_push(self, noise: Array) -> Array:
        return self.C / len(self.rows) * noise

    def _prim_push(self, noise: Array, others: Array, eta: float) -> Array:
        return np.asarray(eta * np.sum(noise - others, axis=0))

    def _argmin(self, rows: Array, push: Array | float = 0.0, Phi: float = 0.0) -> Array:
        problem = StackedProblem([rows], self.loss, self.regularizer, self.C, self.rho)
        q, b = np.full((1, 1), Phi), np.broadcast_to(push, (1, 1, rows.shape[1])).astype(float)
        gamma = default_gamma(problem, q, (self.C + float(np.linalg.norm(b))) / self.rho)
        return np.asarray(solve(problem, q, b, gamma, np.zeros_like(b)).point[0, 0])
