"""A ledger's entries, signed by their silo: what it says it has spent, for others to check.

The signature covers the whole file. Formats of signed files have a name, and ``dynadp verify``
finds by it what there is to check.
"""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from dynadp._files import canonical_json, read_file, write_whole
from dynadp.engines import now
from dynadp.errors import DeclarationError, LedgerDamaged, RecordError
from dynadp.privacy import LedgerSummary, exported_entries, replayed
from dynadp.runs.certificates import common_name, read_certificate
from dynadp.runs.identities import public_key, public_text, signing_key
from dynadp.runs.ledgers import open_readable

FORMAT, VERSION = "dynadp-ledger-export", 1
_PURPOSE = b"dynadp signed file\0"  # so that no signature of a letter fits


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
    folder, out = Path(identity), Path(out)
    key, name = signing_key(folder / "sign.key"), common_name(read_certificate(folder / "tls.pem"))
    if out.exists():
        raise RecordError(f"{out} exists; nothing is overwritten, choose another file")
    with open_readable(path) as ledger:
        if ledger.node != name:
            raise DeclarationError(
                f"{path} is the ledger of {ledger.node!r}, and {folder} the identity of {name!r}; "
                "each silo signs its own"
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
            "key": public_text(key.public_key()),
        }
    signature = base64.b64encode(key.sign(_signed(content))).decode()
    write_whole(out, json.dumps(content | {"signature": signature}, indent=1) + "\n")
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
    try:
        said, signature = content["key"], base64.b64decode(content.pop("signature"), validate=True)
        public_key(said).verify(signature, _signed(content))
        node, made, entries = content["node"], content["made"], content["entries"]
        if not isinstance(entries, list):
            raise TypeError
    except (InvalidSignature, KeyError, TypeError, ValueError, AttributeError):
        raise LedgerDamaged(
            f"{path}: the signature does not fit what the file says: it was changed after it was "
            "signed; ask the silo for it anew"
        ) from None
    if key is not None and key != said:
        raise LedgerDamaged(
            f"{path} was signed with {said}, and the node's key is {key}: somebody else made it, "
            "or it is of a time before the node had this key"
        )
    try:
        summary = replayed(entries, head)
    except LedgerDamaged as error:
        raise LedgerDamaged(f"{path}: {error}") from None
    if summary.node != node:
        raise LedgerDamaged(f"{path}: the entries are of {summary.node!r}, the file of {node!r}")
    return LedgerExport(node, made, said, key is not None, summary)


def _signed(content: dict[str, Any]) -> bytes:
    return _PURPOSE + canonical_json(content).encode()
