"""An actor on Ray: how it works for its nodes, and what it reports to the driver.

It holds a node, or a stack of them, pushes their letters to the actors that need them, and asks for
what it misses. What must outlive its process is in the nodes' ledgers
(:mod:`dynadp.engines.ray.spec`): an actor that is started again, on whatever host, replays its part
from its ledger and from what its neighbours hold, and never draws for a round that is entered.
"""

import pickle
import socket
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from secrets import token_hex
from threading import Condition, Event, Thread
from time import sleep
from typing import Any, NamedTuple
from weakref import finalize

from dynadp.consensus import RoundLine, RoundProgress
from dynadp.data import NodeRows
from dynadp.engines.exchange import Awaiting
from dynadp.engines.inbox import Inbox, is_broadcast
from dynadp.engines.letters import Kind
from dynadp.engines.node import NodeResult, node_rounds
from dynadp.engines.ray.spec import ActorSpec
from dynadp.errors import CellError, ConfigError, DataError, DynadpError, RecordError

NAMESPACE = "dynadp"
# seconds after which an actor answers the driver without news, and the driver names whom it waits
# for
SILENT = 60.0
_BATCH = 64  # letters that an actor hands over at once: those of a neighbour that replays
# seconds between two reports to the driver; before asking, first and later
_DWELL, _AGAIN, _RARELY = 0.1, 1.0, 10.0


class ActorUpdate(NamedTuple):
    """An actor's report to the driver: which incarnation it is, new rounds, and its nodes' outcomes
    or what went wrong.
    """

    incarnation: str
    rounds: list[RoundLine]
    outcomes: dict[str, NodeResult] | None
    failure: DynadpError | None


