"""All nodes, and any number of replicas of them, in one process (Algorithm 1; maths.md 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp import _require
from dynadp._arrays import Array, host, to_device
from dynadp._cards import card, curve
from dynadp.consensus import (
    MORE,
    Acceleration,
    Accelerator,
    Away,
    AwaySums,
    Certificate,
    Descent,
    Exchange,
    Journal,
    LocalSolver,
    MaskGraph,
    Masks,
    NeighbourSums,
    Newton,
    Output,
    PairKeys,
    Point,
    ReleasePlan,
    Releaser,
    RoundProgress,
    Rounds,
    SealedSum,
    SumPath,
    SumRounds,
    SumSolver,
    Topology,
    WeighedSum,
    admm,
    draw_secret,
    require_own_messages,
)
from dynadp.data import Shard, StreamedShard, check_shards
from dynadp.engines.absences import RoundsWithAbsences, models_of_those_present
from dynadp.engines.sealing import forgetting, purpose_of
from dynadp.engines.simulated_absence import AbsentSums
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.mechanisms import Draws, NoisyHistogram, RoundNoise, SystemEntropy
from dynadp.planning import Consortium, Plan, start_of
from dynadp.privacy import Event
from dynadp.problem import (
    IntegerRows,
    Problem,
    StackedProblem,
    Storage,
    StreamedIntegerRows,
    Terms,
    answers_of,
    integer_rows_of,
    local_problem,
    people_of,
    public_storage,
)


@dataclass(frozen=True)
class Run:
    """The end of a simulation.

    Attributes
    ----------
    V
        The last message of every node, P x K x d; of algorithm "sum" the common point.
    rounds
        One entry a round.
    state
        (W, lam) after the last round; of algorithm "sum" the common point.
    tail
        Mean of every node's messages, or of the common point, over the last half of the rounds, P x
        K x d.
    topology
        The network.
    alpha
        alpha_p(n) of each replica, P x K x T; NaN without a mechanism.
    releases
        The public numbers of all rounds.
    seeded
        Whether noise came from a seed: then the run protects nobody.
    certificate
        The last one, where a certified target was given.
    stopped
        Whether a stopping rule ended the run, rather than the number of rounds.
    absences
        Who took part in each round, where nodes stayed away; otherwise None.
    path
        Of algorithm "sum": what says how far noise moves the model.
    histograms
        What the last round released of each replica's scores; empty without such a round.
    """

    V: Array = field(repr=False)
    rounds: tuple[RoundProgress, ...] = field(repr=False)
    state: admm.State | Point = field(repr=False)
    tail: Array = field(repr=False)
    topology: Topology = field(repr=False)
    alpha: Array = field(repr=False)
    releases: ReleasePlan = field(repr=False)
    seeded: bool
    certificate: Certificate | None = field(repr=False)
    stopped: bool
    absences: AwaySums | None = field(default=None, repr=False)
    path: SumPath | None = field(default=None, repr=False)
    histograms: tuple[NoisyHistogram, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        facts = {
            "nodes": len(self.topology),
            "rounds": len(self.rounds),
            "replicas": self.V.shape[1],
            "columns": self.V.shape[2],
            "noise": "from a seed: protects nobody" if self.seeded else "from the system",
        }
        moved = [float(np.median(entry.change)) for entry in self.rounds]
        words = "How far messages changed from round to round (median)"
        return card("Run", facts, picture=curve(moved, words))

    def models(self, output: Output = "network") -> Array:
        """What each node takes home, P x K x d, from released vectors only: free post-processing.

        Parameters
        ----------
        output
            ``last``: its last message. ``tail``: the mean of its messages of the last half of the
            rounds. ``neighbours``: the mean of its own and its neighbours' tail means. ``network``:
            the mean of all tail means, forwarded along the graph. Where nodes stayed away, of those
            that finished in the node's part of the graph with at least half of the averaged
            rounds; NaN for nodes that did not finish.
        """
        if self.absences is not None:
            return models_of_those_present(self.absences, self.V, self.tail, output)
        if output == "last":
            return self.V
        if output == "tail":
            return self.tail
        if output in ("neighbours", "network") and isinstance(self.state, Point):
            return self.tail  # the same at all nodes
        if output == "neighbours":
            sums = NeighbourSums(self.topology)(0, self.tail)
            return np.asarray((self.tail + sums) / (1 + self.topology.degrees)[:, None, None])
        if output == "network":
            return np.broadcast_to(self.tail.mean(axis=0), self.tail.shape)
        raise DeclarationError(
            f"unknown output {output!r}; expected last, tail, neighbours or network"
        )

    def events(self, replica: int | None = None) -> tuple[Event, ...]:
        """Everything that was spent, in order: what an accountant needs.

        Parameters
        ----------
        replica
            One of the K alone. By default all of them, one after the other, where noise is real:
            each is a release about the same rows. Of a seeded run, which releases nothing, the
            first: what one network would spend.
        """
        if replica is None:
            given = range(1 if self.seeded else self.V.shape[1])
        elif 0 <= replica < self.V.shape[1]:
            given = range(replica, replica + 1)
        else:
            raise DeclarationError(
                f"replica is {replica!r}; expected a number from 0 to {self.V.shape[1] - 1}"
            )
        spent = (event for k in given for event in self.releases.events(k, seeded=self.seeded))
        return tuple(event for event in spent if self._took_part(event))

    def _took_part(self, event: Event) -> bool:
        """Whether the event's node was there in its round."""
        if self.absences is None or event.round > len(self.absences.present):
            return True
        return bool(self.absences.present[event.round - 1, self.topology.nodes.index(event.node)])

    @property
    def noises(self) -> tuple[RoundNoise, ...]:
        """Public numbers of each round; none without a mechanism."""
        return self.releases.noises if self.releases.private else ()

    @property
    def mean(self) -> Array:
        """Mean over nodes of the last messages, K x d."""
        return np.asarray(self.V.mean(axis=0))

    @property
    def consensus_gap(self) -> Array:
        """max_p || V_p - mean || / || mean ||, per replica."""
        spread = np.linalg.norm(self.V - self.mean, axis=-1).max(axis=0)
        return np.asarray(
            spread / np.maximum(np.linalg.norm(self.mean, axis=-1), np.finfo(float).tiny)
        )


