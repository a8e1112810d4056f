"""The constants of algorithm "sum", found again on census rows."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from dynadp.consensus.topology import Topology
from dynadp.data.columns import Categorical
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.synthetic import census
from dynadp.data.survey import feature_sums
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.centring import private_centre
from dynadp.mechanisms.entropy import BatchedDraws
from dynadp.mechanisms.sums import Sum
from dynadp.planning.parts import Consortium
from dynadp.planning.sum_planner import plan_sums
from dynadp.planning.sums import SumConstants, gaussian_mu

DELTA, SAMPLES, REPLICAS = 1e-5, 3, 8
ONE = Topology.family("ring", 1)


@dataclass(frozen=True)
class Cell:
    """Rows in one place, and the total that gives them this N."""

    rows: int
    N: float
    wide: bool = False

    @property
    def epsilon(self) -> float:
        """gaussian_mu(epsilon) = N/rows."""
        mu = self.N / self.rows
        return float(np.exp(brentq(lambda e: gaussian_mu(np.exp(e), DELTA) - mu, -12, 5)))


@lru_cache
def rows_of(rows: int, wide: bool, seed: int) -> Dataset:
    data = census(rows, seed=seed, nodes=1, test_rows=20_000)
    if not wide:
        return data
    schema = data.schema
    trades, states = (
        next(c for c in schema.columns if c.name == name).values for name in ("trade", "status")
    )
    both = Categorical(name="both", values=tuple(f"{t} {s}" for t in trades for s in states))
    for table in (data.train, data.test):
        table["both"] = np.array(
            [f"{t} {s}" for t, s in zip(table["trade"], table["status"], strict=True)]
        )
    return replace(data, schema=schema.model_copy(update={"columns": (*schema.columns, both)}))


@lru_cache(maxsize=12)
def centred(rows: int, wide: bool, seed: int, mu: float):
    data = rows_of(rows, wide, seed)
    schema = data.schema.model_copy(update={"scaling": "unit"})
    if mu:
        sums = [_sums(rows, wide, seed)]
        centre = private_centre(data.schema, sums, ONE.nodes, mu, BatchedDraws(seed), "gaussian")
        schema = centre.applied(data.schema)
    shard = schema.shard(data.train, ONE.nodes[0])
    X = schema.rows(data.test)
    return shard, X.toarray() if hasattr(X, "toarray") else X, schema.labels(data.test) > 0


@lru_cache
def _sums(rows: int, wide: bool, seed: int):
    data = rows_of(rows, wide, seed)
    return feature_sums(data.schema, data.train)


def errors(cell: Cell, constants: SumConstants, moment: bool | None) -> np.ndarray:
    """Test error of each draw: fresh rows, centre and noise."""
    out = []
    chosen = None
    for seed in range(SAMPLES):
        data = rows_of(cell.rows, cell.wide, seed)
        if chosen is None:
            consortium = Consortium(
                ONE, (cell.rows,), data.schema.dimension, data.schema.feature_count
            )
            chosen = plan_sums(
                consortium,
                [cell.epsilon],
                DELTA,
                Sum(second_moment=moment),
                centring=constants.centring > 0,
                constants=constants,
            )
        mu = chosen.centrings[0] if chosen.centrings else 0.0
        shard, X, positive = centred(cell.rows, cell.wide, seed, mu)
        end = simulate(
            [shard], ONE, chosen, replicas=REPLICAS, draws=BatchedDraws(seed), storage="dense"
        )
        F = end.models(chosen.output)[0]
        out.append(np.mean((X @ F.T > 0) != positive[:, None], axis=0))
    return 100 * np.concatenate(out)
