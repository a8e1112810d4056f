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
    answer: dict[str, Any]
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
        answer = bound.to_json()
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
            answer = {"accuracy": accuracy}
        else:
            answer = {"accuracy": accuracy, "alpha": chosen.alpha(problem, rows, accuracy, failure)}
        answer = {
            "theorem": chosen.name,
            "form": "solved",
            "rows": rows,
            **answer,
            "rho": accuracy / problem.norm**2,
            "failure": chosen.events * failure,
            "statement": chosen.statement,
            "surrogate": chosen.surrogate,
        }
    if as_json:
        click.echo(json.dumps(answer, indent=1))
    else:
        _show(answer)


def _neighbour(text: str) -> Neighbour:
    """Read ALPHA or ALPHA:ROWS."""
    alpha, _, rows = text.partition(":")
    try:
        return Neighbour(float(alpha), int(rows) if rows else None)
    except ValueError:
        raise click.UsageError(
            f"--neighbour is {text!r}; expected its alpha, or alpha and rows as in 0.5:2000"
        ) from None


def _show(answer: dict[str, Any]) -> None:
    head = (
        f"{answer['theorem']}, {answer['form']}: {answer['rows']} rows at the node, accuracy "
        f"{answer['accuracy']:.6g}"
    )
    click.echo(head + (f", alpha {answer['alpha']:.6g}" if "alpha" in answer else ""))
    for name, rows in sorted(answer.get("terms", {}).items(), key=lambda term: -term[1]):
        click.echo(
            f"  {rows:>14,.0f}  {name} alone{' (binds)' if name == answer['binding'] else ''}"
        )
    click.echo(
        f"With rho = {answer['rho']:.4g}, but with probability {answer['failure']:.4g}: "
        f"{answer['statement']}."
    )
    if "Delta" in answer["statement"]:
        click.echo(_DELTAS)
    if answer["surrogate"]:
        click.echo(_SURROGATE)
    if answer["form"] == "printed":
        click.echo("As printed: beta is not known; docs/errata.md lists its errors.")
