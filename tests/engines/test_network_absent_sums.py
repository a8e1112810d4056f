"""Sums of real processes over TLS that go on when one of five is killed for good."""

import json

import numpy as np
import pytest

from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.partial import partial_model
from support.networks import Network, until
from support.typed import dynadp

pytestmark = pytest.mark.slow
SUM = {"mechanism": "sum", "epsilon": 4.0, "delta": 1e-5}
SEALED = {"mechanism": "sealed", "honest": 3, "away": 1, "epsilon": 4.0, "delta": 1e-5}


def going_on(home, nursery, privacy, **given):
    given = {"nodes": 5, **given}
    made = Network.make(home, nursery, privacy=privacy, patience=5, **given)
    made.run["network"] = {"on_absence": "go on", "patience": 5.0}
    made.write_run()
    return made


@pytest.mark.parametrize("privacy", [SUM, SEALED], ids=["open", "sealed"])
@pytest.mark.parametrize("family", ["ring", "star"])
def test_one_of_five_is_killed_for_good(tmp_path, nursery, privacy, family):
    network = going_on(tmp_path / "home", nursery, privacy, topology={"family": family})
    children = network.start_all("--delay", "noted:0.1", pinned=None)
    lost, rest = network.names[2], [name for name in network.names if name != network.names[2]]
    network.in_round(lost, 2)
    children[lost].kill()
    children[lost].wait()
    network.finish({name: children[name] for name in rest})
    models = {name: json.loads(network.model(name)) for name in rest}
    assert len({json.dumps(model["coef"]) for model in models.values()}) == 1
    plan = network.silo(rest[0]).plan
    part = partial_model(network.folder(rest[0]))  # from its letters, without the node
    assert part.partial == {
        "rounds": plan.rounds,
        "planned": plan.rounds,
        "members": models[rest[0]]["members"],
    }
    assert np.append(part.coef, part.intercept) == pytest.approx(network.vector(rest[0]), rel=1e-9)
    for name in rest:
        assert models[name]["members"] == sorted(rest, key=network.names.index)
        done = dynadp("ledger", "verify", network.ledger(name))
        assert done.exit_code == 0, done.output
        spent = network.spends(name)
        extra = [plan.rounds + 1] if privacy is SEALED else []
        assert sorted(spent) == [*range(plan.rounds + 1), *extra]
        kind = "sealed" if privacy is SEALED else "sum"
        sent = {
            n: body
            for (author, sort, n), body in network.letters(rest[0]).items()
            if author == name and sort in (kind, "message")
        }
        assert sent == spent
        with Ledger.open(network.ledger(name), read_only=True) as ledger:
            purposes = [event.purpose for event in ledger.spent()]
            assert purposes.count("spare") == len(extra)
            assert not ledger.counted()[len(ledger.spent()) :]
    assert not [path for name in rest for path in network.home.glob(f"{name}.sqlite-own-*")]


@pytest.mark.parametrize("privacy", [SUM, SEALED], ids=["open", "sealed"])
def test_one_that_is_up_and_silent_is_left_out_and_nobody_stays_for_it(tmp_path, nursery, privacy):
    network = going_on(tmp_path / "home", nursery, privacy)
    silent, *rest = network.names
    children = {name: network.start(name, pinned=None) for name in rest}
    halted = network.start(silent, "--halt", "received:3", pinned=None)
    network.finish(children)
    models = {name: json.loads(network.model(name)) for name in rest}
    assert len({json.dumps(model["coef"]) for model in models.values()}) == 1
    assert {tuple(model["members"]) for model in models.values()} == {tuple(rest)}
    assert halted.code is None
    near = [name for name in rest if silent in network.silo(name).part.neighbours]
    for name in near:
        assert network.status(name)["neighbours"][silent] == "up"
        assert network.status(name)["waiting"] == ""
        assert f"the sums go on without {silent}" in network.log(name)
        assert f"{silent} did not say that they are too" in network.said(name)


def test_nodes_of_odd_degree_keep_their_leases_without_a_neighbour(tmp_path, nursery):
    """Of three neighbours two must confirm: any two, not those that were asked first."""
    complete = {"family": "complete"}
    network = going_on(tmp_path / "home", nursery, SUM, nodes=4, topology=complete)
    children = network.start_all("--delay", "noted:0.1", pinned=None)
    lost = min(network.names)  # names are asked in their order
    network.in_round(lost, 2)
    children[lost].kill()
    children[lost].wait()
    rest = [name for name in network.names if name != lost]
    network.finish({name: children[name] for name in rest})
    models = {json.dumps(json.loads(network.model(name))["coef"]) for name in rest}
    assert len(models) == 1


