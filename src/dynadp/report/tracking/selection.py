"""What may leave a run folder: parameters, tags, metrics by round and the model, each from a
list of names.

Everything is read from the run folder, which holds declarations and what was made of released
vectors, and of it only what the lists below name: whatever else lies in the folder or in its files
stays there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from dynadp._files import canonical_json, digest
from dynadp.report.progress import QUANTITIES, Rounds
from dynadp.report.record_view import NotYet, RunView
from dynadp.report.states import states
from dynadp.runs import Model, load_model

SPREAD = ("median", "min", "max")
METRICS = (
    *(f"{name}/{which}" for name in QUANTITIES for which in SPREAD),
    "alpha/largest",  # of one round, at the node that loses most
    "mu/largest",  # likewise, where noise is Gaussian
    # plain sum of one node's alphas up to this round, centring included: holds at delta = 0
    "epsilon/sum_so_far",
    "epsilon/total",  # of the whole run, at the parameter delta; sent when the run is finished
    # the plan's, at the node that loses most, if so many nodes collude in sealed sums; the step is
    # their number, no round
    "collusion/epsilon",
    "collusion/mu",
)
SETTINGS = ("loss", "regularizer", "C", "weights", "rho", "eta", "steps", "rounds", "output")
DECLARED = ("honest", "colluding", "spares", "partners")  # of sealed sums
LIBRARIES = ("dynadp", "numpy", "scipy", "networkx", "pydantic")
PRIVACY = (
    "epsilon",
    "delta",
    "method",
    "epsilon_sum",
    "epsilon_pure",
    "alpha",
    "releases",
    "protected",
    "honest",
    "rows",
    "silos",
    "adjacency",
    "limited",
    "statement",
)
KEY = "dynadp.key"  # the tag by which a run is found again
SIMULATED = "SIMULATION: noise is seeded or rows are made, so that nobody is protected"
Status = Literal["RUNNING", "FINISHED", "FAILED"]


@dataclass(frozen=True)
class TrackedRun:
    """What may leave a run folder.

    Attributes
    ----------
    key
        A hash that another run does not share; all looks at the same run do.
    name, params, tags
        As MLflow has them.
    points
        {(metric, round): value}.
    models
        {artifact: text}: model.json, once there is one; NODE/model.json where a network's nodes are
        looked at together.
    status, began, ended
        As MLflow has them; times in milliseconds, None for one that is not over.
    rounds, planned
        Whole rounds that the folder holds; of so many, None where nobody knows.
    simulation, protected
        Whether noise was seeded; whether anybody is protected.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Mapping[tuple[str, int], float] = field(repr=False)
    models: Mapping[str, str] = field(repr=False)
    status: Status
    began: int
    ended: int | None
    rounds: int
    planned: int | None
    simulation: bool
    protected: bool

    @classmethod
    def read(cls, path: str | Path) -> "TrackedRun":
        """Read a run folder, or the folder of all nodes of a network."""
        view = RunView.read(path)
        alone = (Path(path) / "run.json").exists()
        if view.kind == "network" and not alone and len(view.folders) < len(view.topology):
            raise NotYet(
                f"{path} has {len(view.folders)} of the {len(view.topology)} nodes of its run; "
                f"name the folder of one node "
                "to log it by itself, or give --follow, which waits for the others"
            )
        finished = view.finished  # before lines are read: they are all there then
        models = _models(view) if finished else {}
        privacy = next(iter(models.values())).privacy if models else {}
        rounds, points = _points(view)
        points |= _collusion(view)
        if privacy.get("epsilon") is not None:
            points["epsilon/total", rounds] = float(privacy["epsilon"])
        protected = (
            view.plan is not None and not view.simulation and privacy.get("protected", True) is True
        )
        tags = _tags(view, protected, privacy)
        return cls(
            key=tags[KEY],
            name=f"{view.name}, {tags['dynadp.node']}" if "dynadp.node" in tags else view.name,
            params=_params(view, privacy),
            tags=tags,
            points=points,
            models={
                name: json.dumps(model.to_json(), indent=1, allow_nan=False) + "\n"
                for name, model in models.items()
            },
            status="FINISHED" if finished else _status(view, rounds),
            began=int(datetime.fromisoformat(view.record.created).timestamp() * 1000),
            ended=max(int((home / "model.json").stat().st_mtime * 1000) for home in view.homes)
            if finished
            else None,
            rounds=rounds,
            planned=view.plan.rounds if view.plan else None,
            simulation=view.simulation,
            protected=protected,
        )


