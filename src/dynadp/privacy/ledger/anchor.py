"""Where a ledger stood last, kept outside of it: an older copy that is put in its place shows.

The ledger is written first, then its anchor. So an anchor may lag behind after a crash, and is
ahead only of a ledger that was cut, rolled back or replaced. An anchor is a file of JSON lines: the
first says whose it is and where the ledger stood, each further one where it stood after a release.
The first line is written whole and durably (cap, reservation, close); the lines of releases are
appended without waiting for the disk. They survive the process, and a loss of power may take some:
then the anchor lags, and the reservation before them is in it.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOSPC
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from typing import Any

from dynadp._files import canonical_json, parse_json, write_bytes
from dynadp.errors import LedgerDamaged, LedgerError

FORMAT, VERSION = "dynadp-anchor", 1
LOG = getLogger("dynadp.ledger")
_HOMELESS = "this user has no home folder"


@dataclass(frozen=True)
class Mark:
    """Where a ledger stood.

    Attributes
    ----------
    first
        The hash of its first entry: which ledger it is.
    length, head
        The number of its entries, and the hash of the last.
    kinds
        How many entries of each kind it had.
    """

    first: str
    length: int
    head: str
    kinds: Mapping[str, int] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return first, length and head: what others may know."""
        return {"first": self.first, "length": self.length, "head": self.head}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Mark":
        """Read a mark; raises ValueError where it is none."""
        first, length, head = (content.get(name) for name in ("first", "length", "head"))
        kinds = content.get("kinds", {})
        texts = all(isinstance(one, str) and len(one) == 64 for one in (first, head))
        if not texts or type(length) is not int or length < 1 or not isinstance(kinds, dict):
            raise ValueError("not a mark of a ledger")
        return cls(str(first), length, str(head), kinds)


def state_folder() -> Path | None:
    """Return where this user's programs keep what must outlive their runs; None without a home.

    ``$XDG_STATE_HOME/dynadp``, by default ``~/.local/state/dynadp``.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    if Path(given).is_absolute():
        return Path(given, "dynadp")
    try:
        return Path.home() / ".local" / "state" / "dynadp"
    except RuntimeError:
        return None


def anchor_file(ledger: str | Path) -> Path | None:
    """Return the default place of a ledger's anchor, named by the ledger's path."""
    state = state_folder()
    name = sha256(str(Path(ledger).resolve()).encode()).hexdigest()[:32]
    return None if state is None else state / "anchors" / f"{name}.json"


class Anchor:
    """The anchor of one ledger.

    Parameters
    ----------
    ledger
        The ledger's file.
    given
        The anchor's own file. By default :func:`anchor_file`: where there is no such place, or it
        cannot be written, a warning is logged and the ledger is used without.
    """

    def __init__(self, ledger: Path, given: str | Path | None = None) -> None:
        self.ledger, self.required = ledger, given is not None
        self.path = anchor_file(ledger) if given is None else Path(given)
        self.folders: list[str] = []  # run folders with letters of this node
        self.covered = 0  # up to here entries were lost, and entered again: heads are others now
        self._failed = False

    def read(self) -> Mark | None:
        """Return where the ledger stood last; None where no anchor is kept."""
        if self.path is None:
            return None
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            if not self.required:
                self._warn(f"{self.path}: {error.strerror}")
                return None
            raise LedgerError(f"cannot read the anchor {self.path}: {error.strerror}") from error
        try:
            whole = parse_json(lines[0])
            if whole["format"] != FORMAT or type(whole["version"]) is not int:
                raise ValueError("another format")
            if whole["version"] > VERSION:
                raise LedgerError(
                    f"the anchor {self.path} has version {whole['version']}, this program reads up "
                    f"to {VERSION}; upgrade dynadp"
                )
            marks, first = [Mark.from_json(whole)], whole["first"]
            self.folders = [str(folder) for folder in whole.get("folders", [])]
            self.covered = int(whole.get("covered", 0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LedgerDamaged(
                f"the anchor {self.path} of the ledger {self.ledger} cannot be read; restore it. "
                "Or compare the ledger with letters (`dynadp ledger recover`), then remove the "
                "anchor, and a new one is made"
            ) from error
        for line in lines[1:]:
            with suppress(ValueError, TypeError):  # the last may be cut by a loss of power
                marks.append(Mark.from_json({**parse_json(line), "first": first}))
        return max(marks, key=lambda mark: mark.length)

    def write(self, mark: Mark, node: str) -> None:
        """Write the mark, whole and durably."""
        if self.path is None:
            self._warn(_HOMELESS)
            return
        content = {
            "format": FORMAT,
            "version": VERSION,
            "ledger": str(self.ledger.resolve()),
            "node": node,
            **mark.to_json(),
            "kinds": dict(mark.kinds),
            "folders": self.folders,
            "covered": self.covered,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(self.path, canonical_json(content).encode() + b"\n", mode=0o600)
            sync_folder(self.path.parent)
        except OSError as error:
            self._fail(error)

    def append(self, mark: Mark) -> None:
        """Add the mark of a release, without waiting for the disk."""
        if self.path is None:
            self._warn(_HOMELESS)
            return
        content = {"length": mark.length, "head": mark.head, "kinds": dict(mark.kinds)}
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                line = canonical_json(content).encode() + b"\n"
                if os.write(handle, line) < len(line):
                    raise OSError(ENOSPC, os.strerror(ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:
            self._fail(error)

    def require_none(self) -> None:
        """Refuse to take a ledger for new whose anchor says that there was one."""
        if (mark := self.read()) is not None:
            raise LedgerDamaged(
                f"there is no ledger at {self.ledger}, and there was one: its anchor {self.path} "
                f"remembers {mark.length} entries. A new one would forget what they charged. "
                f"{recovery(self.ledger)}. If that ledger was a trial on rows of nobody, remove "
                "the anchor, and make a new ledger"
            )

    def require_within(self, entries: int) -> LedgerDamaged:
        """Return the error about a ledger that does not hold what its anchor remembers."""
        mark = self.read()
        count = 0 if mark is None else mark.length
        return LedgerDamaged(
            f"{self.ledger} has {entries} entries and not the entry {count} that its anchor "
            f"{self.path} remembers: it was cut, rolled back to an older copy, or replaced. What "
            f"is missing was charged, and may be known to others. {recovery(self.ledger)}"
        )

    def _fail(self, error: OSError) -> None:
        if self.required:
            raise LedgerError(
                f"cannot write the anchor {self.path}: {error.strerror}; see to its folder, or "
                "name another (anchor in NODE.toml)"
            ) from error
        self._warn(f"{self.path}: {error.strerror}")

    def _warn(self, why: str) -> None:
        if not self._failed:
            LOG.warning(
                "no anchor is kept for the ledger %s, so an older copy in its place would not show "
                "here: %s. Set XDG_STATE_HOME, or anchor in NODE.toml",
                self.ledger,
                why,
            )
        self._failed = True


def recovery(ledger: str | Path) -> str:
    """Return how to get a ledger back, in words."""
    return (
        f"Put the newest copy back (dynadp ledger restore COPY {ledger}). Where there is none that "
        f"is new enough, enter what is missing from signed letters: dynadp ledger recover {ledger} "
        "--from RUN_FOLDER"
    )


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
