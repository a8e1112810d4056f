"""Gaussian noise on whole numbers of steps, drawn exactly (maths.md 12)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any, Self

import numpy as np

from dynadp._arrays import Array, host, on
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import PublicNumbers, RoundNoise, Sealing
from dynadp.mechanisms.discrete_gaussian import LARGEST as LARGEST_SIGMA
from dynadp.mechanisms.discrete_gaussian import Integers, discrete_gaussian
from dynadp.mechanisms.entropy import BatchedDraws, Draws, OrderedDraws
from dynadp.mechanisms.sampling import to_grid
from dynadp.privacy import (
    Event,
    Gaussian,
    SealedGaussian,
    distance_of_sum,
    distance_to_rounded_normal,
)

FINE = 33  # a deviation is at least 2^33 steps, so that discreteness costs next to nothing
LARGEST = 2.0**62  # steps: 64-bit numbers hold them with noise
LEAST = 2.0**28  # steps of one node's noise in a sealed sum, at least, spare attempts among it


@dataclass(frozen=True)
class GaussianNoise(RoundNoise):
    """V = h (g/h + e), e discrete Gaussian with parameter s on Z^d.

    Attributes
    ----------
    mu
        Delta/s: what a release loses, that of a Gaussian mechanism.
    parameter
        s, in steps.
    purpose
        Of its events.
    sealing
        Who hides whose noise in a sealed sum, of which s is one node's own; None in the open.
    weights
        w_p of a sealed sum, at most 1; None for 1.
    unit
        What weighed sums are rounded to.
    weighed
        Whether the rows of a person move the sum no further than one row may.
    """

    mu: Array
    parameter: Array
    purpose: str
    sealing: Sealing | None = field(default=None, kw_only=True)
    weights: Array | None = field(default=None, kw_only=True)
    unit: float = field(default=1.0, kw_only=True)
    weighed: bool = field(default=False, kw_only=True)

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """Round g to whole steps and add e; the public ball comes last.

        Numbers are held within 2^62 steps before noise, which moves no two apart. A whole number
        of steps stays what it is.
        """
        whole = self.steps_of(g) + self._noise(g.shape, draws, nodes, n)
        return on(to_grid(whole * self.step[..., None], self.step, self.radius), g)

    def sealable(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Integers:
        """k_p = rint(w_p g/h) + e: what masks have to hide, P x K x d whole numbers."""
        return self.steps_of(g) + self._noise(g.shape, draws, nodes, n)

    def summed(self, g: Array, draws: Draws, n: int) -> Integers:
        """Return sum_p k_p without masks, 1 x K x d, for sweeps: its noise is drawn at once.

        A sum of P discrete Gaussians is one of sqrt(P) s, up to e^(-pi^2 s^2) (maths.md 13).
        """
        out: Integers = self.steps_of(g).sum(axis=0, keepdims=True)
        P, s = len(g), self.parameter[:1]
        parts = ceil(P * float(s.max()) ** 2 / LARGEST_SIGMA**2)
        share = s * sqrt(P / parts)
        for part in range(parts):
            out += self.changed(parameter=share)._noise(out.shape, draws, [f"all {part}"], n)
        return out

    def steps_of(self, g: Array) -> Integers:
        """rint(w_p g/h), held within 2^62."""
        step = self.step[..., None]
        if self.weights is None:
            whole = np.rint(host(g) / step)
        else:  # whole units of what was summed first, so that rounding is counted once
            whole = np.rint(self.weights[..., None] * host(g) / self.unit) * (self.unit / step)
        return np.asarray(np.clip(whole, -LARGEST, LARGEST).astype(np.int64))

    def with_mu(self, mu: Array, purpose: str) -> Self:
        """Return the noise of the same sum at another loss."""
        made = self.changed(parameter=self.parameter * (self.mu / mu), mu=mu, purpose=purpose)
        if (made.parameter < LEAST).any():
            raise DeclarationError(
                "a spare attempt would have noise of too few steps: mu of a round or of the "
                "centring round is far below that of the last round; give spares = 0"
            )
        return made

    def _noise(
        self, shape: tuple[int, ...], draws: Draws, nodes: Sequence[str], n: int
    ) -> Integers:
        rng = None
        if isinstance(draws, OrderedDraws):
            rng = draws.generator(self.purpose, "", n)
        elif isinstance(draws, BatchedDraws):
            rng = draws.batch(self.purpose, n)
        if rng is not None:  # one for all nodes and replicas
            out = np.empty(shape, np.int64)
            for s in np.unique(self.parameter):
                alike = self.parameter == s
                out[alike] = self.draw(rng, float(s), int(alike.sum()), shape[-1])
            return out
        return np.array(
            [
                [
                    self.draw(draws.generator(self.purpose, node, n, k), float(s), 1, shape[-1])[0]
                    for k, s in enumerate(each)
                ]
                for node, each in zip(nodes, self.parameter, strict=True)
            ]
        )

    def draw(self, rng: np.random.Generator, s: float, count: int, dimension: int) -> Integers:
        """Draw e for so many vectors."""
        return whole_draws(rng, s, count * dimension).reshape(count, dimension)

    def spread(self, public: PublicNumbers) -> tuple[Array, Array]:
        """0, and s h."""
        outside = self.parameter * self.step
        return np.zeros(outside.shape), outside

    def log_density(self, x: Array) -> Array:
        """-||V - g||^2/(2 s^2 h^2)."""
        deviation = self.parameter * self.step * sqrt(self.sealing.honest if self.sealing else 1)
        scale = deviation.reshape(deviation.shape + (1,) * (x.ndim - 3))
        return np.asarray(-(np.linalg.norm(x, axis=-1) ** 2) / (2 * scale**2))

    def events(
        self,
        nodes: Sequence[str],
        n: int,
        dimension: int,
        replica: int = 0,
        *,
        seeded: bool = False,
    ) -> tuple[Event, ...]:
        """One event at each node."""
        out: list[Event] = []
        for p, node in enumerate(nodes):
            mu, s = float(self.mu[p, replica]), float(self.parameter[p, replica])
            given = node, n, self.purpose, mu, dimension, self.distance(s, dimension), seeded
            hidden = self.sealing
            if hidden is None:
                out.append(Gaussian(*given, weighed=self.weighed))
            else:
                out.append(SealedGaussian(*given, *hidden.accounted, weighed=self.weighed))
        return tuple(out)

    def distance(self, s: float, dimension: int) -> float:
        """Return how far the noise is from a rounded normal one, at most; of a sealed sum, however
        many are honest.
        """
        if self.sealing:
            return sealed_distance(self.sealing, dimension)
        return dimension * distance_to_rounded_normal(min(float(s), 2.0**FINE))


def whole_draws(rng: Any, s: float, size: int) -> Integers:
    """Draw from the discrete Gaussian; with the generator of a GPU, which is seeded and protects
    nobody, round normal numbers instead, as near as floats are.
    """
    if isinstance(rng, np.random.Generator):
        return discrete_gaussian(rng, s, size)
    return np.asarray(np.rint(host(rng.standard_normal(size) * s)).astype(np.int64))


def sealed_distance(sealing: Sealing, dimension: int) -> float:
    """Bound the distance of the honest members' noise to a rounded normal law, from what each adds
    at least.
    """
    apart = distance_of_sum(sealing.honest, LEAST)
    return dimension * (distance_to_rounded_normal(LEAST) + apart)


def noise_step(deviation: Any, coarsest: float | None = None) -> Array:
    """h: a power of two, at most 2^-33 of the noise's deviation and at most ``coarsest``."""
    fine = np.exp2(np.floor(np.log2(np.asarray(deviation, dtype=float))) - FINE)
    return np.asarray(fine if coarsest is None else np.minimum(fine, coarsest))
