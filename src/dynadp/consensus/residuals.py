"""How far a network is from the pooled optimum f* = argmin F, F = sum_p Z_p (maths.md 2): residuals
and certificates.
"""

from dataclasses import dataclass, field

import numpy as np

from dynadp._arrays import Array, norm
from dynadp.consensus.admm import State
from dynadp.problem import Problem

_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Residuals:
    """Primal and dual residual of each replica, each with what it is a difference of (Boyd et al.
    2011, 3.3).

    With penalty 2 eta on the constraints f_p = w_pj: primal^2 = sum over p, j of ||V_p - w_pj||^2
    beside sum_p N_p ||V_p||^2, and dual = ||2 eta (W(n) - W(n-1))|| beside ||2 lam||, or beside ||2
    eta W|| for a node alone, whose lam is 0. All are functions of messages.
    """

    primal: Array
    primal_size: Array
    dual: Array
    dual_size: Array

    @classmethod
    def of(
        cls, V: Array, neighbours: Array, before: State, after: State, degrees: Array, eta: Array
    ) -> "Residuals":
        """From the messages of a round and the states around it."""
        centred, against = (
            V - V.mean(axis=0),
            2 * after.lam if len(V) > 1 else 2 * eta[:, None] * after.W,
        )
        edges = np.einsum(
            "pkd,pkd->k", centred, degrees[:, None, None] * V - neighbours
        )  # sum over edges of ||V_p - V_j||^2
        return cls(
            np.sqrt(np.maximum(0.5 * edges, 0.0)),
            np.sqrt(np.einsum("pkd,pkd,p->k", V, V, degrees)),
            np.linalg.norm(2 * eta[:, None] * (after.W - before.W), axis=(0, 2)),
            np.linalg.norm(against, axis=(0, 2)),
        )

    def below(self, share: float) -> bool:
        """Whether both are at most this share of what they are differences of."""
        return bool(
            (self.primal <= share * self.primal_size).all()
            and (self.dual <= share * self.dual_size).all()
        )

    def imbalance(self) -> Array:
        """2 where eta should grow, 1/2 where it should shrink, 1 elsewhere (Boyd et al. 2011,
        3.4.1, on relative residuals).
        """
        primal, dual = (
            self.primal / np.maximum(self.primal_size, _TINY),
            self.dual / np.maximum(self.dual_size, _TINY),
        )
        return np.where(primal > 10 * dual, 2.0, np.where(dual > 10 * primal, 0.5, 1.0))


@dataclass(frozen=True)
class Certificate:
    """Proven bounds for every node's own vector, one number a replica.

    Attributes
    ----------
    gap
        max_p (F(V_p) - F(f*)) / F(f*) is at most this.
    distance
        max_p ||V_p - f*|| / ||mean V|| is at most this.
    value
        F at the mean.
    """

    gap: Array
    distance: Array
    value: Array = field(repr=False)

    def within(self, gap: float, distance: float) -> bool:
        """Whether both are at most this, for all replicas."""
        return bool((self.gap <= gap).all() and (self.distance <= distance).all())


def certify(problem: Problem, V: Array) -> Certificate:
    """Bounds from one pass over the rows at m, the mean of the vectors.

    F is P rho-strongly convex and has gradient Lipschitz constant Lip = sum_p C_p c1 + P rho sup
    R''. With g = grad F(m) and u = max_p ||V_p - m||: F(m) - F(f*) <= ||g||^2/(2 P rho); F(V_p) -
    F(m) <= ||g|| u + Lip u^2/2;
    ||V_p - f*|| <= u + ||g||/(P rho).
    Rounding is not counted, unlike in the solver's certificate: this one guides stopping, no
    privacy rests on it.
    """
    everywhere = np.broadcast_to(V.mean(axis=0), V.shape)
    Z, local = problem.at(everywhere)
    value = problem.local_value(everywhere, Z).sum(axis=0)
    return certificate_from(problem, V, norm(local.sum(axis=0)), value)


def certificate_from(problem: Problem, V: Array, steepness: Array, value: Array) -> Certificate:
    """The bounds of :func:`certify` for a given ||grad F(m)|| and F(m), without a pass; as good as
    these two are.

    Parameters
    ----------
    problem, V
        The problem, and each node's vector.
    steepness, value
        ||grad F|| and F at the mean, one number a replica.
    """
    P, smoothness = len(problem), problem.regularizer.smoothness
    strong = P * problem.rho
    lipschitz = problem.C.sum() * problem.loss.c1 + P * problem.rho * smoothness
    mean = V.mean(axis=0)
    u = norm(V - mean).max(axis=0)
    excess = steepness**2 / (2 * strong)
    least = np.maximum(value - excess, 0.0)  # F(f*) is at least this
    excess = excess + steepness * u + 0.5 * lipschitz * u**2
    gap = np.divide(excess, least, out=np.full_like(excess, np.inf), where=least > _TINY)
    size = norm(mean)
    far = u + steepness / strong
    distance = np.divide(far, size, out=np.where(far > 0, np.inf, 0.0), where=size > _TINY)
    return Certificate(gap, distance, value)
