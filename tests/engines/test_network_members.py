"""Members of a consortium that change, with real processes over TLS: another machine, host or key,
one that is out, one that was upgraded.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynadp.errors import ConfigError
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.model import load_model
from dynadp.runs.silo import SiloRun
from support.networks import DYNADP, LONG, ONE_THREAD, Network, ports, until
from support.typed import dynadp

pytestmark = pytest.mark.slow
ROUNDS, SLOW = 24, ("--delay", "noted:0.4")


def pki(network, *words, **given):
    """A command of the authority, or of a silo, as people type it."""
    command = [DYNADP, "pki", *map(str, words)]
    done = subprocess.run(command, cwd=network.out, capture_output=True, text=True, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restart(network, name, child, *options):
    child.kill(signal.SIGTERM)
    assert child.wait() == 143
    return network.start(name, *options)


def ask_again(network, name, *options):
    """Another certificate of a node, in a folder of its own, which is returned."""
    folder = f"identities/{name}-next"
    pki(network, "request", name, "--again", f"identities/{name}", "--out", folder, *options)
    pki(
        network,
        "sign",
        "authority",
        f"{folder}/request.csr",
        *("--out", folder),
        "--renewal",
        "--yes",
    )
    return folder


def run_again(network, name, **nodes):
    """A later run of the same nodes, without those that are out."""
    network.run["run"]["name"] = name
    network.run["nodes"] = [
        {**one, **nodes.get(one["name"], {})}
        for one in network.run["nodes"]
        if nodes.get(one["name"], {}) is not None
    ]
    network.names = tuple(one["name"] for one in network.run["nodes"])
    network.write_run()
    for one in network.names:
        network.change(one, out=f"{one}-{name}")


@pytest.fixture
def network(tmp_path, one_nursery):
    return Network.make(tmp_path / "home", one_nursery, rounds=ROUNDS, cap=1000)


@pytest.fixture
def calm(network, tmp_path):
    """The same network, at the same time, whose members do not change."""
    network.calm = network.copy(tmp_path / "calm")
    return network


def test_a_machine_is_replaced(calm, tmp_path):
    """Its files go to another machine, under the same host name; the others do nothing."""
    network = calm
    children = network.start_all(*SLOW)
    network.in_round("west", 3)
    children["west"].kill(signal.SIGTERM)
    assert children["west"].wait() == 143
    there = network.copy(tmp_path / "new machine")
    shutil.rmtree(network.folder("west"))
    network.ledger("west").unlink()
    children["west"] = there.start("west")
    network.finish(children)
    shutil.copytree(there.folder("west"), network.folder("west"))
    shutil.copy(there.ledger("west"), network.ledger("west"))
    network.calm.go()
    network.as_undisturbed()


@pytest.mark.parametrize("name", ["north", "west"])
def test_a_node_changes_its_host(calm, name):
    """Those that dial it change its endpoint in their run file and start again; the run is the
    same, for endpoints are no part of what is agreed on.
    """
    network = calm
    folder = ask_again(network, name, "--host", "127.0.0.2")
    children = network.start_all(*SLOW)
    network.in_round(name, 2)
    network.change(name, identity=folder)
    section = next(one for one in network.run["nodes"] if one["name"] == name)
    section["endpoint"] = after = f"127.0.0.2:{ports(1)[0]}"
    network.write_run()
    dialling = [one for one in network.names if after in network.silo(one).site().dial]
    assert bool(dialling) == (name == "north")  # of two with endpoints the later one dials
    for one in (name, *dialling):
        children[one] = restart(network, one, children[one])
    network.finish(children)
    network.calm.go()
    network.as_undisturbed()
    run_again(network, "later", **{name: {"endpoint": after}})
    network.go()


def test_a_certificate_for_another_host_than_the_endpoint_is_found_at_home(network):
    """Not by neighbours that cannot connect."""
    network.run["nodes"][0]["endpoint"] = f"127.0.0.2:{ports(1)[0]}"
    network.write_run()
    child = network.start("north")
    assert child.wait() == 2
    assert "neighbours dial 127.0.0.2, and the certificate is for 127.0.0.1" in network.said(
        "north"
    )


def test_a_node_gets_a_new_key_for_links(calm):
    """While a run is under way; the others do nothing."""
    network = calm
    folder = ask_again(network, "south", "--new-key")
    children = network.start_all(*SLOW)
    network.in_round("south", 2)
    before = network.silo("south").identity
    network.change("south", identity=folder)
    children["south"] = restart(network, "south", children["south"])
    network.finish(children)
    after = network.silo("south").identity
    assert (after.public, after.fingerprint != before.fingerprint) == (before.public, True)
    network.calm.go()
    network.as_undisturbed()


def test_a_node_gets_a_new_signing_key(network):
    """The run that is under way keeps the old one; a later one names the new one."""
    children = network.start_all(*SLOW)
    network.in_round("south", 2)
    folder = "identities/south-next"
    told = pki(network, "request", "south", "--host", "127.0.0.1", "--out", folder)
    pki(
        network,
        "sign",
        "authority",
        f"{folder}/request.csr",
        *("--out", folder),
        "--renewal",
        "--yes",
    )
    network.finish(children)
    key = told.split('key = "')[1].split('"')[0]
    network.change("south", identity=folder)
    with pytest.raises(ConfigError, match=r"sign\.key is not the key that the run file names"):
        SiloRun.load(network.file("south"))
    run_again(network, "later", south={"key": key})
    network.go()
    with Ledger.open(network.ledger("south"), read_only=True) as ledger:  # the ledger goes on
        assert len({entry.run for entry in ledger.entries() if entry.kind == "reserve"}) == 2


# One that is out.


def out(network, name, *others):
    """The authority revokes a node, and these members get the list."""
    pki(network, "revoke", "authority", name)
    for other in others:
        shutil.copy(network.out / "authority" / "revoked.pem", network.identity(other))


def test_others_go_on_when_a_member_is_revoked(tmp_path, one_nursery):
    """None of them is stopped, or gets a certificate; what it sends is refused and counted."""
    network = Network.make(tmp_path / "home", one_nursery, nodes=4, rounds=40, cap=1000)
    network.run["network"] = {"on_absence": "go on", "patience": 60}
    network.write_run()
    gone, *rest = network.names
    children = network.start_all("--delay", "noted:0.2")
    network.in_round(gone, 3)
    out(network, gone, *rest)
    network.finish({name: children[name] for name in rest})
    near = network.silo(rest[0]).topology.nodes
    assert gone in near
    refused = [why for name in rest for why in network.status(name)["rejected"]]
    assert any(f"{gone} is on the authority's list" in why for why in refused)
    assert len({network.vector(name).tobytes() for name in rest}) == 1
    assert children[gone].wait(240) in (4, 7), network.said(gone)
    run_again(network, "later", **{gone: None})
    network.run.pop("topology", None)
    network.write_run()
    network.go()


def test_sums_go_on_when_a_member_is_revoked(tmp_path, one_nursery):
    """Those who remain agree on who is left out, as they do of one that is away."""
    privacy = {"mechanism": "sum", "epsilon": 4.0, "delta": 1e-5}
    network = Network.make(tmp_path / "home", one_nursery, nodes=4, privacy=privacy, cap=1000)
    network.run["network"] = {"on_absence": "go on", "patience": 60}
    network.write_run()
    gone, *rest = network.names
    children = network.start_all("--delay", "noted:0.5", pinned=None)
    network.in_round(gone, 2)
    out(network, gone, *rest)
    network.finish({name: children[name] for name in rest})
    assert len({network.vector(name).tobytes() for name in rest}) == 1
    assert load_model(network.folder(rest[0])).members == tuple(rest)
    children[gone].kill(signal.SIGTERM)


@contextmanager
def relay(network, address, *more):
    """A relay's process."""
    with (network.out / "relay.out").open("a") as file:
        command = [DYNADP, "relay", str(network.out / "relay"), "--listen", address, *more]
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(LONG) == 0


