"""What a run has released so far: the messages that its folder or its ledgers hold, and over whom
its sums were.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus import Absence
from dynadp.engines import FolderJournal, SettledSums, Verifier, released_letters, rows_of
from dynadp.errors import DynadpError, RecordError, SumSpoiled
from dynadp.planning import Plan
from dynadp.privacy import Ledger
from dynadp.runs.identities import public_key
from dynadp.runs.own_letters import post_offices
from dynadp.runs.record import RunRecord

Held = dict[str, dict[int, Array]]  # vectors of a node, by round


def released(folder: Path, record: RunRecord, ledgers: Sequence[str | Path]) -> Held:
    """Return the messages that are here."""
    if record.kind == "network":
        found = letters_of(post_offices(folder), _keys(record), bytes.fromhex(record.config_hash))
    elif (folder / "messages").is_dir():
        found = _simulated(folder / "messages", record)
    else:
        found = _entered(record, _ledgers(folder, record, ledgers))
    if not any(n > 0 for own in found.values() for n in own):
        raise RecordError(
            f"{folder}: no round was released, so there is nothing to make a model of"
        )
    return found


def letters_of(offices: Sequence[Path], keys: Mapping[str, Verifier], config: bytes) -> Held:
    """Return the messages of one configuration in files of letters."""
    found: Held = {}
    for office in offices:
        for letter in released_letters(office, keys):
            if letter.config == config:
                found.setdefault(letter.author, {})[letter.round] = letter.values
    return found


def _keys(record: RunRecord) -> dict[str, Verifier]:
    sections = (record.file or {}).get("nodes", ())
    return {one["name"]: public_key(one["key"]) for one in sections if one.get("key")}


def _simulated(place: Path, record: RunRecord) -> Held:
    assert record.planned is not None
    nodes = [node for node, own in record.planned.alphas.items() if any(own)]
    journal, found = FolderJournal(place, nodes), dict[str, dict[int, Array]]()
    for n in range(record.planned.rounds + 1):
        for node, vector in (journal.sent(n) or {}).items():
            found.setdefault(node, {})[n] = vector
    return found


def _entered(record: RunRecord, ledgers: Mapping[str, Path]) -> Held:
    found: Held = {}
    for node, path in ledgers.items():
        with Ledger.open(path, read_only=True) as ledger:
            for n in ledger.rounds(record.run_id):
                content = ledger.message(record.run_id, n)
                if content:
                    vector = np.frombuffer(content, "<f8").astype(float)
                    found.setdefault(node, {})[n] = vector
    return found


def _ledgers(folder: Path, record: RunRecord, given: Sequence[str | Path]) -> dict[str, Path]:
    """Return the ledgers that hold this run: those given, or found by name near the folder."""
    places = [Path.cwd(), *folder.resolve().parents[:3]]
    names = [str(node.get("ledger")) for node in (record.file or {}).get("nodes", [])]
    tried = [*map(Path, given), *(place / name for place in places for name in names)]
    found: dict[str, Path] = {}
    for path in tried:
        try:
            if path.is_file():
                with Ledger.open(path, read_only=True) as ledger:
                    if record.run_id in ledger.state().runs:
                        found.setdefault(ledger.node, path)
        except DynadpError:
            continue
    assert record.planned is not None
    senders = {node for node, own in record.planned.alphas.items() if any(own)}
    if missing := senders - set(found):
        raise RecordError(
            f"no ledger with this run was found for {', '.join(sorted(missing))}; name them with "
            "--ledger FILE"
        )
    return found


@dataclass
class Sums:
    """The sums of a run, one after the other: over whom they were, and of sealed ones the words.

    Attributes
    ----------
    settled, plan
        Over whom they were; what the run does.
    spares
        Spare attempts that were taken.
    """

    settled: SettledSums
    plan: Plan
    spares: int = 0

    @property
    def members(self) -> tuple[str, ...]:
        """Over whom the last one was, in the network's order."""
        return self.settled.members

    @property
    def rows(self) -> float:
        """n over the members of the last one."""
        return rows_of(self.plan, self.members)

    def open(self, held: Held, n: int) -> dict[str, Array] | None:
        """Return the messages that the next sum in the open is made of; None where some are not
        here.
        """
        if self.settled.over(n) is None:
            return None
        names = [node for node in self.plan.release_plan.nodes if node in self.members]
        if any(n not in held.get(node, {}) for node in names):
            return None
        return {node: held[node][n] for node in names}

    def sealed(self, held: Held, n: int, decode: Callable[[Any], Array]) -> Array | None:
        """Return the next sealed sum, of its first attempt or of a spare one; None where letters
        are not here.
        """
        entry, spares = n, len(self.plan.release_plan.spares)
        while self.spares <= spares:
            whole = self.settled.over(entry)
            if whole is None:
                return None
            if whole:
                names = [node for node in self.plan.release_plan.nodes if node in self.members]
                if any(entry not in held.get(node, {}) for node in names):
                    return None
                with suppress(SumSpoiled, ValueError):
                    words = np.array([held[node][entry] for node in names])
                    return decode(words[:, None].view(np.uint64))
            self.spares += 1
            entry = self.plan.rounds + self.spares
        return None


def settled(folder: Path, record: RunRecord, plan: Plan) -> Sums:
    """Return over whom the sums were that the run has settled."""
    absence, keys, offices = Absence(), dict[str, Verifier](), list[Path]()
    if record.kind == "network":
        absence = Absence(**(record.file or {}).get("absence", {}))
        keys, offices = _keys(record), post_offices(folder)
    found = SettledSums(plan, absence, bytes.fromhex(record.config_hash), keys, offices)
    return Sums(found, plan)
