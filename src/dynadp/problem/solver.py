"""Certified minimisers of the local problem (maths.md 6), for stacks of nodes and replicas.

:func:`solve` ends with a point g whose exact gradient norm is proven to be at most gamma, rounding
included, hence
||g - argmin|| <= gamma/Lam with Lam = rho + q; or it raises :class:`~dynadp.errors.NotCertified`. How it gets there does not
matter for privacy: quasi-Newton (L-BFGS) directions on top of a factor M ~ H + q I that is shared
by all replicas and kept across rounds, unit steps, and a line search on the margins where a unit
step will not do. The first factor majorises the Hessian, so that a start far from any curvature
does no harm. When progress is slow, and once for the problem after the first, the factor is made
anew at the point reached; for a single replica that is Newton's method.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, dot, dot_roundings, host, namespace, norm, on
from dynadp.errors import NotCertified
from dynadp.problem.objective import WORTH_SHARING, Problem, Terms, share_out, spans

_UNIT = 2.0**-53
_FLOOR = 1e-10  # of C: a gamma that costs no more needs no haggling over roundings
_LARGEST_INVERSE = 512  # columns; past it, or past the next limit, the factor is a diagonal
_LARGEST_FACTOR = 1e8  # numbers in all inverses together
# iterations; past them an inverse is worth its cost where a diagonal was cheaper, up to the next
# limits
_PATIENCE = 300
_LAST_INVERSE, _LAST_ROWS = (
    4096,
    1e8,
)  # columns, and numbers in the largest node's rows, which are written down for it
_ROWS_PER_COLUMN = (
    16  # where nodes have more rows than this, a factor is made from every second to fourth of them
)
_MEMORY = 8  # pairs kept for the quasi-Newton correction
_FLAT = 0.9  # a step is good enough where the slope along it has shrunk to this share
_EXACT = 0.2  # and where it is not, the line search goes on to this share
# iterations of a private run: how many are needed depends on rows, so no rows may come near the end
PATIENT = 100_000
_STEEP = 1e6  # C c1/Lam, past which that is not to be relied on where there are no inverses
_CHUNK = 50  # replicas that share a Hessian on a GPU
# a factor that shrinks the gradient less than this per iteration, twice in a row, is made anew
_SLOW = 0.3


def _chunks(replicas: int) -> int:
    """How many chunks of at most _CHUNK replicas there are, all of one size; 1 where they do not
    divide.
    """
    chunks = -(-replicas // _CHUNK)
    return chunks if replicas % chunks == 0 else 1


def rounding(n: float | Array) -> Array:
    """k_n = n u / (1 - n u), u = 2^-53: the relative error of n roundings (Higham, Lemma 3.1)."""
    n = np.asarray(n, dtype=float)
    return np.asarray(n * _UNIT / (1 - n * _UNIT))


@cache
def _k(n: int) -> float:
    return float(rounding(n))


def _dot(dimension: int) -> float:
    """k_{m+2}, the relative error of a margin."""
    return _k(dot_roundings(dimension) + 2)


def default_gamma(
    terms: Terms, q: Array | float = 0.0, reach: Array | float | None = None
) -> Array:
    """gamma_p = C_p (1e-10 + 16 k_{B_p + 8} + 4 c1 k_{m+2} r) + 4 k_10 (3 q + rho sup R'') r:
    public numbers only, P x 1.

    Well above what rounding allows (:func:`rounding_error`) for any vector of norm up to r. Without
    a ``reach`` r is min(1e5, sqrt(2 C L(0)/rho)), whose second part is a bound on ||argmin Z_p||.
    Longer vectors need a larger gamma. It is a target for solvers; what a private run promises to
    reach is :func:`reachable_gamma`.

    Parameters
    ----------
    terms
        Counts, loss and constants.
    q
        The penalty 2 eta N_p, P x K, where there is one.
    reach
        How long vectors may get, where noise or the start make them longer: P x K or a number.
    """
    at_zero = float(terms.loss.value(np.zeros(1))[0])
    C = terms.C[:, None]
    own = np.minimum(1e5, np.sqrt(2 * C * at_zero / terms.rho))
    r = own + (0.0 if reach is None else np.asarray(reach, dtype=float))
    rows = (
        _FLOOR
        + 16 * rounding(terms.counts + 8)[:, None]
        + 4 * terms.loss.c1 * _dot(terms.dimension) * r
    )
    rest = 4 * rounding(10) * (3 * np.asarray(q) + terms.rho * terms.regularizer.smoothness) * r
    return np.asarray((C * rows + rest).max(axis=1, keepdims=True))


def longest(terms: Terms, Lam: Array, b: Array) -> Array:
    """( ||b|| + min(C_p, sqrt(||b||^2 + 2 Lam C_p L(0))) )/Lam: no minimiser is longer, whatever
    the rows; P x K (maths.md 6).

    Parameters
    ----------
    terms
        C_p and the loss.
    Lam
        The local problem's strong convexity, P x K.
    b
        Bounds on the norm of its linear term, P x K.
    """
    C, at_zero = terms.C[:, None], float(terms.loss.value(np.zeros(1))[0])
    return np.asarray((b + np.minimum(C, np.sqrt(b * b + 2 * Lam * C * at_zero))) / Lam)


def reliable(terms: Terms, Lam: Array) -> NDArray[np.bool_]:
    """Whether solves end within ``PATIENT`` iterations, whatever the rows, as far as was tried: P x
    K.

    Newton's method does. Where columns are too many for its inverses, the quasi-Newton one takes
    about as many iterations as the root of the condition number C_p c1/Lam, so that must not be
    past 1e6.
    """
    newton = terms.dimension <= _LARGEST_INVERSE or (
        terms.dimension <= _LAST_INVERSE and terms.counts.max() * terms.dimension <= _LAST_ROWS
    )
    return np.asarray(terms.C[:, None] * terms.loss.c1 <= (np.inf if newton else _STEEP) * Lam)


def reachable_gamma(terms: Terms, q: Array, size: Array, b_size: Array) -> Array:
    """gamma_p = 1e-10 C_p + 2.5 E: at the minimiser, rounded to float64, the certificate holds
    (maths.md 6): P x K.

    Parameters
    ----------
    terms
        Counts, loss and constants.
    q
        All that is added to rho, P x K.
    size
        How long minimisers may be, P x K (:func:`longest`).
    b_size
        The sum of the norms of what makes up b, P x K, at most.
    """
    return np.asarray(
        _FLOOR * terms.C[:, None]
        + 2.5 * _error(terms, size, terms.regularizer.smoothness * size, q, b_size)
    )


def _error(terms: Terms, size: Array, slope: Array, q: Array, b_size: Array) -> Array:
    rows = terms.loss.c1 * _dot(terms.dimension) * size + rounding(terms.counts + 8)[:, None]
    return np.asarray(terms.C[:, None] * rows + _k(10) * (q * size + terms.rho * slope + b_size))


def rounding_error(problem: Problem, F: Array, q: Array, b_size: Array) -> Array:
    """E, how far the computed gradient at F may be off (maths.md 6): P x K.

    E = C_p (c1 k_{m+2} ||F|| + k_{B+8}) + k_10 (q ||F|| + rho ||grad R(F)|| + ``b_size``), m the
    roundings of a margin (:func:`~dynadp._arrays.dot_roundings`), for float64, L' and grad R within
    a few units in the last place and rows summed in any order; ``b_size`` is the sum of the norms
    of the vectors that make up b.
    """
    size, slope = norm(F), problem.regularizer.gradient(F)
    rest = q * size + problem.rho * (size if slope is F else norm(slope)) + b_size
    margins = problem.on_rows(
        lambda: problem.C[:, None] * problem.loss.c1 * _dot(problem.dimension)
    )
    return (
        margins * size
        + problem.on_rows(lambda: (problem.C * rounding(problem.counts + 8))[:, None])
        + _k(10) * rest
    )


def certificate(problem: Problem, gradient: Array, error: Array) -> Array:
    """||computed gradient|| (1 + k_{d+2}) + E, an upper bound on the norm of the exact gradient
    (maths.md 6): P x K.
    """
    return norm(gradient) * (1 + _k(problem.dimension + 2)) + error


@dataclass(frozen=True)
class Factor:
    """M_p ~ H_p + q_p I as explicit inverses (groups x P x d x d) or as diagonals (groups x P x d).

    Replicas with equal q share a group; ``group`` names the group of each replica, or is empty
    where all share one. ``majorant`` marks a first factor, good for any start and best for none.
    """

    inverses: Array = field(repr=False)
    group: NDArray[np.int64]
    majorant: bool = False

    @classmethod
    def at(
        cls,
        problem: Problem,
        F: Array,
        Z: Array,
        q: Array,
        step: int = 1,
        majorant: bool = False,
        largest: int = _LARGEST_INVERSE,
    ) -> "Factor":
        """The factor for curvature averaged over the replicas F; Hessians, or their majorant, from
        every ``step``-th row.

        Inverses have up to ``largest`` columns.
        """
        xp = namespace(F)
        distinct, group = np.unique(host(q), axis=1, return_inverse=True)
        group = np.zeros(0, dtype=int) if distinct.shape[1] == 1 else group.reshape(-1)
        shifts = on(distinct.T[..., None], F)  # groups x P x 1
        d = problem.dimension
        if d > largest or len(problem) * len(shifts) * d * d > _LARGEST_FACTOR:
            return cls(problem.hessian_diagonals(F, Z, majorant) + shifts, group, majorant)
        whole = F.shape[1] == q.shape[1]
        if (
            not isinstance(F, np.ndarray)
            and whole
            and not majorant
            and (chunks := _chunks(F.shape[1])) > 1
        ):
            return cls._in_chunks(problem, F, Z, q, chunks)
        H = problem.hessians(F, Z, step, majorant)
        # Duplicated columns make H singular; a shift far below its own rounding noise keeps the
        # inverse finite.
        shifts = shifts + 1e-13 * xp.trace(H, axis1=1, axis2=2)[:, None]
        diagonal = xp.arange(d)
        inverses = xp.empty((len(shifts), *H.shape))
        for inverse, shift in zip(inverses, shifts, strict=True):
            inverse[:] = H
            inverse[:, diagonal, diagonal] += shift
            if isinstance(F, np.ndarray):
                share_out(partial(_invert, inverse), spans(len(H)), H.size * d > WORTH_SHARING)
            else:
                inverse[:] = xp.linalg.inv(inverse)
        return cls(inverses, group, majorant)

    @classmethod
    def _in_chunks(cls, problem: Problem, F: Array, Z: Array, q: Array, chunks: int) -> "Factor":
        """On a GPU, where a Hessian costs little: one for each chunk of consecutive replicas, which
        in sweeps are alike.
        """
        xp, size = namespace(F), F.shape[1] // chunks
        H = problem.chunk_hessians(F, Z, chunks)
        diagonal = xp.arange(problem.dimension)
        shifts = q.reshape(len(problem), chunks, size).mean(axis=2).T[..., None]
        H[..., diagonal, diagonal] += shifts + 1e-13 * xp.trace(H, axis1=2, axis2=3)[..., None]
        return cls(xp.linalg.inv(H), np.repeat(np.arange(chunks), size))

    def apply(self, G: Array) -> Array:
        """M^{-1} G."""
        if not self.group.size:
            return self._apply(0, G)
        size = G.shape[1] // len(self.inverses)
        if not isinstance(G, np.ndarray) and np.array_equal(
            self.group, np.repeat(np.arange(len(self.inverses)), size)
        ):
            xp, (P, K, d) = namespace(G), G.shape
            chunked = G.reshape(P, -1, size, d).transpose(1, 0, 2, 3)
            return xp.matmul(chunked, self.inverses).transpose(1, 0, 2, 3).reshape(P, K, d)
        out = namespace(G).empty_like(G)
        for i in range(len(self.inverses)):
            chosen = np.flatnonzero(self.group == i)
            if not chosen.size:
                continue
            together = chosen[-1] - chosen[0] + 1 == chosen.size  # then no copy is needed
            some = slice(int(chosen[0]), int(chosen[-1]) + 1) if together else on(chosen, G)
            out[:, some] = self._apply(i, G[:, some])
        return out

    def _apply(self, i: int, G: Array) -> Array:
        M = self.inverses[i]
        return namespace(G).matmul(G, M) if M.ndim == 3 else G / M[:, None, :]

    def of(self, replicas: NDArray[np.int64]) -> "Factor":
        """The same factor for some of the replicas, and what they need of it."""
        if not self.group.size or len(replicas) == len(self.group):
            return self
        kept, group = np.unique(self.group[replicas], return_inverse=True)
        return replace(self, inverses=self.inverses[on(kept, self.inverses)], group=group)


def _invert(matrices: Array, some: slice) -> None:
    matrices[some] = np.linalg.inv(matrices[some])


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
        For the next, similar problem; None where the start was good enough and none was needed.
    iterations
        Steps of the slowest replica, each one pass over the rows or, with a line search, two.
    """

    point: Array = field(repr=False)
    bound: Array = field(repr=False)
    factor: Factor | None = field(repr=False)
    iterations: int


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is looked for
def solve(
    problem: Problem,
    q: Array,
    b: Array,
    gamma: Array,
    start: Array,
    *,
    factor: Factor | None = None,
    b_size: Array | None = None,
    aim: Array | None = None,
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
        A smaller bound to go on to where rounding lets it, P x 1 or P x K: results then hardly
        depend on the start. gamma itself by default.
    max_iterations
        After these, give up; ``PATIENT`` in a private run, which no rows should reach.

    Raises
    ------
    NotCertified
        When gamma was not reached. Nothing computed from rows is shown.
    """
    xp = namespace(start)
    point = xp.array(
        start, dtype=float
    )  # what is returned is what is certified: no cast may come after
    shape = point.shape[:2]
    b = xp.broadcast_to(on(b, point).astype(float, copy=False), point.shape)
    numbers = (q, gamma, gamma if aim is None else aim)
    q, gamma, aim = (
        xp.broadcast_to(on(v, point).astype(float, copy=False), shape) for v in numbers
    )
    aim = xp.minimum(aim, gamma)
    b_size = (
        norm(b)
        if b_size is None
        else xp.broadcast_to(on(b_size, point).astype(float, copy=False), shape)
    )
    bounds = xp.full(shape, np.inf)
    thin = max(1, min(4, int(problem.counts.min() // (_ROWS_PER_COLUMN * problem.dimension))))
    at = xp.arange(shape[1])  # the replicas still worked on: what follows holds only these
    F, q_at, b_at, size = point, q, b, b_size
    Z, G = _at(problem, F, q, b)
    enough, goal, best = (
        host(gamma),
        host(aim),
        np.full(shape, np.inf),
    )  # what decides is small, and lives in memory
    memory, slow, remade, before, finite = _QuasiNewton(), 0, 0, np.full(shape, np.inf), True
    M, largest = factor, _LARGEST_INVERSE
    for iteration in range(1, max_iterations + 1):
        error = rounding_error(problem, F, q_at, size)
        bound = certificate(problem, G, error)
        last, best = best, host(bound)
        stuck = (best <= enough) & (best > 0.5 * last)  # good enough, and no longer better
        todo = ~((best <= goal) | stuck)
        going = _going(todo, point)
        if not going.all():
            point[:, at], bounds[:, at] = F, bound
            if not going.any():
                return Solution(point, bounds, factor, iteration)
        finite = bool(np.isfinite(best).all())
        if not finite:
            break
        if not going.all():
            enough, goal, best, before = (v[:, going] for v in (enough, goal, best, before))
            todo, M, stay = (
                todo[:, going],
                M and M.of(np.flatnonzero(going)),
                on(np.flatnonzero(going), F),
            )
            F, Z, G, q_at, b_at, size, error = (
                v[:, stay] for v in (F, Z, G, q_at, b_at, size, error)
            )
            at = at[stay]
            memory.keep(stay)
        if iteration == _PATIENCE and problem.counts.max() * problem.dimension <= _LAST_ROWS:
            largest, slow = _LAST_INVERSE, 2
        if factor is None or M is None or slow == 2 or (iteration == 1 and factor.majorant):
            remade += slow == 2
            if remade > 1:  # rows that were left out may be the ones that curve
                thin = 1
            factor = Factor.at(
                problem, F, Z, q, step=thin, majorant=factor is None, largest=largest
            )
            M = factor.of(np.asarray(host(at), dtype=int))
            slow, before = 0, np.full(todo.shape, np.inf)
            if (
                len(at) == 1 and factor.inverses.ndim == 4
            ):  # Newton's method: old pairs would only spoil it
                memory = _QuasiNewton()
        plain = M.apply(G)
        D = -memory.apply(M, G, plain)
        slope = dot(G, D)
        if (
            not isinstance(D, np.ndarray) or not (slope < 0).all()
        ):  # on a GPU to ask costs more than to do it
            D = xp.where((slope < 0)[..., None], D, -plain)
            slope = dot(G, D)
        if not todo.all():
            D *= on(todo, D)[..., None]
            slope *= on(todo, slope)
        F_next, Z, G_next = _advance(problem, F, Z, G, D, slope, q_at, b_at, error)
        memory.learn(F_next - F, G_next - G)
        now = np.where(todo, host(dot(G, plain)), 0.0)
        slow = slow + 1 if (now > _SLOW**2 * before).any() else 0
        F, G, before = F_next, G_next, now
    nodes = np.flatnonzero(todo.any(axis=1))[:5].tolist()
    what = (
        f"did not reach the public gradient bound gamma within {max_iterations} iterations"
        if finite
        else "met no finite gradient"
    )
    raise NotCertified(
        f"the solver {what} at node position(s) {nodes}; nothing is released. Raise gamma, which "
        f"is part of the calibration, "
        "or rho, or choose a smaller start, noise or penalty"
    )


def _going(todo: NDArray[np.bool_], point: Array) -> NDArray[np.bool_]:
    """Which replicas to go on with: those that are not done; on a GPU, where copies cost more,
    whole chunks, if half are.
    """
    going = np.asarray(todo.any(axis=0))
    if isinstance(point, np.ndarray) or not going.any():
        return going
    size = point.shape[1] // _chunks(point.shape[1])
    chunks = np.repeat(going.reshape(-1, size).any(axis=1), size)
    return chunks if 2 * chunks.sum() <= len(chunks) else np.ones_like(going)


def _at(problem: Problem, F: Array, q: Array, b: Array) -> tuple[Array, Array]:
    """Margins at F, and the gradient of the whole objective."""
    Z, local = problem.at(F)
    return Z, local + q[..., None] * F + b


def _advance(
    problem: Problem,
    F: Array,
    Z: Array,
    G: Array,
    D: Array,
    before: Array,
    q: Array,
    b: Array,
    error: Array,
) -> tuple[Array, Array, Array]:
    """F + t D with its margins and gradient: t = 1 where that is good enough, else by
    :func:`_search` along the margins.

    ``before`` is G.D, the slope at t = 0.
    """
    trial = F + D
    Z_trial, G_trial = _at(problem, trial, q, b)
    xp = namespace(F)
    after = dot(G_trial, D)
    # Below ``error`` times ||D|| a slope along D is rounding noise: there a unit step is as good as
    # any.
    bad = (xp.abs(after) > -_FLAT * before) & (xp.abs(after) > error * norm(D))
    some = on(np.flatnonzero(host(bad).any(axis=0)), F)
    if not some.size:
        return trial, Z_trial, G_trial
    dZ = Z_trial[:, some] - Z[:, some]
    noise = problem.on_rows(lambda: problem.C[:, None] * _dot(problem.dimension)) * norm(
        F
    )  # of slopes made of that difference
    if (xp.abs(before) < noise)[:, some].any():
        dZ = problem.margins(D[:, some])
    slope = problem.along(F[:, some], D[:, some], Z[:, some], dZ, q[:, some], b[:, some])
    t = _search(slope, before[:, some], after[:, some], bad[:, some])
    trial[:, some] = F[:, some] + t[..., None] * D[:, some]
    Z_trial[:, some], G_trial[:, some] = _at(problem, trial[:, some], q[:, some], b[:, some])
    return trial, Z_trial, G_trial


def _search(
    slope: Callable[[Array], Array], before: Array, after: Array, bad: NDArray[np.bool_]
) -> Array:
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
        self.pairs: list[tuple[Array, Array, Array]] = []

    def keep(self, replicas: Array) -> None:
        self.pairs = [(s[:, replicas], y[:, replicas], w[:, replicas]) for s, y, w in self.pairs]

    def learn(self, s: Array, y: Array) -> None:
        xp, product = namespace(s), dot(s, y)
        useful = product > 1e-12 * norm(s) * norm(y)  # a pair without curvature weighs nothing
        self.pairs.append((s, y, xp.where(useful, 1 / xp.where(useful, product, 1.0), 0.0)))
        del self.pairs[:-_MEMORY]

    def apply(self, M: Factor, G: Array, plain: Array) -> Array:
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
