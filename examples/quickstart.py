"""Five silos, one private classifier: a total is all that it needs."""

from dynadp import Topology, census, train

data = census(
    rows=10_000, nodes=5, heterogeneity=0.5
)  # made here; bring your own rows with a Schema
ring = Topology.family("ring", 5)
rows = {
    node: {name: cells[data.node == i] for name, cells in data.train.items()}
    for i, node in enumerate(ring.nodes)
}
trained = train(data.schema, rows, ring, epsilon=1.0, delta=1e-5)
right = (trained.model().predict(data.test) == data.test["income"]).mean()
print(f"{right:.1%} right on held-out rows. {trained.total.guarantee}")
