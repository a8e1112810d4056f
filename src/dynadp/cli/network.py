"""``dynadp node``, ``status`` and ``relay``: silos on a network."""

import logging
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

from dynadp import engines, privacy, runs
from dynadp.cli.options import FILE, FOLDER, option, user
from dynadp.cli.output import Answer, prints_answer
from dynadp.errors import IdentityError

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@contextmanager
def stopping() -> Iterator[tuple[Event, list[int]]]:
    """Yield an event that SIGTERM and SIGINT set, and the list of signals that came."""
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
def _logging_to(folder: Path, quiet: bool) -> Iterator[None]:
    """Write dynadp's log to the folder's node.log and, unless quiet, to stderr."""
    folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger("dynadp")
    handlers: list[logging.Handler] = [logging.FileHandler(folder / "node.log")]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        log.addHandler(handler)
    before, log.level = log.level, logging.INFO
    try:
        yield
    finally:
        log.setLevel(before)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


@click.command()
@click.argument("node_file", metavar="NODE.toml", type=FILE)
@option("--quiet", is_flag=True, help="Log to the run folder's node.log only.")
@prints_answer
def node(node_file: str, quiet: bool) -> Answer:
    """Run one silo of a network; started again, it goes on where it was.

    Exit code 4 if a neighbour stayed away for too long, 143 after SIGTERM: start it again, nothing
    is lost.
    """
    silo = runs.SiloRun.load(node_file)
    with _logging_to(silo.folder, quiet), stopping() as (stop, came), engines.engine_log():
        try:
            result = silo.run(who=user(), stop=stop)
        except Exception as error:
            engines.LOG.error("%s: %s", type(error).__name__, error)
            raise
        engines.LOG.info("%s", result.state)
    if result.state == "stopped":
        line = f"Stopped in round {result.rounds}; nothing is lost, start it again to go on."
        return Answer(result.to_json(), [line], 128 + came[0])
    line = f"Finished after {result.rounds} rounds. Model: {result.folder / 'model.json'}"
    return Answer(result.to_json(), [line])


@click.command()
@click.argument("identity", metavar="IDENTITY", type=FOLDER)
@option("--listen", required=True, metavar="HOST:PORT", help="Where nodes dial it.")
def relay(identity: str, listen: str) -> None:
    """Carry letters between nodes that cannot reach each other. It needs a certificate for the name
    'relay'.
    """
    name, of = runs.Identity.load(identity, datetime.now(UTC)).name, engines.RELAY
    if name != of:
        raise IdentityError(
            f"the certificate is of {name!r}; a relay's is of {of!r}: dynadp pki node CA {of}"
        )
    logging.basicConfig(level=logging.INFO, format=_FORMAT)
    with stopping() as (stop, _), engines.engine_log():
        engines.relay(Path(identity), listen, stop)


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=FOLDER)
@prints_answer
def status(folders: tuple[str, ...]) -> Answer:
    """Show how nodes are, from their run folders: rounds, what is spent, neighbours up or away,
    refused letters.
    """
    states = runs.node_states(folders)
    lines = (line for one in states for line in _state_lines(one))
    return Answer({"version": 1, "nodes": states}, lines)


def _state_lines(one: dict[str, Any]) -> Iterator[str]:
    yield f"{one['node']}: {one['state']}, round {one['round']} of {one['rounds']}"
    if (spent := one["spent"]) is not None:
        which = f" with configuration {spent['config'][:8]}" if spent["others"] else ""
        yield f"  spent{which}: {spent['rounds_spent']} of {spent['rounds_planned']} releases"
        yield (
            "  lost so far, by all runs in its ledger: at most epsilon = "
            f"{privacy.upper_bound(spent['lost'])} of its cap {spent['cap']:g} at delta "
            f"{spent['delta']:g}"
        )
    there = ", ".join(f"{j} {state}" for j, state in one["neighbours"].items())
    refused = one["rejected"]
    yield f"  neighbours: {there or 'none'}; refused letters: {sum(refused.values())}"
    for reason, times in refused.items():
        yield f"    {times} x {reason}"
    if one["waiting"]:
        yield f"  waits for {one['waiting']}"
