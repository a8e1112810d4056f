"""Certificates and keys: who may be whom, and what is refused."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from dynadp.cli import main
from dynadp.errors import IdentityError
from dynadp.runs import identities as pki
from dynadp.runs.authorities import (
    Request,
    adopt,
    make_authority,
    make_node,
    members,
    renew,
    replace_authority,
    revoke,
    sign_request,
)
from dynadp.runs.certificates import chain, read_certificates
from dynadp.runs.identities import (
    Identity,
    key_fingerprint,
    public_key,
    public_text,
    request,
    request_again,
)
from dynadp.runs.revocations import LIST_FILE, RevocationFile, Revocations

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECRETS = ("tls.key", "sign.key")


@pytest.fixture
def authority(tmp_path):
    make_authority(tmp_path / "ca", "consortium", NOW)
    return tmp_path / "ca"


@pytest.fixture
def node(authority, tmp_path):
    return make_node(
        authority, "north", ["north.example.org", "192.0.2.7"], tmp_path / "north", NOW, 100
    )


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def verified(tls, ca, now=NOW, host="north.example.org"):
    """As a dialling node verifies a listening one, and the other way round."""
    policy = PolicyBuilder().store(Store([certificate(ca)])).time(now)
    subject = x509.DNSName(host) if host.count(".") != 3 else x509.IPAddress(ip_address(host))
    policy.build_server_verifier(subject).verify(certificate(tls), [])
    policy.build_client_verifier().verify(certificate(tls), [])


# --------------------------------------------------------------------------------------------------
# certificates


def test_a_certificate_is_what_links_need(authority, node):
    found, ca = certificate(node.folder / "tls.pem"), certificate(authority / "ca.pem")
    extension = found.extensions.get_extension_for_class
    assert extension(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=False, path_length=None
    )
    assert extension(x509.BasicConstraints).critical
    assert set(extension(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    hosts = extension(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["north.example.org"]
    assert hosts.get_values_for_type(x509.IPAddress) == [ip_address("192.0.2.7")]
    assert isinstance(found.public_key().curve, ec.SECP256R1)
    assert [a.value for a in found.subject] == ["north"]
    assert found.issuer == ca.subject == ca.issuer
    assert ca.extensions.get_extension_for_class(
        x509.BasicConstraints
    ).value == x509.BasicConstraints(ca=True, path_length=0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature, usage.key_agreement) == (
        True,
        False,
        False,
    )
    assert found.not_valid_after_utc - NOW == timedelta(days=100)
    assert NOW - found.not_valid_before_utc == timedelta(minutes=5)


def test_it_verifies_for_its_hosts_and_its_time_alone(authority, node):
    tls, ca = node.folder / "tls.pem", authority / "ca.pem"
    verified(tls, ca)
    verified(tls, ca, host="192.0.2.7")
    for wrong in (
        {"host": "south.example.org"},
        {"host": "192.0.2.8"},
        {"now": NOW + timedelta(days=101)},
    ):
        with pytest.raises(VerificationError):
            verified(tls, ca, **wrong)


def test_a_node_is_no_authority(authority, node, tmp_path):
    """What a member signs with its own certificate is not believed."""
    other = tmp_path / "member-as-authority"
    (other / "issued").mkdir(parents=True)
    for name, source in (("ca.pem", "tls.pem"), ("ca.key", "tls.key")):
        (other / name).write_bytes((node.folder / source).read_bytes())
    (other / "ca.key").chmod(0o600)
    path = request("guest", ["guest.example.org"], tmp_path / "guest")
    sign_request(other, path, tmp_path / "guest", NOW)
    policy = PolicyBuilder().store(Store([certificate(authority / "ca.pem")])).time(NOW)
    with pytest.raises(VerificationError):
        policy.build_client_verifier().verify(
            certificate(tmp_path / "guest" / "tls.pem"), [certificate(node.folder / "tls.pem")]
        )


def test_no_certificate_outlives_its_authority(tmp_path):
    make_authority(tmp_path / "ca", "short", NOW, days=10)
    found = make_node(tmp_path / "ca", "north", ["localhost"], tmp_path / "north", NOW, 365)
    assert found.expires == NOW + timedelta(days=10)


# --------------------------------------------------------------------------------------------------
# files


def test_secrets_are_the_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_authority(tmp_path / "ca", "consortium", NOW)
        make_node(tmp_path / "ca", "north", ["localhost"], tmp_path / "north", NOW, 10)
    finally:
        os.umask(before)
    assert mode(tmp_path / "ca" / "ca.key") == 0o600
    assert {name: mode(tmp_path / "north" / name) for name in SECRETS} == dict.fromkeys(
        SECRETS, 0o600
    )
    assert mode(tmp_path / "north" / "tls.pem") == 0o644


def test_secrets_are_the_owners_alone_from_their_first_moment(tmp_path, monkeypatch):
    """The mode is given as the file is made, not afterwards, and no longer name ever stands for a
    partial file.
    """
    opened, plain = {}, os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, mode=0o777, **more: (
            opened.update({str(path): (flags, mode)}) or plain(path, flags, mode, **more)
        ),
    )
    make_authority(tmp_path / "ca", "consortium", NOW)
    request("north", ["localhost"], tmp_path / "north")
    keys = {Path(name).stem: how for name, how in opened.items() if ".key." in name}
    assert set(keys) == {".ca.key", ".tls.key", ".sign.key"}
    for flags, made in keys.values():
        assert made == 0o600
        assert flags & os.O_EXCL
    assert sorted(path.name for path in (tmp_path / "north").iterdir()) == [
        "request.csr",
        "sign.key",
        "tls.key",
    ]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o620, 0o601])
def test_secrets_that_others_may_touch_are_refused(node, name, open_to):
    (node.folder / name).chmod(open_to)
    with pytest.raises(
        IdentityError, match=f"{name} is a secret that other users may read; .*chmod 600"
    ):
        Identity.load(node.folder, NOW)


def test_an_authority_whose_key_others_may_read_signs_nothing(authority, tmp_path):
    (authority / "ca.key").chmod(0o644)
    with pytest.raises(IdentityError, match="other users may read"):
        make_node(authority, "north", ["localhost"], tmp_path / "north", NOW, 10)


@pytest.mark.parametrize("name", ["ca.pem", "tls.pem", *SECRETS])
def test_files_that_are_missing_or_rubbish(node, name):
    path = node.folder / name
    kept = path.read_bytes()
    path.write_bytes(b"-----BEGIN NOTHING-----\n")
    with pytest.raises(IdentityError, match=r"is not a (certificate|private key) in PEM"):
        Identity.load(node.folder, NOW)
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(IdentityError):
        Identity.load(node.folder, NOW)
    path.unlink()
    with pytest.raises(IdentityError, match=f"cannot read .*{name}: No such file"):
        Identity.load(node.folder, NOW)


def test_keys_with_a_password_and_of_other_kinds(node):
    key = ec.generate_private_key(ec.SECP256R1())
    shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (node.folder / "sign.key").write_bytes(
        key.private_bytes(*shape, serialization.BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(IdentityError, match="without a password"):
        Identity.load(node.folder, NOW)
    (node.folder / "sign.key").write_bytes(key.private_bytes(*shape, serialization.NoEncryption()))
    with pytest.raises(IdentityError, match="not an Ed25519 key"):
        Identity.load(node.folder, NOW)


def test_nothing_is_overwritten(authority, node, tmp_path):
    with pytest.raises(IdentityError, match="is not empty"):
        make_authority(authority, "another", NOW)
    with pytest.raises(IdentityError, match="is not empty"):
        request("north", ["localhost"], node.folder)
    with pytest.raises(IdentityError, match="has a certificate of this authority already"):
        make_node(authority, "north", ["localhost"], tmp_path / "again", NOW, 10)
    assert Identity.load(node.folder, NOW).public == node.public
    (tmp_path / "empty").mkdir()
    request("south", ["localhost"], tmp_path / "empty")


def test_where_nothing_can_be_written(authority, tmp_path):
    path = request("north", ["localhost"], tmp_path / "north")
    with pytest.raises(IdentityError, match=r"cannot write .*tls.pem: No such file"):
        sign_request(authority, path, tmp_path / "nowhere" / "at all", NOW)


# --------------------------------------------------------------------------------------------------
# identities


def test_an_identity_is_read_back_and_shows_no_key(node):
    found = Identity.load(node.folder, NOW)
    assert (found.name, found.folder, found.expires) == (
        "north",
        node.folder,
        NOW + timedelta(days=100),
    )
    assert found.public == node.public
    assert "key" not in repr(found)
    public_key(found.public).verify(found.key.sign(b"x"), b"x")


@pytest.mark.parametrize("when", [NOW - timedelta(minutes=6), NOW + timedelta(days=101)])
def test_expired_or_not_yet_valid(node, when):
    with pytest.raises(
        IdentityError,
        match=rf"the certificate is valid from 2026-03-01 to 2026-06-09, today is "
        rf"{when:%Y-%m-%d}.*renew",
    ):
        Identity.load(node.folder, when)
    Identity.load(node.folder, NOW - timedelta(minutes=4))


def test_an_expired_authority(tmp_path):
    make_authority(tmp_path / "ca", "short", NOW - timedelta(days=20), days=10)
    with pytest.raises(IdentityError, match="the authority ended on 2026-02-19; make a new one"):
        make_node(tmp_path / "ca", "north", ["localhost"], tmp_path / "north", NOW, 10)


def test_another_authoritys_file(authority, node, tmp_path):
    make_authority(tmp_path / "other", "consortium", NOW)  # of the same name
    (node.folder / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match=r"not signed by the authority of ca\.pem"):
        Identity.load(node.folder, NOW)


def test_a_key_of_another_certificate(authority, node, tmp_path):
    other = make_node(authority, "south", ["localhost"], tmp_path / "south", NOW, 10)
    (node.folder / "tls.key").write_bytes((other.folder / "tls.key").read_bytes())
    with pytest.raises(IdentityError, match=r"tls.key is not the key of tls.pem"):
        Identity.load(node.folder, NOW)
    (node.folder / "tls.key").write_bytes((node.folder / "sign.key").read_bytes())
    with pytest.raises(IdentityError, match=r"tls.key is not the key of tls.pem"):
        Identity.load(node.folder, NOW)


def test_public_keys_are_spelled_one_way():
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    text = public_text(key)
    assert public_key(text) == key
    for wrong in (
        text[8:],
        "ed25519:",
        text[:-4],
        text.replace("ed25519:", "ed25519:!"),
        text + "A",
        "rsa" + text,
        "ed25519:é",
    ):
        with pytest.raises(IdentityError, match="44 letters of base64"):
            public_key(wrong)


# --------------------------------------------------------------------------------------------------
# names and hosts


@pytest.mark.parametrize(
    "name",
    [
        "n" * 64,
        "é" * 32,
        "St. Mary's Köln",
        "a/b",
        "../../etc/x",
        "..",
        ".hidden",
        "a%2Fb",
        "日本",
        "*",
        "$",
    ],
)
def test_names(authority, tmp_path, name):
    found = make_node(authority, name, ["localhost"], tmp_path / "made", NOW, 10)
    assert found.name == name
    assert members(authority) == [name]
    assert len(list((authority / "issued").iterdir())) == 1  # in this folder, whatever the name
    assert (
        certificate(renew(authority, name, NOW)).subject
        == certificate(found.folder / "tls.pem").subject
    )


def test_names_that_differ_do_not_share_a_file(authority, tmp_path):
    names = ["a/b", "a%2Fb", "a b", "a_b"]
    for i, name in enumerate(names):
        make_node(authority, name, ["localhost"], tmp_path / str(i), NOW, 10)
    assert members(authority) == sorted(names)


@pytest.mark.parametrize(
    "name", ["", "n" * 65, "é" * 33, "日" * 64, "a\nb", "a\0b", "\u202e", "tab\t"]
)
def test_names_that_no_certificate_can_hold(authority, tmp_path, name):
    """A certificate's common name has at most 64 bytes, and a letter's author is counted in one."""
    with pytest.raises(IdentityError, match="a line of 1 to 64 letters"):
        make_node(authority, name, ["localhost"], tmp_path / "made", NOW, 10)
    with pytest.raises(IdentityError, match="a line of 1 to 64 letters"):
        make_authority(tmp_path / "other", name, NOW)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "::1",
        "2001:db8::7",
        "a-b.example.org",
        "xn--kln-sna.de",
        "A.B",
        "a_b",
    ],
)
def test_hosts(authority, tmp_path, host):
    found = certificate(
        make_node(authority, "n", [host], tmp_path / "n", NOW, 10).folder / "tls.pem"
    )
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [host]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "köln.de",
        "a b",
        "a/b",
        "*",
        "*.org",
        "[::1]",
        "192.0.2.1:7447",
        "host:7447",
        "a\nb",
        "-a",
        "a..b",
        "a" * 64,
        "a." * 127 + "b",
    ],
)
def test_hosts_that_nobody_can_dial(authority, tmp_path, host):
    with pytest.raises(IdentityError, match="neither an address nor a host name"):
        make_node(authority, "n", ["localhost", host], tmp_path / "n", NOW, 10)


def test_no_host_at_all(tmp_path):
    with pytest.raises(IdentityError, match="at least one host"):
        request("n", [], tmp_path / "n")


# --------------------------------------------------------------------------------------------------
# requests


def test_a_silo_that_keeps_its_keys(authority, tmp_path):
    silo, returned = tmp_path / "silo", tmp_path / "returned"
    path = request("west", ["west.example.org"], silo)
    returned.mkdir()
    assert sign_request(authority, path, returned, NOW, 20) == "west"
    assert sorted(file.name for file in returned.iterdir()) == ["ca.pem", "tls.pem"]
    for name in ("ca.pem", "tls.pem"):
        (silo / name).write_bytes((returned / name).read_bytes())
    found = Identity.load(silo, NOW)
    assert (found.name, found.expires) == ("west", NOW + timedelta(days=20))
    verified(silo / "tls.pem", authority / "ca.pem", host="west.example.org")
    secrets = b"".join((silo / name).read_bytes() for name in SECRETS)
    everything = b"".join(
        file.read_bytes() for file in [*authority.rglob("*.pem"), *returned.iterdir()]
    )
    assert not any(
        line in everything for line in secrets.splitlines() if not line.startswith(b"-----")
    )


def csr(names=("west",), key=None, hosts=("localhost",)):
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if hosts:
        asked = asked.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(h) for h in hosts]), critical=False
        )
    return asked.sign(key, hashes.SHA256())


def pem(request):
    return request.public_bytes(serialization.Encoding.PEM)


def test_a_request_that_was_changed_on_its_way(authority, tmp_path):
    der = csr().public_bytes(serialization.Encoding.DER)
    forged = x509.load_der_x509_csr(der.replace(b"west", b"east"))
    (tmp_path / "forged.csr").write_bytes(pem(forged))
    with pytest.raises(IdentityError, match="was changed after it was signed; ask east"):
        sign_request(authority, tmp_path / "forged.csr", tmp_path, NOW)
    assert members(authority) == []


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"hello", "is not a certificate request"),
        (b"", "is not a certificate request"),
        (pem(csr(hosts=())), "is not a certificate request"),
        (pem(csr(names=())), "exactly one common name"),
        (pem(csr(names=("west", "east"))), "exactly one common name"),
        (pem(csr(names=("a\nb",))), "a line of 1 to 64 letters"),
        (pem(csr(key=rsa.generate_private_key(65537, 1024))), "RSA keys of at least 2048 bits"),
        (
            pem(csr(key=ec.generate_private_key(ec.SECP521R1()))),
            "elliptic curve keys .P-256, P-384",
        ),
        (pem(csr(hosts=("*.example.org",))), "no wildcard"),
        (pem(csr(hosts=("west.example.org", "*"))), "no wildcard"),
    ],
    ids=[
        *("rubbish", "empty", "no host", "no name", "two names", "two lines"),
        *("short rsa", "long curve", "wildcard", "any host"),
    ],
)
def test_requests_that_are_not_signed(authority, tmp_path, content, match):
    (tmp_path / "x.csr").write_bytes(content)
    with pytest.raises(IdentityError, match=match):
        sign_request(authority, tmp_path / "x.csr", tmp_path, NOW)
    assert members(authority) == []
    assert not (tmp_path / "tls.pem").exists()


def test_a_request_that_is_not_there(authority, tmp_path):
    with pytest.raises(IdentityError, match="cannot read"):
        sign_request(authority, tmp_path / "none.csr", tmp_path, NOW)
    with pytest.raises(IdentityError, match=r"cannot read .*ca.pem"):
        sign_request(
            tmp_path / "none", request("west", ["localhost"], tmp_path / "west"), tmp_path, NOW
        )


# --------------------------------------------------------------------------------------------------
# renewal


def test_a_renewed_certificate_fits_the_old_keys(authority, node):
    later = NOW + timedelta(days=99)
    path = renew(authority, "north", later, 50)
    (node.folder / "tls.pem").write_bytes(path.read_bytes())
    found = Identity.load(node.folder, later + timedelta(days=49))
    assert (found.public, found.expires) == (node.public, later + timedelta(days=50))
    verified(node.folder / "tls.pem", authority / "ca.pem", later, "192.0.2.7")


def test_strangers_are_neither_renewed_nor_revoked(authority, node):
    for change in (renew, revoke):
        with pytest.raises(
            IdentityError, match="south has no certificate of this authority; it issued north"
        ):
            change(authority, "south", NOW)
    assert Identity.load(node.folder, NOW)


def test_a_new_authority_leaves_one_out_and_the_others_in(authority, node, tmp_path):
    others = {
        name: make_node(authority, name, [f"{name}.example.org"], tmp_path / name, NOW, 100)
        for name in ("south", "west")
    }
    old = (authority / "ca.pem").read_bytes(), (authority / "ca.key").read_bytes()
    paths = replace_authority(authority, "north", NOW, 100)
    assert [path.name for path in paths] == ["south.pem", "west.pem"]
    assert members(authority) == ["south", "west"]
    assert (authority / "ca.pem").read_bytes() != old[0]
    assert (authority / "ca.key").read_bytes() != old[1]
    assert mode(authority / "ca.key") == 0o600
    assert (
        certificate(authority / "ca.pem").subject == x509.load_pem_x509_certificate(old[0]).subject
    )
    with pytest.raises(VerificationError):
        verified(node.folder / "tls.pem", authority / "ca.pem")
    for path in paths:
        own = others[path.stem]
        with pytest.raises(VerificationError):  # until they have the new certificate
            verified(own.folder / "tls.pem", authority / "ca.pem", host=f"{path.stem}.example.org")
        (own.folder / "tls.pem").write_bytes(path.read_bytes())
        (own.folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
        verified(own.folder / "tls.pem", authority / "ca.pem", host=f"{path.stem}.example.org")
        assert Identity.load(own.folder, NOW).public == own.public
    (node.folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="not signed by the authority"):
        Identity.load(node.folder, NOW)


def test_a_revoked_node_may_ask_again(authority, node, tmp_path):
    listed = revoke(authority, "north", NOW)
    south = make_node(authority, "south", ["localhost"], tmp_path / "south", NOW, 10)
    shutil.copy(listed, south.folder)
    assert RevocationFile(south.folder, [certificate(authority / "ca.pem")]).names == {"north"}
    asked = request("north", ["localhost"], tmp_path / "again")
    with pytest.raises(IdentityError, match=r"or had one: if this request .* give --renewal"):
        sign_request(authority, asked, tmp_path / "again", NOW)
    sign_request(authority, asked, tmp_path / "again", NOW, renewal=True)
    back = Identity.load(tmp_path / "again", NOW)
    assert back.public != node.public
    assert back.revoked.names == frozenset()
    shutil.copy(south.folder / LIST_FILE, node.folder)
    with pytest.raises(IdentityError, match="north is on the authority's list"):
        Identity.load(node.folder, NOW)


# --------------------------------------------------------------------------------------------------
# names of others


def test_names_of_others_and_of_relays_are_not_signed(authority, node, tmp_path):
    """A wrong signature here would let one member stand in another's place."""
    for i, (name, words) in enumerate(
        [
            ("north", "has a certificate of this authority already"),
            ("North", "'North' looks like 'north'"),
            ("NORTH", "'NORTH' looks like 'north'"),
            ("relay", "'relay' is a relay's name.* --relay"),
            ("Relay", "'Relay' is a relay's name.* --relay"),
        ]
    ):
        asked = request(name, ["localhost"], tmp_path / f"guest {i}")
        with pytest.raises(IdentityError, match=words):
            sign_request(authority, asked, tmp_path, NOW)
    assert members(authority) == ["north"]
    assert not (tmp_path / "tls.pem").exists()
    assert sign_request(authority, tmp_path / "guest 3" / "request.csr", tmp_path, NOW, relay=True)
    asked = request("south", ["localhost"], tmp_path / "south")
    with pytest.raises(IdentityError, match=r"south has no certificate .* that could be renewed"):
        sign_request(authority, asked, tmp_path, NOW, renewal=True)


