"""Algorithm "sum": one common point, weights of unequal nodes, every path to it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dynadp.consensus.progress import RoundLine
from dynadp.consensus.sums import Steps, WeighedSum
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.data.loading import load_shard
from dynadp.data.shard import Shard
from dynadp.data.survey import feature_sums
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import BatchedDraws, SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sums import MomentNoise, Sum, packed, unpacked
from dynadp.planning.planner import plan
from dynadp.planning.plans import Consortium, Plan
from dynadp.planning.sums import SumConstants, gaussian_mu, signal, weigh_nodes
from dynadp.privacy.accountant import by_node
from dynadp.runs.training import train
from support.memory import SMALL, Network, Setting, assert_same_messages, memory, small_tables

EPSILON, DELTA = 2.0, 1e-5
SUMS = [Sum(), Sum(second_moment=True)]


@pytest.fixture(scope="module")
def data():
    return census(2000, seed=3, nodes=5, test_rows=1000)


@pytest.fixture(scope="module")
def ring():
    return Topology.family("ring", 5)


def trained(data, ring, **more):
    given = {"epsilon": EPSILON, "delta": DELTA, "mechanism": "sum", "draws": SeededEntropy(1)}
    return train(data.schema, data.tables(ring.nodes), ring, **{**given, **more})


# --------------------------------------------------------------------------------------------------
# the algorithm


def test_with_little_noise_the_point_follows_the_gradients_of_all_rows(data, ring):
    """Against plain NumPy on pooled rows, with mu so large that noise does not show."""
    shards = [load_shard(data.schema, rows, p) for p, rows in data.tables(ring.nodes).items()]
    made = Plan.of(mechanism=Sum(), schedule=19.0, rounds=6, pull=0.05, momentum=0.5)
    run = simulate(shards, ring, made, draws=SeededEntropy(0))
    rows = np.vstack([np.asarray(s.signed.todense()) for s in shards])
    z, v, points = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), []
    for _ in range(6):
        slope = -1 / (1 + np.exp(rows @ z))
        v = 0.5 * v - 0.5 * (rows.T @ slope) / len(rows) / 0.05
        z = z + v
        points.append(z)
    np.testing.assert_allclose(run.V[0, 0], z, atol=0.02)
    np.testing.assert_allclose(run.tail[3, 0], np.mean(points[3:], axis=0), atol=0.02)
    assert np.abs(z).max() > 1


def test_with_a_second_moment_steps_know_the_shape_of_the_rows(data, ring):
    shards = [load_shard(data.schema, rows, p) for p, rows in data.tables(ring.nodes).items()]
    made = Plan.of(
        mechanism=Sum(second_moment=True), schedule=19.0, rounds=4, pull=0.01, curvature=0.2
    )
    run = simulate(shards, ring, made, draws=SeededEntropy(0))
    rows = np.vstack([np.asarray(s.signed.todense()) for s in shards])
    n, d = rows.shape
    inverse = np.linalg.inv(0.2 * rows.T @ rows / n + 0.01 * np.eye(d))
    z = np.zeros(d)
    for _ in range(3):
        z = z + inverse @ (rows.T @ (1 / (1 + np.exp(rows @ z)))) / n
    np.testing.assert_allclose(run.V[0, 0], z, atol=0.05)
    assert [isinstance(noise, MomentNoise) for noise in run.noises] == [True, False, False, False]
    widths = [event.dimension for event in run.events() if event.node == ring.nodes[0]]
    assert widths == [d * (d + 1) // 2, d, d, d]


def test_packed_matrices_come_back():
    A = np.random.default_rng(0).normal(size=(3, 2, 5, 5))
    A = A + A.swapaxes(-1, -2)
    np.testing.assert_array_equal(unpacked(packed(A), 5), A)
    assert packed(A).shape == (3, 2, 15)


@pytest.mark.parametrize("mechanism", SUMS, ids=str)
def test_replicas_are_the_runs_one_by_one(data, ring, mechanism):
    shards = [load_shard(data.schema, rows, p) for p, rows in data.tables(ring.nodes).items()]
    made = Plan.of(mechanism=mechanism, schedule=0.5, rounds=3)
    draws = SeededEntropy(5)
    both = simulate(shards, ring, made, replicas=2, draws=draws)
    one = simulate(shards, ring, made, draws=draws)
    np.testing.assert_allclose(both.V[:, :1], one.V, rtol=1e-9, atol=1e-6)
    assert np.abs(both.V[:, 1] - both.V[:, 0]).max() > 1e-3
    batched = simulate(shards, ring, made, replicas=40, draws=BatchedDraws(5))
    assert np.unique(batched.V[0, :, 0]).size == 40


def test_nothing_is_drawn_twice_without_a_seed(data, ring):
    made = [trained(data, ring, draws=SystemEntropy()) for _ in range(2)]
    assert np.abs(made[0].run.V - made[1].run.V).max() > 1e-3
    assert made[0].total.protected


def test_a_start_is_one_public_point(data, ring):
    start = np.full(data.schema.dimension, 0.5)
    shards = [load_shard(data.schema, rows, p) for p, rows in data.tables(ring.nodes).items()]
    made = Plan.of(mechanism=Sum(), schedule=19.0, rounds=1, pull=1e3)
    run = simulate(shards, ring, made, start=start, draws=SeededEntropy(0))
    np.testing.assert_allclose(run.V[2, 0], start, atol=0.01)
    with pytest.raises(DeclarationError, match="begins at one point"):
        simulate(shards, ring, made, start=np.arange(5.0)[:, None, None] + start)


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_storages_sum_alike_to_the_last_bit(data, ring, storage):
    """Sums of whole numbers do not depend on the order in which they are added."""
    shards = [load_shard(data.schema, rows, p) for p, rows in data.tables(ring.nodes).items()]
    made = Plan.of(mechanism=Sum(second_moment=True), schedule=0.5, rounds=2)
    runs = [
        simulate(shards, ring, made, draws=SeededEntropy(5), storage=s) for s in (storage, "auto")
    ]
    np.testing.assert_array_equal(runs[0].V, runs[1].V)


# --------------------------------------------------------------------------------------------------
# unequal nodes


def test_a_node_of_few_rows_sends_nothing():
    assert weigh_nodes([1000, 500, 1000, 20], [0.2] * 4) == (1.0, 0.5, 1.0, 0.0)
    assert weigh_nodes([1000] * 4, [0.2] * 4) == (1.0,) * 4
    assert weigh_nodes([7], [0.2]) == (1.0,)
    # a small node with a large budget is worth its noise
    assert weigh_nodes([1000, 1000, 100], [0.1, 0.1, 0.5])[2] > 0


def test_no_other_weights_have_a_larger_signal():
    """But for what silent nodes would add: less than half a percent."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        B, mu = np.rint(rng.pareto(0.7, 6) * 50 + 5), rng.uniform(0.05, 0.3, 6)
        chosen = signal(B, mu, np.array(weigh_nodes(B, mu)))
        assert chosen > 0.995 * np.sqrt(np.sum((B * mu) ** 2))
        others = [signal(B, mu, weights) for weights in rng.uniform(0, 1, (200, 6))]
        assert max(others) <= chosen / 0.995


