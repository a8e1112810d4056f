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
    ROUNDS,
    SHARE,
    MechanismName,
    Positive,
    option,
)
from dynadp.cli.output import Answer, prints_answer

if TYPE_CHECKING:
    from dynadp.privacy import Total


_MECHANISM = option(
    "--mechanism",
    type=MechanismName(after=("gaussian",)),
    help="primal (Algorithm 3), dual (Algorithm 2), or gaussian (sums over rows).",
)
_MU_HELP = "Sensitivity over noise of one Gaussian round"


@click.command()
@_MECHANISM
@DIMENSION
@option("--alpha", type=Positive(), help="Loss of one round; not for gaussian.")
@option("--mu", type=Positive(), help=f"{_MU_HELP}; for gaussian alone.")
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
    if events is not None:
        if any(value is not None for value in run.values()):
            raise click.UsageError(
                "--events replaces --mechanism, --dimension, --alpha, --mu, --rounds and "
                "--jacobian-share; leave out those, or --events"
            )
        return _account_file(events, delta, rows)
    _refuse_strangers(run)
    scale = _scale(run["mechanism"])
    needed = ("mechanism", *_shape(run["mechanism"]), scale, "rounds")
    if missing := [f"--{name}" for name in needed if run[name] is None]:
        raise click.UsageError(f"missing {', '.join(missing)} (or give --events FILE)")
    released = privacy.equal_rounds(**run)
    found = privacy.total(released, delta, rows)
    title = f"{_title(run)} with {scale} = {run[scale]:g}{_where(run)}:"
    joint = privacy.joint_mu(released, rows)
    return Answer(_figures(found, joint), [title, *_lines(found, rows, joint)])


def _scale(mechanism: str | None) -> str:
    """Return the number that says how much a round loses."""
    return "mu" if mechanism == "gaussian" else "alpha"


def _shape(mechanism: str | None) -> tuple[str, ...]:
    """Return what else prices a round: a Gaussian one costs the same in every dimension."""
    return () if mechanism == "gaussian" else ("dimension",)


def _refuse_strangers(run: dict[str, Any]) -> None:
    """Refuse alpha for Gaussian rounds, and mu for others."""
    gaussian = run["mechanism"] == "gaussian"
    if gaussian and run["alpha"] is not None:
        raise click.UsageError(
            "--alpha goes with primal and dual perturbation; a Gaussian round has no alpha: give "
            "--mu instead"
        )
    if run["mu"] is not None and not gaussian:
        raise click.UsageError(
            "--mu goes with --mechanism gaussian; for primal or dual perturbation give --alpha "
            "instead"
        )


def _title(run: dict[str, Any]) -> str:
    if run["mechanism"] == "gaussian":
        return f"{run['rounds']} Gaussian rounds"
    return f"{run['rounds']} rounds of {run['mechanism']} perturbation"


def _where(run: dict[str, Any]) -> str:
    return "" if run["dimension"] is None else f" in {run['dimension']} dimensions"


def _account_file(path: str, delta: float, rows: int) -> Answer:
    """Return the total of every node in a file of events, and of the network."""
    events = privacy.read_events(path)
    each, up = privacy.by_node(events, delta, rows), privacy.upper_bound
    worst = max(each, key=lambda node: each[node].epsilon)
    mus = {node: privacy.joint_mu(own, rows) for node, own in privacy.group_by_node(events).items()}
    nodes = {
        node: _figures(one, mus[node]) | {"protected": one.protected} for node, one in each.items()
    }
    lines = [
        f"{node}: epsilon = {up(one.epsilon)} ({one.method}), "
        + (f"mu {up(mus[node])}" if mus[node] else f"sum {up(one.epsilon_sum)}")
        + f", {one.releases} events"
        for node, one in sorted(each.items())
    ]
    if not all(one.protected for one in each.values()):
        lines.append(
            "SIMULATION: some noise was seeded and protects nobody; these are the costs with "
            "system entropy."
        )
    lines += [f"The most is lost at node {worst}:", *_lines(each[worst], rows, mus[worst])]
    return Answer({**nodes[worst], "node": worst, "nodes": nodes}, lines)


@click.command()
@_MECHANISM
@DIMENSION
@option("--rounds", type=ROUNDS, help="How many; prints the alpha, or mu, that fits.")
@option("--alpha", type=Positive(), help="Loss of one round; prints how many rounds fit.")
@option("--mu", type=Positive(), help=f"{_MU_HELP}; prints how many rounds fit.")
@option("--epsilon", type=Positive(), required=True, help="The total.")
@DELTA
@SHARE
@prints_answer
def calibrate(epsilon: float, delta: float, **run: Any) -> Answer:
    """Go from a total (epsilon, delta) to the alpha of each round (mu, for gaussian), or to how
    many rounds fit; never to less privacy than asked.
    """
    _refuse_strangers(run)
    mechanism = run["mechanism"]
    scale, rounds = _scale(mechanism), run["rounds"]
    if any(run[name] is None for name in ("mechanism", *_shape(mechanism))):
        raise click.UsageError("missing --mechanism or --dimension")
    if (rounds is None) == (run[scale] is None):
        raise click.UsageError(
            f"give --rounds to find {scale}, or --{scale} to find how many rounds fit; one of "
            "them, not both"
        )

    def events(size: float, rounds: int) -> list[privacy.Event]:
        return privacy.equal_rounds(**{**run, scale: size, "rounds": rounds})

    if rounds is not None:
        run[scale] = privacy.calibrate(partial(events, rounds=rounds), epsilon, delta)
    else:
        run["rounds"] = privacy.affordable_rounds(partial(events, run[scale]), epsilon, delta)
    released = events(run[scale], run["rounds"])
    found, joint = privacy.total(released, delta), privacy.joint_mu(released)
    title = f"{_title(run)}{_where(run)}: {scale} = {run[scale]:.6g} a round."
    lines = [title, *_lines(found, 1, joint)]
    if not run["rounds"]:
        lines = [
            f"Not even one round with {scale} = {run[scale]:g} fits within epsilon = "
            f"{epsilon:g}, delta = {delta:g}."
        ]
    figures = _figures(found, joint)
    return Answer({scale: run[scale], "rounds": run["rounds"], **figures}, lines)


def _figures(found: "Total", joint: float) -> dict[str, Any]:
    """Return the figures as JSON, with the mu of all Gaussian events; an infinite one is null."""
    figures = found.to_json()
    del figures["protected"]  # nothing was released
    return {**figures, "joint_mu": joint, "words": privacy.guess_words(found.epsilon, found.delta)}


def _lines(found: "Total", rows: int, joint: float) -> list[str]:
    up, words = privacy.upper_bound, privacy.guess_words
    who = "one row" if rows == 1 else f"up to {rows} rows"
    parts = [
        f"  coarser  {up(found.epsilon_pure)} if only alpha were known of each release, "
        f"{up(found.epsilon_sum)} as a plain sum",
        f"  a round  alpha = {up(found.alpha)} at most: {words(found.alpha, 0.0)}",
    ]
    if joint:
        parts = [f"  Gaussian mu = {up(joint)}, that of all Gaussian releases together"]
    return [
        f"  total    epsilon = {up(found.epsilon)} at delta = {found.delta:g} (by {found.method})",
        *parts,
        f"In total {words(found.epsilon, found.delta)}.",
        f"This holds for a plan that is fixed before its first round, for persons with {who} at "
        "one node.",
    ]
