"""The command line, ``dynadp COMMAND``. Results go to stdout, progress and errors to stderr.

A command's module is imported when the command is asked for, and libraries when it runs: so
``dynadp --help`` and ``dynadp COMMAND --help`` are fast.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from dynadp.cli.codes import INTERRUPTED, USAGE, code_of
from dynadp.errors import DynadpError

COMMANDS = {  # name: module and function, and its line in the list of commands
    "account": ("budget:account", "Add up the privacy loss of many rounds."),
    "attacks": ("attacks:attacks", "Attack runs with and without noise, on made rows."),
    "audit": ("audit:audit", "Test a mechanism's privacy claim against its own draws."),
    "bounds": ("theory:bounds", "Rows that the paper's theorems ask for, and back."),
    "calibrate": ("budget:calibrate", "Find the alpha, or the rounds, that fit a total."),
    "check": ("jobs:check", "Check a run file and its rows; train nothing."),
    "demo": ("demo:demo", "Train on made rows, with and without privacy."),
    "design": ("tradeoff:design", "Choose alpha from losses and a utility of privacy."),
    "evaluate": ("jobs:evaluate", "Accuracy of a model; with noise on private rows."),
    "explore": ("report:explore", "Plan and follow a run on a local page."),
    "init": ("init:init", "Write a commented run file and schema."),
    "launch": ("launch:launch", "Try a run file as a network on this machine."),
    "ledger": ("ledger:ledger", "Show, check and cap what a node has spent."),
    "node": ("network:node", "Run one silo of a network."),
    "pki": ("pki:pki", "Make certificates and keys of a consortium."),
    "predict": ("jobs:predict", "Label the rows of a file with a model."),
    "relay": ("network:relay", "Carry letters between nodes that cannot meet."),
    "report": ("report:report", "Write one run as one page to keep and sign."),
    "reproduce": ("reproduce:reproduce", "Reproduce the paper's figures on Adult."),
    "status": ("network:status", "Show how nodes of a network are."),
    "track": ("track:track", "Log a run to MLflow."),
    "tradeoff": ("tradeoff:tradeoff", "Try alphas on public rows and recommend one."),
    "train": ("jobs:train", "Train as a run file says."),
}
_EXTRAS = {"cryptography": "network", "ray": "ray", "tomli_w": "network", "zenoh": "network"}


class Commands(click.Group):
    """A group that imports a command when it is asked for, and turns errors of dynadp and of the
    system into one line and an exit code of :mod:`dynadp.cli.codes`.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        place, line = self.lazy[cmd_name]
        module, _, function = place.partition(":")
        command: click.Command = getattr(import_module(f"dynadp.cli.{module}"), function)
        command.short_help = line
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(self.lazy.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except DynadpError as error:
            message, code = str(error), code_of(error)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if extra is None:
                raise
            message = f"{ctx.invoked_subcommand} needs {error.name}: pip install 'dynadp[{extra}]'"
            code = USAGE
        except BrokenPipeError:
            raise
        except OSError as error:
            message = f"{error.filename or 'the system'}: {error.strerror or error}"
            code = code_of(error)
        except KeyboardInterrupt:
            message, code = "interrupted", INTERRUPTED
        click.echo(f"dynadp: {message}", err=True)
        ctx.exit(code)


@click.group(cls=Commands, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dynadp")
def main() -> None:
    """Differentially private machine learning over a network."""
