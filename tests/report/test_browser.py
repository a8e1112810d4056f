"""The page and the report in a real browser: Debian's Chromium, without a window.

DYNADP_PICTURES=FOLDER keeps the pictures that are taken; docs/pictures has them.
"""

import itertools
import re
import signal
import subprocess
from pathlib import Path

import pytest

from dynadp.report.page import write_report
from dynadp.runs.folder import RunFolder, load_run
from support.browser import DYNADP, Opened, chromium, faults, keep, served
from support.networks import until
from support.run_folders import NODES, SEALED, make_job, make_long_run, make_run
from support.typed import dynadp

pytestmark = pytest.mark.slow
VIEWS = ("desktop", "dark", "narrow")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("browser"), public=True, rows=6000)


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    with served(run, token=tmp_path_factory.mktemp("token") / "token") as (found, _):
        yield found


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("sealed"), public=True, rows=6000, mechanism=SEALED)


@pytest.fixture(scope="module")
def sealed_address(sealed, tmp_path_factory):
    with served(sealed, token=tmp_path_factory.mktemp("token") / "token") as (found, _):
        yield found


def ready(opened, address):
    opened.page.goto(address)
    opened.until(
        "document.body.dataset.swept === 'true'"
    )  # the sweep is over, and its answer there
    opened.until("document.querySelector('#chart-totals svg')")
    opened.until("document.querySelector('#chart-change svg')")
    opened.until("document.querySelector('#chart-apart svg')")
    assert opened.text("#h-moved") == "How far the common point moved"  # by algorithm sum
    assert not opened.page.locator("#chart-disagreement").is_visible()


