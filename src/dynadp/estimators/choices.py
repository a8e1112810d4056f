"""What the parameters of an estimator ask for: whose total, by which mechanism, in which plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.estimators.ready import PRIVATE
from dynadp.mechanisms import Mechanism, NoProtection, Sealed, mechanism_for, mechanism_names
from dynadp.planning import Constants, Plan, SumConstants, plan, schedule_from, unit_of
from dynadp.privacy import Unit, check_delta
from dynadp.problem import Loss, SquaredL2
from dynadp.runs import declared_rows

_PLANNED = {
    "C": 1.0,
    "rho": 1e-4,
    "eta": None,
    "loss": "logistic",
}  # what the planner decides, and how it is left alone
_NO_BOUND = (
    "data_norm is not given: declare a bound on the length ||x|| of every row that is known "
    "without looking at the rows, or bounds= for each column, or a schema=; a bound read off the "
    "rows would leak them. Longer rows are clipped to it"
)


@dataclass(frozen=True)
class Choices:
    """The parameters of an estimator, read for one fit.

    Attributes
    ----------
    given
        The estimator.
    limited
        Whether rows beyond a person's m are left out.
    """

    given: Any
    limited: bool = False

    @property
    def unit(self) -> Unit:
        """Whose total it is."""
        given = self.given
        if given.schema is None:
            m, s = given.rows_per_person, given.silos_per_person
            return Unit(m, s, given.adjacency, limited=self.limited)
        return replace(unit_of(given.schema), limited=self.limited)

    def check(self, parts: bool, shards: bool) -> None:
        """Refuse what contradicts itself, before rows are looked at."""
        given = self.given
        if given.honest is not None and given.mechanism != Sealed.name:
            raise DeclarationError(
                "honest is of sealed sums; give mechanism='sealed' too, or leave it out"
            )
        if given.mechanism is None:
            for name in ("epsilon", "alpha", "mu", "algorithm", "ledger"):
                if getattr(given, name) is not None:
                    raise DeclarationError(
                        f"{name} is given, but mechanism is None, which protects nobody; give "
                        f"mechanism='auto' or the name of one, or leave {name} out"
                    )
        elif isinstance(given.mechanism, NoProtection) or not (
            isinstance(given.mechanism, Mechanism)
            or given.mechanism in ("auto", *mechanism_names())
        ):
            raise DeclarationError(
                f"mechanism is {given.mechanism!r}; expected one of "
                f"{', '.join(mechanism_names())}, a Mechanism, 'auto', or None"
            )
        elif sum(one is not None for one in (given.epsilon, given.alpha, given.mu)) != 1:
            raise DeclarationError(
                "give either epsilon and delta, the total of a fit, or alpha (with Gaussian noise "
                "mu) and rounds, the loss of each release; mechanism=None trains without privacy"
            )
        elif given.epsilon is None and given.rounds is None:
            raise DeclarationError(
                "rounds is None; with alpha or mu, say how many rounds: each one costs so much"
            )
        elif given.epsilon is None and self.scale != ("mu" if given.alpha is None else "alpha"):
            raise DeclarationError(
                f"a release of this mechanism loses {self.scale}; give {self.scale}"
            )
        elif given.regularizer is not None and self.algorithm == "sum":
            raise DeclarationError(
                "algorithm 'sum' has no regularizer; leave it out, or give mechanism='primal'"
            )
        elif given.epsilon is not None:
            for name, left in _PLANNED.items():
                if getattr(given, name) != left:
                    raise DeclarationError(
                        f"{name} is given beside epsilon, whose planner decides it; leave it out "
                        f"or give alpha"
                    )
        declared = Unit(given.rows_per_person, given.silos_per_person, given.adjacency)
        if given.schema is not None and declared != Unit():
            raise DeclarationError(
                "rows_per_person, silos_per_person and adjacency are those of the schema; declare "
                "them there"
            )
        if (given.rows is not None) != self.unit.added:
            raise DeclarationError(
                "rows declares how many rows each node may have, where adjacency is 'add-remove': "
                "give both, or neither"
            )
        if self.unit.added and given.mechanism is None:
            raise DeclarationError(
                "adjacency is 'add-remove', and without a mechanism nothing stays secret; leave "
                "adjacency and rows out"
            )
        numbers = (given.data_norm, given.bounds)
        if given.schema is not None and (parts or any(bound is not None for bound in numbers)):
            raise DeclarationError(
                "a schema bounds the rows of one frame: give it without data_norm and bounds, and "
                "nodes= for its rows"
            )
        if all(bound is not None for bound in numbers):
            raise DeclarationError(
                "data_norm and bounds are both given; give one of them: bounds where columns "
                "differ in scale"
            )
        ready = given.bounds is not None or not (
            isinstance(given.centre, str) and given.centre == PRIVATE
        )
        if ready and (given.schema is not None or shards):
            raise DeclarationError(
                "bounds and centre are for numbers that are not bounded yet; a schema declares its "
                "own centre, and shards are bounded rows: leave them out"
            )
        if (
            given.mechanism is not None
            and given.schema is None
            and given.data_norm is None
            and given.bounds is None
            and not shards
        ):
            raise DeclarationError(_NO_BOUND)
        if given.delta is not None:
            check_delta(given.delta)
        if given.rounds is not None:
            _require.whole("rounds", given.rounds)
        if given.data_norm is not None:
            _require.positive("data_norm", given.data_norm, ", a public bound on ||x||")

    def plan(
        self,
        counts: NDArray[np.intp],
        topology: Topology,
        width: int,
        problems: int,
        features: int | None,
        centring: bool,
    ) -> Plan | None:
        """Return the plan of a fit with a total; None where each release's loss is given.

        Parameters
        ----------
        counts, topology, width, problems
            Rows at each node, the network, d, and how many problems share the total.
        features, centring
            How many features there are without the intercept, and whether they are centred.
        """
        if self.given.epsilon is None:
            return None
        chosen = {
            "rounds": self.given.rounds,
            "moment_rounds": self.given.rounds,
            "margin": self.given.margin,
        }
        given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
        sums = self.algorithm == "sum"
        if not sums:
            given.pop("moment_rounds", None)
        constants = SumConstants(**given) if sums else Constants(**given)
        return plan(
            counts.tolist(),
            topology,
            width,
            epsilon=self.given.epsilon,
            delta=self.given.delta,
            mechanism=self.mechanism,
            centring=centring,
            features=features,
            weights=self.given.weights,
            constants=constants,
            problems=problems,
            unit=self.unit,
        )

    def declared_counts(self, nodes: Sequence[str]) -> NDArray[np.intp]:
        """The number of rows that each node declared."""
        declared = declared_rows(self.given.rows, nodes)
        return np.array([declared[p] for p in nodes])

    @property
    def loss(self) -> Loss:
        """L, with its margin."""
        if isinstance(self.given.loss, Loss):
            if self.given.margin is not None:
                raise DeclarationError(
                    "margin is given beside a Loss, which has its own; leave it out"
                )
            return self.given.loss
        described: dict[str, Any] = {"name": self.given.loss}
        if self.given.margin is not None:
            if "margin" not in Loss.named(self.given.loss).parameters():
                raise DeclarationError(f"loss {self.given.loss!r} has no margin; leave margin out")
            described["margin"] = self.given.margin
        return Loss.from_description(described)

    def part(self, whole: Plan | None, problems: int) -> Plan:
        """Return what each problem of a plan does, or what its parameters say without one."""
        if whole is not None:
            settings = replace(whole.settings, regularizer=self.given.regularizer or SquaredL2())
            return replace(whole.part(problems), settings=settings)
        by_round = self.given.mu if self.given.alpha is None else self.given.alpha
        return Plan.of(
            loss=self.loss,
            regularizer=self.given.regularizer,
            C=self.given.C,
            weights=self.given.weights,
            rho=self.given.rho,
            eta=self.given.eta,
            rounds=self.given.rounds or 1000,
            mechanism=self.mechanism,
            schedule=None if by_round is None else schedule_from(by_round),
            unit=None if by_round is None else self.unit,
        )

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """Return the mechanism; None for none, and where it is left to the planner."""
        given, algorithm = self.given.mechanism, self.given.algorithm
        if given == Sealed.name:
            given = Sealed(honest=self.given.honest)
        if given != "auto":
            return None if given is None else mechanism_for(given, algorithm)
        if algorithm is None and self.given.mu is not None:
            algorithm = "sum"
        elif algorithm is None and (
            self.given.alpha is not None or self.given.regularizer is not None
        ):
            algorithm = "admm"
        return mechanism_for(None, algorithm)

    @property
    def algorithm(self) -> str:
        """``admm`` or ``sum``; the latter where it is left to the planner."""
        made = self.mechanism
        return "sum" if made is None else made.algorithm

    @property
    def scale(self) -> str:
        """What a release loses: ``alpha``, or ``mu`` with Gaussian noise."""
        made = self.mechanism
        return "alpha" if made is None or made.noise == "l2-laplace" else "mu"
