"""A sweep of Algorithms 2 and 3 on Adult, many alphas and draws at once, on a GPU beside the
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

    a = cupy.random.standard_normal((6032, 105))
    f = cupy.random.standard_normal((105, 1000))
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
        "our_product": 2 * 6032 * 105 * 1000 / best(lambda: a @ f),
    }


def count(
    shards: Any, mechanism: Mechanism, alphas: np.ndarray, draws: int, rounds: int
) -> dict[str, float]:
    """Operations of matrix products, and the fewest bytes that passes over the margins move:
    counted while a sweep runs.
    """
    import cupy

    from dynadp.problem import storage

    seen = {"operations": 0.0, "bytes": 0.0, "passes": 0, "product_seconds": 0.0}
    kept = storage.DenseRows.margins, storage.DenseRows._adjoint

    def watched(product: Callable[..., Any], replicas: Callable[..., int]) -> Callable[..., Any]:
        def call(self: Any, *given: Any) -> Any:
            n, d = self.matrix.shape
            k = replicas(given)
            seen["operations"] += 2 * n * d * k
            seen["bytes"] += (
                3 * 8 * n * k / 2
            )  # margins written and read, slopes written and read by the product, over both
            seen["passes"] += 1
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            result = product(self, *given)
            end.record()
            end.synchronize()
            seen["product_seconds"] += cupy.cuda.get_elapsed_time(start, end) / 1e3
            return result

        return call

    storage.DenseRows.margins = watched(kept[0], lambda given: given[0].shape[1])  # type: ignore[method-assign]
    storage.DenseRows._adjoint = watched(kept[1], lambda given: given[2].shape[1])  # type: ignore[method-assign]
    try:
        sweep(shards, mechanism, alphas, draws, rounds, "cuda")
    finally:
        storage.DenseRows.margins, storage.DenseRows._adjoint = kept  # type: ignore[method-assign]
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alphas", type=int, default=20)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cpu-rounds", type=int, default=0, help="also on the CPU, so many rounds")
    given = parser.parse_args()
    shards = adult_shards()
    alphas = np.geomspace(0.05, 10, given.alphas)
    out: dict[str, Any] = {
        "replicas": given.alphas * given.draws,
        "rounds": given.rounds,
        "ceilings": ceilings(),
    }
    for mechanism in (Primal(), Dual()):
        sweep(shards, mechanism, alphas, given.draws, 12, "cuda")  # compiles kernels
        runs = [
            timed(
                lambda m=mechanism: sweep(shards, m, alphas, given.draws, given.rounds, "cuda"),
                "cuda",
            )
            for _ in range(3)
        ]
        counted = count(shards, mechanism, alphas, given.draws, given.rounds)
        seconds = float(np.median([elapsed for elapsed, _ in runs]))
        limit = max(
            counted["operations"] / out["ceilings"]["our_product"],
            counted["bytes"] / out["ceilings"]["copy_bytes"],
        )
        out[mechanism.name] = {
            "gpu_seconds": seconds,
            **counted,
            "limit_seconds": limit,
            "share_of_limit": limit / seconds,
        }
        if given.cpu_rounds:
            seconds, _ = timed(
                lambda m=mechanism: sweep(shards, m, alphas, given.draws, given.cpu_rounds, "cpu"),
                "cpu",
            )
            out[mechanism.name]["cpu_seconds_a_round"] = seconds / given.cpu_rounds
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
