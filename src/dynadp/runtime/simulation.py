"""All nodes, and any number of replicas of them, in one process (Algorithm 1; maths.md 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dynadp import admm
from dynadp.arrays import Array
from dynadp.consensus import Certificate, Residuals
from dynadp.data import Shard, check_shards
from dynadp.errors import DeclarationError
from dynadp.losses import Logistic, Loss, check_loss
from dynadp.objective import Problem, Storage
from dynadp.regularizers import Regularizer, SquaredL2
from dynadp.runtime.acceleration import Acceleration, Accelerator
from dynadp.solvers import default_gamma
from dynadp.topology import Topology


@dataclass(frozen=True)
class Round:
    """What a round left behind, from messages only.

    Attributes
    ----------
    number
        n = 1, 2, ...
    eta
        Penalty of each replica.
    disagreement
        || V_p - mean of its neighbours' || at each node, P x K.
    change
        2 eta || W_p(n) - W_p(n - 1) ||, the dual residual at each node, P x K.
    """

    number: int
    eta: Array
    disagreement: Array
    change: Array

    @classmethod
    def of(
        cls, n: int, V: Array, neighbours: Array, before: admm.State, after: admm.State, degrees: Array, eta: Array
    ) -> "Round":
        """From the messages of round n and the states around it."""
        apart = V - neighbours / np.maximum(degrees, 1)[:, None, None] if len(V) > 1 else np.zeros_like(V)
        change = 2 * eta[:, None] * (after.W - before.W)
        return cls(n, eta, np.linalg.norm(apart, axis=-1), np.linalg.norm(change, axis=-1))


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
    certificate
        The last one, where a certified target was given.
    stopped
        Whether a stopping rule ended the run, rather than the number of rounds.
    """

    V: Array = field(repr=False)
    rounds: tuple[Round, ...] = field(repr=False)
    state: admm.State = field(repr=False)
    certificate: Certificate | None
    stopped: bool

    @property
    def mean(self) -> Array:
        """Mean over nodes of the last messages, K x d."""
        return np.asarray(self.V.mean(axis=0))

    @property
    def consensus_gap(self) -> Array:
        """max_p || V_p - mean || / || mean ||, per replica."""
        spread = np.linalg.norm(self.V - self.mean, axis=-1).max(axis=0)
        return np.asarray(spread / np.maximum(np.linalg.norm(self.mean, axis=-1), np.finfo(float).tiny))


def default_eta(topology: Topology, loss: Loss, C: float, rho: float) -> float:
    """eta = sqrt( m (C c1/4 + m) / (2 w) ) / mean degree, m = max(rho, 1e-7 C c1), w the spectral gap: public numbers only.

    The geometric mean of the local objectives' smallest curvature and a typical one, as in the analysis of ADMM on strongly
    convex problems (Shi et al., IEEE Transactions on Signal Processing 62, 2014), spread over the neighbours. The floor on rho
    stands for curvature that rows bring even where rho brings none. ``benchmarks/penalty.py`` compares it with multiples of it.
    """
    degree = max(float(topology.degrees.mean()), 1.0)
    least = max(rho, 1e-7 * C * loss.c1)
    return float(np.sqrt(least * (C * loss.c1 / 4 + least) / (2 * topology.spectral_gap)) / degree)


