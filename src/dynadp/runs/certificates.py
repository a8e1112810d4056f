"""Certificates, requests and keys as files in PEM, read and checked.

Certificates may come from ``dynadp pki`` or from an organisation's own authority; what links need
of them is checked here, with a sentence for each thing that is missing.
"""

import hashlib
import ipaddress
import re
import stat
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dynadp._files import write_bytes
from dynadp.errors import IdentityError

TlsKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
TlsPublic = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
_LONGEST = 64  # bytes of a common name, in UTF-8
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\Z", re.IGNORECASE | re.ASCII)
_CURVES, _RSA_BITS = ("secp256r1", "secp384r1"), 2048  # that links can use
_DEEPEST = 8  # certificates between a node's and the authority's


def common_name(of: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name of a node."""
    found = of.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise IdentityError("a certificate must have exactly one common name, the node's name")
    return checked_name(str(found[0].value))


def checked_name(name: str) -> str:
    """Return a name, if a certificate can hold it."""
    if not name or not name.isprintable() or len(name.encode()) > _LONGEST:
        raise IdentityError(
            f"a node's name must be a line of 1 to {_LONGEST} letters (bytes in "
            f"UTF-8); {name!r} is not"
        )
    return name


def subject_of(name: str) -> x509.Name:
    """The subject of a node's certificate."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, checked_name(name))])


def general_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    """Hosts, as a certificate names them."""
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.match(host):
                raise IdentityError(
                    f"host {host!r} is neither an address nor a host name in ASCII, such as "
                    f"silo.example.org; give no port, and no wildcard"
                ) from None
            found.append(x509.DNSName(host))
    if not found:
        raise IdentityError(
            "a node needs at least one host: the name or address that its neighbours dial"
        )
    return x509.SubjectAlternativeName(found)


def hosts_of(of: x509.Certificate | x509.CertificateSigningRequest) -> tuple[str, ...]:
    """The hosts that a certificate or a request names: names and addresses, each of one machine."""
    try:
        names = of.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise IdentityError(
            "it names no host (no subject alternative name), and links do not look for one in the "
            "common name: name what neighbours dial"
        ) from None
    if not all(isinstance(name, x509.DNSName | x509.IPAddress) for name in names):
        raise IdentityError(
            "it names something that is neither a host nor an address; name what neighbours dial"
        )
    found = tuple(str(name.value) for name in names)
    general_names(found)
    return found


def fingerprint(public: object) -> str:
    """SHA-256 of a public key, in groups of four to read aloud."""
    assert isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    shape = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    found = hashlib.sha256(public.public_bytes(*shape)).hexdigest()
    return " ".join(found[i : i + 4] for i in range(0, len(found), 4))


def usable_key(public: object) -> TlsPublic:
    """Return a public key that links can use."""
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in _CURVES:
        return public
    if isinstance(public, rsa.RSAPublicKey) and public.key_size >= _RSA_BITS:
        return public
    raise IdentityError(
        "certificates are for elliptic curve keys (P-256, P-384) or RSA keys of at least "
        f"{_RSA_BITS} bits; make the key with `dynadp pki request`"
    )


def require_usable(certificate: x509.Certificate) -> None:
    """Raise where links could not use a node's certificate, whoever signed it."""
    usable_key(certificate.public_key())
    hosts_of(certificate)
    extensions = certificate.extensions
    for found in extensions:
        if isinstance(found.value, x509.ExtendedKeyUsage) and not {
            ExtendedKeyUsageOID.SERVER_AUTH,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        } <= set(found.value):
            raise IdentityError(
                "its extended key usage must have both serverAuth and clientAuth: a node dials "
                "and is dialled"
            )
        if isinstance(found.value, x509.KeyUsage) and not found.value.digital_signature:
            raise IdentityError("its key usage must have digitalSignature, which TLS 1.3 needs")
        if isinstance(found.value, x509.BasicConstraints) and found.value.ca:
            raise IdentityError("it is an authority's certificate (CA:TRUE), not a node's")


def require_authority(certificate: x509.Certificate) -> None:
    """Raise where a certificate may not sign others."""
    found = {type(one.value): one.value for one in certificate.extensions}
    basic, usage = found.get(x509.BasicConstraints), found.get(x509.KeyUsage)
    if not (isinstance(basic, x509.BasicConstraints) and basic.ca):
        raise IdentityError(
            "it is not an authority's certificate (basic constraints CA:TRUE); take the one that "
            "signed the node's"
        )
    if isinstance(usage, x509.KeyUsage) and not usage.key_cert_sign:
        raise IdentityError("its key usage lacks keyCertSign: it may not sign certificates")


def chain(
    certificates: Sequence[x509.Certificate], anchors: Sequence[x509.Certificate]
) -> list[x509.Certificate] | None:
    """Return the certificates from a node's first one up to an anchor; None where none leads
    there.
    """
    way = [certificates[0]]
    while len(way) <= _DEEPEST:
        for one in (*anchors, *certificates[1:]):
            if one not in way and issued_by(way[-1], one):
                way.append(one)
                break
        else:
            return None
        if way[-1] in anchors:
            return way
    return None


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether one certificate was signed with the key of another."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def require_valid(title: str, certificate: x509.Certificate, now: datetime) -> None:
    """Raise where a certificate is not valid now."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= now <= end:
        raise IdentityError(
            f"the {title} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, today is "
            f"{now:%Y-%m-%d}; renew it with `dynadp pki renew`, or set this machine's clock"
        )


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Certificates of a file, in its order."""
    content = read(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise IdentityError(f"{path} is not a certificate in PEM") from None


def read_certificate(path: Path) -> x509.Certificate:
    """The first certificate of a file."""
    return read_certificates(path)[0]


def read_private(path: Path) -> object:
    """A private key that only its owner can read."""
    content = read(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise IdentityError(
            f"{path} is a secret that other users may read; make it yours alone: chmod 600 {path}"
        )
    try:
        return serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError(f"{path} is not a private key in PEM without a password") from None


def read(path: Path) -> bytes:
    """The content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from error


def pem(
    of: x509.Certificate
    | x509.CertificateSigningRequest
    | x509.CertificateRevocationList
    | TlsKey
    | Ed25519PrivateKey,
) -> bytes:
    """In PEM; keys without a password."""
    if isinstance(of, TlsKey | Ed25519PrivateKey):
        shape = serialization.PrivateFormat.PKCS8
        return of.private_bytes(serialization.Encoding.PEM, shape, serialization.NoEncryption())
    return of.public_bytes(serialization.Encoding.PEM)


def write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file whole."""
    try:
        write_bytes(path, content, mode=mode)
    except OSError as error:
        raise IdentityError(f"cannot write {path}: {error.strerror}") from error


def new_folder(path: str | Path) -> Path:
    """Make a folder, or take an empty one."""
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise IdentityError(f"{path} is not empty; nothing is overwritten, choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    return path
