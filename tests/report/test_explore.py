"""The live page: who may ask, what the sliders answer, and a stream of rounds without gaps."""

import html
import json
import os
import signal
import stat
import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from threading import Thread

import anyio
import numpy as np
import pytest

from dynadp._intervals import wilson
from dynadp.consensus.topology import Topology
from dynadp.errors import ConfigError, DeclarationError
from dynadp.mechanisms.sealed import Sealed
from dynadp.planning.designs import PrivacyUtility
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.statements import guess_words, upper_bound
from dynadp.report.budgets import read_budget
from dynadp.report.explore import advice as advice_module
from dynadp.report.explore import app as server_module
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.app import HEADERS, Explorer
from dynadp.report.explore.serve import explorer, serve, token_of
from dynadp.report.explore.setting import PublicSetting
from dynadp.report.explore.watch import Watch
from dynadp.report.record_view import RunView
from dynadp.research import experiments as experiments_module
from dynadp.research import public_rows as rows_module
from dynadp.runs.folder import RunFolder, load_run
from dynadp.runs.run_file import load_run_file
from support.page_client import HOST, TOKEN, Client
from support.run_folders import NODES, make_job, make_network, make_run
from support.typed import dynadp

CURVE = [
    {"epsilon": e, "alpha": e / 2.5, "median": m, "low": m - 1, "high": m + 1, "error": 0.0}
    for e, m in zip((0.05, 0.2, 1.0, 3.0, 10.0), (70.0, 76.0, 82.0, 83.5, 84.0), strict=True)
]


@pytest.fixture
def run(seeded):
    return seeded


def small(**given):
    """Three nodes of census rows: a sweep of them is quick."""
    made = PublicSetting.made()
    return PublicSetting(
        "small", Topology.family("ring", 3), (200,) * 3, made.dimension, made.features, **given
    )


@pytest.fixture
def sealed():
    return Advisor(small(mechanism=Sealed(honest=2)))


@pytest.fixture
def swept():
    found = Advisor(small())
    found.points, found.baselines, found.done = (
        CURVE,
        {"without privacy": 84.5, "always the most common answer": 76.0},
        True,
    )
    found.source, found.rows = "census rows made here (synthetic)", 250
    return found


@pytest.fixture
def page(swept):
    return Client(Explorer(swept, Watch(None)))


