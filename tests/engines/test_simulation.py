import dataclasses
import itertools

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus.acceleration import Acceleration, Accelerator
from dynadp.consensus.residuals import certify
from dynadp.consensus.topology import FAMILIES, Topology
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.synthetic import census
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import DataError, DeclarationError, LossError, NotCertified
from dynadp.planning.parts import default_eta
from dynadp.problem.losses import HuberHinge, Logistic, SmoothedHinge
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2
from support import flat_simulate
from support.reference import centralised_optimum

LOSSES = [Logistic(), Logistic(margin=3.0), HuberHinge(), SmoothedHinge()]
REGULARIZERS = [SquaredL2(), SmoothElasticNet()]
RHO = 1e-2


def unequal_shards(nodes):
    """Nodes unlike each other, node p with about p times as many rows as the first."""
    data = census(100 * nodes, seed=2, nodes=nodes, heterogeneity=0.7)
    return data.shards(partition(100 * nodes, nodes, "sized", sizes=np.arange(1, nodes + 1)))


def farthest(run, optimum):
    return np.linalg.norm(run.V[:, 0] - optimum, axis=1).max() / np.linalg.norm(optimum)


def pairwise_cases():
    """Every pair of levels of (loss, regulariser, topology, storage, nodes) at least once,
    greedily.
    """
    factors = [range(4), range(2), sorted(FAMILIES), ["dense", "csr"], [1, 2, 5, 20]]
    todo = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(5), 2)
        for a in factors[i]
        for b in factors[j]
    }
    cases = []
    for case in itertools.product(*factors):
        new = {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(5), 2)} & todo
        if len(new) >= 4 or (new and len(todo) < 60):
            todo -= new
            cases.append(case)
    return cases


def check_consensus(loss, regularizer, family, storage, nodes, optima):
    weights = ("rows", "equal")[(loss + regularizer + len(family)) % 2]
    key = (nodes, loss, regularizer, weights)
    shards = unequal_shards(nodes)
    if key not in optima:
        optima[key] = centralised_optimum(
            shards, LOSSES[loss], REGULARIZERS[regularizer], 1.0, RHO, weights
        )
    run = simulate(
        shards,
        Topology.family(family, nodes),
        Plan.of(
            loss=LOSSES[loss],
            regularizer=REGULARIZERS[regularizer],
            rho=RHO,
            weights=weights,
            rounds=2000,
        ),
        storage=storage,
        acceleration=Acceleration(distance=5e-7),
    )
    assert run.stopped
    assert farthest(run, optima[key]) <= 1e-6
    assert (
        farthest(run, optima[key]) <= run.certificate.distance[0] * 1.01 + 1e-8
    )  # the certificate tells the truth


@pytest.fixture(scope="session")
def optima():
    return {}


@pytest.mark.parametrize("case", pairwise_cases(), ids=lambda case: "-".join(map(str, case)))
def test_all_nodes_reach_the_centralised_optimum(case, optima):
    check_consensus(*case, optima)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 5, 20])
@pytest.mark.parametrize("regularizer", range(2))
@pytest.mark.parametrize("loss", range(4))
def test_all_nodes_reach_the_centralised_optimum_on_the_full_grid(loss, regularizer, nodes, optima):
    for family, storage in itertools.product(sorted(FAMILIES), ["dense", "csr"]):
        check_consensus(loss, regularizer, family, storage, nodes, optima)


@pytest.mark.parametrize("family", ["random_regular", "complete", "erdos_renyi"])
def test_a_hundred_nodes_on_well_connected_graphs(family):
    shards = census(3000, seed=3, nodes=100, heterogeneity=0.5).shards()
    optimum = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, RHO)
    topology = Topology.family(family, 100, degree=6)
    run = simulate(
        shards, topology, Plan.of(rho=RHO, rounds=1000), acceleration=Acceleration(distance=5e-7)
    )
    assert run.stopped
    assert farthest(run, optimum) <= 1e-6