def _status(view: RunView, rounds: int) -> Status:
    """A run that is not finished fails when no node goes on, and one has failed."""
    looks = {state.look for node, state in states(view, rounds).items() if node in view.folders}
    return "FAILED" if "failed" in looks and looks <= {"failed", "finished"} else "RUNNING"


def _params(view: RunView, privacy: Mapping[str, Any]) -> dict[str, str]:
    record, plan = view.record, view.plan
    gaussian = plan is not None and plan.noise == "gaussian"
    found = {
        "run": record.name,
        "kind": record.kind,
        "config_hash": record.config_hash,
        "schema_hash": record.schema_hash,
        "nodes": len(record.topology),
        "edges": len(record.topology.edges),
        "topology": record.topology.name,
        "rows": sum(record.rows.values()),
        "dimension": record.dimension,
        "mechanism": plan.mechanism if plan else "none",
        "epsilon": privacy.get("epsilon") or (plan.total["epsilon"] if plan else None),
        "delta": plan.delta if plan else None,
        "algorithm": plan.algorithm if plan else None,
        "noise": plan.noise if plan else None,
        "alpha": plan.alpha if plan and not gaussian else None,
        "mu": plan.alpha if plan and gaussian else None,
        **{name: plan.parameters.get(name) if plan else None for name in DECLARED},
        "members": len(record.topology) if plan and plan.exchange == "sealed" else None,
        "centring": max(plan.centrings.values()) if plan and plan.centrings else None,
        **{name: record.plan.get(name) for name in SETTINGS},
        "seed": record.seed if record.simulation else None,
        "python": record.python,
        **{f"version.{name}": record.libraries.get(name) for name in LIBRARIES},
    }
    return {
        name: value if isinstance(value, str) else canonical_json(value)
        for name, value in found.items()
        if value is not None
    }


def _tags(view: RunView, protected: bool, privacy: Mapping[str, Any]) -> dict[str, str]:
    # a network's run is its configuration, whenever a folder was made for it; others differ by
    # when they began
    network, nodes = view.kind == "network", sorted(view.folders)
    which = nodes if network else view.record.created
    tags = {
        KEY: digest([view.kind, view.record.config_hash, which]),
        "dynadp.protected": str(protected).lower(),
        "dynadp.simulation": str(view.simulation).lower(),
        "dynadp.created": view.record.created,
    }
    if network and len(nodes) == 1:
        tags["dynadp.node"] = nodes[0]
    if privacy.get("statement"):
        tags["dynadp.statement"] = privacy["statement"]
    elif view.simulation:
        tags["dynadp.statement"] = SIMULATED
    return tags


def _points(view: RunView) -> tuple[int, dict[tuple[str, int], float]]:
    """The number of whole rounds, and their metrics."""
    rounds = Rounds.of(view)
    lost = dict(view.plan.centrings) if view.plan else {}
    points: dict[tuple[str, int], float] = {}
    for row, alphas, mus in zip(rounds.rows, rounds.alphas, rounds.mus, strict=True):
        n = row["round"]
        if mus:
            points["mu/largest", n] = max(mus.values())
        for name in QUANTITIES:
            points |= {
                (f"{name}/{which}", n): value
                for which, value in zip(SPREAD, row[name], strict=True)
            }
        if alphas:
            lost |= {node: lost.get(node, 0.0) + alpha for node, alpha in alphas.items()}
            points["alpha/largest", n] = max(alphas.values())
            points["epsilon/sum_so_far", n] = max(lost[node] for node in alphas)
    return len(rounds.rows), points


def _collusion(view: RunView) -> dict[tuple[str, int], float]:
    """What the plan loses if so many nodes collude, as far as that is bounded."""
    return {
        (f"collusion/{name}", int(point["colluding"])): float(point[name])
        for point in (view.plan.collusion if view.plan else ())
        for name in ("epsilon", "mu")
        if point[name] is not None
    }


def _models(view: RunView) -> dict[str, Model]:
    """The models, checked, by the artifact's name."""
    models, nodes = {}, {home: node for node, home in view.folders.items()}
    for home, node in nodes.items():
        model = load_model(home)
        privacy = {name: value for name, value in model.privacy.items() if name in PRIVACY}
        name = f"{node}/model.json" if len(nodes) > 1 else "model.json"
        models[name] = replace(model, privacy=privacy, estimator=None)
    return models
