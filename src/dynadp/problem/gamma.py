"""Public bounds gamma on the gradient norm that a solve has to reach (maths.md 6)."""

import numpy as np
from numpy.typing import NDArray

from dynadp._arrays import Numbers, PerNode
from dynadp.problem.rounding import margin_rounding, rounding, rounding_of
from dynadp.problem.terms import Terms

_FLOOR = 1e-10  # of C: below it gamma costs nothing, and rounding need not be weighed
_STEEP = 1e6  # C c1/Lam; past it, solves without inverses may take too many iterations

LARGEST_INVERSE = 512  # columns; past it, or past the next limit, the factor is a diagonal
# limits for inverses where diagonals need too many iterations: columns, and numbers in the largest
# node's rows, which are made dense for them
LAST_INVERSE, _LAST_ROWS = 4096, 1e8


def default_gamma(terms: Terms, q: Numbers | float = 0.0, reach: Numbers | float = 0.0) -> Numbers:
    """gamma_p = C_p (1e-10 + 16 k_{B_p + 8} + 4 c1 k_{m+2} r) + 4 k_10 (3 q + rho sup R'') r; of
    residuals k_{m+3} (r + 1) for k_{m+2} r.

    Only public numbers enter. It lies well above the rounding error
    (:func:`~dynadp.problem.certificate.rounding_error`) of any vector of norm up to r = ``reach`` +
    min(1e5, sqrt(2 C L(0)/rho)), where sqrt(2 C L(0)/rho) bounds ||argmin Z_p||. Longer vectors
    need a larger gamma. It is a target for solvers; private runs promise :func:`reachable_gamma`.

    Parameters
    ----------
    terms
        Counts, loss and constants.
    q
        The penalty 2 eta N_p, P x K.
    reach
        How much longer noise or the start may make vectors, P x K or a number.
    """
    C = terms.C[:, None]
    r = np.minimum(1e5, np.sqrt(2 * C * terms.loss.at_zero / terms.rho)) + np.asarray(reach)
    rows = _FLOOR + 16 * rounding(terms.counts + 8)[:, None] + 4 * _margins(terms, r)
    rest = 4 * rounding(10) * (3 * np.asarray(q) + terms.rho * terms.regularizer.smoothness) * r
    return (C * rows + rest).max(axis=1, keepdims=True)


def longest(terms: Terms, Lam: Numbers, b: Numbers) -> Numbers:
    """( ||b|| + min(C_p, sqrt(||b||^2 + 2 Lam C_p L(0))) )/Lam: no minimiser is longer, whatever
    the rows (maths.md 6).

    Parameters
    ----------
    terms
        C_p and the loss.
    Lam
        The local problem's strong convexity.
    b
        Bounds on the norm of its linear term.
    """
    C = terms.C[:, None]
    return (b + np.minimum(C, np.sqrt(b * b + 2 * Lam * C * terms.loss.at_zero))) / Lam


def _margins(terms: Terms, size: Numbers) -> Numbers:
    """c1 k_{m+2} r, the error of slopes by that of margins; c1 k_{m+3} (r + 1) of residuals."""
    loss = terms.loss
    return loss.c1 * margin_rounding(terms.dimension, loss.residual) * (size + loss.residual)


def reliable(terms: Terms, Lam: Numbers) -> NDArray[np.bool_]:
    """True where solves end within ``PATIENT`` iterations whatever the rows, by experiment: P x K.

    Newton's method does. With too many columns for its inverses, the quasi-Newton method takes
    about as many iterations as the root of the condition number C_p c1/Lam, which is therefore
    limited to 1e6.
    """
    d = terms.dimension
    newton = d <= LARGEST_INVERSE or (d <= LAST_INVERSE and few_rows(terms.counts, d))
    return terms.C[:, None] * terms.loss.c1 <= (np.inf if newton else _STEEP) * Lam


def reachable_gamma(terms: Terms, q: Numbers, size: Numbers, b_size: Numbers) -> Numbers:
    """gamma_p = 1e-10 C_p + 2.5 E: the certificate holds at the minimiser, rounded to float64
    (maths.md 6).

    Parameters
    ----------
    terms
        Counts, loss and constants.
    q
        All that is added to rho.
    size
        Bounds on the norm of minimisers (:func:`longest`).
    b_size
        Bounds on the sum of the norms of the vectors that make up b.
    """
    C, slope = terms.C[:, None], terms.regularizer.smoothness * size
    rows = C * (_margins(terms, size) + rounding(terms.counts + 8)[:, None])
    error = rows + rounding_of(10) * (q * size + terms.rho * slope + b_size)
    return _FLOOR * C + 2.5 * error


def few_rows(counts: PerNode, dimension: int) -> bool:
    """True if the largest node's rows may be made dense."""
    return bool(counts.max() * dimension <= _LAST_ROWS)
