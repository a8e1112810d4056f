"""The picture to decide by, what would change, the caps and the run file: drawn and computed by the
server, so that they are there without JavaScript.
"""

import html
import re
import tomllib
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

from dynadp.consensus.topology import Topology
from dynadp.errors import DeclarationError
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.strength import strength_of
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.ledger.summary import LedgerSummary
from dynadp.privacy.statements import guesses_in_100, upper_bound
from dynadp.privacy.units import Unit
from dynadp.report.budgets import ledger_files, planned_cost, read_budgets
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.app import Explorer
from dynadp.report.explore.caps import read_caps
from dynadp.report.explore.changes import changes, variants
from dynadp.report.explore.decision import LEFT, NARROW, RIGHT, WIDE, Decision
from dynadp.report.explore.run_text import privacy_section, with_total
from dynadp.report.explore.serve import explorer
from dynadp.report.explore.setting import PublicSetting, digits
from dynadp.report.explore.watch import Watch
from dynadp.report.page import report
from dynadp.report.record_view import RunView
from dynadp.research.zones import Zones
from dynadp.runs.headroom import NextRun, find_headroom
from dynadp.runs.run_file import load_run_file
from support.page_client import TOKEN, Client
from support.run_folders import NODES, make_job

TOTALS = (0.05, 0.2, 1.0, 3.0, 10.0)
MEDIANS = (70.0, 76.5, 82.0, 83.8, 84.0)
CURVE = [
    {"epsilon": e, "alpha": e / 2.5, "median": m, "low": m - 1, "high": m + 1, "error": 0.0}
    for e, m in zip(TOTALS, MEDIANS, strict=True)
]
LINES = {"without privacy": 84.5, "always the most common answer": 76.0}


def made(**given):
    ring = Topology.family("ring", 3).named(NODES)
    return PublicSetting("small", ring, (200, 300, 700), 8, 7, **given)


@pytest.fixture
def advice():
    found = Advisor(made())
    found.points, found.baselines, found.done = CURVE, LINES, True
    found.source, found.rows = "census rows made here (synthetic)", 250
    return found


def decision(**given):
    known = {
        "measured": CURVE,
        "curve": CURVE,
        "baselines": LINES,
        "zones": Zones(1.0, 3.0),
        "delta": 1e-5,
        "better": "right answers in 100",
        "planned": 2.0,
        "recommended": 1.0,
        "asked_by": "run file",
    }
    return Decision(**{**known, **given})


# ---- the picture


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_epsilon_is_on_one_logarithmic_axis_for_both_panels(width):
    root = ElementTree.fromstring(decision().drawn(width, 1.0))
    assert root.get("viewBox").split()[2] == str(width)
    dots = [
        float(one.get("cx")) for one in root.iter("circle") if one.get("cx") and one.get("r") == "4"
    ]
    wanted = LEFT + (width - RIGHT - LEFT) * np.log(np.array(TOTALS) / 0.05) / np.log(200)
    assert dots == pytest.approx(wanted, abs=0.06)
    guesses = list(root.iter("polyline"))[1].get("points").split()
    assert len(guesses) == 49
    assert float(guesses[0].split(",")[0]) == pytest.approx(dots[0], abs=0.1)
    assert float(guesses[-1].split(",")[0]) == pytest.approx(dots[-1], abs=0.1)
    words = "".join(root.itertext())
    for part in ("total epsilon", "right answers in 100", "guesses right, in 100", *LINES):
        assert part in words
    assert "run file: 2" in words
    assert "recommended: 1" in words


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("recommended", TOTALS)
@pytest.mark.parametrize("planned", TOTALS)
def test_no_two_words_lie_on_each_other(width, planned, recommended):
    lines = {"without privacy": 84.5, "always the most common answer": 68.0}  # at the very foot
    shown = decision(planned=planned, recommended=recommended, baselines=lines)
    drawn = shown.drawn(width, 1.0)
    boxes = {}
    for one in ElementTree.fromstring(drawn).iter("text"):
        look = one.get("class").split()
        if look[0] in ("mark", "name", "panel"):
            wide, x = 6.4 * len(one.text), float(one.get("x"))
            first = x - wide if "right" in look else x
            boxes[one.text] = first, first + wide, float(one.get("y"))
    assert len(boxes) == 6
    assert all(first >= 0 and last <= width for first, last, _ in boxes.values())
    for a, b in combinations(boxes.values(), 2):
        assert a[1] < b[0] or b[1] < a[0] or abs(a[2] - b[2]) >= 12, boxes


