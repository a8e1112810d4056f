"""``dynadp start``: the wizard's page, served to this machine alone and protected as the page of
``dynadp explore`` is.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from dynadp.errors import DeclarationError, DynadpError
from dynadp.report.comparison import compare
from dynadp.report.comparison_page import comparison_page
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.app import Explorer
from dynadp.report.explore.setting import PublicSetting
from dynadp.report.explore.watch import Watch
from dynadp.report.page import STATIC, environment
from dynadp.report.record_view import RunView
from dynadp.report.replay.app import Replay
from dynadp.report.start.deeds import Deeds
from dynadp.report.start.wizard import FORMS, answered, offered, runs_here

LONGEST = 1 << 20  # bytes of a request
STEPS = {
    "rows": ("Rows", "Which files, and whose"),
    "answer": ("Answer", "What is to be predicted"),
    "columns": ("Columns", "What is public about each"),
    "people": ("People", "Whose row it is"),
    "network": ("Nodes", "Who hears whom"),
    "trust": ("Trust", "Who may read what"),
    "budget": ("Budget", "How much anyone can lose"),
    "ledgers": ("Ledgers", "What may be spent over all runs"),
    "run": ("Run", "Files, check, run and report"),
}
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


class Wizard:
    """Answers the wizard's requests.

    Parameters
    ----------
    folder
        Where files will be written, unless the page says another.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.over = folder, Event()
        self._deeds: dict[str, Deeds] = {}
        self._shown: Deeds | None = None  # of the folder that the page has now
        self._explorer = _Later(self._explore, self._about)
        self._replay = _Later(self._replayed, self._about)
        self._lock = Lock()

    def begin(self) -> None:
        """Do nothing yet: everything is done when it is asked for."""

    def close(self) -> None:
        """End what was begun."""
        self.over.set()
        for deeds in self._deeds.values():
            deeds.close()
        self._explorer.close()
        self._replay.close()

    @property
    def routes(self) -> list[BaseRoute]:
        """The addresses of the page, and of the page of the run that it made."""
        return [
            Route("/", self.page),
            Route("/api/files", self.files),
            Route("/api/ask", self.ask, methods=["POST"]),
            Route("/api/write", self.write, methods=["POST"]),
            Route("/api/do", self.do, methods=["POST"]),
            Route("/api/deeds", self.deeds, methods=["POST"]),
            Route("/report", self.report),
            Route("/api/runs", self.runs),
            Route("/compare", self.compared),
            Mount("/explore", self._explorer),
            Mount("/replay", self._replay),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def page(self, request: Request) -> Response:
        """The page."""
        template = environment().get_template("start.html")
        return HTMLResponse(template.render(steps=STEPS, folder=self.folder))

    def files(self, request: Request) -> Response:
        """Names of files that may hold rows; none is opened."""
        return JSONResponse({"files": offered(Path()), "forms": FORMS})

    async def ask(self, request: Request) -> Response:
        """``{folder, answers}``: the questions that follow, and the files that they come to."""
        return await self._answer(request, self._asked)

    async def write(self, request: Request) -> Response:
        """``{folder, answers}``: write the files."""
        return await self._answer(request, self._written)

    async def do(self, request: Request) -> Response:
        """``{folder, deed}``: start a command."""
        return await self._answer(request, self._done)

    async def deeds(self, request: Request) -> Response:
        """``{folder}``: how far all commands are."""
        return await self._answer(request, self._went)

    def report(self, request: Request) -> Response:
        """The report of the run, as it was written."""
        path = self._of(str(request.query_params.get("folder", self.folder))).report
        if not path.is_file():
            return PlainTextResponse(f"there is no report {path} yet", 404)
        text = path.read_text(encoding="utf-8")
        # a file of its own needs none; a browser would ask this server, outside of the token
        text = text.replace("<title>", '<link rel="icon" href="data:,">\n<title>', 1)
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})

    def runs(self, request: Request) -> Response:
        """Folders of runs that may be compared, by name."""
        return JSONResponse({"runs": runs_here(Path())})

    def compared(self, request: Request) -> Response:
        """``?run=FOLDER&run=FOLDER``: these runs beside each other."""
        given = request.query_params.getlist("run")
        known = {*runs_here(Path()), *(str(deeds.run) for deeds in self._deeds.values())}
        if strange := [run for run in given if run not in known]:
            return PlainTextResponse(f"there is no run {strange[0]} here", 404)
        try:
            page = comparison_page(compare(given))
        except DynadpError as error:
            return PlainTextResponse(str(error), 409)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    async def _answer(
        self, request: Request, work: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> Response:
        """Answer a JSON request; refuse what is none, which no form of another page can send."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "expected a request of application/json"}, 415)
        if int(request.headers.get("content-length") or 0) > LONGEST:
            return JSONResponse({"error": f"expected at most {LONGEST} bytes"}, 413)
        try:
            given = json.loads(await request.body())
            if not isinstance(given, dict):
                raise ValueError("not an object")
        except ValueError:
            return JSONResponse({"error": "expected an object of JSON"}, 400)
        try:
            return JSONResponse(await run_in_threadpool(work, given))
        except (DynadpError, OSError, ValueError, TypeError, AttributeError) as error:
            return JSONResponse({"error": _plain(error)}, 400)

    def _asked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        folder, wrong = _checked(given)
        folder = self.folder if wrong else folder  # all else is asked and checked as before
        found = answered(folder, _texts(given))
        return {
            "folder": wrong,
            "asked": [one.to_json() for one in found.asked],
            "complete": found.start is not None,
            "problem": found.problem,
            "files": {
                str(Path(folder, name)): text
                for name, text in (found.start.texts if found.start else {}).items()
            },
            "network": found.network,
        }

    def _written(self, given: Mapping[str, Any]) -> dict[str, Any]:
        folder = _folder(given)
        found = answered(folder, _texts(given))
        if found.start is None:
            wrong = [f"{one.question.text}: {one.error}" for one in found.asked if one.error]
            reason = found.problem or "; ".join(wrong) or "an answer is missing"
            return {"error": f"the files cannot be written yet: {reason}"}
        self._of(folder).write(found.start)
        return self._state(folder)

    def _done(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._of(_folder(given)).do(str(given.get("deed")))
        return self._state(_folder(given))

    def _went(self, given: Mapping[str, Any]) -> dict[str, Any]:
        folder, wrong = _checked(given)
        return {"deeds": [], "files": {}} if wrong else self._state(folder)

    def _state(self, folder: str) -> dict[str, Any]:
        deeds = self._of(folder)
        self._shown = deeds
        return {
            "deeds": deeds.to_json(),
            "files": {str(Path(folder, name)): text for name, text in deeds.files.items()},
            "run": str(deeds.run),
            "began": (deeds.run / "run.json").exists(),
            "finished": (deeds.run / "model.json").exists(),
            "report": str(deeds.report) if deeds.report.exists() else "",
        }

    def _of(self, folder: str) -> Deeds:
        with self._lock:
            return self._deeds.setdefault(folder, Deeds(Path(folder)))

    def _about(self) -> object:
        """What the pages of a run are about: a folder, and what its files say."""
        return None if self._shown is None else (self._shown.folder, dict(self._shown.files))

    def _replayed(self) -> Replay:
        """The run of the folder that the page has."""
        return Replay(self._run())

    def _explore(self) -> Explorer:
        """The page of that run, made of its record: its run file would ask for numbers of rows."""
        run = self._run()
        return Explorer(Advisor(PublicSetting.of_run(RunView.read(run))), Watch(run))

    def _run(self) -> Path:
        if self._shown is None or not (self._shown.run / "run.json").exists():
            raise DeclarationError("no run was started here yet")
        return self._shown.run


class _Later:
    """A page that is made when it is asked for, and anew when it is about something else."""

    def __init__(self, make: Callable[[], Any], about: Callable[[], object]) -> None:
        self._make, self._about, self._lock = make, about, Lock()
        self._made: Any = None
        self._app: ASGIApp | None = None
        self._is: object = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            app = await run_in_threadpool(self._begin)
        except DynadpError as error:
            await PlainTextResponse(str(error), 409)(scope, receive, send)
            return
        await app(scope, receive, send)

    def _begin(self) -> ASGIApp:
        with self._lock:
            about = self._about()
            if self._app is None or about != self._is:
                self.close()
                self._app = None
                self._made = self._make()
                self._made.begin()
                self._app, self._is = Router(self._made.routes), about
            return self._app

    def close(self) -> None:
        """End what was made."""
        if self._made is not None:
            self._made.over.set()
            self._made.close()
            self._made = None


def _folder(given: Mapping[str, Any]) -> str:
    folder = str(given.get("folder") or "").strip()
    if not folder:
        raise DeclarationError("expected a folder")
    if folder.startswith("-"):
        raise DeclarationError(f"{folder}: commands would take this for an option; choose another")
    try:
        path = Path(folder).expanduser()
    except RuntimeError:
        raise DeclarationError(f"{folder}: there is no home of that name") from None
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise DeclarationError(f"{place} is a file; expected a folder")
    return str(path)


def _checked(given: Mapping[str, Any]) -> tuple[str, str]:
    """The folder, and what is wrong with it."""
    try:
        return _folder(given), ""
    except (DeclarationError, OSError, ValueError) as error:
        return "", _plain(error)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(given.get("answers") or {}).items()}


def _plain(error: Exception) -> str:
    if isinstance(error, DynadpError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or 'failed'}"
    return "expected a folder, and answers that are texts"