def without(network, other, lost):
    """Sums that a node holds without another."""
    silo = network.silo(other)
    ballots = silo.part.rules(bytes(32), bytes(32), {}).ballots
    found = set()
    for (author, kind, n), body in network.letters(other).items():
        own = author == other and kind == "held" and n < ballots.entries
        if own and lost not in ballots.unpacked(body):
            found.add(n)
    return found


@pytest.mark.parametrize("privacy", [SUM, {**SEALED, "spares": 2}], ids=["open", "sealed"])
def test_one_that_was_left_out_is_taken_in_again(tmp_path, nursery, privacy):
    """All five end with one model; the one that was away spent nothing for what it missed."""
    network = going_on(tmp_path / "home", nursery, privacy)
    rounds = network.silo(network.names[0]).plan.rounds
    children = network.start_all("--delay", "noted:1.0", pinned=None)
    lost, other = network.names[1], network.names[3]
    network.in_round(lost, 2)
    children[lost].kill()
    children[lost].wait()
    before = network.spends(lost)
    until(lambda: without(network, other, lost), "a sum without it")
    children[lost] = network.start(lost, "--delay", "noted:0.02", pinned=None)
    network.finish(children)
    models = {name: json.loads(network.model(name)) for name in network.names}
    assert len({json.dumps(model["coef"]) for model in models.values()}) == 1
    assert not any(model.get("members") for model in models.values())
    missed, spent = without(network, other, lost), network.spends(lost)
    assert missed
    assert f"{lost} will take part in the sums again" in network.log(other)
    assert not ({*spent} - {*before}) & missed
    assert rounds in spent
    for name in network.names:
        assert not network.letters(name).keys() & {(lost, "sum", n) for n in missed - {*before}}
        assert dynadp("ledger", "verify", network.ledger(name)).exit_code == 0
        extra = [n for n in network.spends(name) if n > rounds]
        assert extra == ([rounds + 1] if "spares" in privacy and name != lost else [])


@pytest.mark.parametrize("privacy", [SUM, SEALED], ids=["open", "sealed"])
def test_who_comes_back_when_the_others_are_done_takes_their_model_home(tmp_path, nursery, privacy):
    network = going_on(tmp_path / "home", nursery, privacy)
    children = network.start_all("--delay", "noted:0.1", pinned=None)
    lost, other = network.names[1], network.names[0]
    network.in_round(lost, 2)
    children[lost].kill()
    children[lost].wait()
    spent = network.spends(lost)
    until(lambda: (network.folder(other) / "model.json").exists(), "a model without it")
    again = network.start(lost, pinned=None)
    assert again.wait() == 0, network.said(lost)
    assert network.spends(lost) == spent
    model, theirs = (json.loads(network.model(name)) for name in (lost, other))
    assert lost not in model["members"]
    assert model["coef"] == theirs["coef"]
    with Ledger.open(network.ledger(lost), read_only=True) as ledger:
        assert ledger.counted() == ledger.spent()
    network.finish({name: child for name, child in children.items() if name != lost})


def test_a_node_that_sends_nothing_and_lost_what_it_signed_is_left_behind(tmp_path, nursery):
    """It could sign otherwise; and it remembers that."""

    def table(i, own):
        return {name: cells[:4] for name, cells in own.items()} if i == 1 else own

    given = {"nodes": 3, "topology": {"family": "path"}, "table": table}
    network = going_on(tmp_path / "home", nursery, SUM, **given)
    children = network.start_all("--delay", "noted:0.5", pinned=None)
    lost, rest = network.names[1], (network.names[0], network.names[2])
    network.in_round(lost, 2)
    children[lost].kill()
    children[lost].wait()
    for file in network.folder(lost).glob("letters-*.sqlite*"):
        file.unlink()
    for words in ("what it signed about its members is gone", "was left behind"):
        assert network.start(lost, pinned=None).wait() == 7, network.said(lost)
        assert words in network.said(lost)
    assert network.spends(lost) == {}
    for name in rest:
        children[name].kill()
