"""Random schedules of crash, clone, rollback, absence and return, of networks in memory.

Ledgers, anchors, letters, greetings, leases and grants are the real ones; links are a list, and
time is a number. What must hold at any moment: nobody holds two letters of one node for one
round, a ledger covers every letter that anybody holds, no cap is passed, and those who remain end
with one model.

``python tests/support/schedules.py [COUNT]`` runs so many, of ADMM, open and sealed sums in turn;
stopped and typed again it goes on where it was.
"""

import argparse
import functools
import json
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pool
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from dynadp.engines.letters import verify
from dynadp.engines.lives import Life
from dynadp.engines.zenoh import leases
from dynadp.engines.zenoh.greetings import Greetings
from dynadp.engines.zenoh.leases import TERM, Grants, Lease
from dynadp.errors import (
    BudgetRefused,
    LedgerDamaged,
    LeftBehind,
    NameTaken,
    NodeLost,
    RecordError,
    Rejected,
    SumSpoiled,
)
from dynadp.mechanisms.sealed import Sealed
from dynadp.privacy.accountant import total
from dynadp.privacy.ledger.file import Ledger
from support.absent import GO_ON, Drive, one_membership, one_model, setting
from support.memory import DELTA, EPSILON, RUN, Network, Node, memory

POINTS = ("computed", "spent", "kept", "published", "received", "noted", "signed", "decided")
SEALED = Sealed(honest=2, away=1, spares=3)
KINDS = ("admm", "sum", SEALED)
NODES, ROUNDS, PATIENCE = 4, 3, 12


