"""Standard errors from public noise: exact where rounds are linear, and right on rows (maths.md
19).
"""

import numpy as np
import pytest

import dynadp.consensus.spread as spread
from dynadp import Topology, census, plan, simulate
from dynadp.consensus import (
    BOUND,
    FIRST_ORDER,
    RoundSpread,
    Steps,
    SumPath,
    SumRounds,
    admm,
    admm_spread,
    momentum_gains,
    shares_of,
    sum_spread,
)
from dynadp.consensus.message_spread import _variances
from dynadp.data import Numeric, Schema, Target
from dynadp.data.datasets.base import Dataset
from dynadp.mechanisms import BatchedDraws, Primal, Sealed, Sum, packed
from dynadp.planning import spread_of
from dynadp.problem import Logistic


def slopes(run, width, *, at=1e-4):
    """What one unit of each number moves the result of a linear function by."""
    base = run(np.zeros(width))
    return np.array([(run(at * unit) - base) / at for unit in np.eye(width)])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_with_momentum_are_followed_exactly(momentum):
    q, T, curvature = 0.3, 9, 0.4
    means = np.array([0.0] * 4 + [0.2] * 5)

    def model(noise):
        z = v = mean = 0.0
        for t in range(T):
            v = momentum * v - (1 - momentum) * (curvature * z - 1.0 + noise[t]) / q
            z += v
            mean += means[t] * z
        return mean

    gains = momentum_gains(np.array([curvature]), means, momentum, q)[:, 0]
    np.testing.assert_allclose(gains, -slopes(model, T), rtol=1e-6)


def test_no_curvature_is_the_worst_there_is_up_to_six_pulls():
    means = np.array([0.0] * 10 + [0.1] * 10)
    squares = (momentum_gains(np.linspace(0, 6, 601), means, 0.5, 1.0) ** 2).sum(axis=0)
    assert squares.argmax() == 0
    assert (momentum_gains(np.array([7.0]), means, 0.5, 1.0) ** 2).sum() > squares[0]


def moment_run(rng, d=4, T=6):
    """A path with a second moment on rows whose curvature is c A, as :func:`sum_spread` takes it
    to be where rounds do not begin at 0; and the model as a function of all noise.
    """
    steps, n = Steps(pull=0.02, curvature=0.07, node_weights=(1.0,)), 1000.0
    root = rng.normal(size=(d, d))
    A, start, g = root @ root.T / d, rng.normal(size=d), rng.normal(size=d) * 0.03
    mu = np.full((1, 1, T + 1), 0.5)
    mu[..., 0] = 0.03
    noises = Sum(second_moment=True).plan(_public(n, d), mu)

    def rounds_of(noise):
        rounds = SumRounds(None, noises, steps, start[None], n, 1)
        rounds.release()
        gradients, moment = noise[: T * d].reshape(T, d), noise[T * d :]
        rounds.receive((packed(A) * n + moment)[None])
        for t in range(T):
            rounds.release()
            z = rounds.state.z[0]
            rounds.receive(((steps.curvature * A @ z - g) * n + gradients[t])[None])
        return rounds

    return steps, rounds_of, T * d, T * d + d * (d + 1) // 2


def _public(n, d):
    from dynadp.mechanisms import PublicNumbers

    one = np.ones(1)
    return PublicNumbers(one * n, one, d, one, 1.0, one, one[:, None], Logistic())


def test_steps_with_a_second_moment_are_followed_to_first_order(monkeypatch):
    monkeypatch.setattr(spread, "_share_of_guess", lambda *given: 1.0)  # as it is here; see below
    steps, rounds_of, gradients, width = moment_run(np.random.default_rng(0))
    rounds = rounds_of(np.zeros(width))
    found = sum_spread(rounds.path, steps, Logistic())
    # steps of 2^-24 are in the way of small changes, noise is thousands of times as large
    moved = slopes(lambda noise: rounds_of(noise).mean()[0, 0], width, at=0.5)
    d = moved.shape[1]
    variances = np.full(width, rounds.path.noise[0] ** 2)
    variances[gradients:] = (rounds.path.moment_noise * 1000.0) ** 2 / 2
    variances[gradients : gradients + d] *= 2  # the diagonal comes first
    expected = np.sqrt((moved**2 * variances[:, None]).sum(axis=0))
    assert found.basis == FIRST_ORDER
    np.testing.assert_allclose(found.deviations, expected, rtol=0.01)
    without = np.sqrt((moved[:gradients] ** 2 * variances[:gradients, None]).sum(axis=0))
    assert (expected > 1.05 * without).any()  # the moment's own noise counts


