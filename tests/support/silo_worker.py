"""A silo's process as tests start it: ``dynadp node`` with pinned draws, and a plug that is pulled
at a point of a round.

``python silo_worker.py NODE.toml [--pinned SEED] [--kill POINT:K] [--delay POINT:SECONDS] [--halt
POINT:K] [--trail FILE]``

``--kill`` ends the process with SIGKILL at the K-th passing of a point, ``--halt`` stays there for
ever, ``--delay`` sleeps at every passing, ``--trail`` writes down every passing. ``--unlocked``
sends letters over bare TCP, so that a test can see what it looks for on the wire. ``--wire
LOW:HIGH`` speaks other versions of the wire.

``python silo_worker.py --nursery`` has everything imported and forks a process for each line of
JSON on standard input, so that a hundred starts cost little; it tells pids and exit codes on
standard output, and ends its children when its input ends."""

import argparse
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from functools import partialmethod
from importlib import import_module

import dynadp.cli.network
import dynadp.engines.zenoh.links
import dynadp.engines.zenoh.wire
from dynadp.cli import main
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs.silo import SiloRun

NEW_NETWORK = 0x40000000  # CLONE_NEWNET of setns(2)


class Pinned(SeededEntropy):
    """Draws that can be had again, for ledgers that refuse seeded ones: a private run that a test
    can repeat.
    """

    seeded = False


class Plug:
    """What happens at the points of a round."""

    def __init__(self, kill, halt, delay, trail):
        self.kill, self.halt, self.delay = (
            pair(kill, int),
            pair(halt, int),
            dict(pair(one, float) for one in delay),
        )
        self.trail = (
            None if trail is None else os.open(trail, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        )
        self.passed = Counter()

    def __call__(self, point):
        self.passed[point] += 1
        if self.trail is not None:
            os.write(self.trail, f"{point}\n".encode())
        time.sleep(self.delay.get(point, 0.0))
        if self.kill == (point, self.passed[point]):
            os.kill(os.getpid(), signal.SIGKILL)
        while self.halt == (point, self.passed[point]):
            time.sleep(60)


def pair(text, kind):
    if text is None:
        return None
    point, _, value = text.partition(":")
    return point, kind(value)


def unlocked(settings):
    """Zenoh's configuration with TCP in place of TLS, and without the access control that goes by
    certificates.
    """

    def changed(site, prefix):
        config = json.loads(json.dumps(settings(site, prefix)).replace("tls/", "tcp/"))
        config["transport"]["link"] = {"protocols": ["tcp"]}
        return {**config, "access_control": {"enabled": False}}

    return changed


def node(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--pinned", type=int)
    parser.add_argument("--kill")
    parser.add_argument("--halt")
    parser.add_argument("--delay", action="append", default=[])
    parser.add_argument("--trail")
    parser.add_argument("--unlocked", action="store_true")
    parser.add_argument("--wire", help="LOW:HIGH, as if of a later release")
    given = parser.parse_args(arguments)
    if given.wire:
        dynadp.engines.zenoh.wire.SPOKEN = tuple(map(int, given.wire.split(":")))
    draws = None if given.pinned is None else Pinned(given.pinned)
    SiloRun.run = partialmethod(
        SiloRun.run, draws=draws, checkpoint=Plug(given.kill, given.halt, given.delay, given.trail)
    )
    if given.unlocked:
        dynadp.engines.zenoh.links.settings = unlocked(dynadp.engines.zenoh.links.settings)
    main(["node", given.file, "--quiet"])


def born(order):
    """In a new child: its own output, its own session, its own network where one is named."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if order.get("netns"):
        there = os.open(f"/var/run/netns/{order['netns']}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(there, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    node(order["arguments"])


def fork(order):
    if pid := os.fork():
        return pid
    code = 1
    try:
        born(order)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def nursery():
    for name in (
        "dp_accounting.pld.pld_pmf",
        "duckdb",
        "dynadp.runs.identities",
        "dynadp.engines.zenoh.log",
        "scipy.signal",
        "zenoh",
    ):
        import_module(name)
    alive, waiting = set(), b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        if ready:
            more = os.read(0, 65536)
            if not more:
                break
            *orders, waiting = (waiting + more).split(b"\n")
            for order in orders:
                pid = fork(json.loads(order))
                alive.add(pid)
                print(json.dumps({"started": pid}), flush=True)
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.discard(pid)
                print(
                    json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}),
                    flush=True,
                )
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:] == ["--nursery"]:
        nursery()
    else:
        node(sys.argv[1:])
