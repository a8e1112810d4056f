"""``dynadp report``: one run as one self-contained page that needs no script, no network and prints
well.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dynadp._files import write_whole
from dynadp._intervals import significant, written
from dynadp.errors import DeclarationError
from dynadp.privacy import Event, Total, group_by_node, guesses_in_100, upper_bound
from dynadp.privacy import guarantee as privacy_guarantee
from dynadp.report import figures, run_figures
from dynadp.report.accuracy import charged_accuracies, public_accuracy
from dynadp.report.budgets import (
    BudgetView,
    Figure,
    accountings,
    ledger_files,
    planned_cost,
    read_budgets,
    worst,
)
from dynadp.report.charts import require
from dynadp.report.coefficients import ModelView
from dynadp.report.drawing import drawing, in_words
from dynadp.report.honesty import (
    ASSUMED,
    DECLARED,
    WHO_SEES,
    Honesty,
    spare_attempts,
    spare_events,
)
from dynadp.report.progress import Rounds, Row
from dynadp.report.record_view import RunView
from dynadp.report.states import LOOKS, states
from dynadp.runs import load_model

HOW = {  # what a mechanism does, by the record's exchange
    "neighbours": " variable perturbation",
    "open": ": noisy sums over rows, sent to all",
    "sealed": ": noisy sums over the rows of all nodes, of which nobody sees one node's part",
}
TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that lose the same: their names, rows, figures and alpha, the largest of all rounds
    where it is not steady; releases without spare attempts.
    """

    nodes: list[str]
    rows: int
    alpha: float
    steady: bool
    centring: float | None
    releases: int
    spares: int
    figures: list[Figure]


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names, or the first and last of many.

    >>> shortened(["a", "b"]), shortened([f"n{i}" for i in range(100)], 3)
    ('a, b', 'n0, n1, ..., n99 (100 nodes)')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ..., {names[-1]} ({len(names)} nodes)"


def setting(value: Any) -> str:
    """A setting of a plan, with the digits that it has in the reasons of the plan.

    >>> setting({"pull": 0.010051445500165459, "node_weights": [1.0, 1 / 3]})
    'pull 0.0101, node_weights 1 0.333'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {setting(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(setting, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def folded(config: Mapping[str, Any]) -> str:
    """JSON with each list of numbers in one line, so that it prints on few pages.

    >>> print(folded({"mu": [0.1, 0.2]}))
    {
     "mu": [0.1, 0.2]
    }
    """
    lists = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\s*\]")
    return lists.sub(
        lambda found: "[" + re.sub(r",\n\s*", ", ", found[1]) + "]", json.dumps(config, indent=1)
    )


@cache
def environment() -> Any:
    """Jinja over this room's templates, with everything escaped."""
    try:
        import jinja2
    except ImportError as error:
        raise DeclarationError("reports need jinja2: pip install 'dynadp[report]'") from error
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "up": upper_bound,
        "thousands": lambda n: f"{n:,}",
        "percent": lambda share: f"{share:.1%}",
        "measure": written,
        "short": shortened,
        "spare": spare_attempts,
        "significant": significant,
        "guesses": guesses_in_100,
        "setting": setting,
    }
    return found


def guarantee(view: RunView, total: Total | None) -> tuple[str, str]:
    """The guarantee in one sentence, and what it means; for a person who has to sign it."""
    if view.plan is None:
        return "Nothing is protected: this run sent exact vectors, which reveal rows.", ""
    plan = view.plan
    epsilon, releases, honest = (plan.total.get(one) for one in ("epsilon", "releases", "honest"))
    if total is not None:
        epsilon, releases, honest = total.epsilon, total.releases, total.honest
    if epsilon is None:
        return "This run has no finite cost: a release is unknown to the accountant.", ""
    statement = privacy_guarantee(
        epsilon,
        plan.delta,
        seeded=view.simulation,
        planned=not view.finished,
        honest=honest or (),
        unit=plan.unit,
    )
    pair = f"({upper_bound(epsilon)}, {plan.delta:g})-differential privacy"
    spares = plan.parameters.get("spares", 0)
    more = f", and {spare_attempts(spares)}" if spares else ""
    return (
        statement,
        f"In other words: {pair} over all {releases - spares} releases of a node{more}.",
    )


def member_words(view: RunView) -> str:
    """Over which nodes the models are means, where some stayed away; otherwise nothing."""
    homes = [home for home in view.homes if (home / "model.json").exists()]
    sets = list(dict.fromkeys(members for home in homes if (members := load_model(home).members)))
    return " ".join(
        f"The model is of {', '.join(members)}, who were there in the end; nodes that ended with "
        "other sets hold "
        "other models."
        for members in sets
    )


def node_groups(view: RunView, events: Sequence[Event]) -> list[NodeGroup]:
    """Nodes by what they lose, so that a hundred equal ones take one line."""
    plan, own = view.plan, group_by_node(events)
    if plan is None:
        return []
    groups: dict[tuple[Any, ...], list[str]] = {}
    for node in view.topology.nodes:
        losses = tuple((event.alpha, getattr(event, "mu", None)) for event in own.get(node, ()))
        groups.setdefault((plan.alphas[node], losses), []).append(node)
    return [
        NodeGroup(
            nodes=nodes,
            rows=sum(view.rows[node] for node in nodes),
            alpha=max(alphas),
            steady=len(set(alphas)) == 1,
            centring=plan.centrings.get(nodes[0]),
            releases=len(losses) - (spares := len(spare_events(own.get(nodes[0], [])))),
            spares=spares,
            figures=accountings(own[nodes[0]], plan.delta) if losses else [],
        )
        for (alphas, losses), nodes in groups.items()
    ]