class NodeActor:
    """Some nodes of a run, in an actor: one thread works for all of them, Ray's threads take and
    hand over letters.

    A letter is pushed to the actors that need it; an actor that was started again, or waits for
    long, asks for what it misses.

    Parameters
    ----------
    name, nodes
        The actor's name; its nodes.
    kept
        Every node's order, and the name of every node's actor: a reference, pickled, to an object
        that the driver keeps. What a constructor is given beyond some 100 KB Ray loses before the
        second start.
    release
        The driver's version of dynadp.
    """

    def __init__(self, name: str, nodes: Sequence[str], kept: bytes, release: str) -> None:
        import ray

        whole, homes = ray.get(pickle.loads(kept))
        self._name, self._release, self._incarnation = name, release, token_hex(8)
        self._orders: dict[str, ActorSpec] = {node: whole[node] for node in nodes}
        self._near = defaultdict[str, list[str]](list)  # who lives here and hears a node
        self._readers: dict[str, set[str]] = {}  # other actors that need a node's letters
        for me, order in self._orders.items():
            for j in order.part.neighbours:
                self._near[j].append(me)
            self._readers[me] = {homes[j] for j in order.part.neighbours} - {name}
        self._posts: dict[str, Inbox] = {}
        self._rows: dict[str, NodeRows] = {}  # surveyed, and not bounded yet
        self._rounds: list[RoundLine] = []
        self._outcomes: dict[str, NodeResult] = {}
        self._failure: BaseException | None = None
        self._news, self._came = Condition(), 0
        self._ready = Event()
        self._thread: Thread | None = None
        self._actors: dict[str, Any] = {}

    def check(self) -> DynadpError | None:
        """Read all rows once, before anything is spent; return what is wrong with them."""
        try:
            self._same_version()
            for me, order in self._orders.items():
                self._rows[me] = order.prepared()
                self._rows[me].check()
        except (DynadpError, OSError) as error:
            return _portable(error)
        return None

    def take(self, letters: Sequence[tuple[str, bytes]]) -> None:
        """Take letters from other actors, each with the node that hands it over."""
        self._start()
        self._ready.wait()
        try:
            for via, data in letters:
                self._spread(via, data)
        except Exception as error:
            self._fail(error)
        self._wake()

    def ask(self, asker: str, n: int) -> None:
        """Push to an actor what it needs of all rounds from n on."""
        self._start()
        self._ready.wait()
        asked = [
            (via, letter)
            for via, post in self._posts.items()
            if asker in self._readers[via]
            for letter in post.shared(n)
        ]
        for i in range(0, len(asked), _BATCH):
            batch = asked[i : i + _BATCH]
            self._push(asker, [(via, self._posts[via].get(*letter)) for via, letter in batch])

    def update(self, incarnation: str, have: int) -> ActorUpdate:
        """Report to the driver the rounds that are new to it, and how it ended.

        Parameters
        ----------
        incarnation, have
            Which incarnation of this actor reported last, and how many rounds.
        """
        self._start()
        have = have if incarnation == self._incarnation else 0
        with self._news:
            self._news.wait_for(lambda: self._over or len(self._rounds) > have, SILENT)
        if not self._over:
            sleep(_DWELL)  # several rounds at once: the driver is not to keep a core busy
        if self._failure is not None:
            return ActorUpdate(self._incarnation, [], None, _portable(self._failure))
        outcomes = dict(self._outcomes) if self._over else None  # before the rounds: all are there
        return ActorUpdate(self._incarnation, self._rounds[have:], outcomes, None)

    @property
    def _over(self) -> bool:
        return self._failure is not None or len(self._outcomes) == len(self._orders)

    def _same_version(self) -> None:
        here = version("dynadp")
        if here != self._release:
            raise ConfigError(
                f"host {socket.gethostname()} has dynadp {here}, the driver {self._release}; "
                "install the same everywhere"
            )

    def _start(self) -> None:
        """Begin, or go on: with the first call of an incarnation, whoever calls."""
        with self._news:
            if self._thread is None:
                self._thread = Thread(target=self._drive, daemon=True)
                self._thread.start()

    def _wake(self) -> None:
        with self._news:
            self._came += 1
            self._news.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._ready.set()
        self._wake()

    def _spread(self, via: str, data: bytes) -> None:
        """Give a letter to the nodes here that hear its sender; one that all need goes on."""
        todo = [via]
        while todo:
            via = todo.pop()
            for j in self._near[via]:
                letter = self._posts[j].offer(data, via)
                if letter is not None and is_broadcast(letter.kind, letter.round):
                    self._hand_over(j, data)
                    todo.append(j)

    def _hand_over(self, via: str, data: bytes) -> None:
        for other in self._readers[via]:
            self._push(other, [(via, data)])

    def _push(self, other: str, letters: Sequence[tuple[str, Any]]) -> None:
        if (actor := self._actor(other)) is not None:
            actor.take.remote(letters)

    def _actor(self, other: str) -> Any:
        """Return another actor; None while there is none, and then it asks once it is there."""
        import ray

        if other not in self._actors:
            with suppress(ValueError):
                self._actors[other] = ray.get_actor(other, NAMESPACE)
        return self._actors.get(other)

    # ----------------------------------------------------------------------------------------------
    # in its thread

    def _drive(self) -> None:
        try:
            self._same_version()
            with ExitStack() as stack:
                posts = {me: order.inbox() for me, order in self._orders.items()}
                for post in posts.values():
                    # as long as the actor: others ask for letters when its own nodes are done
                    finalize(self, post.close)
                parts = {me: self._part(me, posts[me], stack) for me in self._orders}
                self._posts = posts
                self._ready.set()
                self._ask(parts, 0)
                self._work(parts)
        except BaseException as error:
            self._fail(error)

    def _work(self, parts: dict[str, Generator[Awaiting, None, NodeResult]]) -> None:
        """Advance all parts in turn, each as far as its letters let it."""
        wants: dict[str, Awaiting] = {}
        pause = _AGAIN
        while parts and self._failure is None:
            came = self._came
            ready = [
                me for me in parts if me not in wants or not wants[me].missing(self._posts[me])
            ]
            for me in ready:
                try:
                    wants[me] = next(parts[me])
                except StopIteration as end:
                    self._outcomes[me] = end.value
                    del parts[me]
                    self._wake()
            if ready:
                pause = _AGAIN
                continue
            with self._news:
                if self._came == came:
                    self._news.wait(pause)
            if self._came == came:
                self._ask(parts, min(wants[me].round for me in parts))
                pause = min(2 * pause, _RARELY)

    def _ask(self, nodes: Iterable[str], n: int) -> None:
        """Ask the actors of the nodes' neighbours for letters of all rounds from n on."""
        for other in set().union(*(self._readers[me] for me in nodes)):
            if (actor := self._actor(other)) is not None:
                actor.ask.remote(self._name, n)

    def _part(
        self, me: str, post: Inbox, stack: ExitStack
    ) -> Generator[Awaiting, None, NodeResult]:
        order = self._orders[me]
        part = order.part

        def publish(data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
            if post.missing(kind, n + 1, part.neighbours):
                self._hand_over(me, data)  # otherwise a replay: who went on has had this letter
            self._spread(me, data)

        def note(entry: RoundProgress) -> None:
            loss = float(part.plan.table()[part.index, 0, entry.number - 1])
            self._rounds += entry.lines([me], [loss], part.plan.mechanism.noise)
            self._wake()
            order.checkpoint("noted")

        return node_rounds(
            part,
            self._rows.pop(me, None) or order.prepared(),
            post,
            publish,
            order.journal(stack),
            order.draws,
            on_round=note,
            checkpoint=order.checkpoint,
        )


def _portable(error: BaseException) -> DynadpError:
    """Return an error that can travel; trouble with a file names the host."""
    if isinstance(error, CellError):
        return DataError(str(error))
    if isinstance(error, DynadpError):
        return error
    if isinstance(error, OSError):
        return RecordError(
            f"host {socket.gethostname()}: {error}; rows, ledgers and run folder must be on "
            "storage that all hosts of the cluster see at the same path"
        )
    raise error