class Guarded(Node):
    """A node that greets its neighbours and holds a lease before it draws, as on a network."""

    def __init__(self, network, me, folder=None, **more):
        if folder is None:
            super().__init__(network, me, **more)
        else:  # a copy of the disk
            made = network.nodes[me]
            self.__dict__.update(made.__dict__)
            self.folder, self.up, self.awaiting, self.result = folder, False, None, None
            self.ledger_path, self.letters_path = folder / "ledger", folder / "letters.sqlite"
            self.noted, self.events, self.starts = [], [], made.starts + 100
        self.older = folder is not None  # whether its disk is a copy, or was put back
        self.stack, self.lease, self.greeted, self.refused = None, None, {}, None

    @property
    def anchor(self):
        """On the same disk: a disk that is put back takes it along."""
        return self.folder / "anchor.json"

    def start(self):
        """Open the files, greet whoever is there, and ask for the name."""
        self.stack, self.lease, self.agreed = ExitStack(), None, False
        self.greeted, self.failed, self.claimed = {}, 0, False
        try:
            super().start()
            self.grants = Grants(self.folder / "grants.json")
        except LedgerDamaged as error:  # its anchor knows more
            self.refused = error
            self.stop()
            return
        except BudgetRefused as error:  # it was left behind before: its run is closed
            self.stop()
            if "is closed" not in str(error):
                raise
            raise LeftBehind(str(error)) from error
        try:
            life = Life.begin(self.stack, self.folder / "life", self.me)
        except NameTaken:
            self.stop()
            return
        self.lease = Lease(self.me, life, self.run.neighbours, goes_on=True)

    def stop(self):
        super().stop()
        if self.stack is not None:
            self.stack.close()

    def reached(self):
        """Neighbours that answer."""
        nodes = (self.network.nodes[j] for j in self.run.neighbours)
        return [j for j in nodes if j.up and j.me not in self.network.dead]

    def _greet(self):
        """As Links.agree: whoever is there shows the last letters that it holds."""
        mine, there = Greetings(self.inbox, {"run": "trial"}, self._message), self.reached()
        begun = self.ledger.rounds(RUN) or self.inbox.rounds_of(self.me, "held")
        if len(there) < (1 if begun else len(self.run.neighbours)):
            return
        for other in there:
            theirs = Greetings(other.inbox, {"run": "trial"}, other._message)
            for letter in mine.read(other.me, theirs.write(self.me, mine.question)):
                mine.require_known(other.me, letter)
            self.greeted[other.me] = other.holds(self.me)
        for data in self.inbox.latest(self.me):
            mine.require_known(str(self.inbox.path), mine.own(data))
        self.agreed = True

    def holds(self, author):
        """Kind and round of what this node's disk has of an author's releases."""
        kinds = ("message", "sum", "sealed")
        return {(kind, n) for kind in kinds for n in self.inbox.rounds_of(author, kind)}

    def _greeted(self):
        """Whether those who are there know nothing of this node that its ledger does not know."""
        try:
            self._greet()
        except LedgerDamaged as error:  # refused, before anything is drawn
            self.refused = error
            self.stop()
            return False
        return self.agreed

    def _message(self, n):
        return self.ledger.message(RUN, n)

    def hold(self):
        """Ask for the name, or for its confirmation; returns whether it is held."""
        if self.lease is None or not self.up:
            return False
        if not self.agreed and not self._greeted():
            return False
        if not self.lease.held:
            asked = {j.me: j for j in self.reached()}
            names = asked if self.lease.begun else self.lease.unasked({*asked})
            for j in [one for one in names if one in asked]:
                self.lease.asked.add(j)
                life, now = self.lease.life, self.network.clock
                told = asked[j].grants.answer(self.me, life.id, life.number, leaves=False)
                try:
                    self.lease.hear(j, told, now)
                except NameTaken:
                    self.stop()
                    return False
            if self.lease.begun and not self.claimed:  # another life may have sent meanwhile
                self.claimed = True
                if self.me in self.network.twins:
                    self.network.arrive(self.me)
                if not self._greeted():
                    return False
                self.lease.asked.update(self.run.neighbours)
        return self.lease.held

    def step(self):
        for _ in range(len(self.run.neighbours) + 8):
            if self.hold():
                self.failed = 0
                self.network.copied |= self.older
                try:
                    super().step()
                except (Rejected, RecordError) as error:  # another life of it sent something else
                    self.refused = error
                    raise NodeLost(str(error)) from error
                return
            if not self.up:
                return
            self.network.clock += TERM / 20
        self.failed += 1
        if self.failed > PATIENCE:
            raise NodeLost("nobody confirms its name")

    def offer(self, data, via):
        with suppress(Rejected):  # a second letter, of a twin: the first one is known
            self.network.received(data)
            super().offer(data, via)


class Remembering:
    """A public key that checks the same signature of the same bytes once."""

    def __init__(self, key):
        self.key, self.known = key, set()

    def verify(self, signature, data):
        if (signature, data) not in self.known:
            self.key.verify(signature, data)
            self.known.add((signature, data))


class Beyond(Exception):
    """Two letters of one round, where nobody who held the first one was there to show it: what no
    greeting can find (deployment.md).
    """


class Watched(Network):
    """A network that keeps the first letter of every round, and has a clock."""

    def __init__(self, chosen, folder):
        self.clock, self.dead, self.copied = 0.0, set(), False
        self.first, self.twins = {}, {}
        self.lucky = lambda: True
        super().__init__(chosen, folder, kind=Guarded, fresh=True)
        rules = next(iter(self.rules.values()))
        self.keys = {name: Remembering(key) for name, key in rules.keys.items()}
        self.rules = {name: replace(one, keys=self.keys) for name, one in self.rules.items()}

    def time(self):
        """What all nodes' clocks say."""
        return self.clock

    def see(self, data):
        """What is sent counts once somebody has it."""

    def received(self, data):
        """A node holds a letter: nobody holds another one of the same round."""
        letter = verify(data, self.keys)
        key = letter.author, letter.kind, letter.round
        if letter.kind not in ("message", "sum", "sealed"):
            return
        first = self.first.setdefault(key, letter.body)
        if first != letter.body:
            for one in self.incarnations(letter.author):
                for j, known in one.greeted.items():
                    knew = key[1:] in known
                    assert not knew or one.refused, f"{key} was drawn twice, and {j} knew"
            raise Beyond

    def arrive(self, name):
        """What a node sent is there within a lease's term, or lost."""
        for k in reversed(range(len(self.on_the_way))):
            via, to, data = self.on_the_way[k]
            if verify(data, self.keys).author == name:
                self.on_the_way.pop(k)
                if self.nodes[to].up and to not in self.dead and self.lucky():
                    self.nodes[to].offer(data, via)

    def incarnations(self, name):
        """All that run under a name."""
        return [self.nodes[name], *([self.twins[name]] if name in self.twins else [])]