# ---- who may ask
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/wrong/",
        "/wrong/api/start",
        "/wrong/events",
        "/wrong/static/explore.js",
        f"/x{TOKEN}/",
    ],
)
def test_without_the_token_there_is_nothing(page, path):
    reply = page.get(path)
    assert reply.status_code == 403
    assert "token" in reply.text
    assert "epsilon" not in reply.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8317", "127.0.0.1", "127.0.0.1:80", "0.0.0.0:8317", ""]
)
def test_a_name_that_was_made_to_point_here_gets_nothing(page, host):
    assert page.get(f"/{TOKEN}/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", f"https://{HOST}"]
)
def test_another_page_gets_nothing(page, origin):
    assert page.get(f"/{TOKEN}/api/start", headers={"Origin": origin}).status_code == 403
    assert page.get(f"/{TOKEN}/api/start", headers={"Origin": f"http://{HOST}"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [f"/{TOKEN}/", f"/{TOKEN}/api/start", f"/{TOKEN}/static/explore.js", f"/{TOKEN}/no", "/wrong/"],
)
def test_every_answer_has_the_headers(page, path):
    reply = page.get(path)
    for name, value in HEADERS.items():
        assert reply.headers[name.lower()] == value
    policy = reply.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy


def test_the_page_has_no_code_and_loads_only_its_own_files(page):
    text = page.get(f"/{TOKEN}/").text
    assert "http://" not in text
    assert "https://" not in text
    assert "<script>" not in text
    assert " style=" not in text
    assert " onclick" not in text
    assert TOKEN not in text  # addresses are relative: the token is in the address bar alone
    for file in ("static/style.css", "static/explore.css", "static/explore.js", "static/charts.js"):
        assert page.get(f"/{TOKEN}/{file}").status_code == 200
    assert page.get(f"/{TOKEN}/static/../server.py").status_code in (403, 404)
    assert page.get(f"/{TOKEN}/api/recommend", "POST").status_code == 405


def test_vega_comes_from_here(page, monkeypatch):
    monkeypatch.setattr(server_module, "bundle", lambda: "window.vegaEmbed = 1;")
    reply = page.get(f"/{TOKEN}/vega.js")
    assert reply.headers["content-type"].startswith("text/javascript")
    assert "vegaEmbed" in reply.text


def test_vega_is_put_together_once(tmp_path, monkeypatch):
    import vl_convert

    made = []
    monkeypatch.setattr(
        vl_convert, "javascript_bundle", lambda snippet: (made.append(snippet), "a script")[1]
    )
    for home in (
        tmp_path / "new",
        tmp_path / "new",
        "/proc/1/nowhere",
    ):  # nothing can be kept in the last
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        assert server_module.bundle.__wrapped__() == "a script"
    assert len(made) == 2
    next(tmp_path.glob("*/dynadp/*")).write_text("")  # nothing in it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert server_module.bundle.__wrapped__() == "a script"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/proc/1/nobody's")
    assert server_module.bundle.__wrapped__() == "a script"
    assert len(made) == 4
    assert [file.name for file in tmp_path.glob("*/dynadp/*")] == [
        f"vega-{version('vl-convert-python')}.js"
    ]


# ---- the two sliders
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 4.0])
def test_from_a_total_to_alpha_as_the_planner_says(page, swept, epsilon):
    got = page.get(f"/{TOKEN}/api/recommend", params={"epsilon": epsilon}).json()
    s = swept.setting
    planned = plan(
        s.counts,
        s.topology,
        s.dimension,
        epsilon=epsilon,
        delta=1e-5,
        features=s.features,
    )
    assert got["alpha"] == planned.alpha
    assert got["unit"] == "mu"
    assert got["centring"] == max(planned.centrings)
    assert got["rounds"] == planned.rounds
    assert got["total"] == planned.total.epsilon == worst_node(planned.events, 1e-5).epsilon
    assert got["odds"] == guess_words(planned.total.epsilon, 1e-5)
    assert f"at most {got['right']} in 100" in got["odds"]
    curve = page.get(f"/{TOKEN}/api/totals", params={"epsilon": epsilon}).json()
    assert curve[-1]["epsilon"] == planned.total.epsilon
    assert {row["round"] for row in curve} >= {0, 20}
    found = np.interp(
        np.log(epsilon), np.log([p["epsilon"] for p in CURVE]), [p["median"] for p in CURVE]
    )
    assert got["accuracy"]["median"] == pytest.approx(found)
    assert "in 100 people would get the right answer" in got["words"]
    low, high = (f"{got['accuracy'][end]:.1f}" for end in ("low", "high"))  # as in the table
    assert f"{low} to {high} in 100 people would get the right answer" in got["words"]
    assert "Without privacy it would be 84.5." in got["words"]
    between = got["accuracy"]["between"]
    if epsilon in [p["epsilon"] for p in CURVE]:
        assert between is None
        assert "the right answer (measured; on census rows made here (synthetic))" in got["words"]
    else:
        assert between[0] < epsilon < between[1]
        marked = (
            f"the right answer (interpolated between the measured totals {between[0]:.3g} and "
            f"{between[1]:.3g}; on census"
        )
        assert marked in got["words"]
    assert "most common answer is right for 76.0 in 100." in got["words"]
    tried = page.get(f"/{TOKEN}/").text
    assert "widened by the sampling error (95%) of the rows; 250 rows are measured on" in tried


def test_from_an_accuracy_to_the_smallest_total(page):
    got = page.get(f"/{TOKEN}/api/recommend", params={"accuracy": 79.0}).json()
    assert got["epsilon"] == pytest.approx(
        np.sqrt(0.2 * 1.0), rel=1e-3
    )  # half way between two points, in ln epsilon
    assert got["accuracy"]["median"] == pytest.approx(79.0, abs=0.01)
    assert page.get(f"/{TOKEN}/api/recommend", params={"accuracy": 60.0}).json()["epsilon"] == 0.05
    far = page.get(f"/{TOKEN}/api/recommend", params={"accuracy": 99.0}).json()
    assert not far["reached"]
    assert far["words"] == "No total up to 10 reached 99.0 in 100 on these rows; the best was 84.0."


@pytest.mark.parametrize(
    "query",
    [
        "",
        "epsilon=",
        "epsilon=much",
        "epsilon=0",
        "epsilon=-1",
        "epsilon=nan",
        "epsilon=1e9",
        "x=1",
    ],
)
def test_questions_that_make_no_sense(page, query):
    reply = page.get(f"/{TOKEN}/api/recommend?{query}")
    assert reply.status_code == 400
    assert "expected" in reply.json()["error"] or "give ?epsilon" in reply.json()["error"]
    both = page.get(f"/{TOKEN}/api/recommend?epsilon=1&accuracy=80")
    assert both.status_code == 400


