"""Sums of errors over private rows, with exact Gaussian noise: one release, of which all measures
of a model that answers a number are post-processing (maths.md 21).
"""

import json
from dataclasses import asdict, dataclass, field, replace
from math import sqrt

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.mechanisms.entropy import Draws
from dynadp.mechanisms.gaussian import LARGEST, GaussianNoise, noise_step
from dynadp.privacy import Gaussian, Unit

ERRORS = "errors"  # the purpose of its event
# of 1, u, u^2, t and t^2: squared errors are small, and are heard best
WEIGHTS = np.array([0.25, 0.5, 1.0, 0.25, 0.5])
_STEP = 2.0**-20  # what a row adds is a whole number of these, so that sums are exact
# how far a row moves the weighed sums: one that is added, or replaced, and rounding (maths.md 21)
SENSITIVITY = sqrt(13 / 8) + sqrt(len(WEIGHTS)) * _STEP


@dataclass(frozen=True)
class NoisyErrors:
    """Released sums of (1, u, u^2, t, t^2) over rows, u = abs(p - t)/2.

    Attributes
    ----------
    sums
        Five noisy numbers; the first is the number of rows.
    noise
        The standard deviation of each number's noise.
    event
        What it costs.
    """

    sums: Array = field(repr=False)
    noise: Array = field(repr=False)
    event: Gaussian = field(repr=False)

    @property
    def message(self) -> bytes:
        """The sums as a ledger keeps them."""
        return json.dumps({"sums": self.sums.tolist(), "noise": self.noise.tolist()}).encode()


def error_sums(predicted: Array, targets: Array) -> Array:
    """sum_i rint((1/4, u/2, u^2, t/4, t^2/2)/h) of rows: whole numbers of steps h = 2^-20.

    Parameters
    ----------
    predicted, targets
        p and t of each row, in [-1, 1].
    """
    p, t = np.clip(predicted, -1.0, 1.0), np.clip(targets, -1.0, 1.0)
    u = np.abs(p - t) / 2
    added = np.stack([np.ones_like(t), u, u**2, t, t**2]) * WEIGHTS[:, None]
    return np.asarray(np.rint(added / _STEP).sum(axis=1))


def private_errors(sums: Array, mu: float, *, node: str, draws: Draws, unit: Unit) -> NoisyErrors:
    """sums + e, e exactly discrete Gaussian with deviation Delta/mu, Delta^2 = 13/8: mu-Gaussian-DP
    for one row, whether it is replaced, or added and removed.

    Parameters
    ----------
    sums
        As :func:`error_sums` has them, over all rows: private.
    mu
        How much this release may lose: of one row.
    node, draws, unit
        Whose rows; where noise comes from; whose total the ledger keeps.
    """
    _require.positive("mu", mu)
    deviation = np.array([[SENSITIVITY / mu]])
    step = noise_step(deviation, _STEP)
    noise = GaussianNoise(
        step=step,
        radius=LARGEST * step,
        phi=np.zeros((1, 1)),
        mu=np.array([[float(mu)]]),
        parameter=deviation / step * (1 + 1e-12),
        purpose=ERRORS,
    )
    released = noise.release((sums * _STEP).reshape(1, 1, -1), draws, [node], 0)[0, 0]
    (event,) = noise.events([node], 0, len(WEIGHTS), seeded=draws.seeded)
    assert isinstance(event, Gaussian)
    made = replace(event, **asdict(unit))
    return NoisyErrors(released / WEIGHTS, deviation[0, 0] / WEIGHTS, made)
