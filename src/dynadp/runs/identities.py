"""Who a node is: its certificate, which links show, and its signing key, which letters carry.

Links are mutual TLS with certificates that the consortium's authority signed
(:mod:`dynadp.runs.authorities`), common name = the node's name. Messages are signed besides
(Ed25519), so that they can be believed whoever carried them. Files::

    NODE/  ca.pem  tls.pem  tls.key (0600)  sign.key (0600)  revoked.pem (where somebody is out)

A silo that trusts nobody with its keys makes them itself (:func:`request`) and lets the authority
sign the request alone. ``ca.pem`` may hold several authorities, ``tls.pem`` the certificates
between the node's and the authority's after the node's own.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dynadp.errors import IdentityError
from dynadp.runs.certificates import (
    TlsKey,
    chain,
    common_name,
    fingerprint,
    general_names,
    hosts_of,
    new_folder,
    pem,
    read_certificate,
    read_certificates,
    read_private,
    require_authority,
    require_usable,
    require_valid,
    subject_of,
    write,
)
from dynadp.runs.revocations import RevocationFile

_PREFIX = "ed25519:"


@dataclass(frozen=True)
class Identity:
    """A node's folder, read and checked.

    Attributes
    ----------
    name, hosts
        The common name of its certificate, and the hosts that it names.
    folder
        Where its files are.
    expires
        When its certificate, or an authority's above it, ends.
    key
        Signs messages.
    revoked
        Who is out.
    fingerprint
        Of the key that links use.
    """

    name: str
    folder: Path
    expires: datetime
    key: Ed25519PrivateKey = field(repr=False)
    hosts: tuple[str, ...]
    revoked: RevocationFile = field(repr=False)
    fingerprint: str

    @classmethod
    def load(cls, folder: str | Path, now: datetime) -> "Identity":
        """Read a node's folder; refuses what is expired, revoked, not of its authority, of no use
        to links, or open to other users.
        """
        folder = Path(folder)
        certificates = read_certificates(folder / "tls.pem")
        authorities = read_certificates(folder / "ca.pem")
        own = certificates[0]
        key, tls = signing_key(folder / "sign.key"), read_private(folder / "tls.key")
        if not isinstance(tls, TlsKey) or tls.public_key() != own.public_key():
            raise IdentityError(
                f"{folder}: tls.key is not the key of tls.pem; put the pair back, "
                f"or renew the certificate"
            )
        way = chain(certificates, authorities)
        if way is None:
            raise IdentityError(
                f"{folder}: tls.pem was not signed by the authority of ca.pem, nor by one whose "
                "certificate follows it in tls.pem; ask the consortium for both files anew"
            )
        try:
            name = common_name(own)
            require_usable(own)
            for authority in way[1:]:
                require_authority(authority)
            for found in way:
                require_valid("authority" if found is not own else "certificate", found, now)
        except IdentityError as error:
            raise IdentityError(f"{folder}: {error}") from None
        revoked = RevocationFile(folder, way[1:])
        if name in revoked.names:
            raise IdentityError(
                f"{folder}: {name} is on the authority's list of revoked certificates "
                "(revoked.pem); ask the authority, which can take it in again"
            )
        expires = min(one.not_valid_after_utc for one in way)
        shown = fingerprint(own.public_key())
        return cls(name, folder, expires, key, hosts_of(own), revoked, shown)

    @property
    def public(self) -> str:
        """Its public signing key, as run files spell it."""
        return public_text(self.key.public_key())


def request(name: str, hosts: Sequence[str], out: str | Path) -> Path:
    """At the silo: make its keys, and a request for the authority."""
    subject_of(name)
    return _requested(
        name,
        general_names(hosts),
        out,
        ec.generate_private_key(ec.SECP256R1()),
        Ed25519PrivateKey.generate(),
    )


def request_again(
    folder: str | Path, out: str | Path, hosts: Sequence[str] = (), *, new_key: bool = False
) -> Path:
    """At the silo: a request for another certificate of the same node, in another folder.

    Its signing key stays, so run files stay as they are.

    Parameters
    ----------
    folder, out
        The node's folder, and the one to make.
    hosts
        Where it is dialled from now on; by default as before.
    new_key
        Whether links get a new key.
    """
    folder = Path(folder)
    old = read_certificate(folder / "tls.pem")
    tls: object = ec.generate_private_key(ec.SECP256R1())
    if not new_key:
        tls = read_private(folder / "tls.key")
        if not isinstance(tls, TlsKey):
            raise IdentityError(f"{folder / 'tls.key'} is no key for links; give --new-key")
    sign = signing_key(folder / "sign.key")
    return _requested(common_name(old), general_names(hosts or hosts_of(old)), out, tls, sign)


def _requested(
    name: str,
    hosts: x509.SubjectAlternativeName,
    out: str | Path,
    tls: object,
    sign: Ed25519PrivateKey,
) -> Path:
    assert isinstance(tls, TlsKey)
    out = new_folder(out)
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject_of(name))
        .add_extension(hosts, critical=False)
        .sign(tls, hashes.SHA256())
    )
    write(out / "tls.key", pem(tls), 0o600)
    write(out / "sign.key", pem(sign), 0o600)
    write(out / "request.csr", pem(asked))
    return out / "request.csr"


def signing_key(path: Path) -> Ed25519PrivateKey:
    """A node's signing key."""
    key = read_private(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            f"{path} is not an Ed25519 key; use the sign.key that `dynadp pki` made"
        )
    return key


def public_text(key: Ed25519PublicKey) -> str:
    """A public signing key as run files spell it: ``ed25519:`` and base64."""
    return _PREFIX + base64.b64encode(key.public_bytes_raw()).decode()


def key_fingerprint(public: str) -> str:
    """What people compare of a public signing key, over another channel: the first 16 bytes of its
    SHA-256, in groups of four to read aloud.
    """
    found = hashlib.sha256(public_key(public).public_bytes_raw()).hexdigest()[:32]
    return " ".join(found[i : i + 4] for i in range(0, len(found), 4))


def public_key(text: str) -> Ed25519PublicKey:
    """Back from a run file's spelling."""
    try:
        if not text.startswith(_PREFIX):
            raise ValueError
        return Ed25519PublicKey.from_public_bytes(
            base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        )
    except ValueError:
        raise IdentityError(
            "a signing key is spelled ed25519: and 44 letters of base64, as `dynadp pki` prints it"
        ) from None
