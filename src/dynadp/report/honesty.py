"""Who must be honest where sums are sealed, and what is lost where fewer are (maths.md 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dynadp.privacy import (
    Collusion,
    Event,
    SealedGaussian,
    collusion_curve,
    guesses_in_100,
    honest_words,
    upper_bound,
)

POINTS = 24  # of the curve over the number that collude, about
ASSUMED = (
    "This is computational: masks are streams of ChaCha20 under keys from X25519, and nobody is "
    "known who can tell them from random numbers."
)
DECLARED = "How many are honest was declared by people. No software can find it out."
UNSEEN = (
    "Nobody sees one node's sum: its letter carries masks and looks like random numbers. Masks "
    "cancel in the sum over all nodes, and that sum alone can be read."
)
WHO_SEES = {  # what goes along the edges, by the record's exchange
    "neighbours": "Every message goes to the sender's neighbours, and no further.",
    "open": "Every node's noisy sum goes to all nodes: neighbours hand it on along the edges.",
    "sealed": f"Every node's letter goes to all nodes: neighbours hand it on along the edges. "
    f"{UNSEEN}",
}


@dataclass(frozen=True)
class Honesty:
    """On whom the guarantee of sealed sums rests.

    Attributes
    ----------
    honest, members
        So many must be honest, of so many.
    spares
        Attempts that are reserved beyond one for each sum.
    delta
        At which epsilon is stated.
    table
        The loss for the planned number that collude, and for more.
    curve
        The same for any number that colludes, from 1: whoever looks.
    """

    honest: int
    members: int
    spares: int
    delta: float
    table: tuple[Collusion, ...]
    curve: tuple[Collusion, ...]

    @classmethod
    def of(cls, own: Sequence[Event], delta: float) -> "Honesty | None":
        """Of all events of one node; None where none is of a sealed sum."""
        found = [event for event in own if isinstance(event, SealedGaussian)]
        if not found:
            return None
        first, table = found[0], collusion_curve(own, delta)
        last = first.members - 1
        steps = max(1, min(last - 1, POINTS))
        # a node whose partners all collude is alone: the loss jumps there
        jump = {first.partners - 1, first.partners}
        evenly = {1 + round(i * (last - 1) / steps) for i in range(steps + 1)}
        picks = (evenly | jump) & set(range(1, last + 1))  # whoever looks is one of them
        picks |= {point.colluding for point in table}
        curve = collusion_curve(own, delta, colluding=sorted(picks))
        return cls(first.honest, first.members, len(spare_events(found)), delta, table, curve)

    @property
    def drawn(self) -> bool:
        """Whether there is a curve to draw: with two nodes there is one point."""
        return self.members > 2

    @property
    def colluding(self) -> int:
        """How many may collude."""
        return self.members - self.honest

    @property
    def who(self) -> str:
        """Who must be honest, in words."""
        if self.members == 1:
            return "The node is alone: nobody helps to hide its rows, and nobody has to."
        if self.honest == 1:
            return "Only the node with the row must be honest: its own noise hides the row."
        return (
            f"{self.honest} of the {self.members} nodes must be honest. They add their noise, keep "
            "their keys for the run to themselves, and do not put together what they know. The "
            "node with the row is among them. Whoever looks is not: it knows its own noise."
        )

    @property
    def as_long_as(self) -> str:
        """The condition, as the end of a sentence; nothing where nobody else must be honest."""
        return honest_words([(self.honest, self.members)] if self.honest > 1 else [])

    @property
    def against(self) -> str:
        """Against whom the guarantee holds, in words."""
        if self.members == 1:
            return "It holds against everybody who sees what the node releases."
        those = "any 1 node" if self.colluding == 1 else f"any {self.colluding} nodes"
        return f"It holds against eavesdroppers and {those} that put together what they know."

    @property
    def spare_words(self) -> str:
        """What is reserved beyond one attempt for each sum, in words; nothing for nothing."""
        if not self.spares:
            return ""
        those, it = ("is", "it is") if self.spares == 1 else ("are", "they are")
        return (
            f"{spare_attempts(self.spares)} {those} reserved, for sums that a spoiled letter makes "
            f"unreadable. Totals count {'it' if self.spares == 1 else 'them'}; {it} spent only "
            "where a sum has to be released once more."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: ``colluding``, ``honest``, ``mu``, ``epsilon``, ``right`` guesses in 100 and
        whether it is ``planned``; numbers as text, rounded up.
        """
        return [
            {
                "colluding": point.colluding,
                "honest": point.honest,
                "mu": upper_bound(point.mu),
                "epsilon": upper_bound(point.epsilon),
                "right": guesses_in_100(point.epsilon, self.delta),
                "planned": point.planned,
            }
            for point in self.table
        ]

    @property
    def points(self) -> list[dict[str, Any]]:
        """The curve: ``colluding``, ``epsilon``, ``right`` and ``planned``; without points that
        have no bound.
        """
        return [
            {
                "colluding": point.colluding,
                "epsilon": point.epsilon,
                "right": guesses_in_100(point.epsilon, self.delta),
                "planned": point.planned,
            }
            for point in self.curve
            if isfinite(point.epsilon)
        ]

    def to_json(self) -> dict[str, Any]:
        """For the page."""
        return {
            "spares": spare_attempts(self.spares) if self.spares else "",
            "rows": self.rows,
            "points": self.points,
        }


def spare_events(events: Sequence[Event]) -> list[Event]:
    """Those of further attempts, which are made only where a sum cannot be decoded."""
    return [event for event in events if getattr(event, "purpose", "") == "spare"]


def spare_attempts(number: int) -> str:
    """So many, in words.

    >>> spare_attempts(1), spare_attempts(3)
    ('1 spare attempt', '3 spare attempts')
    """
    return f"{number} spare attempt{'s' if number != 1 else ''}"
