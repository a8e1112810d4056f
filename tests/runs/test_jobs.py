"""Run files at work: check, train, resume, predict, evaluate, as typed and as real processes."""

import csv
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from dynadp._intervals import wilson
from dynadp.data.datasets.synthetic import census
from dynadp.privacy.ledger.file import Ledger
from dynadp.runs.folder import load_run, read_rounds
from dynadp.runs.local import LocalRun
from dynadp.runs.model import load_model
from dynadp.runs.run_file import load_schema
from dynadp.runs.scoring import predictions
from support.run_files import ALPHA, INIT, NODES, settle, write_csv
from support.typed import answer, dynadp

DYNADP = Path(sys.executable).with_name("dynadp")


@pytest.fixture(scope="module")
def data():
    return census(1500, seed=4, nodes=3, heterogeneity=0.4)


@pytest.fixture
def place(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settle(data)
    return tmp_path


def caps(epsilon=2):
    for node in NODES:
        assert (
            dynadp(
                f"ledger cap {node}.sqlite --node {node} --epsilon {epsilon} --delta 1e-5"
            ).exit_code
            == 0
        )


def test_from_nothing_to_predictions(place, data):
    caps()
    with open("run.toml", "a") as file:
        file.write('[evaluation]\nfile = "public.csv"\npublic = true\n')
    checked = answer("check run.toml --json")
    assert {node: facts["rows"] for node, facts in checked["nodes"].items()} == dict.fromkeys(
        NODES, 500
    )
    assert all(facts["ledger"]["admitted"] for facts in checked["nodes"].values())
    assert 1.99 <= checked["plan"]["total"]["epsilon"] <= 2
    trained = answer("train run.toml --json")
    assert trained["protected"]
    assert not trained["simulation"]
    assert trained["epsilon"] == checked["plan"]["total"]["epsilon"]
    assert trained["evaluation"]["accuracy"] > trained["evaluation"]["majority"] > 0.7
    found = trained["evaluation"]
    assert (found["low"], found["high"]) == wilson(found["accuracy"], found["rows"])
    assert len(list(read_rounds("runs/first"))) == 60
    shown = answer("ledger show south.sqlite --json")
    assert [(run["rounds_spent"], run["state"]) for run in shown["runs"]] == [(21, "finished")]
    result = dynadp("predict runs/first public.csv")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    right = np.mean(
        [row["prediction"] == label for row, label in zip(rows, data.test["income"], strict=True)]
    )
    assert right == pytest.approx(trained["evaluation"]["accuracy"])
    assert load_model("runs/first").privacy["statement"].startswith("This costs anybody ")
    again = dynadp("train run.toml")
    assert again.exit_code == 2
    assert "exists and is not an empty folder" in again.output


def test_check_in_words(place):
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert result.output.count("dynadp ledger cap") == 3  # each missing ledger, with what to type
    caps()
    words = dynadp("check run.toml").output
    for part in (
        "500 rows",
        "its ledger would take it",
        "algorithm sum: noisy sums over rows",
        "This will cost anybody",
        "in 100 would guess right",
    ):
        assert part in words
    assert "SIMULATION" not in words
    Path("run.toml").write_text(
        Path("run.toml").read_text().replace('# mechanism = "sum"', 'mechanism = "dual"')
    )
    assert "dual perturbation" in dynadp("check run.toml").output


def test_a_ledger_in_a_folder_that_cannot_be_written_is_refused(place, monkeypatch):
    """SQLite writes its journal there. Root may write everything, so the answer of the system is
    made up.
    """
    caps()
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not Path(path).is_dir() and real(path, mode)
    )
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert result.output.count("or its folder cannot be written by this user") == 3


def test_a_large_delta_is_called_so(place):
    caps()
    for command in ("check", "train"):
        assert (
            "DELTA IS LARGE" in dynadp(f"{command} run.toml --delta 0.1").output
        )  # said first; the ledgers refuse it anyway
        assert "DELTA IS LARGE" not in dynadp(f"{command} run.toml").output


