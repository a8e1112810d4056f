"""``dynadp export`` and ``coefficients``: a model elsewhere, and what is in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dynadp import runs
from dynadp.cli.options import FILE, option
from dynadp.cli.output import Answer, prints_answer
from dynadp.cli.thresholds import COST, THRESHOLD, wanted_threshold

if TYPE_CHECKING:
    from dynadp.runs import Coefficient, Model

_BASES = {
    "first order": "to first order, with the rows' second moment as released",
    "bound": "an upper bound, as the curvature of the loss is not known",
}
_MODEL = click.argument("model", metavar="MODEL", type=click.Path())


@click.command()
@_MODEL
@click.argument("out", metavar="OUT", type=FILE)
@option(
    "--to",
    type=click.Choice(["json", "onnx", "sklearn", "sql"]),
    required=True,
    help="The format; sklearn is a pickled pipeline.",
)
@THRESHOLD
@COST
@option("--table", default="data", help="For sql: the table whose rows are answered.")
@option("--keep", multiple=True, metavar="COLUMN", help="For sql: columns to give back, a key.")
@prints_answer
def export(
    model: str,
    out: str,
    to: str,
    threshold: Any,
    cost: tuple[float, float] | None,
    table: str,
    keep: tuple[str, ...],
) -> Answer:
    """Write a model as a file that predicts without dynadp.

    docs/export.md has a scorer of ten lines for the JSON, and says which rows have no answer.
    """
    from dynadp import exports

    loaded, wanted = runs.load_model(model), wanted_threshold(threshold, cost)
    exports.export(loaded, to, out, threshold=wanted, table=table, keep=keep)
    return Answer({"version": 1, "to": to, "file": str(out)}, [f"Wrote {out}."])


@click.command()
@_MODEL
@option("--all", "everything", is_flag=True, help="Those that noise alone may have made too.")
@prints_answer
def coefficients(model: str, everything: bool) -> Answer:
    """Show what a model's score gains with one unit of each feature, and what noise alone may have
    made of it.

    The largest multiples of their standard error come first. Standard errors are those of the
    noise for privacy; the sampling of rows comes on top of them.
    """
    loaded = runs.load_model(model)
    found = loaded.coefficients()
    result = {
        "version": 1,
        "basis": loaded.noise.basis if loaded.noise else None,
        "holds_for": runs.holds_for(loaded.schema),
        "coefficients": [one.to_json() for one in found],
    }
    return Answer(result, _shown(loaded, found, everything))


def _shown(model: "Model", found: "tuple[Coefficient, ...]", everything: bool) -> "Iterator[Any]":
    from rich.table import Table

    from dynadp._intervals import significant

    ranked = sorted(found, key=lambda one: -abs(one.value if one.z is None else one.z))
    clear = [one for one in ranked if everything or one.z is None or abs(one.z) >= runs.Z]
    several = len(model.coef) > 1
    table = Table(title="Coefficients")
    for name in (*(["class"] if several else []), "feature"):
        table.add_column(name, overflow="fold")
    for name in ("coefficient", "± 95%", "z", "reference"):
        table.add_column(name, justify="right")
    table.add_column("unit", overflow="fold")
    for one in clear:
        wide = "" if one.se is None else significant(runs.Z * one.se, 3)
        z = "" if one.z is None else f"{one.z:.1f}"
        reference = "" if one.reference is None else significant(one.reference, 4)
        shown = (one.feature, significant(one.value, 4), wide, z, reference, one.unit)
        table.add_row(*([str(one.class_)] if several else []), *shown)
    yield table
    left = len(ranked) - len(clear)
    if left:
        yield f"{left} more are within what noise alone may give (--all shows them)."
    yield runs.holds_for(model.schema)
    if model.noise is None:
        yield (
            "No standard errors: the model has no noise, is of an earlier version, or is of a run "
            "or a mechanism for which they are not known (docs/coefficients.md)."
        )
        return
    yield (
        f"± and z hold the privacy noise alone ({_BASES[model.noise.basis]}); another sample of "
        "rows would move coefficients too."
    )
