"""CSV and Parquet files, read by DuckDB, which may open the given file alone.

Nothing is inferred from rows: cells of a CSV file are text, a Parquet file brings its types. Files
that all readers take alike are read without it: large ones by Arrow, small CSV files as they are
(plain_files.py).
"""

import csv
import errno
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dynadp.data.coded import CodedRows, KnownCells, unboxed
from dynadp.data.plain_files import either, first_line, plain_cells, plain_csv, plain_parquet
from dynadp.data.sources import RawTable, Source, Stamp, foreign_errors, need, odd_type, whole_cells
from dynadp.errors import DataError, DatasetError, DeclarationError

Separator = Literal[",", ";", "\t"]

# bytes of a file, from which on Arrow is used where it is there; of one that needs no library
_LARGE = _SMALL = 1 << 19
# DuckDB without extensions, secrets, files to spill into or a look at Python's variables; one
# thread keeps it small
_ALONE = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
# types that are read, and the type that each is cast to
_CASTS = {
    **dict.fromkeys((*_WHOLE, *(f"U{kind}" for kind in _WHOLE), "BOOLEAN", "VARCHAR"), ""),
    **dict.fromkeys(("FLOAT", "DOUBLE", "DECIMAL"), "DOUBLE"),
    "ENUM": "VARCHAR",
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), "DATE"),
}


def _existing(path: Path) -> Path:
    """Return the absolute path of an existing file that this user may read."""
    try:
        there = path.is_file()
        if there and not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:  # also of a folder that this user may not enter
        raise DatasetError(
            f"cannot read {path}: {error.strerror}; let this user read it"
        ) from error
    if not there:
        raise DatasetError(f"there is no file {path}; expected a file on this machine")
    return path.resolve()


