"""Exports answer as the model does: on made and on adversarial rows, in every format."""

import json
import pickle
import sqlite3
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pandas as pd
import polars as pl
import pytest
from click.testing import CliRunner

from dynadp import (
    Categorical,
    Label,
    Model,
    NetworkClassifier,
    NetworkRegressor,
    Numeric,
    Schema,
    Topology,
    census,
    load_model,
    train,
)
from dynadp.cli import main
from dynadp.data import Target, plain_column
from dynadp.errors import DataError, DeclarationError
from dynadp.exports import FORMATS, PlainModel, export, to_json, to_onnx, to_pipeline, to_sql
from dynadp.mechanisms import SeededEntropy
from dynadp.runs import Calibration, Costs
from support.exports import (
    answers,
    code_of_the_page,
    in_texts,
    query_of_the_page,
    run_onnx,
    run_pipeline,
    run_query,
    run_scorer,
    run_sql,
    same,
)
from support.pages import ROOT, blocks

COLUMNS = (
    Numeric(name="age", low=17, high=90, encode=("linear", "square"), missing=40.0),
    Numeric(name="gain", low=0, high=99_999, transform="log1p", weight=0.5),
    Numeric(
        name="hours",
        low=1,
        high=99,
        encode=("hats", "linear"),
        knots=(1.0, 20.0, 40.0, 60.0),
        signed=False,
        missing="drop",
    ),
    Numeric(
        name="debt", low=-5, high=1e6, transform="log1p", encode=("hats",), knots=(-5.0, 10.0, 9e5)
    ),
    Categorical(name="job", values=("clerk", "o'hara (x)", "a.b"), missing="other"),
    Categorical(name="code", values=(1, 2.5, -3, 0), other="column", missing="other", weight=2.0),
    Categorical(name="zip", values=("01", "7"), other="refuse", missing={"value": "7"}),
    Categorical(name="tie", values=("no", "yes")),
)


def made_model(rng, *, columns=COLUMNS, scaling="clip", norm=1.7, centred=True, classes=2, **more):
    schema = Schema(
        columns=columns,
        label=Label(name="y", negative="<=50K", positive=">50K"),
        norm=norm,
        scaling=scaling,
        missing_values=("", "?"),
        intercept=more.pop("intercept", 1.0),
    )
    d = schema.feature_count
    if centred:
        schema = schema.model_copy(update={"centre": tuple(rng.uniform(-0.3, 0.6, d).tolist())})
    K = 1 if classes == 2 else classes
    names = ("<=50K", ">50K") if classes == 2 else tuple(f"class {k}" for k in range(classes))
    return Model(
        classes=names,
        coef=rng.normal(size=(K, d)),
        intercept=rng.normal(size=K) * bool(schema.intercept),
        schema=schema,
        loss=more.pop("loss", {"name": "logistic", "margin": 0.0}),
        mechanism="none",
        privacy={},
        estimator=None if classes == 2 else {"parameters": {}},
        **more,
    )


def made_rows(rng, count=200):
    """Rows within bounds, beyond them, at edges, missing and unlisted."""
    pick = rng.choice
    return {
        "age": pick([*rng.uniform(0, 120, 20), 17, 90, -1e9, 1e9, np.nan, -0.0], count),
        "gain": pick([0.0, 1e-9, 5.0, 99_999.0, 1e308, -7.0, 3_000.5, np.inf, np.nan], count),
        "hours": pick([1.0, 20.0, 33.3, 40.0, 60.0, 99.0, 75.5, -1.0, 1e5, np.nan], count),
        "debt": pick([-5.0, -4.99, 0.0, 10.0, 1e4, 9e5, 1e6, 2e6, np.nan], count, p=_rare(9)),
        "job": pick(["clerk", " clerk\t", "o'hara (x)", "a.b", "acb", "CLERK", "", "?"], count),
        "code": pick(["1", "1.0", "2.5", "-3", "0", "9", "", "x", " 1 "], count),
        "zip": pick(["01", "7", "7.0", "", "1"], count, p=_rare(5)),
        "tie": pick(["no", "yes", "maybe", ""], count, p=_rare(4)),
    }


def _rare(count):
    """The last one of so many comes in 3 of 100 rows."""
    return [0.97 / (count - 1)] * (count - 1) + [0.03]


