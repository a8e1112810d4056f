"""How far noise moves a model of Algorithms 2 and 3: standard errors from public numbers alone
(maths.md 22).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from dynadp._arrays import Array
from dynadp.consensus.outputs import Output
from dynadp.consensus.spread import BOUND, Spread
from dynadp.consensus.topology import Topology

_CURVATURES = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, 25)])  # shares of the largest


@dataclass(frozen=True)
class RoundSpread:
    """The noise of one round, P numbers each, as standard deviations of one coordinate.

    Attributes
    ----------
    inside
        Of what is added to the gradient of the local problem.
    outside
        Of what is added to its minimiser.
    phi
        Phi, added to the local problem's curvature.
    """

    inside: Array = field(repr=False)
    outside: Array = field(repr=False)
    phi: Array = field(repr=False)


def admm_spread(
    rounds: Sequence[RoundSpread],
    means: Array,
    topology: Topology,
    eta: float,
    rho: float,
    most: Array,
    dimension: int,
    *,
    private_iterate: bool = False,
) -> Spread:
    """The largest deviation over curvatures h_p = s most_p, 0 <= s <= 1.

    Parameters
    ----------
    rounds
        What each adds; one more for a final release.
    means
        What each node's message of each round is in the model, T x P.
    topology, eta, rho
        Who is whose neighbour, and the constants of the local problems.
    most
        C_p c1: no local loss is more curved.
    dimension
        d.
    private_iterate
        Whether W_p holds a node's 2 g - V for its V (Algorithm 3 as printed).
    """
    A, N = topology.adjacency, topology.degrees
    curvatures = rho + _CURVATURES[:, None] * most
    variances = _variances(rounds, means, A, N, eta, curvatures, private_iterate)
    return Spread(np.full(dimension, np.sqrt(variances.max())), BOUND)


def _variances(
    rounds: Sequence[RoundSpread],
    means: Array,
    A: csr_array,
    N: Array,
    eta: float,
    curvatures: Array,
    private_iterate: bool,
) -> Array:
    """Variance of one coordinate of the model, at each row of curvatures, from the last round to
    the first.

    V = g + e, g = (2 eta W - 2 lam - e')/D with D = curvature + 2 eta N + Phi, W' = (N V + A V)/2,
    lam' = lam + (eta/2)(N V - A V); at_W and at_lam are the model's slopes in W' and lam'.
    """
    at_W, at_lam = np.zeros_like(curvatures), np.zeros_like(curvatures)
    total = np.zeros(len(curvatures))
    sign = -1.0 if private_iterate else 1.0  # of e in what stands for a node's own V in W
    for noise, share in zip(reversed(rounds), means[::-1], strict=True):
        others = share + (A @ at_W.T).T / 2 + eta / 2 * (N * at_lam - (A @ at_lam.T).T)
        at_g, at_e = others + N * at_W / 2, others + sign * N * at_W / 2
        D = curvatures + 2 * eta * N + noise.phi
        total += np.sum((noise.outside * at_e) ** 2 + (noise.inside * at_g / D) ** 2, axis=1)
        at_W, at_lam = 2 * eta * at_g / D, at_lam - 2 * at_g / D
    return total


def shares_of(output: Output, rounds: int, topology: Topology, node: int | None) -> Array:
    """What each message is in the model of a node, or in the mean of all nodes' (None), T x P."""
    P = len(topology)
    if node is None or output == "network":
        whose = np.full(P, 1 / P)
    else:
        near = [node, *topology.neighbours(node)] if output == "neighbours" else [node]
        whose = np.bincount(near, minlength=P) / len(near)
    shares = np.zeros((rounds, P))
    if output == "last":
        shares[-1] = whose
    else:
        shares[rounds // 2 :] = whose / (rounds - rounds // 2)
    return shares
