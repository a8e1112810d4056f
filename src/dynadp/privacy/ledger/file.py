"""What a node has spent, over all its runs and data sets: one SQLite file that only grows.

Entries are chained by hashes (:mod:`dynadp.privacy.ledger.rules`), so that :meth:`Ledger.verify`
finds a changed entry by itself, and a cut or replaced ledger by a hash that was kept elsewhere.
*Spend, then send*: what was sent was recorded, and what was recorded can be sent again, byte for
byte, after a crash. To read::

    sqlite3 -readonly FILE 'SELECT * FROM spends'
"""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from dynadp.errors import BudgetRefused, DeclarationError, LedgerDamaged, LedgerError
from dynadp.privacy.cap import Basis, Cap
from dynadp.privacy.events import Event, to_json
from dynadp.privacy.ledger.rules import START, Entry, LedgerState, a_line, a_moment

FORMAT, VERSION, APPLICATION = "dynadp-ledger", 1, 0x44594450
REASONS = ("finished", "stopped")
# Types are checked by hand: STRICT tables need SQLite 3.37, Python 3.11 does not.
_SCHEMA = (
    """CREATE TABLE entry (
  id INTEGER PRIMARY KEY CHECK (id >= 1),
  at TEXT NOT NULL CHECK (typeof(at) = 'text'),
  who TEXT NOT NULL CHECK (typeof(who) = 'text'),
  kind TEXT NOT NULL CHECK (kind IN ('open', 'cap', 'reserve', 'spend', 'close')),
  run TEXT CHECK (typeof(run) = CASE WHEN kind IN ('open', 'cap') THEN 'null' ELSE 'text' END),
  round INTEGER CHECK (typeof(round) = CASE kind WHEN 'spend' THEN 'integer' ELSE 'null' END),
  content TEXT NOT NULL CHECK (typeof(content) = 'text'),
  message BLOB CHECK (typeof(message) = CASE kind WHEN 'spend' THEN 'blob' ELSE 'null' END),
  previous TEXT NOT NULL CHECK (length(previous) = 64),
  hash TEXT NOT NULL CHECK (length(hash) = 64)
)""",
    "CREATE UNIQUE INDEX entry_once ON entry (run, kind, ifnull(round, -1)) WHERE run IS NOT NULL",
    """CREATE TRIGGER entry_follows BEFORE INSERT ON entry WHEN new.id IS NOT (SELECT ifnull(max(id), 0) + 1 FROM entry)
BEGIN SELECT RAISE(ABORT, 'an entry follows the last one'); END""",
    "CREATE TRIGGER entry_stays BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'an entry is "
    "never deleted'); END",
    "CREATE TRIGGER entry_unchanged BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'an entry is "
    "never changed'); END",
    """CREATE VIEW spends AS SELECT id, at, who, run, round,
  (SELECT sum(ifnull(json_extract(value, '$.alpha'), json_extract(value, '$.abar') + json_extract(value, '$.ah')))
   FROM json_each(content, '$.events')) AS alpha,
  length(message) AS bytes, hash FROM entry WHERE kind = 'spend'""",
)
_INSERT = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT id, at, who, kind, run, round, content, message, previous, hash FROM entry WHERE id > ? ORDER BY id LIMIT ?"
_FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter where SQLite quotes a damaged name
_RESTORE = (
    "keep the file for inspection, and restore the ledger from a copy that holds all that was sent"
)
_CAUSES = {
    sqlite3.SQLITE_BUSY: "another process kept it locked for too long; wait for it or end it, "
    "then try again",
    sqlite3.SQLITE_READONLY: "it cannot be written (or was moved, or holds a write that was cut "
    "short and must be undone); "
    "open it where this user may write the file and its folder",
    sqlite3.SQLITE_FULL: "the disk is full; make room, then try again",
    sqlite3.SQLITE_IOERR: "the disk refused; check its room, limits and health, then try again",
    sqlite3.SQLITE_CANTOPEN: "it or its journal cannot be opened; check that this user may write "
    "the file and its folder",
}


