"""A run that is played, and runs beside each other, in a real browser."""

import json
import re
import shlex

import pytest

from support.browser import Opened, chromium, faults, keep, served
from support.run_folders import make_job, make_network, make_run
from support.typed import dynadp

pytestmark = pytest.mark.slow
SCREENS = ("wide", "wide-dark", "narrow", "narrow-dark")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    place = tmp_path_factory.mktemp("replayed")
    run = make_run(place, public=True, rows=3000)
    with served(run, command="replay", token=place / "token") as (found, _):
        yield found


def ready(opened, address):
    opened.page.goto(address)
    opened.until("document.body.dataset.ready === 'yes'")


def frame(opened):
    return int(opened.page.evaluate("document.body.dataset.frame"))


@pytest.mark.parametrize("view", SCREENS)
def test_the_replay_is_accessible_and_fits(browser, address, view):
    with Opened(browser, view, bypass_csp=True) as opened:
        ready(opened, address)
        opened.page.keyboard.press("End")
        for _ in range(16):
            opened.page.keyboard.press("ArrowLeft")
        assert faults(opened.page) == []
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert [url for url in opened.asked if not url.startswith((address, "data:,"))] == []
        assert opened.errors == []
        if view in ("wide", "narrow-dark"):
            keep(opened.page, f"replay-{view}")


def test_it_is_played_by_keys_alone(browser, address):
    with Opened(browser) as opened:
        ready(opened, address)
        press = opened.page.keyboard.press
        assert frame(opened) == 0
        press("ArrowRight")
        press("ArrowRight")
        assert frame(opened) == 2
        assert "Round 3 of 20" in opened.text("#words")
        (third,) = opened.page.get_by_role("row", name=re.compile("^3 ")).all()
        spent = third.locator("td").nth(3).inner_text()  # as the table has it
        assert f"epsilon so far {spent} of 1.999" in opened.text("#words")
        press("ArrowLeft")
        assert frame(opened) == 1
        press("End")
        assert frame(opened) == 19
        assert "epsilon so far 1.999 of 1.999" in opened.text("#words")
        press("Home")
        press(" ")
        assert opened.text("#play") == "Pause"
        opened.until("Number(document.body.dataset.frame) > 3")
        press(" ")
        stopped = frame(opened)
        opened.page.wait_for_timeout(500)
        assert (frame(opened), opened.text("#play")) == (stopped, "Play")
        opened.page.locator("#scrub").focus()
        press("End")
        assert frame(opened) == 19
        assert opened.page.locator("#scrub").get_attribute("aria-valuetext") == "round 20 of 20"
        press("Tab")
        opened.page.locator("#play").focus()
        press("Enter")  # from the end it begins anew, and ends by itself
        opened.until("document.querySelector('#play').innerText === 'Play'")
        assert frame(opened) == 19
        assert opened.page.evaluate("window.broken") == []


def picture(opened):
    return opened.page.evaluate("document.querySelector('#network').toDataURL()")


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_less_motion_means_steps(browser, address, motion):
    with Opened(browser, reduced_motion=motion) as opened:
        ready(opened, address)
        opened.page.select_option("#speed", "2")  # half a second a round
        opened.page.locator("#play").click()
        seen = opened.page.evaluate(
            """async () => {
              const seen = new Set();
              const canvas = document.querySelector("#network"), frames = document.body.dataset;
              const first = frames.frame;
              while (frames.frame === first) {
                seen.add(canvas.toDataURL());
                await new Promise((done) => requestAnimationFrame(done));
              }
              return seen.size;
            }"""
        )
        assert (seen <= 2) == (motion == "reduce")


@pytest.mark.parametrize("view", ["wide", "narrow-dark"])
def test_what_a_neighbour_sees_comes_from_attacks(browser, address, view):
    with Opened(browser, view, bypass_csp=True) as opened:
        ready(opened, address)
        found = "!document.querySelector('#neighbour').hidden"
        opened.until(f"{found} || !document.querySelector('#attack').hidden")
        if not opened.page.evaluate(found):  # nobody asked this server before
            opened.page.locator("#attack").click()
        opened.until(found)
        cells = opened.page.locator("#neighbour tbody tr")
        assert cells.count() == 11
        assert opened.page.locator("#neighbour tbody td:nth-child(3).read").count() == 11
        foot = opened.text("#neighbour tfoot")
        assert "11.0 of 11" in foot
        assert "was it in, or its opposite? Right of 100" in foot
        assert "proved: at most" in foot
        assert faults(opened.page) == []
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert opened.errors == []
        if view == "wide":
            keep(opened.page, f"neighbour-{view}", of="section:has(#h-neighbour)")


def test_a_run_that_goes_on_is_followed(browser, tmp_path):
    folder, plan = make_network(tmp_path / "launch", finished=False, rounds=2)
    with (
        served(folder, command="replay", token=tmp_path / "token") as (found, _),
        Opened(browser, "narrow-dark") as opened,
    ):
        ready(opened, found)
        assert "Round 2 of" in opened.text("#words")
        beyond = """() => {
          const canvas = document.querySelector("#c-budget"), { width, height } = canvas;
          const found = canvas.getContext("2d").getImageData(width - 4, 0, 4, height).data;
          return found.some((value) => value > 0);
        }"""
        assert not opened.page.evaluate(beyond)  # rounds to come are within the chart
        for node in ("north", "south", "west"):
            line = {"round": 3, "node": node, "alpha": plan.alpha, "disagreement": 1, "change": 0.1}
            with open(folder / node / "rounds.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        opened.until("document.body.dataset.done === '3'")
        assert f"Round 3 of {plan.rounds}" in opened.text(
            "#words"
        )  # who was at the end stays there
        opened.page.keyboard.press("Home")
        assert "Round 1 of" in opened.text("#words")
        assert opened.errors == []


def test_without_a_script_there_is_a_table(browser, address):
    with Opened(browser, java_script_enabled=False) as opened:
        opened.page.goto(address)
        assert opened.page.locator("tbody tr").count() == 12
        assert not opened.page.locator("#play-section").is_visible()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    home = tmp_path_factory.mktemp("compared")
    make_job(home, seed=3, public=True, rows=3000)
    folders = [home / "runs" / f"eps-{epsilon}" for epsilon in (0.1, 1, 4)]
    for folder in folders:
        epsilon = folder.name.removeprefix("eps-")
        line = f"train {home}/run.toml --epsilon {epsilon} --out {folder}"
        assert dynadp(*shlex.split(line)).exit_code == 0
    assert dynadp("compare", *folders, "--html", home / "compare.html").exit_code == 0
    return home / "compare.html"


@pytest.mark.parametrize("view", SCREENS)
def test_compared_runs_are_accessible_and_ask_for_nothing(browser, compared, view):
    with Opened(browser, view, bypass_csp=True) as opened:
        opened.page.goto(compared.as_uri())
        assert opened.asked in ([compared.as_uri()], [compared.as_uri(), "data:,"])
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert faults(opened.page) == []
        if view == "wide":
            keep(opened.page, "compare")
