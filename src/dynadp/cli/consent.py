"""``dynadp approve``, and what ``check`` and ``node --consent`` show of a silo's part in a run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynadp import engines, privacy, runs
from dynadp.cli.codes import REFUSED
from dynadp.cli.options import FILE, option, user
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import BudgetRefused, NotApproved

if TYPE_CHECKING:
    from dynadp.runs import LedgerProspect, Prospect, SiloRun

_SOON = 30  # days before a certificate's end


def check_node(path: str) -> Answer:
    """Return what a silo's part in a run would be; code 3 where its ledger would refuse it."""
    found = runs.prospect_of(runs.SiloRun.load(path))
    lines = list(prospect_lines(found))
    if problem := _refusal(found):
        return Answer(found.to_json(), lines, REFUSED, f"dynadp: {problem}")
    return Answer(found.to_json(), lines)


def _refusal(found: "Prospect") -> str:
    """Why the ledger would refuse the run; nothing where it would not."""
    if found.ledger is None or found.ledger.admitted:
        return ""
    return f"the ledger of {found.node} would refuse this run; {found.ledger.advice}"


def prospect_lines(found: "Prospect") -> Iterator[str]:
    """Yield it in words: what, to whom, at what cost, on whose honesty, what changed."""
    protected = "SIMULATION that protects nobody" if found.simulation else "private run"
    yield f"{found.node} in {protected} {found.run!r} (configuration {found.config[:16]})"
    yield from _release_lines(found)
    yield from _cost_lines(found)
    if found.ledger is not None:
        yield from _ledger_lines(found.ledger)
    yield "Changed: " + found.changed[0]
    yield from found.changed[1:]
    most = "up to " if found.at_most else ""
    yield f"Rows: {most}{found.rows:,}, all of them fit the schema."
    left, day = found.certificate_days, f"{found.certificate_ends:%Y-%m-%d}"
    soon = "; renew it: dynadp pki renew" if left < _SOON else ""
    yield f"Certificate: to {day}, {left} days{soon}."
    if found.approved is not None:
        yield f"Consent: {'' if found.approved else 'NOT APPROVED, '}{found.consent}."


def _release_lines(found: "Prospect") -> Iterator[str]:
    if not found.messages:
        yield "Releases: nothing. Its rows weigh too little to send a message; it gets the model."
        return
    parts = [f"{found.rounds} rounds"]
    parts += ["one before them, which centres the rows"] if found.centring else []
    parts += [f"{found.spares} spare attempts"] if found.spares else []
    how = f"with noise of {found.mechanism!r}"
    if found.exchange == "sealed":
        how += ", sealed so that nobody reads one silo's alone"
    yield (
        f"Releases: up to {found.messages} messages of {found.dimension} numbers each ({how}): "
        f"{'; '.join(parts)}"
    )
    for one in found.recipients:
        where = one.endpoint or "dials itself"
        hand = "" if one.direct else ", handed on by neighbours"
        yield f"  to {one.name}, key {one.fingerprint}, {where}{hand}"
    if found.centring and found.exchange == "neighbours":
        yield "  and the centring message to all silos of the run, handed on by neighbours"
    if found.relay:
        yield f"  through the relay {found.relay}, in envelopes that it cannot open"


def _cost_lines(found: "Prospect") -> Iterator[str]:
    total, up = found.total, privacy.upper_bound
    if found.own is not None:
        yield (
            f"Cost: epsilon = {up(found.own.epsilon)} at delta = {found.own.delta:g} for all "
            f"releases of this silo together; a round has {found.scale} = {up(found.each)} at most"
        )
    yield "  " + privacy.guarantee(
        total.epsilon,
        total.delta,
        seeded=found.simulation,
        planned=True,
        honest=total.honest,
        unit=total.unit,
    )
    if total.honest:
        honest = " and ".join(f"{h} of {members} silos" for h, members in total.honest)
        yield f"Must be honest: {honest} (add their noise, and keep their keys)."
    else:
        yield (
            "Must be honest: nobody but this silo. The bound holds against all others together, "
            "with all that they know."
        )
    if worse := privacy.collusion_words(found.collusion):
        yield f"  {worse[0].upper()}{worse[1:]}."
    if found.least < found.silos:
        counted = " The honest ones are counted among these." if total.honest else ""
        yield (
            f"Absence: the run goes on without silos that are silent for {found.patience:g} "
            f"seconds, as long as {found.least} of {found.silos} remain.{counted}"
        )


