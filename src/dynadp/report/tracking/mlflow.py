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
from dynadp.report.record_view import NotYet, run_folders
from dynadp.report.tracking.selection import KEY, METRICS, TrackedRun

BATCH = 1000  # values that a store takes at once
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
PAUSE = 1.0  # seconds between two looks
LONGEST = 60.0  # seconds between two tries of a store that does not answer


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
        self._key = ""
        self._points: set[tuple[str, int]] = set()
        scheme = _scheme(self.uri)
        if scheme in DATABASES and not (find_spec("sqlalchemy") and find_spec("alembic")):
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
        if not rest:
            return "of the given address"
        return f"{scheme}//{re.split('[?#]', rest.rpartition('@')[2])[0]}"

    def log(self, tracked: TrackedRun) -> None:
        """Log what the store does not have yet; ``entered`` counts the values of metrics."""
        from mlflow.entities import Metric, Param, RunTag

        with self._translated():
            run = self._run(tracked)
            known, marked = run.data.params, run.data.tags
            params = [
                Param(name, text) for name, text in tracked.params.items() if name not in known
            ]
            tags = [
                RunTag(name, text)
                for name, text in tracked.tags.items()
                if marked.get(name) != text
            ]
            if params or tags:
                self._client.log_batch(self.run_id, params=params, tags=tags)
            new = sorted(tracked.points.keys() - self._points, key=lambda point: point[::-1])
            for i in range(0, len(new), BATCH):
                batch, now = new[i : i + BATCH], int(time.time() * 1000)
                metrics = [Metric(name, tracked.points[name, n], now, n) for name, n in batch]
                self._client.log_batch(self.run_id, metrics=metrics)
                self._points.update(batch)
                self.entered += len(batch)
            if tracked.status != run.info.status:
                self._settle(tracked)

    def _run(self, tracked: TrackedRun) -> Any:
        """The store's run of this key, made where it is missing."""
        client = self._client
        if self._key == tracked.key:
            return client.get_run(self.run_id)
        where = f"tags.`{KEY}` = '{tracked.key}'"
        found = client.search_runs([self._experiment_id], where, order_by=["start_time ASC"])
        tags = {KEY: tracked.key}
        run = (
            found[0]
            if found
            else client.create_run(self._experiment_id, tracked.began, tags, tracked.name)
        )
        self.run_id = run.info.run_id
        self._points = {
            (name, point.step)
            for name in METRICS
            if name in run.data.metrics
            for point in client.get_metric_history(self.run_id, name)
        }
        self._key = tracked.key
        return run

    def _settle(self, tracked: TrackedRun) -> None:
        """The model, and then the status: a run that is called finished has its model."""
        for name, text in tracked.models.items():
            self._client.log_text(self.run_id, text, name)
        if tracked.status == "RUNNING":
            self._client.update_run(self.run_id, tracked.status)
        else:
            self._client.set_terminated(self.run_id, tracked.status, tracked.ended)

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
            why = type(error).__name__
            if not ("@" in self.uri or "?" in self.uri):
                why += f": {' '.join(str(error).split())[:300]}"
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
    # read when it is imported, and later
    os.environ.update({"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"})
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
                    if tracked.status != "RUNNING":
                        return result(tracked, store)
                    of = f" of {tracked.planned}" if tracked.planned else ""
                    words, wait = f"round {tracked.rounds}{of}", PAUSE
            except NotYet as error:
                words = str(error)
            except StoreAway as error:
                words, wait = str(error), min(2 * wait, LONGEST)
            if words != before:
                say(words)
                before = words
            # large folders are looked at less often
            pause(min(max(wait, 4 * (time.monotonic() - began)), LONGEST))


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
