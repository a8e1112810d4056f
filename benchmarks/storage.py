"""Dense against CSR rows: one gradient pass over a grid of shapes, a fit of the cost model, and one
sparse network in whole.
"""

from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.sparse import csr_array, random_array

from benchmarks.measure import RESULTS, Figure, Report, compare, main, table
from dynadp import Plan
from dynadp._arrays import faster_storage
from dynadp.consensus.topology import Topology
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.problem.losses import Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SquaredL2

NODES = 5
DENSITIES, COLUMNS, REPLICAS = (0.003, 0.01, 0.03, 0.1, 0.3), (20, 100, 500, 2000), (1, 4, 16, 64)
ENTRIES = 3_000_000  # N d of every cell of the grid, about that of Adult


def sparse_rows(rows: int, columns: int, density: float, seed: int) -> csr_array:
    """Uniform places, normal values, norms at most 1; every row has at least one entry."""
    rng = np.random.default_rng(seed)
    matrix = csr_array(
        random_array((rows, columns), density=density, rng=rng, data_sampler=rng.standard_normal)
    )
    one = csr_array(
        (np.full(rows, 0.5), (np.arange(rows), rng.integers(columns, size=rows))),
        shape=matrix.shape,
    )
    matrix = csr_array(matrix + one)
    size = np.sqrt(np.asarray(matrix.power(2).sum(axis=1)).ravel())
    matrix.data /= np.repeat(size, np.diff(matrix.indptr)) * (1 + 1e-9)
    return matrix


def cell(density: float, columns: int, replicas: int) -> dict[str, Any]:
    """Times of one gradient pass (margins, slopes, adjoint) with both storages."""
    count = max(ENTRIES // (NODES * columns), 50)
    blocks = [sparse_rows(count, columns, density, seed) for seed in range(NODES)]
    F = np.random.default_rng(9).standard_normal((NODES, replicas, columns))
    problems = {
        s: StackedProblem(blocks, Logistic(), SquaredL2(), 1.0, 1e-4, replicas=replicas, storage=s)
        for s in ("csr", "dense")
    }
    passes = {
        s: lambda problem=problem: problem.local_gradient(F) for s, problem in problems.items()
    }
    times = {s: timing.median for s, timing in compare(passes, pause=0.0).items()}
    filled = sum(block.nnz for block in blocks)
    shape = {"rows": NODES * count, "columns": columns, "filled": filled, "replicas": replicas}
    picked = faster_storage(NODES * count, columns, filled, replicas)
    return {
        "density": density,
        **shape,
        **times,
        "picked": picked,
        "regret": times[picked] / min(times.values()),
    }


def fit(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Csr = nnz (a + b K) + N (c + h K) and dense = N d (e + g K) + N h K in nanoseconds, least
    squares on relative errors.
    """
    N, d, nnz, K = (
        np.array([c[name] for c in cells], float)
        for name in ("rows", "columns", "filled", "replicas")
    )
    zero = np.zeros_like(N)
    A = np.concatenate(
        [
            np.stack([nnz, nnz * K, N, N * K, zero, zero], axis=1),
            np.stack([zero, zero, zero, N * K, N * d, N * d * K], axis=1),
        ]
    )
    times = np.array([c["csr"] for c in cells] + [c["dense"] for c in cells]) * 1e9
    constants, _ = nnls(A / times[:, None], np.ones_like(times))
    return dict(zip(("a", "b", "c", "h", "e", "g"), map(float, constants), strict=True))


def fitted_regret(cells: list[dict[str, Any]], k: dict[str, float]) -> list[float]:
    """Regret of the choice that the fitted model would make; h is common to both."""
    out = []
    for c in cells:
        csr = c["filled"] * (k["a"] + k["b"] * c["replicas"]) + k["c"] * c["rows"]
        dense = c["rows"] * c["columns"] * (k["e"] + k["g"] * c["replicas"])
        out.append(c["csr" if csr < dense else "dense"] / min(c["csr"], c["dense"]))
    return out


def sparse_network() -> tuple[float, dict[str, Any]]:
    """5 nodes x 4,000 rows x 2,000 columns at 1% density, 10 rounds: dense time over CSR time."""
    topology = Topology.family("ring", NODES)
    shards = []
    for p in range(NODES):
        X = sparse_rows(4000, 2000, 0.01, p)
        truth = np.random.default_rng(50).standard_normal(2000)
        shards.append(Shard.of(X, np.where(X @ truth > 0, 1, -1), name=str(p)))
    ways = {
        s: lambda s=s: simulate(shards, topology, Plan.of(rounds=10), storage=s)
        for s in ("csr", "dense")
    }
    times = compare(ways)
    apart = float(np.abs(times["csr"].result.V - times["dense"].result.V).max())
    return times["dense"].median / times["csr"].median, {
        s: t.describe() for s, t in times.items()
    } | {"apart": apart}


def crossing(cells: list[dict[str, Any]]) -> str:
    """Dense time over CSR time and the storage that faster_storage picks, marked where that costs
    more than 10%.
    """
    rows = []
    for columns, density in product(COLUMNS, DENSITIES):
        here = [c for c in cells if (c["columns"], c["density"]) == (columns, density)]
        shown = [
            f"{c['dense'] / c['csr']:.2f} {c['picked']}{' (!)' if c['regret'] > 1.1 else ''}"
            for c in here
        ]
        rows.append((columns, f"{density:g}", *shown))
    return table(("columns", "density", *(f"K = {k}" for k in REPLICAS)), rows)


def run() -> Report:
    """Where CSR rows beat dense ones, and what the automatic choice costs."""
    cells = [cell(*shape) for shape in product(DENSITIES, COLUMNS, REPLICAS)]
    constants = fit(cells)
    regret, refitted = (
        np.array([c["regret"] for c in cells]),
        np.array(fitted_regret(cells, constants)),
    )
    ratio, network = sparse_network()
    unit = constants["b"] or 1.0
    shown = {name: constants[name] / unit for name in ("a", "b", "c", "e", "g")}
    grid = crossing(cells)
    heading = (
        f"One gradient pass, N d = {ENTRIES:g}: dense over CSR time, and the choice of "
        f"faster_storage; (!) regret above 10%."
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "storage.md").write_text(f"{heading}\n\n{grid}\n")
    text = (
        f"{heading}\n\n"
        f"{grid}\n\nRegret of faster_storage: mean {regret.mean():.3f}, worst {regret.max():.2f}. "
        f"Fitted constants, b = 1 "
        f"({unit:.2f} ns):\n    csr   = nnz * ({shown['a']:.2f} + {shown['b']:.2f} K) + "
        f"{shown['c']:.2f} N\n"
        f"    dense = N d * ({shown['e']:.3f} + {shown['g']:.4f} K)\n"
        f"Regret with them: mean {refitted.mean():.3f}, worst {refitted.max():.2f}."
    )
    figures = [
        Figure(
            "CSR faster than dense: 1% density, 2,000 columns, 5 x 4,000 rows, 10 rounds",
            ratio,
            at_least=5,
        ),
        Figure("worst regret of faster_storage", float(regret.max())),
        Figure("worst regret with the fitted constants", float(refitted.max())),
    ]
    return Report(
        "storage", figures, text, {"cells": cells, "nanoseconds": constants, "network": network}
    )


if __name__ == "__main__":
    main(run)
