"""Ledgers as the people of a node use them: read one, set its cap, close a run."""

import os
from pathlib import Path

from dynadp.data import Seal
from dynadp.engines import forget_vectors, now
from dynadp.errors import DeclarationError, LedgerDamaged, LedgerError
from dynadp.privacy import Cap, Ledger, LedgerSummary


def open_readable(path: str | Path) -> Ledger:
    """Open a ledger for reading.

    An entry that a killed process left half written is undone first, if this user may write.
    """
    try:
        return Ledger.open(path, read_only=True)
    except LedgerDamaged:
        raise
    except LedgerError:
        if not os.access(path, os.W_OK):
            raise
        return Ledger.open(path)


def set_cap(
    path: str | Path, cap: Cap, *, node: str | None = None, who: str
) -> tuple[Cap | None, LedgerSummary]:
    """Set the cap of a ledger, which is made if it is missing and its node is given.

    Parameters
    ----------
    path, cap
        The ledger's file, and the most that its node may spend.
    node
        Whose ledger it is.
    who
        Who sets the cap.

    Returns
    -------
    The cap that was in force before, and the ledger's summary.
    """
    exists = Path(path).exists()
    if not exists and node is None:
        raise DeclarationError(f"there is no ledger {path}; name its node with --node to make one")
    opened = Ledger.open(path) if exists else Ledger.create(path, str(node), who=who, at=now())
    with opened as ledger:
        if node not in (None, ledger.node):
            raise DeclarationError(f"{path} is the ledger of {ledger.node!r}, not of {node!r}")
        before = ledger.cap
        ledger.set_cap(cap, who=who, at=now())
        return before, LedgerSummary.of(ledger)


def close_run(path: str | Path, run: str, *, who: str) -> tuple[int, str]:
    """End a run that will not go on: its unspent reservation is free again.

    Its seal and its private vectors are removed.

    Returns the number of rounds that it spent, and the ledger's new head.
    """
    with Ledger.open(path) as ledger:
        known = LedgerSummary.of(ledger)
        if run not in known.open_runs:
            known_run = f"its run {run!r} is closed already"
            problem = known_run if run in known.runs else f"it has no run {run!r}"
            names = ", ".join(map(repr, known.open_runs)) or "none"
            raise DeclarationError(f"{path}: {problem}; open runs, by their whole names: {names}")
        ledger.close_run(run, "stopped", who=who, at=now())
        Seal.beside(ledger.path, run, entered=True).remove()
        forget_vectors(ledger.path, run)
        return len(ledger.rounds(run)), ledger.head
