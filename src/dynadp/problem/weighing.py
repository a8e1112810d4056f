"""How much the rows of one person may weigh, so that together they add no more to a sum of
gradients than one row may (maths.md 14).
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp._arrays import Array, Rows

_AT_ONCE = 1 << 22  # numbers of rows that are compared at once
_ROOM = 2.0**-40  # more than roots and quotients are rounded by
_MANY = 1000  # rows of a person whose products add up exactly, below 2^53


def largest_slopes(
    rows: Rows, people: NDArray[np.int64], longest: int, steepest: int, *, alike: bool = True
) -> Array:
    """floor(K_s K_x/sqrt(sum_ij max(k_i.k_j, 0))), at most K_s: how long the slope of each row may
    be, over all rows i, j of its person.

    Slopes of one sign with these bounds have ||sum_i sigma_i k_i|| <= K_s K_x. Somebody's only row
    keeps K_s, rows that are alike share it, and rows that point apart keep more. Of more than a
    thousand rows each has an equal share.

    Parameters
    ----------
    rows
        k_i, whole numbers, of length K_x at most.
    people
        A number for each row, the same for all rows of a person; below 0 for a row that is alone.
    longest, steepest
        K_x and K_s.
    alike
        Whether slopes have one sign. Vectors of slopes have not: ``|k_i.k_j|`` stands for
        max(k_i.k_j, 0) then.
    """
    size = partial(np.maximum, 0.0) if alike else np.abs
    out = np.full(len(people), float(steepest))
    for places, products in _products(rows, people):
        if products is None:
            out[places] = steepest // places.shape[1]
            continue
        joint = np.sqrt(size(products).sum(axis=(1, 2)))
        with np.errstate(divide="ignore"):
            most = np.floor(longest * (1 - _ROOM) / joint * steepest)
        out[places] = np.minimum(most, steepest)[:, None]
    return out


def shortened(rows: Rows, people: NDArray[np.int64], longest: int) -> Rows:
    """trunc(r k_i) with ||sum_i trunc(r k_i) trunc(r k_i)^T||_F <= K_x^2 over all rows i of a
    person: r = 1 where that holds, else r^2 = (K_x^2 - E)/sqrt(sum_ij (k_i.k_j)^2).

    E = n (2 K_x sqrt(d) + d) covers what truncating n rows may add.

    Parameters
    ----------
    rows, people, longest
        As of :func:`largest_slopes`.
    """
    scale, d = np.ones(len(people)), rows.shape[1]
    for places, products in _products(rows, people):
        n = places.shape[1]
        left = max(0.0, float(longest) ** 2 - n * (2 * longest * np.sqrt(d) + d)) * (1 - _ROOM)
        if products is None:
            scale[places] = np.sqrt(left / n) / longest
            continue
        joint = np.sqrt(np.square(products).sum(axis=(1, 2)))
        fits = joint * (1 + _ROOM) <= float(longest) ** 2
        r = np.sqrt(left / np.where(fits, 1.0, joint))
        scale[places] = np.where(fits, 1.0, r)[:, None]
    if isinstance(rows, csr_array):
        out = csr_array(rows, copy=True)
        out.data = np.trunc(out.data * np.repeat(scale, np.diff(out.indptr)))
        return out
    return np.trunc(rows * scale[:, None])


def _products(
    rows: Rows, people: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], Array | None]]:
    """Yield the places of some people's rows, people x n, and k_i.k_j of all pairs of each, which
    are exact; None for people with more than a thousand.
    """
    for places in _groups(people, rows.shape[1]):
        if places.shape[1] > _MANY:
            yield places, None
            continue
        some = rows[places.ravel()]
        dense = np.asarray(some.toarray() if isinstance(some, csr_array) else some)
        each = dense.reshape(*places.shape, -1)
        yield places, each @ each.swapaxes(1, 2)


def _groups(people: NDArray[np.int64], dimension: int) -> Iterator[NDArray[np.int64]]:
    """Yield the places of people's rows, some people with k rows each at a time, people x k; those
    with one row are left out.
    """
    order = np.argsort(people, kind="stable")
    order = order[np.searchsorted(people[order], 0) :]
    starts = np.flatnonzero(np.diff(people[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    for k in np.unique(sizes[sizes > 1]).tolist():
        first = starts[sizes == k]
        step = max(1, _AT_ONCE // (k * (dimension + k)))
        for at in range(0, len(first), step):
            yield order[first[at : at + step, None] + np.arange(k)]