def test_before_the_sweep_there_is_no_accuracy():
    found = Advisor(small())
    assert found.for_total(1.0)["accuracy"] is None
    assert "being tried on public rows" in found.for_total(1.0)["words"]
    assert not found.for_accuracy(80.0)["reached"]
    assert found.recommended() == {"alpha": None, "reasons": ["The sweep is not finished."]}


def test_the_recommendation_is_the_best_measured_point_of_use(swept):
    swept.points = [{**CURVE[0], "median": 75.98}, *CURVE[1:]]  # very private, and useless
    got, w = swept.recommended(), PrivacyUtility()
    useful = [p for p in CURVE if p["low"] > swept.baselines["always the most common answer"]]
    assert useful == CURVE[2:]
    best = max(useful, key=lambda p: float(w(p["alpha"])) - (1 - p["median"] / 100))
    assert (
        max(swept.points, key=lambda p: float(w(p["alpha"])) + p["median"] / 100)["alpha"] == 0.02
    )
    assert (got["alpha"], got["epsilon"]) == (best["alpha"], best["epsilon"])
    assert "5 values of mu from 0.02 to 4 were measured" in got["reasons"][0]
    assert "2 of them are left out: within the interval" in got["reasons"][1]
    assert "the fit is drawn, not recommended" in got["reasons"][-1].lower()
    assert Explorer(swept, Watch(None))._swept(swept)["recommended"] == got


def test_an_answer_is_of_one_moment_of_the_sweep(swept, page, monkeypatch):
    """Another total was measured while a page was made, which then failed now and then."""
    evened = advice_module.evened

    def meanwhile(losses):
        swept.points = CURVE[: len(swept.points) + 1]
        return evened(losses)

    monkeypatch.setattr(advice_module, "evened", meanwhile)
    for asked in (
        "",
        "api/recommend?epsilon=0.1",
        "api/recommend?accuracy=78",
        "api/around?epsilon=0.1",
    ):
        swept.points, swept.done = CURVE[:2], False
        assert page.get(f"/{TOKEN}/{asked}").status_code == 200
        assert len(swept.points) > 2


def test_nothing_is_recommended_within_its_own_noise(swept, page):
    swept.baselines["always the most common answer"] = 83.0  # the best is 84, from 83 to 85
    got = swept.recommended()
    assert got["alpha"] is None
    assert got["reasons"][0].startswith("Nothing is recommended: always giving the same answer")
    assert swept.zones().useful is None
    text = html.unescape(page.get(f"/{TOKEN}/").text)
    assert "Nothing is recommended." in text
    assert got["reasons"][0] in text
    assert (
        "Right answers in 100: 83.0 with always the most common answer, 84.0 with the best total "
        "that was tried (83.0 to 85.0). That is no clear gain." in text
    )
    assert "no better than the most common answer: epsilon 0.05 to 10" in text
    assert "good value: epsilon" not in text
    assert "not clearly better than always giving the same answer" in swept.for_total(10)["words"]


def test_what_rose_by_chance_is_evened_and_says_so(swept):
    swept.points = [dict(p, error=0.5) for p in CURVE]
    swept.points[3]["median"] = 81.0  # less than the 82 of a smaller total
    assert [p["median"] for p in swept.curve] == pytest.approx([70, 76, 81.5, 81.5, 84])
    there = swept.for_total(3.0)
    assert there["accuracy"]["median"] == pytest.approx(81.5)
    assert there["accuracy"]["measured"] == 81.0
    assert "(measured, and evened with the totals beside it: 81.0 alone; on" in there["words"]
    for target in np.arange(70.0, 84.0, 0.1):  # slider and answer never apart
        got = swept.for_accuracy(float(target))
        assert got["accuracy"]["median"] >= target - 1e-6
        again = swept.for_total(got["epsilon"])
        assert again["accuracy"] == got["accuracy"]
        if target > 70.1 and not 81.4 < target < 81.6:
            assert got["accuracy"]["median"] == pytest.approx(target, abs=0.02)


def test_what_is_said_of_a_recommendation_or_of_none(swept):
    swept.baselines = {"without privacy": 84.5}  # nothing is known of the most common answer
    swept.points = [{**p, "median": 80.0 - i} for i, p in enumerate(CURVE)]
    got = swept.recommended()
    assert got["alpha"] == CURVE[0]["alpha"]
    assert "no curve" in got["reasons"][-1].lower()
    swept.points = [{**p, "median": 80.0 + 0.001 * i} for i, p in enumerate(CURVE)]
    assert any(
        "smallest mu that was measured" in reason for reason in swept.recommended()["reasons"]
    )
    swept.problem = "no rows"
    assert swept.recommended()["reasons"] == ["no rows"]


