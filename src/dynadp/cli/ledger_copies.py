"""``dynadp ledger backup``, ``restore``, ``recover`` and ``export``: copies of ledgers, for oneself
and for others, and what to do without one.
"""

from pathlib import Path

import click

from dynadp import privacy, runs
from dynadp.cli.options import ANCHOR, CHANCE, FILE, Positive, option, user
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import DeclarationError


@click.command(short_help="Copy a ledger to a new file, whole.")
@click.argument("path", metavar="LEDGER", type=FILE)
@click.argument("copy", metavar="COPY", type=FILE)
@prints_answer
def backup(path: str, copy: str) -> Answer:
    """Copy a ledger to a new file, whole, while its node may be at work."""
    mark = runs.backup_ledger(path, copy)
    line = f"{copy} holds {mark.length} entries. Head {mark.head}"
    return Answer({"file": copy, "entries": mark.length, "head": mark.head}, [line])


@click.command(short_help="Put a copy in the place of a lost ledger.")
@click.argument("copy", metavar="COPY", type=FILE)
@click.argument("path", metavar="LEDGER", type=FILE)
@ANCHOR
@prints_answer
def restore(copy: str, path: str, anchor: str | None) -> Answer:
    """Put a copy in the place of a ledger that is lost or damaged.

    Refused, with exit code 5, where the ledger or its anchor knows of entries that the copy has
    not. A file that is replaced stays beside it.
    """
    mark = runs.restore_ledger(copy, path, anchor)
    line = f"{path} holds {mark.length} entries again. Head {mark.head}"
    return Answer({"file": path, "entries": mark.length, "head": mark.head}, [line])


@click.command(short_help="Enter again what a ledger has lost.")
@click.argument("path", metavar="LEDGER", type=FILE)
@option(
    "--from",
    "sources",
    multiple=True,
    required=True,
    type=click.Path(exists=True),
    help="A run folder with letters, or one that holds such, or a file of letters: this node's own "
    "and neighbours' copies. Give it as often as needed.",
)
@option(
    "--identity",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="The node's folder with its sign.key: what it did not sign counts for nothing.",
)
@option("--copy", type=FILE, help="An older copy to begin with, where LEDGER is missing.")
@option("--node", help="Where no copy is left: make the ledger of this node anew.")
@option("--epsilon", type=Positive(), help="With --node: the cap that was in force.")
@option("--delta", type=CHANCE, help="With --node: the cap that was in force.")
@option(
    "--charge-rest",
    is_flag=True,
    help="Go on where entries stay missing, or may be: nothing more is admitted.",
)
@option(
    "--nothing-else",
    is_flag=True,
    help="Where no anchor is left: you know that nothing was charged but what letters show.",
)
@ANCHOR
@prints_answer
def recover(
    path: str,
    sources: tuple[str, ...],
    identity: str,
    copy: str | None,
    node: str | None,
    epsilon: float | None,
    delta: float | None,
    charge_rest: bool,
    nothing_else: bool,
    anchor: str | None,
) -> Answer:
    """Enter what a ledger has lost: every release that letters show with the node's signature.

    Runs whose releases are all found are closed; where no anchor says so, they stay open and count
    their whole plan. Exit code 5 if the anchor remembers entries that no letter shows, or if there
    is none and nothing says that charges without letters are not missing.
    """
    key = runs.identities.signing_key(Path(identity) / "sign.key").public_key()
    begin: str | runs.Anew | None = copy
    if copy is None and node is not None:
        if epsilon is None or delta is None:
            raise DeclarationError("--node makes the ledger anew: give --epsilon and --delta too")
        begin = runs.Anew(node, privacy.Cap.of(epsilon, delta))
    done = runs.recover_ledger(
        path,
        sources,
        key,
        who=user(),
        anchor=anchor,
        charge_rest=charge_rest,
        nothing_else=nothing_else,
        begin=begin,
    )
    lines = [
        f"Run {run}: {len(rounds)} rounds entered that the ledger did not know."
        for run, rounds in done.runs.items()
    ] or ["The ledger knows all that these letters show."]
    if done.missing:
        names = ", ".join(f"{count} of kind {kind}" for kind, count in done.missing.items())
        lines.append(f"Entries that stay missing: {names}. Nothing more is admitted.")
    if done.unknown:
        lines.append("No anchor says whether others are missing. Nothing more is admitted.")
    lines.append(f"{path} holds {done.entries} entries. Head {done.head}")
    result = {"file": path, "runs": done.runs, "missing": done.missing}
    return Answer({**result, "entries": done.entries, "head": done.head}, lines)


@click.command()
@click.argument("path", metavar="LEDGER", type=FILE)
@option(
    "--identity",
    required=True,
    type=click.Path(exists=True, file_okay=False),
    help="The node's folder with its sign.key.",
)
@option("--out", type=FILE, help="File to write; LEDGER.export.json by default.")
@prints_answer
def export(path: str, identity: str, out: str | None) -> Answer:
    """Write all entries, signed by the silo, for others to check.

    `dynadp verify` checks the file. It holds who reserved what and when, with all its costs, and
    of each release the hash alone.
    """
    file = Path(out or f"{path}.export.json")
    summary = runs.export_ledger(path, identity, file)
    line = f"{file} holds {summary.length} entries, signed. Head {summary.head}"
    return Answer({"file": str(file), "entries": summary.length, "head": summary.head}, [line])
