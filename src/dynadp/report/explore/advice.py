"""Accuracy against epsilon on public rows, the way from either to the other, and the recommended
total.

Every number rests on rows that are made here or declared public: a sweep over private rows would
spend budget itself.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, isclose
from threading import Lock
from typing import Any

import numpy as np

from dynadp._intervals import SEVERAL
from dynadp.errors import DeclarationError, DynadpError
from dynadp.planning import Plan
from dynadp.privacy import guess_words, guesses_in_100, honest_words, upper_bound
from dynadp.report.budgets import (
    IN_USE,
    ONLY,
    WITH_SPARES,
    WITHOUT_SPARES,
    WORDS,
    over_rounds,
    worst,
)
from dynadp.report.each_round import round_words, unit_of
from dynadp.report.explore.setting import PublicSetting, digits
from dynadp.report.honesty import Honesty
from dynadp.research import (
    ALIKE,
    DRAWS,
    MOST,
    MOST_COMMON,
    SEED,
    Zones,
    evened,
    fit_points,
    is_useful,
    measure_baselines,
    recommend,
    totals_to_try,
    try_plan,
)

STEPS = 9  # points of the curve over rounds


@dataclass
class Advisor:
    """The points of a sweep so far, and the answers that follow from them.

    Attributes
    ----------
    setting
        What is planned.
    points
        For each total: epsilon, alpha, and of right answers in 100 their median, low, high and the
        median's standard error.
    baselines
        Right answers in 100 without privacy, and of always giving the most common answer.
    source
        Whose rows, in words; empty before the sweep begins.
    rows
        How many rows accuracy is measured on.
    problem
        The error that ended the sweep; empty where there is none.
    done
        Whether all points are there.
    """

    setting: PublicSetting
    points: list[dict[str, float]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    source: str = ""
    rows: int = 0
    problem: str = ""
    done: bool = False

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._plan = lru_cache(512)(self.setting.plan)
        self._curve = lru_cache(512)(self._over_rounds)
        self._honesty = lru_cache(512)(self._rests_on)

    def sweep(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Try totals, both ends first; ``stopped`` is called before each."""
        try:
            rows = self.setting.rows(SEED)
            self.source, self.rows = rows.source, len(rows.held_out)
            self.baselines = measure_baselines(rows, self.setting.objective)
            first, *between, last = totals_to_try(self.planned)
            for epsilon in (first, last, *between):
                if stopped():
                    return
                own, tested = self.planned(epsilon), self.planned(epsilon, rows.counts)
                given = self.setting.topology, rows, tested, DRAWS
                loss = try_plan(*given, objective=self.setting.objective)
                point = {"epsilon": epsilon, "alpha": own.alpha, **_right(loss)}
                self.points = sorted([*self.points, point], key=lambda one: one["epsilon"])
        except DynadpError as error:
            self.problem = str(error)
        self.done = True

    def now(self) -> "Advisor":
        """What is known now: it stays so while an answer is made of it and the sweep goes on."""
        return copy(self)

    @property
    def unit(self) -> str:
        """What a round's loss is called: alpha, or mu where noise is Gaussian."""
        return unit_of(self.planned(self.setting.epsilon))

    @property
    def accountings(self) -> tuple[str, ...]:
        """The names of the curves over rounds; Gaussian releases have no alpha to add up."""
        if self.unit == "alpha":
            return WORDS["sum"][0], WORDS["pure"][0], IN_USE
        found = self.honesty(self.setting.epsilon)
        return (WITHOUT_SPARES, WITH_SPARES) if found and found.spares else (ONLY,)

    @property
    def progress(self) -> tuple[int, int, bool]:
        """Changes whenever the sweep has something new."""
        return len(self.points), len(self.baselines), self.done

    def planned(self, epsilon: float, counts: tuple[int, ...] | None = None) -> Plan:
        """What `dynadp train` would do for this total; with other numbers of rows for a trial on
        fewer.
        """
        with self._lock:  # the accountant's caches are shared
            return self._plan(epsilon, counts)

    def for_total(self, epsilon: float) -> dict[str, Any]:
        """From a total epsilon to alpha, its meaning, and the accuracy to expect."""
        if not 0 < epsilon <= 100:
            raise DeclarationError(f"epsilon is {epsilon:g}; expected a total above 0, at most 100")
        epsilon = digits(epsilon)
        planned, delta = self.planned(epsilon), self.setting.delta
        total = planned.total.epsilon
        return {
            "reached": True,
            "epsilon": epsilon,
            "total": total,
            "cost": upper_bound(total),
            "unit": self.unit,
            "alpha": planned.alpha,
            "centring": max(planned.centrings, default=None),
            "rounds": planned.rounds,
            "each": round_words(planned),
            "odds": guess_words(total, delta, planned.unit),
            "right": guesses_in_100(total, delta),
            "asks": "privacy.{} = {:g}".format(*self.asks(epsilon)),
            "honesty": found.to_json() if (found := self.honesty(epsilon)) else None,
            "accuracy": self.expected(epsilon),
            "words": self._sentence(epsilon),
        }

    def asks(self, epsilon: float) -> tuple[str, float]:
        """The key of a run file's [privacy] that asks for this total, and its value."""
        return self.setting.asks(epsilon, self.planned(epsilon))

    def totals(self, epsilon: float) -> list[dict[str, Any]]:
        """How the total grows over the rounds of this choice, under each accounting."""
        return self._curve(self.for_total(epsilon)["epsilon"])

    def _over_rounds(self, epsilon: float) -> list[dict[str, Any]]:
        _, own = worst(self.planned(epsilon).events, self.setting.delta)
        return over_rounds(own, self.setting.delta, STEPS)

    def honesty(self, epsilon: float) -> Honesty | None:
        """Who must be honest for this choice, and what is lost otherwise; None in the open."""
        return self._honesty(epsilon)

    def _rests_on(self, epsilon: float) -> Honesty | None:
        _, own = worst(self.planned(epsilon).events, self.setting.delta)
        return Honesty.of(own, self.setting.delta)

    @property
    def curve(self) -> list[dict[str, float]]:
        """The measured points, evened: right answers in 100 that never fall as the total grows."""
        return [
            {**one, **_right(fair)}
            for one, fair in zip(self.points, evened(list(map(_wrong, self.points))), strict=True)
        ]

    def for_accuracy(self, target: float) -> dict[str, Any]:
        """From right answers in 100 to the smallest total whose evened median reaches them on the
        swept rows.
        """
        if len(self.points) < 2:
            return {"reached": False, "words": "The sweep has not come that far yet."}
        best = [point["median"] for point in self.curve]
        totals = [point["epsilon"] for point in self.points]
        if not target <= best[-1] + 1e-9:
            words = (
                f"No total up to {MOST:g} reached {target:.1f} in 100 on these rows; the best was "
                f"{best[-1]:.1f}."
            )
            return {"reached": False, "words": words}
        at = min(int(np.searchsorted(best, target)), len(best) - 1)
        if at == 0:
            return self.for_total(totals[0])
        near = slice(at - 1, at + 1)
        found = exp(float(np.interp(target, best[near], np.log(totals[near]))))
        return self.for_total(min(digits(found, up=True), totals[-1]))

    def expected(self, epsilon: float) -> dict[str, Any] | None:
        """Right answers in 100 on the evened curve: as ``measured``, or ``between`` two measured
        totals, straight in ln epsilon; None outside them. And whether they are ``clear`` of the
        most common answer.
        """
        totals = [point["epsilon"] for point in self.points]
        if not totals or not totals[0] * (1 - 1e-9) <= epsilon <= totals[-1] * (1 + 1e-9):
            return None
        curve = self.curve
        found: dict[str, Any] = {"between": None, "measured": None}
        for name in ("median", "low", "high"):
            values = [point[name] for point in curve]
            found[name] = float(np.interp(np.log(epsilon), np.log(totals), values))
        # epsilon is asked for with four digits
        near = [i for i, one in enumerate(totals) if isclose(one, epsilon, rel_tol=1e-3)]
        at = near[0] if near else int(np.searchsorted(totals, epsilon)) - 1
        if near:
            found["measured"] = self.points[at]["median"]
        else:
            found["between"] = totals[at : at + 2]
        # as the measured total below it, so that words and zones never differ
        found["clear"] = is_useful(_wrong(curve[at]), self.blind)
        return found

    @property
    def blind(self) -> float | None:
        """The loss of answers that look at no row, once it is known."""
        known = [self.baselines[name] for name in (MOST_COMMON, ALIKE) if name in self.baselines]
        return 1 - known[0] / 100 if known else None

    def zones(self) -> Zones | None:
        """Where a model is no better than the most common answer, and where more of the total gains
        nothing; None before the sweep is over.
        """
        if not self.done or self.problem or not self.points:
            return None
        losses = [{**_wrong(point), "epsilon": point["epsilon"]} for point in self.points]
        return Zones.of(losses, self.blind)

    def recommended(self) -> dict[str, Any]:
        """The measured total with the best U_priv minus wrong answers, of those that are of use,
        and why; or why there is none.
        """
        if self.problem or not self.done:
            return {"alpha": None, "reasons": [self.problem or "The sweep is not finished."]}
        losses = [{self.unit: point["alpha"], **_wrong(point)} for point in self.points]
        found = recommend(losses, fit=fit_points(losses), blind=self.blind)
        reasons = [reason[0].upper() + reason[1:] + "." for reason in found.reasons]
        if found.alpha is None:
            return {"alpha": None, "none": self._not_clear(), "reasons": reasons}
        epsilon = next(point["epsilon"] for point in self.points if point["alpha"] == found.alpha)
        best = self.planned(epsilon)
        return {
            "alpha": found.alpha,
            "epsilon": epsilon,
            "total": best.total.epsilon,
            "rounds": best.rounds,
            "each": round_words(best),
            "reasons": reasons,
        }

    def _not_clear(self) -> str:
        """Why nothing is recommended, in the numbers that the picture shows."""
        best, even = max(
            zip(self.points, self.curve, strict=True), key=lambda pair: pair[0]["median"]
        )
        low = min(best["low"], even["low"])
        name = next(one for one in (MOST_COMMON, ALIKE) if one in self.baselines)
        better = self.setting.objective.better
        return (
            f"{better[0].upper()}{better[1:]}: {self.baselines[name]:.1f} with {name}, "
            f"{best['median']:.1f} with the best total that was tried ({low:.1f} to "
            f"{best['high']:.1f}). "
            "That is no clear gain."
        )

    def _sentence(self, epsilon: float) -> str:
        delta, found = self.setting.delta, self.expected(epsilon)
        privacy = (
            f"With a total of epsilon = {upper_bound(epsilon)} at delta = {delta:g} over all rounds"
            f"{honest_words(self.planned(epsilon).total.honest)}"
        )
        if not self.baselines or found is None:
            return f"{privacy}: how often answers would be right is being tried on public rows."
        how = "measured"
        if found["between"]:
            between = " and ".join(f"{total:g}" for total in found["between"])
            how = f"interpolated between the measured totals {between}"
        elif round(found["measured"], 1) != round(found["median"], 1):
            how = f"measured, and evened with the totals beside it: {found['measured']:.1f} alone"
        how = f"{how}; on {self.source.partition(':')[0]}"
        useless = ""
        if not found["clear"]:
            useless = " This total is not clearly better than always giving the same answer."
        low, high = (f"{found[name]:.1f}" for name in ("low", "high"))
        if not self.setting.objective.plain:
            lines = "; ".join(f"{name} {value:.1f}" for name, value in self.baselines.items())
            return (
                f"{privacy}, the {self.setting.objective.better} would be {low} to {high} ({how}). "
                f"There: {lines}.{useless}"
            )
        without, most_common = (f"{value:.1f}" for value in self.baselines.values())
        return (
            f"{privacy}, {low} to {high} in 100 people would get the right answer ({how}). Without "
            f"privacy it would be {without}. Always giving the most common answer is right for "
            f"{most_common} in 100.{useless}"
        )

    @property
    def tried(self) -> str:
        """Whose rows accuracy was tried on, and what the range holds, in words."""
        if not self.source:
            return ""
        return f"{self.source}. The range holds {SEVERAL}; {self.rows:,} rows are measured on"


def _right(loss: Mapping[str, float]) -> dict[str, float]:
    """Right answers in 100, from shares of wrong ones."""
    return {
        "median": 100 * (1 - loss["median"]),
        "low": 100 * (1 - loss["high"]),
        "high": 100 * (1 - loss["low"]),
        "error": 100 * loss["error"],
    }


def _wrong(point: Mapping[str, float]) -> dict[str, float]:
    """The share of wrong answers, from right ones in 100."""
    return {
        "median": 1 - point["median"] / 100,
        "low": 1 - point["high"] / 100,
        "high": 1 - point["low"] / 100,
        "error": point["error"] / 100,
    }
