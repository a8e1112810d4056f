"""Starts a page: what is shown, its token, and the server."""

import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from dynadp.errors import DeclarationError
from dynadp.report.charts import require
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.app import Explorer, Served, application
from dynadp.report.explore.setting import PublicSetting
from dynadp.report.explore.watch import Watch
from dynadp.report.record_view import MADE_BY, RunView


def explorer(target: str | None, watch: str | None = None, measure: str | None = None) -> Explorer:
    """The page of a run folder, of a run file with the folder that its run will have, or of census
    rows.

    Parameters
    ----------
    target
        A run folder or a run file; None for census rows.
    watch
        The folder of a run file's run; runs/NAME by default.
    measure
        What is optimised; accuracy, or as the run file says, by default.
    """
    folder = Path(watch) if watch else None
    if target is None:
        return Explorer(Advisor(PublicSetting.made().measured_by(measure)), Watch(folder))
    path = Path(target)
    if path.is_dir():
        setting = PublicSetting.of_run(RunView.read(path)).measured_by(measure)
        return Explorer(Advisor(setting), Watch(path))
    if not path.is_file():
        raise DeclarationError(
            f"{path} is neither a run folder nor a run file; {MADE_BY}, or a run.toml"
        )
    setting = PublicSetting.of_file(path).measured_by(measure)
    return Explorer(Advisor(setting), Watch(folder or Path("runs") / setting.name), path)


def token_of(file: str | None) -> str:
    """The token in a file that nobody else can read, made where it is missing; without a file, a
    new one.
    """
    if file is None:
        return secrets.token_urlsafe(24)
    path = Path(file)
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    if path.stat().st_mode & 0o077:
        raise DeclarationError(
            f"{path} can be read by other users; keep the token to yourself: chmod 600 {path}"
        )
    token = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch("[A-Za-z0-9_-]{16,}", token):
        raise DeclarationError(
            f"{path} holds no token: expected at least 16 letters, digits, - or _; remove it to "
            f"get a new one"
        )
    return token


def serve(shown: Served, token: str, port: int, ready: Callable[[str], None]) -> int:
    """Serve the page to this machine until SIGINT or SIGTERM, and return which came.

    Parameters
    ----------
    shown
        A page, such as an :class:`~dynadp.report.explore.app.Explorer`.
    token
        What every address begins with.
    port
        On 127.0.0.1; 0 for any that is free.
    ready
        Called with the address once it answers.
    """
    require()
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise DeclarationError(
            f"port {port} of this machine cannot be had ({error.strerror}); choose another: --port"
        ) from error
    port = listening.getsockname()[1]

    class Server(uvicorn.Server):
        """Ends the streams first, so that Ctrl-C does not wait for them."""

        came = 0

        def handle_exit(self, sig: int, frame: Any) -> None:
            shown.over.set()
            self.force_exit = bool(self.came)  # a second one does not wait
            self.should_exit, self.came = True, sig

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(f"http://127.0.0.1:{port}/{token}/")

    config = uvicorn.Config(
        application(shown, token, port),
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    server = Server(config)
    shown.begin()
    with listening:
        server.run([listening])
    shown.close()
    return server.came
