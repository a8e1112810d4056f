"""Whose privacy a loss is about: a row, or a person with several rows at several nodes (maths.md
14).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from dynadp import _require
from dynadp.errors import DeclarationError
from dynadp.privacy.events import Event


@dataclass(frozen=True)
class Unit:
    """A person with up to so many rows at a node, at up to so many nodes, replaced by others.

    Attributes
    ----------
    rows
        m: rows that a person may have at a node.
    silos
        s: nodes at which a person may have rows.
    """

    rows: int = 1
    silos: int = 1

    def __post_init__(self) -> None:
        _require.whole("rows_per_person", self.rows)
        _require.whole("silos_per_person", self.silos)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Unit":
        """The largest that events were made for: for that person all of them are accounted."""
        found = [(getattr(e, "rows", 1), getattr(e, "silos", 1)) for e in events]
        return cls(max((m for m, _ in found), default=1), max((s for _, s in found), default=1))

    def declared(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return the events with this unit."""
        if self == Unit():
            return tuple(events)
        return tuple(self._with(event) for event in events)

    def _with(self, event: Any) -> Event:
        known = {field.name for field in fields(event)} if is_dataclass(event) else set()
        if not {"rows", "silos"} <= known:
            raise DeclarationError(
                f"events of kind {event.kind!r} do not say whose loss they are: give them the "
                "fields rows and silos, or declare one row a person at one node"
            )
        made: Event = replace(event, rows=self.rows, silos=self.silos)
        return made

    @property
    def words(self) -> str:
        """Whom a statement is about.

        >>> Unit().words, Unit(3).words, Unit(3, 2).words
        ('a row at one node', 'up to 3 rows at one node', 'up to 3 rows at each of up to 2 nodes')
        """
        rows = "a row" if self.rows == 1 else f"up to {self.rows} rows"
        where = "one node" if self.silos == 1 else f"each of up to {self.silos} nodes"
        return f"{rows} at {where}"

    @property
    def elsewhere(self) -> str:
        """What one node's ledger cannot know, as the end of a sentence; nothing for one node."""
        if self.silos == 1:
            return ""
        return ", as long as none of her other nodes loses more than this one"

    @property
    def limits(self) -> str:
        """What a statement does not cover, in words."""
        if self == Unit():
            return (
                "It is about replacing one row; how many rows a node has is public. Somebody with "
                "rows at several nodes, or several rows at one, loses more."
            )
        where = "more nodes" if self.silos > 1 else "several nodes"
        return (
            f"It is about replacing one person with {self.words} by another with as many rows; how "
            f"many rows a node has is public. Somebody with more rows, or with rows at {where}, "
            "loses more."
        )

    @property
    def whose(self) -> str:
        """What of somebody was in the data or was not."""
        return "your row" if self == Unit() else "your rows"
