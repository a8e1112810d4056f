"""A run file, carried out in one process: checked, planned, trained, and resumed after an
interruption.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Self

from dynadp._arrays import Array
from dynadp.consensus import Acceleration, RoundProgress, Spread, Topology
from dynadp.data import NodeRows, Schema, Target, count, source, split_tables
from dynadp.engines import FolderJournal, LedgerJournal, simulate
from dynadp.errors import ConfigError, DynadpError
from dynadp.mechanisms import NoisyHistogram, entropy_for
from dynadp.planning import Plan, recorded, spread_of
from dynadp.privacy import Event, Ledger, LedgerSummary, by_node
from dynadp.runs.folder import RunFolder, load_run
from dynadp.runs.headroom import LEAST, LargestTotal, basis_of, find_largest
from dynadp.runs.model import Model
from dynadp.runs.preparation import (
    MistakeList,
    check_count,
    check_ledger,
    check_rows,
    lock,
    new_record,
    open_columns,
    open_ledgers,
    plan_from_file,
    reserve,
)
from dynadp.runs.record import SETTINGS, Kind, RunRecord
from dynadp.runs.results import NodeCheck, RunCheck, RunResult
from dynadp.runs.run_file import RunFile, load_run_file, load_schema
from dynadp.runs.scoring import evaluate, evaluate_target, released_measures
from dynadp.runs.thresholds import with_threshold, without_probabilities
from dynadp.runs.training import train

# these parts of a plan must be the same when a run goes on: the rest follows from them, or is words
_DECIDED = ("mechanism", *SETTINGS, "rounds", "alphas", "centrings")
_PLAIN_GAP = 1e-8  # certified, of Algorithm 1


@dataclass(frozen=True)
class LocalRun:
    """A checked run file with what it names.

    Attributes
    ----------
    path, file
        Where the run file is, and its content.
    schema, topology
        As it names them.
    rows
        Each node's rows; empty where none have to be read.
    counts
        B_p of each node where it is known: public.
    """

    kind: ClassVar[Kind] = "one process"
    reads_rows: ClassVar[bool] = True  # in this process

    path: Path
    file: RunFile
    schema: Schema = field(repr=False)
    topology: Topology = field(repr=False)
    rows: Mapping[str, NodeRows] = field(repr=False)
    counts: Mapping[str, int]

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        spending: bool = True,
        headers: bool = False,
        **more: Any,
    ) -> Self:
        """Read the run file and all that it names; all mistakes are reported together.

        Parameters
        ----------
        path, overrides
            The run file, and values that replace those in it.
        spending
            False where nothing will be released: then no ledgers are needed, and no rows where the
            run file declares their numbers.
        headers
            True where of files of rows the first line alone may be read: then the run file declares
            all numbers of rows.
        **more
            Further attributes of the run.
        """
        path = Path(path)
        file, home = load_run_file(path, overrides), path.parent
        cls.require_runnable(path, file)
        mistakes = MistakeList()
        attempt = mistakes.attempt
        schema = attempt(lambda: file.declared(load_schema(home / file.data.schema_file)))
        topology = attempt(lambda: file.graph(home))
        counts = {node.name: node.rows for node in file.nodes if node.rows is not None}
        rows = dict[str, NodeRows]()
        if schema and headers:
            mistakes += _header_mistakes(file, home, schema)
        elif schema and (spending or len(counts) < len(file.nodes)):
            rows = attempt(lambda: _open_rows(file, home, schema, mistakes)) or {}
        if cls.reads_rows and schema and not schema.hides_counts:
            counts |= {name: attempt(partial(_count, own, spending)) for name, own in rows.items()}
        if schema:
            for node in file.nodes:
                attempt(partial(check_count, node, schema, file, counts.get(node.name)))
            if file.evaluation:
                public = home / file.evaluation.file
                attempt(partial(open_columns, public, file.data.separator, schema.limited()))
        for node in file.nodes:
            if node.ledger is not None and spending:
                attempt(partial(check_ledger, home / node.ledger, node.name))
        if mistakes:
            raise mistakes.refusal(path)
        return cls(path, file, schema, topology, rows, counts, **more)

    @classmethod
    def require_runnable(cls, path: Path, file: RunFile) -> None:
        """Refuse a run file that is for another engine."""
        if file.networked:
            raise ConfigError(
                f"{path} is a network run, whose nodes run apart from each other: check and start "
                "each with its own file (`dynadp check NODE.toml`, `dynadp node NODE.toml`)"
            )

    @property
    def ledgers(self) -> dict[str, Path]:
        """The nodes' ledgers; none in a SIMULATION."""
        home = self.path.parent
        return {node.name: home / node.ledger for node in self.file.nodes if node.ledger}

    def plan(self, begun: Path | None = None) -> Plan:
        """Return what the run will do and cost; ``begun`` is the folder of a run that goes on."""
        counts, file = [self.counts[p] for p in self.topology.nodes], self.file
        record = load_run(begun) if begun else None
        if record and file.privacy.mechanism is None and file.training.algorithm is None:
            # what the planner chose then, whatever it would choose now
            begun_with = {"mechanism": record.plan["mechanism"]}
            privacy = file.privacy.model_copy(update=begun_with)
            file = file.model_copy(update={"privacy": privacy})
        if record and record.planned and not record.planned.lone_pull:  # 0.1.0: equal weights alone
            training = file.training.model_copy(update={"weights": "equal"})
            file = file.model_copy(update={"training": training})
        made = plan_from_file(file, self.schema, self.topology, counts)
        return recorded(made, record.plan) if record else made

    def check(self, *, largest: bool = False) -> RunCheck:
        """Return what the run would spend, and whether the ledgers would admit it.

        Reads all rows, and refuses what :meth:`run` would.

        Parameters
        ----------
        largest
            Whether to look for the largest total that all ledgers would admit, too.
        """
        if largest:
            self._require_total()
        check_rows(self.rows.values(), str(self.path))
        plan = self.plan()
        costs = by_node(plan.events, plan.delta)
        ledgers = self._summaries() if costs else {}
        checks = {
            node: NodeCheck(
                rows=self.counts[node],
                epsilon=(costs[node].epsilon if node in costs else 0.0) if costs else None,
                ledger=_admitted(ledgers[node], plan) if node in ledgers else None,
            )
            for node in self.topology.nodes
        }
        return RunCheck(
            run=self.file.run.name,
            simulation=self.file.run.seed is not None,
            nodes=checks,
            topology=str(self.topology),
            columns=self.schema.dimension,
            plan=plan if plan.protection else None,
            largest=self._largest(plan, ledgers) if largest else None,
            notes=_idle(self.schema, plan),
        )

    def _summaries(self) -> dict[str, LedgerSummary]:
        """Return what stands in the nodes' ledgers."""
        found = {}
        for node, path in self.ledgers.items():
            with Ledger.open(path, read_only=True) as ledger:
                found[node] = LedgerSummary.of(ledger)
        return found

    def _require_total(self) -> None:
        """Refuse to look for the largest total of a run that has none, or enters no ledger."""
        privacy, unit = self.file.privacy, "mu" if self.file.privacy.alpha is None else "alpha"
        problem = ""
        if not privacy.protected:
            problem = "mechanism is none, so nothing is spent; name a mechanism"
        elif privacy.by_round is not None:
            problem = (
                f"it gives {unit} for each round, and there is no total to change; give epsilon "
                f"instead of {unit}, and leave the rest to the planner"
            )
        elif self.file.run.seed is not None:
            problem = "a SIMULATION enters no ledger, so none limits it; leave out the seed"
        elif all(node.epsilon is not None for node in self.file.nodes):
            problem = (
                "every node has an epsilon of its own, so --epsilon changes nothing; give one in "
                "[privacy] instead"
            )
        if problem:
            raise ConfigError(f"{self.path} has no largest epsilon: {problem}")

    def _largest(self, plan: Plan, ledgers: Mapping[str, LedgerSummary]) -> LargestTotal:
        """Return the largest total that all ledgers would admit, by planning this run again."""
        privacy = self.file.privacy

        def planned(epsilon: float) -> list[Event]:
            if epsilon == privacy.epsilon:
                return list(plan.events)
            update = {"privacy": privacy.model_copy(update={"epsilon": epsilon})}
            return list(replace(self, file=self.file.model_copy(update=update)).plan().events)

        own = {node.name for node in self.file.nodes if node.epsilon is not None}
        return find_largest(ledgers, planned, privacy.epsilon or LEAST, own)

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        who: str,
        created: str,
        on_round: Callable[[RoundProgress], None] = lambda entry: None,
    ) -> RunResult:
        """Train, or go on; leaves a run folder with the model.

        Parameters
        ----------
        out
            The run folder; must not hold anything, unless the run goes on.
        resume
            Whether to go on with the run that is there.
        who, created
            For ledgers and record: who starts it, and when.
        on_round
            Called after every round.
        """
        plan = self.plan(out if resume else None)
        with ExitStack() as stack:
            record = self._claim(stack, out, plan, created, resume)
            folder, ledgers = self._begin(stack, out, plan, record, who, resume)

            def note(entry: RoundProgress) -> None:
                folder.note(entry)
                on_round(entry)

            if plan.protection is None:
                schema = self.schema
                run = simulate(
                    [self.rows[p].shard(schema) for p in self.topology.nodes],
                    self.topology,
                    plan,
                    acceleration=Acceleration(gap=_PLAIN_GAP),
                    on_round=note,
                )
            else:
                senders = [self.topology.nodes[p] for p in plan.senders]
                trained = train(
                    self.schema,
                    self.rows,
                    self.topology,
                    plan,
                    draws=entropy_for(self.file.run.seed),
                    journal=ledgers or FolderJournal(out / "messages", senders),
                    device=self.file.run.device,
                    on_round=note,
                )
                schema, run = trained.schema, trained.run
        vector, histogram = run.models(plan.output)[0, 0], next(iter(run.histograms), None)
        spread = spread_of(plan, run.path)
        return self._finish(folder, plan, schema, vector, len(run.rounds), spread, histogram)

    def _claim(
        self, stack: ExitStack, out: Path, plan: Plan, created: str, resume: bool
    ) -> RunRecord:
        """Return a new run's record, or that of the run that is to go on, locked so that no other
        process goes on with it too.
        """
        record = new_record(
            self.kind,
            self.file,
            self.schema,
            plan,
            run_id=f"{self.file.run.name} {created} {token_hex(4)}",
            created=created,
            file=self.file.model_dump(mode="json", by_alias=True),
        )
        if not resume:
            RunFolder.require_empty(out)
            return record
        begun = load_run(out)
        if _decided(record) != _decided(begun):
            raise ConfigError(
                f"{out} was begun with another run file, schema, number of rows or version of "
                f"dynadp; resume with those, or "
                "begin anew"
            )
        if (out / "model.json").exists():
            raise ConfigError(f"{out} is finished: it has its model; there is nothing to resume")
        lock(stack, out)
        return begun

    def _begin(
        self, stack: ExitStack, out: Path, plan: Plan, record: RunRecord, who: str, resume: bool
    ) -> tuple[RunFolder, LedgerJournal | None]:
        """Return the run folder, and the ledgers of a private run with the whole plan reserved: at
        all nodes or at none.
        """
        journal = None
        if plan.protection and self.file.run.seed is None:
            journal = open_ledgers(
                stack,
                self.ledgers,
                record.run_id,
                dataset=self.file.data.description,
                who=who,
                resume=resume,
            )
            here = list(self.rows.values()) if self.reads_rows else []
            reserve(journal, here, plan.events, str(self.path))  # refused before a folder is made
        if resume:
            folder = RunFolder(out, record)
            folder.restart()
            return folder, journal
        try:
            folder = RunFolder.create(out, record)
            lock(stack, out)
        except BaseException:
            if journal:
                journal.close("stopped")  # nothing was released, so all of it is given back
            raise
        return folder, journal

    def _finish(
        self,
        folder: RunFolder,
        plan: Plan,
        schema: Schema,
        vector: Array,
        rounds: int,
        spread: Spread | None,
        histogram: NoisyHistogram | None,
    ) -> RunResult:
        """Write the model, and return what the run came to."""
        seeded, public = self.file.run.seed is not None, self.file.evaluation
        model = Model.of(vector, schema, plan, seeded=seeded, spread=spread, histogram=histogram)
        model = with_threshold(model, self.file.run.wanted)
        spent = by_node(plan.events, plan.delta)
        folder.finish(model)
        evaluation = None
        note = (
            "on private rows it would itself be a release; declare public rows in [evaluation] to "
            "see one"
        )
        if histogram is not None and public is None:
            evaluation, note = released_measures(model)
        if public is not None:
            given = source(self.path.parent / public.file, separator=self.file.data.separator)
            measure = evaluate if model.target is None else evaluate_target
            evaluation = measure(model, given).to_json()
            note = f"on {public.file}, which the run file declares public"
        return RunResult(
            run=self.file.run.name,
            folder=folder.path,
            simulation=seeded,
            rounds=rounds,
            evaluation=evaluation,
            evaluation_note=note,
            notes=tuple(filter(None, [without_probabilities(model, self.file.run.wanted)])),
            statement=model.privacy["statement"],
            epsilon=model.privacy.get("epsilon"),
            delta=model.privacy.get("delta"),
            protected=model.privacy["protected"],
            nodes={p: spent[p].epsilon if p in spent else 0.0 for p in self.topology.nodes}
            if spent
            else {},
        )