def simulate(
    shards: Sequence[Shard | StreamedShard],
    topology: Topology,
    plan: Plan | None = None,
    *,
    replicas: int = 1,
    gamma: float | None = None,
    start: ArrayLike | None = None,
    draws: Draws | None = None,
    linear: Callable[[int], Array] | None = None,
    acceleration: Acceleration | Newton | None = None,
    storage: Storage = "auto",
    device: str = "cpu",
    journal: Journal | None = None,
    exchange: Exchange | None = None,
    masks: Masks | None = None,
    away: Away | None = None,
    on_round: Callable[[RoundProgress], None] | None = None,
    overwrite: bool = False,
) -> Run:
    """Run Algorithm 1, 2 or 3, or algorithm "sum", over the network.

    Parameters
    ----------
    shards
        One a node, in the topology's order.
    topology
        Who exchanges messages with whom.
    plan
        What is minimised, how messages are protected, and for how many rounds; by default
        ``Plan()``, Algorithm 1, whose messages reveal rows. :meth:`~dynadp.planning.plans.Plan.of`
        makes one from single numbers.
    replicas
        K, how many copies of the network to run at once on one copy of the rows. Without a seed
        each of them is a release, and all are counted (:meth:`Run.events`).
    gamma
        Public bound on every local gradient, part of what noise covers; by default
        :meth:`~dynadp.consensus.releases.ReleasePlan.plan` finds it.
    start
        V(0), public: d numbers, or anything that broadcasts to P x K x d; zero by default.
    draws
        Where noise comes from; by default the operating system's entropy. Seeded draws protect
        nobody.
    linear
        A further linear term of round n for every local problem, P x K x d; for Algorithm 1 only.
    acceleration
        How to speed up and when to stop, for Algorithm 1 only; by default every round solves its
        argmin and all rounds are run. A :class:`~dynadp.consensus.newton.Newton` takes its place by
        sums over all nodes: V is then their common point, and messages are gradients.
    storage
        ``auto``, ``dense`` or ``csr``.
    device
        ``cpu``, or ``cuda`` for rows (dense) and rounds on a GPU.
    journal
        The nodes' ledgers: the whole run is reserved before round 1, and every message is entered
        before it is sent. Rounds that they hold already are taken from there, so that a run that
        was cut short goes on.
    exchange
        From all messages of a round to what each node learns of them; by default the sum of its
        neighbours' (:class:`~dynadp.consensus.round.NeighbourSums`).
    masks
        Of sealed sums, where a centring round began with them. By default they are made here for
        one run. Replicas have none: the summed noise is drawn at once, from the same law.
    away
        Nodes that stay away: for each the first and last round of every absence, None as last for
        good. The others go on as on a network with ``on_absence = "go on"`` (maths.md 16 and 17),
        however few they are.
        A sealed sum takes a spare attempt at the first round of each absence. Without ledgers.
    on_round
        Called after every round with what it left, its messages among it.
    overwrite
        Whether sums may write over the shards' dense rows, which saves a copy of them all. The
        shards are of no use afterwards: they hold NaN.
    """
    plan = plan or Plan()
    dimension = check_shards(shards, topology.nodes)
    _require.whole("replicas", replicas)
    if gamma is not None:
        _require.positive("gamma", gamma)
    if device not in ("cpu", "cuda"):
        raise DeclarationError(f"device is {device!r}; expected 'cpu' or 'cuda'")
    counts, classes = tuple(s.rows for s in shards), shards[0].classes
    bound = plan.on(Consortium(topology, counts, dimension, classes=classes))
    _check_options(bound, device, storage, acceleration, linear)
    if bound.unit.added:
        storage = public_storage(storage, sum(s.rows for s in shards), dimension)
    absences = None
    if away is not None:
        others = (journal, exchange, acceleration)
        if not all(one is None for one in others) or device != "cpu":
            raise DeclarationError(
                "away is for plain rounds on the CPU without ledgers: leave out journal, exchange, "
                "acceleration and device"
            )
        if not bound.steps:
            require_own_messages(bound.mechanism)
            absences = AwaySums(topology, bound.rounds, away)
    setup = _Setup(shards, bound, replicas, storage, device, overwrite)
    V = start_of(start, (len(shards), replicas, bound.bound.vectors * dimension))
    if isinstance(acceleration, Newton):
        more = (journal, exchange, away, linear, gamma, draws, masks)
        if replicas > 1 or not all(one is None for one in more):
            raise DeclarationError(
                "Newton is for one run by sums without noise: leave out replicas, gamma, draws, "
                "linear, journal, exchange, masks and away"
            )
        return setup.newton_run(acceleration, V, on_round)
    noise = draws or SystemEntropy()
    rounds: Rounds | SumRounds
    if bound.steps:
        if bound.mechanism.exchange == "sealed" and replicas == 1:
            masks = masks or run_masks(bound, noise, journal)
        rounds = setup.sum_rounds(V, noise, journal, masks)
        if away:
            exchange = AbsentSums(bound, rounds, away)
        exchange = exchange or setup.sums(rounds)
    else:
        exchange = exchange or NeighbourSums(topology)
        default = plan.settings.eta is None
        rounds = setup.admm_rounds(
            V, noise, journal, exchange, gamma, linear, acceleration, default_eta=default
        )
    releaser, log = rounds.releaser, list[RoundProgress]()
    assert releaser is not None
    there = None if absences is None else RoundsWithAbsences(absences, rounds)
    with forgetting(masks, journal):
        while not rounds.over:
            if there is not None:
                sent = there.round(log)
            else:
                sent, learnt = _exchanged(rounds, exchange)
                log.append(rounds.receive(learnt))
            if on_round:
                on_round(log[-1].with_messages(sent, rounds.points))
        after = rounds.finish()
    if journal:
        journal.close("finished")
    return Run(
        V=host(rounds.V),
        rounds=tuple(log),
        state=after if isinstance(after, Point) else admm.State(host(after.W), host(after.lam)),
        tail=host(rounds.mean()) if there is None else there.tail,
        topology=topology,
        alpha=bound.table(replicas),
        releases=releaser.releases,
        seeded=releaser.seeded,
        certificate=rounds.certificate,
        stopped=rounds.stopped,
        absences=absences,
        path=rounds.path if isinstance(rounds, SumRounds) else None,
        histograms=histograms_of(rounds, replicas),
    )


