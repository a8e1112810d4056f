"""Nodes that stay away and come back, on a network in memory: what those who remain compute, that
nothing is drawn or released twice, and that what anybody holds is in its author's ledger.
"""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest

from dynadp.consensus.absence import Absence
from dynadp.engines.inbox import is_broadcast
from dynadp.engines.letters import Letter, verify
from dynadp.engines.member_sums import least_of
from dynadp.engines.memory import memory_key
from dynadp.engines.node import NodeRun
from dynadp.engines.notes import TRIES, NoteRules, epoch_of, standings, written
from dynadp.errors import DeclarationError, LeftBehind, NodeLost, Rejected
from dynadp.mechanisms.primal import Primal
from dynadp.privacy.ledger.file import Ledger
from support.memory import RUN, Network, assert_same_messages, memory, small

GO_ON = Absence("go on", 1.0)
POINTS = ("computed", "spent", "kept", "published", "received", "decided", "noted", "closed")


def going_on(family="ring", nodes=5, rounds=8, least=None, **more):
    setting = small(family, nodes, names=tuple("abcdefgh"[:nodes]), rounds=rounds, **more)
    return replace(setting, absence=replace(GO_ON, least=least))


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


class Ended(Exception):
    """A node ended with an error that it may end with."""


def advance(network, names, ended=None, patient=False):
    """Let these nodes do what they can: step, hand letters over, ask; give up on whoever stays
    away where nobody can go on. Returns whether anything happened.
    """
    nodes = [network.nodes[p] for p in names if network.nodes[p].up]
    moved = False
    for node in nodes:
        if node.result is None and node.ready:
            moved = True
            act(node, node.step, ended)
    while network.on_the_way:
        via, to, _ = network.on_the_way[0]
        if to in names and via in names:
            network.deliver()
        else:
            network.on_the_way.pop(0)
    for node in nodes:
        if node.up and node.result is None:
            ask(network, node, names)
            moved = moved or node.ready
    if moved or patient:
        return moved
    stuck = [node for node in nodes if node.up and node.result is None and node.missing]
    for all_of_them in (False, True):  # patience is over: first with those who do not wait too
        for node in stuck:
            away = [j for j in node.missing if all_of_them or not waits(network.nodes[j], names)]
            if away:
                act(node, lambda node=node, away=away: node.give_up(*away), ended)
                return True
    return False


def waits(node, names):
    """Whether a node is up and waits itself: then it says so, and is waited for."""
    return node.me in names and node.up and node.result is None and bool(node.missing)


def ask(network, node, names):
    kind, n = (node.awaiting.kind, node.awaiting.round) if node.awaiting else (None, 0)
    for author in node.missing:
        asked = node.run.neighbours if is_broadcast(kind, n) else (author,)
        for name in asked:
            other = network.nodes[name]
            if name in names and other.up and (data := other.inbox.answer(author, kind, n)):
                node.offer(data, name)


def act(node, action, ended):
    try:
        action()
    except (NodeLost, LeftBehind) as error:
        if ended is None:
            raise
        ended[node.me] = error
        node.stop()


def play(network, names, ended=None, steps=4000):
    """Until these nodes have ended."""
    for _ in range(steps):
        if not advance(network, names, ended):
            return
    raise AssertionError({p: network.nodes[p].awaiting for p in names})


def start(network, names):
    for p in names:
        if not network.nodes[p].up:
            network.nodes[p].start()


def until_round(network, names, n):
    for _ in range(1000):
        if all(max(network.nodes[p].spends(), default=0) >= n for p in names):
            return
        advance(network, names, patient=True)
    raise AssertionError(f"round {n} was not reached")


def sound(network):
    """Every letter of a round that anybody holds is in its author's ledger, byte for byte."""
    spent = {p: node.spends() for p, node in network.nodes.items()}
    for node in network.nodes.values():
        if not node.up:
            continue
        keys = node.inbox.rules.keys
        for (data,) in node.inbox._connection.execute("SELECT content FROM letter").fetchall():
            network.see(data)
            letter = verify(data, keys)
            if letter.kind == "message":
                assert spent[letter.author][letter.round] == letter.body


