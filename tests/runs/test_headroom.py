"""What ledgers would still admit: ``dynadp ledger left`` and ``dynadp check --max-epsilon``, held
to what they then really admit.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dynadp import Topology, plan
from dynadp.data.datasets.synthetic import census
from dynadp.errors import BudgetRefused, DeclarationError
from dynadp.mechanisms import Sealed
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.inverse import primal
from dynadp.privacy.ledger.anchor import anchor_file
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.units import Unit
from dynadp.runs.headroom import LEAST, NextRun, find_headroom, find_largest, largest_total
from dynadp.runs.local import LocalRun
from support.run_files import NODES, settle
from support.typed import answer, dynadp

AT = "2026-03-01T12:00:00+00:00"
NOTE = {"dataset": "wards", "who": "ada", "at": AT}


def next_plan(epsilon, mechanism="sum", rows=700, nodes=3, dimension=31, delta=1e-5, unit=None):
    """What node "a" releases in a run that is not the one that stands for it."""
    ring = Topology.family("ring", nodes).named([chr(97 + p) for p in range(nodes)])
    asked = {"epsilon": epsilon, "delta": delta, "mechanism": mechanism, "unit": unit}
    made = plan([rows] * nodes, ring, dimension, **asked)
    return [event for event in made.events if event.node == "a"]


@pytest.fixture
def book(tmp_path):
    def make(epsilon=1.0, delta=1e-5):
        path = tmp_path / "a.sqlite"
        with Ledger.create(path, "a", who="ada", at=AT) as ledger:
            ledger.set_cap(Cap.of(epsilon, delta), who="ada", at=AT)
        return path

    return make


def spend(path, run, events, rounds=None, close=True):
    """Reserve a run, release some of its rounds or all of them, and close it."""
    with Ledger.open(path) as ledger:
        ledger.reserve(run, events, **NOTE)
        numbers = sorted({event.round for event in events})
        for n in numbers[:rounds]:
            own = [event for event in events if event.round == n]
            ledger.spend(run, n, own, b"message", who="ada", at=AT)
        if close:
            ledger.close_run(run, "finished", who="ada", at=AT)


def admitted(path, events):
    """Whether the ledger takes a run; it is closed again before its first release."""
    with Ledger.open(path) as ledger:
        run = ledger.head  # a new name
        try:
            basis = ledger.reserve(run, events, **NOTE)
        except BudgetRefused:
            return None
        ledger.close_run(run, "stopped", who="ada", at=AT)
        return basis


def require_exact(path, **run):
    """The epsilon that is left is admitted, and 2% more is not."""
    mechanism = run.get("mechanism", "sum")
    options = "" if mechanism == "sum" else f" --mechanism {mechanism} --dimension 31 --nodes 3"
    (left,) = answer(f"ledger left {path}{options} --json")["ledgers"]
    if mechanism == "sealed":
        run["mechanism"] = Sealed(honest=2)
    basis = admitted(path, next_plan(left["epsilon"], **run))
    assert basis == left["basis"] or (basis and mechanism == "dual")
    assert admitted(path, next_plan(1.02 * left["epsilon"], **run)) is None
    return left


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "mechanism", ["sum", "sealed", "primal", pytest.param("dual", marks=pytest.mark.slow)]
)
def test_what_is_left_is_what_is_admitted(book, mechanism):
    path, named = book(), Sealed(honest=2) if mechanism == "sealed" else mechanism
    first = require_exact(path, mechanism=mechanism)
    assert first["epsilon"] == 1.0  # a plan of the whole cap
    spend(path, "one", next_plan(0.4, named))
    second = require_exact(path, mechanism=mechanism)
    spend(path, "two", next_plan(0.3, named), close=False)
    third = require_exact(path, mechanism=mechanism)
    assert third["open_runs"] == []  # it has released all
    assert 1 > second["epsilon"] > third["epsilon"] > 0.3


@pytest.mark.parametrize(("rows", "nodes", "dimension"), [(60, 2, 4), (10**6, 12, 300)])
def test_sums_of_any_shape_fit_alike(book, rows, nodes, dimension):
    path = book(2.0)
    spend(path, "one", next_plan(1.1))
    require_exact(path, rows=rows, nodes=nodes, dimension=dimension)


def test_left_after_mixed_runs_under_other_caps(book):
    path = book(3.0, 1e-6)
    spend(path, "noise", primal(0.1, 30, 40, "a"))
    spend(path, "accuracy", [L2Laplace("a", 0, "evaluation", 0.05, 1)])
    spend(path, "sums", next_plan(0.8, delta=1e-6))
    left = require_exact(path, delta=1e-6)
    assert left["cap"] == {"epsilon": 3.0, "delta": 1e-6}
    assert left["basis"] == "renyi"
    assert left["sharing"] == left["epsilon"]


@pytest.mark.first(1)
@pytest.mark.parametrize("mechanism", ["sum", "sealed", "primal"])
def test_left_for_people_with_several_rows_at_several_nodes(book, mechanism):
    path, person = book(), Unit(3, 2)
    named = Sealed(honest=2) if mechanism == "sealed" else mechanism
    spend(path, "one", next_plan(0.4, named, unit=person))
    left = require_exact(path, mechanism=mechanism, unit=person)
    assert (left["unit"]["rows"], left["unit"]["silos"]) == (3, 2)
    words = dynadp(f"ledger left {path}").output
    assert "at delta = 1e-05 for anybody with up to 3 rows at each of up to 2 nodes." in words
    shown = dynadp(f"ledger show {path}").output
    whom = "over all runs for anybody with up to 3 rows at each of up to 2 nodes, as long as none"
    assert whom in " ".join(shown.split())


def test_left_for_people_with_more_rows_than_before(book):
    """What was planned for one row counts for nine of them then."""
    path = book(3.0)
    spend(path, "one", next_plan(0.4))
    options = "--rows-per-person 3 --silos-per-person 1 --epsilon 0.5"
    (left,) = answer(f"ledger left {path} {options} --json")["ledgers"]
    assert admitted(path, next_plan(left["epsilon"], unit=Unit(3))) == "renyi"
    assert admitted(path, next_plan(1.02 * left["epsilon"], unit=Unit(3))) is None
    with Ledger.open(path) as ledger:
        for n in range(left["runs"]):
            ledger.reserve(f"run {n}", next_plan(0.5, unit=Unit(3)), **NOTE)
    assert left["runs"] > 1
    assert admitted(path, next_plan(0.5, unit=Unit(3))) is None


def test_left_beside_an_open_run_and_after_it_was_closed(book):
    path = book()
    spend(path, "open", next_plan(0.7), rounds=3, close=False)
    beside = require_exact(path)
    assert beside["open_runs"] == ["open"]
    words = dynadp(f"ledger left {path}").output
    assert f"a: a next run may have epsilon = {beside['epsilon']:g} at delta = 1e-05 for" in words
    assert "Open: open; what they do not spend is free again when they are closed." in words
    assert dynadp(f"ledger close {path} open").exit_code == 0
    assert require_exact(path)["epsilon"] > beside["epsilon"]


def test_nothing_is_left_after_a_plan_that_took_the_whole_cap(book):
    path = book()
    spend(path, "whole", next_plan(1.0))
    (left,) = answer(f"ledger left {path} --epsilon 0.1 --json")["ledgers"]
    assert (left["epsilon"], left["runs"], left["taken_by"]) == (None, 0, "whole")
    assert admitted(path, next_plan(LEAST)) is None
    assert "a: nothing fits: run whole took the whole cap." in dynadp(f"ledger left {path}").output
    assert dynadp(f"ledger cap {path} --epsilon 1.5 --delta 1e-5").exit_code == 0
    require_exact(path)  # a larger cap: what the plan released counts against it
    assert dynadp(f"ledger cap {path} --epsilon 0.2 --delta 1e-5").exit_code == 0
    assert (
        "nothing fits: not even a run with epsilon = 0.001" in dynadp(f"ledger left {path}").output
    )


def test_an_empty_ledger_says_what_takes_all_and_what_shares(book):
    path = book()
    (left,) = answer(f"ledger left {path} --json")["ledgers"]
    assert left["basis"] == "plan"
    assert admitted(path, next_plan(left["sharing"])) == "renyi"
    assert admitted(path, next_plan(1.02 * left["sharing"])) == "plan"
    assert dynadp(f"ledger left {path}").output == (
        "a: a next run may have epsilon = 1 at delta = 1e-05 for anybody with a row at one node "
        "if it takes the whole cap; up to "
        f"{left['sharing']:g} it leaves room for others.\n"
    )


@pytest.mark.parametrize("epsilon", [0.3, 0.45, 0.95])
def test_how_many_runs_fit_one_after_the_other(book, epsilon):
    path = book()
    spend(path, "one", next_plan(0.2)) if epsilon < 0.9 else None
    (left,) = answer(f"ledger left {path} --epsilon {epsilon} --json")["ledgers"]
    for n in range(left["runs"]):
        spend(path, f"run {n}", next_plan(epsilon))
    assert left["runs"] == 1 if epsilon > 0.9 else left["runs"] > 1
    assert admitted(path, next_plan(epsilon)) is None
    words = dynadp(f"ledger left {path} --epsilon {epsilon}").output
    assert f"Of epsilon = {epsilon:g}, no runs fit" in words or "took the whole cap" in words


def test_ledgers_without_a_cap_or_with_delta_0(tmp_path, book):
    Ledger.create(tmp_path / "new", "b", who="ada", at=AT).close()
    pure = book(1.0, 0.0)
    words = dynadp(f"ledger left {tmp_path / 'new'} {pure}").output.splitlines()
    assert words == [
        "b: nothing fits: no cap is set, so nothing can be reserved.",
        "a: nothing fits: the cap's delta is 0, and a planned run needs one above 0.",
    ]
    shown = answer(f"ledger left {tmp_path / 'new'} {pure} --json")
    assert [one["cap"] for one in shown["ledgers"]] == [None, {"epsilon": 1.0, "delta": 0.0}]
    asked = {"mechanism": None, "rounds": None, "dimension": 10, "nodes": 5, "unit": None}
    assert shown["next_run"] == asked
    assert dynadp(f"ledger left {tmp_path / 'none'}").exit_code == 2


def test_rounds_of_the_next_run(book):
    with Ledger.open(book()) as ledger:
        summary = LedgerSummary.of(ledger)
    short, long = NextRun("primal", rounds=2), NextRun("sum", rounds=40)
    assert len(short.events("a", 1.0, 1e-5)) == 3  # with the centring round
    assert len(long.events("a", 1.0, 1e-5)) == 41
    assert find_headroom(summary, long) == find_headroom(summary)


@pytest.mark.parametrize("most", [0.0011, 0.00999, 0.3, 0.9999, 1.0, 1.005, 7.77, 990.0])
@pytest.mark.parametrize("guess", [1e-6, 0.01, 0.65, 1.0, 40.0])
def test_the_largest_total_of_three_digits(most, guess):
    tried = []

    def fits(epsilon):
        tried.append(epsilon)
        return epsilon <= most

    found = largest_total(fits, guess)
    assert found <= most < found * 1.0101
    assert float(f"{found:.3g}") == found
    assert len(tried) <= 25


def test_the_largest_total_where_none_or_all_fit():
    assert largest_total(lambda epsilon: False, 1.0) is None
    assert largest_total(lambda epsilon: True, 1.0) == 1000.0


# --------------------------------------------------------------------------------------------------
# dynadp check --max-epsilon


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(census(600, seed=4, nodes=3))
    assert dynadp("ledger cap --run run.toml --epsilon 2 --delta 1e-5").exit_code == 0
    return tmp_path


def rewrite(before, after):
    text = Path("run.toml").read_text()
    assert before in text
    Path("run.toml").write_text(text.replace(before, after))


def counting_plans(monkeypatch):
    made, plain = [], LocalRun.plan
    monkeypatch.setattr(LocalRun, "plan", lambda self, *more: made.append(1) or plain(self, *more))
    return made


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "mechanism", ['"sum"', '"primal"', '"dual"', '"sealed"\nhonest = 2'], ids=lambda m: m[1:4]
)
def test_the_largest_epsilon_is_admitted_and_more_is_not(place, monkeypatch, mechanism):
    rewrite('# mechanism = "sum"', f"mechanism = {mechanism}")
    with Ledger.open("south.sqlite") as ledger:  # it has spent something, others have not
        ledger.reserve("earlier", primal(0.05, 20, 30, "south"), **NOTE)
    with monkeypatch.context() as patch:
        made = counting_plans(patch)
        found = answer("check run.toml --max-epsilon --json", code=3)
        assert len(made) <= 26
    most = found["max_epsilon"]
    assert found["limited_by"] == ["south"]
    assert 0.5 < most < 2
    assert dynadp(f"check run.toml --epsilon {most}").exit_code == 0
    assert dynadp(f"train run.toml --epsilon {1.02 * most}").exit_code == 3
    trained = dynadp(f"train run.toml --epsilon {most}")
    assert trained.exit_code == 0, trained.output


def test_the_largest_epsilon_of_fresh_ledgers_is_the_cap(place):
    found = answer("check run.toml --max-epsilon --json")
    assert found["max_epsilon"] == 2
    assert found["limited_by"] == found["takes_whole_cap"] == list(NODES)
    words = dynadp("check run.toml --max-epsilon --epsilon 0.7").output
    assert (
        "At most, all ledgers would admit this run with epsilon = 2 (--epsilon 2); more is refused "
        "by that of north, south, west. That would take the whole cap of north, south, west: "
        "nothing could follow." in words
    )
    assert "max_epsilon" not in answer("check run.toml --json")
    assert dynadp("ledger cap north.sqlite --epsilon 0.9 --delta 1e-5").exit_code == 0
    found = answer("check run.toml --max-epsilon --json", code=3)
    assert (found["max_epsilon"], found["limited_by"]) == (0.9, ["north"])
    assert dynadp("ledger cap --run run.toml --epsilon 5000 --delta 1e-5").exit_code == 0
    words = dynadp("check run.toml --max-epsilon").output
    assert "epsilon = 1000 (--epsilon 1000), and more was not tried" in words


def test_no_total_fits_after_the_whole_cap_was_taken(place):
    assert dynadp("train run.toml").exit_code == 0
    result = dynadp("check run.toml --max-epsilon")
    assert result.exit_code == 3
    assert "No total fits any more: the ledger of north, south, west would refuse" in result.output


def test_totals_of_single_nodes_stay(place):
    rewrite('name = "north"', 'name = "north"\nepsilon = 0.5')
    found = answer("check run.toml --max-epsilon --json")
    assert found["max_epsilon"] == 2
    assert found["limited_by"] == ["south", "west"]
    assert dynadp("ledger cap north.sqlite --epsilon 0.4 --delta 1e-5").exit_code == 0
    found = answer("check run.toml --max-epsilon --json", code=3)
    assert (found["max_epsilon"], found["limited_by"]) == (None, ["north"])


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (
            lambda text: (
                re.sub(r"\nepsilon = .*", "\nalpha = 0.1", text)
                + "[training]\nrounds = 3\nrho = 1e-3\neta = 0.1\n"
            ),
            "it gives alpha for each round, and there is no total to change; give epsilon instead "
            "of alpha",
        ),
        (
            lambda text: re.sub(r"\nepsilon = .*", "\nmu = 0.1", text) + "[training]\nrounds = 3\n",
            "it gives mu for each round",
        ),
        (
            lambda text: re.sub(r"\nepsilon = .*", '\nmechanism = "none"', text),
            "mechanism is none, so nothing is spent",
        ),
        (
            lambda text: re.sub(r"(\nname = \"(north|south|west)\")", r"\1\nepsilon = 1", text),
            "every node has an epsilon of its own, so --epsilon changes nothing",
        ),
    ],
    ids=["alpha", "mu", "none", "nodes"],
)
def test_runs_without_a_total_have_no_largest_one(place, change, wrong):
    Path("run.toml").write_text(change(Path("run.toml").read_text()))
    result = dynadp("check run.toml --max-epsilon")
    assert result.exit_code == 2
    assert "run.toml has no largest epsilon" in result.output
    assert wrong in result.output


def test_a_simulation_has_no_largest_total(place):
    result = dynadp("check run.toml --max-epsilon --seed 3")
    assert result.exit_code == 2
    assert "a SIMULATION enters no ledger, so none limits it" in result.output


def test_a_node_that_releases_nothing_refuses_nothing(place):
    """Its ledger is not asked: nothing is reserved there."""
    Path("west.csv").write_text("\n".join(Path("west.csv").read_text().splitlines()[:3]) + "\n")
    with Ledger.open("west.sqlite") as ledger:
        whole = next_plan(2.0)
        ledger.reserve("whole", [replace(event, node="west") for event in whole], **NOTE)
    found = answer("check run.toml --max-epsilon --json")
    assert (found["max_epsilon"], found["limited_by"]) == (2, ["north", "south"])
    assert dynadp("train run.toml").exit_code == 0


def test_no_total_fits_without_a_cap_or_for_people_with_more_rows(place):
    """What was released for one row counts eightfold for people with two rows at two nodes."""
    assert dynadp("train run.toml --epsilon 1.2").exit_code == 0
    rewrite("delta = 1e-05", "delta = 1e-05\nrows_per_person = 2\nsilos_per_person = 2")
    found = answer("check run.toml --max-epsilon --json", code=3)
    assert (found["max_epsilon"], found["limited_by"]) == (None, list(NODES))
    assert dynadp("check run.toml --epsilon 0.001").exit_code == 3
    Path("west.sqlite").unlink()
    anchor_file("west.sqlite").unlink()
    Ledger.create("west.sqlite", "west", who="ada", at=AT).close()
    assert dynadp("ledger cap north.sqlite south.sqlite --epsilon 90 --delta 1e-5").exit_code == 0
    found = answer("check run.toml --max-epsilon --json", code=3)
    assert (found["max_epsilon"], found["limited_by"]) == (None, ["west"])


def test_a_total_for_which_there_is_no_plan_does_not_fit(book):
    """Above some total a plan cannot be made; the search goes on below it."""
    with Ledger.open(book(50.0)) as ledger:
        summaries = {"a": LedgerSummary.of(ledger)}

    def planned(epsilon):
        if epsilon > 7:
            raise DeclarationError("no plan")
        return next_plan(epsilon)

    found = find_largest(summaries, planned, 1.0)
    assert (found.epsilon, found.limited_by) == (7.0, ("a",))
