"""``dynadp node``, ``status``, ``relay`` and ``launch``: silos on a network."""

import gc
import logging
import shlex
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
from dynadp.cli.codes import FAILED, INTERRUPTED, LEFT, REFUSED, code_of
from dynadp.cli.logs import BoundedLog, JsonLines
from dynadp.cli.options import FILE, FOLDER, RUN_FILE, Address, Positive, option, out_option, user
from dynadp.cli.output import Answer, prints_answer, round_bar
from dynadp.cli.pools import leave_no_core, share_pools
from dynadp.cli.verbosity import QUIET, verbosity
from dynadp.errors import DynadpError, IdentityError

_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # by launch: early, or as a node answers it
_SOON = 30  # days before a certificate's end
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
    if sys.stdin is None or not sys.stdin.isatty():
        # to a service it says that its log was put aside, which BoundedLog sees by itself
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: None)
    try:
        yield stop, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging_to(silo: runs.SiloRun, quiet: bool) -> Iterator[None]:
    """Write dynadp's log to the folder's node.log and, unless quiet, to stderr."""
    silo.folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger("dynadp")
    handlers: list[logging.Handler] = [BoundedLog(silo.folder / "node.log")]
    lines = JsonLines(silo.node.node) if silo.node.log == "json" else logging.Formatter(_FORMAT)
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    for handler in handlers:
        handler.setFormatter(lines)
    level, others = log.level, log.handlers
    log.setLevel(logging.INFO)
    log.handlers = handlers  # alone: what else shows warnings would show them twice
    try:
        yield
    finally:
        log.setLevel(level)
        log.handlers = others
        for handler in handlers:
            handler.close()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: what imports make stays, and searching it takes a tenth of
    their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@click.command()
@click.argument("node_file", metavar="NODE.toml", type=FILE)
@option(
    "--consent",
    is_flag=True,
    help="First show what would be released, and ask; or take an approval (dynadp approve).",
)
@prints_answer
def node(node_file: str, consent: bool) -> Answer:
    """Run one silo of a network; started again, it goes on where it was.

    It logs to stderr and to the run folder's node.log, with -q to the file alone. Exit code 4 if a
    neighbour stayed away for too long, 143 after SIGTERM: start it again, nothing
    is lost.
    """
    share_pools()
    leave_no_core()
    with _uncollected():
        silo = runs.SiloRun.load(node_file)
        _ = silo.plan.total  # which may import more, and stays
    if consent:
        from dynadp.cli.consent import require_consent

        require_consent(silo)
    with _logging_to(silo, verbosity() == QUIET), stopping() as (stop, came), engines.engine_log():
        try:
            result = silo.run(who=user(), stop=stop)
        except Exception as error:
            engines.LOG.error("%s: %s", type(error).__name__, error)
            raise
        stopped = f"Stopped in round {result.rounds}; nothing is lost, start it again to go on."
        # with -q, the log is the only place where it stands
        engines.LOG.info("%s", stopped if result.state == "stopped" else result.state)
    if result.state == "stopped":
        return Answer(result.to_json(), [stopped], 128 + came[0])
    line = f"Finished after {result.rounds} rounds. Model: {result.folder / 'model.json'}"
    return Answer(result.to_json(), [line])


@click.command()
@click.argument("identity", metavar="IDENTITY", type=FOLDER)
@option("--listen", type=Address(), required=True, metavar="HOST:PORT", help="Where nodes dial it.")
@option(
    "--health",
    type=Address(here=True),
    metavar="HOST:PORT",
    help="Answer /healthz and /metrics on this loopback address.",
)
@option(
    "--log",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    help="How it writes its log, on standard error; json: one object a line.",
)
def relay(identity: str, listen: str, health: str | None, style: str) -> None:
    """Carry letters between nodes that cannot reach each other. It needs a certificate for the name
    'relay'.
    """
    share_pools()
    leave_no_core()
    found, of = runs.Identity.load(identity, datetime.now(UTC)), engines.RELAY
    if found.name != of:
        raise IdentityError(
            f"the certificate is of {found.name!r}; a relay's is of {of!r}: dynadp pki node CA {of}"
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(of) if style == "json" else logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if (left := (found.expires - datetime.now(UTC)).days) < _SOON:
        engines.LOG.warning("the certificate ends in %d days; renew it: dynadp pki renew", left)
    state = engines.RelayState()
    with (
        stopping() as (stop, _),
        engines.engine_log(),
        runs.serving_health(health, runs.RelayHealth(state, found.expires)),
    ):
        engines.relay(Path(identity), listen, stop, found.revoked.names, state)


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=FOLDER)
@prints_answer
def status(folders: tuple[str, ...]) -> Answer:
    """Show how nodes are, from their run folders: rounds, what is spent, neighbours up or away,
    refused letters.
    """
    states, wrong = list[dict[str, Any]](), list[DynadpError]()
    for folder in folders:
        try:
            states += runs.node_states([folder])
        except DynadpError as error:  # the others are shown all the same
            wrong.append(error)
    lines = (line for one in states for line in _state_lines(one))
    problem = "\n".join(f"dynadp: {error}" for error in wrong)
    code = max(map(code_of, wrong), default=0)
    return Answer({"version": 1, "nodes": states}, lines, code, problem)


