"""Who takes part in a sum where nodes may stay away: all who remain agree, by their signatures
(maths.md 17).

A sum is the same at all nodes if they add the letters of one set of members. A node that has
waited long enough for some members' letters proposes to leave them out. It proposes the union of
all that it was shown, again whenever that grows, and decides once everybody outside the set has
signed exactly this set. A node that holds all letters and has proposed nothing has decided for
all. Whoever has decided says so (``held``) and proposes nothing more about this sum; who sees that
follows, unless it proposed to leave that node out.

All of this is a function of letters, which are kept before they are sent: a node that is started
again finds its proposals and decisions, and goes on from there.
"""

from collections.abc import Generator, Iterable

from dynadp.consensus import Absence
from dynadp.engines.ballots import Ballots
from dynadp.engines.exchange import Awaiting, Letters
from dynadp.engines.letters import Kind, Letter
from dynadp.errors import DeclarationError, LeftBehind, NodeLost

Waits = Generator[Awaiting, None, frozenset[str]]


def least_members(absence: Absence, nodes: int, sealed: int = 0) -> int:
    """Return how many members must remain: more than half, and as many as sealed sums need.

    Two parts of a network that lost each other cannot both go on then.
    """
    half = nodes // 2 + 1
    given = half if absence.least is None else absence.least
    if not half <= given <= nodes:
        raise DeclarationError(
            f"least is {given} of {nodes} nodes; expected a number from {half} to {nodes}: with "
            "half of them or fewer both sides of a cut network could go on, with different models"
        )
    return max(given, sealed)


