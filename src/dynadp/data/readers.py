"""Files, frames and arrays as columns of cells, read in batches.

Nothing is inferred from rows: cells of a CSV file are text, Parquet files and frames bring their
types. Readers quote cells in their complaints, so these stay here: an error tells the file, the
column and the row, never what a cell holds. Nothing reaches a network, and DuckDB may open the one
given file alone.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynadp.errors import DataError, DatasetError, DeclarationError

RawTable = dict[str, NDArray[Any]]
Separator = Literal[",", ";", "\t"]

LEAST_MEMORY = 16 << 20  # bytes; blocks of a streamed file would get too small below it
_HEADER = 1 << 20  # characters; a longer first line is no header
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
_EXACT = (*_WHOLE, *(f"U{kind}" for kind in _WHOLE), "BOOLEAN", "VARCHAR")


@dataclass(frozen=True, eq=False)
class Source:
    """Columns of cells, read as often as wanted and in batches; made by :func:`source`.

    Attributes
    ----------
    name
        For messages: the file's path, or what the caller called it.
    columns
        Names of the columns, in order.
    parquet
        The file, if it is a Parquet file: such a file can be streamed.
    memory
        Bytes that rows may take at a node; what needs more is streamed. None for no limit.
    """

    name: str
    columns: tuple[str, ...]
    _read: Callable[[tuple[str, ...], int], Iterator[RawTable]] = field(repr=False)
    _header: bool = field(
        default=False, repr=False
    )  # names were read off a first line, which may be a row in truth
    parquet: "Stamped | None" = field(default=None, repr=False)
    memory: int | None = None

    def batches(self, names: Sequence[str], size: int = 65536) -> Iterator[RawTable]:
        """The named columns, ``size`` rows at a time and in order: float64 where the type says so,
        else as the cells are.
        """
        if size < 1 or not names:
            raise DeclarationError(
                f"batches of {size} rows and {len(names)} columns; expected at least 1 of each"
            )
        self.require(names)
        return self._read(tuple(dict.fromkeys(names)), size)

    def unsplit(self, names: Sequence[str]) -> str | None:
        """What to say where these columns stand in one name, because the header was split at
        another separator.

        Only then is the line known to be a header, and no row, and may be shown.
        """
        if self._header and len(self.columns) == 1:
            for mark, spelled in ((",", '","'), (";", '";"'), ("\t", r'"\t"')):
                if set(names) <= set(next(csv.reader([self.columns[0]], delimiter=mark), [])):
                    return f"the header was read as one column {self.columns[0]!r}; set separator = {spelled}"
        return None

    def require(self, names: Sequence[str]) -> None:
        """Refuse when one of these columns is not there exactly once."""
        for name in names:
            if name not in self.columns:
                if told := self.unsplit(names):
                    raise DataError(f"{self.name}: there is no column {name!r}; {told}")
                if self._header and not set(names) & set(
                    self.columns
                ):  # then that line is perhaps a row: do not show it
                    known = "nor is any other that was asked for; the first line must be a header with the names of the columns"
                else:
                    known = f"its columns are {', '.join(map(repr, self.columns))}"
                raise DataError(f"{self.name}: there is no column {name!r}; {known}")
            if self.columns.count(name) > 1:
                raise DataError(
                    f"{self.name}: column {name!r} is there more than once; give its columns "
                    f"different names"
                )


class Stamped(NamedTuple):
    """A file as it was found: its path, and by what it is known that it has not changed since."""

    path: Path
    size: int
    changed: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "Stamped | None":
        """The file as it is; None where there is none."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ino)


def source(
    data: Any,
    *,
    name: str | None = None,
    separator: Separator | None = None,
    names: Sequence[str] | None = None,
    memory: int | None = None,
) -> Source:
    r"""One's data as a :class:`Source`.

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
        return _file(Path(data), name or str(data), separator)
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


# ----------------------------------------------------------------------------------------------------
# arrays and frames


def need(module: str, what: str, install: str = "'dynadp[data]'") -> Any:
    """The module, or the sentence that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DeclarationError(
            f"{what} need {module.split('.')[0]}, which is not installed: pip install {install}"
        ) from error


