"""From a total (epsilon, delta) to everything that a private run needs, by rules of public numbers
alone (maths.md 5).

The constants of the rules were found on census-like rows that are made here (``make plan-study``
finds them again); rows of the run itself have no part in them. docs/results.md says how far they
are from the best choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dynadp._arrays import Array
from dynadp.consensus import Output, ReleasePlan, Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Dual, Mechanism, Primal, PublicNumbers
from dynadp.privacy import (
    Event,
    L2Laplace,
    Schedule,
    Total,
    calibrate,
    check_delta,
    check_epsilon,
    constant,
    per_node,
    up,
    worst_node,
)
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

MECHANISMS: dict[str, Mechanism] = {"primal": Primal(), "dual": Dual()}
C = 1.0  # only C/q counts
_ROUNDING = 1e-9  # by which libraries may differ in what they compute for the same plan


@dataclass(frozen=True)
class Constants:
    """What the study on census rows found.

    Attributes
    ----------
    rounds
        T.
    pull
        k in q = k T/(B mu sqrt(P)).
    ridge
        rho/q.
    margin
        m of the loss ln(1 + e^(m - z)).
    centring
        The centring round's share of the sum of alpha^2/d; 0 for none.
    """

    rounds: int = 20
    pull: float = 0.7
    ridge: float = 0.002
    margin: float = 3.0
    centring: float = 0.1


@dataclass(frozen=True)
class Plan:
    """What a run will do, decided before any row is read.

    Attributes
    ----------
    mechanism, loss, C, rho, eta, rounds
        As for :func:`~dynadp.engines.simulation.simulate`.
    alphas
        alpha of each round, for each node in the topology's order.
    centrings
        alpha of the centring round, for each node; empty where there is none.
    output
        Which mean of released vectors becomes the model.
    events
        Everything that will be spent, by all nodes.
    total
        What that costs a person with a row at one node, at most.
    reasons
        The choices in words.
    regularizer
        R; the planner's is ||f||^2/2.
    weights
        What weighs the same: every row, or every node (:func:`~dynadp.problem.objective.shares`).
    """

    mechanism: Mechanism
    loss: Loss
    C: float
    rho: float
    eta: float
    rounds: int
    alphas: tuple[float, ...] = field(repr=False)
    centrings: tuple[float, ...] = field(repr=False)
    output: Output
    events: tuple[Event, ...] = field(repr=False)
    total: Total
    reasons: tuple[str, ...] = field(repr=False)
    regularizer: Regularizer = field(default_factory=SquaredL2)
    weights: Weights = "rows"

    @property
    def alpha(self) -> float:
        """The largest loss of one round of training."""
        return max(self.alphas)

    @property
    def centring(self) -> float | None:
        """The largest loss of the centring round; None where there is none."""
        return max(self.centrings, default=None)

    def schedule(self, nodes: Sequence[str]) -> Schedule:
        """alpha_p(n), the same in all rounds."""
        return (
            constant(self.alpha)
            if len(set(self.alphas)) == 1
            else per_node(dict(zip(nodes, self.alphas, strict=True)))
        )

    def to_json(self) -> dict[str, Any]:
        """The plan for a record."""
        return {
            "mechanism": self.mechanism.describe(),
            "loss": self.loss.describe(),
            "regularizer": self.regularizer.describe(),
            **{
                name: getattr(self, name)
                for name in ("C", "weights", "rho", "eta", "rounds", "alpha", "output", "centring")
            },
            "alphas": list(self.alphas),
            "centrings": list(self.centrings),
            "total": self.total.to_json(),
            "reasons": list(self.reasons),
        }


def plan(
    counts: Sequence[float],
    topology: Topology,
    dimension: int,
    *,
    epsilon: float | Mapping[str, float],
    delta: float,
    mechanism: str = "primal",
    centring: bool = True,
    features: int | None = None,
    weights: Weights = "rows",
    constants: Constants | None = None,
) -> Plan:
    """q = rho + 2 eta N = k T/(B mu sqrt(P)), constant alpha by
    :func:`~dynadp.privacy.inverse.calibrate`.

    mu is that of the Gaussian mechanism with this total. Each released coordinate then carries
    noise of about 2 sqrt(P/T)/k, the same for all totals: the pull towards 0 and the noise stay in
    proportion. Where nodes differ, 1/(B mu)^2 is the mean over nodes, as the noise of a mean over
    nodes is.

    Parameters
    ----------
    counts
        B_p of each node, in the topology's order: public.
    topology
        The network.
    dimension
        d, with the intercept.
    epsilon, delta
        The total that nobody with a row at one node may lose more of; epsilon may differ from node
        to node.
    mechanism
        ``primal`` or ``dual``.
    centring
        Whether rows can be centred first: not where the schema has a public centre already.
    features
        Columns without the intercept, whose means a centring round releases; d - 1 by default.
    weights
        ``rows``: every row of the network weighs the same. ``equal``: every node does, as in the
        paper; a small node then brings much noise.
    constants
        Of the rules; by default as found on census rows.
    """
    constants = constants or Constants()
    nodes, P, T = topology.nodes, len(topology.nodes), constants.rounds
    totals = _totals(epsilon, delta, nodes)
    if mechanism not in MECHANISMS:
        raise DeclarationError(
            f"mechanism is {mechanism!r}; expected one of {', '.join(MECHANISMS)}"
        )
    B = check_counts(counts, P)
    mus = np.array([gaussian_mu(total, delta) for total in totals])
    shared = shares(C, B, weights)
    q = constants.pull * T / (float(np.mean((C * B / shared * mus) ** -2.0) ** -0.5) * sqrt(P))
    rho = constants.ridge * q
    eta = (q - rho) / (2 * float(topology.degrees.mean()))
    loss, chosen = Logistic(constants.margin), MECHANISMS[mechanism]
    features = dimension - 1 if features is None else features
    share = constants.centring if centring and features else 0.0
    weight = sqrt(
        share / (1 - share) * T * features / dimension
    )  # alpha of the centring round over alpha

    def events(alphas: Array, which: list[int]) -> list[Event]:
        names, centre = [nodes[p] for p in which], weight * alphas if share else alphas[:0]
        public = public_numbers(
            B[which], topology.degrees[which], dimension, shared[which], rho, eta, loss
        )
        return planned_events(chosen, public, T, names, alphas, centre, features)

    kinds: dict[
        tuple[float, ...], list[int]
    ] = {}  # nodes that are alike spend alike; primal events depend on the total alone
    for p, kind in enumerate(zip(totals, B.tolist(), topology.degrees.tolist(), strict=True)):
        kinds.setdefault(kind[:1] if mechanism == "primal" else kind, []).append(p)
    alphas = np.empty(P)
    for (most, *_), alike in kinds.items():
        one = alike[:1]
        alphas[alike] = calibrate(lambda scale: events(np.array([scale]), one), most, delta)  # noqa: B023
    everything = tuple(events(alphas, list(range(P))))
    total = worst_node(everything, delta)
    asked = (
        f"epsilon = {max(totals):g}"
        if len(set(totals)) == 1
        else f"epsilon between {min(totals):g} and {max(totals):g}"
    )
    reasons = (
        f"{chosen.name} perturbation: {_WHY[mechanism]}",
        f"{T} rounds with the same alpha = {_range(alphas, up)}; only rounds over penalty counts, "
        f"and uneven alphas gain "
        "nothing",
        f"penalty q = {q:.3g} (eta = {eta:.3g}, rho = {rho:.2g}): in proportion to the noise that "
        f"{asked}, delta = {delta:g} "
        f"ask for, which a Gaussian mechanism with mu = {_range(mus)} has; C = {C:g}, since only "
        f"C/q counts",
        f"loss {loss!r}: a margin raises the signal for the same sensitivity; scores are then no "
        f"log-odds",
        f"a centring round with alpha = {_range(weight * alphas, up)}, {share:.0%} of the budget: "
        f"centred rows differ more"
        if share
        else "no centring round: none was asked for, or the schema has a public centre",
        "the model is the mean of all nodes' messages of the last half of the rounds: averaging "
        "released vectors is free",
        f"in total epsilon = {up(total.epsilon)} at delta = {delta:g} for anybody with a row at "
        f"one node",
        *warnings_about(delta, counts),
        *_burdens(nodes, shared, (shared / (B * mus)) ** 2),
    )
    centrings = tuple((weight * alphas).tolist()) if share else ()
    numbers = C, rho, eta, T, tuple(alphas.tolist()), centrings
    found = Plan(chosen, loss, *numbers, "network", everything, total, reasons, weights=weights)
    return priced(found, counts, topology, dimension)


def releases_of(
    chosen: Plan,
    counts: Sequence[float],
    topology: Topology,
    dimension: int,
    start: ArrayLike | None = None,
) -> ReleasePlan:
    """The public numbers of all releases of a plan; refused where no gamma covers what neighbours
    may send.
    """
    check_loss(chosen.loss)
    check_regularizer(chosen.regularizer)
    B = check_counts(counts, len(topology.nodes))
    terms = Terms(
        B,
        dimension,
        chosen.loss,
        chosen.regularizer,
        shares(chosen.C, B, chosen.weights),
        chosen.rho,
    )
    alpha = chosen.schedule(topology.nodes).table(topology.nodes, chosen.rounds)[:, None]
    first = np.broadcast_to(
        np.zeros(1) if start is None else np.asarray(start, dtype=float), (len(B), 1, dimension)
    )
    return ReleasePlan.plan(terms, topology, np.array([chosen.eta]), chosen.mechanism, alpha, first)


def priced(chosen: Plan, counts: Sequence[float], topology: Topology, dimension: int) -> Plan:
    """The plan with one reason more: what the solver's certificate costs."""
    cost = releases_of(chosen, counts, topology, dimension).inflation - 1
    said = f"{cost:.2g}" if cost < 1e-4 else f"{cost:.2%}"
    reason = f"the solver's certified error lengthens the noise by {said}: it covers whatever neighbours may send"
    return replace(chosen, reasons=(*chosen.reasons, reason))


