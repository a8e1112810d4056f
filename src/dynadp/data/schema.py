"""The public declarations that bound rows (paper, section 2; maths.md 1 and 11).

:class:`Schema` turns raw rows into vectors of norm at most 1, each row by itself: nothing is read
off the rows, so that replacing one row leaves every other vector as it was, to the last bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows, row_squares
from dynadp._cards import card, table
from dynadp._files import digest
from dynadp.data.coded import Coded, DictionaryColumn
from dynadp.data.columns import Column, ColumnKind, Declared, with_parts
from dynadp.data.declared import Block
from dynadp.data.labels import Answer, Label, Target
from dynadp.data.people import first_rows, person_codes
from dynadp.data.row_blocks import whole_features
from dynadp.data.shard import Shard, first_of, require_declared
from dynadp.data.values import absent, days_of, to_array
from dynadp.errors import CellError, DataError, DeclarationError

Table = Mapping[str, ArrayLike | DictionaryColumn]


class Schema(Declared):
    """x = v / max(norm, ||v||), v = (phi(raw) - centre, intercept): so ||x|| <= 1.

    Attributes
    ----------
    columns
        How each raw column becomes features; together they are phi.
    label
        The label column and its two values, or more; or a column of numbers with public bounds
        (:class:`~dynadp.data.labels.Target`), which files declare as ``target``.
    norm
        Public bound on ||v||, in units of the scaled columns. With ``clip`` longer rows are
        shortened to it, and with ``none`` they are refused; then all are divided by it. It has no
        say with ``unit``, nor where rows with a label are centred privately, because they are
        scaled to norm 1 there. Those with a target are shortened to it, or to a usual length where
        that is longer.
    intercept
        The constant appended to every row *before* scaling, so that it counts in the norm and is
        regularised like the rest; 0 for none.
    scaling
        ``clip``: v / max(norm, ||v||). ``unit``: v / ||v||, so that every row has norm 1; a private
        centring round of rows with a label makes it that. ``none``: v / norm, for features that the
        bound covers already; a :class:`Shard` refuses longer rows.
    centre
        A public vector subtracted from the features; rows are dense then.
    missing_values
        Texts that mean "missing" besides None and NaN.
    person
        The column that says whose row it is; never a feature. At most ``rows_per_person`` rows of
        each person stay at a node: the first ones in the order of the file, once rows are dropped
        that have missing cells. Which of her rows stay depends on her own rows alone. Ids are
        compared as :func:`~dynadp.data.people.first_rows` does. Rows without an id are left out.
    rows_per_person
        m, public. Without ``person`` it is a declared bound, which nothing can enforce.
    silos_per_person
        At how many nodes a person may have rows, public. In one file for all nodes the rows at her
        first s nodes stay. Elsewhere nothing can enforce it, because no node sees another's rows.
    adjacency
        ``replace``: a guarantee is about rows that are replaced by others, and the number of rows
        is public. ``add-remove``: about rows that are there or not. Their number stays secret, and
        a declared one stands for it: null rows fill up what is missing, and rows beyond are left
        out (maths.md 15).
    """

    columns: tuple[Column, ...]
    label: Answer
    norm: Annotated[float, Field(gt=0)] = 1.0
    intercept: Annotated[float, Field(ge=0)] = 1.0
    scaling: Literal["clip", "unit", "none"] = "clip"
    centre: tuple[float, ...] | None = None
    missing_values: tuple[str, ...] = ("",)
    person: str | None = None
    rows_per_person: Annotated[int, Field(ge=1)] = 1
    silos_per_person: Annotated[int, Field(ge=1)] = 1
    adjacency: Literal["replace", "add-remove"] = "replace"

    @field_validator("columns", mode="before")
    @classmethod
    def _parts_are_whole(cls, columns: Any) -> Any:
        return with_parts(columns)

    @field_validator("columns")
    @classmethod
    def _columns_differ(cls, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        names = [column.name for column in columns]
        if not names:
            raise ValueError("declare at least one column")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"columns {twice} are declared twice")
        return columns

    @model_validator(mode="after")
    def _consistent(self) -> "Schema":
        names = {column.name for column in self.columns}
        if self.label.name in names | set(self.raw_columns[:-1]):
            raise ValueError(
                f"the label {self.label.name!r} is declared as a column too; the model would read "
                f"its answer"
            )
        for column in self.columns:
            if column.name not in column.reads and column.name in self.raw_columns:
                raise ValueError(
                    f"{column.kind} {column.name!r} has the name of a column of the rows; give its "
                    f"features a name of their own"
                )
        if self.person is not None and self.person in self.raw_columns:
            raise ValueError(
                f"the person {self.person!r} is declared as a column or as the label too; the "
                f"model would read who somebody is: give the ids a column of their own"
            )
        if self.centre is not None and len(self.centre) != self.feature_count:
            raise ValueError(
                f"centre has {len(self.centre)} numbers; expected one for each of the "
                f"{self.feature_count} features (the intercept is not centred)"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _target_in_place_of_label(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "target" not in given:
            return given
        if "label" in given:
            raise ValueError(
                "label and target are both declared; a model answers one of them: leave out the "
                "other"
            )
        target = given["target"]
        if isinstance(target, Mapping):
            target = {"low": None, "high": None, **target}
        return {**{name: v for name, v in given.items() if name != "target"}, "label": target}

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what says nothing, so that schemas from before keep their digests."""
        told: dict[str, Any] = dump(self)
        if isinstance(self.label, Target):
            told["target"] = told.pop("label")
        for name in ("person", "rows_per_person", "silos_per_person", "adjacency"):
            if getattr(self, name) == type(self).model_fields[name].default:
                told.pop(name, None)
        return told

    def _repr_html_(self) -> str:
        """The card of a notebook."""
        rows = []
        for column in self.columns:
            said = column.model_dump(exclude={"kind", "name"}, exclude_defaults=True)
            words = ", ".join(f"{name} {_short(value)}" for name, value in said.items())
            rows.append((column.name, column.kind, words, len(column.features)))
        facts = {
            "answer": f"{self.label.name}: {self._answer_words}",
            "columns with the intercept": self.dimension,
            "longest row": f"{self.norm:g}",
            "whose rows": self.person,
            "rows are": "there or not" if self.hides_counts else "replaced",
        }
        names = ("column", "kind", "declared", "features")
        return card("Public declarations", facts, picture=table(names, rows))

    @property
    def _answer_words(self) -> str:
        """What may be answered."""
        if isinstance(self.label, Target):
            return f"{self.label.low:g} to {self.label.high:g}"
        return _short(list(map(str, self.label.classes)))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the d columns of a bounded row; the intercept is last."""
        names = [feature for column in self.columns for feature in column.features]
        return (*names, *(["(intercept)"] if self.intercept else []))

    @property
    def dimension(self) -> int:
        """d, with the intercept."""
        return len(self.features)

    @property
    def feature_count(self) -> int:
        """How many features a row has, without the intercept."""
        return self.dimension - bool(self.intercept)

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Names of the raw columns that a row is made of; the label is last."""
        return (*_read_by(self.columns), self.label.name)

    @property
    def number_columns(self) -> frozenset[str]:
        """Names of the raw columns that hold numbers for all that read them."""
        numbers = frozenset().union(*(column.numbers for column in self.columns))
        texts = {n for column in self.columns for n in column.reads if n not in column.numbers}
        return numbers - texts

    @property
    def dropping_columns(self) -> tuple[str, ...]:
        """Names of the raw columns of which a missing cell drops the row."""
        return tuple(dict.fromkeys(name for column in self.columns for name in column.drops))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Names of all raw columns that are read: with the person's, where there is one."""
        return (*self.raw_columns, *self.id_columns)

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The name of the person's column, where there is one."""
        return () if self.person is None else (self.person,)

    @property
    def hides_counts(self) -> bool:
        """Whether the number of a node's rows stays secret."""
        return self.adjacency == "add-remove"

    @property
    def offset(self) -> Array:
        """The public point from which features are summed up: 0 where the number of rows is public,
        otherwise amid the features, so that a row adds little.
        """
        if not self.hides_counts:
            return np.zeros(self.feature_count)
        return whole_features(np.concatenate([column.middle for column in self.columns]))

    @property
    def drops_rows(self) -> bool:
        """Whether the number of rows that stay depends on cells."""
        return self.person is not None or self.drops_missing

    @property
    def drops_missing(self) -> bool:
        """Whether a row with a missing cell may be dropped."""
        return bool(self.dropping_columns)

    @property
    def classes(self) -> int:
        """How many values the label has; 0 for a target."""
        return len(self.label.classes)

    def only_features(self) -> "Schema":
        """Return the schema whose rows are phi(raw): no intercept, norm, scaling or centre."""
        plain = {"norm": 1.0, "scaling": "none", "intercept": 0.0, "centre": None}
        return self.model_copy(update=plain)

    def limited(self) -> "Schema":
        """Return the schema for some of the rows that stay, chosen already."""
        if self.person is None and not self.hides_counts:
            return self
        return self.model_copy(update={"person": None, "adjacency": "replace"})

    def digest(self) -> str:
        """SHA-256 of the canonical form, by which nodes agree on a schema."""
        return digest(self.model_dump(mode="json"))

    def rows(self, table: Table) -> Rows:
        """Return the bounded rows, CSR, or dense when there is a centre. Rows to drop must have
        been dropped (:meth:`kept`).
        """
        columns = self._read(table)
        if self.centre is not None:
            return self._dense(columns, np.array(self.centre))
        gone = {name: self.absent(cells) for name, cells in columns.items()}
        blocks = [self._block(column, columns, gone) for column in self.columns]
        count = len(blocks[0][0])
        starts = np.cumsum([0, *(len(column.features) for column in self.columns)])
        index = np.hstack(
            [start + block for start, (block, _) in zip(starts[:-1], blocks, strict=True)]
        )
        values = np.hstack([block for _, block in blocks])
        if self.intercept:
            index = np.hstack([index, np.full((count, 1), starts[-1])])
            values = np.hstack([values, np.full((count, 1), self.intercept)])
        values = values * self._scale(values)
        sparse = csr_array(
            (values.ravel(), index.ravel(), np.arange(0, values.size + 1, values.shape[1])),
            shape=(count, self.dimension),
        )
        sparse.eliminate_zeros()
        return sparse

    def _dense(self, columns: Mapping[str, Coded], centre: Array) -> Array:
        """Return the bounded rows less the centre; of cells that repeat, features are made once."""
        dense, start = np.empty((len(next(iter(columns.values()))), self.dimension)), 0
        for column in self.columns:
            stop = start + len(column.features)
            own, (name, *others) = centre[start:stop], column.reads
            cells = columns[name]
            if isinstance(cells, DictionaryColumn) and not others:
                look = partial(self._one_less, column, name, own)
                what = f"rows {self.missing_values} {own.tobytes().hex()}"
                dense[:, start:stop] = cells.found(look, what, column)
            else:
                gone = {name: self.absent(columns[name]) for name in column.reads}
                dense[:, start:stop] = _less(self._block(column, columns, gone), own)
            start = stop
        if self.intercept:
            dense[:, -1] = self.intercept
        dense *= self._scale(dense)
        return dense

    def _one_less(self, column: ColumnKind, name: str, centre: Array, cells: NDArray[Any]) -> Array:
        """Return the features of a column that reads one, less the centre."""
        return _less(self._block(column, {name: cells}, {name: self._gone(cells)}), centre)

    def sums(self, table: Table) -> Array:
        """sum_i phi(raw_i), each feature rounded by :func:`whole_features` and made once of cells
        that repeat; rows that :meth:`rows` refuses are refused.
        """
        columns, found = self._read(table), []
        for column in self.columns:
            read, counts = {name: columns[name] for name in column.reads}, None
            name, *others = read
            cells = read[name]
            if isinstance(cells, DictionaryColumn) and not others:
                read[name], places = cells.distinct()
                counts = np.bincount(places, minlength=len(read[name]))
            gone = {name: self.absent(cells) for name, cells in read.items()}
            index, values = self._block(column, read, gone)
            values = whole_features(values)
            if counts is not None:
                values *= counts[:, None]
            found.append(np.bincount(index.ravel(), values.ravel(), len(column.features)))
        return np.concatenate(found)

    def _block(
        self,
        column: ColumnKind,
        columns: Mapping[str, Coded],
        gone: Mapping[str, NDArray[np.bool_]],
    ) -> Block:
        """Return the features of a column's cells; of codes, by those of the distinct cells."""
        for name, missing in column.reads.items():
            if missing in ("refuse", "drop") and gone[name].any():
                drops = missing == "drop"
                advice = "drop such rows first with kept()" if drops else "declare what to do"
                raise CellError(
                    f"column {name!r}",
                    int(np.argmax(gone[name])),
                    f"the value is missing and the schema says missing = {missing!r}; {advice}",
                )
        name, *others = column.reads
        cells = columns[name]
        if isinstance(cells, DictionaryColumn) and not others:
            found: Block = cells.found(
                lambda some: column.joined({name: (some, self._gone(some))}),
                f"features {self.missing_values}",
                column,
            )
            return found
        read = {name: (_plain(columns[name]), gone[name]) for name in column.reads}
        return column.joined(read)

    def kept(self, table: Table) -> NDArray[np.bool_]:
        """Return which rows stay: those without a missing cell in a column that drops them."""
        columns = self._read(table)
        keep = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for name in self.dropping_columns:
            keep &= ~self.absent(columns[name])
        return keep

    def used(self, table: Table) -> NDArray[np.bool_]:
        """Return which rows of a node's whole table are used: of those that stay (:meth:`kept`) the
        first m of each person, where the schema names a person's column.
        """
        keep = self.kept(table)
        if self.person is None:
            return keep
        ids = _plain(_cells(table, self.person))
        if len(ids) != len(keep):
            raise DataError(
                f"column {self.person!r} has {len(ids)} rows, {self.raw_columns[0]!r} has "
                f"{len(keep)}"
            )
        keep[keep] = first_rows(ids[keep], self.rows_per_person, self.missing_values)
        return keep

    def labels(self, table: Table) -> Array:
        """Return y of each row: -1 or +1, the number of its class from 0, or t of the target."""
        cells = _cells(table, self.label.name)
        if isinstance(cells, DictionaryColumn):
            return np.asarray(cells.found(self.label.read, "label", self.label))
        return self.label.read(cells)

    def require_two_values(self, what: str) -> Label:
        """Return the label; refuse one that has not two values, for ``what`` separates two."""
        if not isinstance(self.label, Label):
            has = "several values" if self.label.kind == "classes" else "numbers"
            raise DeclarationError(
                f"the label {self.label.name!r} has {has}, and {what} separates two values; "
                "declare a label with negative and positive"
            )
        return self.label

    def shard(self, table: Table, name: str = "node", rows: int | None = None) -> Shard:
        """Drop, limit, bound and validate one node's rows.

        Where their number stays secret, null rows fill up to ``rows``, the declared number, and
        rows beyond are left out.
        """
        columns = {**self._read(table), self.label.name: _cells(table, self.label.name)}
        keep = self.kept(columns) if self.person is None else self.used(table)
        null = None
        if self.hides_counts:
            null, rows = require_declared(rows, name), None
            keep = first_of(keep, null)
        labels = columns[self.label.name]
        if len(labels) != len(keep):
            raise DataError(
                f"node {name!r}: {len(keep)} rows but labels of shape ({len(labels)},); expected "
                f"one label a row"
            )
        kept = columns if keep.all() else {column: cells[keep] for column, cells in columns.items()}
        if null and not keep.any():
            return Shard.null(null, self.dimension, name, self.label.kind, self.classes)
        people = None
        if self.person is not None:
            people = person_codes(_plain(_cells(table, self.person))[keep], self.missing_values)
        with counted_among(np.flatnonzero(keep)):
            held = Shard.of(
                *(self.rows(kept), self.labels(kept)),
                name=name,
                classes=self.label.codes,
                rows=rows,
                people=people,
                copy=False,
            )
        return held.filled(null) if null else held

    def _read(self, table: Table) -> dict[str, Coded]:
        """Return the schema's columns as arrays of equal length."""
        cells = {name: _cells(table, name) for name in _read_by(self.columns)}
        first = self.raw_columns[0]
        for name, column in cells.items():
            if len(column) != len(cells[first]):
                raise DataError(
                    f"column {name!r} has {len(column)} rows, {first!r} has {len(cells[first])}"
                )
        return cells

    def _scale(self, values: Array) -> Array:
        if self.scaling == "none":
            return np.full((1, 1), 1 / self.norm)
        size = np.sqrt(row_squares(values))[:, None] / self.norm
        with np.errstate(divide="ignore"):
            scale = 1 / size if self.scaling == "unit" else 1 / np.maximum(size, 1.0)
        scale = np.where(size > 0, scale, 0.0)  # an all-zero row cannot be scaled and stays
        return np.asarray(scale / self.norm)

    def absent(self, cells: Coded) -> NDArray[np.bool_]:
        """Return which cells are missing: None, NaN, or a text that is declared to mean it."""
        if isinstance(cells, DictionaryColumn):
            return np.asarray(cells.found(self._gone, f"absent {self.missing_values}"))
        return self._gone(cells)

    def _gone(self, cells: NDArray[Any]) -> NDArray[np.bool_]:
        return absent(cells, self.missing_values)


