"""How a node or a relay is, over HTTP on this machine alone: ``/healthz`` and Prometheus'
``/metrics``.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from socket import AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from dynadp.engines import RelayState
from dynadp.errors import ConfigError
from dynadp.runs.fields import is_loopback
from dynadp.runs.status_writer import StatusWriter

_WELL = ("starting", "agreeing", "running", "finished", "parted")
Begin = Callable[[str, list[tuple[str, str]]], Any]


class Health(Protocol):
    """What is asked how it is."""

    def look(self) -> tuple[bool, dict[str, Any]]:
        """Return whether it is well, and more about it."""

    def collect(self) -> Iterator[Any]:
        """Yield its numbers for Prometheus, one family after the other."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking for the address's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds that a client may keep a thread

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a probe asks every few seconds."""


@contextmanager
def serving_health(where: str | None, health: Health) -> Iterator[None]:
    """Answer ``/healthz`` and ``/metrics`` on a loopback address meanwhile; nothing where none is
    given.
    """
    if where is None:
        yield
        return
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    kind = _Server6 if ":" in host else _Server
    try:
        server = make_server(host, int(port), application(health), kind, _Handler)
    except OSError as error:
        raise ConfigError(
            f"health = {where!r}: cannot listen there ({error.strerror}); choose another port, or "
            "end what listens on it"
        ) from error
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def application(health: Health) -> Callable[[dict[str, Any], Begin], Iterable[bytes]]:
    """Return the WSGI application."""
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    class Process(ProcessCollector):
        """Memory, CPU and file descriptors, where systemd's ProcSubset=pid hides /proc/stat too."""

        def _boot_time(self) -> float:
            return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    registry = CollectorRegistry()
    Process(registry=registry)
    registry.register(health)
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], begin: Begin) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "localhost").lower()
        if not (is_loopback(host) or is_loopback(host.rpartition(":")[0])):  # rebound names
            return _text(begin, "403 Forbidden", "ask by a loopback address\n")
        if environ["PATH_INFO"] == "/metrics":
            found: Iterable[bytes] = metrics(environ, begin)
            return found
        if environ["PATH_INFO"] != "/healthz":
            return _text(begin, "404 Not Found", "there are /healthz and /metrics\n")
        well, more = health.look()
        code = "200 OK" if well else "503 Service Unavailable"
        words = json.dumps({"healthy": well, **more}, indent=1) + "\n"
        return _text(begin, code, words, "application/json")

    return answer


def _text(begin: Begin, code: str, words: str, kind: str = "text/plain") -> list[bytes]:
    begin(code, [("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-store")])
    return [words.encode()]


class NodeHealth:
    """How a node is: what is in status.json, and nothing of rows."""

    def __init__(self, status: StatusWriter) -> None:
        self.status = status

    def look(self) -> tuple[bool, dict[str, Any]]:
        """Return whether it goes on and its status is written, and that status."""
        fresh = self.status.fresh
        well = self.status.state in _WELL and fresh
        return well, {"status_is_written": fresh, **self.status.to_json()}

    def collect(self) -> Iterator[Any]:
        """Yield one family after the other."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
            StateSetMetricFamily,
        )

        state = self.status.to_json()
        names = ("run", "node", "config", "software")
        yield InfoMetricFamily(
            "dynadp_node",
            "Which node of which run this is.",
            {name: str(state[name]) for name in names},
        )
        states = {word: state["state"] == word for word in (*_WELL, "stopped")}
        states["failed"] = state["state"].startswith("failed")
        yield StateSetMetricFamily("dynadp_state", "What the node does.", states)
        numbers = {
            "dynadp_round": ("The last round that is over.", state["round"]),
            "dynadp_rounds": ("Rounds of the run.", state["rounds"]),
            "dynadp_waiting": (
                "1 while it waits for a neighbour, the relay or its ledger.",
                int(bool(state["waiting"])),
            ),
            "dynadp_status_is_written": ("1 while status.json is new.", int(self.status.fresh)),
            "dynadp_certificate_end_timestamp_seconds": (
                "When the certificate ends.",
                datetime.fromisoformat(state["certificate_ends"]).timestamp(),
            ),
        }
        if state["epsilon"] is not None:
            words = "What the whole run costs at its delta."
            numbers["dynadp_epsilon"] = (words, state["epsilon"])
        if state["round_at"] is not None:
            at = datetime.fromisoformat(state["round_at"]).timestamp()
            numbers["dynadp_round_end_timestamp_seconds"] = ("When that round ended.", at)
        for name, (words, number) in numbers.items():
            yield GaugeMetricFamily(name, words, number)
        up = GaugeMetricFamily(
            "dynadp_neighbour_up", "1 for a neighbour that is there.", labels=["neighbour"]
        )
        for neighbour, how in state["neighbours"].items():
            up.add_metric([neighbour], float(how == "up"))
        yield up
        refused = CounterMetricFamily("dynadp_refused_letters", "Letters that were refused.")
        refused.add_metric([], sum(state["rejected"].values()))
        yield refused


class RelayHealth:
    """How a relay is: whether it listens, and who has a link."""

    def __init__(self, state: RelayState, certificate_ends: datetime) -> None:
        self.state, self.certificate_ends = state, certificate_ends

    def look(self) -> tuple[bool, dict[str, Any]]:
        """Return whether it listens, and the links."""
        links = dict(self.state.links)
        ends = self.certificate_ends.isoformat()
        return self.state.listening, {"links": links, "certificate_ends": ends}

    def collect(self) -> Iterator[Any]:
        """Yield one family after the other."""
        from prometheus_client.core import GaugeMetricFamily

        listening = int(self.state.listening)
        yield GaugeMetricFamily("dynadp_relay_listening", "1 while it listens.", listening)
        links = GaugeMetricFamily("dynadp_relay_links", "Links of a member.", labels=["member"])
        for member, count in dict(self.state.links).items():
            links.add_metric([member], count)
        yield links
        yield GaugeMetricFamily(
            "dynadp_certificate_end_timestamp_seconds",
            "When the certificate ends.",
            self.certificate_ends.timestamp(),
        )
