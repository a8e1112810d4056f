"""README's table, and all that shows the same runs: pages, pictures, papers, and ledgers."""

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dynadp.engines.journal import LedgerJournal
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.statements import upper_bound
from dynadp.report.explore.serve import explorer
from dynadp.report.page import write_report
from dynadp.report.replay.app import Replay
from dynadp.report.run_figures import charts_of_run
from dynadp.research.demonstration import RING, SILOS, Demonstration
from dynadp.runs.folder import load_run
from dynadp.runs.training import train
from support.page_client import TOKEN, Client
from support.typed import dynadp

pytestmark = pytest.mark.slow
README = (Path(__file__).parents[2] / "README.md").read_text()
TABLE = re.search(r"What `make run` shows:\n\n```text\n(.*?)```", README, re.DOTALL)[1]
ROW = re.compile(
    r"│\s+(dual|primal|sealed|sum) │\s+([\d.]+) │\s+(alpha|mu) ([\d.]+) │\s+(\d+) │.*│\s+([\d.]+)% "
)
GAP = re.compile(r"\d\.\de[+-]\d\d")  # the last digits of a fit without noise, which libraries move
ROWS = {row[0]: row[1:] for row in ROW.findall(TABLE)}
PRIVATE = ("dual", "primal", "sealed", "sum")


def words(text):
    """A page's text in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def epsilons(text):
    return set(re.findall(r"epsilon = ([\d.]+\d)", text))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The run that README shows, and what it printed."""
    place = tmp_path_factory.mktemp("readme") / "demo"
    done = dynadp("demo", "--out", place, COLUMNS="80")
    assert done.exit_code == 0, done.output
    return place, done.stdout


def test_readme_shows_what_the_command_prints(demo):
    printed = demo[1].partition("Folder:")[0]
    shown, found = (" ".join(GAP.sub("GAP", text).split()) for text in (TABLE, printed))
    assert shown == found
    assert set(ROWS) == set(PRIVATE)


@pytest.mark.parametrize("name", PRIVATE)
def test_one_run_has_one_total_in_all_places(demo, name):
    """Table, README, record, report, certificate, picture, page and replay."""
    folder, (epsilon, unit, most, rounds, _) = demo[0] / name, ROWS[name]
    record = load_run(folder)
    assert upper_bound(record.plan["total"]["epsilon"]) == epsilon
    assert (upper_bound(record.plan[unit], 3), record.plan["rounds"]) == (most, int(rounds))
    report = words(write_report(folder, folder / "report.html").read_text())
    assert epsilons(report) == {epsilon}
    assert dynadp("certify", folder, "--out", folder / "c.json").exit_code == 0
    assert epsilons(json.loads((folder / "c.json").read_text())["guarantee"]) == {epsilon}
    drawn = charts_of_run(folder)["totals"].to_dict()["datasets"].values()
    points = [p for rows in drawn for p in rows if p["accounting"].startswith("in use")]
    end = max(points, key=lambda point: point["round"])
    assert (upper_bound(end["epsilon"]), end["round"]) == (epsilon, int(rounds))
    shown = explorer(str(folder))
    shown.watch.look()
    page = words(Client(shown).get(f"/{TOKEN}/").text)
    assert epsilons(page) - {"1"} == {epsilon}  # 1 is what was asked for
    assert f"The plan costs epsilon = {epsilon}: {unit} = " in page
    assert f"is finished after {rounds} rounds" in page
    assert f"epsilon = {epsilon}" in words(Client(Replay(folder)).get(f"/{TOKEN}/").text)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_ledger_of_that_plan_has_the_same_total(demo, name, tmp_path):
    """A SIMULATION enters no ledger; so the plan runs once more, with noise from the system."""
    made = Demonstration(tmp_path / "again")
    chosen = made._plan(name)
    at = datetime.now(UTC).isoformat()
    files = {node: tmp_path / f"{node}.sqlite" for node in SILOS}
    for node, file in files.items():
        line = f"ledger cap {file} --node {node} --epsilon 3 --delta 1e-5"
        assert dynadp(line).exit_code == 0
    ledgers = {node: Ledger.open(file) for node, file in files.items()}
    journal = LedgerJournal(ledgers, "demo", dataset="rows", who="me", clock=lambda: at)
    train(made.data.schema, made.data.tables(SILOS), RING, chosen, journal=journal)
    for ledger in ledgers.values():
        ledger.close()
    lost = set()
    for file in files.values():
        shown = dynadp("ledger", "show", file).output
        lost.add(re.search(r"Lost so far, by all runs: at most epsilon = ([\d.]+\d)", shown)[1])
    assert max(lost, key=float) == ROWS[name][0]
