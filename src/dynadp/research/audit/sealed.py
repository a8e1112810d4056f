"""All nodes of a sealed sum in front of a coalition of some of them (maths.md 13)."""

from dataclasses import replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    MaskGraph,
    ReleasePlan,
    Releaser,
    SealedSum,
    Steps,
    SumRounds,
    SumSolver,
)
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, GaussianNoise, Mechanism, Sealed
from dynadp.privacy import Event, if_colluding
from dynadp.problem import Terms
from dynadp.research.audit.cases import Case
from dynadp.research.audit.coalition import Coalition, Keyring, check_opened, connected
from dynadp.research.audit.node import BATCH, NUMBERS, AuditedNode, Comparison
from dynadp.research.audit.sums import AuditedSums, integer_blocks

NODES = 5  # where nobody says how many


class AuditedSealed(AuditedSums):
    """The nodes of a sealed sum: one holds the rows of a case, the others rows that are zero.

    Some of the others collude. They have their own keys, hear all letters, take off the masks that
    they know and add up what is left. The letters are those of the shipped rounds, with real noise,
    keys and masks, and the spare attempts of the last round are made too: the coalition spoils the
    sums before.

    Of every release a message holds three vectors: the sum that the coalition is left with; the sum
    over all nodes, which everybody learns and which moves the point; and how the audited node's
    letter, without the coalition's masks, differs from its letter before, modulo 2^64. The last
    shows nothing as long as no mask is used twice.

    Parameters
    ----------
    case, mechanism, alpha, rounds
        As of :class:`~dynadp.research.audit.node.AuditedNode`.
    nodes
        P.
    colluding
        c', how many really collude; by default as many as the mechanism was told, but whoever looks
        at least.
    silos
        s: at how many nodes a person has the case's rows. All of them put her rows into the same
        sums, under one noise.

    Attributes
    ----------
    hers
        Her nodes, the audited one first. None of them colludes.
    """

    mechanism: Sealed
    releases: ReleasePlan

    def __init__(
        self,
        case: Case,
        mechanism: Sealed,
        alpha: float,
        rounds: int = 1,
        nodes: int | None = None,
        colluding: int | None = None,
        silos: int = 1,
    ) -> None:
        members = mechanism.sealing.members if mechanism.sealing else NODES
        self.mechanism = mechanism.among(nodes or members)
        sealing = self.mechanism.sealing
        assert sealing is not None
        P, planned = sealing.members, sealing.colluding
        self.sealing, self.as_planned = sealing, colluding is None
        self.colluding = max(planned, min(1, P - 1)) if colluding is None else colluding
        if silos > P:
            raise DeclarationError(
                f"silos_per_person is {silos} and there are {P} nodes; expected at most {P}"
            )
        if not 0 <= self.colluding <= P - silos:
            whose = "node whose row is replaced" if silos == 1 else f"{silos} nodes of a person"
            raise DeclarationError(
                f"colluding is {self.colluding} of {P} nodes; expected a number from 0 to "
                f"{P - silos}, all but the {whose}"
            )
        self.names = ("node", *(f"other {p}" for p in range(1, P)))
        graph = MaskGraph(self.names, sealing)
        together = connected(graph, self.names[0], self.coalition)
        others = [name for name in self.names if name not in (*together, *self.coalition)]
        self.hers = (*together, *others)[:silos]
        self.left, self.parts = len(together), len({*self.hers} & {*together})
        super().__init__(case, self.mechanism, alpha, rounds, silos)
        self.part, self.width = self.width, 3 * self.width
        self.batch = max(1, min(BATCH, NUMBERS // (P * max(case.rows.size, self.part))))
        # each round once, the last one again for every spare attempt
        again = range(1, len(self.releases.spares) + 1)
        self.sums = [*((n, 0) for n in range(1, rounds + 1)), *((rounds, spare) for spare in again)]

    def _releases(self, mechanism: Mechanism, alpha: float, rounds: int) -> ReleasePlan:
        case, P, (B, d) = self.case, len(self.names), self.case.rows.shape
        counts = np.full(P, float(B))
        terms = Terms(counts, d, case.loss, case.regularizer, case.C, case.rho)
        self.rows = float(P * B)
        self.steps = Steps(pull=20.0 * case.eta / (alpha * self.rows))
        alphas = np.full((P, 1, rounds), float(alpha))
        given = self.names, terms, self.mechanism, alphas, self.unit
        return ReleasePlan.sums(*given, case.vectors)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the run costs the node, as claimed where so many collude."""
        own = [e for e in self.releases.events(seeded=False) if e.node == self.names[0]]
        return self.unit.declared(own if self.as_planned else if_colluding(own, self.colluding))

    @property
    def numbers(self) -> int:
        """How many numbers an output holds."""
        return len(self.sums) * self.width

    @property
    def coalition(self) -> tuple[str, ...]:
        """Who colludes: those next to the audited node first, who share masks with it."""
        P = len(self.names)
        near = sorted(range(1, P), key=lambda p: (min(p, P - p), p))
        return tuple(self.names[p] for p in near[: self.colluding])

    def transcript(self, rows: Array, count: int, draws: Draws) -> tuple[Array, Array]:
        """Messages of so many independent runs on these rows, count x sums x width, twice.

        The density is known where the messages are.
        """
        parts, zero = [], np.zeros(rows.shape)
        blocks = [rows if name in self.hers else zero for name in self.names]
        for at in range(0, count, self.batch):
            size = min(self.batch, count - at)
            keys = Keyring.draw(self.names, self.sealing, draws)
            solver = self._solver(size, *blocks)
            given = self.releases.widened(size), solver, draws
            releaser = Releaser(*given, masks=keys.masks(draws))
            coalition = keys.coalition(self.coalition, self.names[0])
            parts.append(self._seen(releaser, coalition))
        messages = np.concatenate(parts)
        return messages, messages

    def _seen(self, releaser: Releaser, coalition: Coalition) -> Array:
        """Run all rounds; return what the coalition makes of them, K x sums x width."""
        noises, start = releaser.releases.noises, np.array(releaser.solver.f[0])
        rounds = SumRounds(releaser, noises, self.steps, start, self.rows, len(self.names))
        add, before, seen = SealedSum(noises), np.zeros((len(start), 0), np.int64), list[Array]()
        for n, spare in self.sums:
            letters = rounds.release_again() if spare else rounds.release()
            assert letters is not None
            opened, total = coalition.open(letters, n, releaser.entry), add(n, letters)
            check_opened(opened.together, noises[n - 1])
            step, alone = float(noises[n - 1].step[0, 0]), opened.alone.copy()
            common = min(alone.shape[-1], before.shape[-1])
            alone[:, :common] -= before[:, :common]
            before = opened.alone
            seen.append(self._message(step * opened.together, total, step * alone))
            if self._decides(n, spare):
                rounds.receive(total)
                coalition.follow(n, total)
        return np.stack(seen, axis=1)

    def _decides(self, n: int, spare: int) -> bool:
        """Whether round n ends with this attempt."""
        return (n, spare) == self.sums[-1] or n < self.sums[-1][0]

    def _message(self, *vectors: Any) -> Array:
        """Put vectors side by side, each filled up with zeros."""
        return np.hstack([np.pad(v, [(0, 0), (0, self.part - v.shape[-1])]) for v in vectors])

    def compare(self, points: Array, messages: Array) -> Comparison:
        """Compare what D and D' make of each run, given all that the coalition saw before."""
        ratios, shifts = [], []
        for at in range(0, len(messages), self.batch):
            ratio, square = self._compared(messages[at : at + self.batch])
            ratios.append(ratio)
            shifts.append(np.sqrt(square))
        return Comparison(np.concatenate(ratios), np.concatenate(shifts))

    def _compared(self, messages: Array) -> tuple[Array, Array]:
        count, own = len(messages), slice(0, 1)
        solver = self._solver(count, self.case.rows, self.case.other)
        start = np.array(solver.f[0])
        noises = self.releases.noises
        rounds = SumRounds(None, noises, self.steps, start, self.rows, len(self.names))
        ratios, squares = np.zeros((2, count))
        for i, (n, spare) in enumerate(self.sums):
            noise = self.releases.attempt(n, spare)[1].some(own)
            assert isinstance(noise, GaussianNoise)
            noise = noise.changed(sealing=replace(self.sealing, honest=self.left))
            width = self.releases.width(n)
            # all her nodes that the coalition cannot tell apart add the same
            g = self.parts * solver.local_step(n, rounds.state, None, noise.phi)
            density = noise.log_density(messages[:, i, :width] - g)
            ratios += density[0] - density[1]
            squares += -2 * noise.log_density(g[:1] - g[1:])[0]
            if self._decides(n, spare):
                rounds.release()
                rounds.receive(messages[:, i, self.part : self.part + width])
        return ratios, squares

    def _solver(self, count: int, *blocks: Array) -> SumSolver:
        rows = integer_blocks(self, count, *blocks)
        start = np.broadcast_to(self.case.heard, (len(blocks), count, len(self.case.heard)))
        return SumSolver(rows, self.releases.noises, start)


def audited_node(
    case: Case,
    mechanism: Mechanism,
    alpha: float,
    rounds: int = 1,
    nodes: int | None = None,
    colluding: int | None = None,
    silos: int = 1,
) -> AuditedNode:
    """The node of a case, under the algorithm whose messages the mechanism protects.

    Parameters
    ----------
    case, mechanism, alpha, rounds
        As of :class:`~dynadp.research.audit.node.AuditedNode`.
    nodes, colluding
        Of sealed sums, as of :class:`AuditedSealed`.
    silos
        At how many nodes a person has the case's rows.
    """
    if isinstance(mechanism, Sealed):
        return AuditedSealed(case, mechanism, alpha, rounds, nodes, colluding, silos)
    if nodes is not None or colluding is not None:
        raise DeclarationError(
            f"mechanism {mechanism.name!r} hides each node's rows by itself, so nobody has to be "
            "honest: leave out nodes and colluding, which are for mechanism 'sealed'"
        )
    kind = AuditedSums if mechanism.algorithm == "sum" else AuditedNode
    return kind(case, mechanism, alpha, rounds, silos)
