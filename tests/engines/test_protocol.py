"""A network in memory: what its nodes compute, and that nothing that happens to them makes one
release or spend twice.

Nodes are real: post offices and ledgers are files, letters are signed. Only the links are lists.
Noise is keyed, so that runs can be compared, and says that it is not, since ledgers take no seeded
release; fresh noise differs with every start of a node, as the system's does."""

import base64
import contextlib
import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard
from dynadp.engines.inbox import Inbox
from dynadp.engines.journal import FolderJournal
from dynadp.engines.letters import Letter, run_id, verify
from dynadp.engines.memory import memory_key
from dynadp.engines.node import node_rounds
from dynadp.engines.simulation import simulate
from dynadp.engines.zenoh.greetings import Greetings, differences
from dynadp.errors import (
    BudgetRefused,
    ConfigError,
    DataError,
    DeclarationError,
    LedgerDamaged,
    Rejected,
)
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning import spread_of
from dynadp.planning.plans import Plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.schedules import per_node
from support.memory import (
    RUN,
    SEED,
    STAMP,
    Network,
    Node,
    Plug,
    Setting,
    assert_same_messages,
    memory,
    private_files,
    sealed_sums,
    small,
)
from support.pair import go

POINTS = ("computed", "spent", "kept", "published", "received", "noted", "closed")
ITERATE = Primal(augment="iterate")
SEALED = Sealed(honest=2, spares=0)
SUMS = "sum", Sum(second_moment=True), SEALED, replace(SEALED, second_moment=True)


@pytest.fixture
def build():
    made = []
    with memory() as folder:

        def build(setting, **node):
            made.append(Network(setting, folder / f"network{len(made)}", **node))
            return made[-1]

        yield build
        for network in made:
            network.close()


# --------------------------------------------------------------------------------------------------
# the same run


@pytest.mark.diagonal
@pytest.mark.parametrize("family", ["ring", "star", "erdos_renyi"])
@pytest.mark.parametrize("mechanism", ["primal", "dual", *SUMS], ids=str)
@pytest.mark.parametrize("centring", [True, False])
def test_nodes_apart_do_what_they_do_together(build, census5, family, mechanism, centring):
    """Every message, to the last bit; and every kind of model, of which ``neighbours`` adds in
    another order.
    """
    topology = Topology.family(family, 5, probability=0.5, seed=1)
    tables = census5.tables(topology.nodes)
    setting = Setting.planned(
        topology, census5.schema, tables, mechanism=mechanism, centring=centring
    )
    network = build(setting)
    outcomes = network.finish()
    models, messages, done = setting.undisturbed
    assert_same_messages(network, messages)
    for p, outcome in outcomes.items():
        np.testing.assert_array_equal(outcome.vector, models[p])
        assert outcome.schema == done.schema
        rounds = [*range(1, setting.chosen.rounds + 1)]
        assert [entry.number for entry in network.nodes[p].noted] == rounds
    for i, p in enumerate(topology.nodes):
        for entry, together in zip(network.nodes[p].noted, done.run.rounds, strict=True):
            np.testing.assert_allclose(entry.disagreement[0], together.disagreement[i], rtol=1e-9)
            np.testing.assert_allclose(entry.change[0], together.change[i], rtol=1e-9)


@pytest.mark.diagonal
@pytest.mark.parametrize("output", ["last", "tail", "neighbours", "network"])
@pytest.mark.parametrize("family", ["path", "star", "complete"])
@pytest.mark.parametrize("rounds", [1, 4, 5])
def test_every_output(build, output, family, rounds):
    setting = small(family, output=output, rounds=rounds)
    outcomes = build(setting).finish()
    models, _, _ = setting.undisturbed
    for p, outcome in outcomes.items():
        np.testing.assert_allclose(
            outcome.vector, models[p], rtol=1e-9 if output == "neighbours" else 0
        )
        node = setting.topology.nodes.index(p) if isinstance(p, str) else p
        whole = spread_of(setting.chosen, node=node)
        np.testing.assert_array_equal(outcome.spread.deviations, whole.deviations)


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("mechanism", [Primal(), Dual(), Dual(split="paper")], ids=str)
def test_storages_and_uneven_schedules(build, census5, storage, mechanism):
    """alpha given by hand, another for each node; rows dense or sparse, whatever the simulation
    stores them as.
    """
    topology = Topology.family("ring", 5)
    tables = census5.tables(topology.nodes)
    made = Setting.planned(
        topology, census5.schema, tables, rounds=3, output="tail", centring=False
    )
    alphas = tuple(0.02 * (i + 1) for i in range(5))
    alike = Plan.of(
        C=2.0,
        rho=0.02,
        eta=0.03,
        rounds=3,
        mechanism=mechanism,
        schedule=per_node(dict(zip(topology.nodes, alphas, strict=True))),
        output="tail",
    )
    messages = {}
    run = simulate(
        [load_shard(census5.schema, tables[p], p) for p in topology.nodes],
        topology,
        alike,
        draws=SeededEntropy(SEED),
        on_round=lambda progress: messages.update(
            {
                (p, progress.number): progress.messages[i, 0].copy()
                for i, p in enumerate(topology.nodes)
            }
        ),
    )
    bound = alike.on(made.chosen.bound)
    assert tuple(replace(event, seeded=False) for event in run.events()) == bound.events
    network = build(replace(made, chosen=bound, storage=storage))
    outcomes = network.finish()
    assert_same_messages(network, messages)
    for i, p in enumerate(topology.nodes):
        np.testing.assert_array_equal(outcomes[p].vector, run.tail[i, 0])


