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
from dynadp.runs.record import RunRecord, counted


def upgrade(content: Mapping[str, Any], folder: Path) -> RunRecord:
    """The record that version 2 would have written.

    Parameters
    ----------
    content
        What run.json holds.
    folder
        Its folder: the model or a message there has the dimension where the record does not.
    """
    config = content.get("config")
    if digest(config) != content.get("config_hash") or not isinstance(config, Mapping):
        raise RecordError(
            f"{folder}: the config does not match its hash; run.json was changed by hand or is "
            f"damaged"
        )
    shape = _one_process if "counts" in config else _demo if "data" in config else _network
    record = shape(config, str(content["config_hash"])) | {
        "created": str(content.get("created", "")),
        "simulation": bool(content.get("simulation", True)),
        "config_hash": content["config_hash"],
        "python": str(content.get("python", "")),
        "libraries": content.get("libraries", {}),
    }
    record["schema"] = schema = config.get("schema")
    known = _schema(schema, folder)
    record["schema_hash"] = config["schema_hash"] if schema is None else known.digest()
    record["features"] = known.feature_count if known else None
    record["dimension"] = known.dimension if known else _width(folder)
    record["plan"] = plan = _plan(record["plan"])
    if plan["mechanism"]["name"] != "none" and "total" not in plan:  # a network's
        delta = float(config["privacy"]["delta"])
        plan["total"] = {"delta": delta}
        events = RunRecord.model_validate(record).events or ()
        plan["total"] = worst_node(events, delta).to_json()
    return RunRecord.model_validate(record)


def _one_process(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    file, counts = config.get("file"), config["counts"]
    known = file or {"run": {"name": "run", "seed": None}, "data": {"description": "rows"}}
    return {
        "kind": "one process",
        "name": known["run"]["name"],
        "run_id": str(config.get("run_id", name)),
        "seed": known["run"]["seed"],
        "source": counted(known["data"]["description"], counts),
        "topology": config["topology"],
        "rows": counts,
        "file": file,
        "plan": config["plan"] or {"mechanism": {"name": "none"}, **known.get("training", {})},
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


def _plan(given: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with the fields that came later; a demo's holds other fields of its record too."""
    names = ("mechanism", "loss", "regularizer", "C", "weights", "rho", "eta", "rounds", "output")
    plan = {name: given[name] for name in names if given.get(name) is not None}
    if plan["mechanism"]["name"] == "none":
        return plan
    plan["mechanism"] = mechanism_from(plan["mechanism"]).describe()  # under today's names
    plan |= {"alphas": given["alphas"], "reasons": given.get("reasons", [])}
    if "total" in given:
        plan["total"] = given["total"]
    if "centrings" in given:
        plan["centrings"] = given["centrings"]
    else:  # the largest alone was kept; 0.1.0 planned them in proportion to alpha
        most, largest = given["centring"], max(given["alphas"])
        plan["centrings"] = [most * (alpha / largest) for alpha in given["alphas"]] if most else []
    if "weights" not in plan:  # 0.1.0 knew equal weights alone, and no pull of a single node
        plan |= {"weights": "equal", "lone_pull": False}
    return plan


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
