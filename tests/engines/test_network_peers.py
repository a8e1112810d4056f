"""What neighbours and strangers can do to a node: nothing that ends it, fills its disk or makes it
release what it would not have released.
"""

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections import defaultdict

import pytest

from dynadp.engines.letters import verify
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.identities import public_key
from support.hostile import PREFIX, Hostile, goes_on, measure
from support.networks import ALPHA, Network, ports, session, until
from support.typed import dynadp

pytestmark = pytest.mark.slow
SUM = {"mechanism": "sum", "epsilon": 4.0, "delta": 1e-5, "centring": False}


# Checked before anybody hears of a node.


def entries(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        return [entry.kind for entry in ledger.entries()]


def spoil_a_cell(network, name):
    file = network.home / f"{name}.csv"
    lines = file.read_text().splitlines()
    cells = lines[20].split(",")
    cells[lines[0].split(",").index("schooling")] = "rubbish"
    lines[20] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")


def lower_the_cap(network, name):
    lowered = "ledger", "cap", network.ledger(name), "--epsilon", 0.01, "--delta", 1e-5
    assert dynadp(*lowered).exit_code == 0


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [(spoil_a_cell, 2, "schooling"), (lower_the_cap, 3, "do not fit under the cap")],
)
def test_what_a_node_refuses_is_found_before_its_neighbours_reserve(
    tmp_path, nursery, spoil, code, words
):
    network = Network.make(tmp_path / "home", nursery)
    spoil(network, "west")
    others = {name: network.start(name) for name in ("north", "south")}
    for name in others:
        until(
            lambda at=name: "west" in network.status(at).get("waiting", ""),
            f"{name} to wait for west",
        )
    refused = network.start("west")
    assert refused.wait() == code, network.said("west")
    assert words in network.said("west")
    assert network.status("west")["state"].startswith("failed: ")
    for name in network.names:
        assert "reserve" not in entries(network, name)
        assert not network.letters(name)
    for name in others:
        assert "west is up" not in network.log(name)


# Two machines under one name.


def clone(network, name, home):
    """A copy of one node's whole folder on another machine, which listens elsewhere."""
    twin = network.copy(home)
    twin.change(name, listen=f"127.0.0.1:{ports(1)[0]}")
    return twin


def sent_by(network, names, author):
    """{round: all contents} of an author's letters, wherever they arrived."""
    found = defaultdict(set)
    for name in names:
        for (who, kind, n), body in network.letters(name).items():
            if who == author and kind in ("message", "sum", "sealed"):
                found[n].add(body)
    return found


@pytest.mark.parametrize("late", [False, True], ids=["together", "later"])
@pytest.mark.parametrize(
    ("nodes", "privacy"),
    [(3, ALPHA), (2, ALPHA), (3, SUM), (2, SUM)],
    ids=["ring", "pair", "sums", "sums of two"],
)
def test_of_two_clones_one_draws(tmp_path, nursery, nodes, privacy, late):
    """Neither has a centring round that would give it away."""
    network = Network.make(
        tmp_path / "home", nursery, nodes=nodes, privacy=privacy, rounds=40, cap=1000
    )
    name = network.names[-1]
    twin = clone(network, name, tmp_path / "twin")
    # the run outlives the seconds after which neighbours say that the other one is alive
    slow = "--delay", f"noted:{20 / network.silo(name).plan.rounds}"
    others = {one: network.start(one, *slow) for one in network.names[:-1]}
    children = [network.start(name, *slow, pinned=None)]
    if late:
        network.in_round(name, 2)
    children.append(twin.start(name, *slow, pinned=None))
    codes = [child.wait() for child in children]
    # the second may hear first that a neighbour holds messages that it does not know: 5
    assert sorted(codes) in ([0, 5], [0, 6]), (network.said(name), twin.said(name))
    winner, loser = (network, twin) if codes[0] == 0 else (twin, network)
    assert not late or winner is network
    network.finish(others)
    assert "another machine runs under th" in loser.said(name)
    assert loser.spends(name) == {}
    spent = winner.spends(name)
    for n, contents in sent_by(network, others, name).items():
        assert contents == {spent[n]}
    for one in others:
        assert not [why for why in network.status(one)["rejected"] if "second letter" in why]


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_clone_is_refused_before_anything_was_drawn(tmp_path, nursery, nodes):
    """Nobody holds any message yet, so the lease alone tells them apart."""
    network = Network.make(tmp_path / "home", nursery, nodes=nodes)
    name = network.names[-1]
    twin = clone(network, name, tmp_path / "twin")
    others = {one: network.start(one) for one in network.names[:-1]}
    first = network.start(name, "--halt", "agreed:1")  # it holds its lease, and draws nothing
    until(lambda: granted(network, name), "the lease")
    trail = twin.out / "trail"
    assert twin.start(name, "--trail", trail).wait() == 6, twin.said(name)
    assert "another machine runs under the name" in twin.said(name)
    assert not trail.read_text()
    words = f"did not grant the name {name} to a second life of it"
    assert any(words in network.log(one) for one in others)  # of the first that it asked
    first.kill()
    network.finish({**others, name: twin.start(name)})  # the other one is gone for good
    assert sorted(twin.spends(name)) == list(range(1, 7))
    assert network.spends(name) == {}


