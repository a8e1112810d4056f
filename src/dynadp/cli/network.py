"""``dynadp pki``, ``node``, ``launch``, ``status`` and ``relay``: silos on a network."""

import json
import logging
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import click

from dynadp.cli.ledger import user
from dynadp.errors import IdentityError, LedgerDamaged, LedgerError, RecordError
from dynadp.privacy import Ledger, LedgerSummary, upper_bound
from dynadp.runs import SHOWN, Identity, SiloRun, alive, read_status


@contextmanager
def stopping() -> Iterator[tuple[Event, list[int]]]:
    """An event that SIGTERM and SIGINT set, and the signals that came."""
    stop, came = Event(), list[int]()

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        stop.set()

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def logging_to(folder: Path, quiet: bool) -> Iterator[None]:
    """dynadp's log in the folder's node.log, and on stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger("dynadp")
    handlers: list[logging.Handler] = [logging.FileHandler(folder / "node.log")]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    before, log.level = log.level, logging.INFO
    try:
        yield
    finally:
        log.setLevel(before)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


def run_node(path: str, quiet: bool, as_json: bool) -> None:
    """One silo's process."""
    from dynadp.engines import LOG, engine_log

    silo = SiloRun.load(path)
    with logging_to(silo.folder, quiet), stopping() as (stop, came), engine_log():
        total, plan = silo.plan.total, silo.plan
        word = (
            "SIMULATION that protects nobody" if silo.file.run.seed is not None else "private run"
        )
        LOG.info(
            "%s starts its part in %s %r: %d rounds, epsilon = %s at delta = %g in total",
            silo.node.node,
            word,
            silo.file.run.name,
            plan.rounds,
            upper_bound(total.epsilon),
            total.delta,
        )
        try:
            result = silo.run(who=user(), stop=stop)
        except Exception as error:
            LOG.error("%s: %s", type(error).__name__, error)
            raise
        LOG.info("%s", result["state"])
    if as_json:
        click.echo(json.dumps(result, indent=1))
    elif result["state"] == "stopped":
        click.echo(
            f"Stopped in round {result['rounds']}; nothing is lost, start it again to go on."
        )
    else:
        click.echo(
            f"Finished after {result['rounds']} rounds. Model: "
            f"{Path(result['folder']) / 'model.json'}"
        )
    if result["state"] == "stopped":
        sys.exit(128 + came[0])


def run_relay(identity: str, listen: str) -> None:
    """Carry letters until told to stop."""
    from dynadp.engines import RELAY, engine_log, relay

    found = Identity.load(identity, datetime.now(UTC))
    if found.name != RELAY:
        raise IdentityError(
            f"the certificate is of {found.name!r}; a relay's is of {RELAY!r}: dynadp pki node CA "
            f"{RELAY}"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with stopping() as (stop, _), engine_log():
        relay(Path(identity), listen, stop)


def run_status(folders: tuple[str, ...], as_json: bool) -> None:
    """How nodes are, from their run folders."""
    files = sorted(file for folder in folders for file in _status_files(Path(folder)))
    if not files:
        raise RecordError(
            f"no node has run in {', '.join(folders)}: there is no status.json; give the folder "
            f"that NODE.toml names"
        )
    found = [_status(file) for file in files]
    if as_json:
        click.echo(json.dumps({"version": 1, "nodes": found}, indent=1))
        return
    for one in found:
        click.echo(f"{one['node']}: {one['state']}, round {one['round']} of {one['rounds']}")
        if (spent := one["spent"]) is not None:
            share = f"{spent['rounds_spent']} of {spent['rounds_planned']} releases"
            which = f" with configuration {spent['config'][:8]}" if spent["others"] else ""
            click.echo(f"  spent{which}: {share}")
            of = (
                f"epsilon = {upper_bound(spent['lost'])} of its cap {spent['cap']:g} at delta "
                f"{spent['delta']:g}"
            )
            click.echo(f"  lost so far, by all runs in its ledger: at most {of}")
        there = ", ".join(f"{j} {state}" for j, state in one["neighbours"].items())
        click.echo(
            f"  neighbours: {there or 'none'}; refused letters: {sum(one['rejected'].values())}"
        )
        for reason, times in one["rejected"].items():
            click.echo(f"    {times} x {reason}")
        if one["waiting"]:
            click.echo(f"  waits for {one['waiting']}")


def _status_files(folder: Path) -> list[Path]:
    here = folder / "status.json"
    return [here] if here.exists() else sorted(folder.glob("*/status.json"))


def _status(file: Path) -> dict[str, Any]:
    told = read_status(file.parent)
    told["alive"] = alive(told["pid"])
    if not told["alive"]:
        told["neighbours"] = dict.fromkeys(told["neighbours"], "not known")
        if told["state"] in ("agreeing", "running", "finished"):
            told["state"] += " when it ended"
    told["spent"] = None
    if told["ledger"] is not None:
        try:
            with Ledger.open(told["ledger"], read_only=True) as ledger:
                said = LedgerSummary.of(ledger)
        except LedgerDamaged:
            raise
        except (
            LedgerError
        ):  # an entry that a crash cut short is undone when the node is started, not here
            return told
        told["spent"] = _spent(said, told["run"], told.get("config"))
    return told


def _spent(said: LedgerSummary, name: str, config: str | None) -> dict[str, Any] | None:
    """What the ledger says about the run of this name and configuration; the newest, where no
    configuration is told.
    """
    found = [
        run
        for run in said.runs.values()
        if re.fullmatch(f"{re.escape(name)} [0-9a-f]{{{SHOWN}}}", run.run)
    ]
    run = next(
        (run for run in reversed(found) if config is None or run.run == f"{name} {config}"), None
    )
    if run is None or said.cap is None:
        return None
    return {
        "config": run.run.rpartition(" ")[2],
        "others": len(found) - 1,
        "rounds_spent": run.rounds_spent,
        "rounds_planned": run.rounds_planned,
        "alpha_spent": run.to_json()["alpha_spent"],
        "lost": said.lost,
        "cap": said.cap.epsilon,
        "delta": said.cap.delta,
    }
