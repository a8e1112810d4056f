"""What nodes of algorithm "sum" send, and how likely it is if the target holds a row (maths.md 12).

Every message goes to all nodes, so every node sees the whole transcript, and the common point is a
function of it. Without noise a message is sum_i L'(a_i.z) a_i at a known point z.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import SumRounds, WeighedSum
from dynadp.mechanisms import CellNoise, MomentNoise, RoundNoise, SumNoise, packed
from dynadp.planning import Plan
from dynadp.privacy import Event
from dynadp.problem import IntegerRows
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
        return replace(self, messages=[V[:, k : k + 1] for V in self.messages])

    def heard(self) -> Iterator[tuple[Array, Array, SumNoise]]:
        """Yield the point before each round, K x d, the target's message of that round, K x width,
        and the law of its noise.
        """
        plan, own = self.plan, self.plan.senders.index(self.setting.target)
        steps = plan.steps
        assert steps is not None
        add = WeighedSum([steps.node_weights[p] for p in plan.senders])
        start = np.zeros((self.messages[0].shape[1], plan.bound.dimension))
        rounds = SumRounds(
            None,
            self.rounds,
            steps,
            start,
            plan.rows,
            len(plan.bound.nodes),
            plan.settings.row_weight,
        )
        for V, noise in zip(self.messages, self.noises, strict=True):
            if isinstance(noise, CellNoise):  # nothing is made of a histogram
                return
            assert isinstance(noise, SumNoise)
            yield rounds.state.z, V[own], noise
            rounds.release()
            rounds.receive(add(rounds.n, V))

    def log_density(self, rows: Array, candidates: Array) -> Array:
        """-||V - sum over known rows - what the candidate adds||^2/(2 s^2), K x N x T.

        Parameters
        ----------
        rows
            The known signed rows of the target, (B - 1) x d.
        candidates
            Signed rows, N x d.
        """
        found = []
        for z, V, noise in self.heard():
            known = self._sums([rows], z, noise)[0]
            each = self._sums(list(candidates[:, None]), z, noise).swapaxes(0, 1)
            found.append(noise.log_density((V[:, None] - known[:, None] - each)[None])[0])
        return np.stack(found, axis=-1)

    def force(self, rows: Array) -> Array:
        """-sum_n L'(a.z(n)) a of the unknown row a, as messages without noise show it: d."""
        forces = [
            self._sums([rows], z, noise)[0, 0] - V[0]
            for z, V, noise in self.heard()
            if not isinstance(noise, MomentNoise)
        ]
        return np.asarray(np.sum(forces, axis=0))

    def gradients(self) -> tuple[Array, Array, float]:
        """Return the points and the messages there, T x d each, and what a row weighs: 1."""
        rounds = [(z[0], V[0]) for z, V, n in self.heard() if not isinstance(n, MomentNoise)]
        points, sums = zip(*rounds, strict=True)
        return np.array(points), np.array(sums), 1.0

    def _sums(self, blocks: Sequence[Array], z: Array, noise: SumNoise) -> Array:
        """What each block of rows would release without noise, P x K x width."""
        resolution = noise.resolution
        held = IntegerRows(blocks, resolution, self.setting.loss, replicas=len(z), storage="dense")
        if not isinstance(noise, MomentNoise):
            return held.gradient(z) * resolution.step**2
        moments = packed(held.moment())[:, None] * resolution.step**2
        return np.broadcast_to(moments, (len(blocks), len(z), moments.shape[-1]))
