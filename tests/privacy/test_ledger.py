"""The ledger: never an unrecorded release, never twice, never past the cap; and what was done to
the file shows.

Real files and real processes: see ledger_worker.py.
"""

import contextlib
import dataclasses
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynadp.errors import BudgetRefused, DeclarationError, LedgerDamaged, LedgerError, SeededRefused
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import DualPerturbation, L2Laplace
from dynadp.privacy.ledger.entries import Entry
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.store import APPLICATION, SCHEMA
from support.ledger_worker import ACTIONS, STAMP, message, plan
from support.readers import another_reader

WORKER = str(Path(__file__).parents[1] / "support" / "ledger_worker.py")
CUT = "the ledger does not contain the anchored head: it was cut, rolled back or replaced"


def work(*arguments, under=()):
    """The answer of a worker process."""
    command = [*under, sys.executable, WORKER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def namespace(script):
    """The start of a command line that runs a script, and then the rest, with mounts of its own."""
    return ["unshare", "-rm", "sh", "-c", f'set -e; {script}; exec "$@"', "sh"]


@functools.cache
def can_mount():
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        return not subprocess.run(
            [*namespace(f"mount -t tmpfs none {folder}"), "true"], capture_output=True
        ).returncode
    return False


@pytest.fixture
def path(tmp_path):
    """A ledger with a cap of epsilon 2 and the open run ``a``: rounds 0 to 7 of 1/8 each."""
    path = tmp_path / "north.ledger"
    with Ledger.create(path, "north", **STAMP) as ledger:
        ledger.set_cap(Cap(2.0, 0.0, 2.0), **STAMP)
        assert ledger.reserve("a", plan(range(8)), dataset="rows", **STAMP) == "sum"
    return path


@pytest.fixture
def ledger(path):
    with Ledger.open(path, wait=0.0) as ledger:
        yield ledger


def spend(ledger, n, run="a"):
    ledger.spend(run, n, plan([n]), message(n), **STAMP)


def by_hand(path, *statements, triggers=True):
    """Change the file as an attacker with the sqlite3 tool would; where triggers are in the way,
    drop them and restore them.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        dropped = [sql for sql in SCHEMA if sql.startswith("CREATE TRIGGER")] if triggers else []
        for sql in dropped:
            connection.execute(f"DROP TRIGGER {sql.split()[2]}")
        for statement in statements:
            connection.execute(*([statement] if isinstance(statement, str) else statement))
        for sql in dropped:
            connection.execute(sql)


def everything(ledger):
    return (
        ledger.node,
        ledger.head,
        ledger.cap,
        ledger.counted(),
        list(ledger.entries()),
        ledger.notes(),
    )


# --------------------------------------------------------------------------------------------------
# what it does


def test_what_is_written_comes_back(path, ledger):
    spend(ledger, 3)
    spend(ledger, 0)
    assert (ledger.node, ledger.cap) == ("north", Cap(2.0, 0.0, 2.0))
    assert ledger.rounds("a") == [0, 3]
    assert ledger.rounds("b") == []
    assert ledger.message("a", 3) == message(3)
    assert ledger.message("a", 1) is ledger.message("b", 1) is None
    entries = list(ledger.entries())
    assert [entry.id for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.kind for entry in entries] == ["open", "cap", "reserve", "spend", "spend"]
    assert entries[2].details["dataset"] == "rows"
    assert ledger.head == entries[-1].hash
    assert ledger.verify(entries[0].hash) == ledger.verify(ledger.head) == ledger.notes() == []
    with Ledger.open(path, read_only=True) as other:
        assert everything(other) == everything(ledger)


def test_names_that_urls_would_mangle(tmp_path):
    path = tmp_path / "a b?mode=ro#%41é.ledger"
    Ledger.create(path, "north", **STAMP).close()
    with Ledger.open(path) as ledger:
        ledger.set_cap(Cap(1.0, 0.0, 2.0), **STAMP)
    assert os.listdir(tmp_path) == [path.name]


def test_only_the_owner_may_read(path):
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_durability_is_asked_for(ledger):
    asked = {
        name: ledger._store.connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    }
    assert asked == {"journal_mode": "persist", "synchronous": 3}


def test_nothing_is_overwritten(path, tmp_path):
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="nothing is overwritten"):
        Ledger.create(path, "north", **STAMP)
    assert path.read_bytes() == before
    (tmp_path / "new.ledger-journal").write_bytes(
        b"pages"
    )  # SQLite would play it into the new ledger
    with pytest.raises(LedgerError, match=r"new\.ledger-journal exists"):
        Ledger.create(tmp_path / "new.ledger", "north", **STAMP)


def test_missing_places(tmp_path):
    with pytest.raises(LedgerError, match=r"cannot make .*No such file.*choose a writable folder"):
        Ledger.create(tmp_path / "no" / "ledger", "north", **STAMP)
    with pytest.raises(LedgerError, match="there is no ledger at"):
        Ledger.open(tmp_path / "no.ledger")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"a diary, not a ledger\n" * 100])
def test_other_files_are_no_ledgers(tmp_path, content):
    other = tmp_path / "diary"
    other.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="is not a ledger"):
            Ledger.open(other, read_only=read_only)
    assert other.read_bytes() == content


def test_other_databases_are_no_ledgers(tmp_path):
    by_hand(tmp_path / "db", "CREATE TABLE entry (id)", triggers=False)
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger.open(tmp_path / "db")
    by_hand(
        tmp_path / "db",
        f"PRAGMA application_id={APPLICATION}",
        "PRAGMA user_version=2",
        triggers=False,
    )
    with pytest.raises(LedgerDamaged, match="tables, indexes, triggers and views"):
        Ledger.open(tmp_path / "db")


def test_versions(path):
    by_hand(path, "PRAGMA user_version=3", triggers=False)
    with pytest.raises(LedgerError, match="version 3, this program reads up to 2; upgrade dynadp"):
        Ledger.open(path)
    by_hand(path, "PRAGMA user_version=0", triggers=False)
    with pytest.raises(LedgerDamaged, match="version 0, expected 1 to 2"):
        Ledger.open(path)


def test_the_sqlite3_tool_reads_it(path, ledger):
    spend(ledger, 0)
    ledger.close_run("a", "stopped", **STAMP)
    both = [DualPerturbation("north", 1, 0.25, 0.5, 3), L2Laplace("north", 1, "slack", 0.125, 3)]
    ledger.reserve("b", both, dataset="rows", **STAMP)
    ledger.spend("b", 1, reversed(both), b"", **STAMP)
    query = sys.modules[Ledger.__module__].__doc__.split("'")[-2]
    assert query.startswith("SELECT")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(query).fetchall()
    assert [row[3:7] for row in rows] == [("a", 0, 0.125, len(message(0))), ("b", 1, 0.875, 0)]


def test_a_clock_that_goes_backwards_is_noted(ledger):
    ledger.spend("a", 0, plan([0]), b"", who="worker", at="2026-03-01T10:59:59+00:00")
    ledger.spend(
        "a", 1, plan([1]), b"", who="worker", at="2026-03-01T10:30:00-01:00"
    )  # later, though it looks earlier
    (note,) = ledger.notes()
    assert note.startswith("entry 4 has the time 2026-03-01T10:59:59+00:00")
    assert ledger.verify() == []


# --------------------------------------------------------------------------------------------------
# refusals


def refused(ledger, match, action, error=BudgetRefused):
    before = list(ledger.entries())
    with pytest.raises(error, match=match):
        action()
    assert list(ledger.entries()) == before
    assert not ledger._store.connection.in_transaction


@pytest.mark.parametrize("changed", [{"round": True}, {"round": 1.0}, {"dimension": 3.0}])
def test_a_spend_in_numbers_of_other_types_than_its_plan_is_refused(ledger, changed):
    """They equal the plan's, and would be written down otherwise."""
    (event,) = plan([1])
    other = dataclasses.replace(event, **changed)
    assert other == event
    refused(ledger, "has no known cost", lambda: ledger.spend("a", 1, [other], b"", **STAMP))


def test_nothing_without_a_cap(tmp_path):
    with Ledger.create(tmp_path / "ledger", "north", **STAMP) as ledger:
        assert ledger.cap is None
        refused(
            ledger,
            "set one with `dynadp ledger cap`",
            lambda: ledger.reserve("a", plan([1]), dataset="rows", **STAMP),
        )


@pytest.mark.parametrize(
    ("run", "round", "events", "match"),
    [
        ("b", 1, plan([1]), "run 'b' has no reservation; reserve its plan"),
        ("a", 0, plan([0]), "round 0 of run 'a' is spent; send its stored message again"),
        ("a", 8, plan([8]), r"would spend .* its plan holds \[\]; release what was reserved"),
        ("a", 8, [], "would spend"),
        ("a", 1, [], "would spend"),
        ("a", 1, plan([2]), "would spend"),
        ("a", 1, plan([1, 2]), "would spend"),
        ("a", 1, plan([1, 1]), "would spend"),
        ("a", 1, plan([1], 0.0625), "would spend"),
        ("a", 1, [DualPerturbation("north", 1, 0.0625, 0.0625, 3)], "would spend"),
        ("closed", 0, plan([0]), "run 'closed' is closed; reserve another"),
    ],
)
def test_spends_outside_the_reservation(ledger, run, round, events, match):
    spend(ledger, 0)
    ledger.reserve("closed", plan([0]), dataset="rows", **STAMP)
    ledger.close_run("closed", "finished", **STAMP)
    refused(ledger, match, lambda: ledger.spend(run, round, events, b"secret", **STAMP))


@dataclass(frozen=True)
class Novel:
    node: str = "north"
    round: int = 1
    alpha: float = 0.1
    dimension: int = 3
    seeded: bool = False
    kind: ClassVar[str] = "novel"


class Cheaper(L2Laplace):
    """Looks like a known event."""


EVENT = L2Laplace("north", 1, "primal", 0.125, 3)


@pytest.mark.parametrize(
    ("event", "match", "error"),
    [
        (
            replace(EVENT, seeded=True),
            "protects nobody; release with the system's noise",
            SeededRefused,
        ),
        (
            replace(EVENT, node="south"),
            "of another node; this is the ledger of 'north'",
            BudgetRefused,
        ),
        (Novel(), "has no known cost", BudgetRefused),
        (Cheaper("north", 1, "primal", 0.125, 3), "has no known cost", BudgetRefused),
        (None, "has no known cost", BudgetRefused),
        *[
            (replace(EVENT, alpha=x), "has no known cost", BudgetRefused)
            for x in (0.0, -1.0, float("inf"), float("nan"), "1")
        ],
        *[
            (replace(EVENT, round=x), "has no known cost", BudgetRefused)
            for x in (-1, 1.0, True, 2**63)
        ],
        *[(replace(EVENT, dimension=x), "has no known cost", BudgetRefused) for x in (0, 2.5)],
        (DualPerturbation("north", 1, -0.1, 0.2, 3), "has no known cost", BudgetRefused),
        (DualPerturbation("north", 1, 0.2, 0.0, 3), "has no known cost", BudgetRefused),
    ],
)
def test_events_that_no_ledger_takes(ledger, event, match, error):
    refused(ledger, match, lambda: ledger.reserve("b", [event], dataset="rows", **STAMP), error)
    refused(ledger, match, lambda: ledger.spend("a", 1, [event], b"", **STAMP), error)


def test_runs_are_reserved_and_closed_once(ledger):
    refused(
        ledger,
        "reserved once, choose another id",
        lambda: ledger.reserve("a", plan([1]), dataset="rows", **STAMP),
    )
    refused(
        ledger, "plan of run 'b' is empty", lambda: ledger.reserve("b", [], dataset="rows", **STAMP)
    )
    refused(
        ledger, "run 'b' has no reservation", lambda: ledger.close_run("b", "finished", **STAMP)
    )
    ledger.close_run("a", "finished", **STAMP)
    refused(ledger, "run 'a' is closed", lambda: ledger.close_run("a", "finished", **STAMP))
    refused(
        ledger, "reserved once", lambda: ledger.reserve("a", plan([1]), dataset="rows", **STAMP)
    )


def test_arguments_that_make_no_sense(ledger):
    late = {"who": "me", "at": "2026-03-01T12:00:00"}
    for match, action in {
        "at is '2026-03-01T12:00:00'; expected a time like": lambda: ledger.set_cap(
            Cap(1.0, 0.0, 2.0), **late
        ),
        "at is 7; expected": lambda: ledger.close_run("a", "finished", who="me", at=7),
        "at is 'noon'; expected": lambda: ledger.spend("a", 1, plan([1]), b"", who="me", at="noon"),
        "who is ''; expected a line": lambda: ledger.spend(
            "a", 1, plan([1]), b"", who="", at=STAMP["at"]
        ),
        r"run is 'b\\n'; expected": lambda: ledger.reserve(
            "b\n", plan([1]), dataset="rows", **STAMP
        ),
        "dataset is None; expected": lambda: ledger.reserve("b", plan([1]), dataset=None, **STAMP),
        "bool and bytes; expected a whole": lambda: ledger.spend(
            "a", True, plan([1]), b"", **STAMP
        ),
        "int and str; expected a whole": lambda: ledger.spend("a", 1, plan([1]), "secret", **STAMP),
        "reason is 'bored'; expected one of finished, stopped": lambda: ledger.close_run(
            "a", "bored", **STAMP
        ),
    }.items():
        refused(ledger, match, action, DeclarationError)
    spend(ledger, 1)


def test_errors_do_not_show_messages(ledger):
    spend(ledger, 1)
    with pytest.raises(BudgetRefused) as caught:
        ledger.spend("a", 1, plan([1]), b"secret", **STAMP)
    assert "secret" not in repr(caught.value) + repr(list(ledger.entries()))
    assert "message 1" not in repr(list(ledger.entries()))


# --------------------------------------------------------------------------------------------------
# the cap


def test_what_counts(ledger):
    ledger.reserve("b", plan(range(8)), dataset="others", **STAMP)  # 1 + 1 = 2: exactly the cap
    refused(
        ledger,
        "do not fit under the cap",
        lambda: ledger.reserve("c", plan([0]), dataset="rows", **STAMP),
    )
    spend(ledger, 5)
    assert ledger.counted() == plan([*range(8), *range(8)])
    ledger.close_run("a", "stopped", **STAMP)
    assert ledger.counted() == plan([5, *range(8)])
    ledger.reserve("c", plan(range(7)), dataset="rows", **STAMP)
    refused(
        ledger,
        "beside the 16 that count",
        lambda: ledger.reserve("d", plan([0]), dataset="rows", **STAMP),
    )


def test_a_cap_may_be_lowered_and_raised(ledger):
    ledger.set_cap(Cap(0.5, 0.0, 2.0), **STAMP)
    refused(ledger, "do not fit", lambda: ledger.reserve("b", plan([0]), dataset="rows", **STAMP))
    spend(ledger, 0)  # was reserved
    ledger.set_cap(Cap(3.0, 0.0, 2.0), **STAMP)
    assert ledger.reserve("b", plan(range(16)), dataset="rows", **STAMP) == "sum"
    assert [entry.details["epsilon"] for entry in ledger.entries() if entry.kind == "cap"] == [
        2.0,
        0.5,
        3.0,
    ]


def test_a_refusal_advises_what_would_help(ledger):
    """Close runs only where some are open, ask for less only where less would fit."""

    def advised():
        with pytest.raises(BudgetRefused) as caught:
            ledger.reserve("new", plan(range(40)), dataset="rows", **STAMP)
        return str(caught.value)

    larger = "set a larger cap, without regard to what was released"
    less = "ask for less: a smaller epsilon or alpha"
    assert f"did not spend; open: 'a'; or {less}; or {larger}" in advised()
    for n in range(8):
        spend(ledger, n)
    assert "close" not in advised()  # nothing would come back
    ledger.close_run("a", "finished", **STAMP)
    assert advised().endswith(f"count already; {less}; or {larger}")
    ledger.set_cap(Cap(1.0, 0.0, 2.0), **STAMP)
    assert advised().endswith(f"count already; {larger}")  # all of it is spent


def test_a_plan_that_took_the_whole_cap_can_be_given_up_before_its_first_release(tmp_path):
    cap = Cap.of(1.0, 1e-5)
    many = [L2Laplace("north", n, "primal", 0.3, 1000) for n in range(40)]
    whole = next(many * n for n in range(2, 99) if cap.admits([], many * n) == "plan")
    with Ledger.create(tmp_path / "ledger", "north", **STAMP) as ledger:
        assert ledger.state().advice() == "set one with `dynadp ledger cap`"
        ledger.set_cap(cap, **STAMP)
        ledger.reserve("a", whole, dataset="rows", **STAMP)
        refused(
            ledger,
            "did not spend; open: 'a'; or set a larger",
            lambda: ledger.reserve("b", many, dataset="d", **STAMP),
        )
        ledger.spend("a", 1, [event for event in whole if event.round == 1], b"", **STAMP)
        refused(
            ledger,
            "did not spend; open: 'a'; or set a larger",
            lambda: ledger.reserve("b", many, dataset="d", **STAMP),
        )


def test_bases(tmp_path):
    cap, dimension = Cap.of(1.0, 1e-5), 1000
    many = [L2Laplace("north", n, "primal", 0.3, dimension) for n in range(40)]
    assert cap.admits([], many) == "renyi"
    whole = next(many * n for n in range(2, 99) if cap.admits([], many * n) == "plan")
    with Ledger.create(tmp_path / "ledger", "north", **STAMP) as ledger:
        ledger.set_cap(cap, **STAMP)
        assert ledger.reserve("a", many, dataset="rows", **STAMP) == "renyi"
        ledger.spend("a", 1, many[1:2], b"", **STAMP)
        ledger.close_run("a", "stopped", **STAMP)
        assert ledger.counted() == many[1:2]
        refused(ledger, "do not fit", lambda: ledger.reserve("b", whole, dataset="rows", **STAMP))
    with Ledger.create(tmp_path / "whole", "north", **STAMP) as ledger:
        ledger.set_cap(cap, **STAMP)
        assert ledger.reserve("given up", whole, dataset="rows", **STAMP) == "plan"
        refused(
            ledger, "took the whole cap", lambda: ledger.reserve("b", many, dataset="rows", **STAMP)
        )
        ledger.close_run("given up", "stopped", **STAMP)
        assert ledger.counted() == []  # nothing was released
        assert ledger.reserve("a", whole, dataset="rows", **STAMP) == "plan"
        for n in range(1, 40):
            ledger.spend("a", n, [event for event in whole if event.round == n], b"", **STAMP)
        ledger.close_run("a", "stopped", **STAMP)
        assert ledger.counted() == whole  # for ever
        refused(
            ledger,
            "run 'a' took the whole cap",
            lambda: ledger.reserve("b", many, dataset="rows", **STAMP),
        )
        ledger.set_cap(
            Cap.of(1.001, 1e-5), **STAMP
        )  # all of the first plan counts under a larger cap
        refused(ledger, "do not fit", lambda: ledger.reserve("b", many, dataset="rows", **STAMP))
        ledger.set_cap(Cap.of(9.0, 1e-5), **STAMP)
        assert ledger.reserve("b", many, dataset="rows", **STAMP) == "renyi"


# --------------------------------------------------------------------------------------------------
# crashes


def check_survivor(path, template, name, outcome):
    """The action left all of its entry or nothing; it can be repeated exactly where it left
    nothing.
    """
    with Ledger.open(template, read_only=True) as ledger:
        before = list(ledger.entries())
    with Ledger.open(path) as ledger:
        assert ledger.verify() == []
        after = list(ledger.entries())
        assert after[: len(before)] == before
        assert len(after) in (len(before), len(before) + 1)
        done = len(after) > len(before)
        assert done or not outcome["returned"]
        assert done or outcome["killed"]
        assert (ledger.message("a", 1) == message(1)) == (done and name == "spend")
        if done and name != "cap":
            with pytest.raises(BudgetRefused):
                ACTIONS[name](ledger)
        else:
            ACTIONS[name](ledger)
        assert ledger.verify() == []
        assert len(list(ledger.entries())) == len(before) + 1 + (done and name == "cap")
    return done


@pytest.mark.parametrize("name", ACTIONS)
def test_killed_at_every_statement(path, tmp_path, name):
    outcomes = work("kill", path, tmp_path, name, "statements")
    done = [
        check_survivor(tmp_path / f"{outcome['k']}.ledger", path, name, outcome)
        for outcome in outcomes
    ]
    assert len(done) >= 5  # BEGIN, SELECTs, INSERT, COMMIT and the end
    assert done[-1]
    assert not any(done[:-1])  # COMMIT is the last statement, and was not begun


@pytest.mark.parametrize(
    ("name", "step"),
    [("spend", 1), ("reserve", 4), pytest.param("reserve", 1, marks=pytest.mark.slow)],
)
def test_killed_at_system_calls(path, tmp_path, name, step):
    outcomes = work("kill", path, tmp_path, name, "calls", step)
    if not outcomes[0]["killed"]:
        outcomes = work("kill", path, tmp_path, name, "statements")  # nobody may trace here
    done = [
        check_survivor(tmp_path / f"{outcome['k']}.ledger", path, name, outcome)
        for outcome in outcomes
    ]
    assert done[-1]
    assert not done[0]
    first_done, last_undone = done.index(True), len(done) - 1 - done[::-1].index(False)
    assert (
        last_undone - first_done < 20 / step
    )  # one moment, though a process asks for memory a few times more or less


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_creation_killed_at_system_calls(path, tmp_path, step):
    outcomes = work("kill", path, tmp_path, "create", "calls", step)
    for outcome in outcomes:
        made = tmp_path / f"{outcome['k']}.ledger"
        assert made.exists() or not outcome["returned"]
        with (
            Ledger.open(made) if made.exists() else Ledger.create(made, "north", **STAMP) as ledger
        ):
            assert len(list(ledger.entries())) == 1


def test_killed_at_any_time_while_spending(tmp_path):
    rng, path = random.Random(5), tmp_path / "ledger"
    with Ledger.create(path, "north", **STAMP) as ledger:
        ledger.set_cap(Cap(2.0, 0.0, 2.0), **STAMP)
        ledger.reserve("a", plan(range(2000), 1e-6), dataset="rows", **STAMP)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, WORKER, "loop", str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            told = int(process.stdout.readline())
            timer = threading.Timer(rng.uniform(0, 0.05), process.send_signal, [signal.SIGKILL])
            timer.start()
            for line in process.stdout:
                told = int(line)
            timer.join()
        with Ledger.open(path) as ledger:
            rounds = ledger.rounds("a")
            assert rounds in (
                [*range(told + 1)],
                [*range(told + 2)],
            )  # the last may be recorded and not yet told
            assert all(ledger.message("a", n) == message(n) for n in rounds)


# --------------------------------------------------------------------------------------------------
# full and shut


def check_full(answer, cause):
    (kind, text), rounds, problems, then, later, sound = answer
    assert (kind, rounds, problems) == ("LedgerError", [7], [])
    assert cause in text
    assert "nothing may be sent that was not recorded" in text
    assert (then, later, sound) == (
        "returned",
        [0, 7],
        [],
    )  # the same object goes on once there is room


def test_files_that_may_not_grow(path):
    with Ledger.open(
        path
    ) as ledger:  # larger than the journal will be, so that it is COMMIT that fails
        ledger.spend("a", 7, plan([7]), bytes(40_000), **STAMP)
    check_full(work("limited", path), "check its room, limits and health")
    with Ledger.open(path) as ledger:
        assert ledger.message("a", 0) == message(0)


def test_no_room_for_a_new_ledger(tmp_path):
    kind, text = work("cramped", tmp_path / "new.ledger")
    assert kind == "LedgerError"
    assert "check its room" in text
    assert not list(tmp_path.iterdir())


def test_full_disk(path, tmp_path):
    with Ledger.open(path) as ledger:
        spend(ledger, 7)
    (tmp_path / "disk").mkdir()
    small = tmp_path / "disk" / path.name
    if can_mount():
        script = f"mount -t tmpfs -o size=64k none '{small.parent}'; cp '{path}' '{small}'"
        check_full(work("fill", small, under=namespace(script)), "the disk is full")
    else:
        check_full(work("limited", path), "the disk refused")


def test_full_database(path, ledger):
    before = everything(ledger)
    pages = ledger._store.connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._store.connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(LedgerError, match="the disk is full; make room"):
        spend(ledger, 0)
    assert everything(ledger) == before
    spend(ledger, 0)
    assert ledger.message("a", 0) == message(0)


@pytest.mark.parametrize("how", ["permissions", "mount"])
def test_where_nothing_can_be_written(path, how):
    with Ledger.open(path) as ledger:
        spend(ledger, 7)
        before = everything(ledger)
    with tempfile.TemporaryDirectory() as folder:  # where every user may look
        shut = Path(shutil.copy(path, folder))
        under = ()
        if how == "mount" and can_mount():
            under = namespace(
                f"mount --bind '{folder}' '{folder}'; mount -o remount,bind,ro '{folder}'"
            )
        else:
            shut.chmod(0o444)
            Path(folder).chmod(0o555)
        for (kind, text), rounds, message_is_there, problems in work(
            "unwritable", shut, under=under
        ):
            assert kind == "LedgerError"
            assert (
                "reading only" in text or "cannot be written" in text or "cannot be opened" in text
            )
            assert (rounds, message_is_there, problems) == ([7], True, [])
        Path(folder).chmod(0o700)
        with Ledger.open(shut, read_only=True) as ledger:
            assert everything(ledger) == before


def test_a_write_cut_short_is_undone_or_said(path, tmp_path):
    outcomes = work("kill", path, tmp_path, "spend", "calls", 5)

    def hot(name):
        journal = tmp_path / f"{name}-journal"
        return journal.exists() and journal.read_bytes()[:1].strip(b"\0")

    left = [tmp_path / name for name in (f"{x['k']}.ledger" for x in outcomes) if hot(name)]
    assert left or not outcomes[0]["killed"]
    said = 0
    for cut in left:
        try:
            Ledger.open(cut, read_only=True).close()
        except LedgerError as error:
            said += "cut short" in str(error)
        with Ledger.open(cut) as ledger:
            assert ledger.rounds("a") == []
            spend(ledger, 1)
        assert not Path(f"{cut}-journal").exists()
    assert said or not left


# --------------------------------------------------------------------------------------------------
# several at a time


def test_processes_race_to_spend(path):
    won = work("race", path, 4, "spend")
    assert sorted(n for rounds in won for n in rounds) == [*range(8)]
    with Ledger.open(path) as ledger:
        assert ledger.rounds("a") == [*range(8)]
        for number, rounds in enumerate(won):
            assert all(ledger.message("a", n) == message(number) for n in rounds)


def test_processes_race_to_reserve(path):
    won = work("race", path, 4, "reserve")
    assert sum(map(len, won)) == 4  # 1 of the cap's 2 was taken, each takes 1/4
    with Ledger.open(path) as ledger:
        assert sum(event.alpha for event in ledger.counted()) == 2


def test_two_objects_see_each_other(path, ledger):
    with Ledger.open(path) as other:
        for n in range(8):
            spend((ledger, other)[n % 2], n)
            assert ledger.head == other.head
        refused(ledger, "is spent", lambda: spend(ledger, 7))
        assert ledger.message("a", 7) == message(7)


def test_a_dawdling_reader_locks_nobody_out(path, ledger):
    with Ledger.open(path) as other:
        reading = other.entries()
        next(reading)
        spend(ledger, 0)
        assert len(list(reading)) == 2
        assert len(list(other.entries())) == 4


def test_a_lock_that_is_never_released(path, ledger):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process kept it locked for too long"):
            spend(ledger, 0)
        assert ledger.rounds("a") == []
        other.execute("COMMIT")
        other.execute("BEGIN EXCLUSIVE")
        for action in (ledger.verify, ledger.counted, lambda: Ledger.open(path, wait=0.0)):
            with pytest.raises(LedgerError, match="another process kept it locked"):
                action()
    spend(ledger, 0)


def test_a_reader_that_stays_is_waited_for_without_end(path, ledger):
    waited = []
    with another_reader(path) as let_go:
        with pytest.raises(LedgerError, match="another process kept it locked for too long"):
            spend(ledger, 0)  # one that waits for a while

        def locked(seconds):
            waited.append(seconds)
            if len(waited) == 2:
                let_go()

        ledger.wait_without_end(locked)
        spend(ledger, 0)
    assert waited[0] > 0
    assert waited[-1] == 0
    assert ledger.rounds("a") == [0]
    assert not ledger.verify()


class StoppedWaiting(Exception):
    pass


def test_whoever_waits_for_a_ledger_can_stop_and_enters_nothing(path, ledger):
    def locked(seconds):
        raise StoppedWaiting

    with another_reader(path):
        ledger.wait_without_end(locked)
        with pytest.raises(StoppedWaiting):
            spend(ledger, 0)
    assert ledger.rounds("a") == []
    ledger.wait_without_end(lambda seconds: None)
    spend(ledger, 0)
    assert not ledger.verify()


def test_closed_and_foreign_objects(path, ledger):
    caught = []

    def elsewhere():
        try:
            spend(ledger, 0)
        except LedgerError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "in the thread that uses it" in caught[0]
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="was closed; open it again"):
        ledger.rounds("a")
    with (
        Ledger.open(path, read_only=True) as reader,
        pytest.raises(LedgerError, match="reading only"),
    ):
        spend(reader, 0)


