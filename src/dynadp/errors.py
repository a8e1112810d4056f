"""Everything dynadp raises on purpose.

::

    DynadpError
    ├── DeclarationError  (ValueError)   something public is missing, contradictory or out of range
    ├── DataError         (ValueError)   rows break what was declared about them
    │   └── CellError                    a cell does, at a known column and row
    ├── LossError         (ValueError)   a loss breaks a constant that it declares
    ├── TopologyError     (ValueError)   the graph cannot carry a consensus
    ├── DatasetError      (OSError)      a data file is missing or is not the published one
    ├── RecordError       (ValueError)   a run folder or model file cannot be read or written
    └── NotCertified      (RuntimeError) a solver did not reach its gradient bound; nothing may be released

A message says what was given, what was expected and what to do. It may name a node, a column or the position of a
row; it never shows a value taken from a row, because messages travel further than rows may.
"""


class DynadpError(Exception):
    """Base of all errors that dynadp raises on purpose."""


class DeclarationError(DynadpError, ValueError):
    """Something public is missing, contradictory or out of range."""


class DataError(DynadpError, ValueError):
    """Rows break what was declared about them."""


class CellError(DataError):
    """A cell breaks what was declared about its column; tells where, never what it holds."""

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


class NotCertified(DynadpError, RuntimeError):
    """A solver did not reach its gradient bound; nothing may be released."""
