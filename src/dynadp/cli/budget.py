"""``dynadp account`` and ``dynadp calibrate``: from releases to a total, and back."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy
from dynadp.cli.options import (
    ADJACENCY,
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
    help="primal (Algorithm 3), dual (Algorithm 2), or gaussian (sums over rows; sum and sealed).",
)
_ROWS = option(
    "--rows-per-person", type=COUNT, help="Rows that one person may have at a node; 1 by default."
)
_SILOS = option(
    "--silos-per-person", type=COUNT, help="Nodes at which one person may have rows; 1 by default."
)
_ADJACENCY = option(
    "--adjacency",
    type=ADJACENCY,
    help="What a loss is about: a row that is replaced (the default), or one that is added or "
    "removed.",
)
_NODES = option("--nodes", type=COUNT, help="Nodes of a sealed sum; for gaussian alone.")
_HONEST = option(
    "--honest",
    type=COUNT,
    help="How many of these nodes the noise was made for: honest ones, whoever looks not counted.",
)
_COLLUDING = option(
    "--colluding",
    type=click.IntRange(min=0),
    help="How many of these nodes really collude; nodes minus honest by default.",
)
_MU_HELP = "Sensitivity over noise of one Gaussian round"


@click.command()
@_MECHANISM
@DIMENSION
@option("--alpha", type=Positive(), help="Loss of one round; not for gaussian.")
@option("--mu", type=Positive(), help=f"{_MU_HELP}; for gaussian alone.")
@option("--rounds", type=ROUNDS, help="How many.")
@SHARE
@_NODES
@_HONEST
@_COLLUDING
@option("--events", type=FILE, help="Instead of all these: a file with one event a line, as JSON.")
@_ROWS
@_SILOS
@_ADJACENCY
@DELTA
@prints_answer
def account(
    events: str | None,
    rows_per_person: int | None,
    silos_per_person: int | None,
    adjacency: str | None,
    delta: float,
    colluding: int | None,
    **run: Any,
) -> Answer:
    """Print what many rounds lose in total: the smallest valid epsilon at a delta.

    Of sealed sums, with --nodes and --honest, also what is lost where more nodes collude.
    """
    if events is not None:
        if any(value is not None for value in (*run.values(), colluding, adjacency)):
            raise click.UsageError(
                "--events replaces --mechanism, --dimension, --alpha, --mu, --rounds, "
                "--jacobian-share, --nodes, --honest, --colluding and --adjacency; leave out "
                "those, or --events"
            )
        return _account_file(events, delta, rows_per_person, silos_per_person)
    _refuse_strangers(run)
    scale = _scale(run["mechanism"])
    needed = ("mechanism", *_shape(run["mechanism"]), scale, "rounds")
    if missing := [f"--{name}" for name in needed if run[name] is None]:
        raise click.UsageError(f"missing {', '.join(missing)} (or give --events FILE)")
    unit = privacy.Unit(rows_per_person or 1, silos_per_person or 1, adjacency or "replace")
    planned = list(unit.declared(privacy.equal_rounds(**run)))
    released = _opened(planned, run, colluding)
    found = privacy.total(released, delta)
    title = f"{_title(run)} with {scale} = {run[scale]:g}{_where(run)}{_among(run, colluding)}:"
    joint = privacy.joint_mu(released, unit.rows, unit.silos)
    curve = privacy.collusion_curve(planned, delta)
    more: dict[str, Any] = {"collusion": [point.to_json() for point in curve]} if curve else {}
    if colluding is not None:
        more["planned"] = privacy.total(planned, delta).to_json()
    lines = [title, *_lines(found, joint), *_collusion_lines(curve)]
    return Answer(_figures(found, joint) | more, lines)


def _opened(
    events: list[privacy.Event], run: dict[str, Any], colluding: int | None
) -> list[privacy.Event]:
    """Return the events as they cost where so many collude."""
    if colluding is None:
        return events
    if run["nodes"] is None:
        raise click.UsageError(
            "--colluding says how many nodes of a sealed sum collude: give --nodes and --honest too"
        )
    if colluding >= run["nodes"]:
        raise click.UsageError(
            f"--colluding is {colluding} of {run['nodes']} nodes; at most {run['nodes'] - 1} can "
            "collude against a row of another"
        )
    return privacy.if_colluding(events, colluding)


def _among(run: dict[str, Any], colluding: int | None) -> str:
    if run["nodes"] is None:
        return ""
    words = f", sealed, made for {run['honest']} honest ones of {run['nodes']} nodes"
    return words if colluding is None else f"{words}, where {colluding} collude"


def _collusion_lines(curve: "tuple[privacy.Collusion, ...]") -> list[str]:
    planned = [point for point in curve if point.planned]
    worse = privacy.collusion_words(curve)
    if not worse:
        return []
    return [
        f"Epsilon is {privacy.upper_bound(planned[0].epsilon)} with {planned[0].colluding} of the "
        f"nodes colluding, as planned; {worse}."
    ]


def _scale(mechanism: str | None) -> str:
    """Return the number that says how much a round loses."""
    return "mu" if mechanism in privacy.GAUSSIAN else "alpha"


def _shape(mechanism: str | None) -> tuple[str, ...]:
    """Return what else prices a round: a Gaussian one costs the same in every dimension."""
    return () if mechanism in privacy.GAUSSIAN else ("dimension",)


def _refuse_strangers(run: dict[str, Any]) -> None:
    """Refuse alpha for Gaussian rounds, and mu for others."""
    gaussian = run["mechanism"] in privacy.GAUSSIAN
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
    if run["mechanism"] in privacy.GAUSSIAN:
        return f"{run['rounds']} Gaussian rounds"
    return f"{run['rounds']} rounds of {run['mechanism']} perturbation"


def _where(run: dict[str, Any]) -> str:
    return "" if run["dimension"] is None else f" in {run['dimension']} dimensions"


def _account_file(path: str, delta: float, rows: int | None, silos: int | None) -> Answer:
    """Return the total of every node in a file of events, and of the network."""
    events = privacy.read_events(path)
    each, up = privacy.by_node(events, delta, rows, silos), privacy.upper_bound
    worst = max(each, key=lambda node: each[node].epsilon)
    mus = {
        node: privacy.joint_mu(own, each[node].rows, each[node].silos)
        for node, own in privacy.group_by_node(events).items()
    }
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
    lines += [f"The most is lost at node {worst}:", *_lines(each[worst], mus[worst])]
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
@_NODES
@_HONEST
@_COLLUDING
@_ROWS
@_SILOS
@_ADJACENCY
@prints_answer
def calibrate(
    epsilon: float,
    delta: float,
    colluding: int | None,
    rows_per_person: int | None,
    silos_per_person: int | None,
    adjacency: str | None,
    **run: Any,
) -> Answer:
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

    unit = privacy.Unit(rows_per_person or 1, silos_per_person or 1, adjacency or "replace")

    def events(size: float, rounds: int) -> list[privacy.Event]:
        planned = privacy.equal_rounds(**{**run, scale: size, "rounds": rounds})
        return _opened(list(unit.declared(planned)), run, colluding)

    if rounds is not None:
        run[scale] = privacy.calibrate(partial(events, rounds=rounds), epsilon, delta)
    else:
        run["rounds"] = privacy.affordable_rounds(partial(events, run[scale]), epsilon, delta)
    released = events(run[scale], run["rounds"])
    found = privacy.total(released, delta)
    joint = privacy.joint_mu(released, unit.rows, unit.silos)
    about = f"{_where(run)}{_among(run, colluding)}"
    title = f"{_title(run)}{about}: {scale} = {run[scale]:.6g} a round."
    lines = [title, *_lines(found, joint)]
    if not run["rounds"]:
        lines = [
            f"Not even one round with {scale} = {run[scale]:g} fits within epsilon = "
            f"{epsilon:g}, delta = {delta:g}."
        ]
    # a row's alpha, which a plan takes; among the figures is that of all rows of a person
    chosen = {scale: run[scale], "rounds": run["rounds"]}
    return Answer({**chosen, **_figures(found, joint), **chosen}, lines)


def _figures(found: "Total", joint: float) -> dict[str, Any]:
    """Return the figures as JSON, with the mu of all Gaussian events; an infinite one is null."""
    figures = found.to_json()
    del figures["protected"]  # nothing was released
    words = privacy.guess_words(found.epsilon, found.delta, found.unit)
    return {**figures, "joint_mu": joint, "words": words}


def _lines(found: "Total", joint: float) -> list[str]:
    up, words = privacy.upper_bound, privacy.guess_words
    unit = found.unit
    parts = [
        f"  coarser  {up(found.epsilon_pure)} if only alpha were known of each release, "
        f"{up(found.epsilon_sum)} as a plain sum",
        f"  a round  alpha = {up(found.alpha)} at most: {words(found.alpha, 0.0, unit)}",
    ]
    if joint:
        parts = [f"  Gaussian mu = {up(joint)}, that of all Gaussian releases together"]
    return [
        f"  total    epsilon = {up(found.epsilon)} at delta = {found.delta:g} (by {found.method})",
        *parts,
        f"In total {words(found.epsilon, found.delta, unit)}.",
        f"This holds for a plan that is fixed before its first round, for persons with "
        f"{unit.words}{privacy.honest_words(found.honest)}.",
    ]
