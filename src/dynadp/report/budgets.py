"""What a run costs each node under every valid accounting, and what its ledger has left."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from dynadp.errors import DynadpError, RecordError
from dynadp.mechanisms import released_accuracies
from dynadp.privacy import (
    Cap,
    Collusion,
    Event,
    Ledger,
    LedgerSummary,
    Room,
    Total,
    by_node,
    total,
    worst_node,
)
from dynadp.report.honesty import spare_events
from dynadp.report.record_view import RunView
from dynadp.runs import read_status

IN_USE = "in use: the smallest"
ONLY = "in use: the law of the loss"  # of Gaussian releases, which have no alpha
WITH_SPARES = "in use: with all spare attempts"
WITHOUT_SPARES = "rounds without spare attempts"
STEPS = 24  # points of a curve over rounds, at most
WORDS = {
    "sum": ("plain sum", "adds up alpha; holds without any delta"),
    "pure": ("best from alpha alone", "knows of each release only its alpha"),
    "loss distribution": ("law of the loss", "knows how the loss of each release is distributed"),
    "renyi": ("Rényi", "from moments of the loss"),
    "odometer": (
        "odometer",
        "holds even if later rounds had been chosen after seeing earlier ones",
    ),
    "none": ("none", "an event is unknown"),
}


@dataclass(frozen=True)
class Figure:
    """One valid figure: who computes it, what it is, and whether it is the one in use."""

    name: str
    words: str
    epsilon: float
    delta: float
    used: bool


@dataclass(frozen=True)
class BudgetView:
    """What a node's ledger says.

    Attributes
    ----------
    cap
        None where there is none.
    room
        What is taken and left of the cap, by one measure; None without a cap.
    lost
        epsilon of everything that was released, at most:
        :attr:`~dynadp.privacy.ledger.summary.LedgerSummary.lost`.
    releases, planned
        Of this run, without spare attempts.
    used, spares
        Spare attempts of this run, and how many were reserved.
    honest
        (h, members) of sealed sums that count against the cap; empty without any.
    collusion
        What is lost so far if more members of sealed sums collude than planned, at most.
    head
        Hash of the last entry.
    evaluations
        Noisy accuracies that were charged: when, of what, alpha and the released number.
    """

    cap: Cap | None
    room: Room | None
    lost: float
    releases: int
    planned: int
    head: str
    evaluations: tuple[Mapping[str, Any], ...]
    used: int = 0
    spares: int = 0
    honest: tuple[tuple[int, int], ...] = ()
    collusion: tuple[Collusion, ...] = ()

    @property
    def worst(self) -> float | None:
        """epsilon lost so far if all others in sealed sums collude; None where no sum is sealed."""
        return max((point.epsilon for point in self.collusion), default=None)


def accountings(own: Sequence[Event], delta: float) -> list[Figure]:
    """All valid totals of one node's events, with the one in use marked."""
    found = total(own, delta)
    values = {"sum": found.epsilon_sum, "pure": found.epsilon_pure, found.method: found.epsilon}
    out = [
        Figure(*WORDS[name], epsilon, 0.0 if name == "sum" else delta, name == found.method)
        for name, epsilon in values.items()
        if isfinite(epsilon) or name == found.method  # Gaussian releases have no finite sum
    ]
    if delta > 0 and isfinite(found.epsilon) and found.epsilon > 0:
        out.append(
            Figure(*WORDS["odometer"], Cap.of(found.epsilon, delta).odometer(own), delta, False)
        )
    return out


def worst(events: Sequence[Event], delta: float) -> tuple[str, list[Event]]:
    """The node that loses most, and its events."""
    found = by_node(events, delta)
    node = max(found, key=lambda name: found[name].epsilon)
    return node, [event for event in events if event.node == node]


def over_rounds(own: Sequence[Event], delta: float, steps: int = STEPS) -> list[dict[str, Any]]:
    """Totals of one node after 1, ..., T rounds under each accounting: ``round``, ``epsilon``,
    ``accounting``; and with all spare attempts, where any are reserved.
    """
    spares = spare_events(own)
    beyond = {event.round for event in spares}
    done = [event for event in own if event.round not in beyond]
    rounds = sorted({event.round for event in done})
    picks = sorted({rounds[round(i * (len(rounds) - 1) / (steps - 1))] for i in range(steps)})
    rows = []
    for n in picks:
        so_far = [event for event in done if event.round <= n]
        found = total(so_far, delta)
        values = {WORDS["sum"][0]: found.epsilon_sum, WORDS["pure"][0]: found.epsilon_pure}
        if spares:
            values[WITHOUT_SPARES] = found.epsilon
            values[WITH_SPARES] = total([*so_far, *spares], delta).epsilon
        else:
            values[IN_USE if isfinite(found.epsilon_sum) else ONLY] = found.epsilon
        rows += [
            {"round": n, "epsilon": e, "accounting": name}
            for name, e in values.items()
            if isfinite(e)
        ]
    return rows