def _idle(schema: Schema, plan: Plan) -> tuple[str, ...]:
    """Say what the schema declares that has no say in the plan."""
    if schema.norm == 1 or not (plan.centrings or schema.scaling == "unit"):
        return ()
    if isinstance(schema.label, Target) and schema.scaling != "unit":
        return ()  # rows are not lengthened, and a norm above the usual length counts
    why = "rows are centred privately and then" if plan.centrings else "rows are"
    return (f"norm = {schema.norm:g} of the schema has no say: {why} scaled to norm 1",)


def _admitted(ledger: LedgerSummary, plan: Plan) -> dict[str, Any]:
    """Return whether a node's ledger would admit its part of the plan."""
    cap, basis = ledger.cap, basis_of(ledger, plan.events)
    found = {"cap": cap.epsilon if cap else None, "admitted": basis}
    return found if basis is not None else {**found, "advice": ledger.advice()}


def _count(rows: NodeRows, spending: bool) -> int:
    """Return B_p: from the survey, or from one pass that validates nothing."""
    return rows.survey.rows if spending else count(rows.schema, rows.source)


def _open_rows(
    file: RunFile, home: Path, schema: Schema, mistakes: MistakeList
) -> dict[str, NodeRows]:
    """Open each node's rows.

    Header and columns are checked. Cells are not read yet, except those of one file for all nodes.
    """
    data, opened = file.data, dict[str, Any]()
    if data.file is not None:
        whole = source(home / data.file, separator=data.separator)
        names = [node.name for node in file.nodes]
        opened |= split_tables(whole, schema, str(data.node_column), names)
    else:
        files = {node.name: home / str(node.file) for node in file.nodes}
        for name, path in files.items():
            try:
                opened[name] = open_columns(path, data.separator, schema, data.memory)
            except DynadpError as error:
                mistakes.append(f"node {name}: {error}")
        if len({path.resolve() for path in files.values()}) < len(files):
            mistakes.append(
                "nodes: two have the same file, so that every person in it would have rows at "
                "both; give each its own"
            )
    declared = {node.name: node.rows for node in file.nodes if schema.hides_counts}
    return {p: NodeRows(schema, rows, p, declared=declared.get(p)) for p, rows in opened.items()}


