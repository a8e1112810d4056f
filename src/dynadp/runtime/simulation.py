"""All nodes, and any number of replicas of them, in one process (Algorithm 1; maths.md 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dynadp import admm
from dynadp.anderson import Anderson
from dynadp.arrays import Array
from dynadp.data import Shard, check_shards
from dynadp.errors import DeclarationError, NotCertified
from dynadp.losses import Logistic, Loss, check_loss
from dynadp.objective import Problem, Storage
from dynadp.regularizers import Regularizer, SquaredL2
from dynadp.solvers import Factor, default_gamma
from dynadp.topology import Topology


@dataclass(frozen=True)
class Acceleration:
    """How Algorithm 1 may be sped up in simulation. Never in a private run: it would change what is released.

    Attributes
    ----------
    one_step
        One Newton step with a kept factor a round instead of the argmin: the fixed point is the same. Where that diverges, the
        argmin is used again.
    anderson
        Depth of Anderson acceleration over (W, lam, f); 0 for none.
    relaxation
        Over-relaxation in (0, 2); see :func:`dynadp.admm.receive`.
    balance
        Double or halve eta where the two residuals are more than ten times apart, in the first 50 rounds.
    gap
        Stop once every node's own vector is certified to have a pooled objective within this share of the optimum.
    distance
        Stop once every node's own vector is certified to lie within this share of the optimum's norm from it.
    residual
        Stop once both residuals, which are functions of messages, are below this share of what they are differences of.
    """

    one_step: bool = True
    anderson: int = 10
    relaxation: float = 1.0
    balance: bool = False
    gap: float | None = None
    distance: float | None = None
    residual: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.relaxation < 2:
            raise DeclarationError(f"relaxation is {self.relaxation!r}; expected a number in (0, 2)")
        if self.anderson < 0:
            raise DeclarationError(f"anderson is {self.anderson!r}; expected a depth of 0 or more")
        for name in ("gap", "distance", "residual"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise DeclarationError(f"{name} is {value!r}; expected a share in (0, 1)")


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
    gap, distance
        Certified shares per replica at the last check (see :class:`Acceleration`); empty where nothing was certified.
    stopped
        Whether a stopping rule ended the run, rather than the number of rounds.
    """

    V: Array = field(repr=False)
    rounds: tuple[Round, ...] = field(repr=False)
    state: admm.State = field(repr=False)
    gap: Array
    distance: Array
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
    """Eta = sqrt( rho (C c1/4 + rho) / (2 w) ) / mean degree, w the spectral gap: public numbers only.

    The geometric mean of the local objectives' smallest curvature and a typical one, as in the analysis of ADMM on strongly
    convex problems (Shi et al. 2014), spread over the neighbours.
    """
    degree = max(float(topology.degrees.mean()), 1.0)
    return float(np.sqrt(rho * (C * loss.c1 / 4 + rho) / (2 * topology.spectral_gap)) / degree)


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
            f"start has shape {np.shape(start)}; expected {dimension} numbers (or P x K x d = "
            f"{len(shards)} x {replicas} x {dimension})"
        ) from None
    if not np.isfinite(V).all():
        raise DeclarationError("start holds NaN or infinite values; V(0) must be a finite public vector")
    bounds = default_gamma(problem) if gamma is None else np.full((len(shards), 1), float(gamma))
    return _Simulation(problem, topology, penalties, bounds, V.copy(), linear, acceleration, on_round).run(rounds)


def _penalties(eta: float | Sequence[float], replicas: int) -> Array:
    given = np.asarray(eta, dtype=float)
    if given.shape not in ((), (replicas,)) or not (np.isfinite(given).all() and (given > 0).all()):
        raise DeclarationError(f"eta is {eta!r}; expected a finite number above 0, or one for each of the {replicas} replicas")
    return np.broadcast_to(given, (replicas,)).copy()