@pytest.mark.parametrize(
    "plan",
    [
        None,
        Acceleration(one_step=False, anderson=10),
        Acceleration(anderson=0),
        Acceleration(anderson=0, relaxation=1.6),
        Acceleration(anderson=5, relaxation=0.8),
        Acceleration(balance=True),
        Acceleration(one_step=False, anderson=0, balance=True, relaxation=1.5),
    ],
    ids=str,
)
def test_every_way_leads_to_the_same_optimum(census5, plan):
    shards = census5.shards()
    optimum = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, 0.05)
    run = simulate(
        shards, Topology.family("ring", 5), Plan.of(rho=0.05, rounds=250), acceleration=plan
    )
    assert farthest(run, optimum) <= 1e-6
    assert len(run.rounds) == 250
    assert not run.stopped


def test_balancing_mends_a_bad_penalty(census5):
    shards, topology = census5.shards(), Topology.family("ring", 5)
    optimum = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, RHO)
    bad = 300 * default_eta(topology, Logistic(), 1.0, RHO)
    plain = simulate(shards, topology, Plan.of(rho=RHO, eta=bad, rounds=80))
    mended = simulate(
        shards,
        topology,
        Plan.of(rho=RHO, eta=bad, rounds=80),
        acceleration=Acceleration(one_step=False, anderson=0, balance=True),
    )
    assert farthest(mended, optimum) < farthest(plain, optimum) / 10
    assert mended.rounds[-1].eta[0] < bad


def test_what_is_mixed_is_the_state_of_the_round_in_units_of_its_penalty(census5, monkeypatch):
    """What the round before left is not packed again, unless balancing has changed the units."""
    real, etas = Accelerator.next_state, []

    def watched(self, before, after, g):
        expected = self._pack(before, self.f)
        found = real(self, before, after, g)
        np.testing.assert_allclose(self._anderson._x, expected, rtol=1e-12, atol=1e-12)
        etas.append(float(self.eta[0]))
        return found

    monkeypatch.setattr(Accelerator, "next_state", watched)
    topology = Topology.family("ring", 5)
    bad = 300 * default_eta(topology, Logistic(), 1.0, RHO)
    simulate(
        census5.shards(),
        topology,
        Plan.of(rho=RHO, eta=bad, rounds=30),
        acceleration=Acceleration(balance=True),
    )
    assert len(set(etas)) > 2


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("multiple", [0.1, 1.0])
def test_a_certified_run_stops_at_the_first_round_that_can_be_certified(census5, skewed, multiple):
    """Also where nodes are so unlike that each one's own objective is far below the pooled one's
    share.
    """
    shards = census5.shards()
    if skewed:
        signed, y = (
            np.concatenate([s.signed.toarray() for s in shards]),
            np.concatenate([s.y for s in shards]),
        )
        shards = [
            Shard(signed[some], y[some]) for some in np.array_split(np.argsort(y, kind="stable"), 5)
        ]
    topology, able = Topology.family("complete", 5), []
    problem = StackedProblem([s.signed for s in shards], Logistic(), SquaredL2(), 1.0, RHO)
    eta = multiple * default_eta(topology, Logistic(), 1.0, RHO)
    plan, look = (
        Acceleration(gap=1e-5),
        lambda progress: able.append(certify(problem, progress.messages).within(1e-5, np.inf)),
    )
    run = simulate(
        shards, topology, Plan.of(rho=RHO, eta=eta, rounds=300), acceleration=plan, on_round=look
    )
    assert run.stopped
    assert able.index(True) + 1 == len(run.rounds)


def test_certified_gap_is_above_the_true_gap(census5):
    shards = census5.shards()
    optimum = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, RHO)

    def pooled(f):
        return sum(np.mean(np.logaddexp(0, -(s.signed @ f))) + RHO / 2 * f @ f for s in shards)

    for target in (1e-2, 1e-4, 1e-8):
        run = simulate(
            shards,
            Topology.family("ring", 5),
            Plan.of(rho=RHO, rounds=500),
            acceleration=Acceleration(gap=target),
        )
        true = max(pooled(f) / pooled(optimum) - 1 for f in run.V[:, 0])
        assert true <= run.certificate.gap[0] <= target
        assert run.stopped


