"""Envelopes, leases, and what bounds whatever others send: without sockets."""

import json
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from dynadp.engines.bounds import DEPTH, REASONS, Tally, read_json, shortened
from dynadp.engines.lives import HeldDraws, Life
from dynadp.engines.zenoh import beats, gates, leases
from dynadp.engines.zenoh.clock import elapsed
from dynadp.engines.zenoh.config import Site, settings
from dynadp.engines.zenoh.envelopes import Envelopes, shared_secret
from dynadp.engines.zenoh.gates import BURST, Gate
from dynadp.engines.zenoh.leases import TERM, Grants, Lease
from dynadp.errors import NameTaken, Rejected
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.runs import authorities

NAMES = ("a", "b", "c", "d")
KEYS = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 32) for name in NAMES}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}


# Envelopes.


def envelopes(name, run=bytes(32)):
    return Envelopes(name, KEYS[name], PUBLIC, run)


def test_both_ends_share_a_secret_and_nobody_else_does():
    secrets = {
        frozenset(pair): shared_secret(KEYS[pair[0]], PUBLIC[pair[1]])
        for pair in product(NAMES, NAMES)
        if pair[0] != pair[1]
    }
    assert len(set(secrets.values())) == len(secrets) == 6
    for a, b in (tuple(pair) for pair in secrets):
        assert shared_secret(KEYS[a], PUBLIC[b]) == shared_secret(KEYS[b], PUBLIC[a])


@pytest.mark.parametrize("size", [0, 1, 840, 80_000])
def test_readers_open_an_envelope_and_nobody_else(size):
    letter = bytes(size)
    sent = envelopes("a").close(letter, ["b", "c"])
    for reader in ("b", "c"):
        assert envelopes(reader).open(sent, ["d", "a"]) == letter
        for senders in ([], ["d"]):  # by another than it says
            with pytest.raises(Rejected, match="not from whom"):
                envelopes(reader).open(sent, senders)
    for reader, run in (("d", bytes(32)), ("b", bytes([1]) * 32)):
        with pytest.raises(Rejected, match="no envelope for this node"):
            envelopes(reader, run).open(sent, ["a"])
    with pytest.raises(Rejected):  # not even its author, who is no reader
        envelopes("a").open(sent, ["b", "c"])
    assert envelopes("a").close(letter, ["b", "c"]) != sent


def test_an_envelope_that_was_changed_anywhere_is_refused():
    sent = envelopes("a").close(b"a letter", ["b"])
    for i in range(len(sent)):
        other = bytearray(sent)
        other[i] ^= 1
        with pytest.raises(Rejected):
            envelopes("b").open(bytes(other), ["a"])
    for cut in range(len(sent)):
        with pytest.raises(Rejected):
            envelopes("b").open(sent[:cut], ["a"])


def test_envelopes_look_like_chance():
    sent = b"".join(envelopes("a").close(bytes(100), ["b", "c"]) for _ in range(2000))
    counts = np.bincount(np.frombuffer(sent, np.uint8), minlength=256)
    expected = len(sent) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * np.sqrt(2 * 255)


# Leases.


class Clock:
    """Time as a test says."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        for module in (leases, beats):
            monkeypatch.setattr(module, "elapsed", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class World:
    """Lives of one node and its neighbours, between whom messages may be lost."""

    def __init__(self, folder, clock, count, goes_on):
        self.clock, self.names = clock, [f"n{i}" for i in range(count)]
        self.folder, self.goes_on, self.lives = folder, goes_on, []
        self.grants = {j: Grants(folder / f"{j}.json") for j in self.names}

    def begin(self, number, stack):
        file = self.folder / f"life {len(self.lives)}"
        file.write_text(json.dumps({"number": number - 1}))
        life = Life.begin(stack, file, "me")
        self.lives.append(Lease("me", life, self.names, self.goes_on))

    def restart(self, j):
        self.grants[j] = Grants(self.folder / f"{j}.json")

    def ask(self, k, j, *, lost=False):
        lease, sent = self.lives[k], self.clock.now
        nxt = lease.unasked(set(self.names))
        if j not in lease.asked and nxt != [j]:
            return
        lease.asked.add(j)
        told = self.grants[j].answer("me", lease.life.id, lease.life.number, leaves=False)
        if not lost:
            try:
                lease.hear(j, told, sent)
            except NameTaken:
                lease.left = True

    @property
    def drawing(self):
        return [
            k
            for k, lease in enumerate(self.lives)
            if not lease.unasked(set(self.names)) and lease.held
        ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 2), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 2.0, 3.5])),
        st.tuples(st.just("restart"), st.integers(0, 4)),
    ),
    max_size=80,
)


@pytest.mark.parametrize("goes_on", [False, True])
@tried(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 5),
    numbers=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    steps=STEPS,
)
def test_no_two_lives_may_draw_at_once(tmp_path_factory, goes_on, count, numbers, steps):
    """Whatever is lost, late, cut off or started again."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("world"), Clock(patch), count, goes_on)
        for number in numbers:
            world.begin(number, stack)
        for what, *given_ in steps:
            if what == "wait":
                world.clock.now += given_[0]
            elif what == "restart":
                world.restart(world.names[given_[0] % count])
            else:
                k, j, lost = given_
                world.ask(k, world.names[j % count], lost=lost)
            assert len(world.drawing) <= 1


