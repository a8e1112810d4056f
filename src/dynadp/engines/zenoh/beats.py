"""Signs of life between neighbours: signed questions, and signed answers to just these.

An answer proves that its author is up, whoever carried it, and says whether it grants this node's
lease (:mod:`dynadp.engines.zenoh.leases`).
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from secrets import token_hex
from threading import Lock
from typing import Any

from dynadp.engines.bounds import read_json
from dynadp.engines.inbox import Inbox
from dynadp.engines.letters import Letter, verify
from dynadp.engines.zenoh.clock import elapsed
from dynadp.engines.zenoh.leases import Grants, Lease
from dynadp.errors import Rejected

PAUSE, FRESH = 1.0, 4.0  # seconds between two questions; that an answer proves presence for
_LARGEST = 4096  # bytes of what one says
_OPEN, _EACH = 8, 20  # questions that may be open, and answers to one neighbour in a second
_NOT_GRANTED = {  # what a lease's answer means, for the log
    "held": "to a second life of it: another machine runs under it, or it was killed a moment ago",
    "old": "to a life of it before the last one: a copy of its machine, or its disk put back",
}


class Beats:
    """Writes and reads the signs of life of one node.

    Parameters
    ----------
    post
        Its letters.
    grants, lease
        What it granted to others; its own lease, where it needs one.
    warn
        Logs that a name was not granted.
    """

    def __init__(
        self, post: Inbox, grants: Grants, lease: Lease | None, warn: Callable[[str], None]
    ) -> None:
        self.post, self.grants, self.lease, self._warn = post, grants, lease, warn
        self._open: dict[str, OrderedDict[str, float]] = {}
        self._proven: dict[str, float] = {}
        self._answered: dict[str, tuple[int, int]] = {}
        self._lock = Lock()

    @property
    def present(self) -> set[str]:
        """Who proved a moment ago that it is up."""
        now = elapsed()
        return {j for j, sent in list(self._proven.items()) if now - sent < FRESH}

    def ask(self, j: str, *, leaves: bool = False) -> bytes:
        """Return a question to a neighbour, with a request for the lease where one is wanted."""
        asks, body = token_hex(16), dict[str, Any]()
        if self.lease is not None and j in self.lease.asked:
            life = self.lease.life
            body = {"life": life.id, "number": life.number, "leaves": leaves}
        with self._lock:
            waiting = self._open.setdefault(j, OrderedDict())
            waiting[asks] = elapsed()
            while len(waiting) > _OPEN:
                waiting.popitem(last=False)
        return self._letter({"to": j, "asks": asks, **body})

    def answer(self, data: bytes) -> tuple[str, bytes] | None:
        """Return who asked, and the answer; None where it asks too often."""
        letter, body = self._read(data)
        author, second = letter.author, int(elapsed())
        with self._lock:
            when, count = self._answered.get(author, (second, 0))
            count = count + 1 if when == second else 1
            self._answered[author] = second, count
            if count > _EACH:
                return None
            told = dict[str, Any]()
            if "life" in body:
                life, number = body["life"], body["number"]
                if not (isinstance(life, str) and len(life) <= 64 and type(number) is int):
                    raise Rejected("malformed: no life of a node")
                told = self.grants.answer(author, life, number, leaves=bool(body.get("leaves")))
        if why := _NOT_GRANTED.get(told.get("lease", "")):
            self._warn(f"did not grant the name {author} {why}")
        return author, self._letter({"to": author, "answers": str(body["asks"])[:64], **told})

    def hear(self, j: str, data: bytes) -> None:
        """Take the answer of a neighbour to an open question."""
        letter, body = self._read(data)
        if letter.author != j:
            raise Rejected(f"a sign of life under the name of {j} that is not its own")
        with self._lock:
            sent = self._open.get(j, OrderedDict()).pop(str(body.get("answers")), None)
        if sent is None:
            raise Rejected("a sign of life that answers no open question: an old one, sent again")
        self._proven[j] = max(sent, self._proven.get(j, sent))
        if self.lease is not None:
            self.lease.hear(j, body, sent)

    def _letter(self, body: Mapping[str, Any]) -> bytes:
        rules = self.post.rules
        content = json.dumps(body).encode()
        return Letter("hello", rules.run, rules.config, rules.me, 0, content).sealed(self.post.key)

    def _read(self, data: bytes) -> tuple[Letter, Mapping[str, Any]]:
        if len(data) > _LARGEST:
            raise Rejected("malformed: a sign of life that is too long")
        rules = self.post.rules
        letter = verify(data, rules.keys)
        if letter.kind != "hello" or letter.author not in rules.neighbours:
            raise Rejected("a sign of life of no neighbour")
        if (letter.run, letter.config) != (rules.run, rules.config):
            raise Rejected("a sign of life of another run or configuration")
        body = read_json(letter.body, _LARGEST)
        if not isinstance(body, dict) or body.get("to") != rules.me:
            raise Rejected("a sign of life for somebody else")
        return letter, body
