"""The report: one file that needs nothing else and says what holds, and no private thing."""

import functools
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from math import isfinite
from pathlib import Path

import altair
import pytest

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.journal import now
from dynadp.errors import RecordError
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import by_node, group_by_node, worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.events import L2Laplace
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.statements import guesses_in_100, upper_bound
from dynadp.report import figures
from dynadp.report.accuracy import Accuracy
from dynadp.report.budgets import (
    BudgetView,
    accountings,
    ledger_files,
    over_rounds,
    planned_cost,
    read_budgets,
)
from dynadp.report.drawing import drawing, places
from dynadp.report.explore.setting import PublicSetting
from dynadp.report.honesty import Honesty
from dynadp.report.page import folded, guarantee, report
from dynadp.report.progress import Rounds, thinned
from dynadp.report.record_view import RunView
from dynadp.report.run_figures import charts_of_run
from dynadp.report.states import LOOKS, State, states
from dynadp.runs.folder import load_run
from dynadp.runs.model import load_model
from support.run_files import write_plain
from support.run_folders import (
    COLUMNS,
    NODES,
    SEALED,
    make_job,
    make_network,
    make_run,
    write_rows,
)
from support.typed import dynadp

VOID = {
    "area",
    "base",
    "br",
    "col",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "wbr",
    "path",
    "rect",
    "line",
    "circle",
}


