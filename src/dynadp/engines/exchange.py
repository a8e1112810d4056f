"""How a node on a network exchanges messages with the others.

:class:`NeighbourLetters` sends one plain letter to all neighbours and adds up theirs. Another
exchange, such as masked sums, is another :class:`NodeExchange`: the rounds on both sides stay as
they are.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Releaser, SealedSum, WeighedSum
from dynadp.engines.inbox import Inbox
from dynadp.engines.letters import Kind
from dynadp.errors import SumSpoiled

# what a node says that stops in the middle of a run
FOR_GOOD = (
    "If that never helps, make a model of what was released (dynadp model) and close the run "
    "(dynadp ledger close)"
)


class Publish(Protocol):
    """Sends a letter to the neighbours, or tries to."""

    def __call__(self, data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
        """Send it; ``author`` is another node's name where its letter is handed on."""


class Awaiting(NamedTuple):
    """Letters that a node waits for.

    Attributes
    ----------
    kind, round, authors
        Which.
    watched
        Kind and round of letters that wake the node too, whoever sends them.
    seen
        How many of those were here when it began to wait.
    also
        Author, kind and round of letters to ask for in passing.
    late
        Whether letters were sent long ago, and are asked for at once.
    """

    kind: Kind
    round: int
    authors: tuple[str, ...]
    watched: tuple[tuple[Kind, int], ...] = ()
    seen: int = 0
    also: tuple[tuple[str, Kind, int], ...] = ()
    late: bool = False

    def missing(self, inbox: Inbox) -> list[str]:
        """Return whose letters are missing; nobody's where a watched one came."""
        if self.watched and sum(len(inbox.here(*one)) for one in self.watched) != self.seen:
            return []
        return inbox.awaited(self.kind, self.round, self.authors)

    def wanted(self, inbox: Inbox, author: str) -> list[tuple[str, Kind, int]]:
        """Return author, kind and round of what to ask for, where a node's letter is missing: that,
        the next watched one of each kind, and with the first such node what else is wanted.
        """
        found = {self.kind: self.round}
        for kind, n in self.watched:
            if author not in inbox.here(kind, n):
                found.setdefault(kind, n)
        wanted = [(author, kind, n) for kind, n in found.items()]
        if inbox.missing(self.kind, self.round, self.authors)[:1] == [author]:
            wanted += [one for one in self.also if one[0] not in inbox.here(*one[1:])]
        return wanted


class NodeExchange(Protocol):
    """From a node's message of round n to what it learns of the others'."""

    def __call__(self, n: int, V: Any) -> Generator[Awaiting, None, Array]:
        """Yield whenever letters are missing; return sum_j V_j, 1 x 1 x d.

        In algorithm "sum" V is None at a node that sends nothing, and all nodes learn the same 1 x
        d sum over all nodes.
        """


@dataclass(frozen=True)
class Letters:
    """Sends this node's letters and waits for others', in whatever order they come.

    Attributes
    ----------
    inbox
        The node's letters, its own among them.
    publish
        Sends a letter to the neighbours, or tries to.
    checkpoint
        Called at the points of an exchange, by name.
    """

    inbox: Inbox
    publish: Publish
    checkpoint: Callable[[str], None]

    def swap(
        self, kind: Kind, n: int, V: Array | None, authors: Sequence[str]
    ) -> Generator[Awaiting, None, dict[str, Array]]:
        """Publish V, if there is one, as the letter of a kind and round; return the authors'
        vectors.
        """
        inbox, me = self.inbox, self.inbox.rules.me
        others = tuple(author for author in authors if author != me)
        missing = inbox.missing(kind, n, others)
        if V is not None:
            self.send(kind, n, V, again=bool(missing))
        if missing:
            yield Awaiting(kind, n, others)
        self.checkpoint("received")
        return {
            author: V if author == me and V is not None else inbox.values(author, kind, n)
            for author in authors
        }

    def send(
        self, kind: Kind, n: int, V: Array | None = None, note: bytes = b"", *, again: bool = True
    ) -> None:
        """Keep and publish a letter of this node.

        Parameters
        ----------
        kind, n, V, note
            The letter; without V it has no body.
        again
            Whether to publish one that was kept before: a node that was started again leaves that,
            and whoever still needs the letter asks.
        """
        inbox = self.inbox
        new = bool(inbox.missing(kind, n, (inbox.rules.me,)))
        body = b"" if V is None else np.asarray(V, "<f8").tobytes()
        data = inbox.letter(kind, n, body, note)
        self.checkpoint("kept")
        if new or again:
            self.publish(data, kind, n)
            self.checkpoint("published")

    def swap_sealed(
        self, entry: int, letter: Any, members: Sequence[str]
    ) -> Generator[Awaiting, None, Any]:
        """Publish a sealed letter; return those of all members, P x 1 x d; None where their lengths
        differ.
        """
        own = np.ascontiguousarray(letter, np.uint64).view(np.float64)  # the same 64 bits
        found = yield from self.swap("sealed", entry, own, members)
        try:
            return np.array([found[member] for member in members])[:, None].view(np.uint64)
        except ValueError:
            return None

    def swap_keys(
        self, public: bytes, members: Sequence[str]
    ) -> Generator[Awaiting, None, dict[str, bytes]]:
        """Publish the public half of this node's key for the run; return all members'."""
        found = yield from self.swap("key", 0, np.frombuffer(public, "<f8"), members)
        return {member: key.tobytes() for member, key in found.items()}


@dataclass(frozen=True)
class NeighbourLetters:
    """sum_j V_j from plain letters; a node that is alone is its own neighbour."""

    letters: Letters
    neighbours: Sequence[str]

    def __call__(self, n: int, V: Array) -> Generator[Awaiting, None, Array]:
        """Send this node's message, wait for the neighbours', add them up."""
        found = yield from self.letters.swap("message", n, V[0, 0], self.neighbours)
        vectors = list(found.values())
        return np.sum(vectors, axis=0)[None, None] if vectors else V


@dataclass(frozen=True)
class SumLetters:
    """sum_p w_p V_p from plain letters of all nodes that send; neighbours hand them on."""

    letters: Letters
    senders: Sequence[str]
    weights: Sequence[float]

    def __call__(self, n: int, V: Array | None) -> Generator[Awaiting, None, Array]:
        """Send this node's message, where it has one, wait for all others', add them up."""
        own = None if V is None else V[0, 0]
        found = yield from self.letters.swap("sum", n, own, self.senders)
        vectors = np.array([found[sender] for sender in self.senders])
        return WeighedSum(self.weights)(n, vectors[:, None])


@dataclass(frozen=True)
class SealedLetters:
    """sum_p w_p V_p from the sealed letters of all nodes; neighbours hand them on."""

    letters: Letters
    members: Sequence[str]
    releaser: Releaser

    def __call__(self, n: int, V: Any) -> Generator[Awaiting, None, Array]:
        """Send this node's letter, wait for all others', decode their sum.

        Raises SumSpoiled where they do not give one.
        """
        entry = self.releaser.entry
        words = yield from self.letters.swap_sealed(entry, V[0, 0], self.members)
        if words is None:
            raise SumSpoiled("letters of one sealed sum have different lengths")
        return SealedSum(self.releaser.releases.noises)(n, words)
