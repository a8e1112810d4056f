"""Networks in memory whose nodes have real ledgers, and die where a test wants it.

Noise is keyed, so that runs can be compared, and says that it is not, since ledgers take no seeded
release; fresh noise differs with every start of a node, as the system's does.
"""

import contextlib
import functools
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dynadp.consensus.absence import Absence
from dynadp.consensus.topology import Topology
from dynadp.data.schema import Schema
from dynadp.data.survey import count
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.letters import verify
from dynadp.engines.memory import MemoryNetwork, MemoryNode, memory_rules
from dynadp.engines.node import NodeRun
from dynadp.errors import Rejected
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import Constants, plan
from dynadp.planning.plans import Plan
from dynadp.planning.sums import SumConstants
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.training import train

EPSILON, DELTA, SEED = 2.0, 1e-5, 7
STAMP = {"who": "test", "at": "2026-03-01T12:00:00+00:00"}
RUN = "trial 0123456789abcdef"
WAITS = Absence()


class Plug(BaseException):
    """The process is gone."""


# --------------------------------------------------------------------------------------------------
# the network


@dataclass(frozen=True)
class Setting:
    """What is public about a run, and everybody's rows."""

    topology: Topology
    schema: Schema
    tables: dict
    chosen: Plan
    storage: str = "auto"
    exchange: object = None  # from a node to what stands for its letters
    absence: Absence = WAITS

    @classmethod
    def planned(
        cls,
        topology,
        schema,
        tables,
        rounds=4,
        output="network",
        mechanism="primal",
        centring=True,
        **more,
    ):
        counts = [count(schema, tables[p]) for p in topology.nodes]
        features = schema.feature_count
        sums = isinstance(mechanism, Sum) or mechanism == "sum"
        lengths = {"rounds": rounds, "moment_rounds": rounds}
        made = plan(
            counts,
            topology,
            schema.dimension,
            epsilon=EPSILON,
            delta=DELTA,
            mechanism=mechanism,
            centring=centring,
            features=features,
            constants=SumConstants(**lengths) if sums else Constants(rounds=rounds),
        )
        return cls(topology, schema, tables, replace(made, output=output), **more)

    @property
    def senders(self):
        return [self.topology.nodes[p] for p in self.chosen.senders]

    def part(self, me):
        return NodeRun(me, self.schema, self.chosen, self.absence)

    @functools.cached_property
    def rules(self):
        return memory_rules(self.schema, self.chosen, self.absence)

    def trained(self, draws):
        """Everybody's model and messages, (node, round): vector, in one process."""
        messages = {}

        def keep(progress):
            messages.update(
                {
                    (p, progress.number): v[0].copy()
                    for p, v in zip(self.senders, progress.messages, strict=True)
                }
            )

        done = train(
            self.schema, self.tables, self.topology, self.chosen, draws=draws, on_round=keep
        )
        if done.centring is not None:
            messages.update(
                {(p, 0): v for p, v in zip(self.senders, done.centring.messages, strict=True)}
            )
        models = dict(
            zip(self.topology.nodes, done.run.models(self.chosen.output)[:, 0], strict=True)
        )
        return models, messages, done

    @functools.cached_property
    def undisturbed(self):
        return self.trained(SeededEntropy(SEED))


