"""Scores of private rows by label on public bins, with exact Gaussian noise: one release, of which
all measures of a model are post-processing (maths.md 4).
"""

import json
from dataclasses import asdict, dataclass, field, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp._arrays import Array
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.gaussian import LARGEST, GaussianNoise, noise_step
from dynadp.privacy import Gaussian, Unit

HISTOGRAM = "histogram"  # the purpose of its event


@dataclass(frozen=True)
class NoisyHistogram:
    """A released histogram.

    Attributes
    ----------
    edges
        The public ends of the bins of scores, K - 1 of them: bin k holds scores above edge k - 1
        and up to edge k. None where answers of several classes are counted.
    counts
        Noisy numbers of rows, 2 x K: of the negative label first; or classes x classes, by label
        and answer. Some may lie below 0.
    noise
        The standard deviation of each number's noise.
    event
        What it costs.
    """

    edges: Array = field(repr=False)
    counts: Array = field(repr=False)
    noise: float
    event: Gaussian = field(repr=False)

    @property
    def message(self) -> bytes:
        """The histogram as a ledger keeps it."""
        return json.dumps(
            {"edges": self.edges.tolist(), "counts": self.counts.tolist(), "noise": self.noise}
        ).encode()


def private_histogram(
    counts: NDArray[np.int64], edges: Array, mu: float, *, node: str, draws: Draws, unit: Unit
) -> NoisyHistogram:
    """counts + e, e exactly discrete Gaussian with deviation sqrt(2)/mu, or 1/mu where rows are
    added and removed: mu-Gaussian-DP for one row.

    A row that is replaced leaves one cell and enters another: the vector of all cells moves by at
    most sqrt(2). One that is added or removed moves one cell by 1.

    Parameters
    ----------
    counts
        Rows by label and bin, 2 x K, or by label and answer of several classes: private.
    edges
        The bins, public.
    mu
        How much this release may lose: of one row.
    node, draws, unit
        Whose rows; where noise comes from; whose total the ledger keeps.
    """
    _require.positive("mu", mu)
    deviation = np.array([[sqrt(unit.moves) / mu]])
    step = noise_step(deviation, 1.0)
    noise = GaussianNoise(
        step=step,
        radius=LARGEST * step,
        phi=np.zeros((1, 1)),
        mu=np.array([[float(mu)]]),
        parameter=deviation / step * (1 + 1e-12),
        purpose=HISTOGRAM,
    )
    cells = counts.reshape(1, 1, -1).astype(float)
    released = noise.release(cells, draws, [node], 0)[0, 0]
    (event,) = noise.events([node], 0, counts.size, seeded=draws.seeded)
    assert isinstance(event, Gaussian)
    made = replace(event, **asdict(unit))
    return NoisyHistogram(edges, released.reshape(counts.shape), float(deviation[0, 0]), made)
