"""A model as one SQL query, the same for DuckDB and SQLite."""

from collections.abc import Iterator, Sequence

from dynadp._arrays import Array
from dynadp.exports.plain_model import PlainModel
from dynadp.exports.select_columns import Columns
from dynadp.exports.sql import literal, named, valued


def to_sql(model: PlainModel, table: str = "data", keep: Sequence[str] = ()) -> str:
    """Return a SELECT of the label, the score and the probability of the second class of every row
    of a table; of more than two classes, of the label, all scores and all probabilities.

    A row that has no answer has NULL there. Without probabilities there is no such column.

    Parameters
    ----------
    model
        What answers.
    table
        Whose rows. It has the model's columns.
    keep
        Columns that are given back before the answers, such as a key.
    """
    columns = Columns(model.missing_values)
    features = [feature for column in model.columns for feature in columns.features(column)]
    x = [f"dynadp_x{i}" for i in range(len(features))]
    centred = [
        f"{text} - {literal(c)} AS {name}" if c else f"{text} AS {name}"
        for text, c, name in zip(features, model.centre.tolist(), x, strict=True)
    ]
    bad = f"CASE WHEN {' OR '.join(columns.refused)} THEN 1 ELSE 0 END AS dynadp_bad"
    scores = [f"dynadp_s{k}" for k in range(len(model.coef))]
    weighed = [
        f"CASE WHEN dynadp_bad = 0 THEN ({_dot(vector, x, model.constant * b)}) / dynadp_over END "
        f"AS {score}"
        for vector, b, score in zip(model.coef, model.intercept.tolist(), scores, strict=True)
    ]
    steps = [
        *columns.steps(named(table)),
        ("dynadp_features", columns.last, [*centred, bad]),
        ("dynadp_lengths", "dynadp_features", [f"{_over(model, x)} AS dynadp_over"]),
        ("dynadp_scores", "dynadp_lengths", weighed),
    ]
    # materialized, as a cell that is written out where it is used doubles the query at every step
    made = ",\n".join(
        f"{name} AS MATERIALIZED (\n  SELECT source.*,\n    "
        + ",\n    ".join(parts)
        + f"\n  FROM {of} source\n)"
        for name, of, parts in steps
    )
    shown = [*map(named, keep), *_answers(model, scores)]
    end = ",\n  ".join(shown)
    return f"WITH {made}\nSELECT\n  {end}\nFROM dynadp_scores;\n"


def _over(model: PlainModel, x: Sequence[str]) -> str:
    """What scores are divided by."""
    norm = literal(model.norm)
    if model.scaling == "none":
        return norm
    counted = [one for one, counts in zip(x, model.counts.tolist(), strict=True) if counts]
    squares = [*(f"{one} * {one}" for one in counted), literal(model.constant**2)]
    length = f"sqrt({' + '.join(squares)})"
    least = norm if model.scaling == "clip" else "0"
    return f"CASE WHEN {length} > {least} THEN {length} ELSE {norm} END"


def _dot(vector: Array, x: Sequence[str], more: float) -> str:
    parts = [f"{literal(f)} * {one}" for f, one in zip(vector.tolist(), x, strict=True) if f]
    return " + ".join([*parts, literal(more)])


def _answers(model: PlainModel, scores: Sequence[str]) -> Iterator[str]:
    if model.target is not None:
        low, high = model.target
        number = f"({literal(low / 2 + high / 2)} + {literal(high / 2 - low / 2)} * {scores[0]})"
        ends = literal(low), literal(high)
        yield (
            f"CASE WHEN {number} < {ends[0]} THEN {ends[0]} WHEN {number} > {ends[1]} THEN "
            f"{ends[1]} ELSE {number} END AS prediction"
        )
        return
    labels = [valued(value) for value in model.classes]
    if len(scores) > 1:
        rules = []
        for k, score in enumerate(scores):
            largest = " AND ".join(f"{score} >= {other}" for other in scores if other != score)
            rules.append(f"WHEN {largest} THEN {labels[k]}")
        yield f"CASE {' '.join(rules)} END AS label"
        yield from (
            f"{score} AS {named(f'score_{value}')}"
            for score, value in zip(scores, model.classes, strict=True)
        )
        if model.probability is not None:
            slope = literal(model.probability[0])
            for score, value in zip(scores, model.classes, strict=True):
                odds = " + ".join(_exp(f"{slope} * ({other} - {score})") for other in scores)
                yield f"1 / ({odds}) AS {named(f'probability_{value}')}"
        return
    above = f"{scores[0]} > {literal(model.threshold)}"
    yield (
        f"CASE WHEN {above} THEN {labels[1]} WHEN {scores[0]} IS NOT NULL THEN {labels[0]} END "
        "AS label"
    )
    yield f"{scores[0]} AS score"
    if model.probability is not None:
        a, b = map(literal, model.probability)
        z = f"({a} * {scores[0]} + {b})"
        yield f"CASE WHEN {z} < -700 THEN 0.0 ELSE 1 / (1 + exp(-{z})) END AS probability"


def _exp(z: str) -> str:
    """e^z, at most e^700: float64 ends soon after."""
    return f"CASE WHEN {z} > 700 THEN 1e304 ELSE exp({z}) END"
