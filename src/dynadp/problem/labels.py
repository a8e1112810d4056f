"""What rows do by their labels: how much they weigh, and in which cell of a histogram they are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.errors import DeclarationError

ClassWeights = tuple[float, float]
EVEN: ClassWeights = (1.0, 1.0)


def check_class_weights(weights: Sequence[float]) -> ClassWeights:
    """Return ``(w_-, w_+)`` over the larger of the two, so that no row weighs more than 1.

    >>> check_class_weights((1.0, 4.0))
    (0.25, 1.0)
    """
    given = tuple(float(w) for w in weights)
    if len(given) != 2 or not all(np.isfinite(w) and w > 0 for w in given):
        raise DeclarationError(
            f"class_weights are {weights!r}; expected two finite numbers above 0, that of the "
            "negative label first"
        )
    return given[0] / max(given), given[1] / max(given)


def row_weights(signs: Array, weights: ClassWeights) -> Array:
    """w_y of each row, signs y."""
    return np.where(signs > 0, weights[1], weights[0])


def cells(scores: Array, signs: Array, edges: Array) -> NDArray[np.int64]:
    """Count rows by label and bin, the negative label first: 2 K numbers for K - 1 edges.

    Bin k holds scores above edge k - 1 and up to edge k. A row without a sign is in no cell.
    """
    bins = len(edges) + 1
    place = np.searchsorted(edges, scores) + bins * (signs > 0)
    return np.bincount(place[signs != 0], minlength=2 * bins)
