"""What the parameters of an estimator ask for: whose total, by which mechanism, in which plan."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dynadp import _require
from dynadp.consensus import Topology
from dynadp.errors import DeclarationError
from dynadp.estimators.ready import PRIVATE
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
from dynadp.problem import EVEN, ClassWeights, Loss, Softmax, SquaredL2, default_loss
from dynadp.runs import BALANCED, Calibration, Costs, Threshold, declared_rows, threshold_at

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
    planned: ClassVar[Mapping[str, Any]] = _PLANNED
    each: ClassVar[tuple[str, ...]] = ("alpha", "mu")  # parameters with the loss of a release
    in_words: ClassVar[str] = "alpha (with Gaussian noise mu)"

    @property
    def unit(self) -> Unit:
        """Whose total it is."""
        given = self.given
        if given.schema is None:
            m, s = given.rows_per_person, given.silos_per_person
            return Unit(m, s, given.adjacency, limited=self.limited)
        return replace(unit_of(given.schema), limited=self.limited)

    @property
    def by_round(self) -> Any:
        """What each release may lose; None where a total is given."""
        return self.given.mu if self.given.alpha is None else self.given.alpha

    @property
    def given_scale(self) -> str:
        """What kind of loss is given for each release."""
        return "mu" if self.given.alpha is None else "alpha"

    @property
    def hinted(self) -> str | None:
        """The algorithm that the kind of loss of a release belongs to."""
        return None if self.by_round is None else {"mu": "sum", "alpha": "admm"}[self.given_scale]

    def check(self, parts: bool, shards: bool) -> None:
        """Refuse what contradicts itself, before rows are looked at."""
        given = self.given
        if given.honest is not None and given.mechanism != Sealed.name:
            raise DeclarationError(
                "honest is of sealed sums; give mechanism='sealed' too, or leave it out"
            )
        if given.mechanism is None:
            for name in ("epsilon", *self.each, "algorithm", "ledger"):
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
        elif sum(getattr(given, name) is not None for name in ("epsilon", *self.each)) != 1:
            raise DeclarationError(
                f"give either epsilon and delta, the total of a fit, or {self.in_words} and "
                "rounds, the loss of each release; mechanism=None trains without privacy"
            )
        elif given.epsilon is None and given.rounds is None:
            raise DeclarationError(
                f"rounds is None; with {' or '.join(self.each)}, say how many rounds: each one "
                "costs so much"
            )
        elif given.epsilon is None and self.scale != self.given_scale:
            raise DeclarationError(
                f"a release of this mechanism loses {self.scale}; give {self.scale}"
            )
        elif given.regularizer is not None and self.algorithm == "sum":
            raise DeclarationError(
                "algorithm 'sum' has no regularizer; leave it out, or give mechanism='primal'"
            )
        elif given.epsilon is not None:
            for name, left in self.planned.items():
                if getattr(given, name) != left:
                    raise DeclarationError(
                        f"{name} is given beside epsilon, whose planner decides it; leave it out "
                        f"or give {self.each[0]}"
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
        bounds, centre = self.ready
        numbers = (given.data_norm, bounds)
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
        ready = bounds is not None or not (isinstance(centre, str) and centre == PRIVATE)
        if ready and (given.schema is not None or shards):
            raise DeclarationError(
                "bounds and centre are for numbers that are not bounded yet; a schema declares its "
                "own centre, and shards are bounded rows: leave them out"
            )
        if (
            given.mechanism is not None
            and given.schema is None
            and given.data_norm is None
            and bounds is None
            and not shards
        ):
            raise DeclarationError(_NO_BOUND)
        if given.delta is not None:
            check_delta(given.delta)
        if given.rounds is not None:
            _require.whole("rounds", given.rounds)
        if given.data_norm is not None:
            _require.positive("data_norm", given.data_norm, ", a public bound on ||x||")
        self._check_labels()

    def _check_labels(self) -> None:
        """Refuse what contradicts itself of classes, thresholds and probabilities."""
        given = self.given
        if given.calibration and not self.may_calibrate:
            raise DeclarationError(
                "calibration is True, and it is a release of sums: give mechanism='sum' or "
                "'sealed', or 'auto' with epsilon, or leave it out"
            )
        if given.threshold is not None and given.cost is not None:
            raise DeclarationError("give threshold or cost, from which one follows, not both")
        if self.wanted == BALANCED and self.positives is None and not self.may_calibrate:
            raise DeclarationError(
                "threshold is 'balanced' and positives is None; declare the share of rows with the "
                "positive label, between 0 and 1, as it is known without these rows, or let sums "
                "find it within a total (epsilon, calibration=True)"
            )

    @property
    def ready(self) -> tuple[Any, Any]:
        """Bounds and centre of features that are given as numbers."""
        return self.given.bounds, self.given.centre

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
        plain = loss.name == "logistic" and not getattr(loss, "margin", 1.0)
        if calibration is None and plain and (self.wanted != BALANCED or self.positives):
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
        classes: int,
        labels: Sequence[Any],
        features: int | None,
        centring: bool,
    ) -> Plan | None:
        """Return the plan of a fit with a total; None where each release's loss is given.

        Parameters
        ----------
        counts, topology, width, problems
            Rows at each node, the network, d, and how many problems share the total.
        classes, labels
            How many classes one problem tells apart, 0 for numbers; and all label values.
        features, centring
            How many features there are without the intercept, and whether they are centred.
        """
        if self.given.epsilon is None:
            return None
        sums, loss = self.algorithm == "sum", self.planned_loss
        given: dict[str, Any] = {}
        if self.given.rounds is not None:
            given = dict.fromkeys(("rounds", *(["moment_rounds"] * sums)), self.given.rounds)
        if loss is None and self.given.margin is not None:
            given["margin"] = self.given.margin
        constants: SumConstants | Constants
        if sums:
            constants = SumConstants.of(classes, loss, **given)
        else:
            constants = replace(Constants() if loss is None else Constants.of(loss), **given)
        planned = partial(
            plan,
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
            classes=classes,
            loss=loss,
            class_weights=self._class_weights(labels),
            positives=self.positives if classes == 2 else None,
        )
        if self._calibrates(problems, classes):
            made = planned(calibration=True)
            if self.calibration or self._stands_out(made):
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
        if len(classes) != 2:
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

    def _calibrates(self, problems: int, classes: int) -> bool:
        alone = problems == 1 and classes == 2
        if not alone and self.calibration:
            raise DeclarationError(
                "calibration is True, and it is for labels of two values; leave it out"
            )
        return alone and self.may_calibrate

    @property
    def calibration(self) -> bool | None:
        """Whether a histogram of scores is asked for; None where that follows from the rows."""
        given: bool | None = self.given.calibration
        return given

    @property
    def planned_loss(self) -> Loss | None:
        """The loss that is planned for; None where it is the planner's own, with its margin."""
        return None

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

    def class_loss(self) -> Loss:
        """The loss of several classes in one model: logistic stands for softmax."""
        if self.given.loss == "logistic":
            margin = self.given.margin
            return Softmax() if margin is None else Softmax(margin)
        return self.loss

    def part(
        self, whole: Plan | None, problems: int, classes: int = 2, labels: Sequence[Any] = ()
    ) -> Plan:
        """Return what each problem of a plan does, or what its parameters say without one."""
        if whole is not None:
            settings = replace(whole.settings, regularizer=self.given.regularizer or SquaredL2())
            return replace(whole.part(problems), settings=settings)
        by_round = self.by_round
        return Plan.of(
            loss=self.class_loss() if classes > 2 else self.loss,
            regularizer=self.given.regularizer,
            C=self.given.C,
            weights=self.given.weights,
            rho=self.given.rho,
            eta=self.given.eta,
            rounds=self.given.rounds or 1000,
            class_weights=self._class_weights(labels),
            positives=self.positives if classes == 2 else None,
            mechanism=self._with_histogram(problems, classes),
            schedule=None if by_round is None else schedule_from(by_round),
            unit=None if by_round is None else self.unit,
        )

    def _with_histogram(self, problems: int, classes: int) -> Mechanism | None:
        if self.mechanism is None or not self._calibrates(problems, classes):
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
        if algorithm is None:
            algorithm = self.hinted or ("admm" if self.given.regularizer is not None else None)
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


