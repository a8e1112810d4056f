"""What a node remembers of its neighbours' ledgers, over all runs: the last that each of them
showed, with its signature.

A node that is shown its own signed word about a ledger that its ledger does not contain goes no
further: its ledger was rolled back or replaced. Nobody else can make such a word.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from dynadp._files import read_file, write_whole
from dynadp.errors import RecordError
from dynadp.privacy import Mark

FORMAT, VERSION = "dynadp-peers", 1
_LEDGERS = 8  # of one peer, at most


class PeerMemory:
    """The last greeting of each peer that showed its ledger; any thread may use it.

    Parameters
    ----------
    path
        The file; made with the first that is remembered.
    keys
        The public signing keys, as the run file spells them: a name with another key is another
        peer.
    """

    def __init__(self, path: Path, keys: Mapping[str, str]) -> None:
        self.path, self.keys, self._lock = path, dict(keys), Lock()
        self._known: dict[str, dict[str, dict[str, Any]]] = {}
        if path.exists():
            self._known = read_file(path, FORMAT, VERSION)["peers"]

    def remember(self, peer: str, mark: Mark, data: bytes) -> None:
        """Keep a peer's greeting if its ledger is longer there than was known."""
        with self._lock:
            own = self._known.setdefault(self._name(peer), {})
            before = own.get(mark.first)
            if before is None and len(own) >= _LEDGERS:
                return  # the first ones stay: nobody can push them out
            if before is not None and before["length"] >= mark.length:
                return
            own[mark.first] = {"length": mark.length, "letter": base64.b64encode(data).decode()}
            content = {"format": FORMAT, "version": VERSION, "peers": self._known}
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_whole(self.path, json.dumps(content) + "\n")
            except OSError as error:
                raise RecordError(
                    f"cannot write {self.path}, where neighbours' ledgers are remembered: "
                    f"{error.strerror}; see to its folder"
                ) from error

    def of(self, peer: str) -> list[str]:
        """Return what is remembered of a peer: its greetings, in base64."""
        with self._lock:
            return [one["letter"] for one in self._known.get(self._name(peer), {}).values()]

    def _name(self, peer: str) -> str:
        return f"{peer} {self.keys[peer]}"
