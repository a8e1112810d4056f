"""Error against rounds on Adult with the paper's (rho, C) = (1e-10, 1750), as a picture:
docs/adult-rounds.png.

Five nodes on a ring. The paper names no penalty: eta = 1 is a plain choice, the other curve is
dynadp's default.
"""

import json
from pathlib import Path

import numpy as np

from dynadp import Plan
from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.uci import adult
from dynadp.engines.simulation import simulate
from dynadp.planning.parts import default_eta
from dynadp.problem.losses import Logistic
from dynadp.report import charts

C, RHO, ROUNDS = 1750.0, 1e-10, 100


def main() -> None:
    data = adult()
    shards = data.shards(partition(len(data.train["age"]), 5))
    topology = Topology.family("ring", 5)
    X, y = data.schema.rows(data.test), data.schema.labels(data.test)
    etas = {"eta = 1": 1.0, f"default eta = {default_eta(topology, Logistic(), C, RHO):.3f}": None}
    rows = []
    for series, eta in etas.items():

        def note(progress, series=series):
            V = progress.messages
            mean = V[:, 0].mean(axis=0)
            rows.append(
                {
                    "round": progress.number,
                    "series": series,
                    "error": float(np.mean((X @ V[:, 0].T > 0) != (y > 0)[:, None])),
                    "disagreement": float(
                        np.linalg.norm(V[:, 0] - mean, axis=1).max() / np.linalg.norm(mean)
                    ),
                }
            )

        simulate(shards, topology, Plan.of(C=C, rho=RHO, eta=eta, rounds=ROUNDS), on_round=note)
    pooled = data.schema.shard(data.train, "pooled")
    limit = simulate([pooled], Topology.family("ring", 1), Plan.of(C=C, rho=RHO, rounds=1)).V[0, 0]
    references = [
        {"name": "centralised optimum", "error": float(np.mean((X @ limit > 0) != (y > 0)))}
    ]
    at = {
        s: {
            n: next(r["error"] for r in rows if r["series"] == s and r["round"] == n)
            for n in (10, 30, 100)
        }
        for s in etas
    }
    print(
        json.dumps(
            {"limit": references[0]["error"], "error_after_rounds": at, **_moderate(data, X, y)},
            indent=1,
        )
    )
    chart = charts.convergence(
        rows, references, "UCI Adult, 5-node ring, rho = 1e-10, C = 1750, no privacy"
    )
    chart.save(Path(__file__).parent.parent / "docs" / "adult-rounds.png", scale_factor=2)


def _moderate(data, X, y) -> dict[str, float]:
    """The same at C = 1, rho = 1e-4: the ring against one place."""
    shards = data.shards(partition(len(data.train["age"]), 5))
    ring = simulate(
        shards,
        Topology.family("ring", 5),
        Plan.of(rho=1e-4, rounds=400),
        acceleration=Acceleration(gap=1e-6),
    )
    alone = simulate(
        [data.schema.shard(data.train, "pooled")],
        Topology.family("ring", 1),
        Plan.of(rho=1e-4, rounds=1),
    )
    wrong = np.mean((X @ ring.V[:, 0].T > 0) != (y > 0)[:, None], axis=0)
    return {
        "C=1 rho=1e-4: largest error of a node": float(wrong.max()),
        "C=1 rho=1e-4: error of the centralised optimum": float(
            np.mean((X @ alone.V[0, 0] > 0) != (y > 0))
        ),
        "C=1 rho=1e-4: rounds to a certified gap of 1e-6": len(ring.rounds),
    }


if __name__ == "__main__":
    main()