def report(path: str | Path) -> str:
    """The page of a run folder."""
    require()
    view = RunView.read(path)
    events, total = planned_cost(view)
    rounds = Rounds.of(view).rows
    where = states(view, len(rounds))
    budgets = read_budgets(view, ledger_files(view))
    sentence, words = guarantee(view, total)
    sums = view.plan is not None and view.plan.algorithm == "sum"
    loser, honesty = None, None
    if events and view.plan:
        loser, own = worst(events, view.plan.delta)
        honesty = Honesty.of(own, view.plan.delta)
    model = ModelView.read(view)
    accuracy = public_accuracy(view)
    charts = run_figures.made(view, events, honesty, model, accuracy)
    pictures = {name: figures.svg(chart) for name, chart in charts.items()}
    pictures["network"] = drawing(view.topology, where)
    page: str = (
        environment()
        .get_template("report.html")
        .render(
            view=view,
            sentence=sentence,
            words=words,
            members=member_words(view),
            groups=node_groups(view, events) if events else [],
            unit="mu" if view.plan and view.plan.noise == "gaussian" else "alpha",
            loser=loser,
            honesty=honesty,
            spares=spare_words(view, honesty, budgets),
            how=HOW.get(view.plan.exchange, "") if view.plan else "",
            assumed=ASSUMED,
            declared=DECLARED,
            sees=WHO_SEES.get(view.plan.exchange, "") if view.plan else "",
            pictures=pictures,
            model=model,
            states=where,
            looks=LOOKS,
            in_words=in_words(where),
            budgets=budgets,
            missing=[p for p in view.topology.nodes if p not in budgets],
            accuracy=accuracy,
            charged=charged_accuracies(budgets),
            style=(STATIC / "style.css").read_text(encoding="utf-8"),
            config=folded(view.record.config),
            residual=residual(rounds, len(view.topology), sums=sums),
            sums=sums,
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=version("dynadp"),
        )
    )
    return page


def spare_words(
    view: RunView, honesty: Honesty | None, budgets: Mapping[str, BudgetView | str]
) -> str:
    """How many spare attempts are reserved, and how many were used as far as ledgers say."""
    if honesty is None or not honesty.spares:
        return ""
    if view.simulation:
        return f"{honesty.spare_words} A simulation enters no ledger: none is spent."
    used = {
        node: budget.used
        for node, budget in budgets.items()
        if isinstance(budget, BudgetView) and budget.spares
    }
    if not used:
        return f"{honesty.spare_words} How many were used is in the nodes' ledgers."
    if len(set(used.values())) == 1:
        counts = str(next(iter(used.values())))
    else:
        counts = ", ".join(f"{count} at {node}" for node, count in used.items())
    return f"{honesty.spare_words} Used so far: {counts} of {honesty.spares}."


def residual(rounds: Sequence[Row], nodes: int, *, sums: bool = False) -> str:
    """How far nodes are from their neighbours at the end, beside the beginning."""
    if not rounds:
        return "No round is recorded yet."
    if sums:
        stand = "All nodes stand at one common point, which noisy sums over all rows move."
        if nodes == 1:
            stand = (
                "There is one node, which has nobody to agree with: noisy sums over its rows move "
                "its point."
            )
        last = next((row for row in reversed(rounds) if "apart" in row), rounds[-1])
        words = f"{stand} The step of round {last['round']} was {last['change'][0]:.3g} long"
        if "noise" in last:
            words += (
                f"; noise alone would make it {last['noise'][0]:.3g}. Once steps are about as long "
                "as those of noise alone, further rounds move the point no nearer"
            )
        if "apart" in last:
            words += (
                f". The point of the last round is {last['apart'][0]:.3g} from the model, which is "
                "its mean over the last half of the steps, in which noise averages out"
            )
        else:
            words += (
                "; noise itself keeps steps from getting short. The model is the mean of the point "
                "over the last half of the steps, in which noise averages out"
            )
        return f"{words}."
    if nodes == 1:
        return (
            "There is one node, which has nobody to agree with: in each round it goes on from its "
            "own last message."
        )
    first, last = rounds[0], rounds[-1]
    middle, low, high = last["disagreement"]
    return (
        f"After round {last['round']} a node's vector lies {middle:.3g} from the mean of its "
        f"neighbours' (median; {low:.3g} to {high:.3g} over nodes); after round {first['round']} "
        f"it was {first['disagreement'][0]:.3g}. In a private run noise itself keeps vectors "
        "apart: the model is a mean of many, in which it averages out."
    )


def write_report(path: str | Path, out: str | Path) -> Path:
    """Write the page of a run folder; returns where."""
    page, out = report(path), Path(out)
    if not out.parent.is_dir():
        raise DeclarationError(f"{out.parent} is not a folder; choose another place with --out")
    write_whole(out, page)
    return out