class TargetChoices(Choices):
    """Choices of an estimator that answers a number: its loss may be chosen beside a total."""

    planned: ClassVar[Mapping[str, Any]] = {"C": 1.0, "rho": 1e-4, "eta": None}
    each: ClassVar[tuple[str, ...]] = ("schedule",)
    in_words: ClassVar[str] = "schedule"

    @property
    def by_round(self) -> Any:
        """What each release may lose; None where a total is given."""
        return self.given.schedule

    @property
    def given_scale(self) -> str:
        """As the mechanism has it."""
        return self.scale

    @property
    def hinted(self) -> str | None:
        """None: a schedule is of either kind."""
        return None

    def check(self, parts: bool, shards: bool) -> None:
        """Refuse what contradicts itself, and a target without public bounds."""
        super().check(parts, shards)
        given = self.given
        if given.schema is not None and given.target is not None:
            raise DeclarationError(
                "target is given, and the schema declares one; leave out one of them"
            )
        if given.mechanism is not None and given.schema is None and given.target is None:
            raise DeclarationError(
                "target is not given: declare public bounds of y, target=(low, high), from what is "
                "known about the quantity; bounds read off y would leak it. Numbers beyond them "
                "are clipped"
            )

    def _check_labels(self) -> None:
        """There are no labels."""

    @property
    def may_calibrate(self) -> bool:
        """False: there are no labels."""
        return False

    @property
    def calibration(self) -> bool | None:
        """None: there are no labels."""
        return None

    @property
    def positives(self) -> float | None:
        """None: there are no labels."""
        return None

    def weights(self, classes: Sequence[Any]) -> tuple[float, ...]:
        """None: there are no labels."""
        return ()

    @property
    def planned_loss(self) -> Loss | None:
        """The loss of residuals."""
        return self.loss

    @property
    def loss(self) -> Loss:
        """L, with its width; by default clipped squares in sums, and a smooth loss in ADMM."""
        loss, width = self.given.loss, self.given.width
        if isinstance(loss, Loss) and width is not None:
            raise DeclarationError("width is given beside a Loss, which has its own; leave it out")
        if loss is None:
            sums = self.given.mechanism is not None and self.algorithm == "sum"
            loss = default_loss("numbers", "sum" if sums else "admm")
        made: Loss = loss if isinstance(loss, Loss) else Loss.from_description({"name": loss})
        if not made.residual:
            raise DeclarationError(
                f"loss {made.name!r} separates two classes; for a number take 'huber', "
                "'pseudo_huber' or 'logistic_cosh'"
            )
        if width is None:
            return made
        return Loss.from_description({**made.describe(), "width": width})
