"""What ledgers would still admit, as the total epsilon of a next run.

Found by asking the ledger's own rule about real plans, never by a formula beside it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import floor, log10, sqrt
from typing import Any

from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, Sealed
from dynadp.planning import Constants, Plan, SumConstants, plan
from dynadp.privacy import Basis, Event, LedgerSummary, Unit

LEAST, MOST = (
    0.001,
    1000.0,
)  # totals below the first count as nothing; above the second none is sought
MARGIN = 1.002  # a plan may cost a thousandth less than asked, and another one need not
_DECADE = 900  # numbers of three digits, 1.00 to 9.99
_ROWS = 2000  # of each node of the run that stands for the next one


def largest_total(fits: Callable[[float], bool], guess: float) -> float | None:
    """Return the largest epsilon of three digits that fits; None where not even 0.001 does.

    Parameters
    ----------
    fits
        Whether a total fits; where one does, all smaller ones do.
    guess
        Where to begin: about as many totals are tried as the digits of its error need.
    """
    last = _index(MOST)
    at = min(max(_index(guess), 0), last)
    step = 1
    if fits(_total(at)):
        low, high = at, min(at + step, last + 1)
        while high <= last and fits(_total(high)):
            step *= 2
            low, high = high, min(high + step, last + 1)
    else:
        low, high = max(at - step, -1), at
        while low >= 0 and not fits(_total(low)):
            step *= 2
            low, high = max(low - step, -1), low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(_total(middle)):
            low = middle
        else:
            high = middle
    return _total(low) if low >= 0 else None


def guess_total(summary: LedgerSummary, events: list[Event], epsilon: float) -> float:
    """About the largest total that fits, from what a plan with another one would cost.

    Rényi losses grow with the square of epsilon, sums of alpha in proportion to it.
    """
    if (cap := summary.limit) is None or not events:
        return LEAST
    (plain, moment), (alpha, cost) = cap.spent(summary.counted), cap.spent(events)
    by_sum = epsilon * max(cap.epsilon - plain, 0.0) / alpha if alpha else 0.0
    by_moment = epsilon * sqrt(max(cap.budget - moment, 0.0) / cost) if cost else 0.0
    whole = 0.0 if summary.counted else cap.epsilon
    return max(LEAST, by_sum, by_moment, whole)


@dataclass(frozen=True, kw_only=True)
class LargestTotal:
    """The largest total epsilon that all ledgers of a run would admit now.

    Attributes
    ----------
    epsilon
        Of three digits, rounded down; None where none fits.
    limited_by
        The nodes whose ledgers would refuse more.
    takes_whole_cap
        The nodes where a run with this total would leave nothing to later runs.
    """

    epsilon: float | None
    limited_by: tuple[str, ...]
    takes_whole_cap: tuple[str, ...] = ()


def find_largest(
    ledgers: Mapping[str, LedgerSummary],
    planned: Callable[[float], list[Event]],
    epsilon: float,
    fixed: Collection[str] = (),
) -> LargestTotal:
    """Return the largest total with which all ledgers would admit a run.

    Parameters
    ----------
    ledgers
        Of its nodes.
    planned
        The events of its plan with a total.
    epsilon
        A total to begin with.
    fixed
        Nodes with a total of their own, which stays.
    """
    known: dict[float, list[Event]] = {}

    def events(total: float) -> list[Event]:
        if total not in known:
            known[total] = planned(total)
        return known[total]

    def refusing(total: float) -> list[str]:
        try:
            return [p for p, own in ledgers.items() if basis_of(own, events(total)) is None]
        except DeclarationError:  # no plan has this total
            return list(ledgers)

    begun = events(epsilon)
    guess = min(
        (
            guess_total(own, _of_node(begun, p), epsilon)
            for p, own in ledgers.items()
            if p not in fixed and _of_node(begun, p)
        ),
        default=epsilon,
    )
    found = largest_total(lambda total: not refusing(total), guess)
    if found is None:
        return LargestTotal(epsilon=None, limited_by=tuple(refusing(LEAST)))
    whole = [p for p, own in ledgers.items() if basis_of(own, events(found)) == "plan"]
    more = refusing(_total(_index(found) + 1))
    return LargestTotal(epsilon=found, limited_by=tuple(more), takes_whole_cap=tuple(whole))


def basis_of(ledger: LedgerSummary, events: Iterable[Event]) -> Basis | None:
    """Return the rule by which a ledger would admit its node's part of a plan; a node that releases
    nothing reserves nothing.
    """
    own = _of_node(events, ledger.node)
    return ledger.admits(own) if own else "sum"


def _of_node(events: Iterable[Event], node: str) -> list[Event]:
    return [event for event in events if event.node == node]


@dataclass(frozen=True)
class NextRun:
    """The run that stands for a next one: what the planner makes of a total epsilon at the cap's
    delta, for equal nodes in a ring.

    A Gaussian run costs the same whatever its rows, columns, nodes and rounds are. The cost of
    primal and dual perturbation depends on them, by a few percent.

    Attributes
    ----------
    mechanism
        Its name; None for the planner's default.
    rounds
        As the planner chooses, if None.
    dimension, nodes
        Columns with the intercept, and nodes.
    unit
        Whose total it is; of a ledger, by default, those for whom its runs were planned.
    """

    mechanism: str | None = None
    rounds: int | None = None
    dimension: int = 10
    nodes: int = 5
    unit: Unit | None = None

    def events(self, node: str, epsilon: float, delta: float) -> list[Event]:
        """Return what the run would release at a node."""
        made = _planned(self, epsilon, delta)
        first = made.bound.nodes[0]
        return [replace(event, node=node) for event in made.events if event.node == first]

    def to_json(self) -> dict[str, Any]:
        """Return what was asked for."""
        return asdict(self)

    def _plan(self, epsilon: float, delta: float) -> Plan:
        mechanism: str | Mechanism | None = self.mechanism
        if mechanism == Sealed.name:
            mechanism = Sealed(honest=max(self.nodes - 1, 1))
        P = max(self.nodes, self.unit.silos if self.unit else 1)
        asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
        asked |= {"mechanism": mechanism, "unit": self.unit}
        network, counts = Topology.family("ring", P), [_ROWS] * P
        made = plan(counts, network, self.dimension, **asked)
        if self.rounds is None:
            return made
        constants: Constants | SumConstants = Constants(rounds=self.rounds)
        if made.mechanism.algorithm == "sum":
            constants = SumConstants(rounds=self.rounds, moment_rounds=self.rounds)
        return plan(counts, network, self.dimension, **asked, constants=constants)


@lru_cache(maxsize=512)
def _planned(run: NextRun, epsilon: float, delta: float) -> Plan:
    """Plan once for all ledgers with the same cap."""
    return run._plan(epsilon, delta)


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """What a ledger would still admit.

    Attributes
    ----------
    node, cap
        Whose ledger; epsilon and delta of its cap, None without one.
    unit
        Whose privacy the totals are about.
    epsilon, basis
        The largest total that a next run may have, of three digits, and the rule that would admit
        it; None where none fits.
    sharing
        The largest total that leaves what it does not use to later runs. Less than ``epsilon``
        where only a fixed plan that takes the whole cap may have that.
    each, runs
        A total that was asked about, and how many runs with it fit one after the other.
    open_runs, taken_by
        Runs whose whole plan counts until they are closed; the run that took the whole cap.
    why
        Why nothing fits; empty where something does.
    """

    node: str
    cap: tuple[float, float] | None
    unit: Unit
    epsilon: float | None = None
    basis: Basis | None = None
    sharing: float | None = None
    each: float | None = None
    runs: int | None = None
    open_runs: tuple[str, ...] = ()
    taken_by: str | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all figures."""
        cap = None if self.cap is None else dict(zip(("epsilon", "delta"), self.cap, strict=True))
        return {**asdict(self), "cap": cap, "open_runs": list(self.open_runs)}


