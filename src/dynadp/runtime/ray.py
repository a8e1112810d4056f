"""Letters over Ray: one trusted cluster, for more rows or nodes than one machine holds.

An actor holds a node, or a stack of them. Actors push their letters to those that need them, and ask for what they miss; the
driver starts them and listens, but no letter passes through it. What must outlive a process is in the nodes' ledgers, on
storage that all hosts share: an actor that is started again, on whatever host, replays its part from its ledger and from what
its neighbours hold, and never draws for a round that is entered.

*Two incarnations at once.* A host that is cut off may be given up for lost while its actors still work. Whoever enters a round
first has drawn for it; the other one is refused by the ledger, throws its own draw away unsent, and sends what is entered.

Whoever reaches a Ray cluster can run any code there and read any file. It is for hosts that trust each other, with
``RAY_AUTH_MODE=token`` and ``RAY_USE_TLS=1``, and never joins organisations: they run :mod:`dynadp.runtime.zenoh`.
"""

import hashlib
import os
import pickle
import resource
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from logging import ERROR
from pathlib import Path
from secrets import token_hex
from threading import Condition, Event, Thread
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from dynadp.errors import BudgetRefused, CellError, ConfigError, DataError, DynadpError, RecordError
from dynadp.noise import Draws
from dynadp.privacy.events import Event as Spent
from dynadp.privacy.ledger import Ledger
from dynadp.runtime.books import Books, MessageFolder, Messages, Outbox
from dynadp.runtime.letters import Kind, run_id
from dynadp.runtime.post import Post, Rules, for_all
from dynadp.runtime.protocol import Outcome, Part, Want, take_part
from dynadp.runtime.releases import nowhere
from dynadp.runtime.simulation import Round
from dynadp.runtime.telling import LOG
from dynadp.sources import source, validate

NAMESPACE = "dynadp"
_STORE = 100 * 2**20  # bytes of Ray's object store, where Ray is started here: letters are small and do not use it
_BATCH = 64  # letters that an actor hands over at once: those of a neighbour that replays
_DWELL, _AGAIN, _RARELY = 0.1, 1.0, 10.0  # seconds between two tellings to the driver; before asking, first and later
_ANSWER, _SILENT = 5.0, 60.0  # seconds for a cluster to answer, and before the driver says for whom it waits
_THREADS = 8  # of an actor, for calls: one is the driver's, those that bring letters are short
_SHARE = 0.01  # of a core, as Ray counts: with none it does not spread actors, with more one host could not take over all
_CROWD = 4  # actors for each core, at most; further nodes share


class Checksum:
    """SHA-512 in the place of a signature: finds damage, proves nothing.

    A key would keep nobody out: who reaches the cluster can run any code there, and read the key.
    """

    def sign(self, data: bytes, /) -> bytes:
        """64 bytes, as a signature has."""
        return hashlib.sha512(data).digest()

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise unless they fit."""
        if signature != self.sign(data):
            raise ValueError("the checksum is another one")


class Fenced(Books):
    """Ledgers that two incarnations of a node may use at once: the second to enter a round gets what the first entered."""

    def spend(self, n: int, events: Sequence[Spent], messages: Messages) -> Messages:
        """Enter round n, or find it entered; send what this returns."""
        try:
            return super().spend(n, events, messages)
        except BudgetRefused:
            sent = self.sent(n)
            if sent is None:
                raise
            return sent

    def close(self, reason: str) -> None:
        """Close the run, or find it closed."""
        try:
            super().close(reason)
        except BudgetRefused:
            if not all(ledger.is_closed(self.run) for ledger in self.ledgers.values()):
                raise


@dataclass(frozen=True)
class Order:
    """What an actor has to know about one of its nodes: paths, and what is public.

    Attributes
    ----------
    part
        What is public about the run, from this node.
    rows, separator, memory
        The file of its rows, where all hosts find it.
    run, config
        The run's name in ledgers, and 32 bytes that stand for all that was decided.
    events
        What the node will spend, reserved already.
    ledger
        Where it enters what it spends; None in a SIMULATION, which keeps its messages in ``messages``.
    messages
        A folder for those.
    dataset, who
        For the ledger.
    draws
        Where noise comes from.
    at
        Called at the points of a round, by name.
    """

    part: Part
    rows: Path
    separator: Any
    memory: int | None
    run: str
    config: bytes = field(repr=False)
    events: tuple[Spent, ...] = field(repr=False)
    ledger: Path | None
    messages: Path
    dataset: str
    who: str
    draws: Draws
    at: Callable[[str], None] = nowhere

    def outbox(self, stack: ExitStack) -> Outbox:
        """Where the node's messages are entered before they leave."""
        me = self.part.me
        if self.ledger is None:
            return MessageFolder(self.messages / quote(me, safe=" "), [me])
        ledger = stack.enter_context(Ledger.open(self.ledger))
        books = Fenced({me: ledger}, self.run, dataset=self.dataset, who=self.who, resume=True)
        books.reserve(self.events)
        return books

    def post(self) -> Post:
        """A post office in memory: own letters come from the ledger again, and others from their authors."""
        part = self.part
        keys = dict.fromkeys(part.topology.nodes, Checksum())
        ids = run_id(self.run), self.config
        rules = Rules(part.me, frozenset(part.neighbours), *ids, keys, part.rounds, part.grids())
        return Post(":memory:", rules, Checksum())


