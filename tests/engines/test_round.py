"""One round for every engine: exchanges and mechanisms from outside the package take part in it."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from dynadp import Plan
from dynadp.consensus.round import NeighbourSums
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.exchange import Awaiting
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError, NodeLost
from dynadp.mechanisms.base import Mechanism, RoundNoise, ball
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.registry import mechanism_from, mechanism_named, mechanism_names
from dynadp.mechanisms.sampling import grid_step, to_grid
from dynadp.planning.planner import plan
from dynadp.privacy.accountant import worst_node
from dynadp.privacy.events import L2Laplace
from dynadp.research.audit import Stream, audit_mechanism, worst_cases
from dynadp.runs.record import RecordedPlan
from dynadp.runs.training import train
from support.memory import Network, assert_same_messages, memory, small

COMPLETE = Topology.family("complete", 4)


@pytest.fixture(scope="module")
def data():
    return census(400, seed=3, nodes=4)


# --------------------------------------------------------------------------------------------------
# masked integers: pairwise masks modulo 2^64, which cancel in a sum over all


def integers(V, step):
    """V as multiples of a power of two, modulo 2^64."""
    whole = np.rint(V / step)
    assert np.array_equal(whole * step, V)  # messages lie on a dyadic grid
    return whole.astype(np.int64).view(np.uint64)


def numbers(x, step):
    return x.view(np.int64) * step


def mask(i, j, n, shape):
    """What i adds and j takes off in round n; both know it, and nobody else does."""
    low, high = sorted((i, j))
    drawn = np.random.default_rng([low, high, n]).integers(0, 2**64, shape, np.uint64)
    return drawn if i == low else -drawn


def masked(x, i, nodes, n):
    others = [mask(i, j, n, x.shape) for j in range(nodes) if j != i]
    return x + np.sum(others, axis=0, dtype=np.uint64)


class MaskedSums:
    """sum_j V_j over all others, from masked vectors: the sum of all, less one's own."""

    def __init__(self, steps):
        self.steps, self.seen = steps, []

    def __call__(self, n, V):
        step = float(min(s.min() for s in self.steps))
        x = integers(V, step)
        sent = np.stack([masked(own, i, len(V), n) for i, own in enumerate(x)])
        self.seen.append((x, sent))
        return numbers(sent.sum(axis=0, dtype=np.uint64) - x, step)


@pytest.mark.parametrize("mechanism", [Primal(), Dual(), Primal(augment="iterate")], ids=str)
@pytest.mark.parametrize("replicas", [1, 3])
def test_masked_sums_give_the_same_run_to_the_last_bit(data, mechanism, replicas):
    shards = data.shards()
    given = Plan.of(rho=1e-2, eta=0.05, rounds=5, mechanism=mechanism, schedule=0.5)
    how = {"replicas": replicas, "draws": SeededEntropy(2)}
    plain = simulate(shards, COMPLETE, given, **how)
    sums = MaskedSums([noise.step for noise in plain.noises])
    run = simulate(shards, COMPLETE, given, exchange=sums, **how)
    for name in ("V", "tail"):
        assert getattr(run, name).tobytes() == getattr(plain, name).tobytes()
    assert run.state.W.tobytes() == plain.state.W.tobytes()
    assert run.state.lam.tobytes() == plain.state.lam.tobytes()
    assert [r.change.tolist() for r in run.rounds] == [r.change.tolist() for r in plain.rounds]
    assert len(sums.seen) == 6  # V(0), and five rounds
    for x, sent in sums.seen[1:]:
        assert not (sent == x).any()
        assert np.abs(sent.view(np.int64).astype(float)).mean() > 2**60


def test_an_exchange_sees_every_round_and_its_answer_is_used(data):
    """V(0) first; and one that adds up wrongly leads elsewhere."""
    shards, seen = data.shards(), []
    given = Plan.of(rho=1e-2, eta=0.05, rounds=3, mechanism=Primal(), schedule=0.5)

    def wrong(n, V):
        seen.append(n)
        return 2 * NeighbourSums(COMPLETE)(n, V)

    plain = simulate(shards, COMPLETE, given, draws=SeededEntropy(2))
    other = simulate(shards, COMPLETE, given, draws=SeededEntropy(2), exchange=wrong)
    assert seen == [0, 1, 2, 3]
    assert not np.array_equal(plain.V, other.V)


