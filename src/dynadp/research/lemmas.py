"""What noise and a finite sample cost, at most: the paper's Lemmas 7, 8, 11, 12, corrected, and
Sridharan's term (maths.md 9).

Z is a node's objective (C/B) sum L + rho R with ``||x|| <= 1``, ``|L'| <= 1``, and R 1-strongly
convex; delta is ``failure``.
"""

from math import log, sqrt

from dynadp.errors import DeclarationError


def gamma_tail(k: int, theta: float, failure: float) -> float:
    """k theta ln(k/delta): a Gamma(k, theta) variable stays below it with probability at least 1 -
    delta (Lemma 7).

    Raises
    ------
    DeclarationError
        If k < 1, theta < 0, or delta is not in (0, 1].
    """
    if not (k >= 1 and theta >= 0 and 0 < failure <= 1):
        raise DeclarationError(
            f"k is {k!r}, theta {theta!r}, failure {failure!r}; expected k >= 1, theta >= 0 and 0 "
            f"< failure <= 1"
        )
    return k * theta * log(k / failure)


def sampling_excess(rows: float, *, C: float, rho: float, failure: float) -> float:
    """16 C^2 (1/2 + sqrt(s) + s)/(rho B), s = ln(1/delta): the last term of Sridharan et al., with
    a constant proven here.

    With probability at least 1 - delta over B independent rows, for all w at once, Zhat(w) - min
    Zhat <= 2 (Z(w) - min Z) + this, where Zhat is the expectation of Z. Sridharan, Shalev-Shwartz
    and Srebro, *Fast rates for regularized objectives* (2008), have a bound of this shape; the
    constant is not theirs but that of the proof in maths.md 9. C is squared because C L is
    C-Lipschitz; the paper has C.
    """
    s = log(1 / failure)
    return 16 * C * C * (0.5 + sqrt(s) + s) / (rho * rows)


def dual_excess(
    rows: float, *, ah: float, dimension: int, C: float, rho: float, failure: float
) -> float:
    """4 C^2 d^2 ln^2(d/delta)/(rho B^2 ah^2): what the noise of Algorithm 2 adds to Z, at most
    (Lemma 8).

    With probability at least 1 - delta over e ~ exp(-(ah/2) ||e||), Z(argmin Z + (C/B) e.f) - min Z
    is at most that: half of it in fact, as Z(w) - min Z <= ||grad Z(w)||^2/(2 rho). The paper
    prints 16 d^2 ln^2(d/delta)/(rho B^2 alpha^2), which lacks C^2.
    """
    length = gamma_tail(dimension, 2 / ah, failure) / rows
    return C * C * length * length / rho


def noise_scale(rows: float, alpha: float, *, C: float, rho: float) -> float:
    """theta = 2C/(rho B alpha): ||e|| ~ Gamma(d, theta) for the noise of Algorithm 3, e ~
    exp(-||e||/theta).
    """
    return 2 * C / (rho * rows * alpha)


def neighbours_push(
    own: float, others: float, *, dimension: int, eta: float, degree: int, failure: float
) -> float:
    """eta d ln(2 d N/delta) sum_j (theta_p + theta_j): a bound on ||b||, b = eta sum_j (e_p - e_j),
    in the proof of Lemma 11.

    Every node has its own alpha and B, so its own scale. ||e_p|| + ||e_j|| is a sum of 2d
    exponentials, d of scale theta_p and d of theta_j; each stays below ln(2d/delta') times its
    scale but with probability delta'/(2d), and delta' = delta/N. With one alpha and one B this is
    the paper's 4 C eta N d/(rho B alpha), times ln(2 d N/delta).

    Parameters
    ----------
    own, others
        theta_p of the node, and the sum of theta_j over its neighbours (:func:`noise_scale`).
    dimension, eta, degree
        d, eta and N_p.
    failure
        delta.
    """
    pairs = degree * own + others  # sum_j (theta_p + theta_j)
    return eta * gamma_tail(2 * dimension, pairs / 2, failure / degree)


def neighbours_excess(
    own: float,
    others: float,
    *,
    dimension: int,
    rho: float,
    eta: float,
    degree: int,
    failure: float,
) -> float:
    """eta^2 d^2 ln^2(2 d N/delta) (sum_j (theta_p + theta_j))^2/rho: what noisy messages add to Z,
    at most (Lemma 11).

    With probability at least 1 - delta over all e, Z(argmin Z + b.f) - min Z is at most that, b as
    in :func:`neighbours_push`; lam's noise is left out. With one alpha and one B it is 16 C^2 eta^2
    N^2 d^2 ln^2(2 d N/delta)/(rho^3 B^2 alpha^2). The paper prints ln(d/delta).
    """
    push = neighbours_push(
        own, others, dimension=dimension, eta=eta, degree=degree, failure=failure
    )
    return push * push / rho


def own_excess(
    own: float,
    *,
    dimension: int,
    C: float,
    rho: float,
    c4: float,
    failure: float,
) -> float:
    """d^2 theta^2 (rho + c4 C) ln^2(d/delta): what noise on a minimiser costs, at most (Lemma
    12).

    theta is :func:`noise_scale`, so this is 4 C^2 d^2 (rho + c4 C) ln^2(d/delta)/(rho^2 B^2
    alpha^2). With probability at least 1 - delta over e, G(argmin G + e) - min G is at most that
    (half of it, in fact) for G = Z plus any linear term, where R'' <= 1 and L' is c4-Lipschitz;
    c4 = c1.
    """
    return gamma_tail(dimension, own, failure) ** 2 * (rho + c4 * C)
