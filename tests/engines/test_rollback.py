"""A ledger that was put back to an older copy between two runs, with real processes over TLS: the
node refuses, before anything is drawn.
"""

import base64
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from dynadp.errors import BudgetRefused
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.model import load_model
from support import ledger_worker
from support.networks import Network
from support.typed import dynadp

RENAMED = {"name": "second", "output": "network"}


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    """Two nodes that have run once, and the ledgers from before and after."""
    network = Network.make(
        tmp_path_factory.mktemp("base") / "home", one_nursery, nodes=2, rounds=3, rows=60
    )
    for name in network.names:
        shutil.copy(network.ledger(name), network.home / f"{name}.old")
    network.go()
    return network


@pytest.fixture(autouse=True)
def as_after_the_first_run(base):
    """Ledgers, anchors and memories as after the first run, for every test anew."""
    kept = {}
    for name in base.names:
        anchor = anchor_file(base.ledger(name))
        for file in (base.ledger(name), anchor, anchor.with_suffix(".peers.json")):
            kept[file] = file.read_bytes()
        kept[base.file(name)] = base.file(name).read_bytes()
    kept[base.out / "run.toml"] = (base.out / "run.toml").read_bytes()
    yield
    base.nursery.kill_all()
    for file, content in kept.items():
        file.write_bytes(content)
    for name in base.names:
        shutil.rmtree(base.out / f"{name}-second", ignore_errors=True)


def second(network):
    """The next run of the same consortium."""
    network.run["run"] = dict(RENAMED)
    network.write_run()
    for name in network.names:
        network.change(name, out=f"{name}-second")


def roll_back(network, name):
    shutil.copy(network.home / f"{name}.old", network.ledger(name))


def entries(network, name):
    with Ledger.open(network.ledger(name), read_only=True) as ledger:
        return ledger.state().length


def refused(network, words):
    """North refuses with exit code 5, and enters nothing."""
    before = entries(network, "north")
    children = network.start_all()
    assert children["north"].wait() == 5
    said = (network.out / "north.out").read_text()
    assert words in said, said
    assert entries(network, "north") == before


@pytest.mark.slow
def test_the_next_run_of_a_whole_ledger_goes_on(base):
    second(base)
    base.go()
    memory = anchor_file(base.ledger("south")).with_suffix(".peers.json")
    (known,) = json.loads(memory.read_text())["peers"].values()
    assert [one["length"] for one in known.values()] == [entries(base, "north")]  # its farewell


@pytest.mark.slow
def test_an_older_copy_is_refused_by_its_anchor(base):
    second(base)
    roll_back(base, "north")
    refused(base, "that its anchor")


@pytest.mark.slow
def test_without_its_anchor_it_is_refused_by_what_a_neighbour_remembers(base):
    second(base)
    roll_back(base, "north")
    anchor_file(base.ledger("north")).unlink()
    refused(base, "south remembers this node's ledger")


@pytest.mark.slow
def test_a_new_ledger_in_its_place_is_refused_unless_the_old_one_is_disowned(base):
    second(base)
    with Ledger.open(base.ledger("north"), read_only=True) as ledger:
        first, cap = ledger.state().first, ledger.cap
    base.ledger("north").unlink()
    anchor_file(base.ledger("north")).unlink()
    stamp = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
    with Ledger.create(base.ledger("north"), "north", **stamp) as ledger:
        ledger.set_cap(cap, **stamp)
    refused(base, f'other_ledgers = ["{first[:16]}"]')
    base.nursery.kill_all()
    base.change("north", other_ledgers=[first[:16]])
    base.go()


@pytest.mark.slow
def test_an_older_copy_is_refused_by_letters_of_an_earlier_run(base):
    """The anchor lags, as after a loss of power, and the neighbour forgot."""
    second(base)
    roll_back(base, "north")
    anchor = anchor_file(base.ledger("north"))
    content = json.loads(anchor.read_text().splitlines()[0])
    with Ledger.open(base.ledger("north"), read_only=True) as ledger:
        content |= {**ledger.state().mark.to_json(), "kinds": {}}
    anchor.write_text(json.dumps(content) + "\n")
    anchor_file(base.ledger("south")).with_suffix(".peers.json").unlink()
    refused(base, "with this node's signature that the ledger")


