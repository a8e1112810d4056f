"""``dynadp reproduce``: the paper's figures on Adult, and a verdict on each of its claims."""

import json
from dataclasses import replace
from pathlib import Path

import click

from dynadp._files import write_whole
from dynadp.report import charts, paper
from dynadp.research import FULL, QUICK, Effort, judge_claims, load, page, reproduce
from dynadp.runs import RunFolder


def run_reproduce(
    data: str | None,
    quick: bool,
    out: str | None,
    as_json: bool,
    seed: int = 0,
    effort: Effort | None = None,
) -> None:
    """Run, and leave a folder with numbers.json, claims.md and the figures; print the claims.

    Parameters
    ----------
    data
        Folder with Adult's files; None for the usual places, then census rows.
    quick
        A few draws instead of 50.
    out
        Folder to make; ``reproduce`` or ``reproduce-quick`` by default. Must not hold anything.
    as_json
        Print JSON.
    seed
        Of noise and split.
    effort
        How much to run; overrides ``quick``.
    """
    charts.require()
    folder = Path(out or ("reproduce-quick" if quick else "reproduce"))
    RunFolder.require_empty(folder)
    chosen = replace(effort or (QUICK if quick else FULL), seed=seed)
    rows, source = load(data, chosen)
    click.echo(f"SIMULATION on {source}", err=True)
    numbers = reproduce(rows, source, chosen, lambda text: click.echo(f"  {text}", err=True))
    result = numbers.to_json()
    judged = judge_claims(result)
    result["claims"] = [claim.to_json() for claim in judged]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "numbers.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_whole(folder / "claims.md", page(result, judged))
    pictures = [
        path
        for name, chart in paper.figures(result).items()
        for path in paper.save(chart, folder / name)
    ]
    if as_json:
        keys = ("version", "simulation", "source", "settings", "claims")
        answer = {key: result[key] for key in keys} | {
            "folder": str(folder),
            "pictures": [str(path) for path in pictures],
        }
        click.echo(json.dumps(answer, indent=1))
        return
    for claim in judged:
        click.echo(f"{claim.claim}: {claim.verdict}")
    click.echo(
        f"SIMULATION on {source}, {chosen.draws} draws; numbers, figures and claims.md are in "
        f"{folder}"
    )
