"""Whose privacy a loss is about: a row, or a person with several rows at several nodes, replaced by
others, or added and removed (maths.md 14 and 15).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from dynadp import _require
from dynadp.errors import DeclarationError
from dynadp.privacy.events import ADD_REMOVE, REPLACE, Event


@dataclass(frozen=True)
class Unit:
    """A person with up to so many rows at a node, at up to so many nodes: replaced by another, or
    added and removed.

    Attributes
    ----------
    rows
        m: rows that a person may have at a node.
    silos
        s: nodes at which a person may have rows.
    adjacency
        ``replace``: her rows are replaced by as many others; how many rows a node has is public.
        ``add-remove``: they are there or not; how many rows a node has stays secret, and a public
        number that was declared stands for it.
    limited
        Whether the software leaves out what a person has beyond m rows; else that nobody has more
        was declared by people.
    """

    rows: int = 1
    silos: int = 1
    adjacency: str = REPLACE
    limited: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        _require.whole("rows_per_person", self.rows)
        _require.whole("silos_per_person", self.silos)
        if self.adjacency not in (REPLACE, ADD_REMOVE):
            raise DeclarationError(
                f"adjacency is {self.adjacency!r}; expected {REPLACE!r} or {ADD_REMOVE!r}"
            )

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Unit":
        """The largest that events were made for: for that person all of them are accounted.

        Where some were made for rows that are replaced, all are accounted for that.
        """
        given = list(events)
        return cls(
            max((getattr(e, "rows", 1) for e in given), default=1),
            max((getattr(e, "silos", 1) for e in given), default=1),
            ADD_REMOVE if given and all(map(_added, given)) else REPLACE,
            bool(given) and all(getattr(e, "limited", False) for e in given),
        )

    def declared(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return the events with this unit."""
        if self == Unit() and not self.limited:
            return tuple(events)
        return tuple(self._with(event) for event in events)

    def _with(self, event: Any) -> Event:
        known = {one.name for one in fields(event)} if is_dataclass(event) else set()
        mine = {k: value for k, value in asdict(self).items() if k != "limited" or k in known}
        if not mine.keys() <= known:
            raise DeclarationError(
                f"events of kind {event.kind!r} do not say whose loss they are: give them the "
                f"fields {', '.join(mine)}, or declare one row a person at one node, replaced"
            )
        made: Event = replace(event, **mine)
        return made

    @property
    def added(self) -> bool:
        """Whether rows are added and removed, so that their number stays secret."""
        return self.adjacency == ADD_REMOVE

    @property
    def moves(self) -> float:
        """How far one row moves a sum of vectors of length 1, at most: 2 where it is replaced, 1
        where it is added or removed.
        """
        return 1.0 if self.added else 2.0

    @property
    def words(self) -> str:
        """Whom a statement is about.

        >>> Unit().words, Unit(3).words, Unit(3, 2).words
        ('a row at one node', 'up to 3 rows at one node', 'up to 3 rows at each of up to 2 nodes')
        >>> Unit(3, limited=True).words
        'any number of rows at one node, of which up to 3 are used'
        """
        if self.limited:
            used = "one is" if self.rows == 1 else f"up to {self.rows} are"
            return f"any number of rows at {self._where}, of which {used} used"
        rows = "a row" if self.rows == 1 else f"up to {self.rows} rows"
        return f"{rows} at {self._where}"

    @property
    def _where(self) -> str:
        return "one node" if self.silos == 1 else f"each of up to {self.silos} nodes"

    @property
    def elsewhere(self) -> str:
        """What one node's ledger cannot know, as the end of a sentence; nothing for one node."""
        if self.silos == 1:
            return ""
        return ", as long as none of her other nodes loses more than this one"

    @property
    def limits(self) -> str:
        """What a statement does not cover, in words."""
        one, other = self.rows == self.silos == 1, "more" if self.silos > 1 else "several"
        if self.limited:
            more = (
                "The software leaves out further rows of a person, by her id. Somebody with rows "
                f"under several ids, or at {other} nodes, loses more."
            )
        elif one:
            more = "Somebody with rows at several nodes, or several rows at one, loses more."
        else:
            more = (
                "That nobody has more rows was declared by people; no software saw to it. Somebody "
                f"with more rows, or with rows at {other} nodes, loses more."
            )
        if self.added:
            whom = "one row" if one else f"one person with {self.words}"
            return (
                f"It is about adding or removing {whom}. How many rows a node has stays secret, as "
                "long as it has no more than declared: rows beyond are left out, and somebody's "
                f"rows may then push others' out, which costs more than is stated here. {more}"
            )
        whom = "one row" if one else f"one person with {self.words} by another with as many rows"
        return f"It is about replacing {whom}; how many rows a node has is public. {more}"

    @property
    def whose(self) -> str:
        """What of somebody was in the data or was not."""
        return "your row" if self.rows == self.silos == 1 else "your rows"

    @property
    def question(self) -> str:
        """What somebody who sees all releases would have to guess.

        >>> Unit().question, Unit(3, adjacency="add-remove").question
        ('your row or another was in the data', 'your rows were in the data or not')
        """
        one = self.whose == "your row"
        if self.added:
            return f"{self.whose} {'was' if one else 'were'} in the data or not"
        return f"{self.whose} or {'another was' if one else 'others were'} in the data"


def row_changes(events: Sequence[Event], adjacency: str | None = None) -> list[int]:
    """How often a person's rows count in each event of one account: twice where it was made for
    rows that are added or removed, and the account is about rows that are replaced.

    Replacing is removing and adding.

    Parameters
    ----------
    events
        Of the account.
    adjacency
        What the account is about; None for what these events are, rows that are replaced where
        they are mixed.
    """
    if adjacency is None:
        adjacency = Unit.of(events).adjacency
    return [2 if _added(event) and adjacency == REPLACE else 1 for event in events]


def _added(event: Event) -> bool:
    return getattr(event, "adjacency", REPLACE) == ADD_REMOVE
