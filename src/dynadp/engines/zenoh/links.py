"""Letters over Zenoh: peers, mutual TLS, access control by certificate name; no server that anybody
has to trust.

Keys, under ``dynadp/RUN``: ``NODE/letter/KIND/ROUND/AUTHOR`` for letters, published and answered
from the node's post office to those who missed them; ``NODE/hello`` to agree on the run;
``NODE/done`` to part; ``NODE/alive``. A node may put and answer under its own name only, and only
its neighbours may ask it. Behind a relay the access control sees the relay alone: the relay and
every member that connects to it can read all letters, and the signatures in the letters are what is
believed.
"""

import base64
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event
from time import monotonic
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, unquote

import zenoh

from dynadp.engines.exchange import Awaiting
from dynadp.engines.inbox import Inbox, is_broadcast
from dynadp.engines.letters import KINDS, Kind, Letter, verify
from dynadp.engines.node import NodeResult, differences
from dynadp.engines.zenoh.log import LOG, RateLimitedLog
from dynadp.errors import ConfigError, DynadpError, LedgerDamaged, NodeLost, RecordError, Rejected

RELAY = "relay"  # the common name of a relay's certificate
_ASK, _ASK_SLOWLY, _ANSWER = (
    0.1,
    1.0,
    2.0,
)  # seconds: before asking, between asking again, for an answer
_LARGEST = 2**26  # bytes of a message that is taken in
_TELL = 60.0  # seconds between two lines about the same wait


class Stopped(Exception):
    """Somebody asked the node to stop."""


@dataclass(frozen=True)
class Site:
    """Where a node stands in the network.

    Attributes
    ----------
    me, neighbours
        Names.
    identity
        Folder with ca.pem, tls.pem and tls.key.
    listen, dial
        ``host:port`` to listen on, and those to dial; the other side of each edge dials where this
        one does not.
    relay
        ``host:port`` of a relay that carries everything instead.
    """

    me: str
    neighbours: tuple[str, ...]
    identity: Path
    listen: tuple[str, ...] = ()
    dial: tuple[str, ...] = ()
    relay: str | None = None


def settings(site: Site, prefix: str) -> dict[str, Any]:
    """Zenoh's configuration: only TLS, both sides with certificates, nothing found by itself,
    nothing allowed by default.
    """
    peers = (RELAY,) if site.relay else site.neighbours
    rules, policies = [], []
    for peer in peers:
        theirs = [
            f"{prefix}/{quote(j, safe='')}/**" for j in (site.neighbours if site.relay else (peer,))
        ]
        mine, whole = [f"{prefix}/{quote(site.me, safe='')}/**"], [f"{prefix}/**"]
        asking = [
            "query",
            "declare_subscriber",
            "declare_liveliness_subscriber",
            "liveliness_query",
        ]
        allowed = (
            ("from", "ingress", ["put", "reply", "liveliness_token", "declare_queryable"], theirs),
            ("asks", "ingress", asking, whole),
            ("to", "egress", ["put", "reply", "liveliness_token", "declare_queryable"], mine),
            ("asked", "egress", asking, whole),
        )
        for word, flow, messages, keys in allowed:
            rules.append(
                {
                    "id": f"{word} {peer}",
                    "permission": "allow",
                    "flows": [flow],
                    "messages": messages,
                    "key_exprs": keys,
                }
            )
        policies.append({"rules": [f"{word} {peer}" for word, *_ in allowed], "subjects": [peer]})
    dial = (site.relay,) if site.relay else site.dial
    return {
        **_links(
            "client" if site.relay else "peer",
            site.identity,
            () if site.relay else site.listen,
            dial,
        ),
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": rules,
            "subjects": [{"id": peer, "cert_common_names": [peer]} for peer in peers],
            "policies": policies,
        },
    }


def _links(mode: str, identity: Path, listen: Sequence[str], dial: Sequence[str]) -> dict[str, Any]:
    files = {"certificate": str(identity / "tls.pem"), "private_key": str(identity / "tls.key")}
    return {
        "mode": mode,
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "listen": {"endpoints": [f"tls/{at}" for at in listen]},
        "connect": {
            "endpoints": [f"tls/{at}" for at in dial],
            "timeout_ms": -1 if dial else 0,
            "exit_on_failure": False,
            "retry": {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 1.5},
        },
        "transport": {
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "rx": {"max_message_size": _LARGEST},
                "tls": {
                    "root_ca_certificate": str(identity / "ca.pem"),
                    **{
                        f"{side}_{name}": path
                        for side in ("listen", "connect")
                        for name, path in files.items()
                    },
                    "enable_mtls": True,
                    "verify_name_on_connect": True,
                    "close_link_on_expiration": True,
                },
            },
        },
    }


