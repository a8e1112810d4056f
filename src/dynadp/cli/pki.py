"""``dynadp pki``: certificates and keys of a consortium."""

from datetime import UTC, datetime
from pathlib import Path

import click

from dynadp import runs
from dynadp.cli.options import FILE, FOLDER, Ordered, option, out_option
from dynadp.cli.output import say
from dynadp.errors import IdentityError

ORDER = ("init", "node", "request", "sign", "show", "renew", "revoke")


@click.group(cls=Ordered, order=ORDER)
def pki() -> None:
    """Make certificates and keys of a consortium, so that nodes know each other."""


_DAYS = option("--days", type=click.IntRange(1, 36500), help="How long it is valid.")
_AUTHORITY = click.argument("folder", metavar="AUTHORITY", type=FOLDER)
_HOST_HELP = "Name or address that neighbours dial; may be given again."
_HOST = option("--host", multiple=True, required=True, help=_HOST_HELP)
_OUT = out_option("Folder to make; the node's name by default.")


def _for_run_file(name: str, key: str) -> None:
    say(f'For the run file:\n  name = "{name}"\n  key = "{key}"')
    say(f"Others see that key, in dynadp check, as {runs.identities.key_fingerprint(key)}")


def _validity(days: int | None) -> tuple[datetime, int]:
    """From when, and for how many days, a node's certificate is valid."""
    return datetime.now(UTC), days or runs.authorities.NODE_DAYS


@pki.command()
@_AUTHORITY
@option("--name", default="consortium", help="What to call it.")
@option("--ca", type=FILE, help="Take this authority, of an organisation's own: its certificate.")
@option("--ca-key", type=FILE, help="Its private key, in PEM without a password.")
@_DAYS
def init(folder: str, name: str, ca: str | None, ca_key: str | None, days: int | None) -> None:
    """Make the consortium's authority.

    Whoever holds its ca.key decides who is a member. Keep it off the nodes.
    """
    now = datetime.now(UTC)
    if (ca is None) != (ca_key is None):
        raise click.UsageError("--ca and --ca-key belong together: the certificate and its key")
    if ca and ca_key:
        subject = runs.authorities.adopt(folder, ca, ca_key, now)
        say(
            f"Authority {subject} in {folder}. Nodes believe what its key signs, and nothing else "
            f"that the organisation signs. Guard {Path(folder) / 'ca.key'}; give "
            f"{Path(folder) / 'ca.pem'} to all nodes."
        )
        return
    runs.authorities.make_authority(folder, name, now, days or runs.authorities.AUTHORITY_DAYS)
    say(
        f"Authority {name!r} in {folder}. Guard {Path(folder) / 'ca.key'}; give "
        f"{Path(folder) / 'ca.pem'} to all nodes."
    )


@pki.command("node")
@_AUTHORITY
@click.argument("name")
@_HOST
@_OUT
@_DAYS
def pki_node(
    folder: str, name: str, host: tuple[str, ...], out: str | None, days: int | None
) -> None:
    """Make a node's keys and certificate here. A silo that keeps its keys to itself uses `request`
    and `sign`.
    """
    identity = runs.authorities.make_node(folder, name, host, out or name, *_validity(days))
    say(
        f"{identity.name}: certificate and keys in {identity.folder}, valid to "
        f"{identity.expires:%Y-%m-%d}."
    )
    _for_run_file(identity.name, identity.public)


@pki.command()
@click.argument("name")
@option("--host", multiple=True, help=_HOST_HELP)
@_OUT
@option("--again", type=FOLDER, help="The node's folder: keep its keys, and ask for a new host.")
@option("--new-key", is_flag=True, help="With --again: a new key for links.")
def request(
    name: str, host: tuple[str, ...], out: str | None, again: str | None, new_key: bool
) -> None:
    """At the silo: make its keys, and a request for the authority.

    With --again, for a node that has a certificate: its signing key stays, and so do run files.
    """
    if again is None:
        if new_key or not host:
            raise click.UsageError(
                "--new-key needs --again" if new_key else "Missing option '--host'"
            )
        path = runs.identities.request(name, host, out or name)
    else:
        if out is None:
            raise click.UsageError("--again needs --out: the folder that takes the old one's place")
        path = runs.identities.request_again(again, out, host, new_key=new_key)
    asked = runs.authorities.Request.load(path)
    if asked.name != name:
        raise IdentityError(f"{again} is the folder of {asked.name!r}, not of {name!r}")
    key = runs.identities.public_text(
        runs.identities.signing_key(path.parent / "sign.key").public_key()
    )
    say(
        f"Send {path} to the authority, and put what it returns, tls.pem and ca.pem, into "
        f"{path.parent}. It will ask you, over another channel, for the"
    )
    say(f"  fingerprint: {asked.fingerprint}")
    _for_run_file(name, key)


