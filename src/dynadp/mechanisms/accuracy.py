"""Accuracy on private rows, and their number: noisy numbers, charged to the node's ledger like any
other release (maths.md 4 and 15).
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.sampling import grid_step, l2_laplace, power_of_two, to_grid
from dynadp.privacy import L2Laplace, Ledger, Unit

EVALUATION, COUNT = "evaluation", "count"  # the purposes of their events


@dataclass(frozen=True)
class NoisyAccuracy:
    """A released accuracy.

    Attributes
    ----------
    accuracy
        The released number, in [0, 1].
    rows
        N, the public number of rows; where it is secret, the released noisy one.
    noise
        1/(alpha N), the scale of its noise.
    event
        What it costs.
    """

    accuracy: float
    rows: int
    noise: float
    event: L2Laplace = field(repr=False)

    @property
    def margin(self) -> float:
        """By how much noise moves the accuracy in 95 of 100 draws, at most: ln 20 times its scale;
        4.744 times, the 95% point of the length of noise, where two numbers have some.
        """
        return (log(20) if self.event.dimension == 1 else 4.744) * self.noise

    @property
    def message(self) -> bytes:
        """The accuracy as a ledger keeps it."""
        return json.dumps(self.accuracy).encode()


def private_accuracy(
    right: int, rows: int, alpha: float, *, node: str, draws: Draws, unit: Unit | None = None
) -> NoisyAccuracy:
    """Round(right + e)/N, e ~ Laplace(1/alpha): alpha-DP by the Laplace mechanism (Dwork, McSherry,
    Nissim, Smith 2006).

    N is public, so the share right/N has sensitivity 1/N: a replaced row moves ``right`` by at most
    1, also where it is dropped or was. Rounding to the public grid of the noisy count, dividing by
    N and clipping to [0, 1] are post-processing, and leave no low-order bit of the draw.

    Parameters
    ----------
    right
        The number of rows that were answered right: private.
    rows
        N, the number of rows: public and declared. It must not be read off rows that a schema may
        drop, since how many stay depends on cells.
    alpha
        The loss of this release.
    node
        Whose rows.
    draws
        Where noise comes from.
    unit
        Whose loss it is about; alpha is that of one row.
    """
    _require.positive("alpha", alpha)
    _require.whole("rows", rows, meaning=", and public")
    whom = unit or Unit()
    if whom.added:
        raise DeclarationError(
            "adjacency is 'add-remove', so that the number of rows is secret: release both "
            "numbers with private_answers"
        )
    noise = l2_laplace(draws, EVALUATION, [node], 0, 1, 1)[0, 0] / alpha
    step = grid_step(np.array(1 / alpha))
    radius = power_of_two(1e3 * (rows + 1 / alpha))
    count = float(to_grid(right + noise, step, radius)[0])
    accuracy = round(min(max(count / rows, 0.0), 1.0), 6)
    event = _event(EVALUATION, node, alpha, 1, draws, whom)
    return NoisyAccuracy(accuracy, int(rows), 1 / (alpha * rows), event)


def private_answers(
    right: int, wrong: int, alpha: float, *, node: str, draws: Draws, unit: Unit
) -> NoisyAccuracy:
    """Round((right, wrong) + e), e l2-Laplace in two dimensions with zeta = alpha: alpha-DP where
    rows are added and removed, and their number is secret.

    A row that is added or removed moves one of the two numbers by 1. The accuracy is the first over
    their sum: post-processing.

    Parameters
    ----------
    right, wrong
        How many rows were answered right, and how many wrong: private.
    alpha, node, draws, unit
        As for :func:`private_accuracy`.
    """
    _require.positive("alpha", alpha)
    noisy = _noisy(np.array([right, wrong]), EVALUATION, alpha, node, draws)
    rows = max(round(float(noisy.sum())), 1)
    accuracy = round(min(max(float(noisy[0]) / rows, 0.0), 1.0), 6)
    event = _event(EVALUATION, node, alpha, 2, draws, unit)
    return NoisyAccuracy(accuracy, rows, 1 / (alpha * rows), event)


@dataclass(frozen=True)
class NoisyCount:
    """A released number of rows.

    Attributes
    ----------
    rows
        The released number, at least 0.
    noise
        1/alpha, the scale of its Laplace noise.
    event
        What it costs.
    """

    rows: int
    noise: float
    event: L2Laplace = field(repr=False)

    @property
    def margin(self) -> float:
        """How large the noise is in 95 of 100 draws, at most: ln 20 times its scale."""
        return log(20) * self.noise

    @property
    def message(self) -> bytes:
        """The number as a ledger keeps it."""
        return json.dumps(self.rows).encode()


def private_count(rows: int, alpha: float, *, node: str, draws: Draws, unit: Unit) -> NoisyCount:
    """Round(n + e), e ~ Laplace(1/alpha): alpha-DP by the Laplace mechanism where rows are added or
    removed; where they are replaced, their number is public anyway.

    Parameters
    ----------
    rows
        n, how many rows stay: private.
    alpha, node, draws, unit
        As for :func:`private_accuracy`.
    """
    _require.positive("alpha", alpha)
    noisy = _noisy(np.array([rows]), COUNT, alpha, node, draws)
    event = _event(COUNT, node, alpha, 1, draws, unit)
    return NoisyCount(max(round(float(noisy[0])), 0), 1 / alpha, event)


def _noisy(
    numbers: NDArray[np.int64], purpose: str, alpha: float, node: str, draws: Draws
) -> Array:
    """Round(numbers + e) to a public grid, which leaves no low-order bit of the draw."""
    noise = l2_laplace(draws, purpose, [node], 0, 1, len(numbers))[0, 0] / alpha
    step = grid_step(np.array(1 / alpha))
    return to_grid(numbers + noise, step, step * 2.0**50)


def _event(
    purpose: str, node: str, alpha: float, dimension: int, draws: Draws, unit: Unit
) -> L2Laplace:
    event = L2Laplace(node, 0, purpose, alpha, dimension, draws.seeded)
    return replace(event, **asdict(unit))


def released_accuracies(ledger: Ledger) -> tuple[dict[str, Any], ...]:
    """Return the accuracies that a ledger was charged for: when, alpha and the released number."""
    spends = [
        (run.spent[n], run.run, n, sum(event.alpha for event in events))
        for run in ledger.state().runs.values()
        for n, events in run.by_round.items()
        if n in run.spent and any(getattr(e, "purpose", None) == EVALUATION for e in events)
    ]
    released = []
    for _, run, n, alpha in sorted(spends):
        entry = ledger.spend_entry(run, n)
        with suppress(TypeError, ValueError):  # a message of somebody's own making
            number = float(json.loads(entry.message or b""))
            released.append({"at": entry.at, "alpha": alpha, "accuracy": number})
    return tuple(released)
