"""Silos as real processes: launched, stopped, started again, and refused, as typed on the command
line.
"""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.file import Ledger
from support.networks import LONG, Network, end_group, ended, typed, until
from support.typed import dynadp

ROUNDS = 150  # enough that a run can be stopped on its way, which is seen twice a second


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    """Three nodes in a ring with ledgers, and the models of a run that nobody disturbed."""
    network = Network.make(tmp_path_factory.mktemp("base") / "home", one_nursery)
    network.calm = network.copy(network.home.with_name("undisturbed")).go()
    return network


@pytest.mark.slow
def test_launch_stops_and_goes_on(tmp_path, nursery):
    home = tmp_path / "home"
    Network.make(home, nursery, rounds=ROUNDS, cap=1000)
    out = home / "launched"
    first = typed("launch", home / "train.toml", "--out", out)
    try:
        until(lambda: (out / "run.toml").exists(), "the shared run file")
        network = Network(home, nursery, "launched")
        until(
            lambda: (
                all(network.status(name)["round"] > 0 for name in network.names)
                or first.poll() is not None
            ),
            "rounds",
        )
        first.send_signal(signal.SIGTERM)
        code, _, told = ended(first)
    finally:
        end_group(first)
    assert code == 130, told
    assert f"go on with: dynadp launch {home / 'train.toml'} --out {out} --resume" in told
    entered = {name: len(network.spends(name)) for name in network.names}
    assert all(0 < n < ROUNDS for n in entered.values())
    assert {network.status(name)["state"] for name in network.names} == {"stopped"}
    code, answer, told = ended(
        typed("launch", home / "train.toml", "--out", out, "--resume", "--json")
    )
    assert code == 0, told
    assert json.loads(answer)["largest_difference"] == 0
    network.sound()
    assert len(set(network.models().values())) == 1
    shown = json.loads(dynadp("status", out, "--json").stdout)["nodes"]
    assert [
        (one["node"], one["state"], one["round"], one["rejected"], one["alive"]) for one in shown
    ] == [(name, "parted", ROUNDS, {}, False) for name in sorted(network.names)]
    words = dynadp("status", out).output
    for name in network.names:
        assert f"{name}: parted, round {ROUNDS} of {ROUNDS}" in words
    again = dynadp("launch", home / "train.toml", "--out", out)
    assert again.exit_code == 2
    assert "--resume" in again.output


@pytest.mark.slow
def test_a_launch_that_a_ledger_refuses_says_how_to_make_room(tmp_path, nursery):
    home = tmp_path / "home"
    network = Network.make(home, nursery, rounds=4, cap=1000)
    assert (
        dynadp(
            "ledger", "cap", network.ledger("west"), "--epsilon", 0.01, "--delta", 1e-5
        ).exit_code
        == 0
    )
    line = "launch", home / "train.toml", "--out", home / "launched"
    code, _, told = ended(typed(*line))
    assert code == 3, told
    assert "the ledger of west refused the run, so it cannot go on as it is" in told
    assert "stopped; go on with" not in told
    assert f"room in the ledger, make it, and then: dynadp launch {home / 'train.toml'}" in told
    for command in (
        words.strip() for words in told.splitlines() if words.startswith("    dynadp ledger close")
    ):
        assert str(network.ledger("west")) not in command  # which has reserved nothing
    assert (
        dynadp(
            "ledger", "cap", network.ledger("west"), "--epsilon", 1000, "--delta", 1e-5
        ).exit_code
        == 0
    )
    code, _, told = ended(typed(*line, "--resume", "--json"))
    assert code == 0, told


def test_a_launch_that_fails_tells_the_code_of_the_node_that_failed(network):
    network.run["training"]["eta"] = 0.07
    network.write_run(network.out / "other.toml.txt")
    network.change("west", run="other.toml.txt", file="nowhere.csv")
    code, _, told = ended(
        typed("launch", network.home / "train.toml", "--out", network.out, "--resume")
    )
    assert code == 2, told
    assert "west: " in told
    assert "nowhere.csv" in told


