"""The whole way on the start page with other files, answers, people and trust than the first; to
the report and the replay of the run.
"""

import json

import pytest

from dynadp.report.start.wizard import answered
from support.browser import Opened, chromium, faults, keep, served
from support.hands import Hands
from support.typed import dynadp

pytestmark = pytest.mark.slow
WARDS = ("north", "south", "west")
DEEDS = ("write", "cap", "check", "run", "report")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def lines(count, answer):
    """Rows of a hundred people with three each."""
    return [f"p{i % 100},{17 + i % 70},{i % 90},{'fm'[i % 2]},{answer(i)}" for i in range(count)]


def number(folder):
    """One file with a column of nodes; a number is answered, and people have several rows."""
    rows = [f"{WARDS[i % 3]},{row}" for i, row in enumerate(lines(600, lambda i: i % 97))]
    text = "\n".join(["site,who,age,hours,sex,pay", *rows])
    (folder / "all.csv").write_text(text + "\n")


def several(folder):
    """Three files; one of four values is answered."""
    for name in WARDS:
        text = "\n".join(["who,age,hours,sex,grade", *lines(300, lambda i: "abcd"[i % 4])])
        (folder / f"{name}.csv").write_text(text + "\n")


def alone(folder):
    """One file of one node."""
    rows = lines(400, lambda i: ("low", "high")[i % 5 > 3])
    text = "\n".join(["who,age,hours,sex,income", *rows])
    (folder / "north.csv").write_text(text + "\n")


def of_number(hands):
    hands.press("button:text-is('all.csv')") if not hands.keyboard else hands.write(
        "#q-nodes", "all.csv"
    )
    if not hands.keyboard:
        hands.tick("#for-all")
    hands.opened.until("document.querySelector('#q-node_column')")
    hands.pick("#q-node_column", "site")
    hands.opened.until("document.querySelector('#q-node_names')")
    hands.write("#q-node_names", " ".join(WARDS))
    yield "rows"
    hands.pick("#q-label", "pay")
    hands.opened.until("document.querySelector('#q-kind')")
    hands.pick("#q-kind", "a number")
    hands.opened.until("document.querySelector('#q-answer')")
    hands.write("#q-answer", "0-100")
    hands.press("#next")
    hands.opened.until("document.querySelector('#error-answer').innerText.includes('LOW:HIGH')")
    hands.write("#q-answer", "0:100")
    yield "answer"
    hands.pick("#q-column-age", "age: ")
    hands.pick("#q-column-hours", "a number between")
    hands.write("[aria-label='hours: bounds or values']", "0:99")
    yield "columns"
    hands.pick("#q-person", "who")
    hands.opened.until("document.querySelector('#q-silos_per_person')")
    hands.write("#q-rows_per_person", "3")
    hands.write("#q-silos_per_person", "2")
    yield "people"
    hands.write("#q-graph", "path")
    yield "network"
    yield "trust"
    hands.write("#q-epsilon", "2")
    yield "budget"
    hands.write("#q-cap", "1")
    hands.opened.until("document.querySelector('#error-cap').innerText.includes('below')")
    hands.write("#q-cap", "5")
    hands.opened.until("!document.querySelector('#error-cap').innerText")
    yield "ledgers"


def of_several(hands):
    for name in WARDS:
        hands.press(f"button:text-is('{name}.csv')") if not hands.keyboard else None
    if hands.keyboard:
        hands.write("#q-nodes", " ".join(f"{name}={name}.csv" for name in WARDS))
    yield "rows"
    hands.pick("#q-label", "grade")
    hands.opened.until("document.querySelector('#q-kind')")
    hands.pick("#q-kind", "several")
    hands.opened.until("document.querySelector('#q-answer')")
    hands.write("#q-answer", "a, b, c, d")
    yield "answer"
    hands.pick("#q-column-age", "age: ")
    hands.pick("#q-column-sex", "one of published")
    hands.write("[aria-label='sex: bounds or values']", "f, m")
    yield "columns"
    yield "people"
    hands.write("#q-counts", " ".join(f"{name}=300" for name in WARDS))
    yield "network"
    hands.choose("#q-trust", "sealed")
    hands.opened.until("document.querySelector('#q-honest')")
    yield "trust"
    yield "budget"
    yield "ledgers"


def of_one_node(hands):
    hands.write("#q-nodes", "north=north.csv")
    yield "rows"
    hands.pick("#q-label", "income")
    hands.opened.until("document.querySelector('#q-negative')")
    hands.write("#q-negative", "low")
    hands.opened.until("document.querySelector('#q-positive')")
    hands.write("#q-positive", "high")
    yield "answer"
    hands.pick("#q-column-age", "age: ")
    yield "columns"
    hands.pick("#q-person", "who")
    hands.opened.until("document.querySelector('#q-rows_per_person')")
    hands.write("#q-rows_per_person", "4")
    yield "people"
    yield "network"
    yield "budget"  # nobody else may read anything
    yield "ledgers"


