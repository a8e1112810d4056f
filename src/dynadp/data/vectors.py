"""Several columns of numbers as one block of features: ready numbers of bounded length, and public
random features of declared numbers.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from dynadp._arrays import Array
from dynadp.data.declared import Block, Cells, ColumnKind, floats
from dynadp.data.numbers import Numeric

_FARTHEST = 1e100  # a number beyond it counts as this one, so that no length overflows
_LEAST = 1e-90  # of a norm: numbers whose squares vanish are far shorter
_STEP = 2.0**20  # frequencies are whole multiples of 1/_STEP
_FINE = 2.0**40  # and so are cosines of 1/_FINE, whose last bits differ from machine to machine


class Vector(ColumnKind):
    """v = x / max(norm, ||x||), times the weight: x the numbers of several columns, which come
    ready, such as an embedding.

    Attributes
    ----------
    name
        Of its own, for its features.
    columns
        The columns of x.
    norm
        Public bound on ||x||, between 1e-90 and 1e90; a longer x is shortened to it.
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row), or a number to put there.
    """

    kind: Literal["vector"] = "vector"
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    norm: Annotated[float, Field(gt=0, le=1e90)]
    missing: Literal["refuse", "drop"] | float = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _norm_is_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("norm") is None:
            raise ValueError(
                f"vector {given.get('name')!r} has no public norm: declare a bound on the "
                "length of its numbers that is known without looking at the rows; the largest "
                "length read off them would leak it"
            )
        return given

    @model_validator(mode="after")
    def _named_apart(self) -> "Vector":
        if self.name in self.columns:
            raise ValueError(
                f"vector {self.name!r} has the name of a column that it reads; give it one of its "
                "own"
            )
        return self

    @field_validator("norm")
    @classmethod
    def _squares_stay(cls, norm: float) -> float:
        if norm < _LEAST:
            raise ValueError(f"norm is {norm:g}; expected {_LEAST:g} or more: use another unit")
        return norm

    @field_validator("columns")
    @classmethod
    def _columns_differ(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError("a vector reads each of its columns once; one is listed twice")
        return columns

    @property
    def reads(self) -> Mapping[str, Any]:
        """Its columns."""
        return dict.fromkeys(self.columns, self.missing)

    @property
    def numbers(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its columns."""
        return self.columns

    @property
    def diameter2(self) -> float:
        """4: from one end of the unit ball to the other."""
        return 4.0 * self.weight**2

    @property
    def middle(self) -> Array:
        """0."""
        return np.zeros(len(self.columns))

    @property
    def radius2(self) -> float:
        """1."""
        return self.weight**2

    def project(self, f: Array) -> Array:
        """Onto the ball."""
        return np.asarray(f / max(1.0, float(np.linalg.norm(f)) / self.weight))

    def joined(self, read: Mapping[str, Cells]) -> Block:
        """Return the positions and values of the features of rows."""
        x = np.stack([self._numbers(name, *read[name]) for name in self.columns])
        np.clip(x, -_FARTHEST, _FARTHEST, out=x)
        squares = np.zeros(x.shape[1])
        for line in x:  # column by column: no row's sum depends on where it stands
            squares += line * line
        x /= np.maximum(np.sqrt(squares), self.norm)
        return _all(self.weight * x)

    def _numbers(self, name: str, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Array:
        v = floats(name, cells, absent)
        if absent.any():
            v[absent] = float(self.missing)
        return v


class Fourier(ColumnKind):
    """(cos w_k.u, sin w_k.u)/sqrt(m) for k = 1..m, times the weight: random Fourier features
    (Rahimi and Recht 2007) of the scaled numbers u of several columns, for mild non-linearity.

    Their inner products approximate exp(-||u - u'||^2/(2 width^2)). The w_k are public: number i of
    them is that quantile of the normal distribution which the first 53 bits of SHA-256("dynadp
    fourier", seed, i), with blanks between, name, divided by the width and rounded to multiples of
    2^-20. So they are the same on every machine, and never come from rows.

    Attributes
    ----------
    name
        Of its own, for its features.
    parts
        Declarations of numbers, of which u alone counts: their bounds, transform, signed and
        missing. In a schema the name of a numeric column that it declares stands for its
        declaration.
    pairs
        m; there are 2 m features.
    width
        In units of u. The larger, the closer to a linear function.
    seed
        Public text; another one is another choice of the w_k.
    weight
        How much its features count beside those of other columns.
    """

    kind: Literal["fourier"] = "fourier"
    parts: Annotated[tuple[Numeric, ...], Field(min_length=1)]
    pairs: Annotated[int, Field(ge=1, le=4096)]
    width: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    seed: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> "Fourier":
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError(f"fourier {self.name!r} reads each column once; one is there twice")
        if self.name in names:
            raise ValueError(
                f"fourier {self.name!r} has the name of a column that it reads; give it one of its "
                "own"
            )
        return self

    @property
    def reads(self) -> Mapping[str, Any]:
        """The columns of its parts."""
        return {part.name: part.missing for part in self.parts}

    @property
    def numbers(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.reads)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the cosines and sines."""
        each = range(1, self.pairs + 1)
        return tuple(f"{self.name}~{wave}{k}" for k in each for wave in ("cos", "sin"))

    @property
    def diameter2(self) -> float:
        """4: each pair moves by 2/sqrt(m) at most, from one point of its circle to the other."""
        return 4.0 * self.weight**2

    @property
    def middle(self) -> Array:
        """0, amid the circles."""
        return np.zeros(2 * self.pairs)

    @property
    def radius2(self) -> float:
        """1."""
        return self.weight**2

    def project(self, f: Array) -> Array:
        """Each pair into its circle."""
        points = f.reshape(-1, 2)
        lengths = np.sqrt(np.sum(points * points, axis=1, keepdims=True))
        return np.asarray(points / np.maximum(1.0, lengths * self.pairs**0.5 / self.weight)).ravel()

    @property
    def frequencies(self) -> Array:
        """w: pairs x parts."""
        count = self.pairs * len(self.parts)
        return _frequencies(self.seed, count, self.width).reshape(self.pairs, len(self.parts))

    def joined(self, read: Mapping[str, Cells]) -> Block:
        """Return the positions and values of the features of rows."""
        u = [part.unit(*read[part.name]) for part in self.parts]
        lines = np.empty((2 * self.pairs, len(u[0])))
        for k, w in enumerate(self.frequencies):
            angle = np.zeros(len(u[0]))
            for each, line in zip(w.tolist(), u, strict=True):
                angle += each * line
            for i, wave in enumerate((np.cos, np.sin)):
                lines[2 * k + i] = np.rint(wave(angle) * _FINE) / _FINE
        return _all(self.weight / self.pairs**0.5 * lines)


@lru_cache(maxsize=100)
def _frequencies(seed: str, count: int, width: float) -> Array:
    normal = NormalDist()

    def number(i: int) -> float:
        hashed = sha256(f"dynadp fourier {seed} {i}".encode("utf-8", "surrogatepass")).digest()
        share = ((int.from_bytes(hashed[:8], "big") >> 11) + 0.5) / 2**53
        return round(normal.inv_cdf(share) / width * _STEP) / _STEP

    found = np.array([number(i) for i in range(count)])
    found.setflags(write=False)
    return found


def _all(lines: Array) -> Block:
    """Return features x rows as a block in which every feature has its place."""
    return np.tile(np.arange(len(lines)), (lines.shape[1], 1)), np.ascontiguousarray(lines.T)
