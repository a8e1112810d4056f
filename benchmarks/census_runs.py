"""Planned runs on census rows, many draws at once; their test rows are made here and may be looked
at freely.
"""

from collections.abc import Sequence

import numpy as np

from dynadp import Plan
from dynadp.data.datasets.base import Dataset
from dynadp.data.survey import feature_sums
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.entropy import BatchedDraws, Draws
from dynadp.research.experiments import centre_seeded


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
    sums = [feature_sums(data.schema, rows) for rows in tables if protection.centring]
    found = []
    for seed in seeds:
        schema = data.schema.model_copy(update={"scaling": "unit"})
        if sums:
            schema = centre_seeded(plan, data.schema, lambda p: sums[p], draws(seed))
        shards = [
            schema.shard(rows, name) for rows, name in zip(tables, topology.nodes, strict=True)
        ]
        end = simulate(shards, topology, plan, replicas=replicas, draws=draws(seed))
        F, positive = end.models(plan.output)[0], schema.labels(data.test) > 0
        found.append(np.mean((schema.rows(data.test) @ F.T > 0) != positive[:, None], axis=0))
    return np.concatenate(found)
