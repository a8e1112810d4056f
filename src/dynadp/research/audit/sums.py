"""One node of algorithm "sum" in front of an adversary, and the rows that move its sums most
(maths.md 12).
"""

from typing import Any

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.consensus import ReleasePlan, Releaser, Steps, SumRounds, SumSolver, WeighedSum
from dynadp.mechanisms import Mechanism
from dynadp.problem import HuberHinge, IntegerRows, Logistic, Loss, Softmax, Terms
from dynadp.research.audit.cases import Case, labels_of, replaced
from dynadp.research.audit.node import AuditedNode


class AuditedSums(AuditedNode):
    """The node of a case under algorithm "sum".

    The run begins at ``heard``, a public point, and the other nodes add nothing. ``eta`` says how
    strongly the point is held: with 1, noise moves it by about 1/20 a round. C, rho, degree and
    regulariser are not used.
    """

    def _releases(self, mechanism: Mechanism, alpha: float, rounds: int) -> ReleasePlan:
        case, (B, d) = self.case, self.case.rows.shape
        terms = Terms(np.array([float(B)]), d, case.loss, case.regularizer, case.C, case.rho)
        self.steps = Steps(pull=20.0 * case.eta / (alpha * B))
        table = np.full((1, 1, rounds), float(alpha))
        return ReleasePlan.sums(["node"], terms, mechanism, table, self.unit, case.vectors)

    def _run(self, releaser: Releaser) -> None:
        """All rounds, of this node alone."""
        start, add = np.array(releaser.solver.f[0]), WeighedSum([1.0])
        rounds = SumRounds(
            releaser, self.releases.noises, self.steps, start, float(len(self.case.rows)), 1
        )
        while not rounds.over:
            V = rounds.release()
            assert V is not None
            rounds.receive(add(rounds.n, V[:1]))

    def _solver(self, count: int, *blocks: Array) -> SumSolver:
        rows = integer_blocks(self, count, *blocks)
        start = np.broadcast_to(self.case.heard, (len(blocks), count, len(self.case.heard)))
        return SumSolver(rows, self.releases.noises, start)


def integer_blocks(node: AuditedNode, count: int, *blocks: Array) -> IntegerRows:
    """The rows of data sets in whole numbers; of weighed sums, those of the person as one."""
    people = [node.case.people] * len(blocks) if node.releases.weighed else None
    made = node.releases.resolution, node.case.loss
    answers, labels = None, None
    if node.case.answers is None:
        labels = [labels_of(rows) for rows in blocks]
    else:
        answers = [node.case.answers_of(block) for block in blocks]
    return IntegerRows(
        blocks,
        *made,
        replicas=count,
        storage="dense",
        people=people,
        labels=labels,
        class_weights=node.case.class_weights,
        answers=answers,
    )


def worst_class_cases(dimension: int, classes: int, rows_per_person: int = 1) -> tuple[Case, ...]:
    """Pairs that come near to the bound on slopes of several classes (maths.md 20).

    A row that is answered wrongly with certainty has the longest slopes, sqrt(2) where they are not
    shortened. Two rows that lean backwards along the direction in which the point lies far out, and
    are opposite otherwise, are answered so with the same wrong class: their slopes are alike, and
    the sum moves by twice their length. A row or none moves it by the length itself; another label
    alone, by less.

    Parameters
    ----------
    dimension, classes
        d, and how many classes there are.
    rows_per_person
        m: so many rows are replaced at once.
    """
    _require.whole("dimension", dimension)
    _require.whole("classes", classes, least=3)
    m, B = rows_per_person, 3 + rows_per_person
    first, cases = np.eye(dimension)[0], list[Case]()
    wrong = np.zeros((classes, dimension))
    wrong[1] = -1000 * first  # rows with a negative first entry are answered 1
    at, own = wrong.ravel(), np.zeros(B)
    for loss in (Softmax(), Softmax(3.0, 2.0**0.5), Softmax(0.0, 2.0**0.5)):

        def add(name: str, row: Array, other: Array, loss: Loss = loss, **more: Any) -> None:
            pair = replaced(row, other, B, m)
            given: dict[str, Any] = {"answers": own, "others": own, "classes": classes, **more}
            cases.append(Case(f"{name}, {loss!r}", *pair, loss, at, rows_per_person=m, **given))

        add("a row or none, answered wrongly", -first, np.zeros(dimension))
        other = own.copy()
        other[:m] = 2
        add("another label, answered wrongly", -first, -first, others=other)
        if dimension > 1:
            lean, second = 0.02, np.eye(dimension)[1]
            u, v = (-lean * first + s * (1 - lean**2) ** 0.5 * second for s in (1, -1))
            add("mirrored rows, both answered wrongly", u, v)
    return tuple(cases)


def worst_sum_cases(dimension: int, rows_per_person: int = 1) -> tuple[Case, ...]:
    """Pairs of data sets that come near to the bounds of maths.md 12, each in its own way.

    Opposite rows where the loss is saturated, L' = -1, move a gradient by 2. Rounding makes rows
    with many equal entries longer than 1/h. The plain logistic loss is saturated for both rows far
    out, along a direction in which both lean backwards. Rows at right angles move the second
    moment by sqrt(2); opposite ones do not move it at all, and 120 degrees are between the two.
    Of a person with m rows, all are alike: sums move m times as far.

    Parameters
    ----------
    dimension
        d.
    rows_per_person
        m: so many rows are replaced at once.
    """
    _require.whole("dimension", dimension)
    _require.whole("rows_per_person", rows_per_person)
    m = rows_per_person
    first, zero = np.eye(dimension)[0], np.zeros(dimension)
    # L' = -1 below 20: wherever noise carries z here
    saturated = HuberHinge(width=10.0, margin=30.0)
    cases: list[Case] = []

    def add(name: str, row: Array, other: Array, loss: Loss, z: Array) -> None:
        pair = replaced(row, other, 3 + m, m)
        cases.append(Case(name, *pair, loss, z, rows_per_person=m))

    add("opposite rows, saturated loss", first, -first, saturated, zero)
    add("a row or none, saturated loss", first, zero, saturated, zero)
    if dimension > 1:
        second = np.eye(dimension)[1]
        # entries just above the middle of two whole numbers are rounded up
        steps = np.floor(2.0**16 / np.sqrt(dimension) - 0.5) + 0.5
        up = np.full(dimension, steps * 2.0**-16 * (1 + 1e-12))
        add("opposite rows, rounded up", up, -up, saturated, zero)
        add("rows at right angles, saturated loss", first, second, saturated, zero)
        turned = -0.5 * first + 0.8660254037844386 * second
        add("rows at 120 degrees, saturated loss", first, turned, saturated, zero)
        u, v = -0.14 * first + 0.99 * second, -0.14 * first - 0.99 * second
        add("mirrored rows, logistic loss, point far out", u, v, Logistic(), 40 * first)
    return tuple(cases)
