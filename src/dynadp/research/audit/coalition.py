"""Nodes that put their keys together, and what they make of the others' letters (maths.md 13).

They take off the masks that they know, and add up what is left: the sum over those whom masks among
themselves still hide.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import MaskGraph, Masks, PairKeys, RunKey
from dynadp.errors import SumSpoiled
from dynadp.mechanisms import Draws, Integers, RoundNoise, Sealing


class Opened(NamedTuple):
    """What a coalition makes of the letters of a sum, K x d whole numbers each.

    Attributes
    ----------
    together
        The sum over all who share masks with the target, and over the target, modulo 2^64.
    alone
        The target's letter without the coalition's masks: uniform, unless nobody else is left.
    """

    together: Integers
    alone: Integers


@dataclass(frozen=True)
class _Between(MaskGraph):
    """The masks that a coalition shares with some nodes, and no others."""

    coalition: frozenset[str] = field(default=frozenset())
    there: frozenset[str] = field(default=frozenset())

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        for p, j in super().pairs:
            a, b = self.members[p], self.members[j]
            if (a in self.coalition and b in self.there) or (
                b in self.coalition and a in self.there
            ):
                yield p, j


def connected(graph: MaskGraph, target: str, without: Collection[str]) -> tuple[str, ...]:
    """Return whom masks connect with the target if some members are not there, in order."""
    edges = [(graph.members[p], graph.members[j]) for p, j in graph.pairs]
    left, gone = {target}, {*without}
    while grown := {b for e in edges for a, b in (e, e[::-1]) if a in left} - left - gone:
        left |= grown
    return tuple(node for node in graph.members if node in left)


class Coalition:
    """Takes off the masks that it knows by its own keys.

    Parameters
    ----------
    graph
        Who shares masks with whom.
    pairs
        Keys of the coalition alone, and everybody's public halves.
    target
        The node whose letters it would like to read.

    Attributes
    ----------
    members
        Whose keys it has.
    left
        The nodes, in order, whose sum it can tell: those whom masks connect with the target
        without the coalition, and the target.
    """

    def __init__(self, graph: MaskGraph, pairs: PairKeys, target: str) -> None:
        self.members, self.target, self._graph = tuple(pairs.keys), target, graph
        self.left = connected(graph, target, self.members)
        known = frozenset(self.members)
        self._masks = [
            Masks(_Between(graph.members, graph.sealing, known, frozenset(there)), pairs)
            for there in (self.left, (target,))
        ]

    def open(self, letters: Any, n: int, attempt: int = 0) -> Opened:
        """Return what it makes of all members' letters of a sum, P x K x d.

        Parameters
        ----------
        letters
            Of all members, in order.
        n, attempt
            As of :meth:`~dynadp.consensus.masks.Masks.sealed`.
        """
        _, replicas, width = letters.shape
        at = {node: p for p, node in enumerate(self._graph.members)}
        found = []
        for masks, whose in zip(self._masks, (self.left, (self.target,)), strict=True):
            total = letters[[at[node] for node in whose]].sum(axis=0, dtype=np.uint64)
            if self.members:
                # what the coalition would send with nothing to hide: all masks, and they alone
                nothing = np.zeros((len(self.members), replicas * width), np.int64)
                known = masks.sealed(nothing, self.members, n, attempt)
                total += known.sum(axis=0, dtype=np.uint64).reshape(replicas, width)
            found.append(total.view(np.int64))
        return Opened(*found)

    def follow(self, n: int, total: Array) -> None:
        """Note a decoded sum, as all members do."""
        for masks in self._masks:
            masks.follow(n, total)


@dataclass(frozen=True)
class Keyring:
    """The keys of all nodes of a run that is looked into.

    Attributes
    ----------
    members, sealing
        Who takes part.
    secrets
        Everybody's key.
    consortium, run
        For which they are.
    """

    members: tuple[str, ...]
    sealing: Sealing
    secrets: Mapping[str, bytes] = field(repr=False)
    consortium: str = "audit"
    run: str = "audit"

    @classmethod
    def draw(cls, members: tuple[str, ...], sealing: Sealing, draws: Draws) -> "Keyring":
        """Draw new keys."""
        secrets = {node: RunKey.draw(node, draws).secret for node in members}
        return cls(members, sealing, secrets)

    def masks(self, draws: Draws) -> Masks:
        """Return the masks of all nodes, as the run makes them."""
        given = self.members, self.sealing, draws, self.consortium, self.run
        return Masks.in_process(*given, self.secrets)

    def coalition(self, members: tuple[str, ...], target: str) -> Coalition:
        """Return those of the nodes that put their keys together."""
        publics = {node: RunKey(node, key).public_bytes for node, key in self.secrets.items()}
        own = {node: RunKey(node, self.secrets[node]) for node in members}
        pairs = PairKeys(own, publics, self.consortium, self.run)
        return Coalition(MaskGraph(self.members, self.sealing), pairs, target)


def check_opened(sums: Integers, noise: RoundNoise) -> None:
    """Refuse to look at what was not opened: a coalition that takes off other masks than nodes put
    on is left with nothing, and would find nothing.
    """
    if (np.linalg.norm(sums * float(noise.step[0, 0]), axis=-1) > noise.radius[0]).any():
        raise SumSpoiled(
            "the masks that a coalition knows are not those that nodes put on: there is nothing to "
            "look at"
        )
