"""The command line: ``dynadp COMMAND``. stdout carries results, stderr progress; heavy imports
happen inside commands.
"""

from typing import Any

import click

from dynadp.cli.attacks import attacks
from dynadp.cli.audit import audit
from dynadp.cli.cluster import ADDRESS, RUNTIME, address_of
from dynadp.cli.codes import DAMAGED, INTERRUPTED, USAGE, code_of
from dynadp.cli.options import (
    DELTA,
    DIMENSION,
    JSON,
    LEDGER,
    MECHANISM,
    ROUNDS,
    RUN_FILE,
    SHARE,
    WHO,
    Positive,
)
from dynadp.cli.pki import pki
from dynadp.cli.report import explore, report
from dynadp.cli.research import bounds, design, reproduce, tradeoff
from dynadp.cli.track import track
from dynadp.errors import DynadpError

_EXTRAS = {"cryptography": "network", "ray": "ray", "tomli_w": "network", "zenoh": "network"}


class Commands(click.Group):
    """A group that turns dynadp's errors into one line and an exit code of :mod:`dynadp.cli.codes`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except DynadpError as error:
            click.echo(f"dynadp: {error}", err=True)
            ctx.exit(code_of(error))
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if extra is None:
                raise
            click.echo(
                f"dynadp: {ctx.invoked_subcommand} needs {error.name}: pip install "
                f"'dynadp[{extra}]'",
                err=True,
            )
            ctx.exit(USAGE)
        except BrokenPipeError:
            raise
        except OSError as error:
            click.echo(
                f"dynadp: {error.filename or 'the system'}: {error.strerror or error}", err=True
            )
            ctx.exit(code_of(error))
        except KeyboardInterrupt:
            click.echo("dynadp: interrupted", err=True)
            ctx.exit(INTERRUPTED)


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
@click.option(
    "--epsilon",
    type=Positive(),
    default=1.0,
    show_default=True,
    help="Total loss of a private run.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
)
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; must not hold anything yet."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the rows that are made, and of the noise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(
    mechanism: str, epsilon: float, delta: float, out: str | None, seed: int, as_json: bool
) -> None:
    """Five silos of made census rows on a ring learn one classifier, offline, with pictures.

    Rows are synthetic and noise is seeded: a SIMULATION that protects nobody, and nobody needs
    protection.
    """
    from dynadp.cli.demo import run_demo

    run_demo(mechanism, epsilon, delta, out, seed, as_json)


@main.command()
@MECHANISM
@DIMENSION
@click.option("--alpha", type=Positive(), help="Loss of one round.")
@click.option("--rounds", type=ROUNDS, help="How many.")
@SHARE
@click.option(
    "--events",
    type=click.Path(dir_okay=False),
    help="Instead of all these: a file with one event a line, as JSON.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rows that one person may have at a node.",
)
@DELTA
@JSON
def account(
    mechanism: str | None,
    dimension: int | None,
    alpha: float | None,
    rounds: int | None,
    jacobian_share: float | None,
    events: str | None,
    rows: int,
    delta: float,
    as_json: bool,
) -> None:
    """What many rounds lose in total: the smallest valid epsilon at a delta."""
    from dynadp.cli.budget import plan, run_account, run_account_file

    given = {
        "--mechanism": mechanism,
        "--dimension": dimension,
        "--alpha": alpha,
        "--rounds": rounds,
    }
    missing = [name for name, value in given.items() if value is None]
    if events is not None:
        if len(missing) < len(given) or jacobian_share is not None:
            raise click.UsageError(
                "--events says it all; leave out --mechanism, --dimension, --alpha, --rounds, "
                "--jacobian-share"
            )
        run_account_file(events, delta, rows, as_json)
        return
    if mechanism is None or dimension is None or alpha is None or rounds is None:
        raise click.UsageError(f"missing {', '.join(missing)} (or give --events FILE)")
    title = f"{rounds} rounds of {mechanism} perturbation with alpha = {alpha:g} in {dimension} dimensions:"
    run_account(
        plan(mechanism, dimension, alpha, rounds, jacobian_share), delta, rows, title, as_json
    )


@main.command()
@MECHANISM
@DIMENSION
@click.option("--rounds", type=ROUNDS, help="How many; prints the alpha that fits.")
@click.option("--alpha", type=Positive(), help="Loss of one round; prints how many rounds fit.")
@click.option("--epsilon", type=Positive(), required=True, help="The total.")
@DELTA
@SHARE
@JSON
def calibrate(
    mechanism: str | None,
    dimension: int | None,
    rounds: int | None,
    alpha: float | None,
    epsilon: float,
    delta: float,
    jacobian_share: float | None,
    as_json: bool,
) -> None:
    """From a total (epsilon, delta) to the alpha of each round, or to how many rounds fit; never
    less privacy than asked.
    """
    from dynadp.cli.budget import run_calibrate

    if mechanism is None or dimension is None:
        raise click.UsageError("missing --mechanism or --dimension")
    run_calibrate(mechanism, dimension, rounds, alpha, epsilon, delta, jacobian_share, as_json)


@main.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@click.option(
    "--node",
    multiple=True,
    metavar="NAME=FILE",
    help="A node and its file of rows; once for each node.",
)
@click.option("--label", help="Name of the label column.")
@click.option("--negative", help="Its negative value.")
@click.option("--positive", help="Its positive value.")
@click.option(
    "--numeric", multiple=True, metavar="NAME:LOW:HIGH", help="A numeric column with public bounds."
)
@click.option(
    "--categorical",
    multiple=True,
    metavar="NAME=A,B,C",
    help="A categorical column with its published values.",
)
@click.option("--epsilon", type=Positive(), default=1.0, show_default=True, help="The total.")
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Make it a SIMULATION, which protects nobody and needs no ledgers.",
)
def init(folder: str, **flags: Any) -> None:
    """Write a commented run file and schema, from flags or by asking."""
    import sys

    from dynadp.cli.init import run_init

    run_init(folder, flags, sys.stdin.isatty())


OVERRIDES = (
    click.option(
        "--epsilon", type=Positive(), envvar="DYNADP_EPSILON", help="Beats the file's total."
    ),
    click.option(
        "--delta",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        envvar="DYNADP_DELTA",
        help="Beats the file's.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        envvar="DYNADP_SEED",
        help="Makes it a SIMULATION, without ledgers.",
    ),
)


def overridable(command: Any) -> Any:
    """The options that beat a run file; each has an environment variable."""
    for option in reversed(OVERRIDES):
        command = option(command)
    return command


def _overrides(epsilon: float | None, delta: float | None, seed: int | None) -> dict[str, Any]:
    return {"privacy.epsilon": epsilon, "privacy.delta": delta, "run.seed": seed}


@main.command()
@RUN_FILE
@overridable
@JSON
def check(
    run_file: str, epsilon: float | None, delta: float | None, seed: int | None, as_json: bool
) -> None:
    """Check a run file, its schema, all rows and the ledgers, and say what the run would spend;
    train nothing.

    Exit code 3 if a ledger would refuse it.
    """
    from dynadp.cli.jobs import run_check

    run_check(run_file, _overrides(epsilon, delta, seed), as_json)


@main.command()
@RUN_FILE
@overridable
@click.option(
    "--out",
    envvar="DYNADP_OUT",
    type=click.Path(file_okay=False),
    help="Run folder; runs/NAME by default.",
)
@click.option("--dry-run", is_flag=True, help="Check only, as dynadp check does.")
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@RUNTIME
@ADDRESS
@JSON
def train(
    run_file: str,
    epsilon: float | None,
    delta: float | None,
    seed: int | None,
    out: str | None,
    dry_run: bool,
    resume: bool,
    runtime: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Train as a run file says; Ctrl-C leaves a run that --resume finishes."""
    from dynadp.cli.jobs import run_train

    where = runtime, address_of(runtime, address)
    run_train(run_file, _overrides(epsilon, delta, seed), out, dry_run, resume, as_json, *where)


