"""Sealed sums at nodes apart: spoiled letters, keys that are none, disks that were restored."""

import shutil
from contextlib import suppress

import numpy as np
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import NodeRows
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.letters import Letter
from dynadp.engines.memory import MemoryNetwork, MemoryNode, memory_key
from dynadp.engines.zenoh.greetings import Greetings
from dynadp.errors import LedgerDamaged, Rejected, SumSpoiled
from dynadp.mechanisms.entropy import SystemEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.planning.sums import SumConstants
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.privacy.ledger.file import Ledger

DELTA, T = 1e-5, 5


def at():
    return "2024-01-01T00:00:00+00:00"


class Spoiling(LedgerJournal):
    """Sends, of some entries, something else than was made: entry -> numbers."""

    def __init__(self, *given, lies, **more):
        super().__init__(*given, **more)
        self.lies = lies

    def spend(self, n, events, messages):
        sent = super().spend(n, events, messages)
        return dict.fromkeys(sent, self.lies[n]) if n in self.lies else sent

    def sent(self, n):
        stored = super().sent(n)
        return dict.fromkeys(stored, self.lies[n]) if stored and n in self.lies else stored


class Node(MemoryNode):
    """A silo with its ledger."""

    ledger = None

    def open_journal(self):
        file = self.folder / "ledger"
        if file.exists():
            self.ledger = Ledger.open(file)
        else:
            self.ledger = Ledger.create(file, self.me, who="me", at=at())
            self.ledger.set_cap(Cap.of(50.0, DELTA), who="me", at=at())
        lies = self.network.lies.get(self.me, {})
        given = {"dataset": "rows", "who": "me", "clock": at, "resume": True, "lies": lies}
        journal = Spoiling({self.me: self.ledger}, "run", **given)
        journal.reserve([e for e in self.network.plan.events if e.node == self.me])
        return journal

    def stop(self):
        super().stop()
        if self.ledger:
            self.ledger.close()

    def offer(self, data, via):
        with suppress(Rejected):  # counted there
            super().offer(data, via)

    def publish(self, data, kind, n):
        if kind == "key" and self.me in self.network.keys:
            rules, body = self.inbox.rules, self.network.keys[self.me]
            letter = Letter(kind, rules.run, rules.config, self.me, n, body)
            data = letter.sealed(memory_key(self.me))
        super().publish(data, kind, n)


class Network(MemoryNetwork):
    """Whose ``lies`` and ``keys`` stand for what some nodes make."""

    def __init__(self, *given, lies=None, keys=None):
        self.lies, self.keys = lies or {}, keys or {}
        super().__init__(*given, SystemEntropy(), node=Node)

    def until(self, name, n):
        """Go on until a node has entered this."""
        node = self.nodes[name]
        for _ in range(1000):
            for one in self.nodes.values():
                if not one.up:
                    one.start()
                if one.ready:
                    one.step()
                if n in node.ledger.rounds("run"):
                    return
            while self.on_the_way:
                self.deliver()
        raise AssertionError("it never comes")


@pytest.fixture(scope="module")
def data():
    return census(240, seed=0, nodes=3, test_rows=10)


@pytest.fixture
def build(data, tmp_path):
    ring, made = Topology.family("ring", 3).named(["a", "b", "c"]), []

    def build(lies=None, keys=None, **declared):
        tables = data.tables(ring.nodes)
        counts = [NodeRows.of(data.schema, tables[p], p).count for p in ring.nodes]
        chosen = plan(
            counts,
            ring,
            data.schema.dimension,
            epsilon=1.0,
            delta=DELTA,
            mechanism=Sealed(honest=2, **declared),
            features=data.schema.feature_count,
            constants=SumConstants(rounds=T),
        )
        folder = tmp_path / f"net{len(made)}"
        made.append(Network(data.schema, chosen, tables, folder, lies=lies, keys=keys))
        return made[-1]

    yield build
    for network in made:
        network.close()


def garbage(width):
    return np.full(width, 2**62, np.uint64).view(np.float64)


def entered(network):
    for node in network.nodes.values():
        node.stop()
        with Ledger.open(node.folder / "ledger") as ledger:
            yield ledger.rounds("run"), ledger.spent(), ledger.is_closed("run")


def private_files(network):
    return [path for path in network.folder.rglob("*-own-*") if path.is_file()]


