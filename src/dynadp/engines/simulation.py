"""All nodes, and any number of replicas of them, in one process (Algorithm 1; maths.md 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array, host, namespace, on, to_device
from dynadp.consensus import (
    MORE,
    Acceleration,
    Accelerator,
    Certificate,
    Journal,
    LocalSolver,
    Output,
    ReleasePlan,
    Releaser,
    Residuals,
    Topology,
    admm,
)
from dynadp.data import Shard, StreamedShard, check_shards
from dynadp.engines.progress import RoundProgress
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Draws, Mechanism, NoProtection, RoundNoise, SystemEntropy
from dynadp.privacy import Event, Schedule, constant
from dynadp.problem import (
    Logistic,
    Loss,
    Problem,
    Regularizer,
    SquaredL2,
    Storage,
    Weights,
    check_loss,
    check_regularizer,
    local_problem,
    shares,
)


@dataclass(frozen=True)
class Run:
    """The end of a simulation.

    Attributes
    ----------
    V
        The last message of every node, P x K x d.
    rounds
        One entry a round.
    state
        (W, lam) after the last round.
    tail
        Mean of every node's messages over the last half of the rounds, P x K x d.
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
    """

    V: Array = field(repr=False)
    rounds: tuple[RoundProgress, ...] = field(repr=False)
    state: admm.State = field(repr=False)
    tail: Array = field(repr=False)
    topology: Topology = field(repr=False)
    alpha: Array = field(repr=False)
    releases: ReleasePlan = field(repr=False)
    seeded: bool
    certificate: Certificate | None = field(repr=False)
    stopped: bool

    def models(self, output: Output = "network") -> Array:
        """What each node takes home, P x K x d, from released vectors only: free post-processing.

        Parameters
        ----------
        output
            ``last``: its last message. ``tail``: the mean of its messages of the last half of the
            rounds. ``neighbours``: the mean of its own and its neighbours' tail means. ``network``:
            the mean of all tail means, forwarded along the graph.
        """
        if output == "last":
            return self.V
        if output == "tail":
            return self.tail
        if output == "neighbours":
            sums = neighbour_sums(self.topology, self.tail)
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
        return tuple(event for k in given for event in self.releases.events(k, seeded=self.seeded))

    @property
    def calibrations(self) -> tuple[RoundNoise, ...]:
        """Public numbers of each round; none without a mechanism."""
        return self.releases.calibrations if self.releases.private else ()

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


def default_eta(topology: Topology, loss: Loss, C: float, rho: float) -> float:
    """eta = sqrt( m (C c1/4 + m) / (2 w) ) / mean degree, m = max(rho, 1e-7 C c1), w the spectral
    gap: public numbers only.

    The geometric mean of the local objectives' smallest curvature and a typical one, as in the
    analysis of ADMM on strongly convex problems (Shi et al., IEEE Transactions on Signal Processing
    62, 2014), spread over the neighbours. The floor on rho stands for curvature that rows bring
    even where rho brings none. ``benchmarks/penalty.py`` compares it with multiples of it.
    """
    degree = max(float(topology.degrees.mean()), 1.0)
    least = max(rho, 1e-7 * C * loss.c1)
    return float(np.sqrt(least * (C * loss.c1 / 4 + least) / (2 * topology.spectral_gap)) / degree)


def simulate(
    shards: Sequence[Shard | StreamedShard],
    topology: Topology,
    *,
    loss: Loss | None = None,
    regularizer: Regularizer | None = None,
    C: float = 1.0,
    weights: Weights = "rows",
    rho: float = 1e-4,
    eta: float | Sequence[float] | None = None,
    rounds: int = 100,
    replicas: int = 1,
    gamma: float | None = None,
    start: ArrayLike | None = None,
    mechanism: Mechanism | None = None,
    schedule: Schedule | float | Sequence[Schedule | float] | None = None,
    draws: Draws | None = None,
    linear: Callable[[int], Array] | None = None,
    acceleration: Acceleration | None = None,
    storage: Storage = "auto",
    device: str = "cpu",
    journal: Journal | None = None,
    on_round: Callable[[RoundProgress, Array], None] | None = None,
) -> Run:
    """Run Algorithm 1, 2 or 3 over the network.

    Parameters
    ----------
    shards
        One a node, in the topology's order.
    topology
        Who exchanges messages with whom.
    loss, regularizer
        L and R; logistic and ||f||^2/2 by default.
    C, rho
        The paper's C^R and rho.
    weights
        ``rows``: every row of the network weighs the same, C over the mean number of rows.
        ``equal``: every node does, as in the paper; see :func:`~dynadp.problem.objective.shares`.
    eta
        The penalty, one number or one for each replica; :func:`default_eta` by default, a quarter
        more with acceleration.
    rounds
        T, how many at most.
    replicas
        K, how many copies of the network to run at once on one copy of the rows. Without a seed
        each of them is a release, and all are counted (:meth:`Run.events`).
    gamma
        Public bound on every local gradient, part of the calibration; by default
        :meth:`~dynadp.consensus.releases.ReleasePlan.plan` finds it.
    start
        V(0), public: d numbers, or anything that broadcasts to P x K x d; zero by default.
    mechanism
        :class:`~dynadp.mechanisms.base.Dual` or :class:`~dynadp.mechanisms.base.Primal`; by default
        none, and messages reveal rows.
    schedule
        alpha_p(n), a number for a constant one, or a list with one for each replica; required with
        a mechanism.
    draws
        Where noise comes from; by default the operating system's entropy. Seeded draws protect
        nobody.
    linear
        A further linear term of round n for every local problem, P x K x d; for Algorithm 1 only.
    acceleration
        How to speed up and when to stop, for Algorithm 1 only; by default every round solves its
        argmin and all rounds are run.
    storage
        ``auto``, ``dense`` or ``csr``.
    device
        ``cpu``, or ``cuda`` for rows (dense) and rounds on a GPU.
    books
        The nodes' ledgers: the whole run is reserved before round 1, and every message is entered
        before it is sent. Rounds that they hold already are taken from there, so that a run that
        was cut short goes on.
    on_round
        Called after every round with what it left and the messages V, P x K x d.
    """
    loss, regularizer = loss or Logistic(), regularizer or SquaredL2()
    for name, given, kind in (("loss", loss, Loss), ("regularizer", regularizer, Regularizer)):
        if not isinstance(given, kind):
            raise DeclarationError(
                f"{name} is {given!r}; expected a {kind.__name__}, such as "
                f"{kind.__subclasses__()[0].__name__}()"
            )
    dimension = check_shards(shards, topology.nodes)
    check_loss(loss)
    check_regularizer(regularizer)
    for name, value in (
        ("C", C),
        ("rho", rho),
        *((("gamma", gamma),) if gamma is not None else ()),
    ):
        if not (isinstance(value, int | float | np.number) and np.isfinite(value) and value > 0):
            raise DeclarationError(f"{name} is {value!r}; expected a finite number above 0")
    for name, count in (("rounds", rounds), ("replicas", replicas)):
        if not isinstance(count, int | np.integer) or count < 1:
            raise DeclarationError(f"{name} is {count!r}; expected a whole number from 1")
    if eta is None and len(topology) == 1 and mechanism is None:
        eta = 1e-9 * rho  # nothing to agree on, and no noise to hold back: one round is enough
    elif eta is None:
        eta = default_eta(topology, loss, C, rho) * (1.0 if acceleration is None else MORE)
    penalties = _penalties(eta, replicas)
    if device not in ("cpu", "cuda"):
        raise DeclarationError(f"device is {device!r}; expected 'cpu' or 'cuda'")
    if device == "cuda" and (acceleration is not None or storage == "csr"):
        raise DeclarationError(
            "on a GPU rows are dense and rounds are plain: leave out acceleration and storage = "
            "'csr'"
        )
    each = shares(float(C), [s.rows for s in shards], weights)
    if device == "cpu":
        problem = local_problem(
            shards, loss, regularizer, each, rho, replicas=replicas, storage=storage
        )
    else:
        blocks = [to_device(_dense(s), device) for s in shards]
        problem = Problem(blocks, loss, regularizer, each, rho, replicas=replicas, storage="dense")
    try:
        V = np.broadcast_to(
            np.zeros(1) if start is None else np.asarray(start, float),
            (len(shards), replicas, dimension),
        )
    except ValueError:
        raise DeclarationError(
            f"start has shape {np.asarray(start).shape}; expected {dimension} numbers (or P x K x "
            f"d = "
            f"{len(shards)} x {replicas} x {dimension})"
        ) from None
    if not np.isfinite(V).all():
        raise DeclarationError(
            "start holds NaN or infinite values; V(0) must be a finite public vector"
        )
    mechanism = mechanism or NoProtection()
    alpha = _alphas(mechanism, schedule, topology.nodes, rounds, replicas)
    if linear is not None and not isinstance(mechanism, NoProtection):
        raise DeclarationError(
            "linear is for Algorithm 1 only: no gamma of a private run covers it"
        )
    if acceleration is not None and not isinstance(mechanism, NoProtection):
        raise DeclarationError(
            "acceleration is for Algorithm 1 only: it would change what a private run releases"
        )
    releases = ReleasePlan.plan(problem, topology, penalties, mechanism, alpha, V, gamma)
    degrees, eta_, bound, f = (
        to_device(v, device) for v in (topology.degrees, penalties, releases.public.gamma, V.copy())
    )
    work = problem, degrees, eta_, bound, f
    aim = (
        None if device == "cuda" else releases.aim
    )  # on a GPU a solve is as long as its slowest replica
    steps = (
        LocalSolver(*work, aim, releases.private)
        if acceleration is None
        else Accelerator(acceleration, *work)
    )
    return _rounds(
        alpha,
        topology,
        steps,
        Releaser(releases, steps, draws or SystemEntropy(), journal, linear),
        on_round,
    )


def _dense(shard: Shard | StreamedShard) -> Array:
    if isinstance(shard, StreamedShard):
        raise DeclarationError(
            f"node {shard.name!r}: its rows are streamed, and those of a GPU are in its memory; "
            f"use the CPU"
        )
    return (
        shard.signed if isinstance(shard.signed, np.ndarray) else np.asarray(shard.signed.toarray())
    )


def neighbour_sums(topology: Topology, V: Array) -> Array:
    """sum_j V_j at every node: one sparse product."""
    flat = V.reshape(len(V), -1)
    if isinstance(flat, np.ndarray):
        return np.asarray((topology.adjacency @ flat).reshape(V.shape))
    return (on(topology.adjacency.toarray(), flat) @ flat).reshape(V.shape)


def _rounds(
    alpha: Array,
    topology: Topology,
    steps: LocalSolver,
    sender: Releaser,
    on_round: Callable[[RoundProgress, Array], None] | None,
) -> Run:
    degrees, rounds, releases = steps.degrees, alpha.shape[-1], sender.releases
    mechanism = releases.mechanism
    log: list[RoundProgress] = []
    V, stopped = steps.f, False
    tail = namespace(V).zeros_like(V)
    state = admm.begin(V, neighbour_sums(topology, V), degrees)
    seen = state  # W as messages alone give it; state.W may hold a private vector (own = "paper")

    for n in range(1, rounds + 1):
        g, V = sender.send(n, state)
        neighbours = neighbour_sums(topology, V)
        pull = (
            2 * g - V if mechanism.own == "paper" and n < rounds else None
        )  # what follows the last round is made of messages
        after = admm.receive(
            state, V, neighbours, degrees, steps.eta, relaxation=steps.relaxation, pull=pull
        )
        if n > rounds // 2:
            tail += V
        residuals = partial(Residuals.of, V, neighbours, state, after, degrees, steps.eta)
        told = after if pull is None else admm.receive(seen, V, neighbours, degrees, steps.eta)
        log.append(RoundProgress.of(n, V, neighbours, seen, told, degrees, steps.eta))
        seen = told
        if on_round:
            shown = host(V).view()
            shown.setflags(write=False)
            on_round(log[-1], shown)
        state = steps.next_state(state, after, g)
        stopped = steps.done(n, V, residuals)
        if stopped:
            break
    if not stopped:
        steps.finish(V)
    if mechanism.final is not None:
        V = sender.send(rounds + 1, state)[1]
    if sender.journal:
        sender.journal.close("finished")
    return Run(
        V=host(V),
        rounds=tuple(log),
        state=admm.State(host(after.W), host(after.lam)),
        tail=host(V if stopped else tail / (rounds - rounds // 2)),
        topology=topology,
        alpha=alpha,
        releases=releases,
        seeded=sender.seeded,
        certificate=steps.certificate,
        stopped=stopped,
    )


def _alphas(
    mechanism: Mechanism,
    schedule: Schedule | float | Sequence[Schedule | float] | None,
    nodes: Sequence[str],
    rounds: int,
    replicas: int,
) -> Array:
    """alpha_p(n), P x K x T; NaN without a mechanism, so that nobody takes it for a number."""
    if isinstance(mechanism, NoProtection):
        if schedule is not None:
            raise DeclarationError(
                "a schedule was given but no mechanism; give mechanism = Dual() or Primal()"
            )
        return np.full((len(nodes), replicas, rounds), np.nan)
    if schedule is None:
        raise DeclarationError(
            f"mechanism {mechanism.name!r} needs a schedule: how much each release may lose (alpha)"
        )
    given = list(schedule) if isinstance(schedule, Sequence) else [schedule] * replicas
    if len(given) != replicas:
        raise DeclarationError(
            f"{len(given)} schedules for {replicas} replicas; expected one, or one for each"
        )
    keys = [
        s if isinstance(s, float) else id(s) for s in given
    ]  # many draws of few alphas need few tables
    each = {
        key: s if isinstance(s, Schedule) else constant(s)
        for key, s in zip(keys, given, strict=True)
    }
    tables = {key: s.table(nodes, rounds) for key, s in each.items()}
    return np.stack([tables[key] for key in keys], axis=1)


def _penalties(eta: float | Sequence[float], replicas: int) -> Array:
    try:
        given = np.asarray(eta, dtype=float)
    except (TypeError, ValueError):
        given = np.full((), np.nan)
    if given.shape not in ((), (replicas,)) or not (np.isfinite(given).all() and (given > 0).all()):
        raise DeclarationError(
            f"eta is {eta!r}; expected a finite number above 0, or one for each of the {replicas} "
            f"replicas"
        )
    return np.broadcast_to(given, (replicas,)).copy()
