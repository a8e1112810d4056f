"""Commands for research: the paper's theorems, its trade-off and its figures; heavy imports happen
inside.
"""

from typing import Any

import click

from dynadp.cli.cluster import ADDRESS, RUNTIME, address_of
from dynadp.cli.options import DIMENSION, JSON, MECHANISM, ROUNDS, RUN_FILE, SHARE, Positive


@click.command()
@click.option(
    "--theorem",
    type=click.Choice(["3", "4", "4.1", "5", "6", "6.1", "6.2"]),
    required=True,
    help="3: Algorithm 1; 4 (and 4.1): Algorithm 2; 5, 6 (and 6.1, 6.2): Algorithm 3.",
)
@click.option(
    "--accuracy", type=Positive(), help="alpha_acc: expected loss above the reference's, at most."
)
@click.option(
    "--failure",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    help="delta, of each event that may fail.",
)
@click.option(
    "--norm", type=Positive(), required=True, help="||f0||, length of the reference classifier."
)
@click.option(
    "--dimension", type=click.IntRange(min=1), help="Columns of the rows, with the intercept."
)
@click.option("--alpha", type=Positive(), help="Loss of one round; the smallest, where it varies.")
@click.option("--C", "C", type=Positive(), default=1.0, show_default=True, help="The paper's C^R.")
@click.option(
    "--c1", type=Positive(), default=0.25, show_default=True, help="sup L'', the paper's c4 too."
)
@click.option("--eta", type=Positive(), help="Penalty; Theorem 4 can do without.")
@click.option(
    "--degree", type=click.IntRange(min=1), help="Neighbours of the node; Theorem 4 can do without."
)
@click.option(
    "--neighbour",
    "neighbours",
    multiple=True,
    metavar="ALPHA[:ROWS]",
    help="alpha and rows of one neighbour, instead of --degree; repeat it for each. By default "
    "neighbours have the node's own.",
)
@click.option(
    "--rounds",
    type=ROUNDS,
    default=1,
    show_default=True,
    help="Rounds for which it must hold at once.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help="Asks back: the accuracy for an --alpha, or the alpha for an --accuracy.",
)
@click.option(
    "--beta",
    type=Positive(),
    help="The form as printed, with this value of the paper's unknown constant.",
)
@JSON
def bounds(**given: Any) -> None:
    """How many rows a node needs for an accuracy, by the paper's Theorems 3 to 6, corrected; or
    back from rows.

    Worst-case bounds: they show how rows, alpha and accuracy trade, not what a run will reach.
    """
    from dynadp.cli.theory import run_bounds

    run_bounds(**given)


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    help="Folder with UCI Adult's files; DYNADP_DATA by default.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="3 draws instead of 50: under two minutes instead of a quarter of an hour.",
)
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; must not hold anything yet."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of noise and split."
)
@JSON
def reproduce(data: str | None, quick: bool, out: str | None, seed: int, as_json: bool) -> None:
    """The paper's figures on Adult, and its claims beside what was seen: a SIMULATION on published
    rows.
    """
    from dynadp.cli.reproduce import run_reproduce

    run_reproduce(data, quick, out, as_json, seed)


UTILITY = click.option(
    "--utility",
    type=float,
    nargs=4,
    default=(0.02, 6.0, 9.0, 1.0),
    show_default=True,
    metavar="W1 W2 W3 W4",
    help="U_priv = w1 ln(w2/(w3 alpha + w4 alpha^2)).",
)
LIMITS = click.option(
    "--range", "limits", type=Positive(), nargs=2, metavar="LO HI", help="Of alpha."
)
CEILING = click.option("--ceiling", type=float, help="The loss may be at most this.")
FLOOR = click.option("--floor", type=float, help="The utility of privacy must be at least this.")


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
    type=click.Path(dir_okay=False),
    help="Instead: measured losses of public rows, as in tradeoff.json.",
)
@UTILITY
@LIMITS
@CEILING
@FLOOR
@MECHANISM
@click.option(
    "--rounds",
    type=ROUNDS,
    help="With --mechanism, --dimension and --delta: what the chosen alpha costs in total.",
)
@DIMENSION
@SHARE
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, max_open=True),
    help="Chance left to worse luck; below 1/rows.",
)
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
    """The alpha of a round with the best utility of privacy minus loss of accuracy: of measured
    points, or of a curve.

    A curve's maximum (--loss-fit) is the curve's own: where it misses the losses it was fitted to,
    a measured alpha is better.
    """
    from dynadp.cli.tradeoff import run_design

    releases = None
    if mechanism is not None and rounds is not None and dimension is not None and delta is not None:
        releases = (mechanism, rounds, dimension, delta, jacobian_share)
    elif (mechanism, rounds, dimension, delta, jacobian_share) != (None,) * 5:
        raise click.UsageError(
            "give --mechanism, --rounds, --dimension and --delta together (dual: --jacobian-share "
            "too), or none of them"
        )
    run_design(loss_fit, utility, limits, ceiling, floor, releases, as_json, points)


@click.command()
@RUN_FILE
@UTILITY
@LIMITS
@CEILING
@FLOOR
@click.option(
    "--draws",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    help="Of the noise, for each alpha.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the sweep, which is a SIMULATION.",
)
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; NAME-tradeoff by default."
)
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
    from dynadp.cli.tradeoff import run_tradeoff

    where = runtime, address_of(runtime, address)
    run_tradeoff(run_file, out, as_json, utility, limits, ceiling, floor, draws, seed, *where)