@pytest.mark.slow
def test_what_a_node_did_not_sign_stops_nobody(base):
    """South claims that north's ledger stood elsewhere: in its own name, and in nobody's."""
    second(base)
    memory = anchor_file(base.ledger("south")).with_suffix(".peers.json")
    content = json.loads(memory.read_text())
    (known,) = content["peers"].values()
    own = anchor_file(base.ledger("north")).with_suffix(".peers.json")
    (souths,) = json.loads(own.read_text())["peers"].values()
    (letter,) = (one["letter"] for one in souths.values())
    forged = bytearray(base64.b64decode(next(iter(known.values()))["letter"]))
    forged[-70] ^= 1
    known["a" * 64] = {"length": 999, "letter": letter}
    known["b" * 64] = {"length": 999, "letter": base64.b64encode(bytes(forged)).decode()}
    known["c" * 64] = {"length": 999, "letter": "no letter"}
    memory.write_text(json.dumps(content))
    base.go()
    log = (base.out / "north-second" / "node.log").read_text()
    assert "without this node's signature: ignored" in log


def recover(network, *more):
    words = ["ledger", "recover", network.ledger("north"), "--identity", network.identity("north")]
    return dynadp(*words, *more)


def truth(network):
    """What north has spent, and what counts: by its own ledger, which lost nothing."""
    with Ledger.open(network.ledger("north"), read_only=True) as ledger:
        return ledger.spent(), ledger.counted(), network.spends("north")


@pytest.mark.parametrize("holder", ["north", "south"])
def test_a_recovered_ledger_knows_all_that_was_released(base, holder):
    """From its own letters, or from those that its neighbour holds."""
    expected = truth(base)
    roll_back(base, "north")
    done = recover(base, "--from", base.folder(holder))
    assert done.exit_code == 0, done.output
    assert truth(base) == expected
    assert dynadp("ledger", "verify", base.ledger("north")).exit_code == 0
    with Ledger.open(base.ledger("north")) as ledger:  # within its renewed anchor
        assert "recovered" in list(ledger.entries())[-1].who
        assert [run.closed for run in ledger.state().runs.values()] == ["finished"]
    assert "knows all" in recover(base, "--from", base.folder(holder)).output
    second(base)
    base.go()


def test_without_any_copy_it_is_made_anew(base):
    spent, counted, messages = truth(base)
    with Ledger.open(base.ledger("north"), read_only=True) as ledger:
        cap = ledger.cap
    base.ledger("north").unlink()
    missing = dynadp("ledger", "cap", base.ledger("north"), "--node=north", "--epsilon=9")
    assert missing.exit_code != 0
    lost = dynadp(
        *("ledger", "cap", base.ledger("north"), "--node", "north"),
        *("--epsilon", cap.epsilon, "--delta", cap.delta),
    )
    assert lost.exit_code == 5
    assert "there was one" in lost.output
    anew = ("--node", "north", "--epsilon", cap.epsilon, "--delta", cap.delta)
    done = recover(base, "--from", base.folder("north"), *anew)
    assert done.exit_code == 0, done.output
    assert truth(base) == (spent, counted, messages)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "begin", ["in place", *(pytest.param(how, marks=pytest.mark.slow) for how in ("copy", "anew"))]
)
def test_a_recovery_that_is_killed_changed_nothing_or_all(base, tmp_path, begin, step):
    """Whichever: typed again it ends with the same ledger."""
    template, folder = tmp_path / "template", tmp_path / "killed"
    template.mkdir()
    folder.mkdir()
    old, (spent, counted, _) = base.home / "north.old", truth(base)
    with Ledger.open(base.ledger("north"), read_only=True) as ledger:
        cap = ledger.cap
    (section,) = (one for one in base.run["nodes"] if one["name"] == "north")
    begins = {"in place": None, "copy": str(old), "anew": ["north", cap.epsilon, cap.delta]}
    given = {"from": [str(base.folder("north"))], "key": section["key"], "begin": begins[begin]}
    (template / "recovery.json").write_text(json.dumps(given))
    shutil.copy(anchor_file(base.ledger("north")), template / "anchor")
    if begin == "in place":
        shutil.copy(old, template / "ledger")
    command = [sys.executable, ledger_worker.__file__, "recover", template, folder, str(step)]
    outcomes = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with Ledger.open(old, read_only=True) as ledger:
        before = ledger.state().length
    changed = []
    for outcome in outcomes:
        place = folder / str(outcome["k"])
        there = (place / "ledger").exists()
        changed.append(there and begin != "in place")
        if there:
            with Ledger.open(place / "ledger", anchored=False) as ledger:  # with what it undoes
                changed[-1] = ledger.state().length > before
                assert ledger.spent() == (spent if changed[-1] else [])
                assert ledger.verify() == []
        assert changed[-1] or not outcome["returned"]
        if not (changed[-1] and begin != "in place"):  # then its anchor was written before
            ledger_worker.recovered(place, given)
        with Ledger.open(place / "ledger", anchor=place / "anchor") as ledger:
            assert (ledger.spent(), ledger.counted()) == (spent, counted)
            assert [run.closed for run in ledger.state().runs.values()] == ["finished"]
    assert changed[-1]
    assert not changed[0]
    assert changed == sorted(changed)