@dataclass
class Outcome:
    """How one schedule ended.

    Attributes
    ----------
    ended
        How many nodes ended with what.
    did
        How often what happened.
    returned
        How many nodes were taken in again.
    """

    ended: Counter = field(default_factory=Counter)
    did: Counter = field(default_factory=Counter)
    returned: int = 0


class Play:
    """One random schedule."""

    def __init__(self, kind, seed, folder):
        self.rng, self.kind, self.did = random.Random(seed), kind, Counter()
        family = self.rng.choice(("complete", "ring", "star"))
        self.network = Watched(self._setting(family), folder)
        self.drive = Drive(self.network)
        self.network.dead = self.drive.dead
        self.network.lucky = lambda: self.rng.random() < 0.8
        self.gone = self.rng.sample([*self.network.nodes], self.rng.choice((0, 1, 1, 2)))
        self.impatience = self.rng.choice((0.0, 0.2, 1.0))
        self.copies, self.aside = {}, {}

    def _setting(self, family):
        if self.kind == "admm":
            chosen = setting("primal", family, NODES, rounds=ROUNDS + 1)
            return replace(chosen, absence=replace(GO_ON, least=self.rng.choice((None, 3))))
        return setting(self.kind, family, NODES, rounds=ROUNDS)

    def go(self, steps):
        """So many random things, then everybody who is left to the end; returns how it ended."""
        actions = ("deliver",) * 16 + ("step",) * 16 + ("ask",) * 4
        actions += ("drop", "drop", "double", "crash", "die", "back", "back")
        actions += ("impatient",) * 4 + ("gone",) * 2
        actions += ("copy", "clone", "clone", "disk", "disk", "ledger", "mend", "mend")
        actions += ("twin",) * 5
        with mock.patch.object(leases, "elapsed", self.network.time):
            for node in self.drive.alive():
                self.drive.attempt(node, node.start)
            for _ in range(steps):
                alive = self.drive.alive()
                if not alive:
                    break
                self.network.clock += self.rng.random() / 2
                what = self.rng.choice(actions)
                if getattr(self, "_" + what)(self.rng.choice(alive)):
                    self.did[what] += 1
            self._end()
            ended = self.drive.finish()
            self._check(ended)
            ends = Counter(type(one).__name__ for one in ended.values())
            return Outcome(ends, self.did, self._returned())

    # ----------------------------------------------------------------------------------------------
    # what happens

    def _deliver(self, node, *, double=False, drop=False):
        waiting = self.network.on_the_way
        for _ in range(1 if drop or double else self.rng.choice((1, 4, 16))):
            if not waiting:
                break
            k = self.rng.randrange(len(waiting))
            if double:
                waiting.append(waiting[k])
            waiting.pop(k) if drop else self.drive.deliver(k)
        return bool(waiting)

    def _drop(self, node):
        return self._deliver(node, drop=True)

    def _double(self, node):
        return self._deliver(node, double=True)

    def _step(self, node):
        for one in self.drive.alive():
            if one is node or self.rng.random() < 0.5:
                self.drive.advance(one)

    def _ask(self, node):
        if node.up:
            self.network.ask(node)

    def _crash(self, node):
        node.stop()
        return True

    def _die(self, node):
        node.plugged = self.rng.choice(POINTS)
        return True

    def _impatient(self, node):
        able = node.up and node.missing and node.hold() and self.rng.random() < self.impatience
        if able:
            self.drive.attempt(node, node.give_up)
        return able

    def _gone(self, node):
        if self.gone and self.rng.random() < 0.5:
            self.drive.kill(self.gone.pop())
            return True
        return False

    def _back(self, node):
        if self.drive.dead:
            self.drive.dead.discard(self.rng.choice(sorted(self.drive.dead)))
            return True
        return False

    def _copy(self, node):
        """Copy a node's disk, to be put back or started elsewhere later."""
        if node.me in self.copies:
            return False
        up = node.up
        node.stop()
        place = node.folder.with_name(f"{node.folder.name}-copy")
        shutil.copytree(node.folder, place)
        self.copies[node.me] = place
        if up:
            self.drive.attempt(node, node.start)
        return True

    def _clone(self, node):
        """A copied disk is started on a second machine."""
        if node.me in self.network.twins or node.me in self.aside:
            return False
        self._copy(node)
        place = node.folder.with_name(f"{node.folder.name}-twin")
        shutil.copytree(self.copies[node.me], place)
        self.network.twins[node.me] = Guarded(self.network, node.me, place)
        return True

    def _twin(self, node):
        """A second machine does what it can."""
        if not self.network.twins:
            return False
        node = self.network.nodes[self.rng.choice(sorted(self.network.twins))]
        twin = self.network.twins[node.me]
        if twin is None or twin.refused or twin.result is not None:
            return False
        self.drive.ended.pop(node.me, None)
        self.network.arrive(node.me)
        if not twin.up:
            with suppress(NodeLost, LeftBehind, SumSpoiled):
                twin.start()
        if twin.up:
            self.network.ask(twin)
            if twin.ready:
                with suppress(NodeLost, LeftBehind, SumSpoiled):
                    twin.step()
        return True

    def _disk(self, node):
        """A whole disk is put back to an older copy."""
        return self._put_back(node, whole=True)

    def _ledger(self, node):
        """A ledger alone is put back to an older copy; its anchor stays."""
        return self._put_back(node, whole=False)

    def _put_back(self, node, *, whole):
        if node.me not in self.copies or node.me in self.aside or node.me in self.network.twins:
            return False
        node.stop()
        self.network.clock += TERM
        self.network.arrive(node.me)
        self.aside[node.me] = place = node.folder.with_name(f"{node.folder.name}-newest")
        shutil.copytree(node.folder, place)
        if whole:
            node.older = True
            shutil.rmtree(node.folder)
            shutil.copytree(self.copies[node.me], node.folder)
        else:
            shutil.copy(self.copies[node.me] / "ledger", node.ledger_path)
        return True

    def _mend(self, node):
        """The newest copy is put back, as a node that was refused asks for."""
        refused = [p for p in self.aside if self.network.nodes[p].refused]
        if not refused:
            return False
        node = self.network.nodes[refused[0]]
        node.stop()
        place = self.aside.pop(node.me)
        shutil.rmtree(node.folder)
        shutil.move(place, node.folder)
        node.refused, node.older = None, False
        return True

    # ----------------------------------------------------------------------------------------------
    # the end

    def _end(self):
        """Of two machines the one with the newer ledger stays; newest disks are put back."""
        network = self.network
        for node in network.nodes.values():
            node.plugged = None
        for name, twin in network.twins.items():
            node = network.nodes[name]
            twin.stop()
            node.stop()
            self.network.arrive(name)
            if len(twin.spends()) > len(node.spends()):
                network.nodes[name], network.twins[name] = twin, node
                self.drive.ended.pop(name, None)
        while self._mend(None):
            pass
        network.clock += 4 * TERM

    def _check(self, ended):
        network, chosen = self.network, self.network.setting.chosen
        for node in network.nodes.values():
            lives = [self._spent(life) for life in network.incarnations(node.me)]
            spent = lives[0]
            planned = Counter(event for event in chosen.events if event.node == node.me)
            with Ledger.open(node.ledger_path, read_only=True, anchored=False) as ledger:
                events = ledger.spent()
            assert Counter(events) <= planned
            assert lost(tuple(events)) <= EPSILON * 1.0001
            stale = node.me in self.aside
            for (author, kind, n), body in network.first.items():
                if author == node.me and not stale:
                    assert n in spent, (author, kind, n)
                    assert body in {life.get(n) for life in lives}, (author, kind, n)
        if (
            network.copied
        ):  # a copied disk took part: what it forgot it may have signed (maths.md 17)
            return
        self.did["compared"] += 1
        if self.kind == "admm":
            models = {}
            for result in ended.values():
                if not isinstance(result, Exception):
                    members = result.members or tuple(network.nodes)
                    model = result.vector.tobytes()
                    assert models.setdefault(members, model) == model
        else:
            one_membership(network, one_model(ended, network.nodes))

    def _returned(self):
        """How many nodes asked to be taken in again, and sent something after that."""
        count = 0
        for node in self.network.nodes.values():
            if not node.up:
                continue
            asked = node.inbox.rounds_of(node.me, "back") + node.inbox.rounds_of(node.me, "join")
            last = max(node.spends(), default=0)
            after = [node.inbox.read(node.me, "back", n).body for n in asked if self.kind != "admm"]
            count += any(last > int.from_bytes(body, "little") for body in after)
            count += bool(self.kind == "admm" and asked)
        return count

    def _spent(self, node):
        with Ledger.open(node.ledger_path, read_only=True, anchored=False) as ledger:
            return {n: ledger.message(RUN, n) for n in ledger.rounds(RUN)}


