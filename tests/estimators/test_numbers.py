"""Features that are given as numbers: their bounds, and their centre."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_matrix

from dynadp.consensus.topology import Topology
from dynadp.data.numbers import Numeric
from dynadp.data.schema import Label, Schema
from dynadp.errors import DeclarationError
from dynadp.estimators import NetworkClassifier
from dynadp.estimators.ready import ReadyNumbers


def far_off(rows=3000, seed=0):
    """Columns of unlike scale, far from 0."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(rows, 3))
    y = np.where(u @ [1.5, -1.0, 0.5] + rng.logistic(size=rows) > 1.0, "yes", "no")
    return u * [1.0, 200.0, 0.05] + [60.0, 4000.0, 2.0], y


LOW, HIGH = [56.0, 3200.0, 1.8], [64.0, 4800.0, 2.2]


def numbers(**more):
    given = {"epsilon": 1.0, "delta": 1e-5, "classes": ["no", "yes"], "random_state": 0, "nodes": 2}
    return NetworkClassifier(**{**given, **more})


def test_numbers_with_bounds_are_the_schema_with_these_bounds():
    """One definition: the same draws, the same vectors."""
    X, y = far_off()
    schema = Schema(
        columns=[
            Numeric(name=name, low=low, high=high)
            for name, low, high in zip("abc", LOW, HIGH, strict=True)
        ],
        label=Label(name="y", negative="no", positive="yes"),
    )
    declared = numbers(schema=schema).fit({n: X[:, j] for j, n in enumerate("abc")}, y)
    model = numbers(bounds=(LOW, HIGH)).fit(X, y)
    assert model.privacy_ == declared.privacy_
    assert model.privacy_["centre"] == "private"
    assert model.plan_.centrings == declared.plan_.centrings
    centre, width = np.array(declared.schema_.centre), np.subtract(HIGH, LOW)
    assert_allclose(model.coef_, declared.coef_ * 2 / width)
    inside = ((X >= LOW) & (X <= HIGH)).all(axis=1)
    u = 2 * (X - LOW) / width - 1 - centre
    scores = u @ declared.coef_[0] + declared.intercept_[0]
    assert_allclose(model.decision_function(X), scores, rtol=1e-9, atol=1e-9)
    table = {n: X[inside, j] for j, n in enumerate("abc")}
    assert_array_equal(model.predict(X[inside]), declared.predict(table))


def test_a_centre_makes_up_for_a_bound_far_off():
    """Columns of one scale, whose means are three times as far off as they spread."""
    (X, y), (other, truth) = (far_off(seed=seed) for seed in range(2))
    X, other = ((rows - [57, 3400, 1.85]) / [1, 200, 0.05] for rows in (X, other))
    right = {
        centre: np.mean(
            [
                numbers(data_norm=9.0, centre=centre, random_state=seed)
                .fit(X, y)
                .score(other, truth)
                for seed in range(3)
            ]
        )
        for centre in (None, "private")
    }
    assert right["private"] > right[None] + 0.05


def test_a_public_centre_costs_nothing():
    X, y = far_off()
    found = numbers(bounds=(LOW, HIGH), centre=[60.0, 4000.0, 2.0]).fit(X, y)
    private = numbers(bounds=(LOW, HIGH)).fit(X, y)
    assert found.privacy_["centre"] == "declared"
    assert found.plan_.centrings == ()
    assert found.plan_.alpha > private.plan_.alpha  # what the centre would have cost is left
    assert found.score(X, y) > 0.75


@pytest.mark.parametrize("how", [{"mechanism": None}, {"epsilon": None, "alpha": 0.5, "rounds": 3}])
def test_bounds_without_a_total_scale_columns_and_centre_nothing(how):
    X, y = far_off()
    total = {"epsilon": None, "delta": None} | how
    model = numbers(bounds=(LOW, HIGH), **total).fit(X, y)
    assert model.privacy_["centre"] == "none"
    assert model.privacy_["bounds"] == "declared"
    if how.get("mechanism", 1) is None:
        u = np.clip(2 * (X - LOW) / np.subtract(HIGH, LOW) - 1, -1, 1)
        plain = numbers(data_norm=3**0.5, **total, fit_intercept=True).fit(u, y)
        # another share of the norm is the intercept's, so that regularisation differs a little
        assert np.mean(model.predict(X) == plain.predict(u)) > 0.99
        assert model.score(X, y) > 0.78


