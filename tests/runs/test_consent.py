"""What a silo would release, shown before; who approves it; and that nothing happens without."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dynadp.errors import NotApproved
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import identities
from dynadp.runs.consent import Approval
from dynadp.runs.last_run import changes, keep_terms, terms_before
from support.networks import DYNADP, LONG, ONE_THREAD, Network, until
from support.typed import answer, dynadp


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    return Network.make(tmp_path_factory.mktemp("base") / "home", one_nursery)


@pytest.fixture
def network(tmp_path, base, nursery):
    return base.copy(tmp_path / "home")


def entries(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        return ledger.state().length


def change_run(where, **values):
    """Other values in the shared run file."""
    for section, given in values.items():
        where.run.setdefault(section, {}).update(given)
    where.write_run()


def untouched(network, name="north"):
    """Nothing was entered, and the node has not begun."""
    assert entries(network, name) == 2
    assert not network.folder(name).exists()


def test_check_shows_what_would_be_released_and_does_nothing(network):
    listening = []
    for section in network.run["nodes"]:
        host, _, port = section["endpoint"].rpartition(":")
        listening.append(socket.create_server((host, int(port))))
    found = answer("check", network.file("north"), "--json")
    for server in listening:
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()  # nobody was dialled
        server.close()
    untouched(network)
    silo = network.silo("north")
    own = [event for event in silo.plan.events if event.node == "north"]
    assert found["messages"] == len({event.round for event in own}) == 6
    assert found["dimension"] == silo.plan.bound.dimension
    assert found["total"]["epsilon"] == silo.plan.total.epsilon
    assert found["own"]["delta"] == 1e-5
    assert found["each"] == 0.5
    assert found["scale"] == "alpha"
    assert {one["name"] for one in found["recipients"]} == set(silo.part.neighbours)
    for one in found["recipients"]:
        [section] = [s for s in network.run["nodes"] if s["name"] == one["name"]]
        raw = identities.public_key(section["key"]).public_bytes_raw()
        assert one["fingerprint"].replace(" ", "") == sha256(raw).hexdigest()[:32]
        assert one["endpoint"] == section["endpoint"]
    ledger = found["ledger"]
    assert (ledger["admitted"], ledger["begun"], ledger["spent"]) == (True, False, 0)
    assert ledger["left_now"] == 1.0 > ledger["left_after"] > 0
    assert 80 <= found["certificate_days"] <= 90
    words = dynadp("check", network.file("north")).output
    for part in (
        "Releases: up to 6 messages",
        "to south, key",
        "Cost: epsilon =",
        "Must be honest: nobody but this silo",
        "of the cap left",
        "no earlier run of this ledger is known here",
        "Rows: 120, all of them fit",
        "Certificate: to",
    ):
        assert part in words
    assert "go with a run file" in dynadp("check", network.file("north"), "--epsilon", 2).output


def test_check_has_the_codes_of_every_command(network):
    file, path = network.file("north"), network.ledger("north")
    assert dynadp("ledger", "cap", path, "--epsilon", 0.01, "--delta", 1e-5).exit_code == 0
    refused = dynadp("check", file)
    assert refused.exit_code == 3
    assert "the ledger of north would refuse this run" in refused.output
    assert "it would REFUSE this run" in refused.output
    assert dynadp("approve", file, "--yes").exit_code == 3
    assert not network.silo("north").approval.exists()
    rows = network.home / "north.csv"
    header, first, *rest = rows.read_text().splitlines()
    rows.write_text("\n".join([header, "no number" + first[first.index(",") :], *rest]))
    wrong = dynadp("check", file)
    assert wrong.exit_code == 2
    assert "no number" not in wrong.output
    path.write_bytes(path.read_bytes()[:-4096])
    assert dynadp("check", file).exit_code == 5


def test_sealed_sums_name_who_must_be_honest_and_all_who_get_letters(tmp_path, nursery):
    sealed = {"mechanism": "sealed", "honest": 3, "epsilon": 4.0, "delta": 1e-5}
    network = Network.make(tmp_path / "home", nursery, nodes=5, rows=60, privacy=sealed)
    found = answer("check", network.file("north"), "--json")
    assert {one["name"]: one["direct"] for one in found["recipients"]} == {
        "south": True,
        "west": False,
        "east": False,
        "centre": True,
    }
    assert found["spares"] == 1
    words = dynadp("check", network.file("north")).output
    assert "Must be honest: 3 of 5 silos" in words
    assert "sealed so that nobody reads one silo's alone" in words
    assert "handed on by neighbours" in words


def test_a_run_that_goes_on_says_how_many_must_remain(tmp_path, nursery):
    sealed = {"mechanism": "sealed", "honest": 2, "away": 1, "epsilon": 4.0, "delta": 1e-5}
    network = Network.make(tmp_path / "home", nursery, nodes=5, rows=60, privacy=sealed)
    words = dynadp("check", network.file("north")).output
    assert "as long as 4 of 5 remain. The honest ones are counted among these" in words
    del network.run["privacy"]["away"]
    change_run(network, network={"on_absence": "wait"})
    assert "Absence" not in dynadp("check", network.file("north")).output


def test_a_simulation_and_a_relay_are_shown(tmp_path, nursery):
    network = Network.make(tmp_path / "home", nursery, seed=3, relay="127.0.0.1:7447")
    shown = dynadp("check", network.file("north"))
    assert shown.exit_code == 0, shown.output
    assert "SIMULATION that protects nobody" in shown.output
    assert "through the relay 127.0.0.1:7447" in shown.output
    assert "Ledger:" not in shown.output
    assert not network.folder("north").exists()


def test_what_changed_since_the_last_run_is_said_in_words(network):
    network.go()
    same = dynadp("check", network.file("north")).output
    assert "this run is reserved in it: 6 of 6 messages are released" in same
    for name in network.names:
        network.change(name, out=f"{name}-second")
    change_run(network, run={"name": "second"}, privacy={"alpha": 0.25})
    words = dynadp("check", network.file("north")).output
    assert "since run 'trial', which began on" in words
    assert "privacy, alpha is 0.25 now, it was 0.5" in words
    assert "cost, epsilon is 0.76" in words
    assert "3 things since" in words  # no silo and no column is another
    network.run["privacy"]["alpha"] = 0.5
    for section in network.run["nodes"]:
        if section["name"] == "south":
            section["endpoint"] = "silo.example.org:7447"
    network.write_run()
    words = dynadp("check", network.file("north")).output
    assert 'the endpoint of south is "silo.example.org:7447" now' in words
    file = network.ledger("north").with_name("north.sqlite-last-runs.json")
    assert file.stat().st_mode & 0o077 == 0
    other = {"run": "a", "at": "2026-01-01", "terms": {"config": 3}}
    for kept in ([3], [other]):
        file.write_text(json.dumps({"format": "dynadp-last-runs", "version": 1, "runs": kept}))
        found = dynadp("check", network.file("north"))
        assert found.exit_code == 0
        assert re.search("Changed: not known: .* is damaged; remove it", found.output)
    file.write_text("[")
    found = dynadp("check", network.file("north"))
    assert (found.exit_code, "Changed: not known: " in found.output) == (0, True)


def test_terms_that_cannot_be_kept_stop_no_run(tmp_path, caplog):
    ledger, terms = tmp_path / "north.sqlite", {"config": {"run": {"name": "first"}}}
    file = tmp_path / "north.sqlite-last-runs.json"
    file.write_text("[")
    keep_terms(ledger, "a", terms, "2026-01-01")
    assert "is not JSON" in caplog.text
    keep_terms(ledger, "b", terms, "2026-01-02")
    keep_terms(ledger, "b", terms, "2026-01-03")  # started again
    assert terms_before(ledger, "b") == ("2026-01-01", terms)
    assert terms_before(ledger, "c") == ("2026-01-03", terms)
    file.unlink()
    file.mkdir()
    keep_terms(ledger, "c", terms, "2026-01-04")
    assert "cannot be written" in caplog.text


def test_changes_name_silos_columns_and_what_came_or_went(network):
    before = json.loads(json.dumps(network.silo("north").terms))
    after = json.loads(json.dumps(before))
    after["config"]["run"]["name"] = "another"
    assert changes(before, after) == []
    after["config"]["nodes"]["west"]["key"] = "ed25519:other"
    after["config"]["nodes"]["late"] = {"rows": 10, "key": "k"}
    del after["config"]["nodes"]["south"]
    after["config"]["schema"]["columns"][0]["high"] = 333
    column = after["config"]["schema"]["columns"][0]["name"]
    after["recipients"]["late"] = "0000"
    after["relay"] = "relay.example.org:1"
    after["ledger"]["cap"]["epsilon"] = 77.0
    found = changes(before, after)
    assert any(line.startswith("silo west, key is") for line in found)
    assert "silo late is new" in found
    assert "silo south is gone" in found
    assert any(line.startswith(f"column {column}, high is 333 now") for line in found)
    assert 'who gets messages: late is new: "0000"' in found
    assert 'relay is "relay.example.org:1" now, it was null' in found
    assert any(line.startswith("the ledger's cap, epsilon is 77.0 now") for line in found)
    assert len(found) == 7


def consenting(network, **values):
    network.change("north", consent="north.approval.json", **values)
    return network.file("north")


def test_without_an_approval_a_node_does_nothing(network):
    file = consenting(network)
    refused = dynadp("node", file, "--quiet")
    assert refused.exit_code == 2
    assert "there is no approval at" in refused.output
    assert "dynadp approve" in refused.output
    assert "Nothing was spent, and neighbours have heard nothing" in refused.output
    assert entries(network, "north") == 2
    assert {path.name for path in network.folder("north").iterdir()} <= {"node.log"}
    with pytest.raises(NotApproved):  # from Python too
        network.silo("north").run(who="test")
    shown = dynadp("approve", file)  # no terminal: nobody was asked
    assert shown.exit_code == 2
    assert "Releases: up to 6 messages" in shown.output
    assert "nobody was asked" in shown.output
    assert not network.silo("north").approval.exists()


def test_check_says_whether_the_approval_holds(network):
    assert answer("check", network.file("north"), "--json")["approved"] is None
    file = consenting(network)
    assert "Consent: NOT APPROVED, there is no approval at" in dynadp("check", file).output
    assert dynadp("approve", file, "--yes").exit_code == 0
    assert "Consent: approved by " in dynadp("check", file).output
    change_run(network, privacy={"alpha": 0.6})
    found = answer("check", file, "--json")
    assert (found["approved"], "are others now" in found["consent"]) == (False, True)
    network.silo("north").approval.write_text("rubbish")
    shown = dynadp("check", file)
    assert (shown.exit_code, "is not JSON" in shown.output) == (0, True)
    refused = dynadp("node", file, "--quiet")
    assert refused.exit_code == 2
    assert "dynadp approve" in refused.output


def other_cap(network):
    path = network.ledger("north")
    assert dynadp("ledger", "cap", path, "--epsilon", 50, "--delta", 1e-5).exit_code == 0


def other_schema(network):
    path = network.out / "schema.json"
    schema = json.loads(path.read_text())
    schema["norm"] = 1.5
    path.write_text(json.dumps(schema))


def other_key(network):
    for section in network.run["nodes"]:
        if section["name"] == "south":
            section["key"] = identities.public_text(Ed25519PrivateKey.generate().public_key())
    network.write_run()


def other_endpoint(network):
    network.run["nodes"][1]["endpoint"] = "elsewhere.example.org:1"
    network.write_run()


def other_rows(network):
    shutil.copy(network.home / "north.csv", network.home / "others.csv")
    network.change("north", file=str(network.home / "others.csv"))


def other_words(network):
    path = network.silo("north").approval
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "by": "somebody else"}))


CHANGES = {
    "privacy": lambda network: change_run(network, privacy={"alpha": 0.6}),
    "rounds": lambda network: change_run(network, training={"rounds": 7}),
    "name": lambda network: change_run(network, run={"name": "again"}),
    "absence": lambda network: change_run(network, network={"on_absence": "go on"}),
    "relay": lambda network: change_run(network, network={"relay": "relay.example.org:1"}),
    "schema": other_schema,
    "key of a neighbour": other_key,
    "endpoint of a neighbour": other_endpoint,
    "file of rows": other_rows,
    "cap": other_cap,
    "what it says": other_words,
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_approval_is_of_one_configuration_alone(network, change):
    consenting(network)
    assert dynadp("approve", network.file("north"), "--yes").exit_code == 0
    network.silo("north").require_approval()
    CHANGES[change](network)
    before = entries(network, "north")
    refused = dynadp("node", network.file("north"), "--quiet")
    assert refused.exit_code == 2, refused.output
    assert "Nothing was spent" in refused.output
    assert ("was changed" if change == "what it says" else "are others now") in refused.output
    assert entries(network, "north") == before


def test_an_approver_of_its_own_signs_and_nobody_else(network, tmp_path):
    approver = Ed25519PrivateKey.generate()
    key = tmp_path / "approver.key"
    key.write_bytes(approver.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    public = identities.public_text(approver.public_key())
    file = consenting(network, approver=public)
    own = dynadp("approve", file, "--yes")
    assert own.exit_code == 2
    assert f"the approver of {file} is {public}" in own.output
    silo = network.silo("north")
    Approval.sign(silo.terms, silo.identity.key, by="x", at="2026-01-01T00:00:00+00:00").save(
        silo.approval
    )
    with pytest.raises(NotApproved, match="the approver here is"):
        silo.require_approval()
    assert dynadp("approve", file, "--yes", "--key", key).exit_code == 0
    silo.require_approval()
    assert answer("verify", silo.approval, "--key", public, "--json")["key_known"]
    assert dynadp("verify", silo.approval, "--run", network.out / "run.toml").exit_code == 5
    content = json.loads(silo.approval.read_text())
    for name, value in (("signature", "AAAA"), ("approver", None), ("terms", "0" * 64)):
        silo.approval.write_text(json.dumps({**content, name: value}))
        refused = dynadp("node", file, "--quiet")
        assert refused.exit_code == 2
        assert "approve" in refused.output
        assert dynadp("verify", silo.approval).exit_code in (2, 5)


def test_a_run_file_says_whose_approval_it_may_be(network):
    """Of this run, and by that silo's own key: another member's is none."""
    silo, run_file = network.silo("north"), network.out / "run.toml"
    assert dynadp("approve", network.file("north"), "--yes").exit_code == 0
    done = dynadp("verify", silo.approval, "--run", run_file)
    assert (done.exit_code, "the key of north." in done.output) == (0, True)
    assert "give --run or --key" in dynadp("verify", silo.approval).output
    made = Approval.load(silo.approval)
    south = network.silo("south").identity.key
    Approval.sign(silo.terms, south, by="x", at=made.at).save(silo.approval)
    refused = dynadp("verify", silo.approval, "--run", run_file)
    assert refused.exit_code == 5
    assert "which is not the key of north" in refused.output
    made.save(silo.approval)
    change_run(network, run={"name": "again"})
    refused = dynadp("verify", silo.approval, "--run", run_file)
    assert refused.exit_code == 5
    assert "approves run 'trial'" in refused.output


@pytest.mark.slow
def test_a_network_of_silos_that_approve_runs_to_its_end(network):
    for name in network.names:
        network.change(name, consent=f"{name}.approval.json")
        made = dynadp("approve", network.file(name), "--yes")
        assert made.exit_code == 0, made.output
    network.go()
    network.sound()
    assert "approved by" in network.log("north")
    again = network.start("north")  # the approval holds for the same run, started again
    assert again.wait() == 0, network.said("north")


def at_terminal(*words):
    """A process with a terminal of its own; returns it with the terminal's other end."""
    here, there = pty.openpty()
    process = subprocess.Popen(
        [str(DYNADP), *map(str, words)],
        stdin=there,
        stdout=there,
        stderr=there,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,
    )
    os.close(there)
    return process, here


