"""Sweeps of Algorithms 2 and 3 and of sums on Adult, many replicas at once, on a GPU beside the
machine's cores.

``python -m benchmarks.gpu [--alphas 20] [--draws 50] [--rounds 100] [--cpu-rounds 3]`` on a machine
with CuPy.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.pooled import adult_shards
from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.engines.simulation import simulate
from dynadp.mechanisms.base import Mechanism
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import BatchedDraws
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum

NODES, C, RHO, ETA = 5, 1.0, 10**-2.5, 0.02


def sweep(
    shards: Any, mechanism: Mechanism, alphas: np.ndarray, draws: int, rounds: int, device: str
) -> Any:
    """All replicas in one stacked simulation; every message certified."""
    each = np.repeat(alphas, draws).tolist()
    return simulate(
        shards,
        Topology.family("ring", NODES),
        Plan.of(C=C, rho=RHO, eta=ETA, rounds=rounds, mechanism=mechanism, schedule=each),
        replicas=len(each),
        draws=BatchedDraws(1, device),
        device=device,
        storage="dense" if device == "cuda" else "auto",
    )


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds, when the device is done too."""
    start = time.perf_counter()
    result = work()
    if device == "cuda":
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter() - start, result


def ceilings() -> dict[str, float]:
    """What the machine does at best: a copy in bytes a second, a float64 matrix product in
    operations a second.
    """
    import cupy

    a = cupy.random.standard_normal((6032, 112))  # 105 columns, and null ones
    f = cupy.random.standard_normal((112, 1000))
    big, n = cupy.random.standard_normal(2**28), 8192
    square = cupy.random.standard_normal((n, n))

    def best(work: Callable[[], Any], repeats: int = 10) -> float:
        work()
        times = []
        for _ in range(repeats):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
        return float(np.median(times))

    return {
        "copy_bytes": 16 * 2**28 / best(lambda: big.copy()),
        "square_product": 2 * n**3 / best(lambda: square @ square),
        "our_product": 2 * 6032 * 112 * 1000 / best(lambda: a @ f),
    }


def sums(shards: Any, mechanism: Mechanism, replicas: int, device: str, rounds: int = 20) -> Any:
    """Many replicas of algorithm "sum" in one call; the noise of sealed sums is drawn summed."""
    return simulate(
        shards,
        Topology.family("complete", NODES),
        Plan.of(mechanism=mechanism, schedule=0.5, rounds=rounds, pull=0.05),
        replicas=replicas,
        draws=BatchedDraws(1, device),
        device=device,
        storage="dense" if device == "cuda" else "auto",
    )


def count(work: Callable[[], Any], dimension: int) -> dict[str, float]:
    """Operations of matrix products, null columns left out, and the fewest bytes that passes over
    the margins move: counted while it runs.
    """
    import cupy

    from dynadp.problem import device_steps, storage

    seen = {"operations": 0.0, "bytes": 0.0, "products": 0, "product_seconds": 0.0}
    kept = storage.DenseRows.margins, storage.DenseRows._adjoint, device_steps.products

    def watched(
        product: Callable[..., Any], sizes: Callable[..., tuple[int, int, int]]
    ) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            n, d, k = sizes(*given, **options)
            d = min(d, dimension)
            seen["operations"] += 2 * n * d * k
            if n > d * NODES:  # margins written and read, slopes written, and read by the product
                seen["bytes"] += 3 * 8 * n * k / 2
            seen["products"] += 1
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            result = product(*given, **options)
            end.record()
            end.synchronize()
            seen["product_seconds"] += cupy.cuda.get_elapsed_time(start, end) / 1e3
            return result

        return call

    def stacked(a: Any, b: Any, *, across: bool = False) -> tuple[int, int, int]:
        k, rows = a.shape[-2], b.shape[-2]  # b holds rows, or inverses
        return (rows if across else a.shape[-1]) * int(np.prod(a.shape[:-2])), b.shape[-1], k

    def margins(rows: Any, F: Any) -> tuple[int, int, int]:
        return *rows.matrix.shape, F.shape[1]

    def adjoint(rows: Any, matrix: Any, batch: Any, S: Any) -> tuple[int, int, int]:
        return *matrix.shape, S.shape[1]

    storage.DenseRows.margins = watched(kept[0], margins)  # type: ignore[method-assign]
    storage.DenseRows._adjoint = watched(kept[1], adjoint)  # type: ignore[method-assign]
    device_steps.products = watched(kept[2], stacked)
    try:
        work()
    finally:
        storage.DenseRows.margins, storage.DenseRows._adjoint = kept[:2]  # type: ignore[method-assign]
        device_steps.products = kept[2]
    return seen


def measured(
    work: Callable[[str], Any], limits: dict[str, float], warm: Callable[[], Any], dimension: int
) -> dict[str, float]:
    """Seconds on the GPU, median of three runs, and the share of what the device could do."""
    warm()  # compiles kernels
    seconds = float(np.median([timed(lambda: work("cuda"), "cuda")[0] for _ in range(3)]))
    counted = count(lambda: work("cuda"), dimension)
    limit = max(
        counted["operations"] / limits["our_product"], counted["bytes"] / limits["copy_bytes"]
    )
    return {
        "gpu_seconds": seconds,
        **counted,
        "limit_seconds": limit,
        "share_of_limit": limit / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alphas", type=int, default=20)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sums", type=int, default=10_000, help="replicas of algorithm sum")
    parser.add_argument("--cpu-rounds", type=int, default=0, help="also on the CPU, so many rounds")
    given = parser.parse_args()
    shards = adult_shards()
    alphas = np.geomspace(0.05, 10, given.alphas)
    limits = ceilings()
    out: dict[str, Any] = {
        "replicas": given.alphas * given.draws,
        "rounds": given.rounds,
        "ceilings": limits,
    }
    for mechanism in (Primal(), Dual()):

        def work(device: str, rounds: int = given.rounds, m: Mechanism = mechanism) -> Any:
            return sweep(shards, m, alphas, given.draws, rounds, device)

        out[mechanism.name] = measured(
            work, limits, lambda w=work: w("cuda", 12), shards[0].dimension
        )
        if given.cpu_rounds:
            seconds, _ = timed(lambda w=work: w("cpu", given.cpu_rounds), "cpu")
            out[mechanism.name]["cpu_seconds_a_round"] = seconds / given.cpu_rounds
    for summed in (Sealed(honest=3), Sum()) if given.sums else ():

        def add(device: str, replicas: int = given.sums, m: Mechanism = summed) -> Any:
            return sums(shards, m, replicas, device)

        out[summed.name] = measured(add, limits, lambda w=add: w("cuda", 100), shards[0].dimension)
        if given.cpu_rounds:
            seconds, _ = timed(lambda w=add: w("cpu", 100), "cpu")
            out[summed.name]["cpu_seconds_of_100_replicas"] = seconds
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