# ---- sealed sums
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_a_choice_says_who_must_be_honest(sealed, epsilon):
    answer = (
        Client(Explorer(sealed, Watch(None)))
        .get(f"/{TOKEN}/api/recommend?epsilon={epsilon}")
        .json()
    )
    chosen = sealed.setting.plan(epsilon)
    rests = ", as long as 2 of the 3 nodes are honest and nobody breaks the masks"
    assert f"at delta = 1e-05 over all rounds{rests}: " in answer["words"]
    rows = answer["honesty"]["rows"]
    assert [(row["colluding"], row["honest"], row["planned"]) for row in rows] == [
        (1, 2, True),
        (2, 1, False),
    ]
    assert [row["epsilon"] for row in rows] == [upper_bound(p.epsilon) for p in chosen.collusion]
    assert rows[0]["epsilon"] == upper_bound(chosen.total.epsilon)
    assert rows[0]["right"] == answer["right"] < rows[1]["right"]
    assert [point["colluding"] for point in answer["honesty"]["points"]] == [1, 2]
    assert answer["honesty"]["spares"] == "1 spare attempt"


def test_the_page_of_sealed_sums_and_of_open_ones(sealed, page):
    shown = Client(Explorer(sealed, Watch(None)))
    text = shown.get(f"/{TOKEN}/").text
    assert "sealed sums, 2 of 3 nodes honest" in text
    assert "2 of the 3 nodes must be honest." in text
    assert "the noise of the sum is drawn directly" in text
    assert "nobody is known who can tell them from random numbers" in text
    assert "1 spare attempt is reserved" in text
    assert "The upper line counts 1 spare attempt too" in text
    assert "All three are valid" not in text
    assert text.count("✓ planned") == 1
    charts = shown.get(f"/{TOKEN}/api/start").json()["charts"]
    assert {*charts} == {"disagreement", "change", "apart", "totals", "collusion"}
    drawn = json.dumps(charts["totals"])
    rows = shown.get(f"/{TOKEN}/api/totals?epsilon=1").json()
    assert {row["accounting"] for row in rows} == {*sealed.accountings}
    assert all(name in drawn for name in sealed.accountings)
    assert "plain sum" not in drawn
    text = page.get(f"/{TOKEN}/").text
    assert "must be honest" not in text
    assert "chart-collusion" not in text
    assert "collusion" not in page.get(f"/{TOKEN}/api/start").json()["charts"]
    assert "there is one curve: by the exact law of the loss" in text


def test_a_chart_of_totals_names_what_its_mechanism_has(page):
    shown = Advisor(small(mechanism="primal"))
    assert {row["accounting"] for row in shown.totals(1.0)} == {*shown.accountings}
    assert len(shown.accountings) == 3
    only = page.get(f"/{TOKEN}/api/totals?epsilon=1").json()
    assert {row["accounting"] for row in only} == {"in use: the law of the loss"}


def test_a_sweep_of_sealed_sums_needs_less_noise(sealed, monkeypatch):
    monkeypatch.setattr(experiments_module, "POINTS", 2)
    monkeypatch.setattr(advice_module, "DRAWS", 3)
    sealed.sweep()
    assert sealed.problem == ""
    assert [point["epsilon"] for point in sealed.points] == pytest.approx([0.05, 10.0])
    assert sealed.points[0]["median"] < sealed.points[1]["median"]


def test_a_sealed_run_is_watched_with_who_must_be_honest(tmp_path):
    run = make_run(tmp_path, mechanism='{ name = "sealed", honest = 2, spares = 2 }')
    setting = PublicSetting.of_run(RunView.read(run))
    planned = setting.plan(setting.epsilon)
    assert (planned.sealing.honest, planned.mechanism.spares) == (2, 2)
    watch = Watch(run)
    watch.look()
    state = watch.latest.state
    assert "as long as 2 of the 3 nodes are honest" in state["guarantee"]
    assert "and 2 spare attempts." in state["meaning"]
    for point in RunView.read(run).plan.collusion:
        assert f'<td class="number">{upper_bound(point["epsilon"])}</td>' in state["honest"]
    assert "Used so far: 0 of 2." in state["honest"]
    assert "Nobody sees one node's sum" in html.unescape(state["nodes"])
    worst = read_budget(tmp_path / "north.sqlite", "").worst
    assert "if all others collude" in state["budgets"]
    assert f'<td class="number">{upper_bound(worst)}</td>' in state["budgets"]