def test_a_share_of_the_guessed_curvature_is_found_from_steps():
    """It is rarely above the true one. Noise that a step has in common with its own gradient would
    make it larger.
    """
    rng, d, T, s, q = np.random.default_rng(2), 12, 13, 0.01, 0.02
    root = rng.normal(size=(d, d)) / np.sqrt(d)
    guess = root @ root.T
    B = np.linalg.inv(guess + q * np.eye(d))
    found, naive = [], []
    for _ in range(200):
        z, v, G = np.zeros(d), [], []
        for _ in range(T):
            G.append(0.4 * guess @ z - 0.1 * root[0] + s * rng.normal(size=d))
            v.append(-B @ G[-1])
            z = z + v[-1]
        given = np.array(G), np.array(v), guess
        found.append(spread._share_of_guess(*given, np.trace(B), np.full(T, s)))
        naive.append(spread._share_of_guess(*given, 0.0, np.full(T, s)))
    assert np.mean(np.array(found) > 0.4) < 0.05
    assert np.mean(np.array(naive) > 0.4) > 0.5


@pytest.mark.parametrize("private_iterate", [False, True])
@pytest.mark.parametrize("output", ["network", "tail", "last", "neighbours"])
def test_admm_is_followed_exactly(output, private_iterate):
    rng = np.random.default_rng(1)
    topology, T, eta, rho = Topology.family("star", 5), 7, 0.8, 0.3
    P, N = len(topology), topology.degrees
    h, phi = rng.uniform(0, 1, P), rng.uniform(0, 0.2, P)
    D = h + rho + 2 * eta * N + phi
    means = shares_of(output, T, topology, 1)
    assert np.isclose(means.sum(), 1.0)

    def model(noise):
        inside, outside = noise.reshape(2, T, P, 1, 1)
        column, penalty = (lambda v: v[:, None, None]), np.array([eta])
        zero = np.zeros((P, 1, 1))
        state, out = admm.begin(zero, zero, N), 0.0
        for n in range(T):
            g = (2 * eta * state.W - 2 * state.lam + 0.5 - inside[n]) / column(D)
            V = g + outside[n]
            heard = (topology.adjacency @ V[:, 0])[:, None]
            pull = 2 * g - V if private_iterate else None
            state = admm.receive(state, V, heard, N, penalty, pull=pull)
            out += float(means[n] @ V[:, 0, 0])
        return out

    rounds = [RoundSpread(rng.uniform(0, 1, P), rng.uniform(0, 1, P), phi) for _ in range(T)]
    scale = np.array([[r.inside for r in rounds], [r.outside for r in rounds]]).ravel()
    expected = float(np.sum((slopes(model, 2 * T * P) * scale) ** 2))
    given = means, topology.adjacency, N, eta
    found = _variances(rounds, *given, (h + rho)[None], private_iterate)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    whole = admm_spread(
        rounds, means, topology, eta, rho, h * 0, 3, private_iterate=private_iterate
    )
    flat = _variances(rounds, *given, np.full((1, P), rho), private_iterate)[0]
    np.testing.assert_allclose(whole.deviations, np.full(3, np.sqrt(flat)))