def test_zones_differ_in_pattern_and_in_words():
    drawn = decision().drawn(WIDE, 1.0)
    root = ElementTree.fromstring(drawn)
    zones = {one.get("class"): one for one in root.iter("rect")}
    assert set(zones) == {"zone useless", "zone value", "zone enough"}
    assert len({one.get("fill") for one in zones.values()}) == 3
    for name in ("useless", "enough"):
        assert zones[f"zone {name}"].get("fill") == f"url(#{name}-{WIDE})"
        assert f'id="{name}-{WIDE}"' in drawn
    names = decision().zone_list()
    assert [one[1:] for one in names] == [
        ("no better than the most common answer", 0.05, 1.0),
        ("good value", 1.0, 3.0),
        ("no further gain", 3.0, 10.0),
    ]
    assert "style=" not in drawn  # the page's policy forbids it
    assert decision(zones=Zones(None, 10.0)).zone_list() == [
        ("useless", "no better than the most common answer", 0.05, 10.0)
    ]
    numbers = decision(baselines={"always the same number": 20.0}).zone_list()
    assert numbers[0][1] == "no better than always the same number"
    assert decision(zones=None).zone_list() == []
    assert decision(zones=Zones(0.05, 0.05)).zone_list() == [
        ("enough", "no further gain", 0.05, 10.0)
    ]


def test_names_cannot_break_the_picture():
    drawn = decision(asked_by="<b>&", baselines={"<i>": 80.0}).drawn(WIDE, 1.0)
    assert "&lt;b&gt;&amp;" in "".join(drawn)
    ElementTree.fromstring(drawn)


def test_the_choice_is_marked_where_the_answer_says():
    root = ElementTree.fromstring(decision().drawn(WIDE, 3.0))
    (choice,) = [one for one in root.iter("g") if one.get("class") == "choice"]
    x = float(re.match(r"translate\(([\d.]+) 0\)", choice.get("transform"))[1])
    assert x == pytest.approx(LEFT + (WIDE - RIGHT - LEFT) * np.log(60) / np.log(200), abs=0.06)
    accuracy, guess = (float(one.get("transform").split()[1][:-1]) for one in choice.iter("path"))
    top, bottom, least, most = (
        float(root.get(f"data-{n}")) for n in ("top", "bottom", "least", "most")
    )
    assert accuracy == pytest.approx(
        bottom + (83.8 - least) / (most - least) * (top - bottom), abs=0.2
    )
    even, sure = float(root.get("data-even")), float(root.get("data-sure"))
    right = guesses_in_100(3.0, 1e-5)
    assert guess == pytest.approx(even + (right - 50) / 50 * (sure - even), abs=0.2)


# ---- what would change


def test_a_change_is_worth_the_epsilon_with_the_same_strength(advice):
    planned, others = variants(advice.setting)
    found = changes(advice.setting, 1.0, advice.expected)
    assert [one.name for one in found] == [one.name for one in others]
    base = planned.strength(1.0, advice.setting)
    assert base == strength_of((200, 300, 700), epsilon=1.0, delta=1e-5)
    for one, variant in zip(found, others, strict=True):
        assert variant.strength(one.same_accuracy, advice.setting) == pytest.approx(base, rel=1e-4)
    by_name = {one.name: one for one in found}
    twice, people = (
        by_name["twice the rows at every node"],
        by_name["up to 2 rows a person at a node, instead of 1"],
    )
    assert twice.gain > 0 > people.gain
    assert twice.same_accuracy < 1 < people.same_accuracy
    assert by_name["without west and its 700 rows"].gain < 0
    assert by_name["another silo with 400 rows"].gain > 0
    assert by_name["delta = 1e-06"].same_accuracy > 1
    assert twice.same_total["median"] - 82.0 == pytest.approx(twice.gain)
    assert twice.same_total["between"]  # it is interpolated
    before = changes(advice.setting, 1.0, lambda epsilon: None)
    assert all(one.gain is None and one.same_accuracy for one in before)


