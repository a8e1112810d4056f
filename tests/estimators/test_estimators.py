"""scikit-learn's manners: its own checks, its own optimum, its searches, and what a fit says about
privacy.
"""

import json
import pickle
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, csr_matrix
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dynadp
from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.columns import Numeric
from dynadp.data.datasets.synthetic import census
from dynadp.data.schema import Label, Schema
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import (
    BudgetRefused,
    CellError,
    DataError,
    DeclarationError,
    LedgerError,
    NotCertified,
    RecordError,
    SeededRefused,
    TopologyError,
)
from dynadp.estimators.classifier import NetworkClassifier
from dynadp.estimators.fit_rows import FitRows
from dynadp.estimators.inputs import bound_features
from dynadp.estimators.one_vs_rest import solve
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.cap import Cap
from dynadp.privacy.gaussian import gaussian_epsilon
from dynadp.privacy.ledger.file import Ledger
from dynadp.privacy.schedules import linear
from dynadp.problem.losses import HuberHinge, Logistic
from dynadp.problem.regularizers import SmoothElasticNet
from dynadp.runs.model import load_model
from dynadp.runs.scoring import evaluate
from dynadp.runs.training import train
from support import flat_simulate

AT = "2026-03-01T12:00:00+00:00"
SEEDED = {"delta": 1e-5, "data_norm": 4.0, "random_state": 0}
RNG = np.random.default_rng(5)
X3 = RNG.normal(size=(300, 2)) + np.repeat([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]], 100, axis=0)
Y3 = np.repeat(["north", "south", "west"], 100)
X2, Y2 = X3[:200], Y3[:200]


def private(**more):
    return NetworkClassifier(**{"epsilon": 4.0, **SEEDED, **more})


def exact(**more):
    return NetworkClassifier(mechanism=None, **more)


# None of scikit-learn's checks is expected to fail.
@parametrize_with_checks([exact(), private(epsilon=20.0)])
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    passes(estimator, check, monkeypatch)


@pytest.mark.slow
@parametrize_with_checks([private(epsilon=20.0, mechanism="dual")])
def test_scikit_learns_own_checks_of_admm(estimator, check, monkeypatch):
    passes(estimator, check, monkeypatch)


