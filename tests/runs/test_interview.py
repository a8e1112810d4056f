"""What dynadp init asks: of files it sees the first line alone, and a slip costs one answer."""

import gzip
from datetime import date

import polars as pl
import pytest
from click.testing import CliRunner

from dynadp.cli import main
from dynadp.data.columns import Categorical, Date, Hashed, Numeric
from dynadp.data.proposals import KINDS, propose_column
from dynadp.errors import DeclarationError
from dynadp.runs.local import LocalRun
from dynadp.runs.questions import declared_column, interview, node_files
from dynadp.runs.run_file import load_run_file, load_schema

SECRET = "Maria-1867"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Rows that nobody may look at, two files of them, and one for all."""
    monkeypatch.chdir(tmp_path)
    rows = {
        "age": [40, 20, 60],
        "job": ["cook", "clerk", SECRET],
        "since": ["2020-01-01", "2021-05-06", "2019-03-04"],
        "pay": [10.0, 1e4, 1e5],
        "town": ["A", "B", "C"],
        "ill": ["no", "yes", "no"],
    }
    frame = pl.DataFrame(rows)
    frame.write_csv(tmp_path / "north.csv")
    frame.write_parquet(tmp_path / "south.parquet")
    frame.with_columns(site=pl.Series(["n", "s", "n"])).write_csv(tmp_path / "all.csv")
    return tmp_path


def held(folder, given, answers):
    """The interview, its questions, and what was shown."""
    questions, asked, shown, texts = interview(folder, given), [], [], dict(answers)
    try:
        question = next(questions)
        while True:
            asked.append(question.name)
            shown += question.shown
            text = texts.get(question.name, question.default)
            assert text is not None, question.name
            question = questions.send(question.parse(text))
    except StopIteration as end:
        return end.value, asked, shown


ANSWERS = {
    "nodes": "north=north.csv south=south.parquet",
    "label": "ill",
    "kind": "two values",
    "negative": "no",
    "positive": "yes",
    "column age": "age",
    "column job": "cook, clerk",
    "column since": "2000-01-01..2030-12-31",
    "column pay": "money:200000",
    "column town": "hash:16",
    "person": "",
    "graph": "ring",
    "counts": "",
    "trust": "open",
    "epsilon": "0.7",
    "delta": "1e-06",
    "seed": "cap",
    "cap": "0.9",
}


def test_an_interview_makes_files_that_load(place):
    made, asked, shown = held("study", {}, ANSWERS)
    assert asked == list(ANSWERS)
    assert "Columns, from the first line alone: age, job, since, pay, town, ill." in shown
    assert any("pay: 0 to 200000, on a log scale, from what you said; no row" in s for s in shown)
    made.write("study")
    schema, run = load_schema("study/schema.toml"), load_run_file("study/run.toml")
    assert [type(column) for column in schema.columns] == [
        Numeric,
        Categorical,
        Date,
        Numeric,
        Hashed,
    ]
    assert schema.columns[3].transform == "log1p"
    assert (run.privacy.epsilon, run.privacy.delta, made.cap) == (0.7, 1e-6, 0.9)
    assert run.privacy.calibration  # so that predictions have probabilities
    assert [node.name for node in run.nodes] == ["north", "south"]


def test_one_file_with_a_column_that_names_the_node(place):
    answers = {**ANSWERS, "nodes": "all.csv", "node_column": "site", "node_names": "n s"}
    made, asked, _ = held("study", {"seed": 1}, answers)
    assert asked[:3] == ["nodes", "node_column", "node_names"]
    made.write("study")
    run = load_run_file("study/run.toml")
    assert run.data.node_column == "site"
    assert [node.name for node in run.nodes] == ["n", "s"]
    assert dict(LocalRun.load("study/run.toml").check().nodes)["n"].rows == 2


def test_nothing_but_the_first_line_is_read(place, monkeypatch):
    """Rows may be unreadable, and no batch is ever asked for."""
    from dynadp.data import sources

    def refuse(*_, **__):
        raise AssertionError("rows were read")

    monkeypatch.setattr(sources.Source, "batches", refuse)
    monkeypatch.setattr(sources.Source, "coded_batches", refuse)
    (place / "north.csv").write_text('age,job,since,pay,town,ill\n"never closed')
    _, _, shown = held("study", {}, ANSWERS)
    assert SECRET not in " ".join(shown)
    content = gzip.compress(b"age,job,since,pay,town,ill\n1,2")
    (place / "packed.csv.gz").write_bytes(content)
    held("study", {}, {**ANSWERS, "nodes": "north=packed.csv.gz"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nodes", "north", "there is no file north"),
        ("nodes", "north=north.csv north=all.csv", "different names"),
        ("nodes", "a=north.csv b=rows.csv", "have no name in common"),
        ("nodes", "a=bare.csv", "its first line has empty names or numbers"),
        ("nodes", "a=odd.csv", "declare the separator"),
        ("nodes", "a=north.csv b=one.csv", "share 1 of at least 2 columns"),
        ("nodes", "rows.csv", "share 2 of at least 3 columns"),
        ("nodes", "", "at least one node"),
        ("label", "il", "there is no column 'il' in all files; they share age"),
        ("positive", "no", "expected two different ones"),
        ("negative", " ", "nothing was given"),
        ("kind", "many", "'many' is none of two values, several values, a number"),
        ("column age", "0:x", "says no bounds"),
        ("column age", "9:0", "low must be below"),
        ("column age", "money", "needs X, such as money:100"),
        ("column age", "age:9", "takes no number"),
        ("column age", "length", "no known kind of quantity"),
        ("column age", "money:-1", "expected a number above 0"),
        ("column since", "2020-01-01..soon", "says no bounds"),
        ("column since", "2020-01-01..2019-01-01", "first must be before last"),
        ("column town", "hash:1", "column 'town', buckets: Input should be greater"),
        ("column job", "a,a", "lists a value twice"),
        ("epsilon", "none", "expected a finite number above 0"),
        ("epsilon", "0", "expected a finite number above 0"),
    ],
)
def test_a_slip_costs_one_answer(place, monkeypatch, name, text, words):
    """In the terminal: the wrong answer is asked for again, and none of the others."""
    (place / "rows.csv").write_text("a,b\n")
    (place / "bare.csv").write_text(f"{SECRET},41\n")
    (place / "odd.csv").write_text("a,b;c\n")
    (place / "one.csv").write_text("ill\n")
    texts = {name: text for name, text in ANSWERS.items() if name != "delta"}  # a flag has it
    lines = []
    for key, answer in texts.items():
        lines += [text, answer] if key == name else [answer]
    monkeypatch.setattr("dynadp.cli.init._terminal", lambda: True)
    # an empty line is refused by click itself where there is no default
    result = CliRunner().invoke(main, ["init", "study"], input="\n".join(lines) + "\n")
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    if text.strip():
        assert words in result.output
    assert load_run_file("study/run.toml").privacy.epsilon == 0.7


def test_all_columns_left_out_are_asked_for_again(place, monkeypatch):
    monkeypatch.setattr("dynadp.cli.init._terminal", lambda: True)
    lines = ["north=north.csv", "ill", "two", "no", "yes", *[""] * 5, "age", *[""] * 4, *[""] * 7]
    result = CliRunner().invoke(main, ["init", "study"], input="\n".join(lines) + "\n")
    assert result.exit_code == 0, result.output
    assert load_schema("study/schema.toml").features == ("age", "(intercept)")


def test_flags_say_the_same(place):
    line = "init study --node all.csv --node-column site --node-name n --node-name s --label ill "
    line += "--negative no --positive yes --numeric age:age --numeric pay:money:200000 "
    line += "--categorical job=cook --column since=2000-01-01..2030-12-31 --column town=hash:8"
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 0, result.output
    assert "pay: 0 to 200000, on a log scale" in result.output
    schema, run = load_schema("study/schema.toml"), load_run_file("study/run.toml")
    assert schema.columns[0].high == 110
    assert schema.columns[2].values == ("cook",)
    assert schema.columns[4].buckets == 8
    assert run.privacy.epsilon == 1.0
    assert run.data.node_column == "site"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--numeric agee:age", "there is no column 'agee' in all files"),
        ("--numeric age", "expected NAME:LOW:HIGH"),
        ("--numeric age:length", "expected NAME:LOW:HIGH"),
        ("--column age", "expected NAME=KIND"),
        ("--numeric age:age --label il", "there is no column 'il'"),
    ],
)
def test_flags_that_are_wrong_are_refused(place, flags, words):
    line = f"init study --node a=north.csv --label ill --negative no --positive yes {flags}"
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert words in result.output
    assert not (place / "study").exists()
    line = "init study --node all.csv --label ill --negative no --positive yes --numeric age:age"
    assert "names the node of each row: nothing was given" in CliRunner().invoke(
        main, line.split()
    ).output.replace("Column that n", "n")


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("several values", "mild, severe, none", '[label]\nname = "ill"\nvalues = ["mild", '),
        ("a number", "0:40", '[target]\nname = "ill"\nlow = 0.0\nhigh = 40.0\n'),
    ],
)
def test_an_answer_of_another_kind(place, kind, text, line):
    answers = {**ANSWERS, "kind": kind, "answer": text}
    made, asked, _ = held("study", {"seed": 1}, answers)
    assert asked[1:4] == ["label", "kind", "answer"]
    made.write("study")
    assert line in (place / "study/schema.toml").read_text()
    assert load_schema("study/schema.toml").label == made.answer
    assert not load_run_file("study/run.toml").privacy.calibration  # of two values alone
    flags = "init flagged --node a=north.csv --label ill --numeric age:age --answer"
    result = CliRunner().invoke(main, [*flags.split(), text.replace(" ", "")])
    assert result.exit_code == 0, result.output
    assert load_schema("flagged/schema.toml").label == made.answer
    for wrong in ("a", "a,b", "3:2"):
        with pytest.raises(DeclarationError):
            held("other", {}, {**answers, "answer": wrong})


def test_the_kinds_are_shown():
    result = CliRunner().invoke(main, ["init", "--kinds"])
    assert result.exit_code == 0
    assert "never from rows" in result.output
    for name in (*KINDS, "LOW:HIGH", "A,B,C", "FIRST..LAST", "hash:BUCKETS"):
        assert name in result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_proposal_covers_what_it_says(kind):
    """Generous: twice what was said does not need twice the range, and 0 is inside or an end."""
    about = 1000.0 if KINDS[kind].sized else None
    column = propose_column("a", kind, about)
    assert column.low < column.high
    assert column.encode == ("linear",)
    if about:
        assert column.high == about
    with pytest.raises(DeclarationError, match="takes no number" if about is None else "needs X"):
        propose_column("a", kind, None if about else 3.0)


def test_files_are_written_relative_to_the_run_file(place):
    assert node_files(["a=north.csv"], "study/deep").nodes == (("a", "../../north.csv"),)
    assert node_files(["a=elsewhere.csv"], "study").nodes == (("a", "elsewhere.csv"),)
    assert node_files(["all.csv"], ".").shared == "all.csv"


def test_short_texts_are_declarations():
    assert declared_column("a", "-5:7").low == -5
    assert declared_column("a", "-5:7").missing == 1
    assert declared_column("a", " x , y,").values == ("x", "y")
    assert declared_column("a", "balance:10").transform == "signed_log"
    assert declared_column("a", "2020-01-01..2020-01-03").missing == date(2020, 1, 2)


def test_what_init_writes_of_days_is_sound(place):
    """A dropped row would ask for a declared number of rows, which flags do not have."""
    (place / "days.csv").write_text("day,ill\n" + "2020-05-01,no\n,yes\n" * 3)
    flags = "--node n=days.csv --label ill --negative no --positive yes --seed 1 --epsilon 9"
    given = ["init", "study", *flags.split(), "--column", "day=2020-01-01..2020-12-31"]
    assert CliRunner().invoke(main, given).exit_code == 0
    result = CliRunner().invoke(main, ["check", "study/run.toml"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("norm", "privacy", "said"),
    [
        ("norm = 2.0\n", "epsilon = 9.0\ndelta = 1e-5", True),
        ("", "epsilon = 9.0\ndelta = 1e-5", False),
        ("norm = 2.0\n", 'mechanism = "primal"\nalpha = 1.0\ndelta = 1e-5', False),
        ('norm = 2.0\nscaling = "unit"\n', 'mechanism = "none"', True),
    ],
)
def test_check_says_that_norm_has_no_say(place, norm, privacy, said):
    """Where rows are centred privately, or scaled to norm 1 anyway."""
    made, *_ = held("study", {"seed": 1}, {**ANSWERS, "nodes": "n=north.csv"})
    made.write("study")
    schema, run = place / "study/schema.toml", place / "study/run.toml"
    schema.write_text(norm + schema.read_text())
    rounds = "" if "epsilon" in privacy else "[training]\nrounds = 3\nrho = 0.1\neta = 1.0\n"
    run.write_text(run.read_text().split("[privacy]")[0] + f"[privacy]\n{privacy}\n{rounds}")
    result = CliRunner().invoke(main, ["check", str(run)])
    assert result.exit_code == 0, result.output
    assert ("norm = 2 of the schema has no say" in result.output) == said
