"""The SQLite file of a ledger: a table of entries that only grows."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from dynadp.errors import LedgerDamaged, LedgerError
from dynadp.privacy.ledger.entries import Entry

VERSION, APPLICATION = 2, 0x44594450
# Types are checked by hand: STRICT tables need SQLite 3.37, Python 3.11 does not.
SCHEMA = (
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
    "CREATE TRIGGER entry_follows BEFORE INSERT ON entry WHEN new.id IS NOT "
    "(SELECT ifnull(max(id), 0) + 1 FROM entry)\n"
    "BEGIN SELECT RAISE(ABORT, 'an entry follows the last one'); END",
    "CREATE TRIGGER entry_stays BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'an entry is "
    "never deleted'); END",
    "CREATE TRIGGER entry_unchanged BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'an entry is "
    "never changed'); END",
)
# Version 1's alpha passes over events of kinds that it does not know. The view of version 2 has no
# alpha for a spend with such an event or a Gaussian one, and says why. Of Gaussian ones it has the
# sum of mu^2, which adds up over rounds.
_VIEWS = {
    1: "CREATE VIEW spends AS SELECT id, at, who, run, round,\n"
    "  (SELECT sum(ifnull(json_extract(value, '$.alpha'), "
    "json_extract(value, '$.abar') + json_extract(value, '$.ah')))\n"
    "   FROM json_each(content, '$.events')) AS alpha,\n"
    "  length(message) AS bytes, hash FROM entry WHERE kind = 'spend'",
    2: """CREATE VIEW spends AS
WITH loss AS (
  SELECT entry.id, json_extract(value, '$.kind') AS kind, CASE json_extract(value, '$.kind')
    WHEN 'l2-laplace' THEN json_extract(value, '$.alpha')
    WHEN 'dual' THEN json_extract(value, '$.abar') + json_extract(value, '$.ah') END AS alpha,
    CASE json_extract(value, '$.kind') WHEN 'gaussian' THEN
      json_extract(value, '$.mu') * json_extract(value, '$.mu') END AS mu_squared
  FROM entry, json_each(content, '$.events') WHERE entry.kind = 'spend'
)
SELECT entry.id, at, who, run, round,
  CASE WHEN count(*) = count(loss.alpha) THEN sum(loss.alpha) END AS alpha,
  length(message) AS bytes, hash,
  CASE WHEN count(*) > count(loss.alpha) + count(loss.mu_squared)
    THEN 'the alpha of a kind of event is not known here; see dynadp ledger show'
    WHEN count(loss.mu_squared) > 0 THEN 'a Gaussian event has no alpha; see mu_squared'
    END AS unknown,
  sum(loss.mu_squared) AS mu_squared
