"""Letters over Zenoh: peers, mutual TLS, access control by certificate name; no server that anybody
has to trust.

Keys, under ``dynadp/RUN``: ``NODE/letter/KIND/ROUND/AUTHOR`` for letters, published and answered
from the node's post office to those who missed them; ``NODE/hello`` to agree on the run;
``NODE/done`` to part; ``NODE/alive``. A node may put and answer under its own name only, and only
its neighbours may ask it. Behind a relay the access control sees the relay alone: the relay and
every member that connects to it can read all letters, and nodes rely on the signatures in the
letters.
"""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, Self, cast
from urllib.parse import quote, unquote

import zenoh

from dynadp.engines.exchange import Awaiting
from dynadp.engines.inbox import Inbox, is_broadcast
from dynadp.engines.letters import KINDS, Kind, Letter, verify
from dynadp.engines.node import NodeResult
from dynadp.engines.zenoh.config import RELAY, Site, link_settings, settings
from dynadp.engines.zenoh.greetings import Greetings
from dynadp.engines.zenoh.log import LOG, RateLimitedLog
from dynadp.errors import ConfigError, DynadpError, NodeLost, RecordError, Rejected

# seconds: before asking, between asking again, for an answer
_ASK, _ASK_SLOWLY, _ANSWER = 0.1, 1.0, 2.0
_PART = 4  # of its patience, that a node which is started again waits for greetings
_LOG_PAUSE = 60.0  # seconds between two lines about the same wait


class Stopped(Exception):
    """Somebody asked the node to stop."""


