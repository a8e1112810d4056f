"""Checks of declared numbers."""

import numpy as np
import pytest

from dynadp import _require
from dynadp.errors import DeclarationError, LossError


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), np.int64(3), 1e300])
def test_numbers_above_0_pass(value):
    _require.positive("x", value)


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, "1", None, True, [1.0]])
def test_other_numbers_are_refused(value):
    with pytest.raises(DeclarationError, match="expected a finite number above 0, a norm"):
        _require.positive("x", value, ", a norm")
    with pytest.raises(LossError):
        _require.positive("x", value, error=LossError)


@pytest.mark.parametrize("value", [2, np.int32(3)])
def test_whole_numbers_pass(value):
    _require.whole("x", value, 2)


@pytest.mark.parametrize("value", [1, 2.0, "2", None, True, np.float64(2)])
def test_other_whole_numbers_are_refused(value):
    with pytest.raises(DeclarationError, match="expected a whole number from 2, better 9"):
        _require.whole("x", value, 2, ", better 9")


def test_shares():
    _require.share("x", 0.5)
    _require.share("x", 0, zero=True)
    for value in (0, 1, -0.1, np.nan, "0.5", None, True):
        with pytest.raises(DeclarationError, match=r"x is .*; expected a number in \(0, 1\)$"):
            _require.share("x", value)
    with pytest.raises(DeclarationError, match=r"expected a number in \[0, 1\), small"):
        _require.share("x", 1, zero=True, meaning=", small")
