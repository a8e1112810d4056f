"""Letters over Ray: one trusted cluster, for more rows or nodes than one machine holds.

The driver starts the actors (:mod:`dynadp.engines.ray.actor`) and listens to them, but no letter
passes through it. Rows, ledgers and run folder are on storage that all hosts share.

Whoever reaches a Ray cluster can run any code there and read any file. It is for hosts that trust
each other, with ``RAY_AUTH_MODE=token`` and ``RAY_USE_TLS=1``, and never joins organisations: they
run :mod:`dynadp.engines.zenoh.links`.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from logging import ERROR, getLogger
from secrets import token_hex
from time import monotonic
from typing import Any, Self

from dynadp.consensus import RoundLine
from dynadp.engines.node import NodeResult
from dynadp.engines.ray.actor import NAMESPACE, SILENT, ActorUpdate, NodeActor
from dynadp.engines.ray.spec import ActorSpec
from dynadp.errors import ConfigError, DynadpError

_LOG = getLogger("dynadp.node")
# bytes of Ray's object store, where Ray is started here: letters are small and do not use it
_STORE = 100 * 2**20
_ANSWER = 5.0  # seconds for a cluster to answer
_THREADS = 8  # of an actor, for calls: one is the driver's, those that bring letters are short
# of a core, as Ray counts: with none it does not spread actors, with more one host could not take
# over all
_SHARE = 0.01
_CROWD = 4  # actors for each core, at most; further nodes share


class ActorPool:
    """All actors of a run, as the driver sees them; a context manager, and they end with it.

    Parameters
    ----------
    run
        The run's name.
    orders
        One for each node.
    per_actor
        How many nodes share an actor; by default one each, and more where there would be over four
        actors for each core.
    """

    def __init__(self, run: str, orders: Sequence[ActorSpec], per_actor: int | None = None) -> None:
        import ray

        self._ray, self.orders = ray, {order.part.me: order for order in orders}
        cores = max(int(ray.cluster_resources().get("CPU", 1)), 1)  # type: ignore[no-untyped-call]
        size = per_actor or -(-len(orders) // (_CROWD * cores))
        attempt = f"{run} {token_hex(4)}"  # actors of an attempt that was killed may linger
        self.homes = {me: f"{attempt} {i // size}" for i, me in enumerate(self.orders)}
        self.actors: dict[str, Any] = {}

    def __enter__(self) -> Self:
        remote, release = self._ray.remote(NodeActor), version("dynadp")
        self._kept = self._ray.put((self.orders, self.homes))
        reference = self._ray.cloudpickle.dumps(self._kept)  # type: ignore[no-untyped-call]
        for name in dict.fromkeys(self.homes.values()):
            made = remote.options(
                name=name,
                namespace=NAMESPACE,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=_THREADS,
                num_cpus=_SHARE,
                scheduling_strategy="SPREAD",
                enable_task_events=False,
            )
            nodes = [me for me, home in self.homes.items() if home == name]
            self.actors[name] = made.remote(name, nodes, reference, release)
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self.actors.values():
            self._ray.kill(actor)

    def check(self) -> None:
        """Have all rows read once, where the actors are; the first mistake is raised."""
        for failure in self._answers([actor.check.remote() for actor in self.actors.values()]):
            if failure is not None:
                raise failure

    def run(self, note: Callable[[RoundLine], None]) -> dict[str, NodeResult]:
        """Drive all nodes to their end.

        Parameters
        ----------
        note
            Called once for each node and round; rounds of a node come in order.
        """
        outcomes: dict[str, NodeResult] = {}
        last = dict.fromkeys(self.orders, 0)
        waiting = {actor.update.remote("", 0): (actor, "", 0) for actor in self.actors.values()}
        heard = monotonic()
        while waiting:
            done, _ = self._ray.wait(list(waiting), timeout=SILENT)
            if monotonic() - heard > SILENT:
                heard = monotonic()
                behind = [node for node, n in last.items() if n == min(last.values())]
                _LOG.warning(
                    "nothing new for %g seconds; behind: %s. See `ray status`",
                    SILENT,
                    ", ".join(behind),
                )
            for ref in done:
                actor, incarnation, have = waiting.pop(ref)
                update: ActorUpdate = self._answers([ref])[0]
                if update.failure is not None:
                    raise update.failure
                for line in update.rounds:
                    # an actor that was started again reports all of them again
                    if line.round > last[line.node]:
                        last[line.node], heard = line.round, monotonic()
                        note(line)
                if update.outcomes is not None:
                    outcomes |= update.outcomes
                    continue
                have = len(update.rounds) + (have if update.incarnation == incarnation else 0)
                again = actor.update.remote(update.incarnation, have)
                waiting[again] = actor, update.incarnation, have
        return outcomes

    def _answers(self, refs: list[Any]) -> list[Any]:
        try:
            return self._ray.get(refs)
        except self._ray.exceptions.RayActorError as error:
            raise ConfigError(
                "an actor cannot be started on the cluster; every host needs the same Python, ray "
                f"and dynadp, and the files at the same paths. Ray says: {error}"
            ) from None


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """A connection to a Ray cluster: the one at the address, or one of this machine alone, made for
    the purpose.

    Parameters
    ----------
    address
        ``HOST:PORT`` of the cluster's head, or ``auto`` for the one that this host belongs to. A
        connection that is there already is used as it is.
    """
    if address is None and "ray" not in sys.modules:  # Ray reads its settings when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            # of this run alone: Ray listens on all interfaces
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))
    # nothing about a run goes to anybody else
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": ERROR}
    if address is None:
        settings: dict[str, Any] = {"worker_niceness": 0}  # actors are the work, not its background
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=_STORE,
            _system_config=settings,
            **quiet,
        )
    else:
        _require_reachable(address)
        if os.environ.get("RAY_AUTH_MODE") != "token":
            _LOG.warning(
                "the cluster takes orders from whoever reaches it: start it, and this command, "
                "with RAY_AUTH_MODE=token (and RAY_USE_TLS=1 where others share the wire)"
            )
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
            raise ConfigError(f"cannot join the Ray cluster at {address!r}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def map_on_cluster(
    work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[Any]:
    """``[work(**shared, **task) for task in tasks]``, each a task of the cluster; results in their
    order.

    Parameters
    ----------
    work
        A pure function: a task whose host is lost is done again.
    tasks
        What differs from task to task.
    shared
        What does not: sent to each host once.
    """
    import ray

    kept = {name: ray.put(value) for name, value in shared.items()}
    remote = ray.remote(work).options(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")
    try:
        return ray.get([remote.remote(**kept, **task) for task in tasks])
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, DynadpError) else error from None


def _require_reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself takes minutes to give up."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        raise ConfigError(
            f"--address is {address!r}; expected HOST:PORT of the cluster's head, or auto on one "
            "of its hosts"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head "
            "--port PORT`, or leave out --address for one of this machine alone"
        ) from None
