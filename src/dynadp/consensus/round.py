"""One round, for every engine: release, exchange, receive (Algorithms 1, 2 and 3; maths.md 2).

::

    rounds = Rounds(releaser, neighbours of V(0))
    for n in 1, ..., T:
        V = rounds.release()                 # solve, perturb, enter: what this node releases
        learnt = exchange(n, V)              # what it learns of the others: sum_j V_j
        progress = rounds.receive(learnt)    # the dual update

The exchange between the two halves is the engine's: one sparse product in a simulation, signed
letters on a network, anything that gives the sum (:class:`Exchange`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from dynadp._arrays import Array, host, namespace, on
from dynadp.consensus import admm
from dynadp.consensus.journal import Journal
from dynadp.consensus.local_solver import LocalSolver
from dynadp.consensus.masks import Masks, is_sealed
from dynadp.consensus.progress import RoundProgress
from dynadp.consensus.releases import ReleasePlan
from dynadp.consensus.residuals import Certificate, Residuals
from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError, NotCertified
from dynadp.mechanisms import Draws, RoundNoise


class Exchange(Protocol):
    """From what all nodes of a process release to what each learns of the others."""

    def __call__(self, n: int, V: Array) -> Array:
        """Return sum_j V_j over each node's neighbours in round n, P x K x d; V(0) is round 0."""


class NeighbourSums:
    """sum_j V_j at every node: one sparse product."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def __call__(self, n: int, V: Array) -> Array:
        """Return the sums over neighbours."""
        flat = V.reshape(len(V), -1)
        if isinstance(flat, np.ndarray):
            return np.asarray((self.topology.adjacency @ flat).reshape(V.shape))
        summed: Array = (on(self.topology.adjacency.toarray(), flat) @ flat).reshape(V.shape)
        return summed


def no_checkpoint(point: str) -> None:
    """Do nothing at a point of a round."""


class LocalWork(Protocol):
    """What a node computes from its rows in a round."""

    f: Array

    def local_step(self, n: int, state: Any, linear: Array | None, phi: Array) -> Array:
        """Return what round n is to release, before noise: P x K numbers of the round's width."""


class Releaser:
    """Makes and enters one release after the other.

    Parameters
    ----------
    releases
        Their public numbers.
    solver
        The local work.
    draws
        Where noise comes from.
    journal
        Where messages are entered before they are sent; what it holds is not made again.
    linear
        A further linear term of round n for every local problem, P x K x d.
    checkpoint
        Called with ``computed`` before a message is entered, and ``spent`` after: where a test may
        pull the plug.
    masks
        Of sealed sums; None in sweeps, where the sum itself is made.

    Attributes
    ----------
    entry
        Under which number the last message was entered: its round, or past all rounds.
    """

    def __init__(
        self,
        releases: ReleasePlan,
        solver: LocalWork,
        draws: Draws,
        journal: Journal | None = None,
        linear: Callable[[int], Array] | None = None,
        checkpoint: Callable[[str], None] = no_checkpoint,
        masks: Masks | None = None,
    ) -> None:
        self.releases, self.solver, self.draws, self.masks = releases, solver, draws, masks
        self.journal, self.linear, self.checkpoint = journal, linear, checkpoint
        self.entry = 0
        self.seeded = releases.private and draws.seeded
        if journal:
            if not releases.private or releases.public.eta.size > 1:
                raise DeclarationError(
                    "ledgers are for one private run: give a mechanism, and one replica"
                )
            journal.reserve(releases.events(seeded=self.seeded))

    def send(self, n: int, state: Any, attempt: int = 0) -> tuple[Array, Array]:
        """Return the certified minimiser g of round n and the message V made of it, P x K x d.

        Of a round that was entered before, both are the message. Of a sealed sum the message is
        each node's letter, and a further attempt takes a spare release.
        """
        nodes, public = self.releases.nodes, self.releases.public
        entry, noise = self.releases.attempt(n, self._spare(attempt))
        self.entry = entry
        if self.journal and (stored := self.journal.sent(entry)) is not None:
            V = self._stacked(stored, noise)
            return V, V
        linear = noise.linear(public, self.draws, nodes, n)
        if self.linear is not None:
            linear = self.linear(n) if linear is None else linear + self.linear(n)
        if linear is not None:
            linear = on(linear, self.solver.f)
        try:
            g = self.solver.local_step(n, state, linear, on(noise.phi, self.solver.f))
        except NotCertified as error:
            if not self.journal:
                raise
            # drawing again would let the certificate choose the noise
            self.journal.fail(n, self.releases.events_of(n, seeded=self.seeded))
            raise NotCertified(
                f"round {n}: {error}. The round is charged and the run is over; begin a new one"
            ) from None
        V = self._protected(noise, g, n, entry)
        if self.journal:
            self.checkpoint("computed")
            if self.releases.mechanism.private_iterate:
                self.journal.keep(n, self._by_node(g))
            events = self.releases.events_of(entry, seeded=self.seeded)
            V = self._stacked(self.journal.spend(entry, events, self._by_node(V)), noise)
            self.checkpoint("spent")
        return g, V

    def pass_over(self, n: int, attempt: int = 0) -> None:
        """Take the number of an attempt that this node has no part in, and release nothing."""
        self.entry, _ = self.releases.attempt(n, self._spare(attempt))

    def _spare(self, attempt: int) -> int:
        """Which spare release a further attempt takes; 0 for the first."""
        if not attempt or self.masks is None:
            return 0
        self.masks.spares += 1
        return self.masks.spares

    def _protected(self, noise: RoundNoise, g: Array, n: int, entry: int) -> Any:
        """V of g; of a sealed sum every node's letter, or in sweeps the sum itself."""
        nodes, draws = self.releases.nodes, self.draws
        if not is_sealed(noise):
            return noise.release(g, draws, nodes, entry)
        if self.masks is None:
            return noise.summed(g, draws, entry).view(np.uint64)
        k = noise.sealable(g, draws, nodes, entry)
        # replicas, where there are several, take one part of each stream after the other
        return self.masks.sealed(k.reshape(len(k), -1), nodes, n, entry).reshape(k.shape)

    def own(self, n: int, g: Array, V: Array) -> Array | None:
        """Return what stands for V_p in W_p after round n; None for V_p itself.

        2 g - V where the mechanism augments with the private iterate, except after the last round:
        what follows that is made of messages.
        """
        if not self.releases.mechanism.private_iterate or n >= self.releases.rounds:
            return None
        if self.journal and g is V:  # entered before: the vector was kept, if it is needed
            kept = self.journal.kept(n)
            if kept is None and self.journal.sent(n + 1) is None:
                raise DeclarationError(
                    f"the private vector of round {n} is gone, which augment = 'iterate' needs to "
                    "go on; begin a new run"
                )
            g = V if kept is None else self._stacked(kept)
        return 2 * g - V

    def _by_node(self, V: Array) -> dict[str, Array]:
        V = V.view(np.float64) if V.dtype == np.uint64 else host(V)  # the same 64 bits
        return dict(zip(self.releases.nodes, V[:, 0], strict=True))

    def _stacked(self, messages: dict[str, Array], noise: RoundNoise | None = None) -> Any:
        V = np.array([messages[node] for node in self.releases.nodes])[:, None]
        return V.view(np.uint64) if noise and is_sealed(noise) else on(V, self.solver.f)


