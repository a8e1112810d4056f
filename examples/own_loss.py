"""A loss of one's own: its constants are declared, and refused where a grid of margins refutes
them.
"""

import numpy as np

from dynadp import Plan, Topology, census, simulate
from dynadp.errors import LossError
from dynadp.mechanisms import Primal, SeededEntropy
from dynadp.problem import Loss


class SquareRoot(Loss):
    """L(z) = sqrt(1 + (1 - z)^2) - (z - 1): |L'| <= 2, so it is halved; L'' = (1 + (1 -
    z)^2)^(-3/2) <= 1, halved too.
    """

    name = "square_root"
    c1 = 0.5

    def value(self, z):
        """L(z)/2."""
        return 0.5 * (np.hypot(1.0, 1.0 - z) + (1.0 - z))

    def slope(self, z):
        """L'(z)/2."""
        return -0.5 * ((1.0 - z) / np.hypot(1.0, 1.0 - z) + 1.0)

    def curvature(self, z):
        """L''(z)/2."""
        return 0.5 * np.hypot(1.0, 1.0 - z) ** -3.0


class Boastful(SquareRoot):
    """The same with a constant that is too good to be true."""

    c1 = 0.1


data, ring = census(rows=5_000, nodes=5), Topology.family("ring", 5)
common = {
    "rho": 1e-4,
    "eta": 5e-3,
    "rounds": 20,
    "mechanism": Primal(),
    "schedule": 1.0,
}
draws = SeededEntropy(1)
end = simulate(data.shards(), ring, Plan.of(loss=SquareRoot(), **common), draws=draws)
score = data.schema.rows(data.test) @ end.models("network")[0, 0]
print(
    f"{np.mean((score > 0) == (data.schema.labels(data.test) > 0)):.1%} right (seeded: a "
    f"SIMULATION)"
)
try:
    simulate(data.shards(), ring, Plan.of(loss=Boastful(), **common), draws=draws)
except LossError as refusal:
    print(f"refused: {refusal}")