def planned_events(
    mechanism: Mechanism,
    public: PublicNumbers,
    rounds: int,
    names: Sequence[str],
    alphas: ArrayLike,
    centrings: ArrayLike,
    features: int,
) -> list[Event]:
    """Everything that these nodes will spend: the centring round where there is one, and all rounds
    of training.
    """
    centre = np.asarray(centrings, dtype=float)
    first = (
        [
            L2Laplace(p, 0, "centring", float(a), features)
            for p, a in zip(names, centre, strict=True)
        ]
        if centre.size
        else []
    )
    given = np.asarray(alphas, dtype=float).reshape(len(names), 1, -1)  # by node, or by round too
    table = np.broadcast_to(given, (len(names), 1, rounds))
    releases = enumerate(mechanism.plan(public, table), 1)
    return [
        *first,
        *(event for n, release in releases for event in release.events(names, n, public.dimension)),
    ]


def recorded(
    chosen: Plan,
    said: Mapping[str, Any],
    counts: Sequence[float],
    topology: Topology,
    dimension: int,
) -> Plan:
    """The plan with the numbers of its record, to the last bit: those are reserved, whatever other
    libraries round now.

    Parameters
    ----------
    chosen
        The same plan, made anew.
    said
        What :meth:`Plan.to_json` said of it when the run began.
    counts, topology, dimension
        As for :func:`plan`.

    Returns
    -------
    Plan
        ``chosen`` as it is where the record is of another plan.
    """
    try:
        C, rho, eta = (float(said[name]) for name in ("C", "rho", "eta"))
        alphas = [float(alpha) for alpha in said["alphas"]]
        centrings = said.get("centrings")  # version 0.1.0 kept the largest alone
        if centrings is None:
            centrings = (
                []
                if said["centring"] is None
                else [said["centring"] * (alpha / said["alpha"]) for alpha in alphas]
            )
        new = [C, rho, eta, *alphas, *map(float, centrings)]
    except (KeyError, TypeError, ValueError):
        return chosen
    own = [chosen.C, chosen.rho, chosen.eta, *chosen.alphas, *chosen.centrings]
    if len(new) != len(own) or not np.allclose(new, own, rtol=_ROUNDING, atol=0):
        return chosen
    features = next(
        (
            event.dimension
            for event in chosen.events
            if isinstance(event, L2Laplace) and event.round == 0
        ),
        0,
    )
    shared = shares(C, counts, chosen.weights)
    public = public_numbers(
        np.array(counts, dtype=float), topology.degrees, dimension, shared, rho, eta, chosen.loss
    )
    events = tuple(
        planned_events(
            chosen.mechanism, public, chosen.rounds, topology.nodes, alphas, centrings, features
        )
    )
    given = replace(
        chosen,
        C=C,
        rho=rho,
        eta=eta,
        alphas=tuple(alphas),
        centrings=tuple(centrings),
        events=events,
    )
    return replace(given, total=worst_node(events, chosen.total.delta))


