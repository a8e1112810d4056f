"""``dynadp ledger``: look at what a node has spent, check it, cap it."""

import getpass
import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynadp.balance import Balance
from dynadp.errors import DeclarationError, LedgerDamaged
from dynadp.privacy.accountant import odds, up
from dynadp.privacy.filter import Cap
from dynadp.privacy.ledger import Ledger
from dynadp.runtime.books import now


def user() -> str:
    """Who is at work, as far as the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def run_show(path: str, as_json: bool) -> None:
    """Print runs, cap, what counts against it, and the head."""
    with Ledger.open(path, read_only=True) as ledger:
        result = summary(ledger)
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    console = Console()
    table = Table(title=escape(f"Ledger of node {result['node']}"))
    for name in ("run", "rows of", "reserved", "by", "basis", "rounds spent", "alpha spent", "state"):
        table.add_column(name, overflow="fold")  # never cut: other commands are given these names
    for run in result["runs"]:
        spent = f"{run['rounds_spent']} of {run['rounds_planned']}"
        cells = (
            run["run"],
            run["dataset"],
            run["at"],
            run["who"],
            run["basis"],
            spent,
            up(run["alpha_spent"]),
            run["state"],
        )
        table.add_row(*map(escape, cells))
    console.print(table)
    cap = result["cap"]
    if cap is None:
        click.echo("No cap is set, so nothing can be reserved: dynadp ledger cap FILE --epsilon E --delta D")
    else:
        words = odds(cap["epsilon"], cap["delta"])
        click.echo(f"Cap: epsilon = {cap['epsilon']:g} at delta = {cap['delta']:g} over all runs: {words}.")
        if cap["taken_by"]:
            click.echo(
                f"Taken whole by run {cap['taken_by']}: its plan was fixed before its first release and costs epsilon = "
                f"{up(cap['taken'])} in total. Nothing may follow under this cap."
            )
        else:
            click.echo(
                f"Counted against it, with what open runs reserved: sum of alpha {cap['sum']:.4g} of {cap['epsilon']:g}, or "
                f"Rényi loss {cap['renyi']:.4g} of {cap['budget']:.4g} (order {cap['order']:g}); one of them has to fit."
            )
        click.echo(f"Lost so far, by all runs: at most epsilon = {up(cap['lost'])} at delta = {cap['delta']:g}.")
    for note in result["notes"]:
        click.echo(f"Note: {note}")
    click.echo(f"{result['entries']} entries, head {result['head']}")
    click.echo("Keep the head elsewhere: with it, `dynadp ledger verify --head` finds a ledger that was cut or replaced.")


def run_verify(path: str, head: str | None, as_json: bool) -> bool:
    """Print whether the ledger is sound; returns it."""
    try:
        with Ledger.open(path, read_only=True) as ledger:
            problems, found = ledger.verify(head), ledger.head
    except LedgerDamaged as error:
        problems, found = [str(error)], None
    if as_json:
        click.echo(json.dumps({"sound": not problems, "problems": problems, "head": found}, indent=1))
    elif problems:
        for problem in problems:
            click.echo(f"DAMAGED: {problem}", err=True)
    else:
        anchored = "" if head else " (no earlier head was given, so a cut at its end would not show)"
        click.echo(f"Sound{anchored}. Head {found}")
    return not problems


def run_cap(path: str, epsilon: float, delta: float, node: str | None, who: str | None, as_json: bool) -> None:
    """Set the cap, in a new ledger if there is none and a node is named."""
    who, cap = who or user(), Cap.of(epsilon, delta)
    if not Path(path).exists() and node is None:
        raise DeclarationError(f"there is no ledger {path}; name its node with --node to make one")
    with Ledger.open(path) if Path(path).exists() else Ledger.create(path, str(node), who=who, at=now()) as ledger:
        if node is not None and ledger.node != node:
            raise DeclarationError(f"{path} is the ledger of {ledger.node!r}, not of {node!r}")
        before, releases = ledger.cap, len(ledger.spent())
        ledger.set_cap(cap, who=who, at=now())
        result = summary(ledger)
    if as_json:
        click.echo(json.dumps(result["cap"] | {"node": result["node"], "head": result["head"]}, indent=1))
    else:
        click.echo(
            f"Node {result['node']} may spend epsilon = {epsilon:g} at delta = {delta:g} over all runs: {odds(epsilon, delta)}."
        )
        if before is not None and releases:
            click.echo(
                f"The cap was epsilon = {before.epsilon:g} at delta = {before.delta:g}, and {releases} releases are entered. "
                "A cap that is changed because of what they showed is outside the guarantee."
            )
        click.echo(f"Head {result['head']}")


def run_close(path: str, run: str, who: str | None) -> None:
    """End a run that will not go on, so that what it reserved and did not spend is free again."""
    with Ledger.open(path) as ledger:
        ledger.close_run(run, "stopped", who=who or user(), at=now())
        click.echo(f"Run {run} is closed after {len(ledger.rounds(run))} rounds. Head {ledger.head}")


def summary(ledger: Ledger) -> dict[str, Any]:
    """All runs, the cap and what counts against it, and what is odd."""
    return {**Balance.of(ledger).to_json(), "notes": ledger.notes()}