def _header_mistakes(file: RunFile, home: Path, schema: Schema) -> MistakeList:
    """Return what is wrong as far as first lines show it."""
    mistakes, given = MistakeList(), [file.data.file, *(node.file for node in file.nodes)]
    for path in filter(None, given):
        mistakes.attempt(partial(open_columns, home / path, file.data.separator, schema))
    if missing := [node.name for node in file.nodes if node.rows is None]:
        mistakes.append(
            f"nodes {', '.join(missing)}: rows = N is not declared, so no plan can be made without "
            "counting rows; declare it, or check with the rows"
        )
    return mistakes


def _decided(record: RunRecord) -> dict[str, Any]:
    """Return what has to be the same when a run goes on.

    Words and what follows from other numbers do not count, and sections of the run file that were
    added since have their defaults.
    """
    file: Any = record.file
    with suppress(ValueError):  # what is no run file is the same as none
        file = RunFile.model_validate(file)
        privacy = file.privacy.model_copy(update={"mechanism": None})  # the plan has it
        training = file.training.model_copy(update={"algorithm": None})
        file = file.model_copy(update={"privacy": privacy, "training": training})
    plan = {name: record.plan.get(name) for name in _DECIDED} if record.planned else {}
    return {
        "file": file,
        "schema_hash": record.schema_hash,
        "topology": record.graph,
        "rows": record.rows,
        "plan": plan,
    }
