"""Writes status.json of a running node."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from dynadp._files import write_whole
from dynadp.engines import LOG, Links
from dynadp.runs.status import STATUS, STATUS_VERSION

_TICK, _HEALTH = 0.5, 10.0  # seconds between two looks at the status, and two health lines


class StatusWriter:
    """Writes status.json of a running node whenever it changed, and a health line now and then.

    Parameters
    ----------
    folder, links
        The node's run folder and its links.
    facts
        The part of status.json that does not change.
    """

    def __init__(self, folder: Path, links: Links, facts: Mapping[str, Any]) -> None:
        self.folder, self.links, self.facts = folder, links, facts
        self.state, self.round = "starting", 0
        self.writing, self._over, self._last = Lock(), Event(), ""

    def __enter__(self) -> Self:
        self._write()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def to_json(self) -> dict[str, Any]:
        """Return the content of status.json."""
        links, alive, gone = self.links, self.links.alive, self.links.post.given_up
        return {
            "format": STATUS,
            "version": STATUS_VERSION,
            **self.facts,
            "state": self.state,
            "round": self.round,
            "neighbours": {
                j: "given up" if j in gone else "up" if j in alive else "away"
                for j in links.site.neighbours
            },
            "rejected": dict(links.post.rejected),
            "waiting": links.waiting,
            "pid": os.getpid(),
        }

    def line(self) -> str:
        """Return how the node is, in one line."""
        now = self.to_json()
        up = ", ".join(
            f"{j} {state if state == 'up' else state.upper()}"
            for j, state in now["neighbours"].items()
        )
        wait = f"; waits for {now['waiting']}" if now["waiting"] else ""
        place = f"round {now['round']} of {now['rounds']}"
        refused = sum(now["rejected"].values())
        return f"{now['state']}, {place}; {up or 'no neighbours'}; {refused} refused{wait}"

    def _write(self) -> None:
        content = json.dumps(self.to_json(), indent=1)
        if content != self._last:
            with self.writing:
                write_whole(self.folder / "status.json", content + "\n")
            self._last = content

    def _watch(self) -> None:
        logged, ticks = "", 0
        while not self._over.wait(_TICK):
            self._write()
            ticks += 1
            if ticks % round(_HEALTH / _TICK) == 0 and (line := self.line()) != logged:
                LOG.info("%s", line)
                logged = line
