"""status.json in a node's run folder: how the node is, written while it runs and read by others."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from dynadp._files import read_file, write_whole
from dynadp.engines import LOG, Links
from dynadp.errors import LedgerDamaged, LedgerError, RecordError
from dynadp.privacy import Ledger, LedgerSummary

STATUS, STATUS_VERSION = "dynadp-status", 1
SHOWN = 16  # letters of the configuration's hash that stand behind a run's name in a ledger
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
        self.state, self.round = "agreeing", 0
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
        links, alive = self.links, self.links.alive
        return {
            "format": STATUS,
            "version": STATUS_VERSION,
            **self.facts,
            "state": self.state,
            "round": self.round,
            "neighbours": {j: "up" if j in alive else "away" for j in links.site.neighbours},
            "rejected": dict(links.post.rejected),
            "waiting": links.waiting,
            "pid": os.getpid(),
        }

    def line(self) -> str:
        """Return how the node is, in one line."""
        now = self.to_json()
        up = ", ".join(
            f"{j} {'up' if state == 'up' else 'AWAY'}" for j, state in now["neighbours"].items()
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


def read_status(folder: Path) -> dict[str, Any]:
    """Read status.json of a node's run folder."""
    return read_file(folder / "status.json", STATUS, STATUS_VERSION)


def node_states(folders: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Return the state of every node that has run in these folders, or in folders inside them."""
    folders = list(folders)
    files = sorted(file for folder in folders for file in _status_files(Path(folder)))
    if not files:
        raise RecordError(
            f"no node has run in {', '.join(map(str, folders))}: there is no status.json; give "
            f"the folder that NODE.toml names"
        )
    return [_state(file) for file in files]


def alive(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _status_files(folder: Path) -> list[Path]:
    here = folder / "status.json"
    return [here] if here.exists() else list(folder.glob("*/status.json"))


def _state(file: Path) -> dict[str, Any]:
    state = read_status(file.parent)
    state["alive"] = alive(state["pid"])
    if not state["alive"]:
        state["neighbours"] = dict.fromkeys(state["neighbours"], "not known")
        if state["state"] in ("agreeing", "running", "finished"):
            state["state"] += " when it ended"
    state["spent"] = None
    if state["ledger"] is not None:
        try:
            with Ledger.open(state["ledger"], read_only=True) as ledger:
                summary = LedgerSummary.of(ledger)
        except LedgerDamaged:
            raise
        except LedgerError:  # an entry that a crash cut short: the node undoes it when it starts
            return state
        state["spent"] = _spent(summary, state["run"], state.get("config"))
    return state


def _spent(summary: LedgerSummary, name: str, config: str | None) -> dict[str, Any] | None:
    """What the run of this name and configuration spent; without a configuration, the newest."""
    pattern = f"{re.escape(name)} [0-9a-f]{{{SHOWN}}}"
    found = [run for run in summary.runs.values() if re.fullmatch(pattern, run.run)]
    run = next(
        (run for run in reversed(found) if config is None or run.run == f"{name} {config}"), None
    )
    if run is None or summary.cap is None:
        return None
    return {
        "config": run.run.rpartition(" ")[2],
        "others": len(found) - 1,
        "rounds_spent": run.rounds_spent,
        "rounds_planned": run.rounds_planned,
        "alpha_spent": run.to_json()["alpha_spent"],
        "lost": summary.lost,
        "cap": summary.cap.epsilon,
        "delta": summary.cap.delta,
    }