def open_file(path: Path, name: str, separator: Separator | None) -> Source:
    """Return a local file as a source."""
    ending = (
        "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    )
    if ending not in (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet"):
        raise DeclarationError(
            f"{path}: expected a file that ends with .csv, .tsv, .csv.gz, .tsv.gz or .parquet"
        )
    path = _existing(path)
    if ending == ".parquet":
        if separator is not None:
            raise DeclarationError(f"separator is {separator!r}, but only CSV files have one")
        return _parquet(path, name)
    return _csv(
        path,
        name,
        separator or ("\t" if ending.startswith(".tsv") else None),
        zipped=ending.endswith(".gz"),
    )


def _csv(path: Path, name: str, separator: Separator | None, zipped: bool) -> Source:
    columns, mark = _header(path, name, separator, zipped)
    # names of our own: a header's may be anything
    kinds = ", ".join(f"c{i}: 'VARCHAR'" for i in range(len(columns)))
    options = (
        f"auto_detect = false, header = true, columns = {{{kinds}}}, delim = '{mark}', "
        f"quote = '\"', escape = '\"', compression = '{'gzip' if zipped else 'none'}', "
        "strict_mode = true, null_padding = false, hive_partitioning = false, buffer_size = 8000000"
    )

    def query(names: tuple[str, ...]) -> str:
        cells = ", ".join(
            f"coalesce(c{columns.index(wanted)}, '') AS n{i}" for i, wanted in enumerate(names)
        )
        return f"SELECT {cells} FROM read_csv({_quoted(path)}, {options})"

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        _require_one(path, name)
        if stamp is not None and stamp.size < _SMALL:
            found = plain_cells(path, columns, names, mark, size)
            if found is not None:
                yield from found
                return
        for rows in _query(path, name, query(names), size):
            yield {
                wanted: whole_cells(column)
                for wanted, column in zip(names, zip(*rows, strict=True), strict=True)
            }

    def coded(names: tuple[str, ...], size: int) -> Iterator[CodedRows]:
        _reader(path, name)
        known = [KnownCells() for _ in names]

        def made(batches: Iterator[Any]) -> Iterator[CodedRows]:
            for batch in batches:
                yield {
                    wanted: code(column)
                    for wanted, code, column in zip(names, known, batch.columns, strict=True)
                }

        fast = made(plain_csv(path, columns, names, mark))
        return either(fast, lambda: made(_arrow_query(path, name, query(names), size)), size)

    stamp = Stamp.of(path)
    return Source(name, columns, read, True, stamp, _coded=coded if _worth_arrow(stamp) else None)


def _header(
    path: Path, name: str, separator: Separator | None, zipped: bool
) -> tuple[tuple[str, ...], str]:
    """Return the names of the columns and the separator, from the first line alone."""
    line = problem = ""
    expected = "expected a header with the names of the columns"
    names: list[str] = []
    # byte by byte: a buffer would read ahead, into rows
    try:
        with gzip.open(path) if zipped else open(path, "rb", buffering=0) as file:
            line = first_line(file).decode("utf-8-sig")
            # to its end, where length and checksum are, which DuckDB ignores
            while zipped and file.read(1 << 20):
                pass
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text; save it as UTF-8"
    except (OSError, EOFError, zlib.error) as error:
        told = error.strerror if isinstance(error, OSError) else None  # the system's words
        problem = f"it cannot be read{f': {told}' if told else '; it may be cut or damaged'}"
    marks = [mark for mark in ",;\t" if mark in re.sub(r'"[^"]*"', "", line)]
    if separator is None and len(marks) > 1:
        raise DeclarationError(
            f"{name}: the header has more than one of comma, semicolon and tab; declare the "
            f"separator"
        )
    if separator not in (None, ",", ";", "\t"):
        raise DeclarationError(
            f"separator is {separator!r}; expected a comma, a semicolon or a tab"
        )
    mark: str = separator or (marks or [","])[0]
    try:
        names = next(csv.reader([line.rstrip("\r\n")], delimiter=mark, strict=True), [])
    except csv.Error:
        problem = problem or "the quotes of its first line do not match; " + expected
    if problem or not names:
        raise DataError(f"{name}: {problem or 'the first line is empty; ' + expected}")
    return tuple(names), mark


def _parquet(path: Path, name: str) -> Source:
    # or folders named a=b would become columns
    table = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    described = [
        row for rows in _query(path, name, f"DESCRIBE SELECT * FROM {table}", 1000) for row in rows
    ]
    kinds = {str(row[0]): str(row[1]) for row in described}

    def query(names: tuple[str, ...]) -> tuple[str, list[str]]:
        cells, casts = [], []
        for i, wanted in enumerate(names):
            kind, quoted = kinds[wanted].split("(")[0], '"' + wanted.replace('"', '""') + '"'
            if kind not in _CASTS or kinds[wanted].endswith("]"):
                raise odd_type(name, wanted, kinds[wanted])
            casts.append(cast := _CASTS[kind])
            cells.append(f"{f'CAST({quoted} AS {cast})' if cast else quoted} AS n{i}")
        return f"SELECT {', '.join(cells)} FROM {table}", casts

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        sql, casts = query(names)
        for rows in _query(path, name, sql, size):
            yield {
                wanted: np.array(column, dtype=float) if cast == "DOUBLE" else whole_cells(column)
                for wanted, cast, column in zip(names, casts, zip(*rows, strict=True), strict=True)
            }

    def coded(names: tuple[str, ...], size: int) -> Iterator[CodedRows]:
        sql, casts = query(names)
        _reader(path, name)
        known = [KnownCells() for _ in names]

        def made(batches: Iterator[Any]) -> Iterator[CodedRows]:
            for batch in batches:
                yield {
                    wanted: unboxed(column.cast("double")) if cast == "DOUBLE" else code(column)
                    for wanted, cast, code, column in zip(
                        names, casts, known, batch.columns, strict=True
                    )
                }

        fast = made(plain_parquet(path, names, size))
        return either(fast, lambda: made(_arrow_query(path, name, sql, size)), size)

    stamp = Stamp.of(path)
    fast = coded if _worth_arrow(stamp) else None
    return Source(name, tuple(kinds), read, stamp=stamp, parquet=True, _coded=fast)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _query(path: Path, name: str, sql: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows of the answer as they are computed, by a DuckDB that may read this file and
    nothing else, and write nowhere.
    """
    duckdb = _reader(path, name)
    with foreign_errors() as dropped, duckdb.connect(":memory:", config=_ALONE) as connection:
        _lock(connection, path)
        answer = connection.execute(sql)
        while rows := answer.fetchmany(size):
            yield rows
    if dropped:
        raise DataError(f"{name}{_reason(dropped[0])}")


def _arrow_query(path: Path, name: str, sql: str, size: int) -> Iterator[Any]:
    """Yield the same answer as Arrow's batches, several times as fast."""
    duckdb = _reader(path, name)
    with foreign_errors() as dropped, duckdb.connect(":memory:", config=_ALONE) as connection:
        _lock(connection, path)
        answer = connection.sql(sql)
        named = hasattr(answer, "to_arrow_reader")  # older versions of DuckDB have the other name
        yield from (answer.to_arrow_reader if named else answer.fetch_arrow_reader)(size)
    if dropped:
        for _ in _query(path, name, sql, size):  # says why
            pass
        raise DataError(f"{name}{_reason(dropped[0])}")


def _worth_arrow(stamp: Stamp | None) -> bool:
    """Return whether PyArrow is there, and the file so large that its import pays."""
    large = stamp is not None and stamp.size >= _LARGE
    return large and find_spec("pyarrow") is not None


def _require_one(path: Path, name: str) -> None:
    """Refuse a path that DuckDB would take for those of several files."""
    if any(mark in str(path) for mark in "*?["):
        raise DeclarationError(
            f"{name}: the path has a *, ? or [, which would stand for several files; rename it"
        )


def _reader(path: Path, name: str) -> Any:
    _require_one(path, name)
    return need("duckdb", "CSV and Parquet files")


def _lock(connection: Any, path: Path) -> None:
    """Let a connection read this file and nothing else, and write nowhere."""
    connection.execute(f"SET allowed_paths = [{_quoted(path)}]")
    connection.execute("SET enable_progress_bar = false")  # it would draw on stdout
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _reason(complaint: str) -> str:
    """Return the row and the reason of DuckDB's complaint, without the cells that it quotes."""
    head = complaint.split("Original Line")[0]  # a row comes after that
    # it counts rows with the header, not line ends
    place = re.search(r"CSV Error on Line: (\d+)\n", head)
    where = f", row {int(place[1]) - 2}: " if place else ": "
    reasons = {
        "Expected Number of Columns": "it has more or fewer cells than the header; is a separator "
        "inside a cell without quotes?",
        "utf-8": "it is not UTF-8 text; save the file as UTF-8",
        "unterminated quote": "the quotes do not match; expected a quote inside a quoted cell to "
        "be doubled",
    }
    for words, reason in reasons.items():
        if place and words in complaint:
            return where + reason
    if "state machine reached an invalid state" in complaint:
        return (
            f"{where}its lines do not all end alike, or its quotes do not match; save it with one "
            "kind of line end"
        )
    return (
        f"{where}the file cannot be read; it may be cut, damaged or of another format than its "
        "name says"
    )
