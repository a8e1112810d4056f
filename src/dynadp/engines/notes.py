"""Notes of letters in runs that go on without nodes that stay away: which edges their author counts
as on, and under which epoch (maths.md 16).

A message of round n says for each neighbour of its author ``[epoch, start]``: from which round the
edge is on, 0 for off. A mean says so too, and of how many rounds it is. ``join`` asks to be taken
in again under a new epoch, ``welcome`` answers with the first round. Notes are canonical JSON,
checked before they are kept: a hostile one is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dynadp._files import canonical_json
from dynadp.engines.letters import Letter
from dynadp.errors import Rejected

TRIES = 64  # so often a node may ask for the same


class Standing(NamedTuple):
    """An edge as one of its ends counts it: its epoch, and from which round it is on; 0 for off."""

    epoch: int
    start: int

    def on(self, n: int) -> bool:
        """Whether the edge is on in round n."""
        return 0 < self.start <= n

    @property
    def off(self) -> bool:
        """Whether it is off, and not agreed to be on later."""
        return self.start == 0


def epoch_of(attempt: int, after: int, back: bool, node: int, nodes: int, rounds: int) -> int:
    """Return the epoch of a request to be taken in: no two requests share one.

    Parameters
    ----------
    attempt
        0, 1, ...: how often the same was asked for.
    after, back
        The last round of who asks, and whether it waits for the answer.
    node, nodes, rounds
        Its position, P and T.
    """
    return nodes * (1 + back + 2 * (after + attempt * (rounds + 1))) + node


def written(content: Mapping[str, Any]) -> bytes:
    """Return a note as bytes."""
    return canonical_json(content).encode()


def standings(note: bytes) -> dict[str, Standing]:
    """Return the edges that a checked note of a message or a mean names."""
    edges = json.loads(note)["edges"] if note else {}
    return {name: Standing(*pair) for name, pair in edges.items()}


@dataclass(frozen=True)
class NoteRules:
    """Which notes the letters of a run may have.

    Attributes
    ----------
    neighbours
        Of every node of the run, in the network's order.
    rounds
        T.
    """

    neighbours: Mapping[str, frozenset[str]] = field(repr=False)
    rounds: int

    @property
    def epochs(self) -> int:
        """An epoch is below."""
        return epoch_of(TRIES, 0, False, 0, len(self.neighbours), self.rounds)

    @property
    def longest(self) -> int:
        """Bytes of a note, at most."""
        names = max(
            sum(len(json.dumps(name)) + 40 for name in near) for near in self.neighbours.values()
        )
        return 100 + names

    def check(self, letter: Letter) -> None:
        """Raise what is wrong with a letter's note."""
        if not self._has_note(letter):
            if letter.note:
                raise Rejected("with a note that such a letter does not have")
            return
        if letter.kind in ("join", "welcome") and not 0 < letter.round < self.epochs:
            raise Rejected("with a note about an epoch that this run does not have")
        try:
            content = json.loads(letter.note)
            whole = isinstance(content, dict) and written(content) == letter.note
        except (ValueError, RecursionError):
            whole, content = False, None
        if not whole or not self._sound(letter, content):
            raise Rejected("with a note that is not one of this run")

    def _has_note(self, letter: Letter) -> bool:
        if letter.kind == "message":
            return letter.round > 0
        return letter.kind in ("mean", "join", "welcome")

    def _is_epoch_of(self, letter: Letter, content: dict[str, Any]) -> bool:
        """Whether a request's epoch is one of its author's, for what it asks."""
        nodes = list(self.neighbours)
        where = nodes.index(letter.author), len(nodes), self.rounds
        first = epoch_of(0, content["after"], content["back"], *where)
        return (
            letter.round >= first
            and (letter.round - first)
            % (epoch_of(1, 0, False, *where) - epoch_of(0, 0, False, *where))
            == 0
        )

    def _sound(self, letter: Letter, content: dict[str, Any]) -> bool:
        last, names = self.rounds, set(content)
        if letter.kind == "join":
            return (
                names == {"after", "back"}
                and _whole(content["after"], last)
                and type(content["back"]) is bool
                and self._is_epoch_of(letter, content)
            )
        if letter.kind == "welcome":
            return (names == {"from"} and _whole(content["from"], last)) or (
                names == {"above"} and _whole(content["above"], self.epochs - 1)
            )
        if letter.kind == "mean" and not (
            "rounds" in names and _whole(content["rounds"], last) and content["rounds"]
        ):
            return False
        edges = content.get("edges")
        return (
            names == {"edges"} | ({"rounds"} if letter.kind == "mean" else set())
            and isinstance(edges, dict)
            and edges.keys() == self.neighbours[letter.author]
            and all(
                isinstance(pair, list)
                and len(pair) == 2
                and _whole(pair[0], self.epochs - 1)
                and _whole(pair[1], last)
                for pair in edges.values()
            )
        )


def _whole(value: Any, most: int) -> bool:
    """Whether it is a whole number from 0 to ``most``, and no truth value."""
    return type(value) is int and 0 <= value <= most