def behind_a_relay(home, nursery, **given):
    address = f"127.0.0.1:{ports(1)[0]}"
    network = Network.make(home, nursery, relay=address, **given)
    pki(network, "node", "authority", "relay", "--host", "127.0.0.1", "--out", "relay")
    return network, address


def test_behind_a_relay_a_member_is_revoked(tmp_path, one_nursery):
    """Members refuse it by its signatures, whatever the relay knows; and write it no envelopes."""
    network, address = behind_a_relay(tmp_path / "home", one_nursery, nodes=4, rounds=40, cap=1000)
    network.run["network"] |= {"on_absence": "go on", "patience": 60}
    network.write_run()
    gone, *rest = network.names
    with relay(network, address):
        children = network.start_all("--delay", "noted:0.2")
        network.in_round(gone, 3)
        out(network, gone, *rest)
        network.finish({name: children[name] for name in rest})
        refused = [why for name in rest for why in network.status(name)["rejected"]]
        assert any(f"{gone} is on the authority's list" in why for why in refused)
        assert len({network.vector(name).tobytes() for name in rest}) == 1
        children[gone].kill(signal.SIGTERM)
        children[gone].wait()


def test_a_relay_shows_how_it_is(tmp_path, one_nursery):
    network, address = behind_a_relay(tmp_path / "home", one_nursery, nodes=2, rounds=30, cap=1000)
    where = f"127.0.0.1:{ports(1)[0]}"

    def ask(path):
        with urllib.request.urlopen(f"http://{where}/{path}", timeout=20) as reply:
            return reply.read().decode()

    def answers():
        with suppress(OSError):
            return json.loads(ask("healthz"))
        return {"healthy": False}

    with relay(network, address, "--health", where) as process:
        until(lambda: answers()["healthy"], "the relay to listen")
        assert answers()["links"] == {}
        children = network.start_all("--delay", "noted:0.1")
        until(lambda: sum(answers()["links"].values()) == 2, "both nodes' links")
        assert set(answers()["links"]) == set(network.names)
        families = {f.name: f for f in text_string_to_metric_families(ask("metrics"))}
        links = {s.labels["member"]: s.value for s in families["dynadp_relay_links"].samples}
        assert links == dict.fromkeys(network.names, 1.0)
        assert families["dynadp_relay_listening"].samples[0].value == 1.0
        assert "dynadp_certificate_end_timestamp_seconds" in families
        network.finish(children)
        until(lambda: not any(answers()["links"].values()), "the links' end")
        assert process.poll() is None


