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
from typing import Any, NamedTuple

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    Journal,
    LocalSolver,
    Output,
    ReleasePlan,
    Releaser,
    Topology,
    admm,
    no_checkpoint,
)
from dynadp.data import NodeRows, Schema
from dynadp.engines.inbox import Grid, Inbox
from dynadp.engines.letters import Kind
from dynadp.engines.progress import RoundProgress
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, Mechanism, centre_of, centring_grid, private_centre
from dynadp.problem import Loss, Regularizer, Terms, Weights, local_problem, shares

Publish = Callable[[bytes, Kind, int], None]


class Awaiting(NamedTuple):
    """Letters that a node waits for."""

    kind: Kind
    round: int
    authors: tuple[str, ...]


@dataclass(frozen=True)
class NodeRun:
    """What is public about a run, seen from one node.

    Attributes
    ----------
    me, topology, schema
        Its name; the network; the declarations for its rows, without a centre yet where there is a
        centring round.
    counts
        B_p of every node, in the topology's order.
    mechanism, loss, regularizer, C, weights, rho, eta
        As for :func:`~dynadp.engines.simulation.simulate`.
    alpha
        alpha_p(n), P x T.
    centrings
        alpha of the centring round of each node; empty where there is none.
    output
        Which mean of released vectors becomes the model.
    """

    me: str
    topology: Topology = field(repr=False)
    schema: Schema = field(repr=False)
    counts: Array = field(repr=False)
    mechanism: Mechanism
    loss: Loss
    regularizer: Regularizer
    C: float
    weights: Weights
    rho: float
    eta: float
    alpha: Array = field(repr=False)
    centrings: tuple[float, ...] = field(repr=False)
    output: Output

    def __post_init__(self) -> None:
        if self.mechanism.own == "paper":
            raise DeclarationError(
                "own = 'paper' needs a private vector that no crash may lose; networks run own = "
                "'public'"
            )

    @property
    def rounds(self) -> int:
        """T."""
        return int(self.alpha.shape[-1])

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

    @cached_property
    def releases(self) -> ReleasePlan:
        """The public numbers of all nodes' releases."""
        C = shares(self.C, self.counts, self.weights)
        terms = Terms(self.counts, self.schema.dimension, self.loss, self.regularizer, C, self.rho)
        start = np.zeros((len(self.counts), 1, self.schema.dimension))
        return ReleasePlan.plan(
            terms, self.topology, np.array([self.eta]), self.mechanism, self.alpha[:, None], start
        )

    def grids(self) -> dict[tuple[str, Kind, int], Grid]:
        """Where every vector that may be sent to this node lies."""
        found: dict[tuple[str, Kind, int], Grid] = {}
        d, heard = self.schema.dimension, {self.me, *self.neighbours}
        for p, node in enumerate(self.topology.nodes):
            if node in heard:
                for n, release in enumerate(self.releases.calibrations, 1):
                    found[node, "message", n] = Grid(
                        d, float(release.step[p, 0]), float(release.radius[p, 0])
                    )
            if self.output == "network":
                radius = max(
                    float(r.radius[p, 0] + r.step[p, 0] * np.sqrt(d))
                    for r in self.releases.calibrations
                )
                found[node, "mean", self.rounds] = Grid(d, 0.0, radius)
        if self.centrings:
            _, steps, radii = centring_grid(self.schema, self.counts, np.array(self.centrings))
            features = self.schema.feature_count
            for node, step, radius in zip(self.topology.nodes, steps, radii, strict=True):
                found[node, "message", 0] = Grid(features, float(step), float(radius))
        return found


