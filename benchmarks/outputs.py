"""Which mean of released vectors makes the best model: last, own tail, neighbours' tails, or all
tails (census rows).

Every output is free post-processing, so the default may be chosen by accuracy alone; it is chosen
on synthetic rows.
"""

import numpy as np

from benchmarks.measure import Figure, Report, main, table
from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.datasets import census
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.problem.losses import Logistic

ROWS, ROUNDS, DRAWS = 20_000, 20, 8
NETWORKS = ((5, "ring"), (20, "ring"), (20, "random_regular"))
MECHANISMS: tuple[Mechanism, ...] = (Dual(), Primal(), Primal(augment="iterate"))
ALPHAS = (0.05, 0.2, 0.5, 1.0, 2.0)
OUTPUTS = ("last", "tail", "neighbours", "network")


def run() -> Report:
    """Median test error of each output over nodes and draws."""
    rows, errors = [], []
    for nodes, family in NETWORKS:
        data, topology = (
            census(ROWS, seed=3, nodes=nodes, heterogeneity=0.5),
            Topology.family(family, nodes),
        )
        shards, X, positive = (
            data.shards(),
            data.schema.rows(data.test),
            data.schema.labels(data.test) > 0,
        )
        d = data.schema.dimension
        for mechanism in MECHANISMS:
            for alpha in ALPHAS:
                q = ROUNDS / (ROWS / nodes * alpha * np.sqrt(ROUNDS / d) * np.sqrt(nodes))
                eta = q / (2 * topology.degrees.mean())
                end = simulate(
                    shards,
                    topology,
                    Plan.of(
                        loss=Logistic(margin=3.0),
                        rho=q / 50,
                        eta=eta,
                        rounds=ROUNDS,
                        mechanism=mechanism,
                        schedule=alpha,
                    ),
                    replicas=DRAWS,
                    draws=SeededEntropy(1),
                )
                found = []
                for output in OUTPUTS:
                    F = end.models(output).reshape(-1, d)
                    found.append(
                        float(np.median(np.mean((X @ F.T > 0) != positive[:, None], axis=0)))
                    )
                errors.append(found)
                name = mechanism.name + (" as printed" if mechanism.own == "paper" else "")
                rows.append(
                    (f"{nodes} {family}", name, alpha, *(f"{100 * error:.2f}%" for error in found))
                )
    regret = np.array(errors) - np.min(errors, axis=1, keepdims=True)
    figures = [
        Figure(
            f"{output}: mean (largest {100 * regret[:, i].max():.2f}) regret against the best "
            f"output",
            100 * regret[:, i].mean(),
            "points",
        )
        for i, output in enumerate(OUTPUTS)
    ]
    text = (
        f"Census, {ROWS} rows, {ROUNDS} rounds, constant alpha, {DRAWS} draws; median test "
        f"error.\n\n" + table(("network", "mechanism", "alpha", *OUTPUTS), rows)
    )
    return Report("outputs", figures, text, {"errors": rows})


if __name__ == "__main__":
    main(run)
