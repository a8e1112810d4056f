"""What leaves the nodes, and how likely it is if the target holds a row.

Node p's message minimises its local problem, so that with a_i = y_i x_i

    (C/B) sum_i L'(a_i.V) a_i = -(rho grad R(V) + (q + Phi) V + b + noise)

and q and b are functions of earlier messages: every message of Algorithm 1 is a gradient of the
node's rows at a known point. Of numbers a_i is x_i, and L' is taken at x_i.V - t_i. Algorithm "sum"
sends such a gradient as it is (:mod:`dynadp.research.attacks.sums`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import NeighbourSums, admm, public_states
from dynadp.data import Shard
from dynadp.engines import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, OrderedDraws, RoundNoise
from dynadp.planning import Consortium, Plan
from dynadp.privacy import Event, total
from dynadp.problem import Problem, SquaredL2, StackedProblem, solve
from dynadp.research.attacks.rows import dense, parted
from dynadp.research.attacks.sealed import Listener
from dynadp.research.attacks.setting import DELTA, Setting
from dynadp.research.attacks.sums import SumTranscript, without_noise
from dynadp.research.audit import Keyring


@dataclass(frozen=True)
class Transcript:
    """All that leaves the nodes, and the public numbers of every round.

    Attributes
    ----------
    setting
        The network.
    facts
        What every result of an attack on it says: mechanism, alpha or mu, and totals.
    messages
        V(1), ..., V(T), each P x K x d.
    noises
        The law of the target's noise in each round; None without noise.
    events
        What the rounds cost the target.
    """

    setting: Setting
    facts: dict[str, Any]
    messages: Sequence[Array] = field(repr=False)
    noises: Sequence[RoundNoise | None] = field(repr=False)
    events: Sequence[Event] = field(repr=False)

    def replica(self, k: int) -> "Transcript":
        """One of the K copies."""
        k = min(k, self.messages[0].shape[1] - 1)
        return replace(self, messages=[V[:, k : k + 1] for V in self.messages])

    def heard(self, by: int | None = None) -> "Iterator[Heard]":
        """The target's rounds, from all messages or from those that node ``by`` exchanges.

        In place of a message that it does not see, the node puts the target's: nodes come to agree.
        """
        s, own = self.setting, slice(self.setting.target, self.setting.target + 1)
        degrees, eta = s.topology.degrees, np.full(self.messages[0].shape[1], s.eta)
        seen = self.messages
        if by is not None:
            sees = s.topology.adjacency[[by]].toarray()[0] != 0
            sees[by] = True
            seen = [np.where(sees[:, None, None], V, V[own]) for V in self.messages]
        states = public_states(seen, NeighbourSums(s.topology), degrees, eta)
        for V, state, noise in zip(seen, states, self.noises, strict=True):
            phi = noise.phi if noise else 0.0
            q = np.full((1, 1), 2 * s.eta * degrees[s.target] + phi)
            yield Heard(V[own], q, admm.linear_terms(state, eta)[0][own], noise)


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
) -> Transcript | SumTranscript:
    """V(1), ..., V(T) of a seeded run of Algorithm 1, 2 or 3 or "sum", ``replicas`` times."""
    s, sent = setting, list[Array]()
    plan = planned(shards, mechanism, alpha, s)
    facts: dict[str, Any] = {"rounds": s.rounds, "adjacency": s.unit.adjacency}
    if s.silent and mechanism:
        heard = without_noise(shards, plan, s)
        return replace(heard, facts={**facts, "mechanism": "none", "alpha": None, "epsilon": inf})
    draws = OrderedDraws(np.random.default_rng([seed, 0xA77AC]), seeded=True)
    listener = None
    if plan.sealing:
        listener = Listener(s, plan, Keyring.draw(plan.bound.nodes, plan.sealing, draws))
    run = simulate(
        shards,
        s.topology,
        plan,
        gamma=None if mechanism else s.gamma,
        replicas=replicas if mechanism else 1,
        draws=draws,
        storage="dense",
        masks=listener.keys.masks(draws) if listener else None,
        on_round=lambda progress: sent.append(progress.messages.copy()),
    )
    own = slice(s.target, s.target + 1)
    # all replicas have one alpha, and so one law
    noises = [noise.some(own).each(lambda v: v[:, :1]) for noise in run.noises[: s.rounds]]
    events = [event for event in run.events() if event.node == s.topology.nodes[s.target]]
    if listener:
        events = [*listener.events(events)]
    facts |= {
        "mechanism": mechanism.name if mechanism else "none",
        "alpha": alpha,
        "epsilon": total(events, DELTA).epsilon if mechanism else inf,
    }
    if plan.steps:
        heard = SumTranscript(s, facts, sent, run.releases.noises, noises, events, plan)
        if listener is None:
            return heard
        return listener.transcript(heard, sent, [dense(held) for held in shards])
    return Transcript(s, facts, sent, noises or [None] * s.rounds, events)


def planned(
    shards: Sequence[Shard], mechanism: Mechanism | None, alpha: float | None, setting: Setting
) -> Plan:
    """Return the plan of the run that is heard, bound to the nodes."""
    s, common = setting, dict[str, Any]()
    common |= {"mechanism": mechanism, "schedule": alpha}
    common |= {"loss": s.loss, "rounds": s.rounds, "weights": "equal"}
    if mechanism is not None:
        common["unit"] = s.unit
    sums = mechanism is not None and mechanism.algorithm == "sum"
    plan = Plan.of(**common) if sums else Plan.of(**common, C=s.C, rho=s.rho, eta=s.eta)
    counts, first = tuple(held.rows for held in shards), shards[0]
    return plan.on(Consortium(s.topology, counts, first.dimension, classes=first.classes))


def others(setting: Setting, rows: Array) -> Problem:
    """Z_p without the unknown row: a row still weighs C/B, B = known rows + 1."""
    known, (x, t) = len(rows), parted(rows, setting.loss)
    return StackedProblem(
        [x],
        setting.loss,
        SquaredL2(),
        setting.C * known / (known + 1),
        setting.rho,
        storage="dense",
        targets=None if t is None else [t],
    )


def log_density(
    transcript: Transcript | SumTranscript, rows: Array, candidates: Array, by: int | None = None
) -> Array:
    """ln p(V_p(n) | messages before), if node p held ``rows`` and a candidate a = y x: K x N x T,
    up to what a leaves alone.

    With w = C/B, G the gradient and M the Hessian of the problem with the known rows alone, and
    g(a) its minimiser with a: Algorithm 2: -(zeta/w) ||G(V) + w L'(a.V) a|| + ln(1 + w L''(a.V)
    a.M^-1 a). Algorithm 3: -zeta ||V - g(a)||. Algorithm 1: 0 where the gradient is at most gamma,
    else -infinity. Left out: rounding to the grid, and the z of Algorithm 2.

    Parameters
    ----------
    transcript
        What was sent.
    rows
        The known rows of the target, (B - 1) x d; as :mod:`~dynadp.research.attacks.rows` holds
        them.
    candidates
        Such rows, N x d.
    by
        A node with a partial view, or None for all messages.
    """
    if isinstance(transcript, SumTranscript):
        return transcript.log_density(rows, candidates)  # all messages go to all nodes
    s, w = transcript.setting, transcript.setting.C / (len(rows) + 1)
    base = others(s, rows)
    rounds = [_round_density(s, base, w, candidates, heard) for heard in transcript.heard(by)]
    return np.stack(rounds, axis=-1)


def force(transcript: Transcript | SumTranscript, rows: Array) -> Array:
    """-sum_n L'(a.V(n)) a for the unknown row a = y x, as messages without noise show it: d."""
    return np.asarray(np.sum(forces(transcript, rows)[1], axis=0))


