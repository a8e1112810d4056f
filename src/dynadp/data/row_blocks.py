"""Products with blocks of bounded rows a_i = y_i s_i (phi(raw_i) - centre, intercept) that are
never written down.

A column of codes adds R_c[code] to a row's features, R_c the features of its distinct cells. So a
product with f looks up R_c f_c, and one with weights on the rows sums these by code and multiplies
by R_c: no one-hot row is made. Columns with few cells are looked up together, by a joint code.

Rounding. With s_i and R_c as they are stored, a margin is a sum of products of the row's entries
with f. A product with R_c is summed in spans of s columns, and so are the looked-up values of at
most s columns at a time, so that a path meets at most 2 s + ceil(d/s) + 8 roundings, or d + 2 in
any order (:func:`dynadp._arrays.dot_roundings`). A sum over rows meets at most B_p additions in
some order and seven roundings more: what :func:`dynadp.problem.certificate.rounding_error` allows.
A centre is subtracted inside R_c, so nothing cancels that would not in the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows, column_spans

FEATURE_STEP = 2.0**-20  # features are summed in whole numbers of these: exactly, in any order


def whole_features(features: Array) -> Array:
    """Round features to multiples of ``FEATURE_STEP``."""
    return np.rint(features / FEATURE_STEP) * FEATURE_STEP


class Block(Protocol):
    """Some of a node's rows, in order: an n x d matrix A, signed where y is a sign."""

    @property
    def answers(self) -> Array | None:
        """y of each row, where the rows are not multiplied by it."""

    @property
    def rows(self) -> int:
        """How many."""

    @property
    def signs(self) -> Array:
        """y_i of each row that is multiplied by it; 0 of a null row."""

    def margins(self, F: Array) -> Array:
        """F A^T: K x n, for K x d vectors."""

    def adjoint(self, S: Array) -> Array:
        """S A: K x d, for K x n weights."""

    def squared_adjoint(self, s: Array) -> Array:
        """(A o A)^T s: d."""

    def some(self, rows: slice) -> "Block":
        """Some of the rows."""

    def dense(self) -> Array:
        """A^T, written down: d x n."""


class StoredBlock:
    """Rows that are written down: where a column's features are too many to look up."""

    def __init__(
        self, signed: Rows, answers: Array | None = None, signs: Array | None = None
    ) -> None:
        self.signed, self.answers = signed, answers
        self.signs = np.zeros(signed.shape[0]) if signs is None else signs

    @property
    def rows(self) -> int:
        """How many."""
        return int(self.signed.shape[0])

    def margins(self, F: Array) -> Array:
        """F A^T."""
        return _product(self.signed, F, F.shape[1])

    def adjoint(self, S: Array) -> Array:
        """S A."""
        return np.asarray(self.signed.T @ S.T).T

    def squared_adjoint(self, s: Array) -> Array:
        """(A o A)^T s."""
        return np.asarray((self.signed * self.signed).T @ s)

    def some(self, rows: slice) -> "StoredBlock":
        """Some of the rows."""
        return StoredBlock(self.signed[rows], _some(self.answers, rows), self.signs[rows])

    def dense(self) -> Array:
        """A^T."""
        return _dense(self.signed).T.copy()


class Features(NamedTuple):
    """R_c of a column of codes, one row for each distinct cell, and where its columns stand among
    the d.
    """

    rows: Rows
    where: slice