def tail(network, p):
    rounds = network.setting.chosen.rounds
    spent = network.nodes[p].spends()
    return np.mean(
        [np.frombuffer(spent[n], "<f8") for n in range(rounds // 2 + 1, rounds + 1) if n in spent],
        axis=0,
    )


# --------------------------------------------------------------------------------------------------


@pytest.mark.diagonal
@pytest.mark.parametrize("family", ["ring", "star", "path"])
@pytest.mark.parametrize("output", ["network", "neighbours", "tail", "last"])
def test_with_everybody_there_it_is_the_same_run(build, family, output):
    setting = going_on(family, output=output, rounds=4)
    network = build(setting)
    outcomes = network.finish()
    models, messages, _ = setting.undisturbed
    assert_same_messages(network, messages)
    for p, outcome in outcomes.items():
        np.testing.assert_allclose(outcome.vector, models[p], rtol=1e-12)
        assert outcome.members == ()


@pytest.mark.parametrize("n", [1, 3, 7])
def test_one_that_is_gone_for_good_is_given_up(build, n):
    network = build(going_on())
    everybody, rest = "abcde", "abde"
    start(network, everybody)
    until_round(network, everybody, n)
    network.nodes["c"].stop()
    play(network, rest)
    models = {network.nodes[p].result.vector.tobytes() for p in rest}
    assert len(models) == 1
    for p in rest:
        assert network.nodes[p].result.members == tuple(rest)
        assert sorted(network.nodes[p].spends()) == list(range(9))
    np.testing.assert_allclose(
        network.nodes["a"].result.vector, np.mean([tail(network, p) for p in rest], axis=0)
    )
    assert network.nodes["b"].inbox.given_up == {"c"}
    sound(network)


def test_one_that_comes_back_is_taken_in_and_spends_nothing_for_what_it_missed(build):
    network = build(going_on(rounds=16))
    everybody, rest = "abcde", "abde"
    start(network, everybody)
    until_round(network, everybody, 2)
    network.nodes["c"].stop()
    for _ in range(1000):
        if min(max(network.nodes[p].spends()) for p in rest) >= 5:
            break
        advance(network, rest)
    network.nodes["c"].start()
    play(network, everybody)
    sound(network)
    spent = sorted(network.nodes["c"].spends())
    missed = sorted(set(range(17)) - set(spent))
    assert missed, "it should have missed something"
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert {network.nodes[p].result.vector.tobytes() for p in everybody}.__len__() == 1
    assert all(network.nodes[p].result.members == () for p in everybody)
    notes = {p: standings(network.nodes[p].inbox.note(p, "message", 16)) for p in everybody}
    for p, q in (("b", "c"), ("c", "d")):
        assert notes[p][q] == notes[q][p]
        assert notes[p][q].epoch > 0
        assert notes[p][q].start > missed[-1]
    assert_duals_vanish(network)


def assert_duals_vanish(network):
    """The duals of all nodes, from letters and notes alone, add up to zero."""
    total, size = 0.0, 0.0
    eta = network.setting.chosen.settings.eta_of()[0]
    T = network.setting.chosen.rounds
    for node in network.nodes.values():
        for j in node.run.neighbours:
            lam = 0.0
            for n in range(1, T + 1):
                edge = decided_edge(node, n, j)
                before = decided_edge(node, n - 1, j) if n > 1 else None
                if edge is None:
                    continue
                if edge[1] == 0 or edge[1] > n:
                    lam = 0.0
                    continue
                if before is not None and before[0] != edge[0]:
                    lam = 0.0
                V = np.frombuffer(node.spends()[n], "<f8")
                lam = lam + eta / 2 * (V - node.inbox.values(j, "message", n))
            total, size = total + lam, size + np.abs(lam).max()
    assert np.abs(total).max() <= 1e-9 * size


def decided_edge(node, n, j):
    content = node.inbox.decision(n)
    return None if content is None else json.loads(content)["edges"][j]


def test_too_few_stop_and_can_go_on(build):
    """With least = 5 nobody goes on without c; when it is back, the run is as if nothing was."""
    setting = going_on(least=5, rounds=4)
    network = build(setting)
    start(network, "abcde")
    until_round(network, "abcde", 2)
    network.nodes["c"].stop()
    ended = {}
    play(network, "abde", ended)
    assert set(ended) >= {"b", "d"}
    assert all("network.least" in str(ended[p]) for p in ("b", "d"))
    start(network, "abcde")
    outcomes = network.finish()
    assert_same_messages(network, setting.undisturbed[1])
    assert all(outcome.members == () for outcome in outcomes.values())


def test_of_two_neither_goes_on_alone(build):
    """It stops, and can be started again: it cannot know whether it was left behind."""
    network = build(going_on("path", 2, rounds=4))
    start(network, "ab")
    until_round(network, "ab", 2)
    network.nodes["b"].stop()
    ended = {}
    play(network, "a", ended)
    assert "1 of the 2 nodes that must remain" in str(ended["a"])
    assert "If that never helps, make a model of what was released" in str(ended["a"])
    start(network, "ab")
    assert all(outcome.members == () for outcome in network.finish().values())


@pytest.mark.parametrize("least", [1, 6])
def test_as_many_must_remain_as_can_go_on_together(least):
    setting = going_on(least=least)
    with pytest.raises(DeclarationError, match="a node does not go on alone"):
        least_of(setting.chosen, setting.absence)
    assert least_of(setting.chosen, GO_ON) == 2
    assert least_of(setting.chosen, Absence()) == 5


def test_the_end_of_a_path_stops_and_its_start_goes_on(build):
    network = build(going_on("path", 4))
    start(network, "abcd")
    until_round(network, "abcd", 3)
    network.nodes["c"].stop()
    ended = {}
    play(network, "abd", ended)
    assert set(ended) == {"d"}
    assert network.nodes["a"].result.members == ("a", "b")


def test_who_comes_back_after_the_end_is_left_behind_and_gives_back_its_budget(build):
    network = build(going_on())
    start(network, "abcde")
    until_round(network, "abcde", 3)
    network.nodes["c"].stop()
    play(network, "abde")
    node = network.nodes["c"]
    node.start()
    ended = {}
    play(network, "abcde", ended)
    assert isinstance(ended["c"], LeftBehind)
    spent = node.spends()
    assert max(spent) < 8
    with Ledger.open(node.ledger_path, read_only=True) as ledger:
        assert ledger.is_closed(RUN)
        assert len(ledger.spent()) == len(spent)
    sound(network)


def test_a_private_iterate_cannot_go_on():
    setting = going_on(mechanism=Primal(augment="iterate"))
    with pytest.raises(DeclarationError, match="on_absence"):
        NodeRun("a", setting.schema, setting.chosen, GO_ON)


@pytest.mark.parametrize("point", POINTS)
def test_crashes_around_giving_up_change_nothing(build, point):
    """b dies at a point again and again while c is away: the same messages as without deaths."""
    found = []
    for plugged in (None, point):
        network = build(going_on(rounds=6))
        start(network, "abcde")
        until_round(network, "abcde", 2)
        network.nodes["c"].stop()
        for i in range(400):
            b = network.nodes["b"]
            if not b.up:
                b.start()
            b.plugged = plugged if i % 3 == 0 and b.starts < 6 else None
            if all(network.nodes[p].result is not None for p in "abde"):
                break
            advance(network, "abde")
        play(network, "abde")
        sound(network)
        found.append(
            (
                {p: network.nodes[p].spends() for p in "abde"},
                {p: network.nodes[p].result.vector.tobytes() for p in "abde"},
            )
        )
    assert found[0] == found[1]


def test_a_liar_ends_its_own_edge_alone(build):
    """a asks for the last epoch that there is, in every letter it may send: b drops it, and all
    others stay together.
    """
    network = build(going_on(rounds=6))
    start(network, "abcde")
    until_round(network, "abcde", 2)
    rules = network.rules["b"]
    epoch = epoch_of(TRIES - 1, 6, True, 0, 5, 6)
    note = written({"after": 6, "back": True})
    lie = Letter("join", rules.run, rules.config, "a", epoch, b"", note).sealed(memory_key("a"))
    network.nodes["b"].offer(lie, "a")
    play(network, "abcde")
    edges = standings(network.nodes["b"].inbox.note("b", "message", 6))
    assert (edges["a"].off, edges["c"]) == (True, (0, 1))
    for p, j in (("a", "e"), ("c", "d"), ("d", "e")):
        assert standings(network.nodes[p].inbox.note(p, "message", 6))[j] == (0, 1)
    assert all(network.nodes[p].result.members == () for p in "abcde")
    sound(network)


# --------------------------------------------------------------------------------------------------
# notes


RULES = NoteRules({"a": frozenset("b"), "b": frozenset("ac"), "c": frozenset("b")}, 9)


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("message", b""),
        ("message", b"{"),
        ("message", b"[" * 5000),
        ("message", b"\xff"),
        ("message", b"1"),
        ("message", b'{"edges":{"b":[0,1]},"more":1}'),
        ("message", b'{"edges": {"b":[0,1]}}'),
        ("message", b'{"edges":{"b":[true,1]}}'),
        ("message", b'{"edges":{"b":[0,1.0]}}'),
        ("message", b'{"edges":{"b":[0,10]}}'),
        ("message", b'{"edges":{"b":[-1,1]}}'),
        ("message", b'{"edges":{"b":[2147483648,1]}}'),
        ("message", b'{"edges":{"b":[0,1,2]}}'),
        ("message", b'{"edges":{"b":"01"}}'),
        ("message", b'{"edges":{}}'),
        ("message", b'{"edges":{"b":[0,1],"c":[0,1]}}'),
        ("message", b'{"edges":[["b",0,1]]}'),
        ("message", b'{"edges":{"b":[0,NaN]}}'),
        ("mean", b'{"edges":{"b":[0,1]}}'),
        ("mean", b'{"edges":{"b":[0,1]},"rounds":0}'),
        ("join", b'{"after":1}'),
        ("join", b'{"after":1,"back":1}'),
        ("join", b'{"after":99,"back":true}'),
        ("welcome", b'{"from":10}'),
        ("welcome", b'{"above":1,"from":1}'),
        ("done", b"{}"),
    ],
)
def test_a_hostile_note_is_refused(kind, note):
    with pytest.raises(Rejected, match="note"):
        RULES.check(Letter(kind, bytes(32), bytes(32), "a", 9, b"", note))


