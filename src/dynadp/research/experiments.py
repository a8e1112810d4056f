"""One experiment on public rows: plan, centre, simulate with seeded noise, measure the error.

Every seeded simulation of this room goes through :func:`run_seeded`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp._intervals import quantile_band
from dynadp._roots import root
from dynadp.consensus import Output, RoundProgress, Topology, decoded
from dynadp.data import (
    Dataset,
    FeatureSums,
    NodeRows,
    RawTable,
    Schema,
    Shard,
    Target,
    load_shard,
)
from dynadp.engines import Run, simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import (
    Draws,
    SeededEntropy,
    centred,
    possible_mean,
    sealed_centring,
)
from dynadp.planning import Consortium, Plan, plan
from dynadp.privacy import Schedule, calibrate, per_node
from dynadp.problem import probabilities
from dynadp.research.objectives import Objective
from dynadp.research.public_rows import HeldOut, PublicRows
from dynadp.runs import centring_round

Spread = Callable[[Callable[..., Any], Sequence[Mapping[str, Any]], Mapping[str, Any]], list[Any]]
LEAST, MOST, POINTS = 0.05, 10.0, 9  # totals that are tried, and how many
DRAWS, SEED = 12, 0  # of the noise, for each total
MOST_COMMON = "always the most common answer"
ALIKE = "always the same number"
_RIDGE = 1e-6  # of optima without privacy
OUTPUTS: tuple[Output, ...] = ("last", "network")  # by which schedules are compared


def map_serially(
    work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[Any]:
    """``[work(**shared, **task) for task in tasks]``, one after the other."""
    return [work(**shared, **task) for task in tasks]


def run_seeded(
    shards: Sequence[Shard],
    topology: Topology,
    plan: Plan,
    draws: int = 1,
    seed: int = SEED,
    on_round: Callable[[RoundProgress], None] | None = None,
) -> Run:
    """Simulate a plan with seeded noise, all draws in one stack; without protection nothing is
    drawn, once.
    """
    return simulate(
        shards,
        topology,
        plan,
        draws=SeededEntropy(seed),
        replicas=draws if plan.protection else 1,
        on_round=on_round,
    )


def train_seeded(
    schema: Schema,
    tables: Mapping[str, RawTable],
    topology: Topology,
    planned: Plan,
    draws: int = DRAWS,
    seed: int = SEED,
) -> tuple[Schema, Array]:
    """Run a private plan with seeded noise: one centring round, then all draws in one stack.

    Sealed sums of several draws have no masks: the noise of the sum is drawn at once, which has the
    same law.

    Parameters
    ----------
    schema, tables, topology
        How raw rows become bounded rows, the rows of each node, and the network.
    planned
        Made for the numbers of rows that are there; nothing of it is changed.
    draws, seed
        How many draws of the noise, and their seed.

    Returns
    -------
    Schema, Array
        The schema with the centre that was found, and the first node's models, draws x d.
    """
    nodes = topology.nodes
    if planned.centrings:

        def sums(p: int) -> FeatureSums:
            declared = planned.bound.counts[p]
            return NodeRows(schema, tables[nodes[p]], nodes[p], declared=declared, seal=False).sums

        schema = centre_seeded(planned, schema, sums, SeededEntropy(seed))
    counts = planned.bound.counts
    shards = [load_shard(schema, tables[p], p, rows=b) for p, b in zip(nodes, counts, strict=True)]
    return schema, run_seeded(shards, topology, planned, draws, seed).models(planned.output)[0]


def centre_seeded(
    planned: Plan, schema: Schema, sums: Callable[[int], FeatureSums], draws: Draws
) -> Schema:
    """Return the schema with the centre of one centring round, for sweeps.

    Parameters
    ----------
    planned
        With a centring round.
    schema
        Without a centre yet.
    sums
        The feature sums of the node at a position.
    draws
        Where noise comes from. Of sealed sums that of the sum is drawn at once, without masks.
    """
    if planned.sealing is None:
        return centring_round(planned, schema, sums, draws).applied(schema)
    counts = np.array(planned.bound.counts, dtype=float)
    noise = sealed_centring(schema, counts, np.array(planned.centrings), planned.sealing)
    totals = np.array([sums(p).total for p in range(len(counts))])
    total = decoded(noise.summed(totals[:, None], draws, 0).view(np.uint64), noise)[0]
    return centred(schema, possible_mean(schema, total / planned.rows))


def try_plan(
    topology: Topology,
    rows: PublicRows,
    planned: Plan,
    draws: int = DRAWS,
    seed: int = SEED,
    objective: Objective | None = None,
) -> dict[str, float]:
    """Measure the loss of seeded runs: one centring round, then all draws.

    Parameters
    ----------
    topology
        The network.
    rows
        Public rows of the nodes, and held-out ones.
    planned
        Made for the numbers of rows that are there; nothing of it is changed.
    draws, seed
        How many draws of the noise, and their seed.
    objective
        What the loss is made of; by default the share of wrong answers.
    """
    schema, models = train_seeded(rows.schema, rows.tables, topology, planned, draws, seed)
    return (objective or Objective()).tried(HeldOut.of(schema, rows.test), models)


def pooled_error(pooled: Shard, held_out: HeldOut, objective: Objective | None = None) -> float:
    """Loss of the optimum of all rows in one place, without privacy; of numbers by least
    squares.
    """
    if pooled.kind == "signs":
        end = run_seeded([pooled], Topology.family("ring", 1), Plan(rounds=1)).V[0]
    else:
        end = (_least_squares(pooled) if pooled.kind == "numbers" else _best_softmax(pooled))[None]
    return (objective or Objective()).tried(held_out, end)["median"]


def _least_squares(pooled: Shard) -> Array:
    """argmin mean (x.f - t)^2 + RIDGE ||f||^2."""
    from scipy.sparse import issparse

    X = pooled.signed
    ridge = _RIDGE * len(pooled.y) * np.eye(X.shape[1])
    squares = X.T @ X
    squares = squares.toarray() if issparse(squares) else squares
    return np.linalg.solve(squares + ridge, X.T @ pooled.y)


def _best_softmax(pooled: Shard) -> Array:
    """argmin mean -ln softmax(F x)_y + RIDGE ||F||^2/2, the vectors one after the other."""
    from scipy.optimize import minimize  # 0.1 s, which sweeps of other labels save

    X, n, J = pooled.signed, len(pooled.y), pooled.classes
    one = np.eye(J)[pooled.y.astype(np.int64)]

    def loss(f: Array) -> tuple[float, Array]:
        p = probabilities(np.asarray(X @ f.reshape(J, -1).T))
        right = np.log(np.maximum(np.sum(p * one, axis=1), np.finfo(float).tiny))
        slope = np.asarray(X.T @ (p - one)).T.ravel() / n
        return float(-right.mean() + _RIDGE / 2 * (f @ f)), slope + _RIDGE * f

    start = np.zeros(J * X.shape[1])
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x)


def measure_baselines(rows: PublicRows, objective: Objective | None = None) -> dict[str, float]:
    """100 (1 - loss), right answers in 100: of all rows in one place without privacy, and of always
    the most common answer, where the measure has a value for it.
    """
    objective = objective or Objective()
    tables = list(rows.tables.values())
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    without = pooled_error(load_shard(rows.schema, pooled, "pooled"), rows.held_out, objective)
    blind = objective.blind(rows.held_out)
    return {
        "without privacy": 100 * (1 - without),
        **({} if blind is None else {blind_words(rows): 100 * (1 - blind)}),
    }


def blind_words(rows: PublicRows) -> str:
    """What answers that look at no row are called."""
    return ALIKE if isinstance(rows.schema.label, Target) else MOST_COMMON


def plan_for_total(
    fixed: Plan,
    counts: Sequence[int],
    topology: Topology,
    dimension: int,
    epsilon: float,
    delta: float,
    shape: Array | None = None,
    *,
    features: int | None = None,
    classes: int = 2,
) -> Plan:
    """Keep a plan's constants; give every node the alpha that costs (epsilon, delta) in total, or
    the alphas of its rounds in proportion to a shape.
    """
    assert fixed.protection is not None
    protection = replace(fixed.protection, delta=delta)
    those = Consortium(topology, tuple(counts), dimension, features, classes)

    def at(scale: float) -> Plan:
        schedule: float | Schedule = scale
        if shape is not None:
            schedule = per_node(dict.fromkeys(topology.nodes, (scale * shape).tolist()))
        return replace(fixed, protection=replace(protection, schedule=schedule)).on(those)

    return at(calibrate(lambda scale: at(scale).events, epsilon, delta))


def totals_to_try(
    planned: Callable[[float], Plan], limits: tuple[float, float] | None = None
) -> list[float]:
    """The totals to try, of four digits: from LEAST to MOST, or from what one alpha costs to what
    another does.

    Parameters
    ----------
    planned
        The plan for a total.
    limits
        The alphas; None for LEAST to MOST.
    """
    low, high = LEAST, MOST
    if limits is not None:
        low, high = (_total(planned, alpha) for alpha in limits)
    if not low < high:
        raise DeclarationError(
            f"the range of alpha, or mu, is {limits}; expected a smaller one first, then a larger"
        )
    return [float(f"{total:.4g}") for total in np.geomspace(low, high, POINTS)]


def _total(planned: Callable[[float], Plan], alpha: float) -> float:
    """The total whose plan has this alpha, or mu, within a thousandth."""

    def above(t: float) -> float:
        return log(planned(exp(t)).alpha / alpha)

    low = high = 0.0
    while above(low) > 0 and low > -20:
        low -= 2
    while above(high) < 0 and high < 6:
        high += 2
    if above(low) > 0 or above(high) < 0:
        raise DeclarationError(
            f"no total plans alpha, or mu, = {alpha:g}; give a range that totals up to "
            f"{exp(6):.0f} reach"
        )
    return exp(root(above, low, high, xtol=1e-3))


def schedule_shapes(rounds: int) -> dict[str, Array]:
    """alpha_p(n) up to a scale: 1; n; T + 1 - n; and 1 in the last tenth of the rounds, 0.01
    before.
    """
    n = np.arange(1.0, rounds + 1)
    late = n > rounds - max(rounds // 10, 1)
    return {
        "constant": np.ones(rounds),
        "growing": n,
        "shrinking": n[::-1].copy(),
        "all in the end": np.where(late, 1.0, 0.01),
    }


def compare_schedules(
    data: Dataset, topology: Topology, epsilon: float, delta: float, draws: int, seed: int
) -> list[dict[str, Any]]:
    """Test error of each of :func:`schedule_shapes` at one total (epsilon, delta), all else as
    planned: a stacked run each.

    Parameters
    ----------
    data
        Made or published rows, with a node for each.
    topology
        The network.
    epsilon, delta
        The total that every schedule is scaled to.
    draws, seed
        How many draws of the noise, and their seed.
    """
    shards, d = data.shards(names=topology.nodes), data.schema.dimension
    counts = [s.rows for s in shards]
    planned = plan(
        counts, topology, d, epsilon=epsilon, delta=delta, mechanism="primal", centring=False
    )
    held_out, results = HeldOut.of(data.schema, data.test), []
    for name, shape in schedule_shapes(planned.rounds).items():
        given = plan_for_total(planned, counts, topology, d, epsilon, delta, shape)
        end = run_seeded(shards, topology, given, draws, seed)
        result: dict[str, Any] = {
            "schedule": name,
            "alphas": given.table()[0, 0].tolist(),
            "epsilon": given.total.epsilon,
        }
        for output in OUTPUTS:
            errors = held_out.error(end.models(output)).mean(axis=0)
            result[output] = quantile_band(errors, len(held_out))
        results.append(result)
    return results
