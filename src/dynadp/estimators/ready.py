"""Features that are given as numbers, as a schema declares them: bounded by ``data_norm`` or by
``bounds``, and centred as a schema's columns are (maths.md 4, 15 and 19).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from dynadp._arrays import Array
from dynadp.data import Label, Numeric, Schema, Target, Vector, norms
from dynadp.errors import DeclarationError
from dynadp.mechanisms import centred

PRIVATE = "private"
# the intercept beside x/data_norm - centre: rows about their mean are short beside a bound on all
INTERCEPT = 0.3
_LABEL = Label(name="label", negative=0, positive=1)  # of no consequence: y is read elsewhere


@dataclass(frozen=True)
class ReadyNumbers:
    """Numbers and their public declaration: within the bounds, feature j is scale_j x_j - shift_j.

    Attributes
    ----------
    schema
        A vector, or a column for each number.
    scale, shift
        One for each feature.
    centred
        Whether a private centre is found for them.
    """

    schema: Schema
    scale: Array = field(repr=False)
    shift: Array = field(repr=False)
    centred: bool

    @classmethod
    def of(
        cls, given: Any, X: Any, adjacency: str, label: Label | Target = _LABEL
    ) -> "ReadyNumbers | None":
        """Return the declaration of an estimator's numbers; None where rows are only divided by
        their bound, because nothing is subtracted from them.

        Parameters
        ----------
        given
            The estimator; with epsilon, dense rows with an intercept are centred privately.
        X
            n x d.
        adjacency
            As of a schema.
        label
            The target, where a number is answered.
        """
        d, public = X.shape[1], _public_centre(given.centre, X.shape[1])
        if given.bounds is not None:
            low, high = _bounds(given.bounds, d)
        if issparse(X):
            if given.bounds is not None or public is not None:
                raise DeclarationError(
                    "bounds and centre shift numbers, so that sparse rows would become dense; "
                    "give data_norm alone, or X.toarray()"
                )
            return None
        private = given.centre is not None and public is None
        private = private and given.epsilon is not None and given.fit_intercept
        about, answers = private or public is not None, isinstance(label, Target)
        if given.bounds is None and not about:
            return None
        names = tuple(f"x{j}" for j in range(d))
        columns: tuple[Any, ...]
        if given.bounds is None:
            norm = given.data_norm
            if norm is None:
                raise DeclarationError(
                    "centre is given without data_norm or bounds; declare one of them too"
                )
            columns = (Vector(name="x", columns=names, norm=norm),)
            scale, shift, intercept = np.full(d, 1 / norm), np.zeros(d), INTERCEPT
        else:
            columns = tuple(
                Numeric(name=name, low=a, high=b)
                for name, a, b in zip(names, low.tolist(), high.tolist(), strict=True)
            )
            scale, intercept = 2 / (high - low), 1.0
            shift = scale * low + 1
        intercept = intercept if given.fit_intercept else 0.0
        schema = Schema(
            columns=columns,
            label=label,
            intercept=intercept,
            # no row is longer; about a centre that of centred rows counts, which is above 0.3
            norm=INTERCEPT if about and answers else sqrt(d + intercept**2),
            adjacency=adjacency,
        )
        if public is not None:
            schema = centred(schema, scale * public - shift)
        return cls(schema, scale, shift, private)

    @staticmethod
    def scaling(schema: Schema, X: NDArray[Any]) -> Array:
        """s > 0 of each row: what the bounded row is of (features - centre, intercept)."""
        table = {f"x{j}": column for j, column in enumerate(X.T)}
        whole = schema.model_copy(update={"scaling": "none", "norm": 1.0})
        long, short = norms(whole.rows(table)), norms(schema.rows(table))
        return np.asarray(np.where(long > 0, short / np.where(long > 0, long, 1.0), 1.0))

    def table(self, X: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the rows as columns by name."""
        return {f"x{j}": column for j, column in enumerate(X.T)}

    def coefficients(self, f: Array, schema: Schema) -> tuple[Array, Array]:
        """Return coefficients and intercepts in the units of X, of vectors for bounded rows.

        f.s(scale x - shift - centre, k) has the sign of its value without s > 0. Where a number is
        answered they are for s = 1/norm, which rows no longer than that have.
        """
        f = f / _length(schema)
        whole = f if schema.intercept else np.concatenate([f, np.zeros((*f.shape[:-1], 1))], -1)
        rows, last = whole[..., :-1], whole[..., -1]
        return rows * self.scale, schema.intercept * last - rows @ (self.shift + _centre(schema))

    def map(self, schema: Schema) -> Array:
        """Return U, (d + 1) x the width of bounded rows: coefficients and intercept are U f."""
        coef, intercept = self.coefficients(np.eye(schema.dimension), schema)
        return np.vstack([coef.T, intercept])

    def vectors(self, start: Array, schema: Schema) -> Array:
        """Return vectors for bounded rows, of coefficients in the units of X, the intercept last
        where there is one: the other way about.
        """
        start = start * _length(schema)
        if not schema.intercept:
            return np.asarray(start / self.scale)
        rows = start[..., :-1] / self.scale
        last = (start[..., -1] + rows @ (self.shift + _centre(schema))) / schema.intercept
        return np.concatenate([rows, last[..., None]], axis=-1)


def _length(schema: Schema) -> float:
    """What rows are divided by, as long as they are no longer; 1 where their signs are all that
    counts.
    """
    return schema.norm if isinstance(schema.label, Target) else 1.0


def _centre(schema: Schema) -> Array:
    return np.zeros(schema.feature_count) if schema.centre is None else np.array(schema.centre)


def _public_centre(centre: Any, d: int) -> Array | None:
    """Return a centre that was given; None where it is found privately, or left out."""
    if centre is None or (isinstance(centre, str) and centre == PRIVATE):
        return None
    found = None if isinstance(centre, str) else _numbers(centre)
    if found is None or found.shape != (d,) or not np.isfinite(found).all():
        raise DeclarationError(
            f"centre: expected {PRIVATE!r}, None, or a public number for each of the {d} columns"
        )
    return found


def _bounds(bounds: Any, d: int) -> tuple[Array, Array]:
    """Return the low and the high end of each column."""
    ends = [_numbers(each) for each in bounds] if isinstance(bounds, Sequence | np.ndarray) else []
    if len(ends) == 2 and all(end is not None and end.shape in ((), (d,)) for end in ends):
        low, high = (np.broadcast_to(np.asarray(end), (d,)).astype(float) for end in ends)
        if np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all():
            return low, high
    raise DeclarationError(
        f"bounds: expected (low, high), each a finite public number or one for each of the {d} "
        "columns, low below high: from what is known about the quantities, not off the rows"
    )


def _numbers(values: ArrayLike) -> Array | None:
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return None
