"""Measures of scores: against scikit-learn, and how often their intervals hold."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from sklearn import metrics
from sklearn.calibration import calibration_curve

from dynadp.data.columns import Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.labels import Classes, Label
from dynadp.data.schema import Schema
from dynadp.errors import DataError, DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.histogram import private_histogram
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.units import Unit
from dynadp.runs.binned import histogram_measures
from dynadp.runs.calibration import Calibration, calibrated
from dynadp.runs.evaluation import measure_privately
from dynadp.runs.measures import auc, average_precision, measures
from dynadp.runs.model import Model, load_model
from dynadp.runs.scoring import (
    calibrated_by,
    calibrated_on,
    evaluate,
    predictions,
    private_measures,
    scored,
    tally,
)
from dynadp.runs.thresholds import Costs
from support.typed import dynadp

AT = "2026-03-01T12:00:00+00:00"


def sample(rng, rows, share=0.3, apart=1.0):
    y = rng.random(rows) < share
    return rng.normal(np.where(y, apart, 0.0)), y


def test_values_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    scores, y = sample(rng, 500)
    scores = np.round(scores, 1)  # with ties
    p = expit(scores - 1)
    found = measures(scores, y, 0.5, p)
    yes = scores > 0.5
    expected = {
        "accuracy": metrics.accuracy_score(y, yes),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, yes),
        "recall": metrics.recall_score(y, yes),
        "specificity": metrics.recall_score(~y, ~yes),
        "precision": metrics.precision_score(y, yes),
        "auc": metrics.roc_auc_score(y, scores),
        "average_precision": metrics.average_precision_score(y, scores),
        "log_loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y, p),
    }
    assert {name: one.value for name, one in found.found.items()} == pytest.approx(expected)
    assert all(one.low <= one.value <= one.high for one in found.found.values())
    table = found.confusion
    assert [table["true_negative"], table["false_positive"]] == list(
        metrics.confusion_matrix(y, yes)[0]
    )
    assert sum(one.rows for one in found.calibration) == 500
    assert json.loads(json.dumps(found.to_json()))["majority"] == np.mean(~y)


def test_the_calibration_curve_is_that_of_scikit_learn():
    scores, y = sample(np.random.default_rng(2), 500)
    p = expit(scores - 1)
    shares, means = calibration_curve(y, p, n_bins=10)
    found = measures(scores, y, 0.5, p).calibration
    np.testing.assert_allclose([one.share.value for one in found], shares)
    np.testing.assert_allclose([one.probability for one in found], means)


def test_what_is_not_defined_is_left_out():
    always_no = measures(np.array([-1.0, -2.0]), np.array([True, False]))
    assert "precision" not in always_no.found
    one_label = measures(np.array([-1.0, 2.0]), np.array([True, True]))
    assert not {"auc", "specificity", "balanced_accuracy"} & set(one_label.found)
    assert measures(np.array([1.0, 2.0]), np.array([False, True])).found["auc"].low < 0.5
    with pytest.raises(DataError, match="no rows to measure on"):
        measures(np.empty(0), np.empty(0, bool))


@pytest.mark.parametrize("rows", [60, 400])
def test_intervals_hold_in_95_of_100_samples(rows):
    """Scores are normal, one apart: the true AUC is Phi(1/sqrt 2); others by a large sample."""
    rng = np.random.default_rng(2)

    def found(rows):
        scores, y = sample(rng, rows)
        return measures(scores, y, 0.0, expit(scores - 1.3)).found.items()

    truth = {name: one.value for name, one in found(400_000)}
    assert {"log_loss", "brier"} < truth.keys()
    assert truth["auc"] == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.005)
    held = {name: [] for name in truth}
    for _ in range(600):
        for name, one in found(rows):
            held[name].append(one.low <= truth[name] <= one.high)
    for name, hits in held.items():
        assert np.mean(hits) > 0.92, name


def test_intervals_are_no_wider_than_they_must_be():
    rng = np.random.default_rng(3)
    for of in (auc, average_precision):
        found = [of(*sample(rng, 400)) for _ in range(200)]
        spread = np.std([one.value for one in found])
        width = np.mean([one.high - one.low for one in found])
        assert width < 5 * spread


# --------------------------------------------------------------------------------------------------
# a released histogram


def binned(scores, y, bins=64, reach=4.0):
    edges = reach * np.linspace(-1, 1, bins + 1)[1:-1]
    counts = np.zeros((2, bins), dtype=np.int64)
    np.add.at(counts, (y.astype(int), np.searchsorted(edges, scores)), 1)
    return counts, edges


@pytest.mark.parametrize(("adjacency", "moves"), [("replace", 2), ("add-remove", 1)])
def test_noise_of_a_histogram_has_the_law_that_is_claimed(adjacency, moves):
    """Deviation sqrt(moves)/mu in every cell, which hides how far one row moves all cells."""
    counts, edges = binned(*sample(np.random.default_rng(0), 300))
    unit = Unit(3, adjacency=adjacency, limited=True)
    seen = np.array(
        [
            private_histogram(
                counts, edges, 0.5, node="a", draws=SeededEntropy(k), unit=unit
            ).counts
            for k in range(150)
        ]
    )
    assert np.std(seen - counts) == pytest.approx(np.sqrt(moves) / 0.5, rel=0.03)
    assert np.mean(seen - counts) == pytest.approx(0.0, abs=0.1)
    released = private_histogram(counts, edges, 0.5, node="a", draws=SeededEntropy(0), unit=unit)
    event = released.event
    assert (event.mu, event.rows, event.adjacency, event.limited) == (0.5, 3, adjacency, True)
    assert (event.dimension, event.seeded) == (128, True)
    # of all pairs of histograms that one row tells apart, none is further than mu deviations
    away = np.sqrt(2.0) if adjacency == "replace" else 1.0
    assert away / released.noise <= event.mu * (1 + 1e-12)


@pytest.mark.first(1)
@pytest.mark.parametrize(("rows", "mu"), [(3000, 0.3), (3000, 3.0), (500, 1.0)])
def test_measures_of_a_histogram_hold_in_95_of_100_draws(rows, mu):
    rng = np.random.default_rng(4)
    many = binned(*sample(rng, 1_000_000))
    exact = private_histogram(*many, 50.0, node="a", draws=SeededEntropy(0), unit=Unit())
    truth = {name: one.value for name, one in histogram_measures(exact).found.items()}
    assert truth["auc"] == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.005)
    held = {name: [] for name in truth}
    for k in range(150):
        made = binned(*sample(rng, rows))
        released = private_histogram(*made, mu, node="a", draws=SeededEntropy(k), unit=Unit())
        for name, one in histogram_measures(released).found.items():
            held[name].append(one.low <= truth[name] <= one.high)
    assert len(held["auc"]) > 140
    for name, hits in held.items():
        assert np.mean(hits) > 0.88, name


def test_measures_that_noise_drowns_are_left_out():
    made = binned(*sample(np.random.default_rng(5), 50))
    released = private_histogram(*made, 0.05, node="a", draws=SeededEntropy(0), unit=Unit())
    assert histogram_measures(released).found == {}


# --------------------------------------------------------------------------------------------------
# models


@pytest.fixture(scope="module")
def trained():
    data = census(1500, seed=3, nodes=1, test_rows=800)
    schema = data.schema.model_copy(update={"centre": (0.0,) * data.schema.feature_count})
    rows = schema.rows(data.test)
    y = schema.labels(data.test)
    f = np.asarray(rows.T @ y) / len(y) * 20
    model = Model(
        classes=(schema.label.negative, schema.label.positive),
        coef=np.array([f[:-1]]),
        intercept=f[-1:],
        schema=schema,
        loss={"name": "logistic", "margin": 3.0},
        mechanism="sum",
        privacy={"protected": True, "statement": "as planned"},
    )
    return model, data.test


def test_a_margin_gives_no_probabilities_until_they_are_found(trained, tmp_path):
    model, rows = trained
    plain = evaluate(model, rows)
    assert not model.gives_probabilities
    assert "brier" not in plain.found
    better = calibrated_on(model, rows, "test.csv")
    assert better.gives_probabilities
    found = evaluate(better, rows)
    assert {n: found.found[n] for n in plain.found} == plain.found
    share = found.positive / found.rows
    assert found.found["brier"].value < share * (1 - share)  # better than the mean alone
    mean = np.mean([p for _, s, _ in scored(better, rows) for p in better.probabilities(s)])
    assert mean == pytest.approx(share, abs=0.01)  # right on average
    better.save(tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    assert again.calibration == better.calibration
    assert "800 public rows (test.csv)" in again.calibration.source


def test_platt_finds_the_law_that_labels_follow():
    rng = np.random.default_rng(6)
    scores = rng.normal(size=200_000) * 3
    y = rng.random(len(scores)) < expit(0.7 * scores - 1.2)
    found = calibrated(scores, ~y * 1.0, y * 1.0, "made rows")
    assert (found.slope, found.offset) == pytest.approx((0.7, -1.2), abs=0.03)
    apart = calibrated(np.array([-1.0, 1.0]), np.array([9.0, 0.0]), np.array([0.0, 9.0]), "")
    assert 0.5 < expit(apart.slope + apart.offset) < 0.97  # eighteen rows prove no certainty
    with pytest.raises(DataError, match="rows of both labels"):
        calibrated(scores, ~y * 0.0, y * 1.0, "one label")
    with pytest.raises(DeclarationError, match="slope above 0"):
        Calibration(-1.0, 0.0, "by hand")


def ledger_at(path, cap=4.0):
    with Ledger.create(path, "a", who="me", at=AT) as ledger:
        ledger.set_cap(Cap.of(cap, 1e-5), who="me", at=AT)


def test_a_private_histogram_is_charged_and_near_the_truth(trained, tmp_path):
    model, rows = trained
    ledger_at(tmp_path / "a.sqlite")
    truth = evaluate(model, rows)
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        how = {"mu": 0.5, "dataset": "visits", "who": "me"}
        released = measure_privately(model, rows, ledger, **how)
        (event,) = ledger.spent()
        assert (event.kind, event.purpose, event.mu) == ("gaussian", "histogram", 0.5)
        run = next(iter(ledger.state().runs))
        assert json.loads(ledger.message(run, 0))["counts"] == released.counts.tolist()
    found = histogram_measures(released).found
    assert {"auc", "accuracy", "recall", "average_precision"} <= set(found)
    for name, one in found.items():
        assert abs(one.value - truth.found[name].value) < one.high - one.low, name
    calibrated_one = calibrated_by(model, released)
    public = calibrated_on(model, rows, "test.csv")
    brier = [evaluate(m, rows).found["brier"].value for m in (calibrated_one, public)]
    assert brier[0] < brier[1] + 0.02
    with (
        Ledger.open(tmp_path / "a.sqlite") as ledger,
        pytest.raises(DeclarationError, match="even number"),
    ):
        measure_privately(model, rows, ledger, bins=7, **how)


@pytest.mark.parametrize("classes", [2, 10])
def test_a_score_is_that_of_its_row_alone(classes):
    """To the last bit. A library's product of matrices adds up in an order that depends on how many
    rows there are: one row more would move others over an edge, or change what they are answered.
    """
    rng, d, values = np.random.default_rng(1), 40, tuple(range(classes))
    two = Label(name="y", negative=0, positive=1)
    schema = Schema(
        columns=tuple(Numeric(name=f"x{j}", low=-1, high=1) for j in range(d)),
        label=two if classes == 2 else Classes(name="y", values=values),
        centre=(0.0,) * d,
        adjacency="add-remove",
    )
    x, f = rng.uniform(-1, 1, d), rng.normal(size=(1 if classes == 2 else classes, d))
    (row,) = schema.rows({f"x{j}": [x[j]] for j in range(d)})
    model = Model(
        classes=values,
        coef=f,
        intercept=-(f @ row[:-1]) / row[-1],  # all scores are 0, but for rounding
        schema=schema,
        loss={"name": "logistic"},
        mechanism="sum",
        privacy={},
    )

    def alike(rows):
        return {f"x{j}": np.full(rows, x[j]) for j in range(d)}

    sizes = (1, 2, 3, 30, 31, 32)
    assert len({score.tobytes() for n in sizes for score in model.decision(alike(n))}) == 1
    right = [tally(model, alike(n) | {"y": np.ones(n, int)}).right for n in sizes]
    assert right in ([0] * len(sizes), list(sizes))


def write_rows(path, table):
    names = list(table)
    cells = zip(*(np.asarray(table[n]).tolist() for n in names), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in cells)]))


def test_the_command_line_measures_and_calibrates(trained, tmp_path, monkeypatch):
    model, rows = trained
    monkeypatch.chdir(tmp_path)
    model.save("model.json")
    write_rows(tmp_path / "rows.csv", rows)
    ledger_at(tmp_path / "a.sqlite")
    plain = dynadp("evaluate model.json rows.csv --public")
    assert plain.exit_code == 0, plain.output
    assert "area under the ROC curve: 0." in plain.output
    assert "Brier" not in plain.output
    found = evaluate(model, rows).confusion
    at = plain.output.splitlines().index("  rows by label, one below the other, and answer:")
    table = [line.split() for line in plain.output.splitlines()[at + 1 : at + 4]]
    assert table == [
        ["low", "high"],
        ["low", str(found["true_negative"]), str(found["false_positive"])],
        ["high", str(found["false_negative"]), str(found["true_positive"])],
    ]
    first = dynadp("predict model.json rows.csv").output.splitlines()[0]
    assert first == "prediction,score"
    done = dynadp("evaluate model.json rows.csv --ledger a.sqlite --mu 0.5 --calibrate --json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["measures"]["auc"]["low"] < found["measures"]["auc"]["value"]
    assert len(found["counts"][0]) == 64
    lines = dynadp("predict model.json rows.csv --threshold 100").output.splitlines()
    assert lines[0] == "prediction,score,probability"
    assert {line.split(",")[0] for line in lines[1:]} == {str(model.classes[0])}
    assert all(0 < float(line.split(",")[2]) < 1 for line in lines[1:])
    again = dynadp("evaluate model.json rows.csv --public --threshold 0.2")
    assert "Brier score: 0." in again.output
    for wrong in (
        "--ledger a.sqlite --mu 1 --alpha 1",
        "--ledger a.sqlite",
        "--ledger a.sqlite --alpha 1 --calibrate",
        "--public --mu 1",
    ):
        assert dynadp(f"evaluate model.json rows.csv {wrong}").exit_code == 2
    with Ledger.open("a.sqlite", read_only=True) as ledger:
        assert len(ledger.spent()) == 1


def test_what_is_charged_is_said_of_a_person_too(trained, tmp_path, monkeypatch):
    model, rows = trained
    monkeypatch.chdir(tmp_path)
    several = replace(model, schema=model.schema.model_copy(update={"rows_per_person": 3}))
    several.save("model.json")
    write_rows(tmp_path / "rows.csv", rows)
    ledger_at(tmp_path / "a.sqlite")
    for how in ("mu = 0.1", "alpha = 0.05"):
        done = dynadp(f"evaluate model.json rows.csv --ledger a.sqlite --{how.replace(' = ', ' ')}")
        assert f"charged {how} for each of up to 3 rows of a person." in done.output


# --------------------------------------------------------------------------------------------------
# a positive label that is first in order, as a saved estimator has it


def test_labels_in_any_order_have_the_same_measures(trained, tmp_path, monkeypatch):
    """Scores of one model speak for the positive label, those of the other for the negative one."""
    model, rows = trained
    model = calibrated_on(model, rows, "test.csv")
    known = replace(
        model.calibration, offset=-model.calibration.offset, positives=1 - share_of(model, rows)
    )
    other = replace(
        model,
        classes=model.classes[::-1],
        coef=-model.coef,
        intercept=-model.intercept,
        calibration=known,
    )
    assert other.turned
    assert not model.turned
    for wanted in (0.0, "balanced", Costs(1, 6)):
        plain, turned = (evaluate(one, rows, wanted) for one in (model, other))
        assert plain.confusion == turned.confusion, wanted
        assert plain.found.keys() == turned.found.keys()
        for name, one in plain.found.items():
            assert one.value == pytest.approx(turned.found[name].value), name
    ledger_at(tmp_path / "a.sqlite", 400.0)
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        how = {"mu": 20.0, "dataset": "visits", "who": "me"}
        released = measure_privately(other, rows, ledger, **how)
    for wanted in (0.0, "balanced", Costs(1, 6)):
        exact = evaluate(other, rows, wanted).found
        found = private_measures(other, released, wanted).found
        assert exact.keys() == found.keys()
        for name, one in exact.items():
            assert found[name].value == pytest.approx(one.value, abs=0.03), (wanted, name)
    again = calibrated_by(replace(other, calibration=None), released).calibration
    assert (again.slope, again.offset) == pytest.approx((known.slope, known.offset), rel=0.1)
    assert again.positives == pytest.approx(known.positives, abs=0.01)
    chances = [np.concatenate([p for *_, p in predictions(m, rows)]) for m in (model, other)]
    np.testing.assert_allclose(*chances)


def share_of(model, rows):
    return float(np.mean(model.schema.labels(rows) > 0))
