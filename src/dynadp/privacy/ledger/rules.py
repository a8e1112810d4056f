"""The rules of a ledger, without its file: the state after some entries, and which may follow."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dynadp._files import canonical_json
from dynadp.errors import BudgetRefused, DeclarationError, DynadpError, SeededRefused
from dynadp.privacy.accountant import finite, plain_losses
from dynadp.privacy.cap import Basis, Cap
from dynadp.privacy.distributions import distribution_of
from dynadp.privacy.events import Event, Gaussian, from_json, to_json
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.ledger.anchor import Mark
from dynadp.privacy.ledger.entries import START, Entry, parse_time
from dynadp.privacy.statements import upper_bound
from dynadp.privacy.units import Unit


@dataclass
class Reservation:
    """What a run reserved and spent.

    Attributes
    ----------
    run, dataset, at, who
        Its name; rows of what; when it was reserved, and by whom.
    plan, basis, cap
        Its events; the rule that admitted them, and the cap that was in force.
    spent
        The rounds that it released, each with the id of its entry.
    closed
        Why it was closed, ``finished`` or ``stopped``; None while it is open.
    kept
        The delta that a fixed plan keeps which did not release all of it and gave the rest back
        (maths.md 18); None for all others.
    """

    run: str
    dataset: str
    at: str
    who: str
    plan: list[Event] = field(repr=False)
    basis: Basis
    cap: Cap | None
    spent: dict[int, int] = field(default_factory=dict)
    closed: str | None = None
    kept: float | None = None

    @cached_property
    def by_round(self) -> dict[int, list[Event]]:
        """The events of each round of the plan."""
        rounds: dict[int, list[Event]] = {}
        for event in self.plan:
            rounds.setdefault(event.round, []).append(event)
        return rounds

    def plans(self, round: int, events: list[Event]) -> bool:
        """Whether these events are of the same classes as those of a round, and spelled alike."""
        own = self.by_round.get(round, [])
        alike = bool(own) and [type(event) for event in events] == [type(event) for event in own]
        return alike and (_spelled(events) or "") == _spelled(own)

    @property
    def released(self) -> list[Event]:
        """The events of the spent rounds."""
        return [event for event in self.plan if event.round in self.spent]

    @cached_property
    def spares(self) -> set[int]:
        """Under which numbers spare attempts at sealed sums are entered."""
        return {event.round for event in self.plan if getattr(event, "purpose", "") == "spare"}

    @property
    def rounds_planned(self) -> int:
        """The number of rounds that it reserved, beside spare attempts."""
        return len(self.by_round.keys() - self.spares)

    @property
    def rounds_spent(self) -> int:
        """The number of rounds that it released, beside spare attempts."""
        return len(self.spent.keys() - self.spares)

    @property
    def spares_spent(self) -> int:
        """The number of spare attempts that it took."""
        return len(self.spent.keys() & self.spares)

    @property
    def complete(self) -> bool:
        """Whether nothing of it is left to release."""
        return len(self.spent) == len(self.by_round) or self.closed == "finished"

    @property
    def alpha_spent(self) -> float:
        """Sum of alpha over the spent rounds; infinite with a Gaussian event."""
        return sum(plain_losses(self.released, Unit.of(self.plan)))

    @property
    def mu_spent(self) -> float:
        """sqrt(sum mu^2) over the Gaussian events of the spent rounds; 0 without any."""
        unit = Unit.of(self.plan)
        return joint_mu(self.released, unit.rows, unit.silos)

    @property
    def spent_words(self) -> str:
        """Sum of alpha over the spent rounds, and mu of their Gaussian events."""
        mu = self.mu_spent
        plain = [event for event in self.released if not isinstance(event, Gaussian)]
        others = plain_losses(plain, Unit.of(self.plan))
        parts = [f"alpha {upper_bound(sum(others))}"] if others or not mu else []
        return ", ".join([*parts, f"mu {upper_bound(mu)}"] if mu else parts)

    @property
    def took_all(self) -> bool:
        """Whether nothing may follow under its cap: it was admitted as a fixed plan, and did not
        end before its first release, or with a part of it that fits the filter.
        """
        return self.basis == "plan" and self.kept is None and bool(self.spent or not self.closed)

    @property
    def returns(self) -> bool:
        """Whether closing it gives something back."""
        if self.closed is not None or len(self.spent) == len(self.by_round):
            return False
        whole = self.basis == "plan" and self.spent
        return not whole or (self.cap is not None and self.cap.filter(self.released) is not None)

    @property
    def keeps(self) -> float | None:
        """The delta that it would keep if it ended now, where it was admitted as a fixed plan and
        what it released fits the filter with the rest; None where that is not so.
        """
        cap = self.cap
        if cap is None or self.basis != "plan" or not self.spent or not self.returns:
            return None
        kept = cap.kept_by(self.plan)
        return kept if cap.without(kept).filter(self.released) else None

    @property
    def counted(self) -> list[Event]:
        """The events that count against the cap."""
        return self.plan if self.closed is None or self.took_all else self.released

    def to_json(self) -> dict[str, Any]:
        """Return the reservation without its plan; an infinite sum is null."""
        names = ("run", "dataset", "at", "who", "basis", "rounds_planned", "rounds_spent")
        figures = {name: getattr(self, name) for name in (*names, "alpha_spent", "mu_spent")}
        spares = {"spares_planned": len(self.spares), "spares_spent": self.spares_spent}
        return {**finite(figures), **spares, "state": self.closed or "open"}


@dataclass
class LedgerState:
    """The state after some entries, taken one by one, and the rules for the next one."""

    node: str = ""
    cap: Cap | None = None
    runs: dict[str, Reservation] = field(default_factory=dict)
    head: str = START
    length: int = 0
    first: str = ""
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def mark(self) -> Mark:
        """Where the ledger stands, for its anchor."""
        return Mark(self.first, self.length, self.head, dict(self.kinds))

    @property
    def counted(self) -> list[Event]:
        """The events that count against the cap."""
        return [event for run in self.runs.values() for event in self._counted(run)]

    def _counted(self, run: Reservation) -> list[Event]:
        """What a run counts; a plan that was released in part counts whole under a cap with a
        smaller epsilon, or with less delta than it keeps.
        """
        if run.kept is None or run.cap is None or self.cap is None:
            return run.counted
        smaller = self.cap.epsilon < run.cap.epsilon or self.cap.delta < run.kept
        return run.plan if smaller else run.counted

    @property
    def limit(self) -> Cap | None:
        """The cap for the filter: without the delta that fixed plans keep which were released in
        part.
        """
        if self.cap is None:
            return None
        kept = sum(run.kept or 0.0 for run in self.runs.values())
        return self.cap.without(kept * (1 + 1e-9)) if kept else self.cap

    def filters(self, plan: list[Event]) -> Basis | None:
        """Return the rule by which a plan may follow and leave the rest to others; None: refused.

        After a fixed plan that was released in part none may follow that is about people with more
        rows.
        """
        if (limit := self.limit) is None or self.taker is not None:
            return None
        for run in self.runs.values():
            if run.kept is not None and Unit.of([*run.plan, *plan]) != Unit.of(run.plan):
                return None
        return limit.filter([*self.counted, *plan])

    def admits(self, plan: Iterable[Event]) -> Basis | None:
        """Return the rule by which a new run with this plan is admitted now; None: refused."""
        plan = list(plan)
        if (cap := self.cap) is None or self.taker is not None:
            return None
        return self.filters(plan) or (None if self.counted else cap.admits([], plan))

    @property
    def spent(self) -> list[Event]:
        """The events that were released."""
        return [event for run in self.runs.values() for event in run.released]

    @property
    def taker(self) -> Reservation | None:
        """The run that took the whole cap, if one did."""
        runs = self.runs.values()
        return next((run for run in runs if run.took_all and run.cap == self.cap), None)

    def check_events(self, events: list[Event]) -> None:
        """Refuse events that no ledger, or not this one, may take."""
        for event in events:
            if not _sound(event):
                raise BudgetRefused(
                    f"{event!r} has no known cost; expected an event whose kind is registered, in "
                    f"plain numbers"
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

    def check_plan(self, run: str, plan: list[Event], *, released: bool = False) -> None:
        """Refuse a plan for reasons other than its cost; one that is released already counts, even
        after a run that took the whole cap.
        """
        self.check_events(plan)
        if run in self.runs:
            raise BudgetRefused(
                f"run {run!r} was reserved before; a run is reserved once, choose another id"
            )
        if not plan:
            raise BudgetRefused(
                f"the plan of run {run!r} is empty; expected the events of all its rounds"
            )
        if (taker := self.taker) and not released:
            raise BudgetRefused(
                f"run {taker.run!r} took the whole cap, so nothing may follow it; {self.advice()}"
            )

    def advice(self) -> str:
        """Return what would make room for a refused run in this ledger."""
        if self.cap is None:
            return "set one with `dynadp ledger cap`"
        ways = []
        if freed := [name for name, run in self.runs.items() if run.returns]:
            ways.append(
                "close what will not go on with `dynadp ledger close FILE RUN`, which gives back "
                f"what it reserved and did not spend; open: {', '.join(map(repr, freed))}"
            )
        if self.taker is None:
            limit = self.limit or self.cap
            plain, moment = limit.spent(self.counted)
            if plain < limit.epsilon or moment < limit.budget:
                ways.append("ask for less: a smaller epsilon or alpha")
        return "; or ".join([*ways, "set a larger cap, without regard to what was released"])

    def check_spend(self, run: str, round: int, events: list[Event]) -> None:
        """Refuse a release that was not reserved, or was made before.

        Events of the plan's own classes that are spelled like the plan were checked when it was
        reserved: the same text is the same numbers, of this node, and not seeded.
        """
        before = self.runs.get(run)
        if before is None or not before.plans(round, events):
            self.check_events(events)
        known = self.open_run(run)
        if round in known.spent:
            raise BudgetRefused(
                f"round {round} of run {run!r} is spent; send its stored message again, never a "
                f"new one"
            )
        planned = known.by_round.get(round, [])
        if not planned or (events != planned and Counter(events) != Counter(planned)):
            raise BudgetRefused(
                f"round {round} of run {run!r} would spend {events}, its plan holds {planned}; "
                f"release what was reserved, or close the run and reserve another"
            )

    def open_run(self, run: str) -> Reservation:
        """Return a run that may still spend."""
        if run not in self.runs:
            raise BudgetRefused(
                f"run {run!r} has no reservation; reserve its plan before its first round"
            )
        if self.runs[run].closed is not None:
            raise BudgetRefused(f"run {run!r} is closed; reserve another")
        return self.runs[run]

    def take(self, entry: Entry) -> str | None:
        """Follow an entry; or return what is wrong with it, and stay as before."""
        try:
            wrong = self._misplaced(entry)
            if not wrong:
                self._follow(entry)
        except (DynadpError, KeyError, TypeError, ValueError) as error:
            wrong = f"does not follow from those before it ({error})"
        return f"entry {entry.id} {wrong}" if wrong else None

    def enter(self, entry: Entry) -> None:
        """Follow an entry that was decided on in this state, and is on the disk."""
        if entry.kind == "spend":
            self.runs[entry.run or ""].spent[entry.round or 0] = entry.id
            self._move_to(entry)
        else:
            self.take(entry)

    def _misplaced(self, entry: Entry) -> str | None:
        if entry.id != self.length + 1:
            return f"comes after entry {self.length}: some are missing"
        if entry.previous != self.head:
            return f"is not chained to entry {self.length}"
        if entry.hash != entry.digest():
            return "was changed: its hash is not the hash of what it says"
        if (entry.kind == "open") != (entry.id == 1):
            return "is out of place: the first entry, and no other, opens a ledger"
        return None

    def _follow(self, entry: Entry) -> None:
        """Move on to the state after an entry; an error if the rules do not allow it."""
        parse_time(entry.at)
        details, run, round = entry.details, entry.run or "", entry.round or 0
        if entry.kind == "open":
            self.node, self.first = details["node"], entry.hash
        elif entry.kind == "cap":
            self.cap = Cap(**details)
        elif entry.kind == "reserve":
            plan = [from_json(event) for event in details["plan"]]
            self.check_plan(run, plan, released=details.get("released") is True)
            self.runs[run] = Reservation(
                run, details["dataset"], entry.at, entry.who, plan, details["basis"], self.cap
            )
        elif entry.kind == "spend":
            self.check_spend(run, round, [from_json(event) for event in details["events"]])
            self.runs[run].spent[round] = entry.id
        else:
            self._close(self.open_run(run), details)
        self._move_to(entry)

    def _move_to(self, entry: Entry) -> None:
        self.head, self.length = entry.hash, entry.id
        self.kinds[entry.kind] += 1

    def _close(self, run: Reservation, details: dict[str, Any]) -> None:
        if (kept := details.get("keeps")) is not None:
            most = run.cap.delta if run.cap else 0.0
            if run.basis != "plan" or type(kept) is not float or not 0 < kept <= most:
                raise ValueError(f"run {run.run!r} cannot keep {kept!r} of delta")
            run.kept = kept
        run.closed = details.get("reason", "closed")


def _spelled(events: Iterable[Event]) -> str | None:
    """Return events as entries spell them; None where they cannot be written down."""
    try:
        return canonical_json([to_json(event) for event in events])
    except (AttributeError, TypeError, ValueError):
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
