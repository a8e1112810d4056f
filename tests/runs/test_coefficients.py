"""Coefficients in the users' units add up to the score, and say what noise may have made."""

import json
import re
from dataclasses import replace

import numpy as np
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
from dynadp.consensus import BOUND, FIRST_ORDER, Spread
from dynadp.data import Target
from dynadp.errors import RecordError
from dynadp.mechanisms import SeededEntropy, Sum
from dynadp.report.coefficients import ModelView
from dynadp.report.figures import coefficients, image
from dynadp.runs import ModelNoise
from support.run_folders import make_run

COLUMNS = (
    Numeric(name="age", low=17, high=90, encode=("linear", "square"), weight=0.5),
    Numeric(name="gain", low=-5, high=1_000, transform="log1p", signed=False),
    Numeric(name="hours", low=0, high=99, encode=("hats",), knots=(0.0, 40.0, 99.0)),
    Categorical(name="job", values=("clerk", "smith"), other="column", weight=2.0),
)
ROWS = {
    "age": [17.0, 30.0, 90.0, 45.5],
    "gain": [-5.0, 0.0, 1_000.0, 77.0],
    "hours": [0.0, 20.0, 40.0, 70.0],
    "job": ["clerk", "smith", "else", "clerk"],
}


def made_model(scaling="none", norm=20.0, centred=True, classes=2):
    rng = np.random.default_rng(0)
    schema = Schema(
        columns=COLUMNS,
        label=Label(name="y", negative="no", positive="yes"),
        norm=norm,
        scaling=scaling,
        intercept=0.5,
    )
    d, K = schema.feature_count, 1 if classes == 2 else classes
    if centred:
        schema = schema.model_copy(update={"centre": tuple(rng.uniform(0, 0.4, d).tolist())})
    spreads = [Spread(rng.uniform(0.1, 1, d + 1), BOUND) for _ in range(K)]
    return Model(
        classes=("no", "yes") if classes == 2 else tuple(f"c{k}" for k in range(K)),
        coef=rng.normal(size=(K, d)),
        intercept=rng.normal(size=K),
        schema=schema,
        loss={"name": "logistic"},
        mechanism="sum",
        privacy={},
        estimator=None if classes == 2 else {"parameters": {}},
        noise=ModelNoise.of(spreads, True),
    )


def in_users_units(rows):
    """One unit of each feature, by its words."""
    age, gain, hours = (np.array(rows[name]) for name in ("age", "gain", "hours"))
    job = np.array(rows["job"])
    u = (age - 17) / 73 * 2 - 1
    return {
        "1 of age": age,
        "the square of age, scaled to [-1, 1]": u**2,
        "1 of ln(1 + gain+5)": np.log(1 + gain + 5),
        "the bump at hours = 0 (1 there)": np.interp(hours, [0, 40, 99], [1, 0, 0]),
        "the bump at hours = 40 (1 there)": np.interp(hours, [0, 40, 99], [0, 1, 0]),
        "the bump at hours = 99 (1 there)": np.interp(hours, [0, 40, 99], [0, 0, 1]),
        "job=clerk (1 or 0)": job == "clerk",
        "job=smith (1 or 0)": job == "smith",
        "job=(other) (1 or 0)": job == "else",
    }


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
def test_they_add_up_to_the_score(centred, classes):
    model = made_model(centred=centred, classes=classes)
    values, scores = in_users_units(ROWS), np.zeros((4, len(model.coef)))
    for one in model.coefficients():
        k = 0 if one.class_ is None else model.classes.index(one.class_)
        if one.feature == "(intercept)":
            scores[:, k] += one.value
        else:
            scores[:, k] += one.value * (values[one.unit] - (one.reference or 0.0))
    found = model.decision(ROWS)
    np.testing.assert_allclose(scores[:, 0] if classes == 2 else scores, found, rtol=1e-9)


def test_long_rows_are_divided_as_is_said(tmp_path):
    whole, clipped = made_model(norm=1.0), made_model("clip", norm=1.0)
    ratio = clipped.decision(ROWS) / whole.decision(ROWS)
    assert (ratio > 0).all()
    assert ratio.max() < 1
    assert [one.value for one in clipped.coefficients()] == [
        one.value for one in whole.coefficients()
    ]
    clipped.save(tmp_path / "model.json")
    shown = CliRunner().invoke(main, ["coefficients", str(tmp_path / "model.json")])
    assert "longer than the norm" in shown.output


def test_standard_errors_are_in_the_same_units():
    model = made_model()
    found = model.coefficients()
    se = np.append(model.noise.coef_se[0], model.noise.intercept_se)
    value = np.append(model.coef[0], model.intercept)
    for one, raw, error in zip(found, value, se, strict=True):
        assert one.z == pytest.approx(raw / error)
        assert (one.low, one.high) == pytest.approx(
            (one.value - 1.96 * one.se, 2 * one.value - one.low)
        )


