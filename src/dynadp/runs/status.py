"""status.json: how a node of a network is."""

import os
from pathlib import Path
from typing import Any

from dynadp._files import read_file

STATUS, STATUS_VERSION = "dynadp-status", 1


def read_status(folder: Path) -> dict[str, Any]:
    """Read status.json of a node's run folder."""
    return read_file(folder / "status.json", STATUS, STATUS_VERSION)


def alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
