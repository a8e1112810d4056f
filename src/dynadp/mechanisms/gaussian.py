"""Gaussian noise on whole numbers of steps, drawn exactly (maths.md 12)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynadp._arrays import Array, host, on
from dynadp.mechanisms.base import RoundNoise
from dynadp.mechanisms.discrete_gaussian import Integers, discrete_gaussian
from dynadp.mechanisms.entropy import BatchedDraws, Draws, OrderedDraws
from dynadp.mechanisms.sampling import to_grid
from dynadp.privacy import Event, Gaussian, distance_to_rounded_normal

FINE = 33  # a deviation is at least 2^33 steps, so that discreteness costs next to nothing
LARGEST = 2.0**62  # steps: 64-bit numbers hold them with noise


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
    """

    mu: Array
    parameter: Array
    purpose: str

    def release(self, g: Array, draws: Draws, nodes: Sequence[str], n: int) -> Array:
        """Round g to whole steps and add e; the public ball comes last.

        Numbers are held within 2^62 steps before noise, which moves no two apart. A whole number
        of steps stays what it is.
        """
        step = self.step[..., None]
        whole = np.clip(np.rint(host(g) / step), -LARGEST, LARGEST).astype(np.int64)
        whole += self._noise(whole.shape, draws, nodes, n)
        return on(to_grid(whole * step, self.step, self.radius), g)

    def _noise(
        self, shape: tuple[int, ...], draws: Draws, nodes: Sequence[str], n: int
    ) -> Integers:
        rng = None
        if isinstance(draws, OrderedDraws):
            rng = draws.generator(self.purpose, "", n)
        elif isinstance(draws, BatchedDraws) and draws.device == "cpu":
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
        return discrete_gaussian(rng, s, count * dimension).reshape(count, dimension)

    def log_density(self, x: Array) -> Array:
        """-||V - g||^2/(2 s^2 h^2)."""
        deviation = self.parameter * self.step
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
            far = self.distance(s, dimension)
            out.append(Gaussian(node, n, self.purpose, mu, dimension, far, seeded))
        return tuple(out)

    def distance(self, s: float, dimension: int) -> float:
        """Return how far the noise is from a rounded normal one, at most."""
        return dimension * distance_to_rounded_normal(min(float(s), 2.0**FINE))


def noise_step(deviation: Any, coarsest: float | None = None) -> Array:
    """h: a power of two, at most 2^-33 of the noise's deviation and at most ``coarsest``."""
    fine = np.exp2(np.floor(np.log2(np.asarray(deviation, dtype=float))) - FINE)
    return np.asarray(fine if coarsest is None else np.minimum(fine, coarsest))