def check_plan(
    chosen: Plan, counts: Sequence[float], topology: Topology, dimension: int, features: int
) -> None:
    """Refuse a plan whose events are not what a run on this network with these rows will spend."""
    B = check_counts(counts, len(topology.nodes))
    shared = shares(chosen.C, B, chosen.weights)
    public = public_numbers(
        B, topology.degrees, dimension, shared, chosen.rho, chosen.eta, chosen.loss
    )
    spent = planned_events(
        chosen.mechanism,
        public,
        chosen.rounds,
        topology.nodes,
        chosen.alphas,
        chosen.centrings,
        features,
    )
    if tuple(spent) != chosen.events:
        raise DeclarationError(
            "the plan was made for another network, other numbers of rows or other columns, or "
            "was changed; plan again"
        )


def warnings_about(delta: float, counts: Sequence[float]) -> tuple[str, ...]:
    """What to say of a delta that is not below 1/B_p: giving away one row at random would be within
    it.
    """
    least = float(min(counts))
    if delta * least < 1:
        return ()
    return (
        f"DELTA IS LARGE: {delta:g} is not below one over the {least:g} rows of the smallest "
        f"node; give less, as 1e-5",
    )


def _burdens(nodes: Sequence[str], signal: Array, noise: Array) -> tuple[str, ...]:
    """Which nodes lower sum(signal)/sqrt(sum(noise)), signal over noise in the sum over nodes: the
    rest would do better alone.

    Where rows weigh the same and all have one total, these are nodes with fewer rows than about
    half of the mean.
    """
    ratio = signal.sum() / sqrt(noise.sum())
    rest, left = signal.sum() - signal, noise.sum() - noise
    worse = np.flatnonzero(rest > ratio * np.sqrt(left)) if len(nodes) > 1 else np.zeros(0, int)
    if not worse.size:
        return ()
    names = ", ".join(repr(nodes[p]) for p in worse[:5]) + (
        f" and {len(worse) - 5} more" if len(worse) > 5 else ""
    )
    bring = "brings" if len(worse) == 1 else "bring"
    return (
        f"{names} {bring} more noise than signal: the model would be more accurate without, or "
        f"with more rows there",
    )


