"""What commands print: results as lines or as JSON, and a bar while rounds go by."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dynadp.cli.verbosity import QUIET, showing_warnings, verbosity

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes
    ----------
    result
        As JSON.
    lines
        As lines and tables; not made where JSON is asked for.
    code
        The exit code.
    problem
        What is wrong, for stderr.
    """

    result: Any
    lines: "Iterable[str | Table]"
    code: int = 0
    problem: str = ""


def prints_answer(command: Callable[..., Answer]) -> Callable[..., None]:
    """Add ``--json`` to a command, and print the answer that it returns."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @wraps(command)
    def printing(as_json: bool, **given: Any) -> None:
        with showing_warnings():
            answer = command(**given)
        if as_json:
            click.echo(json.dumps(answer.result, indent=1))
        elif verbosity() != QUIET:
            for line in answer.lines:
                _print(line)
        if answer.problem:
            click.echo(answer.problem, err=True)
        if answer.code:
            sys.exit(answer.code)

    return printing


def _print(line: "str | Table") -> None:
    if isinstance(line, str):
        click.echo(for_reader(line, sys.stdout))
    else:
        from rich.console import Console

        Console().print(line)


def for_reader(text: str, stream: IO[str]) -> str:
    """Return lines broken between words, never in one, for a terminal; else as they are."""
    if not stream.isatty():
        return text
    own = os.get_terminal_size(stream.fileno()).columns or 80
    width = shutil.get_terminal_size((own, 24)).columns
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    start = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line,
        width,
        subsequent_indent=f"{start}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(words: str = "") -> None:
    """Print a line of a result, unless ``-q`` was given."""
    if verbosity() != QUIET:
        click.echo(words)


def note(words: str) -> None:
    """Print to stderr what is no result, unless ``-q`` was given."""
    if verbosity() != QUIET:
        click.echo(words, err=True)


def new_folder(path: str) -> Path:
    """Return a folder for results; refuse one that holds anything already."""
    from dynadp.runs import RunFolder

    RunFolder.require_empty(Path(path))
    return Path(path)


def write_json(path: Path, result: Any) -> None:
    """Write a result to a file, and make its folder."""
    from dynadp._files import write_whole

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(result, indent=1, allow_nan=False) + "\n")


@contextmanager
def round_bar(
    title: str = "rounds", otherwise: Callable[[int, int], None] = lambda done, rounds: None
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr until the rounds are over.

    Parameters
    ----------
    title
        What stands before the bar.
    otherwise
        Called instead where stderr is no terminal, with the rounds that are done and all of them.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if verbosity() == QUIET:
        yield lambda done, rounds: None
        return
    if not console.is_terminal:
        yield otherwise
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, rounds: progress.update(task, completed=done, total=rounds or None)