def planned_cost(view: RunView) -> tuple[tuple[Event, ...], Total | None]:
    """All planned events and the network's total; none where nothing is protected or the record
    holds too little yet.

    A record's own total must not lie below that of its events: otherwise it was changed or comes
    from another version. It may lie above, as accounting got tighter since it was written.
    """
    if view.plan is None:
        return (), None
    events = view.record.events or _reserved(view)
    if not events:
        return (), None
    found, epsilon = worst_node(events, view.plan.delta), view.plan.total["epsilon"]
    if epsilon is not None and epsilon < found.epsilon * (1 - 1e-6):
        raise RecordError(
            f"{view.home}: run.json has a total of epsilon = {epsilon:.6g}, its plan costs "
            f"{found.epsilon:.6g}; the file was changed, or another version of dynadp wrote it: "
            f"ask `dynadp ledger show` instead"
        )
    return events, found


def ledger_files(view: RunView) -> dict[str, Path]:
    """The nodes' ledgers, as far as they can be reached from here and know this run.

    A run in one process names them relative to its run file, which may lie elsewhere: they are
    looked for in the working directory, in the three folders above the run folder, and one level
    below each of these.
    """
    files: dict[str, Path] = {}
    if view.kind == "network":
        for node, home in view.folders.items():
            with suppress(RecordError):
                ledger = read_status(home).get("ledger")
                if ledger is not None and Path(ledger).exists():
                    files[node] = Path(ledger)
        return files
    bases = [*view.near, *(folder for base in view.near for folder in sorted(base.glob("*/")))]
    for section in (view.record.file or {}).get("nodes", ()):
        if section.get("ledger"):
            found = dict.fromkeys(base / section["ledger"] for base in bases)
            lengths = {file: _entries(file, section["name"], view.record.run_id) for file in found}
            file = max(lengths, key=lengths.__getitem__)  # others are older copies of it
            if lengths[file]:
                files[section["name"]] = file
    return files


def _reserved(view: RunView) -> tuple[Event, ...]:
    """The plan as the ledgers have it, where all can be reached: known before the first message."""
    files, out = ledger_files(view), list[Event]()
    for node in view.topology.nodes:
        try:
            with Ledger.open(files[node], read_only=True) as ledger:
                own = ledger.reserved(view.record.run_id)
        except (KeyError, DynadpError):
            return ()
        if own is None:
            return ()
        out += own
    return tuple(out)


def read_budget(path: Path, run: str) -> BudgetView:
    """What the ledger says, about this run and in all."""
    with Ledger.open(path, read_only=True) as ledger:
        summary, evaluations = LedgerSummary.of(ledger), released_accuracies(ledger)
    own = summary.runs.get(run)
    return BudgetView(
        cap=summary.cap,
        room=summary.room,
        lost=summary.lost or 0.0,
        releases=own.rounds_spent if own else 0,
        planned=own.rounds_planned if own else 0,
        head=summary.head,
        evaluations=evaluations,
        used=own.spares_spent if own else 0,
        spares=len(own.spares) if own else 0,
        honest=summary.honest,
        collusion=summary.collusion,
    )


def read_budgets(view: RunView, files: Mapping[str, Path]) -> dict[str, BudgetView | str]:
    """Every ledger's budget, or the sentence that says why it cannot be read."""
    out: dict[str, BudgetView | str] = {}
    for node, file in files.items():
        try:
            out[node] = read_budget(file, view.record.run_id)
        except (DynadpError, OSError) as error:
            out[node] = str(error)
    return out


def _entries(path: Path, node: str, run: str) -> int:
    """How many entries it has, if it is the node's ledger and holds this very run; otherwise 0."""
    try:
        if not path.is_file():
            return 0
        with Ledger.open(path, read_only=True) as ledger:
            state = ledger.state()
    except (DynadpError, OSError):
        return 0
    return state.length if state.node == node and run in state.runs else 0