def simulate(
    shards: Sequence[Shard],
    topology: Topology,
    *,
    loss: Loss | None = None,
    regularizer: Regularizer | None = None,
    C: float = 1.0,
    rho: float = 1e-4,
    eta: float | Sequence[float] | None = None,
    rounds: int = 100,
    replicas: int = 1,
    gamma: float | None = None,
    start: ArrayLike | None = None,
    linear: Callable[[int], Array] | None = None,
    acceleration: Acceleration | None = None,
    storage: Storage = "auto",
    on_round: Callable[[Round, Array], None] | None = None,
) -> Run:
    """Run Algorithm 1 over the network.

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
    eta
        The penalty, one number or one for each replica; :func:`default_eta` by default.
    rounds
        T, how many at most.
    replicas
        K, how many copies of the network to run at once on one copy of the rows.
    gamma
        Public bound on every local gradient; :func:`~dynadp.solvers.default_gamma` by default.
    start
        V(0), public: d numbers, or anything that broadcasts to P x K x d; zero by default.
    linear
        A further linear term of round n for every local problem, P x K x d.
    acceleration
        How to speed up and when to stop; by default neither: every round solves its argmin, and all rounds are run.
    storage
        ``auto``, ``dense`` or ``csr``.
    on_round
        Called after every round with what it left and the messages V, P x K x d.
    """
    loss, regularizer = loss or Logistic(), regularizer or SquaredL2()
    dimension = check_shards(shards, topology.nodes)
    check_loss(loss)
    for name, value in (("C", C), ("rho", rho), *((("gamma", gamma),) if gamma is not None else ())):
        if not (np.isfinite(value) and value > 0):
            raise DeclarationError(f"{name} is {value!r}; expected a finite number above 0")
    for name, count in (("rounds", rounds), ("replicas", replicas)):
        if count < 1:
            raise DeclarationError(f"{name} is {count!r}; expected at least 1")
    penalties = _penalties(default_eta(topology, loss, C, rho) if eta is None else eta, replicas)
    problem = Problem([s.signed for s in shards], loss, regularizer, C, rho, replicas=replicas, storage=storage)
    try:
        V = np.broadcast_to(np.zeros(1) if start is None else np.asarray(start, float), (len(shards), replicas, dimension))
    except ValueError:
        raise DeclarationError(
            f"start has shape {np.asarray(start).shape}; expected {dimension} numbers (or P x K x d = "
            f"{len(shards)} x {replicas} x {dimension})"
        ) from None
    if not np.isfinite(V).all():
        raise DeclarationError("start holds NaN or infinite values; V(0) must be a finite public vector")
    bounds = default_gamma(problem) if gamma is None else np.full((len(shards), 1), float(gamma))
    plan = acceleration or Acceleration(one_step=False, anderson=0)
    steps = Accelerator(plan, problem, topology.degrees, penalties, bounds, V)
    return _rounds(rounds, topology, steps, linear, on_round)


def _rounds(
    rounds: int,
    topology: Topology,
    steps: Accelerator,
    linear: Callable[[int], Array] | None,
    on_round: Callable[[Round, Array], None] | None,
) -> Run:
    def neighbour_sums(V: Array) -> Array:
        return np.asarray((topology.adjacency @ V.reshape(len(V), -1)).reshape(V.shape))

    degrees = topology.degrees
    V, log, stopped = steps.f, [], False
    state = admm.begin(V, neighbour_sums(V), degrees)
    for n in range(1, rounds + 1):
        V = steps.local_step(n, state, None if linear is None else linear(n))  # send ...
        neighbours = neighbour_sums(V)
        after = admm.receive(state, V, neighbours, degrees, steps.eta, steps.plan.relaxation)  # ... and receive
        residuals = Residuals.of(V, neighbours, state, after, degrees, steps.eta)
        log.append(Round.of(n, V, neighbours, state, after, degrees, steps.eta))
        if on_round:
            on_round(log[-1], V)
        stopped = steps.done(V, residuals)
        if stopped:
            break
        state = steps.mix(state, after, V)
        steps.balance(n, residuals)
    return Run(V, tuple(log), after, steps.certificate, stopped)


def _penalties(eta: float | Sequence[float], replicas: int) -> Array:
    given = np.asarray(eta, dtype=float)
    if given.shape not in ((), (replicas,)) or not (np.isfinite(given).all() and (given > 0).all()):
        raise DeclarationError(f"eta is {eta!r}; expected a finite number above 0, or one for each of the {replicas} replicas")
    return np.broadcast_to(given, (replicas,)).copy()
