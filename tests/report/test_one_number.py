"""One run, one number: what the command line, the files, the pages and the ledgers show of it."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from dynadp._intervals import written
from dynadp.data.datasets.synthetic import census
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.statements import upper_bound
from dynadp.report.explore.serve import explorer
from dynadp.report.replay.app import Replay
from dynadp.report.run_figures import charts_of_run
from dynadp.runs.folder import load_run
from support.page_client import TOKEN, Client
from support.typed import answer, dynadp

ROOT = Path(__file__).parents[2]
NODES = ("north", "south", "west")
ENDS = ("value", "low", "high")
PERCENT = re.compile(r"\d+\.\d%")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run as a user makes it, from a run file with ledgers and public rows."""
    place = tmp_path_factory.mktemp("one")
    data = census(rows=1500, nodes=3, seed=5, test_rows=400)
    (place / "schema.json").write_text(data.schema.model_dump_json())

    def write(table, path):
        rows = zip(*(list(map(str, cells)) for cells in table.values()), strict=True)
        path.write_text("\n".join(",".join(cells) for cells in (table, *rows)) + "\n")

    text = f'[run]\nname = "one"\n[data]\nschema = "{place}/schema.json"\n'
    for node, table in data.tables(NODES).items():
        write(table, place / f"{node}.csv")
        cap = f"--node {node} --epsilon 3 --delta 1e-5"
        assert dynadp(f"ledger cap {place}/{node}.sqlite {cap}").exit_code == 0
        text += f'[[nodes]]\nname = "{node}"\nfile = "{place}/{node}.csv"\n'
        text += f'ledger = "{place}/{node}.sqlite"\n'
    write(data.test, place / "public.csv")
    text += "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n"
    text += f'[evaluation]\nfile = "{place}/public.csv"\npublic = true\n'
    (place / "run.toml").write_text(text)
    (place / "check.txt").write_text(dynadp(f"check {place}/run.toml").output)
    done = dynadp(f"train {place}/run.toml --out {place}/run --json")
    assert done.exit_code == 0, done.output
    (place / "train.json").write_text(done.stdout)
    return place


@pytest.fixture(scope="module")
def epsilon(home):
    """What the run's events cost, from the record alone: as all others have to write it."""
    record = load_run(home / "run")
    found = worst_node(record.events, 1e-5).epsilon
    assert record.plan["total"]["epsilon"] == pytest.approx(found, rel=1e-9)
    return upper_bound(found)


def words(text):
    """A page's text in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def opened(path):
    """The text of the page that `dynadp explore` serves."""
    shown = explorer(str(path))
    shown.watch.look()
    return words(Client(shown).get(f"/{TOKEN}/").text)


def epsilons(text):
    return set(re.findall(r"epsilon = ([\d.]+\d)", text))


def test_the_total_is_one_number_everywhere(home, epsilon):
    """0.9994 here is not 0.9995 there: rounding is upwards, in one place."""
    trained = json.loads((home / "train.json").read_text())
    assert dynadp(f"certify {home}/run --out {home}/c.json").exit_code == 0
    assert dynadp(f"report {home}/run --out {home}/report.html").exit_code == 0
    shown = {
        "check": (home / "check.txt").read_text(),
        "train": trained["statement"],
        "report": words((home / "report.html").read_text()),
        "certificate": json.loads((home / "c.json").read_text())["guarantee"],
        "ledger": dynadp("ledger", "show", f"{home}/north.sqlite").output,
        "page of the run": opened(home / "run"),
        "page of the run file": opened(home / "run.toml"),
        "replay": words(Client(Replay(home / "run")).get(f"/{TOKEN}/").text),
    }
    for where, text in shown.items():
        asked = {"1", "3"}  # what was asked for, and the cap
        assert epsilons(text) - asked == {epsilon}, where
    drawn = charts_of_run(home / "run")["totals"].to_dict()["datasets"].values()
    points = [p for rows in drawn for p in rows if p["accounting"].startswith("in use")]
    assert upper_bound(max(points, key=lambda point: point["round"])["epsilon"]) == epsilon


def test_what_is_lost_and_left_is_one_number_everywhere(home, epsilon):
    summary = answer(f"ledger show {home}/north.sqlite --json")["cap"]
    assert upper_bound(summary["lost"]) == epsilon
    left = f"{summary['room']['left']:.1%}"
    shown = dynadp(f"ledger show {home}/north.sqlite").output
    assert f"{left} of the cap is left" in shown
    assert (
        f"lost at most epsilon = {epsilon} of 3"
        in dynadp(f"ledger show {home}/north.sqlite {home}/south.sqlite").output
    )
    with Ledger.open(home / "north.sqlite", read_only=True) as ledger:
        card = words(LedgerSummary.of(ledger)._repr_html_())
    assert left in card
    assert epsilon in card
    report = (home / "report.html").read_text()
    assert f'<td class="number">{left}</td>' in report
    (drawn,) = set(re.findall(r'aria-label="([^"]*) spent, ', report))
    assert float(drawn[:-1]) + float(left[:-1]) == pytest.approx(100, abs=0.01)
    page = opened(home / "run")
    assert f"north {drawn} {left}" in page  # of the run that was
    assert page.count(f"north {drawn} ") == 2  # and before another one like it


def test_a_measure_is_one_number_everywhere(home):
    found = json.loads((home / "train.json").read_text())["evaluation"]
    again = answer(f"evaluate {home}/run/model.json {home}/public.csv --public --json")
    same = ("accuracy", "low", "high", "majority", "rows")
    assert {name: again[name] for name in same} == {name: found[name] for name in same}
    assert again["measures"] == found["measures"]
    line = f"{found['accuracy']:.1%} ({found['low']:.1%} to {found['high']:.1%})"
    evaluated = dynadp(f"evaluate {home}/run/model.json {home}/public.csv --public").output
    assert line in evaluated
    assert dynadp(f"report {home}/run --out {home}/measures.html").exit_code == 0
    page = words((home / "measures.html").read_text())
    for name, one in found["measures"].items():
        if name != "accuracy":  # that one is in percent
            assert " {} {} {} ".format(*(written(one[end]) for end in ENDS)) in page, name
            assert "{} ({} to {})".format(*(written(one[end]) for end in ENDS)) in evaluated, name
    assert f"{100 * found['accuracy']:.1f} of 100 answers are right" in opened(home / "run")
    shutil.copytree(home / "run", home / "again")
    compared = answer(f"compare {home}/run {home}/again --json")
    for run in compared["runs"]:
        assert run["measures"]["accuracy"]["value"] == found["accuracy"]
    recall = "{} ({} to {})".format(*(written(found["measures"]["recall"][e]) for e in ENDS))
    assert recall in dynadp(f"compare {home}/run {home}/again").output


# test_readme_run.py has the run that README shows, in all these places


def test_readme_has_the_numbers_of_the_results():
    """What README says of Adult stands in results.md, to the digit."""
    readme, results = ((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
    prose = re.sub(r"```.*?```", "", readme, flags=re.S)
    numbers = set(PERCENT.findall(prose))
    assert len(numbers) > 10
    assert {one for one in numbers if one[:-1] not in results} == set()
