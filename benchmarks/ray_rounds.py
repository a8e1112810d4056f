"""Five nodes as actors of a Ray cluster, with durable ledgers: time of a round beyond its solve,
memory, time to recover.
"""

import json
import os
import resource
import signal
import statistics
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Report, main, table
from benchmarks.network import NODES, ROUNDS, ROWS, make, rounds_of
from dynadp.consensus.progress import RoundProgress
from dynadp.engines.journal import now
from dynadp.engines.ray.pool import ActorPool, cluster
from dynadp.runs.cluster import ClusterRun

DIMENSIONS = (105, 1_000, 10_000)
KILLED = 3  # actors, one after the other
REPEATS = 5  # at the first dimension: other work on the cores only adds, so the least median counts


class Trail:
    """When a node passes the points of a round: kept in its actor, written once the run is closed
    there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.points = folder, list[tuple[str, float]]()

    def __call__(self, point: str) -> None:
        """Note the time."""
        self.points.append((point, time.perf_counter()))
        if point == "closed":
            (self.folder / f"{os.getpid()}.json").write_text(json.dumps({"points": self.points}))


def peak_memory(actor: Any) -> int:
    """Peak memory of an actor's process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def trained(file: Path) -> dict[str, Any]:
    """Medians over rounds and nodes, in milliseconds, and the largest actor in MiB."""
    trails, found = file.parent / "trails", dict[str, Any]()
    trails.mkdir()
    job = ClusterRun.load(file)
    kept: list[ActorPool] = []

    def last(progress: RoundProgress) -> None:
        if progress.number == progress.rounds:
            import ray

            actors = kept[0].actors.values()
            here = ray.get([actor.__ray_call__.remote(peak_memory) for actor in actors])
            found["peak"] = max(here) / 2**20

    job.run(
        file.parent / "out",
        who="benchmark",
        created=now(),
        checkpoint=Trail(trails),
        on_start=kept.append,
        on_round=last,
    )
    parts = [
        spans for one in trails.glob("*.json") for spans in rounds_of(json.loads(one.read_text()))
    ]
    assert len(parts) == NODES * (ROUNDS - 5)
    found["median"] = {
        key: 1e3 * statistics.median(spans.get(key, 0.0) for spans in parts) for key in parts[0]
    }
    found["round"] = 1e3 * statistics.median(sum(spans.values()) for spans in parts)
    found["beyond"] = 1e3 * statistics.median(
        sum(spans.values()) - spans["computed"] for spans in parts
    )
    return found


def repeated(d: int) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory() as name:
        return trained(make(Path(name), d))


def recovery(file: Path) -> list[float]:
    """Seconds from the end of an actor's process to the next round that all nodes have done."""
    import ray

    seconds: list[float] = []
    job, passed, over = ClusterRun.load(file), threading.Condition(), threading.Event()
    at = [0.0]

    def on_round(progress: RoundProgress) -> None:
        with passed:
            at[0] = time.perf_counter()
            passed.notify_all()

    def killing(company: ActorPool) -> None:
        for actor in list(company.actors.values())[:KILLED]:
            with passed:
                passed.wait()
            os.kill(ray.get(actor.__ray_call__.remote(lambda actor: os.getpid())), signal.SIGKILL)
            began = time.perf_counter()
            time.sleep(0.5)  # rounds that were on their way to the driver
            with passed:
                passed.wait_for(lambda began=began: at[0] > began + 0.5 or over.is_set(), 60)
            if not over.is_set():
                seconds.append(at[0] - began)

    def start(company: ActorPool) -> None:
        threading.Thread(target=killing, args=(company,), daemon=True).start()

    job.run(file.parent / "out", who="benchmark", created=now(), on_start=start, on_round=on_round)
    over.set()
    return seconds


def run() -> Report:
    """Milliseconds a round over dimensions; memory; recovery."""
    if find_spec("ray") is None:
        return Report("ray_rounds", [], "Left out: ray is not installed; dynadp[ray] has it.")
    lines, figures, details = [], [], {}
    with cluster():
        for d in DIMENSIONS:
            found = min(
                (repeated(d) for _ in range(REPEATS if d == DIMENSIONS[0] else 1)),
                key=lambda one: one["beyond"],
            )
            median = found["median"]
            lines.append(
                (
                    d,
                    found["round"],
                    median["computed"],
                    median["spent"],
                    median["received"],
                    found["beyond"],
                    found["peak"],
                )
            )
            details[str(d)] = found
        figures.append(
            Figure(
                "a round beyond its solve, Ray, d = 105, 5 nodes, durable",
                details["105"]["beyond"],
                "ms",
                below=15,
            )
        )
        with tempfile.TemporaryDirectory() as name:
            details["recovery"] = again = recovery(make(Path(name), DIMENSIONS[0], rounds=1500))
    header = ("d", "round", "own solve", "spend", "wait", "beyond own solve", "peak MiB")
    text = (
        f"Ring of {NODES} actors of a Ray cluster on one machine, {ROWS} rows each, primal "
        f"perturbation, {ROUNDS} rounds, token"
        " authentication, every release in a ledger (SQLite, fsync) before it is sent. Medians "
        "over rounds and nodes "
        f"(d = {DIMENSIONS[0]}: the least of {REPEATS} runs), milliseconds; 'beyond own solve' "
        f"includes waiting for neighbours "
        f"that share the cores.\n\n{table(header, lines)}\n\n"
        f"An actor's process killed: the run went on after {', '.join(f'{s:.1f}' for s in again)} "
        f"s."
    )
    return Report("ray_rounds", figures, text, details)


if __name__ == "__main__":
    main(run)
