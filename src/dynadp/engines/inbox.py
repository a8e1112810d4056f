"""A node's post office: own letters and believed ones, in a file, and the rules of belief.

Privacy never depends on what others send: a hostile neighbour can spoil accuracy, not the
guarantee. What is refused is counted by reason.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import NamedTuple

import numpy as np

from dynadp._arrays import Array
from dynadp.engines.letters import Kind, Letter, Signer, Verifier, verify
from dynadp.errors import RecordError, Rejected

_UNREAD = 64  # letters that are held in memory until they are read
_TABLE = """CREATE TABLE IF NOT EXISTS letter (
  author TEXT NOT NULL, kind TEXT NOT NULL, round INTEGER NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (author, kind, round)
) WITHOUT ROWID"""


class Grid(NamedTuple):
    """Where a vector may lie: its dimension, the public grid's step (0 for none) and the public
    ball's radius.
    """

    dimension: int
    step: float
    radius: float


@dataclass(frozen=True)
class AcceptanceRules:
    """What a node believes.

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
        Where each node's vector of (kind, round) may lie; a letter of which there is none is
        refused.
    """

    me: str
    neighbours: frozenset[str]
    run: bytes = field(repr=False)
    config: bytes = field(repr=False)
    keys: Mapping[str, Verifier] = field(repr=False)
    rounds: int
    grids: Mapping[tuple[str, Kind, int], Grid] = field(repr=False)

    def check(self, data: bytes, via: str) -> Letter:
        """The letter that a neighbour handed over, its own or another's that is told to all; raises
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
        if letter.kind != "done":
            self._check_vector(letter)
        elif letter.body or letter.round != self.rounds:
            raise Rejected("malformed: a farewell says nothing but itself")
        return letter

    def _check_vector(self, letter: Letter) -> None:
        grid = self.grids.get((letter.author, letter.kind, letter.round))
        if grid is None:
            raise Rejected("of a round that the run does not have")
        if len(letter.body) != 8 * grid.dimension:
            raise Rejected(f"of the wrong dimension: expected {grid.dimension} values")
        values = letter.values
        if not np.isfinite(values).all():
            raise Rejected("not finite")
        with np.errstate(over="ignore"):  # of squares
            length = float(np.linalg.norm(values))
        if length > (grid.radius + grid.step * grid.dimension**0.5) * (
            1 + 1e-9
        ):  # rounding came last
            raise Rejected("outside the declared ball")
        if grid.step and (values % grid.step).any():
            raise Rejected("off the public grid")


def is_broadcast(kind: Kind, n: int) -> bool:
    """Whether all nodes need this letter, so that neighbours hand it on: centring (round 0) and
    means.
    """
    return kind == "mean" or (kind == "message" and n == 0)


class Inbox:
    """Letters of one run at one node; any thread may use it.

    Attributes
    ----------
    changed
        Notified whenever a letter comes in.
    rejected
        How many letters were refused, by reason.
    """

    def __init__(self, path: str | Path, rules: AcceptanceRules, key: Signer) -> None:
        self.path, self.rules, self.key = Path(path), rules, key
        self.changed, self.rejected = Condition(), Counter[str]()
        self._here: dict[tuple[Kind, int], set[str]] = {}  # whose letters are in the file
        self._unread: dict[tuple[str, Kind, int], Letter] = {}  # checked when they came in
        with self._told(), ExitStack() as failed:
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            failed.callback(self._connection.close)
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", _TABLE):
                self._connection.execute(statement)
            for author, kind, n in self._connection.execute(
                "SELECT author, kind, round FROM letter"
            ):
                self._here.setdefault((kind, n), set()).add(author)
            failed.pop_all()

    def close(self) -> None:
        """Close the file."""
        with self.changed:
            self._connection.close()

    def letter(self, kind: Kind, n: int, body: bytes = b"") -> bytes:
        """A letter of this node, sealed; kept before it is returned."""
        rules = self.rules
        letter = Letter(kind, rules.run, rules.config, rules.me, n, body)
        data = letter.sealed(self.key)
        self._keep(letter, data)
        return data

    def offer(self, data: bytes, via: str) -> Letter | None:
        """Take in what a neighbour handed over; None where it was here before. Raises Rejected, and
        counts.
        """
        try:
            letter = self.rules.check(data, via)
            new = self._keep(letter, data, unread=True)
        except Rejected as reason:
            with self.changed:
                self.rejected[f"{via}: {reason}"] += 1
            raise
        return letter if new else None

    def get(self, author: str, kind: Kind, n: int) -> bytes | None:
        """A letter as it came."""
        with self.changed, self._told():
            found = self._connection.execute(
                "SELECT content FROM letter WHERE author = ? AND kind = ? AND round = ?",
                (author, kind, n),
            ).fetchone()
        return None if found is None else bytes(found[0])

    def values(self, author: str, kind: Kind, n: int) -> Array:
        """The vector of a letter that is here; one from the file is checked again."""
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

    def missing(self, kind: Kind, n: int, authors: Iterable[str]) -> list[str]:
        """Whose letters are not here yet."""
        with self.changed:
            here = self._here.get((kind, n), set())
            return [author for author in authors if author not in here]

    def last(self, author: str) -> bytes | None:
        """The author's message of the latest round."""
        query = (
            "SELECT content FROM letter WHERE author = ? AND kind = 'message' ORDER BY round DESC "
            "LIMIT 1"
        )
        with self.changed, self._told():
            found = self._connection.execute(query, (author,)).fetchone()
        return None if found is None else bytes(found[0])

    def _keep(self, letter: Letter, data: bytes, *, unread: bool = False) -> bool:
        """Keep a letter; whether it is new. A second one with other bytes is refused."""
        author, kind, n = letter.author, letter.kind, letter.round
        with self.changed, self._told():
            done = self._connection.execute(
                "INSERT OR IGNORE INTO letter VALUES (?, ?, ?, ?)", (author, kind, n, data)
            )
            if done.rowcount:
                self._here.setdefault((kind, n), set()).add(author)
                if unread and len(self._unread) < _UNREAD:
                    self._unread[author, kind, n] = letter
                self.changed.notify_all()
                return True
        if self.get(author, kind, n) != data:
            raise Rejected(f"a second letter of {author} for the same round, with other content")
        with self.changed:  # it may be in the file by another's hand
            self._here.setdefault((kind, n), set()).add(author)
            self.changed.notify_all()
        return False

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Failures of the file, in words."""
        try:
            yield
        except sqlite3.Error as error:
            raise RecordError(
                f"cannot use {self.path}: {error}; see to its disk, or remove it, and messages "
                "are asked for again"
            ) from error
