"""What neighbours say to each other before round 1: which versions of the wire they speak, that
they run the same configuration, and which message of the other they hold.

A node whose ledger does not know a message that a neighbour holds goes no further: it would draw
noise twice for one round.
"""

import base64
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from secrets import token_hex
from typing import Any

from dynadp._files import digest
from dynadp.engines.bounds import read_json, shortened
from dynadp.engines.inbox import Inbox
from dynadp.engines.letters import Letter, verify
from dynadp.engines.peers import PeerMemory
from dynadp.engines.zenoh import wire
from dynadp.engines.zenoh.log import LOG
from dynadp.errors import ConfigError, LedgerDamaged, Rejected
from dynadp.privacy import Mark

_CLAIMS = 64  # of one neighbour, that are looked at


class Differs(ConfigError):
    """A neighbour that answered just now runs another configuration, or speaks no common version
    of the wire.

    Attributes
    ----------
    asks
        What it asks itself.
    """

    def __init__(self, message: str, asks: str) -> None:
        super().__init__(message)
        self.asks = asks


@dataclass
class Greetings:
    """Writes and checks the greetings of one node.

    Attributes
    ----------
    post
        The node's letters.
    config
        What all nodes must agree on: public, JSON.
    known
        The bytes of the node's own message of a round, as its ledger knows them; None where it
        knows none. None at all in a SIMULATION, which has no ledger and keeps its messages no
        longer than it lasts.
    ledger, peers
        Where this node's ledger stands, and what the node remembers of its neighbours'; None in a
        SIMULATION.
    question
        Greetings must answer this: an old one could hide what a neighbour holds.
    claims
        Where this node's ledger stood, by its own signature, as neighbours remember it.
    speaks, taken
        The lowest and highest version of the wire that this node speaks; the version taken with
        each neighbour.
    """

    post: Inbox
    config: Mapping[str, Any] = field(repr=False)
    known: Callable[[int], bytes | None] | None = field(repr=False)
    ledger: Mark | None = None
    peers: PeerMemory | None = field(default=None, repr=False)
    question: str = field(default_factory=lambda: token_hex(16))
    claims: dict[str, list[Mark]] = field(default_factory=dict, repr=False)
    speaks: tuple[int, int] = field(default_factory=lambda: wire.SPOKEN)
    taken: dict[str, int] = field(default_factory=dict)

    def write(self, to: str | None, answers: str | None = None, *, refuses: bool = False) -> bytes:
        """Return a greeting; for a neighbour that asked, with its last messages that are held here.

        Parameters
        ----------
        to, answers
            Who asked, and its question.
        refuses
            Whether it shall differ for a neighbour that knows of no versions of the wire: that
            one prints the notice, and goes no further.
        """
        held = dict[str, str | None](last=None, spare=None)
        if to is not None:
            for name in held:
                data = self.post.last(to, spare=name == "spare")
                held[name] = None if data is None else base64.b64encode(data).decode()
        told = {} if to is None else self._told()
        body: dict[str, Any] = {
            "config": {wire.NOTICE: wire.notice(self.speaks), **self.config},
            "wire": list(self.speaks),
            **held,
            **told,
            "asks": self.question,
            "answers": answers,
        }
        if self.ledger is not None:
            body["ledger"] = self.ledger.to_json()
        if self.peers is not None and to is not None:
            body["remembers"] = self.peers.of(to)
        rules = self.post.rules
        config = bytes.fromhex(digest(body["config"])) if refuses else rules.config
        letter = Letter("hello", rules.run, config, rules.me, 0, json.dumps(body).encode())
        return letter.sealed(self.post.key)

    def notice(self, answers: str) -> bytes:
        """Return an answer that says nothing but who has to upgrade: it goes without an envelope,
        so that whoever carries it may read it.
        """
        config = {wire.NOTICE: wire.notice(self.speaks)}
        said = {"config": config, "wire": list(self.speaks), "last": None, "spare": None}
        body = {**said, "asks": self.question, "answers": answers}
        rules, differs = self.post.rules, bytes.fromhex(digest(config))
        letter = Letter("hello", rules.run, differs, rules.me, 0, json.dumps(body).encode())
        return letter.sealed(self.post.key)

    def _told(self) -> dict[str, list[str]]:
        """Over whom this node holds its last sums; nothing in runs that wait for all."""
        if self.post.rules.ballots is None:
            return {}
        return {"held": [base64.b64encode(data).decode() for data in self.post.last_held()]}

    def compare(self, letter: Letter, greeting: Mapping[str, Any]) -> None:
        """Raise where the author of a greeting speaks no common version of the wire, or runs
        another configuration.
        """
        rules, theirs = self.post.rules, wire.spoken_by(greeting)
        taken = wire.common(self.speaks, theirs)
        if taken is None:
            raise wire.NoCommonWire(wire.refusal(rules.me, self.speaks, letter.author, theirs))
        if letter.config == rules.config:
            if self.taken.get(letter.author) != taken:
                LOG.info("%s and this node speak version %d of the wire", letter.author, taken)
            self.taken[letter.author] = taken
            return
        mine, shown = json.loads(json.dumps(self.config)), greeting["config"]
        if isinstance(shown, dict):
            shown = {name: value for name, value in shown.items() if name != wire.NOTICE}
        found = differences(mine, shown)[:20] or ["nothing that can be named"]
        lines = "\n".join(f"  {shortened(line)}" for line in found)
        raise ConfigError(
            f"{rules.me} and {letter.author} do not run the same configuration; they differ in\n"
            f"{lines}"
        )

    def read(self, author: str, data: bytes) -> list[Letter]:
        """Check a neighbour's answer; return the last messages of this node that it holds: of a
        round, and of a spare attempt.
        """
        letter = verify(data, self.post.rules.keys)
        if letter.kind != "hello" or letter.author != author:
            raise Rejected(f"a greeting under the name of {author} that is not its own")
        body = self.body(letter)
        if body["answers"] != self.question:
            raise Rejected("a greeting that answers another question: an old one, sent again")
        try:
            self.compare(letter, body)
        except ConfigError as error:
            raise Differs(str(error), str(body["asks"])[:64]) from None
        self.remember(data)
        self.claims[author] = self._claimed(author, body.get("remembers", []))
        for one in body.get("held", ())[:2]:  # who takes part, as the neighbour holds it
            self.post.offer(base64.b64decode(one), author)
        held = (body["last"], body.get("spare"))
        return [self.own(base64.b64decode(one)) for one in held if one is not None]

    def body(self, letter: Letter) -> dict[str, Any]:
        """Read what a greeting says, as far as it is not longer than one can be."""
        body = read_json(letter.body, self.largest)
        if not isinstance(body, dict):
            raise Rejected("malformed: a greeting that says nothing")
        return body

    @cached_property
    def largest(self) -> int:
        """Bytes of a greeting, at most: several times this node's own, with two letters in it, and
        what is remembered of ledgers.
        """
        own = len(json.dumps(self.config))
        return 2**18 + (4 + 2 * _CLAIMS) * own + 4 * self.post.rules.largest_letter

    def remember(self, data: bytes) -> None:
        """Remember where a neighbour's ledger stands, from its greeting or its farewell."""
        letter = verify(data, self.post.rules.keys)
        if self.peers is None or letter.kind != "hello":
            return
        if letter.author not in self.post.rules.neighbours:
            return
        body = self.body(letter)
        shown = body.get("ledger")
        # one that shows what it remembers would be shown within others, and grow with every run
        if shown is not None and "remembers" not in body:
            self.peers.remember(letter.author, Mark.from_json(shown), data)

    def _claimed(self, author: str, letters: list[str]) -> list[Mark]:
        """Return where this node's ledger stood by its own signature; what it did not sign is
        logged, and stops nobody.
        """
        rules, found = self.post.rules, []
        for text in letters[:_CLAIMS]:
            try:
                letter = verify(base64.b64decode(text), {rules.me: rules.keys[rules.me]})
                if letter.kind != "hello":
                    raise Rejected("no greeting")
                found.append(Mark.from_json(json.loads(letter.body)["ledger"]))
            except (Rejected, ValueError, KeyError, TypeError, AttributeError):
                LOG.warning(
                    "%s claims to remember this node's ledger, without this node's signature: "
                    "ignored",
                    author,
                )
        return found

    def require_contained(
        self, contains: Callable[[Mark], bool], disowned: Collection[str]
    ) -> None:
        """Raise if the ledger does not hold where it stood, by this node's own signature.

        Parameters
        ----------
        contains
            Whether the ledger stood there once.
        disowned
            Beginnings of hashes of other ledgers that this node has had on purpose.
        """
        for author, marks in self.claims.items():
            for mark in marks:
                names = mark.first, mark.head
                if contains(mark) or any(n.startswith(one) for one in disowned for n in names):
                    continue
                other = self.ledger is None or mark.first != self.ledger.first
                raise LedgerDamaged(
                    f"{author} remembers this node's ledger with {mark.length} entries, by this "
                    "node's own signature, and the ledger that is here does not contain that: it "
                    "was rolled back to an older copy, or another is in its place. Nothing was "
                    "drawn. Put the newest copy back (dynadp ledger restore), or enter what is "
                    "missing from signed letters (dynadp ledger recover). Only where nothing that "
                    "it charged is missing (a trial on rows of nobody, a recovery without an "
                    "anchor), name it in NODE.toml: other_ledgers = "
                    f'["{names[not other][:16]}"]'
                )

    def own(self, data: bytes) -> Letter:
        """Check a message that this node is said to have sent in this run."""
        rules = self.post.rules
        letter = verify(data, {rules.me: rules.keys[rules.me]})
        here = letter.run, letter.config
        if letter.kind not in ("message", "sum", "sealed") or here != (rules.run, rules.config):
            raise Rejected("a greeting that shows no message of this run")
        return letter

    def require_known(self, where: str, letter: Letter) -> None:
        """Raise if the ledger does not know a message of this node that is held somewhere."""
        if self.known is not None and self.known(letter.round) != letter.body:
            raise LedgerDamaged(
                f"{where} holds a message of round {letter.round} with this node's signature that "
                "its ledger does not know: the ledger was restored from an old copy, or another "
                "machine runs under this name. To go on would draw noise twice for one round. "
                "Restore the newest copy. Where there is none, enter what is missing from letters: "
                "`dynadp ledger recover`. Where that fails, leave this run. If `dynadp ledger "
                "show` lists it, never close it, so that its whole plan stays counted. If not, "
                "its releases are missing, and epsilons at one delta do not add: choose a d below "
                "the cap's delta, such as half of it, find the run's total e at that d (`dynadp "
                "account`), and set the cap to epsilon - e and delta - d (`dynadp ledger cap`) "
                "before another begins"
            )


def differences(mine: Any, theirs: Any, place: str = "") -> list[str]:
    """Return where two configurations differ, field by field; what differs is shown shortened."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        keys = sorted({*mine, *theirs}, key=str)
        inside = [(f"{place}.{key}".lstrip("."), mine.get(key), theirs.get(key)) for key in keys]
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        inside = [(f"{place}[{i}]", mine[i], theirs[i]) for i in range(len(mine))]
    else:
        return (
            []
            if mine == theirs
            else [f"{shortened(place)}: {_shown(mine)} here, {_shown(theirs)} there"]
        )
    return [line for where, a, b in inside for line in differences(a, b, where)]


def _shown(value: Any) -> str:
    return shortened(repr(value), 120)
