"""``dynadp audit``: does a mechanism lose more than it claims, as far as draws can tell?"""

import json
from typing import TYPE_CHECKING

import click

from dynadp.cli.codes import FAILED
from dynadp.cli.options import JSON, ROUNDS, Positive

if TYPE_CHECKING:
    from dynadp.research.audit import Audit


@click.command()
@click.option(
    "--mechanism", type=click.Choice(["primal", "dual"]), required=True, help="Algorithm 3 or 2."
)
@click.option(
    "--alpha", type=Positive(), default=1.0, show_default=True, help="Claimed loss of one round."
)
@click.option(
    "--dimension",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Columns of the rows; the fewer, the sharper.",
)
@click.option(
    "--rounds",
    type=ROUNDS,
    default=1,
    show_default=True,
    help="Audit a whole run against the accountant's total.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="At which the total is taken.",
)
@click.option(
    "--draws",
    type=click.IntRange(min=200),
    default=100_000,
    show_default=True,
    help="Releases of each of the two data sets.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.999,
    show_default=True,
    help="Of the lower bound.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Makes the audit repeatable; by default every audit draws anew.",
)
@JSON
@click.pass_context
def audit(
    ctx: click.Context,
    mechanism: str,
    alpha: float,
    dimension: int,
    rounds: int,
    delta: float,
    draws: int,
    confidence: float,
    seed: int | None,
    as_json: bool,
) -> None:
    """How much a mechanism loses at least, beside what it claims to lose at most.

    Draws releases from two made data sets that differ in one row, chosen to be as telling as
    possible, and tells them apart. No data of yours are read. Exit code 1 if the claim is refuted,
    0 if the draws are consistent with it; which is no proof.
    """
    from dynadp.mechanisms import mechanism_named
    from dynadp.research.audit import Stream, audit_mechanism

    found = audit_mechanism(
        mechanism_named(mechanism),
        alpha,
        dimension,
        rounds,
        delta=delta,
        draws=draws,
        confidence=confidence,
        source=Stream(seed),
    )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        _show(found)
    if found.refuted:
        ctx.exit(FAILED)


def _show(found: "Audit") -> None:
    at = f" at delta = {found.delta:g}" if found.delta else ""
    said = found.setting
    runs = "one round" if said["rounds"] == 1 else f"{said['rounds']} rounds together"
    click.echo(
        f"{said['mechanism'].capitalize()} perturbation in dimension {said['dimension']}, {runs}: "
        f"{found.verdict}."
    )
    click.echo(f"Claimed: epsilon = {found.alpha_claimed:.4g} at most{at}.")
    click.echo(
        f"Found:   epsilon = {found.epsilon_lower:.4g} at least{at}, with "
        f"{100 * found.confidence:g}% confidence."
    )
    click.echo(
        f"From {found.draws:,} releases of each of two data sets that differ in one row "
        f"({found.pair}); the largest exact "
        f"log-likelihood ratio among them is {found.largest_log_ratio:.4g}, where "
        f"{found.log_ratio_bound:.4g} is allowed."
    )
    click.echo(
        "A lower bound can refute a claim and not prove it; the proofs are in docs/maths.md, "
        "sections 3 to 6."
    )
