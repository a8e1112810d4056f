"""Links: outsiders stay out and are told of, nothing is read on the wire, and cut links and relays
come back.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import zlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zenoh

from dynadp._files import digest
from dynadp.engines.letters import Letter, run_id
from dynadp.engines.zenoh.config import Site
from dynadp.engines.zenoh.envelopes import Envelopes
from dynadp.engines.zenoh.wire import SPOKEN
from dynadp.runs import authorities, identities
from support.networks import (
    DYNADP,
    EPSILON,
    Network,
    end_group,
    ports,
    session,
    typed,
    until,
)

pytestmark = pytest.mark.slow
PREFIX = f"dynadp/{run_id('trial').hex()[:32]}"
NO_NAMESPACES = "network namespaces and raw sockets need root"


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_nursery):
    """Three nodes in a ring with ledgers and a centring round, and what a run that nobody disturbed
    left.
    """
    network = Network.make(tmp_path_factory.mktemp("base") / "home", one_nursery, privacy=EPSILON)
    network.calm = network.copy(network.home.with_name("undisturbed")).go()
    return network


def waiting(network, name="north"):
    """A node that is up and waits for its neighbours."""
    child = network.start(name)
    until(lambda: network.status(name)["state"] == "agreeing", f"{name} to be up")
    return child


def told(network, words, name="north"):
    until(lambda: words in network.log(name), f"{name} to tell: {words}")


def intruder(network, identity, **tls):
    """A session that dials north with some identity, again and again."""
    address = network.run["nodes"][0]["endpoint"]
    return session(Site("intruder", (), identity, (), (address,)), PREFIX, **tls)


def asked(here, key, payload=None):
    """What comes back on a question."""
    answers = here.get(key, target=zenoh.QueryTarget.ALL, timeout=2.0, payload=payload)
    return [bytes(answer.ok.payload) for answer in answers if answer.ok is not None]


def hello(network, name):
    silo = network.silo(name)
    body = json.dumps(
        {"config": silo.config, "wire": SPOKEN, "last": None, "asks": "anything", "answers": None}
    ).encode()
    return Letter(
        "hello", run_id("trial"), bytes.fromhex(digest(silo.config)), name, 0, body
    ).sealed(silo.identity.key)


# Who gets in.


def expired(network, folder):
    made = identities.request("south", ["127.0.0.1"], folder)
    again(network, "south")
    authorities.sign_request(
        network.out / "authority", made, folder, datetime.now(UTC) - timedelta(days=40), 30
    )
    return {}


def again(network, name):
    """Let the authority sign for a name once more."""
    (network.out / "authority" / "issued" / f"{name}.pem").unlink()


def of_another_authority(network, folder):
    authorities.make_authority(folder.with_name("others"), "others", datetime.now(UTC))
    authorities.make_node(
        folder.with_name("others"), "south", ["127.0.0.1"], folder, datetime.now(UTC), 30
    )
    shutil.copy(network.out / "authority" / "ca.pem", folder / "ca.pem")
    return {}


def without_certificate(network, folder):
    folder.mkdir()
    shutil.copy(network.out / "authority" / "ca.pem", folder / "ca.pem")
    names = [
        f"{side}_{what}"
        for side in ("listen", "connect")
        for what in ("certificate", "private_key")
    ]
    return {**dict.fromkeys(names), "enable_mtls": False}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (without_certificate, "refused a link: it showed no certificate"),
        (expired, "refused a link: its certificate has expired"),
        (
            of_another_authority,
            "refused a link: its certificate was not signed by this consortium's authority",
        ),
    ],
)
def test_an_outsider_gets_no_link(network, tmp_path, kind, words):
    tls = kind(network, tmp_path / "intruder")
    child = waiting(network)
    with intruder(network, tmp_path / "intruder", **tls) as here:
        heard = []
        subscriber = here.declare_subscriber(
            "**", heard.append, allowed_origin=zenoh.Locality.REMOTE
        )
        told(network, words)
        assert not asked(
            here, f"{PREFIX}/north/hello", hello(network, "south")
        )  # with a genuine neighbour's signature
        here.put(f"{PREFIX}/south/letter/message/0/south", b"x")
        others = {name: network.start(name) for name in ("south", "west")}
        network.finish({"north": child, **others})
        assert not heard
        del subscriber
    assert network.status("north")["rejected"] == {}
    network.as_undisturbed()


def test_a_member_that_is_no_neighbour_gets_nothing(network, tmp_path):
    stranger = tmp_path / "stranger"
    authorities.make_node(
        network.out / "authority", "stranger", ["127.0.0.1"], stranger, datetime.now(UTC), 30
    )
    child = waiting(network)
    with intruder(
        network, network.identity("south")
    ) as here:  # what a neighbour gets, for comparison
        until(
            lambda: asked(here, f"{PREFIX}/north/hello", hello(network, "south")),
            "north to greet a neighbour",
        )
    with intruder(network, stranger) as here:
        heard = []
        subscriber = here.declare_subscriber(
            "**", heard.append, allowed_origin=zenoh.Locality.REMOTE
        )
        token = here.liveliness().declare_subscriber("**", heard.append, history=True)
        told(
            network,
            "a link with stranger, which has a certificate of the consortium but is no neighbour: "
            "it gets nothing",
        )
        for _ in range(3):
            assert not asked(here, f"{PREFIX}/north/hello", hello(network, "south"))
            assert not asked(here, f"{PREFIX}/north/**")
        genuine = network.calm.spends("west")[0]
        here.put(f"{PREFIX}/west/letter/message/0/west", sealed(network, "west", 0, genuine))
        others = {name: network.start(name) for name in ("south", "west")}
        network.finish({"north": child, **others})
        assert not heard
        del subscriber, token
    network.as_undisturbed()


def sealed(network, name, n, body):
    silo = network.silo(name)
    return Letter(
        "message", run_id("trial"), bytes.fromhex(digest(silo.config)), name, n, body
    ).sealed(silo.identity.key)


def test_a_neighbour_cannot_speak_for_another(network):
    """South holds genuine letters of west and hands them over as if it were west: blocked by name,
    told, and not taken.
    """
    child = waiting(network)
    with intruder(network, network.identity("south")) as here:
        until(lambda: asked(here, f"{PREFIX}/north/hello", hello(network, "south")), "a link")
        questions = []
        spoofs = [
            here.liveliness().declare_token(f"{PREFIX}/west/alive"),
            here.declare_queryable(f"{PREFIX}/west/**", questions.append),
        ]
        genuine = sealed(network, "west", 0, network.calm.spends("west")[0])
        for _ in range(20):
            here.put(f"{PREFIX}/west/letter/message/0/west", genuine)
            here.put(f"{PREFIX}/north/letter/message/0/north", genuine)
            time.sleep(0.1)
            if "blocked south" in network.log("north"):
                break
        told(
            network,
            f"blocked south: it tried to send under {PREFIX}/west/letter/message/0/west, a name "
            f"that is not its own",
        )
        until(lambda: "west" in network.status("north")["waiting"], "north to wait for west")
        time.sleep(3)  # it asks west every second
        assert network.status("north")["neighbours"]["west"] == "away"
        assert not questions
        assert not network.letters("north")
        assert network.status("north")["rejected"] == {}
        del spoofs
    network.finish({"north": child, **{name: network.start(name) for name in ("south", "west")}})
    network.as_undisturbed()


def test_a_node_that_shows_another_name_is_not_dialled(network, tmp_path):
    """Who listens on north's address with a genuine certificate for another host gets no letter."""
    impostor = tmp_path / "impostor"
    again(network, "north")
    authorities.make_node(
        network.out / "authority", "north", ["other.example.org"], impostor, datetime.now(UTC), 30
    )
    address = network.run["nodes"][0]["endpoint"]
    with session(Site("north", (), impostor, (address,)), PREFIX) as here:
        heard = []
        subscriber = here.declare_subscriber(
            "**", heard.append, allowed_origin=zenoh.Locality.REMOTE
        )
        children = {name: network.start(name) for name in ("south", "west")}
        told(network, f"refused a link with {address}: its certificate names another host", "west")
        assert not asked(here, f"{PREFIX}/west/hello", hello(network, "north"))
        assert not heard
        del subscriber
    network.finish({**children, "north": network.start("north")})
    network.as_undisturbed()


