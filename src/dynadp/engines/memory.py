"""A network in memory: nodes, letters, post offices and journals are real, links are a list.

It is the smallest engine, for trials and tests: of a mechanism or an exchange of your own, or of
what happens when letters are lost, repeated or late and nodes stop and start again. What its nodes
compute is what they compute on a real network.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dynadp.consensus import Absence, Journal, RoundProgress
from dynadp.data import Schema
from dynadp.engines.exchange import Awaiting, Letters, NodeExchange
from dynadp.engines.inbox import AcceptanceRules, Inbox, is_broadcast
from dynadp.engines.journal import FolderJournal
from dynadp.engines.letters import Kind, run_id
from dynadp.engines.node import NodeResult, NodeRun, node_rounds
from dynadp.errors import NodeLost
from dynadp.mechanisms import Draws
from dynadp.planning import Plan

ExchangeFor = Callable[["MemoryNode"], NodeExchange]


def memory_key(node: str) -> Ed25519PrivateKey:
    """Return the signing key of a node in memory: known to all, so it protects nobody."""
    return Ed25519PrivateKey.from_private_bytes(run_id(f"key of {node}"))


def memory_rules(
    schema: Schema, plan: Plan, absence: Absence | None = None
) -> dict[str, AcceptanceRules]:
    """Return which letters each node of a run in memory accepts."""
    runs = [NodeRun(node, schema, plan, absence or Absence()) for node in plan.bound.topology.nodes]
    keys = {run.me: memory_key(run.me).public_key() for run in runs}
    ids = run_id("trial"), run_id("config")
    return {run.me: run.rules(*ids, keys) for run in runs}


class MemoryNode:
    """One node: its files, and its part of the run while it is up.

    Override :meth:`open_journal` for a ledger, :meth:`open_draws` for other noise, and
    :meth:`checkpoint` to see the points of a round or to stop at one.

    Attributes
    ----------
    run, inbox
        What is public about the run; the node's letters while it is up.
    awaiting
        The letters that it waits for, or None.
    result
        The model that it ended with, or None.
    """

    def __init__(self, network: "MemoryNetwork", me: str) -> None:
        self.network, self.me = network, me
        self.run = NodeRun(me, network.schema, network.plan, network.absence)
        self.folder = network.folder / f"node{self.run.index}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.up = False
        self.awaiting: Awaiting | None = None
        self.result: NodeResult | None = None

    def open_journal(self) -> Journal:
        """Open the journal of this node's messages, at every start."""
        return FolderJournal(self.folder / "messages", [self.me])

    def open_draws(self) -> Draws:
        """Return the source of this node's noise, at every start."""
        return self.network.draws

    def checkpoint(self, point: str) -> None:
        """Do nothing; called at the points of a round, by name."""

    def on_round(self, progress: RoundProgress) -> None:
        """Do nothing; called after every round."""

    def on_again(self) -> None:
        """Do nothing; called where all rounds begin anew from their letters."""

    def publish(self, data: bytes, kind: Kind, n: int, author: str | None = None) -> None:
        """Send a letter to all neighbours."""
        self.network.send(self.me, data)

    @property
    def letters(self) -> Letters:
        """Sends and awaits letters for an exchange."""
        return Letters(self.inbox, self.publish, self.checkpoint)

    def start(self) -> None:
        """Open the files and begin the run, or go on with it."""
        network = self.network
        self.inbox = Inbox(
            self.folder / "letters.sqlite", network.rules[self.me], memory_key(self.me)
        )
        self.up, self.awaiting = True, None
        network.greet(self)
        self._rounds = node_rounds(
            self.run,
            network.rows[self.me],
            self.inbox,
            self.publish,
            self.open_journal(),
            self.open_draws(),
            exchange=network.exchange(self) if network.exchange else None,
            on_round=self.on_round,
            on_again=self.on_again,
            checkpoint=self.checkpoint,
            storage=network.storage,
        )

    def stop(self) -> None:
        """Close the files; what they hold stays."""
        if self.up:
            self._rounds.close()
            self.inbox.close()
        self.up, self.awaiting = False, None

    @property
    def missing(self) -> list[str]:
        """Whose letters the node waits for."""
        return self.awaiting.missing(self.inbox) if self.awaiting else []

    @property
    def ready(self) -> bool:
        """Whether the node can go on."""
        return self.up and self.result is None and not self.missing

    def step(self) -> None:
        """Go on until letters are missing or the run is over."""
        try:
            self.awaiting = next(self._rounds)
        except StopIteration as end:
            self.result, self.awaiting = end.value, None

    def give_up(self, *away: str) -> None:
        """Go on as after waiting too long for nodes: the run takes it, or ends with NodeLost."""
        given = away or tuple(self.missing)
        try:
            self.awaiting = self._rounds.throw(NodeLost(f"{', '.join(given)} stayed away", given))
        except StopIteration as end:
            self.result, self.awaiting = end.value, None

    def offer(self, data: bytes, via: str) -> None:
        """Take a letter from a neighbour; hand it on if it is new and for all nodes."""
        letter = self.inbox.offer(data, via)
        if letter is not None and is_broadcast(letter.kind, letter.round):
            self.network.send(self.me, data)


