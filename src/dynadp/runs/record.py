"""run.json, version 2: one shape for all kinds of runs.

The record holds what was decided before round 1: who takes part, how many rows each node has, the
public schema, the plan and its cost. Everything in it is public. ``content_hash`` seals the file;
``config_hash`` names the configuration, and the nodes of a network have agreed on it.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynadp._files import digest
from dynadp.consensus import Topology
from dynadp.data import Schema
from dynadp.mechanisms import mechanism_named
from dynadp.planning import Consortium, planned_events, public_numbers
from dynadp.privacy import Event, Unit
from dynadp.problem import Loss, shares

FORMAT, VERSION = "dynadp-run", 2
LIBRARIES = ("dynadp", "numpy", "scipy", "networkx", "pydantic")
Kind = Literal["one process", "demo", "network", "cluster"]
UNDECIDED = {"run_id", "created", "python", "libraries", "config_hash"}  # no part of the config
SETTINGS = (
    "loss",
    "regularizer",
    "C",
    "weights",
    "rho",
    "eta",
    "output",
    "steps",
    "class_weights",
    "positives",
)


@dataclass(frozen=True, kw_only=True)
class RecordedPlan:
    """A protected plan as the record has it; the only reader of ``Plan.to_json``.

    Attributes
    ----------
    mechanism, parameters
        Its name, and its parameters by name.
    algorithm, noise, exchange
        ``admm`` or ``sum``; ``l2-laplace`` or ``gaussian``; who gets messages: ``neighbours``, or
        all (``open``; ``sealed`` where nobody sees one node's).
    settings
        ``SETTINGS``, as recorded.
    rounds
        T.
    alphas
        alpha of each of the T rounds, by node; mu where noise is Gaussian, 0 for a node that sends
        nothing.
    centrings
        Likewise of the centring round; empty where there is none.
    total
        The cost of the whole plan at the node that loses most.
    collusion
        Of sealed sums, what is lost where more nodes collude than planned
        (:class:`~dynadp.privacy.collusion.Collusion` as JSON).
    unit
        Whose loss it is about.
    reasons
        The planner's, in words.
    lone_pull
        Whether a single node is pulled to its own last message; not in version 0.1.0.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]
    rounds: int
    alphas: Mapping[str, tuple[float, ...]] = field(repr=False)
    centrings: Mapping[str, float] = field(repr=False)
    total: Mapping[str, Any]
    reasons: tuple[str, ...] = field(repr=False)
    algorithm: str = "admm"
    noise: str = "l2-laplace"
    exchange: str = "neighbours"
    lone_pull: bool = True
    collusion: tuple[Mapping[str, Any], ...] = ()
    unit: Unit = field(default_factory=Unit)

    @classmethod
    def from_json(cls, plan: Mapping[str, Any], nodes: Sequence[str]) -> "RecordedPlan":
        """Read a plan; alpha of a node is one number for all rounds, or a list of T numbers."""
        rounds, parameters = int(plan["rounds"]), dict(plan["mechanism"])
        alphas, centrings = {}, plan["centrings"]
        for node, alpha in zip(nodes, plan["alphas"], strict=True):
            own = alpha if isinstance(alpha, list | tuple) else [alpha] * rounds
            if len(own) != rounds:
                raise ValueError(f"{len(own)} alphas for {rounds} rounds")
            alphas[node] = tuple(float(one) for one in own)
        return cls(
            mechanism=str(parameters.pop("name")),
            parameters=parameters,
            settings={name: plan[name] for name in SETTINGS if name in plan},
            rounds=rounds,
            alphas=alphas,
            centrings=dict(zip(nodes, centrings, strict=True)) if centrings else {},
            total=plan["total"],
            reasons=tuple(plan["reasons"]),
            algorithm=plan.get("algorithm", "admm"),
            noise=plan.get("noise", "l2-laplace"),
            exchange=plan.get("exchange", "neighbours"),
            lone_pull=plan.get("lone_pull", True),
            collusion=tuple(plan.get("collusion", ())),
            unit=Unit(**plan.get("unit", {})),
        )

    @property
    def delta(self) -> float:
        """delta of the total."""
        return float(self.total["delta"])

    @property
    def alpha(self) -> float:
        """The largest loss of one round of training."""
        return max(max(own) for own in self.alphas.values())

    def events(
        self,
        topology: Topology,
        rows: Mapping[str, int],
        dimension: int,
        features: int,
        classes: int = 2,
    ) -> tuple[Event, ...]:
        """Everything that this plan spends, by all nodes."""
        nodes, given = topology.nodes, self.settings
        counts = np.array([rows[p] for p in nodes], dtype=float)
        degrees = topology.degrees if len(nodes) > 1 or self.lone_pull else np.zeros(1)
        weights = shares(given["C"], counts, given["weights"])
        those = [p for p, node in enumerate(nodes) if any(self.alphas[node])]
        public = public_numbers(
            counts[those],
            degrees[those],
            dimension,
            weights[those],
            given["rho"],
            1.0 if self.algorithm == "sum" else given["eta"],
            Loss.from_description(given["loss"]),
            self.unit,
            Consortium(
                topology, tuple(rows[p] for p in nodes), dimension, features, classes
            ).vectors,
        )
        mechanism = mechanism_named(self.mechanism, **self.parameters)
        names = [nodes[p] for p in those]
        alphas = [self.alphas[node] for node in names]
        centrings = [self.centrings[node] for node in names] if self.centrings else []
        return self.unit.declared(
            planned_events(mechanism, public, self.rounds, names, alphas, centrings, features)
        )


