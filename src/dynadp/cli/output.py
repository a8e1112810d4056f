"""What commands print: results as JSON, and a bar while rounds go by."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click


def print_json(result: Any) -> None:
    """Print a result as JSON."""
    click.echo(json.dumps(result, indent=1))


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
    if not console.is_terminal:
        yield otherwise
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, rounds: progress.update(task, completed=done, total=rounds or None)