def test_more_colluders_are_dearer_in_sealed_sums():
    ring = Topology.family("ring", 5)
    setting = PublicSetting("s", ring, (400,) * 5, 8, 7, mechanism=Sealed(honest=3))
    planned, others = variants(setting)
    names = [one.name for one in others]
    assert names[-1] == "3 of the 5 nodes may collude, instead of 2"
    assert others[-1].mechanism.among(5).honest == 2
    ratio = others[-1].strength(1.0, setting) / planned.strength(1.0, setting)
    assert ratio == pytest.approx((2 / 3) ** 0.5)
    away = next(one for one in others if one.name.startswith("without"))
    assert away.mechanism.among(4).colluding == 2  # as many may collude, so fewer are honest
    last = replace(setting, mechanism=Sealed(honest=1))
    assert not any("may collude" in one.name for one in variants(last)[1])
    for one in others:
        assert one.strength(1.0, setting) > 0


def test_one_node_has_nobody_to_leave():
    alone = PublicSetting("one", Topology.family("ring", 1), (400,), 8, 7)
    assert not any(one.name.startswith("without") for one in variants(alone)[1])


@pytest.mark.parametrize("mechanism", ["primal", "dual", "sum", None])
def test_every_mechanism_has_its_changes(mechanism):
    found = changes(made(mechanism=mechanism), 0.5, lambda epsilon: None)
    assert len(found) == 5
    assert all(one.same_accuracy > 0 for one in found)


# ---- caps


def test_caps_before_and_after_a_run_as_the_ledgers_own_rule_says(tmp_path):
    job = make_job(tmp_path, cap=3.0)
    shown = explorer(str(job))
    events = shown.advice.planned(2.0).events
    files = {node: tmp_path / f"{node}.sqlite" for node in NODES}
    found = read_caps(files, events, Unit(), 2)
    with Ledger.open(files["north"], read_only=True) as ledger:
        summary = LedgerSummary.of(ledger)
    after = summary.with_plan("r", [event for event in events if event.node == "north"])
    north = found[0]
    assert north.admitted
    assert not north.last
    assert (north.used, north.epsilon, north.delta) == (0.0, 3.0, 1e-5)
    room = after.room
    assert north.takes == pytest.approx(room.counted / room.limit, abs=1e-3)
    assert north.left == room.left  # rounded down, as everywhere
    assert north.used + north.takes + north.left == pytest.approx(1)
    assert north.now == find_headroom(summary, NextRun(unit=Unit())).epsilon
    assert north.then == find_headroom(after, NextRun(unit=Unit())).epsilon
    assert 0 < north.then < north.now
    assert [one.asked for one in found] == [True, True, False]
    text = html.unescape(Client(shown).get(f"/{TOKEN}/").text)
    for number in (
        f"{100 * north.takes:.1f}%",
        f"{100 * north.left:.1f}%",
        upper_bound(north.then),
    ):
        assert f'<td class="number">{number}</td>' in text
    # a run that takes all, and one that does not fit
    whole = read_caps(files, shown.advice.planned(3.0).events, Unit(), 3)[0]
    assert (whole.admitted, whole.last, whole.takes, whole.left) == (True, True, 1.0, 0.0)
    refused = read_caps(files, shown.advice.planned(4.0).events, Unit(), 3)[0]
    assert (refused.admitted, refused.then, refused.left) == (False, None, 1.0)
    assert ">refused<" in Client(shown).get(f"/{TOKEN}/?epsilon=4").text


def test_ledgers_that_cannot_be_read_say_why(tmp_path):
    events = Advisor(made()).planned(1.0).events
    (tmp_path / "south.sqlite").write_text("nonsense")
    Ledger.create(
        tmp_path / "west.sqlite", "west", who="me", at="2026-01-01T00:00:00+00:00"
    ).close()
    files = {node: tmp_path / f"{node}.sqlite" for node in NODES}
    north, south, west = read_caps(files, events, Unit(), 3)
    assert "there is no ledger yet" in north.problem
    assert south.problem
    assert "no cap is set" in west.problem


