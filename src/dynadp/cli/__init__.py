"""The command line, ``dynadp COMMAND``. Results go to stdout, progress and errors to stderr.

A command's module is imported when the command is asked for, and libraries when it runs: so
``dynadp --help`` and ``dynadp COMMAND --help`` are fast.
"""

from importlib import import_module
from typing import Any

import click

from dynadp.cli.codes import INTERRUPTED, USAGE, code_of
from dynadp.errors import DynadpError

COMMANDS = {  # name: its module, and its line in the list of commands
    "account": ("budget", "Add up the privacy loss of many rounds."),
    "approve": ("consent", "Approve what a silo would release in a run."),
    "attacks": ("attacks", "Attack runs with and without noise, on made rows."),
    "audit": ("audit", "Test a mechanism's privacy claim against its own draws."),
    "bounds": ("theory", "Rows that the paper's theorems ask for, and back."),
    "calibrate": ("budget", "Find the alpha, or the rounds, that fit a total."),
    "check": ("jobs", "Check a run file or a silo's part in it; send nothing."),
    "count": ("scores", "Number of private rows; with noise, charged."),
    "demo": ("demo", "Train on made rows, with and without privacy."),
    "design": ("tradeoff", "Choose alpha from losses and a utility of privacy."),
    "evaluate": ("scores", "How good a model is; with noise on private rows."),
    "explore": ("report", "Plan and follow a run on a local page."),
    "init": ("init", "Write a commented run file and schema."),
    "launch": ("network", "Try a run file as a network on this machine."),
    "ledger": ("ledger", "Show, check and cap what a node has spent."),
    "model": ("jobs", "Make a model of a run that was stopped early."),
    "node": ("network", "Run one silo of a network."),
    "pki": ("pki", "Make certificates and keys of a consortium."),
    "predict": ("scores", "Label the rows of a file with a model."),
    "relay": ("network", "Carry letters between nodes that cannot meet."),
    "report": ("report", "Write one run as one page to keep and sign."),
    "reproduce": ("reproduce", "Reproduce the paper's figures on Adult."),
    "status": ("network", "Show how nodes of a network are."),
    "track": ("report", "Log a run to MLflow."),
    "tradeoff": ("tradeoff", "Try alphas on public rows and recommend one."),
    "train": ("jobs", "Train as a run file says."),
}
_EXTRAS = {  # a library, and the extra that installs it
    "cryptography": "network",
    "prometheus_client": "network",
    "ray": "ray",
    "starlette": "explore",
    "tomli_w": "network",
    "uvicorn": "explore",
    "zenoh": "network",
}


class Commands(click.Group):
    """A group that imports a command when it is asked for, and turns errors of dynadp and of the
    system into one line and an exit code of :mod:`dynadp.cli.codes`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, line = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dynadp.cli.{module}"), cmd_name)
        command.short_help = line
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dynadp")
def main() -> None:
    """Differentially private machine learning over a network."""
