"""How should a person's rows enter a sum? Four ways, at one total for a person.

*First m*: her first m rows, noise for m rows. *Split*: each of her k rows weighs 1/k, noise for one
row, divided by the number of people. *Clip c*: what all her rows add to a sum of gradients is
scaled down to c times the bound of one row, noise for c rows. *Weigh*: each of her rows weighs
1/sqrt(sum_ij max(x_i.x_j, 0)), over her rows, and at most 1: so all of them add no more than one
row may, whatever their slopes are; noise for one row. Weigh is in the package.

A prototype of algorithm "sum" in NumPy: the package's plan, loss, steps and calibration, with rows
in floating point and normal noise in place of whole numbers and discrete noise, which are 2^-16 and
less away. Nodes are equal and all rows of a person lie at one, so only sums over nodes are made.
The centring round is that of the package (for clip and weigh: noise for five rows).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Report, main, table
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.datasets.uci import adult
from dynadp.errors import DatasetError
from dynadp.mechanisms.centring import possible_mean
from dynadp.mechanisms.sums import Sum, unpacked
from dynadp.planning.planner import plan
from dynadp.planning.plans import Plan
from dynadp.privacy import Unit

DELTA, DRAWS, NODES, MOST, ROWS = 1e-5, 20, 5, 5, 20_000
Array = NDArray[np.float64]
LAWS: dict[str, Array] = {  # chance of 1 to 5 rows
    "1 to 5, evenly": np.full(5, 0.2),
    "1 to 5, Zipf": 1 / np.arange(1.0, 6.0) / np.sum(1 / np.arange(1.0, 6.0)),
    "1 to 5, evenly, alike": np.full(5, 0.2),
    "all 5": np.array([0, 0, 0, 0, 1.0]),
    "all 1": np.array([1.0, 0, 0, 0, 0]),
}
ALIKE = "alike"  # such people have rows that are next to each other, sorted by label and cells


@dataclass(frozen=True)
class Way:
    """One way, and its m or c."""

    kind: str
    size: float = 1.0

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.kind} {self.size:g}" if self.kind in ("first", "clip") else self.kind


FIRST = tuple(Way("first", m) for m in (1, 2, 3, 5))
OTHERS = (Way("split"), *(Way("clip", c) for c in (0.7, 1.0, 1.5, 2.0)), Way("weigh"))
BOUNDED = ("clip", "weigh")  # sums over people that are bounded as a whole


@dataclass(frozen=True)
class Rows:
    """phi of all rows and their labels, to train on and to test."""

    data: Dataset
    phi: Array
    y: Array
    test_phi: Array
    test_y: Array

    @classmethod
    def of(cls, data: Dataset) -> "Rows":
        """Dense features of the dataset."""
        plain, made = data.schema.only_features(), []
        for part in (data.train, data.test):
            made += [np.asarray(plain.rows(part).todense()), data.schema.labels(part)]
        return cls(data, *made)


def run() -> Report:
    """Median test error by law, total and way; differences to the best m."""
    text, details = "", {}
    for source, totals in (("Adult", (0.3, 1.0)), (f"census, {ROWS:,} rows", (1.0,))):
        try:
            rows_of(source, 0)
        except DatasetError as error:
            text += f"{source} is left out: {error}\n\n"
            continue
        for epsilon in totals:
            found = {law: _compared(source, law, epsilon) for law in LAWS}
            details[f"{source}, {epsilon}"] = {
                law: {way.name: errors.tolist() for way, errors in of.items()}
                for law, of in found.items()
            }
            lines = [
                (way.name, *(_shown(found[law], way) for law in LAWS)) for way in (*FIRST, *OTHERS)
            ]
            text += (
                f"{source}, {NODES} nodes, epsilon = {epsilon:g} for a person, delta = {DELTA:g}: "
                f"median of {DRAWS} draws in %, and the mean difference to the best m in points "
                f"(standard error).\n\n{table(('', *LAWS), lines)}\n\n"
            )
    return Report("person_study", [], text.rstrip(), {"errors": details})


def _compared(source: str, law: str, epsilon: float) -> dict[Way, Array]:
    found = {
        way: 100 * np.array([error(source, law, way, epsilon, s) for s in range(DRAWS)])
        for way in (*FIRST, *OTHERS)
    }
    print(source, epsilon, law, {w.name: float(np.median(e)) for w, e in found.items()}, flush=True)
    return found


def _shown(found: dict[Way, Array], way: Way) -> str:
    best = min(FIRST, key=lambda each: float(found[each].mean()))
    shown = f"{np.median(found[way]):.2f}"
    if way == best:
        return f"{shown} (best m)"
    gap = found[way] - found[best]
    return f"{shown} ({gap.mean():+.2f}, {gap.std(ddof=1) / sqrt(len(gap)):.2f})"


@cache
def rows_of(source: str, seed: int) -> Rows:
    """Adult's rows, or fresh census rows."""
    if source == "Adult":
        return _adult()
    return Rows.of(census(ROWS, seed=seed, test_rows=10_000))


