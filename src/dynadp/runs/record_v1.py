"""Records of version 1, as 0.1.0 wrote them, read as records of version 2.

Version 1 had three shapes: of runs in one process, of demos and of networks. What a shape lacks is
filled in here, and nowhere else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dynadp._files import digest
from dynadp.consensus import Topology
from dynadp.data import Schema
from dynadp.errors import RecordError
from dynadp.mechanisms import mechanism_from
from dynadp.privacy import worst_node
from dynadp.runs.model import load_model
from dynadp.runs.record import RecordedPlan, RunRecord, counted


def upgrade(content: Mapping[str, Any], folder: Path) -> RunRecord:
    """The record that version 2 would have written.

    Parameters
    ----------
    content
        What run.json holds.
    folder
        Its folder: the model or a message there tells the dimension where the record does not.
    """
    config = content.get("config")
    if digest(config) != content.get("config_hash") or not isinstance(config, Mapping):
        raise RecordError(
            f"{folder}: the config does not match its hash; run.json was changed by hand or is "
            f"damaged"
        )
    shape = _one_process if "counts" in config else _demo if "data" in config else _network
    told = shape(config, str(content["config_hash"]))
    told["schema"] = schema = config.get("schema")
    known = _schema(schema, folder)
    told["schema_hash"] = config["schema_hash"] if schema is None else known.digest()
    told["features"] = known.feature_count if known else None
    told["dimension"] = known.dimension if known else _width(folder)
    told["plan"] = _plan(told["plan"])
    if told["plan"]["mechanism"]["name"] != "none" and "total" not in told["plan"]:
        told["plan"]["total"] = _total(told, float(config["privacy"]["delta"]))
    return RunRecord.model_validate(
        told
        | {
            "created": str(content.get("created", "")),
            "simulation": bool(content.get("simulation", True)),
            "config_hash": content["config_hash"],
            "python": str(content.get("python", "")),
            "libraries": content.get("libraries", {}),
        }
    )


def _one_process(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    file, counts = config.get("file"), config["counts"]
    said = file or {"run": {"name": "run", "seed": None}, "data": {"description": "rows"}}
    return {
        "kind": "one process",
        "name": said["run"]["name"],
        "run_id": str(config.get("run_id", name)),
        "seed": said["run"]["seed"],
        "source": counted(said["data"]["description"], counts),
        "topology": config["topology"],
        "rows": counts,
        "file": file,
        "plan": config["plan"] or {"mechanism": {"name": "none"}, **said.get("training", {})},
    }


def _demo(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    data, mechanism = config["data"], config["mechanism"]
    mechanism = {"name": mechanism} if isinstance(mechanism, str) else mechanism
    source = f"{data['rows']:,} {data['name']} rows made here (synthetic), seed {data['seed']}"
    return {
        "kind": "demo",
        "name": f"demo, {mechanism['name']}",
        "run_id": f"demo, {mechanism['name']} {name[:16]}",
        "seed": data["seed"],
        "source": source,
        "topology": config["topology"],
        "rows": {node["name"]: node["rows"] for node in config["nodes"]},
        "made": data,
        "plan": {**config, "mechanism": mechanism},
    }


def _network(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    rows = {node: own["rows"] for node, own in config["nodes"].items()}
    edges = [tuple(edge) for edge in config["edges"]]
    run = config["run"]
    agreed = {key: config[key] for key in ("run", "privacy", "training")}
    sections = [{"name": node, **own} for node, own in config["nodes"].items()]
    return {
        "kind": "network",
        "name": run["name"],
        "run_id": f"{run['name']} {name[:16]}",
        "seed": run["seed"],
        "source": counted("rows", rows),
        "topology": Topology.from_edges(edges, rows).describe(),
        "rows": rows,
        "file": {**agreed, "nodes": sections},
        "plan": {**config["plan"], "output": run["output"]},
    }


def _plan(told: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the fields that came later; a demo's holds other fields of its record too."""
    names = ("mechanism", "loss", "regularizer", "C", "weights", "rho", "eta", "rounds", "output")
    plan = {name: told[name] for name in names if told.get(name) is not None}
    if plan["mechanism"]["name"] == "none":
        return plan
    plan["mechanism"] = mechanism_from(plan["mechanism"]).describe()  # under today's names
    plan |= {"alphas": told["alphas"], "reasons": told.get("reasons", [])}
    if "total" in told:
        plan["total"] = told["total"]
    if "centrings" in told:
        plan["centrings"] = told["centrings"]
    else:  # the largest alone was kept; 0.1.0 planned them in proportion to alpha
        most, largest = told["centring"], max(told["alphas"])
        plan["centrings"] = [most * (alpha / largest) for alpha in told["alphas"]] if most else []
    if "weights" not in plan:  # 0.1.0 knew equal weights alone, and no pull of a single node
        plan |= {"weights": "equal", "lone_pull": False}
    return plan


def _total(told: Mapping[str, Any], delta: float) -> dict[str, Any]:
    """The total of a network's plan, which its record did not have."""
    nodes = told["topology"]["nodes"]
    placeholder = {"delta": delta}
    plan = RecordedPlan.from_json({**told["plan"], "total": placeholder}, nodes)
    edges = [(nodes[u], nodes[v]) for u, v in told["topology"]["edges"]]
    network = Topology.from_edges(edges, nodes)
    events = plan.events(network, told["rows"], told["dimension"], told["features"])
    return worst_node(events, delta).to_json()


def _schema(schema: Any, folder: Path) -> Any:
    """From the record, or from the model, once there is one."""
    if schema is not None:
        return Schema.model_validate(schema)
    return load_model(folder).schema if (folder / "model.json").exists() else None


def _width(folder: Path) -> int | None:
    """d of a simulation that goes on, from a message."""
    try:
        first = folder / "messages" / "round-000001.npy"
        return int(np.load(first, mmap_mode="r", allow_pickle=False).shape[-1])
    except (OSError, ValueError):  # none was sent yet, or the run is over
        return None
