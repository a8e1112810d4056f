"""Duals by edge: what a node keeps for each neighbour, and drops when it gives that one up
(maths.md 16).

    lam_p = sum_j lam_pj,    lam_pj = (eta/2) sum over the rounds of the edge's epoch of (V_p - V_j)

While an edge is off, a node puts its own last message in place of the other's (echo): q, and with
it sensitivity, gamma, ball and events, stay as planned.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism

Away = Mapping[str, Sequence[tuple[int, int | None]]]


class EdgeDuals:
    """lam_pj of some nodes' edges, in one array: ends x K x d.

    Parameters
    ----------
    own
        The row of V that each end belongs to, ascending.
    eta
        The penalty of each replica.
    shape
        P x K x d.

    Attributes
    ----------
    lam
        The dual of each end's present epoch; zero while the edge is off.
    """

    def __init__(self, own: Sequence[int], eta: Array, shape: tuple[int, ...]) -> None:
        self.own, self.eta, self.shape = np.asarray(own, dtype=int), eta, shape
        self.lam = np.zeros((len(self.own), *shape[1:]))

    def receive(self, V: Array, heard: Array, used: Array) -> tuple[Array, Array]:
        """Return the neighbours' sums with echoes, and the duals to drop, P x K x d each.

        Parameters
        ----------
        V
            The nodes' own messages.
        heard
            The other's message at each end; anything where it is not used.
        used
            Which ends use it. The dual of an end that does not is dropped.
        """
        on = np.asarray(used, dtype=bool)[:, None, None]
        mine = V[self.own]
        other = np.where(on, heard, mine)
        sums, dropped = np.zeros(self.shape), np.zeros(self.shape)
        np.add.at(sums, self.own, other)
        np.add.at(dropped, self.own, np.where(on, 0.0, self.lam))
        step = (0.5 * self.eta)[:, None] * (mine - other)
        self.lam = np.where(on, self.lam + step, 0.0)
        return sums, dropped


class AwaySums:
    """The exchange of a simulation in which nodes stay away: sums with echoes, duals to drop.

    Parameters
    ----------
    topology, rounds
        The network, and T.
    away
        For each node that stays away, the first and last round of every absence; None as last for
        good.

    Attributes
    ----------
    present
        Who takes part in each round, T x P. A node without any neighbour in a round waits too: its
        noise would grow.
    """

    def __init__(self, topology: Topology, rounds: int, away: Away) -> None:
        self.topology = topology
        self.present = _present(topology, rounds, away)
        adjacency = topology.adjacency
        self.others = np.asarray(adjacency.indices)
        self.own = np.repeat(np.arange(len(topology)), np.diff(adjacency.indptr))
        self._duals: EdgeDuals | None = None

    def begin(self, eta: Array, shape: tuple[int, ...]) -> None:
        """Begin with zero duals."""
        self._duals = EdgeDuals(self.own.tolist(), eta, shape)

    def used(self, n: int) -> Array:
        """Which ends use the other's message of round n: both nodes take part."""
        here = self.present[n - 1]
        return np.asarray(here[self.own] & here[self.others])

    def __call__(self, n: int, V: Array) -> tuple[Array, Array]:
        """Return the sums over neighbours and the duals to drop, in round n."""
        assert self._duals is not None
        return self._duals.receive(V, V[self.others], self.used(n))

    def components(self) -> Array:
        """Return a number for each node, the same for those that are connected in the last round;
        -1 for those that are away.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        on, P = self.used(len(self.present)), len(self.topology)
        pairs = self.own[on], self.others[on]
        _, labels = connected_components(coo_array((np.ones(on.sum()), pairs), shape=(P, P)))
        return np.where(self.present[-1], labels, -1)


def _present(topology: Topology, rounds: int, away: Away) -> Array:
    here = np.ones((rounds, len(topology)), dtype=bool)
    for node, spans in away.items():
        if node not in topology.nodes:
            raise DeclarationError(
                f"away names {node!r}, which is no node; expected one of "
                f"{', '.join(topology.nodes)}"
            )
        for first, last in spans:
            if not 1 <= first <= (rounds if last is None else last):
                raise DeclarationError(
                    f"away has rounds ({first}, {last}) for {node!r}; expected the first and the "
                    f"last round of an absence, from 1 to {rounds}, None as last for good"
                )
            here[first - 1 : last, topology.nodes.index(node)] = False
    near = (topology.adjacency @ here.T).T > 0
    return np.asarray(here & near)


def require_own_messages(mechanism: Mechanism) -> None:
    """Refuse a mechanism whose state is not a function of messages: an echo would be private."""
    if mechanism.private_iterate:
        raise DeclarationError(
            "a run with augment = 'iterate' cannot go on without nodes that stay away: what stands "
            "in place of their messages would be made of this node's private vector. Use augment = "
            "'message', or on_absence = \"wait\""
        )


def enough_of(tail: int, averaged: int) -> bool:
    """Whether a node's mean counts in the model: it sent at least half of the averaged rounds."""
    return 2 * tail >= averaged


def reachable(me: str, edges: Iterable[tuple[str, str]]) -> set[str]:
    """Return the nodes that a node reaches over these edges, itself among them."""
    near: dict[str, set[str]] = {}
    for a, b in edges:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    found, new = {me}, {me}
    while new:
        new = {other for node in new for other in near.get(node, ())} - found
        found |= new
    return found
