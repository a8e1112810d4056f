"""``dynadp report``, ``start``, ``explore`` and ``track``: a run as a page, as a live page, in
MLflow.
"""

import logging
import signal
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from dynadp.cli.codes import FAILED, INTERRUPTED
from dynadp.cli.options import FILE, FOLDER, MEASURE, option
from dynadp.cli.output import Answer, note, prints_answer, say

_SLICE = 0.5  # seconds after which a pause looks whether an interrupt was lost
_RUN = click.argument("run", metavar="RUN", type=click.Path())
_PORT = option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8317,
    help="On 127.0.0.1; 0: any free one.",
)
_TOKEN_FILE = option(
    "--token-file",
    type=FILE,
    help="Keep the address's token in this file, so that an open page goes on when the server is "
    "started again.",
)
_NO_BROWSER = option("--no-browser", is_flag=True, help="Print the address only.")


@click.command()
@_RUN
@option(
    "-o",
    "--out",
    type=FILE,
    help="File to write; report.html in the run folder by default.",
)
def report(run: str, out: str | None) -> None:
    """Write one run as one file to keep, read offline, print and sign: guarantee, losses, caps,
    convergence, network, configuration.

    RUN is the folder of `dynadp train`, of one of a demo's runs, of a node, or of `dynadp launch`.
    """
    from dynadp.report import write_report

    say(f"Report: {write_report(run, out or Path(run) / 'report.html')}")


@click.command()
@_RUN
@option(
    "-o",
    "--out",
    type=FILE,
    help="File of JSON to write; certificate.json in the run folder by default. The PDF lies "
    "beside it.",
)
@option(
    "--identity",
    type=FOLDER,
    help="A silo's folder of keys, which signs; without it nobody does, and the page says so.",
)
def certify(run: str, out: str | None, identity: str | None) -> None:
    """Write what a run promises, to whom and on what that rests, on one page of PDF, and as JSON
    that a silo may sign.

    RUN is the folder of `dynadp train`, of one of a demo's runs, of a node, or of `dynadp launch`.
    `dynadp verify` checks the JSON.
    """
    from dynadp.report import write_certificate

    made, page = write_certificate(run, out or Path(run) / "certificate.json", identity)
    say(f"Certificate: {made}\nPage: {page}")
    if identity is None:
        note("Nobody signed it: give --identity FOLDER, a silo's keys.")


@click.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=click.Path())
@option("--html", type=FILE, help="Also write a page, a file to keep and read offline.")
@prints_answer
def compare(runs: tuple[str, ...], html: str | None) -> Answer:
    """Put runs beside each other: settings that differ, what each cost, and how good its model is
    on public rows.

    Each RUN is the folder of `dynadp train`, of one of a demo's runs, of a node, or of `dynadp
    launch`.
    """
    from dynadp.report import compare as compared
    from dynadp.report import write_comparison

    found = compared(runs)
    if html is None:
        return Answer(found.to_json(), found.lines())
    page = str(write_comparison(found, html))
    return Answer({**found.to_json(), "page": page}, [*found.lines(), f"Page: {page}"])


@click.command()
@click.argument("target", metavar="[RUN | run.toml]", required=False, type=click.Path())
@_PORT
@option(
    "--watch",
    type=FOLDER,
    help="Run folder to show beside a run file; runs/NAME by default.",
)
@_TOKEN_FILE
@_NO_BROWSER
@MEASURE
@option("--made", is_flag=True, help="Without a run file: plan for census rows that are made here.")
def explore(
    target: str | None,
    port: int,
    watch: str | None,
    token_file: str | None,
    no_browser: bool,
    measure: str | None,
    made: bool,
) -> None:
    """Serve a local page: choose accuracy or epsilon and see the other, and follow a run as it goes
    on. Without a run file or a run it asks for one, as `dynadp start` does. Ctrl-C ends it.

    Accuracy is tried on census rows that are made here, or on rows that the run file declares
    public; private rows are not touched. The page is served to this machine alone.
    """
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401

    from dynadp.report import Wizard, explorer

    if made and target is not None:
        raise click.UsageError("--made is instead of a run file or a run; leave one of them out")
    asked = not made and (target, watch, measure) == (None, None, None)
    shown = Wizard("study") if asked else explorer(target, watch, measure)
    _serve(shown, port, token_file, no_browser)