class Node(MemoryNode):
    """One silo with its ledger; ``plugged`` is the point at which its process dies next."""

    def __init__(self, network, me, seed=SEED, fresh=False, starts=0, folder=None):
        super().__init__(network, me)
        self.folder = folder or self.folder
        self.folder.mkdir(exist_ok=True)
        self.setting, self.plugged, self.starts = network.setting, None, starts
        self.seed, self.fresh = seed, fresh  # whether noise differs with every start
        self.noted, self.events = [], []  # progress, and everything that happened, in order
        self.ledger_path, self.letters_path = self.folder / "ledger", self.folder / "letters.sqlite"
        with Ledger.create(self.ledger_path, self.me, anchor=self.anchor, **STAMP) as ledger:
            ledger.set_cap(Cap.of(EPSILON * 1.0001, DELTA), **STAMP)

    @property
    def anchor(self):
        """Where the ledger's anchor is; where that is usual."""

    def open_journal(self):
        journal = LedgerJournal(
            {self.me: self.ledger},
            RUN,
            dataset="rows",
            who="test",
            clock=lambda: STAMP["at"],
            resume=True,
        )
        events = self.setting.chosen.events
        journal.reserve([event for event in events if event.node == self.me])
        return journal

    def open_draws(self):
        return Witness(self)

    def start(self):
        self.starts += 1
        self.noted.clear()
        self.ledger = Ledger.open(self.ledger_path, anchor=self.anchor)
        super().start()

    def stop(self):
        if self.up:
            self.ledger.close()
        super().stop()

    def checkpoint(self, point):
        self.events.append(point)
        if self.plugged == point:
            self.plugged = None
            raise Plug(point)

    def on_round(self, progress):
        if self.me in self.setting.senders:
            width = self.setting.chosen.release_plan.width(progress.number)
            sent = progress.messages.shape == (1, 1, width)
            assert sent or (progress.messages.size == 0 and self.absence_of(progress.number))
        assert progress.points.shape == (1, 1, self.setting.schema.dimension)
        self.noted.append(progress)
        self.checkpoint("noted")

    def on_again(self):
        self.noted.clear()

    def absence_of(self, n):
        """Whether the run may have gone on without this node in round n."""
        return self.setting.absence.goes_on and self.inbox.decision(n) is not None

    def publish(self, data, kind, n, author=None):
        """Nothing leaves that was not entered; a mean is one of what was entered."""
        if author not in (None, self.me):  # another's, handed on
            return super().publish(data, kind, n, author)
        self.events.append(("sent", kind, n))
        letter = verify(data, self.inbox.rules.keys)
        assert (letter.author, letter.kind, letter.round) == (self.me, kind, n)
        if kind in ("message", "sum", "sealed"):
            assert self.ledger.message(RUN, n) == letter.body
        elif kind == "key":
            assert len(letter.body) == 32
        elif kind in ("join", "welcome"):
            assert not letter.body
        elif kind in ("without", "held", "back"):
            assert self.inbox.get(self.me, kind, n) == data
        else:
            rounds = self.setting.chosen.rounds
            entered = [
                np.frombuffer(message, "<f8")
                for i in range(rounds // 2 + 1, rounds + 1)
                if (message := self.ledger.message(RUN, i)) is not None
            ]
            np.testing.assert_allclose(
                letter.values, np.mean(entered, axis=0), rtol=1e-12, atol=1e-300
            )
        return super().publish(data, kind, n)

    def step(self):
        """Until it wants letters, or is done, or dies."""
        with contextlib.suppress(Plug):
            super().step()
            return
        self.stop()

    def give_up(self, *away):
        """As long as a node waited, it may die when it goes on."""
        with contextlib.suppress(Plug):
            super().give_up(*away)
            return
        self.stop()

    def spends(self):
        with Ledger.open(self.ledger_path, read_only=True) as ledger:
            return {n: ledger.message(RUN, n) for n in ledger.rounds(RUN)}


class Witness(SeededEntropy):
    """Noise that fails the test where it is drawn for a round that is entered already."""

    seeded = False

    def __init__(self, node):
        super().__init__(node.seed + node.starts * 1000 * node.fresh)
        self.node = node

    def generator(self, purpose, node, round_, replica=0):
        assert node == self.node.me
        assert self.node.ledger.message(RUN, round_) is None, (
            f"a second draw for round {round_}, which is entered"
        )
        self.node.events.append(("drawn", round_))
        return super().generator(purpose, node, round_, replica)


class Network(MemoryNetwork):
    """All nodes, and every letter that was ever sent."""

    def __init__(self, setting, folder, kind=None, **node):
        self.setting, self.seen, self.forgetful = setting, {}, set()
        super().__init__(
            setting.schema,
            setting.chosen,
            setting.tables,
            folder,
            SeededEntropy(SEED),
            exchange=setting.exchange,
            node=functools.partial(kind or Node, **node),
            storage=setting.storage,
            absence=setting.absence,
        )

    def send(self, via, data):
        self.see(data)
        super().send(via, data)

    def deliver(self, k=0):
        try:
            super().deliver(k)
        except Rejected:
            if not self.forgetful:
                raise

    def see(self, data):
        """Never two letters of one node, kind and round, anywhere; but for answers, which hold no
        vector, of a node that lost its file of letters.
        """
        letter = verify(data, next(iter(self.rules.values())).keys)
        if letter.kind == "welcome" and letter.author in self.forgetful:
            return
        assert self.seen.setdefault((letter.author, letter.kind, letter.round), data) == data

    def steps(self):
        """Everybody starts who is down, and goes on who can."""
        for node in self.nodes.values():
            if not node.up:
                node.start()
            if node.ready:
                node.step()

    def finish(self, deliver=True):
        """To the end, with nobody plugged; without deliveries all letters must be asked for."""
        for node in self.nodes.values():
            node.plugged = None
        if not deliver:
            self.deliver = self.on_the_way.clear
        return super().finish()


@contextlib.contextmanager
def memory():
    """A folder that needs no disk where there is one: thousands of entries are made durable here,
    one by one.
    """
    with tempfile.TemporaryDirectory(
        prefix="dynadp-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as folder:
        yield Path(folder)


def private_files(node):
    return sorted(node.folder.glob("*-own-*"))


def messages_of(network):
    return {
        (p, n): np.frombuffer(m, "<f8")
        for p, node in network.nodes.items()
        for n, m in node.spends().items()
    }


def sealed_sums(messages):
    """What sealed letters add up to, round by round: masks differ from run to run."""
    sums = {}
    for (_, n), letter in messages.items():
        words = np.ascontiguousarray(letter).view(np.uint64)
        sums["all", n] = sums.get(("all", n), np.uint64(0)) + words
    return sums


def assert_same_messages(network, expected):
    found = messages_of(network)
    assert found.keys() == expected.keys()
    if network.plan.sealing:
        found, expected = sealed_sums(found), sealed_sums(expected)
    for key, message in expected.items():
        np.testing.assert_array_equal(found[key], message, err_msg=str(key))


# --------------------------------------------------------------------------------------------------
# settings

SMALL = Schema.model_validate(
    {
        "columns": [
            {"kind": "numeric", "name": "age", "low": 0, "high": 100},
            {"kind": "categorical", "name": "sex", "values": ["f", "m"]},
        ],
        "label": {"name": "ill", "negative": 0, "positive": 1},
    }
)


def small_tables(nodes, rows=30):
    tables = {}
    for i, p in enumerate(nodes):
        rng = np.random.default_rng(i)
        age = rng.uniform(0, 100, rows + i)
        tables[p] = {
            "age": age,
            "sex": rng.choice(["f", "m"], rows + i),
            "ill": (age + rng.normal(0, 30, rows + i) > 50).astype(int),
        }
    return tables


@functools.cache
def small(family="path", nodes=4, names=None, **more):
    topology = Topology.family(
        family, nodes, **({"probability": 0.5, "seed": 3} if family == "erdos_renyi" else {})
    )
    topology = topology.named(
        names or ["St. Mary's Köln", "a/b", *(f"n{i}" for i in range(2, nodes))]
    )
    return Setting.planned(topology, SMALL, small_tables(topology.nodes), **more)
