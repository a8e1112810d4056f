"""The consortium's authority: who is a member. Files::

    AUTHORITY/  ca.pem  ca.key (0600)  issued/NAME.pem  revoked.pem (where somebody is out)

An organisation's own authority can be taken in place of a new one (:func:`adopt`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from dynadp.engines import RELAY
from dynadp.errors import IdentityError
from dynadp.runs.certificates import (
    TlsKey,
    TlsPublic,
    checked_name,
    common_name,
    fingerprint,
    hosts_of,
    new_folder,
    pem,
    read,
    read_certificate,
    read_certificates,
    read_private,
    require_authority,
    require_valid,
    subject_of,
    usable_key,
    write,
)
from dynadp.runs.identities import Identity, request
from dynadp.runs.revocations import LIST_FILE, Revocations

AUTHORITY_DAYS, NODE_DAYS = 3650, 365
_EARLY = timedelta(minutes=5)  # clocks differ


@dataclass(frozen=True)
class Request:
    """A silo's request for a certificate, read and checked.

    Attributes
    ----------
    name, hosts
        Who asks, and the hosts that neighbours will dial.
    public
        The key that links will use.
    """

    name: str
    hosts: tuple[str, ...]
    public: TlsPublic

    @classmethod
    def load(cls, path: str | Path) -> "Request":
        """Read a request; refuses wildcards and what no link could use."""
        content = read(Path(path))
        try:
            asked = x509.load_pem_x509_csr(content)
            sound = asked.is_signature_valid
        except (ValueError, UnsupportedAlgorithm):
            raise IdentityError(
                f"{path} is not a certificate request; make one with `dynadp pki request`"
            ) from None
        try:
            name, hosts = common_name(asked), hosts_of(asked)
            public = usable_key(asked.public_key())
        except IdentityError as error:
            raise IdentityError(
                f"{path} is not a certificate request that can be signed: {error}"
            ) from None
        if not sound:
            raise IdentityError(
                f"{path} was changed after it was signed; ask {name} to send it again"
            )
        return cls(name, hosts, public)

    @property
    def fingerprint(self) -> str:
        """Of its key, to compare with the silo over another channel."""
        return fingerprint(self.public)

    @property
    def lines(self) -> list[str]:
        """What whoever signs it should see."""
        return [
            f"name: {self.name}",
            f"hosts: {', '.join(self.hosts)}",
            f"fingerprint: {self.fingerprint}",
        ]


def make_authority(
    folder: str | Path, name: str, now: datetime, days: int = AUTHORITY_DAYS
) -> None:
    """Make a consortium's authority in an empty folder."""
    subject_of(name)
    folder = new_folder(folder)
    (folder / "issued").mkdir()
    _write_authority(folder, name, now, days)


def adopt(folder: str | Path, certificates: str | Path, key: str | Path, now: datetime) -> str:
    """Take an organisation's own authority as the consortium's; returns its subject.

    Of the certificates the one that belongs to the key becomes ca.pem, alone: then only what this
    key signed is believed, not what else the organisation signs.
    """
    private, chain = read_private(Path(key)), read_certificates(Path(certificates))
    if not isinstance(private, TlsKey):
        raise IdentityError(f"{key} is neither an elliptic curve key nor an RSA key")
    own = next((one for one in chain if one.public_key() == private.public_key()), None)
    if own is None:
        raise IdentityError(
            f"no certificate of {certificates} belongs to the key in {key}; give the "
            "certificate of the authority whose key it is"
        )
    try:
        usable_key(own.public_key())
        require_authority(own)
        require_valid("authority", own, now)
    except IdentityError as error:
        raise IdentityError(f"{certificates}: {error}") from None
    folder = new_folder(folder)
    (folder / "issued").mkdir()
    write(folder / "ca.key", pem(private), 0o600)
    write(folder / "ca.pem", pem(own))
    return own.subject.rfc4514_string()


def _write_authority(folder: Path, name: str, now: datetime, days: int) -> None:
    key, subject = ec.generate_private_key(ec.SECP256R1()), subject_of(name)
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
    write(folder / "ca.key", pem(key), 0o600)
    write(folder / "ca.pem", pem(certificate))


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
    sign_request(authority, made, out, now, days, relay=True)
    return Identity.load(out, now)


def sign_request(
    authority: str | Path,
    path: str | Path,
    out: str | Path,
    now: datetime,
    days: int = NODE_DAYS,
    *,
    renewal: bool = False,
    relay: bool = False,
) -> str:
    """At the authority: sign a silo's request; writes tls.pem and ca.pem into ``out`` and returns
    the node's name.

    Parameters
    ----------
    authority, path, out
        The authority's folder, the request, and where the files go.
    now, days
        From when, and for how long.
    renewal
        Whether it is known that the node has, or had, a certificate: this one takes its place.
    relay
        Whether it may be a relay's, which every node lets carry letters.
    """
    authority, out, asked = Path(authority), Path(out), Request.load(path)
    _require_free(authority, asked, renewal=renewal, relay=relay)
    hosts = x509.load_pem_x509_csr(read(Path(path))).extensions
    names = hosts.get_extension_for_class(x509.SubjectAlternativeName).value
    certificate = _issue(authority, subject_of(asked.name), names, asked.public, now, days)
    write(_copy(authority, asked.name), pem(certificate))
    write(out / "tls.pem", pem(certificate))
    write(out / "ca.pem", read(authority / "ca.pem"))
    out_before = _revoked(authority)
    if asked.name in out_before.names:
        _write_list(authority, out_before, now, days, back=asked.name)
    if (authority / LIST_FILE).exists():
        write(out / LIST_FILE, read(authority / LIST_FILE))
    return asked.name