def test_an_open_run_rests_on_nobody(run):
    watch = Watch(run)
    watch.look()
    assert watch.latest.state["honest"] == ""
    assert "collude" not in watch.latest.state["budgets"]


# ---- the sweep
# --------------------------------------------------------------------------------------------------


def test_a_sweep_on_made_rows(monkeypatch):
    monkeypatch.setattr(experiments_module, "POINTS", 3)
    monkeypatch.setattr(advice_module, "DRAWS", 3)
    seen = []
    found = Advisor(small())
    found.sweep(lambda: bool(seen.append(found.progress)))
    assert [*seen, found.progress] == [(0, 2, False), (1, 2, False), (2, 2, False), (3, 2, True)]
    assert found.done
    assert found.problem == ""
    assert found.source == "census rows made here (synthetic)"
    assert [p["epsilon"] for p in found.points] == [0.05, 0.7071, 10.0]
    for point in found.points:
        assert point["low"] <= point["median"] <= point["high"]
        assert point["alpha"] == found.planned(point["epsilon"]).alpha
    assert (
        found.points[0]["median"]
        < found.points[-1]["median"]
        <= found.baselines["without privacy"] + 2
    )
    again = Advisor(small())
    again.sweep(stopped=lambda: len(again.points) == 1)
    assert again.points == found.points[:1]  # seeded
    assert not again.done


def test_private_rows_are_never_read(tmp_path, monkeypatch):
    read = []

    def source(path, **given):
        read.append(path.name)
        return real(path, **given)

    real = rows_module.source
    monkeypatch.setattr(rows_module, "source", source)
    rows = PublicSetting.of_file(make_job(tmp_path)).rows()
    assert read == []
    assert "synthetic" in rows.source
    (tmp_path / "two").mkdir()
    setting = PublicSetting.of_file(make_job(tmp_path / "two", public=True))
    rows = setting.rows()
    assert set(read) == {"public.csv"}
    assert "which the run file declares public" in rows.source
    assert [len(table["age"]) for table in rows.tables.values()] == [200] * 3
    assert setting.epsilon == 2.0
    job = tmp_path / "two" / "run.toml"
    job.write_text(job.read_text().replace("public = true", "public = false"))
    with pytest.raises(ConfigError, match="public"):
        PublicSetting.of_file(job)


def test_a_sweep_on_declared_public_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments_module, "POINTS", 2)
    found = Advisor(PublicSetting.of_file(make_job(tmp_path, public=True)))
    found.sweep()
    assert found.problem == ""
    assert len(found.points) == 2
    (tmp_path / "public.csv").write_text(
        "\n".join((tmp_path / "public.csv").read_text().splitlines()[:5]) + "\n"
    )
    few = Advisor(found.setting)
    few.sweep()
    assert "needs at least 20" in few.problem
    assert few.done


def test_more_rows_than_a_sweep_can_bear_are_said_so():
    rows = PublicSetting("large", Topology.family("ring", 2), (400_000, 200_000), 20, 19).rows()
    assert [len(table["age"]) for table in rows.tables.values()] == [40_000, 20_000]
    assert "60,000 rows instead of 600,000" in rows.source
    assert "cut to the run's 20 columns" in rows.source


@pytest.mark.parametrize(
    ("dimension", "features"), [(2, 1), (3, 2), (9, 8), (9, 9), (20, 19), (51, 50), (60, 59)]
)
def test_made_rows_have_the_runs_own_dimension(dimension, features):
    """The noise of the trial is drawn in as many dimensions as the run is priced for."""
    setting = PublicSetting("any", Topology.family("ring", 2), (30, 20), dimension, features)
    rows = setting.rows()
    assert rows.schema.dimension == dimension
    assert rows.schema.feature_count == features
    assert rows.schema.rows(rows.test).shape[1] == dimension
    planned = setting.plan(1.0, rows.counts)
    assert {event.dimension for event in planned.events} <= {dimension, features}
    assert 0 <= experiments_module.try_plan(setting.topology, rows, planned, 2)["median"] <= 1
    fitting = "" if dimension == 51 else "cut to" if dimension < 51 else "padded to"
    assert fitting in rows.source


