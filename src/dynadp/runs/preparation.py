"""What a run file names and asks for: opened, checked and planned; mistakes come together."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynadp.consensus import Topology
from dynadp.data import Schema, Source, source
from dynadp.errors import ConfigError, DataError, DynadpError, LedgerDamaged
from dynadp.planning import (
    Consortium,
    Plan,
    plan,
    require_promise,
    schedule_from,
    warnings_about,
    with_reasons,
)
from dynadp.privacy import Ledger
from dynadp.runs.run_file import RunFile


class MistakeList(list[str]):
    """Mistakes, found one after the other."""

    def attempt(self, make: Callable[[], Any]) -> Any:
        """What it makes; None where that fails, and the mistake is noted. A damaged ledger is more
        than a mistake.
        """
        try:
            return make()
        except LedgerDamaged:
            raise
        except DynadpError as error:
            self.append(str(error).replace("\n", "\n  "))
            return None

    def refusal(self, path: Path) -> ConfigError:
        """All of them, one a line, as mistakes of this file."""
        return ConfigError(
            "\n".join(
                [
                    f"{path}: {len(self)} problem{'s' * (len(self) > 1)}",
                    *(f"  {problem}" for problem in self),
                ]
            )
        )


def open_columns(path: Path, separator: Any, schema: Schema, memory: int | None = None) -> Source:
    """The file, if it has the schema's columns and the label; rows that need more MiB of ``memory``
    will be streamed.
    """
    given = source(path, separator=separator, memory=None if memory is None else memory << 20)
    missing = set(schema.raw_columns) - set(given.columns)
    if missing and (advice := given.unsplit(schema.raw_columns)):
        raise DataError(f"{given.name}: {advice}")
    if missing:
        raise DataError(
            f"{given.name}: no column {', '.join(sorted(map(repr, missing)))}, which "
            f"the schema declares"
        )
    return given


def check_ledger(path: Path, node: str) -> None:
    """Refuse a ledger that is missing, or of another node."""
    if not path.exists():
        raise ConfigError(
            f"node {node}: there is no ledger {path}; make it: dynadp ledger cap {path} --node "
            f"{node} --epsilon E --delta D"
        )
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise ConfigError(
            f"node {node}: the ledger {path} or its folder cannot be written by this user"
        )
    with Ledger.open(path) as ledger:  # to write, so that an entry that a crash cut short is undone
        if ledger.node != node:
            raise ConfigError(f"node {node}: {path} is the ledger of {ledger.node!r}")


def plan_from_file(
    file: RunFile, schema: Schema, topology: Topology, counts: Sequence[int]
) -> Plan | None:
    """What a run file asks for, from public numbers alone; None where nothing is protected."""
    privacy = file.privacy
    if file.totals is not None and privacy.delta is not None:
        centre = privacy.centring and schema.centre is None
        found = plan(
            counts,
            topology,
            schema.dimension,
            epsilon=file.totals,
            delta=privacy.delta,
            mechanism=privacy.made(),
            centring=centre,
            features=schema.feature_count,
            weights=file.training.weights,
        )
        chosen = replace(found, output=file.run.output)
        require_promise(chosen)
        return chosen
    return _given_plan(file, schema, topology, counts) if privacy.alpha is not None else None


def _given_plan(file: RunFile, schema: Schema, topology: Topology, counts: Sequence[int]) -> Plan:
    """The paper's constants and alpha, as the file gives them."""
    training, privacy = file.training, file.privacy
    delta = privacy.delta or 0.0
    made = Plan.of(
        loss=training.loss,
        regularizer=training.regularizer,
        C=training.C,
        weights=training.weights,
        rho=training.rho,
        eta=training.eta,
        mechanism=privacy.made(),
        schedule=schedule_from(privacy.alpha),
        delta=delta,
        rounds=training.rounds,
        output=file.run.output,
        consortium=_consortium(schema, topology, counts),
    )
    require_promise(made)
    why = "as the run file says; nothing was planned"
    return with_reasons(made, (why, *warnings_about(delta, counts)))


def _consortium(schema: Schema, topology: Topology, counts: Sequence[int]) -> Consortium:
    features = schema.feature_count
    return Consortium(topology, tuple(counts), schema.dimension, features)
