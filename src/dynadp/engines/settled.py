"""Over whom sums were, as files of letters show it to one who takes no part (maths.md 17)."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from dynadp.consensus import Absence
from dynadp.engines.inbox import kept_letters
from dynadp.engines.letters import Kind, Letter, Verifier
from dynadp.engines.member_sums import ballots_of
from dynadp.engines.pasts import Past
from dynadp.errors import RecordError
from dynadp.planning import Plan

_RELEASES: tuple[Kind, ...] = ("message", "sum", "sealed")


class SettledSums:
    """The members of one sum after the other, each asked for once, in the order of the run.

    Parameters
    ----------
    plan, absence
        What the run does, bound to its consortium, and whether it goes on without some nodes.
    config, keys
        The configuration that letters are of, and who may sign them.
    offices
        Files of letters of nodes of the run.

    Attributes
    ----------
    members
        Of the last sum that was asked for, in the network's order.
    """

    def __init__(
        self,
        plan: Plan,
        absence: Absence,
        config: bytes,
        keys: dict[str, Verifier],
        offices: Iterable[Path],
    ) -> None:
        self.ballots, self.members = ballots_of(plan, absence), plan.bound.nodes
        self.senders = plan.release_plan.nodes
        self._past = Past.beginning(self.members)
        self._letters, self._kept = dict[tuple[str, Kind, int], Letter](), dict[int, list[str]]()
        for office in offices if self.ballots else ():
            for letter in kept_letters(office, keys, ("held", *_RELEASES)):
                if letter.config == config:
                    self._letters[letter.author, letter.kind, letter.round] = letter
            self._kept |= _decisions(office)

    def over(self, entry: int) -> bool | None:
        """Find over whom the next sum was; whether all who took part are in it, and None where
        nobody says over whom it was.
        """
        if self.ballots is None:
            return True
        held = self._held(entry)
        if held is None:
            return None
        whole, back = held == {*self._past.members}, frozenset[str]()
        if whole:
            letters = [self._release(name, entry) for name in held if name in self.senders]
            named = [self.ballots.welcomed(one) for one in letters if one is not None]
            back = frozenset.intersection(*named) if None not in letters else back
        self.members = tuple(name for name in self._past.members if name in held)
        self._past = self._past.after(entry, held, back)
        return whole

    def _held(self, entry: int) -> frozenset[str] | None:
        """Over whom the node held a sum that it had no part in, or most who had one say it was."""
        assert self.ballots is not None
        if entry in self._kept:
            return frozenset(self._kept[entry])
        place = self.ballots.place(self._past)
        said = (self._letters.get((name, "held", entry)) for name in self._past.members)
        found = Counter(
            self.ballots.unpacked(one.body)
            for one in said
            if one is not None and self.ballots.place_of(one) == place
        )
        return max(found, key=lambda one: (found[one], sorted(one)), default=None)

    def _release(self, name: str, entry: int) -> Letter | None:
        found = (self._letters.get((name, kind, entry)) for kind in _RELEASES)
        return next((one for one in found if one is not None), None)


def _decisions(office: Path) -> dict[int, list[str]]:
    """Return over whom a node that was left out found sums to be held."""
    try:
        with closing(sqlite3.connect(f"{office.resolve().as_uri()}?mode=ro", uri=True)) as file:
            rows = file.execute("SELECT round, content FROM decision").fetchall()
    except sqlite3.Error as error:
        raise RecordError(f"cannot read the letters in {office}: {error}") from error
    return {n: json.loads(content)["held"] for n, content in rows if "held" in json.loads(content)}
