"""What a model answers: one of two values, one of several classes, or a number between public
bounds.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Tag, model_validator

from dynadp._arrays import Array
from dynadp.data.columns import Declared, floats
from dynadp.data.values import Value, ambiguous, places, signs

Kind = Literal["signs", "classes", "numbers"]  # of a shard's answers y


class Label(Declared):
    """The label column and its two values, compared with :func:`~dynadp.data.values.match`: 1, 1.0
    and "1" are equal.

    Attributes
    ----------
    name
        Of the column.
    negative, positive
        Its two values. Scores above 0 speak for the positive one.
    """

    name: str
    negative: Value
    positive: Value
    kind: ClassVar[Kind] = "signs"

    @model_validator(mode="before")
    @classmethod
    def _values_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (
            given.get("negative") is None or given.get("positive") is None
        ):
            raise ValueError(
                f"label column {given.get('name')!r}: declare both values (negative and positive), "
                "or three or more (values); reading them off the rows would show whether all occur"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Label":
        if ambiguous((self.negative, self.positive)):
            raise ValueError(
                f"label column {self.name!r}: a cell could be both {self.negative!r} and "
                f"{self.positive!r}"
            )
        return self

    @property
    def classes(self) -> tuple[Value, ...]:
        """The declared values, the negative one first."""
        return self.negative, self.positive

    @property
    def codes(self) -> Sequence[Value] | None:
        """What stands for each of them in y: -1 and +1."""
        return -1, 1

    def read(self, cells: NDArray[Any]) -> Array:
        """Return -1 or +1 for each cell; refuse others."""
        return signs(cells, self.negative, self.positive, self.name)


class Classes(Declared):
    """The label column and its three or more values, in order; compared as those of
    :class:`~dynadp.data.labels.Label`.

    Attributes
    ----------
    name
        Of the column.
    values
        All of them, in the order in which they are shown.
    """

    name: str
    values: tuple[Value, ...]
    kind: ClassVar[Kind] = "classes"

    @model_validator(mode="after")
    def _consistent(self) -> "Classes":
        if len(self.values) < 3:
            raise ValueError(
                f"label column {self.name!r}: values lists {len(self.values)}; expected three or "
                "more, and for two of them negative and positive"
            )
        if ambiguous(self.values):
            raise ValueError(f"label column {self.name!r}: a cell could be two of its values")
        return self

    @property
    def classes(self) -> tuple[Value, ...]:
        """The declared values."""
        return self.values

    @property
    def codes(self) -> Sequence[Value] | None:
        """What stands for each of them in y: its number, from 0."""
        return range(len(self.values))

    def read(self, cells: NDArray[Any]) -> Array:
        """Return the number of each cell's class, from 0; refuse others."""
        return places(cells, self.values, self.name)


class Target(Declared):
    """t = (2c - low - high)/(high - low) in [-1, 1], c the cell clipped to public bounds.

    Attributes
    ----------
    name
        Of the column.
    low, high
        Public bounds; cells outside are clipped to them.
    """

    name: str
    low: float
    high: float
    kind: ClassVar[Kind] = "numbers"

    @model_validator(mode="before")
    @classmethod
    def _bounds_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (given.get("low") is None or given.get("high") is None):
            raise ValueError(
                f"target column {given.get('name')!r} has no public bounds: declare low and high "
                "from what is known about the quantity; bounds read off the rows would leak them"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Target":
        if not self.low < self.high:
            raise ValueError(
                f"target column {self.name!r}: low is {self.low} and high is {self.high}; low must "
                "be below"
            )
        if max(abs(self.low), abs(self.high)) > 1e150:
            raise ValueError(
                f"target column {self.name!r}: bounds beyond 1e150 overflow; use another unit"
            )
        return self

    @property
    def classes(self) -> tuple[Value, ...]:
        """None: a number is answered."""
        return ()

    @property
    def codes(self) -> Sequence[Value] | None:
        """None: y holds t."""
        return None

    @property
    def middle(self) -> float:
        """(low + high)/2."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """(high - low)/2."""
        return self.high / 2 - self.low / 2

    def numbers(self, cells: NDArray[Any]) -> Array:
        """Return each cell as it is; refuse one that is missing or no finite number."""
        return floats(self.name, cells, np.zeros(len(cells), bool))

    def within(self, t: Array) -> Array:
        """Return the number that t stands for: middle + half t, within bounds."""
        return np.asarray(np.clip(self.middle + self.half * t, self.low, self.high))

    def read(self, cells: NDArray[Any]) -> Array:
        """Return t of each cell; refuse one that is missing or no finite number."""
        c = np.clip(self.numbers(cells), self.low, self.high)
        t = (2 * c - self.low - self.high) / (self.high - self.low)
        return np.asarray(np.clip(t, -1.0, 1.0))  # a rounded bound may lie beyond


def _which(given: Any) -> str:
    """Return the tag of a declaration, or of a table that may become one."""
    if isinstance(given, Mapping):
        numbers = "low" in given or "high" in given
        return "classes" if "values" in given else "target" if numbers else "two"
    kinds: dict[Any, str] = {Classes: "classes", Target: "target"}
    return kinds.get(type(given), "two")


Answer = Annotated[
    Annotated[Label, Tag("two")]
    | Annotated[Classes, Tag("classes")]
    | Annotated[Target, Tag("target")],
    Discriminator(_which),
]
