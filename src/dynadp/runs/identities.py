"""Who is who in a network of silos: the consortium's authority, each node's certificate, and its
signing key.

Links are mutual TLS with certificates (EC P-256) that the consortium's authority signed, common
name = the node's name. Messages are signed besides (Ed25519), so that they can be believed whoever
carried them. Files::

    AUTHORITY/  ca.pem  ca.key (0600)  issued/NAME.pem
    NODE/       ca.pem  tls.pem  tls.key (0600)  sign.key (0600)

A silo that trusts nobody with its keys makes them itself (:func:`request`) and lets the authority
sign the request alone.
"""

import base64
import hashlib
import ipaddress
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dynadp._files import write_bytes
from dynadp.errors import IdentityError

AUTHORITY_DAYS, NODE_DAYS = 3650, 365
_EARLY = timedelta(minutes=5)  # clocks differ
_PREFIX = "ed25519:"
_LONGEST = 64  # bytes of a common name, in UTF-8
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\Z", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Identity:
    """A node's folder, read and checked.

    Attributes
    ----------
    name
        The common name of its certificate.
    folder
        Where its files are.
    expires
        When its certificate, or the authority's, ends.
    key
        Signs messages.
    """

    name: str
    folder: Path
    expires: datetime
    key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path, now: datetime) -> "Identity":
        """Read a node's folder; refuses what is expired, not of one authority, or open to other
        users.
        """
        folder = Path(folder)
        own, authority = _certificate(folder / "tls.pem"), _certificate(folder / "ca.pem")
        key, tls = signing_key(folder / "sign.key"), _private(folder / "tls.key")
        if not isinstance(tls, ec.EllipticCurvePrivateKey) or tls.public_key() != own.public_key():
            raise IdentityError(
                f"{folder}: tls.key is not the key of tls.pem; put the pair back, "
                f"or renew the certificate"
            )
        try:
            own.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            raise IdentityError(
                f"{folder}: tls.pem was not signed by the authority of ca.pem; ask the consortium "
                f"for both files anew"
            ) from None
        for title, found in (("certificate", own), ("authority", authority)):
            if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
                raise IdentityError(
                    f"{folder}: the {title} is valid from {found.not_valid_before_utc:%Y-%m-%d} to "
                    f"{found.not_valid_after_utc:%Y-%m-%d}, today is {now:%Y-%m-%d}; renew it "
                    f"with `dynadp pki renew`"
                )
        return cls(
            common_name(own),
            folder,
            min(own.not_valid_after_utc, authority.not_valid_after_utc),
            key,
        )

    @property
    def public(self) -> str:
        """Its public signing key, as run files spell it."""
        return public_text(self.key.public_key())


def make_authority(
    folder: str | Path, name: str, now: datetime, days: int = AUTHORITY_DAYS
) -> None:
    """Make a consortium's authority in an empty folder."""
    folder = _new_folder(folder)
    (folder / "issued").mkdir()
    _write_authority(folder, name, now, days)