def test_sign_shows_what_it_signs_and_asks(call, tmp_path):
    call("init", "ca")
    told = call("request", "west", "--host", "west.example.org", "--host", "192.0.2.9")
    shown = Request.load(tmp_path / "west" / "request.csr").fingerprint
    assert f"fingerprint: {shown}" in told
    for answer in ("n\n", ""):
        done = CliRunner().invoke(main, ["pki", "sign", "ca", "west/request.csr"], input=answer)
        assert (done.exit_code, members(tmp_path / "ca")) == (2, [])
        assert (
            f"name: west\nhosts: west.example.org, 192.0.2.9\nfingerprint: {shown}" in done.output
        )
        assert "nothing was signed; compare the fingerprint" in done.output
    arguments = ["pki", "sign", "ca", "west/request.csr", "--out", "west"]
    assert CliRunner().invoke(main, arguments, input="y\n").exit_code == 0
    told = call("show", "west")
    assert f"name: west\nhosts: west.example.org, 192.0.2.9\nfingerprint: {shown}" in told
    assert "out, by its list: none" in told
    key = Identity.load("west", datetime.now(UTC)).public
    assert f"Others see that key, in dynadp check, as {key_fingerprint(key)}" in told


# --------------------------------------------------------------------------------------------------
# another host, another key


