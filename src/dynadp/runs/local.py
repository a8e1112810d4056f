"""A run file, carried out: check everything, say what it would spend, train, and go on after an
interruption.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

from dynadp.consensus import Acceleration, RoundProgress, Topology
from dynadp.data import NodeRows, Schema, count, source, split_tables
from dynadp.engines import FolderJournal, LedgerJournal, NodeResult, now, simulate
from dynadp.errors import ConfigError, DataError, DynadpError, RecordError
from dynadp.mechanisms import entropy_for
from dynadp.planning import Consortium, Plan, default_eta, recorded
from dynadp.privacy import Event, Ledger, Total, by_node, worst_node
from dynadp.runs.folder import RunFolder, load_run
from dynadp.runs.model import Model
from dynadp.runs.preparation import MistakeList, check_ledger, open_columns, plan_from_file
from dynadp.runs.record import SETTINGS, Kind, RunRecord, counted
from dynadp.runs.results import NodeCheck, RunCheck, RunResult
from dynadp.runs.run_file import NodeSection, RunFile, load_run_file, load_schema
from dynadp.runs.scoring import evaluate
from dynadp.runs.training import train

# what of a plan has to be the same when a run goes on: the rest follows from it, or is words
_DECIDED = ("mechanism", *SETTINGS, "rounds", "alphas", "centrings")
EXACT = {  # what a model of Algorithm 1 says of privacy
    "protected": False,
    "statement": "Algorithm 1 sends exact vectors: nothing is protected.",
}
PLAIN_ROUNDS, PLAIN_GAP = 2000, 1e-8  # of Algorithm 1: at most so many rounds, to a certified gap


@dataclass(frozen=True)
class LocalRun:
    """A checked run file with what it names.

    Attributes
    ----------
    path, file
        Where the run file is, and what it says.
    schema, topology
        As it names them.
    rows
        Each node's rows; of no node where none has to be read here.
    counts
        B_p of each node: public; of those nodes where it is known.
    """

    reads_rows: ClassVar[bool] = True  # in this process

    path: Path
    file: RunFile
    schema: Schema = field(repr=False)
    topology: Topology = field(repr=False)
    rows: Mapping[str, NodeRows] = field(repr=False)
    counts: Mapping[str, int]
    kind: ClassVar[Kind] = "one process"

    @classmethod
    def load(
        cls, path: str | Path, overrides: Mapping[str, Any] | None = None, *, spending: bool = True
    ) -> "LocalRun":
        """Read the run file and all that it names; every mistake is reported, together.

        Parameters
        ----------
        path, overrides
            The run file, and what is to be taken instead of what it says.
        spending
            False for what releases nothing: it needs no ledgers, and no rows where the run file
            declares their numbers.
        """
        path = Path(path)
        file = load_run_file(path, overrides)
        if file.networked:
            raise ConfigError(
                f"{path} is a network run, whose nodes run apart from each other: "
                f"start each with `dynadp node`"
            )
        problems = MistakeList()
        attempt = problems.attempt
        schema = attempt(lambda: load_schema(path.parent / file.data.schema_file))
        topology = attempt(lambda: file.graph(path.parent))
        counts = {node.name: node.rows for node in file.nodes if node.rows is not None}
        rows = dict[str, NodeRows]()
        if schema and (spending or len(counts) < len(file.nodes)):
            rows = attempt(lambda: cls._open_rows(file, path.parent, schema, problems)) or {}

        def counted(opened: NodeRows) -> int:
            return opened.survey.rows if spending else count(schema, opened.source)

        for name, opened in rows.items():
            counts[name] = attempt(partial(counted, opened))
            if counts[name] == 0:
                problems.append(f"node {name} has no rows; every node needs at least one")
        if schema:
            problems += _rows_problems(file, schema, counts)
        if schema and file.evaluation is not None:
            attempt(
                partial(
                    open_columns, path.parent / file.evaluation.file, file.data.separator, schema
                )
            )
        for node in file.nodes:
            if node.ledger is not None and spending:
                attempt(partial(check_ledger, path.parent / node.ledger, node.name))
        if problems:
            raise problems.refusal(path)
        return cls(path, file, schema, topology, rows, counts)

    @classmethod
    def _open_rows(
        cls, file: RunFile, folder: Path, schema: Schema, problems: MistakeList
    ) -> dict[str, NodeRows]:
        """Open each node's rows, of those that have any; header and columns are checked, cells are
        not read yet, except those of one file for all nodes.
        """
        opened: dict[str, Any] = {}
        if file.data.file is not None:
            if not cls.reads_rows:
                return {}
            whole = source(folder / file.data.file, separator=file.data.separator)
            names = [node.name for node in file.nodes]
            opened |= split_tables(whole, schema, str(file.data.node_column), names)
        else:
            for node in file.nodes:
                try:
                    opened[node.name] = open_columns(
                        folder / str(node.file), file.data.separator, schema, file.data.memory
                    )
                except DynadpError as error:
                    problems.append(f"node {node.name}: {error}")
            files = [(folder / str(node.file)).resolve() for node in file.nodes]
            if len(set(files)) < len(files):
                problems.append(
                    "nodes: two have the same file, so that every person in it would have rows at "
                    "both; give each its own"
                )
        if not cls.reads_rows:
            return {}
        return {name: NodeRows(schema, rows, name) for name, rows in opened.items()}

    def plan(self, begun: Path | None = None) -> Plan | None:
        """What the run will do and cost; None where nothing is protected. ``begun`` is the folder
        of a run that goes on.
        """
        counts, file = [self.counts[p] for p in self.topology.nodes], self.file
        record = load_run(begun) if begun else None
        if record and record.planned and not record.planned.lone_pull:  # 0.1.0: equal weights alone
            training = file.training.model_copy(update={"weights": "equal"})
            file = file.model_copy(update={"training": training})
        planned = plan_from_file(file, self.schema, self.topology, counts)
        if planned is None or record is None:
            return planned
        return recorded(planned, record.plan)

    def check(self) -> RunCheck:
        """Return what the run would spend, and whether the ledgers would admit it.

        Reads all rows, and refuses what :meth:`run` would.
        """
        self._validate()
        planned = self.plan()
        costs = by_node(planned.events, planned.delta) if planned else {}
        checks = {}
        for section in self.file.nodes:
            own = costs.get(section.name)
            checks[section.name] = NodeCheck(
                rows=self.counts[section.name],
                epsilon=None if own is None else own.epsilon,
                ledger=self._admitted(section, planned) if planned else None,
            )
        return RunCheck(
            run=self.file.run.name,
            simulation=self.file.run.seed is not None,
            nodes={p: checks[p] for p in self.topology.nodes},
            topology=repr(self.topology),
            columns=self.schema.dimension,
            plan=planned,
        )

    def _admitted(self, section: NodeSection, planned: Plan) -> dict[str, Any] | None:
        """Return whether the node's ledger would admit its part of the plan, where it has one."""
        if section.ledger is None:
            return None
        own = [event for event in planned.events if event.node == section.name]
        with Ledger.open(self.path.parent / section.ledger, read_only=True) as ledger:
            cap, before, advice = ledger.cap, ledger.counted(), ledger.state().advice()
        basis = cap.admits(before, own) if cap else None
        found = {"cap": None if cap is None else cap.epsilon, "admitted": basis}
        return found if basis is not None else {**found, "advice": advice}

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        who: str,
        created: str,
        on_round: Callable[[RoundProgress], None] | None = None,
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
        planned = self.plan(out if resume else None)
        with ExitStack() as stack:
            run_id = self._run_id(stack, out, planned, created, resume)
            folder, journal = self._reserved(
                stack, out, planned, run_id, who, created, resume, self._validate
            )

            def note(entry: RoundProgress) -> None:
                folder.note(entry)
                if on_round:
                    on_round(entry)

            if planned is None:
                return self._plain(folder, note)
            outbox = journal or FolderJournal(folder.path / "messages", self.topology.nodes)
            trained = train(
                self.schema,
                self.rows,
                self.topology,
                planned,
                draws=entropy_for(self.file.run.seed),
                journal=outbox,
                device=self.file.run.device,
                on_round=note,
            )
        model = with_statement(trained.model(), trained.total)
        folder.finish(model)
        return self._result(folder, model, len(trained.run.rounds), trained.total, trained.events)

    def plain_plan(self) -> Plan:
        """What Algorithm 1 does where nothing is protected."""
        training, counts = self.file.training, tuple(self.counts[p] for p in self.topology.nodes)
        made = Plan.of(
            loss=training.loss,
            regularizer=training.regularizer,
            C=training.C,
            weights=training.weights,
            rho=training.rho,
            eta=training.eta,
            rounds=training.rounds or PLAIN_ROUNDS,
            output=self.file.run.output,
        )
        s = made.settings
        if s.eta is None:
            eta = default_eta(self.topology, s.loss, s.C, s.rho)
            made = replace(made, settings=replace(s, eta=eta))
        return made.on(Consortium(self.topology, counts, self.schema.dimension))

    def _plain(self, folder: RunFolder, note: Callable[[RoundProgress], None]) -> RunResult:
        """Algorithm 1: exact vectors are sent."""
        plan = self.plain_plan()
        end = simulate(
            [self.rows[p].shard(self.schema) for p in self.topology.nodes],
            self.topology,
            plan,
            acceleration=Acceleration(gap=PLAIN_GAP),
            on_round=note,
        )
        vector, loss = end.models(plan.output)[0, 0], plan.settings.loss.describe()
        model = Model.of(vector, self.schema, loss, "none", EXACT)
        folder.finish(model)
        return self._result(folder, model, len(end.rounds))

    def _record(self, planned: Plan | None, run_id: str = "", created: str = "") -> RunRecord:
        """Everything that is decided before the run."""
        seed = self.file.run.seed
        return RunRecord.of(
            kind=self.kind,
            name=self.file.run.name,
            run_id=run_id,
            created=created,
            simulation=seed is not None,
            seed=seed,
            source=counted(self.file.data.description, self.counts),
            topology=self.topology,
            rows=dict(self.counts),
            schema=self.schema,
            file=self.file.model_dump(mode="json", by_alias=True),
            plan=(planned or self.plain_plan()).to_json(),
        )

    def _begun(self, stack: ExitStack, out: Path, planned: Plan | None) -> RunRecord:
        """The record of the run that is to go on, locked so that no other process goes on with it
        too.
        """
        record = load_run(out)
        if _decided(self._record(planned)) != _decided(record):
            raise ConfigError(
                f"{out} was begun with another run file, schema, number of rows or version of "
                f"dynadp; resume with those, or "
                "begin anew"
            )
        if (out / "model.json").exists():
            raise ConfigError(f"{out} is finished: it has its model; there is nothing to resume")
        lock(stack, out)
        return record

    def _run_id(
        self, stack: ExitStack, out: Path, planned: Plan | None, created: str, resume: bool
    ) -> str:
        """The run's name in ledgers: of the one that is to go on, or a new one."""
        if resume:
            return self._begun(stack, out, planned).run_id
        RunFolder.require_empty(out)
        return f"{self.file.run.name} {created} {token_hex(4)}"

    def _reserved(
        self,
        stack: ExitStack,
        out: Path,
        planned: Plan | None,
        run_id: str,
        who: str,
        created: str,
        resume: bool,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[RunFolder, LedgerJournal | None]:
        """The run folder, and the ledgers of a private run with the whole plan reserved: at all
        nodes or at none.

        Rows are validated when the ledgers are open, and before anything is reserved.
        """
        journal = None
        if planned and self.file.run.seed is None:
            journal = self._books(stack, run_id, who, resume)
            check()
            journal.reserve(planned.events)  # refused before a folder is made
        if resume:
            folder = RunFolder(out)
            folder.restart()
            return folder, journal
        try:
            folder = RunFolder.create(out, self._record(planned, run_id, created))
            lock(stack, out)
        except BaseException:
            if journal:
                journal.close("stopped")  # nothing was released, so all of it is given back
            raise
        return folder, journal

    def _validate(self) -> None:
        """Refuse rows that do not fit the schema: the first bad cell of each column, of all nodes
        together.
        """
        problems = list[DataError]()
        for p in self.topology.nodes:
            problems += self.rows[p].survey.mistakes
        if len(problems) > 1:
            raise DataError(
                "\n".join(
                    [
                        f"{self.path}: {len(problems)} problems",
                        *(f"  {problem}" for problem in problems),
                    ]
                )
            )
        if problems:
            raise problems[0]

    def _books(self, stack: ExitStack, run_id: str, who: str, resume: bool) -> LedgerJournal:
        paths = {node.name: self.path.parent / str(node.ledger) for node in self.file.nodes}
        ledgers = {p: stack.enter_context(Ledger.open(paths[p])) for p in self.topology.nodes}
        return LedgerJournal(
            ledgers, run_id, dataset=self.file.data.description, who=who, clock=now, resume=resume
        )

    def _result(
        self,
        folder: RunFolder,
        model: Model,
        rounds: int,
        total: Total | None = None,
        events: Sequence[Event] = (),
    ) -> RunResult:
        """What a run came to; without a total nothing is protected."""
        evaluation, public = None, self.file.evaluation
        note = "accuracy on private rows is private: declare public rows in [evaluation] to see one"
        if public is not None:
            given = source(self.path.parent / public.file, separator=self.file.data.separator)
            evaluation = evaluate(model, given)
            note = f"on {public.file}, which the run file declares public"
        spent = by_node(events, total.delta) if total else {}
        return RunResult(
            run=self.file.run.name,
            folder=folder.path,
            simulation=self.file.run.seed is not None,
            rounds=rounds,
            evaluation=evaluation,
            evaluation_note=note,
            statement=model.privacy["statement"],
            epsilon=total.epsilon if total else None,
            delta=total.delta if total else None,
            protected=bool(total and total.protected),
            nodes={node: own.epsilon for node, own in spent.items()},
        )


def _decided(record: RunRecord) -> dict[str, Any]:
    """What has to be the same when a run goes on: words and what follows from other numbers do not
    count, and sections of the run file that were added since have their defaults.
    """
    file: Any = record.file
    with suppress(ValueError):  # what is no run file is the same as none
        file = RunFile.model_validate(file)
    plan = {name: record.plan.get(name) for name in _DECIDED} if record.planned else {}
    return {
        "file": file,
        "schema_hash": record.schema_hash,
        "topology": record.graph,
        "rows": record.rows,
        "plan": plan,
    }


def with_statement(model: Model, total: Total) -> Model:
    """The model with its guarantee in one sentence."""
    return replace(model, privacy={**total.to_json(), "statement": total.guarantee})


def finished_model(
    plan: Plan, outcome: NodeResult, seeded: bool
) -> tuple[Model, Total, list[Event]]:
    """The model of nodes that ran apart, its guarantee, and the whole plan, which was released."""
    events = [replace(event, seeded=seeded) for event in plan.events]
    total = worst_node(events, plan.delta)
    said = plan.settings.loss.describe(), plan.mechanism.name, total.to_json()
    return with_statement(Model.of(outcome.vector, outcome.schema, *said), total), total, events


def _rows_problems(file: RunFile, schema: Schema, counts: Mapping[str, int | None]) -> list[str]:
    """B_p is public: where dropping rows would read it off their cells, it has to be declared."""
    problems = []
    for node in file.nodes:
        if node.rows is not None and counts.get(node.name) not in (None, node.rows):
            problems.append(
                f"node {node.name}: rows = {node.rows} is declared, but another number of rows "
                f"stays; correct one of them"
            )
        elif (
            node.rows is None
            and schema.drops_rows
            and file.run.seed is None
            and file.privacy.mechanism != "none"
        ):
            problems.append(
                f"node {node.name}: the schema drops rows with missing cells, so their number "
                f"depends on cells: declare it, "
                "rows = N, as public, or let the schema put a value there"
            )
    return problems


def lock(stack: ExitStack, folder: Path, name: str = "run.json") -> None:
    """Lock a run folder by one of its files for as long as the stack lives; one process at a time
    works on a run.
    """
    handle = stack.enter_context(open(folder / name, "rb"))  # noqa: SIM115 (the stack closes it)
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RecordError(
            f"another process is at work on the run in {folder}; wait for it, or end it"
        ) from error
