"""K classes as K problems, one against the rest, on the same rows, in one account (maths.md 5); or
all together.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.consensus import Journal, Messages, ReleasePlan, Topology
from dynadp.data import Shard
from dynadp.engines import Run, simulate
from dynadp.estimators.fit_rows import FitRows
from dynadp.mechanisms import Draws, ShiftedDraws
from dynadp.planning import Consortium, Plan
from dynadp.privacy import Event


def solve(
    rows: FitRows,
    classes: int,
    topology: Topology,
    *,
    plan: Plan,
    together: bool = False,
    start: Array,
    draws: Draws,
    journal: Journal | None,
    weights: Sequence[float] = (),
    **how: Any,
) -> list[Run]:
    """One run for two classes (the second is +1) or for numbers, or one for each of several
    classes; problem k's round n is round k T + n of all.

    Parameters
    ----------
    rows
        Bounded.
    classes
        How many there are; 0 for numbers.
    topology
        The network.
    plan
        What each problem does.
    together
        Whether several classes are one problem.
    start
        V(0) of each problem, K x d.
    draws, journal
        As for :func:`~dynadp.engines.simulation.simulate`; the first problem reserves for all.
    weights
        What rows of each of several classes weigh; empty where all weigh the same.
    **how
        The rest of it, the same for all problems.
    """
    problems = 1 if classes <= 2 or together else classes
    parts = [rows.some(rows.owner == p) for p in range(len(topology))]
    counts = tuple(len(part.codes) for part in parts)
    many = classes if together or not classes else 2
    span = releases_in(plan, Consortium(topology, counts, rows.X.shape[1], classes=many))
    values = {0: None, 2: (-1, 1)}.get(many, range(many))
    runs = []
    for k in range(problems):
        shards = [
            Shard.of(
                own.X,
                _signs(own.codes, k if problems > 1 else 1) if many == 2 else own.codes,
                name=name,
                classes=values,
                people=own.people,
            )
            for own, name in zip(parts, topology.nodes, strict=True)
        ]
        part = None if journal is None else _Part(journal, k, problems, span)
        later = ShiftedDraws(draws, rounds=k * span)
        runs.append(
            simulate(
                shards,
                topology,
                weighed(plan, weights, k),
                start=start.ravel() if together else start[k],
                draws=later,
                journal=part,
                **how,
            )
        )
    return runs


def weighed(plan: Plan, weights: Sequence[float], k: int) -> Plan:
    """Return problem k of several whose classes weigh differently: the rest weighs as much as its
    classes do on average.
    """
    if not weights:
        return plan
    own, rest = weights[k], [w for j, w in enumerate(weights) if j != k]
    by_class = (float(np.mean(rest)), float(own))
    s = replace(plan.settings, class_weights=by_class, positives=1 / len(weights))
    steps = plan.steps
    if steps is not None and steps.pull is not None:  # in proportion to the noise
        steps = replace(steps, pull=steps.pull / s.row_weight)
    return replace(plan, settings=s, steps=steps)


def _signs(codes: NDArray[Any], positive: int) -> NDArray[Any]:
    return np.where(codes == positive, 1, -1)


def releases_in(plan: Plan, consortium: Consortium) -> int:
    """How many releases a problem may make: one a round, the final one where there is one, and
    spare attempts at sealed sums.
    """
    return _releases(plan.on(consortium).release_plan) if plan.protection else plan.rounds


def _releases(planned: ReleasePlan) -> int:
    return len(planned.noises) + len(planned.spares)


def spent(runs: Sequence[Run]) -> tuple[Event, ...]:
    """What all problems spent, in order."""
    return tuple(
        replace(e, round=e.round + k * _releases(run.releases))
        for k, run in enumerate(runs)
        for e in run.events()
    )


class _Part(Journal):
    """Problem k of K in the journal of all."""

    def __init__(self, whole: Journal, k: int, problems: int, rounds: int) -> None:
        self.whole, self.k, self.problems, self.rounds = whole, k, problems, rounds
        self.run = f"{whole.run}, problem {k}"

    def _moved(self, events: Sequence[Event], k: int) -> list[Event]:
        return [replace(event, round=event.round + k * self.rounds) for event in events]

    @property
    def begun(self) -> bool:
        """As all."""
        return self.whole.begun

    def reserve(self, plan: Sequence[Event]) -> None:
        """What all K will spend, since they spend alike."""
        self.whole.reserve([event for k in range(self.problems) for event in self._moved(plan, k)])

    def sent(self, n: int) -> Messages | None:
        """Nothing: a fit never goes on."""
        return None

    def spend(self, n: int, events: Sequence[Event], messages: Messages) -> Messages:
        """Round k T + n."""
        return self.whole.spend(n + self.k * self.rounds, self._moved(events, self.k), messages)

    def keep(self, n: int, vectors: Messages) -> None:
        """Keep nothing: a fit never goes on."""

    def fail(self, n: int, events: Sequence[Event]) -> None:
        """Round k T + n, and with it all problems."""
        self.whole.fail(n + self.k * self.rounds, self._moved(events, self.k))

    def close(self, reason: str) -> None:
        """After the last problem."""
        if self.k == self.problems - 1:
            self.whole.close(reason)
