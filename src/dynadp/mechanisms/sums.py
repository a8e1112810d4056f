"""Noisy sums over rows (maths.md 12): what algorithm "sum" releases."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms.base import Mechanism, PublicNumbers, RoundNoise
from dynadp.mechanisms.discrete_gaussian import Integers
from dynadp.mechanisms.gaussian import LARGEST, GaussianNoise, noise_step, whole_draws
from dynadp.mechanisms.histogram import HISTOGRAM
from dynadp.problem import Resolution


@dataclass(frozen=True)
class SumNoise(GaussianNoise):
    """The noise of sum_i sigma_i k(x_i), of sensitivity 2 K_s K_x, or K_s K_x where rows are added.

    Attributes
    ----------
    resolution
        How finely rows and slopes are written down.
    """

    resolution: Resolution

    def width(self, dimension: int) -> int:
        """d, for each of several classes."""
        return self.resolution.vectors * dimension


@dataclass(frozen=True)
class MomentNoise(SumNoise):
    """The noise of sum_i k(x_i) k(x_i)^T, of sensitivity sqrt(2) K_x^2: s on the diagonal, and
    s/sqrt(2) above it, where each entry stands for two.

    The vector holds the diagonal first, then the upper triangle row by row.
    """

    def width(self, dimension: int) -> int:
        """d (d + 1)/2."""
        return dimension * (dimension + 1) // 2

    def draw(self, rng: np.random.Generator, s: float, count: int, dimension: int) -> Integers:
        """Draw e for so many matrices."""
        d = self.resolution.dimension
        diagonal = whole_draws(rng, s, count * d).reshape(count, d)
        above = whole_draws(rng, s / np.sqrt(2.0), count * (dimension - d))
        return np.hstack([diagonal, above.reshape(count, dimension - d)])

    def log_density(self, x: Array) -> Array:
        """-||X - M||_F^2/(2 s^2 h^2)."""
        twice = np.where(np.arange(x.shape[-1]) < self.resolution.dimension, 1.0, np.sqrt(2.0))
        return super().log_density(x * twice)

    def distance(self, s: float, dimension: int) -> float:
        """As if every entry had the smaller parameter."""
        return super().distance(s / np.sqrt(2.0), dimension)


@dataclass(frozen=True)
class CellNoise(GaussianNoise):
    """The noise of how many rows of each label have their score in each bin, of sensitivity
    sqrt(2), or 1 where rows are added (maths.md 4).

    Attributes
    ----------
    bins
        K: a message holds 2 K numbers.
    """

    bins: int

    def width(self, dimension: int) -> int:
        """2 K."""
        return 2 * self.bins

    def of_sum(self, node_weights: Sequence[float]) -> Array:
        """The deviation of each number's noise in the sum over nodes, of each replica.

        Parameters
        ----------
        node_weights
            w_p of all nodes; those of weight 0 send nothing.
        """
        each = self.parameter * self.step
        weights = np.array([w for w in node_weights if w])[:, None]
        each = each if self.sealing else each * weights  # which sealed sums have weighed already
        return np.asarray(np.sqrt(np.sum(each**2, axis=0)))


@dataclass(frozen=True)
class Sum(Mechanism):
    """V_p = h (sum_i sigma_i k(x_i) + e), e discrete Gaussian: algorithm "sum".

    A release is calibrated by mu, that of a Gaussian mechanism.

    Attributes
    ----------
    second_moment
        Whether round 1 releases sum_i k(x_i) k(x_i)^T, for steps that know the rows' shape. None
        leaves it to the planner, and means no without one.
    weighed
        Whether the rows of each person are weighed, so that together they move a sum no further
        than one row may (maths.md 14): noise is then that of one row, however many rows a person
        has. The software must know whose rows they are.
    histogram
        Bins of a histogram of the model's scores by label, which the last round releases: of it
        follow probabilities, thresholds and measures. 0 for none.
    """

    second_moment: bool | None = None
    weighed: bool = field(default=False, kw_only=True)
    histogram: int = field(default=0, kw_only=True)
    name: ClassVar[str] = "sum"
    algorithm: ClassVar[str] = "sum"
    exchange: ClassVar[str] = "open"
    why: ClassVar[str] = (
        "noisy sums over rows at one common point, exact in whole numbers; unequal nodes do no harm"
    )

    def __post_init__(self) -> None:
        check_bins(self.histogram)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters; without ``histogram`` where there is none."""
        made = super().describe()
        return made if self.histogram else {k: v for k, v in made.items() if k != "histogram"}

    @property
    def noise(self) -> str:
        """``gaussian``."""
        return "gaussian"

    @property
    def by_alpha_alone(self) -> bool:
        """True: a row counts the same at every node."""
        return True

    def inflation(self, public: PublicNumbers) -> Array:
        """1: there is no solver."""
        return np.ones((len(public.counts), 1))

    def noise_for(self, public: PublicNumbers, alpha: Array) -> SumNoise:
        """The noise of one gradient; alpha is mu."""
        return self._noise(public, alpha, self._resolution(public, alpha), moment=False)

    def plan(self, public: PublicNumbers, alpha: Array) -> tuple[RoundNoise, ...]:
        """The second moment first, where there is one; then gradients; a histogram last, where
        there is one.
        """
        every, alpha = alpha, self.before_histogram(alpha)
        resolution, rounds = self._resolution(public, alpha), list[RoundNoise]()
        for n in range(alpha.shape[-1]):
            moment = bool(self.second_moment) and n == 0
            if (
                n
                and not isinstance(rounds[-1], MomentNoise)
                and np.array_equal(alpha[..., n], alpha[..., n - 1])
            ):
                rounds.append(rounds[-1])
            else:
                rounds.append(self._noise(public, alpha[..., n], resolution, moment=moment))
        if self.histogram:
            rounds.append(self._cells(public, every[..., -1]))
        return tuple(rounds)

    def before_histogram(self, alpha: Array) -> Array:
        """Return mu of all rounds, P x K x T, but that of the histogram."""
        return alpha[..., :-1] if self.histogram else alpha

    def _cells(self, public: PublicNumbers, mu: Array) -> CellNoise:
        """sqrt(2)/mu, or 1/mu where rows are added; the ball holds all rows in one cell."""
        deviation = sqrt(public.moves) / mu
        step = noise_step(deviation, 1.0)
        reach = public.counts[:, None] + deviation * (sqrt(2.0 * self.histogram) + 12.0)
        return CellNoise(
            phi=np.zeros(mu.shape),
            step=step,
            radius=np.minimum(reach, LARGEST * step),
            mu=mu,
            parameter=deviation / step * (1 + 1e-12),
            purpose=HISTOGRAM,
            bins=self.histogram,
        )

    @staticmethod
    def _resolution(public: PublicNumbers, mu: Array) -> Resolution:
        return resolution_for(public, float(public.counts.max()), mu)

    def _noise(
        self, public: PublicNumbers, mu: Array, resolution: Resolution, *, moment: bool
    ) -> SumNoise:
        """Delta/mu in steps; the ball holds all sums, and noise with next to no exception."""
        unit = resolution.step**2
        delta = resolution.sensitivity(moment=moment, moves=public.moves)
        deviation = delta * unit / mu
        least = deviation / np.sqrt(2.0) if moment else deviation
        step = np.maximum(noise_step(least, unit), unit / resolution.finer)
        d = public.dimension
        width = d * (d + 1) // 2 if moment else public.vectors * d
        reach = public.counts[:, None] * 2.0 + deviation * (np.sqrt(width) + 12.0)
        kind = MomentNoise if moment else SumNoise
        return kind(
            phi=np.zeros(mu.shape),
            step=step,
            radius=np.minimum(reach, LARGEST * step),
            mu=mu,
            parameter=deviation / step * (1 + 1e-12),
            purpose="moment" if moment else "gradient",
            resolution=resolution,
            weighed=self.weighed,
        )


