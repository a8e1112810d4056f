import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp import Plan
from dynadp.consensus.topology import Topology
from dynadp.data.datasets.synthetic import census
from dynadp.engines.simulation import simulate
from dynadp.errors import DeclarationError
from dynadp.mechanisms.entropy import SeededEntropy
from dynadp.mechanisms.primal import Primal
from dynadp.problem.regularizers import SmoothElasticNet, SquaredL2, check_regularizer
from support.reference import regularizers as reference_regularizers

ALL = [SquaredL2(), SmoothElasticNet(), SmoothElasticNet(l1=5.0, scale=0.01)]
vectors = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3).map(np.array)


@pytest.mark.parametrize("R", ALL, ids=repr)
def test_agrees_with_formulas_written_again(R):
    f = np.random.default_rng(0).normal(size=(4, 3, 7))
    value, gradient, curvature = reference_regularizers(**R.describe())
    np.testing.assert_allclose(R.value(f)[2, 1], value(f[2, 1]), rtol=1e-12)
    np.testing.assert_allclose(R.gradient(f), gradient(f), rtol=1e-12)
    np.testing.assert_allclose(R.curvature(f), curvature(f), rtol=1e-12)


@pytest.mark.parametrize("R", ALL, ids=repr)
def test_smallest_at_zero(R):
    zero = np.zeros(5)
    assert R.value(zero) == 0
    assert not R.gradient(zero).any()


@pytest.mark.parametrize("R", ALL, ids=repr)
@given(a=vectors, b=vectors)
def test_strongly_convex_and_smooth(R, a, b):
    monotone = (R.gradient(a) - R.gradient(b)) @ (a - b)
    apart = (a - b) @ (a - b)
    assert monotone >= apart * (1 - 1e-9) - 1e-9
    assert monotone <= R.smoothness * apart * (1 + 1e-9) + 1e-9
    assert (R.curvature(a) >= 1).all()
    assert (R.curvature(a) <= R.smoothness * (1 + 1e-15)).all()


def test_the_second_regulariser_is_not_quadratic():
    R = SmoothElasticNet()
    assert R.curvature(np.array([0.0]))[0] == R.smoothness
    assert R.curvature(np.array([10.0]))[0] < 1.01


@pytest.mark.parametrize(
    ("l1", "scale", "named"),
    [(-1, 1, "l1"), (np.nan, 1, "l1"), (1, 0, "scale"), (1, np.inf, "scale")],
)
def test_parameters_are_checked(l1, scale, named):
    with pytest.raises(DeclarationError, match=named):
        SmoothElasticNet(l1=l1, scale=scale)


def own(value=lambda f: 0.5 * f * f, slope=lambda f: f, curvature=np.ones_like, most=1.0):
    class Own(SquaredL2):
        name = "mine"
        smoothness = most

        def value(self, f):
            return value(f).sum(axis=-1)

        def gradient(self, f):
            return slope(f)

        def curvature(self, f):
            return curvature(f)

    return Own()


@pytest.mark.parametrize("R", [*ALL, SmoothElasticNet(l1=100.0, scale=1e-3), own()], ids=repr)
def test_what_holds_is_not_refuted(R):
    check_regularizer(R)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (own(lambda f: 0.005 * f * f, lambda f: 0.01 * f, lambda f: 0.01 + 0 * f), r"r'' >= 1 at"),
        (own(lambda f: 0.005 * f * f, lambda f: 0.01 * f), r"r'' >= 1 \(slope of its slope\)"),
        (own(lambda f: f * f, lambda f: 2 * f, lambda f: 2 + 0 * f), r"r'' <= 1 at"),
        (own(lambda f: f * f, lambda f: 2 * f), r"r'' <= 1 \(slope of its slope\)"),
        (own(lambda f: 0.5 * (f - 1) ** 2, lambda f: f - 1), r"r\(0\) = 0"),
        (own(slope=lambda f: f + 1), r"r'\(0\) = 0"),
        (own(lambda f: f * f, most=2.0), "r' = dr/df"),
        (own(slope=lambda f: f + np.ptp(f, axis=-1, keepdims=True)), "a sum over coordinates"),
        (own(curvature=lambda f: f / 0.0), r"'r'' is finite'"),
        (own(curvature=lambda f: 1.0), "shape"),
        (own(most=0.5), "declares sup r'' = 0.5"),
        (own(most=np.inf), "declares sup r'' = inf"),
    ],
)
def test_what_breaks_is_named(broken, named):
    with pytest.raises(DeclarationError, match=f"'mine'.*{named}"):
        check_regularizer(broken)


def test_a_private_run_refuses_a_regulariser_that_would_break_its_noise():
    weak = own(lambda f: 0.005 * f * f, lambda f: 0.01 * f, lambda f: 0.01 + 0 * f)
    shards = census(60, seed=1, nodes=3).shards()
    with pytest.raises(DeclarationError, match="r'' >= 1"):
        simulate(
            shards,
            Topology.family("ring", 3),
            Plan.of(
                C=1.0,
                rho=1.0,
                eta=0.1,
                rounds=2,
                mechanism=Primal(),
                schedule=1.0,
                regularizer=weak,
            ),
            draws=SeededEntropy(0),
        )
