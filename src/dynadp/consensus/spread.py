"""How far noise moves a released model: standard errors from public numbers (maths.md 22).

Every round is a function of what was released before and of new noise. To first order the model
is its value without noise plus sum_t W_t e_t, e_t the noise of round t; the laws of e_t are public,
and W_t follows from the steps backwards, from the mean that becomes the model to each round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dynadp._arrays import Array
from dynadp.consensus.sums import Steps, SumPath
from dynadp.problem import Loss

FIRST_ORDER = "first order"
BOUND = "bound"
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)  # for means over a normal law
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SURE = 3.0  # deviations that an estimated curvature is lowered by: less of it, wider intervals


@dataclass(frozen=True)
class Spread:
    """Standard deviations of a model over its noise.

    Attributes
    ----------
    deviations
        Of each of d numbers.
    basis
        ``first order``, with the rows' second moment as released; or ``bound``, where no curvature
        is known: to first order at most this, with the least favourable one.
    """

    deviations: Array = field(repr=False)
    basis: str

    def parts(self, vectors: int) -> "list[Spread]":
        """Return that of each of several vectors that stand one after the other."""
        return [Spread(part, self.basis) for part in self.deviations.reshape(vectors, -1)]

    def alike(self, along: Array) -> "Spread":
        """Return that of U f, where one bound s holds in every direction: ``|U_j| s``."""
        vectors = len(self.deviations) // along.shape[1]
        lengths = np.tile(np.linalg.norm(along, axis=1), vectors)
        return Spread(self.deviations.max() * lengths, self.basis)


def sum_spread(
    path: SumPath, steps: Steps, loss: Loss, replica: int = 0, along: Array | None = None
) -> Spread:
    """diag(sum_t s_t^2 W_t W_t^T) and, with a second moment, the part of its own noise.

    Parameters
    ----------
    path
        What the rounds left.
    steps
        How the point moved, with a pull.
    loss
        L, for its curvature.
    replica
        Of several.
    along
        U, where the spread of U f is asked for instead of f's; of several classes of each.
    """
    q = steps.pull
    assert q is not None
    per_row = np.array(path.noise) / np.array(path.rows)
    means = np.array(path.averaged, dtype=float)
    means /= means.sum()
    if path.inverse is None:
        gains = momentum_gains(np.zeros(1), means, steps.momentum, q)
        deviation = float(np.sqrt(np.sum((gains[:, 0] * per_row) ** 2)))
        found = np.full(path.start.shape[-1], deviation)
        return Spread(found, BOUND) if along is None else Spread(found, BOUND).alike(along)
    B, v = path.inverse[replica], np.array([step[replica] for step in path.steps])
    d, start = len(B), path.start[replica]
    # of several classes L'' mixes them, and rows that weigh differently are not those of A: it is
    # not taken; of numbers it is what steps take it to be
    flat = v.shape[1] > d or not path.even
    margins = None if flat or loss.residual else loss
    variances = list[Array]()
    for own in (slice(k, k + d) for k in range(0, v.shape[1], d)):  # of each class
        curvatures = _Curvatures(B, q, steps.curvature, margins, start[own], v[:, own], per_row)
        ends, W = list[Array](), np.zeros((d, d))  # how the model moves with v, from the last round
        for t in reversed(range(len(v))):
            W = W + means[t] * np.eye(d)
            ends.append(W @ B)
            if not flat:
                W = W - ends[-1] @ curvatures.at(t)
        C = ends[::-1] if along is None else [along @ end for end in reversed(ends)]
        gradients = sum((s * c) ** 2 for s, c in zip(per_row, C, strict=True))
        moment = (steps.curvature * path.moment_noise) ** 2 * _moment_part(C, v[:, own])
        variances.append(np.sum(gradients, axis=1) + moment)
    basis = BOUND if flat else FIRST_ORDER
    return Spread(np.sqrt(np.concatenate(variances)), basis)


class _Curvatures:
    """mean L''(z.k) k k^T at each point, with signed rows k as normal as A and their mean allow.

    With m = z.k, w = cov(k, m)/var m and k_i = E[L''(m) (m - E m)^i] it is k_0 A + k_1 (mu w^T + w
    mu^T) + (k_2 - k_0 var m) w w^T. The mean mu is in the first step, where it began at 0: v = -B
    L'(0) mu.
    """

    def __init__(
        self,
        B: Array,
        q: float,
        c: float,
        loss: Loss | None,
        start: Array,
        v: Array,
        noise: Array,
    ) -> None:
        b, U = np.linalg.eigh(B)
        self.A = (U * np.maximum((1 / b - q) / c, 0.0)) @ U.T
        self.loss = loss
        self.z = start + np.vstack([np.zeros(len(start)), np.cumsum(v, axis=0)[:-1]])
        self.mean: Array | None = None
        gradients = -((v @ U) / b) @ U.T
        if loss is not None and not start.any():
            self.mean = gradients[0] / float(loss.slope(np.zeros(1))[0])
        self.otherwise = c * _share_of_guess(gradients, v, c * self.A, float(np.sum(b)), noise)

    def at(self, t: int) -> Array:
        """Before step t."""
        if self.mean is None or self.loss is None:
            return np.asarray(self.otherwise * self.A)
        z, mu = self.z[t], self.mean
        centre = float(z @ mu)
        together = self.A @ z - mu * centre  # cov(k, m)
        variance = max(float(z @ together), 0.0)
        away = np.sqrt(variance) * _NODES
        weights = _WEIGHTS * self.loss.curvature(centre + away)
        k0, k1, k2 = (float(weights @ away**i) for i in range(3))
        if not variance:
            return np.asarray(k0 * self.A)
        w = together / variance
        cross = k1 * np.outer(mu, w)
        more = cross + cross.T + (k2 - k0 * variance) * np.outer(w, w)
        return np.asarray(k0 * self.A + more)


def _share_of_guess(G: Array, v: Array, guess: Array, trace: float, noise: Array) -> float:
    """kappa in H = kappa c A, from what steps did to gradients: the largest lower end over the
    round from which steps are looked at, as curvature grows while residuals shrink. At most 1.

    v_t.(G_(t+1) - G_t) is v_t.H v_t, noise of mean 0, and -v_t.e_t, whose mean is s^2 tr B, as v_t
    = -B G_t holds that noise too.
    """
    own, s = v[:-1], noise**2
    moved = np.sum(own * np.diff(G, axis=0), axis=1) - trace * s[:-1]
    variance = (s[:-1] + s[1:]) * np.sum(own**2, axis=1)
    taken = np.sum((own @ guess) * own, axis=1)
    parts = (np.cumsum(part[::-1])[::-1] for part in (moved, variance, taken))
    moved, variance, taken = (part[: (len(v) + 1) // 2] for part in parts)
    known = taken > 0
    ends = (moved[known] - _SURE * np.sqrt(variance[known])) / taken[known]
    return float(np.clip(ends, 0.0, 1.0).max(initial=0.0))


def momentum_gains(curvature: Array, means: Array, m: float, q: float) -> Array:
    """``|W_t|`` by round for rows of this curvature: z <- z + v, v <- m v - (1 - m)(G + e)/q."""
    gains = np.zeros((len(means), len(curvature)))
    at_z, at_v = np.zeros(len(curvature)), np.zeros(len(curvature))
    for t in reversed(range(len(means))):
        at_z = at_z + means[t]
        at_v = at_z + m * at_v
        gains[t] = (1 - m) / q * at_v
        at_z = at_z - curvature * gains[t]
    return gains


def _moment_part(C: Sequence[Array], v: Array) -> Array:
    """|sym R_j|^2, R_j = sum_t (C_t)_j v_t^T: the variance of number j where noise E of the second
    moment moves the model by -sum_t C_t E v_t, E symmetric with variance 1 on the diagonal, 1/2
    off it.
    """
    products = v @ v.T
    crossed = [[c @ other for other in v] for c in C]
    total = np.zeros(len(C[0]))
    for s, c in enumerate(C):
        for t, other in enumerate(C):
            total += products[s, t] * np.sum(c * other, axis=1) + crossed[s][t] * crossed[t][s]
    return total / 2