def forces(transcript: Transcript | SumTranscript, rows: Array) -> tuple[Array, Array]:
    """Points V(n), and -L'(a.V(n)) a there, as messages without noise show it: T x d both."""
    if isinstance(transcript, SumTranscript):
        return transcript.forces(rows)
    base, w = others(transcript.setting, rows), transcript.setting.C / (len(rows) + 1)
    heard = list(transcript.heard())
    found = [base.gradient(h.V, h.q, h.b)[0, 0] / w for h in heard]
    return np.array([h.V[0, 0] for h in heard]), np.array(found)


def gradients(transcript: Transcript | SumTranscript, count: int) -> tuple[Array, Array, float]:
    """Return points, T x d, w sum_i L'(a_i.V) a_i of ``count`` rows there, T x d, and w."""
    if isinstance(transcript, SumTranscript):
        return transcript.gradients()
    s, heard = transcript.setting, list(transcript.heard())
    V = np.array([h.V[0, 0] for h in heard])
    G = -np.array([(h.b + (h.q[0, 0] + s.rho) * h.V)[0, 0] for h in heard])
    return V, G, s.C / count


def _round_density(s: Setting, base: Problem, w: float, A: Array, heard: Heard) -> Array:
    noise, V = heard.noise, heard.V[0][:, None]
    if noise is not None and not noise.inside:
        return _density(noise, V - _minimisers(s, base, w, A, heard))
    A, t = parted(A, s.loss)
    z = heard.V[0] @ A.T - (0.0 if t is None else t)
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
    """ln of the noise's density at x, K x N x d, up to a constant."""
    density = noise.log_density(x[None])
    if density is None:
        raise DeclarationError("the mechanism's RoundNoise has no log_density, so no attack on it")
    return np.asarray(density[0])


def _steered(base: Problem, A: Array, point: Array, q: Array) -> Array:
    """M^-1 a for every a, N x d, with M at the mean over replicas."""
    M = base.hessians(point, base.margins(point))[0, 0] + q[0, 0] * np.eye(A.shape[1])
    return np.linalg.solve(M, A.T).T


def _minimisers(s: Setting, base: Problem, w: float, A: Array, heard: Heard) -> Array:
    """g(a) = g - w L'(m) M^-1 a, where m = a.g(a) solves m + w L'(m) a.M^-1 a = a.g; K x N x d.
    With numbers m = a.g(a) - t solves the same, of a.g - t.

    To the second order in C/B. With replicas M is only near to each one's, which two more steps
    make good.
    """
    point = solve(base, heard.q, heard.b, np.full((1, 1), s.gamma), heard.V).point
    A, t = parted(A, s.loss)
    steered = _steered(base, A, point, heard.q)
    shift = 0.0 if t is None else t
    kappa, z = w * np.sum(A * steered, axis=1), point[0] @ A.T - shift
    m = z
    for _ in range(8):
        m = m - (m + kappa * s.loss.slope(m) - z) / (1 + kappa * s.loss.curvature(m))
    g = point[0][:, None] - w * s.loss.slope(m)[..., None] * steered
    for _ in range(2 if len(z) > 1 else 0):
        own = w * s.loss.slope(np.einsum("knd,nd->kn", g, A) - shift)[..., None] * A
        flat = g.reshape(1, -1, g.shape[-1])
        force = (
            base.gradient(flat, heard.q, np.repeat(heard.b, len(A), axis=1)).reshape(g.shape) + own
        )
        g = g - _steered(base, force.reshape(flat.shape[1:]), point, heard.q).reshape(g.shape)
    return np.asarray(g)