@pytest.mark.slow
def test_a_launch_whose_node_is_killed_says_so(tmp_path, nursery):
    home = tmp_path / "home"
    Network.make(home, nursery, rounds=ROUNDS, cap=1000)
    first = typed("launch", "home/train.toml", cwd=tmp_path)  # into runs/NAME-network
    try:
        told = tmp_path / "runs" / "trial-network" / "north" / "status.json"
        until(lambda: told.exists() or first.poll() is not None, "a status")
        os.kill(json.loads(told.read_text())["pid"], signal.SIGKILL)
        code, _, words = ended(first)
    finally:
        end_group(first)
    assert code == 1
    assert words.startswith(
        "north was killed by signal 9\ndynadp: stopped; go on with: dynadp launch home/train.toml"
    )
    assert "the certificate ends" not in (told.parent / "node.log").read_text()


@pytest.mark.slow
def test_a_launch_goes_on_without_a_node_that_is_killed(tmp_path, nursery):
    home = tmp_path / "home"
    Network.make(home, nursery, rounds=ROUNDS, cap=1000)
    with open(home / "train.toml", "a") as file:
        file.write('\n[network]\non_absence = "go on"\n')
    first = typed("launch", home / "train.toml", "--patience", 15, "--out", tmp_path / "out")
    try:
        told = tmp_path / "out" / "north" / "status.json"
        until(lambda: told.exists() and json.loads(told.read_text())["round"] > 0, "a round")
        os.kill(json.loads(told.read_text())["pid"], signal.SIGKILL)
        code, answer, words = ended(first)
    finally:
        end_group(first)
    assert code == 0, words
    assert "north was killed by signal 9" in words
    assert "2 nodes finished with the same model, without north" in answer


@pytest.mark.parametrize(
    "mechanism",
    ["primal", None, {"name": "sum", "second_moment": True}, {"name": "sealed", "honest": 2}],
)
def test_a_network_equals_the_simulation(tmp_path, nursery, mechanism):
    chosen = {} if mechanism is None else {"mechanism": mechanism}
    network = Network.make(
        tmp_path / "home", nursery, seed=3, privacy={**chosen, "epsilon": 4.0, "delta": 1e-5}
    )
    trained = dynadp(
        "train", network.home / "train.toml", "--out", network.home / "trained", "--json"
    )
    assert trained.exit_code == 0, trained.output
    network.go()
    expected = json.loads((network.home / "trained" / "model.json").read_text())
    for name in network.names:
        model = json.loads(network.model(name))
        assert (model["coef"], model["intercept"]) == (expected["coef"], expected["intercept"])
        assert model["schema"] == expected["schema"]  # the private centre among it
        assert model["privacy"]["statement"].startswith("SIMULATION")
        assert not list(network.folder(name).glob("messages*"))


def test_people_with_several_rows_on_a_network(tmp_path, nursery):
    """At most two rows of a person at each node, as in one process; ledgers name the person."""

    def table(i, own):
        return {**own, "who": np.arange(len(own["age"])) % 50}

    people = {"person": "who", "rows_per_person": 2, "silos_per_person": 3}
    whom = {"rows": 2, "silos": 3, "adjacency": "replace", "limited": True}
    given = {"epsilon": 4.0, "delta": 1e-5, **people}
    for seed in (3, None):
        network = Network.make(
            tmp_path / f"home {seed}", nursery, seed=seed, privacy=given, table=table
        )
        rows = network.home / "west.csv"
        theirs = rows.read_text()
        rows.write_text(theirs.replace("who", "patient", 1))  # as this silo calls it
        network.change("west", person="patient")
        network.go()
        rows.write_text(theirs)
        record = json.loads((network.folder("west") / "run.json").read_text())
        assert set(record["rows"].values()) == {100}
        assert record["plan"]["unit"] == whom
        if seed is None:
            with Ledger.open(network.ledger("west"), read_only=True) as ledger:
                assert {(event.rows, event.silos) for event in ledger.spent()} == {(2, 3)}
            continue
        trained = dynadp("train", network.home / "train.toml", "--out", network.home / "trained")
        assert trained.exit_code == 0, trained.output
        expected = json.loads((network.home / "trained" / "model.json").read_text())
        for name in network.names:
            assert json.loads(network.model(name))["coef"] == expected["coef"]


