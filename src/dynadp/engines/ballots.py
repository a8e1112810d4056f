"""Sets of members in letters: who a sum is made for, who is proposed to be left out, who it was
over, and who may come back.

A set is one bit a node, in the network's order, in as few bytes as hold them: one spelling, of one
length, whatever names are. Whatever is said about a sum names the members it is made for and a hash
of all memberships before (:class:`~dynadp.engines.pasts.Past`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dynadp.engines.letters import Kind, Letter
from dynadp.engines.pasts import HASH, Past
from dynadp.errors import Rejected

Watched = tuple[tuple[Kind, int], ...]
_ROUND = 4  # bytes of a round's number


@dataclass(frozen=True)
class Ballots:
    """How the nodes of one run write sets down, and which letters about them are believed.

    Attributes
    ----------
    nodes
        All of the run, in the network's order.
    entries
        How many numbers releases are entered under, from 0: those of all rounds and spare
        attempts.
    """

    nodes: tuple[str, ...]
    entries: int

    @property
    def width(self) -> int:
        """Bytes of a set."""
        return (len(self.nodes) + 7) // 8

    @property
    def longest_note(self) -> int:
        """Bytes of a letter's note: for whom it is made, after what, and who may come back."""
        return 2 * self.width + HASH

    def packed(self, names: Iterable[str]) -> bytes:
        """Return a set as bytes."""
        bits = sum(1 << self.nodes.index(name) for name in set(names))
        return bits.to_bytes(self.width, "little")

    def unpacked(self, data: bytes) -> frozenset[str]:
        """Return the set; raise Rejected where it is none."""
        bits = int.from_bytes(data, "little")
        if len(data) != self.width or bits >> len(self.nodes):
            raise Rejected("malformed: no set of the run's nodes")
        return frozenset(name for p, name in enumerate(self.nodes) if bits >> p & 1)

    def place(self, past: Past) -> bytes:
        """Return for which sum a letter is: its members and all memberships before, as bytes."""
        return self.packed(past.members) + past.hash

    def place_of(self, letter: Letter) -> bytes:
        """Return for which sum a letter is."""
        return letter.note[: self.width + HASH]

    def welcomed(self, letter: Letter) -> frozenset[str]:
        """Return whom the author of a round's letter takes in again."""
        return self.unpacked(letter.note[self.width + HASH :])

    def request(self, after: int) -> bytes:
        """Return the body of a request to be taken in again, for rounds after this one."""
        return after.to_bytes(_ROUND, "little")

    def after(self, letter: Letter) -> int:
        """Return after which round the author of a request may be taken in."""
        return int.from_bytes(letter.body, "little")

    def number(self, entry: int, k: int) -> int:
        """Return the round of a node's k-th proposal about an entry: it makes fewer than P."""
        return entry * len(self.nodes) + k

    def about(self, entry: int) -> Watched:
        """Return kind and round of all letters about an entry's members."""
        proposals: list[tuple[Kind, int]] = [
            ("without", self.number(entry, k)) for k in range(len(self.nodes))
        ]
        return (("held", entry), *proposals)

    def check(self, letter: Letter) -> None:
        """Raise what is wrong with the sets in a letter."""
        kind, author = letter.kind, letter.author
        if kind == "without":
            away, members = self.unpacked(letter.body), self._made_for(letter)
            last = self.number(self.entries, 0)
            if not away or author in away or not away < members or letter.round >= last:
                raise Rejected("malformed: a proposal names others that are away from a sum")
        elif kind == "held":
            held = self.unpacked(letter.body)
            if author not in held or not held <= self._made_for(letter):
                raise Rejected("malformed: who holds a sum is a member of it")
            if letter.round >= self.entries:
                raise Rejected("malformed: of a sum that the run does not have")
        elif kind == "back":
            if len(letter.note) != HASH or len(letter.body) != _ROUND:
                raise Rejected("malformed: a request names what left its author out")
            if letter.round >= self.entries:
                raise Rejected("malformed: of a sum that the run does not have")
        elif kind in ("sum", "sealed", "message"):
            if self._made_for(letter, HASH + self.width) & self.welcomed(letter):
                raise Rejected("malformed: who is a member cannot come back")
        elif letter.note:
            raise Rejected("with a note that this run does not have")

    def _made_for(self, letter: Letter, more: int = HASH) -> frozenset[str]:
        """Return the members that a letter is made for, its author among them."""
        if len(letter.note) != self.width + more:
            raise Rejected("malformed: a letter of a sum names its members")
        members = self.unpacked(letter.note[: self.width])
        if letter.author not in members:
            raise Rejected("malformed: a letter of a sum names its members, its author too")
        return members
