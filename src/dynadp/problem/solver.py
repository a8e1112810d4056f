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

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Margins, Numbers, Vectors, dot, host, namespace, norm, on
from dynadp.errors import NotCertified
from dynadp.problem.factor import Factor, chunks_of
from dynadp.problem.gamma import LARGEST_INVERSE, LAST_INVERSE, few_rows
from dynadp.problem.objective import Problem
from dynadp.problem.rounding import rounding_of

# iterations; past them an inverse is worth its cost where a diagonal was cheaper
_PATIENCE = 300
# nodes with more rows than this make a factor from every second to fourth of them
_ROWS_PER_COLUMN = 16
_MEMORY = 8  # pairs kept for the quasi-Newton correction
_FLAT = 0.9  # a step is good enough if the slope along it has shrunk to this share
_EXACT = 0.2  # if it is not, the line search goes on to this share
# iterations of a private run: how many are needed depends on rows, so no rows may come near the end
PATIENT = 100_000
# a factor that shrinks the gradient less than this per iteration, twice in a row, is made anew
_SLOW = 0.3


def rounding_error(problem: Problem, F: Vectors, q: Numbers, b_size: Numbers) -> Numbers:
    """E, a bound on the error of the computed gradient at F (maths.md 6).

    E = C_p (c1 k_{m+2} ||F|| + k_{B+8}) + k_10 (q ||F|| + rho ||grad R(F)|| + ``b_size``), m the
    roundings of a margin (:func:`~dynadp._arrays.dot_roundings`), for float64, L' and grad R within
    a few units in the last place and rows summed in any order; ``b_size`` is the sum of the norms
    of the vectors that make up b. For residuals c1 k_{m+3} (||F|| + 1) stands in place of
    c1 k_{m+2} ||F||.
    """
    size, slope = norm(F), problem.regularizer.gradient(F)
    rest = q * size + problem.rho * (size if slope is F else norm(slope)) + b_size
    return problem.roundings.margins * size + problem.roundings.sums + rounding_of(10) * rest


