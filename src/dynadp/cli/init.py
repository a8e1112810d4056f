"""``dynadp init``: a commented run file and schema, from flags or by asking."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from dynadp import runs
from dynadp.cli.options import FOLDER, SEED, TOTAL_DELTA, Positive, option
from dynadp.errors import DeclarationError

_QUESTIONS = {
    "nodes": "Nodes and their files, as NAME=FILE, separated by blanks",
    "label": "Name of the label column",
    "negative": "Its negative value",
    "positive": "Its positive value",
}
_COLUMNS = {
    "numeric": "Numeric columns with public bounds, as NAME:LOW:HIGH, separated by blanks",
    "categorical": "Categorical columns with their published values, as NAME=A,B,C",
}


ROOM = 1.2  # a cap over one run's epsilon: so that the run does not take the whole of it


@click.command()
@click.argument("folder", default=".", type=FOLDER)
@option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=FILE",
    help="A node and its file of rows; once for each node.",
)
@option("--label", help="Name of the label column.")
@option("--negative", help="Its negative value.")
@option("--positive", help="Its positive value.")
@option("--classes", metavar="A,B,C", help="Instead: its values, where there are three or more.")
@option(
    "--numeric", multiple=True, metavar="NAME:LOW:HIGH", help="A numeric column with public bounds."
)
@option(
    "--categorical",
    multiple=True,
    metavar="NAME=A,B,C",
    help="A categorical column with its published values.",
)
@option("--epsilon", type=Positive(), default=1.0, help="The total.")
@TOTAL_DELTA
@option("--seed", type=SEED, help="Make it a SIMULATION: it protects nobody, has no ledgers.")
def init(folder: str, **given: Any) -> None:
    """Write a commented run file and schema, from flags or by asking."""
    runs.require_new(folder)
    start = runs.Start(**_parsed(_complete(given)))
    start.write(folder)
    root = Path(folder)
    schema, run = root / "schema.toml", root / "run.toml"
    click.echo(f"Wrote {schema} and {run}: read them, they say what is public.")
    if start.seed is None:
        for node, _ in start.nodes:
            command = ["dynadp", "ledger", "cap", str(root / f"{node}.sqlite"), "--node", node]
            budget = f"--epsilon {ROOM * start.epsilon:.3g} --delta {start.delta:g}"
            click.echo(f"Next: {shlex.join(command)} {budget}")
    click.echo(f"Then: dynadp check {run}, and dynadp train {run}")


def _terminal() -> bool:
    return sys.stdin.isatty()


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Ask for what is missing; without a terminal, refuse."""
    columns = given["numeric"] or given["categorical"]
    if given["classes"] and (given["negative"] or given["positive"]):
        raise DeclarationError(
            "--classes lists all values of the label: leave out --negative and --positive"
        )
    two = () if given["classes"] else ("negative", "positive")
    questions = {n: q for n, q in _QUESTIONS.items() if n in ("nodes", "label", *two)}
    if not _terminal():
        missing = [name for name in questions if not given[name]]
        missing += [] if columns else ["numeric or --categorical"]
        if missing:
            flags = ", --".join(missing).replace("nodes", "node")
            raise DeclarationError(
                f"missing --{flags}; give them, or run dynadp init in a terminal to be asked"
            )
        return given
    for name, question in questions.items():
        while not given[name]:
            answer = click.prompt(question)
            given[name] = answer.split() if name == "nodes" else answer
    for name, question in {} if columns else _COLUMNS.items():
        given[name] = click.prompt(question, default="", show_default=False).split()
    if not (given["numeric"] or given["categorical"]):
        raise DeclarationError("no columns were declared; a schema needs at least one")
    return given


def _parsed(given: dict[str, Any]) -> dict[str, Any]:
    parsers = {"nodes": _node, "numeric": _bounds, "categorical": _values}
    classes = [value for value in (given["classes"] or "").split(",") if value]
    parsed: dict[str, Any] = {n: [parse(text) for text in given[n]] for n, parse in parsers.items()}
    return given | parsed | {"classes": classes}


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
