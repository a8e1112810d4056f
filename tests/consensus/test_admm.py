"""send and receive against the paper's formulas, written edge by edge and solved by SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dynadp import Plan
from dynadp.consensus import admm
from dynadp.consensus.local_solver import LocalSolver
from dynadp.consensus.topology import Topology
from dynadp.engines.simulation import simulate
from dynadp.problem.gamma import default_gamma
from dynadp.problem.losses import Logistic
from dynadp.problem.objective import StackedProblem
from dynadp.problem.regularizers import SquaredL2
from support.reference import dense_rows, losses


def sums(topology, V):
    return np.array(
        [sum(V[j] for j in topology.neighbours(p)) + np.zeros_like(V[p]) for p in range(len(V))]
    )


class EdgeByEdge:
    """Consensus ADMM with its own variable w_pj and multiplier for every edge end (Boyd et al.
    2011, 3.4.3 and 7.1).
    """

    def __init__(self, topology, dimension, eta, relaxation):
        self.topology, self.eta, self.r = topology, eta, relaxation
        self.ends = [(p, int(j)) for p in range(len(topology)) for j in topology.neighbours(p)]
        self.w = {end: np.zeros(dimension) for end in self.ends}
        self.u = {end: np.zeros(dimension) for end in self.ends}  # multiplier of f_p = w_pj

    def receive(self, V):
        relaxed = {(p, j): self.r * V[p] + (1 - self.r) * self.w[p, j] for p, j in self.ends}
        for p, j in self.ends:
            self.w[p, j] = (relaxed[p, j] + relaxed[j, p]) / 2
        for end in self.ends:
            self.u[end] = self.u[end] + self.eta * (relaxed[end] - self.w[end])

    def W(self, p):
        return sum(self.w[p, int(j)] for j in self.topology.neighbours(p))

    def lam(self, p):
        return sum(self.u[p, int(j)] for j in self.topology.neighbours(p))


@settings(max_examples=40)
@given(
    st.sampled_from(["ring", "star", "path", "complete", "erdos_renyi"]),
    st.integers(2, 9),
    st.floats(0.1, 1.9),
    st.floats(1e-3, 10),
    st.integers(0, 1000),
)
def test_receive_is_the_sum_over_edges(family, nodes, relaxation, eta, seed):
    topology = Topology.family(family, nodes)
    rng = np.random.default_rng(seed)
    reference = EdgeByEdge(topology, 4, eta, relaxation)
    penalty = np.array([eta])
    zero = np.zeros((nodes, 1, 4))
    state = admm.begin(zero, zero, topology.degrees)
    for _ in range(4):
        V = rng.normal(size=(nodes, 1, 4))
        state = admm.receive(
            state, V, sums(topology, V), topology.degrees, penalty, relaxation=relaxation
        )
        reference.receive(V[:, 0])
        for p in range(nodes):
            np.testing.assert_allclose(state.W[p, 0], reference.W(p), atol=1e-12)
            np.testing.assert_allclose(state.lam[p, 0], reference.lam(p), atol=1e-12 * (1 + eta))
    np.testing.assert_allclose(
        state.lam.sum(axis=0), 0, atol=1e-11 * (1 + eta)
    )  # sum of duals stays zero


def paper_round(shard, f_own, f_neighbours, lam, C, rho, eta):
    """argmin_f Z_p(f) + 2 lam.f + eta sum_j || f - (f_p + f_j)/2 ||^2, as printed (with maths.md's
    correction of (1)).
    """
    A = dense_rows(shard)
    L, dL, _ = losses("logistic")

    def value(f):
        pulls = sum(np.sum((f - (f_own + other) / 2) ** 2) for other in f_neighbours)
        return C / len(A) * L(A @ f).sum() + rho / 2 * f @ f + 2 * lam @ f + eta * pulls

    def gradient(f):
        pulls = sum(2 * (f - (f_own + other) / 2) for other in f_neighbours)
        return C / len(A) * A.T @ dL(A @ f) + rho * f + 2 * lam + eta * pulls

    return minimize(
        value,
        f_own,
        jac=gradient,
        method="L-BFGS-B",
        options={"gtol": 1e-12, "ftol": 0, "maxiter": 2000},
    ).x


@pytest.mark.parametrize("family", ["ring", "star", "path"])
def test_simulation_is_algorithm_1_as_printed(census5, family):
    shards, topology = census5.shards(), Topology.family(family, 5)
    C, rho, eta, T = 3.0, 0.02, 0.3, 6
    f = np.zeros((5, shards[0].dimension))
    lam = np.zeros_like(f)
    seen = []
    for _ in range(T):
        neighbours = [[f[j] for j in topology.neighbours(p)] for p in range(5)]
        f = np.array(
            [paper_round(shards[p], f[p], neighbours[p], lam[p], C, rho, eta) for p in range(5)]
        )
        lam = lam + eta / 2 * np.array(
            [sum(f[p] - f[j] for j in topology.neighbours(p)) for p in range(5)]
        )
        seen.append(f)
    messages = []
    simulate(
        shards,
        topology,
        Plan.of(C=C, rho=rho, eta=eta, rounds=T),
        on_round=lambda progress: messages.append(progress.messages[:, 0].copy()),
    )
    for ours, theirs in zip(messages, seen, strict=True):
        np.testing.assert_allclose(
            ours, theirs, atol=2e-5 * np.abs(theirs).max()
        )  # L-BFGS-B is the rougher of the two


def test_send_adds_the_linear_term(census5):
    shards = census5.shards()
    problem = StackedProblem([s.signed for s in shards], Logistic(), SquaredL2(), 1.0, 0.1)
    degrees, eta = np.full(5, 2.0), np.array([0.5])
    V = np.random.default_rng(0).normal(size=(5, 1, problem.dimension))
    state = admm.State(V, 0.1 * V)
    linear = np.random.default_rng(1).normal(size=V.shape)
    solver = LocalSolver(problem, degrees, eta, default_gamma(problem), np.zeros_like(V))
    g = solver.local_step(1, state, linear, np.zeros((5, 1)))
    gradient = problem.local_gradient(g) + 2 * state.lam + 2 * eta * (2 * g - state.W) + linear
    assert np.linalg.norm(gradient, axis=-1).max() < 1e-9


def test_one_node_alone_minimises_its_own_objective(census5):
    shard = census5.schema.shard(census5.train)
    problem = StackedProblem([shard.signed], Logistic(), SquaredL2(), 1.0, 0.01)
    run = simulate([shard], Topology.family("ring", 1), Plan.of(rho=0.01, rounds=2))
    assert np.linalg.norm(problem.local_gradient(run.V)) < 1e-9


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_stacked_nodes_send_what_each_would_send_alone(census5, storage):
    shards = census5.shards()
    degrees, eta, gamma = (
        np.array([1.0, 2.0, 3.0, 2.0, 4.0]),
        np.array([0.3]),
        np.full((1, 1), 1e-9),
    )
    rng = np.random.default_rng(0)
    V, lam = rng.normal(size=(2, 5, 1, shards[0].dimension))
    state = admm.State(V, lam)
    stacked = StackedProblem(
        [s.signed for s in shards], Logistic(), SquaredL2(), 1.0, 0.1, storage=storage
    )
    zero = np.zeros_like(V)
    together = LocalSolver(stacked, degrees, eta, gamma, zero).local_step(
        1, state, None, np.zeros((5, 1))
    )
    for p, shard in enumerate(shards):
        alone = StackedProblem([shard.signed], Logistic(), SquaredL2(), 1.0, 0.1)
        own = admm.State(V[[p]], lam[[p]])
        solver = LocalSolver(alone, degrees[[p]], eta, gamma, zero[[p]])
        g = solver.local_step(1, own, None, np.zeros((1, 1)))
        assert np.linalg.norm(g[0] - together[p]) <= 2e-9 / 0.1
