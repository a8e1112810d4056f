"""``dynadp audit``: does a mechanism lose more than it claims, as far as draws can tell?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dynadp.cli.codes import FAILED
from dynadp.cli.options import (
    ADJACENCY,
    BELOW_1,
    CHANCE,
    COUNT,
    MECHANISM_HELP,
    ROUNDS,
    SEED,
    MechanismName,
    Positive,
    option,
)
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import DeclarationError

if TYPE_CHECKING:
    from dynadp.research.audit import Audit


@click.command()
@option("--mechanism", type=MechanismName(), required=True, help=MECHANISM_HELP)
@option(
    "--noise",
    type=click.Choice(["l2-laplace", "gaussian"]),
    help="Of primal perturbation; l2-laplace by default. That of sums is Gaussian.",
)
@option("--second-moment", is_flag=True, help="Round 1 of sums releases the second moment.")
@option(
    "--histogram",
    type=COUNT,
    default=None,
    help="The last round of sums, of two at least, releases a histogram of so many bins.",
)
@option("--targets", is_flag=True, help="Rows with a number to predict, and losses of residuals.")
@option("--weighed", is_flag=True, help="Weigh the rows of a person in sums, as one row may count.")
@option("--nodes", type=COUNT, help="Of sealed sums: how many nodes there are; 5 by default.")
@option("--honest", type=COUNT, help="Of sealed sums: how many nodes were declared honest.")
@option(
    "--colluding",
    type=click.IntRange(min=0),
    multiple=True,
    help="Of sealed sums: how many nodes really collude; may be given several times. By default as "
    "many as planned.",
)
@option(
    "--spares", type=click.IntRange(min=0), help="Of sealed sums: spare attempts; 0 by default."
)
@option(
    "--alpha",
    type=Positive(),
    default=1.0,
    help="Claimed loss of one round, for one row; mu with Gaussian noise.",
)
@option(
    "--rows-per-person",
    type=COUNT,
    default=1,
    help="Rows of one person that are replaced at once; the claim is that of all of them.",
)
@option(
    "--silos-per-person",
    type=COUNT,
    default=1,
    help="Nodes at which she has so many rows; the claim is that of all of them.",
)
@option(
    "--adjacency",
    type=ADJACENCY,
    default="replace",
    help="Whether rows are replaced, or added and removed.",
)
@option(
    "--dimension",
    type=COUNT,
    default=1,
    help="Columns of the rows; the fewer, the sharper.",
)
@option(
    "--classes",
    type=click.IntRange(min=2),
    default=2,
    help="Of sums: how many classes the label has.",
)
@option(
    "--rounds",
    type=ROUNDS,
    default=1,
    help="Audit a whole run against the accountant's total.",
)
@option(
    "--delta",
    type=BELOW_1,
    default=0.0,
    help="At which the total is taken; mu needs none.",
)
@option(
    "--draws",
    type=click.IntRange(min=200),
    default=100_000,
    help="Releases of each of the two data sets.",
)
@option(
    "--confidence",
    type=CHANCE,
    default=0.999,
    help="Of the lower bound.",
)
@option(
    "--seed",
    type=SEED,
    help="Makes the audit repeatable; by default every audit draws anew.",
)
@prints_answer
def audit(
    mechanism: str,
    noise: str | None,
    second_moment: bool,
    histogram: int | None,
    weighed: bool,
    nodes: int | None,
    honest: int | None,
    colluding: tuple[int, ...],
    spares: int | None,
    seed: int | None,
    **numbers: Any,
) -> Answer:
    """Print how much a mechanism loses at least, beside what it claims to lose at most.

    Draws releases from two made data sets that differ in one row, or in all rows of one person,
    chosen to be as telling as possible, and tells them apart. No data of yours are read. Exit code
    1 if the claim is refuted, 0 if the draws are consistent with it; which is no proof.
    """
    from dynadp.mechanisms import mechanism_named
    from dynadp.research.audit import Stream, audit_mechanism

    given: dict[str, Any] = {"noise": noise} if noise else {}
    sums = mechanism in ("sum", "sealed")
    if sums and noise == "gaussian":
        given = {}  # they have no other
    if second_moment:
        given["second_moment"] = True
    if weighed:
        given["weighed"] = True
    if histogram is not None:
        given["histogram"] = histogram
    least = 2 + second_moment
    if sums and histogram and numbers["rounds"] < least:
        raise DeclarationError(
            f"rounds is {numbers['rounds']}; expected {least} or more: a gradient comes before "
            "the histogram, which is the last, and a second moment takes a round of its own"
        )
    if honest is not None:
        given["honest"] = honest
    if spares is not None or mechanism == "sealed":
        given["spares"] = spares or 0
    audited = mechanism_named(mechanism, **given)
    found = [
        audit_mechanism(audited, **numbers, source=Stream(seed), nodes=nodes, colluding=c)
        for c in colluding or (None,)
    ]
    code = FAILED if any(each.refuted for each in found) else 0
    lines = [line for each in found for line in ("", *_lines(each))][1:]
    if len(found) == 1:
        return Answer(found[0].to_json(), lines, code)
    return Answer({"version": 1, "audits": [each.to_json() for each in found]}, lines, code)


def _lines(found: "Audit") -> list[str]:
    at = f" at delta = {found.delta:g}" if found.delta else ""
    setting = found.setting
    rounds = "one round" if setting["rounds"] == 1 else f"{setting['rounds']} rounds together"
    sums, gaussian = setting["mechanism"] in ("sum", "sealed"), found.mu_claimed is not None
    what = "Sums over rows" if sums else f"{setting['mechanism'].capitalize()} perturbation"
    if "honest" in setting:
        what = _sealed(setting)
    if gaussian and not sums:
        what += " with Gaussian noise"
    many = f" with {setting['classes']} classes" if "classes" in setting else ""
    claims, finds = (
        [f"epsilon = {found.alpha_claimed:.4g} at most{at}"],
        [f"epsilon = {found.epsilon_lower:.4g} at least{at}"],
    )
    sections = "sections 3 to 6"
    exact = f"the largest exact log-likelihood ratio among them is {found.largest_log_ratio:.4g}"
    if found.log_ratio_bound is not None:
        exact += f", where {found.log_ratio_bound:.4g} is allowed"
    if gaussian:
        # without delta, any epsilon has some chance to be passed
        claims = [f"mu = {found.mu_claimed:.4g} at most", *(claims if found.delta else [])]
        finds = [f"mu = {found.mu_lower:.4g} at least", *(finds if found.delta else [])]
        sections = "section 12" if sums else "sections 4, 6 and 12"
        if "honest" in setting:
            sections = "sections 12 and 13"
        sections += " and 19" if many else ""
        exact = (
            f"before noise their vectors differ by {found.largest_shift:.4g} deviations at most, "
            f"where {found.mu_claimed:.4g} is allowed"
        )
    return [
        f"{what} in dimension {setting['dimension']}{many}, {rounds}: {found.verdict}.",
        f"Claimed: {', '.join(claims)}.",
        f"Found:   {', '.join(finds)}, with {100 * found.confidence:g}% confidence.",
        f"From {found.draws:,} releases of each of two data sets that differ in "
        f"{_replaced(setting)} ({found.pair}); {exact}.",
        f"A lower bound can refute a claim and not prove it; the proofs are in docs/maths.md, "
        f"{sections}{_persons(setting)}.",
    ]


def _replaced(setting: Mapping[str, Any]) -> str:
    """In what the data sets differ."""
    m, s = setting["rows_per_person"], setting["silos_per_person"]
    rows = "one row" if m == 1 else f"{m} rows of one person"
    if setting["adjacency"] == "add-remove":
        rows += " that is there or not" if m == 1 else " that are there or not"
    return rows if s == 1 else f"{rows} at each of {s} nodes"


def _persons(setting: Mapping[str, Any]) -> str:
    """Where several rows of a person are treated; nothing for one row."""
    alone = setting["rows_per_person"] == setting["silos_per_person"] == 1
    several = "" if alone else "; section 14 for several rows of a person"
    added = setting["adjacency"] == "add-remove"
    if setting.get("targets"):
        several += "; section 21 for numbers to predict"
    return f"{several}; section 15 for rows that are added and removed" if added else several


def _sealed(setting: Mapping[str, Any]) -> str:
    """Who takes part in sealed sums, and who looks."""
    nodes, honest, colluding = (setting[name] for name in ("nodes", "honest", "colluding"))
    spares = f", spare attempts: {setting['spares']}" if setting["spares"] else ""
    return f"Sealed sums of {nodes} nodes ({honest} declared honest, {colluding} colluding{spares})"