class Ledger:
    """One node's ledger: ``create`` it once, ``open`` it for every run; a context manager.

    Any number of processes may share the file; an object serves one thread of one of them. After a
    failure of the disk it stays usable: it forgets its connection, and reads again what the file
    holds. Times are told by the caller, in ISO 8601 with an offset from UTC; the order of entries
    is the chain's, whatever the clocks say.
    """

    def __init__(self, path: str | Path, *, read_only: bool, wait: float) -> None:
        self.path, self.read_only, self.wait = Path(path), read_only, wait
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # that is open
        self._closed = False
        self._book = LedgerState()

    @classmethod
    def create(cls, path: str | Path, node: str, *, who: str, at: str) -> Self:
        """Make a ledger, readable by its owner alone. It appears whole or not at all; nothing is
        overwritten.
        """
        path = Path(path)
        first = Entry(1, at, who, "open").sealed(
            1, START, {"format": FORMAT, "node": a_line("node", node), "version": VERSION}
        )
        for other in (
            path,
            Path(f"{path}-journal"),
            Path(f"{path}-wal"),
        ):  # SQLite would play an old journal into a new file
            if os.path.lexists(other) and (other == path or not _played(other)):
                raise LedgerError(
                    f"{other} exists, nothing is overwritten; open the ledger that is there, or "
                    f"choose another name"
                )
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
                partial = Path(folder, "ledger")
                partial.touch(0o600)
                with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
                    connection.execute("PRAGMA synchronous=EXTRA")
                    connection.execute("BEGIN IMMEDIATE")
                    for statement in (
                        *_SCHEMA,
                        f"PRAGMA application_id={APPLICATION}",
                        f"PRAGMA user_version={VERSION}",
                    ):
                        connection.execute(statement)
                    connection.execute(_INSERT, first.row)
                    connection.execute("COMMIT")
                os.link(partial, path)  # refuses a name that was taken meanwhile
            parent = os.open(path.parent, os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)
        except OSError as error:
            raise LedgerError(
                f"cannot make {path}: {error.strerror}; choose a writable folder on a local disk"
            ) from error
        except sqlite3.Error as error:
            raise _explained(path, error) from error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False, wait: float = 30.0) -> Self:
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
        """
        ledger = cls(path, read_only=read_only, wait=wait)
        try:
            if problems := ledger.verify():
                raise LedgerDamaged(f"{path} is damaged: {problems[0]}; {_RESTORE}")
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Let go of the file, which is whole by itself."""
        self._closed = True
        if (
            self._connection is not None and not self.read_only and self._file == _file(self.path)
        ):  # else another's journal
            with suppress(sqlite3.Error):
                self._connection.execute(
                    "PRAGMA journal_mode=DELETE"
                )  # the journal goes, unless another process is busy
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def node(self) -> str:
        """Whose ledger it is."""
        return self._read().node

    @property
    def head(self) -> str:
        """The hash of the last entry: kept elsewhere, the anchor that shows later whether something
        was cut.
        """
        return self._read().head

    @property
    def cap(self) -> Cap | None:
        """The latest cap."""
        return self._read().cap

    def counted(self) -> list[Event]:
        """What counts against the cap: of a closed run what it spent, of one that is open or took
        the whole cap its plan.
        """
        return self._read().counted()

    def reserved(self, run: str) -> list[Event] | None:
        """The plan of a run that may still spend, or has spent all of it; None for one that is not
        known; else refused.
        """
        book = self._read()
        if run not in book.runs:
            return None
        known = book.runs[run]
        whole = {event.round for event in known.plan} <= set(known.spent)
        return list((known if whole else book.running(run)).plan)

    def advice(self) -> str:
        """What would make room under the cap for a run that is refused."""
        return self._read().advice()

    def is_closed(self, run: str) -> bool:
        """Whether a run is over."""
        known = self._read().runs.get(run)
        return known is not None and known.closed

    def spent(self) -> list[Event]:
        """What was released, by all runs so far."""
        return self._read().spent()

    def rounds(self, run: str) -> list[int]:
        """The rounds that a run has spent."""
        known = self._read().runs.get(run)
        return sorted(known.spent) if known else []

    def message(self, run: str, round: int) -> bytes | None:
        """The message of a spent round, to be sent again after a crash; None where the round is not
        spent.
        """
        known = self._read().runs.get(run)
        if known is None or round not in known.spent:
            return None
        with self._sqlite() as connection:
            entry = next(_entries(connection, known.spent[round] - 1, 1))
        if (entry.run, entry.round, entry.hash) != (run, round, entry.digest()):
            raise LedgerDamaged(
                f"{self.path}: entry {entry.id} was changed while the ledger was open; {_RESTORE}"
            )
        return entry.message

    def entries(self) -> Iterator[Entry]:
        """All entries, in their order."""
        with self._sqlite() as connection:
            yield from _entries(connection, 0)

    def notes(self) -> list[str]:
        """What is odd and harmless: clocks that went backwards."""
        out, last = [], None
        for entry in self.entries():
            if last and a_moment(entry.at) < a_moment(last.at):
                out.append(
                    f"entry {entry.id} tells {entry.at}, before the {last.at} of the entry "
                    f"before: a clock went backwards"
                )
            last = entry
        return out

    def set_cap(self, cap: Cap, *, who: str, at: str) -> None:
        """Record a cap for whatever is reserved from now on.

        It may be raised, and lowered even below what counts already: then nothing more can be
        reserved, while reserved plans continue. It guarantees what it says if no released message
        had a part in choosing it, its order included.
        """
        self._append(
            Entry(0, at, who, "cap"),
            lambda book: {name: float(value) for name, value in asdict(cap).items()},
        )

    def reserve(self, run: str, plan: Iterable[Event], *, dataset: str, who: str, at: str) -> Basis:
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

        Returns
        -------
        Basis
            The rule by which the plan fits; after ``plan`` nothing may ever follow.
        """
        plan = list(plan)

        def decide(book: LedgerState) -> dict[str, Any]:
            book.plan(run, plan)
            if book.cap is None:
                raise BudgetRefused(
                    f"the ledger has no cap, so nothing can be reserved; {book.advice()}"
                )
            before = book.counted()
            if (basis := book.cap.admits(before, plan)) is None:
                raise BudgetRefused(
                    f"the {len(plan)} events of run {run!r} do not fit under the cap (epsilon "
                    f"{book.cap.epsilon:g}, delta "
                    f"{book.cap.delta:g}) beside the {len(before)} that count already; "
                    f"{book.advice()}"
                )
            return {
                "basis": basis,
                "dataset": a_line("dataset", dataset),
                "plan": [to_json(event) for event in plan],
            }

        basis: Basis = self._append(Entry(0, at, who, "reserve", run), decide)["basis"]
        return basis

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
        self._append(
            Entry(0, at, who, "spend", run, round, "", message),
            lambda book: book.spend(run, round, events),
        )

    def close_run(self, run: str, reason: str, *, who: str, at: str) -> None:
        """End a run, ``finished`` or ``stopped``: it can spend no more, and what it did not spend
        is free again.

        Not so after basis ``plan``, unless the run released nothing.
        """
        if reason not in REASONS:
            raise DeclarationError(f"reason is {reason!r}; expected one of {', '.join(REASONS)}")
        self._append(
            Entry(0, at, who, "close", run),
            lambda book: {"reason": reason} if book.running(run) else {},
        )

    def verify(self, anchor: str | None = None) -> list[str]:
        """Read the whole file again and say what is wrong with it; nothing where it is sound.

        Parameters
        ----------
        anchor
            An earlier :attr:`head`. Without one, a ledger that was cut at its end, or written anew
            as a whole, looks sound.
        """
        book, hashes = LedgerState(), {START}
        with self._sqlite() as connection:
            try:
                found = connection.execute("PRAGMA integrity_check(9)").fetchall()
                problems = [f"SQLite says {text}" for (text,) in found if text != "ok"]
                if _layout(connection) != _expected_layout():
                    problems.append(
                        "its tables, indexes, triggers and views are not those that dynadp makes"
                    )
                for entry in () if problems else _entries(connection, 0):
                    problems += filter(None, [book.take(entry)])
                    book.head, book.length = (
                        entry.hash,
                        entry.id,
                    )  # past a bad entry, so that all are named
                    hashes.add(entry.hash)
            except _FAILURES as error:
                if not isinstance(cause := _explained(self.path, error), LedgerDamaged):
                    raise
                return [str(cause)]
        if not problems and (not book.length or not {self._book.head, anchor or START} <= hashes):
            problems.append(
                "the ledger does not contain the anchored head: it was cut, rolled back or replaced"
            )
        if not problems:
            self._book = book
        return problems

    def _append(
        self, draft: Entry, decide: Callable[[LedgerState], dict[str, Any]]
    ) -> dict[str, Any]:
        """Decide and record under one lock; nothing is believed before COMMIT returned."""
        if self.read_only:
            raise LedgerError(f"{self.path} was opened for reading only; open it for writing")
        with self._sqlite() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                book = self._catch_up(connection)
                details = decide(book)
                entry = draft.sealed(book.length + 1, book.head, details)
                connection.execute(_INSERT, entry.row)
                connection.execute("COMMIT")
            except BaseException as error:
                if not isinstance(error, _FAILURES) and connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        book.follow(entry)  # it was decided by the book's rules, while nobody else could write
        return details

    def _catch_up(self, connection: sqlite3.Connection) -> LedgerState:
        """What the file says now, with what others have added; the last entry that was known must
        still be there.
        """
        new = _entries(connection, self._book.length - 1)
        if getattr(next(new, None), "hash", None) != self._book.head:
            raise LedgerDamaged(
                f"{self.path} was cut, rolled back or replaced while it was open; {_RESTORE}"
            )
        for entry in new:
            if problem := self._book.take(entry):
                raise LedgerDamaged(f"{self.path} is damaged: {problem}; {_RESTORE}")
        return self._book

    def _read(self) -> LedgerState:
        with self._sqlite() as connection:
            return self._catch_up(connection)

    @contextmanager
    def _sqlite(self) -> Iterator[sqlite3.Connection]:
        """A connection, thrown away after any failure of SQLite together with what it believed."""
        if self._closed:
            raise LedgerError(f"{self.path} was closed; open it again")
        try:
            if self._connection is None:
                self._connection = self._connect()
            yield self._connection
        except sqlite3.ProgrammingError as error:
            raise LedgerError(
                f"{self.path}: {error}; open it again, in the thread that uses it"
            ) from error
        except _FAILURES as error:
            self._forget()
            if not self.path.is_file():
                raise LedgerError(
                    f"{self.path} was moved or removed while it was open; put it back as it is"
                ) from error
            raise _explained(self.path, error) from error

    def _connect(self) -> sqlite3.Connection:
        if not self.path.is_file():
            command = f"dynadp ledger cap {self.path} --node NODE --epsilon E --delta D"
            raise LedgerError(
                f"there is no ledger at {self.path}; check the name, or make it: {command}"
            )
        address = f"{self.path.resolve().as_uri()}?mode={'ro' if self.read_only else 'rw'}"
        self._file = _file(self.path)
        connection = sqlite3.connect(address, uri=True, timeout=self.wait, isolation_level=None)
        connection.text_factory = lambda text: text.decode(
            errors="replace"
        )  # damage shows in hashes, not in errors
        try:
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=EXTRA"):
                connection.execute(f"PRAGMA {pragma}")
            application, version = (
                connection.execute(f"PRAGMA {x}").fetchone()[0]
                for x in ("application_id", "user_version")
            )
            if application != APPLICATION:
                raise LedgerError(
                    f"{self.path} is not a ledger of dynadp, or no longer; check the name, or "
                    f"restore it from a copy"
                )
            if version > VERSION:
                raise LedgerError(
                    f"{self.path} has version {version}, this program reads up to {VERSION}; "
                    f"upgrade dynadp"
                )
            if version < VERSION:
                raise LedgerDamaged(
                    f"{self.path} has version {version}, expected {VERSION}; {_RESTORE}"
                )
            if not self.read_only:
                # A journal that stays is as safe as one that is deleted, with fewer calls to the
                # disk. But it belongs to its
                # maker: others who may use the ledger could not open it.
                shared = self.path.stat().st_mode & 0o077
                connection.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'PERSIST'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _file(path: Path) -> tuple[int, int] | None:
    """Which file has this name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _played(journal: Path) -> bool:
    """Whether a journal that a killed process left has nothing to undo: its header is wiped at
    every commit.
    """
    return (
        journal.is_file() and not journal.is_symlink() and not journal.read_bytes()[:1].strip(b"\0")
    )


def _entries(connection: sqlite3.Connection, after: int, many: int = 256) -> Iterator[Entry]:
    """Entries after one, some at a time: a reader that dawdles between two locks nobody out."""
    more = True
    while more:
        rows = connection.execute(_SELECT, (after, many)).fetchall()
        more = len(rows) == many
        yield from (Entry(*row) for row in rows)
        after = rows[-1][0] if rows else after


def _layout(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()


def _expected_layout() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in _SCHEMA:
            fresh.execute(statement)
        return _layout(fresh)


def _explained(path: Path, error: Exception) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CAUSES:
        return LedgerError(
            f"{path}: {_CAUSES[code]} ({error}); nothing may be sent that was not recorded"
        )
    return LedgerDamaged(f"{path} is damaged, or is not a ledger ({error}); {_RESTORE}")