class Group:
    """Columns that are looked up together: the joint code of (k_1, k_2, ...) is (k_1 n_2 + k_2) n_3
    + ...

    Parameters
    ----------
    columns
        R_c of each.
    grain
        Squared norms of features are rounded up to multiples of it, so that their sums are exact:
        which columns are looked up together depends on the cells of all rows, and may not change
        how a row is scaled.
    """

    def __init__(self, columns: Sequence[Features], grain: float) -> None:
        self.columns, self.grain = columns, grain
        self.shape = tuple(column.rows.shape[0] for column in columns)
        self.size = int(np.prod(self.shape))
        squares = [np.asarray(csr_array(c.rows * c.rows).sum(axis=1)).ravel() for c in columns]
        self.squares = self._outer([np.ceil(each / grain)[None] * grain for each in squares])[0]

    @cached_property
    def whole(self) -> "Group":
        """The same columns with features rounded by :func:`whole_features`."""
        return Group([Features(_whole(rows), where) for rows, where in self.columns], self.grain)

    def joint(self, codes: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
        """The joint codes of rows with these codes in each column."""
        if len(codes) == 1:
            return codes[0].astype(np.intp)
        found = codes[0].astype(np.int32)
        for more, size in zip(codes[1:], self.shape[1:], strict=True):
            found *= size
            found += more
        return found.astype(np.intp)

    def table(self, F: Array) -> Array:
        """sum_c R_c f_c of every joint code: K x size."""
        return self._outer(
            [_product(rows, F[:, where], F.shape[1]) for rows, where in self.columns]
        )

    def spread(self, W: Array, out: Array, squared: bool) -> None:
        """Write W^T R_c, or W^T (R_c o R_c), into the features of every column, W the weights by
        joint code: K x size.
        """
        for (rows, where), size in zip(self.columns, self.shape, strict=True):
            here = W.reshape(len(W), size, -1)
            out[:, where] = here.sum(axis=2) @ (rows * rows if squared else rows)
            W = here.sum(axis=1)

    def write(self, codes: NDArray[np.intp], out: Array) -> None:
        """Write the features of rows with these joint codes: d x n."""
        for (rows, where), mine in zip(
            self.columns, np.unravel_index(codes, self.shape), strict=True
        ):
            if isinstance(rows, csr_array):
                out[where] = rows[mine].toarray().T
            else:
                np.take(
                    rows.T, mine, axis=1, out=out[where], mode="clip"
                )  # all are inside: no buffer is needed

    def _outer(self, tables: list[Array]) -> Array:
        """Sums of one entry of each table, for all choices: K x size."""
        found = tables[0]
        for more in tables[1:]:
            found = (found[:, :, None] + more[:, None, :]).reshape(len(found), -1)
        return found


@dataclass(frozen=True)
class CodedBlock:
    """y_i s_i (numbers_i, R_c[code_ic] for every coded column c, intercept).

    Attributes
    ----------
    scale
        y_i s_i; s_i where y is no sign.
    numbers
        Features of the columns that hold numbers, m x n, less their centre.
    places
        Where these m stand among the d.
    coded
        The other columns in groups, each with its joint codes.
    intercept
        The constant last feature; 0 for none.
    dimension
        d.
    answers
        y_i, where it is no sign.
    """

    scale: Array = field(repr=False)
    numbers: Array = field(repr=False)
    places: NDArray[np.int64] = field(repr=False)
    coded: Sequence[tuple[Group, NDArray[np.intp]]] = field(repr=False)
    intercept: float
    dimension: int
    answers: Array | None = field(default=None, repr=False)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.scale)

    @property
    def signs(self) -> Array:
        """y_i: scales are above 0."""
        return np.sign(self.scale)

    def margins(self, F: Array) -> Array:
        """F A^T."""
        Z = _product(self.numbers.T, F[:, self.places], self.dimension)
        for groups in self._in_spans():
            part = Z if len(groups) == len(self.coded) else np.zeros_like(Z)
            for group, codes in groups:
                for z, table in zip(part, group.table(F), strict=True):
                    z += table[codes]
            if part is not Z:
                Z += part
        if self.intercept:
            Z += self.intercept * F[:, -1:]
        Z *= self.scale
        return Z

    def _in_spans(self) -> list[list[tuple[Group, NDArray[np.intp]]]]:
        """The groups, so many at a time that their columns fill no more than a span."""
        most, filled = column_spans(self.dimension)[0].stop, 0
        found: list[list[tuple[Group, NDArray[np.intp]]]] = [[]]
        for group, codes in self.coded:
            if filled and filled + len(group.columns) > most:
                found.append([])
                filled = 0
            found[-1].append((group, codes))
            filled += len(group.columns)
        return found

    def adjoint(self, S: Array) -> Array:
        """S A."""
        return self._summed(S * self.scale, squared=False)

    def squared_adjoint(self, s: Array) -> Array:
        """(A o A)^T s."""
        return np.asarray(self._summed((s * self.scale * self.scale)[None], squared=True)[0])

    def feature_sums(self) -> Array:
        """sum_i phi(raw_i), each feature rounded by :func:`whole_features`: d."""
        whole = replace(
            self,
            scale=np.ones(self.rows),
            numbers=whole_features(self.numbers),
            coded=[(group.whole, codes) for group, codes in self.coded],
        )
        return np.asarray(whole.adjoint(np.ones((1, self.rows)))[0])

    def some(self, rows: slice) -> "CodedBlock":
        """Some of the rows."""
        coded = [(group, codes[rows]) for group, codes in self.coded]
        return replace(
            self,
            scale=self.scale[rows],
            numbers=self.numbers[:, rows],
            coded=coded,
            answers=_some(self.answers, rows),
        )

    def dense(self) -> Array:
        """A^T."""
        out = np.empty((self.dimension, self.rows))
        out[self.places] = self.numbers
        for group, codes in self.coded:
            group.write(codes, out)
        if self.intercept:
            out[-1] = self.intercept
        out *= self.scale
        return out

    def _summed(self, S: Array, squared: bool) -> Array:
        out = np.zeros((len(S), self.dimension))
        out[:, self.places] = S @ (self.numbers * self.numbers if squared else self.numbers).T
        for group, codes in self.coded:
            group.spread(
                np.array([np.bincount(codes, weights, group.size) for weights in S]), out, squared
            )
        if self.intercept:
            out[:, -1] = self.intercept ** (2 if squared else 1) * S.sum(axis=1)
        return out


def _some(answers: Array | None, rows: slice) -> Array | None:
    return None if answers is None else answers[rows]


def _whole(rows: Rows) -> Rows:
    if not isinstance(rows, csr_array):
        return whole_features(rows)
    return csr_array((whole_features(rows.data), rows.indices, rows.indptr), rows.shape)


def _product(rows: Rows, F: Array, dimension: int) -> Array:
    """F A^T, K x n, of some of the columns, summed in the spans of all."""
    spans = column_spans(dimension, F.shape[1])
    if len(spans) == 1:
        return np.asarray(rows @ F.T).T
    return np.asarray(sum(rows[:, span] @ F[:, span].T for span in spans)).T


def _dense(rows: Rows) -> Array:
    return rows.toarray() if isinstance(rows, csr_array) else np.asarray(rows)