def test_twenty_nodes(build):
    data = census(400, seed=2, nodes=20)
    topology = Topology.family("random_regular", 20, degree=3, seed=1)
    setting = Setting.planned(topology, data.schema, data.tables(topology.nodes), rounds=3)
    network = build(setting)
    outcomes = network.finish()
    models, messages, _ = setting.undisturbed
    assert_same_messages(network, messages)
    assert len({outcome.vector.tobytes() for outcome in outcomes.values()}) == 1
    np.testing.assert_array_equal(outcomes[topology.nodes[0]].vector, models[topology.nodes[0]])


def test_one_node_alone(build):
    setting = small("path", 1, names=("only",))
    outcomes = build(setting).finish()
    np.testing.assert_array_equal(outcomes["only"].vector, setting.undisturbed[0]["only"])


def test_simulations_keep_their_messages_in_a_folder(tmp_path):
    setting = small("path", 1, names=("only",))
    post = Inbox(tmp_path / "letters.sqlite", setting.rules["only"], memory_key("only"))
    outbox = FolderJournal(tmp_path / "messages", ["only"])
    work = node_rounds(
        setting.part("only"),
        setting.tables["only"],
        post,
        lambda *_: None,
        outbox,
        SeededEntropy(SEED),
    )
    with pytest.raises(StopIteration) as end:
        next(work)
    np.testing.assert_array_equal(end.value.value.vector, setting.undisturbed[0]["only"])
    assert not (tmp_path / "messages").exists()
    post.close()


# --------------------------------------------------------------------------------------------------
# the order


def test_spend_then_keep_then_send_then_wait(build):
    """Round after round, and never a draw twice."""
    network = build(small("path", 2, names=("a", "b"), rounds=2))
    network.finish()
    for node in network.nodes.values():
        first = [
            ("drawn", 0),
            "computed",
            "spent",
            "kept",
            ("sent", "message", 0),
            "published",
            "received",
        ]
        rounds = [
            event
            for n in (1, 2)
            for event in (
                ("drawn", n),
                "computed",
                "spent",
                "kept",
                ("sent", "message", n),
                "published",
                "received",
                "noted",
            )
        ]
        last = ["kept", ("sent", "mean", 2), "published", "received", "closed"]
        assert node.events == first + rounds + last


@pytest.mark.diagonal
@pytest.mark.parametrize("mechanism", ["primal", "dual", ITERATE, *SUMS], ids=str)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_of_any_round(build, point, mechanism):
    """Each node dies at the first, second, ... time that it comes to the point, in turn, and starts
    again: the run is the same.

    After a crash the solver begins where the last message was, not where the last minimiser was.
    Its answers then differ by what gamma allows, which the grid, some 10^6 times as coarse, hides:
    messages stay the same to the last bit.

    With augment = "iterate" a node goes on from its own minimiser, which it keeps beside its ledger
    for as long as the run lasts."""
    setting = small(mechanism=mechanism)
    network = build(setting)
    crashes = kept = 0
    for _ in range(400):
        for i, node in enumerate(network.nodes.values()):
            if not node.up:
                node.start()
            before = len(node.events)
            node.plugged = point if node.starts <= 6 and (crashes + i) % 3 else None
            if node.ready:
                node.step()
            crashes += not node.up
            assert len(node.events) >= before
            assert {path.stat().st_mode & 0o777 for path in private_files(node)} <= {0o600}
            kept = max(kept, len(private_files(node)))
        while network.on_the_way:
            network.deliver()
        for node in network.nodes.values():
            network.ask(node)
        if all(node.result is not None for node in network.nodes.values()):
            break
    outcomes = network.finish()
    assert crashes >= 3
    sealed = isinstance(mechanism, Sealed)
    assert kept == (2 if mechanism == ITERATE else int(sealed))  # a key, for as long as the run
    assert not any(private_files(node) for node in network.nodes.values())
    models, messages, _ = setting.undisturbed
    assert_same_messages(network, messages)
    for p, outcome in outcomes.items():
        np.testing.assert_array_equal(outcome.vector, models[p])


