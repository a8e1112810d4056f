"""One node's part in a run, whatever carries its letters: publish my message of round n; give me my
neighbours'.

:func:`node_rounds` is a generator that knows no sockets: it publishes through a function and yields
a :class:`Awaiting` whenever it needs letters of others. An engine resumes it when the node's post
office holds them, or never; a node that is started again takes the same path from its entered
messages and its letters, and sends the same bytes.

The order of a round: compute, spend (durably), keep, publish, wait, receive. A crash between any
two of them leaves a node that sends identical bytes, never draws twice for a round, and never
spends less than it sent.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    Journal,
    LocalSolver,
    Releaser,
    RoundProgress,
    Rounds,
    Topology,
    no_checkpoint,
)
from dynadp.data import NodeRows, Schema
from dynadp.engines.exchange import Awaiting, Letters, NeighbourLetters, NodeExchange, Publish
from dynadp.engines.inbox import AcceptanceRules, Grid, Inbox
from dynadp.engines.letters import Kind, Verifier
from dynadp.mechanisms import Draws, centre_of, centring_grid, private_centre
from dynadp.planning import Plan
from dynadp.problem import local_problem


@dataclass(frozen=True)
class NodeRun:
    """What is public about a run, seen from one node.

    Attributes
    ----------
    me, schema
        Its name; the declarations for its rows, without a centre yet where there is a centring
        round.
    plan
        What the run does, bound to its consortium: the network and everybody's number of rows.
    """

    me: str
    schema: Schema = field(repr=False)
    plan: Plan

    @property
    def topology(self) -> Topology:
        """The network."""
        return self.plan.bound.topology

    @property
    def rounds(self) -> int:
        """T."""
        return self.plan.rounds

    @property
    def index(self) -> int:
        """Where the node stands in the topology's order."""
        return self.topology.nodes.index(self.me)

    @cached_property
    def neighbours(self) -> tuple[str, ...]:
        """Those it exchanges messages with, in the topology's order; nobody where it is alone."""
        return tuple(
            self.topology.nodes[j] for j in self.topology.neighbours(self.index) if j != self.index
        )

    def rules(self, run: bytes, config: bytes, keys: Mapping[str, Verifier]) -> AcceptanceRules:
        """Return which letters the node accepts.

        Parameters
        ----------
        run, config
            The 32-byte ids of run and configuration.
        keys
            Public signing key of every node of the run.
        """
        neighbours = frozenset(self.neighbours)
        return AcceptanceRules(self.me, neighbours, run, config, keys, self.rounds, self.grids())

    def grids(self) -> dict[tuple[str, Kind, int], Grid]:
        """Return where every vector that may be sent to this node lies."""
        found: dict[tuple[str, Kind, int], Grid] = {}
        d, near = self.schema.dimension, {self.me, *self.neighbours}
        noises, means = self.plan.release_plan.noises, self.plan.output == "network"
        for p, node in enumerate(self.topology.nodes):
            if not means and node not in near:
                continue
            grids = [Grid(d, float(r.step[p, 0]), float(r.radius[p, 0])) for r in noises]
            if node in near:
                for n, grid in enumerate(grids, 1):
                    found[node, "message", n] = grid
            if means:
                radius = max(grid.radius + grid.step * np.sqrt(d) for grid in grids)
                found[node, "mean", self.rounds] = Grid(d, 0.0, float(radius))
        if self.plan.centrings:
            counts = np.array(self.plan.bound.counts, float)
            _, steps, radii = centring_grid(self.schema, counts, np.array(self.plan.centrings))
            for node, step, radius in zip(self.topology.nodes, steps, radii, strict=True):
                features = self.schema.feature_count
                found[node, "message", 0] = Grid(features, float(step), float(radius))
        return found


@dataclass(frozen=True)
class NodeResult:
    """A node's model.

    Attributes
    ----------
    schema
        With the private centre, where there was a centring round.
    vector
        The model, d numbers.
    """

    schema: Schema = field(repr=False)
    vector: Array = field(repr=False)


