"""An actor's orders for one of its nodes on Ray: paths, and what is public about the run.

What must outlive an actor is in the nodes' ledgers, on storage that all hosts share; a post office
is in memory.

*Two incarnations at once.* A host that is cut off may be given up for lost while its actors still
work. Whoever enters a round first has drawn for it; the other one is refused by the ledger, throws
its own draw away unsent, and sends what is entered.
"""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dynadp.consensus import Journal, no_checkpoint
from dynadp.data import NodeRows, source
from dynadp.engines.inbox import Inbox
from dynadp.engines.journal import FolderJournal, LedgerJournal
from dynadp.engines.letters import run_id
from dynadp.engines.node import NodeRun
from dynadp.mechanisms import Draws
from dynadp.privacy import Event, Ledger


class Checksum:
    """SHA-512 in the place of a signature: finds damage, proves nothing.

    A key would keep nobody out: who reaches the cluster can run any code there, and read the key.
    """

    def sign(self, data: bytes, /) -> bytes:
        """64 bytes, as a signature has."""
        return hashlib.sha512(data).digest()

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise unless they fit."""
        if signature != self.sign(data):
            raise ValueError("the checksum is another one")


@dataclass(frozen=True)
class ActorSpec:
    """What an actor has to know about one of its nodes: paths, and what is public.

    Attributes
    ----------
    part
        What is public about the run, from this node.
    rows, separator, memory
        The file of its rows, where all hosts find it; and the limit on its memory, in bytes.
    run, config
        The run's name in ledgers, and 32 bytes that stand for all that was decided.
    events
        What the node will spend, reserved already.
    ledger
        Where it enters what it spends; None in a SIMULATION, which keeps its messages in
        ``messages``.
    messages
        A folder for those.
    dataset, who
        For the ledger.
    draws
        Where noise comes from.
    checkpoint
        Called at the points of a round, by name.
    """

    part: NodeRun
    rows: Path
    separator: Any
    memory: int | None
    run: str
    config: bytes = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    ledger: Path | None
    messages: Path
    dataset: str
    who: str
    draws: Draws
    checkpoint: Callable[[str], None] = no_checkpoint

    def prepared(self) -> NodeRows:
        """Return the node's rows, to be surveyed and bounded where this runs."""
        given = source(self.rows, separator=self.separator, memory=self.memory)
        declared = int(self.part.plan.bound.counts[self.part.index])
        return NodeRows(self.part.schema, given, self.part.me, declared=declared)

    def journal(self, stack: ExitStack) -> Journal:
        """Return where the node's messages are entered before they leave."""
        me = self.part.me
        if self.ledger is None:
            return FolderJournal(self.messages / quote(me, safe=" "), [me])
        ledger = stack.enter_context(Ledger.open(self.ledger))
        journal = LedgerJournal(
            {me: ledger}, self.run, dataset=self.dataset, who=self.who, resume=True
        )
        journal.reserve(self.events)
        return journal

    def inbox(self) -> Inbox:
        """Return a post office in memory: own letters come from the ledger again, and others from
        their authors.
        """
        keys = dict.fromkeys(self.part.topology.nodes, Checksum())
        rules = self.part.rules(run_id(self.run), self.config, keys)
        return Inbox(":memory:", rules, Checksum())