def test_models_keep_them(tmp_path):
    model = made_model(classes=3)
    model.save(tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    np.testing.assert_array_equal(again.noise.coef_se, model.noise.coef_se)
    np.testing.assert_array_equal(again.noise.intercept_se, model.noise.intercept_se)
    assert again.noise.basis == BOUND
    assert again.coefficients()[0].to_json() == model.coefficients()[0].to_json()
    plain = replace(model, noise=None)
    assert "noise" not in plain.to_json()
    assert {one.se for one in plain.coefficients()} == {None}


@pytest.mark.parametrize("change", ["short", "negative", "text"])
def test_damaged_ones_are_refused(tmp_path, change):
    content = made_model().to_json()
    if change == "short":
        content["noise"]["coef_se"][0].pop()
    elif change == "negative":
        content["noise"]["intercept_se"] = [-1.0]
    else:
        content["noise"]["coef_se"] = "many"
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"one standard error|is damaged"):
        load_model(tmp_path / "model.json")


def test_training_gives_them_on_every_path(tmp_path):
    out = make_run(tmp_path, seed=3)
    model = load_model(out)
    assert model.noise.basis == BOUND
    assert (model.noise.coef_se > 0).all()
    data, ring = census(rows=3_000, nodes=3, seed=1), Topology.family("ring", 3)
    given = {"epsilon": 4.0, "delta": 1e-5, "draws": SeededEntropy(0)}
    for mechanism, basis in (("primal", BOUND), (Sum(True), FIRST_ORDER), (Sum(False), BOUND)):
        made = train(data.schema, data.tables(ring.nodes), ring, mechanism=mechanism, **given)
        assert made.model().noise.basis == basis


@pytest.mark.parametrize("algorithm", ["sum", "admm"])
def test_the_estimator_has_them(tmp_path, algorithm):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (900, 3)), rng.integers(0, 3, 900)
    given = {"epsilon": 4.0, "delta": 1e-5, "data_norm": 2.0, "random_state": 1}
    fitted = NetworkClassifier(**given, classes=[0, 1, 2], algorithm=algorithm).fit(X, y)
    assert fitted.coef_se_.shape == fitted.coef_.shape
    assert fitted.intercept_se_.shape == fitted.intercept_.shape
    assert fitted.noise_basis_ == BOUND
    assert fitted.get_feature_names_out().tolist() == ["x0", "x1", "x2"]
    wide = NetworkClassifier(**{**given, "data_norm": 4.0}, classes=[0, 1, 2], algorithm=algorithm)
    # ready features are divided by data_norm, so one unit of X weighs more noise with a small one
    assert (wide.fit(X, y).coef_se_ < fitted.coef_se_).all()
    fitted.save(tmp_path / "model.json")
    again = NetworkClassifier.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.coef_se_, fitted.coef_se_)
    assert again.coefficients()[0].se == fitted.coefficients()[0].se == fitted.coef_se_[0, 0]
    plain = NetworkClassifier(mechanism=None).fit(X, y)
    assert plain.coef_se_ is None
    assert plain.coefficients()[0].se is None


def test_the_estimators_errors_are_those_of_many_fits():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (600, 2)), rng.integers(0, 2, 600)
    given = {"epsilon": 2.0, "delta": 1e-5, "data_norm": 2.0, "centre": None, "classes": [0, 1]}
    fits = [NetworkClassifier(**given, random_state=k).fit(X, y) for k in range(30)]
    spread = np.std([np.append(one.coef_, one.intercept_) for one in fits], axis=0, ddof=1)
    se = np.append(fits[0].coef_se_, fits[0].intercept_se_)
    assert (spread < 1.3 * se).all()
    assert (spread[:2] > 0.6 * se[:2]).all()
    assert spread[2] > 0.15 * se[2]  # of the intercept, which rows curve most, the bound is loose


