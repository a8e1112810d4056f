"""Columns as cells and features of a SQL query: each step makes cells of those before it."""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from typing import Any

from dynadp.data import (
    Curves,
    PlainBins,
    PlainCategory,
    PlainCross,
    PlainDate,
    PlainFourier,
    PlainHashed,
    PlainNumber,
    PlainPlace,
    PlainVector,
)
from dynadp.errors import DataError
from dynadp.exports.plain_model import ReadyNumber
from dynadp.exports.sql import literal, named, quoted, trimmed

_FAR = "1.7976931348623157e308"
_FARTHEST = 1e100  # a number of a vector beyond it counts as this one
_DIGITS = "'0123456789'"
Step = tuple[str, str, list[str]]


class Columns:
    """Cells that are made step by step.

    Attributes
    ----------
    refused
        Conditions under which a row has no answer.
    """

    def __init__(self, missing_values: Sequence[str]) -> None:
        self.missing_values = missing_values
        self.refused = list[str]()
        self._steps = list[list[str]]()
        self._made = dict[tuple[int, str], str]()

    def steps(self, table: str) -> Iterator[Step]:
        """Yield name, source and cells of each step."""
        source = table
        for i, cells in enumerate(self._steps):
            if cells:
                yield f"dynadp_cells{i}", source, cells
                source = f"dynadp_cells{i}"

    @property
    def last(self) -> str:
        """The name of the last step."""
        return f"dynadp_cells{len(self._steps) - 1}"

    def features(self, column: Any) -> Iterator[str]:
        """Yield what each feature is, in cells of the last step."""
        if isinstance(column, ReadyNumber):
            yield self._finite(column.name, None)
        elif isinstance(column, PlainNumber):
            for feature in self._number(column):
                yield _times(column.weight, feature)
        elif isinstance(column, PlainDate):
            yield from self._date(column)
        elif isinstance(column, PlainVector):
            yield from self._vector(column)
        elif isinstance(column, PlainFourier):
            yield from self._fourier(column)
        else:
            place, _ = self._place(column)
            self.refused.append(f"{place} IS NULL")
            yield from _one_hot(place, column.width, column.weight)

    def _cell(self, step: int, made_of: str) -> str:
        """The name of a cell that is made of those of earlier steps, and of raw ones in the
        first.
        """
        while len(self._steps) <= step:
            self._steps.append([])
        if (step, made_of) not in self._made:
            name = f"dynadp_c{len(self._made)}"
            self._made[step, made_of] = name
            self._steps[step].append(f"{made_of} AS {name}")
        return self._made[step, made_of]

    def _gone(self, cell: str, nan: str) -> str:
        """Whether a raw cell is missing."""
        gone = [f"{cell} IS NULL", nan]
        if self.missing_values:
            gone.append(f"{trimmed(cell)} IN ({', '.join(map(quoted, self.missing_values))})")
        return " OR ".join(gone)

    def _raw(self, name: str, missing: float | None) -> str:
        """The number in a raw cell, what stands for it where it is missing, or NULL."""
        cell = named(name)
        gone = self._gone(cell, f"lower({trimmed(cell)}) = 'nan'")
        instead = "NULL" if missing is None else literal(missing)
        number = f"CAST({cell} AS DOUBLE PRECISION)"
        return self._cell(0, f"CASE WHEN {gone} THEN {instead} ELSE {number} END")

    def _finite(self, name: str, missing: float | None) -> str:
        """The same, where a row without a finite number has no answer."""
        cell = self._raw(name, missing)
        self.refused.append(f"{cell} IS NULL OR NOT ({cell} BETWEEN -{_FAR} AND {_FAR})")
        return cell

    def _number(self, column: PlainNumber) -> Iterator[str]:
        v = self._finite(column.name, column.missing)
        t = self._cell(1, _clipped(v, column.low, column.high))
        if column.transform == "log1p":
            t = self._cell(2, f"ln(1 + ({t} - {literal(column.low)}))")
        elif column.transform == "signed_log":
            t = self._cell(2, f"CASE WHEN {t} < 0 THEN -ln(1 - {t}) ELSE ln(1 + {t}) END")
        for curves in column.curves:
            for y in curves.gives:
                curve = f"({_curve(curves, y, t)})"
                yield f"{curve} * {curve}" if curves.power == 2 else curve

    def _place(self, column: PlainPlace | PlainCross) -> tuple[str, int]:
        """The place of a row, -1 for none, NULL where it has no answer; and the step it is of."""
        if isinstance(column, PlainHashed):
            raise DataError(
                f"column {column.name!r} is hashed, and SQL has no SHA-256 that DuckDB and SQLite "
                "share; export to json or sklearn, or predict with dynadp"
            )
        if isinstance(column, PlainCross):
            (one, step), (other, later) = map(self._place, column.parts)
            width = column.parts[1].width
            made = (
                f"CASE WHEN {one} IS NULL OR {other} IS NULL THEN NULL "
                f"WHEN {one} < 0 OR {other} < 0 THEN -1 ELSE {one} * {width} + {other} END"
            )
            return self._cell(max(step, later) + 1, made), max(step, later) + 1
        if isinstance(column, PlainBins):
            v = self._raw(column.name, None)
            missing = "NULL" if column.missing is None else str(column.missing)
            whens = [f"WHEN {v} IS NULL THEN {missing}"]
            whens.append(f"WHEN NOT ({v} BETWEEN -{_FAR} AND {_FAR}) THEN NULL")
            whens += [f"WHEN {v} < {literal(edge)} THEN {k}" for k, edge in enumerate(column.edges)]
            return self._cell(1, f"CASE {' '.join(whens)} ELSE {len(column.edges)} END"), 1
        return self._cell(0, self._category(column)), 0

    def _category(self, column: PlainCategory) -> str:
        cell = named(column.name)
        text = trimmed(cell)
        gone = self._gone(cell, f"(typeof({cell}) IN ('DOUBLE', 'FLOAT') AND {text} = 'nan')")
        whens = [
            f"WHEN {text} IN ({', '.join(map(quoted, cells))}) THEN {k}"
            for k, cells in enumerate(column.cells)
        ]
        missing, other = ("NULL" if p is None else str(p) for p in (column.missing, column.other))
        return f"CASE WHEN {gone} THEN {missing}\n      {' '.join(whens)} ELSE {other} END"

    def _vector(self, column: PlainVector) -> Iterator[str]:
        raw = [self._finite(name, column.missing) for name in column.columns]
        x = [self._cell(1, _clipped(cell, -_FARTHEST, _FARTHEST)) for cell in raw]
        length = self._cell(2, f"sqrt({' + '.join(f'{one} * {one}' for one in x)})")
        norm = literal(column.norm)
        for one in x:
            made = f"{one} / CASE WHEN {length} > {norm} THEN {length} ELSE {norm} END"
            yield _times(column.weight, made)

    def _fourier(self, column: PlainFourier) -> Iterator[str]:
        u = [self._cell(3, next(self._number(part))) for part in column.parts]
        for w, turn in zip(*column.waves, strict=True):
            angle = " + ".join(
                f"{literal(each)} * {one}" for each, one in zip(w.tolist(), u, strict=True)
            )
            wave = f"cos({angle})" if turn else f"sin({angle})"
            yield _times(column.weight * column.scale, wave)

    def _date(self, column: PlainDate) -> Iterator[str]:
        day, month, step = self._day(column)
        self.refused.append(f"{day} IS NULL")
        for part in column.parts:
            if part == "linear":
                low, high = column.line.knots
                t = self._cell(step + 1, _clipped(day, low, high))
                yield _times(column.weight, f"({_curve(column.line, column.line.gives[0], t)})")
            elif part == "weekday":
                weekday = self._cell(step + 1, f"({day} - 1) % 7")
                yield from _one_hot(weekday, 7, column.weight)
            else:
                yield from _one_hot(month, 12, column.weight)

    def _day(self, column: PlainDate) -> tuple[str, str, int]:
        """The number of a day, its month from 0, and the step that they are of; NULL where the text
        is none.
        """
        found = re.fullmatch(r"(.*?)%([Ymd])(.*?)%([Ymd])(.*?)%([Ymd])(.*)", column.format, re.S)
        assert found is not None
        before, first, mark, second, other_mark, third, after = found.groups()
        if not mark or not other_mark or re.search(r"\d", mark + other_mark, re.ASCII):
            raise DataError(
                f"column {column.name!r} has the format {column.format!r}, whose parts no mark "
                "other than digits keeps apart, so that SQL cannot find them; export to json, "
                "sklearn or onnx, or predict with dynadp"
            )
        cell = named(column.name)
        gone = self._gone(cell, "1 = 0")
        t = self._cell(0, f"CASE WHEN {gone} THEN NULL ELSE {trimmed(cell)} END")
        absent = f"{t} IS NULL"
        start = f"substr({t}, {len(before) + 1})"
        t = self._cell(1, _where(f"substr({t}, 1, {len(before)}) = {quoted(before)}", start))
        ends = self._cell(2, f"instr({t}, {quoted(mark)})")
        parts = {first: self._cell(3, f"substr({t}, 1, {ends} - 1)")}
        t = self._cell(3, _where(f"{ends} > 0", f"substr({t}, {ends} + {len(mark)})"))
        ends = self._cell(4, f"instr({t}, {quoted(other_mark)})")
        parts[second] = self._cell(5, f"substr({t}, 1, {ends} - 1)")
        t = self._cell(5, _where(f"{ends} > 0", f"substr({t}, {ends} + {len(other_mark)})"))
        two = f"CASE WHEN substr({t}, 2, 1) BETWEEN '0' AND '9' THEN 2 ELSE 1 END"
        parts[third] = self._cell(6, f"substr({t}, 1, {4 if third == 'Y' else two})")
        rest = self._cell(7, f"substr({t}, length({parts[third]}) + 1)")
        length = len(after)
        ended = (
            f"substr({rest}, 1, {length}) = {quoted(after)} AND "
            f"substr({rest}, {length + 1}, 1) IN ('', 'T', ' ')"
        )
        lengths = {"Y": "= 4", "m": "<= 2", "d": "<= 2"}
        fine = [
            f"{text} <> '' AND trim({text}, {_DIGITS}) = '' AND length({text}) {lengths[part]}"
            for part, text in parts.items()
        ]
        whole = " AND ".join([ended, *fine])
        y, m, d = (
            self._cell(8, _where(whole, f"CAST({parts[part]} AS INTEGER)")) for part in "Ymd"
        )
        leap = f"({y} % 4 = 0 AND ({y} % 100 <> 0 OR {y} % 400 = 0))"
        days = (
            f"CASE WHEN {m} IN (4, 6, 9, 11) THEN 30 WHEN {m} <> 2 THEN 31 "
            f"WHEN {leap} THEN 29 ELSE 28 END"
        )
        is_day = f"{y} >= 1 AND {m} BETWEEN 1 AND 12 AND {d} BETWEEN 1 AND {days}"
        # years begin in March
        early = f"CASE WHEN {m} <= 2 THEN 1 ELSE 0 END"
        year, march = self._cell(9, f"{y} - {early}"), self._cell(9, f"{m} + 12 * {early} - 3")
        number = (
            f"365 * {year} + {_whole(year, 4)} - {_whole(year, 100)} + {_whole(year, 400)} + "
            f"{_whole(f'(153 * {march} + 2)', 5)} + {d} - 306"
        )
        instead, its_month = "NULL", "NULL"
        if column.missing is not None:
            instead, its_month = (
                str(column.missing),
                str(date.fromordinal(column.missing).month - 1),
            )
        day = self._cell(10, f"CASE WHEN {absent} THEN {instead} WHEN {is_day} THEN {number} END")
        month = self._cell(10, f"CASE WHEN {absent} THEN {its_month} ELSE {m} - 1 END")
        return day, month, 10