# --------------------------------------------------------------------------------------------------
# damage and tampering


def check_flips(path, tmp_path, flips):
    """Damage is reported, or nothing that is read has changed and the ledger goes on."""
    with Ledger.open(path) as ledger:
        ledger.spend("a", 0, plan([0]), b"short", **STAMP)
        ledger.spend("a", 1, plan([1]), b"message", **STAMP)
        before = everything(ledger)
    content, harmless, scratch = path.read_bytes(), 0, tmp_path / "scratch"
    for position, mask in flips(len(content)):
        scratch.mkdir()
        flipped = bytearray(content)
        flipped[position] ^= mask
        (scratch / "ledger").write_bytes(flipped)
        try:
            with Ledger.open(scratch / "ledger") as ledger:
                assert everything(ledger) == before, position
                assert ledger.message("a", 1) == b"message", position
                if position % 16 == 0:
                    spend(ledger, 2)
                    assert ledger.verify(before[1]) == [], position
            harmless += 1
        except LedgerError:
            pass
        shutil.rmtree(scratch)
    return harmless


def test_flipped_bytes(path, tmp_path):
    total = 0

    def flips(size):
        nonlocal total
        chosen = [(n, 255) for n in range(100)] + [(n, 1 << n % 8) for n in range(100, size, 31)]
        total = len(chosen)
        return chosen

    harmless = check_flips(path, tmp_path, flips)
    assert harmless  # unused bytes
    assert total - harmless > 100


