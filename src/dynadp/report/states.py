"""How nodes are, from what they tell: a word, a shape and a colour each."""

import time
from dataclasses import dataclass

from dynadp._files import read_file
from dynadp.errors import RecordError
from dynadp.report.record_view import STATUS, RunView
from dynadp.runs import alive

QUIET = 60.0  # seconds without a line after which a run in one process is no longer called running


@dataclass(frozen=True)
class State:
    """A node's state: which of the ``LOOKS``, in words, and the round it is in."""

    look: str
    words: str
    round: int


LOOKS = {  # shape and colour of each
    "planned": ("ring", "grey"),
    "agreeing": ("diamond", "purple"),
    "running": ("circle", "blue"),
    "finished": ("square", "green"),
    "away": ("triangle", "orange"),
    "failed": ("cross", "red"),
    "unknown": ("ring", "grey"),
}


def states(story: RunView, reached: int) -> dict[str, State]:
    """Every node's state.

    Parameters
    ----------
    story
        The run.
    reached
        The last whole round that was told.
    """
    if story.kind != "network":
        return dict.fromkeys(story.topology.nodes, _one(story, reached))
    told = {node: _told(story, node) for node in story.folders}
    out: dict[str, State] = {}
    for node in story.topology.nodes:
        if node in told:
            out[node] = told[node][0]
        else:
            seen = {
                links[node]
                for state, links in told.values()
                if node in links and state.look in ("agreeing", "running")
            }
            word = "up" if "up" in seen else "away" if "away" in seen else ""
            words = {
                "up": "up, seen by a neighbour",
                "away": "away, says a neighbour",
                "": "not seen from here",
            }[word]
            out[node] = State({"up": "running", "away": "away", "": "unknown"}[word], words, 0)
    return out


def _one(story: RunView, reached: int) -> State:
    if story.finished:
        return State("finished", "finished", reached)
    lines = story.home / "rounds.jsonl"
    quiet = time.time() - lines.stat().st_mtime if lines.exists() else 0.0
    if quiet < QUIET:
        return State("running", f"running, round {reached}", reached)
    return State("away", f"no news for {_ago(quiet)}: interrupted, or slow", reached)


def _told(story: RunView, node: str) -> tuple[State, dict[str, str]]:
    """The state, and what it says about its neighbours."""
    try:
        told = read_file(story.folders[node] / "status.json", STATUS)
        word, n, pid = str(told["state"]), int(told["round"]), int(told["pid"])
        links = dict(told["neighbours"])
    except (RecordError, KeyError, TypeError, ValueError):
        done = (story.folders[node] / "model.json").exists()
        return (
            State("finished", "finished", 0) if done else State("unknown", "tells no state", 0)
        ), {}
    if word in ("finished", "parted"):
        return State("finished", "finished", n), links
    if word.startswith("failed"):
        return State("failed", f"{word}, in round {n}", n), links
    if word == "stopped" or not alive(pid):
        return State(
            "away", f"{'stopped' if word == 'stopped' else 'ended'} in round {n}", n
        ), links
    wait = f", waits for {told['waiting']}" if told.get("waiting") else ""
    return State(
        "agreeing" if word == "agreeing" else "running", f"{word}, round {n}{wait}", n
    ), links


def _ago(seconds: float) -> str:
    return (
        f"{seconds / 60:.0f} minutes"
        if seconds < 7200
        else f"{seconds / 3600:.0f} hours"
        if seconds < 172800
        else (f"{seconds / 86400:.0f} days")
    )
