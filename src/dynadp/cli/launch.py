"""``dynadp launch``: all nodes of a run file as processes of this machine, with real links, for
trials.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

from dynadp.cli.codes import FAILED, INTERRUPTED, REFUSED
from dynadp.cli.network import stopping
from dynadp.errors import ConfigError, DynadpError, RecordError
from dynadp.privacy import Ledger, LedgerSummary
from dynadp.runs import LocalRun, RunFile, load_model, load_run_file, read_status
from dynadp.runs import identities as pki

_POLL = 0.2  # seconds
_DAYS = 90  # that certificates of a trial last: a node warns when fewer than 30 are left
_STOPPED = (
    -signal.SIGTERM,
    128 + signal.SIGTERM,
)  # by launch itself, before or after the node could say so


def prepare(path: str, out: Path, patience: float) -> list[Path]:
    """Certificates, a shared run file and one NODE.toml each, from a run file for one process;
    returns the NODE.toml files.
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
    today = datetime.now(UTC)
    pki.make_authority(out / "authority", f"trial of {file.run.name}"[:64], today)
    ports, sections, made = _free_ports(len(file.nodes)), [], []
    schema = f"schema{Path(file.data.schema_file).suffix}"
    shutil.copyfile(home / file.data.schema_file, out / schema)
    for node, port in zip(file.nodes, ports, strict=True):
        folder = quote(node.name, safe=" ")
        identity = pki.make_node(
            out / "authority", node.name, ["127.0.0.1"], out / "identities" / folder, today, _DAYS
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
        _write_toml(out / f"{folder}.toml", own)
        made.append(out / f"{folder}.toml")
    _write_toml(out / "run.toml", {**_shared(file, schema, home), "nodes": sections})
    return made


def _shared(file: RunFile, schema: str, home: Path) -> dict[str, Any]:
    said = file.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"nodes", "network", "evaluation"}
    )
    said["data"] = {
        **{k: v for k, v in said["data"].items() if k in ("separator", "description")},
        "schema": schema,
    }
    if "graphml" in said["topology"]:
        said["topology"]["graphml"] = str(home / said["topology"]["graphml"])
    return said


def run_launch(path: str, out: str | None, resume: bool, patience: float, as_json: bool) -> None:
    """Start all nodes, show how far they are, and tell what came out."""
    folder = Path(out) if out else Path("runs") / f"{load_run_file(path).run.name}-network"
    if resume:
        nodes = sorted(file for file in folder.glob("*.toml") if file.name != "run.toml")
        if not nodes:
            raise RecordError(f"{folder} holds no nodes to go on with; leave out --resume to begin")
    else:
        nodes = prepare(path, folder, patience)
    console = Console(stderr=True)
    with stopping() as (stop, came):
        running = {file: _start(file) for file in nodes}
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("rounds", total=None)
            while any(process.poll() is None for process in running.values()):
                failed = any(process.poll() for process in running.values())
                if stop.is_set() or failed:
                    for process in running.values():
                        process.terminate()
                    for process in running.values():
                        process.wait()
                    break
                done = [_round(file.with_suffix("")) for file in nodes]
                progress.update(
                    task, completed=min(n for n, _ in done), total=max(t for _, t in done) or None
                )
                time.sleep(_POLL)
    codes = {file.stem: process.returncode for file, process in running.items()}
    bad = {name: code for name, code in codes.items() if code and code not in _STOPPED}
    if came or bad:
        for name, code in bad.items():
            for line in (
                (folder / f"{name}.out").read_text(errors="replace").strip().splitlines()[-3:]
            ):
                click.echo(f"{name}: {line}", err=True)
            if code < 0:
                click.echo(f"{name} was killed by signal {-code}", err=True)
        refusing = [name for name, code in bad.items() if code == REFUSED]
        click.echo(
            _advice(path, folder, nodes, "interrupted" if came else "stopped", refusing), err=True
        )
        sys.exit(INTERRUPTED if came else max(FAILED, next(iter(bad.values()))))
    _tell(folder, nodes, as_json)


def _advice(path: str, folder: Path, nodes: list[Path], word: str, refusing: list[str]) -> str:
    """How to go on; where a ledger refused the run, going on would be refused again."""
    again = f"dynadp launch {path} --out {folder} --resume"
    if not refusing:
        return f"dynadp: {word}; go on with: {again}"
    lines = [
        f"dynadp: the ledger of {', '.join(refusing)} refused the run, so it cannot go on as it "
        f"is. Above stands what helps.",
        f"  Where that is room in the ledger, make it, and then: {again}",
        f"  Where it is to ask for less, change {path}, and begin anew in another folder: dynadp "
        f"launch {path} --out OTHER",
    ]
    if closing := [command for file in nodes if (command := _closing(file.with_suffix("")))]:
        lines += [
            "  and give back what other nodes reserved already:",
            *(f"    {command}" for command in closing),
        ]
    return "\n".join(lines)


def _closing(folder: Path) -> str | None:
    """The command that closes a node's open reservation of this run, if there is one."""
    try:
        told = read_status(folder)
        run = f"{told['run']} {told['config']}"
        with Ledger.open(told["ledger"], read_only=True) as ledger:
            reserved = run in LedgerSummary.of(ledger).open_runs
    except (DynadpError, KeyError, TypeError):
        return None
    return shlex.join(["dynadp", "ledger", "close", told["ledger"], run]) if reserved else None


def _tell(folder: Path, nodes: list[Path], as_json: bool) -> None:
    models = {file.stem: load_model(file.with_suffix("")) for file in nodes}
    first = next(iter(models.values()))
    apart = max(
        float(np.abs(model.coef - first.coef).max(initial=0.0)) for model in models.values()
    )
    result = {
        "version": 1,
        "folder": str(folder),
        "nodes": sorted(models),
        "largest_difference": apart,
        "statement": first.privacy["statement"],
    }
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    same = (
        "the same model"
        if apart == 0
        else f"models that differ by at most {apart:.2g} in a coefficient"
    )
    click.echo(
        f"{len(models)} node{'s' * (len(models) > 1)} finished with {same}. "
        f"{first.privacy['statement']}"
    )
    click.echo(f"Models, records and logs: {folder}/NODE. How they went: dynadp status {folder}")


def _start(file: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "dynadp", "node", str(file), "--quiet"]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # they share one machine
    with open(file.with_suffix(".out"), "ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env={**threads, **os.environ}
        )


def _round(folder: Path) -> tuple[int, int]:
    try:
        told = json.loads((folder / "status.json").read_text())
        return told["round"], told["rounds"]
    except (OSError, ValueError, KeyError):
        return 0, 0


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def _write_toml(path: Path, content: dict[str, Any]) -> None:
    import tomli_w

    path.write_text(tomli_w.dumps(content))
