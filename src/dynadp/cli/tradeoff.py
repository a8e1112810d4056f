"""``dynadp design`` and ``dynadp tradeoff``: which alpha, from a loss curve and a utility of
privacy.
"""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import click

from dynadp._files import write_whole
from dynadp._intervals import SEVERAL
from dynadp.cli.budget import plan
from dynadp.cli.cluster import spreading
from dynadp.errors import DeclarationError
from dynadp.planning import Plan
from dynadp.privacy import total, up
from dynadp.report import PublicSetting
from dynadp.research import (
    DRAWS,
    RANGE,
    SEED,
    AccuracyLoss,
    PrivacyUtility,
    Recommendation,
    design,
    fit_points,
    recommend,
    totals_to_try,
    try_plan,
)
from dynadp.runs import RunFolder

Constants = tuple[float, float, float, float]


def run_design(
    loss_fit: tuple[float, float, float] | None,
    utility: Constants,
    limits: tuple[float, float] | None = None,
    ceiling: float | None = None,
    floor: float | None = None,
    releases: tuple[str, int, int, float, float | None] | None = None,
    as_json: bool = False,
    points: str | None = None,
) -> None:
    """Print the measured alpha with the best U_priv - loss, or the alpha that maximises U_priv -
    L_acc of a curve alone.

    Parameters
    ----------
    loss_fit, utility
        (c4, c5, c6) or None, and (w1, w2, w3, w4).
    limits, ceiling, floor
        Range of alpha (None: 0.01 to 1 for a curve, all that was measured for points), largest
        loss, least utility.
    releases
        Mechanism, rounds, dimension, delta and (dual) Jacobian share, to print the total cost of
        the chosen alpha.
    as_json
        Print JSON.
    points
        A JSON file with measured ``points``, such as tradeoff.json, instead of a curve.
    """
    if (loss_fit is None) == (points is None):
        raise DeclarationError(
            "give --loss-fit C4 C5 C6, or --points FILE with measured losses; one of them, not both"
        )
    w = PrivacyUtility(*utility)
    if points is not None:
        measured = _measured(points)
        chosen = recommend(
            measured,
            w,
            fit=fit_points(measured),
            limits=limits or (0.0, inf),
            ceiling=ceiling,
            floor=floor,
        )
        alpha, reasons, answer = chosen.alpha, chosen.reasons, chosen.to_json()
        kind = "the best that was measured"
    else:
        assert loss_fit is not None
        best = design(AccuracyLoss(*loss_fit), w, *(limits or RANGE), ceiling, floor)
        alpha, reasons, answer = best.alpha, best.reasons, best.to_json()
        place = "an interior maximum of the curve" if best.interior else "an end of the range"
        kind = f"{place}, not measured"
    cost = None
    if releases:
        mechanism, rounds, dimension, delta, share = releases
        cost = total(plan(mechanism, dimension, alpha, rounds, share), delta)
    if as_json:
        priced = {**cost.to_json(), "mechanism": mechanism, "rounds": rounds} if cost else None
        click.echo(
            json.dumps(
                {"version": 1, "measured": points is not None, **answer, "total": priced}, indent=1
            )
        )
        return
    click.echo(f"alpha = {alpha:.4g} ({kind})")
    for reason in reasons:
        click.echo(f"  - {reason}")
    if cost:
        click.echo(
            f"{rounds} rounds of {mechanism} perturbation cost epsilon = {up(cost.epsilon)} at "
            f"delta = {cost.delta:g} in "
            f"total: {cost.odds}."
        )


