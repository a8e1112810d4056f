"""What the deployment page supposes to be there: rows and a schema."""

from dynadp.data.datasets.synthetic import census
from support.networks import write_csv

SCHEMA = """
[[columns]]
kind = "numeric"
name = "age"
low = 17
high = 90
[[columns]]
kind = "numeric"
name = "hours"
low = 0
high = 99
[label]
name = "income"
negative = "low"
positive = "high"
"""


def write_rows(folder):
    """Write both silos' rows and the schema."""
    data = census(800, seed=4, nodes=2)
    for node, rows in data.tables(("north", "south")).items():
        write_csv(folder / f"{node}.csv", rows)
    (folder / "schema.toml").write_text(SCHEMA)
