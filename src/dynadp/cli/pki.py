"""``dynadp pki``: certificates and keys of a consortium."""

from datetime import UTC, datetime
from pathlib import Path

import click

from dynadp import runs
from dynadp.cli.options import FILE, FOLDER, option, out_option


@click.group()
def pki() -> None:
    """Make certificates and keys of a consortium, so that nodes know each other."""


_DAYS = option("--days", type=click.IntRange(1, 36500), help="How long it is valid.")
_AUTHORITY = click.argument("folder", metavar="AUTHORITY", type=FOLDER)
_HOST = option(
    "--host",
    multiple=True,
    required=True,
    help="Name or address that neighbours dial; may be given again.",
)
_OUT = out_option("Folder to make; the node's name by default.")


def _for_run_file(name: str, key: str) -> None:
    click.echo(f'For the run file:\n  name = "{name}"\n  key = "{key}"')


def _validity(days: int | None) -> tuple[datetime, int]:
    """From when, and for how many days, a node's certificate is valid."""
    return datetime.now(UTC), days or runs.identities.NODE_DAYS


@pki.command()
@_AUTHORITY
@option("--name", default="consortium", help="What to call it.")
@_DAYS
def init(folder: str, name: str, days: int | None) -> None:
    """Make the consortium's authority: whoever holds its ca.key decides who is a member. Keep it
    off the nodes.
    """
    runs.identities.make_authority(
        folder, name, datetime.now(UTC), days or runs.identities.AUTHORITY_DAYS
    )
    click.echo(
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
    identity = runs.identities.make_node(folder, name, host, out or name, *_validity(days))
    click.echo(
        f"{identity.name}: certificate and keys in {identity.folder}, valid to "
        f"{identity.expires:%Y-%m-%d}."
    )
    _for_run_file(identity.name, identity.public)


@pki.command()
@click.argument("name")
@_HOST
@_OUT
def request(name: str, host: tuple[str, ...], out: str | None) -> None:
    """At the silo: make its keys, and a request for the runs.identities."""
    path = runs.identities.request(name, host, out or name)
    key = runs.identities.public_text(
        runs.identities.signing_key(path.parent / "sign.key").public_key()
    )
    click.echo(
        f"Send {path} to the authority, and put what it returns, tls.pem and ca.pem, into "
        f"{path.parent}."
    )
    _for_run_file(name, key)


@pki.command()
@_AUTHORITY
@click.argument("request_file", metavar="REQUEST", type=FILE)
@option(
    "--out",
    type=FOLDER,
    default=".",
    help="Where tls.pem and ca.pem go.",
)
@_DAYS
def sign(folder: str, request_file: str, out: str, days: int | None) -> None:
    """At the authority: sign a silo's request, after asking the silo whether it is its own."""
    Path(out).mkdir(parents=True, exist_ok=True)
    name = runs.identities.sign_request(folder, request_file, out, *_validity(days))
    click.echo(
        f"Signed for {name}: send {Path(out) / 'tls.pem'} and {Path(out) / 'ca.pem'} back to it."
    )


@pki.command()
@_AUTHORITY
@click.argument("name")
@_DAYS
def renew(folder: str, name: str, days: int | None) -> None:
    """Make a new certificate for a node's old key."""
    path = runs.identities.renew(folder, name, *_validity(days))
    click.echo(
        f"Send {path} to {name}, as its tls.pem. Its signing key, and so the run file, stays as "
        "it is."
    )


@pki.command()
@_AUTHORITY
@click.argument("name")
@_DAYS
def revoke(folder: str, name: str, days: int | None) -> None:
    """Shut a node out, by a new authority that signs all the others."""
    paths = runs.identities.revoke(folder, name, *_validity(days))
    click.echo(
        f"{name} is out. All others need the new {Path(folder) / 'ca.pem'}, and as their tls.pem:"
    )
    for path in paths:
        click.echo(f"  {path}")
    click.echo(
        "Stop all nodes, put the files in place, and start them again. Take the node out of run "
        "files to come."
    )