def passes(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # else one of them skips itself
    if "class_weight" in str(check) and estimator.mechanism is not None:
        # 50 rows of which those of one label weigh nothing: noise is asked not to hide the others
        estimator.set_params(epsilon=400.0)
    check(estimator)


def _cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def _iris():
    X, y = load_iris(return_X_y=True)
    return X[y != 0], y[y != 0]


def _digits():
    X, y = load_digits(return_X_y=True)
    return X[(y == 3) | (y == 8)], y[(y == 3) | (y == 8)]


@pytest.mark.parametrize("rows", [_cancer, _iris, _digits])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_the_optimum_is_that_of_scikit_learn(rows, intercept):
    X, y = rows()
    C, rho, P, D = 2.0, 1e-3, 4, np.linalg.norm(X, axis=1).max()
    Z = np.column_stack([X / D, np.ones(len(y))]) / np.sqrt(2) if intercept else X / D
    # (C P/B) sum L + P rho |f|^2/2, B all rows: divided by P rho it is scikit-learn's, with weights
    # C/(rho B).
    reference = LogisticRegression(
        C=1.0, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    f = reference.fit(Z, y, sample_weight=np.full(len(y), C / (rho * len(y)))).coef_[0]
    model = exact(nodes=P, C=C, rho=rho, fit_intercept=intercept).fit(X, y)
    if intercept:
        assert_allclose(model.intercept_, f[-1:] / np.sqrt(2), atol=1e-5)
        f = f[:-1] / np.sqrt(2)
    else:
        assert_array_equal(model.intercept_, [0.0])
    assert_allclose(model.coef_[0], f / D, atol=1e-5)
    assert_allclose(model.coef_[0] * D, f, atol=1e-5 * np.abs(f).max())  # to 1e-5 of their size too
    assert model.privacy_["bounds"] == "data_norm was read off the rows"
    assert not model.privacy_["protected"]


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_a_total_is_enough(mechanism):
    model = private(mechanism=mechanism, classes=["north", "south"]).fit(X2, Y2)
    assert model.score(X2, Y2) > 0.9
    assert set(model.predict(X2)) == {"north", "south"}
    said = model.privacy_
    assert 0.99 * 4 < said["epsilon"] <= 4
    assert said["epsilon"] == pytest.approx(model.plan_.total.epsilon)
    assert (said["mechanism"], said["rounds"], said["problems"]) == (mechanism, model.n_iter_, 1)
    assert said["alpha"] == pytest.approx(max(model.plan_.alpha, *model.plan_.centrings))
    assert said["classes"] == said["bounds"] == "declared"
    assert said["statement"].startswith("SIMULATION")
    assert "in 100 would guess right" in said["statement"]
    assert not said["protected"]
    json.dumps(said)
    assert_allclose(model.node_coef_.mean(axis=0), model.coef_)
    assert model.node_coef_.shape == (5, 1, 2)
    assert np.ptp(model.node_coef_, axis=0).min() > 0  # each has its own


def test_noise_from_the_system_protects_and_never_comes_again():
    first, second = (private(random_state=None).fit(X2, Y2) for _ in range(2))
    assert first.privacy_["protected"]
    assert first.privacy_["statement"].startswith(
        "This costs anybody with a row at one node at most epsilon = "
    )
    assert first.privacy_["classes"].startswith("read off y and treated as public")
    assert not np.array_equal(first.coef_, second.coef_)
    assert first.__sklearn_tags__().non_deterministic
    assert not private().__sklearn_tags__().non_deterministic


def test_a_random_state_object_is_a_seed():
    a, b = (private(random_state=np.random.RandomState(3)).fit(X2, Y2) for _ in range(2))
    assert_array_equal(a.coef_, b.coef_)
    assert not a.privacy_["protected"]


def test_a_loss_for_each_round_is_summed_or_composed():
    model = private(epsilon=None, delta=None, alpha=0.5, rounds=6).fit(X2, Y2)
    assert model.plan_ is None
    assert model.n_iter_ == 6
    assert model.privacy_["epsilon"] == pytest.approx(3.0)
    assert model.privacy_["delta"] == 0
    falling = private(epsilon=None, alpha=linear(0.2, 0.1), rounds=11).fit(X2, Y2)
    assert falling.privacy_["alpha"] == pytest.approx(0.2)
    assert falling.privacy_["epsilon"] < 1.65  # composed at delta = 1e-5
    assert not hasattr(falling, "predict_log_proba")
    assert hasattr(
        falling, "predict_proba"
    )  # the logistic loss itself, without the planner's margin


# --- more than two classes


def test_without_noise_several_classes_are_one_against_the_rest_each():
    model = exact(data_norm=5.0).fit(X3, Y3)
    for k, name in enumerate(model.classes_):
        alone = exact(data_norm=5.0).fit(X3, name == Y3)
        assert_allclose(model.coef_[k], alone.coef_[0])
        assert_allclose(model.intercept_[k], alone.intercept_[0])
    scores = model.decision_function(X3)
    assert scores.shape == (300, 3)
    assert_array_equal(model.predict(X3), model.classes_[scores.argmax(axis=1)])
    assert model.score(X3, Y3) > 0.9
    shares = model.predict_proba(X3)
    assert_allclose(shares.sum(axis=1), 1)
    assert_array_equal(shares.argmax(axis=1), scores.argmax(axis=1))
    far = model.predict_proba(1e6 * np.ones((1, 2)) * model.coef_.sum(axis=0))
    assert np.isfinite(far).all()


@pytest.mark.parametrize("mechanism", ["primal", "dual"])
def test_all_problems_are_within_the_one_total(mechanism):
    model = private(mechanism=mechanism, epsilon=8.0, rounds=10).fit(X3, Y3)
    assert 0.99 * 8 < model.privacy_["epsilon"] <= 8
    assert (model.n_iter_, model.plan_.rounds, model.privacy_["problems"]) == (10, 30, 3)
    assert worst_node(model.plan_.events, 1e-5).epsilon == pytest.approx(model.privacy_["epsilon"])
    costliest = max(model.plan_.alpha, *model.plan_.centrings)
    assert model.privacy_["alpha"] == pytest.approx(costliest)
    assert "All 3 problems" in model.privacy_["statement"]
    assert model.score(X3, Y3) > 0.75


def test_a_shared_plan_pulls_as_a_plan_with_its_share_of_mu():
    ring = Topology.family("ring", 3)
    asked = {"epsilon": 1.0, "delta": 1e-5, "centring": False}
    sums, four = (plan([100] * 3, ring, 5, **asked, problems=K) for K in (1, 4))
    assert four.steps.pull == pytest.approx(2 * sums.steps.pull)
    assert four.rounds == 4 * sums.rounds
    assert four.alpha == pytest.approx(sums.alpha / 2, rel=0.02)
    asked["mechanism"] = "primal"
    alone, whole = (plan([100] * 3, ring, 5, **asked, problems=K) for K in (1, 4))
    assert whole.settings.rho == pytest.approx(2 * alone.settings.rho)
    assert whole.rounds == 4 * alone.rounds
    assert whole.alpha == pytest.approx(alone.alpha / 2, rel=0.02)


def test_no_two_problems_share_noise():
    rows, _ = bound_features(X2, 5.0, True)
    where = np.arange(200) % 3
    same = np.full(200, 2)  # problems 0 and 1 have the same rows and signs
    how = {
        "plan": Plan.of(rounds=2, mechanism=Primal(), schedule=1.0),
        "start": np.zeros((3, 3)),
        "draws": SeededEntropy(0),
        "journal": None,
    }
    first, second, _ = solve(FitRows(rows, same, where), 3, Topology.family("ring", 3), **how)
    assert not np.any(first.V == second.V)


# --- bounds


def test_rows_within_the_norm_are_not_clipped_and_longer_ones_keep_their_sign():
    X = np.array([[3.0, 4.0], [0.0, 1.0], [300.0, -400.0], [1e200, 1e200]])
    Z, units = bound_features(X, 5.0, True)
    assert np.linalg.norm(Z, axis=1).max() <= 1 + 1e-15
    f = np.array([0.7, -0.3, 0.4])
    linear_form = np.column_stack([X, np.ones(4)]) @ (f * units)
    assert_allclose((Z @ f)[:2], linear_form[:2])
    assert np.sign(Z[2] @ f) == np.sign(linear_form[2])
    assert_allclose(Z[2], Z[2, 2] / np.sqrt(0.5) * np.array([60.0, -80.0, 1.0]) / np.sqrt(2))
    S, _ = bound_features(csr_array(X), 5.0, True)
    assert_allclose(S.toarray(), Z)
    other = X.copy()
    other[1] = [50.0, -1.0]
    assert_array_equal(np.delete(bound_features(other, 5.0, True)[0], 1, 0), np.delete(Z, 1, 0))


def test_training_clips_what_the_declared_norm_does_not_cover():
    far = np.vstack([X2, [[80.0, 60.0]]])
    near = np.vstack([X2, [[8.0, 6.0]]])
    y = np.append(Y2, "south")
    pulled, same = (private(data_norm=5.0, fit_intercept=False).fit(X, y) for X in (far, near))
    assert_allclose(pulled.coef_, same.coef_, rtol=1e-12)  # both rows are (4, 3) there
    assert (
        np.abs(private(data_norm=200.0, fit_intercept=False).fit(far, y).coef_ - same.coef_).max()
        > 1e-3
    )


def test_private_fits_do_not_guess_a_bound():
    for mechanism in ("primal", "dual"):
        with pytest.raises(DeclarationError, match="declare a bound on the length"):
            private(mechanism=mechanism, data_norm=None).fit(X2, Y2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": None}, "give either epsilon and delta"),
        ({"alpha": 0.1}, "give either epsilon and delta"),
        ({"epsilon": None, "alpha": 0.1}, "rounds is None"),
        ({"mechanism": None}, "epsilon is given, but mechanism is None"),
        (
            {"mechanism": "tertiary"},
            "expected one of sum, sealed, primal, dual,.* a Mechanism, 'auto', or None",
        ),
        ({"delta": None}, "delta is None"),
        ({"rho": 0.1}, "rho is given beside epsilon"),
        ({"loss": HuberHinge()}, "loss is given beside epsilon"),
        ({"data_norm": 0.0}, "data_norm is 0.0"),
        ({"data_norm": "5"}, "data_norm is '5'"),
        (
            {"epsilon": None, "mechanism": None, "loss": "cubic"},
            "expected a Loss or one of smoothed_hinge, logistic",
        ),
        (
            {"epsilon": None, "mechanism": None, "loss": Logistic(), "margin": 1.0},
            "margin is given beside a Loss",
        ),
        ({"topology": 5}, "expected a family's name"),
        (
            {"start": [1.0, 2.0]},
            r"start has shape \(2,\); expected 3 numbers",
        ),
        ({"start": [1.0, 2.0, np.inf]}, "start holds NaN or infinite values"),
        ({"random_state": -1}, "the seed is -1"),
        ({"epsilon": None, "alpha": 0.1, "rounds": 3, "delta": 2.0}, "delta is 2.0"),
        ({"rounds": 0}, "rounds is 0; expected a whole number"),
        ({"regularizer": "l1"}, "regularizer is 'l1'; expected a Regularizer"),
    ],
)
def test_contradictions_are_refused(changed, message):
    with pytest.raises(DeclarationError, match=message):
        private(**changed).fit(X2, Y2)


@pytest.mark.parametrize(
    "X",
    [
        np.array([["4711.5", "secret"]] * 10, dtype=object),
        np.full((10, 2), 4711.5 + 1j),
        np.full(10, 4711.5),
        np.array(4711.5),
    ],
)
def test_no_message_shows_a_value(X):
    y = np.arange(10) % 2
    with pytest.raises(ValueError, match=r"\w") as refused:
        private().fit(X, y)
    assert "4711" not in str(refused.value)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__
    fitted = private().fit(X2, Y2)
    with pytest.raises(ValueError, match=r"\w") as refused:
        fitted.predict(X)
    assert "4711" not in str(refused.value)


def test_weights_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="which bounds what replacing it can change"):
        exact().fit(X2, Y2, sample_weight=np.ones(200))
    exact().fit(X2, Y2, sample_weight=None)
    with pytest.raises(TypeError, match="unexpected arguments weights"):
        exact().fit(X2, Y2, weights=np.ones(200))