class Rounds:
    """The rounds of some nodes, one after the other, whatever carries their messages.

    Parameters
    ----------
    releaser
        Makes what is released; its solver holds V(0).
    neighbours
        sum_j V_j(0) over each node's neighbours, P x K x d.
    sums
        Whether to add up the neighbours' messages of the last half of the rounds too.

    Attributes
    ----------
    n, V
        The last round and its message.
    state
        Where the nodes stand; it may hold a private vector.
    tail, neighbour_tail
        Sums over the last half of the rounds, of own messages and of neighbours' sums.
    tailed
        How many rounds are in them.
    stopped
        Whether a stopping rule ended the run.
    """

    def __init__(self, releaser: Releaser, neighbours: Array, *, sums: bool = False) -> None:
        assert isinstance(releaser.solver, LocalSolver)
        self.releaser, self.solver = releaser, releaser.solver
        self.total = releaser.releases.rounds
        self.n, self.V, self.stopped = 0, self.solver.f, False
        self.state = admm.begin(self.V, neighbours, self.solver.degrees)
        self._public = self.state  # as messages alone give it
        self._g = self.V
        self.tail = namespace(self.V).zeros_like(self.V)
        self.tailed = 0
        self.neighbour_tail = namespace(self.V).zeros_like(self.V) if sums else None

    @property
    def points(self) -> Array:
        """Where each node stands: its last message."""
        return self.V

    @property
    def certificate(self) -> Certificate | None:
        """Against the pooled optimum, where one was asked for."""
        return self.solver.certificate

    @property
    def over(self) -> bool:
        """Whether no round is left."""
        return self.stopped or self.n == self.total

    def release(self) -> Array:
        """Begin the next round: return its message V, entered where there is a journal."""
        self.n += 1
        self._g, self.V = self.releaser.send(self.n, self.state)
        return self.V

    def skip_to(self, n: int) -> None:
        """Go on with round n: a node that was away releases nothing for rounds that it missed."""
        self.n = n - 1

    def receive(self, neighbours: Array, dropped: Array | None = None) -> RoundProgress:
        """End the round with what the exchange brought: sum_j V_j at each node.

        Parameters
        ----------
        neighbours
            The sums; with echoes for edges that are off (maths.md 16).
        dropped
            Duals of edges that end, taken out of lam first.
        """
        solver, n, V, before = self.solver, self.n, self.V, self.state
        if dropped is not None:
            before = replace(before, lam=before.lam - dropped)
            self._public = before
        own = self.releaser.own(n, self._g, V)
        update = partial(admm.receive, degrees=solver.degrees, eta=solver.eta)
        after = update(before, V, neighbours, relaxation=solver.relaxation, pull=own)
        if n > self.total // 2:
            self.tail += V
            self.tailed += 1
            if self.neighbour_tail is not None:
                self.neighbour_tail += neighbours
        public = after if own is None else update(self._public, V, neighbours)
        progress = RoundProgress.of(
            n, self.total, V, neighbours, self._public, public, solver.degrees, solver.eta
        )
        self._public = public
        residuals = partial(Residuals.of, V, neighbours, before, after, solver.degrees, solver.eta)
        self.state = solver.next_state(before, after, self._g)
        self._after = after
        self.stopped = solver.done(n, V, residuals)
        return progress

    def finish(self) -> admm.State:
        """After the last round: certify, make the final release where there is one.

        Returns the state after the last round.
        """
        if not self.stopped:
            self.solver.finish(self.V)
        if self.releaser.releases.final:
            self.V = self.releaser.send(self.total + 1, self.state)[1]
        return self._after

    def mean(self) -> Array:
        """Return the mean of own messages over the last half of the rounds."""
        return self.V if self.stopped else self.tail / max(self.tailed, 1)


def public_states(
    messages: Sequence[Array], exchange: Exchange, degrees: Array, eta: Array
) -> Iterator[admm.State]:
    """Yield the state before each round, as whoever hears all messages can compute it."""
    start = np.zeros_like(messages[0])
    state = admm.begin(start, start, degrees)
    for n, V in enumerate(messages, 1):
        yield state
        state = admm.receive(state, V, exchange(n, V), degrees, eta)
