"""The state of each node, from its files: a word, a shape and a colour."""

import time
from dataclasses import dataclass

from dynadp.errors import RecordError
from dynadp.report.record_view import RunView
from dynadp.runs import is_alive, read_status

QUIET = 60.0  # seconds without a line after which a run in one process is no longer called running
MINUTE, HOUR, DAY = 60, 3600, 86400


@dataclass(frozen=True)
class State:
    """A node's state: which of the ``LOOKS``, and in words."""

    look: str
    words: str


LOOKS = {  # shape and colour of each
    "agreeing": ("diamond", "purple"),
    "running": ("circle", "blue"),
    "finished": ("square", "green"),
    "away": ("triangle", "orange"),
    "failed": ("cross", "red"),
    "unknown": ("ring", "grey"),
}


def states(view: RunView, reached: int) -> dict[str, State]:
    """Every node's state.

    Parameters
    ----------
    view
        The run.
    reached
        The last whole round.
    """
    if view.kind != "network":
        return dict.fromkeys(view.topology.nodes, _one_process(view, reached))
    own, seen = {}, dict[str, set[str]]()
    for node in view.folders:
        own[node], links = _node(view, node)
        if own[node].look in ("agreeing", "running"):
            for neighbour, link in links.items():
                seen.setdefault(neighbour, set()).add(link)
    out: dict[str, State] = {}
    for node in view.topology.nodes:
        if node in own:
            out[node] = own[node]
        elif "up" in seen.get(node, ()):
            out[node] = State("running", "up, seen by a neighbour")
        elif "away" in seen.get(node, ()):
            out[node] = State("away", "away, says a neighbour")
        else:
            out[node] = State("unknown", "not seen from here")
    return out


def _one_process(view: RunView, reached: int) -> State:
    if view.finished:
        return State("finished", "finished")
    lines = view.home / "rounds.jsonl"
    quiet = time.time() - lines.stat().st_mtime if lines.exists() else 0.0
    if quiet < QUIET:
        return State("running", f"running, round {reached}")
    return State("away", f"no news for {_duration(quiet)}: interrupted, or slow")


def _node(view: RunView, node: str) -> tuple[State, dict[str, str]]:
    """The state of a node with a folder, and its neighbours as it sees them."""
    try:
        status = read_status(view.folders[node])
        word, n, links = status["state"], status["round"], status["neighbours"]
        there = is_alive(status)
    except (RecordError, KeyError):
        if (view.folders[node] / "model.json").exists():
            return State("finished", "finished"), {}
        return State("unknown", "has no state"), {}
    if word in ("finished", "parted"):
        return State("finished", "finished"), links
    if word.startswith("failed"):
        return State("failed", f"{word}, in round {n}"), links
    if word == "stopped":
        return State("away", f"stopped in round {n}"), links
    if not there:
        return State("away", f"ended in round {n}"), links
    wait = f", waits for {status['waiting']}" if status.get("waiting") else ""
    look = "agreeing" if word in ("starting", "agreeing") else "running"
    return State(look, f"{word}, round {n}{wait}"), links


def _duration(seconds: float) -> str:
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} minutes"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.0f} hours"
    return f"{seconds / DAY:.0f} days"
