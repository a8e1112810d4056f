"""Accuracy on private rows: one noisy number, charged to the node's ledger like any other release
(maths.md 4).
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dynadp import _require
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.sampling import grid_step, l2_laplace, power_of_two, to_grid
from dynadp.privacy import L2Laplace, Ledger, Unit

EVALUATION = "evaluation"  # the purpose of its event


@dataclass(frozen=True)
class NoisyAccuracy:
    """A released accuracy.

    Attributes
    ----------
    accuracy
        The released number, in [0, 1].
    rows
        N, the public number of rows.
    noise
        1/(alpha N), the scale of its Laplace noise.
    event
        What it costs.
    """

    accuracy: float
    rows: int
    noise: float
    event: L2Laplace = field(repr=False)

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
    noise = l2_laplace(draws, EVALUATION, [node], 0, 1, 1)[0, 0] / alpha
    step = grid_step(np.array(1 / alpha))
    radius = power_of_two(1e3 * (rows + 1 / alpha))
    count = float(to_grid(right + noise, step, radius)[0])
    accuracy = round(min(max(count / rows, 0.0), 1.0), 6)
    whom = unit or Unit()
    event = L2Laplace(node, 0, EVALUATION, alpha, 1, draws.seeded, rows=whom.rows, silos=whom.silos)
    return NoisyAccuracy(accuracy, int(rows), 1 / (alpha * rows), event)


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
