"""The progress of a run: one value for each round, and its lines in rounds.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from dynadp._arrays import Array, host, namespace, norm
from dynadp.consensus import admm


class RoundLine(NamedTuple):
    """One line of rounds.jsonl: a round at one node, computed from messages only.

    Attributes
    ----------
    round, node
        n = 1, 2, ... and the node's name.
    alpha
        Loss of this round at this node; None where nothing is protected.
    disagreement, change
        As in :class:`RoundProgress`.
    """

    round: int
    node: str
    alpha: float | None
    disagreement: float
    change: float

    @classmethod
    def from_json(cls, content: Any) -> "RoundLine":
        """Read a parsed line; further keys are ignored.

        Raises
        ------
        ValueError
            If it is not a line of a round.
        """
        try:
            alpha = content.get("alpha")
            line = cls(
                int(content["round"]),
                str(content["node"]),
                None if alpha is None else float(alpha),
                float(content["disagreement"]),
                float(content["change"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not a line of a round") from error
        if not all(isfinite(value) for value in line[2:] if value is not None):
            raise ValueError("a number of the line is not finite")
        return line


@dataclass(frozen=True)
class RoundProgress:
    """What a round left behind, from messages only.

    Attributes
    ----------
    number
        n = 1, 2, ...
    eta
        Penalty of each replica.
    disagreement
        || V_p - mean of its neighbours' || at each node, P x K.
    change
        2 eta || W_p(n) - W_p(n - 1) ||, the dual residual at each node, P x K.
    messages
        V, P x K x d, read-only; None where they are not kept.
    rounds
        The run has at most so many; None where the caller knows.
    """

    number: int
    eta: Array
    disagreement: Array
    change: Array
    messages: Array | None = field(default=None, repr=False)
    rounds: int | None = None

    @classmethod
    def of(
        cls,
        n: int,
        V: Array,
        neighbours: Array,
        before: admm.State,
        after: admm.State,
        degrees: Array,
        eta: Array,
    ) -> "RoundProgress":
        """From the messages of round n and the states around it."""
        mean = neighbours / namespace(V).maximum(degrees, 1)[:, None, None]
        apart = (V - mean) * (degrees > 0)[:, None, None]
        change = 2 * eta[:, None] * (after.W - before.W)
        return cls(n, host(eta), host(norm(apart)), host(norm(change)))

    def lines(self, nodes: Sequence[str], alphas: Sequence[float | None]) -> list[RoundLine]:
        """The lines of the first replica, one for each node with its alpha of this round."""
        return [
            RoundLine(self.number, node, alpha, float(apart), float(change))
            for node, alpha, apart, change in zip(
                nodes, alphas, self.disagreement[:, 0], self.change[:, 0], strict=True
            )
        ]
