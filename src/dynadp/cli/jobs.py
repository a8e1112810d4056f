"""``dynadp check`` and ``train``: run files at work."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynadp import engines, privacy, runs
from dynadp.cli.codes import INTERRUPTED, REFUSED
from dynadp.cli.options import (
    ADDRESS,
    CHANCE,
    FILE,
    RUN_FILE,
    RUNTIME,
    SEED,
    Positive,
    address_of,
    option,
    user,
)
from dynadp.cli.output import Answer, note, prints_answer, round_bar

if TYPE_CHECKING:
    from dynadp.runs import LargestTotal, RunCheck

_OVERRIDES = {  # an option, the field of the run file that it replaces, its type and its help
    "epsilon": ("privacy.epsilon", Positive(), "Instead of the run file's total."),
    "delta": ("privacy.delta", CHANCE, "Instead of the run file's."),
    "seed": ("run.seed", SEED, "Makes it a SIMULATION, without ledgers."),
}


def _overridable(command: Any) -> Any:
    """Add the options that replace a value of the run file."""
    for name, (_, kind, text) in reversed(_OVERRIDES.items()):
        variable = f"DYNADP_{name.upper()}"
        command = option(f"--{name}", type=kind, envvar=variable, help=text)(command)
    return command


def _overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return the values that replace those of the run file, by field.

    A seed is announced: in the environment it may stand unnoticed.
    """
    if (seed := given["seed"]) is not None:
        click.echo(
            f"dynadp: SIMULATION, because of seed {seed}: it protects nobody, and no ledger is "
            "opened or charged",
            err=True,
        )
    return {_OVERRIDES[name][0]: value for name, value in given.items()}


@click.command()
@click.argument("run_file", metavar="RUN.toml|NODE.toml", type=FILE)
@_overridable
@option(
    "--max-epsilon",
    "largest",
    is_flag=True,
    help="Also find the largest total epsilon with which all ledgers would admit this run.",
)
@option(
    "--headers",
    is_flag=True,
    help="Of files of rows read the first line alone; the run file declares numbers of rows.",
)
@prints_answer
def check(run_file: str, largest: bool, headers: bool, **given: Any) -> Answer:
    """Check a run file, its schema, all rows and the ledgers, and print what the run would spend;
    train nothing.

    Of a silo's NODE.toml: what would be released to whom, at what cost, and what changed since the
    last run; nobody is connected. Exit code 3 if a ledger would refuse it as it is.
    """
    if runs.is_node_file(run_file):
        if largest or headers or any(value is not None for value in given.values()):
            raise click.UsageError(
                "--epsilon, --delta, --seed, --max-epsilon and --headers go with a run file; a "
                "silo takes its run file as all have agreed on it"
            )
        from dynadp.cli.consent import check_node

        return check_node(run_file)
    return _check(run_file, _overrides(given), largest=largest, headers=headers)


def _check(
    path: str, overrides: dict[str, Any], *, largest: bool = False, headers: bool = False
) -> Answer:
    result = runs.LocalRun.load(path, overrides, headers=headers).check(largest=largest)
    refusing = dict[str, list[str]]()  # nodes, by what would help them
    for node, own in result.nodes.items():
        if own.ledger and not own.ledger["admitted"]:
            refusing.setdefault(own.ledger["advice"], []).append(node)
    problem = "\n".join(
        f"the ledger of {', '.join(nodes)} would refuse this run; {advice}"
        for advice, nodes in refusing.items()
    )
    lines = _check_lines(path, result)
    if not problem:
        return Answer(result.to_json(), lines)
    return Answer(result.to_json(), lines, REFUSED, f"dynadp: {problem}")


def _check_lines(path: str, result: "RunCheck") -> Iterator[str]:
    yield f"{path} is sound: {result.topology}, {result.columns} columns with the intercept."
    most = "up to " if result.plan and result.plan.unit.added else ""
    for node, own in result.nodes.items():
        line = f"  {node}: {most}{own.rows:,} row{'s' if own.rows != 1 else ''}"
        if own.epsilon is not None:
            line += f", epsilon = {privacy.upper_bound(own.epsilon)} in total"
        if own.ledger:
            verdict = "take" if own.ledger["admitted"] else "REFUSE"
            line += f", its ledger would {verdict} it"
        yield line
    for remark in result.notes:
        yield f"  {remark}."
    if result.plan is None:
        yield "Nothing is protected: exact vectors are sent."
        return
    for reason in result.plan.reasons:
        yield f"  - {reason}"
    total = result.plan.total
    yield privacy.guarantee(
        total.epsilon,
        total.delta,
        seeded=result.simulation,
        planned=True,
        honest=total.honest,
        unit=total.unit,
    )
    if result.largest is not None:
        yield _largest_line(result.largest)


def _largest_line(found: "LargestTotal") -> str:
    """The largest total that is admitted, in words."""
    limits = ", ".join(found.limited_by)
    if found.epsilon is None:
        return f"No total fits any more: the ledger of {limits} would refuse this run with any."
    more = f"; more is refused by that of {limits}" if limits else ", and more was not tried"
    line = (
        f"At most, all ledgers would admit this run with epsilon = {found.epsilon:g} (--epsilon "
        f"{found.epsilon:g}){more}."
    )
    if found.takes_whole_cap:
        line += (
            f" That would take the whole cap of {', '.join(found.takes_whole_cap)}: nothing could "
            "follow."
        )
    return line


