"""The network's regressor: scikit-learn's manners, public bounds of the target, and what a fit
costs.
"""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from dynadp.consensus.topology import Topology
from dynadp.data.columns import Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.labels import Label, Target
from dynadp.data.schema import Schema
from dynadp.data.shard import Shard
from dynadp.errors import CellError, DeclarationError, LossError, RecordError
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.estimators.inputs import bound_features
from dynadp.estimators.regressor import NetworkRegressor
from dynadp.mechanisms.sums import Sum
from dynadp.privacy.cap import Cap
from dynadp.privacy.ledger.file import Ledger
from dynadp.problem.losses import Logistic
from dynadp.problem.residual_losses import Huber, PseudoHuber
from dynadp.runs.model import load_model
from support.reference import losses

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (600, 3))
Y = 40 + 12 * X[:, 0] - 5 * X[:, 1] + RNG.normal(size=600)
BOUNDS = (0.0, 80.0)
AT = "2026-03-01T12:00:00+00:00"


def private(**changed):
    given = {"epsilon": 5.0, "delta": 1e-5, "data_norm": 1.8, "target": BOUNDS, "random_state": 0}
    return NetworkRegressor(**(given | changed))


def exact(**changed):
    return NetworkRegressor(**({"mechanism": None, "nodes": 3} | changed))


# None of scikit-learn's checks is expected to fail.
@parametrize_with_checks(
    [
        exact(nodes=1),
        private(epsilon=50.0, data_norm=6.0, target=(-4.0, 4.0), nodes=1),
    ]
)
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # else one of them skips itself
    check(estimator)


@pytest.mark.parametrize("loss", ["pseudo_huber", "logistic_cosh", "huber"])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_the_optimum_is_that_of_the_pooled_rows(loss, intercept):
    rho, width = 1e-3, 0.2
    given = {"loss": loss, "width": width, "rho": rho, "tol": 1e-9, "data_norm": 1.8}
    model = exact(**given, fit_intercept=intercept, target=BOUNDS).fit(X, Y)
    Z, units = bound_features(X, 1.8, intercept)
    t, (L, dL, _) = (Y - 40) / 40, losses(loss, width=width)
    found = minimize(
        lambda f: L(Z @ f - t).mean() + rho * f @ f / 2,
        np.zeros(Z.shape[1]),
        jac=lambda f: Z.T @ dL(Z @ f - t) / len(t) + rho * f,
        options={"gtol": 1e-12},
    ).x
    expected = 40 * found * units
    np.testing.assert_allclose(model.coef_, expected[:3], rtol=1e-5)
    middle = 40 + (expected[3] if intercept else 0.0)
    assert model.intercept_ == pytest.approx(middle, rel=1e-6)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    assert model.score(X, Y) == r2_score(Y, model.predict(X)) > 0.9


@pytest.mark.parametrize("mechanism", ["sum", "sealed", "primal", "dual", Sum(True)])
def test_private_fits_learn_and_say_what_they_cost(mechanism):
    model = private(mechanism=mechanism, honest=3 if mechanism == "sealed" else None).fit(X, Y)
    assert model.score(X, Y) > 0.7
    privacy = model.privacy_
    assert privacy["target"] == "declared"
    assert privacy["bounds"] == "declared"
    assert 4.9 < privacy["epsilon"] <= 5
    assert privacy["protected"] is False  # seeded
    sums = not isinstance(mechanism, str) or mechanism in ("sum", "sealed")
    assert isinstance(model.loss_, Huber if sums else PseudoHuber)
    assert model.node_coef_.shape == (5, 3)
    np.testing.assert_allclose(model.node_coef_.mean(axis=0), model.coef_)
    assert "residuals beyond the width" in " ".join(model.plan_.reasons)