@click.command()
@click.argument("folder", default="study", type=FOLDER)
@_PORT
@_TOKEN_FILE
@_NO_BROWSER
def start(folder: str, port: int, token_file: str | None, no_browser: bool) -> None:
    """Serve a local page that asks what a run needs, from the headers of CSV files to a run file in
    FOLDER, a check, a run and a report. Ctrl-C ends it.

    It asks what `dynadp init` asks. Of files of rows it reads the first line alone, until you start
    a command that reads more; it shows every file and every command. The page is served to this
    machine alone.
    """
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401

    from dynadp.report import Wizard

    _serve(Wizard(folder), port, token_file, no_browser)


@click.command()
@_RUN
@_PORT
@_TOKEN_FILE
@_NO_BROWSER
def replay(run: str, port: int, token_file: str | None, no_browser: bool) -> None:
    """Serve a local page that plays a run round by round, finished or as it goes on, and shows what
    a neighbour sees with its budget. Ctrl-C ends it.

    RUN is the folder of `dynadp train`, of one of a demo's runs, of a node, or of `dynadp launch`.
    Only what was declared or released is read. The page is served to this machine alone.
    """
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401

    from dynadp.report import Replay

    _serve(Replay(run), port, token_file, no_browser)


def _serve(shown: Any, port: int, token_file: str | None, no_browser: bool) -> None:
    """Serve a page until Ctrl-C."""
    from dynadp.report import serve, token_of

    def ready(address: str) -> None:
        click.echo(address)
        note("Ctrl-C ends it.")
        if not no_browser:
            webbrowser.open(address)

    came = serve(shown, token_of(token_file), port, ready)
    note("Stopped.")
    if came == signal.SIGTERM:
        sys.exit(128 + came)


@click.command()
@_RUN
@option(
    "--uri",
    envvar="MLFLOW_TRACKING_URI",
    help="MLflow's store: a folder or a server; ./mlruns by default.",
)
@option(
    "--experiment",
    envvar="MLFLOW_EXPERIMENT_NAME",
    default="dynadp",
    help="Made if missing.",
)
@option(
    "--follow",
    "following",
    is_flag=True,
    help="Go on until the run is over; waits for one that has not begun.",
)
@prints_answer
def track(run: str, uri: str | None, experiment: str, following: bool) -> Answer:
    """Log a run to MLflow: parameters, residuals and losses by round, the model. Never done by
    itself.

    RUN is the folder of `dynadp train`, of one of a demo's runs, of a node, or of `dynadp launch`.
    Only what was declared or made of released vectors is logged; private rows and ledgers are not
    touched. One run is always the same run of MLflow: repeat the command, also after an
    interruption, and what is missing is added.

    Put a server's credentials into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Databases
    (sqlite:///...) need all of MLflow: pip install mlflow. MLflow's own pages show a folder with
    MLFLOW_ALLOW_FILE_STORE=true mlflow ui.
    """
    from dynadp.report.tracking import mlflow as tracking

    # a server that is away is reported once, by us
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        if following:
            with interruptible() as pause:
                result = tracking.follow(run, uri, experiment, say=note, pause=pause)
        else:
            result = tracking.track(run, uri, experiment)
    except KeyboardInterrupt:
        click.echo("dynadp: interrupted; the same command goes on where it was", err=True)
        sys.exit(INTERRUPTED)
    word = " SIMULATION, protects nobody." if result["simulation"] else " Nothing is protected."
    lines = [
        f"{result['run']}: {result['rounds']} rounds, {result['new_values']} new values of "
        f"{result['values']}, {result['status'].lower()}.{'' if result['protected'] else word}",
        f"MLflow run {result['mlflow_run']}, experiment {result['experiment']!r}, store "
        f"{result['uri']}",
    ]
    if following and result["status"] == "FAILED":
        failure = (
            "dynadp: the run failed; `dynadp status` says where. Start it again, and then this "
            "command"
        )
        return Answer(result, lines, FAILED, failure)
    return Answer(result, lines)


@contextmanager
def interruptible() -> Iterator[Callable[[float], None]]:
    """Yield a pause that Ctrl-C always ends.

    Python drops a KeyboardInterrupt that is raised in a finaliser or a callback of C. So the signal
    is remembered, and raised again in the next pause. By a flag: a handler cannot take the lock of
    an Event from the thread that it interrupts.
    """
    came = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def pause(seconds: float) -> None:
        end = time.monotonic() + seconds
        while not came and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE))
        if came:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield pause
    finally:
        signal.signal(signal.SIGINT, before)