# --- labels


def test_declared_classes_need_not_occur():
    model = private(classes=[1, 0]).fit(X2, np.ones(200, dtype=int))
    assert_array_equal(model.classes_, [0, 1])
    assert set(model.predict(X2)) == {1}
    model = exact(classes=["north", "south", "east"]).fit(X2, Y2)
    assert_array_equal(model.classes_, ["east", "north", "south"])
    assert model.coef_.shape == (3, 2)
    assert model.score(X2, Y2) > 0.9


def test_declared_numbers_match_labels_by_value():
    y = np.where(Y2 == "south", "1.0", "0")
    model = exact(classes=[0, 1]).fit(X2, y)
    assert_array_equal(model.classes_, [0, 1])
    assert_array_equal(model.coef_, exact().fit(X2, np.where(Y2 == "south", 1, 0)).coef_)
    with pytest.raises(CellError, match="row 0: the label is none"):
        exact(classes=["0", "1"]).fit(X2, np.where(np.arange(200) == 0, "01", "0"))


def test_an_undeclared_label_is_refused_by_position():
    y = np.where(np.arange(200) == 7, "elsewhere", Y2)
    with pytest.raises(CellError, match=r"y, row 7: the label is none of the declared classes$"):
        private(classes=["north", "south"]).fit(X2, y)
    with pytest.raises(CellError, match="cross_val_predict and stacking replace labels by 0, 1"):
        cross_val_predict(private(classes=["north", "south"]), X2, Y2, method="decision_function")
    with pytest.raises(DataError, match="only one class"):
        private().fit(X2, np.ones(200))


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (private(), False),
        (private(margin=0.0), True),
        (exact(), True),
        (exact(margin=1.0), False),
        (exact(loss=Logistic()), True),
        (exact(loss=Logistic(1.0)), False),
        (exact(loss="huber_hinge"), False),
        (exact(loss=HuberHinge(margin=0.0)), False),
    ],
)
def test_only_log_odds_become_probabilities(model, has):
    assert hasattr(model, "predict_proba") == has
    model.fit(X2, Y2)
    if has:
        scores = model._counted_scores(X2)  # of bounded rows, as they were fitted
        assert (scores > 0).tolist() == (model.decision_function(X2) > 0).tolist()
        assert_allclose(
            model.predict_proba(X2), np.column_stack([1 - expit(scores), expit(scores)]), atol=1e-12
        )
    else:
        with pytest.raises(
            AttributeError,
            match=r"predict_proba: scores .* no log-odds.*decision_function.*margin=0\.0",
        ):
            model.predict_proba(X2)


def test_probabilities_are_calibrated_without_noise():
    rng = np.random.default_rng(7)
    X = rng.uniform(-1, 1, (4000, 1))
    y = rng.uniform(size=4000) < expit(3 * X[:, 0] + 1)
    model = exact(rho=1e-5).fit(X, y)
    assert_allclose([model.coef_[0, 0], model.intercept_[0]], [3, 1], atol=0.25)


# --- nodes


def test_rows_are_split_by_position_alone():
    plain = exact(nodes=3, tol=1e-9).fit(X2, Y2)
    assert_array_equal(plain.coef_, exact(tol=1e-9).fit(X2, Y2, nodes=np.arange(200) % 3).coef_)
    assert plain.topology_.nodes == ("0", "1", "2")
    assert plain.node_coef_.shape == (3, 1, 2)
    assert_allclose(plain.node_coef_, np.broadcast_to(plain.coef_, (3, 1, 2)), rtol=1e-7)


def test_labels_and_parts_say_where_rows_are():
    where = np.where(np.arange(200) % 7 < 3, "b", np.where(np.arange(200) % 7 < 5, "a", "c"))
    graph = nx.path_graph(["c", "a", "b"])
    named = private(topology=graph).fit(X2, Y2, nodes=where)
    assert named.topology_.nodes == ("c", "a", "b")
    parts = [(X2[where == p], Y2[where == p]) for p in "cab"]
    assert_array_equal(private(topology=Topology(graph)).fit(parts).coef_, named.coef_)
    assert_array_equal(
        private(topology="path").fit(X2, Y2, nodes=where).topology_.nodes, ["a", "b", "c"]
    )
    sparse = private(topology=graph).fit([(csr_matrix(X), y) for X, y in parts])
    dense = private(topology=graph, centre=None).fit(parts)
    assert_allclose(sparse.coef_, dense.coef_)


def test_shards_are_taken_as_they_are():
    rows, _ = bound_features(X2, 5.0, True)
    signs = np.where(Y2 == "south", 1, -1)
    where = np.arange(200) % 3
    shards = [Shard.of(rows[where == p], signs[where == p]) for p in range(3)]
    model = private(epsilon=None, alpha=0.3, rounds=4, data_norm=None).fit(shards)
    run = simulate(
        shards,
        Topology.family("ring", 3),
        Plan.of(mechanism=Primal(), schedule=0.3, rounds=4),
        draws=SeededEntropy(0),
    )
    assert_allclose(model.coef_[0], run.models("network")[0, 0])
    assert_array_equal(model.classes_, [-1, 1])
    assert np.mean(model.predict(rows) == signs) == model.score(rows, signs)