# What is on the wire.


class Tap:
    """Every byte that passes an interface."""

    def __init__(self, interface="lo"):
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        except PermissionError:
            pytest.skip(NO_NAMESPACES)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.bind((interface, 0))
        self._socket.settimeout(0.2)
        self.packets, self._over = [], threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _listen(self):
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                self.packets.append(self._socket.recv(70000))

    def content(self, those):
        """Payloads to or from TCP ports."""
        found = []
        for packet in self.packets:
            ip = packet[14:]
            if len(ip) < 40 or ip[0] >> 4 != 4 or ip[9] != 6:
                continue
            tcp = ip[4 * (ip[0] & 15) :]
            if {int.from_bytes(tcp[:2], "big"), int.from_bytes(tcp[2:4], "big")} & those:
                found.append(tcp[4 * (tcp[12] >> 4) :])
        return b"".join(found)


@pytest.mark.parametrize("open_wire", [True, False], ids=["bare", "tls"])
def test_nothing_can_be_read_on_the_wire(network, open_wire):
    """And a bare wire shows all of it, so that the tap is known to see."""
    those = {int(section["endpoint"].rpartition(":")[2]) for section in network.run["nodes"]}
    with Tap() as tap:
        network.go(*(["--unlocked"] if open_wire else []))
        time.sleep(0.5)
    seen = tap.content(those)
    assert len(seen) > 50_000
    words = [
        b"DYDP",
        PREFIX.encode(),
        b"/message/",
        b"north",
        b"south",
        b"west",
        b"schooling",
        run_id("trial"),
    ]
    floats = [
        message[k : k + 16]
        for name in network.names
        for message in network.spends(name).values()
        for k in range(0, len(message) - 15, 8)
        if np.count_nonzero(np.frombuffer(message[k : k + 16], "<f8")) == 2
    ]
    assert len(floats) > 300
    if open_wire:
        assert all(word in seen for word in words)
        assert sum(numbers in seen for numbers in floats) > 0.9 * len(floats)
    else:
        assert not [word for word in words if word in seen]
        assert not [numbers for numbers in floats if numbers in seen]
    network.as_undisturbed()