def _short(value: Any) -> str:
    """A declaration for a card: of a long list its beginning."""
    if isinstance(value, list | tuple):
        shown = ", ".join(map(str, value[:4]))
        return shown if len(value) <= 4 else f"{shown}, ... ({len(value)})"
    return str(value)


def _read_by(columns: Iterable[ColumnKind]) -> tuple[str, ...]:
    """Return the names of the raw columns that these read, each once."""
    return tuple(dict.fromkeys(name for column in columns for name in column.reads))


@contextmanager
def counted_among(places: NDArray[np.int64]) -> Iterator[None]:
    """Let errors count rows as the caller does: row i of the block is row ``places[i]``."""
    try:
        yield
    except CellError as error:
        raise CellError(error.column, int(places[error.row]), error.reason) from None


def _less(block: Block, centre: Array) -> Array:
    """Write features down, less a centre."""
    index, values = block
    if index.shape[1] == len(centre) and (index == np.arange(len(centre))).all():
        return values - centre
    made = np.zeros((len(index), len(centre)))
    np.put_along_axis(made, index, values, axis=1)
    made -= centre
    return made


def _plain(cells: Coded) -> NDArray[Any]:
    return cells.plain if isinstance(cells, DictionaryColumn) else cells


def _cells(table: Table, name: str) -> Coded:
    """Return a column as an array; lists keep each cell as it is, so that a missing value among
    texts stays missing.
    """
    try:
        column = table[name]
    except KeyError:
        raise DataError(f"column {name!r} of the schema is not in the rows") from None
    if isinstance(column, DictionaryColumn):
        return column
    mixed = isinstance(column, list | tuple) and not all(
        type(cell) is type(column[0]) for cell in column
    )
    cells = to_array(column, dtype=object if mixed else None)
    if cells is None:
        raise DataError(
            f"column {name!r} holds lists of different length; expected one value a row"
        )
    first = column[0] if isinstance(column, list | tuple) and len(column) else None
    if cells.dtype.kind == "f" and isinstance(first, int):
        # whole numbers past 2^63 must not turn the others into floats
        cells = np.asarray(column, dtype=object)
    if cells.ndim != 1:
        raise DataError(f"column {name!r} has {cells.ndim} dimensions; expected one value a row")
    if cells.dtype.kind == "M":
        return days_of(cells)
    return cells.astype(int) if cells.dtype.kind == "b" else cells
