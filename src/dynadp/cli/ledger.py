"""``dynadp ledger``: look at what a node has spent, check it, cap it."""

import sys
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy, runs
from dynadp.cli.codes import DAMAGED
from dynadp.cli.options import DELTA, FILE, JSON, Positive, user
from dynadp.cli.output import print_json
from dynadp.errors import LedgerDamaged

if TYPE_CHECKING:
    from dynadp.privacy import LedgerSummary, Room

_LEDGER = click.argument("path", metavar="FILE", type=FILE)
_WHO = click.option(
    "--who",
    default=user,
    show_default=False,
    help="Who does this, for the ledger; by default the user's login name.",
)


@click.group()
def ledger() -> None:
    """Show, check and cap what a node has spent, over all its runs."""


@ledger.command()
@_LEDGER
@JSON
def show(path: str, as_json: bool) -> None:
    """Print runs, cap, what counts against it, and the head to keep elsewhere."""
    with runs.open_readable(path) as opened:
        summary, notes = privacy.LedgerSummary.of(opened), opened.notes()
    result = {**summary.to_json(), "notes": notes}
    if as_json:
        print_json(result)
        return
    _show_runs(result)
    if (room := summary.room) is None:
        click.echo(
            "No cap is set, so nothing can be reserved: dynadp ledger cap FILE --epsilon E "
            "--delta D"
        )
    else:
        click.echo(f"Cap: {summary.promise}.")
        _show_room(result["cap"], summary, room)
    for note in notes:
        click.echo(f"Note: {note}")
    click.echo(f"{result['entries']} entries, head {result['head']}")
    click.echo(
        "Keep the head elsewhere: with it, `dynadp ledger verify --head` finds a ledger that was "
        "cut or replaced."
    )


def _show_runs(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"Ledger of node {result['node']}"))
    names = ["run", "rows of", "reserved", "by", "basis", "rounds spent", "alpha spent", "state"]
    for name in names:  # folded, never cut: commands are given whole names
        table.add_column(name, overflow="fold", no_wrap=name in ("basis", "state"))
    for run in result["runs"]:
        spent = f"{run['rounds_spent']} of {run['rounds_planned']}"
        cells = [run[name] for name in ("run", "dataset", "at", "who", "basis")]
        table.add_row(
            *map(escape, [*cells, spent, privacy.upper_bound(run["alpha_spent"]), run["state"]])
        )
    Console().print(table)


def _show_room(cap: dict[str, Any], summary: "LedgerSummary", room: "Room") -> None:
    if room.measure == "plan":
        click.echo(
            f"Taken whole by run {cap['taken_by']}: its plan was fixed before its first release "
            f"and costs epsilon = {privacy.upper_bound(cap['taken'])} in total. Nothing may "
            "follow under this cap."
        )
    else:
        click.echo(
            f"Counted against it, with what open runs reserved, by {room.words}; {room.left_words}."
        )
        for other in summary.rooms[1:]:
            click.echo(
                f"By the other measure, {other.words}. A new run is allowed if either measure "
                "stays under its limit."
            )
    click.echo(
        f"Lost so far, by all runs: at most epsilon = {privacy.upper_bound(cap['lost'])} at delta "
        f"= {cap['delta']:g}."
    )
    if cap["lost"] == cap["epsilon"] and room.left:
        click.echo(
            f"This is the whole cap although {room.left:.1%} is left: the cap is the smallest "
            "bound that holds at every moment. What is left may be spent within it."
        )


@ledger.command()
@_LEDGER
@click.option(
    "--head", help="A head printed earlier: finds a ledger that was cut at its end or replaced."
)
@JSON
def verify(path: str, head: str | None, as_json: bool) -> None:
    """Check every byte that matters; exit code 5 if anything is wrong."""
    try:
        with privacy.Ledger.open(path, read_only=True) as opened:
            problems, last = opened.verify(head), opened.head
    except LedgerDamaged as error:
        problems, last = [str(error)], None
    if as_json:
        print_json({"sound": not problems, "problems": problems, "head": last})
    elif problems:
        for problem in problems:
            click.echo(f"DAMAGED: {problem}", err=True)
    else:
        unsure = " (no earlier head was given, so a cut at its end would not show)"
        click.echo(f"Sound{'' if head else unsure}. Head {last}")
    if problems:
        sys.exit(DAMAGED)


@ledger.command()
@_LEDGER
@click.option(
    "--epsilon",
    type=Positive(),
    required=True,
    help="At most this in total, over all runs and data sets.",
)
@DELTA
@click.option("--node", help="Make the ledger of this node if the file is not there.")
@_WHO
@JSON
def cap(path: str, epsilon: float, delta: float, node: str | None, who: str, as_json: bool) -> None:
    """Set what the node may spend in total. Choose it before looking at any message."""
    before, after = runs.set_cap(path, privacy.Cap.of(epsilon, delta), node=node, who=who)
    if as_json:
        print_json(after.to_json()["cap"] | {"node": after.node, "head": after.head})
        return
    click.echo(f"Node {after.node} may spend {after.promise}.")
    if before is not None and after.spent:
        click.echo(
            f"The cap was epsilon = {before.epsilon:g} at delta = {before.delta:g}, and "
            f"{len(after.spent)} releases are entered. A cap that is changed because of what they "
            "showed is outside the guarantee."
        )
    click.echo(f"Head {after.head}")


@ledger.command()
@_LEDGER
@click.argument("run")
@_WHO
def close(path: str, run: str, who: str) -> None:
    """End a run that will not go on: what it reserved and did not spend is free again."""
    rounds, head = runs.close_run(path, run, who=who)
    click.echo(f"Run {run} is closed after {rounds} rounds. Head {head}")
