"""The parts of a plan: what is minimised, how messages are protected, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dynadp import _require
from dynadp._arrays import Array
from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, NoProtection
from dynadp.privacy import Schedule, Unit, constant
from dynadp.problem import (
    EVEN,
    ClassWeights,
    Logistic,
    Loss,
    Regularizer,
    SquaredL2,
    Weights,
    check_class_weights,
)

Alpha = Schedule | float | Sequence[Schedule | float]


def default_eta(topology: Topology, loss: Loss, C: float, rho: float) -> float:
    """eta = sqrt( m (C c1/4 + m) / (2 w) ) / mean degree, m = max(rho, 1e-7 C c1), w the spectral
    gap: public numbers only.

    The geometric mean of the local objectives' smallest curvature and a typical one, as in the
    analysis of ADMM on strongly convex problems (Shi et al., IEEE Transactions on Signal Processing
    62, 2014), spread over the neighbours. The floor on rho stands for curvature that rows bring
    even where rho brings none. ``benchmarks/penalty.py`` compares it with multiples of it.
    """
    degree = max(float(topology.degrees.mean()), 1.0)
    least = max(rho, 1e-7 * C * loss.c1)
    return float(np.sqrt(least * (C * loss.c1 / 4 + least) / (2 * topology.spectral_gap)) / degree)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is minimised, and how strongly nodes are held together.

    Attributes
    ----------
    loss, regularizer
        L and R.
    C, rho
        The paper's C^R and rho.
    weights
        ``rows``: every row of the network weighs the same, C over the mean number of rows.
        ``equal``: every node does, as in the paper; see :func:`~dynadp.problem.terms.shares`.
    eta
        The penalty: a number, or one for each replica; None for :func:`default_eta`.
    class_weights
        ``(w_-, w_+)``: what a row of either label weighs, public; divided by the larger one.
    positives
        The share of rows with the positive label, declared and public; it says how much all rows
        weigh together. None for one half.
    """

    loss: Loss = field(default_factory=Logistic)
    regularizer: Regularizer = field(default_factory=SquaredL2)
    C: float = 1.0
    weights: Weights = "rows"
    rho: float = 1e-4
    eta: float | Sequence[float] | None = None
    class_weights: ClassWeights = EVEN
    positives: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_weights", check_class_weights(self.class_weights))
        if self.positives is not None and not 0 < self.positives < 1:
            raise DeclarationError(
                f"positives is {self.positives!r}; expected the declared share of rows with the "
                "positive label, between 0 and 1"
            )
        for name, kind in (("loss", Loss), ("regularizer", Regularizer)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise DeclarationError(
                    f"{name} is {given!r}; expected a {kind.__name__}, such as "
                    f"{kind.__subclasses__()[0].__name__}()"
                )
        _require.positive("C", self.C)
        _require.positive("rho", self.rho)

    @property
    def row_weight(self) -> float:
        """``w_- (1 - p) + w_+ p``, p the declared share of positives: a row weighs so on average.

        1 without class weights.
        """
        share = 0.5 if self.positives is None else self.positives
        return self.class_weights[0] * (1 - share) + self.class_weights[1] * share

    @property
    def by_class(self) -> dict[str, Any]:
        """Class weights and the declared share, for a record; empty where rows weigh the same."""
        if self.class_weights == EVEN:
            return {}
        return {"class_weights": list(self.class_weights), "positives": self.positives}

    def eta_of(self, replicas: int = 1) -> Array:
        """Return the penalty of each replica."""
        try:
            given = np.asarray(self.eta, dtype=float)
        except (TypeError, ValueError):
            given = np.full((), np.nan)
        good = given.shape in ((), (replicas,)) and np.isfinite(given).all() and (given > 0).all()
        if not good:
            raise DeclarationError(
                f"eta is {self.eta!r}; expected a finite number above 0, or one for each of the "
                f"{replicas} replicas"
            )
        return np.broadcast_to(given, (replicas,)).copy()


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How messages are protected, and what that may cost.

    Attributes
    ----------
    mechanism
        Adds the noise.
    schedule
        alpha_p(n): how much each release may lose; a number for a constant one, or a list with one
        for each replica. With Gaussian noise it is mu_p(n).
    centring
        alpha, or mu, of the centring round of each node; empty where there is none.
    delta
        At which totals are stated.
    epsilon
        The total that each node was promised; empty where alpha was chosen instead.
    unit
        Whose loss totals are about: anybody with a row at one node, or with more. alpha and mu are
        those of one row.
    """

    mechanism: Mechanism
    schedule: Alpha
    centring: tuple[float, ...] = ()
    delta: float = 0.0
    epsilon: tuple[float, ...] = ()
    unit: Unit = field(default_factory=Unit)

    def __post_init__(self) -> None:
        if self.unit.silos > 1 and len(set(self.epsilon)) > 1:
            raise DeclarationError(
                "nodes have totals of their own, and a person may have rows at "
                f"{self.unit.silos} of them: whose total would hold for her? Give one epsilon for "
                "all, or silos_per_person = 1"
            )
        if not isinstance(self.mechanism, Mechanism) or isinstance(self.mechanism, NoProtection):
            raise DeclarationError(
                f"mechanism is {self.mechanism!r}, which protects nothing; expected one that does, "
                "such as Primal(). A plan without protection has protection = None"
            )

    def alphas(self, nodes: Sequence[str], rounds: int, replicas: int = 1) -> Array:
        """Return alpha_p(n), P x K x T."""
        single = isinstance(self.schedule, Schedule | int | float)
        given = [self.schedule] * replicas if single else list(self.schedule)  # type: ignore[arg-type]
        if len(given) != replicas:
            raise DeclarationError(
                f"{len(given)} schedules for {replicas} replicas; expected one, or one for each"
            )
        # many draws of few alphas need few tables
        keys = [s if isinstance(s, float) else id(s) for s in given]
        tables = {
            key: (s if isinstance(s, Schedule) else constant(s)).table(nodes, rounds)  # type: ignore[arg-type]
            for key, s in dict(zip(keys, given, strict=True)).items()
        }
        return np.stack([tables[key] for key in keys], axis=1)


@dataclass(frozen=True)
class Consortium:
    """What is public about those who take part.

    Attributes
    ----------
    topology
        Who exchanges messages with whom.
    counts
        B_p of each node, in the topology's order.
    dimension, features
        d with the intercept, and without it.
    classes
        How many values the label has; 0 for a target.
    """

    topology: Topology = field(repr=False)
    counts: tuple[int, ...]
    dimension: int
    features: int | None = None
    classes: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        check_counts(self.counts, len(self.topology))

    @property
    def vectors(self) -> int:
        """How many vectors of d numbers a model has: one, or one for each of several classes."""
        return max(1, self.classes) if self.classes != 2 else 1

    def require_kind(self, loss: Loss, algorithm: str) -> None:
        """Refuse a loss or an algorithm that is not for these labels."""
        if self.vectors > 1 and algorithm != "sum":
            raise DeclarationError(
                f"the label has {self.classes} classes, and algorithm {algorithm!r} separates two: "
                "take mechanism sum or sealed, which train one model of all classes "
                "(NetworkClassifier also has one against the rest)"
            )
        kind = "signs" if self.classes == 2 else "classes" if self.classes else "numbers"
        if loss.kind != kind:
            about = {
                "signs": "two classes",
                "classes": "three classes or more",
                "numbers": "numbers to predict",
            }
            raise DeclarationError(
                f"loss {loss.describe()['name']!r} is for {about[loss.kind]}, and the label has "
                f"{about[kind]}" + ("; take loss softmax" if kind == "classes" else "")
            )

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names, in order."""
        return self.topology.nodes


def check_counts(counts: Sequence[float], nodes: int) -> Array:
    """B_p as numbers, one for each node, from 1."""
    B = np.asarray(counts, dtype=float)
    if B.shape != (nodes,) or not (np.isfinite(B).all() and (B >= 1).all()):
        raise DeclarationError(
            f"counts are {list(counts)!r}; expected the number of rows of each of {nodes} nodes, "
            f"from 1"
        )
    return B
