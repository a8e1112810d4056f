"""Rows and slopes in whole numbers, so that sums over rows are exact (maths.md 12).

A product of matrices of whole numbers is exact in float64, in whatever order it is added, as long
as no partial sum reaches 2^53. So the bound on what one row adds holds for the numbers that the
program computes, and floating point is no caveat.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2, sqrt
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows, host, namespace, norm, on, one_kernel
from dynadp.data import Block, Shard, StreamedShard
from dynadp.errors import DeclarationError
from dynadp.problem.answers import answers_of
from dynadp.problem.labels import EVEN, ClassWeights, cells, row_weights
from dynadp.problem.losses import Loss
from dynadp.problem.softmax import Softmax
from dynadp.problem.storage import DenseRows, SeparateRows, Storage, stack_rows, weighed_gram
from dynadp.problem.streamed import chunks
from dynadp.problem.weighing import largest_slopes, shortened

BITS, MOST_BITS = 52, 16  # of a sum over rows; of a row's entries and of a slope
NOISE_BITS = 43  # of the deviation of noise over its step, where mu = 1; samplers end at 45
POINT_STEP, FURTHEST = 2.0**-24, 2.0**12  # of the common point: margins are exact, in any order
_AT_ONCE = 1 << 18  # numbers of rows that are written as whole ones at a time
_SUMMED = 1 << 19  # numbers of rows that are summed at a time: they stay in the processor's cache


@dataclass(frozen=True)
class Resolution:
    """How finely rows and slopes are written down: a function of public numbers.

    Attributes
    ----------
    bits
        Entries and slopes are multiples of 2^-bits.
    dimension
        d.
    finer
        By how much finer than h_x h_s the steps of noise may be, so that sums stay exact.
    vectors
        How many slopes a row has: 1, or one for each of several classes.
    slope_bound
        How long they are together, at most.
    """

    bits: int
    dimension: int
    finer: float = 1.0
    vectors: int = 1
    slope_bound: float = 1.0

    @classmethod
    def of(
        cls,
        most_rows: float,
        dimension: int,
        mu: float = 1.0,
        vectors: int = 1,
        slope_bound: float = 1.0,
    ) -> "Resolution":
        """For nodes of at most so many rows: sums stay below 2^53, and noise within its range.

        Parameters
        ----------
        most_rows, dimension
            The largest B_p, and d.
        mu
            The least of a release: the deviation of noise is about 2/mu.
        vectors, slope_bound
            As of the class.
        """
        rows = ceil(log2(max(most_rows, 1)))
        bits = min(MOST_BITS, (BITS - rows) // 2, floor((NOISE_BITS + min(log2(mu), 0)) / 2))
        made = cls(bits, dimension, 2.0 ** (BITS - rows - 2 * bits), vectors, slope_bound)
        # so that margins are exact, and sums with them
        wide, most = max(dimension, vectors), most_rows * max(made.moment, made.gradient)
        if 2.0**-bits * sqrt(wide) > 1 or most >= 2**53:
            raise DeclarationError(
                f"{most_rows:,.0f} rows of {dimension:,} columns with mu = {mu:.3g} a release "
                "cannot be added exactly; take fewer columns, a larger epsilon, or split the "
                "node's rows"
            )
        return made

    @property
    def step(self) -> float:
        """h_x = h_s: what 1 stands for in an entry or a slope."""
        return float(2.0**-self.bits)

    @property
    def longest(self) -> int:
        """K_x: no row is longer."""
        return ceil(2**self.bits + sqrt(self.dimension) / 2)

    @property
    def steepest(self) -> int:
        """K_s: no row's slopes are longer, in steps of h_s."""
        if self.vectors == 1:
            return 2**self.bits
        return ceil(2**self.bits * self.slope_bound + sqrt(self.vectors) / 2)

    @property
    def gradient(self) -> int:
        """K_s K_x: no row adds more to a sum of gradients, in steps of h_x h_s."""
        return self.steepest * self.longest

    @property
    def moment(self) -> int:
        """K_x^2: no row adds more to the second moment, in steps of h_x^2."""
        return self.longest**2

    def sensitivity(self, *, moment: bool, moves: float = 2.0) -> float:
        """2 K_s K_x, or sqrt(2) K_x^2 of the second moment: how far a replaced row moves a sum.

        One that is added or removed (``moves`` = 1) moves it by K_s K_x, or by K_x^2.
        """
        return sqrt(moves) * self.moment if moment else moves * self.gradient

    def whole(self, signed: Rows, *, overwrite: bool = False) -> Rows:
        """Write rows as whole numbers, over dense rows in memory where ``overwrite``; a row that is
        longer than K_x becomes 0.
        """
        if isinstance(signed, csr_array):
            out = csr_array(signed, copy=True)
            out.data = np.rint(out.data / self.step)
            lengths = np.asarray(out.multiply(out).sum(axis=1)).ravel()
            kept = lengths <= float(self.longest) ** 2
            out.data = np.where(np.repeat(kept, np.diff(out.indptr)), out.data, 0.0)
            return out
        if not isinstance(signed, np.ndarray):
            return self._whole(signed)
        out = signed if overwrite else np.empty(signed.shape)
        for some in _spans(len(signed), signed.shape[1], _AT_ONCE):  # no copy of all rows but this
            rows = np.rint(np.divide(signed[some], self.step, out=out[some]), out=out[some])
            lengths = np.einsum("ij,ij->i", rows, rows)
            rows[~(lengths <= float(self.longest) ** 2)] = 0.0
        return out

    def _whole(self, signed: Array) -> Array:
        xp = namespace(signed)
        rows = xp.rint(signed / self.step)
        lengths = (rows * rows).sum(axis=1)
        return cast("Array", xp.where((lengths <= float(self.longest) ** 2)[:, None], rows, 0.0))


