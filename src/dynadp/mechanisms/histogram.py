"""Scores of private rows by label on public bins, with exact Gaussian noise: one release, of which
all measures of a model are post-processing (maths.md 4).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp._arrays import Array
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.gaussian import LARGEST, GaussianNoise, noise_step
from dynadp.privacy import Gaussian, Unit

HISTOGRAM = "histogram"  # the purpose of its event
FAINT = 4.0


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
    mu
        What it costs, of one row.
    event
        The same as a node's ledger has it; None for one that a run released as its last round,
        over all nodes, which its plan accounts for.
    """

    edges: Array = field(repr=False)
    counts: Array = field(repr=False)
    noise: float
    mu: float
    event: Gaussian | None = field(default=None, repr=False)

    @property
    def centres(self) -> Array:
        """The middle of each bin; those at the ends are as wide as the others."""
        width = self.edges[1] - self.edges[0]
        return np.append(self.edges - width / 2, self.edges[-1] + width / 2)

    @property
    def least(self) -> float:
        """How many rows of a label stand out from noise."""
        return standing_out(self.noise, self.counts.shape[1])

    @property
    def faint(self) -> bool:
        """Whether noise drowns the rows of a label, so that nothing can be learnt of scores: over
        all bins, and over those alone whose own rows stand out.
        """
        rows = self.counts.sum(axis=0)
        clear = rows > FAINT * max(self.noise, 1.0) * sqrt(len(self.counts))
        parts = (self.counts, self.counts[:, clear])
        return not any(h.sum(axis=1).min() > standing_out(self.noise, h.shape[1]) for h in parts)

    @property
    def message(self) -> bytes:
        """The histogram as a ledger keeps it."""
        return json.dumps({k: v for k, v in self.to_json().items() if k != "mu"}).encode()

    def to_json(self) -> dict[str, Any]:
        """Return edges, numbers, the deviation of their noise and mu."""
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
            "noise": self.noise,
            "mu": self.mu,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "NoisyHistogram":
        """Read what :meth:`to_json` gave."""
        edges, counts = (np.array(content[name], dtype=float) for name in ("edges", "counts"))
        if counts.shape != (2, len(edges) + 1) or not np.isfinite(counts).all():
            raise ValueError("expected numbers of two labels, one more in each than edges")
        return cls(edges, counts, float(content["noise"]), float(content["mu"]))


def standing_out(noise: float, bins: int) -> float:
    """How many rows of a label stand out: four deviations of the sum of all cells' noise."""
    return FAINT * max(noise, 1.0) * sqrt(2 * bins)


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
    cells_ = released.reshape(counts.shape)
    return NoisyHistogram(edges, cells_, float(deviation[0, 0]), mu, made)
