"""Faster ways to the fixed point of Algorithm 1, in simulation only: they would change what a private run releases."""

from dataclasses import dataclass

import numpy as np

from dynadp import admm
from dynadp.anderson import Anderson
from dynadp.arrays import Array
from dynadp.consensus import Certificate, Residuals, certify, worth_certifying
from dynadp.errors import DeclarationError, NotCertified
from dynadp.objective import Problem
from dynadp.solvers import Factor, Solution

_SECOND_FACTOR = 5  # the round at which the one-step factor is made anew: the first one belongs to the start
_ROW_STEP = 4  # its Hessians come from every fourth row
_PATIENCE = 4  # after so many growing residuals the argmin is used again
_BALANCED = 50  # eta may change up to this round, so that the rest of the run converges


@dataclass(frozen=True)
class Acceleration:
    """How Algorithm 1 may be sped up in simulation, and when it may stop.

    Attributes
    ----------
    one_step
        One Newton step with a kept factor a round instead of the argmin: the fixed point is the same. Where that diverges, the
        argmin is used again.
    anderson
        Depth of Anderson acceleration over (W, lam, f); 0 for none.
    relaxation
        Over-relaxation in (0, 2); see :func:`dynadp.admm.receive`.
    balance
        Double or halve eta where the two residuals are more than ten times apart, in the first 50 rounds.
    gap
        Stop once every node's own vector is certified to have a pooled objective within this share of the optimum.
    distance
        Stop once every node's own vector is certified to lie within this share of its norm from the optimum.
    residual
        Stop once both residuals, which are functions of messages, are below this share of what they are differences of.
    """

    one_step: bool = True
    anderson: int = 10
    relaxation: float = 1.0
    balance: bool = False
    gap: float | None = None
    distance: float | None = None
    residual: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.relaxation < 2:
            raise DeclarationError(f"relaxation is {self.relaxation!r}; expected a number in (0, 2)")
        if self.anderson < 0:
            raise DeclarationError(f"anderson is {self.anderson!r}; expected a depth of 0 or more")
        for name in ("gap", "distance", "residual"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise DeclarationError(f"{name} is {value!r}; expected a share in (0, 1)")


class Accelerator:
    """An :class:`Acceleration` at work, with what it carries from round to round.

    Attributes
    ----------
    f
        Where the next local step begins, P x K x d.
    eta
        The penalty of each replica, as balanced so far.
    certificate
        The last one, where one was asked for.
    """

    def __init__(self, plan: Acceleration, problem: Problem, degrees: Array, eta: Array, gamma: Array, f: Array) -> None:
        self.plan, self.problem, self.degrees, self.eta, self.gamma, self.f = plan, problem, degrees, eta, gamma, f
        self.certificate: Certificate | None = None
        self._factor: Factor | None = None
        self._anderson = Anderson(plan.anderson)
        self._one_step, self._setbacks = plan.one_step, 0
        self._pooled = np.empty(0)  # || sum_p grad Z_p(f_p) ||, from the last one-step round

    def local_step(self, n: int, state: admm.State, linear: Array | None, phi: Array) -> Array:
        """g of round n: its argmin, or one step from f towards it."""
        if not self._one_step:
            solution: Solution = admm.send(
                self.problem, state, self.degrees, self.eta, self.gamma, self.f, linear=linear, phi=phi, factor=self._factor
            )
            self._factor = solution.factor
            return solution.point
        q = admm.penalty(self.degrees, self.eta) + phi
        b, _ = admm.linear_terms(state, self.eta)
        Z = self.problem.rows.margins(self.f)
        local = self.problem.local_gradient(self.f, Z)
        self._pooled = np.linalg.norm(local.sum(axis=0), axis=-1)
        if self._factor is None or n == _SECOND_FACTOR:
            self._factor = Factor.at(self.problem, self.f, Z, q, step=_ROW_STEP)
        b = b if linear is None else b + linear
        return np.asarray(self.f - self._factor.apply(local + q[..., None] * self.f + b))

    def done(self, V: Array, residuals: Residuals) -> bool:
        """Whether all the targets that were given are met."""
        plan = self.plan
        if plan.residual is not None and not (residuals.below(plan.residual) and self._settled(V, plan.residual)):
            return False
        if plan.gap is None and plan.distance is None:
            return plan.residual is not None
        gap, distance = plan.gap or np.inf, plan.distance or np.inf
        if self._one_step and self.certificate is not None:
            value = self.certificate.value
            if not worth_certifying(self.problem, V, self._pooled, value, gap, distance):
                return False
        self.certificate = certify(self.problem, V)
        return bool((self.certificate.gap <= gap).all() and (self.certificate.distance <= distance).all())

    def _settled(self, V: Array, share: float) -> bool:
        """Whether the local steps have come to rest too: residuals do not see how inexact a step was."""
        return not self._one_step or bool(np.linalg.norm(V - self.f) <= share * np.linalg.norm(V))

    def finish(self, V: Array) -> None:
        """Certify what is handed back, where a certified target was given."""
        if self.plan.gap is not None or self.plan.distance is not None:
            self.certificate = certify(self.problem, V)

    def mix(self, before: admm.State, after: admm.State, g: Array) -> admm.State:
        """Anderson over (W, lam, f), in units that make the three alike; returns the state for the next round and moves f."""
        if not (self._one_step or self.plan.anderson):
            self.f = g
            return after
        nodes, replicas, dimension = g.shape
        scales = (1 / np.maximum(self.degrees, 1)[:, None, None], 1 / self.eta[:, None], np.ones(1))

        def pack(state: admm.State, f: Array) -> Array:
            parts = [part * scale for part, scale in zip((state.W, state.lam, f), scales, strict=True)]
            return np.concatenate(parts).transpose(1, 0, 2).reshape(replicas, -1)

        here = pack(before, self.f)
        step = pack(after, g) - here
        if not np.isfinite(step).all():
            raise NotCertified("the run left the range of floating point; nothing is released. Raise rho or eta, or lower C")
        mixed, grew = self._anderson.step(here, step)
        W, lam, self.f = (
            part / scale
            for part, scale in zip(
                np.split(mixed.reshape(replicas, 3 * nodes, dimension).transpose(1, 0, 2), 3), scales, strict=True
            )
        )
        if grew and self._one_step:
            self._setbacks += 1
            self._factor = None  # made anew where the run now is
            self._one_step = self._setbacks < _PATIENCE
        return admm.State(W, lam - lam.mean(axis=0))  # rounding must not let the sum of the duals drift from zero

    def balance(self, n: int, residuals: Residuals) -> None:
        """Change eta where the residuals ask for it; the map changes, so factor and history are dropped."""
        change = residuals.imbalance()
        if self.plan.balance and n <= _BALANCED and (change != 1).any():
            self.eta = self.eta * change
            self._factor = None
            self._anderson.forget()
