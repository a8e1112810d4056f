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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor, inf, isfinite, log, log1p, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.research.lemmas import (
    dual_excess,
    gamma_tail,
    neighbours_excess,
    neighbours_push,
    noise_scale,
    own_excess,
    sampling_excess,
)

_LIMIT = 2**300  # no search goes further
_CLOSE = 1e-9  # relative width at which the real-valued inverses stop, always on the safe side

Terms = dict[str, float]


@dataclass(frozen=True)
class Neighbour:
    """The public numbers of one neighbour of the node.

    Attributes
    ----------
    alpha
        alpha_j(n), or a schedule; its smallest value counts.
    rows
        B_j; None: as many as the node itself.
    """

    alpha: ArrayLike
    rows: float | None = None

    def __post_init__(self) -> None:
        _smallest_alpha(self.alpha)
        if self.rows is not None:
            _whole("rows of a neighbour", self.rows)


@dataclass(frozen=True, kw_only=True)
class TheoremInputs:
    """The numbers that a theorem is about; all public.

    Attributes
    ----------
    norm
        ||f0||, of the reference classifier; the largest where it moves.
    C
        The paper's C^R.
    dimension
        d, with the intercept.
    alpha
        alpha_p(n), or a schedule; its smallest value counts. For Algorithm 2 without the solver's
        share (maths.md 6).
    c1
        sup L'', which is Theorem 6's c4.
    eta, degree
        Penalty and N_p. Theorem 4 may leave them out, as its proof does.
    neighbours
        alpha and B of each neighbour, where they differ from the node's; N_p then follows. Empty:
        all have those of the node, as the paper assumes. Theorems 5 and 6 only: noise of others
        does not enter 3 and 4.
    Phi
        Of Algorithm 2; Theorem 4 only. The paper assumes 0.
    rounds
        The noise of this many rounds must behave at once; the paper speaks of one. Solved forms
        only.
    """

    norm: float
    C: float = 1.0
    dimension: int | None = None
    alpha: ArrayLike | None = None
    c1: float | None = None
    eta: float | None = None
    degree: int | None = None
    neighbours: Sequence[Neighbour] = ()
    Phi: float = 0.0
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.neighbours:
            if self.degree not in (None, len(self.neighbours)):
                raise DeclarationError(
                    f"degree is {self.degree!r}, and {len(self.neighbours)} neighbours are given; "
                    f"leave out degree"
                )
            object.__setattr__(self, "degree", len(self.neighbours))
        for name in ("norm", "C", "c1", "eta"):
            value = getattr(self, name)
            if value is not None:
                _positive(name, value)
        for name in ("dimension", "degree", "rounds"):
            value = getattr(self, name)
            if value is not None:
                _whole(name, value)
        if not (isfinite(self.Phi) and self.Phi >= 0):
            raise DeclarationError(f"Phi is {self.Phi!r}; expected a finite number, 0 or above")
        if self.alpha is not None:
            _smallest_alpha(self.alpha)

    @classmethod
    def of_network(
        cls, topology: Topology, alphas: Sequence[ArrayLike], rows: Sequence[float], **shared: Any
    ) -> "dict[str, TheoremInputs]":
        """The inputs of every node of a network.

        Parameters
        ----------
        topology
            The network; every node needs a neighbour.
        alphas, rows
            alpha_p (a number or a schedule) and B_p of each node, in the topology's order.
        shared
            The fields that all nodes share.
        """
        each = [Neighbour(alpha, B) for alpha, B in zip(alphas, rows, strict=True)]
        return {
            name: cls(
                alpha=alphas[p],
                neighbours=[each[j] for j in np.flatnonzero(topology.adjacency[[p]].toarray()[0])],
                **shared,
            )
            for p, name in enumerate(topology.nodes)
        }

    @property
    def least(self) -> float:
        """The smallest alpha of the schedule; infinity where there is none."""
        return inf if self.alpha is None else _smallest_alpha(self.alpha)

    def scales(self, rows: float, rho: float) -> tuple[float, float]:
        """theta_p of the node with this many rows, and the sum of theta_j over its neighbours."""
        own = noise_scale(rows, self.least, C=self.C, rho=rho)
        if not self.neighbours:
            return own, (self.degree or 0) * own
        each = (
            noise_scale(j.rows or rows, _smallest_alpha(j.alpha), C=self.C, rho=rho)
            for j in self.neighbours
        )
        return own, sum(each)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A number of rows and its reasons.

    Attributes
    ----------
    theorem, form
        Which statement, and whether ``printed`` or ``solved``.
    rows
        B_p: the fewest that satisfy it.
    binding
        The term that alone would need the most rows.
    terms
        Rows that each term would need alone.
    rho
        alpha_acc/||f0||^2, which the theorem presupposes.
    accuracy, failure
        alpha_acc, and the probability with which the statement may fail.
    statement
        What then holds.
    surrogate
        True where the noise in lam is left out.
    """

    theorem: str
    form: Literal["printed", "solved"]
    rows: int
    binding: str
    terms: Mapping[str, float]
    rho: float
    accuracy: float
    failure: float
    statement: str
    surrogate: bool

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class Theorem:
    """One of the paper's bounds.

    Attributes
    ----------
    name, statement
        The number in the paper, and the inequality that holds.
    events
        How many events may fail, each with probability delta.
    needs
        The inputs that must be given.
    expression
        The printed terms, in rows.
    excess
        The terms of the inequality at B rows and this rho.
    surrogate
        Whether the noise in lam is left out.
    parts
        Theorems that must all hold, instead of terms of its own.
    """

    name: str
    events: int
    statement: str
    needs: tuple[str, ...]
    expression: Callable[[TheoremInputs, float, float], Terms]
    excess: Callable[[TheoremInputs, float, float, float], Terms]
    surrogate: bool = False
    parts: tuple["Theorem", ...] = ()

    def printed(
        self, problem: TheoremInputs, accuracy: float, failure: float, beta: float = 1.0
    ) -> Bound:
        """B_p > beta max(terms), as the paper prints it; its beta is not known.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range, or if neighbours have numbers of their own.
        """
        self._check(problem, failure)
        _positive("beta", beta)
        if problem.neighbours:
            raise DeclarationError(
                "the printed form gives all nodes one alpha and as many rows; leave out neighbours"
            )
        if self.parts:
            terms = _union([part.printed(problem, accuracy, failure, beta) for part in self.parts])
        else:
            terms = self.expression(problem, _positive("accuracy", accuracy), failure)
            terms = {name: beta * rows for name, rows in terms.items()}
        rows = floor(max(terms.values())) + 1
        return self._bound("printed", rows, terms, problem, accuracy, failure)

    def solved(self, problem: TheoremInputs, accuracy: float, failure: float) -> Bound:
        """The fewest rows for which rho ||f0||^2/2 + Phi ||f0||^2/2 + all terms <= alpha_acc, with
        explicit constants.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range, or no number of rows is enough.
        """
        self._check(problem, failure)
        _positive("accuracy", accuracy)
        if self.parts:
            each = [part.solved(problem, accuracy, failure) for part in self.parts]
            rows = max(bound.rows for bound in each)
            return self._bound("solved", rows, _union(each), problem, accuracy, failure)
        room = _room(problem, accuracy)
        if room <= 0:
            raise DeclarationError(
                f"Phi ||f0||^2 is {problem.Phi * problem.norm * problem.norm:g}, accuracy "
                f"{accuracy:g}: no number of rows is enough; lower Phi or ask for less accuracy"
            )
        if problem.neighbours and not self._holds(problem, _LIMIT, accuracy, failure):
            raise DeclarationError(
                f"the neighbours' noise alone costs more than accuracy {accuracy:g} leaves: no "
                f"number of rows at the node is enough; give neighbours more rows or alpha, or ask "
                f"for less accuracy"
            )

        def fewest(name: str) -> int:
            """Rows that this term alone needs."""
            return _fewest(lambda B: self._terms(problem, B, accuracy, failure)[name] <= room)

        terms = {
            name: float(fewest(name)) for name in self._terms(problem, _LIMIT, accuracy, failure)
        }
        rows = _fewest(lambda rows: self._holds(problem, rows, accuracy, failure))
        return self._bound("solved", rows, terms, problem, accuracy, failure)

    def accuracy(self, problem: TheoremInputs, rows: int, failure: float) -> float:
        """The smallest alpha_acc that these rows guarantee, by the solved form; rho is
        alpha_acc/||f0||^2 then.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range.
        """
        self._check(problem, failure)
        _whole("rows", rows)
        return _smallest("accuracy", lambda accuracy: self._holds(problem, rows, accuracy, failure))

    def alpha(self, problem: TheoremInputs, rows: int, accuracy: float, failure: float) -> float:
        """The smallest alpha of the node with which these rows guarantee this accuracy, by the
        solved form; the problem's own alpha is not used, and neighbours keep theirs.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range, if the theorem has no alpha, or if even without
            noise the rows are too few.
        """
        if "alpha" not in self.needs:
            raise DeclarationError(f"{self.name} is about runs without noise; it has no alpha")
        free = replace(problem, alpha=inf)
        self._check(free, failure)
        _whole("rows", rows)
        _positive("accuracy", accuracy)
        if not self._holds(free, rows, accuracy, failure):
            raise DeclarationError(
                f"no alpha gives accuracy {accuracy:g} with {rows} rows: without any noise "
                f"{self.name} asks for "
                f"{self.solved(free, accuracy, failure).rows}; use more rows or ask for less "
                f"accuracy"
            )
        return _smallest(
            "alpha",
            lambda alpha: self._holds(replace(problem, alpha=alpha), rows, accuracy, failure),
        )

    def _holds(self, problem: TheoremInputs, rows: float, accuracy: float, failure: float) -> bool:
        if self.parts:
            return all(part._holds(problem, rows, accuracy, failure) for part in self.parts)
        return sum(self._terms(problem, rows, accuracy, failure).values()) <= _room(
            problem, accuracy
        )

    def _terms(self, problem: TheoremInputs, rows: float, accuracy: float, failure: float) -> Terms:
        return self.excess(problem, float(rows), accuracy / (problem.norm * problem.norm), failure)

    def _check(self, problem: TheoremInputs, failure: float) -> None:
        missing = [name for name in self.needs if getattr(problem, name) is None]
        if missing:
            raise DeclarationError(
                f"{self.name} needs {', '.join(missing)} of the problem; give it a value"
            )
        if not 0 < failure < 1 / self.events:
            raise DeclarationError(
                f"failure is {failure!r}; {self.name} may fail with {self.events} times that "
                f"probability: expected a number "
                f"above 0 and below 1/{self.events}"
            )
        if problem.Phi and "Phi" not in self.needs:
            raise DeclarationError(
                f"Phi is {problem.Phi:g}; it belongs to Algorithm 2, and {self.name} is not about "
                f"it"
            )

    def _bound(
        self,
        form: Literal["printed", "solved"],
        rows: int,
        terms: Terms,
        problem: TheoremInputs,
        accuracy: float,
        failure: float,
    ) -> Bound:
        return Bound(
            theorem=self.name,
            form=form,
            rows=rows,
            binding=max(terms, key=lambda name: terms[name]),
            terms=terms,
            rho=accuracy / (problem.norm * problem.norm),
            accuracy=accuracy,
            failure=self.events * failure,
            statement=self.statement,
            surrogate=self.surrogate,
        )


def _union(bounds: Sequence[Bound]) -> Terms:
    """The terms of several theorems, by theorem and name."""
    return {
        f"{bound.theorem}, {name}": rows for bound in bounds for name, rows in bound.terms.items()
    }


def _room(problem: TheoremInputs, accuracy: float) -> float:
    """What rho and Phi leave of alpha_acc: alpha_acc/2 - Phi ||f0||^2/2."""
    return (accuracy - problem.Phi * problem.norm * problem.norm) / 2


def _fewest(enough: Callable[[int], bool]) -> int:
    """The smallest whole number for which a monotone condition holds."""
    high = 1
    while not enough(high):
        high *= 2
        if high > _LIMIT:
            raise DeclarationError(
                "more rows would be needed than can be counted; ask for less accuracy, or give "
                "more alpha"
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _smallest(name: str, enough: Callable[[float], bool]) -> float:
    """The smallest number above 0 for which a monotone condition holds, from above, to a billionth
    of itself.
    """
    low = high = 1.0
    while not enough(high):
        low, high = high, high * 2
        if high > 1e100:
            raise DeclarationError(f"no finite {name} is enough; use more rows")
    while enough(low):
        low, high = low / 2, low
        if low < 1e-100:
            raise DeclarationError(f"any {name} is enough: nothing in the bound depends on it")
    while high > low * (1 + _CLOSE):
        middle = sqrt(low) * sqrt(high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not 1e-30 <= value <= 1e30:
        raise DeclarationError(f"{name} is {value!r}; expected a number from 1e-30 to 1e30")
    return value


def _whole(name: str, value: float) -> None:
    if isinstance(value, bool) or not 1 <= value <= _LIMIT or value != int(value):
        raise DeclarationError(f"{name} is {value!r}; expected a whole number from 1")


def _smallest_alpha(alpha: ArrayLike) -> float:
    values = np.asarray(alpha, dtype=float)
    if values.size == 0 or not (values >= 1e-100).all():  # infinity stands for no noise
        raise DeclarationError("alpha must be a number from 1e-100, or a schedule of such numbers")
    return float(values.min())


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


THEOREM_3 = Theorem(
    "Theorem 3",
    1,
    "C(f_p(t)) <= C0 + accuracy + Delta_non(t), Algorithm 1",
    (),
    _sampled,
    _sampling,
)
_DUAL = ("dimension", "alpha", "c1", "Phi")
_PRIMAL = ("dimension", "alpha", "eta", "degree")
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
    True,
)
THEOREM_6 = Theorem(
    "Theorem 6",
    3,
    "C(V*_p(t)) <= C0 + accuracy, Algorithm 3, noise frozen at t",
    (*_PRIMAL, "c1"),
    _printed6,
    _excess6,
    True,
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
    theorem.name.split()[1]: theorem
    for theorem in (
        THEOREM_3,
        THEOREM_4,
        COROLLARY_4_1,
        THEOREM_5,
        THEOREM_6,
        COROLLARY_6_1,
        COROLLARY_6_2,
    )
}
