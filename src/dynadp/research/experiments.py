"""One experiment on public rows: plan, centre, simulate with seeded noise, measure the error.

Every seeded simulation of this room goes through :func:`run_seeded`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dynadp._arrays import Array
from dynadp._intervals import quantile_band, standard_error
from dynadp.consensus import Topology
from dynadp.data import Shard, shard
from dynadp.engines import RoundProgress, Run, simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, SeededEntropy, private_centre
from dynadp.planning import Plan, planned_events, public_numbers
from dynadp.privacy import Event, Schedule, calibrate, worst_node
from dynadp.problem import shares
from dynadp.research.public_rows import HeldOut, PublicRows

Spread = Callable[[Callable[..., Any], Sequence[Mapping[str, Any]], Mapping[str, Any]], list[Any]]
LEAST, MOST, POINTS = 0.05, 10.0, 9  # totals that are tried, and how many
DRAWS, SEED = 12, 0  # of the noise, for each total
COMMONER = "always the commoner answer"


def map_serially(
    work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[Any]:
    """``[work(**shared, **task) for task in tasks]``, one after the other."""
    return [work(**shared, **task) for task in tasks]


def run_seeded(
    shards: Sequence[Shard],
    topology: Topology,
    settings: Mapping[str, Any],
    *,
    rounds: int,
    mechanism: Mechanism | None = None,
    schedule: Schedule | Sequence[Schedule | float] | None = None,
    draws: int = 1,
    seed: int = SEED,
    on_round: Callable[[RoundProgress, Array], None] | None = None,
) -> Run:
    """Simulate Algorithm 1, 2 or 3 with seeded noise, all draws in one stack.

    Parameters
    ----------
    shards, topology
        Rows of each node, and the network.
    settings
        What is minimised: loss, regularizer, C, weights, rho and eta, as far as they are given.
    rounds
        T.
    mechanism, schedule, draws, seed
        How messages are protected, how many draws of the noise, and their seed. Without a
        mechanism nothing is drawn.
    on_round
        Called after every round with its progress and messages.
    """
    protection: dict[str, Any] = {}
    if mechanism is not None:
        protection = {
            "mechanism": mechanism,
            "schedule": schedule,
            "draws": SeededEntropy(seed),
            "replicas": draws,
        }
    return simulate(shards, topology, **settings, rounds=rounds, on_round=on_round, **protection)


def run_plan(
    shards: Sequence[Shard],
    topology: Topology,
    planned: Plan,
    draws: int,
    seed: int,
    schedule: Schedule | None = None,
) -> Run:
    """Simulate a plan with seeded noise; ``schedule`` replaces the plan's own."""
    names = ("loss", "regularizer", "C", "weights", "rho", "eta")
    return run_seeded(
        shards,
        topology,
        {name: getattr(planned, name) for name in names},
        rounds=planned.rounds,
        mechanism=planned.mechanism,
        schedule=schedule or planned.schedule(topology.nodes),
        draws=draws,
        seed=seed,
    )


def try_plan(
    topology: Topology, rows: PublicRows, planned: Plan, draws: int = DRAWS, seed: int = SEED
) -> dict[str, float]:
    """Measure the share of wrong answers of seeded runs: one centring round, then all draws in one
    stack.

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
    """
    nodes, schema = topology.nodes, rows.schema
    if planned.centrings:
        tables = [rows.tables[p] for p in nodes]
        centring = private_centre(schema, tables, nodes, planned.centrings, SeededEntropy(seed))
        schema = centring.applied(schema)
    end = run_plan(
        [shard(schema, rows.tables[p], p) for p in nodes], topology, planned, draws, seed
    )
    held_out = HeldOut.of(schema, rows.test)
    errors = held_out.error(end.models(planned.output)[0])
    return {
        **quantile_band(errors, len(held_out)),
        "error": standard_error(errors, len(held_out)),
    }


def measure_baselines(rows: PublicRows) -> dict[str, float]:
    """Right answers in 100: of all rows in one place without privacy, and of always the commoner
    answer.
    """
    tables = list(rows.tables.values())
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    alone = run_seeded(
        [shard(rows.schema, pooled, "pooled")], Topology.family("ring", 1), {}, rounds=1
    )
    without = float(rows.held_out.error(alone.V[0])[0])
    return {
        "without privacy": 100 * (1 - without),
        COMMONER: 100 * (1 - rows.held_out.majority_error),
    }


def plan_for_total(
    fixed: Plan,
    counts: Sequence[int],
    topology: Topology,
    dimension: int,
    epsilon: float,
    delta: float,
) -> Plan:
    """Keep a plan's constants; give every node the alpha that costs (epsilon, delta) in total."""
    nodes, sizes = topology.nodes, np.array(counts, dtype=float)
    C = shares(fixed.C, sizes, fixed.weights)
    public = public_numbers(sizes, topology.degrees, dimension, C, fixed.rho, fixed.eta, fixed.loss)

    def events(alpha: float) -> list[Event]:
        alphas = np.full(len(nodes), alpha)
        return planned_events(fixed.mechanism, public, fixed.rounds, nodes, alphas, (), 0)

    alpha = calibrate(events, epsilon, delta)
    spent = tuple(events(alpha))
    return replace(
        fixed, alphas=(alpha,) * len(nodes), events=spent, total=worst_node(spent, delta)
    )


def totals_to_try(
    planned: Callable[[float], Plan], limits: tuple[float, float] | None = None
) -> list[float]:
    """The totals to try: from LEAST to MOST, or from what one alpha costs to what another does.

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
            f"the range of alpha is {limits}; expected a smaller one first, then a larger"
        )
    return [float(total) for total in np.geomspace(low, high, POINTS)]


def _total(planned: Callable[[float], Plan], alpha: float) -> float:
    """The total whose plan has this alpha, within a thousandth."""

    def above(t: float) -> float:
        return log(planned(exp(t)).alpha / alpha)

    low = high = 0.0
    while above(low) > 0 and low > -20:
        low -= 2
    while above(high) < 0 and high < 6:
        high += 2
    if above(low) > 0 or above(high) < 0:
        raise DeclarationError(
            f"no total plans alpha = {alpha:g}; give a range of alpha that totals up to "
            f"{exp(6):.0f} reach"
        )
    return exp(float(brentq(above, low, high, xtol=1e-3)))
