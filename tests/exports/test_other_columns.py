"""Columns of every kind answer outside dynadp as inside, or are refused by name."""

import json
import pickle
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dynadp import Categorical, Date, Fourier, Label, Model, Numeric, Schema
from dynadp.data import Bins, Cross, Hashed, Vector
from dynadp.errors import DataError
from dynadp.exports import PlainModel, export, to_onnx, to_pipeline, to_sql
from dynadp.runs import Calibration
from support.exports import answers, run_onnx, run_pipeline, run_scorer, run_sql, same

BALANCE = Numeric(name="balance", low=-1e4, high=1e5, transform="signed_log", missing=-30.0)
JOB = Categorical(name="job", values=("clerk", 7, "cook"), other="refuse", missing={"value": 7})
AGE = Bins(name="age", edges=(0.0, 18.5, 65.0), missing=70.0, weight=0.7)
TOWN = Hashed(name="town", buckets=5, salt="2026", missing="other", weight=1.5)
QUESTIONS = Vector(name="survey", columns=("q1", "q2", "q3"), norm=3.0, missing=1.5, weight=0.8)
WAVES = Fourier(
    name="waves",
    parts=(BALANCE, Numeric(name="q1", low=-1, high=2, signed=False, missing="drop")),
    pairs=3,
    width=0.5,
    weight=1.2,
)
DAY = Date(
    name="day",
    first="1999-12-31",
    last="2030-06-01",
    encode=("month", "linear", "weekday"),
    missing=date(2000, 2, 29),
    weight=0.9,
)
KINDS = {
    "signed log": (
        BALANCE,
        Numeric(
            name="q1",
            low=-1,
            high=9,
            transform="signed_log",
            encode=("hats", "square", "linear"),
            knots=(-0.5, 0.0, 3.0),
        ),
    ),
    "bins": (AGE, BALANCE),
    "bins of none": (AGE.model_copy(update={"missing": "other"}), BALANCE),
    "bins that refuse": (AGE.model_copy(update={"missing": "refuse"}), BALANCE),
    "cross": (Cross(name="both", parts=(JOB, AGE), weight=1.1), JOB, BALANCE),
    "cross of none": (
        Cross(
            name="both",
            parts=(
                AGE.model_copy(update={"missing": "other"}),
                JOB.model_copy(update={"other": "zero", "missing": "other"}),
            ),
        ),
        BALANCE,
    ),
    "vector": (QUESTIONS,),
    "vector that refuses": (QUESTIONS.model_copy(update={"missing": "refuse", "norm": 1e-3}),),
    "fourier": (WAVES, BALANCE),
    "date": (DAY, BALANCE),
    "date that refuses": (DAY.model_copy(update={"missing": "drop"}),),
    "another format": (DAY.model_copy(update={"format": "on %d.%m.%Y!"}), BALANCE),
    "hashed": (TOWN, BALANCE),
    "hashed that refuses": (TOWN.model_copy(update={"missing": "refuse"}),),
    "a cross of it": (Cross(name="both", parts=(TOWN, AGE)), BALANCE),
}
HASHED = {name for name in KINDS if "hashed" in name or name == "a cross of it"}
DAYS = tuple(
    """2000-02-29 2001-02-29 1900-02-29 2024-12-31 1999-12-31 2030-06-02 0001-01-01 9999-12-31
    2020-1-5 2020-01-05T10:00 2020-13-01 2020-04-31 2020-00-10 0000-05-05 20-01-01 2020-01-05x
    x 2020--5 2020-011-05 02020-01-01 2000-03-01 2100-02-28 2023-07-09""".split()  # noqa: SIM905
)
SPELLED = {"%Y-%m-%d": "{}-{}-{}", "on %d.%m.%Y!": "on {2}.{1}.{0}!"}


def model_of(rng, columns, *, centred=True):
    schema = Schema(columns=columns, label=Label(name="y", negative="no", positive="yes"), norm=1.1)
    d = schema.feature_count
    if centred:
        schema = schema.model_copy(update={"centre": tuple(rng.uniform(-0.3, 0.6, d).tolist())})
    return Model(
        classes=("no", "yes"),
        coef=rng.normal(size=(1, d)),
        intercept=rng.normal(size=1),
        schema=schema,
        loss={"name": "logistic", "margin": 3.0},
        mechanism="none",
        privacy={},
        calibration=Calibration(2.5, -0.7, "made rows"),
    )


def rows_for(rng, model, count=160):
    """Cells within bounds, beyond them, at edges, missing, and such as no column takes."""
    pick = rng.choice
    few = [0.97 / 9] * 9 + [0.03]
    texts = [one.format for one in model.schema.columns if isinstance(one, Date)]
    days = [*DAYS, "", " 2020-01-05 ", *(str(date.fromordinal(n)) for n in range(737000, 737060))]
    if texts:
        days = [_spelled(day, texts[0]) for day in days]
    rows = {
        "balance": pick(
            [0.0, -0.0, 1e-9, -1e4, 1e5, -2e4, 1e300, -3.5, np.nan, np.inf], count, p=few
        ),
        "job": pick(
            ["clerk", "7", "7.0", " cook ", "cook", "7", "clerk", "", "cook", "x"], count, p=few
        ),
        "age": pick(
            [0.0, -1e-9, -5.0, 18.5, 18.499999, 65.0, 64.9, 1e200, np.nan, -np.inf], count, p=few
        ),
        "town": pick(
            ["Lyon", "1", "1.0", "1.00", "1.", "1.5", "Üçü", "o'hara", "", " Lyon"], count
        ),
        "q1": pick([0.0, -0.5, 1e-5, 2.5, -9.0, 1e160, 3.0, 0.2, np.nan, -np.inf], count, p=few),
        "q2": pick([0.0, 1.0, -2.0, 1e90, 1e-300, 5.0, 0.1, -0.1, 0.3, np.nan], count, p=few),
        "q3": rng.normal(size=count),
        "day": pick(days, count),
    }
    if "q2" in model.schema.raw_columns:
        rows["q1"][:8], rows["q2"][:8], rows["q3"][:8] = 0.0, 0.0, 0.0
    return {name: rows[name] for name in model.schema.raw_columns[:-1]}