@pytest.mark.parametrize("new_key", [False, True])
@pytest.mark.parametrize("hosts", [(), ("moved.example.org",)])
def test_a_node_asks_again(authority, node, tmp_path, new_key, hosts):
    """Another host or another key for links, and the signing key, so the run file, stays."""
    asked = request_again(node.folder, tmp_path / "next", hosts, new_key=new_key)
    with pytest.raises(IdentityError, match="give --renewal"):
        sign_request(authority, asked, tmp_path / "next", NOW, 50)
    sign_request(authority, asked, tmp_path / "next", NOW, 50, renewal=True)
    found = Identity.load(tmp_path / "next", NOW)
    assert (found.name, found.public) == ("north", node.public)
    assert found.hosts == (hosts or node.hosts)
    assert (found.fingerprint == node.fingerprint) == (not new_key)
    verified(tmp_path / "next" / "tls.pem", authority / "ca.pem", host=found.hosts[0])
    assert mode(tmp_path / "next" / "tls.key") == mode(tmp_path / "next" / "sign.key") == 0o600
    assert members(authority) == ["north"]


def test_mistakes_of_a_node_that_asks_again(call, tmp_path):
    call("init", "ca")
    call("node", "ca", "north", "--host", "localhost")
    for arguments, words in (
        (["north", "--again", "north"], "needs --out"),
        (["north", "--new-key", "--host", "localhost", "--out", "x"], "needs --again"),
        (["south", "--again", "north", "--out", "y"], "is the folder of 'north', not of 'south'"),
        (["north", "--again", "nowhere", "--out", "z"], "cannot read nowhere"),
        (["north", "--again", "north", "--out", "north"], "is not empty"),
    ):
        assert words in call("request", *arguments, code=2)


