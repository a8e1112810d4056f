"""Files of JSON that a silo signs: the signature covers the whole file."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from dynadp._files import canonical_json
from dynadp.errors import LedgerDamaged
from dynadp.runs.certificates import common_name, read_certificate
from dynadp.runs.identities import public_key, public_text, signing_key

_PURPOSE = b"dynadp signed file\0"  # so that no signature of a letter fits


def sign(content: Mapping[str, Any], identity: str | Path) -> dict[str, Any]:
    """Return the content with the public key of an identity, and its signature."""
    key = signing_key(Path(identity) / "sign.key")
    said = {**content, "key": public_text(key.public_key())}
    return said | {"signature": base64.b64encode(key.sign(_signed(said))).decode()}


def owner(identity: str | Path) -> str:
    """Return the name that a folder of keys is for."""
    return common_name(read_certificate(Path(identity) / "tls.pem"))


def check_signature(path: str | Path, content: Mapping[str, Any], key: str | None = None) -> str:
    """Return the key that signed; raise LedgerDamaged where the signature does not fit, or the key
    is not the one that is expected.
    """
    said = dict(content)
    try:
        signature = base64.b64decode(said.pop("signature"), validate=True)
        public_key(said["key"]).verify(signature, _signed(said))
    except (InvalidSignature, KeyError, TypeError, ValueError, AttributeError):
        raise LedgerDamaged(
            f"{path}: the signature does not fit what the file says: it was changed after it was "
            "signed; ask the silo for it anew"
        ) from None
    if key is not None and key != said["key"]:
        raise LedgerDamaged(
            f"{path} was signed with {said['key']}, and the node's key is {key}: somebody else "
            "made it, or it is of a time before the node had this key"
        )
    return str(said["key"])


def _signed(content: Mapping[str, Any]) -> bytes:
    return _PURPOSE + canonical_json(dict(content)).encode()
