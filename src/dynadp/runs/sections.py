"""The tables of a run file, each checked by itself."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from dynadp.consensus import FAMILIES, Absence, OnAbsence, is_one
from dynadp.errors import DeclarationError, DynadpError
from dynadp.mechanisms import Mechanism, mechanism_for, mechanism_from, mechanism_names
from dynadp.planning import schedule_from, with_histogram
from dynadp.problem import (
    Loss,
    Named,
    Regularizer,
    Weights,
)
from dynadp.runs.fields import (
    Above0,
    Address,
    File,
    Line,
    Memory,
    Name,
    Section,
    Share,
    SigningKey,
)
from dynadp.runs.measures import KINDS
from dynadp.runs.target_measures import TARGET_KINDS
from dynadp.runs.thresholds import Costs, Threshold

Number = Annotated[int, Field(ge=0)]


def _without(made: dict[str, Any], *names: str) -> dict[str, Any]:
    """A section without those of its fields that say nothing."""
    return {name: v for name, v in made.items() if v not in (None, False) or name not in names}


def _known_measure(given: str) -> str:
    if given not in KINDS and given not in TARGET_KINDS:
        raise ValueError(
            f"must be one of {', '.join(KINDS)}; for a target one of {', '.join(TARGET_KINDS)}"
        )
    return given


MeasureName = Annotated[str, AfterValidator(_known_measure)]


class CostSection(Section):
    """What wrong answers cost, in any unit.

    Attributes
    ----------
    false_positive
        Of the positive label where the negative one is right.
    false_negative
        Of the negative label where the positive one is right.
    """

    false_positive: Above0
    false_negative: Above0


class RunSection(Section):
    """What the run is called, and whether it is a simulation.

    Attributes
    ----------
    name
        Names the run folder, ``runs/NAME``, and the run in every ledger.
    seed
        Makes the run a SIMULATION: noise can be repeated, so it protects nobody, and no ledger is
        charged. Leave it out for real rows.
    output
        Which released vectors make the model: ``network``, the mean of all nodes' messages over the
        last half of the rounds; ``neighbours``, that of a node and its neighbours; ``tail``, that
        of a node alone; ``last``, its last message. All of them are free.
    device
        ``cuda`` for a run in one process on a GPU.
    threshold
        The model answers with the positive label above this score; ``balanced`` for the largest
        balanced accuracy, which needs ``calibration``. By default 0.
    cost
        Instead: what a wrong answer of either kind costs, from which the threshold follows. It
        needs probabilities: ``calibration``, or a logistic loss without margin.
    measure
        What `dynadp tradeoff` and `dynadp explore` optimise; ``accuracy`` by default.
    """

    name: Name = "run"
    seed: Annotated[int, Field(ge=0)] | None = None
    output: Literal["last", "tail", "neighbours", "network"] = "network"
    device: Literal["cpu", "cuda"] = "cpu"
    threshold: float | Literal["balanced"] | None = None
    cost: CostSection | None = None
    measure: MeasureName | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given: older run files keep their hash."""
        return _without(dump(self), "threshold", "cost", "measure")

    @property
    def wanted(self) -> Threshold | None:
        """The threshold of the model, or what wrong answers cost."""
        if self.cost is None:
            return self.threshold
        return Costs(self.cost.false_positive, self.cost.false_negative)

    @model_validator(mode="after")
    def _one_threshold(self) -> "RunSection":
        if self.threshold is not None and self.cost is not None:
            raise ValueError("give threshold or cost, from which one follows, not both")
        return self


class DataSection(Section):
    """Where rows and their public declarations are.

    Attributes
    ----------
    schema
        The file with the public declarations of all columns.
    file, node_column
        One file with the rows of all nodes, and its column that names the node; instead of a file
        for each node. Not on a network.
    separator
        Of CSV files, where the header leaves it open.
    description
        What these rows are called in ledgers and records, such as "wards, 2024".
    memory
        What a node's rows may take in memory: MiB, or a text such as "2 GiB". A Parquet file that
        would take more is streamed.
    """

    schema_file: Annotated[File, Field(alias="schema")]
    file: File | None = None
    node_column: str | None = None
    separator: Literal[",", ";", "\t"] | None = None
    description: Line = "rows"
    memory: Memory | None = None


