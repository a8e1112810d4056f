"""The run file: everything that is decided before a run, as TOML, checked all at once.

Paths are relative to the file. A flag beats an environment variable, which beats the file, which beats the default. Mistakes
are reported together, each with its place and what to do, and without the values that were given.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dynadp.canonical import digest
from dynadp.data import Schema
from dynadp.errors import ConfigError
from dynadp.losses import HuberHinge, Logistic, Loss, SmoothedHinge
from dynadp.perturbation import Dual, NoPerturbation, Perturbation, Primal
from dynadp.readers import LEAST_MEMORY
from dynadp.regularizers import Regularizer, SmoothElasticNet, SquaredL2
from dynadp.topology import FAMILIES, Topology

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be a line of printable text")
    return text


def _plain(text: str) -> str:
    if "/" in text or "\\" in text or text in (".", "..") or not text.isprintable():
        raise ValueError("must be a line of printable text without slashes: a folder is named after it")
    return text


Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_line)]
Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_plain)]
File = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_line)]


def _mebibytes(given: Any) -> Any:
    """A limit on memory in MiB, from a number of them or a text with a unit."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([MG]i?B)\s*", given) if isinstance(given, str) else None
    units = {"MiB": 2**20, "GiB": 2**30, "MB": 10**6, "GB": 10**9}
    mebibytes = math.floor(float(found[1]) * units[found[2]] / 2**20) if found else given
    if not isinstance(mebibytes, int) or isinstance(mebibytes, bool) or mebibytes < LEAST_MEMORY >> 20:
        raise ValueError(f'must be a whole number of MiB from {LEAST_MEMORY >> 20}, or a text such as "512 MiB" or "2 GiB"')
    return mebibytes


Memory = Annotated[int, BeforeValidator(_mebibytes)]


class Section(BaseModel):
    """A table of the run file: no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class RunSection(Section):
    """What the run is called, and whether it is a simulation."""

    name: Name = "run"
    seed: Annotated[int, Field(ge=0)] | None = None
    output: Literal["last", "tail", "neighbours", "network"] = "network"
    device: Literal["cpu", "cuda"] = "cpu"


class DataSection(Section):
    """Where rows and their public declarations are, and how much memory a node's rows may take: more than that is streamed."""

    schema_file: Annotated[File, Field(alias="schema")]
    file: File | None = None
    node_column: str | None = None
    separator: Literal[",", ";", "\t"] | None = None
    description: Line = "rows"
    memory: Memory | None = None


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if (
        not host
        or not port.isdecimal()
        or not 0 < int(port) < 65536
        or any(letter.isspace() or letter == "/" for letter in host)
    ):
        raise ValueError("must be HOST:PORT, such as silo.example.org:7447")
    return text


Address = Annotated[str, Field(max_length=300), AfterValidator(_address)]
SigningKey = Annotated[str, Field(pattern=r"^ed25519:[A-Za-z0-9+/]{43}=$")]


class NodeSection(Section):
    """One node: its rows, its ledger, and a total of its own; on a network, where it is reached and its public signing key."""

    name: Line
    file: File | None = None
    ledger: File | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    epsilon: Above0 | None = None
    endpoint: Address | None = None
    key: SigningKey | None = None


class NetworkSection(Section):
    """How nodes reach each other, beyond their endpoints."""

    relay: Address | None = None


class TopologySection(Section):
    """Who exchanges messages with whom."""

    family: str = "ring"
    degree: Annotated[int, Field(ge=2)] = 4
    probability: Share | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    edges: tuple[tuple[str, str], ...] | None = None
    graphml: File | None = None

    @model_validator(mode="after")
    def _known(self) -> "TopologySection":
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}")
        if self.edges is not None and self.graphml is not None:
            raise ValueError("give edges or graphml, not both")
        return self


class PrivacySection(Section):
    """How messages are protected, and what that may cost in total (epsilon, delta) or in each round (alpha)."""

    mechanism: Literal["primal", "dual", "none"] = "primal"
    epsilon: Above0 | None = None
    delta: Share | None = None
    alpha: Above0 | None = None
    own: Literal["public", "paper"] = "public"
    split: Literal["optimal", "paper"] = "optimal"
    centring: bool = True

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "PrivacySection":
        if self.mechanism == "none":
            if self.epsilon is not None or self.alpha is not None:
                raise ValueError(
                    "mechanism is none, so nothing is protected: leave out epsilon and alpha, or choose a mechanism"
                )
            return self
        if self.delta is None:
            raise ValueError("delta is missing: the chance left to worse luck, well below one over the number of rows")
        if self.epsilon is not None and self.alpha is not None:
            raise ValueError("give epsilon (a total; the planner chooses the rest) or alpha (each round), not both")
        return self