def test_a_refused_budget_leaves_everything_as_it_was(place):
    caps(0.5)
    before = {node: Path(f"{node}.sqlite").read_bytes() for node in NODES}
    assert "REFUSE" in dynadp("check run.toml").output
    for line in ("train run.toml", "train run.toml --dry-run"):
        result = dynadp(line)
        assert result.exit_code == 3
        assert not Path("runs/first").exists()
    assert {node: Path(f"{node}.sqlite").read_bytes() for node in NODES} == before
    assert (
        answer("train run.toml --dry-run --epsilon 0.4 --json")["plan"]["total"]["epsilon"] <= 0.4
    )


def test_a_damaged_ledger_has_its_own_code(place):
    caps()
    content = bytearray(Path("south.sqlite").read_bytes())
    content[content.index(b'"epsilon":2.0') + 10] ^= 1
    Path("south.sqlite").write_bytes(content)
    result = dynadp("check run.toml")
    assert result.exit_code == 5
    assert "damaged" in result.output


def test_flags_beat_the_environment_which_beats_the_file(place):
    caps()
    assert answer("check run.toml --json", DYNADP_EPSILON="1.5")["plan"]["total"][
        "epsilon"
    ] == pytest.approx(1.5, rel=0.01)
    both = answer("check run.toml --epsilon 1 --json", DYNADP_EPSILON="1.5")
    assert both["plan"]["total"]["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert answer("check run.toml --json")["plan"]["total"]["epsilon"] == pytest.approx(
        2.0, rel=0.01
    )


def test_all_problems_of_a_run_at_once(place):
    text = (
        Path("run.toml").read_text().replace("north.csv", "nowhere.csv").replace('"ring"', '"grid"')
    )
    Path("run.toml").write_text(text)
    Path("south.csv").write_text("age,income\n30,low\n")
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    for part in ("node north", "nowhere.csv", "node south", "'hours'", "no ledger north.sqlite"):
        assert part in result.output
    Path("schema.toml").write_text(
        Path("schema.toml").read_text().replace("low = 17.0", "").replace("[label]", "[lable]")
    )
    assert "label: is missing" in dynadp("check run.toml").output


def test_problems_are_counted_one_by_one(place):
    caps()
    Path("run.toml").write_text(
        Path("run.toml").read_text().replace("north.csv", "a.csv").replace("west.csv", "b.csv")
    )
    assert dynadp("check run.toml").output.startswith(
        "dynadp: run.toml: 2 problems\n  node north: "
    )


@pytest.mark.parametrize("command", ["check", "train"])
def test_rows_that_do_not_fit_are_told_for_all_nodes_without_a_cell(place, command):
    caps()
    for node, line, column in (
        ("north", 3, "age"),
        ("west", 7, "age"),
        ("west", 9, "age"),
        ("west", 5, "income"),
    ):
        lines = Path(f"{node}.csv").read_text().splitlines()
        index, cells = lines[0].split(",").index(column), lines[line].split(",")
        lines[line] = ",".join([*cells[:index], "secretword", *cells[index + 1 :]])
        Path(f"{node}.csv").write_text("\n".join(lines) + "\n")
    result = dynadp(f"{command} run.toml")
    assert result.exit_code == 2
    assert result.output.startswith(
        "dynadp: run.toml: 3 problems\n  node 'north', column 'age', row 2"
    )
    assert "\n  node 'west', column 'age', row 6" in result.output
    assert "row 8" not in result.output
    assert "\n  node 'west', income, row 4" in result.output
    assert "secretword" not in result.output
    assert "sound" not in result.output
    with Ledger.open("south.sqlite", read_only=True) as ledger:
        assert ledger.counted() == []


def test_one_file_with_a_node_column(place, data):
    owners = np.array(NODES)[data.node]
    write_csv("all.csv", data.train, extra={"site": owners})
    text = Path("run.toml").read_text()
    for node in NODES:
        text = text.replace(f'file = "{node}.csv"\n', "")
    text = text.replace(
        'schema = "schema.toml"', 'schema = "schema.toml"\nfile = "all.csv"\nnode_column = "site"'
    )
    text = "\n".join(line for line in text.splitlines() if not line.startswith("ledger"))
    Path("one.toml").write_text(text)
    many = "\n".join(
        line for line in Path("run.toml").read_text().splitlines() if not line.startswith("ledger")
    )
    Path("many.toml").write_text(many)
    one = answer("train one.toml --seed 3 --out one --json")
    answer("train many.toml --seed 3 --out many --json")
    assert one["simulation"]
    assert not one["protected"]
    assert one["statement"].startswith("SIMULATION")
    assert one["evaluation"] is None
    assert "private" in one["evaluation_note"]
    assert Path("one/model.json").read_bytes() == Path("many/model.json").read_bytes()
    assert not Path("one/messages").exists()


