"""``dynadp ledger``: look at what a node has spent, check it, cap it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy, runs
from dynadp.cli.codes import DAMAGED
from dynadp.cli.ledger_copies import backup, export, recover, restore
from dynadp.cli.options import (
    ADJACENCY,
    ANCHOR,
    COUNT,
    DELTA,
    FILE,
    ROUNDS,
    MechanismName,
    Ordered,
    Positive,
    option,
    user,
)
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import LedgerDamaged

if TYPE_CHECKING:
    from dynadp.privacy import LedgerSummary, Room
    from dynadp.runs import Headroom

_LEDGERS = click.argument("paths", metavar="[FILE]...", nargs=-1, type=FILE)
_SOME_LEDGERS = click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=FILE)
_RUN_FILE = option(
    "--run",
    "run_file",
    metavar="RUN.toml",
    type=FILE,
    help="Instead of FILE: the ledgers of all nodes of this run file.",
)
_WHO = click.option(
    "--who",
    default=user,
    show_default=False,
    help="Who does this, for the ledger; by default the user's login name.",
)


ORDER = ("cap", "show", "left", "verify", "close", "export", "backup", "restore", "recover")


@click.group(cls=Ordered, order=ORDER)
def ledger() -> None:
    """Show, check and cap what a node has spent, over all its runs."""


for _command in (backup, export, recover, restore):
    ledger.add_command(_command)


@ledger.command(short_help="Print runs, cap, what is left of it, and the head.")
@_SOME_LEDGERS
@prints_answer
def show(paths: tuple[str, ...]) -> Answer:
    """Print runs, cap, what counts against it, and the head to keep elsewhere.

    Of several ledgers, print a line each.
    """
    results, summaries = [], []
    for path in paths:
        with runs.open_readable(path) as opened:
            summary, notes = privacy.LedgerSummary.of(opened), opened.notes()
        results.append({**summary.to_json(), "notes": notes})
        summaries.append(summary)
    if len(paths) == 1:
        return Answer(results[0], _show_lines(results[0], summaries[0]))
    ledgers = [{"file": path, **one} for path, one in zip(paths, results, strict=True)]
    return Answer({"ledgers": ledgers}, map(_short_line, results, summaries))


def _short_line(result: dict[str, Any], summary: "LedgerSummary") -> str:
    """One ledger among several."""
    number = len(result["runs"])
    still = sum(run["state"] == "open" for run in result["runs"])
    line = f"{result['node']}: {number} {'run' if number == 1 else 'runs'}"
    line += f" ({still} open)" if still else ""
    if (room := summary.room) is None:
        return f"{line}; no cap is set, so nothing can be reserved"
    cap = result["cap"]
    return (
        f"{line}; lost at most epsilon = {privacy.upper_bound(cap['lost'])} of {cap['epsilon']:g} "
        f"at delta = {cap['delta']:g}; {room.left_words}"
    )


def _show_lines(result: dict[str, Any], summary: "LedgerSummary") -> Iterator[str]:
    yield from _run_lines(result, summary)
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


def _run_lines(result: dict[str, Any], summary: "LedgerSummary") -> Iterator[str]:
    """Three lines a run; names are whole, as commands are given them."""
    number = len(result["runs"])
    yield f"Ledger of node {result['node']}: {number} {'run' if number == 1 else 'runs'}"
    for run in result["runs"]:
        spent = f"{run['rounds_spent']} of {run['rounds_planned']} releases made"
        if run["spares_planned"]:
            spent += f", {run['spares_spent']} of {run['spares_planned']} spare attempts"
        yield f"  {run['run']}"
        yield f"    {run['state']}: {spent}, {summary.runs[run['run']].spent_words}"
        basis = f"admitted by {run['basis']}"
        yield f"    {run['dataset']}; reserved {run['at']} by {run['who']}, {basis}"


def _room_lines(cap: dict[str, Any], summary: "LedgerSummary", room: "Room") -> Iterator[str]:
    yield (
        f"Lost so far, by all runs: at most epsilon = {privacy.upper_bound(cap['lost'])} at delta "
        f"= {cap['delta']:g}."
    )
    if room.measure == "plan":
        yield (
            f"Taken whole by run {cap['taken_by']}: its plan was fixed before its first release "
            f"and costs epsilon = {privacy.upper_bound(cap['taken'])} in total. Nothing may "
            "follow under this cap."
        )
    else:
        yield f"{room.left:.1%} of the cap is left, after what open runs reserved ({room.words})."
        for other in summary.rooms[1:]:
            yield (
                f"By the other measure, {other.left:.1%} ({other.words}). A new run is allowed "
                "if either measure stays under its limit."
            )
    for run in summary.runs.values():
        if run.kept is not None and summary.limit is not None:
            yield (
                f"Run {run.run} was admitted as a fixed plan and ended without releasing all of "
                f"it: what it released counts, and {privacy.upper_bound(run.kept)} of the cap's "
                "delta stays with it."
            )
    if summary.honest:
        yield f"All of this holds{privacy.honest_words(summary.honest).removeprefix(',')}."
    if worse := privacy.collusion_words(summary.collusion):
        yield f"If more put together what they know, so far at most epsilon = {worse}."
    if cap["lost"] == cap["epsilon"] and room.left:
        yield (
            f"Lost is the whole cap although {room.left:.1%} is left: the cap is the smallest "
            "bound that holds at every moment. What is left may be spent within it."
        )


@ledger.command(short_help="Check every byte that matters.")
@_SOME_LEDGERS
@option(
    "--head",
    help="A head printed earlier, for one FILE: finds a ledger that was cut or replaced.",
)
@ANCHOR
@prints_answer
def verify(paths: tuple[str, ...], head: str | None, anchor: str | None) -> Answer:
    """Check every byte that matters; exit code 5 if anything is wrong."""
    if head is not None and len(paths) != 1:
        raise click.UsageError("--head is that of one FILE; give that alone")
    _require_one(anchor, paths)
    found = {path: _verified(path, head, anchor) for path in paths}
    if len(paths) == 1:
        [(result, line)] = found.values()
        results, lines = result, [line]
    else:
        results = {"ledgers": [{"file": path, **one} for path, (one, _) in found.items()]}
        lines = [f"{path}: {line}" for path, (one, line) in found.items() if one["sound"]]
    names = {path: f"{path}: " if len(paths) > 1 else "" for path in paths}
    damage = [
        f"{names[path]}DAMAGED: {problem}"
        for path, (one, _) in found.items()
        for problem in one["problems"]
    ]
    if damage:
        sound = [] if len(paths) == 1 else lines
        return Answer(results, sound, DAMAGED, "\n".join(damage))
    return Answer(results, lines)


def _verified(path: str, head: str | None, anchor: str | None) -> tuple[dict[str, Any], str]:
    """What is wrong with one ledger, and what to print where nothing is."""
    mark = None
    try:
        with privacy.Ledger.open(path, read_only=True, anchor=anchor) as opened:
            mark = None if head else opened.anchor.read()
            problems, last = opened.verify(mark.head if mark else head), opened.head
    except LedgerDamaged as error:
        problems, last = [str(error)], None
    result = {"sound": not problems, "problems": problems, "head": last}
    unsure = " (no earlier head was given, and no anchor is here: a cut at its end would not show)"
    return result, f"Sound{'' if head or mark else unsure}. Head {last}"


def _require_one(anchor: str | None, paths: Sequence[str], run_file: str | None = None) -> None:
    if anchor is not None and (len(paths) != 1 or run_file):
        raise click.UsageError("--anchor is that of one FILE; give that alone")


@ledger.command(short_help="Say what still fits under the cap.")
@_SOME_LEDGERS
@option(
    "--epsilon",
    type=Positive(),
    help="Also say how many runs with this total fit, one after the other.",
)
@option(
    "--mechanism",
    type=MechanismName(),
    help="Of the next run; by default what the planner takes where none is named.",
)
@option("--rounds", type=ROUNDS, help="Of the next run; by default as the planner chooses.")
@option("--dimension", type=COUNT, default=10, help="Columns of its rows, with the intercept.")
@option("--nodes", type=click.IntRange(min=2), default=5, help="How many nodes it has.")
@option(
    "--rows-per-person",
    type=COUNT,
    help="Rows that one person may have at a node; by default as earlier runs were planned.",
)
@option(
    "--silos-per-person",
    type=COUNT,
    help="Nodes at which one person may have rows; by default as earlier runs were planned.",
)
@option(
    "--adjacency",
    type=ADJACENCY,
    help="Whether rows are replaced, or added and removed; by default as earlier runs were "
    "planned.",
)
@prints_answer
def left(
    paths: tuple[str, ...],
    epsilon: float | None,
    rows_per_person: int | None,
    silos_per_person: int | None,
    adjacency: str | None,
    **run: Any,
) -> Answer:
    """Say what still fits under the cap: the largest total epsilon that a next run may have.

    A next run is what the planner makes of a total epsilon at the cap's delta. Such plans are made
    and the ledger's rule is asked about them, so that a run with the epsilon that is printed is
    admitted, as long as nothing else is reserved before. Runs of sums (the default) cost the same
    whatever their rows, columns, nodes and rounds are. The cost of primal and dual perturbation
    depends on them by a few percent: for a run file, dynadp check RUN.toml --max-epsilon is exact.
    Epsilons of several runs do not add up: --epsilon counts how many fit.
    """
    standing, found = runs.NextRun(**run), {}
    for path in paths:
        with runs.open_readable(path) as opened:
            summary = privacy.LedgerSummary.of(opened)
        if rows_per_person or silos_per_person or adjacency:
            before = summary.unit
            unit = privacy.Unit(
                rows_per_person or before.rows,
                silos_per_person or before.silos,
                adjacency or before.adjacency,
            )
            standing = replace(standing, unit=unit)
        found[path] = runs.find_headroom(summary, standing, epsilon)
    ledgers = [{"file": path, **room.to_json()} for path, room in found.items()]
    result = {"next_run": standing.to_json(), "ledgers": ledgers}
    return Answer(result, [_left_line(room) for room in found.values()])


def _left_line(room: "Headroom") -> str:
    """What fits, in one line."""
    freed = ""
    if room.open_runs:
        freed = (
            f" Open: {', '.join(room.open_runs)}; what they do not spend is free again when they "
            "are closed."
        )
    if room.epsilon is None or room.cap is None:
        return f"{room.node}: nothing fits: {room.why}.{freed}"
    line = f"{room.node}: a next run may have epsilon = {room.epsilon:g} at delta = {room.cap[1]:g}"
    line += f" for anybody with {room.unit.words}"
    if room.basis == "plan":
        least = (
            "" if room.sharing is None else f"; up to {room.sharing:g} it leaves room for others"
        )
        line += f" if it takes the whole cap{least}"
    if room.runs is not None:
        some = "1 run" if room.runs == 1 else f"{room.runs or 'no'} runs"
        verb = "fits" if room.runs == 1 else "fit"
        line += f". Of epsilon = {room.each:g}, {some} {verb} one after the other"
    return f"{line}.{freed}"


@ledger.command()
@_LEDGERS
@_RUN_FILE
@option(
    "--epsilon",
    type=Positive(),
    required=True,
    help="At most this in total, over all runs and data sets.",
)
@DELTA
@option("--node", help="Make the ledger of this node if the file is not there; for one FILE.")
@ANCHOR
@_WHO
@prints_answer
def cap(
    paths: tuple[str, ...],
    run_file: str | None,
    epsilon: float,
    delta: float,
    node: str | None,
    anchor: str | None,
    who: str,
) -> Answer:
    """Set what the node may spend in total. Choose it before looking at any message.

    Several ledgers get the same cap, in all of them or in none. With --run, those that are missing
    are made, each for the node that the run file names.
    """
    limit = privacy.Cap.of(epsilon, delta)
    if node is not None and (len(paths) != 1 or run_file):
        raise click.UsageError(
            "--node names the node of one FILE; give --run RUN.toml to make the ledgers of all "
            "nodes of a run"
        )
    _require_one(anchor, paths, run_file)
    if len(paths) == 1 and run_file is None:
        before, after = runs.set_cap(paths[0], limit, node=node, who=who, anchor=anchor)
        return Answer(_cap_json(after), _cap_lines(before, after))
    done = runs.set_caps(_given(paths, run_file), limit, who=who)
    result = [{"file": str(path), **_cap_json(after)} for path, (_, after) in done.items()]
    lines = [line for before, after in done.values() for line in _cap_lines(before, after)]
    return Answer({"ledgers": result}, lines)


def _given(paths: Sequence[str], run_file: str | None) -> dict[Path, str | None]:
    """Return the ledgers that were named, or those of a run file with their nodes."""
    if bool(paths) == bool(run_file):
        raise click.UsageError("give the ledgers' files, or --run RUN.toml; one of them, not both")
    if run_file is None:
        return dict.fromkeys(map(Path, paths))
    return {path: node for node, path in runs.ledgers_of(run_file).items()}


def _cap_json(after: "LedgerSummary") -> dict[str, Any]:
    return dict(after.to_json()["cap"]) | {"node": after.node, "head": after.head}


def _cap_lines(before: "privacy.Cap | None", after: "LedgerSummary") -> list[str]:
    lines = [f"Node {after.node} may spend {after.promise}."]
    if before is not None and after.spent:
        lines.append(
            f"The cap was epsilon = {before.epsilon:g} at delta = {before.delta:g}, and "
            f"{len(after.spent)} releases are entered. A cap that is changed because of what they "
            "showed is outside the guarantee."
        )
    return [*lines, f"Head {after.head}"]


@ledger.command(short_help="End a run that will not go on.")
@_LEDGERS
@click.argument("run")
@_RUN_FILE
@ANCHOR
@_WHO
@prints_answer
def close(
    paths: tuple[str, ...], run: str, run_file: str | None, anchor: str | None, who: str
) -> Answer:
    """End a run that will not go on: what it reserved and did not spend is free again.

    RUN is its whole name, as dynadp ledger show prints it. Of several ledgers, those in which it
    is not open stay as they are.
    """
    _require_one(anchor, paths, run_file)
    if len(paths) == 1 and run_file is None:
        rounds, head = runs.close_run(paths[0], run, who=who, anchor=anchor)
        result = {"file": paths[0], "rounds": rounds, "head": head}
        line = f"Run {run} is closed after {rounds} rounds. Head {head}"
        return Answer({"run": run, "closed": [result], "others": []}, [line])
    done, others = runs.close_runs(list(_given(paths, run_file)), run, who=who)
    lines = [
        f"{path}: run {run} is closed after {rounds} rounds. Head {head}"
        for path, (rounds, head) in done.items()
    ]
    lines += [f"{path}: unchanged, {why}" for path, why in others.items()]
    closed = [
        {"file": str(path), "rounds": rounds, "head": head} for path, (rounds, head) in done.items()
    ]
    unchanged = [{"file": str(path), "why": why} for path, why in others.items()]
    return Answer({"run": run, "closed": closed, "others": unchanged}, lines)
