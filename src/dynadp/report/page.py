"""``dynadp report``: one run as one self-contained page that needs no script, no network and prints
well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dynadp._files import write_whole
from dynadp.errors import DeclarationError
from dynadp.privacy import Event, Total, group_by_node, upper_bound
from dynadp.privacy import guarantee as privacy_guarantee
from dynadp.report import figures
from dynadp.report.accuracy import public_accuracy
from dynadp.report.budgets import (
    BudgetView,
    Figure,
    agreed,
    ledger_files,
    over_rounds,
    purses,
    worst,
)
from dynadp.report.budgets import figures as accountings
from dynadp.report.charts import require
from dynadp.report.drawing import NAMED, drawing, in_words
from dynadp.report.progress import Rounds, thinned
from dynadp.report.record_view import RunView
from dynadp.report.states import LOOKS, states

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"


@dataclass(frozen=True)
class Alike:
    """Nodes that lose the same: their names, rows, alphas and figures."""

    nodes: tuple[str, ...]
    rows: tuple[int, ...]
    alpha: float
    centring: float | None
    releases: int
    figures: tuple[Figure, ...]

    @property
    def names(self) -> str:
        """Who they are, in a few words."""
        return shortened(self.nodes)


def shortened(names: Sequence[str], most: int = 8) -> str:
    """Names, or the first and last of many.

    >>> shortened(["a", "b"]), shortened([f"n{i}" for i in range(100)], 3)
    ('a, b', 'n0, n1, ..., n99 (100 nodes)')
    """
    return (
        ", ".join(names)
        if len(names) <= most
        else f"{names[0]}, {names[1]}, ..., {names[-1]} ({len(names)} nodes)"
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
        "short": shortened,
    }
    return found


def guarantee(story: RunView, total: Total | None) -> tuple[str, str]:
    """The guarantee in one sentence, and what it means; for a person who has to sign it."""
    if story.plan is None:
        return "Nothing is protected: this run sent exact vectors, which reveal rows.", ""
    if total is None:
        told = story.plan.total
        if not told or told["epsilon"] is None:
            return "What this run costs cannot be told yet: its record is not complete.", ""
        epsilon, releases = told["epsilon"], told["releases"]
    else:
        epsilon, releases = total.epsilon, total.releases
    delta = story.plan.delta
    pair = f"({upper_bound(epsilon)}, {delta:g})-differential privacy"
    statement = privacy_guarantee(
        epsilon, delta, seeded=story.simulation, planned=not story.finished
    )
    return statement, f"In other words: {pair} over all {releases} releases of a node."


def alike(story: RunView, events: Sequence[Event]) -> list[Alike]:
    """Nodes by what they lose, so that a hundred equal ones take one line."""
    plan = story.plan
    if plan is None:
        return []
    groups: dict[tuple[Any, ...], list[str]] = {}
    own = group_by_node(events)
    for node in story.topology.nodes:
        groups.setdefault(
            (plan.alphas[node], plan.centrings.get(node), own[node][0].alpha, own[node][-1].alpha),
            [],
        ).append(node)
    return [
        Alike(
            tuple(nodes),
            tuple(story.rows[node] for node in nodes),
            alpha,
            centring,
            len(own[nodes[0]]),
            tuple(accountings(own[nodes[0]], plan.delta)),
        )
        for (alpha, centring, *_), nodes in groups.items()
    ]


def report(path: str | Path) -> str:
    """The page of a run folder."""
    require()
    story = RunView.read(path)
    counted = agreed(story)
    lines = Rounds([home / "rounds.jsonl" for home in story.homes], len(story.folders))
    lines.read()
    where = states(story, len(lines.rows))
    found = purses(story, ledger_files(story))
    sentence, words = guarantee(story, counted[1] if counted else None)
    pictures: dict[str, str] = {"network": drawing(story.topology, where)}
    rows = thinned(lines.rows)
    for name in figures.QUANTITIES:
        if figures.flat(rows, name):
            pictures[name] = figures.svg(figures.convergence(rows, name))
    loser = None
    if counted and story.plan:
        loser, own = worst(counted[0], story.plan.delta)
        pictures["totals"] = figures.svg(figures.totals(over_rounds(own, story.plan.delta)))
    page: str = (
        environment()
        .get_template("report.html")
        .render(
            story=story,
            sentence=sentence,
            words=words,
            total=counted[1] if counted else None,
            groups=alike(story, counted[0]) if counted else [],
            loser=loser,
            pictures=pictures,
            last=lines.rows[-1:],
            states=where,
            looks=LOOKS,
            in_words=in_words(where),
            named=NAMED,
            purses=found,
            shown=_shown(found),
            missing=[p for p in story.topology.nodes if p not in found],
            accuracy=public_accuracy(story, found),
            style=(STATIC / "style.css").read_text(encoding="utf-8"),
            config=json.dumps(story.record["config"], indent=1),
            residual=residual(lines, len(story.topology)),
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=version("dynadp"),
        )
    )
    return page


def residual(lines: Rounds, nodes: int) -> str:
    """How far nodes are from their neighbours at the end, beside the beginning."""
    if not lines.rows:
        return "No round is told yet."
    if nodes == 1:
        return "There is one node, which has nobody to agree with: in each round it goes on from its own last message."
    first, last = lines.rows[0], lines.rows[-1]
    middle, low, high = last["disagreement"]
    return (
        f"After round {last['round']} a node's vector lies {middle:.3g} from the mean of its "
        f"neighbours' (median; {low:.3g} to "
        f"{high:.3g} over nodes); after round {first['round']} it was "
        f"{first['disagreement'][0]:.3g}. In a private run "
        "noise itself keeps vectors apart: the model is a mean of many, in which it averages out."
    )


def _shown(found: Mapping[str, BudgetView | str]) -> dict[str, Any]:
    """Ledgers by whether they could be read."""
    return {
        "read": {node: one for node, one in found.items() if isinstance(one, BudgetView)},
        "unread": {node: one for node, one in found.items() if isinstance(one, str)},
    }


def write_report(path: str | Path, out: str | Path) -> Path:
    """Write the page of a run folder; returns where."""
    page, out = report(path), Path(out)
    if not out.parent.is_dir():
        raise DeclarationError(f"{out.parent} is not a folder; choose another place with --out")
    write_whole(out, page)
    return out
