"""Sums over those who remain, in the open and sealed, where nodes may stay away (maths.md 17)."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Absence, Journal, Masks, SealedSum, SumRounds, WeighedSum
from dynadp.engines.ballots import Ballots
from dynadp.engines.exchange import Awaiting, Letters
from dynadp.engines.letters import Kind
from dynadp.engines.membership import Membership, least_members
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.planning import Plan


def ballots_of(plan: Plan, absence: Absence) -> Ballots | None:
    """Return how members are written down in a run of algorithm "sum" that goes on without nodes
    that stay away; None in any other.
    """
    if not absence.goes_on or plan.algorithm != "sum":
        return None
    releases = plan.release_plan
    return Ballots(plan.bound.nodes, 1 + len(releases.noises) + len(releases.spares))


def least_of(plan: Plan, absence: Absence) -> int:
    """Return how many nodes must remain; all of them where a run does not go on without some."""
    nodes = len(plan.bound.nodes)
    if not absence.goes_on or nodes == 1:
        return nodes
    if plan.algorithm == "sum":
        return least_members(absence, nodes, plan.sealing.least if plan.sealing else 0)
    least = 2 if absence.least is None else absence.least
    if not 2 <= least <= nodes:
        raise DeclarationError(
            f"least is {least} of {nodes} nodes; expected a number from 2 to {nodes}: a node does "
            "not go on alone, with nobody's messages but its own"
        )
    return least


def rows_of(plan: Plan, members: Sequence[str]) -> float:
    """n = sum_p w_p B_p over members."""
    nodes, counts = plan.bound.nodes, plan.bound.counts
    if len(members) == len(nodes):
        return plan.rows
    assert plan.steps is not None
    weights = plan.steps.node_weights
    those = [nodes.index(name) for name in members]
    return float(np.dot([weights[p] for p in those], [counts[p] for p in those]))


def members_of(
    plan: Plan, absence: Absence, letters: Letters, journal: Journal, masks: Masks | None = None
) -> Membership | None:
    """Return the members of all sums to come; None where a run waits for all nodes."""
    ballots = ballots_of(plan, absence)
    if ballots is None:
        return None
    senders = [plan.bound.nodes[p] for p in plan.senders]
    sends = letters.inbox.rules.me in senders

    def released() -> int:
        rounds = reversed(range(plan.rounds + 1)) if sends else iter(())
        return next((n for n in rounds if journal.sent(n) is not None), 0)

    def open_to_returns() -> bool:  # the last attempt is not risked for one that may leave again
        return masks is None or masks.spares < len(plan.release_plan.spares)

    least = least_of(plan, absence)
    made = Membership(
        letters, ballots, senders, least, released=released, open_to_returns=open_to_returns
    )
    made.begin(spent=sends and bool(journal.sent(_first(plan))))
    return made


def _first(plan: Plan) -> int:
    """The number that the first release is entered under."""
    return 0 if plan.centrings else 1


def swap_members(
    members: Membership, kind: Kind, n: int, V: Array | None
) -> Generator[Awaiting, None, dict[str, Array]]:
    """Publish V, if there is one; return the vectors of all who take part in this sum."""
    letters = members.letters
    _post(members, kind, n, n, V)
    yield from members.settle(kind, n, partial=True)
    letters.checkpoint("received")
    those = (name for name in members.summed if name in members.senders)
    return {name: letters.inbox.values(name, kind, n) for name in those}


def swap_sealed(
    members: Membership, entry: int, n: int, words: Any | None
) -> Generator[Awaiting, None, tuple[frozenset[str], Any]]:
    """Publish a sealed letter for round n, if there is one; return who is left out, and the letters
    of all members, P x 1 x d; None where somebody is, or where their lengths differ.
    """
    letters = members.letters
    own = None if words is None else np.ascontiguousarray(words, np.uint64).view(np.float64)
    _post(members, "sealed", entry, n, own)
    away = yield from members.settle("sealed", entry, partial=False)
    letters.checkpoint("received")
    if away:
        return away, None
    found = [letters.inbox.values(name, "sealed", entry) for name in members.summed]
    if len({len(one) for one in found}) > 1:
        return away, None
    return away, np.array(found)[:, None].view(np.uint64)


def _post(members: Membership, kind: Kind, entry: int, n: int, V: Any) -> None:
    inbox = members.letters.inbox
    if V is not None:
        others = [name for name in members.sending if name != members.me]
        again = bool(inbox.missing(kind, entry, others))
        note = members.note(kind, entry, n)
        members.letters.send(kind, entry, V, note, again=again)


@dataclass(frozen=True)
class MemberSums:
    """sum_p w_p V_p from plain letters of all members that send; n follows the members.

    Attributes
    ----------
    plan, members, rounds
        Bound to its consortium; who takes part; whose rounds count the members' rows.
    """

    plan: Plan
    members: Membership
    rounds: SumRounds

    def __call__(self, n: int, V: Array | None) -> Generator[Awaiting, None, Array]:
        """Send this node's message, where it has one, and add up those of all who take part."""
        found = yield from swap_members(self.members, "sum", n, None if V is None else V[0, 0])
        self.rounds.rows = rows_of(self.plan, self.members.summed)
        assert self.plan.steps is not None
        nodes, weights = self.plan.bound.nodes, self.plan.steps.node_weights
        senders = self.plan.release_plan.nodes
        self.rounds.members = [senders.index(name) for name in found]
        vectors = np.array(list(found.values()))
        return WeighedSum([weights[nodes.index(name)] for name in found])(n, vectors[:, None])


@dataclass(frozen=True)
class MemberSealedSums:
    """sum_p w_p V_p from the sealed letters of all members; where one of them stays away the sum
    is tried again by the others, with new noise and new masks.
    """

    plan: Plan
    members: Membership
    rounds: SumRounds

    def __call__(self, n: int, V: Any) -> Generator[Awaiting, None, Array]:
        """Send this node's letter, wait for all others', decode their sum.

        Raises SumSpoiled where they do not give one: the next attempt is among those who remain.
        """
        releaser = self.rounds.releaser
        assert releaser is not None
        assert releaser.masks is not None
        own = None if V is None else V[0, 0]
        away, words = yield from swap_sealed(self.members, releaser.entry, n, own)
        releaser.masks.among(self.members.members)
        if away:
            raise SumSpoiled(f"{', '.join(sorted(away))} stayed away from a sealed sum")
        if words is None:
            raise SumSpoiled("letters of one sealed sum have different lengths")
        self.rounds.rows = rows_of(self.plan, self.members.summed)
        senders = self.plan.release_plan.nodes
        there = [name for name in self.members.summed if name in senders]
        self.rounds.members = [senders.index(name) for name in there]
        return SealedSum(releaser.releases.noises)(n, words)
