"""Which process wrote a file, named so that no other process can be taken for it.

A number alone lies: it is given again, it is 1 in every container, and another container counts
from anew. With the time at which the process began, and the space in which its number counts, the
three name one process.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def this_process() -> dict[str, Any]:
    """Return what names this process: its number, where it counts, and when it began."""
    return {"pid": os.getpid(), "space": _space(), "began": _began(os.getpid())}


def alive(named: dict[str, Any]) -> bool | None:
    """Return whether the process that :func:`this_process` named still runs; None where that cannot
    be seen from here, because it counts its processes elsewhere.
    """
    pid, space, began = named["pid"], named.get("space"), named.get("began")
    if space is not None and space != _space():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return began is None or began == _began(pid)


def _space() -> str | None:
    """The start of this machine, and the space in which its processes are counted."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    return None


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did: field 22 of its line in /proc."""
    with suppress(OSError, ValueError, IndexError):
        line = (_PROC / str(pid) / "stat").read_text()
        return int(line.rpartition(")")[2].split()[19])
    return None
