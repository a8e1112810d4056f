"""Whether a run goes on with the rows that it began with: a keyed hash of them, which never leaves
the node.

seal = BLAKE2b(key; BLAKE2b(declared columns and label, cell by cell)), with a random key for each
run and node. Numbers are compared by value, texts without surrounding blanks, and all missing cells
are equal: a file that was written anew with the same cells in the same order has the same seal,
whatever its format. Where the schema names a person's column, the rows are those that are used:
others may change. Ids count only in what they decide, which rows are used.

Privacy is proven for rows that stay as they are while a run lasts, so a run whose rows changed is
refused. As long as they stay, the comparison always has the same answer: it reveals nothing about
them, and costs nothing.

Whoever has a seal and its key can try guesses at the rows. So both lie where rows and ledger lie:
in a file beside the ledger that only its owner can read, who can read the rows too. No run folder,
record, report or tracker has them, and the file is removed when the run is closed. A SIMULATION,
which protects nobody, keeps it with its messages and removes it with them. The inner hash, which
has no key, stays in memory.
"""

import hmac
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp._files import parse_json, write_bytes
from dynadp.data.coded import DictionaryColumn
from dynadp.data.schema import Schema
from dynadp.data.values import normalise
from dynadp.errors import DataError, RecordError

_MOST = 1 << 16  # distinct texts that are remembered
_WIDTH = 16  # bytes that stand for a text, so that where one ends is never in doubt


@dataclass(frozen=True)
class Seal:
    """The file in which a node keeps the seal of its rows in one run.

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
        """Return the file beside a ledger, or in a folder of messages; each run has its own."""
        name = f"{place.name}-rows-{sha256(run.encode()).hexdigest()[:16]}"
        return cls(place.with_name(name), entered)

    def require(self, digest: bytes, node: str) -> None:
        """Seal the rows the first time, before anything is released; refuse others afterwards.

        A run that released something and has no seal was begun by version 0.1.0, which made none;
        its number of rows was compared.

        Parameters
        ----------
        digest
            The :class:`Fingerprint` of the rows.
        node
            The node's name, for messages.
        """
        if not self.path.exists():
            if self.entered:
                return
            key = token_bytes(32)
            content = {"key": key.hex(), "seal": _sealed(digest, key)}
            with suppress(FileExistsError):  # another incarnation of the node was faster
                write_bytes(self.path, json.dumps(content).encode(), new=True, mode=0o600)
                return
        try:
            content = parse_json(self.path.read_bytes())
            key, before = bytes.fromhex(content["key"]), str(content["seal"])
        except OSError as error:
            raise RecordError(
                f"cannot read {self.path}: {error.strerror}; resume as the user who began the run"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{self.path} is damaged; it says which rows the run began with: begin a new run"
            ) from error
        if not hmac.compare_digest(before, _sealed(digest, key)):
            raise DataError(
                f"node {node!r}: its rows changed since the run began; resume with the rows that "
                "it began with, or close this run and begin a new one"
            )

    def compare(self, digest: bytes, node: str) -> None:
        """Refuse other rows than those that were sealed, and seal nothing."""
        if self.path.exists():
            self.require(digest, node)

    def remove(self) -> None:
        """Remove the file: the run is over."""
        self.path.unlink(missing_ok=True)


def _sealed(digest: bytes, key: bytes) -> str:
    return blake2b(digest, key=key).hexdigest()


class Fingerprint:
    """BLAKE2b of the declared columns and the label, batch after batch; the same for any size of
    batches. Without a key: keep it in memory.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._numbers = set(schema.number_columns)
        if schema.label.kind == "numbers":
            self._numbers.add(schema.label.name)
        self._hashes = {name: blake2b(name.encode()) for name in schema.raw_columns}
        self._known: dict[str, bytes] = {}
        self._last: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}  # distinct cells, encoded

    def add(self, batch: Mapping[str, Any]) -> None:
        """Hash the next rows."""
        for name, hashed in self._hashes.items():
            cells = batch[name]
            if isinstance(cells, DictionaryColumn):
                if cells.notes is not None:
                    found = cells.found(partial(self._encoded, name), "seal", self)
                    hashed.update(found.tobytes())
                    continue
                if name not in self._last or self._last[name][0] is not cells.cells:
                    self._last[name] = cells.cells, self._encoded(name, cells.cells)
                hashed.update(self._last[name][1][cells.codes].tobytes())
            else:
                hashed.update(self._encoded(name, cells).tobytes())

    def digest(self) -> bytes:
        """Return the hash of all rows so far."""
        return blake2b(b"".join(hashed.digest() for hashed in self._hashes.values())).digest()

    def _encoded(self, name: str, cells: NDArray[Any]) -> NDArray[Any]:
        """Return a fixed number of bytes for each cell."""
        absent = self._schema.absent(cells)
        if name in self._numbers:
            return _floats(cells, absent)
        each = (
            bytes(_WIDTH) if gone else self._text(normalise(cell))
            for cell, gone in zip(cells.tolist(), absent.tolist(), strict=True)
        )
        return np.frombuffer(b"".join(each), dtype=f"V{_WIDTH}")

    def _text(self, text: str) -> bytes:
        if (known := self._known.get(text)) is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            content = text.encode("utf-8", "surrogatepass")
            known = self._known[text] = blake2b(content, digest_size=_WIDTH).digest()
        return known


def _floats(cells: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return numbers by value; NaN for a cell that is missing or no number."""
    if cells.dtype.kind not in "iufb":
        pairs = zip(cells.tolist(), absent.tolist(), strict=True)
        cells = np.array([np.nan if gone else _number(cell) for cell, gone in pairs])
    numbers = cells.astype("<f8") + 0.0  # -0 is 0
    numbers[absent | np.isnan(numbers)] = np.nan  # of which there are many
    return numbers


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