class NodeSection(Section):
    """One node, a table ``[[nodes]]`` for each.

    Attributes
    ----------
    name
        Of the node; names differ.
    file
        Its rows, CSV or Parquet; on a network they stand in NODE.toml.
    ledger
        Where the node enters what it spends; on a network it stands in NODE.toml.
    rows
        Its number of rows, public. Required on a network, and where that number stays secret.
    epsilon
        A total of its own, instead of that of ``[privacy]``.
    endpoint
        HOST:PORT at which others reach it; none for a node behind a relay.
    key
        Its public signing key, as ``dynadp pki`` prints it.
    """

    name: Line
    file: File | None = None
    ledger: File | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    epsilon: Above0 | None = None
    endpoint: Address | None = None
    key: SigningKey | None = None


class NetworkSection(Section):
    """How nodes reach each other, beyond their endpoints, and what happens when some stay away.

    Attributes
    ----------
    relay
        HOST:PORT of a relay that carries letters between nodes that cannot meet.
    on_absence
        ``wait`` for a node that stays away, or ``go on`` without it.
    patience
        Seconds until a silent node counts as away.
    least
        How many nodes must remain where a run goes on.
    """

    relay: Address | None = None
    on_absence: OnAbsence = "wait"
    patience: Above0 = 600.0
    least: Annotated[int, Field(ge=1)] | None = None

    @property
    def absence(self) -> Absence:
        """What happens when nodes stay away."""
        return Absence(self.on_absence, self.patience, self.least)


class TopologySection(Section):
    """Who exchanges messages with whom.

    Attributes
    ----------
    family
        ``ring``, ``path``, ``star``, ``complete``, ``grid``, ``random_regular``, ``erdos_renyi`` or
        ``small_world``.
    degree
        Of ``random_regular`` and ``small_world``.
    probability
        Of ``erdos_renyi`` and ``small_world``.
    seed
        Of a random family.
    edges
        Instead of a family: pairs of nodes' names.
    graphml
        Instead of a family: a file.
    """

    family: str = "ring"
    degree: Annotated[int, Field(ge=2)] = 4
    probability: Share | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    edges: tuple[tuple[str, str], ...] | None = None
    graphml: File | None = None

    @field_validator("edges", mode="before")
    @classmethod
    def _without_weights(cls, edges: Any) -> Any:
        """Pairs; a weight of 1 says nothing and is left out."""
        if not isinstance(edges, list | tuple):
            return edges
        heavy = [edge for edge in edges if isinstance(edge, list | tuple) and len(edge) == 3]
        if not all(is_one(edge[2]) for edge in heavy):
            raise ValueError(
                "an edge has a third entry other than 1; edges have no weights here, since the "
                "algorithm has one penalty eta "
                'for all of them: write pairs, ["a", "b"]'
            )
        return [edge[:2] if edge in heavy else edge for edge in edges]

    @model_validator(mode="after")
    def _known(self) -> "TopologySection":
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}")
        if self.edges is not None and self.graphml is not None:
            raise ValueError("give edges or graphml, not both")
        return self


def _known_mechanism(given: Any) -> Any:
    """None, a name, or a table with a name and parameters."""
    if given is None:
        return None
    description = {"name": given} if isinstance(given, str) else given
    if not isinstance(description, dict) or not isinstance(description.get("name"), str):
        raise ValueError(
            'must be a name, or a table such as { name = "primal", final_release = 0.1 }'
        )
    if description["name"] not in ("none", *mechanism_names()):
        raise ValueError(f"must be one of {', '.join(mechanism_names())}, or none")
    try:
        mechanism_from(description)
    except DeclarationError as error:  # "NAME is VALUE; expected ...": without the value
        place, _, rest = str(error).partition(" is ")
        wanted = rest.partition("; ")[2]
        raise ValueError(f"{place}: {wanted}" if wanted else str(error)) from None
    return given


def _known_schedule(given: Any) -> Any:
    """None, a number, a list of one number a round, a table by node, or a named schedule."""
    if given is not None:
        try:
            schedule_from(given)
        except DeclarationError as error:
            raise ValueError(str(error)) from None
    return given


