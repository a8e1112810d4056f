"""``dynadp account``, ``dynadp calibrate`` and ``dynadp ledger``, as typed."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest

from dynadp.errors import DeclarationError, LedgerError
from dynadp.privacy.accountant import total
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace, read_events, to_json
from dynadp.privacy.gaussian import gaussian_epsilon
from dynadp.privacy.inverse import dual, equal_rounds, primal
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.statements import guess_words, upper_bound
from dynadp.runs.ledgers import close_run, open_readable, set_cap
from support.typed import answer, dynadp

AT = "2026-03-01T12:00:00+00:00"


def test_account_primal():
    found = answer(
        "account --mechanism primal --dimension 105 --alpha 0.5 --rounds 100 --delta 1e-5 --json"
    )
    exact = total(primal(0.5, 105, 100), 1e-5)
    assert {"epsilon", "epsilon_sum", "epsilon_pure", "method"} <= set(found)
    assert (found["epsilon"], found["epsilon_sum"], found["method"]) == (
        exact.epsilon,
        50.0,
        "loss distribution",
    )
    assert 1.93 <= found["epsilon"] <= 1.95
    assert "protected" not in found  # nothing was released


def test_account_dual():
    found = answer(
        "account --mechanism dual --dimension 105 --alpha 0.5 --jacobian-share 0.01 --rounds 100 "
        "--delta 1e-5 --json"
    )
    assert found["epsilon"] == total(dual(0.5, 105, 100, 0.01), 1e-5).epsilon
    assert found["epsilon"] == pytest.approx(2.51, rel=0.01)


def test_account_in_words():
    result = dynadp(
        "account --mechanism primal --dimension 105 --alpha 0.1 --rounds 100 --delta 1e-5 "
        "--rows-per-person 2"
    )
    for part in (
        "100 rounds of primal",
        "epsilon = 0.7077",
        "at most 67 in 100 would guess right",
        "as a plain sum",
        "up to 2 rows",
    ):
        assert part in result.output


def test_rows_of_a_person_are_one_row_of_as_many_times_the_loss():
    """Both ways: five rows at alpha = 0.1 are one at 0.5, and calibration divides by five."""
    how = "--mechanism primal --dimension 105 --rounds 40 --delta 1e-5 --json"
    five = answer(f"account {how} --alpha 0.1 --rows-per-person 5")
    one = answer(f"account {how} --alpha 0.5")
    assert five.pop("rows") == 5
    assert one.pop("rows") == 1
    assert five.pop("words") != one.pop("words")  # your rows, your row
    assert five == one
    five = answer(f"calibrate {how} --epsilon 1 --rows-per-person 5")
    one = answer(f"calibrate {how} --epsilon 1")
    assert five["alpha"] == pytest.approx(one["alpha"] / 5, rel=1e-3)
    assert five["epsilon"] <= 1


def test_calibrate_gives_alpha():
    found = answer(
        "calibrate --mechanism primal --dimension 105 --rounds 100 --epsilon 1 --delta 1e-5 --json"
    )
    assert 0.995 <= total(primal(found["alpha"], 105, 100), 1e-5).epsilon == found["epsilon"] <= 1
    assert found["alpha"] == pytest.approx(0.274, rel=0.01)


def test_calibrate_gives_rounds():
    found = answer(
        "calibrate --mechanism primal --dimension 105 --alpha 0.1 --epsilon 1 --delta 1e-5 --json"
    )
    assert found["epsilon"] <= 1 < total(primal(0.1, 105, found["rounds"] + 1), 1e-5).epsilon
    words = dynadp(
        "calibrate --mechanism primal --dimension 105 --alpha 0.1 --epsilon 1 --delta 1e-5"
    ).output
    assert words.startswith(f"{found['rounds']} rounds of primal perturbation")
    none = dynadp("calibrate --mechanism primal --dimension 1 --alpha 9 --epsilon 1 --delta 1e-5")
    assert (none.exit_code, none.output.startswith("Not even one round")) == (0, True)


def test_account_of_a_file_of_events(tmp_path):
    events = (
        primal(0.1, 20, 5, "north")
        + primal(0.3, 20, 5, "south")
        + [L2Laplace("south", 0, "centring", 0.2, 19, seeded=True)]
    )
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(json.dumps(to_json(event)) for event in events))
    found = answer(f"account --events {path} --delta 1e-5 --json")
    assert found["node"] == "south"
    assert found["epsilon"] == found["nodes"]["south"]["epsilon"] == total(events[5:], 1e-5).epsilon
    assert (found["nodes"]["north"]["protected"], found["nodes"]["south"]["protected"]) == (
        True,
        False,
    )
    assert "SIMULATION" in dynadp(f"account --events {path} --delta 1e-5").output


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("", "holds no event"),
        ("{", "line 1 is no JSON object"),
        ("[]", "line 1 is no JSON object"),
        ('{"kind": "magic"}', "line 1: unknown kind of event 'magic'"),
    ],
)
def test_a_bad_file_of_events(tmp_path, content, wrong):
    (tmp_path / "events").write_text(content)
    result = dynadp(f"account --events {tmp_path / 'events'} --delta 1e-5")
    assert result.exit_code == 2
    assert wrong in result.output


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (
            "account --mechanism dual --dimension 9 --alpha 1 --rounds 2 --delta 1e-5",
            "needs a Jacobian share (--jacobian-share)",
        ),
        (
            "account --mechanism primal --dimension 9 --alpha 1 --rounds 2 --jacobian-share .1 "
            "--delta 0",
            "has none",
        ),
        ("account --dimension 9 --rounds 2 --delta 1e-5", "missing --mechanism, --alpha"),
        ("account --events x --rounds 2 --delta 1e-5", "leave out"),
        ("account --events nowhere --delta 1e-5", "cannot read nowhere"),
        (
            "account --mechanism primal --dimension 9 --alpha nan --rounds 2 --delta 1e-5",
            "'nan' is not a finite number above 0",
        ),
        (
            "account --mechanism primal --dimension 9 --alpha x --rounds 2 --delta 1e-5",
            "'x' is not a finite number above 0",
        ),
        (
            "account --mechanism primal --dimension 9 --alpha 1 --rounds 2 --delta 1",
            "is not in the range",
        ),
        (
            "calibrate --mechanism primal --dimension 9 --epsilon 1 --delta 1e-5",
            "one of them, not both",
        ),
        (
            "calibrate --mechanism primal --dimension 9 --alpha 1 --rounds 2 --epsilon 1 --delta "
            "1e-5",
            "one of them, not both",
        ),
        ("calibrate --rounds 2 --epsilon 1 --delta 1e-5", "missing --mechanism or --dimension"),
        ("ledger cap nowhere/x --epsilon 1 --delta 1e-5", "name its node with --node"),
        ("ledger cap x --epsilon -1 --delta 1e-5", "is not a finite number above 0"),
    ],
)
def test_usage_mistakes_say_what_to_do(line, wrong):
    result = dynadp(line)
    assert result.exit_code == 2
    assert wrong in result.output


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "north.sqlite"
    made = answer(f"ledger cap {path} --epsilon 2 --delta 1e-5 --node north --who ada --json")
    assert (made["node"], made["epsilon"], made["sum"]) == ("north", 2.0, 0)
    return path


def test_ledger_shows_runs_cap_and_head(book):
    plan = primal(0.2, 50, 12, "north")
    with Ledger.open(book) as ledger:
        assert ledger.reserve("first", plan, dataset="wards", who="ada", at=AT) == "renyi"
        for event in plan[:3]:
            ledger.spend("first", event.round, [event], b"message", who="ada", at=AT)
        head = ledger.head
    shown = answer(f"ledger show {book} --json")
    (run,) = shown["runs"]
    assert (run["run"], run["dataset"], run["who"], run["state"], run["basis"]) == (
        "first",
        "wards",
        "ada",
        "open",
        "renyi",
    )
    assert (run["rounds_spent"], run["rounds_planned"], run["alpha_spent"]) == (
        3,
        12,
        pytest.approx(0.6),
    )
    assert shown["head"] == head
    assert shown["cap"]["sum"] == pytest.approx(2.4)  # an open run counts whole
    words = dynadp(f"ledger show {book}").output
    for part in (
        "Ledger of node north",
        "first",
        "3 of 12",
        head,
        "epsilon = 2",
        "in 100 would guess right",
    ):
        assert part in words
    room = shown["cap"]["room"]
    assert f"{room['left']:.1%} of the cap is left, after what open runs reserved (Rényi" in words
    assert f"{upper_bound(room['counted'])} of {room['limit']:.4g})." in words
    assert room["left"] == pytest.approx(1 - room["counted"] / room["limit"], abs=1e-3)
    assert (
        "By the other measure, 0.0% (sum of alpha: 2.4 of 2). A new run is allowed if either "
        "measure stays under its limit."
    ) in words
    closed = dynadp(f"ledger close {book} first --who ada")
    assert (closed.exit_code, "after 3 rounds" in closed.output) == (0, True)
    shown = answer(f"ledger show {book} --json")
    assert shown["runs"][0]["state"] == "stopped"
    assert shown["cap"]["sum"] == pytest.approx(0.6)
    again, mistyped = dynadp(f"ledger close {book} first"), dynadp(f"ledger close {book} frist")
    assert (again.exit_code, "its run 'first' is closed already; open runs" in again.output) == (
        2,
        True,
    )
    assert (
        mistyped.exit_code,
        "it has no run 'frist'; open runs, by their whole names: none" in mistyped.output,
    ) == (2, True)


def test_a_ledger_that_was_being_written_when_its_process_was_killed_can_be_shown(book):
    before = answer(f"ledger show {book} --json")
    dies = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('PRAGMA cache_size=1'); "
        "c.execute('BEGIN IMMEDIATE'); c.execute('CREATE TABLE junk (x)'); "
        "c.executemany('INSERT INTO junk VALUES (?)', [(bytes(4000),)] * 200); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", dies, str(book)], check=False).returncode == 9
    with pytest.raises(LedgerError, match="a write that was cut short"):
        Ledger.open(book, read_only=True)
    assert answer(f"ledger show {book} --json") == before


def test_ledger_explains_a_loss_of_the_whole_cap_beside_room_that_is_left(book):
    """The bound on what is lost is then the cap, while its filter still admits runs."""
    with Ledger.open(book) as ledger:
        for run, rounds in (("first", 7), ("second", 6)):
            plan = primal(0.8, 50, rounds, "north")
            assert ledger.reserve(run, plan, dataset="wards", who="ada", at=AT) == "renyi"
            for event in plan:
                ledger.spend(run, event.round, [event], b"message", who="ada", at=AT)
    cap = answer(f"ledger show {book} --json")["cap"]
    assert cap["lost"] == cap["epsilon"]
    assert cap["room"]["left"] > 0
    words = " ".join(dynadp(f"ledger show {book}").output.split())
    assert "Lost so far, by all runs: at most epsilon = 2 at delta = 1e-05." in words
    assert "Lost is the whole cap although" in words


def test_ledger_shows_what_is_lost_and_cuts_no_name(book):
    plan, name = primal(0.2, 50, 12, "north"), f"first {AT} 47d65ac0"
    with Ledger.open(book) as ledger:
        ledger.reserve(name, plan, dataset="wards", who="ada", at=AT)
        ledger.spend(name, 1, plan[:1], b"message", who="ada", at=AT)
    assert answer(f"ledger show {book} --json")["cap"]["lost"] == pytest.approx(0.2)
    words = dynadp(f"ledger show {book}").output
    assert "Lost so far, by all runs: at most epsilon = 0.2 at delta = 1e-05." in words
    assert f"  {name}" in words.splitlines()
    assert "    open: 1 of 12 releases made, alpha 0.2" in words.splitlines()


def test_several_ledgers_are_shown_and_checked_at_once(book, tmp_path):
    other = tmp_path / "south.sqlite"
    Ledger.create(other, "south", who="ada", at=AT).close()
    plan = primal(0.2, 50, 12, "north")
    with Ledger.open(book) as ledger:
        ledger.reserve("first", plan, dataset="wards", who="ada", at=AT)
        ledger.spend("first", 1, plan[:1], b"message", who="ada", at=AT)
    north, south = dynadp(f"ledger show {book} {other}").output.splitlines()
    assert north.startswith("north: 1 run (1 open); lost at most epsilon = 0.2 of 2 at delta")
    assert south == "south: 0 runs; no cap is set, so nothing can be reserved"
    shown = answer(f"ledger show {book} {other} --json")["ledgers"]
    assert [one["file"] for one in shown] == [str(book), str(other)]
    assert shown[0]["runs"] == answer(f"ledger show {book} --json")["runs"]
    assert dynadp(f"ledger verify {book} {other}").output.count("Sound") == 2
    content = bytearray(book.read_bytes())
    content[content.index(b'"epsilon":2.0') + 10] ^= 1
    book.write_bytes(content)
    broken = dynadp(f"ledger verify {book} {other}")
    assert broken.exit_code == 5
    assert f"{book}: DAMAGED" in broken.output
    assert f"{other}: Sound" in broken.output
    assert dynadp(f"ledger verify {book} {other} --head abc").exit_code == 2


@pytest.mark.parametrize(
    ("command", "code", "stream"),
    [("show {book}", 0, "stdout"), ("show nothing/at/all.sqlite", 2, "stderr")],
)
def test_lines_are_broken_between_words_in_a_terminal(book, command, code, stream):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    words = ["ledger", *command.format(book=book).split()]
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "dynadp", *words], env=environment, **{stream: follower}
    )
    assert done.returncode == code
    os.close(follower)
    lines = os.read(leader, 1 << 16).decode().splitlines()
    os.close(leader)
    plain = dynadp(" ".join(words)).output
    assert max(map(len, plain.splitlines())) > 60
    assert all(len(line) <= 60 or " " not in line.strip() for line in lines)
    assert " ".join(lines).split() == plain.split()


def test_ledger_verify_finds_a_flipped_bit_and_a_cut(book, tmp_path):
    head = answer(f"ledger verify {book} --json")["head"]
    older = tmp_path / "older.sqlite"
    older.write_bytes(book.read_bytes())
    dynadp(f"ledger cap {book} --epsilon 1 --delta 1e-5")
    newer = answer(f"ledger verify {book} --head {head} --json")
    assert newer["sound"]
    assert newer["head"] != head
    assert dynadp(f"ledger verify {older}").exit_code == 0  # alone it looks sound
    cut = dynadp(f"ledger verify {older} --head {newer['head']}")
    assert cut.exit_code == 5
    assert "cut, rolled back or replaced" in cut.output
    content = bytearray(book.read_bytes())
    content[content.index(b'"epsilon":2.0') + 10] ^= 1
    book.write_bytes(content)
    broken = dynadp(f"ledger verify {book} --json")
    assert broken.exit_code == 5
    assert json.loads(broken.stdout)["sound"] is False
    assert "DAMAGED" in dynadp(f"ledger verify {book}").output
    shown = dynadp(f"ledger show {book}")
    assert shown.exit_code == 5
    assert "damaged" in shown.output


def test_a_cap_that_is_changed_after_releases_says_what_that_means(book):
    assert (
        "The cap was" not in dynadp(f"ledger cap {book} --epsilon 3 --delta 1e-5").output
    )  # nothing was released
    plan = primal(0.2, 50, 12, "north")
    with Ledger.open(book) as ledger:
        ledger.reserve("first", plan, dataset="wards", who="ada", at=AT)
        ledger.spend("first", 1, plan[:1], b"message", who="ada", at=AT)
    printed = dynadp(f"ledger cap {book} --epsilon 7 --delta 1e-5").output
    assert "The cap was epsilon = 3 at delta = 1e-05, and 1 releases" in printed
    assert (
        "releases are entered. A cap that is changed because of what they showed is outside the "
        "guarantee." in printed
    )


def test_a_cap_below_what_was_lost_promises_nothing_that_is_false(book):
    plan = primal(0.2, 50, 12, "north")
    with Ledger.open(book) as ledger:
        ledger.reserve("first", plan, dataset="wards", who="ada", at=AT)
        for event in plan:
            ledger.spend("first", event.round, [event], b"message", who="ada", at=AT)
        ledger.close_run("first", "finished", who="ada", at=AT)
    printed = dynadp(f"ledger cap {book} --epsilon 0.1 --delta 1e-5").output
    most = answer(f"ledger show {book} --json")["cap"]["promised"]
    assert most > 0.1
    assert guess_words(0.1, 1e-5) not in printed
    assert (
        f"More than that is lost already, at most epsilon = {upper_bound(most)} at delta = 1e-05: "
        f"{guess_words(most, 1e-5)}." in printed
    )
    assert guess_words(0.1, 1e-5) not in dynadp(f"ledger show {book}").output


def test_a_cap_of_another_node_is_refused(book):
    result = dynadp(f"ledger cap {book} --epsilon 1 --delta 1e-5 --node south")
    assert result.exit_code == 2
    assert "is the ledger of 'north', not of 'south'" in result.output


def test_caps_and_closed_runs_from_python(tmp_path):
    path = tmp_path / "north.sqlite"
    with pytest.raises(DeclarationError, match="name its node"):
        set_cap(path, Cap.of(1.0, 1e-5), who="ada")
    before, after = set_cap(path, Cap.of(1.0, 1e-5), node="north", who="ada")
    assert (before, after.node, after.cap) == (None, "north", Cap.of(1.0, 1e-5))
    before, after = set_cap(path, Cap.of(2.0, 1e-5), who="ada")
    assert (before, after.cap) == (Cap.of(1.0, 1e-5), Cap.of(2.0, 1e-5))
    with Ledger.open(path) as ledger:
        plan = primal(0.2, 50, 3, "north")
        ledger.reserve("first", plan, dataset="wards", who="ada", at=AT)
        ledger.spend("first", 1, plan[:1], b"message", who="ada", at=AT)
    assert close_run(path, "first", who="ada")[0] == 1
    with open_readable(path) as ledger:
        assert LedgerSummary.of(ledger).open_runs == []


def test_equal_rounds_and_files_of_events_from_python(tmp_path):
    assert equal_rounds("primal", 0.5, 9, 2) == primal(0.5, 9, 2)
    assert equal_rounds("dual", 0.5, 9, 2, 0.01) == dual(0.5, 9, 2, 0.01)
    with pytest.raises(DeclarationError, match="expected primal, dual, gaussian, sum, sealed"):
        equal_rounds("magic", 0.5, 9, 2)
    path = tmp_path / "events"
    path.write_text("\n".join(json.dumps(to_json(event)) for event in primal(0.5, 9, 2)))
    assert read_events(path) == primal(0.5, 9, 2)


def test_a_ledger_that_is_not_there(tmp_path):
    result = dynadp(f"ledger show {tmp_path / 'none'}")
    assert result.exit_code == 2
    assert "there is no ledger" in result.output


def test_a_ledger_without_a_cap_says_how_to_set_one(tmp_path):
    Ledger.create(tmp_path / "new", "north", who="ada", at=AT).close()
    assert "dynadp ledger cap" in dynadp(f"ledger show {tmp_path / 'new'}").output


# --------------------------------------------------------------------------------------------------
# sealed sums


SEALED = "--mechanism gaussian --mu 0.1 --rounds 100 --delta 1e-5 --nodes 50 --honest 49"


def test_account_of_sealed_sums_where_more_collude():
    """mu grows by sqrt(49/10) if 40 of 50 collude."""
    found = answer(f"account {SEALED} --colluding 40 --json")
    assert found["joint_mu"] == pytest.approx((49 / 10) ** 0.5)
    assert found["epsilon"] == pytest.approx(gaussian_epsilon((49 / 10) ** 0.5, 1e-5), rel=1e-9)
    assert found["honest"] == [[10, 50]]
    assert found["planned"]["epsilon"] == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)
    curve = {point["colluding"]: point for point in found["collusion"]}
    assert curve[40]["epsilon"] == found["epsilon"]
    assert [c for c, point in curve.items() if point["planned"]] == [1]
    assert list(curve) == [1, 25, 40, 49]
    plain = answer(f"account {SEALED} --json")
    assert plain["epsilon"] == found["planned"]["epsilon"]
    assert "planned" not in plain
    alone = answer("account --mechanism gaussian --mu 0.1 --rounds 100 --delta 1e-5 --json")
    assert alone["epsilon"] == plain["epsilon"]
    assert (alone["honest"], "collusion" in alone) == ([], False)


def test_account_of_sealed_sums_in_words():
    words = " ".join(dynadp(f"account {SEALED} --colluding 40").output.split())
    assert "sealed, made for 49 honest ones of 50 nodes, where 40 collude" in words
    assert "as long as 10 of the 50 nodes are honest and nobody breaks the masks" in words
    assert "4.378 with 1 of the nodes colluding, as planned; 6.495 with 25 colluding" in words


def test_calibrate_for_more_colluders_than_planned():
    line = (
        "calibrate --mechanism sealed --rounds 10 --epsilon 1 --delta 1e-5 --nodes 50 --honest 40"
    )
    planned, worse = answer(f"{line} --json"), answer(f"{line} --colluding 40 --json")
    assert worse["mu"] == pytest.approx(planned["mu"] / 2, rel=2e-3)
    for found in (planned, worse):
        assert 0.99 < found["epsilon"] <= 1.0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            f"{SEALED.replace('49', '50')}",
            "honest is 50 of 50 nodes; expected a number from 1 to 49",
        ),
        (f"{SEALED} --colluding 50", "at most 49 can collude against a row of another"),
        ("--mechanism sealed --mu 0.1 --rounds 1 --delta 1e-5", "rest on honest nodes: give how"),
        (
            "--mechanism sum --mu 0.1 --rounds 1 --delta 1e-5 --nodes 5 --honest 3",
            "sum has noise of its own at every node: leave them out",
        ),
        (
            "--mechanism gaussian --mu 0.1 --rounds 1 --delta 1e-5 --colluding 3",
            "give --nodes and --honest too",
        ),
        ("--events absent --delta 1e-5 --nodes 3", "leave out those, or --events"),
    ],
)
def test_sealed_sums_that_cannot_be(line, words):
    result = dynadp(f"account {line}")
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_a_ledger_says_who_must_be_honest_and_what_more_colluders_cost(tmp_path):
    path = str(tmp_path / "a.sqlite")
    plan = equal_rounds("sealed", mu=0.1, rounds=4, nodes=5, honest=3, node="a")
    spare = replace(plan[-1], round=5, purpose="spare")
    with Ledger.create(path, "a", who="me", at=AT) as ledger:
        ledger.set_cap(Cap.of(4.0, 1e-5), who="me", at=AT)
        ledger.reserve("run", [*plan, spare], dataset="rows", who="me", at=AT)
        for event in (*plan[:2], spare):
            ledger.spend("run", event.round, [event], b"x" * 8, who="me", at=AT)
    shown = answer(f"ledger show {path} --json")
    (run,) = shown["runs"]
    assert (run["rounds_spent"], run["rounds_planned"]) == (2, 4)
    assert (run["spares_spent"], run["spares_planned"]) == (1, 1)
    assert shown["honest"] == [[3, 5]]
    cap = Cap.of(4.0, 1e-5)
    for point, left in zip(shown["collusion"], (3, 1), strict=True):
        assert point["honest"] == left
        assert point["mu"] == pytest.approx(0.1 * (3 * 3 / left) ** 0.5)
        opened = [replace(plan[0], mu=0.1 * (3 / left) ** 0.5, round=n) for n in (1, 2, 3)]
        assert point["epsilon"] <= cap.odometer(opened)
    assert shown["collusion"][0]["epsilon"] == shown["cap"]["lost"]
    words = " ".join(dynadp(f"ledger show {path}").output.split())
    assert "All of this holds as long as 3 of the 5 nodes are honest" in words
    assert "If more put together what they know, so far at most epsilon" in words
    assert "2 of 4 releases made, 1 of 1 spare attempts" in words


def test_how_often_sealed_sums_of_several_nodes_fit():
    """A person at two nodes loses more than both together: not in proportion to the releases."""
    cap = Cap.of(1.0, 1e-5)
    both = [
        *equal_rounds("sealed", mu=0.05, nodes=5, honest=3, node="a"),
        *equal_rounds("sealed", mu=0.05, nodes=5, honest=3, node="b"),
    ]
    times = cap.affordable([], both)
    assert cap.filter(both * times)
    assert not cap.filter(both * (times + 1))
