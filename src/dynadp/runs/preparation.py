"""What every run does before round 1: open what its files name, check it, plan, reserve, begin.

Mistakes are reported together. Rows are read when they are surveyed, not when they are opened.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynadp.consensus import Journal, Topology
from dynadp.data import NodeRows, Schema, Source, require_declared, source
from dynadp.engines import LedgerJournal
from dynadp.errors import ConfigError, DataError, DynadpError, LedgerDamaged, RecordError
from dynadp.planning import (
    Consortium,
    Plan,
    class_weights_of,
    plan,
    require_promise,
    require_two_classes,
    schedule_from,
    unit_of,
    warnings_about,
    with_reasons,
)
from dynadp.privacy import Anchor, Event, Ledger
from dynadp.problem import default_loss
from dynadp.runs.fields import listed
from dynadp.runs.record import Kind, RunRecord, counted
from dynadp.runs.run_file import RunFile
from dynadp.runs.sections import NodeSection

PLAIN_ROUNDS = 2000  # of Algorithm 1, at most


class MistakeList(list[str]):
    """Mistakes of a file and of what it names."""

    cause: BaseException | None = None  # of the one that was attempted last

    def attempt(self, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns; note its mistake and return None where it fails.

        A damaged ledger is more than a mistake, and is raised.
        """
        try:
            return make()
        except LedgerDamaged:
            raise
        except DynadpError as error:
            self.append(str(error).replace("\n", "\n  "))
            self.cause = error.__cause__
            return None

    def refusal(self, path: Path) -> ConfigError:
        """Return all of them as one error of this file.

        Where the only one is that the machine refused, as a full disk does, that is its cause.
        """
        made = ConfigError(listed(path, self, "problem"))
        made.__cause__ = self.cause if len(self) == 1 else None
        return made


def open_columns(path: Path, separator: Any, schema: Schema, memory: int | None = None) -> Source:
    """Open a file that must have the schema's columns and the label.

    Rows that need more than ``memory`` MiB will be streamed.
    """
    given = source(path, separator=separator, memory=None if memory is None else memory << 20)
    missing = set(schema.read_columns) - set(given.columns)
    if missing and (advice := given.unsplit(schema.read_columns)):
        raise DataError(f"{given.name}: {advice}")
    if missing:
        raise DataError(
            f"{given.name}: no column {', '.join(sorted(map(repr, missing)))}, which "
            f"the schema declares"
        )
    return given


def check_count(node: NodeSection, schema: Schema, file: RunFile, count: int | None) -> None:
    """Refuse a number of rows that is not the declared one, or would be read off private cells.

    Where it stays secret, a declared one has to stand for it, and nothing is compared.
    """
    if schema.hides_counts:
        require_declared(node.rows, node.name)
        return
    if node.rows is not None and count not in (None, node.rows):
        raise DataError(
            f"node {node.name}: rows = {node.rows} is declared, but another number of rows "
            f"stays; correct one of them"
        )
    private = file.run.seed is None and file.privacy.protected
    if node.rows is None and schema.drops_missing and private:
        raise DataError(
            f"node {node.name}: the schema drops rows with missing cells, so their number "
            f"depends on cells: declare it, "
            "rows = N, as public, or let the schema put a value there"
        )
    if count == 0:
        raise DataError(f"node {node.name} has no rows; every node needs at least one")


def check_ledger(path: Path, node: str, anchor: Path | None = None) -> None:
    """Refuse a ledger that is missing, or of another node."""
    if not path.exists():
        Anchor(path, anchor).require_none()  # it was lost
        raise ConfigError(
            f"node {node}: there is no ledger {path}; make it: dynadp ledger cap {path} --node "
            f"{node} --epsilon E --delta D"
        )
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise ConfigError(
            f"node {node}: the ledger {path} or its folder cannot be written by this user"
        )
    # to write, so that an entry that a crash cut short is undone
    with Ledger.open(path, anchor=anchor) as ledger:
        if ledger.node != node:
            raise ConfigError(f"node {node}: {path} is the ledger of {ledger.node!r}")


