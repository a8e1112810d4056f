"""``dynadp predict``, ``evaluate`` and ``count``: models and rows."""

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynadp import privacy, runs
from dynadp.cli.measured import class_lines, curve_lines, measure_lines, table_lines
from dynadp.cli.options import ANCHOR, COUNT, FILE, Positive, option, user
from dynadp.cli.output import Answer, prints_answer
from dynadp.cli.thresholds import COST, THRESHOLD, wanted_threshold
from dynadp.errors import DataError, DeclarationError

if TYPE_CHECKING:
    from dynadp.data import Source
    from dynadp.privacy import Ledger
    from dynadp.runs import Model

_MODEL = click.argument("model", metavar="MODEL", type=click.Path())
_ROWS = click.argument("data", metavar="FILE", type=FILE)
_SEPARATOR = option(
    "--separator",
    type=click.Choice([",", ";", "\t"]),
    help="Of a CSV file; by default as its header has it.",
)


@contextmanager
def _reading() -> Iterator[None]:
    """Name the option, and not the run file's field, in advice about the separator."""
    try:
        yield
    except DataError as error:
        before, advice, mark = str(error).partition("set separator = ")
        if not advice:
            raise
        tab = "$" if mark == r'"\t"' else ""
        quoted = tab + mark.replace('"', "'")
        raise DataError(f"{before}give --separator {quoted}") from error


@click.command()
@_MODEL
@_ROWS
@_SEPARATOR
@THRESHOLD
@COST
@option("--probability", is_flag=True, help="Refuse a model that gives no probabilities.")
@_reading()
def predict(
    model: str,
    data: str,
    separator: Any,
    threshold: Any,
    cost: tuple[float, float] | None,
    probability: bool,
) -> None:
    """Label every row of a file with a model; CSV on stdout.

    Where the model knows how scores become probabilities (calibration = true in the run file,
    evaluate --calibrate, or a logistic loss without margin), there is a third column: the
    probability of the positive label. Of a target the number is printed alone, within its public
    bounds.
    """
    from dynadp.data import source

    loaded = runs.load_model(model)
    if probability and loaded.target is not None:
        raise DeclarationError(
            "--probability is for labels, and this model answers a number; leave it out"
        )
    if probability and not loaded.gives_probabilities:
        if words := runs.without_probabilities(loaded):
            raise DeclarationError(
                f"{words}: run with a larger epsilon, or find them on public rows (dynadp evaluate "
                "--public --calibrate)"
            )
        raise DeclarationError(
            "this model gives no probabilities: its loss has a margin, so that scores are no "
            "log-odds. Run with calibration = true in [privacy], or calibrate the model (dynadp "
            "evaluate --calibrate)"
        )
    wanted = wanted_threshold(threshold, cost)
    found = runs.predictions(loaded, source(Path(data), separator=separator), wanted)
    writer, shown = csv.writer(sys.stdout, lineterminator="\n"), loaded.gives_probabilities
    if loaded.target is not None:
        for i, (numbers, _, _) in enumerate(found):
            if i == 0:
                writer.writerow(["prediction"])
            writer.writerows(["" if one is None else f"{one:.6g}"] for one in numbers)
        return
    for i, (labels, scores, probabilities) in enumerate(found):
        if i == 0:  # not before the first rows were read: a failure leaves nothing on stdout
            writer.writerow(["prediction", "score", *(["probability"] if shown else [])])
        for label, score, p in zip(labels, scores, probabilities, strict=True):
            cells = [label, f"{score:.6g}", *([f"{p:.6g}"] if shown else [])]
            writer.writerow([""] * len(cells) if label is None else cells)


