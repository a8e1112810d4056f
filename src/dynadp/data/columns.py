"""Raw columns and the public declarations that turn their cells into features, one row at a time
(maths.md 1 and 11).
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynadp._arrays import Array
from dynadp.data.values import Value, ambiguous, match, normalise
from dynadp.errors import CellError

Block = tuple[NDArray[np.int64], Array]  # (column within the block, value), each rows x entries


class Declared(BaseModel):
    """A public declaration: frozen, with no field that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Numeric(Declared):
    """u = (t(clip(v, low, high)) - t(low)) / (t(high) - t(low)), mapped to [-1, 1] or [0, 1], times
    the weight.

    Attributes
    ----------
    name
        Of the column in the file.
    low, high
        Public bounds; values outside are clipped to them.
    transform
        t: ``none``, or ``log1p`` for ln(1 + v - low), for heavy tails.
    encode
        Which features to make: ``linear`` u, ``square`` u^2, ``hats`` piecewise linear bumps on
        ``knots``.
    knots
        Increasing raw values; hat k is 1 at knot k and 0 at its neighbours, linear in t between
        them, and they sum to 1.
    signed
        u in [-1, 1] (default) or [0, 1].
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row, before anything is counted), or a value to put there. With
        ``drop`` neighbouring data differ in a row that *stays*: B_p counts what is left and is
        public, so declare it to :meth:`~dynadp.data.schema.Schema.shard`.
    """

    kind: Literal["numeric"] = "numeric"
    name: str
    low: float
    high: float
    transform: Literal["none", "log1p"] = "none"
    encode: tuple[Literal["linear", "square", "hats"], ...] = ("linear",)
    knots: tuple[float, ...] = ()
    signed: bool = True
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    missing: Literal["refuse", "drop"] | float = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _bounds_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (given.get("low") is None or given.get("high") is None):
            raise ValueError(
                f"numeric column {given.get('name')!r} has no public bounds: declare low and high "
                "from what is known about the quantity; bounds read off the rows would leak them"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Numeric":
        if not self.low < self.high:
            raise ValueError(
                f"numeric column {self.name!r}: low is {self.low} and high is {self.high}; low "
                f"must be below"
            )
        if max(abs(self.low), abs(self.high)) > 1e150:
            raise ValueError(
                f"numeric column {self.name!r}: bounds beyond 1e150 overflow; use another unit"
            )
        if ("hats" in self.encode) != bool(self.knots) or len(self.knots) == 1:
            raise ValueError(
                f"numeric column {self.name!r}: 'hats' needs at least two public knots, and only "
                f"'hats' does"
            )
        inside = all(self.low <= knot <= self.high for knot in self.knots)
        if not inside or any(a >= b for a, b in pairwise(self.knots)):
            raise ValueError(
                f"numeric column {self.name!r}: knots must increase and lie in [{self.low}, "
                f"{self.high}]"
            )
        if not self.encode or len(set(self.encode)) != len(self.encode):
            raise ValueError(
                f"numeric column {self.name!r}: encode must name at least one feature, each once"
            )
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        names: list[str] = []
        for code in self.encode:
            if code == "hats":
                names += [f"{self.name}~{normalise(knot)}" for knot in self.knots]
            else:
                names.append(self.name if code == "linear" else f"{self.name}^2")
        return tuple(names)

    @property
    def most_entries(self) -> int:
        """How many of its features can differ from 0 in a row."""
        return sum(2 if code == "hats" else 1 for code in self.encode)

    @property
    def diameter2(self) -> float:
        """Squared distance by which replacing a cell can move its features: 4 or 1 for u, 1 for
        u^2, 2 for the hats.
        """
        moves = {"linear": 4.0 if self.signed else 1.0, "square": 1.0, "hats": 2.0}
        return self.weight**2 * sum(moves[code] for code in self.encode)

    @property
    def middle(self) -> Array:
        """A public point amid the features: 0 or 1/2 for u, 1/2 for u^2, equal shares for hats."""
        share = 1 / max(len(self.knots), 1)
        each = {"linear": [0.0 if self.signed else 0.5], "square": [0.5]}
        parts = [each.get(code, [share] * len(self.knots)) for code in self.encode]
        return self.weight * np.concatenate(parts)

    @property
    def radius2(self) -> float:
        """Squared distance of a cell's features from their middle, at most: 1 or 1/4 for u, 1/4 for
        u^2, 1 - 1/k for k hats.
        """
        hats = 1 - 1 / max(len(self.knots), 2)
        far = {"linear": 1.0 if self.signed else 0.25, "square": 0.25, "hats": hats}
        return self.weight**2 * sum(far[code] for code in self.encode)

    def project(self, f: Array) -> Array:
        """Project a vector onto the set of possible means of features: numbers in their bounds,
        hats on the simplex.
        """
        f = f / self.weight
        out, position = [], 0
        for code in self.encode:
            if code == "hats":
                out.append(onto_simplex(f[position : position + len(self.knots)], full=True))
                position += len(self.knots)
            else:
                low = -1.0 if self.signed and code == "linear" else 0.0
                out.append(np.clip(f[position : position + 1], low, 1.0))
                position += 1
        return np.asarray(self.weight * np.concatenate(out))

    def fill(self, v: Array, out: Array) -> None:
        """Write the features of finite numbers into ``out``, features x rows: the values of
        :meth:`block` without its copies. Not for hats.
        """
        u = self._unit(self._transformed(v, out[0]), out[0])
        for i in reversed(range(len(out))):  # u lies in row 0, which therefore comes last
            if self.encode[i] == "square":
                np.multiply(u, u, out=out[i])
            elif i:
                out[i] = u
        if self.weight != 1:
            out *= self.weight

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Return the positions and values of these cells' features."""
        v = floats(self.name, cells, absent)
        if absent.any():
            v[absent] = float(self.missing)
        t = self._transformed(v)
        u = self._unit(t)
        indices: list[NDArray[np.int64]] = []
        values: list[Array] = []
        position = 0
        for code in self.encode:
            if code == "hats":
                knots = self._transformed(np.array(self.knots))
                left = np.clip(np.searchsorted(knots, t, side="right") - 1, 0, len(knots) - 2)
                share = np.clip((t - knots[left]) / (knots[left + 1] - knots[left]), 0.0, 1.0)
                indices += [position + left, position + left + 1]
                values += [1 - share, share]
                position += len(knots)
            else:
                indices.append(np.full(len(v), position))
                values.append(u if code == "linear" else u * u)
                position += 1
        return np.stack(indices, axis=1), self.weight * np.stack(values, axis=1)

    def _transformed(self, v: Array, out: Array | None = None) -> Array:
        """t(clip(v, low, high))."""
        t: Array = np.clip(v, self.low, self.high, out=out)
        if self.transform == "log1p":
            t -= self.low
            np.log1p(t, out=t)
        return t

    def _unit(self, t: Array, out: Array | None = None) -> Array:
        """(t - t(low)) / (t(high) - t(low)), in [0, 1] or, signed, in [-1, 1]."""
        low, high = self._transformed(np.array([self.low, self.high]))
        u: Array = np.subtract(t, low, out=out)
        u /= high - low
        if self.signed:
            u *= 2
            u -= 1
        return u


class Categorical(Declared):
    """One-hot over a public vocabulary; an unlisted value is the all-zero block, a column of its
    own, or refused.

    Attributes
    ----------
    name
        Of the column in the file.
    values
        The public vocabulary, compared with :func:`~dynadp.data.values.match`: 1, 1.0, "1" and
        "1.0" are equal.
    other
        What an unlisted value becomes: ``zero`` (all-zero block), ``column`` (one more column) or
        ``refuse``.
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row), ``other``, or a listed value, written as ``{"value": ...}``.
    """

    kind: Literal["categorical"] = "categorical"
    name: str
    values: tuple[Value, ...]
    other: Literal["zero", "column", "refuse"] = "zero"
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    missing: Literal["refuse", "drop", "other"] | dict[Literal["value"], Value] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _vocabulary_is_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("values"):
            raise ValueError(
                f"categorical column {given.get('name')!r} has no public vocabulary: declare "
                "values; a list read off the rows would show which categories occur"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Categorical":
        if ambiguous(self.values):
            raise ValueError(f"categorical column {self.name!r} lists a value twice")
        if self.missing == "other" and self.other == "refuse":
            raise ValueError(
                f"categorical column {self.name!r}: missing is 'other', but other is 'refuse'"
            )
        if isinstance(self.missing, dict) and self._stand_in(self.missing) < 0:
            raise ValueError(
                f"categorical column {self.name!r}: the value for missing cells is not in its "
                f"vocabulary"
            )
        return self

    @property
    def most_entries(self) -> int:
        """How many of its features can differ from 0 in a row."""
        return 1

    @property
    def diameter2(self) -> float:
        """Squared distance by which replacing a cell can move its features: from one corner of the
        block to another, 2.
        """
        return 2.0 * self.weight**2

    @property
    def middle(self) -> Array:
        """A public point amid the features: 1/k for each of k; 1/2 for a single one."""
        k = len(self.features)
        return np.full(k, self.weight / max(k, 2))

    @property
    def radius2(self) -> float:
        """Squared distance of a cell's features from their middle, at most: 1 - 1/k, which a corner
        of the block has; the all-zero one has 1/k. Of a single feature 1/4.
        """
        k = len(self.features)
        return self.weight**2 * (1 - 1 / k if k > 1 else 0.25)

    def project(self, f: Array) -> Array:
        """Project a vector onto the set of possible means of features: shares that sum to 1, or to
        less with ``zero``.
        """
        return np.asarray(self.weight * onto_simplex(f / self.weight, full=self.other != "zero"))

    def _stand_in(self, missing: Mapping[Any, Value]) -> int:
        """Return the position of the value for missing cells, -1 where it is not listed."""
        word, words = normalise(missing.get("value")), [normalise(v) for v in self.values]
        return words.index(word) if word in words else -1

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        values = (*self.values, "(other)") if self.other == "column" else self.values
        return tuple(f"{self.name}={value}" for value in values)

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Return the positions and values of these cells' features."""
        index = match(cells, self.values)
        listed = (index >= 0) & ~absent
        index = np.where(listed, index, 0)
        if isinstance(self.missing, dict) and absent.any():
            index[absent] = self._stand_in(self.missing)
            listed = listed | absent
        if self.other == "refuse" and not listed.all():
            raise CellError(
                f"column {self.name!r}",
                int(np.argmin(listed)),
                "the value is not in the declared vocabulary; list it, or declare other = 'zero' "
                "or 'column'",
            )
        if self.other == "column":
            index = np.where(listed, index, len(self.values))
            listed = np.ones_like(listed)
        return index[:, None], self.weight * listed[:, None].astype(float)


Column = Annotated[Numeric | Categorical, Field(discriminator="kind")]


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
