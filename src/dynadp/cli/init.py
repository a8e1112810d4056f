"""``dynadp init``: a commented run file and schema, from flags or by asking."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from dynadp import data, runs
from dynadp.cli.options import FOLDER, SEED, TOTAL_DELTA, Positive, option
from dynadp.cli.output import say
from dynadp.errors import DeclarationError, DynadpError


@click.command()
@click.argument("folder", default=".", type=FOLDER)
@option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=FILE",
    help="A node and its file of rows; once for each node. Or one FILE for all.",
)
@option("--node-column", help="Of one file for all: the column that names the node of each row.")
@option("--node-name", "node_names", multiple=True, help="A name in that column; once for each.")
@option("--label", help="Name of the label column.")
@option("--negative", help="Its negative value.")
@option("--positive", help="Its positive value.")
@option("--answer", help="Instead of both: several values A,B,C, or LOW:HIGH of a number.")
@option(
    "--numeric",
    multiple=True,
    metavar="NAME:LOW:HIGH",
    help="A numeric column with public bounds; or NAME:KIND, such as salary:money:90000.",
)
@option(
    "--categorical",
    multiple=True,
    metavar="NAME=A,B,C",
    help="A categorical column with its published values.",
)
@option("--column", "others", multiple=True, metavar="NAME=KIND", help="Any column: see --kinds.")
@option("--kinds", is_flag=True, help="Show the kinds of columns that init knows, and stop.")
@option("--epsilon", type=Positive(), help="The total; 1 where nobody can be asked.")
@TOTAL_DELTA
@option("--seed", type=SEED, help="Make it a SIMULATION: it protects nobody, has no ledgers.")
def init(folder: str, kinds: bool, **given: Any) -> None:
    """Write a commented run file and schema, from flags or by asking. Of files of rows the first
    line alone is read.
    """
    if kinds:
        say(_kinds())
        return
    runs.require_new(folder)
    start = _completed(folder, _parsed(folder, given))
    start.write(folder)
    root = Path(folder)
    schema, run = root / "schema.toml", root / "run.toml"
    say(f"Wrote {schema} and {run}: read them, they say what is public.")
    if start.seed is None:
        cap = ["--epsilon", f"{start.cap:.6g}", "--delta", f"{start.delta:g}"]
        say(f"Next: {shlex.join(['dynadp', 'ledger', 'cap', '--run', str(run), *cap])}")
    say(f"Then: dynadp check {run}, and dynadp train {run}")


def _terminal() -> bool:
    return sys.stdin.isatty()


def _completed(folder: str, given: dict[str, Any]) -> "runs.Start":
    """Ask for what is missing; without a terminal, refuse. A wrong answer is asked for again."""
    flags = dict(_FLAGS)
    if given["answer"]:
        flags = {name: flag for name, flag in flags.items() if name not in ("negative", "positive")}
    if not _terminal() and (missing := [flag for name, flag in flags.items() if not given[name]]):
        raise DeclarationError(
            f"missing {', '.join(missing)}; give them, or run dynadp init in a terminal to be asked"
        )
    if not _terminal():
        given["epsilon"] = given["epsilon"] or 1.0
    questions, answer = runs.interview(folder, given), None
    while True:
        try:
            question = questions.send(answer)
        except StopIteration as end:
            made: runs.Start = end.value
            return made
        answer = _answer(question)


def _answer(question: "runs.Question") -> Any:
    """Ask until there is an answer; where nobody can be asked, take what is usual."""
    for line in question.shown:
        say(line)
    if _terminal():
        for choice, words in question.choices.items():
            if choice and words:
                say(f"  {choice}: {words}")
    if not _terminal():
        if question.usual and question.default is not None:
            return question.parse(question.default)
        raise DeclarationError(
            f"{question.text}: nothing was given; run dynadp init in a terminal to be asked"
        )
    while True:
        default = question.default
        text = click.prompt(question.text, default=default, show_default=bool(default))
        try:
            return question.parse(text)
        except DynadpError as error:
            click.echo(f"{error}", err=True)


_FLAGS = {
    "nodes": "--node",
    "label": "--label",
    "negative": "--negative",
    "positive": "--positive",
    "columns": "--numeric or --categorical",
}


def _parsed(folder: str, given: dict[str, Any]) -> dict[str, Any]:
    """The values of flags, by the interview's own rules."""
    nodes = given.pop("nodes")
    columns = [
        *map(_number, given.pop("numeric")),
        *map(_values, given.pop("categorical")),
        *map(_named, given.pop("others")),
    ]
    for column in columns:
        if isinstance(column, data.Numeric) and column.transform != "none":
            for line in runs.proposed(column):
                say(line)
    answer = given["answer"]
    if answer and (given["negative"] or given["positive"]):
        raise DeclarationError("--answer is in place of --negative and --positive; leave them out")
    return given | {
        "answer": runs.declared_answer(given["label"] or "label", answer) if answer else None,
        "nodes": runs.node_files(nodes, folder) if nodes else None,
        "node_names": given["node_names"] or None,
        "columns": columns or None,
    }


def _number(text: str) -> Any:
    """NAME:LOW:HIGH, NAME:KIND or NAME:KIND:X; a name may have colons."""
    parts = text.split(":")
    for last in (1, 2):
        name, kind = ":".join(parts[:-last]), parts[-last:]
        if name and (last == 2 or kind[0] in data.KINDS):
            return runs.declared_column(name, ":".join(kind))
    raise DeclarationError(
        f"numeric {text!r}: expected NAME:LOW:HIGH with public bounds, such as age:0:120, or "
        f"NAME:KIND, such as age:age"
    )


def _values(text: str) -> Any:
    name, _, rest = text.partition("=")
    if not (name and rest.strip(", ")):
        raise DeclarationError(
            f"categorical {text!r}: expected NAME=A,B,C with its published values, such as sex=f,m"
        )
    return runs.declared_column(name, rest + ",")  # a single value is a list too


def _named(text: str) -> Any:
    name, _, rest = text.partition("=")
    if not (name and rest):
        raise DeclarationError(
            f"column {text!r}: expected NAME=KIND, such as joined=2010-01-01..2030-12-31"
        )
    return runs.declared_column(name, rest)


_SPELLINGS = {  # of declarations that are no kind of quantity
    "LOW:HIGH": "a number, by its public bounds",
    "A,B,C": "categories, by their published values",
    "FIRST..LAST": "days between two, such as 2020-01-01..2029-12-31",
    "hash:BUCKETS": "categories that are too many to list",
}


def _kinds() -> str:
    lines = [
        f"  {name + (':X' if kind.sized else ''):<14}{kind.what}"
        for name, kind in data.KINDS.items()
    ]
    others = [f"  {spelling:<14}{what}" for spelling, what in _SPELLINGS.items()]
    head = "Bounds that are proposed from what you say, never from rows:"
    return "\n".join([head, *lines, "Or in your own words:", *others])
