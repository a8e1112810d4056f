"""From public numbers to the steps of algorithm "sum": whose sums count, and how far they lead
(maths.md 12).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any, Self

import numpy as np
from scipy.special import log_ndtr, ndtr

from dynadp._arrays import Array
from dynadp._roots import root
from dynadp.mechanisms import Sealing
from dynadp.problem import Loss, Weights

TARGET_PULL, TARGET_MOMENTUM = 10.0, 0.8  # k and m for targets
_AT_REST = 1.1  # times the pull from which steps of a target do not grow
_SILENT = 0.01  # of the mean (B mu)^2: below it a node's releases would be spent for nothing


@dataclass(frozen=True)
class SumConstants:
    """The constants of the rules, from a study on census rows.

    Attributes
    ----------
    rounds, moment_rounds
        T without and with a second moment.
    moment_from
        N from which a second moment pays.
    pull, moment_pull
        k in q = k T/N, without and with a second moment.
    momentum, curvature
        As of :class:`~dynadp.consensus.sums.Steps`.
    least_pull
        q without a second moment is at least this. Steps of a loss of residuals, which may curve
        much, neither grow nor swing for ever above c1 (1 - m)/(2 (1 + m)), whatever the rows; a
        tenth above it they have come to rest before a run ends.
    centring, moment, histogram
        Shares of mu^2.
    margin
        m of the loss ln(1 + e^(m - z)), or of softmax.
    """

    rounds: int = 20
    moment_rounds: int = 12
    moment_from: float = 2000.0
    pull: float = 0.7
    moment_pull: float = 0.5
    momentum: float = 0.5
    curvature: float = 0.07
    least_pull: float = 0.0
    centring: float = 0.1
    moment: float = 0.05
    histogram: float = 0.1
    margin: float = 3.0

    @classmethod
    def of(cls, classes: int = 2, loss: Loss | None = None, **given: Any) -> Self:
        """The constants for so many classes, or for a loss of residuals, but for those that are
        given.
        """
        found: dict[str, Any] = {}
        if loss is not None and loss.residual:
            m = TARGET_MOMENTUM
            found = {
                "pull": TARGET_PULL,
                "moment_pull": TARGET_PULL,
                "momentum": m,
                "curvature": loss.c1,
                "least_pull": _AT_REST * loss.c1 * (1 - m) / (2 * (1 + m)),
            }
        elif classes > 2:
            found = {
                "rounds": 30,
                "moment_rounds": 20,
                "moment_from": 1000.0,
                "pull": 0.5,
                "centring": 0.05,
                "margin": 2.0,
            }
        return cls(**{**found, **given})


def signal(counts: Array, mus: Array, node_weights: Array) -> float:
    """N = sum_p w_p B_p / sqrt(sum_p (w_p/mu_p)^2): rows over noise in the sum over nodes."""
    return float(node_weights @ counts / sqrt(float(np.sum((node_weights / mus) ** 2))))


def weigh_nodes(
    counts: Sequence[float] | Array, mus: Sequence[float] | Array, weights: Weights = "rows"
) -> tuple[float, ...]:
    """w_p = B_p mu_p^2 over the largest: N = sqrt(sum_p (B_p mu_p)^2), the largest that there is.

    A node's noise is as long as any other's, however few rows it has. A node with B_p mu_p below
    a tenth of the root mean square gets 0 and sends nothing: all such nodes together would raise
    N by less than half a percent. Where every node weighs the same, w_p = mean(B)/B_p.

    Parameters
    ----------
    counts, mus
        B_p, and mu_p of all that the node may release.
    weights
        ``rows`` or ``equal``.
    """
    B, mu = np.asarray(counts, dtype=float), np.asarray(mus, dtype=float)
    if weights == "equal":
        return tuple((B.mean() / B).tolist())
    brought = (B * mu) ** 2
    w = np.where(brought < _SILENT * brought.mean(), 0.0, B * mu**2)
    return tuple((w / w.max()).tolist())


def sealed_signal(counts: Array, mus: Array, node_weights: Array, sealing: Sealing) -> float:
    """N = sum_p w_p B_p mu sqrt(h/P), mu what a row of weight 1 loses: one noise for all nodes."""
    mu = float(np.min(mus / node_weights))
    return float(node_weights @ counts) * mu * sqrt(sealing.honest / sealing.members)


def weigh_sealed(
    counts: Sequence[float] | Array, mus: Sequence[float] | Array, weights: Weights = "rows"
) -> tuple[float, ...]:
    """w_p = mu_p over the largest: rows of all nodes stand in one noise, which costs each its own
    mu. Where every node weighs the same, w_p is in proportion to 1/B_p.
    """
    w = np.asarray(mus, dtype=float) if weights == "rows" else 1 / np.asarray(counts, dtype=float)
    return tuple((w / w.max()).tolist())


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism that loses (epsilon, delta): Phi(mu/2 - eps/mu) - e^eps
    Phi(-mu/2 - eps/mu) = delta.

    >>> round(gaussian_mu(1.0, 1e-5), 3)
    0.268
    """

    def excess(mu: float) -> float:
        return float(
            ndtr(mu / 2 - epsilon / mu)
            - exp(min(epsilon + log_ndtr(-mu / 2 - epsilon / mu), 0.0))
            - delta
        )

    return root(excess, 1e-12, 100 + 2 * sqrt(epsilon))
