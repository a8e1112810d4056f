"""``dynadp report`` and ``dynadp explore``: a run as a page to keep, and as a live one."""

import signal
import sys
import webbrowser
from pathlib import Path

import click

from dynadp.cli.options import FILE, FOLDER, option
from dynadp.errors import DeclarationError


@click.command()
@click.argument("run", metavar="RUN", type=click.Path())
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

    click.echo(f"Report: {write_report(run, out or Path(run) / 'report.html')}")


@click.command()
@click.argument("target", metavar="[RUN | run.toml]", required=False, type=click.Path())
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8317,
    help="On 127.0.0.1; 0: any free one.",
)
@option(
    "--watch",
    type=FOLDER,
    help="Run folder to show beside a run file; runs/NAME by default.",
)
@option(
    "--token-file",
    type=FILE,
    help="Keep the address's token in this file, so that an open page goes on when the server is "
    "started again.",
)
@option("--no-browser", is_flag=True, help="Print the address only.")
def explore(
    target: str | None, port: int, watch: str | None, token_file: str | None, no_browser: bool
) -> None:
    """Serve a local page: choose accuracy or epsilon and see the other, and follow a run as it goes
    on. Ctrl-C ends it.

    Accuracy is tried on census rows that are made here, or on rows that the run file declares
    public; private rows are not touched. The page is served to this machine alone.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise DeclarationError(
            f"the page needs {error.name}: pip install 'dynadp[explore]'"
        ) from error
    from dynadp.report import explorer, serve, token_of

    def ready(address: str) -> None:
        click.echo(address)
        click.echo("Ctrl-C ends it.", err=True)
        if not no_browser:
            webbrowser.open(address)

    came = serve(explorer(target, watch), token_of(token_file), port, ready)
    click.echo("Stopped.", err=True)
    if came == signal.SIGTERM:
        sys.exit(128 + came)