def test_stopping_on_public_residuals(census5):
    shards = census5.shards()
    loose, tight = (
        simulate(
            shards,
            Topology.family("ring", 5),
            Plan.of(rho=RHO, rounds=400),
            acceleration=Acceleration(residual=share),
        )
        for share in (1e-2, 1e-6)
    )
    assert loose.stopped
    assert tight.stopped
    assert len(loose.rounds) < len(tight.rounds)
    assert tight.consensus_gap[0] < loose.consensus_gap[0]
    assert tight.certificate is None


def test_one_step_rounds_that_diverge_fall_back_to_the_argmin():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    shards = [Shard.of(X[i::3], np.where(X[i::3, 0] > 0, 1, -1)) for i in range(3)]
    sharp = HuberHinge(
        width=1e-3, margin=1.0
    )  # almost no curvature at the start, very much at the end
    optimum = centralised_optimum(shards, sharp, SquaredL2(), 50.0, 0.1)
    run = simulate(
        shards,
        Topology.family("complete", 3),
        Plan.of(loss=sharp, C=50.0, rho=0.1, rounds=3000),
        acceleration=Acceleration(gap=1e-6),
    )
    assert run.stopped
    assert farthest(run, optimum) < 1e-3


def test_replicas_with_their_own_penalty_and_linear_term_equal_single_runs(census5):
    shards, topology = census5.shards(), Topology.family("star", 5)
    etas = [0.01, 0.1, 1.0]
    linear = np.random.default_rng(0).normal(size=(4, 5, 3, shards[0].dimension)) * 0.1
    together = simulate(
        shards,
        topology,
        Plan.of(rho=RHO, eta=etas, rounds=4),
        replicas=3,
        linear=lambda n: linear[n - 1],
    )
    for k, eta in enumerate(etas):
        alone = simulate(
            shards,
            topology,
            Plan.of(rho=RHO, eta=eta, rounds=4),
            linear=lambda n, k=k: linear[n - 1][:, [k]],
        )
        np.testing.assert_allclose(together.V[:, k], alone.V[:, 0], atol=1e-6)


def test_dense_and_sparse_storage_give_the_same_messages(census5):
    runs = [
        simulate(census5.shards(), Topology.family("ring", 5), Plan.of(rounds=5), storage=s)
        for s in ("dense", "csr", "auto")
    ]
    np.testing.assert_allclose(runs[0].V, runs[1].V, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(runs[0].V, runs[2].V, rtol=1e-6, atol=1e-7)


def test_a_start_at_the_optimum_stays_in_agreement(census5):
    shards = census5.shards()
    optimum = centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, RHO)
    from_zero, from_optimum = (
        simulate(shards, Topology.family("ring", 5), Plan.of(rho=RHO, rounds=10), start=start)
        for start in (None, optimum)
    )
    assert farthest(from_optimum, optimum) < farthest(from_zero, optimum)


def test_every_round_is_reported_from_messages_alone(census5):
    seen = []
    topology = Topology.family("ring", 5)
    run = simulate(
        census5.shards(),
        topology,
        Plan.of(rounds=3),
        on_round=lambda progress: seen.append((progress, progress.messages.copy())),
    )
    assert [entry.number for entry, _ in seen] == [1, 2, 3]
    entry, V = seen[-1]
    neighbours = np.array([V[topology.neighbours(p)].mean(axis=0) for p in range(5)])
    np.testing.assert_allclose(entry.disagreement, np.linalg.norm(V - neighbours, axis=-1))
    np.testing.assert_array_equal(run.V, V)
    np.testing.assert_array_equal(run.rounds[-1].change, entry.change)
    assert (run.rounds[-1].number, entry.rounds) == (3, 3)
    assert run.rounds[-1].messages.size == 0  # a log of all messages would be long
    assert entry.change.shape == (5, 1)


