"""Leases: of two machines under one name, one draws.

A node draws and sends only while neighbours confirm that they know it, and no other life of it.
A neighbour that confirmed lets ``TERM`` seconds pass before it grants the name to another life;
the node relies on a confirmation for a little less, counted from before it asked. Clocks need not
agree, they only have to run at about the same speed; they go on while a machine sleeps.

A new life needs the grants of all neighbours, in the order of their names, so that of two clones
the first one wins everywhere. It goes on while any one of them confirms: whoever else wanted the
name would need that one's grant too. Where a run goes on without nodes that stay away, more than
half of the neighbours must grant, and so many must confirm that no other life can have more than
half (maths.md has no part in this: it is counting, a + c > number of neighbours).
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynadp._files import parse_json
from dynadp.engines.lives import Life
from dynadp.engines.zenoh.clock import elapsed
from dynadp.errors import NameTaken

TERM = 3.0  # seconds that a confirmation holds
_LEAP = 2**20  # that a life may be numbered above the last one: numbers never run out
_LINES = 1000  # of the file
_MARGIN = 0.9  # of it that the holder relies on


class Grants:
    """The lives that this node granted its neighbours' names to, in a file.

    Parameters
    ----------
    path
        The file; one of the same run.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._held = path, dict[str, dict[str, Any]]()
        path.touch()  # from the beginning, so that nobody takes it for a stranger's
        lines = path.read_text().splitlines()
        for line in lines:
            with suppress(ValueError):  # one that a crash cut short was not granted
                self._held |= parse_json(line)
        self._lines = len(lines)
        # who confirmed shortly before this process began is not known any more
        self._seen = dict.fromkeys(self._held, elapsed())

    def answer(self, node: str, life: str, number: int, *, leaves: bool) -> dict[str, Any]:
        """Grant a node's name to one of its lives, or say who has it: ``granted``, ``held`` for so
        many seconds without a sign of its holder, or ``old`` where a later life had it.
        """
        now, held = elapsed(), self._held.get(node)
        number = min(number, (held["number"] if held is not None else 0) + _LEAP)
        if held is not None and held["id"] == life:
            self._seen[node] = now - (2 * TERM if leaves else 0)
            return {"lease": "granted"}
        if leaves:
            return {"lease": "left"}
        age = now - self._seen.get(node, -TERM)
        if held is not None and age <= TERM:
            return {"lease": "held", "age": age}
        if held is not None and number <= held["number"]:
            return {"lease": "old", "number": held["number"]}
        self._enter(node, {"id": life, "number": number})
        self._held[node], self._seen[node] = {"id": life, "number": number}, now
        return {"lease": "granted"}

    def _enter(self, node: str, life: dict[str, Any]) -> None:
        """Enter a grant, on the disk before it is said; the file stays short."""
        whole = self._lines >= _LINES
        entry = {**self._held, node: life} if whole else {node: life}
        with open(self.path, "r+b") as file:
            file.seek(0, 0 if whole else 2)
            file.write(("" if whole else "\n").encode() + json.dumps(entry).encode() + b"\n")
            if whole:
                file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._lines = 1 if whole else self._lines + 2


@dataclass
class Lease:
    """A node's own name, as its neighbours grant it.

    Attributes
    ----------
    me, life, neighbours
        The node, its present life, and those who grant.
    goes_on
        Whether more than half of them are enough.
    left, finished
        Whether it was given back; whether nothing is left to draw.
    asked
        Whom it asks for a grant.
    """

    me: str
    life: Life
    neighbours: Sequence[str]
    goes_on: bool = False
    left: bool = False
    finished: bool = False
    asked: set[str] = field(default_factory=set)
    _until: dict[str, float] = field(default_factory=dict)
    _first: dict[str, float] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    @property
    def to_begin(self) -> int:
        """How many neighbours must grant."""
        count = len(self.neighbours)
        return count // 2 + 1 if self.goes_on and count else count

    @property
    def to_go_on(self) -> int:
        """How many must confirm: with fewer, another life could have been granted enough."""
        return len(self.neighbours) - self.to_begin + 1 if self.neighbours else 0

    def unasked(self, up: set[str]) -> list[str]:
        """The next neighbour that has to grant, in the order of names; nobody once enough did."""
        if self.begun:
            return []
        left = sorted(set(self.neighbours) - set(self._until))
        there = [j for j in left if j in up] if self.goes_on else left
        return (there or left)[:1]

    @property
    def granted(self) -> frozenset[str]:
        """Neighbours that granted the name to this life."""
        return frozenset(self._until)

    @property
    def begun(self) -> bool:
        """Whether enough neighbours granted the name to this life."""
        return len(self._until) >= self.to_begin

    @property
    def held(self) -> bool:
        """Whether the node may draw and send now."""
        enough = self.begun and len(self._confirming) >= self.to_go_on
        return self.finished or (enough and not self.left)

    @property
    def missing(self) -> list[str]:
        """Whose confirmation is missing; nobody's while the lease is held."""
        return [] if self.held else [j for j in self.neighbours if j not in self._confirming]

    @property
    def _confirming(self) -> set[str]:
        now = elapsed()
        return {j for j, end in self._until.items() if now < end}

    def hear(self, j: str, told: Mapping[str, Any], sent: float) -> None:
        """Take a neighbour's answer to a question of a moment; raise where the name is another's.

        A holder counts as alive if it gave a sign of itself a whole term after this life asked
        for the first time.
        """
        if self.left or j not in self.asked:
            return
        first, state = self._first.setdefault(j, sent), told.get("lease")
        if state == "granted":
            self._until[j] = sent + _MARGIN * TERM
            self._refused.discard(j)
            return
        if state == "old":
            number = told.get("number")
            if type(number) is int and not self.begun:
                self.life.raise_to(min(number, 2**53))
        elif state != "held" or sent - float(told["age"]) <= first + TERM:
            return
        self._refused.add(j)
        if len(self._refused) > len(self.neighbours) - (
            self.to_go_on if self.begun else self.to_begin
        ):
            raise NameTaken(
                f"another machine runs under the name of {self.me!r}: {j} granted the name to "
                + (
                    f"a later life of it than this one, number {self.life.number}. Nothing is "
                    "drawn here any more. See whether this disk is a copy of another's. If it is "
                    "not, and no other machine runs under this name, start it again"
                    if state == "old"
                    else "it, and it is alive. Nothing is drawn here. End one of the two: which "
                    "of them has the newest ledger shows `dynadp ledger show`"
                )
            )