@click.command()
@RUN_FILE
@_overridable
@option(
    "--out",
    envvar="DYNADP_OUT",
    type=click.Path(file_okay=False),
    help="Run folder; runs/NAME by default.",
)
@option("--dry-run", is_flag=True, help="Check only, as dynadp check does.")
@option("--resume", is_flag=True, help="Go on with the run in the folder.")
@RUNTIME
@ADDRESS
@prints_answer
def train(
    run_file: str,
    out: str | None,
    dry_run: bool,
    resume: bool,
    runtime: str,
    address: str | None,
    **given: Any,
) -> Answer:
    """Train as a run file says; Ctrl-C leaves a run that --resume finishes."""
    from dynadp._intervals import NOISY, ONE
    from dynadp.planning import warnings_about

    address, overrides = address_of(runtime, address), _overrides(given)
    if dry_run:
        return _check(run_file, overrides)
    job = (
        runs.LocalRun.load(run_file, overrides)
        if runtime == "local"
        else runs.ClusterRun.load(run_file, overrides, address=address)
    )
    if job.counts:  # otherwise they are counted on the cluster
        for doubt in warnings_about(job.file.privacy.delta or 0.0, list(job.counts.values())):
            note(f"dynadp: {doubt}")
    folder = Path(out) if out else Path("runs") / job.file.run.name
    try:
        with round_bar(otherwise=_print_round) as show:
            result = job.run(
                folder,
                resume=resume,
                who=user(),
                created=engines.now(),
                on_round=lambda entry: show(entry.number, entry.rounds),
            )
    except KeyboardInterrupt:
        again = ["dynadp", "train", run_file]
        options = {**given, "runtime": None if runtime == "local" else runtime}
        options |= {"address": address if runtime == "ray" else None, "out": out}
        for name, value in options.items():
            again += [] if value is None else [f"--{name}", str(value)]
        command = shlex.join([*again, "--resume"])
        click.echo(f"dynadp: interrupted; finish the run with: {command}", err=True)
        sys.exit(INTERRUPTED)
    found = result.evaluation
    if found and "r2" in found["measures"]:
        accuracy = f"{_target_words(found)}, {result.evaluation_note}; in brackets a {ONE}."
    elif found:
        accuracy = (
            f"Accuracy {found['accuracy']:.1%} ({found['low']:.1%} to {found['high']:.1%}) on "
            f"{'about ' if found.get('noise') else ''}{found['rows']:,} rows (always the most "
            f"common label: {found['majority']:.1%}), "
            f"{result.evaluation_note}; in brackets a {NOISY if found.get('noise') else ONE}."
        )
    else:
        accuracy = f"No accuracy is shown: {result.evaluation_note}."
    further = _further_words(found["measures"], job.file.run.measure) if found else []
    title = f"Trained in {result.rounds} rounds. {result.statement}"
    notes = [f"{words[0].upper()}{words[1:]}." for words in result.notes]
    lines = [title, accuracy, *further, *notes, f"Model: {folder / 'model.json'}"]
    return Answer(result.to_json(), lines)


def _further_words(measures: "Mapping[str, Any]", wanted: str | None) -> list[str]:
    """Measures that do not hide rare labels, in one line: what the run file optimises first."""
    from dynadp._intervals import written

    names = dict.fromkeys(filter(None, [wanted, "auc", "balanced_accuracy"]))
    words = [
        "{} {} ({} to {})".format(runs.NAMES[name], *map(written, measures[name].values()))
        for name in names
        if name in measures and name in runs.NAMES and name != "accuracy"
    ]
    line = "; ".join(words)
    return [f"{line[0].upper()}{line[1:]}."] if words else []


def _target_words(found: "Mapping[str, Any]") -> str:
    """How good numbers are, in one line."""
    from dynadp._intervals import written

    ends = ("value", "low", "high")
    r2, mae, rmse = (
        "{} ({} to {})".format(*(written(found["measures"][name][end]) for end in ends))
        for name in ("r2", "mae", "rmse")
    )
    return (
        f"R2 {r2}, mean absolute error {mae}, root of the mean squared error {rmse} on "
        f"{found['rows']:,} rows (always their mean: {written(found['mean_error'])})"
    )


def _print_round(done: int, rounds: int) -> None:
    if done % 10 == 0 or done == rounds:
        note(f"round {done} of at most {rounds}")


@click.command()
@click.argument("folder", metavar="RUN_FOLDER", type=click.Path(exists=True, file_okay=False))
@option("--out", type=FILE, help="The model's file; RUN_FOLDER/partial-model.json by default.")
@option(
    "--ledger",
    "ledgers",
    multiple=True,
    type=FILE,
    help="A ledger of a run in one process, where it is not found by its name in the record.",
)
@prints_answer
def model(folder: str, out: str | None, ledgers: tuple[str, ...]) -> Answer:
    """Make a model of what a run has released so far, where it was stopped early.

    It is a mean of released messages, and costs nothing more. The run itself stays as it is.
    """
    made = runs.partial_model(folder, ledgers)
    path = Path(out) if out else Path(folder) / "partial-model.json"
    made.save(path)
    part = made.partial or {}
    line = (
        f"A model of {part['rounds']} of {part['planned']} rounds, from messages of "
        f"{', '.join(part['members'])}: {path}. {made.privacy['statement']}"
    )
    return Answer({"file": str(path), **part, "statement": made.privacy["statement"]}, [line])