# --------------------------------------------------------------------------------------------------
# who is out


@pytest.fixture
def listed(authority, node, tmp_path):
    """South, which has the list that names north."""
    south = make_node(authority, "south", ["localhost"], tmp_path / "south", NOW, 100)
    shutil.copy(revoke(authority, "north", NOW), south.folder)
    return south.folder


def test_the_list_leaves_the_others_as_they_are(authority, node, tmp_path):
    south = make_node(authority, "south", ["localhost"], tmp_path / "south", NOW, 100)
    before = {file: file.read_bytes() for file in authority.rglob("*") if file.is_file()}
    path = revoke(authority, "north", NOW)
    assert {file for file in before if not file.exists()} == {authority / "issued" / "north.pem"}
    assert all(file.read_bytes() == content for file, content in before.items() if file.exists())
    shutil.copy(path, south.folder)
    assert Identity.load(south.folder, NOW).revoked.names == {"north"}
    make_node(authority, "west", ["localhost"], tmp_path / "west", NOW, 100)
    revoke(authority, "west", NOW)
    shutil.copy(path, south.folder)
    assert Identity.load(south.folder, NOW).revoked.names == {"north", "west"}
    with pytest.raises(IdentityError, match="north has no certificate of this authority"):
        revoke(authority, "north", NOW)


