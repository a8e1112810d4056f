"""``dynadp design`` and ``dynadp tradeoff``: which alpha, from losses and a utility of privacy."""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynadp import planning, privacy, report, research
from dynadp.cli.cluster import ADDRESS, RUNTIME, address_of, spreading
from dynadp.cli.options import (
    BELOW_1,
    DELTA_HELP,
    DIMENSION,
    FILE,
    JSON,
    MECHANISM,
    ROUNDS,
    RUN_FILE,
    SHARE,
    Positive,
    out_option,
    seed_option,
)
from dynadp.cli.output import print_json
from dynadp.errors import DeclarationError

if TYPE_CHECKING:
    from dynadp.planning import AccuracyLoss, Design, Plan
    from dynadp.research import Recommendation

_UTILITY = click.option(
    "--utility",
    type=float,
    nargs=4,
    default=(0.02, 6.0, 9.0, 1.0),
    show_default=True,
    metavar="W1 W2 W3 W4",
    help="U_priv = w1 ln(w2/(w3 alpha + w4 alpha^2)).",
)
_LIMITS = click.option(
    "--range", "limits", type=Positive(), nargs=2, metavar="LO HI", help="Of alpha."
)
_CEILING = click.option("--ceiling", type=float, help="The loss may be at most this.")
_FLOOR = click.option("--floor", type=float, help="The utility of privacy must be at least this.")