def test_a_seed_makes_a_simulation_of_any_run_file_and_touches_no_ledger(place):
    for node in NODES:
        Path(f"{node}.sqlite").write_bytes(b"no ledger at all: whoever opens it is told so")
    assert dynadp("check run.toml").exit_code == 5
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().glob("*.sqlite*")
    }
    assert answer("check run.toml --seed 1 --json")["simulation"]
    trained = dynadp("train run.toml --seed 1 --json")
    assert trained.exit_code == 0, trained.output
    assert (
        "SIMULATION, because of seed 1: it protects nobody, and no ledger is opened or charged"
        in trained.stderr
    )
    assert json.loads(trained.stdout)["simulation"]
    assert not json.loads(trained.stdout)["protected"]
    assert load_run("runs/first").simulation
    answer("train run.toml --out environment --json", DYNADP_SEED="1")
    assert Path("environment/model.json").read_bytes() == Path("runs/first/model.json").read_bytes()
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().glob("*.sqlite*")
    } == before


def test_a_seed_in_the_file_contradicts_ledgers(place):
    Path("run.toml").write_text(Path("run.toml").read_text().replace("# seed = 1", "seed = 1"))
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert "leave out ledger, or leave out run.seed" in result.output


def test_every_format_gives_the_same_model(place, data):
    import polars

    frame = polars.DataFrame({name: cells.tolist() for name, cells in data.train.items()})
    base = "\n".join(
        line for line in Path("run.toml").read_text().splitlines() if not line.startswith("ledger")
    )
    Path("csv.toml").write_text(base)
    for i, node in enumerate(NODES):
        part = frame.filter(polars.Series(data.node == i))
        part.write_parquet(f"{node}.parquet")
        part.write_csv(f"{node}.tsv", separator=";")
        subprocess.run(["gzip", "-k", f"{node}.csv"], check=True)
    Path("parquet.toml").write_text(base.replace('.csv"\n', '.parquet"\n'))
    Path("gz.toml").write_text(base.replace('.csv"\n', '.csv.gz"\n'))
    models = set()
    for name in ("csv", "parquet", "gz"):
        answer(f"train {name}.toml --seed 3 --out out-{name} --json")
        models.add(Path(f"out-{name}/model.json").read_bytes())
    assert len(models) == 1


def test_unequal_totals(place):
    text = "\n".join(
        line for line in Path("run.toml").read_text().splitlines() if not line.startswith("ledger")
    )
    Path("run.toml").write_text(
        text.replace("# epsilon = 0.5   # a total of its own", "epsilon = 0.5", 1)
    )
    nodes = answer("train run.toml --seed 1 --json")["nodes"]
    assert nodes["north"] == pytest.approx(0.5, rel=0.01)
    assert nodes["south"] == pytest.approx(2.0, rel=0.01)


def test_alpha_in_each_round_and_no_mechanism(place):
    Path("alpha.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 4"))
    words = dynadp("train alpha.toml --out words").output
    assert "Trained in 4 rounds. SIMULATION" in words
    assert "No accuracy is shown" in words
    Path("told.toml").write_text(
        Path("alpha.toml").read_text() + '[evaluation]\nfile = "public.csv"\npublic = true\n'
    )
    assert "which the run file declares public" in dynadp("train told.toml --out told").output
    found = answer("train alpha.toml --json")
    assert found["rounds"] == 4
    assert load_run("runs/long").planned.alpha == 0.5
    assert found["epsilon"] <= 2.0
    plain = ALPHA.replace(
        'mechanism = "dual"\nalpha = 0.5\ndelta = 1e-5', 'mechanism = "none"'
    ).replace("rounds = 60\n", "")
    plain = plain.replace("eta = 0.05\n", "").replace('name = "long"', 'name = "plain"')
    Path("plain.toml").write_text(plain)
    assert "Nothing is protected" in dynadp("check plain.toml").output
    trained = answer("train plain.toml --json")
    assert trained["protected"] is False
    assert trained["epsilon"] is None
    assert "exact vectors" in load_model("runs/plain").privacy["statement"]