def test_a_range_of_accuracy_holds_the_sampling_error_of_few_rows(tmp_path):
    file = make_job(tmp_path, public=True)
    lines = (tmp_path / "public.csv").read_text().splitlines()
    (tmp_path / "public.csv").write_text("\n".join(lines[:101]) + "\n")
    setting = PublicSetting.of_file(file)
    rows = setting.rows()
    found = experiments_module.try_plan(setting.topology, rows, setting.plan(10.0, rows.counts), 4)
    assert len(rows.test["age"]) == 50
    assert found["low"] <= wilson(found["median"], 50)[0]
    assert found["high"] >= wilson(found["median"], 50)[1]


def test_settings_of_run_files_and_folders(tmp_path, run):
    setting = PublicSetting.of_run(RunView.read(run))
    assert setting.epsilon == 2.0
    assert setting.counts == (200,) * 3
    assert setting.topology.nodes == NODES
    net, _ = make_network(tmp_path / "net")
    assert PublicSetting.of_run(RunView.read(net)).epsilon == 1.0
    shared = tmp_path / "shared.toml"
    keys = [f"ed25519:{letter * 43}=" for letter in "abc"]
    sections = "".join(
        f'[[nodes]]\nname = "{p}"\nrows = 300\nkey = "{key}"\n'
        for p, key in zip(NODES, keys, strict=True)
    )
    (tmp_path / "job").mkdir()
    make_job(tmp_path / "job", seed=1)
    shared.write_text(
        f'[data]\nschema = "job/schema.toml"\n{sections}[network]\nrelay = '
        f'"relay.example.org:7447"\n'
        "[privacy]\nepsilon = 0.5\ndelta = 1e-6\n"
    )
    told = PublicSetting.of_file(shared)
    assert (told.counts, told.epsilon, told.delta, told.public) == ((300,) * 3, 0.5, 1e-6, None)
    (tmp_path / "two").mkdir()
    job = make_job(tmp_path / "two", seed=1)
    text = (
        job.read_text()
        .replace("epsilon = 2.0", "")
        .replace('# mechanism = "sum"', 'mechanism = "none"')
    )
    job.write_text(text)
    assert load_run_file(job).privacy.mechanism == "none"
    with pytest.raises(DeclarationError, match="protects nothing"):
        PublicSetting.of_file(job)


# ---- the stream
# --------------------------------------------------------------------------------------------------


def take(shown, last="", until=lambda events: False, most=200):
    """Events of the stream until something holds, or nothing more comes."""

    async def collect():
        events, stream = [], shown.stream(last)
        quiet = 0
        async for text in stream:
            events += [parsed(text)] if "data:" in text else []
            if until(events):
                break
        await stream.aclose()
        return events, quiet

    return anyio.run(collect)[0][:most]


def parsed(text):
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return fields.get("event"), fields.get("id"), json.loads(fields["data"])


def rounds_of(events):
    return [row["round"] for name, _, data in events if name == "rounds" for row in data]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(server_module, "TICK", 0)


class Growing:
    """A run folder to which rounds are added by hand."""

    def __init__(self, run, path, created="2026-01-01T00:00:00+00:00"):
        record = load_run(run).model_copy(update={"created": created, "simulation": True})
        self.folder = RunFolder.create(path, record)
        self.watch = Watch(path)
        self.shown = Explorer(Advisor(small()), self.watch)

    def grow(self, *rounds):
        for n in rounds:
            self.folder.append(
                {"round": n, "node": p, "alpha": 0.1, "disagreement": 1.0, "change": 1.0}
                for p in NODES
            )
        self.watch.look()


def test_rounds_come_with_ids_and_resume_without_gaps(run, tmp_path, quick):
    growing = Growing(run, tmp_path / "live")
    growing.grow(1, 2, 3)
    first = take(growing.shown, until=lambda events: rounds_of(events)[-1:] == [3])
    last = first[-1][1]
    assert last == f"{growing.watch.latest.key}-3"
    growing.grow(4, 5)
    second = take(growing.shown, last, lambda events: rounds_of(events)[-1:] == [5])
    assert rounds_of(first) + rounds_of(second) == [1, 2, 3, 4, 5]
    assert "anew" not in [name for name, *_ in second]
    growing.grow(6)
    restarted = Explorer(
        Advisor(small()), Watch(tmp_path / "live")
    )  # a new server in the same place
    restarted.watch.look()
    third = take(restarted, second[-1][1], lambda events: rounds_of(events)[-1:] == [6])
    assert rounds_of(third) == [6]
    assert "anew" not in [name for name, *_ in third]
    assert third[0][0] == "state"  # told whole after every restart
    everything = take(restarted, "", lambda events: rounds_of(events)[-1:] == [6])
    assert rounds_of(everything) == [1, 2, 3, 4, 5, 6]
    assert everything[0][0] == "anew"


