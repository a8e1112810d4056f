"""``dynadp launch``: a run file tried as a network on this machine."""

import shlex
import signal
import sys
from pathlib import Path

import click

from dynadp import runs
from dynadp.cli.codes import FAILED, INTERRUPTED, REFUSED
from dynadp.cli.network import stopping
from dynadp.cli.options import RUN_FILE, Positive, option, out_option
from dynadp.cli.output import Answer, prints_answer, round_bar

_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)  # by launch: before, or after it could say so


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
    with stopping() as (stop, came), round_bar() as on_round:
        codes = runs.run_trial(nodes, stop, on_round)
    failed = {node: code for node, code in codes.items() if code and code not in _STOPPED}
    if came or failed:
        _show_failures(folder, failed)
        refusing = [node for node, code in failed.items() if code == REFUSED]
        word = "interrupted" if came else "stopped"
        click.echo(f"dynadp: {_advice(run_file, folder, nodes, word, refusing)}", err=True)
        sys.exit(INTERRUPTED if came else max(FAILED, next(iter(failed.values()))))
    result = runs.trial_result(folder, nodes)
    count, apart = len(nodes), result["largest_difference"]
    same = (
        f"models that differ by at most {apart:.2g} in a coefficient" if apart else "the same model"
    )
    lines = [
        f"{count} node{'s' * (count > 1)} finished with {same}. {result['statement']}",
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
