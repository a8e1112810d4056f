"""Signs of life for systemd: that a node is ready, how it is, and that it ends (sd_notify)."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress


class Supervisor:
    """Sends sd_notify's datagrams to the socket that NOTIFY_SOCKET names; nothing where it names
    none.

    A node is ready when it has checked its rows and begins to greet others. Signs of life come from
    the thread that writes status.json. So the watchdog ends a process that is frozen, not one that
    waits for a neighbour or solves for long.
    """

    def __init__(self) -> None:
        self._where = os.environ.get("NOTIFY_SOCKET", "")
        self._ready, self._shown = False, ""

    def alive(self, state: str, line: Callable[[], str]) -> None:
        """Send a sign of life, and how the node is where that changed."""
        if not self._where:
            return
        words = ["WATCHDOG=1"]
        if not self._ready and state != "starting":
            self._ready = True
            words.append("READY=1")
        if (now := line()) != self._shown:
            self._shown = now
            words.append(f"STATUS={now}")
        self._send("\n".join(words))

    def stopping(self) -> None:
        """Say that the node ends."""
        if self._where:
            self._send("STOPPING=1")

    def _send(self, words: str) -> None:
        # a name that begins with @ lies outside the file system
        where = "\0" + self._where[1:] if self._where.startswith("@") else self._where
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(words.encode(), where)
