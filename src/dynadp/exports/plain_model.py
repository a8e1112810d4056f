"""A model in plain numbers: what every export is made of.

::

    x = (features less their centre, constant)
    scores = F x / max(norm, |x|)           clip
             F x / norm                     none
             F x / |x|                      unit

A row that dynadp would drop or refuse has no answer. Of two classes the second is the answer where
the score is above the threshold; of more, the one with the largest score.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp.data import PlainColumn, PlainVector, Schema, Value, plain_column
from dynadp.runs import Model, Threshold, threshold_for


@dataclass(frozen=True)
class ReadyNumber:
    """A feature that is a number as it is: of a model without a schema."""

    name: str
    width: int = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class PlainModel:
    """Columns, and the vectors of their features.

    Attributes
    ----------
    classes
        Label values; of two, the negative one first.
    columns
        How cells become features.
    missing_values
        Texts that mean "missing", besides none and NaN.
    centre
        Subtracted from the features.
    constant
        The number after them; 0 for none.
    norm, scaling
        How long rows are divided: ``clip``, ``none`` or ``unit``.
    coef, intercept
        F: one vector for two classes, one for each of more; the last numbers are ``intercept``.
    threshold
        Of two classes, scores above it are answered with the second.
    probability
        (a, b) with P(second class) = 1/(1 + e^-(a score + b)), and of more classes P of each the
        softmax of a score; None where nobody found out.
    target
        (low, high) of a number that is answered instead of a class: (low + high)/2 + score (high -
        low)/2, within these bounds; None for classes.
    counts
        Which features the length ``|x|`` is of; the constant always is.
    """

    classes: tuple[Value, ...]
    columns: tuple[PlainColumn | ReadyNumber, ...]
    missing_values: tuple[str, ...]
    centre: Array = field(repr=False)
    constant: float
    norm: float
    scaling: str
    coef: Array = field(repr=False)
    intercept: Array = field(repr=False)
    threshold: float = 0.0
    probability: tuple[float, float] | None = None
    target: tuple[float, float] | None = None
    counts: NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(cls, model: Model, threshold: Threshold | None = None) -> Self:
        """Return the plain numbers of a model, of a run or of an estimator.

        Where no threshold is given it is the model's own.

        Raises
        ------
        DataError
            If a column is of a kind that means nothing outside dynadp.
        """
        classes = len(model.classes)
        threshold = threshold_for(model, threshold)
        log_odds = model.log_odds if classes == 2 else None
        if classes > 2 and model.gives_probabilities:
            log_odds = 1.0 if model.calibration is None else model.calibration.slope, 0.0
        made: dict[str, Any] = {
            "classes": model.classes,
            "coef": model.coef,
            "intercept": model.intercept,
            "threshold": threshold,
            "probability": log_odds,
            "target": None if model.target is None else (model.target.low, model.target.high),
        }
        if model.schema is None:
            return cls._ready(model, made)
        return cls(**made, **_of_rows(model.schema))

    @classmethod
    def _ready(cls, model: Model, made: dict[str, Any]) -> Self:
        """Features that are numbers as they are. Where thresholds, probabilities and numbers that
        are answered belong to rows that were scaled as a whole about their centre, the features of
        these come after them, for the sake of their length alone.
        """
        given, d = model.estimator or {}, model.coef.shape[1]
        names = tuple(given.get("feature_names_in_") or [f"x{i}" for i in range(d)])
        numbers = tuple(map(ReadyNumber, names))
        counted = given.get("counted")
        scaled = made["threshold"] or (made["probability"] and len(model.classes) == 2)
        scaled = scaled or model.target is not None
        if counted is None or not scaled:
            return cls(
                **made,
                columns=numbers,
                missing_values=(),
                centre=np.zeros(d),
                constant=1.0,
                norm=1.0,
                scaling="none",
                counts=np.ones(d, dtype=bool),
            )
        rows = _of_rows(Schema.model_validate(counted))
        rows["columns"] = (*numbers, *(_renamed(column, names) for column in rows["columns"]))
        rows["centre"] = np.concatenate([np.zeros(d), rows["centre"]])
        rows["counts"] = np.concatenate([np.zeros(d, dtype=bool), rows["counts"]])
        # coefficients of a number are those of rows that are no longer than the norm
        length = 1.0 if model.target is None else rows["norm"]
        made["coef"] = length * np.pad(model.coef, ((0, 0), (0, len(rows["counts"]) - d)))
        made["intercept"] = length * model.intercept
        if rows["constant"]:
            made["intercept"] = made["intercept"] / rows["constant"]
        elif f := float(model.coef[0] @ model.coef[0]):  # then F (x - c) holds the intercept
            rows["centre"][:d] = -model.intercept * model.coef[0] / f
        return cls(**made, **rows)

    @property
    def ready(self) -> bool:
        """Whether features are numbers as they are."""
        return any(isinstance(column, ReadyNumber) for column in self.columns)

    @property
    def lengths(self) -> tuple[float, float]:
        """Scores are divided by ``|x|``, or by the nearer of these where it is not between them."""
        ends = {"clip": (self.norm, inf), "none": (self.norm, self.norm), "unit": (0.0, inf)}
        return ends[self.scaling]

    def places(self) -> Iterator[tuple[PlainColumn | ReadyNumber, slice]]:
        """Yield each column with the places of its features."""
        start = 0
        for column in self.columns:
            yield column, slice(start, start + column.width)
            start += column.width


def _of_rows(schema: Schema) -> dict[str, Any]:
    """How cells become rows."""
    count = schema.feature_count
    return {
        "columns": tuple(plain_column(column) for column in schema.columns),
        "missing_values": schema.missing_values,
        "centre": np.array(schema.centre or np.zeros(count)),
        "constant": float(schema.intercept),
        "norm": schema.norm,
        "scaling": schema.scaling,
        "counts": np.ones(count, dtype=bool),
    }


def _renamed(column: Any, names: tuple[str, ...]) -> Any:
    """A column of numbers x0, x1, ... with the names that an estimator was given."""
    if isinstance(column, PlainVector):
        return replace(column, columns=names)
    return replace(column, name=names[int(column.name[1:])])
