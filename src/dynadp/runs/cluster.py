"""A run file, carried out on a Ray cluster: the same folder, record and model as in one process."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar

import numpy as np

from dynadp.consensus import RoundLine, RoundProgress, no_checkpoint
from dynadp.data import Schema, count
from dynadp.engines import ActorPool, ActorSpec, NodeRun, cluster, map_on_cluster
from dynadp.errors import ConfigError
from dynadp.mechanisms import Draws, entropy_for
from dynadp.planning import Plan
from dynadp.runs.folder import RunFolder
from dynadp.runs.local import LocalRun
from dynadp.runs.preparation import open_columns
from dynadp.runs.record import Kind
from dynadp.runs.results import RunResult
from dynadp.runs.run_file import RunFile

_MESSAGES = "messages-ray"  # of a SIMULATION: a folder for each node


@dataclass(frozen=True)
class ClusterRun(LocalRun):
    """A checked run file whose nodes are actors of a Ray cluster.

    Rows, ledgers and run folder lie on storage that all hosts see at the same paths, with locks
    that hold between hosts, as those of NFS 4 do. Rows never travel: an actor reads its node's
    file.

    Attributes
    ----------
    address
        ``HOST:PORT`` of the cluster's head, or ``auto``; None for a cluster of this machine alone.
    per_actor
        How many nodes share an actor; by default as :class:`~dynadp.engines.ray.pool.ActorPool` has
        it.
    """

    kind: ClassVar[Kind] = "cluster"
    reads_rows: ClassVar[bool] = False
    address: str | None = None
    per_actor: int | None = None

    @classmethod
    def require_runnable(cls, path: Path, file: RunFile) -> None:
        """Refuse a run whose nodes cannot run apart from each other."""
        super().require_runnable(path, file)
        problems = []
        if not file.privacy.protected:
            problems.append("privacy: mechanism is none: Algorithm 1 runs in one process")
        if file.data.file is not None:
            problems.append(
                "data: file holds the rows of all nodes; on a cluster each node has a "
                "file of its own"
            )
        if problems:
            lines = [f"{path}: leave out --runtime ray, or change", *problems]
            raise ConfigError("\n  ".join(lines))

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        who: str,
        created: str,
        on_round: Callable[[RoundProgress], None] = lambda entry: None,
        draws: Draws | None = None,
        checkpoint: Callable[[str], None] = no_checkpoint,
        on_start: Callable[[ActorPool], None] = lambda company: None,
    ) -> RunResult:
        """Train, or go on, as :meth:`~dynadp.runs.local.LocalRun.run` does; either may go on with a
        private run that the other began.

        Parameters
        ----------
        out, resume, who, created, on_round
            As there.
        draws
            Where noise comes from; by default as the run file says.
        checkpoint
            Called at the points of a round, by name, in the actors.
        on_start
            Called with all actors before the first round.
        """
        out = out.resolve()
        with cluster(self.address), ExitStack() as stack:
            job = replace(self, counts=self._counted())
            plan = job.plan(out if resume else None)
            # refuses what nodes apart cannot run
            parts = [NodeRun(node, self.schema, plan) for node in self.topology.nodes]
            record = job._claim(stack, out, plan, created, resume)
            specs = self._specs(
                parts,
                run=record.run_id,
                config=bytes.fromhex(record.config_hash),
                messages=out / _MESSAGES,
                who=who,
                draws=draws or entropy_for(self.file.run.seed),
                checkpoint=checkpoint,
            )
            company = stack.enter_context(ActorPool(record.run_id, specs, self.per_actor))
            if not resume:
                company.check()
            folder, _ = job._begin(stack, out, plan, record, who, resume)
            on_start(company)
            outcomes = company.run(Ranks(folder, plan, self.topology.nodes, on_round).take)
        first = outcomes[self.topology.nodes[0]]
        kept = first.spread, first.histogram
        result = self._finish(folder, plan, first.schema, first.vector, plan.rounds, *kept)
        rmtree(out / _MESSAGES, ignore_errors=True)
        return result

    def _counted(self) -> dict[str, int]:
        """Return B_p of each node: as declared, or counted on the cluster, where the rows are."""
        data, home = self.file.data, self.path.parent.resolve()
        left = [node for node in self.file.nodes if node.rows is None]
        if not left:
            return dict(self.counts)
        tasks = [{"path": home / str(node.file)} for node in left]
        shared = {"schema": self.schema, "separator": data.separator, "memory": data.memory}
        found = dict(zip(left, map_on_cluster(count_file, tasks, shared), strict=True))
        empty = [node.name for node, rows in found.items() if not rows]
        if empty:
            raise ConfigError(f"{self.path}: {', '.join(empty)}: every node needs a row")
        return {**self.counts, **{node.name: rows for node, rows in found.items()}}

    def _specs(self, parts: list[NodeRun], **same: Any) -> list[ActorSpec]:
        """Return what actors have to know about each node; ``same`` is the same for all."""
        home, data = self.path.parent.resolve(), self.file.data
        return [
            ActorSpec(
                part=part,
                rows=home / str(section.file),
                separator=data.separator,
                memory=None if data.memory is None else data.memory << 20,
                events=tuple(event for event in part.plan.events if event.node == part.me),
                ledger=None if section.ledger is None else home / section.ledger,
                dataset=data.description,
                **same,
            )
            for part, section in zip(parts, self.file.nodes, strict=True)
        ]


def count_file(path: Path, schema: Schema, separator: Any, memory: int | None) -> int:
    """Return how many rows of a file stay; works where the file is."""
    return count(schema, open_columns(path, separator, schema, memory))


class Ranks:
    """Collects the rounds of single nodes: a round is recorded when all nodes are through it.

    Parameters
    ----------
    folder, planned, nodes
        Where it is recorded; the plan; the order of nodes.
    on_round
        Called after every round with its progress.
    """

    def __init__(
        self,
        folder: RunFolder,
        planned: Plan,
        nodes: tuple[str, ...],
        on_round: Callable[[RoundProgress], None],
    ) -> None:
        self.folder, self.planned, self.nodes, self.on_round = folder, planned, nodes, on_round
        self._rounds: dict[int, dict[str, RoundLine]] = {}

    def take(self, line: RoundLine) -> None:
        """One node's round; those of a node come in order."""
        n = line.round
        self._rounds.setdefault(n, {})[line.node] = line
        if len(self._rounds[n]) < len(self.nodes):
            return
        found = self._rounds.pop(n)
        ranked = [found[node] for node in self.nodes]
        entry = RoundProgress(
            n,
            self.planned.rounds,
            self.planned.pulls(),
            np.array([[line.disagreement] for line in ranked]),
            np.array([[line.change] for line in ranked]),
            apart=None if ranked[0].apart is None else np.array([ranked[0].apart]),
            noise=ranked[0].noise,
        )
        self.folder.note(entry)
        self.on_round(entry)
