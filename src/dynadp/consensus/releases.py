"""What a run releases: the public numbers of all rounds, known before round 1 (maths.md 6)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.consensus.admm import penalty
from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.mechanisms import (
    GaussianNoise,
    Mechanism,
    NoProtection,
    PublicNumbers,
    RoundNoise,
    SumNoise,
)
from dynadp.privacy import Event, Unit
from dynadp.problem import Resolution, Terms, default_gamma, longest, reachable_gamma, reliable


@dataclass(frozen=True)
class ReleasePlan:
    """The public numbers of all rounds of some nodes.

    Attributes
    ----------
    nodes
        Whose.
    mechanism
        How messages are protected.
    public
        What noise is made for; the certified bound gamma on every local gradient among it.
    noises
        The noise of each round, and of a final release where there is one.
    rounds
        T.
    spares
        Of attempts beyond one for each round.
    unit
        Whose loss events are about.
    aim
        What solvers go on to, where they can: gamma for vectors as long as they are likely to get.
    """

    nodes: tuple[str, ...]
    mechanism: Mechanism
    public: PublicNumbers = field(repr=False)
    noises: tuple[RoundNoise, ...] = field(repr=False)
    rounds: int
    aim: Array = field(repr=False)
    spares: tuple[RoundNoise, ...] = field(default=(), repr=False)
    unit: Unit = field(default_factory=Unit)

    @classmethod
    def plan(
        cls,
        terms: Terms,
        topology: Topology,
        eta: Array,
        mechanism: Mechanism,
        alpha: Array,
        start: Array,
        gamma: float | None = None,
        unit: Unit | None = None,
    ) -> "ReleasePlan":
        """Of all nodes, from what is public alone: alpha is P x K x T, V(0) is P x K x d.

        The public balls come first, wide enough for the noise that the largest gamma worth having
        would ask for; then gamma, so large that every vector which messages within the balls can
        lead to is certified, whatever the rows (maths.md 6).

        Raises
        ------
        DeclarationError
            When no gamma is both: so large, and within what the mechanism allows.
        """
        P, rounds, whom = len(terms), alpha.shape[-1], unit or Unit()
        q, far = penalty(topology.degrees, eta), np.linalg.norm(start, axis=-1)
        constants = terms.counts, topology.degrees, terms.dimension, terms.C, terms.rho, eta
        public = PublicNumbers(
            *constants,
            default_gamma(terms, q, far),
            terms.loss,
            rounds,
            float(far.max()),
            whom.moves,
        )
        given = None if gamma is None else np.full((P, 1), float(gamma))
        if isinstance(mechanism, NoProtection):
            public = public if given is None else replace(public, gamma=given)
            noises = (mechanism.noise_for(public, alpha[..., 0]),) * rounds
            return cls(topology.nodes, mechanism, public, noises, rounds, public.gamma, unit=whom)
        allowed = (
            mechanism.allowance(public)
            if given is None
            else np.maximum(mechanism.allowance(public), given)
        )
        wide = _one_ball(mechanism.plan(replace(public, gamma=allowed), alpha))
        if not (steady := reliable(terms, public.Lam).all(axis=1)).all():
            raise DeclarationError(
                f"node {topology.nodes[int(np.argmin(steady))]!r}: with {terms.dimension:,} "
                "columns the solver cannot be relied on where C c1/(rho + 2 eta N) is past a "
                "million, and stopping would tell of rows. Raise rho or eta, or lower C"
            )
        needed = _covering(terms, topology, eta, mechanism, public, wide, far, allowed)
        bounds = needed if given is None else given
        if (found := np.flatnonzero((needed > (allowed if given is None else given))[:, 0])).size:
            _refuse(topology.nodes, found, needed, allowed, given)
        public = replace(public, gamma=bounds)
        noises = tuple(
            c.changed(radius=ball.radius)
            for c, ball in zip(mechanism.plan(public, alpha), wide, strict=True)
        )
        likely = far + max((c.radius for c in wide), key=np.max)
        aim = bounds if given is not None else np.minimum(default_gamma(terms, q, likely), bounds)
        return cls(topology.nodes, mechanism, public, noises, rounds, aim, unit=whom)

    @classmethod
    def sums(
        cls,
        nodes: Sequence[str],
        terms: Terms,
        mechanism: Mechanism,
        mu: Array,
        unit: Unit | None = None,
        vectors: int = 1,
    ) -> "ReleasePlan":
        """Of the nodes that send sums over rows (maths.md 12); mu is P x K x T, and a sum holds so
        many vectors.
        """
        P, K, rounds = mu.shape
        none, whom = np.zeros((P, 1)), unit or Unit()
        given = terms.counts, none[:, 0], terms.dimension, terms.C, 1.0, np.ones(K), none
        public = PublicNumbers(*given, terms.loss, moves=whom.moves, vectors=vectors)
        noises, spares = mechanism.plan(public, mu), mechanism.spare_attempts(public, mu)
        return cls(tuple(nodes), mechanism, public, noises, rounds, none, spares, whom)

    def widened(self, replicas: int) -> "ReleasePlan":
        """Return the same public numbers for so many replicas."""
        shape = (len(self.nodes), replicas)
        noises, spares = (
            tuple(c.each(lambda v: np.broadcast_to(v, shape)) for c in those)
            for those in (self.noises, self.spares)
        )
        return replace(self, noises=noises, spares=spares)

    def some(self, nodes: slice) -> "ReleasePlan":
        """Return the public numbers of some nodes alone."""
        made = {id(c): c.some(nodes) for c in self.noises}  # rounds alike share one
        noises = tuple(made[id(c)] for c in self.noises)
        return replace(
            self,
            nodes=self.nodes[nodes],
            public=self.public.some(nodes),
            noises=noises,
            spares=tuple(c.some(nodes) for c in self.spares),
            aim=self.aim[nodes],
        )

    @property
    def final(self) -> bool:
        """Whether one more release follows the last round."""
        return len(self.noises) > self.rounds

    def width(self, n: int) -> int:
        """How many numbers a message of round n holds; of a spare attempt, at most."""
        if n <= len(self.noises):
            return self.noises[n - 1].width(self.public.dimension)
        return max(noise.width(self.public.dimension) for noise in self.noises)

    def attempt(self, n: int, spare: int = 0) -> tuple[int, RoundNoise]:
        """Return under which number an attempt at round n is entered, and its noise.

        Parameters
        ----------
        n
            The round.
        spare
            0 for the first attempt; otherwise which spare one it takes, from 1.

        Raises
        ------
        SumSpoiled
            Where no attempt is left.
        """
        noise = self.noises[n - 1]
        return self.spare(n, noise, spare) if spare else (n, noise)

    def spare(self, n: int, noise: RoundNoise, spare: int) -> tuple[int, GaussianNoise]:
        """Return the same for a spare attempt at what this noise is for."""
        if spare > len(self.spares):
            raise SumSpoiled(
                f"round {n}: a letter was spoiled or a node stayed away, and no spare attempt is "
                "left: the run is over, and what was released stays charged. Find out which node "
                "sends spoiled letters or none, and begin a new run without it, or with more "
                "spares"
            )
        made = self.spares[spare - 1]
        assert isinstance(made, GaussianNoise)
        assert isinstance(noise, GaussianNoise)
        mu = made.mu
        if made.weighed and not noise.weighed:  # sums of features, which all rows of a person move
            mu = mu / self.unit.rows
        return len(self.noises) + spare, noise.with_mu(mu, made.purpose)

    def events_of(self, entry: int, *, seeded: bool, replica: int = 0) -> tuple[Event, ...]:
        """What an attempt costs that is entered under this number."""
        noise = (*self.noises, *self.spares)[entry - 1]
        made = noise.events(self.nodes, entry, self.width(entry), replica, seeded=seeded)
        return self.unit.declared(made)

    @property
    def resolution(self) -> Resolution:
        """How finely rows are written down for sums."""
        first = self.noises[0]
        assert isinstance(first, SumNoise)
        return first.resolution

    @property
    def weighed(self) -> bool:
        """Whether the rows of each person are weighed."""
        first = self.noises[0]  # a histogram, which comes last, counts rows in full
        return isinstance(first, SumNoise) and first.weighed

    @property
    def inflation(self) -> float:
        """How much longer noise is, at most, than with an exact solver; 1 for as long."""
        return float(self.mechanism.inflation(self.public).max()) if self.private else 1.0

    @property
    def private(self) -> bool:
        """Whether messages are protected."""
        return not isinstance(self.mechanism, NoProtection)

    def events(self, replica: int = 0, *, seeded: bool) -> tuple[Event, ...]:
        """Everything that will be spent, in order, with all spare attempts."""
        entries = range(1, len(self.noises) + len(self.spares) + 1)
        return tuple(e for n in entries for e in self.events_of(n, replica=replica, seeded=seeded))


def _one_ball(rounds: Sequence[RoundNoise]) -> tuple[RoundNoise, ...]:
    """The widest ball of all nodes and rounds for all: vectors hold the noise of earlier rounds,
    and of other nodes.

    But none past 2^50 steps of its grid, as each is exact in float64.
    """
    distinct = {id(c): c for c in rounds}
    widest = np.max([c.radius.max(axis=0) for c in distinct.values()], axis=0)
    made = {
        key: c.changed(radius=np.minimum(widest, c.step * 2.0**50)) for key, c in distinct.items()
    }
    return tuple(made[id(c)] for c in rounds)


def _covering(
    terms: Terms,
    topology: Topology,
    eta: Array,
    mechanism: Mechanism,
    public: PublicNumbers,
    wide: Sequence[RoundNoise],
    start: Array,
    most: Array,
) -> Array:
    """gamma of each node, P x 1, for every vector that messages within the public balls can lead to
    (maths.md 6).

    With R the longest message that a node sends or believes and n rounds behind it, ||W_p|| <= N_p
    R, ||lam_p|| <= n eta N_p R, and in b = 2 lam - 2 eta W the newest own message cancels: ||b|| <=
    2 n eta N_p R. Algorithm 2 adds its noise, at its longest. Algorithm 3 as printed has its own
    private vector in W: no longer than the bound of the round before, and ``most``/Lam, ``most``
    the largest gamma.
    """
    d, q = terms.dimension, penalty(topology.degrees, eta)
    distinct = list({id(c): c for c in wide}.values())
    sent = np.maximum(start, np.max([c.radius + c.step * np.sqrt(d) for c in distinct], axis=0)) * (
        1 + 1e-9
    )
    heard = np.broadcast_to(sent.max(axis=0), sent.shape)
    paper, n = mechanism.private_iterate, max(1, len(wide) - 1)
    b, parts = q * heard * (n + paper), q * heard * (n + 1)
    own, gamma = np.zeros_like(heard), np.zeros_like(heard)
    for c in wide if paper else distinct:
        noise = c.longest_linear(public)
        private = q * own if paper else 0.0
        Lam = terms.rho + q + c.phi
        own = longest(terms, Lam, b + private + noise)
        gamma = np.maximum(gamma, reachable_gamma(terms, q + c.phi, own, parts + private + noise))
        own = own + most / Lam
    return np.asarray(gamma.max(axis=1, keepdims=True))


def _refuse(
    nodes: Sequence[str],
    found: NDArray[np.intp],
    needed: Array,
    allowed: Array,
    given: Array | None,
) -> None:
    node, least = nodes[int(found[0])], float(needed[found[0], 0])
    if given is not None:
        raise DeclarationError(
            f"gamma is {given[0, 0]:.3g}; node {node!r} needs {least:.3g} or more, so that no "
            f"message of a neighbour can "
            "bring its solver to where stopping would tell of rows. Leave gamma out, or raise it"
        )
    raise DeclarationError(
        f"node {node!r}: no gamma fits. To be certified whatever neighbours send, its solver needs "
        f"gamma = {least:.3g}. Past {allowed[found[0], 0]:.3g} the noise for the solver's error "
        "would be longer than the noise for rows. Raise alpha, rho, eta or the number of rows "
        "(for dual perturbation: slack), or take fewer rounds or columns"
    )
