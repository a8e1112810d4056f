"""What a node has spent, over all its runs and data sets: one SQLite file that only grows.

Entries are chained by hashes (:mod:`dynadp.privacy.ledger.entries`), so that :meth:`Ledger.verify`
finds a changed entry by itself, and a cut or replaced ledger by a hash that was kept elsewhere.
*Spend, then send*: what was sent was recorded, and what was recorded can be sent again, byte for
byte, after a crash. To read::

    sqlite3 -readonly FILE 'SELECT * FROM spends'

Its column alpha is NULL, with a reason in the column unknown, where an event is Gaussian (the
column mu_squared then has the sum of mu^2) or where a kind of event was added by a mechanism of
your own. Totals are those of ``dynadp ledger show``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from math import inf
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Self

from dynadp._cards import card, table
from dynadp.errors import BudgetRefused, DeclarationError, LedgerDamaged
from dynadp.privacy.cap import Basis, Cap
from dynadp.privacy.events import Event, to_json
from dynadp.privacy.ledger.anchor import Anchor, Mark
from dynadp.privacy.ledger.entries import START, Entry, parse_time, require_line
from dynadp.privacy.ledger.rules import LedgerState
from dynadp.privacy.ledger.store import (
    FAILURES,
    RESTORE,
    VERSION,
    EntryStore,
    Locked,
    explained,
    insert,
    layout_problems,
    read_entries,
)

FORMAT = "dynadp-ledger"
REASONS = ("finished", "stopped")


class Ledger:
    """One node's ledger: ``create`` it once, ``open`` it for every run; a context manager.

    Any number of processes may share the file; an object serves one thread of one of them. After a
    failure of the disk it stays usable: it forgets its connection, and reads again what the file
    holds. The caller gives times, in ISO 8601 with an offset from UTC; the order of entries is the
    chain's, whatever the clocks say.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        read_only: bool,
        wait: float,
        anchor: str | Path | None = None,
    ) -> None:
        self.path = Path(path)
        self._store = EntryStore(self.path, read_only=read_only, wait=wait)
        self._state = LedgerState()
        self.anchor, self._anchored = Anchor(self.path, anchor), False
        self._together: Connection | None = None

    def _repr_html_(self) -> str:
        """The card of a notebook; LedgerSummary says what is lost and left."""
        now = self.state()
        rows = [
            (run.run, run.closed or "open", f"{run.rounds_spent} of {run.rounds_planned}")
            for run in now.runs.values()
        ]
        cap = f"epsilon = {now.cap.epsilon:g} at delta = {now.cap.delta:g}" if now.cap else "none"
        facts = {"file": self.path, "cap": cap, "entries": now.length, "head": now.head}
        names = ("run", "state", "releases")
        return card(f"Ledger of node {now.node}", facts, picture=table(names, rows))

    @classmethod
    def create(
        cls,
        path: str | Path,
        node: str,
        *,
        who: str,
        at: str,
        anchor: str | Path | None = None,
        anchored: bool = True,
    ) -> Self:
        """Make a ledger, readable by its owner alone. It appears whole or not at all; nothing is
        overwritten, and a ledger that was lost is not taken for a new one.
        """
        details = {"format": FORMAT, "node": require_line("node", node), "version": VERSION}
        if not Path(path).exists() and anchored:
            Anchor(Path(path), anchor).require_none()
        EntryStore.create(Path(path), Entry(1, at, who, "open").sealed(1, START, details))
        return cls.open(path, anchor=anchor, anchored=anchored)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        read_only: bool = False,
        wait: float = 30.0,
        anchor: str | Path | None = None,
        anchored: bool = True,
    ) -> Self:
        """Open a ledger and check all of it, as :meth:`verify` does; damage is an error that names
        the first bad entry.

        Parameters
        ----------
        path
            The file.
        read_only
            Whether to write nothing at all, so that a file will do that this user cannot write.
        wait
            Seconds to wait for a process that holds the lock.
        anchor
            Where its anchor is kept (:mod:`dynadp.privacy.ledger.anchor`), which a ledger that is
            opened to be written must contain; by default in this user's state folder.
        anchored
            False where an older copy is opened to be brought up to its anchor.
        """
        ledger = cls(path, read_only=read_only, wait=wait, anchor=anchor)
        try:
            if not ledger.path.exists() and anchored:
                ledger.anchor.require_none()
            if problems := ledger.verify():
                raise LedgerDamaged(f"{path} is damaged: {problems[0]}; {RESTORE}")
            if not read_only and anchored:
                ledger._drop_anchor()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def wait_without_end(self, locked: Locked) -> None:
        """Wait from now on for as long as other processes keep the file locked.

        Parameters
        ----------
        locked
            Called about once a second meanwhile, with the seconds so far, and with 0 when the
            ledger goes on. It may raise: then nothing is entered.
        """
        self._store.wait, self._store.locked = inf, locked

    def close(self) -> None:
        """Let go of the file, which is whole by itself."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self) -> LedgerState:
        """Return the state after all entries, those of other processes too; only to read."""
        with self._store.session() as connection:
            return self._catch_up(connection)

    @property
    def node(self) -> str:
        """Whose ledger it is."""
        return self.state().node

    @property
    def head(self) -> str:
        """The hash of the last entry: kept elsewhere, it shows later whether something was cut."""
        return self.state().head

    @property
    def cap(self) -> Cap | None:
        """The latest cap."""
        return self.state().cap

    def counted(self) -> list[Event]:
        """Return what counts against the cap: of a closed run what it spent, of one that is open or
        took the whole cap its plan.
        """
        return self.state().counted

    def reserved(self, run: str) -> list[Event] | None:
        """Return the plan of a run that may still spend, or has spent all of it or finished; None
        for an unknown run. Others are refused.
        """
        state = self.state()
        if run not in state.runs:
            return None
        known = state.runs[run]
        if not known.complete and known.closed != "finished":
            state.open_run(run)
        return list(known.plan)

    def is_closed(self, run: str) -> bool:
        """Whether a run is over."""
        known = self.state().runs.get(run)
        return known is not None and known.closed is not None

    def spent(self) -> list[Event]:
        """Return the events that were released, by all runs so far."""
        return self.state().spent

    def rounds(self, run: str) -> list[int]:
        """Return the rounds that a run has spent."""
        known = self.state().runs.get(run)
        return sorted(known.spent) if known else []

    def spend_entry(self, run: str, round: int) -> Entry:
        """Return the entry of a spent round."""
        with self._store.session() as connection:
            known = self._catch_up(connection).runs[run]
            entry = next(read_entries(connection, known.spent[round] - 1, 1))
        if (entry.run, entry.round, entry.hash) != (run, round, entry.digest()):
            raise LedgerDamaged(
                f"{self.path}: entry {entry.id} was changed while the ledger was open; {RESTORE}"
            )
        return entry

    def message(self, run: str, round: int) -> bytes | None:
        """Return the message of a spent round, to be sent again after a crash; None where the round
        is not spent.
        """
        known = self.state().runs.get(run)
        if known is None or round not in known.spent:
            return None
        return self.spend_entry(run, round).message

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, in their order."""
        with self._store.session() as connection:
            yield from read_entries(connection, 0)

    def notes(self) -> list[str]:
        """Return what is odd and harmless: clocks that went backwards."""
        notes, last = [], None
        for entry in self.entries():
            if last and parse_time(entry.at) < parse_time(last.at):
                notes.append(
                    f"entry {entry.id} has the time {entry.at}, before the {last.at} of the entry "
                    f"before: a clock went backwards"
                )
            last = entry
        return notes

    def set_cap(self, cap: Cap, *, who: str, at: str) -> None:
        """Record a cap for everything that is reserved from now on.

        It may be raised, and lowered even below what counts already: then nothing more can be
        reserved, while reserved plans continue. It holds if no released message had a part in
        choosing it, its order included.
        """
        self._append(
            Entry(0, at, who, "cap"),
            lambda state: {name: float(value) for name, value in asdict(cap).items()},
        )

    def reserve(
        self,
        run: str,
        plan: Iterable[Event],
        *,
        dataset: str,
        who: str,
        at: str,
        released: bool = False,
    ) -> Basis:
        """Set aside what a run may spend, before its first release; refused where ``Cap.admits``
        refuses.

        Parameters
        ----------
        run
            A new id.
        plan
            The events of all its rounds, fixed now.
        dataset
            A label for its rows; all data sets of a node share one cap.
        who, at
            Who reserves, and when.
        released
            Whether a part of it is known to be released already, and is entered late: then it
            counts whatever the cap says.

        Returns
        -------
        Basis
            The rule by which the plan fits; after ``plan`` nothing may ever follow.
        """
        plan = list(plan)

        def decide(state: LedgerState) -> dict[str, Any]:
            return {
                "basis": _admitted(state, run, plan, released=released),
                "dataset": require_line("dataset", dataset),
                "plan": [to_json(event) for event in plan],
                **({"released": True} if released else {}),
            }

        basis: Basis = self._append(Entry(0, at, who, "reserve", run), decide)["basis"]
        return basis

    def require_room(self, run: str, plan: Iterable[Event]) -> None:
        """Refuse what :meth:`reserve` would refuse now, and reserve nothing."""
        _admitted(self.state(), run, list(plan))

    def spend(
        self, run: str, round: int, events: Iterable[Event], message: bytes, *, who: str, at: str
    ) -> None:
        """Record a release: spend, then send.

        It returns once the entry is on the disk. If it raises, nothing may be sent but what
        :meth:`message` returns afterwards.

        Parameters
        ----------
        run, round
            A reserved run, and a round that it has not spent.
        events
            Exactly those of the plan for this round.
        message
            What will be sent.
        who, at
            Who spends, and when.
        """
        events = list(events)
        if type(round) is not int or type(message) is not bytes:
            given = f"{type(round).__name__} and {type(message).__name__}"
            raise DeclarationError(
                f"round and message are of type {given}; expected a whole number and bytes"
            )

        def decide(state: LedgerState) -> dict[str, Any]:
            state.check_spend(run, round, events)
            return {"events": [to_json(event) for event in events]}

        self._append(Entry(0, at, who, "spend", run, round, "", message), decide)

    def close_run(self, run: str, reason: str, *, who: str, at: str, failed: bool = False) -> None:
        """End a run, ``finished`` or ``stopped``: it can spend no more, and what it did not spend
        is free again.

        A run with basis ``plan`` that did not release all of it (it was stopped early, or went on
        without this node for a while, or had spare attempts left) keeps a part of the cap's delta.
        What it released counts, and where that fits the filter with the rest of delta, others may
        follow (maths.md 18). Not so where it ``failed``: rows had a part in when it ended.
        """
        if reason not in REASONS:
            raise DeclarationError(f"reason is {reason!r}; expected one of {', '.join(REASONS)}")

        def decide(state: LedgerState) -> dict[str, Any]:
            known = state.open_run(run)
            kept = None if failed else known.keeps
            return {"reason": reason} | ({} if kept is None else {"keeps": kept})

        self._append(Entry(0, at, who, "close", run), decide)

    def verify(self, anchor: str | None = None) -> list[str]:
        """Read the whole file again and return what is wrong with it; nothing where it is sound.

        Parameters
        ----------
        anchor
            An earlier :attr:`head`. Without one, a ledger that was cut at its end, or written anew
            as a whole, looks sound.
        """
        state, hashes = LedgerState(), {START}
        with self._store.session() as connection:
            try:
                problems = layout_problems(connection)
                for entry in () if problems else read_entries(connection, 0):
                    problems += filter(None, [state.take(entry)])
                    # past a bad entry too, so that all are named
                    state.head, state.length = entry.hash, entry.id
                    hashes.add(entry.hash)
            except FAILURES as error:
                if not isinstance(cause := explained(self.path, error), LedgerDamaged):
                    raise
                return [str(cause)]
        if not problems and (not state.length or not {self._state.head, anchor or START} <= hashes):
            problems.append(
                "the ledger does not contain the anchored head: it was cut, rolled back or replaced"
            )
        if not problems:
            self._state = state
        return problems

    def _drop_anchor(self) -> None:
        """Compare the ledger with its anchor, and bring the anchor up to it."""
        mark = self.anchor.read()
        if mark is not None and not self.contains(mark):
            raise self.anchor.require_within(self._state.length)
        self._anchored = True
        if mark is None or mark.length < self._state.length:
            self.anchor.write(self._state.mark, self._state.node)

    def renew_anchor(self, covered: int = 0) -> None:
        """Let the anchor remember the ledger as it is now, whatever it remembered.

        Parameters
        ----------
        covered
            So many entries there were once, and all that they charged is entered again.
        """
        self._anchored = True
        self.anchor.covered = max(self.anchor.covered, covered)
        self.anchor.write(self.state().mark, self.node)

    def accounts_for(self, mark: Mark) -> bool:
        """Whether the ledger stood there once, or lost that and had it all entered again."""
        same = mark.first == self.state().first
        return (same and mark.length <= self.anchor.covered) or self.contains(mark)

    def contains(self, mark: Mark) -> bool:
        """Whether the ledger stood there once: it has that entry, with that hash."""
        if mark.first != self.state().first or mark.length > self.state().length:
            return False
        with self._store.session() as connection:
            entry = next(read_entries(connection, mark.length - 1, 1))
        return entry.hash == mark.head

    @contextmanager
    def together(self) -> Iterator[None]:
        """Enter all that follows at once, or nothing of it, whenever the process ends; for a ledger
        that was opened with ``anchored=False``.
        """
        before = deepcopy(self._state)
        try:
            with self._store.transaction() as connection:
                self._catch_up(connection)
                self._together = connection
                yield
        except BaseException:
            self._state = before
            raise
        finally:
            self._together = None

    def _append(
        self, draft: Entry, decide: Callable[[LedgerState], dict[str, Any]]
    ) -> dict[str, Any]:
        """Decide and record under one lock; the state moves on only after COMMIT returned."""
        open_one = nullcontext(self._together) if self._together else None
        with open_one or self._store.transaction() as connection:
            state = self._catch_up(connection)
            details = decide(state)
            entry = draft.sealed(state.length + 1, state.head, details)
            insert(connection, entry)
        state.enter(entry)
        if self._anchored and entry.kind == "spend":
            self.anchor.append(state.mark)
        elif self._anchored:
            self.anchor.write(state.mark, state.node)
        return details

    def _catch_up(self, connection: Any) -> LedgerState:
        """Take the entries that others have added; the last known entry must still be there."""
        new = read_entries(connection, self._state.length - 1)
        if getattr(next(new, None), "hash", None) != self._state.head:
            raise LedgerDamaged(
                f"{self.path} was cut, rolled back or replaced while it was open; {RESTORE}"
            )
        for entry in new:
            if problem := self._state.take(entry):
                raise LedgerDamaged(f"{self.path} is damaged: {problem}; {RESTORE}")
        return self._state


def _admitted(state: LedgerState, run: str, plan: list[Event], *, released: bool = False) -> Basis:
    """Return the rule by which a plan fits under the cap; refuse it where none does, unless it was
    released already: then more than the cap counts from now on, and nothing else is admitted.
    """
    state.check_plan(run, plan, released=released)
    if state.cap is None:
        raise BudgetRefused(f"the ledger has no cap, so nothing can be reserved; {state.advice()}")
    before = state.counted
    if (basis := state.admits(plan)) is None and not released:
        raise BudgetRefused(
            f"the {len(plan)} events of run {run!r} do not fit under the cap (epsilon "
            f"{state.cap.epsilon:g}, delta {state.cap.delta:g}) beside the {len(before)} that "
            f"count already; {state.advice()}"
        )
    return basis or "sum"
