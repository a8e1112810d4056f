"""Checks of declared numbers, with one wording: what was given, what was expected."""

from math import isfinite
from typing import Any

import numpy as np

from dynadp.errors import DeclarationError, DynadpError


def positive(
    name: str, value: Any, meaning: str = "", error: type[DynadpError] = DeclarationError
) -> None:
    """Refuse anything but a finite number above 0; ``meaning`` ends the message."""
    if not (_number(value) and isfinite(value) and value > 0):
        raise error(f"{name} is {value!r}; expected a finite number above 0{meaning}")


def whole(name: str, value: Any, least: int = 1, meaning: str = "") -> None:
    """Refuse anything but a whole number from ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DeclarationError(
            f"{name} is {value!r}; expected a whole number from {least}{meaning}"
        )


def share(name: str, value: Any, zero: bool = False, meaning: str = "") -> None:
    """Refuse anything but a number above 0 and below 1, or from 0 with ``zero``."""
    if not (_number(value) and (value >= 0 if zero else value > 0) and value < 1):
        bracket = "[" if zero else "("
        raise DeclarationError(f"{name} is {value!r}; expected a number in {bracket}0, 1){meaning}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
