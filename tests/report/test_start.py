"""The wizard: what it asks and does, and that it reads no row before a command that does."""

import os
import shutil
import sys
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from dynadp.cli import main
from dynadp.report.start.app import Wizard
from dynadp.report.start.deeds import Deeds
from dynadp.report.start.wizard import answered, offered
from dynadp.runs.local import LocalRun
from dynadp.runs.run_file import load_run_file, load_schema
from support.asking import TOKEN, Client
from support.typed import dynadp

SECRET = "Maria-1867"
HEADER = "age,sex,town,ill\n"
ANSWERS = {
    "nodes": "north=north.csv south=south.csv west=west.csv",
    "label": "ill",
    "negative": "no",
    "positive": "yes",
    "column age": "age",
    "column sex": "f,m",
}

SEX_LAST = {"column sex": "", "column town": "age"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Three files whose rows no test may see again."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south", "west"):
        rows = [f"{20 + i},{'fm'[i % 2]},{SECRET},{('no', 'yes')[i % 3 > 1]}" for i in range(30)]
        (tmp_path / f"{name}.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return tmp_path


def opened_here(work, *names):
    """How often each file was opened while ``work`` ran, by Python's own audit events."""
    seen, on = dict.fromkeys(names, 0), True

    def hook(event, given):
        if on and event == "open" and isinstance(given[0], str | bytes | os.PathLike):
            name = Path(os.fsdecode(given[0])).name
            if name in seen:
                seen[name] += 1

    sys.addaudithook(hook)
    try:
        work()
    finally:
        on = False
    return seen


def test_answers_come_to_files_that_load(place):
    found = answered("study", ANSWERS)
    assert found.start is not None
    assert [one.question.name for one in found.asked] == [
        *("nodes", "label", "kind", "negative", "positive"),
        *("column age", "column sex", "column town"),
        *("person", "graph", "counts", "trust", "epsilon", "delta", "seed", "cap"),
    ]
    found.start.write("study")
    assert load_run_file("study/run.toml").privacy.epsilon == 1.0
    assert [c.name for c in load_schema("study/schema.toml").columns] == ["age", "sex"]


def test_everything_that_is_asked_stands_in_the_files(place):
    more = {
        "person": "town",
        "rows_per_person": "2",
        "silos_per_person": "3",
        "graph": "north:south south:west",
        "counts": "north=30 south=30 west=30",
        "trust": "sealed",
        "honest": "2",
        "epsilon": "2",
        "delta": "1e-6",
        "cap": "5",
    }
    found = answered("study", {**ANSWERS, **more})
    assert found.start is not None, found.problem
    assert found.start.cap == 5
    found.start.write("study")
    run = load_run_file("study/run.toml")
    privacy = run.privacy
    assert (privacy.person, privacy.rows_per_person, privacy.silos_per_person) == ("town", 2, 3)
    assert run.topology.edges == (("north", "south"), ("south", "west"))
    assert [node.rows for node in run.nodes] == [30, 30, 30]
    assert (privacy.mechanism, privacy.honest) == ("sealed", 2)
    assert (privacy.epsilon, privacy.delta) == (2.0, 1e-6)
    assert "30 rows" in found.network


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (HEADER.encode(), ""),
        # with a quote too many: the other one may stand in a row
        (b'age,sex,town,"ill\n', "is not closed in it"),
        (b'age,sex,town,"ill\r', "is not closed in it"),
    ],
)
def test_no_byte_after_the_header_is_read(place, monkeypatch, header, error):
    """The kernel counts: the files are pipes, and what was not read is still in them."""
    names = [f"{name}.csv" for name in ("north", "south", "west")]
    ends, rows = {}, f'40,f,"{SECRET}",no\n'.encode() * 50
    for name in names:
        (place / name).write_bytes(header + rows)
    times = opened_here(lambda: answered("study", ANSWERS), *names)
    assert times["north.csv"] > 0
    for name in names:
        (place / name).unlink()
        os.mkfifo(place / name)
        ends[name] = os.open(place / name, os.O_RDWR | os.O_NONBLOCK)
        os.write(ends[name], header * times[name] + rows)
    monkeypatch.setattr(Path, "is_file", lambda path: path.exists() and path.name in names)
    found = []
    # what reads ahead finds the pipe empty the next time, and would wait for ever
    reader = Thread(target=lambda: found.append(answered("study", ANSWERS)), daemon=True)
    reader.start()
    reader.join(30)
    try:
        assert not reader.is_alive(), "it read more than headers"
        assert (found[0].start is None) == bool(error)
        assert error in found[0].asked[0].error
        for name, end in ends.items():
            assert os.read(end, 1 << 16) == rows, name
    finally:
        for end in ends.values():
            os.close(end)