class PrivacySection(Section):
    """How messages are protected, and what that may cost in total (epsilon, delta) or in each round
    (alpha, or mu where noise is Gaussian).

    Attributes
    ----------
    mechanism
        ``sum``, ``sealed``, ``primal``, ``dual``, a table with a name and parameters, or ``none``
        for no protection. Without it the planner chooses.
    epsilon
        The most that anyone with a row at one node can lose. The planner chooses what is not given.
    delta
        Probability that more than epsilon leaks; keep it well below one over the number of rows.
    alpha, mu
        Instead of epsilon: what each release may lose, mu where noise is Gaussian. A number, a list
        by round, a table by node, or a named schedule.
    own, split
        Of primal and of dual perturbation: ``paper`` for what the paper has.
    honest, colluding
        Of sealed sums: how many nodes add their noise and keep their keys, or how many may not.
    spares
        Of sealed sums: how many further attempts are reserved for sums that could not be decoded.
    partners
        Of sealed sums: with how many others each node shares masks; all by default.
    away
        Of sealed sums that go on: how many nodes may stay away.
    person
        The column that says whose row it is.
    rows_per_person, silos_per_person
        How many rows a person may have at a node, and at how many nodes. Epsilon is hers.
    adjacency
        ``replace``: rows that are replaced; ``add-remove``: rows that are there or not, whose
        number stays secret.
    centring
        Whether the features' means are released before round 1.
    calibration
        Whether the last round of sums releases how many rows of each label have their score in each
        of 32 bins, within the total: probabilities, thresholds and measures follow from it.
    """

    mechanism: Annotated[Any, AfterValidator(_known_mechanism)] = None
    epsilon: Above0 | None = None
    delta: Share | None = None
    alpha: Annotated[Any, AfterValidator(_known_schedule)] = None
    mu: Annotated[Any, AfterValidator(_known_schedule)] = None
    own: Literal["public", "paper"] = "public"
    split: Literal["optimal", "paper"] = "optimal"
    honest: Annotated[int, Field(ge=1)] | None = None
    colluding: Number | None = None
    spares: Number | None = None
    partners: Number | None = None
    away: Number | None = None
    person: Line | None = None
    rows_per_person: Annotated[int, Field(ge=1)] | None = None
    silos_per_person: Annotated[int, Field(ge=1)] | None = None
    adjacency: Literal["replace", "add-remove"] | None = None
    centring: bool = True
    calibration: bool = False

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given: older run files keep their hash."""
        return _without(dump(self), "away", "calibration")

    @property
    def described(self) -> dict[str, Any] | None:
        """The mechanism's name and parameters; None where none is named."""
        given = self.mechanism
        if given is None:
            return None
        return {"name": given} if isinstance(given, str) else dict(given)

    @property
    def protected(self) -> bool:
        """Whether messages are protected: by the mechanism that is named, or by the planner's."""
        return self.described is None or self.described["name"] != "none"

    @property
    def by_round(self) -> Any:
        """What each round may lose, alpha or mu; None where a total is given."""
        return self.mu if self.alpha is None else self.alpha

    def made(self, algorithm: str | None = None) -> Mechanism | None:
        """Make the mechanism; ``own`` belongs to the primal one, ``split`` to the dual one, and who
        is honest to sealed sums.

        Without a name it is that of the algorithm, or of alpha and mu; None leaves it to the
        planner.
        """
        description = self.described
        if description is None:
            if algorithm is None and self.by_round is not None:
                algorithm = "sum" if self.alpha is None else "admm"
            if algorithm is None:
                return None
            return self._calibrated(mechanism_for(None, algorithm))
        if description["name"] == "primal" and self.own != "public":
            description.setdefault("own", self.own)
        if description["name"] == "dual" and self.split != "optimal":
            description.setdefault("split", self.split)
        return self._calibrated(mechanism_from(description | self.sealing))

    def _calibrated(self, mechanism: Mechanism | None) -> Mechanism | None:
        """Let it release a histogram of scores where that is asked for."""
        if not self.calibration or mechanism is None:
            return mechanism
        return with_histogram(mechanism)

    @property
    def sealing(self) -> dict[str, int]:
        """What is declared of sealed sums."""
        names = ("honest", "colluding", "spares", "partners", "away")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "PrivacySection":
        if not self.protected:
            if self.epsilon is not None or self.by_round is not None:
                raise ValueError(
                    "mechanism is none, so nothing is protected: leave out epsilon, alpha and mu, "
                    "or choose a mechanism"
                )
            if self.calibration:
                raise ValueError(
                    "mechanism is none, and calibration is a private release: leave it out, and "
                    "calibrate on public rows (dynadp evaluate --public --calibrate)"
                )
            return self
        if self.sealing and (self.described or {}).get("name") != "sealed":
            raise ValueError(
                f"{', '.join(self.sealing)}: for sealed sums alone; name mechanism sealed, or "
                "leave out"
            )
        if self.delta is None:
            raise ValueError(
                "delta is missing: the probability that more than epsilon leaks; keep it well "
                "below one over the number of rows"
            )
        given = [name for name in ("epsilon", "alpha", "mu") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                "give epsilon (a total; the planner chooses the rest), alpha (each round) or mu "
                f"(each round, Gaussian noise): one of them, not {' and '.join(given)}"
            )
        return self


