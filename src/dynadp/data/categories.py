"""Columns of categories: one-hot over a public vocabulary, or over the buckets of a public hash."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dynadp.data.declared import OneHot, Weight
from dynadp.data.values import Value, ambiguous, match, normalise, spelled, whole_number
from dynadp.errors import CellError


class Categorical(OneHot):
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
    weight: Weight = 1.0
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
    def full(self) -> bool:
        """Unless an unlisted value counts as none."""
        return self.other != "zero"

    def _stand_in(self, missing: Mapping[Any, Value]) -> int:
        """Return the position of the value for missing cells, -1 where it is not listed."""
        word, words = normalise(missing.get("value")), [normalise(v) for v in self.values]
        return words.index(word) if word in words else -1

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        values = (*self.values, "(other)") if self.other == "column" else self.values
        return tuple(f"{self.name}={value}" for value in values)

    def positions(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the feature of each cell; -1 for none."""
        places = np.where(absent, -1, match(cells, self.values))
        if isinstance(self.missing, dict) and absent.any():
            places[absent] = self._stand_in(self.missing)
        listed = places >= 0
        if self.other == "refuse" and not listed.all():
            raise CellError(
                f"column {self.name!r}",
                int(np.argmin(listed)),
                "the value is not in the declared vocabulary; list it, or declare other = 'zero' "
                "or 'column'",
            )
        return np.where(listed, places, len(self.values)) if self.other == "column" else places


class Hashed(OneHot):
    """One-hot over B buckets of a public hash, for categories that are too many to list: the bucket
    of a value is the first 8 bytes of SHA-256(salt, a zero byte, value), both UTF-8, read as a
    number with the largest byte first, modulo B.

    The value is spelled as :func:`~dynadp.data.values.normalise` does, and a whole number without a
    point, so that 1, 1.0, "1" and "1.0" have one bucket. Values that share a bucket share a
    coefficient. Nothing is learnt from rows: every value has its bucket before anybody has it.

    Attributes
    ----------
    name
        Of the column in the file.
    buckets
        B, public. Noise grows with it, collisions shrink.
    salt
        Public; another salt is another choice of which values collide.
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row) or ``other`` (no bucket).
    """

    kind: Literal["hashed"] = "hashed"
    buckets: Annotated[int, Field(ge=2, le=1 << 16)]
    salt: str = ""
    missing: Literal["refuse", "drop", "other"] = "refuse"

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        return tuple(f"{self.name}#{bucket}" for bucket in range(self.buckets))

    @property
    def full(self) -> bool:
        """Unless a missing cell counts as none."""
        return self.missing != "other"

    def positions(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the bucket of each cell; -1 for none."""
        words, inverse = np.unique(spelled(cells), return_inverse=True)
        buckets = np.array([self.bucket(word) for word in words.tolist()], dtype=np.int64)
        return np.where(absent, -1, buckets[inverse] if len(cells) else 0)

    def bucket(self, value: Value) -> int:
        """Return the bucket of one value."""
        content = f"{self.salt}\0{whole_number(normalise(value))}"
        hashed = sha256(content.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(hashed[:8], "big") % self.buckets