@pytest.mark.parametrize(
    ("X", "more", "topology", "message"),
    [
        (X2, {"nodes": np.zeros(3)}, "ring", r"nodes has shape \(3,\) for 200 rows"),
        (
            X2,
            {"nodes": np.arange(200) % 4},
            nx.path_graph(3),
            "names one that the network does not have",
        ),
        (
            X2,
            {"nodes": np.arange(200) % 2},
            nx.path_graph(3),
            "node '2' has no row: n_samples=200 for 3 nodes",
        ),
        (X2[98:102], {}, "ring", "node '4' has no row"),
        ([(X2, Y2), Shard.of(np.eye(2), [1, -1])], {}, "ring", "a list of different things"),
        ([(X2, Y2), (X2[:, :1], Y2)], {}, "ring", "nodes differ in their number of columns"),
        ([(X2, Y2)], {}, nx.path_graph(3), "1 parts for 3 nodes"),
    ],
)
def test_rows_at_no_known_node_are_refused(X, more, topology, message):
    y = None if isinstance(X, list) else Y2[98:102] if len(X) == 4 else Y2
    with pytest.raises(ValueError, match=message):
        private(topology=topology).fit(X, y, **more)


def test_sparse_rows_give_the_same_model():
    """Those that are not centred: a centre would make sparse rows dense."""
    dense, sparse = (private(centre=None).fit(X, Y2) for X in (X2, csr_matrix(X2)))
    assert_array_equal(private().fit(csr_matrix(X2), Y2).coef_, sparse.coef_)
    assert private().fit(csr_matrix(X2), Y2).privacy_["centre"] == "none"
    assert_allclose(sparse.coef_, dense.coef_)
    assert_allclose(dense.decision_function(csr_matrix(X2)), dense.decision_function(X2))


# --- a schema


@pytest.fixture(scope="module")
def data():
    found = census(3000, seed=2, nodes=3, heterogeneity=0.5)
    label = Label(
        name="income", negative="high", positive="low"
    )  # in sorted order, as classes_ are
    return found, found.schema.model_copy(update={"label": label})


def _raw(found):
    names = [column.name for column in found.schema.columns]
    return {name: found.train[name] for name in names}, {name: found.test[name] for name in names}


def test_with_a_schema_a_fit_is_what_train_does(data, tmp_path):
    found, schema = data
    ring = Topology.family("ring", 3)
    tables = found.tables(ring.nodes)
    given = {"epsilon": 2.0, "delta": 1e-5, "calibration": True}
    trained = train(schema, tables, ring, **given, draws=SeededEntropy(3))
    X, test = _raw(found)
    model = NetworkClassifier(epsilon=2.0, delta=1e-5, schema=schema, random_state=3)
    model.fit(X, found.train["income"], nodes=found.node)
    assert_allclose(model.coef_, trained.model().coef, rtol=1e-12)
    assert_allclose(model.intercept_, trained.model().intercept)
    assert model.privacy_["epsilon"] == trained.total.epsilon
    assert model.privacy_["classes"] == model.privacy_["bounds"] == "declared"
    assert_array_equal(model.predict(test), trained.model().predict(found.test))
    assert list(model.feature_names_in_) == list(X)
    model.save(tmp_path / "model.json")
    assert_array_equal(
        NetworkClassifier.load(tmp_path / "model.json").predict(test), model.predict(test)
    )


def test_a_frame_does_as_well(data):
    pandas = pytest.importorskip("pandas")
    found, schema = data
    X, test = _raw(found)
    model = NetworkClassifier(epsilon=2.0, delta=1e-5, schema=schema, random_state=3)
    same = clone(model).fit(X, found.train["income"]).decision_function(test)
    assert_allclose(
        model.fit(pandas.DataFrame(X), found.train["income"]).decision_function(
            pandas.DataFrame(test)
        ),
        same,
    )


def test_rows_that_a_schema_drops_go_with_their_label_and_node():
    columns = (Numeric(name="a", low=-5, high=5, missing="drop"), Numeric(name="b", low=-5, high=5))
    schema = Schema(columns=columns, label=Label(name="y", negative="north", positive="south"))
    where = np.where(Y2 == "south", "b", "a")
    gone = np.arange(200) % 9 == 4
    X = {"a": [None if g else float(v) for g, v in zip(gone, X2[:, 0], strict=True)], "b": X2[:, 1]}
    model = exact(schema=schema).fit(X, Y2, nodes=where)
    kept = {name: X2[~gone, i] for i, name in enumerate("ab")}
    assert_allclose(
        model.coef_, exact(schema=schema).fit(kept, Y2[~gone], nodes=where[~gone]).coef_
    )
    assert model.score(kept, Y2[~gone]) > 0.9
    with pytest.raises(DataError, match="y has length 3, X has 200 rows"):
        exact(schema=schema).fit(X, Y2[:3])
    with pytest.raises(ValueError, match="requires y"):
        exact(schema=schema).fit(X)
    with pytest.raises(DeclarationError, match="without data_norm"):
        exact(schema=schema, data_norm=1.0).fit(X, Y2)
    with pytest.raises(DeclarationError, match="one frame"):
        exact(schema=schema).fit([(X, Y2)])


# --- ledgers


@pytest.fixture
def folder(tmp_path):
    for p in range(3):
        with Ledger.create(tmp_path / f"{p}.sqlite", str(p), who="test", at=AT) as ledger:
            ledger.set_cap(Cap.of(4.0, 1e-5), who="test", at=AT)
    return tmp_path


def charged(folder, node="0"):
    with Ledger.open(folder / f"{node}.sqlite", read_only=True) as ledger:
        assert ledger.verify() == []
        return {
            run: ledger.rounds(run)
            for run in dict.fromkeys(e.run for e in ledger.entries() if e.run)
        }, ledger.spent()


def test_every_fit_of_a_search_is_charged_until_the_cap_refuses(folder):
    model = private(epsilon=0.4, nodes=3, random_state=None, ledger=folder)
    assert clone(model).ledger == folder
    search = GridSearchCV(
        model, {"mechanism": ["primal", "dual"]}, cv=2, refit=False, error_score="raise"
    )
    search.fit(X2, Y2)
    for node in "012":
        runs, events = charged(folder, node)
        assert len(runs) == 4
        assert all(rounds == list(range(21)) for rounds in runs.values())  # 0: the centre
    with pytest.raises(BudgetRefused, match="do not fit under the cap"):
        search.set_params(estimator__epsilon=4.0).fit(X2, Y2)
    assert charged(folder, "2") == (runs, events)  # the refused fit entered nothing