@dataclass
class Links:
    """A node's links to its neighbours, for one run; a context manager.

    Attributes
    ----------
    site, post
        Where it stands; its letters.
    config
        What all nodes must agree on: public, JSON.
    known
        The bytes of the node's own message of a round, as its ledger knows them; None where it
        knows none. None at all in a SIMULATION, which has no ledger and keeps its messages no
        longer than it lasts.
    patience
        Seconds that a neighbour may stay away before the node gives up.
    stop
        Set by whoever wants the node to stop.
    alive
        Neighbours that are up.
    waiting
        What it waits for, in words.
    """

    site: Site
    post: Inbox
    config: Mapping[str, Any] = field(repr=False)
    known: Callable[[int], bytes | None] | None = field(repr=False)
    patience: float
    stop: Event = field(default_factory=Event, repr=False)
    alive: set[str] = field(default_factory=set)
    waiting: str = ""
    _refused: DynadpError | None = None
    _agreed: bool = False

    def __post_init__(self) -> None:
        self.prefix = f"dynadp/{self.post.rules.run.hex()[:32]}"
        self._asked = token_hex(
            16
        )  # greetings must answer this: an old one could hide what a neighbour holds
        self._tell = RateLimitedLog()

    def __enter__(self) -> Self:
        config = zenoh.Config.from_json5(json.dumps(settings(self.site, self.prefix)))
        try:
            self._session = zenoh.open(config)
        except zenoh.ZError as error:
            raise ConfigError(
                f"cannot open links on {', '.join(self.site.listen) or 'any address'}: {error}"
            ) from None
        session = self._session
        self._declared: list[Any] = [
            session.info.declare_link_events_listener(self._on_link, history=True)
        ]
        for j in self.site.neighbours:
            alive = session.liveliness().declare_subscriber(
                self._key(j, "alive"), self._on_alive, history=True
            )
            self._declared += [
                alive,
                session.declare_subscriber(self._key(j, "letter/**"), self._on_letter),
            ]
        self._declared.append(
            session.declare_queryable(self._key(self.site.me, "**"), self._on_query)
        )
        self._declared.append(session.liveliness().declare_token(self._key(self.site.me, "alive")))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()  # type: ignore[no-untyped-call]

    def publish(self, data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
        """Send a letter to all neighbours that are up; the others ask for it."""
        key = self._key(self.site.me, f"letter/{kind}/{n}/{quote(author or self.site.me, safe='')}")
        self._session.put(key, data, congestion_control=zenoh.CongestionControl.BLOCK, express=True)

    def run(self, part: Generator[Awaiting, None, NodeResult]) -> NodeResult:
        """Drive a node's part to its end."""
        while True:
            try:
                want = next(part)
            except StopIteration as end:
                return cast(NodeResult, end.value)
            self.wait(want)

    def wait(self, want: Awaiting) -> None:
        """Until the letters are here; asks again for those that are missing, and gives up on
        neighbours that stay away.
        """
        if self.stop.is_set():
            raise Stopped
        what = (
            "the centring round"
            if want.round == 0
            else f"round {want.round}"
            if want.kind == "message"
            else "the means"
        )

        def ask(missing: list[str]) -> None:
            for author in missing:
                for j in self.site.neighbours if is_broadcast(want.kind, want.round) else (author,):
                    self._ask(
                        j, f"letter/{want.kind}/{want.round}/{quote(author, safe='')}", self._take
                    )

        self._until(
            lambda: self.post.missing(want.kind, want.round, want.authors), ask, f"{what} of"
        )

    def agree(self) -> None:
        """All neighbours are up, run the same configuration, and know of no message of mine that my
        ledger does not know.
        """
        agreed: dict[str, Letter | None] = {}

        def greeted(j: str, data: bytes) -> None:
            letter = verify(data, self.post.rules.keys)
            if letter.kind != "hello" or letter.author != j:
                raise Rejected(f"a greeting under the name of {j} that is not its own")
            body = json.loads(letter.body)
            self._compare(j, letter, body["config"])
            if body["answers"] != self._asked:
                raise Rejected("a greeting that answers another question: an old one, sent again")
            last = None if body["last"] is None else self._own(base64.b64decode(body["last"]))
            with self.post.changed:
                agreed[j] = last
                self.post.changed.notify_all()

        def ask(missing: list[str]) -> None:
            for j in missing:
                self._ask(
                    j,
                    "hello",
                    lambda key, data: greeted(self._via(key), data),
                    self._greeting(None),
                )

        self._until(
            lambda: [j for j in self.site.neighbours if j not in agreed],
            ask,
            "a greeting of",
            at_once=True,
        )
        kept = self.post.last(self.site.me)
        held = {**agreed, str(self.post.path): None if kept is None else self._own(kept)}
        for where, last in held.items():  # here, because a ledger serves one thread
            if last is not None:
                self._check_last(where, last)

    def part_ways(self) -> list[str]:
        """Stay until every neighbour is done too, or was and left; returns those that did not say
        so in time.
        """
        mine = self.post.letter("done", self.post.rules.rounds)
        n, heard = self.post.rules.rounds, set[str]()

        def farewell(key: str, data: bytes) -> None:
            self._take(key, data)
            with self.post.changed:
                heard.add(self._via(key))
                self.post.changed.notify_all()

        def missing() -> list[str]:
            left = [j for j in self.post.rules.neighbours if j not in self.alive]
            here = {j for j in left if not self.post.missing("done", n, [j])}
            return [j for j in self.site.neighbours if j not in heard and j not in here]

        def ask(those: list[str]) -> None:
            for j in those:
                self._ask(j, "done", farewell, mine)

        try:
            self._until(missing, ask, "the farewell of", at_once=True)
        except NodeLost:
            return missing()
        return []

    def _until(
        self,
        missing: Callable[[], list[str]],
        ask: Callable[[list[str]], None],
        what: str,
        at_once: bool = False,
    ) -> None:
        """Wait for letters, asking for them; a neighbour that is up is waited for without end, one
        that is away for a while.
        """
        last_seen, pause, told = monotonic(), 0.0 if at_once else _ASK, monotonic()
        while names := missing():
            if self._refused:
                raise self._refused
            if self.stop.is_set():
                raise Stopped
            now = monotonic()
            needed = names if set(names) <= set(self.site.neighbours) else self.site.neighbours
            away = [j for j in needed if j not in self.alive]
            last_seen = now if not away else last_seen
            self.waiting = f"{what} {', '.join(names)}"
            if now - last_seen > self.patience:
                raise NodeLost(
                    f"{self.site.me} waited {self.patience:g} seconds for {self.waiting}; away: "
                    f"{', '.join(away)}. It stops and loses nothing: see to them (one whose "
                    "certificate is refused looks like one that is away), then start this node "
                    "again"
                )
            if now - told > _TELL:
                told = now
                LOG.info("waiting for %s", self.waiting)
            with self.post.changed:
                came = self.post.changed.wait(pause) if missing() == names else True
            if not came:
                ask(names)
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
                self._guarded(
                    self._via(str(answer.ok.key_expr)),
                    answered,
                    str(answer.ok.key_expr),
                    bytes(answer.ok.payload),
                )

        self._session.get(
            self._key(j, what),
            reply,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=_ANSWER,
            payload=payload,
        )

    def _take(self, key: str, data: bytes) -> None:
        via = self._via(key)
        letter = self.post.offer(data, via)
        if letter is not None and is_broadcast(letter.kind, letter.round):
            self.publish(data, letter.kind, letter.round, letter.author)  # hand it on

    def _guarded(self, via: str, action: Callable[..., None], *given: Any) -> None:
        """What comes from outside never ends a thread: it is refused, counted, and told at growing
        intervals.
        """
        try:
            action(*given)
        except Rejected as reason:
            self._tell(f"refused a letter of {via}: {reason}")
        except RecordError as error:  # this node's own disk: nothing can be kept any more
            with self.post.changed:
                self._refused = self._refused or error
                self.post.changed.notify_all()
        except ConfigError as error:
            self._tell(str(error))
            # once a run is agreed on, a neighbour that comes back with another one is its own
            # problem
            with self.post.changed:
                self._refused = self._refused or (None if self._agreed else error)
                self.post.changed.notify_all()
        except Exception as error:
            self._tell(f"refused what {via} sent: {type(error).__name__}")

    def _on_letter(self, sample: zenoh.Sample) -> None:
        key = str(sample.key_expr)
        self._guarded(self._via(key), self._take, key, bytes(sample.payload))

    def _on_alive(self, sample: zenoh.Sample) -> None:
        j = self._via(str(sample.key_expr))
        up = sample.kind == zenoh.SampleKind.PUT
        LOG.info("%s is %s", j, "up" if up else "away")
        with self.post.changed:
            (self.alive.add if up else self.alive.discard)(j)
            self.post.changed.notify_all()

    def _on_link(self, event: zenoh.LinkEvent) -> None:
        who = event.link.auth_identifier
        if event.kind == zenoh.SampleKind.PUT and who not in (
            *self.site.neighbours,
            RELAY if self.site.relay else None,
        ):
            self._tell(
                f"a link with {who}, which has a certificate of the consortium but is no "
                "neighbour: it gets nothing"
            )

    def _on_query(self, query: zenoh.Query) -> None:
        self._guarded("a neighbour", self._answer, query)

    def _answer(self, query: zenoh.Query) -> None:
        _, _, _, what, *rest = str(query.key_expr).split("/")
        payload = None if query.payload is None else bytes(query.payload)
        if what == "hello" and payload is not None:
            letter = verify(payload, self.post.rules.keys)
            if letter.kind == "hello" and letter.author in self.site.neighbours:
                body = json.loads(letter.body)
                query.reply(
                    query.key_expr, self._greeting(letter.author, body["asks"])
                )  # first: both sides see a difference
                self._compare(letter.author, letter, body["config"])
        elif what == "done" and payload is not None:
            letter = verify(payload, self.post.rules.keys)
            self.post.offer(payload, letter.author)
            if (mine := self.post.get(self.site.me, "done", self.post.rules.rounds)) is not None:
                query.reply(query.key_expr, mine)
        elif what == "letter":
            kind, n = next(kind for kind in KINDS if kind == rest[0]), int(rest[1])
            author = unquote(rest[2])
            data = (
                self.post.get(author, kind, n)
                if author == self.site.me or is_broadcast(kind, n)
                else None
            )
            if data is not None:
                query.reply(query.key_expr, data)

    def _greeting(self, to: str | None, answers: str | None = None) -> bytes:
        last = None if to is None else self.post.last(to)
        body = {
            "config": self.config,
            "last": None if last is None else base64.b64encode(last).decode(),
            "asks": self._asked,
            "answers": answers,
        }
        rules = self.post.rules
        letter = Letter("hello", rules.run, rules.config, rules.me, 0, json.dumps(body).encode())
        return letter.sealed(self.post.key)

    def _compare(self, j: str, letter: Letter, theirs: Mapping[str, Any]) -> None:
        if letter.config == self.post.rules.config:
            return
        found = differences(json.loads(json.dumps(self.config)), theirs) or [
            "nothing that can be named"
        ]
        lines = "\n".join(f"  {line}" for line in found[:20])
        raise ConfigError(
            f"{self.site.me} and {j} do not run the same configuration; they differ in\n{lines}"
        )

    def _own(self, data: bytes) -> Letter:
        """A message that this node once sent in this run."""
        rules = self.post.rules
        letter = verify(data, {rules.me: rules.keys[rules.me]})
        if (letter.kind, letter.run, letter.config) != ("message", rules.run, rules.config):
            raise Rejected("a greeting that shows no message of this run")
        return letter

    def _check_last(self, where: str, letter: Letter) -> None:
        """What is held of this node somewhere; raises if its ledger does not know it."""
        if self.known is not None and self.known(letter.round) != letter.body:
            raise LedgerDamaged(
                f"{where} holds a message of round {letter.round} with this node's signature that "
                "its ledger does not know: the ledger was restored from an old copy, or another "
                "machine runs under this name. To go on would draw noise twice for one round. "
                "Restore the newest copy. Where there is none, leave this run. If `dynadp ledger "
                "show` lists it, never close it, so that its whole plan stays counted. If not, "
                "its releases are missing, and epsilons at one delta do not add: choose a d below "
                "the cap's delta, such as half of it, find the run's total e at that d (`dynadp "
                "account`), and set the cap to epsilon - e and delta - d (`dynadp ledger cap`) "
                "before another begins"
            )

    def _key(self, node: str, rest: str) -> str:
        return f"{self.prefix}/{quote(node, safe='')}/{rest}"

    @staticmethod
    def _via(key: str) -> str:
        return unquote(key.split("/")[2])


def relay(identity: Path, listen: str, stop: Event) -> None:
    """Carry letters between nodes that cannot reach each other, until told to stop.

    TLS ends here: a relay reads every letter of the run, and hands them to every member of the
    consortium that asks. It can drop and delay them; it can change or forge none, for the nodes
    believe signatures alone.
    """
    config = _links("router", identity, [listen], ())
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        LOG.info("a relay on %s, for whoever has a certificate of the consortium", listen)
        tell = RateLimitedLog()

        def on_link(event: zenoh.LinkEvent) -> None:
            up = event.kind == zenoh.SampleKind.PUT
            tell(f"{event.link.auth_identifier} is {'up' if up else 'away'}")

        listener = session.info.declare_link_events_listener(on_link, history=True)
        stop.wait()
        del listener