def test_a_check_by_headers_reads_no_row_and_plans(place, monkeypatch):
    from dynadp.data import sources

    def refuse(*_, **__):
        raise AssertionError("rows were read")

    counts = "north=30 south=30 west=30"
    answered("study", {**ANSWERS, "counts": counts, "seed": "simulation"}).start.write("study")
    answered("open", {**ANSWERS, "seed": "simulation"}).start.write("open")
    monkeypatch.setattr(sources.Source, "batches", refuse)
    monkeypatch.setattr(sources.Source, "coded_batches", refuse)
    found = LocalRun.load("study/run.toml", headers=True).check()
    assert found.plan is not None
    assert {node: own.rows for node, own in found.nodes.items()} == dict.fromkeys(
        ("north", "south", "west"), 30
    )
    with pytest.raises(Exception, match="rows = N is not declared"):
        LocalRun.load("open/run.toml", headers=True)
    (place / "south.csv").write_text("age,ill\n")
    with pytest.raises(Exception, match="no column 'sex'"):
        LocalRun.load("study/run.toml", headers=True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nodes", "north=gone.csv", "there is no file gone.csv"),
        ("nodes", "north=north.parquet", "no more than headers"),
        ("nodes", "north='north.csv", "a quote is never closed"),
        ("label", "sick", "there is no column 'sick'"),
        ("column sex", "0:x", "says no bounds"),
        ("person", "age", "leave it out among the columns"),
        ("graph", "circle", "neither one of ring"),
        ("graph", "north:south", "falls into 2 components"),
        ("graph", "north:east", "is no pair of nodes"),
        ("counts", "north=30", "nothing was given for south, west"),
        ("counts", "north=many south=1 west=1", "expected a whole number"),
        ("counts", "east=1", "expected NAME=N"),
        ("trust", "secret", "is none of open, sealed"),
        ("epsilon", "-1", "finite number above 0"),
        ("delta", "2", "above 0 and below 1"),
        ("cap", "0.5", "below the run's epsilon"),
    ],
)
def test_an_error_stands_beside_its_question_and_the_others_stay(place, name, text, words):
    found = answered("study", {**ANSWERS, name: text})
    wrong = {one.question.name: one.error for one in found.asked if one.error}
    assert list(wrong) == [name]
    assert words in wrong[name]
    assert found.start is None
    assert SECRET not in str(wrong)
    if found.asked[-1].question.name != name:  # it has a default, so what follows is asked too
        assert found.asked[-1].question.name == "cap"


HEADERS = {
    "bom": "\ufeffage,sex,ill\n",
    "semicolons": "age;sex;ill\r\n",
    "quotes": '"age","sex, as declared","the ""ill"""\n',
    "no rows": "age,sex,ill",
    "blanks": "age, sex, ill\n",
}


