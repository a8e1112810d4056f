"""A run file tried as a network: all its nodes as processes of this machine, with real links."""

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import numpy as np

from dynadp.errors import ConfigError, DynadpError, RecordError
from dynadp.privacy import Ledger, LedgerSummary
from dynadp.runs import authorities
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.run_file import RunFile
from dynadp.runs.status import read_status

_POLL = 0.2  # seconds
_PORTS = range(20_000, 32_768)  # below those that outgoing connections take
_DAYS = 90  # that certificates of a trial last: a node warns when fewer than 30 are left
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # nodes share one machine


def prepare_trial(path: str | Path, out: Path, patience: float) -> list[Path]:
    """Write certificates, a shared run file and a NODE.toml for each node.

    Parameters
    ----------
    path
        A run file for one process, in which each node has a file of its own.
    out
        The folder to write into; must not hold anything.
    patience
        Seconds that a node may stay away.

    Returns
    -------
    The NODE.toml files.
    """
    job = LocalRun.load(path)
    file, home = job.file, Path(path).resolve().parent
    if file.data.file is not None:
        raise ConfigError(
            f"{path}: data.file holds the rows of all nodes; on a network each node has a file of "
            f"its own"
        )
    if out.exists() and any(out.iterdir()):
        raise RecordError(
            f"{out} exists and is not an empty folder; choose another with --out, or go on with "
            f"--resume"
        )
    out.mkdir(parents=True, exist_ok=True)
    today, authority = datetime.now(UTC), out / "authority"
    authorities.make_authority(authority, f"trial of {file.run.name}"[:64], today)
    schema = f"schema{Path(file.data.schema_file).suffix}"
    shutil.copyfile(home / file.data.schema_file, out / schema)
    sections, made = [], []
    for node, port in zip(file.nodes, _free_ports(len(file.nodes)), strict=True):
        folder = quote(node.name, safe=" ")
        identity = authorities.make_node(
            authority, node.name, ["127.0.0.1"], out / "identities" / folder, today, _DAYS
        )
        sections.append(
            {
                "name": node.name,
                "endpoint": f"127.0.0.1:{port}",
                "key": identity.public,
                "rows": job.counts[node.name],
                **({} if node.epsilon is None else {"epsilon": node.epsilon}),
            }
        )
        own = {
            "run": "run.toml",
            "node": node.name,
            "identity": f"identities/{folder}",
            "file": str(home / str(node.file)),
            "out": folder,
            "patience": patience,
            **({} if node.ledger is None else {"ledger": str(home / node.ledger)}),
        }
        made.append(out / f"{folder}.toml")
        _write_toml(made[-1], own)
    _write_toml(out / "run.toml", {**_shared(file, schema, home), "nodes": sections})
    return made


def prepared_nodes(folder: Path) -> list[Path]:
    """Return the NODE.toml files of a trial that was begun."""
    nodes = sorted(file for file in folder.glob("*.toml") if file.name != "run.toml")
    if not nodes:
        raise RecordError(f"{folder} holds no nodes to go on with; leave out --resume to begin")
    return nodes


def run_trial(
    nodes: Sequence[Path],
    stop: Event,
    on_round: Callable[[int, int], None],
    goes_on_without: Callable[[int], bool] = lambda code: False,
) -> dict[str, int]:
    """Run all nodes until they end; where one fails, or ``stop`` is set, end the others.

    Parameters
    ----------
    nodes
        NODE.toml files.
    stop
        Set to end all nodes.
    on_round
        Called now and then with the round that all nodes have reached, and the number of rounds.
    goes_on_without
        Whether the others go on without a node that ended with this code.

    Returns
    -------
    The exit code of each node, by the name of its file.
    """
    running = {file: _start(file) for file in nodes}
    while any(process.poll() is None for process in running.values()):
        codes = (process.poll() for process in running.values())
        if stop.is_set() or any(code and not goes_on_without(code) for code in codes):
            for process in running.values():
                process.terminate()
            break
        reached = [_rounds_of(file.with_suffix("")) for file in nodes]
        on_round(min(done for done, _ in reached), max(rounds for _, rounds in reached))
        time.sleep(_POLL)
    return {file.stem: process.wait() for file, process in running.items()}


def trial_result(folder: Path, nodes: Sequence[Path]) -> dict[str, Any]:
    """Compare the models of a finished trial, as JSON."""
    models = {file.stem: load_model(file.with_suffix("")) for file in nodes}
    first = next(iter(models.values()))
    apart = max(
        float(np.abs(model.coef - first.coef).max(initial=0.0)) for model in models.values()
    )
    return {
        "version": 1,
        "folder": str(folder),
        "nodes": sorted(models),
        "largest_difference": apart,
        "statement": first.privacy["statement"],
    }


def open_reservation(folder: Path) -> tuple[str, str] | None:
    """Return the ledger and the name of a node's open run, or None if nothing is reserved."""
    try:
        status = read_status(folder)
        run = f"{status['run']} {status['config']}"
        with Ledger.open(status["ledger"], read_only=True) as ledger:
            reserved = run in LedgerSummary.of(ledger).open_runs
    except (DynadpError, KeyError, TypeError):
        return None
    return (status["ledger"], run) if reserved else None


def _shared(file: RunFile, schema: str, home: Path) -> dict[str, Any]:
    """The run file that all nodes share, without their sections."""
    content = file.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"nodes", "network", "evaluation"}
    )
    kept = {name: content["data"].get(name) for name in ("separator", "description")}
    content["data"] = {name: value for name, value in kept.items() if value is not None}
    content["data"]["schema"] = schema
    if file.network.absence.goes_on:  # a relay is the trial's own
        content["network"] = file.network.model_dump(
            mode="json", exclude_none=True, exclude={"relay"}
        )
    if "graphml" in content["topology"]:
        content["topology"]["graphml"] = str(home / content["topology"]["graphml"])
    return content


def _start(file: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "dynadp", "node", str(file), "--quiet"]
    with open(file.with_suffix(".out"), "ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**_THREADS, **os.environ}
        )


def _rounds_of(folder: Path) -> tuple[int, int]:
    """The round that a node has reached, and all rounds; zeros before it has begun."""
    try:
        status = read_status(folder)
        return status["round"], status["rounds"]
    except (RecordError, KeyError):
        return 0, 0


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, and that no connection gets by itself: a node that is
    started again finds its port free.
    """
    found = list[int]()
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise ConfigError(f"fewer than {count} ports of this machine are free")


def _write_toml(path: Path, content: dict[str, Any]) -> None:
    import tomli_w

    path.write_text(tomli_w.dumps(content))