class Graph(BaseModel):
    """A topology in a record: edges join nodes by their positions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    nodes: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]


class RunRecord(BaseModel):
    """What was decided before a run, and by which versions it was begun.

    Attributes
    ----------
    kind, name
        How it is run, and what it is called.
    run_id
        The run's name in ledgers.
    created
        When it began, as ISO 8601 text.
    simulation, seed
        Whether noise is seeded or rows are synthetic, so that nobody is protected; the seed.
    source
        Whose rows they are, in words.
    graph, rows
        Who exchanges messages with whom; B_p of each node.
    dimension, features
        d with and without the intercept. None only in an unfinished run of version 0.1.0.
    declared_schema, schema_hash
        The public schema and its hash. Records of 0.1.0 may have the hash alone.
    file
        The run file; of a network, what its nodes agreed on. None for a demo.
    made
        How a demo's rows were made.
    plan
        ``Plan.to_json()``; with the mechanism ``none`` nothing is protected.
    config_hash
        Hash of the configuration.
    python, libraries
        Versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    name: str
    run_id: str
    created: str
    simulation: bool
    seed: int | None = None
    source: str
    graph: Graph = Field(alias="topology")
    rows: dict[str, int]
    dimension: int | None
    features: int | None
    declared_schema: Schema | None = Field(alias="schema")
    schema_hash: str
    file: dict[str, Any] | None = None
    made: dict[str, Any] | None = None
    plan: dict[str, Any]
    config_hash: str
    python: str = Field(default_factory=platform.python_version)
    libraries: dict[str, str] = Field(
        default_factory=lambda: {name: version(name) for name in LIBRARIES}
    )

    @classmethod
    def of(
        cls,
        *,
        schema: Schema,
        topology: Topology,
        config_hash: str | None = None,
        **decided: Any,
    ) -> "RunRecord":
        """The record of a run that is about to begin.

        Parameters
        ----------
        schema, topology
            Public.
        config_hash
            By default the hash of everything that was decided.
        **decided
            The other fields.
        """
        made = cls.model_validate(
            {
                "topology": topology.describe(),
                "schema": schema,
                "schema_hash": schema.digest(),
                "dimension": schema.dimension,
                "features": schema.feature_count,
                "config_hash": config_hash or "",
                **decided,
            }
        )
        found = config_hash or digest(made.config)
        return made.model_copy(update={"config_hash": found})

    @model_validator(mode="after")
    def _sound(self) -> "RunRecord":
        if set(self.rows) != set(self.topology.nodes):
            raise ValueError("rows are not those of the nodes")
        self.planned  # noqa: B018  (a plan that cannot be read is an error now, not later)
        return self

    @property
    def config(self) -> dict[str, Any]:
        """Everything that was decided, as JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude=UNDECIDED)

    @cached_property
    def topology(self) -> Topology:
        """Who exchanges messages with whom."""
        names = self.graph.nodes
        edges = [(names[u], names[v]) for u, v in self.graph.edges]
        return Topology.from_edges(edges, names, self.graph.name)

    @cached_property
    def planned(self) -> RecordedPlan | None:
        """The plan; None where nothing is protected."""
        if self.plan["mechanism"]["name"] == "none":
            return None
        return RecordedPlan.from_json(self.plan, self.topology.nodes)

    @cached_property
    def events(self) -> tuple[Event, ...] | None:
        """Everything that was planned, by all nodes; None where nothing is protected, or a record
        of version 0.1.0 lacks the dimension.
        """
        plan = self.planned
        if plan is None or self.dimension is None or (plan.centrings and self.features is None):
            return None
        return plan.events(
            self.topology, self.rows, self.dimension, self.features or 0, self.classes
        )

    @property
    def classes(self) -> int:
        """How many values the label has; 0 for a target."""
        return 2 if self.declared_schema is None else self.declared_schema.classes

    def to_json(self) -> str:
        """The text of run.json."""
        content = self.model_dump(mode="json", by_alias=True)
        sealed = {"format": FORMAT, "version": VERSION, **content, "content_hash": digest(content)}
        return json.dumps(sealed, indent=1, allow_nan=False) + "\n"


def counted(description: str, rows: Mapping[str, int], secret: bool = False) -> str:
    """A description of rows with their number, or with the declared one that stands for it.

    >>> counted("visits", {"north": 700, "south": 500})
    'visits: 1,200 rows at 2 nodes'
    >>> counted("visits", {"north": 700}, secret=True)
    'visits: up to 700 rows at 1 node'
    >>> counted("rows", {"north": 700, "south": 500})  # a schema without a name
    '1,200 rows at 2 nodes'
    """
    nodes = "1 node" if len(rows) == 1 else f"{len(rows)} nodes"
    most = "up to " if secret else ""
    name = "" if description == "rows" else f"{description}: "
    return f"{name}{most}{sum(rows.values()):,} rows at {nodes}"
