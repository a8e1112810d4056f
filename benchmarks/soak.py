"""Ten silos, a thousand rounds, random faults: killed, frozen, all at once. In the end one model;
ledgers match letters.

``make soak`` (some minutes). Noise is keyed, so that the model can be compared with that of an
undisturbed run in one process.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.network import ONE_THREAD, WORKER, make
from benchmarks.network_worker import Pinned
from dynadp.engines.letters import verify
from dynadp.errors import LedgerError
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import prepare_trial
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.training import train

SEED = 11


def soak(nodes: int, rounds: int, seed: int, limit: float) -> dict[str, int]:
    """Run, disturb, check; returns how many faults there were."""
    rng, faults = random.Random(seed), {"killed": 0, "frozen": 0, "all killed": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = make(folder, 12, nodes=nodes, rows=40, rounds=rounds, family="small_world")
        expected = _undisturbed(file)
        files = prepare_trial(str(file), folder / "net", 120.0)
        running = {node: _start(node) for node in files}
        end, due = time.monotonic() + limit, 2
        try:
            while any(process.poll() is None for process in running.values()):
                if time.monotonic() > end:
                    raise RuntimeError(f"not finished after {limit:g} seconds")
                time.sleep(rng.uniform(0.05, 0.3))
                for node, process in running.items():
                    if process.poll() not in (None, 0):
                        raise RuntimeError(
                            f"{node.stem} ended with code {process.returncode}: {_tail(node)}"
                        )
                if max(_rounds(node) for node in files) >= due:
                    _disturb(running, rng, faults)
                    due += rng.randint(1, max(1, rounds // 25))
        finally:
            for process in running.values():
                process.kill()
                process.wait()
        _check(files, folder, expected)
    return faults


def _disturb(
    running: dict[Path, "subprocess.Popen[bytes]"], rng: random.Random, faults: dict[str, int]
) -> None:
    alive = [node for node, process in running.items() if process.poll() is None]
    what = rng.choices(list(faults), (6, 3, 1))[0] if alive else ""
    if what == "killed":
        _again(running, [rng.choice(alive)])
    elif what == "all killed":
        _again(running, alive)
    elif what == "frozen":
        frozen = running[rng.choice(alive)]
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.1, 3.0))
        frozen.send_signal(signal.SIGCONT)
    if what:
        faults[what] += 1


def _rounds(node: Path) -> int:
    """The round that a node has spent."""
    try:
        with Ledger.open(node.parent.parent / f"{node.stem}.sqlite", read_only=True) as ledger:
            return len(ledger.spent())
    except LedgerError:  # busy
        return 0


def _start(node: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(WORKER), str(node), str(node.with_suffix(".json")), str(SEED)]
    with open(node.with_suffix(".out"), "ab") as log:
        return subprocess.Popen(command, env={**os.environ, **ONE_THREAD}, stdout=log, stderr=log)


def _again(running: dict[Path, "subprocess.Popen[bytes]"], nodes: list[Path]) -> None:
    for node in nodes:
        running[node].kill()
    for node in nodes:
        running[node].wait()
        running[node] = _start(node)


def _tail(node: Path) -> str:
    return node.with_suffix(".out").read_text(errors="replace")[-2000:]


def _undisturbed(file: Path) -> np.ndarray:
    job = LocalRun.load(file)
    planned = job.plan()
    assert planned is not None
    trained = train(job.schema, job.rows, job.topology, planned, draws=Pinned(SEED))
    return trained.model().coef


def _check(files: list[Path], folder: Path, expected: np.ndarray) -> None:
    """One model, the undisturbed one; every message in the ledger once, as neighbours hold it."""
    letters: dict[tuple[str, int], set[bytes]] = {}
    for node in files:
        (path,) = node.with_suffix("").glob("letters-*.sqlite")
        for author, n, content in sqlite3.connect(path).execute(
            "SELECT author, round, content FROM letter WHERE kind = 'message'"
        ):
            letters.setdefault((author, n), set()).add(verify(content, _Anybody()).body)
    for node in files:
        found = load_model(node.with_suffix("")).coef
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
        with Ledger.open(folder / f"{node.stem}.sqlite", read_only=True) as ledger:
            assert not ledger.verify(), node
            spends = [entry for entry in ledger.entries() if entry.kind == "spend"]
        assert {entry.round for entry in spends} == {
            n for author, n in letters if author == node.stem
        }
        for entry in spends:
            assert letters[node.stem, int(entry.round or 0)] == {entry.message}, (node, entry.round)


class _Anybody(dict):  # type: ignore[type-arg]
    """Believes every signature: nodes have checked them."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> "_Anybody":
        return self

    def verify(self, signature: bytes, data: bytes) -> None:
        """Good."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds")
    given = parser.parse_args()
    began = time.monotonic()
    faults = soak(given.nodes, given.rounds, given.seed, given.limit)
    told = ", ".join(f"{count} {what}" for what, count in faults.items())
    print(
        f"{given.nodes} nodes, {given.rounds} rounds, {time.monotonic() - began:.0f} s; {told}: "
        f"one model, ledgers as letters"
    )
    print(json.dumps(faults))


if __name__ == "__main__":
    main()