def test_the_papers_third_algorithm_with_its_schedule_runs_on_a_network(tmp_path, nursery):
    """As printed, with its final step, and an alpha for each node and round."""
    alpha = {"north": [0.5, 0.4, 0.3, 0.4, 0.5, 0.6], "south": 0.5, "west": 0.7}
    mechanism = {"name": "primal", "augment": "iterate", "final_release": 0.4}
    network = Network.make(
        tmp_path / "home",
        nursery,
        seed=3,
        output="last",
        privacy={"mechanism": mechanism, "alpha": alpha, "delta": 1e-5},
    )
    trained = dynadp("train", network.home / "train.toml", "--out", network.home / "trained")
    assert trained.exit_code == 0, trained.output
    network.go()
    expected = json.loads((network.home / "trained" / "model.json").read_text())
    model = json.loads(network.model("north"))
    assert (model["coef"], model["intercept"]) == (expected["coef"], expected["intercept"])
    text = (network.folder("north") / "rounds.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["alpha"] for line in lines] == alpha["north"]


def test_a_node_that_sends_nothing_takes_the_model_home(tmp_path, nursery):
    """Its few rows are worth less than the noise that would hide them; its ledger stays empty."""

    def table(i, own):
        return {name: cells[:4] for name, cells in own.items()} if i == 1 else own

    network = Network.make(
        tmp_path / "home",
        nursery,
        topology={"family": "path"},
        privacy={"epsilon": 4.0, "delta": 1e-5},
        table=table,
    )
    north, south, west = network.names
    children = network.start_all()
    network.finish(children)
    models = {json.dumps(json.loads(network.model(name))["coef"]) for name in network.names}
    assert len(models) == 1
    with Ledger.open(network.ledger(south), read_only=True) as ledger:
        assert ledger.counted() == []
    for name in (north, west):
        with Ledger.open(network.ledger(name), read_only=True) as ledger:
            assert {event.kind for event in ledger.spent()} == {"gaussian"}
    text = (network.folder(south) / "rounds.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {(line.get("mu"), line["alpha"]) for line in lines} == {(None, None)}
    again = network.start(south)  # to serve others: it has its model
    assert again.wait() == 0


@pytest.mark.slow
def test_sealed_sums_go_on_after_kills_and_leave_no_key(tmp_path, nursery):
    """kill -9 at every point of a round: one letter a sum, one model, and keys are gone."""
    sealed = {"mechanism": "sealed", "honest": 2, "epsilon": 4.0, "delta": 1e-5}
    network = Network.make(tmp_path / "home", nursery, privacy=sealed, nodes=4)
    children = network.start_all("--delay", "noted:0.1")
    keys, seen = {}, set()
    for name, n in (("west", 2), ("south", 4), ("west", 6)):
        network.in_round(name, n)
        keys |= {path: path.read_bytes() for path in network.home.glob("*-own-*-key")}
        children[name].kill()
        children[name].wait()
        children[name] = network.start(name, "--delay", "noted:0.05")
    network.finish(children)
    network.sound()
    assert len({json.dumps(json.loads(model)["coef"]) for model in network.models().values()}) == 1
    assert len(keys) == 4
    assert len(set(keys.values())) == 4
    assert not list(network.home.glob("*-own-*"))
    for path in network.home.rglob("*"):
        if path.is_file():
            seen.add(path)
            content = path.read_bytes()
            assert not any(key in content or key.hex().encode() in content for key in keys.values())
    assert len(seen) > 20


def test_stopped_and_started_again(network):
    children = network.start_all("--delay", "noted:0.2")
    network.in_round("west", 2)
    children["west"].kill(signal.SIGTERM)
    assert children["west"].wait() == 128 + signal.SIGTERM
    assert network.status("west")["state"] == "stopped"
    assert "nothing is lost" in network.said("west")
    until(
        lambda: network.status("north")["neighbours"] == {"south": "up", "west": "away"},
        "its going to be noticed",
    )
    children["west"] = network.start("west")
    network.finish(children)
    assert network.models() == network.calm.models()
    network.sound()


@pytest.mark.slow
def test_a_node_does_not_go_on_with_other_rows(network):
    children = network.start_all("--delay", "noted:0.2")
    network.in_round("west", 2)
    children["west"].kill()
    children["west"].wait()
    rows = network.home / "west.csv"
    before = rows.read_text()
    head, first, second, *rest = before.splitlines()
    rows.write_text("\n".join([head, second, first, *rest]) + "\n")
    entered = network.spends("west")
    assert network.start("west").wait() == 2
    assert "node 'west': its rows changed since the run began" in network.said("west")
    assert network.spends("west") == entered
    assert not list(
        network.out.rglob("*-rows-*")
    )  # nothing of it in a folder that is shown to others
    rows.write_text(before)
    children["west"] = network.start("west")
    network.finish(children)
    assert network.models() == network.calm.models()
    assert not list(network.home.rglob("*-rows-*"))


def test_other_configurations_are_named_at_both_sides(network):
    network.run["training"]["eta"] = 0.06
    network.run["nodes"][0]["rows"] = 121
    network.write_run(network.out / "other.toml")
    network.change("south", run="other.toml")
    near = {name: network.start(name) for name in ("south", "west")}
    assert {name: child.wait() for name, child in near.items()} == {"south": 2, "west": 2}
    assert "training.eta: 0.06 here, 0.05 there" in network.said("south")
    assert "nodes.north.rows: 121 here, 120 there" in network.said("south")
    assert "training.eta: 0.05 here, 0.06 there" in network.said("west")
    assert "nodes.north.rows: 120 here, 121 there" in network.said("west")
    assert network.status("west")["state"] == "failed: ConfigError"
    assert not any(network.spends(name) for name in network.names)
    network.change("south", run="run.toml")
    assert network.go().models() == network.calm.models()


@pytest.mark.slow
def test_a_lost_node_ends_the_wait_and_nothing_else(network):
    for name in ("north", "south"):
        network.change(
            name, patience=6
        )  # enough to find each other, for processes that are there already
    children = {"west": network.start("west", "--delay", "noted:0.2")}
    until(lambda: network.status("west")["state"] == "agreeing", "west to be up")
    children |= {name: network.start(name) for name in ("north", "south")}
    network.in_round("west", 2)
    children["west"].kill()
    assert {name: child.wait() for name, child in children.items()} == {
        "north": 4,
        "south": 4,
        "west": -signal.SIGKILL,
    }
    assert "waited 6 seconds for" in network.said("north")
    assert "away: west" in network.said("north")
    assert 0 < len(network.spends("north")) < 6
    for name in ("north", "south"):
        network.change(name, patience=LONG)
    assert network.go().models() == network.calm.models()
    network.sound()


def test_a_finished_node_can_be_started_again(network):
    assert network.go().models() == network.calm.models()
    network.change("west", patience=3)
    before = {name: network.ledger(name).read_bytes() for name in network.names}
    again = network.start("west")  # all others have left for good
    assert again.wait() == 0, network.said("west")
    assert (network.status("west")["state"], network.status("west")["round"]) == (
        "parted",
        network.status("north")["round"],
    )
    assert {name: network.ledger(name).read_bytes() for name in network.names} == before


def test_killed_in_the_middle_of_an_entry(network):
    """The ledger's file is half changed, and its journal says how to undo that: any start does, and
    reading alone cannot.
    """
    code = """if True:
        import os, signal, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE junk (x)")
        connection.execute(
            "INSERT INTO junk SELECT randomblob(3000) FROM sqlite_master, sqlite_master, "
            "sqlite_master"
        )
        os.kill(os.getpid(), signal.SIGKILL)
    """
    calm = network.ledger("west").read_bytes()
    children = {name: network.start(name) for name in ("north", "south")}
    assert network.start("west", "--kill", "computed:3").wait() == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", code, network.ledger("west")], check=False)
    assert network.ledger("west").with_name("west.sqlite-journal").stat().st_size
    assert network.ledger("west").read_bytes() != calm
    shown = dynadp("status", network.out)
    assert shown.exit_code == 0, shown.output
    assert re.search("west: (starting|agreeing|running) when it ended", shown.output), shown.output
    network.finish({**children, "west": network.start("west")})
    assert network.models() == network.calm.models()
    network.sound()


def test_one_process_a_node(network):
    children = network.start_all("--delay", "noted:0.2")
    network.in_round("west", 1)
    second = network.start("west")
    assert second.wait() == 8
    assert "another process is at work" in network.said("west")
    network.finish(children)
    assert network.models() == network.calm.models()


def test_status_of_nothing(network):
    result = dynadp("status", network.out)
    assert result.exit_code == 2
    assert "no node has run" in result.output


@pytest.mark.parametrize(
    ("config", "spent"),
    [("b" * 16, (1, 3)), ("a" * 16, (2, 2)), (None, (1, 3)), ("d" * 16, None)],
    ids=["newest", "older", "not told", "not entered yet"],
)
def test_status_tells_of_the_run_of_its_configuration(tmp_path, config, spent):
    """A ledger keeps runs of the same name, in one process and on a network, and of names that
    begin alike.
    """
    stamp = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
    with Ledger.create(tmp_path / "north.sqlite", "north", **stamp) as ledger:
        ledger.set_cap(Cap.of(100.0, 1e-5), **stamp)
        runs = {
            "a" * 16: (2, 2),
            "b" * 16: (1, 3),
            "2026-03-01T12:00:00+00:00 0123abcd": (4, 4),
            f"two {'c' * 16}": (4, 4),
        }
        for which, (done, planned) in runs.items():
            plan = [L2Laplace("north", n, "primal", 0.5, 3) for n in range(1, planned + 1)]
            ledger.reserve(f"trial {which}", plan, dataset="rows", **stamp)
            for event in plan[:done]:
                ledger.spend(f"trial {which}", event.round, [event], b"", **stamp)
    told = {
        "format": "dynadp-status",
        "version": 1,
        "run": "trial",
        "node": "north",
        "state": "parted",
        "round": 3,
        "rounds": 3,
        "neighbours": {},
        "rejected": {},
        "waiting": None,
        "ledger": str(tmp_path / "north.sqlite"),
        "pid": 2**22 + 1,
        **({} if config is None else {"config": config}),
    }
    (tmp_path / "status.json").write_text(json.dumps(told))
    shown = dynadp("status", tmp_path, "--json")
    found = json.loads(shown.stdout)["nodes"][0]["spent"]
    words = dynadp("status", tmp_path).output
    if spent is None:
        assert found is None
        assert "spent" not in words
        return
    which = config or "b" * 16
    assert (found["rounds_spent"], found["rounds_planned"], found["config"], found["others"]) == (
        *spent,
        which,
        1,
    )
    assert f"spent with configuration {which[:8]}: {spent[0]} of {spent[1]} releases\n" in words
    assert found["lost"] == pytest.approx(5.5)
    assert (
        "  lost so far, by all runs in its ledger: at most epsilon = 5.5 of its cap 100 at delta "
        "1e-05\n" in words
    )


def test_one_node_alone(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery, nodes=1, topology={"edges": []}, seed=2)
    network.go()
    trained = dynadp("train", network.home / "train.toml", "--out", network.home / "trained")
    assert trained.exit_code == 0, trained.output
    expected = json.loads((network.home / "trained" / "model.json").read_text())
    assert np.array_equal(network.vector("north"), [*expected["coef"][0], *expected["intercept"]])
