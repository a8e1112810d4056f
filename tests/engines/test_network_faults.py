"""What must be shown, with real processes: after every disturbance the run ends as if there had
been none.

Same model as the undisturbed run with the same pinned draws, no round spent twice or missed, no
budget exceeded, and no row or secret in any log or letter."""

import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dynadp._files import digest
from dynadp.data.datasets.synthetic import census_schema
from dynadp.engines.letters import Letter, run_id
from dynadp.engines.zenoh.wire import SPOKEN
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.problem.storage import stack_rows
from dynadp.runs import identities as pki
from support.networks import (
    ALPHA,
    EPSILON,
    LONG,
    ONE_THREAD,
    SEED,
    WORKER,
    Network,
    end_group,
    ports,
    session,
    until,
)
from support.typed import dynadp

pytestmark = pytest.mark.slow
PRIMAL = {"mechanism": "primal", "alpha": 0.5, "delta": 1e-5}
WIDE = tuple(column.name for column in census_schema().columns)


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    """Three nodes in a ring with ledgers and a centring round, and what a run that nobody disturbed
    left.
    """
    network = Network.make(tmp_path_factory.mktemp("base") / "home", one_nursery, privacy=EPSILON)
    network.calm = network.copy(network.home.with_name("undisturbed"))
    network.calm.finish(
        {
            name: network.calm.start(name, "--trail", network.calm.out / f"{name}.trail")
            for name in network.names
        }
    )
    network.calm.sound()
    return network


def passings(network, name):
    """The points that a node passed, in their order."""
    file = network.out / f"{name}.trail"
    return file.read_text().split() if file.exists() else []


# Equal to the simulation.


def equal_to_the_simulation(network):
    """To two steps of the grid, where a sum in another order may round; mostly bit for bit."""
    trained = dynadp("train", network.home / "train.toml", "--out", network.home / "trained")
    assert trained.exit_code == 0, trained.output
    network.go()
    model = json.loads((network.home / "trained" / "model.json").read_text())
    expected = np.array([*model["coef"][0], *model["intercept"]])
    step = max(grid.step for grid in network.silo(network.names[0]).part.grids().values())
    names = network.names if network.run["run"]["output"] == "network" else network.names[:1]
    for name in names:
        assert np.allclose(network.vector(name), expected, rtol=1e-9, atol=2 * step), name


def storage(network):
    silo = network.silo(network.names[0])
    return type(stack_rows([silo.rows.shard(silo.schema).signed])).__name__


@pytest.mark.parametrize("mechanism", [ALPHA, PRIMAL], ids=["dual", "primal"])
@pytest.mark.parametrize("columns", [None, WIDE], ids=["dense", "csr"])
@pytest.mark.parametrize("family", ["ring", "star", "erdos_renyi"])
def test_five_nodes_equal_the_simulation(tmp_path, nursery, family, columns, mechanism):
    topology = {
        "family": family,
        **({"probability": 0.5, "seed": 1} if family == "erdos_renyi" else {}),
    }
    given = {} if columns is None else {"columns": columns}
    network = Network.make(
        tmp_path / "home", nursery, nodes=5, topology=topology, privacy=mechanism, seed=11, **given
    )
    assert storage(network) == ("DenseRows" if columns is None else "SparseRows")
    equal_to_the_simulation(network)


@pytest.mark.parametrize(
    ("family", "columns", "privacy"),
    [("ring", None, EPSILON), ("star", WIDE, ALPHA), ("erdos_renyi", WIDE, PRIMAL)],
    ids=["ring", "star", "erdos_renyi"],
)
def test_twenty_nodes_equal_the_simulation(tmp_path, nursery, family, columns, privacy):
    topology = {
        "family": family,
        **({"probability": 0.2, "seed": 1} if family == "erdos_renyi" else {}),
    }
    given = {} if columns is None else {"columns": columns}
    network = Network.make(
        tmp_path / "home",
        nursery,
        nodes=20,
        rows=60,
        topology=topology,
        privacy=privacy,
        seed=5,
        **given,
    )
    equal_to_the_simulation(network)


