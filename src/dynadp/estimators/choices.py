"""What the parameters of an estimator ask for: whose total, by which mechanism, in which plan."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, NoProtection, Sealed, mechanism_for, mechanism_names
from dynadp.planning import (
    Constants,
    Plan,
    SumConstants,
    class_weights_of,
    plan,
    schedule_from,
    unit_of,
    with_histogram,
)
from dynadp.privacy import Unit, check_delta
from dynadp.problem import EVEN, ClassWeights, Loss, SquaredL2
from dynadp.runs import BALANCED, Calibration, Costs, Threshold, declared_rows, threshold_at

_PLANNED = {
    "C": 1.0,
    "rho": 1e-4,
    "eta": None,
    "loss": "logistic",
}  # what the planner decides, and how it is left alone
_NO_BOUND = (
    "data_norm is not given: declare a bound on the length ||x|| of every row that is known "
    "without looking at the rows, or a schema= with bounds for each column; a bound read off the "
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
        if given.schema is not None and (given.data_norm is not None or parts):
            raise DeclarationError(
                "a schema bounds the rows of one frame: give it without data_norm, and nodes= for "
                "its rows"
            )
        if (
            given.mechanism is not None
            and given.schema is None
            and given.data_norm is None
            and not shards
        ):
            raise DeclarationError(_NO_BOUND)
        if given.delta is not None:
            check_delta(given.delta)
        if given.rounds is not None:
            _require.whole("rounds", given.rounds)
        if given.data_norm is not None:
            _require.positive("data_norm", given.data_norm, ", a public bound on ||x||")
        if given.calibration and not self.may_calibrate:
            raise DeclarationError(
                "calibration is True, and it is a release of sums: give mechanism='sum' or "
                "'sealed', or 'auto' with epsilon, or leave it out"
            )
        if given.threshold is not None and given.cost is not None:
            raise DeclarationError("give threshold or cost, from which one follows, not both")
        self.wanted  # noqa: B018 (refused here, before anything is spent)

    @property
    def may_calibrate(self) -> bool:
        """Whether sums may release a histogram of scores, as far as parameters tell."""
        given = self.given
        if given.calibration is False or given.mechanism is None or self.algorithm != "sum":
            return False
        return bool(given.calibration) or given.epsilon is not None

    @property
    def wanted(self) -> Threshold | None:
        """The threshold that is asked for, or what it is made of."""
        given = self.given
        if given.cost is None:
            if isinstance(given.threshold, str) and given.threshold != BALANCED:
                raise DeclarationError(
                    f"threshold is {given.threshold!r}; expected a score or 'balanced'"
                )
            return None if given.threshold is None else given.threshold
        try:
            false_positive, false_negative = given.cost
        except (TypeError, ValueError):
            raise DeclarationError(
                f"cost is {given.cost!r}; expected two numbers above 0: that of a false positive "
                "and that of a false negative"
            ) from None
        return Costs(false_positive, false_negative)

    @property
    def by_cost(self) -> bool:
        """Whether the threshold is made of probabilities."""
        return self.wanted is not None and not isinstance(self.wanted, int | float)

    def threshold(self, loss: Loss, calibration: Calibration | None) -> float:
        """Return the threshold of a fit's scores; 0 where noise drowned what it is made of."""
        if not self.by_cost:
            return 0.0 if self.wanted is None else float(self.wanted)  # type: ignore[arg-type]
        if calibration is None and loss.name == "logistic" and not getattr(loss, "margin", 1.0):
            calibration = Calibration(1.0, 0.0, "a logistic loss without margin", self.positives)
        if calibration is None:
            warnings.warn(
                "the threshold by cost is left at 0: nothing tells how scores become "
                "probabilities; fit with calibration=True and two classes, more rows or a larger "
                "epsilon",
                UserWarning,
                stacklevel=4,
            )
            return 0.0
        return threshold_at(calibration, self.wanted or 0.0)

    @property
    def positives(self) -> float | None:
        """The declared share of the second class."""
        return None if self.given.positives is None else float(self.given.positives)

    def plan(
        self,
        counts: NDArray[np.intp],
        topology: Topology,
        width: int,
        problems: int,
        classes: Sequence[Any],
    ) -> Plan | None:
        """Return the plan of a fit with a total; None where each release's loss is given."""
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
        planned = partial(
            plan,
            counts.tolist(),
            topology,
            width,
            epsilon=self.given.epsilon,
            delta=self.given.delta,
            mechanism=self.mechanism,
            centring=self.given.schema is not None and self.given.schema.centre is None,
            features=None if self.given.schema is None else self.given.schema.feature_count,
            weights=self.given.weights,
            constants=constants,
            problems=problems,
            unit=self.unit,
            class_weights=self._class_weights(classes),
            positives=self.positives,
        )
        if self._calibrates(problems):
            made = planned(calibration=True)
            if self.given.calibration or self._stands_out(made):
                return made
        return planned()

    def _stands_out(self, made: Plan) -> bool:
        """Whether rows of a label may stand out from a histogram's noise: a quarter of all rows, or
        the declared share of either label.
        """
        share = 0.25 if self.positives is None else min(self.positives, 1 - self.positives)
        return made.rows * share > made.least_histogram

    def _class_weights(self, classes: Sequence[Any]) -> ClassWeights:
        """Of two classes; several have their own in each problem (:meth:`weights`)."""
        if len(classes) > 2:
            return EVEN
        return class_weights_of(self.given.class_weight, classes, self.positives)

    def weights(self, classes: Sequence[Any]) -> tuple[float, ...]:
        """What rows of each of several classes weigh; empty for two, and where all weigh alike."""
        given = self.given.class_weight
        if given is None or len(classes) == 2:
            return ()
        if not isinstance(given, Mapping) or {str(key) for key in given} != set(map(str, classes)):
            raise DeclarationError(
                f"class_weight is {given!r}; expected a number for each of {len(classes)} classes"
            )
        by_text = {str(key): float(weight) for key, weight in given.items()}
        return tuple(by_text[str(one)] for one in classes)

    def _calibrates(self, problems: int) -> bool:
        if problems > 1 and self.given.calibration:
            raise DeclarationError(
                f"calibration is True, and {problems} classes are {problems} problems; it is for "
                "two classes: leave it out"
            )
        return problems == 1 and self.may_calibrate

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

    def part(self, whole: Plan | None, problems: int, classes: Sequence[Any]) -> Plan:
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
            class_weights=self._class_weights(classes),
            positives=self.positives,
            mechanism=self._with_histogram(problems),
            schedule=None if by_round is None else schedule_from(by_round),
            unit=None if by_round is None else self.unit,
        )

    def _with_histogram(self, problems: int) -> Mechanism | None:
        if self.mechanism is None or not self._calibrates(problems):
            return self.mechanism
        return with_histogram(self.mechanism)

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
