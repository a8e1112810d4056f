"""The values that carry a run: what is minimised, how messages are protected, and both as a plan.

A :class:`Plan` that knows its :class:`Consortium` knows everything that will be released: noise,
events and total follow from public numbers, in one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dynadp import _require
from dynadp._arrays import Array
from dynadp.consensus import Output, ReleasePlan, Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, NoProtection
from dynadp.privacy import Event, Schedule, Total, centring_events, constant, worst_node
from dynadp.problem import (
    Logistic,
    Loss,
    Regularizer,
    SquaredL2,
    Terms,
    Weights,
    check_loss,
    check_regularizer,
    shares,
)

Alpha = Schedule | float | Sequence[Schedule | float]


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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is minimised, and how strongly nodes are held together.

    Attributes
    ----------
    loss, regularizer
        L and R.
    C, rho
        The paper's C^R and rho.
    weights
        ``rows``: every row of the network weighs the same, C over the mean number of rows.
        ``equal``: every node does, as in the paper; see :func:`~dynadp.problem.terms.shares`.
    eta
        The penalty: a number, or one for each replica; None for :func:`default_eta`.
    """

    loss: Loss = field(default_factory=Logistic)
    regularizer: Regularizer = field(default_factory=SquaredL2)
    C: float = 1.0
    weights: Weights = "rows"
    rho: float = 1e-4
    eta: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name, kind in (("loss", Loss), ("regularizer", Regularizer)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise DeclarationError(
                    f"{name} is {given!r}; expected a {kind.__name__}, such as "
                    f"{kind.__subclasses__()[0].__name__}()"
                )
        _require.positive("C", self.C)
        _require.positive("rho", self.rho)

    def eta_of(self, replicas: int = 1) -> Array:
        """Return the penalty of each replica."""
        try:
            given = np.asarray(self.eta, dtype=float)
        except (TypeError, ValueError):
            given = np.full((), np.nan)
        good = given.shape in ((), (replicas,)) and np.isfinite(given).all() and (given > 0).all()
        if not good:
            raise DeclarationError(
                f"eta is {self.eta!r}; expected a finite number above 0, or one for each of the "
                f"{replicas} replicas"
            )
        return np.broadcast_to(given, (replicas,)).copy()


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How messages are protected, and what that may cost.

    Attributes
    ----------
    mechanism
        Adds the noise.
    schedule
        alpha_p(n): how much each release may lose; a number for a constant one, or a list with one
        for each replica.
    centring
        alpha of the centring round of each node; empty where there is none.
    delta
        At which totals are stated.
    epsilon
        The total that each node was promised; empty where alpha was chosen instead.
    """

    mechanism: Mechanism
    schedule: Alpha
    centring: tuple[float, ...] = ()
    delta: float = 0.0
    epsilon: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism) or isinstance(self.mechanism, NoProtection):
            raise DeclarationError(
                f"mechanism is {self.mechanism!r}, which protects nothing; expected one that does, "
                "such as Primal(). A plan without protection has protection = None"
            )

    def alphas(self, nodes: Sequence[str], rounds: int, replicas: int = 1) -> Array:
        """Return alpha_p(n), P x K x T."""
        single = isinstance(self.schedule, Schedule | int | float)
        given = [self.schedule] * replicas if single else list(self.schedule)  # type: ignore[arg-type]
        if len(given) != replicas:
            raise DeclarationError(
                f"{len(given)} schedules for {replicas} replicas; expected one, or one for each"
            )
        # many draws of few alphas need few tables
        keys = [s if isinstance(s, float) else id(s) for s in given]
        tables = {
            key: (s if isinstance(s, Schedule) else constant(s)).table(nodes, rounds)  # type: ignore[arg-type]
            for key, s in dict(zip(keys, given, strict=True)).items()
        }
        return np.stack([tables[key] for key in keys], axis=1)


@dataclass(frozen=True)
class Consortium:
    """What is public about those who take part.

    Attributes
    ----------
    topology
        Who exchanges messages with whom.
    counts
        B_p of each node, in the topology's order.
    dimension, features
        d with the intercept, and without it.
    """

    topology: Topology = field(repr=False)
    counts: tuple[int, ...]
    dimension: int
    features: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        check_counts(self.counts, len(self.topology))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names, in order."""
        return self.topology.nodes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, decided before any row is read.

    Attributes
    ----------
    settings
        What is minimised.
    protection
        How messages are protected; None where they reveal rows (Algorithm 1).
    rounds
        T, how many at most.
    output
        Which mean of released vectors becomes the model.
    reasons
        The choices in words.
    consortium
        For whom it was made; None for a plan that is not bound yet (:meth:`on`).
    """

    settings: Settings = field(default_factory=Settings)
    protection: Protection | None = None
    rounds: int = 100
    output: Output = "network"
    reasons: tuple[str, ...] = field(default=(), repr=False)
    consortium: Consortium | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _require.whole("rounds", self.rounds)

    @classmethod
    def of(cls, **numbers: Any) -> Self:
        """Make a plan from the fields of all its parts, each by its name.

        ``Plan.of(rho=1e-3, eta=0.02, rounds=10, mechanism=Primal(), schedule=1.0)`` is ``Plan(
        settings=Settings(rho=1e-3, eta=0.02), protection=Protection(mechanism=Primal(),
        schedule=1.0), rounds=10)``. A parameter that is None is as one that was not given.
        """
        given = {name: value for name, value in numbers.items() if value is not None}
        part = {
            kind: {f.name: given.pop(f.name) for f in fields(kind) if f.name in given}
            for kind in (Settings, Protection)
        }
        how = part[Protection]
        if how and isinstance(how.get("mechanism", NoProtection()), NoProtection):
            if more := sorted(set(how) - {"mechanism"}):
                raise DeclarationError(
                    f"{', '.join(more)} was given but no mechanism; give mechanism = Dual() or "
                    "Primal()"
                )
            how = {}
        if how and "schedule" not in how:
            raise DeclarationError(
                f"mechanism {how['mechanism'].name!r} needs a schedule: how much each release may "
                "lose (alpha)"
            )
        if strange := sorted(set(given) - {"rounds", "output", "reasons", "consortium"}):
            raise DeclarationError(
                f"a plan has no {', '.join(strange)}; it has "
                f"{', '.join(f.name for kind in (Settings, Protection) for f in fields(kind))}, "
                "rounds and output"
            )
        return cls(
            settings=Settings(**part[Settings]),
            protection=Protection(**how) if how else None,
            **given,
        )

    def on(self, consortium: Consortium) -> Self:
        """Return the plan for these nodes and numbers of rows, with eta where it had none.

        Promises and centrings are held by position, so a bound plan is refused for other nodes, and
        for its nodes in another order.
        """
        if self.protection:
            P, before = len(consortium.nodes), self.consortium or consortium
            by_position = {len(self.protection.centring), len(self.protection.epsilon)} - {0}
            if by_position and (by_position != {P} or before.nodes != consortium.nodes):
                raise DeclarationError(
                    f"the plan was made for another network than this one of {P} nodes, or for its "
                    "nodes in another order; plan again"
                )
        if self.settings.eta is not None:
            return replace(self, consortium=consortium)
        s = self.settings
        if len(consortium.topology) == 1 and self.protection is None:
            eta = (
                1e-9 * s.rho
            )  # nothing to agree on, and no noise to hold back: one round is enough
        else:
            eta = default_eta(consortium.topology, s.loss, s.C, s.rho)
        return replace(self, settings=replace(s, eta=eta), consortium=consortium)

    @property
    def mechanism(self) -> Mechanism:
        """How messages are protected; :class:`~dynadp.mechanisms.base.NoProtection` for not."""
        return self.protection.mechanism if self.protection else NoProtection()

    @property
    def bound(self) -> Consortium:
        """For whom the plan was made."""
        if self.consortium is None:
            raise DeclarationError(
                "the plan is for no consortium yet; bind it: plan.on(Consortium(topology, counts, "
                "dimension))"
            )
        return self.consortium

    def table(self, replicas: int = 1) -> Array:
        """Return alpha_p(n), P x K x T; NaN without protection, so that nobody takes it for a
        number.
        """
        nodes = self.bound.nodes
        if self.protection is None:
            return np.full((len(nodes), replicas, self.rounds), np.nan)
        return self.protection.alphas(nodes, self.rounds, replicas)

    @cached_property
    def alphas(self) -> tuple[float, ...]:
        """The largest alpha of each node over the rounds of training."""
        return tuple(self.table()[:, 0].max(axis=1).tolist())

    @property
    def alpha(self) -> float:
        """The largest loss of one round of training."""
        return max(self.alphas)

    @property
    def centrings(self) -> tuple[float, ...]:
        """alpha of the centring round of each node; empty where there is none."""
        return self.protection.centring if self.protection else ()

    @property
    def delta(self) -> float:
        """At which totals are stated."""
        return self.protection.delta if self.protection else 0.0

    def terms(self) -> Terms:
        """Return the public constants of the local problems."""
        s, c = self.settings, self.bound
        check_loss(s.loss)
        check_regularizer(s.regularizer)
        B = check_counts(c.counts, len(c.nodes))
        C = shares(float(s.C), B, s.weights)
        return Terms(B, c.dimension, s.loss, s.regularizer, C, s.rho)

    def releases(
        self, replicas: int = 1, start: ArrayLike | None = None, gamma: float | None = None
    ) -> ReleasePlan:
        """Return the public numbers of all releases.

        Parameters
        ----------
        replicas
            K.
        start
            V(0), public: d numbers, or what broadcasts to P x K x d; zero by default.
        gamma
            Bound on every local gradient; by default the least that covers what neighbours may
            send. The plan is refused where there is none.
        """
        c = self.bound
        V = start_of(start, (len(c.nodes), replicas, c.dimension))
        eta, alpha = self.settings.eta_of(replicas), self.table(replicas)
        return ReleasePlan.plan(self.terms(), c.topology, eta, self.mechanism, alpha, V, gamma)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Everything that will be spent, by all nodes; nothing without protection."""
        if self.protection is None:
            return ()
        c = self.bound
        width = c.dimension - 1 if c.features is None else c.features
        centring = centring_events(c.nodes, self.centrings, width, seeded=False)
        return centring + self.release_plan.events(seeded=False)

    @cached_property
    def release_plan(self) -> ReleasePlan:
        """The public numbers of one run's releases from V(0) = 0."""
        return self.releases()

    @cached_property
    def total(self) -> Total:
        """What that costs a person with a row at one node, at most."""
        return worst_node(self.events, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for a record; alpha of a node is one number where all rounds have it."""
        s, table = self.settings, self.table()[:, 0]
        private = self.protection is not None
        return {
            "mechanism": self.mechanism.describe(),
            "loss": s.loss.describe(),
            "regularizer": s.regularizer.describe(),
            "C": s.C,
            "weights": s.weights,
            "rho": s.rho,
            "eta": s.eta,
            "rounds": self.rounds,
            "output": self.output,
            "alpha": self.alpha if private else None,
            "alphas": [_shortest(row) for row in table] if private else [],
            "centring": max(self.centrings, default=None),
            "centrings": list(self.centrings),
            "delta": self.delta,
            "epsilon": list(self.protection.epsilon) if self.protection else [],
            "total": self.total.to_json() if private else None,
            "reasons": list(self.reasons),
        }


def start_of(start: ArrayLike | None, shape: tuple[int, int, int]) -> Array:
    """Return V(0), P x K x d."""
    try:
        given = np.zeros(1) if start is None else np.asarray(start, float)
        V = np.broadcast_to(given, shape)
    except ValueError:
        raise DeclarationError(
            f"start has shape {np.asarray(start).shape}; expected {shape[2]} numbers (or P x K x d "
            f"= {' x '.join(map(str, shape))})"
        ) from None
    if not np.isfinite(V).all():
        raise DeclarationError(
            "start holds NaN or infinite values; V(0) must be a finite public vector"
        )
    return V


def check_counts(counts: Sequence[float], nodes: int) -> Array:
    """B_p as numbers, one for each node, from 1."""
    B = np.asarray(counts, dtype=float)
    if B.shape != (nodes,) or not (np.isfinite(B).all() and (B >= 1).all()):
        raise DeclarationError(
            f"counts are {list(counts)!r}; expected the number of rows of each of {nodes} nodes, "
            f"from 1"
        )
    return B


def _shortest(row: Array) -> float | list[float]:
    values: list[float] = row.tolist()
    return values[0] if len(set(values)) == 1 else values
