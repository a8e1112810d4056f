"""Copies of a ledger: made whole while it is in use, and put back only if nothing would be lost."""

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from dynadp.errors import DeclarationError, LedgerDamaged, LedgerError
from dynadp.privacy import Anchor, Ledger, Mark, recovery


def backup_ledger(path: str | Path, copy: str | Path) -> Mark:
    """Copy a ledger by SQLite's own means, while processes may use it, and check the copy.

    Parameters
    ----------
    path, copy
        The ledger, and a new file that appears whole or not at all.

    Returns
    -------
    Where the copy stands.
    """
    path, copy = Path(path), Path(copy)
    if copy.exists():
        raise DeclarationError(f"{copy} exists; nothing is overwritten, choose another name")
    with Ledger.open(path, read_only=True):  # which refuses a damaged one
        pass
    return _copied(path, copy)


def restore_ledger(copy: str | Path, path: str | Path, anchor: str | Path | None = None) -> Mark:
    """Put a copy in the place of a ledger; refused where that would forget entries.

    Parameters
    ----------
    copy, path
        The copy, and the ledger, which may be missing or damaged.
    anchor
        The ledger's anchor, if not in this user's state folder.

    Returns
    -------
    Where the ledger stands.
    """
    copy, path = Path(copy), Path(path)
    with Ledger.open(copy, read_only=True) as found:
        mark = Anchor(path, anchor).read()
        if mark is not None and not found.contains(mark):
            raise LedgerDamaged(
                f"{copy} has {found.state().length} entries and does not hold the entry "
                f"{mark.length} that the anchor of {path} remembers: to put it there would forget "
                f"what was charged. Look for a newer copy, or enter what is missing from signed "
                f"letters: dynadp ledger recover {path} --copy {copy} --from RUN_FOLDER"
            )
        if path.exists():
            _require_no_more(path, found)
    if path.exists():
        os.replace(path, _aside(path))
        for rest in ("-journal", "-wal"):  # of the file that was there
            if Path(f"{path}{rest}").exists():
                os.replace(f"{path}{rest}", f"{_aside(path)}{rest}")
    _copied(copy, path)
    with Ledger.open(path, anchor=anchor) as restored:
        return restored.state().mark


def _require_no_more(path: Path, found: Ledger) -> None:
    """Refuse to replace a sound ledger that has entries which the copy has not."""
    try:
        with Ledger.open(path, read_only=True) as here:
            mark = here.state().mark
    except LedgerError:
        return  # damaged: this is what copies are for, and the anchor was asked
    if not found.contains(mark):
        raise LedgerDamaged(
            f"{path} is sound and has {mark.length} entries, of which the copy lacks some; nothing "
            f"was changed. Use it as it is. {recovery(path)}"
        )


def _aside(path: Path) -> Path:
    """Return a free name beside a file that was replaced."""
    number = 1
    while (name := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    return name


def _copied(source: Path, target: Path) -> Mark:
    """Copy by SQLite's backup, check, and let the copy appear."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            partial = Path(folder, "ledger")
            mark = write_copy(source, partial)
            let_appear(partial, target)
    except OSError as error:
        raise _unwritable(target, error) from error
    return mark


def write_copy(source: Path, target: Path) -> Mark:
    """Copy a ledger by SQLite's backup to a file that nobody uses yet, and check the copy."""
    try:
        target.touch(0o600)
        address = f"{source.resolve().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(address, uri=True)) as read,
            closing(sqlite3.connect(target)) as written,
        ):
            read.backup(written)
    except OSError as error:
        raise _unwritable(target, error) from error
    except sqlite3.Error as error:
        raise LedgerError(f"cannot copy {source}: {error}; try again") from error
    with Ledger.open(target, read_only=True) as ledger:
        return ledger.state().mark


def let_appear(partial: Path, target: Path) -> None:
    """Give a whole file its name, durably; refused where the name is taken."""
    try:
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.link(partial, target)
        handle = os.open(target.parent, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"cannot make {target}: {error.strerror}; choose a folder that can be written"
    )