# ---- the run file


def test_the_run_file_is_as_written_but_for_the_total(tmp_path):
    job = make_job(tmp_path)
    text = job.read_text()
    shown = Client(explorer(str(job)))
    reply = shown.get(f"/{TOKEN}/run.toml", params={"epsilon": 0.725})
    assert reply.headers["content-disposition"] == 'attachment; filename="run.toml"'
    assert tomllib.loads(reply.text)["privacy"]["epsilon"] == 0.725
    before, after = text.splitlines(), reply.text.splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][0].startswith("epsilon = 2.0")
    assert changed[0][1].startswith("epsilon = 0.725   #")  # what people noted stays
    job.write_text(reply.text)
    assert load_run_file(job).privacy.epsilon == 0.725
    assert html.escape(text.splitlines()[0]) in shown.get(f"/{TOKEN}/").text


def test_text_that_cannot_be_changed_is_refused():
    assert with_total("[privacy]\n  alpha=1 # why\n", "alpha", 0.5) == (
        "[privacy]\n  alpha=0.5 # why\n"
    )
    assert "epsilon = 9" in with_total(
        "[[nodes]]\nepsilon = 9\n[privacy]\nepsilon = 1\n", "epsilon", 0.5
    )
    for text in (
        "privacy = { epsilon = 1.0 }\n",
        "[privacy]\ndelta = 1e-5\n",
        "[run]\nepsilon = 1\n",
    ):
        with pytest.raises(DeclarationError, match="change it by hand"):
            with_total(text, "epsilon", 0.5)
    for mechanism in (Sum(), Sealed(honest=2).among(3)):
        section = tomllib.loads(privacy_section("epsilon", 0.5, 1e-5, mechanism))["privacy"]
        honest = {"honest": 2} if mechanism.sealing else {}
        known = {"mechanism": mechanism.name, "epsilon": 0.5, "delta": 1e-5}
        assert section == {**known, **honest}


# ---- the page without JavaScript


def test_the_page_has_everything_before_any_script_runs(advice):
    page = Client(Explorer(advice, Watch(None)))
    text = html.unescape(page.get(f"/{TOKEN}/?epsilon=0.447").text)
    answer = advice.for_total(0.447)
    assert answer["words"] in text
    assert answer["accuracy"]["between"] == [0.2, 1.0]
    assert f"at most {answer['right']} in 100" in text.lower()
    assert text.count('class="gain"') == answer["right"] - 50
    assert text.count('<svg class="decision"') == 2
    for point in CURVE:
        assert f'<th scope="row" class="number">{point["epsilon"]:g}</th>' in text
    for one in changes(advice.setting, 0.447, advice.expected):
        assert one.name in text
    rows = re.findall(r"<tr.*?</tr>", text[text.index('id="changes"') : text.index('id="caps"')])
    shown = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[:2] for row in rows[2:]]
    planned = round(answer["accuracy"]["median"], 1)
    for accuracy, gain in shown:  # numbers that people subtract
        less = 0.0 if gain == "about 0" else float(gain)
        assert float(accuracy) - planned == pytest.approx(less, abs=1e-6)
    assert len(shown) == 5
    assert "good value: epsilon 1 to 3" in text
    assert '<form method="get">' in text
    assert 'value="0.447"' in text
    assert "run.toml?epsilon=0.447" in text
    assert "privacy.epsilon = 0.447" in text
    assert f"The plan costs epsilon = {upper_bound(answer['total'])}: mu = " in text
    assert "More colluders would change nothing: in the open" in text
    assert text.count('class="chance"') == 50  # circles; what is added has another shape
    assert len(re.findall('<rect class="gain"', text)) == answer["right"] - 50


