"""Mistakes that careful implementers of sealed sums make, each planted on purpose and each caught;
docs/audit.md shows the table.

PYTHONPATH=tests python tests/research/test_sealed_mutants.py        writes the table anew
"""

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest

from dynadp.consensus import masks as masks_module
from dynadp.consensus.masks import MaskGraph, Masks, decoded
from dynadp.consensus.releases import ReleasePlan
from dynadp.consensus.run_keys import Label, PairKeys, RunKey, stream
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines import journal as journal_module
from dynadp.engines.journal import LedgerJournal
from dynadp.engines.memory import MemoryNetwork
from dynadp.errors import DeclarationError, SumSpoiled
from dynadp.mechanisms import sealed as sealed_module
from dynadp.mechanisms.base import Sealing
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.gaussian import GaussianNoise
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.plans import Consortium, Plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.problem.losses import Logistic
from dynadp.research.audit import AuditedSealed, Keyring, Stream, audit_mechanism, worst_sum_cases
from dynadp.runs.training import train
from support.mutants import PatchedMutant as Mutant
from support.mutants import Table

DRAWS, DELTA, P = 8_000, 1e-5, 4
STATISTICAL, EXACT = "bound on μ from draws", "exact distance before noise"
DIFFERENCE = "difference of two letters of one node"
MIXED = "letters that do not belong together, added up"
SEARCH = "search of ledgers, letters, folders and the log"
AFTERWARDS = "search of files and memory after the run"
LABELS = "streams under labels that differ in one part"
RESENT = "bytes of all letters of a run that was cut short"
NAMES = tuple(f"n{p}" for p in range(P))


# --------------------------------------------------------------------------------------------------
# the audit


OPPOSITE = worst_sum_cases(1)[0]
# every slope is -1 in round 1, and 0 in round 2: what the row adds is what its letters differ by
ONCE = replace(
    worst_sum_cases(2)[0],
    rows=np.array([[0.3, 0.95]] + [[1.0, 0.0]] * 40),
    other=np.array([[0.3, -0.95]] + [[1.0, 0.0]] * 40),
    loss=Logistic(),
    heard=np.array([-40.0, 0.0]),
    eta=0.005,
    name="a row that counts in one of two rounds",
)


def look(nodes, honest, case=OPPOSITE, rounds=1, **more):
    given = {"honest": honest, "spares": 0, **more}
    how = {"draws": DRAWS, "source": Stream(7), "cases": (case,), "nodes": nodes}
    try:
        return audit_mechanism(Sealed(**given), 1.0, len(case.heard), rounds, **how)
    except DeclarationError:  # refused before anything was sent
        return None


def beyond(*given, **more):
    def caught():
        found = look(*given, **more)
        return found is not None and found.mu_lower > found.mu_claimed

    return caught


def exactly(*given, **more):
    def caught():
        found = look(*given, **more)
        return found is not None and found.refuted_exactly

    return caught


def both(*given, **more):
    return lambda: exactly(*given, **more)() and beyond(*given, **more)()


# --------------------------------------------------------------------------------------------------
# checks of letters


def whole_numbers():
    return np.random.default_rng(1).integers(-(2**45), 2**45, (P, 16))


def keyring(members=NAMES, run="run"):
    secrets = {node: RunKey.draw(node, SeededEntropy(3)).secret for node in NAMES}
    sealing = Sealing(len(members), 2, len(members) - 1)
    return Keyring(members, sealing, {node: secrets[node] for node in members}, "us", run)


def letter(keys, n=1, attempt=0, transcript=bytes(32)):
    """The first node's letter without the masks that the third member and those after it know."""
    made = keys.masks(SeededEntropy(3))
    made.transcript = transcript
    sent = made.sealed(whole_numbers()[: len(keys.members)], keys.members, n, attempt)
    who = keys.coalition(keys.members[2:], keys.members[0])
    for known in who._masks:
        known.transcript = transcript
    return who.open(sent[:, None], n, attempt).alone[0]


def alike(other):
    """Whether masks cancel in the difference of two letters, which then is that of two small
    numbers. 16 uniform ones are all so small with a chance of 8^-16.
    """

    def caught():
        apart = letter(keyring()) - other()
        return bool((np.abs(apart.astype(float)) < 2.0**60).all())

    return caught


def added(attempt):
    """Whether a letter of one attempt and all others of another give a sum."""

    def caught():
        noise = AuditedSealed(OPPOSITE, Sealed(honest=2), 0.1, 1, P).releases.noises[0]
        made, k = keyring().masks(SeededEntropy(3)), np.ones((P, 16), np.int64)
        sent = made.sealed(k.copy(), NAMES, 1)
        sent[1] = made.sealed(k.copy(), NAMES, 1, attempt)[1]
        try:
            decoded(sent[:, None], noise)
        except SumSpoiled:
            return False
        return True

    return caught


