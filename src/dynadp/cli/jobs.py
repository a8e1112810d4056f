"""``dynadp check``, ``train``, ``predict`` and ``evaluate``: run files and models at work."""

import csv
import json
import shlex
import sys
from math import log
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from dynadp._intervals import ONE
from dynadp.cli.codes import INTERRUPTED
from dynadp.cli.ledger import user
from dynadp.consensus.progress import RoundProgress
from dynadp.engines import now
from dynadp.errors import BudgetRefused, DeclarationError
from dynadp.planning import warnings_about
from dynadp.privacy import Ledger, guarantee, upper_bound
from dynadp.runs import LocalRun, evaluate, evaluate_privately, load_model, predictions


def run_check(path: str, overrides: dict[str, Any], as_json: bool) -> None:
    """Print what a run would do and spend; train nothing. What a ledger would refuse is refused
    here.
    """
    _warn_seeded(overrides)
    result = LocalRun.load(path, overrides).check()
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        _say(path, result)
    ways = dict[str, list[str]]()  # what would help, and which nodes
    for node, own in result["nodes"].items():
        if "ledger" in own and not own["ledger"]["admitted"]:
            ways.setdefault(own["ledger"]["advice"], []).append(node)
    if ways:
        told = [
            f"the ledger of {', '.join(nodes)} would refuse this run; {advice}"
            for advice, nodes in ways.items()
        ]
        raise BudgetRefused("\n".join(told))


def _warn_seeded(overrides: dict[str, Any]) -> None:
    """Say what a seed on the command line or in the environment does: it may stand there unnoticed."""
    if (seed := overrides["run.seed"]) is not None:
        told = "it protects nobody, and no ledger is opened or charged"
        click.echo(f"dynadp: SIMULATION, because of seed {seed}: {told}", err=True)


def _say(path: str, result: dict[str, Any]) -> None:
    click.echo(
        f"{path} is sound: {result['topology']}, {result['columns']} columns with the intercept."
    )
    for node, facts in result["nodes"].items():
        line = f"  {node}: {facts['rows']:,} rows"
        if "epsilon" in facts:
            line += f", epsilon = {upper_bound(facts['epsilon'])} in total"
        if "ledger" in facts:
            line += (
                ", its ledger would take it"
                if facts["ledger"]["admitted"]
                else ", its ledger would REFUSE it"
            )
        click.echo(line)
    if result["plan"] is None:
        click.echo("Nothing is protected: exact vectors are sent.")
        return
    for reason in result["plan"]["reasons"]:
        click.echo(f"  - {reason}")
    total = result["plan"]["total"]
    click.echo(
        guarantee(total["epsilon"], total["delta"], seeded=result["simulation"], planned=True)
    )