@pytest.mark.parametrize("last", ["nonsense", "-", "deadbeef-7", "-5", "12"])
def test_an_id_of_another_run_begins_anew(run, tmp_path, quick, last):
    growing = Growing(run, tmp_path / "live")
    growing.grow(1, 2)
    events = take(growing.shown, last, lambda events: rounds_of(events)[-1:] == [2])
    assert rounds_of(events) == [1, 2]
    assert events[0][0] == "anew"


def test_a_run_that_is_told_again_or_replaced(run, tmp_path, quick):
    growing = Growing(run, tmp_path / "live")
    growing.grow(1, 2, 3)
    key = growing.watch.latest.key
    (tmp_path / "live" / "rounds.jsonl").write_bytes(b"")  # as a resumed run does
    growing.watch.look()
    growing.grow(1, 2)
    growing.grow(3, 4)
    events = take(growing.shown, f"{key}-3", lambda events: rounds_of(events)[-1:] == [4])
    assert rounds_of(events) == [4]
    for file in (tmp_path / "live").iterdir():
        file.unlink()
    another = Growing(run, tmp_path / "live", created="2027-01-01T00:00:00+00:00")
    another.grow(1)
    growing.watch.look()
    events = take(growing.shown, f"{key}-4", lambda events: rounds_of(events)[-1:] == [1])
    assert events[0][0] == "anew"
    assert rounds_of(events) == [1]


def test_a_stream_that_runs_while_rounds_come(run, tmp_path, quick):
    growing = Growing(run, tmp_path / "live")
    growing.grow(1)
    wanted = iter(range(2, 30))

    def until(events):
        if rounds_of(events)[-1:] == [29]:
            return True
        if (n := next(wanted, None)) is not None:
            growing.grow(n)
        return False

    events = take(growing.shown, until=until)
    assert rounds_of(events) == list(range(1, 30))
    ids = [id for name, id, _ in events if name == "rounds"]
    assert len(ids) == len(set(ids))


def test_nodes_that_have_not_agreed_yet(tmp_path):
    (tmp_path / "net" / "north").mkdir(parents=True)
    told = {"format": "dynadp-status", "version": 1, "state": "agreeing"}
    (tmp_path / "net" / "north" / "status.json").write_text(json.dumps(told))
    watch = Watch(tmp_path / "net")
    watch.look()
    assert "have not agreed on a run yet" in watch.latest.state["problem"]
    assert "north: agreeing" in watch.latest.state["problem"]


def test_a_folder_that_is_not_there_yet(run, tmp_path, quick):
    watch = Watch(tmp_path / "later")
    shown = Explorer(Advisor(small()), watch)
    watch.look()
    assert "Nothing runs in" in watch.latest.state["problem"]
    growing = Growing(run, tmp_path / "later")
    growing.grow(1)
    watch.look()
    assert watch.latest.state["problem"] == ""
    assert watch.latest.state["round"] == 1
    assert rounds_of(take(shown, until=lambda events: rounds_of(events)[-1:] == [1])) == [1]
    (tmp_path / "later" / "rounds.jsonl").write_text("broken\n" * 60)
    watch.look()
    assert "is not a round's line" in watch.latest.state["problem"]


def test_the_state_of_a_run_that_ends(run, tmp_path):
    growing = Growing(run, tmp_path / "live")
    growing.grow(1)
    state = growing.watch.latest.state
    assert (state["finished"], state["round"], state["rounds"], state["simulation"]) == (
        False,
        1,
        20,
        True,
    )
    assert state["accuracy"].startswith("No accuracy is shown: the run is not finished")
    assert "running, round 1" in state["network"]
    version = growing.watch.latest.version
    growing.watch.look()
    assert growing.watch.latest.version == version
    (tmp_path / "live" / "model.json").write_bytes((run / "model.json").read_bytes())
    growing.watch.look()
    state = growing.watch.latest.state
    assert state["finished"]
    assert "3 finished" in state["network"]
    done = Watch(run)
    done.look()
    told = done.latest.state["accuracy"]
    assert " of 100 answers are right (" in told
    assert "rows: public.csv, which the run file declares public. Always giving the most " in told


