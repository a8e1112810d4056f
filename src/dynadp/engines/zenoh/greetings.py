"""What neighbours say to each other before round 1: that they run the same configuration, and which
message of the other they hold.

A node whose ledger does not know a message that a neighbour holds goes no further: it would draw
noise twice for one round.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from dynadp.engines.inbox import Inbox
from dynadp.engines.letters import Letter, verify
from dynadp.errors import ConfigError, LedgerDamaged, Rejected


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
    question
        Greetings must answer this: an old one could hide what a neighbour holds.
    """

    post: Inbox
    config: Mapping[str, Any] = field(repr=False)
    known: Callable[[int], bytes | None] | None = field(repr=False)
    question: str = field(default_factory=lambda: token_hex(16))

    def write(self, to: str | None, answers: str | None = None) -> bytes:
        """Return a greeting; for a neighbour that asked, with its last messages that are held here.

        Parameters
        ----------
        to, answers
            Who asked, and its question.
        """
        held = dict[str, str | None](last=None, spare=None)
        if to is not None:
            for name in held:
                data = self.post.last(to, spare=name == "spare")
                held[name] = None if data is None else base64.b64encode(data).decode()
        told = {} if to is None else self._told()
        body = {
            "config": self.config,
            **held,
            **told,
            "asks": self.question,
            "answers": answers,
        }
        rules = self.post.rules
        letter = Letter("hello", rules.run, rules.config, rules.me, 0, json.dumps(body).encode())
        return letter.sealed(self.post.key)

    def _told(self) -> dict[str, list[str]]:
        """Over whom this node holds its last sums; nothing in runs that wait for all."""
        if self.post.rules.ballots is None:
            return {}
        return {"held": [base64.b64encode(data).decode() for data in self.post.last_held()]}

    def compare(self, letter: Letter, theirs: Mapping[str, Any]) -> None:
        """Raise where the author of a greeting runs another configuration."""
        rules = self.post.rules
        if letter.config == rules.config:
            return
        mine = json.loads(json.dumps(self.config))
        found = differences(mine, theirs) or ["nothing that can be named"]
        lines = "\n".join(f"  {line}" for line in found[:20])
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
        body = json.loads(letter.body)
        self.compare(letter, body["config"])
        if body["answers"] != self.question:
            raise Rejected("a greeting that answers another question: an old one, sent again")
        for one in body.get("held", ())[:2]:  # who takes part, as the neighbour holds it
            self.post.offer(base64.b64decode(one), author)
        held = (body["last"], body.get("spare"))
        return [self.own(base64.b64decode(one)) for one in held if one is not None]

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
                "Restore the newest copy. Where there is none, leave this run. If `dynadp ledger "
                "show` lists it, never close it, so that its whole plan stays counted. If not, "
                "its releases are missing, and epsilons at one delta do not add: choose a d below "
                "the cap's delta, such as half of it, find the run's total e at that d (`dynadp "
                "account`), and set the cap to epsilon - e and delta - d (`dynadp ledger cap`) "
                "before another begins"
            )


def differences(mine: Any, theirs: Any, place: str = "") -> list[str]:
    """Return where two configurations differ, field by field."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        keys = sorted({*mine, *theirs}, key=str)
        inside = [(f"{place}.{key}".lstrip("."), mine.get(key), theirs.get(key)) for key in keys]
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        inside = [(f"{place}[{i}]", mine[i], theirs[i]) for i in range(len(mine))]
    else:
        return [] if mine == theirs else [f"{place}: {mine!r} here, {theirs!r} there"]
    return [line for where, a, b in inside for line in differences(a, b, where)]
