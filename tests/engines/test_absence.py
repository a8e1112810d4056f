"""Nodes that stay away, in one process: those who remain find their own optimum."""

import numpy as np
import pytest

from dynadp.consensus import admm
from dynadp.consensus.edges import AwaySums, EdgeDuals
from dynadp.consensus.topology import Topology
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.planning.plans import Plan
from dynadp.privacy.schedules import constant


def quadratic_rounds(topology, targets, rounds, away=None, sums=None, eta=0.3):
    """ADMM with Z_p(f) = ||f - c_p||^2 / 2, whose pooled optimum is the mean of the c_p: the same
    update as the engines', small enough to see to the end.
    """
    degrees, P = topology.degrees, len(topology)
    eta = np.array([eta])
    V = np.zeros((P, 1, targets.shape[-1]))
    exchange = sums or AwaySums(topology, rounds, away or {})
    exchange.begin(eta, V.shape)
    state = admm.begin(V, V, degrees)
    for n in range(1, rounds + 1):
        b, _ = admm.linear_terms(state, eta)
        q = admm.penalty(degrees, eta)[..., None]
        g = (targets[:, None] - b) / (1 + q)
        V = np.where(exchange.present[n - 1][:, None, None], g, V)
        heard, dropped = exchange(n, V)
        state = admm.State(state.W, state.lam - dropped)
        state = admm.receive(state, V, heard, degrees, eta)
    return V[:, 0], state


@pytest.fixture
def six():
    topology = Topology.family("ring", 6)
    return topology, np.random.default_rng(0).normal(size=(6, 3))


