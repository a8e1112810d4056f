"""How many rows a node needs: the paper's Theorems 3 to 6 and Corollaries 4.1, 6.1, 6.2 (maths.md
9).

Each theorem says: with B_p rows, node p's classifier has expected loss at most C0 + alpha_acc, but
with a small probability, where C0 is that of any reference f0. It is offered as printed, up to the
paper's unknown beta, and as the inequality behind it

    rho ||f0||^2/2 + Phi ||f0||^2/2 + sampling(B) + noise(B) <= alpha_acc,
    rho = alpha_acc/||f0||^2,

with explicit, corrected constants (docs/errata.md). Nodes may have different alpha and B: the
paper's Assumption 5 is not needed. The bounds are for the worst distribution, and large; they show
how rows, alpha and accuracy trade, not what a run will reach. Theorems 5 and 6 bound a surrogate
that leaves out the noise in lam.
"""

from dataclasses import replace
from math import inf, log, log1p

from dynadp.research.lemmas import (
    dual_excess,
    gamma_tail,
    neighbours_excess,
    neighbours_push,
    own_excess,
    sampling_excess,
)
from dynadp.research.row_bounds import Terms, Theorem
from dynadp.research.theorem_inputs import TheoremInputs


def _numbers(problem: TheoremInputs) -> tuple[int, float, float, float, int]:
    """d, alpha, c1, eta, N_p; 0 where a theorem does not need it."""
    given = problem.dimension, problem.least, problem.c1, problem.eta, problem.degree
    d, alpha, c1, eta, N = (value or 0 for value in given)
    return int(d), alpha, c1, eta, int(N)


def _sampled(p: TheoremInputs, accuracy: float, failure: float) -> Terms:
    """C ||f0||^2 ln(1/delta)/alpha_acc^2, in every printed theorem."""
    return {"sampling": p.C * p.norm**2 * log(1 / failure) / accuracy**2}


def _sampling(p: TheoremInputs, rows: float, rho: float, failure: float) -> Terms:
    return {"sampling": sampling_excess(rows, C=p.C, rho=rho, failure=failure)}


def _printed4(p: TheoremInputs, accuracy: float, failure: float) -> Terms:
    d, alpha, c1, _, _ = _numbers(p)
    return {
        "noise": p.norm * d * log(d / failure) / (accuracy * alpha),
        "determinant": p.C * c1 * p.norm**2 / (accuracy * alpha),
        **_sampled(p, accuracy, failure),
    }


def _excess4(p: TheoremInputs, rows: float, rho: float, failure: float) -> Terms:
    """2 x Lemma 8 with ah = alpha, what abar adds to that, and sampling; rho + Phi is the strong
    convexity.
    """
    d, alpha, c1, eta, N = _numbers(p)
    ridge = rho + p.Phi
    ah = alpha - log1p(c1 * p.C / (rows * (ridge + 2 * eta * N)))

    def noise(ah: float) -> float:
        return (
            2 * dual_excess(rows, ah=ah, dimension=d, C=p.C, rho=ridge, failure=failure / p.rounds)
            if ah > 0
            else inf
        )

    plain, full = noise(alpha), noise(ah)
    return {
        "noise": plain,
        "determinant": full - plain if full < inf else inf,
        **_sampling(p, rows, ridge, failure),
    }


def _printed5(p: TheoremInputs, accuracy: float, failure: float) -> Terms:
    d, alpha, _, eta, N = _numbers(p)
    return {
        "neighbours": p.C * p.norm**3 * eta * N * d * log(d / failure) / (accuracy**2 * alpha),
        **_sampled(p, accuracy, failure),
    }


def _excess5(p: TheoremInputs, rows: float, rho: float, failure: float) -> Terms:
    """2 x Lemma 11, and sampling."""
    d, _, _, eta, N = _numbers(p)
    excess = neighbours_excess(
        *p.scales(rows, rho), dimension=d, rho=rho, eta=eta, degree=N, failure=failure / p.rounds
    )
    return {"neighbours": 2 * excess, **_sampling(p, rows, rho, failure)}


def _printed6(p: TheoremInputs, accuracy: float, failure: float) -> Terms:
    d, alpha, _, eta, N = _numbers(p)
    tail = log(d / failure)
    return {
        **_printed5(p, accuracy, failure),
        # the paper's C^B, which is not defined, read as C^R
        "own": 4 * p.C * p.norm * d * tail**2 / (accuracy * alpha),
        "neighbours without C": 4 * p.norm**3 * eta * N * d * tail / (accuracy**2 * alpha),
        "own curvature": 4 * p.C**1.5 * p.norm**2 * d * tail / (accuracy**1.5 * alpha),
    }


def _excess6(p: TheoremInputs, rows: float, rho: float, failure: float) -> Terms:
    """2 x (Lemma 11 + Lemma 12 + ||b|| ||e||), and sampling: Z(V) - Z(f) = G(V) - G(f) - b.e for G
    = Z + b.f.
    """
    d, _, c4, eta, N = _numbers(p)
    noise, (theta, others) = failure / p.rounds, p.scales(rows, rho)
    push = neighbours_push(theta, others, dimension=d, eta=eta, degree=N, failure=noise)
    own = own_excess(theta, dimension=d, C=p.C, rho=rho, c4=c4, failure=noise)
    crossed = push * gamma_tail(d, theta, noise)
    return {**_excess5(p, rows, rho, failure), "own": 2 * own, "crossed": 2 * crossed}


_DUAL = ("dimension", "alpha", "c1", "Phi")
_PRIMAL = ("dimension", "alpha", "eta", "degree")
THEOREM_3 = Theorem(
    "Theorem 3",
    1,
    "C(f_p(t)) <= C0 + accuracy + Delta_non(t), Algorithm 1",
    (),
    _sampled,
    _sampling,
)
THEOREM_4 = Theorem(
    "Theorem 4",
    2,
    "C(f*_p(t)) <= C0 + accuracy, Algorithm 2, noise frozen at t",
    _DUAL,
    _printed4,
    _excess4,
)
COROLLARY_4_1 = replace(
    THEOREM_4,
    name="Corollary 4.1",
    statement="C(f_p(t)) <= C0 + accuracy + Delta_dual(t), Algorithm 2",
)
THEOREM_5 = Theorem(
    "Theorem 5",
    2,
    "C(f*_p(t)) <= C0 + accuracy, Algorithm 3, noise frozen at t",
    _PRIMAL,
    _printed5,
    _excess5,
    surrogate=True,
)
THEOREM_6 = Theorem(
    "Theorem 6",
    3,
    "C(V*_p(t)) <= C0 + accuracy, Algorithm 3, noise frozen at t",
    (*_PRIMAL, "c1"),
    _printed6,
    _excess6,
    surrogate=True,
)
COROLLARY_6_1 = replace(
    THEOREM_6,
    name="Corollary 6.1",
    statement="C(V_p(t)) <= C0 + accuracy + Delta_primV(t), Algorithm 3",
)
COROLLARY_6_2 = replace(
    THEOREM_6,
    name="Corollary 6.2",
    events=5,
    statement="C(f*_p) <= C0 + accuracy + Delta_dual(t), Algorithm 3 with a final release by "
    "Algorithm 2",
    parts=(THEOREM_4, THEOREM_6),
)
THEOREMS = {
    "3": THEOREM_3,
    "4": THEOREM_4,
    "4.1": COROLLARY_4_1,
    "5": THEOREM_5,
    "6": THEOREM_6,
    "6.1": COROLLARY_6_1,
    "6.2": COROLLARY_6_2,
}