@pytest.mark.parametrize("name", HEADERS)
def test_strange_headers_come_to_files_that_load(place, name):
    Path("odd.csv").write_text(HEADERS[name])
    given = {"nodes": "n=odd.csv", "negative": "no", "positive": "yes"}
    asked = {one.question.name: one.question for one in answered("study", given).asked}
    age, sex, ill = asked["label"].choices
    given |= {"label": ill, f"column {age}": "age", f"column {sex}": "f,m"}
    given |= {"counts": "n=30", "seed": "simulation"}
    found = answered("study", given)
    assert found.start is not None, found.problem
    found.start.write("study")
    assert load_schema("study/schema.toml").raw_columns == (age, sex, ill)
    assert LocalRun.load("study/run.toml", headers=True).check().plan is not None


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("age,sex,age,ill\n", "columns 1 and 3 of its first line have the same name"),
        ("age,,ill\n", "empty names or numbers"),
        ("age,41,ill\n", "empty names or numbers"),
        ("\nage,ill\n", "the first line is empty"),
        ("", "the first line is empty"),
        ('age,"ill\n', "a quote of its first line is not closed in it"),
        ('"age\nin years",sex,ill\n', "a quote of its first line is not closed in it"),
        ('age,"sex"s",ill,"b"\n', "a quote of its first line is not closed in it"),
        ('age,"sex"s"",ill\n', "the quotes of its first line do not match"),
    ],
)
def test_headers_that_cannot_be_are_refused_at_once(place, header, words):
    Path("odd.csv").write_text(header)
    (one,) = answered("study", {**ANSWERS, "nodes": "n=odd.csv"}).asked
    assert words in one.error


def test_blanks_around_the_name_of_a_column_need_not_be_typed(place):
    Path("odd.csv").write_text("age, who, ill\n")
    more = {"nodes": "n=odd.csv", "label": "ill", "person": "who"}
    found = answered("study", {**ANSWERS, **more})
    assert found.start is not None, found.problem
    assert (found.start.answer.name, found.start.person) == (" ill", " who")


def test_many_columns_are_few_words(place):
    """Their names are listed where each is asked about."""
    names = [f"column {i}" for i in range(3000)]
    Path("wide.csv").write_text(",".join([*names, "ill"]) + "\n")
    given = {**ANSWERS, "nodes": "n=wide.csv", "column column 7": "age"}
    found = answered("study", given)
    assert found.start is not None
    (line,) = found.asked[1].question.shown
    assert line.endswith("column 39 and 2,961 more.")
    assert answered("study", {**given, "label": "x"}).asked[1].error.endswith("and 2,961 more")


def test_what_a_terminal_says_between_two_questions_stands_beside_its_column(place):
    asked = {one.question.name: one for one in answered("study", ANSWERS | SEX_LAST).asked}
    assert "0 to 110" in asked["column town"].note
    assert asked["person"].to_json()["shown"] == []
    assert [name for name, _ in asked["person"].to_json()["choices"]] == ["", "sex"]
    full = {**ANSWERS, "column town": "hash:8"}
    asked = {one.question.name: one.to_json() for one in answered("study", full).asked}
    assert "No column is left for that" in asked["person"]["shown"][0]
    assert asked["person"]["choices"] == [("", "every row is another person's")]
    assert asked["seed"]["control"] == "one of"


def test_a_step_without_any_column_says_so(place):
    left_out = {name: text for name, text in ANSWERS.items() if not name.startswith("column")}
    assert "declare at least one" in answered("study", left_out).problem


def test_files_are_offered_by_name_alone(place):
    (place / "deep").mkdir()
    (place / "deep" / "more.tsv").write_text("a\n")
    (place / "notes.txt").write_text(SECRET)
    (place / ".venv").mkdir()
    for name in (".venv/hidden.csv", ".hidden.csv"):
        (place / name).write_text("a\n")
    (place / os.fsdecode(b"no-text-\xff.csv")).write_text("a\n")  # it would break the page
    found = []
    times = opened_here(lambda: found.extend(offered(Path())), "north.csv", "more.tsv")
    assert found == ["north.csv", "south.csv", "west.csv", "deep/more.tsv"]
    assert set(times.values()) == {0}


def test_what_is_done_is_done_in_order_and_replaces_nothing(place):
    start, deeds = answered("study", ANSWERS).start, Deeds(Path("study"))
    with pytest.raises(Exception, match="nothing to do that is called"):
        deeds.do("run")
    deeds.write(start)
    deeds.write(answered("study", {**ANSWERS, "epsilon": "0.5"}).start)  # nothing was done yet
    assert "epsilon = 0.5 " in Path("study/run.toml").read_text()
    assert [deed.name for deed in deeds.all] == ["write", "cap", "check", "run", "report"]
    with pytest.raises(Exception, match="first comes: Check"):
        deeds.do("run")
    Path("study/run.toml").write_text("# mine\n")
    with pytest.raises(Exception, match="was changed since it was written"):
        deeds.write(start)
    assert Path("study/run.toml").read_text() == "# mine\n"
    with pytest.raises(Exception, match="nothing is overwritten"):
        Deeds(Path("study")).write(start)


