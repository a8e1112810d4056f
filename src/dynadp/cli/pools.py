"""How a process's memory is kept, and that none of it is left behind."""

import ctypes
from contextlib import suppress

_ARENA_MAX, _POOLS = -8, 2  # of mallopt(3)


def share_pools() -> None:
    """Let threads share two pools of memory, where the C library is glibc.

    It gives almost every thread its own, and what neighbours send passes through all of them: a
    node that a hostile one floods grows by twice as much.
    """
    with suppress(OSError, AttributeError, MemoryError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _POOLS)


def leave_no_core() -> None:
    """Let a process that crashes, or that a watchdog ends, leave no image of its memory on a disk:
    rows and keys are in it.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
