"""A ledger that lost entries, brought up to what is known: every release that anybody holds with
the node's signature is charged.

Letters say what was released, run records say what was planned, and the anchor says how many
entries there were. What left no letter (a private evaluation, a count, a cap) cannot be rebuilt: if
the anchor knows of more entries than are found, or if there is none, nothing is guessed.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynadp.engines import Letter, Verifier, now
from dynadp.errors import BudgetRefused, DeclarationError, LedgerDamaged, RecordError
from dynadp.privacy import Anchor, Cap, Event, Ledger, Mark
from dynadp.runs.backups import let_appear, write_copy
from dynadp.runs.folder import load_run
from dynadp.runs.own_letters import ledger_run, own_letters, post_offices
from dynadp.runs.record import RunRecord

_CHARGED = ("cap", "reserve", "spend")  # a close charges nothing
_NOTHING = 1e-12  # epsilon of a cap under which nothing fits


@dataclass
class Lost:
    """Releases of one run that a ledger does not know.

    Attributes
    ----------
    run, created
        Its name in the ledger, and when it began.
    plan
        Its events at this node; None where the ledger has its reservation.
    messages
        By round.
    dataset
        Whose rows.
    """

    run: str
    created: str
    plan: list[Event] | None
    dataset: str
    messages: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Recovered:
    """What was entered.

    Attributes
    ----------
    runs
        Rounds that were entered, by run.
    missing
        How many entries of each kind the anchor remembers that could not be rebuilt.
    unknown
        Whether no anchor says how many entries there were, so that others may be missing too.
    head, entries
        Where the ledger stands now.
    """

    runs: dict[str, list[int]]
    missing: dict[str, int]
    unknown: bool
    head: str
    entries: int


@dataclass(frozen=True)
class Anew:
    """A ledger of which no copy is left: whose it was, and the cap that was in force."""

    node: str
    cap: Cap


def recover_ledger(
    path: str | Path,
    sources: Sequence[str | Path],
    key: Verifier,
    *,
    who: str,
    anchor: str | Path | None = None,
    charge_rest: bool = False,
    nothing_else: bool = False,
    begin: str | Path | Anew | None = None,
) -> Recovered:
    """Enter what signed letters show and a ledger does not know; all of it, or nothing, whenever
    the process ends. Called again it goes on.

    Parameters
    ----------
    path
        The ledger: an older copy, in its place.
    sources
        Run folders, or folders with such, or files of letters: the node's own, and copies from
        neighbours. Runs that the ledger does not know need their run.json too.
    key
        The node's public signing key: what it did not sign counts for nothing.
    who
        Who recovers.
    anchor
        The ledger's anchor, if not in this user's state folder.
    charge_rest
        Whether to go on where entries stay missing, or may be: then nothing more is admitted.
    nothing_else
        Whether who recovers knows that nothing was charged but what letters show, where no anchor
        says so.
    begin
        Where the ledger is missing: an older copy elsewhere, or :class:`Anew`.
    """
    path = Path(path)
    given = sources, key, who, charge_rest, nothing_else
    if begin is None:
        with Ledger.open(path, anchor=anchor, anchored=False) as ledger:
            return _recover(ledger, *given)
    if path.exists():
        raise DeclarationError(
            f"{path} exists, and --copy and --node are for a ledger that is missing; leave them "
            "out, or move that file away"
        )
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder, "ledger")
        if isinstance(begin, Anew):
            stamp = {"who": f"{who} (no copy is left)", "at": now()}
            with Ledger.create(partial, begin.node, anchored=False, **stamp) as ledger:
                ledger.set_cap(begin.cap, **stamp)
        else:
            write_copy(Path(begin), partial)
        with Ledger.open(partial, anchored=False) as ledger:
            ledger.anchor = Anchor(path, anchor)
            done = _recover(ledger, *given)
        let_appear(partial, path)  # after its anchor, which refuses any other
    return done


def _recover(
    ledger: Ledger,
    sources: Sequence[str | Path],
    key: Verifier,
    who: str,
    charge_rest: bool,
    nothing_else: bool,
) -> Recovered:
    by = f"{who} (recovered from letters{', and nothing else was charged' * nothing_else})"
    lost = find_lost(ledger, sources, key)
    mark = ledger.anchor.read()
    unknown = bool(lost) and not nothing_else and not _covers(mark, _counts(ledger, lost))
    if unknown and not charge_rest:
        raise LedgerDamaged(
            f"{ledger.anchor.ledger}: no anchor says how many entries it had"
            + (" when these letters were sent" if mark else "")
            + ". A charge that sends no letter (a private evaluation, a count, another cap) may be "
            "missing, and nobody could see that; nothing was changed. Put the newest anchor back "
            "(--anchor). Where there is none: --nothing-else, if you know that nothing was charged "
            "but what these letters show; or --charge-rest, which enters what is known and lets "
            "nothing more be admitted"
        )
    missing = _missing(ledger, lost, mark.kinds if mark else {})
    if missing and not charge_rest:
        names = ", ".join(f"{count} of kind {kind}" for kind, count in missing.items())
        raise LedgerDamaged(
            f"{ledger.anchor.ledger}: the anchor remembers entries that no letter shows ({names}), "
            "such as of a private evaluation, a count or a cap; nothing was changed. Give more "
            "letters: all run folders of this node, and its neighbours'. Where there are no more, "
            "--charge-rest enters what is known and lets nothing more be admitted"
        )
    # an anchor that lags may hide charges without letters behind letters that it does not know
    whole = mark is not None and _counts(ledger, lost) == {
        k: mark.kinds.get(k, 0) for k in _CHARGED
    }
    with ledger.together():
        for one in lost:
            _enter(ledger, one, by, close=whole)
        if (missing or unknown) and (cap := ledger.cap) is not None:
            ledger.set_cap(Cap(_NOTHING, cap.delta, cap.order), who=by, at=now())
    ledger.renew_anchor(mark.length if mark is not None and whole else 0)
    rounds = {one.run: sorted(one.messages) for one in lost}
    return Recovered(rounds, missing, unknown, ledger.head, ledger.state().length)


def find_lost(ledger: Ledger, sources: Sequence[str | Path], key: Verifier) -> list[Lost]:
    """Return what letters show and the ledger does not know, the earliest run first."""
    node, known = ledger.node, list(ledger.state().runs)
    offices = [office for place in sources for office in post_offices(place)]
    records = _records(offices)
    found: dict[tuple[bytes, bytes], dict[int, Letter]] = defaultdict(dict)
    for office in offices:
        for letter in own_letters(office, node, key):
            other = found[letter.run, letter.config].setdefault(letter.round, letter)
            if other.body != letter.body:
                raise LedgerDamaged(
                    f"two different messages of round {letter.round} have this node's signature, "
                    f"one of them in {office}: noise was drawn twice for one round, and no entry "
                    "can undo that. Count the run twice: set a smaller cap (docs/maths.md 5)"
                )
    lost = []
    for (_, config), letters in found.items():
        some = next(iter(letters.values()))
        run, record = ledger_run(known, some), records.get(config.hex())
        if run is None and (record is None or record.events is None):
            raise RecordError(
                f"letters of a run with the configuration {config.hex()[:16]} are there, and the "
                "ledger does not know it; give its run folder with run.json too"
            )
        if run is not None:
            entered = ledger.state().runs[run]
            one = Lost(run, entered.at, None, entered.dataset)
        else:
            assert record is not None
            plan = [event for event in record.events or () if event.node == node]
            one = Lost(record.run_id, record.created, plan, record.source)
        for n, letter in letters.items():
            before = None if run is None else ledger.message(run, n)
            if before is None:
                one.messages[n] = letter.body
            elif before != letter.body:
                raise LedgerDamaged(
                    f"round {n} of run {one.run!r} is entered in {ledger.path} with another "
                    "message than the one that this node signed: noise was drawn twice. Count the "
                    "run twice: set a smaller cap (docs/maths.md 5)"
                )
        if one.messages:
            lost.append(one)
    return sorted(lost, key=lambda one: one.created)


def _records(offices: Sequence[Path]) -> dict[str, RunRecord]:
    """Return the run records beside post offices, by the hash of their configuration."""
    folders = {office.parent for office in offices}
    found = [load_run(folder) for folder in folders if (folder / "run.json").exists()]
    return {record.config_hash: record for record in found}


def _covers(mark: Mark | None, counts: Mapping[str, int]) -> bool:
    """Whether an anchor is as new as the letters: caps and reservations are durable in it before
    anything is released, so one that knows fewer of them was put back, and hides charges without
    letters that came after it.
    """
    return mark is not None and all(mark.kinds.get(k, 0) >= counts[k] for k in ("cap", "reserve"))


def _missing(ledger: Ledger, lost: Sequence[Lost], were: Mapping[str, int]) -> dict[str, int]:
    """Return how many entries of each kind stay missing."""
    short = {kind: were.get(kind, 0) - count for kind, count in _counts(ledger, lost).items()}
    return {kind: count for kind, count in short.items() if count > 0}


def _counts(ledger: Ledger, lost: Sequence[Lost]) -> dict[str, int]:
    """Return how many entries that charge something there will be, of each kind."""
    have = dict(ledger.state().kinds)
    have["reserve"] = have.get("reserve", 0) + sum(one.plan is not None for one in lost)
    have["spend"] = have.get("spend", 0) + sum(len(one.messages) for one in lost)
    return {kind: have.get(kind, 0) for kind in _CHARGED}


def _enter(ledger: Ledger, lost: Lost, who: str, *, close: bool) -> None:
    """Enter the releases of one run. It is closed only where the anchor shows that all are found:
    an open run counts its whole plan.
    """
    if lost.plan is not None:
        ledger.reserve(lost.run, lost.plan, dataset=lost.dataset, who=who, at=now(), released=True)
    run = ledger.state().runs[lost.run]
    for n, message in sorted(lost.messages.items()):
        if n not in run.by_round:
            raise BudgetRefused(
                f"a letter of round {n} of run {lost.run!r} is there, and its plan has no such "
                "round; give the run.json that the run began with"
            )
        ledger.spend(lost.run, n, run.by_round[n], message, who=who, at=now())
    if close:
        run = ledger.state().runs[lost.run]
        reason = "finished" if run.rounds_spent == run.rounds_planned else "stopped"
        ledger.close_run(lost.run, reason, who=who, at=now())