def node_rounds(
    run: NodeRun,
    rows: Any,
    inbox: Inbox,
    publish: Publish,
    journal: Journal,
    draws: Draws,
    *,
    exchange: NodeExchange | None = None,
    on_round: Callable[[RoundProgress], None] = lambda progress: None,
    checkpoint: Callable[[str], None] = no_checkpoint,
    storage: Any = "auto",
) -> Generator[Awaiting, None, NodeResult]:
    """Algorithms 2 and 3 at one node: yields the letters that it waits for, returns its model.

    Parameters
    ----------
    run
        What is public.
    rows
        The node's raw rows: :class:`~dynadp.data.node_rows.NodeRows`, or the data of a
        :func:`~dynadp.data.readers.source`.
    inbox
        Its letters.
    publish
        Sends a letter of a kind and round to the neighbours, or tries to.
    journal
        Where messages are entered before they leave; the whole plan is reserved there already.
    draws
        Where noise comes from.
    exchange
        From this node's message to what it learns of the others'; by default the sum of its
        neighbours' plain letters (:class:`~dynadp.engines.exchange.NeighbourLetters`).
    on_round
        Called after every round.
    checkpoint
        Called at the points of a round, by name.
    storage
        ``auto``, ``dense`` or ``csr``.
    """
    me, plan, p = run.me, run.plan, run.index
    nodes, counts = run.topology.nodes, plan.bound.counts
    letters = Letters(inbox, publish, checkpoint)
    learn = exchange or NeighbourLetters(letters, run.neighbours)
    schema = run.schema
    prepared = NodeRows.of(schema, rows, me)
    prepared.require_same(journal.seal(me))
    if plan.centrings:
        sent = journal.sent(0)
        if sent is None:
            made = private_centre(schema, [prepared.sums], [me], [plan.centrings[p]], draws)
            checkpoint("computed")
            sent = journal.spend(0, made.events, {me: made.messages[0]})
            checkpoint("spent")
        means = yield from letters.swap("message", 0, sent[me], nodes)
        released = np.array(list(means.values()))
        schema = centre_of(
            schema, counts, released, nodes, plan.centrings, seeded=draws.seeded
        ).applied(schema)

    releases = plan.release_plan.some(slice(p, p + 1))
    degrees, eta = run.topology.degrees[p : p + 1], plan.settings.eta_of()
    # noise is for C/B_p: another B_p would break it
    held = prepared.shard(schema, rows=int(counts[p]))
    s = plan.settings
    problem = local_problem(
        [held], s.loss, s.regularizer, releases.public.C, s.rho, storage=storage
    )
    V = np.zeros((1, 1, problem.dimension))
    bound = releases.public.gamma
    solver = LocalSolver(problem, degrees, eta, bound, V, releases.aim, private=True)
    releaser = Releaser(releases, solver, draws, journal, checkpoint=checkpoint)
    rounds = Rounds(releaser, V, sums=plan.output == "neighbours")
    while not rounds.over:
        V = rounds.release()
        learnt = yield from learn(rounds.n, V)
        on_round(rounds.receive(learnt).with_messages(V))
    rounds.finish()
    own = rounds.mean()[0, 0]
    if plan.output == "last":
        vector = rounds.V[0, 0]
    elif plan.output == "tail":
        vector = own
    elif plan.output == "neighbours":
        assert rounds.neighbour_tail is not None
        half = plan.rounds - plan.rounds // 2
        vector = (own + (rounds.neighbour_tail / half)[0, 0]) / (1 + float(degrees[0]))
    else:
        means = yield from letters.swap("mean", plan.rounds, own, nodes)
        vector = np.array(list(means.values())).mean(axis=0)
    journal.close("finished")
    checkpoint("closed")
    return NodeResult(schema, np.asarray(vector))
