"""Bounds from public knowledge: what the user says a quantity is, never from rows.

Generous on purpose: a bound that is too wide by a factor of two costs a little accuracy, one that
is read off rows would leak them.
"""

from collections.abc import Callable
from typing import NamedTuple

from dynadp.data.numbers import Numeric
from dynadp.errors import DeclarationError


class Proposal(NamedTuple):
    """A kind of quantity, and the bounds that are proposed for it.

    Attributes
    ----------
    what
        The quantity, in words.
    column
        Makes the declaration, of a name and of "up to about X" where ``sized``.
    sized
        Whether the user has to say X.
    """

    what: str
    column: Callable[[str, float], Numeric]
    sized: bool = False


def _between(low: float, high: float) -> Callable[[str, float], Numeric]:
    return lambda name, _: Numeric(name=name, low=low, high=high)


KINDS = {
    "age": Proposal("age in years, 0 to 110", _between(0, 110)),
    "percentage": Proposal("a percentage, 0 to 100", _between(0, 100)),
    "share": Proposal("a share, 0 to 1", _between(0, 1)),
    "flag": Proposal("yes or no as 1 or 0", _between(0, 1)),
    "year": Proposal("a year, 1900 to 2100", _between(1900, 2100)),
    "weekly-hours": Proposal("hours in a week, 0 to 168", _between(0, 168)),
    "daily-hours": Proposal("hours in a day, 0 to 24", _between(0, 24)),
    "latitude": Proposal("degrees north, -90 to 90", _between(-90, 90)),
    "longitude": Proposal("degrees east, -180 to 180", _between(-180, 180)),
    "height-cm": Proposal("height of a person in cm, 30 to 230", _between(30, 230)),
    "weight-kg": Proposal("weight of a person in kg, 0 to 250", _between(0, 250)),
    "celsius": Proposal("temperature outdoors in degrees Celsius, -60 to 60", _between(-60, 60)),
    "pressure": Proposal("blood pressure in mmHg, 20 to 260", _between(20, 260)),
    "score": Proposal(
        "points from 0 to X", lambda name, x: Numeric(name=name, low=0, high=x), sized=True
    ),
    "count": Proposal(
        "a count, such as visits a day, of up to about X: 0 to X, on a log scale",
        lambda name, x: Numeric(name=name, low=0, high=x, transform="log1p"),
        sized=True,
    ),
    "money": Proposal(
        "money that is not negative, of up to about X: 0 to X, on a log scale",
        lambda name, x: Numeric(name=name, low=0, high=x, transform="log1p"),
        sized=True,
    ),
    "balance": Proposal(
        "money that may be negative, of up to about X either way: -X to X, on a signed log scale",
        lambda name, x: Numeric(name=name, low=-x, high=x, transform="signed_log"),
        sized=True,
    ),
}


def propose_column(name: str, kind: str, about: float | None = None) -> Numeric:
    """Return a column of numbers with bounds that follow from what it is; no row is read.

    Parameters
    ----------
    name
        Of the column.
    kind
        One of ``KINDS``.
    about
        X, where the kind is of something "up to about X".

    >>> propose_column("salary", "money", 200_000).high
    200000.0
    """
    found = KINDS.get(kind)
    if found is None:
        raise DeclarationError(
            f"column {name!r}: {kind!r} is no known kind of quantity; expected one of "
            f"{', '.join(KINDS)}, or public bounds LOW:HIGH"
        )
    if found.sized != (about is not None):
        what = f"needs X, such as {kind}:100" if found.sized else "takes no number"
        raise DeclarationError(f"column {name!r}: {kind} is {found.what}; it {what}")
    if about is not None and not 0 < about <= 1e15:
        raise DeclarationError(
            f"column {name!r}: X is {about:g}; expected a number above 0 and at most 1e15"
        )
    return found.column(name, 0.0 if about is None else about)