class Membership:
    """The members of one sum after the other, at one node.

    Parameters
    ----------
    letters
        Sends and keeps this node's letters.
    ballots
        How sets are written down.
    senders
        Whose letters sums are made of; the other members forward them and take the model home.
    least
        Members that must remain, senders among them.

    Attributes
    ----------
    members
        Of the next sum, in the network's order.
    """

    def __init__(
        self, letters: Letters, ballots: Ballots, senders: Iterable[str], least: int
    ) -> None:
        self.letters, self.ballots, self.least = letters, ballots, least
        self.me, self.senders = letters.inbox.rules.me, frozenset(senders)
        self.members = ballots.nodes
        self._known = dict[tuple[str, Kind, int], Letter | None]()  # of the present sum
        self._require_not_left()

    @property
    def note(self) -> bytes:
        """For whom the next letter is made: part of what its author signs."""
        return self.ballots.packed(self.members)

    @property
    def sending(self) -> tuple[str, ...]:
        """The members whose letters the next sum is made of."""
        return tuple(name for name in self.members if name in self.senders)

    def begin(self, *, spent: bool) -> None:
        """Note that this node keeps its letters here; one that has spent and finds no such note
        lost them.
        """
        inbox, n = self.letters.inbox, self.ballots.entries
        if inbox.missing("held", n, (self.me,)):
            if spent:
                raise LeftBehind(
                    f"{inbox.path} is new, and this node has sent letters of this run before: what "
                    "it signed about its members is gone, so it cannot go on without risking two "
                    "models. Its part is over; keep that file while a run lasts"
                )
            inbox.letter("held", n, self.ballots.packed(self.members))
            inbox.settle()

    def settle(self, kind: Kind, entry: int, *, partial: bool) -> Waits:
        """Wait for the letters of one sum; return who is left out of it, for all sums from now on.

        Parameters
        ----------
        kind, entry
            Which letters: their kind, and the number that they are entered under.
        partial
            Whether those of the members that remain make the sum. Otherwise what was sent is of
            no use where somebody is left out, and need not be here.
        """
        inbox, M, watched = self.letters.inbox, frozenset(self.members), self.ballots.about(entry)
        if (own := self._held(self.me, entry)) is not None:
            return self._decided(entry, M - own)
        mine, given_up = self._signed(self.me, entry), frozenset[str]()
        while True:
            seen = sum(len(inbox.here(*one)) for one in watched)
            lacking = self._lacking(kind, entry)
            current = mine[-1] if mine else frozenset[str]()
            decided = self._adoptable(entry, current)
            for away in decided:
                if not lacking - away or (away and not partial):
                    return self._decided(entry, away)
            if not mine and not lacking:
                return self._decided(entry, frozenset())
            target = current | given_up | self._proposed(entry)
            # a decision whose letters do not come is no use
            decided = [away for away in decided if not (lacking - away) & given_up]
            without = lacking - (decided[0] if decided else target)
            if not decided and target and not partial:
                without = frozenset()
            want = Awaiting(kind, entry, tuple(sorted(without)), watched, seen)
            if not without:
                if target != current:
                    self._require_enough(M, target)
                    self._publish("without", self.ballots.number(entry, len(mine)), target)
                    mine.append(target)
                if not (unsigned := self._unsigned(entry, target)):
                    return self._decided(entry, target)
                want = Awaiting("held", entry, tuple(sorted(unsigned)), watched, seen)
            try:
                if want.missing(inbox):
                    yield want
                    continue
                useless = frozenset(want.authors) - {*inbox.missing(*want[:3])}
            except NodeLost as lost:  # not of all of them, where somebody was revoked
                useless = frozenset(lost.away or want.authors)
            # who is silent, or sent what is of no use; a letter may have come meanwhile
            still = self._lacking(kind, entry) if without else self._unsigned(entry, target)
            given_up |= useless & still

    def _decided(self, entry: int, away: frozenset[str]) -> frozenset[str]:
        """Keep and tell a decision: it is the last word of this node on the sum."""
        left = tuple(name for name in self.members if name not in away)
        if self.letters.inbox.missing("held", entry, (self.me,)):
            self._publish("held", entry, left)
        self.members = left
        self._known.clear()
        return away

    def _publish(self, kind: Kind, n: int, names: Iterable[str]) -> None:
        data = self.letters.inbox.letter(kind, n, self.ballots.packed(names))
        self.letters.inbox.settle()  # what was signed is never unknown here
        self.letters.checkpoint("signed")
        self.letters.publish(data, kind, n)

    def _lacking(self, kind: Kind, entry: int) -> frozenset[str]:
        """Members whose letters are not here, or were made for other members."""
        lacking, note = set[str](), self.note
        for name in self.sending:
            if name == self.me:
                continue
            letter = self._read(name, kind, entry)
            if letter is not None and self.me not in self.ballots.unpacked(letter.note):
                raise self._left(name)
            if letter is None or letter.note != note:
                lacking.add(name)
        return frozenset(lacking)

    def _adoptable(self, entry: int, current: frozenset[str]) -> list[frozenset[str]]:
        """Whom others left out, of whom this node proposed to leave out none."""
        found = list[frozenset[str]]()
        for name in self.members:
            if name == self.me or name in current:
                continue
            held = self._held(name, entry)
            if held is None or not held <= set(self.members):
                continue
            if self.me not in held:
                raise self._left(name)
            if self._enough(held):
                found.append(frozenset(self.members) - held)
        return found

    def _proposed(self, entry: int) -> frozenset[str]:
        """The union of all that members propose, as far as it does not name this node."""
        sets = (one for name in self.members for one in self._signed(name, entry))
        everybody = frozenset(self.members)
        return frozenset().union(*(one for one in sets if self.me not in one and one < everybody))

    def _unsigned(self, entry: int, target: frozenset[str]) -> frozenset[str]:
        """Who remains, and has not signed exactly this set."""
        return frozenset(
            name
            for name in self.members
            if name not in target and target not in self._signed(name, entry)
        )

    def _require_enough(self, members: frozenset[str], away: frozenset[str]) -> None:
        """Raise where too few would remain: nothing is signed, and nothing is lost."""
        left = members - away
        if self._enough(left):
            return
        raise NodeLost(
            f"{self.me} would go on without {', '.join(sorted(away))}, with {len(left)} of "
            f"{len(self.ballots.nodes)} nodes; the run needs {self.least}. Either they are away, "
            "or the network is cut and the other part goes on. This node stops and loses nothing: "
            "see to them and to the links, then start it again",
            tuple(sorted(away)),
        )

    def _enough(self, left: frozenset[str]) -> bool:
        return len(left) >= self.least and bool(left & self.senders)

    def _require_not_left(self) -> None:
        """Raise where a letter tells that others went on without this node."""
        for letter in self.letters.inbox.of_kind("held"):
            if letter.author != self.me and self.me not in self.ballots.unpacked(letter.body):
                raise self._left(letter.author)

    def _left(self, name: str) -> LeftBehind:
        return LeftBehind(
            f"{name} and those with it agreed to go on without {self.me}, which they did not hear "
            "from for their patience. Its part in this run is over, and what it did not spend is "
            "free again; their model holds what it sent until then"
        )

    def _held(self, author: str, entry: int) -> frozenset[str] | None:
        letter = self._read(author, "held", entry)
        return None if letter is None else self.ballots.unpacked(letter.body)

    def _signed(self, author: str, entry: int) -> list[frozenset[str]]:
        """All sets that a node proposed to leave out, in their order."""
        found = list[frozenset[str]]()
        for kind, n in self.ballots.about(entry)[1:]:
            letter = self._read(author, kind, n)
            if letter is not None:
                found.append(self.ballots.unpacked(letter.body))
        return found

    def _read(self, author: str, kind: Kind, n: int) -> Letter | None:
        """Return a letter; it is read and checked once."""
        key, inbox = (author, kind, n), self.letters.inbox
        if key not in self._known and author in inbox.here(kind, n):
            self._known[key] = inbox.read(author, kind, n)
        return self._known.get(key)