@pytest.mark.first(1)
@pytest.mark.parametrize("mechanism", ["dual", "primal"])
def test_interrupted_and_resumed_equals_undisturbed(place, mechanism):
    """A real process, a real Ctrl-C."""
    Path("run.toml").write_text(ALPHA.replace('"dual"', f'"{mechanism}"'))
    assert dynadp("train run.toml --out whole").exit_code == 0
    process = subprocess.Popen(
        [DYNADP, "train", "run.toml", "--out", "cut"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # in the background shells ignore it
    )
    first = process.stderr.readline()
    assert first.startswith("round 10 of")
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    if process.wait() == 0:  # it was faster than the signal
        pytest.fail("the run finished before it could be interrupted")
    assert process.returncode == 130
    assert "finish the run with: dynadp train run.toml --out cut --resume" in rest
    assert not Path("cut/model.json").exists()
    assert 10 <= len(list(Path("cut/messages").iterdir())) < 60
    again = dynadp("train run.toml --out cut --resume")
    assert again.exit_code == 0, again.output
    for name in ("model.json", "rounds.jsonl"):
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes()


def test_resume_wants_the_run_that_was_begun(place):
    Path("run.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 3"))
    assert dynadp("train run.toml --resume").exit_code == 2  # nothing there
    assert dynadp("train run.toml").exit_code == 0
    finished = dynadp("train run.toml --resume")
    assert finished.exit_code == 2
    assert "is finished" in finished.output
    other = dynadp("train run.toml --resume --seed 9")
    assert other.exit_code == 2
    assert "another run file" in other.output


def test_a_run_with_ledgers_is_resumed_by_its_name(place):
    caps()
    job = LocalRun.load("run.toml")

    def stop(progress):
        if progress.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(Path("runs/first"), who="ada", created="2026-03-01T12:00:00+00:00", on_round=stop)
    with Ledger.open("north.sqlite") as ledger:
        (run,) = {entry.run for entry in ledger.entries() if entry.run}
        kept = [ledger.message(run, n) for n in range(6)]
        assert ledger.rounds(run) == list(range(6))
    assert answer("train run.toml --resume --json")["protected"]
    with Ledger.open("north.sqlite") as ledger:
        assert [ledger.message(run, n) for n in range(6)] == kept
        assert ledger.rounds(run) == list(range(21))


def test_accuracy_on_private_rows_is_charged_or_refused(place):
    caps()
    answer("train run.toml --epsilon 0.5 --json")
    refused = dynadp("evaluate runs/first north.csv")
    assert refused.exit_code == 2
    assert "accuracy on private rows would itself be a release" in refused.output
    assert dynadp("evaluate runs/first north.csv --ledger north.sqlite").exit_code == 2
    public = answer("evaluate runs/first public.csv --public --json")
    charged = answer("evaluate runs/first public.csv --ledger north.sqlite --alpha 0.2 --json")
    assert charged["accuracy"] == pytest.approx(public["accuracy"], abs=0.1)
    assert charged["accuracy"] != public["accuracy"]
    shown = answer("ledger show north.sqlite --json")
    assert shown["runs"][-1]["alpha_spent"] == pytest.approx(0.2)
    refused = dynadp("evaluate runs/first public.csv --ledger north.sqlite --alpha 50")
    assert refused.exit_code == 3
    assert "ask for less: a smaller epsilon or alpha" in refused.output
    said = dynadp("evaluate runs/first public.csv --ledger north.sqlite --alpha 0.01").output
    assert "Accuracy about" in said
    most = np.log(20) / (0.01 * public["rows"])  # P(|noise| > t) = e^(-t/scale)
    assert f"of {public['rows']:,} rows (noise: at most {most:.1%} in 95 of 100 draws)" in said
    said = dynadp("evaluate runs/first public.csv --public").output
    assert (
        f"({public['low']:.1%} to {public['high']:.1%}) on {public['rows']:,} public rows" in said
    )
    assert (public["low"], public["high"]) == wilson(public["accuracy"], public["rows"])
    assert "95% interval for the sampling error of the rows" in said
    assert not {"low", "high"} & set(charged)  # they would tell the accuracy without its noise