@pytest.mark.parametrize("hasty", [False, True])
def test_a_neighbour_that_does_not_wait_lets_two_draw(tmp_path, clock, hasty):
    """What a term is for: without it, a cut link would be enough."""
    with ExitStack() as stack:
        world = World(tmp_path, clock, 2, goes_on=False)
        for number in (1, 2):
            world.begin(number, stack)
        for j in world.names:
            world.ask(0, j)
        if hasty:
            for grants in world.grants.values():
                grants._seen["me"] = -2 * TERM
        for j in world.names:
            world.ask(1, j)
        assert world.drawing == ([0, 1] if hasty else [0])


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("goes_on", [False, True])
def test_who_begins_and_who_goes_on_share_a_neighbour(count, goes_on):
    lease = Lease("me", None, [f"n{i}" for i in range(count)], goes_on)
    assert lease.to_begin + lease.to_go_on == count + 1
    assert 1 <= lease.to_go_on <= lease.to_begin <= count


def test_a_life_goes_on_draws_and_is_followed(tmp_path, clock):
    with ExitStack() as stack:
        world = World(tmp_path, clock, 2, goes_on=False)
        for number in (1, 2):
            world.begin(number, stack)
        assert world.drawing == []
        for j in world.names:
            world.ask(0, j)
        assert world.drawing == [0]
        world.ask(1, "n0")  # while the first is alive
        clock.now += TERM
        assert world.drawing == []  # nobody confirmed meanwhile
        world.ask(0, "n1")
        assert world.drawing == [0]
        clock.now += TERM + 0.1
        for j in world.names:
            world.ask(1, j)
        assert world.drawing == [1]
        for j in world.names:
            world.ask(0, j)
        clock.now += TERM + 0.1
        for j in world.names:
            world.ask(0, j)
        assert world.lives[0].left  # it was told that its name was passed on
        assert world.lives[0].life.number == 1


def test_a_copied_disk_shows_the_same_number_and_gets_no_grant(tmp_path, clock):
    grants = Grants(tmp_path / "grants")
    assert grants.answer("me", "first", 5, leaves=False) == {"lease": "granted"}
    clock.now += 2 * TERM
    assert grants.answer("me", "copy", 5, leaves=False) == {"lease": "old", "number": 5}
    assert grants.answer("me", "next", 6, leaves=False) == {"lease": "granted"}
    again = Grants(tmp_path / "grants")  # which knows no times, and waits
    assert again.answer("me", "later", 7, leaves=False)["lease"] == "held"
    assert again.answer("me", "next", 6, leaves=True) == {"lease": "granted"}
    assert again.answer("me", "later", 7, leaves=False) == {"lease": "granted"}


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("highest", [range(50, 80, 10), range(80, 50, -10), [2**50, 2**60, 2**70]])
def test_a_name_that_was_claimed_with_any_numbers_is_got_back(tmp_path, clock, highest, goes_on):
    """By whoever has the keys: started again, once for each neighbour at most."""
    with ExitStack() as stack:
        world = World(tmp_path, clock, 3, goes_on=goes_on)
        for j, number in zip(world.names, highest, strict=True):
            world.grants[j].answer("me", "hostile", number, leaves=False)
        number = 1
        for k in range(len(world.names) + 1):
            clock.now += TERM + 0.1
            world.begin(number, stack)
            for j in world.names:
                world.ask(k, j)
            number = world.lives[k].life.number + 1
        assert world.drawing == [k]


def test_a_machine_that_slept_holds_no_lease(tmp_path, monkeypatch):
    """The usual clock stands still meanwhile: whoever goes by it believes that no time passed."""
    passed = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(time, "clock_gettime", lambda which: passed[-1])
    with ExitStack() as stack:
        life = Life.begin(stack, tmp_path / "life", "me")
        lease, grants = Lease("me", life, ["n0"]), Grants(tmp_path / "grants")
        lease.asked.add("n0")
        told = grants.answer("me", life.id, life.number, leaves=False)
        lease.hear("n0", told, elapsed())
        assert lease.held
        passed.append(3700.0)
        assert not lease.held
        assert grants.answer("me", "another", 2, leaves=False) == {"lease": "granted"}


def test_lives_are_counted_and_locked(tmp_path):
    with ExitStack() as stack:
        first = Life.begin(stack, tmp_path / "life", "me")
        with ExitStack() as other, pytest.raises(NameTaken, match="another process"):
            Life.begin(other, tmp_path / "life", "me")
        first.raise_to(41)
    with ExitStack() as stack:
        second = Life.begin(stack, tmp_path / "life", "me")
    assert (first.number, second.number) == (41, 42)
    assert first.id != second.id


