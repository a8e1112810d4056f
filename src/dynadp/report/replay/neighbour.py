"""Which made run shows what a neighbour sees of a run."""

from dataclasses import dataclass
from math import inf
from typing import Any

from dynadp.privacy import Unit, upper_bound, worst_node
from dynadp.report.budgets import planned_cost
from dynadp.report.record_view import RunView
from dynadp.research.attacks import KINDS, Answers

MECHANISMS = ("sum", "sealed", "primal", "dual")  # that the attacks are made for
DELTA = 1e-5  # at which the attacks state totals


@dataclass(frozen=True)
class Attacked:
    """A made run of the kind of this one.

    Attributes
    ----------
    epsilon
        The total of the costliest node, of the person that it is about.
    mechanism, answer, histogram
        As of :func:`~dynadp.research.attacks.neighbours.look`.
    unit
        Whom the total is about.
    """

    epsilon: float
    mechanism: str
    answer: Answers
    histogram: bool
    unit: Unit

    @classmethod
    def of(cls, view: RunView) -> "Attacked | None":
        """Return what is attacked; None without a finite total, or of another mechanism."""
        plan, (events, _) = view.plan, planned_cost(view)
        if plan is None or not events or plan.mechanism not in MECHANISMS:
            return None
        epsilon = worst_node(events, DELTA).epsilon
        if not 0 < epsilon < inf:
            return None
        schema = view.record.declared_schema
        kind = "signs" if schema is None else schema.label.kind
        (answer,) = (name for name, each in KINDS.items() if each == kind)
        histogram = bool(plan.parameters.get("histogram"))
        return cls(epsilon, plan.mechanism, answer, histogram, plan.unit)

    @property
    def given(self) -> dict[str, Any]:
        """What the attacks are given."""
        names = ("epsilon", "mechanism", "answer", "histogram")
        return {**{name: getattr(self, name) for name in names}, "adjacency": self.unit.adjacency}

    @property
    def words(self) -> list[str]:
        """What is attacked and by whom, a sentence each."""
        kind = f"{self.mechanism}, {self.answer}"
        kind += ", and a histogram of scores" if self.histogram else ""
        found = [
            f"A synthetic row in a synthetic run of the kind of this one ({kind}), with its total "
            f"of epsilon = {upper_bound(self.epsilon)} at delta = {DELTA:g}: what a neighbour "
            "reads of the row without noise, with your budget, and by plain guessing."
        ]
        if self.mechanism == "sealed":
            found.append(
                "Of three nodes the neighbour colludes, as planned: it is left with the sum of the "
                "two others, and knows every other row of both."
            )
        else:
            found.append("It hears every message and knows every other row of the node.")
        if self.unit.added:
            found.append("Rows are there or not, so that is asked, and the total is about that.")
        if self.unit.rows > 1 or self.unit.silos > 1:
            found.append(
                f"Your total is about anybody with {self.unit.words}, all of them together; here "
                "one row costs as much, so a single one of yours shows less."
            )
        found.append("The attacks are those of dynadp attacks; your rows are not touched.")
        return found

    @property
    def asked(self) -> str:
        """What is asked about the row."""
        if self.unit.added:
            return "was it there, or not?"
        return (
            "was it in, or its opposite?"
            if self.answer == "two values"
            else "was it in, or the same row with another answer?"
        )
