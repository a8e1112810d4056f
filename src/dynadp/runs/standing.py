"""Where a node's ledger stands, before a run and after it: shown to neighbours, and compared with
all that anybody remembers of it. And what the node does while another process keeps it locked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynadp.engines import LOG, Greetings, Links, PeerMemory, Stopped, Verifier
from dynadp.privacy import Ledger
from dynadp.runs.own_letters import require_entered


@dataclass
class Standing:
    """The ledger of one node in a run.

    Attributes
    ----------
    ledger
        The ledger; None in a SIMULATION, of which nothing is shown or compared.
    greetings
        Where the node shows its ledger, and hears what neighbours remember of it.
    folder
        The run folder.
    keys
        Public signing keys of all nodes, as the run file spells them.
    key
        This node's own.
    others
        Ledgers that this node had on purpose beside this one.
    """

    ledger: Ledger | None
    greetings: Greetings
    folder: Path
    keys: Mapping[str, str] = field(repr=False)
    key: Verifier = field(repr=False)
    others: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.ledger is not None and (anchor := self.ledger.anchor.path) is not None:
            memory = PeerMemory(anchor.with_suffix(".peers.json"), self.keys)
            self.greetings.peers = memory
        self.show()

    def show(self) -> None:
        """Show where the ledger stands now in all greetings to come."""
        if self.ledger is not None:
            self.greetings.ledger = self.ledger.state().mark

    def check(self) -> None:
        """Raise if neighbours remember more of the ledger, or earlier run folders hold letters that
        it does not know; then let the anchor name this run's folder.
        """
        if (ledger := self.ledger) is None:
            return
        self.greetings.require_contained(ledger.accounts_for, self.others)
        anchor, here = ledger.anchor, str(self.folder.resolve())
        earlier = [Path(one) for one in anchor.folders if one != here]
        require_entered(ledger, earlier, ledger.node, self.key)
        if here not in anchor.folders:
            anchor.folders.append(here)
            anchor.write(ledger.state().mark, ledger.node)


@dataclass
class LedgerWait:
    """Says that a node waits for its ledger, which another process keeps locked: in its status, and
    once in its log. The node can be stopped meanwhile; what it drew was not sent.

    Attributes
    ----------
    links
        The node's, with its status and its stop.
    """

    links: Links
    _waited: float = 0.0

    def __call__(self, seconds: float) -> None:
        """Take the seconds so far; 0 when the ledger is free again."""
        if not seconds:
            LOG.info("the ledger is free again, after %.0f seconds", self._waited)
            self.links.waiting = ""
        elif not self._waited:
            LOG.warning(
                "another process keeps the ledger locked, such as one that reads it; the node "
                "waits until it is free"
            )
        self._waited = seconds
        if seconds:
            self.links.waiting = "the ledger, which another process keeps locked"
        if seconds and self.links.stop.is_set():
            raise Stopped
