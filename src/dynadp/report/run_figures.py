"""The charts of one run as objects: those of its report, for notebooks and papers."""

from pathlib import Path
from typing import Any

from dynadp.report import figures
from dynadp.report.accuracy import Accuracy, public_accuracy
from dynadp.report.budgets import over_rounds, planned_cost, worst
from dynadp.report.charts import require
from dynadp.report.coefficients import ModelView
from dynadp.report.honesty import Honesty
from dynadp.report.progress import Rounds, thinned
from dynadp.report.record_view import RunView


def charts_of_run(path: str | Path) -> dict[str, Any]:
    """Return the charts of a run's report as Altair objects, by name.

    Parameters
    ----------
    path
        A run folder, or the folder of a network's nodes; finished or not.

    Returns
    -------
    dict
        Of ``disagreement``, ``change`` and ``apart`` (over rounds), ``totals`` (epsilon over
        rounds), ``collusion epsilon`` and ``collusion right`` (of sealed sums), ``coefficients``
        and ``calibration`` those that the run has. Nothing but what was declared or released, and
        measures on public rows, is in them.
    """
    require()
    view = RunView.read(path)
    events, _ = planned_cost(view)
    honesty = None
    if events and view.plan:
        honesty = Honesty.of(worst(events, view.plan.delta)[1], view.plan.delta)
    return made(view, events, honesty, ModelView.read(view), public_accuracy(view))


def made(
    view: RunView,
    events: Any,
    honesty: Honesty | None,
    model: ModelView | None,
    accuracy: Accuracy,
) -> dict[str, Any]:
    """Make them of what was read."""
    found: dict[str, Any] = {}
    rounds = thinned(Rounds.of(view).rows)
    sums = view.plan is not None and view.plan.algorithm == "sum"
    for name in figures.QUANTITIES:
        if figures.flat(rounds, name):
            found[name] = figures.convergence(rounds, name, sums=sums)
    if events and view.plan:
        _, own = worst(events, view.plan.delta)
        found["totals"] = figures.totals(over_rounds(own, view.plan.delta))
    if honesty and honesty.drawn:
        for name in figures.COLLUSION:
            chart = figures.collusion(honesty.points, name, honesty.members)
            found[f"collusion {name}"] = chart
    if model:
        found["coefficients"] = figures.coefficients(model.rows, bool(model.basis))
    if accuracy.curve:
        found["calibration"] = figures.calibration(accuracy.curve, accuracy.chance)
    return found