class LossSection(Section):
    """L."""

    name: Literal["logistic", "smoothed_hinge", "huber_hinge"] = "logistic"
    margin: float | None = None
    width: Above0 = 0.5

    def made(self) -> Loss:
        """The loss."""
        if self.name == "logistic":
            return Logistic(self.margin or 0.0)
        kind = SmoothedHinge if self.name == "smoothed_hinge" else HuberHinge
        return kind(width=self.width, margin=1.0 if self.margin is None else self.margin)


class RegularizerSection(Section):
    """R."""

    name: Literal["squared_l2", "smooth_elastic_net"] = "squared_l2"
    l1: Above0 = 1.0
    scale: Above0 = 0.1

    def made(self) -> Regularizer:
        """The regulariser."""
        return SquaredL2() if self.name == "squared_l2" else SmoothElasticNet(self.l1, self.scale)


class TrainingSection(Section):
    """The paper's constants; with a total epsilon the planner chooses them."""

    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    C: Above0 | None = None
    rho: Above0 | None = None
    eta: Above0 | None = None
    loss: LossSection | None = None
    regularizer: RegularizerSection | None = None


class EvaluationSection(Section):
    """Rows on which accuracy may be told, because they are declared public."""

    file: File
    public: Literal[True]


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
        """Whether nodes run apart from each other, each with a NODE.toml of its own; the file is then shared by all."""
        return self.network.relay is not None or any(node.key is not None or node.endpoint is not None for node in self.nodes)

    @model_validator(mode="after")
    def _parts_agree(self) -> "RunFile":
        names = [node.name for node in self.nodes]
        problems = ["nodes: two have the same name: names must differ"] if len(set(names)) < len(names) else []
        problems += self._network_problems() if self.networked else self._data_problems(names)
        problems += self._privacy_problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _network_problems(self) -> list[str]:
        problems = []
        for name, why in (("key", "a public signing key, as `dynadp pki` prints it"), ("rows", "a public number of rows")):
            missing = [node.name for node in self.nodes if getattr(node, name) is None]
            if missing:
                problems.append(f"nodes: no {name} for {', '.join(missing)}: every node of a network needs {why}")
        if len(keys := [node.key for node in self.nodes if node.key]) > len(set(keys)):
            problems.append("nodes: two have the same key: every node signs with its own")
        if self.data.file is not None or any(node.file is not None or node.ledger is not None for node in self.nodes):
            problems.append("nodes: the file of a network run is shared by all: files and ledgers belong into each NODE.toml")
        if any(len(node.name.encode()) > 64 or node.name == "relay" for node in self.nodes):
            problems.append("nodes: on a network a name has at most 64 letters (bytes in UTF-8), and is not 'relay'")
        if any(re.fullmatch(r"[\w-]+(\.[\w-]+)+", node.name) for node in self.nodes):
            problems.append("nodes: on a network a name must not be a host name, which certificates of others may carry")
        if self.privacy.mechanism == "none":
            problems.append("privacy: mechanism is none, so messages would reveal rows: a network run needs a mechanism")
        if self.privacy.own == "paper":
            problems.append("privacy: own = 'paper' needs a private vector that no crash may lose: networks run own = 'public'")
        if self.run.device != "cpu":
            problems.append("run: device is for runs in one process: a node of a network works on its CPU")
        return problems

    def _data_problems(self, names: list[str]) -> list[str]:
        problems = []
        apart = [node.name for node in self.nodes if node.file is None]
        if self.data.file is None and apart:
            problems.append(f"nodes: no file for {', '.join(apart)}: give each node a file, or data.file with data.node_column")
        if self.data.file is not None and (self.data.node_column is None or len(apart) < len(names)):
            problems.append("data: file holds the rows of all nodes: name its node_column, and leave out the nodes' own files")
        if self.data.file is not None and self.data.memory is not None:
            problems.append("data: memory limits what is read of a node's own file: give each node a Parquet file of its own")
        return problems

    def _privacy_problems(self) -> list[str]:
        privacy, problems = self.privacy, []
        own = [node for node in self.nodes if node.epsilon is not None]
        if privacy.mechanism == "none":
            return ["nodes: an epsilon without a mechanism protects nobody: leave it out"] if own else []
        if privacy.alpha is None and privacy.epsilon is None and len(own) < len(self.nodes):
            problems.append("privacy: epsilon is missing: the total that nobody may lose more of (or alpha for each round)")
        if privacy.alpha is not None:
            given = [name for name in ("rounds", "rho", "eta") if getattr(self.training, name) is None]
            if given:
                problems.append(
                    f"training: with privacy.alpha, {', '.join(given)} must be given; with epsilon the planner chooses"
                )
            if own:
                problems.append("nodes: a total epsilon does not go with privacy.alpha: give one or the other")
        else:
            chosen = [
                name
                for name in ("rounds", "C", "rho", "eta", "loss", "regularizer")
                if getattr(self.training, name) is not None
            ]
            if chosen:
                problems.append(
                    f"training: with a total epsilon the planner chooses {', '.join(chosen)}; leave out, or give alpha"
                )
            if privacy.own == "paper" or privacy.split == "paper":
                problems.append("privacy: own and split of the paper go with alpha, not with a total epsilon")
        if self.networked:
            return problems
        missing = [node.name for node in self.nodes if node.ledger is None]
        if self.run.seed is None and missing:
            problems.append(
                f"nodes: no ledger for {', '.join(missing)}, where a private run enters what it spends: make one with `dynadp "
                "ledger cap FILE --node NAME --epsilon E --delta D`, or set run.seed for a SIMULATION that protects nobody"
            )
        if self.run.seed is not None and len(missing) < len(self.nodes):
            problems.append("nodes: a seeded run is a SIMULATION and enters no ledger: leave out ledger, or leave out run.seed")
        return problems

    def digest(self) -> str:
        """SHA-256 of what it says, whatever the order and spelling."""
        return digest(self.model_dump(mode="json", by_alias=True))

    @property
    def totals(self) -> dict[str, float] | None:
        """epsilon of each node; None where alpha is given, or nothing is protected."""
        if self.privacy.mechanism == "none" or self.privacy.alpha is not None:
            return None
        return {node.name: node.epsilon or self.privacy.epsilon or 0.0 for node in self.nodes}

    @property
    def mechanism(self) -> Perturbation:
        """As the privacy section says."""
        if self.privacy.mechanism == "none":
            return NoPerturbation()
        return Primal(own=self.privacy.own) if self.privacy.mechanism == "primal" else Dual(split=self.privacy.split)

    def graph(self, folder: Path) -> Topology:
        """The topology over the nodes, in the file's order."""
        section, names = self.topology, [node.name for node in self.nodes]
        if section.graphml is not None:
            found = Topology.from_graphml(folder / section.graphml)
            return self._known(
                Topology.from_edges([(found.nodes[u], found.nodes[v]) for u, v in found.edges], names, "graphml")
            )
        if section.edges is not None:
            return self._known(Topology.from_edges(section.edges, names))
        return Topology.family(
            section.family, len(names), degree=section.degree, probability=section.probability, seed=section.seed
        ).named(names)

    def _known(self, topology: Topology) -> Topology:
        strangers = set(topology.nodes) - {node.name for node in self.nodes}
        if strangers:
            raise ConfigError(f"topology: an edge names {', '.join(sorted(strangers))}, which nodes does not list")
        return topology