def test_a_start_is_in_the_units_of_the_numbers():
    X, y = far_off()
    start = np.array([1.5, -0.005, 10.0, -90.0])
    for bounds in ({"bounds": (LOW, HIGH)}, {"data_norm": 5000.0}):
        ready = ReadyNumbers.of(numbers(**bounds), X, "replace")
        schema = ready.schema.model_copy(update={"centre": (0.1, -0.2, 0.3), "scaling": "unit"})
        inner = ready.vectors(start, schema)
        coef, intercept = ready.coefficients(inner[None], schema)
        assert_allclose(np.append(coef, intercept), start)
        z = schema.rows(ready.table(X))
        inside = ((X >= LOW) & (X <= HIGH)).all(axis=1)
        signs = np.sign(z[inside] @ inner)
        assert_array_equal(signs, np.sign(X[inside] @ start[:3] + start[3]))
        numbers(**bounds, start=start).fit(X, y)


def test_without_an_intercept_nothing_is_subtracted():
    X, y = far_off()
    model = numbers(data_norm=5000.0, fit_intercept=False).fit(X, y)
    assert model.privacy_["centre"] == "none"
    assert model.intercept_ == 0


@pytest.mark.parametrize("how", [{}, {"mechanism": "sealed", "honest": 1}, {"mechanism": "primal"}])
def test_several_classes_share_one_centre(how):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2)) + 50
    y = np.where(X[:, 0] > 50.5, "c", np.where(X[:, 1] > 50, "b", "a"))
    model = numbers(epsilon=10.0, classes=list("abc"), bounds=(46, 54), **how).fit(X, y)
    assert model.privacy_["problems"] == (3 if how.get("mechanism") == "primal" else 1)
    assert model.privacy_["centre"] == "private"
    assert model.privacy_["epsilon"] <= 10
    assert model.score(X, y) > 0.7
    assert model.coef_.shape == (3, 2)


def test_numbers_whose_count_is_secret_are_centred_too():
    X, y = far_off(500)
    place = np.where(np.arange(500) % 2, "b", "a")
    ring = Topology.family("ring", 2).named(["a", "b"])
    model = numbers(
        bounds=(LOW, HIGH), adjacency="add-remove", rows=300, topology=ring, epsilon=5.0
    ).fit(X, y, nodes=place)
    assert model.privacy_["centre"] == "private"
    assert model.privacy_["adjacency"] == "add-remove"
    assert model.score(X, y) > 0.6


def test_a_model_of_numbers_is_saved_and_read(tmp_path):
    X, y = far_off(300)
    model = numbers(bounds=(LOW, np.array(HIGH))).fit(X, y)
    model.save(tmp_path / "model.json")
    again = NetworkClassifier.load(tmp_path / "model.json")
    assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert again.bounds == [LOW, HIGH]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bounds": (0, 1), "data_norm": 1.0}, "data_norm and bounds are both given"),
        ({"bounds": (1, 0)}, r"bounds: expected \(low, high\)"),
        ({"bounds": 3.0}, r"bounds: expected \(low, high\)"),
        ({"bounds": (LOW[:2], HIGH)}, r"one for each of the 3 columns"),
        ({"bounds": ("a", "b")}, r"low below high"),
        ({"bounds": (0, float("inf"))}, r"low below high"),
        ({"data_norm": 1.0, "centre": [1.0]}, "a public number for each of the 3 columns"),
        ({"data_norm": 1.0, "centre": "mean"}, "centre: expected 'private', None"),
        ({"mechanism": None, "epsilon": None, "centre": [0] * 3}, "without data_norm or bounds"),
    ],
)
def test_bounds_that_are_none_are_refused(given, words):
    X, y = far_off(60)
    with pytest.raises(DeclarationError, match=words):
        numbers(**given).fit(X, y)


def test_bounds_are_for_dense_numbers_alone():
    X, y = far_off(60)
    with pytest.raises(DeclarationError, match=r"give data_norm alone, or X.toarray\(\)"):
        numbers(bounds=(LOW, HIGH)).fit(csr_matrix(X), y)
    schema = Schema(
        columns=[Numeric(name="a", low=0, high=1)], label=Label(name="y", negative=0, positive=1)
    )
    with pytest.raises(DeclarationError, match="without data_norm and bounds"):
        numbers(schema=schema, bounds=(0, 1)).fit({"a": X[:, 0]}, y)
    with pytest.raises(DeclarationError, match="a schema declares its own centre"):
        numbers(schema=schema, centre=None).fit({"a": X[:, 0]}, y)