@pytest.mark.slow
def test_every_flipped_byte(path, tmp_path):
    assert check_flips(
        path, tmp_path, lambda size: [(n, mask) for n in range(size) for mask in (255, 1 << n % 8)]
    )


@pytest.mark.parametrize("keep", [100, 4096, 9000, -1])
def test_truncated_files(path, keep):
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    with pytest.raises(LedgerDamaged, match="restore the ledger from a copy"):
        Ledger.open(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET who = 'nobody' WHERE id = 2",
        "DELETE FROM entry WHERE id = 3",
        "INSERT INTO entry SELECT id + 3, at, who, kind, run, round, content, message, previous, "
        "hash FROM entry WHERE id = 2",
    ],
)
def test_triggers_refuse_hands(path, statement):
    with pytest.raises(sqlite3.IntegrityError, match=r"an entry (is never|follows)"):
        by_hand(path, statement, triggers=False)
    with Ledger.open(path) as ledger:
        assert len(list(ledger.entries())) == 3


def test_the_index_refuses_a_second_spend(path, ledger):
    spend(ledger, 0)
    again = (
        "INSERT INTO entry SELECT 5, at, who, kind, run, round, content, message, hash, hash "
        "FROM entry WHERE id = 4"
    )
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        by_hand(path, again, triggers=False)


