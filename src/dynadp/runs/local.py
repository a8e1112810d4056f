"""A run file, carried out: check everything, say what it would spend, train, and go on after an
interruption.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from dynadp._intervals import wilson
from dynadp.consensus import Acceleration, Topology
from dynadp.consensus.progress import RoundProgress
from dynadp.data import Schema, count, mistakes, source, split_tables, validate
from dynadp.engines import FolderJournal, LedgerJournal, NodeResult, now, simulate
from dynadp.errors import CellError, ConfigError, DataError, DynadpError, RecordError
from dynadp.mechanisms import entropy_for, mechanism_from
from dynadp.planning import Plan, recorded
from dynadp.planning.plans import default_eta
from dynadp.privacy import Event, Ledger, Total, by_node, up, worst_node
from dynadp.problem import local_shard
from dynadp.runs.folder import Model, RunFolder, load_run
from dynadp.runs.preparation import MistakeList, check_ledger, open_columns, plan_from_file
from dynadp.runs.run_file import RunFile, load_run_file, load_schema
from dynadp.runs.training import train

# in a plan: from its other numbers, or from the run file
_FOLLOWS = ("centrings", "reasons", "total", "delta", "epsilon")
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
    tables
        Where each node's rows are.
    counts
        B_p of each node: public.
    """

    path: Path
    file: RunFile
    schema: Schema = field(repr=False)
    topology: Topology = field(repr=False)
    tables: Mapping[str, Any] = field(repr=False)
    counts: Mapping[str, int]

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
        declared = {node.name: node.rows for node in file.nodes}
        unread = not spending and all(declared.values())
        tables = (
            (attempt(lambda: _tables(file, path.parent, schema, problems)) or {})
            if schema and not unread
            else {}
        )
        counts = {node: attempt(partial(count, schema, rows)) for node, rows in tables.items()}
        if unread:
            counts |= declared
        for node, rows in counts.items():
            if rows == 0:
                problems.append(f"node {node} has no rows; every node needs at least one")
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
        return cls(path, file, schema, topology, tables, counts)

    def plan(self, begun: Path | None = None) -> Plan | None:
        """What the run will do and cost; None where nothing is protected. ``begun`` is the folder
        of a run that goes on.
        """
        counts, file = [self.counts[p] for p in self.topology.nodes], self.file
        said = (load_run(begun)["config"].get("plan") or {}) if begun else {}
        if said and "weights" not in said:  # version 0.1.0 knew no others
            file = file.model_copy(
                update={"training": file.training.model_copy(update={"weights": "equal"})}
            )
        planned = plan_from_file(file, self.schema, self.topology, counts)
        if planned is None or begun is None:
            return planned
        return recorded(planned, said)

    def check(self) -> dict[str, Any]:
        """What the run would spend, and whether the ledgers would let it; reads all rows and
        refuses what `run` would.
        """
        self._validate()
        planned = self.plan()
        nodes: dict[str, Any] = {p: {"rows": self.counts[p]} for p in self.topology.nodes}
        seeded = self.file.run.seed is not None
        result: dict[str, Any] = {
            "version": 1,
            "run": self.file.run.name,
            "simulation": seeded,
            "nodes": nodes,
        }
        result |= {"topology": repr(self.topology), "columns": self.schema.dimension}
        if planned is None:
            return result | {"protected": False, "plan": None}
        delta = self.file.privacy.delta or 0.0
        for node, found in by_node(planned.events, delta).items():
            nodes[node]["epsilon"] = found.epsilon
        for section in self.file.nodes:
            if section.ledger is not None:
                own = [event for event in planned.events if event.node == section.name]
                with Ledger.open(self.path.parent / section.ledger, read_only=True) as ledger:
                    cap, before, advice = ledger.cap, ledger.counted(), ledger.advice()
                basis = cap.admits(before, own) if cap else None
                nodes[section.name]["ledger"] = {
                    "cap": None if cap is None else cap.epsilon,
                    "admitted": basis,
                }
                if basis is None:
                    nodes[section.name]["ledger"]["advice"] = advice
        return result | {
            "protected": self.file.run.seed is None,
            "delta": delta,
            "plan": planned.to_json(),
        }

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        who: str,
        created: str,
        on_round: Callable[[RoundProgress], None] | None = None,
    ) -> dict[str, Any]:
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

            def note(progress: RoundProgress) -> None:
                folder.append(_lines(progress, self.topology.nodes, planned))
                if on_round:
                    on_round(progress)

            if planned is None:
                return self._plain(folder, note)
            outbox = journal or FolderJournal(folder.path / "messages", self.topology.nodes)
            trained = train(
                self.schema,
                self.tables,
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

    def _plain(self, folder: RunFolder, note: Callable[[RoundProgress], None]) -> dict[str, Any]:
        """Algorithm 1: exact vectors are sent."""
        plan = self.plain_plan()
        end = simulate(
            [local_shard(self.schema, self.tables[p], p) for p in self.topology.nodes],
            self.topology,
            plan,
            acceleration=Acceleration(gap=PLAIN_GAP),
            on_round=note,
        )
        statement = {
            "protected": False,
            "statement": "Algorithm 1 sends exact vectors: nothing is protected.",
        }
        model = Model.of(
            end.models(plan.output)[0, 0],
            self.schema,
            plan.settings.loss.describe(),
            "none",
            statement,
        )
        folder.finish(model)
        return self._result(folder, model, len(end.rounds))

    def plain_plan(self) -> Plan:
        """What Algorithm 1 does where nothing is protected."""
        training = self.file.training
        made = Plan.of(
            loss=training.loss.made() if training.loss else None,
            regularizer=training.regularizer.made() if training.regularizer else None,
            C=training.C,
            weights=training.weights,
            rho=training.rho,
            eta=training.eta,
            rounds=training.rounds or PLAIN_ROUNDS,
            output=self.file.run.output,
        )
        if made.settings.eta is not None:
            return made
        s = made.settings
        eta = default_eta(self.topology, s.loss, s.C, s.rho)
        return replace(made, settings=replace(s, eta=eta))

    def _said(self, planned: Plan | None) -> dict[str, Any]:
        """Everything that is decided before the run."""
        return {
            "file": self.file.model_dump(mode="json", by_alias=True),
            "schema_hash": self.schema.digest(),
            "topology": self.topology.describe(),
            "counts": dict(self.counts),
            "plan": planned.to_json() if planned else None,
        }

    def _begun(self, stack: ExitStack, out: Path, planned: Plan | None) -> dict[str, Any]:
        """The config of the run that is to go on, held so that no other process goes on with it
        too.
        """
        config: dict[str, Any] = load_run(out)["config"]
        if _decided(self._said(planned)) != _decided(config):
            raise ConfigError(
                f"{out} was begun with another run file, schema, number of rows or version of "
                f"dynadp; resume with those, or "
                "begin anew"
            )
        if (out / "model.json").exists():
            raise ConfigError(f"{out} is finished: it has its model; there is nothing to resume")
        lock(stack, out)
        return config

    def _run_id(
        self, stack: ExitStack, out: Path, planned: Plan | None, created: str, resume: bool
    ) -> str:
        """The run's name in ledgers: of the one that is to go on, or a new one."""
        if resume:
            return str(self._begun(stack, out, planned)["run_id"])
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
            # told again, from the messages that were entered
            (out / "rounds.jsonl").write_bytes(b"")
            return RunFolder(out), journal
        config = {**self._said(planned), "run_id": run_id}
        try:
            folder = RunFolder.create(
                out, config, simulation=self.file.run.seed is not None, created=created
            )
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
            try:
                validate(self.schema, self.tables[p], p)
            except CellError as error:
                problems += mistakes(self.schema, self.tables[p], p) or [error]
            except DataError as error:
                problems.append(error)
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
    ) -> dict[str, Any]:
        """What a run came to; without a total nothing is protected."""
        evaluation, note = (
            None,
            "accuracy on private rows is private: declare public rows in [evaluation] to be told "
            "one",
        )
        if self.file.evaluation is not None:
            given = source(
                self.path.parent / self.file.evaluation.file, separator=self.file.data.separator
            )
            evaluation = evaluate(model, given)
            note = f"on {self.file.evaluation.file}, which the run file declares public"
        return {
            "version": 1,
            "run": self.file.run.name,
            "folder": str(folder.path),
            "simulation": self.file.run.seed is not None,
            "rounds": rounds,
            "evaluation": evaluation,
            "evaluation_note": note,
            "statement": model.privacy["statement"],
            "epsilon": total.epsilon if total else None,
            "delta": total.delta if total else None,
            "protected": bool(total and total.protected),
            "nodes": {node: found.epsilon for node, found in by_node(events, total.delta).items()}
            if total
            else {},
        }


