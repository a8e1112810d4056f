"""What many releases lose in total (maths.md 5): from the events' numbers alone, never less than
the truth.

Totals hold for plans that were fixed before their first release; neighbours' messages may be chosen
by an adversary as they go. For losses that are chosen on the way see :mod:`dynadp.privacy.cap`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from math import ceil, exp, floor, fsum, inf, isfinite, log, log1p, log2, sqrt
from typing import Any

import numpy as np

from dynadp import _require
from dynadp._cards import card
from dynadp.errors import DeclarationError
from dynadp.privacy.distributions import LARGEST, LossDistribution, Pure, dots
from dynadp.privacy.events import REPLACE, Event, SealedGaussian
from dynadp.privacy.gaussian import GaussianLoss, counted, gaussian_epsilon, one_gaussian
from dynadp.privacy.statements import guarantee, upper_bound
from dynadp.privacy.units import Unit, row_changes

# of delta: what discretised composition may err by, in floating point; never granted to anybody
SLACK = 1e-11
SLACK_EACH = 5e-16  # the same for each release, where there are very many
REACH = 9.5  # how many spreads of a loss the grid holds
TAIL = 1e-15  # of delta: cut off each composition's far ends, and charged
Groups = frozenset[tuple[LossDistribution, int]]


@dataclass(frozen=True)
class Total:
    """The loss over all releases, at most.

    Attributes
    ----------
    epsilon, delta
        The smallest valid figure: (epsilon, delta)-differential privacy.
    method
        Which one that is: ``sum``; ``pure``, the best composition of releases of which only alpha
        is known; ``loss distribution`` or ``renyi``, from how the losses are distributed; ``none``
        where an event is unknown.
    epsilon_sum
        Sum of alpha over releases, at delta = 0.
    epsilon_pure
        The figure of ``pure``.
    alpha
        The largest loss of one round.
    releases
        How many events.
    protected
        Whether all noise came from the system. Where not, this is what the plan would cost with
        system entropy.
    rows, silos, adjacency, limited
        Whom the figures are about: a person with up to so many rows at a node, at up to so many
        nodes, replaced or added, limited or declared (:class:`~dynadp.privacy.units.Unit`).
    honest
        (h, members) of sealed sums among them, once for each kind: the figures hold as long as h
        of so many members are honest. Empty where nobody else has to be.
    """

    epsilon: float
    delta: float
    method: str
    epsilon_sum: float
    epsilon_pure: float
    alpha: float
    releases: int
    protected: bool
    honest: tuple[tuple[int, int], ...] = ()
    rows: int = 1
    silos: int = 1
    adjacency: str = REPLACE
    limited: bool = False

    @property
    def unit(self) -> Unit:
        """Whom the figures are about."""
        return Unit(self.rows, self.silos, self.adjacency, self.limited)

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        bound = f"{upper_bound(self.epsilon)} at delta = {self.delta:g}"
        facts = {"epsilon": bound, "found by": self.method, "releases": self.releases}
        return card("Total privacy loss", facts, [self.guarantee])

    def to_json(self) -> dict[str, Any]:
        """Return the figures; an infinite one is null."""
        return finite(asdict(self)) | {"honest": [list(those) for those in self.honest]}

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence, for anybody with such rows at the node of this total."""
        return guarantee(
            self.epsilon,
            self.delta,
            seeded=not self.protected,
            honest=self.honest,
            unit=self.unit,
        )


def finite(figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures for JSON: None instead of a number that is not finite."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in figures.items()
    }


