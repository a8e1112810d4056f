"""Networks of real processes on this machine, for tests: made like ``dynadp launch`` makes them,
started one by one.
"""

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue

import numpy as np
import tomli_w
import zenoh

from dynadp._files import write_whole
from dynadp.data.datasets.synthetic import census, census_schema
from dynadp.data.schema import Schema
from dynadp.engines.letters import verify
from dynadp.engines.zenoh.config import settings
from dynadp.privacy.accountant import worst_node as accounted
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import authorities as pki
from dynadp.runs.identities import public_key
from dynadp.runs.ledgers import open_readable
from dynadp.runs.model import load_model
from dynadp.runs.silo import SiloRun
from dynadp.runs.trial import prepare_trial
from support.typed import dynadp

WORKER = Path(__file__).with_name("silo_worker.py")
DYNADP = Path(sys.executable).with_name("dynadp")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
NAMES = ("north", "south", "west", "east", "centre")
SEED, LONG = (
    7,
    120,
)  # of pinned draws; seconds after which something that should have happened has not
ALPHA = {"mechanism": "dual", "alpha": 0.5, "delta": 1e-5}
TRAINING = {"rounds": 6, "rho": 1e-3, "eta": 0.05}
EPSILON = {"mechanism": "dual", "epsilon": 4.0, "delta": 1e-5}
SMALL = ("age", "schooling", "hours", "sex", "status")


def until(true, what, seconds=LONG):
    """Wait for something that happens sooner or later."""
    for _ in range(int(seconds / 0.05)):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} seconds for {what}")