def test_the_second_fit_over_the_cap_is_refused(folder):
    model = private(epsilon=4.0, nodes=3, random_state=None, ledger=str(folder)).fit(X2, Y2)
    before = vars(model).copy()
    with pytest.raises(BudgetRefused):
        clone(model).fit(X2, Y2)
    with pytest.raises(BudgetRefused):
        model.fit(X3, Y3)
    assert vars(model) == before  # a refused fit leaves what was there
    assert len(charged(folder)[0]) == 1


def test_every_node_may_have_its_own_total():
    model = private(epsilon={"0": 1.0, "1": 2.0, "2": 3.0}, nodes=3).fit(X2, Y2)
    assert 2.97 < model.privacy_["epsilon"] <= 3
    assert len(set(model.plan_.alphas)) == 3


@pytest.mark.parametrize(
    "how", [{"epsilon": 3.0, "rounds": 5}, {"epsilon": None, "alpha": 0.2, "rounds": 5}]
)
def test_several_classes_are_one_run_in_the_ledger(folder, how):
    paths = {str(p): folder / f"{p}.sqlite" for p in range(3)}
    model = private(**how, nodes=3, random_state=None, ledger=paths).fit(X3, Y3)
    assert model.privacy_["protected"]
    for p in "012":
        runs, events = charged(folder, p)
        rounds = 5 * model.privacy_["problems"]
        assert rounds == (5 if how["epsilon"] else 15)  # sums have one model of all classes
        first = 0 if how["epsilon"] else 1  # rows are centred where there is a total
        assert list(runs.values()) == [list(range(first, rounds + 1))]
        assert [e.round for e in events] == list(range(first, rounds + 1))
        assert worst_node(events, 1e-5).epsilon == pytest.approx(model.privacy_["epsilon"])


