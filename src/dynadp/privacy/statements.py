"""A guarantee in numbers and words that people understand; no number is ever rounded down."""

from collections.abc import Iterable, Sequence
from math import ceil, exp, floor, inf, isfinite, log10

from dynadp.privacy.units import Unit


def round_up(value: float, digits: int = 4) -> float:
    """Return a loss in so many significant digits, never less than it is.

    >>> round_up(0.99884621), round_up(1.9991), round_up(0.0), round_up(123456.0, 2)
    (0.9989, 2.0, 0.0, 130000.0)
    """
    if value <= 0 or not isfinite(value):
        return max(value, 0.0)
    scale = 10.0 ** (digits - 1 - floor(log10(value)))
    return ceil(value * scale - 1e-6) / scale


def upper_bound(value: float | None, digits: int = 4) -> str:
    """Return :func:`round_up` as text; "no bound" for an infinite loss, or for None, its JSON.

    >>> upper_bound(0.99884621), upper_bound(1.9991), upper_bound(0.0), upper_bound(None)
    ('0.9989', '2', '0', 'no bound')
    """
    shown = round_up(inf if value is None else value, digits)
    return f"{shown:.{digits}g}" if isfinite(shown) else "no bound"


def guess_probability(epsilon: float, delta: float) -> float:
    """(e^epsilon + delta)/(1 + e^epsilon): how often the best guess is right whether a row or
    another was in the data, at even odds.

    >>> round(guess_probability(1.0, 0.0), 3)
    0.731
    """
    return 1 - (1 - delta) / (1 + exp(min(epsilon, 700.0)))


def guesses_in_100(epsilon: float, delta: float) -> int:
    """Return 100 times :func:`guess_probability`, rounded up.

    >>> guesses_in_100(1.0, 0.0), guesses_in_100(800.0, 0.0)
    (74, 100)
    """
    return ceil(100 * guess_probability(epsilon, delta) - 1e-9)


def guess_words(epsilon: float, delta: float, unit: Unit | None = None) -> str:
    """Return :func:`guesses_in_100` in words.

    >>> guess_words(1.0, 0.0).partition(" whether")[0]
    'at most 74 in 100 would guess right'
    """
    right, which = guesses_in_100(epsilon, delta), (unit or Unit()).question
    if right < 100:
        return f"at most {right} in 100 would guess right whether {which} (50 is a coin toss)"
    return f"practically everybody may guess right whether {which} (50 in 100 is a coin toss)"


def honest_words(honest: Iterable[Sequence[int]]) -> str:
    """Return on whom sealed sums rest, as the end of a sentence; nothing where on nobody.

    >>> honest_words([(3, 5)])
    ', as long as 3 of the 5 nodes are honest and nobody breaks the masks'
    """
    those = " and ".join(f"{h} of the {members} nodes" for h, members in honest)
    return f", as long as {those} are honest and nobody breaks the masks" if those else ""


def guarantee(
    epsilon: float | None,
    delta: float,
    *,
    seeded: bool = False,
    planned: bool = False,
    honest: Iterable[Sequence[int]] = (),
    unit: Unit | None = None,
) -> str:
    """Return the guarantee in one sentence, for a person who has to sign it.

    Parameters
    ----------
    epsilon, delta
        The largest node's total; None is the JSON of an infinite epsilon.
    seeded
        Whether the noise came from a seed, so that nobody is protected.
    planned
        Whether the releases are still to come.
    honest
        Of sealed sums, how many of how many members must be honest.
    unit
        Whom it is about; by default anybody with a row at one node.
    """
    whom = unit or Unit()
    subject = "This will cost" if planned else "This costs"
    if seeded:
        subject = (
            "SIMULATION: seeded noise protects nobody. With noise from the system, this would cost"
        )
    return (
        f"{subject} anybody with {whom.words} at most epsilon = {upper_bound(epsilon)} at "
        f"delta = {delta:g}, over all releases together, whoever sees them"
        f"{honest_words(honest)}: "
        f"{guess_words(inf if epsilon is None else epsilon, delta, whom)}."
    )
