"""The anchor of a ledger: an older copy shows, a crash between ledger and anchor does not hurt."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynadp.data.datasets.synthetic import census
from dynadp.errors import LedgerDamaged, LedgerError
from dynadp.planning.plans import Plan
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.anchor import Anchor, anchor_file, state_folder
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.backups import backup_ledger, restore_ledger
from dynadp.runs.model import Model
from support.networks import write_csv
from support.typed import dynadp

STAMP = {"who": "me", "at": "2026-03-01T12:00:00+00:00"}
PLAN = [L2Laplace("p", n, "primal", 0.1, 3) for n in range(1, 6)]


@pytest.fixture
def path(tmp_path):
    """A ledger with an open run that has released two rounds, and a copy from before them."""
    path = tmp_path / "p.sqlite"
    with Ledger.create(path, "p", **STAMP) as ledger:
        ledger.set_cap(Cap(2.0, 0.0, 2.0), **STAMP)
        ledger.reserve("a", PLAN, dataset="rows", **STAMP)
        backup_ledger(path, tmp_path / "old.sqlite")
        for event in PLAN[:2]:
            ledger.spend("a", event.round, [event], b"m", **STAMP)
    return path


def lines(path):
    return [json.loads(line) for line in anchor_file(path).read_text().splitlines()]


def test_the_anchor_lies_outside_and_follows_every_entry(path):
    anchor = anchor_file(path)
    assert anchor.parent == state_folder() / "anchors"
    assert path.parent not in anchor.parents
    with Ledger.open(path, read_only=True) as ledger:
        state = ledger.state()
    mark = Anchor(path).read()
    assert (mark.length, mark.head, mark.first) == (5, state.head, state.first)
    assert mark.kinds == {"open": 1, "cap": 1, "reserve": 1, "spend": 2}
    assert [line["length"] for line in lines(path)] == [3, 4, 5]  # reserved durably, then releases


@pytest.mark.parametrize("command", ["close {} a", "cap {} --epsilon 3 --delta 1e-5", "verify {}"])
def test_an_older_copy_is_refused_whatever_is_done_with_it(path, tmp_path, command):
    shutil.copy(tmp_path / "old.sqlite", path)
    with pytest.raises(LedgerDamaged, match="has 3 entries and not the entry 5 that its anchor"):
        Ledger.open(path)
    before = path.read_bytes()
    assert dynadp("ledger " + command.format(path)).exit_code == 5
    assert path.read_bytes() == before
    with Ledger.open(path, read_only=True) as ledger:  # to look at it is free
        assert ledger.state().length == 3


@pytest.mark.parametrize(
    "command",
    [
        "ledger close p.sqlite a",
        "ledger cap p.sqlite --epsilon 3 --delta 1e-5",
        "ledger verify p.sqlite",
        "count rows.csv --schema schema.json --ledger p.sqlite --alpha 0.1",
        "evaluate model.json rows.csv --ledger p.sqlite --alpha 0.1",
    ],
)
def test_commands_know_an_anchor_of_ones_own(tmp_path, monkeypatch, command):
    """What a command enters is in that anchor, and an older copy is refused by it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = "--anchor own.json"
    cap = "ledger cap p.sqlite --node p --epsilon 2 --delta 1e-5"
    assert dynadp(f"{cap} {own}").exit_code == 0
    assert not anchor_file("p.sqlite").exists()
    with Ledger.open("p.sqlite", anchor="own.json") as ledger:
        ledger.reserve("a", PLAN, dataset="rows", **STAMP)
    data = census(60, seed=1, nodes=1, test_rows=0)
    Path("schema.json").write_text(data.schema.model_dump_json())
    write_csv(Path("rows.csv"), data.tables(("p",))["p"])
    model = Model.of(np.zeros(data.schema.dimension), data.schema, Plan(rounds=1))
    model.save(Path("model.json"))
    shutil.copy("p.sqlite", "old.sqlite")
    done = dynadp(f"{command} {own}")
    assert done.exit_code == 0, done.output
    with Ledger.open("p.sqlite", read_only=True) as ledger:
        mark = ledger.state().mark
    assert Anchor(tmp_path / "p.sqlite", "own.json").read() == mark
    assert mark.length > 3 or "verify" in command
    with Ledger.open("p.sqlite", anchor="own.json") as ledger:
        ledger.reserve("b", PLAN, dataset="rows", **STAMP)
    shutil.copy("old.sqlite", "p.sqlite")
    assert dynadp(f"{command} {own}").exit_code == 5


def test_an_anchor_is_of_one_ledger(path):
    for command in ("close {0} {0} a", "cap {0} {0} --epsilon 3 --delta 1e-5", "verify {0} {0}"):
        done = dynadp("ledger " + command.format(path) + " --anchor own.json")
        assert done.exit_code == 2
        assert "--anchor is that of one FILE" in done.output


def test_a_missing_ledger_is_not_offered_as_new(path):
    path.unlink()
    for attempt in (
        lambda: Ledger.open(path),
        lambda: Ledger.open(path, read_only=True),
        lambda: Ledger.create(path, "p", **STAMP),
    ):
        with pytest.raises(LedgerDamaged, match=r"there was one.*ledger recover") as caught:
            attempt()
        assert "ledger cap" not in str(caught.value)
    assert not path.exists()
    anchor_file(path).unlink()
    with pytest.raises(LedgerError, match="ledger cap"):
        Ledger.open(path)