def total(
    events: Iterable[Event], delta: float, rows: int | None = None, silos: int | None = None
) -> Total:
    """The smallest of all valid totals of these events together, at this delta.

    Parameters
    ----------
    events
        Of one node, or of all nodes where one person has rows.
    delta
        In [0, 1); 0 asks for the plain sum.
    rows
        How many rows a person may have at each of these nodes; by default as many as the events
        were planned for.
    silos
        At how many nodes that lose as much as this one she may have them; by default as events of
        one node were planned, and 1 where events of several nodes are given.
    """
    check_delta(delta)
    events = list(events)
    unit = unit_of(events, rows, silos)
    protected = not any(getattr(event, "seeded", True) for event in events)
    groups, whose = counted(events, unit.rows, unit.silos), astuple(unit)
    if groups is None:
        return Total(inf, delta, "none", inf, inf, inf, len(events), False, (), *whose)
    losses = plain_losses(events, unit)
    per_round: dict[tuple[str, int], float] = defaultdict(float)
    for event, loss in zip(events, losses, strict=True):
        per_round[event.node, event.round] += loss
    plain = fsum(losses)  # to half a unit; calibrations leave 1e-12 of alpha
    figures = {"sum": plain, "pure": plain}
    if delta > 0 and groups:
        distance = unit.silos * fsum(getattr(event, "distance", 0.0) for event in events)
        figures["pure"] = min(plain, _composition(groups, delta, exact=False))
        exact = sum(law.exact for law in groups)
        if exact:  # without one this is the figure of ``pure``
            figures["loss distribution"] = _nearby(one_gaussian(groups), delta, distance)
        if exact < len(groups) or figures["loss distribution"] == inf:  # else it is not smaller
            figures["renyi"] = _converted(frozenset(groups.items()), delta)
    method = min(figures, key=lambda name: figures[name])
    largest = float(max(per_round.values(), default=0.0))
    return Total(
        figures[method],
        delta,
        method,
        plain,
        figures["pure"],
        largest,
        len(events),
        protected,
        rests_on(events),
        *whose,
    )


def unit_of(events: list[Event], rows: int | None = None, silos: int | None = None) -> Unit:
    """Whom an account of these events is about: as given, else as they were planned; several nodes'
    events are those of her nodes.
    """
    planned = Unit.of(events)
    alone = len({getattr(event, "node", None) for event in events}) < 2
    return Unit(
        planned.rows if rows is None else rows,
        (planned.silos if alone else 1) if silos is None else silos,
        planned.adjacency,
        planned.limited and rows in (None, planned.rows),
    )


def plain_losses(events: Iterable[Event], unit: Unit) -> list[float]:
    """The largest loss of each event of one account, for such a person."""
    m, s, events = unit.rows, unit.silos, list(events)
    return [
        event.alpha * (times * m * s if event.per_row else s)
        for event, times in zip(events, row_changes(events, unit.adjacency), strict=True)
    ]


def rests_on(events: Iterable[Event]) -> tuple[tuple[int, int], ...]:
    """(h, members) of all sealed sums among these, each pair once; not where h = 1, the row's own
    node.
    """
    found = {(e.honest, e.members) for e in events if isinstance(e, SealedGaussian)}
    return tuple(sorted(those for those in found if those[0] > 1))


