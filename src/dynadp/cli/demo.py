"""``dynadp demo``: five silos of made census rows on a ring."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dynadp.arrays import Array
from dynadp.data import Shard
from dynadp.datasets import Dataset, census
from dynadp.errors import DeclarationError
from dynadp.losses import Logistic
from dynadp.record import Model, RunFolder
from dynadp.regularizers import SquaredL2
from dynadp.report import charts
from dynadp.runtime.simulation import Round, Run, default_eta, simulate
from dynadp.topology import Topology

SILOS = ("north", "east", "south", "west", "centre")
ROWS, HETEROGENEITY, C, RHO, ROUNDS = 6_000, 0.5, 1.0, 1e-4, 60


def run_demo(mechanism: str, out: str | None, seed: int, as_json: bool) -> None:
    """Train, print a table or JSON, and leave a run folder with pictures."""
    if mechanism in ("dual", "primal"):
        raise DeclarationError(
            f"--mechanism {mechanism} is not in this version; it trains without privacy: use 'none' or 'all'"
        )
    charts.require()
    console = Console(stderr=True)
    data = census(ROWS, seed=seed, nodes=len(SILOS), heterogeneity=HETEROGENEITY)
    topology = Topology.from_edges(list(zip(SILOS, SILOS[1:] + SILOS[:1], strict=True)), SILOS)
    topology.name = "ring"
    shards = data.shards(names=SILOS)
    loss, regularizer = Logistic(), SquaredL2()
    eta = default_eta(topology, loss, C, RHO)
    now = datetime.now(UTC)
    folder = RunFolder.create(
        out or _fresh(Path("runs"), f"demo-{now:%Y%m%d-%H%M%S}"),
        {
            "data": {"name": data.name, "rows": ROWS, "seed": seed, "heterogeneity": HETEROGENEITY, "synthetic": True},
            "schema_hash": data.schema.digest(),
            "nodes": [{"name": shard.name, "rows": shard.rows} for shard in shards],
            "topology": topology.describe(),
            "loss": loss.describe(),
            "regularizer": regularizer.describe(),
            "mechanism": "none",
            "C": C,
            "rho": RHO,
            "eta": eta,
            "rounds": ROUNDS,
        },
        simulation=True,
        created=now.isoformat(timespec="seconds"),
    )
    test, truth = data.schema.rows(data.test), data.schema.labels(data.test)
    curve: list[dict[str, Any]] = []

    def errors(V: Array) -> Array:
        return np.asarray(np.mean((test @ V.T > 0) != (truth > 0)[:, None], axis=0))

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training without privacy", total=ROUNDS)

        def on_round(entry: Round, V: Array) -> None:
            folder.append(_lines(entry, SILOS))
            mean = V[:, 0].mean(axis=0)
            apart = np.linalg.norm(V[:, 0] - mean, axis=1) / np.linalg.norm(mean)
            curve.extend(
                {"round": entry.number, "series": silo, "error": float(error), "disagreement": float(far)}
                for silo, error, far in zip(SILOS, errors(V[:, 0]), apart, strict=True)
            )
            progress.advance(task)

        run = simulate(shards, topology, loss=loss, regularizer=regularizer, C=C, rho=RHO, rounds=ROUNDS, on_round=on_round)
    pooled = simulate([_pooled(data)], Topology.family("ring", 1), loss=loss, regularizer=regularizer, C=C, rho=RHO, rounds=1)
    privacy = {"protected": False, "statement": "Algorithm 1 sends exact vectors: no privacy. The rows are synthetic."}
    folder.finish(Model.of(run.V[0, 0], data.schema, loss.describe(), "none", privacy))
    result = _result(run, shards, errors(run.V[:, 0]), float(errors(pooled.V[0])[0]), float(np.mean(truth > 0)), folder.path)
    references = [
        {"name": "centralised optimum", "error": result["centralised_error"]},
        {"name": "majority class", "error": result["majority_error"]},
    ]
    source = f"{data.name}, made here, seed {seed} (synthetic)"
    pictures = charts.save(charts.convergence(curve, references, source), folder.path / "convergence")
    labels = [f"{shard.rows:,} rows, {error:.1%} wrong" for shard, error in zip(shards, result["node_errors"], strict=True)]
    pictures += charts.save(charts.network(topology, labels, source), folder.path / "network")
    result["pictures"] = [str(path) for path in pictures]
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        _show(result)


def _pooled(data: Dataset) -> Shard:
    return data.schema.shard(data.train, "pooled")


def _fresh(parent: Path, name: str) -> Path:
    """A name that is not taken, for two demos within one second."""
    names = [name, *(f"{name}-{i}" for i in range(2, 1000))]
    return next(parent / candidate for candidate in names if not (parent / candidate).exists())


def _lines(entry: Round, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"round": entry.number, "node": name, "alpha": None, "disagreement": float(apart), "change": float(change)}
        for name, apart, change in zip(names, entry.disagreement[:, 0], entry.change[:, 0], strict=True)
    ]


def _result(run: Run, shards: list[Shard], errors: Array, centralised: float, majority: float, folder: Path) -> dict[str, Any]:
    return {
        "version": 1,
        "simulation": True,
        "mechanism": "none",
        "protected": False,
        "nodes": len(shards),
        "rows": sum(shard.rows for shard in shards),
        "rounds": len(run.rounds),
        "consensus_gap": float(run.consensus_gap[0]),
        "node_errors": errors.tolist(),
        "centralised_error": centralised,
        "majority_error": min(majority, 1 - majority),
        "folder": str(folder),
    }


def _show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title="One classifier from five silos: synthetic rows, no privacy")
    for name in ("nodes", "rows", "rounds", "consensus gap", "accuracy", "centralised", "majority"):
        table.add_column(name, justify="right")
    low, high = 1 - max(result["node_errors"]), 1 - min(result["node_errors"])
    table.add_row(
        str(result["nodes"]),
        f"{result['rows']:,}",
        str(result["rounds"]),
        f"{result['consensus_gap']:.1e}",
        f"{low:.1%} to {high:.1%}",
        f"{1 - result['centralised_error']:.1%}",
        f"{1 - result['majority_error']:.1%}",
    )
    console.print(table)
    console.print(f"Run folder: {result['folder']}", soft_wrap=True)
    for picture in result["pictures"]:
        console.print(f"Picture:    {picture}", soft_wrap=True)
