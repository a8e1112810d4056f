"""Faster ways to the fixed point of Algorithm 1, in simulation only: they would change what a private run releases."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynadp import admm
from dynadp.anderson import Anderson
from dynadp.arrays import Array
from dynadp.consensus import Residuals, certify, worth_certifying
from dynadp.errors import DeclarationError, NotCertified
from dynadp.objective import Problem
from dynadp.runtime.steps import Steps
from dynadp.solvers import Factor

_SECOND_FACTOR = 5  # the round at which the one-step factor is made anew: the first one belongs to the start
_ROWS_PER_COLUMN = 4  # its Hessians come from so many rows a column, where there are more than that, or from every 16th
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


class Accelerator(Steps):
    """An :class:`Acceleration` at work, with what it carries from round to round."""

    def __init__(self, plan: Acceleration, problem: Problem, degrees: Array, eta: Array, gamma: Array, f: Array) -> None:
        super().__init__(problem, degrees, eta, gamma, f)
        self.plan, self.relaxation = plan, plan.relaxation
        self._anderson = Anderson(plan.anderson)
        self._one_step, self._setbacks = plan.one_step, 0
        self._pooled = np.empty(0)  # || sum_p grad Z_p(f_p) ||, from the last one-step round
        self._moved = np.inf  # length of the last one-step round's steps

    def local_step(self, n: int, state: admm.State, linear: Array | None, phi: Array) -> Array:
        """g of round n: its argmin, or one step from f towards it."""
        if not self._one_step:
            return super().local_step(n, state, linear, phi)
        q = admm.penalty(self.degrees, self.eta) + phi
        b, _ = admm.linear_terms(state, self.eta)
        Z = self.problem.margins(self.f)
        local = self.problem.local_gradient(self.f, Z)
        self._pooled = np.linalg.norm(local.sum(axis=0), axis=-1)
        if self._factor is None or n == _SECOND_FACTOR:
            thin = int(self.problem.counts.min() // (_ROWS_PER_COLUMN * self.problem.dimension))
            self._factor = Factor.at(self.problem, self.f, Z, q, step=max(1, min(16, thin)))
        b = b if linear is None else b + linear
        step = self._factor.apply(local + q[..., None] * self.f + b)
        self._moved = float(np.linalg.norm(step))
        return np.asarray(self.f - step)

    def next_state(self, before: admm.State, after: admm.State, g: Array) -> admm.State:
        """Anderson over (W, lam, f), in units that make the three alike."""
        if not (self._one_step or self.plan.anderson):
            return super().next_state(before, after, g)
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
        parts = np.split(mixed.reshape(replicas, 3 * nodes, dimension).transpose(1, 0, 2), 3)
        W, lam, self.f = (part / scale for part, scale in zip(parts, scales, strict=True))
        if grew and self._one_step:
            self._setbacks += 1
            self._factor = None  # made anew where the run now is
            self._one_step = self._setbacks < _PATIENCE
        return admm.State(W, lam - lam.mean(axis=0))  # rounding must not let the sum of the duals drift from zero

    def done(self, n: int, V: Array, residuals: Callable[[], Residuals]) -> bool:
        """Whether all the targets that were given are met; if not, balances eta."""
        stop = self._targets_met(V, residuals)
        if not stop and self.plan.balance and n <= _BALANCED:
            change = residuals().imbalance()
            if (change != 1).any():
                self.eta = self.eta * change
                self._factor = None  # the map has changed, and with it factor and history
                self._anderson.forget()
        return stop

    def finish(self, V: Array) -> None:
        """Certify what is handed back, where a certified target was given."""
        if self.plan.gap is not None or self.plan.distance is not None:
            self.certificate = certify(self.problem, V)

    def _targets_met(self, V: Array, residuals: Callable[[], Residuals]) -> bool:
        plan = self.plan
        if plan.residual is not None and not (residuals().below(plan.residual) and self._settled(V, plan.residual)):
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
        return not self._one_step or self._moved <= share * float(np.linalg.norm(V))