def test_missing_triggers_are_found(path):
    by_hand(path, "DROP TRIGGER entry_stays", triggers=False)
    with pytest.raises(LedgerDamaged, match="triggers and views are not those that dynadp makes"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            "UPDATE entry SET content = replace(content, '2.0', '9.0') WHERE id = 2",
            "entry 2 was changed",
        ),
        ("UPDATE entry SET message = x'00' WHERE id = 4", "entry 4 was changed"),
        ("UPDATE entry SET at = '2030-01-01T00:00:00+00:00' WHERE id = 1", "entry 1 was changed"),
        (
            "UPDATE entry SET who = CAST(x'ff41' AS TEXT) WHERE id = 3",
            "entry 3 was changed",
        ),  # not even text
        ("DELETE FROM entry WHERE id = 3", "entry 4 comes after entry 2: some are missing"),
        (
            f"UPDATE entry SET previous = '{'0' * 64}' WHERE id = 3",
            "entry 3 is not chained to entry 2",
        ),
        ("DELETE FROM entry", "cut, rolled back or replaced"),
    ],
)
def test_changed_entries_are_found(path, ledger, change, match):
    spend(ledger, 0)
    by_hand(path, change)
    assert match in ledger.verify()[0]
    with pytest.raises(LedgerDamaged, match=match):
        Ledger.open(path)
    with pytest.raises(LedgerDamaged, match=match):
        Ledger.open(path, read_only=True)