def _measured(path: str) -> list[dict[str, float]]:
    """Points of a file: ``alpha`` and ``median``, and ``low``, ``high``, ``error`` where they are
    there.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        given = content["points"] if isinstance(content, dict) else content
        known = ("alpha", "median", "low", "high", "error")
        points = [{name: float(one[name]) for name in known if name in one} for one in given]
        if not points or not all(point["alpha"] > 0 and "median" in point for point in points):
            raise ValueError("no points, or one without an alpha above 0 and a median")
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DeclarationError(
            f"{path} holds no measured points ({error}); expected "
            f'{{"points": [{{"alpha": A, "median": LOSS}}, ...]}}, such as '
            "tradeoff.json"
        ) from error
    return points


def run_tradeoff(
    run_file: str,
    out: str | None = None,
    as_json: bool = False,
    utility: Constants = (0.02, 6.0, 9.0, 1.0),
    limits: tuple[float, float] | None = None,
    ceiling: float | None = None,
    floor: float | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
    runtime: str = "local",
    address: str | None = None,
) -> None:
    """Try totals on public rows of the run file's sizes, draw the losses and recommend a measured
    alpha with its total.

    Parameters
    ----------
    run_file
        Whose rows' numbers, graph, mechanism and penalty are used; not one private cell is.
    out
        Folder to make; ``NAME-tradeoff`` by default. Must not hold anything.
    as_json
        Print JSON.
    utility, ceiling, floor
        As for :func:`run_design`; the loss is the share of wrong answers on held-out public rows.
    limits
        Range of alpha; None for the totals that `dynadp explore` tries.
    draws, seed
        How many draws for each alpha, and their seed.
    runtime, address
        ``local`` or ``ray``, and the address of a Ray cluster that does the sweep.
    """
    from dynadp.report import charts, paper

    charts.require()
    setting = PublicSetting.of_file(Path(run_file))
    folder = Path(out or f"{setting.name}-tradeoff")
    RunFolder.require_empty(folder)
    rows = setting.rows(seed)
    asked = totals_to_try(setting.plan, limits)
    planned = [setting.plan(epsilon) for epsilon in asked]
    tested = (
        planned
        if rows.counts == setting.counts
        else [setting.plan(epsilon, rows.counts) for epsilon in asked]
    )
    shared = {"topology": setting.topology, "rows": rows, "draws": draws, "seed": seed}
    with spreading(runtime, address) as spread:
        losses = spread(try_plan, [{"planned": one} for one in tested], shared)
    points = [
        {"epsilon": epsilon, "alpha": one.alpha, **found}
        for epsilon, one, found in zip(asked, planned, losses, strict=True)
    ]
    fit, w = fit_points(points), PrivacyUtility(*utility)
    blind = rows.held_out.majority_error
    chosen = recommend(points, w, fit=fit, ceiling=ceiling, floor=floor, blind=blind)
    best = next(one for one in planned if one.alpha == chosen.alpha)
    test_rows = len(rows.held_out)
    result: dict[str, Any] = {
        "version": 1,
        "simulation": True,
        "source": rows.source,
        "alpha": chosen.alpha,
        "epsilon": best.total.epsilon,
        "delta": setting.delta,
        "rounds": best.rounds,
        "dimension": setting.dimension,
        "test_rows": test_rows,
        "words": _words(best, rows.source, fit, chosen, draws, test_rows),
        "points": points,
        "fit": None if fit is None else fit.to_json(),
        "recommended": chosen.to_json(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "tradeoff.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    caption = [
        f"data: {rows.source}",
        f"SIMULATION, seed {seed}: {setting.topology.name}, {best.rounds} rounds, {draws} draws",
        f"bars: {SEVERAL} ({test_rows:,})",
    ]
    pictures = paper.save(paper.curve(points, fit, w, chosen.alpha, caption), folder / "tradeoff")
    result |= {"folder": str(folder), "pictures": [str(path) for path in pictures]}
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(
        f"alpha = {chosen.alpha:.4g} a round: epsilon = {up(best.total.epsilon)} at delta = "
        f"{setting.delta:g} in total"
    )
    for words in result["words"]:
        click.echo(f"  - {words}")
    click.echo(f"Picture: {pictures[0]}")


def _words(
    best: Plan,
    source: str,
    fit: AccuracyLoss | None,
    chosen: Recommendation,
    draws: int,
    test_rows: int,
) -> Sequence[str]:
    facts = {} if fit is None else {"c4": fit.c4, "c5": fit.c5, "c6": fit.c6}
    fitted = ", ".join(f"{name} = {value:.3g}" for name, value in facts.items())
    centred = f" and a centring round with {best.centring:.3g}" if best.centring else ""
    return [
        f"a SIMULATION on {source}: {draws} seeded draws for each alpha; your own rows may behave "
        f"otherwise",
        f"the loss is the share of wrong answers on {test_rows:,} held-out rows of these; its "
        f"interval holds {SEVERAL}",
        *chosen.reasons,
        *(
            []
            if fit is None
            else [f"the fitted curve: {fitted} ({fit.r2 or 0.0:.1%} of the weighted variance)"]
        ),
        f"{best.rounds} rounds with this alpha{centred} cost epsilon = {up(best.total.epsilon)} "
        f"at delta = "
        f"{best.total.delta:g}: {best.total.odds}",
        f"eta = {best.eta:.3g}, rho = {best.rho:.3g} and C = {best.C:g} are those that `dynadp "
        f"train` takes for this alpha",
    ]
