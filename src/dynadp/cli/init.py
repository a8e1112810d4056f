"""``dynadp init``: a commented run file and schema, from flags or by asking."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dynadp.errors import DeclarationError
from dynadp.runs import load_run_file, load_schema


@dataclass
class Answers:
    """What a run file and a schema need."""

    nodes: list[tuple[str, str]]
    label: str
    negative: str
    positive: str
    numeric: list[tuple[str, float, float]]
    categorical: list[tuple[str, list[str]]]
    epsilon: float
    delta: float
    seed: int | None


def run_init(folder: str, flags: dict[str, Any], ask: bool) -> None:
    """Write run.toml and schema.toml; nothing is overwritten."""
    root = Path(folder)
    for name in ("run.toml", "schema.toml"):
        if (root / name).exists():
            raise DeclarationError(
                f"{root / name} exists; nothing is overwritten, choose another folder"
            )
    answers = _answers(flags, ask)
    texts = {"schema.toml": _schema(answers), "run.toml": _run(answers)}
    with TemporaryDirectory() as place:  # nothing is left behind where something is wrong
        for name, text in texts.items():
            Path(place, name).write_text(text, encoding="utf-8")
        load_schema(Path(place, "schema.toml"))
        load_run_file(Path(place, "run.toml"))
    root.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
    click.echo(
        f"Wrote {root / 'schema.toml'} and {root / 'run.toml'}: read them, they say what is public."
    )
    if answers.seed is None:
        for node, _ in answers.nodes:
            budget = f"--epsilon {answers.epsilon:g} --delta {answers.delta:g}"
            command = ["dynadp", "ledger", "cap", str(root / f"{node}.sqlite"), "--node", node]
            click.echo(f"Next: {shlex.join(command)} {budget}")
    click.echo(f"Then: dynadp check {root / 'run.toml'}, and dynadp train {root / 'run.toml'}")


def _answers(flags: dict[str, Any], ask: bool) -> Answers:
    missing = [name for name in ("node", "label", "negative", "positive") if not flags[name]]
    missing += [] if flags["numeric"] or flags["categorical"] else ["numeric or --categorical"]
    if missing and not ask:
        raise DeclarationError(
            f"missing --{', --'.join(missing)}; give them, or run dynadp init in a terminal to be "
            f"asked"
        )
    nodes = [_pair(text) for text in flags["node"]]
    while ask and not nodes:
        for text in click.prompt(
            "Nodes and their files, as NAME=FILE, separated by blanks"
        ).split():
            nodes.append(_pair(text))
    label = flags["label"] or click.prompt("Name of the label column")
    negative = flags["negative"] or click.prompt("Its negative value")
    positive = flags["positive"] or click.prompt("Its positive value")
    numeric = [_bounds(text) for text in flags["numeric"]]
    categorical = [_values(text) for text in flags["categorical"]]
    if ask and not (numeric or categorical):
        for text in click.prompt(
            "Numeric columns with public bounds, as NAME:LOW:HIGH, separated by blanks",
            default="",
            show_default=False,
        ).split():
            numeric.append(_bounds(text))
        for text in click.prompt(
            "Categorical columns with their published values, as NAME=A,B,C",
            default="",
            show_default=False,
        ).split():
            categorical.append(_values(text))
        if not (numeric or categorical):
            raise DeclarationError("no columns were declared; a schema needs at least one")
    return Answers(
        nodes,
        label,
        negative,
        positive,
        numeric,
        categorical,
        flags["epsilon"],
        flags["delta"],
        flags["seed"],
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise DeclarationError(f"node {text!r}: expected NAME=FILE, such as north=north.csv")
    return name, file


def _bounds(text: str) -> tuple[str, float, float]:
    rest, _, high = text.rpartition(":")
    name, _, low = rest.rpartition(":")
    try:
        if not name:
            raise ValueError("no name")
        return name, float(low), float(high)
    except ValueError:
        raise DeclarationError(
            f"numeric {text!r}: expected NAME:LOW:HIGH with public bounds, such as age:0:120"
        ) from None


def _values(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    values = [value for value in rest.split(",") if value]
    if not (name and equals and values):
        raise DeclarationError(
            f"categorical {text!r}: expected NAME=A,B,C with its published values, such as sex=f,m"
        )
    return name, values


def _text(value: Any) -> str:
    """A TOML string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _schema(answers: Answers) -> str:
    parts = [
        "# What is public about the columns, agreed before any row is read. Nothing here may be "
        "read off the rows:",
        "# that would leak them. Numbers outside their bounds are clipped; a value that is not "
        "listed counts as none.",
        'missing_values = ["", "?", "NA"]   # how a missing cell is spelled',
        "norm = "
        + f"{max(1.0, (len(answers.numeric) + len(answers.categorical)) ** 0.5):.3g}"
        + "   # rows longer than this, in units of the scaled columns, are shortened to it",
        "",
        "[label]",
        f"name = {_text(answers.label)}",
        f"negative = {_text(answers.negative)}",
        f"positive = {_text(answers.positive)}",
    ]
    for name, low, high in answers.numeric:
        parts += [
            "",
            "[[columns]]",
            'kind = "numeric"',
            f"name = {_text(name)}",
            f"low = {low!r}",
            f"high = {high!r}",
        ]
        parts += [
            f'missing = {(low + high) / 2!r}   # a number to put there, or "refuse", or "drop" '
            f"the row"
        ]
        parts += ['# transform = "log1p"   # for heavy tails']
    for name, values in answers.categorical:
        parts += [
            "",
            "[[columns]]",
            'kind = "categorical"',
            f"name = {_text(name)}",
            f"values = {_text(values)}",
        ]
        parts += [
            'missing = "other"   # counts as none of the values; or "refuse", or "drop" the row'
        ]
    return "\n".join(parts) + "\n"