def states(deeds):
    return [deed.state for deed in deeds.all]


def test_answers_may_change_until_a_run_begins(place):
    deeds = Deeds(Path("study"))
    deeds.write(answered("study", ANSWERS).start)
    deeds.all[1].state, deeds.all[2].state = "done", "failed"
    other = answered("study", {**ANSWERS, "epsilon": "0.5"}).start
    deeds.write(other)
    assert "epsilon = 0.5 " in Path("study/run.toml").read_text()
    assert states(deeds) == ["done", *["waiting"] * 4]  # caps and checks of the older ones too
    deeds.all[1].state = "running"
    with pytest.raises(Exception, match="wait until it ends"):
        deeds.write(other)
    deeds.all[1].state = "done"
    deeds.run.mkdir(parents=True)
    (deeds.run / "run.json").write_text("{}")
    with pytest.raises(Exception, match="was begun already; choose another folder"):
        deeds.write(answered("study", ANSWERS).start)
    assert "epsilon = 0.5 " in Path("study/run.toml").read_text()


def test_a_server_that_is_started_again_goes_on_where_the_last_one_was(place):
    start = answered("study", {**ANSWERS, "seed": "simulation"}).start
    run = Path("study/runs/first")
    Deeds(Path("study")).write(start)

    def again():
        deeds = Deeds(Path("study"))
        deeds.write(start)
        return deeds

    assert "Found" in again().all[0].output
    assert states(again()) == ["done", "waiting", "waiting", "waiting"]
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert states(again()) == ["done", "done", "waiting", "waiting"]
    assert again().all[2].command[-1] == "--resume"
    (run / "model.json").write_text("{}")
    assert states(again()) == ["done", "done", "done", "waiting"]
    assert "--resume" not in again().all[2].command
    (run / "report.html").write_text("")
    assert states(again()) == ["done"] * 4


def test_a_run_that_was_stopped_is_resumed(place):
    """As when the page's server ends while its run goes on."""
    start = answered("study", {**ANSWERS, "seed": "simulation"}).start
    deeds = Deeds(Path("study"))
    deeds.write(start)
    job = LocalRun.load("study/run.toml")

    def stop(entry):
        if entry.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(deeds.run, who="ada", created="2026-03-01T12:00:00+00:00", on_round=stop)
    deeds = Deeds(Path("study"))
    deeds.write(start)
    assert dynadp(*deeds.all[2].command).exit_code == 0
    assert (deeds.run / "model.json").is_file()


@pytest.fixture
def client(place):
    wizard = Wizard("study")
    yield Client(wizard)
    wizard.close()


def test_the_server_refuses_strangers(client):
    given = {"folder": "study", "answers": ANSWERS}
    assert client.post(f"/{TOKEN}/api/ask", given).json()["complete"]
    where = f"/{TOKEN}/api/write"
    assert client.post("/another/api/write", given).status_code == 403
    assert client.post(where, given, host="evil.example").status_code == 421
    assert client.post(where, given, origin="http://evil.example").status_code == 403
    assert client.get(where).status_code == 405
    # what a form of another page could send
    assert client.post(where, given, content_type="text/plain").status_code == 415
    assert client.post(where, content=b"[").json() == {"error": "expected an object of JSON"}
    assert client.post(where, given, content_length="9999999").status_code == 413
    assert not Path("study").exists()
    page = client.get(f"/{TOKEN}/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert SECRET not in page.text
    assert client.get(f"/{TOKEN}/report").status_code == 404


def test_the_server_writes_and_says_what_to_type(client):
    given = {"folder": "study", "answers": ANSWERS}
    lacking = client.post(f"/{TOKEN}/api/write", {"folder": "study", "answers": {}}).json()
    assert "cannot be written yet" in lacking["error"]
    made = client.post(f"/{TOKEN}/api/write", given).json()
    assert [deed["command"] for deed in made["deeds"]] == [
        "",
        "dynadp ledger cap --run study/run.toml --epsilon 1.2 --delta 1e-05",
        "dynadp check study/run.toml",
        "dynadp train study/run.toml --out study/runs/first",
        "dynadp report study/runs/first",
    ]
    wrong = client.post(f"/{TOKEN}/api/do", {"folder": "study", "deed": "report"})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "first comes: Run")
    written = client.post(f"/{TOKEN}/api/ask", given).json()["files"]
    assert made["files"] == written  # the page compares them with what answers come to now


