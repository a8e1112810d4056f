"""A NODE.toml, carried out: one silo's process, from its rows to its model, however often it is
started again.
"""

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from functools import partial as bound
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from dynadp._files import digest
from dynadp.consensus import Absence, Journal, RoundProgress, Topology, no_checkpoint
from dynadp.data import NodeRows, Schema
from dynadp.engines import (
    LOG,
    FolderJournal,
    Greetings,
    HeldDraws,
    Inbox,
    Lease,
    LedgerJournal,
    Life,
    Links,
    NodeRun,
    Site,
    Stopped,
    given_up,
    least_of,
    node_rounds,
    now,
    require_not_left,
    run_id,
)
from dynadp.errors import ConfigError, DynadpError, NotApproved, RecordError
from dynadp.mechanisms import Draws, entropy_for
from dynadp.planning import Plan
from dynadp.privacy import upper_bound
from dynadp.runs.consent import Approval, approval_of
from dynadp.runs.folder import RunFolder, load_run
from dynadp.runs.identities import Identity, key_fingerprint, public_key
from dynadp.runs.last_run import keep_terms
from dynadp.runs.ledgers import open_readable
from dynadp.runs.model import Model
from dynadp.runs.node_file import NodeFile, load_node_file
from dynadp.runs.preparation import (
    MistakeList,
    check_count,
    check_ledger,
    lock,
    new_record,
    open_columns,
    open_ledgers,
    plan_from_file,
    rehearse,
    reserve,
)
from dynadp.runs.record import RunRecord
from dynadp.runs.results import NodeEnd
from dynadp.runs.run_file import RunFile, load_run_file, load_schema
from dynadp.runs.standing import LedgerWait, Standing
from dynadp.runs.status import SHOWN
from dynadp.runs.status_writer import SOON, StatusWriter
from dynadp.runs.thresholds import with_threshold, without_probabilities

