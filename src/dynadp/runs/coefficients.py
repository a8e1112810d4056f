"""Coefficients in the users' units, and how far noise may have moved them (maths.md 22)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import BOUND, Spread
from dynadp.data import (
    Column,
    PlainBins,
    PlainCategory,
    PlainCross,
    PlainHashed,
    PlainNumber,
    Schema,
    Target,
    Value,
    plain_column,
)
from dynadp.errors import DataError

Z = 1.96  # of a 95% interval


@dataclass(frozen=True, eq=False)
class ModelNoise:
    """Standard errors from the noise for privacy, not from the sampling of rows.

    Attributes
    ----------
    coef_se, intercept_se
        As a model's ``coef`` and ``intercept``.
    basis
        ``first order``, or ``bound`` where no curvature of the rows is known.
    """

    coef_se: Array = field(repr=False)
    intercept_se: Array = field(repr=False)
    basis: str

    @classmethod
    def of(cls, spreads: Sequence[Spread], intercept: bool, units: Array | float = 1.0) -> Self:
        """Return them of one spread for each vector, the intercept last, in these units."""
        se = np.array([spread.deviations for spread in spreads]) * units
        coef, last = (se[:, :-1], se[:, -1]) if intercept else (se, np.zeros(len(se)))
        basis = BOUND if any(spread.basis == BOUND for spread in spreads) else spreads[0].basis
        return cls(coef, last, basis)

    def to_json(self) -> dict[str, Any]:
        """As a model file has them."""
        return {
            "coef_se": self.coef_se.tolist(),
            "intercept_se": self.intercept_se.tolist(),
            "basis": self.basis,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Read them from a model file."""
        coef, intercept = (np.array(content[k], dtype=float) for k in ("coef_se", "intercept_se"))
        return cls(coef, intercept, str(content["basis"]))


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """What a score gains with one unit of a feature.

    Attributes
    ----------
    feature, column
        Their names; ``(intercept)`` for both of the intercept.
    unit
        One unit of what, in words.
    value
        Added to the score for it.
    se
        Standard deviation of the value over the noise for privacy; None where it is not known.
    class_
        Of more than two classes, whose score.
    reference
        Where the feature adds nothing, in the same unit; None for features that are 0 or 1.
    """

    feature: str
    column: str
    unit: str
    value: float
    se: float | None = None
    class_: Value | None = None
    reference: float | None = None

    @property
    def z(self) -> float | None:
        """value/se: beyond about 2, noise alone would rarely give it; None without an se."""
        return self.value / self.se if self.se else None

    @property
    def low(self) -> float | None:
        """Where a 95% interval for the noise begins."""
        return None if self.se is None else self.value - Z * self.se

    @property
    def high(self) -> float | None:
        """Where it ends."""
        return None if self.se is None else self.value + Z * self.se

    def to_json(self) -> dict[str, Any]:
        """All of it, for a program to read."""
        shown = asdict(self) | {"z": self.z, "low": self.low, "high": self.high}
        shown["class"] = shown.pop("class_")
        return shown


def coefficients_of(
    schema: Schema | None,
    names: Sequence[str],
    classes: Sequence[Value],
    coef: Array,
    intercept: Array,
    noise: ModelNoise | None,
    target: Target | None = None,
) -> tuple[Coefficient, ...]:
    """Return all coefficients, those of the first vector first, the intercept last of each.

    Parameters
    ----------
    schema
        None for ready features, whose units are their own.
    names
        Of the features, without the intercept.
    classes, coef, intercept, noise
        As of a model.
    target
        Of a model that answers a number: values are then in its units.
    """
    units = list(_units(schema)) if schema else [(name, "1", 1.0, None) for name in names]
    constant = schema.intercept if schema else 1.0
    norm = schema.norm if schema and schema.scaling != "unit" else 1.0
    middle = 0.0
    if target is not None:
        norm, middle = norm / target.half, target.middle
    found = list[Coefficient]()
    for k, vector in enumerate(coef):
        whose = classes[k] if len(coef) > 1 else None
        for j, (column, unit, factor, reference) in enumerate(units):
            found.append(
                Coefficient(
                    feature=names[j],
                    column=column,
                    unit=unit,
                    value=float(vector[j]) * factor / norm,
                    se=float(noise.coef_se[k, j]) * abs(factor) / norm if noise else None,
                    class_=whose,
                    reference=reference,
                )
            )
        if constant or target is not None:
            found.append(
                Coefficient(
                    feature="(intercept)",
                    column="(intercept)",
                    unit="the score where every feature adds nothing",
                    value=middle + float(intercept[k]) * constant / norm,
                    se=float(noise.intercept_se[k]) * constant / norm if noise else None,
                    class_=whose,
                )
            )
    return tuple(found)