def find_headroom(
    summary: LedgerSummary, next_run: NextRun | None = None, each: float | None = None
) -> Headroom:
    """Return the largest total that this ledger would admit now for a next run.

    Parameters
    ----------
    summary
        The ledger.
    next_run
        What stands for the next run; the planner's default if None.
    each
        Also count how many runs with this total fit one after the other.
    """
    cap, node, counted = summary.cap, summary.node, summary.counted
    standing = next_run or NextRun()
    if standing.unit is None:
        standing = replace(standing, unit=summary.unit)
    known = Headroom(
        node=node,
        cap=None if cap is None else (cap.epsilon, cap.delta),
        unit=standing.unit or summary.unit,
        each=each,
        runs=None if each is None else 0,
        open_runs=tuple(name for name, run in summary.runs.items() if run.returns),
        taken_by=summary.taker.run if summary.taker else None,
    )
    if cap is None:
        return replace(known, why="no cap is set, so nothing can be reserved")
    if summary.taker is not None:
        return replace(known, why=f"run {summary.taker.run} took the whole cap")
    if not cap.delta:
        return replace(known, why="the cap's delta is 0, and a planned run needs one above 0")

    def events(epsilon: float) -> list[Event]:
        return standing.events(node, epsilon, cap.delta)

    def shares(epsilon: float) -> bool:
        """Whether any such plan fits by a rule that leaves the rest to others."""
        return _can(lambda: summary.filters(events(epsilon * MARGIN)))

    def fits(epsilon: float) -> bool:
        whole = not counted and epsilon <= cap.epsilon
        return shares(epsilon) or (whole and _can(lambda: summary.admits(events(epsilon))))

    guess = guess_total(summary, events(cap.epsilon), cap.epsilon)
    found = largest_total(fits, guess)
    if found is None:
        return replace(
            known, why=f"not even a run with epsilon = {LEAST:g} fits beside what counts"
        )
    sharing = found if shares(found) else largest_total(shares, 0.9 * found)
    if each is not None:
        one = events(each * MARGIN)
        runs = (summary.limit or cap).affordable(counted, one)
        while runs and not summary.filters(one * runs):
            runs -= 1
        known = replace(known, runs=runs or int(fits(each)))
    return replace(known, epsilon=found, basis=summary.admits(events(found)), sharing=sharing)


def _can(decide: Callable[[], Basis | None]) -> bool:
    """Whether a plan is admitted; one that cannot be made is not."""
    try:
        return decide() is not None
    except DeclarationError:
        return False


def _total(index: int) -> float:
    """The numbers of three digits from 0.001 on, each the float nearest to its decimal."""
    decade, digits = divmod(index, _DECADE)
    return float(f"{100 + digits}e{decade - 5}")


def _index(epsilon: float) -> int:
    """The index of the largest number of three digits that is not above epsilon."""
    decade = floor(log10(epsilon)) + 3
    index = _DECADE * decade + floor(epsilon / 10.0 ** (decade - 5)) - 100
    while _total(index + 1) <= epsilon:
        index += 1
    while _total(index) > epsilon:
        index -= 1
    return index
