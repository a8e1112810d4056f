import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynadp.errors import DeclarationError
from dynadp.regularizers import SmoothElasticNet, SquaredL2
from reference import regularizers as reference_regularizers

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


@pytest.mark.parametrize(("l1", "scale", "named"), [(-1, 1, "l1"), (np.nan, 1, "l1"), (1, 0, "scale"), (1, np.inf, "scale")])
def test_parameters_are_checked(l1, scale, named):
    with pytest.raises(DeclarationError, match=named):
        SmoothElasticNet(l1=l1, scale=scale)
