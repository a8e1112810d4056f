"""Public rows of a run's sizes and width, to try the run on: declared public, or census rows made
here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array, Rows
from dynadp.data import (
    Categorical,
    Classes,
    Column,
    Numeric,
    RawTable,
    Schema,
    Target,
    census,
    source,
)
from dynadp.errors import ConfigError

MOST_ROWS = 60_000  # over all nodes; larger runs are tried on fewer rows, and the source says so
TEST_ROWS = 20_000  # held-out census rows: they cost nothing, and few of them would blur accuracy
FEWEST = 20  # declared public rows
PADDING = "padding"  # a column of census rows that is 0 in all features


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Public rows that answers are checked on.

    Attributes
    ----------
    X
        Bounded rows.
    y
        Whether their label is the positive one; of several classes its number from 0, of a target
        the number itself, clipped to the target's bounds.
    label
        What is answered; None for two values.
    """

    X: Rows = field(repr=False)
    y: NDArray[Any] = field(repr=False)
    label: Classes | Target | None = None

    @classmethod
    def of(cls, schema: Schema, table: Mapping[str, Any]) -> "HeldOut":
        """Bound raw rows."""
        X, y, label = schema.rows(table), schema.labels(table), schema.label
        if isinstance(label, Target):
            return cls(X, label.within(y), label)
        if isinstance(label, Classes):
            return cls(X, y.astype(np.int64), label)
        return cls(X, y > 0)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def positive(self) -> NDArray[np.bool_]:
        """Y, of two values."""
        assert self.label is None
        return self.y

    def scores(self, v: Array) -> Array:
        """Scores of one model: n; n x classes of several, whose vectors follow each other."""
        if isinstance(self.label, Classes):
            return np.asarray(self.X @ v.reshape(len(self.label.values), -1).T)
        return np.asarray(self.X @ v)

    def error(self, V: Array) -> Array:
        """Share of wrong answers of each vector: ... x d vectors give ... numbers."""
        if V.ndim > 2:
            return np.stack([self.error(vectors) for vectors in V])
        return np.asarray(np.mean(self.wrong(V), axis=1))

    def wrong(self, V: Array) -> NDArray[np.bool_]:
        """Which answers of each vector are wrong: K x d vectors give K x n."""
        if isinstance(self.label, Classes):
            return np.array([self.scores(v).argmax(axis=1) != self.y for v in V])
        return np.asarray((self.X @ V.T > 0) != self.positive[:, None]).T

    @property
    def majority_error(self) -> float:
        """Share of wrong answers of always giving the most common answer."""
        counts = np.bincount(self.y.astype(np.int64), minlength=2)
        return 1 - float(counts.max()) / len(self)


