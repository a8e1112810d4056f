"""Should a node join? Its own model without noise, against private models of all nodes' rows.

All are trained on samples of public rows and checked on the same held-out ones, so that answers can
be compared row by row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Topology
from dynadp.data import RawTable, load_shard
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Sealed
from dynadp.planning import Plan, plan
from dynadp.privacy import Unit
from dynadp.problem import EVEN, ClassWeights, Weights
from dynadp.research.experiments import (
    DRAWS,
    SEED,
    Spread,
    map_serially,
    run_seeded,
    train_seeded,
)
from dynadp.research.objectives import Numbers, Objective
from dynadp.research.public_rows import HeldOut, PublicRows

JOINED = {
    "sum": "joining with sums",
    "sealed": "joining with sealed sums",
    "admm": "joining with ADMM",
}
REFERENCES = {"trusted": "one trusted place", "pooled": "one place, no privacy"}
JOIN, ALONE, UNCLEAR = "join", "stay alone", "no clear difference"
SAMPLES = 4  # of the rows, at most; each is trained on with its share of the draws
ALIKE = 3  # nodes of one size that are trained alone in each sample, at most
SIZES = 12  # that are trained alone, at most; other nodes are compared with the nearest of them
RIDGE = 0.1  # rho B of a model without privacy; within 0.1% wrong of the best on census rows

_ONE = Topology.family("ring", 1).named(["all"])


@dataclass(frozen=True)
class NodeAnswer:
    """Whether one node should join.

    Attributes
    ----------
    node, rows, epsilon
        Its name, how many rows it has, and its total.
    sends
        Whether it sends anything with algorithm "sum". Its noise may be worth more than its rows:
        then it sends and spends nothing, and gets the model all the same.
    compared
        The number of rows of the lone models that it is compared with.
    alone
        Loss of its own model, by default the share of wrong answers: ``median``, ``low`` and
        ``high``.
    joined
        For ``sum``, ``admm``, and ``sealed`` where it was tried: loss of the common model, on the
        same rows.
    differences
        For the same ways: loss of the common model minus its own, on the same rows.
    """

    node: str
    rows: int
    epsilon: float
    sends: bool
    compared: int
    alone: Numbers
    joined: Mapping[str, Numbers]
    differences: Mapping[str, Numbers]

    def verdict(self, way: str = "sum") -> str:
        """``join`` or ``stay alone`` where the difference's interval leaves 0 out."""
        found = self.differences[way]
        return JOIN if found["high"] < 0 else ALONE if found["low"] > 0 else UNCLEAR

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        return {**asdict(self), "verdicts": {way: self.verdict(way) for way in self.differences}}


@dataclass(frozen=True)
class HonestNodes:
    """Who must be honest for sealed sums to lose no more than was asked for.

    Attributes
    ----------
    honest, nodes
        h of all nodes, whoever looks not among them.
    assumed
        Whether nobody declared it: half of the nodes were taken to be honest.
    if_more
        The epsilon of a row if so many nodes collude, more than planned for: ``colluding`` and
        ``epsilon``, None where there is no bound.
    """

    honest: int
    nodes: int
    assumed: bool
    if_more: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class JoinAnswer:
    """Whether nodes should join.

    Attributes
    ----------
    nodes
        An answer for each node.
    wrong
        Loss, by default the share of wrong answers, of models that are the same for all nodes:
        ``sum``, ``admm``, ``trusted`` and ``pooled``, and ``sealed`` where it was tried, each with
        ``median``, ``low`` and ``high``.
    most_common
        Loss of always giving the most common answer; None where the measure has none.
    epsilon, delta
        The smallest total of all nodes, which one trusted place may spend; and delta.
    source, test_rows
        Where rows come from, and how many answers were checked in each sample.
    draws, samples
        Of the noise, and of the rows.
    pool
        As of :class:`~dynadp.research.public_rows.PublicRows`.
    alike
        Whether rows were split among nodes at random; otherwise each node has public rows of its
        own, to train and to be checked on.
    honesty
        What sealed sums rest on; None where they were not tried.
    measure
        The name of the measure that losses are made of.
    """

    nodes: tuple[NodeAnswer, ...]
    wrong: Mapping[str, Numbers]
    most_common: float | None
    epsilon: float
    delta: float
    source: str
    test_rows: int
    draws: int
    samples: int
    pool: int | None = None
    alike: bool = True
    honesty: HonestNodes | None = None
    measure: str = "accuracy"

    @property
    def ways(self) -> dict[str, str]:
        """The ways to join that were tried, with their words."""
        return {way: words for way, words in JOINED.items() if way in self.wrong}

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        return {**asdict(self), "nodes": [node.to_json() for node in self.nodes]}


