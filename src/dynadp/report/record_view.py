"""A run as its folder tells it: one process, a demo, one node of a network, or all nodes of one.

Only public things are read: declarations, what was released, ledger events and the states that
nodes tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dynadp._files import digest, read_file
from dynadp.consensus import Topology
from dynadp.data import Schema
from dynadp.errors import DynadpError, RecordError
from dynadp.mechanisms import mechanism_from
from dynadp.planning import planned_events, public_numbers
from dynadp.privacy import Event
from dynadp.problem import shares
from dynadp.runs import LossSection, load_model, load_run

Kind = Literal["one process", "demo", "network"]
STATUS = "dynadp-status"
MADE_BY = "give a folder that `dynadp train`, `demo`, `node` or `launch` made"


@dataclass(frozen=True)
class Planned:
    """What was decided before the first round.

    Attributes
    ----------
    mechanism
        Its name.
    settings
        C, rho, eta, loss and so on, as recorded.
    rounds, delta
        T and the total's delta.
    alphas, centrings
        alpha of each round of training and of the centring round, by node.
    reasons
        The planner's, where recorded.
    total
        The total as recorded; None where the record has none.
    """

    mechanism: str
    settings: Mapping[str, Any]
    rounds: int
    delta: float
    alphas: Mapping[str, float]
    centrings: Mapping[str, float]
    reasons: tuple[str, ...] = ()
    total: Mapping[str, Any] | None = None

    @property
    def alpha(self) -> float:
        """The largest loss of one round of training."""
        return max(self.alphas.values())


@dataclass(frozen=True)
class RunView:
    """What the folder says, apart from what still grows.

    Attributes
    ----------
    path, folders
        The folder that was given; where each node's lines and state are (in one process all share
        one).
    kind, name, created, simulation
        What kind of run; what it is called; when it began; whether noise was seeded.
    topology, rows
        Who exchanges messages with whom; B_p of each node.
    plan
        None where nothing is protected.
    dimension, features
        d with and without the intercept; None while the record does not tell.
    record
        run.json of the first folder.
    """

    path: Path
    folders: Mapping[str, Path]
    kind: Kind
    name: str
    created: str
    simulation: bool
    topology: Topology
    rows: Mapping[str, int]
    plan: Planned | None
    dimension: int | None
    features: int | None
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: str | Path) -> "RunView":
        """Read a run folder, or the folder of a network's nodes."""
        path = Path(path)
        homes = run_folders(path)
        record = load_run(homes[0])
        config = record["config"]
        try:
            kind = _kind(config)
            topology, rows = _network(config, kind)
            plan = _plan(config, kind, topology.nodes)
            schema = _schema(config, homes[0])
            file = config.get("file", config)
            name = (
                f"demo, {config['mechanism']['name']}"
                if kind == "demo"
                else str(file["run"]["name"])
            )
            folders = (
                dict.fromkeys(topology.nodes, homes[0])
                if kind != "network"
                else _homes(homes, topology.nodes)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DynadpError):
                raise
            raise RecordError(
                f"{homes[0]}: run.json lacks what a run of dynadp records ({error}); restore it"
            ) from error
        dimension = schema.dimension if schema else _width(homes[0], plan)
        features = len(schema.features) - bool(schema.intercept) if schema else None
        told = str(record.get("created", "")), bool(record.get("simulation", True))
        return cls(
            path, folders, kind, name, *told, topology, rows, plan, dimension, features, record
        )

    @property
    def home(self) -> Path:
        """The first folder with a record."""
        return next(iter(self.folders.values()))

    @property
    def homes(self) -> tuple[Path, ...]:
        """All folders, each once."""
        return tuple(dict.fromkeys(self.folders.values()))

    @property
    def key(self) -> str:
        """Eight letters that another run in the same place does not share."""
        return digest([self.record["config_hash"], self.created])[:8]

    @property
    def run_id(self) -> str:
        """What ledgers call the run."""
        told = self.record["config"].get("run_id")
        return str(told) if told else f"{self.name} {self.record['config_hash'][:16]}"

    @property
    def finished(self) -> bool:
        """Whether every folder has its model."""
        return all((home / "model.json").exists() for home in self.homes)

    @property
    def source(self) -> str:
        """Whose rows they are, in words."""
        config = self.record["config"]
        if self.kind == "demo":
            data = config["data"]
            return f"{data['rows']:,} census rows made here (synthetic), seed {data['seed']}"
        told = config["file"]["data"]["description"] if "file" in config else "rows"
        return f"{told}: {sum(self.rows.values()):,} rows at {len(self.topology)} node{'s' * (len(self.topology) != 1)}"

    def events(self) -> tuple[Event, ...] | None:
        """Everything that was planned, by all nodes; None where nothing is protected or the record
        does not tell enough.
        """
        if (
            self.plan is None
            or self.dimension is None
            or (self.plan.centrings and self.features is None)
        ):
            return None
        plan, nodes = self.plan, self.topology.nodes
        counts = np.array([self.rows[p] for p in nodes], dtype=float)
        told = plan.settings
        C, degrees = shares(told["C"], counts, told.get("weights", "equal")), self.topology.degrees
        if (
            "weights" not in told and len(nodes) == 1
        ):  # version 0.1.0, which knew equal weights alone, and no pull of one node
            degrees = np.zeros(1)
        public = public_numbers(
            counts, degrees, self.dimension, C, told["rho"], told["eta"], _loss(told["loss"])
        )
        alphas, centrings = (
            [plan.alphas[p] for p in nodes],
            [plan.centrings[p] for p in nodes if plan.centrings],
        )
        return tuple(
            planned_events(
                mechanism_from(told["mechanism"]),
                public,
                plan.rounds,
                nodes,
                alphas,
                centrings,
                self.features or 0,
            )
        )