def check_bins(bins: int) -> None:
    """Refuse an odd number of bins, as one edge is at 0, and fewer than four."""
    _require.whole("histogram", bins, 0)
    if bins % 2 or bins == 2:
        raise DeclarationError(
            f"histogram is {bins} bins; expected an even number from 4, with an edge at 0, or 0 "
            "for none"
        )


def resolution_for(public: PublicNumbers, most_rows: float, mu: Array) -> Resolution:
    """How finely rows and slopes are written down, from public numbers."""
    bound = public.loss.slope_bound
    return Resolution.of(most_rows, public.dimension, float(mu.min()), public.vectors, bound)


def packed(matrices: Array) -> Array:
    """The diagonal, then the upper triangle row by row, of symmetric matrices ... x d x d."""
    d = matrices.shape[-1]
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    return np.concatenate([diagonal, matrices[(..., *np.triu_indices(d, 1))]], axis=-1)


def unpacked(vectors: Array, dimension: int) -> Array:
    """The symmetric matrices of :func:`packed`."""
    out = np.zeros((*vectors.shape[:-1], dimension, dimension))
    above = np.triu_indices(dimension, 1)
    out[(..., *above)] = vectors[..., dimension:]
    out += np.swapaxes(out, -1, -2)
    diagonal = np.arange(dimension)
    out[..., diagonal, diagonal] = vectors[..., :dimension]
    return out