def ports(count, _next=[0]):  # noqa: B006 (a counter)
    """Ports that no outgoing connection takes meanwhile, as those above 32768 are."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    found = []
    while len(found) < count:
        port = 20000 + 1500 * (worker % 8) + (os.getpid() * 37 + _next[0]) % 1500
        _next[0] += 1
        try:
            with socket.create_server(("127.0.0.1", port)):
                found.append(port)
        except OSError:
            continue
    return found


class Child:
    """A process that the nursery started."""

    def __init__(self, pid, name):
        self.pid, self.name, self.code, self._over = pid, name, None, threading.Event()

    def ended(self, code):
        self.code = code
        self._over.set()

    def kill(self, number=signal.SIGKILL):
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self, seconds=LONG):
        if not self._over.wait(seconds):
            raise AssertionError(f"{self.name} has not ended after {seconds} seconds")
        return self.code


class Nursery:
    """Starts silos fast; all end with it."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), "--nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
            text=True,
        )
        self._started, self._children = Queue(), {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def start(self, *arguments, out, netns=None):
        order = {"arguments": [str(one) for one in arguments], "out": str(out), "netns": netns}
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            child = Child(self._started.get(timeout=LONG), Path(order["arguments"][0]).stem)
            self._children[child.pid] = child
        return child

    def kill_all(self):
        for child in list(self._children.values()):
            child.kill()
        for child in list(self._children.values()):
            child.wait()
        self._children.clear()

    def close(self):
        self._process.stdin.close()
        self._process.wait(LONG)
        self._thread.join(LONG)
        self._process.stdout.close()

    def _listen(self):
        for line in self._process.stdout:
            told = json.loads(line)
            if "started" in told:
                self._started.put(told["started"])
                continue
            until(lambda told=told: told["ended"] in self._children, "a child to be known")
            self._children[told["ended"]].ended(told["code"])


class Network:
    """The files of a network run: rows, ledgers, certificates, run file and NODE.toml files."""

    def __init__(self, home, nursery, out="net"):
        self.home, self.out, self.nursery = home, home / out, nursery
        self.run = tomllib.loads((self.out / "run.toml").read_text())
        self.names = tuple(section["name"] for section in self.run["nodes"])
        self.calm = None  # the same network after a run that nobody disturbed

    @classmethod
    def make(
        cls,
        home,
        nursery,
        *,
        nodes=3,
        rows=120,
        columns=SMALL,
        topology=None,
        privacy=None,
        seed=None,
        cap=None,
        hosts=None,
        relay=None,
        patience=LONG,
        rounds=6,
        output="network",
        table=None,
        schema=None,
    ):
        """Rows of a small census, a run file for one process, and from it a network."""
        home.mkdir(parents=True, exist_ok=True)
        names = NAMES[:nodes] if nodes <= len(NAMES) else tuple(f"silo {i}" for i in range(nodes))
        data = census(rows * nodes, seed=4, nodes=nodes, heterogeneity=0.4, test_rows=0)
        chosen = [column for column in census_schema().columns if column.name in columns]
        schema = schema or Schema(columns=tuple(chosen), label=data.schema.label, norm=2.0)
        write_whole(home / "schema.json", schema.model_dump_json())
        for i, (name, own) in enumerate(data.tables(names).items()):
            write_csv(home / f"{name}.csv", table(i, own) if table else own)
        privacy = privacy or ALPHA
        sections = [
            {
                "name": name,
                "file": f"{name}.csv",
                **({"ledger": f"{name}.sqlite"} if seed is None else {}),
            }
            for name in names
        ]
        said = {
            "run": {"name": "trial", "output": output, **({} if seed is None else {"seed": seed})},
            "data": {"schema": "schema.json"},
            "nodes": sections,
            "topology": topology or {"family": "ring"},
            "privacy": privacy,
            **({"training": {**TRAINING, "rounds": rounds}} if "alpha" in privacy else {}),
            **({"network": {"on_absence": "go on"}} if privacy.get("away") else {}),
        }
        (home / "train.toml").write_text(tomli_w.dumps(said))
        if seed is None:
            for name in names:
                limit = cap or 10 * privacy.get("epsilon", 10.0)
                done = dynadp(
                    "ledger",
                    "cap",
                    home / f"{name}.sqlite",
                    "--node",
                    name,
                    "--epsilon",
                    limit,
                    "--delta",
                    1e-5,
                )
                assert done.exit_code == 0, done.output
        prepare_trial(str(home / "train.toml"), home / "net", patience)
        made = cls(home, nursery)
        made._move(hosts or dict.fromkeys(names, "127.0.0.1"), relay)
        return made

    def _move(self, hosts, relay):
        """Give nodes their addresses: ports that stay free, other hosts, or a relay in place of
        endpoints.
        """
        for section, port in zip(self.run["nodes"], ports(len(self.names)), strict=True):
            name = section["name"]
            if relay is not None:
                del section["endpoint"]
                continue
            section["endpoint"] = f"{hosts[name]}:{port}"
            if hosts[name] != "127.0.0.1":
                folder = self.identity(name)
                shutil.rmtree(folder)
                (self.out / "authority" / "issued" / f"{name}.pem").unlink()
                made = pki.make_node(
                    self.out / "authority", name, [hosts[name]], folder, datetime.now(UTC), 30
                )
                section["key"] = made.public
        if relay is not None:
            self.run["network"] = {"relay": relay}
        self.write_run()

    def write_run(self, path=None):
        (path or self.out / "run.toml").write_text(tomli_w.dumps(self.run))

    def copy(self, home):
        """The same network with the same keys and ports, in another place; its ledgers are as they
        are now.
        """
        shutil.copytree(self.home, home)
        for file in [*(home / "net").glob("*.toml"), home / "train.toml"]:
            file.write_text(file.read_text().replace(str(self.home), str(home)))
        made = Network(home, self.nursery)
        made.calm = self.calm
        return made

    def file(self, name):
        return self.out / f"{name}.toml"

    def folder(self, name):
        return self.out / name

    def identity(self, name):
        return self.out / "identities" / name

    def ledger(self, name):
        return self.home / f"{name}.sqlite"

    def change(self, name, **values):
        """Other values in a NODE.toml."""
        content = tomllib.loads(self.file(name).read_text())
        self.file(name).write_text(tomli_w.dumps({**content, **values}))

    def start(self, name, *options, pinned=SEED, netns=None):
        seed = [] if pinned is None or "seed" in self.run["run"] else ["--pinned", pinned]
        return self.nursery.start(
            self.file(name), *seed, *options, out=self.out / f"{name}.out", netns=netns
        )

    def start_all(self, *options, **given):
        return {name: self.start(name, *options, **given) for name in self.names}

    def finish(self, children):
        """Wait for all; each must have finished."""
        for name, child in children.items():
            assert child.wait() == 0, (name, child.code, self.said(name))

    def go(self, *options, **given):
        self.finish(self.start_all(*options, **given))
        return self

    def said(self, name):
        """The last that a node said, for a test that fails."""
        files = (self.out / f"{name}.out", self.folder(name) / "node.log")
        return "\n".join(
            file.read_text(errors="replace")[-1500:] for file in files if file.exists()
        )

    def log(self, name):
        file = self.folder(name) / "node.log"
        return file.read_text() if file.exists() else ""

    def status(self, name):
        file = self.folder(name) / "status.json"
        return (
            json.loads(file.read_text())
            if file.exists()
            else {"round": -1, "state": "", "rejected": {}, "neighbours": {}}
        )

    def vector(self, name):
        model = load_model(self.folder(name))
        return np.append(model.coef, model.intercept)

    def in_round(self, name, n):
        """Wait until a node has passed a round."""
        until(lambda: self.status(name)["round"] >= n, f"round {n} of {name}")

    def as_undisturbed(self):
        """The same models, and the same bytes spent, as if nothing had happened."""
        assert self.models() == self.calm.models()
        self.sound()
        assert [self.spends(name) for name in self.names] == [
            self.calm.spends(name) for name in self.names
        ]

    def model(self, name):
        return (self.folder(name) / "model.json").read_bytes()

    def models(self):
        return {name: self.model(name) for name in self.names}

    def silo(self, name):
        return SiloRun.load(self.file(name))

    def letters(self, name):
        """{(author, kind, round): letter} of a node's post office, every signature checked."""
        keys = {section["name"]: public_key(section["key"]) for section in self.run["nodes"]}
        found = {}
        for file in sorted(self.folder(name).glob("letters-*.sqlite")):
            with sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True) as connection:
                for author, kind, n, content in connection.execute(
                    "SELECT author, kind, round, content FROM letter"
                ):
                    found[author, kind, n] = verify(content, keys).body
            connection.close()
        return found

    def spends(self, name):
        """{round: message} of a node's ledger, which must hold one run."""
        with open_readable(self.ledger(name)) as ledger:  # a killed node may have been in mid-write
            entries = [entry for entry in ledger.entries() if entry.kind == "spend"]
            assert len({entry.run for entry in entries}) <= 1
            assert len({entry.round for entry in entries}) == len(entries)
            return {entry.round: entry.message for entry in entries}

    def sound(self, names=None):
        """What was spent is what was sent, byte for byte and one to one, and no cap was passed."""
        silo = self.silo(self.names[0])
        planned = list(range(0 if silo.plan.centrings else 1, silo.plan.rounds + 1))
        kind = "sealed" if silo.plan.sealing else "message"
        heard = {name: self.letters(name) for name in self.names}
        for name in names or self.names:
            done = dynadp("ledger", "verify", self.ledger(name))
            assert done.exit_code == 0, done.output
            spent = self.spends(name)
            assert sorted(spent) == planned
            near = self.silo(name).part.neighbours
            for other in self.names:
                sent = {
                    n: body
                    for (author, sort, n), body in heard[other].items()
                    if (author, sort) == (name, kind)
                }
                if other == name or other in near or kind == "sealed":
                    assert sent == spent, (name, other)
                else:
                    assert sent == {n: body for n, body in spent.items() if n == 0}, (name, other)
            with Ledger.open(self.ledger(name), read_only=True) as ledger:
                assert accounted(ledger.spent(), 1e-5).epsilon <= ledger.cap.epsilon
                own = [event for event in silo.plan.events if event.node == name]
                assert ledger.spent() == [event for event in own if event.round in planned]


def typed(*words, **given):
    """The command line, as a process."""
    return subprocess.Popen(
        [str(DYNADP), *(str(word) for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,
        **given,
    )


def ended(process, seconds=LONG):
    """Exit code and output of a process; its whole group ends here."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        end_group(process)
    return process.returncode, out, err


def end_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(LONG)


def write_csv(path, table):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


@contextlib.contextmanager
def session(site, prefix, **tls):
    """A Zenoh session that obeys no access control of its own; other TLS settings where they are
    given.
    """
    config = {**settings(site, prefix), "access_control": {"enabled": False}}
    link = config["transport"]["link"]["tls"]
    link.update(tls)
    config["transport"]["link"]["tls"] = {
        name: value for name, value in link.items() if value is not None
    }
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as opened_session:
        yield opened_session