def certificate(problem: Problem, gradient: Vectors, error: Numbers) -> Numbers:
    """||computed gradient|| (1 + k_{d+2}) + E, an upper bound on the norm of the exact gradient
    (maths.md 6).
    """
    return norm(gradient) * (1 + rounding_of(problem.dimension + 2)) + error


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
    """

    point: Vectors = field(repr=False)
    bound: Numbers = field(repr=False)
    factor: Factor | None = field(repr=False)
    iterations: int


@np.errstate(over="ignore", invalid="ignore")  # infinities are looked for
def solve(
    problem: Problem,
    q: Numbers,
    b: Vectors,
    gamma: Numbers,
    start: Vectors,
    *,
    factor: Factor | None = None,
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
    b_size
        See :func:`rounding_error`; ||b|| by default.
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

    b, q, gamma = broadcast(b, point.shape), broadcast(q), broadcast(gamma)
    aim = gamma if aim is None else xp.minimum(broadcast(aim), gamma)
    b_size = norm(b) if b_size is None else broadcast(b_size)
    active = _Active(problem, point, q, b, b_size, gamma, aim, factor)
    bounds = xp.full(shape, np.inf)
    for iteration in range(1, max_iterations + 1):
        bound = active.certify()
        going = _going(active.todo, point)
        if not going.all():
            point[:, active.replicas], bounds[:, active.replicas] = active.F, bound
            if not going.any():
                return Solution(point, bounds, active.factor, iteration)
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


def _going(todo: NDArray[np.bool_], point: Vectors) -> NDArray[np.bool_]:
    """True for replicas to go on with: those that are not done; on a GPU, where copies cost more,
    whole chunks, once half of them are done.
    """
    going = np.asarray(todo.any(axis=0))
    if isinstance(point, np.ndarray) or not going.any():
        return going
    size = point.shape[1] // chunks_of(point.shape[1])
    chunks = np.repeat(going.reshape(-1, size).any(axis=1), size)
    return chunks if 2 * chunks.sum() <= len(chunks) else np.ones_like(going)


class _Active:
    """The replicas that are still worked on: all arrays hold these alone, except ``q_all``.

    Attributes
    ----------
    replicas
        Their positions.
    F, Z, G
        Vectors, margins, gradients.
    error
        Of the gradient, by :func:`rounding_error`.
    gamma, aim, bound
        The bound to reach, the one to go on to and the last one. These and the next two are small,
        decide, and live in memory.
    todo
        True where the solver goes on.
    decrement
        G.M^{-1}G of the iteration before.
    factor, M
        For all replicas, and for these.
    step, largest
        The factor is made from every ``step``-th row; inverses have up to so many columns.
    slow, remade
        Iterations in a row that were slow; how often the factor was made anew because of it.
    memory
        The quasi-Newton correction of M.
    """

    def __init__(
        self,
        problem: Problem,
        F: Vectors,
        q: Numbers,
        b: Vectors,
        b_size: Numbers,
        gamma: Numbers,
        aim: Numbers,
        factor: Factor | None,
    ) -> None:
        self.problem, self.q_all = problem, q
        self.replicas = namespace(F).arange(F.shape[1])
        self.F, self.q, self.b, self.b_size = F, q, b, b_size
        self.Z, self.G = _at(problem, F, q, b)
        self.gamma, self.aim = host(gamma), host(aim)
        self.bound = self.decrement = np.full(F.shape[:2], np.inf)
        self.factor = self.M = factor
        rows = int(problem.counts.min() // (_ROWS_PER_COLUMN * problem.dimension))
        self.step, self.largest = max(1, min(4, rows)), LARGEST_INVERSE
        self.slow = self.remade = 0
        self.memory = _QuasiNewton()

    def certify(self) -> Numbers:
        """Certified bounds at F; what is not good enough is ``todo``."""
        self.error = rounding_error(self.problem, self.F, self.q, self.b_size)
        bound = certificate(self.problem, self.G, self.error)
        last, self.bound = self.bound, host(bound)
        # good enough, and no longer better
        stuck = (self.bound <= self.gamma) & (self.bound > 0.5 * last)
        self.todo = ~((self.bound <= self.aim) | stuck)
        return bound

    def keep(self, going: NDArray[np.int64]) -> None:
        """Go on with some of the replicas."""
        for name in ("gamma", "aim", "bound", "todo", "decrement"):
            setattr(self, name, getattr(self, name)[:, going])
        stay = on(going, self.F)
        for name in ("F", "Z", "G", "q", "b", "b_size", "error"):
            setattr(self, name, getattr(self, name)[:, stay])
        self.replicas = self.replicas[stay]
        self.M = self.M and self.M.of(going)
        self.memory.keep(stay)

    def current_factor(self, iteration: int) -> Factor:
        """The factor, made anew if there is none, or if it is slow or was the first."""
        if iteration == _PATIENCE and few_rows(self.problem.counts, self.problem.dimension):
            self.largest, self.slow = LAST_INVERSE, 2
        first = self.M is None or (iteration == 1 and self.M.majorant)
        if self.M is not None and not first and self.slow < 2:
            return self.M
        self.remade += self.slow == 2
        if self.remade > 1:  # rows that were left out may be the ones that curve
            self.step = 1
        self.factor = Factor.at(
            self.problem,
            self.F,
            self.Z,
            self.q_all,
            step=self.step,
            majorant=self.factor is None,
            largest=self.largest,
        )
        self.M = self.factor.of(np.asarray(host(self.replicas), dtype=int))
        self.slow, self.decrement = 0, np.full(self.todo.shape, np.inf)
        if len(self.replicas) == 1 and self.factor.inverses.ndim == 4:
            self.memory = _QuasiNewton()  # Newton's method: old pairs would only spoil it
        return self.M

    def advance(self, M: Factor) -> None:
        """One step of every replica."""
        plain = M.apply(self.G)
        D = -self.memory.apply(M, self.G, plain)
        slope = dot(self.G, D)
        # on a GPU the question costs more than the correction
        if not isinstance(D, np.ndarray) or not (slope < 0).all():
            D = namespace(D).where((slope < 0)[..., None], D, -plain)
            slope = dot(self.G, D)
        if not self.todo.all():
            D *= on(self.todo, D)[..., None]
            slope *= on(self.todo, slope)
        F, G, before = self.F, self.G, self.decrement
        self.F, self.Z, self.G = self._moved(D, slope)
        self.memory.learn(self.F - F, self.G - G)
        self.decrement = np.where(self.todo, host(dot(G, plain)), 0.0)
        self.slow = self.slow + 1 if (self.decrement > _SLOW**2 * before).any() else 0

    def _moved(self, D: Vectors, before: Numbers) -> tuple[Vectors, Margins, Vectors]:
        """F + t D with its margins and gradient: t = 1 where that is good enough, else by
        :func:`_search` along the margins.

        ``before`` is G.D, the slope at t = 0.
        """
        problem, F, Z, q, b = self.problem, self.F, self.Z, self.q, self.b
        trial = F + D
        Z_trial, G_trial = _at(problem, trial, q, b)
        xp = namespace(F)
        after = dot(G_trial, D)
        # Below ``error`` times ||D|| a slope along D is rounding noise: there a unit step is as
        # good as any.
        bad = (xp.abs(after) > -_FLAT * before) & (xp.abs(after) > self.error * norm(D))
        some = on(np.flatnonzero(host(bad).any(axis=0)), F)
        if not some.size:
            return trial, Z_trial, G_trial
        dZ = Z_trial[:, some] - Z[:, some]
        noise = problem.roundings.slopes * norm(F)  # of slopes made of that difference
        if (xp.abs(before) < noise)[:, some].any():
            dZ = problem.products(D[:, some])
        slope = problem.along(F[:, some], D[:, some], Z[:, some], dZ, q[:, some], b[:, some])
        t = _search(slope, before[:, some], after[:, some], bad[:, some])
        trial[:, some] = F[:, some] + t[..., None] * D[:, some]
        Z_trial[:, some], G_trial[:, some] = _at(problem, trial[:, some], q[:, some], b[:, some])
        return trial, Z_trial, G_trial


def _at(problem: Problem, F: Vectors, q: Numbers, b: Vectors) -> tuple[Margins, Vectors]:
    """Margins at F, and the gradient of the whole objective."""
    Z, local = problem.at(F)
    return Z, local + q[..., None] * F + b


def _search(
    slope: Callable[[Numbers], Numbers], before: Numbers, after: Numbers, bad: NDArray[np.bool_]
) -> Numbers:
    """t with |phi'(t)| <= 0.2 |phi'(0)|, phi the objective along F + t D, by a bracket on the
    increasing phi' = ``slope``.
    """
    xp = namespace(before)
    t, value = xp.ones(bad.shape), after
    low, low_value = xp.zeros(bad.shape), before
    high, high_value = xp.full(bad.shape, np.inf), xp.full(bad.shape, np.inf)
    for _ in range(30):
        over = value > 0
        high, high_value = xp.where(over, t, high), xp.where(over, value, high_value)
        low, low_value = xp.where(over, low, t), xp.where(over, low_value, value)
        width = high - low
        with np.errstate(invalid="ignore"):
            secant = low - low_value * width / (high_value - low_value)
            inside = xp.clip(secant, low + 0.1 * width, high - 0.1 * width)
        t = xp.where(bad, xp.where(xp.isfinite(high), inside, 4 * t), t)
        value = slope(t)
        bad = bad & (xp.abs(value) > -_EXACT * before)
        if not bad.any():
            break
    return t


class _QuasiNewton:
    """The L-BFGS correction of M^{-1} from the last few steps s and gradient changes y (Nocedal and
    Wright, Alg. 7.4).
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[Vectors, Vectors, Numbers]] = []

    def keep(self, replicas: Array) -> None:
        self.pairs = [(s[:, replicas], y[:, replicas], w[:, replicas]) for s, y, w in self.pairs]

    def learn(self, s: Vectors, y: Vectors) -> None:
        xp, product = namespace(s), dot(s, y)
        useful = product > 1e-12 * norm(s) * norm(y)  # a pair without curvature weighs nothing
        self.pairs.append((s, y, xp.where(useful, 1 / xp.where(useful, product, 1.0), 0.0)))
        del self.pairs[:-_MEMORY]

    def apply(self, M: Factor, G: Vectors, plain: Vectors) -> Vectors:
        if not self.pairs:
            return plain
        r = G
        weights = []
        for s, y, w in reversed(self.pairs):
            weights.append(w * dot(s, r))
            r = r - weights[-1][..., None] * y
        r = M.apply(r)
        for (s, y, w), a in zip(self.pairs, reversed(weights), strict=True):
            r = r + (a - w * dot(y, r))[..., None] * s
        return r