class Parsed(HTMLParser):
    """Text, addresses that would be loaded, scripts, ids, and tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.text, self.loads, self.ids, self.tags, self.open, self.wrong = [], [], [], [], [], []
        self.feed(page)
        self.close()
        self.words = re.sub(r"\s+", " ", " ".join(self.text))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.loads += [
            found[name]
            for name in ("src", "href", "srcset", "data", "action", "xlink:href")
            if name in found
        ]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


@functools.cache
def page_of(run):
    """The report of a run that no test changes."""
    return report(run)


@pytest.mark.parametrize("which", ["private", "seeded", "sealed"])
def test_one_file_that_needs_nothing_else(which, request, tmp_path):
    folder = request.getfixturevalue(which)
    result = dynadp("report", folder, "-o", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    parsed = Parsed(page)
    assert parsed.wrong == []
    assert parsed.open == []
    assert parsed.loads == []
    assert "script" not in parsed.tags
    assert len(parsed.ids) == len(set(parsed.ids))
    assert set(re.findall(r"https?://[^\"' <]*", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page.replace("url(#", "")


def test_the_sentence_is_the_accountants(private):
    words = Parsed(page_of(private)).words
    story = RunView.read(private)
    events, total = planned_cost(story)
    assert total == worst_node(events, 1e-5)
    assert total.guarantee in words
    assert (
        f"({upper_bound(total.epsilon)}, 1e-05)-differential privacy over all {total.releases} "
        f"releases of a node" in words
    )
    assert "Date and signature" in words
    assert "SIMULATION" not in words
    assert story.record.config_hash in words
    assert load_run(private).schema_hash in words
    for library, number in story.record.libraries.items():
        assert f"{library} {number}" in words


def test_a_model_without_everybody_says_over_whom_it_is_the_mean(private, tmp_path):
    assert "other models" not in report(private)
    folder = tmp_path / "copy"
    shutil.copytree(private, folder)
    content = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**content, "members": ["north", "east"]}))
    assert "The model is of north, east, who were there in the end; nodes" in report(folder)


def test_every_accounting_is_there_and_one_is_in_use(private):
    words = Parsed(page_of(private)).words
    story = RunView.read(private)
    events, _ = planned_cost(story)
    for node, total in by_node(events, 1e-5).items():
        found = accountings([event for event in events if event.node == node], 1e-5)
        assert [figure.used for figure in found].count(True) == 1
        used = next(figure for figure in found if figure.used)
        assert used.epsilon == total.epsilon == min(figure.epsilon for figure in found)
        finite = {one for one in (total.epsilon_sum, total.epsilon_pure) if isfinite(one)}
        assert finite <= {figure.epsilon for figure in found}
        for figure in found:
            assert upper_bound(figure.epsilon) in words
    assert words.count("✓ in use") == 1  # the three nodes lose the same
    rows = over_rounds([event for event in events if event.node == "north"], 1e-5)
    assert (
        max(row["epsilon"] for row in rows if row["accounting"].startswith("in use"))
        == total.epsilon
    )


def test_caps_and_what_is_left_come_from_the_ledgers(private):
    story = RunView.read(private)
    files = ledger_files(story)
    assert set(files) == set(NODES)
    found = read_budgets(story, files)
    words = Parsed(page_of(private)).words
    for node in NODES:
        with Ledger.open(files[node], read_only=True) as ledger:
            cap, head, spent = ledger.cap, ledger.head, ledger.spent()
        assert (found[node].cap.epsilon, found[node].cap.delta) == (3.0, 1e-5)
        assert found[node].releases == found[node].planned == 21
        assert found[node].lost == worst_node(spent, cap.delta).epsilon  # of the first run
        room = found[node].room
        assert (room.measure, room.counted, room.limit) == (
            "renyi",
            cap.spent(spent)[1],
            cap.budget,
        )
        assert head in words
        # one unit: of the cap, in the bar and beside it
        assert f"{node} {1 - room.left:.1%} {room.left:.1%}" in words
        assert f"{1 - room.left:.1%} spent or reserved" in page_of(private)
        assert "Rényi loss of order" not in words


def test_a_plan_that_took_the_whole_cap_leaves_nothing(tmp_path):
    run = make_run(tmp_path, cap=2.0)
    story = RunView.read(run)
    found = read_budgets(story, ledger_files(story))
    assert all(purse.room.measure == "plan" and purse.room.left == 0 for purse in found.values())
    assert "one plan took the whole cap" in report(run)


def test_a_ledger_that_cannot_be_read_is_said_so(private, tmp_path):
    story = RunView.read(private)
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"not a ledger at all" * 100)
    found = read_budgets(story, {"north": broken})
    assert isinstance(found["north"], str)
    assert "broken.sqlite" in found["north"]


def test_accuracy_only_where_it_is_public(private, seeded):
    assert (
        "No accuracy is shown: on private rows it would itself be a release"
        in Parsed(page_of(private)).words
    )
    assert "answers are right" not in page_of(private)
    words = Parsed(page_of(seeded)).words
    found = re.search(
        r"(\d\d\.\d) of 100 answers are right \((\d\d\.\d) to (\d\d\.\d): a 95% interval", words
    )
    right, low, high = map(float, found.groups())
    assert low < right < high
    assert re.search(
        r"rows\), on [\d,]+ rows: public.csv, which the run file declares public\. Always", words
    )
    assert "public.csv, which the run file declares public" in words


def test_a_charged_evaluation_is_told_as_released(tmp_path):
    run = make_run(tmp_path, cap=4.0)
    result = dynadp(
        "evaluate",
        run,
        tmp_path / "north.csv",
        "--ledger",
        tmp_path / "north.sqlite",
        "--alpha",
        0.5,
        "--json",
    )
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)["accuracy"]
    words = Parsed(report(run)).words
    assert f"Charged evaluation at north: about {shown:.1%}" in words
    assert "answers are right" not in words


# ---- sealed sums
# --------------------------------------------------------------------------------------------------


def test_a_sealed_run_says_who_must_be_honest(sealed):
    words = Parsed(page_of(sealed)).words
    recorded = json.loads((sealed / "run.json").read_text())["plan"]
    _, total = planned_cost(RunView.read(sealed))
    assert total.guarantee in words
    assert "as long as 2 of the 3 nodes are honest and nobody breaks the masks" in total.guarantee
    assert "2 of the 3 nodes must be honest." in words
    assert "It holds against eavesdroppers and any 1 node" in words
    assert "all of them together" not in words  # that is true in the open alone
    assert "ChaCha20" in words
    assert "declared by people" in words
    assert "Nobody sees one node's sum" in words
    assert "of which nobody sees one node's part" in words
    assert len(recorded["collusion"]) == 2
    for point in recorded["collusion"]:
        mark = " ✓ planned" if point["planned"] else ""
        mu, epsilon = upper_bound(point["mu"]), upper_bound(point["epsilon"])
        right = guesses_in_100(point["epsilon"], 1e-5)
        line = f"{point['colluding']}{mark} {point['honest']} {mu} {epsilon} {right}"
        assert line in words
    assert recorded["collusion"][1]["epsilon"] > 1.3 * recorded["collusion"][0]["epsilon"]


def test_the_picture_has_every_number_that_may_collude(sealed):
    page = page_of(sealed)
    assert 'aria-label="Loss if so many collude' in page
    assert 'aria-label="Right guesses if so many collude' in page
    events, total = planned_cost(RunView.read(sealed))
    found = Honesty.of(group_by_node(events)["north"], 1e-5)
    assert [point["colluding"] for point in found.points] == [1, 2]
    assert [point["planned"] for point in found.points] == [True, False]
    assert found.points[0]["epsilon"] == total.epsilon < found.points[1]["epsilon"]
    for quantity in figures.COLLUSION:
        drawn = figures.svg(figures.collusion(found.points, quantity, 3))
        assert "planned" in drawn
        assert "nodes that collude" in drawn
        assert drawn in page


def test_a_spare_attempt_that_was_not_used_is_not_spent(sealed):
    story, words = RunView.read(sealed), Parsed(page_of(sealed)).words
    found = read_budgets(story, ledger_files(story))
    rounds = story.plan.rounds + 1  # and the centring round
    for budget in found.values():
        assert (budget.releases, budget.planned, budget.used, budget.spares) == (
            rounds,
            rounds,
            0,
            1,
        )
        assert budget.honest == ((2, 3),)
        assert budget.worst > budget.lost
        assert f"at most {upper_bound(budget.lost)} at most {upper_bound(budget.worst)}" in words
    assert f"over all {rounds} releases of a node, and 1 spare attempt." in words
    assert f"{rounds} releases, and 1 spare attempt" in words
    assert f"{rounds} of {rounds} 0 of 1" in words
    assert "1 spare attempt is reserved" in words
    assert "Used so far: 0 of 1." in words
    assert f"of {rounds + 1}" not in words


def test_spare_attempts_that_were_used_are_counted_by_node(tmp_path):
    folder, chosen = make_network(tmp_path, mechanism=Sealed(honest=2, spares=2))
    assert "How many were used is in the nodes' ledgers." in Parsed(report(folder)).words
    run = load_run(folder / "north").run_id
    for node in ("north", "south"):
        own = group_by_node(chosen.events)[node]
        with Ledger.create(tmp_path / f"{node}.sqlite", node, who="me", at=now()) as ledger:
            ledger.set_cap(Cap.of(3.0, 1e-5), who="me", at=now())
            ledger.reserve(run, own, dataset="rows", who="me", at=now())
            used = [1, 2, chosen.rounds + 1] if node == "north" else [1, 2]
            for n in used:
                those = [event for event in own if event.round == n]
                ledger.spend(run, n, those, b"-", who="me", at=now())
        status = folder / node / "status.json"
        told = json.loads(status.read_text()) | {"ledger": str(tmp_path / f"{node}.sqlite")}
        status.write_text(json.dumps(told))
    found = read_budgets(RunView.read(folder), ledger_files(RunView.read(folder)))
    assert [(b.releases, b.used, b.spares) for b in found.values()] == [(2, 1, 2), (2, 0, 2)]
    words = Parsed(report(folder)).words
    assert "2 spare attempts are reserved" in words
    assert "Used so far: 1 at north, 0 at south of 2." in words


def test_a_number_in_the_table_of_settings_is_that_of_the_reasons(private):
    view, page = RunView.read(private), report(private)
    (pull,) = re.findall(r"pull q = ([\d.]+)", " ".join(view.plan.reasons))
    assert f"pull {pull}, momentum" in page
    assert f"pull {view.plan.settings['steps']['pull']}" not in page


def test_lists_of_numbers_take_a_line_in_the_configuration(private):
    config = RunView.read(private).record.config
    text = folded(config)
    assert json.loads(text) == config
    assert len(text.splitlines()) < len(json.dumps(config, indent=1).splitlines())
    odd = {"mu": [0.1] * 20, "words": ["a [ b ]", "c,   d"], "edges": [[0, 1], []], "none": [None]}
    assert json.loads(folded(odd)) == odd
    assert len(folded(odd).splitlines()) == 12


def test_how_near_numbers_are_is_said_in_words():
    found = Accuracy(
        note="public.csv, which the run file declares public",
        rows=1500,
        others=(("R2", 0.61, 0.58, 0.64),),
        mean_error=0.25,
    )
    assert found.words == (
        "R2 0.6100 (0.5800 to 0.6400), on 1,500 rows: public.csv, which the run file declares "
        "public. In brackets: 95% interval for the sampling error of the rows. Always answering "
        "their mean would have an error of 0.2500 there."
    )


@pytest.mark.parametrize("name", ["private", "sealed", "simulated"])
def test_the_charts_of_a_report_are_objects_too(request, name):
    run = request.getfixturevalue(name)
    charts, page = charts_of_run(run), report(run)
    names = {"change", "totals", "coefficients"}
    assert names | ({"disagreement"} if name == "simulated" else {"apart"}) <= set(charts)
    assert ("collusion right" in charts) == (name == "sealed")
    for chart in charts.values():
        assert isinstance(chart, altair.TopLevelMixin)
        assert figures.svg(chart) in page
    mine = charts["totals"].properties(title="mine").to_dict()
    assert mine["title"] == "mine"
    assert mine["datasets"]["totals"][-1]["epsilon"] > 0


def test_the_curve_over_rounds_ends_with_the_rounds(sealed):
    events, total = planned_cost(RunView.read(sealed))
    rows = over_rounds(group_by_node(events)["north"], 1e-5)
    assert max(row["round"] for row in rows) == RunView.read(sealed).plan.rounds
    last = {row["accounting"]: row["epsilon"] for row in rows[-2:]}
    assert last["in use: with all spare attempts"] == total.epsilon
    assert last["rounds without spare attempts"] < total.epsilon


def test_a_legend_has_the_accountings_that_there_are(private, sealed):
    names = ("plain sum", "best from alpha alone", "in use: the smallest")
    laplace = [L2Laplace("north", n, "primal", 0.1, 6) for n in range(1, 6)]
    drawn = figures.svg(figures.totals(over_rounds(laplace, 1e-5)))
    assert all(f">{name}</text>" in drawn for name in names)
    assert not any(name in page_of(private) for name in names)  # there is one: no legend
    page = page_of(sealed)
    assert not any(name in page for name in names)
    assert ">rounds without spare attempts</text>" in page
    assert ">in use: with all spare attempts</text>" in page


def test_a_seeded_run_of_sealed_sums_spends_nothing(tmp_path):
    words = Parsed(report(make_run(tmp_path, seed=3, mechanism=SEALED))).words
    assert "SIMULATION: seeded noise protects nobody." in words
    assert "2 of the 3 nodes must be honest" in words
    assert "A simulation enters no ledger: none is spent." in words


def test_records_without_the_keys_of_sealed_sums_are_read(private, sealed, tmp_path):
    def older(told):
        del told["plan"]["collusion"], told["plan"]["total"]["honest"]

    for run in (private, sealed):
        copy = Path(shutil.copytree(run, tmp_path / run.parent.parent.name / "runs" / "first"))
        before = Parsed(report(copy)).words
        _rewrite(copy, older)
        after = Parsed(report(copy)).words
        for words in (before, after):
            assert planned_cost(RunView.read(copy))[1].guarantee in words
        assert ("Who must be honest" in after) == (run == sealed)


def test_nobody_else_has_to_be_honest():
    path = Topology.family("path", 2)
    chosen = plan([500, 500], path, 6, epsilon=1.0, delta=1e-5, mechanism=Sealed(honest=1))
    found = Honesty.of(group_by_node(chosen.events)[path.nodes[0]], 1e-5)
    assert found.who.startswith("Only the node with the row must be honest")
    assert found.as_long_as == ""
    assert [row["planned"] for row in found.rows] == [True]
    alone = Topology.family("path", 1)
    chosen = plan([500], alone, 6, epsilon=1.0, delta=1e-5, mechanism=Sealed(honest=1, spares=0))
    found = Honesty.of(chosen.events, 1e-5)
    assert found.who.startswith("The node is alone")
    assert found.spare_words == ""
    assert Honesty.of(plan([500], alone, 6, epsilon=1.0, delta=1e-5).events, 1e-5) is None


def test_a_node_with_few_partners_is_alone_when_they_collude():
    ring = Topology.family("ring", 40)
    mechanism = Sealed(honest=36, partners=6)
    chosen = plan([500] * 40, ring, 6, epsilon=1.0, delta=1e-5, mechanism=mechanism)
    found = Honesty.of(group_by_node(chosen.events)[ring.nodes[0]], 1e-5)
    at = {point["colluding"]: point["epsilon"] for point in found.points}
    assert at[6] > 3 * at[5]
    assert at[6] == pytest.approx(at[39])
    assert len(at) < 33


def test_a_node_that_sends_nothing_has_no_table(tmp_path):
    folder, chosen = make_network(tmp_path, counts=(4000, 4000, 3), mechanism="sum")
    assert chosen.senders == (0, 1)
    page = report(folder)
    assert "west: 3 rows; sends nothing and loses nothing." in Parsed(page).words
    assert Parsed(page).words.count("✓ in use") == 1
    assert page.count("<caption>") == 1


def test_a_simulation_cannot_be_missed(seeded):
    page = page_of(seeded)
    words = Parsed(page).words
    assert "<title>SIMULATION: " in page
    assert words.count("SIMULATION") >= 4
    assert "protects nobody" in words
    assert "With noise from the system, this would cost anybody" in words
    assert "signature" not in words
    assert 'class="simulation every-page"' in page  # printed at the foot of every page


@pytest.mark.parametrize("mechanism", ["sum", "primal"])
def test_a_node_alone_is_not_said_to_agree_with_neighbours(tmp_path, mechanism):
    made = census(200, seed=4)
    write_rows(tmp_path / "only.csv", made.train, range(200))
    line = f"init {tmp_path} --node only={tmp_path}/only.csv {COLUMNS} --epsilon 2 --seed 3"
    assert dynadp(*shlex.split(line)).exit_code == 0
    write_plain(tmp_path)
    (tmp_path / "run.toml").write_text(
        (tmp_path / "run.toml")
        .read_text()
        .replace('# mechanism = "sum"', f"mechanism = '{mechanism}'")
        + '[training]\nweights = "equal"\n'
    )
    out = tmp_path / "runs" / "first"
    assert dynadp("train", tmp_path / "run.toml", "--out", out).exit_code == 0
    words = Parsed(report(out)).words
    assert "one node, which has nobody to agree with" in words
    assert "Network of 1 node: 1 finished" in words
    assert "200 rows at 1 node." in words
    assert "1 nodes" not in words
    assert "neighbours'" not in words
    assert "weights equal" in words


def test_a_demo_is_told_with_public_accuracy(tmp_path):
    result = dynadp("demo", "--mechanism", "dual", "--out", tmp_path / "demo", "--json")
    assert result.exit_code == 0, result.output
    words = Parsed(report(tmp_path / "demo" / "dual")).words
    assert re.search(
        r"answers are right \([^)]*\), on 5,000 rows: held-out census rows made here \(synthetic\)",
        words,
    )
    assert "SIMULATION" in words
    errors = json.loads(result.stdout)["runs"][0]["node_errors"]
    assert f"{100 * (1 - errors[0]):.1f} of 100 answers are right" in words
    assert RunView.read(tmp_path / "demo").name == "demo, dual"  # the only run in it


def test_nothing_protected_is_said_first(tmp_path):
    job = make_job(tmp_path, seed=1)
    text = job.read_text()
    text = re.sub(r"\[privacy\]\n(.*\n)*?\n", '[privacy]\nmechanism = "none"\n\n', text)
    job.write_text(text + "[training]\nrounds = 5\n")
    assert dynadp("train", job, "--out", tmp_path / "runs" / "plain").exit_code == 0
    words = Parsed(report(tmp_path / "runs" / "plain")).words
    assert "Nothing is protected: this run sent exact vectors, which reveal rows." in words
    assert "differential privacy in total" not in words


def test_a_network_is_one_run(tmp_path):
    folder, chosen = make_network(tmp_path / "net")
    story = RunView.read(folder)
    events, total = planned_cost(story)
    assert total.epsilon == pytest.approx(chosen.total.epsilon)
    assert len(events) == len(chosen.events)
    words = Parsed(report(folder)).words
    assert "Network of 3 nodes: 3 finished" in words
    assert "status.json of the nodes" in words
    alone = RunView.read(folder / "south")
    assert list(alone.folders) == ["south"]
    seen = states(alone, 5)
    assert seen["south"].look == "finished"
    assert seen["north"].words == "not seen from here"  # it stopped looking when it finished
    status = folder / "south" / "status.json"
    told = json.loads(status.read_text()) | {
        "state": "running",
        "neighbours": {"north": "up", "west": "away"},
    }
    status.write_text(json.dumps(told))
    seen = states(alone, 5)
    assert (seen["north"].words, seen["north"].look) == ("up, seen by a neighbour", "running")
    assert (seen["west"].words, seen["west"].look) == ("away, says a neighbour", "away")
    with Ledger.create(tmp_path / "south.sqlite", "south", who="me", at=now()):
        pass
    status.write_text(json.dumps(told | {"ledger": str(tmp_path / "south.sqlite")}))
    assert ledger_files(RunView.read(folder)) == {"south": tmp_path / "south.sqlite"}


@pytest.mark.slow
def test_a_real_network_is_told_whole_and_node_by_node(tmp_path):
    result = dynadp("launch", make_job(tmp_path), "--out", tmp_path / "net")
    assert result.exit_code == 0, result.output
    words = Parsed(report(tmp_path / "net")).words
    assert "Network of 3 nodes: 3 finished" in words
    assert "This costs anybody with a row at one node" in words
    assert words.count("21 of 21") == 3
    story = RunView.read(tmp_path / "net")
    assert planned_cost(story)[1].epsilon == pytest.approx(
        load_model(tmp_path / "net" / "north").privacy["epsilon"]
    )
    alone = Parsed(report(tmp_path / "net" / "west")).words
    assert "Not reached from here: the ledgers of north, south." in alone


def test_states_of_nodes_in_words(tmp_path):
    folder, _ = make_network(tmp_path / "net", finished=False)
    status = folder / "north" / "status.json"
    told = json.loads(status.read_text())
    expected = {
        "failed: NodeLost": "failed",
        "stopped": "away",
        "running": "running",
        "agreeing": "agreeing",
        "parted": "finished",
    }
    for word, look in expected.items():
        status.write_text(json.dumps({**told, "state": word}))
        assert states(RunView.read(folder), 5)["north"].look == look
    status.write_text(json.dumps({**told, "pid": 2**22 + 1}))
    assert states(RunView.read(folder), 5)["north"].words == "ended in round 5"
    status.write_text("{")
    assert states(RunView.read(folder), 5)["north"].look in ("unknown", "running")
    assert set(LOOKS) >= set(expected.values())


def test_a_run_in_one_process_that_went_silent(private, tmp_path, monkeypatch):
    from dynadp.report import states as module

    copy = tmp_path / "far" / "away" / "copy"
    copy.mkdir(parents=True)
    for name in ("run.json", "rounds.jsonl"):
        (copy / name).write_bytes((private / name).read_bytes())
    story = RunView.read(copy)
    assert states(story, 7)["north"].words == "running, round 7"
    monkeypatch.setattr(
        module.time, "time", lambda: (copy / "rounds.jsonl").stat().st_mtime + 7200.0
    )
    assert states(story, 7)["north"].words == "no news for 2 hours: interrupted, or slow"
    sentence, _ = guarantee(story, None)
    assert sentence.startswith("This will cost anybody")
    page = report(copy)
    assert "not told yet" not in page
    assert (
        planned_cost(story)[1] == planned_cost(RunView.read(private))[1]
    )  # the record has all it needs


def test_an_old_run_that_is_not_finished_is_counted_by_its_ledgers(tmp_path):
    fixtures = Path(__file__).parents[1] / "fixtures" / "v0.1.0"
    copy = Path(shutil.copytree(fixtures / "trained" / "interrupted", tmp_path / "run"))
    story = RunView.read(copy)
    assert (story.record.dimension, story.record.events) == (None, None)
    assert planned_cost(story) == ((), None)
    page = report(copy)  # the ledgers cannot be found from here
    assert "not told yet" in page
    assert "totals of single nodes cannot be told" in page
    for file in (fixtures / "ledgers").glob("interrupted-*.sqlite"):
        (tmp_path / "ledgers").mkdir(exist_ok=True)
        shutil.copyfile(file, tmp_path / "ledgers" / file.name)
    events, total = planned_cost(story)
    assert (len(events), total.epsilon) == (42, pytest.approx(1.9992470714962456))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run / "run.json").unlink(), "has no run.json"),
        (lambda run: (run / "run.json").write_text("{"), "is not JSON"),
        (lambda run: _change(run, simulation=True), "does not match its hash"),
        (lambda run: _change(run, version=99), "upgrade dynadp"),
        (lambda run: (run / "rounds.jsonl").write_text('{"round": 1}\n'), "rounds.jsonl, line 1"),
        (
            lambda run: _rewrite(run, lambda told: told.pop("topology")),
            "lacks what a run of dynadp records",
        ),
        (
            lambda run: _rewrite(run, lambda told: told["plan"]["total"].update(epsilon=0.1)),
            "its plan costs",
        ),
        (lambda run: (run / "model.json").write_text("{}"), "is not a dynadp-model file"),
    ],
)
def test_a_damaged_folder_is_a_clear_error(private, tmp_path, damage, said):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in private.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    damage(copy)
    result = dynadp("report", copy)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (copy / "report.html").exists()


def _change(run, **fields):
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | fields))


def _rewrite(run, change):
    from dynadp._files import digest

    told = json.loads((run / "run.json").read_text())
    change(told)
    bare = {k: v for k, v in told.items() if k not in ("format", "version", "content_hash")}
    (run / "run.json").write_text(json.dumps(told | {"content_hash": digest(bare)}))


def test_folders_that_are_not_a_run(tmp_path, private, seeded):
    with pytest.raises(RecordError, match="is not a folder"):
        RunView.read(tmp_path / "nothing")
    for i, run in enumerate((private, seeded)):
        (tmp_path / f"run{i}").mkdir()
        (tmp_path / f"run{i}" / "run.json").write_bytes((run / "run.json").read_bytes())
    with pytest.raises(RecordError, match=r"2 different runs \(run0, run1\)"):
        RunView.read(tmp_path)
    agreeing = tmp_path / "agreeing" / "north"
    agreeing.mkdir(parents=True)
    told = {"format": "dynadp-status", "version": 1, "state": "failed: BudgetRefused"}
    (agreeing / "status.json").write_text(json.dumps(told))
    with pytest.raises(
        RecordError, match=r"have not agreed on a run yet.*north: failed: BudgetRefused"
    ):
        RunView.read(tmp_path / "agreeing")
    result = dynadp("report", private, "-o", tmp_path / "no" / "report.html")
    assert result.exit_code == 2
    assert "is not a folder" in result.stderr


def test_names_cannot_break_the_page(tmp_path):
    job = make_job(tmp_path, seed=1)
    evil = '<script>alert(\\"1\\")</script>'
    job.write_text(job.read_text().replace('name = "north"', f'name = "{evil}"'))
    result = dynadp("train", job, "--out", tmp_path / "runs" / "evil")
    assert result.exit_code == 0, result.output
    page = report(tmp_path / "runs" / "evil")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_rounds_are_followed_line_by_line(tmp_path):
    file = tmp_path / "rounds.jsonl"
    rounds = Rounds([file], 2, "ab")
    rounds.read()
    assert rounds.rows == []
    line = '{"round": %d, "node": "%s", "disagreement": %g, "change": 0.5}\n'
    file.write_text(line % (1, "a", 1.0))
    rounds.read()
    assert rounds.rows == []  # one of two nodes
    with open(file, "a") as out:
        out.write(line % (1, "b", 3.0) + (line % (2, "a", 5.0))[:20])
    rounds.read()
    assert rounds.rows == [{"round": 1, "disagreement": [2.0, 1.0, 3.0], "change": [0.5, 0.5, 0.5]}]
    with open(file, "a") as out:
        out.write((line % (2, "a", 5.0))[20:] + line % (2, "b", 5.0))
    rounds.read()
    assert [row["round"] for row in rounds.rows] == [1, 2]
    file.write_text(
        line % (1, "a", 9.0) + line % (1, "b", 9.0)
    )  # a resumed run tells its rounds again
    rounds.read()
    assert [row["disagreement"][0] for row in rounds.rows] == [9.0]


def test_many_rounds_are_joined_and_keep_their_range():
    rows = [
        {"round": n, "disagreement": [float(n), n - 0.5, n + 0.5], "change": [1.0, 1.0, 1.0]}
        for n in range(1, 1002)
    ]
    few = thinned(rows, 100)
    assert len(few) <= 101
    assert few[-1] == rows[-1]
    assert [row["round"] for row in few] == sorted({row["round"] for row in few})
    assert min(row["disagreement"][1] for row in few) == 0.5
    assert thinned(rows, 2000) == rows


def test_the_drawing_shows_state_three_ways():
    ring = Topology.family("ring", 5)
    looks = list(LOOKS)[:5]
    drawn = drawing(
        ring, {p: State(look, f"is {look}") for p, look in zip(ring.nodes, looks, strict=True)}
    )
    for look in looks:
        shape, colour = LOOKS[look]
        assert f'class="{colour} {shape}"' in drawn
        assert f">is {look}</text>" in drawn
    assert (
        len(
            {
                LOOKS[look]
                for look in ("agreeing", "running", "finished", "away", "failed", "unknown")
            }
        )
        == 6
    )
    many = Topology.family("grid", 100)
    drawn = drawing(many, dict.fromkeys(many.nodes, State("running", "running")))
    assert 'class="edges"' in drawn
    dense = Topology.family("complete", 30)
    assert "edges thin" in drawing(dense, dict.fromkeys(dense.nodes, State("running", "running")))
    assert "<text" not in drawn  # the table tells
    assert drawn.count("<title>") == 100
    for topology in (ring, many, Topology.family("ring", 1), Topology.family("star", 9)):
        at = places(topology)
        assert len(set(at)) == len(topology)
        assert all(0 < x < 420 and 0 < y < 340 for x, y in at)


def test_a_ring_is_drawn_as_one_whatever_its_order():
    shuffled = Topology.from_edges(
        [("a", "c"), ("c", "b"), ("b", "d"), ("d", "e"), ("e", "a")], "abcde"
    )
    at = places(shuffled)
    sides = {
        round(((at[u][0] - at[v][0]) / 135) ** 2 + ((at[u][1] - at[v][1]) / 110) ** 2, 2)
        for u, v in shuffled.edges
    }
    assert len(sides) == 1


def test_a_purse_without_a_cap(tmp_path, private):
    with Ledger.create(tmp_path / "n.sqlite", "north", who="me", at=now()):
        pass
    found = read_budgets(RunView.read(private), {"north": Path(tmp_path / "n.sqlite")})["north"]
    assert isinstance(found, BudgetView)
    assert found.cap is None


def test_ledgers_are_found_one_folder_below(tmp_path, monkeypatch):
    """As `init` and `train` leave them: STUDY/NODE.sqlite and runs/first. An older copy, or
    another's ledger, is not taken.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    result = dynadp("train", make_job(tmp_path / "study"), "--out", tmp_path / "runs" / "first")
    assert result.exit_code == 0, result.output
    story = RunView.read(tmp_path / "runs" / "first")
    assert ledger_files(story) == {node: tmp_path / "study" / f"{node}.sqlite" for node in NODES}
    assert "No ledger can be reached" not in report(tmp_path / "runs" / "first")
    older, own = tmp_path / "backup", tmp_path / "study" / "north.sqlite"
    older.mkdir()
    shutil.copy(own, older / "north.sqlite")
    with Ledger.open(own) as ledger:
        ledger.set_cap(ledger.cap, who="me", at="2026-03-01T12:00:00+00:00")
    (older / "west.sqlite").write_bytes(b"no ledger")
    shutil.copy(own, older / "south.sqlite")
    (tmp_path / "study" / "south.sqlite").rename(tmp_path / "elsewhere.sqlite")
    deep = tmp_path / "study" / "deeper"
    deep.mkdir()
    shutil.copy(tmp_path / "elsewhere.sqlite", deep / "south.sqlite")
    assert ledger_files(story) == {
        node: tmp_path / "study" / f"{node}.sqlite" for node in ("north", "west")
    }


def test_a_page_of_choices_needs_no_ledger(tmp_path):
    job = make_job(tmp_path)
    for node in NODES:
        (tmp_path / f"{node}.sqlite").unlink()
    assert PublicSetting.of_file(job).counts == (200, 200, 200)
    job.write_text(job.read_text().replace("# epsilon = 0.5", "rows = 250\n# epsilon = 0.5"))
    for node in NODES:
        (tmp_path / f"{node}.csv").unlink()
    assert PublicSetting.of_file(job).counts == (250, 250, 250)