def test_rows_that_the_schema_drops_have_no_prediction(place, data):
    Path("run.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 3"))
    Path("schema.toml").write_text(
        Path("schema.toml").read_text().replace("missing = 53.5", 'missing = "drop"')
    )
    answer("train run.toml --json")
    table = {name: cells[:3].astype(object) for name, cells in data.test.items()}
    table["age"][1] = "?"
    labels, scores, _ = next(iter(predictions(load_model("runs/long"), table)))
    assert labels[1] is None
    assert np.isnan(scores[1])
    assert set(labels[[0, 2]]) <= {"low", "high"}
    write_csv("some.csv", table)
    assert dynadp("predict runs/long some.csv").stdout.splitlines()[2] == ",,"


def test_a_charged_evaluation_shows_no_number_that_depends_on_dropped_rows(place, data):
    """How many rows stay is private: neither shown nor used, so a row may also be replaced by one
    that is dropped.
    """
    Path("run.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 3"))
    Path("schema.toml").write_text(
        Path("schema.toml").read_text().replace("missing = 53.5", 'missing = "drop"')
    )
    answer("train run.toml --json")
    caps(5000)
    table = {name: cells[:400].astype(object) for name, cells in data.test.items()}
    shown = []
    for missing in (0, 1, 150, 400):
        table["age"][:missing] = "?"
        write_csv("some.csv", table)
        shown.append(
            answer(
                "evaluate runs/long some.csv --ledger north.sqlite --alpha 1000 --rows 390 --json"
            )
        )
        if missing < 400:
            public = answer("evaluate runs/long some.csv --public --json")
            assert public["rows"] == 400 - missing
            right = public["accuracy"] * public["rows"]
            assert shown[-1]["accuracy"] == pytest.approx(min(right / 390, 1), abs=1e-3)
    assert {(found["rows"], found["noise"]) for found in shown} == {(390, 1 / 390_000)}
    assert shown[-1]["accuracy"] <= 1e-3
    refused = dynadp("evaluate runs/long some.csv --ledger north.sqlite --alpha 1")
    assert refused.exit_code == 2
    assert "declare a public number with --rows N" in refused.output


def test_rows_of_an_evaluation_are_declared_only_where_they_are_not_known(place):
    caps()
    answer("train run.toml --epsilon 0.5 --json")
    rows = len(Path("public.csv").read_text().splitlines()) - 1
    assert (
        answer(
            f"evaluate runs/first public.csv --ledger north.sqlite --alpha 0.1 --rows {rows} --json"
        )["rows"]
        == rows
    )
    wrong = dynadp("evaluate runs/first public.csv --ledger north.sqlite --alpha 0.1 --rows 7")
    assert wrong.exit_code == 2
    assert f"--rows is 7, but public.csv has {rows} rows and none are dropped" in wrong.output
    assert dynadp("evaluate runs/first public.csv --public --rows 7").exit_code == 2


def test_init_asks_when_it_can_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = dynadp("init . --node a=a.csv")
    assert result.exit_code == 2
    assert "missing --label, --negative, --positive, --numeric or --categorical" in result.output
    for flag, wrong in (
        ("--node a", "NAME=FILE"),
        ("--numeric age:0", "NAME:LOW:HIGH"),
        ("--categorical sex=", "NAME=A,B,C"),
    ):
        line = f"init . --node a=b --label y --negative 0 --positive 1 --numeric age:0:9 {flag}"
        assert wrong in dynadp(line).output
    for node in "ab":
        Path(f"{node}.csv").write_text("age,sex,y\n")
    answers = iter(["a=a.csv b=b.csv", "y", "two", "no", "yes", "0:99", "f,m", "0.5"])
    monkeypatch.setattr("click.prompt", lambda *_, default, **__: next(answers, default))
    monkeypatch.setattr("dynadp.cli.init._terminal", lambda: True)
    assert dynadp("init asked --seed 3").exit_code == 0
    assert load_schema("asked/schema.toml").features == ("age", "sex=f", "sex=m", "(intercept)")
    assert "nothing is overwritten" in dynadp(f"{INIT.replace('init .', 'init asked')}").output


