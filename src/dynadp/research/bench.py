"""The paper's algorithms with its constants, run in stacks on a ring of nodes (maths.md 11)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import NeighbourSums, RoundProgress, Topology, admm, public_states
from dynadp.data import Shard
from dynadp.engines import Run
from dynadp.mechanisms import Dual, Mechanism, Primal, PrimalNoise, SeededEntropy, l2_laplace
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

    def plan(self, rounds: int, alpha: Any, final_release: float | None = None) -> Plan:
        """Make a plan of so many rounds.

        Parameters
        ----------
        rounds
            T.
        alpha
            Of all replicas, or of each; not used without a mechanism.
        final_release
            alpha of a last release by Algorithm 2 after Algorithm 3; not used by the others.
        """
        mechanism = self.mechanism
        if isinstance(mechanism, Primal):
            mechanism = replace(mechanism, final_release=final_release)
        return Plan.of(
            C=self.C,
            rho=self.rho,
            eta=ETA,
            rounds=rounds,
            mechanism=mechanism,
            schedule=alpha if mechanism else None,
        )


PLAIN = Algorithm("Algorithm 1", None, 1e-10, 1750.0)
DVP = Algorithm("DVP", Dual(), 10**-2.5, 1750.0, (0.2, 25.0))
PRINTED = Algorithm("PVP as printed", Primal(augment="iterate"), 0.1, 146.0, (20.0, 20.0))
PUBLIC = Algorithm("PVP public", Primal(), 0.1, 146.0, (20.0, 20.0))
PRIVATE = (DVP, PRINTED, PUBLIC)
# a control: not a matter of C
MATCHED = replace(PUBLIC, name="PVP public, (rho, C) of DVP", rho=DVP.rho, C=DVP.C)


@dataclass(frozen=True)
class Trace:
    """The results of one stacked run.

    Attributes
    ----------
    losses
        Mean loss of the messages of every round, rounds x draws; of a short run, of the last alone.
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
        self, algorithm: Algorithm, alphas: Sequence[float], draws: int, *, short: bool = False
    ) -> dict[float, Trace]:
        """All draws of one algorithm at each alpha, in a few stacks.

        A short run has no final release, and losses of the last round only. Algorithm 3's final
        release has one alpha for the whole stack, so there each alpha has its own.
        """
        alone = isinstance(algorithm.mechanism, Primal) and not short
        several = 1 if alone else max(STACK // draws, 1)
        traces = dict[float, Trace]()
        for i in range(0, len(alphas), several):
            traces |= self._stack(algorithm, alphas[i : i + several], draws, short)
        return traces

    def _stack(
        self, algorithm: Algorithm, alphas: Sequence[float], draws: int, short: bool
    ) -> dict[float, Trace]:
        losses: list[Array] = []
        errors: list[Array] = []

        def note(progress: RoundProgress) -> None:
            V, ended = progress.messages, progress.number == self.rounds
            if ended:
                errors.append(self.held_out.error(V).mean(axis=0))
            if ended or not short:
                losses.append(self.loss(V))

        schedule = np.repeat(alphas, draws).tolist()
        plan = algorithm.plan(self.rounds, schedule, None if short else alphas[0])
        end = run_seeded(self.shards, self.ring, plan, len(schedule), self.seed, note)
        agreed = self.held_out.error(end.models("network")[0])
        every, outputs = np.array(losses), losses[-1] if short else self.loss(end.V)
        traces = {}
        for i, alpha in enumerate(alphas):
            own = slice(i * draws, (i + 1) * draws)
            costs: list[float | None] = [None, None]
            if algorithm.mechanism:
                spent = end.events(own.start)
                messages = [event for event in spent if event.round <= self.rounds]
                costs = [worst_node(events, DELTA).epsilon for events in (messages, spent)]
            traces[alpha] = Trace(every[:, own], errors[0][own], agreed[own], outputs[own], *costs)
        return traces

    def measure_flow(self, rounds: int, alpha: float) -> dict[str, Any]:
        """Norms behind the paper's Figures 1 and 2: of one node's vectors in the last round of DVP
        and PVP, and in PVP's final release.

        ``lam`` is lam_p(t), known to all who saw the messages. ``noise`` is what is added: (C/2B)
        e_p(t + 1) to lam_p (Algorithm 2), e_p(t + 1) to f_p (Algorithm 3). ``perturbed`` is mu_p(t
        + 1) (Algorithm 2) or V_p(t + 1) (Algorithm 3), ``f`` the minimiser f_p(t + 1), and
        ``lam_next`` lam_p(t + 1), None after the final release.
        """
        ring, draws = self.ring, SeededEntropy(self.seed)

        def run(plan: Plan) -> tuple[Run, Array, Array]:
            """The run, with V_p of the last round and lam_p before it."""
            sent: list[Array] = []
            end = run_seeded(
                self.shards,
                ring,
                plan,
                seed=self.seed,
                on_round=lambda progress: sent.append(progress.messages.copy()),
            )
            *_, before = public_states(sent, NeighbourSums(ring), ring.degrees, np.array([ETA]))
            return end, sent[-1][0, 0], before.lam[0, 0]

        def dual_round(end: Run, lam: Array, n: int, lam_next: Array | None) -> dict[str, Any]:
            term = end.noises[n - 1].linear(end.releases.public, draws, ring.nodes, n)
            assert term is not None
            noise = term[0, 0] / 2
            return _norms(lam, noise, lam + noise, end.V[0, 0], lam_next)

        end, _, lam = run(DVP.plan(rounds, alpha))
        assert isinstance(end.state, admm.State)
        dual = dual_round(end, lam, rounds, end.state.lam[0, 0])
        end, V, lam = run(PUBLIC.plan(rounds, alpha, final_release=alpha))
        assert isinstance(end.state, admm.State)
        lam_next, added = end.state.lam[0, 0], end.noises[rounds - 1]
        assert isinstance(added, PrimalNoise)
        unit = l2_laplace(draws, "primal", ring.nodes, rounds, 1, len(V))[0, 0]
        noise = unit / added.outer[0, 0]
        return {
            "node": ring.nodes[0],
            "round": rounds,
            "alpha": alpha,
            "dual": dual,
            "primal": _norms(lam, noise, V, V - noise, lam_next),
            "final": dual_round(end, lam_next, rounds + 1, None),
        }


def _norms(*vectors: Array | None) -> dict[str, float | None]:
    names = ("lam", "noise", "perturbed", "f", "lam_next")
    lengths = [None if v is None else float(np.linalg.norm(v)) for v in vectors]
    return dict(zip(names, lengths, strict=True))
