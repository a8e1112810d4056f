"""The command line, run as people run it."""

import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from dynadp import _files, errors
from dynadp.cli import COMMANDS, Commands, main
from dynadp.cli.demo import _fresh
from dynadp.cli.options import MechanismName
from dynadp.data.datasets.synthetic import census
from dynadp.mechanisms import Mechanism, mechanism_names
from dynadp.planning.sums import gaussian_mu
from dynadp.privacy.ledger.file import Ledger
from dynadp.research.demonstration import HETEROGENEITY, ROWS, SILOS
from dynadp.runs.folder import load_run, read_rounds
from dynadp.runs.model import load_model

DYNADP = Path(sys.executable).parent / "dynadp"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONUNBUFFERED", "FORCE_COLOR")
}
FILES = [
    "convergence.html",
    "convergence.png",
    "dual",
    "network.html",
    "network.png",
    "none",
    "primal",
    "sealed",
    "sum",
]


def dynadp(*arguments, cwd, **more):
    """A real process; wide enough for one line a row."""
    environment = ENVIRONMENT | {"COLUMNS": "200"}
    return subprocess.run(
        [DYNADP, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, **more
    )


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """``dynadp demo`` in an empty folder."""
    folder = tmp_path_factory.mktemp("shown")
    return folder, dynadp("demo", cwd=folder)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """``dynadp demo --json --out``, in this process."""
    folder = tmp_path_factory.mktemp("answered") / "deep" / "run"
    return folder, CliRunner().invoke(main, ["demo", "--json", "--out", str(folder)])


@pytest.mark.slow
def test_demo_leaves_a_run_with_pictures_and_a_table(shown, answered):
    folder, process = shown
    assert process.returncode == 0
    assert process.stderr == ""
    assert "\x1b" not in process.stdout
    (run,) = (folder / "runs").iterdir()
    assert run.name.startswith("demo-")
    assert sorted(p.name for p in run.iterdir()) == FILES
    assert sorted(p.name for p in (run / "dual").iterdir()) == [
        "model.json",
        "rounds.jsonl",
        "run.json",
    ]
    assert (run / "network.png").read_bytes().startswith(b"\x89PNG")
    assert "SIMULATION" in process.stdout
    assert f"Folder:  runs/{run.name}" in process.stdout
    for entry in json.loads(answered[1].stdout)["runs"]:
        row = next(
            line for line in process.stdout.splitlines() if f" {entry['mechanism']} " in line
        )
        right = 1 - np.mean(entry["node_errors"])
        for cell in (f"{right:.1%} ±1.", f"{entry['consensus_gap']:.1e}", str(entry["rounds"])):
            assert cell in row
        picture = (run / "convergence.html").read_text(encoding="utf-8")
        drawn = re.search(
            rf'"series": "{entry["mechanism"]}"[^}}]*"label": "model ([\d.]+)%"', picture
        )
        assert drawn, "the picture shows the model that the table tells of"
        assert float(drawn[1]) == pytest.approx(100 * (1 - right), abs=0.051)
        assert "lines: messages of one round; diamonds: the model taken home" in picture
        assert ("no privacy" in row) == (entry["mechanism"] == "none")


def test_json_is_all_of_stdout(answered):
    folder, process = answered
    assert process.exit_code == 0
    result = json.loads(process.stdout)
    assert (result["version"], result["simulation"], result["protected"]) == (1, True, False)
    assert (result["nodes"], result["rows"], result["folder"]) == (5, ROWS, str(folder))
    assert all(Path(p).stat().st_size > 1000 for p in result["pictures"])
    assert result["centralised_error"] < result["majority_error"] - 0.05
    assert [run["mechanism"] for run in result["runs"]] == [
        "none",
        "dual",
        "primal",
        "sealed",
        "sum",
    ]
    for run in result["runs"]:
        assert max(abs(error - result["centralised_error"]) for error in run["node_errors"]) < 0.02
        assert run["privacy"]["protected"] is False
    plain, *private = result["runs"]
    assert 0 < plain["consensus_gap"] < 0.01
    assert (plain["alpha"], plain["epsilon"]) == (None, None)
    for run in private:
        assert 0.995 <= run["epsilon"] == run["privacy"]["epsilon"] <= 1
        assert run["delta"] == 1e-5
        described = run["algorithm"], run["exchange"], run["noise"]
        if run["mechanism"] in ("sum", "sealed"):
            exchange, honest = ("open", []) if run["mechanism"] == "sum" else ("sealed", [[3, 5]])
            assert described == ("sum", exchange, "gaussian")
            assert run["privacy"]["honest"] == honest
            assert run["alpha"] is run["privacy"]["epsilon_sum"] is None
            assert 0.05 < run["mu"] < gaussian_mu(1.0, 1e-5)
            continue
        assert described == ("admm", "neighbours", "l2-laplace")
        assert run["privacy"]["epsilon_sum"] > 20 * run["alpha"]  # and the centring round
    wrong = {run["mechanism"]: np.mean(run["node_errors"]) for run in private}
    assert wrong["sealed"] < wrong["primal"]


@pytest.mark.parametrize(("mechanism", "rounds"), [("none", 60), ("dual", 20), ("primal", 20)])
def test_record_of_the_demo_tells_what_was_run(answered, mechanism, rounds):
    folder, process = answered
    entry = next(run for run in json.loads(process.stdout)["runs"] if run["mechanism"] == mechanism)
    alpha = entry["alpha"]
    assert (alpha is None) == (mechanism == "none")
    folder = folder / mechanism
    record = load_run(folder)
    assert (record.kind, record.simulation, record.seed) == ("demo", True, 0)
    assert (record.made["synthetic"], record.made["seed"]) == (True, 0)
    assert (record.plan["mechanism"]["name"], record.plan["rounds"]) == (mechanism, rounds)
    assert (record.planned.alpha if record.planned else None) == alpha
    assert list(record.rows) == list(SILOS)
    lines = list(read_rounds(folder))
    assert [(line["round"], line["node"]) for line in lines] == [
        (n, p) for n in range(1, rounds + 1) for p in SILOS
    ]
    assert {line["alpha"] for line in lines} == {alpha}
    data = census(ROWS, seed=0, nodes=5, heterogeneity=HETEROGENEITY)
    model = load_model(folder)
    wrong = np.mean(model.predict(data.test) != data.test["income"])
    assert wrong == pytest.approx(entry["node_errors"][0], abs=1e-12)
    assert (model.mechanism, model.privacy["protected"]) == (mechanism, False)
    assert ("SIMULATION" in model.privacy["statement"]) == (alpha is not None)


def test_another_seed_makes_other_rows_and_the_same_kind_of_table(answered, tmp_path):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        main, ["demo", "--mechanism", "dual", "--seed", "1", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0
    assert load_run(tmp_path / "dual").seed == 1
    assert not np.array_equal(
        load_model(tmp_path / "dual").coef, load_model(answered[0] / "dual").coef
    )
    assert not (tmp_path / "none").exists()
    for part in (
        " gap ",
        "in 100 would guess right",
        f"{ROWS:,}",
        f"Folder:  {tmp_path}",
        f"Picture: {tmp_path / 'network.html'}",
    ):
        assert part in result.output


def test_folder_that_holds_anything_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    process = dynadp("demo", "--json", "--out", ".", cwd=tmp_path)
    assert process.returncode == 2
    assert process.stdout == ""
    assert (
        process.stderr
        == "dynadp: . exists and is not an empty folder; choose another, nothing is overwritten\n"
    )
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("thesis.tex", "mine")]


def test_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    process = dynadp("demo", "--out", "file/run", cwd=tmp_path)
    assert process.returncode in (1, 2)
    assert process.stderr.startswith("dynadp: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["demo", "--mechanism", "magic"],
            "'magic' is not one of 'none', 'sum', 'sealed', 'primal', 'dual', 'all'",
        ),
        (["demo", "--seed", "-1"], "-1 is not in the range"),
        (["demo", "--seed", "x"], "'x' is not a valid integer"),
        (["demo", "--out", "file"], "'file' is a file"),
        (["demo", "--nonsense"], "No such option"),
        (["demo", "word"], "unexpected extra argument"),
        (["nonsense"], "No such command 'nonsense'"),
        ([], "Usage: dynadp [OPTIONS] COMMAND"),
    ],
)
def test_wrong_usage_is_exit_2_and_leaves_nothing(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, arguments, prog_name="dynadp")
    assert result.exit_code == 2
    assert message in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_wrong_usage_of_the_real_program(tmp_path):
    process = dynadp("demo", "--mechanism", "magic", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert "'magic' is not one of" in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["demo", "-h"]])
