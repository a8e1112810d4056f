"""``dynadp explore``: the page, served to this machine alone.

Every address begins with a random token. A request with another token, another Host (a name that
was made to point here) or another Origin gets nothing. The page loads nothing from elsewhere and
runs no code but its own files.
"""

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

import anyio
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dynadp._files import write_whole
from dynadp._intervals import SEVERAL
from dynadp.errors import DeclarationError, DynadpError
from dynadp.privacy import guesses_in_100
from dynadp.report import figures
from dynadp.report.budgets import ledger_files
from dynadp.report.each_round import MEANINGS
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.caps import CapView, read_caps
from dynadp.report.explore.changes import changes
from dynadp.report.explore.decision import NARROW, WIDE, Decision
from dynadp.report.explore.run_text import privacy_section, with_total
from dynadp.report.explore.setting import digits
from dynadp.report.explore.watch import SHOWN, Watch
from dynadp.report.honesty import ASSUMED, DECLARED
from dynadp.report.page import STATIC, environment
from dynadp.report.progress import thinned
from dynadp.report.record_view import RunView
from dynadp.research import LEAST, MOST, POINTS, Objective
from dynadp.runs import load_run_file

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TICK = 0.4  # seconds between two looks at the folder


def _measure_words(objective: Objective) -> dict[str, Any]:
    """What the page calls 100 (1 - loss), and where its slider begins."""
    better = objective.better[0].upper() + objective.better[1:]
    needed = "Right answers needed, in 100" if objective.plain else f"{better}, needed"
    return {"better": better, "needed": needed, "fewest": 50 if objective.plain else 0}


class Guard:
    """Admits requests of this machine's own page only, and puts the headers on every answer.

    Parameters
    ----------
    app
        What is guarded.
    token, hosts
        The token that every path begins with, and the Host headers that are ours.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: set[str]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)  # a page may allow less, or other things
            await send(message)

        await (self.refusal(Request(scope)) or self.app)(scope, receive, answer)

    def refusal(self, request: Request) -> Response | None:
        """Return the refusal, or None if the request is allowed."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            return PlainTextResponse("this page is served to its own machine only", 421)
        if origin is not None and origin not in {f"http://{known}" for known in self.hosts}:
            return PlainTextResponse("another page may not ask here", 403)
        first = request.url.path.removeprefix("/").partition("/")[0]
        if not secrets.compare_digest(first.encode(), self.token.encode()):
            return PlainTextResponse(
                "the address lacks the token that `dynadp explore` printed", 403
            )
        return None


class Served(Protocol):
    """A page that can be served: its addresses, and what begins and ends with the server.

    Attributes
    ----------
    over
        Set when the server ends, so that streams do.
    """

    over: Event

    @property
    def routes(self) -> list[BaseRoute]:
        """Its addresses."""

    def begin(self) -> None:
        """Start what it needs."""

    def close(self) -> None:
        """Wait for what was started."""


