"""The solver's steps on a GPU in three kernels and three products, where a launch takes longer than
its work.

They do what :class:`~dynadp.problem.descent.Active` does in a hundred small operations: L-BFGS on
top of a factor, a unit step, its gradient and its certificate. One block of threads works on one
vector, of one node and replica, and the host reads three numbers of each once an iteration. The
rows of nodes with about as many rows stand in one product.
"""

from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Margins, Numbers, Vectors, host, namespace, on
from dynadp.problem.descent import FLAT, MEMORY, Active, Known, on_the_line
from dynadp.problem.factor import Factor
from dynadp.problem.objective import Problem, StackedProblem
from dynadp.problem.rounding import rounding_of
from dynadp.problem.storage import DenseRows

_WIDEST = 4096  # columns: a block keeps a vector in its shared memory
_WASTE = 1.25  # null rows may make a product so much longer, where they save another
_ALIGNED = 16  # lines of matrices that begin at multiples of so many numbers are multiplied faster


def fits(problem: Problem) -> bool:
    """Whether vectors of these problems, which are on a GPU, fit a block of threads."""
    return (
        isinstance(problem, StackedProblem)
        and isinstance(problem.rows, DenseRows)
        and problem.dimension <= _WIDEST
    )


class DeviceRows:
    """The rows of nodes on a GPU, for products that need no copy: replicas before rows.

    Null rows fill up nodes that have a few less than others, and null columns lines that end
    elsewhere than cuBLAS likes it; they add 0 to every sum.
    """

    def __init__(self, problem: StackedProblem) -> None:
        xp, counts = namespace(problem.row_weight), problem.counts.astype(int)
        rows = cast("DenseRows", problem.rows)
        self.groups: list[tuple[Any, Vectors, Array | None, Array | None]] = []
        self.width = _aligned(problem.dimension)
        for nodes in _alike(counts):
            most = _aligned(int(counts[nodes].max()))
            A = xp.zeros((len(nodes), most, self.width))
            beside = [
                None if column is None else xp.zeros((len(nodes), 1, most))
                for column in (problem.targets, problem.by_class)
            ]
            for i, p in enumerate(nodes):
                own = slice(rows.offsets[p], rows.offsets[p + 1])
                A[i, : counts[p], : problem.dimension] = rows.matrix[own]
                for row, column in zip(beside, (problem.targets, problem.by_class), strict=True):
                    if row is not None and column is not None:
                        row[i, 0, : counts[p]] = column[own].reshape(-1)
            whose = None if len(nodes) == len(counts) else xp.asarray(nodes)
            self.groups.append((whose, A, *beside))
        each = problem.C / problem.counts, problem.roundings.margins, problem.roundings.sums
        columns = [on(v, problem.row_weight).reshape(-1).astype(float) for v in each]
        self.constants = xp.stack(columns, axis=1)  # C/B, and of its rounding: see ``arrive``

    def sums(self, problem: StackedProblem, wide: Vectors) -> Vectors:
        """sum_i L'(z_i) a_i of every node, each row with its class's weight: P x K x width, as the
        points with null columns that it is given.
        """
        out = namespace(wide).empty_like(wide) if len(self.groups) > 1 else wide
        for whose, A, targets, by_class in self.groups:
            Z = products(wide if whose is None else wide[whose], A, across=True)
            if targets is not None:
                Z -= targets
            slopes = problem.loss.slope(Z)
            if by_class is not None:
                slopes *= by_class
            if whose is None:
                return products(slopes, A)
            out[whose] = products(slopes, A)
        return out