def run_train(
    path: str,
    overrides: dict[str, Any],
    out: str | None,
    dry_run: bool,
    resume: bool,
    as_json: bool,
    runtime: str = "local",
    address: str | None = None,
) -> None:
    """Train, with progress on stderr; print what came out."""
    if dry_run:
        run_check(path, overrides, as_json)
        return
    _warn_seeded(overrides)
    job = _job(path, overrides, runtime, address)
    if job.counts:  # else they are counted on the cluster
        for doubt in warnings_about(job.file.privacy.delta or 0.0, list(job.counts.values())):
            click.echo(f"dynadp: {doubt}", err=True)
    folder = Path(out) if out else Path("runs") / job.file.run.name
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("rounds", total=None)

            def on_round(entry: RoundProgress) -> None:
                rounds = entry.rounds
                progress.update(task, completed=entry.number, total=rounds)
                if not console.is_terminal and (entry.number % 10 == 0 or entry.number == rounds):
                    click.echo(f"round {entry.number} of at most {rounds}", err=True)

            result = job.run(folder, resume=resume, who=user(), created=now(), on_round=on_round)
    except KeyboardInterrupt:
        given = [
            f
            for key, value in overrides.items()
            if value is not None
            for f in (f"--{key.split('.')[1]}", f"{value!r}")
        ]
        if runtime != "local":
            given += [
                "--runtime",
                runtime,
                *([] if address is None else ["--address", address]),
            ]
        command = [
            "dynadp",
            "train",
            path,
            *given,
            *(["--out", out] if out else []),
            "--resume",
        ]
        click.echo(f"dynadp: interrupted; finish the run with: {shlex.join(command)}", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(f"Trained in {result['rounds']} rounds. {result['statement']}")
    if result["evaluation"]:
        found = result["evaluation"]
        click.echo(
            f"Accuracy {found['accuracy']:.1%} ({found['low']:.1%} to {found['high']:.1%}) on "
            f"{found['rows']:,} rows (always "
            f"the commoner label: {found['majority']:.1%}), {result['evaluation_note']}; in "
            f"brackets a {ONE}."
        )
    else:
        click.echo(f"No accuracy is shown: {result['evaluation_note']}.")
    click.echo(f"Model: {folder / 'model.json'}")


def _job(path: str, overrides: dict[str, Any], runtime: str, address: str | None) -> LocalRun:
    """The run file, to be carried out here or on a Ray cluster."""
    if runtime == "local":
        return LocalRun.load(path, overrides)
    from dynadp.runs import ClusterRun

    return ClusterRun.at(path, overrides, address)


def run_predict(model_path: str, data: str, separator: Any) -> None:
    """Write a label and a score for every row to stdout, as CSV."""
    from dynadp.data import source

    found = predictions(load_model(model_path), source(Path(data), separator=separator))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for i, (labels, scores) in enumerate(found):
        if i == 0:  # not before the first rows were read: a failure leaves nothing on stdout
            writer.writerow(["prediction", "score"])
        writer.writerows(
            ["" if label is None else label, "" if label is None else f"{score:.6g}"]
            for label, score in zip(labels, scores, strict=True)
        )


def run_evaluate(
    model_path: str,
    data: str,
    separator: Any,
    public: bool,
    ledger: str | None,
    alpha: float | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Print accuracy on rows that are public, or a noisy one that a ledger is charged for."""
    from dynadp.data import source

    if public and (alpha is not None or rows is not None):
        raise DeclarationError(
            "--alpha and --rows are for private rows and their --ledger; --public rows are "
            "counted, and evaluated without noise"
        )
    if public == (ledger is not None):
        raise DeclarationError(
            "accuracy on private rows is private: say --public if these rows are published or "
            "synthetic, or --ledger FILE "
            "--alpha A to release it once, with noise, charged to the node's ledger"
        )
    model = load_model(model_path)
    if ledger is None:
        result: dict[str, Any] = {
            "version": 1,
            "public": True,
            **evaluate(model, source(Path(data), separator=separator)),
        }
    else:
        if alpha is None:
            raise DeclarationError("--ledger needs --alpha: how much this one release may lose")
        rows_of = source(Path(data), separator=separator)
        with Ledger.open(ledger) as book:
            released = evaluate_privately(
                model, rows_of, book, alpha=alpha, rows=rows, dataset=data, who=user()
            )
        result = {"version": 1, "public": False, "alpha": alpha, "rows": released.rows}
        result |= {"accuracy": released.accuracy, "noise": released.noise}
    if as_json:
        click.echo(json.dumps(result, indent=1))
    elif result["public"]:
        click.echo(
            f"Accuracy {result['accuracy']:.2%} ({result['low']:.2%} to {result['high']:.2%}) on "
            f"{result['rows']:,} public "
            f"rows (commoner label: {result['majority']:.2%}); in brackets a {ONE}."
        )
    else:
        most = log(20) * result["noise"]
        click.echo(
            f"Accuracy about {result['accuracy']:.2%} of {result['rows']:,} rows (noise: at most "
            f"{most:.2%} in 95 of 100 draws)"
            f", charged alpha = {alpha:g}."
        )
