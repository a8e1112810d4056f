"""``dynadp init``: a commented run file and schema, from flags or by asking."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from dynadp import runs
from dynadp.cli.options import FOLDER, SEED, TOTAL_DELTA, Positive
from dynadp.errors import DeclarationError


@click.command()
@click.argument("folder", default=".", type=FOLDER)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=FILE",
    help="A node and its file of rows; once for each node.",
)
@click.option("--label", help="Name of the label column.")
@click.option("--negative", help="Its negative value.")
@click.option("--positive", help="Its positive value.")
@click.option(
    "--numeric", multiple=True, metavar="NAME:LOW:HIGH", help="A numeric column with public bounds."
)
@click.option(
    "--categorical",
    multiple=True,
    metavar="NAME=A,B,C",
    help="A categorical column with its published values.",
)
@click.option("--epsilon", type=Positive(), default=1.0, show_default=True, help="The total.")
@TOTAL_DELTA
@click.option("--seed", type=SEED, help="Make it a SIMULATION: it protects nobody, has no ledgers.")
def init(folder: str, **given: Any) -> None:
    """Write a commented run file and schema, from flags or by asking."""
    runs.require_new(folder)
    start = runs.Start(**_parsed(_asked(given) if _terminal() else _complete(given)))
    start.write(folder)
    root = Path(folder)
    schema, run = root / "schema.toml", root / "run.toml"
    click.echo(f"Wrote {schema} and {run}: read them, they say what is public.")
    if start.seed is None:
        for node, _ in start.nodes:
            command = ["dynadp", "ledger", "cap", str(root / f"{node}.sqlite"), "--node", node]
            budget = f"--epsilon {start.epsilon:g} --delta {start.delta:g}"
            click.echo(f"Next: {shlex.join(command)} {budget}")
    click.echo(f"Then: dynadp check {run}, and dynadp train {run}")


def _terminal() -> bool:
    return sys.stdin.isatty()


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse flags of which some are missing."""
    flags = {"nodes": "node", "label": "label", "negative": "negative", "positive": "positive"}
    missing = [flag for name, flag in flags.items() if not given[name]]
    if not (given["numeric"] or given["categorical"]):
        missing.append("numeric or --categorical")
    if missing:
        raise DeclarationError(
            f"missing --{', --'.join(missing)}; give them, or run dynadp init in a terminal to be "
            "asked"
        )
    return given


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Ask for what is missing."""

    def ask(name: str, question: str) -> None:
        given[name] = given[name] or click.prompt(question)

    def ask_many(name: str, question: str, **more: Any) -> None:
        given[name] = given[name] or click.prompt(question, **more).split()

    optional = {"default": "", "show_default": False}
    while not given["nodes"]:
        ask_many("nodes", "Nodes and their files, as NAME=FILE, separated by blanks")
    ask("label", "Name of the label column")
    ask("negative", "Its negative value")
    ask("positive", "Its positive value")
    if not (given["numeric"] or given["categorical"]):
        ask_many(
            "numeric",
            "Numeric columns with public bounds, as NAME:LOW:HIGH, separated by blanks",
            **optional,
        )
        ask_many(
            "categorical",
            "Categorical columns with their published values, as NAME=A,B,C",
            **optional,
        )
    if not (given["numeric"] or given["categorical"]):
        raise DeclarationError("no columns were declared; a schema needs at least one")
    return given


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    parsers = {"nodes": _node, "numeric": _bounds, "categorical": _values}
    return given | {name: [parse(text) for text in given[name]] for name, parse in parsers.items()}


def _node(text: str) -> tuple[str, str]:
    name, _, file = text.partition("=")
    if not (name and file):
        raise DeclarationError(f"node {text!r}: expected NAME=FILE, such as north=north.csv")
    return name, file


def _bounds(text: str) -> tuple[str, float, float]:
    try:
        name, low, high = text.rsplit(":", 2)
        if not name:
            raise ValueError("no name")
        return name, float(low), float(high)
    except ValueError:
        raise DeclarationError(
            f"numeric {text!r}: expected NAME:LOW:HIGH with public bounds, such as age:0:120"
        ) from None


def _values(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.partition("=")
    values = [value for value in rest.split(",") if value]
    if not (name and values):
        raise DeclarationError(
            f"categorical {text!r}: expected NAME=A,B,C with its published values, such as sex=f,m"
        )
    return name, values
