"""Letters between nodes: small versioned binary messages, signed by their authors (Ed25519).

::

    DYDP | version | kind | SHA-256 of the run's name | hash of the configuration | round | lengths
    | author | body | signature

Version 2 has a note before the body, with its length: what a node says about others beside its
vector. A letter without a note is of version 1. Numbers are little-endian. The body of a message is
d float64 values on the public grid, of a sealed one d whole numbers modulo 2^64; that of a greeting
is JSON.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np

from dynadp._arrays import Array
from dynadp.errors import Rejected

Kind = Literal[
    "hello",
    "message",
    "mean",
    "done",
    "sum",
    "key",
    "sealed",
    "join",
    "welcome",
    "without",
    "held",
    "back",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
VERSION, NOTED = 1, 2  # without and with a note
_NOTE = struct.Struct("<I")
_HEAD = struct.Struct("<4sBB32s32sIIB")
MAGIC, _SIGNATURE = b"DYDP", 64


class Signer(Protocol):
    """A private key."""

    def sign(self, data: bytes, /) -> bytes:
        """The signature."""


class Verifier(Protocol):
    """A public key."""

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise unless the signature is good."""


@dataclass(frozen=True)
class Letter:
    """One message and its author.

    Attributes
    ----------
    kind
        ``hello`` before the run, ``message`` of a round, ``mean`` of the last messages, ``done``
        after the run, ``sum`` of a round of algorithm "sum", ``sealed`` of a sealed sum; ``key``,
        the public half of a node's key for the run; ``join`` and ``welcome``, by which a node that
        was away is taken in again (their round is the epoch); ``without``, whom a node proposes to
        leave out of a sum, ``held``, over whom it holds one, and ``back``, by which a node asks
        the members of sums to take it in again (their round is the number of a sum).
    run, config
        SHA-256 of the run's name, and the hash of its configuration: 32 bytes each.
    author, round
        Whose, and of which round.
    body
        The rest.
    note
        What it says beside its vector, as JSON; empty for nothing.
    """

    kind: Kind
    run: bytes = field(repr=False)
    config: bytes = field(repr=False)
    author: str
    round: int
    body: bytes = field(repr=False)
    note: bytes = field(default=b"", repr=False)

    def sealed(self, key: Signer) -> bytes:
        """Return the letter as bytes, with the author's signature: the same bytes every time."""
        name = self.author.encode()
        lengths = len(self.body), len(name)
        version = NOTED if self.note else VERSION
        head = _HEAD.pack(
            MAGIC, version, KINDS.index(self.kind), self.run, self.config, self.round, *lengths
        )
        note = _NOTE.pack(len(self.note)) + self.note if self.note else b""
        signed = head + name + note + self.body
        return signed + key.sign(signed)

    @property
    def values(self) -> Array:
        """The body as float64 values."""
        return np.frombuffer(self.body, "<f8").astype(float)


def verify(data: bytes, keys: Mapping[str, Verifier]) -> Letter:
    """Return the letter if it is well formed and signed by the author that it names, one of
    ``keys``; otherwise raise Rejected.
    """
    if len(data) < _HEAD.size + _SIGNATURE:
        raise Rejected("malformed: too short")
    magic, version, kind, run, config, round_, body_length, name_length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise Rejected("malformed: not a message of dynadp")
    if version not in (VERSION, NOTED):
        raise Rejected(
            f"version {version} of messages, this program reads {VERSION} and {NOTED}: run the "
            "same version of dynadp everywhere"
        )
    start = after = _HEAD.size + name_length
    if version == NOTED and len(data) >= start + _NOTE.size:
        after += _NOTE.size + _NOTE.unpack_from(data, start)[0]
    if kind >= len(KINDS) or len(data) != after + body_length + _SIGNATURE:
        raise Rejected("malformed: lengths do not add up")
    if (version == NOTED) != (after > start + _NOTE.size):
        raise Rejected("malformed: a note is missing")
    try:
        author = data[_HEAD.size : start].decode()
    except UnicodeDecodeError:
        raise Rejected("malformed: the author's name is not UTF-8") from None
    if author not in keys:
        raise Rejected("from a node that is not in the run")
    try:
        keys[author].verify(data[-_SIGNATURE:], data[:-_SIGNATURE])
    except Exception:
        raise Rejected(
            f"forged: not signed with the key that the run file names for {author}"
        ) from None
    note = data[start + _NOTE.size : after]
    return Letter(KINDS[kind], run, config, author, round_, data[after:-_SIGNATURE], note)


def overhead(name: int) -> int:
    """Bytes of a letter beside note and body, for an author's name of so many bytes."""
    return _HEAD.size + name + _NOTE.size + _SIGNATURE


def run_id(name: str) -> bytes:
    """Return the SHA-256 of the run's name."""
    return hashlib.sha256(name.encode()).digest()
