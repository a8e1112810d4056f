"""Whole private runs: what is sent, what it is made of, what it costs."""

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus import admm
from dynadp.consensus.acceleration import Acceleration
from dynadp.consensus.local_solver import LocalSolver
from dynadp.consensus.round import NeighbourSums
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.splitting import partition
from dynadp.data.datasets.synthetic import census
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, NotCertified
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy, SystemEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.parts import Protection
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.schedules import constant, geometric, per_node
from dynadp.problem.gamma import default_gamma
from dynadp.problem.losses import Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SquaredL2
from support import flat_simulate

RING = Topology.family("ring", 5)
MECHANISMS = [
    Dual(),
    Dual(split="paper"),
    Primal(),
    Primal(augment="iterate"),
    Primal(final_release=0.5),
]
SETTING = {"C": 1.0, "rho": 0.01, "eta": 0.05, "rounds": 6}


@pytest.fixture(scope="module")
def shards():
    return census(1000, seed=1, nodes=5, heterogeneity=0.7).shards()


def transcript(shards, mechanism, **changes):
    messages = []
    arguments = {
        **SETTING,
        "mechanism": mechanism,
        "schedule": 1.0,
        "draws": SeededEntropy(3),
        **changes,
    }
    run = flat_simulate(
        shards,
        RING,
        on_round=lambda progress: messages.append(progress.messages.copy()),
        **arguments,
    )
    return run, messages


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_state_is_a_function_of_messages_exactly_as_sent(shards, mechanism):
    run, messages = transcript(shards, mechanism)
    zero = np.zeros_like(messages[0])
    state = admm.begin(zero, zero, RING.degrees)
    for V in messages:
        state = admm.receive(
            state, V, NeighbourSums(RING)(0, V), RING.degrees, np.array([SETTING["eta"]])
        )
    np.testing.assert_array_equal(run.state.lam, state.lam)
    np.testing.assert_array_equal(
        run.state.W, state.W
    )  # at the end; between rounds `iterate` adds its private vector


@pytest.mark.parametrize("mechanism", [Dual(), Primal()], ids=str)
def test_messages_lie_on_the_public_grid_and_never_equal_an_argmin(shards, mechanism):
    run, messages = transcript(shards, mechanism)
    problem = StackedProblem([s.signed for s in shards], Logistic(), SquaredL2(), 1.0, 0.01)
    eta, zero = np.array([0.05]), np.zeros_like(messages[0])
    state = admm.begin(zero, zero, RING.degrees)
    for V, c in zip(messages, run.noises, strict=True):
        solver = LocalSolver(problem, RING.degrees, eta, default_gamma(problem), zero)
        f = solver.local_step(1, state, None, c.phi)
        assert (np.abs(V - f).max(axis=-1) > c.step).all()
        assert not np.isclose(V, f, rtol=0, atol=1e-12).any()
        on_grid = V / c.step[..., None]
        np.testing.assert_array_equal(on_grid, np.rint(on_grid))
        state = admm.receive(state, V, NeighbourSums(RING)(0, V), RING.degrees, eta)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_public_numbers_do_not_change_with_a_row(shards, mechanism):
    """One row replaced by its opposite: calibration, alpha, number of rounds and of messages are
    the same to the last bit.
    """
    first = shards[0]
    rows = first.signed.toarray() * first.y[:, None]
    rows[0] = -rows[0]
    other = [Shard.of(rows, first.y, name=first.name), *shards[1:]]
    runs = [transcript(data, mechanism)[0] for data in (shards, other)]
    assert len(runs[0].rounds) == len(runs[1].rounds) == SETTING["rounds"]
    assert runs[0].events() == runs[1].events()
    np.testing.assert_array_equal(runs[0].alpha, runs[1].alpha)
    for a, b in zip(runs[0].noises, runs[1].noises, strict=True):
        assert type(a) is type(b)
        assert len(vars(a)) >= 6
        for name, number in vars(a).items():
            np.testing.assert_array_equal(number, getattr(b, name), strict=True)


def test_a_solver_that_stops_early_fails_the_round_and_releases_nothing(shards, monkeypatch):
    messages = []
    monkeypatch.setattr("dynadp.consensus.local_solver.PATIENT", 1)
    with pytest.raises(NotCertified, match="nothing is released"):
        flat_simulate(
            shards,
            RING,
            mechanism=Primal(),
            schedule=1.0,
            draws=SystemEntropy(),
            on_round=lambda progress: messages.append(progress.messages),
            **SETTING,
        )
    assert messages == []


