"""Every node has a total of its own: a careful one pays with more noise, and all still share one
classifier.
"""

from dynadp import Topology, census, train
from dynadp.privacy import by_node

data = census(rows=10_000, nodes=5, heterogeneity=0.5)
ring = Topology.family("ring", 5).named(["bold", "usual-1", "usual-2", "usual-3", "careful"])
rows = data.tables(ring.nodes)
budget = {"bold": 4.0, "usual-1": 1.0, "usual-2": 1.0, "usual-3": 1.0, "careful": 0.5}
trained = train(data.schema, rows, ring, epsilon=budget, delta=1e-5)
for node, spent in by_node(trained.events, 1e-5).items():
    print(f"{node}: asked for at most {budget[node]}. {spent.guarantee}")
right = (trained.model().predict(data.test) == data.test["income"]).mean()
print(f"{right:.1%} right on held-out rows")
