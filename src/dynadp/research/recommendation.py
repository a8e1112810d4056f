"""Which alpha: of those that were measured, the one with the best U_priv(alpha) - median loss
(maths.md 10).

The fitted L_acc is drawn, and its maximum is shown as the fit's own. It is never recommended: where
the curve misses the points, its maximum is far from theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, sqrt
from typing import Any

import numpy as np

from dynadp.errors import DeclarationError
from dynadp.planning import AccuracyLoss, Design, PrivacyUtility, design
from dynadp.research.tradeoff import fit_loss

Point = Mapping[str, Any]
APART = 2.0  # standard errors by which two measured objectives must differ to count as different


@dataclass(frozen=True)
class Recommendation:
    """The measured alpha with the best objective, and why.

    Attributes
    ----------
    alpha, loss, value
        The alpha, its measured median loss, and U_priv - loss there.
    near
        Other measured alphas whose objective lies within the uncertainty of both.
    end
        Whether it is the smallest or the largest of those that were measured and are allowed.
    fitted
        What the fitted curve alone would choose; None where there is no curve.
    reasons
        How it came about, in words.
    """

    alpha: float
    loss: float
    value: float
    near: tuple[float, ...]
    end: bool
    fitted: Design | None
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def fit_points(points: Sequence[Point]) -> AccuracyLoss | None:
    """L_acc fitted to measured medians, weighed by the width of their intervals; None where the
    points do not fall so.

    Parameters
    ----------
    points
        ``alpha`` and ``median``; ``low`` and ``high`` where they are known.
    """
    medians = np.array([point["median"] for point in points], dtype=float)
    widths = np.array(
        [point.get("high", 1.0) - point.get("low", 0.0) for point in points], dtype=float
    )
    floor = 1e-3 * max(float(np.abs(medians).max(initial=0.0)), 1e-9)
    try:
        fit = fit_loss([point["alpha"] for point in points], medians, np.maximum(widths, floor))
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
        ``alpha`` and ``median`` (of the loss) of each measured alpha; ``error``, the standard error
        of the median, where it is known. The losses must be public.
    w
        The utility of privacy; the paper's by default.
    fit
        The fitted curve, for comparison.
    limits, ceiling, floor
        The range of alpha, the largest loss, the least utility.
    blind
        The loss of answers that look at no row, where it is known: a recommended alpha that is no
        better says so.
    """
    w = w or PrivacyUtility()
    known = sorted(points, key=lambda point: float(point["alpha"]))
    asked = _asked(known, limits, ceiling, floor)
    allowed = [
        point
        for point in known
        if limits[0] <= point["alpha"] <= limits[1]
        and (ceiling is None or point["median"] <= ceiling)
        and (floor is None or float(w(point["alpha"])) >= floor)
    ]
    if not allowed:
        raise DeclarationError(f"no measured alpha is left: {asked}")
    values = [float(w(point["alpha"])) - float(point["median"]) for point in allowed]
    at = int(np.argmax(values))
    best, value = allowed[at], values[at]
    alpha, loss, error = (float(best.get(name, 0.0)) for name in ("alpha", "median", "error"))
    near = tuple(
        float(point["alpha"])
        for point, other in zip(allowed, values, strict=True)
        if point is not best
        and other >= value - APART * sqrt(point.get("error", 0.0) ** 2 + error**2)
    )
    end = at in (0, len(allowed) - 1)
    reasons = [
        f"{_counted(known)}; U_priv - loss is largest at alpha = {alpha:.4g}: {value:.4g}, with a "
        f"median loss of {loss:.4g}"
    ]
    if len(allowed) < len(known):
        reasons.append(f"{len(allowed)} of them are allowed: {asked}")
    if near:
        listed = ", ".join(f"{a:.4g}" for a in near)
        reasons.append(
            f"alpha = {listed} cannot be told apart from it: they lie within {APART:g} standard "
            f"errors"
        )
    if end:
        which = "only" if len(allowed) == 1 else "smallest" if at == 0 else "largest"
        reasons.append(
            f"it is the {which} alpha that was measured and is allowed: a better one may lie beyond"
        )
    if blind is not None and loss >= blind - APART * error:
        reasons.append(
            f"its loss cannot be told apart from {blind:.4g}, that of always giving the commoner "
            f"answer: ask for a ceiling below that if the model is to be of use"
        )
    fitted = None
    if fit is not None:
        fitted = design(fit, w, float(known[0]["alpha"]) * (1 - 1e-9), float(known[-1]["alpha"]))
    reasons.append(_fits(fitted, allowed, values, at))
    return Recommendation(alpha, loss, value, near, end, fitted, tuple(reasons))


def _fits(fitted: Design | None, allowed: Sequence[Point], values: Sequence[float], at: int) -> str:
    """The fitted curve's maximum, beside the nearest measured point."""
    if fitted is None:
        return "no curve c4 exp(-c5 alpha) + c6 that falls is fitted to the losses"
    if not fitted.interior:
        return (
            "the fitted curve has no maximum between the ends; it is drawn, and nothing is chosen "
            "by it"
        )
    nearest = int(np.argmin([abs(np.log(point["alpha"] / fitted.alpha)) for point in allowed]))
    less = "" if nearest == at else f", {values[at] - values[nearest]:.3g} less than the best"
    return (
        f"the fit's own maximum lies at alpha = {fitted.alpha:.4g}; at the nearest measured alpha, "
        f"{allowed[nearest]['alpha']:.4g}, U_priv - loss is {values[nearest]:.4g}{less}. The fit "
        f"is drawn, not recommended"
    )


def _asked(
    known: Sequence[Point], limits: tuple[float, float], ceiling: float | None, floor: float | None
) -> str:
    asked = [] if limits == (0.0, inf) else [f"alpha in [{limits[0]:g}, {limits[1]:g}]"]
    asked += [] if ceiling is None else [f"a loss of at most {ceiling:g}"]
    asked += [] if floor is None else [f"a utility of at least {floor:g}"]
    least = min((float(point["median"]) for point in known), default=inf)
    return (
        f"{' and '.join(asked) or 'anything'} is asked for; {_counted(known)}, with losses from "
        f"{least:.4g}"
    )


def _counted(known: Sequence[Point]) -> str:
    if not known:
        return "no alpha was measured"
    low, high = known[0]["alpha"], known[-1]["alpha"]
    return f"{len(known)} alphas from {low:.4g} to {high:.4g} were measured"
