"""A folder with three nodes' census rows, run files for it, and commands as typed."""

import csv
from pathlib import Path

from support.typed import dynadp

NODES = ("north", "south", "west")
INIT = (
    "init . --node north=north.csv --node south=south.csv --node west=west.csv --label income "
    "--negative low --positive high "
    "--numeric age:17:90 --numeric schooling:0:20 --numeric hours:0:99 --categorical "
    "sex=female,male "
    "--categorical status=married,never-married,divorced,widowed,separated --epsilon 2"
)
ALPHA = """
[run]
name = "long"
seed = 4
[data]
schema = "schema.toml"
[[nodes]]
name = "north"
file = "north.csv"
[[nodes]]
name = "south"
file = "south.csv"
[privacy]
mechanism = "dual"
alpha = 0.5
delta = 1e-5
[training]
rounds = 60
rho = 1e-3
eta = 0.05
"""


def write_csv(path, table, rows=slice(None), extra=None):
    columns = list(table) + list(extra or ())
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(
            zip(*(table[c][rows] for c in table), *((extra or {}).values()), strict=True)
        )


def write_plain(folder="."):
    """Let the run file that ``init`` made release no histogram, as 0.1.0's did: ADMM has none."""
    file = Path(folder, "run.toml")
    file.write_text(file.read_text().replace("\ncalibration = true", "\n# calibration = true"))


def settle(data, seed=None):
    """Rows of three nodes and public ones in this folder, and the run file that ``init`` makes,
    without the histogram.
    """
    for node, table in data.tables(NODES).items():
        write_csv(f"{node}.csv", table)
    write_csv("public.csv", data.test)
    result = dynadp(INIT + ("" if seed is None else f" --seed {seed}"))
    assert result.exit_code == 0, result.output
    write_plain()