@dataclass(frozen=True)
class NodeResult:
    """What a node takes home.

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
    part: NodeRun,
    rows: Any,
    post: Inbox,
    publish: Publish,
    outbox: Journal,
    draws: Draws,
    *,
    note: Callable[[RoundProgress], None] = lambda entry: None,
    at: Callable[[str], None] = no_checkpoint,
    storage: Any = "auto",
) -> Generator[Awaiting, None, NodeResult]:
    """Algorithms 2 and 3 at one node: yields what it waits for, returns what it takes home.

    Parameters
    ----------
    part
        What is public.
    rows
        The node's raw rows: :class:`~dynadp.data.node_rows.NodeRows`, or the data of a
        :func:`~dynadp.data.readers.source`.
    post
        Its letters.
    publish
        Sends a letter of a kind and round to the neighbours, or tries to.
    outbox
        Where messages are entered before they leave; the whole plan is reserved there already.
    draws
        Where noise comes from.
    note
        Called after every round.
    at
        Called at the points of a round, by name.
    storage
        ``auto``, ``dense`` or ``csr``.
    """
    me, nodes, p = part.me, part.topology.nodes, part.index

    def exchange(
        kind: Kind, n: int, V: Array, authors: tuple[str, ...]
    ) -> Generator[Awaiting, None, dict[str, Array]]:
        new = bool(post.missing(kind, n, (me,)))
        data = post.letter(kind, n, np.asarray(V, "<f8").tobytes())
        at("kept")
        others = tuple(author for author in authors if author != me)
        missing = post.missing(kind, n, others)
        if (
            new or missing
        ):  # otherwise the node was started again, and whoever still needs the letter asks for it
            publish(data, kind, n)
            at("published")
        if missing:
            yield Awaiting(kind, n, others)
        at("received")
        return {author: V if author == me else post.values(author, kind, n) for author in authors}

    schema = part.schema
    prepared = NodeRows.of(schema, rows, me)
    prepared.require_same(outbox.seal(me))
    if part.centrings:
        sent = outbox.sent(0)
        if sent is None:
            made = private_centre(schema, [prepared.sums], [me], [part.centrings[p]], draws)
            at("computed")
            sent = outbox.spend(0, made.events, {me: made.messages[0]})
            at("spent")
        means = yield from exchange("message", 0, sent[me], nodes)
        told = np.array([means[node] for node in nodes])
        schema = centre_of(
            schema, part.counts, told, nodes, part.centrings, seeded=draws.seeded
        ).applied(schema)

    releases = part.releases.some(slice(p, p + 1))
    degrees, eta = part.topology.degrees[p : p + 1], np.array([part.eta])
    held = prepared.shard(schema, rows=int(part.counts[p]))
    problem = local_problem(
        [held], part.loss, part.regularizer, releases.public.C, part.rho, storage=storage
    )
    V = np.zeros((1, 1, problem.dimension))
    steps = LocalSolver(problem, degrees, eta, releases.public.gamma, V, releases.aim, private=True)
    sender = Releaser(releases, steps, draws, outbox, at=at)
    state = admm.begin(V, V, degrees)
    tail, others = np.zeros_like(V), np.zeros_like(V)
    for n in range(1, part.rounds + 1):
        g, V = sender.send(n, state)
        heard = yield from exchange("message", n, V[0, 0], part.neighbours)
        neighbours = _sum([heard[node] for node in part.neighbours], V)
        after = admm.receive(state, V, neighbours, degrees, eta)
        if n > part.rounds // 2:
            tail, others = tail + V, others + neighbours
        note(RoundProgress.of(n, V, neighbours, state, after, degrees, eta))
        state = steps.next_state(state, after, g)
    half = part.rounds - part.rounds // 2
    own = (tail / half)[0, 0]
    if part.output == "last":
        vector = V[0, 0]
    elif part.output == "tail":
        vector = own
    elif part.output == "neighbours":
        vector = (own + (others / half)[0, 0]) / (1 + float(degrees[0]))
    else:
        means = yield from exchange("mean", part.rounds, own, nodes)
        vector = np.array([means[node] for node in nodes]).mean(axis=0)
    outbox.close("finished")
    at("closed")
    return NodeResult(schema, np.asarray(vector))


def differences(mine: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two configurations differ, field by field."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        keys = sorted({*mine, *theirs}, key=str)
        return [
            line
            for key in keys
            for line in differences(mine.get(key), theirs.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        pairs = enumerate(zip(mine, theirs, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{place}[{i}]")]
    return [] if mine == theirs else [f"{place}: {mine!r} here, {theirs!r} there"]


def _sum(vectors: list[Array], own: Array) -> Array:
    return (
        np.sum(vectors, axis=0)[None, None] if vectors else own
    )  # who is alone is its own neighbour