def _ledger_lines(own: "LedgerProspect") -> Iterator[str]:
    if own.cap is None:
        yield "Ledger: without a cap, so it admits nothing."
        return
    epsilon, delta = own.cap
    yield (
        f"Ledger: cap epsilon = {epsilon:g} at delta = {delta:g}; lost so far at most "
        f"{privacy.upper_bound(own.lost)}, {own.left_now:.1%} of the cap left"
    )
    if not own.admitted:
        yield "  it would REFUSE this run"
        return
    if own.begun:
        yield f"  this run is reserved in it: {own.spent} of {own.planned} messages are released"
    rest = (
        "nothing fits after it"
        if own.next_run is None
        else f"a run after it may have epsilon = {own.next_run:g}"
    )
    yield f"  after this run {own.left_after:.1%} of the cap is left; {rest}"


def require_consent(silo: "SiloRun") -> None:
    """Go on with a signed approval, or with the yes of somebody at a terminal who has seen what
    would be released; refuse otherwise.
    """
    try:
        silo.require_approval()
        return
    except NotApproved:
        if silo.node.consent is not None or sys.stdin is None or not sys.stdin.isatty():
            raise
    found = runs.prospect_of(silo)
    for line in prospect_lines(found):
        click.echo(line, err=True)
    if problem := _refusal(found):
        raise BudgetRefused(problem)
    _ask("Take part?")


def _ask(question: str) -> None:
    if not click.confirm(question, err=True):
        raise NotApproved("not approved. Nothing was spent, and neighbours have heard nothing")


@click.command()
@click.argument("node_file", metavar="NODE.toml", type=FILE)
@option(
    "--key", type=FILE, help="The approver's private key (Ed25519, PEM); the silo's by default."
)
@option("--yes", is_flag=True, help="Ask nothing: it was shown before, by dynadp check.")
@prints_answer
def approve(node_file: str, key: str | None, yes: bool) -> Answer:
    """Show what a silo would release in a run, ask, and sign an approval of exactly that.

    `dynadp node` takes it where NODE.toml says `consent`, or with --consent. It is void as soon as
    the run file, the schema, the plan, who gets messages or the ledger's cap is another.
    """
    silo = runs.SiloRun.load(node_file)
    signer = runs.identities.signing_key(Path(key)) if key else silo.identity.key
    public = runs.identities.public_text(signer.public_key())
    if public != silo.approver:
        raise NotApproved(
            f"the key is {public}, and the approver of {node_file} is {silo.approver}: sign with "
            "that one's (--key), or name this one in NODE.toml (approver)"
        )
    found = runs.prospect_of(silo)
    if problem := _refusal(found):
        raise BudgetRefused(problem)
    if not yes:
        for line in prospect_lines(found):
            click.echo(line, err=True)
        if sys.stdin is None or not sys.stdin.isatty():
            raise NotApproved(
                "nobody was asked: there is no terminal. Give --yes if somebody has seen and "
                "approved what stands above"
            )
        _ask("Approve?")
    made = runs.Approval.sign(silo.terms, signer, by=user(), at=engines.now())
    made.save(silo.approval)
    line = f"{silo.approval} approves run {made.run!r} of {made.node}, signed by {made.approver}"
    return Answer({"file": str(silo.approval), **vars(made)}, [line])
