"""Exit codes of all commands: 2 asks for another command line or file, 1 says that the work failed.

- 0: done
- 1: the job failed: disk, a server that is away, a solver; ``dynadp audit``: the
  claim is refuted
- 2: usage or configuration: options, run file, schema, rows, keys, a path that is missing or cannot
  be used, a bad file
- 3: a ledger refused the budget; nothing was released
- 4: a neighbour stayed away for too long
- 5: a ledger is damaged, or an old copy
- 6: another machine runs under this node's name
- 7: the others went on without this node
- 8: it cannot for now: the disk is full, or another process is at work there; nothing is lost
- 130: Ctrl-C (``dynadp explore``, which runs until then: 0); 143: SIGTERM
"""

import errno
import sqlite3

from dynadp.errors import (
    BudgetRefused,
    DynadpError,
    LedgerDamaged,
    LeftBehind,
    NameTaken,
    NodeLost,
    NotCertified,
    Rejected,
    SumSpoiled,
)

FAILED, USAGE, REFUSED, LOST, DAMAGED, TAKEN, LEFT, LATER = range(1, 9)
INTERRUPTED = 130
_OWN = (
    (BudgetRefused, REFUSED),
    (NodeLost, LOST),
    (LeftBehind, LEFT),
    (LedgerDamaged, DAMAGED),
    (NameTaken, TAKEN),
    ((NotCertified, Rejected, SumSpoiled, ConnectionError), FAILED),
)
_PATHS = {  # a path that is missing, or not of the kind or with the rights that are needed
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EROFS,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EADDRINUSE,  # an address is given like a path
    errno.EADDRNOTAVAIL,
}
_FOR_NOW = {errno.ENOSPC, errno.EDQUOT, errno.EWOULDBLOCK}  # no room, or a lock that others hold
_LEDGER_FOR_NOW = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def code_of(error: DynadpError | OSError) -> int:
    """Return the code of an error: that of its kind, 8 where it may pass, 1 where the machine
    failed, else 2.
    """
    for kinds, code in _OWN:
        if isinstance(error, kinds):
            return code
    cause = error.__cause__ if isinstance(error, DynadpError) else error
    if isinstance(cause, sqlite3.Error):
        number = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        failed = FAILED if number == sqlite3.SQLITE_IOERR else USAGE
        return LATER if number in _LEDGER_FOR_NOW else failed
    if not isinstance(cause, OSError) or isinstance(cause, DynadpError):
        return USAGE
    if cause.errno in _FOR_NOW:
        return LATER
    return USAGE if cause.errno in _PATHS else FAILED