@main.command()
@click.argument("model", type=click.Path())
@click.argument("data", metavar="FILE", type=click.Path(dir_okay=False))
@click.option(
    "--separator",
    type=click.Choice([",", ";", "\t"]),
    help="Of a CSV file; by default as its header has it.",
)
def predict(model: str, data: str, separator: str | None) -> None:
    """Label every row of a file with a model; CSV on stdout."""
    from dynadp.cli.jobs import run_predict

    run_predict(model, data, separator)


@main.command()
@click.argument("model", type=click.Path())
@click.argument("data", metavar="FILE", type=click.Path(dir_okay=False))
@click.option(
    "--separator",
    type=click.Choice([",", ";", "\t"]),
    help="Of a CSV file; by default as its header has it.",
)
@click.option("--public", is_flag=True, help="These rows are published or synthetic.")
@click.option(
    "--ledger",
    "ledger_file",
    type=click.Path(dir_okay=False),
    help="They are not: charge this ledger, and add noise.",
)
@click.option("--alpha", type=Positive(), help="How much that one release may lose.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    help="A public number of private rows; needed where the schema drops rows.",
)
@JSON
def evaluate(
    model: str,
    data: str,
    separator: str | None,
    public: bool,
    ledger_file: str | None,
    alpha: float | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Accuracy of a model on public rows; on private rows only with noise, charged to a ledger."""
    from dynadp.cli.jobs import run_evaluate

    run_evaluate(model, data, separator, public, ledger_file, alpha, rows, as_json)


@main.group()
def ledger() -> None:
    """What a node has spent, over all its runs."""


@ledger.command()
@LEDGER
@JSON
def show(ledger_file: str, as_json: bool) -> None:
    """Runs, cap, what counts against it, and the head to keep elsewhere."""
    from dynadp.cli.ledger import run_show

    run_show(ledger_file, as_json)


@ledger.command()
@LEDGER
@click.option(
    "--head", help="A head printed earlier: finds a ledger that was cut at its end or replaced."
)
@JSON
@click.pass_context
def verify(ctx: click.Context, ledger_file: str, head: str | None, as_json: bool) -> None:
    """Check every byte that matters; exit code 5 if anything is wrong."""
    from dynadp.cli.ledger import run_verify

    if not run_verify(ledger_file, head, as_json):
        ctx.exit(DAMAGED)


@ledger.command()
@LEDGER
@click.option(
    "--epsilon",
    type=Positive(),
    required=True,
    help="At most this in total, over all runs and data sets.",
)
@DELTA
@click.option("--node", help="Make the ledger of this node if the file is not there.")
@WHO
@JSON
def cap(
    ledger_file: str, epsilon: float, delta: float, node: str | None, who: str | None, as_json: bool
) -> None:
    """Set what the node may spend in total. Choose it before looking at any message."""
    from dynadp.cli.ledger import run_cap

    run_cap(ledger_file, epsilon, delta, node, who, as_json)


@ledger.command()
@LEDGER
@click.argument("run")
@WHO
def close(ledger_file: str, run: str, who: str | None) -> None:
    """End a run that will not go on: what it reserved and did not spend is free again."""
    from dynadp.cli.ledger import run_close

    run_close(ledger_file, run, who)


@main.command()
@click.argument("node_file", metavar="NODE.toml", type=click.Path(dir_okay=False))
@click.option("--quiet", is_flag=True, help="Log to the run folder's node.log only.")
@JSON
def node(node_file: str, quiet: bool, as_json: bool) -> None:
    """One silo's process: takes part in a network run, and goes on with it when started again.

    Exit code 4 if a neighbour stayed away for too long, 143 after SIGTERM: start it again, nothing
    is lost.
    """
    from dynadp.cli.network import run_node

    run_node(node_file, quiet, as_json)


@main.command()
@RUN_FILE
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder to make; runs/NAME-network by default."
)
@click.option("--resume", is_flag=True, help="Go on with the nodes in the folder.")
@click.option(
    "--patience",
    type=Positive(),
    default=60.0,
    show_default=True,
    help="Seconds that a node may stay away.",
)
@JSON
def launch(run_file: str, out: str | None, resume: bool, patience: float, as_json: bool) -> None:
    """Try a run file as a network: all its nodes as processes of this machine, with certificates
    made for the trial.
    """
    from dynadp.cli.launch import run_launch

    run_launch(run_file, out, resume, patience, as_json)


@main.command()
@click.argument(
    "folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(file_okay=False)
)
@JSON
def status(folders: tuple[str, ...], as_json: bool) -> None:
    """How nodes are: rounds, what is spent, neighbours up or away, refused letters. From their run
    folders.
    """
    from dynadp.cli.network import run_status

    run_status(folders, as_json)


@main.command()
@click.argument("identity", metavar="IDENTITY", type=click.Path(file_okay=False))
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where nodes dial it.")
def relay(identity: str, listen: str) -> None:
    """Carry letters between nodes that cannot reach each other. It needs a certificate for the name
    'relay'.
    """
    from dynadp.cli.network import run_relay

    run_relay(identity, listen)


for command in (attacks, audit, bounds, design, explore, pki, report, reproduce, track, tradeoff):
    main.add_command(command)
