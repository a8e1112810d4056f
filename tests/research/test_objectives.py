"""Sweeps and comparisons by the measure that a user names."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census, census_schema
from dynadp.data.labels import Classes, Label, Target
from dynadp.errors import DeclarationError
from dynadp.report.explore.advice import Advisor
from dynadp.report.explore.setting import PublicSetting
from dynadp.research.experiments import ALIKE, MOST_COMMON, measure_baselines, try_plan
from dynadp.research.joining import should_join
from dynadp.research.objectives import GROUPS, Objective
from dynadp.research.public_rows import HeldOut, draw_public_rows
from dynadp.runs.measures import KINDS, measure_of, measures
from dynadp.runs.thresholds import Costs
from support.typed import answer, dynadp

# --------------------------------------------------------------------------------------------------
# measures agree with scikit-learn's

OF_ANSWERS = {
    "accuracy": metrics.accuracy_score,
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "recall": metrics.recall_score,
    "specificity": lambda y, yes: metrics.recall_score(y, yes, pos_label=0),
    "precision": metrics.precision_score,
}
OF_SCORES = {"auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([-2.5, 0.0, 1.0]),
)
def test_every_measure_is_scikit_learns(rows, threshold):
    """With ties, of one class alone, and of one row."""
    scores, y = (np.array(column) for column in zip(*rows, strict=True))
    scores, yes, both = scores / 2.0, scores / 2.0 > threshold, 0 < y.sum() < len(y)
    p = 1 / (1 + np.exp(-scores))
    for name, theirs in OF_ANSWERS.items():
        ours = measure_of(name, scores, y, threshold)
        defined = {
            "balanced_accuracy": both,
            "recall": y.any(),
            "specificity": not y.all(),
            "precision": yes.any(),
        }.get(name, True)
        assert (ours is not None) == defined
        if ours is not None:
            assert ours.value == pytest.approx(theirs(y.astype(int), yes.astype(int)))
            assert ours.low - 1e-12 <= ours.value <= ours.high + 1e-12
    for name, theirs in OF_SCORES.items():
        ours = measure_of(name, scores, y)
        assert (ours is not None) == (both if name == "auc" else bool(y.any()))
        if ours is not None:
            assert ours.value == pytest.approx(theirs(y, scores))
    found = measures(scores, y, threshold, p)
    assert found.found["log_loss"].value == pytest.approx(
        metrics.log_loss(y, p, labels=[False, True])
    )
    assert found.found["brier"].value == pytest.approx(
        metrics.brier_score_loss(y, p, labels=[0, 1]) if both else np.mean((p - y) ** 2)
    )
    table = metrics.confusion_matrix(y, yes, labels=[False, True]).ravel()
    names = ("true_negative", "false_positive", "false_negative", "true_positive")
    assert [found.confusion[name] for name in names] == table.tolist()


def test_the_calibration_curve_is_scikit_learns():
    rng = np.random.default_rng(0)
    p = rng.random(500)
    y = rng.random(500) < p
    from sklearn.calibration import calibration_curve

    shares, means = calibration_curve(y, p, n_bins=10)
    found = measures(p, y, 0.5, p).calibration
    np.testing.assert_allclose([one.share.value for one in found], shares)
    np.testing.assert_allclose([one.probability for one in found], means)


def test_every_measure_says_which_direction_is_better():
    for name, kind in KINDS.items():
        better, worse = (0.9, 0.8) if kind.more_is_better else (0.1, 0.2)
        assert kind.loss(better) < kind.loss(worse), name
    rng = np.random.default_rng(0)
    y = rng.random(2000) < 0.3
    blind = np.zeros(2000)
    for name in ("auc", "log_loss", "brier", "average_precision"):
        found = measure_of(name, blind, y, 0.0, np.full(2000, y.mean()))
        assert found.value == pytest.approx(KINDS[name].blind(float(y.mean())))


# --------------------------------------------------------------------------------------------------
# objectives


@pytest.fixture(scope="module")
def held_out():
    data = census(200, seed=1, nodes=1, test_rows=4000, positives=0.15)
    return HeldOut.of(census_schema(), data.test), data.truth


def test_a_loss_is_that_of_the_models_scores(held_out):
    rows, truth = held_out
    rng = np.random.default_rng(0)
    models = truth + rng.normal(0, 0.3, (5, len(truth)))
    for name in KINDS:
        found = Objective(name).tried(rows, models)
        assert found["low"] <= found["median"] <= found["high"]
        assert 0 < found["error"] < 0.1
    auc = [metrics.roc_auc_score(rows.positive, rows.X @ v) for v in models]
    assert Objective("auc").tried(rows, models)["median"] == pytest.approx(1 - np.median(auc))
    balanced = Objective("balanced_accuracy").tried(rows, models)["median"]
    at_zero = Objective("balanced_accuracy", 0.0).tried(rows, models)["median"]
    assert balanced < at_zero
    cheap = Objective("recall", Costs(1, 20)).tried(rows, models)["median"]
    dear = Objective("recall", Costs(20, 1)).tried(rows, models)["median"]
    assert cheap < 0.2 < 0.8 < dear


def test_intervals_of_a_loss_hold_in_95_of_100_samples():
    """One model: what is left is the sampling error of the rows."""
    truth = census(10, seed=0, nodes=1, test_rows=0).truth
    large = census(10, seed=99, nodes=1, test_rows=40_000)
    whole = HeldOut.of(large.schema, large.test)
    for name in ("auc", "balanced_accuracy", "log_loss"):
        objective = Objective(name)
        exact = objective.tried(whole, truth[None])["median"]
        held = []
        for start in range(0, 40_000, 800):
            part = HeldOut(whole.X[start : start + 800], whole.positive[start : start + 800])
            found = objective.tried(part, truth[None])
            held.append(found["low"] <= exact <= found["high"])
        assert np.mean(held) >= 0.86, name


@pytest.mark.parametrize("name", ["accuracy", "auc"])
def test_differences_are_paired(held_out, name):
    """Two models that err alike are told apart where their own intervals overlap."""
    rows, truth = held_out
    worse = truth + np.random.default_rng(1).normal(0, 0.6, len(truth))
    objective = Objective(name)
    a, b = (objective.checked(rows, v[None]) for v in (worse, truth))
    found = objective.difference([(a, b)], len(rows))
    assert 0 < found["low"] < found["median"] < found["high"]
    bands = [objective.band([one], len(rows)) for one in (a, b)]
    assert found["high"] - found["low"] < (bands[0]["high"] - bands[0]["low"])
    assert objective.difference([(a, a)], len(rows))["median"] == 0
    if name == "auc":
        assert a.parts.shape == (1, GROUPS)


def test_what_is_no_measure_is_refused():
    with pytest.raises(DeclarationError, match="expected one of accuracy"):
        Objective("f1")
    for command in ("tradeoff run.toml --measure f1", "explore --measure f1"):
        done = dynadp(command)
        assert done.exit_code == 2
        assert "is none of accuracy" in done.output


def test_the_best_total_by_area_under_the_curve():
    setting = PublicSetting.made().measured_by("auc")
    rows = setting.rows(0)
    found = [
        try_plan(
            setting.topology, rows, setting.plan(e, rows.counts), 4, objective=setting.objective
        )["median"]
        for e in (0.1, 5.0)
    ]
    assert found[1] < found[0] < 0.5
    lines = measure_baselines(rows, setting.objective)
    assert lines["always the most common answer"] == 50
    assert lines["without privacy"] > 100 * (1 - found[1]) - 1


def test_the_page_speaks_of_the_measure(monkeypatch):
    monkeypatch.setattr("dynadp.report.explore.advice.DRAWS", 2)
    setting = PublicSetting.made().measured_by("auc")
    advice = Advisor(setting)
    advice.baselines = {"without privacy": 90.0, "always the most common answer": 50.0}
    advice.points = [
        {"epsilon": e, "alpha": a, "median": m, "low": m - 1, "high": m + 1, "error": 0.2}
        for e, a, m in ((0.1, 0.01, 80.0), (0.5, 0.03, 85.0), (1.0, 0.05, 88.0), (9.0, 0.4, 89.0))
    ]
    advice.source, advice.rows, advice.done = "rows", 1000, True
    words = advice.for_total(1.0)["words"]
    assert "the area under the ROC curve in 100 would be 87.0 to 89.0" in words
    assert "right answer" not in words
    assert advice.recommended()["alpha"] in {0.03, 0.05, 0.4}


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(census_schema().model_dump_json())
    text = '[run]\nname = "r"\nseed = 1\nmeasure = "auc"\n[data]\nschema = "schema.json"\n'
    text += "[privacy]\nepsilon = 1.0\ndelta = 1e-5\ncalibration = true\n"
    for node in "abcd":
        text += f'[[nodes]]\nname = "{node}"\nfile = "{node}.csv"\nrows = 500\n'
        Path(f"{node}.csv").write_text(",".join(census_schema().raw_columns) + "\n")
    Path("run.toml").write_text(text)


def test_the_run_file_names_the_measure(run_file):
    setting = PublicSetting.of_file(Path("run.toml"))
    assert setting.objective == Objective("auc")
    assert setting.calibration
    assert setting.plan(1.0).releases_histogram
    assert setting.measured_by("brier").objective.name == "brier"
    Path("run.toml").write_text(Path("run.toml").read_text().replace('"auc"', '"f1"'))
    done = dynadp("check run.toml")
    assert done.exit_code == 2
    assert "measure" in done.output


def test_tradeoff_and_join_by_the_measure(run_file):
    found = answer("tradeoff run.toml --draws 2 --json")
    assert found["measure"] == "auc"
    assert any("1 minus the area under the ROC curve" in words for words in found["words"])
    assert "1 - area under the ROC curve" in Path("r-tradeoff/tradeoff.svg").read_text()
    assert all(0 < point["median"] < 0.6 for point in found["points"])
    joined = dynadp("tradeoff run.toml --join --draws 2")
    assert joined.exit_code == 0, joined.output
    assert "1 - area under the ROC curve in 100" in joined.output
    kept = json.loads(Path("r-join/join.json").read_text())
    assert kept["measure"] == "auc"
    assert kept["most_common"] == 0.5
    for node in kept["nodes"]:
        for way, band in node["differences"].items():
            assert band["low"] <= band["median"] <= band["high"], way


# --------------------------------------------------------------------------------------------------
# several classes, and numbers


@pytest.mark.parametrize("how", [{"classes": 4}, {"target": True}], ids=str)
def test_losses_of_other_labels_are_those_of_scikit_learn(how):
    data = census(rows=900, nodes=3, seed=1, test_rows=400, **how)
    held, rng = HeldOut.of(data.schema, data.test), np.random.default_rng(0)
    J = max(data.schema.classes, 1)
    models = rng.normal(size=(3, J * data.schema.dimension)) / 10
    expected = {}
    if "target" in how:
        label = data.schema.label
        y = np.clip(data.test[label.name], label.low, label.high)
        p, whole = label.within(held.scores(models[1])), label.high - label.low
        expected["r2"] = 1 - metrics.r2_score(y, p)
        expected["mae"] = metrics.mean_absolute_error(y, p) / whole
        expected["rmse"] = np.sqrt(metrics.mean_squared_error(y, p)) / whole
        best = {"mae": np.median(y), "rmse": y.mean(), "r2": y.mean()}
    else:
        scores = data.schema.rows(data.test) @ models[1].reshape(J, -1).T
        y = data.schema.labels(data.test)
        expected["accuracy"] = 1 - metrics.accuracy_score(y, scores.argmax(axis=1))
        expected["balanced_accuracy"] = 1 - metrics.balanced_accuracy_score(
            y, scores.argmax(axis=1)
        )
    for name, loss in expected.items():
        objective = Objective.of(data.schema.label, name)
        checked = objective.checked(held, models)
        np.testing.assert_allclose(checked.losses[1], loss)
        tried = objective.tried(held, models)
        assert tried["low"] <= tried["median"] <= tried["high"]
        assert np.isclose(tried["median"], np.median(checked.losses))
        blind = objective.blind(held)
        if "target" in how:
            constant = np.full(len(y), best[name])
            own = 1 - metrics.r2_score(y, constant)
            if name == "mae":
                own = metrics.mean_absolute_error(y, constant) / whole
            elif name == "rmse":
                own = np.sqrt(metrics.mean_squared_error(y, constant)) / whole
            assert np.isclose(blind, own)
        else:
            own = np.unique(y, return_counts=True)[1].max() / len(y)
            assert np.isclose(blind, 1 - own if name == "accuracy" else 1 - 1 / J)


@pytest.mark.parametrize(
    ("label", "name", "says"),
    [
        (Target(name="pay", low=0, high=1), "auc", "'pay' has numbers; expected one of r2, mae"),
        (Classes(name="group", values=("a", "b", "c")), "brier", "has several values"),
        (Label(name="y", negative=0, positive=1), "rmse", "has two values; expected one of acc"),
    ],
)
def test_a_measure_is_for_its_labels(label, name, says):
    with pytest.raises(DeclarationError, match=says):
        Objective.of(label, name)


@pytest.mark.parametrize("how", [{"classes": 3}, {"target": True}], ids=str)
def test_the_page_advises_for_other_labels(how, monkeypatch):
    label = census(rows=60, nodes=2, seed=0, **how).schema.label
    setting = replace(PublicSetting.made(), counts=(400,) * 5, label=label)
    setting = replace(setting, objective=Objective.of(label, None))
    monkeypatch.setattr("dynadp.report.explore.advice.totals_to_try", lambda _: [0.3, 8.0])
    monkeypatch.setattr("dynadp.report.explore.advice.DRAWS", 2)
    advice = Advisor(setting)
    advice.sweep()
    assert (advice.problem, advice.done) == ("", True)
    low, high = (point["median"] for point in advice.points)
    assert low < high
    without, blind = advice.baselines.values()
    assert list(advice.baselines)[1] == (ALIKE if "target" in how else MOST_COMMON)
    assert blind < high < without + 3
    assert advice.recommended()["alpha"] in {point["alpha"] for point in advice.points}
    shown = advice.for_total(8.0)
    assert ("R2" if "target" in how else "right answer") in shown["words"]


def test_join_honours_class_weights_and_calibration():
    ring, given = Topology.family("path", 2), {"draws": 2, "epsilon": 2.0, "delta": 1e-5}
    rows = [draw_public_rows(ring.nodes, (300, 300), 9, True, seed=s) for s in range(2)]
    plain = should_join(rows, ring, **given)
    weighed = should_join(rows, ring, **given, class_weights=(1.0, 4.0), positives=0.25)
    for way in ("pooled", "sum", "admm"):
        assert weighed.wrong[way]["median"] > plain.wrong[way]["median"] + 0.02, way
    assert weighed.nodes[0].alone["median"] > plain.nodes[0].alone["median"] + 0.02
    paying = should_join(rows, ring, **given, calibration=True)
    assert paying.wrong["sum"] != plain.wrong["sum"]
    assert paying.wrong["admm"] == plain.wrong["admm"]