def test_a_list_is_read_again_while_a_node_runs(authority, listed, tmp_path, caplog):
    issuers = [certificate(authority / "ca.pem")]
    older = (listed / LIST_FILE).read_bytes()
    (listed / LIST_FILE).unlink()
    found = RevocationFile(listed, issuers)
    assert found.names == frozenset()
    (listed / LIST_FILE).write_bytes(older)
    assert found.names == {"north"}
    make_node(authority, "west", ["localhost"], tmp_path / "west", NOW, 100)
    shutil.copy(revoke(authority, "west", NOW), listed)
    assert found.names == {"north", "west"}
    (listed / LIST_FILE).write_bytes(older)  # an older list takes nothing back
    assert found.names == {"north", "west"}
    assert "is list 1; list 2 was here before" in caplog.text
    (listed / LIST_FILE).write_bytes(b"rubbish")
    assert found.names == {"north", "west"}
    (listed / LIST_FILE).unlink()
    assert found.names == {"north", "west"}


def test_a_list_without_its_certificates_takes_nobody_back_in(authority, listed, tmp_path, caplog):
    """Half a copy of it, or a list that an organisation's tools wrote alone."""
    found = RevocationFile(listed, [certificate(authority / "ca.pem")])
    assert found.names == {"north"}
    make_node(authority, "west", ["localhost"], tmp_path / "west", NOW, 100)
    content = revoke(authority, "west", NOW).read_bytes()
    (listed / LIST_FILE).write_bytes(content[: content.index(b"-----BEGIN CERT")])
    assert found.names == {"north"}
    assert "names 1 certificates that it does not hold" in caplog.text
    (listed / LIST_FILE).write_bytes(content)
    assert found.names == {"north", "west"}


