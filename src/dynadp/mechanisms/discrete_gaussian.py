"""The discrete Gaussian, drawn exactly and many at a time (maths.md 12).

The sampler is that of Canonne, Kamath and Steinke (2020): rejection from a discrete Laplace law,
where every decision compares a uniform real number with e^-x for a rational x. They compare by a
chain of integer draws. Here the first 64 bits of the uniform number are compared with a floating
point value of e^-x and a generous bound on its error; one comparison in about 2^30 stays open, and
is decided by more bits and exact arithmetic. So the law is exact, at the speed of arrays.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import floor

import numpy as np
import numpy.typing as npt

from dynadp.errors import DeclarationError

LARGEST = 2.0**45  # of sigma: candidates are whole numbers that float64 holds
MARGIN = 2.0**-30  # far above the errors of exp, log and some ten operations before them
_BITS = 64

Integers = npt.NDArray[np.int64]


def discrete_gaussian(rng: np.random.Generator, sigma: float, size: int) -> Integers:
    """k with P(k) = e^{-k^2/(2 sigma^2)} / sum_j e^{-j^2/(2 sigma^2)}, ``size`` of them.

    Parameters
    ----------
    rng
        Where bits come from.
    sigma
        The parameter, up to 2^45; the float is taken as the rational number that it is.
    size
        How many.
    """
    if not 0 < sigma <= LARGEST:
        raise DeclarationError(
            f"sigma is {sigma}; expected a number above 0 and up to 2^45: choose another grid step"
        )
    kept: list[Integers] = []
    missing = size
    while missing > 0:
        kept.append(_accepted(rng, sigma, 2 * missing + 16)[:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def _accepted(rng: np.random.Generator, sigma: float, count: int) -> Integers:
    """Propose |k| = u + t v with v geometric and u below t = floor(sigma) + 1; return who passes.

    u + t v comes with probability proportional to e^-v, and is kept with probability e^-gamma,
    gamma = u/t + (|k| - sigma^2/t)^2 / (2 sigma^2). The product is e^{-k^2/(2 sigma^2)} up to a
    constant. Half of all zeros are dropped: 0 would come with both signs.
    """
    t = floor(sigma) + 1
    u = rng.integers(0, t, count)
    size = u + t * _geometric(rng, count)
    negative = rng.integers(0, 2, count, dtype=np.int8).astype(bool)
    gamma = u / t + (size - sigma * sigma / t) ** 2 / (2.0 * sigma * sigma)
    bits = _bits(rng, count)
    p = np.exp(-gamma) * 2.0**_BITS
    passed = bits + 1.0 <= p * (1.0 - MARGIN)
    open_ = ~passed & ((bits < p * (1.0 + MARGIN)) | (bits == 0))
    variance = Fraction(sigma) ** 2
    for i in np.flatnonzero(open_):
        exact = Fraction(int(u[i]), t) + (int(size[i]) - variance / t) ** 2 / (2 * variance)
        passed[i] = Uniform(rng, int(bits[i])).below_exp(exact)
    passed &= ~(negative & (size == 0))
    return np.asarray(np.where(negative, -size, size)[passed])


def _geometric(rng: np.random.Generator, count: int) -> Integers:
    """Return floor(-ln U): v with probability (1 - 1/e) e^-v."""
    bits = _bits(rng, count)
    with np.errstate(divide="ignore"):
        least = np.floor(_BITS * np.log(2.0) - np.log(bits + 1.0) - MARGIN)
        most = np.floor(_BITS * np.log(2.0) - np.log(bits.astype(float)) + MARGIN)
    v: Integers = np.maximum(least, 0.0).astype(np.int64)
    for i in np.flatnonzero(least != most):
        uniform = Uniform(rng, int(bits[i]))
        while uniform.below_exp(Fraction(int(v[i]) + 1)):
            v[i] += 1
    return v


def _bits(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    return np.asarray(rng.integers(0, 2**_BITS, count, dtype=np.uint64))


class Uniform:
    """A uniform real number in (0, 1), known to some bits; more are drawn where they matter.

    Parameters
    ----------
    rng
        Where further bits come from.
    bits
        The first 64.
    """

    def __init__(self, rng: np.random.Generator, bits: int) -> None:
        self._rng, self._bits, self._known = rng, bits, _BITS

    def below_exp(self, x: Fraction) -> bool:
        """Whether the number lies below e^-x, decided exactly.

        Decimal division and exp are rounded correctly to the context's digits, so that e^-x lies
        within a factor 1 +- (x + 2) 10^(1 - digits) of what they give.
        """
        while True:
            digits = 30 + self._known // 3
            with localcontext() as context:
                context.prec = digits
                value = Fraction((-(Decimal(x.numerator) / Decimal(x.denominator))).exp())
            error = (x + 2) * Fraction(10) ** (1 - digits)
            scale = 2**self._known
            if self._bits + 1 <= value * (1 - error) * scale:
                return True
            if self._bits >= value * (1 + error) * scale:
                return False
            self._bits = self._bits << _BITS | int(_bits(self._rng, 1)[0])
            self._known += _BITS