def histograms_of(rounds: Rounds | SumRounds, replicas: int = 1) -> tuple[NoisyHistogram, ...]:
    """Return what the last round released of each replica's scores; empty without such a round."""
    if not isinstance(rounds, SumRounds):
        return ()
    found = (rounds.histogram(k) for k in range(replicas))
    return tuple(one for one in found if one is not None)


def _exchanged(rounds: Rounds | SumRounds, exchange: Exchange) -> tuple[Array, Array]:
    """Release a round's messages and learn from them, in as many attempts as a sealed sum takes."""
    sent = rounds.release()
    while True:
        assert sent is not None
        try:
            return sent, exchange(rounds.n, sent)
        except SumSpoiled:
            assert isinstance(rounds, SumRounds)
            sent = rounds.release_again()


def run_masks(plan: Plan, draws: Draws, journal: Journal | None = None) -> Masks:
    """Make the masks of a run in one process, with keys that are kept beside the ledgers until the
    run ends.
    """
    nodes, sealing = plan.bound.nodes, plan.sealing
    assert sealing is not None
    if journal and journal.over:  # all letters are made, and keys are forgotten
        return Masks(MaskGraph(nodes, sealing), PairKeys({}, {}, "", ""), seeded=draws.seeded)
    kept = (
        {p: journal.secret(p, partial(draw_secret, p, draws)) for p in nodes} if journal else None
    )
    return Masks.in_process(nodes, sealing, draws, *purpose_of(plan, journal), kept)


