"""Certified minimisers of the local problem (maths.md 6), for stacks of nodes and replicas.

:func:`solve` ends with a point g whose exact gradient norm is proven to be at most gamma, rounding
included, hence ||g - argmin|| <= gamma/Lam with Lam = rho + q; or it raises
:class:`~dynadp.errors.NotCertified`. Its path does not matter for privacy: quasi-Newton (L-BFGS)
directions on top of a factor M ~ H + q I that is shared by all replicas and kept across rounds,
unit steps, and a line search on the margins if a unit step will not do. The first factor majorises
the Hessian, so that a start far from any curvature does no harm. When progress is slow, and once
for the problem after the first, the factor is made anew at the point reached; for a single replica
that is Newton's method.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Numbers, Vectors, host, namespace, norm, on
from dynadp.errors import NotCertified
from dynadp.problem.descent import Active, Known
from dynadp.problem.factor import Factor, chunks_of
from dynadp.problem.objective import Problem

# iterations of a private run: how many are needed depends on rows, so no rows may come near the end
PATIENT = 100_000
_WORTH_COPIES = 1e7  # margins; on a GPU replicas that are done are left behind above


@dataclass(frozen=True)
class Solution:
    """A certified point.

    Attributes
    ----------
    point
        g, P x K x d.
    bound
        Certified bounds on ||grad(g)||, P x K, each at most gamma. Private: it depends on rows.
    factor
        For the next, similar problem; None if the start was good enough and none was needed.
    iterations
        Steps of the slowest replica, each one pass over the rows or, with a line search, two.
    known
        For the next problem, if it begins at ``point``; None on a GPU.
    """

    point: Vectors = field(repr=False)
    bound: Numbers = field(repr=False)
    factor: Factor | None = field(repr=False)
    iterations: int
    known: Known | None = field(repr=False)


@np.errstate(over="ignore", invalid="ignore")  # infinities are looked for
def solve(
    problem: Problem,
    q: Numbers,
    b: Vectors,
    gamma: Numbers,
    start: Vectors,
    *,
    factor: Factor | None = None,
    known: Known | None = None,
    b_size: Numbers | None = None,
    aim: Numbers | None = None,
    max_iterations: int = 500,
) -> Solution:
    """argmin_f Z_p(f) + (q/2)||f||^2 + b.f, to a certified gradient norm of at most gamma.

    Parameters
    ----------
    problem
        Rows, loss, regulariser, C and rho.
    q, b
        P x 1 or P x K, and P x K x d.
    gamma
        Public bound on the gradient norm, P x 1 or P x K.
    start
        Where to begin, P x K x d.
    factor
        From an earlier, similar problem with the same q.
    known
        From an earlier problem with the same rows: it saves a pass if that ended at the start.
    b_size
        See :func:`~dynadp.problem.certificate.rounding_error`; ||b|| by default.
    aim
        A smaller bound to go on to as far as rounding lets it, P x 1 or P x K: results then hardly
        depend on the start. gamma itself by default.
    max_iterations
        The limit; ``PATIENT`` in a private run, which no rows should reach.

    Raises
    ------
    NotCertified
        When gamma was not reached. Nothing computed from rows is shown.
    """
    xp = namespace(start)
    point = xp.array(start, dtype=float)  # returned as it is certified: no cast may come after
    shape = point.shape[:2]

    def broadcast(numbers: Array, shape: tuple[int, ...] = shape) -> Array:
        return xp.broadcast_to(on(numbers, point).astype(float, copy=False), shape)

    b, q = broadcast(b, point.shape), broadcast(q)
    gamma = np.broadcast_to(host(gamma).astype(float), shape)  # decides, and stays in memory
    aim = gamma if aim is None else np.minimum(host(aim), gamma)
    b_size = norm(b) if b_size is None else broadcast(b_size)
    kind = Active if isinstance(point, np.ndarray) else _kind(problem)
    active = kind(problem, point, q, b, b_size, gamma, aim, factor, known)
    bounds = xp.full(shape, np.inf)
    for iteration in range(1, max_iterations + 1):
        bound = active.certify()
        going = _going(active.todo, problem, point)
        if not going.all():
            point[:, active.replicas], bounds[:, active.replicas] = active.F, bound
            active.note()
            if not going.any():
                return Solution(point, bounds, active.factor, iteration, active.known(point))
        if not np.isfinite(active.bound).all():
            raise _failure("met no finite gradient", active.todo)
        if not going.all():
            active.keep(np.flatnonzero(going))
        active.advance(active.current_factor(iteration))
    raise _failure(
        f"did not reach the public gradient bound gamma within {max_iterations} iterations",
        active.todo,
    )


def _failure(event: str, todo: NDArray[np.bool_]) -> NotCertified:
    nodes = np.flatnonzero(todo.any(axis=1))[:5].tolist()
    return NotCertified(
        f"the solver {event} at node position(s) {nodes}; nothing is released. Raise gamma, which "
        "is part of the calibration, or rho, or choose a smaller start, noise or penalty"
    )


def _going(todo: NDArray[np.bool_], problem: Problem, point: Vectors) -> NDArray[np.bool_]:
    """True for replicas to go on with: those that are not done; on a GPU, where copies cost more,
    whole chunks, once half of them are done and their rows are many.
    """
    going = np.asarray(todo.any(axis=0))
    if isinstance(point, np.ndarray) or not going.any():
        return going
    size = point.shape[1] // chunks_of(point.shape[1])
    chunks = np.repeat(going.reshape(-1, size).any(axis=1), size)
    worth = problem.counts.sum() * len(chunks) > _WORTH_COPIES
    return chunks if worth and 2 * chunks.sum() <= len(chunks) else np.ones_like(going)


def _kind(problem: Problem) -> "type[Active]":
    """What works on replicas on a GPU."""
    from dynadp.problem.device_steps import DeviceActive, fits  # needs CuPy

    return DeviceActive if fits(problem) else Active