def run_folders(path: Path) -> list[Path]:
    """The folder itself, or the folders of one run's nodes in it."""
    if not path.is_dir():
        raise RecordError(f"{path} is not a folder; {MADE_BY}")
    if (path / "run.json").exists():
        return [path]
    found = sorted(file.parent for file in path.glob("*/run.json"))
    if not found:
        told = {
            file.parent.name: read_file(file, STATUS).get("state")
            for file in sorted(path.glob("**/status.json"))
        }
        if told:
            said = "; ".join(f"{node}: {state}" for node, state in told.items())
            raise RecordError(
                f"the nodes in {path} have not agreed on a run yet, so there is no run.json "
                f"({said})"
            )
        raise RecordError(f"{path} has no run.json, nor has a folder in it; {MADE_BY}")
    if len(found) > 1 and len({load_run(one)["config_hash"] for one in found}) > 1:
        names = ", ".join(one.name for one in found)
        raise RecordError(
            f"{path} holds {len(found)} different runs ({names}); name one of them, such as "
            f"{found[-1]}"
        )
    return found


def _kind(config: Mapping[str, Any]) -> Kind:
    return "one process" if "file" in config else "demo" if "data" in config else "network"


def _network(config: Mapping[str, Any], kind: Kind) -> tuple[Topology, dict[str, int]]:
    if kind == "network":
        rows = {name: int(node["rows"]) for name, node in config["nodes"].items()}
        return Topology.from_edges([tuple(edge) for edge in config["edges"]], rows), rows
    told = config["topology"]
    names = told["nodes"]
    topology = Topology.from_edges(
        [(names[u], names[v]) for u, v in told["edges"]], names, told["name"]
    )
    counts = (
        config["counts"]
        if kind == "one process"
        else {node["name"]: node["rows"] for node in config["nodes"]}
    )
    return topology, {p: int(counts[p]) for p in topology.nodes}


def _plan(config: Mapping[str, Any], kind: Kind, nodes: Sequence[str]) -> Planned | None:
    told = config if kind == "demo" else config["plan"]
    if told is None or told["mechanism"]["name"] == "none":
        return None
    alphas = dict(zip(nodes, told["alphas"], strict=True))
    total = told.get("total")
    if kind == "network":
        centrings = dict(zip(nodes, told["centrings"], strict=True)) if told["centrings"] else {}
        delta = float(config["privacy"]["delta"])
    else:  # the record has the largest; they are in proportion to alpha
        most = told["centring"]
        centrings = (
            {p: most * alpha / max(alphas.values()) for p, alpha in alphas.items()} if most else {}
        )
        delta = float(told["total"]["delta"])
    names = ("mechanism", "loss", "regularizer", "C", "weights", "rho", "eta", "output")
    settings = {name: told[name] for name in names if name in told}
    words = tuple(told.get("reasons", ()))
    return Planned(
        told["mechanism"]["name"],
        settings,
        int(told["rounds"]),
        delta,
        alphas,
        centrings,
        words,
        total,
    )


def _schema(config: Mapping[str, Any], home: Path) -> Schema | None:
    """From the record, or from the model, once there is one."""
    if "schema" in config:
        return Schema.model_validate(config["schema"])
    return load_model(home).schema if (home / "model.json").exists() else None


def _width(home: Path, plan: Planned | None) -> int | None:
    """d of a simulation that goes on, from a message."""
    first = home / "messages" / "round-000001.npy"
    if plan is None or not first.exists():
        return None
    try:
        return int(np.load(first, mmap_mode="r", allow_pickle=False).shape[-1])
    except (OSError, ValueError):  # removed meanwhile: the run is over
        return None


def _homes(homes: Sequence[Path], nodes: Sequence[str]) -> dict[str, Path]:
    """Folders by node, in the network's order: each tells in status.json whose it is."""
    found = {}
    for home in homes:
        try:
            found[str(read_file(home / "status.json", STATUS)["node"])] = home
        except RecordError:
            found[home.name] = home
    return {p: found[p] for p in nodes if p in found} or {home.name: home for home in homes}


def _loss(told: Mapping[str, Any]) -> Any:
    return LossSection.model_validate(
        {k: v for k, v in told.items() if k in ("name", "margin", "width")}
    ).made()