@pytest.mark.parametrize("entry", [0, 1, 4])
def test_a_spoiled_letter_costs_a_spare_attempt(build, data, entry):
    width = data.schema.feature_count if entry == 0 else data.schema.dimension
    network = build({"c": {entry: garbage(width)}}, spares=2)
    results = network.finish()
    assert len({result.vector.tobytes() for result in results.values()}) == 1
    for rounds, spent, closed in entered(network):
        assert sorted(rounds) == [*range(T + 1), T + 1]
        assert [event.purpose for event in spent].count("spare") == 1
        assert total(spent, DELTA).epsilon <= network.plan.total.epsilon
        assert closed
    assert not private_files(network)


@pytest.mark.parametrize("what", ["another width", "other numbers"])
def test_a_run_ends_with_its_spares_and_forgets_its_keys(build, data, what):
    """Letters of the wrong length are no different from wrong numbers: each takes an attempt."""
    d, features = data.schema.dimension, data.schema.feature_count
    wrong = garbage(d if what == "another width" else features)
    lies = {0: garbage(features), T + 1: wrong, T + 2: wrong}
    network = build({"c": lies}, spares=2)
    ended = []
    for _ in range(200):
        for node in network.nodes.values():
            if not node.up:
                node.start()
            try:
                if node.ready:
                    node.step()
            except SumSpoiled as error:
                node.result = "none"
                ended.append(str(error))
        while network.on_the_way:
            network.deliver()
    assert len(ended) == 3
    assert all("no spare attempt is left: the run is over" in words for words in ended)
    for rounds, spent, closed in entered(network):
        assert sorted(rounds) == [0, T + 1, T + 2]
        assert len(spent) == 3
        assert closed  # what was not spent is free again
    assert not private_files(network)


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31)], ids=["0", "1"])
def test_a_key_that_shares_nothing_is_not_believed(build, key):
    """It is refused when it comes, so that it cannot stop a node, and the true one is asked for."""
    network = build(keys={"c": key})
    assert len(network.finish()) == 3
    for name in ("a", "b"):
        refused = network.nodes[name].inbox.rejected
        assert any("no key that anybody could share a secret with" in why for why in refused)


def test_a_disk_restored_after_a_spare_attempt_is_noticed(build, data):
    """A spare attempt is entered past all rounds, also where many rounds follow: neighbours show
    the last round too, or an old ledger would draw noise twice under one mask.
    """
    network = build({"c": {1: garbage(data.schema.dimension)}})
    a = network.nodes["a"]
    network.until("a", T + 1)
    a.stop()
    shutil.copytree(a.folder, network.folder / "copy")
    network.until("a", 5)
    a.stop()
    shutil.rmtree(a.folder)
    shutil.copytree(network.folder / "copy", a.folder)
    anchor_file(a.folder / "ledger").unlink()  # which would tell, and is lost too
    a.start()
    mine = Greetings(a.inbox, {"run": "trial"}, lambda n: a.ledger.message("run", n))
    for other in ("b", "c"):
        theirs = Greetings(network.nodes[other].inbox, {"run": "trial"}, None)
        letters = mine.read(other, theirs.write("a", mine.question))
        assert {letter.round for letter in letters} == {4, T + 1}
        newest = max(letters, key=lambda letter: letter.round <= T)
        with pytest.raises(LedgerDamaged, match="a message of round 4 with this node's signature"):
            mine.require_known(other, newest)


def test_a_finished_node_can_be_started_again(build):
    """With spare attempts that it did not take, and without its key: from what is entered."""
    network = build(spares=2)
    first = network.finish()
    node = network.nodes["a"]
    node.stop()
    node.result = None
    assert network.finish()["a"].vector.tobytes() == first["a"].vector.tobytes()
    assert not private_files(network)


def test_an_undisturbed_ledger_knows_all_that_neighbours_show(build, data):
    network = build({"c": {1: garbage(data.schema.dimension)}})
    network.finish()
    a = network.nodes["a"]
    mine = Greetings(a.inbox, {"run": "trial"}, lambda n: a.ledger.message("run", n))
    for other in ("b", "c"):
        theirs = Greetings(network.nodes[other].inbox, {"run": "trial"}, None)
        letters = mine.read(other, theirs.write("a", mine.question))
        assert [letter.round for letter in letters] == [T, T + 1]
        for letter in letters:
            mine.require_known(other, letter)