def test_all_changed_entries_are_named(path, ledger):
    by_hand(path, "UPDATE entry SET who = 'nobody' WHERE id > 1")
    assert [problem.split(" was")[0] for problem in ledger.verify()] == ["entry 2", "entry 3"]


def test_messages_are_checked_when_sent_again(path, ledger):
    spend(ledger, 0)
    spend(ledger, 1)
    by_hand(path, "UPDATE entry SET message = x'00' WHERE id = 4")
    with pytest.raises(LedgerDamaged, match="entry 4 was changed while the ledger was open"):
        ledger.message("a", 0)


def test_a_cut_end_needs_the_anchor(path, ledger):
    spend(ledger, 0)
    anchor = ledger.head
    by_hand(path, "DELETE FROM entry WHERE id = 4")
    with Ledger.open(path, read_only=True) as other:  # looks like a ledger before the spend
        assert other.verify() == []
        assert other.verify(anchor) == [CUT]
    with pytest.raises(LedgerDamaged, match="has 3 entries and not the entry 4 that its anchor"):
        Ledger.open(path)
    assert ledger.verify() == [CUT]  # who has it open remembers
    with pytest.raises(LedgerDamaged, match="cut, rolled back or replaced"):
        spend(ledger, 0)
    with pytest.raises(LedgerDamaged, match="cut, rolled back or replaced"):
        ledger.counted()


