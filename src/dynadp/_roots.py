"""Zeros of functions of one number."""

from collections.abc import Callable
from math import inf, isnan

from dynadp.errors import DynadpError

_RTOL = 8.881784197001252e-16  # four units in the last place
_STEPS = 100


def root(f: Callable[[float], float], low: float, high: float, xtol: float = 2e-12) -> float:
    """x with f(x) = 0 between low and high, where f changes its sign (Brent 1973, chapter 4).

    The same numbers as scipy.optimize.brentq, whose import takes a node longer than all its roots.

    Parameters
    ----------
    f
        A function with opposite signs, or 0, at both ends.
    low
        One end.
    high
        The other end.
    xtol
        How far x may be from a zero, beside 4 units in its last place.

    Raises
    ------
    DynadpError
        f has one sign at both ends, or is not a number somewhere.
    """
    before, x = float(low), float(high)
    f_before, f_x = float(f(before)), float(f(x))
    if f_before == 0:
        return before
    if f_x == 0:
        return x
    if not (f_before < 0 < f_x or f_x < 0 < f_before):
        raise DynadpError(
            f"f({low!r}) = {f_before!r} and f({high!r}) = {f_x!r}; expected opposite signs"
        )
    across = f_across = last = step = 0.0
    for _ in range(_STEPS):
        if f_before != 0 and f_x != 0 and (f_before < 0) != (f_x < 0):
            across, f_across = before, f_before
            last = step = x - before
        if abs(f_across) < abs(f_x):
            before, x, across = x, across, x
            f_before, f_x, f_across = f_x, f_across, f_x
        near, half = (xtol + _RTOL * abs(x)) / 2, (across - x) / 2
        if f_x == 0 or abs(half) < near:
            return x
        attempt = inf
        if abs(last) > near and abs(f_x) < abs(f_before):
            if before == across:  # secant
                attempt = -f_x * (x - before) / (f_x - f_before)
            else:  # inverse quadratic
                slope = (f_before - f_x) / (before - x)
                other = (f_across - f_x) / (across - x)
                below = other * slope * (f_across - f_before)
                above = -f_x * (f_across * other - f_before * slope)
                attempt = above / below if below else inf
        if 2 * abs(attempt) < min(abs(last), 3 * abs(half) - near):
            last, step = step, attempt
        else:
            last = step = half
        before, f_before = x, f_x
        if abs(step) > near:
            x += step
        else:
            x += near if half > 0 else -near
        f_x = float(f(x))
        if isnan(f_x):
            raise DynadpError(f"f({x!r}) is not a number")
    raise DynadpError(f"no zero within {xtol} between {low!r} and {high!r} in {_STEPS} steps")
