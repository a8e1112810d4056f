"""Where messages are entered before they are sent, so that a run that was cut short goes on and
sends the same.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from glob import escape
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import numpy as np

from dynadp._arrays import Array
from dynadp._files import write_bytes
from dynadp.consensus import Journal, Messages
from dynadp.data import Seal
from dynadp.errors import BudgetRefused, DeclarationError, RecordError
from dynadp.privacy import Event, Ledger


def now() -> str:
    """Return the time, as ledgers write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class LedgerJournal(Journal):
    """The ledgers of all nodes of one run: the whole plan is reserved first, and a message is
    entered before it is sent.

    Parameters
    ----------
    ledgers
        An open ledger for each node.
    run
        A name for the run, new to all of them.
    dataset
        What the rows are, in words.
    who
        Who starts the run.
    clock
        Returns the time.
    resume
        Whether the run may have been reserved before, with the same plan, and goes on.
    """

    def __init__(
        self,
        ledgers: Mapping[str, Ledger],
        run: str,
        *,
        dataset: str,
        who: str,
        clock: Callable[[], str] = now,
        resume: bool = False,
    ) -> None:
        self.ledgers, self.run, self.dataset = dict(ledgers), run, dataset
        self.who, self.clock, self.resume = who, clock, resume
        self._reserved: frozenset[Event] | None = None

    @property
    def begun(self) -> bool:
        """Whether the plan is reserved."""
        return self._reserved is not None

    @property
    def over(self) -> bool:
        """Whether the run is closed in all ledgers."""
        return all(ledger.is_closed(self.run) for ledger in self._active.values())

    def reserve(self, plan: Sequence[Event]) -> None:
        """Reserve the whole plan at every node, or at none."""
        if self._reserved is not None:
            if not self._reserved.issuperset(plan):
                raise DeclarationError(
                    f"run {self.run!r} would release what it did not reserve; reserve its whole "
                    "plan"
                )
            return
        missing = {event.node for event in plan} - set(self.ledgers)
        if missing:
            raise DeclarationError(
                f"no ledger for {', '.join(sorted(missing))}; every node that releases anything "
                "needs one"
            )
        taken: list[Ledger] = []
        try:
            for node, ledger, own in self._unreserved(plan):
                with _of(node):
                    who, at = self.who, self.clock()
                    ledger.reserve(self.run, own, dataset=self.dataset, who=who, at=at)
                taken.append(ledger)
        except BaseException:
            for ledger in taken:
                ledger.close_run(self.run, "stopped", who=self.who, at=self.clock())
            raise
        self._reserved = frozenset(plan)

    def require_room(self, plan: Sequence[Event]) -> None:
        """Refuse what :meth:`reserve` would refuse now, at any node, and reserve nothing."""
        for node, ledger, own in self._unreserved(plan):
            with _of(node):
                ledger.require_room(self.run, own)

    def _unreserved(self, plan: Sequence[Event]) -> Iterator[tuple[str, Ledger, list[Event]]]:
        """The nodes that release anything and have not reserved it yet; refuses another plan than
        the one that was reserved.
        """
        for node, ledger in self.ledgers.items():
            own = _of_node(plan, node)
            before = ledger.reserved(self.run) if own and self.resume else None
            if before is not None and before != own:
                raise BudgetRefused(
                    f"run {self.run!r} was reserved at node {node!r} with another plan; resume "
                    "it with the run file that it began with, or begin a new run"
                )
            if own and before is None:
                yield node, ledger, own

    @property
    def _active(self) -> dict[str, Ledger]:
        """The ledgers of nodes that release anything."""
        if self._reserved is None:
            return self.ledgers
        active = {event.node for event in self._reserved}
        return {node: ledger for node, ledger in self.ledgers.items() if node in active}

    def sent(self, n: int) -> Messages | None:
        """Read round n from the ledgers, where all that release anything have it."""
        return _complete({node: self._stored(node, n) for node in self._active})

    def spend(self, n: int, events: Sequence[Event], messages: Messages) -> Messages:
        """Enter round n at every node; one that entered it before a crash sends what it entered
        then.
        """
        out = dict(messages)
        for node, message in messages.items():
            own, content = _of_node(events, node), np.asarray(message, "<f8").tobytes()
            try:
                self.ledgers[node].spend(self.run, n, own, content, **self._stamp())
            except BudgetRefused:
                if (stored := self._stored(node, n)) is None:
                    raise
                out[node] = stored
        return out

    def fail(self, n: int, events: Sequence[Event]) -> None:
        """Enter round n with an empty message at every node that has not entered it, and close the
        run.
        """
        for node, ledger in self.ledgers.items():
            own = _of_node(events, node)
            if own and n not in ledger.rounds(self.run):
                ledger.spend(self.run, n, own, b"", **self._stamp())
        self._close("stopped", failed=True)

    def close(self, reason: str) -> None:
        """Give back what was reserved and not spent."""
        self._close(reason)

    def _close(self, reason: str, *, failed: bool = False) -> None:
        """Close the run in all ledgers.

        A run may be closed already: it was cut short between two closes, or another incarnation of
        the node closed it. A node that sends nothing has reserved nothing.
        """
        for ledger in self._active.values():
            try:
                who, at = self.who, self.clock()
                ledger.close_run(self.run, reason, who=who, at=at, failed=failed)
            except BudgetRefused:
                nothing = self._reserved is None and self.run not in ledger.state().runs
                if not (nothing or ledger.is_closed(self.run)):
                    raise
        for node, ledger in self.ledgers.items():
            self.seal(node).remove()
            forget_vectors(ledger.path, self.run)

    def seal(self, node: str) -> Seal:
        """Return the seal beside the node's ledger."""
        ledger = self.ledgers[node]
        return Seal.beside(ledger.path, self.run, bool(ledger.rounds(self.run)))

    def keep(self, n: int, vectors: Messages) -> None:
        """Keep each node's vector in a file beside its ledger that only its owner can read."""
        for node, vector in vectors.items():
            _write_vector(self.ledgers[node].path, self.run, n, vector)

    def kept(self, n: int) -> Messages | None:
        """Read the vectors from the files beside the ledgers."""
        files = {node: ledger.path for node, ledger in self.ledgers.items()}
        return _complete({node: _read_vector(path, self.run, n) for node, path in files.items()})

    def secret(self, node: str, make: Callable[[], bytes]) -> bytes:
        """Keep the key in a file beside the node's ledger that only its owner can read."""
        path = _vector_file(self.ledgers[node].path, self.run, "key")
        if not path.exists():
            write_bytes(path, make(), mode=0o600)
        return path.read_bytes()

    def life_file(self, node: str) -> Path:
        """Where the node counts its lives in this run; gone when the run is over."""
        return _vector_file(self.ledgers[node].path, self.run, "life")

    def _stamp(self) -> dict[str, str]:
        return {"who": self.who, "at": self.clock()}

    def _stored(self, node: str, n: int) -> Array | None:
        content = self.ledgers[node].message(self.run, n)
        if content == b"":
            raise BudgetRefused(
                f"round {n} of run {self.run!r} at node {node!r} was charged and has no message, "
                "since its solver failed; it is never drawn again: begin a new run"
            )
        return None if content is None else _vector(content)