@pytest.mark.parametrize("seed", ["", " --seed 3"])
def test_what_init_comments_out_is_toml(tmp_path, seed):
    """Each alternative alone, and all of them together; prose in comments has no equals sign."""
    assert dynadp(INIT.replace("init .", f"init {tmp_path / 'study'}") + seed).exit_code == 0
    found = []
    for file in sorted((tmp_path / "study").iterdir()):
        lines = file.read_text().splitlines()
        tomllib.loads("\n".join(lines))
        offered = [
            i
            for i, line in enumerate(lines)
            if line.startswith("# ") and ("=" in line or line.startswith("# ["))
        ]
        for which in [[i] for i in offered] + [offered]:
            text = "\n".join(
                line.removeprefix("# ") if i in which else line for i, line in enumerate(lines)
            )
            tomllib.loads(text)
        found += [lines[i] for i in offered]
        found += [line for line in lines if line.startswith("# [")]
    told = "\n".join(found)
    for part in (
        '# file = "all.csv"',
        '# node_column = "site"',
        "# epsilon = 0.5",
        "# [evaluation]",
        "# transform",
    ):
        assert part in told


def test_a_wrong_separator_is_told_with_the_right_one(place):
    caps()
    Path("north.csv").write_text(Path("north.csv").read_text().replace(",", ";"))
    Path("run.toml").write_text(
        Path("run.toml").read_text().replace("[data]\n", '[data]\nseparator = ","\n')
    )
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert "the header was read as one column 'age;" in result.output
    assert 'set separator = ";"' in result.output


@pytest.mark.parametrize(("mark", "typed"), [(";", "';'"), ("\t", r"$'\t'")])
def test_a_wrong_separator_on_the_command_line_is_mended_there(place, mark, typed):
    Path("run.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 3"))
    answer("train run.toml --json")
    Path("other.csv").write_text(Path("public.csv").read_text().replace(",", mark))
    for line in ("predict runs/long other.csv", "evaluate runs/long other.csv --public"):
        result = dynadp(f"{line} --separator ,")
        assert result.exit_code == 2
        assert result.output.endswith(f"; give --separator {typed}\n")


def test_what_dropped_rows_leave_must_be_declared(place):
    """The number of rows is public; where it depends on cells, it is not read off them."""
    caps()
    Path("schema.toml").write_text(
        Path("schema.toml").read_text().replace("missing = 53.5", 'missing = "drop"')
    )
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert result.output.count("rows = N, as public") == 3
    text = Path("run.toml").read_text()
    for node in NODES:
        text = text.replace(f'name = "{node}"\n', f'name = "{node}"\nrows = 500\n')
    Path("run.toml").write_text(text)
    assert dynadp("check run.toml").exit_code == 0
    Path("run.toml").write_text(text.replace("rows = 500", "rows = 499", 1))
    assert "node north: rows = 499 is declared" in dynadp("check run.toml").output


def test_a_failure_after_the_last_round_is_resumed(place, monkeypatch):
    """Everything is entered and closed, but the model could not be written: it is made again from
    the ledgers.
    """
    caps()
    monkeypatch.setattr(
        "dynadp.runs.folder.RunFolder.finish",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left", "model")),
    )
    failed = dynadp("train run.toml")
    assert failed.exit_code == 8
    assert "No space left" in failed.output
    monkeypatch.undo()
    monkeypatch.chdir(place)
    heads = [answer(f"ledger show {node}.sqlite --json")["head"] for node in NODES]
    assert answer("train run.toml --resume --json")["protected"]
    assert [answer(f"ledger show {node}.sqlite --json")["head"] for node in NODES] == heads
    assert len(list(read_rounds("runs/first"))) == 60


def test_a_folder_of_the_users_is_left_alone(place):
    caps(0.5)
    Path("mine").mkdir()
    assert dynadp("train run.toml --out mine").exit_code == 3
    assert Path("mine").is_dir()
    assert list(Path("mine").iterdir()) == []


def test_one_process_at_a_time_works_on_a_run(place):
    from contextlib import ExitStack

    from dynadp.runs.preparation import lock

    Path("run.toml").write_text(ALPHA.replace("rounds = 60", "rounds = 3"))
    answer("train run.toml --json")
    Path("runs/long/model.json").unlink()
    with ExitStack() as stack:
        lock(stack, Path("runs/long"))
        busy = dynadp("train run.toml --resume")
        assert busy.exit_code == 8
        assert "another process is at work" in busy.output
    assert dynadp("train run.toml --resume").exit_code == 0


