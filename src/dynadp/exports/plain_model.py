"""A model in plain numbers: what every export is made of, and itself one, as JSON.

::

    x = (features less their centre, constant)
    scores = F x / max(norm, |x|)           clip
             F x / norm                     none
             F x / |x|                      unit

A row that dynadp would drop or refuse has no answer. Of two classes the second is the answer where
the score is above the threshold; of more, the one with the largest score.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dynadp._arrays import Array
from dynadp.data import (
    PlainColumn,
    PlainNumber,
    Value,
    plain_column,
)
from dynadp.errors import DataError
from dynadp.runs import Model

FORMAT, VERSION = "dynadp-scorer", 1


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
        (a, b) with P(second class) = 1/(1 + e^-(a score + b)); None where nobody found out.
    target
        (low, high) of a number that is answered instead of a class: (low + high)/2 + score (high -
        low)/2, within these bounds; None for classes.
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

    @classmethod
    def of(cls, model: Model, threshold: float | None = None) -> Self:
        """Return the plain numbers of a model, of a run or of an estimator.

        Where no threshold is given it is the model's own.

        Raises
        ------
        DataError
            If a column is of a kind that means nothing outside dynadp.
        """
        classes = len(model.classes)
        threshold = model.threshold if threshold is None else threshold
        if threshold and model.target is not None:
            raise DataError(
                f"threshold is {threshold:g}, and the model answers a number; leave it out"
            )
        if threshold and classes > 2:
            raise DataError(
                f"threshold is {threshold:g}, and the model has {classes} classes, of which the "
                "one with the largest score is answered; leave it out"
            )
        schema, given = model.schema, model.estimator or {}
        scaled = given.get("counted") is not None
        if threshold and scaled:
            raise DataError(
                f"threshold is {threshold:g}, for scores of rows of length 1 about their centre, "
                "and an export has those of rows as they are; predict with dynadp, or export with "
                "a threshold of 0"
            )
        if schema is None:
            names = given.get("feature_names_in_") or [f"x{i}" for i in range(model.coef.shape[1])]
            columns: tuple[PlainColumn | ReadyNumber, ...] = tuple(map(ReadyNumber, names))
            bounds: dict[str, Any] = {
                "missing_values": (),
                "constant": 1.0,
                "norm": 1.0,
                "scaling": "none",
            }
            centre = np.zeros(len(names))
        else:
            columns = tuple(plain_column(column) for column in schema.columns)
            names = ("missing_values", "norm", "scaling")
            bounds = {name: getattr(schema, name) for name in names}
            bounds["constant"] = float(schema.intercept)
            centre = np.array(schema.centre or np.zeros(schema.feature_count))
        return cls(
            classes=model.classes,
            columns=columns,
            centre=centre,
            coef=model.coef,
            intercept=model.intercept,
            threshold=threshold,
            probability=None if scaled or classes != 2 else model.log_odds,
            target=None if model.target is None else (model.target.low, model.target.high),
            **bounds,
        )

    @property
    def ready(self) -> bool:
        """Whether features are numbers as they are."""
        return any(isinstance(column, ReadyNumber) for column in self.columns)

    @property
    def vectors(self) -> Array:
        """F, with the intercept last where there is a constant."""
        return np.column_stack([self.coef, self.intercept]) if self.constant else self.coef

    def places(self) -> Iterator[tuple[PlainColumn | ReadyNumber, slice]]:
        """Yield each column with the places of its features."""
        start = 0
        for column in self.columns:
            yield column, slice(start, start + column.width)
            start += column.width

    def to_json(self) -> dict[str, Any]:
        """Return all of it for a program to read."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "classes": list(self.classes),
            "columns": [_column(column, self.missing_values) for column in self.columns],
            "missing_values": sorted({"", *self.missing_values}),
            "centre": self.centre.tolist(),
            "constant": self.constant,
            "norm": self.norm,
            "scaling": self.scaling,
            "coef": self.coef.tolist(),
            "intercept": self.intercept.tolist(),
            "threshold": self.threshold,
            "target": None if self.target is None else list(self.target),
            "probability": None if self.probability is None else list(self.probability),
        }

    def text(self) -> str:
        """Return the JSON as text."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def _column(column: PlainColumn | ReadyNumber, missing_values: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(column, ReadyNumber):
        return {"name": column.name, "kind": "ready", "width": 1}
    shown = {"name": column.name, "kind": "number", "width": column.width, "weight": column.weight}
    if isinstance(column, PlainNumber):
        curves = [
            {"knots": list(one.knots), "gives": list(map(list, one.gives)), "power": one.power}
            for one in column.curves
        ]
        names = ("low", "high", "transform", "missing")
        return shown | {name: getattr(column, name) for name in names} | {"curves": curves}
    listed = {text: k for k, cells in enumerate(column.cells) for text in cells}
    gone = dict.fromkeys(missing_values, column.missing)
    places = {"": column.missing, **listed, **gone}
    return shown | {"kind": "category", "places": places, "other": column.other}
