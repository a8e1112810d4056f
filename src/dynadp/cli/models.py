"""``dynadp export``: a model for use without dynadp."""

import click

from dynadp import runs
from dynadp.cli.options import FILE, option
from dynadp.cli.output import Answer, prints_answer

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
@option("--threshold", type=float, default=0.0, help="Scores above it get the positive label.")
@option("--table", default="data", help="For sql: the table whose rows are answered.")
@option("--keep", multiple=True, metavar="COLUMN", help="For sql: columns to give back, a key.")
@prints_answer
def export(
    model: str, out: str, to: str, threshold: float, table: str, keep: tuple[str, ...]
) -> Answer:
    """Write a model as a file that predicts without dynadp.

    docs/export.md has a scorer of ten lines for the JSON, and says which rows have no answer.
    """
    from dynadp import exports

    loaded = runs.load_model(model)
    exports.export(loaded, to, out, threshold=threshold, table=table, keep=keep)
    return Answer({"version": 1, "to": to, "file": str(out)}, [f"Wrote {out}."])