def rewrite(path, entries):
    """Write the chain anew, as one who knows how hashes are made."""
    previous, statements = "0" * 64, ["DELETE FROM entry", "DROP INDEX entry_once"]
    for id, entry in enumerate(entries, 1):
        entry = entry.sealed(id, previous, entry.details)
        values = tuple(getattr(entry, name) for name in Entry.__dataclass_fields__)
        statements.append((f"INSERT INTO entry VALUES ({', '.join('?' * 10)})", values))
        previous = entry.hash
    by_hand(path, *statements)
    with contextlib.suppress(sqlite3.IntegrityError):
        by_hand(path, SCHEMA[1], triggers=False)


def test_a_rewritten_chain_needs_the_anchor(path, ledger):
    spend(ledger, 0)
    anchor, entries = ledger.head, list(ledger.entries())
    entries[1] = replace(entries[1], content=entries[1].content.replace("2.0", "9.0", 1))
    rewrite(path, entries)
    with Ledger.open(path, read_only=True) as other:
        assert other.verify() == []
        assert other.verify(anchor) == [CUT]
    with pytest.raises(LedgerDamaged, match="replaced"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda e: [*e, e[3]],
            "SQLite says|indexes",
        ),  # a second spend of a round breaks the index or has none
        (lambda e: [*e, replace(e[3], round=9)], "entry 5 does not follow .*would spend"),
        (lambda e: [e[0], e[1], e[3]], "entry 3 does not follow .*no reservation"),
        (
            lambda e: [
                *e,
                Entry(0, STAMP["at"], "me", "close", "a", content="{}"),
                replace(e[3], round=1),
            ],
            "entry 6 .*closed",
        ),
        (lambda e: [*e[1:]], "entry 1 is out of place"),
        (lambda e: [*e, e[0]], "entry 5 is out of place"),
        (
            lambda e: [e[0], replace(e[1], content='{"epsilon":-1.0,"delta":0.0,"order":2.0}')],
            "entry 2 does not follow",
        ),
        (lambda e: [e[0], replace(e[1], content="[]")], "entry 2 does not follow"),
        (
            lambda e: [*e[:2], replace(e[2], content=e[2].content.replace("false", "true"))],
            "entry 3 .*seeded",
        ),
        (
            lambda e: [*e[:2], replace(e[2], content=e[2].content.replace("l2-laplace", "free"))],
            "entry 3 .*unknown kind",
        ),
        (
            lambda e: [*e[:2], replace(e[2], content=e[2].content.replace('"plan"', '"plans"'))],
            "entry 3 does not follow",
        ),
    ],
)
def test_entries_that_make_no_sense_are_found(path, ledger, change, match):
    spend(ledger, 0)
    rewrite(path, change(list(ledger.entries())))
    with pytest.raises(LedgerDamaged, match=match):
        Ledger.open(path)