FROM entry LEFT JOIN loss ON loss.id = entry.id
WHERE entry.kind = 'spend' GROUP BY entry.id""",
}
_INSERT = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT id, at, who, kind, run, round, content, message, previous, hash FROM entry "
    "WHERE id > ? ORDER BY id LIMIT ?"
)
FAILURES = (sqlite3.Error, UnicodeDecodeError)  # the latter where SQLite quotes a damaged name
RESTORE = (
    "keep the file for inspection, and restore the ledger from a copy that holds all that was sent"
)
_CAUSES = {
    sqlite3.SQLITE_BUSY: "another process kept it locked for too long; wait for it or end it, "
    "then try again",
    sqlite3.SQLITE_READONLY: "it cannot be written (or was moved, or holds a write that was cut "
    "short and must be undone); open it where this user may write the file and its folder",
    sqlite3.SQLITE_FULL: "the disk is full; make room, then try again",
    sqlite3.SQLITE_IOERR: "the disk refused; check its room, limits and health, then try again",
    sqlite3.SQLITE_CANTOPEN: "it or its journal cannot be opened; check that this user may write "
    "the file and its folder",
}


_STEP = 1.0  # seconds between two looks at a ledger that is locked

Locked = Callable[[float], object]
"""Called about once a second while another process keeps a ledger locked, with the seconds so far;
once more with 0 when it is free. It may raise: then nothing is entered.
"""


class _Patient(sqlite3.Connection):
    """A connection that waits for a lock in short steps, so that signals are heard meanwhile.

    A COMMIT that found readers at work keeps its transaction, and keeps new readers away, so it can
    be given again (https://sqlite.org/lang_transaction.html).
    """

    store: "EntryStore"

    def execute(self, *given: Any) -> sqlite3.Cursor:
        """Carry out a statement, as soon as the lock is free."""
        began, asked = monotonic(), False
        while True:
            try:
                done = super().execute(*given)
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or (waited := monotonic() - began) >= self.store.wait:
                    raise
                asked = True
                self.store.locked(waited)
                continue
            if asked:
                self.store.locked(0.0)
            return done


class EntryStore:
    """The file of one ledger, with a connection that is opened when it is needed."""

    def __init__(self, path: Path, *, read_only: bool, wait: float) -> None:
        self.path, self.read_only, self.wait = path, read_only, wait
        self.locked: Locked = lambda seconds: None
        self.connection: _Patient | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._closed = False

    @staticmethod
    def create(path: Path, first: Entry) -> None:
        """Make a file with its first entry, readable by its owner alone.

        It appears whole or not at all; nothing is overwritten.
        """
        # SQLite would play an old journal into a new file
        for other in (path, Path(f"{path}-journal"), Path(f"{path}-wal")):
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
                    for statement in (*SCHEMA, _VIEWS[VERSION]):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id={APPLICATION}")
                    connection.execute(f"PRAGMA user_version={VERSION}")
                    insert(connection, first)
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
            raise explained(path, error) from error

    @contextmanager
    def session(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection; after any failure of SQLite it is thrown away."""
        if self._closed:
            raise LedgerError(f"{self.path} was closed; open it again")
        try:
            if self.connection is None:
                self.connection = self._connect()
            yield self.connection
        except sqlite3.ProgrammingError as error:
            raise LedgerError(
                f"{self.path}: {error}; open it again, in the thread that uses it"
            ) from error
        except FAILURES as error:
            self._disconnect()
            if not self.path.is_file():
                raise LedgerError(
                    f"{self.path} was moved or removed while it was open; put it back as it is"
                ) from error
            raise explained(self.path, error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection under the lock of a writer; commit at the end, or roll back."""
        if self.read_only:
            raise LedgerError(f"{self.path} was opened for reading only; open it for writing")
        with self.session() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if _version(connection) < VERSION:
                    connection.execute("DROP VIEW spends")
                    connection.execute(_VIEWS[VERSION])
                    connection.execute(f"PRAGMA user_version={VERSION}")
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                if not isinstance(error, FAILURES) and connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file, which is whole by itself."""
        self._closed = True
        ours = self._file == _identity(self.path)  # else the journal belongs to another file
        if self.connection is not None and not self.read_only and ours:
            self.wait = 0.0
            with suppress(sqlite3.Error):  # the journal goes, unless another process is busy
                self.connection.execute("PRAGMA journal_mode=DELETE")
        self._disconnect()

    def _connect(self) -> _Patient:
        if not self.path.is_file():
            command = f"dynadp ledger cap {self.path} --node NODE --epsilon E --delta D"
            raise LedgerError(
                f"there is no ledger at {self.path}; check the name, or make it: {command}"
            )
        address = f"{self.path.resolve().as_uri()}?mode={'ro' if self.read_only else 'rw'}"
        self._file = _identity(self.path)
        connection = sqlite3.connect(
            address,
            uri=True,
            timeout=min(self.wait, _STEP),
            isolation_level=None,
            factory=_Patient,
        )
        connection.store = self
        # damage shows in hashes, not in errors
        connection.text_factory = lambda text: text.decode(errors="replace")
        try:
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=EXTRA"):
                connection.execute(f"PRAGMA {pragma}")
            self._check_version(connection)
            if not self.read_only:
                # A journal that stays is as safe as one that is deleted, with fewer calls to the
                # disk. But it belongs to its maker: others who may use the ledger could not open
                # it.
                shared = self.path.stat().st_mode & 0o077
                connection.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'PERSIST'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        version = _version(connection)
        if application != APPLICATION:
            raise LedgerError(
                f"{self.path} is not a ledger of dynadp, or no longer; check the name, or restore "
                f"it from a copy"
            )
        if version > VERSION:
            raise LedgerError(
                f"{self.path} has version {version}, this program reads up to {VERSION}; upgrade "
                f"dynadp"
            )
        if version not in _VIEWS:
            raise LedgerDamaged(
                f"{self.path} has version {version}, expected 1 to {VERSION}; {RESTORE}"
            )

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def insert(connection: sqlite3.Connection, entry: Entry) -> None:
    """Append an entry."""
    connection.execute(_INSERT, entry.row)


def read_entries(connection: sqlite3.Connection, after: int, many: int = 256) -> Iterator[Entry]:
    """Yield the entries after one, some at a time: a slow reader locks nobody out in between."""
    more = True
    while more:
        rows = connection.execute(_SELECT, (after, many)).fetchall()
        more = len(rows) == many
        yield from (Entry(*row) for row in rows)
        after = rows[-1][0] if rows else after


def layout_problems(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with the file itself, whatever its entries say."""
    checks = connection.execute("PRAGMA integrity_check(9)").fetchall()
    problems = [f"SQLite says {text}" for (text,) in checks if text != "ok"]
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in (*SCHEMA, _VIEWS[_version(connection)]):
            fresh.execute(statement)
        if _layout(connection) != _layout(fresh):
            problems.append(
                "its tables, indexes, triggers and views are not those that dynadp makes"
            )
    return problems


def explained(path: Path, error: Exception) -> LedgerError:
    """Return a failure of SQLite as an error that says what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CAUSES:
        return LedgerError(
            f"{path}: {_CAUSES[code]} ({error}); nothing may be sent that was not recorded"
        )
    return LedgerDamaged(f"{path} is damaged, or is not a ledger ({error}); {RESTORE}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _layout(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file has this name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _played(journal: Path) -> bool:
    """Whether a journal that a killed process left has nothing to undo: its header is wiped at
    every commit.
    """
    return (
        journal.is_file() and not journal.is_symlink() and not journal.read_bytes()[:1].strip(b"\0")
    )
