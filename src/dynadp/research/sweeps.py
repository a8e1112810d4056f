"""What many draws of the noise give, for several schedules at one total: stacked, seeded
simulations on public rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp._intervals import quantile_band
from dynadp.consensus import Topology
from dynadp.data import Dataset, Shard
from dynadp.engines import simulate
from dynadp.mechanisms import SeededEntropy
from dynadp.planning import Plan, plan
from dynadp.privacy import Event, L2Laplace, calibrate, per_node, worst_node

Spread = Callable[[Callable[..., Any], Sequence[Mapping[str, Any]], Mapping[str, Any]], list[Any]]


def map_serially(
    work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[Any]:
    """``[work(**shared, **task) for task in tasks]``, one after the other."""
    return [work(**shared, **task) for task in tasks]


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


def equal_total(shape: ArrayLike, dimension: int, epsilon: float, delta: float) -> Array:
    """The alphas of this shape that cost (epsilon, delta) in total, by primal perturbation."""
    base = np.asarray(shape, dtype=float)
    return np.asarray(
        base * calibrate(lambda scale: _releases(scale * base, dimension), epsilon, delta)
    )


def _releases(alphas: Array, dimension: int) -> list[Event]:
    return [L2Laplace("node", n, "primal", float(a), dimension) for n, a in enumerate(alphas, 1)]


def compare_schedules(
    data: Dataset,
    topology: Topology,
    epsilon: float,
    delta: float,
    draws: int,
    seed: int,
    spread: Spread = map_serially,
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
    spread
        Carries out tasks: one after the other, or on a cluster
        (:func:`dynadp.engines.ray.pool.spread`), with the same result.
    """
    shards, d = data.shards(names=topology.nodes), data.schema.dimension
    planned = plan(
        [s.rows for s in shards], topology, d, epsilon=epsilon, delta=delta, centring=False
    )
    shared = {
        "X": data.schema.rows(data.test),
        "positive": data.schema.labels(data.test) > 0,
        "shards": shards,
        "topology": topology,
        "planned": planned,
        "epsilon": epsilon,
        "delta": delta,
        "draws": draws,
        "seed": seed,
    }
    return spread(
        _schedule,
        [{"name": n, "shape": shape} for n, shape in schedule_shapes(planned.rounds).items()],
        shared,
    )


def _schedule(
    name: str,
    shape: Array,
    X: Any,
    positive: Array,
    shards: Sequence[Shard],
    topology: Topology,
    planned: Plan,
    epsilon: float,
    delta: float,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """One schedule."""
    d = shards[0].dimension
    alphas = equal_total(shape, d, epsilon, delta)
    schedule = per_node({p: alphas.tolist() for p in topology.nodes})
    assert planned.protection is not None
    end = simulate(
        shards,
        topology,
        replace(planned, protection=replace(planned.protection, schedule=schedule)),
        replicas=draws,
        draws=SeededEntropy(seed),
    )
    row: dict[str, Any] = {"schedule": name, "alphas": alphas.tolist()}
    row["epsilon"] = worst_node(_releases(alphas, d), delta).epsilon
    for output in ("last", "network"):
        wrong = [np.mean((X @ f.T > 0) != positive[:, None], axis=0) for f in end.models(output)]
        row[output] = quantile_band(np.mean(wrong, axis=0), len(positive))
    return row
