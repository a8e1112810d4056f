"""From releases of two data sets to a lower bound on epsilon, with a stated confidence.

An (epsilon, delta)-private release has P(S) <= e^epsilon Q(S) + delta for every set S of outputs, P
and Q being its laws under either data set in either order. So whoever knows P(S) from below and
Q(S) from above knows epsilon from below. The set is chosen on the first half of the draws and
counted on the second, which therefore owes nothing to the choice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError

Score = Callable[
    [Array], Array
]  # outputs, n x m -> n numbers, larger where the first data set is likelier
Worth = Callable[[Array, Array], Array]  # P(S) from below, Q(S) from above -> a lower bound
MANY = 16  # numbers in an output
FEWEST = 100  # releases of each data set
LEVELS = np.concatenate(
    [np.geomspace(1e-5, 0.02, 40), np.linspace(0.025, 0.975, 96), 1 - np.geomspace(0.02, 1e-5, 40)]
)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """How often releases of either data set lie in a set S that was chosen on other releases.

    Attributes
    ----------
    low, high
        Clopper-Pearson limits: P(S) from below, Q(S) from above.
    confidence
        How surely both hold.
    direction
        Which data set is P: ``D against D'`` or ``D' against D``.
    statistic
        What the set S is made of: outputs whose statistic is above, or below, a threshold.
    hits, misses
        How many releases of the second half lie in S: of P and of Q.
    draws
        How many of each there are in both halves together, the smaller number.
    """

    low: float
    high: float
    confidence: float
    direction: str
    statistic: str
    hits: int
    misses: int
    draws: int


@dataclass(frozen=True, kw_only=True)
class Bound(Counted):
    """ln( (P(S) - delta)/Q(S) ) <= epsilon.

    Attributes
    ----------
    epsilon
        The lower bound, at least 0.
    delta
        For which it holds.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class MuBound(Counted):
    """Phi^-1(P(S)) - Phi^-1(Q(S)) <= mu: no set tells the data sets better apart than two normal
    laws with deviation 1 whose means differ by mu (Dong, Roth, Su 2022).

    Attributes
    ----------
    mu
        The lower bound, at least 0.
    """

    mu: float


def lower_bound(
    under: Array,
    other: Array,
    *,
    delta: float = 0.0,
    confidence: float = 0.999,
    scores: Mapping[str, Score] | None = None,
) -> Bound:
    """epsilon >= ln( (P(S) - delta)/Q(S) ), S chosen on the first half of the draws, P(S) and Q(S)
    bounded on the second.

    The statistic, the order of the data sets, the tail and the threshold are all chosen on the
    first half, so a single pair of one-sided Clopper-Pearson limits remains, each at half of 1 -
    confidence: the bound is wrong with a probability of at most 1 - confidence, whatever the
    release is.

    Parameters
    ----------
    under, other
        Independent releases from D and from D': n numbers, or n x m outputs.
    delta
        That of the claim.
    confidence
        In (0, 1).
    scores
        Statistics to try besides those that :func:`learnt` from the first half.
    """
    check(delta, confidence)

    def worth(p: Array, q: Array) -> Array:
        low = p - delta
        return np.where(low > 0, np.log(np.maximum(low, 1e-300) / q), -np.inf)

    found = _counted(under, other, confidence, scores, worth)
    epsilon = max(0.0, float(worth(np.array(found.low), np.array(found.high))))
    return Bound(**vars(found), epsilon=epsilon, delta=delta)


def lower_mu(
    under: Array,
    other: Array,
    *,
    confidence: float = 0.999,
    scores: Mapping[str, Score] | None = None,
) -> MuBound:
    """mu >= Phi^-1(P(S)) - Phi^-1(Q(S)), as :func:`lower_bound` chooses and counts.

    Parameters
    ----------
    under, other, confidence, scores
        As of :func:`lower_bound`.
    """
    check(0.0, confidence)

    def worth(p: Array, q: Array) -> Array:
        return np.asarray(ndtri(np.maximum(p, 0.0)) - ndtri(np.clip(q, 1e-300, 1.0)))

    found = _counted(under, other, confidence, scores, worth)
    mu = max(0.0, float(worth(np.array(found.low), np.array(found.high))))
    return MuBound(**vars(found), mu=mu)


