"""What a run's model is made of, for the report: coefficients, and what noise may have made."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dynadp.report.record_view import RunView
from dynadp.runs import Coefficient, Model, Z, holds_for, load_model

SHOWN = 25  # of more, those that stand out least are left to the table of the command
BASES = {
    "first order": "to first order, with the rows' second moment as released",
    "bound": "an upper bound, as the curvature of the loss is not known",
}


@dataclass(frozen=True)
class ModelView:
    """The model of a finished run.

    Attributes
    ----------
    rows
        For the picture: ``name``, ``value``, ``low`` and ``high`` in units of the scaled features,
        which compare, and whether it is ``clear`` of what noise alone may give.
    shown
        The same coefficients in the users' units.
    count, clear
        Of all coefficients: how many there are, and are clear of noise.
    holds, basis
        In words; the basis is empty where there are no standard errors.
    """

    rows: list[dict[str, Any]] = field(repr=False)
    shown: list[Coefficient] = field(repr=False)
    count: int
    clear: int
    holds: str
    basis: str

    @classmethod
    def read(cls, view: RunView) -> "ModelView | None":
        """Read the model of the first folder that has one."""
        homes = [home for home in view.homes if (home / "model.json").exists()]
        return cls.of(load_model(homes[0])) if homes else None

    @classmethod
    def of(cls, model: Model) -> "ModelView":
        """Rank the coefficients by their multiples of their standard errors."""
        found, scaled = model.coefficients(), _scaled(model)
        order = sorted(range(len(found)), key=lambda i: -_rank(found[i], scaled[i]))
        rows = []
        for place, i in enumerate(order[:SHOWN]):
            one, (value, se) = found[i], scaled[i]
            name = one.feature if one.class_ is None else f"{one.class_}: {one.feature}"
            low, high = value - Z * se, value + Z * se
            row = {"name": name, "place": place, "value": value, "low": low, "high": high}
            rows.append({**row, "clear": _clear(one)})
        return cls(
            rows,
            [found[i] for i in order[:SHOWN]],
            len(found),
            sum(map(_clear, found)),
            holds_for(model.schema),
            BASES[model.noise.basis] if model.noise else "",
        )


def _scaled(model: Model) -> list[tuple[float, float]]:
    """Every coefficient and its standard error, 0 for none, as the model has them."""
    se = model.noise
    constant = model.schema.intercept if model.schema else 1.0
    coef_se = np.zeros(model.coef.shape) if se is None else se.coef_se
    last_se = np.zeros(model.intercept.shape) if se is None else se.intercept_se
    values, spread = model.coef, coef_se
    if constant:
        values = np.column_stack([values, constant * model.intercept])
        spread = np.column_stack([spread, constant * last_se])
    return list(zip(values.ravel().tolist(), spread.ravel().tolist(), strict=True))


def _rank(one: Coefficient, scaled: tuple[float, float]) -> float:
    return abs(scaled[0] if one.z is None else one.z)


def _clear(one: Coefficient) -> bool:
    return one.z is not None and abs(one.z) >= Z
