"""``dynadp reproduce``: the paper's figures on Adult, and a verdict on each of its claims."""

import json
from dataclasses import replace
from pathlib import Path

import click

from dynadp import research
from dynadp.cli.options import FOLDER, JSON, out_option, seed_option
from dynadp.cli.output import print_json


@click.command()
@click.option(
    "--data",
    type=FOLDER,
    help="Folder with UCI Adult's files; DYNADP_DATA by default.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="3 draws instead of 50: under two minutes instead of a quarter of an hour.",
)
@out_option("Folder to make; must not hold anything yet.")
@seed_option("Of noise and split.")
@JSON
def reproduce(data: str | None, quick: bool, out: str | None, seed: int, as_json: bool) -> None:
    """Make the paper's figures on Adult, and set its claims beside what was seen: a SIMULATION on
    published rows.
    """
    from dynadp._files import write_whole
    from dynadp.report import charts, paper
    from dynadp.runs import RunFolder

    charts.require()
    folder = Path(out or ("reproduce-quick" if quick else "reproduce"))
    RunFolder.require_empty(folder)
    chosen = replace(research.QUICK if quick else research.FULL, seed=seed)
    rows, source = research.load(data, chosen)
    click.echo(f"SIMULATION on {source}", err=True)
    result = research.reproduce(
        rows, source, chosen, lambda text: click.echo(f"  {text}", err=True)
    )
    judged = research.judge_claims(result)
    result["claims"] = [claim.to_json() for claim in judged]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "numbers.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_whole(folder / "claims.md", research.page(result, judged))
    pictures = [
        path
        for name, chart in paper.figures(result).items()
        for path in charts.save(chart, folder / name, "svg")
    ]
    if as_json:
        names = ("version", "simulation", "source", "settings", "claims")
        shown = {name: result[name] for name in names}
        print_json({**shown, "folder": str(folder), "pictures": [str(path) for path in pictures]})
        return
    for claim in judged:
        click.echo(f"{claim.claim}: {claim.verdict}")
    click.echo(
        f"SIMULATION on {source}, {chosen.draws} draws; numbers, figures and claims.md are in "
        f"{folder}"
    )