def test_gamma_sets_the_noise_and_no_residual_does(shards):
    loose, tight = (
        transcript(shards, Primal(), gamma=gamma)[0].noises[0] for gamma in (1e-3, 1e-6)
    )
    lam = 0.01 + 2 * 0.05 * 2
    np.testing.assert_allclose(loose.delta - tight.delta, 2 * (1e-3 - 1e-6) / lam, rtol=1e-6)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_seeded_runs_repeat_and_say_so_and_others_never_do(shards, mechanism):
    again = [transcript(shards, mechanism)[1] for _ in range(2)]
    np.testing.assert_array_equal(again[0], again[1])
    run, messages = transcript(shards, mechanism, draws=None)
    assert not run.seeded
    assert transcript(shards, mechanism)[0].seeded
    other = transcript(shards, mechanism, draws=SystemEntropy())[1]
    assert not np.isclose(messages, other, rtol=0, atol=0).all(axis=-1).any()


def test_replicas_are_the_runs_they_stack(shards):
    together, _ = transcript(shards, Dual(), replicas=3, schedule=[0.5, 1.0, 2.0])
    alone, _ = transcript(shards, Dual(), schedule=0.5)
    np.testing.assert_allclose(
        together.V[:, 0], alone.V[:, 0], atol=2 * float(alone.noises[-1].step.max())
    )
    assert together.events(2)[0].alpha > together.events(0)[0].alpha


@pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m != Dual(split="paper")], ids=str)
def test_every_replica_with_real_noise_is_a_release(shards, mechanism):
    """Three unseeded replicas are three releases about the same rows; a seeded stack stands for one
    network.
    """
    alphas = [0.5, 1.0, 2.0]
    last = getattr(mechanism, "final_release", None) or 0.0
    real, _ = transcript(shards, mechanism, replicas=3, schedule=alphas, draws=SystemEntropy())
    total = worst_node(real.events(), 0.0)
    assert total.protected
    assert total.epsilon == pytest.approx(6 * sum(alphas) + 3 * last)
    assert real.events() == (*real.events(0), *real.events(1), *real.events(2))
    assert worst_node(real.events(2), 0.0).epsilon == pytest.approx(6 * 2.0 + last)
    seeded, _ = transcript(shards, mechanism, replicas=3, schedule=alphas)
    assert seeded.events() == seeded.events(0)
    assert worst_node(seeded.events(), 0.0).epsilon == pytest.approx(6 * 0.5 + last)
    for replica in (-1, 3):
        with pytest.raises(
            DeclarationError, match=f"replica is {replica}; expected a number from 0 to 2"
        ):
            real.events(replica)


def test_a_run_without_a_mechanism_has_no_events(shards):
    assert simulate(shards, RING, Plan.of(rounds=2), replicas=2).events() == ()


def test_every_round_and_node_is_charged_what_the_schedule_says(shards):
    rising = geometric(0.1, 2.0)
    run, _ = transcript(shards, Primal(), schedule=rising)
    spent = {(e.node, e.round): e.alpha for e in run.events()}
    assert spent == {
        (p, n): pytest.approx(0.1 * 2 ** (n - 1)) for p in RING.nodes for n in range(1, 7)
    }
    own = per_node({p: 0.1 * (i + 1) for i, p in enumerate(RING.nodes)})
    run, _ = transcript(shards, Dual(), schedule=own)
    for i, p in enumerate(RING.nodes):
        assert sum(e.alpha for e in run.events() if e.node == p) == pytest.approx(6 * 0.1 * (i + 1))


def test_a_final_dual_release_is_one_more_message_and_costs_its_own(shards):
    run, messages = transcript(shards, Primal(final_release=0.5))
    assert len(messages) == len(run.rounds) == 6
    last = [event for event in run.events() if event.round == 7]
    assert {type(event).__name__ for event in last} == {"DualPerturbation", "L2Laplace"}
    assert sum(event.alpha for event in last if event.node == RING.nodes[0]) == pytest.approx(0.5)
    assert not np.array_equal(run.V, messages[-1])
    np.testing.assert_array_equal(run.tail, np.mean(messages[3:], axis=0))


