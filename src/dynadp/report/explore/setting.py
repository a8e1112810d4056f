"""The public numbers that a choice of alpha rests on: of a run folder, a run file, or five silos of
census rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from dynadp.consensus import Output, Topology
from dynadp.data import Classes, Label, Schema, Target, census
from dynadp.errors import DeclarationError
from dynadp.mechanisms import Mechanism, mechanism_named
from dynadp.planning import Plan, class_weights_of, plan, unit_of
from dynadp.privacy import Unit, by_node, round_up
from dynadp.problem import EVEN, ClassWeights, Loss, Weights, check_class_weights
from dynadp.report.record_view import RunView
from dynadp.research import Objective, PublicRows, draw_public_rows, plan_for_total
from dynadp.runs import LocalRun, load_run_file, load_schema, plan_from_file

DECLARED = ("honest", "colluding", "spares", "partners", "away", "histogram")  # of sums, by people
_TWO = Label(name="label", negative=0, positive=1)
ROWS, NODES, DELTA, EPSILON = 20_000, ("north", "east", "south", "west", "centre"), 1e-5, 1.0


@dataclass(frozen=True)
class PublicSetting:
    """What is planned, in public numbers.

    Attributes
    ----------
    name
        Of the run.
    topology, counts
        The network, and B_p in its order.
    dimension, features
        d with and without the intercept.
    epsilon, delta
        The total that is asked for.
    mechanism, centring
        As for :func:`~dynadp.planning.planner.plan`.
    public
        A file that the run file declares public, with its schema and separator; None: census rows
        are made.
    output
        Which mean of released vectors becomes the model.
    weights
        What weighs the same, every row or every node.
    given
        What a run file fixes that gives alpha and its constants itself; None where a total is
        planned for.
    totals
        The total of each node, where a run file has them.
    node_column
        The column that names each row's node, where a run file has one.
    unit
        Whose total it is.
    calibration, class_weights, positives
        As for :func:`~dynadp.planning.planner.plan`.
    objective
        What sweeps optimise.
    label
        What is answered.
    loss
        That a run file chooses; None for the planner's.
    """

    name: str
    topology: Topology
    counts: tuple[int, ...]
    dimension: int
    features: int
    epsilon: float = EPSILON
    delta: float = DELTA
    mechanism: str | Mechanism | None = None
    centring: bool = True
    public: tuple[Path, Schema, Any] | None = field(default=None, repr=False)
    output: Output = "network"
    weights: Weights = "rows"
    given: Plan | None = field(default=None, repr=False)
    totals: Mapping[str, float] | None = field(default=None, repr=False)
    node_column: str | None = None
    unit: Unit = field(default_factory=Unit)
    calibration: bool = False
    class_weights: ClassWeights = EVEN
    positives: float | None = None
    objective: Objective = field(default_factory=Objective)
    label: Label | Classes | Target = _TWO
    loss: Loss | None = None

    @property
    def classes(self) -> int:
        """How many values the label has; 0 for a target."""
        return len(self.label.classes)

    @classmethod
    def made(cls) -> "PublicSetting":
        """Five silos of census rows on a ring."""
        ring = Topology.family("ring", len(NODES)).named(NODES)
        schema = census(len(NODES), nodes=len(NODES), test_rows=0).schema
        counts = (ROWS // len(NODES),) * len(NODES)
        return cls("census rows made here", ring, counts, schema.dimension, schema.feature_count)

    @classmethod
    def of_file(cls, path: Path) -> "PublicSetting":
        """Of a run file: numbers of rows, graph, schema and privacy; not one private cell."""
        file = load_run_file(path)
        privacy = file.privacy
        if file.networked:
            schema = file.declared(load_schema(path.parent / file.data.schema_file))
            topology = file.graph(path.parent)
            counts = tuple(int(node.rows or 0) for node in file.nodes)
        else:
            job = LocalRun.load(path, spending=False)
            schema, topology = job.schema, job.topology
            counts = tuple(job.counts[p] for p in topology.nodes)
        if not privacy.protected:
            raise DeclarationError(
                f"{path} protects nothing, so there is no alpha to choose; set privacy.mechanism"
            )
        given, epsilon, public, totals = None, EPSILON, None, file.totals
        if totals:
            epsilon = max(totals.values())
        elif given := plan_from_file(file, schema, topology, counts):
            epsilon = given.total.epsilon
            spent = by_node(given.events, given.delta)  # not by nodes that send nothing
            totals = {p: spent[p].epsilon if p in spent else epsilon for p in topology.nodes}
            if given.steps:  # what the file leaves out follows from each total
                steps = replace(given.steps, pull=file.training.pull, node_weights=())
                given = replace(given, steps=steps)
        if file.evaluation is not None:  # config admits only public = true
            public = path.parent / file.evaluation.file, schema.limited(), file.data.separator
        return cls(
            file.run.name,
            topology,
            counts,
            schema.dimension,
            schema.feature_count,
            epsilon,
            privacy.delta or DELTA,
            file.mechanism,
            centring=privacy.centring and schema.centre is None,
            public=public,
            output=file.run.output,
            weights=file.training.weights,
            given=given,
            totals=totals,
            node_column=file.data.node_column,
            unit=unit_of(schema),
            calibration=privacy.calibration,
            class_weights=class_weights_of(
                file.training.class_weight, schema.label.classes, file.training.positives
            ),
            positives=file.training.positives,
            loss=file.training.loss,
            label=schema.label,
            objective=Objective.of(schema.label, file.run.measure, file.run.wanted),
        )

    @classmethod
    def of_run(cls, view: RunView) -> "PublicSetting":
        """Of a run folder: the numbers of its record."""
        label = getattr(view.record.declared_schema, "label", None)
        dimension = view.record.dimension or cls.made().dimension
        features = dimension - 1 if view.record.features is None else view.record.features
        counts = tuple(view.rows[p] for p in view.topology.nodes)
        setting = cls(view.name, view.topology, counts, dimension, features)
        if label is not None:
            setting = replace(setting, label=label, objective=Objective.of(label, None))
        if (plan := view.plan) is None:
            return setting
        epsilon = plan.total["epsilon"]
        return replace(
            setting,
            epsilon=round_up(epsilon, 2) if epsilon else EPSILON,
            delta=plan.delta,
            mechanism=mechanism_named(plan.mechanism, **_declared(plan.parameters)),
            centring=bool(plan.centrings),
            weights=plan.settings["weights"],
            unit=plan.unit,
            calibration=bool(plan.parameters.get("histogram")),
            class_weights=check_class_weights(plan.settings.get("class_weights", EVEN)),
            positives=plan.settings.get("positives"),
        )

    def measured_by(self, measure: str | None) -> "PublicSetting":
        """Return the setting with another measure to optimise; None leaves the run file's."""
        if measure is None:
            return self
        made = Objective.of(self.label, measure, self.objective.threshold)
        return replace(self, objective=made)

    @property
    def method(self) -> str:
        """How runs are protected, in words."""
        chosen = self.plan(self.epsilon).mechanism
        if (sealing := chosen.sealing) is not None:
            return f"sealed sums, {sealing.honest} of {sealing.members} nodes honest"
        return "algorithm sum" if chosen.algorithm == "sum" else f"{chosen.name} perturbation"

    def plan(self, epsilon: float, counts: Sequence[int] | None = None) -> Plan:
        """The plan of `dynadp train` for this total: the planner's, or the run file's own constants
        with the alpha that fits.

        Parameters
        ----------
        epsilon
            The total.
        counts
            Other numbers of rows than the run's, for a trial on fewer.
        """
        counts = counts or self.counts
        if self.given is not None:
            return plan_for_total(
                self.given,
                counts,
                self.topology,
                self.dimension,
                epsilon,
                self.delta,
                features=self.features,
                classes=self.classes,
            )
        planned = plan(
            counts,
            self.topology,
            self.dimension,
            epsilon=epsilon,
            delta=self.delta,
            mechanism=self.mechanism,
            centring=self.centring,
            features=self.features,
            weights=self.weights,
            unit=self.unit,
            calibration=self.calibration,
            class_weights=self.class_weights,
            positives=self.positives,
            classes=self.classes,
            loss=self.loss,
        )
        return replace(planned, output=self.output)

    def asks(self, epsilon: float, planned: Plan) -> tuple[str, float]:
        """The key of a run file's [privacy] that asks for this total's plan, and its value."""
        if self.given is None:
            return "epsilon", digits(epsilon)
        unit = "mu" if planned.mechanism.noise == "gaussian" else "alpha"
        return unit, digits(planned.alpha * (1 - 5e-4))  # never above it

    def rows(self, seed: int = 0, *, by_node: bool = False) -> PublicRows:
        """Public rows of the nodes' sizes, in the run's dimension: the declared ones, or census
        rows.

        Parameters
        ----------
        seed
            Of the rows.
        by_node
            Whether a node's rows are drawn from its own, where the declared file names nodes.
        """
        intercept = self.dimension > self.features
        nodes = self.topology.nodes
        column = self.node_column if by_node else None
        return draw_public_rows(
            nodes, self.counts, self.features, intercept, self.public, seed, column, self.classes
        )


def digits(epsilon: float, *, up: bool = False) -> float:
    """A total in the four digits in which it is asked for and shown.

    >>> digits(0.70713), digits(0.70713, up=True)
    (0.7071, 0.7072)
    """
    if not up:
        return float(f"{epsilon:.4g}")
    unit = 10.0 ** (floor(log10(epsilon)) - 3)
    return float(f"{ceil(epsilon / unit - 1e-9) * unit:.4g}")


def _declared(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a recorded mechanism that people declare; the planner finds the others."""
    return {name: parameters[name] for name in DECLARED if name in parameters}
