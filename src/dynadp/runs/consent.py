"""A signed approval: somebody answers for what a silo will release in one run.

It is a small file over the hash of the terms (:attr:`~dynadp.runs.silo.SiloRun.terms`): the
configuration with its schema and plan, the cost, who gets messages, the ledger and its cap. Whoever
changes one of them needs a new one. The signature is Ed25519, by the silo's own key or by that of
an approver whom NODE.toml names.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dynadp._files import canonical_json, digest, read_file, write_whole
from dynadp.errors import NotApproved, RecordError
from dynadp.runs.identities import public_key, public_text

FORMAT, VERSION = "dynadp-approval", 1
_PURPOSE = b"dynadp approval 1\n"  # no letter begins like this


@dataclass(frozen=True)
class Approval:
    """The content of an approval.

    Attributes
    ----------
    run, node, terms
        What was approved: names for people, and the hash of the terms.
    approver, by, at
        The public key that signed; the login name and the time of the signature.
    signature
        Over all the rest, in base64.
    """

    run: str
    node: str
    terms: str
    approver: str
    by: str
    at: str
    signature: str = ""

    @classmethod
    def sign(
        cls, terms: Mapping[str, Any], key: Ed25519PrivateKey, *, by: str, at: str
    ) -> "Approval":
        """Approve these terms."""
        run, node = terms["config"]["run"]["name"], terms["node"]
        made = cls(run, node, digest(terms), public_text(key.public_key()), by, at)
        return replace(made, signature=base64.b64encode(key.sign(made._signed)).decode())

    @classmethod
    def load(cls, path: Path) -> "Approval":
        """Read an approval; its signature is not checked yet."""
        content = read_file(path, FORMAT, VERSION)
        try:
            found = cls(**{k: v for k, v in content.items() if k not in ("format", "version")})
        except TypeError:
            found = None
        if found is None or not all(isinstance(one, str) for one in asdict(found).values()):
            raise RecordError(
                f"{path} lacks what an approval holds; approve the run again: dynadp approve"
            )
        return found

    def save(self, path: Path) -> None:
        """Write the file."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        write_whole(path, json.dumps(content, indent=1) + "\n")

    @property
    def _signed(self) -> bytes:
        content = {name: value for name, value in asdict(self).items() if name != "signature"}
        return _PURPOSE + canonical_json(content).encode()

    @property
    def genuine(self) -> bool:
        """Whether the key that it names signed it."""
        try:
            signature = base64.b64decode(self.signature, validate=True)
            public_key(self.approver).verify(signature, self._signed)
        except (InvalidSignature, ValueError):
            return False
        return True


def approval_of(path: Path, terms: Mapping[str, Any], approver: str) -> Approval:
    """Return the approval of these terms by this approver; raise where there is none.

    Parameters
    ----------
    path
        Where it should be.
    terms, approver
        What has to be approved, and by which public key.
    """
    if not path.exists():
        raise NotApproved(f"there is no approval at {path}")
    found = Approval.load(path)
    if found.approver != approver:
        raise NotApproved(f"{path} was signed by {found.approver}; the approver here is {approver}")
    if not found.genuine:
        raise NotApproved(
            f"{path} is not signed by the key that it names: it was changed, or is damaged"
        )
    if found.terms != digest(terms):
        raise NotApproved(
            f"{path} approves run {found.run!r} of {found.node} as it was on {found.at[:10]}: the "
            "run file, the schema, the plan, who gets messages, the file of rows, or the ledger's "
            "cap are others now"
        )
    return found
