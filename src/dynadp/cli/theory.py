"""``dynadp bounds``: how many rows the paper's theorems ask for, and back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dynadp.cli.options import CHANCE, COUNT, DIMENSION, ROUNDS, Positive, option
from dynadp.cli.output import Answer, prints_answer

if TYPE_CHECKING:
    from dynadp.research import Neighbour

_SURROGATE = (
    "It bounds a surrogate: the noise that earlier messages left in lam is not counted "
    "(docs/maths.md, section 9)."
)
_DELTAS = (
    "Delta is how far round t is from its limit; no bound on it is known, and consensus among "
    "unlike nodes is part of it."
)


@click.command()
@option(
    "--theorem",
    type=click.Choice(["3", "4", "4.1", "5", "6", "6.1", "6.2"]),
    required=True,
    help="3: Algorithm 1; 4 (and 4.1): Algorithm 2; 5, 6 (and 6.1, 6.2): Algorithm 3.",
)
@option(
    "--accuracy", type=Positive(), help="alpha_acc: expected loss above the reference's, at most."
)
@option(
    "--failure",
    type=CHANCE,
    default=0.01,
    help="delta, of each event that may fail.",
)
@option(
    "--norm", type=Positive(), required=True, help="||f0||, length of the reference classifier."
)
@DIMENSION
@option("--alpha", type=Positive(), help="Loss of one round; the smallest, where it varies.")
@option("--C", "C", type=Positive(), default=1.0, help="The paper's C^R.")
@option("--c1", type=Positive(), default=0.25, help="sup L'', the paper's c4 too.")
@option("--eta", type=Positive(), help="Penalty; Theorem 4 can do without.")
@option("--degree", type=COUNT, help="Neighbours of the node; Theorem 4 can do without.")
@option(
    "--neighbour",
    "neighbours",
    multiple=True,
    metavar="ALPHA[:ROWS]",
    help="alpha and rows of one neighbour, instead of --degree; repeat it for each. By default "
    "neighbours have the node's own.",
)
@option(
    "--rounds",
    type=ROUNDS,
    default=1,
    help="Rounds for which it must hold at once.",
)
@option(
    "--rows",
    type=COUNT,
    help="Asks back: the accuracy for an --alpha, or the alpha for an --accuracy.",
)
@option(
    "--beta",
    type=Positive(),
    help="The form as printed, with this value of the paper's unknown constant.",
)
@prints_answer
def bounds(
    theorem: str,
    accuracy: float | None,
    failure: float,
    rows: int | None,
    beta: float | None,
    neighbours: tuple[str, ...],
    **numbers: Any,
) -> Answer:
    """Print how many rows a node needs for an accuracy, by the paper's Theorems 3 to 6, corrected;
    or the accuracy or alpha of a number of rows.

    Worst-case bounds: they show how rows, alpha and accuracy trade, not what a run will reach.
    """
    from dynadp.research import THEOREMS, TheoremInputs

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
    return Answer(answer, _lines(answer))


def _neighbour(text: str) -> "Neighbour":
    """Read ALPHA or ALPHA:ROWS."""
    from dynadp.research import Neighbour

    alpha, _, rows = text.partition(":")
    try:
        return Neighbour(float(alpha), int(rows) if rows else None)
    except ValueError:
        raise click.UsageError(
            f"--neighbour is {text!r}; expected its alpha, or alpha and rows as in 0.5:2000"
        ) from None


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    alpha = f", alpha {answer['alpha']:.6g}" if "alpha" in answer else ""
    yield (
        f"{answer['theorem']}, {answer['form']}: {answer['rows']} rows at the node, accuracy "
        f"{answer['accuracy']:.6g}{alpha}"
    )
    for name, rows in sorted(answer.get("terms", {}).items(), key=lambda term: -term[1]):
        yield f"  {rows:>14,.0f}  {name} alone{' (binds)' if name == answer['binding'] else ''}"
    yield (
        f"With rho = {answer['rho']:.4g}, but with probability {answer['failure']:.4g}: "
        f"{answer['statement']}."
    )
    if "Delta" in answer["statement"]:
        yield _DELTAS
    if answer["surrogate"]:
        yield _SURROGATE
    if answer["form"] == "printed":
        yield "As printed: beta is not known; docs/errata.md lists its errors."