@pki.command()
@_AUTHORITY
@click.argument("request_file", metavar="REQUEST", type=FILE)
@option("--out", type=FOLDER, default=".", help="Where tls.pem and ca.pem go.")
@option("--renewal", is_flag=True, help="The node has, or had, a certificate; this replaces it.")
@option("--relay", is_flag=True, help="Sign for a relay.")
@option("--yes", is_flag=True, help="Do not ask: the fingerprint was compared before.")
@_DAYS
def sign(
    folder: str,
    request_file: str,
    out: str,
    renewal: bool,
    relay: bool,
    yes: bool,
    days: int | None,
) -> None:
    """At the authority: sign a silo's request.

    Ask the silo first whether the request is its own. Its name, its hosts and the fingerprint of
    its key are shown before anything is signed. Wildcards, names of others and the name of a relay
    are refused.
    """
    for line in runs.authorities.Request.load(request_file).lines:
        say(line)
    if not yes and not _confirmed():
        raise IdentityError(
            "nothing was signed; compare the fingerprint with the silo, over another channel than "
            "the one the request came by, and then answer y (or give --yes)"
        )
    Path(out).mkdir(parents=True, exist_ok=True)
    name = runs.authorities.sign_request(
        folder, request_file, out, *_validity(days), renewal=renewal, relay=relay
    )
    files = [Path(out) / "tls.pem", Path(out) / "ca.pem"]
    say(f"Signed for {name}: send {files[0]} and {files[1]} back to it.")
    if (listed := Path(out) / runs.LIST_FILE).exists():
        say(f"Send {listed} too, to it and to all others: the list of those who are out.")


def _confirmed() -> bool:
    """Whether somebody says that the silo has this fingerprint."""
    try:
        return click.confirm("Does the silo, asked over another channel, say the same?")
    except click.Abort:
        say()
        return False


@pki.command()
@click.argument("folder", metavar="NODE", type=FOLDER)
def show(folder: str) -> None:
    """Check a node's folder, and show what its certificate says.

    Any authority may have signed it.
    """
    found = runs.Identity.load(folder, datetime.now(UTC))
    say(
        f"name: {found.name}\nhosts: {', '.join(found.hosts)}\n"
        f"fingerprint: {found.fingerprint}\n"
        f"valid to: {found.expires:%Y-%m-%d}\n"
        f"out, by its list: {', '.join(sorted(found.revoked.names)) or 'none'}"
    )
    _for_run_file(found.name, found.public)


@pki.command()
@_AUTHORITY
@click.argument("name")
@_DAYS
def renew(folder: str, name: str, days: int | None) -> None:
    """Make a new certificate for a node's old key."""
    path = runs.authorities.renew(folder, name, *_validity(days))
    say(
        f"Send {path} to {name}, as its tls.pem. Its signing key, and so the run file, stays as "
        "it is."
    )


@pki.command()
@_AUTHORITY
@click.argument("name")
@option(
    "--new-authority",
    is_flag=True,
    help="Shut it out of links too: new certificates for all others.",
)
@_DAYS
def revoke(folder: str, name: str, new_authority: bool, days: int | None) -> None:
    """Shut a node out.

    It makes a signed list, which the others put beside their certificates.
    """
    now, days = _validity(days)
    if not new_authority:
        path = runs.authorities.revoke(folder, name, now)
        say(
            f"{name} is out. Send {path} to all others, as {runs.LIST_FILE} beside their tls.pem. "
            "Nodes that are running take nothing of it from then on, and need not be stopped; "
            "its links end when they are started again. Take the node out of run files to come."
        )
        return
    paths = runs.authorities.replace_authority(folder, name, now, days)
    say(f"{name} is out. All others need the new {Path(folder) / 'ca.pem'}, and as their tls.pem:")
    for one in paths:
        say(f"  {one}")
    say(
        "Stop all nodes, put the files in place, and start them again. Take the node out of run "
        "files to come."
    )