class IntegerRows:
    """The signed rows of some nodes in whole numbers, in memory or on a GPU.

    Parameters
    ----------
    blocks
        y x of each node, n x d.
    resolution
        How finely they are written down.
    loss
        L.
    replicas, storage
        As of :class:`~dynadp.problem.objective.StackedProblem`.
    people
        A number for each row of each node, the same for all rows of a person: they are weighed, so
        that together they add no more than one row may. None for rows that count in full.
    labels
        y of each row of each node, a sign; needed for class weights and histograms.
    class_weights
        ``(w_-, w_+)``, at most 1: what slopes of rows of either label are multiplied with.
    answers
        y of each node's rows, where they are not multiplied by it.
    overwrite
        Whether dense rows in memory may be written over.
    """

    def __init__(
        self,
        blocks: Sequence[Rows],
        resolution: Resolution,
        loss: Loss,
        *,
        replicas: int = 1,
        storage: Storage = "auto",
        people: Sequence[NDArray[np.int64]] | None = None,
        labels: Sequence[Array] | None = None,
        class_weights: ClassWeights = EVEN,
        answers: Sequence[Array] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.resolution, self.loss, self.nodes = resolution, loss, len(blocks)
        whole = [resolution.whole(b, overwrite=overwrite) for b in blocks]
        self._rows = stack_rows(whole, replicas * resolution.vectors, storage)
        self._y = None if answers is None else self._near(np.concatenate(list(answers)))
        self._most = None
        self._people = None
        if people is not None:
            held = [k if isinstance(k, csr_array) else host(k) for k in whole]
            self._people = list(zip(held, people, strict=True))
            bounds = resolution.longest, resolution.steepest
            alike = loss.kind == "signs"
            each = [largest_slopes(*whose, *bounds, alike=alike) for whose in self._people]
            self._most = self._near(np.concatenate(each)[:, None])
        self._signs, self._by_class = np.empty(0), None
        if labels is not None:
            there = np.concatenate([_filled(k) for k in whole])
            self._signs = np.where(there, np.concatenate(labels), 0.0)
        if class_weights != EVEN:
            assert labels is not None
            by_class = row_weights(np.concatenate(labels), class_weights)
            self._by_class = self._near(by_class[:, None])

    def gradient(self, z: Array) -> Array:
        """sum_i rint(w_i L'(z.x_i)/h_s) k(x_i), or L'(z.x_i - t_i), of every node: whole numbers,
        P x K x d; z is K x d.

        w_i is 1, or that of the row's label. Of several classes, one after the other: P x K x
        (classes d), and so is z.
        """
        if (parts := self._parts()) is not None:
            points = on_point_grid(z).reshape(len(z) * self.resolution.vectors, -1)
            sums = np.zeros((self.nodes, *points.shape))
            for p, span, rows in parts:
                sums[p] += self._slopes(rows @ points.T, span).T @ rows
        else:
            sums = host(self._rows.adjoint(self._slopes(self._margins(z))))
        return sums.reshape(self.nodes, len(z), -1)

    def _slopes(self, margins: Array, span: slice = slice(None)) -> Array:
        """The slopes of some rows, weighed."""
        y, by_class, most = (
            one if one is None else one[span] for one in (self._y, self._by_class, self._most)
        )
        slopes = whole_slopes(self.loss, margins, self.resolution, y, by_class)
        return self._weighed(slopes, most)

    def _parts(self) -> Iterator[tuple[int, slice, Array]] | None:
        """Yield rows in pieces that fit into the processor's cache, each with its node and where it
        stands among all; None where rows are few, sparse or on a GPU.

        Sums are exact, so that it does not matter how they are split.
        """
        rows = self._rows
        if not isinstance(rows, DenseRows) or not isinstance(rows.matrix, np.ndarray):
            return None
        if not isinstance(rows, SeparateRows) and (self.nodes > 1 or rows.matrix.size <= _SUMMED):
            return None
        blocks = rows.blocks if isinstance(rows, SeparateRows) else [rows]
        return (
            (p, slice(int(start) + some.start, int(start) + some.stop), block.matrix[some])
            for p, (start, block) in enumerate(zip(rows.offsets[:-1], blocks, strict=True))
            for some in _spans(len(block.matrix), block.dimension, _SUMMED)
        )

    def histogram(self, z: Array, edges: Array) -> Array:
        """How many rows of every node have a score z.x_i in each bin, by label: whole numbers,
        P x K x 2 bins; z is K x d, edges are K x (bins - 1).

        A row whose whole numbers are all 0, such as a null row, is in no cell.
        """
        margins, signs = host(self._margins(z)), self._signs
        assert len(signs) == len(margins), "rows without labels are in no histogram"
        out = np.empty((self.nodes, len(z), 2 * (edges.shape[1] + 1)))
        for p, (low, high) in enumerate(pairwise(self._rows.offsets)):
            own = signs[low:high]
            for k, ends in enumerate(edges):
                scores = own * margins[low:high, k] * self.resolution.step
                out[p, k] = cells(scores, own, ends)
        return out

    def _margins(self, z: Array) -> Array:
        K, J, z = len(z), self.resolution.vectors, self._near(on_point_grid(z)).reshape(-1)
        z = z.reshape(K * J, -1)
        return self._rows.margins(namespace(z).broadcast_to(z, (self.nodes, *z.shape)))

    def moment(self) -> Array:
        """sum_i k(x_i) k(x_i)^T of every node: whole numbers, P x d x d."""
        if self._people is not None:
            short = [shortened(*whose, self.resolution.longest) for whose in self._people]
            return IntegerRows._moments(stack_rows(short, 1, "auto"), np.asarray)
        if (parts := self._parts()) is not None:
            width = self._rows.dimension
            sums = np.zeros((self.nodes, width, width))
            for p, _, rows in parts:
                sums[p] += rows.T @ rows
            return sums
        return self._moments(self._rows, self._near)

    @staticmethod
    def _moments(rows: Any, near: Callable[[Array], Array]) -> Array:
        counts = np.diff(rows.offsets)
        ones = [near(np.ones(int(count))) for count in counts]
        return np.stack([host(weighed_gram(rows.some(p), one)) for p, one in enumerate(ones)])

    def _weighed(self, slopes: Array, most: Array | None) -> Array:
        """trunc(sigma s/K_s), s the largest slope of the row; of one sign: those above 0 are 0. Of
        several classes, and of residuals, both signs stay.
        """
        if most is None:
            return slopes
        xp = namespace(slopes)
        if self.resolution.vectors == 1:
            if self.loss.kind == "signs":
                slopes = xp.minimum(slopes, 0.0)
            return xp.trunc(slopes * most * self.resolution.step)
        sizes, steepest = xp.abs(slopes) * most, self.resolution.steepest
        found = xp.floor(sizes / steepest)
        return xp.sign(slopes) * (found - (found * steepest > sizes))  # a rounded quotient

    def _near(self, array: Array) -> Array:
        """Copy an array to where the rows are."""
        return on(array, self._rows.matrix) if isinstance(self._rows, DenseRows) else array


class StreamedIntegerRows:
    """The rows of some nodes in whole numbers, read anew for every sum.

    Parameters
    ----------
    shards, resolution, loss, class_weights
        Rows in memory or streamed; how finely they are written down; L; as of
        :class:`IntegerRows`.
    """

    def __init__(
        self,
        shards: Sequence[Shard | StreamedShard],
        resolution: Resolution,
        loss: Loss,
        class_weights: ClassWeights = EVEN,
    ) -> None:
        self.shards, self.resolution, self.loss = shards, resolution, loss
        self.class_weights = class_weights

    def gradient(self, z: Array) -> Array:
        """As of :class:`IntegerRows`: one pass."""
        K, z = len(z), on_point_grid(z).reshape(len(z) * self.resolution.vectors, -1)

        def sums(k: Array, rows: Block) -> Array:
            even = self.class_weights == EVEN
            by_class = None if even else row_weights(rows.signs, self.class_weights)[:, None]
            margins = k @ z.T
            slopes = whole_slopes(self.loss, margins, self.resolution, rows.answers, by_class)
            return slopes.T @ k

        return self._sums(sums).reshape(len(self.shards), K, -1)

    def moment(self) -> Array:
        """As of :class:`IntegerRows`: one pass."""
        return self._sums(lambda k, _: k.T @ k)

    def histogram(self, z: Array, edges: Array) -> Array:
        """As of :class:`IntegerRows`: one pass."""
        step, z = self.resolution.step, on_point_grid(z)

        def counts(k: Array, rows: Block) -> Array:
            own = np.where(_filled(k), rows.signs, 0.0)
            scores = own * (z @ k.T) * step
            return np.array(
                [cells(each, own, ends) for each, ends in zip(scores, edges, strict=True)]
            )

        return self._sums(counts).astype(float)

    def _sums(self, work: Callable[[Array, Block], Array]) -> Array:
        whole = self.resolution.whole
        return np.stack(
            [
                sum(work(np.asarray(whole(rows.dense().T)), rows) for rows in chunks(shard))
                for shard in self.shards
            ]
        )


def _filled(k: Rows) -> NDArray[np.bool_]:
    """Of each row, whether any of its whole numbers is not 0."""
    if isinstance(k, csr_array):
        return np.asarray(abs(k).sum(axis=1)).ravel() > 0
    if isinstance(k, np.ndarray):
        spans = _spans(len(k), k.shape[1], _AT_ONCE)
        return np.concatenate([k[some].any(axis=1) for some in spans] or [np.zeros(0, dtype=bool)])
    return host((k != 0).any(axis=1)).astype(bool)


def _spans(rows: int, width: int, numbers: int) -> list[slice]:
    """Rows in pieces of so many numbers, each at least one row."""
    some = max(1, numbers // max(1, width))
    return [slice(low, min(low + some, rows)) for low in range(0, rows, some)]


def on_point_grid(z: Array) -> Array:
    """Bring public points into the ball of radius 2^12 and onto multiples of 2^-24, K x d.

    A margin k(x).z is then a sum of multiples of 2^-24 whose sizes add up to less than 2^29, so it
    is exact in whatever order it is added: a row's slope does not depend on how rows are stored.
    """
    near = z * (FURTHEST / np.maximum(norm(z), FURTHEST))[:, None]
    return np.asarray(np.rint(near / POINT_STEP) * POINT_STEP)


def whole_slopes(
    loss: Loss,
    margins: Array,
    resolution: Resolution,
    y: Array | None = None,
    weights: Array | None = None,
) -> Array:
    """rint(w L'(h_x m)/h_s), at most K_s in size, for margins m of whole rows, n x (K classes); 0
    for no number, and for slopes of a row that are longer than K_s together.

    w is 1 without weights.
    """
    xp, step, J = namespace(margins), resolution.step, resolution.vectors
    if isinstance(loss, Softmax):
        assert y is not None
        slopes = xp.rint(loss.slopes((margins * step).reshape(len(y), -1, J), y) / step)
        lengths = (slopes * slopes).sum(axis=-1, keepdims=True)
        good = lengths <= float(resolution.steepest) ** 2  # not of what is no number
        return xp.where(good, slopes, 0.0).reshape(margins.shape)
    z = margins * step
    if loss.residual:  # one subtraction a row: its slope is a function of the row and the point
        assert y is not None
        z = z - y[:, None]
    slopes = loss.slope(z)
    if weights is not None:
        slopes = slopes * weights
    if isinstance(slopes, np.ndarray):
        return _rounded(np, slopes, step)
    return one_kernel(_rounded)(slopes, step)


def _rounded(xp: Any, slopes: Array, step: float) -> Array:
    """rint(slope/h), within 1/h; 0 for no number."""
    whole = xp.rint(slopes / step)
    return xp.where(xp.isnan(whole), 0.0, xp.clip(whole, -1 / step, 1 / step))


def integer_rows_of(
    shards: Sequence[Shard | StreamedShard],
    resolution: Resolution,
    loss: Loss,
    *,
    replicas: int = 1,
    storage: Storage = "auto",
    weighed: bool = False,
    class_weights: ClassWeights = EVEN,
    overwrite: bool = False,
) -> IntegerRows | StreamedIntegerRows:
    """The rows of these nodes in whole numbers: stacked if all are in memory, else streamed.

    Where they are weighed, all are in memory and say whose they are. Where they may be written
    over, dense rows are taken from their shards.
    """
    answers = answers_of(shards, loss)
    held = [s for s in shards if isinstance(s, Shard)]
    whose = people_of(shards) if weighed else None
    if len(held) < len(shards):
        return StreamedIntegerRows(shards, resolution, loss, class_weights)
    return IntegerRows(
        [s.taken() if overwrite else s.signed for s in held],
        resolution,
        loss,
        replicas=replicas,
        storage=storage,
        people=whose,
        labels=[s.y for s in held] if answers is None else None,
        class_weights=class_weights,
        answers=answers,
        overwrite=overwrite,
    )


def people_of(shards: Sequence[Shard | StreamedShard]) -> list[NDArray[np.int64]]:
    """Whose rows they are, as rows that are weighed need it."""
    for shard in shards:
        if not isinstance(shard, Shard) or shard.people is None:
            why = "does not say" if isinstance(shard, Shard) else "is streamed and cannot say"
            raise DeclarationError(
                f"node {shard.name!r} {why} whose its rows are, and the rows of each person are to "
                "be weighed together: name the person's column, keep rows in memory, or leave "
                "weighed out"
            )
    return [s.people for s in shards if isinstance(s, Shard) and s.people is not None]
