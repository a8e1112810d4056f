"""``dynadp design`` and ``dynadp tradeoff``: which alpha, from losses and a utility of privacy."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dynadp import planning, privacy, report, research
from dynadp._files import parse_json
from dynadp.cli.options import (
    ADDRESS,
    BELOW_1,
    COUNT,
    DELTA_HELP,
    DIMENSION,
    FILE,
    MEASURE,
    MECHANISM,
    ROUNDS,
    RUN_FILE,
    RUNTIME,
    SHARE,
    Positive,
    address_of,
    option,
    out_option,
    seed_option,
    spreading,
)
from dynadp.cli.output import Answer, new_folder, prints_answer, write_json
from dynadp.errors import DeclarationError

if TYPE_CHECKING:
    from rich.table import Table

    from dynadp.planning import AccuracyLoss, Design, Plan
    from dynadp.research import Objective, Recommendation

_UTILITY = option(
    "--utility",
    type=float,
    nargs=4,
    default=(0.02, 6.0, 9.0, 1.0),
    metavar="W1 W2 W3 W4",
    help="U_priv = w1 ln(w2/(w3 alpha + w4 alpha^2)).",
)
_LIMITS = option(
    "--range", "limits", type=Positive(), nargs=2, metavar="LO HI", help="Of alpha, or mu."
)
_CEILING = option("--ceiling", type=float, help="The loss may be at most this.")
_FLOOR = option("--floor", type=float, help="The utility of privacy must be at least this.")
_NOTHING = (
    "Nothing is recommended: nothing that was tried is clearly better than always giving the same "
    "answer."
)


@click.command()
@option(
    "--loss-fit",
    type=float,
    nargs=3,
    metavar="C4 C5 C6",
    help="L_acc = c4 exp(-c5 alpha) + c6, fitted to losses of public rows.",
)
@option(
    "--points",
    type=FILE,
    help="Instead: measured losses of public rows, as in tradeoff.json.",
)
@_UTILITY
@_LIMITS
@_CEILING
@_FLOOR
@MECHANISM
@option(
    "--rounds",
    type=ROUNDS,
    help="With --mechanism, --dimension and --delta: what the chosen alpha costs in total.",
)
@DIMENSION
@SHARE
@option("--delta", type=BELOW_1, help=DELTA_HELP)
@prints_answer
def design(
    loss_fit: tuple[float, float, float] | None,
    points: str | None,
    utility: tuple[float, float, float, float],
    limits: tuple[float, float] | None,
    ceiling: float | None,
    floor: float | None,
    delta: float | None,
    **run: Any,
) -> Answer:
    """Choose the alpha of a round with the best utility of privacy minus loss of accuracy: of
    measured points, or of a curve.

    A curve's maximum (--loss-fit) is the curve's own: where it misses the losses it was fitted to,
    a measured alpha is better.
    """
    mechanism, rounds = run["mechanism"], run["rounds"]
    needed = (mechanism, rounds, run["dimension"], delta)
    if None in needed and {*needed, run["jacobian_share"]} != {None}:
        raise click.UsageError(
            "give --mechanism, --rounds, --dimension and --delta together (dual: --jacobian-share "
            "too), or none of them"
        )
    if (points is None) == (loss_fit is None):
        raise click.UsageError(
            "give --loss-fit C4 C5 C6, or --points FILE with measured losses; one of them, not both"
        )
    w = planning.PrivacyUtility(*utility)
    chosen: Recommendation | Design
    if points is not None:
        (measured, blind), what = _measured(points), "the best that was measured and is of use"
        chosen = research.recommend(
            measured,
            w,
            fit=research.fit_points(measured),
            limits=limits or (0.0, inf),
            ceiling=ceiling,
            floor=floor,
            blind=blind,
        )
    elif loss_fit is not None:
        curve = planning.AccuracyLoss(*loss_fit)
        chosen = planning.design(curve, w, *(limits or planning.RANGE), ceiling, floor)
        place = "an interior maximum of the curve" if chosen.interior else "an end of the range"
        what = f"{place}, not measured"
    unit = getattr(chosen, "unit", "alpha")
    lines = [_NOTHING if chosen.alpha is None else f"{unit} = {chosen.alpha:.4g} ({what})"]
    lines += [f"  - {reason}" for reason in chosen.reasons]
    priced = None
    if delta is not None and chosen.alpha is not None:
        if unit == "mu":
            raise click.UsageError(
                f"{points} holds mu of Gaussian noise, which --mechanism, --rounds and --dimension "
                "do not price: leave them out, and ask `dynadp account --mechanism gaussian`"
            )
        cost = privacy.total(privacy.equal_rounds(alpha=chosen.alpha, **run), delta)
        priced = {**cost.to_json(), "mechanism": mechanism, "rounds": rounds}
        lines.append(
            f"{rounds} rounds of {mechanism} perturbation cost epsilon = "
            f"{privacy.upper_bound(cost.epsilon)} at delta = {cost.delta:g} in total: "
            f"{privacy.guess_words(cost.epsilon, cost.delta)}."
        )
    known = {"version": 1, "measured": points is not None}
    return Answer({**known, **chosen.to_json(), "total": priced}, lines)


def _measured(path: str) -> tuple[list[dict[str, float]], float | None]:
    """Points of a file: ``alpha`` or ``mu``, and ``median``; ``low``, ``high`` and ``error`` where
    they are there. And ``blind``, the loss of answers that look at no row, where the file has it.
    """
    try:
        content = parse_json(Path(path).read_text(encoding="utf-8"))
        given = content["points"] if isinstance(content, dict) else content
        known = ("alpha", "mu", "median", "low", "high", "error")
        points = [{name: float(one[name]) for name in known if name in one} for one in given]
        unit = research.unit_of(points)
        if not points or not all(point[unit] > 0 and "median" in point for point in points):
            raise ValueError("no points, or one without an alpha, or mu, above 0 and a median")
        blind = content.get("blind") if isinstance(content, dict) else None
        blind = None if blind is None else float(blind)
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DeclarationError(
            f"{path} holds no measured points ({error}); expected "
            f'{{"points": [{{"alpha": A, "median": LOSS}}, ...]}}, such as '
            "tradeoff.json"
        ) from error
    return points, blind


@click.command()
@RUN_FILE
@_UTILITY
@_LIMITS
@_CEILING
@_FLOOR
@option(
    "--draws",
    type=click.IntRange(min=2),
    default=12,
    help="Of the noise, for each alpha or mu; with --join over all samples of the rows.",
)
@option(
    "--join",
    is_flag=True,
    help="Instead: should each node join, or stay alone with a model of its own rows?",
)
@option(
    "--honest",
    type=COUNT,
    help="With --join: so many nodes are honest, whoever looks not among them, for sealed sums.",
)
@option(
    "--colluding",
    type=click.IntRange(min=0),
    help="With --join, instead of --honest: so many may collude.",
)
@MEASURE
@seed_option("Of the sweep, which is a SIMULATION.")
@out_option("Folder to make; NAME-tradeoff by default, with --join NAME-join.")
@RUNTIME
@ADDRESS
@prints_answer
def tradeoff(
    run_file: str,
    utility: tuple[float, float, float, float],
    limits: tuple[float, float] | None,
    draws: int,
    join: bool,
    honest: int | None,
    colluding: int | None,
    measure: str | None,
    seed: int,
    out: str | None,
    runtime: str,
    address: str | None,
    **constraints: Any,
) -> Answer:
    """Try alphas on public rows of a run file's sizes, draw the losses, and recommend a measured
    alpha with its total. Where noise is Gaussian, as with algorithm sum, it is mu instead of alpha.

    With --join, compare what each node gets alone, without noise, with private models of all nodes'
    rows at the run file's totals: sums in the open, sealed sums and ADMM. Sealed sums rest on
    honest nodes; where neither the run file nor an option declares how many there are, half are
    taken to be, and the answer says so.
    """
    from dynadp._intervals import SEVERAL

    address = address_of(runtime, address)
    if join:
        _refuse_for_join(limits, constraints)
    elif honest is not None or colluding is not None:
        raise click.UsageError(
            "--honest and --colluding go with --join; a sweep tries the run file's own mechanism: "
            'declare mechanism = "sealed" and honest there'
        )
    report.charts.require()
    setting = report.PublicSetting.of_file(Path(run_file)).measured_by(measure)
    if join:
        from dynadp.cli.joining import answer_join

        with spreading(runtime, address) as spread:
            return answer_join(setting, draws, seed, out, spread, honest, colluding)
    folder = new_folder(out or f"{setting.name}-tradeoff")
    rows = setting.rows(seed)
    asked = research.totals_to_try(setting.plan, limits)
    planned = [setting.plan(epsilon) for epsilon in asked]
    unit = "mu" if planned[0].mechanism.noise == "gaussian" else "alpha"
    tasks = [{"planned": setting.plan(epsilon, rows.counts)} for epsilon in asked]
    shared: dict[str, Any] = {"topology": setting.topology, "rows": rows, "draws": draws}
    shared |= {"seed": seed, "objective": setting.objective}
    with spreading(runtime, address) as spread:
        losses = spread(research.try_plan, tasks, shared)
    points = [
        {"epsilon": epsilon, unit: one.alpha, **loss}
        for epsilon, one, loss in zip(asked, planned, losses, strict=True)
    ]
    fit, w = research.fit_points(points), planning.PrivacyUtility(*utility)
    blind = setting.objective.blind(rows.held_out)
    chosen = research.recommend(points, w, fit=fit, blind=blind, **constraints)
    best = next((one for one in planned if one.alpha == chosen.alpha), None)
    some, test_rows = best or planned[0], len(rows.held_out)
    result: dict[str, Any] = {
        "version": 1,
        "simulation": True,
        "source": rows.source,
        unit: chosen.alpha,
        "epsilon": best.total.epsilon if best else None,
        "delta": setting.delta,
        "rounds": some.rounds,
        "dimension": setting.dimension,
        "test_rows": test_rows,
        "measure": setting.objective.name,
        "honest": some.sealing.honest if some.sealing else None,
        "blind": blind,
        "words": [
            *_words(best, some, setting.objective, rows.source, fit, chosen, draws, test_rows),
            *_asks(setting, best, points),
        ],
        "points": points,
        "fit": None if fit is None else fit.to_json(),
        "recommended": chosen.to_json(),
    }
    write_json(folder / "tradeoff.json", result)
    caption = [
        f"data: {rows.source}",
        f"SIMULATION, seed {seed}: {setting.topology.name}, {some.rounds} rounds, {draws} draws",
        f"bars: {SEVERAL} ({test_rows:,})",
    ]
    drawn = report.paper.curve(points, fit, w, chosen.alpha, caption, setting.objective.axis)
    pictures = report.charts.save(drawn, folder / "tradeoff", "svg")
    result |= {"folder": str(folder), "pictures": [str(path) for path in pictures]}
    title = _NOTHING
    if best is not None:
        title = (
            f"Recommended: epsilon = {_point(points, best)['epsilon']:.4g}. It costs epsilon = "
            f"{privacy.upper_bound(best.total.epsilon)} at delta = {setting.delta:g} in total."
        )
    reasons = [f"  - {words}" for words in result["words"]]
    without = [] if blind is None else [f"Always the same answer: {100 * (1 - blind):.1f}."]
    lines: list[str | Table] = [
        _table(points, best, setting),
        *without,
        title,
        *reasons,
        f"Picture: {pictures[0]}",
    ]
    return Answer(result, lines)


def _table(
    points: list[dict[str, float]],
    best: "Plan | None",
    setting: "report.PublicSetting",
) -> "Table":
    """What the page shows as a table: the measure, its interval and right guesses, by total."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    better = setting.objective.better
    for title in ("epsilon", better, "from", "to", "guesses right in 100", ""):
        table.add_column(title, justify="left" if title == "" else "right", overflow="fold")
    for point in points:
        shown = (f"{100 * (1 - point[name]):.1f}" for name in ("median", "high", "low"))
        right = privacy.guesses_in_100(point["epsilon"], setting.delta)
        chosen = best is not None and best.alpha in (point.get("alpha"), point.get("mu"))
        table.add_row(
            f"{point['epsilon']:.4g}", *shown, f"at most {right}", "recommended" if chosen else ""
        )
    return table


