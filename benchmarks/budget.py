"""Test error on Adult at a total (epsilon, delta): algorithm "sum" on 5 and 50 nodes in the open,
on 5 to 200 nodes sealed, and in one trusted place; ADMM, the paper's algorithms, diffprivlib in
one place.

Every draw splits the rows anew. Sealed runs are whole ones: keys, masks, letters, and a plan that
reserves one spare attempt. The paper's algorithms get alpha = epsilon/T, as their guarantees
add up; their number of rounds, and diffprivlib's C, are the best of a few on the *test* rows, which
favours them. diffprivlib gets an environment of its own; ``DYNADP_DIFFPRIVLIB_PYTHON`` names
another interpreter that has it.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.budget_chart import draw
from benchmarks.environment import PATIENCE, interpreter
from benchmarks.measure import Figure, Report, main, table
from dynadp import Plan
from dynadp._intervals import SEVERAL, quantile_band
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.base import Dataset
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.uci import adult
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.runs.training import train

DELTA, DRAWS = 1e-5, 20
TOTALS = (0.1, 0.3, 1.0, 8.0)
HONEST = {5: 3, 20: 13, 50: 32, 200: 132}  # of so many nodes
TARGETS = {
    "sum": {(5, 1.0): 15.0, (50, 1.0): 15.8, (5, 0.1): 17.0, (50, 0.1): 19.7},
    "sealed": {(nodes, e): most for nodes in HONEST for e, most in ((1.0, 14.9), (0.1, 16.5))},
}
WAYS = {  # name: mechanism and nodes
    **{
        f"dynadp, sealed, {nodes} nodes, {honest} honest": ("sealed", nodes)
        for nodes, honest in HONEST.items()
    },
    "dynadp, sum, 5 nodes": ("sum", 5),
    "dynadp, sum, 50 nodes": ("sum", 50),
    "dynadp, sum, one trusted place": ("sum", 1),
    "dynadp, ADMM primal, 5 nodes": ("primal", 5),
    "dynadp, ADMM primal, 50 nodes": ("primal", 50),
    "dynadp, ADMM dual, 5 nodes": ("dual", 5),
    "dynadp, ADMM dual, 50 nodes": ("dual", 50),
}
PAPER = {
    "the paper's dual perturbation, noise corrected": (Dual(split="paper"), 1750.0, 10**-2.5),
    "the paper's primal perturbation, noise corrected": (Primal(augment="iterate"), 146.0, 0.1),
}
PAPER_ROUNDS = (1, 3, 10, 30)
DIFFPRIVLIB = ("diffprivlib", "scikit-learn<1.6")
PICTURE = Path(__file__).parent.parent / "docs" / "budget.png"


def run() -> Report:
    """Median test error of each way to spend a total."""
    rich, plain = adult(columns="rich"), adult()
    found = {(way, e): planned(rich, *way, e) for way in WAYS.values() for e in TOTALS}
    bands = {key: quantile_band(errors, len(rich.test["income"])) for key, errors in found.items()}
    rows = [(name, *(100 * bands[way, e]["median"] for e in TOTALS)) for name, way in WAYS.items()]
    for name in PAPER:
        rows.append((f"{name}, 5-node ring", *(100 * as_printed(plain, name, e) for e in TOTALS)))
    text = ""
    python = interpreter("diffprivlib", DIFFPRIVLIB, "DYNADP_DIFFPRIVLIB_PYTHON")
    if isinstance(python, Path):
        rows += [
            (
                f"diffprivlib, all rows in one place, {name} columns",
                *(100 * e for e in centralised(python, data)),
            )
            for name, data in (("paper's", plain), ("rich", rich))
        ]
    else:
        text = python + "\n\n"
    left_out = "paper's columns", "ADMM", "sealed, 20 ", "sealed, 200 "
    draw(
        [(name, errors) for name, *errors in rows if not any(word in name for word in left_out)],
        TOTALS,
        PICTURE,
    )
    rows = [(name, *(f"{error:.1f}%" for error in errors)) for name, *errors in rows]
    text += f"Adult, delta = {DELTA:g}, medians of {DRAWS} draws.\n\n" + table(
        ("", *(f"epsilon {e:g}" for e in TOTALS)), rows
    )
    intervals = [
        (name, *("{low:.1%} to {high:.1%}".format(**bands[way, e]) for e in TOTALS))
        for name, way in WAYS.items()
    ]
    text += f"\n\nFrom where to where: {SEVERAL}.\n\n" + table(
        ("", *(f"epsilon {e:g}" for e in TOTALS)), intervals
    )
    figures = [
        Figure(
            f"{mechanism}, {nodes} nodes, epsilon = {epsilon:g}: median test error",
            100 * bands[(mechanism, nodes), epsilon]["median"],
            "%",
            below=most + 1e-9,
        )
        for mechanism, targets in TARGETS.items()
        for (nodes, epsilon), most in targets.items()
    ]
    details = {
        "draws": [
            {"mechanism": mechanism, "nodes": nodes, "epsilon": e, "errors": errors}
            for ((mechanism, nodes), e), errors in found.items()
        ],
        "intervals": intervals,
        "table": rows,
    }
    return Report("budget", figures, text, details)


def planned(
    data: Dataset,
    mechanism: str,
    nodes: int,
    epsilon: float,
    draws: Sequence[int] = range(DRAWS),
) -> list[float]:
    """Test error of each draw, with nothing given but the mechanism and the total; of sealed sums
    also how many nodes are honest.
    """
    ring, errors = Topology.family("ring", nodes), []
    chosen: str | Mechanism = mechanism
    if mechanism == "sealed":
        chosen = Sealed(honest=HONEST[nodes])
    for seed in draws:
        parts = partition(len(data.train["age"]), nodes, seed=seed)
        tables = {
            p: {name: cells[part] for name, cells in data.train.items()}
            for p, part in zip(ring.nodes, parts, strict=True)
        }
        trained = train(
            data.schema,
            tables,
            ring,
            epsilon=epsilon,
            delta=DELTA,
            mechanism=chosen,
            draws=SeededEntropy(seed),
        )
        errors.append(float(np.mean(trained.model().predict(data.test) != data.test["income"])))
    return errors


def as_printed(data: Dataset, name: str, epsilon: float) -> float:
    """Median test error of the nodes' last messages, with the best number of rounds."""
    (mechanism, C, rho), ring = PAPER[name], Topology.family("ring", 5)
    shards = data.shards(partition(len(data.train["age"]), 5))
    X, positive = data.schema.rows(data.test), data.schema.labels(data.test) > 0
    errors = []
    for rounds in PAPER_ROUNDS:
        end = simulate(
            shards,
            ring,
            Plan.of(
                C=C, rho=rho, eta=1.0, rounds=rounds, mechanism=mechanism, schedule=epsilon / rounds
            ),
            replicas=DRAWS,
            draws=SeededEntropy(0),
        )
        F = end.models("last").reshape(-1, X.shape[1])
        errors.append(float(np.median(np.mean((X @ F.T > 0) != positive[:, None], axis=0))))
    return min(errors)


def centralised(python: Path, data: Dataset) -> list[float]:
    """Median test error for each total, of diffprivlib's logistic regression on all rows, clipped
    to a public norm.
    """
    train_rows, test_rows = (
        data.schema.model_copy(update={"intercept": 0.0}).rows(rows)
        for rows in (data.train, data.test)
    )
    labels = {
        name: data.schema.labels(rows) > 0
        for name, rows in (("y", data.train), ("test_y", data.test))
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        np.savez(
            path,
            X=_dense(train_rows),
            test_X=_dense(test_rows),
            totals=TOTALS,
            draws=DRAWS,
            **labels,
        )
        command = [str(python), str(Path(__file__).with_name("diffprivlib_worker.py")), str(path)]
        answer = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, timeout=2 * PATIENCE, text=True
        )
    return [float(error) for error in json.loads(answer.stdout.splitlines()[-1])]


def _dense(rows) -> np.ndarray:
    return rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)


if __name__ == "__main__":
    main(run)