def _new_folder(path: str | Path) -> Path:
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise IdentityError(f"{path} is not empty; nothing is overwritten, choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write_authority(folder: Path, name: str, now: datetime, days: int) -> None:
    key, subject = ec.generate_private_key(ec.SECP256R1()), _subject(name)
    certificate = _signed(
        key,
        subject,
        subject,
        key.public_key(),
        (now, now + timedelta(days=days)),
        x509.BasicConstraints(ca=True, path_length=0),
        # signs certificates and lists
        x509.KeyUsage(False, False, False, False, False, True, True, False, False),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    )
    _write(folder / "ca.key", _pem(key), 0o600)
    _write(folder / "ca.pem", _pem(certificate))


def make_node(
    authority: str | Path,
    name: str,
    hosts: Sequence[str],
    out: str | Path,
    now: datetime,
    days: int,
) -> Identity:
    """Make keys and certificate of a node at once, on a machine that the silo trusts with them."""
    made = request(name, hosts, out)
    sign_request(authority, made, out, now, days)
    return Identity.load(out, now)


def request(name: str, hosts: Sequence[str], out: str | Path) -> Path:
    """At the silo: make its keys, and a request for the authority."""
    out = _new_folder(out)
    key = ec.generate_private_key(ec.SECP256R1())
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(name))
        .add_extension(x509.SubjectAlternativeName(_hosts(hosts)), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(out / "tls.key", _pem(key), 0o600)
    _write(out / "sign.key", _pem(Ed25519PrivateKey.generate()), 0o600)
    _write(out / "request.csr", _pem(asked))
    return out / "request.csr"


def sign_request(
    authority: str | Path, path: str | Path, out: str | Path, now: datetime, days: int = NODE_DAYS
) -> str:
    """At the authority: sign a silo's request; writes tls.pem and ca.pem into ``out`` and returns
    the node's name.
    """
    authority, out = Path(authority), Path(out)
    content = _read(Path(path))
    try:
        asked = x509.load_pem_x509_csr(content)
        hosts = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        sound = asked.is_signature_valid
    except (ValueError, x509.ExtensionNotFound, UnsupportedAlgorithm):
        raise IdentityError(
            f"{path} is not a certificate request; make one with `dynadp pki request`"
        ) from None
    name = common_name(asked)
    if not sound:
        raise IdentityError(f"{path} was changed after it was signed; ask {name} to send it again")
    issued = _copy(authority, name)
    if issued.exists():
        raise IdentityError(
            f"{name} has a certificate of this authority already; renew it, or revoke it first"
        )
    certificate = _issue(authority, asked.subject, hosts, asked.public_key(), now, days)
    _write(issued, _pem(certificate))
    _write(out / "tls.pem", _pem(certificate))
    _write(out / "ca.pem", _read(authority / "ca.pem"))
    return name


def _copy(authority: Path, name: str) -> Path:
    return authority / "issued" / f"{quote(_checked(name), safe=' ')}.pem"


def _issued(authority: Path, name: str) -> Path:
    """Return the authority's copy of a node's certificate."""
    path = _copy(authority, name)
    if not path.exists():
        raise IdentityError(
            f"{name} has no certificate of this authority; it issued "
            f"{', '.join(members(authority)) or 'none'}"
        )
    return path


def renew(authority: str | Path, name: str, now: datetime, days: int = NODE_DAYS) -> Path:
    """A new certificate for a node's old key and hosts; returns the file to send to the silo as its
    tls.pem.
    """
    authority = Path(authority)
    path = _issued(authority, name)
    old = _certificate(path)
    hosts = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    _write(path, _pem(_issue(authority, old.subject, hosts, old.public_key(), now, days)))
    return path


def revoke(authority: str | Path, name: str, now: datetime, days: int = NODE_DAYS) -> list[Path]:
    """Shut a node out: a new authority, and new certificates of it for all other nodes' old keys.

    Links know no list of revoked certificates, so an authority that never signed the node takes the
    old one's place. Every other silo gets the new ca.pem and its new certificate, whose files are
    returned.
    """
    authority = Path(authority)
    path = _issued(authority, name)
    old = _certificate(authority / "ca.pem")
    lifetime = (old.not_valid_after_utc - old.not_valid_before_utc).days
    _write_authority(authority, common_name(old), now, lifetime)
    renewed = [renew(authority, other, now, days) for other in members(authority) if other != name]
    path.unlink()  # last, so that a revocation that was cut short can be begun again
    return renewed


def members(authority: str | Path) -> list[str]:
    """Names of the nodes that hold a certificate of the authority."""
    return sorted(
        common_name(_certificate(path)) for path in (Path(authority) / "issued").glob("*.pem")
    )


def signing_key(path: Path) -> Ed25519PrivateKey:
    """A node's signing key."""
    key = _private(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            f"{path} is not an Ed25519 key; use the sign.key that `dynadp pki` made"
        )
    return key


def public_text(key: Ed25519PublicKey) -> str:
    """A public signing key as run files spell it: ``ed25519:`` and base64."""
    return _PREFIX + base64.b64encode(key.public_bytes_raw()).decode()


def fingerprint(public: str) -> str:
    """What people compare of a public signing key, over another channel: SHA-256 of its 32 bytes,
    the first 16 bytes of it in hexadecimal.
    """
    found = hashlib.sha256(public_key(public).public_bytes_raw()).hexdigest()[:32]
    return ":".join(found[i : i + 4] for i in range(0, len(found), 4))


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


def common_name(of: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name of a node."""
    found = of.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise IdentityError("a certificate must have exactly one common name, the node's name")
    return _checked(str(found[0].value))


def _issue(
    authority: Path,
    subject: x509.Name,
    hosts: x509.SubjectAlternativeName,
    public: object,
    now: datetime,
    days: int,
) -> x509.Certificate:
    issuer, key = _certificate(authority / "ca.pem"), _private(authority / "ca.key")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(
        key, ec.EllipticCurvePrivateKey
    ):
        raise IdentityError("certificates are for elliptic curve keys; make them with `dynadp pki`")
    end = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    if end <= now:
        raise IdentityError(
            f"{authority}: the authority ended on {end:%Y-%m-%d}; make a new one "
            f"with `dynadp pki init`"
        )
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _signed(
        key,
        issuer.subject,
        subject,
        public,
        (now, end),
        x509.BasicConstraints(ca=False, path_length=None),
        hosts,
        x509.ExtendedKeyUsage(usages),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
    )


def _signed(
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    valid: tuple[datetime, datetime],
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    """Return a certificate for a public key, signed with the issuer's key."""
    start, end = valid
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(start - _EARLY).not_valid_after(end)
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _checked(name))])


def _hosts(hosts: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.match(host):
                raise IdentityError(
                    f"host {host!r} is neither an address nor a host name in ASCII, such as "
                    f"silo.example.org; give no port"
                ) from None
            found.append(x509.DNSName(host))
    if not found:
        raise IdentityError(
            "a node needs at least one host: the name or address that its neighbours dial"
        )
    return found


def _checked(name: str) -> str:
    if not name or not name.isprintable() or len(name.encode()) > _LONGEST:
        raise IdentityError(
            f"a node's name must be a line of 1 to {_LONGEST} letters (bytes in "
            f"UTF-8); {name!r} is not"
        )
    return name


def _certificate(path: Path) -> x509.Certificate:
    content = _read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise IdentityError(f"{path} is not a certificate in PEM") from None


def _private(path: Path) -> object:
    content = _read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise IdentityError(
            f"{path} is a secret that other users may read; make it yours alone: chmod 600 {path}"
        )
    try:
        return serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError(f"{path} is not a private key in PEM without a password") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error


def _pem(
    of: x509.Certificate
    | x509.CertificateSigningRequest
    | ec.EllipticCurvePrivateKey
    | Ed25519PrivateKey,
) -> bytes:
    if isinstance(of, x509.Certificate | x509.CertificateSigningRequest):
        return of.public_bytes(serialization.Encoding.PEM)
    shape = serialization.PrivateFormat.PKCS8
    return of.private_bytes(serialization.Encoding.PEM, shape, serialization.NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    try:
        write_bytes(path, content, mode=mode)
    except OSError as error:
        raise IdentityError(f"cannot write {path}: {error.strerror}") from error