def test_probabilities_thresholds_and_weights_of_a_fit(tmp_path):
    """By default where rows are many; the model file keeps them."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(8000) < 0.15, "yes", "no")
    X = rng.normal(size=(8000, 2)) + 1.2 * (y == "yes")[:, None]
    how = {"epsilon": 3.0, "delta": 1e-5, "data_norm": 4.0, "classes": ["no", "yes"]}
    how |= {"nodes": 3, "random_state": 0, "positives": 0.15}
    model = NetworkClassifier(**how, threshold="balanced")
    assert not hasattr(model, "predict_proba")  # whether rows are many is not known yet
    model.fit(X, y)
    assert model.privacy_["epsilon"] <= 3
    assert model.histogram_ is not None
    p = model.predict_proba(X)[:, 1]
    assert p.mean() == pytest.approx(0.15, abs=0.02)
    assert np.mean(y[(p > 0.4) & (p < 0.6)] == "yes") == pytest.approx(0.5, abs=0.1)
    recall, precision = (
        np.mean(model.predict(X[y == "yes"]) == "yes"),
        np.mean(y[model.predict(X) == "yes"] == "yes"),
    )
    assert recall > 0.75 > precision
    costly = NetworkClassifier(**how, cost=(10, 1)).fit(X, y)
    assert costly.threshold_ > model.threshold_
    assert np.mean(y[costly.predict(X) == "yes"] == "yes") > 0.7
    model.save(tmp_path / "m.json")
    again = NetworkClassifier.load(tmp_path / "m.json")
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert_allclose(again.predict_proba(X), model.predict_proba(X))
    without = NetworkClassifier(**how, calibration=False).fit(X, y)
    assert without.histogram_ is None
    assert not hasattr(without, "predict_proba")
    heavy = NetworkClassifier(**how, class_weight="balanced").fit(X, y)
    assert np.mean(heavy.predict(X) == "yes") > np.mean(without.predict(X) == "yes") + 0.1
    few = NetworkClassifier(**how, calibration=True).fit(X[:200], y[:200])
    with pytest.raises(AttributeError, match="noise drowns"):
        few.predict_proba(X)
    few.set_params(threshold="balanced", positives=None)
    for margin in (None, 0.0):  # scores that are log-odds do not say how rare a label is
        with pytest.warns(UserWarning, match="is left at 0"):
            few.set_params(margin=margin).fit(X[:200], y[:200])


@pytest.mark.parametrize("given", [{"threshold": 0.3}, {"threshold": "balanced"}, {"cost": (1, 2)}])
def test_several_classes_have_no_threshold(given):
    rng = np.random.default_rng(0)
    model = NetworkClassifier(epsilon=1.0, delta=1e-5, data_norm=2.0, random_state=0, **given)
    with pytest.raises(DeclarationError, match=f"{next(iter(given))} is .* there are 3 classes"):
        model.fit(rng.uniform(-1, 1, (60, 2)), np.arange(60) % 3)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"calibration": True, "mechanism": "primal"}, "it is a release of sums"),
        ({"threshold": 1.0, "cost": (1, 2)}, "not both"),
        ({"threshold": "best"}, "a score or 'balanced'"),
        ({"cost": 3.0}, "two numbers above 0"),
        ({"cost": (0.0, 1.0)}, "false_positive"),
        ({"threshold": "balanced", "calibration": False}, "declare the share of rows"),
        ({"threshold": "balanced", "mechanism": "primal"}, "declare the share of rows"),
        ({"class_weight": "balanced"}, "counting them would be a release"),
        ({"class_weight": {0: 1}}, "a number for each of the label values"),
    ],
)
def test_probabilities_that_contradict_themselves_are_refused(how, words):
    with pytest.raises(DeclarationError, match=words):
        private(**how).fit(X2, Y2)


def test_a_private_centre_is_charged_too(data, folder):
    found, schema = data
    model = NetworkClassifier(epsilon=2.0, delta=1e-5, schema=schema, ledger=folder)
    model.fit(_raw(found)[0], found.train["income"], nodes=found.node)
    assert next(iter(charged(folder)[0].values())) == list(range(22))  # and a histogram
    assert model.schema_.centre is not None


def test_a_ledger_that_is_not_there_is_made_by_a_command(tmp_path):
    with pytest.raises(
        LedgerError,
        match=r"make it: dynadp ledger cap .*nowhere.0\.sqlite --node NODE --epsilon E --delta D",
    ):
        private(nodes=3, random_state=None, ledger=tmp_path / "nowhere").fit(X2, Y2)


def test_seeded_fits_enter_no_ledger(folder):
    with pytest.raises(SeededRefused):
        private(nodes=3, ledger=folder).fit(X2, Y2)
    assert charged(folder)[1] == []
    with pytest.raises(DeclarationError, match="no ledger for 1, 2"):
        private(nodes=3, random_state=None, ledger={"0": folder / "0.sqlite"}).fit(X2, Y2)
    with pytest.raises(DeclarationError, match="ledger is given, but mechanism is None"):
        exact(ledger=folder).fit(X2, Y2)


# --- the rest of the manners


def test_in_a_pipeline_and_a_search_with_nodes():
    model = make_pipeline(FunctionTransformer(np.tanh), exact())
    assert cross_val_score(model, X2, Y2, cv=3).min() > 0.9
    search = GridSearchCV(exact(), {"rho": [1e-4, 1e2]}, cv=2).fit(X2, Y2, nodes=np.arange(200) % 2)
    assert search.best_params_ == {"rho": 1e-4}
    assert search.best_estimator_.topology_.nodes == ("0", "1")


def test_clone_and_pickle_keep_everything():
    model = private(
        regularizer=SmoothElasticNet(), start=[0.1, 0.2, 0.3], classes=["north", "south"]
    )
    copy = clone(model)
    assert copy.get_params() | {"regularizer": None} == model.get_params() | {"regularizer": None}
    again = pickle.loads(pickle.dumps(model.fit(X2, Y2)))
    assert_array_equal(again.decision_function(X2), model.decision_function(X2))
    here, there = model.plan_, again.plan_
    assert there.settings.loss == here.settings.loss
    assert there.protection == here.protection
    assert there.to_json() == here.to_json()
    assert there.events == here.events
    assert there.bound.counts == here.bound.counts
    assert there.bound.topology.describe() == here.bound.topology.describe()
    assert again.privacy_ == model.privacy_
    assert_array_equal(copy.fit(X2, Y2).coef_, model.coef_)


def test_a_start_is_in_the_units_of_the_coefficients():
    start = np.array([0.5, -1.0, 2.0])
    model = private(epsilon=None, alpha=0.3, rounds=2, nodes=2, start=start).fit(X2, Y2)
    rows, _ = bound_features(X2, 4.0, True)
    shards = [Shard.of(rows[p::2], Y2[p::2], classes=("north", "south")) for p in range(2)]
    how = {"mechanism": Primal(), "schedule": 0.3, "rounds": 2, "draws": SeededEntropy(0)}
    V = flat_simulate(
        shards, Topology.family("ring", 2), start=start * np.sqrt(2) * [4, 4, 1], **how
    ).models()[0, 0]
    assert_allclose([*model.coef_[0], *model.intercept_], V / np.sqrt(2) / [4, 4, 1])


def test_an_optimum_that_is_not_reached_is_said():
    with pytest.warns(ConvergenceWarning, match="not certified to tol=1e-06"):
        model = exact(rounds=2).fit(X2, Y2)
    assert model.n_iter_ == 2


def test_rows_of_nothing_but_zeros():
    model = exact(fit_intercept=False, rounds=2).fit(np.zeros((10, 2)), np.arange(10) % 2)
    assert_array_equal(model.coef_, [[0.0, 0.0]])


@pytest.mark.parametrize(
    "model",
    [
        private(),
        private(margin=0.0, start=[0.1, 0.2, 0.3]),
        exact(loss=Logistic(), regularizer=SmoothElasticNet()),
        exact(loss=HuberHinge(), topology=nx.path_graph(3), start=np.zeros(3)),
        private(epsilon=None, alpha=linear(0.2, 0.1), rounds=4, loss="smoothed_hinge", ledger=None),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_saved_model_predicts_the_same(model, classes, tmp_path):
    X, y = (X2, Y2) if classes == 2 else (X3, Y3)
    path = tmp_path / "model.json"
    model = clone(model).fit(X, y)
    model.save(path)
    again = NetworkClassifier.load(path)
    assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.privacy_ == model.privacy_
    assert hasattr(again, "predict_proba") == hasattr(model, "predict_proba")
    assert again.n_iter_ == model.n_iter_
    with pytest.raises(ValueError, match="X has 1 features, but NetworkClassifier is expecting 2"):
        again.predict(X[:, :1])
    if (
        model.regularizer is not None
        or not isinstance(model.topology, str)
        or model.alpha is not None
    ):
        with pytest.raises(
            (DeclarationError, TopologyError)
        ):  # never something else than was meant
            again.fit(X, y)


def test_a_saved_estimator_is_a_model_of_raw_columns(tmp_path):
    data = census(400, nodes=2)
    X, y = {k: v for k, v in data.train.items() if k != "income"}, data.train["income"]
    fitted = private(schema=data.schema, data_norm=None, classes=None).fit(X, y)
    fitted.save(tmp_path / "model.json")
    model = load_model(tmp_path / "model.json")
    assert_array_equal(model.predict(data.test), fitted.predict(data.test))
    labels = data.test["income"]
    assert evaluate(model, data.test).found["accuracy"].value == pytest.approx(
        np.mean(fitted.predict(data.test) == labels)
    )


def test_a_saved_estimator_of_ready_features_says_that_it_has_no_schema(tmp_path):
    exact().fit(X2, Y2).save(tmp_path / "model.json")
    model = load_model(tmp_path / "model.json")
    for use in (lambda: model.predict({}), lambda: evaluate(model, {"a": [1.0]})):
        with pytest.raises(DataError, match=r"no schema for raw columns; load it with Network"):
            use()


def test_the_model_of_a_run_is_an_estimator(tmp_path):
    data = census(400, nodes=2)
    X = {k: v for k, v in data.train.items() if k != "income"}
    trained = train(
        data.schema,
        data.tables("ab"),
        Topology.family("ring", 2).named("ab"),
        Plan.of(loss=Logistic(margin=0.5), mechanism=Primal(), schedule=1.0, rounds=2),
        draws=SeededEntropy(0),
    )
    made = trained.model()
    made.save(tmp_path / "model.json")
    again = NetworkClassifier.load(tmp_path)
    assert_allclose(again.decision_function(X), made.decision(data.train), rtol=1e-12)
    assert_array_equal(again.predict(X), made.predict(data.train))
    assert (again.mechanism, again.loss, again.margin) == ("primal", "logistic", 0.5)
    assert not hasattr(again, "node_coef_")
    again.save(tmp_path / "again.json")
    assert_array_equal(load_model(tmp_path / "again.json").coef, made.coef)


def test_names_of_columns_are_saved(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X2, columns=["a", "b"])
    exact().fit(frame, Y2).save(tmp_path / "model.json")
    again = NetworkClassifier.load(tmp_path / "model.json")
    assert list(again.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(frame[["b", "a"]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "dynadp-run"}, "not a dynadp-model file"),
        ({"version": 3}, "has version 3, this program reads up to 2; upgrade dynadp"),
        ({"coef": [[1.0]]}, "expected 2 finite coefficients"),
        ({"coef": [[1.0, None]]}, "expected 2 finite coefficients"),
        ({"intercept": [1.0, 2.0]}, "expected 2 finite coefficients, .* and an intercept"),
        ({"estimator": {"n_features_in_": 2}}, "is damaged: KeyError 'parameters'"),
        (
            {"estimator": {"n_features_in_": 2, "parameters": {"colour": "red"}}},
            "is damaged: TypeError",
        ),
        ({"privacy": ...}, "is damaged: KeyError"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, message):
    path = tmp_path / "model.json"
    private().fit(X2, Y2).save(path)
    content = json.loads(path.read_text()) | change
    path.write_text(
        json.dumps({name: value for name, value in content.items() if value is not ...})
    )
    with pytest.raises(RecordError, match=message):
        NetworkClassifier.load(path)


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(RecordError, match="cannot read"):
        NetworkClassifier.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(RecordError, match="is not JSON"):
        NetworkClassifier.load(tmp_path / "text.json")
    with pytest.raises(NotFittedError):
        private().save(tmp_path / "model.json")


def test_only_the_estimator_needs_scikit_learn():
    root = Path(dynadp.__file__).parent
    needs = re.compile(r"^(from|import) sklearn", re.MULTILINE)
    assert {
        str(path.relative_to(root)) for path in root.rglob("*.py") if needs.search(path.read_text())
    } == {f"estimators/{name}.py" for name in ("classifier", "network", "regressor")} | {
        f"exports/{name}.py" for name in ("pipeline", "pipeline_columns")
    }


def test_a_fit_that_fails_gives_back_what_it_reserved(tmp_path, monkeypatch):
    data = census(300, nodes=3)
    X, y = {k: v for k, v in data.train.items() if k != "income"}, data.train["income"]
    paths = {}
    for p in ("0", "1", "2"):
        paths[p] = tmp_path / f"{p}.sqlite"
        with Ledger.create(paths[p], p, who="test", at="2026-03-01T12:00:00+00:00") as ledger:
            ledger.set_cap(Cap.of(1.0, 1e-5), who="test", at="2026-03-01T12:00:00+00:00")
    model = NetworkClassifier(epsilon=1.0, delta=1e-5, schema=data.schema, nodes=3, ledger=paths)
    bad = {**X, "age": np.where(np.arange(300) == 299, "old", X["age"].astype(str))}
    with pytest.raises(CellError, match="row 299: the value is not a number"):
        model.fit(bad, y)
    with (
        monkeypatch.context() as broken
    ):  # a failure after the reservation, before anything is released
        broken.setattr(
            "dynadp.estimators.network.centring_round",
            lambda *_: (_ for _ in ()).throw(NotCertified("not today")),
        )
        with pytest.raises(NotCertified):
            model.fit(X, y)
    assert model.fit(X, y).privacy_["protected"]
    with pytest.raises(BudgetRefused):
        model.fit(X, y)


@pytest.mark.parametrize("mechanism", [None, "primal", "dual"])
def test_every_kind_of_input_gives_the_same_model(mechanism):
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    rng = np.random.default_rng(4)
    X = np.round(rng.uniform(-1, 1, (240, 4)) * (rng.random((240, 4)) < 0.6), 3)
    y = np.where(X[:, 0] + 0.3 * rng.normal(size=240) > 0, "yes", "no")
    columns = {name: X[:, i] for i, name in enumerate("abcd")}
    private = {} if mechanism is None else {"epsilon": 3.0, "delta": 1e-5, "random_state": 1}
    model = NetworkClassifier(
        mechanism=mechanism, data_norm=2.0, nodes=3, classes=["no", "yes"], **private
    )
    frames = (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns))
    centred = model.fit(X, y).coef_
    for given in frames:
        assert clone(model).fit(given, y).coef_.tobytes() == centred.tobytes()
    model.set_params(centre=None)
    expected = model.fit(X, y).coef_
    for given in (csr_array(X), *frames):
        found = clone(model).fit(given, y).coef_
        if mechanism is None:  # sparse products add up in another order
            assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
        else:  # messages lie on a grid
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("declared", [True, False])
def test_a_lazy_frame_has_no_rows_yet(declared):
    import polars as pl

    schema = Schema(
        columns=(Numeric(name="a", low=-1, high=1),), label=Label(name="y", negative=0, positive=1)
    )
    rows, y = pl.DataFrame({"a": np.linspace(-1, 1, 40)}), np.arange(40) // 20
    bounds = {"schema": schema} if declared else {"data_norm": 1.0}
    model = NetworkClassifier(mechanism=None, nodes=2, classes=[0, 1], **bounds)
    with pytest.raises(DeclarationError, match=r"X is a LazyFrame, .* call \.collect\(\)"):
        model.fit(rows.lazy(), y)
    with pytest.raises(DeclarationError, match=r"X is a LazyFrame"):
        model.fit(rows, y).predict(rows.lazy())


@pytest.mark.parametrize("nodes", [0, 2.5, "3", None])
def test_a_number_of_nodes_that_is_none(nodes):
    with pytest.raises(DeclarationError, match="expected a whole number from 1"):
        NetworkClassifier(mechanism=None, nodes=nodes).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize(("name", "what"), [("nodes", "node"), ("y", "label")])
def test_a_wrong_length_is_told_of_what_is_wrong(name, what):
    found = census(300, seed=2, nodes=3, test_rows=0)
    given = {"y": found.train["income"], "nodes": found.node}
    given[name] = given[name][:-1]
    model = NetworkClassifier(epsilon=1.0, delta=1e-5, schema=found.schema, random_state=0)
    message = f"^{name} has length 299, X has 300 rows; expected the {what} of each row$"
    with pytest.raises(DataError, match=message):
        model.fit(dict(found.train), **given)


# --------------------------------------------------------------------------------------------------
# algorithms


@pytest.mark.parametrize(
    ("given", "algorithm", "mechanism"),
    [
        ({}, "sum", "sum"),
        ({"algorithm": "admm"}, "admm", "primal"),
        ({"mechanism": "dual"}, "admm", "dual"),
        ({"regularizer": SmoothElasticNet(0.5, 0.1)}, "admm", "primal"),
        ({"mechanism": Sum(second_moment=True)}, "sum", "sum"),
        ({"mechanism": "sealed", "honest": 3}, "sum", "sealed"),
        ({"mechanism": Sealed(colluding=1)}, "sum", "sealed"),
        ({"mechanism": Primal(noise="gaussian")}, "admm", "primal"),
    ],
)
def test_the_algorithm_is_the_planners_unless_something_says_so(given, algorithm, mechanism):
    model = NetworkClassifier(
        epsilon=4.0, delta=1e-5, data_norm=5.0, classes=["north", "south"], random_state=0, **given
    ).fit(X2, Y2)
    assert model.plan_.algorithm == algorithm
    assert model.privacy_["mechanism"] == mechanism
    assert 3.9 < model.privacy_["epsilon"] <= 4.0
    assert model.score(X2, Y2) > 0.7
    json.dumps(model.privacy_, allow_nan=False)


def test_sums_by_mu(tmp_path):
    how = {"delta": 1e-5, "data_norm": 5.0, "classes": ["north", "south"], "random_state": 0}
    model = NetworkClassifier(mu=0.3, rounds=20, **how).fit(X2, Y2)
    assert model.privacy_["mechanism"] == "sum"
    assert model.privacy_["epsilon"] == pytest.approx(
        gaussian_epsilon(0.3 * np.sqrt(20), 1e-5), rel=1e-3
    )
    model.save(tmp_path / "m.json")
    again = NetworkClassifier.load(tmp_path / "m.json")
    np.testing.assert_array_equal(again.predict(X2), model.predict(X2))
    for given, words in [
        ({"mu": 0.3, "mechanism": "primal"}, "loses alpha"),
        ({"alpha": 0.3, "mechanism": "sum"}, "loses mu"),
        ({"mu": 0.3, "alpha": 0.1}, "give either"),
        ({"mu": 0.3, "algorithm": "sum", "mechanism": "dual"}, "loses alpha|is for algorithm"),
        ({"mu": 0.3, "regularizer": SmoothElasticNet(0.5, 0.1)}, "has no regularizer"),
    ]:
        with pytest.raises(DeclarationError, match=words):
            NetworkClassifier(rounds=5, **how, **given).fit(X2, Y2)


def test_sealed_sums_are_charged_and_leave_no_key(tmp_path):
    """With a schema, whose centring sum is sealed too, several nodes' ledgers, and two classes."""
    found = census(600, seed=2, nodes=4, test_rows=0)
    names = [f"n{p}" for p in range(4)]
    for name in names:
        with Ledger.create(tmp_path / f"{name}.sqlite", name, who="me", at=AT) as ledger:
            ledger.set_cap(Cap.of(4.0, 1e-5), who="me", at=AT)
    model = NetworkClassifier(
        epsilon=1.0,
        delta=1e-5,
        schema=found.schema,
        mechanism="sealed",
        honest=2,
        topology=Topology.family("ring", 4).named(names),
        ledger=tmp_path,
    )
    where = np.array(names)[np.asarray(found.node)] if found.node.dtype.kind == "i" else found.node
    model.fit(dict(found.train), found.train["income"], nodes=where)
    assert model.privacy_["honest"] == [[2, 4]]
    assert "as long as 2 of the 4 nodes are honest" in model.privacy_["statement"]
    for name in names:
        with Ledger.open(tmp_path / f"{name}.sqlite", read_only=True) as ledger:
            spent = ledger.spent()
            assert {event.kind for event in spent} == {"sealed"}
            assert len(spent) == model.plan_.rounds + 1  # with the centring sum
            assert worst_node(spent, 1e-5).epsilon <= 1.0
    assert not list(tmp_path.glob("*-own-*"))


