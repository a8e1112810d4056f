"""Rows with a number to predict that move a release most (maths.md 21)."""

from dataclasses import replace

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.problem import Huber, LogisticCosh, Loss, PseudoHuber
from dynadp.research.audit.cases import Case, random_cases, replaced

LOSSES: tuple[Loss, ...] = (Huber(), PseudoHuber(), LogisticCosh())


def target_cases(
    dimension: int, alpha: float = 1.0, rows_per_person: int = 1, *, sums: bool = True
) -> tuple[Case, ...]:
    """Pairs of data sets with targets that come near to the bounds.

    One row whose target is replaced, from one end to the other, moves a gradient by 2 where both
    residuals are saturated; so do opposite rows with one target. In ADMM the row also begins, or
    ends, to curve; that is tried at the kink of clipped squares.

    Parameters
    ----------
    dimension
        d.
    alpha
        The loss of a round, for one row.
    rows_per_person
        m: so many rows are replaced at once, all alike.
    sums
        Whether the cases are for sums; otherwise for ADMM.
    """
    _require.whole("dimension", dimension)
    _require.whole("rows_per_person", rows_per_person)
    m = rows_per_person
    first, zero = np.eye(dimension)[0], np.zeros(dimension)
    a, Lam = 10 / min(alpha, 1.0), 5.0
    B = (3 if sums else 4) + m - (not sums)
    cases: list[Case] = []

    def add(
        name: str, rows: tuple[Array, Array], t: tuple[float, float], L: Loss, f: Array
    ) -> None:
        pair = replaced(*rows, B, m)
        targets = np.zeros((2, B))
        targets[:, :m] = np.array(t)[:, None]
        given = (f, 1.0) if sums else (Lam * f, B / a)
        made = {"answers": targets[0], "others": targets[1], "rows_per_person": m}
        cases.append(Case(f"{name}, {L!r}", *pair, L, *given, **made))

    sharp = Huber(0.05)  # saturated wherever noise carries a residual of 1 here
    add("one row, target from end to end", (first, first), (1.0, -1.0), sharp, zero)
    add("opposite rows, target at one end", (first, -first), (1.0, 1.0), sharp, zero)
    add("opposite rows, targets at both ends", (first, -first), (-1.0, 1.0), sharp, zero)
    add("a row or none, target at an end", (first, zero), (-1.0, 0.0), sharp, zero)
    for loss in LOSSES:
        add("one row, target from end to end", (first, first), (1.0, -1.0), loss, zero)
    # a row that curves, and one that is saturated
    h = 0.5 / (a * Lam * float(np.expm1(min(alpha, 4.0) / 2))) if not sums else 0.3
    for target in (0.0, min(h, 1.0)):
        bent = Huber(h)
        add(
            "one row, residual within the width or beyond",
            (first, first),
            (target, -1.0),
            bent,
            zero,
        )
    return tuple(cases)


def random_target_cases(
    rng: np.random.Generator, dimension: int, alpha: float, count: int, rows_per_person: int = 1
) -> tuple[Case, ...]:
    """Rows and messages at random, as :func:`~dynadp.research.audit.cases.random_cases` has them,
    with losses of residuals and targets at random.
    """
    cases = []
    for case in random_cases(rng, dimension, alpha, count, rows_per_person):
        loss = LOSSES[int(rng.integers(len(LOSSES)))]
        targets = rng.choice([-1.0, 1.0, 0.2], len(case.rows))
        other = np.where(case.hers, rng.choice([-1.0, 1.0], len(case.rows)), targets)
        name = f"{case.name.rpartition(', ')[0]}, {loss!r}"
        given = replace(case, name=name, heard=case.heard / 10)
        cases.append(replace(given, loss=loss, answers=targets, others=other))
    return tuple(cases)