def test_where_nodes_weigh_the_same_nobody_is_left_out():
    assert weigh_nodes([100, 300, 2], [0.2] * 3, "equal") == (1.34, 134 / 300, 67.0)


def test_a_silent_node_is_told_before_and_spends_nothing(ring):
    counts = [2000, 2000, 2000, 2000, 10]
    made = plan(counts, ring, 20, epsilon=1.0, delta=DELTA, mechanism="sum")
    assert made.senders == (0, 1, 2, 3)
    assert any("'4' sends nothing and spends nothing" in reason for reason in made.reasons)
    assert {event.node for event in made.events} == set("0123")
    assert made.table()[4].max() == 0
    assert made.centrings[4] == 0
    assert made.rows == 8000


def unequal_setting(**more):
    topology = Topology.family("path", 4).named(["a", "tiny", "c", "d"])
    tables = small_tables(topology.nodes, rows=200)
    tables["tiny"] = {name: cells[:3] for name, cells in tables["tiny"].items()}
    return Setting.planned(topology, SMALL, tables, mechanism="sum", **more)


@pytest.mark.parametrize("centring", [True, False])
def test_a_silent_node_hands_letters_on_and_takes_the_model_home(centring):
    """It stands between a and the others, so that nothing would arrive without it."""
    setting = unequal_setting(centring=centring)
    assert setting.senders == ["a", "c", "d"]
    with memory() as folder, Network(setting, folder) as network:
        outcomes = network.finish()
        models, messages, done = setting.undisturbed
        assert_same_messages(network, messages)
        assert {p for p, _ in messages} == {"a", "c", "d"}
        for outcome in outcomes.values():
            np.testing.assert_array_equal(outcome.vector, models["a"])
            assert outcome.schema == done.schema
        assert network.nodes["tiny"].spends() == {}
    assert set(by_node(done.events, DELTA)) == {"a", "c", "d"}


