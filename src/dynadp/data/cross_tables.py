"""The pairs of crosses of a streamed file, looked up by the codes of both columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array

from dynadp._arrays import Array, Rows
from dynadp.data.cell_tables import CellTable, refused
from dynadp.data.coded import DictionaryColumn
from dynadp.data.crosses import Cross, Crossed
from dynadp.data.row_blocks import Features
from dynadp.data.schema import Schema
from dynadp.data.streaming import CodedColumn, CodedTable


class CrossTables:
    """What the crosses of a schema need to know about cells, kept from block to block.

    Parameters
    ----------
    schema
        Public declarations for the columns.
    where
        Where the features of each column stand.
    centre
        The schema's.
    """

    def __init__(self, schema: Schema, where: Mapping[str, slice], centre: Array | None) -> None:
        self._schema, self._where, self._centre = schema, where, centre
        self._pairs: dict[str, CellTable] = {}  # of each cross
        # distinct cells of each part, their positions, and which of them the slow path must see
        self._placed: dict[tuple[str, str], tuple[Any, NDArray[np.int64], NDArray[np.bool_]]] = {}

    def looked_up(self, column: Cross, part: CodedTable) -> tuple[CellTable, NDArray[Any]] | None:
        """Return the table of a cross's pairs, the last of which is none, and each row's pair; None
        where the slow path has to look at the cells.
        """
        first, second = (self._positions(column, one, part[one.name]) for one in column.parts)
        if first is None or second is None:
            return None
        pairs, width = column.pairs(first, second), len(column.features)
        if column.name not in self._pairs:
            features: Rows = csr_array(column.weight * eye_array(width + 1, width, format="csr"))
            if self._centre is not None:
                features = features.toarray() - self._centre[self._where[column.name]]
            none, cells = np.zeros(width + 1, dtype=bool), np.arange(width + 1)
            made = Features(features, self._where[column.name])
            self._pairs[column.name] = CellTable(column.name, cells, none, none, made)
        return self._pairs[column.name], np.where(pairs < 0, width, pairs)

    def _positions(
        self, column: Cross, one: Crossed, cells: CodedColumn
    ) -> NDArray[np.int64] | None:
        """Return each row's position in a part; None where the slow path has to look."""
        needed, absent_ones = one.missing in ("refuse", "drop"), self._schema.absent
        if not isinstance(cells, DictionaryColumn):
            absent = np.isnan(cells)
            if (needed and absent.any()) or not np.isfinite(cells[~absent]).all():
                return None
            return one.positions(cells, absent)
        known = self._placed.get((column.name, one.name))
        if known is None or known[0] is not cells.cells:
            absent = absent_ones(cells.cells)
            bad = absent.copy() if needed else np.zeros(len(absent), dtype=bool)
            bad[~bad] = refused(
                lambda some: one.positions(some, absent_ones(some)), cells.cells[~bad]
            )
            places = np.full(len(absent), -1, dtype=np.int64)
            places[~bad] = one.positions(cells.cells[~bad], absent[~bad])
            known = self._placed[column.name, one.name] = cells.cells, places, bad
        if known[2].any() and known[2][cells.codes].any():
            return None
        found: NDArray[np.int64] = known[1][cells.codes]
        return found
