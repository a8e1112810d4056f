"""A ledger's entries, signed by their silo: what it says it has spent, for others to check.

The signature covers the whole file. Formats of signed files have a name, and ``dynadp verify``
finds by it what there is to check.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynadp._files import read_file, write_whole
from dynadp.engines import now
from dynadp.errors import DeclarationError, LedgerDamaged, RecordError
from dynadp.privacy import LedgerSummary, exported_entries, replayed
from dynadp.runs.ledgers import open_readable
from dynadp.runs.signing import check_signature, owner, sign

FORMAT, VERSION = "dynadp-ledger-export", 1


@dataclass(frozen=True)
class LedgerExport:
    """An export that was checked: its signature, its chain, and the rules of ledgers.

    Attributes
    ----------
    node, made, key
        Whose ledger, when it was exported, and the signing key.
    known
        Whether that key was expected; a signature alone does not say whose it is.
    summary
        What the ledger says.
    """

    node: str
    made: str
    key: str
    known: bool
    summary: LedgerSummary = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return what was found."""
        shown = {name: getattr(self, name) for name in ("node", "made", "key")}
        return {
            "format": FORMAT,
            **shown,
            "key_known": self.known,
            "ledger": self.summary.to_json(),
        }


def export_ledger(path: str | Path, identity: str | Path, out: str | Path) -> LedgerSummary:
    """Write all entries of a ledger, without what was released, with the silo's signature.

    Parameters
    ----------
    path, identity
        The ledger, and the folder of its node's keys.
    out
        The file to write; must not exist.
    """
    out, name = Path(out), owner(identity)
    if out.exists():
        raise RecordError(f"{out} exists; nothing is overwritten, choose another file")
    with open_readable(path) as ledger:
        if ledger.node != name:
            raise DeclarationError(
                f"{path} is the ledger of {ledger.node!r}, and {identity} the identity of "
                f"{name!r}; each silo signs its own"
            )
        summary = LedgerSummary.of(ledger)
        if problems := ledger.verify(summary.head):
            raise LedgerDamaged(f"{path}: {problems[0]}")
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "node": name,
            "made": now(),
            "entries": exported_entries(ledger),
        }
    write_whole(out, json.dumps(sign(content, identity), indent=1) + "\n")
    return summary


def verify_export(
    path: str | Path, *, key: str | None = None, head: str | None = None
) -> LedgerExport:
    """Check an export; raise LedgerDamaged where anything is wrong with it.

    Parameters
    ----------
    path
        The file.
    key
        The node's signing key, as the run file names it.
    head
        An earlier head of the ledger, which the export must contain.
    """
    path = Path(path)
    content = read_file(path, FORMAT, VERSION)
    said = check_signature(path, content, key)
    try:
        node, made, entries = content["node"], content["made"], content["entries"]
        if not isinstance(entries, list):
            raise TypeError
    except (KeyError, TypeError):
        raise LedgerDamaged(f"{path} does not say whose ledger it is, or has no entries") from None
    try:
        summary = replayed(entries, head)
    except LedgerDamaged as error:
        raise LedgerDamaged(f"{path}: {error}") from None
    if summary.node != node:
        raise LedgerDamaged(f"{path}: the entries are of {summary.node!r}, the file of {node!r}")
    return LedgerExport(node, made, said, key is not None, summary)
