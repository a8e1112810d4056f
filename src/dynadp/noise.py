"""Randomness as an explicit argument (maths.md 7).

:class:`Keyed` gives seeded draws, for simulations and tests only: whoever knows the seed knows every draw, so a run that uses
it protects nobody and its record says so.
"""

import hashlib

import numpy as np

from dynadp.arrays import Array
from dynadp.canonical import canonical_json
from dynadp.errors import DeclarationError


class Keyed:
    """A stream of draws that is a pure function of (seed, purpose, node, round, replica).

    Stacked, single-node, networked and resumed runs therefore see the same draws, in whatever order they ask. Each
    (seed, purpose, node) has a 128-bit Philox key of its own, and round and replica stand in the upper words of the counter,
    so that no two streams meet before 2^64 blocks.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise DeclarationError(f"the seed is {seed!r}; expected a whole number, 0 or above")
        self.seed = int(seed)

    def generator(self, purpose: str, node: str, round_: int, replica: int = 0) -> np.random.Generator:
        """The generator of this purpose, node, round and replica."""
        if not (0 <= round_ < 2**64 and 0 <= replica < 2**64):
            raise DeclarationError(f"round is {round_} and replica is {replica}; expected numbers from 0 to 2^64 - 1")
        name = canonical_json([self.seed, purpose, node]).encode()
        key = np.frombuffer(hashlib.blake2b(name, digest_size=16, person=b"dynadp keyed").digest(), dtype="<u8")
        counter = np.array([0, 0, replica, round_], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key.astype(np.uint64), counter=counter))

    def normals(self, purpose: str, nodes: tuple[str, ...], round_: int, replicas: int, dimension: int) -> Array:
        """Standard normal vectors, P x K x d."""
        return np.array(
            [[self.generator(purpose, p, round_, k).standard_normal(dimension) for k in range(replicas)] for p in nodes]
        )
