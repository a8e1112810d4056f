"""Accuracy against alpha on public rows, and the way from either to the other; with what the paper's design recommends.

Every number rests on rows that are made here or declared public: a sweep over private rows would spend budget itself.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from dynadp.arrays import Array
from dynadp.centring import private_centre
from dynadp.errors import DeclarationError, DynadpError
from dynadp.noise import Keyed
from dynadp.planner import Plan, plan
from dynadp.privacy.accountant import odds, up
from dynadp.report.budget import over_rounds, worst
from dynadp.report.setting import Rows, Setting
from dynadp.runtime.simulation import simulate
from dynadp.sources import shard
from dynadp.sweeps import band
from dynadp.topology import Topology
from dynadp.tradeoff import design, fit_loss

STEPS = 9  # points of the curve over rounds
LEAST, MOST, POINTS, DRAWS, SEED = 0.05, 10.0, 9, 8, 0  # totals of a sweep, how many, and draws of the noise for each


@dataclass
class Advice:
    """What a sweep has found so far, and what follows from it.

    Attributes
    ----------
    setting
        What is planned.
    points
        For each total: epsilon, alpha, and median, low, high of right answers in 100.
    baselines
        Right answers in 100 without privacy, and of always giving the commoner answer.
    source
        Whose rows, in words; empty before the sweep begins.
    problem
        Why there is no sweep, where there is none.
    done
        Whether all points are there.
    """

    setting: Setting
    points: list[dict[str, float]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    source: str = ""
    problem: str = ""
    done: bool = False

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._choice, self._curve = lru_cache(512)(self._chosen), lru_cache(512)(self._over_rounds)

    def sweep(self, on_point: Callable[[], None] = lambda: None, stopped: Callable[[], bool] = lambda: False) -> None:
        """Try totals from both ends to the middle; ``on_point`` is called after each, ``stopped`` before."""
        try:
            rows = self.setting.rows(SEED)
            self.source = rows.source
            self.baselines = _baselines(rows)
            on_point()
            for epsilon in spread(np.geomspace(LEAST, MOST, POINTS).tolist()):
                if stopped():
                    return
                point = {"epsilon": epsilon, "alpha": self.planned(epsilon).alpha, **_tried(self.setting, rows, epsilon)}
                self.points = sorted([*self.points, point], key=lambda one: one["epsilon"])
                on_point()
        except DynadpError as error:
            self.problem = str(error)
        self.done = True
        on_point()

    def planned(self, epsilon: float) -> Plan:
        """What `dynadp train` would do for this total."""
        s = self.setting
        with self._lock:  # the accountant's caches are shared
            return plan(
                s.counts, s.topology, s.dimension, epsilon=epsilon, delta=s.delta, mechanism=s.mechanism, centring=s.centring,
                features=s.features,
            )  # fmt: skip

    def for_total(self, epsilon: float) -> dict[str, Any]:
        """From a total epsilon to alpha, its meaning, and the accuracy to expect."""
        if not 0 < epsilon <= 100:
            raise DeclarationError(f"epsilon is {epsilon:g}; expected a total above 0, at most 100")
        epsilon = float(f"{epsilon:.4g}")
        found = self._choice(epsilon)
        return found | {"accuracy": self.expected(epsilon), "words": self._sentence(epsilon, found["total"])}

    def totals(self, epsilon: float) -> list[dict[str, Any]]:
        """How the total grows over the rounds of this choice, under each accounting."""
        return self._curve(self.for_total(epsilon)["epsilon"])

    def for_accuracy(self, target: float) -> dict[str, Any]:
        """From right answers in 100 to the smallest total whose median reaches them on the swept rows."""
        if len(self.points) < 2:
            return {"reached": False, "words": "The sweep has not come that far yet."}
        best = np.maximum.accumulate([point["median"] for point in self.points])
        totals = [point["epsilon"] for point in self.points]
        if target > best[-1]:
            words = f"No total up to {MOST:g} reached {target:.1f} in 100 on these rows; the best was {best[-1]:.1f}."
            return {"reached": False, "words": words}
        at = int(np.searchsorted(best, target))
        epsilon = totals[0]
        if at > 0:
            share = (target - best[at - 1]) / (best[at] - best[at - 1])
            epsilon = float(np.exp(np.interp(share, [0, 1], np.log(totals[at - 1 : at + 1]))))
        return self.for_total(epsilon) | {"target": target}

    def expected(self, epsilon: float) -> dict[str, float] | None:
        """Right answers in 100 between the swept totals, straight in ln epsilon; None outside them."""
        totals = [point["epsilon"] for point in self.points]
        if not totals or not totals[0] * (1 - 1e-9) <= epsilon <= totals[-1] * (1 + 1e-9):
            return None
        return {
            name: float(np.interp(np.log(epsilon), np.log(totals), [point[name] for point in self.points]))
            for name in ("median", "low", "high")
        }

    def recommended(self) -> dict[str, Any]:
        """The alpha of the paper's design, max U_priv - L_acc over the swept range, and why; or why there is none."""
        if self.problem or not self.done:
            return {"alpha": None, "reasons": [self.problem or "The sweep is not finished."]}
        alphas = [point["alpha"] for point in self.points]
        wrong = 1 - np.array([point["median"] for point in self.points]) / 100
        spreads = np.array([point["high"] - point["low"] for point in self.points]) / 100
        try:
            found = design(fit_loss(alphas, wrong, np.maximum(spreads, 1e-3)), low=min(alphas), high=max(alphas))
        except DeclarationError as error:
            return {"alpha": None, "reasons": [f"Accuracy does not fall with privacy here as the design assumes: {error}."]}
        reasons = [reason[0].upper() + reason[1:] + "." for reason in found.reasons]
        if not found.interior:
            return {"alpha": None, "reasons": ["No alpha stands out between the ends that were tried.", *reasons]}
        epsilon = float(np.exp(np.interp(np.log(found.alpha), np.log(alphas), np.log([p["epsilon"] for p in self.points]))))
        return {"alpha": found.alpha, "epsilon": float(f"{epsilon:.3g}"), "reasons": reasons}

    def _chosen(self, epsilon: float) -> dict[str, Any]:
        planned = self.planned(epsilon)
        total, delta = planned.total, self.setting.delta
        meaning = odds(total.epsilon, delta)
        digits = re.search(r"at most (\d+) in 100", meaning)
        return {
            "reached": True, "epsilon": epsilon, "total": total.epsilon, "delta": delta, "method": total.method,
            "alpha": planned.alpha, "centring": planned.centring, "rounds": planned.rounds, "odds": meaning,
            "right": int(digits[1]) if digits else 100,
        }  # fmt: skip

    def _over_rounds(self, epsilon: float) -> list[dict[str, Any]]:
        _, own = worst(self.planned(epsilon).events, self.setting.delta)
        return over_rounds(own, self.setting.delta, STEPS)

    def _sentence(self, epsilon: float, total: float) -> str:
        privacy = f"With a total of epsilon = {up(total)} at delta = {self.setting.delta:g} over all rounds"
        found = self.expected(epsilon)
        if not self.baselines or found is None:
            return f"{privacy}: how often answers would be right is being tried on public rows."
        low, high = round(found["low"]), round(found["high"])
        between = f"about {low}" if low == high else f"{low} to {high}"
        without, commoner = (round(value) for value in self.baselines.values())
        return (
            f"{privacy}, {between} in 100 people would get the right answer. Without privacy it would be {without} in 100, and "
            f"always giving the commoner answer is right for {commoner} in 100."
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


def _tried(setting: Setting, rows: Rows, epsilon: float) -> dict[str, float]:
    """Right answers in 100 of planned, seeded runs on public rows: one centring round, then all draws in one stack."""
    nodes, schema = setting.topology.nodes, rows.schema
    counts = [len(next(iter(table.values()))) for table in rows.tables.values()]
    features = len(schema.features) - bool(schema.intercept)
    planned = plan(
        counts, setting.topology, schema.dimension, epsilon=epsilon, delta=setting.delta, mechanism=setting.mechanism,
        centring=setting.centring and schema.centre is None, features=features,
    )  # fmt: skip
    if planned.centrings:
        tables = [rows.tables[p] for p in nodes]
        schema = private_centre(schema, tables, nodes, planned.centrings, Keyed(SEED)).applied(schema)
    end = simulate(
        [shard(schema, rows.tables[p], p) for p in nodes], setting.topology, loss=planned.loss, C=planned.C, rho=planned.rho,
        eta=planned.eta, rounds=planned.rounds, replicas=DRAWS, mechanism=planned.mechanism,
        schedule=planned.schedule(nodes), draws=Keyed(SEED),
    )  # fmt: skip
    return band(100 * _right(schema, rows, end.models(planned.output)[0]))


def _right(schema: Any, rows: Rows, vectors: Array) -> Array:
    positive = schema.labels(rows.test) > 0
    return np.asarray(np.mean((schema.rows(rows.test) @ vectors.T > 0) == positive[:, None], axis=0))


def _baselines(rows: Rows) -> dict[str, float]:
    """All rows in one place without privacy; always the commoner answer."""
    names = next(iter(rows.tables.values()))
    pooled = {name: np.concatenate([table[name] for table in rows.tables.values()]) for name in names}
    alone = simulate([shard(rows.schema, pooled, "pooled")], Topology.family("ring", 1), rounds=1)
    positive = float(np.mean(rows.schema.labels(rows.test) > 0))
    return {
        "without privacy": 100 * float(_right(rows.schema, rows, alone.V[0])[0]),
        "always the commoner answer": 100 * max(positive, 1 - positive),
    }
