"""Bounds on the gradient of the local problem that hold for the exact one (maths.md 6)."""

from dynadp._arrays import Numbers, Vectors, norm
from dynadp.problem.objective import Problem
from dynadp.problem.rounding import rounding_of


def rounding_error(problem: Problem, F: Vectors, q: Numbers, b_size: Numbers) -> Numbers:
    """E, a bound on the error of the computed gradient at F (maths.md 6).

    E = C_p (c1 k_{m+2} ||F|| + k_{B+8}) + k_10 (q ||F|| + rho ||grad R(F)|| + ``b_size``), m the
    roundings of a margin (:func:`~dynadp._arrays.dot_roundings`), for float64, L' and grad R within
    a few units in the last place and rows summed in any order; ``b_size`` is the sum of the norms
    of the vectors that make up b. For residuals c1 k_{m+3} (||F|| + 1) stands in place of
    c1 k_{m+2} ||F||.
    """
    size, slope = norm(F), problem.regularizer.gradient(F)
    rest = q * size + problem.rho * (size if slope is F else norm(slope)) + b_size
    return problem.roundings.margins * size + problem.roundings.sums + rounding_of(10) * rest


def certificate(problem: Problem, gradient: Vectors, error: Numbers) -> Numbers:
    """||computed gradient|| (1 + k_{d+2}) + E, an upper bound on the norm of the exact gradient
    (maths.md 6).
    """
    return norm(gradient) * (1 + rounding_of(problem.dimension + 2)) + error
