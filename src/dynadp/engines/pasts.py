"""Who takes part in the next sum, and a hash of how that came about (maths.md 17)."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dynadp._files import canonical_json

HASH = 16  # bytes


@dataclass(frozen=True)
class Past:
    """The memberships of all sums so far: nodes with one past stand at one point.

    Attributes
    ----------
    nodes
        All of the run, in the network's order.
    members
        Of the next sum, in this order.
    hash
        Of all sums so far: of each its number, over whom it was, and who came back after it.
    left
        For each that is away, the number of the sum that it was left out of, and the hash after
        that.
    """

    nodes: tuple[str, ...]
    members: tuple[str, ...]
    hash: bytes = bytes(HASH)
    left: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)

    @classmethod
    def beginning(cls, nodes: tuple[str, ...]) -> "Past":
        """Before the first sum: everybody takes part."""
        return cls(nodes, nodes)

    def after(self, entry: int, held: Iterable[str], back: Iterable[str]) -> "Past":
        """Return the past after a sum over ``held``, after which these come back."""
        over, came = set(held), set(back)
        sets = [[name for name in self.nodes if name in those] for those in (over, came)]
        content = canonical_json([self.hash.hex(), entry, *sets]).encode()
        made = hashlib.sha256(content).digest()[:HASH]
        members = tuple(name for name in self.nodes if name in over | came)
        left = {name: found for name, found in self.left.items() if name not in came}
        left |= {name: (entry, made) for name in self.members if name not in over}
        return Past(self.nodes, members, made, left)
