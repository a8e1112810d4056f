"""Seeded runs on public rows at several totals, each exactly as planned: what `tradeoff` and
`explore` both rest on.
"""

from collections.abc import Callable
from math import exp, log
from typing import Any

import numpy as np
from scipy.optimize import brentq

from dynadp._arrays import Array
from dynadp._intervals import quantile_band, standard_error
from dynadp.consensus import Topology
from dynadp.data import Schema, feature_sums, load_shard
from dynadp.engines import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms import SeededEntropy, private_centre
from dynadp.planning import Plan
from dynadp.report.explore.setting import Rows

LEAST, MOST, POINTS = 0.05, 10.0, 9  # totals that are tried, and how many
DRAWS, SEED = 12, 0  # of the noise, for each total
COMMONER = "always the commoner answer"


def totals(
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
    low, high = (
        (LEAST, MOST)
        if limits is None
        else (_total(planned, limits[0]), _total(planned, limits[1]))
    )
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


def tried(
    topology: Topology, rows: Rows, planned: Plan, draws: int = DRAWS, seed: int = SEED
) -> dict[str, float]:
    """Share of wrong answers on held-out public rows of seeded runs: one centring round, then all
    draws in one stack.

    Parameters
    ----------
    topology
        The network.
    rows
        Public rows of the nodes, and those that answers are told on.
    planned
        For the numbers of rows that are there; nothing of it is changed.
    draws, seed
        How many draws of the noise, and their seed.
    """
    nodes, schema = topology.nodes, rows.schema
    if planned.centrings:
        sums = [feature_sums(schema, rows.tables[p], p) for p in nodes]
        schema = private_centre(
            schema, sums, nodes, planned.centrings, SeededEntropy(seed)
        ).applied(schema)
    end = simulate(
        [load_shard(schema, rows.tables[p], p) for p in nodes],
        topology,
        loss=planned.loss,
        regularizer=planned.regularizer,
        C=planned.C,
        weights=planned.weights,
        rho=planned.rho,
        eta=planned.eta,
        rounds=planned.rounds,
        replicas=draws,
        mechanism=planned.mechanism,
        schedule=planned.schedule(nodes),
        draws=SeededEntropy(seed),
    )
    shares = wrong(schema, rows, end.models(planned.output)[0])
    told = len(next(iter(rows.test.values())))
    return {**quantile_band(shares, told), "error": standard_error(shares, told)}


def wrong(schema: Schema, rows: Rows, vectors: Array) -> Array:
    """Share of wrong answers on the rows that are told, for each vector."""
    positive = schema.labels(rows.test) > 0
    return np.asarray(
        np.mean((schema.rows(rows.test) @ vectors.T > 0) != positive[:, None], axis=0)
    )


def baselines(rows: Rows) -> dict[str, float]:
    """Right answers in 100: of all rows in one place without privacy, and of always the commoner
    answer.
    """
    names = next(iter(rows.tables.values()))
    pooled: dict[str, Any] = {
        name: np.concatenate([table[name] for table in rows.tables.values()]) for name in names
    }
    alone = simulate(
        [load_shard(rows.schema, pooled, "pooled")], Topology.family("ring", 1), rounds=1
    )
    without = float(wrong(rows.schema, rows, alone.V[0])[0])
    return {"without privacy": 100 * (1 - without), COMMONER: 100 * (1 - blind(rows))}


def blind(rows: Rows) -> float:
    """Share of wrong answers of always giving the commoner one."""
    positive = float(np.mean(rows.schema.labels(rows.test) > 0))
    return min(positive, 1 - positive)
