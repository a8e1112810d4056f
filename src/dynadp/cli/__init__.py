"""The command line: ``dynadp COMMAND``. stdout carries results, stderr progress; heavy imports happen inside commands."""

from typing import Any

import click

from dynadp.errors import DeclarationError, DynadpError, TopologyError


class Commands(click.Group):
    """A group that turns dynadp's errors into one line and an exit code: 2 for declarations, 1 for the rest, 130 for Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except DynadpError as error:
            click.echo(f"dynadp: {error}", err=True)
            ctx.exit(2 if isinstance(error, DeclarationError | TopologyError) else 1)
        except KeyboardInterrupt:
            click.echo("dynadp: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dynadp")
def main() -> None:
    """Differentially private machine learning over a network."""


@main.command()
@click.option(
    "--mechanism",
    type=click.Choice(["none", "dual", "primal", "all"]),
    default="all",
    show_default=True,
    help="How messages are protected; 'all' runs each.",
)
@click.option("--out", type=click.Path(file_okay=False), help="Folder to make; must not hold anything yet.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the rows that are made, and of the noise."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(mechanism: str, out: str | None, seed: int, as_json: bool) -> None:
    """Five silos of made census rows on a ring learn one classifier, offline, with pictures.

    Rows are synthetic and noise is seeded: a SIMULATION that protects nobody, and nobody needs protection.
    """
    from dynadp.cli.demo import run_demo

    run_demo(mechanism, out, seed, as_json)
