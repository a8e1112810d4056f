"""The run folder and the model file: what was written comes back, and damage is a clear error."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp._files import digest, write_whole
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema
from dynadp.errors import DynadpError, RecordError
from dynadp.runs.folder import Model, RunFolder, load_model, load_run, read_rounds

FIXTURE = Path(__file__).parent / "fixtures" / "run-v1"
COLUMNS = (
    Numeric(name="age", low=0, high=100),
    Categorical(name="trade", values=("craft", "sales")),
)
TABLE = {"age": [10, 90, 50, 0], "trade": ["craft", "sales", "?", "sales"]}
WHEN = "2020-02-29T12:00:00+00:00"


@pytest.fixture
def run(tmp_path):
    """A copy of the fixture, to damage."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "run"))


def model(label=("no", "yes"), **more):
    schema = Schema(
        columns=COLUMNS, label=Label(name="ill", negative=label[0], positive=label[1]), **more
    )
    f = np.random.default_rng(3).normal(size=schema.dimension)
    return Model.of(f, schema, {"name": "logistic", "c1": 0.25}, "none", {"protected": False}), f


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# -----------------------------------------------------------------------------------------------------------
# round trip


@pytest.mark.parametrize("label", [("no", "yes"), (0, 1), (-1, 1), (0.5, 1.5), (2, 1)])
@pytest.mark.parametrize(
    "more", [{}, {"intercept": 0}, {"intercept": 0.3, "norm": 2.0}, {"centre": (0.1, 0.2, 0.3)}]
)
def test_loaded_model_is_the_saved_one(tmp_path, label, more):
    made, f = model(label, **more)
    made.save(tmp_path / "model.json")
    again = load_model(tmp_path)
    assert made.decision(TABLE).tobytes() == again.decision(TABLE).tobytes()
    np.testing.assert_allclose(
        made.decision(TABLE), np.asarray(made.schema.rows(TABLE) @ f), rtol=1e-13
    )
    assert again.predict(TABLE).tolist() == made.predict(TABLE).tolist()
    assert set(again.predict(TABLE).tolist()) <= set(label)
    assert type(again.predict(TABLE).tolist()[0]) is type(label[0])
    assert again.schema.digest() == made.schema.digest()
    assert (again.classes, again.loss, again.privacy) == (label, made.loss, made.privacy)


def test_sign_decides_and_zero_is_negative():
    made, _ = model(intercept=0)
    flat = Model(made.classes, np.array([1.0, 0, 0]), 0.0, made.schema, {}, "none", {})
    assert flat.predict({"age": [0, 50, 100], "trade": ["?"] * 3}).tolist() == ["no", "no", "yes"]


def test_model_file_names_its_features(tmp_path):
    model()[0].save(tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["features"] == ["age", "trade=craft", "trade=sales"]
    assert content["schema_hash"] == model()[0].schema.digest()


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.none() | st.integers() | st.floats(-1e300, 1e300) | st.text(),
        max_size=5,
    )
)
def test_config_and_rounds_come_back(tmp_path_factory, line):
    path = tmp_path_factory.mktemp("runs") / "deep" / "run"
    folder = RunFolder.create(path, {"line": line}, simulation=False, created=WHEN)
    folder.append([line, {"round": 1}])
    folder.append([])
    folder.append([line])
    content = load_run(path)
    assert content["config"] == {"line": line}
    assert content["config_hash"] == digest({"line": line})
    assert (content["simulation"], content["created"]) == (False, WHEN)
    assert set(content["libraries"]) >= {"dynadp", "numpy", "scipy"}
    assert list(read_rounds(path)) == [line, {"round": 1}, line]


def test_finished_run_holds_its_model_and_nothing_else(tmp_path):
    folder = RunFolder.create(
        tmp_path, {}, simulation=True, created=WHEN
    )  # an empty folder will do
    assert list(read_rounds(tmp_path)) == []
    folder.finish(model()[0])
    assert load_model(tmp_path).mechanism == "none"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "rounds.jsonl", "run.json"]


# -------------------------------------------------------------------------------------------------------------
# refusals


def test_folder_that_holds_anything_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(
            RecordError,
            match="exists and is not an empty folder; choose another, nothing is overwritten",
        ):
            RunFolder.create(path, {}, simulation=True, created=WHEN)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("thesis.tex", "mine")]


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file"):
        RunFolder.create(tmp_path / "file" / "run", {}, simulation=True, created=WHEN)


