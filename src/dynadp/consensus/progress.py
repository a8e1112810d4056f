"""The progress of a run: one value for each round, and its lines in rounds.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from dynadp._arrays import Array, host, namespace, norm
from dynadp.consensus import admm


class RoundLine(NamedTuple):
    """One line of rounds.jsonl: a round at one node, computed from messages only.

    Attributes
    ----------
    round, node
        n = 1, 2, ... and the node's name.
    alpha, mu
        Loss of this round at this node: alpha, or mu where noise is Gaussian; None where nothing is
        protected, or the node sent nothing.
    disagreement, change, apart, noise
        As in :class:`RoundProgress`; the last two of algorithm "sum" alone, else None.
    """

    round: int
    node: str
    alpha: float | None
    disagreement: float
    change: float
    mu: float | None = None
    apart: float | None = None
    noise: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line; mu where noise is Gaussian, apart and noise of algorithm "sum"."""
        optional = ("mu", "apart", "noise")
        return {k: v for k, v in self._asdict().items() if v is not None or k not in optional}

    @classmethod
    def from_json(cls, content: Any) -> "RoundLine":
        """Read a parsed line; further keys are ignored.

        Raises
        ------
        ValueError
            If it is not a line of a round.
        """
        try:
            alpha, mu, apart, noise = (
                None if content.get(name) is None else float(content[name])
                for name in ("alpha", "mu", "apart", "noise")
            )
            line = cls(
                int(content["round"]),
                str(content["node"]),
                alpha,
                float(content["disagreement"]),
                float(content["change"]),
                mu,
                apart,
                noise,
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
    number, rounds
        n = 1, 2, ..., and T, how many there are at most.
    eta
        Penalty of each replica.
    disagreement
        || V_p - mean of its neighbours' || at each node, P x K.
    change
        2 eta || W_p(n) - W_p(n - 1) ||, the dual residual at each node, P x K. Of algorithm "sum"
        how far the common point moved, and eta is its pull.
    apart, noise
        Of algorithm "sum": how far the common point is from its mean over the last half of the
        rounds so far, which is the model in the end; and how far noise alone would move it, the
        root mean square. None of ADMM, and in rounds in which the point stays.
    messages
        V of all who sent, P x K x d, read-only; empty but in what a callback is given.
    points
        Where each node stands, P x K x d, likewise: its message, or the common point.
    """

    number: int
    rounds: int
    eta: Array
    disagreement: Array
    change: Array
    messages: Array = field(default_factory=lambda: np.empty((0, 0, 0)), repr=False)
    points: Array = field(default_factory=lambda: np.empty((0, 0, 0)), repr=False)
    apart: Array | None = None
    noise: float | None = None

    @classmethod
    def of(
        cls,
        n: int,
        rounds: int,
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
        return cls(n, rounds, host(eta), host(norm(apart)), host(norm(change)))

    def with_messages(self, V: Array, points: Array | None = None) -> "RoundProgress":
        """Return a copy that shows the round's messages, and where nodes stand after it."""
        shown, where = (host(a).view() for a in (V, V if points is None else points))
        shown.setflags(write=False)
        where.setflags(write=False)
        return replace(self, messages=shown, points=where)

    def lines(
        self, nodes: Sequence[str], losses: Sequence[float | None], noise: str = "l2-laplace"
    ) -> list[RoundLine]:
        """Return the lines of the first replica, one a node, with its alpha or mu of this round."""
        lines = []
        for p, (node, loss) in enumerate(zip(nodes, losses, strict=True)):
            apart, change = float(self.disagreement[p, 0]), float(self.change[p, 0])
            pair = (loss or None, None) if noise == "l2-laplace" else (None, loss or None)
            away = None if self.apart is None else float(self.apart[0])
            lines.append(
                RoundLine(self.number, node, pair[0], apart, change, pair[1], away, self.noise)
            )
        return lines
