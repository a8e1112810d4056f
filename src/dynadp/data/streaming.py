"""Columns of a Parquet file as numbers and codes, some thousand rows at a time: fast enough for
every step of a solver.

A column of texts is read as the few distinct cells of a piece of the file and, for each row, the
code of its cell, so that each distinct cell is looked at once. Arrow's errors may quote cells, so
they are dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp.data.coded import DictionaryColumn, Distinct, unboxed
from dynadp.data.sources import Source, foreign_errors, need, odd_type
from dynadp.errors import DataError

_BUFFER = 1 << 20  # bytes read ahead in each column, instead of the whole of a row group
_MOST_ROWS = 65536  # at once: decoding gets no faster with more


CodedColumn = DictionaryColumn | NDArray[np.float64]
CodedTable = dict[str, CodedColumn]


def rows_at_once(memory: int, columns: int) -> int:
    """n = memory / (4 * 3 * 16 columns), at most 65,536: three batches of decoded cells in a
    quarter of the limit.

    Three, because one is worked on, one waits and one is decoded; decoding a cell takes up to 16
    bytes.
    """
    return max(1024, min(_MOST_ROWS, memory // (4 * 3 * 16 * columns)))


def length(given: Source) -> int:
    """Return the number of rows in the file's footer."""
    return int(_opened(given, ()).metadata.num_rows)


def coded_batches(
    given: Source,
    numbers: Sequence[str],
    texts: Sequence[str],
    size: int,
    *,
    many: Sequence[str] = (),
) -> Iterator[CodedTable]:
    """Yield the named columns in order, ``size`` rows at a time; the next batch is decoded
    meanwhile.

    Parameters
    ----------
    given
        A Parquet file.
    numbers
        Columns that come as float64, NaN for nulls, if that is their type in the file, and coded
        otherwise.
    texts
        Columns that come coded, whatever their type.
    size
        Rows in a batch, at most.
    many
        Those of ``texts`` that may have a cell of its own in every row: distinct cells are those of
        a batch then, never those of a row group.

    Raises
    ------
    DataError
        Where the file cannot be read, or is not the one that it was when the source was made.
    """
    given.require((*numbers, *texts))
    file = _opened(given, (*numbers, *texts), *([many] if many else []))
    names = tuple(dict.fromkeys((*numbers, *texts)))
    kinds = _unquoted(given, lambda: {name: file.schema_arrow.field(name).type for name in names})
    makers = {name: _maker(given, name, kind, name in texts) for name, kind in kinds.items()}
    batches = file.iter_batches(batch_size=size, columns=list(names), use_threads=True)

    def following() -> CodedTable | None:
        batch = next(batches, None)
        return None if batch is None else {name: makers[name](batch.column(name)) for name in names}

    with ThreadPoolExecutor(1, thread_name_prefix="dynadp-reader") as reader:
        ahead = reader.submit(following)
        while (batch := _unquoted(given, ahead.result)) is not None:
            ahead = reader.submit(following)
            yield batch
    given.require_unchanged()


def _opened(given: Source, names: Sequence[str], many: Sequence[str] = ()) -> Any:
    """Open the file for these columns; ``many`` of them are not read as codes."""
    parquet, arrow = (
        need(module, "streamed Parquet files", "'dynadp[stream]'")
        for module in ("pyarrow.parquet", "pyarrow")
    )
    assert given.stamp is not None
    path = str(given.stamp.path)
    given.require_unchanged()

    def opened() -> Any:
        kinds = parquet.read_schema(path)
        texts = [
            name
            for name in names
            if name not in many
            and kinds.names.count(name) == 1
            and _is_text(arrow, kinds.field(name).type)
        ]
        return parquet.ParquetFile(
            arrow.OSFile(path), read_dictionary=texts, pre_buffer=False, buffer_size=_BUFFER
        )

    return _unquoted(given, opened)


def _unquoted(given: Source, work: Callable[[], Any]) -> Any:
    """Return the result of the work; replace an error of Arrow's, which may quote a cell."""
    with foreign_errors() as dropped:
        return work()
    if dropped:
        given.require_unchanged()
        raise DataError(
            f"{given.name}: the file cannot be read; it may be cut, damaged or of another format "
            f"than its name says"
        )


def _maker(given: Source, name: str, kind: Any, text: bool) -> Callable[[Any], CodedColumn]:
    """Return the function that turns a column of this type into numbers or codes."""
    arrow: Any = need("pyarrow", "streamed Parquet files")
    types = arrow.types
    values = kind.value_type if types.is_dictionary(kind) else kind
    real = types.is_floating(values) or types.is_decimal(values)
    if text and (types.is_date(kind) or (types.is_timestamp(kind) and kind.tz is None)):
        days = Distinct()
        return lambda column: days(column.cast(arrow.date32()).dictionary_encode())
    if not (
        real
        or types.is_integer(values)
        or types.is_boolean(values)
        or types.is_null(values)
        or _is_text(arrow, values)
    ):
        raise odd_type(given.name, name, kind)
    if types.is_dictionary(kind) or _is_text(arrow, kind):
        return Distinct()
    if text:
        distinct = Distinct()
        return lambda column: distinct(
            (column.cast(arrow.float64()) if real else column).dictionary_encode()
        )

    def numbers(column: Any) -> CodedColumn:
        column = column.cast(arrow.uint8()) if types.is_boolean(kind) else column
        return unboxed(column.cast(arrow.float64()))

    return numbers


def _is_text(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))
