"""A round's local work, as printed: every node solves its argmin, starting from its last one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dynadp._arrays import Array, norm
from dynadp.consensus import admm
from dynadp.consensus.residuals import Certificate, Residuals
from dynadp.problem import PATIENT, Factor, Known, Problem, solve

_MANY, _OFTEN = 5, 10  # iterations of a solve; rounds


@dataclass(eq=False)
class LocalSolver:
    """Local steps of Algorithms 1, 2 and 3.

    Attributes
    ----------
    problem, degrees
        Rows and constants; N_p.
    eta
        The penalty of each replica.
    gamma
        Public bound on the gradient norm, P x 1 or P x K.
    f
        Where the next local step begins, P x K x d: private in a private run, and safe, since only
        certified points leave it.
    aim
        See :func:`~dynadp.problem.solver.solve`.
    private
        Whether more iterations are worth it: giving up would end the run.
    relaxation
        See :func:`dynadp.consensus.admm.receive`.
    certificate
        Against the pooled optimum, where one was asked for.
    """

    problem: Problem
    degrees: Array
    eta: Array
    gamma: Array
    f: Array
    aim: Array | None = None
    private: bool = False
    relaxation: float = field(default=1.0, init=False)
    certificate: Certificate | None = field(default=None, init=False)
    _factor: Factor | None = field(default=None, init=False)
    _known: Known | None = field(default=None, init=False)

    def local_step(self, n: int, state: admm.State, linear: Array | None, phi: Array) -> Array:
        """g = argmin_f Z_p(f) + 2 lam_p.f + eta sum_j || f - w_pj ||^2 + (phi/2) ||f||^2 +
        linear.f of round n, certified to gamma.
        """
        b, size = admm.linear_terms(state, self.eta)
        if linear is not None:
            b, size = b + linear, size + norm(linear)
        solution = solve(
            self.problem,
            admm.penalty(self.degrees, self.eta) + phi,
            b,
            self.gamma,
            self.f,
            factor=self._factor,
            known=self._known,
            b_size=size,
            aim=self.aim,
            max_iterations=PATIENT if self.private else 500,
        )
        self._factor, self._known = solution.factor, solution.known
        if (
            self._factor
            and solution.iterations > _MANY
            and n % _OFTEN == 0
            and not isinstance(self.f, np.ndarray)
        ):
            # made anew next time: on a GPU it costs less than iterations
            self._factor = replace(self._factor, majorant=True)
        return solution.point

    def next_state(self, before: admm.State, after: admm.State, g: Array) -> admm.State:
        """The state of the next round; moves f."""
        self.f = g
        return after

    def done(self, n: int, V: Array, residuals: Callable[[], Residuals]) -> bool:
        """Whether the run may stop before its last round: never, here."""
        return False

    def finish(self, V: Array) -> None:
        """After the last round."""