class Explorer:
    """Answers the page's requests and streams what changes.

    Parameters
    ----------
    advice, watch
        What is planned, and the folder that is watched.
    file
        The run file that is planned from; None without one.
    """

    def __init__(self, advice: Advisor, watch: Watch, file: Path | None = None) -> None:
        self.advice, self.watch, self.file = advice, watch, file
        self.over = Event()
        self.threads = [Thread(target=work, daemon=True) for work in (self._sweep, self._follow)]

    def begin(self) -> None:
        """Start to look at the folder, and to sweep."""
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Wait for the threads, a few seconds at most: ending Python while Vega is put together
        would abort the process.
        """
        self.over.set()
        for thread in self.threads:
            thread.join()

    @property
    def routes(self) -> list[BaseRoute]:
        """The page's addresses."""
        return [
            Route("/", self.page),
            Route("/api/start", self.start),
            Route("/api/recommend", self.recommend),
            Route("/api/totals", self.totals),
            Route("/api/around", self.around),
            Route("/run.toml", self.run_file),
            Route("/pictures/{name}.svg", self.picture),
            Route("/events", self.events),
            Route("/vega.js", self.vega),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def _sweep(self) -> None:
        """Make what the page asks for first, then sweep."""
        bundle()
        if not self.over.is_set():
            self.advice.totals(self.advice.setting.epsilon)
            self.advice.sweep(self.over.is_set)

    def _follow(self) -> None:
        """Look at the folder, again and again."""
        while not self.over.is_set():
            self.watch.look()
            self.over.wait(TICK)

    def page(self, request: Request) -> Response:
        """The page, with all that is known: ``?epsilon=`` is the choice, otherwise the plan's."""
        advice = self.advice.now()
        setting, choice = advice.setting, self._choice(request)
        shown = {
            "setting": setting,
            "watch": self.watch,
            "state": {"simulation": False, "problem": "", "key": "", **self.watch.latest.state},
            "holds": SEVERAL,
            "choice": choice,
            "answer": advice.for_total(choice),
            "right": guesses_in_100(choice, setting.delta),
            "swept": self._swept(advice, choice),
            "honesty": advice.honesty(choice),
            "unit": advice.unit,
            "meant": MEANINGS[advice.unit],
            "assumed": ASSUMED,
            "declared": DECLARED,
            "parts": self._parts(advice, choice),
            "text": self._run_text(choice),
            "of_file": self.file is not None,
            "drawn": [q for q in figures.QUANTITIES if figures.flat(self.watch.latest.rows, q)],
            **_measure_words(setting.objective),
        }
        template = environment().get_template("explore.html")
        return HTMLResponse(template.render(least=LEAST, most=MOST, **shown))

    @property
    def _sums(self) -> bool:
        """Whether all nodes stand at one point."""
        return self.advice.planned(self.advice.setting.epsilon).algorithm == "sum"

    def _choice(self, request: Request) -> float:
        """The total that the address asks for; the plan's where it asks for none that can be."""
        with suppress(KeyError, ValueError):
            asked = float(request.query_params["epsilon"])
            if LEAST <= asked <= MOST:
                return digits(asked)
        return digits(self.advice.setting.epsilon)

    def start(self, request: Request) -> Response:
        """The charts, empty, and where the sliders stand."""
        charts = {
            name: figures.spec(figures.convergence((), name, sums=self._sums))
            for name in figures.QUANTITIES
        }
        charts["totals"] = figures.spec(figures.totals((), self.advice.accountings))
        found = self.advice.honesty(self.advice.setting.epsilon)
        if found and found.drawn:
            charts["collusion"] = figures.spec(figures.collusion((), "epsilon", found.members))
        return JSONResponse({"charts": charts, "epsilon": digits(self.advice.setting.epsilon)})

    def picture(self, request: Request) -> Response:
        """A chart as a picture, for readers without JavaScript."""
        choice, name = self._choice(request), request.path_params["name"]
        found, rows = self.advice.honesty(choice), thinned(self.watch.latest.rows)
        chart = None
        if name in figures.QUANTITIES and figures.flat(rows, name):
            chart = figures.convergence(rows, name, sums=self._sums)
        elif name == "totals":
            chart = figures.totals(self.advice.totals(choice))
        elif name == "collusion" and found and found.drawn:
            chart = figures.collusion(found.points, "epsilon", found.members)
        if chart is None:
            return PlainTextResponse("there is no such picture", 404)
        return Response(figures.image(chart, "white"), media_type="image/svg+xml")

    def around(self, request: Request) -> Response:
        """``?epsilon=``: what would change, the caps and the run file, for that choice."""

        def parts(epsilon: float) -> dict[str, str]:
            if not 0 < epsilon <= 100:
                raise DeclarationError(f"epsilon is {epsilon:g}; expected a total in (0, 100]")
            choice = digits(epsilon)
            return {**self._parts(self.advice.now(), choice), "text": self._run_text(choice)}

        return _answer(request, {"epsilon": parts})

    def run_file(self, request: Request) -> Response:
        """The run file with the choice, to be kept."""
        headers = {"Content-Disposition": 'attachment; filename="run.toml"'}
        text = self._run_text(self._choice(request))
        return Response(text, media_type="application/toml", headers=headers)

    def _run_text(self, choice: float) -> str:
        """The run file with the chosen total, or the section that a run file needs."""
        setting, (key, value) = self.advice.setting, self.advice.asks(choice)
        if self.file is not None:
            with suppress(DynadpError, OSError):
                return with_total(self.file.read_text(encoding="utf-8"), key, value)
        chosen = self.advice.planned(choice).mechanism
        return privacy_section(key, value, setting.delta, chosen)

    def _caps(self, choice: float) -> list[CapView]:
        files: Mapping[str, Path] = {}
        with suppress(DynadpError, OSError):
            if self.file is not None:
                file = load_run_file(self.file)
                named = {node.name: node.ledger for node in file.nodes if node.ledger}
                if file.run.seed is None:  # a SIMULATION enters none
                    files = {node: self.file.parent / own for node, own in named.items()}
            elif self.watch.path is not None:
                files = ledger_files(RunView.read(self.watch.path))
        setting = self.advice.setting
        return read_caps(files, self.advice.planned(choice).events, setting.unit, SHOWN)

    def _parts(self, advice: Advisor, choice: float) -> dict[str, str]:
        """The pieces of the page that follow the choice."""
        pieces = environment().get_template("explore_parts.html")
        found = changes(advice.setting, choice, advice.expected)
        caps, known = self._caps(choice), advice.expected(choice)
        shown = {"choice": choice, "changes": found, "caps": caps, "known": known}
        shown |= {"better": advice.setting.objective.better, "shown": SHOWN}
        shown["in_the_open"] = advice.planned(choice).sealing is None
        return {part: pieces.render(part=part, **shown) for part in ("changes", "caps")}

    def recommend(self, request: Request) -> Response:
        """``?epsilon=`` or ``?accuracy=``, right answers in 100: the choice that follows."""
        now = self.advice.now()
        return _answer(request, {"epsilon": now.for_total, "accuracy": now.for_accuracy})

    def totals(self, request: Request) -> Response:
        """``?epsilon=``: the curve over rounds of that choice."""
        return _answer(request, {"epsilon": self.advice.totals})

    def vega(self, request: Request) -> Response:
        """Vega, Vega-Lite and Vega-Embed, as vl-convert ships them."""
        return Response(bundle(), media_type="text/javascript")

    def events(self, request: Request) -> Response:
        """Server-sent events: ``rounds`` with an id each, ``state`` and ``sweep`` whole whenever
        they change.
        """
        last = request.headers.get("last-event-id", "")
        return StreamingResponse(self.stream(last), media_type="text/event-stream")

    async def stream(self, last: str) -> AsyncIterator[str]:
        """Everything after the event with this id (KEY-ROUND); another run's id, or none, begins at
        round 1.
        """
        key, _, number = last.partition("-")
        sent = int(number) if number.isdecimal() else 0
        version, progress = -1, None
        yield "retry: 1000\n\n"
        while not self.over.is_set():
            now = self.watch.latest
            if now.key != key:
                key, sent = now.key, 0
                yield _event("anew", {"key": key})
            if now.version != version:
                version = now.version
                yield _event("state", now.state)
            if rows := thinned(now.rows[sent:]):
                sent = rows[-1]["round"]
                yield _event("rounds", rows, f"{key}-{sent}")
            if self.advice.progress != progress:
                progress = self.advice.progress
                yield _event("sweep", self._swept(self.advice.now()))
            await anyio.sleep(TICK)

    def _swept(self, advice: Advisor, choice: float | None = None) -> dict[str, Any]:
        setting, recommended, zones = advice.setting, advice.recommended(), advice.zones()
        choice = digits(setting.epsilon) if choice is None else choice
        pictures, curve = [], advice.curve
        pieces = environment().get_template("explore_parts.html")
        decision = None
        if len(curve) > 1:
            decision = Decision(
                measured=advice.points,
                curve=curve,
                baselines=advice.baselines,
                zones=zones,
                delta=setting.delta,
                better=setting.objective.better,
                planned=digits(setting.epsilon),
                recommended=recommended.get("epsilon"),
                asked_by="run file" if self.file else "this plan",
            )
            pictures = [decision.drawn(width, choice) for width in (WIDE, NARROW)]
        shown = {
            "points": list(zip(advice.points, curve, strict=True)),
            "unit": advice.unit,
            "zones": decision.zone_list() if decision else [],
            "recommended": recommended,
            "done": advice.done,
            "delta": setting.delta,
        }
        return {
            "pictures": pictures,
            "points": curve,
            "unit": advice.unit,
            "of": POINTS,
            "source": advice.source,
            "tried": advice.tried,
            "done": advice.done,
            "problem": advice.problem,
            "recommended": recommended,
            "parts": {
                part: pieces.render(part=part, **shown)
                for part in ("zones", "points", "recommended")
            },
        }


@cache
def bundle() -> str:
    """Vega's JavaScript, as vl-convert ships it: a second or two to put together, so it is kept in
    the user's cache.
    """
    import vl_convert

    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dynadp")
    kept = home / f"vega-{version('vl-convert-python')}.js"
    made = ""
    with suppress(OSError, UnicodeDecodeError):
        made = kept.read_text(encoding="utf-8")
    if not made:
        made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        with suppress(OSError):  # it cannot be kept: the same seconds next time
            home.mkdir(parents=True, exist_ok=True)
            write_whole(kept, made)
    return made


def application(shown: Served, token: str, port: int) -> ASGIApp:
    """A page's application, guarded.

    Parameters
    ----------
    shown
        What is shown.
    token, port
        The token that every path begins with, and the port of this machine.
    """
    hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
    return Guard(Starlette(routes=[Mount(f"/{token}", routes=shown.routes)]), token, hosts)


def _answer(request: Request, ways: Mapping[str, Callable[[float], Any]]) -> Response:
    """Answer with the function of the one number that was given."""
    try:
        (name,) = ways.keys() & request.query_params.keys()
        number = float(request.query_params[name])
    except ValueError:
        known = " or ".join(f"?{name}=NUMBER" for name in ways)
        return JSONResponse({"error": f"give {known}, one of them"}, 400)
    try:
        return JSONResponse(ways[name](number))
    except (DynadpError, ValueError, OverflowError) as error:
        return JSONResponse({"error": str(error)}, 400)


def _event(name: str, data: Any, id: str | None = None) -> str:
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"