def test_without_an_anchor_the_whole_plan_counts(base):
    """Nobody knows whether these letters are all, so somebody has to say so."""
    _, counted, _ = truth(base)
    roll_back(base, "north")
    anchor_file(base.ledger("north")).unlink()
    done = recover(base, "--from", base.folder("south"), "--nothing-else")
    assert done.exit_code == 0, done.output
    with Ledger.open(base.ledger("north")) as ledger:
        (run,) = ledger.state().runs.values()
        assert run.closed is None
        assert ledger.counted() == run.plan
        assert set(counted) <= set(ledger.counted())


@pytest.mark.parametrize("anchor", ["whole", "lost", "put back"])
def test_what_left_no_letter_is_never_guessed(base, anchor):
    """A private evaluation after the run: only its anchor tells of it, if it is whole."""
    stamp = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
    event = L2Laplace("north", 0, "evaluation", 0.01, 1)
    with Ledger.open(base.ledger("north")) as ledger:
        ledger.reserve("evaluation", [event], dataset="rows", **stamp)
        ledger.spend("evaluation", 0, [event], b"0.5", **stamp)
    roll_back(base, "north")
    kept = anchor_file(base.ledger("north"))
    if anchor != "whole":
        kept.unlink()
    if anchor == "put back":
        with Ledger.open(base.ledger("north")) as ledger:
            ledger.renew_anchor()
    before = base.ledger("north").read_bytes()
    done = recover(base, "--from", base.folder("north"))
    assert done.exit_code == 5
    words = {
        "whole": "1 of kind reserve, 1 of kind spend",
        "lost": "no anchor says how many entries it had. A charge",
        "put back": "no anchor says how many entries it had when these letters were sent",
    }
    assert words[anchor] in " ".join(done.output.split())
    assert base.ledger("north").read_bytes() == before
    done = recover(base, "--from", base.folder("north"), "--charge-rest")
    assert done.exit_code == 0, done.output
    assert "Nothing more is admitted." in done.output
    with Ledger.open(base.ledger("north")) as ledger, pytest.raises(BudgetRefused):
        ledger.reserve("more", [event], dataset="rows", **stamp)


def test_a_nodes_folder_holds_enough_for_a_model(base):
    """Of a whole run it is the mean of the same messages that all nodes' means were made of."""
    for name in base.names:
        done = dynadp("model", base.folder(name), "--out", base.home / f"{name}.json")
        assert done.exit_code == 0, done.output
    one, other = (load_model(base.home / f"{name}.json") for name in base.names)
    assert one.partial == {"rounds": 3, "planned": 3, "members": ["north", "south"]}
    assert (one.coef == other.coef).all()
    assert np.append(one.coef, one.intercept) == pytest.approx(base.vector("north"), rel=1e-9)
