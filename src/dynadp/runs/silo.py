"""A NODE.toml, carried out: one silo's process, from its rows to its model, however often it is
started again.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

from dynadp._files import digest, write_whole
from dynadp.consensus import Journal, RoundProgress, Topology, no_checkpoint
from dynadp.data import NodeRows, Schema
from dynadp.engines import (
    LOG,
    FolderJournal,
    Greetings,
    Inbox,
    LedgerJournal,
    Links,
    NodeResult,
    NodeRun,
    Site,
    Stopped,
    node_rounds,
    now,
    run_id,
)
from dynadp.errors import ConfigError, DynadpError
from dynadp.mechanisms import Draws, entropy_for
from dynadp.planning import Plan
from dynadp.privacy import Ledger, upper_bound
from dynadp.runs.folder import RunFolder, load_run
from dynadp.runs.identities import Identity, public_key
from dynadp.runs.local import finished_model, lock
from dynadp.runs.node_file import NodeFile, load_node_file
from dynadp.runs.preparation import MistakeList, check_ledger, open_columns, plan_from_file
from dynadp.runs.record import RunRecord, counted
from dynadp.runs.results import NodeEnd
from dynadp.runs.run_file import RunFile, load_run_file, load_schema
from dynadp.runs.status import SHOWN, STATUS, STATUS_VERSION

_SOON = timedelta(days=30)
# a run folder may hold these before the run is agreed on
_BESIDE = ("node.log", "node.lock", "status.json")
# what a process that was killed had not finished writing
_LEFT = (".status.json.*", ".run.json.*", ".model.json.*")
_TICK, _HEALTH = 0.5, 10.0  # seconds between two looks at the status, and two health lines


@dataclass(frozen=True)
class SiloRun:
    """A checked NODE.toml with what it names.

    Attributes
    ----------
    path, node, file
        Where it is; what it says; the run file that all share.
    schema, topology, plan
        As the run file names and asks for them: public, and the same at all nodes.
    rows
        Where this node's rows are.
    identity
        Its certificate and keys.
    """

    path: Path
    node: NodeFile
    file: RunFile
    schema: Schema = field(repr=False)
    topology: Topology = field(repr=False)
    plan: Plan = field(repr=False)
    rows: NodeRows = field(repr=False)
    identity: Identity

    @classmethod
    def load(cls, path: str | Path) -> "SiloRun":
        """Read NODE.toml and all that it names; every mistake is reported, together."""
        path = Path(path)
        node = load_node_file(path)
        file = load_run_file(path.parent / node.run)
        if not file.networked:
            raise ConfigError(
                f"{node.run} is a run in one process: on a network its nodes need key, rows and "
                f"endpoint. Train it with "
                "`dynadp train`, or try it as a network with `dynadp launch`"
            )
        problems = MistakeList()
        attempt = problems.attempt
        home = (path.parent / node.run).parent
        mine = next((section for section in file.nodes if section.name == node.node), None)
        if mine is None:
            problems.append(
                f"node: {node.run} has no node {node.node!r}; it has "
                f"{', '.join(p.name for p in file.nodes)}"
            )
        schema = attempt(lambda: load_schema(home / file.data.schema_file))
        topology = attempt(lambda: file.graph(home))
        identity = attempt(lambda: Identity.load(path.parent / node.identity, datetime.now(UTC)))
        if identity and identity.name != node.node:
            problems.append(
                f"identity: the certificate is of {identity.name!r}, this is {node.node!r}"
            )
        if identity and mine and identity.public != mine.key:
            problems.append(
                f"identity: sign.key is not the key that the run file names for {node.node}: it "
                f"should name {identity.public}"
            )
        memory = node.memory or file.data.memory
        rows: NodeRows | None = None
        if schema:
            where = path.parent / node.file, file.data.separator, schema, memory
            opened = attempt(lambda: open_columns(*where))
            if opened:
                rows = NodeRows(schema, opened, node.node, declared=mine.rows if mine else None)
        if rows and mine:
            survey = attempt(lambda: rows.survey)
            if survey and survey.rows != mine.rows:
                problems.append(
                    f"file: it has {survey.rows} rows, the run file declares {mine.rows} for "
                    f"{node.node}; correct one of them"
                )
        if (file.run.seed is None) != (node.ledger is not None):
            problems.append(
                "ledger: a private run needs one, where it enters what it spends: make it with "
                "`dynadp ledger cap`"
                if file.run.seed is None
                else "ledger: a seeded run is a SIMULATION and enters no ledger: leave it out"
            )
        if node.ledger is not None:
            attempt(lambda: check_ledger(path.parent / str(node.ledger), node.node))
        if topology:
            problems += _unreachable(file, topology)
        counts = [section.rows or 0 for section in file.nodes]
        plan = None if problems else attempt(lambda: plan_from_file(file, schema, topology, counts))
        if plan is None or rows is None:
            raise problems.refusal(path)
        return cls(path, node, file, schema, topology, plan, rows, identity)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.path.parent / self.node.out

    @property
    def part(self) -> NodeRun:
        """What is public about the run, from here."""
        return NodeRun(self.node.node, self.schema, self.plan)

    @property
    def config(self) -> dict[str, Any]:
        """What all nodes must agree on; numbers that were computed are told to 9 figures, since
        machines round differently.
        """
        said = self.file.model_dump(mode="json", by_alias=True)
        plan = self.plan
        return {
            "run": said["run"],
            "nodes": {
                node["name"]: {name: node[name] for name in ("rows", "epsilon", "key")}
                for node in said["nodes"]
            },
            "edges": [
                [self.topology.nodes[u], self.topology.nodes[v]] for u, v in self.topology.edges
            ],
            "privacy": said["privacy"],
            "training": said["training"],
            "schema": self.schema.model_dump(mode="json"),
            "plan": {
                name: _rounded(value)
                for name, value in plan.to_json().items()
                if name not in ("reasons", "total", "alpha", "centring", "output", "epsilon")
            },
        }

    def _record(self, config: Mapping[str, Any], created: str) -> RunRecord:
        """The record of the run, of what all nodes agreed on."""
        name, seed, hash_ = self.file.run.name, self.file.run.seed, digest(config)
        rows = {section.name: int(section.rows or 0) for section in self.file.nodes}
        sections = [{"name": node, **own} for node, own in config["nodes"].items()]
        return RunRecord.of(
            kind="network",
            name=name,
            run_id=f"{name} {hash_[:SHOWN]}",
            created=created,
            simulation=seed is not None,
            seed=seed,
            source=counted(self.file.data.description, rows),
            topology=self.topology,
            rows=rows,
            schema=self.schema,
            file={key: config[key] for key in ("run", "privacy", "training")} | {"nodes": sections},
            plan=self.plan.to_json(),
            config_hash=hash_,
        )

    def site(self) -> Site:
        """Where it listens and whom it dials: of two nodes with endpoints the later one in the file
        dials.
        """
        order = {section.name: (i, section.endpoint) for i, section in enumerate(self.file.nodes)}
        here, mine = order[self.node.node]
        dial = [
            endpoint
            for j in self.part.neighbours
            for there, endpoint in [order[j]]
            if endpoint is not None and (mine is None or there < here)
        ]
        listen = () if mine is None else (self.node.listen or mine,)
        folder = self.path.parent / self.node.identity
        return Site(
            self.node.node,
            self.part.neighbours,
            folder,
            listen,
            tuple(dial),
            self.file.network.relay,
        )

    def run(
        self,
        *,
        who: str,
        draws: Draws | None = None,
        stop: Event | None = None,
        on_round: Callable[[RoundProgress], None] = lambda entry: None,
        checkpoint: Callable[[str], None] = no_checkpoint,
    ) -> NodeEnd:
        """Take part in the run until it is over, from wherever it stands; leaves model and record
        in the run folder.

        Parameters
        ----------
        who
            Who starts it, for the ledger.
        draws
            Where noise comes from; by default as the run file says.
        stop
            Set to stop it; it can be started again.
        on_round
            Called after every round.
        checkpoint
            Called at the points of a round, by name.
        """
        part, config, rounds, stop = self.part, self.config, self.plan.rounds, stop or Event()
        name, seed = digest(config), self.file.run.seed
        LOG.info(
            "%s starts its part in %s %r: %d rounds, epsilon = %s at delta = %g in total",
            self.node.node,
            "private run" if seed is None else "SIMULATION that protects nobody",
            self.file.run.name,
            rounds,
            upper_bound(self.plan.total.epsilon),
            self.plan.total.delta,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            (self.folder / "node.lock").touch()
            lock(stack, self.folder, "node.lock")
            for pattern in _LEFT:
                for partial in self.folder.glob(pattern):
                    partial.unlink()
            self._known_folder(config)
            if self.identity.expires < datetime.now(UTC) + _SOON:
                LOG.warning(
                    "the certificate ends on %s; renew it: dynadp pki renew",
                    f"{self.identity.expires:%Y-%m-%d}",
                )
            keys = {section.name: public_key(str(section.key)) for section in self.file.nodes}
            rules = part.rules(run_id(self.file.run.name), bytes.fromhex(name), keys)
            post = Inbox(self.folder / f"letters-{name[:12]}.sqlite", rules, self.identity.key)
            stack.callback(post.close)
            outbox = self._outbox(stack, f"{self.file.run.name} {name[:SHOWN]}", who)

            def known(n: int) -> bytes | None:
                sent = outbox.sent(n)
                return None if sent is None else np.asarray(sent[self.node.node], "<f8").tobytes()

            private = None if self.node.ledger is None else known
            links = stack.enter_context(
                Links(self.site(), post, Greetings(post, config, private), self.node.patience, stop)
            )
            status = stack.enter_context(Status(self, links, name[:SHOWN]))
            try:
                # it stays for those that are not done yet
                if (self.folder / "model.json").exists():
                    status.round = rounds
                else:
                    links.agree()
                    checkpoint("agreed")
                    status.state = "running"
                    outcome = self._rounds(
                        part,
                        config,
                        post,
                        links,
                        outbox,
                        draws or entropy_for(seed),
                        status,
                        on_round,
                        checkpoint,
                    )
                    self._finish(outcome)
                    checkpoint("finished")
                status.state = "finished"
                behind = links.part_ways()
                status.state = "parted"
            except Stopped:
                status.state = "stopped"
                return self._end("stopped", status.round, [])
            except DynadpError as error:
                status.state = f"failed: {type(error).__name__}"
                raise
        if behind:
            LOG.warning(
                "finished; %s did not say that they are too: start this node again if they need it",
                ", ".join(behind),
            )
        return self._end("finished", rounds, behind)

    def _rounds(
        self,
        part: NodeRun,
        config: Mapping[str, Any],
        post: Inbox,
        links: Links,
        outbox: Journal,
        draws: Draws,
        status: "Status",
        on_round: Callable[[RoundProgress], None],
        checkpoint: Callable[[str], None],
    ) -> NodeResult:
        events = [event for event in self.plan.events if event.node == self.node.node]
        if not outbox.begun:
            # a bad cell must not be found when part of the budget is spent
            self.rows.check()
            outbox.reserve(events)
        checkpoint("reserved")
        folder = RunFolder(self.folder)
        if not (self.folder / "run.json").exists():
            beside = (*_BESIDE, *(file.name for file in self.folder.glob("letters-*")), "messages")
            with status.writing:  # its half-written file would be a stranger there
                folder = RunFolder.create(self.folder, self._record(config, now()), beside=beside)
        folder.restart()

        def note(entry: RoundProgress) -> None:
            status.round = entry.number
            folder.note(entry, [self.node.node])
            on_round(entry)
            checkpoint("noted")

        return links.run(
            node_rounds(
                part,
                self.rows,
                post,
                links.publish,
                outbox,
                draws,
                on_round=note,
                checkpoint=checkpoint,
            )
        )

    def _finish(self, outcome: NodeResult) -> None:
        model, _, _ = finished_model(self.plan, outcome, self.file.run.seed is not None)
        RunFolder(self.folder).finish(model)

    def _outbox(self, stack: ExitStack, run: str, who: str) -> Journal:
        if self.node.ledger is None:
            return FolderJournal(self.folder / "messages", [self.node.node])
        ledger = stack.enter_context(Ledger.open(self.path.parent / self.node.ledger))
        return LedgerJournal(
            {self.node.node: ledger}, run, dataset=self.file.data.description, who=who, resume=True
        )

    def _known_folder(self, config: Mapping[str, Any]) -> None:
        """Refuse a folder of another run."""
        if (self.folder / "run.json").exists() and load_run(self.folder).config_hash != digest(
            config
        ):
            raise ConfigError(
                f"{self.folder} was begun with another run file or schema; go on with those, or "
                f"choose another folder (out)"
            )

    def _end(self, state: str, rounds: int, behind: Sequence[str]) -> NodeEnd:
        return NodeEnd(
            run=self.file.run.name,
            node=self.node.node,
            state=state,
            rounds=rounds,
            simulation=self.file.run.seed is not None,
            epsilon=self.plan.total.epsilon,
            delta=self.plan.delta,
            folder=self.folder,
            unfinished_neighbours=tuple(behind),
        )


class Status:
    """Writes status.json of a running node whenever it changed, and a health line now and then."""

    def __init__(self, silo: SiloRun, links: Links, config: str) -> None:
        self.silo, self.links, self.config = silo, links, config
        self.state, self.round = "agreeing", 0
        self.writing, self._over, self._last = Lock(), Event(), ""

    def __enter__(self) -> "Status":
        self._write()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def line(self) -> str:
        """How the node is, in one line."""
        alive, links = self.links.alive, self.links
        up = ", ".join(f"{j} {'up' if j in alive else 'AWAY'}" for j in links.site.neighbours)
        refused = sum(links.post.rejected.values())
        wait = f"; waits for {links.waiting}" if links.waiting else ""
        place = f"round {self.round} of {self.silo.plan.rounds}"
        return f"{self.state}, {place}; {up or 'no neighbours'}; {refused} refused{wait}"

    def to_json(self) -> dict[str, Any]:
        """How the node is."""
        silo, links = self.silo, self.links
        return {
            "format": STATUS,
            "version": STATUS_VERSION,
            "run": silo.file.run.name,
            "config": self.config,
            "node": silo.node.node,
            "state": self.state,
            "round": self.round,
            "rounds": silo.plan.rounds,
            "neighbours": {j: "up" if j in links.alive else "away" for j in links.site.neighbours},
            "rejected": dict(links.post.rejected),
            "waiting": links.waiting,
            "ledger": None
            if silo.node.ledger is None
            else str((silo.path.parent / silo.node.ledger).resolve()),
            "pid": os.getpid(),
        }

    def _write(self) -> None:
        content = json.dumps(self.to_json(), indent=1)
        if content != self._last:
            with self.writing:
                write_whole(self.silo.folder / "status.json", content + "\n")
            self._last = content

    def _watch(self) -> None:
        told, ticks = "", 0
        while not self._over.wait(_TICK):
            self._write()
            ticks += 1
            if ticks % round(_HEALTH / _TICK) == 0 and (line := self.line()) != told:
                LOG.info("%s", line)
                told = line


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _unreachable(file: RunFile, topology: Topology) -> list[str]:
    """Edges whose two nodes both cannot be dialled."""
    if file.network.relay is not None:
        return []
    endpoints = {section.name: section.endpoint for section in file.nodes}
    edges = [(topology.nodes[u], topology.nodes[v]) for u, v in topology.edges]
    return [
        f"nodes: neither {u} nor {v} has an endpoint, and they are neighbours: give one of them "
        f"one, or a network.relay"
        for u, v in edges
        if endpoints[u] is None and endpoints[v] is None
    ]
