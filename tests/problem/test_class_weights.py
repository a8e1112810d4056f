"""Rows that weigh by their class: sums, objectives, plans, runs, and what is refused."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.node_rows import local_shard
from dynadp.data.readers import LEAST_MEMORY, source
from dynadp.data.shard import Shard
from dynadp.engines.memory import MemoryNetwork
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.sealed import Sealed
from dynadp.mechanisms.sums import Sum
from dynadp.planning.parts import Settings
from dynadp.planning.planner import class_weights_of, plan
from dynadp.planning.plans import Plan
from dynadp.problem.integer_rows import IntegerRows, Resolution, integer_rows_of
from dynadp.problem.labels import check_class_weights
from dynadp.problem.losses import Logistic
from dynadp.problem.regularizers import SquaredL2
from dynadp.problem.streamed import local_problem
from dynadp.runs.training import train

DELTA, NODES = 1e-5, ("a", "b", "c")
RING = Topology.family("ring", 3).named(NODES)
WEIGHTS = (0.25, 1.0)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True) * 1.1
    return X, np.where(rng.random(60) < 0.3, 1, -1)


# --------------------------------------------------------------------------------------------------
# sums and objectives


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_a_sum_of_weighed_slopes(rows, storage):
    """Against the sum row by row; weights of powers of two leave whole slopes whole."""
    X, y = rows
    shard, loss, made = Shard.of(X, y), Logistic(1.0), Resolution.of(60, 4)
    z = np.random.default_rng(1).normal(size=(2, 4))
    found = integer_rows_of([shard], made, loss, storage=storage, class_weights=WEIGHTS)
    assert isinstance(found, IntegerRows)
    whole = made.whole(shard.signed)
    expected = np.zeros((2, 4))
    for k, point in enumerate(np.rint(z / 2.0**-24) * 2.0**-24):
        slopes = loss.slope((whole @ point) * made.step) * np.where(y > 0, 1.0, 0.25)
        expected[k] = np.rint(slopes / made.step) @ whole
    np.testing.assert_array_equal(found.gradient(z)[0], expected)


def test_streamed_rows_weigh_as_those_in_memory(tmp_path):
    data = census(300, seed=1, nodes=1, test_rows=0)
    table = data.tables(["a"])["a"]
    pq.write_table(pa.table({k: list(v) for k, v in table.items()}), tmp_path / "a.parquet")
    streamed = local_shard(data.schema, source(tmp_path / "a.parquet", memory=LEAST_MEMORY), "a")
    if isinstance(streamed, Shard):
        from dynadp.data.node_rows import StreamedShard

        streamed = StreamedShard.of(
            data.schema, source(tmp_path / "a.parquet", memory=LEAST_MEMORY)
        )
    held = data.schema.shard(table)
    made, loss, z = Resolution.of(300, held.dimension), Logistic(1.0), np.ones((1, held.dimension))
    sums = [
        integer_rows_of([s], made, loss, class_weights=WEIGHTS).gradient(z)
        for s in (held, streamed)
    ]
    np.testing.assert_array_equal(*sums)
    problems = [
        local_problem([s], loss, SquaredL2(), 1.0, 0.1, class_weights=WEIGHTS)
        for s in (held, streamed)
    ]
    F = z[None]
    Z = [problem.margins(F) for problem in problems]
    for made_of in (
        lambda p, m: p.data_gradient(F)[1],
        lambda p, m: p.local_value(F),
        lambda p, m: p.hessians(F, m),
        lambda p, m: p.hessian_diagonals(F, m),
        lambda p, m: p.hessians(F, m, majorant=True),
    ):
        one, other = (made_of(p, m) for p, m in zip(problems, Z, strict=True))
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert (
        problems[0].roundings.sums
        > local_problem([held], loss, SquaredL2(), 1.0, 0.1).roundings.sums
    )


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_derivatives_of_a_weighed_objective(rows, storage):
    X, y = rows
    shard = Shard.of(csr_array(X) if storage == "csr" else X, y)
    problem = local_problem(
        [shard], Logistic(1.0), SquaredL2(), 2.0, 0.1, storage=storage, class_weights=WEIGHTS
    )
    f, d = np.random.default_rng(2).normal(size=(2, 1, 1, 4))
    h = 1e-6
    ahead, behind = (problem.local_value(f + s * h * d) for s in (1, -1))
    slope = (problem.local_gradient(f) * d).sum()
    assert (ahead - behind)[0, 0] / (2 * h) == pytest.approx(slope, rel=1e-6)
    H = problem.hessians(f, problem.margins(f))[0, 0]
    change = problem.local_gradient(f + h * d) - problem.local_gradient(f - h * d)
    np.testing.assert_allclose(H @ d[0, 0], change[0, 0] / (2 * h), rtol=1e-5)
    np.testing.assert_allclose(np.diag(H), problem.hessian_diagonals(f, problem.margins(f))[0])
    line = problem.along(f, d, problem.margins(f), problem.margins(d), np.zeros((1, 1)), 0 * f)
    assert line(np.zeros((1, 1)))[0, 0] == pytest.approx(slope, rel=1e-9)


def test_a_network_finds_the_optimum_of_pooled_weighed_rows(rows):
    X, y = rows
    names = np.arange(60) % 3
    shards = [Shard.of(X[names == p], y[names == p], name=n) for p, n in enumerate(NODES)]
    made = Plan.of(C=1.0, rho=1e-2, class_weights=(1.0, 4.0), rounds=2000)
    run = simulate(shards, RING, made, acceleration=Acceleration(gap=1e-10))
    # sum over 20 rows a node of C/20 w L + rho ||f||^2/2, over three nodes
    sk = LogisticRegression(
        C=1 / (20 * 3e-2),
        class_weight={-1: 0.25, 1: 1.0},
        fit_intercept=False,
        tol=1e-12,
        max_iter=10_000,
    ).fit(X, y)
    np.testing.assert_allclose(run.mean[0], sk.coef_[0], rtol=1e-3, atol=1e-3)
    even = simulate(
        shards, RING, replace(made, settings=replace(made.settings, class_weights=(1, 1)))
    )
    assert np.abs(even.mean[0] - sk.coef_[0]).max() > 0.1


# --------------------------------------------------------------------------------------------------
# plans and runs


def test_weights_are_divided_by_the_larger():
    assert check_class_weights((2.0, 8.0)) == (0.25, 1.0)
    assert Settings(class_weights=(2.0, 8.0)).class_weights == (0.25, 1.0)
    assert Settings().row_weight == 1.0
    assert Settings(class_weights=(0.1, 1), positives=0.1).row_weight == pytest.approx(0.19)


@pytest.mark.parametrize("given", [(0.0, 1.0), (1.0,), (1.0, np.inf), (-1.0, 1.0), (np.nan, 1.0)])
def test_weights_that_are_none_are_refused(given):
    with pytest.raises(DeclarationError, match="two finite numbers above 0"):
        check_class_weights(given)


def test_what_users_give():
    label = ("no", "yes")
    assert class_weights_of(None, label, None) == (1.0, 1.0)
    assert class_weights_of("balanced", label, 0.2) == pytest.approx((0.25, 1.0))
    assert class_weights_of("balanced", label, 0.8) == pytest.approx((1.0, 0.25))
    assert class_weights_of({"yes": 4, "no": 1}, label, None) == (0.25, 1.0)
    for wrong, words in (
        ("balanced", "counting them would be a release"),
        ({"yes": 1}, "a number for each of the label values"),
        ("heavy", "a number for each of the label values"),
    ):
        with pytest.raises(DeclarationError, match=words):
            class_weights_of(wrong, label, None)
    with pytest.raises(DeclarationError, match="it is for two"):
        class_weights_of("balanced", ("a", "b", "c"), 0.2)
    with pytest.raises(DeclarationError, match="declared share"):
        Settings(positives=1.5)


@pytest.mark.parametrize("mechanism", ["sum", Sealed(honest=2), "primal"], ids=str)
def test_plans_know_that_the_signal_is_smaller(mechanism):
    how = {"epsilon": 1.0, "delta": DELTA, "mechanism": mechanism}
    even = plan([2000] * 3, RING, 20, **how)
    made = plan([2000] * 3, RING, 20, class_weights=WEIGHTS, positives=0.2, **how)
    assert made.alphas == pytest.approx(even.alphas, rel=1e-9)  # sensitivity stays
    assert made.total.epsilon == pytest.approx(even.total.epsilon)
    if made.steps:
        assert made.steps.pull / made.rounds > even.steps.pull / even.rounds
        assert any("weigh 0.25" in reason for reason in made.reasons)
    assert made.to_json()["class_weights"] == [0.25, 1.0]
    assert "class_weights" not in even.to_json()


@pytest.mark.parametrize("mechanism", [Sum(), Sealed(honest=2), "primal"], ids=str)
def test_nodes_apart_weigh_as_one_process_does(mechanism, tmp_path):
    data = census(450, seed=3, nodes=3, test_rows=0)
    tables = data.tables(NODES)
    given = {"epsilon": 20.0, "delta": DELTA, "mechanism": mechanism}
    given |= {"class_weight": {"high": 3.0, "low": 1.0}, "draws": SeededEntropy(2)}
    trained = train(data.schema, tables, RING, **given)
    assert trained.plan.settings.class_weights == pytest.approx((1 / 3, 1))
    network = MemoryNetwork(data.schema, trained.plan, tables, tmp_path, SeededEntropy(2))
    found = network.finish()["a"].vector
    network.close()
    np.testing.assert_allclose(found, trained.run.models(trained.plan.output)[0, 0], atol=1e-6)
    more = train(data.schema, tables, RING, **given | {"class_weight": None})
    plain, weighed = (t.model().predict(tables["a"]) == "high" for t in (more, trained))
    assert weighed.mean() > plain.mean()
