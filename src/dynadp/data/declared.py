"""What all columns have in common: a public declaration of what a raw cell becomes, and of how far
it can move its features (maths.md 1, 11 and 15).
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from dynadp._arrays import Array
from dynadp.errors import CellError

Block = tuple[NDArray[np.int64], Array]  # (column within the block, value), each rows x entries
Cells = tuple[NDArray[Any], NDArray[np.bool_]]  # cells, and which of them are missing
Weight = Annotated[float, Field(gt=0, le=1e6)]


class Declared(BaseModel):
    """A public declaration: frozen, with no field that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ColumnKind(Declared):
    """A declaration that turns raw cells of a row into features; ``name`` names these.

    A subclass says how many features it has, how far replacing what it reads moves them
    (``diameter2``, maths.md 4), how far they lie from a public point (``radius2`` from ``middle``,
    maths.md 15), and where their means can lie (``project``). Its ``block`` looks at each row by
    itself. No row of features is longer than the root of ``diameter2``.
    """

    name: str
    weight: Weight = 1.0

    @property
    def reads(self) -> Mapping[str, Any]:
        """The raw columns that it reads, each with what a missing cell means; one by default."""
        return {self.name: getattr(self, "missing", "refuse")}

    @property
    def numbers(self) -> frozenset[str]:
        """Those of them that hold numbers."""
        return frozenset()

    @property
    def drops(self) -> tuple[str, ...]:
        """Those of them of which a missing cell drops the row."""
        return tuple(name for name, missing in self.reads.items() if missing == "drop")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        raise NotImplementedError

    @property
    def most_entries(self) -> int:
        """How many of its features can differ from 0 in a row."""
        return len(self.features)

    @property
    def diameter2(self) -> float:
        """Squared distance by which replacing all that it reads can move its features."""
        raise NotImplementedError

    @property
    def middle(self) -> Array:
        """A public point amid the features."""
        raise NotImplementedError

    @property
    def radius2(self) -> float:
        """Squared distance of a row's features from their middle, at most."""
        raise NotImplementedError

    def project(self, f: Array) -> Array:
        """Project a vector onto a convex set that holds all possible means of features."""
        raise NotImplementedError

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Return the positions and values of these cells' features, for a kind that reads one
        column.
        """
        raise NotImplementedError

    def joined(self, read: Mapping[str, Cells]) -> Block:
        """Return the positions and values of the features of rows, from all that it reads."""
        return self.block(*read[self.name])


class OneHot(ColumnKind):
    """At most one of k features is the weight, all others are 0."""

    @property
    def full(self) -> bool:
        """Whether one of them always is."""
        raise NotImplementedError

    def positions(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return which feature each cell has; -1 for none."""
        raise NotImplementedError

    @property
    def most_entries(self) -> int:
        """One."""
        return 1

    @property
    def diameter2(self) -> float:
        """From one corner of the block to another, 2."""
        return 2.0 * self.weight**2

    @property
    def middle(self) -> Array:
        """1/k for each of k; 1/2 for a single one."""
        k = len(self.features)
        return np.full(k, self.weight / max(k, 2))

    @property
    def radius2(self) -> float:
        """1 - 1/k, which a corner of the block has; the all-zero one has 1/k. Of a single feature
        1/4.
        """
        k = len(self.features)
        return self.weight**2 * (1 - 1 / k if k > 1 else 0.25)

    def project(self, f: Array) -> Array:
        """Shares that sum to 1, or to less where no feature may be 1."""
        return np.asarray(self.weight * onto_simplex(f / self.weight, full=self.full))

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Return the positions and values of these cells' features."""
        return self.at(self.positions(cells, absent))

    def at(self, places: NDArray[np.int64]) -> Block:
        """Return the features of rows at these positions."""
        listed = places >= 0
        return np.where(listed, places, 0)[:, None], self.weight * listed[:, None].astype(float)


def onto_simplex(v: Array, full: bool) -> Array:
    """argmin ||x - v|| over x >= 0 with sum x = 1 (``full``) or sum x <= 1 (Held, Wolfe and Crowder
    1974).
    """
    if not full and np.maximum(v, 0.0).sum() <= 1:
        return np.asarray(np.maximum(v, 0.0))
    u = np.sort(v)[::-1]
    excess = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    return np.asarray(np.maximum(v - excess[np.flatnonzero(u > excess)[-1]], 0.0))


def floats(name: str, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Array:
    """Return the cells as fresh float64, absent ones as 0; refuse a cell that is no finite number,
    by its position alone.
    """
    if cells.dtype.kind in "UO":
        numbers = [
            0.0 if gone else _number(cell)
            for cell, gone in zip(cells.tolist(), absent, strict=True)
        ]
        wrong = next((row for row, number in enumerate(numbers) if number is None), None)
        if wrong is not None:
            raise CellError(f"column {name!r}", wrong, "the value is not a number")
        v = np.array(numbers, dtype=float)
    elif cells.dtype.kind in "iufb":
        v = np.where(absent, 0, cells).astype(float)
    else:
        raise CellError(
            f"column {name!r}", 0, "the value is not a number (nor is any other in the column)"
        )
    finite = np.isfinite(v)
    if not finite.all():
        raise CellError(
            f"column {name!r}", int(np.argmin(finite)), "the value is infinite or not a number"
        )
    return v


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return np.inf