@pytest.mark.parametrize("given", [{"epsilon": 4.0}, {"mu": 0.1, "rounds": 4}])
def test_several_classes_by_sealed_sums(given, tmp_path):
    """One release a round holds all classes."""
    for p in range(5):
        with Ledger.create(tmp_path / f"{p}.sqlite", str(p), who="me", at=AT) as ledger:
            ledger.set_cap(Cap.of(50.0, 1e-5), who="me", at=AT)
    model = NetworkClassifier(
        **given,
        delta=1e-5,
        data_norm=5.0,
        classes=["north", "south", "west"],
        mechanism="sealed",
        honest=4,
        ledger=tmp_path,
        topology=Topology.family("ring", 5).named([str(p) for p in range(5)]),
    ).fit(X3, Y3)
    assert model.privacy_["problems"] == 1
    assert model.coef_.shape == (3, 2)
    with Ledger.open(tmp_path / "0.sqlite", read_only=True) as ledger:
        spent = ledger.spent()
        rounds = model.n_iter_ + (given.get("epsilon") is not None)  # the centre first
        assert len(spent) == rounds == len({event.round for event in spent})
        assert worst_node(spent, 1e-5).epsilon <= model.privacy_["epsilon"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mechanism": "sealed"}, "declare how many of the 5 add their noise"),
        ({"mechanism": "sealed", "honest": 5}, "honest is 5 of 5 nodes; expected a number from 1"),
        ({"honest": 3}, "honest is of sealed sums; give mechanism='sealed' too"),
        ({"mechanism": "sealed", "honest": 2.5}, "honest is 2.5; expected a whole number"),
    ],
)
def test_who_is_honest_must_be_declared(given, words):
    with pytest.raises(DeclarationError, match=words):
        private(**{"epsilon": 1.0, **given}).fit(X2, Y2)