@dataclass(frozen=True)
class PublicRows:
    """Public rows to try a run on.

    Attributes
    ----------
    schema
        How raw rows become bounded rows.
    tables
        Raw rows of each node.
    test
        Raw rows that accuracy is measured on.
    source
        Where they come from, in words.
    pool
        How many rows the nodes' rows were drawn from with replacement; None where all differ.
    origin
        The node that each test row is of, where public rows name their nodes; otherwise None.
    """

    schema: Schema = field(repr=False)
    tables: Mapping[str, RawTable] = field(repr=False)
    test: RawTable = field(repr=False)
    source: str
    pool: int | None = None
    origin: NDArray[np.str_] | None = field(default=None, repr=False)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each node."""
        return tuple(map(_length, self.tables.values()))

    @cached_property
    def held_out(self) -> HeldOut:
        """The test rows, bounded without a centre."""
        return HeldOut.of(self.schema, self.test)


def draw_public_rows(
    nodes: Sequence[str],
    counts: Sequence[int],
    features: int,
    intercept: bool,
    declared: tuple[Path, Schema, Any] | None = None,
    seed: int = 0,
    node_column: str | None = None,
    classes: int = 2,
) -> PublicRows:
    """Public rows of the nodes' sizes, in the run's dimension.

    Parameters
    ----------
    nodes, counts
        The nodes, and how many rows the run has at each; MOST_ROWS in all at most.
    features, intercept
        How many features the run has, and whether it has an intercept besides.
    declared
        A file that its owner declares public, with its schema and separator: half of it is drawn
        with replacement. None: census rows, cut or padded to the run's width.
    seed
        Of the rows.
    node_column
        The column of the declared file that names each row's node: every node's rows are then drawn
        from its own. Without it, or where the file does not have it, from all.
    classes
        Of census rows: how many values the label has; 0 for a target.
    """
    scale = min(1.0, MOST_ROWS / sum(counts))
    sizes = [max(1, int(count * scale)) for count in counts]
    fewer = ""
    if scale < 1:
        fewer = (
            f"; {sum(sizes):,} rows instead of {sum(counts):,}, so the run itself should do better"
        )
    rng, pool, origin = np.random.default_rng([seed, 0xE8]), None, None
    if declared is None:
        of = {"classes": classes} if classes else {"target": True}
        made = census(sum(sizes), seed=seed, nodes=1, test_rows=TEST_ROWS, **of)
        table, test = _padded(made.train), _padded(made.test)
        parts = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
        schema, words = (
            of_width(made.schema, features, intercept),
            "census rows made here (synthetic)",
        )
        if schema.dimension != made.schema.dimension:
            how = "cut" if schema.dimension < made.schema.dimension else "padded"
            words += f", {how} to the run's {schema.dimension} columns"
    else:
        path, schema, separator = declared
        by = node_column if node_column in source(path, separator=separator).columns else None
        table = _first_rows(path, schema, separator, by)
        order = rng.permutation(_length(table))
        if len(order) < FEWEST:
            raise ConfigError(
                f"{path} has {len(order)} rows; a sweep needs at least {FEWEST}, half to train "
                f"on, half to measure accuracy on"
            )
        whose = None if by is None else table.pop(by).astype(str)
        own = dict.fromkeys(nodes, order)
        if whose is not None:
            own = {p: order[whose[order] == p] for p in nodes}
            least = min(own, key=lambda p: len(own[p]))
            if len(own[least]) < FEWEST:
                raise ConfigError(
                    f"{path} has {len(own[least])} rows of node {least!r} in its column {by!r}; "
                    f"expected at least {FEWEST} of each node, or a file without that column, "
                    "whose rows are split at random"
                )
        halves = {p: np.split(those, [len(those) // 2]) for p, those in own.items()}
        parts = [
            halves[p][0][rng.integers(len(halves[p][0]), size=size)]
            for p, size in zip(nodes, sizes, strict=True)
        ]
        train, rest = halves[nodes[0]]
        if whose is not None:
            train, rest = (np.concatenate([half[i] for half in halves.values()]) for i in (0, 1))
            origin = whose[rest]
        pool = len(train)
        test = _take(table, rest)
        words = (
            f"{path.name}, which the run file declares public: half of it drawn with replacement, "
            f"accuracy measured on the other half"
        )
    tables = {p: _take(table, part) for p, part in zip(nodes, parts, strict=True)}
    return PublicRows(schema, tables, test, words + fewer, pool, origin)


def of_width(schema: Schema, features: int, intercept: bool) -> Schema:
    """Cut the schema to its first features, or pad it with features that are 0 in all rows.

    Parameters
    ----------
    schema
        Of census rows.
    features, intercept
        How many features the run has, and whether it has an intercept besides.
    """
    kept: list[Column] = []
    left = features
    for column in schema.columns:
        if left <= 0:
            break
        if left < len(column.features):
            name = "encode" if isinstance(column, Numeric) else "values"
            column = column.model_copy(update={name: getattr(column, name)[:left]})
        kept.append(column)
        left -= len(column.features)
    if left > 0:
        kept.append(Categorical(name=PADDING, values=tuple(f"{PADDING} {i}" for i in range(left))))
    return schema.model_copy(
        update={"columns": tuple(kept), "intercept": schema.intercept if intercept else 0.0}
    )


def _first_rows(path: Path, schema: Schema, separator: Any, by: str | None) -> RawTable:
    """The first MOST_ROWS rows of a public file, without those that the schema drops; with the
    column that names their nodes.
    """
    names, batches, total = [*schema.raw_columns, *([by] if by else [])], [], 0
    for batch in source(path, separator=separator).batches(names):
        batches.append(_take(batch, schema.kept(batch)))
        total += _length(batches[-1])
        if total >= MOST_ROWS:
            break
    return {name: np.concatenate([batch[name] for batch in batches])[:MOST_ROWS] for name in names}


def _take(table: Mapping[str, Any], pick: Any) -> RawTable:
    return {name: cells[pick] for name, cells in table.items()}


def _padded(table: RawTable) -> RawTable:
    """Add a column that holds no listed value."""
    return table | {PADDING: np.full(_length(table), "none")}


def _length(table: Mapping[str, Any]) -> int:
    return len(next(iter(table.values())))