@cache
def _adult() -> Rows:
    return Rows.of(adult(columns="rich"))


def people(law: str, rows: Rows, seed: int) -> list[NDArray[np.int64]]:
    """Give all rows to made-up people: for each number of rows k the places of theirs, people x k;
    a person's rows are in the order of a shuffle.
    """
    rng, n = np.random.default_rng(seed), len(rows.y)
    sizes = rng.choice(np.arange(1, MOST + 1), n, p=LAWS[law])
    sizes = sizes[: np.searchsorted(np.cumsum(sizes), n) + 1]
    sizes[-1] -= sizes.sum() - n
    order = rng.permutation(n)
    if law.endswith(ALIKE):  # by label, then by what tells rows apart most
        centred = rows.phi - rows.phi.mean(axis=0)
        leading = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :3]
        keys = np.round((centred @ leading) * np.array([2.0, 4.0, 32.0]))
        order = np.lexsort((keys[:, 2], keys[:, 1], keys[:, 0], rows.y))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return [order[starts[sizes == k][:, None] + np.arange(k)] for k in range(1, MOST + 1)]


def error(source: str, law: str, way: Way, epsilon: float, seed: int) -> float:
    """Test error of one draw: people, centre and noise."""
    rows = rows_of(source, seed)
    groups = people(law, rows, seed)
    if way.kind == "first":
        groups = _limited(groups, int(way.size))
    count = sum(len(group) for group in groups)  # of people
    n = count if way.kind == "split" else sum(group.size for group in groups)
    chosen, scale = _planned(rows, n, way, epsilon)
    rng = np.random.default_rng([seed, 1])
    centre = _centre(rows, groups, n, chosen, way, rng)
    intercept = rows.data.schema.intercept

    def bounded(phi: Array) -> Array:
        x = np.column_stack([phi - centre, np.full(len(phi), intercept)])
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    signed = [
        (rows.y[g.ravel(), None] * bounded(rows.phi[g.ravel()])).reshape(*g.shape, -1)
        for g in groups
        if g.size
    ]
    z = _trained(signed, n, chosen, way, scale, rng)
    scores = (rows.test_phi - centre) @ z[:-1] + intercept * z[-1]
    return float(np.mean((scores > 0) != (rows.test_y > 0)))


def _limited(groups: list[NDArray[np.int64]], m: int) -> list[NDArray[np.int64]]:
    return [group[:, :m] for group in groups]


def _planned(rows: Rows, n: int, way: Way, epsilon: float) -> tuple[Plan, float]:
    """Return the plan, and how many rows its noise for gradients is made for."""
    unit = Unit(int(way.size)) if way.kind == "first" else Unit()
    scale = way.size if way.kind == "clip" else 1.0

    def made(moment: bool | None) -> Plan:
        schema = rows.data.schema
        return plan(
            [n / NODES] * NODES,
            Topology.family("ring", NODES),
            schema.dimension,
            epsilon=epsilon,
            delta=DELTA,
            mechanism=Sum(second_moment=moment),
            features=schema.feature_count,
            unit=unit,
        )

    chosen = made(None)
    if way.kind not in BOUNDED:
        return chosen, scale
    # rows of a person that have nothing in common add up to sqrt(k) of one
    mu = sqrt(float(np.sum(chosen.table()[0, 0] ** 2)) / 0.9)
    signal = n * mu / sqrt(NODES) * min(1.0, scale / sqrt(MOST)) / scale
    return made(signal >= 2000.0), scale


