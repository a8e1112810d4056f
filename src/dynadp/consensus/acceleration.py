"""Faster ways to the fixed point of Algorithm 1, in simulation only: they would change what a
private run releases.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, norm
from dynadp.consensus import admm
from dynadp.consensus.anderson import Anderson
from dynadp.consensus.local_solver import LocalSolver
from dynadp.consensus.residuals import Residuals, certificate_from, certify
from dynadp.errors import DeclarationError, NotCertified
from dynadp.problem import Factor, Problem

# times the default eta of plain rounds: over 42 networks, rows and rho an eighth fewer rounds, with
# depth 20
MORE = 1.25
_SECOND_FACTOR = (
    5  # the round at which the one-step factor is made anew: the first one belongs to the start
)
# its Hessians come from so many rows a column, where there are more than that, or from every 16th
_ROWS_PER_COLUMN = 4
# a certificate costs a pass: it is worth it where a glance sees at most this share of the target
_NEARLY = 1.2
_PATIENCE = 4  # after so many growing residuals the argmin is used again
_BALANCED = 50  # eta may change up to this round, so that the rest of the run converges


@dataclass(frozen=True)
class Acceleration:
    """How Algorithm 1 may be sped up in simulation, and when it may stop.

    Attributes
    ----------
    one_step
        One Newton step with a kept factor a round instead of the argmin: the fixed point is the
        same. Where that diverges, the argmin is used again.
    anderson
        Depth of Anderson acceleration over (W, lam, f); 0 for none.
    relaxation
        Over-relaxation in (0, 2); see :func:`dynadp.consensus.admm.receive`.
    balance
        Double or halve eta where the two residuals are more than ten times apart, in the first 50
        rounds.
    gap
        Stop once every node's own vector is certified to have a pooled objective within this share
        of the optimum.
    distance
        Stop once every node's own vector is certified to lie within this share of its norm from the
        optimum.
    residual
        Stop once both residuals, which are functions of messages, are below this share of what they
        are differences of.
    """

    one_step: bool = True
    anderson: int = 20
    relaxation: float = 1.0
    balance: bool = False
    gap: float | None = None
    distance: float | None = None
    residual: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.relaxation < 2:
            raise DeclarationError(
                f"relaxation is {self.relaxation!r}; expected a number in (0, 2)"
            )
        if self.anderson < 0:
            raise DeclarationError(f"anderson is {self.anderson!r}; expected a depth of 0 or more")
        for name in ("gap", "distance", "residual"):
            value = getattr(self, name)
            if value is not None:
                _require.share(name, value)

    @property
    def certified(self) -> bool:
        """Whether the run stops by a certificate."""
        return self.gap is not None or self.distance is not None


class Accelerator(LocalSolver):
    """An :class:`Acceleration` at work, with what it carries from round to round."""

    def __init__(
        self,
        plan: Acceleration,
        problem: Problem,
        degrees: Array,
        eta: Array,
        gamma: Array,
        f: Array,
    ) -> None:
        super().__init__(problem, degrees, eta, gamma, f)
        self.plan, self.relaxation = plan, plan.relaxation
        self._anderson = Anderson(plan.anderson)
        self._here: Array | None = None  # the state that was returned last, packed
        self._one_step, self._setbacks = plan.one_step, 0
        self._steepness = self._value = np.empty(
            0
        )  # || sum_p grad Z_p(f_p) || of the last one-step round; F earlier
        self._moved = np.inf  # length of the last one-step round's steps

    def local_step(self, n: int, state: admm.State, linear: Array | None, phi: Array) -> Array:
        """g of round n: its argmin, or one step from f towards it."""
        if not self._one_step:
            return super().local_step(n, state, linear, phi)
        q = admm.penalty(self.degrees, self.eta) + phi
        b, _ = admm.linear_terms(state, self.eta)
        Z, local = self.problem.at(self.f)
        self._steepness = norm(local.sum(axis=0))
        if self.plan.certified and not self._value.size:
            self._value = self.problem.local_value(self.f, Z).sum(
                axis=0
            )  # at the start: larger than what a certificate finds
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
        here = self._pack(before, self.f) if self._here is None else self._here
        step = self._pack(after, g) - here
        if not np.isfinite(step).all():
            raise NotCertified(
                "the run left the range of floating point; nothing is released. Raise rho or eta, "
                "or lower C"
            )
        mixed, grew = self._anderson.step(here, step)
        if grew and self._one_step:
            self._setbacks += 1
            self._factor = None  # made anew where the run now is
            self._one_step = self._setbacks < _PATIENCE
        self._here = mixed
        nodes, replicas, dimension = g.shape
        W, lam, f = mixed.reshape(replicas, 3, nodes, dimension).transpose(1, 2, 0, 3)
        lam -= lam.mean(axis=0)  # rounding must not let the sum of the duals drift from zero
        self.f = np.array(f)
        return admm.State(W * np.maximum(self.degrees, 1)[:, None, None], lam * self.eta[:, None])

    def _pack(self, state: admm.State, f: Array) -> Array:
        """W/N_p, lam/eta and f of each replica in one line: K x 3 P d."""
        parts = (
            state.W / np.maximum(self.degrees, 1)[:, None, None],
            state.lam / self.eta[:, None],
            f,
        )
        return np.stack(parts).transpose(2, 0, 1, 3).reshape(f.shape[1], -1)

    def done(self, n: int, V: Array, residuals: Callable[[], Residuals]) -> bool:
        """Whether all the targets that were given are met; if not, balances eta."""
        stop = self._targets_met(V, residuals)
        if not stop and self.plan.balance and n <= _BALANCED:
            change = residuals().imbalance()
            if (change != 1).any():
                self.eta = self.eta * change
                self._factor = self._here = (
                    None  # the map has changed, and with it factor, units and history
                )
                self._anderson.forget()
        return stop

    def finish(self, V: Array) -> None:
        """Certify what is handed back, where a certified target was given."""
        if self.plan.certified:
            self.certificate = certify(self.problem, V)

    def _targets_met(self, V: Array, residuals: Callable[[], Residuals]) -> bool:
        plan = self.plan
        if (share := plan.residual) is not None:
            # residuals do not see how inexact a step was: it must have come to rest too
            settled = not self._one_step or self._moved <= share * float(np.linalg.norm(V))
            if not (settled and residuals().below(share)):
                return False
        if not plan.certified:
            return plan.residual is not None
        gap, distance = plan.gap or np.inf, plan.distance or np.inf
        # at the points of the last local steps, which stand near V, gradient and value are known
        if self._one_step:
            likely = certificate_from(self.problem, V, self._steepness, self._value)
            if not likely.within(_NEARLY * gap, _NEARLY * distance):
                return False
        self.certificate = certify(self.problem, V)
        self._value = self.certificate.value
        return self.certificate.within(gap, distance)