@pytest.mark.parametrize("odd", ["", "nan", "-1", "1e9", "much", "0", "<script>"])
def test_an_address_that_asks_for_no_total_shows_the_plan(advice, odd):
    page = Client(Explorer(advice, Watch(None)))
    reply = page.get(f"/{TOKEN}/", params={"epsilon": odd})
    assert reply.status_code == 200
    assert 'data-choice="1.0"' in reply.text
    assert "<script>" not in reply.text


def test_pictures_for_readers_without_scripts(advice):
    sealed = Advisor(made(mechanism=Sealed(honest=2)))
    page = Client(Explorer(sealed, Watch(None)))
    for name in ("totals", "collusion"):
        reply = page.get(f"/{TOKEN}/pictures/{name}.svg", params={"epsilon": 0.5})
        assert reply.headers["content-type"] == "image/svg+xml"
        assert "var(--" not in reply.text
        ElementTree.fromstring(reply.text)
    for name in ("change", "disagreement", "nothing"):
        assert page.get(f"/{TOKEN}/pictures/{name}.svg").status_code == 404
    assert page.get("/wrong/pictures/totals.svg").status_code == 403


@pytest.mark.parametrize(
    ("name", "caption"),
    [("private", "All nodes stand at one point."), ("simulated", "Line: median over nodes")],
)
def test_what_lines_mean_is_said_of_the_runs_own_algorithm(advice, request, name, caption):
    watch = Watch(request.getfixturevalue(name))
    watch.look()
    page = Client(Explorer(advice, watch)).get(f"/{TOKEN}/").text
    assert re.search(r'<span id="band"[^>]*>([^<]*)', page)[1].startswith(caption)


def test_the_key_of_zones_is_drawn_and_prints(advice):
    """Browsers print no backgrounds that they can leave out."""
    text = Client(Explorer(advice, Watch(None))).get(f"/{TOKEN}/").text
    keys = re.findall(r'<svg class="key swatch".*?</svg>', text)
    assert len(keys) == len(set(keys)) == 3


def test_pieces_around_a_choice(advice):
    page = Client(Explorer(advice, Watch(None)))
    reply = page.get(f"/{TOKEN}/api/around", params={"epsilon": 0.5}).json()
    assert set(reply) == {"changes", "caps", "text"}
    assert "with epsilon = 0.5" in reply["changes"]
    assert "epsilon = 0.5" in reply["text"]
    for odd in ("0", "nan", "101", "x"):
        assert page.get(f"/{TOKEN}/api/around", params={"epsilon": odd}).status_code == 400


def test_totals_have_four_digits_everywhere():
    assert (digits(0.70713), digits(0.70713, up=True), digits(2.0, up=True)) == (
        0.7071,
        0.7072,
        2.0,
    )
    assert all(digits(t, up=True) >= t for t in np.geomspace(0.05, 10, 97))


def test_one_run_has_one_number_everywhere(private):
    """Record, ledgers, report, live page, pictures and plan of the same run."""
    view = RunView.read(private)
    _, total = planned_cost(view)
    cost, written = upper_bound(total.epsilon), html.unescape(report(private))
    shown = explorer(str(private))
    shown.watch.look()
    state, answer = shown.watch.latest.state, shown.advice.for_total(2.0)
    assert upper_bound(view.plan.total["epsilon"]) == cost == answer["cost"]
    for words in (written, state["guarantee"], html.unescape(Client(shown).get(f"/{TOKEN}/").text)):
        assert f"at most epsilon = {cost} at delta = 1e-05" in words
        assert f"at most {answer['right']} in 100" in words.lower()
    assert upper_bound(shown.advice.totals(2.0)[-1]["epsilon"]) == cost
    caps = {cap.node: cap for cap in shown._caps(2.0)}
    for node, budget in read_budgets(view, ledger_files(view)).items():
        left = f"{budget.room.left:.1%}"
        assert written.count(f'<td class="number">{left}</td>') == len(NODES)
        assert state["budgets"].count(f'<td class="number">{left}</td>') == len(NODES)
        assert caps[node].used == 1 - budget.room.left
        assert upper_bound(budget.lost) in written
        assert f'<td class="number">{upper_bound(budget.lost)}</td>' in state["budgets"]