def test_a_node_with_one_label_trains_silently(capfd, recwarn):
    data = census(500, seed=4, nodes=5)
    labels = data.schema.labels(data.train)
    parts = [*np.array_split(np.flatnonzero(labels < 0), 4), np.flatnonzero(labels > 0)]
    shards = data.shards(parts)
    run = simulate(
        shards,
        Topology.family("ring", 5),
        Plan.of(rho=RHO, rounds=500),
        acceleration=Acceleration(distance=5e-7),
    )
    assert farthest(run, centralised_optimum(shards, Logistic(), SquaredL2(), 1.0, RHO)) < 1e-6
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_the_papers_own_constants_train(census5):
    run = simulate(
        census5.shards(), Topology.family("ring", 5), Plan.of(C=1750.0, rho=1e-10, rounds=5)
    )
    assert np.isfinite(run.V).all()


def test_hostile_linear_terms_end_in_an_error_not_in_numbers(census5):
    huge = np.full((5, 1, census5.schema.dimension), 1e308)
    for plan in (None, Acceleration()):
        with np.errstate(all="ignore"), pytest.raises(NotCertified, match="nothing is released"):
            simulate(
                census5.shards(),
                Topology.family("ring", 5),
                Plan.of(rounds=20),
                linear=lambda n: huge,
                acceleration=plan,
            )


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"C": 0.0}, DeclarationError, "C is 0.0"),
        ({"C": np.nan}, DeclarationError, "C is nan"),
        ({"rho": -1.0}, DeclarationError, "rho is -1.0"),
        ({"gamma": np.inf}, DeclarationError, "gamma is inf"),
        ({"rounds": 0}, DeclarationError, "rounds is 0"),
        ({"replicas": 0}, DeclarationError, "replicas is 0"),
        ({"eta": 0.0}, DeclarationError, "eta is 0.0"),
        ({"eta": [1.0, 2.0]}, DeclarationError, "one for each of the 1 replicas"),
        ({"start": np.zeros(3)}, DeclarationError, "start has shape"),
        ({"start": np.nan}, DeclarationError, "start holds NaN"),
        ({"topology": Topology.family("ring", 4)}, DeclarationError, "4 nodes but 5 shards"),
    ],
)
def test_mistakes_are_named(census5, change, error, match):
    arguments = {"topology": Topology.family("ring", 5), "rounds": 1, **change}
    with pytest.raises(error, match=match):
        flat_simulate(census5.shards(), arguments.pop("topology"), **arguments)


def test_shards_of_different_width_are_refused():
    shards = [Shard.of(np.eye(3)[:, :d] / 2, [1, 1, -1], name=f"n{d}") for d in (3, 2)]
    with pytest.raises(DataError, match="'n2' has 2 columns, node 'n3' has 3"):
        simulate(shards, Topology.family("path", 2))


def test_an_own_loss_with_wrong_constants_is_refused(census5):
    @dataclasses.dataclass(frozen=True)
    class Steep(SmoothedHinge):
        def slope(self, z):
            return 2 * super().slope(z)

    with pytest.raises(LossError, match=r"\|L'\| <= 1"):
        simulate(census5.shards(), Topology.family("ring", 5), Plan.of(loss=Steep()))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"relaxation": 0.0}, "relaxation"),
        ({"relaxation": 2.0}, "relaxation"),
        ({"anderson": -1}, "anderson"),
        ({"gap": 0.0}, "gap"),
        ({"distance": 1.0}, "distance"),
        ({"residual": -1e-3}, "residual"),
    ],
)
def test_acceleration_checks_its_numbers(change, match):
    with pytest.raises(DeclarationError, match=match):
        Acceleration(**change)


def test_default_penalty_is_public_and_grows_as_the_graph_gets_worse():
    values = [default_eta(Topology.family("ring", n), Logistic(), 1.0, 1e-4) for n in (5, 10, 20)]
    assert values == sorted(values)
    assert default_eta(Topology.family("ring", 1), Logistic(), 1.0, 1e-4) > 0
    assert default_eta(Topology.family("ring", 5), Logistic(), 1750.0, 1e-10) > 0.01


