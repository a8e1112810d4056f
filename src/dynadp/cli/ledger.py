"""``dynadp ledger``: look at what a node has spent, check it, cap it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy, runs
from dynadp.cli.codes import DAMAGED
from dynadp.cli.options import DELTA, FILE, Positive, option, user
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import LedgerDamaged

if TYPE_CHECKING:
    from rich.table import Table

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
@prints_answer
def show(path: str) -> Answer:
    """Print runs, cap, what counts against it, and the head to keep elsewhere."""
    with runs.open_readable(path) as opened:
        summary, notes = privacy.LedgerSummary.of(opened), opened.notes()
    result = {**summary.to_json(), "notes": notes}
    return Answer(result, _show_lines(result, summary))


def _show_lines(result: dict[str, Any], summary: "LedgerSummary") -> "Iterator[str | Table]":
    yield _runs_table(result, summary)
    if (room := summary.room) is None:
        yield (
            "No cap is set, so nothing can be reserved: dynadp ledger cap FILE --epsilon E "
            "--delta D"
        )
    else:
        yield f"Cap: {summary.promise}."
        yield from _room_lines(result["cap"], summary, room)
    for note in result["notes"]:
        yield f"Note: {note}"
    yield f"{result['entries']} entries, head {result['head']}"
    yield (
        "Keep the head elsewhere: with it, `dynadp ledger verify --head` finds a ledger that was "
        "cut or replaced."
    )


def _runs_table(result: dict[str, Any], summary: "LedgerSummary") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"Ledger of node {result['node']}"))
    names = ["run", "rows of", "reserved", "by", "basis", "rounds spent", "spent", "state"]
    for name in names:  # folded, never cut: commands are given whole names
        table.add_column(name, overflow="fold", no_wrap=name in ("basis", "state"))
    for run in result["runs"]:
        spent = f"{run['rounds_spent']} of {run['rounds_planned']}"
        if run["spares_planned"]:
            spent += f", spare attempts {run['spares_spent']} of {run['spares_planned']}"
        cells = [run[name] for name in ("run", "dataset", "at", "who", "basis")]
        cells += [spent, summary.runs[run["run"]].spent_words, run["state"]]
        table.add_row(*map(escape, cells))
    return table


def _room_lines(cap: dict[str, Any], summary: "LedgerSummary", room: "Room") -> Iterator[str]:
    if room.measure == "plan":
        yield (
            f"Taken whole by run {cap['taken_by']}: its plan was fixed before its first release "
            f"and costs epsilon = {privacy.upper_bound(cap['taken'])} in total. Nothing may "
            "follow under this cap."
        )
    else:
        yield (
            f"Counted against it, with what open runs reserved, by {room.words}; {room.left_words}."
        )
        for other in summary.rooms[1:]:
            yield (
                f"By the other measure, {other.words}. A new run is allowed if either measure "
                "stays under its limit."
            )
    yield (
        f"Lost so far, by all runs: at most epsilon = {privacy.upper_bound(cap['lost'])} at delta "
        f"= {cap['delta']:g}."
    )
    if summary.honest:
        yield f"All of this holds{privacy.honest_words(summary.honest).removeprefix(',')}."
    if worse := privacy.collusion_words(summary.collusion):
        yield f"If more put together what they know, so far at most epsilon = {worse}."
    if cap["lost"] == cap["epsilon"] and room.left:
        yield (
            f"This is the whole cap although {room.left:.1%} is left: the cap is the smallest "
            "bound that holds at every moment. What is left may be spent within it."
        )


@ledger.command()
@_LEDGER
@option(
    "--head", help="A head printed earlier: finds a ledger that was cut at its end or replaced."
)
@prints_answer
def verify(path: str, head: str | None) -> Answer:
    """Check every byte that matters; exit code 5 if anything is wrong."""
    try:
        with privacy.Ledger.open(path, read_only=True) as opened:
            problems, last = opened.verify(head), opened.head
    except LedgerDamaged as error:
        problems, last = [str(error)], None
    result = {"sound": not problems, "problems": problems, "head": last}
    if problems:
        damage = "\n".join(f"DAMAGED: {problem}" for problem in problems)
        return Answer(result, [], DAMAGED, damage)
    unsure = " (no earlier head was given, so a cut at its end would not show)"
    return Answer(result, [f"Sound{'' if head else unsure}. Head {last}"])


@ledger.command()
@_LEDGER
@option(
    "--epsilon",
    type=Positive(),
    required=True,
    help="At most this in total, over all runs and data sets.",
)
@DELTA
@option("--node", help="Make the ledger of this node if the file is not there.")
@_WHO
@prints_answer
def cap(path: str, epsilon: float, delta: float, node: str | None, who: str) -> Answer:
    """Set what the node may spend in total. Choose it before looking at any message."""
    before, after = runs.set_cap(path, privacy.Cap.of(epsilon, delta), node=node, who=who)
    lines = [f"Node {after.node} may spend {after.promise}."]
    if before is not None and after.spent:
        lines.append(
            f"The cap was epsilon = {before.epsilon:g} at delta = {before.delta:g}, and "
            f"{len(after.spent)} releases are entered. A cap that is changed because of what they "
            "showed is outside the guarantee."
        )
    lines.append(f"Head {after.head}")
    return Answer(after.to_json()["cap"] | {"node": after.node, "head": after.head}, lines)


@ledger.command()
@_LEDGER
@click.argument("run")
@_WHO
def close(path: str, run: str, who: str) -> None:
    """End a run that will not go on: what it reserved and did not spend is free again."""
    rounds, head = runs.close_run(path, run, who=who)
    click.echo(f"Run {run} is closed after {rounds} rounds. Head {head}")