def _centre(
    rows: Rows,
    groups: list[NDArray[np.int64]],
    n: int,
    chosen: Plan,
    way: Way,
    rng: np.random.Generator,
) -> Array:
    schema, weigh = rows.data.schema, way.kind == "split"
    total = sum(
        rows.phi[g].sum(axis=(0, 1)) / (g.shape[1] if weigh else 1) for g in groups if g.size
    )
    rows_in_noise = MOST if way.kind in BOUNDED else 1
    diameter = sqrt(sum(column.diameter2 for column in schema.columns))
    deviation = rows_in_noise * diameter / chosen.centrings[0] * sqrt(NODES)
    return possible_mean(schema, (total + deviation * rng.normal(size=len(total))) / n)


def _trained(
    signed: list[Array], n: int, chosen: Plan, way: Way, scale: float, rng: np.random.Generator
) -> Array:
    """The rounds of algorithm "sum"; ``signed`` is people x k x d for each k."""
    steps, loss, mus = chosen.steps, chosen.settings.loss, chosen.table()[0, 0]
    assert steps is not None
    assert steps.pull is not None
    d, q = signed[0].shape[-1], steps.pull * scale
    z, v, inverse, tail = np.zeros(d), np.zeros(d), None, []
    for t, mu in enumerate(mus):
        if t == 0 and chosen.mechanism.second_moment:
            A = _moment(signed, way) / n + unpacked(_moment_noise(rng, d, mu) / n, d)
            values, vectors = np.linalg.eigh(A)
            inverse = (vectors / (steps.curvature * np.maximum(values, 0) + q)) @ vectors.T
            continue
        noise = scale * 2 / mu * sqrt(NODES) * rng.normal(size=d)
        G = (_gradient(signed, z, loss.slope, way) + noise) / n
        if inverse is not None:
            z = z - inverse @ G
        else:
            v = steps.momentum * v - (1 - steps.momentum) * G / q
            z = z + v
        tail.append(z)
    return np.mean(tail[len(tail) // 2 :], axis=0)


def _gradient(signed: list[Array], z: Array, slope: Callable[[Array], Array], way: Way) -> Array:
    total = np.zeros(len(z))
    for x in signed:
        sigma = slope(x @ z)
        if way.kind == "split":
            sigma = sigma / x.shape[1]
        elif way.kind == "weigh":
            joint = np.maximum(x @ x.swapaxes(1, 2), 0).sum(axis=(1, 2))
            sigma = sigma / np.maximum(1, np.sqrt(joint))[:, None]
        if way.kind == "clip":
            each = (sigma[:, None, :] @ x)[:, 0]
            total += np.minimum(1, way.size / np.linalg.norm(each, axis=1)) @ each
        else:
            total += sigma.ravel() @ x.reshape(-1, len(z))
    return total


def _moment(signed: list[Array], way: Way) -> Array:
    """Of clip and weigh: what a person adds has at most the norm of one row's."""
    total = np.zeros((signed[0].shape[-1],) * 2)
    for x in signed:
        weights = np.full(len(x), 1 / x.shape[1] if way.kind == "split" else 1.0)
        if way.kind in BOUNDED:
            inner = x @ x.swapaxes(1, 2)
            weights = np.minimum(1, 1 / np.sqrt(np.square(inner).sum(axis=(1, 2))))
        flat = x.reshape(-1, x.shape[-1])
        total += (np.repeat(weights, x.shape[1])[:, None] * flat).T @ flat
    return total


def _moment_noise(rng: np.random.Generator, d: int, mu: float) -> Array:
    s = sqrt(2.0) / mu * sqrt(NODES)
    width = d * (d + 1) // 2
    return rng.normal(size=width) * np.where(np.arange(width) < d, s, s / sqrt(2.0))


if __name__ == "__main__":
    main(run)