def should_join(
    samples: Sequence[PublicRows],
    topology: Topology,
    epsilon: float | Mapping[str, float],
    delta: float,
    *,
    counts: Mapping[str, int] | None = None,
    weights: Weights = "rows",
    centring: bool = True,
    sealed: Sealed | None = None,
    unit: Unit | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
    spread: Spread = map_serially,
    objective: Objective | None = None,
    calibration: bool = False,
    class_weights: ClassWeights = EVEN,
    positives: float | None = None,
) -> JoinAnswer:
    """Compare each node's own model, without noise, with private models of all nodes' rows.

    A model of one node's rows stays in its house, so it needs no noise. Others are private: sums in
    the open, sealed sums, ADMM with primal perturbation, and one trusted place that holds all rows;
    and one model of all rows without privacy, for reference. A difference is that of two models on
    the same held-out rows; its interval spans draws of rows and noise, and the sampling error of
    the held-out rows.

    Parameters
    ----------
    samples
        Public rows of the nodes' sizes, drawn anew for each: more of them show how much depends on
        the rows.
    topology
        The network.
    epsilon, delta
        The total, which may differ from node to node.
    counts
        How many rows each node has, where samples have fewer: a lone model is then trained on that
        many, as far as a sample has them. By default as in the samples.
    weights, centring
        As for :func:`~dynadp.planning.planner.plan`.
    sealed
        How many nodes are honest, for sealed sums. By default half of them, as an assumption that
        the answer states; with fewer than four nodes, where that gains nothing, sealed sums are
        left out.
    unit
        Whose total it is; by default that of a row at one node.
    draws, seed
        How many draws of the noise over all samples, and their seed.
    spread
        Carries out a task for each sample.
    objective
        What the loss is made of; by default the share of wrong answers.
    calibration
        Whether sums release a histogram of scores in their last round, which takes its share of the
        total.
    class_weights, positives
        As for :func:`~dynadp.planning.planner.plan`, for models of one node's rows too.
    """
    objective = objective or Objective()
    if len(topology) < 2:
        raise DeclarationError(
            "the network has one node, so there is nobody to join; give all nodes that would take "
            "part, with their numbers of rows"
        )
    if not 1 <= len(samples) <= draws:
        raise DeclarationError(
            f"{len(samples)} samples of rows and {draws} draws of the noise; expected at least one "
            "sample, and a draw for each"
        )
    first = samples[0]
    if any(one.counts != first.counts or set(one.tables) != set(topology.nodes) for one in samples):
        raise DeclarationError(
            "samples differ in their nodes or numbers of rows; expected those of the network, the "
            "same in each"
        )
    if counts is not None and (set(counts) != set(topology.nodes) or min(counts.values()) < 1):
        raise DeclarationError(
            f"counts are {dict(counts)!r}; expected the number of rows of each node, from 1"
        )
    totals = (
        dict(epsilon)
        if isinstance(epsilon, Mapping)
        else dict.fromkeys(topology.nodes, float(epsilon))
    )
    first.schema.require_two_values("the question whether to join")
    honest = sealed or _assumed(len(topology))
    weighed: dict[str, Any] = {"class_weights": class_weights, "positives": positives}
    plans = _plans(
        first,
        topology,
        totals,
        delta,
        weights,
        centring,
        honest,
        unit or Unit(),
        weighed,
        calibration,
    )
    sizes = {p: _length(first.tables[p]) for p in topology.nodes}
    alike, declared = first.origin is None, dict(counts or sizes)
    if alike:
        most = sum(first.counts)
        sizes = {p: min(declared[p], most) for p in sizes}
    group_of = _group_sizes(sizes) if alike else {p: p for p in sizes}
    groups: dict[str, list[str]] = {}
    for p, name in group_of.items():
        if not alike or str(sizes[p]) == name:
            groups.setdefault(name, []).append(p)
    alone = {name: sizes[nodes[0]] for name, nodes in groups.items()}
    shared = {"topology": topology, "plans": plans, "groups": groups, "alone": alone}
    shared |= {"objective": objective, "weighed": weighed}
    parts = [len(part) for part in np.array_split(np.arange(draws), len(samples))]
    tasks = [
        {"rows": rows, "draws": part, "seed": seed * SAMPLES + i}
        for i, (rows, part) in enumerate(zip(samples, parts, strict=True))
    ]
    found = spread(compare_sample, tasks, shared)
    n = min(len(one.held_out) for one in samples)
    own = {name: _bands([one["groups"][name] for one in found], objective) for name in groups}
    senders = {topology.nodes[p] for p in plans["sum"].senders}
    answers = [
        NodeAnswer(
            node=p,
            rows=declared[p],
            epsilon=totals[p],
            sends=p in senders,
            compared=alone[group_of[p]],
            **own[group_of[p]],
        )
        for p in topology.nodes
    ]
    wrong = {
        way: objective.band([one["wrong"][way] for one in found], n)
        for way in (*_ways(plans), *REFERENCES)
    }
    return JoinAnswer(
        nodes=tuple(answers),
        wrong=wrong,
        most_common=_blind([objective.blind(one.held_out) for one in samples]),
        epsilon=min(totals.values()),
        delta=delta,
        source=first.source,
        test_rows=n,
        draws=draws,
        samples=len(samples),
        pool=first.pool,
        alike=alike,
        honesty=_honesty(plans, assumed=sealed is None),
        measure=objective.name,
    )


