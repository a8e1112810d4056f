"""What is left of every cap, and what this run would leave: from the nodes' ledgers, which are only
read.

Shares of a cap add up, epsilons do not. So bars and numbers are shares, and epsilon is named only
as the largest total of a next run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dynadp.errors import DynadpError
from dynadp.privacy import Event, Ledger, LedgerSummary, Unit
from dynadp.runs import NextRun, find_headroom


@dataclass(frozen=True, kw_only=True)
class CapView:
    """One node's cap.

    Attributes
    ----------
    node, problem
        Whose; why nothing more is known, if so.
    epsilon, delta
        Of the cap.
    used, takes, left
        Shares of the cap, that of what is left rounded down to a thousandth: spent or reserved now;
        what this run would reserve, all where it is admitted as the last one only; and what is left
        after it, or now where it is refused.
    admitted
        Whether the ledger would admit the run.
    last
        Whether nothing could follow it.
    asked, now, then
        Whether totals of a next run were looked for; the largest, instead of this run and after
        it; None for none.
    """

    node: str
    problem: str = ""
    epsilon: float = 0.0
    delta: float = 0.0
    used: float = 0.0
    takes: float = 0.0
    left: float = 1.0
    admitted: bool = False
    last: bool = False
    asked: bool = False
    now: float | None = None
    then: float | None = None


def read_caps(
    files: Mapping[str, Path], events: Iterable[Event], unit: Unit, asked: int
) -> list[CapView]:
    """What every ledger says of a run with these events.

    Parameters
    ----------
    files
        Ledgers by node.
    events
        All that the run would release.
    unit
        Whose total it is.
    asked
        Of how many nodes, the first ones, totals of a next run are looked for: each takes some
        plans.
    """
    every = list(events)
    return [
        _read(node, file, [event for event in every if event.node == node], unit, at < asked)
        for at, (node, file) in enumerate(files.items())
    ]


def _read(node: str, file: Path, own: list[Event], unit: Unit, asked: bool) -> CapView:
    try:
        if not file.exists():
            return CapView(
                node=node, problem="there is no ledger yet: `dynadp ledger cap` makes it"
            )
        with Ledger.open(file, read_only=True) as ledger:
            summary = LedgerSummary.of(ledger)
    except (DynadpError, OSError) as error:
        return CapView(node=node, problem=str(error))
    if (cap := summary.cap) is None or (room := summary.room) is None:
        return CapView(node=node, problem="no cap is set, so nothing can be reserved")
    basis = summary.admits(own) if own else "sum"
    after = summary.with_plan("this run", own) if own and basis else summary
    then_left = after.room or room
    # by the measure by which more is left then, now too
    before = next((one for one in summary.rooms if one.measure == then_left.measure), room)
    left = 0.0 if basis == "plan" else then_left.left
    now = then = None
    if asked:
        standing = (NextRun(unit=unit), summary.head)
        now = _next(_Known(summary, (*standing, "")))
        then = _next(_Known(after, (*standing, repr(own)))) if basis else None
    return CapView(
        node=node,
        epsilon=cap.epsilon,
        delta=cap.delta,
        used=1 - before.left,
        takes=before.left - left,
        left=left,
        admitted=basis is not None,
        last=basis == "plan",
        asked=asked,
        now=now,
        then=then,
    )


class _Known:
    """A ledger that is known by a key, so that a live page asks once."""

    def __init__(self, summary: LedgerSummary, key: tuple[object, ...]) -> None:
        self.summary, self.key = summary, key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.key == other.key


@lru_cache(maxsize=512)
def _next(known: _Known) -> float | None:
    next_run = known.key[0]
    assert isinstance(next_run, NextRun)
    return find_headroom(known.summary, next_run).epsilon