def test_a_tiny_node_does_not_ruin_the_model(data, ring):
    """Where every node weighs the same in ADMM, one of ten rows does."""
    tables = data.tables(ring.nodes)
    first, last = ring.nodes[0], ring.nodes[-1]
    moved = {
        name: np.concatenate([tables[first][name], cells[10:]])
        for name, cells in tables[last].items()
    }
    tables = {**tables, first: moved, last: {n: c[:10] for n, c in tables[last].items()}}
    errors = []
    for rows in (data.tables(ring.nodes), tables):
        found = []
        for seed in range(6):
            done = train(
                data.schema,
                rows,
                ring,
                epsilon=8.0,
                delta=DELTA,
                mechanism="sum",
                draws=SeededEntropy(seed),
            )
            test = load_shard(done.schema, data.test)
            found.append(np.mean(test.signed @ done.run.tail[0, 0] <= 0))
        errors.append(np.median(found))
    assert errors[1] < errors[0] + 0.02


def test_weighed_sums():
    V = np.arange(12.0).reshape(3, 2, 2)
    np.testing.assert_array_equal(WeighedSum([1.0, 0.0, 2.0])(1, V), V[0] + 2 * V[2])


# --------------------------------------------------------------------------------------------------
# plans


def test_the_rule_of_the_planner(ring):
    counts = [400] * 5
    made = plan(counts, ring, 30, epsilon=EPSILON, delta=DELTA, mechanism="sum")
    N = 2000 * gaussian_mu(EPSILON, DELTA) / np.sqrt(5)
    rules = SumConstants()
    assert rules.moment_from > N
    assert made.steps.pull == pytest.approx(rules.pull * rules.rounds / N, rel=1e-9)
    assert made.rounds == rules.rounds
    assert 0.998 * EPSILON <= made.total.epsilon <= EPSILON
    centring = made.protection.centring[0] ** 2
    assert centring / made.mus[0] ** 2 == pytest.approx(rules.centring)
    many = plan([40_000] * 5, ring, 30, epsilon=EPSILON, delta=DELTA, mechanism="sum")
    assert many.mechanism.second_moment
    assert many.rounds == rules.moment_rounds + 1
    assert many.total.epsilon <= EPSILON
    assert plan([400] * 5, ring, 30, epsilon=2.0, delta=DELTA, algorithm="sum").algorithm == "sum"


@pytest.mark.parametrize(
    ("rows", "d", "epsilon", "delta"),
    [
        (10**7, 3000, 1.0, 1e-9),
        (10**9, 5, 8.0, 1e-6),
        (10**6, 400, 20.0, 1e-12),
        (1, 5, 1e-6, 1e-9),
    ],
)
def test_no_plan_costs_more_than_asked_however_coarse_its_noise_is(ring, rows, d, epsilon, delta):
    """Very many rows leave few steps for noise, whose distance to a normal one is charged."""
    made = plan([rows] * 5, ring, d, epsilon=epsilon, delta=delta, mechanism="sum")
    assert made.total.epsilon <= epsilon
    assert made.total.epsilon > 0.9 * epsilon


def test_budgets_differ_from_node_to_node(ring):
    totals = dict(zip(ring.nodes, [0.5, 1.0, 1.0, 2.0, 4.0], strict=True))
    made = plan([3000] * 5, ring, 30, epsilon=totals, delta=DELTA, mechanism="sum")
    for node, total in by_node(made.events, DELTA).items():
        assert 0.997 * totals[node] <= total.epsilon <= totals[node]


def test_an_unbound_plan_finds_weights_and_pull(ring):
    made = Plan.of(mechanism=Sum(), schedule=0.1, rounds=20)
    assert made.steps == Steps()
    bound = made.on(Consortium(ring, (500, 500, 500, 500, 5), 10))
    assert bound.steps.node_weights == (1.0, 1.0, 1.0, 1.0, 0.0)
    N = 2000 * 0.1 * np.sqrt(20) / 2
    assert bound.steps.pull == pytest.approx(0.7 * 20 / N)
    with pytest.raises(DeclarationError, match="nodes in another order"):
        bound.on(Consortium(Topology.family("ring", 4), (5,) * 4, 10))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mechanism": Primal(), "schedule": 1.0, "pull": 0.1}, "steps are for algorithm 'sum'"),
        ({"mechanism": Sum(), "schedule": 1.0, "momentum": 1.0}, "expected a number in"),
        ({"mechanism": Sum(), "schedule": 1.0, "pull": 0.0}, "pull"),
        ({"mechanism": Sum(), "schedule": 1.0, "node_weights": (0.0, 0.0)}, "one above"),
        ({"mechanism": Sum(second_moment=True), "schedule": 1.0, "rounds": 1}, "one more than"),
    ],
)
def test_plans_that_cannot_be(given, words):
    with pytest.raises(DeclarationError, match=words):
        Plan.of(**given)