ENVELOPE = 2**16  # bytes around a letter, at most
# a run folder may hold these before the run is agreed on
_BESIDE = (
    *("node.log", "node.log.*", "node.lock", "status.json", "messages"),
    *("letters-*", ".letters-*"),  # grants of names are written while a node begins
)
# what a process that was killed had not finished writing
_LEFT = (".status.json.*", ".run.json.*", ".model.json.*", ".letters-*")


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
        mistakes, here, home = MistakeList(), path.parent, (path.parent / node.run).parent
        attempt = mistakes.attempt
        mine = next((section for section in file.nodes if section.name == node.node), None)
        if mine is None:
            mistakes.append(
                f"node: {node.run} has no node {node.node!r}; it has "
                f"{', '.join(p.name for p in file.nodes)}"
            )
        schema = attempt(lambda: file.declared(load_schema(home / file.data.schema_file)))
        topology = attempt(lambda: file.graph(home))
        identity = attempt(lambda: Identity.load(here / node.identity, datetime.now(UTC)))
        if identity and identity.name != node.node:
            mistakes.append(
                f"identity: the certificate is of {identity.name!r}, this is {node.node!r}"
            )
        if identity and mine and mine.endpoint and not file.network.relay:
            host = mine.endpoint.rpartition(":")[0].strip("[]")
            if host.lower() not in (one.lower() for one in identity.hosts):
                mistakes.append(
                    f"identity: neighbours dial {host}, and the certificate is for "
                    f"{', '.join(identity.hosts)}: ask for one with that host "
                    "(dynadp pki request --again)"
                )
        if identity and mine and identity.public != mine.key:
            mistakes.append(
                f"identity: sign.key is not the key that the run file names for {node.node}: it "
                f"should name {identity.public}"
            )
        rows: NodeRows | None = None
        own = attempt(lambda: node.own(schema)) if schema else None
        if own and mine:
            memory = node.memory or file.data.memory
            where = here / node.file, file.data.separator, own, memory
            opened = attempt(lambda: open_columns(*where))
            if opened:
                rows = NodeRows(schema, opened, node.node, declared=mine.rows, own=own)
                found = None if schema.hides_counts else rows.survey.rows
                attempt(lambda: check_count(mine, schema, file, found))
        if (file.run.seed is None) != (node.ledger is not None):
            mistakes.append(
                "ledger: a private run needs one, where it enters what it spends: make it with "
                "`dynadp ledger cap`"
                if file.run.seed is None
                else "ledger: a seeded run is a SIMULATION and enters no ledger: leave it out"
            )
        if node.ledger is not None:
            anchor = None if node.anchor is None else here / node.anchor
            attempt(lambda: check_ledger(here / str(node.ledger), node.node, anchor))
        if topology:
            mistakes += _unreachable(file, topology)
        counts = [section.rows or 0 for section in file.nodes]
        plan = None if mistakes else attempt(lambda: plan_from_file(file, schema, topology, counts))
        if plan is not None and schema:
            absence = file.network.absence
            attempt(lambda: NodeRun(node.node, schema, plan, absence))
            attempt(bound(least_of, plan, absence))
        if plan is None or rows is None or mistakes:
            raise mistakes.refusal(path)
        return cls(path, node, file, schema, topology, plan, rows, identity)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.path.parent / self.node.out

    @property
    def ledger(self) -> Path | None:
        """The node's ledger; None in a SIMULATION."""
        return None if self.node.ledger is None else self.path.parent / self.node.ledger

    @property
    def part(self) -> NodeRun:
        """What is public about the run, from here."""
        return NodeRun(self.node.node, self.schema, self.plan, self.absence)

    @property
    def absence(self) -> Absence:
        """What happens when nodes stay away, with this node's own patience."""
        agreed = self.file.network.absence
        return replace(agreed, patience=self.node.patience or agreed.patience)

    @property
    def config(self) -> dict[str, Any]:
        """What all nodes must agree on.

        Computed numbers are rounded to 9 figures, since machines round differently.
        """
        content, nodes = self.file.model_dump(mode="json", by_alias=True), self.topology.nodes
        return {
            "run": content["run"],
            "nodes": {
                node["name"]: {name: node[name] for name in ("rows", "epsilon", "key")}
                for node in content["nodes"]
            },
            "edges": [[nodes[u], nodes[v]] for u, v in self.topology.edges],
            "privacy": content["privacy"],
            "training": content["training"],
            "schema": self.schema.model_dump(mode="json"),
            **self._agreed_absence,
            "plan": {
                name: _rounded(value)
                for name, value in self.plan.to_json().items()
                if name not in ("reasons", "total", "alpha", "centring", "output", "epsilon")
            },
        }

    @property
    def recipients(self) -> tuple[str, ...]:
        """Who gets this node's messages: its neighbours, or all others where sums are handed on."""
        if self.plan.mechanism.exchange == "neighbours":
            return self.part.neighbours
        return tuple(name for name in self.topology.nodes if name != self.node.node)

    @cached_property
    def terms(self) -> dict[str, Any]:
        """What somebody approves who lets this node take part: all that decides what it releases,
        to whom, and at what cost.
        """
        keys = {section.name: str(section.key) for section in self.file.nodes}
        ledger, node = None, self.node
        if self.ledger is not None:
            with open_readable(self.ledger) as opened:
                state = opened.state()
            cap = None if state.cap is None else asdict(state.cap)
            ledger = {"beginning": state.first, "cap": cap}
        return {
            "node": node.node,
            "config": self.config,
            "cost": {"epsilon": _rounded(self._epsilon), "delta": self.plan.delta},
            "recipients": {name: key_fingerprint(keys[name]) for name in self.recipients},
            "neighbours": sorted(self.part.neighbours),
            "relay": self.file.network.relay,
            "endpoints": {section.name: section.endpoint for section in self.file.nodes},
            "own": {
                "file": node.file,
                "person": node.person,
                "rows_per_person": node.rows_per_person,
            },
            "ledger": ledger,
        }

    @property
    def _epsilon(self) -> float | None:
        """The cost of the whole run; None where nothing bounds it."""
        epsilon = self.plan.total.epsilon
        return epsilon if isfinite(epsilon) else None

    @property
    def approver(self) -> str:
        """The public key that signs approvals."""
        return self.node.approver or self.identity.public

    @property
    def approval(self) -> Path:
        """The file of the approval."""
        return self.path.parent / (self.node.consent or f"{self.path.stem}.approval.json")

    def approved(self) -> Approval:
        """Return the signed approval of what the node would release; raise where there is none."""
        return approval_of(self.approval, self.terms, self.approver)

    def require_approval(self) -> None:
        """Refuse to go on without a signed approval of what the node would release."""
        try:
            found = self.approved()
        except (NotApproved, RecordError) as error:
            approve = shlex.join(["dynadp", "approve", str(self.path)])
            raise NotApproved(
                f"{error}. See what the run would release, and approve it: {approve}. Nothing was "
                "spent, and neighbours have heard nothing"
            ) from error
        LOG.info("approved by %s on %s, with key %s", found.by, found.at, found.approver)

    @property
    def _agreed_absence(self) -> dict[str, Any]:
        """Nothing where a run waits, so that runs from before keep their configuration."""
        agreed = self.file.network.absence
        return {"absence": asdict(agreed)} if agreed.goes_on else {}

    def record(self, created: str) -> RunRecord:
        """Return the record of the run: what all nodes agreed on."""
        config = self.config
        name, agreed = self.file.run.name, digest(config)
        sections = [{"name": node, **own} for node, own in config["nodes"].items()]
        return new_record(
            "network",
            self.file,
            self.schema,
            self.plan,
            run_id=f"{name} {agreed[:SHOWN]}",
            created=created,
            file={
                **{key: config[key] for key in ("run", "privacy", "training")},
                **self._agreed_absence,
                "nodes": sections,
            },
            config_hash=agreed,
        )

    def site(self) -> Site:
        """Return where it listens and whom it dials: of two nodes with endpoints the later one in
        the file dials.
        """
        me, neighbours = self.node.node, self.part.neighbours
        order = [section.name for section in self.file.nodes]
        endpoints = {section.name: section.endpoint for section in self.file.nodes}
        mine, earlier = endpoints[me], order[: order.index(me)]
        return Site(
            me,
            neighbours,
            self.path.parent / self.node.identity,
            () if mine is None else (self.node.listen or mine,),
            tuple(
                endpoint
                for j in neighbours
                if (endpoint := endpoints[j]) and (mine is None or j in earlier)
            ),
            self.file.network.relay,
            revoked=lambda: self.identity.revoked.names,
        )

    def _require_members(self, *, begun: bool) -> None:
        """Refuse a run that would wait for a node that is out."""
        lost = [one.name for one in self.file.nodes if one.name in self.identity.revoked.names]
        if lost and not (begun and self.absence.goes_on):
            raise ConfigError(
                f"the authority revoked {', '.join(lost)}, which {self.node.run} names. Take it "
                "out of the run file, for a run with another name"
                + ("; this one is over: dynadp ledger close ends it" if begun else "")
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
        if self.node.consent is not None:
            self.require_approval()
        me, part, record, stop = self.node.node, self.part, self.record(now()), stop or Event()
        seeded, agreed = record.simulation, record.config_hash
        LOG.info(
            "%s starts its part in %s %r: %d rounds, epsilon = %s at delta = %g in total",
            me,
            "SIMULATION that protects nobody" if seeded else "private run",
            record.name,
            part.rounds,
            upper_bound(self.plan.total.epsilon),
            self.plan.delta,
        )
        behind: Sequence[str] = ()
        with ExitStack() as stack:
            folder = self._claim(stack, record)
            keys = {section.name: public_key(str(section.key)) for section in self.file.nodes}
            rules = part.rules(run_id(record.name), bytes.fromhex(agreed), keys)
            office = folder.path / f"letters-{agreed[:12]}.sqlite"
            begun = (folder.path / "run.json").exists()
            lost = rules.ballots is not None and begun and not office.exists()
            post = Inbox(office, rules, self.identity.key)
            stack.callback(post.close)
            post.given_up = given_up(post)
            outbox = self._outbox(stack, record.run_id, who)

            def known(n: int) -> bytes | None:
                sent = outbox.sent(n)
                return np.asarray(sent[me], "<f8").tobytes() if sent else None

            private = None if self.node.ledger is None else known
            greetings = Greetings(post, self.config, private)
            standing = self._standing(outbox, greetings, folder.path)
            own = [replace(e, seeded=seeded) for e in self.plan.events if e.node == me]
            finished = (folder.path / "model.json").exists()
            lease: Lease | None = None
            if isinstance(outbox, LedgerJournal) and own and not (finished or outbox.over):
                life = Life.begin(stack, outbox.life_file(me), me)
                lease = Lease(me, life, part.neighbours, part.absence.goes_on)
            if not finished:
                self._require_members(begun=begun)
            site = replace(self.site(), largest=greetings.largest + ENVELOPE)
            links = Links(
                site,
                post,
                greetings,
                part.absence.patience,
                stop,
                lease,
                goes_on=part.absence.goes_on and bool(part.neighbours),
                edges=part.edges_may_end,
                agreed=begun,
            )
            if standing.ledger is not None:
                standing.ledger.wait_without_end(LedgerWait(links))
            status = stack.enter_context(StatusWriter(folder.path, links, self._facts(record)))
            if self.node.health is not None:  # a server, which takes a while to import
                from dynadp.runs.health import NodeHealth, serving_health

                stack.enter_context(serving_health(self.node.health, NodeHealth(status)))

            def note(entry: RoundProgress) -> None:
                status.round = entry.number
                folder.note(entry, [me])
                on_round(entry)
                checkpoint("noted")

            try:
                if not finished:
                    require_not_left(post, outbox, lost=lost and not own)  # who sends finds out
                    rehearse(outbox, self.rows, own)
                status.state = "agreeing"
                stack.enter_context(links)
                # it stays for those that are not done yet
                if finished:
                    status.round = part.rounds
                else:
                    links.agree(begun=post.last_decision() is not None)
                    standing.check()
                    checkpoint("agreed")
                    status.state = "running"
                    reserve(outbox, [self.rows], own)
                    if self.ledger is not None:
                        keep_terms(self.ledger, record.run_id, self.terms, now())
                    checkpoint("reserved")
                    with status.writing:  # its half-written file would be a stranger there
                        self._begin(folder)
                    outcome = links.run(
                        node_rounds(
                            part,
                            self.rows,
                            post,
                            links.publish,
                            outbox,
                            HeldDraws(draws or entropy_for(record.seed), links.hold),
                            on_round=note,
                            on_again=folder.restart,
                            checkpoint=checkpoint,
                        )
                    )
                    model = with_threshold(
                        Model.of(
                            outcome.vector,
                            outcome.schema,
                            self.plan,
                            seeded=seeded,
                            members=outcome.members,
                            spread=outcome.spread,
                            histogram=outcome.histogram,
                        ),
                        self.file.run.wanted,
                    )
                    folder.finish(model)
                    if words := without_probabilities(model, self.file.run.wanted):
                        LOG.warning("%s", words)
                    if outcome.members:
                        LOG.warning(
                            "the model is of %s, who were there in the end; nodes that ended with "
                            "other sets hold other models",
                            ", ".join(outcome.members),
                        )
                    checkpoint("finished")
                    links.leave(finished=True)
                standing.show()
                status.state = "finished"
                behind = links.part_ways()
                status.state = "parted"
            except Stopped:
                status.state = "stopped"
            except DynadpError as error:
                status.state = f"failed: {type(error).__name__}"
                raise
        if behind:
            LOG.warning(
                "finished; %s did not say that they are too: start this node again if they need it",
                ", ".join(behind),
            )
        return NodeEnd(
            run=record.name,
            node=me,
            state="stopped" if status.state == "stopped" else "finished",
            rounds=status.round,
            simulation=seeded,
            epsilon=self.plan.total.epsilon,
            delta=self.plan.delta,
            folder=folder.path,
            unfinished_neighbours=tuple(behind),
        )

    def _claim(self, stack: ExitStack, record: RunRecord) -> RunFolder:
        """Return the run folder, locked, without what a killed process left half written."""
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "node.lock").touch()
        lock(stack, folder, "node.lock")
        for pattern in _LEFT:
            for partial in folder.glob(pattern):
                partial.unlink()
        begun = load_run(folder) if (folder / "run.json").exists() else record
        if begun.config_hash != record.config_hash:
            raise ConfigError(
                f"{folder} was begun with another run file or schema; go on with those, or "
                f"choose another folder (out)"
            )
        if self.identity.expires < datetime.now(UTC) + SOON:
            LOG.warning(
                "the certificate ends on %s; renew it: dynadp pki renew",
                f"{self.identity.expires:%Y-%m-%d}",
            )
        return RunFolder(folder, begun)

    def _outbox(self, stack: ExitStack, run: str, who: str) -> Journal:
        """Return where messages are entered before they leave."""
        me, ledger, dataset = self.node.node, self.ledger, self.file.data.description
        if ledger is None:
            return FolderJournal(self.folder / "messages", [me])
        return open_ledgers(
            stack,
            {me: ledger},
            run,
            anchor=None if self.node.anchor is None else self.path.parent / self.node.anchor,
            dataset=dataset,
            who=who,
            resume=True,
        )

    def _standing(self, outbox: Journal, greetings: Greetings, folder: Path) -> Standing:
        """Return what is shown and compared of the node's ledger."""
        ledger = outbox.ledgers[self.node.node] if isinstance(outbox, LedgerJournal) else None
        keys = {section.name: str(section.key) for section in self.file.nodes}
        own = self.identity.key.public_key()
        return Standing(ledger, greetings, folder, keys, own, self.node.other_ledgers)

    def _begin(self, folder: RunFolder) -> None:
        """Make the record where the run is new; all rounds are noted again."""
        if not (folder.path / "run.json").exists():
            RunFolder.create(folder.path, folder.record, beside=_BESIDE)
        folder.restart()

    def _facts(self, record: RunRecord) -> dict[str, Any]:
        """Return the part of status.json that does not change."""
        return {
            "run": record.name,
            "config": record.config_hash[:SHOWN],
            "node": self.node.node,
            "rounds": self.plan.rounds,
            "epsilon": self._epsilon,
            "delta": self.plan.delta,
            "software": version("dynadp"),
            "certificate_ends": self.identity.expires.isoformat(),
            "ledger": None if self.ledger is None else str(self.ledger.resolve()),
        }


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
