"""What a mechanism costs in time: private rounds against plain rounds of Algorithm 1 with the same
constants.
"""

from benchmarks.measure import Figure, Report, compare, main, table
from benchmarks.pooled import NODES, adult_shards
from dynadp.consensus.topology import Topology
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from support import flat_simulate

ROUNDS = 30
SETTINGS = {
    "dual": (Dual(), 1750.0, 10**-2.5),
    "primal": (Primal(), 146.0, 0.1),
}  # the paper's (C, rho) for each


def run() -> Report:
    """Time of a private round over that of a plain round: five nodes of Adult, alpha = 1, eta = 1."""
    shards, topology = adult_shards(), Topology.family("ring", NODES)
    rows, figures, details = [], [], []
    for name, (mechanism, C, rho) in SETTINGS.items():
        common = {"C": C, "rho": rho, "eta": 1.0, "rounds": ROUNDS}
        private = {"mechanism": mechanism, "schedule": 1.0}
        contestants = {
            "plain": lambda common=common: flat_simulate(shards, topology, **common),
            "seeded": lambda common=common, private=private: flat_simulate(
                shards, topology, draws=SeededEntropy(0), **private, **common
            ),
            "system": lambda common=common, private=private: flat_simulate(
                shards, topology, draws=SystemEntropy(), **private, **common
            ),
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
