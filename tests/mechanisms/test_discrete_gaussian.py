"""The exact sampler: its law, its decisions, and where floating point may not decide."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dynadp.errors import DeclarationError
from dynadp.mechanisms import discrete_gaussian as module
from dynadp.mechanisms.discrete_gaussian import Uniform, discrete_gaussian
from dynadp.privacy.gaussian import distance_to_rounded_normal

KNOWN = [-1459, 303, 730, 465, 156, 1415, -1032, 2741]


def law(sigma):
    reach = int(14 * sigma) + 5
    k = np.arange(-reach, reach + 1)
    weight = np.exp(-(k**2) / (2 * sigma**2))
    return k, weight / weight.sum()


def p_value(drawn, k, probability):
    expected = probability * len(drawn)
    common = expected > 5
    counts = np.array([np.count_nonzero(drawn == value) for value in k])
    counts = np.append(counts[common], len(drawn) - counts[common].sum())
    expected = np.append(expected[common], len(drawn) - expected[common].sum())
    if expected[-1] < 5:
        counts, expected = counts[:-1], expected[:-1]
    statistic = np.sum((counts - expected) ** 2 / expected)
    return stats.chi2.sf(statistic, len(counts) - 1)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 1.5, 3.3, 20.7])
def test_the_law(sigma):
    drawn = discrete_gaussian(np.random.default_rng(5), sigma, 100_000)
    assert drawn.dtype == np.int64
    assert p_value(drawn, *law(sigma)) > 1e-3


@pytest.mark.parametrize("sigma", [0.7, 3.3])
def test_the_law_where_nearly_all_is_decided_by_exact_arithmetic(sigma, monkeypatch):
    monkeypatch.setattr(module, "MARGIN", 0.3)
    assert p_value(discrete_gaussian(np.random.default_rng(6), sigma, 5_000), *law(sigma)) > 1e-3


def test_a_sampler_that_rounds_a_normal_is_refuted():
    """The test of the law can fail: a rounded normal is another law where sigma is small."""
    drawn = np.rint(np.random.default_rng(5).normal(0, 0.7, 100_000)).astype(int)
    assert p_value(drawn, *law(0.7)) < 1e-6


@pytest.mark.parametrize("sigma", [2.0**20, 2.0**30, 2.0**45])
def test_large_ones_are_normal_as_far_as_anybody_can_see(sigma):
    drawn = discrete_gaussian(np.random.default_rng(7), sigma, 50_000)
    assert stats.kstest(drawn / sigma, "norm").pvalue > 1e-3
    for bit in range(4):  # low bits are fair
        ones = np.count_nonzero(drawn >> bit & 1)
        assert stats.binomtest(ones, len(drawn)).pvalue > 1e-4


def test_known_answers():
    """Seeded draws: whoever changes the sampler changes these."""
    drawn = discrete_gaussian(np.random.Generator(np.random.Philox(key=1)), 1000.0, 8)
    assert drawn.tolist() == KNOWN


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_sizes(size):
    assert discrete_gaussian(np.random.default_rng(1), 3.0, size).shape == (size,)


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf, 2.0**45 * 1.001])
def test_a_parameter_that_is_none(sigma):
    with pytest.raises(DeclarationError, match="sigma is"):
        discrete_gaussian(np.random.default_rng(1), sigma, 3)


class Fixed:
    """Bits that a test chose."""

    def __init__(self, *words):
        self.words = list(words)

    def integers(self, low, high, size, dtype):
        assert (low, high, size) == (0, 2**64, 1)
        return np.array([self.words.pop(0)], dtype)


def bits_of_exp(x, count):
    """The first bits of e^-x."""
    with localcontext() as context:
        context.prec = 200
        return int(Fraction((-Decimal(x.numerator) / Decimal(x.denominator)).exp()) * 2**count)


@given(
    st.fractions(min_value=Fraction(1, 1000), max_value=40, max_denominator=1000),
    st.integers(-2, 2),
    st.integers(0, 3),
)
def test_decisions_go_on_until_they_are_certain(x, off, words):
    """A number that agrees with e^-x for 64 (words + 1) bits, up to the last few, is put on the
    right side of it.
    """
    count = 64 * (words + 1)
    value = bits_of_exp(x, count) + off
    if not 0 <= value < 2**count:
        return
    first, *rest = ((value >> 64 * i) % 2**64 for i in range(words, -1, -1))
    rest += [0, 0] if off else [2**64 - 1, 2**64 - 1]
    number = Uniform(Fixed(*rest), first)
    after = bits_of_exp(x, count + 128)
    given_ = value << 128 | (0 if off else 2**128 - 1)
    assert number.below_exp(x) == (given_ < after)


@given(st.integers(0, 2**64 - 1), st.floats(0, 44))
def test_what_floating_point_decides_is_right(bits, x):
    p = float(np.exp(-x)) * 2.0**64
    sure = (bits + 1.0 <= p * (1 - module.MARGIN), bits >= p * (1 + module.MARGIN) and bits > 0)
    exact = bits_of_exp(Fraction(x), 64)
    if sure[0]:
        assert bits < exact + 1
    if sure[1]:
        assert bits >= exact


@pytest.mark.parametrize("sigma", [1.0, 1.7, 4.0, 30.0])
def test_the_distance_to_a_rounded_normal(sigma):
    k, probability = law(sigma)
    rounded = stats.norm.cdf(k + 0.5, scale=sigma) - stats.norm.cdf(k - 0.5, scale=sigma)
    distance = np.abs(probability - rounded).sum() / 2
    bound = distance_to_rounded_normal(sigma)
    assert distance < bound < (1.3 if sigma > 20 else 8) * distance
    assert distance_to_rounded_normal(0.5) == 1.0
