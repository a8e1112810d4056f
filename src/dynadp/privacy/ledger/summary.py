"""What a ledger says: its runs, its cap, and how much of that is spent or reserved."""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from json import loads
from math import floor
from typing import Any

from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Basis, Cap
from dynadp.privacy.events import Event, from_json
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.statements import guess_words, upper_bound

EVALUATION = "evaluation"  # the purpose of the one event that releases a noisy accuracy


@dataclass
class Entered:
    """A run as its ledger has it.

    Attributes
    ----------
    run, dataset, at, who, basis
        Its name; rows of what; when, by whom and by which rule it was admitted.
    plan, cap
        What it reserved, and the cap that was in force.
    rounds_spent, alpha_spent
        What it released so far.
    closed
        Why it was closed; None while it is open.
    """

    run: str
    dataset: str
    at: str
    who: str
    basis: str
    plan: list[Event] = field(repr=False)
    cap: Cap | None
    rounds_spent: int = 0
    alpha_spent: float = 0.0
    closed: str | None = None

    @property
    def rounds_planned(self) -> int:
        """How many rounds it reserved."""
        return len({event.round for event in self.plan})

    @property
    def took_all(self) -> bool:
        """Whether nothing may follow it under its cap: admitted as a fixed plan, and not given up
        before its first release.
        """
        return self.basis == "plan" and (self.closed is None or self.rounds_spent > 0)

    def to_json(self) -> dict[str, Any]:
        """The run without its plan."""
        names = (
            "run",
            "dataset",
            "at",
            "who",
            "basis",
            "rounds_planned",
            "rounds_spent",
            "alpha_spent",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "state": "open" if self.closed is None else self.closed,
        }


@dataclass(frozen=True)
class Room:
    """What is taken of a cap, and what is left, by one measure: all numbers of one line are in its
    unit.

    Attributes
    ----------
    measure
        ``sum``: of alpha; ``renyi``: the Rényi loss of the cap's order; ``plan``: epsilon of one
        plan that took the whole cap.
    spent, counted, limit
        What was released; that and what open runs reserved; how much there may be.
    order
        Of the Rényi loss.
    """

    measure: Basis
    spent: float
    counted: float
    limit: float
    order: float

    def share(self, amount: float) -> float:
        """An amount over the limit, at most 1; a plan takes all."""
        return (
            float(amount > 0)
            if self.measure == "plan" or self.limit <= 0
            else min(1.0, amount / self.limit)
        )

    @property
    def left(self) -> float:
        """1 - counted/limit, rounded down to a thousandth."""
        return floor(1000 * (1 - self.share(self.counted)) + 1e-9) / 1000

    @property
    def words(self) -> str:
        """What is counted, of what."""
        names = {
            "sum": "sum of alpha",
            "renyi": f"Rényi loss of order {self.order:g}",
            "plan": "epsilon of one fixed plan",
        }
        return f"{names[self.measure]}: {upper_bound(self.counted)} of {self.limit:.4g}"

    @property
    def left_words(self) -> str:
        """How much is left."""
        return (
            "nothing left: one plan took the whole cap"
            if self.measure == "plan"
            else f"{self.left:.1%} left"
        )

    def to_json(self) -> dict[str, Any]:
        """The measure, its numbers and the share that is left."""
        return {
            name: getattr(self, name) for name in ("measure", "spent", "counted", "limit", "left")
        }


