"""Accuracy against alpha on public rows, the way from either to the other, and the recommended
alpha.

Every number rests on rows that are made here or declared public: a sweep over private rows would
spend budget itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, floor
from threading import Lock
from typing import Any

import numpy as np

from dynadp._intervals import SEVERAL
from dynadp.errors import DeclarationError, DynadpError
from dynadp.planning import Plan
from dynadp.privacy import guess_words, guesses_in_100, upper_bound
from dynadp.report.budgets import over_rounds, worst
from dynadp.report.explore.setting import PublicSetting
from dynadp.research import (
    COMMONER,
    DRAWS,
    MOST,
    SEED,
    fit_points,
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
        Right answers in 100 without privacy, and of always giving the commoner answer.
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
        self._choice, self._curve = lru_cache(512)(self._chosen), lru_cache(512)(self._over_rounds)

    def sweep(
        self,
        on_point: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Try totals from both ends to the middle; ``on_point`` is called after each, ``stopped``
        before.
        """
        try:
            rows = self.setting.rows(SEED)
            self.source, self.rows = rows.source, len(rows.held_out)
            self.baselines = measure_baselines(rows)
            on_point()
            for epsilon in spread(totals_to_try(self.planned)):
                if stopped():
                    return
                own, tested = self.planned(epsilon), self.planned(epsilon, rows.counts)
                point = {
                    "epsilon": epsilon,
                    "alpha": own.alpha,
                    **_right(try_plan(self.setting.topology, rows, tested, DRAWS)),
                }
                self.points = sorted([*self.points, point], key=lambda one: one["epsilon"])
                on_point()
        except DynadpError as error:
            self.problem = str(error)
        self.done = True
        on_point()

    def planned(self, epsilon: float, counts: Sequence[int] | None = None) -> Plan:
        """What `dynadp train` would do for this total; with other numbers of rows for a trial on
        fewer.
        """
        with self._lock:  # the accountant's caches are shared
            return self.setting.plan(epsilon, counts)

    def for_total(self, epsilon: float) -> dict[str, Any]:
        """From a total epsilon to alpha, its meaning, and the accuracy to expect."""
        if not 0 < epsilon <= 100:
            raise DeclarationError(f"epsilon is {epsilon:g}; expected a total above 0, at most 100")
        epsilon = float(f"{epsilon:.4g}")
        found = self._choice(epsilon)
        return found | {
            "accuracy": self.expected(epsilon),
            "words": self._sentence(epsilon, found["total"]),
        }

    def totals(self, epsilon: float) -> list[dict[str, Any]]:
        """How the total grows over the rounds of this choice, under each accounting."""
        return self._curve(self.for_total(epsilon)["epsilon"])

    def for_accuracy(self, target: float) -> dict[str, Any]:
        """From right answers in 100 to the smallest total whose median reaches them on the swept
        rows.
        """
        if len(self.points) < 2:
            return {"reached": False, "words": "The sweep has not come that far yet."}
        best = np.maximum.accumulate([point["median"] for point in self.points])
        totals = [point["epsilon"] for point in self.points]
        if target > best[-1]:
            words = (
                f"No total up to {MOST:g} reached {target:.1f} in 100 on these rows; the best was "
                f"{best[-1]:.1f}."
            )
            return {"reached": False, "words": words}
        at = int(np.searchsorted(best, target))
        epsilon = totals[0]
        if at > 0:
            share = (target - best[at - 1]) / (best[at] - best[at - 1])
            epsilon = float(np.exp(np.interp(share, [0, 1], np.log(totals[at - 1 : at + 1]))))
        return self.for_total(epsilon) | {"target": target}

    def expected(self, epsilon: float) -> dict[str, Any] | None:
        """Right answers in 100: as measured, or ``between`` two measured totals, straight in ln
        epsilon; None outside them.
        """
        totals = [point["epsilon"] for point in self.points]
        if not totals or not totals[0] * (1 - 1e-9) <= epsilon <= totals[-1] * (1 + 1e-9):
            return None
        near = int(np.argmin(np.abs(np.log(totals) - np.log(epsilon))))
        at = int(np.searchsorted(totals, epsilon))
        measured = abs(totals[near] / epsilon - 1) < 1e-3  # epsilon is asked for with four digits
        found: dict[str, Any] = {
            name: float(
                np.interp(np.log(epsilon), np.log(totals), [point[name] for point in self.points])
            )
            for name in ("median", "low", "high")
        }
        return found | {"between": None if measured else totals[at - 1 : at + 1]}

    def recommended(self) -> dict[str, Any]:
        """The measured alpha with the best U_priv minus wrong answers, its total, and why; or why
        there is none.
        """
        if self.problem or not self.done:
            return {"alpha": None, "reasons": [self.problem or "The sweep is not finished."]}
        losses = [_wrong(point) for point in self.points]
        commoner = self.baselines.get(COMMONER)
        found = recommend(
            losses, fit=fit_points(losses), blind=None if commoner is None else 1 - commoner / 100
        )
        epsilon = next(point["epsilon"] for point in self.points if point["alpha"] == found.alpha)
        reasons = [reason[0].upper() + reason[1:] + "." for reason in found.reasons]
        total = self.planned(epsilon).total.epsilon
        return {
            "alpha": found.alpha,
            "epsilon": epsilon,
            "total": total,
            "near": list(found.near),
            "reasons": reasons,
        }

    def _chosen(self, epsilon: float) -> dict[str, Any]:
        planned = self.planned(epsilon)
        total, delta = planned.total, self.setting.delta
        asks = (
            f"privacy.epsilon = {epsilon:.3g}"
            if self.setting.given is None
            else f"privacy.alpha = {planned.alpha:.3g}"
        )
        return {
            "reached": True,
            "epsilon": epsilon,
            "total": total.epsilon,
            "delta": delta,
            "method": total.method,
            "alpha": planned.alpha,
            "centring": max(planned.centrings, default=None),
            "rounds": planned.rounds,
            "odds": guess_words(total.epsilon, delta),
            "right": guesses_in_100(total.epsilon, delta),
            "asks": asks,
        }

    def _over_rounds(self, epsilon: float) -> list[dict[str, Any]]:
        _, own = worst(self.planned(epsilon).events, self.setting.delta)
        return over_rounds(own, self.setting.delta, STEPS)

    def _sentence(self, epsilon: float, total: float) -> str:
        privacy = (
            f"With a total of epsilon = {upper_bound(total)} at delta = {self.setting.delta:g} "
            f"over all "
            f"rounds"
        )
        found = self.expected(epsilon)
        if not self.baselines or found is None:
            return f"{privacy}: how often answers would be right is being tried on public rows."
        low, high = (
            floor(found["low"]),
            ceil(found["high"]),
        )  # outwards, so that nothing is promised that was not measured
        without, commoner = (round(value) for value in self.baselines.values())
        between = found["between"] and " and ".join(f"{total:.3g}" for total in found["between"])
        how = (
            f", interpolated between the measured totals {between}" if between else ", as measured"
        )
        return (
            f"{privacy}, {low} to {high} in 100 people would get the right answer{how}, on "
            f"{self.source}. Without privacy it "
            f"would be {without} in 100 there, and always giving the commoner answer is right for "
            f"{commoner} in 100. The range "
            f"holds {SEVERAL} ({self.rows:,} rows)."
        )


def spread(values: Sequence[float]) -> list[float]:
    """Both ends, then the middle, then what lies between: a curve is seen early.

    >>> spread([1, 2, 3, 4, 5])
    [1, 5, 3, 2, 4]
    """
    order, gaps = [0, len(values) - 1], [(0, len(values) - 1)]
    for low, high in gaps:
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [values[i] for i in dict.fromkeys(order)]


def _right(loss: Mapping[str, float]) -> dict[str, float]:
    """Right answers in 100, from shares of wrong ones."""
    low, high = 100 * (1 - loss["high"]), 100 * (1 - loss["low"])
    return {
        "median": 100 * (1 - loss["median"]),
        "low": low,
        "high": high,
        "error": 100 * loss["error"],
    }


def _wrong(point: Mapping[str, float]) -> dict[str, float]:
    """And back."""
    low, high = 1 - point["high"] / 100, 1 - point["low"] / 100
    found = {"alpha": point["alpha"], "median": 1 - point["median"] / 100, "low": low, "high": high}
    return found | {"error": point.get("error", 0.0) / 100}
