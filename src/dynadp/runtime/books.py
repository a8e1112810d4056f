"""The ledgers of all nodes of one run: the whole plan is reserved first, and a message is entered before it is sent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from dynadp.arrays import Array
from dynadp.errors import DeclarationError
from dynadp.privacy.events import Event
from dynadp.privacy.ledger import Ledger


def now() -> str:
    """The time, as ledgers tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Books:
    """What every node's ledger says about one run.

    Parameters
    ----------
    ledgers
        An open ledger for each node.
    run
        A name for the run, new to all of them.
    dataset
        What the rows are, in words.
    who
        Who starts the run.
    clock
        Tells the time.
    """

    def __init__(
        self, ledgers: Mapping[str, Ledger], run: str, *, dataset: str, who: str, clock: Callable[[], str] = now
    ) -> None:
        self.ledgers, self.run, self.dataset, self.who, self.clock = dict(ledgers), run, dataset, who, clock
        self._reserved: frozenset[Event] | None = None

    def reserve(self, plan: Sequence[Event]) -> None:
        """Reserve the whole plan at every node, or at none; a plan within one that is reserved already changes nothing."""
        if self._reserved is not None:
            if not self._reserved.issuperset(plan):
                raise DeclarationError(f"run {self.run!r} would release what it did not reserve; reserve its whole plan")
            return
        missing = {event.node for event in plan} - set(self.ledgers)
        if missing:
            raise DeclarationError(f"no ledger for {', '.join(sorted(missing))}; every node that releases anything needs one")
        taken: list[Ledger] = []
        try:
            for node, ledger in self.ledgers.items():
                own = [event for event in plan if event.node == node]
                ledger.reserve(self.run, own, dataset=self.dataset, who=self.who, at=self.clock())
                taken.append(ledger)
        except BaseException:
            for ledger in taken:
                ledger.close_run(self.run, "stopped", who=self.who, at=self.clock())
            raise
        self._reserved = frozenset(plan)

    def spend(self, n: int, events: Sequence[Event], messages: Mapping[str, Array]) -> None:
        """Enter round n's message of every node; send only after this returned."""
        for node, message in messages.items():
            own = [event for event in events if event.node == node]
            self.ledgers[node].spend(self.run, n, own, np.asarray(message, "<f8").tobytes(), who=self.who, at=self.clock())

    def close(self, reason: str) -> None:
        """Give back what was reserved and not spent."""
        for ledger in self.ledgers.values():
            ledger.close_run(self.run, reason, who=self.who, at=self.clock())