class MemoryNetwork:
    """All nodes of one run in this process, and the letters on their way.

    Parameters
    ----------
    schema, plan
        The declarations of the rows, and what the run does, bound to its consortium.
    rows
        Every node's rows: data of :func:`~dynadp.data.source`.
    folder
        Where letters and messages are kept.
    draws
        Where noise comes from.
    exchange
        Makes the exchange of a node; by default neighbours' plain letters are added.
    node
        The class of the nodes.
    storage
        ``auto``, ``dense`` or ``csr``.
    absence
        What happens when nodes stay away; by default the others wait.

    Attributes
    ----------
    nodes
        By name.
    on_the_way
        Letters as (handed over by, to, bytes); a test may drop, repeat or reorder them.
    """

    def __init__(
        self,
        schema: Schema,
        plan: Plan,
        rows: Mapping[str, Any],
        folder: str | Path,
        draws: Draws,
        *,
        exchange: ExchangeFor | None = None,
        node: Callable[["MemoryNetwork", str], MemoryNode] = MemoryNode,
        storage: str = "auto",
        absence: Absence | None = None,
    ) -> None:
        self.schema, self.plan, self.rows, self.folder = schema, plan, rows, Path(folder)
        self.draws, self.exchange, self.storage = draws, exchange, storage
        self.absence = absence or Absence()
        self.rules = memory_rules(schema, plan, self.absence)
        self.on_the_way: list[tuple[str, str, bytes]] = []
        self.nodes = {name: node(self, name) for name in self.rules}

    def send(self, via: str, data: bytes) -> None:
        """Put a letter on its way to all neighbours of a node."""
        self.on_the_way += [(via, to, data) for to in self.nodes[via].run.neighbours]

    def deliver(self, k: int = 0) -> None:
        """Take the k-th letter off the list and hand it over; it is lost if nobody is there."""
        via, to, data = self.on_the_way.pop(k)
        if self.nodes[to].up:
            self.nodes[to].offer(data, via)

    def greet(self, node: MemoryNode) -> None:
        """Show a node that starts over whom its neighbours hold sums."""
        for name in node.run.neighbours if node.inbox.rules.ballots else ():
            other = self.nodes.get(name)
            for data in other.inbox.last_held() if other and other.up else ():
                node.inbox.offer(data, name)

    def ask(self, node: MemoryNode) -> None:
        """Ask the neighbours of a waiting node for the letters that it misses."""
        for author in node.missing:
            assert node.awaiting is not None
            for whose, kind, n in node.awaiting.wanted(node.inbox, author):
                for name in node.run.neighbours if is_broadcast(kind, n) else (whose,):
                    other = self.nodes.get(name)  # an exchange may wait for anybody
                    if other and other.up and (data := other.inbox.answer(whose, kind, n)):
                        node.offer(data, name)

    def finish(self) -> dict[str, NodeResult]:
        """Start whoever is down, deliver every letter, ask for lost ones; return the results."""
        nodes = self.nodes.values()
        while any(node.result is None for node in nodes):
            before = self._state()
            for node in nodes:
                if not node.up:
                    node.start()
                if node.ready:
                    node.step()
            while self.on_the_way:
                self.deliver()
            for node in nodes:
                self.ask(node)
            if self._state() == before:
                waiting = {node.me: node.awaiting for node in nodes if node.result is None}
                raise NodeLost(
                    f"the network in memory stands still: who has not ended waits for letters that "
                    f"nobody sends: {waiting}; see to the exchange"
                )
        return {node.me: node.result for node in nodes if node.result is not None}

    def _state(self) -> list[Any]:
        return [
            (node.up, node.awaiting, len(node.missing) if node.up else 0, node.result is None)
            for node in self.nodes.values()
        ]

    def close(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            node.stop()

    def __enter__(self) -> "MemoryNetwork":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