@pytest.mark.parametrize("call", ["append", "write"])
def test_a_crash_between_the_ledger_and_its_anchor_leaves_one_that_lags(path, call):
    """Killed after COMMIT, before the anchor: the next start goes on, and brings it up."""
    action = (
        'ledger.spend("a", 3, PLAN[2:3], b"m", **STAMP)'
        if call == "append"
        else 'ledger.close_run("a", "stopped", **STAMP)'
    )
    script = f"""
import os, signal
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.anchor import Anchor
from dynadp.privacy.ledger.file import Ledger
STAMP, PLAN = {STAMP!r}, [L2Laplace("p", n, "primal", 0.1, 3) for n in range(1, 6)]
with Ledger.open({str(path)!r}) as ledger:
    Anchor.{call} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    {action}
"""
    done = subprocess.run([sys.executable, "-c", script], env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    assert Anchor(path).read().length == 5
    with Ledger.open(path) as ledger:
        assert ledger.state().length == 6
    assert Anchor(path).read().length == 6


def test_lines_that_a_loss_of_power_cut_are_passed_over(path):
    file = anchor_file(path)
    whole = file.read_bytes()
    for end in (b'{"length": 99', bytes(200), b"\xff\xfe\n", b"[]\n", b'{"length": "x"}\n'):
        file.write_bytes(whole + end)
        assert Anchor(path).read().length == 5
        Ledger.open(path).close()
    file.write_bytes(whole[:-20])  # the last release is lost: it lags
    assert Anchor(path).read().length == 4
    Ledger.open(path).close()
    assert Anchor(path).read().length == 5
    for damaged in (b"{", whole.replace(b'"version":1', b'"version":"1"')):
        file.write_bytes(damaged)
        with pytest.raises(LedgerDamaged, match="cannot be read"):
            Ledger.open(path)


def test_an_anchor_of_a_later_version_asks_for_an_upgrade(path):
    """And not to remove it: it still guards the ledger."""
    file = anchor_file(path)
    file.write_bytes(file.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(
        LedgerError, match="has version 2, this program reads up to 1; upgrade"
    ) as found:
        Ledger.open(path)
    assert not isinstance(found.value, LedgerDamaged)


def test_a_line_that_a_full_disk_cut_is_no_line(path, tmp_path, monkeypatch):
    """An anchor of one's own must hold each release; the ledger does, and the anchor lags."""
    own = tmp_path / "own.anchor"
    with Ledger.open(path, anchor=own) as ledger:
        really = os.write
        monkeypatch.setattr(
            os, "write", lambda to, what: really(to, what[:9] if b"head" in what else what)
        )
        with pytest.raises(LedgerError, match="No space left on device"):
            ledger.spend("a", 3, [PLAN[2]], b"m", **STAMP)
        monkeypatch.undo()
    assert Anchor(path, own).read().length == 5
    with Ledger.open(path, anchor=own) as ledger:
        assert ledger.state().length == 6
        assert Anchor(path, own).read().length == 6


def test_an_anchor_of_ones_own_must_be_writable_and_the_usual_one_need_not(
    path, tmp_path, monkeypatch, caplog
):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(LedgerError, match="anchor"):
        Ledger.open(path, anchor=blocked / "anchor.json")
    Ledger.open(path, anchor=tmp_path / "own" / "anchor.json").close()
    assert (tmp_path / "own" / "anchor.json").exists()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    with Ledger.open(path) as ledger:
        ledger.spend("a", 3, PLAN[2:3], b"m", **STAMP)
    assert "no anchor is kept" in caplog.text


def test_a_user_without_a_home_hears_that_no_anchor_is_kept(tmp_path, monkeypatch, caplog):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    Ledger.create(tmp_path / "l.sqlite", "north", **STAMP).close()
    assert caplog.text.count("no anchor is kept") == 1
    assert "this user has no home folder. Set XDG_STATE_HOME" in caplog.text


def test_a_backup_is_whole_while_the_ledger_is_in_use_and_nothing_is_overwritten(path, tmp_path):
    with Ledger.open(path) as ledger:
        done = dynadp("ledger", "backup", path, tmp_path / "new.sqlite")
        assert done.exit_code == 0
        assert ledger.head in done.output
        ledger.spend("a", 3, PLAN[2:3], b"m", **STAMP)
    with Ledger.open(tmp_path / "new.sqlite", read_only=True) as copy:
        assert copy.state().length == 5
    assert (tmp_path / "new.sqlite").stat().st_mode & 0o777 == 0o600
    again = dynadp("ledger", "backup", path, tmp_path / "new.sqlite")
    assert again.exit_code == 2
    assert "exists" in again.output


def test_a_restored_copy_forgets_nothing(path, tmp_path):
    backup_ledger(path, tmp_path / "new.sqlite")
    path.write_bytes(b"damaged")
    for copy, code, words in (("old", 5, "ledger recover"), ("new", 0, "5 entries again")):
        done = dynadp("ledger", "restore", tmp_path / f"{copy}.sqlite", path)
        assert (done.exit_code, words in done.output) == (code, True), done.output
    with Ledger.open(path) as ledger:
        ledger.spend("a", 3, PLAN[2:3], b"m", **STAMP)
    assert (tmp_path / "p.sqlite.replaced-1").read_bytes() == b"damaged"
    with pytest.raises(LedgerDamaged, match="does not hold the entry 6"):
        restore_ledger(tmp_path / "new.sqlite", path)
    anchor_file(path).unlink()
    with pytest.raises(LedgerDamaged, match="is sound and has 6 entries"):
        restore_ledger(tmp_path / "new.sqlite", path)