@dataclass(frozen=True)
class LedgerSummary:
    """What a ledger says.

    Attributes
    ----------
    node, cap
        Whose ledger it is; its latest cap.
    runs
        By name, the oldest first.
    spent, counted
        What was released; what counts against the cap.
    evaluations
        Noisy accuracies that were charged: when, alpha and the released number.
    entries, head
        How many entries, and the hash of the last.
    """

    node: str
    cap: Cap | None
    runs: dict[str, Entered] = field(repr=False)
    spent: list[Event] = field(repr=False)
    counted: list[Event] = field(repr=False)
    evaluations: tuple[dict[str, Any], ...]
    entries: int
    head: str

    @classmethod
    def of(cls, ledger: Ledger) -> "LedgerSummary":
        """Read all entries."""
        runs: dict[str, Entered] = {}
        entries, in_force, evaluations = 0, None, []
        for entry in ledger.entries():
            entries += 1
            name, details = str(entry.run), entry.details
            if entry.kind == "cap":
                in_force = Cap(**details)
            elif entry.kind == "reserve":
                plan = [from_json(event) for event in details["plan"]]
                runs[name] = Entered(
                    name, details["dataset"], entry.at, entry.who, details["basis"], plan, in_force
                )
            elif entry.kind == "spend":
                events = [from_json(event) for event in details["events"]]
                alpha = sum(event.alpha for event in events)
                runs[name].rounds_spent += 1
                runs[name].alpha_spent += alpha
                if entry.message is not None and any(
                    getattr(event, "purpose", "") == EVALUATION for event in events
                ):
                    with suppress(ValueError, TypeError):  # a message of somebody's own making
                        evaluations.append(
                            {
                                "at": entry.at,
                                "alpha": alpha,
                                "accuracy": float(loads(entry.message)),
                            }
                        )
            elif entry.kind == "close":
                runs[name].closed = details["reason"]
        found = ledger.spent(), ledger.counted(), tuple(evaluations), entries, ledger.head
        return cls(ledger.node, ledger.cap, runs, *found)

    @property
    def whole(self) -> Entered | None:
        """The run that took the whole cap, if one did."""
        return next(
            (run for run in self.runs.values() if run.took_all and run.cap == self.cap), None
        )

    @property
    def room(self) -> Room | None:
        """What is left of the cap, by the measure that leaves more; None without a cap."""
        if (cap := self.cap) is None:
            return None
        if (whole := self.whole) is not None:
            cost = _cost(tuple(whole.plan), cap.delta)
            return Room("plan", cost if whole.rounds_spent else 0.0, cost, cap.epsilon, cap.order)
        (plain, moment), (plains, moments) = cap.spent(self.spent), cap.spent(self.counted)
        found = (
            Room("sum", plain, plains, cap.epsilon, cap.order),
            Room("renyi", moment, moments, cap.budget, cap.order),
        )
        return max(
            found if cap.budget > 0 else found[:1], key=lambda room: 1 - room.counted / room.limit
        )

    @property
    def lost(self) -> float | None:
        """min(odometer, what a theorem of maths.md 5 promises of all that was released): at most so
        much is lost so far.

        All at the cap's delta; None without a cap. Each figure is a bound by itself:

        - the odometer, whatever was released under whatever caps;
        - the cap's epsilon, where all that was released, by all runs together, satisfies the filter's condition under the cap
          that is in force now: it is then the beginning of a process that this filter lets pass,
          however earlier caps were. What is reserved and not released does not enter, nor by which
          rule runs were admitted;
        - the total of a plan, where one run alone was admitted as a fixed plan under this very cap, and every other run was
          closed before its first release: then the plan is all that is ever released under this
          cap, and a part of it loses no more than all of it.

        Where none but the odometer applies (a cap that was lowered below what was spent, a plan of
        another cap that does not fit this one's filter), it may lie above the cap.
        """
        if (cap := self.cap) is None:
            return None
        plain, moment = cap.spent(self.spent)
        bounds = [cap.odometer(self.spent)]
        if plain <= cap.epsilon or moment <= cap.budget:
            bounds.append(cap.epsilon)
        if (only := self._only_plan) is not None:
            bounds.append(_cost(tuple(only.plan), cap.delta))
        return min(bounds)

    @property
    def promised(self) -> float | None:
        """The epsilon that holds for all that is released, reserved or still admitted under this
        cap, at its delta.

        The cap's, where all that counts already satisfies the filter's condition under it, or where
        one fixed plan took this very cap. Otherwise the cap cannot hold any more: nothing is
        admitted beside what counts, which loses at most what the odometer says of it.
        """
        if (cap := self.cap) is None:
            return None
        plain, moment = cap.spent(self.counted)
        holds = plain <= cap.epsilon or moment <= cap.budget or self._only_plan is not None
        return cap.epsilon if holds else cap.odometer(self.counted)

    @property
    def open_runs(self) -> list[str]:
        """Runs that may still spend."""
        return [run.run for run in self.runs.values() if run.closed is None]

    @property
    def promise(self) -> str:
        """The cap and the odds that it promises, in words; or that more was lost before it was set."""
        if (cap := self.cap) is None or (most := self.promised) is None:
            return "no cap, so nothing is promised"
        over = f"epsilon = {cap.epsilon:g} at delta = {cap.delta:g} over all runs"
        if most <= cap.epsilon:
            return f"{over}: {guess_words(cap.epsilon, cap.delta)}"
        found = f"at most epsilon = {upper_bound(most)} at delta = {cap.delta:g}: {guess_words(most, cap.delta)}"
        plain, moment = cap.spent(self.spent)
        if plain <= cap.epsilon or moment <= cap.budget:
            return (
                f"{over}. Open runs reserved more than that before ({', '.join(self.open_runs)}) "
                f"and may still lose {found}; "
                "end those that will not go on with `dynadp ledger close FILE RUN`"
            )
        word = "lost or reserved" if self.open_runs else "lost"
        return f"{over}. More than that is {word} already, {found}. Nothing more is admitted under this cap"

    @property
    def _only_plan(self) -> Entered | None:
        """The fixed plan that is all that was and will be released under this cap, if so."""
        alive = [run for run in self.runs.values() if run.rounds_spent or run.closed is None]
        return (
            alive[0]
            if len(alive) == 1 and alive[0].basis == "plan" and alive[0].cap == self.cap
            else None
        )

    def to_json(self) -> dict[str, Any]:
        """Runs, cap and what counts against it."""
        figures: dict[str, Any] | None = None
        if (cap := self.cap) is not None:
            plain, moment = cap.spent(self.counted)
            whole, room = self.whole, self.room
            figures = {
                "epsilon": cap.epsilon,
                "delta": cap.delta,
                "order": cap.order,
                "budget": cap.budget,
            }
            figures |= {
                "sum": plain,
                "renyi": moment,
                "odometer": cap.odometer(self.spent),
                "lost": self.lost,
            }
            figures |= {"room": room.to_json() if room else None, "promised": self.promised}
            figures |= {"taken_by": whole.run if whole else None}
            figures |= {"taken": _cost(tuple(whole.plan), cap.delta) if whole else None}
        return {
            "node": self.node,
            "cap": figures,
            "runs": [run.to_json() for run in self.runs.values()],
            "entries": self.entries,
            "head": self.head,
        }


@lru_cache(maxsize=64)
def _cost(plan: tuple[Event, ...], delta: float) -> float:
    """epsilon of a fixed plan: a live page asks for it again and again."""
    return total(plan, delta).epsilon
