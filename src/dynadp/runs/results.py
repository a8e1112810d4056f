"""What checks and runs give back, as values; the command line prints them, or their JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dynadp.planning import Plan
from dynadp.runs.headroom import LargestTotal

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """What a run would mean for one node.

    Attributes
    ----------
    rows
        B_p.
    epsilon
        What the run would cost; None where nothing is protected.
    ledger
        Whether the node's ledger would admit it: its cap, the basis or None, and advice.
    """

    rows: int
    epsilon: float | None = None
    ledger: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class RunCheck:
    """What a run would do and cost.

    Attributes
    ----------
    run, simulation
        Its name, and whether noise would be seeded.
    nodes
        What it would mean for each.
    topology, columns
        The network in words; d with the intercept.
    plan
        None where nothing is protected.
    largest
        What the ledgers would admit at most, where that was asked for.
    notes
        What is declared and has no say.
    """

    run: str
    simulation: bool
    nodes: Mapping[str, NodeCheck]
    topology: str
    columns: int
    plan: Plan | None
    largest: LargestTotal | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the check for a program to read."""
        shown = {
            "version": VERSION,
            "run": self.run,
            "simulation": self.simulation,
            "nodes": {node: check.to_json() for node, check in self.nodes.items()},
            "topology": self.topology,
            "columns": self.columns,
            "protected": self.plan is not None and not self.simulation,
            "plan": None if self.plan is None else self.plan.to_json(),
        }
        if self.largest is not None:
            shown |= {
                "max_epsilon": self.largest.epsilon,
                "limited_by": list(self.largest.limited_by),
                "takes_whole_cap": list(self.largest.takes_whole_cap),
            }
        if self.notes:
            shown["notes"] = list(self.notes)
        return shown if self.plan is None else {**shown, "delta": self.plan.delta}


@dataclass(frozen=True, kw_only=True)
class _InFolder:
    """A result with a run folder.

    Attributes
    ----------
    run, folder
        The run's name and its folder.
    """

    run: str
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Return the result for a program to read."""
        return {"version": VERSION, **asdict(self), "folder": str(self.folder)}


@dataclass(frozen=True, kw_only=True)
class RunResult(_InFolder):
    """What a finished run came to.

    Attributes
    ----------
    simulation
        Whether noise was seeded, so that nobody is protected.
    rounds
        How many there were.
    evaluation, evaluation_note
        Accuracy on public rows where the run file declares any, and on which; or why there is none.
    statement
        The guarantee in words.
    epsilon, delta, protected
        The total; None where nothing is protected.
    nodes
        epsilon of each node.
    notes
        What was asked for and could not be.
    """

    simulation: bool
    rounds: int
    evaluation: Mapping[str, Any] | None
    evaluation_note: str
    statement: str
    epsilon: float | None = None
    delta: float | None = None
    protected: bool = False
    nodes: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeEnd(_InFolder):
    """How a silo's process ended.

    Attributes
    ----------
    node
        Whose end.
    state, rounds
        ``finished`` or ``stopped``, and after which round.
    simulation, epsilon, delta
        Whether noise was seeded; the plan's total.
    unfinished_neighbours
        Those that did not say that they are done.
    """

    node: str
    state: str
    rounds: int
    simulation: bool
    epsilon: float
    delta: float
    unfinished_neighbours: tuple[str, ...]