# Cut links.


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr}")


class Bridge:
    """A switch and a network namespace for each node, on it by a cable that can be cut; nothing of
    it leaves them.
    """

    def __init__(self, names):
        self.hub = f"dynadp-{os.getpid()}-hub"
        self.spaces = {name: f"dynadp-{os.getpid()}-{i}" for i, name in enumerate(names)}
        self.hosts = {name: f"10.213.7.{i + 1}" for i, name in enumerate(names)}

    def __enter__(self):
        if shutil.which("ip") is None:
            pytest.skip(NO_NAMESPACES)
        try:
            ip("netns", "add", self.hub)
        except OSError:
            pytest.skip(NO_NAMESPACES)
        try:
            ip("-n", self.hub, "link", "add", "switch", "type", "bridge")
            ip("-n", self.hub, "link", "set", "switch", "up")
            for i, (name, space) in enumerate(self.spaces.items()):
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
                ip(
                    "-n",
                    self.hub,
                    "link",
                    "add",
                    f"port{i}",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    space,
                )
                ip("-n", self.hub, "link", "set", f"port{i}", "master", "switch", "up")
                ip("-n", space, "address", "add", f"{self.hosts[name]}/24", "dev", "eth0")
                ip("-n", space, "link", "set", "eth0", "up")
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for space in (*self.spaces.values(), self.hub):
            with contextlib.suppress(OSError):
                ip("netns", "delete", space)

    def cable(self, name, state):
        ip("-n", self.hub, "link", "set", f"port{list(self.spaces).index(name)}", state)


@pytest.fixture
def bridge():
    with Bridge(("north", "south", "west", "east", "centre")) as made:
        yield made


def away(network, name, *others):
    """Whether a node misses these neighbours, or all of them."""
    neighbours = network.status(name)["neighbours"]
    return all(neighbours.get(other) == "away" for other in others or neighbours)