def _counted(
    under: Array,
    other: Array,
    confidence: float,
    scores: Mapping[str, Score] | None,
    worth: Worth,
) -> Counted:
    """Choose S on the first half of the draws, where ``worth`` promises most; count the second."""
    x, y = (_outputs(given) for given in (under, other))
    if x.shape[1] != y.shape[1]:
        raise DeclarationError(
            f"outputs have {x.shape[1]} and {y.shape[1]} numbers; expected as many from either "
            f"data set"
        )
    doubt = (1 - confidence) / 2
    (x, x_counted), (y, y_counted) = (np.split(v, [len(v) // 2]) for v in (x, y))
    if x.shape[1] > MANY:  # on the draws it was learnt from, a statistic looks better than it is
        own = learnt(x[::2], y[::2])
        x, y = x[1::2], y[1::2]
    else:
        own = learnt(x, y)
    tried = {**own, **(scores or {})}
    tests = [
        (*_chosen(score(x), score(y), worth, float(-ndtri(doubt))), name, score)
        for name, score in tried.items()
    ]
    _, flipped, above, threshold, name, score = max(tests, key=lambda test: test[0])
    pair = score(x_counted), score(y_counted)
    P, Q = reversed(pair) if flipped else pair
    hits, misses = (
        int(np.count_nonzero(s >= threshold if above else s <= threshold)) for s in (P, Q)
    )
    side = "at least" if above else "at most"
    return Counted(
        low=float(betaincinv(hits, len(P) - hits + 1, doubt)) if hits else 0.0,
        high=float(betaincinv(misses + 1, len(Q) - misses, 1 - doubt)) if misses < len(Q) else 1.0,
        confidence=confidence,
        direction="D' against D" if flipped else "D against D'",
        statistic=f"{name} {side} {threshold:.6g}",
        hits=hits,
        misses=misses,
        draws=min(len(under), len(other)),
    )


def learnt(x: Array, y: Array) -> dict[str, Score]:
    """Statistics that may distinguish D from D', learnt from outputs of each: any function is
    valid, a good one shows more.

    ``linear``: Fisher's discriminant, for a shift. ``quadratic``: the log-likelihood ratio of two
    Gaussians, for a change of scale. ``near D``, ``near D'``: minus the distance to the median of
    the outputs, for noise with a peak that is too sharp.
    """
    spread = np.concatenate([x, y]).std(axis=0)
    spread[spread == 0] = 1.0
    means = [half.mean(axis=0) / spread for half in (x, y)]
    medians = [np.median(half, axis=0) / spread for half in (x, y)]
    ridge = 1e-9 * np.eye(x.shape[1])  # outputs that never vary, or vary together
    widths = [np.atleast_2d(np.cov(half / spread, rowvar=False)) + ridge for half in (x, y)]
    slope = np.linalg.solve(widths[0] + widths[1], means[0] - means[1])

    def distance(v: Array, i: int) -> Array:
        away = v / spread - means[i]
        return np.asarray(np.einsum("ni,ni->n", away, np.linalg.solve(widths[i], away.T).T))

    return {
        "linear": lambda v: v / spread @ slope,
        "quadratic": lambda v: distance(v, 1) - distance(v, 0),
        "near D": lambda v: -np.linalg.norm(v / spread - medians[0], axis=1),
        "near D'": lambda v: -np.linalg.norm(v / spread - medians[1], axis=1),
    }


def _chosen(x: Array, y: Array, worth: Worth, z: float) -> tuple[float, bool, bool, float]:
    """(promise, flipped, above, threshold) of the most promising set of the form "score above
    (below) a threshold".

    The promise is what p - z s_p - z^2/n and q + z s_q + z^2/n are worth, with the usual standard
    errors: near enough to the bound that the second half will give, and quick.
    """
    x, y = np.sort(x), np.sort(y)
    together = np.sort(np.concatenate([x, y]))
    values = np.unique(together[(LEVELS * len(together)).astype(int)])
    # between outputs, so that rounding is harmless
    thresholds = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    n = min(len(x), len(y))
    best = (-np.inf, False, True, float(thresholds[0]))
    for above in (True, False):
        side = "left" if above else "right"
        shares = [np.searchsorted(s, thresholds, side=side) / len(s) for s in (x, y)]  # type: ignore[call-overload]
        inside = [1 - share if above else share for share in shares]
        for flipped in (False, True):
            p, q = reversed(inside) if flipped else inside
            low = p - z * np.sqrt(p * (1 - p) / n) - z**2 / n
            promise = worth(low, q + z * np.sqrt(q * (1 - q) / n) + z**2 / n)
            i = int(np.argmax(promise))
            best = max(best, (float(promise[i]), flipped, above, float(thresholds[i])))
    return best


def _outputs(given: Array) -> Array:
    """n x m numbers, all finite."""
    outputs = np.asarray(given, dtype=float)
    if outputs.ndim not in (1, 2) or len(outputs) < FEWEST or outputs.size == 0:
        raise DeclarationError(
            f"releases have shape {outputs.shape}; expected at least {FEWEST} of them: n numbers, "
            f"or n x m outputs"
        )
    if not np.isfinite(outputs).all():
        raise DeclarationError(
            "releases hold NaN or infinite numbers; expected outputs as they were sent, missing "
            "ones as 0"
        )
    return outputs.reshape(len(outputs), -1)


def check(delta: float, confidence: float) -> None:
    """Refuse a delta or a confidence that is none."""
    _require.share("delta", delta, zero=True)
    _require.share("confidence", confidence)
