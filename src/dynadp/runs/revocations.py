"""Members that are out: a list that the authority signed, beside each node's certificate.

``revoked.pem`` holds a standard list of revoked certificates (X.509), and these certificates after
it, so that their names are known. An organisation's own authority makes one too: its list, and the
certificates that matter, in one file. TLS does not look at it: a member that has the list gives
such names nothing, and takes nothing of them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from dynadp.engines import LOG
from dynadp.errors import IdentityError
from dynadp.runs.certificates import common_name, issued_by, read

LIST_FILE = "revoked.pem"
_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True)
class Revocations:
    """A list, read and checked.

    Attributes
    ----------
    number
        The list's; a later list has a higher one.
    certificates
        Those that are revoked, as far as the file has them.
    unnamed
        How many the list names whose certificates the file does not have.
    """

    number: int = 0
    certificates: tuple[x509.Certificate, ...] = ()
    unnamed: int = 0

    @property
    def names(self) -> frozenset[str]:
        """Names that are out."""
        return frozenset(common_name(one) for one in self.certificates)

    @classmethod
    def load(
        cls,
        path: Path,
        issuers: Iterable[x509.Certificate],
        before: Iterable[x509.Certificate] = (),
    ) -> "Revocations":
        """Read a list that one of these authorities signed; none where there is no file.

        Certificates that were known ``before`` count as if they stood in the file.
        """
        if not path.exists():
            return cls()
        content = read(path)
        try:
            listed = x509.load_pem_x509_crl(b"".join(_LIST.findall(content)[:1]))
        except ValueError:
            raise IdentityError(
                f"{path} is not a list of revoked certificates in PEM; take the one that "
                "`dynadp pki revoke` writes"
            ) from None
        signer = next((one for one in issuers if _signed(listed, one)), None)
        if signer is None:
            raise IdentityError(
                f"{path}: the list was not signed by this node's authority; ask the consortium "
                "for it anew"
            )
        serials = {one.serial_number for one in listed}
        rest = _LIST.sub(b"", content)
        try:
            beside = x509.load_pem_x509_certificates(rest) if b"BEGIN CERT" in rest else []
        except ValueError:
            raise IdentityError(f"{path}: a certificate after the list is damaged") from None
        known = {
            one.serial_number: one
            for one in (*before, *beside)
            if one.serial_number in serials and issued_by(one, signer)
        }
        return cls(_number(listed), tuple(known.values()), len(serials) - len(known))


class RevocationFile:
    """A node's list, read again whenever its file changes.

    A file that is damaged, or older than what was read before, changes nothing and is logged. One
    that lacks certificates that an earlier one held, such as half a copy, takes nobody back in.

    Parameters
    ----------
    folder, issuers
        The node's folder, and the authorities whose lists are believed.
    """

    def __init__(self, folder: Path, issuers: Sequence[x509.Certificate]) -> None:
        self.path, self._issuers = folder / LIST_FILE, issuers
        self._stamp, self._now = self._look(), Revocations.load(self.path, issuers)
        self._names = self._now.names
        self._warn()

    @property
    def names(self) -> frozenset[str]:
        """Names that are out now."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._read_again()
        return self._names

    def _read_again(self) -> None:
        try:
            found = Revocations.load(self.path, self._issuers, self._now.certificates)
            if found.number < self._now.number:
                raise IdentityError(
                    f"{self.path} is list {found.number}; list {self._now.number} was here before"
                )
        except IdentityError as error:
            LOG.warning("%s: the list that was read before holds on", error)
            return
        self._now, self._names = found, found.names
        LOG.info("%s: out are %s", self.path, ", ".join(sorted(self._names)) or "none")
        self._warn()

    def _warn(self) -> None:
        if self._now.unnamed:
            LOG.warning(
                "%s names %d certificates that it does not hold, so their names are not known: "
                "add the certificates to the file where they matter",
                self.path,
                self._now.unnamed,
            )

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _signed(listed: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    try:
        return listed.issuer == issuer.subject and listed.is_signature_valid(key)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _number(listed: x509.CertificateRevocationList) -> int:
    try:
        return listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except (x509.ExtensionNotFound, ValueError):
        return 0
