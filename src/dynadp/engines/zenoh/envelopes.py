"""Letters that only their readers can read, whoever carries them.

::

    salt | for each reader: tag, wrapped content key | letter under the content key

All of it looks like uniform bytes to anybody else. A pair of nodes shares a secret: X25519 of the
keys that belong to their Ed25519 identities, which the run file names (the same curve in another
form, RFC 7748; one key pair is safe for both uses). HKDF-SHA256 makes from it a key for the run
and the direction, and from that and the salt one for each envelope, so no key is used twice.
ChaCha20-Poly1305 wraps the content key for each reader, and the letter under it once for all.
Whoever steals a reader's identity later can open what was recorded: a letter is differentially
private without an envelope.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Any, Protocol

from dynadp.engines.letters import MAGIC
from dynadp.errors import Rejected

_P = 2**255 - 19
_SALT, _TAG, _KEY = 32, 16, 32
_START = struct.Struct("<I")  # where the letter begins
_WRAPPED = _KEY + _START.size + 16
_SLOT = _TAG + _WRAPPED
_ONCE = bytes(12)  # the nonce, under keys that are used once
_PURPOSE = b"dynadp envelopes 1"


class Wrapping(Protocol):
    """How letters are wrapped on their way."""

    def close(self, data: bytes, readers: Iterable[str]) -> bytes:
        """Return what is sent."""

    def open(self, data: bytes, senders: Iterable[str]) -> bytes:
        """Return what one of these senders sent; raise Rejected where none of them did."""


class Bare:
    """No wrapping: TLS ends at the reader itself."""

    def close(self, data: bytes, readers: Iterable[str]) -> bytes:
        """Return it as it is."""
        return data

    def open(self, data: bytes, senders: Iterable[str]) -> bytes:
        """Return it as it is."""
        return data


@dataclass
class Envelopes:
    """Wraps a node's letters for their readers, and opens theirs.

    Attributes
    ----------
    me, key, keys
        Its name and Ed25519 key, and the public keys of all nodes.
    run
        The id of the run.
    """

    me: str
    key: Any = field(repr=False)
    keys: Mapping[str, Any] = field(repr=False)
    run: bytes = field(repr=False)
    _pairs: dict[tuple[str, str], bytes] = field(default_factory=dict, repr=False)

    def close(self, data: bytes, readers: Iterable[str]) -> bytes:
        """Return the envelope of a letter for these readers."""
        salt, content, names = token_bytes(_SALT), token_bytes(_KEY), list(readers)
        start = _START.pack(_SALT + _SLOT * len(names))
        slots = []
        for reader in names:
            key = self._pair(self.me, reader)
            wrapped = _cipher(_mac(key, b"wrap", salt)).encrypt(_ONCE, content + start, None)
            slots.append(_mac(key, b"tag", salt)[:_TAG] + wrapped)
        head = salt + b"".join(slots)
        return head + bytes(_cipher(content).encrypt(_ONCE, data, head))

    def open(self, data: bytes, senders: Iterable[str]) -> bytes:
        """Return the letter in an envelope that one of these senders closed for this node."""
        salt = data[:_SALT]
        for sender in senders:
            key = self._pair(sender, self.me)
            at = data.find(_mac(key, b"tag", salt)[:_TAG], _SALT)
            if at >= 0:
                return self._opened(data, data[at + _TAG : at + _SLOT], _mac(key, b"wrap", salt))
        if is_bare(data):
            raise Rejected(
                "a letter without an envelope, as dynadp 0.1.0 sends it: its author has to "
                "upgrade dynadp"
            )
        raise Rejected("no envelope for this node, or not from whom it should be")

    def _opened(self, data: bytes, wrapped: bytes, key: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            inside = bytes(_cipher(key).decrypt(_ONCE, wrapped, None))
            start = _START.unpack(inside[_KEY:])[0]
            content = _cipher(inside[:_KEY])
            return bytes(content.decrypt(_ONCE, data[start:], data[:start]))
        except (InvalidTag, ValueError, struct.error):
            raise Rejected("an envelope that was changed on its way") from None

    def _pair(self, sender: str, reader: str) -> bytes:
        """The key for letters of one node to another, one of which is this one."""
        if (sender, reader) not in self._pairs:
            other = sender if reader == self.me else reader
            secret = hmac.digest(_PURPOSE, shared_secret(self.key, self.keys[other]), "sha256")
            names = [name.encode() for name in (sender, reader)]
            info = b"".join(struct.pack("<I", len(name)) + name for name in names)
            self._pairs[sender, reader] = _mac(secret, self.run, info)
        return self._pairs[sender, reader]


def is_bare(data: bytes) -> bool:
    """Whether it looks like a letter without an envelope, which is uniform bytes."""
    return data.startswith(MAGIC)


def shared_secret(key: Any, public: Any) -> bytes:
    """X25519 of an Ed25519 private key and another's public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    scalar = hashlib.sha512(key.private_bytes_raw()).digest()[:32]
    y = int.from_bytes(public.public_bytes_raw(), "little") % 2**255
    u = (1 + y) * pow(1 - y, -1, _P) % _P  # the same point on Curve25519
    there = X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
    return X25519PrivateKey.from_private_bytes(scalar).exchange(there)


def _mac(key: bytes, purpose: bytes, rest: bytes) -> bytes:
    return hmac.digest(key, purpose + rest + b"\x01", "sha256")


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    make: Callable[[bytes], Any] = ChaCha20Poly1305
    return make(key)