def test_several_classes_by_sums_are_one_model(tmp_path):
    model = NetworkClassifier(
        epsilon=8.0, delta=1e-5, data_norm=5.0, classes=["north", "south", "west"], random_state=0
    ).fit(X3, Y3)
    assert model.plan_.algorithm == "sum"
    assert model.plan_.rounds == model.n_iter_
    assert "problems" not in model.privacy_["statement"]
    assert worst_node(model.plan_.events, 1e-5).epsilon == pytest.approx(model.privacy_["epsilon"])
    assert model.score(X3, Y3) > 0.75
    p, scores = model.predict_proba(X3), model.decision_function(X3)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_allclose(np.log(p[:, 0] / p[:, 1]), scores[:, 0] - scores[:, 1], atol=1e-9)
    model.save(tmp_path / "model.json")
    again = NetworkClassifier.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.predict_proba(X3), p)
    moment = NetworkClassifier(
        epsilon=8.0,
        delta=1e-5,
        data_norm=5.0,
        classes=["north", "south", "west"],
        mechanism=Sum(second_moment=True),
        random_state=0,
    ).fit(X3, Y3)
    assert moment.score(X3, Y3) > 0.75
    with pytest.raises(DeclarationError, match="leave second_moment out"):
        plan(
            [100] * 3,
            Topology.family("ring", 3),
            5,
            epsilon=8.0,
            delta=1e-5,
            mechanism=Sum(second_moment=True),
            problems=3,
        )