def test_a_mechanism_of_the_other_algorithm_is_refused(ring):
    with pytest.raises(DeclarationError, match="mechanism 'dual' is for algorithm 'admm'"):
        plan([9] * 5, ring, 3, epsilon=1.0, delta=DELTA, mechanism="dual", algorithm="sum")
    with pytest.raises(DeclarationError, match="expected 'admm' or 'sum'"):
        plan([9] * 5, ring, 3, epsilon=1.0, delta=DELTA, algorithm="sgd")


# --------------------------------------------------------------------------------------------------
# centring, and Gaussian noise of primal perturbation


def test_gaussian_centring_is_on_the_grid_and_near(data, ring):
    done = trained(data, ring, epsilon=50.0)
    sums = [feature_sums(data.schema, rows) for rows in data.tables(ring.nodes).values()]
    true = sum(s.total for s in sums) / sum(s.rows for s in sums)
    np.testing.assert_allclose(done.centring.centre, true, atol=0.05)
    assert {event.kind for event in done.events} == {"gaussian"}
    assert {event.round for event in done.events} == set(range(done.plan.rounds + 1))


def test_primal_perturbation_with_gaussian_noise(data, ring):
    done = trained(data, ring, mechanism=Primal(noise="gaussian"))
    assert done.plan.algorithm == "admm"
    assert 0.998 * EPSILON <= done.total.epsilon <= EPSILON
    assert {event.kind for event in done.events} == {"gaussian"}
    test = load_shard(done.schema, data.test)
    assert np.mean(test.signed @ done.run.models()[0, 0] <= 0) < 0.3
    usual = trained(data, ring, mechanism="primal").plan
    # in many dimensions both laws are about as wide at one total
    near, far = (p.release_plan.noises[0] for p in (done.plan, usual))
    d = data.schema.dimension
    assert near.parameter * near.step == pytest.approx(np.sqrt(d + 1) / far.outer, rel=0.1)


def test_gaussian_nodes_apart_do_nearly_what_they_do_together():
    """Solvers differ by what gamma allows, which a fine grid shows."""
    topology = Topology.family("ring", 4)
    mechanism = Primal(noise="gaussian")
    tables = small_tables(topology.nodes)
    setting = Setting.planned(topology, SMALL, tables, mechanism=mechanism)
    with memory() as folder, Network(setting, folder) as network:
        outcomes = network.finish()
    models = setting.undisturbed[0]
    for p, outcome in outcomes.items():
        np.testing.assert_allclose(outcome.vector, models[p], rtol=1e-5)


def test_a_recorded_plan_is_the_plan(ring):
    made = plan([3000] * 4 + [5], ring, 30, epsilon=1.0, delta=DELTA, mechanism="sum")
    written = made.to_json()
    assert (written["algorithm"], written["noise"], written["exchange"]) == (
        "sum",
        "gaussian",
        "open",
    )
    assert written["alpha"] is None
    assert written["mu"] == made.alpha
    assert written["steps"]["node_weights"] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert replace(made, reasons=()).total == made.total


@pytest.mark.parametrize("second_moment", [False, True])
def test_steps_are_compared_with_those_of_noise_alone(second_moment):
    """Rows of zeros have no gradient: every step is noise, and as long as the lines say."""
    alone = Topology.family("ring", 2)
    empty = [Shard(np.zeros((300, 5)), np.ones(300)) for _ in range(2)]
    mechanism = Sum(second_moment=second_moment)
    planned = plan(
        [300, 300], alone, 5, epsilon=1.0, delta=1e-5, mechanism=mechanism, centring=False
    )
    seen = []
    simulate(empty, alone, planned, draws=SeededEntropy(3), replicas=400, on_round=seen.append)
    moved = [entry for entry in seen if entry.noise is not None]
    assert len(moved) == planned.rounds - second_moment
    assert len(seen) == planned.rounds
    if second_moment:  # each replica has a noisy moment of its own; that of the first is taken
        moved = [replace(entry, change=entry.change[:, :1]) for entry in moved]
        squares = np.mean([entry.change[0, 0] ** 2 / entry.noise**2 for entry in moved])
        assert 0.6 < squares < 1.6
        return
    for entry in moved:
        assert np.mean(entry.change[0] ** 2) == pytest.approx(entry.noise**2, rel=0.12)
    points = np.array([entry.points[0, 0] for entry in moved])
    for made, entry in enumerate(moved, 1):
        recent = points[made // 2 : made].mean(axis=0)
        assert entry.apart[0] == pytest.approx(np.linalg.norm(points[made - 1] - recent), abs=1e-9)
    line = moved[-1].lines(["a", "b"], [0.1, 0.1], "gaussian")[0]
    assert (line.apart, line.noise) == (moved[-1].apart[0], moved[-1].noise)
    assert RoundLine.from_json(line.to_json()) == line
    before = {k: v for k, v in line.to_json().items() if k not in ("apart", "noise")}
    assert RoundLine.from_json(before).noise is None  # files of earlier versions
