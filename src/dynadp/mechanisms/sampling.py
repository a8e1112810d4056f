"""l2-Laplace vectors, and the public ball and grid of messages (maths.md 7)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynadp._arrays import Array, namespace, norm, on
from dynadp.mechanisms.entropy import BatchedDraws, Draws

NEVER = 64.0  # what has a chance of e^-64 is taken to happen never


def l2_laplace(
    draws: Draws, purpose: str, nodes: Sequence[str], round_: int, replicas: int, dimension: int
) -> Array:
    """Vectors with density proportional to e^{-||e||}, P x K x d: radius Gamma(d, 1), direction
    uniform; divide by zeta.

    The radius has shape d, not 1: an exponential radius would put too little mass far out and is
    not private.
    """
    if isinstance(draws, BatchedDraws):
        rng = draws.batch(purpose, round_)
        directions = rng.standard_normal((len(nodes), replicas, dimension))
        radii = _radii(rng, dimension, (len(nodes), replicas))
        return directions * (radii / norm(directions))[..., None]
    out = np.empty((len(nodes), replicas, dimension))
    for p, node in enumerate(nodes):
        for k in range(replicas):
            rng = draws.generator(purpose, node, round_, k)
            direction = rng.standard_normal(dimension)
            radius = _radii(rng, dimension)
            out[p, k] = direction * (radius / np.linalg.norm(direction))
    return out


def add_l2_laplace(
    g: Array,
    rate: Array,
    purpose: str,
    draws: Draws,
    nodes: Sequence[str],
    n: int,
    step: Array,
    radius: Array,
) -> Array:
    """Round(g + e), e ~ exp(-rate ||e||) at each node and replica."""
    noise = on(l2_laplace(draws, purpose, nodes, n, *g.shape[1:]), g)
    return to_grid(g + noise / on(rate[..., None], noise), step, radius)


def l2_laplace_density(x: Array, rate: Array) -> Array:
    """-rate ||x||: ln of the density up to a constant; the axes of x begin with node, replica."""
    length = np.linalg.norm(x, axis=-1)
    return np.asarray(-rate.reshape(rate.shape + (1,) * (length.ndim - 2)) * length)


def l2_laplace_deviation(rate: Array, dimension: int) -> Array:
    """sqrt(d + 1)/rate, of one coordinate: E||e||^2 = d (d + 1)/rate^2, alike in all directions."""
    return np.asarray(np.sqrt(dimension + 1) / rate)


def l2_laplace_reach(dimension: int) -> float:
    """d + sqrt(128 d) + 64: a Gamma(d, 1) radius passes it with a chance of e^-64 at most."""
    return float(dimension + np.sqrt(2 * dimension * NEVER) + NEVER)


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
    """h: the largest power of two up to 1e-3 times the noise's coordinate scale: public."""
    return np.asarray(np.exp2(np.floor(np.log2(1e-3 * np.asarray(scale)))))


def power_of_two(least: Array | float) -> Array:
    """The smallest power of two from ``least``."""
    return np.asarray(np.exp2(np.ceil(np.log2(least))))


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
