"""Several schedules of alpha at one total, compared by seeded simulations on public rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynadp._arrays import Array
from dynadp._intervals import quantile_band
from dynadp.consensus import Topology
from dynadp.data import Dataset, Shard
from dynadp.planning import Plan, plan
from dynadp.privacy import Event, L2Laplace, calibrate, per_node, worst_node
from dynadp.research.experiments import Spread, map_serially, run_seeded
from dynadp.research.public_rows import HeldOut


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
    scale = calibrate(lambda scale: _releases(scale * base, dimension), epsilon, delta)
    return np.asarray(base * scale)


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
        (:func:`dynadp.engines.ray.pool.map_on_cluster`), with the same result.
    """
    shards, d = data.shards(names=topology.nodes), data.schema.dimension
    counts = [s.rows for s in shards]
    planned = plan(counts, topology, d, epsilon=epsilon, delta=delta, centring=False)
    shared = {
        "held_out": HeldOut.of(data.schema, data.test),
        "shards": shards,
        "topology": topology,
        "planned": planned,
        "epsilon": epsilon,
        "delta": delta,
        "draws": draws,
        "seed": seed,
    }
    shapes = schedule_shapes(planned.rounds)
    tasks = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    return spread(_try_schedule, tasks, shared)


def _try_schedule(
    name: str,
    shape: Array,
    held_out: HeldOut,
    shards: Sequence[Shard],
    topology: Topology,
    planned: Plan,
    epsilon: float,
    delta: float,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    d = shards[0].dimension
    alphas = equal_total(shape, d, epsilon, delta)
    schedule = per_node({p: alphas.tolist() for p in topology.nodes})
    assert planned.protection is not None
    given = replace(planned, protection=replace(planned.protection, schedule=schedule))
    end = run_seeded(shards, topology, given, draws, seed)
    return {
        "schedule": name,
        "alphas": alphas.tolist(),
        "epsilon": worst_node(_releases(alphas, d), delta).epsilon,
        **{
            output: quantile_band(held_out.error(end.models(output)).mean(axis=0), len(held_out))
            for output in ("last", "network")
        },
    }
