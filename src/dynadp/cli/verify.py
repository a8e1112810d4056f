"""``dynadp verify``: check a signed file, whatever it is."""

from collections.abc import Callable
from pathlib import Path

import click

from dynadp import privacy, runs
from dynadp._files import read_format
from dynadp.cli.codes import DAMAGED
from dynadp.cli.options import FILE, option
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import ConfigError, LedgerDamaged, RecordError


@click.command()
@click.argument("path", metavar="FILE", type=FILE)
@option("--run", "run_file", metavar="RUN.toml", type=FILE, help="Names the keys of all nodes.")
@option("--key", help="The signing key, ed25519:..., where no run file names it.")
@option("--head", help="Of a ledger: a head that was printed earlier, which must be in it.")
@prints_answer
def verify(path: str, run_file: str | None, key: str | None, head: str | None) -> Answer:
    """Check a signed file: exports of ledgers (dynadp ledger export), approvals (dynadp approve).

    Exit code 5 if anything is wrong. A signature says which key signed; whose it is, a run file
    says, or whoever gives --key.
    """
    if run_file and key:
        raise click.UsageError("give --run or --key, not both")
    found = read_format(Path(path))
    if found not in _KINDS:
        raise RecordError(
            f"{path} is of format {found!r}; dynadp verify checks {', '.join(_KINDS)}"
        )
    try:
        return _KINDS[found](path, run_file, key, head)
    except LedgerDamaged as error:
        result = {"sound": False, "problems": [str(error)]}
        return Answer(result, [], DAMAGED, f"NOT SOUND: {error}")


def _ledger(path: str, run_file: str | None, key: str | None, head: str | None) -> Answer:
    """Check an export of a ledger."""
    checked = runs.verify_export(path, key=key, head=head)
    if run_file:
        named = {node.name: node.key for node in runs.load_run_file(run_file).nodes}
        if named.get(checked.node) is None:
            raise ConfigError(f"{run_file} names no key of {checked.node!r}; give --key")
        checked = runs.verify_export(path, key=named[checked.node], head=head)
    summary = checked.summary
    lines = [
        f"Sound: {summary.length} entries of the ledger of {checked.node}, as it was on "
        f"{checked.made}. Head {summary.head}",
        f"Signed with {checked.key}"
        + (
            f", the key of {checked.node}."
            if checked.known
            else ". Whose key that is, this file cannot say: give --run RUN.toml or --key."
        ),
    ]
    if summary.lost is not None and summary.cap is not None:
        lines.append(
            f"Lost so far, by all runs: at most epsilon = {privacy.upper_bound(summary.lost)} of "
            f"its cap {summary.cap.epsilon:g} at delta = {summary.cap.delta:g}."
        )
    if head is None:
        lines.append(
            "That nothing was left out at its end, an earlier head would show (--head), and what "
            "neighbours remember of the ledger."
        )
    return Answer({"sound": True, "problems": [], **checked.to_json()}, lines)


def _approval(path: str, run_file: str | None, key: str | None, head: str | None) -> Answer:
    """Check an approval by itself; whether it is of a run as it is now, its node finds out."""
    if head is not None:
        raise click.UsageError("--head goes with a ledger; an approval has none")
    found = runs.Approval.load(Path(path))
    if not found.genuine:
        raise LedgerDamaged(f"{path}: it was changed after it was signed; approve the run again")
    expected: list[str | None] = [key] if key else []
    if run_file:
        expected = [node.key for node in runs.load_run_file(run_file).nodes]
    if expected and found.approver not in expected:
        raise LedgerDamaged(f"{path} was signed by {found.approver}, which is not the key expected")
    lines = [
        f"Sound: {found.by} approved run {found.run!r} of {found.node} on {found.at}.",
        f"Signed with {found.approver}" + ("." if expected else "; whose key that is, give --key."),
    ]
    result = {"sound": True, "problems": [], "format": "dynadp-approval", **vars(found)}
    return Answer({**result, "key_known": bool(expected)}, lines)


_KINDS: dict[str, Callable[[str, str | None, str | None, str | None], Answer]] = {
    "dynadp-approval": _approval,
    "dynadp-ledger-export": _ledger,
}
