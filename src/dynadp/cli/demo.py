"""``dynadp demo``: five silos of made census rows on a ring, with and without privacy."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy
from dynadp.cli.options import (
    TOTAL_DELTA,
    MechanismName,
    Positive,
    option,
    out_option,
    seed_option,
)
from dynadp.cli.output import Answer, prints_answer, round_bar

if TYPE_CHECKING:
    from rich.table import Table

    from dynadp.research import Demonstration


@click.command()
@option(
    "--mechanism",
    type=MechanismName(before=("none",), after=("all",)),
    default="all",
    help="none, or a registered mechanism, such as sum, primal or dual; 'all' runs each.",
)
@option(
    "--epsilon",
    type=Positive(),
    default=1.0,
    help="Total loss of a private run.",
)
@TOTAL_DELTA
@out_option("Folder to make; must not hold anything yet.")
@seed_option("Of the rows that are made, and of the noise.")
@prints_answer
def demo(mechanism: str, epsilon: float, delta: float, out: str | None, seed: int) -> Answer:
    """Let five silos of made census rows on a ring learn one classifier, offline, with pictures.

    Rows are synthetic and noise is seeded: a SIMULATION that protects nobody, and nobody needs
    protection.
    """
    from dynadp.mechanisms import mechanism_names
    from dynadp.report import charts
    from dynadp.research import ROWS, SILOS, Demonstration

    charts.require()
    now = datetime.now(UTC)
    root = Path(out) if out else _fresh(Path("runs"), f"demo-{now:%Y%m%d-%H%M%S}")
    shown = Demonstration(root, epsilon, delta, seed)
    runs = []
    for name in ["none", *sorted(mechanism_names())] if mechanism == "all" else [mechanism]:
        with round_bar(f"mechanism {name}") as on_round:
            runs.append(shown.run(name, lambda entry: on_round(entry.number, entry.rounds)))
    result = {
        "version": 1,
        "simulation": True,
        "protected": False,
        "nodes": len(SILOS),
        "rows": ROWS,
        "runs": runs,
        "test_rows": len(shown.held_out),
        "centralised_error": shown.centralised_error,
        "majority_error": shown.held_out.majority_error,
        "folder": str(root),
        "pictures": [str(path) for path in _draw(shown, runs)],
    }
    return Answer(result, _lines(result))


def _draw(shown: "Demonstration", runs: list[dict[str, Any]]) -> list[Path]:
    """Draw convergence, of the silos or, of several mechanisms, of their means; and the network."""
    from dynadp.report import charts
    from dynadp.research import RING

    alone = len(runs) == 1
    source = f"census, made here, seed {shown.seed} (synthetic)"
    references = [
        {"name": "centralised optimum, no privacy", "error": shown.centralised_error},
        {"name": "majority class", "error": shown.held_out.majority_error},
    ]
    models = [
        {
            "series": "model" if alone else run["mechanism"],
            "round": run["rounds"],
            "error": fmean(run["node_errors"]),
        }
        for run in runs
    ]
    last = runs[-1]
    labels = [
        f"{shard.rows:,} rows, {error:.1%} wrong"
        for shard, error in zip(shown.shards, last["node_errors"], strict=True)
    ]
    convergence = charts.convergence(shown.curve(), references, source, models)
    network = charts.network(RING, labels, f"{source}; mechanism {last['mechanism']}")
    return [
        *charts.save(convergence, shown.root / "convergence"),
        *charts.save(network, shown.root / "network"),
    ]


def _fresh(parent: Path, name: str) -> Path:
    """A name that is not taken, for two demos within one second."""
    names = [name, *(f"{name}-{i}" for i in range(2, 1000))]
    return next(parent / candidate for candidate in names if not (parent / candidate).exists())


def _share(shares: Sequence[float], rows: int) -> str:
    """The mean over silos, and how far it may be off: the silos' range, widened by the sampling
    error of the rows.

    >>> _share([0.84, 0.85], 5000)
    '84.5% ±1.5'
    """
    from dynadp._intervals import wilson

    mean, low, high = fmean(shares), wilson(min(shares), rows)[0], wilson(max(shares), rows)[1]
    return f"{mean:.1%} ±{100 * max(mean - low, high - mean):.1f}"


def _lines(result: dict[str, Any]) -> "Iterator[str | Table]":
    yield _table(result)
    yield (
        "Accuracy of the model taken home (private runs: the mean of all silos' messages, or of "
        f"the common point, over the last half of the rounds), on {result['test_rows']:,} held-out "
        "synthetic rows; ± holds the silos' differences and the sampling error (95%)."
    )
    costs = [(run["epsilon"], run["delta"]) for run in result["runs"] if run["epsilon"] is not None]
    if costs:
        yield privacy.guarantee(*max(costs), seeded=True)
    for run in result["runs"]:
        if honest := run["privacy"].get("honest"):
            words = privacy.honest_words(honest).removeprefix(", ")
            yield f"With mechanism {run['mechanism']} this holds {words}."
    yield "All rows are synthetic, so nobody needs to be protected."
    yield f"Folder:  {result['folder']}"
    for picture in result["pictures"]:
        yield f"Picture: {picture}"


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    rows = result["test_rows"]
    table = Table(
        title=f"One classifier from {result['nodes']} silos, {result['rows']:,} synthetic rows"
    )
    for name in ("mechanism", "epsilon", "most a round", "rounds", "gap", "accuracy"):
        table.add_column(name, justify="right")
    for run in result["runs"]:
        private = run["epsilon"] is not None
        unit = "alpha" if run["mu"] is None else "mu"
        table.add_row(
            run["mechanism"],
            privacy.upper_bound(run["epsilon"]) if private else "no privacy",
            f"{unit} {privacy.upper_bound(run[unit], 3)}" if private else "",
            str(run["rounds"]),
            f"{run['consensus_gap']:.1e}",
            _share([1 - error for error in run["node_errors"]], rows),
        )
    pooled, majority = (1 - result[f"{name}_error"] for name in ("centralised", "majority"))
    table.add_row("pooled rows", "no privacy", "", "", "", _share([pooled], rows))
    table.add_row("majority class", "", "", "", "", _share([majority], rows))
    return table