@functools.cache
def lost(events):
    """What an account says of these releases."""
    return total(events, DELTA).epsilon if events else 0.0


def schedule(kind, seed):
    """One random schedule; returns how it ended."""
    with memory() as folder:
        play = Play(kind, seed, folder)
        try:
            return play.go(play.rng.choice((30, 60, 90)))
        except Beyond:
            return Outcome(Counter(), Counter(beyond=1))
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}: {error}") from error
        finally:
            for node in (*play.network.nodes.values(), *play.network.twins.values()):
                node.stop()


# --------------------------------------------------------------------------------------------------
# as typed

PART = 100


def part(first):
    """A hundred schedules, from this seed on; returns what happened, to be added up."""
    began, found = time.monotonic(), {"first": first, "ended": Counter(), "did": Counter()}
    broken = found["broken"] = []
    for seed in range(first, first + PART):
        try:
            outcome = schedule(KINDS[seed % len(KINDS)], seed)
        except AssertionError as error:
            traceback.print_exception(error)
            broken.append(seed)
            continue
        found["ended"].update(outcome.ended)
        found["did"].update(outcome.did)
        found["did"]["returned"] += outcome.returned
        found["did"]["whole"] += outcome.ended["NodeResult"] == NODES
    return found | {"seconds": round(time.monotonic() - began, 1)}


def main():
    """Runs what a log does not hold yet, a line for every hundred; names what was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--log", type=Path, default=Path("schedules.jsonl"), help="is continued")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    given.log.touch()
    done = [json.loads(line) for line in given.log.read_text().splitlines()]
    firsts = {*range(0, given.count, PART)} - {one["first"] for one in done}
    with given.log.open("a") as log, Pool(given.jobs) as pool:
        for one in pool.imap_unordered(part, sorted(firsts)):
            done.append(one)
            print(json.dumps(one), file=log, flush=True)
    ended, did, broken = Counter(), Counter(), []
    for one in done:
        ended.update(one["ended"])
        did.update(one["did"])
        broken += one["broken"]
    seconds = sum(one["seconds"] for one in done)
    print(f"{len(done) * PART} schedules, {seconds:.0f} s; broken: {broken or 'none'}", did, ended)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