def test_residual_stopping_waits_for_the_local_steps():
    shard = census(500, seed=1, nodes=1).shards()[0]
    optimum = centralised_optimum([shard], Logistic(), SquaredL2(), 1.0, 1e-3)
    run = simulate(
        [shard],
        Topology.family("ring", 1),
        Plan.of(rho=1e-3, rounds=200),
        acceleration=Acceleration(residual=1e-8),
    )
    assert run.stopped
    assert farthest(run, optimum) < 1e-5


def test_a_run_that_ends_by_rounds_certifies_what_it_hands_back(census5):
    arguments = {"rho": 1e-3, "rounds": 15, "acceleration": Acceleration(gap=1e-9)}
    run = flat_simulate(census5.shards(), Topology.family("ring", 5), **arguments)
    problem = StackedProblem(
        [s.signed for s in census5.shards()], Logistic(), SquaredL2(), 1.0, 1e-3
    )
    assert not run.stopped
    np.testing.assert_allclose(run.certificate.gap, certify(problem, run.V).gap, rtol=1e-6)
    assert run.certificate.gap[0] < 1


def test_two_lopsided_nodes_with_a_sharp_hinge():
    rng = np.random.default_rng(0)
    shards = []
    for count in (20, 3):
        X = rng.normal(size=(count, 2))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append(Shard.of(X, np.where(X[:, 0] + 0.3 * rng.normal(size=count) > 0, 1, -1)))
    for plan in (None, Acceleration(gap=1e-6)):
        run = simulate(
            shards,
            Topology.family("path", 2),
            Plan.of(loss=HuberHinge(width=0.01), rho=1e-3, rounds=600),
            acceleration=plan,
        )
        assert np.isfinite(run.V).all()


def test_callers_cannot_change_messages(census5):
    def meddle(progress):
        progress.messages[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        simulate(census5.shards(), Topology.family("ring", 5), Plan.of(rounds=1), on_round=meddle)


def test_relaxation_and_gamma_are_used(census5):
    topology, plan = Topology.family("ring", 5), {"one_step": False, "anderson": 0}
    plain, relaxed = (
        simulate(
            census5.shards(),
            topology,
            Plan.of(rounds=3),
            acceleration=Acceleration(**plan, relaxation=r),
        ).V
        for r in (1.0, 1.5)
    )
    assert np.abs(plain - relaxed).max() > 1e-3
    loose = simulate(census5.shards(), topology, Plan.of(rounds=3), gamma=0.05).V
    assert np.abs(plain - loose).max() > 1e-6


def test_consensus_gap_is_the_farthest_nodes(census5):
    run = simulate(census5.shards(), Topology.family("ring", 5), Plan.of(rounds=2))
    V, mean = run.V[:, 0], run.V[:, 0].mean(axis=0)
    farthest = max(np.linalg.norm(v - mean) for v in V) / np.linalg.norm(mean)
    assert run.consensus_gap[0] == pytest.approx(farthest, rel=1e-12)
    eta = run.rounds[0].eta[0]
    first = simulate(census5.shards(), Topology.family("ring", 5), Plan.of(rounds=1))
    np.testing.assert_allclose(
        first.rounds[0].change[:, 0], np.linalg.norm(2 * eta * first.state.W[:, 0], axis=-1)
    )
    assert "value" not in repr(run)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"loss": "logistic"}, "expected a Loss"),
        ({"C": "1"}, "C is '1'"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"eta": "big"}, "eta is 'big'"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(census5, change, match):
    with pytest.raises(DeclarationError, match=match):
        flat_simulate(census5.shards(), Topology.family("ring", 5), **change)


def test_default_penalty_depends_on_the_gap_not_on_the_size_alone():
    ring, complete = (Topology.family(name, 20) for name in ("ring", "complete"))
    ratio = default_eta(ring, Logistic(), 1.0, 1e-4) / default_eta(complete, Logistic(), 1.0, 1e-4)
    expected = np.sqrt(complete.spectral_gap / ring.spectral_gap) * 19 / 2
    assert ratio == pytest.approx(expected)
