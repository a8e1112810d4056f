"""CSV and Parquet files that all readers take alike: large ones are read by Arrow, several times as
fast as DuckDB, and small ones without either, whose start would take longest.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import closing
from io import RawIOBase
from pathlib import Path
from typing import Any

from dynadp.data.coded import CodedRows
from dynadp.data.sources import RawTable, foreign_errors, need, whole_cells

_HEADER = 1 << 20  # bytes; a longer first line is no header
_BLOCK = 1 << 20  # bytes that Arrow reads at once


def first_line(file: Any) -> bytes:
    """Read a line to its end and not one byte more; a quoted name may hold line ends."""
    line, quoted = bytearray(), False
    while len(line) < _HEADER and (byte := file.read(1)):
        line += byte
        quoted ^= byte == b'"'
        if byte in b"\r\n" and not quoted:
            break
    return bytes(line)


def either(
    fast: Iterator[CodedRows], other: Callable[[], Iterator[CodedRows]], size: int
) -> Iterator[CodedRows]:
    """Yield the batches of a fast reader, ``size`` rows at a time; where it fails, those of the
    other one from that row on.
    """
    done = 0
    with foreign_errors() as dropped:
        for batch in fast:
            for part in _parts(batch, 0, size):
                yield part
                done += _length(part)
    if dropped:
        skipped = 0
        for batch in other():
            yield from _parts(batch, max(0, done - skipped), size)
            skipped += _length(batch)


def _parts(batch: CodedRows, first: int, size: int) -> Iterator[CodedRows]:
    """Yield the rows from the first on, ``size`` at a time."""
    for low in range(first, _length(batch), size):
        yield {name: cells[low : low + size] for name, cells in batch.items()}


def _length(batch: CodedRows) -> int:
    return len(next(iter(batch.values())))


class _Unlike(Exception):
    """A file that readers may take differently."""


class _PlainText(RawIOBase):
    """The rows of a CSV file that all readers take alike: lines of UTF-8, none of them empty,
    without quotes or carriage returns.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed with this)
        self._text, self._ended = getincrementaldecoder("utf-8")(), True
        if path.suffix == ".gz" or not first_line(self._file).endswith(b"\n"):
            raise _Unlike

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        if any(mark in part for mark in (b'"', b"\r", b"\0", b"\n\n")):
            raise _Unlike
        if self._ended and part.startswith(b"\n"):
            raise _Unlike
        self._ended = part.endswith(b"\n")
        if not part.isascii() or self._text.getstate()[0]:
            self._text.decode(part)
        if not part:
            self._text.decode(b"", final=True)
        return part

    def close(self) -> None:
        self._file.close()
        super().close()


def plain_cells(
    path: Path, columns: tuple[str, ...], names: tuple[str, ...], mark: str, size: int
) -> list[RawTable] | None:
    """Return the cells of a small CSV file without any library, ``size`` rows at a time; None where
    DuckDB might read another cell, or refuse the file.
    """
    try:
        with closing(_PlainText(path)) as file:
            text = file.read().decode()
    except (_Unlike, OSError, UnicodeDecodeError):
        return None
    rows = [line.split(mark) for line in text.removesuffix("\n").split("\n")] if text else []
    if any(len(row) != len(columns) for row in rows):
        return None
    spans = [rows[low : low + size] for low in range(0, len(rows), size)]
    at = {name: columns.index(name) for name in names}
    return [
        {name: whole_cells([row[i] for row in some]) for name, i in at.items()} for some in spans
    ]


def plain_csv(
    path: Path, columns: tuple[str, ...], names: tuple[str, ...], mark: str
) -> Iterator[Any]:
    """Yield the cells of a CSV file as Arrow reads them, as texts; fail where DuckDB might read
    another cell.
    """
    arrow, reader = need("pyarrow", "CSV files"), need("pyarrow.csv", "CSV files")
    ours = [f"c{columns.index(wanted)}" for wanted in names]
    with closing(_PlainText(path)) as file:
        yield from reader.open_csv(
            file,
            reader.ReadOptions(
                use_threads=False,
                block_size=_BLOCK,
                column_names=[f"c{i}" for i in range(len(columns))],
            ),
            reader.ParseOptions(delimiter=mark, quote_char=False, ignore_empty_lines=False),
            reader.ConvertOptions(
                column_types=dict.fromkeys(ours, arrow.string()), include_columns=ours
            ),
        )
    arrow.default_memory_pool().release_unused()


def plain_parquet(path: Path, names: tuple[str, ...], size: int) -> Iterator[Any]:
    """Yield texts, numbers and booleans of a Parquet file as Arrow reads them; fail on others."""
    arrow, reader = need("pyarrow", "Parquet files"), need("pyarrow.parquet", "Parquet files")
    with arrow.OSFile(str(path)) as file:
        kinds = reader.read_schema(file)
        texts = []
        for name in names:
            kind = kinds.field(name).type
            if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
                texts.append(name)
            elif not (
                arrow.types.is_integer(kind)
                or arrow.types.is_boolean(kind)
                or arrow.types.is_float32(kind)
                or arrow.types.is_float64(kind)
            ):
                raise _Unlike
        held = reader.ParquetFile(file, read_dictionary=texts, pre_buffer=False, buffer_size=_BLOCK)
        for batch in held.iter_batches(size, columns=list(names), use_threads=False):
            yield batch.select(list(names))
    arrow.default_memory_pool().release_unused()