CASES = [
    {},
    {"scaling": "unit"},
    {"scaling": "none", "norm": 3.0},
    {"centred": False},
    {"norm": 0.2},
    {"intercept": 0.0},
    {"intercept": 0.25, "calibration": Calibration(2.5, -0.7, "made rows")},
    {"classes": 4},
    {"classes": 4, "loss": {"name": "softmax"}},
    {"classes": 3, "loss": {"name": "softmax"}, "calibration": Calibration(1.7, 0.0, "made rows")},
]


@pytest.fixture(params=CASES, ids=str)
def case(request):
    rng = np.random.default_rng(0)
    model, rows = made_model(rng, **request.param), made_rows(rng)
    return model, rows, answers(model, rows)


def test_onnx(case):
    model, rows, expected = case
    same(run_onnx(model, rows), expected)
    graph = to_onnx(PlainModel.of(model)).graph
    read = {name for node in graph.node for name in node.input}
    assert {one.name for one in graph.initializer} <= read  # a runtime warns of others


def test_onnx_compares_cells_as_dynadp_does():
    column = Categorical(name="code", values=(1, "007", 2.5, -3, 0, "x y", "ü+", 1e-7))
    model = made_model(np.random.default_rng(1), columns=(column, COLUMNS[0]), centred=False)
    cells = "1 +1 01 1.00 1. 007 007.0 7 2.5 02.50 +2.5 -3 -03.0 0 -0 .0 00 ü+ üü 1e-07 10 0.1 nan"
    cells = [*cells.split(), " x y ", "\u00a0x y\u2003", "x  y", "\x1c1\x85", "X Y", "0.0000001"]
    rows = {"code": np.array(cells, dtype=object), "age": np.full(len(cells), 30.0)}
    rows["code"][-2] = ""
    same(run_onnx(model, rows), answers(model, rows))


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
def test_sql(case, engine):
    model, rows, expected = case
    same(run_sql(model, rows, engine), expected)


def test_pipeline(case):
    model, rows, expected = case
    pipeline = pickle.loads(pickle.dumps(to_pipeline(PlainModel.of(model))))
    found = run_pipeline(pipeline, rows, expected)
    if model.calibration is not None:  # scores of a calibrated pipeline are log-odds
        a, b = model.calibration.slope, model.calibration.offset
        found = [one and (one[0], (one[1] - b) / a, one[2]) for one in found]
    same(found, expected)


def test_the_scorer_of_the_page(case):
    model, rows, expected = case
    same(run_scorer(model, rows), expected)


def test_the_scorers_of_the_page_are_short():
    text = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    code = next(block.text for block in blocks(text) if "def score(m, row)" in block.text)
    assert code.count("\n    ") <= 12
    assert query_of_the_page().strip().count("\n") <= 12


