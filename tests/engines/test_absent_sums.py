"""Sums that go on without nodes that stay away: all who remain agree, nothing is drawn twice, and
who finishes with whom holds one model (maths.md 17)."""

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
from dynadp.errors import DeclarationError, Rejected, SumSpoiled
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning import spread_of
from dynadp.privacy.ledger.file import Ledger
from support.absent import (
    GO_ON,
    KIND,
    KINDS,
    NAMES,
    POINTS,
    SEALED,
    Drive,
    as_from_letters,
    held,
    line,
    one_membership,
    setting,
    sound,
)
from support.memory import RUN, Network, memory, private_files, small
from support.schedules import KINDS as SCHEDULED
from support.schedules import schedule


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
    as_from_letters(network, done)
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
        assert "(dynadp model) and close the run" in str(network.nodes[p].lost)
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


# --------------------------------------------------------------------------------------------------
# to be taken in again


def rounds_of(drive, count=1):
    """So many steps of everybody who is there, with all letters delivered in between."""
    for _ in range(count):
        for node in drive.alive():
            drive.advance(node)
        while drive.network.on_the_way:
            drive.deliver(0)


def leave(network, name, steps=2):
    """A node is gone after some rounds, and the others go on without it; its spends until then."""
    drive = Drive(network)
    rounds_of(drive, steps)
    drive.kill(name)
    for _ in range(40):
        for node in drive.alive():
            if (node.up and node.missing == [name]) or name in node.missing:
                drive.attempt(node, node.give_up)
        rounds_of(drive)
        if all(name not in over for p in "ab" for over in last_sums(network, p)):
            return drive
    raise AssertionError("nobody goes on")


def last_sums(network, p):
    """Over whom a node settled its last sum; everybody before the first."""
    return [over for _, _, over in line(network, p)][-1:] or [NAMES]


def come_back(drive, name):
    """It is started again, and all go on to the end."""
    drive.dead.discard(name)
    return sound(drive.network, drive.finish())


@pytest.mark.diagonal
@pytest.mark.parametrize("family", ["complete", "ring", "star"])
@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_one_that_comes_back_is_taken_in_and_spends_nothing_for_what_it_missed(
    build, mechanism, family
):
    network = build(setting(mechanism, family, rounds=12))
    drive = leave(network, "e")
    before, late = network.nodes["e"].spends(), network.nodes["e"]
    done = come_back(drive, "e")
    one_membership(network, done)
    assert set(done) == {*NAMES}
    assert len({result.vector.tobytes() for result in done.values()}) == 1
    assert {result.members for result in done.values()} == {()}
    missed = [n for n, over in held(network, "a").items() if "e" not in over]
    assert missed
    assert {*late.spends()} - {*before} == {*held(network, "a")} - {*before} - {*missed}
    as_from_letters(network, done)
    lines = {tuple((entry, past.hash) for entry, past, _ in line(network, p)) for p in NAMES}
    assert len(lines) == 1
    for node in network.nodes.values():
        spares = [n for n in node.spends() if n > 12]
        assert len(spares) == (mechanism == SEALED and node is not late)
        assert not private_files(node)


def test_a_return_is_what_a_simulation_computes(build):
    network = build(setting(rounds=12, centring=False))
    done = come_back(leave(network, "e"), "e")
    missed = sorted(n for n, over in held(network, "a").items() if "e" not in over)
    assert missed == [*range(missed[0], missed[-1] + 1)]
    run = simulated("sum", {"e": [(missed[0], missed[-1])]}, rounds=12)
    np.testing.assert_array_equal(run.tail[0, 0], done["a"].vector)
    np.testing.assert_allclose(done["e"].vector, recomputed(network, "e"), rtol=1e-9)


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_who_comes_back_after_the_end_takes_the_model_home_and_spends_nothing(build, mechanism):
    network = build(setting(mechanism))
    drive, late = Drive(network), network.nodes["e"]
    rounds_of(drive, 2)
    drive.kill("e")
    spent = late.spends()
    drive.finish()
    done = come_back(drive, "e")
    assert late.spends() == spent
    assert done["e"].members == ("a", "b", "c", "d")
    assert done["e"].vector.tobytes() == done["a"].vector.tobytes()
    as_from_letters(network, done)
    with Ledger.open(late.ledger_path, read_only=True) as ledger:
        assert ledger.is_closed(RUN)
        assert ledger.counted() == ledger.spent()  # the rest returns to its budget
        assert len(ledger.spent()) == len(spent)
    assert not private_files(late)


@pytest.mark.diagonal
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_a_node_that_comes_back_may_crash_anywhere(build, mechanism, point):
    network = build(setting(mechanism, rounds=10), fresh=True)
    drive = leave(network, "e")
    late = network.nodes["e"]
    drive.dead.discard("e")
    crashes = 0
    while network.nodes["e"].result is None and crashes < 6:
        late.plugged = point
        before = len(late.events)
        drive.calm()
        crashes += point in late.events[before:]
        if late.plugged:  # it was not there: others wait
            break
    late.plugged = None
    done = sound(network, drive.finish())
    one_membership(network, done)
    assert set(done) == {*NAMES}
    assert len({result.vector.tobytes() for result in done.values()}) == 1


