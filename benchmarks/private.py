"""What a mechanism costs in time: private rounds against plain rounds of Algorithm 1 with the same
constants.
"""

from dataclasses import replace
from functools import partial

from benchmarks.measure import Figure, Report, compare, main, table
from benchmarks.pooled import NODES, adult_shards
from dynadp import Plan, simulate
from dynadp.consensus.topology import Topology
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.parts import Protection

ROUNDS = 30
SETTINGS = {
    "dual": (Dual(), 1750.0, 10**-2.5),
    "primal": (Primal(), 146.0, 0.1),
}  # the paper's (C, rho) for each


def run() -> Report:
    """Time of a private round over that of a plain one: five nodes of Adult, alpha = 1, eta = 1."""
    shards, topology = adult_shards(), Topology.family("ring", NODES)
    rows, figures, details = [], [], []
    for name, (mechanism, C, rho) in SETTINGS.items():
        plain = Plan.of(C=C, rho=rho, eta=1.0, rounds=ROUNDS)
        private = replace(plain, protection=Protection(mechanism=mechanism, schedule=1.0))
        contestants = {
            "plain": partial(simulate, shards, topology, plain),
            "seeded": partial(simulate, shards, topology, private, draws=SeededEntropy(0)),
            "system": partial(simulate, shards, topology, private, draws=SystemEntropy()),
        }
        times = compare(contestants)
        for source in ("seeded", "system"):
            ratio = times[source].median / times["plain"].median
            rows.append((name, source, ratio))
            figures.append(
                Figure(f"{name}, {source} draws, against a plain round", ratio, below=1.2)
            )
            details.append(
                {"mechanism": name, "draws": source, "ratio": ratio, **times[source].describe()}
            )
    text = f"{ROUNDS} rounds, one replica, C and rho as in the paper.\n\n" + table(
        ("mechanism", "draws", "time over plain"), rows
    )
    return Report("private", figures, text, {"rounds": details})


if __name__ == "__main__":
    main(run)