def test_settings_count(place):
    base = ALPHA.replace("rounds = 60", "rounds = 3")
    Path("a.toml").write_text(base)
    Path("b.toml").write_text(
        base + "[training.regularizer]\nname = 'smooth_elastic_net'\nl1 = 500\n"
    )
    Path("c.toml").write_text(base.replace('name = "long"', 'name = "long"\noutput = "last"'))
    for name in "abc":
        answer(f"train {name}.toml --out out-{name} --json")
    assert len({Path(f"out-{name}/model.json").read_bytes() for name in "abc"}) == 3
    base = "\n".join(
        line for line in Path("run.toml").read_text().splitlines() if not line.startswith("ledger")
    )
    Path("d.toml").write_text(base.replace('output = "network"', 'output = "last"'))
    Path("e.toml").write_text(base)
    Path("schema.toml").write_text("intercept = 0.0\n" + Path("schema.toml").read_text())
    for name in "de":
        answer(f"train {name}.toml --seed 2 --out out-{name} --json")
    assert Path("out-d/model.json").read_bytes() != Path("out-e/model.json").read_bytes()


def test_what_can_be_known_before_training_is(place):
    caps()
    with open("run.toml", "a") as file:
        file.write('[evaluation]\nfile = "nowhere.csv"\npublic = true\n')
    assert "nowhere.csv" in dynadp("check run.toml").output
    text = (
        Path("run.toml")
        .read_text()
        .replace("nowhere.csv", "public.csv")
        .replace('"south.csv"', '"north.csv"')
    )
    Path("run.toml").write_text(text)
    assert "two have the same file" in dynadp("check run.toml").output
    Path("empty.csv").write_text(Path("west.csv").read_text().splitlines()[0] + "\n")
    Path("run.toml").write_text(
        text.replace('file = "north.csv"\nledger = "south', 'file = "empty.csv"\nledger = "south')
    )
    assert "node south has no rows" in dynadp("check run.toml").output


def test_a_typo_in_a_charged_evaluation_costs_nothing(place):
    caps()
    answer("train run.toml --epsilon 0.5 --json")
    before = answer("ledger show north.sqlite --json")["head"]
    assert dynadp("evaluate runs/first typo.csv --ledger north.sqlite --alpha 0.1").exit_code == 2
    assert answer("ledger show north.sqlite --json")["head"] == before
    assert dynadp("evaluate runs/first public.csv --public --alpha 3").exit_code == 2
    swapped = json.loads(Path("runs/first/model.json").read_text())
    swapped["classes"].reverse()
    Path("swapped.json").write_text(json.dumps(swapped))
    assert "classes are not those of its schema" in dynadp("predict swapped.json public.csv").output


def test_init_leaves_nothing_behind_when_refused_and_quotes_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = "--label y --negative 0 --positive 1 --numeric a:0:1"
    assert dynadp(f"init x --node n=n.csv {common} --numeric b:5:1").exit_code == 2
    assert not Path("x").exists()
    shown = dynadp(f"init 'my $(x)' --node n=n.csv {common} --numeric 'p:q:0:1'").output
    assert "--run 'my $(x)/run.toml'" in shown
    assert "p:q" in load_schema("my $(x)/schema.toml").features


def test_a_folder_that_cannot_be_made_costs_nothing(place):
    caps()
    Path("file").touch()
    failed = dynadp("train run.toml --out file/run")
    assert failed.exit_code == 2
    assert "cannot make the run folder" in failed.output
    shown = answer("ledger show north.sqlite --json")
    assert (shown["runs"][0]["state"], shown["cap"]["sum"]) == ("stopped", 0)
    assert answer("train run.toml --json")["protected"]  # the cap is whole


def test_a_ledger_of_another_node_is_refused(place):
    caps()
    Path("run.toml").write_text(
        Path("run.toml").read_text().replace('"south.sqlite"', '"north.sqlite"')
    )
    result = dynadp("check run.toml")
    assert result.exit_code == 2
    assert "node south: north.sqlite is the ledger of 'north'" in result.output


def test_names_that_would_leave_their_folder_are_refused(place):
    text = Path("run.toml").read_text()
    Path("run.toml").write_text(text.replace('name = "first"', 'name = "../first"'))
    assert (
        "run.name: must be a line of printable text without slashes"
        in dynadp("check run.toml").output
    )
    Path("run.toml").write_text(text.replace('schema = "schema.toml"', 'schema = "a\\u0000b"'))
    assert "data.schema" in dynadp("check run.toml").output
