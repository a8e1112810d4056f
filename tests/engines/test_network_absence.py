"""Real processes over TLS, in a run that goes on: one that is killed for good, one that comes back,
one that is up and silent.
"""

import json
import random

import pytest

from dynadp.runs.model import load_model
from dynadp.runs.partial import partial_model
from support.networks import Network, until
from support.typed import dynadp

pytestmark = pytest.mark.slow
PATIENCE, ROUNDS = 6, 60


@pytest.fixture
def network(tmp_path, one_nursery):
    made = Network.make(tmp_path / "home", one_nursery, nodes=4, rounds=ROUNDS, patience=PATIENCE)
    made.run["network"] = {"on_absence": "go on", "patience": PATIENCE}
    made.write_run()
    return made


def spent_is_what_others_hold(network):
    """Every message that anybody holds is in its author's ledger, byte for byte."""
    spent = {name: network.spends(name) for name in network.names}
    for name in network.names:
        for (author, kind, n), body in network.letters(name).items():
            if kind == "message":
                assert spent[author][n] == body


def members(network, name):
    return load_model(network.folder(name)).members


@pytest.mark.parametrize("seed", [1, 2])
def test_one_is_killed_for_good_and_the_rest_finish(network, seed):
    n = random.Random(seed).randrange(2, 20)
    gone, *rest = network.names
    children = {name: network.start(name) for name in rest}
    killed = network.start(gone, "--kill", f"published:{n}")
    killed.wait()
    network.finish(children)
    spent_is_what_others_hold(network)
    assert {members(network, name) for name in rest} == {tuple(rest)}
    assert len({network.vector(name).tobytes() for name in rest}) == 1
    near = network.silo(gone).part.neighbours
    for name in near:
        assert network.status(name)["neighbours"][gone] == "given up"
        assert f"without {gone}" in network.log(name)
        part = partial_model(network.folder(name)).partial  # of those whose letters are here
        assert part["rounds"] == ROUNDS
        assert {name} <= {*part["members"]} <= {*rest}
    shown = dynadp("status", network.folder(near[0]))
    assert "given up" in shown.output.lower()


def test_one_is_killed_and_comes_back_and_finishes(network):
    gone, *rest = network.names
    network.change(gone, patience=60)  # links take their time on a busy machine
    children = {name: network.start(name, "--delay", "spent:0.5") for name in rest}
    network.start(gone, "--kill", "published:3").wait()
    near = network.silo(gone).part.neighbours
    until(
        lambda: all(network.status(name)["neighbours"].get(gone) == "given up" for name in near),
        "the killed node to be given up",
    )
    children[gone] = network.start(gone)
    network.finish(children)
    spent_is_what_others_hold(network)
    for name in near:
        assert f"takes messages of {gone} again" in network.log(name)
    missed = set(range(1, ROUNDS + 1)) - set(network.spends(gone))
    assert max(missed, default=0) < ROUNDS  # on a busy machine it may be back before the next one
    assert len({network.vector(name).tobytes() for name in network.names}) == 1


def test_one_that_is_up_and_silent_in_the_centring_round_stops_the_others(tmp_path, one_nursery):
    """All are needed there: they stop, and lose nothing."""
    privacy = {"mechanism": "dual", "epsilon": 4.0, "delta": 1e-5}
    network = Network.make(tmp_path / "home", one_nursery, privacy=privacy, patience=PATIENCE)
    network.run["network"] = {"on_absence": "go on", "patience": PATIENCE}
    network.write_run()
    silent, *rest = network.names
    children = {name: network.start(name) for name in rest}
    halted = network.start(silent, "--halt", "reserved:1")
    assert {name: child.wait() for name, child in children.items()} == dict.fromkeys(rest, 4)
    assert halted.code is None
    for name in rest:
        assert f"the centring round of {silent}" in network.said(name)
    halted.kill()
    halted.wait()
    for name in network.names:
        network.change(name, patience=60)
    network.go()


def test_one_that_is_up_and_silent_is_given_up_and_ends_as_left_behind(network):
    gone, *rest = network.names
    children = {name: network.start(name) for name in rest}
    silent = network.start(gone, "--halt", "received:5")
    network.finish(children)
    assert {members(network, name) for name in rest} == {tuple(rest)}
    silent.kill()
    silent.wait()
    back = network.start(gone)
    assert back.wait() in (4, 7), network.said(gone)  # nobody is there, or nobody takes it in
    assert "NodeLost" in network.status(gone)["state"] or "LeftBehind" in json.dumps(
        network.status(gone)
    )
    spent_is_what_others_hold(network)