def _require_free(authority: Path, asked: Request, *, renewal: bool, relay: bool) -> None:
    """Raise where a name is somebody else's, or looks like it."""
    name, held = asked.name, {*members(authority), *_revoked(authority).names}
    if name.casefold() == RELAY and not relay:
        raise IdentityError(
            f"{name!r} is a relay's name, whose holder every node lets carry letters: give "
            "--relay if this silo shall run the relay"
        )
    alike = [one for one in held if one != name and one.casefold() == name.casefold()]
    if alike:
        raise IdentityError(
            f"{name!r} looks like {alike[0]!r}, which has a certificate of this authority; "
            "let the silo choose another name"
        )
    if name in held and not renewal:
        raise IdentityError(
            f"{name} has a certificate of this authority already, or had one: if this request is "
            "of the same silo (ask it over another channel), give --renewal"
        )
    if renewal and name not in held:
        raise IdentityError(
            f"{name} has no certificate of this authority that could be renewed; it issued "
            f"{', '.join(members(authority)) or 'none'}"
        )


def _copy(authority: Path, name: str) -> Path:
    return authority / "issued" / f"{quote(checked_name(name), safe=' ')}.pem"


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
    old = read_certificate(path)
    hosts = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    public = usable_key(old.public_key())
    write(path, pem(_issue(authority, old.subject, hosts, public, now, days)))
    return path


def revoke(authority: str | Path, name: str, now: datetime, days: int = AUTHORITY_DAYS) -> Path:
    """Shut a node out: the list of those who are out, signed anew, for all others.

    Certificates of the others, and the authority, stay as they are. Returns the list's file.
    """
    authority = Path(authority)
    path = _issued(authority, name)
    made = _write_list(authority, _revoked(authority), now, days, out=read_certificate(path))
    path.unlink()  # last, so that a revocation that was cut short can be begun again
    return made


def replace_authority(
    authority: str | Path, without: str, now: datetime, days: int = NODE_DAYS
) -> list[Path]:
    """Shut a node out of links too: a new authority, and new certificates of it for all others.

    An authority that never signed the node takes the old one's place. Every other silo gets the
    new ca.pem and its new certificate, whose files are returned.
    """
    authority = Path(authority)
    path = _copy(authority, without)
    if without not in _revoked(authority).names:
        path = _issued(authority, without)
    old = read_certificate(authority / "ca.pem")
    lifetime = (old.not_valid_after_utc - old.not_valid_before_utc).days
    _write_authority(authority, common_name(old), now, lifetime)
    renewed = [
        renew(authority, other, now, days) for other in members(authority) if other != without
    ]
    path.unlink(missing_ok=True)  # last, so that one that was cut short can be begun again
    (authority / LIST_FILE).unlink(missing_ok=True)  # of the old authority
    return renewed


def members(authority: str | Path) -> list[str]:
    """Names of the nodes that hold a certificate of the authority."""
    return sorted(
        common_name(read_certificate(path)) for path in (Path(authority) / "issued").glob("*.pem")
    )


def _revoked(authority: Path) -> Revocations:
    return Revocations.load(authority / LIST_FILE, [read_certificate(authority / "ca.pem")])


def _write_list(
    authority: Path,
    before: Revocations,
    now: datetime,
    days: int,
    *,
    out: x509.Certificate | None = None,
    back: str | None = None,
) -> Path:
    """Write the list of those who are out, with one more or one fewer."""
    issuer, key = _keys(authority)
    usages = [one.value for one in issuer.extensions if isinstance(one.value, x509.KeyUsage)]
    if usages and not usages[0].crl_sign:
        raise IdentityError(
            f"{authority}: the authority's key usage lacks cRLSign, so it may sign no list; make "
            "the list with the organisation's own tools, or give --new-authority"
        )
    those = [one for one in before.certificates if common_name(one) != back]
    those += [] if out is None else [out]
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now)
        .next_update(now + timedelta(days=days))
        .add_extension(x509.CRLNumber(before.number + 1), critical=False)
    )
    for one in those:
        entry = x509.RevokedCertificateBuilder().serial_number(one.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(now).build())
    listed = builder.sign(key, hashes.SHA256())
    write(authority / LIST_FILE, pem(listed) + b"".join(map(pem, those)))
    return authority / LIST_FILE


def _keys(authority: Path) -> tuple[x509.Certificate, TlsKey]:
    issuer, key = read_certificate(authority / "ca.pem"), read_private(authority / "ca.key")
    if not isinstance(key, TlsKey):
        raise IdentityError(f"{authority / 'ca.key'} is neither an elliptic curve nor an RSA key")
    return issuer, key


def _issue(
    authority: Path,
    subject: x509.Name,
    hosts: x509.SubjectAlternativeName,
    public: TlsPublic,
    now: datetime,
    days: int,
) -> x509.Certificate:
    issuer, key = _keys(authority)
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
        _identifier(issuer),
    )


def _identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """How a certificate names its issuer's key: as the issuer itself does, where it does."""
    for one in issuer.extensions:
        if isinstance(one.value, x509.SubjectKeyIdentifier):
            return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(one.value)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(usable_key(issuer.public_key()))


def _signed(
    key: TlsKey,
    issuer: x509.Name,
    subject: x509.Name,
    public: TlsPublic,
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