_rows: WeakKeyDictionary[Problem, DeviceRows] = WeakKeyDictionary()


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def _alike(counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions of nodes in groups whose rows, filled up, are at most a quarter more."""
    order = np.argsort(-counts, kind="stable")
    cuts, first = [0], 0
    for i in range(1, len(order) + 1):
        some = counts[order[first:i]]
        if some[0] * len(some) > _WASTE * some.sum():
            cuts.append(i - 1)
            first = i - 1
    return [np.sort(order[low:high]) for low, high in pairwise([*cuts, len(order)])]


class _Pairs:
    """The last pairs (s, y) in rings on the device, each MEMORY x P x K x d, and 1/(s.y)."""

    def __init__(self, like: Vectors) -> None:
        xp = namespace(like)
        self.s, self.y = xp.empty((MEMORY, *like.shape)), xp.empty((MEMORY, *like.shape))
        self.w = xp.empty((MEMORY, *like.shape[:2]))
        self.clear()

    def clear(self) -> None:
        self.held = self.next = 0

    def keep(self, replicas: Array) -> None:
        self.s, self.y, self.w = (v.take(replicas, axis=2) for v in (self.s, self.y, self.w))

    def learnt(self) -> None:
        """What was written at ``next`` counts from now on."""
        self.next = (self.next + 1) % MEMORY
        self.held = min(self.held + 1, MEMORY)


class DeviceActive(Active):
    """The replicas that are still worked on, on a GPU; see :class:`~dynadp.problem.descent.Active`.

    Attributes
    ----------
    news, heard
        For each vector the certified bound, G.M^{-1}G and whether a unit step will not do, on the
        GPU and in memory.
    D, slope, after
        The last direction, and the slope along it before and after a unit step.
    wide
        The last trial, with null columns.
    """

    stacked: ClassVar[tuple[str, ...]] = ("F", "G", "q", "b", "b_size", "error")
    memory: Any

    def _begin(self, known: Known | None) -> None:
        problem = self.problem
        assert isinstance(problem, StackedProblem)
        if problem not in _rows:
            _rows[problem] = DeviceRows(problem)
        self._rows = _rows[problem]
        xp, like = namespace(self.F), self.F
        for name in ("F", "q", "b", "b_size"):
            setattr(self, name, xp.ascontiguousarray(getattr(self, name)))
        self.memory, self.error = _Pairs(like), xp.zeros(like.shape[:2])
        self._make_room()
        self.G = xp.empty_like(like)
        self.wide[..., : like.shape[-1]] = like
        self._arrive(like, self.G, self._rows.sums(problem, self.wide), _FIRST)

    def _make_room(self) -> None:
        """For what an iteration writes."""
        xp, shape = namespace(self.F), self.F.shape
        self.news, self.D = xp.zeros((3, *shape[:2])), xp.zeros(shape)
        self.wide = xp.zeros((*shape[:2], self._rows.width))
        self.slope, self.after = xp.zeros(shape[:2]), xp.zeros(shape[:2])
        self._todo: tuple[NDArray[np.bool_], Array] | None = None

    # what steps seldom need is made where it is needed
    @property
    def Z(self) -> Margins:  # type: ignore[override]
        """Margins at F."""
        return self.problem.margins(self.F)

    def _certified(self) -> tuple[Numbers, Numbers]:
        """What the last step brought."""
        return self.news[0], self.heard[0]

    def note(self) -> None:
        """Nothing: a pass costs little here."""

    def known(self, point: Vectors) -> Known | None:
        """Nothing."""
        return None

    def keep(self, going: NDArray[np.int64]) -> None:
        """Go on with some of the replicas."""
        super().keep(going)
        self._make_room()

    @staticmethod
    def _of(array: Any, replicas: Any) -> Array:
        return cast("Array", array.take(replicas, axis=1))

    def advance(self, M: Factor) -> None:
        """One step of every replica."""
        xp, pairs, problem = namespace(self.F), self.memory, self.problem
        assert isinstance(problem, StackedProblem)
        P, K, d = self.F.shape
        chunks = M.chunks(K)
        size = K // max(chunks, 1)
        both = xp.empty((max(chunks, 1), P, 2 * size, d))  # r, then G, of each chunk
        a = xp.empty((MEMORY, P, K))
        ring = _whole(pairs.held, pairs.next, P, K, d, size)
        _launch("first_loop", P * K, d, self.G, pairs.s, pairs.y, pairs.w, both, a, *ring)
        if chunks:
            both = products(both, xp.ascontiguousarray(M.inverses))
        else:
            both = xp.concat([M.apply(v) for v in (both[0, :, :K], both[0, :, K:])], axis=1)
        if self._todo is None or not np.array_equal(self._todo[0], self.todo):
            # numpy's x[:, some] stands by columns
            self._todo = self.todo, on(np.ascontiguousarray(self.todo, dtype=float), self.F)
        trial = xp.empty_like(self.F)
        given = self.F, self.G, self._todo[1], both, pairs.s, pairs.y, pairs.w, a
        made = self.D, trial, self.wide, self.slope, self.news
        _launch("second_loop", P * K, d, *given, *made, *ring, np.int32(self._rows.width))
        G = xp.empty_like(self.G)
        self._arrive(trial, G, self._rows.sums(problem, self.wide), _STEP)
        bad = self.heard[2] != 0
        if bad.any():
            some = np.flatnonzero(bad.any(axis=0))
            where = on(some, trial)
            chosen = (v[:, where] for v in (self.F, self.D, self.q, self.b))
            F, D, q, b = chosen
            before, after = self.slope[:, where], self.after[:, where]
            steep: Any = on(bad[:, some], trial)
            Z, dZ = problem.margins(F), problem.products(D)
            found = on_the_line(problem, F, Z, D, q, b, before, after, steep, dZ)
            trial[:, where] = found[0]
            G[:, where] = found[2] + q[..., None] * found[0] + b
            self._arrive(trial, G, G, _FOUND)
        self.F, self.G, self.error = trial, G, self._next_error
        pairs.learnt()
        self.judge(self.heard[1])

    def _arrive(self, trial: Vectors, G: Vectors, sums: Vectors, how: np.int32) -> None:
        """Gradients, certificates and the new pairs at ``trial``; hear the news.

        ``how`` tells the first point, where nothing was before, from a step, and from points of a
        line search, whose gradients are in G already.
        """
        problem, pairs, xp = self.problem, self.memory, namespace(trial)
        P, K, d = trial.shape
        R = xp.ascontiguousarray(problem.regularizer.gradient(trial))
        self._next_error = xp.empty((P, K))
        given = trial, self.F, self.G, self.D, sums, R, self.q, self.b, self.b_size
        known = self._rows.constants, self.slope, self.error
        made = G, pairs.s, pairs.y, pairs.w, self.news, self._next_error, self.after
        numbers = [problem.rho, rounding_of(10), 1 + rounding_of(d + 2), FLAT]
        whole = how, *_whole(pairs.next, P, K, d, sums.shape[-1])
        numbers = [np.float64(v) for v in numbers]
        _launch("arrive", P * K, d, *given, *known, *made, *numbers, *whole)
        self.heard = host(self.news)
        if how == _FIRST:
            self.error = self._next_error


_ONE, _NOUGHT = np.array(1.0), np.array(0.0)
_FIRST, _STEP, _FOUND = (np.int32(v) for v in range(3))


def _whole(*numbers: int) -> list[np.int32]:
    return [np.int32(v) for v in numbers]


@cache
def _kernels() -> Any:
    import cupy

    code = Path(__file__).with_name("device_steps.cu").read_text()
    return cupy.RawModule(code=code, options=(f"-DMEMORY={MEMORY}",))


@cache
def _kernel(name: str) -> Any:
    return _kernels().get_function(name)


def products(a: Any, b: Any, *, across: bool = False) -> Vectors:
    """a b for each of a stack of matrices, or a b^T ``across``, by cuBLAS without what CuPy asks
    before, which takes longer than a small product.
    """
    from cupy.cuda import cublas, device

    *stack, n, k = a.shape
    m = b.shape[-2 if across else -1]
    out = namespace(a).empty((*stack, n, m))
    # cuBLAS counts columns first and sees all transposed: out^T = b^T a^T
    flags = cublas.CUBLAS_OP_T if across else cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N
    first = b.data.ptr, k if across else m, b.shape[-2] * b.shape[-1]
    second = a.data.ptr, k, n * k
    numbers = _ONE.ctypes.data, *first, *second, _NOUGHT.ctypes.data, out.data.ptr, m, n * m
    cublas.dgemmStridedBatched(device.get_cublas_handle(), *flags, m, n, k, *numbers, prod(stack))
    return cast("Vectors", out)


def _launch(name: str, vectors: int, dimension: int, *given: Any) -> None:
    """One block of threads for each vector; kernels count positions, so arrays stand by rows."""
    threads = min(256, -(-dimension // 32) * 32)
    _kernel(name)((vectors,), (threads,), given, shared_mem=8 * dimension)
