"""Logs a run folder to MLflow, once or for as long as the run goes on.

Each look compares the folder with the store and logs the difference. So looking twice, or going on
after either side was interrupted, leaves no gap and no value twice.

Stores: a folder (``mlruns``) or an MLflow server (``http://...``); databases (``sqlite:///...``)
need all of MLflow.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynadp.errors import DeclarationError, DynadpError, RecordError
from dynadp.report.record_view import run_folders
from dynadp.report.tracking.selection import KEY, METRICS, NotYet, TrackedRun

BATCH = 1000  # values that a store takes at once
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
PAUSE, LONGEST = (
    1.0,
    60.0,
)  # seconds between two looks; between two tries of a store that does not answer


class StoreRefused(RecordError):
    """An MLflow store refuses what is logged."""


class StoreAway(StoreRefused, ConnectionError):
    """An MLflow store cannot be reached now; it may be later."""


class Store:
    """An MLflow store, and in it the run that is logged.

    Parameters
    ----------
    uri
        A folder, or the address of a server or database; ``./mlruns`` by default.
    experiment
        The experiment's name; made where it is missing.
    """

    def __init__(self, uri: str | None = None, experiment: str = "dynadp") -> None:
        self.uri, self.experiment = uri or "mlruns", experiment
        self.run_id, self.entered = "", 0
        self._key, self._status = "", ""
        self._params: set[str] = set()
        self._tags: dict[str, str] = {}
        self._points: set[tuple[str, int]] = set()
        if (scheme := _scheme(self.uri)) in DATABASES and not (
            find_spec("sqlalchemy") and find_spec("alembic")
        ):
            raise DeclarationError(
                f"{scheme}: databases need all of MLflow: pip install mlflow; or give a folder or "
                f"a server"
            )
        local = not scheme and self.uri != "databricks"
        if local and "@" in self.uri:
            raise DeclarationError(
                "the store looks like an address with a password, but has no scheme; expected "
                "http:// or https://"
            )
        with self._translated():
            self._client = _client(Path(self.uri).absolute().as_uri() if local else self.uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment_id = (
                found.experiment_id if found else self._client.create_experiment(experiment)
            )
        if found and found.lifecycle_stage != "active":
            raise DeclarationError(
                f"the experiment {experiment!r} was deleted in {self}; restore it there, or name "
                f"another"
            )

    def __str__(self) -> str:
        """The address without user, password and query."""
        if not _scheme(self.uri):
            return self.uri
        scheme, _, rest = self.uri.partition("//")
        return (
            f"{scheme}//{rest.rpartition('@')[2].partition('?')[0].partition('#')[0]}"
            if rest
            else "of the given address"
        )

    def log(self, tracked: TrackedRun) -> None:
        """Log what the store does not have yet; ``entered`` counts the values of metrics."""
        with self._translated():
            if self._key != tracked.key:
                self._open(tracked)
            self._describe(tracked)
            new = sorted(
                (tracked.points.keys() - self._points), key=lambda point: (point[1], point[0])
            )
            for i in range(0, len(new), BATCH):
                self._enter(tracked, new[i : i + BATCH])
            self._settle(tracked)

    def _open(self, tracked: TrackedRun) -> None:
        """Find the run by its key, and what it has; or begin it."""
        found = self._client.search_runs(
            [self._experiment_id], f"tags.`{KEY}` = '{tracked.key}'", order_by=["start_time ASC"]
        )
        if found:
            run = found[0]
        else:
            begun = self._client.create_run(
                self._experiment_id, tracked.began, {KEY: tracked.key}, tracked.name
            )
            run = self._client.get_run(begun.info.run_id)
        history = [
            point
            for name in METRICS
            if name in run.data.metrics
            for point in self._history(run.info.run_id, name)
        ]
        self._params, self._tags, self._points = (
            set(run.data.params),
            dict(run.data.tags),
            set(history),
        )
        self._status, self.run_id, self._key = run.info.status, run.info.run_id, tracked.key

    def _history(self, run_id: str, name: str) -> list[tuple[str, int]]:
        return [(name, point.step) for point in self._client.get_metric_history(run_id, name)]

    def _describe(self, tracked: TrackedRun) -> None:
        from mlflow.entities import Param, RunTag

        params = [
            Param(name, value) for name, value in tracked.params.items() if name not in self._params
        ]
        tags = [
            RunTag(name, value)
            for name, value in tracked.tags.items()
            if self._tags.get(name) != value
        ]
        if params or tags:
            self._client.log_batch(self.run_id, params=params, tags=tags)
            self._params |= tracked.params.keys()
            self._tags |= tracked.tags

    def _enter(self, tracked: TrackedRun, points: list[tuple[str, int]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self.run_id,
            metrics=[Metric(name, tracked.points[name, n], now, n) for name, n in points],
        )
        self._points |= set(points)
        self.entered += len(points)

    def _settle(self, tracked: TrackedRun) -> None:
        """The model, and then the status: a run that is called finished has its model."""
        if tracked.status == self._status:
            return
        for name, text in tracked.models.items():
            self._client.log_text(self.run_id, text, name)
        if tracked.status == "RUNNING":
            self._client.update_run(self.run_id, tracked.status)
        else:
            self._client.set_terminated(self.run_id, tracked.status, tracked.ended)
        self._status = tracked.status

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn whatever MLflow raises into one sentence; the next call reads the store anew."""
        try:
            yield
        except DynadpError:
            raise
        except Exception as error:
            # a foreign library's: message and traceback may show the address with its password
            self._key = ""
            secret = "@" in self.uri or "?" in self.uri
            why = type(error).__name__ + (
                "" if secret else f": {' '.join(str(error).split())[:300]}"
            )
            code = error.get_http_status_code() if hasattr(error, "get_http_status_code") else 500
            if code in (400, 401, 403):
                raise StoreRefused(f"MLflow's store {self} refused: {why}") from None
            raise StoreAway(
                f"MLflow's store {self} cannot be reached or does not answer: {why}; try again "
                f"later"
            ) from None