def _state_lines(one: dict[str, Any]) -> Iterator[str]:
    when = f", as of {one['at']}" if "at" in one else ""
    yield f"{one['node']}: {one['state']}, round {one['round']} of {one['rounds']}{when}"
    if one["late"]:
        yield "  it runs, and has not written its status since: its disk refuses, or it is frozen"
    if one["ahead"]:
        yield "  that time is still to come: the clock was wrong then, or is wrong now"
    if (spent := one["spent"]) is not None:
        which = f" with configuration {spent['config'][:8]}" if spent["others"] else ""
        line = f"  spent{which}: {spent['rounds_spent']} of {spent['rounds_planned']} releases"
        if spent["spares_planned"]:
            line += f", {spent['spares_spent']} of {spent['spares_planned']} spare attempts"
        yield line
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
    if (left := one.get("certificate_days")) is not None and left < _SOON:
        word = "ended" if left < 0 else "ends"
        day = one["certificate_ends"][:10]
        yield f"  its certificate {word} on {day}; renew it: dynadp pki renew"


@click.command()
@RUN_FILE
@out_option("Folder to make; runs/NAME-network by default.")
@option("--resume", is_flag=True, help="Go on with the nodes in the folder.")
@option(
    "--patience",
    type=Positive(),
    default=60.0,
    help="Seconds that a node may stay away.",
)
@prints_answer
def launch(run_file: str, out: str | None, resume: bool, patience: float) -> Answer:
    """Try a run file as a network: all its nodes as processes of this machine, with certificates
    made for the trial.
    """
    folder = Path(out or f"runs/{runs.load_run_file(run_file).run.name}-network")
    nodes = (
        runs.prepared_nodes(folder) if resume else runs.prepare_trial(run_file, folder, patience)
    )
    goes_on = runs.load_run_file(folder / "run.toml").network.absence.goes_on

    def dispensable(code: int) -> bool:
        """Whether the others go on without a node that ended so: killed, stopped or left behind."""
        return goes_on and (code < 0 or code in (LEFT, *_STOPPED))

    with stopping() as (stop, came), round_bar() as on_round:
        codes = runs.run_trial(nodes, stop, on_round, dispensable)
    failed = {node: code for node, code in codes.items() if code and code not in _STOPPED}
    there = [node for node in nodes if not codes[node.stem]]
    _show_failures(folder, failed)
    if came or not there or not all(dispensable(code) for code in codes.values() if code):
        refusing = [node for node, code in failed.items() if code == REFUSED]
        word = "interrupted" if came else "stopped"
        click.echo(f"dynadp: {_advice(run_file, folder, nodes, word, refusing)}", err=True)
        sys.exit(INTERRUPTED if came else max(FAILED, next(iter(failed.values()), FAILED)))
    result = runs.trial_result(folder, there)
    count, apart = len(there), result["largest_difference"]
    same = (
        f"models that differ by at most {apart:.2g} in a coefficient" if apart else "the same model"
    )
    lost = [node for node, code in codes.items() if code]
    without = f", without {', '.join(sorted(lost))}" if lost else ""
    lines = [
        f"{count} node{'s' * (count > 1)} finished with {same}{without}. {result['statement']}",
        f"Models, records and logs: {folder}/NODE. How they went: dynadp status {folder}",
    ]
    return Answer(result, lines)


def _show_failures(folder: Path, failed: dict[str, int]) -> None:
    """Print the last lines of every node that failed."""
    for node, code in failed.items():
        for line in (folder / f"{node}.out").read_text(errors="replace").strip().splitlines()[-3:]:
            click.echo(f"{node}: {line}", err=True)
        if code < 0:
            click.echo(f"{node} was killed by signal {-code}", err=True)


def _advice(path: str, folder: Path, nodes: list[Path], word: str, refusing: list[str]) -> str:
    """How to go on; where a ledger refused the run, going on would be refused again."""
    again = f"dynadp launch {path} --out {folder} --resume"
    if not refusing:
        return f"{word}; go on with: {again}"
    lines = [
        f"the ledger of {', '.join(refusing)} refused the run, so it cannot go on as it is. Above "
        "stands what helps.",
        f"  Where that is room in the ledger, make it, and then: {again}",
        f"  Where it is to ask for less, change {path}, and begin anew in another folder: dynadp "
        f"launch {path} --out OTHER",
    ]
    reserved = [runs.open_reservation(file.with_suffix("")) for file in nodes]
    closing = [shlex.join(["dynadp", "ledger", "close", *found]) for found in reserved if found]
    if closing:
        lines += ["  and give back what other nodes reserved already:"]
        lines += [f"    {command}" for command in closing]
    return "\n".join(lines)