def labels_collide():
    """Whether some part of a label makes no difference."""
    base = {"members": bytes(32), "sum": 1, "attempt": 0, "transcript": bytes(32)}
    other = {"members": b"\1" * 32, "sum": 2, "attempt": 1, "transcript": b"\1" * 32}
    key, all_ = bytes(range(32)), [base, *({**base, name: other[name]} for name in base)]
    streams = {stream(key, Label(**one), 4).tobytes() for one in all_}
    return len(streams) < len(all_)


def victim_alone():
    """Whether a coalition of two gets a letter for a sum over itself and one victim, where three
    of five are to be honest.
    """
    try:
        MaskGraph(NAMES[:3], Sealing(5, 3, 4))
    except DeclarationError:
        return False
    return True


def noise_repeats():
    """Whether the noise of two attempts at one sum is the same: what is masked, minus the sum."""
    hidden = []
    honest = Masks.sealed

    def watched(self, k, *args, **more):
        hidden.append(k.copy())
        return honest(self, k, *args, **more)

    node = AuditedSealed(OPPOSITE, Sealed(honest=2, spares=1), 1.0, 1, P, 0)
    with patch.object(Masks, "sealed", watched):
        node.transcript(OPPOSITE.rows, 8, SeededEntropy(1))
    first, second = hidden
    return bool((first == second).any())


# --------------------------------------------------------------------------------------------------
# labels and keys


def packed_with(**fixed):
    honest = Label.packed
    return patch.object(Label, "packed", lambda self: honest(replace(self, **fixed)))


def no_run():
    honest = RunKey.shared_with

    def shared(self, other, public, consortium, run):
        return honest(self, other, public, consortium, "")

    return patch.object(RunKey, "shared_with", shared)


def no_members():
    return patch.object(MaskGraph, "hash", property(lambda self: bytes(32)))


def short_masks():
    honest = masks_module.streams

    def short(*args):
        return (r >> np.uint64(32) for r in honest(*args))

    return patch.object(masks_module, "streams", short)


def few_partners():
    """Two partners are enough for anybody."""
    stack = ExitStack()

    def sealing(self):
        c = self.colluding
        return None if c is None else Sealing(self.honest + c, self.honest, 2)

    few = property(sealing)
    stack.enter_context(patch.object(Sealed, "sealing", few))
    stack.enter_context(patch.object(MaskGraph, "__post_init__", lambda self: None))
    return stack


# --------------------------------------------------------------------------------------------------
# noise


def silent_node():
    """The last node leaves its noise out."""
    honest = GaussianNoise.sealable

    def sealable(self, g, *args):
        made = honest(self, g, *args)
        made[-1] = self.steps_of(g)[-1]
        return made

    return patch.object(GaussianNoise, "sealable", sealable)


def noise_kept():
    """The noise of a sum is drawn once, for all attempts."""
    honest, kept = GaussianNoise._noise, {}

    def again(self, shape, draws, nodes, n):
        if self.purpose == "spare":
            return kept[shape]
        kept[shape] = honest(self, shape, draws, nodes, n)
        return kept[shape]

    return patch.object(GaussianNoise, "_noise", again)


def observer_honest():
    def among(self, members):
        return replace(self, honest=self.honest, colluding=members - self.honest)

    return patch.object(Sealed, "among", among)


def one_too_many():
    """1/sqrt(h + 1) of the noise."""
    honest = sealed_module.sealed_numbers

    def smaller(sealing, *args, **more):
        made = honest(replace(sealing, honest=sealing.honest + 1), *args, **more)
        return {**made, "sealing": sealing}

    return patch.object(sealed_module, "sealed_numbers", smaller)


def spares_for_free():
    honest = ReleasePlan.events

    def events(self, *args, **more):
        return tuple(e for e in honest(self, *args, **more) if e.purpose != "spare")

    return patch.object(ReleasePlan, "events", events)


# --------------------------------------------------------------------------------------------------
# what lies around


def at():
    return "2024-01-01T00:00:00+00:00"


class Fuse(Exception):
    """Power fails."""


class Watched(LedgerJournal):
    """Looks into its folder at every entry, and may lose power after some."""

    look, left = staticmethod(lambda: None), 10**9

    def spend(self, n, events, messages):
        if self.left == 0:
            raise Fuse
        self.left -= 1
        out = super().spend(n, events, messages)
        self.look()
        return out


def opened(folder, ledgers=None, **more):
    if ledgers is None:
        ledgers = {}
        for node in NAMES:
            ledgers[node] = Ledger.create(folder / f"{node}.ledger", node, who="me", at=at())
            ledgers[node].set_cap(Cap.of(20.0, DELTA), who="me", at=at())
    return Watched(ledgers, "run", dataset="rows", who="me", clock=at, **more)


