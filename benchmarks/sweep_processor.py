"""The contestants of ``benchmarks.sweep`` by processor time, for machines that are busy with other
work: what the stack takes along the longer of its two threads, as on two idle cores, and one thread
of L-BFGS-B.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.measure import Figure, Report, main, table
from benchmarks.pooled import NODES, adult_shards
from benchmarks.sweep import REPLICAS, ROUNDS, SETTINGS, TIMED, draws, one_replica
from dynadp import Plan, simulate
from dynadp.consensus.topology import Topology
from dynadp.planning.parts import default_eta
from dynadp.problem import factor, objective, sparse_rows, threads
from dynadp.problem.losses import Logistic

REPEATS = 6


@contextmanager
def waited() -> Iterator[list[float]]:
    """Processor seconds of work that other threads did while one did as much or more."""
    spared, share_out = [0.0], threads.share_out

    def watched(work: Callable[[Any], None], items: Sequence[Any], shared: bool) -> None:
        took = []

        def timed(item: Any) -> None:
            start = time.thread_time()
            work(item)
            took.append(time.thread_time() - start)

        share_out(timed, items, shared)
        if shared and len(items) > 1:
            spared[0] += sum(took) - max(took)

    modules: tuple[Any, ...] = (sparse_rows, objective, factor)
    for module in modules:
        module.share_out = watched
    try:
        yield spared
    finally:
        for module in modules:
            module.share_out = share_out


def stacked(run: Callable[[], Any]) -> tuple[float, float]:
    """The least processor seconds along the longer thread, and of all threads."""
    found = []
    for _ in range(REPEATS):
        with waited() as spared:
            start = time.process_time()
            run()
            took = time.process_time() - start
        found.append((took - spared[0], took))
    return min(along for along, _ in found), min(took for _, took in found)


def one_by_one(replica: Callable[[int], Any]) -> float:
    """Processor seconds of all replicas: of some of them, each at its least of two."""
    least = []
    for k in range(TIMED):
        found = []
        for _ in range(2):
            start = time.process_time()
            replica(k)
            found.append(time.process_time() - start)
        least.append(min(found))
    return sum(least) * REPLICAS / TIMED


def run() -> Report:
    """Sweeps against L-BFGS-B by processor time."""
    shards, topology = adult_shards(), Topology.family("ring", NODES)
    figures, lines = [], []
    for setting in SETTINGS:
        eta = setting.eta or default_eta(topology, Logistic(), setting.C, setting.rho)
        noise = draws(shards, setting.C)
        plan = Plan.of(C=setting.C, rho=setting.rho, eta=eta, rounds=ROUNDS)
        gamma = setting.relative * setting.C
        given: dict[str, Any] = {"gamma": gamma, "replicas": REPLICAS}
        for storage in ("CSR", "dense"):
            rows = [s.signed if storage == "CSR" else s.signed.toarray() for s in shards]
            with threadpool_limits(1):
                along, took = stacked(
                    lambda p=plan, g=given, e=noise: simulate(
                        shards, topology, p, **g, linear=lambda n: e[n - 1]
                    )
                )
                theirs = one_by_one(
                    lambda k, r=rows, e=noise, s=setting, eta=eta: one_replica(
                        r, [round_[:, k] for round_ in e], s, eta
                    )
                )
            what = f"{storage} rows, {setting.name}"
            ratio = theirs / along
            figures.append(Figure(f"faster than L-BFGS-B on {what}", ratio, at_least=30))
            lines.append((setting.name, storage, along, took, theirs, ratio, theirs / took))
    header = (
        "setting",
        "scipy's rows",
        "along",
        "of all threads",
        "scipy",
        "over along",
        "over all",
    )
    text = "Processor seconds; along the longer thread is what two idle cores would need.\n\n"
    return Report("sweep_processor", figures, text + table(header, lines))


if __name__ == "__main__":
    main(run)