def test_a_cut_cable(tmp_path, bridge, nursery):
    """A node that nobody reaches for longer than a link is believed to live; then all goes on."""
    network = Network.make(tmp_path / "home", nursery, nodes=5, hosts=bridge.hosts)
    calm = network.copy(tmp_path / "calm")
    calm.finish({name: calm.start(name, netns=space) for name, space in bridge.spaces.items()})
    children = {
        name: network.start(name, "--delay", "noted:1", netns=space)
        for name, space in bridge.spaces.items()
    }
    until(lambda: network.status("west")["round"] >= 1, "a round")
    bridge.cable("west", "down")
    cut = network.status("west")["round"]
    for name in ("south", "east"):
        until(lambda at=name: away(network, at, "west"), f"{name} to miss west")
        assert network.status(name)["round"] <= cut + 2
    assert all(child.code is None for child in children.values())
    bridge.cable("west", "up")
    network.finish(children)
    network.sound()
    assert network.models() == calm.models()
    assert "west is away" in network.log("south")


def test_a_network_in_two_halves(tmp_path, bridge, nursery):
    """All cables cut, and put back one by one."""
    network = Network.make(tmp_path / "home", nursery, nodes=5, hosts=bridge.hosts, rounds=8)
    calm = network.copy(tmp_path / "calm")
    calm.finish({name: calm.start(name, netns=space) for name, space in bridge.spaces.items()})
    children = {
        name: network.start(name, "--delay", "noted:1", netns=space)
        for name, space in bridge.spaces.items()
    }
    until(lambda: network.status("west")["round"] >= 2, "two rounds")
    for name in bridge.spaces:
        bridge.cable(name, "down")
    for name in bridge.spaces:
        until(lambda at=name: away(network, at), f"{name} to miss everybody")
    for name in bridge.spaces:
        bridge.cable(name, "up")
    network.finish(children)
    network.sound()
    assert network.models() == calm.models()


# A relay.


@contextlib.contextmanager
def relaying(network, address):
    process = typed("relay", network.out / "identities" / "relay", "--listen", address)
    try:
        yield process
    finally:
        end_group(process)
        process.stdout.close()
        process.stderr.close()


def relayed(home, nursery, **given):
    address = f"127.0.0.1:{ports(1)[0]}"
    network = Network.make(home, nursery, relay=address, **given)
    authorities.make_node(
        network.out / "authority",
        "relay",
        ["127.0.0.1"],
        network.out / "identities" / "relay",
        datetime.now(UTC),
        30,
    )
    return network, address


def test_nodes_without_addresses_run_through_a_relay_that_comes_and_goes(tmp_path, nursery):
    network, address = relayed(
        tmp_path / "home", nursery, nodes=5, privacy=EPSILON, topology={"family": "star"}
    )
    calm = network.copy(tmp_path / "calm")
    with relaying(calm, address):
        calm.go()
    calm.sound()
    with relaying(network, address):
        children = network.start_all("--delay", "noted:0.1")
        until(lambda: network.status("west")["round"] >= 2, "two rounds")
    stood = network.status("west")["round"]  # the relay was killed
    until(lambda: "away" in network.status("north")["neighbours"].values(), "its end to be noticed")
    assert all(child.code is None for child in children.values())
    assert network.status("west")["round"] <= stood + 1 < network.silo("west").plan.rounds
    with relaying(network, address):
        network.finish(children)
    network.sound()
    assert network.models() == calm.models()


