"""Networks in memory that go on without nodes that stay away: a driver, and what must hold."""

import json
from collections import Counter

import numpy as np

from dynadp.consensus.absence import Absence
from dynadp.engines.letters import verify
from dynadp.engines.pasts import Past
from dynadp.engines.settled import SettledSums
from dynadp.errors import LeftBehind, NodeLost, SumSpoiled
from dynadp.mechanisms.sealed import Sealed
from dynadp.privacy.accountant import total
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import partial
from dynadp.runs.released import Sums, letters_of
from support.memory import DELTA, EPSILON, RUN, small

GO_ON = Absence("go on", 1.0)
SEALED = Sealed(honest=2, away=2, spares=3)
KINDS = ("sum", SEALED)
KIND = ("sum", "sealed")
NAMES = ("a", "b", "c", "d", "e")
POINTS = ("computed", "spent", "kept", "published", "received", "noted", "signed")


def setting(mechanism="sum", family="complete", nodes=5, rounds=4, absence=GO_ON, **more):
    names = NAMES[:nodes]
    return small(family, nodes, names, mechanism=mechanism, rounds=rounds, absence=absence, **more)


class Drive:
    """Steps, deliveries and lost patience, until every node has ended one way or another."""

    def __init__(self, network):
        self.network, self.ended, self.dead = network, {}, set()
        self.stops, self.most = Counter(), 1000

    def alive(self):
        return [
            node for p, node in self.network.nodes.items() if p not in self.dead | {*self.ended}
        ]

    def attempt(self, node, action):
        """Do something that may end the node's part."""
        try:
            action()
        except (LeftBehind, SumSpoiled) as error:
            self.ended[node.me] = error
        except NodeLost as error:  # it stops, and may be started again
            node.stop()
            node.lost = error
            self.stops[node.me] += 1
            if self.stops[node.me] > self.most:  # too few are left: it would go on stopping
                self.dead.add(node.me)
        else:
            if node.result is not None:
                self.ended[node.me] = node.result

    def advance(self, node):
        if not node.up:
            self.attempt(node, node.start)
        if node.up and node.ready:
            self.attempt(node, node.step)

    def calm(self):
        """Until nothing moves any more."""
        for _ in range(3000):
            before = self.state()
            for node in self.alive():
                self.advance(node)
            while self.network.on_the_way:
                self.deliver(0)
            for node in self.alive():
                if node.up:
                    self.network.ask(node)
            if self.state() == before:
                return
        raise AssertionError("it goes on for ever")

    def deliver(self, k):
        via, to, data = self.network.on_the_way.pop(k)
        node = self.network.nodes[to]
        if node.up and to not in self.dead:
            node.offer(data, via)

    def state(self):
        return [
            (node.me, node.up, node.awaiting, len(node.missing) if node.up else 0)
            for node in self.alive()
        ], len(self.ended)

    def finish(self):
        """To the end: whoever waits in vain loses patience, one after the other."""
        self.stops, self.most = Counter(), 3
        for _ in range(300):
            self.calm()
            waiting = [node for node in self.alive() if node.up]
            if not waiting:
                return self.ended
            for node in waiting:
                if node.up and node.missing:
                    self.attempt(node, node.give_up)
                self.calm()
        raise AssertionError("it goes on for ever")

    def kill(self, name):
        self.network.nodes[name].stop()
        self.dead.add(name)


def line(network, name):
    """What a node has settled, in order: (entry, the past before it, over whom it was)."""
    node, ballots = network.nodes[name], network.rules[name].ballots
    if not node.up:
        node.start()
    inbox, chosen = node.inbox, network.setting.chosen
    past, spares, found, sealed = Past.beginning(ballots.nodes), 0, [], chosen.sealing
    for n in range(0 if chosen.centrings else 1, chosen.rounds + 1):
        entry, over = n, False
        while not over:
            kept, own = inbox.decision(entry), inbox.read(name, "held", entry)
            if kept is not None:
                held = frozenset(json.loads(kept)["held"])
            elif own is not None and ballots.place_of(own) == ballots.place(past):
                held = ballots.unpacked(own.body)
            else:
                return found
            found.append((entry, past, held))
            whole = held == {*past.members}
            kind = "sealed" if sealed else "sum" if entry else "message"
            letters = [inbox.read(q, kind, entry) for q in past.members if q in senders(network)]
            named = [ballots.welcomed(letter) if letter else frozenset() for letter in letters]
            past = past.after(entry, held, frozenset.intersection(*named) if whole else ())
            over = whole or not sealed
            spares += not over
            entry = chosen.rounds + spares
    return found


