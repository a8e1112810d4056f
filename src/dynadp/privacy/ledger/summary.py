"""The summary of a ledger: its runs, its cap, and how much of that is spent or reserved."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, isfinite
from typing import Any

from dynadp._cards import card
from dynadp.privacy.accountant import finite, rests_on, total
from dynadp.privacy.cap import Basis
from dynadp.privacy.collusion import Collusion, collusion_curve, if_colluding
from dynadp.privacy.events import Event
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.rules import LedgerState, Reservation
from dynadp.privacy.statements import guess_words, upper_bound
from dynadp.privacy.units import Unit


@dataclass(frozen=True)
class Room:
    """What is taken of a cap, and what is left, by one measure: all its numbers have one unit.

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
        """An amount over the limit, rounded up to a thousandth, at most 1; a plan takes all."""
        if self.measure == "plan" or self.limit <= 0:
            return float(amount > 0)
        if amount >= self.limit:  # infinite too
            return 1.0
        return ceil(1000 * amount / self.limit - 1e-9) / 1000

    @property
    def left(self) -> float:
        """1 - counted/limit, rounded down to a thousandth."""
        return round(1 - self.share(self.counted), 3)

    @property
    def words(self) -> str:
        """The measure, and how much of it is counted, of what."""
        names = {
            "sum": "sum of alpha",
            "renyi": f"Rényi loss of order {self.order:g}",
            "plan": "epsilon of one fixed plan",
        }
        return f"{names[self.measure]}: {upper_bound(self.counted)} of {self.limit:.4g}"

    @property
    def left_words(self) -> str:
        """The share that is left."""
        if self.measure == "plan":
            return "nothing left: one plan took the whole cap"
        return f"{self.left:.1%} left"

    def to_json(self) -> dict[str, Any]:
        """Return the measure, its numbers and the share that is left."""
        names = ("measure", "spent", "counted", "limit", "left")
        return finite({name: getattr(self, name) for name in names})


