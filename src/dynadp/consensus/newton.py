"""The pooled optimum by sums over all nodes without noise, in simulation only: they reveal rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, norm
from dynadp.consensus.progress import RoundProgress
from dynadp.consensus.residuals import Certificate, certificate_from
from dynadp.errors import DeclarationError, NotCertified
from dynadp.problem import Active, Problem, SummedProblem

# Hessians come from so many rows a column, where there are more than that, or from every 16th
_ROWS_PER_COLUMN, _MOST_LEFT_OUT = 16, 16
_PASSES = 2  # of a step, at most: a line search ends with a further gradient


@dataclass(frozen=True)
class Newton:
    """The pooled optimum by sums over all nodes, in place of Algorithm 1 and in simulation only.

    All nodes stand at one point. In each round every node sends the gradient of its rows there, and
    in some rounds its Hessian over a part of its rows too (past 512 columns the diagonal of it),
    all without noise. From the sums all take the same quasi-Newton step. It needs far fewer rounds
    than Algorithm 1, but a message for all, where Algorithm 1 has messages for neighbours.

    Attributes
    ----------
    gap
        Stop once the point is certified to have a pooled objective within this share of the
        optimum.
    distance
        Stop once it is certified to lie within this share of its norm from the optimum.
    """

    gap: float | None = None
    distance: float | None = None

    def __post_init__(self) -> None:
        for name in ("gap", "distance"):
            value = getattr(self, name)
            if value is not None:
                _require.share(name, value)
        if self.gap is None and self.distance is None:
            raise DeclarationError("neither gap nor distance is given; give one, to stop by it")


class Descent:
    """A :class:`Newton` at work.

    Parameters
    ----------
    plan
        When to stop.
    problem
        The nodes' problems.
    start
        The common point before round 1, 1 x 1 x d.
    rounds
        How many there may be.
    heard
        Called after every round with what it left: each node's gradient over its rows is its
        message.

    Attributes
    ----------
    point
        Where all nodes stand, 1 x 1 x d.
    certificate
        How far that is from the pooled optimum; rounding of the gradient is counted.
    stopped
        Whether a target was reached.
    """

    def __init__(
        self,
        plan: Newton,
        problem: Problem,
        start: Array,
        rounds: int,
        heard: Callable[[RoundProgress], None],
    ) -> None:
        self.plan, self.point, self.rounds, self.heard = plan, start, rounds, heard
        self.stopped, self._n = False, 0
        self._problem = SummedProblem(problem, self._note)
        self.certificate = self._descend()

    @np.errstate(over="ignore", invalid="ignore")  # infinities are looked for
    def _descend(self) -> Certificate:
        """Take steps until a target is reached, or the next might end past the last round."""
        problem, none = self._problem, np.zeros((1, 1))
        linear = np.zeros_like(self.point)
        gap, distance = self.plan.gap or np.inf, self.plan.distance or np.inf
        at = Active(problem, self.point, none, linear, none, none, none, None)
        rows = int(problem.counts[0] // (_ROWS_PER_COLUMN * problem.dimension))
        at.step = max(1, min(_MOST_LEFT_OUT, rows))
        value, step = problem.local_value(at.F, at.Z)[0], 0
        while True:
            at.certify()
            if not np.isfinite(at.bound).all():
                raise NotCertified(
                    "the run left the range of floating point; nothing is released. Raise rho, or "
                    "lower C"
                )
            last = self._n + _PASSES > self.rounds
            # with the value of an earlier point, which is larger, a gap looks too small
            found = certificate_from(problem, at.F, at.bound[0], value)
            if last or found.within(gap, distance):
                value = problem.local_value(at.F, at.Z)[0]
                found = certificate_from(problem, at.F, at.bound[0], value)
                self.stopped = found.within(gap, distance)
            if last or self.stopped:
                self.point = at.F
                return found
            step += 1
            at.advance(at.current_factor(step))

    def _note(self, point: Array, gradients: Array) -> None:
        """End a round: what each node sent, and where all stood."""
        self._n += 1
        still, moved = np.zeros((len(gradients), 1)), norm(point - self.point)
        self.point = point
        entry = RoundProgress(self._n, self.rounds, np.zeros(1), still, still + moved)
        self.heard(entry.with_messages(gradients, np.broadcast_to(point, gradients.shape)))
