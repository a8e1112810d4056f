"""Seconds that go on while a machine sleeps.

``time.monotonic`` stands still on a machine that is suspended (on Linux and macOS): it would wake
up with a lease that its neighbours gave to another long ago.
"""

import sys
import time

_SLEEPING = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(sys.platform, "")
_CLOCK: int | None = getattr(time, _SLEEPING, None)


def elapsed() -> float:
    """Return seconds since some moment, those that the machine slept among them."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