def _whole(v: str, by: int) -> str:
    """floor(v/by) of a number from 0, where / may divide whole numbers or not."""
    return f"({v} - {v} % {by}) / {by}"


def _where(condition: str, made: str) -> str:
    return f"CASE WHEN {condition} THEN {made} END"


def _times(weight: float, feature: str) -> str:
    return feature if weight == 1 else f"{literal(weight)} * {feature}"


def _one_hot(place: str, width: int, weight: float) -> Iterator[str]:
    for k in range(width):
        yield f"CASE WHEN {place} = {k} THEN {literal(weight)} ELSE 0 END"


def _clipped(cell: str, low: float, high: float) -> str:
    ends = literal(low), literal(high)
    return (
        f"CASE WHEN {cell} < {ends[0]} THEN {ends[0]} WHEN {cell} > {ends[1]} THEN {ends[1]} "
        f"ELSE {cell} END"
    )


def _curve(curves: Curves, y: Sequence[float], t: str) -> str:
    """Linear between knots, constant beyond them."""
    knots = list(zip(curves.knots, y, strict=True))
    if len(knots) == 2:  # t is clipped to them
        return _line(knots[0], knots[1], t)
    whens = [f"WHEN {t} <= {literal(knots[0][0])} THEN {literal(knots[0][1])}"]
    for left, right in pairwise(knots):
        whens.append(f"WHEN {t} <= {literal(right[0])} THEN {_line(left, right, t)}")
    return f"CASE {' '.join(whens)} ELSE {literal(knots[-1][1])} END"


def _line(left: tuple[float, float], right: tuple[float, float], t: str) -> str:
    (k, y), (later, end) = left, right
    if y == end:
        return literal(y)
    return f"{literal(y)} + {literal(end - y)} * (({t} - {literal(k)}) / {literal(later - k)})"
