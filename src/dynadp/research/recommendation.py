"""Which alpha: of those that were measured and are of use, the one with the best
U_priv(alpha) - median loss (maths.md 10).

An alpha is of use where the interval of its loss lies below the loss of answers that look at no
row: as measured, and evened with the alphas beside it, so that one lucky draw recommends nothing
that the zones of :mod:`~dynadp.research.zones` call useless. Where none is, nothing is
recommended. The fitted L_acc is drawn, and its maximum is shown as the fit's own. It is never
recommended: where the curve misses the points, its maximum is far from theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np

from dynadp.errors import DeclarationError
from dynadp.planning import AccuracyLoss, Design, PrivacyUtility, design
from dynadp.research.tradeoff import fit_loss
from dynadp.research.zones import APART, Point, evened, is_useful, upper_loss

BLIND = "always giving the same answer"


@dataclass(frozen=True)
class Recommendation:
    """The measured alpha with the best objective, and why; or why there is none.

    Attributes
    ----------
    alpha, loss, value
        The alpha, or mu where noise is Gaussian, its measured median loss, and U_priv - loss there;
        None where nothing is recommended.
    near
        Other measured alphas whose objective lies within the uncertainty of both.
    end
        Whether it is the smallest or the largest of those that were measured and are allowed.
    fitted
        What the fitted curve alone would choose; None where there is no curve.
    reasons
        How it came about, in words.
    unit
        ``alpha`` or ``mu``.
    """

    alpha: float | None
    loss: float | None
    value: float | None
    near: tuple[float, ...]
    end: bool
    fitted: Design | None
    reasons: tuple[str, ...]
    unit: str = "alpha"

    def to_json(self) -> dict[str, Any]:
        """For a record; what is chosen has the unit's name."""
        known = asdict(self)
        unit = known.pop("unit")
        if known["fitted"]:
            known["fitted"] = {unit: known["fitted"].pop("alpha"), **known["fitted"]}
        return {unit: known.pop("alpha"), **known}


def unit_of(points: Sequence[Point]) -> str:
    """What measured points are of: ``mu`` where noise is Gaussian, otherwise ``alpha``."""
    return "mu" if points and all("mu" in point for point in points) else "alpha"


def fit_points(points: Sequence[Point]) -> AccuracyLoss | None:
    """L_acc fitted to measured medians, weighed by the width of their intervals; None where the
    points do not fall so.

    Parameters
    ----------
    points
        ``alpha``, or ``mu``, and ``median``; ``low`` and ``high`` where they are known.
    """
    unit = unit_of(points)
    medians = np.array([point["median"] for point in points], dtype=float)
    widths = np.array(
        [point.get("high", 1.0) - point.get("low", 0.0) for point in points], dtype=float
    )
    floor = 1e-3 * max(float(np.abs(medians).max(initial=0.0)), 1e-9)
    try:
        fit = fit_loss([point[unit] for point in points], medians, np.maximum(widths, floor))
    except DeclarationError:  # fewer than four alphas
        return None
    return fit if fit.c4 >= 0 else None


def recommend(
    points: Sequence[Point],
    w: PrivacyUtility | None = None,
    *,
    fit: AccuracyLoss | None = None,
    limits: tuple[float, float] = (0.0, inf),
    ceiling: float | None = None,
    floor: float | None = None,
    blind: float | None = None,
) -> Recommendation:
    """argmax over measured alphas of U_priv(alpha) - median loss, with loss <= ceiling and U_priv
    >= floor.

    Parameters
    ----------
    points
        ``alpha``, or ``mu`` where noise is Gaussian, and ``median`` (of the loss) of each measured
        one; ``error``, the standard error of the median, where it is known. The losses must be
        public.
    w
        The utility of privacy; the paper's by default.
    fit
        The fitted curve, for comparison.
    limits, ceiling, floor
        The range of alpha, the largest loss, the least utility.
    blind
        The loss of answers that look at no row, where it is known: only an alpha that is of use
        (:func:`~dynadp.research.zones.is_useful`) is recommended.
    """
    w, unit = w or PrivacyUtility(), unit_of(points)
    known = sorted(points, key=lambda point: float(point[unit]))
    asked = _asked(known, limits, ceiling, floor, unit)
    allowed = [
        point
        for point in known
        if limits[0] <= point[unit] <= limits[1]
        and (ceiling is None or point["median"] <= ceiling)
        and (floor is None or float(w(point[unit])) >= floor)
    ]
    if not allowed:
        raise DeclarationError(f"no measured {unit} is left: {asked}")
    even = {float(point[unit]): point for point in evened(known)}
    tried = allowed
    allowed = [
        point
        for point in tried
        if is_useful(point, blind) and is_useful(even[float(point[unit])], blind)
    ]
    fitted = _maximum(fit, w, known, unit)
    if not allowed:
        why = _none(tried, even, blind, unit)
        return Recommendation(None, None, None, (), False, fitted, why, unit)
    values = [float(w(point[unit])) - float(point["median"]) for point in allowed]
    at = int(np.argmax(values))
    best, value = allowed[at], values[at]
    alpha, loss, error = (float(best.get(name, 0.0)) for name in (unit, "median", "error"))
    near = tuple(
        float(point[unit])
        for point, other in zip(allowed, values, strict=True)
        if point is not best
        and other >= value - APART * sqrt(point.get("error", 0.0) ** 2 + error**2)
    )
    end = best is tried[0] or best is tried[-1]
    reasons = [
        f"{_counted(known, unit)}; U_priv - loss is largest at {unit} = {alpha:.4g}: {value:.4g}, "
        f"with a median loss of {loss:.4g}"
    ]
    if len(tried) < len(known):
        reasons.append(f"{len(tried)} of them are allowed: {asked}")
    if len(allowed) < len(tried):
        number = len(tried) - len(allowed)
        reasons.append(
            f"{number} of them {'is' if number == 1 else 'are'} left out: within {_noise(tried)}, "
            f"the loss there is that of {BLIND}, {blind:.4g}"
        )
    if near:
        listed = ", ".join(f"{a:.4g}" for a in near)
        reasons.append(
            f"{unit} = {listed} cannot be told apart from it: they lie within {APART:g} standard "
            f"errors"
        )
    if end:
        which = "only" if len(tried) == 1 else "smallest" if best is tried[0] else "largest"
        reasons.append(
            f"it is the {which} {unit} that was measured and is allowed: a better one may lie "
            "beyond"
        )
    reasons.append(_fits(fitted, allowed, values, at, unit))
    return Recommendation(alpha, loss, value, near, end, fitted, tuple(reasons), unit)