def test_the_query_of_the_page(tmp_path):
    for i, given in enumerate(one for one in CASES if "classes" not in one):
        rng = np.random.default_rng(i)
        model, rows = made_model(rng, **given), made_rows(rng, 120)
        found = run_query(model, rows, tmp_path)
        for got, want in zip(found, answers(model, rows), strict=True):
            assert (got is None or not np.isfinite(got)) == (want is None)
            if want is not None:
                np.testing.assert_allclose(got, want[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("more", [{}, {"calibration": Calibration(2.0, 0.3, "made rows")}])
@pytest.mark.parametrize("loss", ["logistic", "huber_hinge"])
def test_a_threshold_moves_labels_and_nothing_else(loss, more):
    rng = np.random.default_rng(3)
    model, rows = made_model(rng, **more), made_rows(rng, 200)
    object.__setattr__(model, "loss", {"name": loss})
    scores = np.unique([one[1] for one in answers(model, rows) if one])
    cut = float(scores[len(scores) // 3 :][:2].mean())
    expected = answers(model, rows, cut)
    assert expected != answers(model, rows)
    same(run_onnx(model, rows, threshold=cut), expected)
    same(run_sql(model, rows, "sqlite", threshold=cut), expected)
    pipeline = to_pipeline(PlainModel.of(model, threshold=cut))
    assert hasattr(pipeline, "predict_proba") == model.gives_probabilities
    for got, want in zip(run_pipeline(pipeline, rows, expected), expected, strict=True):
        if want is None:
            continue
        assert got[0] == want[0]
        if want[2] is not None:
            assert np.isclose(got[2], want[2])


@pytest.mark.parametrize("more", [{}, {"calibration": Calibration(2.0, 0.3, "made rows")}])
def test_the_answer_at_the_threshold_is_the_first_class(more):
    model = made_model(np.random.default_rng(0), **more)
    model.coef[:], model.intercept[:] = 0.0, 0.0
    rows = made_rows(np.random.default_rng(1), 60)
    expected = answers(model, rows)
    assert {one[0] for one in expected if one} == {"<=50K"}
    for found in (run_onnx(model, rows), run_sql(model, rows, "duckdb")):
        same(found, expected)
    found = run_pipeline(to_pipeline(PlainModel.of(model)), rows, expected)
    assert {one[0] for one in found if one} == {"<=50K"}


def test_a_models_own_threshold_is_exported():
    rng = np.random.default_rng(3)
    model, rows = made_model(rng), made_rows(rng, 50)
    scores = [one[1] for one in answers(model, rows) if one]
    cut = float(np.median(scores)) + 1e-6
    own = replace(model, threshold=cut)
    assert answers(own, rows) != answers(model, rows)
    same(run_onnx(own, rows), answers(own, rows))
    same(run_onnx(own, rows, threshold=0.0), answers(model, rows))


NUMBERS = {
    "a bound on rows": {"data_norm": 4.0},
    "no intercept": {"bounds": (-1.5, 2.0), "fit_intercept": False},
    "bounds": {"bounds": ([-2.0, -1.0, 0.0], [1.0, 2.0, 1.0])},
    "a public centre": {"data_norm": 4.0, "centre": [0.5, 0.5, -0.5]},
    "bounds alone": {"bounds": (-1.0, 1.0), "centre": None},
}


@pytest.mark.parametrize("named", [False, True], ids=["matrix", "frame"])
@pytest.mark.parametrize("how", NUMBERS)
def test_probabilities_and_thresholds_of_numbers_that_are_centred(how, named, tmp_path):
    """They belong to rows that are scaled as a whole about their centre."""
    rng = np.random.default_rng(0)
    X = rng.normal(0.4, 1.5, (900, 3))  # some beyond their bounds
    X = pd.DataFrame(X, columns=["age", "debt", "x0"]) if named else X
    y = (np.asarray(X)[:, 0] > 0.4).astype(int)
    given = {"epsilon": 20.0, "delta": 1e-5, "classes": [0, 1], "random_state": 0}
    cut = 0.7 if "bounds" in NUMBERS[how] else 5.0
    fitted = NetworkClassifier(**given, **NUMBERS[how], threshold=cut, calibration=True).fit(X, y)
    assert fitted.counted_ is not None
    fitted.save(tmp_path / "model.json")
    model = load_model(tmp_path / "model.json")
    X = X[:200]
    names = list(X) if named else ["x0", "x1", "x2"]
    rows = dict(zip(names, np.asarray(X).T, strict=True))
    p, labels = fitted.predict_proba(X)[:, 1], fitted.predict(X)
    assert (labels != (fitted.decision_function(X) > 0)).any()
    pipeline = pickle.loads(pickle.dumps(to_pipeline(PlainModel.of(model))))
    np.testing.assert_allclose(
        pipeline.predict_proba(np.asarray(X))[:, 1], p, rtol=1e-9, atol=1e-12
    )
    assert pipeline.predict(np.asarray(X)).tolist() == labels.tolist()
    for found in (run_onnx(model, rows), run_sql(model, rows, "sqlite"), run_scorer(model, rows)):
        np.testing.assert_allclose([one[2] for one in found], p, rtol=1e-9, atol=1e-12)
        assert [str(one[0]) for one in found] == [str(label) for label in labels]


@pytest.mark.parametrize("how", NUMBERS)
def test_answers_of_numbers_that_are_centred(how, tmp_path):
    """A number that is answered belongs to the row as it was shortened about its centre."""
    rng = np.random.default_rng(0)
    X = rng.normal(0.4, 1.5, (900, 3))  # some beyond their bounds
    y = 3 * X[:, 0] - X[:, 1] + rng.normal(size=900)
    given = {"epsilon": 20.0, "delta": 1e-5, "target": (-12.0, 12.0), "random_state": 0}
    fitted = NetworkRegressor(**given, **NUMBERS[how]).fit(X, y)
    fitted.save(tmp_path / "model.json")
    model, rows = (
        load_model(tmp_path / "model.json"),
        dict(zip(("x0", "x1", "x2"), X.T, strict=True)),
    )
    expected = fitted.predict(X)
    again = NetworkRegressor.load(tmp_path / "model.json")
    np.testing.assert_allclose(again.predict(X), expected, rtol=1e-12, atol=1e-12)
    straight = np.clip(X @ fitted.coef_ + fitted.intercept_, -12, 12)
    assert (np.abs(straight - expected) > 0.1).any() == (
        how not in ("no intercept", "bounds alone")
    )
    plain = PlainModel.of(model)
    session = ort.InferenceSession(to_onnx(plain).SerializeToString())
    feeds = {one.name: rows[one.name][:, None] for one in session.get_inputs()}
    (score, derived), numbers = code_of_the_page(), to_json(plain)
    found = [session.run(["prediction"], feeds)[0], to_pipeline(plain).predict(X)]
    found.append(
        [np.clip(12 * score(numbers, derived(numbers, row))[0], -12, 12) for row in in_texts(rows)]
    )
    with sqlite3.connect(":memory:") as book:
        pd.DataFrame({"id": np.arange(900), **rows}).to_sql("data", book, index=False)
        found.append([row[1] for row in sorted(book.execute(to_sql(plain, keep=["id"])))])
    for one in found:
        np.testing.assert_allclose(np.ravel(one), expected, rtol=1e-9, atol=1e-9)


def test_no_threshold_for_several_classes():
    model = made_model(np.random.default_rng(0), classes=3)
    for threshold in (0.5, "balanced", Costs(1, 2)):
        with pytest.raises(DeclarationError, match=r"3 classes.*leave it out"):
            PlainModel.of(model, threshold=threshold)


@pytest.fixture(scope="module", params=[2, 3], ids=["two classes", "three classes"])
def ready(request, tmp_path_factory):
    """A fitted estimator without a schema, its file, and rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    y = (X[:, 0] > 0).astype(int) + (request.param > 2) * (X[:, 1] > 0)
    total = {"epsilon": 5.0, "delta": 1e-5, "data_norm": 3.0, "random_state": 0}
    fitted = NetworkClassifier(**total, classes=range(request.param)).fit(X, y)
    path = tmp_path_factory.mktemp("ready") / "model.json"
    fitted.save(path)
    return fitted, path, X


def test_a_model_of_ready_features(ready):
    fitted, path, X = ready
    model = load_model(path)
    assert model.gives_probabilities == hasattr(fitted, "predict_proba")
    labels, scores = fitted.predict(X), fitted.decision_function(X)
    pipeline = to_pipeline(PlainModel.of(model))
    assert (pipeline.predict(X) == labels).all()
    np.testing.assert_allclose(pipeline.decision_function(X), scores, rtol=1e-9, atol=1e-12)
    rows = {f"x{i}": X[:, i] for i in range(3)}
    found = run_onnx(model, rows)
    assert [one[0] for one in found] == [str(label) for label in labels]
    np.testing.assert_allclose([one[1] for one in found], scores, rtol=1e-9, atol=1e-12)
    found = run_sql(model, {**rows, "tie": np.zeros(len(X))}, "duckdb")
    assert [one[0] for one in found] == labels.tolist()
    found = run_scorer(model, rows)
    np.testing.assert_allclose([one[1] for one in found], scores, rtol=1e-9, atol=1e-12)


def test_an_estimator_with_a_schema_is_exported_as_a_run_is(tmp_path):
    data = census(rows=900, nodes=2, seed=0)
    total = {"epsilon": 3.0, "delta": 1e-5, "schema": data.schema, "random_state": 0}
    columns = {name: cells for name, cells in data.train.items() if name != data.schema.label.name}
    fitted = NetworkClassifier(**total, nodes=2).fit(columns, data.train[data.schema.label.name])
    fitted.save(tmp_path / "model.json")
    model = load_model(tmp_path / "model.json")
    found = run_onnx(model, data.test)
    assert [one[0] for one in found] == fitted.predict(data.test).tolist()


def test_a_pickled_pipeline_needs_no_dynadp(tmp_path):
    rng = np.random.default_rng(5)
    model, rows = made_model(rng), made_rows(rng, 40)
    good = [i for i, one in enumerate(answers(model, rows)) if one]
    frame = pd.DataFrame({name: cells[good] for name, cells in rows.items()})
    frame.to_pickle(tmp_path / "rows.pickle")
    export(model, "sklearn", tmp_path / "model.pickle")
    code = (
        "import pickle, sys; sys.modules['dynadp'] = None; import pandas as pd\n"
        "model = pickle.load(open('model.pickle', 'rb'))\n"
        "print('|'.join(model.predict(pd.read_pickle('rows.pickle'))))"
    )
    given = [sys.executable, "-c", code]
    shown = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.strip().split("|") == [answers(model, rows)[i][0] for i in good]


def test_a_pipeline_takes_other_frames_and_cells():
    rng = np.random.default_rng(6)
    model = made_model(rng, columns=(COLUMNS[5], COLUMNS[4], COLUMNS[0]))
    pipeline = to_pipeline(PlainModel.of(model))
    whole = {"code": [1, 0, 9, -3], "job": ["clerk", None, "a.b", "x"], "age": [20, 30, 40, 99]}
    want = model.decision(whole)
    for frame in (pd.DataFrame(whole), pl.DataFrame(whole)):
        np.testing.assert_allclose(pipeline.decision_function(frame), want)
    gaps = pd.DataFrame({**whole, "code": [1.0, np.nan, 2.5, -3.0]})
    np.testing.assert_allclose(pipeline.decision_function(gaps), model.decision(dict(gaps.items())))


def test_a_value_that_is_spelled_like_a_missing_cell():
    column = Categorical(name="alley", values=("None", "paved"), missing="other")
    model = made_model(np.random.default_rng(7), columns=(column, COLUMNS[0]))
    with pytest.raises(DataError, match=r"'alley' lists the value 'None'.*json, sql or onnx"):
        to_pipeline(PlainModel.of(model))
    cells = np.array(["None", "paved", "", "nan"], dtype=object)
    rows = {"alley": cells, "age": np.array([20.0, 30.0, 40.0, np.inf])}
    same(run_onnx(model, rows), answers(model, rows))
    same(run_sql(model, {**rows, "tie": cells}, "sqlite"), answers(model, rows))


def test_what_an_export_does_not_know_is_refused():
    class Sound:
        kind, name = "sound", "voice"

    with pytest.raises(DataError, match=r"'voice' is of kind 'sound'.*a schema declares"):
        plain_column(Sound())
    model = made_model(
        np.random.default_rng(0), columns=(Numeric(name="score", low=0, high=1, missing=0.0),)
    )
    with pytest.raises(DataError, match=r"name of an output.*rename it"):
        to_onnx(PlainModel.of(model))
    with pytest.raises(DeclarationError, match="to is 'pmml'; expected one of json"):
        export(model, "pmml", "nowhere")


def test_export_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(8)
    model, rows = made_model(rng), made_rows(rng, 50)
    model.save("model.json")
    for to in FORMATS:
        shown = CliRunner().invoke(main, ["export", "model.json", f"out.{to}", "--to", to])
        assert (shown.exit_code, shown.output) == (0, f"Wrote out.{to}.\n")
    given = ["export", "model.json", "at.json", "--to", "json", "--threshold", "0.3", "--json"]
    shown = CliRunner().invoke(main, given)
    assert json.loads(shown.output) == {"version": 1, "to": "json", "file": "at.json"}
    at, plain = (json.loads((tmp_path / name).read_text()) for name in ("at.json", "out.json"))
    assert (at["threshold"], plain["threshold"]) == (0.3, 0.0)
    assert at == {**plain, "threshold": 0.3}
    session = ort.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == list(rows)
    known = replace(model, calibration=Calibration(2.0, -1.0, "public rows", positives=0.2))
    known.save("known.json")
    for asked, odds in ((["--threshold", "balanced"], 0.25), (["--cost", "1", "4"], 0.25)):
        shown = CliRunner().invoke(main, ["export", "known.json", "k.json", "--to", "json", *asked])
        assert shown.exit_code == 0, shown.output
        at = json.loads((tmp_path / "k.json").read_text())["threshold"]
        assert at == pytest.approx((np.log(odds) + 1) / 2)
    given = ["export", "model.json", "out.sql", "--to", "sql", "--table", "t", "--keep", "id"]
    assert CliRunner().invoke(main, given).exit_code == 0
    assert '"t"' in (tmp_path / "out.sql").read_text()


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    model = made_model(np.random.default_rng(0))
    model.save(tmp_path / "model.json")
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "dynadp.exports.network", raising=False)
    given = ["export", str(tmp_path / "model.json"), str(tmp_path / "out"), "--to", "onnx"]
    shown = CliRunner().invoke(main, given)
    assert shown.exit_code == 2
    assert "pip install 'dynadp[onnx]'" in shown.output


@pytest.fixture(scope="module", params=[{"classes": 3}, {"target": True}], ids=str)
def other(request):
    """A run's model of several classes, or of a number, and rows with what it answers."""
    data, ring = census(rows=1_200, nodes=3, seed=1, **request.param), Topology.family("ring", 3)
    given = {"epsilon": 3.0, "delta": 1e-5, "draws": SeededEntropy(0)}
    model = train(data.schema, data.tables(ring.nodes), ring, **given).model()
    rows = {name: cells[:150] for name, cells in data.test.items()}
    return model, rows, model.predict(rows)


def test_models_of_classes_and_of_numbers_that_runs_made(other):
    model, rows, expected = other
    plain, number = PlainModel.of(model), model.target is not None
    name = "prediction" if number else "label"
    session = ort.InferenceSession(to_onnx(plain).SerializeToString())
    feeds = {
        one.name: np.asarray(rows[one.name]).astype(float if "double" in one.type else object)
        for one in session.get_inputs()
    }
    found = [session.run([name], {column: cells[:, None] for column, cells in feeds.items()})[0]]
    found.append(to_pipeline(plain).predict(pd.DataFrame(rows)))
    frame = pd.DataFrame({"id": np.arange(150), **rows})
    with sqlite3.connect(":memory:") as book:
        frame.to_sql("data", book, index=False)
        answers = sorted(book.execute(to_sql(plain, keep=["id"])).fetchall())
        found.append(np.array([row[1] for row in answers]))
    (score, _), numbers = code_of_the_page(), to_json(plain)
    scores = [score(numbers, row) for row in in_texts(rows)]
    if number:
        low, high = numbers["target"]
        answer = [np.clip((low + high) / 2 + s[0] * (high - low) / 2, low, high) for s in scores]
    else:
        answer = [numbers["classes"][int(s.argmax())] for s in scores]
    for one in [*found, np.array(answer)]:
        if number:
            np.testing.assert_allclose(one.astype(float), expected, rtol=1e-9)
        else:
            assert one.tolist() == expected.tolist()
    with pytest.raises(DeclarationError, match="leave it out"):
        PlainModel.of(model, threshold=0.5)


def test_answers_beyond_the_targets_bounds_are_the_bounds():
    rng = np.random.default_rng(2)
    made = made_model(rng, columns=COLUMNS[:1], norm=0.1)
    target = Target(name="y", low=-1.0, high=4.0)
    schema = made.schema.model_copy(update={"label": target})
    model = replace(made, classes=(), coef=made.coef * 9, schema=schema, target=target)
    rows = {"age": np.array([*rng.uniform(17, 90, 60), np.inf])}
    good = {"age": rows["age"][:-1]}
    expected = model.predict(good)
    assert {-1.0, 4.0} & set(expected.tolist())
    graph = ort.InferenceSession(to_onnx(PlainModel.of(model)).SerializeToString())
    found = graph.run(None, {"age": rows["age"][:, None]})[0]
    np.testing.assert_allclose(found[:-1], expected)
    assert np.isnan(found[-1])
    pipeline = to_pipeline(PlainModel.of(model))
    np.testing.assert_allclose(pipeline.predict(pd.DataFrame(good)), expected)
    with sqlite3.connect(":memory:") as book:
        pd.DataFrame({"id": range(61), **rows}).to_sql("data", book, index=False)
        answers = sorted(book.execute(to_sql(PlainModel.of(model), keep=["id"])).fetchall())
    np.testing.assert_allclose([row[1] for row in answers[:-1]], expected)
    assert answers[-1][1] is None
