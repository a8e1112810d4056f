"""The rules of a ledger, without its file: what entries say, one after the other, and what may come
next.

hash = SHA-256(id, at, who, kind, run, round, content, SHA-256(message), previous): every entry is
chained to the one before it.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from dynadp._files import canonical_json, digest
from dynadp.errors import BudgetRefused, DeclarationError, DynadpError, SeededRefused
from dynadp.privacy.cap import Basis, Cap
from dynadp.privacy.distributions import distribution_of
from dynadp.privacy.events import Event, from_json, to_json

START = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes
    ----------
    id, at, who
        1, 2, 3, ...; when, by the clock of the one who wrote it, and who that was.
    kind, run, round
        ``open``, ``cap``, ``reserve``, ``spend`` or ``close``, and what it is about.
    content, message
        The rest, as canonical JSON; the bytes that a spend releases.
    previous, hash
        The hash of the entry before, and its own.
    """

    id: int
    at: str
    who: str
    kind: str
    run: str | None = None
    round: int | None = None
    content: str = ""
    message: bytes | None = field(default=None, repr=False)
    previous: str = START
    hash: str = ""

    @property
    def row(self) -> tuple[Any, ...]:
        """All of it, in the order of the attributes."""
        return tuple(vars(self).values())

    @property
    def details(self) -> dict[str, Any]:
        """The content, parsed."""
        return dict(json.loads(self.content))

    def digest(self) -> str:
        """What its hash must be."""
        message = None if self.message is None else hashlib.sha256(self.message).hexdigest()
        return digest(
            [
                self.id,
                self.at,
                self.who,
                self.kind,
                self.run,
                self.round,
                self.content,
                message,
                self.previous,
            ]
        )

    def sealed(self, id: int, previous: str, details: dict[str, Any]) -> "Entry":
        """The entry in its place in the chain."""
        a_moment(self.at), a_line("who", self.who), self.run is None or a_line("run", self.run)
        entry = replace(self, id=id, content=canonical_json(details), previous=previous)
        return replace(entry, hash=entry.digest())


@dataclass
class Reservation:
    """A reservation and what became of it."""

    plan: list[Event]
    basis: Basis
    cap: Cap | None = None  # under which it was admitted
    spent: dict[int, int] = field(default_factory=dict)  # round: id of its entry
    closed: bool = False

    @cached_property
    def by_round(self) -> dict[int, list[Event]]:
        """The events of each round of the plan."""
        found: dict[int, list[Event]] = {}
        for event in self.plan:
            found.setdefault(event.round, []).append(event)
        return found

    @property
    def took_all(self) -> bool:
        """Whether nothing may follow it under its cap: admitted as a fixed plan, and not given up
        before its first release.
        """
        return self.basis == "plan" and bool(self.spent or not self.closed)

    @property
    def returns(self) -> bool:
        """Whether closing it gives something back."""
        left = len(self.spent) < len(self.by_round)
        return not self.closed and left and not (self.basis == "plan" and self.spent)


