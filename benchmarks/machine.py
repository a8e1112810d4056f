"""What a result was measured on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from dynadp.problem import threads


def machine(day: str) -> dict[str, Any]:
    """Facts about the machine and what is installed on it."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
            model,
        )
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts: dict[str, Any] = {
        "date": day,
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_GiB": round(memory, 1),
    }
    facts["python"] = platform.python_version()
    for package in ("dynadp", "numpy", "scipy", "scikit-learn"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    facts["dynadp_workers"] = threads.WORKERS
    pools = ("user_api", "internal_api", "version", "num_threads", "architecture")
    facts["thread_pools"] = [{key: pool.get(key) for key in pools} for pool in threadpool_info()]
    return facts
