"""Files, frames and arrays as columns of cells.

Nothing is inferred from rows: cells of a CSV file are text, Parquet files and frames bring their
types. Errors of the libraries that read them may quote cells, so they are dropped: an error here
names the file, the column and the row, never the content of a cell. Nothing reaches a network.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp.data.files import Separator, open_file
from dynadp.data.sources import RawTable, Source, foreign_errors, need, odd_type, whole_cells
from dynadp.data.values import is_absent
from dynadp.errors import DataError, DeclarationError

LEAST_MEMORY = 16 << 20  # bytes; blocks of a streamed file would get too small below it


def source(
    data: Any,
    *,
    name: str | None = None,
    separator: Separator | None = None,
    names: Sequence[str] | None = None,
    memory: int | None = None,
) -> Source:
    r"""Return the data as a :class:`Source`.

    Parameters
    ----------
    data
        A path to a local ``.csv``, ``.tsv`` (either may end with ``.gz``) or ``.parquet`` file; a
        pandas, Polars or PyArrow frame; a mapping from names to columns; a NumPy matrix; or a
        source, which is returned as it is.
    name
        For messages; by default the path, or ``data``.
    separator
        Of a CSV file: ``,``, ``;`` or a tab. By default the only one of them that the header has
        outside quotes.
    names
        Of the columns of a matrix, which needs them; of nothing else.
    memory
        Bytes that the rows of a node may take, at least 16 MiB; a Parquet file that needs more is
        streamed through every pass.

    >>> [batch["age"].tolist() for batch in source({"age": [39, 50, 38]}).batches(["age"], size=2)]
    [[39, 50], [38]]
    """
    if memory is not None:
        if memory < LEAST_MEMORY:
            raise DeclarationError(
                f"memory is {memory} bytes; expected at least {LEAST_MEMORY} (16 MiB), or None "
                f"for no limit"
            )
        return replace(
            source(data, name=name, separator=separator, names=names), memory=int(memory)
        )
    if isinstance(data, Source):
        return data
    matrix = isinstance(data, np.ndarray)
    if (names is not None) != matrix or (
        matrix and (data.ndim != 2 or data.shape[1] != len(names or ()))
    ):
        raise DeclarationError(
            "names are for a NumPy matrix of rows, and it needs one name for each of its columns"
        )
    if isinstance(data, str | Path):
        return open_file(Path(data), name or str(data), separator)
    if separator is not None:
        raise DeclarationError(f"separator is {separator!r}, but only CSV files have one")
    name = name or "data"
    if matrix:
        data = {column: data[:, i] for i, column in enumerate(names or ())}
        if len(data) != len(names or ()):
            raise DeclarationError(
                "names: one is given twice; expected a name of its own for each column of the "
                "matrix"
            )
    return _mapping(data, name) if isinstance(data, Mapping) else _frame(data, name)


def _mapping(data: Mapping[Any, Any], name: str) -> Source:
    by_name = {str(column): cells for column, cells in data.items()}

    def column(wanted: str) -> NDArray[Any]:
        cells: Any = by_name[wanted]
        if isinstance(cells, np.ma.MaskedArray):
            cells = [
                None if gone else cell
                for cell, gone in zip(cells.data, np.ma.getmaskarray(cells), strict=True)
            ]
        cells = whole_cells(cells) if isinstance(cells, list | tuple) else np.asarray(cells)
        if cells.ndim != 1:
            raise DataError(
                f"{name}: column {wanted!r} has {cells.ndim} dimensions; expected one value a row"
            )
        return np.asarray(cells)

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        columns = {wanted: column(wanted) for wanted in names}
        count = len(columns[names[0]])
        for wanted, cells in columns.items():
            if len(cells) != count:
                raise DataError(
                    f"{name}: column {wanted!r} has {len(cells)} rows, {names[0]!r} has {count}"
                )
        for start in range(0, count, size):
            yield {wanted: cells[start : start + size] for wanted, cells in columns.items()}

    return Source(name, tuple(by_name), read)


def no_query(data: Any, name: str) -> None:
    """Refuse a lazy frame."""
    if type(data).__name__ == "LazyFrame":
        raise DeclarationError(
            f"{name} is a LazyFrame, which holds a query and no rows yet; give its rows: call "
            f".collect()"
        )


def _frame(data: Any, name: str) -> Source:
    nw = need("narwhals", "data frames")
    no_query(data, name)
    with foreign_errors() as dropped:
        frame = nw.from_native(data, eager_only=True)
    if dropped:
        raise DeclarationError(
            f"{name} is of type {type(data).__name__}; expected a path, a mapping from names to "
            "columns, a NumPy matrix, or a pandas, Polars or PyArrow frame in memory whose columns "
            "have different names"
        )

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        columns = {
            wanted: frame[frame.columns[place]]
            for place, wanted in enumerate(map(str, frame.columns))
            if wanted in names
        }
        real = {
            wanted: cells.dtype.is_numeric() and not cells.dtype.is_integer()
            for wanted, cells in columns.items()
        }
        times = {
            wanted for wanted, cells in columns.items() if cells.dtype in (nw.Date, nw.Datetime)
        }
        for wanted in names:
            kind = columns[wanted].dtype
            if not (
                kind.is_numeric()
                or kind == nw.Date
                or (kind == nw.Datetime and kind.time_zone is None)
                or kind in (nw.String, nw.Boolean, nw.Categorical, nw.Enum, nw.Object)
            ):
                raise odd_type(name, wanted, kind)
        for start in range(0, len(frame), size):
            part = {wanted: columns[wanted][start : start + size] for wanted in names}
            yield {
                wanted: np.array(cells.cast(nw.Float64).to_numpy(), dtype=float)
                if real[wanted]
                else whole_cells(_days(cells.to_list()) if wanted in times else cells.to_list())
                for wanted, cells in part.items()
            }

    return Source(name, tuple(map(str, frame.columns)), read)


def _days(times: list[Any]) -> list[Any]:
    """Return the days of dates and of times; None for none."""
    return [
        None if is_absent(at, frozenset()) else at.date() if isinstance(at, datetime) else at
        for at in times
    ]
