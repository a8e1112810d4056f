"""Crosses of two columns: one feature for each pair of their categories, bins or buckets."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dynadp.data.categories import Categorical, Hashed
from dynadp.data.declared import Block, Cells, OneHot
from dynadp.data.numbers import Bins

MOST = 1 << 16  # features of a cross
Crossed = Annotated[Categorical | Bins | Hashed, Field(discriminator="kind")]


class Cross(OneHot):
    """One-hot over pairs: feature i k_2 + j of a row in category i of the first part and j of the
    second, k_2 the number of the second's.

    A row that is in none of a part's categories is in none of the cross.

    Attributes
    ----------
    name
        Of its own, for its features.
    parts
        Two declarations of different columns: categorical, bins or hashed. In a schema the name of
        a column that it declares stands for that declaration. A number is crossed in ``bins``.
    weight
        How much its features count beside those of other columns.
    """

    kind: Literal["cross"] = "cross"
    parts: tuple[Crossed, Crossed]

    @model_validator(mode="after")
    def _consistent(self) -> "Cross":
        first, second = self.parts
        if first.name == second.name:
            raise ValueError(
                f"cross {self.name!r} has column {first.name!r} twice; expected two columns"
            )
        if self.name in (first.name, second.name):
            raise ValueError(
                f"cross {self.name!r} has the name of a column that it reads; give it one of its "
                "own"
            )
        if len(first.features) * len(second.features) > MOST:
            raise ValueError(
                f"cross {self.name!r} would have {len(first.features)} x {len(second.features)} "
                f"features; expected at most {MOST}: hash a part into fewer buckets"
            )
        return self

    @property
    def reads(self) -> Mapping[str, Any]:
        """Both columns."""
        return {part.name: part.missing for part in self.parts}

    @property
    def numbers(self) -> frozenset[str]:
        """Those in bins."""
        return frozenset().union(*(part.numbers for part in self.parts))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the pairs."""
        first, second = self.parts
        return tuple(f"{a} & {b}" for a in first.features for b in second.features)

    @property
    def full(self) -> bool:
        """Whether every row is in a category of both."""
        return all(part.full for part in self.parts)

    def joined(self, read: Mapping[str, Cells]) -> Block:
        """Return the positions and values of the features of rows."""
        return self.at(self.pairs(*(part.positions(*read[part.name]) for part in self.parts)))

    def pairs(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the feature of each row from the positions in both parts; -1 for none."""
        width = len(self.parts[1].features)
        return np.where((first < 0) | (second < 0), -1, first * width + second)