def test_lists_that_are_not_believed(authority, listed, tmp_path):
    make_authority(tmp_path / "other", "consortium", NOW)  # of the same name
    make_node(tmp_path / "other", "south", ["localhost"], tmp_path / "there", NOW, 10)
    shutil.copy(revoke(tmp_path / "other", "south", NOW), listed)
    with pytest.raises(IdentityError, match="the list was not signed by this node's authority"):
        Identity.load(listed, NOW)
    (listed / LIST_FILE).write_bytes(b"rubbish")
    with pytest.raises(IdentityError, match="is not a list of revoked certificates"):
        Identity.load(listed, NOW)


def test_a_list_without_certificates_names_nobody(authority, listed):
    """A certificate beside a list counts only if the list names it, so nobody can add one."""
    content = (authority / LIST_FILE).read_bytes()
    bare = content[: content.index(b"-----BEGIN CERT")]
    (listed / LIST_FILE).write_bytes(bare)
    found = Revocations.load(listed / LIST_FILE, [certificate(authority / "ca.pem")])
    assert (found.names, found.unnamed) == (frozenset(), 1)
    (listed / LIST_FILE).write_bytes(bare + (listed / "tls.pem").read_bytes())
    assert Identity.load(listed, NOW).revoked.names == frozenset()


# --------------------------------------------------------------------------------------------------
# an organisation's own authority


