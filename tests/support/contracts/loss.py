"""What every loss must keep; a test class for a loss inherits this and provides ``loss``."""

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynadp.problem.losses import check_loss

margins = st.floats(-1e6, 1e6)


class LossContract:
    loss = None

    def at(self, *z):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # overflow would warn
            z = np.array(z, dtype=float)
            return self.loss.value(z), self.loss.slope(z), self.loss.curvature(z)

    @given(margins)
    def test_bounds_hold_everywhere(self, z):
        value, slope, curvature = self.at(z)
        assert value[0] >= 0
        # 1-Lipschitz; never rewards a smaller margin, or a larger residual
        assert -1 <= slope[0] <= (1 if self.loss.residual else 0)
        assert not self.loss.residual or slope[0] * np.sign(z) >= 0
        assert 0 <= curvature[0] <= self.loss.c1 * (1 + 1e-15)

    @given(margins, margins)
    def test_convex_with_slope_and_curvature_bound(self, a, b):
        low, high = min(a, b), max(a, b)
        value, slope, _ = self.at(low, high)
        rounding = 1e-9 * (1 + abs(value[0]))
        assert value[1] >= value[0] + slope[0] * (high - low) - rounding  # above its tangent
        assert slope[1] - slope[0] >= -1e-15
        assert slope[1] - slope[0] <= self.loss.c1 * (high - low) + 1e-15

    def test_c1_is_attained(self):
        z = np.linspace(-20, 20, 400_001)
        assert self.loss.curvature(z).max() > 0.999 * self.loss.c1

    def test_slope_is_the_derivative_of_value(self):
        z, h = np.linspace(-15, 15, 3001), 1e-5
        quotient = (self.loss.value(z + h) - self.loss.value(z - h)) / (2 * h)
        np.testing.assert_allclose(self.loss.slope(z), quotient, atol=1e-5)

    def test_curvature_is_the_derivative_of_slope_away_from_kinks(self):
        z, h = np.linspace(-15, 15, 3001) + 1e-4, 1e-6
        quotient = (self.loss.slope(z + h) - self.loss.slope(z - h)) / (2 * h)
        np.testing.assert_allclose(self.loss.curvature(z), quotient, atol=1e-5)

    def test_is_not_refuted(self):
        check_loss(self.loss)

    def test_inputs_are_left_alone(self):
        z = np.linspace(-3, 3, 7)
        before = z.copy()
        self.loss.value(z), self.loss.slope(z), self.loss.curvature(z)
        np.testing.assert_array_equal(z, before)

    def test_description_names_the_constants(self):
        assert self.loss.describe()["c1"] == self.loss.c1
        assert self.loss.describe()["name"] == self.loss.name