def test_a_relays_health_is_for_this_machine_alone(network):
    done = dynadp(f"relay {network.out} --listen 127.0.0.1:1 --health 0.0.0.0:9465")
    assert done.exit_code == 2
    assert "'0.0.0.0:9465' must be a loopback address" in done.output


def test_a_relay_says_why_it_cannot_listen(network):
    """With code 2, after which its unit does not start it again."""
    pki(network, "node", "authority", "relay", "--host", "127.0.0.1", "--out", "relay")
    port = ports(1)[0]

    def asked(*options):
        command = [DYNADP, "relay", str(network.out / "relay"), "--listen", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "must be HOST:PORT" in asked("relay.example.org")
    with socket.create_server(("127.0.0.1", port)):
        taken = f"127.0.0.1:{port}"
        assert f"cannot listen on {taken}: [Errno 98]" in asked(taken)
        other = f"127.0.0.1:{ports(1)[0]}"
        assert f"health = '{taken}': cannot listen there" in asked(other, "--health", taken)


def test_a_relays_log_is_json_where_that_is_asked_for(tmp_path, one_nursery):
    network, address = behind_a_relay(tmp_path / "home", one_nursery, nodes=2)
    pki(network, "renew", "authority", "relay", "--days", "9")
    shutil.copy(network.out / "authority" / "issued" / "relay.pem", network.out / "relay/tls.pem")
    log = network.out / "relay.out"
    known = {f"{name} is {how}" for name in network.names for how in ("up", "away")}
    with relay(network, address, "--log", "json"):
        # it carries letters a moment before it hears who comes and goes
        until(lambda: "a relay on" in log.read_text(), "a relay that listens")
        network.go()
        until(lambda: all(one in log.read_text() for one in known), "everybody's coming and going")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(line["node"] == "relay" and line["time"] for line in lines)
    told = [line["message"] for line in lines]
    assert any(re.fullmatch(r"the certificate ends in \d days; renew it: .*", one) for one in told)
    assert known <= set(told)


@pytest.mark.parametrize("listed", [False, True])
def test_a_relay_with_the_list_carries_nothing_of_who_is_out(tmp_path, one_nursery, listed):
    network, address = behind_a_relay(tmp_path / "home", one_nursery, nodes=2, patience=10)
    pki(network, "revoke", "authority", "south")  # the nodes do not have the list
    if listed:
        shutil.copy(network.out / "authority" / "revoked.pem", network.out / "relay")
    with relay(network, address):
        codes = {name: child.wait() for name, child in network.start_all().items()}
    assert set(codes.values()) == ({4} if listed else {0})


def test_a_run_that_waits_for_all_ends_with_a_sentence(network):
    children = network.start_all(*SLOW)
    network.in_round("west", 3)
    out(network, "west", "north", "south")
    for name in ("north", "south"):
        assert children[name].wait() == 2
        assert "the authority revoked west, and this run waits for everybody" in network.said(name)
        again = network.start(name)
        assert again.wait() == 2
        assert "the authority revoked west, which run.toml names" in network.said(name)
    children["west"].kill(signal.SIGTERM)
    run_again(network, "later", west=None)
    network.go()


def test_a_revoked_node_gets_no_answer_from_those_that_have_the_list(tmp_path, one_nursery):
    """Nor does it start itself, once it has the list."""
    network = Network.make(tmp_path / "home", one_nursery, rounds=ROUNDS, cap=1000)
    network.change("west", patience=8)
    out(network, "west", "north", "south")
    assert network.start("north").wait() == 2
    assert "the authority revoked west, which run.toml names" in network.said("north")
    shutil.copy(network.out / "authority" / "revoked.pem", network.identity("west"))
    assert network.start("west").wait() == 2
    assert "west is on the authority's list of revoked certificates" in network.said("west")


# An organisation's own authority.


def test_certificates_of_an_organisation_link(tmp_path, one_nursery):
    """Made by openssl, as an organisation would: a root, an authority below it, RSA and curves."""
    network = Network.make(tmp_path / "home", one_nursery, rounds=4)
    office = tmp_path / "office"
    office.mkdir()

    def openssl(line):
        subprocess.run(["openssl", *line.split()], cwd=office, check=True, capture_output=True)

    (office / "lower.ext").write_text(
        "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n"
    )
    (office / "node.ext").write_text(
        "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1\n"
    )
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root.pem -subj /CN=Root -days 9"
    )
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:secp384r1 -nodes -keyout low.key -out low.csr "
        "-subj /O=Hospital/CN=Nodes"
    )
    openssl(
        "x509 -req -in low.csr -CA root.pem -CAkey root.key -CAcreateserial -days 8 "
        "-extfile lower.ext -out low.pem"
    )
    for name in network.names:
        folder = network.identity(name)
        request = folder / "request.csr"
        openssl(
            f"x509 -req -in {request} -CA low.pem -CAkey low.key -CAcreateserial -days 7 "
            f"-extfile node.ext -out {name}.pem"
        )
        (folder / "tls.pem").write_bytes(
            (office / f"{name}.pem").read_bytes() + (office / "low.pem").read_bytes()
        )
        shutil.copy(office / "root.pem", folder / "ca.pem")
        assert f"name: {name}\nhosts: 127.0.0.1\n" in pki(network, "show", folder)
    network.go()