@dataclass
class LedgerState:
    """What the entries say, taken one by one, and the rules for the next one."""

    node: str = ""
    cap: Cap | None = None
    runs: dict[str, Reservation] = field(default_factory=dict)
    head: str = START
    length: int = 0

    def counted(self) -> list[Event]:
        """What counts against the cap."""
        out = []
        for run in self.runs.values():
            returned = run.closed and not run.took_all
            out += [event for event in run.plan if not returned or event.round in run.spent]
        return out

    def spent(self) -> list[Event]:
        """What was released."""
        return [
            event for run in self.runs.values() for event in run.plan if event.round in run.spent
        ]

    def check(self, events: list[Event]) -> None:
        """Refuse events that no ledger, or not this one, may take."""
        for event in events:
            if not _sound(event):
                raise BudgetRefused(
                    f"{event!r} has no known cost; expected an event whose kind is "
                    f"registered, in plain numbers"
                )
            if event.seeded:
                raise SeededRefused(
                    f"{event!r} is seeded: such noise protects nobody; release with the system's "
                    f"noise"
                )
            if event.node != self.node:
                raise BudgetRefused(
                    f"{event!r} is of another node; this is the ledger of {self.node!r}, use the "
                    f"node's own"
                )

    def plan(self, run: str, plan: list[Event]) -> None:
        """Refuse a plan for other reasons than its cost."""
        self.check(plan)
        if run in self.runs:
            raise BudgetRefused(
                f"run {run!r} was reserved before; a run is reserved once, choose another id"
            )
        if not plan:
            raise BudgetRefused(
                f"the plan of run {run!r} is empty; expected the events of all its rounds"
            )
        if whole := [
            name for name, other in self.runs.items() if other.took_all and other.cap == self.cap
        ]:
            raise BudgetRefused(
                f"run {whole[0]!r} took the whole cap, so nothing may follow it; {self.advice()}"
            )

    def advice(self) -> str:
        """What would make room for a run that is refused; nothing that would not help in this
        ledger.
        """
        if self.cap is None:
            return "set one with `dynadp ledger cap`"
        freed = [name for name, run in self.runs.items() if run.returns]
        ways = []
        if freed:
            ways.append(
                "close what will not go on with `dynadp ledger close FILE RUN`, which gives back "
                "what it reserved and did not "
                f"spend; open: {', '.join(map(repr, freed))}"
            )
        if not any(run.took_all and run.cap == self.cap for run in self.runs.values()):
            plain, moment = self.cap.spent(self.counted())
            if plain < self.cap.epsilon or moment < self.cap.budget:
                ways.append("ask for less: a smaller epsilon")
        return "; or ".join([*ways, "set a larger cap, without regard to what was released"])

    def spend(self, run: str, round: int, events: list[Event]) -> dict[str, Any]:
        """What an entry for this release says; refused where it was not reserved, or was made
        before.
        """
        self.check(events)
        known = self.running(run)
        if round in known.spent:
            raise BudgetRefused(
                f"round {round} of run {run!r} is spent; send its stored message again, never a "
                f"new one"
            )
        planned = known.by_round.get(round, [])
        if not planned or (
            events != planned and Counter(events) != Counter(planned)
        ):  # in any order
            raise BudgetRefused(
                f"round {round} of run {run!r} would spend {events}, its plan holds {planned}; "
                f"release what was reserved, or "
                "close the run and reserve another"
            )
        return {"events": [to_json(event) for event in events]}

    def running(self, run: str) -> Reservation:
        """A run that may still spend."""
        if run not in self.runs:
            raise BudgetRefused(
                f"run {run!r} has no reservation; reserve its plan before its first round"
            )
        if self.runs[run].closed:
            raise BudgetRefused(f"run {run!r} is closed; reserve another")
        return self.runs[run]

    def take(self, entry: Entry) -> str | None:
        """Follow an entry, or say what is wrong with it and stay as before."""
        try:
            wrong = self._wrong(entry)
            if not wrong:
                self.follow(entry)
        except (DynadpError, KeyError, TypeError, ValueError) as error:
            wrong = f"does not follow from those before it ({error})"
        return f"entry {entry.id} {wrong}" if wrong else None

    def follow(self, entry: Entry) -> None:
        """What holds after an entry that the rules allowed."""
        run = entry.run or ""
        if entry.kind == "open":
            self.node = entry.details["node"]
        elif entry.kind == "cap":
            self.cap = Cap(**entry.details)
        elif entry.kind == "reserve":
            details = entry.details
            self.runs[run] = Reservation(
                [from_json(event) for event in details["plan"]], details["basis"], self.cap
            )
        elif entry.kind == "spend":
            self.runs[run].spent[entry.round or 0] = entry.id
        else:
            self.runs[run].closed = True
        self.head, self.length = entry.hash, entry.id

    def _wrong(self, entry: Entry) -> str | None:
        if entry.id != self.length + 1:
            return f"comes after entry {self.length}: some are missing"
        if entry.previous != self.head:
            return f"is not chained to entry {self.length}"
        if entry.hash != entry.digest():
            return "was changed: its hash is not the hash of what it says"
        if (entry.kind == "open") != (entry.id == 1):
            return "is out of place: the first entry, and no other, opens a ledger"
        a_moment(entry.at)
        details, run, round = entry.details, entry.run or "", entry.round or 0
        if entry.kind == "reserve":
            self.plan(run, [from_json(event) for event in details["plan"]])
        elif entry.kind == "spend":
            self.spend(run, round, [from_json(event) for event in details["events"]])
        elif entry.kind not in ("open", "cap"):
            self.running(run)
        return None


def _sound(event: Event) -> bool:
    """Whether JSON gives the event back as it is, and its cost is known and above 0."""
    try:
        return (
            type(event.round) is int
            and 0 <= event.round < 2**63
            and event.alpha > 0
            and distribution_of(event) is not None
            and from_json(json.loads(canonical_json(to_json(event)))) == event
        )
    except (AttributeError, DeclarationError, TypeError, ValueError):
        return False


def a_line(name: str, value: str) -> str:
    """The value, if it is a line of text."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise DeclarationError(f"{name} is {value!r}; expected a line of text")
    return value


def a_moment(at: str) -> datetime:
    """The time that is told, with its offset."""
    try:
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError("no offset")
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"at is {at!r}; expected a time like 2026-03-01T12:00:00+00:00"
        ) from error
    return moment
