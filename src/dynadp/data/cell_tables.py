"""The distinct cells of a streamed column and their features, made once and looked up by code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.data.coded import DictionaryColumn
from dynadp.data.row_blocks import Features
from dynadp.errors import CellError


class Kept:
    """Keeps what was made for distinct cells, for the next pass, which meets them again.

    Parameters
    ----------
    most
        Bytes; when they are reached, everything is forgotten.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.found: dict[Any, Any] = {}

    def add(self, key: Any, made: Any, size: int) -> None:
        """Keep it, unless it is too large by itself."""
        if self.held + size > self.most:
            self.found.clear()
            self.held = 0
        if size <= self.most:
            self.found[key] = made
            self.held += size


@dataclass(frozen=True, eq=False)
class CellTable:
    """Everything that rows need to know about the distinct cells of a column; the last is None.

    Attributes
    ----------
    name, cells
        The column, and its cells.
    absent, bad
        Which of them are missing; which of them, once rows are dropped, need the slow path.
    features
        R_c; None where it would be too large, and for labels.
    y
        Of labels: what stands for each.
    """

    name: str
    cells: NDArray[Any]
    absent: NDArray[np.bool_]
    bad: NDArray[np.bool_]
    features: Features | None = None
    y: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        held = 0 if self.features is None else int(self.features.rows.size)  # of CSR: entries
        return 8 * held + 80 * len(self.cells)

    def gone(self, column: DictionaryColumn) -> NDArray[np.bool_] | None:
        """Return which rows hold a missing cell; None where none does."""
        return self.absent[column.codes] if column.nulls or self.absent[:-1].any() else None

    def refuses(self, column: DictionaryColumn) -> bool:
        """Return whether a row holds a bad cell."""
        return bool((column.nulls or self.bad[:-1].any()) and self.bad[column.codes].any())


def refused(work: Callable[[NDArray[Any]], Any], cells: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which cells a column refuses: ``work`` raises an error for them."""

    def refuses(some: NDArray[Any]) -> bool:
        try:
            work(some)
        except CellError:
            return True
        return False

    if not len(cells) or not refuses(cells):
        return np.zeros(len(cells), dtype=bool)
    return np.array([refuses(cells[i : i + 1]) for i in range(len(cells))])