def test_an_organisations_key_signs_nodes_that_link(tmp_path, one_nursery):
    network = Network.make(tmp_path / "home", one_nursery, rounds=4)
    office = tmp_path / "office"
    office.mkdir()
    line = (
        "req -x509 -newkey rsa:2048 -nodes -keyout org.key -out org.pem -subj /O=Hospital/CN=Nodes"
    )
    more = "-addext keyUsage=critical,keyCertSign,cRLSign"
    subprocess.run(
        ["openssl", *line.split(), *more.split()], cwd=office, check=True, capture_output=True
    )
    (office / "org.key").chmod(0o600)
    pki(network, "init", "hospital", "--ca", office / "org.pem", "--ca-key", office / "org.key")
    for name in network.names:
        folder = network.identity(name)
        pki(network, "sign", "hospital", folder / "request.csr", "--out", folder, "--yes")
    network.go()


# Versions of the wire.


def test_members_are_upgraded_one_at_a_time(calm):
    """While a run is under way, from versions 2 to 2, over 2 to 3, to nodes that speak 3 alone."""
    network = calm
    children = network.start_all(*SLOW)
    network.in_round("west", 1)
    for name in network.names:
        children[name] = restart(network, name, children[name], *SLOW, "--wire", "2:3")
    network.finish(children)
    assert "speak version 2 of the wire" in network.log("north")
    assert "north and this node speak version 3 of the wire" in network.log("west")
    network.calm.go()
    network.as_undisturbed()


def test_nodes_without_a_common_wire_refuse_each_other(tmp_path, one_nursery):
    network = Network.make(tmp_path / "home", one_nursery, nodes=2)
    old, new = network.names
    children = [network.start(old), network.start(new, "--wire", "3:4")]
    assert [child.wait() for child in children] == [2, 2]
    for name in network.names:
        said = network.said(name)
        assert f"{old} speaks version 2 of the wire" in said or f"{old} version 2" in said, said
        assert f"{old} has to upgrade dynadp to a release that speaks version 3" in said
        assert not network.spends(name)


# Version 0.1.0, whose wire is spoken no more.


