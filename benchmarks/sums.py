"""What a run of algorithm "sum" costs in time beside one of ADMM on the same rows, its noise apart;
what masks cost, sealed sums beside sums in the open; and the exact sampler beside OpenDP's.

OpenDP gets an environment of its own; ``DYNADP_OPENDP_PYTHON`` names another interpreter that has
it.
"""

import itertools
import json
import subprocess
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.environment import PATIENCE, interpreter
from benchmarks.measure import REPEATS, Figure, Report, compare, main, table
from dynadp.consensus.masks import Masks
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.uci import adult
from dynadp.engines.simulation import run_masks, simulate
from dynadp.mechanisms.discrete_gaussian import discrete_gaussian
from dynadp.mechanisms.entropy import SystemEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan

NODES, EPSILON, DELTA = 50, 1.0, 1e-5
SCALE = 2.0**34  # steps, as noise of sums has
NETWORKS = (5, 50, 200)  # nodes, whose masks are timed
SIZES = {105: 200, 1_000_000: 1}  # draws at once: how often, for one timing


def run() -> Report:
    """Seconds of a whole run, rows in memory; microseconds of a draw."""
    data, ring = adult(columns="rich"), Topology.family("ring", NODES)
    parts = partition(len(data.train["age"]), NODES)
    shards = data.shards(parts, names=ring.nodes)
    counts, entropy = [len(part) for part in parts], SystemEntropy()
    plans = {
        name: plan(
            counts,
            ring,
            data.schema.dimension,
            epsilon=EPSILON,
            delta=DELTA,
            mechanism=name,
            centring=False,
        )
        for name in ("primal", "sum")
    }
    noises = plans["sum"].releases().noises

    def noise() -> None:
        for n, each in enumerate(noises, 1):
            zeros = np.zeros((NODES, 1, each.width(data.schema.dimension)))
            each.release(zeros, entropy, ring.nodes, n)

    runs = compare(
        {
            **{
                name: partial(simulate, shards, ring, made, draws=entropy)
                for name, made in plans.items()
            },
            "noise of sum": noise,
        }
    )
    seconds = {name: timing.median for name, timing in runs.items()}
    rows = [(name, 1000 * each, each / seconds["primal"]) for name, each in seconds.items()]
    text = (
        f"Adult, {NODES} nodes of {min(counts)} rows or one more, {data.schema.dimension} "
        f"columns, {plans['primal'].rounds} rounds of ADMM (primal) and {plans['sum'].rounds} of "
        f"sum.\n\n{table(('', 'ms', 'over ADMM'), rows)}"
    )
    masks = {nodes: _masks(nodes) for nodes in NETWORKS}
    text += (
        "\n\nAdult, the paper's 105 columns, 20 rounds: sums in the open and sealed, milliseconds; "
        "sealing alone: keys of all pairs, then one sum.\n\n"
    )
    text += table(
        ("nodes", "pairs", "open", "sealed", "sealed/open", "keys, us a pair", "a sum, us a pair"),
        [(nodes, nodes * (nodes - 1) // 2, *found) for nodes, found in masks.items()],
    )
    samplers = {size: _sampler(size, often) for size, often in SIZES.items()}
    python = interpreter("opendp", ("opendp",), "DYNADP_OPENDP_PYTHON")
    peers = {size: _opendp(python, size) for size in SIZES} if isinstance(python, Path) else {}
    rows = [(f"{size:,}", samplers[size], peers[size] if peers else "") for size in SIZES]
    text += "\n\nMicroseconds a draw, scale 2^34.\n\n" + table(
        ("draws at once", "dynadp", "OpenDP"), rows
    )
    if not peers:
        text += f"\n\n{python}"
    figures = [
        Figure("a run of sum over one of ADMM, seconds", seconds["sum"] / seconds["primal"]),
        Figure("noise, share of a run of sum", 100 * seconds["noise of sum"] / seconds["sum"], "%"),
        *(Figure(f"{nodes} nodes: sealed over open", masks[nodes][2]) for nodes in NETWORKS),
        *(
            Figure(f"{size:,} draws: OpenDP over dynadp", peers[size] / samplers[size])
            for size in peers
        ),
    ]
    details = {
        "runs": {name: timing.describe() for name, timing in runs.items()},
        "masks": masks,
        "microseconds": {"dynadp": samplers, "opendp": peers},
    }
    return Report("sums", figures, text, details)


def _masks(nodes: int) -> tuple[float, float, float, float, float]:
    """Milliseconds of a run in the open and of a sealed one, and their ratio; microseconds a pair
    of all keys, and of one sealed sum.
    """
    data, ring = adult(), Topology.family("ring", nodes)
    shards = data.shards(partition(len(data.train["age"]), nodes), names=ring.nodes)
    entropy, d = SystemEntropy(), data.schema.dimension
    plans = {
        made.name: plan(
            [shard.rows for shard in shards],
            ring,
            d,
            epsilon=EPSILON,
            delta=DELTA,
            mechanism=made,
            centring=False,
        )
        for made in (Sum(False), Sealed(False, honest=(2 * nodes) // 3))
    }
    pairs, sums = nodes * (nodes - 1) / 2, itertools.count(1)

    def keys() -> Masks:
        made = run_masks(plans["sealed"], entropy)
        for a, b in made.graph.pairs:
            made._pairs.of(ring.nodes[a], ring.nodes[b])
        return made

    ready = keys()

    def seal() -> None:
        ready.sealed(np.zeros((nodes, d), np.int64), ring.nodes, next(sums))

    runs = compare(
        {
            **{
                name: partial(simulate, shards, ring, made, draws=entropy)
                for name, made in plans.items()
            },
            "keys": keys,
            "seal": seal,
        }
    )
    seconds = {name: timing.median for name, timing in runs.items()}
    return (
        1e3 * seconds["sum"],
        1e3 * seconds["sealed"],
        seconds["sealed"] / seconds["sum"],
        1e6 * seconds["keys"] / pairs,
        1e6 * seconds["seal"] / pairs,
    )


def _sampler(size: int, often: int) -> float:
    """Median microseconds a draw; every call has a generator of its own, as a release has."""
    entropy = SystemEntropy()

    def draw() -> None:
        for _ in range(often):
            discrete_gaussian(entropy.generator("gradient", "a", 1), SCALE, size)

    return 1e6 * compare({"draw": draw})["draw"].median / (often * size)


def _opendp(python: Path, size: int) -> float:
    worker = Path(__file__).with_name("opendp_worker.py")
    often = REPEATS if size > 1000 else 200
    command = [str(python), str(worker), str(SCALE), str(size), str(often)]
    answer = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=PATIENCE, text=True
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    assert 0.8 < found["spread"] < 1.2  # it draws what it was asked for
    return 1e6 * median(found["seconds"]) / size


if __name__ == "__main__":
    main(run)
