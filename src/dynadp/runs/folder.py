"""The run folder.

::

    RUN/
      run.json      what was decided before the run (runs/record.py)
      rounds.jsonl  one line for each round and node (engines/progress.py)
      model.json    the classifier (runs/model.py)

Readers accept this version and older ones; a newer one is a clear error. Files appear whole or not
at all, except rounds.jsonl, which grows by whole lines; an unfinished last line is ignored.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynadp._files import digest, parse_json, read_file, write_bytes
from dynadp.consensus import RoundProgress
from dynadp.errors import RecordError
from dynadp.runs.model import Model
from dynadp.runs.record import FORMAT, VERSION, RunRecord
from dynadp.runs.record_v1 import upgrade


class RunFolder:
    """A run folder that is being written.

    Parameters
    ----------
    path
        The folder.
    record
        The content of its run.json.
    """

    def __init__(self, path: str | Path, record: RunRecord) -> None:
        self.path, self.record = Path(path), record

    @classmethod
    def create(
        cls, path: str | Path, record: RunRecord, *, beside: Iterable[str] = ()
    ) -> "RunFolder":
        """Start a run folder; a folder that holds anything is refused.

        Parameters
        ----------
        path
            The folder; made where it is missing.
        record
            Everything that was decided before the run.
        beside
            Names of files that may be there already, with wildcards.
        """
        folder = cls(path, record)
        cls.require_empty(folder.path, beside)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            write_bytes(folder.path / "run.json", record.to_json().encode(), new=True)
            folder.restart()
        except FileExistsError:
            raise RecordError(
                f"{folder.path} was taken by another run meanwhile; choose another"
            ) from None
        except OSError as error:
            raise RecordError(
                f"cannot make the run folder {folder.path}: {error.strerror}; choose another"
            ) from error
        return folder

    @staticmethod
    def require_empty(path: Path, beside: Iterable[str] = ()) -> None:
        """Refuse a path that holds anything else."""
        known = tuple(beside)
        if path.exists() and (
            not path.is_dir()
            or not all(any(file.match(name) for name in known) for file in path.iterdir())
        ):
            raise RecordError(
                f"{path} exists and is not an empty folder; choose another, nothing is overwritten"
            )

    def note(self, entry: RoundProgress, nodes: Sequence[str] | None = None) -> None:
        """Add the lines of a round: of all nodes, or of these."""
        names, plan = nodes or self.record.topology.nodes, self.record.planned
        here = nodes is None or entry.messages.size  # who has no part in a sum loses nothing
        losses = [plan.alphas[node][entry.number - 1] if plan and here else None for node in names]
        noise = plan.noise if plan else "l2-laplace"
        self.append(line.to_json() for line in entry.lines(names, losses, noise))

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to rounds.jsonl."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        with open(self.path / "rounds.jsonl", "ab") as file:
            file.write(text.encode())

    def restart(self) -> None:
        """Empty rounds.jsonl: a run that goes on writes all rounds again, from what was entered."""
        (self.path / "rounds.jsonl").write_bytes(b"")

    def finish(self, model: Model) -> None:
        """Write the model."""
        model.save(self.path / "model.json")


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
            yield parse_json(line)
        except ValueError as error:
            raise RecordError(f"{file}, line {number} is not JSON; the file is damaged") from error


def load_run(path: str | Path) -> RunRecord:
    """Read and check run.json of a run folder, of this version or of version 1."""
    path = Path(path)
    content = read_file(path / "run.json", FORMAT, VERSION)
    try:
        if content["version"] == 1:
            return upgrade(content, path)
        sealed = {
            name: value
            for name, value in content.items()
            if name not in ("format", "version", "content_hash")
        }
        if digest(sealed) != content.get("content_hash"):
            raise RecordError(
                f"{path}: run.json does not match its hash; it was changed by hand or is damaged"
            )
        return RunRecord.model_validate(sealed)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RecordError(
            f"{path}: run.json lacks what a run of dynadp records ({type(error).__name__}); "
            f"restore it from a copy"
        ) from error
