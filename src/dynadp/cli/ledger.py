"""``dynadp ledger``: look at what a node has spent, check it, cap it."""

import getpass
import json
import os
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynadp.data import Seal
from dynadp.engines import now
from dynadp.errors import DeclarationError, LedgerDamaged, LedgerError
from dynadp.privacy import Cap, Ledger, LedgerSummary, upper_bound


def user() -> str:
    """Who is at work, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def run_show(path: str, as_json: bool) -> None:
    """Print runs, cap, what counts against it, and the head."""
    with _readable(path) as ledger:
        said, notes = LedgerSummary.of(ledger), ledger.notes()
    result = {**said.to_json(), "notes": notes}
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    console = Console()
    table = Table(title=escape(f"Ledger of node {result['node']}"))
    for name in (
        "run",
        "rows of",
        "reserved",
        "by",
        "basis",
        "rounds spent",
        "alpha spent",
        "state",
    ):
        table.add_column(
            name, overflow="fold", no_wrap=name in ("basis", "state")
        )  # never cut: commands are given names
    for run in result["runs"]:
        spent = f"{run['rounds_spent']} of {run['rounds_planned']}"
        cells = (
            run["run"],
            run["dataset"],
            run["at"],
            run["who"],
            run["basis"],
            spent,
            upper_bound(run["alpha_spent"]),
            run["state"],
        )
        table.add_row(*map(escape, cells))
    console.print(table)
    cap, room = result["cap"], said.room
    if room is None:
        click.echo(
            "No cap is set, so nothing can be reserved: dynadp ledger cap FILE --epsilon E "
            "--delta D"
        )
    else:
        click.echo(f"Cap: {said.promise}.")
        if room.measure == "plan":
            click.echo(
                f"Taken whole by run {cap['taken_by']}: its plan was fixed before its first "
                f"release and costs epsilon = "
                f"{upper_bound(cap['taken'])} in total. Nothing may follow under this cap."
            )
        else:
            click.echo(
                f"Counted against it, with what open runs reserved, by {room.words}; "
                f"{room.left_words}."
            )
            for other in said.rooms[1:]:
                click.echo(
                    f"By the other measure, {other.words}. A new run is allowed if either measure "
                    f"stays under its limit."
                )
        click.echo(
            f"Lost so far, by all runs: at most epsilon = {upper_bound(cap['lost'])} at delta = "
            f"{cap['delta']:g}."
        )
        if cap["lost"] == cap["epsilon"] and room.left:
            click.echo(
                f"This is the whole cap although {room.left:.1%} is left: the cap is the smallest "
                f"bound that holds at every moment. What is left may be spent within it."
            )
    for note in result["notes"]:
        click.echo(f"Note: {note}")
    click.echo(f"{result['entries']} entries, head {result['head']}")
    click.echo(
        "Keep the head elsewhere: with it, `dynadp ledger verify --head` finds a ledger that was "
        "cut or replaced."
    )


def run_verify(path: str, head: str | None, as_json: bool) -> bool:
    """Print whether the ledger is sound; returns it."""
    try:
        with Ledger.open(path, read_only=True) as ledger:
            problems, found = ledger.verify(head), ledger.head
    except LedgerDamaged as error:
        problems, found = [str(error)], None
    if as_json:
        click.echo(
            json.dumps({"sound": not problems, "problems": problems, "head": found}, indent=1)
        )
    elif problems:
        for problem in problems:
            click.echo(f"DAMAGED: {problem}", err=True)
    else:
        anchored = (
            "" if head else " (no earlier head was given, so a cut at its end would not show)"
        )
        click.echo(f"Sound{anchored}. Head {found}")
    return not problems


def run_cap(
    path: str, epsilon: float, delta: float, node: str | None, who: str | None, as_json: bool
) -> None:
    """Set the cap, in a new ledger if there is none and a node is named."""
    who, cap = who or user(), Cap.of(epsilon, delta)
    if not Path(path).exists() and node is None:
        raise DeclarationError(f"there is no ledger {path}; name its node with --node to make one")
    with (
        Ledger.open(path)
        if Path(path).exists()
        else Ledger.create(path, str(node), who=who, at=now()) as ledger
    ):
        if node is not None and ledger.node != node:
            raise DeclarationError(f"{path} is the ledger of {ledger.node!r}, not of {node!r}")
        before, releases = ledger.cap, len(ledger.spent())
        ledger.set_cap(cap, who=who, at=now())
        said = LedgerSummary.of(ledger)
    if as_json:
        click.echo(
            json.dumps(said.to_json()["cap"] | {"node": said.node, "head": said.head}, indent=1)
        )
    else:
        click.echo(f"Node {said.node} may spend {said.promise}.")
        if before is not None and releases:
            click.echo(
                f"The cap was epsilon = {before.epsilon:g} at delta = {before.delta:g}, and "
                f"{releases} releases are entered. "
                "A cap that is changed because of what they showed is outside the guarantee."
            )
        click.echo(f"Head {said.head}")


def _readable(path: str) -> Ledger:
    """The ledger, for reading; where a killed process left an entry half written, that is undone
    first, if this user may.
    """
    try:
        return Ledger.open(path, read_only=True)
    except LedgerError as error:
        if isinstance(error, LedgerDamaged) or not os.access(path, os.W_OK):
            raise
        return Ledger.open(path)


def run_close(path: str, run: str, who: str | None) -> None:
    """End a run that will not go on, so that what it reserved and did not spend is free again."""
    with Ledger.open(path) as ledger:
        known = LedgerSummary.of(ledger)
        if run not in known.open_runs:
            why = (
                f"its run {run!r} is closed already"
                if run in known.runs
                else f"it has no run {run!r}"
            )
            names = ", ".join(map(repr, known.open_runs)) or "none"
            raise DeclarationError(f"{path}: {why}; open runs, by their whole names: {names}")
        ledger.close_run(run, "stopped", who=who or user(), at=now())
        Seal.beside(ledger.path, run, entered=True).remove()
        click.echo(
            f"Run {run} is closed after {len(ledger.rounds(run))} rounds. Head {ledger.head}"
        )
