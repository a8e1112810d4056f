"""Which life of a node this is: a number that grows with every start, and a random id.

Both are kept beside the ledger, one file for each run, locked while the process lives. Two
processes of one machine cannot both hold it, and a copy of the disk shows the same number with
another id.
"""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import IO

import numpy as np

from dynadp._files import parse_json
from dynadp.errors import NameTaken
from dynadp.mechanisms import Draws


@dataclass
class Life:
    """One start of a node's process.

    Attributes
    ----------
    id, number
        Random; one more than that of the life before.
    """

    id: str
    number: int
    _file: IO[bytes] = field(repr=False)

    @classmethod
    def begin(cls, stack: ExitStack, path: Path, node: str) -> "Life":
        """Begin the next life, for as long as the stack lives; refused while another process of
        this machine lives it.
        """
        made = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        file = stack.enter_context(os.fdopen(made, "r+b", buffering=0))
        _lock(file, path, node)
        try:
            before = int(parse_json(file.read() or b"0")["number"])
        except (ValueError, TypeError, KeyError):  # new, or cut short: neighbours know the number
            before = 0
        life = cls(token_hex(16), before + 1, file)
        life._write()
        return life

    def raise_to(self, number: int) -> None:
        """Let the next life have a higher number than this one."""
        self.number = max(self.number, number)
        self._write()

    def _write(self) -> None:
        content = json.dumps({"id": self.id, "number": self.number}).encode()
        self._file.seek(0)
        self._file.write(content)
        self._file.truncate()
        os.fsync(self._file.fileno())


class HeldDraws:
    """Draws that wait for something before each: here, for the node's lease.

    Parameters
    ----------
    draws
        Where noise comes from.
    hold
        Returns once noise may be drawn, or raises.
    """

    def __init__(self, draws: Draws, hold: Callable[[], None]) -> None:
        self.draws, self.hold, self.seeded = draws, hold, draws.seeded

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """The generator of this purpose, node, round and replica, once it may be used."""
        self.hold()
        return self.draws.generator(purpose, node, round_, replica)


def _lock(file: IO[bytes], path: Path, node: str) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NameTaken(
            f"another process of this machine runs as {node!r} with this ledger ({path} is "
            "locked); nothing was drawn here. Wait for it, or end it"
        ) from None