def test_noise_is_drawn_only_while_the_lease_is_held():
    def refuse():
        raise NameTaken("taken")

    with pytest.raises(NameTaken):
        HeldDraws(SeededEntropy(1), refuse).generator("x", "me", 1)
    held, plain = HeldDraws(SeededEntropy(1), lambda: None), SeededEntropy(1)
    assert held.generator("x", "me", 1).random() == plain.generator("x", "me", 1).random()


# Bounds.


def test_json_of_others_is_bounded_before_it_is_read():
    assert read_json(b'{"a": ["[[[[", {"b": "\\"]"}]}', 100) == {"a": ["[[[[", {"b": '"]'}]}
    deep = b"[" * DEPTH + b"]" * DEPTH
    assert read_json(deep, 1000)
    for bad, why in (
        (b"[" + deep + b"]", "deeper"),
        (b" " * 101, "longer"),
        (b"[" * 100_000, "longer"),
        (b'{"a', "no JSON"),
        (b"\xff", "no JSON"),
        (b"", "no JSON"),
    ):
        with pytest.raises(Rejected, match=why):
            read_json(bad, 100)


def test_reasons_are_counted_in_bounded_room():
    tally = Tally()
    for i in range(5000):
        tally.count(f"reason {i} {'x' * 5000}")
    assert len(tally) == REASONS + 1
    assert sum(tally.values()) == 5000
    assert len(json.dumps(tally)) < 400 * REASONS
    assert shortened("abc") == "abc"
    assert len(shortened("x" * 1000, 50)) <= 50


def test_an_address_begins_so_many_handshakes():
    gate = Gate("127.0.0.1:0", print)
    try:
        assert sum(gate._admits("somebody") for _ in range(1000)) <= BURST + 5
        assert gate._admits("another")
        for i in range(10_000):
            gate._admits(f"address {i}")
        assert len(gate._buckets) <= 4096
    finally:
        gate.close()


def greeting():
    """What a client of TLS says first."""
    said = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="there")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def test_what_only_begins_like_tls_counts_as_no_handshake(monkeypatch):
    """It gets nowhere, and takes nothing from a member behind the same address."""
    told, hello = [], greeting()
    monkeypatch.setattr(gates, "BURST", 1.0)
    gate, links = Gate("127.0.0.1:0", told.append), []
    here = gate._socket.getsockname()
    wrong = [
        hello[:3],
        hello[:-1],
        b"\x16\x03\x01\x00\xf0" + bytes(240),
        b"\x16\x03\x01\xff\xff" + hello[5:],
        b"\x15" + hello[1:],
        hello[:6] + bytes(3) + hello[9:],
    ]
    try:
        with socket.create_server(("127.0.0.1", gate.inner)) as inner:
            inner.settimeout(10.0)
            for one in wrong * 4:
                links.append(socket.create_connection(here, timeout=10.0))
                with suppress(ConnectionError):
                    links[-1].sendall(one)
                    links[-1].shutdown(socket.SHUT_WR)
            for link in links:  # the gate closes them all
                with suppress(ConnectionError):
                    assert link.recv(1) == b""
            with socket.create_connection(here) as member:
                member.sendall(hello + b"more")
                link, _ = inner.accept()
                with link:
                    assert link.recv(len(hello) + 4, socket.MSG_WAITALL) == hello + b"more"
    finally:
        for link in links:
            link.close()
        gate.close()
    assert "turned 127.0.0.1 away: it began no TLS handshake" in told
    assert not any("handshakes in a second" in line for line in told)


def test_an_address_that_says_nothing_keeps_no_other_out(monkeypatch):
    told = []
    monkeypatch.setattr(gates, "PENDING", 20)
    monkeypatch.setattr(gates, "EACH", 5)
    gate = Gate("127.0.0.1:0", told.append)
    here, silent = gate._socket.getsockname(), []
    try:
        with socket.create_server(("127.0.0.1", gate.inner)) as inner:
            inner.settimeout(10.0)
            for _ in range(30):
                silent.append(socket.create_connection(here, source_address=("127.0.0.2", 0)))
            with socket.create_connection(here) as other:
                hello = greeting()
                other.sendall(hello)
                link, _ = inner.accept()
                with link:
                    assert link.recv(len(hello), socket.MSG_WAITALL) == hello
    finally:
        for one in silent:
            one.close()
        gate.close()
    assert "turned 127.0.0.2 away: 5 connections of it have said nothing yet" in told


def test_a_port_behind_a_gate_that_was_just_taken_is_no_hindrance(tmp_path, monkeypatch):
    authority, today = tmp_path / "authority", datetime.now(UTC)
    authorities.make_authority(authority, "trial", today)
    authorities.make_node(authority, "me", ["127.0.0.1"], tmp_path / "me", today, 30)
    found = []
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("", 0)) as free:
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr(
            gates, "free_port", lambda: found.append(ports[len(found)]) or found[-1]
        )
        site = Site("me", (), tmp_path / "me", listen=("127.0.0.1:0",))
        session, made = gates.opened(settings(site, "dynadp/trial"), print)
        session.close()
        for gate in made:
            gate.close()
    assert found == ports
