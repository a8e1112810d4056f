"""Sets of members in letters: who is proposed to be left out of a sum, and who a sum was over.

A set is one bit a node, in the network's order, in as few bytes as hold them: one spelling, of one
length, whatever names are.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dynadp.engines.letters import Kind, Letter
from dynadp.errors import Rejected

Watched = tuple[tuple[Kind, int], ...]


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
            away = self.unpacked(letter.body)
            last = self.number(self.entries, 0)
            if not away or author in away or letter.round >= last or letter.note:
                raise Rejected("malformed: a proposal names others that are away from a sum")
        elif kind == "held":
            if (
                author not in self.unpacked(letter.body)
                or letter.round >= self.entries
                or letter.note
            ):
                raise Rejected("malformed: who holds a sum is a member of it")
        elif kind in ("sum", "sealed", "message"):
            if author not in self.unpacked(letter.note):
                raise Rejected("malformed: a letter of a sum names its members, its author too")
        elif letter.note:
            raise Rejected("with a note that this run does not have")