def test_sliders_are_moved_by_keys_and_follow_each_other(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        page = opened.page
        before = (
            opened.text("#sentence"),
            opened.text("#numbers"),
            opened.text("#epsilon-out"),
            opened.text("#accuracy-out"),
        )
        assert "in 100 people would get the right answer" in before[0]
        assert opened.text("#accuracy-low").startswith("lower (")  # whatever is measured
        assert page.locator("#dots .gain").count() > 10
        page.locator("#epsilon").focus()
        for _ in range(12):
            page.keyboard.press("ArrowLeft")
        opened.until("old => document.querySelector('#numbers').innerText !== old", before[1])
        opened.until("old => document.querySelector('#accuracy-out').value !== old", before[3])
        after = opened.text("#sentence"), opened.text("#numbers"), opened.text("#epsilon-out")
        assert all(a != b for a, b in zip(after, before, strict=False))
        less = float(after[2].removeprefix("epsilon "))
        assert less < float(before[2].removeprefix("epsilon "))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "accuracy"
        page.keyboard.press("End")
        opened.until("old => document.querySelector('#epsilon-out').value !== old", after[2])
        opened.until("less => Number(location.search.split('=')[1]) > less", less)
        assert page.locator("#epsilon").get_attribute("aria-valuetext") == opened.text(
            "#epsilon-out"
        )
        assert opened.errors == []


def test_the_recommendation_can_be_taken(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        assert "mu = " in opened.text("#recommended")
        opened.page.locator("#take").press("Enter")
        epsilon = re.search(r"epsilon = ([\d.]+)", opened.text("#recommended"))[1]
        opened.until(
            "wanted => document.querySelector('#numbers').innerText.includes(wanted)",
            f"privacy.epsilon = {epsilon}",
        )
        assert opened.page.url.endswith(f"?epsilon={epsilon}")
        assert opened.text("#epsilon-out") == f"epsilon {epsilon}"
        mark, star = (
            opened.page.locator(f".broad .decision {part}").bounding_box()
            for part in (".choice .accuracy", ".star")
        )
        assert mark["x"] + mark["width"] / 2 == pytest.approx(star["x"] + star["width"] / 2, abs=1)


def test_slider_and_answer_are_never_apart(browser, address):
    """Whatever is moved, and however fast: in the end all places name one total."""
    with Opened(browser) as opened:
        ready(opened, address)
        page = opened.page
        for slider, keys in (("epsilon", ["ArrowLeft"] * 9), ("accuracy", ["ArrowLeft"] * 3)):
            page.locator(f"#{slider}").focus()
            for key in keys:
                page.keyboard.press(key)  # faster than answers come
        page.locator("#epsilon").focus()
        page.keyboard.press("ArrowRight")
        moved = float(opened.text("#epsilon-out").removeprefix("epsilon "))
        opened.until("wanted => location.search === wanted", f"?epsilon={moved:g}")
        opened.until(
            "wanted => document.querySelector('#caps, #changes').innerText.includes(wanted)",
            f"with epsilon = {moved:g}",
        )
        assert f"epsilon = {moved:g} at delta" in opened.text("#sentence")
        assert f"privacy.epsilon = {moved:g}." in opened.text("#numbers")
        assert f"epsilon = {moved:g}\n" in opened.page.locator("#text").text_content()
        assert page.locator("#save").get_attribute("href") == f"run.toml?epsilon={moved:g}"
        said = float(opened.text("#accuracy-out").split()[0])
        shown = float(opened.text("#changes tbody tr:first-child td:nth-child(2)"))
        assert said == shown
        told = page.evaluate(
            "async (e) => (await fetch(`api/recommend?epsilon=${e}`)).json()", moved
        )
        assert round(told["accuracy"]["median"], 1) == pytest.approx(said, abs=0.051)


def test_the_address_keeps_the_choice(browser, address):
    with Opened(browser) as opened:
        ready(opened, f"{address}?epsilon=0.3")
        page = opened.page
        assert opened.text("#epsilon-out") == "epsilon 0.3"
        assert "epsilon = 0.3 at delta" in opened.text("#sentence")
        page.locator("#epsilon").press("End")
        opened.until("location.search === '?epsilon=10'")
        page.locator("#epsilon").press("Home")
        opened.until("location.search === '?epsilon=0.05'")
        page.go_back()
        opened.until("document.querySelector('#epsilon-out').value === 'epsilon 10'")
        opened.until("document.querySelector('#sentence').innerText.includes('epsilon = 10 at')")
        page.reload()
        opened.until("document.querySelector('#epsilon-out').value === 'epsilon 10'")
        assert opened.errors == []


def test_the_run_file_can_be_copied_and_saved(browser, tmp_path):
    job = make_job(tmp_path)
    with (
        served(job, token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser, permissions=["clipboard-read", "clipboard-write"]) as opened,
    ):
        page = opened.page
        page.goto(f"{address}?epsilon=0.45")
        opened.until("document.querySelector('#changes').innerText.includes('epsilon = 0.45')")
        page.locator("#copy").press("Enter")
        opened.until("document.querySelector('#copied').innerText === 'Copied.'")
        copied = page.evaluate("navigator.clipboard.readText()")
        with page.expect_download() as saving:
            page.locator("#save").press("Enter")
        saved = Path(saving.value.path()).read_text()
        assert saving.value.suggested_filename == "run.toml"
        wanted = job.read_text().replace("epsilon = 2.0", "epsilon = 0.45", 1)
        assert saved == copied == wanted
        assert opened.text("#caps tbody tr:first-child th") == "north"


def test_the_keyboard_alone_reaches_everything(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        seen = []
        for _ in range(40):
            opened.page.keyboard.press("Tab")
            at = opened.page.evaluate(
                "[document.activeElement.id || document.activeElement.tagName, "
                "getComputedStyle(document.activeElement).outlineStyle]"
            )
            if at[0] == "BODY":
                break
            assert at[1] != "none", at  # where one is can be seen
            seen.append(at[0])
        order = [
            seen.index(name) for name in ("epsilon", "accuracy", "take", "copy", "save", "text")
        ]
        assert order == sorted(order)
        assert seen.count("SUMMARY") >= 3


def test_the_page_is_readable_without_javascript(browser, address):
    with Opened(browser) as scripted:
        ready(scripted, address)  # so that the sweep is over
    with Opened(browser, java_script_enabled=False) as opened:
        page = opened.page
        page.goto(f"{address}?epsilon=0.8")
        assert "epsilon = 0.8 at delta" in opened.text("#sentence")
        assert page.locator(".broad .decision").is_visible()
        assert not page.locator(".slim .decision").is_visible()
        assert page.locator("#dots .gain").count() > 10
        assert page.locator("#changes tbody tr").count() == 6
        assert page.locator("#recommended .figure").is_visible()
        assert "is finished after 20 rounds" in opened.text("#run-state")
        assert opened.text("#band").startswith("All nodes stand at one point.")
        for name in ("epsilon", "take", "copy"):
            assert not page.locator(f"#{name}").is_visible()  # nothing that does nothing
        for name in ("totals", "change", "apart"):
            picture = page.locator(f"#chart-{name} img")
            assert picture.bounding_box()["height"] > 100
        page.get_by_label("epsilon:").fill("0.2")
        page.get_by_role("button", name="Show").press("Enter")
        page.wait_for_url("**/?epsilon=0.2")
        assert "epsilon = 0.2 at delta" in opened.text("#sentence")
        assert opened.errors == []
        assert [url for url in opened.asked if not url.startswith((address, "data:,"))] == []
        keep(page, "explore-plain")


def test_the_page_keeps_its_meaning_in_grey_on_paper(browser, address):
    with Opened(browser, "dark") as opened:
        ready(opened, address)
        page = opened.page
        page.emulate_media(media="print", color_scheme="light")
        page.set_viewport_size({"width": 690, "height": 1000})
        dashes = page.evaluate(
            "['blind', 'without', 'planned', 'recommended'].map((name) => "
            "getComputedStyle(document.querySelector(`.broad .decision .${name}`)).strokeDasharray)"
        )
        assert len(set(dashes)) == 4
        assert "none" not in dashes
        marks = "all => new Set(all.map((one) => one.localName)).size"
        assert (
            page.locator("#dots .chance, #dots .gain").evaluate_all(marks) == 2
        )  # not colour alone
        whole = "one => one.scrollHeight <= one.clientHeight + 1"
        assert page.locator("#text").evaluate(whole)  # the run file is not cut
        for button in page.locator("button, .button").all():
            assert not button.is_visible()
        for box in page.locator("svg").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().right)"
        ):
            assert box <= 690
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_fifty_nodes_and_a_thousand_rounds_fit(browser, tmp_path):
    run = make_long_run(tmp_path / "long")
    with (
        served(run, token=tmp_path / "token") as (address, _),
        Opened(browser, bypass_csp=True) as opened,
    ):
        opened.page.goto(address)
        opened.until("Number(document.body.dataset.round) === 1000")
        opened.until("document.querySelector('#chart-disagreement svg')")
        opened.until("document.querySelector('#chart-totals svg')")
        page = opened.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        charts = [
            page.locator(f"#chart-{name}").bounding_box() for name in ("disagreement", "change")
        ]
        assert charts[0]["y"] == charts[1]["y"]  # beside each other, not smeared over the page
        assert all(300 < chart["width"] < 760 for chart in charts)
        labels = page.locator("#chart-change .role-axis-label text").evaluate_all(
            "all => all.filter((one) => one.textContent && getComputedStyle(one).opacity !== '0')"
            ".map((one) => { const box = one.getBoundingClientRect(); "
            "return [box.top, box.left, box.right]; })"
        )
        row = max(top for top, *_ in labels)
        bottom = sorted(box for box in labels if abs(box[0] - row) < 2)
        assert all(one[2] < other[1] for one, other in itertools.pairwise(bottom))
        assert page.locator("#network circle, #network path").count() >= 50
        assert not page.locator("#nodes table").is_visible()  # in a list that opens
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_request_leaves_and_the_policy_is_never_broken(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        opened.page.mouse.move(640, 800)
        opened.page.mouse.wheel(0, 600)
        chart = opened.page.locator(".broad .decision").bounding_box()
        opened.page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 2)
        assert len(opened.asked) > 8
        assert [url for url in opened.asked if not url.startswith((address, "data:,"))] == []
        assert opened.page.evaluate("window.broken") == []
        assert opened.errors == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_is_accessible_and_fits(browser, address, view):
    with Opened(browser, view, bypass_csp=True) as opened:
        ready(opened, address)
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        fits = "all => all.every((one) => one.scrollWidth <= one.clientWidth)"
        assert opened.page.locator("#budgets .scroll, #caps .scroll").evaluate_all(fits)
        assert faults(opened.page) == []
        ink, paper = opened.page.evaluate(
            "[getComputedStyle(document.body).color, "
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert (
            sum(map(int, re.findall(r"\d+", ink)[:3]))
            > sum(map(int, re.findall(r"\d+", paper)[:3]))
        ) == (view == "dark")
        keep(opened.page, f"explore-{view}")
        if view == "desktop":
            bottom = opened.page.locator("#h-change").bounding_box()["y"] - 20  # down to the charts
            keep(opened.page, "explore", clip={"x": 120, "y": 0, "width": 1200, "height": bottom})


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_of_sealed_sums_is_accessible_and_fits(browser, sealed_address, view):
    with Opened(browser, view, bypass_csp=True) as opened:
        ready(opened, sealed_address)
        opened.until("document.querySelector('#chart-collusion svg')")
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(opened.page) == []
        assert opened.text("#collusion tbody tr:first-child th") == "1 ✓ planned"
        assert opened.page.locator("#honest table").is_visible()  # of the run
        keep(opened.page, f"sealed-{view}")


def test_the_loss_if_more_collude_follows_the_choice(browser, sealed_address):
    with Opened(browser) as opened:
        ready(opened, sealed_address)
        opened.until("document.querySelector('#chart-collusion svg')")
        before, run = opened.text("#collusion tbody"), opened.text("#honest tbody")
        opened.page.locator("#epsilon").focus()
        for _ in range(6):
            opened.page.keyboard.press("ArrowLeft")
        opened.until("old => document.querySelector('#collusion tbody').innerText !== old", before)
        rows = opened.page.locator("#collusion tbody tr").evaluate_all(
            "all => all.map((row) => [...row.children].map((cell) => cell.innerText))"
        )
        assert [row[:2] for row in rows] == [["1 ✓ planned", "2"], ["2", "1"]]
        assert float(rows[0][3]) < float(rows[1][3]) < 2.9  # of the run it is 2.95
        assert opened.text("#honest tbody") == run  # what is done is done
        assert " in 1 spare attempt." in opened.text("#numbers")
        assert "as long as 2 of the 3 nodes are honest" in opened.text("#sentence")
        assert opened.errors == []
        assert opened.page.evaluate("window.broken") == []


def test_colours_follow_the_system_while_the_page_is_open(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        line = (
            "document.querySelector('#chart-totals svg').outerHTML"
            ".includes(getComputedStyle(document.documentElement)"
        )
        line += ".getPropertyValue('--blue').trim())"
        assert opened.page.evaluate(line)
        opened.page.emulate_media(color_scheme="dark")
        opened.until(line)


def test_a_run_is_followed_while_it_goes_on(browser, tmp_path):
    job = make_job(tmp_path, seed=2)
    text = re.sub(r"epsilon = 2\.0.*", "alpha = 0.05", job.read_text())
    job.write_text(text + "\n[training]\nrounds = 1500\nrho = 1e-3\neta = 0.05\n")
    with (
        served(job, token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser) as opened,
    ):
        opened.page.goto(address)
        opened.until(
            "document.querySelector('#run-state').innerText.includes('Nothing runs in runs/first "
            "yet')"
        )
        out = tmp_path / "runs" / "first"
        with subprocess.Popen(
            [DYNADP, "train", job, "--out", out],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ) as train:
            rounds = out / "rounds.jsonl"
            until(lambda: rounds.exists() and rounds.stat().st_size > 5000, "some rounds")
            train.send_signal(signal.SIGSTOP)  # or it would be over before the page has looked
            try:
                opened.until("Number(document.body.dataset.round) > 0")
                assert opened.page.evaluate("Number(document.body.dataset.round)") < 1500
                assert opened.page.locator("#simulation").is_visible()
            finally:
                train.send_signal(signal.SIGCONT)
            assert train.wait() == 0
        opened.until("Number(document.body.dataset.round) === 1500")
        opened.until(
            "document.querySelector('#run-state').innerText.includes('finished after 1500 rounds')"
        )
        opened.until("document.querySelector('#network').innerText.includes('finished')")
        assert opened.page.locator("#chart-disagreement svg").is_visible()
        assert opened.errors == []


def test_a_server_that_is_started_again_goes_on_without_gaps(browser, run, tmp_path):
    began = {"simulation": False, "created": "2026-01-01T00:00:00+00:00"}
    live = RunFolder.create(tmp_path / "live", load_run(run).model_copy(update=began))

    def grow(first, last):
        for n in range(first, last + 1):
            live.append(
                {"round": n, "node": p, "alpha": 0.1, "disagreement": 1.0 + n, "change": 1.0}
                for p in NODES
            )

    grow(1, 5)
    with Opened(browser) as opened:
        with served(live.path, token=tmp_path / "token") as (address, _):
            opened.page.goto(address)
            opened.until("Number(document.body.dataset.round) === 5")
        opened.until("document.querySelector('#link').innerText.includes('does not answer')")
        grow(6, 9)
        port = int(address.split(":")[2].split("/")[0])
        with served(live.path, token=tmp_path / "token", port=port) as (again, _):
            assert again == address
            opened.until("Number(document.body.dataset.round) === 9")
            opened.until(
                "document.querySelector('#chart-disagreement').dataset.shown === '9'"
            )  # each round once
            opened.until("document.querySelector('#link').innerText === ''")
        other = tmp_path / "other"
        with served(live.path, token=other, port=port):
            opened.until(
                "document.querySelector('#link').innerText.includes('open the address that it "
                "printed')"
            )


@pytest.mark.parametrize("which", ["run", "sealed"])
@pytest.mark.parametrize("view", VIEWS)
def test_the_report_is_accessible_and_asks_for_nothing(browser, which, request, tmp_path, view):
    file = write_report(request.getfixturevalue(which), tmp_path / "report.html")
    with Opened(browser, view, bypass_csp=True) as opened:
        opened.page.goto(file.as_uri())
        assert opened.asked == [file.as_uri()]
        assert opened.errors == []
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(opened.page) == []
        if view == "desktop":
            keep(opened.page, "report" if which == "run" else "report-sealed")


def test_the_report_prints_whole_charts(browser, tmp_path):
    assert dynadp("demo", "--mechanism", "primal", "--out", tmp_path / "demo").exit_code == 0
    file = write_report(tmp_path / "demo" / "primal", tmp_path / "report.html")
    with Opened(browser) as opened:
        opened.page.goto(file.as_uri())
        opened.page.emulate_media(media="print")
        opened.page.set_viewport_size(
            {"width": 690, "height": 1000}
        )  # what A4 leaves between its margins
        for box in opened.page.locator("figure svg").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().right)"
        ):
            assert box <= 690
        uncut = "all => all.every((one) => getComputedStyle(one).breakInside === 'avoid')"
        assert opened.page.locator("figure").evaluate_all(uncut)
        assert opened.page.locator(".every-page").is_visible()
        printed = opened.page.pdf(prefer_css_page_size=True)
        assert printed.startswith(b"%PDF")
        assert opened.page.evaluate("window.broken") == []
