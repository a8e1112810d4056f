"""The command line, ``dynadp COMMAND``. Results go to stdout, progress and errors to stderr.

A command's module is imported when the command is asked for, and libraries when it runs: so
``dynadp --help`` and ``dynadp COMMAND --help`` are fast.
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from dynadp.cli.codes import INTERRUPTED, USAGE, code_of
from dynadp.cli.verbosity import KEY, VERBOSE, with_verbosity
from dynadp.errors import DynadpError

SECTIONS = {  # of the list of commands, by task: a command, its module and its line
    "Begin": {
        "demo": ("demo", "Train on made rows, with and without privacy."),
        "start": ("report", "Be asked for a first run on a local page."),
        "init": ("init", "Write a commented run file and schema."),
    },
    "Decide": {
        "explore": ("report", "Plan and follow a run on a local page."),
        "tradeoff": ("tradeoff", "Try alphas on public rows and recommend one."),
        "design": ("tradeoff", "Choose alpha from losses and a utility of privacy."),
        "account": ("budget", "Add up the privacy loss of many rounds."),
        "calibrate": ("budget", "Find the alpha, or the rounds, that fit a total."),
    },
    "Train in one process": {
        "check": ("jobs", "Check a run file, or a silo's part in it; send nothing."),
        "train": ("jobs", "Train as a run file says."),
    },
    "Train over a network": {
        "pki": ("pki", "Make certificates and keys of a consortium."),
        "launch": ("network", "Try a run file as a network on this machine."),
        "approve": ("consent", "Approve what a silo would release in a run."),
        "node": ("network", "Run one silo of a network."),
        "relay": ("network", "Carry letters between nodes that cannot meet."),
        "status": ("network", "Show how nodes of a network are."),
    },
    "Use what was learnt": {
        "predict": ("scores", "Label the rows of a file with a model."),
        "evaluate": ("scores", "How good a model is; with noise on private rows."),
        "coefficients": ("models", "What a model's score is made of."),
        "export": ("models", "Write a model for use without dynadp."),
        "model": ("jobs", "Make a model of a run that was stopped early."),
        "report": ("report", "Write one run as one page to keep and sign."),
        "replay": ("report", "Play a run round by round on a local page."),
        "compare": ("report", "Put runs beside each other: settings, cost, measures."),
        "certify": ("report", "Write what a run promises on a page, signed."),
        "track": ("report", "Log a run to MLflow."),
    },
    "Budgets": {
        "ledger": ("ledger", "Show, check and cap what a node has spent."),
        "count": ("scores", "Number of private rows; with noise, charged."),
        "verify": ("verify", "Check a certificate, or an export of a ledger."),
    },
    "Doubt": {
        "audit": ("audit", "Test a mechanism's privacy claim against its own draws."),
        "attacks": ("attacks", "Attack runs with and without noise, on made rows."),
        "bounds": ("theory", "Rows that the paper's theorems ask for, and back."),
        "reproduce": ("reproduce", "Reproduce the paper's figures on Adult."),
    },
}
COMMANDS = {name: where for section in SECTIONS.values() for name, where in section.items()}
_EXTRAS = {  # a library, and the extra that installs it
    "cryptography": "network",
    "onnx": "onnx",
    "prometheus_client": "network",
    "ray": "ray",
    "sklearn": "sklearn",
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
        """Return the names of all commands, by task."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, line = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dynadp.cli.{module}"), cmd_name)
        command.short_help = line
        return with_verbosity(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; say which one may have been meant."""
        name = args[0]
        unknown = not name.startswith("-") and self.get_command(ctx, name) is None
        if unknown and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS)
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command '{name}'.{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), line) for name, (_, line) in section.items()]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return self._invoke(ctx)
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
        from dynadp.cli.output import for_reader

        click.echo(for_reader(f"dynadp: {message}", sys.stderr), err=True)
        ctx.exit(code)

    def _invoke(self, ctx: click.Context) -> Any:
        """Run the command; with ``-v``, show where an error came from before it becomes a line.

        Only lines of code: an error beneath it may quote a cell.
        """
        try:
            return super().invoke(ctx)
        except (DynadpError, OSError) as error:
            if ctx.meta.get(KEY) == VERBOSE:
                from traceback import format_tb

                click.echo("".join(format_tb(error.__traceback__)), err=True, nl=False)
            raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dynadp")
def main() -> None:
    """Differentially private machine learning over a network."""


with_verbosity(main)