def _refuse_for_join(limits: Any, constraints: Mapping[str, Any]) -> None:
    """Refuse options of a sweep that a comparison at one total does not have."""
    utility = click.get_current_context().get_parameter_source("utility")
    given = {"--range": limits, **{f"--{name}": one for name, one in constraints.items()}}
    names = [name for name, one in given.items() if one is not None]
    names += ["--utility"] if utility is ParameterSource.COMMANDLINE else []
    if names:
        raise click.UsageError(
            f"--join compares at the run file's total and chooses no alpha: leave out "
            f"{', '.join(names)}"
        )


def _words(
    best: "Plan | None",
    some: "Plan",
    objective: "Objective",
    source: str,
    fit: "AccuracyLoss | None",
    chosen: "Recommendation",
    draws: int,
    test_rows: int,
) -> list[str]:
    from dynadp._intervals import SEVERAL

    words = [
        f"a SIMULATION on {source}: {draws} seeded draws for each {chosen.unit}; your own "
        "rows may behave otherwise",
        f"the loss is {objective.words} on {test_rows:,} held-out rows of these; its "
        f"interval spans {SEVERAL}",
        *chosen.reasons,
    ]
    if fit is not None:
        words.append(
            f"the fitted curve: c4 = {fit.c4:.3g}, c5 = {fit.c5:.3g}, c6 = {fit.c6:.3g} "
            f"({fit.r2 or 0.0:.1%} of the weighted variance)"
        )
    if best is not None:
        total = best.total
        words.append(
            f"{report.round_words(best)} cost epsilon = {privacy.upper_bound(total.epsilon)} at "
            f"delta = {total.delta:g}: "
            f"{privacy.guess_words(total.epsilon, total.delta, best.unit)}"
        )
    which = f"this {chosen.unit}" if best else f"the smallest {chosen.unit}"
    return [
        *words,
        f"{_constants(some)} are those that `dynadp train` takes for {which}",
        *_honesty(some),
    ]


