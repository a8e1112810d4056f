"""A run folder, watched: each look reads what is new, whoever writes it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dynadp.errors import DynadpError, RecordError
from dynadp.privacy import Total
from dynadp.report.accuracy import NOT_FINISHED, public_accuracy
from dynadp.report.budgets import BudgetView, ledger_files, planned_cost, read_budgets, worst
from dynadp.report.drawing import drawing
from dynadp.report.honesty import WHO_SEES, Honesty
from dynadp.report.page import environment, guarantee, spare_words
from dynadp.report.progress import Rounds, Row
from dynadp.report.record_view import RunView, run_folders
from dynadp.report.states import LOOKS, State, states

SHOWN = 12  # nodes whose budget is drawn; the rest is in a list that opens


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
        self.latest = Snapshot(0, {}, "", [])
        self._view: RunView | None = None
        self._rounds = Rounds((), 1, ())
        self._states: dict[str, State] = {}
        self._total: Total | None = None
        self._honesty: Honesty | None = None
        self._accuracy = NOT_FINISHED
        self._ledgers: dict[str, Path] = {}
        self._budgets: dict[str, BudgetView | str] = {}
        self._seen: dict[str, float] = {}  # files of the run, and when they were written
        self._entered: dict[str, float] = {}  # and of its ledgers

    def look(self) -> None:
        """Read what is new, and put a new snapshot in place."""
        try:
            problem = self._read()
        except (DynadpError, OSError) as error:
            problem = str(error)
        state, before = self._state(problem), self.latest
        version = before.version + (state != before.state)
        rows = self._rounds.rows if self._view else []
        self.latest = Snapshot(version, state, state["key"], rows)

    def _read(self) -> str:
        """Read what is new, and return why there is no run, if there is none."""
        if self.path is None:
            return ""
        records = [*self.path.glob("run.json"), *self.path.glob("*/run.json")]
        if not records:
            self._view, self._seen = None, {}
            return _why_not_yet(self.path)
        seen = _times([*records, *(record.with_name("model.json") for record in records)])
        if self._view is None or seen != self._seen:
            self._view = self._opened(self.path)
            self._seen = seen
        view = self._view
        self._rounds.read()
        self._states = states(view, len(self._rounds.rows))
        logs = [Path(f"{file}-wal") for file in self._ledgers.values()]
        entered = _times([*self._ledgers.values(), *logs])
        if entered != self._entered:
            self._budgets, self._entered = read_budgets(view, self._ledgers), entered
        return ""

    def _opened(self, path: Path) -> RunView:
        """Read the record and what follows from it."""
        view = RunView.read(path)
        events, self._total = planned_cost(view)
        self._honesty = None
        if events and view.plan:
            self._honesty = Honesty.of(worst(events, view.plan.delta)[1], view.plan.delta)
        self._ledgers, self._entered, self._budgets = ledger_files(view), {}, {}
        self._accuracy = public_accuracy(view) if view.finished else NOT_FINISHED
        self._rounds = Rounds.of(view)
        return view

    def _state(self, problem: str) -> dict[str, Any]:
        view, accuracy = self._view, self._accuracy
        if view is None:
            return {"problem": problem, "key": "", "simulation": False, "finished": False}
        sentence, words = guarantee(view, self._total)
        pieces = environment().get_template("live.html")
        shown = {
            "view": view,
            "states": self._states,
            "budgets": self._budgets,
            "looks": LOOKS,
            "shown": SHOWN,
            "total": self._total,
            "honesty": self._honesty,
            "spares": spare_words(view, self._honesty, self._budgets),
            "sees": WHO_SEES.get(view.plan.exchange, "") if view.plan else "",
        }
        return {
            "problem": problem,
            "key": view.key,
            "name": view.name,
            "simulation": view.simulation,
            "finished": view.finished,
            "round": len(self._rounds.rows),
            "rounds": view.plan.rounds if view.plan else None,
            "guarantee": sentence,
            "meaning": words,
            "accuracy": accuracy.words,
            "network": drawing(view.topology, self._states),
            "honest": pieces.render(part="honest", **shown) if self._honesty else "",
            "nodes": pieces.render(part="nodes", **shown),
            "budgets": pieces.render(part="budgets", **shown),
        }


def _why_not_yet(path: Path) -> str:
    """Why there is no run: nothing has begun, or nodes have not agreed on one."""
    if any(path.glob("**/status.json")):
        try:
            run_folders(path)
        except RecordError as error:
            return str(error)
    return f"Nothing runs in {path} yet. This page shows it as soon as it begins."


def _times(files: Iterable[Path]) -> dict[str, float]:
    """When the files that are there were written, and how long they are, in one number."""
    times = {}
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        times[str(file)] = found.st_mtime + found.st_size
    return times
