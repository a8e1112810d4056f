"""A model as one SQL query, the same for DuckDB and SQLite."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dynadp._arrays import Array
from dynadp.data import Curves, PlainCategory, PlainNumber, Value
from dynadp.exports.plain_model import PlainModel, ReadyNumber

_FAR = "1.7976931348623157e308"
_BLANKS = "' \t\n\r\v\f'"


def to_sql(model: PlainModel, table: str = "data", keep: Sequence[str] = ()) -> str:
    """Return a SELECT of the label, the score and the probability of the second class of every row
    of a table; of more than two classes, of the label and all scores.

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
    cells, features, refused = list[str](), list[str](), list[str]()
    for i, column in enumerate(model.columns):
        cell = f"dynadp_c{i}"
        if isinstance(column, PlainCategory):
            cells.append(f"{_place(column, model.missing_values)} AS {cell}")
            weight = _number(column.weight)
            features += [
                f"CASE WHEN {cell} = {k} THEN {weight} ELSE 0 END" for k in range(column.width)
            ]
            refused.append(f"{cell} IS NULL")
        else:
            cells.append(f"{_read(column, model.missing_values)} AS {cell}")
            features += list(_curves(column, cell)) if isinstance(column, PlainNumber) else [cell]
            refused.append(f"{cell} IS NULL OR NOT ({cell} BETWEEN -{_FAR} AND {_FAR})")
    x = [f"dynadp_x{i}" for i in range(len(features))]
    centred = [
        f"{text} - {_number(c)} AS {name}" if c else f"{text} AS {name}"
        for text, c, name in zip(features, model.centre.tolist(), x, strict=True)
    ]
    bad = f"CASE WHEN {' OR '.join(refused)} THEN 1 ELSE 0 END AS dynadp_bad"
    scores = [f"dynadp_s{k}" for k in range(len(model.coef))]
    weighed = [
        f"CASE WHEN dynadp_bad = 0 THEN ({_dot(vector, x, model.constant * b)}) / dynadp_over END "
        f"AS {score}"
        for vector, b, score in zip(model.coef, model.intercept.tolist(), scores, strict=True)
    ]
    steps = [
        ("dynadp_cells", _name(table), cells),
        ("dynadp_features", "dynadp_cells", [*centred, bad]),
        ("dynadp_lengths", "dynadp_features", [f"{_over(model, x)} AS dynadp_over"]),
        ("dynadp_scores", "dynadp_lengths", weighed),
    ]
    made = ",\n".join(
        f"{name} AS (\n  SELECT source.*,\n    "
        + ",\n    ".join(parts)
        + f"\n  FROM {of} source\n)"
        for name, of, parts in steps
    )
    shown = [*map(_name, keep), *_answers(model, scores)]
    end = ",\n  ".join(shown)
    return f"WITH {made}\nSELECT\n  {end}\nFROM dynadp_scores;\n"


def _read(column: PlainNumber | ReadyNumber, missing_values: Sequence[str]) -> str:
    """The number in a cell, what stands for it where it is missing, or NULL."""
    cell = _name(column.name)
    text = _text(cell)
    gone = [f"{cell} IS NULL", f"lower({text}) = 'nan'"]
    if missing_values:
        gone.append(f"{text} IN ({', '.join(map(_quoted, missing_values))})")
    missing = column.missing if isinstance(column, PlainNumber) else None
    instead = "NULL" if missing is None else _number(missing)
    number = f"CAST({cell} AS DOUBLE PRECISION)"
    return f"CASE WHEN {' OR '.join(gone)} THEN {instead} ELSE {number} END"


def _place(column: PlainCategory, missing_values: Sequence[str]) -> str:
    """The place of a cell among the values, or NULL where it may not be there."""
    cell = _name(column.name)
    text = _text(cell)
    gone = f"{cell} IS NULL OR (typeof({cell}) IN ('DOUBLE', 'FLOAT') AND {text} = 'nan')"
    if missing_values:
        gone += f" OR {text} IN ({', '.join(map(_quoted, missing_values))})"
    whens = [
        f"WHEN {text} IN ({', '.join(map(_quoted, cells))}) THEN {k}"
        for k, cells in enumerate(column.cells)
    ]
    missing, other = ("NULL" if p is None else str(p) for p in (column.missing, column.other))
    return f"CASE WHEN {gone} THEN {missing}\n      {' '.join(whens)} ELSE {other} END"


