"""``--runtime ray``: work that a cluster does, with the same command and the same result."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dynadp.cli.options import option

if TYPE_CHECKING:
    from dynadp.research import Spread

RUNTIME = option(
    "--runtime",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="In one process, or on a Ray cluster whose hosts trust each other.",
)
ADDRESS = option(
    "--address",
    envvar="DYNADP_RAY_ADDRESS",
    metavar="HOST:PORT",
    help="Head of the Ray cluster, or auto; by default a cluster of this machine alone.",
)


def address_of(runtime: str, address: str | None) -> str | None:
    """Return the address; refuse one that was typed for a run without Ray."""
    source = click.get_current_context().get_parameter_source("address")
    if address is not None and runtime != "ray" and source is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--address is that of a Ray cluster: give --runtime ray too, or leave it out"
        )
    return address


@contextmanager
def spreading(runtime: str, address: str | None) -> Iterator["Spread"]:
    """Yield the function that carries out a sweep's tasks."""
    if runtime == "local":
        from dynadp.research import map_serially

        yield map_serially
        return
    from dynadp.engines import cluster, map_on_cluster

    with cluster(address):
        yield map_on_cluster
