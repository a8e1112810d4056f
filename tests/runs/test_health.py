"""How a node is, as those see it who watch over it: HTTP, systemd, status.json, node.log."""

import errno
import json
import logging
import os
import re
import socket
import subprocess
import sys
import urllib.request
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynadp.cli.logs import BoundedLog, JsonLines
from dynadp.errors import ConfigError
from dynadp.runs import node_states, processes, status, status_writer
from dynadp.runs.health import NodeHealth, serving_health
from dynadp.runs.node_file import load_node_file
from dynadp.runs.status_writer import StatusWriter
from support.networks import ports, until
from support.typed import dynadp

DEPLOY = Path(__file__).parents[2] / "deploy"
FACTS = {
    "run": "trial",
    "config": "a" * 16,
    "node": "north",
    "rounds": 9,
    "epsilon": 1.5,
    "delta": 1e-5,
    "software": "1.2.3",
    "certificate_ends": "2090-01-02T03:04:05+00:00",
    "ledger": None,
}


def links():
    post = SimpleNamespace(given_up=set(), rejected={"forged": 2, "late": 1})
    site = SimpleNamespace(neighbours=("east", "west"))
    return SimpleNamespace(alive={"west"}, post=post, site=site, waiting=None)


@pytest.fixture
def writer(tmp_path, monkeypatch):
    monkeypatch.setattr(status_writer, "_TICK", 0.02)
    with StatusWriter(tmp_path, links(), FACTS) as made:
        yield made


def ask(port, path, host=None, at="127.0.0.1"):
    headers = {} if host is None else {"Host": host}
    request = urllib.request.Request(f"http://{at}:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_health_and_metrics_are_answered(writer):
    [port] = ports(1)
    writer.state, writer.round = "running", 4
    with serving_health(f"127.0.0.1:{port}", NodeHealth(writer)):
        health = json.loads(ask(port, "/healthz"))
        assert health["healthy"]
        assert (health["state"], health["round"], health["neighbours"]["east"]) == (
            "running",
            4,
            "away",
        )
        found = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(ask(port, "/metrics"))
            for sample in family.samples
        }
        assert found[("dynadp_round",)] == 4
        assert found[("dynadp_rounds",)] == 9
        assert found[("dynadp_epsilon",)] == 1.5
        assert found[("dynadp_neighbour_up", ("neighbour", "west"))] == 1
        assert found[("dynadp_neighbour_up", ("neighbour", "east"))] == 0
        assert found[("dynadp_refused_letters_total",)] == 3
        assert found[("dynadp_state", ("dynadp_state", "running"))] == 1
        assert found[("process_open_fds",)] > 0
        for path, host, code in [("/", None, 404), ("/metrics", "evil.example.org", 403)]:
            with pytest.raises(HTTPError) as refused:
                ask(port, path, host)
            assert refused.value.code == code
        writer.state = "failed: DiskError"
        with pytest.raises(HTTPError) as refused:
            ask(port, "/healthz")
        assert refused.value.code == 503
        with (
            pytest.raises(ConfigError, match="cannot listen there"),
            serving_health(f"127.0.0.1:{port}", NodeHealth(writer)),
        ):
            pass


