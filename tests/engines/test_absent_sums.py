"""Sums that go on without nodes that stay away: all who remain agree, nothing is drawn twice, and
who finishes with whom holds one model (maths.md 17)."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dynadp.consensus.absence import Absence
from dynadp.consensus.masks import decoded
from dynadp.consensus.round import Releaser
from dynadp.data.loading import load_shard
from dynadp.engines import member_sums
from dynadp.engines.ballots import Ballots
from dynadp.engines.letters import Letter, verify
from dynadp.engines.membership import Membership, least_members
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, LeftBehind, NodeLost, Rejected, SumSpoiled
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning import spread_of
from dynadp.privacy.accountant import total
from dynadp.privacy.ledger.file import Ledger
from support.memory import DELTA, EPSILON, RUN, Network, memory, private_files, small

GO_ON = Absence("go on", 1.0)
SEALED = Sealed(honest=2, away=2, spares=3)
KINDS = ("sum", SEALED)
NAMES = ("a", "b", "c", "d", "e")
POINTS = ("computed", "spent", "kept", "published", "received", "noted", "signed")


def setting(mechanism="sum", family="complete", nodes=5, rounds=4, absence=GO_ON, **more):
    names = NAMES[:nodes]
    return small(family, nodes, names, mechanism=mechanism, rounds=rounds, absence=absence, **more)


@pytest.fixture
def build():
    made = []
    with memory() as folder:

        def build(chosen, **node):
            made.append(Network(chosen, folder / f"network{len(made)}", **node))
            return made[-1]

        yield build
        for network in made:
            network.close()


class Drive:
    """Steps, deliveries and lost patience, until every node has ended one way or another."""

    def __init__(self, network):
        self.network, self.ended, self.dead = network, {}, set()

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
        stops = Counter()
        for _ in range(300):
            self.calm()
            waiting = [node for node in self.alive() if node.up]
            if not waiting:
                return self.ended
            for node in waiting:
                if node.up and node.missing:
                    self.attempt(node, node.give_up)
                    stops[node.me] += not node.up
                self.calm()
                if stops[node.me] > 3:  # too few are left: it would go on stopping
                    self.dead.add(node.me)
                    node.stop()
        raise AssertionError("it goes on for ever")

    def kill(self, name):
        self.network.nodes[name].stop()
        self.dead.add(name)


def held(network, name):
    """Over whom a node holds each sum: {entry: members}."""
    node, ballots = network.nodes[name], network.rules[name].ballots
    if not node.up:
        node.start()
    return {
        letter.round: ballots.unpacked(letter.body)
        for letter in node.inbox.of_kind("held")
        if letter.author == name and letter.round < ballots.entries
    }


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
    done = {p: r for p, r in ended.items() if not isinstance(r, Exception)}
    members = {p: set(r.members or network.setting.topology.nodes) for p, r in done.items()}
    for p, mine in done.items():
        for q, theirs in done.items():
            if p in members[q] and q in members[p]:
                assert members[p] == members[q]
                assert mine.vector.tobytes() == theirs.vector.tobytes()
    return done


def one_membership(network, done):
    """Letters that a node added were all made for the members that it holds the sum over."""
    nodes = network.setting.topology.nodes
    for p in done:
        ballots, before = network.rules[p].ballots, frozenset(nodes)
        spent = {**dict.fromkeys(network.nodes[p].spends())}
        for entry in _order(network, p):
            now = held(network, p)[entry]
            assert now <= before
            if network.setting.chosen.sealing and now != before:
                before = now
                continue  # discarded: another attempt follows
            kind = "sealed" if network.setting.chosen.sealing else "sum" if entry else "message"
            for q in now & {*network.setting.senders}:
                letter = network.nodes[p].inbox.read(q, kind, entry)
                assert ballots.unpacked(letter.note) == before, (p, q, entry)
            before = now
        assert spent


def _order(network, p):
    """The entries of a node's sums, in the order in which they were settled."""
    rounds, entries = network.setting.chosen.rounds, held(network, p)
    spares = iter(sorted(e for e in entries if e > rounds))
    sets = {len(network.setting.topology.nodes)}
    for e in sorted(e for e in entries if e <= rounds):
        yield e
        while len(entries[e]) < min(sets):
            sets.add(len(entries[e]))
            if not network.setting.chosen.sealing or (e := next(spares, None)) is None:
                break
            yield e