FIRST = "39ff98c"  # version 0.1.0, as it wrote tests/fixtures/v0.1.0


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    """The program of 0.1.0, as a command."""
    root = Path(__file__).parents[2]
    packed = subprocess.run(
        ["git", "archive", FIRST, "src"], cwd=root, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip("the history of this checkout does not have version 0.1.0")
    home = tmp_path_factory.mktemp("v0.1.0")
    subprocess.run(["tar", "-x", "-C", home], input=packed.stdout, check=True)
    code = "from dynadp.cli import main; main()"

    def start(*words, out):
        with out.open("a") as file:
            return subprocess.Popen(
                [sys.executable, "-c", code, *map(str, words)],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(home / "src")},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    return start


def old_member(network, name, first, out):
    """Give a node a ledger of 0.1.0, which knew no anchors, and the run a file that 0.1.0 reads;
    returns the file that the node writes to.
    """
    network.run["training"].pop("weights")
    network.write_run()
    path = network.ledger(name)
    anchor_file(path).unlink()
    path.unlink()
    cap = "--node", name, "--epsilon", 100, "--delta", 1e-5
    assert first("ledger", "cap", path, *cap, out=out).wait(60) == 0
    return out


UPGRADE = "version 2 of the wire: whoever has none has to upgrade dynadp to a release that speaks"


@pytest.mark.parametrize("order", ["the old one first", "the old one last"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_member_that_was_not_upgraded_is_refused_and_refuses(
    tmp_path, one_nursery, first, nodes, order
):
    """Both ends say who has to upgrade; neither reserves or draws anything."""
    network = Network.make(tmp_path / "home", one_nursery, nodes=nodes, patience=40)
    old, *others = network.names
    out = old_member(network, old, first, tmp_path / "old.out")
    near = [name for name in others if old in network.silo(name).part.neighbours]
    if order == "the old one first":
        process = first("node", network.file(old), out=out)
        until(lambda: "starts its part" in out.read_text(), "the old node to start")
        children = {name: network.start(name) for name in others}
    else:
        children = {name: network.start(name) for name in others}
        until(lambda: old in network.status(near[0]).get("waiting", ""), "nodes to wait")
        process = first("node", network.file(old), out=out)
    assert process.wait(LONG) == 2, out.read_text()
    assert UPGRADE in out.read_text()
    refusal = f"speaks version 2 of the wire, {old} version 1: {old} has to upgrade dynadp"
    assert {children[name].wait() for name in near} <= {2, 4}
    # it ends with the first refusal: others may not have heard of it
    assert any(refusal in network.said(name) for name in near)
    for name in near:
        # one that it did not answer waits for it, and says why
        if children[name].code == 4 and refusal in network.said(name):
            assert any(refusal in why for why in network.status(name)["rejected"])
    for name in network.names:
        with Ledger.open(network.ledger(name), read_only=True) as ledger:
            assert [entry.kind for entry in ledger.entries()] == ["open", "cap"]


def test_a_member_that_is_upgraded_goes_on_with_its_old_files(tmp_path, one_nursery, first):
    """The refused node takes part in the same run once it runs this version, with its ledger."""
    network = Network.make(tmp_path / "home", one_nursery, nodes=2)
    old, new = network.names
    out = old_member(network, old, first, tmp_path / "old.out")
    child, process = network.start(new), first("node", network.file(old), out=out)
    assert process.wait(LONG) == 2, out.read_text()
    until(lambda: "has to upgrade dynadp" in network.log(new), "the refusal")
    children = {old: network.start(old)}
    # the other one may have ended with the refusal, also a moment after it
    until(lambda: child.code is not None or network.status(new).get("round"), "its end, or a round")
    children[new] = network.start(new) if child.code == 2 else child
    network.finish(children)
    assert sorted(network.spends(old)) == list(range(1, 7))


def test_behind_a_relay_it_is_refused_and_refuses(tmp_path, one_nursery, first):
    """It sends no envelopes, is named for it, and gets the notice without one."""
    network, address = behind_a_relay(tmp_path / "home", one_nursery, nodes=2, patience=40)
    old, new = network.names
    network.change(old, patience=LONG)
    out = old_member(network, old, first, tmp_path / "old.out")
    with relay(network, address):
        child, process = network.start(new), first("node", network.file(old), out=out)
        assert process.wait(LONG) == 2, out.read_text()
        assert UPGRADE in out.read_text()
        assert child.wait() == 4
        assert f"{old} has to upgrade dynadp" in network.said(new)
