"""Two neighbouring data sets of a node and the messages that an adversary sends it: the worst known
ones, and random ones.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp._arrays import Array
from dynadp.errors import DeclarationError
from dynadp.problem import EVEN, ClassWeights, HuberHinge, Logistic, Loss, Regularizer, SquaredL2


@dataclass(frozen=True)
class Case:
    """Two neighbouring data sets of one node, and the adversary's messages to it.

    Attributes
    ----------
    name
        In words.
    rows, other
        The signed rows y_i x_i of D and of D', B x d each; they differ in the rows of one person.
    loss, regularizer
        L and R.
    heard
        The sum of the neighbours' messages, the same in every round: d numbers of the adversary's
        choice.
    C, rho, eta, degree
        The node's public numbers.
    rows_per_person
        m: in how many rows the data sets may differ, and for how many the claim is.
    adjacency
        ``replace``, or ``add-remove``: then one of the data sets has null rows in place of hers.
    class_weights
        ``(w_-, w_+)``, at most 1. The label of a row is that of its first entry's sign.
    answers, others
        Where rows are x_i: of D's rows and of D''s the number of each row's class, or the target in
        [-1, 1] for a loss of residuals.
    classes
        How many there are.
    """

    name: str
    rows: Array = field(repr=False)
    other: Array = field(repr=False)
    loss: Loss
    heard: Array = field(repr=False)
    C: float = 1.0
    rho: float = 1.0
    eta: float = 1.0
    degree: int = 2
    regularizer: Regularizer = field(default_factory=SquaredL2)
    rows_per_person: int = 1
    adjacency: str = "replace"
    class_weights: ClassWeights = EVEN
    answers: Array | None = field(default=None, repr=False)
    others: Array | None = field(default=None, repr=False)
    classes: int = 2

    def __post_init__(self) -> None:
        _require.whole("rows_per_person", self.rows_per_person)
        if self.loss.residual:
            for targets in (self.answers, self.others):
                if targets is None or targets.shape != self.rows.shape[:1]:
                    raise DeclarationError(
                        f"loss {self.loss.name!r} needs a target for each row of both data sets "
                        "(answers, others)"
                    )
                if not (np.abs(targets) <= 1).all():
                    raise DeclarationError("targets: expected one for each row, in [-1, 1]")
        shape, other, heard = self.rows.shape, self.other.shape, self.heard.shape
        if len(shape) != 2 or shape != other or heard != (self.vectors * shape[1],):
            raise DeclarationError(
                f"rows have shapes {shape} and {other}, heard has {heard}; expected B x d, B x d "
                f"and d, of several classes d for each"
            )
        changed = int(np.count_nonzero(self.hers))
        if changed > self.rows_per_person:
            most = "one" if self.rows_per_person == 1 else f"{self.rows_per_person} at most"
            raise DeclarationError(
                f"the data sets differ in {changed} rows; neighbouring ones differ in {most}"
            )
        if self.adjacency == "add-remove":
            hers = self.hers
            if self.rows[hers].any() and self.other[hers].any():
                raise DeclarationError(
                    "rows that differ are null rows in neither data set; where rows are added and "
                    "removed, they are null in one of the two"
                )
        longest = float(np.linalg.norm([self.rows, self.other], axis=-1).max())
        if longest > 1 + 1e-12:
            raise DeclarationError(f"the longest row has norm {longest:g}; expected at most 1")

    @property
    def vectors(self) -> int:
        """How many vectors of d numbers a sum holds."""
        return self.classes if self.classes > 2 else 1

    @property
    def hers(self) -> NDArray[np.bool_]:
        """Which rows differ, in x or in their class or target."""
        differ = (self.rows != self.other).any(axis=1)
        if self.answers is not None and self.others is not None:
            differ |= self.answers != self.others
        return np.asarray(differ)

    @property
    def people(self) -> NDArray[np.int64]:
        """Whose each row is: hers are those that differ, and all others are of others."""
        return np.where(self.hers, 0, -1)

    def answers_of(self, block: Array) -> Array:
        """The classes of D's rows or of D''s, whichever these are; any of null rows."""
        found = self.others if block is self.other else self.answers
        assert found is not None
        return found

    def added(self) -> "Case":
        """Return the case in which her rows are there or not: null rows stand in D' for them."""
        gone = np.where(self.hers[:, None], 0.0, self.rows)
        name, others = f"{self.name}; there or not", self.others
        if self.answers is not None and self.loss.residual:
            others = np.where(self.hers, 0.0, self.answers)
        made = {"name": name, "other": gone, "adjacency": "add-remove", "others": others}
        return replace(self, **made)  # type: ignore[arg-type]