# --------------------------------------------------------------------------------------------------
# one node is gone


MORE = [
    pytest.param(mechanism, n, sent, marks=[pytest.mark.slow] if n == 1 or sent else [])
    for mechanism in ("sum", Sum(second_moment=True), SEALED)
    for n in (0, 1, 3)
    for sent in (True, False)
]


@pytest.mark.parametrize(("mechanism", "n", "sent"), MORE, ids=str)
def test_one_of_five_is_gone_for_good(build, mechanism, n, sent):
    """The others finish with one model; sealed, at the price of one spare attempt each."""
    network = build(setting(mechanism))
    drive, victim = Drive(network), network.nodes["c"]
    while n not in victim.spends():
        for node in network.nodes.values():
            if node is victim and _next(victim) == n and not sent:
                victim.plugged = "spent"
            if node.me not in drive.dead:
                drive.advance(node)
            if node is victim and n in victim.spends():
                drive.kill("c")
        while network.on_the_way and "c" not in drive.dead:
            drive.deliver(0)
    done = sound(network, drive.finish())
    assert set(done) == {"a", "b", "d", "e"}
    assert len({result.vector.tobytes() for result in done.values()}) == 1
    assert {result.members for result in done.values()} == {("a", "b", "d", "e")}
    one_membership(network, done)
    rounds = network.setting.chosen.rounds
    for p in done:
        extra = [rounds + 1] if mechanism == SEALED else []
        assert sorted(network.nodes[p].spends()) == [*range(rounds + 1), *extra]
        with Ledger.open(network.nodes[p].ledger_path, read_only=True) as ledger:
            assert ledger.is_closed(RUN)
        assert not private_files(network.nodes[p])
    if mechanism != SEALED:
        np.testing.assert_allclose(done["a"].vector, recomputed(network, "a"), rtol=1e-9)


def _next(node):
    return max(node.spends(), default=-1) + 1