def test_a_finished_node_that_starts_again_sends_nothing_new_and_finds_the_same_model(build):
    setting = small()
    network = build(setting)
    before = network.finish()
    entered = {p: node.spends() for p, node in network.nodes.items()}
    for node in network.nodes.values():
        node.stop()
        node.result = None
        node.events.clear()
    network.on_the_way.clear()
    after = network.finish()
    for p, node in network.nodes.items():
        np.testing.assert_array_equal(after[p].vector, before[p].vector)
        assert node.spends() == entered[p]
        assert not any(
            event in ("computed", "spent", "published") or event[0] in ("drawn", "sent")
            for event in node.events
        )


def test_all_letters_lost_everywhere(build):
    """Ledgers alone bring the run back: own letters are made again with the same bytes, and
    neighbours hand them over.
    """
    setting = small()
    network = build(setting)
    before = network.finish()
    for node in network.nodes.values():
        node.stop()
        node.result = None
        node.letters_path.unlink()
    after = network.finish(deliver=False)  # and by asking alone
    for p in network.nodes:
        np.testing.assert_array_equal(after[p].vector, before[p].vector)


def test_rows_of_another_number_than_declared_are_refused_before_training(build):
    """Noise is made for C/B_p: a file that was exchanged after B_p was checked would not be
    protected by it.
    """
    setting = small("path", 2, names=("a", "b"), centring=False)
    tables = {
        p: {name: column[:-3] for name, column in table.items()}
        for p, table in setting.tables.items()
    }
    network = build(replace(setting, tables=tables))
    node = network.nodes["a"]
    node.start()
    with pytest.raises(DataError, match="B_p is public and calibrates the noise"):
        node.step()
    assert node.spends() == {}


def test_another_plan_is_not_resumed(build):
    network = build(small())
    network.nodes["a/b"].start()
    network.nodes["a/b"].stop()
    network.nodes["a/b"].setting = small(rounds=5)
    with pytest.raises(BudgetRefused, match="was reserved at node 'a/b' with another plan"):
        network.nodes["a/b"].start()


def test_a_private_vector_that_is_gone_stops_the_node(build):
    """A message in its place would lead to another model, so the node says that it cannot go on."""
    network = build(small(mechanism=ITERATE))
    node = next(iter(network.nodes.values()))
    for n in (1, 2):  # with both its centring letter and its first two rounds
        while node.spends().keys() < set(range(n + 1)):
            for one in network.nodes.values():
                if not one.up:
                    one.start()
                if one.ready:
                    one.step()
            while network.on_the_way:
                network.deliver()
    node.stop()
    assert private_files(node)
    for path in private_files(node):
        path.unlink()
    node.start()
    last = max(node.spends())
    with pytest.raises(DeclarationError, match=f"private vector of round {last} is gone"):
        network.finish()


def test_what_neighbours_may_send_is_told_by_public_numbers():
    """Messages of neighbours and oneself, centring and means of all, and nothing else."""
    setting = small("path", 4)
    first, second, third, fourth = setting.topology.nodes
    grids = setting.part(first).grids()
    assert {(p, n) for p, kind, n in grids if kind == "message"} == {
        *((p, 0) for p in setting.topology.nodes),
        *((p, n) for p in (first, second) for n in range(1, 5)),
    }
    assert {(p, n) for p, kind, n in grids if kind == "mean"} == {
        (p, 4) for p in (first, second, third, fourth)
    }
    assert not any(
        kind == "mean" for _, kind, _ in small("path", 4, output="tail").part(first).grids()
    )
    for i, p in enumerate((first, second)):
        for n, release in enumerate(setting.undisturbed[2].run.noises, 1):
            grid = grids[p, "message", n]
            assert (grid.step, grid.radius) == (release.step[i, 0], release.radius[i, 0])
    for (p, n), message in setting.undisturbed[1].items():
        if (p, "message", n) in grids:
            grid = grids[p, "message", n]
            assert message.size == grid.dimension
            np.testing.assert_array_equal(message % grid.step, 0)


# --------------------------------------------------------------------------------------------------
# whatever happens