class FolderJournal(Journal):
    """Messages of a simulation in a folder, one file a round: nothing is spent, but nothing needs
    to be computed again.

    Parameters
    ----------
    path
        The folder; made where it is missing.
    nodes
        In the order of the messages' rows.
    """

    def __init__(self, path: str | Path, nodes: Sequence[str]) -> None:
        self.path, self.nodes = Path(path), tuple(nodes)
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def begun(self) -> bool:
        """Always: a simulation reserves nothing."""
        return True

    def reserve(self, plan: Sequence[Event]) -> None:
        """Refuse what ought to be in a ledger."""
        if not all(event.seeded for event in plan):
            raise DeclarationError(
                "a run with system entropy spends budget: give it ledgers, not a folder"
            )

    def sent(self, n: int) -> Messages | None:
        """Read the file of round n."""
        path = self._file(n)
        if not path.exists():
            return None
        try:
            return dict(zip(self.nodes, np.load(path, allow_pickle=False), strict=True))
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{path} is damaged; remove the folder and begin the run anew"
            ) from error

    def spend(self, n: int, events: Sequence[Event], messages: Messages) -> Messages:
        """Write the file of round n, whole."""
        content = io.BytesIO()
        np.save(content, np.array([messages[node] for node in self.nodes]), allow_pickle=False)
        write_bytes(self._file(n), content.getvalue())
        return messages

    def fail(self, n: int, events: Sequence[Event]) -> None:
        """Do nothing: a seed draws the same noise again."""

    def close(self, reason: str) -> None:
        """Remove the folder: the model is written."""
        rmtree(self.path)

    def keep(self, n: int, vectors: Messages) -> None:
        """Keep each node's vector in the folder."""
        for node, vector in vectors.items():
            _write_vector(self._beside, node, n, vector)

    def kept(self, n: int) -> Messages | None:
        """Read the vectors from the folder."""
        return _complete({node: _read_vector(self._beside, node, n) for node in self.nodes})

    def seal(self, node: str) -> Seal:
        """Return the seal in the folder, which goes when the run is over."""
        return Seal.beside(self._beside, node, any(self.path.glob("round-*.npy")))

    def _file(self, n: int) -> Path:
        return self.path / f"round-{n:06d}.npy"

    @property
    def _beside(self) -> Path:
        return self.path / "messages"


@contextmanager
def _of(node: str) -> Iterator[None]:
    """Name the node whose ledger refuses."""
    try:
        yield
    except BudgetRefused as error:
        raise type(error)(f"node {node!r}: {error}") from None


def _of_node(events: Sequence[Event], node: str) -> list[Event]:
    return [event for event in events if event.node == node]


def _complete(vectors: Mapping[str, Array | None]) -> Messages | None:
    """Return the vectors of all nodes; None where one is missing."""
    here = {node: vector for node, vector in vectors.items() if vector is not None}
    return here if len(here) == len(vectors) else None


def _vector(content: bytes) -> Array:
    return np.frombuffer(content, "<f8").astype(float)


def _vector_file(place: Path, run: str, n: int | str) -> Path:
    return place.with_name(f"{place.name}-own-{sha256(run.encode()).hexdigest()[:16]}-{n}")


def _write_vector(place: Path, run: str, n: int, vector: Array) -> None:
    content = np.asarray(vector, "<f8").tobytes()
    write_bytes(_vector_file(place, run, n), content, mode=0o600)
    _vector_file(place, run, n - 2).unlink(missing_ok=True)


def _read_vector(place: Path, run: str, n: int) -> Array | None:
    path = _vector_file(place, run, n)
    return _vector(path.read_bytes()) if path.exists() else None


def forget_vectors(place: Path, run: str) -> None:
    """Remove the private vectors and the key of a run, overwritten where the file system writes in
    place, and what a killed process had not finished writing.
    """
    name = escape(_vector_file(place, run, "").name)
    for pattern in (f"{name}*", f".{name}*"):
        for path in place.parent.glob(pattern):
            with suppress(OSError), path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink(missing_ok=True)
