"""Zeros of functions: the same numbers as SciPy's, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dynadp._roots import root
from dynadp.errors import DynadpError

FUNCTIONS = {
    "cubic": lambda x, a, b: a * x**3 + b * x + 1,
    "steep": lambda x, a, b: np.tanh(5 * a * (x - b)) + 0.1,
    "exponential": lambda x, a, b: np.exp(a * x) - abs(b) - 0.1,
    "flat": lambda x, a, b: (x - b) ** 5,
    "tiny": lambda x, a, b: 1e-200 * (x - b) ** 3,
    "a jump": lambda x, a, b: float(x > b) - 0.5,
    "a line": lambda x, a, b: a * x - b,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(
    a=st.floats(-3, 3),
    b=st.floats(-3, 3),
    low=st.floats(-9, 0),
    high=st.floats(0, 40),
    digits=st.integers(2, 15),
)
def test_the_same_numbers_as_scipy(name, a, b, low, high, digits):
    def f(x):
        return FUNCTIONS[name](x, a, b)

    try:
        expected = brentq(f, low, high, xtol=10.0**-digits)
    except (ValueError, RuntimeError):
        with pytest.raises(DynadpError):
            root(f, low, high, xtol=10.0**-digits)
    else:
        assert root(f, low, high, xtol=10.0**-digits) == expected


def test_either_end_may_be_the_zero():
    assert root(lambda x: x, 0, 5) == 0
    assert root(lambda x: x - 5, 0, 5) == 5


@pytest.mark.parametrize("value", [1.0, -2.0, float("nan")])
def test_one_sign_at_both_ends_is_refused(value):
    with pytest.raises(DynadpError, match="expected opposite signs"):
        root(lambda x: value, 0, 1)


def test_what_is_not_a_number_between_the_ends_is_refused():
    with pytest.raises(DynadpError, match="is not a number"):
        root(lambda x: x if x in (-1, 2) else float("nan"), -1, 2)
