"""A node's letters, its own and those of others, in a file; and the rules for accepting a letter.

Privacy never depends on what others send: a hostile neighbour can spoil accuracy, not the
guarantee. Refused letters are counted by reason.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from threading import Condition
from typing import NamedTuple

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import is_public_key
from dynadp.engines.ballots import Ballots
from dynadp.engines.bounds import Tally
from dynadp.engines.letters import Kind, Letter, Signer, Verifier, overhead, verify
from dynadp.engines.notes import NoteRules
from dynadp.errors import RecordError, Rejected

_ASKS = 64  # times that a node may ask to be taken in again, beside once a round
_UNREAD = 64  # letters that are held in memory until they are read
_TABLE = """CREATE TABLE IF NOT EXISTS letter (
  author TEXT NOT NULL, kind TEXT NOT NULL, round INTEGER NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (author, kind, round)
) WITHOUT ROWID"""
_DECISIONS = """CREATE TABLE IF NOT EXISTS decision (
  round INTEGER PRIMARY KEY, content TEXT NOT NULL
)"""


class Grid(NamedTuple):
    """Where a vector may lie: its dimension, or one of several; the public grid's step (0 for none)
    and the public ball's radius (infinite for any 64 bits).
    """

    dimension: int
    step: float
    radius: float
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class AcceptanceRules:
    """Which letters a node accepts.

    Attributes
    ----------
    me, neighbours
        Its name, and whose messages it takes.
    run, config
        The 32-byte ids of run and configuration.
    keys
        Public signing key of every node of the run.
    rounds
        T.
    grids
        Where each node's vector of (kind, round) may lie; a letter that has none is refused.
    longest_note
        Bytes of a letter's note, at most.
    note_rules
        Which notes letters have; None where they have none.
    ballots
        How members of sums are written down, in runs that go on without nodes that stay away;
        None in all others.
    """

    me: str
    neighbours: frozenset[str]
    run: bytes = field(repr=False)
    config: bytes = field(repr=False)
    keys: Mapping[str, Verifier] = field(repr=False)
    rounds: int
    grids: Mapping[tuple[str, Kind, int], Grid] = field(repr=False)
    longest_note: int = 0
    note_rules: NoteRules | None = field(default=None, repr=False)
    ballots: Ballots | None = field(default=None, repr=False)

    def check(self, data: bytes, via: str) -> Letter:
        """Return the letter that a neighbour handed over, its own or one that all nodes need; raise
        what is wrong with it.
        """
        letter = verify(data, self.keys)
        if letter.run != self.run:
            raise Rejected("of another run")
        if letter.config != self.config:
            raise Rejected("of another configuration")
        if letter.author != via and not (
            is_broadcast(letter.kind, letter.round) and via in self.neighbours
        ):
            raise Rejected(f"under the name of {via}, but signed by {letter.author}")
        if letter.author == via and via not in self.neighbours:
            raise Rejected("from a node that is no neighbour")
        if len(letter.note) > self.longest_note:
            raise Rejected("with a note that this run does not have")
        if self.note_rules is not None:
            self.note_rules.check(letter)
        if self.ballots is not None:
            self.ballots.check(letter)
        if letter.kind in ("without", "held", "back") and self.ballots is not None:
            return letter
        if letter.kind in ("join", "welcome"):
            if self.note_rules is None or letter.body:
                raise Rejected("of a kind that this run does not have")
        elif letter.kind != "done":
            self._check_vector(letter)
        elif letter.body or letter.round != self.rounds:
            raise Rejected("malformed: a farewell says nothing but itself")
        return letter

    @property
    def largest_letter(self) -> int:
        """Bytes of the largest letter that can be accepted."""
        widest = max(
            (max(grid.dimension, *grid.others, 0) for grid in self.grids.values()), default=0
        )
        names = max(len(name.encode()) for name in self.keys)
        return overhead(names) + self.longest_note + 8 * widest

    @property
    def most_letters(self) -> int:
        """How many letters can be accepted in all: one of each author, kind and round, and the
        farewells of neighbours.
        """
        return len(self.grids) + len(self.neighbours)

    def _check_vector(self, letter: Letter) -> None:
        grid = self.grids.get((letter.author, letter.kind, letter.round))
        if grid is None:
            raise Rejected("of a round that the run does not have")
        if len(letter.body) not in {8 * width for width in (grid.dimension, *grid.others)}:
            raise Rejected(f"of the wrong dimension: expected {grid.dimension} values")
        if letter.kind == "key" and not is_public_key(letter.body):
            raise Rejected("no key that anybody could share a secret with")
        if grid.radius == inf:  # a sealed letter: any bits will do
            return
        values = letter.values
        if not np.isfinite(values).all():
            raise Rejected("not finite")
        with np.errstate(over="ignore"):  # of squares
            length = float(np.linalg.norm(values))
        limit = grid.radius + grid.step * grid.dimension**0.5  # rounding came last
        if length > limit * (1 + 1e-9):
            raise Rejected("outside the declared ball")
        if grid.step and (values % grid.step).any():
            raise Rejected("off the public grid")


def is_broadcast(kind: Kind, n: int) -> bool:
    """Whether all nodes need this letter, so that neighbours hand it on: centring (round 0), means,
    sums and keys, and who takes part in sums.
    """
    return kind in ("mean", "sum", "sealed", "key", "without", "held", "back") or (
        kind == "message" and n == 0
    )


def released_letters(office: Path, keys: Mapping[str, Verifier]) -> Iterator[Letter]:
    """Yield the releases of these authors in a file of letters, the latest rounds first."""
    return kept_letters(office, keys, ("message", "sum", "sealed"))


def kept_letters(
    office: Path, keys: Mapping[str, Verifier], kinds: Sequence[Kind]
) -> Iterator[Letter]:
    """Yield the letters of these authors and kinds in a file of letters, the latest rounds first;
    what they did not sign is passed over.
    """
    authors, those = (", ".join("?" * len(some)) for some in (keys, kinds))
    where = (
        f"SELECT content FROM letter WHERE author IN ({authors}) "
        f"AND kind IN ({those}) ORDER BY round DESC"
    )
    try:
        address = f"{office.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            rows = connection.execute(where, (*keys, *kinds)).fetchall()
    except sqlite3.Error as error:
        raise RecordError(f"cannot read the letters in {office}: {error}") from error
    for (content,) in rows:
        with suppress(Rejected):
            yield verify(bytes(content), keys)


class Inbox:
    """Letters of one run at one node; any thread may use it.

    Attributes
    ----------
    changed
        Notified whenever a letter comes in.
    rejected
        How many letters were refused, by reason.
    excused
        Whether a letter of (kind, round, author) need not be waited for any longer.
    given_up
        Neighbours that the run goes on without.
    """

    def __init__(self, path: str | Path, rules: AcceptanceRules, key: Signer) -> None:
        self.path, self.rules, self.key = Path(path), rules, key
        self.changed, self.rejected = Condition(), Tally()
        self.excused: Callable[[Kind, int, str], bool] = lambda kind, n, author: False
        self.given_up: frozenset[str] = frozenset()
        # whose letters are in the file
        self._here: defaultdict[tuple[Kind, int], set[str]] = defaultdict(set)
        self._unread: dict[tuple[str, Kind, int], Letter] = {}  # checked when they came in
        with self._file_errors(), ExitStack() as failed:
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            failed.callback(self._connection.close)
            pragmas = "PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"
            for statement in (*pragmas, _TABLE, _DECISIONS):
                self._connection.execute(statement)
            for author, kind, n in self._connection.execute(
                "SELECT author, kind, round FROM letter"
            ):
                self._here[kind, n].add(author)
            failed.pop_all()

    def close(self) -> None:
        """Close the file."""
        with self.changed:
            self._connection.close()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and wake whoever waits for a change."""
        with self.changed:
            yield
            self.changed.notify_all()

    def letter(self, kind: Kind, n: int, body: bytes = b"", note: bytes = b"") -> bytes:
        """Return a letter of this node, sealed; it is kept before."""
        rules = self.rules
        letter = Letter(kind, rules.run, rules.config, rules.me, n, body, note)
        data = letter.sealed(self.key)
        self._keep(letter, data)
        return data

    def offer(self, data: bytes, via: str) -> Letter | None:
        """Take in what a neighbour handed over; return it if it is new. Counts refusals."""
        try:
            letter = self.rules.check(data, via)
            if letter.kind == "welcome" and self.rules.me not in self.here("join", letter.round):
                return None  # nobody here asked
            if letter.kind == "join" and self._joins(letter.author) > self.rules.rounds + _ASKS:
                raise Rejected("asks to be taken in again too often")
            new = self._keep(letter, data, unread=True)
        except Rejected as reason:
            with self.changed:
                self.rejected.count(f"{via}: {reason}")
            raise
        return letter if new else None

    def _joins(self, author: str) -> int:
        return len(self.rounds_of(author, "join"))

    def answer(self, author: str, kind: Kind, n: int) -> bytes | None:
        """Return a letter that a neighbour asks for: this node's own, or one that all need."""
        shared = author == self.rules.me or is_broadcast(kind, n)
        return self.get(author, kind, n) if shared else None

    def shared(self, n: int) -> list[tuple[str, Kind, int]]:
        """Return author, kind and round of what neighbours may ask for, from round n on."""
        with self.changed:
            return [
                (author, kind, round_)
                for (kind, round_), authors in self._here.items()
                for author in authors
                if round_ >= n and (author == self.rules.me or is_broadcast(kind, round_))
            ]

    def get(self, author: str, kind: Kind, n: int) -> bytes | None:
        """Return a letter as it came."""
        return self._content("author = ? AND kind = ? AND round = ?", author, kind, n)

    def last(self, author: str, *, spare: bool = False) -> bytes | None:
        """Return the author's message of the latest round, of either algorithm; or of its latest
        spare attempt, which is entered past all rounds whenever it is made.
        """
        where = (
            f"author = ? AND round {'>' if spare else '<='} ? "
            "AND kind IN ('message', 'sum', 'sealed') ORDER BY round DESC LIMIT 1"
        )
        return self._content(where, author, self.rules.rounds)

    def latest(self, author: str) -> list[bytes]:
        """Return both: a ledger that knows them is no older than they are."""
        found = (self.last(author), self.last(author, spare=True))
        return [data for data in found if data is not None]

    def last_held(self) -> list[bytes]:
        """Return this node's last words on who takes part: of a round, and of a spare attempt."""
        found, me, last = list[bytes](), self.rules.me, self.rules.rounds
        where = "author = ? AND kind = 'held' AND round {} ? ORDER BY round DESC LIMIT 1"
        assert self.rules.ballots is not None
        for sign, limit in (("<=", last), ("BETWEEN ? AND", self.rules.ballots.entries - 1)):
            given = (me, limit) if sign == "<=" else (me, last + 1, limit)
            if (data := self._content(where.format(sign), *given)) is not None:
                found.append(data)
        return found

    def values(self, author: str, kind: Kind, n: int) -> Array:
        """Return the vector of a letter that is here; one from the file is checked again."""
        with self.changed:
            letter = self._unread.pop((author, kind, n), None)
        if letter is not None:
            return letter.values
        data = self.get(author, kind, n)
        if data is None:
            raise RecordError(
                f"{self.path}: the {kind} of {author}, round {n}, is gone; remove the file, and "
                "start again"
            )
        return verify(data, self.rules.keys).values

    def note(self, author: str, kind: Kind, n: int) -> bytes:
        """Return the note of a letter that is here; empty where it has none."""
        data = self.get(author, kind, n)
        return b"" if data is None else verify(data, self.rules.keys).note

    def missing(self, kind: Kind, n: int, authors: Iterable[str]) -> list[str]:
        """Return whose letters are not here yet."""
        with self.changed:
            return [author for author in authors if author not in self._here[kind, n]]

    def awaited(self, kind: Kind, n: int, authors: Iterable[str]) -> list[str]:
        """Return whose letters are missing and still to be waited for."""
        return [a for a in self.missing(kind, n, authors) if not self.excused(kind, n, a)]

    def rounds_of(self, author: str, kind: Kind) -> list[int]:
        """Return of which rounds there are letters of an author and kind, ascending."""
        with self.changed:
            return sorted(
                n for (k, n), whose in self._here.items() if k == kind and author in whose
            )

    def decision(self, n: int) -> str | None:
        """Return what this node decided at the end of round n; None where it has not."""
        with self.changed, self._file_errors():
            row = self._connection.execute(
                "SELECT content FROM decision WHERE round = ?", (n,)
            ).fetchone()
        return None if row is None else str(row[0])

    def decide(self, n: int, content: str) -> None:
        """Keep what this node decided at the end of round n, before it acts on it."""
        with self._file_errors(), self.changed:
            self._connection.execute("INSERT OR REPLACE INTO decision VALUES (?, ?)", (n, content))

    def last_decision(self) -> str | None:
        """Return the newest decision."""
        with self.changed, self._file_errors():
            row = self._connection.execute(
                "SELECT content FROM decision ORDER BY round DESC LIMIT 1"
            ).fetchone()
        return None if row is None else str(row[0])

    def read(self, author: str, kind: Kind, n: int) -> Letter | None:
        """Return a letter that is here, checked; None where it is not."""
        data = self.get(author, kind, n)
        return None if data is None else verify(data, self.rules.keys)

    def of_kind(self, kind: Kind) -> list[Letter]:
        """Return all letters of a kind, checked."""
        with self.changed, self._file_errors():
            rows = self._connection.execute(
                "SELECT content FROM letter WHERE kind = ?", (kind,)
            ).fetchall()
        return [verify(bytes(row[0]), self.rules.keys) for row in rows]

    def here(self, kind: Kind, n: int) -> frozenset[str]:
        """Return whose letters are here."""
        with self.changed:
            return frozenset(self._here.get((kind, n), ()))

    def settle(self) -> None:
        """Bring everything to the disk: power may fail after this."""
        with self.changed, self._file_errors():
            self._connection.execute("PRAGMA wal_checkpoint(FULL)")

    def _content(self, where: str, *given: str | int) -> bytes | None:
        with self.changed, self._file_errors():
            row = self._connection.execute(
                f"SELECT content FROM letter WHERE {where}", given
            ).fetchone()
        return None if row is None else bytes(row[0])

    def _keep(self, letter: Letter, data: bytes, *, unread: bool = False) -> bool:
        """Keep a letter; return whether it is new. A second one with other bytes is refused."""
        author, kind, n = letter.author, letter.kind, letter.round
        with self._file_errors(), self.changing():
            done = self._connection.execute(
                "INSERT OR IGNORE INTO letter VALUES (?, ?, ?, ?)", (author, kind, n, data)
            )
            new = done.rowcount > 0
            if not new and self.get(author, kind, n) != data:
                raise Rejected(
                    f"a second letter of {author} for the same round, with other content"
                )
            self._here[kind, n].add(author)  # an old one may be in the file by another's hand
            if new and unread and len(self._unread) < _UNREAD:
                self._unread[author, kind, n] = letter
        return new

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        """Turn failures of the file into a RecordError that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise RecordError(
                f"cannot use {self.path}: {error}; see to its disk, or remove it, and messages "
                "are asked for again"
            ) from error