@dataclass
class Links:
    """A node's links to its neighbours, for one run; a context manager.

    Attributes
    ----------
    site, post
        Where it stands; its letters.
    greetings
        How it agrees with its neighbours on the run.
    patience
        Seconds that a neighbour may stay away before the node gives up.
    stop
        Set by whoever wants the node to stop.
    alive
        Neighbours that are up.
    waiting
        What it waits for, in words.
    goes_on
        Whether the run goes on without nodes that stay away: then one that is up and silent is
        away too, and a node that is started again greets those who are there.
    """

    site: Site
    post: Inbox
    greetings: Greetings
    patience: float
    stop: Event = field(default_factory=Event, repr=False)
    alive: set[str] = field(default_factory=set)
    waiting: str = ""
    goes_on: bool = False
    _refused: DynadpError | None = None

    def __post_init__(self) -> None:
        self.prefix = f"dynadp/{self.post.rules.run.hex()[:32]}"
        self._warn = RateLimitedLog()

    def __enter__(self) -> Self:
        config = zenoh.Config.from_json5(json.dumps(settings(self.site, self.prefix)))
        try:
            self._session = session = zenoh.open(config)
        except zenoh.ZError as error:
            raise ConfigError(
                f"cannot open links on {', '.join(self.site.listen) or 'any address'}: {error}"
            ) from None
        liveliness, mine = session.liveliness(), self._key(self.site.me, "**")
        # what is declared ends when nobody holds it any more
        self._declared: list[Any] = [
            session.info.declare_link_events_listener(self._on_link, history=True)
        ]
        for j in self.site.neighbours:
            alive, letters = self._key(j, "alive"), self._key(j, "letter/**")
            self._declared += [
                liveliness.declare_subscriber(alive, self._on_alive, history=True),
                session.declare_subscriber(
                    letters, lambda sample: self._handle(sample, self._take)
                ),
            ]
        self._declared += [
            session.declare_queryable(mine, self._on_query),
            liveliness.declare_token(self._key(self.site.me, "alive")),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()  # type: ignore[no-untyped-call]

    def publish(self, data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
        """Send a letter to all neighbours that are up; the others ask for it."""
        key = self._key(self.site.me, _letter(kind, n, author or self.site.me))
        self._session.put(key, data, congestion_control=zenoh.CongestionControl.BLOCK, express=True)

    def run(self, part: Generator[Awaiting, None, NodeResult]) -> NodeResult:
        """Drive a node's part to its end."""
        try:
            want = next(part)
            while True:
                try:
                    self.wait(want)
                except NodeLost as lost:
                    want = part.throw(lost)  # which goes on without them, or ends
                else:
                    want = next(part)
        except StopIteration as end:
            return cast(NodeResult, end.value)

    def wait(self, want: Awaiting) -> None:
        """Wait until letters are here; ask again for those that are missing, and give up on
        neighbours that stay away.
        """
        if self.stop.is_set():
            raise Stopped
        kind, n = want.kind, want.round
        if kind == "mean":
            what = "the means of"
        else:
            what = f"round {n} of" if n else "the centring round of"

        def ask(author: str) -> None:
            for sort, number in want.wanted(self.post, author):
                for j in self.site.neighbours if is_broadcast(sort, number) else (author,):
                    self._ask(j, _letter(sort, number, author), self._take)

        silent = self.patience if self.goes_on else None
        self._until(lambda: want.missing(self.post), ask, what, silent=silent)

    def agree(self) -> None:
        """Wait until all neighbours are up and run the same configuration; raise if one of them
        knows of a message of mine that my ledger does not know.
        """
        held: dict[str, list[Letter]] = {}  # of this node's messages, the last

        def greeted(j: str, data: bytes) -> None:
            last = self.greetings.read(j, data)
            with self.post.changing():
                held[j] = last

        begun = self.goes_on and bool(self.post.latest(self.site.me))
        try:
            self._until(
                lambda: [j for j in self.site.neighbours if j not in held],
                lambda j: self._ask(j, "hello", greeted, self.greetings.write(None)),
                "a greeting of",
                pause=0.0,
                silent=self.patience / _PART if begun else None,
            )
        except NodeLost:
            if not (begun and held):
                raise
        kept = self.post.latest(self.site.me)
        held[str(self.post.path)] = [self.greetings.own(data) for data in kept]
        for where, letters in held.items():  # here, because a ledger serves one thread
            for letter in letters:
                self.greetings.require_known(where, letter)

    def part_ways(self) -> list[str]:
        """Stay until every neighbour is done too, or was and left; returns those that did not say
        so in time.
        """
        n, heard = self.post.rules.rounds, set[str]()
        mine = self.post.letter("done", n)

        def farewell(j: str, data: bytes) -> None:
            self._take(j, data)
            with self.post.changing():
                heard.add(j)

        def missing() -> list[str]:
            silent = [j for j in self.site.neighbours if j not in heard]
            absent = self.post.missing("done", n, silent)
            return [j for j in silent if j in self.alive or j in absent]

        try:
            self._until(
                missing,
                lambda j: self._ask(j, "done", farewell, mine),
                "the farewell of",
                pause=0.0,
            )
        except NodeLost:
            return missing()
        return []

    def _until(
        self,
        missing: Callable[[], list[str]],
        ask: Callable[[str], None],
        what: str,
        pause: float = _ASK,
        silent: float | None = None,
    ) -> None:
        """Wait until nothing is missing, and ask for what is. A neighbour that is up is waited for
        without end, one that is away for a while; where ``silent`` is given, whoever does not
        answer for so many seconds.
        """
        patience = self.patience if silent is None else silent
        seen = logged = monotonic()
        while names := missing():
            if self._refused:
                raise self._refused
            if self.stop.is_set():
                raise Stopped
            now = monotonic()
            needed = names if set(names) <= set(self.site.neighbours) else self.site.neighbours
            away = [j for j in needed if j not in self.alive]
            if not away and silent is None:
                seen = now
            self.waiting = f"{what} {', '.join(names)}"
            if now - seen > patience:
                raise NodeLost(
                    f"{self.site.me} waited {patience:g} seconds for {self.waiting}; away: "
                    f"{', '.join(away or names)}. It stops and loses nothing: see to them (one "
                    "whose certificate is refused looks like one that is away), then start this "
                    "node again",
                    tuple(names),
                )
            if now - logged > _LOG_PAUSE:
                logged = now
                LOG.info("waiting for %s", self.waiting)
            with self.post.changed:
                came = missing() != names or self.post.changed.wait(pause)
            if not came:
                for name in names:
                    ask(name)
                pause = min(max(2 * pause, _ASK), _ASK_SLOWLY)
        if self._refused:
            raise self._refused
        self.waiting = ""

    def _ask(
        self,
        j: str,
        what: str,
        answered: Callable[[str, bytes], None],
        payload: bytes | None = None,
    ) -> None:
        def reply(answer: zenoh.Reply) -> None:
            if answer.ok is not None:
                self._handle(answer.ok, answered)

        self._session.get(
            self._key(j, what),
            reply,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=_ANSWER,
            payload=payload,
        )

    def _take(self, via: str, data: bytes) -> None:
        letter = self.post.offer(data, via)
        if letter is not None and is_broadcast(letter.kind, letter.round):
            self.publish(data, letter.kind, letter.round, letter.author)

    def _handle(self, sample: zenoh.Sample, action: Callable[[str, bytes], None]) -> None:
        via = self._via(sample)
        with self._guarded(via):
            action(via, bytes(sample.payload))

    @contextmanager
    def _guarded(self, via: str) -> Iterator[None]:
        """Refuse, count and log what comes from outside and is wrong; it never ends a thread."""
        try:
            yield
        except Rejected as reason:
            self._warn(f"refused a letter of {via}: {reason}")
        except RecordError as error:  # this node's own disk: nothing can be kept any more
            self._refuse(error)
        except ConfigError as error:
            self._warn(str(error))
            self._refuse(error)
        except Exception as error:
            self._warn(f"refused what {via} sent: {type(error).__name__}")

    def _refuse(self, error: DynadpError) -> None:
        """Raise the error where the node waits."""
        with self.post.changing():
            self._refused = self._refused or error

    def _on_alive(self, sample: zenoh.Sample) -> None:
        j, up = self._via(sample), sample.kind == zenoh.SampleKind.PUT
        LOG.info("%s is %s", j, "up" if up else "away")
        with self.post.changing():
            (self.alive.add if up else self.alive.discard)(j)

    def _on_link(self, event: zenoh.LinkEvent) -> None:
        who, site = event.link.auth_identifier, self.site
        welcome = who in site.neighbours or (site.relay is not None and who == RELAY)
        if event.kind == zenoh.SampleKind.PUT and not welcome:
            self._warn(
                f"a link with {who}, which has a certificate of the consortium but is no "
                "neighbour: it gets nothing"
            )

    def _on_query(self, query: zenoh.Query) -> None:
        with self._guarded("a neighbour"):
            _, _, _, what, *rest = str(query.key_expr).split("/")
            if what == "letter":
                kind, n, author = rest
                known = KINDS[KINDS.index(kind)]
                self._reply(query, self.post.answer(unquote(author), known, int(n)))
            elif query.payload is not None:
                self._answer(query, bytes(query.payload))

    def _answer(self, query: zenoh.Query, data: bytes) -> None:
        """Answer a greeting or a farewell with this node's own."""
        letter, post = verify(data, self.post.rules.keys), self.post
        if letter.kind == "done":
            post.offer(data, letter.author)
            self._reply(query, post.get(self.site.me, "done", post.rules.rounds))
        elif letter.kind == "hello" and letter.author in self.site.neighbours:
            body = json.loads(letter.body)
            # first the answer: both sides see a difference
            self._reply(query, self.greetings.write(letter.author, body["asks"]))
            self.greetings.compare(letter, body["config"])

    def _reply(self, query: zenoh.Query, data: bytes | None) -> None:
        if data is not None:
            query.reply(query.key_expr, data)

    def _key(self, node: str, rest: str) -> str:
        return f"{self.prefix}/{quote(node, safe='')}/{rest}"

    def _via(self, sample: zenoh.Sample) -> str:
        """Return the node under whose name something came."""
        return unquote(str(sample.key_expr).split("/")[2])


def _letter(kind: Kind, n: int, author: str) -> str:
    return f"letter/{kind}/{n}/{quote(author, safe='')}"


def relay(identity: Path, listen: str, stop: Event) -> None:
    """Carry letters between nodes that cannot reach each other, until it is asked to stop.

    TLS ends here: a relay reads every letter of the run, and hands them to every member of the
    consortium that asks. It can drop and delay them; it can change or forge none, for the nodes
    check signatures.
    """
    config = link_settings("router", identity, [listen], ())
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        LOG.info("a relay on %s, for whoever has a certificate of the consortium", listen)
        log = RateLimitedLog()

        def on_link(event: zenoh.LinkEvent) -> None:
            up = event.kind == zenoh.SampleKind.PUT
            log(f"{event.link.auth_identifier} is {'up' if up else 'away'}")

        listener = session.info.declare_link_events_listener(on_link, history=True)
        stop.wait()
        del listener
