"""``dynadp bounds``: how many rows the paper's theorems ask for, and back."""

import json
from collections.abc import Sequence
from typing import Any

import click

from dynadp.research import THEOREMS, Neighbour, TheoremInputs

_SURROGATE = (
    "It bounds a surrogate: the noise that earlier messages left in lam is not counted "
    "(docs/maths.md, section 9)."
)
_DELTAS = (
    "Delta is how far round t is from its limit; no bound on it is known, and consensus among "
    "unlike nodes is part of it."
)


def run_bounds(
    theorem: str,
    accuracy: float | None,
    failure: float,
    rows: int | None,
    beta: float | None,
    neighbours: Sequence[str],
    as_json: bool,
    **numbers: Any,
) -> None:
    """Print rows, accuracy or alpha, whichever was not given."""
    found: dict[str, Any]
    others = [_neighbour(text) for text in neighbours]
    chosen, problem = THEOREMS[theorem], TheoremInputs(neighbours=others, **numbers)
    if rows is None:
        if accuracy is None:
            raise click.UsageError("missing --accuracy, or --rows to ask back")
        if beta is None:
            bound = chosen.solved(problem, accuracy, failure)
        elif problem.rounds > 1:
            raise click.UsageError(
                "the printed form speaks of one round; leave out --rounds or --beta"
            )
        else:
            bound = chosen.printed(problem, accuracy, failure, beta)
        found = bound.to_json()
    else:
        private = "alpha" in chosen.needs
        if beta is not None:
            raise click.UsageError(
                "only the solved form is turned round; leave out --beta or --rows"
            )
        if accuracy is not None and (problem.alpha is not None or not private):
            raise click.UsageError(
                "give --rows with --alpha or with --accuracy, not both"
                if private
                else "give --rows or --accuracy"
            )
        if accuracy is None:
            accuracy = chosen.accuracy(problem, rows, failure)
            found = {"accuracy": accuracy}
        else:
            found = {"accuracy": accuracy, "alpha": chosen.alpha(problem, rows, accuracy, failure)}
        found = {
            "theorem": chosen.name,
            "form": "solved",
            "rows": rows,
            **found,
            "rho": accuracy / problem.norm**2,
            "failure": chosen.events * failure,
            "statement": chosen.statement,
            "surrogate": chosen.surrogate,
        }
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show(found)


def _neighbour(text: str) -> Neighbour:
    """Read ALPHA or ALPHA:ROWS."""
    alpha, _, rows = text.partition(":")
    try:
        return Neighbour(float(alpha), int(rows) if rows else None)
    except ValueError:
        raise click.UsageError(
            f"--neighbour is {text!r}; expected its alpha, or alpha and rows as in 0.5:2000"
        ) from None


def _show(found: dict[str, Any]) -> None:
    head = (
        f"{found['theorem']}, {found['form']}: {found['rows']} rows at the node, accuracy "
        f"{found['accuracy']:.6g}"
    )
    click.echo(head + (f", alpha {found['alpha']:.6g}" if "alpha" in found else ""))
    for name, rows in sorted(found.get("terms", {}).items(), key=lambda term: -term[1]):
        click.echo(
            f"  {rows:>14,.0f}  {name} alone{' (binds)' if name == found['binding'] else ''}"
        )
    click.echo(
        f"With rho = {found['rho']:.4g}, but with probability {found['failure']:.4g}: "
        f"{found['statement']}."
    )
    if "Delta" in found["statement"]:
        click.echo(_DELTAS)
    if found["surrogate"]:
        click.echo(_SURROGATE)
    if found["form"] == "printed":
        click.echo("As printed: beta is not known, and docs/errata.md says what is wrong with it.")