def senders(network):
    return {*network.setting.senders}


def held(network, name):
    """Over whom a node settled each sum: {entry: members}."""
    return {entry: over for entry, _, over in line(network, name)}


def from_letters(network, name):
    """The model that a node's file of letters makes without the node, and over whom."""
    node, chosen = network.nodes[name], network.setting.chosen
    rules, offices = network.rules[name], [node.letters_path]
    schema = network.setting.schema
    held = letters_of(offices, rules.keys, rules.config)
    settled = SettledSums(chosen, network.setting.absence, rules.config, rules.keys, offices)
    sums = Sums(settled, chosen)
    if chosen.centrings:
        centre = partial._sealed_centre if chosen.sealing else partial._centre
        schema = centre(chosen, network.setting.schema, held, sums)
    vector, rounds, _, _ = partial._point(chosen, held, sums)
    return schema, vector, rounds, sums.members


def as_from_letters(network, done):
    """What everybody took home is what anybody's letters give."""
    for name, result in done.items():
        schema, vector, rounds, members = from_letters(network, name)
        assert rounds == network.setting.chosen.rounds
        np.testing.assert_allclose(vector, result.vector, rtol=1e-9, atol=1e-12)
        assert schema == result.schema
        assert members == (result.members or network.setting.chosen.bound.nodes)


def sound(network, ended):
    """What must hold, whatever happened."""
    chosen = network.setting.chosen
    keys = next(iter(network.rules.values())).keys
    letters = {}
    for node in network.nodes.values():
        if not node.up:
            node.inbox = None
        with Ledger.open(node.ledger_path, read_only=True) as ledger:
            own = Counter(event for event in chosen.events if event.node == node.me)
            assert Counter(ledger.spent()) <= own
            assert total(ledger.spent(), DELTA).epsilon <= EPSILON * 1.0001 or not ledger.spent()
            letters[node.me] = {n: ledger.message(RUN, n) for n in ledger.rounds(RUN)}
    for (author, kind, n), data in network.seen.items():
        if kind in ("sum", "sealed", "message"):
            assert verify(data, keys).body == letters[author][n]
    return one_model(ended)


def one_model(ended, nodes=NAMES):
    """Those who hold each other as members, and those who followed them, hold one model."""
    done = {p: r for p, r in ended.items() if not isinstance(r, Exception)}
    everybody = {*nodes}
    members = {p: {*(r.members or everybody)} for p, r in done.items()}
    for p, mine in done.items():
        for q, theirs in done.items():
            # who followed to the end holds what the members hold
            if q in members[p] and (p in members[q] or p not in members[p]):
                assert members[p] == members[q]
                assert mine.vector.tobytes() == theirs.vector.tobytes()
    return done


def one_membership(network, done):
    """Letters that a node added were all made after the same past, and who has no part in a sum
    released nothing for it.
    """
    sealed, ballots = network.setting.chosen.sealing, next(iter(network.rules.values())).ballots
    for p in done:
        node, spends = network.nodes[p], network.nodes[p].spends()
        without = [entry for entry, past, _ in line(network, p) if p not in past.members]
        for entry, past, over in line(network, p):
            if sealed and over != {*past.members}:
                continue  # discarded: another attempt follows
            kind = "sealed" if sealed else "sum" if entry else "message"
            for q in over & senders(network):
                letter = node.inbox.read(q, kind, entry)
                assert ballots.place_of(letter) == ballots.place(past), (p, q, entry)
        absences = {number for _, past, _ in line(network, p) for number, _ in past.left.values()}
        # at most what it released before it heard that others went on without it
        assert len({*spends} & {*without}) <= len(absences)