def _scheme(uri: str) -> str:
    """``sqlite`` of ``sqlite:///...``, ``postgresql`` of ``postgresql+psycopg://...``; empty for a
    folder.
    """
    found = re.match(r"([a-z][a-z0-9.-]+)(\+\w+)?:", uri, re.IGNORECASE)
    return found[1].lower() if found else ""


def _client(uri: str) -> Any:
    """MLflow's client, without MLflow's usage statistics: a silo talks to nobody but the store."""
    os.environ.update(
        {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    )  # read when it is imported, and later
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    try:
        from mlflow import MlflowClient
    except ModuleNotFoundError as error:
        raise DeclarationError(
            f"logging to MLflow needs {error.name}: pip install 'dynadp[mlflow]'"
        ) from error
    return MlflowClient(uri)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse a second process that would log the same folder at the same time, and every value
    twice.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RecordError(
                f"another process logs {folder} to MLflow; wait for it, or end it"
            ) from error
        except (ImportError, OSError):  # no such locks on this system
            pass
        yield
    finally:
        os.close(handle)


def track(path: str | Path, uri: str | None = None, experiment: str = "dynadp") -> dict[str, Any]:
    """Log what a run folder holds by now.

    Parameters
    ----------
    path
        The run folder, or the folder of all nodes of a network.
    uri, experiment
        As in :class:`Store`.
    """
    tracked = TrackedRun.read(path)
    with alone(Path(path)):
        store = Store(uri, experiment)
        store.log(tracked)
    return result(tracked, store)


def follow(
    path: str | Path,
    uri: str | None = None,
    experiment: str = "dynadp",
    *,
    say: Callable[[str], None] = lambda words: None,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Log a run folder until the run is over; waits for one that has not begun, and for a store
    that is away.

    Parameters
    ----------
    path, uri, experiment
        As in :func:`track`.
    say
        Called with progress, in words.
    pause
        Called with the seconds to wait between two looks.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        run_folders(path)  # says why not
    store, before, wait = Store(uri, experiment), "", PAUSE
    with ExitStack() as held:
        locked = False
        while True:
            began, words = time.monotonic(), f"{path} is not there yet"
            try:
                if path.exists():
                    if not locked:
                        held.enter_context(alone(path))
                        locked = True
                    tracked = TrackedRun.read(path)
                    store.log(tracked)
                    words, wait = (
                        f"round {tracked.rounds}"
                        + (f" of {tracked.planned}" if tracked.planned else ""),
                        PAUSE,
                    )
                    if tracked.status != "RUNNING":
                        return result(tracked, store)
            except NotYet as error:
                words = str(error)
            except StoreAway as error:
                words, wait = str(error), min(2 * wait, LONGEST)
            if words != before:
                say(words)
                before = words
            pause(
                min(max(wait, 4 * (time.monotonic() - began)), LONGEST)
            )  # large folders are looked at less often


def result(tracked: TrackedRun, store: Store) -> dict[str, Any]:
    """What was logged where, as the command line prints it."""
    return {
        "version": 1,
        "run": tracked.name,
        "mlflow_run": store.run_id,
        "experiment": store.experiment,
        "uri": str(store),
        "status": tracked.status,
        "rounds": tracked.rounds,
        "values": len(tracked.points),
        "new_values": store.entered,
        "simulation": tracked.simulation,
        "protected": tracked.protected,
    }
