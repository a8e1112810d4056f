"""Everything dynadp raises on purpose.

::

    DynadpError
    ├── DeclarationError  (ValueError)   something public is missing, contradictory, out of range
    │   └── ConfigError                  a run file or schema file has mistakes: all of them
    ├── DataError         (ValueError)   rows break what was declared about them
    │   └── CellError                    a cell does, at a known column and row
    ├── LossError         (ValueError)   a loss breaks a constant that it declares
    ├── TopologyError     (ValueError)   the graph cannot carry a consensus
    ├── DatasetError      (OSError)      a data file is missing or is not the published one
    ├── RecordError       (ValueError)   a run folder or model file cannot be read or written
    ├── LedgerError       (RuntimeError) a ledger is missing, not writable, or not a ledger
    │   └── LedgerDamaged                a ledger was changed, cut or damaged
    ├── BudgetRefused     (RuntimeError) a release was not reserved, or is past the cap
    ├── IdentityError     (ValueError)   a certificate or key is missing, expired or another's
    ├── NotApproved       (RuntimeError) nobody approved what this silo would release
    ├── NodeLost          (RuntimeError) a neighbour stayed away too long; the run can go on
    ├── NameTaken         (RuntimeError) another machine runs under this node's name
    ├── LeftBehind        (RuntimeError) the run went on without this node, and does not take it in
    ├── Rejected          (ValueError)   what a neighbour sent is not believed
    ├── SeededRefused     (ValueError)   seeded noise protects nobody: no ledger takes it
    ├── SumSpoiled        (RuntimeError) the letters of a sealed sum do not give a sum
    └── NotCertified      (RuntimeError) a solver missed its gradient bound: nothing is released

A message says what was given, what was expected and what to do. It may name a node, a column or the
position of a row; it never shows a value taken from a row, because messages travel further than
rows may.
"""


class DynadpError(Exception):
    """Base of all errors that dynadp raises on purpose."""


class DeclarationError(DynadpError, ValueError):
    """Something public is missing, contradictory or out of range."""


class ConfigError(DeclarationError):
    """A run file or a schema file has mistakes; the message names all of them, with places."""


class DataError(DynadpError, ValueError):
    """Rows break what was declared about them."""


class CellError(DataError):
    """A cell breaks what was declared about its column; says where, never what it holds."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"{column}, row {row}: {reason}")
        self.column, self.row, self.reason = column, row, reason


class LossError(DynadpError, ValueError):
    """A loss breaks a constant that it declares."""


class TopologyError(DynadpError, ValueError):
    """The graph cannot carry a consensus."""


class DatasetError(DynadpError, OSError):
    """A data file is missing or is not the published one."""


class RecordError(DynadpError, ValueError):
    """A run folder or model file cannot be read or written."""


class LedgerError(DynadpError, RuntimeError):
    """A ledger is missing, not writable, or not a ledger."""


class LedgerDamaged(LedgerError):
    """A ledger was changed, cut or damaged."""


class BudgetRefused(DynadpError, RuntimeError):
    """A release was not reserved, was spent before or does not fit under the cap; nothing may be
    released.
    """


class IdentityError(DynadpError, ValueError):
    """A certificate or key is missing, expired, of another authority or open to other users."""


class NotApproved(DynadpError, RuntimeError):
    """Nobody approved what this silo would release in a run; nothing was spent."""


class NodeLost(DynadpError, RuntimeError):
    """A neighbour stayed away for too long; nothing is lost, and the run goes on when both are
    started again.

    Attributes
    ----------
    away
        The names of those who stayed away, where they are known.
    """

    def __init__(self, message: str, away: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.away = away


class NameTaken(DynadpError, RuntimeError):
    """Another process or machine runs under this node's name; this one draws nothing more."""


class LeftBehind(DynadpError, RuntimeError):
    """The run went on without this node, and nobody takes it in again: its part is over."""


class Rejected(DynadpError, ValueError):
    """What a neighbour sent is refused, for this reason; it is counted, logged and
    forgotten.
    """


class SeededRefused(DynadpError, ValueError):
    """A release with seeded noise: it protects nobody, and no ledger takes it."""


class SumSpoiled(DynadpError, RuntimeError):
    """The letters of a sealed sum do not give a sum within its public bound."""


class NotCertified(DynadpError, RuntimeError):
    """A solver did not reach its gradient bound; nothing may be released."""