def _curves(column: PlainNumber, cell: str) -> Iterator[str]:
    """The features of a number."""
    low, high = _number(column.low), _number(column.high)
    t = f"CASE WHEN {cell} < {low} THEN {low} WHEN {cell} > {high} THEN {high} ELSE {cell} END"
    t = f"({t})" if column.transform == "none" else f"ln(1 + (({t}) - {low}))"
    for curves in column.curves:
        for y in curves.gives:
            curve = f"({_curve(curves, y, t)})"
            if curves.power == 2:
                curve = f"{curve} * {curve}"
            yield curve if column.weight == 1 else f"{_number(column.weight)} * {curve}"


def _curve(curves: Curves, y: Sequence[float], t: str) -> str:
    """Linear between knots, constant beyond them."""
    knots = list(zip(curves.knots, y, strict=True))
    if len(knots) == 2:  # t is clipped to them
        return _line(knots[0], knots[1], t)
    whens = [f"WHEN {t} <= {_number(knots[0][0])} THEN {_number(knots[0][1])}"]
    for left, right in pairwise(knots):
        whens.append(f"WHEN {t} <= {_number(right[0])} THEN {_line(left, right, t)}")
    return f"CASE {' '.join(whens)} ELSE {_number(knots[-1][1])} END"


def _line(left: tuple[float, float], right: tuple[float, float], t: str) -> str:
    (k, y), (later, end) = left, right
    if y == end:
        return _number(y)
    return f"{_number(y)} + {_number(end - y)} * (({t} - {_number(k)}) / {_number(later - k)})"


def _over(model: PlainModel, x: Sequence[str]) -> str:
    """What scores are divided by."""
    norm = _number(model.norm)
    if model.scaling == "none":
        return norm
    squares = [*(f"{one} * {one}" for one in x), _number(model.constant**2)]
    length = f"sqrt({' + '.join(squares)})"
    least = norm if model.scaling == "clip" else "0"
    return f"CASE WHEN {length} > {least} THEN {length} ELSE {norm} END"


def _dot(vector: Array, x: Sequence[str], more: float) -> str:
    parts = [f"{_number(f)} * {one}" for f, one in zip(vector.tolist(), x, strict=True) if f]
    return " + ".join([*parts, _number(more)])


def _answers(model: PlainModel, scores: Sequence[str]) -> Iterator[str]:
    if model.target is not None:
        low, high = model.target
        number = f"({_number(low / 2 + high / 2)} + {_number(high / 2 - low / 2)} * {scores[0]})"
        ends = _number(low), _number(high)
        yield (
            f"CASE WHEN {number} < {ends[0]} THEN {ends[0]} WHEN {number} > {ends[1]} THEN "
            f"{ends[1]} ELSE {number} END AS prediction"
        )
        return
    labels = [_value(value) for value in model.classes]
    if len(scores) > 1:
        rules = []
        for k, score in enumerate(scores):
            largest = " AND ".join(f"{score} >= {other}" for other in scores if other != score)
            rules.append(f"WHEN {largest} THEN {labels[k]}")
        yield f"CASE {' '.join(rules)} END AS label"
        yield from (
            f"{score} AS {_name(f'score_{value}')}"
            for score, value in zip(scores, model.classes, strict=True)
        )
        return
    above = f"{scores[0]} > {_number(model.threshold)}"
    yield (
        f"CASE WHEN {above} THEN {labels[1]} WHEN {scores[0]} IS NOT NULL THEN {labels[0]} END "
        "AS label"
    )
    yield f"{scores[0]} AS score"
    if model.probability is not None:
        a, b = map(_number, model.probability)
        z = f"({a} * {scores[0]} + {b})"  # e^700 is the largest that a float64 holds
        yield f"CASE WHEN {z} < -700 THEN 0.0 ELSE 1 / (1 + exp(-{z})) END AS probability"


def _text(cell: str) -> str:
    return f"trim(CAST({cell} AS VARCHAR), {_BLANKS})"


def _number(value: float) -> str:
    shown = repr(float(value))
    shown = shown if "e" in shown else f"{shown}e0"  # a float in every dialect, not a decimal
    return f"({shown})" if value < 0 else shown


def _value(value: Value) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