def _maximum(
    fit: AccuracyLoss | None, w: PrivacyUtility, known: Sequence[Point], unit: str
) -> Design | None:
    """What the fitted curve alone would choose."""
    if fit is None:
        return None
    found = design(fit, w, float(known[0][unit]) * (1 - 1e-9), float(known[-1][unit]))
    words = tuple(reason.replace("alpha", unit) for reason in found.reasons)
    end_wins = found.end_wins and found.end_wins.replace("alpha", unit)
    return replace(found, reasons=words, end_wins=end_wins)


def _none(
    tried: Sequence[Point], even: Mapping[float, Point], blind: float | None, unit: str
) -> tuple[str, ...]:
    """Why nothing is recommended."""
    best = min(tried, key=lambda point: float(point["median"]))
    most = max(upper_loss(best), upper_loss(even[float(best[unit])]))
    return (
        f"nothing is recommended: {BLIND} has a loss of {blind:.4g}, and no {unit} that was "
        f"measured is better by more than {_noise(tried)}. The best has a median loss of "
        f"{best['median']:.4g}, which may be as large as {most:.4g}",
        "more public rows to measure on would make the interval narrower; more rows at the nodes, "
        "fewer columns or a larger total would make the model better",
    )


def _noise(points: Sequence[Point]) -> str:
    """What widens a loss, in words."""
    if all("high" in point for point in points):
        return "the interval of the noise and the sampling error"
    return f"{APART:g} standard errors"


def _fits(
    fitted: Design | None,
    allowed: Sequence[Point],
    values: Sequence[float],
    at: int,
    unit: str,
) -> str:
    """The fitted curve's maximum, beside the nearest measured point."""
    if fitted is None:
        return f"no curve c4 exp(-c5 {unit}) + c6 that falls is fitted to the losses"
    if not fitted.interior:
        return (
            "the fitted curve has no maximum between the ends; it is drawn, and nothing is chosen "
            "by it"
        )
    nearest = int(np.argmin([abs(np.log(point[unit] / fitted.alpha)) for point in allowed]))
    less = "" if nearest == at else f", {values[at] - values[nearest]:.3g} less than the best"
    return (
        f"the fit's own maximum lies at {unit} = {fitted.alpha:.4g}; at the nearest measured "
        f"{unit}, {allowed[nearest][unit]:.4g}, U_priv - loss is {values[nearest]:.4g}{less}. "
        "The fit is drawn, not recommended"
    )


def _asked(
    known: Sequence[Point],
    limits: tuple[float, float],
    ceiling: float | None,
    floor: float | None,
    unit: str,
) -> str:
    asked = [] if limits == (0.0, inf) else [f"{unit} in [{limits[0]:g}, {limits[1]:g}]"]
    asked += [] if ceiling is None else [f"a loss of at most {ceiling:g}"]
    asked += [] if floor is None else [f"a utility of at least {floor:g}"]
    least = min((float(point["median"]) for point in known), default=inf)
    return (
        f"{' and '.join(asked) or 'anything'} is asked for; {_counted(known, unit)}, with losses "
        f"from {least:.4g}"
    )


def _counted(known: Sequence[Point], unit: str) -> str:
    if not known:
        return f"no {unit} was measured"
    low, high = known[0][unit], known[-1][unit]
    values = "alphas" if unit == "alpha" else f"values of {unit}"
    return f"{len(known)} {values} from {low:.4g} to {high:.4g} were measured"
