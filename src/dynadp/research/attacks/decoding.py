"""Raw cells of a row, read off what messages without noise show of it."""

import numpy as np

from dynadp._arrays import Array
from dynadp.data import Categorical, Numeric, Schema, Target
from dynadp.errors import DeclarationError
from dynadp.problem import Loss

_TRIED = 20_001  # numbers between the bounds of a target


def unknown_row(schema: Schema, loss: Loss, points: Array, forces: Array) -> dict[str, str]:
    """All cells of the row x that added -L'(x.z) x to messages at known points z.

    With two values the force is along a = y x. With classes it is (e_y - p) x^T, whose only row
    along x, and not against it, is that of class y. With numbers it is -L'(x.z - t) x: the longest
    shows x, and then t is the number whose slopes are the nearest to all of them.

    Parameters
    ----------
    schema
        Its intercept gives the length of x, and its transforms the cells.
    loss
        L.
    points, forces
        Of each round, T x d; of classes one after the other.
    """
    if loss.kind == "signs":
        return decode(schema, forces.sum(axis=0))
    label = schema.label
    if loss.kind == "classes":
        by_class = forces.sum(axis=0).reshape(len(label.classes), -1)
        y = int(by_class[:, -1].argmax())
        return {**columns(schema, by_class[y]), label.name: str(label.classes[y])}
    assert isinstance(label, Target)
    longest = forces[np.linalg.norm(forces, axis=1).argmax()]
    cells = columns(schema, longest)
    raw = {
        column.name: np.array([float(cells[column.name])])
        if isinstance(column, Numeric)
        else np.array([cells[column.name]])
        for column in schema.columns
    }
    rows = schema.rows(raw)
    x = np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray())[0]
    tried = np.linspace(-1.0, 1.0, _TRIED)
    slopes = loss.slope((points @ x)[:, None] - tried)
    shown = -(forces @ x) / (x @ x)
    t = tried[np.square(slopes - shown[:, None]).sum(axis=0).argmin()]
    return {**cells, label.name: str(round(float(label.within(t))))}


def decode(schema: Schema, a: Array) -> dict[str, str]:
    """phi(raw) = intercept x/x_last + centre and y = sign(a_last), for a = y x times any c > 0;
    numbers to whole ones.
    """
    label = schema.require_two_values("a reconstruction")
    cells = columns(schema, a)
    return {**cells, label.name: str(label.positive if a[-1] > 0 else label.negative)}


def columns(schema: Schema, a: Array) -> dict[str, str]:
    """The cells of all columns but the label, for a = x times any c but 0."""
    if not schema.intercept:
        raise DeclarationError(
            "the schema has no intercept; decoding reads a row's label and length off that constant"
        )
    centre = 0.0 if schema.centre is None else np.array(schema.centre)
    phi = a[:-1] * (schema.intercept / a[-1]) + centre
    out, ends = {}, np.cumsum([len(column.features) for column in schema.columns])
    for column, part in zip(schema.columns, np.split(phi, ends[:-1]), strict=True):
        block = part / column.weight
        if isinstance(column, Categorical):
            k = int(block.argmax())
            listed = k < len(column.values) and (column.other != "zero" or block[k] > 0.5)
            out[column.name] = str(column.values[k]) if listed else "(other)"
            continue
        if not isinstance(column, Numeric):
            raise DeclarationError(
                f"column {column.name!r} is of kind {column.kind!r}; decoding reads numbers and "
                "categories alone"
            )
        if column.encode[0] != "linear":
            raise DeclarationError(
                f"column {column.name!r} begins with {column.encode[0]!r}; decoding needs "
                f"'linear' first"
            )
        u = float(np.clip((block[0] + 1) / 2 if column.signed else block[0], 0, 1))
        span = column.high - column.low
        v = column.low + (np.expm1(u * np.log1p(span)) if column.transform == "log1p" else u * span)
        if column.transform == "signed_log":
            low, high = -np.log1p(-column.low), np.log1p(column.high)
            t = low + u * (high - low)
            v = np.copysign(np.expm1(abs(t)), t)
        out[column.name] = str(round(v))
    return out