def granted(network, name):
    """Whether all neighbours have granted a node's name."""
    return all(
        any(name in file.read_text() for file in network.folder(one).glob("letters-*.leases.json"))
        for one in network.names
        if one != name
    )


def test_a_node_that_is_killed_gets_its_name_back_in_seconds(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery, rounds=12, cap=1000)
    network.calm = network.copy(tmp_path / "calm").go()
    children = {name: network.start(name) for name in ("north", "south")}
    assert network.start("west", "--kill", "noted:4").wait() == -signal.SIGKILL
    began = time.monotonic()
    children["west"] = network.start("west")
    network.in_round("west", 5)
    print(f"its name was its own again after {time.monotonic() - began:.1f} seconds")
    network.finish(children)
    network.as_undisturbed()


def test_a_life_whose_name_was_passed_on_stops_before_its_next_draw(tmp_path, nursery):
    """It stood still for longer than neighbours wait, and a copy of its disk was started."""
    network = Network.make(tmp_path / "home", nursery, rounds=40, cap=1000)
    others = {name: network.start(name, "--delay", "noted:0.3") for name in ("north", "south")}
    first = network.start("west", pinned=None)
    network.in_round("west", 5)
    os.kill(first.pid, signal.SIGSTOP)
    twin = clone(network, "west", tmp_path / "twin")
    second = twin.start("west", pinned=None)
    until(
        lambda: (now := twin.status("west"))["pid"] == second.pid and now["state"] == "running",
        "the copy to go on",
    )
    os.kill(first.pid, signal.SIGCONT)
    codes = first.wait(), second.wait()
    network.finish(others)
    assert codes == (6, 0), (network.said("west"), twin.said("west"))
    spent = twin.spends("west")
    assert network.spends("west").items() <= spent.items()
    for n, contents in sent_by(network, others, "west").items():
        assert contents == {spent[n]}


# A member that sends whatever it can.


@pytest.mark.parametrize("fresh", [False, True])
def test_another_configuration_ends_a_node_only_if_it_is_shown_just_now(tmp_path, nursery, fresh):
    """An old greeting of a neighbour, handed over by anybody, ends nothing."""
    network = Network.make(tmp_path / "home", nursery)
    north = network.start("north")
    until(lambda: network.status("north")["state"] == "agreeing", "north to be up")
    with session(network.silo("west").site(), PREFIX) as here:
        hostile = Hostile(network, "west", here)
        other, there = {**hostile.content, "edges": []}, f"{PREFIX}/north/hello"
        answers, got = None, []

        def ask():
            body = hostile.greeting(config=other, answers=answers)
            data = hostile.letter("hello", 0, body, config=bytes(32))
            answered = here.get(there, payload=data, timeout=2.0)
            got.extend(bytes(one.ok.payload) for one in answered if one.ok is not None)
            return bool(got)

        until(ask, "north to answer")
        if fresh:
            answers = re.search(rb'"asks": "([0-9a-f]+)"', got[0])[1].decode()
            ask()
            assert north.wait() == 2, network.said("north")
            assert "they differ in" in network.said("north")
            return
        told = "refused a letter of a neighbour: of another configuration"
        until(lambda: told in network.log("north"), told)
    network.finish({"north": north, **{one: network.start(one) for one in ("south", "west")}})
    network.sound()