def _blind(losses: Sequence[float | None]) -> float | None:
    known = [one for one in losses if one is not None]
    return float(np.median(known)) if known else None


def _assumed(nodes: int) -> Sealed | None:
    """Half of the nodes are honest; None where that leaves one, which gains nothing."""
    return Sealed(honest=nodes // 2) if nodes // 2 > 1 else None


def _ways(plans: Mapping[str, Plan]) -> tuple[str, ...]:
    return tuple(way for way in JOINED if way in plans)


def _honesty(plans: Mapping[str, Plan], *, assumed: bool) -> HonestNodes | None:
    planned = plans.get("sealed")
    if planned is None or planned.sealing is None:
        return None
    worse = [point.to_json() for point in planned.collusion if not point.planned]
    return HonestNodes(
        planned.sealing.honest,
        planned.sealing.members,
        assumed,
        tuple({name: point[name] for name in ("colluding", "epsilon")} for point in worse),
    )


def compare_sample(
    rows: PublicRows,
    topology: Topology,
    plans: Mapping[str, Plan],
    groups: Mapping[str, Sequence[str]],
    alone: Mapping[str, int],
    draws: int,
    seed: int,
    objective: Objective,
    weighed: Mapping[str, Any],
) -> dict[str, Any]:
    """Train every way on one sample, and check each on the same held-out rows.

    Parameters
    ----------
    rows, topology, plans
        Public rows, the network, and the plans of ``sum``, ``admm`` and ``trusted``, and of
        ``sealed`` where it is tried.
    groups, alone
        Which nodes are trained alone, by the name of their group, and on how many rows: their own,
        or more of the sample's.
    draws, seed
        Of the noise.
    objective
        What the loss is made of.
    weighed
        Class weights, and the declared share of positive rows.
    """
    tables = list(rows.tables.values())
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    everything = {"all": pooled}
    ways = _ways(plans)
    made = {way: _private(rows, rows.tables, topology, plans[way], draws, seed) for way in ways}
    made["trusted"] = _private(rows, everything, _ONE, plans["trusted"], draws, seed)
    made["pooled"] = _without_privacy(rows, [pooled], weighed)
    found, rng = {}, np.random.default_rng([seed, 0xA1])
    for name, nodes in groups.items():
        seen = slice(None) if rows.origin is None else rows.origin == name
        own = [rows.tables[p] for p in nodes[:ALIKE]]
        if alone[name] != _length(own[0]):  # the sample's nodes have fewer rows than the run's
            picks = [rng.permutation(_length(pooled))[: alone[name]] for _ in own]
            own = [{column: cells[pick] for column, cells in pooled.items()} for pick in picks]
        found[name] = {
            "rows": len(rows.held_out.positive[seen]),
            "alone": objective.checked(*_without_privacy(rows, own, weighed), seen),
            "joined": {way: objective.checked(*made[way], seen) for way in ways},
        }
    return {
        "wrong": {way: objective.checked(*models) for way, models in made.items()},
        "groups": found,
    }


def _plans(
    rows: PublicRows,
    topology: Topology,
    totals: Mapping[str, float],
    delta: float,
    weights: Weights,
    centring: bool,
    sealed: Sealed | None,
    unit: Unit,
    weighed: Mapping[str, Any],
    calibration: bool,
) -> dict[str, Plan]:
    """The planner's plans of all ways to join, and of one place that holds all rows."""
    schema = rows.schema
    counts = [_length(rows.tables[p]) for p in topology.nodes]
    common: dict[str, Any] = {
        "delta": delta,
        "centring": centring and schema.centre is None,
        "features": schema.feature_count,
        **weighed,
    }
    of_sums: dict[str, Any] = {"calibration": calibration}
    d, least = schema.dimension, min(totals.values())
    joined = {"epsilon": totals, "weights": weights, "unit": unit, **common}
    pooled = Unit(unit.rows * unit.silos)  # one place has the rows that she has at several
    made = {
        "sum": plan(counts, topology, d, algorithm="sum", **of_sums, **joined),
        "admm": plan(counts, topology, d, mechanism="primal", **joined),
        "trusted": plan(
            [sum(counts)], _ONE, d, epsilon=least, algorithm="sum", unit=pooled, **of_sums, **common
        ),
    }
    if sealed is not None:
        made["sealed"] = plan(counts, topology, d, mechanism=sealed, **of_sums, **joined)
    return {way: replace(one, output="network") for way, one in made.items()}


def _private(
    rows: PublicRows,
    tables: Mapping[str, RawTable],
    topology: Topology,
    planned: Plan,
    draws: int,
    seed: int,
) -> tuple[HeldOut, Array]:
    """Private models, and the rows to check them on, bounded as theirs are."""
    schema, models = train_seeded(rows.schema, tables, topology, planned, draws, seed)
    return HeldOut.of(schema, rows.test), models


def _without_privacy(
    rows: PublicRows, tables: Sequence[RawTable], weighed: Mapping[str, Any]
) -> tuple[HeldOut, Array]:
    """The optima of these tables, rho = RIDGE/B, and the rows to check them on."""
    models = []
    for table in tables:
        shard = load_shard(rows.schema, table, "all")
        optimum = run_seeded([shard], _ONE, Plan.of(rounds=1, rho=RIDGE / shard.rows, **weighed))
        models.append(optimum.V[0, 0])
    return rows.held_out, np.array(models)


def _bands(found: Sequence[Mapping[str, Any]], objective: Objective) -> dict[str, Any]:
    """Losses of a group's nodes alone and joined, and the differences on the same rows."""
    n = min(one["rows"] for one in found)
    ways = found[0]["joined"]
    return {
        "alone": objective.band([one["alone"] for one in found], n),
        "joined": {way: objective.band([one["joined"][way] for one in found], n) for way in ways},
        "differences": {
            way: objective.difference([(one["joined"][way], one["alone"]) for one in found], n)
            for way in ways
        },
    }


def _group_sizes(sizes: Mapping[str, int]) -> dict[str, str]:
    """For each node the nearest size that is trained alone: its own, or one of SIZES sizes from the
    smallest to the largest.
    """
    known = np.unique(list(sizes.values()))
    if len(known) > SIZES:
        wanted = np.geomspace(known[0], known[-1], SIZES)
        known = known[[int(np.argmin(np.abs(np.log(known / size)))) for size in wanted]]
    return {p: str(known[np.argmin(np.abs(np.log(known / own)))]) for p, own in sizes.items()}


def _length(table: RawTable) -> int:
    return len(next(iter(table.values())))
