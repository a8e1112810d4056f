"""Algorithm "sum" in one process with nodes that stay away for some rounds (maths.md 17)."""

from typing import Any

from dynadp import _require
from dynadp._arrays import Array
from dynadp.consensus import Away, SealedSum, SumRounds, WeighedSum
from dynadp.engines.member_sums import rows_of
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.planning import Plan


class AbsentSums:
    """sum_p w_p V_p over those who are there; of a sealed sum that somebody is newly away from, one
    attempt more.

    Parameters
    ----------
    plan, rounds
        Bound to its consortium; the rounds that count the members' rows.
    away
        First and last round of each absence of a node; None as last for good.
    """

    def __init__(self, plan: Plan, rounds: SumRounds, away: Away) -> None:
        if strange := sorted(set(away) - set(plan.bound.nodes)):
            raise DeclarationError(f"away names {', '.join(strange)}; no such node is in the run")
        self.plan, self.rounds = plan, rounds
        self.away = {
            name: [(first, plan.rounds if last is None else last) for first, last in spans]
            for name, spans in away.items()
        }
        for first, last in (span for spans in self.away.values() for span in spans):
            _require.whole("the first round of an absence", first)
            _require.whole("the last round of an absence", last, first)
        self._masks = rounds.releaser.masks if rounds.releaser else None
        if plan.sealing and self._masks is None:
            raise DeclarationError("away needs one replica where sums are sealed")

    def present(self, n: int) -> tuple[str, ...]:
        """Who is there in round n."""
        return tuple(
            name
            for name in self.plan.bound.nodes
            if not any(first <= n <= last for first, last in self.away.get(name, ()))
        )

    def __call__(self, n: int, V: Any) -> Array:
        """Return the sum over those who are there, K x d."""
        nodes, here, steps = self.plan.bound.nodes, self.present(n), self.plan.steps
        assert steps is not None
        if self._masks is not None and set(self._masks.graph.members) - set(here):
            self._masks.among(here)
            raise SumSpoiled(f"round {n}: somebody stayed away from a sealed sum")
        those = [(i, p) for i, p in enumerate(self.plan.senders) if nodes[p] in here]
        if not those:
            raise DeclarationError(f"round {n}: nobody who sends is there; shorten the absences")
        self.rounds.rows = rows_of(self.plan, here)
        self.rounds.members = [i for i, _ in those]
        sent = V[[i for i, _ in those]]
        if self._masks is None:
            return WeighedSum([steps.node_weights[p] for _, p in those])(n, sent)
        total = SealedSum(self.rounds.noises)(n, sent)
        back = {*here, *self.present(n + 1)}  # who returns is known before the next letters
        self._masks.among([name for name in nodes if name in back])
        return total