def _decided(config: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same when a run goes on: fields that were added since have their defaults,
    words do not count.
    """
    said = config.get("plan") or {}
    plan = {"weights": "equal"} | {
        name: value for name, value in said.items() if name not in _FOLLOWS
    }
    with suppress(KeyError, TypeError, ValueError):  # under the names of this version
        plan["mechanism"] = mechanism_from(plan["mechanism"]).describe()
    decided = {name: config.get(name) for name in ("file", "schema_hash", "topology", "counts")} | {
        "plan": plan
    }
    with suppress(ValueError):  # what is no run file is the same as none
        decided["file"] = RunFile.model_validate(decided["file"])
    return decided


def with_statement(model: Model, total: Total) -> Model:
    """The model with its guarantee in one sentence."""
    word = (
        ""
        if total.protected
        else "SIMULATION: seeded noise protects nobody; with system entropy this would cost "
    )
    statement = f"{word}epsilon = {up(total.epsilon)} at delta = {total.delta:g} in total, for anybody with a row at one node: "
    return replace(model, privacy={**total.to_json(), "statement": statement + total.odds})


def finished_model(
    plan: Plan, outcome: NodeResult, seeded: bool
) -> tuple[Model, Total, list[Event]]:
    """The model of nodes that ran apart, its guarantee, and all that was released: the whole plan."""
    events = [replace(event, seeded=seeded) for event in plan.events]
    total = worst_node(events, plan.delta)
    said = plan.settings.loss.describe(), plan.mechanism.name, total.to_json()
    return with_statement(Model.of(outcome.vector, outcome.schema, *said), total), total, events


@dataclass(frozen=True)
class Tally:
    """How many rows were read, how many of them stay, and of these: answered right, and of the
    second label.
    """

    read: int
    stay: int
    right: int
    positive: int


def tally(model: Model, data: Any) -> Tally:
    """The answers of a model to rows; its numbers are private where the rows are.

    All but ``read`` depend on cells. A replaced row, also one that is dropped then or was before,
    moves ``right`` by at most 1.
    """
    read = stay = right = positive = 0
    given = source(data)
    names = (*(column.name for column in model.schema.columns), model.schema.label.name)
    for batch in given.batches(names):
        keep = model.schema.kept(batch)
        kept = {name: cells[keep] for name, cells in batch.items()}
        y = model.schema.labels(kept) > 0
        right += int(np.sum((model.decision(kept) > 0) == y))
        read, stay, positive = read + len(keep), stay + len(y), positive + int(y.sum())
    if not read:
        raise DataError(f"{given.name} has no rows to evaluate on")
    return Tally(read, stay, right, positive)


def evaluate(model: Model, data: Any) -> dict[str, Any]:
    """Share of right answers on public rows with its 95% interval, and what always guessing the
    commoner label would give.
    """
    found = tally(model, data)
    if not found.stay:
        raise DataError(
            f"{source(data).name} has no rows to evaluate on: the schema drops all of them"
        )
    rows, accuracy = found.stay, found.right / found.stay
    low, high = wilson(accuracy, rows)
    majority = max(found.positive, rows - found.positive) / rows
    return {"rows": rows, "accuracy": accuracy, "low": low, "high": high, "majority": majority}


def predictions(model: Model, data: Any, size: int = 65536) -> Any:
    """For each batch of rows: label values and scores; None where the schema drops a row."""
    for batch in source(data).batches(tuple(column.name for column in model.schema.columns), size):
        keep = model.schema.kept(batch)
        kept = {name: cells[keep] for name, cells in batch.items()}
        labels, scores = np.full(len(keep), None, dtype=object), np.full(len(keep), np.nan)
        if keep.any():
            scores[keep] = model.decision(kept)
            labels[keep] = np.where(scores[keep] > 0, model.classes[1], model.classes[0])
        yield labels, scores


def _tables(file: RunFile, folder: Path, schema: Schema, problems: MistakeList) -> dict[str, Any]:
    """Each node's rows, of those that have any; header and columns are checked, cells are not read
    yet.
    """
    names = [node.name for node in file.nodes]
    if file.data.file is not None:
        whole = source(folder / file.data.file, separator=file.data.separator)
        return dict(split_tables(whole, schema, str(file.data.node_column), names))
    found = {}
    for node in file.nodes:
        try:
            found[node.name] = open_columns(
                folder / str(node.file), file.data.separator, schema, file.data.memory
            )
        except DynadpError as error:
            problems.append(f"node {node.name}: {error}")
    files = [(folder / str(node.file)).resolve() for node in file.nodes]
    if len(set(files)) < len(files):
        problems.append(
            "nodes: two have the same file, so that every person in it would have "
            "rows at both; give each its own"
        )
    return found


def drops_rows(schema: Schema) -> bool:
    """Whether the number of rows that stay depends on cells."""
    return any(column.missing == "drop" for column in schema.columns)


def _rows_problems(file: RunFile, schema: Schema, counts: Mapping[str, int | None]) -> list[str]:
    """B_p is public: where dropping rows would read it off their cells, it has to be declared."""
    problems = []
    drops = drops_rows(schema)
    for node in file.nodes:
        if node.rows is not None and counts.get(node.name) not in (None, node.rows):
            problems.append(
                f"node {node.name}: rows = {node.rows} is declared, but another number of rows "
                f"stays; correct one of them"
            )
        elif (
            node.rows is None
            and drops
            and file.run.seed is None
            and file.privacy.mechanism != "none"
        ):
            problems.append(
                f"node {node.name}: the schema drops rows with missing cells, so their number "
                f"depends on cells: declare it, "
                "rows = N, as public, or let the schema put a value there"
            )
    return problems


def _lines(
    entry: RoundProgress, nodes: tuple[str, ...], planned: Plan | None
) -> list[dict[str, Any]]:
    alphas = planned.alphas if planned else (None,) * len(nodes)
    return [
        {
            "round": entry.number,
            "node": p,
            "alpha": a,
            "disagreement": float(apart),
            "change": float(change),
        }
        for p, a, apart, change in zip(
            nodes, alphas, entry.disagreement[:, 0], entry.change[:, 0], strict=True
        )
    ]


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