class LedgerSummary(LedgerState):
    """The state of a ledger, and what follows from it."""

    @classmethod
    def of(cls, ledger: Ledger) -> "LedgerSummary":
        """Return the summary of a ledger as it is now."""
        now = ledger.state()
        runs = {name: replace(run, spent=dict(run.spent)) for name, run in now.runs.items()}
        return cls(now.node, now.cap, runs, now.head, now.length, now.first, now.kinds.copy())

    def with_plan(self, run: str, plan: list[Event]) -> "LedgerSummary":
        """Return the ledger as it would be with this plan reserved; as it is where it would not be
        admitted.
        """
        if (basis := self.admits(plan)) is None:
            return self
        made = Reservation(run, "", "", "", plan, basis, self.cap)
        return replace(self, runs={**self.runs, run: made})

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        cap, room = self.cap, self.room
        facts = {"runs": len(self.runs), "entries": self.length, "head": self.head}
        if cap is None or room is None:
            return card(f"Ledger of node {self.node}", facts, ["No cap is set."])
        spent = f"epsilon = {upper_bound(self.lost)} of {cap.epsilon:g} at delta = {cap.delta:g}"
        facts = {"lost so far, at most": spent, "room": room.left_words, **facts}
        return card(f"Ledger of node {self.node}", facts, [f"Cap: {self.promise}."])

    @property
    def room(self) -> Room | None:
        """What is left of the cap, by the measure that leaves more; None without a cap."""
        return next(iter(self.rooms), None)

    def fitting(self, events: list[Event]) -> bool:
        """Whether events satisfy the filter's condition for the person that the ledger names, with
        what it has of delta.
        """
        return self.limit is not None and self.limit.filter(events, self.unit) is not None

    @property
    def rooms(self) -> list[Room]:
        """What is left of the cap, by every measure that may admit a run; the largest first."""
        if (cap := self.limit) is None:
            return []
        if (whole := self.taker) is not None:
            cost = _cost(tuple(whole.plan), cap.delta)  # then no plan ended early
            return [Room("plan", cost if whole.spent else 0.0, cost, cap.epsilon, cap.order)]
        spent, (plains, moments) = cap.spent(self.spent, self.unit), cap.spent(self.counted)
        plain, moment = spent
        rooms = [Room("renyi", moment, moments, cap.budget, cap.order)] if cap.budget > 0 else []
        if isfinite(plains) or not rooms:  # a Gaussian release has no alpha, so no sum is left
            rooms.insert(0, Room("sum", plain, plains, cap.epsilon, cap.order))
        return sorted(rooms, key=lambda room: room.counted / room.limit)

    @property
    def lost(self) -> float | None:
        """min(odometer, bounds of maths.md 5 on all that was released): at most so much is lost so
        far.

        All at the cap's delta; None without a cap. Each figure is a bound by itself:

        - the odometer, whatever was released under whatever caps;
        - the cap's epsilon, where all that was released, by all runs together, satisfies the
          filter's condition under the present cap: it is then the beginning of a process that this
          filter lets pass, whatever earlier caps were. What is reserved and not released does not
          enter, nor does the rule by which runs were admitted;
        - the total of a plan, where all that was released is of one run: its plan was fixed before
          anything was, and a part of it loses no more than all of it (maths.md 5, "The first run").

        Where none but the odometer applies (a cap that was lowered below what was spent, a plan of
        another cap that does not fit this one's filter), it may lie above the cap.
        """
        if (cap := self.cap) is None:
            return None
        bounds = [cap.odometer(self.spent, self.unit)]
        if self.fitting(self.spent):
            bounds.append(cap.epsilon)
        if (first := self._first) is not None:
            bounds.append(_cost(tuple(first.plan), cap.delta))
        return min(bounds)

    @property
    def unit(self) -> Unit:
        """Whom the figures of this ledger are about: the person with most rows, at most nodes, for
        whom a run that counts was planned.
        """
        return Unit.of(self.counted)

    @property
    def honest(self) -> tuple[tuple[int, int], ...]:
        """(h, members) of sealed sums that count against the cap: all figures of this ledger hold
        as long as h of so many members are honest.
        """
        return rests_on(self.counted)

    @property
    def collusion(self) -> tuple[Collusion, ...]:
        """What was released so far loses where more members of sealed sums collude than planned, at
        most; empty without a cap, and where no sealed sum was released.
        """
        cap, first = self.cap, self._first
        limit = self.limit
        if cap is None:
            return ()

        def cost(opened: list[Event]) -> float:
            found = cap.odometer(opened, self.unit)
            # what a plan keeps that ended early was found for as many honest nodes as planned
            if limit == cap and cap.filter(opened, self.unit):
                found = min(found, cap.epsilon)
            return found

        curve = collusion_curve(self.spent, cap.delta, cost=cost)
        if first is None:
            return curve
        plan = [if_colluding(first.plan, point.colluding) for point in curve]
        costs = [_cost(tuple(opened), cap.delta) for opened in plan]
        return tuple(
            replace(point, epsilon=min(point.epsilon, other))
            for point, other in zip(curve, costs, strict=True)
        )

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
        holds = self.fitting(self.counted) or self._only_plan
        return cap.epsilon if holds else cap.odometer(self.counted)

    @property
    def open_runs(self) -> list[str]:
        """Runs that may still spend."""
        return [run.run for run in self.runs.values() if run.closed is None]

    @property
    def promise(self) -> str:
        """The cap and what it means, in words; or that more was lost before it was set."""
        if (cap := self.cap) is None or (most := self.promised) is None:
            return "no cap, so nothing is promised"
        unit = self.unit
        whom = "" if unit == Unit() else f" for anybody with {unit.words}{unit.elsewhere}"
        over = f"epsilon = {cap.epsilon:g} at delta = {cap.delta:g} over all runs{whom}"
        if most <= cap.epsilon:
            return f"{over}: {guess_words(cap.epsilon, cap.delta, unit)}"
        figure = (
            f"at most epsilon = {upper_bound(most)} at delta = {cap.delta:g}: "
            f"{guess_words(most, cap.delta, unit)}"
        )
        if self.fitting(self.spent):
            return (
                f"{over}. Open runs reserved more than that before ({', '.join(self.open_runs)}) "
                f"and may still lose {figure}; end those that will not go on with `dynadp ledger "
                f"close FILE RUN`"
            )
        word = "lost or reserved" if self.open_runs else "lost"
        return (
            f"{over}. More than that is {word} already, {figure}. Nothing more is admitted under "
            f"this cap"
        )

    @property
    def _first(self) -> Reservation | None:
        """The run that all that was released is of, if there is only one, and it was planned for
        the person that this ledger's figures are about.
        """
        begun = [run for run in self.runs.values() if run.spent]
        only = begun[0] if len(begun) == 1 else None
        return only if only and Unit.of(only.plan) == self.unit else None

    @property
    def _only_plan(self) -> Reservation | None:
        """The fixed plan that is all that was and will be released under this cap, if so."""
        alive = [run for run in self.runs.values() if run.spent or run.closed is None]
        only = alive[0] if len(alive) == 1 else None
        return only if only and only.basis == "plan" and only.cap == self.cap else None

    def to_json(self) -> dict[str, Any]:
        """Return runs, cap and what counts against it; an infinite number is null."""
        figures: dict[str, Any] | None = None
        if (cap := self.cap) is not None:
            plain, moment = cap.spent(self.counted)
            whole, room = self.taker, self.room
            figures = {
                "epsilon": cap.epsilon,
                "delta": cap.delta,
                "order": cap.order,
                "budget": cap.budget,
                "sum": plain,
                "renyi": moment,
                "odometer": cap.odometer(self.spent, self.unit),
                "lost": self.lost,
                "room": room.to_json() if room else None,
                "promised": self.promised,
                "taken_by": whole.run if whole else None,
                "taken": _cost(tuple(whole.plan), cap.delta) if whole else None,
            }
            figures = finite(figures)
        return {
            "node": self.node,
            "cap": figures,
            "runs": [run.to_json() for run in self.runs.values()],
            "honest": [list(those) for those in self.honest],
            "collusion": [point.to_json() for point in self.collusion],
            "entries": self.length,
            "head": self.head,
        }


@lru_cache(maxsize=64)
def _cost(plan: tuple[Event, ...], delta: float) -> float:
    """epsilon of a fixed plan; cached, because a live page asks for it again and again."""
    return total(plan, delta).epsilon