@click.command()
@_MODEL
@_ROWS
@_SEPARATOR
@option("--public", is_flag=True, help="These rows are published or synthetic.")
@option("--ledger", type=FILE, help="They are not: charge this ledger, and add noise.")
@ANCHOR
@option("--alpha", type=Positive(), help="How much that one release may lose: accuracy alone.")
@option(
    "--mu",
    type=Positive(),
    help="Instead of alpha: release a histogram of scores with Gaussian noise, for all measures.",
)
@THRESHOLD
@COST
@option("--calibrate", is_flag=True, help="Keep in the model how scores become probabilities.")
@option(
    "--rows",
    type=COUNT,
    metavar="N",
    help="A public number of private rows; needed where the schema drops rows.",
)
@prints_answer
@_reading()
def evaluate(
    model: str,
    data: str,
    separator: Any,
    public: bool,
    ledger: str | None,
    anchor: str | None,
    alpha: float | None,
    mu: float | None,
    threshold: Any,
    cost: tuple[float, float] | None,
    calibrate: bool,
    rows: int | None,
) -> Answer:
    """Print how good a model is on public rows; on private rows only with noise, charged to a
    ledger.
    """
    from dynadp._intervals import ONE
    from dynadp.data import source

    if public and (alpha, mu, rows) != (None, None, None):
        raise DeclarationError(
            "--alpha, --mu and --rows are for private rows and their --ledger; --public rows are "
            "counted, and evaluated without noise"
        )
    if public == (ledger is not None):
        raise DeclarationError(
            "accuracy on private rows would itself be a release: say --public if these rows are "
            "published or synthetic, or --ledger FILE --alpha A (or --mu M, for all measures) to "
            "release it once, with noise, charged to the node's ledger"
        )
    opened = None if ledger is None else partial(privacy.Ledger.open, ledger, anchor=anchor)
    loaded, given = runs.load_model(model), source(Path(data), separator=separator)
    if loaded.target is not None:
        if calibrate or threshold is not None or cost is not None:
            raise DeclarationError(
                "--calibrate, --threshold and --cost are for labels, and this model answers a "
                "number; leave them out"
            )
        if alpha is not None or rows is not None or (ledger is not None and mu is None):
            raise DeclarationError(
                "this model answers a number: on private rows give --ledger FILE --mu M alone, "
                "which releases sums of its errors; R2, MAE and RMSE follow from them"
            )
        return _numbers(loaded, given, opened, mu or 0.0, data)
    wanted = wanted_threshold(threshold, cost)
    if opened is None:
        if calibrate:
            loaded = runs.calibrated_on(loaded, given, data)
            loaded.save(_model_file(model))
        at = runs.threshold_for(loaded, wanted)
        found = runs.evaluate(loaded, given, at)
        accuracy = found.found["accuracy"]
        line = (
            f"Accuracy {accuracy.value:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%}) on "
            f"{found.rows:,} public rows (most common label: {found.majority:.1%}); in "
            f"brackets a {ONE}."
        )
        others = {name: one for name, one in found.found.items() if name != "accuracy"}
        answer = {"version": 1, "public": True, "threshold": at, **found.to_json()}
        lines = [*measure_lines(others), *table_lines(loaded, found.confusion)]
        several = isinstance(found, runs.ClassMeasures)
        lines += class_lines(found.by_class) if isinstance(found, runs.ClassMeasures) else []
        lines += curve_lines(found.calibration, several)
        return Answer(answer, [line, *lines, *_kept(loaded, calibrate)])
    if mu is not None and alpha is None and rows is None:
        return _histogram(model, loaded, given, opened, mu, wanted, calibrate, data)
    if alpha is None or mu is not None:
        raise DeclarationError(
            "--ledger needs --alpha (and --rows where they are needed), or --mu for all measures: "
            "how much this one release may lose"
        )
    if calibrate or wanted is not None:
        raise DeclarationError(
            "--calibrate, --threshold and --cost need all scores: give --mu instead of --alpha"
        )
    with opened() as book:
        released = runs.evaluate_privately(
            loaded, given, book, alpha=alpha, rows=rows, dataset=data, who=user()
        )
    result = {
        "version": 1,
        "public": False,
        "alpha": alpha,
        "rows": released.rows,
        "accuracy": released.accuracy,
        "noise": released.noise,
    }
    about = "about " if loaded.columns.hides_counts else ""
    line = (
        f"Accuracy about {released.accuracy:.1%} of {about}{released.rows:,} rows (noise: at most "
        f"{released.margin:.1%} in 95 of 100 draws), charged {_charged(loaded, 'alpha', alpha)}."
    )
    return Answer(result, [line])