def test_help(arguments, tmp_path):
    process = dynadp(*arguments, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("Usage: dynadp")


def test_version(tmp_path):
    from dynadp import __version__

    process = dynadp("--version", cwd=tmp_path)
    assert (process.returncode, process.stdout.split()) == (0, ["dynadp,", "version", __version__])


def test_help_imports_neither_other_commands_nor_libraries(tmp_path):
    code = (
        "import sys\n"
        "from dynadp.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "names = {'numpy', 'scipy', 'networkx', 'pydantic', 'rich', 'cryptography'}\n"
        "print(*sorted(n for n in sys.modules if n in names or n.startswith('dynadp.cli.')),\n"
        "      file=sys.stderr)\n"
    )
    shared = {"dynadp.cli.codes", "dynadp.cli.verbosity"}
    for arguments, own in (
        ((), set()),
        (("audit",), {"dynadp.cli.audit", "dynadp.cli.options", "dynadp.cli.output"}),
        (("pki", "renew"), {"dynadp.cli.pki", "dynadp.cli.options", "dynadp.cli.output"}),
    ):
        process = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert process.stdout.startswith("Usage: ")
        assert set(process.stderr.split()) == shared | own


def test_every_command_is_found_under_its_name():
    context = click.Context(main)
    listed = CliRunner().invoke(main, ["--help"]).output
    for name, (_, line) in COMMANDS.items():
        command = main.get_command(context, name)
        assert (command.name, command.get_short_help_str()) == (name, line)
        assert re.search(rf"^  {name} +{re.escape(line)}$", listed, re.MULTILINE)
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: main {name} ")


@pytest.mark.parametrize("group", ["ledger", "pki"])
def test_commands_of_commands_are_listed_by_task_in_80_columns(group):
    under = main.get_command(click.Context(main), group)
    listed = CliRunner().invoke(main, [group, "--help"], terminal_width=80).output
    lines = listed.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == list(under.order)
    assert set(under.order) == set(under.commands)
    assert not [line for line in lines if line.endswith("...")]


def test_a_misspelt_command_gets_the_one_that_was_meant():
    result = CliRunner().invoke(main, ["trian"])
    assert result.exit_code == 2
    assert "No such command 'trian'. Did you mean train" in result.output
    result = CliRunner().invoke(main, ["zzz"])
    assert result.output.rstrip().endswith("No such command 'zzz'.")


def test_mechanisms_are_those_that_the_planner_knows(monkeypatch):
    monkeypatch.setitem(Mechanism.registry, "magic", Mechanism.registry["primal"])
    assert MechanismName(before=("none",)).choices == ("none", *mechanism_names())
    result = CliRunner().invoke(main, ["audit", "--mechanism", "tragic"])
    assert result.exit_code == 2
    assert "'tragic' is not one of 'sum', 'sealed', 'primal', 'dual', 'magic'" in result.output
    assert CliRunner().invoke(main, ["audit", "--mechanism", "magic", "--draws", "200"]).output


def test_command_line_starts_without_heavy_imports():
    heavy = "{'numpy', 'scipy', 'altair', 'networkx', 'pydantic', 'rich'}"
    code = f"import sys, dynadp.cli; print(*({heavy} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == []


def test_missing_extra_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "dynadp: pictures need altair: install dynadp[report]" in result.output
    assert not (tmp_path / "run").exists()


PRESS = """
import signal
from dynadp.cli import main
from dynadp.runs.folder import RunFolder

def append(self, lines, real=RunFolder.append):
    real(self, lines)
    signal.raise_signal(signal.SIGINT)  # Ctrl-C after the first round

RunFolder.append = append
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def test_ctrl_c_is_exit_130_and_leaves_whole_files(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", PRESS, "demo", "--out", tmp_path], capture_output=True, text=True
    )
    assert (process.returncode, process.stdout, process.stderr) == (
        130,
        "",
        "dynadp: interrupted\n",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["none"]
    assert sorted(p.name for p in (tmp_path / "none").iterdir()) == ["rounds.jsonl", "run.json"]
    assert load_run(tmp_path / "none").plan["rounds"] == 60
    assert [line["round"] for line in read_rounds(tmp_path / "none")] == [1] * 5


def test_closed_pipe_is_quiet_and_no_success(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [DYNADP, "account", "--mechanism", "sum", "--mu", "0.1", "--rounds", "3"]
    command += ["--delta", "1e-5", "--json"]
    with os.fdopen(writer, "wb") as closed:
        process = subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert process.returncode == 1
    assert process.stderr == ""


def group(error):
    def fail():
        raise error

    return Commands(commands=[click.Command("fail", callback=fail)])


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.DeclarationError, 2),
        (errors.TopologyError, 2),
        (errors.DataError, 2),
        (errors.LossError, 2),
        (errors.DatasetError, 2),
        (errors.RecordError, 2),
        (errors.LedgerError, 2),
        (errors.IdentityError, 2),
        (errors.NotCertified, 1),
        (errors.SumSpoiled, 1),
        (errors.BudgetRefused, 3),
        (errors.NodeLost, 4),
        (errors.LedgerDamaged, 5),
    ],
)
def test_error_is_one_line_and_an_exit_code(kind, code):
    result = CliRunner().invoke(group(kind("what was given; what to do")), ["fail"])
    assert (result.exit_code, result.output) == (code, "dynadp: what was given; what to do\n")


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """A place with one bad file of each kind."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("no TOML, no JSON, no ledger, no model")
    Path("folder").mkdir()
    Path("folder/thesis.tex").write_text("mine")
    Path("rows.csv").write_text("age,ill\nsecret,yes\n3,no\n")
    Path("schema.toml").write_text(
        '[label]\nname = "ill"\nnegative = "no"\npositive = "yes"\n'
        '[[columns]]\nkind = "numeric"\nname = "age"\nlow = 0\nhigh = 9\n'
    )
    run = '[run]\nseed = 1\n[data]\nschema = "schema.toml"\n[[nodes]]\nname = "a"\nfile = "FILE"\n'
    run += "[privacy]\nepsilon = 1\ndelta = 1e-5\n"
    Path("rows.toml").write_text(run.replace("FILE", "rows.csv"))
    Path("absent.toml").write_text(run.replace("FILE", "absent.csv"))
    Path("twisted.parquet").write_bytes(b"PAR1 and no more")
    Path("parquet.toml").write_text(run.replace("FILE", "twisted.parquet"))
    Path("damaged.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(100))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("no-such-command", 2),
        ("train", 2),
        ("train absent", 2),
        ("train folder", 2),
        ("train text", 2),
        ("train rows.toml", 2),
        ("train absent.toml", 2),
        ("train parquet.toml", 2),
        ("train rows.toml --resume --out absent", 2),
        ("check absent", 2),
        ("check text", 2),
        ("check rows.toml", 2),
        ("check absent.toml", 2),
        ("predict absent rows.csv", 2),
        ("predict text rows.csv", 2),
        ("predict folder rows.csv", 2),
        ("evaluate absent rows.csv --public", 2),
        ("evaluate text rows.csv --public", 2),
        ("ledger show absent", 2),
        ("ledger show text", 5),
        ("ledger show damaged.sqlite", 5),
        ("ledger verify absent", 2),
        ("ledger verify text", 5),
        ("ledger cap absent --epsilon 1 --delta 1e-5", 2),
        ("ledger cap absent/x --epsilon 1 --delta 1e-5 --node a", 2),
        ("ledger close absent run", 2),
        ("node absent", 2),
        ("node text", 2),
        ("launch absent", 2),
        ("launch text", 2),
        ("launch rows.toml --resume --out absent", 2),
        ("status absent", 2),
        ("status folder", 2),
        ("relay absent --listen 127.0.0.1:1", 2),
        ("report absent", 2),
        ("report folder", 2),
        ("report text", 2),
        ("explore absent --no-browser", 2),
        ("track absent", 2),
        ("track folder", 2),
        ("account --events absent --delta 1e-5", 2),
        ("account --events text --delta 1e-5", 2),
        ("calibrate --mechanism primal --dimension 9 --epsilon 1 --delta 1e-5", 2),
        ("tradeoff absent", 2),
        ("reproduce --out folder", 2),
        ("attacks --out folder", 2),
        ("demo --out folder", 2),
        ("init folder", 2),
        ("pki node absent a", 2),
        ("pki sign absent absent", 2),
    ],
)
def test_what_is_given_wrongly_exits_with_2(bad, line, code):
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == code, (result.output, result.exception)


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (errors.RecordError("x"), OSError(28, "No space left on device"), 8),
        (errors.RecordError("x"), OSError(122, "Disk quota exceeded"), 8),
        (errors.RecordError("x"), PermissionError(13, "Permission denied"), 2),
        (errors.RecordError("x"), BlockingIOError(11, "locked"), 8),
        (errors.ConfigError("x"), OSError(98, "Address already in use"), 2),
        (errors.LedgerError("x"), OSError(30, "Read-only file system"), 2),
        (OSError(5, "Input/output error", "model"), None, 1),
        (FileNotFoundError(2, "No such file", "model"), None, 2),
    ],
)
def test_a_machine_that_fails_exits_with_1_or_8(error, cause, code):
    error.__cause__ = cause
    assert CliRunner().invoke(group(error), ["fail"]).exit_code == code


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    monkeypatch.setattr(_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        _files.write_whole(path, "x")
    assert list(tmp_path.iterdir()) == []
    done = CliRunner().invoke(group(caught.value), ["fail"])
    assert (done.exit_code, done.stderr) == (8, f"dynadp: {path}: No space left on device\n")
    with pytest.raises(FileNotFoundError) as caught:
        _files.write_whole(tmp_path / "nowhere" / "a.json", "x")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a.json")


def test_a_locked_ledger_exits_with_8(tmp_path, monkeypatch):
    path = tmp_path / "north.sqlite"
    Ledger.create(path, "north", who="ada", at="2026-03-01T12:00:00+00:00").close()
    opened = Ledger.open.__func__
    monkeypatch.setattr(
        Ledger,
        "open",
        classmethod(lambda cls, path, **given: opened(cls, path, **{**given, "wait": 0.0})),
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        result = CliRunner().invoke(
            main, ["ledger", "cap", str(path), "--epsilon", "1", "--delta", "1e-5"]
        )
    assert result.exit_code == 8, result.output
    assert "another process kept it locked" in result.output


def test_interruption_has_its_code():
    assert CliRunner().invoke(group(KeyboardInterrupt()), ["fail"]).exit_code == 130


def test_error_that_is_not_ours_is_not_hidden():
    result = CliRunner().invoke(group(ZeroDivisionError("bug")), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_second_demo_of_a_second_has_its_own_folder(tmp_path):
    names = []
    for _ in range(3):
        names.append(_fresh(tmp_path, "demo-1").name)
        (tmp_path / names[-1]).mkdir()
    assert names == ["demo-1", "demo-1-2", "demo-1-3"]


# --------------------------------------------------------------------------------------------------
# -q and -v

ACCOUNT = "account --mechanism primal --dimension 5 --alpha 0.5 --rounds 3 --delta 1e-5"


@pytest.mark.parametrize("line", [f"-q {ACCOUNT}", f"{ACCOUNT} --quiet"])
def test_quiet_prints_nothing_of_a_result(line):
    done = CliRunner().invoke(main, line.split())
    assert (done.exit_code, done.output) == (0, "")


def test_quiet_prints_errors_and_what_json_asks_for():
    done = CliRunner().invoke(main, f"{ACCOUNT} -q --json".split())
    assert json.loads(done.output)["releases"] == 3
    done = CliRunner().invoke(main, ["-q", "check", "nowhere.toml"])
    assert done.exit_code == 2
    assert done.output == "dynadp: cannot read nowhere.toml: No such file or directory\n"


def test_quiet_is_for_commands_of_commands_too(tmp_path):
    words = ["ledger", "cap", str(tmp_path / "l"), "--node", "a", "--epsilon", "1", "--delta", "0"]
    done = CliRunner().invoke(main, [*words, "-q"])
    assert (done.exit_code, done.output) == (0, "")
    shown = CliRunner().invoke(main, ["ledger", "show", str(tmp_path / "l")])
    assert "epsilon" in shown.output


@pytest.mark.parametrize("flag", ["", "-v", "-q"])
def test_warnings_are_shown(tmp_path, monkeypatch, flag):
    """Once, without being asked for; such as that no anchor can be kept."""
    (tmp_path / "state").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["ledger", "cap", str(tmp_path / "l"), "--node", "a", "--epsilon", "1", "--delta", "0"]
    done = CliRunner().invoke(main, [*words, *flag.split()])
    assert done.exit_code == 0
    assert ("no anchor is kept" in done.stderr) == (flag != "-q")
    assert done.stderr.count("dynadp: warning: no anchor") == (flag == "")
    assert "no anchor" not in done.stdout


def test_quiet_and_verbose_are_one_or_the_other():
    done = CliRunner().invoke(main, ["-q", *ACCOUNT.split(), "-v"])
    assert done.exit_code == 2
    assert "-q and -v cannot both be given" in done.output


def test_verbose_logs_and_shows_where_an_error_came_from_but_no_cell(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nname = "a"\n[data]\nschema = "s.json"\n')
    (tmp_path / "s.json").write_text('{"columns": {"age": {"low": 0, "high": "ninety"}}}')
    usual = CliRunner().invoke(main, ["check", str(tmp_path / "run.toml")])
    more = CliRunner().invoke(main, ["check", str(tmp_path / "run.toml"), "-v"])
    assert "Traceback" not in more.output
    assert more.output.endswith(usual.output)
    assert "in load_run_file" in more.output
    assert "During handling" not in more.output
    assert "direct cause" not in more.output


def test_verbose_logs_a_run_and_ends_with_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = census(rows=600, nodes=2, seed=1)
    (tmp_path / "s.json").write_text(data.schema.model_dump_json())
    text = '[run]\nname = "a"\nseed = 1\n[data]\nschema = "s.json"\n'
    for node, table in data.tables(["n", "s"]).items():
        lines = [
            ",".join(table),
            *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
        ]
        (tmp_path / f"{node}.csv").write_text("\n".join(lines))
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\n'
    (tmp_path / "run.toml").write_text(text + "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n")
    logger = logging.getLogger("dynadp")
    before = list(logger.handlers), logger.level
    done = CliRunner().invoke(main, ["train", "run.toml", "-v"])
    assert done.exit_code == 0, done.output
    assert re.search(r"\d INFO plan: ", done.stderr)
    assert "INFO" not in done.stdout
    assert (list(logger.handlers), logger.level) == before
    quiet = CliRunner().invoke(main, ["-q", "train", "run.toml", "--out", "again"])
    assert quiet.exit_code == 0
    assert quiet.stdout == ""
    assert quiet.stderr.splitlines() == []
