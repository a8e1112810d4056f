"""``dynadp attacks``: what messages give away without noise, and with it."""

import os
import sys
from collections.abc import Mapping
from math import exp
from typing import Any

import click

from dynadp.cli.options import option, out_option, seed_option
from dynadp.cli.output import Answer, new_folder, note, prints_answer, write_json

_VIEWS = {
    "neighbour": "one neighbour, who sees what it exchanges",
    "transcript": "someone who sees every message",
}


@click.command()
@out_option("Folder to make; 'attacks' by default. Must not hold anything yet.")
@seed_option("Of the rows that are made, and the noise.")
@option(
    "--runs",
    type=click.IntRange(2),
    default=1000,
    help="Runs that membership inference sees with a row, and as many without.",
)
@option(
    "--rows",
    type=click.IntRange(1, 100),
    default=20,
    help="Rows that reconstruction looks for.",
)
@prints_answer
def attacks(out: str | None, seed: int, runs: int, rows: int) -> Answer:
    """Attack Algorithm 1 and private runs of all algorithms on made rows, and draw the outcome.

    Reconstruction of rows, and membership inference by a neighbour and from all messages: a
    demonstration on synthetic rows, a SIMULATION that protects nobody. Attacks that fail here prove
    nothing about better ones.
    """
    if "numpy" not in sys.modules:  # products are small: threads would wait for each other
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dynadp.report import attacks as pictures
    from dynadp.report import charts
    from dynadp.research.attacks import run_gallery

    charts.require()
    folder = new_folder(out or "attacks")

    def on_case(mechanism: str, alpha: float | None, seen: str | None) -> None:
        case = {"mechanism": mechanism, "alpha": alpha, "seen": seen}
        note(f"  {_called(case)}")

    result = run_gallery(seed, runs, rows, on_case)
    write_json(folder / "attacks.json", result)
    drawn = []
    for name, chart in pictures.figures(result).items():
        drawn.append(str(folder / f"{name}.png"))
        chart.save(drawn[-1], scale_factor=2)
    lines = [*words(result), f"Numbers and pictures are in {folder}."]
    return Answer({**result, "folder": str(folder), "pictures": drawn}, lines)


def words(result: Mapping[str, Any]) -> list[str]:
    """Return the outcome, in words."""
    plain, *private = result["reconstruction"]
    plain_small, *private_small = result["small_node"]
    lines = [
        f"SIMULATION on {result['source']}: a demonstration, not a proof. {result['nodes']} nodes "
        f"in a row, {plain['rounds']} rounds; the middle node is attacked.",
        "",
        f"Reconstruction by someone who knows every row of the node but one ({plain['rows']} rows "
        "sought, one at a time):",
        f"  From Algorithm 1's messages the attack recovered {plain['recovered']:.3g} of "
        f"{plain['attributes']} attributes of a row; guessing gives {plain['guessing']:.3g}.",
    ]
    for case in private:
        lines.append(
            f"  {_called(case)}: {case['recovered']:.3g}; guessing gives {case['guessing']:.3g}."
        )
    lines += [
        "Reconstruction by someone who knows no row, of a node with "
        f"{result['rows_of_small_node']} rows:",
        f"  From Algorithm 1's messages it recovered {plain_small['recovered']:.3g} of "
        f"{plain_small['attributes']} attributes of every row; guessing gives "
        f"{plain_small['guessing']:.3g}.",
    ]
    lines += [f"  {_called(case)}: {case['recovered']:.3g}." for case in private_small]
    for view, who in _VIEWS.items():
        lines.append(
            f"Is the row in the data, or its opposite? Asked by {who}; 50 of 100 answers right is "
            "a coin toss:"
        )
        lines += [_answers(case) for case in result["membership"] if case["view"] == view]
    lines.append(
        "An attack that fails here proves nothing about better ones; the guarantee is the "
        "accountant's figure."
    )
    return lines


def _called(case: Mapping[str, Any]) -> str:
    """The name of a case."""
    if case["mechanism"] == "none":
        return "Algorithm 1"
    if case["mechanism"] == "sum":
        return f"Sums, mu = {case['alpha']:g} a round"
    if case["mechanism"] == "sealed":
        who = ", all others collude" if case["seen"] == "node" else ""
        return f"Sealed sums{who}, mu = {case['alpha']:g} a round"
    return f"{'DVP' if case['mechanism'] == 'dual' else 'PVP'}, alpha = {case['alpha']:g} a round"


def _answers(case: Mapping[str, Any]) -> str:
    """How many answers of membership inference were right, beside what the accountant allows."""
    count, odds = 2 * case["runs"], _odds(case["odds"])
    if case["mechanism"] == "none":
        return (
            f"  Algorithm 1: {round(count * case['right'])} of {count} answers right, in every "
            f"run the same, for nothing is drawn; odds from 1:1 to {odds}."
        )
    right, bound = 100 * case["right"], 100 * case["right_bound"]
    low, high = (100 * case["interval"][end] for end in ("lower", "upper"))
    if right <= bound:
        excess = ""
    elif low <= bound:
        excess = ", which lies within this interval: the excess may be chance"
    else:
        excess = ", which lies BELOW this interval: doubt the guarantee"
    return (
        f"  {_called(case)}: {right:.1f} of 100 right ({low:.1f} to {high:.1f}: 95% interval of "
        f"{count:,} answers; the accountant allows {bound:.1f}{excess}); odds from 1:1 to {odds}, "
        f"in 99 of 100 runs below {_odds(case['odds_high'])}; epsilon = {case['epsilon']:.2g} in "
        f"total, e^epsilon = {exp(case['epsilon']):.3g}."
    )


def _odds(odds: float | None) -> str:
    """Odds for the row against 1; None, which stands for infinite ones, is certainty."""
    return "certainty" if odds is None else f"{odds:.2f}:1" if odds < 1e4 else f"{odds:.1e}:1"
