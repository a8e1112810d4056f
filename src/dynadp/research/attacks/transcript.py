"""What leaves the nodes, and how likely it is if the target holds a row.

Node p's message minimises its local problem, so that with a_i = y_i x_i

    (C/B) sum_i L'(a_i.V) a_i = -(rho grad R(V) + (q + Phi) V + b + noise)

and q and b are functions of earlier messages: every message of Algorithm 1 is a gradient of the
node's rows at a known point.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import NeighbourSums, Topology, admm, public_states
from dynadp.data import Shard
from dynadp.engines import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, OrderedDraws, RoundNoise
from dynadp.planning import Plan
from dynadp.privacy import Event
from dynadp.problem import (
    Logistic,
    Loss,
    Problem,
    SquaredL2,
    StackedProblem,
    solve,
)

DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """A network and its public numbers: by default three nodes in a row, the middle one attacked,
    the first one curious.

    Attributes
    ----------
    topology
        The network.
    target, watcher
        Places of the node whose row is sought, and of the neighbour that listens.
    loss, C, rho, eta, rounds
        As for :func:`~dynadp.engines.simulation.simulate`. With these the loss of a release comes
        close to alpha: attacks are as strong as the noise allows.
    gamma
        How exact Algorithm 1 is, and the attacker.
    """

    topology: Topology = field(default_factory=lambda: Topology.family("path", 3))
    target: int = 1
    watcher: int = 0
    loss: Loss = field(default_factory=lambda: Logistic(3.0))
    C: float = 1.0
    rho: float = 0.01
    eta: float = 0.25
    gamma: float = 1e-9
    rounds: int = 20


@dataclass(frozen=True)
class Transcript:
    """V(1), ..., V(T), each P x K x d: all that leaves the nodes, and the public numbers of every
    round.
    """

    setting: Setting
    messages: tuple[Array, ...] = field(repr=False)
    noises: tuple[RoundNoise, ...] = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)

    def replica(self, k: int) -> "Transcript":
        """One of the K copies."""
        k = min(k, self.messages[0].shape[1] - 1)
        return replace(self, messages=tuple(V[:, k : k + 1] for V in self.messages))

    def heard(self, by: int | None = None) -> "Iterator[Heard]":
        """The target's rounds, from all messages or from those that node ``by`` exchanges.

        In place of a message that it does not see, the node puts the target's: nodes come to agree.
        """
        s, p = self.setting, self.setting.target
        degrees, eta = s.topology.degrees, np.full(self.messages[0].shape[1], s.eta)
        sees = np.ones(len(degrees), bool)
        if by is not None:
            sees = np.asarray(s.topology.adjacency[[by]].toarray()[0] != 0)
            sees[by] = True
        seen = [np.where(sees[:, None, None], sent, sent[p]) for sent in self.messages]
        states = public_states(seen, NeighbourSums(s.topology), degrees, eta)
        for n, (V, state) in enumerate(zip(seen, states, strict=True)):
            noise = self.noises[n].some(slice(p, p + 1)) if self.noises else None
            phi = float(noise.phi[0, 0]) if noise else 0.0
            q = np.full((1, 1), 2 * s.eta * degrees[p] + phi)
            yield Heard(V[p : p + 1], q, admm.linear_terms(state, eta)[0][p : p + 1], noise)


@dataclass(frozen=True)
class Heard:
    """One message V of the target (1 x K x d) and the problem it came from: q with Phi, b, and the
    law of the noise.
    """

    V: Array
    q: Array
    b: Array
    noise: RoundNoise | None


def listen(
    shards: Sequence[Shard],
    mechanism: Mechanism | None,
    alpha: float | None,
    setting: Setting,
    replicas: int,
    seed: int,
) -> Transcript:
    """V(1), ..., V(T) of a seeded run of Algorithm 1, 2 or 3, ``replicas`` times."""
    sent: list[Array] = []
    plan = Plan.of(
        loss=setting.loss,
        C=setting.C,
        weights="equal",
        rho=setting.rho,
        eta=setting.eta,
        rounds=setting.rounds,
        mechanism=mechanism,
        schedule=alpha,
    )

    run = simulate(
        shards,
        setting.topology,
        plan,
        gamma=None if mechanism else setting.gamma,
        replicas=replicas if mechanism else 1,
        draws=OrderedDraws(np.random.default_rng([seed, 0xA77AC]), seeded=True),
        storage="dense",
        on_round=lambda progress: sent.append(progress.messages.copy()),
    )
    events = [
        event for event in run.events() if event.node == setting.topology.nodes[setting.target]
    ]
    return Transcript(setting, tuple(sent), run.noises, tuple(events))


def others(setting: Setting, rows: Array) -> Problem:
    """Z_p without the unknown row: a row still weighs C/B, B = known rows + 1."""
    known = len(rows)
    return StackedProblem(
        [rows],
        setting.loss,
        SquaredL2(),
        setting.C * known / (known + 1),
        setting.rho,
        storage="dense",
    )


def log_density(told: Transcript, rows: Array, candidates: Array, by: int | None = None) -> Array:
    """ln p(V_p(n) | messages before), if node p held ``rows`` and a candidate a = y x: K x N x T,
    up to what a leaves alone.

    With w = C/B, G the gradient and M the Hessian of the problem with the known rows alone, and
    g(a) its minimiser with a: Algorithm 2: -(zeta/w) ||G(V) + w L'(a.V) a|| + ln(1 + w L''(a.V)
    a.M^-1 a). Algorithm 3: -zeta ||V - g(a)||. Algorithm 1: 0 where the gradient is at most gamma,
    else -infinity. Left out: rounding to the grid, and the z of Algorithm 2.

    Parameters
    ----------
    told
        What was heard.
    rows
        The known signed rows of the target, (B - 1) x d.
    candidates
        Signed rows, N x d.
    by
        A node with a partial view, or None for all messages.
    """
    s, w = told.setting, told.setting.C / (len(rows) + 1)
    base = others(s, rows)
    return np.stack(
        [_round_density(s, base, w, candidates, heard) for heard in told.heard(by)], axis=-1
    )


def _round_density(s: Setting, base: Problem, w: float, A: Array, heard: Heard) -> Array:
    noise, V = heard.noise, heard.V[0][:, None]
    if noise is not None and not noise.inside:
        return _density(noise, V - _minimisers(s, base, w, A, heard))
    z = heard.V[0] @ A.T
    force = (
        base.gradient(heard.V, heard.q, heard.b)[0][:, None] + w * s.loss.slope(z)[..., None] * A
    )
    if noise is None:
        return np.where(np.linalg.norm(force, axis=-1) <= s.gamma, 0.0, -inf)
    jacobian = np.log1p(
        w * np.sum(A * _steered(base, A, heard.V, heard.q), axis=1) * s.loss.curvature(z)
    )
    return np.asarray(jacobian + _density(noise, force / w))


def _density(noise: RoundNoise, x: Array) -> Array:
    """ln of the noise's density at x, K x N x d, up to a constant; the target's noise is 1 x K."""
    found = noise.some(slice(0, 1)).each(lambda v: v[:, :1]).log_density(x[None])
    if found is None:
        raise DeclarationError("the mechanism's RoundNoise has no log_density, so no attack on it")
    return np.asarray(found[0])


def _steered(base: Problem, A: Array, point: Array, q: Array) -> Array:
    """M^-1 a for every a, N x d, with M at the mean over replicas."""
    M = base.hessians(point, base.margins(point))[0, 0] + q[0, 0] * np.eye(A.shape[1])
    return np.asarray(np.linalg.solve(M, A.T).T)


def _minimisers(s: Setting, base: Problem, w: float, A: Array, heard: Heard) -> Array:
    """g(a) = g - w L'(m) M^-1 a, where m = a.g(a) solves m + w L'(m) a.M^-1 a = a.g; K x N x d.

    To the second order in C/B. With replicas M is only near to each one's, which two more steps
    make good.
    """
    point = solve(base, heard.q, heard.b, np.full((1, 1), s.gamma), heard.V).point
    steered = _steered(base, A, point, heard.q)
    kappa, z = w * np.sum(A * steered, axis=1), point[0] @ A.T
    m = z
    for _ in range(8):
        m = m - (m + kappa * s.loss.slope(m) - z) / (1 + kappa * s.loss.curvature(m))
    g = point[0][:, None] - w * s.loss.slope(m)[..., None] * steered
    for _ in range(2 if len(z) > 1 else 0):
        own = w * s.loss.slope(np.einsum("knd,nd->kn", g, A))[..., None] * A
        flat = g.reshape(1, -1, g.shape[-1])
        force = (
            base.gradient(flat, heard.q, np.repeat(heard.b, len(A), axis=1)).reshape(g.shape) + own
        )
        g = g - _steered(base, force.reshape(flat.shape[1:]), point, heard.q).reshape(g.shape)
    return np.asarray(g)


def dense(shard: Shard) -> Array:
    """The signed rows y x, B x d."""
    return np.asarray(
        shard.signed if isinstance(shard.signed, np.ndarray) else shard.signed.toarray()
    )


def to_json(result: Any) -> dict[str, Any]:
    """The fields of a result; an infinite number is null."""
    return {
        name: None if isinstance(v, float) and not isfinite(v) else v
        for name, v in asdict(result).items()
    }