@pytest.mark.parametrize(("name", "load"), [("run.json", load_run), ("model.json", load_model)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(version=2),
            "has version 2, this program reads up to 1; upgrade dynadp",
        ),
        (lambda c: c.update(version=0), "has version 0; expected a whole number from 1 to 1"),
        (lambda c: c.update(version="1"), "has version '1'; expected a whole number"),
        (lambda c: c.pop("version"), "has version None"),
        (lambda c: c.update(format="dynadp-ledger"), "is not a dynadp-(run|model) file"),
        (lambda c: c.pop("format"), "is not a dynadp-(run|model) file"),
    ],
)
def test_format_and_version_are_checked(run, name, load, change, message):
    edit(run / name, change)
    with pytest.raises(RecordError, match=message) as refusal:
        load(run)
    assert name in str(refusal.value)


@pytest.mark.parametrize(("name", "load"), [("run.json", load_run), ("model.json", load_model)])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe", None])
def test_file_that_is_damaged_or_gone_is_a_clear_error(run, name, load, content):
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    with pytest.raises(
        RecordError, match=rf"cannot read .*{name}: No such file|{name} is not (JSON|a dynadp)"
    ):
        load(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["schema"].update(norm=9.0), "the schema does not match its hash"),
        (lambda c: c.update(schema_hash="0" * 64), "the schema does not match its hash"),
        (lambda c: c["schema"].pop("label"), "is damaged"),
        (lambda c: c.pop("coef"), "is damaged: KeyError; restore it from a copy"),
        (lambda c: c.update(coef="many"), "is damaged"),
        (lambda c: c.update(classes=["low"]), "is damaged"),
        (lambda c: c.update(intercept=None), "is damaged"),
        (lambda c: c["coef"].pop(), "expected 12 finite coefficients, one a feature"),
        (lambda c: c["coef"].append(1.0), "expected 12 finite coefficients, one a feature"),
        (lambda c: c.update(intercept=float("nan")), "expected 12 finite coefficients"),
        (
            lambda c: c.update(coef=[float("inf"), *c["coef"][1:]]),
            "expected 12 finite coefficients",
        ),
        (lambda c: c.update(coef=[[1.0]] * 12), "expected 12 finite coefficients|is damaged"),
    ],
)
def test_damaged_model_is_refused(run, change, message):
    edit(run / "model.json", change)
    with pytest.raises(RecordError, match=message):
        load_model(run)


@pytest.mark.parametrize(
    "change",
    [{"config": {"rho": 1.0}}, {"config": None}, {"config_hash": ""}, {"config_hash": None}],
)
def test_config_must_match_its_hash(run, change):
    edit(run / "run.json", lambda content: content.update(change))
    with pytest.raises(RecordError, match="the config does not match its hash"):
        load_run(run)


# -------------------------------------------------------------------------------------------------------
# rounds, writing


@pytest.mark.parametrize("tail", [b"{", b'{"round": 5', b'{"round": 5}', b"\xff"])
def test_unfinished_last_line_is_ignored(run, tail):
    whole = list(read_rounds(run))
    with open(run / "rounds.jsonl", "ab") as file:
        file.write(tail)
    assert list(read_rounds(run)) == whole


@pytest.mark.parametrize("line", [b'{"round": 1', b"", b"\xff\xfe", b"\x00" * 9])
def test_damaged_line_in_the_middle_is_an_error(run, line):
    lines = (run / "rounds.jsonl").read_bytes().split(b"\n")
    (run / "rounds.jsonl").write_bytes(b"\n".join([*lines[:2], line, *lines[3:]]))
    with pytest.raises(
        RecordError,
        match=r"rounds.jsonl, line 3 is not JSON; the file is damaged|rounds.jsonl.* is damaged",
    ):
        list(read_rounds(run))


def test_missing_rounds_are_a_clear_error(tmp_path):
    with pytest.raises(RecordError, match=r"cannot read .*rounds.jsonl: No such file"):
        list(read_rounds(tmp_path))


def test_line_that_json_cannot_say_adds_nothing(run):
    before = (run / "rounds.jsonl").read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(run).append([{"round": 5}, {"change": float("nan")}])
    assert (run / "rounds.jsonl").read_bytes() == before


def test_write_whole_replaces_a_file(tmp_path):
    for text in ("old", "new ß\n"):
        write_whole(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ["half \ud800 written", "fine"])
def test_failed_write_leaves_nothing_behind(tmp_path, text):
    (tmp_path / "kept").write_text("old")
    (tmp_path / "folder").mkdir()
    target = tmp_path / (
        "folder" if text == "fine" else "kept"
    )  # a folder cannot be replaced by a file
    with pytest.raises((OSError, UnicodeEncodeError, DynadpError)):
        write_whole(target, text)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "kept"]
    assert (tmp_path / "kept").read_text() == "old"


def test_appending_after_a_crash_drops_the_unfinished_line(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {}, simulation=True, created=WHEN)
    folder.append([{"round": 1}])
    with open(folder.path / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 2, "no')
    folder.append([{"round": 2}])
    assert list(read_rounds(folder.path)) == [{"round": 1}, {"round": 2}]