def test_a_home_folder_is_one_and_a_folder_that_cannot_be_is_refused(client, place, monkeypatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    client.post(f"/{TOKEN}/api/write", {"folder": "~/study", "answers": ANSWERS})
    assert (place / "home/study/run.toml").is_file()
    (place / "taken").write_text("a file")
    nodes = f"north={place}/north.csv"
    given = {"folder": "taken", "answers": {**ANSWERS, "nodes": nodes}}
    reply = client.post(f"/{TOKEN}/api/write", given)
    assert (reply.status_code, "taken" in reply.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("", "expected a folder"),
        ("north.csv", "north.csv is a file"),
        ("north.csv/below", "north.csv is a file"),
        ("-x", "for an option"),
        ("~nobody-has-this/x", "no home of that name"),
        ("x" * 300, "name too long"),
    ],
)
def test_a_folder_that_cannot_be_is_told_beside_it_and_the_answers_stay(client, folder, words):
    given = {"folder": folder, "answers": ANSWERS}
    asked = client.post(f"/{TOKEN}/api/ask", given).json()
    assert (words in asked["folder"], asked["complete"]) == (True, True)
    assert list(asked["files"]) == ["study/schema.toml", "study/run.toml"]
    assert client.post(f"/{TOKEN}/api/deeds", given).json()["deeds"] == []
    reply = client.post(f"/{TOKEN}/api/write", given)
    assert (reply.status_code, words in reply.json()["error"]) == (400, True)


def test_the_pages_of_a_run_are_those_of_the_folder_that_is_shown(client, place, seeded, sealed):
    assert client.get(f"/{TOKEN}/replay/").status_code == 409
    for folder, run in (("one", seeded), ("two", sealed)):
        shutil.copytree(run, place / folder / "runs" / "first")
        assert client.post(f"/{TOKEN}/api/deeds", {"folder": folder}).json()["began"]
        page = client.get(f"/{TOKEN}/replay/").text
        assert ("SIMULATION" in page, "are honest" in page) == (folder == "one", folder == "two")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("start mine", "Wizard"),
        ("explore", "Wizard"),
        ("explore --made", "Explorer"),
        ("explore --measure auc", "Explorer"),
    ],
)
def test_explore_without_a_run_file_asks_for_one(place, monkeypatch, line, kind):
    served = []

    def serve(shown, token, port, ready):
        served.append(shown)
        return 0

    monkeypatch.setattr("dynadp.report.explore.serve.serve", serve)
    monkeypatch.setattr("dynadp.report.serve", serve, raising=False)
    result = dynadp(*line.split(), "--no-browser")
    assert result.exit_code == 0, result.output
    (shown,) = served
    assert type(shown).__name__ == kind
    if kind == "Wizard":
        assert shown.folder == ("mine" if "mine" in line else "study")


def test_made_rows_and_a_run_are_not_asked_for_together(place):
    result = dynadp("explore", "run.toml", "--made")
    assert result.exit_code == 2
    assert "leave one of them out" in result.output


def test_init_shows_choices_and_takes_what_is_usual(place, monkeypatch):
    monkeypatch.setattr("dynadp.cli.init._terminal", lambda: True)
    answers = ["north=north.csv south=south.csv", "ill", "two", "no", "yes", "age", "f,m", ""]
    lines = [*answers, "", "path", "", "open", "", "simulation"]
    result = CliRunner().invoke(main, ["init", "study"], input="\n".join(lines) + "\n")
    assert result.exit_code == 0, result.output
    assert "sealed: only the sum over all nodes can be read" in result.output
    run = load_run_file("study/run.toml")
    assert (run.topology.family, run.run.seed) == ("path", 0)
