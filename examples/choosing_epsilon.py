"""What a total buys, tried on made rows of the size of yours: nothing is spent on the real ones."""

import numpy as np

from dynadp import Topology, census, plan, train
from dynadp.mechanisms import SeededEntropy

NODES, ROWS = 5, 2_000  # public numbers of the real network
data, ring = (
    census(rows=NODES * ROWS, nodes=NODES, heterogeneity=0.5),
    Topology.family("ring", NODES),
)
rows = data.tables(ring.nodes)
print("epsilon   alpha a round   error on made rows (median of 5)")
for epsilon in (0.2, 0.5, 1.0, 2.0, 5.0):
    alpha = plan([ROWS] * NODES, ring, data.schema.dimension, epsilon=epsilon, delta=1e-5).alpha
    errors = []
    for seed in range(5):  # seeded: a SIMULATION on synthetic rows, which needs no protection
        model = train(
            data.schema, rows, ring, epsilon=epsilon, delta=1e-5, draws=SeededEntropy(seed)
        ).model()
        errors.append(np.mean(model.predict(data.test) != data.test["income"]))
    print(f"{epsilon:7.1f}   {alpha:13.3f}   {np.median(errors):.1%}")
print(
    f"always the most common label: "
    f"{min(np.mean(data.test['income'] == v) for v in ('low', 'high')):.1%}"
)