class Handed(NamedTuple):
    """A letter that a node handed over: whose, of which kind and round."""

    via: str
    author: str
    kind: Kind
    round: int


class Told(NamedTuple):
    """What a node's round left: its number, disagreement and change."""

    node: str
    round: int
    disagreement: float
    change: float


class Tidings(NamedTuple):
    """What an actor tells the driver: which incarnation it is, new rounds, and its nodes' outcomes or what went wrong."""

    incarnation: str
    rounds: list[Told]
    outcomes: dict[str, Outcome] | None
    failure: DynadpError | None


class Crew:
    """Some nodes of a run, in an actor: one thread works for all of them, Ray's threads take and hand over letters.

    A letter is pushed to the actors that need it; an actor that was started again, or waits for long, asks for what it misses.

    Parameters
    ----------
    name, nodes
        The actor's name; its nodes.
    kept
        Every node's order, and the name of every node's actor: a reference, pickled, to an object that the driver keeps. What
        a constructor is given beyond some 100 KB Ray loses before the second start.
    release
        The driver's version of dynadp.
    """

    def __init__(self, name: str, nodes: Sequence[str], kept: bytes, release: str) -> None:
        import ray

        whole, homes = ray.get(pickle.loads(kept))
        self._name, self._release, self._incarnation = name, release, token_hex(8)
        self._orders: dict[str, Order] = {node: whole[node] for node in nodes}
        everybody = {j: None for me, order in self._orders.items() for j in (me, *order.part.neighbours)}
        self._near = {
            via: tuple(me for me, order in self._orders.items() if via in order.part.neighbours) for via in everybody
        }  # who lives here and takes letters from a node
        self._readers = {
            me: {homes[j] for j in order.part.neighbours} - {name} for me, order in self._orders.items()
        }  # other actors that need a node's letters
        self._posts: dict[str, Post] = {}
        self._log: list[Handed] = []
        self._rounds: list[Told] = []
        self._outcomes: dict[str, Outcome] = {}
        self._failure: BaseException | None = None
        self._news, self._came = Condition(), 0
        self._ready = Event()
        self._thread: Thread | None = None
        self._actors: dict[str, Any] = {}
        self._calls: dict[str, Any] = {}  # the last push to each actor

    def check(self) -> DynadpError | None:
        """Read all rows once, before anything is spent; what is wrong with them."""
        try:
            self._same_version()
            for me, order in self._orders.items():
                validate(order.part.schema, source(order.rows, separator=order.separator, memory=order.memory), me)
        except (DynadpError, OSError) as error:
            return _tellable(error)
        return None

    def take(self, letters: Sequence[tuple[str, bytes]]) -> None:
        """Letters from other actors, each with the node that hands it over."""
        self._start()
        self._ready.wait()
        try:
            for via, data in letters:
                self._spread(via, data)
        except Exception as error:
            self._fail(error)
        self._tell_news()

    def ask(self, asker: str, n: int) -> None:
        """Push to an actor what it needs of all rounds from n on."""
        self._start()
        self._ready.wait()
        found = [handed for handed in list(self._log) if asker in self._readers[handed.via] and handed.round >= n]
        for i in range(0, len(found), _BATCH):
            batch = [(h.via, self._posts[h.via].get(h.author, h.kind, h.round)) for h in found[i : i + _BATCH]]
            self._push(asker, [(via, data) for via, data in batch if data is not None])

    def tell(self, incarnation: str, have: int) -> Tidings:
        """For the driver: rounds that are new to it, and how it ended.

        Parameters
        ----------
        incarnation, have
            Which incarnation of this actor told last, and how many rounds.
        """
        self._start()
        have = have if incarnation == self._incarnation else 0
        with self._news:
            self._news.wait_for(lambda: self._over or len(self._rounds) > have, _SILENT)
        if not self._over:
            sleep(_DWELL)  # several rounds at once: the driver is not to keep a core busy
        if self._failure is not None:
            return Tidings(self._incarnation, [], None, _tellable(self._failure))
        over = self._over
        return Tidings(self._incarnation, self._rounds[have:], dict(self._outcomes) if over else None, None)

    def whereabouts(self) -> dict[str, Any]:
        """Its process, its host, and its peak memory in bytes."""
        import ray

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"pid": os.getpid(), "host": ray.get_runtime_context().get_node_id(), "peak": peak}

    def letters(self, me: str, author: str) -> dict[int, bytes]:
        """The bodies of an author's messages that one of its nodes holds, by round."""
        self._start()
        self._ready.wait()
        post, rounds = self._posts[me], range(self._orders[me].part.rounds + 1)
        held = [n for n in rounds if not post.missing("message", n, [author])]
        return {n: post.values(author, "message", n).astype("<f8").tobytes() for n in held}

    def leave(self) -> None:
        """The run is over everywhere: wait for what is still on its way."""
        import ray

        calls = list(self._calls.values())
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=_DWELL)

    @property
    def _over(self) -> bool:
        return self._failure is not None or len(self._outcomes) == len(self._orders)

    def _same_version(self) -> None:
        here = version("dynadp")
        if here != self._release:
            raise ConfigError(
                f"host {socket.gethostname()} has dynadp {here}, the driver {self._release}; install the same everywhere"
            )

    def _start(self) -> None:
        """Begin, or go on: with the first call of an incarnation, whoever calls."""
        with self._news:
            if self._thread is None:
                self._thread = Thread(target=self._drive, daemon=True)
                self._thread.start()

    def _tell_news(self) -> None:
        with self._news:
            self._came += 1
            self._news.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._ready.set()
        self._tell_news()

    def _spread(self, via: str, data: bytes) -> None:
        """Give a letter to those here who take letters from the node that hands it over; what is for all goes on."""
        todo = [via]
        while todo:
            via = todo.pop()
            for j in self._near[via]:
                letter = self._posts[j].offer(data, via)
                if letter is not None and for_all(letter.kind, letter.round):
                    self._hand_over(j, data, letter.author, letter.kind, letter.round)
                    todo.append(j)

    def _hand_over(self, via: str, data: bytes, author: str, kind: Kind, n: int, push: bool = True) -> None:
        self._log.append(Handed(via, author, kind, n))
        for other in self._readers[via] if push else ():
            self._push(other, [(via, data)])

    def _push(self, other: str, letters: Sequence[tuple[str, Any]]) -> None:
        if (actor := self._actor(other)) is not None:
            self._calls[other] = actor.take.remote(letters)

    def _actor(self, other: str) -> Any:
        """Another actor; None while there is none, and then it asks once it is there."""
        import ray

        if other not in self._actors:
            with suppress(ValueError):
                self._actors[other] = ray.get_actor(other, NAMESPACE)
        return self._actors.get(other)

    # ------------------------------------------------------------------------------------------------ in its thread

    def _drive(self) -> None:
        try:
            self._same_version()
            with ExitStack() as stack:
                posts = {me: order.post() for me, order in self._orders.items()}
                parts = {me: self._part(order, posts[me], order.outbox(stack)) for me, order in self._orders.items()}
                self._posts = posts
                self._ready.set()
                self._ask(set().union(*self._readers.values()), 0)
                self._work(parts)
        except BaseException as error:
            self._fail(error)

    def _work(self, parts: dict[str, Generator[Want, None, Outcome]]) -> None:
        """All parts in turn, each as far as its letters let it."""
        wants: dict[str, Want] = {}
        pause = _AGAIN
        while parts and self._failure is None:
            came = self._came
            ready = [me for me in parts if me not in wants or not self._posts[me].missing(*wants[me])]
            for me in ready:
                try:
                    wants[me] = next(parts[me])
                except StopIteration as end:
                    self._outcomes[me] = end.value
                    del parts[me]
                    self._tell_news()
            if ready:
                pause = _AGAIN
                continue
            with self._news:
                if self._came == came:
                    self._news.wait(pause)
            if self._came == came:
                self._ask({home for me in parts for home in self._readers[me]}, min(wants[me].round for me in parts))
                pause = min(2 * pause, _RARELY)

    def _ask(self, others: set[str], n: int) -> None:
        for other in others:
            if (actor := self._actor(other)) is not None:
                actor.ask.remote(self._name, n)

    def _part(self, order: Order, post: Post, outbox: Outbox) -> Generator[Want, None, Outcome]:
        me, rows = order.part.me, source(order.rows, separator=order.separator, memory=order.memory)

        def publish(data: bytes, kind: Kind, n: int) -> None:
            heard = not post.missing("message", n + 1, order.part.neighbours)  # a replay: who went on has had this letter
            self._hand_over(me, data, me, kind, n, push=not heard)
            self._spread(me, data)

        def note(entry: Round) -> None:
            self._rounds.append(Told(me, entry.number, float(entry.disagreement[0, 0]), float(entry.change[0, 0])))
            self._tell_news()
            order.at("noted")

        return take_part(order.part, rows, post, publish, outbox, order.draws, note=note, at=order.at)


