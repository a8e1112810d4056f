"""Randomness as an explicit argument, l2-Laplace vectors, and the public ball and grid of messages
(maths.md 7).

:class:`SystemEntropy` draws from the operating system's entropy: what production uses.
:class:`SeededEntropy` gives seeded draws, for simulations and tests only: whoever knows the seed
knows every draw, so a run that uses it protects nobody and its record says so.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dynadp import _require
from dynadp._arrays import Array, namespace, norm, on
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
        name = canonical_json([self.seed, purpose, node]).encode()
        key = np.frombuffer(
            hashlib.blake2b(name, digest_size=16, person=b"dynadp keyed").digest(), dtype="<u8"
        )
        counter = np.array([0, 0, replica, round_], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key.astype(np.uint64), counter=counter))


def entropy_for(seed: int | None) -> SystemEntropy | SeededEntropy:
    """Where noise comes from: the operating system, or a seed, which protects nobody."""
    return SystemEntropy() if seed is None else SeededEntropy(seed)


class OrderedDraws:
    """One generator for all purposes, nodes, rounds and replicas: what is drawn depends on the
    order of asking.

    Laws are those of any other source, and nothing is drawn twice, at a fifth of the cost; for
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


class BatchedDraws:
    """Seeded draws for all nodes and replicas of a round at once, a pure function of (seed,
    purpose, round), on any device.

    For sweeps of many replicas, where a stream for each of them (:class:`SeededEntropy`) would take
    longer than the solves.
    """

    seeded = True

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.seed, self.device = SeededEntropy(seed).seed, device

    def vectors(
        self, purpose: str, nodes: int, round_: int, replicas: int, dimension: int
    ) -> Array:
        """l2-Laplace vectors with zeta = 1, P x K x d."""
        rng = self._generator(purpose, round_)
        direction = rng.standard_normal((nodes, replicas, dimension))
        radius = _radii(rng, dimension, (nodes, replicas))
        return direction * (radius / norm(direction))[..., None]

    def generator(
        self, purpose: str, node: str, round_: int, replica: int = 0
    ) -> np.random.Generator:
        """As :class:`SeededEntropy`, for the few draws that are not vectors."""
        return SeededEntropy(self.seed).generator(purpose, node, round_, replica)

    def _generator(self, purpose: str, round_: int) -> Any:
        name = canonical_json([self.seed, purpose, round_]).encode()
        key = int.from_bytes(
            hashlib.blake2b(name, digest_size=8, person=b"dynadp sweep").digest(), "little"
        )
        if self.device == "cpu":
            return np.random.Generator(np.random.Philox(key=key))
        import cupy

        return cupy.random.Generator(cupy.random.Philox4x3210(seed=key >> 1))


def l2_laplace(
    draws: Draws, purpose: str, nodes: Sequence[str], round_: int, replicas: int, dimension: int
) -> Array:
    """Vectors with density proportional to e^{-||e||}, P x K x d: radius Gamma(d, 1), direction
    uniform; divide by zeta.

    The radius has shape d, not 1: an exponential radius would put too little mass far out and is
    not private.
    """
    if isinstance(draws, BatchedDraws):
        return draws.vectors(purpose, len(nodes), round_, replicas, dimension)
    out = np.empty((len(nodes), replicas, dimension))
    for p, node in enumerate(nodes):
        for k in range(replicas):
            rng = draws.generator(purpose, node, round_, k)
            direction = rng.standard_normal(dimension)
            radius = _radii(rng, dimension)
            out[p, k] = direction * (radius / np.linalg.norm(direction))
    return out


def _radii(rng: Any, dimension: int, size: tuple[int, ...] | None = None) -> Any:
    """Gamma(d, 1), of NumPy or CuPy; in one dimension Gamma(2, 1) times a uniform number, which is
    the same law.

    NumPy's own Gamma(1, 1) ends at 44.4, this one at 119.7 (maths.md 7): no shift of alpha may lead
    past the last radius.
    """
    if dimension > 1:
        return rng.standard_gamma(float(dimension), size)
    return rng.standard_gamma(2.0, size) * rng.random(size)


def grid_step(scale: Array) -> Array:
    """h: the largest power of two at most 1e-3 times the noise's coordinate scale, a public number."""
    return np.asarray(np.exp2(np.floor(np.log2(1e-3 * np.asarray(scale)))))


def to_grid(v: Array, step: Array, radius: Array) -> Array:
    """Round(v): clipped to the public ball, then to the nearest point of the public grid, so that
    no low-order bit is left.

    With a power of two as step, every grid point in the ball is exact in float64 as long as
    radius/step < 2^53.
    """
    xp = namespace(v)
    largest, step = on(radius[..., None], v), on(step[..., None], v)
    inside = v * (largest / xp.maximum(xp.linalg.norm(v, axis=-1, keepdims=True), largest))
    return xp.rint(inside / step) * step + 0.0  # the sign of a zero is no point of the grid
