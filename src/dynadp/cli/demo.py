"""``dynadp demo``: five silos of made census rows on a ring, with and without privacy."""

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
from dynadp.datasets import Dataset, census
from dynadp.losses import Logistic
from dynadp.noise import Keyed
from dynadp.perturbation import Dual, NoPerturbation, Perturbation, Primal
from dynadp.record import Model, RunFolder
from dynadp.regularizers import SquaredL2
from dynadp.report import charts
from dynadp.runtime.simulation import Round, Run, default_eta, simulate
from dynadp.topology import Topology

SILOS = ("north", "east", "south", "west", "centre")
ROWS, HETEROGENEITY, C, RHO = 20_000, 0.5, 1.0, 1e-4
ALPHA, PRIVATE_ROUNDS, PLAIN_ROUNDS = 1.0, 20, 60
MECHANISMS: dict[str, Perturbation] = {"none": NoPerturbation(), "dual": Dual(), "primal": Primal()}


def run_demo(mechanism: str, out: str | None, seed: int, as_json: bool) -> None:
    """Train, print a table or JSON, and leave a folder with a run folder for each mechanism and pictures."""
    charts.require()
    data = census(ROWS, seed=seed, nodes=len(SILOS), heterogeneity=HETEROGENEITY)
    now = datetime.now(UTC)
    root = Path(out) if out else _fresh(Path("runs"), f"demo-{now:%Y%m%d-%H%M%S}")
    RunFolder.require_empty(root)
    demo = _Demo(data, seed, root, now.isoformat(timespec="seconds"))
    names = list(MECHANISMS) if mechanism == "all" else [mechanism]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        runs = [demo.train(name, progress) for name in names]
    result = {
        "version": 1,
        "simulation": True,
        "protected": False,
        "nodes": len(SILOS),
        "rows": ROWS,
        "runs": runs,
        "centralised_error": demo.centralised_error(),
        "majority_error": float(min(np.mean(demo.positive), 1 - np.mean(demo.positive))),
        "folder": str(root),
        "pictures": [str(path) for path in demo.draw(runs)],
    }
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        _show(result)


class _Demo:
    """The rows, the ring, and what was seen while training."""

    def __init__(self, data: Dataset, seed: int, root: Path, created: str) -> None:
        self.data, self.seed, self.root, self.created = data, seed, root, created
        self.ring = Topology.from_edges(list(zip(SILOS, SILOS[1:] + SILOS[:1], strict=True)), SILOS, name="ring")
        self.shards = data.shards(names=SILOS)
        self.test, self.positive = data.schema.rows(data.test), data.schema.labels(data.test) > 0
        self.curve: list[dict[str, Any]] = []

    def errors(self, V: Array) -> Array:
        """Share of wrong answers on held-out rows, which are synthetic and public, for each vector."""
        return np.asarray(np.mean((self.test @ V.T > 0) != self.positive[:, None], axis=0))

    def train(self, name: str, progress: Progress) -> dict[str, Any]:
        """One run with its folder."""
        mechanism, loss, settings = self.settings(name)
        config = {
            "data": {"name": "census", "rows": ROWS, "seed": self.seed, "heterogeneity": HETEROGENEITY, "synthetic": True},
            "schema_hash": self.data.schema.digest(),
            "nodes": [{"name": shard.name, "rows": shard.rows} for shard in self.shards],
            "topology": self.ring.describe(),
            "loss": loss.describe(),
            "regularizer": SquaredL2().describe(),
            "mechanism": mechanism.describe(),
            "schedule": None if name == "none" else {"name": "constant", "alpha": ALPHA},
            "entropy": None if name == "none" else {"seed": self.seed},
            "output": "last" if name == "none" else "network",
            **settings,
        }
        folder = RunFolder.create(self.root / name, config, simulation=True, created=self.created)
        alpha = None if name == "none" else ALPHA
        task = progress.add_task(f"mechanism {name}", total=settings["rounds"])

        def on_round(entry: Round, V: Array) -> None:
            folder.append(_lines(entry, alpha))
            self._note(name, entry.number, V[:, 0])
            progress.advance(task)

        run = simulate(
            self.shards, self.ring, loss=loss, mechanism=mechanism, schedule=alpha, draws=Keyed(self.seed),
            on_round=on_round, **settings,
        )  # fmt: skip
        models = run.models(config["output"])[:, 0]
        privacy = _privacy(name, run)
        folder.finish(Model.of(models[0], self.data.schema, loss.describe(), name, privacy))
        return {
            "mechanism": name,
            "alpha": alpha,
            "rounds": len(run.rounds),
            "consensus_gap": float(run.consensus_gap[0]),
            "node_errors": self.errors(models).tolist(),
            "privacy": privacy,
            "folder": str(folder.path),
        }

    def settings(self, name: str) -> tuple[Perturbation, Logistic, dict[str, Any]]:
        """Mechanism, loss, and public constants.

        Private runs want a penalty in proportion to their noise: q = T/(B mu sqrt(P)) with mu = alpha sqrt(T/d), hardly any
        rho, and a loss with a margin.
        """
        if name == "none":
            eta = default_eta(self.ring, Logistic(), C, RHO)
            return MECHANISMS[name], Logistic(), {"C": C, "rho": RHO, "eta": eta, "rounds": PLAIN_ROUNDS}
        B, d, P, T = self.shards[0].rows, self.data.schema.dimension, len(SILOS), PRIVATE_ROUNDS
        q = T / (B * ALPHA * (T / d) ** 0.5 * P**0.5)
        eta = q / (2 * float(self.ring.degrees.mean()))
        return MECHANISMS[name], Logistic(margin=3.0), {"C": C, "rho": q / 50, "eta": eta, "rounds": T}

    def centralised_error(self) -> float:
        """Of the optimum of pooled rows, without privacy."""
        pooled = self.data.schema.shard(self.data.train, "pooled")
        return float(self.errors(simulate([pooled], Topology.family("ring", 1), C=C, rho=RHO, rounds=1).V[0])[0])

    def _note(self, name: str, n: int, V: Array) -> None:
        mean = V.mean(axis=0)
        apart = np.linalg.norm(V - mean, axis=1) / np.linalg.norm(mean)
        for silo, error, far in zip(SILOS, self.errors(V), apart, strict=True):
            row = {"round": n, "mechanism": name, "silo": silo, "error": float(error), "disagreement": float(far)}
            self.curve.append(row)

    def draw(self, runs: list[dict[str, Any]]) -> list[Path]:
        """Convergence (of the nodes, or of the mechanisms' means where there are several) and the network."""
        source = f"census, made here, seed {self.seed} (synthetic)"
        references = [
            {"name": "centralised optimum, no privacy", "error": self.centralised_error()},
            {"name": "majority class", "error": float(np.mean(self.positive))},
        ]
        rows = [{**row, "series": row["silo"]} for row in self.curve] if len(runs) == 1 else _means(self.curve)
        pictures = charts.save(charts.convergence(rows, references, source), self.root / "convergence")
        errors = runs[-1]["node_errors"]
        labels = [f"{s.rows:,} rows, {e:.1%} wrong" for s, e in zip(self.shards, errors, strict=True)]
        source = f"{source}; mechanism {runs[-1]['mechanism']}"
        return pictures + charts.save(charts.network(self.ring, labels, source), self.root / "network")