class Company:
    """All actors of a run, as the driver sees them; a context manager, and they end with it.

    Parameters
    ----------
    run
        The run's name.
    orders
        One for each node.
    per_actor
        How many nodes share an actor; by default one each, and more where there would be over four actors for each core.
    """

    def __init__(self, run: str, orders: Sequence[Order], per_actor: int | None = None) -> None:
        import ray

        self._ray, self.orders = ray, tuple(orders)
        cores = max(int(ray.cluster_resources().get("CPU", 1)), 1)  # type: ignore[no-untyped-call]
        size = per_actor or -(-len(orders) // (_CROWD * cores))
        attempt = f"{run} {token_hex(4)}"  # actors of an attempt that was killed may linger
        self._crews = {f"{attempt} {i}": self.orders[i : i + size] for i in range(0, len(orders), size)}
        self.actors: dict[str, Any] = {}

    def __enter__(self) -> Self:
        homes = {order.part.me: name for name, orders in self._crews.items() for order in orders}
        remote, release = self._ray.remote(Crew), version("dynadp")
        self._kept = self._ray.put(({order.part.me: order for order in self.orders}, homes))
        reference = self._ray.cloudpickle.dumps(self._kept)  # type: ignore[no-untyped-call]
        for name, orders in self._crews.items():
            made = remote.options(
                name=name, namespace=NAMESPACE, max_restarts=-1, max_task_retries=-1, max_concurrency=_THREADS,
                num_cpus=_SHARE, scheduling_strategy="SPREAD", enable_task_events=False,
            )  # fmt: skip
            self.actors[name] = made.remote(name, [order.part.me for order in orders], reference, release)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        actors = list(self.actors.values())
        if error is None:
            self._ray.wait([actor.leave.remote() for actor in actors], num_returns=len(actors), timeout=_AGAIN)
        for actor in actors:
            self._ray.kill(actor)

    def home(self, node: str) -> Any:
        """The actor of a node."""
        return next(self.actors[name] for name, orders in self._crews.items() if node in {o.part.me for o in orders})

    def check(self) -> None:
        """Have all rows read once, where the actors are; the first mistake is raised."""
        for failure in self._answers([actor.check.remote() for actor in self.actors.values()]):
            if failure is not None:
                raise failure

    def run(self, note: Callable[[Told], None]) -> dict[str, Outcome]:
        """Drive all nodes to their end.

        Parameters
        ----------
        note
            Called once for each node and round; rounds of a node come in order.
        """
        outcomes: dict[str, Outcome] = {}
        last = {order.part.me: 0 for order in self.orders}
        waiting = {self.actors[name].tell.remote("", 0): (name, "", 0) for name in self.actors}
        heard = monotonic()
        while waiting:
            done, _ = self._ray.wait(list(waiting), timeout=_SILENT)
            if monotonic() - heard > _SILENT:
                heard = monotonic()
                behind = [node for node, n in last.items() if n == min(last.values())]
                LOG.warning("nothing new for %g seconds; behind: %s. See `ray status`", _SILENT, ", ".join(behind))
            for ref in done:
                name, before, have = waiting.pop(ref)
                tidings: Tidings = self._answers([ref])[0]
                if tidings.failure is not None:
                    raise tidings.failure
                have = (have if tidings.incarnation == before else 0) + len(tidings.rounds)
                for told in tidings.rounds:
                    if told.round > last[told.node]:  # an actor that was started again tells all of them again
                        last[told.node], heard = told.round, monotonic()
                        note(told)
                if tidings.outcomes is None:
                    waiting[self.actors[name].tell.remote(tidings.incarnation, have)] = name, tidings.incarnation, have
                else:
                    outcomes |= tidings.outcomes
        return outcomes

    def _answers(self, refs: list[Any]) -> list[Any]:
        try:
            return self._ray.get(refs)
        except self._ray.exceptions.RayActorError as error:
            raise ConfigError(
                "an actor cannot be started on the cluster; every host needs the same Python, ray and dynadp, and the files at "
                f"the same paths. Ray says: {error}"
            ) from None


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """A connection to a Ray cluster: the one at the address, or one of this machine alone, made for the purpose.

    Parameters
    ----------
    address
        ``HOST:PORT`` of the cluster's head, or ``auto`` for the one that this host belongs to. A connection that is there
        already is used as it is.
    """
    if address is None and "ray" not in sys.modules:  # Ray reads its settings when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))  # of this run alone: Ray listens on all interfaces
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run goes to anybody else
    import ray

    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": ERROR}
    if address is None:
        settings: dict[str, Any] = {"worker_niceness": 0}  # actors are the work, not its background
        ray.init(address="local", include_dashboard=False, object_store_memory=_STORE, _system_config=settings, **quiet)
    else:
        _reachable(address)
        if os.environ.get("RAY_AUTH_MODE") != "token":
            LOG.warning(
                "the cluster takes orders from whoever reaches it: start it, and this command, with RAY_AUTH_MODE=token (and "
                "RAY_USE_TLS=1 where others share the wire)"
            )
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
            raise ConfigError(f"cannot join the Ray cluster at {address!r}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def spread(work: Callable[..., Any], tasks: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> list[Any]:
    """``[work(**shared, **task) for task in tasks]``, each a task of the cluster; results in their order.

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


def _reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself takes minutes to give up."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        raise ConfigError(f"--address is {address!r}; expected HOST:PORT of the cluster's head, or auto on one of its hosts")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head --port PORT`, or leave out "
            "--address for one of this machine alone"
        ) from None


def _tellable(error: BaseException) -> DynadpError:
    """An error that can travel; a host's trouble with a file is told with its name."""
    if isinstance(error, CellError):
        return DataError(str(error))
    if isinstance(error, DynadpError):
        return error
    if isinstance(error, OSError):
        return RecordError(
            f"host {socket.gethostname()}: {error}; rows, ledgers and run folder must be on storage that all hosts of the "
            "cluster see at the same path"
        )
    raise error