def test_what_another_process_adds_is_checked(path, ledger):
    last = list(ledger.entries())[-1]
    forged = replace(
        last, id=4, kind="spend", round=0, message=b"", previous=last.hash, hash="f" * 64
    )
    values = tuple(getattr(forged, name) for name in Entry.__dataclass_fields__)
    by_hand(path, (f"INSERT INTO entry VALUES ({', '.join('?' * 10)})", values), triggers=False)
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="entry 4 was changed"):
            spend(ledger, 1)


def test_a_ledger_that_was_moved_away_records_nothing(path, ledger, tmp_path):
    away = path.rename(tmp_path / "away")
    with pytest.raises(LedgerError, match="was moved"):
        spend(ledger, 0)
    shutil.copy(
        away, path
    )  # a copy took its place: it holds all that was known, and is used from now on
    spend(ledger, 0)
    with Ledger.open(path) as other:
        assert other.rounds("a") == [0]


def test_a_journal_stays_only_where_nobody_else_uses_the_ledger(path):
    """It has its maker's group: whoever shares the ledger could not open it, and would be locked
    out.
    """
    for mode, kept in ((0o600, True), (0o640, False), (0o660, False)):
        path.chmod(mode)
        with Ledger.open(path) as ledger:
            spend(ledger, len(ledger.rounds("a")))
            assert Path(f"{path}-journal").exists() is kept
        assert not Path(f"{path}-journal").exists()


