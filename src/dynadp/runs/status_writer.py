"""Writes status.json of a running node, and gives signs of life to those who watch over it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Self

from dynadp._files import write_whole
from dynadp.engines import LOG, Links, now
from dynadp.runs.processes import this_process
from dynadp.runs.status import STATUS, STATUS_VERSION
from dynadp.runs.supervision import Supervisor

_TICK, _HEALTH = 0.5, 10.0  # seconds between two looks at the status, and two health lines
SOON = timedelta(days=30)  # before the end of a certificate
_SIGN = 5.0  # seconds after which it is written again, though nothing changed


class StatusWriter:
    """Writes status.json of a running node when it changed, and every few seconds as a sign of
    life; a health line now and then.

    A disk that refuses for a moment, such as a full one, costs the file a few seconds. The next
    look writes it again.

    Parameters
    ----------
    folder, links
        The node's run folder and its links.
    facts
        The part of status.json that does not change.
    """

    def __init__(self, folder: Path, links: Links, facts: Mapping[str, Any]) -> None:
        self.folder, self.links = folder, links
        self.facts = {**facts, **this_process(), "started": now()}
        self._state, self._round = "starting", 0
        self._round_at: str | None = None
        self.writing, self._over, self._last = Lock(), Event(), ""
        self._written, self._refused = 0.0, False
        self._supervisor = Supervisor()

    def __enter__(self) -> Self:
        self._write()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()
        self._supervisor.stopping()

    @property
    def state(self) -> str:
        """What the node does: ``starting``, ``agreeing``, ``running``, ``finished``, ``parted``,
        ``stopped`` or ``failed``.
        """
        return self._state

    @state.setter
    def state(self, word: str) -> None:
        self._state = word
        self._supervisor.alive(word, self.line)  # now: the process may end before the next look

    @property
    def round(self) -> int:
        """The last round that is over."""
        return self._round

    @round.setter
    def round(self, n: int) -> None:
        self._round, self._round_at = n, now()

    @property
    def fresh(self) -> bool:
        """Whether the file was written within the last few signs of life."""
        return monotonic() - self._written < 3 * _SIGN

    def to_json(self) -> dict[str, Any]:
        """Return the content of status.json, without the time."""
        links, alive, gone = self.links, self.links.alive, self.links.post.given_up
        return {
            "format": STATUS,
            "version": STATUS_VERSION,
            **self.facts,
            "state": self.state,
            "round": self.round,
            "round_at": self._round_at,
            "neighbours": {
                j: "given up" if j in gone else "up" if j in alive else "away"
                for j in links.site.neighbours
            },
            "rejected": dict(links.post.rejected),
            "waiting": links.waiting,
        }

    def line(self) -> str:
        """Return how the node is, in one line."""
        state = self.to_json()
        up = ", ".join(
            f"{j} {how if how == 'up' else how.upper()}" for j, how in state["neighbours"].items()
        )
        wait = f"; waits for {state['waiting']}" if state["waiting"] else ""
        place = f"round {state['round']} of {state['rounds']}"
        refused = sum(state["rejected"].values())
        ends = datetime.fromisoformat(state["certificate_ends"])
        near = ends - datetime.now(UTC) < SOON
        soon = f"; its certificate ends on {ends:%Y-%m-%d}" if near else ""
        return f"{state['state']}, {place}; {up or 'no neighbours'}; {refused} refused{wait}{soon}"

    def _write(self) -> None:
        state = self.to_json()
        content = json.dumps(state)
        if content == self._last and monotonic() - self._written < _SIGN:
            return
        try:
            with self.writing:
                write_whole(
                    self.folder / "status.json", json.dumps({**state, "at": now()}, indent=1) + "\n"
                )
        except OSError as error:
            if not self._refused:  # once, however long it lasts
                LOG.warning("status.json cannot be written: %s", error.strerror)
            self._refused = True
            return
        if self._refused:
            LOG.info("status.json is written again")
        self._last, self._written, self._refused = content, monotonic(), False

    def _watch(self) -> None:
        logged, ticks = "", 0
        while not self._over.wait(_TICK):
            self._write()
            ticks += 1
            self._supervisor.alive(self.state, self.line)
            if ticks % round(_HEALTH / _TICK) == 0 and (line := self.line()) != logged:
                LOG.info("%s", line)
                logged = line