def plan_from_file(
    file: RunFile, schema: Schema, topology: Topology, counts: Sequence[int]
) -> Plan:
    """Return the plan of a run file, from public numbers alone."""
    privacy, training = file.privacy, file.training
    mechanism = file.mechanism
    algorithm = "admm" if not privacy.protected else getattr(mechanism, "algorithm", "sum")
    by_class = {
        "class_weights": class_weights_of(
            training.class_weight, schema.label.classes, training.positives
        ),
        "positives": training.positives,
    }
    if privacy.calibration:
        require_two_classes(schema, "calibration")
    if file.totals is not None and privacy.delta is not None:
        chosen = plan(
            counts,
            topology,
            schema.dimension,
            epsilon=file.totals,
            delta=privacy.delta,
            mechanism=mechanism,
            centring=privacy.centring and schema.centre is None,
            features=schema.feature_count,
            weights=training.weights,
            unit=unit_of(schema),
            calibration=privacy.calibration,
            classes=schema.classes,
            loss=training.loss,
            **by_class,  # type: ignore[arg-type]
        )
        made = replace(chosen, output=file.run.output)
        require_promise(made)
        return made
    made = Plan.of(
        loss=training.loss or default_loss(schema.label.kind, algorithm),
        regularizer=training.regularizer,
        C=training.C,
        weights=training.weights,
        rho=training.rho,
        eta=training.eta,
        **training.steps(),
        **by_class,
        mechanism=mechanism,
        schedule=None if privacy.by_round is None else schedule_from(privacy.by_round),
        delta=privacy.delta if privacy.protected else None,
        unit=unit_of(schema) if privacy.protected else None,
        rounds=training.rounds or PLAIN_ROUNDS,
        output=file.run.output,
    ).on(
        Consortium(topology, tuple(counts), schema.dimension, schema.feature_count, schema.classes)
    )
    if made.protection is None:
        return made
    require_promise(made)
    why = "as the run file says; nothing was planned"
    return with_reasons(made, (why, *warnings_about(made.delta, counts)))


def new_record(kind: Kind, declared: RunFile, schema: Schema, plan: Plan, **more: Any) -> RunRecord:
    """Return the record of a run that is about to begin.

    Parameters
    ----------
    kind, declared, schema, plan
        What is decided; the plan is bound to its consortium.
    **more
        The other fields of the record.
    """
    those, seed = plan.bound, declared.run.seed
    rows = dict(zip(those.nodes, those.counts, strict=True))
    return RunRecord.of(
        kind=kind,
        name=declared.run.name,
        simulation=seed is not None,
        seed=seed,
        source=counted(declared.data.description, rows, schema.hides_counts),
        topology=those.topology,
        rows=rows,
        schema=schema,
        plan=plan.to_json(),
        **more,
    )


def open_ledgers(
    stack: ExitStack,
    paths: Mapping[str, str | Path],
    run: str,
    *,
    anchor: Path | None = None,
    **more: Any,
) -> LedgerJournal:
    """Open the ledgers of these nodes for as long as the stack lives.

    Parameters
    ----------
    stack, paths
        Closes them; the file of each node's ledger.
    anchor
        Where the anchor of a single ledger is kept, if not in this user's state folder.
    run, **more
        As for :class:`~dynadp.engines.journal.LedgerJournal`.
    """
    ledgers = {
        node: stack.enter_context(Ledger.open(path, anchor=anchor)) for node, path in paths.items()
    }
    return LedgerJournal(ledgers, run, **more)


def reserve(
    journal: Journal, rows: Collection[NodeRows], events: Sequence[Event], place: str = "rows"
) -> None:
    """Check all rows, then reserve: a bad cell must not be found when part of a budget is spent."""
    if not journal.begun:
        check_rows(rows, place)
    check_people(rows, events)
    journal.reserve(events)


def rehearse(journal: Journal, rows: NodeRows, events: Sequence[Event]) -> None:
    """Refuse whatever would be refused after neighbours agreed, before they hear of this node:
    cells, whose rows they are, rows that changed, a budget that is too small. Nothing is entered.
    """
    check_rows([rows], "rows")
    check_people([rows], events)
    if (seal := journal.seal(rows.name)) is not None:
        seal.compare(rows.digest, rows.name)
    journal.require_room(events)


def check_people(rows: Collection[NodeRows], events: Sequence[Event]) -> None:
    """Refuse rows without the ids that weighing needs."""
    if any(getattr(event, "weighed", False) for event in events):
        for own in rows:
            own.require_people()


def check_rows(rows: Collection[NodeRows], place: str) -> None:
    """Refuse rows that do not fit the schema: the first bad cell of each column, of all nodes
    together.
    """
    mistakes = [str(mistake) for own in rows for mistake in own.survey.mistakes]
    if len(mistakes) > 1:
        raise DataError(listed(place, mistakes, "problem"))
    for own in rows:
        own.check()


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