class Hub:
    """Adds up masked vectors; it learns sums of all nodes alone, and holds no plain message."""

    def __init__(self, setting):
        self.nodes, self.plan = setting.topology.nodes, setting.chosen
        self.held = {}  # round: {node: masked vector}

    def __call__(self, node):
        return HubExchange(self, node.me)


class HubExchange:
    """A node's message goes to the hub, masked; the sum of all comes back."""

    def __init__(self, hub, me):
        self.hub, self.me = hub, me

    def __call__(self, n, V):
        hub = self.hub
        step = float(min(noise.step.min() for noise in hub.plan.release_plan.noises))
        own = integers(V, step)
        sent = masked(own, hub.nodes.index(self.me), len(hub.nodes), n)
        before = hub.held.setdefault(n, {}).setdefault(self.me, sent)
        assert np.array_equal(before, sent)  # a node that starts again sends the same
        while len(hub.held[n]) < len(hub.nodes):
            yield Awaiting("message", n, ())
        return numbers(np.sum(list(hub.held[n].values()), axis=0, dtype=np.uint64) - own, step)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("mechanism", ["primal", "dual"])
@pytest.mark.parametrize("output", ["tail", "neighbours", "network"])
def test_nodes_that_learn_sums_from_a_hub_end_with_the_model_of_plain_letters(
    mechanism, output, crashes
):
    setting = small("complete", 4, mechanism=mechanism, output=output)
    hub = Hub(setting)
    with memory() as folder:
        network = Network(replace(setting, exchange=hub), folder)
        if crashes:
            for node in network.nodes.values():
                node.plugged = "spent"
                node.start()
            for _ in range(3):
                for node in network.nodes.values():
                    if node.ready:
                        node.step()
                while network.on_the_way:
                    network.deliver()
        outcomes = network.finish()
        models, messages, done = setting.undisturbed
        assert_same_messages(network, messages)  # as entered in the ledgers
        network.close()
    letters = {(kind, n) for _, kind, n in network.seen}
    assert not any(kind == "message" and n > 0 for kind, n in letters)
    assert sorted(hub.held) == [1, 2, 3, 4]
    for p, outcome in outcomes.items():
        np.testing.assert_allclose(
            outcome.vector, models[p], rtol=1e-9 if output == "neighbours" else 0
        )
        assert outcome.schema == done.schema


class Deaf:
    """Waits for a letter that nobody sends."""

    def __init__(self, node):
        pass

    def __call__(self, n, V):
        yield Awaiting("message", n, ("nobody",))


def test_a_network_in_memory_that_stands_still_says_so():
    setting = small("complete", 4)
    with memory() as folder:
        network = Network(replace(setting, exchange=Deaf), folder)
        with pytest.raises(NodeLost, match=r"stands still: .* waits for letters .*'nobody'"):
            network.finish()
        network.close()


# --------------------------------------------------------------------------------------------------
# a mechanism of somebody else


@dataclass(frozen=True)
class GaussianNoise(RoundNoise):
    """V = Round(g + e), e normal with deviation sigma in every coordinate.

    Its events are the l2-Laplace ones with the same alpha: a stand-in, and no proof.
    """

    sigma: np.ndarray
    alpha: np.ndarray

    def release(self, g, draws, nodes, n):
        P, K, d = g.shape
        e = [
            [draws.generator("gaussian", nodes[p], n, k).standard_normal(d) for k in range(K)]
            for p in range(P)
        ]
        return to_grid(g + self.sigma[..., None] * np.array(e), self.step, self.radius)

    def events(self, nodes, n, dimension, replica=0, *, seeded=False):
        return tuple(
            L2Laplace(node, n, "gaussian", float(alpha), dimension, seeded)
            for node, alpha in zip(nodes, self.alpha[:, replica], strict=True)
        )

    def log_density(self, x):
        length = (x * x).sum(axis=-1)
        return -length / (2 * self.sigma.reshape(self.sigma.shape + (1,) * (length.ndim - 2)) ** 2)


@pytest.fixture(scope="module")
def Gaussian():
    """The class enters the registry as it is made, and leaves it with these tests."""

    @dataclass(frozen=True)
    class Gaussian(Mechanism):
        factor: float = 3.0
        name: ClassVar[str] = "gaussian of a test"
        by_alpha_alone: ClassVar[bool] = True

        def noise_for(self, public, alpha):
            delta = np.broadcast_to(2 * (public.weight + public.gamma) / public.Lam, alpha.shape)
            sigma = self.factor * delta / alpha
            step = grid_step(sigma)
            radius = ball(public, sigma * np.sqrt(public.dimension), step)
            return GaussianNoise(np.zeros(alpha.shape), step, radius, sigma, alpha)

    yield Gaussian
    del Mechanism.registry[Gaussian.name]


