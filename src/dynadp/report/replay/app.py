"""``dynadp replay``: the page that plays a run, served to this machine alone."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from dynadp.errors import DynadpError
from dynadp.privacy import worst_node
from dynadp.report.budgets import planned_cost
from dynadp.report.page import STATIC, environment
from dynadp.report.replay.history import History, spent_at
from dynadp.research.attacks import look

LINES = 12  # rounds of the readable summary
KNOWN = ("sum", "sealed", "primal", "dual")  # mechanisms that the attacks are made for
ROWS, RUNS = 60, 400  # sought, and asked about, by the attacks that the page starts


class Replay:
    """Answers the page's requests.

    Parameters
    ----------
    path
        A run folder, or the folder of a network's nodes; finished or growing.
    """

    def __init__(self, path: str | Path) -> None:
        self.history, self.over = History(Path(path)), Event()
        self.history.view  # noqa: B018 - what is no run is refused now
        self._lock, self._attack = Lock(), dict[str, Any](state="waiting")

    def begin(self) -> None:
        """Do nothing: all is read when it is asked for."""

    def close(self) -> None:
        """End with the server; an attack that runs ends with the process."""
        self.over.set()

    @property
    def routes(self) -> list[BaseRoute]:
        """The page's addresses."""
        return [
            Route("/", self.page),
            Route("/api/history", self.rounds),
            Route("/api/neighbour", self.neighbour, methods=["GET", "POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def page(self, request: Request) -> Response:
        """The page, which can be read without a script too."""
        try:
            found = self._read()
        except DynadpError as error:
            return HTMLResponse(str(error), 409)
        template = environment().get_template("replay.html")
        return HTMLResponse(template.render(found=found, lines=summary(found), budget=self.budget))

    async def rounds(self, request: Request) -> Response:
        """All frames so far."""
        try:
            return JSONResponse(await run_in_threadpool(self._read))
        except DynadpError as error:
            return JSONResponse({"error": str(error)}, 409)

    def _read(self) -> dict[str, Any]:
        with self._lock:
            return self.history.read()

    @property
    def budget(self) -> tuple[str, float] | None:
        """The mechanism and the total that the attacks are made for; None where there is none."""
        plan = self.history.view.plan
        events, _ = planned_cost(self.history.view)
        if plan is None or not events or plan.mechanism not in KNOWN:
            return None
        epsilon = worst_node(events, 1e-5).epsilon
        return (plan.mechanism, epsilon) if 0 < epsilon < inf else None

    def neighbour(self, request: Request) -> Response:
        """What a neighbour sees with this budget; POST starts the attacks."""
        given = self.budget
        if given is None:
            words = "these attacks are made for runs with a finite total of a mechanism of dynadp"
            return JSONResponse({"state": "failed", "error": words}, 409)
        with self._lock:
            if request.method == "POST" and self._attack["state"] in ("waiting", "failed"):
                self._attack = {"state": "running", "part": "beginning"}
                Thread(target=self._look, args=given, daemon=True).start()
            return JSONResponse(dict(self._attack))

    def _look(self, mechanism: str, epsilon: float) -> None:
        def on_part(part: str) -> None:
            self._attack = {"state": "running", "part": part}

        try:
            found = look(epsilon, mechanism, rows=ROWS, runs=RUNS, on_part=on_part).to_json()
            self._attack = {"state": "done", "found": found}
        except DynadpError as error:
            self._attack = {"state": "failed", "error": str(error)}


def summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a few rounds in numbers, for a page without a script."""
    frames = found["frames"]
    if not frames:
        return []
    picks = sorted({round(i * (len(frames) - 1) / (LINES - 1)) for i in range(LINES)})
    lines = []
    for i in picks:
        frame, costliest = frames[i], found["budgets"][:1]
        known = [one for one in found["measures"] if one["round"] <= frame["round"]]
        lines.append(
            {
                "round": frame["round"],
                "change": frame["change"][0],
                "apart": frame["apart"][0],
                "noise": found["noise"][i] if found["noise"] else None,
                "spent": spent_at(costliest[0]["curve"], frame["round"]) if costliest else None,
                "measure": known[-1]["value"] if known else None,
            }
        )
    return lines