@click.command()
@click.option(
    "--loss-fit",
    type=float,
    nargs=3,
    metavar="C4 C5 C6",
    help="L_acc = c4 exp(-c5 alpha) + c6, fitted to losses of public rows.",
)
@click.option(
    "--points",
    type=FILE,
    help="Instead: measured losses of public rows, as in tradeoff.json.",
)
@_UTILITY
@_LIMITS
@_CEILING
@_FLOOR
@MECHANISM
@click.option(
    "--rounds",
    type=ROUNDS,
    help="With --mechanism, --dimension and --delta: what the chosen alpha costs in total.",
)
@DIMENSION
@SHARE
@click.option("--delta", type=BELOW_1, help=DELTA_HELP)
@JSON
def design(
    loss_fit: tuple[float, float, float] | None,
    points: str | None,
    utility: tuple[float, float, float, float],
    limits: tuple[float, float] | None,
    ceiling: float | None,
    floor: float | None,
    mechanism: str | None,
    rounds: int | None,
    dimension: int | None,
    jacobian_share: float | None,
    delta: float | None,
    as_json: bool,
) -> None:
    """Choose the alpha of a round with the best utility of privacy minus loss of accuracy: of
    measured points, or of a curve.

    A curve's maximum (--loss-fit) is the curve's own: where it misses the losses it was fitted to,
    a measured alpha is better.
    """
    asked = (mechanism, rounds, dimension, delta)
    if None in asked and (*asked, jacobian_share) != (None,) * 5:
        raise click.UsageError(
            "give --mechanism, --rounds, --dimension and --delta together (dual: --jacobian-share "
            "too), or none of them"
        )
    w = planning.PrivacyUtility(*utility)
    chosen: Recommendation | Design
    if points is not None and loss_fit is None:
        measured, what = _measured(points), "the best that was measured"
        chosen = research.recommend(
            measured,
            w,
            fit=research.fit_points(measured),
            limits=limits or (0.0, inf),
            ceiling=ceiling,
            floor=floor,
        )
    elif loss_fit is not None and points is None:
        curve = planning.AccuracyLoss(*loss_fit)
        chosen = planning.design(curve, w, *(limits or planning.RANGE), ceiling, floor)
        place = "an interior maximum of the curve" if chosen.interior else "an end of the range"
        what = f"{place}, not measured"
    else:
        raise click.UsageError(
            "give --loss-fit C4 C5 C6, or --points FILE with measured losses; one of them, not both"
        )
    cost = None
    if mechanism and rounds and dimension and delta is not None:
        events = privacy.equal_rounds(mechanism, chosen.alpha, dimension, rounds, jacobian_share)
        cost = privacy.total(events, delta)
    if as_json:
        priced = {**cost.to_json(), "mechanism": mechanism, "rounds": rounds} if cost else None
        known = {"version": 1, "measured": points is not None}
        print_json({**known, **chosen.to_json(), "total": priced})
        return
    click.echo(f"alpha = {chosen.alpha:.4g} ({what})")
    for reason in chosen.reasons:
        click.echo(f"  - {reason}")
    if cost:
        click.echo(
            f"{rounds} rounds of {mechanism} perturbation cost epsilon = "
            f"{privacy.upper_bound(cost.epsilon)} at delta = {cost.delta:g} in total: "
            f"{privacy.guess_words(cost.epsilon, cost.delta)}."
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


@click.command()
@RUN_FILE
@_UTILITY
@_LIMITS
@_CEILING
@_FLOOR
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    help="Of the noise, for each alpha.",
)
@seed_option("Of the sweep, which is a SIMULATION.")
@out_option("Folder to make; NAME-tradeoff by default.")
@RUNTIME
@ADDRESS
@JSON
def tradeoff(
    run_file: str,
    utility: tuple[float, float, float, float],
    limits: tuple[float, float] | None,
    ceiling: float | None,
    floor: float | None,
    draws: int,
    seed: int,
    out: str | None,
    runtime: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Try alphas on public rows of a run file's sizes, draw the losses, and recommend a measured
    alpha with its total.
    """
    from dynadp._files import write_whole
    from dynadp._intervals import SEVERAL
    from dynadp.runs import RunFolder

    address = address_of(runtime, address)
    report.charts.require()
    setting = report.PublicSetting.of_file(Path(run_file))
    folder = Path(out or f"{setting.name}-tradeoff")
    RunFolder.require_empty(folder)
    rows = setting.rows(seed)
    asked = research.totals_to_try(setting.plan, limits)
    planned = [setting.plan(epsilon) for epsilon in asked]
    tested = (
        planned
        if rows.counts == setting.counts
        else [setting.plan(epsilon, rows.counts) for epsilon in asked]
    )
    shared = {"topology": setting.topology, "rows": rows, "draws": draws, "seed": seed}
    with spreading(runtime, address) as spread:
        losses = spread(research.try_plan, [{"planned": one} for one in tested], shared)
    points = [
        {"epsilon": epsilon, "alpha": one.alpha, **found}
        for epsilon, one, found in zip(asked, planned, losses, strict=True)
    ]
    fit, w = research.fit_points(points), planning.PrivacyUtility(*utility)
    blind = rows.held_out.majority_error
    chosen = research.recommend(points, w, fit=fit, ceiling=ceiling, floor=floor, blind=blind)
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
    pictures = report.paper.save(
        report.paper.curve(points, fit, w, chosen.alpha, caption), folder / "tradeoff"
    )
    result |= {"folder": str(folder), "pictures": [str(path) for path in pictures]}
    if as_json:
        print_json(result)
        return
    click.echo(
        f"alpha = {chosen.alpha:.4g} a round: epsilon = "
        f"{privacy.upper_bound(best.total.epsilon)} at "
        f"delta = {setting.delta:g} in total"
    )
    for words in result["words"]:
        click.echo(f"  - {words}")
    click.echo(f"Picture: {pictures[0]}")


def _words(
    best: "Plan",
    source: str,
    fit: "AccuracyLoss | None",
    chosen: "Recommendation",
    draws: int,
    told: int,
) -> Sequence[str]:
    from dynadp._intervals import SEVERAL

    total, s = best.total, best.settings
    facts = {} if fit is None else {"c4": fit.c4, "c5": fit.c5, "c6": fit.c6}
    fitted = ", ".join(f"{name} = {value:.3g}" for name, value in facts.items())
    centred = f" and a centring round with {max(best.centrings):.3g}" if best.centrings else ""
    return [
        f"a SIMULATION on {source}: {draws} seeded draws for each alpha; your own rows may behave "
        f"otherwise",
        f"the loss is the share of wrong answers on {told:,} held-out rows of these; its interval "
        f"spans {SEVERAL}",
        *chosen.reasons,
        *(
            []
            if fit is None
            else [f"the fitted curve: {fitted} ({fit.r2 or 0.0:.1%} of the weighted variance)"]
        ),
        f"{best.rounds} rounds with this alpha{centred} cost epsilon = "
        f"{privacy.upper_bound(total.epsilon)} at delta = {total.delta:g}: "
        f"{privacy.guess_words(total.epsilon, total.delta)}",
        f"eta = {s.eta:.3g}, rho = {s.rho:.3g} and C = {s.C:g} are those that `dynadp train` takes "
        f"for this alpha",
    ]