def _cells(values: Any) -> NDArray[Any]:
    """Cells one by one, each as it is."""
    return np.fromiter(values, dtype=object, count=len(values))


def _mapping(data: Mapping[Any, Any], name: str) -> Source:
    by_name = {str(column): cells for column, cells in data.items()}

    def column(wanted: str) -> NDArray[Any]:
        cells: Any = by_name[wanted]
        if isinstance(cells, np.ma.MaskedArray):
            cells = [
                None if gone else cell
                for cell, gone in zip(cells.data, np.ma.getmaskarray(cells), strict=True)
            ]
        cells = _cells(cells) if isinstance(cells, list | tuple) else np.asarray(cells)
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
    try:
        frame = nw.from_native(data, eager_only=True)
    except Exception:
        frame = None
    if frame is None:
        raise DeclarationError(
            f"{name} is of type {type(data).__name__}; expected a path, a mapping from names to "
            f"columns, a NumPy matrix, or a "
            "pandas, Polars or PyArrow frame in memory whose columns have different names"
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
        for wanted in names:
            kind = columns[wanted].dtype
            if not (
                kind.is_numeric()
                or kind in (nw.String, nw.Boolean, nw.Categorical, nw.Enum, nw.Object)
            ):
                raise odd_type(name, wanted, kind)
        for start in range(0, len(frame), size):
            part = {wanted: columns[wanted][start : start + size] for wanted in names}
            yield {
                wanted: np.array(cells.cast(nw.Float64).to_numpy(), dtype=float)
                if real[wanted]
                else _cells(cells.to_list())
                for wanted, cells in part.items()
            }

    return Source(name, tuple(map(str, frame.columns)), read)


def odd_type(name: str, column: str, kind: Any) -> DataError:
    """What to say of a column whose cells are neither text nor numbers."""
    short = str(kind).split("(")[0]
    return DataError(
        f"{name}: column {column!r} is of type {short}; expected text, numbers or booleans: "
        f"convert it first"
    )


# ----------------------------------------------------------------------------------------------------------------
# files


def existing(path: Path) -> Path:
    """The whole path of a file that is there."""
    if not path.is_file():
        raise DatasetError(f"there is no file {path}; expected a file on this machine")
    return path.resolve()


def _file(path: Path, name: str, separator: Separator | None) -> Source:
    ending = (
        "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    )
    if ending not in (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet"):
        raise DeclarationError(
            f"{path}: expected a file that ends with .csv, .tsv, .csv.gz, .tsv.gz or .parquet"
        )
    path = existing(path)
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
    kinds = ", ".join(
        f"c{i}: 'VARCHAR'" for i in range(len(columns))
    )  # names of our own: a header's may be anything
    options = (
        f"auto_detect = false, header = true, columns = {{{kinds}}}, delim = '{mark}', quote = "
        f"'\"', escape = '\"', "
        f"compression = '{'gzip' if zipped else 'none'}', strict_mode = true, null_padding = "
        f"false, hive_partitioning = false, "
        "buffer_size = 8000000"
    )

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        cells = ", ".join(f"coalesce(c{columns.index(wanted)}, '')" for wanted in names)
        for rows in _query(
            path, name, f"SELECT {cells} FROM read_csv({_quoted(path)}, {options})", size
        ):
            yield {
                wanted: _cells(column)
                for wanted, column in zip(names, zip(*rows, strict=True), strict=True)
            }

    return Source(name, columns, read, True)


def _header(
    path: Path, name: str, separator: Separator | None, zipped: bool
) -> tuple[tuple[str, ...], str]:
    """Names of the columns and the separator, from the first line alone."""
    line = problem = ""
    names: list[str] = []
    opened: Any = gzip.open if zipped else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            line = file.readline(_HEADER)
            while line.count('"') % 2 and len(line) < _HEADER and (more := file.readline(_HEADER)):
                line += more  # a quoted name may hold line ends
            while zipped and file.buffer.read(
                1 << 20
            ):  # to its end, where length and checksum are: DuckDB does not look
                pass
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text; save it as UTF-8"
    except (OSError, EOFError, zlib.error):
        problem = "it cannot be read; it may be cut or damaged"
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
        problem = (
            problem
            or "the quotes of its first line do not match; expected a header with the names of "
            "the columns"
        )
    if problem or not names:
        raise DataError(
            f"{name}: {problem or 'the first line is empty; expected a header with the names of the columns'}"
        )
    return tuple(names), mark


def _parquet(path: Path, name: str) -> Source:
    # or folders named a=b would become columns
    table = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    described = [
        row for rows in _query(path, name, f"DESCRIBE SELECT * FROM {table}", 1000) for row in rows
    ]
    kinds = {str(row[0]): str(row[1]) for row in described}

    def read(names: tuple[str, ...], size: int) -> Iterator[RawTable]:
        cells = []
        for wanted in names:
            kind, quoted = kinds[wanted].split("(")[0], '"' + wanted.replace('"', '""') + '"'
            if kind not in (*_EXACT, "ENUM", "FLOAT", "DOUBLE", "DECIMAL") or kinds[
                wanted
            ].endswith("]"):
                raise odd_type(name, wanted, kinds[wanted])
            cells.append(
                quoted
                if kind in _EXACT
                else f"CAST({quoted} AS {'VARCHAR' if kind == 'ENUM' else 'DOUBLE'})"
            )
        for rows in _query(path, name, f"SELECT {', '.join(cells)} FROM {table}", size):
            yield {
                wanted: np.array(column, dtype=float)
                if cell.endswith("AS DOUBLE)")
                else _cells(column)
                for wanted, cell, column in zip(names, cells, zip(*rows, strict=True), strict=True)
            }

    return Source(name, tuple(kinds), read, parquet=Stamped.of(path))


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _query(path: Path, name: str, sql: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Rows of the answer as they are computed, from a DuckDB that may read this file and nothing
    else, and write nowhere.
    """
    duckdb = need("duckdb", "CSV and Parquet files")
    if any(mark in str(path) for mark in "*?["):
        raise DeclarationError(
            f"{name}: the path has a *, ? or [, which would stand for several files; rename it"
        )
    problem = ""
    try:
        with duckdb.connect(":memory:", config=_ALONE) as connection:
            connection.execute(f"SET allowed_paths = [{_quoted(path)}]")
            connection.execute("SET enable_progress_bar = false")  # it would draw on stdout
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            answer = connection.execute(sql)
            while rows := answer.fetchmany(size):
                yield rows
    except Exception as error:  # whatever it is, its text may quote a row
        problem = _told(str(error))
    if problem:  # raised here, so that the error behind it is not its context
        raise DataError(f"{name}{problem}")


def _told(complaint: str) -> str:
    """Where and why DuckDB stopped, without what it quotes."""
    head = complaint.split("Original Line")[0]  # a row comes after that
    place = re.search(
        r"CSV Error on Line: (\d+)\n", head
    )  # it counts rows with the header, not line ends
    where = f", row {int(place[1]) - 2}: " if place else ": "
    if place and "Expected Number of Columns" in complaint:
        return (
            where
            + "it has more or fewer cells than the header; is a separator inside a cell without "
            "quotes?"
        )
    if place and "utf-8" in complaint:
        return where + "it is not UTF-8 text; save the file as UTF-8"
    if place and "unterminated quote" in complaint:
        return (
            where + "the quotes do not match; expected a quote inside a quoted cell to be doubled"
        )
    if "state machine reached an invalid state" in complaint:
        return (
            where
            + "its lines do not all end alike, or its quotes do not match; save it with one kind "
            "of line end"
        )
    return (
        where
        + "the file cannot be read; it may be cut, damaged or of another format than its name says"
    )
