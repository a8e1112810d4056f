"""How the C library keeps a process's memory."""

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