def _run(answers: Answers) -> str:
    parts = [
        "# Everything that is decided before the run. Paths are relative to this file.",
        "[run]",
        'name = "first"',
        f"seed = {answers.seed}   # SIMULATION: seeded noise protects nobody. Leave out for a "
        f"real run."
        if answers.seed is not None
        else "# seed = 1   # would make this a SIMULATION, which protects nobody",
        'output = "network"   # the mean of all released vectors of the last half of the rounds',
        "",
        "[data]",
        'schema = "schema.toml"',
        "# instead of one file for each node, one for all, with a column that names the node:",
        '# file = "all.csv"',
        '# node_column = "site"',
        "",
    ]
    for name, file in answers.nodes:
        parts += ["[[nodes]]", f"name = {_text(name)}", f"file = {_text(file)}"]
        parts += ["# epsilon = 0.5   # a total of its own", ""]
        if answers.seed is None:
            parts.insert(
                len(parts) - 2,
                f"ledger = {_text(f'{name}.sqlite')}   # where the node enters what it spends",
            )
    parts += [
        "[topology]",
        'family = "ring"   # path, star, complete, grid, random_regular, erdos_renyi, '
        'small_world; or edges = [["a", "b"]]',
        "",
        "[privacy]",
        'mechanism = "primal"   # or "dual", or "none": then exact vectors are sent',
        f"epsilon = {answers.epsilon!r}   # the total that nobody with a row at one node may lose "
        f"more of; smaller is safer",
        f"delta = {answers.delta!r}   # the chance left to worse luck; keep it well below one "
        f"over the number of rows",
        "",
        "# [training]",
        '# weights = "equal"   # every node weighs the same, as in the paper; otherwise every row '
        "does",
        "",
        "# [evaluation]",
        '# file = "public.csv"   # accuracy is told only on rows that are declared public',
        "# public = true",
    ]
    return "\n".join(parts) + "\n"