def test_metrics_have_the_process_where_the_unit_hides_the_machine(writer, monkeypatch):
    """ProcSubset=pid leaves nothing of /proc but processes."""
    assert "ProcSubset=pid" in (DEPLOY / "dynadp-node@.service").read_text()
    really = open

    def within(path, *more, **given):
        if re.match(r"/proc/(?!self|\d)", str(path)):
            raise FileNotFoundError(errno.ENOENT, "hidden", str(path))
        return really(path, *more, **given)

    monkeypatch.setattr("builtins.open", within)
    [port] = ports(1)
    with serving_health(f"127.0.0.1:{port}", NodeHealth(writer)):
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(ask(port, "/metrics"))
            for sample in family.samples
        }
    assert found["process_resident_memory_bytes"] > 2**20
    assert found["process_open_fds"] > 0
    assert found["process_cpu_seconds_total"] > 0
    began = processes.this_process()["began"] / os.sysconf("SC_CLK_TCK")
    [boot] = re.findall(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    assert found["process_start_time_seconds"] == pytest.approx(int(boot) + began, abs=2)


def test_health_is_answered_on_the_other_loopback_addresses_too(writer):
    for host in ("127.0.0.2", "[::1]", "localhost"):
        [port] = ports(1)
        with serving_health(f"{host}:{port}", NodeHealth(writer)):
            assert json.loads(ask(port, "/healthz", at=host))["node"] == "north"


def test_a_status_that_is_late_says_so(writer, monkeypatch):
    path = writer.folder / "status.json"
    monkeypatch.setattr(status_writer, "now", lambda: "2030-01-01T00:00:00+00:00")

    class Later(datetime):
        @classmethod
        def now(cls, zone):
            return datetime(2030, 1, 1, 0, 1, tzinfo=zone)

    monkeypatch.setattr(status, "datetime", Later)
    writer.round = 5
    until(lambda: json.loads(path.read_text())["round"] == 5, "a status from 2030")
    [state] = node_states([writer.folder])
    assert state["alive"]
    assert state["late"]
    assert "has not written its status since" in dynadp("status", writer.folder).output


@pytest.mark.parametrize("seen", [True, None, False], ids=["seen", "elsewhere", "dead"])
def test_a_time_to_come_is_no_sign_of_life(writer, tmp_path, seen):
    """The clock was put back since, or another machine's is ahead."""
    state = json.loads((writer.folder / "status.json").read_text())
    elsewhere = {"space": "another machine"} if seen is None else {}
    dead = {"began": state["began"] - 1} if seen is False else {}
    home = tmp_path / "later"
    home.mkdir()
    later = {**state, **elsewhere, **dead, "state": "running", "at": "2090-01-01T00:00:00+00:00"}
    (home / "status.json").write_text(json.dumps(later))
    [found] = node_states([home])
    assert found["alive"] is bool(seen)
    assert found["late"] is bool(seen)
    words = {True: "running", None: "running when it wrote this", False: "running when it ended"}
    assert found["state"] == words[seen]
    shown = dynadp("status", home).output
    assert "that time is still to come: the clock was wrong then, or is wrong now" in shown


@pytest.mark.parametrize("where", ["0.0.0.0:9464", "silo.example.org:9464", "[::]:9464"])
def test_health_is_for_this_machine_alone(tmp_path, where):
    file = tmp_path / "NODE.toml"
    file.write_text(
        'run = "r"\nnode = "n"\nidentity = "i"\nfile = "f"\nout = "o"\n' + f'health = "{where}"\n'
    )
    with pytest.raises(ConfigError, match="health: must be a loopback address"):
        load_node_file(file)
    file.write_text(file.read_text().replace(where, "127.0.0.1:9464"))
    assert load_node_file(file).health == "127.0.0.1:9464"


def test_a_disk_that_is_full_for_a_moment_does_not_freeze_the_status(writer, monkeypatch, caplog):
    whole, full = status_writer.write_whole, [True]

    def write(path, content):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(path, content)

    monkeypatch.setattr(status_writer, "write_whole", write)
    with caplog.at_level(logging.INFO):
        writer.round = 3
        until(lambda: "cannot be written: No space left" in caplog.text, "a warning")
        full[0] = False
        until(
            lambda: json.loads((writer.folder / "status.json").read_text())["round"] == 3,
            "the status to be written again",
        )
        until(lambda: "is written again" in caplog.text, "the end of it")
    assert caplog.text.count("cannot be written") == 1


def test_a_sign_of_life_is_written_though_nothing_changed(writer, monkeypatch):
    monkeypatch.setattr(status_writer, "_SIGN", 0.0)
    monkeypatch.setattr(status_writer, "now", lambda: "2030-01-01T00:00:00+00:00")
    path = writer.folder / "status.json"
    until(lambda: json.loads(path.read_text())["at"] == "2030-01-01T00:00:00+00:00", "a sign")


def test_another_process_with_the_same_number_is_not_taken_for_the_node(writer, tmp_path):
    [state] = node_states([tmp_path])
    assert state["alive"]
    state = json.loads((tmp_path / "status.json").read_text())
    assert processes.alive(state)
    later = {**state, "began": state["began"] - 1}
    assert processes.alive(later) is False
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert processes.alive({"pid": ended.pid}) is False
    assert processes.alive({**state, "pid": 2**22 + 1}) is False
    # process 1 of a container that ended: this machine has a process 1 too
    contained = {**state, "pid": 1, "space": "another machine", "began": 7}
    assert processes.alive(contained) is None
    home = tmp_path / "old"
    home.mkdir()
    (home / "status.json").write_text(
        json.dumps({**contained, "state": "running", "at": "2020-01-01T00:00:00+00:00"})
    )
    [state] = node_states([home])
    assert not state["alive"]
    assert state["state"] == "running when it ended"
    shown = dynadp("status", home).output
    assert "as of 2020-01-01T00:00:00+00:00" in shown


def test_one_folder_that_tells_nothing_hides_no_other(writer, tmp_path):
    """It is named, and the command fails; the others are shown all the same."""
    empty = tmp_path / "mistyped"
    shown = dynadp("status", tmp_path, empty)
    assert shown.exit_code == 2
    assert "north: starting" in shown.stdout
    assert f"no node has run in {empty}" in shown.stderr
    assert "File name too long" in dynadp("status", "x" * 300, tmp_path).stderr  # as of no rights
    told = json.loads((tmp_path / "status.json").read_text())
    empty.mkdir()
    for name, rubbish in (
        ("node", None),
        ("pid", 2**80),
        ("at", "noon"),
        ("at", "2026-01-01T00:00:00"),
        ("rejected", 3),
        ("certificate_ends", 7),
    ):
        (empty / "status.json").write_text(json.dumps({**told, name: rubbish}))
        shown = dynadp("status", tmp_path, empty, "--json")
        assert shown.exit_code == 2, name
        assert [one["node"] for one in json.loads(shown.stdout)["nodes"]] == ["north"]
        assert "it is damaged" in shown.stderr


def test_a_process_that_ended_and_was_not_asked_for_its_code_is_dead(writer):
    """A zombie: it still has its number and the time at which it began."""
    state = json.loads((writer.folder / "status.json").read_text())
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = int(Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[19])
    named = {**state, "pid": ended.pid, "began": began}
    assert processes.alive(named) is True
    ended.stdin.close()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert processes.alive(named) is False
    assert processes.alive({"pid": ended.pid}) is True  # by its number alone it would be
    ended.wait()


def test_a_process_that_is_hidden_from_this_user_is_not_called_dead(tmp_path):
    """With hidepid its number is there and nothing else: its last sign of life decides."""
    hidden = ["unshare", "--mount", "--pid", "--fork"]
    mount = "mount -t proc -o hidepid=2 none /proc"
    if subprocess.run([*hidden, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("process namespaces are not allowed here")
    code = (
        "import ctypes, os, pathlib\n"
        "from dynadp.runs import processes\n"
        "named = processes.this_process()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.setgroups([]), os.setresgid(*[65534] * 3), os.setresuid(*[65534] * 3)\n"
        "    ctypes.CDLL(None).prctl(4, 1)\n"  # PR_SET_DUMPABLE: it may look at itself
        "    assert not pathlib.Path(f'/proc/{named[\"pid\"]}').exists()\n"
        "    os._exit({None: 0, True: 7, False: 8}[processes.alive(named)])\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    script = f'{mount} && exec "$0" -c "$1"'
    done = subprocess.run(
        [*hidden, "sh", "-c", script, sys.executable, code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_certificate_that_ends_soon_is_shown(tmp_path):
    with StatusWriter(
        tmp_path, links(), {**FACTS, "certificate_ends": "2020-05-06T00:00:00+00:00"}
    ) as status:
        assert "its certificate ended on 2020-05-06; renew it" in dynadp("status", tmp_path).output
        assert status.line().endswith("; its certificate ends on 2020-05-06")


def test_systemd_hears_that_it_is_ready_and_alive(tmp_path, monkeypatch):
    where = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(where))
        heard.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(where))
        monkeypatch.setattr(status_writer, "_TICK", 0.02)
        with StatusWriter(tmp_path, links(), FACTS) as status:
            first = heard.recv(4096).decode()
            assert first.startswith("WATCHDOG=1")
            assert "READY=1" not in first
            status.state = "agreeing"
            words = ""
            while "READY=1" not in words:
                words = heard.recv(4096).decode()
            assert "STATUS=agreeing, round 0 of 9; east AWAY, west up; 3 refused" in words
        while "STOPPING=1" not in words:
            assert words.count("READY=1") <= 1
            words = heard.recv(4096).decode()


def test_the_log_is_reopened_and_may_be_json(tmp_path):
    path = tmp_path / "node.log"
    handler = BoundedLog(path)
    handler.setFormatter(JsonLines("north"))
    log = logging.getLogger("dynadp.test_health")
    log.addHandler(handler)
    try:
        log.warning("first")
        path.rename(tmp_path / "node.log.1")
        log.warning("second %s", "ü")
        path.unlink()
        log.warning("third")
    finally:
        log.removeHandler(handler)
        handler.close()
    aside = json.loads((tmp_path / "node.log.1").read_text())
    assert (aside["message"], aside["level"], aside["node"]) == ("first", "WARNING", "north")
    assert json.loads(path.read_text())["message"] == "third"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_log_that_cannot_be_opened_again_stops_nobody(tmp_path):
    """It was put aside, and the disk refuses another; lines are lost until it does not."""
    path, log = tmp_path / "node.log", logging.getLogger("dynadp.test-refused")
    log.addHandler(handler := BoundedLog(path))
    log.setLevel(logging.INFO)
    log.info("one")
    path.rename(tmp_path / "aside")
    path.mkdir()
    for line in ("two", "three", "four"):
        log.info(line)
    path.rmdir()
    log.info("five")
    handler.stream.close()  # as a rotation leaves it that a full disk refuses
    log.info("six")
    log.removeHandler(handler)
    handler.close()
    assert (tmp_path / "aside").read_text() == "one\n"
    assert path.read_text() == "five\nsix\n"


def test_a_full_disk_does_not_fill_standard_error(capsys):
    handler = BoundedLog(Path("/dev/full"))
    try:
        handler.emit(logging.LogRecord("x", logging.INFO, "x", 1, "words", (), None))
    finally:
        handler.close()
    assert capsys.readouterr().err == ""
