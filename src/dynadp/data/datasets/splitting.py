"""Rows split over nodes, for simulations: real nodes own their rows."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynadp import _require
from dynadp.data.datasets.base import Indices
from dynadp.errors import DeclarationError


def partition(
    rows: int,
    nodes: int,
    how: Literal["even", "sized", "column", "label_skew"] = "even",
    *,
    sizes: Sequence[float] | None = None,
    column: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    concentration: float = 0.5,
    seed: int = 0,
) -> list[Indices]:
    """Split row positions 0..rows-1 over nodes, at least one row each (for simulations: real nodes
    own their rows).

    Parameters
    ----------
    rows, nodes
        How many of each.
    how
        ``even``: shuffled, sizes differing by at most 1. ``sized``: shuffled, sizes proportional to
        ``sizes``. ``column``: sorted by ``column`` and cut evenly, so that nodes are unlike each
        other. ``label_skew``: each label value is spread over the nodes by a Dirichlet draw with
        ``concentration`` (small: very unlike).
    sizes, column, labels, concentration
        What ``how`` needs.
    seed
        Of the shuffle and the Dirichlet draw.
    """
    if nodes < 1 or rows < nodes:
        raise DeclarationError(
            f"{rows} rows cannot be split over {nodes} nodes; every node needs at least one row"
        )
    rng = np.random.default_rng([seed, 0x5917])
    even = (np.arange(1, nodes) * rows) // nodes
    if how == "even":
        return [np.sort(part) for part in np.split(rng.permutation(rows), even)]
    if how == "sized":
        weights = np.asarray(sizes if sizes is not None else (), dtype=float)
        if weights.shape != (nodes,) or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise DeclarationError(f"'sized' needs sizes: {nodes} numbers above 0, one a node")
        # one row each first, the rest by cumulative share
        cuts = np.arange(1, nodes) + np.round(
            np.cumsum(weights)[:-1] / weights.sum() * (rows - nodes)
        ).astype(int)
        return [np.sort(part) for part in np.split(rng.permutation(rows), cuts)]
    if how == "column":
        return [
            np.sort(part)
            for part in np.split(np.argsort(_one_each("column", column, rows), kind="stable"), even)
        ]
    if how == "label_skew":
        _require.positive("concentration", concentration)
        owner = np.empty(rows, dtype=int)
        values, kind = np.unique(_one_each("labels", labels, rows), return_inverse=True)
        for value in range(len(values)):
            of_value = rng.permutation(np.flatnonzero(kind == value))
            cuts = np.round(
                np.cumsum(rng.dirichlet(np.full(nodes, concentration)))[:-1] * len(of_value)
            ).astype(int)
            for p, part in enumerate(np.split(of_value, cuts)):
                owner[part] = p
        for empty in np.flatnonzero(
            np.bincount(owner, minlength=nodes) == 0
        ):  # an empty node takes one row of the largest
            largest = np.bincount(owner, minlength=nodes).argmax()
            owner[rng.choice(np.flatnonzero(owner == largest))] = empty
        return [np.flatnonzero(owner == p) for p in range(nodes)]
    raise DeclarationError(
        f"unknown way to split {how!r}; expected even, sized, column or label_skew"
    )


def _one_each(what: str, values: ArrayLike | None, rows: int) -> NDArray[Any]:
    try:
        array = np.asarray(values)
        if values is not None and array.shape == (rows,):
            np.sort(array)  # a split goes by order and equality
            return array
    except (TypeError, ValueError):
        raise DeclarationError(
            f"this split needs {what} that can be compared with each other"
        ) from None
    raise DeclarationError(f"this split needs {what}: one value for each of the {rows} rows")
