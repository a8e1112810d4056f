"""Which versions of the wire a node speaks, and which of them two nodes take.

The wire is what goes between nodes: envelopes, leases, greetings, kinds of letters. Every greeting
says the lowest and the highest version that its author speaks. Two nodes take the highest that both
speak, so members can be upgraded one at a time; where there is none, both refuse.

Version 1 is that of dynadp 0.1.0, whose greetings say nothing about it: it has neither envelopes
nor leases, and is spoken no more. Version 2 is the baseline from 0.2.0 on.
"""

from collections.abc import Mapping
from typing import Any

from dynadp.errors import ConfigError, Rejected

SPOKEN = (2, 2)  # lowest, highest
_FIRST = (1, 1)
_SINCE = {1: "0.1.0", 2: "0.2.0"}  # the first program that speaks a version
NOTICE = "(wire)"  # sorts first among what a node of 0.1.0 finds to differ


class NoCommonWire(ConfigError):
    """Two nodes that speak no common version."""


def spoken_by(greeting: Mapping[str, Any]) -> tuple[int, int]:
    """Return the versions that the author of a greeting speaks."""
    found = greeting.get("wire", _FIRST)
    if not (
        isinstance(found, list | tuple)
        and len(found) == 2
        and all(type(one) is int and 0 < one < 2**16 for one in found)
        and found[0] <= found[1]
    ):
        raise Rejected("malformed: a greeting whose wire versions are no range")
    return found[0], found[1]


def common(mine: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """Return the highest version that both speak."""
    highest = min(mine[1], theirs[1])
    return highest if highest >= max(mine[0], theirs[0]) else None


def refusal(me: str, mine: tuple[int, int], other: str, theirs: tuple[int, int]) -> str:
    """Say who has to upgrade."""
    behind, needed = (other, mine[0]) if theirs[1] < mine[0] else (me, theirs[0])
    since = f" ({_SINCE[needed]} or later)" if needed in _SINCE else ""
    return (
        f"{me} speaks {_words(mine)} of the wire, {other} {_words(theirs)}: {behind} has to "
        f"upgrade dynadp to a release that speaks version {needed}{since}. Its ledger and run "
        "folders stay readable"
    )


def notice(mine: tuple[int, int]) -> str:
    """What a node that knows of no versions is shown among the differences that it prints."""
    since = f" ({_SINCE[mine[0]]} or later)" if mine[0] in _SINCE else ""
    return (
        f"{_words(mine)} of the wire: whoever has none has to upgrade dynadp to a release that "
        f"speaks version {mine[0]}{since}"
    )


def _words(spoken: tuple[int, int]) -> str:
    low, high = spoken
    return f"version {low}" if low == high else f"versions {low} to {high}"
