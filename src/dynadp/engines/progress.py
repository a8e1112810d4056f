"""What a round left behind."""

from dataclasses import dataclass

from dynadp._arrays import Array, host, namespace, norm
from dynadp.consensus import admm


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
    """

    number: int
    eta: Array
    disagreement: Array
    change: Array

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
