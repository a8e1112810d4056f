"""The run file: everything that is decided before a run, as TOML, checked all at once.

Paths are relative to the file. A flag beats an environment variable, which beats the file, which
beats the default.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
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

from dynadp.consensus import FAMILIES, Absence, OnAbsence, Topology, is_one
from dynadp.data import Schema
from dynadp.errors import ConfigError, DeclarationError, DynadpError
from dynadp.mechanisms import Mechanism, mechanism_for, mechanism_from, mechanism_names
from dynadp.planning import schedule_from
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
    checked,
    read_tables,
)

Number = Annotated[int, Field(ge=0)]


class RunSection(Section):
    """What the run is called, and whether it is a simulation."""

    name: Name = "run"
    seed: Annotated[int, Field(ge=0)] | None = None
    output: Literal["last", "tail", "neighbours", "network"] = "network"
    device: Literal["cpu", "cuda"] = "cpu"


class DataSection(Section):
    """Where rows and their public declarations are, and how much memory a node's rows may take:
    more than that is streamed.
    """

    schema_file: Annotated[File, Field(alias="schema")]
    file: File | None = None
    node_column: str | None = None
    separator: Literal[",", ";", "\t"] | None = None
    description: Line = "rows"
    memory: Memory | None = None


SigningKey = Annotated[str, Field(pattern=r"^ed25519:[A-Za-z0-9+/]{43}=$")]


class NodeSection(Section):
    """One node: its rows, its ledger, and a total of its own; on a network, where it is reached and
    its public signing key.
    """

    name: Line
    file: File | None = None
    ledger: File | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    epsilon: Above0 | None = None
    endpoint: Address | None = None
    key: SigningKey | None = None


class NetworkSection(Section):
    """How nodes reach each other, beyond their endpoints, and what happens when some stay away."""

    relay: Address | None = None
    on_absence: OnAbsence = "wait"
    patience: Above0 = 600.0
    least: Annotated[int, Field(ge=1)] | None = None

    @property
    def absence(self) -> Absence:
        """What happens when nodes stay away."""
        return Absence(self.on_absence, self.patience, self.least)


class TopologySection(Section):
    """Who exchanges messages with whom."""

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

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``away`` where it is not given: older run files keep their hash."""
        made: dict[str, Any] = dump(self)
        if made.get("away", 0) is None:
            del made["away"]
        return made

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
            return mechanism_for(None, algorithm)
        if description["name"] == "primal" and self.own != "public":
            description.setdefault("own", self.own)
        if description["name"] == "dual" and self.split != "optimal":
            description.setdefault("split", self.split)
        return mechanism_from(description | self.sealing)

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
            return self
        if self.sealing and (self.described or {}).get("name") != "sealed":
            raise ValueError(
                f"{', '.join(self.sealing)}: for sealed sums alone; name mechanism sealed, or "
                "leave out"
            )
        if self.delta is None:
            raise ValueError(
                "delta is missing: the chance left to worse luck, well below one "
                "over the number of rows"
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

    def steps(self) -> dict[str, float | None]:
        """The constants of algorithm "sum"."""
        return {name: getattr(self, name) for name in ("pull", "momentum", "curvature")}


class EvaluationSection(Section):
    """Rows on which accuracy may be shown, because they are declared public."""

    file: File
    public: Literal[True]


Mistake = tuple[Any, str]  # whether it was made, and what to do


class RunFile(Section):
    """A whole run file."""

    run: RunSection = RunSection()
    data: DataSection
    nodes: Annotated[tuple[NodeSection, ...], Field(min_length=1)]
    topology: TopologySection = TopologySection()
    privacy: PrivacySection
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection | None = None
    network: NetworkSection = NetworkSection()

    @property
    def networked(self) -> bool:
        """Whether nodes run apart from each other, each with a NODE.toml of its own; the file is
        then shared by all.
        """
        return self.network.relay is not None or any(
            node.key is not None or node.endpoint is not None for node in self.nodes
        )

    @model_validator(mode="after")
    def _parts_agree(self) -> "RunFile":
        names = [node.name for node in self.nodes]
        twice = len(set(names)) < len(names)
        found = [
            (twice, "nodes: two have the same name: names must differ"),
            *(self._network_mistakes() if self.networked else self._local_mistakes()),
            *(self._privacy_mistakes() if self.privacy.protected else ()),
        ]
        problems = [problem for wrong, problem in found if wrong]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _lacking(self, field: str) -> list[str]:
        """Return the nodes that do not give this field."""
        return [node.name for node in self.nodes if getattr(node, field) is None]

    def _network_mistakes(self) -> list[Mistake]:
        nodes, no_key, no_rows = self.nodes, self._lacking("key"), self._lacking("rows")
        keys = [node.key for node in nodes if node.key]
        private = any(node.file or node.ledger for node in nodes)
        return [
            (
                no_key,
                f"nodes: no key for {', '.join(no_key)}: every node of a network needs a public "
                f"signing key, as `dynadp pki` prints it",
            ),
            (
                no_rows,
                f"nodes: no rows for {', '.join(no_rows)}: every node of a network needs a public "
                f"number of rows",
            ),
            (
                len(keys) > len(set(keys)),
                "nodes: two have the same key: every node signs with its own",
            ),
            (
                self.data.file is not None or private,
                "nodes: the file of a network run is shared by all: files and ledgers "
                "belong into each NODE.toml",
            ),
            (
                any(len(node.name.encode()) > 64 or node.name == "relay" for node in nodes),
                "nodes: on a network a name has at most 64 letters (bytes in UTF-8), "
                "and is not 'relay'",
            ),
            (
                any(re.fullmatch(r"[\w-]+(\.[\w-]+)+", node.name) for node in nodes),
                "nodes: on a network a name must not be a host name, which "
                "certificates of others may carry",
            ),
            (
                not self.privacy.protected,
                "privacy: mechanism is none, so messages would reveal rows: a network "
                "run needs a mechanism",
            ),
            (
                self.run.device != "cpu",
                "run: device is for runs in one process: a node of a network works on its CPU",
            ),
        ]

    def _local_mistakes(self) -> list[Mistake]:
        data, no_file, no_ledger = self.data, self._lacking("file"), self._lacking("ledger")
        seeded, protected, nodes = self.run.seed is not None, self.privacy.protected, self.nodes
        return [
            (
                data.file is None and no_file,
                f"nodes: no file for {', '.join(no_file)}: give each node a file, or "
                f"data.file with data.node_column",
            ),
            (
                data.file is not None and (data.node_column is None or len(no_file) < len(nodes)),
                "data: file holds the rows of all nodes: name its node_column, and "
                "leave out the nodes' own files",
            ),
            (
                data.file is not None and data.memory is not None,
                "data: memory limits what is read of a node's own file: give each "
                "node a Parquet file of its own",
            ),
            (
                not protected and len(self._lacking("epsilon")) < len(nodes),
                "nodes: an epsilon without a mechanism protects nobody: leave it out",
            ),
            (
                not protected and self.training.algorithm == "sum",
                "training: algorithm sum is for private runs: name a mechanism, or leave it out",
            ),
            (
                protected and not seeded and no_ledger,
                f"nodes: no ledger for {', '.join(no_ledger)}, where a private run enters what it "
                f"spends: make one with `dynadp "
                "ledger cap FILE --node NAME --epsilon E --delta D`, or set run.seed for a "
                "SIMULATION that protects nobody",
            ),
            (
                protected and seeded and len(no_ledger) < len(nodes),
                "nodes: a seeded run is a SIMULATION and enters no ledger: leave out "
                "ledger, or leave out run.seed",
            ),
        ]

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism; None leaves it to the planner."""
        return self.privacy.made(self.training.algorithm)

    def _dishonest(self) -> str:
        """Return what is wrong with who must be honest among these nodes; empty if nothing is."""
        try:
            if (mechanism := self.mechanism) is not None:
                mechanism.among(len(self.nodes))
        except DeclarationError as error:
            return str(error)
        return ""

    def _privacy_mistakes(self) -> list[Mistake]:
        privacy, training, no_total = self.privacy, self.training, self._lacking("epsilon")
        mechanism, by_round = self.mechanism, privacy.by_round is not None
        sums = mechanism is not None and mechanism.algorithm == "sum"
        constants = ("C", "rho", "eta", "regularizer")
        names = ("rounds", "loss", *constants, *training.steps())
        chosen = [name for name in names if getattr(training, name) is not None]
        needed = ("rounds",) if sums else ("rounds", "rho", "eta")
        missing = [name for name in needed if name not in chosen]
        others = [name for name in (constants if sums else training.steps()) if name in chosen]
        unit = "mu" if mechanism is not None and mechanism.noise == "gaussian" else "alpha"
        return [
            (wrong := self._dishonest(), f"privacy: {wrong}"),
            (
                mechanism is not None and training.algorithm not in (None, mechanism.algorithm),
                f"training: algorithm is {training.algorithm}, but the mechanism of privacy is for "
                f"algorithm {mechanism.algorithm if mechanism else ''}: leave out one of them",
            ),
            (
                not by_round and privacy.epsilon is None and no_total,
                "privacy: epsilon is missing: the total that nobody may lose more of "
                "(or alpha for each round)",
            ),
            (
                by_round and getattr(privacy, unit) is None,
                f"privacy: with this noise each round's loss is {unit}: give that",
            ),
            (
                by_round and missing,
                f"training: with privacy.{unit}, {', '.join(missing)} must be given; with "
                f"epsilon the planner chooses",
            ),
            (
                by_round and others,
                f"training: {', '.join(others)} is for the other algorithm: leave out",
            ),
            (
                by_round and len(no_total) < len(self.nodes),
                f"nodes: a total epsilon does not go with privacy.{unit}: give one or the other",
            ),
            (
                not by_round and chosen,
                f"training: with a total epsilon the planner chooses {', '.join(chosen)}; "
                f"leave out, or give {unit}",
            ),
            (
                not by_round and "paper" in (privacy.own, privacy.split),
                "privacy: own and split of the paper go with alpha, not with a total epsilon",
            ),
        ]

    def declared(self, schema: Schema) -> Schema:
        """Return the schema with the person and the adjacency that the run file declares, if it
        does.
        """
        names = ("person", "rows_per_person", "silos_per_person", "adjacency")
        given = {n: value for n in names if (value := getattr(self.privacy, n)) is not None}
        for name, value in given.items():
            said = getattr(schema, name)
            if said not in (value, type(schema).model_fields[name].default):
                raise ConfigError(
                    f"privacy: {name} differs from that of the schema; leave out one of them"
                )
        return checked(Schema, schema.model_dump() | given, "privacy") if given else schema

    @property
    def totals(self) -> dict[str, float] | None:
        """epsilon of each node; None where each round's loss is given, or nothing is protected."""
        if not self.privacy.protected or self.privacy.by_round is not None:
            return None
        return {node.name: node.epsilon or self.privacy.epsilon or 0.0 for node in self.nodes}

    def graph(self, folder: Path) -> Topology:
        """The topology over the nodes, in the file's order."""
        section, names = self.topology, [node.name for node in self.nodes]
        edges: Sequence[tuple[str, str]] | None = section.edges
        if section.graphml is not None:
            drawn = Topology.from_graphml(folder / section.graphml)
            edges = [(drawn.nodes[u], drawn.nodes[v]) for u, v in drawn.edges]
        if edges is None:
            return Topology.family(
                section.family,
                len(names),
                degree=section.degree,
                probability=section.probability,
                seed=section.seed,
            ).named(names)
        if strangers := {node for edge in edges for node in edge} - set(names):
            raise ConfigError(
                f"topology: an edge names {', '.join(sorted(strangers))}, which nodes does not list"
            )
        return Topology.from_edges(edges, names, "edges" if section.graphml is None else "graphml")


def load_run_file(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """Read and check a run file.

    Parameters
    ----------
    path
        The file.
    overrides
        Values that beat the file's, by place, such as ``{"privacy.epsilon": 2.0}``; None leaves the
        file's. A seed makes the run a SIMULATION: the ledgers that the file names are left out, so
        that nothing can open or charge them.
    """
    content = read_tables(Path(path))
    for place, value in (overrides or {}).items():
        if value is None:
            continue
        section, _, key = place.partition(".")
        table = content.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} must be a table")
        table[key] = value
    if (overrides or {}).get("run.seed") is not None and isinstance(
        nodes := content.get("nodes"), list
    ):
        for node in nodes:
            if isinstance(node, dict):
                node.pop("ledger", None)
    return checked(RunFile, content, path)


def load_schema(path: str | Path) -> Schema:
    """Read a schema from TOML or JSON."""
    return checked(Schema, read_tables(Path(path)), path)
