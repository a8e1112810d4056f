"""The run folder and the model file, version 1.

::

    RUN/
      run.json      what was run: format, version, simulation, config and its hash, library
      versions, when rounds.jsonl  one line for each round and node: residuals of released vectors,
      alpha of private rounds model.json    the classifier: classes, coefficients, schema and its
      hash, loss, mechanism, privacy

Readers accept this version and older ones; a newer one is a clear error. Files appear whole or not
at all, except rounds.jsonl, which grows by whole lines; an unfinished last line is ignored.
"""

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Array
from dynadp._files import digest, read_file, write_bytes, write_whole
from dynadp.data import Schema, Table, Value
from dynadp.errors import RecordError

RUN_FORMAT, MODEL_FORMAT, VERSION = "dynadp-run", "dynadp-model", 1
_LIBRARIES = ("dynadp", "numpy", "scipy", "networkx", "pydantic")


@dataclass(frozen=True, eq=False)
class Model:
    """A linear classifier on bounded rows: sign(coef . x + intercept x_0), x the schema's features
    and x_0 its intercept.

    Attributes
    ----------
    classes
        Negative and positive label value.
    coef
        One coefficient for each feature, without the intercept.
    intercept
        Coefficient of the schema's intercept column; 0 where it has none.
    schema
        How raw rows become bounded ones.
    loss, mechanism, privacy
        How it was trained and what that cost, as in the run's record.
    """

    classes: tuple[Value, Value]
    coef: Array = field(repr=False)
    intercept: float
    schema: Schema = field(repr=False)
    loss: Mapping[str, Any]
    mechanism: str
    privacy: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(
        cls,
        f: Array,
        schema: Schema,
        loss: Mapping[str, Any],
        mechanism: str,
        privacy: Mapping[str, Any],
    ) -> "Model":
        """The model of a released vector f, with the intercept last."""
        coef, intercept = (f[:-1], float(f[-1])) if schema.intercept else (f, 0.0)
        return cls(
            (schema.label.negative, schema.label.positive),
            np.array(coef),
            intercept,
            schema,
            loss,
            mechanism,
            privacy,
        )

    def decision(self, table: Table) -> Array:
        """f.x for every raw row."""
        f = np.append(self.coef, self.intercept) if self.schema.intercept else self.coef
        return np.asarray(self.schema.rows(table) @ f)

    def predict(self, table: Table) -> NDArray[Any]:
        """The label value of every raw row; a score of exactly 0 is negative."""
        return np.where(self.decision(table) > 0, self.classes[1], self.classes[0])

    def save(self, path: str | Path) -> None:
        """Write model.json."""
        content = {
            "format": MODEL_FORMAT,
            "version": VERSION,
            "classes": list(self.classes),
            "coef": self.coef.tolist(),
            "intercept": self.intercept,
            "features": list(self.schema.features[: len(self.coef)]),
            "schema": self.schema.model_dump(mode="json"),
            "schema_hash": self.schema.digest(),
            "loss": dict(self.loss),
            "mechanism": self.mechanism,
            "privacy": dict(self.privacy),
        }
        write_whole(Path(path), json.dumps(content, indent=1, allow_nan=False) + "\n")


def load_model(path: str | Path) -> Model:
    """Read a model file, or the model of a run folder."""
    path = Path(path)
    path = path / "model.json" if path.is_dir() else path
    content = read_file(path, MODEL_FORMAT)
    try:
        schema = Schema.model_validate(content["schema"])
        coef = np.array(content["coef"], dtype=float)
        negative, positive = content["classes"]
        intercept = float(content["intercept"])
        training = content["loss"], content["mechanism"], content["privacy"]
        model = Model((negative, positive), coef, intercept, schema, *training)
        claimed = content["schema_hash"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged: {type(error).__name__}; restore it from a copy"
        ) from error
    if (negative, positive) != (schema.label.negative, schema.label.positive):
        raise RecordError(
            f"{path}: its classes are not those of its schema; the file was changed "
            f"by hand or is damaged"
        )
    if schema.digest() != claimed:
        raise RecordError(
            f"{path}: the schema does not match its hash; the file was changed by "
            f"hand or is damaged"
        )
    if coef.shape != (schema.feature_count,) or not np.isfinite([*coef, intercept]).all():
        raise RecordError(
            f"{path}: expected {schema.feature_count} finite coefficients, one a feature"
        )
    return model


class RunFolder:
    """A run folder that is being written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        simulation: bool,
        created: str,
        beside: Iterable[str] = (),
    ) -> "RunFolder":
        """Start a run folder; refuses a folder that holds anything.

        Parameters
        ----------
        path
            The folder; made where it is missing.
        config
            Everything that was decided before the run; public, JSON.
        simulation
            Whether draws were seeded or rows synthetic, so that the run protects nobody.
        created
            When, as ISO 8601 text; the caller knows the time.
        beside
            Names of files that may be there already.
        """
        folder = cls(path)
        cls.require_empty(folder.path, beside)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"cannot make the run folder {folder.path}: {error.strerror}; choose another"
            ) from error
        content = {
            "format": RUN_FORMAT,
            "version": VERSION,
            "simulation": simulation,
            "created": created,
            "config": dict(config),
            "config_hash": digest(config),
            "python": platform.python_version(),
            "libraries": {name: version(name) for name in _LIBRARIES},
        }
        try:
            write_bytes(
                folder.path / "run.json",
                (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(),
                new=True,
            )
            (folder.path / "rounds.jsonl").touch()
        except FileExistsError:
            raise RecordError(
                f"{folder.path} was taken by another run meanwhile; choose another"
            ) from None
        except OSError as error:
            raise RecordError(
                f"cannot write into {folder.path}: {error.strerror}; choose another"
            ) from error
        return folder

    @staticmethod
    def require_empty(path: Path, beside: Iterable[str] = ()) -> None:
        """Refuse a path that holds anything else."""
        if path.exists() and (
            not path.is_dir() or {file.name for file in path.iterdir()} - set(beside)
        ):
            raise RecordError(
                f"{path} exists and is not an empty folder; choose another, nothing is overwritten"
            )

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to rounds.jsonl; an unfinished last line, left by a crash, goes."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with open(self.path / "rounds.jsonl", "r+b") as file:
            whole = end = file.seek(0, os.SEEK_END)
            while whole and os.pread(file.fileno(), 1, whole - 1) != b"\n":
                whole -= 1
            if whole < end:
                file.truncate(whole)
                file.seek(whole)
            file.write(text.encode())

    def finish(self, model: Model) -> None:
        """Write the model."""
        model.save(self.path / "model.json")


def load_run(path: str | Path) -> dict[str, Any]:
    """Read and check run.json of a run folder."""
    content = read_file(Path(path) / "run.json", RUN_FORMAT)
    if digest(content.get("config")) != content.get("config_hash"):
        raise RecordError(
            f"{path}: the config does not match its hash; run.json was changed by "
            f"hand or is damaged"
        )
    return content


def read_rounds(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of rounds.jsonl; an unfinished last line is ignored."""
    file = Path(path) / "rounds.jsonl"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {file}: {error.strerror}") from error
    # what follows the last line break is unfinished
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise RecordError(f"{file}, line {number} is not JSON; the file is damaged") from error