@pytest.mark.first(1)
@pytest.mark.parametrize("weight", [None, {0: 1.0, 1: 9.0}], ids=["even", "weighed"])
def test_numbers_with_bounds_have_those_of_their_own_units(weight):
    """The intercept in their units is a sum over all features, about a released centre."""
    rng = np.random.default_rng(0)
    X = rng.uniform([2.0, 2.6], [4.0, 3.4], (3_000, 2))
    y = (X[:, 0] + rng.normal(0, 0.5, 3_000) > 3).astype(int)
    given = {"epsilon": 2.0, "delta": 1e-5, "bounds": (2, 4), "classes": [0, 1]}
    given |= {"mechanism": Sum(second_moment=True), "class_weight": weight}
    fits = [NetworkClassifier(**given, random_state=k).fit(X, y) for k in range(30)]
    assert all(one.histogram_ for one in fits)  # a round that moves nothing
    spread = np.std([np.append(one.coef_, one.intercept_) for one in fits], axis=0, ddof=1)
    se = np.mean([np.append(one.coef_se_, one.intercept_se_) for one in fits], axis=0)
    assert (spread < 1.35 * se).all()
    assert (spread > (0.7 if weight is None else 0.4) * se).all()
    assert fits[0].noise_basis_ == (FIRST_ORDER if weight is None else BOUND)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    model = made_model()
    model.save("model.json")
    runner = CliRunner()
    shown = json.loads(runner.invoke(main, ["coefficients", "model.json", "--json"]).output)
    assert shown["basis"] == BOUND
    assert shown["coefficients"] == [one.to_json() for one in model.coefficients()]
    text = runner.invoke(main, ["coefficients", "model.json"]).output
    whole = runner.invoke(main, ["coefficients", "model.json", "--all"]).output
    faint = [one.feature for one in model.coefficients() if abs(one.z) < 1.96]
    assert faint
    assert f"{len(faint)} more are within what noise alone may give" in text
    assert all(f" {name} " in whole and f" {name} " not in text for name in faint)
    assert "the privacy noise alone (an upper bound" in text
    replace(model, noise=None).save("model.json")
    assert "No standard errors" in runner.invoke(main, ["coefficients", "model.json"]).output


def test_the_reports_picture_and_table(tmp_path):
    view = ModelView.of(made_model(classes=3))
    assert view.count == 30
    assert len(view.rows) == len(view.shown) == 25
    z = [abs(one.z) for one in view.shown]
    assert z == sorted(z, reverse=True)
    assert view.clear == sum(abs(one.z) >= 1.96 for one in made_model(classes=3).coefficients())
    for row, one in zip(view.rows, view.shown, strict=True):
        assert row["clear"] == (abs(one.z) >= 1.96) == (row["low"] * row["high"] > 0)
    name = "status=never-married"  # in the wide letters that a reader may have
    drawn = image(coefficients([{**view.rows[0], "name": name}], intervals=True))
    assert float(re.search(r"translate\(([\d.]+),", drawn)[1]) > 6.6 * len(name) + 7
    out = make_run(tmp_path, seed=3)
    assert CliRunner().invoke(main, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "The model: what raises and lowers the score" in page
    assert "are larger than privacy noise alone would make them" in page
    assert "job=" not in page
    assert "1 of age" in page
    content = json.loads((out / "model.json").read_text())
    del content["noise"]
    (out / "model.json").write_text(json.dumps(content))
    assert CliRunner().invoke(main, ["report", str(out)]).exit_code == 0
    page = (out / "report.html").read_text()
    assert "stand clear" not in page
    assert "How far noise may have moved them is not known" in page


def test_a_number_is_made_of_its_coefficients_in_its_own_units(tmp_path):
    made, target = made_model(), Target(name="y", low=-10.0, high=50.0)
    schema = made.schema.model_copy(update={"label": target})
    half, middle = target.half, target.middle
    number = replace(made, classes=(), schema=schema, target=target)
    for one, plain in zip(number.coefficients(), made.coefficients(), strict=True):
        shift = middle if one.feature == "(intercept)" else 0.0
        assert one.value == pytest.approx(shift + half * plain.value)
        assert one.se == pytest.approx(half * plain.se)


def test_the_regressor_has_them_in_the_targets_units(tmp_path):
    X = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    given = {"epsilon": 4.0, "delta": 1e-5, "data_norm": 2.0, "random_state": 0}
    fitted = NetworkRegressor(**given, target=(0, 10)).fit(X, 3 * X[:, 0] + 5)
    wide = NetworkRegressor(**given, target=(-45, 55)).fit(X, 3 * X[:, 0] + 5)
    np.testing.assert_allclose(wide.coef_se_, 10 * fitted.coef_se_)  # noise follows the bounds
    fitted.save(tmp_path / "model.json")
    again = NetworkRegressor.load(tmp_path / "model.json")
    np.testing.assert_allclose(again.coef_se_, fitted.coef_se_)
    assert again.intercept_se_ == pytest.approx(fitted.intercept_se_)
    shown = again.coefficients()
    assert [one.value for one in shown] == pytest.approx([*fitted.coef_, fitted.intercept_])
    assert [one.se for one in shown] == pytest.approx([*fitted.coef_se_, fitted.intercept_se_])


def test_several_classes_have_those_of_each_vector(tmp_path):
    data, ring = census(rows=1_500, nodes=3, seed=1, classes=3), Topology.family("ring", 3)
    given = {"epsilon": 4.0, "delta": 1e-5, "draws": SeededEntropy(0)}
    for moment in (False, True):
        made = train(data.schema, data.tables(ring.nodes), ring, mechanism=Sum(moment), **given)
        model = made.model()
        assert model.noise.coef_se.shape == model.coef.shape == (3, data.schema.feature_count)
        assert model.noise.basis == BOUND
        assert {one.class_ for one in model.coefficients()} == set(model.classes)
