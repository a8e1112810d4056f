"""The rows of one fit, with what belongs to each of them: its class, its node, its person."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse, vstack

from dynadp.data import first_rows_at_nodes


@dataclass(frozen=True)
class FitRows:
    """Rows in the order in which they were given.

    Attributes
    ----------
    X
        A matrix, dense or CSR, or a table of raw columns.
    codes, owner
        The position of each row's class and of its node.
    people
        A number for each row's person, where it is known whose row it is; -1 for null rows.
    """

    X: Any = field(repr=False)
    codes: NDArray[np.intp] = field(repr=False)
    owner: NDArray[np.intp] = field(repr=False)
    people: NDArray[np.int64] | None = field(default=None, repr=False)

    def some(self, keep: NDArray[np.bool_]) -> "FitRows":
        """Return some of the rows."""
        X = take_rows(self.X, keep) if isinstance(self.X, Mapping) else self.X[keep]
        people = None if self.people is None else self.people[keep]
        return FitRows(X, self.codes[keep], self.owner[keep], people)

    def limited(self, rows: int, silos: int) -> "FitRows":
        """Return the first rows of each person at a node, at the first of her nodes."""
        assert self.people is not None
        return self.some(first_rows_at_nodes(self.people, self.owner, rows, silos))

    def first_at_nodes(self, counts: NDArray[np.intp]) -> "FitRows":
        """Return the first rows of each node, as many as it declared."""
        keep = np.zeros(len(self.owner), dtype=bool)
        for p, most in enumerate(counts):
            keep[np.flatnonzero(self.owner == p)[:most]] = True
        return self.some(keep)

    def bounded(self, X: Any) -> "FitRows":
        """Return the same rows after they were bounded."""
        return replace(self, X=X)

    def filled(self, counts: NDArray[np.intp]) -> "FitRows":
        """Return bounded rows with null rows at the end, so that each node has as many as it
        declared (:meth:`~dynadp.data.shard.Shard.filled`).
        """
        X, people = self.X, self.people
        missing = counts - np.bincount(self.owner, minlength=len(counts))
        more = np.repeat(np.arange(len(counts)), missing)
        shape = (len(more), X.shape[1])
        X = vstack([X, csr_array(shape)], "csr") if issparse(X) else np.vstack([X, np.zeros(shape)])
        codes = np.concatenate([self.codes, np.zeros(len(more), dtype=self.codes.dtype)])
        if people is not None:
            people = np.concatenate([people, np.full(len(more), -1)])
        return FitRows(X, codes, np.concatenate([self.owner, more]), people)


def take_rows(table: Mapping[str, Any], which: NDArray[np.bool_]) -> dict[str, Any]:
    """Return these rows of every column; lists stay lists, so that a missing cell among texts
    stays missing.
    """
    where = np.flatnonzero(which)
    return {
        name: [c[i] for i in where] if isinstance(c, list | tuple) else np.asarray(c)[where]
        for name, c in table.items()
    }