def holds_for(schema: Schema | None) -> str:
    """Return for which rows the score is the sum of coefficients times units, in words."""
    if schema is None:
        return "The score is the sum of the intercept and of coefficient times feature."
    words = "The score is the intercept plus each coefficient times (value - reference)"
    if schema.scaling == "none":
        return f"{words}."
    sign = "" if isinstance(schema.label, Target) else ", which leaves its sign"
    if schema.scaling == "unit":
        return f"{words}, divided by the row's length{sign}."
    return (
        f"{words}, values beyond their bounds counted as the bound; where a row is longer than the "
        f"norm it is divided by its length over the norm{sign}."
    )


def _units(schema: Schema) -> Iterator[tuple[str, str, float, float | None]]:
    """Yield column, unit, factor and reference of each feature."""
    centre = iter(schema.centre or np.zeros(schema.feature_count).tolist())
    for column in schema.columns:
        of_features = [next(centre) for _ in column.features]
        try:
            plain = plain_column(column)
        except DataError:
            plain = None
        if isinstance(plain, PlainCategory | PlainBins | PlainHashed | PlainCross):
            yield from _of_places(column, of_features)
        elif isinstance(plain, PlainNumber):
            yield from _of_number(plain, of_features)
        else:  # features that have no simpler unit than themselves
            for feature, c in zip(column.features, of_features, strict=True):
                yield column.name, f"1 of {feature}", 1.0, c


def _of_places(
    column: Column, centre: Sequence[float]
) -> Iterator[tuple[str, str, float, float | None]]:
    for feature, c in zip(column.features, centre, strict=True):
        reference = c / column.weight if c else None
        yield column.name, f"{feature} (1 or 0)", column.weight, reference


def _of_number(
    plain: PlainNumber, centre: Sequence[float]
) -> Iterator[tuple[str, str, float, float | None]]:
    log = f"ln(1 + {plain.name}{-plain.low:+g})" if plain.low else f"ln(1 + {plain.name})"
    signed = f"sign({plain.name}) ln(1 + |{plain.name}|)"
    t = {"none": plain.name, "log1p": log, "signed_log": signed}[plain.transform]
    places = iter(centre)
    for curves in plain.curves:
        if len(curves.gives) > 1:
            for knot in curves.knots:
                at = {
                    "none": knot,
                    "log1p": plain.low + np.expm1(knot),
                    "signed_log": np.copysign(np.expm1(abs(knot)), knot),
                }[plain.transform]
                c = next(places)
                unit = f"the bump at {plain.name} = {at:g} (1 there)"
                yield plain.name, unit, plain.weight, c / plain.weight if c else None
            continue
        (low, high), (y0, y1) = curves.knots, curves.gives[0]
        c = next(places) / plain.weight
        if curves.power == 2:
            yield plain.name, f"the square of {t}, scaled to [{y0:g}, {y1:g}]", plain.weight, c
            continue
        slope = (y1 - y0) / (high - low)
        yield plain.name, f"1 of {t}", plain.weight * slope, low + (c - y0) / slope