def test_budgets_follow_the_ledgers(tmp_path):
    run = make_run(tmp_path)
    watch = Watch(run)
    watch.look()
    assert watch.latest.state["budgets"].count('role="img"') == 3
    before = watch.latest.state["budgets"]
    room = read_budget(tmp_path / "north.sqlite", "").room
    for share in (1 - room.left, room.left):  # one unit: of the cap, in the bar and beside it
        assert f'<td class="number">{share:.1%}</td>' in before
    assert f"{1 - room.left:.1%} spent or reserved" in before
    assert "Rényi" not in before
    result = dynadp(
        "evaluate",
        run,
        tmp_path / "north.csv",
        "--ledger",
        tmp_path / "north.sqlite",
        "--alpha",
        0.1,
    )
    assert result.exit_code == 0, result.output
    watch.look()
    assert watch.latest.state["budgets"] != before


def test_a_network_is_followed_node_by_node(tmp_path, quick):
    folder, _ = make_network(tmp_path / "net", finished=False, rounds=4)
    watch = Watch(folder)
    watch.look()
    assert [row["round"] for row in watch.latest.rows] == [1, 2, 3, 4]
    assert watch.latest.rows[0]["disagreement"] == [2.0, 1.0, 3.0]
    RunFolder(folder / "north", load_run(folder / "north")).append(
        [{"round": 5, "node": "north", "disagreement": 1.0, "change": 1.0}]
    )
    watch.look()
    assert len(watch.latest.rows) == 4  # two nodes have not told round 5
    for node in ("south", "west"):
        RunFolder(folder / node, load_run(folder / node)).append(
            [{"round": 5, "node": node, "disagreement": 1.0, "change": 1.0}]
        )
    watch.look()
    assert len(watch.latest.rows) == 5
    assert "No ledger of this run can be reached" in watch.latest.state["budgets"]


# ---- the command
# --------------------------------------------------------------------------------------------------


def test_a_token_that_is_kept(tmp_path):
    assert token_of(None) != token_of(None)
    file = tmp_path / "token"
    token = token_of(str(file))
    assert token_of(str(file)) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(DeclarationError, match="can be read by other users"):
        token_of(str(file))
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(DeclarationError, match="holds no token"):
        token_of(str(file))


def test_served_and_ended_by_a_signal(run, monkeypatch):
    monkeypatch.setattr(server_module, "bundle", lambda: "")
    monkeypatch.setattr(experiments_module, "POINTS", 2)
    shown, seen = explorer(str(run)), {}

    def visit(address):
        try:
            with urllib.request.urlopen(address) as reply:
                seen["page"] = reply.read().decode()
            with urllib.request.urlopen(f"{address}events") as stream:
                lines = []
                while not any(line.startswith(b"event: rounds") for line in lines):
                    lines.append(stream.readline())
                seen["stream"] = lines
                os.kill(os.getpid(), signal.SIGINT)  # with the stream still open
            try:
                urllib.request.urlopen(address.replace(TOKEN, "other"))
            except urllib.error.HTTPError as error:
                error.close()
            except OSError:  # refused, or reset while the server ends
                pass
        finally:
            shown.over.set()

    def ready(address):
        seen["address"] = address
        Thread(target=visit, args=(address,)).start()

    came = serve(shown, TOKEN, 0, ready)
    assert came == signal.SIGINT
    assert seen["address"].startswith("http://127.0.0.1:")
    assert seen["address"].endswith(f"/{TOKEN}/")
    assert "Choose either; the other follows" in seen["page"]
    assert seen["stream"][0] == b"retry: 1000\n"


def test_what_can_be_explored(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert explorer(None).watch.path is None
    assert explorer(str(run)).watch.path == run
    job = make_job(tmp_path, seed=1)
    assert str(explorer(str(job)).watch.path) == "runs/first"
    assert explorer(str(job), str(run)).watch.path == run
    with pytest.raises(DeclarationError, match="neither a run folder nor a run file"):
        explorer("nothing")


def test_the_command_prints_the_address_and_opens_it(run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def serve(shown, token, port, ready):
        ready(f"http://127.0.0.1:{port}/{token}/")
        return came

    monkeypatch.setattr("dynadp.report.serve", serve)
    came = signal.SIGINT
    line = ["explore", run, "--port", 8400, "--token-file", tmp_path / "token"]
    result = dynadp(*line)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"http://127.0.0.1:8400/{token_of(str(tmp_path / 'token'))}/\n"
    assert opened == [result.stdout.strip()]
    came = signal.SIGTERM
    assert dynadp(*line, "--no-browser").exit_code == 143
    assert len(opened) == 1


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = dynadp("explore", "--no-browser")
    assert result.exit_code == 2
    assert "pip install 'dynadp[explore]'" in result.stderr


def test_a_port_that_is_taken(run):
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(DeclarationError, match="cannot be had"),
    ):
        serve(explorer(str(run)), TOKEN, taken.getsockname()[1], lambda address: None)
