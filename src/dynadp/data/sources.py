"""Columns of cells that can be read in batches, as often as wanted: the base of all readers."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynadp.data.coded import CodedRows, DictionaryColumn, coded
from dynadp.errors import DataError, DeclarationError, DynadpError

RawTable = dict[str, NDArray[Any]]


class Stamp(NamedTuple):
    """A file as it was found: its path, and numbers that change when the file does."""

    path: Path
    size: int
    changed: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "Stamp | None":
        """Return the file's stamp; None where there is no file."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(path, found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass(frozen=True, eq=False)
class Source:
    """Columns of cells, read in batches as often as wanted.

    :func:`~dynadp.data.readers.source` makes one.

    Attributes
    ----------
    name
        For messages: the file's path, or the name that the caller gave.
    columns
        Names of the columns, in order.
    stamp
        The file as it was found; None for rows in memory.
    parquet
        Whether the file is a Parquet file, which can be streamed.
    memory
        Bytes that rows may take at a node; a node that needs more is streamed. None for no limit.
    """

    name: str
    columns: tuple[str, ...]
    _read: Callable[[tuple[str, ...], int], Iterator[RawTable]] = field(repr=False)
    # names were read off a first line, which may in truth be a row
    _header: bool = field(default=False, repr=False)
    stamp: Stamp | None = field(default=None, repr=False)
    parquet: bool = False
    memory: int | None = None
    # the same with texts as codes, where a reader has them so
    _coded: Callable[[tuple[str, ...], int], Iterator[CodedRows]] | None = field(
        default=None, repr=False
    )
    # what was found out about the rows and later passes need again
    notes: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def streamed(self) -> bool:
        """Whether passes over the rows are streamed: a Parquet file with a limit on memory."""
        return self.parquet and self.memory is not None

    @property
    def compact(self) -> bool:
        """Whether a reader of a large file has its texts as codes."""
        return self._coded is not None

    def batches(self, names: Sequence[str], size: int = 65536) -> Iterator[RawTable]:
        """Yield the named columns, ``size`` rows at a time and in order: float64 where the type
        says so, else each cell as it is.
        """
        self._require_batches(names, size)
        return self._read(tuple(dict.fromkeys(names)), size)

    def _require_batches(self, names: Sequence[str], size: int) -> None:
        if size < 1 or not names:
            raise DeclarationError(
                f"batches of {size} rows and {len(names)} columns; expected at least 1 of each"
            )
        self.require(names)

    def coded_batches(
        self, names: Sequence[str], size: int = 65536, plain: Sequence[str] = ()
    ) -> Iterator[CodedRows]:
        """Yield the same cells, texts as codes of distinct cells where they repeat, but for the
        columns ``plain``.
        """
        if self._coded is None:
            batches: Iterator[CodedRows] = self.batches(names, size)
        else:
            self._require_batches(names, size)
            batches = self._coded(tuple(dict.fromkeys(names)), size)
        for batch in batches:
            yield {
                name: (cells.plain if isinstance(cells, DictionaryColumn) else cells)
                if name in plain
                else (cells if isinstance(cells, DictionaryColumn) else coded(cells))
                for name, cells in batch.items()
            }

    def unsplit(self, names: Sequence[str]) -> str | None:
        """Return the advice for a header that was split at the wrong separator, or None.

        Only where all these columns stand in one name is the line known to be a header and no row,
        so that it may be shown.
        """
        if self._header and len(self.columns) == 1:
            (only,) = self.columns
            for mark, quoted in ((",", '","'), (";", '";"'), ("\t", r'"\t"')):
                if set(names) <= set(next(csv.reader([only], delimiter=mark), [])):
                    return f"the header was read as one column {only!r}; set separator = {quoted}"
        return None

    def require(self, names: Sequence[str]) -> None:
        """Refuse when one of these columns is not there exactly once."""
        for name in names:
            if name not in self.columns:
                advice = self.unsplit(names)
                if advice is None and self._header and not set(names) & set(self.columns):
                    advice = (  # that line is perhaps a row, so it is not shown
                        "nor is any other that was asked for; the first line must be a header with "
                        "the names of the columns"
                    )
                known = f"its columns are {', '.join(map(repr, self.columns))}"
                raise DataError(f"{self.name}: there is no column {name!r}; {advice or known}")
            if self.columns.count(name) > 1:
                raise DataError(
                    f"{self.name}: column {name!r} is there more than once; give its columns "
                    f"different names"
                )

    def require_unchanged(self) -> None:
        """Refuse a file that is not the one any more that it was when the source was made."""
        if self.stamp is not None and Stamp.of(self.stamp.path) != self.stamp:
            raise DataError(
                f"{self.name} is not the file any more that it was when the run began; a run reads "
                "its rows again and again: begin anew, and leave the file alone until the run is "
                "over"
            )


@contextmanager
def foreign_errors() -> Iterator[list[str]]:
    """Drop an exception of another library, whose text may quote a cell.

    Its text is appended to the list, for the caller to raise an error of its own after the block:
    there the dropped exception is not the context of the new one.
    """
    texts: list[str] = []
    try:
        yield texts
    except DynadpError:
        raise
    except Exception as error:
        texts.append(str(error))


def need(module: str, what: str, install: str = "'dynadp[data]'") -> Any:
    """Import the module, or raise an error that names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DeclarationError(
            f"{what} need {module.split('.')[0]}, which is not installed: pip install {install}"
        ) from error


def whole_cells(values: Any) -> NDArray[Any]:
    """Return an array that keeps each cell as it is."""
    return np.fromiter(values, dtype=object, count=len(values))


def odd_type(name: str, column: str, kind: Any) -> DataError:
    """Return the error for a column whose cells are neither text nor numbers."""
    short = str(kind).split("(")[0]
    return DataError(
        f"{name}: column {column!r} is of type {short}; expected text, numbers or booleans: "
        f"convert it first"
    )
