"""Caps set and runs closed in the ledgers of many nodes by one command."""

from pathlib import Path

import pytest

from dynadp.errors import LedgerError
from dynadp.privacy.inverse import equal_rounds
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs import ledgers
from support.typed import answer, dynadp

AT = "2026-03-01T12:00:00+00:00"
NODES = ("north", "south", "west")
RUN = """
[data]
schema = "schema.toml"
[privacy]
epsilon = 1
delta = 1e-5
"""
BUDGET = "--epsilon 2 --delta 1e-5"


def write_run(path="study/run.toml", **ledgers):
    lines = [
        f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nledger = "{ledger}"\n'
        for node, ledger in ledgers.items()
    ]
    Path(path).write_text(RUN + "".join(lines))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study").mkdir()
    write_run(**{node: f"{node}.sqlite" for node in NODES})


@pytest.fixture
def books(place):
    assert dynadp(f"ledger cap --run study/run.toml {BUDGET}").exit_code == 0
    return {node: Path("study") / f"{node}.sqlite" for node in NODES}


def reserve(path, node, run="first", spent=2):
    plan = equal_rounds("sum", mu=0.05, rounds=5, node=node)
    with Ledger.open(path) as ledger:
        ledger.reserve(run, plan, dataset="wards", who="ada", at=AT)
        for event in plan[:spent]:
            ledger.spend(run, event.round, [event], b"message", who="ada", at=AT)


def contents(books):
    return {node: path.read_bytes() for node, path in books.items() if path.exists()}


def test_the_ledgers_of_a_run_file_are_made_and_capped(place):
    result = dynadp(f"ledger cap --run study/run.toml {BUDGET}")
    assert result.exit_code == 0, result.output
    for node in NODES:
        assert f"Node {node} may spend epsilon = 2 at delta = 1e-05" in result.output
        with Ledger.open(f"study/{node}.sqlite") as ledger:
            assert (ledger.node, ledger.cap.epsilon) == (node, 2.0)
    again = answer("ledger cap --run study/run.toml --epsilon 3 --delta 1e-6 --json")["ledgers"]
    assert [(one["node"], one["epsilon"], one["delta"]) for one in again] == [
        (node, 3.0, 1e-6) for node in NODES
    ]
    assert [one["file"] for one in again] == [str(Path("study", f"{n}.sqlite")) for n in NODES]


def test_the_caps_of_several_files(books):
    files = " ".join(map(str, books.values()))
    done = answer(f"ledger cap {files} --epsilon 0.5 --delta 1e-5 --json")["ledgers"]
    assert [(one["node"], one["epsilon"]) for one in done] == [(node, 0.5) for node in NODES]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (f"ledger cap {BUDGET}", "give the ledgers' files, or --run RUN.toml"),
        (f"ledger cap a b --run study/run.toml {BUDGET}", "one of them, not both"),
        (f"ledger cap a --run study/run.toml {BUDGET}", "one of them, not both"),
        (f"ledger cap a b --node x {BUDGET}", "--node names the node of one FILE"),
        (f"ledger cap --run study/run.toml --node x {BUDGET}", "--node names the node of one FILE"),
        (f"ledger cap a b {BUDGET}", "there is no ledger a; name its node with --node"),
        (f"ledger cap --run absent.toml {BUDGET}", "cannot read absent.toml"),
        ("ledger close first", "give the ledgers' files, or --run RUN.toml"),
        ("ledger close study/north.sqlite --run study/run.toml first", "one of them, not both"),
    ],
)
def test_usage_mistakes_say_what_to_do(place, line, wrong):
    result = dynadp(line)
    assert result.exit_code == 2
    assert wrong in result.output


def test_all_ledgers_are_capped_or_none(books):
    books["south"].unlink()
    with Ledger.create("study/other.sqlite", "east", who="ada", at=AT):
        pass
    write_run(north="north.sqlite", south="absent/south.sqlite", west="other.sqlite")
    before = contents(books)
    result = dynadp("ledger cap --run study/run.toml --epsilon 3 --delta 1e-5")
    assert result.exit_code == 2
    assert "ledgers, of which none was changed: 2 problems" in result.output
    assert "choose a folder that exists and can be written" in result.output
    assert "is the ledger of 'east', not of 'west'" in result.output
    assert contents(books) == before
    assert not Path("study/absent").exists()


def test_a_ledger_under_two_names_is_refused(books):
    result = dynadp(f"ledger cap study/north.sqlite study/../study/north.sqlite {BUDGET}")
    assert result.exit_code == 2
    assert "is given twice" in result.output
    write_run(north="north.sqlite", south="north.sqlite")
    result = dynadp(f"ledger cap --run study/run.toml {BUDGET}")
    assert (result.exit_code, "two nodes have the same ledger" in result.output) == (2, True)