def test_answers_stay_within_the_public_bounds():
    model = private().fit(X, Y)
    far = model.predict(1000 * X)
    assert far.min() == BOUNDS[0]
    assert far.max() == BOUNDS[1]
    # numbers beyond the bounds count as the bound
    wild = np.where(np.arange(600) == 7, 1e12, Y)
    ends = np.where(np.arange(600) == 7, BOUNDS[1], Y)
    np.testing.assert_array_equal(private().fit(X, wild).coef_, private().fit(X, ends).coef_)


def test_sparse_rows_answer_as_dense_ones():
    dense, sparse = exact().fit(X, Y), exact().fit(csr_array(X), Y)
    np.testing.assert_allclose(dense.predict(X), sparse.predict(csr_array(X)), rtol=1e-6)


def test_bounds_that_are_read_off_y_are_said_to_be():
    model = exact().fit(X, Y)
    assert (model.target_.low, model.target_.high) == (Y.min(), Y.max())
    assert model.privacy_["target"].startswith("read off y, which reveals them")
    assert exact().fit(X, np.full(600, 3.0)).predict(X[:2]) == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"target": None}, "target is not given: declare public bounds of y"),
        ({"target": (1.0,)}, r"target is \(1.0,\); expected \(low, high\)"),
        ({"target": (3.0, 3.0)}, "low below high"),
        ({"target": (0.0, np.inf)}, "two finite numbers"),
        ({"data_norm": None}, "data_norm is not given"),
        ({"loss": "logistic"}, "loss 'logistic' separates two classes"),
        ({"loss": Logistic()}, "loss 'logistic' separates two classes"),
        ({"loss": "squared"}, "slope has no bound"),
        ({"loss": Huber(), "width": 0.1}, "width is given beside a Loss"),
        ({"width": -1.0}, "width"),
        ({"C": 2.0}, "C is given beside epsilon"),
        ({"schedule": 0.1}, "give either epsilon and delta"),
        ({"epsilon": None, "schedule": 0.1}, "rounds is None; with schedule"),
        ({"mechanism": None}, "epsilon is given, but mechanism is None"),
    ],
)
def test_contradictions_are_refused(changed, message):
    with pytest.raises((DeclarationError, LossError), match=message):
        private(**changed).fit(X, Y)


def test_a_cell_that_is_no_number_is_not_shown():
    with pytest.raises(ValueError, match=r"convert|numbers") as caught:
        private().fit(X, np.where(np.arange(600) == 3, "SECRET", "1"))
    assert "SECRET" not in str(caught.value)
    with pytest.raises((ValueError, CellError)) as caught:
        private().fit(X, np.where(np.arange(600) == 3, np.nan, Y))
    assert not any(str(y) in str(caught.value) for y in Y)


@pytest.mark.parametrize(("mechanism", "each"), [("primal", "alpha"), ("sum", "mu")])
def test_the_loss_of_each_release_may_be_given(mechanism, each):
    given = {"epsilon": None, "schedule": 0.4, "rounds": 6, "mechanism": mechanism, "eta": 0.01}
    model = private(**given).fit(X, Y)
    assert model.privacy_[each] == pytest.approx(0.4)
    assert model.n_iter_ == 6


def test_a_schema_bounds_rows_and_target():
    data = census(3_000, nodes=3, target=True)
    ring = Topology.family("ring", 3)
    y, nodes = data.train["pay"], [ring.nodes[p] for p in data.node]
    given = {"epsilon": 4.0, "delta": 1e-5, "schema": data.schema, "random_state": 0}
    model = NetworkRegressor(**given, topology=ring).fit(data.train, y, nodes=nodes)
    assert model.schema_.centre is not None
    assert model.score(data.test, data.test["pay"]) > 0.6
    assert model.privacy_["target"] == "declared"
    with pytest.raises(DeclarationError, match="the schema declares one"):
        NetworkRegressor(**given, target=(0, 1)).fit(data.train, y)
    labelled = data.schema.model_copy(update={"label": Label(name="y", negative=0, positive=1)})
    with pytest.raises(DeclarationError, match="has classes; NetworkRegressor predicts a number"):
        NetworkRegressor(**(given | {"schema": labelled})).fit(data.train, y)
    with pytest.raises(DeclarationError, match="take NetworkRegressor"):
        NetworkClassifier(**given).fit(data.train, y)


