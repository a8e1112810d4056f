"""``dynadp pki``: certificates and keys of a consortium."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynadp.runs import Identity


@click.group()
def pki() -> None:
    """Certificates and keys of a consortium, so that nodes know each other."""


_DAYS = click.option("--days", type=click.IntRange(1, 36500), help="How long it is valid.")
_AUTHORITY = click.argument("folder", metavar="AUTHORITY", type=click.Path(file_okay=False))
_HOST = click.option(
    "--host",
    multiple=True,
    required=True,
    help="Name or address that neighbours dial; may be given again.",
)


def _told(identity: "Identity") -> None:
    click.echo(
        f"{identity.name}: certificate and keys in {identity.folder}, valid to "
        f"{identity.expires:%Y-%m-%d}."
    )
    click.echo(f'For the run file:\n  name = "{identity.name}"\n  key = "{identity.public}"')


@pki.command()
@_AUTHORITY
@click.option("--name", default="consortium", show_default=True, help="What to call it.")
@_DAYS
def init(folder: str, name: str, days: int | None) -> None:
    """Make the consortium's authority: whoever holds its ca.key decides who is a member. Keep it
    off the nodes.
    """
    from dynadp.runs import identities as authority

    authority.make_authority(folder, name, datetime.now(UTC), days or authority.AUTHORITY_DAYS)
    click.echo(
        f"Authority {name!r} in {folder}. Guard {Path(folder) / 'ca.key'}; give "
        f"{Path(folder) / 'ca.pem'} to all nodes."
    )


@pki.command("node")
@_AUTHORITY
@click.argument("name")
@_HOST
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; the node's name by default."
)
@_DAYS
def pki_node(
    folder: str, name: str, host: tuple[str, ...], out: str | None, days: int | None
) -> None:
    """Make a node's keys and certificate here. A silo that keeps its keys to itself uses `request`
    and `sign`.
    """
    from dynadp.runs import identities as authority

    _told(
        authority.make_node(
            folder, name, host, out or name, datetime.now(UTC), days or authority.NODE_DAYS
        )
    )


@pki.command()
@click.argument("name")
@_HOST
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; the node's name by default."
)
def request(name: str, host: tuple[str, ...], out: str | None) -> None:
    """At the silo: make its keys, and a request for the authority."""
    from dynadp.runs import identities as authority

    path = authority.request(name, host, out or name)
    key = authority.public_text(authority.signing_key(path.parent / "sign.key").public_key())
    click.echo(
        f"Send {path} to the authority, and put what it returns, tls.pem and ca.pem, into "
        f"{path.parent}."
    )
    click.echo(f'For the run file:\n  name = "{name}"\n  key = "{key}"')


@pki.command()
@_AUTHORITY
@click.argument("request_file", metavar="REQUEST", type=click.Path(dir_okay=False))
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    default=".",
    show_default=True,
    help="Where tls.pem and ca.pem go.",
)
@_DAYS
def sign(folder: str, request_file: str, out: str, days: int | None) -> None:
    """At the authority: sign a silo's request, after asking the silo whether it is its own."""
    from dynadp.runs import identities as authority

    Path(out).mkdir(parents=True, exist_ok=True)
    name = authority.sign_request(
        folder, request_file, out, datetime.now(UTC), days or authority.NODE_DAYS
    )
    click.echo(
        f"Signed for {name}: send {Path(out) / 'tls.pem'} and {Path(out) / 'ca.pem'} back to it."
    )


@pki.command()
@_AUTHORITY
@click.argument("name")
@_DAYS
def renew(folder: str, name: str, days: int | None) -> None:
    """A new certificate for a node's old key."""
    from dynadp.runs import identities as authority

    path = authority.renew(folder, name, datetime.now(UTC), days or authority.NODE_DAYS)
    click.echo(
        f"Send {path} to {name}, as its tls.pem. Its signing key, and so the run file, stays as "
        f"it is."
    )


@pki.command()
@_AUTHORITY
@click.argument("name")
@_DAYS
def revoke(folder: str, name: str, days: int | None) -> None:
    """Shut a node out, by a new authority that signs all the others."""
    from dynadp.runs import identities as authority

    paths = authority.revoke(folder, name, datetime.now(UTC), days or authority.NODE_DAYS)
    click.echo(
        f"{name} is out. All others need the new {Path(folder) / 'ca.pem'}, and as their tls.pem:"
    )
    for path in paths:
        click.echo(f"  {path}")
    click.echo(
        "Stop all nodes, put the files in place, and start them again. Take the node out of run "
        "files to come."
    )
