"""Rows as an adversary holds them: one vector each, of which all that a row adds to a message
follows.

Of a label with two values it is a = y x; of several classes and of numbers (x, y), the answer last.
"""

import numpy as np

from dynadp._arrays import Array
from dynadp.data import Shard
from dynadp.problem import Loss


def dense(shard: Shard) -> Array:
    """All rows of a node, B x d, or B x (d + 1) with answers."""
    rows = shard.signed if isinstance(shard.signed, np.ndarray) else shard.signed.toarray()
    return np.asarray(rows if shard.answers is None else np.column_stack([rows, shard.y]))


def parted(rows: Array, loss: Loss) -> tuple[Array, Array | None]:
    """Return the rows that the loss is about, and their answers; None where rows are signed."""
    return (rows, None) if loss.kind == "signs" else (rows[..., :-1], rows[..., -1])


def signs_of(rows: Array) -> Array:
    """y of signed rows, whose intercept is above 0 without it; 0 of a null row."""
    return np.asarray(np.sign(rows[..., -1]))


def shard_of(rows: Array, like: Shard) -> Shard:
    """Return a node with these rows, which another one's kind of answer."""
    if like.answers is None:
        return Shard.of(rows, np.ones(len(rows)), name=like.name)
    x, y = rows[:, :-1].copy(), rows[:, -1].copy()
    return Shard.frozen(x, y, like.name, None, like.kind, like.classes)


def with_other_answer(row: Array, like: Shard) -> Array:
    """The same attributes with the other label, with the next class, or with the number at the
    further end of its bounds.
    """
    if like.answers is None:
        return -row
    other, y = row.copy(), row[-1]
    other[-1] = (y + 1) % like.classes if like.kind == "classes" else (-1.0 if y > 0 else 1.0)
    return other
