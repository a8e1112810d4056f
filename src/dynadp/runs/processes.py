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
_ENDED = "ZX"  # states of a process that has ended


def this_process() -> dict[str, Any]:
    """Return what names this process: its number, where it counts, and when it began."""
    return {"pid": os.getpid(), "space": _space(), "began": _began(os.getpid())}


def alive(named: dict[str, Any]) -> bool | None:
    """Return whether the process that :func:`this_process` named still runs; None where that cannot
    be seen from here, because it counts its processes elsewhere or hides them.

    One that has ended runs no more, though nobody has asked for its exit code yet (a zombie).
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
    if began is None:
        return True
    if (found := _fields(pid)) is None:
        return None  # hidden (hidepid), or it ended just now
    state, since = found
    return state not in _ENDED and since == began


def _space() -> str | None:
    """The start of this machine, and the space in which its processes are counted."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    return None


def _began(pid: int) -> int | None:
    found = _fields(pid)
    return None if found is None else found[1]


def _fields(pid: int) -> tuple[str, int] | None:
    """The state of a process, and when it began, in ticks since the machine did: fields 3 and 22 of
    its line in /proc; None where that cannot be read.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    return None
