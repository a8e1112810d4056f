"""Letters over Zenoh: peers, mutual TLS, access control by certificate name; no server that anybody
has to trust.

Keys, under ``dynadp/RUN``: ``NODE/letter/KIND/ROUND/AUTHOR`` for letters, published and answered
from the node's post office to those who missed them; ``NODE/hello`` to agree on the run;
``NODE/done`` to part; ``NODE/alive``; ``NODE/beat`` for signs of life and leases. A node may put
and answer under its own name only, and only its neighbours may ask it. Behind a relay the access
control sees the relay alone: there everything travels in envelopes that only its readers can open,
nodes rely on the signatures in the letters, and a node is up that answers a fresh question with
its signature.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import INFO
from threading import Event, Thread
from time import monotonic
from typing import Any, NoReturn, Self, cast
from urllib.parse import quote, unquote

import zenoh

from dynadp.engines.exchange import FOR_GOOD, Awaiting
from dynadp.engines.inbox import Inbox, is_broadcast
from dynadp.engines.letters import KINDS, Kind, Letter, verify
from dynadp.engines.node import NodeResult
from dynadp.engines.zenoh.beats import PAUSE, Beats
from dynadp.engines.zenoh.config import RELAY, Site, settings
from dynadp.engines.zenoh.envelopes import Bare, Envelopes, Wrapping, is_bare
from dynadp.engines.zenoh.gates import Gate, opened
from dynadp.engines.zenoh.greetings import Differs, Greetings
from dynadp.engines.zenoh.leases import Grants, Lease
from dynadp.engines.zenoh.log import LOG, RateLimitedLog
from dynadp.engines.zenoh.wire import NoCommonWire
from dynadp.errors import (
    ConfigError,
    DynadpError,
    NameTaken,
    NodeLost,
    RecordError,
    Rejected,
)

# seconds: before asking, between asking again, for an answer
_ASK, _ASK_SLOWLY, _ANSWER = 0.1, 1.0, 2.0
_PART = 4  # of its patience, that a node which is started again waits for greetings
_ATTEMPT = 2000  # milliseconds of one attempt to reach a relay
_LOG_PAUSE = 60.0  # seconds between two lines about the same wait
_FAREWELL = 0.5  # seconds that the last words of a node may take
_DIGITS = 9  # of a round's number


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
    goes_on
        Whether the run goes on without nodes that are silent for so long, be they up or not; a node
        that is started again then greets those who are there.
    edges
        Whether each end of an edge decides by itself (ADMM). One that waits itself says so
        meanwhile, and is not silent.
    agreed
        Whether all ran one configuration before: then what a neighbour shows of another one is
        refused, and ends nothing.
    alive
        Neighbours that are up.
    lease
        Its own name, as neighbours grant it; None where nothing is drawn that costs privacy.
    waiting
        What it waits for, in words.
    """

    site: Site
    post: Inbox
    greetings: Greetings
    patience: float
    stop: Event = field(default_factory=Event, repr=False)
    lease: Lease | None = None
    goes_on: bool = False
    edges: bool = False
    agreed: bool = False
    alive: set[str] = field(default_factory=set)
    waiting: str = ""
    _refused: DynadpError | None = None

    def __post_init__(self) -> None:
        rules = self.post.rules
        self.prefix = f"dynadp/{rules.run.hex()[:32]}"
        self._warn, self._tell = RateLimitedLog(), RateLimitedLog(free=30)
        grants = Grants(self.post.path.with_suffix(".leases.json"))
        self._beats, self._over = Beats(self.post, grants, self.lease, self._warn), Event()
        self._wrap: Wrapping = Bare()
        if self.site.relay:
            self._wrap = Envelopes(rules.me, self.post.key, rules.keys, rules.run)
        self._heard: dict[str, float] = {}  # when a neighbour last said that it waits
        self._said = 0.0

    def __enter__(self) -> Self:
        self._session, self._gates = self._open()
        session = self._session
        liveliness, mine = session.liveliness(), self._key(self.site.me, "**")
        # what is declared ends when nobody holds it any more
        self._declared: list[Any] = [
            session.info.declare_link_events_listener(self._on_link, history=True)
        ]
        for j in self.site.neighbours if self.edges else ():
            waits = self._key(j, "waits")
            self._declared.append(session.declare_subscriber(waits, self._on_waits))
        for j in self.site.neighbours:
            alive, letters = self._key(j, "alive"), self._key(j, "letter/**")
            if not self.site.relay:  # behind a relay anybody could say so
                self._declared.append(
                    liveliness.declare_subscriber(alive, self._on_alive, history=True)
                )
            self._declared.append(
                session.declare_subscriber(letters, lambda sample: self._handle(sample, self._take))
            )
        self._declared += [
            session.declare_queryable(mine, self._on_query),
            liveliness.declare_token(self._key(self.site.me, "alive")),
        ]
        self._beating = Thread(target=self._beat, daemon=True)
        self._beating.start()
        return self

    def _open(self) -> tuple[Any, list[Gate]]:
        """Open the session; wait for a relay that is away, but no longer than for a neighbour."""
        site, began = self.site, monotonic()
        config = settings(site, self.prefix)
        if site.relay:  # in short attempts, so that a node that waits can be stopped
            config["connect"] |= {"timeout_ms": _ATTEMPT, "exit_on_failure": True}
        while True:
            try:
                return opened(config, self._warn)
            except (zenoh.ZError, OSError) as error:
                if site.relay is None:
                    raise ConfigError(
                        f"cannot open links on {', '.join(site.listen) or 'any address'}: {error}; "
                        "give another address, or end what listens there"
                    ) from None
            if self.stop.is_set():
                raise Stopped
            if monotonic() - began > self.patience:
                raise NodeLost(
                    f"{site.me} waited {self.patience:g} seconds for the relay {site.relay}: it is "
                    "away, or one side refuses the other's certificate. It stops and loses "
                    "nothing: see to the relay, then start this node again"
                )
            if not self.waiting:
                LOG.warning("the relay %s does not answer; waiting for it", site.relay)
            self.waiting = f"the relay {site.relay}"

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._over.set()
        self._beating.join()
        self._session.close()
        for gate in self._gates:
            gate.close()

    def publish(self, data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
        """Send a letter to all neighbours that are up; the others ask for it."""
        if author is None:
            self.hold()
        key = self._key(self.site.me, _letter(kind, n, author or self.site.me))
        closed = self._wrap.close(data, self.site.members)
        self._session.put(
            key, closed, congestion_control=zenoh.CongestionControl.BLOCK, express=True
        )

    def hold(self) -> None:
        """Wait until neighbours confirm that no other machine runs under this name."""
        lease = self.lease
        if lease is not None and (self._refused or not lease.held):
            silent = self.patience if self.goes_on else None
            self._until(lambda: lease.missing, self._ask_beat, "the lease of", silent=silent)

    def leave(self, *, finished: bool = False) -> None:
        """Give the lease back: another life of this node need not wait, and this one draws no
        more.

        Parameters
        ----------
        finished
            Whether all letters left while it was held, so that whoever misses one gets it.
        """
        lease = self.lease
        if lease is None or lease.left:
            return
        lease.left, lease.finished = True, finished
        answered = Event()

        def heard(j: str, data: bytes) -> None:
            answered.set()

        for j in lease.asked:
            self._ask(j, "beat", heard, self._beats.ask(j, leaves=True))
        if lease.asked & self.alive:
            answered.wait(_FAREWELL)

    def _beat(self) -> None:
        """Ask for signs of life, again and again."""
        while not self._over.wait(PAUSE):
            for j in self.site.neighbours:
                if self.site.relay or (
                    self.lease and not self.lease.left and j in self.lease.asked
                ):
                    try:
                        self._ask_beat(j)
                    except zenoh.ZError as error:
                        self._warn(f"could not ask {j} for a sign of life: {error}")
            if self.site.relay:
                self._on_presence()

    def _ask_beat(self, j: str) -> None:
        self._ask(j, "beat", self._hear_beat, self._beats.ask(j))

    def _hear_beat(self, j: str, data: bytes) -> None:
        self._beats.hear(j, data)
        with self.post.changing():
            pass  # a lease may be held now
        if self.site.relay:
            self._on_presence()

    def _on_presence(self) -> None:
        """Behind a relay: who is up by its own signature."""
        present = self._beats.present
        with self.post.changing():
            came, gone = present - self.alive, self.alive - present
            self.alive -= gone
            self.alive |= came
        for j in (*came, *gone):
            self._tell(f"{j} is {'up' if j in came else 'away'}", INFO)

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
            what = "an answer of" if kind == "welcome" else what

        def ask(author: str) -> None:
            for whose, sort, number in want.wanted(self.post, author):
                for j in self.site.neighbours if is_broadcast(sort, number) else (whose,):
                    self._ask(j, _letter(sort, number, whose), self._take)

        if self.goes_on and not self.edges:
            pause = 0.0 if want.late else _ASK
            self._until(
                lambda: want.missing(self.post),
                *(ask, what, pause),
                silent=self.patience,
                letters=True,
            )
        else:
            signs = self.goes_on and n > 0
            silent = self.patience if self.goes_on and not signs else None  # all are needed then
            self._until(
                lambda: want.missing(self.post), ask, what, signs=signs, silent=silent, letters=True
            )

    def agree(self, *, begun: bool = False) -> None:
        """Wait until all neighbours are up and run the same configuration; raise if one of them
        knows of a message of mine that my ledger does not know.

        Parameters
        ----------
        begun
            Whether the node has taken part before: then a run that goes on without nodes that stay
            away needs one greeting, and waits no longer than its patience for the others.
        """
        held: dict[str, list[Letter]] = {}  # of this node's messages, the last

        def greeted(j: str, data: bytes) -> None:
            try:
                last = self.greetings.read(j, data)
            except Differs as error:  # it must hear of it too, before this node ends
                back = self.greetings.write(None, error.asks, refuses=True)
                self._ask(j, "hello", lambda j, data: None, back)
                if self.agreed:  # the other one changed
                    self._reject(" ".join(str(error).split()))
                self.stop.wait(_FAREWELL)
                self._refuse(ConfigError(str(error)))
                return
            with self.post.changing():
                held[j] = last

        if self.goes_on and not self.edges:  # a node that sends nothing holds sums all the same
            kept = self.post.latest(self.site.me) or self.post.rounds_of(self.site.me, "held")
            begun = bool(kept)
        begun = begun and self.goes_on
        absent = self.post.given_up | self.site.revoked() if begun else frozenset[str]()
        needed = [j for j in self.site.neighbours if j not in absent] or self.site.neighbours

        def greet(needed: Collection[str], silent: float) -> None:
            held.clear()
            try:
                self._until(
                    lambda: [j for j in needed if j not in held],
                    lambda j: self._ask(j, "hello", greeted, self.greetings.write(None)),
                    "a greeting of",
                    pause=0.0,
                    silent=silent,
                )
            except NodeLost:
                if not (begun and held):
                    raise
            kept = self.post.latest(self.site.me)
            held[str(self.post.path)] = [self.greetings.own(data) for data in kept]
            for where, letters in held.items():  # here, because a ledger serves one thread
                for letter in letters:
                    self.greetings.require_known(where, letter)

        # whoever is up answers a greeting at once, whatever it works on
        silent = self.patience / (_PART if begun and not self.edges else 1)
        greet(needed, silent)
        self.agreed = True
        self._claim()
        if self.lease is not None:  # what another life of it sent before this one had the name
            greet(self.lease.granted & {*needed}, silent)

    def _claim(self) -> None:
        """Wait until neighbours granted this node's name to this life of it."""
        lease = self.lease
        if lease is None:
            return

        def ask(j: str) -> None:
            lease.asked.add(j)
            self._ask_beat(j)

        silent = self.patience if self.goes_on else None
        self._until(lambda: lease.unasked(self.alive), ask, "the lease of", 0.0, silent=silent)
        lease.asked.update(lease.neighbours)  # whoever was not needed, or comes later, confirms too

    def part_ways(self) -> list[str]:
        """Stay until every neighbour is done too, or was and left; returns those that did not say
        so in time. Where the run goes on without silent nodes, nobody stays longer for one that is
        up than for one that is away.
        """
        n, heard = self.post.rules.rounds, set[str]()
        mine = self.post.letter("done", n)

        def farewell(j: str, data: bytes) -> None:
            self._take(j, data)
            with self.post.changing():
                heard.add(j)

        def missing() -> list[str]:
            near = [j for j in self.site.members if j not in self.post.given_up]
            silent = [j for j in near if j not in heard]
            absent = self.post.missing("done", n, silent)
            return [j for j in silent if j in self.alive or j in absent]

        try:
            self._until(
                missing,
                lambda j: self._ask(j, "done", farewell, mine, self.greetings.write(None)),
                "the farewell of",
                pause=0.0,
                silent=self.patience if self.goes_on else None,
            )
        except NodeLost:
            self.waiting = ""
            return missing()
        return []

    def _until(
        self,
        missing: Callable[[], list[str]],
        ask: Callable[[str], None],
        what: str,
        pause: float = _ASK,
        *,
        signs: bool = False,
        silent: float | None = None,
        letters: bool = False,
    ) -> None:
        """Wait until nothing is missing, and ask for what is. A neighbour that is up is waited for
        without end, one that is away for a while.

        Parameters
        ----------
        missing, ask, what, pause
            Whose words are missing; asks for them; what they are; seconds before asking.
        signs
            Whether neighbours that are up must give signs of waiting themselves.
        silent
            Seconds after which whoever does not answer is given up, up or not.
        letters
            Whether they are letters of a round: those of a node that is out never come.
        """
        patience = self.patience if silent is None else silent
        began = seen = logged = monotonic()
        due = seen + pause
        while names := missing():
            if self._refused:
                raise self._refused
            if self.stop.is_set():
                raise Stopped
            now = monotonic()
            if letters:
                self._require_members(names)
            needed = names if set(names) <= set(self.site.neighbours) else self.site.neighbours
            away = [j for j in needed if j not in self.alive]
            if not away and silent is None:
                seen = now
            if signs:
                self._say_that_it_waits(now)
                self._require_signs(names, began, now, what)
                seen = now
            self.waiting = f"{what} {', '.join(names)}"
            if now - seen > patience:
                raise NodeLost(
                    f"{self.site.me} waited {patience:g} seconds for {self.waiting}; away: "
                    f"{', '.join(away or names)}. It stops and loses nothing: see to them (one "
                    "whose certificate is refused looks like one that is away), then start this "
                    f"node again{f'. {FOR_GOOD}' if letters else ''}",
                    tuple(names),
                )
            if now - logged > _LOG_PAUSE:
                logged = now
                LOG.info("waiting for %s", self.waiting)
            with self.post.changed:
                if missing() == names:
                    self.post.changed.wait(max(0.0, due - now))
            if monotonic() >= due:  # whatever else keeps changing
                for name in missing():
                    ask(name)
                pause = min(max(2 * pause, _ASK), _ASK_SLOWLY)
                due = monotonic() + pause
        if self._refused:
            raise self._refused
        self.waiting = ""

    def _require_members(self, names: list[str]) -> None:
        """Go on without nodes that are out, where the run does so, or end it here."""
        # of an edge its two ends decide, of a sum all members
        near = set(self.site.neighbours if self.edges and self.goes_on else names)
        if not (lost := sorted(self.site.revoked() & set(names) & near)):
            return
        who = ", ".join(lost)
        if self.goes_on:
            raise NodeLost(f"{self.site.me} goes on without {who}: revoked", tuple(lost))
        raise ConfigError(
            f"the authority revoked {who}, and this run waits for everybody. Make a model of what "
            "was released (`dynadp model`), close the run (`dynadp ledger close`), and begin "
            "another with a run file without it"
        )

    def _say_that_it_waits(self, now: float) -> None:
        """Tell neighbours now and then that this node is there, and waits for others itself."""
        if now - self._said > min(1.0, self.patience / 8):
            self._said = now
            signed = self._wrap.close(b"waits", self.site.neighbours)  # behind a relay
            self._session.put(self._key(self.site.me, "waits"), signed)

    def _require_signs(self, names: list[str], began: float, now: float, what: str) -> None:
        """Raise where one of these gave no sign for too long: one that waits for others does, but
        not for longer than everybody's patience together.
        """
        longest = self.patience * len(self.post.rules.keys)
        near = self.site.neighbours
        silent = [
            name
            for name in names
            if now - max(began, self._heard.get(name, began))
            > self.patience * (1 if name in near else 3)
            or now - began > longest
        ]
        if silent:
            raise NodeLost(
                f"{self.site.me} waited {now - began:.3g} seconds for {what} {', '.join(silent)}",
                tuple(silent),
            )

    def _on_waits(self, sample: zenoh.Sample) -> None:
        self._handle(sample, lambda via, data: self._heard.update({via: monotonic()}))

    def _ask(
        self,
        j: str,
        what: str,
        answered: Callable[[str, bytes], None],
        payload: bytes | None = None,
        greeting: bytes | None = None,
    ) -> None:
        def reply(answer: zenoh.Reply) -> None:
            if answer.ok is not None:
                self._remember(answer.ok.attachment)
                self._handle(answer.ok, answered)

        if payload is not None:
            payload = self._wrap.close(payload, (j,))
        if greeting is not None:
            greeting = self._wrap.close(greeting, (j,))
        self._session.get(
            self._key(j, what),
            reply,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=_ANSWER,
            payload=payload,
            attachment=greeting,
        )

    def _remember(self, greeting: zenoh.ZBytes | None) -> None:
        """Remember where a neighbour's ledger stands when it parts."""
        if greeting is not None:
            with self._guarded("a neighbour"):
                self.greetings.remember(self._wrap.open(bytes(greeting), self.site.neighbours))

    def _take(self, via: str, data: bytes) -> None:
        letter = self.post.offer(data, via)
        if letter is not None and is_broadcast(letter.kind, letter.round):
            self.publish(data, letter.kind, letter.round, letter.author)

    def _handle(self, sample: zenoh.Sample, action: Callable[[str, bytes], None]) -> None:
        via = self._via(sample)
        with self._guarded(via):
            self._require_member(via)
            action(via, self._opened(sample.payload, via))

    def _require_member(self, name: str) -> None:
        """Refuse, and count, what a node sends that is out."""
        if name in self.site.revoked():
            with self.post.changing():
                self.alive.discard(name)
            self._reject(f"{name} is on the authority's list of revoked certificates")

    def _reject(self, reason: str) -> NoReturn:
        """Count a refusal, for the status."""
        with self.post.changing():
            self.post.rejected.count(reason)
        raise Rejected(reason) from None

    def _opened(self, payload: zenoh.ZBytes, *senders: str) -> bytes:
        """Take what one of these senders sent out of its envelope; counts refusals."""
        try:
            return self._wrap.open(bytes(payload), senders)
        except Rejected as reason:
            with self.post.changed:
                whose = senders[0] if len(senders) == 1 else "a neighbour"
                self.post.rejected.count(f"{whose}: {reason}")
            raise

    @contextmanager
    def _guarded(self, via: str) -> Iterator[None]:
        """Refuse, count and log what comes from outside and is wrong; it never ends a thread."""
        try:
            yield
        except Rejected as reason:
            self._warn(f"refused a letter of {via}: {reason}")
        except (RecordError, NameTaken) as error:
            # this node's own disk, where nothing can be kept any more; or its name
            self._refuse(error)
        except Exception as error:
            self._warn(f"refused what {via} sent: {type(error).__name__}")

    def _refuse(self, error: DynadpError) -> None:
        """Raise the error where the node waits."""
        with self.post.changing():
            self._refused = self._refused or error

    def _on_alive(self, sample: zenoh.Sample) -> None:
        j, up = self._via(sample), sample.kind == zenoh.SampleKind.PUT
        if up and j in self.site.revoked():
            return
        self._tell(f"{j} is {'up' if up else 'away'}", INFO)
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
                if kind in KINDS and n.isdecimal() and len(n) <= _DIGITS:
                    known, name = kind, unquote(author)
                    if name != self.site.me or self.lease is None or self.lease.held:
                        self._reply(query, self.post.answer(name, known, int(n)))
            elif query.payload is not None:
                data = bytes(query.payload)
                if not (what == "hello" and is_bare(data)):
                    data = self._opened(query.payload, *self.site.neighbours)
                self._require_member(verify(data, self.post.rules.keys).author)
                if what == "beat":
                    if (answer := self._beats.answer(data)) is not None:
                        self._reply(query, answer[1], answer[0])
                else:
                    self._answer(query, data)

    def _answer(self, query: zenoh.Query, data: bytes) -> None:
        """Answer a greeting or a farewell with this node's own."""
        letter, post = verify(data, self.post.rules.keys), self.post
        if letter.kind == "done":
            post.offer(data, letter.author)
            self._remember(query.attachment)
            mine = post.get(self.site.me, "done", post.rules.rounds)
            self._reply(query, mine, letter.author, greeting=self.greetings.write(None))
        elif letter.kind == "hello" and letter.author in self.site.neighbours:
            body = self.greetings.body(letter)
            asks, old = str(body["asks"])[:64], "wire" not in body
            bare = self.site.relay and is_bare(bytes(query.payload or b""))
            if bare and not old:
                raise Rejected("a greeting without an envelope")
            # first the answer: both sides see a difference
            if bare:  # the other knows no envelopes
                query.reply(query.key_expr, self.greetings.notice(asks))
            else:
                answer = self.greetings.write(letter.author, asks, refuses=old)
                self._reply(query, answer, letter.author)
            try:
                self.greetings.compare(letter, body)
            except ConfigError as error:
                # an old greeting, or one after all agreed, ends nobody's run
                if not self.agreed and body["answers"] == self.greetings.question:
                    self._refuse(error)
                if not isinstance(error, NoCommonWire):
                    raise Rejected("of another configuration") from None
                self._reject(str(error))
            self.greetings.remember(data)

    def _reply(
        self, query: zenoh.Query, data: bytes | None, *readers: str, greeting: bytes | None = None
    ) -> None:
        if data is None:
            return
        near = readers or self.site.members
        beside = None if greeting is None else self._wrap.close(greeting, near)
        query.reply(query.key_expr, self._wrap.close(data, near), attachment=beside)

    def _key(self, node: str, rest: str) -> str:
        return f"{self.prefix}/{quote(node, safe='')}/{rest}"

    def _via(self, sample: zenoh.Sample) -> str:
        """Return the node under whose name something came."""
        return unquote(str(sample.key_expr).split("/")[2])


def _letter(kind: Kind, n: int, author: str) -> str:
    return f"letter/{kind}/{n}/{quote(author, safe='')}"
