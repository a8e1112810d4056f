"""Options that several commands share, and their types."""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from dynadp.research import Spread

Declared = TypeVar("Declared", bound=Callable[..., Any] | click.Command)


class Ordered(click.Group):
    """Commands under a command, listed in the order in which they are needed."""

    def __init__(self, *given: Any, order: tuple[str, ...], **known: Any) -> None:
        super().__init__(*given, **known)
        self.order = order

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names; those without a place come last."""
        return sorted(self.commands, key=[*self.order, *sorted(self.commands)].index)


class Positive(click.ParamType):  # type: ignore[type-arg]
    """A finite number above 0."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Refuse anything else."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (isfinite(number) and number > 0):
            self.fail(f"{value!r} is not a finite number above 0.", param, ctx)
        return number


class Address(click.ParamType):  # type: ignore[type-arg]
    """``host:port``; with ``here``, of this machine alone."""

    name = "address"

    def __init__(self, *, here: bool = False) -> None:
        self.here = here

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what is no address, or with ``here`` one that other machines could reach."""
        from dynadp import runs

        try:
            return runs.loopback(value) if self.here else runs.address(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


class MechanismName(click.Choice[str]):
    """The name of a mechanism, or one of the words before and after.

    The names are read when one is converted, not for help: reading them takes a second.
    """

    def __init__(self, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> None:
        self.before, self.after, self.case_sensitive = before, after, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """All that may be given."""
        from dynadp.mechanisms import mechanism_names

        return (*self.before, *mechanism_names(), *self.after)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the word that stands for it in help."""
        return "MECHANISM"


def user() -> str:
    """Return the login name, as far as the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


CHANCE = click.FloatRange(0, 1, min_open=True, max_open=True)
COUNT, SEED, ROUNDS = click.IntRange(min=1), click.IntRange(min=0), click.IntRange(1, 1_000_000)
ADJACENCY = click.Choice(["replace", "add-remove"])
FILE, FOLDER = click.Path(dir_okay=False), click.Path(file_okay=False)
BELOW_1 = click.FloatRange(0, 1, max_open=True)


def option(*names: str, **more: Any) -> Callable[[Declared], Declared]:
    """Declare an option whose default, if it has one, is shown in its help."""
    return click.option(*names, show_default="default" in more, **more)


ANCHOR = option(
    "--anchor", type=FILE, help="The ledger's anchor, where NODE.toml names another than usual."
)
DELTA_HELP = "Probability that more than epsilon leaks; keep it well below 1/rows."
DELTA = option("--delta", type=BELOW_1, required=True, help=DELTA_HELP)
TOTAL_DELTA = option("--delta", type=CHANCE, default=1e-5, help=DELTA_HELP)
MECHANISM_HELP = "A registered mechanism, such as primal (Algorithm 3) or dual (Algorithm 2)."
MECHANISM = option("--mechanism", type=MechanismName(), help=MECHANISM_HELP)
DIMENSION = option("--dimension", type=COUNT, help="Columns of the rows, with the intercept.")
SHARE = option(
    "--jacobian-share", type=BELOW_1, help="abar/alpha of dual perturbation, such as 0.01."
)
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
RUN_FILE = click.argument("run_file", metavar="RUN.toml", type=FILE)


def seed_option(help: str) -> Callable[[Declared], Declared]:
    """Return a ``--seed`` that is 0 by default."""
    return option("--seed", type=SEED, default=0, help=help)


def out_option(help: str) -> Callable[[Declared], Declared]:
    """Return an ``--out`` that names a folder."""
    return option("--out", type=FOLDER, help=help)


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


class MeasureName(click.ParamType[str]):
    """The name of a measure; all are known when it is read."""

    name = "NAME"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return it, or refuse."""
        from dynadp.runs import KINDS, TARGET_KINDS

        if value not in KINDS and value not in TARGET_KINDS:
            names = ", ".join([*KINDS, *TARGET_KINDS])
            self.fail(f"{value!r} is none of {names}", param, ctx)
        return str(value)


MEASURE = option(
    "--measure",
    type=MeasureName(),
    help="What is optimised: auc, average_precision, balanced_accuracy, log_loss, ..., of a "
    "target r2, mae or rmse; accuracy or r2, or as the run file says, by default.",
)
