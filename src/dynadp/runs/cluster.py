"""A run file, carried out on a Ray cluster: the same folder, record and model as in one process."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import numpy as np

from dynadp._files import digest
from dynadp.consensus import no_checkpoint
from dynadp.consensus.progress import RoundProgress
from dynadp.engines import ActorPool, ActorSpec, NodeProgress, NodeRun, cluster
from dynadp.errors import ConfigError
from dynadp.mechanisms import Draws, entropy_for
from dynadp.planning import Plan
from dynadp.runs.folder import RunFolder
from dynadp.runs.local import LocalRun, finished_model

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

    address: str | None = None
    per_actor: int | None = None

    @classmethod
    def at(
        cls,
        path: str | Path,
        overrides: Mapping[str, Any] | None = None,
        address: str | None = None,
    ) -> "ClusterRun":
        """Read the run file and all that it names, for the cluster at this address."""
        return replace(cast(ClusterRun, cls.load(path, overrides)), address=address)

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        who: str,
        created: str,
        on_round: Callable[[RoundProgress], None] | None = None,
        draws: Draws | None = None,
        at: Callable[[str], None] = no_checkpoint,
        on_start: Callable[[ActorPool], None] = lambda company: None,
    ) -> dict[str, Any]:
        """Train, or go on, as :meth:`~dynadp.runs.local.LocalRun.run` does; either may go on with a
        private run that the other began.

        Parameters
        ----------
        out, resume, who, created, on_round
            As there.
        draws
            Where noise comes from; by default as the run file says.
        at
            Called at the points of a round, by name, in the actors.
        on_start
            Called with all actors before the first round.
        """
        planned, out = self._planned(out if resume else None), out.resolve()
        parts = self._parts(planned)  # refuses what cannot be run by nodes apart
        with cluster(self.address), ExitStack() as stack:
            run_id = self._run_id(stack, out, planned, created, resume)
            orders = self._orders(planned, parts, run_id, out, who, draws, at)
            company = stack.enter_context(ActorPool(run_id, orders, self.per_actor))
            if not resume:
                company.check()
            folder, _ = self._reserved(stack, out, planned, run_id, who, created, resume)
            on_start(company)
            outcomes = company.run(Ranks(folder, planned, self.topology.nodes, on_round).take)
        model, total, events = finished_model(
            planned, outcomes[self.topology.nodes[0]], self.file.run.seed is not None
        )
        folder.finish(model)
        rmtree(folder.path / _MESSAGES, ignore_errors=True)
        return self._result(folder, model, planned.rounds, total, events)

    def _planned(self, begun: Path | None = None) -> Plan:
        planned = self.plan(begun)
        problems = []
        if planned is None:
            problems.append("privacy: mechanism is none: Algorithm 1 runs in one process")
        if self.file.data.file is not None:
            problems.append(
                "data: file holds the rows of all nodes; on a cluster each node has a "
                "file of its own"
            )
        if planned is None or problems:
            raise ConfigError(
                "\n".join(
                    [
                        f"{self.path}: leave out --runtime ray, or change",
                        *(f"  {p}" for p in problems),
                    ]
                )
            )
        return planned

    def _parts(self, planned: Plan) -> list[NodeRun]:
        return [NodeRun(node, self.schema, planned) for node in self.topology.nodes]

    def _orders(
        self,
        planned: Plan,
        parts: list[NodeRun],
        run_id: str,
        out: Path,
        who: str,
        draws: Draws | None,
        at: Callable[[str], None],
    ) -> list[ActorSpec]:
        home = self.path.parent.resolve()
        sections = {section.name: section for section in self.file.nodes}
        config = bytes.fromhex(digest(self._said(planned)))
        made = []
        for part in parts:
            section = sections[part.me]
            made.append(
                ActorSpec(
                    part=part,
                    rows=home / str(section.file),
                    separator=self.file.data.separator,
                    memory=self.file.data.memory,
                    run=run_id,
                    config=config,
                    events=tuple(event for event in planned.events if event.node == part.me),
                    ledger=None if section.ledger is None else home / section.ledger,
                    messages=out / _MESSAGES,
                    dataset=self.file.data.description,
                    who=who,
                    draws=draws or entropy_for(self.file.run.seed),
                    checkpoint=at,
                )
            )
        return made


class Ranks:
    """Puts what single nodes tell of their rounds into order: a round is recorded when all nodes
    have told theirs.

    Parameters
    ----------
    folder, planned, nodes
        Where it is recorded; the plan; the order of nodes.
    on_round
        Called with every round and the number of rounds.
    """

    def __init__(
        self,
        folder: RunFolder,
        planned: Plan,
        nodes: tuple[str, ...],
        on_round: Callable[[RoundProgress], None] | None,
    ) -> None:
        self.folder, self.planned, self.nodes, self.on_round = folder, planned, nodes, on_round
        self._rounds: dict[int, dict[str, NodeProgress]] = {}

    def take(self, told: NodeProgress) -> None:
        """One node's round; those of a node come in order."""
        n = told.round
        self._rounds.setdefault(n, {})[told.node] = told
        if len(self._rounds[n]) < len(self.nodes):
            return
        found = self._rounds.pop(n)
        ranked = [found[node] for node in self.nodes]
        self.folder.append(
            {
                "round": n,
                "node": t.node,
                "alpha": alpha,
                "disagreement": t.disagreement,
                "change": t.change,
            }
            for t, alpha in zip(ranked, self.planned.alphas, strict=True)
        )
        if self.on_round:
            apart, change = (
                np.array([[getattr(t, name)] for t in ranked])
                for name in ("disagreement", "change")
            )
            self.on_round(
                RoundProgress(n, self.planned.rounds, self.planned.settings.eta_of(), apart, change)
            )