@pytest.mark.parametrize("schema", [False, True])
def test_saved_models_answer_the_same(tmp_path, schema):
    rows, given = X, {}
    if schema:
        columns = [Numeric(name=f"x{i}", low=-1, high=1) for i in range(3)]
        declared = Schema(columns=columns, label=Target(name="y", low=0, high=80), norm=2.0)
        rows = {f"x{i}": X[:, i] for i in range(3)}
        given = {"schema": declared, "data_norm": None, "target": None}
    model = private(**given, loss=PseudoHuber(0.2)).fit(rows, Y)
    model.save(tmp_path / "model.json")
    again = NetworkRegressor.load(tmp_path / "model.json")
    np.testing.assert_allclose(again.predict(rows), model.predict(rows), rtol=1e-12)
    assert again.loss_ == PseudoHuber(0.2)
    assert again.get_params()["width"] == 0.2
    assert again.privacy_ == model.privacy_
    clone(again).fit(rows, Y)
    if schema:
        found = load_model(tmp_path / "model.json")
        np.testing.assert_allclose(found.predict(rows), model.predict(rows), rtol=1e-12)
    with pytest.raises(RecordError, match="load it with NetworkRegressor"):
        NetworkClassifier.load(tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    content["target"]["high"] = -5
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"damaged|not that of its schema"):
        NetworkRegressor.load(tmp_path / "model.json")


LOW, HIGH = np.array([-2.0, 0.0, 900.0]), np.array([2.0, 4.0, 1400.0])


def of_unlike_scale(rows=3000, seed=0):
    """Three columns far from 0, and a number far from the middle of its bounds."""
    rng = np.random.default_rng(seed)
    u = np.clip(rng.gamma(3.0, 0.2, (rows, 3)) - 0.6, -1, 1)
    y = 14 + u @ [6.0, 4.0, -5.0] + rng.normal(size=rows)
    return LOW + (HIGH - LOW) * (u + 1) / 2, y


def numbers(**changed):
    given = {"epsilon": 5.0, "delta": 1e-5, "target": (0.0, 60.0), "random_state": 0}
    return NetworkRegressor(**(given | changed))


def test_numbers_with_bounds_are_the_schema_with_these_bounds(tmp_path):
    """One definition: the same draws, the same answers, for rows of any length."""
    (X, y), (other, truth) = (of_unlike_scale(seed=seed) for seed in range(2))
    columns = [Numeric(name=n, low=a, high=b) for n, a, b in zip("abc", LOW, HIGH, strict=True)]
    schema = Schema(columns=columns, label=Target(name="y", low=0, high=60))
    tables = [dict(zip("abc", rows.T, strict=True)) for rows in (X, other)]
    declared = numbers(schema=schema, target=None).fit(tables[0], y)
    model = numbers(bounds=(LOW, HIGH)).fit(X, y)
    assert model.privacy_["centre"] == "private"
    assert model.privacy_["epsilon"] == declared.privacy_["epsilon"]
    expected = declared.predict(tables[1])
    np.testing.assert_allclose(model.predict(other), expected, rtol=1e-9)
    assert r2_score(truth, expected) > 0.75
    # coefficients are those of rows that are no longer than the norm
    u = 2 * (other - LOW) / (HIGH - LOW) - 1 - np.array(declared.schema_.centre)
    short = np.linalg.norm(np.column_stack([u, np.ones(len(u))]), axis=1) <= declared.schema_.norm
    assert 0.2 < short.mean() < 0.9
    straight = other @ model.coef_ + model.intercept_
    np.testing.assert_allclose(straight[short], expected[short], rtol=1e-9)
    assert (np.abs(straight - expected)[~short] > 1e-3).mean() > 0.9
    declared.save(tmp_path / "model.json")
    for rows in (0, -1):
        at = {name: cells[short][[rows]] for name, cells in tables[1].items()}
        made_of = load_model(tmp_path / "model.json").coefficients()
        value = made_of[-1].value + sum(
            one.value * (at[one.column][0] - one.reference) for one in made_of[:-1]
        )
        assert value == pytest.approx(declared.predict(at)[0])