NO_USE = {name: False for name in x509.KeyUsage.__init__.__annotations__ if name != "return"}
BOTH = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def issue(name, public, issuer=None, key=None, *, ca=None, usage=None, eku=None, hosts=None):
    """A certificate as an organisation's own tools make it."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Hospital"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=300))
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if usage is not None:
        builder = builder.add_extension(x509.KeyUsage(**{**NO_USE, **usage}), critical=True)
    if eku is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(eku), critical=False)
    if hosts is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(key, hashes.SHA256())


@pytest.fixture(params=["curve", "rsa"])
def office(request):
    """An organisation's root, and an authority below it: certificates and the lower key."""
    make = {
        "curve": lambda: ec.generate_private_key(ec.SECP384R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
    }[request.param]
    top, below = make(), make()
    sign = {"key_cert_sign": True, "crl_sign": True}
    root = issue("Hospital root", top.public_key(), key=top, ca=True, usage=sign)
    lower = issue("Hospital nodes", below.public_key(), root, top, ca=True, usage=sign)
    return root, lower, below


def put(folder, office, leaf, tls):
    root, lower, _ = office
    folder.mkdir(exist_ok=True)
    (folder / "ca.pem").write_bytes(pem(root))
    (folder / "tls.pem").write_bytes(pem(leaf) + pem(lower))
    shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    for name, key in (("tls.key", tls), ("sign.key", ed25519.Ed25519PrivateKey.generate())):
        (folder / name).write_bytes(key.private_bytes(*shape, serialization.NoEncryption()))
        (folder / name).chmod(0o600)
    return folder


NODE = {"ca": False, "eku": BOTH, "hosts": [x509.DNSName("north.example.org")]}


def test_a_certificate_that_an_organisation_signed(office, tmp_path):
    tls = rsa.generate_private_key(65537, 2048)
    _, lower, key = office
    leaf = issue("north", tls.public_key(), lower, key, usage={"digital_signature": True}, **NODE)
    found = Identity.load(put(tmp_path / "north", office, leaf, tls), NOW)
    assert (found.name, found.hosts) == ("north", ("north.example.org",))
    plain = issue("north", tls.public_key(), lower, key, hosts=NODE["hosts"])  # nothing else said
    assert Identity.load(put(tmp_path / "plain", office, plain, tls), NOW).name == "north"
    (tmp_path / "north" / "tls.pem").write_bytes(pem(leaf))  # without the one in between
    with pytest.raises(IdentityError, match=r"not signed by the authority of ca\.pem"):
        Identity.load(tmp_path / "north", NOW)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": None}, "names no host"),
        ({"hosts": [x509.DNSName("*.example.org")]}, "no wildcard"),
        ({"hosts": [x509.RFC822Name("a@example.org")]}, "neither a host nor an address"),
        ({"eku": BOTH[:1]}, "both serverAuth and clientAuth"),
        ({"eku": BOTH[1:]}, "both serverAuth and clientAuth"),
        ({"usage": {"key_encipherment": True}}, "digitalSignature"),
        ({"ca": True}, "is an authority's certificate"),
    ],
    ids=["no host", "wildcard", "mail", "server", "client", "usage", "authority"],
)
def test_what_a_certificate_of_an_organisation_lacks(tmp_path, change, words):
    top = ec.generate_private_key(ec.SECP256R1())
    root = issue("root", top.public_key(), key=top, ca=True)
    tls = ec.generate_private_key(ec.SECP256R1())
    leaf = issue("north", tls.public_key(), root, top, **{**NODE, **change})
    with pytest.raises(IdentityError, match=f"north: it.* {words}|north: it {words}|{words}"):
        Identity.load(put(tmp_path / "north", (root, root, top), leaf, tls), NOW)


def test_what_is_between_must_be_authorities_that_may_sign(office, tmp_path):
    root, lower, key = office
    tls = ec.generate_private_key(ec.SECP256R1())
    for usage, ca, words in (
        ({"digital_signature": True}, True, "lacks keyCertSign"),
        (None, False, "is not an authority's certificate"),
        (None, None, "is not an authority's certificate"),
    ):
        between = issue("between", tls.public_key(), lower, key, ca=ca, usage=usage)
        own = ec.generate_private_key(ec.SECP256R1())
        leaf = issue("north", own.public_key(), between, tls, **NODE)
        folder = put(tmp_path / "north", office, leaf, own)
        with open(folder / "tls.pem", "ab") as file:
            file.write(pem(between))
        assert chain(read_certificates(folder / "tls.pem"), [root]) == [leaf, between, lower, root]
        with pytest.raises(IdentityError, match=words):
            Identity.load(folder, NOW)


