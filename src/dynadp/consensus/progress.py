"""What a round left behind."""

from dataclasses import dataclass, field, replace

import numpy as np

from dynadp._arrays import Array, host, namespace, norm
from dynadp.consensus import admm


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
        2 eta || W_p(n) - W_p(n - 1) ||, the dual residual at each node, P x K.
    messages
        V, P x K x d, read-only; empty but in what a callback is given.
    """

    number: int
    rounds: int
    eta: Array
    disagreement: Array
    change: Array
    messages: Array = field(default_factory=lambda: np.empty((0, 0, 0)), repr=False)

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

    def with_messages(self, V: Array) -> "RoundProgress":
        """Return a copy that shows the round's messages."""
        shown = host(V).view()
        shown.setflags(write=False)
        return replace(self, messages=shown)
