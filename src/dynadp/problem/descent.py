"""The solver's steps on replicas that are not done: quasi-Newton (L-BFGS) directions on top of a
factor M ~ H + q I, unit steps, and a line search on the margins if a unit step will not do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Margins, Numbers, Vectors, dot, host, namespace, norm, on
from dynadp.problem.certificate import certificate, rounding_error
from dynadp.problem.factor import Factor
from dynadp.problem.gamma import LARGEST_INVERSE, LAST_INVERSE, few_rows
from dynadp.problem.objective import Problem

# iterations; past them an inverse is worth its cost where a diagonal was cheaper
_PATIENCE = 300
# nodes with more rows than this make a factor from every second to fourth of them
_ROWS_PER_COLUMN = 16
MEMORY = 8  # pairs kept for the quasi-Newton correction
FLAT = 0.9  # a step is good enough if the slope along it has shrunk to this share
_EXACT = 0.2  # if it is not, the line search goes on to this share
# the next gradient may be made in float32 where this one is longer than so many times the bound on
# its error in float64 (float32 errs 45,000 times that bound on Adult), and than the aim by what two
# steps usually gain
_ROUGH, _GAIN = 2.0**29 / 200, 10
# a factor that shrinks the gradient less than this per iteration, twice in a row, is made anew
_SLOW = 0.3


@dataclass(frozen=True)
class Known:
    """What a solve found where it ended, so that the next one, which begins there, makes no pass.

    Attributes
    ----------
    F, Z, local
        The points, and margins and grad Z_p there, as of
        :meth:`~dynadp.problem.objective.Problem.at`.
    """

    F: Vectors = field(repr=False)
    Z: Margins = field(repr=False)
    local: Vectors = field(repr=False)


class Active:
    """The replicas that are still worked on: all arrays hold these alone, except ``q_all``.

    Attributes
    ----------
    replicas
        Their positions.
    F, Z, local, G
        Vectors, margins, grad Z_p, gradients of the whole objective.
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
    stacked
        Names of what has a place for each replica, where F is.
    """

    stacked: ClassVar[tuple[str, ...]] = ("F", "Z", "local", "G", "q", "b", "b_size", "error")

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
        known: Known | None = None,
    ) -> None:
        self.problem, self.q_all = problem, q
        self.replicas = namespace(F).arange(F.shape[1])
        self.F, self.q, self.b, self.b_size = F, q, b, b_size
        self.gamma, self.aim = gamma, aim
        self.bound = self.decrement = np.full(F.shape[:2], np.inf)
        self.factor = self.M = factor
        rows = int(problem.counts.min() // (_ROWS_PER_COLUMN * problem.dimension))
        self.step, self.largest = max(1, min(4, rows)), LARGEST_INVERSE
        self.slow = self.remade = 0
        self._is_rough = False  # whether gradients are, which then certify nothing
        self._begin(known)

    def _begin(self, known: Known | None) -> None:
        """Margins and gradients at the start."""
        if known is not None and np.array_equal(known.F, self.F):
            self.Z, self.local = known.Z, known.local
        else:
            self.Z, self.local = self.problem.at(self.F)
        self.G = self._gradient(self.F, self.local)
        self.memory = _QuasiNewton()
        self._ends: tuple[Margins, Vectors] | None = None

    def _gradient(self, F: Vectors, local: Vectors) -> Vectors:
        """The gradient of the whole objective, from grad Z_p."""
        return local + self.q[..., None] * F + self.b

    def _certified(self) -> tuple[Numbers, Numbers]:
        """Certified bounds at F, where F is and in memory."""
        self.error = rounding_error(self.problem, self.F, self.q, self.b_size)
        bound = certificate(self.problem, self.G, self.error)
        return bound, host(bound)

    def certify(self) -> Numbers:
        """Certified bounds at F; what is not good enough is ``todo``."""
        last = self.bound
        bound, self.bound = self._certified()
        # good enough, and no longer better
        stuck = (self.bound <= self.gamma) & (self.bound > 0.5 * last)
        self.todo = ~((self.bound <= self.aim) | stuck) | self._is_rough
        return bound

    def note(self) -> None:
        """Remember margins and grad Z_p here, for replicas that may not go on."""
        if self._ends is None:
            self._ends = self.Z.copy(), self.local.copy()
        else:
            for end, value in zip(self._ends, (self.Z, self.local), strict=True):
                end[:, self.replicas] = value

    def known(self, point: Vectors) -> Known | None:
        """What was noted, where replicas ended."""
        return self._ends and Known(point.copy(), *self._ends)

    def keep(self, going: NDArray[np.int64]) -> None:
        """Go on with some of the replicas."""
        for name in ("gamma", "aim", "bound", "todo", "decrement"):
            setattr(self, name, getattr(self, name)[:, going])
        stay = on(going, self.F)
        for name in self.stacked:
            setattr(self, name, self._of(getattr(self, name), stay))
        self.replicas = self.replicas[stay]
        self.M = self.M and self.M.of(going)
        self.memory.keep(stay)

    @staticmethod
    def _of(array: Array, replicas: Array) -> Array:
        return array[:, replicas]

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
            self.memory.clear()  # Newton's method: old pairs would only spoil it
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
        F, G = self.F, self.G
        self._is_rough = not self.slow and self._far()
        self.F, self.Z, self.local, self.G = self._moved(D, slope)
        self.memory.learn(self.F - F, self.G - G)
        self.judge(host(dot(G, plain)))

    def _far(self) -> bool:
        """Whether gradients are so long that a few digits of the next ones are enough."""
        least = np.maximum(_ROUGH * host(self.error), _GAIN**2 * self.aim)
        return bool((self.bound > least).all())

    def judge(self, decrement: Numbers) -> None:
        """Count iterations in a row that were slow, by G.M^{-1}G of this one and the one before."""
        before, self.decrement = self.decrement, np.where(self.todo, decrement, 0.0)
        self.slow = self.slow + 1 if (self.decrement > _SLOW**2 * before).any() else 0

    def _moved(self, D: Vectors, before: Numbers) -> tuple[Vectors, Margins, Vectors, Vectors]:
        """F + t D with its margins and gradients: t = 1 where that is good enough, else by
        ``_search`` along the margins.

        ``before`` is G.D, the slope at t = 0.
        """
        problem, F, Z, q, b = self.problem, self.F, self.Z, self.q, self.b
        trial = F + D
        rough = problem.rough(trial) if self._is_rough else None
        self._is_rough = rough is not None
        Z_trial, local = problem.at(trial) if rough is None else (Z[:0], rough)
        G_trial = self._gradient(trial, local)
        xp = namespace(F)
        after = dot(G_trial, D)
        # Below ``error`` times ||D|| a slope along D is rounding noise: there a unit step is as
        # good as any.
        bad = (xp.abs(after) > -FLAT * before) & (xp.abs(after) > self.error * norm(D))
        some = on(np.flatnonzero(host(bad).any(axis=0)), F)
        if not some.size:
            return trial, Z_trial, local, G_trial
        chosen = F[:, some], Z[:, some], D[:, some], q[:, some], b[:, some]
        slopes = before[:, some], after[:, some], bad[:, some]
        trial[:, some], Z_trial[:, some], local[:, some] = on_the_line(
            problem, *chosen, *slopes, Z_trial[:, some] - Z[:, some]
        )
        return trial, Z_trial, local, self._gradient(trial, local)


def on_the_line(
    problem: Problem,
    F: Vectors,
    Z: Margins,
    D: Vectors,
    q: Numbers,
    b: Vectors,
    before: Numbers,
    after: Numbers,
    bad: NDArray[np.bool_],
    dZ: Margins,
) -> tuple[Vectors, Margins, Vectors]:
    """F + t D by ``_search``, its margins and grad Z_p; dZ is a difference of margins, or empty."""
    noise = problem.roundings.slopes * norm(F)  # of slopes made of that difference
    if not len(dZ) or (namespace(F).abs(before) < noise).any():
        dZ = problem.products(D)
    t = _search(problem.along(F, D, Z, dZ, q, b), before, after, bad)
    found = F + t[..., None] * D
    return found, *problem.at(found)


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

    def clear(self) -> None:
        self.pairs.clear()

    def keep(self, replicas: Array) -> None:
        self.pairs = [(s[:, replicas], y[:, replicas], w[:, replicas]) for s, y, w in self.pairs]

    def learn(self, s: Vectors, y: Vectors) -> None:
        xp, product = namespace(s), dot(s, y)
        useful = product > 1e-12 * norm(s) * norm(y)  # a pair without curvature weighs nothing
        self.pairs.append((s, y, xp.where(useful, 1 / xp.where(useful, product, 1.0), 0.0)))
        del self.pairs[:-MEMORY]

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
