"""Raw rows with their public schema."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynadp._arrays import Array
from dynadp.data.schema import Schema
from dynadp.data.shard import Shard
from dynadp.data.sources import RawTable
from dynadp.errors import DeclarationError

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Raw rows with their public schema.

    Attributes
    ----------
    name
        ``adult`` or ``census``; every curve drawn from it carries this name.
    schema
        Public declarations for its columns.
    train, test
        Raw columns by name.
    node
        The node of each training row, where the data come with one.
    truth
        The coefficients that made the labels, where they are known: P(y = 1 | x) = sigmoid(truth .
        phi(raw)), with phi the schema's features before scaling, the intercept last. Of several
        classes one vector for each, and P(j | x) = softmax(truth phi(raw))_j.
    """

    name: str
    schema: Schema
    train: RawTable = field(repr=False)
    test: RawTable = field(repr=False)
    node: Indices | None = field(default=None, repr=False)
    truth: Array | None = field(default=None, repr=False)

    def shards(
        self, parts: Sequence[ArrayLike] | None = None, names: Sequence[str] | None = None
    ) -> list[Shard]:
        """Return one shard for each part (row positions); by default one for each node that the
        rows came with.
        """
        parts = self._parts() if parts is None else parts
        names = names or [str(p) for p in range(len(parts))]
        return [self.schema.shard(table, name) for name, table in self._named(parts, names)]

    def tables(self, names: Sequence[str]) -> dict[str, RawTable]:
        """Return each node's raw training rows, for nodes of these names in the rows' order."""
        return dict(self._named(self._parts(), names))

    def _parts(self) -> list[Indices]:
        """Row positions of each node that the rows came with."""
        if self.node is None:
            raise DeclarationError(
                f"{self.name} does not say which node holds which row; give parts, see partition()"
            )
        return [np.flatnonzero(self.node == p) for p in range(int(self.node.max()) + 1)]

    def _named(
        self, parts: Sequence[ArrayLike], names: Sequence[str]
    ) -> list[tuple[str, RawTable]]:
        if len(names) != len(parts):
            raise DeclarationError(f"{len(names)} names for {len(parts)} parts; expected one each")
        return [
            (name, {column: cells[np.asarray(part)] for column, cells in self.train.items()})
            for name, part in zip(names, parts, strict=True)
        ]
