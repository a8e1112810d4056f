"""Work on arrays shared out over threads: NumPy and SciPy release the interpreter's lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

T = TypeVar("T")
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# products or function values; below it, handing work to threads costs more than it saves
WORTH_SHARING = 1_000_000


def share_out(work: Callable[[T], None], items: Sequence[T], threads: bool) -> None:
    """Do the work on every item: in the pool if ``threads``, else one after the other."""
    if len(items) == 1 or not threads:
        for item in items:
            work(item)
        return
    others = [_workers().submit(work, item) for item in items[1:]]
    try:
        work(items[0])
    finally:
        failures = [other.exception() for other in others]  # waits for all of them
    for failure in filter(None, failures):
        raise failure


def spans(count: int) -> list[slice]:
    """Divide ``count`` items into one span for each worker, none of them empty."""
    cuts = np.unique(np.linspace(0, count, WORKERS + 1).astype(int)).tolist()
    return [slice(low, high) for low, high in pairwise(cuts)]


@cache  # a forked child has none of its parent's threads and makes its own
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="dynadp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)