def test_a_damaged_ledger_stops_all(books):
    content = bytearray(books["south"].read_bytes())
    content[content.index(b'"epsilon":2.0') + 10] ^= 1
    books["south"].write_bytes(content)
    before = contents(books)
    result = dynadp("ledger cap --run study/run.toml --epsilon 3 --delta 1e-5")
    assert result.exit_code == 5
    assert contents(books) == before


def test_a_failure_on_the_way_says_what_was_changed(books, monkeypatch):
    plain = ledgers.set_cap

    def failing(path, *more, **named):
        if path.name == "south.sqlite":
            raise LedgerError("the disk is full")
        return plain(path, *more, **named)

    monkeypatch.setattr(ledgers, "set_cap", failing)
    result = dynadp("ledger cap --run study/run.toml --epsilon 3 --delta 1e-5")
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert (
        "the disk is full the cap was set in study/north.sqlite, and not in study/south.sqlite, "
        "study/west.sqlite; when the cause is gone, give the same command for the rest" in words
    )
    caps = {}
    for node, path in books.items():
        with Ledger.open(path) as ledger:
            caps[node] = ledger.cap.epsilon
    assert caps == {"north": 3.0, "south": 2.0, "west": 2.0}


def test_run_files_without_ledgers(place):
    text = Path("study/run.toml").read_text()
    seeded = "[run]\nseed = 3\n" + "".join(
        line for line in text.splitlines(True) if not line.startswith("ledger")
    )
    Path("study/run.toml").write_text(seeded)
    result = dynadp(f"ledger cap --run study/run.toml {BUDGET}")
    assert result.exit_code == 2
    assert "names no ledger for north, south, west: a SIMULATION" in result.output
    network = RUN + "".join(
        f'[[nodes]]\nname = "{n}"\nrows = 9\nkey = "ed25519:{43 * letter}="\n'
        for n, letter in (("north", "A"), ("south", "B"))
    )
    Path("study/run.toml").write_text(network)
    result = dynadp(f"ledger cap --run study/run.toml {BUDGET}")
    assert result.exit_code == 2
    assert "is a network run, which names no ledgers" in result.output


def test_a_run_is_closed_in_all_ledgers(books):
    for node in NODES[:2]:  # west releases nothing, and has no reservation
        reserve(books[node], node)
    result = dynadp("ledger close --run study/run.toml first --who ada")
    assert result.exit_code == 0, result.output
    assert result.output.count("run first is closed after 2 rounds. Head ") == 2
    assert "study/west.sqlite: unchanged, it has no run 'first'" in result.output
    for node in NODES[:2]:
        shown = answer(f"ledger show {books[node]} --json")
        assert shown["runs"][0]["state"] == "stopped"
    again = dynadp("ledger close --run study/run.toml first")
    assert again.exit_code == 2
    assert "run 'first' is open in none of these ledgers; open runs" in again.output


def test_closing_goes_on_where_it_stopped(books):
    for node in NODES:
        reserve(books[node], node)
    alone = answer(f"ledger close {books['north']} first --json")
    assert [one["rounds"] for one in alone["closed"]] == [2]
    files = " ".join(map(str, books.values()))
    done = answer(f"ledger close {files} first --json")
    assert [one["file"] for one in done["closed"]] == [str(books[n]) for n in NODES[1:]]
    assert done["others"] == [
        {"file": str(books["north"]), "why": "its run 'first' is closed already"}
    ]


def test_a_mistyped_run_closes_nothing(books):
    for node in NODES:
        reserve(books[node], node)
    before = contents(books)
    result = dynadp("ledger close --run study/run.toml frist")
    assert result.exit_code == 2
    assert "open runs, by their whole names: 'first'" in result.output
    assert contents(books) == before


def test_ledgers_that_cannot_be_written_are_refused_before_one_is_changed(books, monkeypatch):
    """Root may write everything, so the answer of the system is made up."""
    for node in NODES:
        reserve(books[node], node)
    before, real = contents(books), ledgers.os.access
    monkeypatch.setattr(
        ledgers.os, "access", lambda path, mode: "west" not in str(path) and real(path, mode)
    )
    for line in ("close --run study/run.toml first", f"cap --run study/run.toml {BUDGET}"):
        result = dynadp(f"ledger {line}")
        assert result.exit_code == 2
        assert "west.sqlite or its folder cannot be written by this user" in result.output
    assert contents(books) == before
