"""How time grows with nodes, rows and columns, how rounds grow as the graph mixes worse, and one
network of 10,000 nodes.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.growth_chart import draw
from benchmarks.growth_worker import network, rows
from benchmarks.measure import Figure, Report, compare, main, table
from dynadp import Plan
from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.topology import Topology
from dynadp.engines.simulation import simulate

BASE = {"nodes": 20, "rows": 200, "columns": 40}
ALONG = {
    "nodes": (5, 10, 20, 40, 80, 160, 320, 640),
    "rows": (50, 100, 200, 400, 800, 1600, 3200, 6400),
    "columns": (10, 20, 40, 80, 160, 320, 640),
}
TIMED = 10  # rounds after the first, which also stacks the rows and makes the first factor
GRAPHS = {
    "ring": (5, 10, 20, 40, 80),
    "path": (5, 10, 20, 40),
    "grid": (9, 25, 49, 100),
    "random_regular": (10, 20, 50, 100),
    "complete": (5, 10, 20, 50),
}
WAYS = {"Algorithm 1": {"one_step": False, "anderson": 0}, "accelerated": {}}
RHO, GAP, LIMIT = 1e-3, 1e-6, 4000
LARGE = (10_000, 100, 50, 100)  # nodes, rows, columns, rounds
PICTURE = Path(__file__).parents[1] / "docs" / "growth.png"


def time_per_round() -> list[dict[str, Any]]:
    """Seconds a round of Algorithm 1 over those at the base point, one quantity at a time."""
    shapes = {(what, size): BASE | {what: size} for what, sizes in ALONG.items() for size in sizes}
    seconds: dict[tuple[str, int], list[float]] = {place: [] for place in shapes}
    contestants = {}
    for place, shape in shapes.items():
        shards, topology = (
            rows(shape["nodes"], shape["rows"], shape["columns"]),
            network(shape["nodes"]),
        )

        def work(
            shards: list = shards, topology: Topology = topology, into: list[float] = seconds[place]
        ) -> None:
            ends: list[float] = []
            simulate(
                shards,
                topology,
                Plan.of(rounds=TIMED + 1),
                on_round=lambda progress: ends.append(time.perf_counter()),
            )
            into.append((ends[-1] - ends[0]) / TIMED)

        contestants[str(place)] = work
    repeats = {place: len(timing.seconds) for place, timing in compare(contestants).items()}
    medians = {
        place: statistics.median(found[-repeats[str(place)] :]) for place, found in seconds.items()
    }
    base = statistics.median(medians[what, BASE[what]] for what in ALONG)
    return [
        {
            "what": what,
            "size": size,
            "relative": medians[what, size] / base,
            "seconds": medians[what, size],
        }
        for what, size in shapes
    ]


def rounds_to_gap() -> list[dict[str, Any]]:
    """Rounds until every node is certified to be within 1e-6 of the pooled optimum, plain and
    accelerated.
    """
    found = []
    for family, sizes in GRAPHS.items():
        for nodes in sizes:
            topology = Topology.family(family, nodes, degree=4)
            shards = rows(nodes, 100, 20)
            for way, options in WAYS.items():
                run = simulate(
                    shards,
                    topology,
                    Plan.of(rho=RHO, rounds=LIMIT),
                    acceleration=Acceleration(gap=GAP, **options),
                )
                place = {
                    "family": family,
                    "nodes": nodes,
                    "spectral_gap": topology.spectral_gap,
                    "way": way,
                }
                found.append({**place, "rounds": len(run.rounds), "certified": run.stopped})
    return found


def large_network() -> dict[str, Any]:
    """10,000 nodes in a process of its own, with its peak memory."""
    command = [sys.executable, "-m", "benchmarks.growth_worker", *map(str, LARGE)]
    answer = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    return json.loads(answer.stdout.splitlines()[-1])


def run() -> Report:
    """Tables and a picture of growth, and the large network."""
    times, rounds, large = time_per_round(), rounds_to_gap(), large_network()
    draw(times, rounds, BASE, PICTURE)
    by_graph: dict[tuple, dict[str, Any]] = {}
    for r in rounds:
        shown = r["rounds"] if r["certified"] else f"over {LIMIT}"
        by_graph.setdefault((r["family"], r["nodes"], r["spectral_gap"]), {})[r["way"]] = shown
    base = ", ".join(f"{size} {what}" for what, size in BASE.items())
    parts = [
        f"Time of a round of Algorithm 1 (every argmin certified) over that at the base point: "
        f"{base}; random 4-regular."
    ]
    for what in ALONG:
        here = [t for t in times if t["what"] == what]
        parts.append(
            table(
                (what, *(str(t["size"]) for t in here)),
                [("time a round", *(t["relative"] for t in here))],
            )
        )
    parts.append("(Past 512 columns the solver's factor is a diagonal.)")
    parts.append(
        f"Rounds to a certified relative gap of {GAP:g}, 100 rows a node, 20 columns, C = 1, rho "
        f"= {RHO:g}:"
    )
    parts.append(
        table(
            ("graph", "nodes", "spectral gap", *WAYS),
            [(*k, *v.values()) for k, v in sorted(by_graph.items())],
        )
    )
    nodes, count, columns, n = LARGE
    parts.append(
        f"{nodes:,} nodes x {count} rows x {columns} columns, random 4-regular, {n} rounds: "
        f"{large['seconds']:.0f} s "
        f"({large['first_round_seconds']:.1f} s to the end of the first, "
        f"{large['rest_seconds_a_round']:.2f} s each after),\n"
        f"peak memory {large['peak_GiB']:.2f} GiB, of which {large['peak_GiB_before']:.2f} GiB "
        f"hold the shards."
    )
    figures = [Figure(f"peak memory of {nodes:,} nodes", large["peak_GiB"], "GiB", below=4)]
    return Report(
        "growth", figures, "\n\n".join(parts), {"times": times, "rounds": rounds, "large": large}
    )


if __name__ == "__main__":
    main(run)
