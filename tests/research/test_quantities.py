"""The paper's expected losses and gaps against direct computation, and along real runs."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.shard import Shard
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.dual import Dual
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.mechanisms.sampling import l2_laplace
from dynadp.research.quantities import NodeQuantities
from dynadp.research.theorem_inputs import TheoremInputs
from dynadp.research.theorems import THEOREM_3
from support import flat_simulate

C, RHO, ETA, D = 3.0, 0.4, 0.2, 3


def signed(rng, rows):
    x = rng.normal([0.6, 0, 0], size=(rows, D))
    return x / np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]


@pytest.fixture
def node():
    rng = np.random.default_rng(1)
    population = signed(rng, 400)
    return NodeQuantities(population[rng.integers(400, size=50)], population, C, RHO)


def mean_loss(rows, f):
    """Row by row."""
    return C * sum(np.log1p(np.exp(-a @ f)) for a in rows) / len(rows)


def argmin(objective):
    return minimize(objective, np.zeros(D), method="BFGS", options={"gtol": 1e-9}).x


def test_expected_losses_are_sums_over_the_distribution(node):
    F = np.random.default_rng(2).normal(size=(4, 2, D))
    assert node.C_hat(F).shape == node.Z_hat(F).shape == (4, 2)
    for at in np.ndindex(4, 2):
        f = F[at]
        assert node.C_hat(f) == pytest.approx(mean_loss(node.population, f))
        assert node.C_hat(F)[at] == pytest.approx(float(node.C_hat(f)))
        assert node.Z_hat(f) == pytest.approx(mean_loss(node.population, f) + RHO * f @ f / 2)
        assert node.Z(f) == pytest.approx(mean_loss(node.rows, f) + RHO * f @ f / 2)


def test_the_expectation_of_z_is_z_hat(node):
    """Over all draws of the rows, here 4,000 of them."""
    rng, f = np.random.default_rng(3), np.array([0.3, -1.0, 0.5])
    drawn = [
        float(NodeQuantities(node.population[pick], node.population, C, RHO).Z(f))
        for pick in rng.integers(400, size=(4000, 20))
    ]
    assert np.mean(drawn) == pytest.approx(float(node.Z_hat(f)), abs=4 * np.std(drawn) / 63)


def test_gaps_are_differences_from_the_minimiser_of_each_objective(node):
    rng = np.random.default_rng(4)
    f, e, fresh = rng.normal(size=(3, D))
    others, middle = rng.normal(size=(2, 2, D))
    B = len(node.rows)

    def Z(g):
        return mean_loss(node.rows, g) + RHO * g @ g / 2

    def dual(g, Phi=0.0):
        return Z(g) + C / B * e @ g + Phi * g @ g / 2

    def prim(g):
        own = e[None] - others
        return Z(g) + ETA * sum((g - m) @ n + n @ n / 4 for m, n in zip(middle, own, strict=True))

    assert float(node.Z_dual(f, e, 0.3)) == pytest.approx(dual(f, 0.3))
    assert float(node.Z_prim(f, e, others, ETA, middle)) == pytest.approx(prim(f))
    assert node.f_hat() == pytest.approx(argmin(node.Z_hat), abs=1e-6)
    limits = {
        "non": (node.delta_non(f), argmin(Z)),
        "dual": (node.delta_dual(f, e), argmin(dual)),
        "Phi": (node.delta_dual(f, e, 0.3), argmin(lambda g: dual(g, 0.3))),
        "prim": (node.delta_prim(f, e, others, ETA), argmin(prim)),
        "primV": (node.delta_primV(f, e, others, ETA, fresh), argmin(prim) + fresh),
    }
    for name, (gap, limit) in limits.items():
        direct = mean_loss(node.population, f) - mean_loss(node.population, limit)
        assert float(gap) == pytest.approx(direct, abs=1e-6), name


def test_the_decomposition_behind_every_theorem(node):
    """C_hat(w) = C0 + [Z_hat(w) - min] + [min - Z_hat(f0)] + (rho/2)(||f0||^2 - ||w||^2)."""
    w, f0 = np.random.default_rng(5).normal(size=(2, D))
    least = node.Z_hat(node.f_hat())
    right = node.C_hat(f0) + (node.Z_hat(w) - least) + (least - node.Z_hat(f0))
    right += RHO / 2 * (f0 @ f0 - w @ w)
    assert float(node.C_hat(w)) == pytest.approx(float(right))
    assert node.Z_hat(w) >= least


def network(rng, unlike=0.0):
    """Two nodes: their rows, and the distribution of the first."""
    population = signed(rng, 400)
    first = population[rng.integers(400, size=60)]
    second = population[rng.integers(400, size=60)] * [1, -unlike if unlike else 1, 1]
    shards = [Shard.of(rows, np.ones(60)) for rows in (first, second)]
    return NodeQuantities(first, population, C, RHO), shards


SETTINGS = {"C": C, "rho": RHO, "eta": ETA, "weights": "equal"}
PAIR = Topology.family("path", 2)


def test_theorem_3_holds_along_a_run_with_its_delta():
    """C_hat(f(t)) <= C0 + alpha_acc + Delta_non(t), here far from tight."""
    node, shards = network(np.random.default_rng(6))
    sent = []
    flat_simulate(
        shards,
        PAIR,
        **SETTINGS,
        rounds=30,
        on_round=lambda progress: sent.append(progress.messages[0, 0].copy()),
    )
    gaps = node.delta_non(np.array(sent))
    f0 = node.f_hat()
    p = TheoremInputs(norm=float(np.linalg.norm(f0)), C=C)
    accuracy = THEOREM_3.accuracy(p, len(node.rows), 0.05)
    assert (node.C_hat(np.array(sent)) <= node.C_hat(f0) + accuracy + gaps).all()
    assert abs(gaps[-1]) < abs(gaps[0])
    np.testing.assert_allclose(node.C_hat(np.array(sent)) - gaps, float(node.C_hat(node.f_star())))


def test_delta_non_vanishes_for_one_node_and_not_for_unlike_ones():
    node, shards = network(np.random.default_rng(7), unlike=1.0)
    alone = simulate(shards[:1], Topology.family("path", 1), Plan.of(C=C, rho=RHO, rounds=3))
    assert float(node.delta_non(alone.V[0, 0])) == pytest.approx(0, abs=1e-6)
    both = flat_simulate(shards, PAIR, **SETTINGS, rounds=200)
    assert abs(float(node.delta_non(both.V[0, 0]))) > 1e-3


def test_gaps_of_private_runs_use_the_noise_of_the_run():
    """One node whose penalty is nothing sends the minimiser of Z_dual with the drawn noise."""
    node, shards = network(np.random.default_rng(8))
    draws = SeededEntropy(3)
    run = simulate(
        shards[:1],
        Topology.family("path", 1),
        Plan.of(C=C, rho=RHO, eta=1e-9, rounds=1, mechanism=Dual(), schedule=1.0),
        draws=draws,
    )
    calibration = run.noises[0]
    unit = l2_laplace(draws, "dual", run.topology.nodes, 1, 1, D)[0, 0]
    noise, Phi = unit / calibration.inner[0, 0], float(calibration.phi[0, 0])
    gap = float(node.delta_dual(run.V[0, 0], noise, Phi))
    assert abs(gap) < 1e-2 * abs(float(node.delta_non(run.V[0, 0])))
    primal = flat_simulate(
        shards, PAIR, **SETTINGS, rounds=1, mechanism=Primal(), schedule=1.0, draws=draws
    )
    units = l2_laplace(draws, "primal", PAIR.nodes, 1, 1, D)[:, 0]
    e = units / primal.noises[0].outer
    f = primal.V[0, 0] - e[0]
    exact = flat_simulate(shards, PAIR, **SETTINGS, rounds=1)
    np.testing.assert_allclose(f, exact.V[0, 0], atol=1e-2)
    assert np.isfinite(node.delta_prim(f, e[0], e[1:], ETA))


def test_rows_without_a_distribution_are_refused():
    with pytest.raises(DeclarationError, match=r"shapes \(3, 2\) and \(3, 3\)"):
        NodeQuantities(np.zeros((3, 2)), np.zeros((3, 3)), C, RHO)
    with pytest.raises(DeclarationError, match="expected B x d"):
        NodeQuantities(np.zeros((0, 2)), np.zeros((3, 2)), C, RHO)