HOSTILE = (
    "garbage",
    "NaN",
    "huge",
    "off",
    "forged",
    "other run",
    "other round",
    "other name",
    "second",
    "cut",
)


def sum_model(chosen, messages):
    """The model of algorithm "sum", from messages alone, as maths.md 12 says."""
    steps, nodes, d = chosen.steps, chosen.bound.nodes, chosen.bound.dimension
    weights = dict(zip(nodes, steps.node_weights, strict=True))
    n = np.dot(steps.node_weights, chosen.bound.counts)
    z, v, inverse, points = np.zeros(d), np.zeros(d), None, []
    for t in range(1, chosen.rounds + 1):
        if chosen.sealing:
            noise = chosen.release_plan.noises[t - 1]
            words = sum(messages[p, t].view(np.uint64) for p in nodes)
            total = words.view(np.int64) * noise.step[0, 0] / n
        else:
            total = sum(weights[p] * messages[p, t] for p in nodes) / n
        if chosen.mechanism.second_moment and t == 1:
            A = np.zeros((d, d))
            A[np.triu_indices(d, 1)] = total[d:]
            values, U = np.linalg.eigh(A + A.T + np.diag(total[:d]))
            A = U @ np.diag(np.maximum(values, 0)) @ U.T
            inverse = np.linalg.inv(steps.curvature * A + steps.pull * np.eye(d))
            continue
        if inverse is None:
            v = steps.momentum * v - (1 - steps.momentum) * total / steps.pull
        else:
            v = -inverse @ total
        z = np.rint((z + v) * 2**24) / 2**24
        points.append(z)
    return points[-1] if chosen.output == "last" else np.mean(points[len(points) // 2 :], axis=0)


class Trouble(RuleBasedStateMachine):
    """Four nodes; letters that come late, twice, or never; crashes anywhere; liars; lost files."""

    settings_: ClassVar = [
        ("path", "primal", "network", True),
        ("star", "dual", "neighbours", False),
        ("ring", "primal", "tail", True),
        ("path", "sum", "network", True),
        ("ring", Sum(second_moment=True), "last", False),
        ("path", SEALED, "network", True),
        ("ring", replace(SEALED, second_moment=True), "last", False),
    ]

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = self.stack.enter_context(memory())
        self.network = None

    @initialize(which=st.sampled_from(range(7)), fresh=st.booleans())
    def begin(self, which, fresh):
        family, mechanism, output, centring = self.settings_[which]
        self.setting = small(
            family, mechanism=mechanism, output=output, centring=centring, rounds=4
        )
        self.fresh = fresh
        self.network = Network(self.setting, self.folder, fresh=fresh)
        self.names = self.setting.topology.nodes
        for node in self.network.nodes.values():
            node.start()

    def node(self, i):
        return self.network.nodes[self.names[i]]

    def everybody(self):
        for node in self.network.nodes.values():
            if node.ready:
                node.step()
            self.network.ask(node)

    @rule(i=st.integers(0, 3), pull=st.booleans())
    def step(self, i, pull):
        node = self.node(i)
        if pull:
            self.network.ask(node)
        if node.ready:
            node.step()

    @rule()
    def everybody_goes_on(self):
        self.everybody()

    @precondition(lambda self: self.network.on_the_way)
    @rule(k=st.integers(0, 10**6), what=st.sampled_from(("deliver", "deliver", "drop", "double")))
    def letter(self, k, what):
        k %= len(self.network.on_the_way)
        if what == "double":
            self.network.on_the_way.append(self.network.on_the_way[k])
        if what == "drop":
            self.network.on_the_way.pop(k)
        else:
            self.network.deliver(k)

    @rule(
        i=st.integers(0, 3), point=st.sampled_from(POINTS), lose=st.booleans(), again=st.booleans()
    )
    def die(self, i, point, lose, again):
        """At this point, now or whenever it comes there; perhaps with the loss of all letters,
        perhaps back at once.
        """
        node = self.node(i)
        self.start(i, False)
        node.plugged = point
        for _ in range(20 if point == "closed" else 3):
            if node.up and node.result is None:
                self.everybody()
        if again:
            self.start(i, lose)

    @rule(i=st.integers(0, 3))
    def crash(self, i):
        self.node(i).stop()

    @rule(i=st.integers(0, 3), lose=st.booleans())
    def start(self, i, lose):
        """A node that is down, or done and started again."""
        node = self.node(i)
        if node.result is not None:
            node.stop()
        if not node.up:
            if lose:
                for path in node.folder.glob("letters.sqlite*"):
                    path.unlink()
            node.result = None
            node.start()

    @rule(i=st.integers(0, 3), k=st.integers(0, 3), n=st.integers(0, 4))
    def lie(self, i, k, n):
        """A neighbour lies in every way it can: it is refused and counted, and nothing else
        happens.
        """
        node = self.node(i)
        via = node.run.neighbours[k % len(node.run.neighbours)]
        for how in HOSTILE if node.up else ():
            data = self.lied(node, via, how, n)
            if data is not None:
                before, refused = self.letters(node), sum(node.inbox.rejected.values())
                with pytest.raises(Rejected):
                    node.offer(data, via)
                assert self.letters(node) == before
                assert sum(node.inbox.rejected.values()) == refused + 1

    def lied(self, node, via, how, n):
        rules = self.setting.rules[node.me]
        kind = "sum" if n and self.setting.chosen.steps else "message"
        if self.setting.chosen.sealing:
            kind = "sealed"
        grid = rules.grids.get((via, kind, n))
        if grid is None or how == "garbage":
            return b"DYDP" + bytes(range(200))
        body = np.zeros(grid.dimension)
        body[0] = {
            "NaN": np.nan,
            "huge": 4 * grid.radius,
            "off": grid.step / 2,
            "second": 3 * (grid.step or 1),
        }.get(how, grid.step or 1)
        if kind == "sealed" and how in ("NaN", "huge", "off"):
            how = "second"  # any 64 bits may be a letter
        letter = Letter(kind, rules.run, rules.config, via, n, body.tobytes())
        true = self.network.seen.get((via, kind, n))
        if how == "forged":
            return letter.sealed(memory_key(node.me))
        if how == "other run":
            return replace(letter, run=run_id("yesterday")).sealed(memory_key(via))
        if how == "other round":
            return replace(letter, round=5 + n).sealed(memory_key(via))
        if how == "other name":
            third = next(p for p in self.names if p not in (via, node.me))
            # whoever hands on a sum cannot make one
            signer = via if kind in ("sum", "sealed") else third
            return replace(letter, author=third, round=max(n, 1)).sealed(memory_key(signer))
        if how == "second" and node.inbox.get(via, kind, n) is None:
            return None  # the first would be believed: liars may spoil a model
        if how == "cut":
            return None if true is None else true[: len(true) - 1 - n]
        return letter.sealed(memory_key(via))

    def letters(self, node):
        return node.inbox._connection.execute(
            "SELECT author, kind, round, content FROM letter"
        ).fetchall()

    @invariant()
    def no_two_letters_for_a_round(self):
        for node in self.network.nodes.values() if self.network else ():
            if node.up:
                for *_, data in self.letters(node):
                    self.network.see(data)

    @invariant()
    def nothing_is_spent_that_was_not_reserved(self):
        for node in self.network.nodes.values() if self.network else ():
            if node.up:
                spent, rounds = Counter(node.ledger.spent()), self.setting.chosen.rounds
                assert spent <= Counter(
                    event for event in self.setting.chosen.events if event.node == node.me
                )
                assert node.ledger.rounds(RUN) == sorted(
                    set(node.ledger.rounds(RUN)) & set(range(rounds + 1))
                )

    def teardown(self):
        try:
            if self.network is not None:
                self.to_the_end()
        finally:
            if self.network is not None:
                self.network.close()
            self.stack.close()

    def to_the_end(self):
        """Ledgers and letters tell the same, and the model is that of the undisturbed run, or with
        fresh noise of its own.
        """
        setting, network = self.setting, self.network
        outcomes = network.finish(deliver=False)
        entered = {}
        for p, node in network.nodes.items():
            spends = node.spends()
            assert sorted(spends) == list(
                range(0 if setting.chosen.centrings else 1, setting.chosen.rounds + 1)
            )
            entered.update({(p, n): message for n, message in spends.items()})
            with Ledger.open(node.ledger_path, read_only=True) as ledger:
                assert ledger.is_closed(RUN)
                assert (
                    ledger.spent()
                    == ledger.counted()
                    == [e for e in setting.chosen.events if e.node == p]
                )
                assert ledger.cap.admits([], ledger.spent()) is not None
        signed = {
            (p, n): verify(data, setting.rules[p].keys).body
            for (p, kind, n), data in network.seen.items()
            if kind in ("message", "sum", "sealed")
        }
        assert signed == entered
        messages = {key: np.frombuffer(message, "<f8") for key, message in entered.items()}
        models = self.models(messages)
        for p, outcome in outcomes.items():
            np.testing.assert_allclose(outcome.vector, models[p], rtol=1e-9, atol=1e-15)
        if not self.fresh:
            models, expected, _ = setting.undisturbed
            if setting.chosen.sealing:
                messages, expected = sealed_sums(messages), sealed_sums(expected)
            for key, message in expected.items():
                np.testing.assert_array_equal(messages[key], message, err_msg=str(key))
            for p, outcome in outcomes.items():
                np.testing.assert_allclose(outcome.vector, models[p], rtol=1e-9, atol=1e-15)

    def models(self, messages):
        """From messages alone, as the definitions say."""
        nodes, T, output = self.names, self.setting.chosen.rounds, self.setting.chosen.output
        if self.setting.chosen.steps:
            return dict.fromkeys(nodes, sum_model(self.setting.chosen, messages))
        tails = {
            p: np.mean([messages[p, n] for n in range(T // 2 + 1, T + 1)], axis=0) for p in nodes
        }
        if output == "tail":
            return tails
        if output == "neighbours":
            return {
                p: np.mean(
                    [tails[p], *(tails[j] for j in self.network.nodes[p].run.neighbours)], axis=0
                )
                for p in nodes
            }
        return dict.fromkeys(nodes, np.mean(list(tails.values()), axis=0))


TestTrouble = Trouble.TestCase
TestTrouble.settings = settings(max_examples=15, stateful_step_count=50, deadline=None)


class LongTrouble(Trouble):
    """More of it."""


TestLongTrouble = pytest.mark.slow(LongTrouble.TestCase)
TestLongTrouble.settings = settings(max_examples=120, stateful_step_count=100, deadline=None)


# --------------------------------------------------------------------------------------------------
# liars and clones


def test_means_and_centres_travel_where_their_authors_do_not(build):
    """On a path the ends never meet, and still have all letters that are for all, with their
    authors' signatures.
    """
    setting = small("path", 4)
    network = build(setting)
    network.finish()
    first, *_, last = setting.topology.nodes
    for kind, n in (("message", 0), ("mean", 4)):
        data = network.nodes[first].inbox.get(last, kind, n)
        assert verify(data, setting.rules[first].keys).author == last
        assert data == network.nodes[last].inbox.get(last, kind, n)
    assert network.nodes[first].inbox.get(last, "message", 1) is None


def rolled_back(network, me):
    """The ledger as it was two rounds ago."""
    node = network.nodes[me]
    kept = node.folder / "backup"
    for _ in range(400):
        if len(node.spends()) == 2 and not kept.exists():
            shutil.copy(node.ledger_path, kept)
        if len(node.spends()) == 4:
            break
        for other in network.nodes.values():
            if not other.up:
                other.start()
            if other.ready:
                other.step()
        for other in network.nodes.values():
            network.ask(other)
    node.stop()
    shutil.copy(kept, node.ledger_path)
    anchor_file(node.ledger_path).unlink()  # which would tell, and is lost too
    return node


def test_a_rolled_back_ledger_meets_its_own_letters(build):
    """The second draw is entered, but no letter can be made of it: the first one is there."""
    network = build(small(), fresh=True)
    node = rolled_back(network, "a/b")
    node.start()
    with pytest.raises(Rejected, match="a second letter of a/b"):
        network.finish()
    sent = Counter(event for event in node.events if event[0] == "sent")
    assert max(sent.values()) == 1


def greetings(node):
    def known(n):
        return node.ledger.message(RUN, n)

    return Greetings(node.inbox, {"run": "trial"}, known)


def last_of(greeting):
    told = json.loads(verify(greeting, small().rules["a/b"].keys).body)["last"]
    return None if told is None else base64.b64decode(told)


def test_a_rolled_back_ledger_is_caught_before_it_draws(build):
    """Also where the node's letters are gone: its neighbours return what it signed."""
    network = build(small(), fresh=True)
    node = rolled_back(network, "a/b")
    for path in node.folder.glob("letters.sqlite*"):
        path.unlink()
    node.start()
    caught = 0
    for j in node.run.neighbours:
        last = last_of(greetings(network.nodes[j]).write("a/b"))
        with pytest.raises(
            LedgerDamaged,
            match=r"holds a message of round [23] with this node's signature that its ledger does",
        ) as found:
            greetings(node).require_known(j, greetings(node).own(last))
        assert "set the cap to epsilon - e and delta - d" in str(
            found.value
        )  # epsilon alone would leave twice delta
        caught += 1
    assert caught == 2
    assert not any(event[0] == "sent" for event in node.events[-1:])


def test_a_sound_ledger_is_believed(build):
    network = build(small())
    network.finish()
    for p, node in network.nodes.items():
        assert last_of(greetings(node).write(None)) is None
        for j in node.run.neighbours:
            last = last_of(greetings(network.nodes[j]).write(p))
            assert verify(last, node.inbox.rules.keys).round == 4
            greetings(node).require_known(j, greetings(node).own(last))


@pytest.mark.parametrize(
    "what", ["garbage", "forged", "a greeting", "a mean", "a farewell", "another run"]
)
def test_a_neighbour_cannot_make_a_ledger_look_rolled_back(build, what):
    """Only a message of this run proves anything; whatever else a liar holds up is refused."""
    network = build(small())
    network.finish()
    node, other = network.nodes["a/b"], network.nodes["n2"]
    rules = node.inbox.rules
    made = Letter("message", rules.run, rules.config, "a/b", 4, b"x" * 8)
    proof = {
        "garbage": b"rubbish",
        "forged": made.sealed(other.inbox.key),
        "a greeting": greetings(node).write(None),
        "a mean": node.inbox.get("a/b", "mean", 4),
        "a farewell": node.inbox.letter("done", 4),
        "another run": replace(made, run=run_id("other")).sealed(node.inbox.key),
    }[what]
    with pytest.raises(Rejected):
        greetings(node).own(proof)
    true = greetings(node).own(made.sealed(node.inbox.key))
    with pytest.raises(LedgerDamaged, match="n2 holds a message of round 4"):
        greetings(node).require_known("n2", true)
    unledgered = replace(greetings(node), known=None)  # a SIMULATION
    unledgered.require_known("n2", true)


@pytest.mark.parametrize("mechanism", ["primal", "dual", *SUMS[:2]], ids=str)
def test_no_letter_that_is_believed_stops_a_node(build, mechanism):
    """Whether a solver reaches gamma depends on rows: where a neighbour's vector decides it,
    stopping is a release too.
    """
    data, topology = census(2000, seed=1, nodes=2), Topology.family("path", 2)
    tables = data.tables(topology.nodes)
    setting = Setting.planned(
        topology, data.schema, tables, rounds=3, mechanism=mechanism, centring=False, output="tail"
    )
    me, liar = topology.nodes
    node = build(setting).nodes[me]
    rules = setting.rules[me]
    node.start()
    while node.result is None:
        node.step()
        if node.awaiting:
            kind = node.awaiting.kind
            grid = rules.grids[liar, kind, node.awaiting.round]
            far = (
                np.floor(grid.radius / np.sqrt(grid.dimension) / grid.step)
                * grid.step
                * np.ones(grid.dimension)
            )
            node.offer(
                Letter(
                    kind, rules.run, rules.config, liar, node.awaiting.round, far.tobytes()
                ).sealed(memory_key(liar)),
                liar,
            )


def test_two_processes_on_one_ledger_send_the_same(build):
    """Both draw, the second to come to the ledger finds the round entered, and sends what was
    entered.
    """
    network = build(small("path", 2, names=("a", "b")), fresh=True)
    node = network.nodes["a"]
    twin = Node(network, "a", fresh=True, starts=5, folder=node.folder / "twin")
    twin.ledger_path = node.ledger_path
    at, met = node.checkpoint, []

    def meanwhile(point):
        at(point)
        if point == "computed" and not met:
            met.append(point)
            twin.start()
            twin.step()
            twin.stop()

    node.checkpoint = meanwhile
    network.finish()
    assert met
    assert ("drawn", 0) in node.events
    assert ("drawn", 0) in twin.events
    assert ("sent", "message", 0) in twin.events  # and Network.see found it to be the same letter


def test_two_machines_under_one_name_are_not_both_believed(build):
    """A clone goes on from a copy of ledger and letters, and draws anew: its neighbours keep what
    came first.
    """
    network, heard = build(small(), fresh=True), []
    node, other = network.nodes["a/b"], network.nodes["n2"]
    for _ in range(3):
        for each in network.nodes.values():
            if not each.up:
                each.start()
            if each.ready:
                each.step()
            network.ask(each)
    node.stop()
    clone = Node(network, "a/b", fresh=True, starts=7, folder=node.folder.parent / "clone")
    clone.publish = lambda data, kind, n: heard.append(data)
    shutil.copy(node.ledger_path, clone.ledger_path)
    shutil.copy(node.letters_path, clone.letters_path)
    network.finish()
    clone.start()
    while clone.result is None:
        clone.step()
        for author in clone.missing if clone.awaiting else ():
            clone.offer(
                network.seen[author, clone.awaiting.kind, clone.awaiting.round],
                author if author == other.me else "St. Mary's Köln",
            )
    clone.stop()
    theirs = [data for data in heard if data not in network.seen.values()]
    assert len(theirs) >= 2
    for data in theirs:
        with pytest.raises(Rejected, match="a second letter of a/b"):
            other.inbox.offer(data, "a/b")


# --------------------------------------------------------------------------------------------------
# real links


def model_bytes(folder):
    return [(folder / f"out-{p}" / "model.json").read_bytes() for p in "ab"]


@pytest.mark.parametrize("letters", ["kept", "lost"])
def test_a_silo_whose_ledger_was_restored_from_an_old_copy_does_not_start(pair, letters):
    for p in "ab":
        with Ledger.create(pair / f"{p}.ledger", p, **STAMP) as ledger:
            ledger.set_cap(Cap.of(1.001, 1e-5), **STAMP)
        (pair / f"{p}.toml").write_text(
            (pair / f"{p}.toml").read_text() + f'ledger = "{p}.ledger"\n'
        )
    noted = []

    def die(point):
        if point == "noted":
            noted.append(point)
            if len(noted) == 3:
                shutil.copy(pair / "a.ledger", pair / "old")
        if point == "closed":
            raise Plug

    assert isinstance(go(pair, a=die)["a"], Plug)
    shutil.copy(pair / "a.ledger", pair / "new")
    shutil.copy(pair / "old", pair / "a.ledger")
    anchor_file(pair / "a.ledger").unlink()  # which would tell, and is lost too
    if letters == "lost":
        shutil.rmtree(pair / "out-a")
    ends = go(pair)
    assert isinstance(ends["a"], LedgerDamaged)
    assert "holds a message of round 20 with this node's signature" in str(ends["a"])
    assert (pair / "a.ledger").read_bytes() == (
        pair / "old"
    ).read_bytes()  # nothing was drawn or entered
    shutil.copy(pair / "new", pair / "a.ledger")
    assert go(pair) == {"a": "finished", "b": "finished"}
    a, b = (json.loads(content) for content in model_bytes(pair))
    assert a == b


def test_a_simulation_that_ended_between_its_last_round_and_its_model(pair):
    """Its messages are gone then, and it has no ledger: it makes the same ones again."""
    (pair / "run.toml").write_text((pair / "run.toml").read_text() + "seed = 3\n")

    def die(point):
        if point == "closed":
            raise Plug

    ends = go(pair, a=die)
    assert isinstance(ends["a"], Plug)
    assert not (pair / "out-a" / "model.json").exists()
    assert go(pair) == {"a": "finished", "b": "finished"}
    a, b = (json.loads(content) for content in model_bytes(pair))
    assert a == b


def test_silos_that_differ_are_told_where(pair):
    text = (pair / "run.toml").read_text()
    (pair / "other.toml").write_text(text.replace("epsilon = 1.0", "epsilon = 0.9") + "seed = 3\n")
    (pair / "run.toml").write_text(text + "seed = 3\n")
    (pair / "b.toml").write_text((pair / "b.toml").read_text().replace("run.toml", "other.toml"))
    ends = go(pair)
    refused = [str(error) for error in ends.values() if isinstance(error, ConfigError)]
    assert refused
    for told in refused:
        assert "do not run the same configuration; they differ in" in told
        assert "privacy.epsilon: " in told
        assert "seed" not in told
    assert not any((pair / f"out-{p}" / "model.json").exists() for p in "ab")


# --------------------------------------------------------------------------------------------------
# agreement


def test_differences_are_named_field_by_field():
    mine = {
        "run": {"name": "x", "seed": None},
        "nodes": {"a": {"rows": 10}, "b": {"rows": 20}},
        "edges": [["a", "b"], ["b", "c"]],
    }
    theirs = json.loads(json.dumps(mine))
    assert differences(mine, theirs) == []
    theirs["nodes"]["b"]["rows"] = 21
    theirs["run"]["name"] = "y"
    theirs["edges"][1][1] = "d"
    theirs["new"] = 1
    del theirs["nodes"]["a"]
    assert differences(mine, theirs) == [
        "edges[1][1]: 'c' here, 'd' there",
        "new: None here, 1 there",
        "nodes.a: {'rows': 10} here, None there",
        "nodes.b.rows: 20 here, 21 there",
        "run.name: 'x' here, 'y' there",
    ]
    assert differences([1], [1, 2], "edges") == ["edges: [1] here, [1, 2] there"]
    assert differences({"a": 1}, 3, "x") == ["x: {'a': 1} here, 3 there"]
