"""The centralised problem, written again from the formulas and solved by SciPy, to compare with.

Nothing here comes from dynadp but the rows: losses and regularisers are spelled out once more.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import issparse


def softplus(u):
    return np.logaddexp(0.0, u)


def sigmoid(u):
    return np.exp(-np.logaddexp(0.0, -u))


def losses(name, **parameters):
    """(L, L', L'') by name."""
    h, m = parameters.get("width", 1.0), parameters.get("margin", 0.0)
    if name in ("logistic", "smoothed_hinge"):
        return (
            lambda z: h * softplus((m - z) / h),
            lambda z: -sigmoid((m - z) / h),
            lambda z: sigmoid((m - z) / h) * sigmoid((z - m) / h) / h,
        )
    if name == "pseudo_huber":
        return (
            lambda r: h * (np.sqrt(1 + (r / h) ** 2) - 1),
            lambda r: (r / h) / np.sqrt(1 + (r / h) ** 2),
            lambda r: (1 + (r / h) ** 2) ** -1.5 / h,
        )
    if name == "logistic_cosh":
        return (
            lambda r: h * (np.logaddexp(r / h, -r / h) - np.log(type(h)(2))),
            lambda r: np.tanh(r / h),
            lambda r: np.exp(-2 * (np.logaddexp(r / h, -r / h) - np.log(type(h)(2)))) / h,
        )
    if name == "huber":
        return (
            lambda r: np.where(np.abs(r) <= h, r**2 / (2 * h), np.abs(r) - h / 2),
            lambda r: np.where(np.abs(r) <= h, r / h, np.sign(r)),
            lambda r: np.where(np.abs(r) <= h, 1 / h, 0 * r),
        )
    assert name == "huber_hinge"
    return (
        lambda z: np.piecewise(
            z,
            [m - z > h, np.abs(m - z) <= h],
            [lambda t: m - t, lambda t: (m + h - t) ** 2 / (4 * h), 0.0],
        ),
        lambda z: np.piecewise(
            z, [m - z > h, np.abs(m - z) <= h], [-1.0, lambda t: -(m + h - t) / (2 * h), 0.0]
        ),
        lambda z: np.where(np.abs(m - z) <= h, 1 / (2 * h), 0.0),
    )


def regularizers(name, **parameters):
    """(R, grad, diagonal of the Hessian) by name."""
    if name == "squared_l2":
        return lambda f: f @ f / 2, lambda f: f, np.ones_like
    k, s = parameters["l1"], parameters["scale"]
    return (
        lambda f: f @ f / 2 + k * np.sum(np.sqrt(f**2 + s**2) - s),
        lambda f: f + k * f / np.sqrt(f**2 + s**2),
        lambda f: 1 + k * s**2 / (f**2 + s**2) ** 1.5,
    )


def dense_rows(shard):
    """y_i x_i as a dense array."""
    return shard.signed.toarray() if issparse(shard.signed) else np.asarray(shard.signed)


def centralised_optimum(shards, loss, regularizer, C, rho, weights="rows"):
    """argmin_f sum_p [ w_p sum_i L(y_i f.x_i) + rho R(f) ], or L(f.x_i - t_i), with the distance to
    it proven below 1e-8.

    w_p is C over the mean number of rows, or, with weights = "equal", C over the node's own.
    """
    A = np.concatenate([dense_rows(s) for s in shards])
    t = np.concatenate([s.y for s in shards]) if loss.residual else 0.0
    mean = len(A) / len(shards)
    weight = np.concatenate(
        [np.full(s.rows, C / (mean if weights == "rows" else s.rows)) for s in shards]
    )
    L, dL, ddL = losses(**{k: v for k, v in loss.describe().items() if k != "c1"})
    R, dR, ddR = regularizers(**regularizer.describe())
    P = len(shards)

    def value(f):
        return weight @ L(A @ f - t) + P * rho * R(f)

    def gradient(f):
        return A.T @ (weight * dL(A @ f - t)) + P * rho * dR(f)

    def hessian(f):
        return (A.T * (weight * ddL(A @ f - t))) @ A + P * rho * np.diag(ddR(f))

    f = minimize(
        value,
        np.zeros(A.shape[1]),
        jac=gradient,
        method="L-BFGS-B",
        options={"gtol": 1e-10, "maxiter": 5000},
    ).x
    for _ in range(50):  # Newton from there
        step = np.linalg.solve(hessian(f), gradient(f))
        f = f - step
        if np.linalg.norm(step) <= 1e-14 * (1 + np.linalg.norm(f)):
            break
    distance = np.linalg.norm(gradient(f)) / (P * rho)  # strong convexity
    assert distance <= 1e-8 * max(1, np.linalg.norm(f)), distance
    return f