KINDS = {
    "a number, people, one file": (number, of_number, '"person":"who"'),
    "several values, sealed": (several, of_several, '"sealed"'),
    "one node, people": (alone, of_one_node, '"rows_per_person":4'),
}
WAYS = [
    ("a number, people, one file", "wide-dark", False),
    ("a number, people, one file", "narrow", True),
    ("several values, sealed", "narrow-dark", False),
    ("several values, sealed", "wide", True),
    ("one node, people", "narrow", False),
    ("one node, people", "wide-dark", True),
]


def looked_at(opened):
    """Accessible, no wider than the screen, nothing went wrong and nothing left."""
    assert faults(opened.page) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    away = [url for url in opened.asked if not url.startswith(("http://127.0.0.1:", "data:,"))]
    assert (away, opened.errors) == ([], [])


@pytest.mark.parametrize(("kind", "view", "keyboard"), WAYS)
def test_the_whole_way_with_other_answers(browser, tmp_path, kind, view, keyboard):
    make, answers, said = KINDS[kind]
    make(tmp_path)
    with (
        served(command="start", token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser, view, bypass_csp=True) as opened,
    ):
        page, hands = opened.page, Hands(opened, keyboard)
        page.goto(address)
        opened.until("document.body.dataset.ready === 'yes'")
        for step in answers(hands):
            opened.until(
                "name => document.querySelector('[aria-current]').dataset.step === name", step
            )
            looked_at(opened)
            hands.press("#next")
            opened.until(
                "name => document.querySelector('[aria-current]').dataset.step !== name", step
            )
        opened.until("document.querySelector('[aria-current]').dataset.step === 'run'")
        for name in DEEDS:
            hands.press(f"[data-deed={name}]:not(:disabled)")
            opened.until(
                "name => document.querySelector(`[data-deed=${name}]`)?.closest('li')"
                ".querySelector('.state').innerText === 'done'",
                name,
            )
        opened.until("document.querySelector('#to-report')")
        looked_at(opened)
        for link, there in (("#to-report", "body.report"), ("[href='replay/']", "#h-play")):
            hands.press(link)
            page.wait_for_selector(there)
            if there == "#h-play":
                opened.until("document.body.dataset.ready === 'yes'")
            looked_at(opened)
            page.go_back()
            page.wait_for_selector("#to-report")
    record = json.loads((tmp_path / "study/runs/first/run.json").read_text())
    assert said in json.dumps(record, separators=(",", ":"))
    assert not record["simulation"]
    assert sorted(path.name for path in (tmp_path / "study").glob("*.sqlite"))


@pytest.mark.parametrize("view", ["wide", "narrow-dark"])
def test_runs_are_compared_without_a_terminal(browser, tmp_path, monkeypatch, view):
    """Three runs of these files that differ in one setting: by keyboard."""
    monkeypatch.chdir(tmp_path)
    several(tmp_path)
    answers = {
        "nodes": " ".join(f"{name}={name}.csv" for name in WARDS),
        **{"label": "grade", "kind": "several values", "answer": "a,b,c,d", "column age": "age"},
        "seed": "simulation",
    }
    for folder, epsilon in (("one", "1"), ("two", "2"), ("three", "3")):
        answered(folder, {**answers, "epsilon": epsilon}).start.write(folder)
        made = dynadp("train", f"{folder}/run.toml", "--out", f"{folder}/runs/first")
        assert made.exit_code == 0, made.output
    kept = {"answers": {**answers, "epsilon": "3"}, "forms": {}, "folder": "three", "step": "run"}
    kept |= {"seen": ["rows"]}
    with (
        served(command="start", token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser, view, bypass_csp=True) as opened,
    ):
        opened.page.add_init_script(
            f"sessionStorage.setItem('dynadp-start', {json.dumps(json.dumps(kept))})"
        )
        hands = Hands(opened, keyboard=True)
        opened.page.goto(address)
        hands.press("[data-deed=write]:not(:disabled)")  # they are there already
        opened.until("!document.querySelector('#beside').hidden")
        hands.tick("#beside input[value='one/runs/first']")
        hands.tick("#beside input[value='two/runs/first']")
        assert opened.text("#compare-command") == (
            "dynadp compare three/runs/first one/runs/first two/runs/first"
        )
        looked_at(opened)
        if view == "narrow-dark":
            keep(opened.page, f"start-beside-{view}")
        hands.press("#to-compare")
        opened.page.wait_for_selector("#h-settings")
        assert "They differ in one setting: privacy.epsilon." in opened.text("header")
        assert opened.page.locator("tr.differs").count() == 1
        looked_at(opened)
        assert opened.page.request.get(f"{address}compare?run=/etc").status == 404