def test_one_that_is_up_and_answers_no_greeting_is_waited_for_as_if_it_were_away(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery, nodes=2, patience=15)
    north = network.start("north")
    until(lambda: network.status("north")["state"] == "agreeing", "north to be up")
    with session(network.silo("south").site(), PREFIX) as here:
        hostile = Hostile(network, "south", here)
        hostile.flap()
        until(lambda: "south is up" in network.log("north"), "north to see it")
        assert north.wait() == 4, network.said("north")
    assert "waited 15 seconds for a greeting of south" in network.said("north")
    assert "reserve" not in entries(network, "north")


def test_another_configuration_ends_no_node_that_took_part_before(tmp_path, nursery):
    """Started again it goes on, though a neighbour that is up shows another one all the time."""
    network = Network.make(
        tmp_path / "home",
        nursery,
        nodes=4,
        topology={"family": "complete"},
        rounds=60,
        cap=1e6,
        patience=10,
    )
    network.run["network"] = {"on_absence": "go on", "patience": 10.0}
    network.write_run()
    children = network.start_all("--delay", "noted:0.5")
    network.in_round("north", 2)
    for name in ("west", "north"):
        children[name].kill()
        children[name].wait()
    with session(network.silo("west").site(), PREFIX) as here:
        hostile, shown = Hostile(network, "west", here), []
        keys = {one["name"]: public_key(one["key"]) for one in network.run["nodes"]}
        other = {**hostile.content, "edges": []}

        def answer(query):
            _, _, _, what = str(query.key_expr).split("/", 3)
            if what == "hello":
                letter = verify(bytes(query.payload), keys)
                asks = json.loads(letter.body)["asks"]
                body = hostile.greeting(config=other, answers=asks)
                query.reply(query.key_expr, hostile.letter("hello", 0, body, config=bytes(32)))
                shown.append(asks)

        held = here.declare_queryable(f"{PREFIX}/west/**", answer)
        hostile.flap()
        children["north"] = network.start("north", "--delay", "noted:0.1")
        until(lambda: shown, "north to greet it")
        network.finish({name: children[name] for name in ("north", "south", "east")})
        held.undeclare()
    assert any(
        "not run the same configuration" in why for why in network.status("north")["rejected"]
    )


def test_a_hostile_member_stops_nobody_and_fills_nothing(tmp_path, nursery):
    """DYNADP_HOSTILE says for how many seconds, if not for 12."""
    seconds = float(os.environ.get("DYNADP_HOSTILE", "12"))
    network = Network.make(tmp_path / "home", nursery, rounds=4000, cap=1e6, patience=seconds + 600)
    children, grew = measure(network, seconds)
    assert all(child.code is None for child in children.values())
    for own in grew.values():
        assert own["memory"] < 50
        assert own["disk"] < 50
    assert all(child.code is None for child in children.values())
    goes_on(network)  # the third node gets its name back, whatever lives it was given to


# An outsider that keeps knocking.


class Flood:
    """Connections that say nothing, rubbish, the beginning of a TLS greeting, or one of rubbish: so
    many in a second, until it is over.
    """

    SAID = (b"", None, b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x01\x00\xf0" + bytes(240))

    def __init__(self, endpoint, each_second=20):
        host, _, port = endpoint.rpartition(":")
        self.where, self.pause = (host, int(port)), 1 / each_second
        self.count, self.kept, self._over = 0, [], threading.Event()
        self._thread = threading.Thread(target=self._knock, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        for link in self.kept:
            link.close()

    def _knock(self):
        while not self._over.wait(self.pause):
            with contextlib.suppress(OSError):
                link = socket.create_connection(self.where, timeout=1)
                self.count += 1
                said = self.SAID[self.count % len(self.SAID)]
                link.sendall(os.urandom(200) if said is None else said)
                self.kept.append(link)


def test_an_outsider_that_keeps_knocking_keeps_nobody_out(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery)
    north = network.start("north")
    until(lambda: network.status("north")["state"] == "agreeing", "north to be up")
    with Flood(network.run["nodes"][0]["endpoint"]) as flood:
        until(lambda: flood.count > 200, "a backlog")
        began = time.monotonic()
        others = {name: network.start(name) for name in ("south", "west")}
        network.finish({"north": north, **others})
        print(f"the run was over after {time.monotonic() - began:.1f} seconds")
    until(lambda: "turned 127.0.0.1 away: it began no TLS handshake" in network.log("north"), "it")
    network.sound()
