"""How many rows a theorem asks for, and back from rows to accuracy or alpha (maths.md 9)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import floor, inf, sqrt
from typing import Any, Literal

from dynadp.errors import DeclarationError
from dynadp.research.theorem_inputs import (
    MOST_ROWS,
    TheoremInputs,
    require_positive,
    require_whole,
)

_CLOSE = 1e-9  # relative width at which the real-valued inverses stop, always on the safe side

Terms = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RowBound:
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
    ) -> RowBound:
        """B_p > beta max(terms), as the paper prints it; its beta is not known.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range, or if neighbours have numbers of their own.
        """
        self._check(problem, failure)
        require_positive("accuracy", accuracy)
        require_positive("beta", beta)
        if problem.neighbours:
            raise DeclarationError(
                "the printed form gives all nodes one alpha and as many rows; leave out neighbours"
            )
        printed = self._gather(lambda one: one.expression(problem, accuracy, failure))
        terms = {name: beta * rows for name, rows in printed.items()}
        rows = floor(max(terms.values())) + 1
        return self._bound("printed", rows, terms, problem, accuracy, failure)

    def solved(self, problem: TheoremInputs, accuracy: float, failure: float) -> RowBound:
        """The fewest rows for which rho ||f0||^2/2 + Phi ||f0||^2/2 + all terms <= alpha_acc, with
        explicit constants.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range, or no number of rows is enough.
        """
        self._check(problem, failure)
        require_positive("accuracy", accuracy)
        if _room(problem, accuracy) <= 0:
            raise DeclarationError(
                f"Phi ||f0||^2 is {problem.Phi * problem.norm * problem.norm:g}, accuracy "
                f"{accuracy:g}: no number of rows is enough; lower Phi or ask for less accuracy"
            )

        def holds(rows: float) -> bool:
            return self._holds(problem, rows, accuracy, failure)

        if problem.neighbours and not holds(MOST_ROWS):
            raise DeclarationError(
                f"the neighbours' noise alone costs more than accuracy {accuracy:g} leaves: no "
                f"number of rows at the node is enough; give neighbours more rows or alpha, or ask "
                f"for less accuracy"
            )
        terms = self._gather(lambda one: one._rows_alone(problem, accuracy, failure))
        return self._bound("solved", _fewest(holds), terms, problem, accuracy, failure)

    def accuracy(self, problem: TheoremInputs, rows: int, failure: float) -> float:
        """The smallest alpha_acc that these rows guarantee, by the solved form; rho is
        alpha_acc/||f0||^2 then.

        Raises
        ------
        DeclarationError
            If a number is missing or out of range.
        """
        self._check(problem, failure)
        require_whole("rows", rows)
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
        require_whole("rows", rows)
        require_positive("accuracy", accuracy)
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
        room = _room(problem, accuracy)
        return all(
            sum(one._terms(problem, rows, accuracy, failure).values()) <= room
            for one in self.parts or (self,)
        )

    def _terms(self, problem: TheoremInputs, rows: float, accuracy: float, failure: float) -> Terms:
        return self.excess(problem, float(rows), accuracy / (problem.norm * problem.norm), failure)

    def _rows_alone(self, problem: TheoremInputs, accuracy: float, failure: float) -> Terms:
        """The rows that each term would need if there were no other."""
        room = _room(problem, accuracy)

        def fewest(name: str) -> int:
            return _fewest(lambda B: self._terms(problem, B, accuracy, failure)[name] <= room)

        names = self._terms(problem, MOST_ROWS, accuracy, failure)
        return {name: float(fewest(name)) for name in names}

    def _gather(self, terms: "Callable[[Theorem], Terms]") -> Terms:
        """The terms of the theorem, or those of its parts, named by part."""
        if not self.parts:
            return terms(self)
        return {
            f"{part.name}, {name}": rows
            for part in self.parts
            for name, rows in terms(part).items()
        }

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
    ) -> RowBound:
        return RowBound(
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


def _room(problem: TheoremInputs, accuracy: float) -> float:
    """What rho and Phi leave of alpha_acc: alpha_acc/2 - Phi ||f0||^2/2."""
    return (accuracy - problem.Phi * problem.norm * problem.norm) / 2


def _fewest(enough: Callable[[int], bool]) -> int:
    """The smallest whole number for which a monotone condition holds."""
    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_ROWS:
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
