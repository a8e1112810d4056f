"""The run folder and the model file: what was written comes back, and damage is a clear error."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp._files import digest, write_whole
from dynadp.consensus.progress import RoundLine, RoundProgress
from dynadp.consensus.topology import Topology
from dynadp.data.columns import Categorical, Numeric
from dynadp.data.schema import Label, Schema
from dynadp.errors import DataError, DynadpError, RecordError
from dynadp.planning.plans import Plan
from dynadp.runs.folder import RunFolder, load_run, read_rounds
from dynadp.runs.model import Model, load_model
from dynadp.runs.record import RunRecord
from dynadp.runs.scoring import evaluate, predictions

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-v1"
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


PLAN = {
    "mechanism": {"name": "primal", "own": "public", "final": None},
    "loss": {"name": "logistic", "width": 1.0, "margin": 3.0, "c1": 0.25},
    "regularizer": {"name": "squared_l2"},
    "C": 1.0,
    "weights": "rows",
    "rho": 0.01,
    "eta": 0.1,
    "rounds": 3,
    "output": "network",
    "alphas": [0.1, 0.2],
    "centrings": [0.3, 0.4],
    "total": {"epsilon": 1.0, "delta": 1e-5, "releases": 4},
    "reasons": ["because"],
}


def record(**more):
    """The record of a run of two nodes."""
    decided = {
        "kind": "demo",
        "name": "small",
        "run_id": "small 1",
        "created": WHEN,
        "simulation": True,
        "source": "made here",
        "topology": Topology.from_edges([("a", "b")], ["a", "b"], "pair"),
        "rows": {"a": 3, "b": 4},
        "schema": model()[0].schema,
        "plan": PLAN,
    }
    return RunRecord.of(**decided | more)


def model(label=("no", "yes"), **more):
    schema = Schema(
        columns=COLUMNS, label=Label(name="ill", negative=label[0], positive=label[1]), **more
    )
    f = np.random.default_rng(3).normal(size=schema.dimension)
    return Model.of(f, schema, Plan()), f


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# --------------------------------------------------------------------------------------------------
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


def test_members_are_named_where_nodes_stayed_away(tmp_path):
    made = model()[0]
    assert "members" not in made.to_json()
    replace(made, members=("a", "c")).save(tmp_path / "model.json")
    assert load_model(tmp_path).members == ("a", "c")


def test_the_largest_of_three_scores_decides(tmp_path):
    schema = model()[0].schema
    made = Model(
        classes=("no", "perhaps", "yes"),
        coef=np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
        intercept=np.zeros(3),
        schema=schema,
        loss={},
        mechanism="none",
        privacy={},
        estimator={"parameters": {}},
    )
    made.save(tmp_path / "model.json")
    again = load_model(tmp_path)
    assert again.decision(TABLE).shape == (4, 3)
    assert again.predict(TABLE).tolist() == ["perhaps", "yes", "no", "yes"]
    labels, scores, _ = next(predictions(again, TABLE))
    assert labels.tolist() == ["perhaps", "yes", "no", "yes"]
    np.testing.assert_array_equal(scores, again.decision(TABLE).max(axis=1))
    with pytest.raises(DataError, match="the model has 3 classes, its schema's label has two"):
        evaluate(again, {**TABLE, "ill": ["no", "yes", "no", "yes"]})


def test_sign_decides_and_zero_is_negative():
    made, _ = model(intercept=0)
    flat = Model.of(np.array([1.0, 0, 0]), made.schema, Plan())
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
def test_record_and_rounds_come_back(tmp_path_factory, line):
    path = tmp_path_factory.mktemp("runs") / "deep" / "run"
    made = record(file={"line": line}, simulation=False)
    folder = RunFolder.create(path, made)
    folder.append([line, {"round": 1}])
    folder.append([])
    folder.append([line])
    found = load_run(path)
    assert found == made
    assert (found.file, found.simulation, found.created) == ({"line": line}, False, WHEN)
    assert found.config_hash == digest(found.config) != record(file={"line": [line]}).config_hash
    assert set(found.libraries) >= {"dynadp", "numpy", "scipy"}
    assert list(read_rounds(path)) == [line, {"round": 1}, line]


def test_record_has_all_that_was_decided(tmp_path):
    RunFolder.create(tmp_path / "run", record())
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (content["format"], content["version"], content["kind"]) == ("dynadp-run", 2, "demo")
    assert content["topology"] == {"name": "pair", "nodes": ["a", "b"], "edges": [[0, 1]]}
    assert (content["rows"], content["dimension"], content["features"]) == ({"a": 3, "b": 4}, 4, 3)
    assert Schema.model_validate(content["schema"]).digest() == content["schema_hash"]
    assert content["plan"] == PLAN
    assert set(content) == {
        *("format", "version", "content_hash", "config_hash", "kind", "name", "run_id", "created"),
        *("simulation", "seed", "source", "topology", "rows", "dimension", "features", "schema"),
        *("schema_hash", "file", "made", "plan", "python", "libraries"),
    }


def test_a_configuration_is_not_when_or_where_it_ran(tmp_path):
    one, other = record(), record(run_id="other", created="2021-01-01T00:00:00+00:00")
    assert one.config_hash == other.config_hash
    assert one.config_hash != record(rows={"a": 3, "b": 5}).config_hash
    assert record(config_hash="ab" * 32).config_hash == "ab" * 32


@pytest.mark.parametrize(
    "alphas", [[0.1, 0.2], [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]], [[0.1] * 3, 0.2]]
)
def test_alpha_of_a_node_is_a_number_or_one_for_each_round(alphas):
    found = record(plan={**PLAN, "alphas": alphas}).planned
    assert found.alphas == {"a": (0.1, 0.1, 0.1), "b": (0.2, 0.2, 0.2)}
    assert (found.alpha, found.delta, found.centrings) == (0.2, 1e-5, {"a": 0.3, "b": 0.4})


def test_events_follow_from_the_record():
    steady = record().events
    changing = record(plan={**PLAN, "alphas": [[0.1, 0.2, 0.3], 0.2]})
    assert [(event.node, event.round, event.alpha) for event in steady[:2]] == [
        ("a", 0, 0.3),
        ("b", 0, 0.4),
    ]
    assert [event.alpha for event in changing.events if event.node == "a"] == pytest.approx(
        [0.3, 0.1, 0.2, 0.3]
    )
    assert [event for event in changing.events if event.node == "b"] == [
        event for event in steady if event.node == "b"
    ]
    assert changing.planned.alphas == {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.2, 0.2)}
    bare = record(plan={**PLAN, "mechanism": {"name": "none"}})
    assert (bare.planned, bare.events) == (None, None)


def test_lines_of_a_round_come_back(tmp_path):
    plan = {**PLAN, "alphas": [[0.1, 0.2, 0.3], 0.2]}
    folder = RunFolder.create(tmp_path / "run", record(plan=plan))
    apart, change = np.array([[1.5], [2.5]]), np.array([[0.5], [0.25]])
    folder.note(RoundProgress(1, 2, np.ones(1), apart, change))
    last = RoundProgress(2, 2, np.ones(1), apart[:1], change[:1])
    folder.note(last.with_messages(np.zeros((1, 1, 3))), ["a"])
    folder.note(last.with_messages(np.zeros((0, 1, 0))), ["b"])  # it had no part in this sum
    assert [RoundLine.from_json(line) for line in read_rounds(tmp_path / "run")] == [
        RoundLine(1, "a", 0.1, 1.5, 0.5),
        RoundLine(1, "b", 0.2, 2.5, 0.25),
        RoundLine(2, "a", 0.2, 1.5, 0.5),
        RoundLine(2, "b", None, 1.5, 0.5),
    ]


@pytest.mark.parametrize(
    "line",
    [
        {},
        [],
        None,
        3,
        {"round": 1, "node": "a", "disagreement": 1.0},
        {"round": "one", "node": "a", "disagreement": 1.0, "change": 1.0},
        {"round": 1, "node": "a", "disagreement": float("nan"), "change": 1.0},
        {"round": 1, "node": "a", "disagreement": 1.0, "change": 1.0, "alpha": float("inf")},
        {"round": 1, "node": "a", "disagreement": [1.0], "change": 1.0},
    ],
)
def test_line_that_is_none_of_a_round_is_refused(line):
    with pytest.raises(ValueError, match=r"line|finite|could not convert|invalid literal"):
        RoundLine.from_json(line)


def test_finished_run_holds_its_model_and_nothing_else(tmp_path):
    folder = RunFolder.create(tmp_path, record())  # an empty folder will do
    assert list(read_rounds(tmp_path)) == []
    folder.finish(model()[0])
    assert load_model(tmp_path).mechanism == "none"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "rounds.jsonl", "run.json"]


# --------------------------------------------------------------------------------------------------
# refusals


def test_folder_that_holds_anything_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(
            RecordError,
            match="exists and is not an empty folder; choose another, nothing is overwritten",
        ):
            RunFolder.create(path, record())
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("thesis.tex", "mine")]


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="file"):
        RunFolder.create(tmp_path / "file" / "run", record())


@pytest.mark.parametrize(("name", "load"), [("run.json", load_run), ("model.json", load_model)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(version=3),
            "has version 3, this program reads up to 2; upgrade dynadp",
        ),
        (lambda c: c.update(version=0), "has version 0; expected a whole number from 1 to 2"),
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
        (lambda c: c.update(intercept=None), "expected 12 finite .* and an intercept"),
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
    ("change", "message"),
    [
        (lambda c: c.update(simulation=False), "run.json does not match its hash"),
        (lambda c: c["plan"].update(rho=1.0), "run.json does not match its hash"),
        (lambda c: c.pop("content_hash"), "run.json does not match its hash"),
        (lambda c: c.update(rows={"a": 3}), "run.json lacks what a run of dynadp records"),
        (lambda c: c.pop("topology"), "run.json lacks what a run of dynadp records"),
        (lambda c: c["plan"].pop("total"), "run.json lacks what a run of dynadp records"),
        (lambda c: c["plan"].update(alphas=[0.1]), "run.json lacks what a run of dynadp records"),
        (lambda c: c["plan"].update(alphas=[[0.1], 0.2]), "run.json lacks what a run"),
        (lambda c: c["topology"].update(edges=[[0, 9]]), "run.json lacks what a run of dynadp"),
        (lambda c: c.update(surprise=1), "run.json lacks what a run of dynadp records"),
    ],
)
def test_changed_record_is_refused(tmp_path, change, message):
    file = RunFolder.create(tmp_path / "run", record()).path / "run.json"
    content = json.loads(file.read_text())
    change(content)
    if "hash" not in message:
        bare = {k: v for k, v in content.items() if k not in ("format", "version", "content_hash")}
        content["content_hash"] = digest(bare)
    file.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=message):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [{"config": {"rho": 1.0}}, {"config": None}, {"config_hash": ""}, {"config_hash": None}],
)
def test_config_must_match_its_hash(run, change):
    edit(run / "run.json", lambda content: content.update(change))
    with pytest.raises(RecordError, match="the config does not match its hash"):
        load_run(run)


# --------------------------------------------------------------------------------------------------
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
        RunFolder(run, load_run(run)).append([{"round": 5}, {"change": float("nan")}])
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
