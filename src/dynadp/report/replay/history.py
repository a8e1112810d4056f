"""A run round by round, put together for a page that plays it: at most ``FRAMES`` frames, however
long it was. Only what was declared or released is read.
"""

from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dynadp.errors import DynadpError
from dynadp.mechanisms import GaussianNoise, PrimalNoise
from dynadp.planning import Plan
from dynadp.privacy import Gaussian, by_node, total
from dynadp.report.accuracy import HISTOGRAM, PRIVATE, public_accuracy
from dynadp.report.budgets import planned_cost
from dynadp.report.drawing import places as drawn_places
from dynadp.report.page import guarantee
from dynadp.report.progress import Rounds, thinned
from dynadp.report.record_view import RunView
from dynadp.runs import Model, model_of, released_messages

FRAMES = 400  # rounds that are played one by one; of more, neighbours are joined
CHECKED = 16  # rounds whose averaged model is measured
POINTS = 8  # rounds whose total is computed, of each group where they are costly
FEW = 64  # rounds whose totals are no cost
SHOWN = 8  # groups of nodes with a budget of their own that are drawn, the costliest ones
MASKED = (
    "Letters of sealed sums are masked: to whoever lacks the keys each is uniform, so there is no "
    "signal in one to show."
)
INSIDE = (
    "Noise of this mechanism enters the problem before it is solved, and has no share of a message."
)
GONE = "The messages themselves are not here, so their lengths cannot be shown"
KEPT_NONE = "a SIMULATION that ended keeps none"


def spent_at(curve: list[list[float]], number: int) -> float:
    """What is lost after a round: where its own total was not computed that of a later one, so that
    nothing is understated.
    """
    return next((epsilon for n, epsilon in curve if n >= number), curve[-1][1])


