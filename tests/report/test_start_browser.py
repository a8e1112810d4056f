"""The whole way from a CSV's header to a finished report in a real browser, by mouse and by
keyboard alone; and what is read of the files before the run, as `strace` sees it.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.browser import VIEWS, Opened, chromium, faults, keep, served
from support.traced import commands, tracer

pytestmark = pytest.mark.slow
HEADER = "age,hours,sex,income\n"
NODES = ("north", "south", "west")
SCREENS = ("wide", "wide-dark", "narrow", "narrow-dark")
KEPT = (("columns", "wide"), ("done", "wide"), ("trust", "narrow-dark"))  # pictures of docs


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def place(tmp_path):
    for name in NODES:
        rows = (
            f"{17 + i % 70},{i % 90},{'fm'[i % 2]},{('low', 'high')[i % 5 > 3]}" for i in range(300)
        )
        (tmp_path / f"{name}.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return tmp_path


def begun(opened, address):
    opened.page.goto(address)
    opened.until("document.body.dataset.ready === 'yes'")


def step(opened, name):
    opened.until("name => document.querySelector('[aria-current]').dataset.step === name", name)


def looked_at(opened, name, view):
    """Accessible, and no wider than the screen."""
    assert faults(opened.page) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if (name, view) in KEPT:
        keep(opened.page, f"start-{name}-{view}")


def finished(opened, place):
    """Nothing went wrong, nothing left, and the run is there."""
    assert [
        url for url in opened.asked if not url.startswith(("http://127.0.0.1:", "data:,"))
    ] == []
    assert opened.errors == []
    assert opened.page.evaluate("window.broken") == []
    assert (place / "study/runs/first/model.json").is_file()
    assert "<h1" in (place / "study/runs/first/report.html").read_text()


@pytest.mark.parametrize("view", SCREENS)
def test_the_whole_way_by_mouse(browser, place, view):
    with (
        served(command="start", token=place / "token", folder=place) as (address, _),
        Opened(browser, view, bypass_csp=True) as opened,
    ):
        page = opened.page
        begun(opened, address)
        for name in NODES:
            page.get_by_role("button", name=f"{name}.csv", exact=True).click()
        looked_at(opened, "rows", view)
        page.click("#next")
        step(opened, "answer")
        page.select_option("#q-label", "income")
        page.fill("#q-negative", "low")
        page.fill("#q-positive", "low")
        page.click("#next")
        opened.until(
            "document.querySelector('#error-positive').innerText.includes('two different')"
        )
        page.fill("#q-positive", "high")
        page.click("#next")
        step(opened, "columns")
        page.click("#next")
        opened.until("document.querySelector('#problem').innerText.includes('at least one')")
        page.select_option("#q-column-age", "age")
        page.select_option("#q-column-hours", "range")
        page.get_by_label("hours: bounds or values").fill("0:99")
        page.select_option("#q-column-sex", "values")
        page.get_by_label("sex: bounds or values").fill("f, m")
        opened.until("document.querySelector('#note-column-age').innerText.includes('0 to 110')")
        looked_at(opened, "columns", view)
        page.click("#next")
        step(opened, "people")
        page.click("#back")  # and answers are still there
        step(opened, "columns")
        assert page.get_by_label("hours: bounds or values").input_value() == "0:99"
        page.click("#next")
        step(opened, "people")
        page.reload()
        opened.until("document.body.dataset.ready === 'yes'")
        step(opened, "people")
        page.click("#next")
        step(opened, "network")
        page.fill("#q-counts", "north=300 south=300 west=300")
        opened.until("document.querySelector('#drawn svg')?.innerHTML.includes('300 rows')")
        looked_at(opened, "nodes", view)
        page.click("#next")
        step(opened, "trust")
        page.get_by_text("only the sum over all nodes").click()
        opened.until("document.querySelector('#q-honest')")
        looked_at(opened, "trust", view)
        page.click("#next")
        step(opened, "budget")
        opened.until("document.querySelector('#note-epsilon').innerText.includes('in 100')")
        page.click("#next")
        step(opened, "ledgers")
        page.click("#next")
        step(opened, "run")
        for name in ("write", "cap", "check", "run", "report"):
            page.click(f"[data-deed={name}]:not(:disabled)")
            opened.until(
                "name => document.querySelector(`[data-deed=${name}]`)?.closest('li')"
                ".querySelector('.state').innerText === 'done'",
                name,
            )
        opened.until("document.querySelector('#to-report')")
        looked_at(opened, "done", view)
        finished(opened, place)
        page.click("#to-report")
        opened.until("document.querySelector('h1')")
        assert "epsilon" in opened.text("body")


@pytest.mark.parametrize("view", ["wide", "narrow-dark"])
def test_the_whole_way_by_keyboard(browser, place, view):
    with (
        served(command="start", token=place / "token", folder=place) as (address, _),
        Opened(browser, view) as opened,
    ):
        page, press, write = opened.page, opened.page.keyboard.press, opened.page.keyboard.type
        page.mouse.click = page.click = None  # nobody touches it

        def reach(selector):
            for _ in range(80):
                if page.evaluate("s => document.activeElement?.matches(s)", selector):
                    return
                press("Tab")
            raise AssertionError(f"never came to {selector}")

        def fill(selector, text):
            reach(selector)
            press("Control+a")
            write(text)

        begun(opened, address)
        fill("#q-nodes", "north=north.csv south=gone.csv")
        press("Enter")
        opened.until("document.querySelector('#error-nodes').innerText.includes('gone.csv')")
        assert page.evaluate("document.activeElement.id") == "q-nodes"
        fill("#q-nodes", "north=north.csv south=south.csv west=west.csv")
        press("Enter")
        step(opened, "answer")
        reach("#q-label")
        write("income")
        opened.until("document.querySelector('#q-negative')")
        fill("#q-negative", "low")
        opened.until("document.querySelector('#q-positive')")
        fill("#q-positive", "high")
        press("Enter")
        step(opened, "columns")
        reach("#q-column-age")
        write("age: ")
        reach("#q-column-hours")
        write("a number")
        press("Tab")
        write("0:99")
        press("Enter")
        for name in ("people", "network", "trust"):
            step(opened, name)
            reach("#fields input, #fields select")
            if name == "trust" or name == "people":
                reach("#next")
            press("Enter")
        step(opened, "budget")
        fill("#q-epsilon", "0.8")
        press("Enter")
        step(opened, "ledgers")
        reach("#next")
        press("Enter")
        step(opened, "run")
        names = ("write", "cap", "check", "run", "report")
        reach("[data-deed=write]:not(:disabled)")
        for name in names:
            # the focus comes to the next one by itself
            opened.until("name => document.activeElement.dataset.deed === name", name)
            press("Enter")
            opened.until(
                "name => document.querySelector(`[data-deed=${name}]`)?.closest('li')"
                ".querySelector('.state').innerText === 'done'",
                name,
            )
        opened.until("document.activeElement.id === 'to-report'")
        assert opened.text("#told") == "Write the report: done"
        finished(opened, place)
        assert "epsilon = 0.8 " in (place / "study/run.toml").read_text()


def test_one_file_for_all_and_answers_that_change(browser, tmp_path):
    """By mouse: its columns have names that differ in a blank alone, and its check fails first."""
    rows = (f"{'ns'[i % 2]},{i % 50},1,{('no', 'yes')[i % 3 > 1]}" for i in range(60))
    (tmp_path / "all.csv").write_text("site,a b,a-b,ill\n" + "\n".join(rows) + "\n")
    with (
        served(command="start", token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser, "narrow", bypass_csp=True) as opened,
    ):
        page = opened.page

        def onwards(*names):
            for name in names:
                page.click("#next")
                step(opened, name)

        def does(name, how):
            page.click(f"[data-deed={name}]:not(:disabled)")
            opened.until(
                "([name, how]) => document.querySelector(`[data-deed=${name}]`)?.closest('li')"
                ".querySelector('.state').innerText === how",
                [name, how],
            )

        begun(opened, address)
        page.get_by_role("button", name="all.csv", exact=True).click()
        assert page.input_value("#q-nodes") == "all=all.csv"
        page.check("#for-all")
        assert page.input_value("#q-nodes") == "all.csv"
        opened.until("document.querySelector('#q-node_column')")
        page.select_option("#q-node_column", "site")
        opened.until("document.querySelector('#q-node_names')")
        page.fill("#q-node_names", "n west")
        looked_at(opened, "all", "narrow")
        onwards("answer")
        page.select_option("#q-label", "ill")
        page.fill("#q-negative", "no")
        page.fill("#q-positive", "yes")
        onwards("columns")
        page.get_by_label("a-b: what is it", exact=True).select_option("range")
        page.get_by_label("a-b: bounds or values", exact=True).fill("0-9")
        # not beside "a b", and in few words
        opened.until("document.querySelector('#error-column-a-b-').innerText")
        assert opened.text("#error-column-a-b-") == (
            "column 'a-b': '0-9' says no bounds; expected such as 0:120"
        )
        assert not page.locator("#error-column-a-b").inner_text()
        page.get_by_label("a-b: bounds or values", exact=True).fill("0:9")
        onwards("people", "network", "trust", "budget", "ledgers")
        page.get_by_text("a trial with seeded noise").click()
        opened.until("!document.querySelector('#q-cap')")
        onwards("run")
        does("write", "done")
        does("check", "failed")  # no row is of a node "west"
        for _ in range(9):
            page.click("#back-do, #back:visible")
            if page.locator("#q-node_names").count():
                break
        page.fill("#q-node_names", "n s")
        onwards("answer", "columns", "people", "network", "trust", "budget", "ledgers", "run")
        opened.until("document.querySelector('#stale').innerText.includes('write them again')")
        assert page.locator("[data-deed=check]").is_disabled()  # it would be of the older answers
        assert faults(page) == []
        page.click("[data-deed=write]")
        opened.until("!document.querySelector('#stale').innerText")
        assert opened.text("#h-files") == "What was written"
        does("check", "done")
        does("run", "done")
        assert opened.errors == []


def test_the_browsers_back_goes_a_step_back_and_any_file_can_be_pressed(browser, tmp_path):
    rows = "age,hours,ill\n" + "".join(f"{20 + i},{i},{('no', 'yes')[i % 2]}\n" for i in range(40))
    for name in ("it's.csv", "nørd syd.csv"):
        (tmp_path / name).write_text(rows)
    with (
        served(command="start", token=tmp_path / "token", folder=tmp_path) as (address, _),
        Opened(browser, "narrow", bypass_csp=True) as opened,
    ):
        page = opened.page
        begun(opened, address)
        page.get_by_role("button", name="it's.csv", exact=True).click()
        page.check("#for-all")
        page.uncheck("#for-all")
        page.get_by_role("button", name="nørd syd.csv", exact=True).click()
        both = "#fields .found [aria-pressed=true]"
        assert page.locator(both).all_inner_texts() == ["it's.csv", "nørd syd.csv"]
        page.click("#next")
        step(opened, "answer")
        page.select_option("#q-label", "ill")
        page.fill("#q-negative", "no")
        page.fill("#q-positive", "yes")
        page.click("#next")
        step(opened, "columns")
        page.select_option("#q-column-age", "age")
        page.select_option("#q-column-hours", "range")
        page.get_by_label("hours: bounds or values").fill("9:0")
        page.focus("#next")
        page.keyboard.press("Enter")
        wrong = "hours: bounds or values"  # where the mistake is, not what kind of column it is
        opened.until("name => document.activeElement.getAttribute('aria-label') === name", wrong)
        page.get_by_label(wrong).fill("0:9")
        page.click("#next")
        step(opened, "people")
        page.go_back()
        step(opened, "columns")
        assert page.get_by_label(wrong).input_value() == "0:9"
        page.go_back()
        step(opened, "answer")
        page.go_forward()
        step(opened, "columns")
        page.click("#go-ledgers")
        step(opened, "ledgers")
        page.click("#next")
        step(opened, "run")
        page.fill("#folder", "it's.csv/study")
        opened.until("document.querySelector('#folder-error').innerText.includes('is a file')")
        page.reload()  # which was no dead end
        opened.until("document.body.dataset.ready === 'yes'")
        step(opened, "run")
        page.fill("#folder", "it's mine")
        opened.until("!document.querySelector('#folder-error').innerText")
        page.click("[data-deed=write]:not(:disabled)")
        opened.until("document.querySelector('[data-deed=cap]:not(:disabled)')")
        (tmp_path / "it's.csv").write_text("ill\n")  # as a file may change meanwhile
        page.reload()
        opened.until("document.body.dataset.ready === 'yes'")
        step(opened, "rows")
        assert "share 1 of at least 2 columns" in opened.text("#error-nodes")
        assert opened.errors == []
        assert (tmp_path / "it's mine/run.toml").is_file()


def post(address, where, **given):
    body = json.dumps({"folder": "study", **given}).encode()
    asked = Request(f"{address}{where}", body, {"content-type": "application/json"})
    with urlopen(asked) as reply:
        return json.load(reply)


def get(address, where):
    with urlopen(f"{address}{where}") as reply:
        return reply.read().decode()


def carried_out(address, name):
    post(address, "api/do", deed=name)
    while True:
        deeds = {one["name"]: one for one in post(address, "api/deeds")["deeds"]}
        assert deeds[name]["state"] != "failed", deeds[name]["output"]
        if deeds[name]["state"] == "done":
            return


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
@pytest.mark.parametrize("one_file", [False, True])
def test_no_cell_is_read_but_by_the_run_at_the_file_system(place, one_file):
    """Of the server and all that it starts, from the first question to the report and the pages of
    the run: but for `dynadp train`, headers alone, and each byte of them by itself.
    """
    rest = {"label": "income", "negative": "low", "positive": "high", "column age": "age"}
    rest |= {"counts": "north=300 south=300 west=300", "seed": "simulation"}
    if one_file:
        parts = [(place / f"{name}.csv").read_text().splitlines()[1:] for name in NODES]
        rows = [f"{name},{row}" for name, part in zip(NODES, parts, strict=True) for row in part]
        (place / "all.csv").write_text("\n".join([f"site,{HEADER.strip()}", *rows]) + "\n")
        answers = {"nodes": "all.csv", "node_column": "site", "node_names": " ".join(NODES)}
    else:
        answers = {"nodes": " ".join(f"{name}={name}.csv" for name in NODES)}
    answers |= rest
    broken = place / "broken.csv"  # the other quote stands far below, in a row
    broken.write_text('age,"hours,sex,income\n' + "40,40,f,low\n" * 50 + '41,"40,f,low\n')
    with served(
        command="start", token=place / "token", folder=place, before=tracer(place / "trace")
    ) as (address, _):
        get(address, "api/files")
        for nodes in ("gone.csv", "a=broken.csv", "broken.csv", "north=north.csv x=gone.csv"):
            (one,) = post(address, "api/ask", answers={**answers, "nodes": nodes})["asked"]
            assert one["error"]
        for more in ({"label": "sick"}, {"trust": "sealed"}, {"epsilon": "x"}, {"person": "sex"}):
            post(address, "api/ask", answers={**answers, **more})
        assert post(address, "api/ask", answers=answers)["complete"]
        post(address, "api/write", answers=answers)
        for where in ("explore/", "replay/"):
            with pytest.raises(HTTPError, match="409"):
                get(address, where)  # they are of a run
        carried_out(address, "check")
        carried_out(address, "run")
        carried_out(address, "report")
        assert "<h1" in get(address, "report?folder=study")
        assert "3 nodes" in get(address, "replay/")
        assert "<h1" in get(address, "explore/")
        assert post(address, "api/deeds")["report"]
    headers = {"broken.csv": 'age,"hours,sex,income\n', "all.csv": f"site,{HEADER}"}
    counted, trained = 0, 0
    for command in commands(place / "trace"):
        if '"train"' in command.line:
            trained += len(command.more)
            continue
        assert command.more == [], command.line
        for (path, _), text in command.bytes.items():
            header = headers.get(Path(path).name, HEADER)
            assert text == header * (len(text) // len(header)), (command.line, text)
            counted += 1
    assert counted >= 2
    assert trained > 0  # the same trace sees a command that does read rows


def test_the_trace_sees_every_way_to_read(tmp_path):
    """Or the test above would see nothing."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not here")
    (tmp_path / "a.csv").write_text("secret\n" * 9)
    ways = {
        "read": "f = open('a.csv', 'rb', 0); f.read(7)",
        "buffer": "f = open('a.csv'); f.readline()",
        "pread": "import os; f = open('a.csv'); os.pread(f.fileno(), 1, 60)",
        "mmap": "import mmap; f = open('a.csv', 'rb'); mmap.mmap(f.fileno(), 0, prot=1)",
        "sendfile": "import os; f = open('a.csv'); g = open('b', 'wb'); "
        "os.sendfile(g.fileno(), f.fileno(), 0, 9)",
        "copy": "import os; f = open('a.csv'); g = open('b', 'wb'); "
        "os.copy_file_range(f.fileno(), g.fileno(), 9)",
        "thread": "from threading import Thread; "
        "t = Thread(target=lambda: open('a.csv').read()); t.start(); t.join()",
        "child": "import subprocess; subprocess.run(['cat', 'a.csv'], stdout=-3)",
        "link": "import os; os.symlink('a.csv', 'c'); open('c').read()",
    }
    for name, code in ways.items():
        line = [*tracer(tmp_path / name), sys.executable, "-S", "-c", code]
        subprocess.run([str(part) for part in line], check=True, cwd=tmp_path)
        found = [call for command in commands(tmp_path / name) for call in command.more]
        assert found, name
    line = [*tracer(tmp_path / "one"), sys.executable, "-S", "-c"]
    code = "f = open('a.csv', 'rb', 0); [f.read(1) for _ in range(7)]"
    subprocess.run([str(part) for part in [*line, code]], check=True, cwd=tmp_path)
    (one,) = [command for command in commands(tmp_path / "one") if command.bytes]
    assert (list(one.bytes.values()), one.more) == (["secret\n"], [])


def test_views_are_those_that_are_promised():
    assert {VIEWS[name][0] for name in SCREENS} == {1440, 390}