def load_run_file(path: str | Path, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """Read and check a run file.

    Parameters
    ----------
    path
        The file.
    overrides
        Values that beat the file's, by place, such as ``{"privacy.epsilon": 2.0}``; None leaves the file's.
    """
    content = _toml(Path(path))
    for place, value in (overrides or {}).items():
        if value is None:
            continue
        section, _, key = place.partition(".")
        table = content.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} must be a table")
        table[key] = value
    try:
        return RunFile.model_validate(content)
    except ValidationError as error:
        raise _explained(path, error) from None


class NodeFile(Section):
    """NODE.toml: what one silo keeps to itself.

    Attributes
    ----------
    run
        The run file that all nodes share.
    node
        Which of its nodes this is.
    identity
        The folder with ca.pem, tls.pem, tls.key and sign.key.
    file, ledger
        Its rows, and where it enters what it spends; no ledger in a SIMULATION.
    out
        The run folder, with model, record, letters and log.
    listen
        Where to listen, if not on its endpoint.
    patience
        Seconds that a neighbour may stay away before this node stops, to be started again.
    memory
        What its rows may take here, if not what the run file says.
    """

    run: File
    node: Line
    identity: File
    file: File
    ledger: File | None = None
    out: File
    listen: Address | None = None
    patience: Above0 = 600.0
    memory: Memory | None = None


def load_node_file(path: str | Path) -> NodeFile:
    """Read and check a NODE.toml."""
    try:
        return NodeFile.model_validate(_toml(Path(path)))
    except ValidationError as error:
        raise _explained(path, error) from None


def load_schema(path: str | Path) -> Schema:
    """Read a schema from TOML or JSON."""
    path = Path(path)
    content = _json(path) if path.suffix == ".json" else _toml(path)
    try:
        return Schema.model_validate(content)
    except ValidationError as error:
        raise _explained(path, error) from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ConfigError(f"{path} is not TOML ({place})") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise ConfigError(f"{path} is not JSON") from None


def _explained(path: str | Path, error: ValidationError) -> ConfigError:
    """All mistakes, one a line, each with its place; never the value that was given."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "there is no such key; check its spelling and its table"
        elif problem["type"] == "missing":
            message = "is missing"
        lines += [f"{place}: {message}"] if place else message.split("\n")  # the whole file's mistakes come in one
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return ConfigError(f"{path}: {count}\n" + "\n".join(f"  {line}" for line in lines))