def recomputed(network, name):
    """The model from the members' messages, as maths.md 12 and 17 say."""
    chosen = network.setting.chosen
    steps, nodes, d = chosen.steps, chosen.bound.nodes, chosen.bound.dimension
    weight = dict(zip(nodes, steps.node_weights, strict=True))
    count = dict(zip(nodes, chosen.bound.counts, strict=True))
    z, v, inverse, points = np.zeros(d), np.zeros(d), None, []
    for t, members in sorted(held(network, name).items()):
        if t == 0:
            continue
        n = sum(weight[p] * count[p] for p in members)
        read = network.nodes[name].inbox.read
        G = sum(weight[p] * read(p, "sum", t).values for p in members if weight[p]) / n
        if chosen.mechanism.second_moment and t == 1:
            A = np.zeros((d, d))
            A[np.triu_indices(d, 1)] = G[d:]
            values, U = np.linalg.eigh(A + A.T + np.diag(G[:d]))
            A = U @ np.diag(np.maximum(values, 0)) @ U.T
            inverse = np.linalg.inv(steps.curvature * A + steps.pull * np.eye(d))
            continue
        if inverse is None:
            v = steps.momentum * v - (1 - steps.momentum) * G / steps.pull
        else:
            v = -inverse @ G
        z = np.rint((z + v) * 2**24) / 2**24
        points.append(z)
    return np.mean(points[len(points) // 2 :], axis=0)


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_nobody_away_is_the_run_that_waits(build, mechanism):
    """To the last bit, in what is released and in the model."""
    going, waiting = build(setting(mechanism)), build(setting(mechanism, absence=None))
    done, before = Drive(going).finish(), waiting.finish()
    for p in NAMES:
        assert done[p].vector.tobytes() == before[p].vector.tobytes()
        assert done[p].members == ()
        if mechanism == "sum":
            assert going.nodes[p].spends() == waiting.nodes[p].spends()


def test_without_spares_a_sealed_run_ends_and_is_closed(build):
    network = build(setting(replace(SEALED, spares=0)))
    drive = Drive(network)
    network.nodes["b"].plugged = "spent"
    for node in network.nodes.values():
        drive.advance(node)
    drive.kill("b")
    ended = drive.finish()
    assert set(ended) == {"a", "c", "d", "e"}
    for p, error in ended.items():
        assert isinstance(error, SumSpoiled)
        assert "a node stayed away, and no spare attempt is left" in str(error)
        with Ledger.open(network.nodes[p].ledger_path, read_only=True) as ledger:
            assert ledger.is_closed(RUN)
            assert len(ledger.spent()) <= 1


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_too_few_stop_and_go_on_when_the_others_are_back(build, mechanism):
    """With two of five nobody decides anything, so nobody has to take anything back."""
    network = build(setting(mechanism))
    drive = Drive(network)
    for node in network.nodes.values():
        drive.advance(node)
    for p in ("c", "d", "e"):
        drive.kill(p)
    assert drive.finish() == {}
    for p in ("a", "b"):
        assert "with 2 of 5 nodes; the run needs 3" in str(network.nodes[p].lost)
        assert "loses nothing" in str(network.nodes[p].lost)
    drive.dead.clear()
    done = sound(network, drive.finish())
    assert len(done) == 5
    assert {result.members for result in done.values()} == {()}


def test_a_cut_network_goes_on_on_one_side_at_most(build):
    """On a path the loss of the middle parts the ends; three of seven are too few."""
    names = tuple("abcdefg")
    network = build(
        small("path", 7, names, mechanism="sum", rounds=3, absence=GO_ON, centring=False)
    )
    drive = Drive(network)
    for node in network.nodes.values():
        drive.advance(node)
    drive.kill("d")
    assert drive.finish() == {}
    network = build(
        small("path", 7, names, mechanism="sum", rounds=3, absence=GO_ON, centring=False)
    )
    drive = Drive(network)
    for node in network.nodes.values():
        drive.advance(node)
    drive.kill("c")  # a, b on one side, d to g on the other
    done = sound(network, drive.finish())
    assert set(done) == {"d", "e", "f", "g"}
    assert {result.members for result in done.values()} == {("d", "e", "f", "g")}


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_who_comes_back_late_is_left_behind_and_spends_nothing(build, mechanism):
    network = build(setting(mechanism))
    drive, late = Drive(network), network.nodes["e"]
    for _ in range(2):
        for node in network.nodes.values():
            drive.advance(node)
        while network.on_the_way:
            drive.deliver(0)
    drive.kill("e")
    spent = late.spends()
    drive.finish()
    drive.dead.clear()
    drive.ended.pop("e", None)
    error = drive.finish()["e"]
    assert isinstance(error, LeftBehind)
    assert "agreed to go on without e" in str(error)
    assert late.spends() == spent
    with Ledger.open(late.ledger_path, read_only=True) as ledger:
        assert ledger.is_closed(RUN)
    sound(network, drive.ended)


def test_a_node_whose_letters_are_gone_goes_no_further(build):
    """It does not know any more what it signed."""
    network = build(setting())
    drive, node = Drive(network), network.nodes["a"]
    drive.advance(node)
    node.stop()
    for path in node.folder.glob("letters.sqlite*"):
        path.unlink()
    drive.advance(node)
    assert "is new, and this node has sent letters of this run before" in str(drive.ended["a"])


# --------------------------------------------------------------------------------------------------
# whatever happens


def trouble(network, seed, steps=150):
    """Letters late, twice or never; crashes anywhere; nodes that stay away; lost patience."""
    rng, drive = random.Random(seed), Drive(network)
    gone = rng.sample(NAMES, rng.choice((0, 1, 1, 2)))
    actions = ("deliver",) * 8 + ("step",) * 8 + ("ask",) * 3 + ("drop", "double", "crash", "die")
    actions += ("impatient", "gone", "back")
    impatience = rng.choice((0.0, 0.2, 1.0))
    for _ in range(steps):
        alive = drive.alive()
        if not alive:
            break
        node, action = rng.choice(alive), rng.choice(actions)
        if action in ("deliver", "drop", "double") and network.on_the_way:
            k = rng.randrange(len(network.on_the_way))
            if action == "double":
                network.on_the_way.append(network.on_the_way[k])
            if action == "drop":
                network.on_the_way.pop(k)
            else:
                drive.deliver(k)
        elif action == "step":
            drive.advance(node)
        elif action == "ask" and node.up:
            network.ask(node)
        elif action == "crash":
            node.stop()
        elif action == "die":
            node.plugged = rng.choice(POINTS)
        elif action == "impatient" and node.up and node.missing and rng.random() < impatience:
            drive.attempt(node, node.give_up)
        elif action == "gone" and gone and rng.random() < 0.3:
            drive.kill(gone.pop())
        elif action == "back" and drive.dead and rng.random() < 0.3:
            drive.dead.discard(rng.choice(sorted(drive.dead)))
    for node in network.nodes.values():
        node.plugged = None
    return drive


def schedule(kind, seed, steps=150):
    """One random schedule; returns how it ended."""
    family = ("complete", "ring", "star")[seed % 3]
    with memory() as folder:
        network = Network(setting(kind, family, rounds=2), folder, fresh=bool(seed % 2))
        try:
            ended = trouble(network, seed, steps).finish()
            done = sound(network, ended)
            one_membership(network, done)
            return tuple(sorted(type(one).__name__ for one in ended.values()))
        finally:
            network.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_random_schedules(kind):
    seen = Counter(schedule(kind, seed) for seed in range(8))
    assert any(one.count("NodeResult") >= 3 for one in seen)
    assert len(seen) > 1  # some ended in other ways


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_random_schedules(kind, part):
    for seed in range(1000 + 400 * part, 1400 + 400 * part):
        schedule(kind, seed, steps=random.Random(seed).choice((40, 150, 400)))


# --------------------------------------------------------------------------------------------------
# planted mistakes


class Hasty(Membership):
    """Decides without everybody's signature."""

    def _unsigned(self, entry, target):
        return frozenset()


@pytest.mark.parametrize("made", [Membership, Hasty])
def test_deciding_without_all_signatures_parts_the_models(build, monkeypatch, made):
    """One node lacks d's letter, another e's, and both lose patience before they hear of it."""
    monkeypatch.setattr(member_sums, "Membership", made)
    network = build(setting(rounds=1, centring=False))
    drive, lost = Drive(network), {("d", "a"), ("e", "b")}
    for node in network.nodes.values():
        drive.advance(node)
    while network.on_the_way:
        _, to, data = network.on_the_way[0]
        if (verify(data, network.rules["a"].keys).author, to) in lost:
            network.on_the_way.pop(0)
        else:
            drive.deliver(0)
    drive.kill("d")
    drive.kill("e")
    for name in ("a", "b"):
        drive.attempt(network.nodes[name], network.nodes[name].give_up)
    ended = drive.finish()
    if made is Hasty:
        with pytest.raises(AssertionError):
            sound(network, ended)
    else:
        assert set(sound(network, ended)) == {"a", "b", "c"}


def gone(network, name="c"):
    """The others finish without a node that was gone before round 1 was over."""
    drive = Drive(network)
    while 1 not in network.nodes[name].spends():
        if 0 in network.nodes[name].spends() or not network.plan.centrings:
            network.nodes[name].plugged = "spent"
        for node in network.nodes.values():
            drive.advance(node)
        while network.on_the_way:
            drive.deliver(0)
    drive.kill(name)
    return drive


def test_letters_of_two_memberships_give_no_sum(build):
    """Those who remain cannot add the letters that were made for all."""
    network = build(setting(SEALED, rounds=2))
    gone(network).finish()
    noise, rest = network.setting.chosen.release_plan.noises[0], ("a", "b", "d", "e")
    spends = {p: network.nodes[p].spends() for p in rest}

    def added(entries):
        words = [np.frombuffer(spends[p][n], np.uint64) for p, n in entries.items()]
        return decoded(np.array(words)[:, None], noise)

    added(dict.fromkeys(rest, 3))
    for wrong in (dict.fromkeys(rest, 1), {**dict.fromkeys(rest, 3), "a": 1}):
        with pytest.raises(SumSpoiled):
            added(wrong)
    for p in rest:
        assert network.nodes[p].events.count(("drawn", 3)) >= 1


def test_the_same_noise_in_a_second_attempt_is_found(build, monkeypatch):
    """The difference of two such sums would be the missing node's own."""

    def same(self, noise, g, n, entry):
        k = noise.sealable(g, self.draws, self.releases.nodes, n)
        return self.masks.sealed(k.reshape(len(k), -1), self.releases.nodes, n, entry).reshape(
            k.shape
        )

    monkeypatch.setattr(Releaser, "_protected", same)
    network = build(setting(SEALED, rounds=2))
    with pytest.raises(AssertionError, match="a second draw for round 1"):
        gone(network).finish()


# --------------------------------------------------------------------------------------------------
# letters about members


def test_sets_have_one_spelling():
    ballots = Ballots(tuple("abcdefghij"), 4)
    assert ballots.unpacked(ballots.packed(["j", "a"])) == {"a", "j"}
    assert ballots.packed([]) == bytes(2)
    for wrong in (b"", b"\1", bytes(3), b"\0\4"):
        with pytest.raises(Rejected, match="no set of the run's nodes"):
            ballots.unpacked(wrong)


@pytest.mark.parametrize(
    ("kind", "n", "body", "note"),
    [
        ("without", 0, [], b""),
        ("without", 0, ["a"], b""),
        ("without", 12, ["b"], b""),
        ("without", 0, ["b"], b"\7"),
        ("held", 0, ["b", "c"], b""),
        ("held", 4, ["a", "b"], b""),
        ("sum", 1, ["a"], b"\6"),
        ("sum", 1, ["a"], b""),
        ("key", 0, ["a"], b"\7"),
    ],
)
def test_malformed_sets_are_refused(kind, n, body, note):
    ballots = Ballots(("a", "b", "c"), 4)
    letter = Letter(kind, bytes(32), bytes(32), "a", n, ballots.packed(body), note)
    with pytest.raises(Rejected):
        ballots.check(letter)


def test_runs_that_wait_take_no_such_letters(build):
    waiting, going = build(setting(absence=None)), build(setting())
    node, other = waiting.nodes["a"], going.nodes["b"]
    node.start()
    other.start()
    data = other.inbox.letter("without", 0, b"\4")
    with pytest.raises(Rejected):
        node.offer(data, "b")


@pytest.mark.parametrize(("least", "expected"), [(None, 3), (3, 3), (5, 5)])
def test_more_than_half_must_remain(least, expected):
    assert least_members(Absence("go on", 1.0, least), 5) == expected
    assert least_members(Absence("go on", 1.0, least), 5, sealed=4) == max(expected, 4)
    for wrong in (2, 6):
        with pytest.raises(DeclarationError, match="both sides of a cut network"):
            least_members(Absence("go on", 1.0, wrong), 5)


def test_sealed_sums_declare_who_may_be_away():
    made = Sealed(honest=2, away=1).among(5)
    assert made.colluding == 2
    assert (made.sealing.members, made.sealing.least, made.sealing.colluding) == (5, 4, 2)
    assert made.sealing.accounted == (2, 4, 3)
    assert "away" not in Sealed(honest=2).among(5).describe()
    with pytest.raises(DeclarationError, match="must add up to 5"):
        Sealed(honest=2, colluding=3, away=1).among(5)
    with pytest.raises(DeclarationError, match="nobody would be left"):
        Sealed(honest=2, away=5).among(5)


# --------------------------------------------------------------------------------------------------
# in one process


def simulated(mechanism, away):
    chosen = setting(mechanism, centring=False)
    shards = [load_shard(chosen.schema, chosen.tables[p], p) for p in NAMES]
    return simulate(shards, chosen.topology, chosen.chosen, draws=SeededEntropy(7), away=away)


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_a_simulation_without_a_node_is_what_the_others_compute(build, mechanism):
    """In the open the same bits; sealed the same law, and one attempt more."""
    network = build(setting(mechanism, centring=False))
    done = gone(network).finish()
    run = simulated(mechanism, {"c": [(1, 4)]})
    np.testing.assert_array_equal(run.tail[0, 0], done["a"].vector)
    spread = [one.spread.deviations for one in done.values()]
    chosen = setting(mechanism, centring=False).chosen
    np.testing.assert_allclose(spread, [spread_of(chosen, run.path).deviations] * len(spread))
    whole = simulated(mechanism, None)
    assert (spread_of(chosen, whole.path).deviations < spread[0]).all()  # more rows, less noise
    assert not np.array_equal(run.tail, simulated(mechanism, None).tail)
    back = simulated(mechanism, {"c": [(1, 1)], "d": [(2, 3)]})
    assert not np.array_equal(back.tail, run.tail)


def test_absences_that_cannot_be_are_refused():
    for away in ({"z": [(1, 1)]}, {"a": [(2, 1)]}, {p: [(1, 1)] for p in NAMES}):
        with pytest.raises(DeclarationError):
            simulated("sum", away)
    with pytest.raises(DeclarationError, match="the plan needs"):
        simulated(SEALED, {p: [(1, 1)] for p in "abc"})
