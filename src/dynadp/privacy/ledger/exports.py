"""The entries of a ledger as JSON, for others to check: all of them, each release by its hash.

Whoever reads them follows the same rules as the ledger itself: entries are chained, every release
was reserved, and every reservation had room under the cap.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dynadp.errors import LedgerDamaged
from dynadp.privacy.ledger.entries import Entry
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary

_SHOWN = ("id", "at", "who", "kind", "run", "round", "content", "previous", "hash")


@dataclass(frozen=True)
class ExportedEntry(Entry):
    """An entry whose message is known by its hash alone.

    Attributes
    ----------
    shown
        The hash.
    """

    shown: str | None = None

    @property
    def message_hash(self) -> str | None:
        """SHA-256 of the message."""
        return self.shown


def exported_entries(ledger: Ledger) -> list[dict[str, Any]]:
    """Return all entries of a ledger, without what was released."""
    return [
        {name: getattr(entry, name) for name in _SHOWN} | {"message": entry.message_hash}
        for entry in ledger.entries()
    ]


def replayed(entries: Iterable[Any], head: str | None = None) -> LedgerSummary:
    """Return the summary of the ledger whose entries these are; raise where they do not follow
    from each other.

    Parameters
    ----------
    entries
        As :func:`exported_entries` returns them.
    head
        An earlier head, which must be among them.
    """
    summary, heads = LedgerSummary(), set[str]()
    for one in entries:
        if not isinstance(one, dict) or set(one) != {*_SHOWN, "message"}:
            raise LedgerDamaged("an entry of the export is not one of a ledger")
        fields = {name: one[name] for name in _SHOWN}
        if problem := summary.take(ExportedEntry(**fields, shown=one["message"])):
            raise LedgerDamaged(problem)
        heads.add(summary.head)
    if not heads:
        raise LedgerDamaged("the export has no entries")
    if head is not None and head not in heads:
        raise LedgerDamaged(
            f"the export does not contain the head {head}: the ledger was cut, rolled back or "
            "replaced before it was made"
        )
    return summary