def _spelled(text, spelling):
    parts = text.strip().split("-")
    return SPELLED[spelling].format(*parts) if len(parts) == 3 and "T" not in text else text


def as_days(rows):
    """Days as an input of a graph has them: since 1970-01-01; NaN for a missing one, and an
    infinite one for what is none.
    """

    def number(text):
        if not text:
            return np.nan
        try:
            y, m, d = text.split("T")[0].strip().split("-")
            if len(y) != 4 or max(len(m), len(d)) > 2:
                return np.inf
            return float((date(int(y), int(m), int(d)) - date(1970, 1, 1)).days)
        except ValueError:
            return np.inf

    return (
        {"day": np.array([number(text) for text in rows["day"].tolist()])} if "day" in rows else {}
    )


@pytest.fixture(params=KINDS)
def case(request):
    rng = np.random.default_rng(0)
    model = model_of(rng, KINDS[request.param], centred="cross" not in request.param)
    rows = rows_for(rng, model)
    return request.param, model, rows, answers(model, rows)


def test_the_functions_of_the_page(case):
    _, model, rows, expected = case
    same(run_scorer(model, rows), expected)


def test_pipeline(case):
    _, model, rows, expected = case
    pipeline = pickle.loads(pickle.dumps(to_pipeline(PlainModel.of(model))))
    found = run_pipeline(pipeline, rows, expected)
    same([one and (one[0], (one[1] + 0.7) / 2.5, one[2]) for one in found], expected)


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
def test_sql(case, engine):
    name, model, rows, expected = case
    if name in HASHED:
        with pytest.raises(DataError, match=r"'town' is hashed, and SQL.*json or sklearn"):
            to_sql(PlainModel.of(model))
    else:
        same(run_sql(model, rows, engine), expected)


def test_onnx(case):
    name, model, rows, expected = case
    if name in HASHED:
        with pytest.raises(DataError, match=r"'town' is hashed, and ONNX.*json or sklearn"):
            to_onnx(PlainModel.of(model))
    elif name != "another format":  # a graph has days as numbers
        same(run_onnx(model, rows, as_days(rows)), expected)


def test_days_that_no_mark_keeps_apart():
    for spelling in ("%Y%m%d", "%Y-%m%d", "%d%m-%Y", "%d7%m7%Y"):
        model = model_of(
            np.random.default_rng(0),
            (Date(name="day", first="2000-01-01", last="2001-01-01", format=spelling),),
        )
        with pytest.raises(DataError, match=r"'day' has the format.*json, sklearn or onnx"):
            to_sql(PlainModel.of(model))
    rows = {"day": np.array(["20000317", "2000317", "20001x", "20000230"])}
    model = model_of(np.random.default_rng(0), (DAY.model_copy(update={"format": "%Y%m%d"}),))
    same(run_scorer(model, rows), answers(model, rows))


def test_a_column_that_is_text_and_number():
    columns = (AGE, Categorical(name="age", values=("1", "2")))
    columns = (Cross(name="both", parts=(*columns[1:], JOB)), AGE)
    model = model_of(np.random.default_rng(0), columns)
    with pytest.raises(DataError, match=r"'age' is read as text by one.*json, sql or sklearn"):
        to_onnx(PlainModel.of(model))
    rows = {"age": np.array(["1", "2", "2.0", "9"]), "job": np.array(["cook", "7", "clerk", "x"])}
    same(run_scorer(model, rows), answers(model, rows))


def test_typed_days(tmp_path):
    model = model_of(np.random.default_rng(0), (DAY, BALANCE))
    days = pd.to_datetime(["2020-01-05 10:30", "1999-01-01 00:00", "2024-02-29 23:59", None])
    rows = {"day": days, "balance": np.array([1.0, -5.0, 7e4, 2.0])}
    expected = model.decision({"day": days.to_numpy(), "balance": rows["balance"]})
    pipeline = to_pipeline(PlainModel.of(model))
    for frame in (pd.DataFrame(rows), pl.DataFrame({**rows, "day": days.to_numpy()})):
        found = (pipeline.decision_function(frame) + 0.7) / 2.5
        np.testing.assert_allclose(found, expected)
    found = run_sql(model, rows, "duckdb")
    np.testing.assert_allclose([one[1] for one in found], expected)


def test_a_scorer_reads_what_is_written(tmp_path):
    model = model_of(np.random.default_rng(0), (DAY, TOWN, QUESTIONS, WAVES))
    export(model, "json", tmp_path / "scorer.json")
    made = json.loads((tmp_path / "scorer.json").read_text())
    assert [one["kind"] for one in made["derived"]] == ["date", "hashed", "vector", "fourier"]
    assert len(made["features"]) == model.schema.dimension