def _check_options(
    plan: Plan, device: str, storage: str, acceleration: Acceleration | Newton | None, linear: Any
) -> None:
    """Refuse what does not go together."""
    if device == "cuda" and (acceleration is not None or storage == "csr"):
        raise DeclarationError(
            "on a GPU rows are dense and rounds are plain: leave out acceleration and storage = "
            "'csr'"
        )
    if linear is not None and plan.protection is not None:
        raise DeclarationError(
            "linear is for Algorithm 1 only: no gamma of a private run covers it"
        )
    if acceleration is not None and plan.protection is not None:
        raise DeclarationError(
            "acceleration is for Algorithm 1 only: it would change what a private run releases"
        )


@dataclass(frozen=True)
class _Setup:
    """What the rounds of a simulation are made of."""

    shards: Sequence[Shard | StreamedShard]
    plan: Plan
    replicas: int
    storage: Storage
    device: str
    overwrite: bool

    def problem_of(self, t: Terms) -> Problem:
        """The nodes' local problems, of rows in memory or streamed."""
        return local_problem(
            self.shards,
            *(t.loss, t.regularizer, t.C, t.rho),
            replicas=self.replicas,
            storage=self.storage,
            class_weights=self.plan.settings.class_weights,
        )

    def newton_run(
        self, newton: Newton, V: Array, on_round: Callable[[RoundProgress], None] | None
    ) -> Run:
        """The pooled optimum by sums without noise."""
        plan, topology, log = self.plan, self.plan.bound.topology, list[RoundProgress]()
        start = V[:1]
        if not (start == V).all():
            raise DeclarationError("start differs from node to node; Newton begins at one point")

        def heard(entry: RoundProgress) -> None:
            log.append(replace(entry, messages=_NONE, points=_NONE))
            if on_round:
                on_round(entry)

        terms = plan.terms()
        problem = self.problem_of(terms)
        descent = Descent(newton, problem, start, plan.rounds, heard)
        z = descent.point[0]
        everywhere = np.broadcast_to(z, V.shape)
        alpha, eta = plan.table(1), plan.settings.eta_of(1)
        return Run(
            V=everywhere,
            rounds=tuple(log),
            state=Point(z, np.zeros_like(z)),
            tail=everywhere,
            topology=topology,
            alpha=alpha,
            releases=ReleasePlan.plan(terms, topology, eta, plan.mechanism, alpha, V),
            seeded=False,
            certificate=descent.certificate,
            stopped=descent.stopped,
        )

    def sums(self, rounds: "Rounds | SumRounds") -> Exchange:
        """From all messages of a round to what everybody learns."""
        plan = self.plan
        assert plan.steps is not None
        if plan.mechanism.exchange == "sealed":
            assert isinstance(rounds, SumRounds)
            return SealedSum(rounds.noises)
        return WeighedSum([plan.steps.node_weights[p] for p in plan.senders])

    def sum_rounds(
        self, V: Array, draws: Draws, journal: Journal | None, masks: Masks | None
    ) -> SumRounds:
        """The rounds of algorithm "sum"."""
        plan = self.plan
        assert plan.steps is not None
        start = np.array(V[0])
        if not (start == V).all():
            raise DeclarationError(
                "start differs from node to node; algorithm 'sum' begins at one point"
            )
        releases = plan.releases(self.replicas)
        held = [self.shards[p] for p in plan.senders]
        made = releases.resolution, plan.settings.loss
        rows: IntegerRows | StreamedIntegerRows
        if self.device == "cpu":
            rows = integer_rows_of(
                held,
                *made,
                replicas=self.replicas,
                storage=self.storage,
                weighed=releases.weighed,
                class_weights=plan.settings.class_weights,
                overwrite=self.overwrite,
            )
        else:
            blocks = [to_device(_dense(shard), self.device) for shard in held]
            whose = people_of(held) if releases.weighed else None
            rows = IntegerRows(
                *(blocks, *made),
                replicas=self.replicas,
                storage="dense",
                people=whose,
                labels=[shard.y for shard in held if isinstance(shard, Shard)],
                class_weights=plan.settings.class_weights,
                answers=answers_of(held, plan.settings.loss),
            )
        solver = SumSolver(rows, releases.noises, start[None])
        releaser = Releaser(releases, solver, draws, journal, masks=masks)
        weight = plan.settings.row_weight
        return SumRounds(
            releaser, releases.noises, plan.steps, start, plan.rows, len(self.shards), weight
        )

    def admm_rounds(
        self,
        V: Array,
        draws: Draws,
        journal: Journal | None,
        exchange: Exchange,
        gamma: float | None,
        linear: Callable[[int], Array] | None,
        acceleration: Acceleration | None,
        *,
        default_eta: bool,
    ) -> Rounds:
        """The rounds of Algorithms 1, 2 and 3."""
        plan, device, replicas = self.plan, self.device, self.replicas
        topology = plan.bound.topology
        penalties = plan.settings.eta_of(replicas)
        if default_eta and acceleration is not None and len(topology) > 1:
            penalties = penalties * MORE
        t = plan.terms()
        if device == "cpu":
            problem = self.problem_of(t)
        else:
            constants = t.loss, t.regularizer, t.C, t.rho
            targets = answers_of(self.shards, t.loss)
            blocks = [to_device(_dense(s), device) for s in self.shards]
            problem = StackedProblem(
                blocks,
                *constants,
                replicas=replicas,
                storage="dense",
                labels=[s.y for s in self.shards if isinstance(s, Shard)],
                class_weights=plan.settings.class_weights,
                targets=targets,
            )
        alpha = plan.table(replicas)
        given_plan = problem, topology, penalties, plan.mechanism, alpha, V, gamma
        releases = ReleasePlan.plan(*given_plan, unit=plan.unit)
        bounds = releases.public.gamma
        given = topology.degrees, penalties, bounds, V.copy()
        degrees, eta, bounds, f = (to_device(v, device) for v in given)
        work = problem, degrees, eta, bounds, f
        if acceleration is not None:
            solver: LocalSolver = Accelerator(acceleration, *work)
        else:  # on a GPU a solve is as long as its slowest replica
            aim = None if device == "cuda" else releases.aim
            solver = LocalSolver(*work, aim, releases.private)
        releaser = Releaser(releases, solver, draws, journal, linear)
        return Rounds(releaser, exchange(0, solver.f))


_NONE = np.empty((0, 0, 0))


def _dense(shard: Shard | StreamedShard) -> Array:
    if isinstance(shard, StreamedShard):
        raise DeclarationError(
            f"node {shard.name!r}: its rows are streamed, and those of a GPU are in its memory; "
            "use the CPU"
        )
    return (
        shard.signed if isinstance(shard.signed, np.ndarray) else np.asarray(shard.signed.toarray())
    )
