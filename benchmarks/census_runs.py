"""Planned runs on census rows, many draws at once; their test rows are made here and may be looked
at freely.
"""

from collections.abc import Sequence

import numpy as np

from dynadp import Plan
from dynadp.data.datasets.base import Dataset
from dynadp.data.survey import feature_sums
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.centring import private_centre
from dynadp.mechanisms.entropy import BatchedDraws, Draws


def errors(
    data: Dataset,
    parts: Sequence[np.ndarray],
    plan: Plan,
    seeds: Sequence[int],
    replicas: int,
    draws: type[Draws] = BatchedDraws,
) -> np.ndarray:
    """Test error of each draw: a fresh centre for each seed, fresh noise for each replica.

    Parameters
    ----------
    data, parts
        All rows, and those of each node.
    plan
        Bound to its network.
    seeds, replicas
        Of the draws.
    draws
        Where they come from.
    """
    topology, protection = plan.bound.topology, plan.protection
    assert protection is not None
    tables = [{name: cells[part] for name, cells in data.train.items()} for part in parts]
    heard = [topology.nodes[p] for p in plan.senders] if plan.steps else list(topology.nodes)
    sums = {
        name: feature_sums(data.schema, rows)
        for name, rows in zip(topology.nodes, tables, strict=True)
        if protection.centring and name in heard
    }
    losses = dict(zip(topology.nodes, protection.centring, strict=bool(protection.centring)))
    found = []
    for seed in seeds:
        schema = data.schema.model_copy(update={"scaling": "unit"})
        if sums:
            schema = private_centre(
                data.schema,
                [sums[name] for name in heard],
                heard,
                [losses[name] for name in heard],
                draws(seed),
                plan.mechanism.noise,
            ).applied(data.schema)
        shards = [
            schema.shard(rows, name) for rows, name in zip(tables, topology.nodes, strict=True)
        ]
        end = simulate(shards, topology, plan, replicas=replicas, draws=draws(seed))
        F, positive = end.models(plan.output)[0], schema.labels(data.test) > 0
        found.append(np.mean((schema.rows(data.test) @ F.T > 0) != positive[:, None], axis=0))
    return np.concatenate(found)
