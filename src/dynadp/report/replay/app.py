"""``dynadp replay``: the page that plays a run, served to this machine alone."""

from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from dynadp.errors import DynadpError
from dynadp.report.page import STATIC, environment
from dynadp.report.replay.history import History, spent_at
from dynadp.report.replay.neighbour import Attacked
from dynadp.research.attacks import look

LINES = 12  # rounds of the readable summary
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
        return HTMLResponse(
            template.render(found=found, lines=summary(found), attacked=self.attacked)
        )

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
    def attacked(self) -> Attacked | None:
        """What kind of run is made to be attacked; None where there is none."""
        return Attacked.of(self.history.view)

    def neighbour(self, request: Request) -> Response:
        """What a neighbour sees with this budget; POST starts the attacks."""
        given = self.attacked
        if given is None:
            words = "these attacks are made for runs with a finite total of a mechanism of dynadp"
            return JSONResponse({"state": "failed", "error": words}, 409)
        with self._lock:
            if request.method == "POST" and self._attack["state"] in ("waiting", "failed"):
                self._attack = {"state": "running", "part": "beginning"}
                Thread(target=self._look, args=(given,), daemon=True).start()
            return JSONResponse(dict(self._attack))

    def _look(self, given: Attacked) -> None:
        def on_part(part: str) -> None:
            self._attack = {"state": "running", "part": part}

        try:
            found = look(**given.given, rows=ROWS, runs=RUNS, on_part=on_part).to_json()
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
