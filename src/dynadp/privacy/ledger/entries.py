"""The entries of a ledger, chained by their hashes.

hash = SHA-256(id, at, who, kind, run, round, content, SHA-256(message), previous).
"""

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dynadp._files import canonical_json, digest, parse_json
from dynadp.errors import DeclarationError

START = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes
    ----------
    id, at, who
        1, 2, 3, ...; when, by the clock of its author, and who the author was.
    kind, run, round
        ``open``, ``cap``, ``reserve``, ``spend`` or ``close``, and what it is about.
    content, message
        The rest, as canonical JSON; the bytes that a spend releases.
    previous, hash
        The hash of the entry before, and its own.
    """

    id: int
    at: str
    who: str
    kind: str
    run: str | None = None
    round: int | None = None
    content: str = ""
    message: bytes | None = field(default=None, repr=False)
    previous: str = START
    hash: str = ""

    @property
    def row(self) -> tuple[Any, ...]:
        """All values, in the order of the attributes."""
        return tuple(vars(self).values())

    @property
    def details(self) -> dict[str, Any]:
        """The content, parsed."""
        return dict(parse_json(self.content))

    @property
    def message_hash(self) -> str | None:
        """SHA-256 of the message."""
        return None if self.message is None else hashlib.sha256(self.message).hexdigest()

    def digest(self) -> str:
        """Return what its hash must be."""
        before = [self.id, self.at, self.who, self.kind, self.run, self.round, self.content]
        return digest([*before, self.message_hash, self.previous])

    def sealed(self, id: int, previous: str, details: dict[str, Any]) -> "Entry":
        """Return the entry at its place in the chain."""
        parse_time(self.at)
        require_line("who", self.who)
        if self.run is not None:
            require_line("run", self.run)
        entry = replace(self, id=id, content=canonical_json(details), previous=previous)
        return replace(entry, hash=entry.digest())


def require_line(name: str, value: str) -> str:
    """Return the value, if it is a line of text."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise DeclarationError(f"{name} is {value!r}; expected a line of text")
    return value


def parse_time(at: str) -> datetime:
    """Return a time that has an offset from UTC."""
    try:
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError("no offset")
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"at is {at!r}; expected a time like 2026-03-01T12:00:00+00:00"
        ) from error
    return moment