DATA = census(200, seed=3, nodes=P, test_rows=10)
RING = Topology.family("ring", P).named(NAMES)
TWO = Sealed(honest=2, spares=0, second_moment=False)


def trained(journal, **more):
    given = {"epsilon": 1.0, "delta": DELTA, "mechanism": TWO, "draws": SystemEntropy()}
    return train(DATA.schema, DATA.tables(NAMES), RING, journal=journal, **given, **more)


def at_nodes(folder):
    """A short run at nodes of their own, each with its folder and its letters."""
    counts = tuple(s.rows for s in DATA.shards(names=NAMES))
    plan = Plan.of(mechanism=TWO, schedule=0.1, rounds=2, pull=1.0)
    plan = plan.on(Consortium(RING, counts, DATA.schema.dimension))
    with MemoryNetwork(
        DATA.schema, plan, DATA.tables(NAMES), folder, SeededEntropy(1), storage="dense"
    ) as network:
        network.finish()


def content_of(folder):
    return b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())


class Log(logging.Handler):
    """Keeps all that is logged."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record):
        self.text += self.format(record) + repr(record.args)


def spilled():
    """Whether a node's vector, as whole numbers, as float64 or in digits, is ever in a file or in
    the log: of a run in one process with ledgers, and of one at nodes.
    """
    hidden, log, found = [], Log(), set()
    honest, root = Masks.sealed, logging.getLogger()

    def watched(self, k, *args, **more):
        hidden.append(k.copy())
        return honest(self, k, *args, **more)

    def search(folder, last=0):
        content = content_of(folder)
        for row in (row for k in hidden[-last:] for row in k):
            parts = row.tobytes(), row.astype(float).tobytes(), row[:2].tobytes()
            found.update(part for part in parts if part in content)

    level = root.level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    try:
        with TemporaryDirectory() as folder, patch.object(Masks, "sealed", watched):
            journal = opened(Path(folder))
            journal.look = lambda: search(folder, last=1)
            trained(journal)
            search(folder)
            for ledger in journal.ledgers.values():
                ledger.close()
        with TemporaryDirectory() as folder, patch.object(Masks, "sealed", watched):
            at_nodes(Path(folder))
            search(folder)
    finally:
        root.removeHandler(log)
        root.setLevel(level)
    assert len(hidden) > 10
    # numbers of so many digits do not come up by chance
    digits = {str(v) for k in hidden for row in k for v in row[:2] if abs(v) > 10**9}
    return bool(found) or any(number in log.text for number in digits)


def vectors_kept():
    """k_p is kept beside the ledger, to have it again after a crash."""
    honest, journals = Masks.sealed, []
    begin = LedgerJournal.__init__

    def init(self, *args, **more):
        begin(self, *args, **more)
        journals.append(self)

    def sealed(self, k, nodes, n, attempt=0):
        for journal in journals[-1:]:
            if not journal.ledgers[NAMES[0]].path.parent.exists():
                continue  # of a run before
            journal.keep(n, dict(zip(nodes, k.copy().view(float), strict=True)))
        return honest(self, k, nodes, n, attempt)

    stack = ExitStack()
    stack.enter_context(patch.object(LedgerJournal, "__init__", init))
    stack.enter_context(patch.object(Masks, "sealed", sealed))
    return stack


def vectors_logged():
    honest = Masks.sealed

    def sealed(self, k, nodes, n, attempt=0):
        logging.getLogger("dynadp.consensus.masks").debug("sum %d of %s: %s", n, nodes, k.tolist())
        return honest(self, k, nodes, n, attempt)

    return patch.object(Masks, "sealed", sealed)


def keys_left():
    """Whether a key of a run that is over lies in a file, or in memory."""
    used, honest = [], PairKeys.__init__

    def init(self, keys, *args):
        honest(self, keys, *args)
        used.extend((self, key, key.secret) for key in keys.values())

    with TemporaryDirectory() as folder, patch.object(PairKeys, "__init__", init):
        journal = opened(Path(folder))
        trained(journal)
        for ledger in journal.ledgers.values():
            ledger.close()
        content = content_of(folder)
        files = [p for p in Path(folder).iterdir() if "-own-" in p.name]
    assert len(used) == P
    in_memory = any(pairs._shared or any(key._secret) for pairs, key, _ in used)
    return in_memory or bool(files) or any(secret in content for *_, secret in used)


def key_files_stay():
    return patch.object(journal_module, "forget_vectors", lambda *args: None)


def keys_stay_in_memory():
    return patch.object(Masks, "forget", lambda self: None)


def resent_anew():
    """Whether a run that goes on sends other bytes for a letter that was entered."""
    with TemporaryDirectory() as folder:
        first = opened(Path(folder))
        first.left = 3
        with pytest.raises(Fuse):
            trained(first)
        held = {
            (node, n): ledger.message("run", n)
            for node, ledger in first.ledgers.items()
            for n in ledger.rounds("run")
        }
        sent = {}

        def on_round(progress):
            for node, words in zip(NAMES, progress.messages[:, 0], strict=True):
                sent[node, progress.number] = words.tobytes()

        again = opened(Path(folder), first.ledgers, resume=True)
        trained(again, on_round=on_round)
        for ledger in first.ledgers.values():
            ledger.close()
    common = held.keys() & sent.keys()
    assert common
    return any(held[one] != sent[one] for one in common)


def letters_made_anew():
    """What a ledger holds is not looked up, and its refusal is passed over."""
    honest = LedgerJournal.spend

    def spend(self, n, events, messages):
        honest(self, n, events, messages)
        return messages

    stack = ExitStack()
    stack.enter_context(patch.object(LedgerJournal, "sent", lambda self, n: None))
    stack.enter_context(patch.object(LedgerJournal, "spend", spend))
    return stack


MUTANTS = {
    "mask reused": Mutant(
        "one stream for all sums: the label has members alone",
        f"{STATISTICAL} of two rounds, {DIFFERENCE}",
        lambda: packed_with(sum=0, attempt=0, transcript=bytes(32)),
        lambda: (
            beyond(10, 9, ONCE, 2)()
            and alike(lambda: letter(keyring(), n=2, transcript=b"\1" * 32))()
        ),
    ),
    "label without the sum's number": Mutant(
        "streams are labelled by the sums before alone",
        LABELS,
        lambda: packed_with(sum=0),
        labels_collide,
    ),
    "stream not bound to the attempt": Mutant(
        "the label has no attempt: two attempts have the same masks",
        f"{DIFFERENCE}; {MIXED}",
        lambda: packed_with(attempt=0),
        lambda: alike(lambda: letter(keyring(), attempt=1))() and added(1)(),
    ),
    "stream not bound to the run": Mutant(
        "keys of two nodes are the same in every run",
        DIFFERENCE,
        no_run,
        alike(lambda: letter(keyring(run="another"))),
    ),
    "letters of different members": Mutant(
        "the label has no members: a sum without one node has the masks of the sum with it",
        DIFFERENCE,
        no_members,
        alike(lambda: letter(keyring(NAMES[:3]))),
    ),
    "sum over too few": Mutant(
        "a node sends a letter for whatever members are named",
        "a sum over a coalition and one victim",
        lambda: patch.object(MaskGraph, "__post_init__", lambda self: None),
        victim_alone,
    ),
    "masks of 32 bits": Mutant(
        "masks are shorter than what they hide", STATISTICAL, short_masks, beyond(5, 4)
    ),
    "too few partners": Mutant(
        "each node shares masks with two others, where three may collude",
        f"{EXACT}, {STATISTICAL}",
        few_partners,
        both(7, 4),
    ),
    "one node without noise": Mutant(
        "a node that was declared honest sends its sum as it is",
        STATISTICAL,
        silent_node,
        beyond(3, 2),
    ),
    "same noise in two attempts": Mutant(
        "noise is drawn once for all attempts at a sum",
        "what two attempts hide",
        noise_kept,
        noise_repeats,
    ),
    "observer among the honest": Mutant(
        "honest = P is accepted: whoever looks knows its own noise",
        f"{EXACT}, {STATISTICAL}",
        observer_honest,
        both(2, 2),
    ),
    "1/√P of the noise": Mutant(
        "each node adds 1/√P of the noise, where P − 1 are honest",
        f"{EXACT}, {STATISTICAL}",
        one_too_many,
        both(2, 1),
    ),
    "spare attempt for free": Mutant(
        "a sum that is released once more is not charged",
        f"{EXACT}, {STATISTICAL}",
        spares_for_free,
        both(3, 2, spares=1),
    ),
    "own vector stored": Mutant(
        "a node keeps its vector k_p beside its ledger", SEARCH, vectors_kept, spilled
    ),
    "own vector logged": Mutant(
        "a node's vector k_p is logged at level DEBUG", SEARCH, vectors_logged, spilled
    ),
    "key left in a file": Mutant(
        "the file of a run's key outlives the run", AFTERWARDS, key_files_stay, keys_left
    ),
    "key left in memory": Mutant(
        "a run's keys are not overwritten", AFTERWARDS, keys_stay_in_memory, keys_left
    ),
    "letter made anew": Mutant(
        "a node that starts again sends another letter for a sum that it entered",
        RESENT,
        letters_made_anew,
        resent_anew,
    ),
}
TABLE = Table("mutant of sealed sums", MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_and_the_shipped_version_passes(name):
    MUTANTS[name].check()


def test_the_page_shows_this_table():
    assert TABLE.is_shown()


if __name__ == "__main__":
    TABLE.write()
