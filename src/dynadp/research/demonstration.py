"""The demonstration: five silos of made census rows on a ring, with and without privacy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import RoundProgress, Topology
from dynadp.data import Dataset, Shard, census
from dynadp.engines import now, simulate
from dynadp.mechanisms import Sealed, SeededEntropy
from dynadp.planning import Consortium, Plan, plan
from dynadp.research.experiments import pooled_error
from dynadp.research.public_rows import HeldOut
from dynadp.runs import Model, RunFolder, RunRecord, train

SILOS = ("north", "east", "south", "west", "centre")
RING = Topology.from_edges(list(zip(SILOS, SILOS[1:] + SILOS[:1], strict=True)), SILOS, name="ring")
ROWS, HETEROGENEITY = 20_000, 0.5
PLAIN_ROUNDS = 60  # of Algorithm 1
HONEST = 3  # of the silos, where sums are sealed


@dataclass
class Demonstration:
    """Runs on the same made rows: a SIMULATION that protects nobody.

    Attributes
    ----------
    root
        The folder to make, with a run folder for each mechanism.
    epsilon, delta
        The total of a private run.
    seed
        Of the rows, and of the noise.
    measured
        Of each mechanism: error and disagreement of every silo's messages, 2 x rounds x silos.
    """

    root: Path
    epsilon: float = 1.0
    delta: float = 1e-5
    seed: int = 0
    measured: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        RunFolder.require_empty(self.root)
        self.created = now()

    @cached_property
    def data(self) -> Dataset:
        """The rows of all silos, and held-out rows."""
        return census(ROWS, seed=self.seed, nodes=len(SILOS), heterogeneity=HETEROGENEITY)

    @cached_property
    def shards(self) -> list[Shard]:
        """Each silo's bounded rows."""
        return self.data.shards(names=SILOS)

    @cached_property
    def held_out(self) -> HeldOut:
        """Rows that answers are checked on; they are synthetic."""
        return HeldOut.of(self.data.schema, self.data.test)

    @cached_property
    def centralised_error(self) -> float:
        """Share of wrong answers of the optimum of pooled rows, without privacy."""
        return pooled_error(self.data.schema.shard(self.data.train, "pooled"), self.held_out)

    def run(self, mechanism: str, on_round: Callable[[RoundProgress], None]) -> dict[str, Any]:
        """Train with a mechanism, or with ``none``; leaves a run folder, and returns its numbers.

        Parameters
        ----------
        mechanism
            Its name.
        on_round
            Called after every round.
        """
        chosen = self._plan(mechanism)
        folder = RunFolder.create(self.root / mechanism, self._record(mechanism, chosen))
        messages: list[Array] = []

        def note(progress: RoundProgress) -> None:
            folder.note(progress)
            messages.append(progress.points[:, 0].copy())
            on_round(progress)

        if chosen.protection:
            trained = train(
                self.data.schema,
                self.data.tables(SILOS),
                RING,
                chosen,
                draws=SeededEntropy(self.seed),
                on_round=note,
            )
            end, model = trained.run, trained.model()
        else:
            end = simulate(self.shards, RING, chosen, on_round=note)
            model = Model.of(end.models(chosen.output)[0, 0], self.data.schema, chosen)
        folder.finish(model)
        held_out, V = HeldOut.of(model.columns, self.data.test), np.array(messages)
        mean = V.mean(axis=1, keepdims=True)
        size = np.maximum(np.linalg.norm(mean, axis=-1), np.finfo(float).tiny)
        apart = np.linalg.norm(V - mean, axis=-1) / size
        self.measured[mechanism] = np.array([held_out.error(V), apart])
        models, written = end.models(chosen.output)[:, 0], chosen.to_json()
        return {
            "mechanism": mechanism,
            "algorithm": chosen.algorithm,
            "exchange": chosen.mechanism.exchange,
            "noise": written["noise"],
            "alpha": written["alpha"],
            "mu": written["mu"],
            "epsilon": model.privacy.get("epsilon"),
            "delta": model.privacy.get("delta"),
            "rounds": len(end.rounds),
            "consensus_gap": float(end.consensus_gap[0]),
            "node_errors": held_out.error(models).tolist(),
            "privacy": dict(model.privacy),
            "folder": str(folder.path),
        }

    def _plan(self, mechanism: str) -> Plan:
        """All that a run needs, from its total and public numbers."""
        counts, dimension = [shard.rows for shard in self.shards], self.data.schema.dimension
        if mechanism == "none":
            plain = Plan(rounds=PLAIN_ROUNDS, output="last")
            return plain.on(Consortium(RING, tuple(counts), dimension))
        chosen = Sealed(honest=HONEST) if mechanism == Sealed.name else mechanism
        epsilon, delta = self.epsilon, self.delta
        return plan(counts, RING, dimension, epsilon=epsilon, delta=delta, mechanism=chosen)

    def _record(self, mechanism: str, chosen: Plan) -> RunRecord:
        """Everything that is decided before the run."""
        return RunRecord.of(
            kind="demo",
            name=f"demo, {mechanism}",
            run_id=f"demo, {mechanism} {self.created}",
            created=self.created,
            simulation=True,
            seed=self.seed,
            source=f"{ROWS:,} census rows made here (synthetic), seed {self.seed}",
            topology=RING,
            rows={shard.name: shard.rows for shard in self.shards},
            schema=self.data.schema,
            made={
                "name": "census",
                "rows": ROWS,
                "seed": self.seed,
                "heterogeneity": HETEROGENEITY,
                "synthetic": True,
            },
            plan=chosen.to_json(),
        )

    def curve(self) -> list[dict[str, Any]]:
        """Error and disagreement of every round: of each silo, or of several mechanisms' means."""
        rows = []
        for mechanism, measured in self.measured.items():
            series: tuple[str, ...] = SILOS
            if len(self.measured) > 1:
                series, measured = (mechanism,), measured.mean(axis=-1, keepdims=True)
            errors, apart = measured
            for (n, i), error in np.ndenumerate(errors):
                row = {"series": series[i], "round": n + 1, "error": float(error)}
                rows.append({**row, "disagreement": float(apart[n, i])})
        return rows