@pytest.mark.parametrize("mechanism", KINDS, ids=str)
def test_a_node_that_went_on_alone_begins_again_and_draws_nothing_twice(build, mechanism):
    """It released the next round for a sum that nobody else holds: that letter is never added."""
    network = build(setting(mechanism, rounds=24, centring=False), fresh=True)
    drive = Drive(network)
    if mechanism == SEALED:  # keys first
        rounds_of(drive)
    for node in network.nodes.values():
        drive.advance(node)
    keys, c = network.rules["a"].keys, network.nodes["c"]
    for via, to, data in list(network.on_the_way):  # all to c, and nothing of d to the others
        if to == "c":
            drive.attempt(c, lambda via=via, data=data: c.offer(data, via))
    drive.advance(c)
    assert 2 in c.spends()  # it holds the sum over all
    network.on_the_way[:] = [
        one for one in network.on_the_way if verify(one[2], keys).author not in "cd"
    ]
    first = {p: network.nodes[p].inbox.read("c", KIND[mechanism == SEALED], 1) for p in "abe"}
    assert not any(first.values())
    drive.kill("c")
    drive.kill("d")
    for _ in range(6):
        rounds_of(drive)
        for node in drive.alive():
            if node.up and {*node.missing} & {"c", "d"}:
                drive.attempt(node, node.give_up)
    assert last_sums(network, "a") == [frozenset("abe")]
    spent = c.spends()
    drive.dead.clear()
    done = sound(network, drive.finish())
    one_membership(network, done)
    assert set(done) == {*NAMES}
    assert len({result.vector.tobytes() for result in done.values()}) == 1
    assert {n: c.spends()[n] for n in spent} == spent
    assert "c" not in held(network, "c")[1]
    ballots = network.rules["a"].ballots
    back = c.inbox.read("c", "back", 1)
    assert ballots.after(back) == 2
    assert max(n for n in c.spends() if n <= 24) > 2  # taken in for rounds after that alone


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


@pytest.mark.parametrize("kind", SCHEDULED, ids=str)
def test_random_schedules(kind):
    """Crash, clone, rollback, absence, return, lost letters; support/schedules.py runs more."""
    seen = [schedule(kind, seed) for seed in range(8)]
    assert any(one.ended["NodeResult"] >= 3 for one in seen)
    assert sum(one.did["twin"] + one.did["crash"] for one in seen) > 4
    assert sum(one.did["compared"] for one in seen) >= 4  # models of most of them


def test_what_no_greeting_finds_is_counted_apart():
    """The disks of a node and of all its neighbours are put back."""
    assert schedule(SCHEDULED[2], 3620).did["beyond"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCHEDULED, ids=str)
def test_hundreds_of_random_schedules(kind):
    for seed in range(1000, 1300):
        schedule(kind, seed)


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


ABC, HERE = b"\7" + bytes(16), b"\7" + bytes(17)


@pytest.mark.parametrize(
    ("kind", "n", "body", "note"),
    [
        ("without", 0, [], ABC),
        ("without", 0, ["a"], ABC),
        ("without", 12, ["b"], ABC),
        ("without", 0, ["b"], b""),
        ("without", 0, ["b"], b"\5" + bytes(16)),
        ("held", 0, ["b", "c"], ABC),
        ("held", 4, ["a", "b"], ABC),
        ("held", 0, ["a", "b"], b"\5" + bytes(16)),
        ("sum", 1, ["a"], b"\6" + bytes(17)),
        ("sum", 1, ["a"], b""),
        ("sum", 1, ["a"], ABC),
        ("sum", 1, ["a"], b"\7" + bytes(16) + b"\4"),
        ("back", 1, ["a"], bytes(16)),
        ("key", 0, ["a"], b"\7"),
    ],
)
def test_malformed_sets_are_refused(kind, n, body, note):
    ballots = Ballots(("a", "b", "c"), 4)
    letter = Letter(kind, bytes(32), bytes(32), "a", n, ballots.packed(body), note)
    with pytest.raises(Rejected):
        ballots.check(letter)


def test_sound_sets_are_taken():
    ballots = Ballots(("a", "b", "c"), 4)
    for kind, body, note in (
        ("without", ballots.packed("b"), ABC),
        ("held", ballots.packed("ab"), ABC),
        ("sum", b"", HERE),
        ("sealed", b"", b"\3" + bytes(16) + b"\4"),
        ("back", ballots.request(3), bytes(16)),
        ("key", b"", b""),
    ):
        ballots.check(Letter(kind, bytes(32), bytes(32), "a", 3, body, note))


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


def simulated(mechanism, away, rounds=4):
    chosen = setting(mechanism, centring=False, rounds=rounds)
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
