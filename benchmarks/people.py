"""Test error on Adult where people have one to five rows: epsilon for a person beside epsilon for a
row, by how many rows of a person are used, and where they are weighed.

Rows are given to made-up people in the order of a shuffle, each person with one to five of them,
evenly; all rows of a person lie at one node. Every draw does this anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Report, main, table
from benchmarks.people_chart import draw
from dynadp._intervals import quantile_band
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.uci import adult
from dynadp.data.schema import Schema
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.runs.training import train

DELTA, DRAWS, NODES, MOST = 1e-5, 20, 5, 5
TOTALS = (0.3, 1.0, 3.0)
LIMITS = (1, 2, 3, 5)
WAYS = {"sum": Sum(), "sealed, 3 of 5 honest": Sealed(honest=3)}
PICTURE = Path(__file__).parent.parent / "docs" / "people.png"


def run() -> Report:
    """Median test error by mechanism, total and what is used of a person's rows."""
    data, rows, found = adult(columns="rich"), [], {}
    for name, mechanism in WAYS.items():
        used: dict[str, tuple[Sum, int | None]] = {"epsilon for a row": (mechanism, None)}
        for m in LIMITS:
            rows_of_hers = "her first row" if m == 1 else f"her first {m} rows"
            used[f"for a person, {rows_of_hers}"] = (mechanism, m)
        used["for a person, her rows weighed"] = (replace(mechanism, weighed=True), MOST)
        for what, how in used.items():
            errors = {e: errors_of(data, *how, e) for e in TOTALS}
            found[name, what] = errors
            bands = [quantile_band(errors[e], len(data.test["income"])) for e in TOTALS]
            shown = (f"{b['median']:.2%} ({b['low']:.1%} to {b['high']:.1%})" for b in bands)
            rows.append((name, what, *shown))
            print(*rows[-1], flush=True)
    medians = {key: [100 * float(np.median(of[e])) for e in TOTALS] for key, of in found.items()}
    draw(medians, TOTALS, PICTURE)
    text = (
        f"Adult, {NODES} nodes, people with 1 to {MOST} rows, delta = {DELTA:g}, medians of "
        f"{DRAWS} draws.\n\n" + table(("", "", *(f"epsilon {e:g}" for e in TOTALS)), rows)
    )
    details = {f"{name}, {what}": errors for (name, what), errors in found.items()}
    return Report("people", [], text, {"errors": {k: str(v) for k, v in details.items()}})


def errors_of(
    data: Dataset,
    mechanism: Sum,
    limit: int | None,
    epsilon: float,
    draws: Sequence[int] = range(DRAWS),
) -> list[float]:
    """Test error of each draw; ``limit`` is m, None for epsilon for a row."""
    ring, errors = Topology.family("ring", NODES), []
    schema = data.schema
    if limit is not None:
        declared = {"person": "who", "rows_per_person": limit}
        schema = Schema.model_validate(schema.model_dump() | declared)
    for seed in draws:
        who, node = made_up(len(data.train["age"]), seed)
        tables = {
            name: {
                **{c: cells[node == p] for c, cells in data.train.items()},
                "who": who[node == p],
            }
            for p, name in enumerate(ring.nodes)
        }
        trained = train(
            schema,
            tables,
            ring,
            epsilon=epsilon,
            delta=DELTA,
            mechanism=mechanism,
            draws=SeededEntropy(seed),
        )
        answers = trained.model().predict(data.test)
        errors.append(float(np.mean(answers != data.test["income"])))
    return errors


def made_up(rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return whose row each is, and the node of each."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, MOST + 1, rows)
    who = rng.permuted(np.repeat(np.arange(rows), sizes)[:rows])
    home = rng.permutation(rows) % NODES  # of each person
    return who, home[who]


if __name__ == "__main__":
    main(run)