def test_outputs_are_means_of_messages(shards):
    run, messages = transcript(shards, Primal())
    tail = np.mean(messages[3:], axis=0)
    np.testing.assert_allclose(run.models("tail"), tail)
    np.testing.assert_array_equal(run.models("last"), messages[-1])
    near = [np.mean([tail[p], *(tail[j] for j in RING.neighbours(p))], axis=0) for p in range(5)]
    np.testing.assert_allclose(run.models("neighbours"), near)
    np.testing.assert_allclose(run.models(), np.broadcast_to(tail.mean(axis=0), tail.shape))
    with pytest.raises(DeclarationError, match="unknown output 'best'"):
        run.models("best")


def test_less_noise_less_error(shards):
    exact = flat_simulate(shards, RING, **SETTING).V
    gaps = [
        np.linalg.norm(transcript(shards, mechanism, schedule=alpha)[0].V - exact)
        for mechanism in (Dual(), Primal())
        for alpha in (1.0, 1e3, 1e6)
    ]
    assert gaps[0] > 20 * gaps[1]
    assert gaps[3] > 20 * gaps[4]
    assert gaps[5] < 1e-3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schedule": None}, "mechanism 'primal' needs a schedule"),
        ({"mechanism": None}, "schedule was given but no mechanism"),
        ({"schedule": [1.0, 2.0]}, "2 schedules for 1 replicas"),
        ({"schedule": -1.0}, "above 0"),
        ({"acceleration": Acceleration()}, "acceleration is for Algorithm 1 only"),
    ],
)
def test_mistakes_are_named(shards, change, match):
    with pytest.raises(DeclarationError, match=match):
        transcript(shards, **{"mechanism": Primal(), **change})


@pytest.mark.slow
def test_accuracy_on_adult_at_alpha_1_a_round(adult_data):
    """Medians over 20 draws and 5 nodes after 30 rounds on a ring, alpha = 1 (maths.md 11)."""
    shards = adult_data.shards(partition(len(adult_data.train["age"]), 5))
    X, y = adult_data.schema.rows(adult_data.test), adult_data.schema.labels(adult_data.test)

    def median_error(V):
        return float(
            np.median(
                [np.mean(np.where(X @ f > 0, 1, -1) != y) for f in V.reshape(-1, V.shape[-1])]
            )
        )

    common = {"eta": 1.0, "rounds": 30, "replicas": 20, "schedule": 1.0, "draws": SeededEntropy(0)}
    dual = flat_simulate(shards, RING, C=1750.0, rho=10**-2.5, mechanism=Dual(), **common)
    primal = flat_simulate(shards, RING, C=146.0, rho=0.1, mechanism=Primal(), **common)
    paper = flat_simulate(
        shards, RING, C=146.0, rho=0.1, mechanism=Primal(augment="iterate"), **common
    )
    assert median_error(dual.V) <= 0.180
    assert median_error(primal.V) <= 0.180
    assert 0.22 < median_error(paper.V) < 0.33
    assert median_error(dual.models("tail")) < median_error(dual.V) - 0.005
    assert median_error(paper.models("tail")) < median_error(paper.V) - 0.05


def test_residuals_are_made_of_messages_alone(census5):
    """Also with augment = "iterate", whose next round uses a private vector, which no log may."""
    V = []
    ring = Topology.family("ring", 5)
    run = simulate(
        census5.shards(),
        ring,
        Plan.of(rho=1e-2, eta=0.1, rounds=4, mechanism=Primal(augment="iterate"), schedule=0.5),
        draws=SeededEntropy(3),
        on_round=lambda progress: V.append(progress.messages.copy()),
    )
    W = [np.zeros_like(V[0])]
    for messages in V:
        W.append(0.5 * (2 * messages + NeighbourSums(ring)(0, messages)))
    for n, entry in enumerate(run.rounds, 1):
        assert entry.change == pytest.approx(2 * 0.1 * np.linalg.norm(W[n] - W[n - 1], axis=-1))


def test_each_replica_has_the_alpha_that_it_was_given():
    given = [0.1, 0.1000001, 1, 0.1, constant(2.0), constant(3.0)]
    found = Protection(mechanism=Primal(), schedule=given).alphas(("a",), 2, len(given))
    assert found[0].tolist() == [[a, a] for a in (0.1, 0.1000001, 1.0, 0.1, 2.0, 3.0)]
