"""``dynadp verify``: check a signed file, whatever it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Check a signed file: certificates of runs (dynadp certify), exports of ledgers (dynadp ledger
    export) and approvals (dynadp approve).

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
        checked = runs.verify_export(path, key=_key_in(run_file, checked.node), head=head)
    summary = checked.summary
    lines = [
        f"Sound: {summary.length} entries of the ledger of {checked.node}, as it was on "
        f"{checked.made}. Head {summary.head}",
        f"Signed with {checked.key}{_whose(checked.node, checked.known)}",
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
        raise click.UsageError("--head is for exports of ledgers; an approval has none")
    found = runs.Approval.load(Path(path))
    if not found.genuine:
        raise LedgerDamaged(f"{path}: it was changed after it was signed; approve the run again")
    expected, whose = key, "the key expected"
    if run_file:
        if (name := runs.load_run_file(run_file).run.name) != found.run:
            raise LedgerDamaged(f"{path} approves run {found.run!r}; {run_file} is run {name!r}")
        expected = _key_in(run_file, found.node)
        whose = f"the key of {found.node} in {run_file}; an approver's own goes with --key"
    if expected not in (None, found.approver):
        raise LedgerDamaged(f"{path} was signed by {found.approver}, which is not {whose}")
    known = f", the key of {found.node}." if run_file else "." if key else None
    lines = [
        f"Sound: {found.by} approved run {found.run!r} of {found.node} on {found.at}.",
        f"Signed with {found.approver}{known or '; whose key that is, give --run or --key.'}",
    ]
    result = {"sound": True, "problems": [], "format": "dynadp-approval", **vars(found)}
    return Answer({**result, "key_known": known is not None}, lines)


def _certificate(path: str, run_file: str | None, key: str | None, head: str | None) -> Answer:
    """Check a certificate of a run."""
    from dynadp.report import verify_certificate

    if head is not None:
        raise click.UsageError("--head is for exports of ledgers; a certificate has none")
    checked = verify_certificate(path, key)
    if run_file and checked.signer is not None:
        checked = verify_certificate(path, _key_in(run_file, checked.signer))
    said = checked.content
    lines = [f"Certificate of run {said['run']['name']}, begun {said['run']['began']}."]
    lines.append(said["guarantee"])
    result: dict[str, Any] = {
        "sound": checked.key is not None,
        "problems": ["nobody signed it"] if checked.key is None else [],
        "signer": checked.signer,
        "key": checked.key,
        "key_known": checked.known,
        "certificate": dict(said),
    }
    if checked.key is None:
        return Answer(result, lines, DAMAGED, "NOT SOUND: nobody signed it; anybody could have.")
    lines.append(f"Sound: signed with {checked.key}{_whose(checked.signer, checked.known)}")
    return Answer(result, lines)


def _key_in(run_file: str, node: str) -> str:
    """Return the key that a run file names for a node."""
    named = {one.name: one.key for one in runs.load_run_file(run_file).nodes}
    if (found := named.get(node)) is None:
        raise ConfigError(f"{run_file} names no key of {node!r}; give --key")
    return found


def _whose(node: str | None, known: bool) -> str:
    """Say whose key it is, as far as that is known."""
    if known:
        return f", the key of {node}."
    return ". Whose key that is, this file cannot say: give --run RUN.toml or --key."


_KINDS: dict[str, Callable[[str, str | None, str | None, str | None], Answer]] = {
    "dynadp-approval": _approval,
    "dynadp-certificate": _certificate,
    "dynadp-ledger-export": _ledger,
}
