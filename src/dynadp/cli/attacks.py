"""``dynadp attacks``: what messages give away without noise, and with it."""

from collections.abc import Callable, Mapping
from math import exp
from pathlib import Path
from typing import Any

import click

from dynadp.cli.options import JSON

CASES = (("none", None), ("dual", 0.1), ("dual", 1.0), ("primal", 0.1), ("primal", 1.0))


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    help="Folder to make; 'attacks' by default. Must not hold anything yet.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the rows that are made, and the noise.",
)
@JSON
def attacks(out: str | None, seed: int, as_json: bool) -> None:
    """Attack Algorithm 1 and private runs on made rows, and draw what was found.

    Reconstruction of rows, and membership inference by a neighbour and from all messages: a
    demonstration on synthetic rows, a SIMULATION that protects nobody. Attacks that fail here prove
    nothing about better ones.
    """
    run_attacks(out, seed, as_json)


def run_attacks(
    out: str | None, seed: int, as_json: bool, runs: int = 1000, rows: int = 20
) -> None:
    """Run the gallery, and leave a folder with attacks.json and a picture for each attack; print
    what was found.

    Parameters
    ----------
    out
        Folder to make; ``attacks`` by default. Must not hold anything.
    seed
        Of rows and noise.
    as_json
        Print JSON.
    runs, rows
        How many runs membership inference sees of each kind, and how many rows are sought.
    """
    import json
    import os
    import sys

    if (
        "numpy" not in sys.modules
    ):  # many small products: threads would only wait for each other on a busy machine
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from dynadp._files import write_whole
    from dynadp.report import attacks as pictures
    from dynadp.report import charts
    from dynadp.runs import RunFolder

    charts.require()
    folder = Path(out or "attacks")
    RunFolder.require_empty(folder)
    result = gallery(seed, runs, rows, lambda text: click.echo(f"  {text}", err=True))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "attacks.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    drawn = []
    for name, chart in pictures.figures(result).items():
        drawn.append(folder / f"{name}.png")
        chart.save(str(drawn[-1]), scale_factor=2)
    if as_json:
        click.echo(
            json.dumps(
                {**result, "folder": str(folder), "pictures": [str(path) for path in drawn]},
                indent=1,
            )
        )
        return
    for line in words(result):
        click.echo(line)
    click.echo(f"Numbers and pictures are in {folder}.")


def gallery(seed: int, runs: int, rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Every attack on Algorithm 1 and on private runs, on census rows made here, as JSON."""
    from dynadp.data import census
    from dynadp.mechanisms import Dual, Mechanism, Primal
    from dynadp.research.attacks import membership, reconstruct, small_node

    mechanisms: dict[str, Mechanism | None] = {"none": None, "dual": Dual(), "primal": Primal()}
    data, few = census(300, seed=seed, nodes=3), census(15, seed=seed, nodes=3)
    population = census(1000, seed=seed + 1, nodes=1, test_rows=0).train
    result: dict[str, Any] = {
        "version": 1,
        "simulation": True,
        "source": "census rows made here (synthetic)",
        "seed": seed,
        "nodes": 3,
        "rows_a_node": 100,
        "rows_of_small_node": 5,
        "reconstruction": [],
        "small_node": [],
        "membership": [],
    }
    for name, alpha in CASES:
        say(called({"mechanism": name, "alpha": alpha}))
        found = reconstruct(data, population, mechanisms[name], alpha, rows=rows, seed=seed)
        result["reconstruction"].append(found.to_json())
        result["small_node"].append(
            small_node(few, population, mechanisms[name], alpha, seed=seed).to_json()
        )
        both = membership(data.shards(), mechanisms[name], alpha, runs=runs, seed=seed)
        result["membership"] += [one.to_json() for one in both.values()]
    return result


def called(case: Mapping[str, Any]) -> str:
    """A case by its name."""
    if case["mechanism"] == "none":
        return "Algorithm 1"
    return f"{'DVP' if case['mechanism'] == 'dual' else 'PVP'}, alpha = {case['alpha']:g} a round"


def _odds(odds: float | None) -> str:
    """Odds for the row against 1; None, which stands for infinite ones, is certainty."""
    return "certainty" if odds is None else f"{odds:.2f}:1" if odds < 1e4 else f"{odds:.1e}:1"


def words(result: Mapping[str, Any]) -> list[str]:
    """What was found, in words."""
    open_, *private = result["reconstruction"]
    nobody, *hidden = result["small_node"]
    out = [
        f"SIMULATION on {result['source']}: a demonstration, not a proof. {result['nodes']} nodes "
        f"in a row, "
        f"{open_['rounds']} rounds; the middle node is attacked.",
        "",
        f"Reconstruction by someone who knows every row of the node but one ({open_['rows']} rows "
        f"sought, one at a time):",
        f"  From Algorithm 1's messages the attack recovered {open_['recovered']:.3g} of "
        f"{open_['attributes']} attributes of a "
        f"row; guessing gives {open_['guessing']:.3g}.",
        *(
            f"  {called(case)}: {case['recovered']:.3g}; guessing gives {case['guessing']:.3g}."
            for case in private
        ),
        f"Reconstruction by someone who knows no row, of a node with "
        f"{result['rows_of_small_node']} rows:",
        f"  From Algorithm 1's messages it recovered {nobody['recovered']:.3g} of "
        f"{nobody['attributes']} attributes of every "
        f"row; guessing gives {nobody['guessing']:.3g}.",
        *(f"  {called(case)}: {case['recovered']:.3g}." for case in hidden),
    ]
    who = {
        "neighbour": "one neighbour, who sees what it exchanges",
        "transcript": "someone who sees every message",
    }
    for view, name in who.items():
        out.append(
            f"Is the row in the data, or its opposite? Asked by {name}; 50 of 100 answers right "
            f"is a coin toss:"
        )
        for case in (case for case in result["membership"] if case["view"] == view):
            answers = 2 * case["runs"]
            if case["mechanism"] == "none":
                out.append(
                    f"  Algorithm 1: {round(answers * case['right'])} of {answers} answers right, "
                    f"in every run the same, for "
                    f"nothing is drawn; odds from 1:1 to {_odds(case['odds'])}."
                )
                continue
            low, high = (100 * case["interval"][end] for end in ("lower", "upper"))
            out.append(
                f"  {called(case)}: {100 * case['right']:.1f} of 100 right ({low:.1f} to "
                f"{high:.1f} given {answers:,} answers; "
                f"the accountant allows {100 * case['right_bound']:.1f}); odds from 1:1 to "
                f"{_odds(case['odds'])}, in 99 of 100 "
                f"runs below {_odds(case['odds_high'])}; epsilon = {case['epsilon']:.2g} in "
                f"total, e^epsilon = "
                f"{exp(case['epsilon']):.3g}."
            )
    return [
        *out,
        "An attack that fails here proves nothing about better ones; the guarantee is the "
        "accountant's figure.",
    ]