def public_numbers(
    counts: Array,
    degrees: Array,
    dimension: int,
    C: float | Array,
    rho: float,
    eta: float,
    loss: Loss,
) -> PublicNumbers:
    """What calibrations look at, with any gamma: it moves no event."""
    return PublicNumbers.of(
        counts, degrees, dimension, C, rho, np.array([eta]), np.full((len(counts), 1), 1e-9), loss
    )


def check_counts(counts: Sequence[float], nodes: int) -> Array:
    """B_p as numbers, one for each node, from 1."""
    B = np.asarray(counts, dtype=float)
    if B.shape != (nodes,) or not (np.isfinite(B).all() and (B >= 1).all()):
        raise DeclarationError(
            f"counts are {list(counts)!r}; expected the number of rows of each of {nodes} nodes, "
            f"from 1"
        )
    return B


def _totals(
    epsilon: float | Mapping[str, float], delta: float, nodes: Sequence[str]
) -> list[float]:
    check_delta(delta)
    if not delta:
        raise DeclarationError(
            "delta is 0; plans need one above 0, well below one over the number of rows, such as "
            "1e-5"
        )
    if isinstance(epsilon, Mapping):
        if set(epsilon) != set(nodes):
            raise DeclarationError(
                f"epsilon is given for {sorted(epsilon)}; expected one for each node: "
                f"{', '.join(nodes)}"
            )
        totals = [epsilon[p] for p in nodes]
    else:
        totals = [epsilon] * len(nodes)
    for total in set(totals):
        check_epsilon(total)
    return totals


def _range(values: Array, said: Callable[[float], str] = "{:.4g}".format) -> str:
    low, high = said(float(np.min(values))), said(float(np.max(values)))
    return low if low == high else f"{low} to {high}"


_WHY = {
    "primal": "its losses average out over rounds, the dual one's Jacobian share does not",
    "dual": "asked for; at the same total it is noisier over many rounds",
}


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism that loses (epsilon, delta): Phi(mu/2 - eps/mu) - e^eps
    Phi(-mu/2 - eps/mu) = delta.

    >>> round(gaussian_mu(1.0, 1e-5), 3)
    0.268
    """

    def excess(mu: float) -> float:
        return float(
            ndtr(mu / 2 - epsilon / mu)
            - exp(min(epsilon + log_ndtr(-mu / 2 - epsilon / mu), 0.0))
            - delta
        )

    return float(brentq(excess, 1e-12, 100 + 2 * sqrt(epsilon)))
