"""L_acc(alpha) = c4 exp(-c5 alpha) + c6, fitted to measured losses (the paper's section 5; maths.md
10).

Losses that enter a fit must be public: of published or made rows, or charged for.
"""

from math import exp, inf, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.planning import AccuracyLoss


def fit_loss(alphas: ArrayLike, losses: ArrayLike, sigma: ArrayLike | None = None) -> AccuracyLoss:
    """argmin over c of sum ((c4 exp(-c5 alpha) + c6 - loss)/sigma)^2, with standard errors
    sqrt(diag s^2 (J'J)^-1).

    For a given c5 the other two are a linear least squares, so one search over c5 alone, on a grid
    and then between its points, finds the global minimum. s^2 = residuals/(n - 3).

    Parameters
    ----------
    alphas, losses
        At least four points, at four different alphas.
    sigma
        How uncertain each loss is, up to a common factor; all alike by default.
    """
    a, y = np.asarray(alphas, dtype=float), np.asarray(losses, dtype=float)
    s = np.ones_like(a) if sigma is None else np.asarray(sigma, dtype=float)
    good = a.ndim == 1 and a.shape == y.shape == s.shape and len(np.unique(a)) >= 4
    if not (good and np.isfinite([a, y, s]).all() and (a > 0).all() and (s > 0).all()):
        raise DeclarationError(
            f"{a.size} alphas and {y.size} losses; expected one finite loss for each of at least "
            f"four different alphas above "
            "0, and sigma above 0"
        )

    least, ones = a.min(), np.ones_like(a)
    shifted = a - least

    def linear(rate: float) -> tuple[Array, float]:
        X = np.column_stack([np.exp(-rate * shifted), ones]) / s[:, None]
        constants = np.linalg.lstsq(X, y / s, rcond=None)[0]
        return constants, float(np.sum((X @ constants - y / s) ** 2))

    grid = np.geomspace(0.01 / np.ptp(a), 50 / np.diff(np.unique(a)).min(), 400)
    i = int(np.argmin([linear(rate)[1] for rate in grid]))
    around = np.log(grid[max(i - 1, 0)]), np.log(grid[min(i + 1, len(grid) - 1)])
    between = minimize_scalar(
        lambda t: linear(exp(t))[1], bounds=around, method="bounded", options={"xatol": 1e-12}
    )
    c5 = float(np.exp(between.x))
    (top, c6), left = linear(c5)
    up = exp(min(c5 * least, 700.0))  # c4 = top e^(c5 min alpha)
    e = np.exp(-c5 * shifted)
    J = np.column_stack([e, -top * shifted * e, ones]) / s[:, None]
    errors = (inf, inf, inf)
    if 0 < i < len(grid) - 1 and np.linalg.matrix_rank(J) == 3:
        cov = left / max(len(a) - 3, 1) * np.linalg.inv(J.T @ J)
        v = np.array([up, top * up * least, 0.0])
        errors = (sqrt(v @ cov @ v), sqrt(cov[1, 1]), sqrt(cov[2, 2]))
    spread = float(np.sum(((y - np.average(y, weights=s**-2)) / s) ** 2))
    r2 = 1 - left / spread if spread else 1.0
    return AccuracyLoss(float(top) * up, c5, float(c6), errors, r2)