@pytest.mark.parametrize("output", ["last", "tail", "neighbours"])
def test_other_outputs_equal_the_simulation(tmp_path, nursery, output):
    network = Network.make(
        tmp_path / "home", nursery, nodes=4, topology={"family": "star"}, seed=2, output=output
    )
    equal_to_the_simulation(network)
    assert len(set(network.models().values())) > 1  # every node has its own


# Killed, and started again.


@pytest.mark.parametrize(
    "point",
    [
        "agreed",
        "reserved",
        "computed",
        "spent",
        "kept",
        "published",
        "received",
        "noted",
        "closed",
        "finished",
    ],
)
def test_killed_at_a_point_for_the_first_a_middle_and_the_last_time(network, point):
    counts = {name: passings(network.calm, name).count(point) for name in network.names}
    assert len(set(counts.values())) == 1
    last = counts["north"]
    passing = {"north": 1, "south": (last + 1) // 2, "west": last}
    doomed = {name: network.start(name, "--kill", f"{point}:{k}") for name, k in passing.items()}
    children = {}
    while doomed:
        until(
            lambda: any(child.code is not None for child in doomed.values()),
            f"a node to be killed at {point}",
        )
        for name in [name for name, child in doomed.items() if child.code is not None]:
            assert doomed.pop(name).code == -signal.SIGKILL, network.said(name)
            children[name] = network.start(name)
    network.finish(children)
    network.as_undisturbed()


@pytest.mark.parametrize("point", ["spent", "published", "noted", "closed", "finished"])
def test_a_simulation_goes_on_too(tmp_path, nursery, point):
    network = Network.make(tmp_path / "home", nursery, seed=8)
    calm = network.copy(tmp_path / "calm").go()
    children = {name: network.start(name) for name in ("north", "south")}
    assert (
        network.start(
            "west", "--kill", f"{point}:{1 if point in ('closed', 'finished') else 3}"
        ).wait()
        == -signal.SIGKILL
    )
    network.finish({**children, "west": network.start("west")})
    assert network.models() == calm.models()


def test_all_killed_at_once(network):
    for n in (2, 9):
        children = network.start_all("--delay", "noted:0.05")
        network.in_round("north", n)
        for child in children.values():
            child.kill()
        assert {child.wait() for child in children.values()} == {-signal.SIGKILL}
    assert not (network.folder("north") / "model.json").exists()
    network.go()
    network.as_undisturbed()


def test_files_that_a_killed_process_was_writing_are_no_hindrance(network):
    for name in network.names:
        network.folder(name).mkdir()
        for file in (".status.json.x1y2z3", ".run.json.abcdef"):
            (network.folder(name) / file).write_text('{"form')
    network.go()
    network.as_undisturbed()
    assert not [file for name in network.names for file in network.folder(name).glob(".*")]


def test_a_hundred_restarts(tmp_path, nursery):
    """At random times; each life enters two new rounds at most, so that the run outlives all."""
    network = Network.make(tmp_path / "home", nursery, rounds=220, cap=2000)
    network.calm = network.copy(tmp_path / "calm").go()
    rng = random.Random(5)
    children = {name: network.start(name) for name in ("north", "south")}
    for life in range(100):  # and no ledger is opened in between, which would mend it
        before = network.status("north")["round"]
        child = network.start(
            "west", "--halt", rng.choice(("computed:2", "spent:2", "published:2"))
        )
        if life % 10 == 0:
            until(lambda n=before: network.status("north")["round"] > n, "a new round")
        time.sleep(rng.uniform(0.0, 1.0))
        child.kill()
        assert child.wait() == -signal.SIGKILL, network.said("west")
    assert 10 <= network.status("north")["round"] < 220
    children["west"] = network.start("west")
    network.finish(children)
    network.as_undisturbed()


def test_a_slow_node(network):
    """Slower than anybody's patience: who is up is waited for."""
    for name in network.names:
        network.change(name, patience=6)
    children = {"west": network.start("west", "--delay", "reserved:9")}
    until(lambda: network.status("west")["state"] == "agreeing", "west to be up")
    children |= {name: network.start(name) for name in ("north", "south")}
    network.finish(children)
    network.as_undisturbed()


# Ledgers.


def doomed_to_forget(network, kill):
    """A run whose third node is killed; returns the others, who wait."""
    children = {name: network.start(name) for name in ("north", "south")}
    assert network.start("west", "--kill", kill, pinned=None).wait() == -signal.SIGKILL
    return children


@pytest.mark.parametrize("age", ["before the reservation", "a few rounds old"])
def test_an_old_copy_of_a_ledger_is_refused_before_any_draw(network, tmp_path, age):
    old, ledger = tmp_path / "old", network.ledger("west")
    if age == "before the reservation":
        shutil.copy(ledger, old)
        children = doomed_to_forget(network, "noted:4")
    else:
        children = doomed_to_forget(network, "noted:2")
        shutil.copy(ledger, old)
        assert network.start("west", "--kill", "noted:6", pinned=None).wait() == -signal.SIGKILL
    newest = tmp_path / "newest"
    shutil.copy(ledger, newest)
    shutil.copy(old, ledger)
    anchor_file(ledger).unlink()  # which would tell, and is lost too
    shutil.rmtree(network.folder("west"))  # nothing here remembers
    refused = network.start("west", "--trail", network.out / "west.trail", pinned=None)
    assert refused.wait() == 5, network.said("west")
    assert re.search(
        r"(north|south) holds a message of round \d+ with this node's signature",
        network.said("west"),
    )
    assert passings(network, "west") == []
    assert ledger.read_bytes() == old.read_bytes()
    shutil.copy(newest, ledger)
    network.finish({**children, "west": network.start("west", pinned=None)})
    network.sound()
    assert len(set(network.models().values())) == 1


def test_the_run_folder_remembers_what_an_old_ledger_forgot(network, tmp_path):
    """Killed before the letter went out: no neighbour has it, yet it may not be drawn again while
    it can still go out.
    """
    children = doomed_to_forget(network, "noted:2")
    old, ledger = tmp_path / "old", network.ledger("west")
    shutil.copy(ledger, old)
    assert network.start("west", "--kill", "kept:5", pinned=None).wait() == -signal.SIGKILL
    newest = ledger.read_bytes()
    assert len(network.letters("west")) > len(network.letters("north")) / 3
    for name in ("north", "south"):  # neighbours that lost everything
        children[name].kill()
        children[name].wait()
        shutil.rmtree(network.folder(name))
    children = {name: network.start(name) for name in ("north", "south")}
    shutil.copy(old, ledger)
    anchor_file(ledger).unlink()  # which would tell, and is lost too
    refused = network.start("west", "--trail", network.out / "west.trail", pinned=None)
    assert refused.wait() == 5, network.said("west")
    assert "holds a message of round" in network.said("west")
    assert passings(network, "west") == []
    ledger.write_bytes(newest)
    network.finish({**children, "west": network.start("west", pinned=None)})
    network.sound()


def test_a_ledger_in_two_run_folders_sends_one_letter_a_round(network):
    """Two processes of one node, with system entropy, each in a folder of its own: whatever they
    draw, one letter goes out.
    """
    twin = network.file("west").with_name("twin.toml")
    shutil.copy(network.file("west"), twin)
    network.change("twin", out="twin", listen=f"127.0.0.1:{ports(1)[0]}")
    for name in ("west", "twin"):
        network.change(name, patience=8)  # the slower one is left alone in the end
    children = {name: network.start(name, pinned=None) for name in ("west", "twin")}
    children |= {
        name: network.start(name, "--delay", "reserved:2", pinned=None)
        for name in ("north", "south")
    }
    codes = {name: child.wait() for name, child in children.items()}
    assert codes["north"] == codes["south"] == 0, codes
    assert {codes["west"], codes["twin"]} <= {0, 3, 4, 6}, (
        network.said("west"),
        network.said("twin"),
    )
    assert 0 in (codes["west"], codes["twin"])
    spent = network.spends("west")
    for name in ("north", "south", "west", "twin"):
        heard = {
            n: body
            for (author, kind, n), body in network.letters(name).items()
            if (author, kind) == ("west", "message")
        }
        assert heard.items() <= spent.items(), name
        assert not [
            reason for reason in network.status(name)["rejected"] if "second letter" in reason
        ]
    assert network.model("north") == network.model("south")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_the_ledger_is_on_the_disk_before_a_letter_is_on_the_wire(network):
    """System calls of a node that sends in the open: every message is written to the ledger,
    synced, and only then sent.
    """
    trace = network.out / "west.strace"
    children = {name: network.start(name, "--unlocked") for name in ("north", "south")}
    calls = "pwrite64,fsync,fdatasync,write,writev,sendto,sendmsg"
    words = [sys.executable, WORKER, network.file("west"), "--pinned", SEED, "--unlocked"]
    with open(network.out / "west.out", "ab") as out:
        traced = subprocess.Popen(
            [
                "strace",
                "-f",
                "-y",
                "-xx",
                "-s",
                "100000",
                "-e",
                f"trace={calls}",
                "-o",
                trace,
                *map(str, words),
            ],
            stdout=out,
            stderr=out,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
    try:
        assert traced.wait(LONG) == 0, network.said("west")
    finally:
        end_group(traced)
    network.finish(children)
    spent = network.spends("west")
    written, synced, sent = {}, {}, {}
    for i, (what, line) in enumerate(traced_calls(trace.read_text(), str(network.ledger("west")))):
        for n, message in spent.items():
            if what == "sync":
                if n in written:
                    synced.setdefault(n, i)
            elif any(hexed(message[k : k + 24]) in line for k in range(0, len(message) - 23, 8)):
                (written if what == "enter" else sent).setdefault(n, i)
    assert sorted(written) == sorted(synced) == sorted(sent) == sorted(spent)
    assert all(written[n] < synced[n] < sent[n] for n in spent)


def hexed(data):
    return "".join(f"\\x{byte:02x}" for byte in data)


def traced_calls(text, ledger):
    """What strace saw: bytes that enter the ledger when the call begins, a sync when it has
    returned, a send when it begins.
    """
    syncing = set()
    for line in text.splitlines():
        found = re.match(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\(\d+<([^>]*)>)?", line)
        if not found:
            continue
        thread, call, path = found.groups()
        path = (
            bytes.fromhex((path or "").replace("\\x", "")).decode()
            if (path or "").startswith("\\x")
            else path
        )
        if call in ("fsync", "fdatasync"):
            if path == ledger:
                syncing.add(thread)
            if line.endswith("= 0") and thread in syncing:
                yield "sync", line
            if "unfinished" not in line:
                syncing.discard(thread)
        elif path == ledger:
            yield "enter", line
        elif path and not path.startswith("/"):
            yield "send", line


# A neighbour that lies.


class Liar:
    """Holds a genuine neighbour's certificate and key, greets as it should, and then says what it
    likes.
    """

    def __init__(self, network, name, last=lambda author: None, stale=False):
        self.silo, self.last, self.stale = network.silo(name), last, stale
        self.me, self.key = name, self.silo.identity.key
        self.run, self.config = run_id("trial"), bytes.fromhex(digest(self.silo.config))
        self.prefix = f"dynadp/{self.run.hex()[:32]}"
        self.greeted = []

    @contextlib.contextmanager
    def up(self):
        with session(self.silo.site(), self.prefix) as here:
            kept = [
                here.declare_queryable(f"{self.prefix}/{self.me}/**", self._answer),
                here.liveliness().declare_token(f"{self.prefix}/{self.me}/alive"),
            ]
            self.session = here
            yield self
            del kept

    def _answer(self, query):
        if str(query.key_expr).endswith("/hello"):
            data = bytes(query.payload)
            self.greeted.append(data)
            asks = re.search(rb'"asks": "([0-9a-f]+)"', data)[1].decode()
            answers = "0" * 32 if self.stale else asks
            body = {
                "config": self.silo.config,
                "wire": SPOKEN,
                "last": self.last(data),
                "asks": "anything",
                "answers": answers,
            }
            query.reply(query.key_expr, self.letter("hello", 0, json.dumps(body).encode()))

    def letter(self, kind, n, body, *, run=None, config=None, author=None, key=None):
        sealed = Letter(kind, run or self.run, config or self.config, author or self.me, n, body)
        return sealed.sealed(key or self.key)

    def put(self, data, kind="message", n=0, author=None):
        self.session.put(f"{self.prefix}/{self.me}/letter/{kind}/{n}/{author or self.me}", data)


def test_a_liar_is_refused_counted_and_told(network):
    genuine = network.calm.spends("west")
    foreign = network.calm.letters("north")["north", "message", 1]
    d = len(genuine[1]) // 8
    grid = network.silo("north").part.grids()["west", "message", 1]
    zeros = np.zeros(d)
    children = {name: network.start(name) for name in ("north", "south")}
    assert (
        network.start("west", "--kill", "received:1").wait() == -signal.SIGKILL
    )  # its letter of round 0 is out
    with Liar(network, "west").up() as liar:
        for name in ("north", "south"):
            until(
                lambda name=name: network.log(name).count("west is up") >= 2,
                "the liar to be taken for west",
            )

        def vector(values):
            return np.asarray(values, "<f8").tobytes()

        other = np.frombuffer(genuine[0], "<f8").copy()
        other[0] += network.silo("north").part.grids()["west", "message", 0].step
        far = grid.step * np.floor(10 * (grid.radius + 1) / grid.step)
        lies = {
            "forged: not signed": liar.letter(
                "message", 1, vector(zeros), key=Ed25519PrivateKey.generate()
            ),
            "not finite": liar.letter("message", 1, vector(zeros * np.nan)),
            "outside the declared ball": liar.letter("message", 1, vector([far, *zeros[1:]])),
            "outside the declared ball ": liar.letter("message", 1, vector([1e300, *zeros[1:]])),
            "off the public grid": liar.letter("message", 1, vector([grid.step / 3, *zeros[1:]])),
            "of the wrong dimension": liar.letter("message", 1, vector([*zeros, 0.0])),
            "of a round that the run does not have": liar.letter("message", 4711, vector(zeros)),
            "of another run": liar.letter("message", 1, vector(zeros), run=run_id("other")),
            "of another configuration": liar.letter("message", 1, vector(zeros), config=bytes(32)),
            "under the name of west, but signed by north": None,
            "from a node that is not in the run": liar.letter(
                "message", 1, vector(zeros), author="nobody"
            ),
            "malformed: too short": b"DYDP",
            "malformed: not a message of dynadp": b"\0" * 400,
            "malformed: lengths do not add up": liar.letter("message", 1, vector(zeros)) + b"\0",
            "version 7 of messages": b"DYDP\7" + liar.letter("message", 1, vector(zeros))[5:],
            "malformed: a farewell": liar.letter("done", 3, b"x"),
            "with other content": liar.letter("message", 0, vector(other)),
        }
        lies["under the name of west, but signed by north"] = Letter(
            "message", liar.run, liar.config, "north", 1, foreign
        ).sealed(pki.signing_key(network.identity("north") / "sign.key"))
        for lie in lies.values():
            liar.put(lie)
        for name in ("north", "south"):
            for reason in lies:
                until(
                    lambda name=name, reason=reason: any(
                        reason.strip() in why for why in network.status(name)["rejected"]
                    ),
                    f"{name} to count: {reason}",
                )
                until(
                    lambda name=name, reason=reason: (
                        f"refused a letter of west: {reason.strip()}" in network.log(name)
                        or reason == "with other content"
                    ),
                    f"{name} to tell: {reason}",
                )
            assert sum(network.status(name)["rejected"].values()) == len(lies)
            assert {kept for kept in network.letters(name) if kept[0] == "west"} == {
                ("west", "message", 0)
            }
            assert "a second letter of west for the same round, with other content" in network.log(
                name
            )
            assert "refused letters: 17" in dynadp("status", network.folder(name)).output
        assert all(child.code is None for child in children.values())
    children["west"] = network.start("west")  # the honest one takes over
    network.finish(children)
    network.as_undisturbed()


def test_whoever_else_sent_under_a_nodes_name_is_found_out(network):
    """A stolen key sent a perfect letter: the node that knows nothing of it does not go on, and
    draws nothing.
    """
    children = {name: network.start(name) for name in ("north", "south")}
    with Liar(network, "west").up() as liar:
        until(lambda: len(liar.greeted) >= 2, "both to agree")
        until(
            lambda: (
                [liar.put(liar.letter("message", 0, network.calm.spends("west")[0]))]
                and ("west", "message", 0) in network.letters("north")
            ),
            "the letter to be taken",
        )
    refused = network.start("west", "--trail", network.out / "west.trail")
    assert refused.wait() == 5
    assert "another machine runs under this name" in network.said("west")
    assert passings(network, "west") == []
    assert network.spends("west") == {}
    assert all(child.code is None for child in children.values())


@pytest.mark.parametrize("proof", ["my greeting", "forged", "of another run", "rubbish"])
def test_a_liar_cannot_make_a_node_doubt_its_ledger(network, proof):
    """A neighbour proves a lost ledger by a message that the node signed in this run, and by
    nothing else.
    """
    stranger = Ed25519PrivateKey.generate()

    def last(greeting):
        author = re.search(rb"(north|south)\{", greeting)[1].decode()
        body = np.zeros(3).tobytes()
        data = {
            "my greeting": greeting,
            "forged": Letter("message", liar.run, liar.config, author, 1, body).sealed(stranger),
            "of another run": Letter("message", bytes(32), liar.config, author, 1, body).sealed(
                pki.signing_key(network.identity(author) / "sign.key")
            ),
            "rubbish": b"rubbish",
        }[proof]
        return base64.b64encode(data).decode()

    with Liar(network, "west", last).up() as liar:
        children = {name: network.start(name) for name in ("north", "south")}
        for name in ("north", "south"):
            until(
                lambda name=name: "refused a letter of west: " in network.log(name),
                "the proof to be refused",
            )
        assert all(child.code is None for child in children.values()), network.said("north")
    children["west"] = network.start("west")
    network.finish(children)
    network.as_undisturbed()


def test_an_old_greeting_is_not_believed(network):
    """It could hide what a neighbour holds of a node whose ledger was rolled back."""
    with Liar(network, "west", stale=True).up():
        children = {name: network.start(name) for name in ("north", "south")}
        for name in ("north", "south"):
            until(
                lambda name=name: "an old one, sent again" in network.log(name),
                "the greeting to be refused",
            )
        assert network.spends("north") == {}
    children["west"] = network.start("west")
    network.finish(children)
    network.as_undisturbed()


# Secrets.


def test_no_row_and_no_secret_anywhere(tmp_path, nursery):
    marks = [31.4159265, 17.7171717, 44.4848484]

    def marked(i, table):
        ages = table["age"].astype(float)
        ages[7], table["age"] = marks[i], ages
        states = table["status"].astype(object)
        states[9], table["status"] = f"UNHEARDOF{i}", states
        return table

    network = Network.make(tmp_path / "home", nursery, privacy=EPSILON, table=marked)
    broken = network.home / "broken.csv"
    text = (network.home / "west.csv").read_text().splitlines()
    columns = text[0].split(",")
    cells = text[20].split(",")
    cells[columns.index("schooling")] = "TELLTALE"
    broken.write_text("\n".join([*text[:20], ",".join(cells), *text[21:]]) + "\n")
    network.change("west", file=str(broken))
    children = {name: network.start(name) for name in ("north", "south")}
    bad = network.start("west")
    assert bad.wait() == 2, network.said("west")
    assert "schooling" in network.said("west")
    assert network.spends("west") == {}
    network.change("west", file=str(network.home / "west.csv"))
    network.finish({**children, "west": network.start("west")})
    network.sound()
    keys = sorted(network.out.glob("**/*.key"))
    secrets = {"TELLTALE": b"TELLTALE", "other": b"UNHEARDOF"}
    for mark in marks:
        secrets[f"text {mark}"], secrets[f"bytes {mark}"] = (
            str(mark).encode(),
            struct.pack("<d", mark),
        )
    for key in keys:
        secrets |= {
            f"{key} {i}": line for i, line in enumerate(key.read_bytes().splitlines()[1:-1])
        }
        secrets[f"raw {key}"] = base64.b64decode(b"".join(key.read_bytes().splitlines()[1:-1]))[
            -32:
        ]
    assert len(keys) == 7
    seen = [
        file
        for file in network.home.rglob("*")
        if file.is_file() and file.suffix not in (".csv", ".key")
    ]
    assert {".out", ".log", ".json", ".sqlite", ".toml", ".jsonl"} <= {file.suffix for file in seen}
    for file in seen:
        content = file.read_bytes()
        assert not [name for name, secret in secrets.items() if secret in content], file
    assert secrets["text 31.4159265"] in (network.home / "north.csv").read_bytes()