@dataclass
class History:
    """A run folder, read again whenever it grew.

    Attributes
    ----------
    path
        The folder of a run, or of a network's nodes.
    """

    path: Path
    _rounds: Rounds | None = field(default=None, repr=False)
    _view: RunView | None = field(default=None, repr=False)
    _held: tuple[Plan, dict[str, dict[int, Any]]] | str = field(default="", repr=False)
    _read: tuple[int, bool] = field(default=(-1, False), repr=False)
    _made: dict[str, Any] = field(default_factory=dict, repr=False)
    _known: dict[str | int, Any] = field(
        default_factory=dict, repr=False
    )  # what no later round changes

    @property
    def view(self) -> RunView:
        """The record."""
        if self._view is None:
            self._view = RunView.read(self.path)
        return self._view

    def read(self) -> dict[str, Any]:
        """Return all that the page shows; computed anew where there are new rounds."""
        if self._rounds is None:
            self._rounds = Rounds.of(self.view)
        self._rounds.read()
        now = len(self._rounds.rows), self.view.finished
        if now != self._read:
            self._made, self._read = self._all(), now
        return self._made

    def _all(self) -> dict[str, Any]:
        view, rows = self.view, self._rounds.rows if self._rounds else []
        topology, plan = view.topology, view.plan
        events, spent = planned_cost(view)
        sentence, words = guarantee(view, spent)
        self._held = self._messages()
        frames = thinned(rows, FRAMES)
        return {
            "name": view.name,
            "key": view.key,
            "simulation": view.simulation,
            "finished": view.finished,
            "rounds": plan.rounds if plan else None,
            "done": len(rows),
            "exchange": plan.exchange if plan else "neighbours",
            "guarantee": sentence,
            "meaning": words,
            "nodes": [
                {"name": name, "x": x, "y": y}
                for name, (x, y) in zip(topology.nodes, drawn_places(topology), strict=True)
            ],
            "edges": [[int(u), int(v)] for u, v in topology.edges],
            "frames": [
                {"round": row["round"], "change": row["change"], "apart": row["disagreement"]}
                for row in frames
            ],
            "budgets": self._planned(events, plan.delta) if plan and events else [],
            "delta": plan.delta if plan else None,
            **self._signal([row["round"] for row in frames]),
            **self._measured(len(rows)),
        }

    def _messages(self) -> tuple[Plan, dict[str, dict[int, Any]]] | str:
        """The plan and the messages in all folders, or why they are not here."""
        held: dict[str, dict[int, Any]] = {}
        plan, why = None, ""
        for home in self.view.homes:
            try:
                plan, found = released_messages(home)
            except (DynadpError, OSError) as error:
                ended = self.view.simulation and self.view.finished
                why = KEPT_NONE if ended else str(error).partition("; ")[0]
                continue
            for node, own in found.items():
                held.setdefault(node, {}).update(own)
        return why if plan is None else (plan, held)

    def _planned(self, events: Any, delta: float) -> list[dict[str, Any]]:
        """How budgets fill: known from the plan, so found once."""
        if "budgets" not in self._known:
            self._known["budgets"] = self._budgets(events, delta)
        found: list[dict[str, Any]] = self._known["budgets"]
        return found

    def _budgets(self, events: Any, delta: float) -> list[dict[str, Any]]:
        """How the totals of nodes grow: for each group that loses alike its nodes and a curve."""
        own: dict[str, list[Any]] = {}
        for event in events:
            own.setdefault(event.node, []).append(event)
        groups: dict[Any, list[str]] = {}
        for node, those in own.items():
            losses = tuple((e.round, e.alpha, getattr(e, "mu", None)) for e in those)
            groups.setdefault(losses, []).append(node)
        worst = by_node(events, delta)
        ranked = sorted(groups.values(), key=lambda nodes: -worst[nodes[0]].epsilon)
        last = self.view.plan.rounds if self.view.plan else 0
        found, count = list[dict[str, Any]](), len(ranked[:SHOWN])
        for nodes in ranked[:SHOWN]:
            done = [event for event in own[nodes[0]] if event.round <= last]  # no spare attempts
            numbers = sorted({event.round for event in done})
            cheap = len(numbers) <= FEW or all(isinstance(event, Gaussian) for event in done)
            points = POINTS * SHOWN // count if cheap else POINTS
            picks = sorted(
                {numbers[round(i * (len(numbers) - 1) / points)] for i in range(points + 1)}
            )
            curve = [
                [n, total([event for event in done if event.round <= n], delta).epsilon]
                for n in picks
            ]
            found.append({"nodes": nodes, "curve": curve, "total": worst[nodes[0]].epsilon})
        return found

    def _signal(self, rounds: list[int]) -> dict[str, Any]:
        """Of a message's length squared, the share that noise is expected to have: the median over
        nodes in each round; and what it rests on.
        """
        if self.view.plan is None:
            return {"noise": None, "noise_note": "Nothing is protected: messages are all signal."}
        if isinstance(self._held, str):
            return {"noise": None, "noise_note": f"{GONE}: {self._held}."}
        plan, held = self._held
        if plan.sealing is not None:
            return {"noise": None, "noise_note": MASKED}
        releases, shares = plan.release_plan, []
        if not isinstance(releases.noises[0], GaussianNoise | PrimalNoise):
            return {"noise": None, "noise_note": INSIDE}
        for n in rounds:
            noise, found = releases.noises[n - 1], []
            if isinstance(noise, GaussianNoise):
                deviation = noise.parameter * noise.step
            else:
                spread = noise.spread(releases.public)
                assert spread is not None
                deviation = spread[1]
            for p, node in enumerate(releases.nodes):
                vector = held.get(node, {}).get(n)
                if vector is not None:
                    at = deviation[min(p, len(deviation) - 1), 0]
                    expected, size = at * sqrt(vector.size), float(np.linalg.norm(vector))
                    found.append(min(1.0, (expected / size) ** 2) if size else 1.0)
            shares.append(median(found) if found else None)
        words = (
            "Noise: its expected length squared, by its public law, over that of the message as it "
            "was released; the median over nodes. The rest is signal, of all rows of a node."
        )
        return {"noise": shares, "noise_note": words}

    def _measured(self, done: int) -> dict[str, Any]:
        """The averaged model on public rows, after some rounds; without messages the last alone."""
        if isinstance(self._held, str):
            last = self.view.plan.rounds if self.view.plan else done
            return self._on_public_rows([last] if self.view.finished else [], None)
        plan = self._held[0]
        picks = {max(1, round(plan.rounds * i / CHECKED)) for i in range(1, CHECKED + 1)}
        return self._on_public_rows([n for n in sorted(picks) if n <= done], plan)

    def _on_public_rows(self, rounds: list[int], plan: Plan | None) -> dict[str, Any]:
        """Measures after these rounds: right answers, or of a number what comes first of it."""
        found, name, note = [], "right answers", ""
        for n in rounds:
            try:
                one = self._known.get(n) or public_accuracy(self.view, self._model(n, plan))
                self._known[n] = one
            except DynadpError as error:
                note = note or f"Not measured: {error}."
                continue
            value, low, high = one.accuracy, one.low, one.high
            if value is None and one.others:
                name, value, low, high = one.others[0]
            if value is None or one.note == HISTOGRAM:
                why = PRIVATE if one.note == HISTOGRAM else one.note
                return {"measure": name, "measures": [], "measure_note": f"Not measured: {why}."}
            found.append({"round": n, "value": value, "low": low, "high": high})
            of = "averaged model so far" if plan else "model at the end"
            note = f"{name[0].upper()}{name[1:]} of the {of}, on {one.note}; 95% intervals."
        note = note or "Not measured: without messages there is no model of the rounds so far."
        return {"measure": name, "measures": found, "measure_note": note}

    def _model(self, number: int, plan: Plan | None) -> Model | None:
        """The model after a round; without messages None, which is the one at the end."""
        if plan is None or isinstance(self._held, str):
            return None
        return model_of(self.view.home, self.view.record, plan, self._held[1], number)
