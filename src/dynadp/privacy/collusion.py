"""What sealed sums lose where more members collude than was planned for (maths.md 13)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

from dynadp import _require
from dynadp.errors import DeclarationError
from dynadp.privacy.accountant import finite, total, unit_of
from dynadp.privacy.events import Event, SealedGaussian
from dynadp.privacy.gaussian import joint_mu
from dynadp.privacy.statements import upper_bound


@dataclass(frozen=True)
class Collusion:
    """The loss if so many members collude, or leave out their noise.

    Attributes
    ----------
    colluding, honest
        c', and how many others' noise then hides a row, its own node's among it.
    mu, epsilon
        Of everything together; epsilon is infinite where there is no bound.
    planned
        Whether the plan was made for it.
    """

    colluding: int
    honest: int
    mu: float
    epsilon: float
    planned: bool

    def to_json(self) -> dict[str, Any]:
        """For a record; an infinite epsilon is null."""
        return finite(asdict(self))


def collusion_words(curve: Iterable[Collusion]) -> str:
    """Return what is lost beyond the plan, in words; nothing where it can be no more.

    >>> collusion_words([Collusion(2, 3, 0.3, 1.0, True), Collusion(4, 1, 0.52, 2.04, False)])
    '2.04 with 4 colluding'
    """
    worse = [point for point in curve if not point.planned]
    return ", ".join(f"{upper_bound(one.epsilon)} with {one.colluding} colluding" for one in worse)


def left_honest(members: int, partners: int, colluding: int) -> int:
    """Members minus c': whose noise hides a row where c' of them collude; 1, its own node's, where
    they may be all partners of that node. A member that looks counts as one, also by itself.
    """
    _require.whole("members", members)
    if not 0 <= colluding < members:
        raise DeclarationError(
            f"colluding is {colluding}; expected a number from 0 to {members - 1}, all members but "
            "the row's own"
        )
    return members - max(colluding, 1) if members > 1 and colluding < partners else 1


def if_colluding(events: Iterable[Event], colluding: int) -> list[Event]:
    """mu sqrt(h/(members - c')) in place of mu in every sealed sum; other events stay.

    A coalition that holds all partners of a node knows all its masks, and sees its noise alone.
    """
    return [_opened(e, colluding) if isinstance(e, SealedGaussian) else e for e in events]


def _opened(event: SealedGaussian, colluding: int) -> SealedGaussian:
    left = left_honest(event.members, event.partners, min(colluding, event.members - 1))
    # the distance is one that holds for any number of honest members
    return replace(event, mu=event.mu * sqrt(event.honest / left), honest=left)


def sealed(events: Iterable[Event]) -> list[SealedGaussian]:
    """The events of sealed sums among these."""
    return [event for event in events if isinstance(event, SealedGaussian)]


def collusion_curve(
    events: Sequence[Event],
    delta: float,
    rows: int | None = None,
    colluding: Sequence[int] | None = None,
    cost: Callable[[list[Event]], float] | None = None,
) -> tuple[Collusion, ...]:
    """The loss of one node's events for the planned number of colluding members, and for more.

    Parameters
    ----------
    events
        Of one node; those of sealed sums have one membership, or the smallest counts.
    delta
        At which epsilon is stated.
    rows
        That a person has at the node; by default as many as planned.
    colluding
        c' of each point; by default the plan's, about half and four fifths of the members, and
        all others.
    cost
        epsilon of events; by default that of a plan that was fixed before its first release.
    """
    found, unit = sealed(events), unit_of(list(events), rows)
    if not found:
        return ()
    least = min(found, key=lambda event: event.members)
    members, planned = least.members, least.members - least.honest
    if colluding is None:
        further = (members // 2, members * 4 // 5, members - 1)
        colluding = sorted({planned, *(c for c in further if c > planned)})
    curve = []
    for c in colluding:
        opened = if_colluding(events, c)
        curve.append(
            Collusion(
                c,
                left_honest(members, least.partners, c),
                joint_mu(opened, unit.rows, unit.silos),
                cost(opened) if cost else total(opened, delta, rows).epsilon,
                c == planned,
            )
        )
    return tuple(curve)