def group_by_node(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Each node's events."""
    out: dict[str, list[Event]] = {}
    for event in events:
        out.setdefault(getattr(event, "node", "unknown"), []).append(event)
    return out


def by_node(
    events: Iterable[Event], delta: float, rows: int | None = None, silos: int | None = None
) -> dict[str, Total]:
    """The total of each node, for persons with rows there, and at as many others as planned."""
    return {node: total(own, delta, rows, silos) for node, own in group_by_node(events).items()}


def worst_node(
    events: Iterable[Event], delta: float, rows: int | None = None, silos: int | None = None
) -> Total:
    """The largest node's total: what anybody may lose for whom the events were planned."""
    return max(
        by_node(events, delta, rows, silos).values(),
        key=lambda figure: figure.epsilon,
        default=total((), delta),
    )


def for_person(
    events: Iterable[Event], nodes: Collection[str], delta: float, rows: int | None = None
) -> Total:
    """The total for a person with rows at several nodes: all their events in one account (epsilons
    at one delta do not add).
    """
    events = list(events)
    strangers = set(nodes) - {getattr(event, "node", None) for event in events}
    if isinstance(nodes, str) or strangers:
        raise DeclarationError(
            f"nodes is {nodes!r}; expected a collection of names of nodes that have events"
        )
    hers = [event for event in events if getattr(event, "node", None) in (*nodes, None)]
    return total(hers, delta, rows, silos=1)


def _nearby(groups: Counter[LossDistribution], delta: float, distance: float) -> float:
    """Epsilon of releases whose noise is within ``distance`` of that of these distributions.

    They are (epsilon, delta' + (1 + e^epsilon) distance)-private where these are (epsilon, delta')
    (maths.md 12); a millionth of delta is held back for it, or more where that is too little. Where
    a hundredth is too little, nothing is claimed.
    """
    if not distance:
        return _composition(groups, delta, exact=True)
    for share in (1e-6, 1e-4, 1e-2):
        epsilon = _composition(groups, delta * (1 - share), exact=True)
        if distance * (1 + exp(min(epsilon, 700.0))) <= delta * share:
            return epsilon
    return inf


def _composition(groups: Counter[LossDistribution], delta: float, *, exact: bool) -> float:
    """Dominating pairs compose adaptively (Zhu, Dong, Wang 2022, Thm. 10).

    Of distributions that are not exact only alpha is used, and of all of them unless ``exact``: the
    optimal composition for given alphas (Kairouz, Oh, Viswanath 2015; Murtagh, Vadhan 2016).
    """
    laws: Counter[LossDistribution] = Counter()
    for law, n in groups.items():
        laws[law if exact and law.exact else Pure(law.alpha)] += n
    return _composed(frozenset(laws.items()), delta)


@lru_cache(maxsize=4096)
def _composed(groups: Groups, delta: float) -> float:
    """Join the dots of every delta(s) pessimistically (Doroshenko et al. 2022), convolve, read
    epsilon off.
    """
    if len(groups) == 1 and isinstance(law := next(iter(groups))[0], GaussianLoss):
        return gaussian_epsilon(law.mu, delta)
    held_back = max(SLACK, SLACK_EACH * sum(n for _, n in groups))
    if delta <= 2 * held_back or max(_reach(law) for law, _ in groups) > LARGEST:
        return inf
    from dp_accounting.pld import pld_pmf  # takes over a second to import

    step = _step(groups)
    parts = []
    for law, n in sorted(groups, key=lambda item: item[0].alpha):
        count = ceil(_reach(law) / step)
        _, deltas = dots(law, step, count)
        part = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            step, -count, count, deltas
        ).to_dense_pmf()
        parts.append(part.self_compose(n, TAIL) if n > 1 else part)
    while len(parts) > 1:  # neighbours in size first: each convolution is of equals
        pairs = [parts[i].compose(parts[i + 1], TAIL) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    try:
        with np.errstate(over="ignore"):
            return float(parts[0].get_epsilon_for_delta(delta - held_back))
    except OverflowError:  # losses too far from 0 for the library; another figure has to do
        return inf


def _reach(law: LossDistribution) -> float:
    """The largest loss on the grid; what lies beyond counts as a breach."""
    return min(law.alpha, REACH * law.spread)


def _step(groups: Groups) -> float:
    """A power of two between 1/16 and 1/8 of the root mean square spread; exactly alpha where there
    is one distribution, of which only alpha is known.
    """
    if len(groups) == 1:
        ((law, _),) = groups
        if not law.exact:
            return law.alpha
    square = fsum(n * law.spread**2 for law, n in groups) / sum(n for _, n in groups)
    return float(2.0 ** floor(log2(sqrt(square) / 8)))


@lru_cache(maxsize=4096)
def _converted(groups: Groups, delta: float) -> float:
    """min over A of sum RDP + ln(1 - 1/A) - ln(delta A)/(A - 1) (Canonne, Kamath, Steinke 2020,
    Prop. 12).
    """
    orders = _orders(fsum(n * law.spread**2 for law, n in groups), delta)
    moments = np.sum([n * law.renyi(orders) for law, n in groups], axis=0)
    return max(
        0.0,
        min(
            float(R) + log1p(-1 / A) - (log(delta) + log(A)) / (A - 1)
            for R, A in zip(moments, orders, strict=True)
        ),
    )


def _orders(variance: float, delta: float) -> tuple[float, ...]:
    """Orders around 1 + sqrt(2 ln(1/delta)/variance), best for Gaussian-like losses, on one common
    ladder.
    """
    best = 12 * log(-2 * log(delta) / variance) / log(10)
    middle = min(max(round(best), -48), 144)
    return tuple(1 + 10 ** (k / 24) for k in range(middle - 20, middle + 21))


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is no total."""
    _require.positive("epsilon", epsilon, ", the total loss")


def check_delta(delta: float) -> None:
    """Refuse a delta that is none."""
    _require.share("delta", delta, zero=True, meaning=", well below one over the number of rows")
