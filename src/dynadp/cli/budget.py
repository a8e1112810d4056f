"""``dynadp account`` and ``dynadp calibrate``: from releases to a total, and back."""

import json
from pathlib import Path
from typing import Any

import click

from dynadp.errors import DeclarationError
from dynadp.privacy import (
    Event,
    Total,
    affordable_rounds,
    by_node,
    calibrate,
    dual,
    from_json,
    guess_words,
    primal,
    total,
    upper_bound,
)


def plan(
    mechanism: str, dimension: int, alpha: float, rounds: int, jacobian_share: float | None
) -> list[Event]:
    """The events of equal rounds."""
    if mechanism == "primal":
        if jacobian_share is not None:
            raise DeclarationError(
                "--jacobian-share is for dual perturbation; primal perturbation has none"
            )
        return primal(alpha, dimension, rounds)
    if jacobian_share is None:
        raise DeclarationError("dual perturbation needs --jacobian-share: abar/alpha, such as 0.01")
    return dual(alpha, dimension, rounds, jacobian_share)


def run_account(events: list[Event], delta: float, rows: int, title: str, as_json: bool) -> None:
    """Print the total of equal rounds."""
    found = total(events, delta, rows)
    if as_json:
        click.echo(json.dumps(_figures(found), indent=1))
    else:
        click.echo(title)
        _show(found, rows)


def run_account_file(path: str, delta: float, rows: int, as_json: bool) -> None:
    """Print the total of every node in a file of events, and of the network."""
    each = by_node(_read(path), delta, rows)
    if not each:
        raise DeclarationError(f"{path} holds no event; expected one JSON object a line")
    worst = max(each, key=lambda node: each[node].epsilon)
    if as_json:
        nodes = {
            node: _figures(found) | {"protected": found.protected} for node, found in each.items()
        }
        click.echo(json.dumps({**nodes[worst], "node": worst, "nodes": nodes}, indent=1))
        return
    for node, found in sorted(each.items()):
        click.echo(
            f"{node}: epsilon = {upper_bound(found.epsilon)} ({found.method}), sum "
            f"{upper_bound(found.epsilon_sum)}, {found.releases} events"
        )
    if not all(found.protected for found in each.values()):
        click.echo(
            "SIMULATION: some noise was seeded and protects nobody; these are the costs with "
            "system entropy."
        )
    click.echo(f"Whoever has rows at one node, at most that of {worst}:")
    _show(each[worst], rows)


def run_calibrate(
    mechanism: str,
    dimension: int,
    rounds: int | None,
    alpha: float | None,
    epsilon: float,
    delta: float,
    jacobian_share: float | None,
    as_json: bool,
) -> None:
    """Print alpha for a number of rounds, or the number of rounds for an alpha."""
    if rounds is not None and alpha is None:
        planned = rounds
        alpha = calibrate(
            lambda scale: plan(mechanism, dimension, scale, planned, jacobian_share), epsilon, delta
        )
    elif alpha is not None and rounds is None:
        fixed = alpha
        rounds = affordable_rounds(
            lambda n: plan(mechanism, dimension, fixed, n, jacobian_share), epsilon, delta
        )
    else:
        raise DeclarationError(
            "give --rounds to find alpha, or --alpha to find how many rounds fit; one of them, "
            "not both"
        )
    found = total(plan(mechanism, dimension, alpha, rounds, jacobian_share), delta)
    if as_json:
        click.echo(json.dumps({"alpha": alpha, "rounds": rounds, **_figures(found)}, indent=1))
        return
    if not rounds:
        click.echo(
            f"Not even one round with alpha = {alpha:g} fits within epsilon = {epsilon:g}, delta "
            f"= {delta:g}."
        )
        return
    click.echo(
        f"{rounds} rounds of {mechanism} perturbation in {dimension} dimensions: alpha = "
        f"{alpha:.6g} a round."
    )
    _show(found)


def _figures(found: Total) -> dict[str, Any]:
    figures = found.to_json()
    del figures["protected"]  # nothing was released
    return {**figures, "words": guess_words(found.epsilon, found.delta)}


def _show(found: Total, rows: int = 1) -> None:
    click.echo(
        f"  total    epsilon = {upper_bound(found.epsilon)} at delta = {found.delta:g} "
        f"(by {found.method})"
    )
    click.echo(
        f"  coarser  {upper_bound(found.epsilon_pure)} if only alpha were known of each release, "
        f"{upper_bound(found.epsilon_sum)} as a plain sum"
    )
    click.echo(
        f"  a round  alpha = {upper_bound(found.alpha)} at most: {guess_words(found.alpha, 0.0)}"
    )
    click.echo(f"In total {guess_words(found.epsilon, found.delta)}.")
    who = "one row" if rows == 1 else f"up to {rows} rows"
    click.echo(
        f"This holds for a plan that is fixed before its first round, for persons with {who} at "
        f"one node."
    )


def _read(path: str) -> list[Event]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DeclarationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise DeclarationError(f"{path} is not UTF-8; expected one JSON object a line") from None
    events = []
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise DeclarationError(
                f"{path}, line {number} is no JSON object ({error}); expected one event a line"
            ) from error
        try:
            events.append(from_json(content))
        except DeclarationError as error:
            raise DeclarationError(f"{path}, line {number}: {error}") from error
    return events
