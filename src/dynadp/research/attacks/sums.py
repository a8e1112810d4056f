"""What nodes of algorithm "sum" send, and how likely it is if the target holds a row (maths.md 12).

Every message goes to all nodes, so every node sees the whole transcript, and the common point is a
function of it. Without noise a message is sum_i L'(a_i.z) a_i at a known point z; of several
classes sum_i sigma(z x_i) x_i^T, and of numbers sum_i L'(z.x_i - t_i) x_i.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Point, SumRounds, SumSolver, WeighedSum
from dynadp.data import Shard
from dynadp.mechanisms import CellNoise, MomentNoise, RoundNoise, SumNoise, packed
from dynadp.planning import Plan
from dynadp.privacy import Event
from dynadp.problem import IntegerRows, Resolution, integer_rows_of
from dynadp.research.attacks.rows import parted, signs_of
from dynadp.research.attacks.setting import Setting


@dataclass(frozen=True)
class SumTranscript:
    """All that leaves the nodes, and the public numbers of every round.

    Attributes
    ----------
    setting, facts, messages, events
        As of :class:`~dynadp.research.attacks.transcript.Transcript`; messages are those of the
        nodes that send.
    rounds
        The law of all nodes' noise in each round.
    noises
        That of the target.
    plan
        Bound to the nodes: it says how the point moves.
    """

    setting: Setting
    facts: dict[str, Any]
    messages: Sequence[Array] = field(repr=False)
    rounds: Sequence[RoundNoise] = field(repr=False)
    noises: Sequence[RoundNoise] = field(repr=False)
    events: Sequence[Event] = field(repr=False)
    plan: Plan = field(repr=False)

    def replica(self, k: int) -> "SumTranscript":
        """One of the K copies."""
        k = min(k, self.messages[0].shape[1] - 1)
        return replace(self, messages=[V[:, k : k + 1] for V in self.messages])

    def heard(self) -> Iterator[tuple[Point, Array, SumNoise | CellNoise]]:
        """Yield where all stand before each round, the target's message of that round, K x width,
        and the law of its noise.
        """
        plan, own = self.plan, self.plan.senders.index(self.setting.target)
        steps = plan.steps
        assert steps is not None
        add = WeighedSum([steps.node_weights[p] for p in plan.senders])
        rounds = self._rounds()
        for V, noise in zip(self.messages, self.noises, strict=True):
            assert isinstance(noise, SumNoise | CellNoise)
            yield rounds.state, V[own], noise
            rounds.release()
            rounds.receive(add(rounds.n, V))

    def _rounds(self) -> SumRounds:
        """The rounds from the start, as whoever hears all messages follows them."""
        return rounds_of(self.plan, self.rounds, self.messages[0].shape[1])

    def log_density(self, rows: Array, candidates: Array) -> Array:
        """-||V - sum over known rows - what the candidate adds||^2/(2 s^2), K x N x T.

        Parameters
        ----------
        rows
            The known signed rows of the target, (B - 1) x d.
        candidates
            Signed rows, N x d.
        """
        found, held, each = [], self._held([rows]), self._held(list(candidates[:, None]))
        for point, V, noise in self.heard():
            known = self._sums(held, point, noise)[0]
            added = self._sums(each, point, noise).swapaxes(0, 1)
            found.append(noise.log_density((V[:, None] - known[:, None] - added)[None])[0])
        return np.stack(found, axis=-1)

    def force(self, rows: Array) -> Array:
        """-sum_n L'(a.z(n)) a of the unknown row a, as messages without noise show it: d, or that
        of each class, one after the other.
        """
        return np.asarray(np.sum(self.forces(rows)[1], axis=0))

    def forces(self, rows: Array) -> tuple[Array, Array]:
        """The points, and -L'(a.z(n)) a of the unknown row at each: T x d both."""
        held = self._held([rows])
        found = [
            (point.z[0], self._sums(held, point, noise)[0, 0] - V[0])
            for point, V, noise in self.heard()
            if _gradient(noise)
        ]
        points, forces = zip(*found, strict=True)
        return np.array(points), np.array(forces)

    def gradients(self) -> tuple[Array, Array, float]:
        """Return the points and the messages there, T x d each, and what a row weighs: 1."""
        rounds = [(point.z[0], V[0]) for point, V, noise in self.heard() if _gradient(noise)]
        points, sums = zip(*rounds, strict=True)
        return np.array(points), np.array(sums), 1.0

    def _held(self, blocks: Sequence[Array]) -> IntegerRows:
        """Some blocks of rows in whole numbers, as all rounds need them."""
        loss, K = self.setting.loss, self.messages[0].shape[1]
        parts = [parted(block, loss) for block in blocks]
        answers = [y for _, y in parts if y is not None] or None
        made = [x for x, _ in parts], self._resolution, loss
        labels = None if answers else [signs_of(x) for x, _ in parts]
        return IntegerRows(*made, replicas=K, storage="dense", labels=labels, answers=answers)

    def _sums(self, held: IntegerRows, point: Point, noise: SumNoise | CellNoise) -> Array:
        """What each block of rows would release without noise, P x K x width."""
        if isinstance(noise, CellNoise):
            assert point.model is not None
            assert point.edges is not None
            return held.histogram(point.model, point.edges)
        square = held.resolution.step**2
        if not isinstance(noise, MomentNoise):
            return held.gradient(point.z) * square
        moments = packed(held.moment())[:, None] * square
        return np.broadcast_to(moments, (held.nodes, len(point.z), moments.shape[-1]))

    @property
    def _resolution(self) -> Resolution:
        """How finely rows are written down, in all rounds."""
        first = self.noises[0]
        assert isinstance(first, SumNoise)
        return first.resolution


def rounds_of(plan: Plan, noises: Sequence[RoundNoise], replicas: int) -> SumRounds:
    """The rounds of a plan from the start, for somebody who sends nothing."""
    assert plan.steps is not None
    start = np.zeros((replicas, plan.bound.vectors * plan.bound.dimension))
    nodes, weight = len(plan.bound.nodes), plan.settings.row_weight
    return SumRounds(None, noises, plan.steps, start, plan.rows, nodes, weight)


def without_noise(shards: Sequence[Shard], plan: Plan, setting: Setting) -> SumTranscript:
    """What nodes of a plan would send without noise: the same sums in the same rounds."""
    releases = plan.release_plan
    at = plan.senders.index(setting.target)
    own = slice(at, at + 1)
    noises = [noise.some(own).each(lambda v: v[:, :1]) for noise in releases.noises]
    first = releases.noises[0]
    assert isinstance(first, SumNoise)
    assert plan.steps is not None
    those = [shards[p] for p in plan.senders]
    rows = integer_rows_of(those, first.resolution, setting.loss, storage="dense")
    rounds = rounds_of(plan, releases.noises, 1)
    solver = SumSolver(rows, releases.noises, rounds.points)
    add, sent = WeighedSum([plan.steps.node_weights[p] for p in plan.senders]), list[Array]()
    while not rounds.over:
        rounds.release()
        sums = solver.local_step(rounds.n, rounds.state, None, np.zeros((1, 1)))
        sent.append(np.array(sums))
        rounds.receive(add(rounds.n, sums))
    return SumTranscript(setting, {}, sent, releases.noises, noises, (), plan)


def _gradient(noise: RoundNoise) -> bool:
    return not isinstance(noise, MomentNoise | CellNoise)