def _asks(
    setting: "report.PublicSetting", best: "Plan | None", points: list[dict[str, float]]
) -> list[str]:
    """What a run file says to get the recommended plan; the page shows the same number."""
    if best is None:
        return []
    key, value = setting.asks(_point(points, best)["epsilon"], best)
    return [f"a run file asks for it with privacy.{key} = {value:g}"]


def _point(points: list[dict[str, float]], best: "Plan") -> dict[str, float]:
    """The measured point of a plan."""
    return next(one for one in points if best.alpha in (one.get("alpha"), one.get("mu")))


def _honesty(best: "Plan") -> list[str]:
    """What sealed sums rest on, and how they were tried."""
    if best.sealing is None:
        return []
    return [
        f"sums are sealed: all of this holds as long as {best.sealing.honest} of "
        f"{best.sealing.members} nodes are honest, whoever looks not among them",
        "the sweep uses no masks: the noise of the sum over all nodes is drawn at once, which has "
        "the same law",
    ]


def _constants(best: "Plan") -> str:
    s, steps = best.settings, best.steps
    if steps is None:
        return f"eta = {s.eta:.3g}, rho = {s.rho:.3g} and C = {s.C:g}"
    name = "sealed sums" if best.sealing else "algorithm sum"
    return f"{name}, pull = {steps.pull:.3g} and momentum = {steps.momentum:g}"
