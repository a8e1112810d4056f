"""Algorithm "sum": a common point, moved by noisy sums over rows (maths.md 12).

::

    G(t) = sum_p w_p V_p(t),   n = sum_p w_p B_p
    v <- m v - (1 - m) G/(n q),  z <- z + v                  without a second moment
    z <- z - (c A + q I)^-1 G/n,  A = (sum_p w_p M_p)_+ / n    with one, from round 1

All nodes hold the same z and v: functions of what was released. Of several classes z, v and G have
one vector for each, one after the other, and A is the same for all.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, norm
from dynadp.consensus.progress import RoundProgress
from dynadp.consensus.round import Releaser
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    CellNoise,
    GaussianNoise,
    MomentNoise,
    NoisyHistogram,
    RoundNoise,
    SumNoise,
    packed,
    unpacked,
)
from dynadp.problem import (
    FURTHEST,
    POINT_STEP,
    IntegerRows,
    StreamedIntegerRows,
    on_point_grid,
)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the common point moves: public numbers.

    Attributes
    ----------
    pull
        q: steps are 1/q long at most; None for a default from the numbers of rows.
    momentum
        m, the share of the last step that is kept.
    curvature
        c: L'' as steps with a second moment guess it.
    node_weights
        w_p of each node's sums, in the topology's order; 0 for a node that sends none. Empty for
        the default.
    """

    pull: float | None = None
    momentum: float = 0.5
    curvature: float = 0.07
    node_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.pull is not None:
            _require.positive("pull", self.pull)
        if not 0 <= self.momentum < 1:
            raise DeclarationError(f"momentum is {self.momentum!r}; expected a number in [0, 1)")
        _require.positive("curvature", self.curvature)
        w = np.asarray(self.node_weights, dtype=float)
        if w.size and not (np.isfinite(w).all() and (w >= 0).all() and (w > 0).any()):
            raise DeclarationError(
                f"node_weights are {self.node_weights!r}; expected numbers from 0, and one above"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, for a record."""
        return {**asdict(self), "node_weights": list(self.node_weights)}


@dataclass(frozen=True)
class Point:
    """Where all nodes stand: public.

    Attributes
    ----------
    z, v
        The point and its last step, K x d.
    inverse
        (c A + q I)^-1, K x d x d, once the second moment is known.
    moment
        A itself.
    model, edges
        Before a histogram of scores: whose scores, K x d, and the ends of its bins, K x (bins - 1).
    """

    z: Array = field(repr=False)
    v: Array = field(repr=False)
    inverse: Array | None = field(default=None, repr=False)
    moment: Array | None = field(default=None, repr=False)
    model: Array | None = field(default=None, repr=False)
    edges: Array | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SumPath:
    """What rounds leave to say how far noise moves their model (maths.md 22); one entry for each
    gradient.

    Attributes
    ----------
    start
        z before the first, K x d.
    steps
        v, K x d each.
    rows
        n.
    averaged
        Whether the point after it is part of the model.
    noise
        Standard deviation of a number of its sum.
    inverse
        (c A + q I)^-1, K x d x d, where there is a second moment.
    moment_noise
        Standard deviation of a diagonal number of the second moment, over its n.
    even
        Whether all labels weigh the same.
    """

    start: Array = field(repr=False)
    steps: Sequence[Array] = field(repr=False)
    rows: Sequence[float]
    averaged: Sequence[bool]
    noise: Sequence[float]
    inverse: Array | None = field(default=None, repr=False)
    moment_noise: float = 0.0
    even: bool = True


class WeighedSum:
    """sum_p w_p V_p: what every node learns from the messages of all who send.

    Parameters
    ----------
    weights
        w_p of those nodes.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = np.asarray(weights, dtype=float)

    def __call__(self, n: int, V: Array) -> Array:
        """Return the sum, K x d."""
        return np.asarray((self.weights[:, None, None] * V).sum(axis=0))


@dataclass(eq=False)
class SumSolver:
    """A node's own part: exact sums over its rows at the common point.

    Attributes
    ----------
    rows
        In whole numbers.
    noises
        Of each round; they say what is summed.
    f
        V(0), which holds the shape of messages: 1 x K x d.
    """

    rows: IntegerRows | StreamedIntegerRows
    noises: Sequence[RoundNoise]
    f: Array

    def local_step(self, n: int, state: Point, linear: Array | None, phi: Array) -> Array:
        """sum_i h sigma_i k(x_i) at z, or sum_i h k(x_i) k(x_i)^T in the round of the moment, or
        the rows of each label in each bin of scores.
        """
        noise = self.noises[n - 1]
        if isinstance(noise, CellNoise):
            assert state.model is not None
            assert state.edges is not None
            return self.rows.histogram(state.model, state.edges)
        assert isinstance(noise, SumNoise)
        unit = noise.resolution.step**2
        if not isinstance(noise, MomentNoise):
            return self.rows.gradient(state.z) * unit
        moments = packed(self.rows.moment())[:, None] * unit
        return np.broadcast_to(moments, (len(moments), len(state.z), moments.shape[-1]))


class SumRounds:
    """The rounds of some nodes, one after the other, whatever carries their messages.

    Parameters
    ----------
    releaser
        Makes what is released; None for a node that sends nothing.
    noises
        Of each round.
    steps
        How the point moves, with a pull.
    start
        z before round 1, K x d.
    rows
        n = sum_p w_p B_p; a gradient is divided by it, times what a row weighs.
    nodes
        How many nodes the process holds.
    row_weight
        What a row weighs on average, where labels weigh differently: public.

    Attributes
    ----------
    members
        Which of the nodes that send take part, where some stay away: their positions.
    """

    stopped, certificate, neighbour_tail = False, None, None

    def __init__(
        self,
        releaser: Releaser | None,
        noises: Sequence[RoundNoise],
        steps: Steps,
        start: Array,
        rows: float,
        nodes: int,
        row_weight: float = 1.0,
    ) -> None:
        assert steps.pull is not None
        self.releaser, self.noises, self.steps, self.q = releaser, noises, steps, steps.pull
        self.rows, self.nodes, self.total, self.n = rows, nodes, len(noises), 0
        self.row_weight = row_weight
        self._attempt = 0
        self.state = Point(start, np.zeros_like(start))
        moments = sum(isinstance(noise, MomentNoise) for noise in noises)
        self._bins = noises[-1].bins if isinstance(noises[-1], CellNoise) else 0
        self._last = self.total - bool(self._bins)  # round that moves the point
        self._half = moments + (self._last - moments) // 2  # the model is the mean after this round
        self._cells: Array | None = None
        self._tail = np.zeros_like(start)
        self.members: Sequence[int] | None = None
        self._start, self._moment_noise = start, 0.0
        self._left = list[tuple[Array, float, bool, float]]()  # of each gradient, for the path
        self._sums = [np.zeros_like(start)]  # of the points after each gradient
        self._noise = 0.0  # how far noise alone moves the point in this round, squared
        # no sum of unit vectors leads further than 1/q a round; noise should not lead far beyond
        far = 4 * (self.total + 1) / self.q + float(norm(start).max())
        self._radius = min(far, FURTHEST - 1)

    @property
    def over(self) -> bool:
        """Whether no round is left."""
        return self.n == self.total

    @property
    def V(self) -> Array:
        """Where all nodes stand, P x K x d."""
        return self.points

    @property
    def points(self) -> Array:
        """Where all nodes stand, P x K x d."""
        return np.broadcast_to(self.state.z, (self.nodes, *self.state.z.shape))

    def release(self) -> Array | None:
        """Begin the next round: return its message, entered where there is a journal."""
        self.n, self._attempt = self.n + 1, 0
        return self.releaser.send(self.n, self.state)[1] if self.releaser else None

    def release_again(self) -> Array | None:
        """Begin the round anew, where a sealed sum could not be decoded: new noise, new masks, one
        of the spare attempts.
        """
        self._attempt += 1
        if self.releaser is None:
            return None
        return self.releaser.send(self.n, self.state, self._attempt)[1]

    def pass_over(self, *, again: bool) -> None:
        """Begin a round, or an attempt at it, in which this node has no part."""
        self.n, self._attempt = (self.n, self._attempt + 1) if again else (self.n + 1, 0)
        if self.releaser is not None:
            self.releaser.pass_over(self.n, self._attempt)

    def entry(self, *, again: bool) -> int:
        """Return under which number the next round's release is entered, or the next attempt's."""
        masks = self.releaser.masks if self.releaser else None
        return self.total + masks.spares + 1 if again and masks else self.n + 1

    def receive(self, total: Array) -> RoundProgress:
        """End the round with the weighed sum of all messages, K x d."""
        before = self.state
        if self.releaser and self.releaser.masks:
            self.releaser.masks.follow(self.n, total)
        if isinstance(self.noises[self.n - 1], MomentNoise):
            moment = self._positive(total / self.rows)
            self.state = replace(before, inverse=self._inverse(*moment), moment=_joined(*moment))
            self._moment_noise = self._deviation() / self.rows
        elif self.n > self._last:
            self._cells = total
        else:
            rows = self.rows * self.row_weight
            self.state = self._moved(before, total / rows)
            averaged, deviation = self.n > self._half, self._deviation()
            self._left.append((self.state.v, rows, averaged, deviation))
            self._sums.append(self._sums[-1] + self.state.z)
            self._noise = self._noise_moves(deviation / rows)
        if self._half < self.n <= self._last:
            self._tail += self.state.z
        if self._bins and self.n == self._last:
            model = on_point_grid(self._model)
            edges = score_edges(model, self._bins, self.state.moment)
            self.state = replace(self.state, model=model, edges=edges)
        change = np.broadcast_to(norm(self.state.z - before.z), (self.nodes, len(before.z)))
        eta = np.full(len(before.z), self.q)
        found = RoundProgress(self.n, self.total, eta, np.zeros(change.shape), change)
        if self.state.z is before.z:  # a second moment, or a histogram
            return found
        made = len(self._left)
        recent = (self._sums[-1] - self._sums[made // 2]) / (made - made // 2)
        return replace(found, apart=norm(self.state.z - recent), noise=sqrt(self._noise))

    def _noise_moves(self, deviation: float) -> float:
        """E ||step||^2 of noise alone: m^2 of the last one's and d ((1 - m) s/q)^2, or s^2 tr B^2.

        Of the first replica, for whose noise s is.
        """
        inverse, m, numbers = self.state.inverse, self.steps.momentum, self.state.z.shape[-1]
        if inverse is not None:
            classes = numbers // inverse.shape[-1]
            return float(classes * np.sum(inverse[0] ** 2) * deviation**2)
        return float(m**2 * self._noise + numbers * ((1 - m) * deviation / self.q) ** 2)

    def finish(self) -> Point:
        """Return where the nodes stand after the last round."""
        return self.state

    def mean(self) -> Array:
        """Return the mean of z over the last half of the rounds, P x K x d."""
        return np.broadcast_to(self._model, (self.nodes, *self._model.shape))

    @property
    def path(self) -> SumPath:
        """What the rounds so far leave."""
        steps, rows, averaged, noise = zip(*self._left, strict=True) if self._left else [()] * 4
        return SumPath(
            self._start,
            steps,
            rows,
            averaged,
            noise,
            self.state.inverse,
            self._moment_noise,
            even=self.row_weight == 1,
        )

    def _deviation(self, replica: int = 0) -> float:
        """Of one number of the sum that was received, over its noise."""
        noise = self.noises[self.n - 1]
        assert isinstance(noise, GaussianNoise)
        each = (noise.parameter * noise.step)[:, replica]
        if self._attempt:  # a spare one, with the loss of the last step
            last = self.noises[self._last - 1]
            assert isinstance(last, GaussianNoise)
            each = each * (noise.mu / last.mu)[:, replica]
        if (
            noise.sealing is None
        ):  # weighed after noise was added; whoever weighs nothing sends none
            w = [w for w in self.steps.node_weights if w] or [1.0] * len(each)
            each = each * np.array(w)
        return float(np.linalg.norm(each if self.members is None else each[list(self.members)]))

    @property
    def _model(self) -> Array:
        return self._tail / (self._last - self._half)

    def histogram(self, replica: int = 0) -> NoisyHistogram | None:
        """Return what the last round released of the model's scores, over the nodes that took part
        in it; None without such a round.

        Rows of a node weigh as they do in the model.
        """
        if self._cells is None or self.state.edges is None:
            return None
        noise = self.noises[self._last - 1 if self._attempt else -1]
        assert isinstance(noise, GaussianNoise)
        counts = self._cells[replica].reshape(2, -1)
        mu = float(noise.mu[:, replica].max())
        return NoisyHistogram(self.state.edges[replica], counts, self._deviation(replica), mu)

    def _positive(self, moment: Array) -> tuple[Array, Array]:
        """Eigenvalues and vectors of A_+: values below 0 are noise."""
        first = self.noises[0]
        assert isinstance(first, MomentNoise)
        values, vectors = np.linalg.eigh(unpacked(moment, first.resolution.dimension))
        return np.maximum(values, 0.0), vectors

    def _inverse(self, values: Array, vectors: Array) -> Array:
        """(c A_+ + q I)^-1."""
        return _joined(1 / (self.steps.curvature * values + self.q), vectors)

    def _moved(self, at: Point, G: Array) -> Point:
        if at.inverse is not None:
            each = G.reshape(len(G), -1, at.inverse.shape[-1])  # by class
            v = -np.swapaxes(at.inverse @ np.swapaxes(each, 1, 2), 1, 2).reshape(G.shape)
        else:
            m = self.steps.momentum
            v = m * at.v - (1 - m) * G / self.q
        z = at.z + v
        z *= np.minimum(1.0, self._radius / np.maximum(norm(z), self._radius))[:, None]
        # nodes whose libraries round differently still stand at one point
        return replace(at, z=np.rint(z / POINT_STEP) * POINT_STEP, v=v)


def score_edges(f: Array, bins: int, moment: Array | None = None) -> Array:
    """The ends of equally wide bins between -r and r, 0 among them: K x (bins - 1).

    r = 2 sqrt(f^T A f), twice the root mean square of scores, where the second moment A was
    released, and else ||f||, which no score passes. Scores beyond are in the bins at the ends.
    """
    longest = norm(f)
    reach = longest
    if moment is not None:
        square = np.einsum("ki,kij,kj->k", f, moment, f)
        reach = np.minimum(longest, 2 * np.sqrt(np.maximum(square, 0.0)))
    reach = np.where(reach > bins * POINT_STEP, reach, 1.0)
    edges = reach[:, None] * np.linspace(-1, 1, bins + 1)[1:-1]
    return np.asarray(np.rint(edges / POINT_STEP) * POINT_STEP)


def _joined(values: Array, vectors: Array) -> Array:
    """U diag(values) U^T."""
    return np.asarray((vectors * values[:, None, :]) @ vectors.swapaxes(-1, -2))
