"""Columns of numbers: scaled by public bounds, as hats on public knots, or in public bins."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from dynadp._arrays import Array
from dynadp.data.declared import Block, ColumnKind, OneHot, Weight, floats, onto_simplex
from dynadp.data.values import normalise


class Numeric(ColumnKind):
    """u = (t(clip(v, low, high)) - t(low)) / (t(high) - t(low)), mapped to [-1, 1] or [0, 1], times
    the weight.

    Attributes
    ----------
    name
        Of the column in the file.
    low, high
        Public bounds; values outside are clipped to them.
    transform
        t: ``none``; ``log1p`` for ln(1 + v - low), for heavy tails; or ``signed_log`` for sign(v)
        ln(1 + abs(v)), for tails on both sides of 0, where low < 0 < high.
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
    transform: Literal["none", "log1p", "signed_log"] = "none"
    encode: tuple[Literal["linear", "square", "hats"], ...] = ("linear",)
    knots: tuple[float, ...] = ()
    signed: bool = True
    weight: Weight = 1.0
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
        if self.transform == "signed_log" and not self.low < 0 < self.high:
            raise ValueError(
                f"numeric column {self.name!r}: 'signed_log' is for numbers on both sides of 0, "
                f"and the bounds are {self.low} and {self.high}; expected low < 0 < high, or "
                f"another transform"
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
        if (np.diff(self._transformed(np.array(self.knots))) <= 0).any():
            raise ValueError(
                f"numeric column {self.name!r}: two knots are one number once transformed, "
                f"so far from them lie the bounds; expected knots that stay apart"
            )
        if not self.encode or len(set(self.encode)) != len(self.encode):
            raise ValueError(
                f"numeric column {self.name!r}: encode must name at least one feature, each once"
            )
        return self

    @property
    def numbers(self) -> frozenset[str]:
        """Its column."""
        return frozenset([self.name])

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
        t = self._transformed(self._filled(cells, absent))
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
                indices.append(np.full(len(t), position))
                values.append(u if code == "linear" else u * u)
                position += 1
        return np.stack(indices, axis=1), self.weight * np.stack(values, axis=1)

    def unit(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Array:
        """Return u of each cell."""
        return self._unit(self._transformed(self._filled(cells, absent)))

    def _filled(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Array:
        v = floats(self.name, cells, absent)
        if absent.any():
            v[absent] = float(self.missing)
        return v

    def _transformed(self, v: Array, out: Array | None = None) -> Array:
        """t(clip(v, low, high))."""
        t: Array = np.clip(v, self.low, self.high, out=out)
        if self.transform == "log1p":
            t -= self.low
            np.log1p(t, out=t)
        elif self.transform == "signed_log":
            np.copysign(np.log1p(np.abs(t)), t, out=t)
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


class Bins(OneHot):
    """One-hot over the intervals between public edges: (-inf, e_1), [e_1, e_2), ..., [e_k, inf).

    Attributes
    ----------
    name
        Of the column in the file.
    edges
        Increasing numbers, at least one.
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row), ``other`` (no bin), or a number to put there.
    """

    kind: Literal["bins"] = "bins"
    edges: tuple[float, ...]
    missing: Literal["refuse", "drop", "other"] | float = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _edges_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("edges"):
            raise ValueError(
                f"column of bins {given.get('name')!r} has no public edges: declare at least one; "
                "quantiles read off the rows would leak them"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Bins":
        if any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError(f"column of bins {self.name!r}: edges must increase")
        return self

    @property
    def numbers(self) -> frozenset[str]:
        """Its column."""
        return frozenset([self.name])

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        ends = [normalise(edge) for edge in self.edges]
        inner = [f"{self.name}:{a}..{b}" for a, b in pairwise(ends)]
        return (f"{self.name}<{ends[0]}", *inner, f"{self.name}>={ends[-1]}")

    @property
    def full(self) -> bool:
        """Unless a missing cell counts as none."""
        return self.missing != "other"

    def positions(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the bin of each cell; -1 for none."""
        v = floats(self.name, cells, absent)
        if isinstance(self.missing, float):
            v[absent] = self.missing
        places = np.searchsorted(np.array(self.edges), v, side="right").astype(np.int64)
        return np.where(absent, -1, places) if self.missing == "other" else places
