"""The run file: everything that is decided before a run, as TOML, checked all at once.

Paths are relative to the file. A flag beats an environment variable, which beats the file, which
beats the default.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from dynadp.consensus import Topology
from dynadp.data import Schema
from dynadp.errors import ConfigError, DeclarationError
from dynadp.mechanisms import Mechanism
from dynadp.runs.fields import Section, checked, read_tables
from dynadp.runs.sections import (
    DataSection,
    EvaluationSection,
    NetworkSection,
    NodeSection,
    PrivacySection,
    RunSection,
    TopologySection,
    TrainingSection,
)
from dynadp.runs.thresholds import BALANCED

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
            *self._absence_mistakes(),
            *(self._network_mistakes() if self.networked else self._local_mistakes()),
            *(self._privacy_mistakes() if self.privacy.protected else ()),
            (
                self._threshold_needs_more,
                "run: a threshold by cost needs probabilities, and 'balanced' the share of each "
                "label: set calibration = true in [privacy], or give the threshold as a score",
            ),
        ]
        problems = [problem for wrong, problem in found if wrong]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _absence_mistakes(self) -> list[Mistake]:
        least, away, count = self.network.least, self.privacy.away, len(self.nodes)
        goes_on = self.network.absence.goes_on
        return [
            (
                (least or 0) > count,
                f"network: least is {least}, and there are {count} nodes: not so many can remain",
            ),
            (
                least is not None and not goes_on,
                "network: least is for on_absence = 'go on': a run that waits needs all its nodes; "
                "leave it out",
            ),
            (
                away and not goes_on,
                "privacy: away costs accuracy, and a run that waits needs all its nodes: set "
                "on_absence = 'go on' in [network], or leave away out",
            ),
            (
                goes_on and not away and self.privacy.mechanism == "sealed",
                "privacy: away is missing: how many nodes a sealed sum may go on without; or set "
                "on_absence = 'wait' in [network]",
            ),
            (
                away and self.privacy.spares == 0,
                "privacy: spares is 0, and a sealed sum takes one each time that nodes stay away: "
                "give 1 or more, or leave away out",
            ),
        ]

    @property
    def _threshold_needs_more(self) -> bool:
        """Whether the model will not know what its threshold is to be made of."""
        wanted, loss = self.run.wanted, self.training.loss
        if wanted is None or isinstance(wanted, int | float) or self.privacy.calibration:
            return False
        planned = self.privacy.protected and self.privacy.by_round is None
        plain = loss is None or (loss.name == "logistic" and not getattr(loss, "margin", 0.0))
        return wanted == BALANCED or planned or not plain

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
        # a loss of residuals may be chosen, and its width: the planner's constants follow from it
        planned = [n for n in chosen if n != "loss" or not getattr(training.loss, "residual", 0)]
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
                "privacy: epsilon is missing: the most that anyone with a row at one node can lose "
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
                f"training: {', '.join(others)} is for the other algorithm: remove it",
            ),
            (
                by_round and len(no_total) < len(self.nodes),
                f"nodes: a total epsilon does not go with privacy.{unit}: give one or the other",
            ),
            (
                not by_round and planned,
                f"training: with a total epsilon the planner chooses {', '.join(planned)}; "
                f"remove {'it' if len(planned) == 1 else 'them'}, or replace epsilon with {unit}",
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
