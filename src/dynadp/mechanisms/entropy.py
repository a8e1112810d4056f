"""Randomness as an explicit argument (maths.md 7).

:class:`SystemEntropy` draws from the operating system's entropy: what production uses.
:class:`SeededEntropy` gives seeded draws, for simulations and tests only: whoever knows the seed
knows every draw, so a run that uses it protects nobody and its record says so.
"""

import hashlib
import secrets
from typing import Any, Protocol

import numpy as np

from dynadp import _require
from dynadp._files import canonical_json
from dynadp.errors import DeclarationError


class Draws(Protocol):
    """Where randomness comes from."""

    seeded: bool

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """A generator for this purpose, node, round and replica."""


class SystemEntropy:
    """Fresh draws from the operating system's entropy; no draw can be had a second time.

    Every generator is a ChaCha20 stream (20 rounds) under a new 256-bit key from ``secrets``, kept
    nowhere else.
    """

    seeded = False

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """A generator that nobody can make again; the arguments are not used."""
        from randomgen import ChaCha

        return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))


class SeededEntropy:
    """A stream of draws that is a pure function of (seed, purpose, node, round, replica).

    Stacked, single-node, networked and resumed runs therefore see the same draws, in whatever order
    they ask. Each (seed, purpose, node) has a 128-bit Philox key of its own, and round and replica
    stand in the upper words of the counter, so that no two streams meet before 2^64 blocks.
    """

    seeded = True

    def __init__(self, seed: int) -> None:
        _require.whole("the seed", seed, 0)
        self.seed = int(seed)

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """The generator of this purpose, node, round and replica."""
        if not (0 <= round_ < 2**64 and 0 <= replica < 2**64):
            raise DeclarationError(
                f"round is {round_} and replica is {replica}; expected numbers from 0 to 2^64 - 1"
            )
        key = self._key(16, b"dynadp keyed", purpose, node)
        counter = np.array([0, 0, replica, round_], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

    def _key(self, size: int, person: bytes, purpose: str, place: str | int) -> int:
        name = canonical_json([self.seed, purpose, place]).encode()
        hashed = hashlib.blake2b(name, digest_size=size, person=person)
        return int.from_bytes(hashed.digest(), "little")


def entropy_for(seed: int | None) -> SystemEntropy | SeededEntropy:
    """Where noise comes from: the operating system, or a seed, which protects nobody."""
    return SystemEntropy() if seed is None else SeededEntropy(seed)


class OrderedDraws:
    """One generator for all purposes, nodes, rounds, replicas: draws depend on the order of calls.

    Same distribution as the other sources, five times faster, and nothing is drawn twice; for
    audits and attacks alone, whose runs are never resumed or spread over machines.

    Parameters
    ----------
    generator
        The one.
    seeded
        Whether it comes from a seed.
    """

    def __init__(self, generator: np.random.Generator, seeded: bool) -> None:
        self.seeded, self._generator = seeded, generator

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """The one generator; the arguments are not used."""
        return self._generator


class ShiftedDraws:
    """Draws whose round n is round n + ``rounds`` of others, so that no two parts of a whole share
    noise.
    """

    def __init__(self, draws: Draws, rounds: int) -> None:
        self.draws, self.seeded, self._rounds = draws, draws.seeded, rounds

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """The generator of the shifted round."""
        return self.draws.generator(purpose, node, round_ + self._rounds, replica)


class BatchedDraws(SeededEntropy):
    """Seeded draws for all nodes and replicas of a round at once, a pure function of (seed,
    purpose, round), on any device.

    For sweeps of many replicas, where a stream for each of them (:class:`SeededEntropy`) would take
    longer than the solves.
    """

    def __init__(self, seed: int, device: str = "cpu") -> None:
        super().__init__(seed)
        self.device = device

    def batch(self, purpose: str, round_: int) -> Any:
        """The generator of a round, for all nodes and replicas; NumPy's or CuPy's."""
        key = self._key(8, b"dynadp sweep", purpose, round_)
        if self.device == "cpu":
            return np.random.Generator(np.random.Philox(key=key))
        import cupy

        return cupy.random.Generator(cupy.random.Philox4x3210(seed=key >> 1))
