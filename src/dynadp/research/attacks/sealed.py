"""What an adversary makes of sealed sums: one letter, the sum of those who are honest, or one
node's own sum where all others collude (maths.md 13).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Point, SealedSum
from dynadp.errors import DeclarationError
from dynadp.mechanisms import CellNoise, GaussianNoise, SumNoise
from dynadp.planning import Plan
from dynadp.privacy import Event, if_colluding
from dynadp.research.attacks.setting import Setting
from dynadp.research.attacks.sums import SumTranscript
from dynadp.research.audit import Keyring, check_opened


@dataclass(frozen=True)
class SealedTranscript(SumTranscript):
    """What the adversary is left with in every round, and the sums that all nodes learn.

    Attributes
    ----------
    setting, facts, rounds, events, plan
        As of :class:`~dynadp.research.attacks.sums.SumTranscript`.
    messages
        1 x K x width: one letter as it is, or a sum without masks.
    noises
        The law of the noise in it.
    totals
        The decoded sums over all nodes, K x width, which move the point.
    others
        Rows of the other nodes whose sums are in the messages: the adversary knows them.
    """

    totals: Sequence[Array] = field(repr=False, default=())
    others: Sequence[Array] = field(repr=False, default=())

    def replica(self, k: int) -> "SealedTranscript":
        """One of the K copies."""
        messages = [V[:, k : k + 1] for V in self.messages]
        return replace(self, messages=messages, totals=[V[k : k + 1] for V in self.totals])

    def heard(self) -> Iterator[tuple[Point, Array, SumNoise | CellNoise]]:
        """Yield where all stand before each round, what is seen of the target without the others'
        rows, and the law of its noise.
        """
        rounds, others = self._rounds(), self._held(self.others) if self.others else None
        for V, total, noise in zip(self.messages, self.totals, self.noises, strict=True):
            assert isinstance(noise, SumNoise | CellNoise)
            point, seen = rounds.state, V[0]
            if others:
                seen = seen - self._sums(others, point, noise).sum(axis=0)
            yield point, seen, noise
            rounds.release()
            rounds.receive(total)

    def log_density(self, rows: Array, candidates: Array) -> Array:
        """As of sums; 0 for one letter, which is uniform whatever the rows are: K x N x T."""
        if self.facts["seen"] != "letter":
            return super().log_density(rows, candidates)
        shape = self.messages[0].shape[1], len(candidates), len(self.messages)
        return np.zeros(shape)


@dataclass(frozen=True)
class Listener:
    """Someone who hears all letters of sealed sums, with the keys of some nodes.

    Attributes
    ----------
    setting
        Whom it listens to, and what it can open.
    plan
        Of the run.
    keys
        Of all nodes; only those of the nodes that collude are used.
    """

    setting: Setting
    plan: Plan
    keys: Keyring

    @property
    def colluding(self) -> tuple[str, ...]:
        """Whose keys it has: the watcher's first."""
        s, nodes, sealing = self.setting, self.plan.bound.nodes, self.plan.sealing
        assert sealing is not None
        counts = {"letter": 0, "sum": sealing.colluding, "node": len(nodes) - 1}
        if s.sealed_view not in counts:
            raise DeclarationError(
                f"sealed_view is {s.sealed_view!r}; expected {', '.join(map(repr, counts))}"
            )
        rest = sorted({*range(len(nodes))} - {s.target}, key=lambda p: (p != s.watcher, p))
        return tuple(nodes[p] for p in rest[: counts[s.sealed_view]])

    def events(self, events: Sequence[Event]) -> Sequence[Event]:
        """What the target loses to it: nothing by one letter, and more where all others collude."""
        if self.setting.sealed_view == "letter":
            return []
        return if_colluding(events, len(self.colluding))

    def transcript(
        self,
        made: SumTranscript,
        letters: Sequence[Array],
        rows: Sequence[Array],
    ) -> SealedTranscript:
        """Return what it makes of the letters.

        Parameters
        ----------
        made
            All that is public of the run.
        letters
            Of all nodes in every round, P x K x width.
        rows
            Those of all nodes.
        """
        nodes, target = self.plan.bound.nodes, self.setting.target
        who = self.keys.coalition(self.colluding, nodes[target])
        add, seen, totals = SealedSum(made.rounds), list[Array](), list[Array]()
        alone = self.setting.sealed_view == "letter"
        left = (nodes[target],) if alone else who.left
        for n, words in enumerate(letters, 1):
            noise = made.rounds[n - 1]
            totals.append(add(n, words))
            if alone:
                own = words[target].view(np.int64)
            else:
                own = who.open(words, n, n).together
                check_opened(own, noise)
            seen.append(np.asarray(own * float(noise.step[0, 0]))[None])
            who.follow(n, totals[-1])
        noises = []
        for noise in made.noises:
            assert isinstance(noise, GaussianNoise)
            assert noise.sealing is not None
            noises.append(noise.changed(sealing=replace(noise.sealing, honest=len(left))))
        given = {**vars(made), "messages": seen, "noises": noises}
        made.facts["seen"] = self.setting.sealed_view
        others = [rows[p] for p, node in enumerate(nodes) if node in left and p != target]
        return SealedTranscript(**given, totals=totals, others=others)
