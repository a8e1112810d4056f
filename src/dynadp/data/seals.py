"""Whether a run goes on with the rows that it began with: a keyed hash of them, which never leaves
the node.

seal = BLAKE2b(key; declared columns and label, cell by cell), with a random key for each run and
node. A number counts by its value, a text without surrounding blanks, all missing cells are alike:
a file that was written anew with the same cells in the same order has the same seal, whatever its
format.

Privacy is proven for rows that stay as they are while a run lasts, so a run whose rows changed is
refused. As long as they stay the comparison always has the same answer: it tells nothing about
them, and costs nothing.

Whoever has a seal and its key can try guesses at the rows. So both lie where rows and ledger lie:
in a file beside the ledger that only its owner can read, who can read the rows too. No run folder,
record, report or tracker has them, and the file is removed when the run is closed. A SIMULATION,
which protects nobody, keeps it with its messages and removes it with them.
"""

import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._files import write_bytes
from dynadp.data.columns import Numeric, normalise
from dynadp.data.readers import Source, source
from dynadp.data.schema import Schema
from dynadp.data.streaming import DictionaryColumn, coded_batches, rows_at_once, streams
from dynadp.errors import DataError, RecordError

_BATCH = 8192  # rows looked at at once
_MOST = 1 << 16  # distinct texts of a column that are remembered
_WIDTH = 16  # bytes that stand for a text


@dataclass(frozen=True)
class Seal:
    """Where a node keeps the seal of its rows in one run.

    Attributes
    ----------
    path
        The file.
    entered
        Whether the node has released anything in this run.
    """

    path: Path
    entered: bool

    @classmethod
    def beside(cls, place: Path, run: str, entered: bool) -> "Seal":
        """The file beside a ledger, or in a folder of messages: one for each run, so that runs do
        not meet in it.
        """
        return cls(
            place.with_name(f"{place.name}-rows-{sha256(run.encode()).hexdigest()[:16]}"), entered
        )

    def require(self, schema: Schema, rows: Any, node: str) -> None:
        """Seal the rows the first time, before anything is released; refuse others afterwards.

        A run that released something and has no seal was begun by a version that made none; its
        number of rows was compared.
        """
        if not self.path.exists():
            if self.entered:
                return
            key = token_bytes(32)
            content = {"key": key.hex(), "seal": sealed(schema, rows, key)}
            with suppress(
                FileExistsError
            ):  # another incarnation of the node was faster: its seal counts
                write_bytes(self.path, json.dumps(content).encode(), new=True, mode=0o600)
                return
        try:
            content = json.loads(self.path.read_bytes())
            key, before = bytes.fromhex(content["key"]), str(content["seal"])
        except OSError as error:
            raise RecordError(
                f"cannot read {self.path}: {error.strerror}; resume as the user who began the run"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{self.path} is damaged; it says which rows the run began with: begin a new run"
            ) from error
        if not hmac.compare_digest(before, sealed(schema, rows, key)):
            raise DataError(
                f"node {node!r}: its rows changed since the run began; resume with the rows that "
                f"it began with, or close this "
                "run and begin a new one"
            )

    def remove(self) -> None:
        """The run is over."""
        self.path.unlink(missing_ok=True)


def sealed(schema: Schema, rows: Any, key: bytes) -> str:
    """BLAKE2b of the declared columns and the label with a key, read in batches; the same for any
    size of batches.
    """
    given, numbers = (
        source(rows),
        {column.name for column in schema.columns if isinstance(column, Numeric)},
    )
    names = (*(column.name for column in schema.columns), schema.label.name)
    hashes = {name: blake2b(name.encode(), key=key) for name in names}
    texts = {name: _Texts(schema, key) for name in names if name not in numbers}
    for batch in _batches(given, [name for name in names if name in numbers], list(texts)):
        for name, cells in batch.items():
            hashes[name].update(
                texts[name].encoded(cells) if name in texts else _floats(schema, cells)
            )
    return blake2b(b"".join(hashes[name].digest() for name in names), key=key).hexdigest()


def same_rows(seals: Mapping[str, Seal | None], schema: Schema, tables: Mapping[str, Any]) -> None:
    """Seal every node's rows, or refuse those that changed since the run began."""
    for node, seal in seals.items():
        if seal is not None:
            seal.require(schema, tables[node], node)


def _batches(given: Source, numbers: list[str], texts: list[str]) -> Iterator[Mapping[str, Any]]:
    if streams(given):
        size = rows_at_once(given.memory or 0, len(numbers) + len(texts))
        return iter(coded_batches(given, numbers, texts, size))
    return given.batches((*numbers, *texts), _BATCH)


def _floats(schema: Schema, cells: Any) -> bytes:
    """Numbers by their value, 8 bytes each; NaN for what is missing, or is refused where rows are
    read.
    """
    if isinstance(cells, DictionaryColumn):
        return bytes(_floats_of(schema, cells.cells)[cells.codes].tobytes())
    return _floats_of(schema, cells).tobytes()


def _floats_of(schema: Schema, cells: NDArray[Any]) -> NDArray[np.float64]:
    absent = schema.absent(cells)
    if cells.dtype.kind not in "iufb":
        cells = np.array(
            [
                np.nan if gone else _number(cell)
                for cell, gone in zip(cells.tolist(), absent, strict=True)
            ]
        )
    found = cells.astype("<f8") + 0.0  # -0 is 0
    found[absent | np.isnan(found)] = np.nan  # of which there are many
    return found


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


class _Texts:
    """Texts as 16 bytes each, so that where one ends is never in doubt."""

    def __init__(self, schema: Schema, key: bytes) -> None:
        self.schema, self.key = schema, key
        self._known: dict[str, bytes] = {}

    def encoded(self, cells: Any) -> bytes:
        """All cells of a batch, one after the other."""
        if not isinstance(cells, DictionaryColumn):
            return b"".join(self._each(cells))
        table = np.frombuffer(b"".join(self._each(cells.cells)), dtype=f"V{_WIDTH}")
        return bytes(table[cells.codes].tobytes())

    def _each(self, cells: NDArray[Any]) -> list[bytes]:
        absent = self.schema.absent(cells)
        return [
            bytes(_WIDTH) if gone else self._one(normalise(c))
            for c, gone in zip(cells.tolist(), absent, strict=True)
        ]

    def _one(self, text: str) -> bytes:
        if (found := self._known.get(text)) is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            content = text.encode("utf-8", "surrogatepass")
            found = self._known[text] = blake2b(content, key=self.key, digest_size=_WIDTH).digest()
        return found
