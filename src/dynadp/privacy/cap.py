"""A total that may be shared by many runs, whose next steps may depend on what earlier ones
released (maths.md 5).

Discretised totals hold for a plan that was fixed before its first release. Where later losses are
chosen from earlier messages (a second run that follows because of the first, an alpha picked from a
message) two rules stay valid: the plain sum, and a Rényi filter whose order and budget were fixed
beforehand.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, fsum, inf, isfinite, log, log1p
from typing import Literal

from dynadp.errors import DeclarationError
from dynadp.privacy.accountant import check_delta, check_epsilon, plain_losses, total, unit_of
from dynadp.privacy.events import Event, SealedGaussian
from dynadp.privacy.gaussian import counted
from dynadp.privacy.units import Unit

Basis = Literal["sum", "renyi", "plan"]
_THOUSANDTH = 2.0**-10


@dataclass(frozen=True)
class Cap:
    """At most (epsilon, delta) in total: sum of alpha <= epsilon, or sum of Rényi losses of one
    order A <= budget.

    Attributes
    ----------
    epsilon, delta
        The total.
    order
        A, fixed with the cap; by :meth:`of` the one that leaves most room to many small
        Gaussian-like losses.
    """

    epsilon: float
    delta: float
    order: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if not 1 < self.order < inf:
            raise DeclarationError(f"order is {self.order!r}; expected a finite number above 1")

    @classmethod
    def of(cls, epsilon: float, delta: float) -> "Cap":
        """With the order that maximises 2 budget(A)/A, the sum of alpha^2/d that fits when losses
        are Gaussian-like.
        """
        check_epsilon(epsilon)
        check_delta(delta)
        if delta == 0:
            return cls(epsilon, delta, 2.0)
        from scipy.optimize import minimize_scalar  # 0.1 s, and caps are seldom made

        found = minimize_scalar(
            lambda t: -_budget(epsilon, delta, 1 + 10**t) / (1 + 10**t),
            bounds=(-3.0, 6.0),
            method="bounded",
        )
        return cls(epsilon, delta, round(1 + 10 ** float(found.x), 3))

    @cached_property
    def budget(self) -> float:
        """epsilon - ln(1 - 1/A) + ln(delta A)/(A - 1): Rényi loss of order A that implies (epsilon,
        delta).
        """
        return _budget(self.epsilon, self.delta, self.order)

    def spent(self, events: Iterable[Event], unit: Unit | None = None) -> tuple[float, float]:
        """Sum of alpha, and sum of Rényi losses of this order, for the person of ``unit``, by
        default the largest that events were made for; infinite with an unknown event.

        A Gaussian event has no alpha, so the first is infinite, and its Rényi loss is A mu^2/2, of
        the discrete Gaussian too. How far that noise is from a normal one (its ``distance``)
        matters for exact totals alone.
        """
        events = list(events)
        unit = unit or unit_of(events)
        groups = counted(events, unit.rows, unit.silos, unit.adjacency)
        if groups is None:
            return inf, inf
        plain = fsum(plain_losses(events, unit))
        return plain, fsum(n * float(law.renyi((self.order,))[0]) for law, n in groups.items())

    def admits(self, before: Iterable[Event], plan: Iterable[Event]) -> Basis | None:
        """Whether ``plan`` may follow ``before``, and by which rule; None: refused.

        ``sum`` and ``renyi`` leave what is not used to later plans. ``plan`` is for a first plan
        that fits by its discretised total alone: it takes the whole cap, nothing may ever follow.
        """
        before, plan = list(before), list(plan)
        if basis := self.filter([*before, *plan]):
            return basis
        if not before and total(plan, self.delta).epsilon <= self.epsilon:
            return "plan"
        return None

    def filter(self, events: Iterable[Event], unit: Unit | None = None) -> Basis | None:
        """Return the rule by which these events stay within the cap, however each was chosen from
        those before it; None if there is none.
        """
        plain, moment = self.spent(events, unit)
        if plain <= self.epsilon:
            return "sum"
        return "renyi" if moment <= self.budget else None

    def kept_by(self, plan: Iterable[Event]) -> float:
        """Return the delta at which a fixed plan's total is at most epsilon, to a thousandth of the
        cap's: what a plan keeps that ends early, so that others may follow it (maths.md 18).
        """
        plan, low, high = list(plan), _THOUSANDTH, 1.0
        if total(plan, self.delta * low).epsilon <= self.epsilon:
            return self.delta * low
        while high - low > _THOUSANDTH:
            middle = (low + high) / 2
            if total(plan, self.delta * middle).epsilon <= self.epsilon:
                high = middle
            else:
                low = middle
        return self.delta * high

    def without(self, delta: float) -> "Cap":
        """Return the cap whose filter has only the rest of delta; epsilon and order stay."""
        return replace(self, delta=max(0.0, self.delta - delta))

    def affordable(self, before: Iterable[Event], release: Iterable[Event]) -> int:
        """Return how often ``release`` fits after ``before``, by the sum or the Rényi loss."""
        before, release = list(before), list(release)
        unit = unit_of([*before, *release])
        (plain, moment), (alpha, cost) = self.spent(before, unit), self.spent(release, unit)
        by_sum = (self.epsilon - plain) / alpha if alpha > 0 else 0.0
        by_moment = (self.budget - moment) / cost if cost > 0 else 0.0
        most = max(floor(rounds) for rounds in (by_sum, by_moment, 0.0) if isfinite(rounds))
        nodes = {e.node for e in before + release if isinstance(e, SealedGaussian)}
        if len(nodes) > 1:  # they cost more together
            return bisect_left(
                range(1, most + 1), True, key=lambda n: not self.filter(before + release * n)
            )
        return most

    def odometer(self, events: Iterable[Event], unit: Unit | None = None) -> float:
        """min( sum alpha, sum Rényi + ln(1/delta)/(A - 1) ): valid at all moments at once, however
        losses are chosen.

        exp((A - 1)(loss - sum Rényi)) is a supermartingale, so by Ville's inequality the loss
        passes this figure at any moment with probability at most delta.
        """
        plain, moment = self.spent(events, unit)
        return min(plain, moment + (-log(self.delta) / (self.order - 1) if self.delta else inf))


def _budget(epsilon: float, delta: float, order: float) -> float:
    """The inverse of eps = RDP + ln(1 - 1/A) - ln(delta A)/(A - 1) (Canonne, Kamath, Steinke 2020,
    Prop. 12).
    """
    if delta == 0:
        return -inf
    return epsilon - log1p(-1 / order) + (log(delta) + log(order)) / (order - 1)
