"""Rounds of plain Algorithm 1 to a relative distance of 1e-2 from the optimum, for multiples of the
default penalty eta.
"""

from itertools import product

import numpy as np

from benchmarks.measure import Figure, Report, main, table
from benchmarks.pooled import Pooled
from dynadp import Plan
from dynadp.consensus.progress import RoundProgress
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.planning.parts import default_eta
from dynadp.problem.losses import Logistic

MULTIPLES = (0.03, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 10.0, 30.0, 100.0)
NETWORKS = (  # family, nodes, rows a node
    ("ring", 5, 200),
    ("ring", 5, 2000),
    ("ring", 20, 200),
    ("random_regular", 20, 200),
    ("complete", 10, 200),
    ("star", 10, 200),
)
RHOS, HETEROGENEITIES = (1e-2, 1e-4, 1e-6), (0.0, 0.7)
DISTANCE, LIMIT = 1e-2, 1000  # and rounds at most


class _Enough(Exception):
    """Raised from on_round: the rest of the run could not change the verdict on the default."""


def rounds_needed(
    shards: list[Shard], topology: Topology, C: float, rho: float
) -> list[int | None]:
    """First round with max_p ||V_p - f*|| <= 1e-2 ||f*||, for each multiple; None where it was not
    seen.

    One stack, a replica for each multiple. It ends at twice the default's round: what is slower
    needs no number.
    """
    best, _ = Pooled.of(shards, C, rho).optimum()
    first = np.zeros(len(MULTIPLES), dtype=int)
    default = MULTIPLES.index(1.0)

    def look(progress: RoundProgress) -> None:
        far = np.linalg.norm(progress.messages - best, axis=-1).max(axis=0)
        first[(far <= DISTANCE * np.linalg.norm(best)) & (first == 0)] = progress.number
        if first.all() or (first[default] and progress.number >= 2 * first[default]):
            raise _Enough

    eta = default_eta(topology, Logistic(), C, rho)
    try:
        penalties = [m * eta for m in MULTIPLES]
        simulate(
            shards,
            topology,
            Plan.of(C=C, rho=rho, eta=penalties, rounds=LIMIT),
            replicas=len(penalties),
            on_round=look,
        )
    except _Enough:
        pass
    return [int(n) or None for n in first]


def run() -> Report:
    """The default penalty beside multiples of it."""
    rows, ratios, details = [], [], []
    for (family, nodes, count), heterogeneity in product(NETWORKS, HETEROGENEITIES):
        topology = Topology.family(family, nodes)
        shards = census(
            rows=count * nodes, nodes=nodes, heterogeneity=heterogeneity, test_rows=0
        ).shards()
        for rho in RHOS:
            needed = rounds_needed(shards, topology, 1.0, rho)
            arrived = [n for n in needed if n]
            default = needed[MULTIPLES.index(1.0)] or LIMIT
            ratio = default / min(arrived, default=LIMIT)
            ratios.append(ratio)
            rows.append(
                (
                    f"{nodes} {family}",
                    count,
                    f"{rho:g}",
                    f"{heterogeneity:g}",
                    *(n or "-" for n in needed),
                    ratio,
                )
            )
            place = {
                "network": f"{nodes} {family}",
                "rows": count,
                "rho": rho,
                "heterogeneity": heterogeneity,
            }
            details.append({**place, "rounds": needed})
    header = (
        "network",
        "rows",
        "rho",
        "heterogeneity",
        *(f"{m:g}" for m in MULTIPLES),
        "default/best",
    )
    text = (
        f"Census rows, C = 1: rounds for multiples of default_eta; '-': more than twice the "
        f"default's,\n"
        f"or than {LIMIT} (then the default counts as {LIMIT}).\n\n{table(header, rows)}\n\n"
        f"Rounds with the default over rounds with the best multiple: median "
        f"{np.median(ratios):.2f}, worst {max(ratios):.2f}."
    )
    return Report(
        "penalty",
        [Figure("worst rounds(default eta)/rounds(best multiple)", max(ratios))],
        text,
        {"cases": details},
    )


if __name__ == "__main__":
    main(run)
