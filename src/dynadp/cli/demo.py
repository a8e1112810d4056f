"""``dynadp demo``: five silos of made census rows on a ring, with and without privacy."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dynadp._arrays import Array
from dynadp._intervals import wilson
from dynadp.consensus import Topology
from dynadp.consensus.progress import RoundProgress
from dynadp.data import Dataset, Schema, census
from dynadp.engines import simulate
from dynadp.mechanisms import NoProtection, SeededEntropy
from dynadp.planning import Plan, plan
from dynadp.planning.plans import default_eta
from dynadp.privacy import guarantee, upper_bound
from dynadp.problem import Logistic, SquaredL2
from dynadp.report import charts
from dynadp.research import HeldOut
from dynadp.runs import Model, RunFolder, RunRecord, Trained, train

SILOS = ("north", "east", "south", "west", "centre")
ROWS, HETEROGENEITY, C, RHO = 20_000, 0.5, 1.0, 1e-4
PLAIN_ROUNDS = 60


def run_demo(
    mechanism: str, epsilon: float, delta: float, out: str | None, seed: int, as_json: bool
) -> None:
    """Train, print a table or JSON, and leave a folder with a run folder for each mechanism and
    pictures.
    """
    charts.require()
    data = census(ROWS, seed=seed, nodes=len(SILOS), heterogeneity=HETEROGENEITY)
    now = datetime.now(UTC)
    root = Path(out) if out else _fresh(Path("runs"), f"demo-{now:%Y%m%d-%H%M%S}")
    RunFolder.require_empty(root)
    demo = _Demo(data, seed, root, now.isoformat(timespec="seconds"), epsilon, delta)
    names = ["none", "dual", "primal"] if mechanism == "all" else [mechanism]
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
        "test_rows": len(data.test[data.schema.label.name]),
        "centralised_error": demo.centralised_error(),
        "majority_error": demo.majority_error,
        "folder": str(root),
        "pictures": [str(path) for path in demo.draw(runs)],
    }
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        _show(result)


class _Demo:
    """The rows, the ring, and what was seen while training."""

    def __init__(
        self, data: Dataset, seed: int, root: Path, created: str, epsilon: float, delta: float
    ) -> None:
        self.data, self.seed, self.root, self.created, self.epsilon, self.delta = (
            data,
            seed,
            root,
            created,
            epsilon,
            delta,
        )
        self.ring = Topology.from_edges(
            list(zip(SILOS, SILOS[1:] + SILOS[:1], strict=True)), SILOS, name="ring"
        )
        self.shards = data.shards(names=SILOS)
        self.curve: list[dict[str, Any]] = []

    @property
    def majority_error(self) -> float:
        """Share of wrong answers of always giving the commoner answer."""
        return HeldOut.of(self.data.schema, self.data.test).majority_error

    def errors(self, schema: Schema, V: Array) -> Array:
        """Share of wrong answers of each vector on held-out rows, which are synthetic."""
        return HeldOut.of(schema, self.data.test).error(V)

    def train(self, name: str, progress: Progress) -> dict[str, Any]:
        """One run with its folder."""
        planned = None if name == "none" else self.plan(name)
        rounds = planned.rounds if planned else PLAIN_ROUNDS
        folder = RunFolder.create(self.root / name, self.record(name, planned))
        task = progress.add_task(f"mechanism {name}", total=rounds)
        messages: list[Array] = []

        def on_round(entry: RoundProgress) -> None:
            folder.note(entry)
            messages.append(np.array(entry.messages)[:, 0])
            progress.advance(task)

        schema, end, privacy = self.data.schema, None, _EXACT
        if planned:
            trained = train(
                schema,
                self.data.tables(SILOS),
                self.ring,
                planned,
                draws=SeededEntropy(self.seed),
                on_round=on_round,
            )
            schema, end, privacy = trained.schema, trained.run, _privacy(trained)
        else:
            end = simulate(
                self.shards, self.ring, Plan.of(C=C, rho=RHO, rounds=rounds), on_round=on_round
            )
        for n, V in enumerate(messages, 1):
            self._note(name, n, schema, V)
        models = end.models(planned.output if planned else "last")[:, 0]
        loss = (planned.settings.loss if planned else Logistic()).describe()
        folder.finish(Model.of(models[0], schema, loss, name, privacy))
        return {
            "mechanism": name,
            "alpha": planned.alpha if planned else None,
            "epsilon": privacy.get("epsilon"),
            "delta": privacy.get("delta"),
            "rounds": len(end.rounds),
            "consensus_gap": float(end.consensus_gap[0]),
            "node_errors": self.errors(schema, models).tolist(),
            "privacy": privacy,
            "folder": str(folder.path),
        }

    def plan(self, name: str) -> Plan:
        """All that a private run needs, from its total and public numbers."""
        counts, d = [shard.rows for shard in self.shards], self.data.schema.dimension
        return plan(counts, self.ring, d, epsilon=self.epsilon, delta=self.delta, mechanism=name)

    def record(self, name: str, planned: Plan | None) -> RunRecord:
        """Everything that is decided before the run."""
        plain = {
            "loss": Logistic().describe(),
            "regularizer": SquaredL2().describe(),
            "mechanism": NoProtection().describe(),
            "C": C,
            "weights": "rows",
            "rho": RHO,
            "eta": default_eta(self.ring, Logistic(), C, RHO),
            "rounds": PLAIN_ROUNDS,
            "output": "last",
        }
        made = {
            "name": "census",
            "rows": ROWS,
            "seed": self.seed,
            "heterogeneity": HETEROGENEITY,
            "synthetic": True,
        }
        return RunRecord.of(
            kind="demo",
            name=f"demo, {name}",
            run_id=f"demo, {name} {self.created}",
            created=self.created,
            simulation=True,
            seed=self.seed,
            source=f"{ROWS:,} census rows made here (synthetic), seed {self.seed}",
            topology=self.ring,
            rows={shard.name: shard.rows for shard in self.shards},
            schema=self.data.schema,
            made=made,
            plan=planned.to_json() if planned else plain,
        )

    def centralised_error(self) -> float:
        """Of the optimum of pooled rows, without privacy."""
        schema = self.data.schema
        alone = simulate(
            [schema.shard(self.data.train, "pooled")],
            Topology.family("ring", 1),
            Plan.of(C=C, rho=RHO, rounds=1),
        )
        return float(self.errors(schema, alone.V[0])[0])

    def _note(self, name: str, n: int, schema: Schema, V: Array) -> None:
        mean = V.mean(axis=0)
        apart = np.linalg.norm(V - mean, axis=1) / np.linalg.norm(mean)
        for silo, error, far in zip(SILOS, self.errors(schema, V), apart, strict=True):
            row = {
                "round": n,
                "mechanism": name,
                "silo": silo,
                "error": float(error),
                "disagreement": float(far),
            }
            self.curve.append(row)

    def draw(self, runs: list[dict[str, Any]]) -> list[Path]:
        """Convergence (of the nodes, or of the mechanisms' means where there are several) and the
        network.
        """
        source = f"census, made here, seed {self.seed} (synthetic)"
        references = [
            {"name": "centralised optimum, no privacy", "error": self.centralised_error()},
            {"name": "majority class", "error": self.majority_error},
        ]
        rows = (
            [{**row, "series": row["silo"]} for row in self.curve]
            if len(runs) == 1
            else _means(self.curve)
        )
        models = [
            {
                "series": "model" if len(runs) == 1 else run["mechanism"],
                "round": run["rounds"],
                "error": _mean_error(run),
            }
            for run in runs
        ]
        pictures = charts.save(
            charts.convergence(rows, references, source, models), self.root / "convergence"
        )
        errors = runs[-1]["node_errors"]
        labels = [
            f"{s.rows:,} rows, {e:.1%} wrong" for s, e in zip(self.shards, errors, strict=True)
        ]
        source = f"{source}; mechanism {runs[-1]['mechanism']}"
        return pictures + charts.save(
            charts.network(self.ring, labels, source), self.root / "network"
        )


def _mean_error(run: dict[str, Any]) -> float:
    """Of the models that silos take home, as in the table."""
    return float(np.mean(run["node_errors"]))


def _means(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over silos, one series a mechanism."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in curve:
        groups.setdefault((row["mechanism"], row["round"]), []).append(row)
    return [
        {
            "series": name,
            "round": n,
            **{
                key: float(np.mean([row[key] for row in rows])) for key in ("error", "disagreement")
            },
        }
        for (name, n), rows in groups.items()
    ]


_EXACT = {
    "protected": False,
    "statement": "Algorithm 1 sends exact vectors: no privacy. The rows are synthetic.",
}


def _privacy(trained: Trained) -> dict[str, Any]:
    total = trained.total
    return {
        **total.to_json(),
        "statement": total.guarantee,
    }


def _fresh(parent: Path, name: str) -> Path:
    """A name that is not taken, for two demos within one second."""
    names = [name, *(f"{name}-{i}" for i in range(2, 1000))]
    return next(parent / candidate for candidate in names if not (parent / candidate).exists())


def _share(shares: ArrayLike, rows: int) -> str:
    """Mean over silos, and how far it may be off: the silos' range, widened by the sampling error
    of the rows.

    >>> _share([0.84, 0.85], 5000)
    '84.5% ±1.5'
    """
    each = np.asarray(shares, dtype=float)
    mean, low, high = (
        float(each.mean()),
        wilson(float(each.min()), rows)[0],
        wilson(float(each.max()), rows)[1],
    )
    return f"{mean:.1%} ±{100 * max(mean - low, high - mean):.1f}"


def _show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table(
        title=f"One classifier from {result['nodes']} silos, {result['rows']:,} synthetic rows"
    )
    for name in ("mechanism", "epsilon", "alpha", "rounds", "gap", "accuracy"):
        table.add_column(name, justify="right")
    for run in result["runs"]:
        accuracy = _share(1 - np.array(run["node_errors"]), result["test_rows"])
        epsilon, alpha = (
            ("no privacy", "")
            if run["alpha"] is None
            else (upper_bound(run["epsilon"], 3), upper_bound(run["alpha"], 3))
        )
        table.add_row(
            run["mechanism"],
            epsilon,
            alpha,
            str(run["rounds"]),
            f"{run['consensus_gap']:.1e}",
            accuracy,
        )
    for name, words, key in (
        ("pooled rows", "no privacy", "centralised_error"),
        ("majority class", "", "majority_error"),
    ):
        table.add_row(name, words, "", "", "", _share([1 - result[key]], result["test_rows"]))
    console.print(table)
    console.print(
        "Accuracy of the model taken home (private runs: the mean of all silos' messages of the "
        "last half of the rounds), on "
        f"{result['test_rows']:,} held-out synthetic rows; ± holds the silos' differences and the "
        f"sampling error (95%)."
    )
    private = [run for run in result["runs"] if run["epsilon"] is not None]
    if private:
        epsilon, delta = max(run["epsilon"] for run in private), private[0]["delta"]
        console.print(guarantee(epsilon, delta, seeded=True))
    console.print("All rows are synthetic, so nobody needs to be protected.")
    console.print(f"Folder:  {result['folder']}", soft_wrap=True)
    for picture in result["pictures"]:
        console.print(f"Picture: {picture}", soft_wrap=True)