def test_an_organisations_key_becomes_the_consortiums(office, tmp_path):
    root, lower, key = office
    shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "org.key").write_bytes(key.private_bytes(*shape, serialization.NoEncryption()))
    (tmp_path / "org.pem").write_bytes(pem(root) + pem(lower))
    (tmp_path / "org.key").chmod(0o644)
    with pytest.raises(IdentityError, match="other users may read"):
        adopt(tmp_path / "ca", tmp_path / "org.pem", tmp_path / "org.key", NOW)
    (tmp_path / "org.key").chmod(0o600)
    told = adopt(tmp_path / "ca", tmp_path / "org.pem", tmp_path / "org.key", NOW)
    assert told == "CN=Hospital nodes,O=Hospital"
    made = make_node(tmp_path / "ca", "north", ["north.example.org"], tmp_path / "north", NOW, 50)
    assert certificate(made.folder / "ca.pem") == lower  # not all that the organisation signs
    other = make_node(tmp_path / "ca", "south", ["localhost"], tmp_path / "south", NOW, 50)
    shutil.copy(revoke(tmp_path / "ca", "north", NOW), other.folder)
    assert Identity.load(other.folder, NOW).revoked.names == {"north"}
    (tmp_path / "org.pem").write_bytes(pem(root))
    with pytest.raises(IdentityError, match=r"no certificate of .*org\.pem belongs to the key"):
        adopt(tmp_path / "ca2", tmp_path / "org.pem", tmp_path / "org.key", NOW)


def test_a_key_of_no_authority_is_not_adopted(call, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = issue("north", key.public_key(), key=key, **NODE)
    shape = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (tmp_path / "k.key").write_bytes(key.private_bytes(*shape, serialization.NoEncryption()))
    (tmp_path / "k.key").chmod(0o600)
    (tmp_path / "k.pem").write_bytes(pem(leaf))
    told = call("init", "ca", "--ca", "k.pem", "--ca-key", "k.key", code=2)
    assert "k.pem: it is not an authority's certificate" in told
    assert "belong together" in call("init", "ca", "--ca", "k.pem", code=2)
    assert not (tmp_path / "ca").exists()


# --------------------------------------------------------------------------------------------------
# command line


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        result = CliRunner().invoke(main, ["pki", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return call


def test_the_whole_story_on_the_command_line(call, tmp_path):
    assert "Authority 'trial' in ca" in call("init", "ca", "--name", "trial", "--days", "1000")
    told = call(
        "node", "ca", "St. Mary's", "--host", "localhost", "--host", "127.0.0.1", "--out", "mary"
    )
    now = datetime.now(UTC)
    mary = Identity.load(tmp_path / "mary", now)
    assert f'name = "St. Mary\'s"\n  key = "{mary.public}"' in told
    assert timedelta(days=364) < mary.expires - now <= timedelta(days=365)
    told = call("request", "west", "--host", "west.example.org")
    key = public_text(pki.signing_key(tmp_path / "west" / "sign.key").public_key())
    assert f'key = "{key}"' in told
    assert "Signed for west" in call(
        "sign", "ca", "west/request.csr", "--out", "back", "--days", "30", "--yes"
    )
    for name in ("tls.pem", "ca.pem"):
        (tmp_path / "west" / name).write_bytes((tmp_path / "back" / name).read_bytes())
    west = Identity.load(tmp_path / "west", now)
    assert west.expires - now <= timedelta(days=30, seconds=60)
    assert "as its tls.pem" in call("renew", "ca", "west", "--days", "90")
    told = call("revoke", "ca", "St. Mary's")
    assert "St. Mary's is out. Send ca/revoked.pem to all others" in told
    assert members(tmp_path / "ca") == ["west"]
    told = call("revoke", "ca", "St. Mary's", "--new-authority")
    assert "St. Mary's is out" in told
    assert "west.pem" in told
    assert not (tmp_path / "ca" / "revoked.pem").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["node", "ca", "north", "--host", "localhost"], "has a certificate"),
        (["node", "ca", "x" * 65, "--host", "localhost", "--out", "o"], "1 to 64 letters"),
        (["node", "ca", "n2", "--host", "a b"], "neither an address"),
        (["init", "ca"], "is not empty"),
        (["renew", "ca", "nobody"], "nobody has no certificate"),
        (["revoke", "ca", "nobody"], "nobody has no certificate"),
        (["sign", "ca", "none.csr"], "cannot read none.csr"),
    ],
)
def test_mistakes_on_the_command_line(call, tmp_path, arguments, words):
    call("init", "ca")
    call("node", "ca", "north", "--host", "localhost", "--out", "first")
    result = CliRunner().invoke(main, ["pki", *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_node_needs_a_host_on_the_command_line(call):
    assert "Missing option '--host'" in call("request", "north", code=2)
    call("request", "north", "--host", "localhost", "--days", "0", code=2)