def _histogram(
    path: str,
    model: "Model",
    given: "Source",
    opened: "Callable[[], Ledger]",
    mu: float,
    wanted: "runs.Threshold | None",
    calibrate: bool,
    data: str,
) -> Answer:
    """Release a histogram of scores; print the measures that follow from it."""
    if not calibrate:
        runs.threshold_for(model, wanted)  # refused before anything is charged
    with opened() as book:
        released = runs.measure_privately(model, given, book, mu=mu, dataset=data, who=user())
    if calibrate and not released.faint:
        model = runs.calibrated_by(model, released)
        model.save(_model_file(path))
    drowned = calibrate and released.faint
    wanted = None if drowned else wanted
    threshold = runs.threshold_for(model, wanted)
    measured = runs.private_measures(model, released, wanted)
    found = measured.found
    line = (
        "Measures of scores that were released with noise, with 95% intervals for noise and "
        f"sampling; charged {_charged(model, 'mu', mu)}."
    )
    result = {
        "version": 1,
        "public": False,
        "mu": mu,
        "threshold": threshold,
        "noise": released.noise,
        "edges": released.edges.tolist(),
        "counts": released.counts.tolist(),
        "confusion": dict(measured.confusion),
        "measures": {name: one.to_json() for name, one in found.items()},
        "calibration": [one.to_json() for one in measured.calibration],
    }
    if not found:
        lines = ["The noise is too large for these rows: no measure can be told from it."]
    else:
        several = len(model.classes) > 2
        table = released.counts if several else measured.confusion
        lines = [*measure_lines(found), *table_lines(model, table)]
        lines += curve_lines(measured.calibration)
    if drowned:
        lines.append("Noise drowns the rows of a label: no probabilities were found.")
    return Answer(result, [line, *lines, *_kept(model, calibrate and not drowned)])


def _numbers(
    model: "Model", given: "Source", opened: "Callable[[], Ledger] | None", mu: float, data: str
) -> Answer:
    """Print how good a model that answers a number is: on public rows, or with noise."""
    from dynadp._intervals import ONE, written

    if opened is None:
        found = runs.evaluate_target(model, given)
        line = (
            f"Measures on {found.rows:,} public rows (always their mean would have an error of "
            f"{written(found.mean_error)}); in brackets a {ONE}."
        )
        answer = {"version": 1, "public": True, **found.to_json()}
        return Answer(answer, [line, *measure_lines(found.found)])
    with opened() as book:
        released = runs.measure_errors_privately(
            model, given, book, mu=mu, dataset=data, who=user()
        )
    assert model.target is not None
    noisy = runs.noisy_target_measures(released, model.target)
    line = (
        "Measures from sums of errors that were released with noise, with 95% intervals for noise "
        f"and sampling; charged {_charged(model, 'mu', mu)}."
    )
    result = {
        "version": 1,
        "public": False,
        "mu": mu,
        "noise": released.noise.tolist(),
        "sums": released.sums.tolist(),
        "measures": {name: one.to_json() for name, one in noisy.items()},
    }
    lines = measure_lines(noisy)
    if not noisy:
        lines = ["The noise is too large for these rows: no measure can be told from it."]
    return Answer(result, [line, *lines])


def _charged(model: "Model", name: str, each: float) -> str:
    """What a release costs: of one row, and of a person with several."""
    rows = model.columns.rows_per_person
    words = f"{name} = {each:g}"
    return words if rows == 1 else f"{words} for each of up to {rows} rows of a person"


def _kept(model: "Model", calibrate: bool) -> list[str]:
    if not calibrate or model.calibration is None:
        return []
    return [f"The model gives probabilities now, found on {model.calibration.source}."]


def _model_file(path: str) -> Path:
    return Path(path) / "model.json" if Path(path).is_dir() else Path(path)


@click.command()
@_ROWS
@option("--schema", type=FILE, required=True, help="The schema that says which rows stay.")
@option("--ledger", type=FILE, required=True, help="The node's ledger, which is charged.")
@ANCHOR
@option("--alpha", type=Positive(), required=True, help="How much this one release may lose.")
@option("--person", metavar="COLUMN", help="Whose row it is, if not as the schema says.")
@option("--rows-per-person", type=COUNT, help="Rows of a person that count, at most.")
@_SEPARATOR
@prints_answer
@_reading()
def count(
    data: str,
    schema: str,
    ledger: str,
    anchor: str | None,
    alpha: float,
    person: str | None,
    rows_per_person: int | None,
    separator: Any,
) -> Answer:
    """Print how many rows of a private file stay, with noise, charged to a ledger.

    Of use before a run that keeps the number of rows secret (adjacency = "add-remove"): each node
    declares a number that is at least as large.
    """
    from dynadp.data import source

    declared, given = runs.load_schema(schema), source(Path(data), separator=separator)
    named = {"person": person, "rows_per_person": rows_per_person}
    more = {name: value for name, value in named.items() if value is not None}
    declared = type(declared).model_validate(declared.model_dump() | more)
    with privacy.Ledger.open(ledger, anchor=anchor) as book:
        released = runs.count_privately(
            declared, given, book, alpha=alpha, dataset=data, who=user()
        )
    line = (
        f"About {released.rows:,} rows (noise: at most {released.margin:,.0f} in 95 of 100 draws), "
        f"charged alpha = {alpha:g}."
    )
    result = {"version": 1, "alpha": alpha, "rows": released.rows, "noise": released.noise}
    return Answer(result, [line])
