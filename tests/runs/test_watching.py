"""Nodes as processes, watched over as on a machine of a silo: scraped, rotated, locked, copied."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import node_states
from dynadp.runs.processes import alive
from support.networks import DYNADP, LONG, ONE_THREAD, Network, ports, until
from support.readers import another_reader
from support.typed import dynadp

SLOWLY = ("--delay", "noted:0.1")  # so that rounds can be seen


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    home = tmp_path_factory.mktemp("base") / "home"
    network = Network.make(home, one_nursery, rounds=40, cap=1000)
    network.calm = network.copy(network.home.with_name("undisturbed")).go()
    return network


@pytest.fixture
def network(tmp_path, base, nursery):
    return base.copy(tmp_path / "home")


def scraped(port):
    """The numbers of a node, by name and labels; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
            text = reply.read().decode()
    except OSError:
        return None
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_node_is_scraped_from_its_start_to_its_end(network):
    [port] = ports(1)
    network.change("north", health=f"127.0.0.1:{port}", log="json")
    running = network.start_all(*SLOWLY)
    until(lambda: (scraped(port) or {}).get(("dynadp_round",), 0) > 1, "metrics with rounds")
    found = scraped(port)
    limits = Path(f"/proc/{running['north'].pid}/limits").read_text()
    assert re.search(r"^Max core file size +0 ", limits, re.MULTILINE)  # rows would be in it
    assert found["dynadp_state", "running"] == 1
    assert found["dynadp_rounds",] == 40
    assert found["dynadp_neighbour_up", "south"] == found["dynadp_neighbour_up", "west"] == 1
    assert found["dynadp_status_is_written",] == 1
    assert found["dynadp_epsilon",] == pytest.approx(network.silo("north").plan.total.epsilon)
    assert found["dynadp_certificate_end_timestamp_seconds",] > 1.7e9
    assert found["process_open_fds",] > 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as reply:
        health = json.load(reply)
    assert (reply.status, health["healthy"], health["node"]) == (200, True, "north")
    log = network.folder("north") / "node.log"
    log.rename(log.with_name("aside"))  # as logrotate does, which makes a new one, and signals
    log.touch()
    os.kill(running["north"].pid, signal.SIGHUP)
    running["south"].kill()
    until(lambda: scraped(port)["dynadp_neighbour_up", "south"] == 0, "south to be missed")
    until(lambda: scraped(port)["dynadp_waiting",] == 1, "the node to wait")
    running["south"] = network.start("south")
    network.finish(running)
    assert scraped(port) is None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert "south is away" in [line["message"] for line in lines]
    assert lines[-1]["message"] == "finished"
    assert all({"time", "level", "node", "message"} <= set(line) for line in lines)
    assert (log.with_name("aside")).read_text()
    network.as_undisturbed()


@pytest.mark.slow
def test_a_node_waits_for_its_ledger_and_can_be_stopped(network):
    running = network.start_all(*SLOWLY)
    network.in_round("north", 2)
    with another_reader(network.ledger("north")):
        until(lambda: "the ledger" in network.status("north")["waiting"], "north to wait")
        before = network.status("north")["round"]
        assert "another process keeps the ledger locked" in network.log("north")
        running["north"].kill(signal.SIGTERM)
        assert running["north"].wait() == 143
    assert network.status("north")["state"] == "stopped"
    assert network.status("north")["round"] == before
    running["north"] = network.start("north")
    network.finish(running)
    network.as_undisturbed()


@pytest.mark.slow
def test_a_reader_that_stays_for_longer_than_half_a_minute_stops_nobody(network):
    running = network.start_all(*SLOWLY)
    network.in_round("north", 2)
    with another_reader(network.ledger("north")) as let_go:
        until(lambda: "the ledger" in network.status("north")["waiting"], "north to wait")
        with pytest.raises(AssertionError):
            until(lambda: any(child.code is not None for child in running.values()), "", 35)
        let_go()
        network.finish(running)
    assert "the ledger is free again, after" in network.log("north")
    network.as_undisturbed()


def test_a_status_that_cannot_be_written_for_a_moment_ends_nothing(network):
    running = network.start_all(*SLOWLY)
    network.in_round("north", 1)
    path = network.folder("north") / "status.json"
    while True:  # the node may write it in between
        path.unlink(missing_ok=True)
        try:
            path.mkdir()
            break
        except FileExistsError:
            continue
    until(lambda: "status.json cannot be written" in network.log("north"), "a warning")
    path.rmdir()
    until(lambda: "status.json is written again" in network.log("north"), "the end of it")
    network.finish(running)
    assert network.status("north")["state"] == "parted"
    network.as_undisturbed()


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, which a test can fill."""
    if os.geteuid():
        pytest.skip("a disk of its own needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path):
    """Write until the disk takes no more."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger", "letters", "anchor"])