def _means(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over silos, one series a mechanism."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in curve:
        groups.setdefault((row["mechanism"], row["round"]), []).append(row)
    return [
        {"series": name, "round": n, **{key: float(np.mean([row[key] for row in rows])) for key in ("error", "disagreement")}}
        for (name, n), rows in groups.items()
    ]


def _privacy(name: str, run: Run) -> dict[str, Any]:
    if name == "none":
        return {"protected": False, "statement": "Algorithm 1 sends exact vectors: no privacy. The rows are synthetic."}
    return {
        "protected": False,
        "alpha_per_round": ALPHA,
        "rounds": len(run.rounds),
        "alpha_sum": float(sum(event.alpha for event in run.events() if event.node == SILOS[0])),
        "statement": "SIMULATION: the noise came from a seed and protects nobody. With system entropy each release would be "
        f"{ALPHA:g}-differentially private given everything released before; alpha_sum is the plain sum over rounds.",
    }


def _fresh(parent: Path, name: str) -> Path:
    """A name that is not taken, for two demos within one second."""
    names = [name, *(f"{name}-{i}" for i in range(2, 1000))]
    return next(parent / candidate for candidate in names if not (parent / candidate).exists())


def _lines(entry: Round, alpha: float | None) -> list[dict[str, Any]]:
    return [
        {"round": entry.number, "node": name, "alpha": alpha, "disagreement": float(apart), "change": float(change)}
        for name, apart, change in zip(SILOS, entry.disagreement[:, 0], entry.change[:, 0], strict=True)
    ]


def _show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"One classifier from {result['nodes']} silos, {result['rows']:,} synthetic rows")
    for name in ("mechanism", "alpha a round", "rounds", "consensus gap", "accuracy"):
        table.add_column(name, justify="right")
    for run in result["runs"]:
        low, high = 1 - max(run["node_errors"]), 1 - min(run["node_errors"])
        accuracy = f"{low:.1%}" if f"{low:.1%}" == f"{high:.1%}" else f"{low:.1%} to {high:.1%}"
        alpha = "no privacy" if run["alpha"] is None else f"{run['alpha']:g}"
        table.add_row(run["mechanism"], alpha, str(run["rounds"]), f"{run['consensus_gap']:.1e}", accuracy)
    table.add_row("pooled rows", "no privacy", "", "", f"{1 - result['centralised_error']:.1%}")
    table.add_row("majority class", "", "", "", f"{1 - result['majority_error']:.1%}")
    console.print(table)
    console.print("SIMULATION: rows are synthetic and noise is seeded, so nobody is protected and nobody needs to be.")
    console.print(f"Folder:  {result['folder']}", soft_wrap=True)
    for picture in result["pictures"]:
        console.print(f"Picture: {picture}", soft_wrap=True)
