"""``dynadp reproduce``: the paper's figures on Adult, and a verdict on each of its claims."""

from dataclasses import replace

import click

from dynadp import research
from dynadp.cli.options import FOLDER, option, out_option, seed_option
from dynadp.cli.output import Answer, new_folder, note, prints_answer, write_json


@click.command()
@option(
    "--data",
    type=FOLDER,
    help="Folder with UCI Adult's files; DYNADP_DATA by default.",
)
@option(
    "--quick",
    is_flag=True,
    help="3 draws instead of 50: under two minutes instead of a quarter of an hour.",
)
@out_option("Folder to make; must not hold anything yet.")
@seed_option("Of noise and split.")
@prints_answer
def reproduce(data: str | None, quick: bool, out: str | None, seed: int) -> Answer:
    """Make the paper's figures on Adult, and set its claims beside what was seen: a SIMULATION on
    published rows.
    """
    from dynadp._files import write_whole
    from dynadp.report import charts, paper

    charts.require()
    folder = new_folder(out or ("reproduce-quick" if quick else "reproduce"))
    chosen = replace(research.QUICK if quick else research.FULL, seed=seed)
    rows, source = research.load(data, chosen)
    note(f"SIMULATION on {source}")
    result = research.reproduce(rows, source, chosen, lambda text: note(f"  {text}"))
    judged = research.judge_claims(result)
    result["claims"] = [claim.to_json() for claim in judged]
    write_json(folder / "numbers.json", result)
    write_whole(folder / "claims.md", research.page(result, judged))
    pictures = [
        path
        for name, chart in paper.figures(result).items()
        for path in charts.save(chart, folder / name, "svg")
    ]
    names = ("version", "simulation", "source", "settings", "claims")
    shown = {name: result[name] for name in names} | {"folder": str(folder)}
    lines = [f"{claim.claim}: {claim.verdict}" for claim in judged]
    lines.append(
        f"SIMULATION on {source}, {chosen.draws} draws; numbers, figures and claims.md are in "
        f"{folder}"
    )
    return Answer({**shown, "pictures": [str(path) for path in pictures]}, lines)