def labels_of(rows: Array) -> Array:
    """y of signed rows in an audit, where any will do: -1 where the first entry is below 0."""
    return np.where(rows[:, 0] < 0, -1.0, 1.0)


def replaced(row: Array, other: Array, B: int, m: int) -> tuple[Array, Array]:
    """Return D and D' of B rows: m rows of one person, all alike, and other rows in their place.

    The remaining rows are zero. Rows that are alike move a sum in one direction, m times as far as
    one of them.
    """
    D, E = np.zeros((2, B, len(row)))
    D[:m], E[:m] = row, other
    return D, E


def worst_cases(dimension: int, alpha: float = 1.0, rows_per_person: int = 1) -> tuple[Case, ...]:
    """Pairs of data sets that come near to the bounds of maths.md 3 and 4, each in its own way.

    A replaced row moves the data gradient by (C/B) || L'(z) a - L'(z') a' ||, at most 2C/B:
    attained by opposite rows where the loss is saturated on both sides, L' = -1. The plain logistic
    loss gets there in two dimensions only, when messages push f far along a direction in which both
    rows lean backwards. Where the loss curves, replacing a row also changes the volume that noise
    is squeezed into. All rows of a person are alike.

    Parameters
    ----------
    dimension
        d.
    alpha
        The loss of a round, for one row.
    rows_per_person
        m: so many rows are replaced at once.
    """
    _require.whole("dimension", dimension)
    _require.whole("rows_per_person", rows_per_person)
    m = rows_per_person
    first, zero = np.eye(dimension)[0], np.zeros(dimension)
    even = np.full(dimension, dimension**-0.5) * (1 - 1e-15)
    # L' = -1 below 20: wherever noise carries f here
    saturated = HuberHinge(width=10.0, margin=30.0)
    # B/C, so large that small alphas do not carry f out of that range; rho + 2 eta N_p
    a, Lam = 10 / min(alpha, 1.0), 5.0
    cases: list[Case] = []

    def add(name: str, row: Array, other: Array, loss: Loss, f: Array, B: int = 4) -> None:
        """With messages that bring f to about here in round 1."""
        B += m - 1
        pair = replaced(row, other, B, m)
        cases.append(Case(name, *pair, loss, Lam * f, B / a, rows_per_person=m))

    add("opposite rows, saturated loss", first, -first, saturated, zero)
    if dimension > 1:
        add("opposite rows along the diagonal, saturated loss", even, -even, saturated, zero)
        second = np.eye(dimension)[1]
        u, v = -0.14 * first + 0.99 * second, -0.14 * first - 0.99 * second
        add("mirrored rows, logistic loss, f pushed far out", u, v, Logistic(), 40 * first)
    # then abar is half of alpha, as long as Phi is 0
    h = 0.5 / (a * Lam * float(np.expm1(min(alpha, 4.0) / 2)))
    # the row begins to curve at 39 h; its opposite is saturated there
    bent = HuberHinge(width=h, margin=40 * h)
    for push in (-1, 0):
        f = (39 * h + m * push / (a * Lam)) * first
        name = f"opposite rows, one where the loss begins to curve, push {push}"
        add(name, first, -first, bent, f, 16)
    return tuple(cases)


def random_cases(
    rng: np.random.Generator,
    dimension: int,
    alpha: float,
    count: int,
    rows_per_person: int = 1,
) -> tuple[Case, ...]:
    """Pairs that nobody thought of: rows, losses and messages at random, over a few orders of
    magnitude. A person's rows are all alike in some, and each of its own in others.
    """
    m = rows_per_person
    losses = (Logistic(), Logistic(6.0), HuberHinge(0.5), HuberHinge(10.0, 30.0))
    cases = []
    for i in range(count):
        rows = rng.normal(size=(3 + m, dimension))
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9) * (1 + 1e-12)
        if m > 1 and rng.random() < 0.5:
            rows[:m] = rows[0]
        other = rows.copy()
        opposite = rng.random() < 0.5
        other[:m] = -rows[:m] if opposite else rows[-1]
        heard = rng.normal(size=dimension) * 10 ** rng.uniform(-1, 2.5)
        loss = losses[int(rng.integers(len(losses)))]
        weight, eta = 10 ** rng.uniform(-2, 1) * min(alpha, 1.0), 10 ** rng.uniform(-2, 1)
        C = float(len(rows) * weight)
        name = f"random pair {i + 1}, {'opposite' if opposite else 'unrelated'} rows, {loss!r}"
        made = Case(name, rows, other, loss, heard, C, 1.0, float(eta), rows_per_person=m)
        cases.append(made)
    return tuple(cases)
