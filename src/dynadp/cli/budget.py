"""``dynadp account`` and ``dynadp calibrate``: from releases to a total, and back."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy
from dynadp.cli.options import (
    COUNT,
    DELTA,
    DIMENSION,
    FILE,
    MECHANISM,
    ROUNDS,
    SHARE,
    Positive,
    option,
)
from dynadp.cli.output import Answer, prints_answer

if TYPE_CHECKING:
    from dynadp.privacy import Total


@click.command()
@MECHANISM
@DIMENSION
@option("--alpha", type=Positive(), help="Loss of one round.")
@option("--rounds", type=ROUNDS, help="How many.")
@SHARE
@option("--events", type=FILE, help="Instead of all these: a file with one event a line, as JSON.")
@option(
    "--rows",
    type=COUNT,
    default=1,
    help="Rows that one person may have at a node.",
)
@DELTA
@prints_answer
def account(events: str | None, rows: int, delta: float, **run: Any) -> Answer:
    """Print what many rounds lose in total: the smallest valid epsilon at a delta."""
    needed = ("mechanism", "dimension", "alpha", "rounds")
    missing = [f"--{name}" for name in needed if run[name] is None]
    if events is not None:
        if len(missing) < len(needed) or run["jacobian_share"] is not None:
            raise click.UsageError(
                "--events replaces --mechanism, --dimension, --alpha, --rounds and "
                "--jacobian-share; leave out those, or --events"
            )
        return _account_file(events, delta, rows)
    if missing:
        raise click.UsageError(f"missing {', '.join(missing)} (or give --events FILE)")
    found = privacy.total(privacy.equal_rounds(**run), delta, rows)
    title = (
        f"{run['rounds']} rounds of {run['mechanism']} perturbation with alpha = {run['alpha']:g} "
        f"in {run['dimension']} dimensions:"
    )
    return Answer(_figures(found), [title, *_lines(found, rows)])


def _account_file(path: str, delta: float, rows: int) -> Answer:
    """Return the total of every node in a file of events, and of the network."""
    each = privacy.by_node(privacy.read_events(path), delta, rows)
    worst = max(each, key=lambda node: each[node].epsilon)
    nodes = {node: _figures(one) | {"protected": one.protected} for node, one in each.items()}
    lines = [
        f"{node}: epsilon = {privacy.upper_bound(one.epsilon)} ({one.method}), sum "
        f"{privacy.upper_bound(one.epsilon_sum)}, {one.releases} events"
        for node, one in sorted(each.items())
    ]
    if not all(one.protected for one in each.values()):
        lines.append(
            "SIMULATION: some noise was seeded and protects nobody; these are the costs with "
            "system entropy."
        )
    lines += [f"The most is lost at node {worst}:", *_lines(each[worst], rows)]
    return Answer({**nodes[worst], "node": worst, "nodes": nodes}, lines)


@click.command()
@MECHANISM
@DIMENSION
@option("--rounds", type=ROUNDS, help="How many; prints the alpha that fits.")
@option("--alpha", type=Positive(), help="Loss of one round; prints how many rounds fit.")
@option("--epsilon", type=Positive(), required=True, help="The total.")
@DELTA
@SHARE
@prints_answer
def calibrate(
    rounds: int | None, alpha: float | None, epsilon: float, delta: float, **run: Any
) -> Answer:
    """Go from a total (epsilon, delta) to the alpha of each round, or to how many rounds fit;
    never to less privacy than asked.
    """
    mechanism, dimension = run["mechanism"], run["dimension"]
    if mechanism is None or dimension is None:
        raise click.UsageError("missing --mechanism or --dimension")

    def events(alpha: float, rounds: int) -> list[privacy.Event]:
        return privacy.equal_rounds(alpha=alpha, rounds=rounds, **run)

    if rounds is not None and alpha is None:
        alpha = privacy.calibrate(partial(events, rounds=rounds), epsilon, delta)
    elif alpha is not None and rounds is None:
        rounds = privacy.affordable_rounds(partial(events, alpha), epsilon, delta)
    else:
        raise click.UsageError(
            "give --rounds to find alpha, or --alpha to find how many rounds fit; one of them, "
            "not both"
        )
    found = privacy.total(events(alpha, rounds), delta)
    if rounds:
        title = (
            f"{rounds} rounds of {mechanism} perturbation in {dimension} dimensions: alpha = "
            f"{alpha:.6g} a round."
        )
        lines = [title, *_lines(found)]
    else:
        lines = [
            f"Not even one round with alpha = {alpha:g} fits within epsilon = {epsilon:g}, delta "
            f"= {delta:g}."
        ]
    return Answer({"alpha": alpha, "rounds": rounds, **_figures(found)}, lines)


def _figures(found: "Total") -> dict[str, Any]:
    figures = found.to_json()
    del figures["protected"]  # nothing was released
    return {**figures, "words": privacy.guess_words(found.epsilon, found.delta)}


def _lines(found: "Total", rows: int = 1) -> list[str]:
    up, words = privacy.upper_bound, privacy.guess_words
    who = "one row" if rows == 1 else f"up to {rows} rows"
    return [
        f"  total    epsilon = {up(found.epsilon)} at delta = {found.delta:g} (by {found.method})",
        f"  coarser  {up(found.epsilon_pure)} if only alpha were known of each release, "
        f"{up(found.epsilon_sum)} as a plain sum",
        f"  a round  alpha = {up(found.alpha)} at most: {words(found.alpha, 0.0)}",
        f"In total {words(found.epsilon, found.delta)}.",
        f"This holds for a plan that is fixed before its first round, for persons with {who} at "
        "one node.",
    ]
