"""A hostile member with a real certificate against a real node, for as long as asked.

``python tests/support/hostile.py [SECONDS]``: three nodes in a ring, of which one is
hostile: it sends whatever it can under its TLS identity, forged and genuine. Prints how memory and
disk of the other two grew, and how many of its messages went out. Loopback only; it ends by itself.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dynadp.engines.letters import KINDS, Letter, run_id
from dynadp.engines.zenoh.wire import SPOKEN
from dynadp.runs import identities as pki
from support.networks import Network, Nursery, session, until

PREFIX = f"dynadp/{run_id('trial').hex()[:32]}"


class Hostile:
    """Everything that a member can send under its own name."""

    def __init__(self, network, me, here):
        silo = network.silo(me)
        self.me, self.here, self.key = me, here, silo.identity.key
        self.other = pki.signing_key(network.identity(me) / "sign.key")
        self.config = bytes.fromhex(silo.record("2026-01-01T00:00:00+00:00").config_hash)
        self.content, self.rules = silo.config, silo.part.grids()
        self.near = silo.part.neighbours
        self.random, self.sent = random.Random(1), 0
        self.tokens, self.names, self.ended = [], itertools.count(), False

    def letter(self, kind, n, body, run=None, config=None, note=b""):
        made = Letter(kind, run or run_id("trial"), config or self.config, self.me, n, body, note)
        return made.sealed(self.key)

    def key_of(self, *rest):
        return "/".join((PREFIX, *rest))

    def put(self, data, *rest):
        self.here.put(self.key_of(self.me, "letter", *(rest or ("message", "1", self.me))), data)
        self.sent += 1

    def ask(self, node, what, payload=None):
        self.here.get(self.key_of(node, what), lambda reply: None, payload=payload, timeout=0.2)
        self.sent += 1

    def greeting(self, **more):
        said = {"config": self.content, "wire": SPOKEN, "last": None}
        body = {**said, "asks": "x", "answers": None, **more}
        return json.dumps(body).encode()

    def attacks(self):
        """One after the other."""
        rng, rubbish = self.random, os.urandom
        deep = b"[" * 100_000 + b"]" * 100_000
        wide = json.dumps({f"k{i}": i for i in range(20_000)}).encode()
        vary = f"{next(self.names)} {rng.random()}"
        yield lambda: self.put(rubbish(rng.randrange(2000)))
        yield lambda: self.put(rubbish(3 << 20))
        yield lambda: self.put(self.letter("message", rng.randrange(2**31), rubbish(80)))
        yield lambda: self.put(self.letter("message", 1, rubbish(80), run=rubbish(32)))
        yield lambda: self.put(self.letter("message", 1, rubbish(80), config=rubbish(32)))
        yield lambda: self.put(self.letter("message", 1, b"", note=rubbish(1 << 18)))
        yield lambda: self.put(self.letter(rng.choice(KINDS), 1, deep))
        yield lambda: self.put(b"DYDP" + bytes([rng.randrange(256)]) + rubbish(200))
        yield lambda: self.put(rubbish(64), vary, str(rng.random()), "x" * rng.randrange(1, 2000))
        for node in self.near:
            other = {**self.content, vary: vary * 100}
            hellos = (
                self.letter("hello", 0, self.greeting(config=other), config=rubbish(32)),
                self.letter("hello", 0, self.greeting(config=vary), config=rubbish(32)),
                self.letter("hello", 0, self.greeting()),
                self.letter("hello", 0, deep),
                self.letter("hello", 0, wide),
                self.letter("hello", 0, rubbish(100)),
                rubbish(1000),
            )
            for what, hello in itertools.product(("hello", "beat", "done"), hellos):
                yield lambda node=node, what=what, hello=hello: self.ask(node, what, hello)
            beat = {"to": node, "asks": vary, "life": vary, "number": rng.randrange(2**40)}
            data = self.letter("hello", 0, json.dumps(beat).encode())
            yield lambda node=node, data=data: self.ask(node, "beat", data)
            for n in ("1", "0", "9" * 400, "-1", vary):
                what = f"letter/{rng.choice(KINDS)}/{n}/{node}"
                yield lambda node=node, what=what: self.ask(node, what)
            yield lambda node=node: self.ask(node, "**")
        yield self.flap

    def flap(self):
        """A sign of being up that comes and goes."""
        if self.tokens:
            self.tokens.pop().undeclare()
        else:
            alive = self.key_of(self.me, "alive")
            self.tokens.append(self.here.liveliness().declare_token(alive))
        self.sent += 1

    def go(self, seconds):
        """Send for so long, as fast as it goes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for attack in self.attacks():
                attack()
                if time.monotonic() > end:
                    break
        self.ended = True


def memory_of(pid):
    """Resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def room_of(folder):
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(network, seconds, *, report=print):
    """Let two nodes agree with the third, which is then replaced by a hostile one; return by how
    many bytes each of the two grew, and what they refused.
    """
    *honest, last = network.names
    children = {name: network.start(name) for name in honest}
    first = network.start(last)
    network.in_round(honest[0], 2)
    first.kill()
    first.wait()
    time.sleep(2.0)
    before = {name: measured(network, name, child) for name, child in children.items()}
    with session(network.silo(last).site(), PREFIX) as here:
        hostile = Hostile(network, last, here)
        thread = threading.Thread(target=hostile.go, args=(seconds,), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(30)
            for name, child in children.items():
                assert child.code is None, network.said(name)
                report(name, grown(before[name], measured(network, name, child)), flush=True)
    assert hostile.ended
    after = {name: measured(network, name, child) for name, child in children.items()}
    refused = {name: sum(network.status(name)["rejected"].values()) for name in honest}
    report("sent", hostile.sent, "refused", refused)
    return children, {name: grown(before[name], after[name]) for name in honest}


def goes_on(network):
    """Start the honest third node again; its name was claimed by a life with a high number."""
    last, at = network.names[-1], network.status(network.names[0])["round"]
    code = network.start(last).wait()
    assert code == 6, network.said(last)
    child = network.start(last)

    def moved():
        nonlocal child
        if child.code is not None:  # the name is still taken for some seconds
            child = network.start(last)
        return network.status(network.names[0])["round"] > at

    until(moved, "the run to go on", seconds=300)


def measured(network, name, child):
    """Memory and disk of a node."""
    return memory_of(child.pid), room_of(network.folder(name))


def grown(before, after):
    """By how many megabytes."""
    pairs = zip(("memory", "disk"), before, after, strict=True)
    return {what: round((now - then) / 2**20, 2) for what, then, now in pairs}


def main():
    """As typed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float, nargs="?", default=20.0)
    given = parser.parse_args()
    nursery = Nursery()
    try:
        with tempfile.TemporaryDirectory() as home:
            network = Network.make(
                Path(home) / "home", nursery, rounds=4000, cap=1e6, patience=given.seconds + 600
            )
            _, grew = measure(network, given.seconds)
            print(json.dumps(grew))
            goes_on(network)
            print("the run goes on")
            nursery.kill_all()
    finally:
        nursery.kill_all()
        nursery.close()


if __name__ == "__main__":
    main()
