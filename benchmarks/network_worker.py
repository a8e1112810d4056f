"""One node of benchmarks/network.py, soak.py or leaving.py: python network_worker.py NODE.toml
TIMES.json [SEED]; PACE in the environment: seconds to wait after each round.
"""

import json
import logging
import os
import resource
import sys
import time
from pathlib import Path

from dynadp.engines.zenoh.log import engine_log
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs.silo import SiloRun


class Pinned(SeededEntropy):
    """Repeatable noise that a ledger takes: for measuring, where nobody needs protection."""

    seeded = False


def main() -> None:
    node, out, seed = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]) if len(sys.argv) > 3 else None,
    )
    start = time.perf_counter()
    silo = SiloRun.load(node)
    loaded = time.perf_counter() - start
    points: list[tuple[str, float]] = []
    pace = float(os.environ.get("PACE", 0))

    def reached(point: str) -> None:
        points.append((point, time.perf_counter()))
        if point == "noted":
            time.sleep(pace)

    silo.folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=silo.folder / "node.log", level=logging.INFO)
    with engine_log():
        silo.run(
            who="benchmark",
            draws=None if seed is None else Pinned(seed),
            checkpoint=reached,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.write_text(json.dumps({"loaded": loaded, "points": points, "peak": peak, "start": start}))


if __name__ == "__main__":
    main()
