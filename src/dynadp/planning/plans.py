"""The values that carry a run: what is minimised, how messages are protected, and both as a plan.

A :class:`Plan` that knows its :class:`Consortium` knows everything that will be released: noise,
events and total follow from public numbers, in one place.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dynadp import _require
from dynadp._arrays import Array
from dynadp._cards import card
from dynadp._files import canonical_json
from dynadp.consensus import Output, ReleasePlan, Steps
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    CellNoise,
    Mechanism,
    NoProtection,
    Sealing,
    Sum,
    centring_events,
    check_spares,
    standing_out,
)
from dynadp.planning.parts import Consortium, Protection, Settings, check_counts, default_eta
from dynadp.planning.sums import (
    SumConstants,
    sealed_signal,
    signal,
    weigh_nodes,
    weigh_sealed,
)
from dynadp.privacy import (
    Collusion,
    Event,
    Gaussian,
    Total,
    Unit,
    collusion_curve,
    group_by_node,
    guarantee,
    per_node,
    to_json,
    worst_node,
)
from dynadp.problem import Terms, check_loss, check_regularizer, shares


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, decided before any row is read.

    Attributes
    ----------
    settings
        What is minimised.
    steps
        How the common point of algorithm "sum" moves; None for ADMM.
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
    steps: Steps | None = None
    protection: Protection | None = None
    rounds: int = 100
    output: Output = "network"
    reasons: tuple[str, ...] = field(default=(), repr=False)
    consortium: Consortium | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _require.whole("rounds", self.rounds)
        if (self.mechanism.algorithm == "sum") != (self.steps is not None):
            raise DeclarationError(
                f"mechanism {self.mechanism.name!r} is for algorithm "
                f"{self.mechanism.algorithm!r}; steps are for algorithm 'sum' alone"
            )
        if self.rounds <= self._moments:
            raise DeclarationError(
                f"rounds is {self.rounds}; expected one more than the round of the second moment"
            )
        if self.rounds <= self._moments + self._histograms:
            raise DeclarationError(
                f"rounds is {self.rounds}; expected one more than those of the second moment and "
                "of the histogram, which is the last"
            )
        if self._histograms and self.output == "last":
            raise DeclarationError(
                "output is 'last', and the histogram is of the mean's scores; take another output, "
                "or leave the histogram (calibration) out"
            )

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        facts: dict[str, Any] = {
            "algorithm": self.algorithm,
            "mechanism": self.mechanism.name,
            "rounds": self.rounds,
            "model": self.output,
        }
        notes = [f"- {reason}" for reason in self.reasons]
        if self.consortium is None:
            return card("Plan", facts, [*notes, "Not bound to a consortium yet: plan.on(...)."])
        facts["nodes"] = len(self.bound.nodes)
        if self.protection is None:
            return card("Plan", facts, ["Messages reveal rows.", *notes])
        total = self.total
        promise = guarantee(
            total.epsilon, total.delta, planned=True, honest=total.honest, unit=total.unit
        )
        return card("Plan", facts, [promise, *notes])

    @property
    def algorithm(self) -> str:
        """``admm`` or ``sum``."""
        return "sum" if self.steps else "admm"

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
            for kind in (Settings, Protection, Steps)
        }
        how = part[Protection]
        if how and isinstance(how.get("mechanism", NoProtection()), NoProtection):
            if more := sorted(set(how) - {"mechanism"}):
                raise DeclarationError(
                    f"{', '.join(more)} was given but no mechanism; give mechanism = Sum(), "
                    "Primal() or Dual()"
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
                f"{', '.join(f.name for kind in part for f in fields(kind))}, rounds and output"
            )
        sums = bool(how) and how["mechanism"].algorithm == "sum"
        settings = Settings(**part[Settings])
        if sums and settings.loss.residual:  # which curves more than a loss of margins
            usual = SumConstants.of(0, settings.loss)
            steps = {"momentum": usual.momentum, "curvature": usual.curvature}
            part[Steps] = steps | part[Steps]
        return cls(
            settings=settings,
            steps=Steps(**part[Steps]) if sums or part[Steps] else None,
            protection=Protection(**how) if how else None,
            **given,
        )

    def on(self, consortium: Consortium) -> Self:
        """Return the plan for these nodes and numbers of rows, with eta, or with the steps of
        algorithm "sum", where it had none.

        A loss or an algorithm that is not for the label's classes is refused.

        Promises, centrings and weights are held by position, so a bound plan is refused for other
        nodes, and for its nodes in another order.
        """
        weights = self.steps.node_weights if self.steps else ()
        consortium.require_kind(self.settings.loss, self.algorithm)
        if self.protection:
            P, before = len(consortium.nodes), self.consortium or consortium
            held = self.protection.centring, self.protection.epsilon, weights
            by_position = {len(numbers) for numbers in held} - {0}
            if by_position and (by_position != {P} or before.nodes != consortium.nodes):
                raise DeclarationError(
                    f"the plan was made for another network than this one of {P} nodes, or for its "
                    "nodes in another order; plan again"
                )
        if self.steps:
            return self._sealed_among(consortium)._with_steps(self.steps, consortium)
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

    def _sealed_among(self, consortium: Consortium) -> Self:
        """Let sealed sums know how many nodes there are."""
        if self.protection is None:
            return self
        among = self.mechanism.among(len(consortium.nodes))
        return replace(self, protection=replace(self.protection, mechanism=among))

    def _with_steps(self, steps: Steps, consortium: Consortium) -> Self:
        """Weigh nodes, and find q = k T/N."""
        bound = replace(self, steps=replace(steps, node_weights=()), consortium=consortium)
        counts = check_counts(consortium.counts, len(consortium.nodes))
        mus = bound.mus * (2 / self.unit.moves)  # as if rows were replaced
        weigh = weigh_nodes if self.sealing is None else weigh_sealed
        given = steps.node_weights or weigh(counts, mus, self.settings.weights)
        if self.sealing and not all(w > 0 for w in given):
            raise DeclarationError(
                "a node weighs nothing in a sealed sum, and would add no noise; the noise of all "
                "nodes hides a row: give every node a weight above 0, or leave it out of the run"
            )
        pull, constants = steps.pull, SumConstants.of(consortium.classes, self.settings.loss)
        if pull is None:
            k = constants.moment_pull if self._moments else constants.pull
            moved, w = self.rounds - self._moments - self._histograms, np.array(given)
            if self.sealing is None:
                N = signal(counts, mus, w)
            else:
                N = sealed_signal(counts, mus, w, self.sealing)
            pull = k * moved * self.settings.loss.slope_bound / (N * self.settings.row_weight)
            pull = pull if self._moments else max(pull, constants.least_pull)
        made = replace(bound, steps=replace(steps, node_weights=given, pull=pull))
        if self.sealing and made.centrings:
            check_spares(made.mechanism, np.array(made.centrings), made.gradient_mus)
        return made

    @property
    def unit(self) -> Unit:
        """Whose loss totals are about."""
        return self.protection.unit if self.protection else Unit()

    @property
    def sealing(self) -> Sealing | None:
        """Who takes part in sealed sums; None in the open."""
        return self.mechanism.sealing

    def part(self, problems: int) -> Self:
        """Return what each of so many problems does that share the plan, one after the other."""
        if problems == 1 or self.protection is None:
            return self
        rounds, nodes = self.rounds // problems, self.bound.nodes
        table = self.protection.alphas(nodes, self.rounds)[:, 0, :rounds].tolist()
        schedule = per_node(dict(zip(nodes, table, strict=True)))
        return replace(self, rounds=rounds, protection=replace(self.protection, schedule=schedule))

    @property
    def _moments(self) -> int:
        """How many rounds release a second moment."""
        return int(isinstance(self.mechanism, Sum) and bool(self.mechanism.second_moment))

    @property
    def _histograms(self) -> int:
        """How many rounds release a histogram of scores: the last, or none."""
        return int(isinstance(self.mechanism, Sum) and bool(self.mechanism.histogram))

    @property
    def releases_histogram(self) -> bool:
        """Whether the last round releases a histogram of scores."""
        return bool(self._histograms)

    @property
    def least_histogram(self) -> float:
        """How many rows of a label stand out from the noise of the last round's histogram."""
        noise = self.release_plan.noises[-1]
        assert isinstance(noise, CellNoise)
        deviation = noise.of_sum(self.steps.node_weights if self.steps else ())
        return standing_out(float(deviation[0]), noise.bins)

    @property
    def gradient_mus(self) -> Array:
        """mu_p of the last gradient: of algorithm "sum"."""
        return self.table()[:, 0, -1 - self._histograms]

    @property
    def mus(self) -> Array:
        """mu_p of all that each node may release, with Gaussian noise."""
        centrings = np.array(self.centrings or [0.0] * len(self.bound.nodes))
        return np.asarray(np.sqrt(centrings**2 + np.sum(self.table()[:, 0] ** 2, axis=-1)))

    @property
    def senders(self) -> tuple[int, ...]:
        """The positions of the nodes that release anything: all, but for those of weight 0."""
        weights = (self.steps.node_weights if self.steps else ()) or [1.0] * len(self.bound.nodes)
        return tuple(p for p, weight in enumerate(weights) if weight)

    @property
    def rows(self) -> float:
        """sum_p w_p B_p: the rows that count."""
        weights = self.steps.node_weights if self.steps else [1.0] * len(self.bound.nodes)
        return float(np.dot(weights, self.bound.counts))

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
        """Return alpha_p(n), or mu_p(n), P x K x T; 0 for a node that sends nothing. NaN without
        protection, so that nobody takes it for a number.
        """
        nodes = self.bound.nodes
        if self.protection is None:
            return np.full((len(nodes), replicas, self.rounds), np.nan)
        table = self.protection.alphas(nodes, self.rounds, replicas)
        if self.sealing and self.steps and self.steps.node_weights:
            return _weighed(table, np.array(self.steps.node_weights)[:, None, None])
        if len(those := self.senders) < len(nodes):
            silent = np.setdiff1d(np.arange(len(nodes)), those)
            table = table.copy()
            table[silent] = 0.0
        return table

    def pulls(self, replicas: int = 1) -> Array:
        """Return the penalty of each replica: eta, or the pull of algorithm "sum"."""
        if self.steps is None:
            return self.settings.eta_of(replicas)
        return np.full(replicas, self.steps.pull, dtype=float)

    @cached_property
    def alphas(self) -> tuple[float, ...]:
        """The largest alpha, or mu, of each node over the rounds of training."""
        return tuple(self.table()[:, 0].max(axis=1).tolist())

    @property
    def alpha(self) -> float:
        """The largest loss of one round of training: alpha, or mu where noise is Gaussian."""
        return max(self.alphas)

    @property
    def centrings(self) -> tuple[float, ...]:
        """alpha, or mu, of the centring round of each node; empty where there is none."""
        given = self.protection.centring if self.protection else ()
        if given and self.sealing and self.steps and self.steps.node_weights:
            return tuple(_weighed(np.array(given), np.array(self.steps.node_weights)).tolist())
        if not given or self.consortium is None or len(self.senders) == len(given):
            return given
        return tuple(loss if p in self.senders else 0.0 for p, loss in enumerate(given))

    @property
    def delta(self) -> float:
        """At which totals are stated."""
        return self.protection.delta if self.protection else 0.0

    def terms(self, some: Sequence[int] | None = None) -> Terms:
        """Return the public constants of the local problems, of all nodes or of some."""
        s, c = self.settings, self.bound
        check_loss(s.loss)
        check_regularizer(s.regularizer)
        B = check_counts(c.counts, len(c.nodes))
        C = shares(float(s.C), B, s.weights)
        those = list(range(len(B))) if some is None else list(some)
        return Terms(B[those], c.dimension, s.loss, s.regularizer, C[those], s.rho)

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
        V = start_of(start, (len(c.nodes), replicas, c.vectors * c.dimension))
        if self.steps:
            those = list(self.senders)
            names = [c.nodes[p] for p in those]
            given_sums = self.terms(those), self.mechanism, self.table(replicas)[those], self.unit
            return ReleasePlan.sums(names, *given_sums, c.vectors)
        eta, alpha = self.settings.eta_of(replicas), self.table(replicas)
        given = self.terms(), c.topology, eta, self.mechanism, alpha, V, gamma
        return ReleasePlan.plan(*given, unit=self.unit)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Everything that will be spent, by all nodes; nothing without protection."""
        if self.protection is None:
            return ()
        c = self.bound
        width = c.dimension - 1 if c.features is None else c.features
        those = self.senders if self.centrings else ()
        centring = centring_events(
            [c.nodes[p] for p in those],
            [self.centrings[p] for p in those],
            width,
            self.mechanism.noise,
            seeded=False,
            sealing=self.sealing,
            unit=self.unit,
        )
        events = centring + self.release_plan.events(seeded=False)
        _require_alike(events, self.unit)
        return events

    @cached_property
    def release_plan(self) -> ReleasePlan:
        """The public numbers of one run's releases from V(0) = 0."""
        return self.releases()

    @cached_property
    def total(self) -> Total:
        """What that costs anybody of the plan's unit, at most."""
        return worst_node(self.events, self.delta)

    @cached_property
    def collusion(self) -> tuple[Collusion, ...]:
        """What sealed sums lose where more nodes collude than planned, at the node that loses most;
        empty in the open.
        """
        if self.sealing is None:
            return ()
        most = int(np.argmax(self.alphas))
        return collusion_curve(group_by_node(self.events)[self.bound.nodes[most]], self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for a record; alpha of a node is one number where all rounds have it."""
        s, table = self.settings, self.table()[:, 0]
        private = self.protection is not None
        gaussian = private and self.mechanism.noise == "gaussian"
        return {
            "algorithm": self.algorithm,
            "mechanism": self.mechanism.describe(),
            "noise": self.mechanism.noise if private else None,
            "exchange": self.mechanism.exchange,
            "steps": self.steps.to_json() if self.steps else None,
            "loss": s.loss.describe(),
            "regularizer": s.regularizer.describe(),
            "C": s.C,
            "weights": s.weights,
            **s.by_class,
            "rho": s.rho,
            "eta": s.eta,
            "rounds": self.rounds,
            "output": self.output,
            "alpha": self.alpha if private and not gaussian else None,
            "mu": self.alpha if gaussian else None,
            "alphas": [_shortest(row) for row in table] if private else [],
            "centring": max(self.centrings, default=None),
            "centrings": list(self.centrings),
            "delta": self.delta,
            "unit": asdict(self.unit),
            "epsilon": list(self.protection.epsilon) if self.protection else [],
            "total": self.total.to_json() if private else None,
            "collusion": [point.to_json() for point in self.collusion],
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


def _shortest(row: Array) -> float | list[float]:
    values: list[float] = row.tolist()
    return values[0] if len(set(values)) == 1 else values


def _require_alike(events: Sequence[Event], unit: Unit) -> None:
    """Refuse people at several nodes whose losses cannot be compared.

    Gaussian losses are ordered by mu, so that s nodes like the worst one lose most. Others are not:
    the worst of each alone need not be the worst together.
    """
    if unit.silos == 1 or all(isinstance(event, Gaussian) for event in events):
        return
    kinds = {tuple(sorted(_text(event) for event in own)) for own in group_by_node(events).values()}
    if len(kinds) > 1:
        raise DeclarationError(
            f"silos_per_person is {unit.silos}, and nodes lose differently: with this noise "
            "nobody can say which of them a person would lose most at together. Take mechanism "
            "sum or sealed, whose losses compare, or nodes that are alike"
        )


def _text(event: Event) -> str:
    """Return all of an event but its node."""
    return canonical_json(to_json(event) | {"node": ""})


def _weighed(losses: Array, w: Array) -> Array:
    """w_p min_q mu_q/w_q: one noise hides all nodes, and costs each in proportion to its weight.

    Losses that are in that proportion already stay as they are, to the last bit.
    """
    least = (losses / w).min(axis=0)
    same = np.allclose(losses, w * least, rtol=1e-12, atol=0)
    return losses if same else np.asarray(w * least)