def test_requests_and_answers_take_bounded_room(build):
    """Answers that nobody asked for are not kept, and requests only so many times."""
    network = build(going_on())
    start(network, network.setting.topology.nodes)
    inbox = network.nodes["b"].inbox
    rules = inbox.rules

    def letter(kind, epoch, content):
        made = Letter(kind, rules.run, rules.config, "a", epoch, b"", written(content))
        return made.sealed(memory_key("a"))

    for epoch in range(1, 300):
        assert inbox.offer(letter("welcome", epoch, {"from": 3}), "a") is None
    assert inbox.rounds_of("a", "welcome") == []
    refused = []
    for attempt, after in itertools.product(range(TRIES), range(1, rules.rounds + 1)):
        epoch = epoch_of(attempt, after, True, 0, 5, rules.rounds)
        try:
            inbox.offer(letter("join", epoch, {"after": after, "back": True}), "a")
        except Rejected as reason:
            refused.append(str(reason))
    assert set(refused) == {"asks to be taken in again too often"}
    assert len(inbox.rounds_of("a", "join")) <= rules.rounds + 65


def test_good_notes_are_taken():
    edges = {"edges": {"b": [0, 1]}}
    for kind, content in (
        ("message", edges),
        ("mean", {**edges, "rounds": 3}),
        ("welcome", {"from": 9}),
        ("welcome", {"above": 4}),
    ):
        RULES.check(Letter(kind, bytes(32), bytes(32), "a", 9, b"", written(content)))
    RULES.check(Letter("message", bytes(32), bytes(32), "a", 0, b""))
    ask = written({"after": 4, "back": True})
    for attempt in (0, 3):
        epoch = epoch_of(attempt, 4, True, 1, 3, 9)
        RULES.check(Letter("join", bytes(32), bytes(32), "b", epoch, b"", ask))
        with pytest.raises(Rejected):
            RULES.check(Letter("join", bytes(32), bytes(32), "a", epoch, b"", ask))