class _Simulation:
    """The loop, with what it carries from round to round."""

    def __init__(
        self,
        problem: Problem,
        topology: Topology,
        eta: Array,
        gamma: Array,
        V: Array,
        linear: Callable[[int], Array] | None,
        acceleration: Acceleration | None,
        on_round: Callable[[Round, Array], None] | None,
    ) -> None:
        self.problem, self.topology, self.eta, self.gamma, self.linear = problem, topology, eta, gamma, linear
        self.plan = acceleration or Acceleration(one_step=False, anderson=0)
        self.on_round = on_round
        self.V = self.f = V  # the last messages, and the point at which the next local step begins
        self.state = admm.begin(V, self._neighbours(V), topology.degrees)
        self.factor: Factor | None = None
        self.one_step, self.refreshes = self.plan.one_step, 0
        self.anderson = Anderson(self.plan.anderson)
        self.gap = self.distance = self.value = np.empty(0)
        self.log: list[Round] = []

    def run(self, rounds: int) -> Run:
        stopped = False
        for n in range(1, rounds + 1):
            before = self.state
            self.V = self._local_step(n)
            neighbours = self._neighbours(self.V)
            self.state = admm.receive(before, self.V, neighbours, self.topology.degrees, self.eta, self.plan.relaxation)
            self._log(n, before, neighbours)
            if self._done(before, neighbours):
                stopped = True
                break
            if n < rounds:
                self._accelerate(before)
                if self.plan.balance and n <= 50:
                    self._balance(before, neighbours)
        return Run(self.V, tuple(self.log), self.state, self.gap, self.distance, stopped)

    def _neighbours(self, V: Array) -> Array:
        """sum_j V_j at every node: one sparse product."""
        return np.asarray((self.topology.adjacency @ V.reshape(len(V), -1)).reshape(V.shape))

    def _local_step(self, n: int) -> Array:
        linear = None if self.linear is None else self.linear(n)
        degrees = self.topology.degrees
        if not self.one_step:
            solution = admm.send(
                self.problem, self.state, degrees, self.eta, self.gamma, self.f, linear=linear, factor=self.factor
            )
            self.factor = solution.factor
            return solution.point
        q = admm.penalty(degrees, self.eta)
        b, _ = admm.linear_terms(self.state, self.eta)
        Z = self.problem.rows.margins(self.f)
        local = self.problem.local_gradient(self.f, Z)
        self.pooled_gradient = np.linalg.norm(local.sum(axis=0), axis=-1)
        if self.factor is None or n == _SECOND_FACTOR:
            self.factor = Factor.at(self.problem, self.f, Z, q, step=_ROW_STEP)
        b = b if linear is None else b + linear
        return np.asarray(self.f - self.factor.apply(local + q[..., None] * self.f + b))

    def _log(self, n: int, before: admm.State, neighbours: Array) -> None:
        degrees = np.maximum(self.topology.degrees, 1)[:, None, None]
        apart = self.V - neighbours / degrees if len(self.V) > 1 else np.zeros_like(self.V)
        change = 2 * self.eta[:, None] * (self.state.W - before.W)
        self.log.append(Round(n, self.eta.copy(), np.linalg.norm(apart, axis=-1), np.linalg.norm(change, axis=-1)))
        if self.on_round:
            self.on_round(self.log[-1], self.V)

    def _accelerate(self, before: admm.State) -> None:
        """Anderson over (W, lam, f), in units that make the three alike; a failing one-step run gets a new factor or the argmin."""
        units = np.maximum(self.topology.degrees, 1)[:, None, None], self.eta[:, None], 1.0
        nodes, replicas, dimension = self.V.shape

        def pack(state: admm.State, f: Array) -> Array:
            parts = [part / unit for part, unit in zip((state.W, state.lam, f), units, strict=True)]
            return np.concatenate(parts).transpose(1, 0, 2).reshape(replicas, -1)

        if not self.anderson.depth and not self.one_step:
            self.f = self.V
            return
        here = pack(before, self.f)
        residual = pack(self.state, self.V) - here
        if not np.isfinite(residual).all():
            raise NotCertified("the run left the range of floating point; nothing is released. Raise rho or eta, or lower C")
        mixed, grew = self.anderson.step(here, residual)
        W, lam, self.f = (
            part * unit
            for part, unit in zip(
                np.split(mixed.reshape(replicas, 3 * nodes, dimension).transpose(1, 0, 2), 3), units, strict=True
            )
        )
        self.state = admm.State(W, lam)
        if grew and self.one_step:
            self.refreshes += 1
            self.factor = None  # made anew where the run now is
            self.one_step = self.refreshes < _PATIENCE

    def _residuals(self, before: admm.State, neighbours: Array) -> tuple[Array, Array, Array, Array]:
        """Primal and dual residual per replica (Boyd et al. 2011, 3.3), and what each is a difference of."""
        degrees = self.topology.degrees[:, None, None]
        centred = self.V - self.V.mean(axis=0)
        apart = np.einsum("pkd,pkd->k", centred, degrees * self.V - neighbours)  # sum over edges of ||V_p - V_j||^2
        primal = np.sqrt(np.maximum(0.5 * apart, 0.0))
        dual = np.linalg.norm(2 * self.eta[:, None] * (self.state.W - before.W), axis=(0, 2))
        messages = np.sqrt(np.einsum("pkd,pkd,p->k", self.V, self.V, self.topology.degrees))
        return primal, dual, messages, np.linalg.norm(2 * self.state.lam, axis=(0, 2))

    def _balance(self, before: admm.State, neighbours: Array) -> None:
        primal, dual, messages, duals = self._residuals(before, neighbours)
        tiny = np.finfo(float).tiny
        primal, dual = primal / np.maximum(messages, tiny), dual / np.maximum(duals, tiny)
        factor = np.where(primal > 10 * dual, 2.0, np.where(dual > 10 * primal, 0.5, 1.0))
        if (factor != 1).any():
            self.eta = self.eta * factor
            self.factor = None
            self.anderson.forget()

    def _done(self, before: admm.State, neighbours: Array) -> bool:
        plan = self.plan
        done = [True]
        if plan.residual is not None:
            primal, dual, messages, duals = self._residuals(before, neighbours)
            done.append(bool((primal <= plan.residual * messages).all() and (dual <= plan.residual * duals).all()))
        if plan.gap is not None or plan.distance is not None:
            done.append(self._certified(plan.gap or np.inf, plan.distance or np.inf))
        return len(done) > 1 and all(done)

    def _certified(self, gap: float, distance: float) -> bool:
        """Certify every node's vector against the pooled optimum f* of F = sum_p Z_p, which is P rho-strongly convex.

        With m the mean of the vectors, g = grad F(m) and u_p = ||V_p - m||: F(m) - F(f*) <= ||g||^2/(2 P rho),
        F(V_p) - F(m) <= ||g|| u_p + (Lip/2) u_p^2 with Lip = P (C c1 + rho sup R''), and ||V_p - f*|| <= u_p + ||g||/(P rho).
        """
        problem, P = self.problem, len(self.V)
        tiny = np.finfo(float).tiny
        strong = P * problem.rho
        lipschitz = P * (problem.C * problem.loss.c1 + problem.rho * problem.regularizer.smoothness)
        mean = self.V.mean(axis=0)
        size = np.maximum(np.linalg.norm(mean, axis=-1), tiny)
        apart = np.linalg.norm(self.V - mean, axis=-1).max(axis=0)
        if self.one_step and self.value.size:  # a glance without a pass over the rows, to look closer only near the target
            far = self.pooled_gradient > 2 * np.minimum(np.sqrt(2 * strong * gap * self.value), strong * distance * size)
            far |= apart > np.minimum(np.sqrt(2 * gap * self.value / lipschitz), distance * size)
            if far.any():
                return False
        everywhere = np.broadcast_to(mean, self.V.shape)
        Z = problem.rows.margins(everywhere)
        slope = np.linalg.norm(problem.local_gradient(everywhere, Z).sum(axis=0), axis=-1)
        self.value = problem.local_value(everywhere, Z).sum(axis=0)
        excess = slope**2 / (2 * strong)
        least = np.maximum(self.value - excess, 0.0)  # F(f*) is at least this, and not negative
        excess = excess + slope * apart + 0.5 * lipschitz * apart**2
        self.gap = np.divide(excess, least, out=np.full_like(excess, np.inf), where=least > tiny)
        self.distance = np.asarray((apart + slope / strong) / size)
        return bool((self.gap <= gap).all() and (self.distance <= distance).all())


_SECOND_FACTOR = 5  # the round at which a one-step run makes its factor anew: the first one belongs to the start
_ROW_STEP = 4  # its Hessians come from every fourth row
_PATIENCE = 4  # after so many growing residuals the argmin is used again
