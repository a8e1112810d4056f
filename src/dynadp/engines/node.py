"""One node's part in a run, whatever carries its letters: publish my message of round n; give me my
neighbours'.

:func:`node_rounds` is a generator that knows no sockets: it publishes through a function and yields
a :class:`Awaiting` whenever it needs letters of others. An engine resumes it when the node's post
office holds them, or throws a :class:`~dynadp.errors.NodeLost` in when it has waited long enough: a
run that goes on without those who are away takes it, any other ends with it. A node that is started
again takes the same path from its entered messages and its letters, and sends the same bytes.

The order of a round: compute, spend (durably), keep, publish, wait, receive. A crash between any
two of them leaves a node that sends identical bytes, never draws twice for a round, and never
spends less than it sent.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import (
    Absence,
    Journal,
    LocalSolver,
    MaskGraph,
    Masks,
    PairKeys,
    Releaser,
    RoundProgress,
    Rounds,
    RunKey,
    Spread,
    SumRounds,
    SumSolver,
    Topology,
    draw_secret,
    no_checkpoint,
    require_own_messages,
)
from dynadp.data import NodeRows, Schema
from dynadp.engines.edge_book import EdgeBook
from dynadp.engines.exchange import (
    Awaiting,
    Letters,
    NeighbourLetters,
    NodeExchange,
    Publish,
    SealedLetters,
    SumLetters,
)
from dynadp.engines.going_on import admm_going_on
from dynadp.engines.inbox import AcceptanceRules, Grid, Inbox
from dynadp.engines.letters import Kind, Verifier
from dynadp.engines.member_sums import (
    MemberSealedSums,
    MemberSums,
    ballots_of,
    least_of,
    members_of,
    rows_of,
    swap_members,
    swap_sealed,
)
from dynadp.engines.membership import Membership, Overtaken
from dynadp.engines.notes import NoteRules
from dynadp.engines.sealing import CentringAttempts, forgetting, purpose_of
from dynadp.errors import RecordError, SumSpoiled
from dynadp.mechanisms import (
    Draws,
    NoisyHistogram,
    centre_of,
    centred,
    centring_grid,
    private_centre,
)
from dynadp.planning import Plan, spread_of
from dynadp.problem import integer_rows_of, local_problem, public_storage

Checkpoint = Callable[[str], None]


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
    absence
        What happens when nodes stay away.
    """

    me: str
    schema: Schema = field(repr=False)
    plan: Plan
    absence: Absence = field(default_factory=Absence)

    def __post_init__(self) -> None:
        if self.absence.goes_on and self.plan.algorithm == "admm":
            require_own_messages(self.plan.mechanism)

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
        neighbours, ballots = frozenset(self.neighbours), ballots_of(self.plan, self.absence)
        rules = AcceptanceRules(self.me, neighbours, run, config, keys, self.rounds, self.grids())
        if ballots is not None:
            return replace(rules, longest_note=ballots.longest_note, ballots=ballots)
        if not self.edges_may_end:
            return rules
        nodes, near = self.topology.nodes, self.topology.neighbours
        every = {name: frozenset(nodes[j] for j in near(p)) for p, name in enumerate(nodes)}
        notes = NoteRules(every, self.rounds)
        return replace(rules, longest_note=notes.longest, note_rules=notes)

    @property
    def edges_may_end(self) -> bool:
        """Whether the run goes on without neighbours that stay away."""
        return self.absence.goes_on and self.plan.algorithm == "admm" and bool(self.neighbours)

    def grids(self) -> dict[tuple[str, Kind, int], Grid]:
        """Return where every vector that may be sent to this node lies."""
        found = self._sum_grids() if self.plan.algorithm == "sum" else self._message_grids()
        if self.plan.centrings and not self.plan.sealing:
            those = list(self.plan.senders)
            counts, losses = np.array(self.plan.bound.counts, float), np.array(self.plan.centrings)
            noise = self.plan.mechanism.noise
            steps, radii = centring_grid(self.schema, counts[those], losses[those], noise)
            features = self.schema.feature_count
            for p, step, radius in zip(those, steps, radii, strict=True):
                node = self.topology.nodes[p]
                found[node, "message", 0] = Grid(features, float(step), float(radius))
        return found

    def _message_grids(self) -> dict[tuple[str, Kind, int], Grid]:
        """Messages of neighbours, and all nodes' means."""
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
        return found

    def _sum_grids(self) -> dict[tuple[str, Kind, int], Grid]:
        """Sums of all nodes that send; of sealed ones any 64 bits, and all nodes' keys."""
        releases = self.plan.release_plan
        if self.plan.sealing:
            return self._sealed_grids()
        return {
            (node, "sum", n): Grid(
                releases.width(n), float(noise.step[p, 0]), float(noise.radius[p, 0])
            )
            for n, noise in enumerate(releases.noises, 1)
            for p, node in enumerate(releases.nodes)
        }

    def _sealed_grids(self) -> dict[tuple[str, Kind, int], Grid]:
        releases, found = self.plan.release_plan, dict[tuple[str, Kind, int], Grid]()
        rounds, features = len(releases.noises), self.schema.feature_count
        widths = {n: releases.width(n) for n in range(1, rounds + 1)}
        if self.plan.centrings:
            widths[0] = features
        every = tuple({*widths.values()})
        for node in releases.nodes:
            found[node, "key", 0] = Grid(4, 0.0, inf)
            for n, width in widths.items():
                found[node, "sealed", n] = Grid(width, 0.0, inf)
            for spare in range(1, len(releases.spares) + 1):
                found[node, "sealed", rounds + spare] = Grid(every[0], 0.0, inf, every)
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
    members
        The nodes whose messages it is made of; empty for all.
    spread
        How far noise may have moved it; None where that is not known.
    histogram
        What the last round released of its scores; None without such a round.
    """

    schema: Schema = field(repr=False)
    vector: Array = field(repr=False)
    members: tuple[str, ...] = ()
    spread: Spread | None = field(default=None, repr=False)
    histogram: NoisyHistogram | None = field(default=None, repr=False)


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
    on_again: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint = no_checkpoint,
    storage: Any = "auto",
) -> Generator[Awaiting, None, NodeResult]:
    """Algorithms 2 and 3, or "sum", at one node: yields the letters that it waits for, returns its
    model.

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
    on_again
        Called where all rounds begin anew from their letters: others held a sum without this node.
    checkpoint
        Called at the points of a round, by name.
    storage
        ``auto``, ``dense`` or ``csr``.
    """
    me, plan = run.me, run.plan
    letters = Letters(inbox, publish, checkpoint)
    prepared = NodeRows.of(run.schema, rows, me)
    prepared.require_same(journal.seal(me))
    if plan.release_plan.weighed:
        prepared.require_people()
    masks = (yield from _masks(run, letters, journal, draws)) if plan.sealing else None
    with forgetting(masks, journal):
        while True:
            members = members_of(plan, run.absence, letters, journal, masks)
            given = draws, on_round, storage, exchange, masks, members
            try:
                learnt = yield from _learnt(run, prepared, letters, journal, *given)
                break
            except Overtaken:
                if masks:
                    masks.begin_again(run.topology.nodes)
                on_again()
    if members is not None and len(members.summed) < len(run.topology.nodes):
        learnt = replace(learnt, members=members.summed)
    journal.close("finished")
    checkpoint("closed")
    return learnt


def _learnt(
    run: NodeRun,
    prepared: NodeRows,
    letters: Letters,
    journal: Journal,
    draws: Draws,
    on_round: Callable[[RoundProgress], None],
    storage: Any,
    exchange: NodeExchange | None,
    masks: Masks | None,
    members: Membership | None,
) -> Generator[Awaiting, None, NodeResult]:
    """All rounds: returns the schema with its centre, the model, whose messages it is made of,
    nobody for all, how far noise may have moved it, and the histogram of its scores.
    """
    plan, p, checkpoint = run.plan, run.index, letters.checkpoint
    if masks:
        schema = yield from _sealed_centre(run, prepared, letters, journal, draws, masks, members)
    else:
        schema = yield from _centred(run, prepared, letters, journal, draws, members)
    # noise is for B_p rows: another number would break it
    held = prepared.shard(schema, rows=int(plan.bound.counts[p]))
    if plan.unit.added:
        storage = public_storage(storage, held.rows, held.dimension)
    rounds: Rounds | SumRounds
    if plan.algorithm == "sum":
        rounds = _sum_rounds(run, held, journal, draws, checkpoint, storage, masks)
    else:
        rounds = _admm_rounds(run, held, journal, draws, checkpoint, storage)
    if run.edges_may_end and exchange is None:
        assert isinstance(rounds, Rounds)
        least = least_of(plan, run.absence)
        book = EdgeBook(run.topology, run.me, plan.rounds, least, letters, journal)
        vector, left = yield from admm_going_on(book, rounds, plan.output, on_round)
        return NodeResult(schema, np.asarray(vector), left)
    learn = exchange or _exchange(run, letters, rounds, members)
    while not rounds.over:
        V = yield from _released(rounds, members, again=False)
        while True:
            try:
                learnt = yield from learn(rounds.n, V)
                break
            except SumSpoiled:
                V = yield from _released(rounds, members, again=True)
        progress = rounds.receive(learnt)
        sent = np.empty((0, 1, 0)) if V is None else V
        on_round(progress.with_messages(sent, rounds.points))
    rounds.finish()
    own = rounds.mean()[0, 0]
    if plan.output == "last":
        vector = rounds.V[0, 0]
    elif plan.output == "tail" or plan.algorithm == "sum":
        vector = own
    elif plan.output == "neighbours":
        assert rounds.neighbour_tail is not None
        half = plan.rounds - plan.rounds // 2
        degree = float(run.topology.degrees[p])
        vector = (own + (rounds.neighbour_tail / half)[0, 0]) / (1 + degree)
    else:
        means = yield from letters.swap("mean", plan.rounds, own, run.topology.nodes)
        vector = np.array(list(means.values())).mean(axis=0)
    if isinstance(rounds, SumRounds):
        spread = spread_of(plan, rounds.path, node=p)
        return NodeResult(schema, np.asarray(vector), (), spread, rounds.histogram())
    spread = None if exchange else spread_of(plan, node=p)
    return NodeResult(schema, np.asarray(vector), (), spread)


def _released(
    rounds: Rounds | SumRounds, members: Membership | None, *, again: bool
) -> Generator[Awaiting, None, Any]:
    """Begin the next round, or the next attempt at it; return the node's message, None where it has
    no part in the sum.
    """
    if isinstance(rounds, Rounds):
        return rounds.release()
    if members is not None and not (yield from members.sends(rounds.entry(again=again))):
        return rounds.pass_over(again=again)
    return rounds.release_again() if again else rounds.release()


def _centred(
    run: NodeRun,
    rows: NodeRows,
    letters: Letters,
    journal: Journal,
    draws: Draws,
    members: Membership | None,
) -> Generator[Awaiting, None, Schema]:
    """The centring round: returns the schema with its centre, or as it is without such a round."""
    me, plan, schema = run.me, run.plan, run.schema
    if not plan.centrings:
        return schema
    those, noise = plan.senders, plan.mechanism.noise
    names = [run.topology.nodes[p] for p in those]
    sends = me in names and (members is None or (yield from members.sends(0)))
    sent = journal.sent(0) if sends else {}
    if sent is None:
        own = [plan.centrings[run.index]]
        made = private_centre(schema, [rows.sums], [me], own, draws, noise, plan.unit)
        letters.checkpoint("computed")
        sent = journal.spend(0, made.events, {me: made.messages[0]})
        letters.checkpoint("spent")
    if members is None:
        messages = yield from letters.swap("message", 0, sent.get(me), names)
    else:
        messages = yield from swap_members(members, "message", 0, sent.get(me))
    names = [name for name in names if name in messages]
    those = tuple(run.topology.nodes.index(name) for name in names)
    losses, counts = ([of[p] for p in those] for of in (plan.centrings, plan.bound.counts))
    released = np.array([messages[name] for name in names])
    centring = centre_of(schema, counts, released, names, losses, noise, seeded=draws.seeded)
    return centring.applied(schema)


def _masks(
    run: NodeRun, letters: Letters, journal: Journal, draws: Draws
) -> Generator[Awaiting, None, Masks]:
    """Make this node's key for the run, or take it up again, and learn the others'."""
    me, nodes = run.me, run.topology.nodes
    assert run.plan.sealing is not None
    graph, seeded = MaskGraph(nodes, run.plan.sealing), draws.seeded
    if journal.over:  # all letters are made, and keys are forgotten
        return Masks(graph, PairKeys({}, {}, "", ""), seeded=seeded)
    key = RunKey(me, journal.secret(me, lambda: draw_secret(me, draws)))
    sent = letters.inbox.get(me, "key", 0)
    if sent is not None and letters.inbox.values(me, "key", 0).tobytes() != key.public_bytes:
        raise RecordError(
            f"node {me!r} announced another key for this run than the one beside its ledger: its "
            "letters could not be added. Restore that file, or begin a new run"
        )
    publics = yield from letters.swap_keys(key.public_bytes, nodes)
    pairs = PairKeys({me: key}, publics, *purpose_of(run.plan, journal))
    return Masks(graph, pairs, seeded=seeded)


def _sealed_centre(
    run: NodeRun,
    rows: NodeRows,
    letters: Letters,
    journal: Journal,
    draws: Draws,
    masks: Masks,
    members: Membership | None,
) -> Generator[Awaiting, None, Schema]:
    """The sealed centring round: returns the schema with its centre, or as it is without one."""
    me, plan, schema, nodes = run.me, run.plan, run.schema, run.topology.nodes
    if not plan.centrings:
        return schema
    attempts = CentringAttempts(plan, schema, masks, [run.index], seeded=draws.seeded)
    while True:
        sends = members is None or (yield from members.sends(attempts.entry))
        sent = journal.sent(attempts.entry) if sends else {}
        if sent is None:
            made = attempts.letters(np.array([rows.sums.total]), draws)
            letters.checkpoint("computed")
            sent = journal.spend(attempts.entry, attempts.events, made)
            letters.checkpoint("spent")
        own = sent[me].view(np.uint64) if sent else None
        if members is None:
            words = yield from letters.swap_sealed(attempts.entry, own, nodes)
        else:
            away, words = yield from swap_sealed(members, attempts.entry, 0, own)
            masks.among(members.members)
            if away:
                attempts.again()
                continue
        centre = attempts.centre(words, rows_of(plan, members.summed if members else nodes))
        if centre is not None:
            return centred(schema, centre)


def _exchange(
    run: NodeRun, letters: Letters, rounds: Rounds | SumRounds, members: Membership | None
) -> NodeExchange:
    """The sum of neighbours' plain letters, or of all nodes'."""
    steps, plan = run.plan.steps, run.plan
    if steps is None:
        return NeighbourLetters(letters, run.neighbours)
    if members is not None:
        assert isinstance(rounds, SumRounds)
        if plan.sealing:
            return MemberSealedSums(plan, members, rounds)
        return MemberSums(plan, members, rounds)
    if plan.sealing:
        assert rounds.releaser is not None
        return SealedLetters(letters, run.topology.nodes, rounds.releaser)
    names = [run.topology.nodes[p] for p in plan.senders]
    return SumLetters(letters, names, [steps.node_weights[p] for p in plan.senders])


def _admm_rounds(
    run: NodeRun, held: Any, journal: Journal, draws: Draws, checkpoint: Checkpoint, storage: Any
) -> Rounds:
    p, s = run.index, run.plan.settings
    releases = run.plan.release_plan.some(slice(p, p + 1))
    problem = local_problem(
        [held],
        s.loss,
        s.regularizer,
        releases.public.C,
        s.rho,
        storage=storage,
        class_weights=s.class_weights,
    )
    V, bound = np.zeros((1, 1, problem.dimension)), releases.public.gamma
    degrees = run.topology.degrees[p : p + 1]
    solver = LocalSolver(problem, degrees, s.eta_of(), bound, V, releases.aim, private=True)
    releaser = Releaser(releases, solver, draws, journal, checkpoint=checkpoint)
    return Rounds(releaser, V, sums=run.plan.output == "neighbours")


def _sum_rounds(
    run: NodeRun,
    held: Any,
    journal: Journal,
    draws: Draws,
    checkpoint: Checkpoint,
    storage: Any,
    masks: Masks | None,
) -> SumRounds:
    plan, d = run.plan, run.plan.bound.vectors * run.schema.dimension
    start = np.zeros((1, d))
    assert plan.steps is not None
    whole, releaser = plan.release_plan, None
    if run.me in whole.nodes:
        p = whole.nodes.index(run.me)
        releases = whole.some(slice(p, p + 1))
        made = releases.resolution, plan.settings.loss
        rows = integer_rows_of(
            [held],
            *made,
            storage=storage,
            weighed=releases.weighed,
            class_weights=plan.settings.class_weights,
            overwrite=True,  # nobody else has them
        )
        solver = SumSolver(rows, releases.noises, start[None])
        releaser = Releaser(releases, solver, draws, journal, checkpoint=checkpoint, masks=masks)
    weight = plan.settings.row_weight
    return SumRounds(releaser, whole.noises, plan.steps, start, plan.rows, 1, weight)