def test_no_two_requests_share_an_epoch():
    asked = [
        epoch_of(k, after, back, node, 3, 9)
        for k in range(4)
        for after in range(10)
        for back in (False, True)
        for node in range(3)
    ]
    assert len(set(asked)) == len(asked)
    assert 0 not in asked


# --------------------------------------------------------------------------------------------------
# whatever happens


def trouble(folder, seed):
    """A random run: nodes die at points of rounds and come back or do not, letters get lost, edges
    are cut, patience ends too soon.
    """
    rng = random.Random(seed)
    family = rng.choice(["ring", "star", "path", "complete"])
    setting = going_on(family, 4, rounds=rng.choice([5, 9]), least=rng.choice([None, 3]))
    network = Network(setting, folder, fresh=True)
    names = setting.topology.nodes
    try:
        start(network, names)
        while any(0 not in network.nodes[p].spends() for p in names):
            advance(network, names, patient=True)
        ended = {}
        for _ in range(rng.randrange(10, 60)):
            node = network.nodes[rng.choice(names)]
            what = rng.random()
            if what < 0.15:
                node.stop()
            elif what < 0.3 and not node.up and node.me not in ended:
                node.start()
            elif what < 0.4 and node.up:
                node.plugged = rng.choice(POINTS)
            elif what < 0.5 and node.up and node.result is None and node.missing:
                act(node, node.give_up, ended)
            elif what < 0.55 and network.on_the_way:
                network.on_the_way.pop(rng.randrange(len(network.on_the_way)))
            elif what < 0.6 and not node.up and node.me not in ended:
                network.forgetful.add(node.me)
                for path in node.folder.glob("letters.sqlite*"):
                    path.unlink()
                node.start()
            else:
                some = [p for p in names if rng.random() < 0.8]
                advance(network, some, ended, patient=rng.random() < 0.8)
        sound(network)
        for node in network.nodes.values():
            node.plugged = None
        gone = [p for p in names if not network.nodes[p].up and rng.random() < 0.5]
        for _ in range(4):
            there = [p for p in names if p not in gone and not isinstance(ended.get(p), LeftBehind)]
            start(network, there)
            play(network, there, ended)
            sound(network)
        check_end(network, names)
    finally:
        network.close()


def check_end(network, names):
    """Who holds the same set holds the same model, and a set that a node names names it too."""
    models = {}
    for p in names:
        node = network.nodes[p]
        if node.result is not None:
            members = node.result.members or tuple(names)
            model = node.result.vector
            assert models.setdefault(members, model.tobytes()) == model.tobytes()
    for node in network.nodes.values():
        planned = {event.round for event in network.setting.chosen.events if event.node == node.me}
        assert set(node.spends()) <= planned


def troubles(seeds):
    for seed in seeds:
        with memory() as folder:
            try:
                trouble(folder, seed)
            except BaseException as error:
                raise AssertionError(f"seed {seed}") from error


def test_whatever_happens():
    troubles(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_whatever_happens_a_thousand_times(part):
    troubles(range(100 * part, 100 * part + 100))
