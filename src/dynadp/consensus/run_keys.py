"""Keys of one run: who shares masks with whom, under labels that are never used twice (maths.md
13).

Each node makes an X25519 key for the run. Two nodes derive a common key from theirs (HKDF with
SHA-256) for the consortium, the run and both names, and from that a ChaCha20 stream for each sum,
labelled by members, attempt, sum and everything that was decoded before it. On a network a node
announces its run key in a letter that its lasting key signs; one that is stolen later opens no
letter of a run that is over.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dynadp._files import canonical_json
from dynadp.errors import RecordError, Rejected
from dynadp.mechanisms import Draws

Words = npt.NDArray[np.uint64]
_PURPOSE = b"dynadp sealed sums 1"


def draw_secret(node: str, draws: Draws) -> bytes:
    """Draw the 32 bytes of a node's key for a run."""
    return draws.generator("run key", node, 0).bytes(32)


def is_public_key(data: bytes) -> bool:
    """Whether a node could have announced these bytes: 32, and not a point that makes every shared
    secret 0.
    """
    try:
        RunKey("", bytes(range(32))).shared_with("", data, "", "")
    except Rejected:
        return False
    return True


class RunKey:
    """A node's key for one run.

    Parameters
    ----------
    node
        Whose.
    secret
        32 random bytes; a copy is kept here until :meth:`forget`, and nowhere else.
    """

    def __init__(self, node: str, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.node, self._secret = node, bytearray(secret)
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(bytes(secret))
        self.public_bytes = self._key.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, node: str, draws: Draws) -> "RunKey":
        """Draw a key; from a seed it hides nothing, and the run's record says so."""
        return cls(node, draw_secret(node, draws))

    def __repr__(self) -> str:
        return f"RunKey({self.node!r})"

    @property
    def secret(self) -> bytes:
        """The 32 bytes, for a file that only its owner can read."""
        return bytes(self._secret)

    def shared_with(self, other: str, public: bytes, consortium: str, run: str) -> bytearray:
        """Return the key of this node and another, the same at both, for one run alone."""
        from cryptography.exceptions import InternalError
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if self._key is None:
            raise RecordError(f"the run key of {self.node!r} is forgotten: its run is over")
        try:
            secret = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except (ValueError, InternalError):
            raise Rejected(f"the run key of {other!r} is no key; expected 32 bytes") from None
        both = sorted([(self.node, self.public_bytes), (other, public)])
        named = [[node, key.hex()] for node, key in both]
        info = canonical_json([consortium, run, named]).encode()
        return bytearray(_expand(_extract(secret), info))

    def forget(self) -> None:
        """Overwrite the key here, and leave the library's copy to be overwritten."""
        _wipe(self._secret)
        self._key = None


@dataclass(frozen=True)
class Label:
    """What a stream is for: used once.

    Attributes
    ----------
    members
        Hash of the members' names, in order.
    sum, attempt
        Which sum of the run, from 0, and under which number the attempt at it is entered.
    transcript
        Hash of all sums that were decoded before: nodes that stand elsewhere get other streams.
    """

    members: bytes
    sum: int
    attempt: int
    transcript: bytes

    def packed(self) -> bytes:
        """Return the label as bytes of one length."""
        return struct.pack("<32sQQ32s", self.members, self.sum, self.attempt, self.transcript)


def stream(key: bytes | bytearray, label: Label, width: int) -> Words:
    """r uniform in (Z/2^64)^width: ChaCha20 under a key for this label alone."""
    return next(streams([key], label, width))


def streams(keys: Iterable[bytes | bytearray], label: Label, width: int) -> Iterator[Words]:
    """Yield the stream of each of these keys, for one label."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    packed, nonce, zeros = label.packed(), bytes(16), bytes(8 * width)
    for key in keys:
        once = Cipher(ChaCha20(_expand(key, packed), nonce), mode=None).encryptor()
        yield np.frombuffer(once.update(zeros), "<u8").astype(np.uint64, copy=False)


class PairKeys:
    """The keys that some nodes of a process share with their partners.

    Parameters
    ----------
    keys
        The nodes' own run keys.
    publics
        The public halves of all members' keys, as their signed letters gave them.
    consortium, run
        For which they are.
    """

    def __init__(
        self, keys: Mapping[str, RunKey], publics: Mapping[str, bytes], consortium: str, run: str
    ) -> None:
        self.keys, self.publics = dict(keys), dict(publics)
        self.consortium, self.run = consortium, run
        self._shared: dict[tuple[str, str], bytearray] = {}

    def of(self, a: str, b: str) -> bytearray:
        """Return the key of two nodes, of which one is of this process."""
        own, other = (a, b) if a in self.keys else (b, a)
        pair = (own, other)
        if pair not in self._shared:
            key, public = self.keys[own], self.publics[other]
            self._shared[pair] = key.shared_with(other, public, self.consortium, self.run)
        return self._shared[pair]

    def forget(self) -> None:
        """Overwrite all keys: letters of the run stay sealed for good."""
        for shared in self._shared.values():
            _wipe(shared)
        for key in self.keys.values():
            key.forget()
        self._shared.clear()
        self.keys.clear()


def _extract(secret: bytes) -> bytes:
    """HKDF-Extract of RFC 5869."""
    return hmac.digest(_PURPOSE, secret, "sha256")


def _expand(key: bytes | bytearray, info: bytes) -> bytes:
    """HKDF-Expand of RFC 5869, one block."""
    return hmac.digest(key, info + b"\x01", "sha256")


def _wipe(secret: bytearray) -> None:
    secret[:] = bytes(len(secret))


def transcript_of(before: bytes, n: int, total: bytes) -> bytes:
    """Return the hash of all sums so far."""
    return hashlib.sha256(before + struct.pack("<Q", n) + total).digest()