def read_to(terminal, words):
    """Read until these words come, or the process ends."""
    seen = b""
    while words.encode() not in seen:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        seen += more
    return seen.decode(errors="replace")


@pytest.mark.parametrize("reply", ["n", "y"])
def test_a_node_asks_at_a_terminal(network, reply):
    process, terminal = at_terminal("node", network.file("north"), "--consent", "--quiet")
    try:
        shown = read_to(terminal, "Take part?")
        assert "Releases: up to 6 messages" in shown
        assert "to south, key" in shown
        untouched(network)
        os.write(terminal, f"{reply}\n".encode())
        if reply == "n":
            rest = read_to(terminal, "never printed")
            assert process.wait(LONG) == 2
            assert "neighbours have heard nothing" in rest
            untouched(network)
        else:
            until(lambda: network.status("north")["state"] == "agreeing", "the node to begin")
            process.send_signal(signal.SIGTERM)
            read_to(terminal, "never printed")
            assert process.wait(LONG) == 143
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.mark.slow
def test_a_yes_at_a_terminal_is_no_signed_approval(network):
    file = consenting(network)
    process, terminal = at_terminal("node", file, "--consent", "--quiet")
    try:
        shown = read_to(terminal, "Take part?")
        assert process.wait(LONG) == 2
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert "Take part?" not in shown
    assert "there is no approval" in shown


@pytest.mark.slow
def test_consent_without_a_terminal_needs_an_approval(network):
    file = network.file("north")
    refused = subprocess.run(
        [str(DYNADP), "node", str(file), "--consent", "--quiet"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD},
        check=False,
    )
    assert refused.returncode == 2
    assert "there is no approval at" in refused.stderr
    untouched(network)
    assert dynadp("approve", file, "--yes").exit_code == 0
    network.silo("north").require_approval()