def test_a_target_far_from_the_middle_of_its_bounds_is_reached():
    """Rows that have most of their length in common make steep steps, which must not swing."""
    (X, y), (other, truth) = (of_unlike_scale(seed=seed) for seed in range(2))
    for seed in range(3):
        model = numbers(bounds=(LOW, HIGH), random_state=seed).fit(X, y)
        assert model.plan_.steps.pull == pytest.approx(1.1 * model.loss_.c1 / 18)
        assert model.score(other, truth) > 0.75


def test_numbers_are_centred_whatever_bounds_them():
    (X, y), (other, truth) = (of_unlike_scale(seed=seed) for seed in range(2))
    unit, test = ((rows - LOW) / (HIGH - LOW) for rows in (X, other))
    found = {
        centre: numbers(data_norm=3**0.5, epsilon=1.0, centre=centre)
        .fit(unit, y)
        .score(test, truth)
        for centre in (None, "private")
    }
    assert found["private"] > found[None] + 0.3
    middle = [0.0, 2.0, 1150.0]
    public = numbers(bounds=(LOW, HIGH), centre=middle).fit(X, y)
    assert public.privacy_["centre"] == "declared"
    assert public.plan_.centrings == ()
    assert public.score(other, truth) > 0.7
    schema = Schema(
        columns=[Numeric(name="a", low=0, high=1)], label=Target(name="y", low=0, high=1)
    )
    with pytest.raises(DeclarationError, match="without data_norm and bounds"):
        numbers(bounds=(LOW, HIGH), schema=schema, target=None).fit({"a": X[:, 0]}, y)


def test_shards_hold_targets_on_their_scale():
    parts = [slice(0, 200), slice(200, 600)]
    ready = [
        Shard.of(X[s] / 2, (Y[s] - 40) / 40, classes=None, name=str(i)) for i, s in enumerate(parts)
    ]
    model = exact(target=BOUNDS, nodes=2).fit(ready)
    assert r2_score(Y, model.predict(X / 2)) > 0.9
    pairs = exact(data_norm=1.8, target=BOUNDS).fit([(X[s], Y[s]) for s in parts])
    assert pairs.score(X, Y) > 0.9


def test_fits_are_charged_to_ledgers(tmp_path):
    nodes = [f"n{p}" for p in range(2)]
    topology = Topology.family("ring", 2).named(nodes)
    for node in nodes:
        with Ledger.create(tmp_path / f"{node}.sqlite", node, who="me", at=AT) as ledger:
            ledger.set_cap(Cap.of(3.0, 1e-5), who="me", at=AT)
    owner = np.array(nodes)[np.arange(600) % 2]
    given = {"epsilon": 1.0, "topology": topology, "ledger": tmp_path, "random_state": None}
    private(**given).fit(X, Y, nodes=owner)
    with Ledger.open(tmp_path / "n0.sqlite", read_only=True) as ledger:
        assert len(ledger.state().runs) == 1


def test_people_are_limited_and_weighed():
    people = np.arange(600) // 3
    given = {"rows_per_person": 2, "mechanism": Sum(weighed=True), "nodes": 2, "epsilon": 20.0}
    model = private(**given).fit(X, Y, people=people)
    assert model.privacy_["rows"] == 2
    assert model.score(X, Y) > 0.5


def test_searches_choose_a_width():
    search = GridSearchCV(private(nodes=2), {"width": [0.1, 0.4]}, cv=2, error_score="raise")
    assert search.fit(X, Y).best_score_ > 0.5
