"""A round's local work, as printed: every node solves its argmin, starting from its last one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import admm
from dynadp.consensus.residuals import Certificate, Residuals
from dynadp.problem import PATIENT, Factor, Problem

_MANY, _OFTEN = 5, 5  # iterations of a solve; rounds


class LocalSolver:
    """Local steps of Algorithms 1, 2 and 3.

    Attributes
    ----------
    f
        Where the next local step begins, P x K x d: private in a private run, and safe, since only
        certified points leave it.
    eta
        The penalty of each replica.
    relaxation
        See :func:`dynadp.consensus.admm.receive`.
    certificate
        Against the pooled optimum, where one was asked for.
    """

    relaxation = 1.0
    certificate: Certificate | None = None

    def __init__(
        self,
        problem: Problem,
        degrees: Array,
        eta: Array,
        gamma: Array,
        f: Array,
        aim: Array | None = None,
        private: bool = False,
    ) -> None:
        self.problem, self.degrees, self.eta, self.gamma, self.f, self.aim = (
            problem,
            degrees,
            eta,
            gamma,
            f,
            aim,
        )
        self._patience = {"max_iterations": PATIENT} if private else {}
        self._factor: Factor | None = None

    def local_step(self, n: int, state: admm.State, linear: Array | None, phi: Array) -> Array:
        """g of round n: its certified argmin."""
        solution = admm.send(
            self.problem,
            state,
            self.degrees,
            self.eta,
            self.gamma,
            self.f,
            linear=linear,
            phi=phi,
            factor=self._factor,
            aim=self.aim,
            **self._patience,
        )
        self._factor = solution.factor
        if (
            self._factor
            and solution.iterations > _MANY
            and n % _OFTEN == 0
            and not isinstance(self.f, np.ndarray)
        ):
            self._factor = replace(
                self._factor, majorant=True
            )  # made anew next time: on a GPU it costs less than iterations
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
