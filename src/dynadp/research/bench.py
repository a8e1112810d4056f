"""The paper's algorithms with its constants, run in stacks on a ring of nodes (maths.md 11)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import RoundProgress, Topology
from dynadp.data import Shard
from dynadp.mechanisms import Dual, Mechanism, Primal
from dynadp.planning import Plan
from dynadp.privacy import worst_node
from dynadp.problem import Logistic
from dynadp.research.experiments import run_seeded
from dynadp.research.public_rows import HeldOut

ETA, DELTA = 1.0, 1e-5
STACK = 64  # replicas that one stack holds, about


@dataclass(frozen=True)
class Algorithm:
    """One curve: a mechanism with the paper's (rho, C) and its stated (c4, c5) of L_acc."""

    name: str
    mechanism: Mechanism | None
    rho: float
    C: float
    stated: tuple[float, float] | None = None


PLAIN = Algorithm("Algorithm 1", None, 1e-10, 1750.0)
DVP = Algorithm("DVP", Dual(), 10**-2.5, 1750.0, (0.2, 25.0))
PRINTED = Algorithm("PVP as printed", Primal(augment="iterate"), 0.1, 146.0, (20.0, 20.0))
PUBLIC = Algorithm("PVP public", Primal(), 0.1, 146.0, (20.0, 20.0))
PRIVATE = (DVP, PRINTED, PUBLIC)
MATCHED = replace(
    PUBLIC, name="PVP public, (rho, C) of DVP", rho=DVP.rho, C=DVP.C
)  # a control: not a matter of C


@dataclass(frozen=True)
class Trace:
    """The results of one stacked run.

    Attributes
    ----------
    losses
        Mean loss of the messages of every round, rounds x draws.
    error, network_error
        Share of wrong answers on test rows of the last messages (mean over nodes), and of the
        network's mean; one a draw.
    final
        Loss of the final output: after Algorithm 3's last release by Algorithm 2, where there is
        one.
    epsilon, final_epsilon
        What the messages of all rounds would cost in total, with system entropy, at DELTA; and with
        the last release, where there is one. None without a mechanism.
    """

    losses: Array
    error: Array
    network_error: Array
    final: Array
    epsilon: float | None
    final_epsilon: float | None


@dataclass(frozen=True)
class Bench:
    """Rows in their nodes, and held-out rows.

    Attributes
    ----------
    shards, held_out
        Rows of each node, and test rows.
    rounds, seed
        Of every run.
    """

    shards: Sequence[Shard] = field(repr=False)
    held_out: HeldOut
    rounds: int
    seed: int

    @property
    def ring(self) -> Topology:
        """The network."""
        return Topology.family("ring", len(self.shards))

    def loss(self, V: Array) -> Array:
        """Mean over nodes of the mean loss on a node's own rows, one for each replica."""
        value = Logistic().value
        each = [
            value(np.asarray(s.signed @ v.T)).mean(axis=0)
            for s, v in zip(self.shards, V, strict=True)
        ]
        return np.asarray(np.mean(each, axis=0))

    def run(
        self,
        algorithm: Algorithm,
        alphas: Sequence[float],
        draws: int,
        *,
        every: bool = True,
        final: bool = True,
    ) -> list[Trace]:
        """All draws of one algorithm at each alpha, in a few stacks; losses of the last round only
        unless ``every``.

        Algorithm 3's last release has one alpha for the whole stack, so there each alpha has its
        own.
        """
        several = 1 if isinstance(algorithm.mechanism, Primal) and final else max(STACK // draws, 1)
        groups = [alphas[i : i + several] for i in range(0, len(alphas), several)]
        return [
            trace
            for group in groups
            for trace in self._stack(algorithm, group, draws, every, final)
        ]

    def _stack(
        self, algorithm: Algorithm, alphas: Sequence[float], draws: int, every: bool, final: bool
    ) -> list[Trace]:
        losses: list[Array] = []
        last: list[Array] = []

        def note(entry: RoundProgress) -> None:
            V = entry.messages
            if every or entry.number == self.rounds:
                losses.append(self.loss(V))
            if entry.number == self.rounds:
                last.append(V.copy())

        mechanism = algorithm.mechanism
        if isinstance(mechanism, Primal) and final:
            mechanism = replace(mechanism, final_release=alphas[0])
        schedule = [alpha for alpha in alphas for _ in range(draws)]
        end = run_seeded(
            self.shards,
            self.ring,
            Plan.of(
                C=algorithm.C,
                rho=algorithm.rho,
                eta=ETA,
                rounds=self.rounds,
                mechanism=mechanism,
                schedule=schedule if mechanism else None,
            ),
            len(schedule),
            self.seed,
            note,
        )
        every_loss, outputs = np.array(losses), self.loss(end.V) if final else losses[-1]
        wrong = self.held_out.error(last[0]).mean(axis=0)
        agreed = self.held_out.error(end.models("network")[0])
        traces = []
        for i in range(len(alphas)):
            own = slice(i * draws, (i + 1) * draws)
            costs: list[float | None] = [None, None]
            if mechanism:
                spent = end.events(own.start)
                messages = [event for event in spent if event.round <= self.rounds]
                costs = [worst_node(events, DELTA).epsilon for events in (messages, spent)]
            traces.append(Trace(every_loss[:, own], wrong[own], agreed[own], outputs[own], *costs))
        return traces