def test_a_full_disk_ends_a_node_that_goes_on_once_there_is_room(network, disk, what):
    """Nothing is lost or drawn twice, and its exit code is one after which the unit starts it
    again.
    """
    if what == "ledger":
        shutil.move(network.ledger("north"), disk)
        before = network.ledger
        network.ledger = lambda name: disk / "north.sqlite" if name == "north" else before(name)
        network.change("north", ledger=str(network.ledger("north")))
    elif what == "letters":
        network.folder("north").symlink_to(disk)
    else:
        network.change("north", anchor=str(disk / "north.anchor"))
    running = network.start_all(*SLOWLY)
    network.in_round("north", 2)
    fill(disk / "full")
    assert running["north"].wait() == 8, network.said("north")
    assert "full" in network.said("north") or "No space left" in network.said("north")
    assert network.start("north").wait() == 8, network.said("north")
    (disk / "full").unlink()
    running["north"] = network.start("north")
    network.finish(running)
    network.as_undisturbed()


def test_a_port_that_is_taken_is_found_before_anything_is_spent(network):
    [port] = ports(1)
    network.change("north", health=f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        assert network.start("north").wait() == 2
    assert "cannot listen there (Address already in use)" in network.said("north")
    assert not network.spends("north")
    endpoint = network.run["nodes"][0]["endpoint"]
    with socket.create_server(("127.0.0.1", int(endpoint.rpartition(":")[2]))):
        assert network.start("north").wait() == 2
    assert f"cannot open links on {endpoint}" in network.said("north")
    assert not network.spends("north")


def test_systemd_hears_of_a_node_that_ends_at_once(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery, nodes=1)
    where = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(where))
        heard.settimeout(LONG)
        done = subprocess.run(
            [str(DYNADP), "node", str(network.file("north")), "--quiet"],
            env={**os.environ, **ONE_THREAD, "NOTIFY_SOCKET": str(where)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        words = []
        while "STOPPING=1" not in words:
            words += heard.recv(4096).decode().splitlines()
    assert words.count("READY=1") == 1
    assert words.count("WATCHDOG=1") >= 3
    assert "STATUS=parted, round 40 of 40; no neighbours; 0 refused".replace("40", "6") in words


PID_ONE = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from dynadp.runs.status_writer import StatusWriter

post = SimpleNamespace(given_up=set(), rejected={})
links = SimpleNamespace(
    alive=set(), post=post, site=SimpleNamespace(neighbours=()), waiting="")
facts = {"run": "r", "config": "c", "node": "n", "rounds": 1, "epsilon": 1.0, "delta": 1e-5,
    "software": "1", "certificate_ends": "2090-01-01T00:00:00+00:00", "ledger": None}
writer = StatusWriter(Path(sys.argv[1]), links, facts)
writer.__enter__()
writer.state = "running"
writer._write()
"""


def test_process_one_of_a_container_that_died_is_not_taken_for_ours(tmp_path):
    """Its number, 1, is alive on every machine."""
    space = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("process namespaces are not allowed here")
    subprocess.run([*space, sys.executable, "-c", PID_ONE, str(tmp_path)], check=True)
    path = tmp_path / "status.json"
    state = json.loads(path.read_text())
    assert state["pid"] == 1
    assert alive(state) is None
    path.write_text(json.dumps({**state, "at": "2026-01-01T00:00:00+00:00"}))
    [shown] = node_states([tmp_path])
    assert not shown["alive"]
    assert "n: running when it ended" in dynadp("status", tmp_path).output
    assert alive({**state, "space": None}) is True  # by its number alone it would be


@pytest.mark.slow
def test_a_node_without_its_relay_says_so_and_can_be_stopped(tmp_path, nursery):
    relay = f"127.0.0.1:{ports(1)[0]}"  # nothing listens there
    network = Network.make(tmp_path / "home", nursery, relay=relay, patience=LONG)
    node = network.start("north")
    until(lambda: network.status("north").get("waiting") == f"the relay {relay}", "it to say so")
    node.kill(signal.SIGTERM)
    assert node.wait(20) == 143
    assert network.status("north")["state"] == "stopped"
    network.change("north", patience=1)
    assert network.start("north").wait() == 4
    assert f"waited 1 seconds for the relay {relay}" in network.said("north")
    assert entries_of(network, "north") == 2


def entries_of(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        return ledger.state().length


@pytest.mark.slow
def test_the_neighbours_of_a_bad_cell_wait_and_spend_nothing(network):
    rows = network.home / "north.csv"
    header, first, *rest = rows.read_text().splitlines()
    rows.write_text("\n".join([header, "Zebra77Cell" + first[first.index(",") :], *rest]))
    for name in network.names:
        network.change(name, patience=4)
    running = network.start_all()
    assert running["north"].wait() == 2
    for name in ("south", "west"):
        assert running[name].wait() == 4
        assert "for a greeting of north" in network.said(name)
        assert "north is up" not in network.log(name)
    assert not any(network.spends(name) for name in network.names)
    assert "Zebra77Cell" not in "".join(network.said(name) for name in network.names)
    assert Path(network.out / "north.out").exists()