def test_without_absences_nothing_changes(six):
    topology, targets = six
    V, state = quadratic_rounds(topology, targets, 300)
    np.testing.assert_allclose(V, np.broadcast_to(targets.mean(axis=0), V.shape), atol=1e-9)
    np.testing.assert_allclose(state.lam.sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("first", [1, 7, 40])
def test_those_who_remain_find_their_own_optimum(six, first):
    topology, targets = six
    V, state = quadratic_rounds(topology, targets, 600, {topology.nodes[2]: [(first, None)]})
    rest = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(
        V[rest], np.broadcast_to(targets[rest].mean(axis=0), (5, 3)), atol=1e-8
    )
    np.testing.assert_allclose(state.lam[rest].sum(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(state.lam[2], 0, atol=1e-12)


def test_two_who_leave_split_the_ring_and_each_part_finds_its_own(six):
    topology, targets = six
    away = {topology.nodes[0]: [(5, None)], topology.nodes[3]: [(11, None)]}
    V, _ = quadratic_rounds(topology, targets, 600, away)
    for part in ([1, 2], [4, 5]):
        np.testing.assert_allclose(
            V[part], np.broadcast_to(targets[part].mean(axis=0), (2, 3)), atol=1e-8
        )


def test_who_returns_is_in_the_optimum_again(six):
    topology, targets = six
    away = {topology.nodes[2]: [(9, 60), (80, 90)], topology.nodes[5]: [(30, 70)]}
    V, state = quadratic_rounds(topology, targets, 900, away)
    np.testing.assert_allclose(V, np.broadcast_to(targets.mean(axis=0), V.shape), atol=1e-8)
    np.testing.assert_allclose(state.lam.sum(axis=0), 0, atol=1e-12)


class Naive(AwaySums):
    """One of the ways to get it wrong."""

    def __init__(self, how, *given):
        super().__init__(*given)
        self.how = how

    def __call__(self, n, V):
        if self.how == "one end":  # the end with the smaller name keeps its dual
            lam = self._duals.lam.copy()
            heard, dropped = super().__call__(n, V)
            kept = (self.own < self.others) & ~self.used(n)
            self._duals.lam[kept] = lam[kept]
            wrong = np.zeros_like(dropped)
            np.add.at(wrong, self.own[~kept], lam[~kept] * ~self.used(n)[~kept, None, None])
            return heard, wrong
        if (
            self.how == "epoch"
        ):  # the dual comes back with the node, and of other rounds at each end
            before = self._duals.lam.copy()
            heard, dropped = super().__call__(n, V)
            used = self.used(n)
            if not used.all():
                ends = ~used & before.any(axis=(1, 2)) & (self.own < self.others)
                self.old = getattr(self, "old", {}) | {i: before[i] for i in np.flatnonzero(ends)}
            else:
                for i, lam in getattr(self, "old", {}).items():
                    dropped[self.own[i]] -= lam
                    self._duals.lam[i] += lam
                self.old = {}
            return heard, dropped
        heard, dropped = super().__call__(n, V)
        return heard, 0 * dropped  # "keep"


@pytest.mark.parametrize("how", ["keep", "one end", "epoch"])
def test_naive_ways_end_elsewhere(six, how):
    topology, targets = six
    last = 60 if how == "epoch" else None
    away = {topology.nodes[2]: [(9, last)]}
    there = range(6) if last else [0, 1, 3, 4, 5]
    optimum = targets[list(there)].mean(axis=0)
    good, _ = quadratic_rounds(topology, targets, 900, away)
    bad, _ = quadratic_rounds(topology, targets, 900, sums=Naive(how, topology, 900, away))
    assert np.abs(good[list(there)] - optimum).max() < 1e-8
    assert np.abs(bad[list(there)] - optimum).max() > 1e-3


def test_what_an_echo_may_be_made_of():
    """With the message in place of the neighbour's, the state is the same for all rows that gave
    the message; with the minimiser it is not.
    """
    V = np.array([[[1.0, 2.0]]])
    for echo, public in ((lambda g: V, True), (lambda g: g, False)):
        states = []
        for g in (V + 0.1, V - 0.3):  # two data sets, one message
            sums, _ = EdgeDuals([0], np.ones(1), V.shape).receive(echo(g), echo(g), [False])
            states.append(
                admm.receive(admm.begin(V, V, np.ones(1)), V, sums, np.ones(1), np.ones(1))
            )
        assert np.array_equal(states[0].W, states[1].W) == public


# --------------------------------------------------------------------------------------------------
# the engine


def pooled(shards, plan):
    """The optimum of these nodes: one long undisturbed run among them."""
    alone = Topology.family("complete", len(shards)).named([s.name for s in shards])
    run = simulate(shards, alone, plan)
    return run.V.mean(axis=0)[0]


@pytest.fixture
def shards(census5):
    from dynadp.data.loading import load_shard

    topology = Topology.family("ring", 5)
    tables = census5.tables(topology.nodes)
    return topology, [load_shard(census5.schema, tables[p], p) for p in topology.nodes]


ITERATE = {"mechanism": Primal(augment="iterate"), "schedule": constant(0.5)}
PLAN = {"C": 2.0, "rho": 0.05, "eta": 0.05}


def test_the_simulation_certifies_those_who_remain_and_those_who_return(shards):
    topology, held = shards
    plan = Plan.of(**PLAN, rounds=400)
    gone = topology.nodes[1]
    run = simulate(held, topology, plan, away={gone: [(7, None)]})
    rest = [s for s in held if s.name != gone]
    keep = [0, 2, 3, 4]
    assert np.abs(run.V[keep, 0] - pooled(rest, plan)).max() < 1e-6
    back = simulate(held, topology, plan, away={gone: [(7, 30)]})
    assert np.abs(back.V[:, 0] - pooled(held, plan)).max() < 1e-6
    models = run.models("network")
    np.testing.assert_allclose(models[keep, 0], np.tile(run.tail[keep, 0].mean(axis=0), (4, 1)))
    assert np.isnan(models[1]).all()


def test_absent_nodes_release_nothing_and_others_as_planned(shards):
    topology, held = shards
    plan = Plan.of(**PLAN, rounds=6, mechanism=Primal(), schedule=constant(0.5))
    gone = topology.nodes[1]
    run = simulate(held, topology, plan, draws=SeededEntropy(1), away={gone: [(2, 4)]})
    whole = simulate(held, topology, plan, draws=SeededEntropy(1))
    assert [e.round for e in run.events() if e.node == gone] == [1, 5, 6]
    missed = [e for e in whole.events() if e.node == gone and 2 <= e.round <= 4]
    assert set(run.events()) == set(whole.events()) - set(missed)
    assert run.noises[0].radius.tolist() == whole.noises[0].radius.tolist()
    same = simulate(held, topology, plan, draws=SeededEntropy(1), away={})
    np.testing.assert_array_equal(same.V, whole.V)
    np.testing.assert_array_equal(same.tail, whole.tail)
    for output in ("last", "tail", "neighbours", "network"):
        np.testing.assert_allclose(same.models(output), whole.models(output), rtol=1e-12)


@pytest.mark.parametrize(
    ("plan", "away", "words"),
    [
        (
            {"mechanism": Primal(augment="iterate"), "schedule": constant(0.5)},
            {},
            "augment = 'iterate'",
        ),
        ({}, {"nobody": [(1, 2)]}, "which is no node"),
        ({}, {"n": [(0, 2)]}, "rounds \\(0, 2\\)"),
        ({}, {"n": [(3, 2)]}, "rounds \\(3, 2\\)"),
    ],
)
def test_what_cannot_be(shards, plan, away, words):
    topology, held = shards
    away = {topology.nodes[0] if name == "n" else name: spans for name, spans in away.items()}
    with pytest.raises(DeclarationError, match=words):
        simulate(held, topology, Plan.of(**PLAN, rounds=4, **plan), away=away)
    with pytest.raises(DeclarationError, match="leave out journal"):
        simulate(held, topology, Plan.of(**PLAN, rounds=4), away={}, exchange=lambda n, V: V)