def _by_name(base: type[Named], default: str, given: Any) -> Any:
    """The object that a table describes by ``name`` and constructor parameters."""
    if isinstance(given, base):
        return given
    name = given.get("name", default) if isinstance(given, Mapping) else default
    kind = base.registry.get(name) if isinstance(name, str) else None
    fields: dict[str, Any] = {"name": (Literal[tuple(base.registry)], default)}
    if kind is None:
        given = {"name": name}  # its parameters are unknown
    else:
        for key, one in kind.parameters().items():
            untyped, required = one.annotation is one.empty, one.default is one.empty
            fields[key] = (Any if untyped else one.annotation, ... if required else one.default)
        if isinstance(given, Mapping):  # records of 0.1.0 have None for a default
            given = {k: v for k, v in given.items() if v is not None and k not in kind.ignored}
    table: type[Section] = create_model(base.__name__, __base__=Section, **fields)
    parameters = dict(table.model_validate(given))
    try:
        return base.named(parameters.pop("name"))(**parameters)
    except DynadpError as error:
        raise ValueError(str(error)) from None


DeclaredLoss = Annotated[
    Loss, PlainValidator(partial(_by_name, Loss, "logistic")), PlainSerializer(Loss.declaration)
]
DeclaredRegularizer = Annotated[
    Regularizer,
    PlainValidator(partial(_by_name, Regularizer, "squared_l2")),
    PlainSerializer(Regularizer.declaration),
]


class TrainingSection(Section):
    """The algorithm and its constants; with a total epsilon the planner chooses what is not
    given.

    Attributes
    ----------
    algorithm
        ``sum`` or ``admm``, where no mechanism is named.
    rounds
        T.
    weights
        ``rows``: every row weighs the same. ``equal``: every node does, as in the paper.
    C, rho, eta
        Of ADMM: the paper's weight of the rows, of the regulariser, and penalty.
    loss
        A table with a name and parameters, such as ``{ name = "logistic", margin = 3.0 }``.
    regularizer
        Of ADMM: a table with a name and parameters.
    pull, momentum, curvature
        Of algorithm "sum": how far a sum leads.
    class_weight
        What rows of either label weigh, such as ``{ low = 1, high = 4 }``, divided by the larger
        one; ``balanced`` needs ``positives``. By default all weigh the same.
    positives
        The share of rows with the positive label, declared from what is known without these rows;
        it is never counted.
    """

    algorithm: Literal["admm", "sum"] | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    C: Above0 | None = None
    weights: Weights = "rows"
    rho: Above0 | None = None
    eta: Above0 | None = None
    loss: DeclaredLoss | None = None
    regularizer: DeclaredRegularizer | None = None
    pull: Above0 | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    curvature: Above0 | None = None
    class_weight: Literal["balanced"] | dict[str, Above0] | None = None
    positives: Share | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not given: older run files keep their hash."""
        return _without(dump(self), "class_weight", "positives")

    def steps(self) -> dict[str, float | None]:
        """The constants of algorithm "sum"."""
        return {name: getattr(self, name) for name in ("pull", "momentum", "curvature")}


class EvaluationSection(Section):
    """Rows on which measures may be shown, because they are declared public.

    Attributes
    ----------
    file
        The rows, CSV or Parquet.
    public
        ``true``: these rows are published or synthetic. Nothing else is accepted.
    """

    file: File
    public: Literal[True]