def test_a_mechanism_from_outside_has_a_name(Gaussian):
    assert mechanism_names()[:4] == ("sum", "sealed", "primal", "dual")
    assert Gaussian.name in mechanism_names()
    made = mechanism_named(Gaussian.name, factor=2.0)
    assert made == Gaussian(2.0)
    assert mechanism_from(made.describe()) == made
    with pytest.raises(DeclarationError, match="has no parameter rate; it has factor"):
        mechanism_named(Gaussian.name, rate=2.0)


def test_a_mechanism_from_outside_is_planned_by_its_name(Gaussian, data):
    chosen = plan([100] * 4, COMPLETE, 6, epsilon=2.0, delta=1e-5, mechanism=Gaussian.name)
    assert chosen.mechanism == Gaussian()
    assert 1.99 < chosen.total.epsilon <= 2.0
    assert {event.purpose for event in chosen.events} == {"centring", "gaussian"}
    recorded = RecordedPlan.from_json(chosen.to_json(), COMPLETE.nodes)
    again = recorded.events(COMPLETE, dict.fromkeys(COMPLETE.nodes, 100), 6, 5)
    assert recorded.mechanism == Gaussian.name
    assert again == chosen.events


def test_a_mechanism_from_outside_is_simulated(Gaussian, data):
    messages, shards = [], data.shards()
    given = {"rho": 1e-2, "eta": 0.05, "rounds": 4, "schedule": 0.5}
    run = simulate(
        shards,
        COMPLETE,
        Plan.of(**given, mechanism=Gaussian()),
        replicas=2,
        draws=SeededEntropy(2),
        on_round=lambda progress: messages.append(progress.messages),
    )
    again = simulate(
        shards, COMPLETE, Plan.of(**given, mechanism=Gaussian()), draws=SeededEntropy(2)
    )
    step = run.noises[0].step[:, :1]
    np.testing.assert_allclose(again.V[:, 0], run.V[:, 0], rtol=0, atol=2 * step.max())
    for V, noise in zip(messages, run.noises, strict=True):
        assert isinstance(noise, GaussianNoise)
        assert noise.sigma.shape == (4, 2)
        np.testing.assert_array_equal(V % noise.step[..., None], 0)
    assert worst_node(run.events(), 0.0).epsilon == pytest.approx(4 * 0.5)
    exact = simulate(shards, COMPLETE, Plan.of(rho=1e-2, eta=0.05, rounds=4)).V
    near = {
        factor: np.linalg.norm(
            simulate(
                shards,
                COMPLETE,
                Plan.of(**given, mechanism=Gaussian(factor)),
                draws=SeededEntropy(2),
            ).V
            - exact
        )
        for factor in (1e-5, 3.0)
    }
    assert near[1e-5] < 1e-3 * near[3.0]


def test_a_mechanism_from_outside_trains(Gaussian, data):
    tables = {
        p: {name: cells[data.node == i] for name, cells in data.train.items()}
        for i, p in enumerate(COMPLETE.nodes)
    }
    trained = train(
        data.schema,
        tables,
        COMPLETE,
        epsilon=4.0,
        delta=1e-5,
        mechanism=Gaussian.name,
        draws=SeededEntropy(3),
    )
    assert trained.model().mechanism == Gaussian.name
    assert trained.total.epsilon <= 4.0
    assert {event.purpose for event in trained.events} == {"centring", "gaussian"}
    assert np.isfinite(trained.run.V).all()


def test_a_mechanism_from_outside_is_audited(Gaussian):
    """Enough noise passes; with a sixth of it, draws refute the claim."""
    how = {"draws": 8_000, "source": Stream(7), "cases": worst_cases(2)[:1]}
    sound = audit_mechanism(Gaussian(), 1.0, 2, 2, **how)
    assert not sound.refuted
    assert sound.setting["mechanism"] == Gaussian.name
    assert 0.2 < sound.epsilon_lower <= 2.0
    assert audit_mechanism(Gaussian(0.5), 1.0, 2, 2, **how).refuted
