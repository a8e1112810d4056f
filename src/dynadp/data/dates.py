"""Columns of dates: where a day lies between public ends, and its weekday and month."""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from dynadp._arrays import Array
from dynadp.data.declared import Block, ColumnKind, onto_simplex
from dynadp.data.values import normalise
from dynadp.errors import CellError

_PARTS = {"%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d{1,2})", "%d": r"(?P<d>\d{1,2})"}
_WIDTHS = {"linear": 1, "weekday": 7, "month": 12}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = re.compile(r"([T ].*)?", re.ASCII)


class Date(ColumnKind):
    """u = (day - first)/(last - first), days clipped to [first, last], mapped to [-1, 1] or [0, 1],
    times the weight; and one-hot parts that come again every week or year.

    Attributes
    ----------
    name
        Of the column in the file.
    first, last
        Public first and last day; days outside are clipped to them in u.
    encode
        Which features to make: ``linear`` u, ``weekday`` one of 7, ``month`` one of 12.
    format
        How texts spell a day: ``%Y``, ``%m`` and ``%d``, each once, with marks between them. What
        follows after a ``T`` or a blank is a time of day, and is left out.
    signed
        u in [-1, 1] (default) or [0, 1].
    weight
        How much its features count beside those of other columns.
    missing
        ``refuse``, ``drop`` (the row), or a day to put there.
    """

    kind: Literal["date"] = "date"
    first: date
    last: date
    encode: tuple[Literal["linear", "weekday", "month"], ...] = ("linear",)
    format: str = "%Y-%m-%d"
    signed: bool = True
    missing: Literal["refuse", "drop"] | date = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _ends_are_declared(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (given.get("first") is None or given.get("last") is None):
            raise ValueError(
                f"date column {given.get('name')!r} has no public ends: declare its first and last "
                "day from what is known about the records; ends read off the rows would leak them"
            )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Date":
        if not self.first < self.last:
            raise ValueError(
                f"date column {self.name!r}: first is {self.first} and last is {self.last}; first "
                "must be before last"
            )
        if not self.encode or len(set(self.encode)) != len(self.encode):
            raise ValueError(
                f"date column {self.name!r}: encode must name at least one feature, each once"
            )
        if sorted(re.findall("%.", self.format)) != sorted(_PARTS):
            raise ValueError(
                f"date column {self.name!r}: format is {self.format!r}; expected %Y, %m and %d, "
                "each once, such as '%Y-%m-%d' or '%d.%m.%Y'"
            )
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that this one becomes."""
        names = {
            "linear": [self.name],
            "weekday": [f"{self.name}:{day}" for day in _WEEKDAYS],
            "month": [f"{self.name}:{month:02}" for month in range(1, 13)],
        }
        return tuple(name for code in self.encode for name in names[code])

    @property
    def most_entries(self) -> int:
        """How many of its features can differ from 0 in a row."""
        return len(self.encode)

    @property
    def diameter2(self) -> float:
        """4 or 1 for u, 2 for the weekday and for the month."""
        moves = {"linear": 4.0 if self.signed else 1.0, "weekday": 2.0, "month": 2.0}
        return self.weight**2 * sum(moves[code] for code in self.encode)

    @property
    def middle(self) -> Array:
        """0 or 1/2 for u, equal shares for weekdays and months."""
        u = 0.0 if self.signed else 0.5
        parts = [
            np.full(_WIDTHS[code], u if code == "linear" else 1 / _WIDTHS[code])
            for code in self.encode
        ]
        return np.asarray(self.weight * np.concatenate(parts))

    @property
    def radius2(self) -> float:
        """1 or 1/4 for u, 6/7 for the weekday, 11/12 for the month."""
        far = {"linear": 1.0 if self.signed else 0.25, "weekday": 1 - 1 / 7, "month": 1 - 1 / 12}
        return self.weight**2 * sum(far[code] for code in self.encode)

    def project(self, f: Array) -> Array:
        """u into its range, shares of weekdays and of months onto their simplex."""
        ends = np.cumsum([_WIDTHS[code] for code in self.encode])[:-1]
        out = [
            np.clip(part, -1.0 if self.signed else 0.0, 1.0)
            if code == "linear"
            else onto_simplex(part, full=True)
            for code, part in zip(self.encode, np.split(f / self.weight, ends), strict=True)
        ]
        return np.asarray(self.weight * np.concatenate(out))

    def block(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> Block:
        """Return the positions and values of these cells' features."""
        days = self._days(cells, absent)
        first, last = self.first.toordinal(), self.last.toordinal()
        u = (np.clip(days, first, last) - first) / (last - first)
        if self.signed:
            u = 2 * u - 1
        index, values, start = [], [], 0
        for code in self.encode:
            if code == "linear":
                at = np.zeros(len(days), dtype=np.int64)
            elif code == "weekday":
                at = (days - 1) % 7  # day 1, the first of January of the year 1, is a Monday
            else:
                at = np.array([date.fromordinal(day).month - 1 for day in days.tolist()], np.int64)
            index.append(start + at)
            values.append(u if code == "linear" else np.ones(len(days)))
            start += _WIDTHS[code]
        return np.stack(index, axis=1), self.weight * np.stack(values, axis=1)

    def _days(self, cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of each cell's day; refuse a cell that is none, by its position."""
        stand_in = self.missing.toordinal() if isinstance(self.missing, date) else 1
        known: dict[tuple[str, str], int | None] = {}
        days = np.full(len(cells), stand_in, dtype=np.int64)
        for row, cell in enumerate(cells.tolist()):
            if absent[row]:
                continue
            # a cell that is a day, and no text, spells itself as ISO 8601 does
            spelling = "%Y-%m-%d" if isinstance(cell, date) else self.format
            key = spelling, normalise(cell)
            if key not in known:
                known[key] = self._day(*key)
            day = known[key]
            if day is None:
                raise CellError(
                    f"column {self.name!r}", row, f"the value is no day spelled as {self.format!r}"
                )
            days[row] = day
        return days

    @property
    def pattern(self) -> str:
        """The format as a regular expression with groups Y, m and d."""
        return _pattern(self.format)

    @staticmethod
    def _day(spelling: str, text: str) -> int | None:
        found = re.match(_pattern(spelling), text, re.ASCII)
        if found is None or not _CLOCK.fullmatch(text, found.end()):
            return None
        try:
            return date(int(found["Y"]), int(found["m"]), int(found["d"])).toordinal()
        except ValueError:
            return None


def _pattern(spelling: str) -> str:
    pattern = re.escape(spelling)
    for part, digits in _PARTS.items():
        pattern = pattern.replace(re.escape(part), digits)
    return pattern
