"""A run folder, watched: each look reads what is new, whoever writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dynadp.errors import DynadpError, RecordError
from dynadp.privacy import Event, Total
from dynadp.report.accuracy import Accuracy, public_accuracy
from dynadp.report.budgets import BudgetView, ledger_files, planned_cost, read_budgets
from dynadp.report.drawing import drawing, in_words
from dynadp.report.page import environment, guarantee
from dynadp.report.progress import Rounds, Row
from dynadp.report.record_view import RunView, run_folders
from dynadp.report.states import LOOKS, State, states

SHOWN = 12  # nodes whose budget is drawn; the rest is in a list that opens
Signature = tuple[tuple[str, float], ...]


class Snapshot(NamedTuple):
    """The result of one look: the number of the state, the state, the run's key, and its whole
    rounds.
    """

    version: int
    state: dict[str, Any]
    key: str
    rows: list[Row]


class Watch:
    """The latest of a run folder; :meth:`look` reads what is new.

    Parameters
    ----------
    path
        The folder, which need not be there yet; None where only a plan is looked at.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.view: RunView | None = None
        self.rounds = Rounds((), 1)
        self.problem = ""
        self.latest = Snapshot(0, {}, "", [])
        self._seen: Signature = ()
        self._ledgers: Signature = ()
        self._files: dict[str, Path] = {}
        self._budgets: dict[str, BudgetView | str] = {}
        self._states: Mapping[str, State] = {}
        self._counted: tuple[tuple[Event, ...], Total] | None = None
        self._accuracy: Accuracy | None = None

    def look(self) -> bool:
        """Read what is new and return whether anything was."""
        try:
            return self._look()
        except (DynadpError, OSError) as error:
            return self._publish(str(error))

    def _look(self) -> bool:
        if self.path is None:
            return self._publish("")
        if not any(self.path.glob("run.json")) and not any(self.path.glob("*/run.json")):
            self.view, self._seen = None, ()
            return self._publish(_why_not_yet(self.path))
        if (seen := self._signature()) != self._seen:
            self._read()
            self._seen = seen
        grown, view = self.rounds.read(), self.view
        if view is None:
            return self._publish("")
        changed = states(view, len(self.rounds.rows))
        entered = _times(
            file for ledger in self._files.values() for file in (ledger, Path(f"{ledger}-wal"))
        )
        if entered != self._ledgers:
            self._budgets, self._ledgers = read_budgets(view, self._files), entered
        self._states = changed
        return self._publish("") or grown

    def _signature(self) -> Signature:
        """Changes when a record, a model or a node's folder appears."""
        assert self.path is not None
        found = [
            file
            for name in ("run.json", "model.json")
            for at in (name, f"*/{name}")
            for file in self.path.glob(at)
        ]
        return _times(found)

    def _read(self) -> None:
        assert self.path is not None
        before = self.view.key if self.view else ""
        self.view = view = RunView.read(self.path)
        files = [home / "rounds.jsonl" for home in view.homes]
        if view.key != before or tuple(files) != self.rounds.files:
            self.rounds = Rounds(files, len(view.folders))
        self._counted = planned_cost(view)
        self._files, self._ledgers = ledger_files(view), ()
        self._budgets = {}
        self._accuracy = public_accuracy(view) if view.finished else None

    def _publish(self, problem: str) -> bool:
        """Put a new snapshot in place and return whether its state differs from the last."""
        self.problem = problem
        state, before = self._state(), self.latest
        differs = state != before.state
        rows = self.rounds.rows if self.view else []
        self.latest = Snapshot(before.version + differs, state, state["key"], rows)
        return differs

    def _state(self) -> dict[str, Any]:
        view = self.view
        if view is None:
            return {"problem": self.problem, "key": "", "simulation": False, "finished": False}
        sentence, words = guarantee(view, self._counted[1] if self._counted else None)
        reached, planned = len(self.rounds.rows), view.plan.rounds if view.plan else None
        pieces = environment().get_template("live.html")
        shared = {
            "view": view,
            "states": self._states,
            "budgets": self._budgets,
            "looks": LOOKS,
            "shown": SHOWN,
        }
        accuracy = self._accuracy
        return {
            "problem": self.problem,
            "key": view.key,
            "name": view.name,
            "simulation": view.simulation,
            "finished": view.finished,
            "round": reached,
            "rounds": planned,
            "guarantee": sentence,
            "meaning": words,
            "accuracy": accuracy.accuracy if accuracy else None,
            "accuracy_range": accuracy.range if accuracy else "",
            "accuracy_note": accuracy.note
            if accuracy
            else "told when the run is finished, and only on public rows",
            "network": drawing(view.topology, self._states),
            "network_words": in_words(self._states),
            "nodes": pieces.render(part="nodes", **shared),
            "budgets": pieces.render(
                part="budgets", total=self._counted[1] if self._counted else None, **shared
            ),
        }


def _why_not_yet(path: Path) -> str:
    """Why there is no run: nothing has begun, or nodes have not agreed on one."""
    if any(path.glob("**/status.json")):
        try:
            run_folders(path)
        except RecordError as error:
            return str(error)
    return f"Nothing runs in {path} yet. This page shows it as soon as it begins."


def _times(files: Any) -> Signature:
    out = []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        out.append((str(file), found.st_mtime + found.st_size))
    return tuple(sorted(out))