def test_a_relay_needs_a_relays_certificate(network):
    done = subprocess.run(
        [DYNADP, "relay", network.identity("north"), "--listen", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "a relay's is of 'relay'" in done.stderr


def wrapped(network, name):
    """How a node wraps what it sends through a relay."""
    silo = network.silo(name)
    keys = {
        section["name"]: identities.public_key(section["key"]) for section in network.run["nodes"]
    }
    return Envelopes(name, silo.identity.key, keys, run_id("trial"))


def test_a_member_behind_a_relay_cannot_lie_for_another(tmp_path, nursery):
    """There the access control sees the relay alone; what a member can sign and wrap counts."""
    network, address = relayed(tmp_path / "home", nursery)
    with relaying(network, address):
        child = waiting(network)
        with session(
            Site("west", ("north",), network.identity("west"), relay=address), PREFIX
        ) as here:
            mine = wrapped(network, "west")
            greeting = mine.close(hello(network, "west"), ["north"])
            until(lambda: asked(here, f"{PREFIX}/north/hello", greeting), "a way to north")
            assert not asked(here, f"{PREFIX}/north/hello", hello(network, "west"))  # in the open
            silo = network.silo("west")
            grid = silo.part.grids()["south", "message", 1]
            body = np.zeros(grid.dimension).tobytes()
            forged = Letter(
                "message", run_id("trial"), bytes.fromhex(digest(silo.config)), "south", 1, body
            ).sealed(silo.identity.key)
            for _ in range(50):
                for name in ("south", "west"):
                    lie = mine.close(forged, ["north"])
                    here.put(f"{PREFIX}/{name}/letter/message/1/{name}", lie)
                time.sleep(0.1)
                if len(network.status("north")["rejected"]) > 2:
                    break
        told(network, "refused a letter of south: no envelope for this node, or not from whom")
        told(network, "refused a letter of west: forged: not signed with the key")
        assert any("forged" in reason for reason in network.status("north")["rejected"])
        network.finish(
            {"north": child, **{name: network.start(name) for name in ("south", "west")}}
        )
    network.sound()


def uniform(data):
    """Whether bytes look like chance: chi-square over their values, and nothing to compress."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    square = float(((counts - expected) ** 2 / expected).sum())
    return square < 255 + 6 * np.sqrt(2 * 255) and len(zlib.compress(data, 9)) >= len(data)


@pytest.mark.parametrize("mechanism", ["dual", "sum"])
def test_a_relay_and_members_behind_it_read_nothing(tmp_path, nursery, mechanism):
    """TLS ends at the relay, and it hands what it carries to every member that asks."""
    network, address = relayed(
        tmp_path / "home", nursery, privacy={**EPSILON, "mechanism": mechanism}
    )
    stranger = tmp_path / "stranger"
    authorities.make_node(
        network.out / "authority", "stranger", ["127.0.0.1"], stranger, datetime.now(UTC), 30
    )
    heard = []
    with relaying(network, address):
        child = waiting(network)
        with session(Site("stranger", network.names, stranger, relay=address), PREFIX) as here:
            subscriber = here.declare_subscriber(
                f"{PREFIX}/**", lambda sample: heard.append(bytes(sample.payload))
            )
            others = {name: network.start(name) for name in ("south", "west")}
            network.in_round("north", 1)
            got = [
                data
                for name in network.names
                for what in ("**", f"letter/message/1/{name}", f"letter/sum/1/{name}")
                for data in asked(here, f"{PREFIX}/{name}/{what}")
            ]
            network.finish({"north": child, **others})
            del subscriber
    heard += got
    kept = [body for name in network.names for body in network.letters(name).values() if body]
    assert len(heard) > len(network.names) * network.silo("north").plan.rounds / 2
    seen = b"".join(heard)
    assert len(seen) > 5000
    assert uniform(seen)
    assert not uniform(b"".join(kept))  # which the same measure tells apart
    for body in kept:
        for k in range(0, len(body) - 7, 8):
            if np.frombuffer(body[k : k + 8], "<f8")[0]:
                assert body[k : k + 8] not in seen
    for word in (b"DYDP", b"north", b"config", run_id("trial")):
        assert word not in seen


def test_behind_a_relay_nobody_can_pretend_that_a_node_is_up(tmp_path, nursery):
    """A stranger shows the sign of an absent node, and answers for it with whatever it has."""
    network, address = relayed(tmp_path / "home", nursery)
    stranger = tmp_path / "stranger"
    authorities.make_node(
        network.out / "authority", "stranger", ["127.0.0.1"], stranger, datetime.now(UTC), 30
    )
    questions = []

    def answer(query):
        questions.append(bytes(query.payload))
        query.reply(query.key_expr, questions[0])

    with relaying(network, address):
        child = waiting(network)
        with session(Site("stranger", network.names, stranger, relay=address), PREFIX) as here:
            kept = [
                here.liveliness().declare_token(f"{PREFIX}/west/alive"),
                here.declare_queryable(f"{PREFIX}/west/**", answer),
            ]
            until(lambda: sum(network.status("north")["rejected"].values()) > 5, "its answers")
            assert network.status("north")["neighbours"]["west"] == "away"
            assert "west is up" not in network.log("north")
            del kept
        others = {name: network.start(name) for name in ("south", "west")}
        network.finish({"north": child, **others})
        assert "west is up" in network.log("north")
    network.sound()