def test_closing_leaves_the_journal_of_a_copy_that_took_its_place(path, ledger, tmp_path):
    spend(ledger, 0)
    away = path.rename(tmp_path / "away")
    shutil.copy(away, path)
    journal = Path(f"{path}-journal")
    journal.write_bytes(b"what another process must undo")
    ledger.close()
    assert journal.read_bytes() == b"what another process must undo"


def test_a_journal_with_nothing_to_undo_is_in_nobodys_way(tmp_path):
    for content in (b"", bytes(512), bytes(28) + b"old pages"):
        path = tmp_path / f"{len(content)}.ledger"
        Path(f"{path}-journal").write_bytes(content)
        with Ledger.create(path, "north", **STAMP) as ledger:
            assert ledger.verify() == []


# --------------------------------------------------------------------------------------------------
# against a model


class Against(RuleBasedStateMachine):
    """Two objects on one file against a dictionary; caps are sums, so that the model needs no
    accountant.
    """

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name, "ledger")
        self.ledgers = [Ledger.create(path, "north", **STAMP), Ledger.open(path)]
        self.cap, self.runs, self.count, self.anchor = 0.0, {}, 1, None

    def teardown(self):
        if hasattr(self, "folder"):
            for ledger in self.ledgers:
                ledger.close()
            self.folder.cleanup()

    def counted(self):
        return [
            event
            for events, spent, closed in self.runs.values()
            for event in events
            if not closed or event.round in spent
        ]

    def expect(self, allowed, action):
        if allowed:
            self.count += 1
            return action()
        with pytest.raises(BudgetRefused):
            action()
        return None

    which = st.integers(0, 1)
    name = st.sampled_from("abcd")

    @rule(which=which, cap=st.sampled_from([0.5, 1.0, 4.0]))
    def set_cap(self, which, cap):
        self.expect(True, lambda: self.ledgers[which].set_cap(Cap(cap, 0.0, 2.0), **STAMP))
        self.cap = cap

    @rule(
        which=which,
        run=name,
        rounds=st.lists(st.integers(0, 3), max_size=5),
        alpha=st.sampled_from([0.125, 0.25]),
    )
    def reserve(self, which, run, rounds, alpha):
        events = plan(rounds, alpha)
        fits = sum(event.alpha for event in [*self.counted(), *events]) <= self.cap
        allowed = bool(fits and events and run not in self.runs)
        basis = self.expect(
            allowed, lambda: self.ledgers[which].reserve(run, events, dataset="rows", **STAMP)
        )
        if allowed:
            assert basis == "sum"
            self.runs[run] = [events, {}, False]
            assert sum(event.alpha for event in self.ledgers[1 - which].counted()) <= self.cap

    @rule(
        which=which,
        run=name,
        round=st.integers(0, 4),
        spoil=st.sampled_from([False, False, False, True]),
    )
    def spend(self, which, run, round, spoil):
        events, spent, closed = self.runs.get(run, ([], {}, True))
        events = [event for event in events if event.round == round]
        allowed = bool(events and not closed and round not in spent and not spoil)
        given = [*events, *plan([round])] if spoil else events
        text = b"%d" % self.count
        self.expect(allowed, lambda: self.ledgers[which].spend(run, round, given, text, **STAMP))
        if allowed:
            spent[round] = text

    @rule(which=which, run=name, reason=st.sampled_from(["finished", "stopped"]))
    def close_run(self, which, run, reason):
        allowed = run in self.runs and not self.runs[run][2]
        self.expect(allowed, lambda: self.ledgers[which].close_run(run, reason, **STAMP))
        if allowed:
            self.runs[run][2] = True

    @rule(which=which)
    def reopen(self, which):
        self.ledgers[which].close()
        self.ledgers[which] = Ledger.open(self.ledgers[which].path)

    @rule(which=which)
    def keep_anchor(self, which):
        self.anchor = self.ledgers[which].head

    @precondition(lambda self: hasattr(self, "folder"))
    @invariant()
    def same(self):
        for ledger in self.ledgers:
            assert ledger.counted() == self.counted()
            assert ledger.cap == (Cap(self.cap, 0.0, 2.0) if self.cap else None)
            for run, (_, spent, _) in self.runs.items():
                assert ledger.rounds(run) == sorted(spent)
                assert all(ledger.message(run, n) == text for n, text in spent.items())
        assert len(list(self.ledgers[0].entries())) == self.count
        assert self.ledgers[1].verify(self.anchor) == []


Against.TestCase.settings = settings(settings(), max_examples=20, stateful_step_count=30)
TestAgainstAModel = Against.TestCase
