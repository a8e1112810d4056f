"""Names for arrays, and their devices: memory (NumPy) or a GPU (CuPy).

The mathematics is written once. It makes new arrays with the :func:`namespace` of those it was
given, so that arrays stay on their device; :func:`on` and :func:`host` copy between devices.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from math import log2
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dynadp.errors import DeclarationError

Array = NDArray[np.float64]
Rows = Array | csr_array

PerNode = Array  # P: one number for each node
Numbers = Array  # P x K: one number for each node and replica
Vectors = Array  # P x K x d: one vector for each node and replica
Margins = Array  # N x K: one number for each row of all nodes, and each replica

_SPAN = 256  # columns: shorter spans would slow products down
_AT_ONCE = 512  # rows that are summed at a time
_LIBRARIES: dict[type, Any] = {np.ndarray: np, np.float64: np, float: np, int: np}


def namespace(array: Any) -> Any:
    """The library of an array: NumPy, or CuPy by array-api-compat."""
    kind = type(array)
    if kind not in _LIBRARIES:
        from array_api_compat import array_namespace

        _LIBRARIES[kind] = array_namespace(array)
    return _LIBRARIES[kind]


def on(array: Any, like: Any) -> Array:
    """Copy the array to the device of ``like``, unless it is there."""
    xp = namespace(like)
    return np.asarray(array) if xp is np else xp.asarray(array)


def host(array: Any) -> Array:
    """Copy the array to memory, unless it is there."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def to_device(array: Array, device: str) -> Array:
    """The array on a device, ``cpu`` or ``cuda``."""
    if device == "cpu":
        return array
    try:
        import cupy

        return cupy.asarray(array)
    except ModuleNotFoundError as error:
        raise DeclarationError(
            f"device = 'cuda' needs {error.name}: pip install 'dynadp[gpu]'"
        ) from error
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeclarationError(
            f"device = 'cuda', but no GPU can be used here ({error}); leave device out"
        ) from error


def column_spans(d: int, some: int | None = None) -> list[slice]:
    """The columns of a long dot product in spans of s = max(256, 2^k), 2^k about sqrt(d/2): each is
    summed, then their sums.

    In one go d roundings may meet on a path from a product to the sum, in spans only s + d/s
    (:func:`dot_roundings`). Up to 512 columns are one span. With ``some``, of so many of the d
    columns, which are summed by themselves.
    """
    count = d if some is None else some
    s = max(count, 1) if d <= 2 * _SPAN else _span(d)
    return [slice(low, min(low + s, count)) for low in range(0, max(count, 1), s)]


def dot_roundings(d: int) -> int:
    """min(d, 2 s + ceil(d/s) + 8): how often a product of d terms is rounded on its way into a
    margin, at most.

    d holds for any order of summation. The other figure has s to spare, for products that are
    looked up column by column (:mod:`dynadp.data.row_blocks`).
    """
    s = _span(d)
    return min(d, 2 * s + -(-d // s) + 8)


def _span(d: int) -> int:
    return max(_SPAN, 2 ** round(log2(max(d, 2) / 2) / 2))


def dot(a: Array, b: Array) -> Array:
    """a.b over the last axis."""
    if isinstance(a, np.ndarray):
        return np.asarray(np.vecdot(a, b))
    return _gpu_dot()(a, b, axis=-1)


def norm(a: Array) -> Array:
    """||a|| over the last axis."""
    return np.sqrt(dot(a, a)) if isinstance(a, np.ndarray) else _gpu_norm()(a, axis=-1)


def row_squares(X: Array | csr_array) -> Array:
    """||x||^2 of every row: a function of that row alone, to the last bit.

    A product of a library may add a row's terms in an order that depends on where the row stands,
    and on how many there are.
    """
    if isinstance(X, csr_array):
        square = csr_array((np.square(X.data), X.indices, X.indptr), shape=X.shape)
        return np.asarray(square @ np.ones(X.shape[1]))
    return _summed(X, np.square)


def row_products(X: Array | csr_array, F: Array) -> Array:
    """X F^T, n x K, of K x d vectors: a row's numbers are a function of that row alone, to the last
    bit (:func:`row_squares`).
    """
    if isinstance(X, csr_array):
        return np.asarray(X @ F.T)
    return np.stack([_summed(X, partial(np.multiply, f)) for f in F], axis=1)


def _summed(X: Array, change: Callable[[Array], Array]) -> Array:
    """The sum over what becomes of each row; small pieces stay in the processor's cache."""
    out = np.empty(len(X))
    for low in range(0, len(X), _AT_ONCE):
        some = slice(low, low + _AT_ONCE)
        np.sum(np.ascontiguousarray(change(X[some])), axis=1, out=out[some])
    return out


@cache
def _gpu_dot() -> Any:
    import cupy

    return cupy.ReductionKernel("T a, T b", "T out", "a * b", "a + b", "out = a", "0", "dynadp_dot")


@cache
def _gpu_norm() -> Any:
    import cupy

    return cupy.ReductionKernel(
        "T a", "T out", "a * a", "a + b", "out = sqrt(a)", "0", "dynadp_norm"
    )


@cache
def one_kernel(formula: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise formula as one kernel of a GPU, instead of one for each operation."""
    import cupy

    @wraps(formula)
    def kernel(*arrays: Any) -> Any:
        return formula(cupy, *arrays)

    return cupy.fuse()(kernel)


def faster_storage(
    rows: int, dimension: int, filled: int, replicas: int
) -> Literal["dense", "csr"]:
    """CSR iff nnz (a + K) + c N < N d (e + g K).

    A sparse pass pays for an index and a value of each entry once and for a product with each
    replica; a dense pass runs at memory speed for one replica and at matrix-product speed for many.
    ``benchmarks/storage.py`` measures where the lines cross and fits the constants.
    """
    sparse = filled * (3.1 + replicas) + 7.4 * rows
    dense = rows * dimension * (1.4 + 0.22 * replicas)
    return "csr" if sparse < dense else "dense"
