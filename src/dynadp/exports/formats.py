"""One model in any of the formats, as a file."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from dynadp._files import write_bytes
from dynadp.errors import DeclarationError
from dynadp.exports.plain_model import PlainModel
from dynadp.exports.scorer import text_of
from dynadp.exports.select import to_sql
from dynadp.runs import Model, Threshold

Format = Literal["json", "onnx", "sklearn", "sql"]
FORMATS: tuple[str, ...] = get_args(Format)


def export(
    model: Model,
    to: str,
    path: str | Path,
    *,
    threshold: Threshold | None = None,
    table: str = "data",
    keep: Sequence[str] = (),
) -> None:
    """Write a model for use without dynadp.

    Parameters
    ----------
    model
        Of a run, or of an estimator.
    to
        ``json``, ``onnx``, ``sklearn`` (a pickled pipeline) or ``sql``.
    path
        The file.
    threshold
        Of two classes, scores above it are answered with the second: a score, ``balanced`` or
        :class:`~dynadp.runs.thresholds.Costs`; by default the model's own.
    table, keep
        For ``sql``: whose rows, and which of its columns come back before the answers.
    """
    plain = PlainModel.of(model, threshold)
    if to == "json":
        content: str | bytes = text_of(plain)
    elif to == "sql":
        content = to_sql(plain, table, keep)
    elif to == "sklearn":
        from dynadp.exports.pipeline import to_pipeline

        content = pickle.dumps(to_pipeline(plain))
    elif to == "onnx":
        from dynadp.exports.network import to_onnx

        content = to_onnx(plain).SerializeToString()
    else:
        raise DeclarationError(f"to is {to!r}; expected one of {', '.join(FORMATS)}")
    write_bytes(Path(path), content.encode() if isinstance(content, str) else content)