def replicas(data, mechanism, epsilon, copies=150):
    """Models of many runs on the same rows, and the standard errors of some of them."""
    schema, ring = data.schema, Topology.family("ring", int(data.node.max()) + 1)
    centre = np.asarray(schema.only_features().rows(data.train).mean(axis=0)).ravel()
    schema = schema.model_copy(update={"centre": tuple(centre.tolist())})
    shards = [schema.shard(table, node) for node, table in data.tables(ring.nodes).items()]
    counts = [shard.rows for shard in shards]
    given = {"mechanism": mechanism, "classes": schema.classes}
    chosen = plan(counts, ring, schema.dimension, epsilon=epsilon, delta=1e-5, **given)
    run = simulate(shards, ring, chosen, replicas=copies, draws=BatchedDraws(0))
    models = run.models("network")[0]
    if run.path is None:
        return models, np.array([spread_of(chosen).deviations]), spread_of(chosen).basis
    made = [
        sum_spread(run.path, chosen.steps, chosen.settings.loss, k) for k in range(0, copies, 10)
    ]
    return models, np.array([one.deviations for one in made]), made[0].basis


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "basis"),
    [
        (Sum(second_moment=False), 1.0, BOUND),
        (Sum(second_moment=True), 4.0, FIRST_ORDER),
        (Sealed(second_moment=True, honest=3), 2.0, FIRST_ORDER),
        pytest.param("primal", 1.0, BOUND, marks=pytest.mark.slow),
        pytest.param("dual", 1.0, BOUND, marks=pytest.mark.slow),
        pytest.param(Primal(noise="gaussian"), 1.0, BOUND, marks=pytest.mark.slow),
        pytest.param(Sum(second_moment=True), 1.0, FIRST_ORDER, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_intervals_cover_what_noise_does(mechanism, epsilon, basis):
    """Of 150 models on the same rows, at least 90 in 100 lie in each coefficient's 95% interval,
    and standard errors are not far above the models' spread.
    """
    models, errors, found = replicas(census(6_000, nodes=5, seed=1), mechanism, epsilon)
    assert found == basis
    se, middle = errors.mean(axis=0), models.mean(axis=0)
    covered = (np.abs(models - middle) < 1.96 * se).mean(axis=0)
    assert covered.min() > 0.88, covered.min()
    assert covered.mean() > 0.945
    ratio = se / models.std(axis=0, ddof=1)
    assert 0.9 < np.median(ratio) < 1.7
    assert ratio.min() > 0.75


@pytest.mark.parametrize("high", [8.0, 24.0])
def test_intervals_of_a_number_cover_what_noise_does(high):
    """Also where residuals are mostly clipped, so that rows curve less than steps take them to."""
    rng, names = np.random.default_rng(3), "abcd"
    X = rng.uniform(-1, 1, (20_000, 4))
    table = dict(zip(names, X.T, strict=True))
    table["y"] = X @ [2.0, -2.0, 1.0, 0.0] + rng.logistic(size=20_000)
    columns = [Numeric(name=name, low=-1, high=1) for name in names]
    schema = Schema(columns=columns, label=Target(name="y", low=-8, high=high), norm=2.2)
    data = Dataset("numbers", schema, table, table, np.arange(20_000) % 5)
    models, errors, found = replicas(data, Sum(second_moment=True), 1.0)
    assert found == FIRST_ORDER
    covered = (np.abs(models - models.mean(axis=0)) < 1.96 * errors.mean(axis=0)).mean(axis=0)
    ratio = errors.mean(axis=0) / models.std(axis=0, ddof=1)
    assert covered.min() > 0.91
    assert ratio.max() < 2.2


def test_noise_shared_or_weighed_is_added_up_as_it_is_sent():
    """The deviation of a sum of letters, against the law of the noises."""
    counts, ring = [3_000, 500, 2_000], Topology.family("ring", 3)
    for mechanism in (Sum(False), Sealed(False, honest=2)):
        chosen = plan(counts, ring, 8, epsilon=1.0, delta=1e-5, mechanism=mechanism)
        noises = chosen.release_plan.noises
        rounds = SumRounds(None, noises, chosen.steps, np.zeros((1, 8)), chosen.rows, 1)
        rounds.release()
        rounds.receive(np.zeros((1, 8)))
        own = (noises[0].parameter * noises[0].step)[:, 0]
        w = np.ones(3) if chosen.sealing else np.array(chosen.steps.node_weights)
        assert rounds.path.noise[0] == pytest.approx(np.sqrt(np.sum((w * own) ** 2)))
        rounds.members = [0, 2]
        rounds.release()
        rounds.receive(np.zeros((1, 8)))
        assert rounds.path.noise[1] == pytest.approx(np.sqrt(np.sum((w * own)[[0, 2]] ** 2)))


def test_a_longer_path_without_averaged_rounds_has_no_spread():
    chosen = plan([3_000] * 3, Topology.family("ring", 3), 8, epsilon=1.0, delta=1e-5)
    path = SumPath(np.zeros((1, 8)), [np.ones((1, 8))], [9_000.0], [False], [1.0])
    assert spread_of(chosen, path) is None
    assert spread_of(chosen) is None


def test_a_mechanism_that_does_not_say_how_far_its_noise_spreads(monkeypatch):
    ring = Topology.family("ring", 3)
    chosen = plan([3_000] * 3, ring, 8, epsilon=1.0, delta=1e-5, mechanism="primal")
    assert spread_of(chosen) is not None
    monkeypatch.setattr("dynadp.mechanisms.primal.PrimalNoise.spread", lambda noise, public: None)
    assert spread_of(chosen) is None
